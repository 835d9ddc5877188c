"""What dcgm-exporter would say of a node: its text and labels, for GPUs that are whole, cut by MIG, or shared.

In: the devices of a node, who holds them, and what they did since they were last read. Out: the numbers of a page, and
the body of /metrics.
Profiling counters are means over the time since they were last read, so whatever happened between two reads shows in
the later one.
Invariant: labels of a device that did not change hands are written once; a read costs only its numbers.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

import msgspec

T = TypeVar("T")


class Hold(msgspec.Struct, frozen=True):
    """One line per metric: a device or one instance of it, and the pod that has it ("" = nobody)."""

    gpu: int  # index on the node
    uuid: str
    model: str
    namespace: str = ""
    pod: str = ""
    instance: str = ""  # GPU_I_ID of a MIG instance
    profile: str = ""
    vgpu: str = ""  # which share of a time-sliced GPU


class HoldReading(msgspec.Struct, frozen=True):
    """What one hold did since the last read."""

    activity: float  # 0-1
    memory_mib: float  # used; the next: free
    free_mib: float
    watts: float  # of the board, as the next
    joules: float


class PageValues(msgspec.Struct, frozen=True):
    """What a page shows: of each hold one number for each metric, also for those that it does not show of it."""

    holds: Sequence[Hold]
    values: Sequence[tuple[float, ...]]


class _Metric(msgspec.Struct, frozen=True):
    name: str
    help: str
    kind: str = "gauge"
    on_mig: bool = True


# In the order of _make_values.
_METRICS = (
    _Metric("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).", on_mig=False),
    _Metric("DCGM_FI_DEV_MEM_COPY_UTIL", "Memory utilization (in %).", on_mig=False),
    _Metric("DCGM_FI_DEV_FB_USED", "Framebuffer memory used (in MiB)."),
    _Metric("DCGM_FI_DEV_FB_FREE", "Framebuffer memory free (in MiB)."),
    _Metric("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "Ratio of time the graphics engine is active."),
    _Metric("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "Ratio of cycles the tensor (HMMA) pipe is active."),
    _Metric(
        "DCGM_FI_PROF_DRAM_ACTIVE", "Ratio of cycles the device memory interface is active sending or receiving data."
    ),
    _Metric("DCGM_FI_DEV_POWER_USAGE", "Power draw (in W)."),
    _Metric("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "Total energy consumption since boot (in mJ).", "counter"),
)
METRICS: Final = tuple(metric.name for metric in _METRICS)
_HEADS = [f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} {metric.kind}\n" for metric in _METRICS]


def pick_shown(hold: Hold, by_metric: Sequence[T]) -> Sequence[T]:
    """Of something for each metric, those that are shown of this hold."""
    if not hold.instance:
        return by_metric
    return [each for each, metric in zip(by_metric, _METRICS, strict=True) if metric.on_mig]


def make_values(holds: Sequence[Hold], readings: Sequence[HoldReading], *, lies: bool = False) -> PageValues:
    """`lies`: the profiling counters read 0, as they do for hours after their module failed."""
    return PageValues(holds, [_make_values(reading, lies) for reading in readings])


class DcgmPage:
    """The page of one node. It remembers how the lines of each hold begin."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._beginnings: dict[Hold, tuple[str, ...]] = {}

    def render(self, shown: PageValues) -> bytes:
        begun = {hold: self._beginnings.get(hold) or self._begin(hold) for hold in shown.holds}
        self._beginnings = begun  # of those there are now; nothing is kept of pods long gone
        lines = [
            (hold, begun[hold], [f"{value:.15g}\n" for value in values])
            for hold, values in zip(shown.holds, shown.values, strict=True)
        ]
        parts: list[str] = []
        for number, (metric, head) in enumerate(zip(_METRICS, _HEADS, strict=True)):
            parts.append(head)
            parts += [
                beginning[number] + values[number] for hold, beginning, values in lines
                if metric.on_mig or not hold.instance
            ]
        return "".join(parts).encode()

    def _begin(self, hold: Hold) -> tuple[str, ...]:
        labels = _write_labels(labels_of(self._node, hold))
        return tuple(f"{metric.name}{labels} " for metric in _METRICS)


def labels_of(node: str, hold: Hold) -> Mapping[str, str]:
    found = {
        "gpu": str(hold.gpu), "UUID": hold.uuid, "pci_bus_id": f"00000000:{16 + hold.gpu:02X}:00.0",
        "device": f"nvidia{hold.gpu}", "modelName": hold.model, "GPU_I_PROFILE": hold.profile,
        "GPU_I_ID": hold.instance, "Hostname": node, "vgpu": hold.vgpu,
    }
    if hold.pod:
        found |= {"container": "main", "namespace": hold.namespace, "pod": hold.pod}
    return {name: value for name, value in found.items() if value}


def _make_values(reading: HoldReading, lies: bool) -> tuple[float, ...]:
    by_device, by_profiling = _make_activity(reading.activity), _make_activity(0.0 if lies else reading.activity)
    memory = reading.memory_mib, reading.free_mib
    return (*by_device[:2], *memory, *by_profiling[2:], reading.watts, round(reading.joules * 1000))


@functools.cache
def _make_activity(active: float) -> tuple[float, ...]:
    """Utilisation and copies in whole percents, as the driver does; then engine, tensor pipe and memory as ratios."""
    return round(100 * active), round(40 * active), active, round(0.5 * active, 6), round(0.3 * active, 6)


def _write_labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items()) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
