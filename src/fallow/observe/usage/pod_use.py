"""What every GPU in a pod's hands does at this instant: busy, memory, power, temperature. Asked of Prometheus.

In: whose series count. Out: a GpuNow for every pod and GPU that a series names. Five questions, however many pods.
Invariant: only series of exporters that are believed are asked for. What nobody measured is None, and no 0.
"""

import math
from typing import Final

import msgspec

from fallow.clients import errors
from fallow.clients.prometheus import client
from fallow.model.units import Instant, Seconds
from fallow.observe.usage.owning import UseWords

_FRESH: Final[Seconds] = 120.0  # Prometheus itself would carry a sample on for five minutes
_METRICS: Final = {
    "util": ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 1.0, 1.05), "percent": ("DCGM_FI_DEV_GPU_UTIL", 0.01, 105.0),
    "used": ("DCGM_FI_DEV_FB_USED", 1.0, 1e7), "free": ("DCGM_FI_DEV_FB_FREE", 1.0, 1e7),
    "watts": ("DCGM_FI_DEV_POWER_USAGE", 1.0, 5000.0), "celsius": ("DCGM_FI_DEV_GPU_TEMP", 1.0, 200.0),
}  # metric, by what it is multiplied, and above what it is no reading


class GpuLabels(msgspec.Struct, frozen=True):
    exported_pod: str = ""
    exported_namespace: str = ""
    pod: str = ""
    namespace: str = ""
    gpu: str = ""
    UUID: str = ""
    GPU_I_ID: str = ""


class GpuNow(msgspec.Struct, frozen=True, kw_only=True):
    """`gpu`: its index on the node, as text; of a MIG instance with its id. `util`: 0 to 1; memory in MiB."""

    namespace: str
    pod: str
    gpu: str
    uuid: str
    util: float | None = None
    used: float | None = None
    total: float | None = None
    watts: float | None = None
    celsius: float | None = None


async def read(prometheus: client.Prometheus, words: UseWords, now: Instant) -> tuple[GpuNow, ...]:
    """Raises what Prometheus does."""
    believed = [] if words.exporters is None else [f'namespace=~"{client.escape(words.exporters)}"']
    found = dict[tuple[str, str, str, str], dict[str, float]]()
    for name, (metric, scale, top) in _METRICS.items():
        select = prometheus.selector(metric, f'{words.pod}!=""', *believed)
        answer = await prometheus.query(f"last_over_time({select}[{_FRESH:.0f}s])", now, row=GpuLabels)
        if answer.partial:
            raise errors.BadAnswer("Prometheus answered only in part")
        for each in answer.rows:
            value, labels = float(each.value.value), each.metric
            if math.isfinite(value) and 0 <= value <= top:
                gpu = f"{labels.gpu}/{labels.GPU_I_ID}" if labels.GPU_I_ID else labels.gpu
                key = getattr(labels, words.namespace), getattr(labels, words.pod), gpu, labels.UUID
                found.setdefault(key, {})[name] = value * scale
    return tuple(_see(*key, values) for key, values in sorted(found.items()))


def _see(namespace: str, pod: str, gpu: str, uuid: str, values: dict[str, float]) -> GpuNow:
    used, free, util = values.get("used"), values.get("free"), values.get("util", values.get("percent"))
    return GpuNow(
        namespace=namespace, pod=pod, gpu=gpu, uuid=uuid, util=None if util is None else min(1.0, util), used=used,
        total=None if used is None or free is None else used + free, watts=values.get("watts"),
        celsius=values.get("celsius"),
    )
