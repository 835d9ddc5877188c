"""How much of a GPU somebody's pods used in seven days, asked of Prometheus once an hour.

In: pods with their owners, whose series count. Out: an OwnerUse for every owner one of whose pods has run for a day.
Of several pods, and of several series of a pod, the highest counts, and of coverage the lowest: nobody makes another
look smaller than it is. Of pods that are younger only what is higher counts. Eight questions for a hundred pods.
Invariant: only series of exporters that are believed are asked for. What was not measured is not known, and no 0.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from fallow.clients import errors
from fallow.clients.prometheus import client
from fallow.model.classes import Behaviour
from fallow.model.seen import Known
from fallow.model.sharing import OwnerUse
from fallow.model.units import DAY, Instant, Seconds

SPAN: Final[Seconds] = 7 * DAY
# A pod may have the name of one before it, whose samples are not its own: of each part of its life enough is needed.
_PARTS: Final[tuple[Seconds, ...]] = (DAY, 3 * DAY, SPAN)
_STEP: Final[Seconds] = 300.0  # coverage is counted in such steps: Prometheus looks back as far
_MEMORY, _SM = "DCGM_FI_DEV_FB_USED", "DCGM_FI_PROF_SM_ACTIVE"
_ENGINE, _UTIL = "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_GPU_UTIL"
_AT_ONCE: Final = 100
_MOST_MEMORY: Final = 1024.0 * 1024  # MiB
_IDLE: Final = 0.01


class OwnedPod(msgspec.Struct, frozen=True):
    """`owner`: its uid."""

    namespace: str
    name: str
    owner: str
    since: Instant


class UseWords(msgspec.Struct, frozen=True):
    """By which labels series name pods, and the namespaces whose exporters are believed (None: all are)."""

    pod: str = "exported_pod"
    namespace: str = "exported_namespace"
    exporters: str | None = None


class PodLabels(msgspec.Struct, frozen=True):
    exported_pod: str = ""
    exported_namespace: str = ""
    pod: str = ""
    namespace: str = ""


N = TypeVar("N", int, float)
_Name = tuple[str, str]  # namespace and name
_Values = Mapping[_Name, float]


async def read(
    prometheus: client.Prometheus, pods: Sequence[OwnedPod], words: UseWords, now: Instant
) -> dict[str, OwnerUse]:
    """By the owner's uid. Raises what Prometheus does."""
    settled, young = dict[str, list[OwnerUse]](), dict[str, list[OwnerUse]]()
    known = {pod.owner for pod in pods if _is_settled(pod, now)}
    asked = [pod for pod in pods if pod.owner in known]
    for start in range(0, len(asked), _AT_ONCE):
        for pod, use in await _read(prometheus, asked[start : start + _AT_ONCE], words, now):
            (settled if _is_settled(pod, now) else young).setdefault(pod.owner, []).append(use)
    return {owner: _raise(_join(several), young.get(owner, ())) for owner, several in settled.items()}


def _is_settled(pod: OwnedPod, now: Instant) -> bool:
    return pod.since <= now - DAY


async def _read(
    prometheus: client.Prometheus, pods: Sequence[OwnedPod], words: UseWords, now: Instant
) -> list[tuple[OwnedPod, OwnerUse]]:
    among = client.any_of(words.pod, sorted({pod.name for pod in pods}))
    believed = [] if words.exporters is None else [f'namespace=~"{client.escape(words.exporters)}"']

    def select(metric: str) -> str:
        return prometheus.selector(metric, ",".join([among, *believed]))

    async def ask(promql: str) -> _Values:
        asked = f"max by ({words.namespace}, {words.pod})({promql})"
        answer = await prometheus.query(asked, now, row=PodLabels)
        if answer.partial:
            raise errors.BadAnswer("Prometheus answered only in part")
        return {(getattr(each.metric, words.namespace), getattr(each.metric, words.pod)): float(each.value.value)
                for each in answer.rows}

    span, step = f"[{SPAN:.0f}s]", f"[{SPAN:.0f}s:{_STEP:.0f}s]"
    busy = f"({select(_ENGINE)} or {select(_UTIL)} / 100)"
    peaks = await ask(f"max_over_time({select(_MEMORY)}{span})")
    counts = {part: await ask(f"count_over_time({select(_MEMORY)}[{part:.0f}s:{_STEP:.0f}s])") for part in _PARTS}
    p95 = await ask(f"quantile_over_time(0.95, {select(_SM)}{span})")
    means, deviations, medians = [
        await ask(f"{how}{busy}{step})") for how in ("avg_over_time(", "stddev_over_time(", "quantile_over_time(0.5, ")
    ]
    return [(pod, _see(pod, now, peaks, counts, p95, means, deviations, medians)) for pod in pods]


def _see(
    pod: OwnedPod, now: Instant, peaks: _Values, counts: Mapping[Seconds, _Values], p95: _Values, means: _Values,
    deviations: _Values, medians: _Values,
) -> OwnerUse:
    name, seconds = (pod.namespace, pod.name), max(_STEP, min(SPAN, now - pod.since))
    mean, deviation, median = (_ratio(each.get(name)) for each in (means, deviations, medians))
    parts = (counts[part].get(name, 0.0) * _STEP / min(part, seconds) for part in _PARTS)
    peak, coverage = peaks.get(name), min(1.0, *parts)
    is_sane = peak is not None and 0 <= peak <= _MOST_MEMORY
    use = OwnerUse(
        coverage=coverage, peak_memory=math.ceil(peak) if is_sane and peak is not None else None, mean=mean,
        p95=_ratio(p95.get(name)),
    )
    if mean is None or deviation is None or median is None:
        return use
    return msgspec.structs.replace(use, behaviour=Known(Behaviour(
        seconds=seconds, coverage=coverage, mean=mean, deviation=deviation, idle=0.5 if median < _IDLE else 0.0
    )))


def _ratio(value: float | None) -> float | None:
    """What is no believable ratio was not measured."""
    return value if value is not None and 0.0 <= value <= 1.05 else None


def _join(several: Sequence[OwnerUse]) -> OwnerUse:
    """What one of them did not have measured is not known of the owner."""
    return OwnerUse(
        coverage=min(each.coverage for each in several), peak_memory=_highest(each.peak_memory for each in several),
        mean=_highest(each.mean for each in several), p95=_highest(each.p95 for each in several),
        behaviour=max(several, key=lambda each: each.mean or 0.0).behaviour,
    )


def _raise(use: OwnerUse, young: Iterable[OwnerUse]) -> OwnerUse:
    """What is not known of the young is no news."""
    more = {name: [getattr(each, name) for each in young] for name in ("peak_memory", "mean", "p95")}
    higher = {name: max([getattr(use, name), *(each for each in values if each is not None)])
              for name, values in more.items() if getattr(use, name) is not None}
    return msgspec.structs.replace(use, **higher)


def _highest(values: Iterable[N | None]) -> N | None:
    found = list(values)
    known = [each for each in found if each is not None]
    return max(known) if len(known) == len(found) else None
