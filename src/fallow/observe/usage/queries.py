"""Which series are evidence, and what is asked about them: the table of signals, and PromQL.

In: metrics of the table, selectors made by the client, windows. Out: PromQL text, and readings made comparable.
Invariant: what is not a believable reading (NaN, infinite, negative, a vendor's blank, out of range) becomes nan, never
0. One such sample among good ones makes the window's count unknown (by its mean or its peak, which are then no readings
either), since nobody can say how many of them were good.
"""

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from fallow.model import usage
from fallow.model.units import Seconds
from fallow.model.usage import Signal
from fallow.names import NodeMetric
from fallow.observe.usage.rows import Join


class GpuMetric(msgspec.Struct, frozen=True, kw_only=True):
    """One series name. What is above `top` (in the exporter's unit) is no reading; `cap`: the highest after scaling."""

    name: str
    signal: Signal
    top: float
    scale: float = 1.0
    cap: float = np.inf
    join: Join = "device"
    own: bool = False  # our exporter's dialect
    matcher: str = ""


class RequestMetrics(msgspec.Struct, frozen=True):
    """What one kind of model server tells of its requests."""

    server: str
    in_flight: tuple[str, ...]  # running or waiting, now
    served: tuple[str, ...] = ()  # counters


def _metric(name: str, signal: Signal, top: float, **more: Any) -> GpuMetric:
    return GpuMetric(name=name, signal=signal, top=top, **more)


def _ratio(name: str, signal: Signal) -> GpuMetric:
    return _metric(name, signal, 1.05, cap=1.0)


def _percent_as_ratio(name: str, signal: Signal, **more: Any) -> GpuMetric:
    return _metric(name, signal, 105.0, scale=0.01, cap=1.0, **more)


def _percent(name: str, signal: Signal) -> GpuMetric:
    return _metric(name, signal, 105.0, cap=100.0)


_SCOPE = 'scope=~"process|instance"'  # what speaks of the pod itself
# DCGM's blanks (0x7ffffff0 and up, 0x7ffffffffffffff0 and up, and the same as floats) are all far above every `top`.
PRIMARIES = (
    _ratio("DCGM_FI_PROF_GR_ENGINE_ACTIVE", Signal.gr_engine),
    _ratio("DCGM_FI_PROF_SM_ACTIVE", Signal.sm_active),
    _percent_as_ratio("DCGM_FI_DEV_GPU_UTIL", Signal.gpu_util),
    _percent_as_ratio(NodeMetric.DEVICE_UTILIZATION, Signal.device_util, own=True),
    _percent_as_ratio(NodeMetric.POD_UTILIZATION, Signal.process_sm, join="own", own=True, matcher=_SCOPE),
    _metric("hami_container_last_kernel_elapsed_seconds", Signal.last_kernel, 1e8, join="own"),
)
OTHERS = (
    _ratio("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", Signal.tensor),
    _ratio("DCGM_FI_PROF_DRAM_ACTIVE", Signal.dram),
    _percent("DCGM_FI_DEV_MEM_COPY_UTIL", Signal.copy),
    _percent("DCGM_FI_DEV_ENC_UTIL", Signal.enc),
    _percent("DCGM_FI_DEV_DEC_UTIL", Signal.dec),
    _metric("DCGM_FI_PROF_PCIE_TX_BYTES", Signal.pcie, 1e12),
    _metric("DCGM_FI_PROF_PCIE_RX_BYTES", Signal.pcie, 1e12),
    _metric("DCGM_FI_DEV_FB_USED", Signal.fb_growth, 1e7),
    _metric("DCGM_FI_DEV_POWER_USAGE", Signal.power, 5000.0, join="board"),
    _metric(NodeMetric.DEVICE_POWER, Signal.power, 5000.0, join="board", own=True),
)
POWER = tuple(metric for metric in OTHERS if metric.signal is Signal.power)
PACE: Seconds = 300.0  # long enough for two samples at the slowest believable scrape interval
ENERGY = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
# Which pod holds which GPU, by our exporter. Where it cannot measure a pod, this joins the device's series to it.
HOLDS = NodeMetric.POD_GPU

SERVERS = (
    RequestMetrics(
        "vLLM", ("vllm:num_requests_running", "vllm:num_requests_waiting"), ("vllm:request_success_total",)
    ),
    RequestMetrics("Triton", ("nv_inference_pending_request_count",), ("nv_inference_request_success",)),
    RequestMetrics("TGI", ("tgi_queue_size", "tgi_batch_current_size"), ("tgi_request_count",)),
    RequestMetrics("SGLang", ("sglang:num_running_reqs", "sglang:num_queue_reqs"), ("sglang:num_requests_total",)),
    RequestMetrics("Ray Serve", ("ray_serve_num_ongoing_requests_at_replicas",)),
    RequestMetrics("NIM", ("nim:num_requests_running", "nim:num_requests_waiting"), ("nim:request_success_total",)),
    RequestMetrics(
        "TensorRT-LLM", ("trtllm:num_requests_running", "trtllm:num_requests_waiting"),
        ("trtllm:request_success_total",),
    ),
)
REQUEST_GAUGES = tuple(name for server in SERVERS for name in server.in_flight)
REQUEST_COUNTERS = tuple(name for server in SERVERS for name in server.served)


def believe(values: usage.Floats, metric: GpuMetric) -> usage.Floats:
    """Readings in our unit; nan where the exporter's word is no reading."""
    believable = (values >= 0.0) & (values <= metric.top)
    scaled: usage.Floats = np.minimum(np.where(believable, values, np.nan) * metric.scale, metric.cap)
    return scaled


# ---- PromQL. `selectors` is mostly one; several are alternatives whose union is meant. ----
# The series themselves are asked for, with all their labels: to group thousands of them costs the server as much as to
# read them, and whatever speaks of one row is folded here anyway.


def peak(metric: GpuMetric, selectors: list[str], by: str, window: Seconds) -> str:
    w = span(window)
    if metric.signal is Signal.last_kernel:  # the latest word; of several containers the one that was active last
        return f"min by ({by})({' or '.join(selectors)})"
    if metric.signal is Signal.fb_growth:
        return _union(lambda s: f"(max_over_time({s}[{w}]) - min_over_time({s}[{w}]))", selectors)
    return _union(lambda s: f"max_over_time({s}[{w}])", selectors)


def highest(metric: GpuMetric, selectors: list[str], step: Seconds) -> str:
    """As a ratio: series of several signals are told apart no more."""
    return _union(lambda s: f"max_over_time({s}[{span(step)}]) * {metric.scale:g}", selectors)


def count(selectors: list[str], window: Seconds) -> str:
    """Samples in the window, whatever they are: the mean tells whether there is a NaN among them."""
    return _union(lambda s: f"count_over_time({s}[{span(window)}])", selectors)


def mean(selectors: list[str], window: Seconds) -> str:
    """NaN if any sample is. Without an answer it is 0: those who do nothing are many."""
    return _union(lambda s: f"(avg_over_time({s}[{span(window)}]) != 0)", selectors)


def holds(selectors: list[str], by: str) -> str:
    return f"max by ({by})({' or '.join(selectors)})"


def newest(selectors: list[str]) -> str:
    return _union(lambda s: f"timestamp({s})", selectors)


def increase(selectors: list[str], window: Seconds) -> str:
    return _union(lambda s: f"increase({s}[{span(window)}])", selectors)


def lowest(selectors: list[str], window: Seconds) -> str:
    return _union(lambda s: f"min_over_time({s}[{span(window)}])", selectors)


def requests(gauges: list[str], counters: list[str], by: str, window: Seconds) -> str:
    """The most of anything in flight or served. A label of its own keeps each part apart until the maximum is taken.

    It is set on what is left of each part's labels: a page that has this label itself would else make two series one,
    for which the server refuses the whole question.
    """
    w = span(window)
    parts = [f"max_over_time({gauge}[{w}])" for gauge in gauges] + [f"increase({counter}[{w}])" for counter in counters]
    kept_apart = (
        f'label_replace(max by ({by})({part}), "fallow_part", "{number}", "", "")' for number, part in enumerate(parts)
    )
    return f"max by ({by})({' or '.join(kept_apart)})"


def pace(selectors: list[str], offset: Seconds = 0.0) -> str:
    """Samples of late, or of that only what is older than the offset."""
    return _union(lambda s: f"count_over_time({s}{_late(offset)})", selectors)


def scrapes(selector: str, offset: Seconds = 0.0) -> str:
    """How often each target was scraped of late: the server itself writes `up` once for each time, failed or not."""
    return f"max by (job,instance)(count_over_time({selector}{_late(offset)}))"


def scrapes_within(selector: str, window: Seconds) -> str:
    return f"max by (job,instance)(count_over_time({selector}[{span(window)}]))"


def _late(offset: Seconds) -> str:
    """A sample on the far border is none of the older half's: it would have one more than half of them."""
    return _stretch((PACE, offset)) if offset else f"[{span(PACE)}]"


def down(selector: str) -> str:
    return f"max by (job,instance)({selector}) == 0"


def busy(metric: GpuMetric, selectors: list[str], between: tuple[Seconds, Seconds], threshold: float) -> str:
    """The highest of a stretch of the past, of series that were active in it; quiet ones give no answer."""
    least, part = f"{threshold / metric.scale:.9g}", _stretch(between)
    return _union(lambda s: f"(max_over_time({s}{part}) >= {least})", selectors)


def samples(selectors: list[str], between: tuple[Seconds, Seconds]) -> str:
    """How many samples a stretch of the past has."""
    part = _stretch(between)
    return _union(lambda s: f"count_over_time({s}{part})", selectors)


def _stretch(between: tuple[Seconds, Seconds]) -> str:
    """From so many seconds ago to so many. What lies on the border belongs to the older of two stretches only."""
    far, near = between
    offset = f" offset {span(near)}" if near else ""
    return f"[{span(far - near - 0.001)}]{offset}"


def span(seconds: Seconds) -> str:
    """A PromQL duration."""
    return f"{round(seconds)}s" if seconds == round(seconds) else f"{round(seconds * 1000)}ms"


def _union(part: Callable[[str], str], selectors: list[str]) -> str:
    return " or ".join(map(part, selectors))
