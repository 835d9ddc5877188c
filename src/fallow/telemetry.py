"""Every metric about ourselves, in one table.

The table METRICS is the only place that spells a metric's name; docs/operators/metrics.md is checked against it.
Telemetry holds the values; series with workload names in them are bounded: past the bound they are counted under
`_other`.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import msgspec

from fallow import __version__

MOST_WORKLOAD_SERIES = 1000


class Metric(msgspec.Struct, frozen=True):
    type: Literal["counter", "gauge", "histogram"]
    name: str
    help: str
    labels: tuple[str, ...] = ()
    is_collected: bool = False  # the library asks the system for it at every scrape
    is_late: bool = False  # without a label, and not there before somebody knows it: 0 would be a lie


_counter, _gauge, _histogram = (partial(Metric, type) for type in ("counter", "gauge", "histogram"))
_WORKLOAD = ("kind", "namespace", "name")
_POLICY = ("policy",)
_NODE = ("instance", "node", "instance_type", "region")


def name_money(name: str, currency: str) -> str:
    """As a metric of money is called in that currency: `..._usd`, or `..._cost`, whose first label is the currency."""
    return f"{name}_usd" if currency == "USD" else name if name.endswith("_cost") else f"{name}_cost"


def _money(name: str, help: str, labels: tuple[str, ...] = ()) -> tuple[Metric, Metric]:
    return (
        Metric("gauge", name_money(name, "USD"), f"{help} In US dollars.", labels, is_late=not labels),
        Metric("gauge", name_money(name, "EUR"), f"{help} In another currency.", ("currency", *labels)),
    )


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
    _gauge("fallow_idle_planned_pauses", "Workloads that were past all skips at the last check."),
    _gauge("fallow_idle_pressure_gpus", "GPUs that pods, and Workloads in Kueue's queues, wait for."),
    _histogram("fallow_idle_cycle_duration_seconds", "How long a cycle took."),
    _counter("fallow_idle_cycles_total", "Cycles, by result.", ("result",)),
    _counter("fallow_idle_notices_total", "Notices, by channel and result.", ("channel", "result")),
    _counter("fallow_digests_total", "Digests, by channel and result.", ("channel", "result")),
    _counter(
        "fallow_idle_actions_total", "What was done or would have been, by result.",
        ("action", "kind", "mode", "result"),
    ),
    _counter("fallow_idle_resumes_total", "Resumes, by who asked.", ("kind", "actor")),
    _counter("fallow_idle_fights_total", "Pauses that others undid.", ("kind",)),
    _counter("fallow_idle_regrets_total", "Pauses that were undone within a quarter of an hour.", ("policy",)),
    _counter("fallow_idle_saved_gpu_seconds_total", "GPU seconds that pauses gave back, or would have.", ("mode",)),
    _counter("fallow_idle_acked_gpu_seconds_total", "GPU seconds held idle under an acknowledgement."),
    _counter("fallow_books_intervals_total", "Intervals of GPUs in somebody's hands, written to the ledger."),
    _gauge("fallow_books_contradictions", "What pods are said to hold that does not fit what their nodes have."),
    _gauge("fallow_books_last_success_timestamp_seconds", "When the books were last brought up to date."),
    _gauge(
        "fallow_idle_suspect_gaming",
        "Workloads that look as if they were kept busy only to be left alone; NaN while nobody could be asked.",
    ),
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
    # Of the books.
    _gauge(
        "gpu_autoscaler_price_age_seconds",
        "How long ago the oldest price in use was looked up or confirmed, by cloud (`any`: your own table) and kind of "
        "capacity.", ("provider", "capacity_type"),
    ),
    # Budgets and their admission webhook.
    _gauge("gpu_autoscaler_budget_percentage", "Percent of a budget's amount that is spent.", ("budget",)),
    *_money("gpu_autoscaler_budget_spend", "What was spent in a budget's period.", ("budget",)),
    *_money("gpu_autoscaler_budget_projected", "What will have been spent when it ends.", ("budget",)),
    _gauge("gpu_autoscaler_budget_enforcement_active", "1 while a budget restricts new pods.", ("budget", "mode")),
    _counter(
        "gpu_autoscaler_budget_alerts_total", "Messages of budgets, by channel and what became of them.",
        ("budget", "channel", "outcome"),
    ),
    _counter(
        "gpu_autoscaler_webhook_requests_total", "Reviews, by what became of the pod and why.", ("outcome", "reason")
    ),
    _histogram("gpu_autoscaler_webhook_duration_seconds", "How long a review took."),
    # The scheduler's extender.
    _counter(
        "gpu_autoscaler_packing_decisions_total",
        "Answers to a scheduler, by the policy that decided and what became of it.", ("policy", "outcome"),
    ),
    _counter(
        "gpu_autoscaler_packing_fallback_total", "Answers without an opinion, or by another policy, by reason.",
        ("reason",),
    ),
    _gauge("gpu_autoscaler_packing_policy", "1 for the policy in force.", ("policy",)),
    _gauge("gpu_autoscaler_packing_reservations", "Places promised to pods that are not seen there yet."),
    _histogram("gpu_autoscaler_packing_filter_duration_seconds", "How long a question for nodes took."),
    _histogram("gpu_autoscaler_packing_prioritize_duration_seconds", "How long a question for the best nodes took."),
    _histogram("gpu_autoscaler_packing_bind_duration_seconds", "How long a binding took, with the API server's part."),
    _counter("gpu_autoscaler_repartitions_total", "Changes of a node's MIG, MPS or time-slicing that ended, by how.",
             ("outcome",)),
    _gauge("gpu_autoscaler_stuck_nodes", "Nodes whose change failed, and whose old layout did not come back."),
    _counter("gpu_autoscaler_defrag_moves_total", "Moves of a pod for another that waits, by how they ended.",
             ("outcome",)),
    _gauge("gpu_autoscaler_packing_places_kept", "Places that are kept for pods that are moved, or let in by a move."),
    _gauge("gpu_autoscaler_capacity_gpus", "GPUs of nodes that pods can be placed on.", is_late=True),
    _gauge("gpu_autoscaler_allocated_gpus", "Of those, what pods hold; shares count as what they are.", is_late=True),
    _gauge("gpu_autoscaler_fragmentation_ratio", "Of what is free, what is of no use to what usually comes.",
           is_late=True),
    _gauge("gpu_autoscaler_fragmented_gpus", "What is free, by why it is or is not of use.", ("cause",)),
    _gauge("gpu_autoscaler_shared_pods", "Running pods that were given a part of a GPU, by strategy.", ("strategy",)),
    _counter("gpu_autoscaler_sharing_reverts_total", "Owners that got whole GPUs back because sharing hurt them.",
             ("strategy", "reason")),
    _gauge("gpu_autoscaler_packing_bound_ratio", "Of all GPUs, what no packer could exceed with these pods; NaN while "
           "that is not known.", is_late=True),
    # Nodes that come and go, by AutoscalingPolicy.
    _counter("gpu_autoscaler_scaling_actions_total",
             "Nodes asked for and removed: action scale_up, scale_down, spot_replace or prewarm; success true, false "
             "or dry_run.", ("policy", "action", "capacity_type", "success")),
    _histogram("gpu_autoscaler_scaling_duration_seconds", "How long such an action took.", ("policy", "action")),
    _gauge("gpu_autoscaler_node_count", "Nodes.", ("policy", "capacity_type")),
    _gauge("gpu_autoscaler_desired_node_count", "Nodes that there should be.", _POLICY),
    _gauge("gpu_autoscaler_cluster_utilization", "Mean use of all GPUs, 0 to 1; absent while it is not known.",
           _POLICY),
    _gauge("gpu_autoscaler_pending_pods", "Pods that need a node which is not there.", _POLICY),
    _gauge("gpu_autoscaler_underutilized_nodes", "Nodes that are hardly used.", _POLICY),
    _counter("gpu_autoscaler_spot_interruptions_total", "Nodes that their cloud took back.", _POLICY),
    _gauge("gpu_autoscaler_spot_termination_warnings", "Nodes that their cloud has said to take back.", _POLICY),
    _gauge("gpu_autoscaler_spot_savings_percentage",
           "By how much spot nodes cost less than the same on demand, 0 to 100; absent where a price is not known.",
           _POLICY),
    *_money("gpu_autoscaler_estimated_monthly_cost", "What its nodes cost in 730 hours.", ("policy", "capacity_type")),
    *_money("gpu_autoscaler_estimated_monthly_savings", "What the nodes removed in the last day would cost in 730 "
            "hours.", _POLICY),
    _gauge("gpu_autoscaler_predictive_scaling_enabled", "1 where nodes are started ahead of demand.", _POLICY),
    _gauge("gpu_autoscaler_predicted_utilization", "GPUs wanted at the coming peak, by those there are.", _POLICY),
    _gauge("gpu_autoscaler_prediction_confidence", "Share of past guesses that were nearly right.", _POLICY),
    _gauge("gpu_autoscaler_scale_up_cooldown_remaining_seconds", "How long no node is added yet.", _POLICY),
    _gauge("gpu_autoscaler_scale_down_cooldown_remaining_seconds", "How long no node is removed yet.", _POLICY),
    _gauge("gpu_autoscaler_multi_tier_scaling_enabled", "1 where several ways of paying are tried.", _POLICY),
    _gauge("gpu_autoscaler_capacity_type_preference", "In which order ways of paying are tried; 1: first.",
           ("policy", "capacity_type")),
    _counter("gpu_autoscaler_reconcile_errors_total", "Looks at nodes that failed."),
    _histogram("gpu_autoscaler_reconcile_duration_seconds", "How long a look at nodes took, with what was done."),
    _gauge("gpu_autoscaler_last_reconcile_timestamp", "When nodes were last looked at.", is_late=True),
    _gauge("gpu_autoscaler_pending_pods_by_verdict", "Pods that wait, by what that means for nodes.",
           ("policy", "verdict")),
    _gauge("gpu_autoscaler_scaling_blocked", "1 for each reason why a policy does not do what it would.",
           ("policy", "reason")),
    _gauge("gpu_autoscaler_brake_engaged", "1 for each brake that halts a policy.", ("policy", "reason")),
    _gauge("gpu_autoscaler_stockout", "1 while a pool is not asked because its cloud had none.",
           ("policy", "pool", "capacity_type")),
    _histogram("gpu_autoscaler_drain_duration_seconds", "From a node's cordon until its machine was told to go.",
               _POLICY),
    _counter("gpu_autoscaler_prewarm_total", "Nodes started ahead of demand: hit: used, miss: not.",
             ("policy", "result")),
    _gauge("gpu_autoscaler_forecast_wape", "How far off the guesses of demand were lately, by model.",
           ("policy", "model")),
    _gauge("gpu_autoscaler_squatted_nodes", "GPU nodes that only pods without GPUs hold.", _POLICY),
    # The same by the kind of work, as the seed names them.
    _gauge("gpu_utilization_by_workload_type", "Percent of a GPU that processes of this kind of work use; only where "
           "an exporter tells processes apart.", ("node", "gpu_id", "workload_type")),
    _gauge("gpu_memory_fragmentation_score", "Of what is free of a GPU, what is too small for the pods that usually "
           "come; 0 to 1.", ("node", "gpu_id")),
    _gauge("gpu_job_queue_length", "GPU pods that wait for a node, by kind of work and PriorityClass.",
           ("workload_type", "priority")),
    _gauge("cost_per_gpu_hour_by_workload", "What an hour of a GPU costs on average, by kind of work and machine, in "
           "the ledger's currency.", ("workload_type", "instance_type")),
    # What GPUs cost, by the ledger. Whoever scrapes all replicas takes the leader's: `max`.
    *_money("gpu_autoscaler_total_cost", "What all GPUs have cost since the ledger began; it never falls."),
    *_money("gpu_autoscaler_hourly_cost_rate", "What all GPUs cost an hour now."),
    *_money("gpu_autoscaler_pod_cost", "What a running pod cost in the last 24 hours.",
            ("namespace", "pod", "gpu_type", "capacity_type")),
    *_money("gpu_autoscaler_namespace_cost", "What was held in this UTC month.", ("namespace",)),
    *_money("gpu_autoscaler_dimension_cost", "What was held in this UTC month, by team, model, capacity and class.",
            ("dimension", "key")),
    *_money("gpu_autoscaler_idle_cost", "What was held and not used, held idle, or held by nobody, this UTC month.",
            ("kind", "namespace")),
    *_money("gpu_autoscaler_month_projected_cost", "What this UTC month will have cost if it goes on as it did."),
    *_money("gpu_autoscaler_total_savings", "What was saved this UTC month, of all types, as far as it was realised."),
    *_money("gpu_autoscaler_spot_savings", "Of that, by spot nodes."),
    *_money("gpu_autoscaler_sharing_savings", "Of that, by sharing: GPUs that pods would have had to themselves."),
    *_money("gpu_autoscaler_autoscaling_savings", "Of that, by removed nodes; absent until something measures it."),
    *_money("gpu_autoscaler_waste_savings", "Of that, by pausing what was idle."),
    *_money("gpu_autoscaler_ack_cost", "What open acknowledgements have cost while their workloads were idle."),
    _gauge("gpu_autoscaler_freed_gpu_hours", "Given back this UTC month, and taken by nobody.", is_late=True),
    _gauge("gpu_autoscaler_unpriced_gpu_hours", "GPU-hours of this UTC month that have no price.", is_late=True),
    _gauge("gpu_autoscaler_gpu_hours", "GPU-hours held this UTC month, by class of work.", ("class",)),
    _gauge("gpu_autoscaler_workload_use_ratio", "Of the 20 costliest workloads of 24 hours: what of it was used.",
           ("namespace", "kind", "name")),
    *_money("gpu_autoscaler_workload_cost", "What the 20 costliest workloads of the last 24 hours cost.",
            ("namespace", "kind", "name")),
    _gauge("gpu_autoscaler_stale_prices", "Prices in use that are older than they may be.", is_late=True),
    _gauge("gpu_autoscaler_ledger_lag_seconds", "How long ago the books were looked at last.", is_late=True),
    _counter("gpu_autoscaler_energy_joules_total", "Energy of GPUs since we started, by who held them.",
             ("namespace",)),
    # As OpenCost names them.
    _gauge("node_gpu_hourly_cost", "What one GPU of a node costs an hour, in the ledger's currency.", _NODE),
    _gauge("node_gpu_count", "Physical GPUs of a node.", _NODE),
    _gauge("node_total_hourly_cost", "What all GPUs of a node cost an hour.", _NODE),
    _gauge("container_gpu_allocation", "GPUs that a pod holds, parts as parts.",
           ("container", "instance", "namespace", "node", "pod")),
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
        import prometheus_client as client  # with a web server of its own: who looks once can do without (Unread)

        client.disable_created_metrics()  # type: ignore[no-untyped-call]
        # One registry per type: the library thinks gauge X and counter X_total to be one name; Prometheus does not.
        self._registries = {metric.type: client.CollectorRegistry() for metric in METRICS}
        made = (metric for metric in METRICS if not metric.is_collected)
        kinds = {"counter": client.Counter, "gauge": client.Gauge, "histogram": client.Histogram}
        self._metrics: dict[str, Any] = {metric.name: self._make(metric, kinds[metric.type]) for metric in made}
        self._process = client.CollectorRegistry()
        client.ProcessCollector(registry=self._process)
        self._write: Callable[[Any], bytes] = client.generate_latest
        self._workload_series: dict[str, set[tuple[str, ...]]] = {}
        self._late = {metric.name for metric in METRICS if metric.is_late}
        self._before_scrape: list[Callable[[], None]] = []
        self.set("fallow_build_info", 1, (__version__,))

    def _make(self, metric: Metric, kind: Any) -> Any:
        registry = None if metric.is_late else self._registries[metric.type]
        return kind(metric.name, metric.help, metric.labels, registry=registry)

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
        if name in self._late:
            self._late.discard(name)
            self._registries["gauge"].register(self._metrics[name])
        self._series(name, labels).set(value)

    def read(self, name: str) -> float:
        """The value of one without labels."""
        found = (registry.get_sample_value(name) for registry in self._registries.values())
        return next(value for value in found if value is not None)

    def _series(self, name: str, labels: tuple[str, ...]) -> Any:
        return self._metrics[name].labels(*labels) if labels else self._metrics[name]

    def replace(self, name: str, values: Mapping[Any, float]) -> None:
        """Sets a labelled gauge to just these series; what is not among them is gone, not 0 for ever."""
        gauge = self._metrics[name]
        gauge.clear()
        for labels, value in values.items():
            gauge.labels(*labels).set(value)

    def replace_money(self, name: str, currency: str, values: Mapping[Any, float]) -> None:
        """The same of a metric of money, under its name in that currency. Of one without labels: `()`."""
        full = name_money(name, currency)
        if currency != "USD":
            self.replace(full, {(currency, *labels): amount for labels, amount in values.items()})
        elif () in values:
            self.set(full, values[()])
        else:
            self.replace(full, values)

    def observe(self, name: str, value: float, labels: tuple[str, ...] = ()) -> None:
        self._series(name, labels).observe(value)

    def before_scrape(self, write: Callable[[], None]) -> None:
        """For values that cost something to write out: `write` is called when somebody asks."""
        self._before_scrape.append(write)

    def text(self) -> bytes:
        for write in self._before_scrape:
            write()
        registries = (*self._registries.values(), self._process)
        return b"".join(map(self._write, registries))


class Unread(Telemetry):
    """For who looks once: nobody will ask, so nothing is kept."""

    def __init__(self) -> None:
        pass

    def add(self, name: str, amount: float = 1, labels: tuple[str, ...] = ()) -> None:
        pass

    def add_for_workload(self, name: str, amount: float, labels: tuple[str, str, str]) -> None:
        pass

    def set(self, name: str, value: float, labels: tuple[str, ...] = ()) -> None:
        pass

    def read(self, name: str) -> float:
        return 0.0

    def replace(self, name: str, values: Mapping[Any, float]) -> None:
        pass

    def observe(self, name: str, value: float, labels: tuple[str, ...] = ()) -> None:
        pass

    def before_scrape(self, write: Callable[[], None]) -> None:
        pass

    def text(self) -> bytes:
        return b""
