"""What a workload could do with less than it holds: what was measured of it, and the advice.

Ratios are 0 to 1, memory is in MiB. None is what nobody knows, and what is not known is not advised upon.
"""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from fallow.model.classes import WorkClass
from fallow.model.gpus import Model
from fallow.model.units import Seconds


class ShareUse(msgspec.Struct, frozen=True, kw_only=True):
    """`gpu`, `memory`: means of the time looked back upon; `coverage`: how much of that was measured. `total`: memory
    of its GPU. `peak`, `p95` (of SM activity): of up to seven days, of which `seconds` were measured. `unused`: GPUs of
    a pod that neither computed nor held anything in all that time."""

    gpu: float | None = None
    memory: float | None = None
    coverage: float = 0.0
    total: float | None = None
    peak: float | None = None
    p95: float | None = None
    seconds: Seconds = 0.0
    unused: int | None = None


class ShareFacts(msgspec.Struct, frozen=True, kw_only=True):
    """`each`: whole GPUs of each of its pods; 0: it holds parts already. `per_hour`: what all of it costs.
    `most_clients`, `most_replicas`: with how many its people would share a GPU by MPS or in turns, themselves among
    them; None: they do not say. `prices`: of an hour of each model, its own among them, bought as it is; {}: nobody
    knows."""

    work: WorkClass
    gpus: float
    each: int
    use: ShareUse
    model: Model | None = None
    per_hour: float | None = None
    most_clients: int | None = None
    most_replicas: int | None = None
    prices: Mapping[str, float] = {}


class AdviceKind(StrEnum):
    unknown = "unknown"
    none = "none"
    mig = "MIG"
    mps = "MPS"
    timeslicing = "time-slicing"
    fewer = "fewer GPUs"
    model = "other GPU"


class ShareAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """`share`: of what it holds now; of another `model` all of it. `score`: 0 to 100; `saves`: a month, in the currency
    of its bill. `replicas`, `clients`: how many such pods could take turns on one GPU, or share it by MPS; 1: none but
    itself; None: nobody can tell, or it does not hold one whole GPU."""

    kind: AdviceKind
    because: str
    score: float | None = None
    share: float = 1.0
    model: str = ""
    saves: float | None = None
    is_sure: bool = False
    replicas: int | None = None
    clients: int | None = None


class CrowdAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """Of pods that hold a whole GPU each, by name: who could share one, whom it would be too small or too busy for, of
    whom nobody can tell. `replicas`, `clients`: how many of the first take turns on it, or share it by MPS; None: there
    is none of them. `largest_need`: MiB of any of them."""

    could: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    replicas: int | None = None
    clients: int | None = None
    largest_need: int | None = None
