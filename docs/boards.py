"""What each Grafana dashboard shows. Made into dashboards/ by `make docs`.

A GPU is counted once, whatever number of exporters and replicas tell of it: by its UUID, or by the largest of equal
figures."""

from functools import partial
from typing import Final

from docs.grafana import Board, Panel, Query, Row, draw, make_values

# ---- GPUs: dcgm-exporter, kube-state-metrics and us ------------------------------------------------------------------

_WINDOW: Final = "30m"


def _owned(series: str) -> str:
    """With the workload's own pod and namespace, where the scrape gave those names to the exporter."""
    pod = f'label_replace({series}, "pod", "$1", "exported_pod", "(.+)")'
    return f'label_replace({pod}, "namespace", "$1", "exported_namespace", "(.+)")'


def _by_node(series: str) -> str:
    """Exporters spell the node Hostname or hostname."""
    old = f'label_replace({series}, "node", "$1", "Hostname", "(.+)")'
    return f'avg by (node) (label_replace({old}, "node", "$1", "hostname", "(.+)"))'


_USE: Final = _owned(
    f"(max_over_time(DCGM_FI_PROF_GR_ENGINE_ACTIVE[{_WINDOW}]) or max_over_time(DCGM_FI_DEV_GPU_UTIL[{_WINDOW}]) / 100)"
)
_ENGINE: Final = f"max by (UUID) ({_USE})"
_MEMORY: Final = "max by (UUID) (DCGM_FI_DEV_FB_USED)"
_REQUESTED: Final = (
    'sum by (namespace, pod) (kube_pod_container_resource_requests{resource=~"nvidia_com_(gpu|gpu_shared|mig_.+)"})'
    ' * on (namespace, pod) max by (namespace, pod) (kube_pod_status_phase{phase="Running"} == 1)'
)
_ALL_IDLE: Final = f"count by (namespace, pod) ({_USE} < 0.01) == count by (namespace, pod) ({_USE})"
_NO_DATA: Final = f"count({_MEMORY}) - (count({_ENGINE}) or vector(0))"


def _count(series: str) -> str:
    return f"count({series}) or vector(0)"


def _risen(counter: str, span: str) -> str:
    """How much it rose. One that was not there before rose by all it has: `increase` alone does not see its first."""
    return f"(({counter} unless {counter} offset {span}) or increase({counter}[{span}]))"


def _named(counter: str) -> str:
    return f"sum by (namespace, kind, name) (increase({counter}[$__range]))"


_IDLE_SECONDS: Final = _named("fallow_workload_idle_gpu_seconds_total")
_ACTIVE_SECONDS: Final = _named("fallow_workload_active_gpu_seconds_total")

GPUS: Final = Board(
    uid="fallow-gpus", title="GPUs", tags=("fallow", "gpu"),
    about="Which GPUs work, which are held and do nothing, and what was done about it. From dcgm-exporter, "
          "kube-state-metrics and fallow. A GPU is idle when nothing ran on it for 30 minutes; one without data is no "
          "idle one.",
    rows=(
        Row(4, (
            Panel("Scale-downs in an hour", "stat", 4, (Query("sum(increase(gpu_pruner_scale_successes_total[1h]))"),)),
            Panel("Idle workloads", "stat", 4, (Query("max(gpu_pruner_idle_workloads)"),)),
            Panel("Idle GPUs", "stat", 4, (Query("max(gpu_pruner_idle_gpus)"),)),
            Panel("Cycles without a decision, in an hour", "stat", 4,
                  (Query("sum(increase(gpu_pruner_query_failures_total[1h]))"),), steps=(("orange", 1),),
                  about="Nothing is paused in such a cycle. docs/runbooks says what to do."),
            Panel("Age of the last decision", "stat", 4,
                  (Query("time() - max(fallow_idle_last_success_timestamp_seconds)"),), unit="s",
                  steps=(("orange", 600), ("red", 1800))),
            Panel("Paused workloads", "stat", 4, (
                Query("sum(max by (kind) (fallow_idle_paused_workloads)) or vector(0)"),
            ), about="`fallow paused` lists them."),
        )),
        Row(4, (
            Panel("GPUs", "stat", 4, (Query(f"count({_MEMORY})"),)),
            Panel("Memory in use", "stat", 4, (Query(_count(f"{_MEMORY} > 64")),), about="GPUs with more than 64 MiB."),
            Panel("Memory free", "stat", 4, (Query(_count(f"{_MEMORY} <= 64")),)),
            Panel("Engine idle", "stat", 4, (Query(_count(f"{_ENGINE} < 0.01")),), steps=(("orange", 1),)),
            Panel("Engine active", "stat", 4, (Query(_count(f"{_ENGINE} >= 0.01")),)),
            Panel("No data", "stat", 4, (Query(_NO_DATA),), steps=(("orange", 1),),
                  about="GPUs of which no activity is measured. That is not idle: fallow leaves them alone."),
        )),
        Row(8, (
            Panel("GPUs over time", "timeseries", 12, (
                Query(_count(f"{_ENGINE} >= 0.01"), "active"), Query(_count(f"{_ENGINE} < 0.01"), "idle"),
                Query(_NO_DATA, "no data"),
            ), is_stacked=True),
            Panel("Efficiency", "timeseries", 12, (
                Query(f"(count({_ENGINE} >= 0.01) or vector(0)) / count({_ENGINE})", "active of all measured"),
            ), unit="percentunit", about="Active GPUs of those that are measured."),
        )),
        Row(10, (
            Panel("Idle workloads: every GPU idle, still requesting", "table", 12,
                  (Query(f"{_REQUESTED} and on (namespace, pod) ({_ALL_IDLE})", "GPUs"),),
                  about="By the window of 30 minutes alone. What is paused obeys policies, acknowledgements and more: "
                        "`fallow idle`, `fallow why`."),
            Panel("Idle GPU-hours by workload", "table", 12, (
                Query(f"{_IDLE_SECONDS} / 3600", "Idle GPU-hours"),
                Query(f"{_ACTIVE_SECONDS} / ({_ACTIVE_SECONDS} + {_IDLE_SECONDS})", "Efficiency", "percentunit"),
            ), decimals=2, about="In the time range above. Seconds without data are neither."),
        )),
        Row(10, (
            Panel("Running workloads", "table", 8, (Query(_REQUESTED, "GPUs"),)),
            Panel("Who holds most", "bargauge", 8, (
                Query(f"topk(20, sum by (namespace) ({_REQUESTED}))", "{{namespace}}"),
            )),
            Panel("Scale-downs of the last hour", "table", 8, (
                Query(f"sum by (kind, namespace, name) ({_risen('gpu_pruner_scales_total', '1h')}) > 0", "Scale-downs"),
            )),
        )),
        Row(9, (
            Panel("Use by node", "heatmap", 12, (Query(_by_node("DCGM_FI_DEV_GPU_UTIL"), "{{node}}"),), unit="percent"),
            Panel("Memory used", "timeseries", 12, (Query(
                "avg by (UUID) (DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE))", "{{UUID}}"
            ),), unit="percentunit"),
        )),
        Row(8, (
            Panel("Temperature", "timeseries", 8, (Query(_by_node("DCGM_FI_DEV_GPU_TEMP"), "{{node}}"),),
                  unit="celsius"),
            Panel("Power", "timeseries", 8, (Query(_by_node("DCGM_FI_DEV_POWER_USAGE"), "{{node}}"),), unit="watt"),
            Panel("Tensor cores", "timeseries", 8, (
                Query(_by_node("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"), "{{node}}"),
            ), unit="percentunit"),
        )),
        Row(8, (
            Panel("Memory bandwidth", "timeseries", 8, (
                Query(_by_node("DCGM_FI_PROF_DRAM_ACTIVE"), "{{node}}"),
            ), unit="percentunit"),
            Panel("Copies", "timeseries", 8, (
                Query(_by_node("DCGM_FI_DEV_MEM_COPY_UTIL"), "{{node}}"),
            ), unit="percent"),
            Panel("XID errors", "table", 8, (
                Query("max by (UUID, Hostname) (DCGM_FI_DEV_XID_ERRORS > 0)", "Last code"),
                Query("max by (UUID, Hostname) (changes(DCGM_FI_DEV_XID_ERRORS[1h]))", "Changes in an hour"),
            ), about="A gauge of the last code, not a count."),
        )),
        Row(8, (
            Panel("Verdicts", "timeseries", 6, (
                Query("sum by (verdict) (max by (verdict, reason) (fallow_idle_workloads))", "{{verdict}}"),
            ), is_stacked=True),
            Panel("GPU-hours given back", "timeseries", 6, (
                Query("sum by (mode) (increase(fallow_idle_saved_gpu_seconds_total[1h])) / 3600", "{{mode}}"),
            ), decimals=2, about="Per hour. dry-run: what would have been."),
            Panel("Regrets", "timeseries", 6, (
                Query(f"sum by (policy) ({_risen('fallow_idle_regrets_total', '1d')})", "{{policy}}"),
            ), about="Pauses undone within a quarter of an hour, in a day."),
            Panel("Coverage", "timeseries", 6, (
                Query("min by (node) (fallow_idle_coverage_ratio)", "{{node}}"),
            ), unit="percentunit", about="Share of the window that was measured, lowest of the node's GPUs."),
        )),
    ),
)

# ---- cost: the books -------------------------------------------------------------------------------------------------


def _money(stem: str, labels: str = "") -> str:
    """In dollars, or in the currency of the books."""
    other = stem if stem.endswith("_cost") else f"{stem}_cost"
    return f"gpu_autoscaler_{stem}_usd{labels} or gpu_autoscaler_{other}{labels}"


def _split(title: str, dimension: str, width: int = 8) -> Panel:
    asked = _money("dimension_cost", f'{{dimension="{dimension}"}}')
    return Panel(title, "piechart", width, (Query(f"topk(20, max by (key) ({asked}))", "{{key}}"),), decimals=2)


def _sum(title: str, stem: str, about: str = "", width: int = 4) -> Panel:
    return Panel(title, "stat", width, (Query(f"max({_money(stem)})"),), decimals=2, about=about)


_CLASSES: Final = _money("dimension_cost", '{dimension="class"}')
_BY_CLASS: Final = f'label_replace(({_CLASSES}), "class", "$1", "key", "(.*)")'
_UNALLOCATED: Final = _money("idle_cost", '{kind="unallocated"}')

COST: Final = Board(
    uid="fallow-cost", title="GPU Cost", tags=("fallow", "gpu", "cost"), refresh="1m", since="now-7d",
    about="What GPUs cost, who caused it, what was saved, in the currency of the books. The figures are those of "
          "`fallow cost`; docs/operators/cost.md says what each means.",
    rows=(
        Row(4, (
            _sum("Hourly rate", "hourly_cost_rate", "What all GPUs cost an hour now."),
            Panel("Month to date", "stat", 4, (Query(
                f"sum(max by (namespace) ({_money('namespace_cost')})) + (sum(max by (kind, namespace) "
                f"({_UNALLOCATED})) or vector(0))"
            ),), decimals=2, about="What was held and what nobody held, this UTC month."),
            _sum("Projected month", "month_projected_cost",
                 "If the month goes on as its days so far. Nothing in its first six hours."),
            _sum("Saved this month", "total_savings",
                 "Realised: somebody else used what was given back, or its node was gone."),
            Panel("GPU-hours without a price", "stat", 4, (Query("max(gpu_autoscaler_unpriced_gpu_hours)"),), unit="h",
                  about="In no sum of this page. `fallow cost prices` says which, and what helps."),
            Panel("Books are behind by", "stat", 4, (Query("min(gpu_autoscaler_ledger_lag_seconds)"),), unit="s"),
        )),
        Row(8, (
            Panel("Hourly rate over time", "timeseries", 12, (
                Query(f"max({_money('hourly_cost_rate')})", "all GPUs"),
            ), decimals=2),
            Panel("Where the month's money went: three idles", "timeseries", 12, (
                Query(f"sum by (kind) (max by (kind, namespace) ({_money('idle_cost')}))", "{{kind}}"),
            ), decimals=2, is_stacked=True,
                about="allocated_unused and held_idle are the teams', unallocated the platform's."),
        )),
        Row(9, (
            Panel("By namespace", "piechart", 8, (
                Query(f"topk(20, max by (namespace) ({_money('namespace_cost')}))", "{{namespace}}"),
            ), decimals=2),
            _split("By team", "team"), _split("By GPU model", "model"),
        )),
        Row(8, (
            _split("By capacity type", "capacity"), _split("By class of work", "class"),
            Panel("Cost per GPU-hour, by class", "bargauge", 8, (
                Query(f"max by (class) ({_BY_CLASS}) / max by (class) (gpu_autoscaler_gpu_hours)", "{{class}}"),
            ), decimals=2, about="Of hours that have a price and of those that have none."),
        )),
        Row(10, (
            Panel("The 20 costliest workloads of 24 hours, with their use", "table", 24, (
                Query(f"max by (namespace, kind, name) ({_money('workload_cost')})", "Cost"),
                Query("max by (namespace, kind, name) (gpu_autoscaler_workload_use_ratio)", "Use", "percentunit"),
            ), decimals=2, about="No use: nobody measured it, which is not idle."),
        )),
        Row(8, (
            Panel("Budgets: used", "bargauge", 8, (
                Query("max by (budget) (gpu_autoscaler_budget_percentage)", "{{budget}}"),
            ), unit="percent", most=120, steps=(("orange", 80), ("red", 100))),
            Panel("Budgets: burn rate, a day", "timeseries", 8, (Query(
                "max by (budget) (clamp_min((delta(gpu_autoscaler_budget_spend_usd[6h]) or "
                "delta(gpu_autoscaler_budget_spend_cost[6h])), 0)) * 4", "{{budget}}"
            ),), decimals=2),
            Panel("Budgets: projected", "timeseries", 8, (
                Query(f"max by (budget) ({_money('budget_projected')})", "{{budget}}"),
            ), decimals=2),
        )),
        Row(7, (
            Panel("Saved this month, by type", "bargauge", 8, tuple(
                Query(f"max({_money(f'{kind}_savings')})", kind) for kind in ("waste", "spot", "sharing", "autoscaling")
            ), decimals=2, about="Realised only."),
            Panel("Freed, and taken by nobody", "stat", 4, (Query("max(gpu_autoscaler_freed_gpu_hours)"),), unit="h",
                  about="GPU-hours: capacity, and no money."),
            _sum("Open acknowledgements have cost", "ack_cost",
                 "`fallow acks` lists them; GET /api/v1/cost/acks has each with its cost."),
            Panel("Old prices in use", "stat", 4, (Query("max(gpu_autoscaler_stale_prices)"),)),
            Panel("Energy, by namespace", "timeseries", 4, (
                Query("sum by (namespace) (rate(gpu_autoscaler_energy_joules_total[10m]))", "{{namespace}}"),
            ), unit="watt", is_stacked=True),
        )),
    ),
)

# ---- health: is fallow well? -----------------------------------------------------------------------------------------


def _rate(title: str, query: str, legend: str, about: str = "", width: int = 8) -> Panel:
    return Panel(title, "timeseries", width, (Query(query, legend),), about=about, is_stacked=True)


def _slowest(histogram: str, *labels: str) -> str:
    """What 99 of 100 stayed below."""
    by = ", ".join(("le", *labels))
    return f"histogram_quantile(0.99, sum by ({by}) (rate({histogram}_bucket[10m])))"


HEALTH: Final = Board(
    uid="fallow-health", title="fallow health", tags=("fallow",),
    about="Does fallow see, decide and act, and what does it cost itself. Each alert has a page in docs/runbooks.",
    rows=(
        Row(4, (
            Panel("Leaders", "stat", 4, (Query("sum(fallow_idle_leader)"),), steps=(("red", 2),),
                  about="One acts. None: nothing is paused. Two: their clocks or the Lease are wrong."),
            Panel("Age of the last decision", "stat", 4, (
                Query("time() - max(fallow_idle_last_success_timestamp_seconds)"),
            ), unit="s", steps=(("orange", 600), ("red", 1800))),
            Panel("Frozen", "stat", 4, (Query("max(fallow_idle_frozen)"),), steps=(("orange", 1),),
                  about="1: nothing is paused, because the idle share jumped or somebody said so."),
            Panel("Sources that answer", "stat", 4, (
                Query("min(max by (source) (fallow_idle_source_up))"),
            ), about="0: one of them does not; what it measures is not known."),
            Panel("Signals lost", "stat", 4, (Query("sum(max by (signal) (fallow_idle_lost_signals)) or vector(0)"),),
                  steps=(("orange", 1),)),
            Panel("Books are behind by", "stat", 4, (
                Query("time() - max(fallow_books_last_success_timestamp_seconds)"),
            ), unit="s", steps=(("orange", 600),), about="Empty where no books are kept (--cost)."),
        )),
        Row(8, (
            _rate("Cycles", "sum by (result) (increase(fallow_idle_cycles_total[10m]))", "{{result}}",
                  "In 10 minutes."),
            Panel("A cycle takes", "timeseries", 8, (
                Query(_slowest("fallow_idle_cycle_duration_seconds"), "99 of 100 below"),
            ), unit="s"),
            _rate("Actions", f"sum by (action, mode, result) ({_risen('fallow_idle_actions_total', '1h')})",
                  "{{action}} {{mode}} {{result}}", "In an hour."),
        )),
        Row(8, (
            _rate("Requests to the API server", "sum by (verb, code) (rate(fallow_api_requests_total[5m]))",
                  "{{verb}} {{code}}", "A second."),
            Panel("Watches have heard nothing for", "timeseries", 8, (
                Query("max by (resource) (fallow_watch_age_seconds)", "{{resource}}"),
            ), unit="s"),
            Panel("Coverage of measurements", "timeseries", 8, (
                Query("min by (node) (fallow_idle_coverage_ratio)", "{{node}}"),
            ), unit="percentunit"),
        )),
        Row(8, (
            _rate("Notices", f"sum by (channel, result) ({_risen('fallow_idle_notices_total', '1h')})",
                  "{{channel}} {{result}}", "In an hour."),
            _rate("Undone", f"sum by (kind) ({_risen('fallow_idle_fights_total', '1d')})", "{{kind}}",
                  "Pauses that others undid, in a day."),
            _rate("Brakes of scaling", "max by (policy, reason) (gpu_autoscaler_brake_engaged)",
                  "{{policy}}: {{reason}}", "1 while it halts a policy."),
        )),
        Row(8, (
            _rate("Reviews of pods", "sum by (outcome) (rate(gpu_autoscaler_webhook_requests_total[5m]))",
                  "{{outcome}}", "A second, by the webhook."),
            Panel("A review takes", "timeseries", 8, (
                Query(_slowest("gpu_autoscaler_webhook_duration_seconds"), "99 of 100 below"),
            ), unit="s"),
            Panel("A scheduler's question takes", "timeseries", 8, (
                Query(_slowest("gpu_autoscaler_packing_filter_duration_seconds"), "filter"),
                Query(_slowest("gpu_autoscaler_packing_prioritize_duration_seconds"), "prioritize"),
            ), unit="s"),
        )),
        Row(8, (
            Panel("Memory", "timeseries", 8, (
                Query("process_resident_memory_bytes and on (job, instance) fallow_build_info", "{{instance}}"),
            ), unit="bytes"),
            Panel("CPU", "timeseries", 8, (
                Query("rate(process_cpu_seconds_total[5m]) and on (job, instance) fallow_build_info", "{{instance}}"),
            ), unit="none", about="Cores."),
            Panel("Open files", "timeseries", 8, (
                Query("process_open_fds and on (job, instance) fallow_build_info", "{{instance}}"),
            )),
        )),
    ),
)

BOARDS: Final = {"gpu-dashboard": GPUS, "gpu-cost": COST, "fallow-health": HEALTH}
FILES: Final = {f"dashboards/{name}.json": partial(draw, board) for name, board in BOARDS.items()}
VALUES: Final = {"helm/grafana-values.yaml": partial(make_values, BOARDS)}
