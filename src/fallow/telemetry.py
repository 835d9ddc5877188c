"""Every metric about ourselves, in one table.

The table METRICS is the only place that spells a metric's name; docs/operators/metrics.md is checked against it.
Telemetry holds the values; series with workload names in them are bounded: past the bound they are counted under
`_other`.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import msgspec
import prometheus_client as client

from fallow import __version__

MOST_WORKLOAD_SERIES = 1000


class Metric(msgspec.Struct, frozen=True):
    type: Literal["counter", "gauge", "histogram"]
    name: str
    help: str
    labels: tuple[str, ...] = ()
    is_collected: bool = False  # the library asks the system for it at every scrape


_counter, _gauge, _histogram = (partial(Metric, type) for type in ("counter", "gauge", "histogram"))
_WORKLOAD = ("kind", "namespace", "name")

METRICS: tuple[Metric, ...] = (
    # The names of gpu-pruner.
    _counter("gpu_pruner_query_successes_total", "Cycles in which a decision could be made."),
    _counter("gpu_pruner_query_failures_total", "Cycles in which no decision could be made."),
    _counter("gpu_pruner_query_candidates_total", "Idle GPUs found, summed over cycles."),
    _counter("gpu_pruner_query_shutdown_events_total", "Workloads that were past all skips, summed over cycles."),
    _counter("gpu_pruner_scale_successes_total", "Workloads really paused."),
    _counter("gpu_pruner_scale_failures_total", "Pauses that failed."),
    _counter("gpu_pruner_scales_total", "Workloads really paused, by workload.", _WORKLOAD),
    _counter("gpu_pruner_scales_by_kind_total", "Workloads really paused, by kind.", ("kind",)),
    _gauge("gpu_pruner_idle_gpus", "Idle GPUs at the last check."),
    _gauge("gpu_pruner_idle_workloads", "Idle workloads at the last check."),
    _gauge("gpu_pruner_acknowledged_workloads", "Idle workloads at the last check that somebody acknowledged."),
    _gauge("gpu_pruner_pods_checked", "GPU pods looked at in the last check."),
    _counter("gpu_pruner_pods_checked_total", "GPU pods looked at, summed over cycles."),
    _counter("gpu_pruner_acknowledgments_total", "Acknowledgements first seen."),
    _counter("gpu_pruner_scaledowns_prevented_total", "Pauses prevented, once per acknowledgement and idle episode."),
    _counter("gpu_pruner_slack_notifications_sent_total", "Workloads of which Slack confirmed a message."),
    _counter("gpu_pruner_slack_notification_failures_total", "Workloads of which Slack did not confirm a message."),
    # Our own.
    _gauge("fallow_build_info", "1, with the version.", ("version",)),
    _gauge("fallow_idle_workloads", "Workloads at the last check, by verdict and reason.", ("verdict", "reason")),
    _gauge("fallow_idle_gpus", "Allocated GPUs at the last check, by state and model.", ("state", "model")),
    _gauge("fallow_idle_last_success_timestamp_seconds", "When the last good cycle ended."),
    _gauge("fallow_idle_frozen", "1 while nothing is paused because the idle share jumped or somebody said so."),
    _gauge("fallow_idle_leader", "1 on the replica that acts."),
    _gauge("fallow_idle_source_up", "1 while the source of measurements answers in full.", ("source",)),
    _gauge(
        "fallow_idle_coverage_ratio", "Share of the window that was measured, lowest of the node's GPUs.", ("node",)
    ),
    _gauge("fallow_idle_paused_workloads", "Workloads that are paused by us now.", ("kind",)),
    _gauge("fallow_idle_pressure_gpus", "GPUs that pods wait for."),
    _histogram("fallow_idle_cycle_duration_seconds", "How long a cycle took."),
    _counter("fallow_idle_cycles_total", "Cycles, by result.", ("result",)),
    _counter("fallow_idle_notices_total", "Notices, by channel and result.", ("channel", "result")),
    _counter(
        "fallow_idle_actions_total", "What was done or would have been, by result.",
        ("action", "kind", "mode", "result"),
    ),
    _counter("fallow_idle_resumes_total", "Resumes, by who asked.", ("kind", "actor")),
    _counter("fallow_idle_fights_total", "Pauses that others undid.", ("kind",)),
    _gauge("fallow_idle_lost_signals", "1 for each signal that could not be asked for at the last check.", ("signal",)),
    _counter(
        "fallow_api_requests_total", "Requests to the API server, by verb and status (`error`: no answer).",
        ("verb", "code"),
    ),
    _gauge(
        "fallow_watch_age_seconds", "How long the API server has said nothing, not even that nothing changed.",
        ("resource",),
    ),
    _counter("fallow_workload_idle_gpu_seconds_total", "GPU seconds held and idle.", _WORKLOAD),
    _counter("fallow_workload_active_gpu_seconds_total", "GPU seconds held and active.", _WORKLOAD),
    # Of the process, as every Prometheus client names them.
    _counter("process_cpu_seconds_total", "CPU seconds used.", is_collected=True),
    _gauge("process_resident_memory_bytes", "Memory in RAM.", is_collected=True),
    _gauge("process_virtual_memory_bytes", "Memory asked for.", is_collected=True),
    _gauge("process_open_fds", "Open files and sockets.", is_collected=True),
    _gauge("process_max_fds", "Most open files and sockets allowed.", is_collected=True),
    _gauge("process_start_time_seconds", "When the process started.", is_collected=True),
)


class Telemetry:
    """The values behind METRICS. Unlabelled ones start at 0, so that a rate can be taken from the first scrape."""

    def __init__(self) -> None:
        client.disable_created_metrics()  # type: ignore[no-untyped-call]
        # One registry per type: the library thinks gauge X and counter X_total to be one name; Prometheus does not.
        self._registries = {metric.type: client.CollectorRegistry() for metric in METRICS}
        made = (metric for metric in METRICS if not metric.is_collected)
        self._metrics: dict[str, Any] = {metric.name: self._make(metric) for metric in made}
        self._process = client.CollectorRegistry()
        client.ProcessCollector(registry=self._process)
        self._workload_series: dict[str, set[tuple[str, ...]]] = {}
        self._before_scrape: list[Callable[[], None]] = []
        self.set("fallow_build_info", 1, (__version__,))

    def _make(self, metric: Metric) -> Any:
        kinds: Mapping[str, Any] = {"counter": client.Counter, "gauge": client.Gauge, "histogram": client.Histogram}
        return kinds[metric.type](metric.name, metric.help, metric.labels, registry=self._registries[metric.type])

    def add(self, name: str, amount: float = 1, labels: tuple[str, ...] = ()) -> None:
        self._series(name, labels).inc(amount)

    def add_for_workload(self, name: str, amount: float, labels: tuple[str, str, str]) -> None:
        """Like add, by kind, namespace and name: past MOST_WORKLOAD_SERIES all further ones are one series `_other`."""
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
        registries = (*self._registries.values(), self._process)
        return b"".join(client.generate_latest(registry) for registry in registries)
