"""How much of a GPU somebody's pods need: memory and compute, as they say or as they were measured.

In: a pod's annotations, the use of its owner over seven days. Out: ShareNeeds: MiB and a share of the SMs, or unknown;
advice on how many may share a GPU.
Invariant: what was measured counts with a fifth on top, and only where four fifths of the time was measured. A pod's
RAM request is never taken for GPU memory.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from fallow import names
from fallow.model import classes, quantities
from fallow.model.classes import PodEvent
from fallow.model.seen import Input, Known
from fallow.model.sharing import OwnerUse

HEADROOM: Final = 1.2
COVERED: Final = 0.8
MOST_REPLICAS: Final = 8
MOST_CLIENTS: Final = 16  # of a GPUSharingPolicy that says nothing else
MOST_MEMORY: Final = 1024 * 1024  # MiB; no GPU has as much
# mean below, burstiness above, pods on one GPU
_ADVICE: Final = ((0.2, 0.7, MOST_REPLICAS), (0.4, 0.5, 4), (0.6, -math.inf, 2))


class ShareNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """`memory`: MiB; `compute`: share of the SMs; `mean`: how busy it keeps a whole GPU. None = not known."""

    memory: int | None = None
    compute: float | None = None
    mean: float | None = None
    events: tuple[PodEvent, ...] = ()


def find(marks: Mapping[str, str], use: Input[OwnerUse]) -> ShareNeeds:
    """Raises ValueError, with the sentence, where the pod says something that cannot be read."""
    measured = use.value if isinstance(use, Known) and use.value.coverage >= COVERED else None
    memory, events = classes.read_key(marks, names.GPU_MEMORY_NEED)
    compute, more = classes.read_key(marks, names.GPU_COMPUTE_NEED)
    peak = measured.peak_memory if measured else None
    return ShareNeeds(
        memory=_read_memory(memory) if memory is not None else None if peak is None else math.ceil(peak * HEADROOM),
        compute=_read_percent(compute) if compute is not None else measured.p95 if measured else None,
        mean=measured.mean if measured else None, events=(*events, *more),
    )


def _read_memory(text: str) -> int:
    """A quantity in MiB; a bare number is MiB."""
    shown = f"{names.GPU_MEMORY_NEED}: {text[:40]!r}"
    try:
        made = int(text) if text.isdecimal() and len(text) <= 9 else quantities.parse_mebi(text)
    except ValueError:
        raise ValueError(f"{shown} is not a quantity such as 8Gi, or a number of MiB") from None
    if not 0 < made <= MOST_MEMORY:
        raise ValueError(f"{shown} is not between 1 MiB and 1 TiB")
    return made


def _read_percent(text: str) -> float:
    if not text.isdecimal() or len(text) > 3 or not 1 <= int(text) <= 100:
        raise ValueError(f"{names.GPU_COMPUTE_NEED}: {text[:40]!r} is not a percentage from 1 to 100")
    return int(text) / 100


def read_most(said: Iterable[Mapping[str, str]], key: str) -> int | None:
    """The least that any of these marks says; what is no number from 1 to 999 says nothing."""
    words = (classes.read_key(marks, key)[0] or "" for marks in said)
    return min((int(text) for text in words if text.isdecimal() and len(text) <= 3 and int(text)), default=None)


def advise_replicas(mean: float, p95: float, *, largest_need: int | None, gpu_memory: int | None) -> int:
    """How many such pods may take turns on one GPU: fewer where their memory would not fit beside each other, and one
    where nobody knows whether it does."""
    if largest_need is None or gpu_memory is None:
        return 1
    bursty = 1 - mean / max(p95, 0.01)
    wanted = next((count for below, above, count in _ADVICE if mean < below and bursty > above), 1)
    return max(1, min(wanted, gpu_memory // max(largest_need, 1)))


def bound_clients(said: int | None) -> int:
    """As people say, if they do; and no more than usual."""
    return min(MOST_CLIENTS, said or MOST_CLIENTS)


def advise_clients(p95: float, *, need: int, gpu_memory: int, most: int) -> int:
    """How many such pods may share one GPU by MPS."""
    share = max(p95, need / gpu_memory)
    return most if share <= 1 / most else max(1, math.floor(1 / share))
