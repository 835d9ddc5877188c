"""Every metric about ourselves, in one table.

The table METRICS is the only place that spells a metric's name; docs/metrics.md is checked against it. Telemetry holds the values; series
with workload names in them are bounded: past the bound they are counted under `_other`.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec
import prometheus_client as client

from fallow import __version__

MOST_WORKLOAD_SERIES = 1000


class Metric(msgspec.Struct, frozen=True):
    name: str
    type: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()


METRICS: tuple[Metric, ...] = (
    # The names of gpu-pruner.
    Metric("gpu_pruner_query_successes_total", "counter", "Cycles in which a decision could be made."),
    Metric("gpu_pruner_query_failures_total", "counter", "Cycles in which no decision could be made."),
    Metric("gpu_pruner_query_candidates_total", "counter", "Idle GPUs found, summed over cycles."),
    Metric("gpu_pruner_query_shutdown_events_total", "counter", "Workloads that were past all skips, summed over cycles."),
    Metric("gpu_pruner_scale_successes_total", "counter", "Workloads really paused."),
    Metric("gpu_pruner_scale_failures_total", "counter", "Pauses that failed."),
    Metric("gpu_pruner_scales_total", "counter", "Workloads really paused, by workload.", ("kind", "namespace", "name")),
    Metric("gpu_pruner_scales_by_kind_total", "counter", "Workloads really paused, by kind.", ("kind",)),
    Metric("gpu_pruner_idle_gpus", "gauge", "Idle GPUs at the last check."),
    Metric("gpu_pruner_idle_workloads", "gauge", "Idle workloads at the last check."),
    Metric("gpu_pruner_acknowledged_workloads", "gauge", "Idle workloads at the last check that somebody acknowledged."),
    Metric("gpu_pruner_pods_checked", "gauge", "GPU pods looked at in the last check."),
    Metric("gpu_pruner_pods_checked_total", "counter", "GPU pods looked at, summed over cycles."),
    Metric("gpu_pruner_acknowledgments_total", "counter", "Acknowledgements first seen."),
    Metric("gpu_pruner_scaledowns_prevented_total", "counter", "Pauses prevented, once per acknowledgement and idle episode."),
    # Our own.
    Metric("fallow_build_info", "gauge", "1, with the version.", ("version",)),
    Metric("fallow_idle_workloads", "gauge", "Workloads at the last check, by verdict and reason.", ("verdict", "reason")),
    Metric("fallow_idle_gpus", "gauge", "Allocated GPUs at the last check, by state and model.", ("state", "model")),
    Metric("fallow_idle_last_success_timestamp_seconds", "gauge", "When the last good cycle ended."),
    Metric("fallow_idle_frozen", "gauge", "1 while nothing is paused because the idle share jumped or somebody said so."),
    Metric("fallow_idle_leader", "gauge", "1 on the replica that acts."),
    Metric("fallow_idle_source_up", "gauge", "1 while the source of measurements answers in full.", ("source",)),
    Metric("fallow_idle_coverage_ratio", "gauge", "Share of the window that was measured, lowest of the node's GPUs.", ("node",)),
    Metric("fallow_idle_paused_workloads", "gauge", "Workloads that are paused by us now.", ("kind",)),
    Metric("fallow_idle_pressure_gpus", "gauge", "GPUs that pods wait for."),
    Metric("fallow_idle_cycle_duration_seconds", "histogram", "How long a cycle took."),
    Metric("fallow_idle_cycles_total", "counter", "Cycles, by result.", ("result",)),
    Metric("fallow_idle_notices_total", "counter", "Notices, by channel and result.", ("channel", "result")),
    Metric("fallow_idle_actions_total", "counter", "What was done or would have been, by result.", ("action", "kind", "mode", "result")),
    Metric("fallow_idle_resumes_total", "counter", "Resumes, by who asked.", ("kind", "actor")),
    Metric("fallow_idle_fights_total", "counter", "Pauses that others undid.", ("kind",)),
    Metric("fallow_workload_idle_gpu_seconds_total", "counter", "GPU seconds held and idle.", ("kind", "namespace", "name")),
    Metric("fallow_workload_active_gpu_seconds_total", "counter", "GPU seconds held and active.", ("kind", "namespace", "name")),
)


class Telemetry:
    """The values behind METRICS. Unlabelled ones start at 0, so that a rate can be taken from the first scrape."""

    def __init__(self) -> None:
        client.disable_created_metrics()  # type: ignore[no-untyped-call]
        # One registry per type: the library thinks gauge X and counter X_total to be one name; Prometheus does not.
        self._registries = {metric.type: client.CollectorRegistry() for metric in METRICS}
        self._metrics: dict[str, Any] = {metric.name: self._make(metric) for metric in METRICS}
        self._workload_series: dict[str, set[tuple[str, ...]]] = {}
        self._before_scrape: list[Callable[[], None]] = []
        self.set("fallow_build_info", 1, (__version__,))

    def _make(self, metric: Metric) -> Any:
        kinds: Mapping[str, Any] = {"counter": client.Counter, "gauge": client.Gauge, "histogram": client.Histogram}
        return kinds[metric.type](metric.name, metric.help, metric.labels, registry=self._registries[metric.type])

    def add(self, name: str, amount: float = 1, labels: tuple[str, ...] = ()) -> None:
        self._series(name, labels).inc(amount)

    def add_for_workload(self, name: str, amount: float, labels: tuple[str, str, str]) -> None:
        """Like add, by (kind, namespace, name), bounded: past MOST_WORKLOAD_SERIES all further ones are one series named `_other`."""
        known = self._workload_series.setdefault(name, set())
        if labels not in known and len(known) >= MOST_WORKLOAD_SERIES:
            labels = ("_other", "_other", "_other")
        known.add(labels)
        self.add(name, amount, labels)

    def set(self, name: str, value: float, labels: tuple[str, ...] = ()) -> None:
        self._series(name, labels).set(value)

    def _series(self, name: str, labels: tuple[str, ...]) -> Any:
        return self._metrics[name].labels(*labels) if labels else self._metrics[name]

    def replace(self, name: str, values: Mapping[Any, float]) -> None:
        """Sets a labelled gauge to just these series; what is not among them is gone, not 0 for ever."""
        gauge = self._metrics[name]
        gauge.clear()
        for labels, value in values.items():
            gauge.labels(*labels).set(value)

    def observe(self, name: str, value: float) -> None:
        self._metrics[name].observe(value)

    def before_scrape(self, write: Callable[[], None]) -> None:
        """For values that cost something to write out: `write` is called when somebody asks."""
        self._before_scrape.append(write)

    def text(self) -> bytes:
        for write in self._before_scrape:
            write()
        return b"".join(client.generate_latest(registry) for registry in self._registries.values())
