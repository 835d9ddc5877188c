"""What a few GPUs did in six hours, asked of Prometheus once in a while: evidence for decide/idle/gaming.py.

In: UUIDs. Out: a Burned for each that was measured. Asked rarely and of few: five questions for all of them, no
subquery. Of several series of a GPU the highest counts: nobody makes another look emptier than it is.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from fallow.clients import errors
from fallow.clients.prometheus import client
from fallow.model import usage
from fallow.model.gaming import SPAN, STEP, Burned
from fallow.model.units import Instant
from fallow.observe.usage import queries

_ENGINE, _UTIL = "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_GPU_UTIL"
_PEAKS: Final = {
    "tensor": "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "dram": "DCGM_FI_PROF_DRAM_ACTIVE", "sm": "DCGM_FI_PROF_SM_ACTIVE",
}
_HIGHEST: Final = 1.05
_AT_ONCE: Final = 100  # UUIDs in a question


class GpuLabel(msgspec.Struct, frozen=True):
    UUID: str = ""


async def read(prometheus: client.Prometheus, gpus: Sequence[str], now: Instant) -> dict[str, Burned]:
    """Raises what Prometheus does."""
    found = dict[str, Burned]()
    for start in range(0, len(gpus), _AT_ONCE):
        found |= await _read(prometheus, gpus[start : start + _AT_ONCE], now)
    return found


async def _read(prometheus: client.Prometheus, gpus: Sequence[str], now: Instant) -> dict[str, Burned]:
    span, among = queries.span(SPAN), client.any_of("UUID", gpus)

    def select(metric: str) -> str:
        return prometheus.selector(metric, among)

    peaks = {
        name: await _ask(prometheus, f"max by (UUID)(max_over_time({select(metric)}[{span}]))", now)
        for name, metric in _PEAKS.items()
    }
    mean = f"max by (UUID)(avg_over_time({select(_ENGINE)}[{span}]) or avg_over_time({select(_UTIL)}[{span}]) / 100)"
    means = await _ask(prometheus, mean, now)
    activity = await _draw(prometheus, f"max by (UUID)({select(_ENGINE)} or {select(_UTIL)} / 100)", now)
    return {
        gpu: Burned(activity=activity[gpu], mean=means.get(gpu, np.nan), **{
            name: values.get(gpu, np.nan) for name, values in peaks.items()
        })
        for gpu in gpus if gpu in activity
    }


async def _ask(prometheus: client.Prometheus, promql: str, now: Instant) -> Mapping[str, float]:
    answer = await prometheus.query(promql, now, row=GpuLabel)
    _check(answer.partial)
    return {series.metric.UUID: _number(series.value.value) for series in answer.rows}


async def _draw(prometheus: client.Prometheus, promql: str, now: Instant) -> dict[str, usage.Floats]:
    end = now // STEP * STEP
    answer = await prometheus.query_range(promql, end - SPAN, end, STEP, row=GpuLabel, now=now)
    _check(answer.partial)
    points, found = round(SPAN / STEP) + 1, {}
    for series in answer.rows:
        values = np.full(points, np.nan)
        for each in series.values:
            values[min(points - 1, max(0, round((each.at - end + SPAN) / STEP)))] = _number(each.value)
        found[series.metric.UUID] = values
    return found


def _check(is_partial: bool) -> None:
    if is_partial:
        raise errors.BadAnswer("Prometheus answered only in part")


def _number(text: str) -> float:
    """What is no believable ratio was not measured."""
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if 0.0 <= value <= _HIGHEST else math.nan
