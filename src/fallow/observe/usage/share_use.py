"""How much of their GPUs pods used lately, and at most in seven days: asked of Prometheus, for advice.

In: names of pods, whose series count, how far to look back. Out: a ShareUse by namespace and name. Eight questions for
a hundred pods. Of several GPUs of a pod the mean counts for what is wasted, the highest for what is needed.
Invariant: an empty answer is not known, and no 0.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from fallow.clients import errors
from fallow.clients.prometheus import client
from fallow.model.share_advice import ShareUse
from fallow.model.units import Instant, Seconds
from fallow.observe.usage.owning import SPAN, PodLabels, UseWords

_USED, _FREE, _SM = "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_PROF_SM_ACTIVE"
_ENGINE, _UTIL = "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_GPU_UTIL"
_STEP: Final[Seconds] = 60.0
_COARSE: Final[Seconds] = 300.0
_FRESH: Final[Seconds] = 120.0
_AT_ONCE: Final = 100
_COVERED: Final = 0.8
_IDLE: Final = 0.01  # no GPU that computes is less busy in all that time
_CONTEXT: Final = 1024.0  # MiB: more than who has opened a GPU and put nothing there
_Values = Mapping[tuple[str, str], float]  # by namespace and name


async def read(
    prometheus: client.Prometheus, pods: Sequence[str], words: UseWords, now: Instant, lookback: Seconds
) -> dict[tuple[str, str], ShareUse]:
    """Raises what Prometheus does."""
    found = dict[tuple[str, str], ShareUse]()
    for start in range(0, len(pods), _AT_ONCE):
        found |= await _read(prometheus, pods[start : start + _AT_ONCE], words, now, lookback)
    return found


async def _read(
    prometheus: client.Prometheus, pods: Sequence[str], words: UseWords, now: Instant, lookback: Seconds
) -> dict[tuple[str, str], ShareUse]:
    believed = [] if words.exporters is None else [f'namespace=~"{client.escape(words.exporters)}"']

    def select(metric: str) -> str:
        return prometheus.selector(metric, client.any_of(words.pod, pods), *believed)

    async def ask(over: str, promql: str) -> _Values:
        answer = await prometheus.query(f"{over} by ({words.namespace}, {words.pod})({promql})", now, row=PodLabels)
        if answer.partial:
            raise errors.BadAnswer("Prometheus answered only in part")
        rows = ((each.metric, float(each.value.value)) for each in answer.rows)
        return {(getattr(who, words.namespace), getattr(who, words.pod)): value for who, value in rows
                if math.isfinite(value)}

    used, free, near, far = select(_USED), select(_FREE), f"[{lookback:.0f}s:{_STEP:.0f}s]", f"[{SPAN:.0f}s]"
    busy = f"({select(_ENGINE)} or {select(_UTIL)} / 100)"
    # A sample counts for two minutes: Prometheus itself would carry it on for five.
    measured = " or ".join(f"present_over_time({select(each)}[{_FRESH:.0f}s])" for each in (_ENGINE, _UTIL))
    total = f"({used} + {free})"  # lines of one page: all of their labels are alike, also of instances and slices
    part = f"({used} / {total})"
    return _see(
        lookback, gpu=await ask("avg", f"avg_over_time({busy}{near})"),
        counted=await ask("min", f"count_over_time(({measured}){near})"),
        memory=await ask("avg", f"avg_over_time({part}{near})"), total=await ask("min", total),
        peak=await ask("max", f"max_over_time({used}{far})"),
        p95=await ask("max", f"quantile_over_time(0.95, ({select(_SM)} or {busy})[{SPAN:.0f}s:{_COARSE:.0f}s])"),
        measured=await ask("min", f"count_over_time({used}[{SPAN:.0f}s:{_COARSE:.0f}s])"),
        unused=await ask("count", _say_unused(words, select, near, lookback)),
    )


def _say_unused(words: UseWords, select: Callable[[str], str], near: str, lookback: Seconds) -> str:
    """GPUs that were measured and not used, in all of the span; of several series of one the highest count."""
    by = f"by ({words.namespace}, {words.pod}, UUID)"
    busy = (f"max_over_time({select(_ENGINE)}[{SPAN:.0f}s])", f"max_over_time({select(_UTIL)}[{SPAN:.0f}s]) / 100")
    most = f"max {by}({busy[0]} or {busy[1]})"
    held = f"max {by}(max_over_time({select(_USED)}[{SPAN:.0f}s]))"
    counted = f"max {by}(count_over_time(({select(_ENGINE)} or {select(_UTIL)}){near}))"
    return f"{most} < {_IDLE} and {held} < {_CONTEXT} and {counted} >= {_COVERED * lookback / _STEP:g}"


def _see(
    lookback: Seconds, *, counted: _Values, measured: _Values, **values: _Values
) -> dict[tuple[str, str], ShareUse]:
    """Of ratios that cannot be, nothing is known."""
    points = lookback / _STEP
    made = {}
    for pod in {*counted, *measured}:
        known = {name: each.get(pod) for name, each in values.items()}
        ratios = {name: value for name in ("gpu", "memory", "p95") if (value := _ratio(known[name])) is not None}
        made[pod] = ShareUse(
            coverage=min(1.0, counted.get(pod, 0.0) / points), seconds=measured.get(pod, 0.0) * _COARSE,
            total=known["total"], peak=known["peak"], **ratios,
            unused=None if (unused := known["unused"]) is None else int(unused),
        )
    return made


def _ratio(value: float | None) -> float | None:
    return min(value, 1.0) if value is not None and 0.0 <= value <= 1.05 else None
