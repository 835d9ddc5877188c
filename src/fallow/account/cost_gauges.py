"""What the books say, as metrics: read from the ledger now and then, written out when somebody scrapes.

In: a ledger, now. Out: CostLevels, and of them the metrics gpu_autoscaler_* and those that OpenCost names.
Invariant: series are bounded: so many pods, namespaces and values; all further ones are one, `_other`. The total never
falls. In another currency than US dollars no metric says dollars. What is not known is not there: no metric is 0 then.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from fallow import telemetry
from fallow.account import counterfactuals, reports
from fallow.account.ledger import Ledger
from fallow.model import cost, windows
from fallow.model.cost import (
    DAY,
    GPU_HOUR,
    UNIT,
    WHOLE,
    Amounts,
    CostQuery,
    CostSum,
    Interval,
    Nano,
    SavingKind,
    Second,
    SpendState,
)
from fallow.model.units import Instant, Seconds

Labels: TypeAlias = tuple[str, ...]

MOST_PODS: Final = 5000
MOST_VALUES: Final = 500  # of one label
_TOP: Final = 20
_OTHER: Final = "_other"
_CLASS: Final = cost.read_dimension("class")
_BY: Final = (*map(cost.read_dimension, ("team", "model", "capacity")), _CLASS)
_NAMESPACE: Final = cost.read_dimension("namespace")
_WORKLOAD: Final = tuple(map(cost.read_dimension, ("namespace", "controllerKind", "controller")))
_POD: Final = tuple(map(cost.read_dimension, ("namespace", "pod", "model", "capacity")))


class NodeRate(msgspec.Struct, frozen=True):
    """`gpu`: of a whole one, None where it has no price; `total`: of all, as far as they have one."""

    gpu: Nano | None
    gpus: int  # micro
    total: Nano


class CostLevels(msgspec.Struct, frozen=True, kw_only=True):
    """Money in nano units of `currency`; by labels, in the order of the metric."""

    currency: str
    total: Nano
    rate: Nano
    projected: Nano | None
    pods: Mapping[Labels, Nano]
    namespaces: Mapping[Labels, Nano]
    dimensions: Mapping[Labels, Nano]
    idle: Mapping[Labels, Nano]
    savings: Mapping[SavingKind, Nano]
    freed_gpu_hours: float
    acks: Nano
    unpriced_gpu_hours: float
    hours_by_class: Mapping[Labels, float]
    workloads: Mapping[Labels, tuple[Nano, float | None]]
    stale_prices: int
    lag: Seconds
    energy_mj: Mapping[str, int]
    nodes: Mapping[Labels, NodeRate]
    allocations: Mapping[Labels, float]


class CostGauges:
    """`most_pods`: that have series of their own. `max_age`: of a price, before it is stale."""

    def __init__(
        self, metrics: telemetry.Telemetry, *, most_pods: int = MOST_PODS, max_age: Seconds = 90 * DAY
    ) -> None:
        self._metrics, self._most_pods, self._max_age = metrics, most_pods, max_age
        self._since: Second | None = None
        self._levels: CostLevels | None = None
        self._energy: dict[str, int] = {}
        metrics.before_scrape(self.write)

    async def read(self, ledger: Ledger, now: Instant) -> None:
        """For the next scrape."""
        self._since = int(now) if self._since is None else self._since
        self._levels = await read_levels(
            ledger, now, energy_since=self._since, most_pods=self._most_pods, max_age=self._max_age
        )

    def write(self) -> None:
        levels, self._levels = self._levels, None
        if levels is not None:
            self._write_money(levels)
            self._write_rest(levels)

    def _write_money(self, levels: CostLevels) -> None:
        single = {
            "total_cost": levels.total, "hourly_cost_rate": levels.rate, "ack_cost": levels.acks,
            "total_savings": sum(levels.savings.values()),
            **{f"{kind}_savings": nano for kind, nano in levels.savings.items()},
            **({} if levels.projected is None else {"month_projected_cost": levels.projected}),
        }
        for name, nano in single.items():
            self._set(levels.currency, name, {(): nano})
        workloads = {labels: nano for labels, (nano, _) in levels.workloads.items()}
        several = {
            "pod_cost": levels.pods, "namespace_cost": levels.namespaces, "dimension_cost": levels.dimensions,
            "idle_cost": levels.idle, "workload_cost": workloads,
        }
        for name, by_labels in several.items():
            self._set(levels.currency, name, by_labels)

    def _set(self, currency: str, name: str, values: Mapping[Labels, Nano]) -> None:
        said = {labels: nano / UNIT for labels, nano in values.items()}
        self._metrics.replace_money(f"gpu_autoscaler_{name}", currency, said)

    def _write_rest(self, levels: CostLevels) -> None:
        set_, replace = self._metrics.set, self._metrics.replace
        set_("gpu_autoscaler_freed_gpu_hours", levels.freed_gpu_hours)
        set_("gpu_autoscaler_unpriced_gpu_hours", levels.unpriced_gpu_hours)
        set_("gpu_autoscaler_stale_prices", levels.stale_prices)
        set_("gpu_autoscaler_ledger_lag_seconds", levels.lag)
        replace("gpu_autoscaler_gpu_hours", levels.hours_by_class)
        used = {labels: use for labels, (_, use) in levels.workloads.items() if use is not None}
        replace("gpu_autoscaler_workload_use_ratio", used)
        nodes = levels.nodes.items()
        replace("node_gpu_hourly_cost", {labels: one.gpu / UNIT for labels, one in nodes if one.gpu is not None})
        replace("node_gpu_count", {labels: one.gpus / WHOLE for labels, one in nodes})
        replace("node_total_hourly_cost", {labels: one.total / UNIT for labels, one in nodes if one.gpu is not None})
        replace("container_gpu_allocation", levels.allocations)
        for namespace, energy in levels.energy_mj.items():
            more = energy - self._energy.get(namespace, 0)
            if more > 0:  # a correction takes nothing back from a counter
                self._energy[namespace] = energy
                self._metrics.add("gpu_autoscaler_energy_joules_total", more / 1000, (namespace,))


# ---- read ------------------------------------------------------------------------------------------------------------


async def read_levels(
    ledger: Ledger, now: Instant, *, energy_since: Second, most_pods: int = MOST_PODS, max_age: Seconds = 90 * DAY
) -> CostLevels:
    at, month = int(now), windows.read_window("month", now)
    meta, total, opened, prices, savings, acked = await asyncio.gather(
        ledger.read_meta(), ledger.total_since_start(), ledger.read_open(), ledger.read_prices(),
        ledger.read_savings(month.begin, at + 1), ledger.read_acked(0, at + 1),
    )
    of_month, of_day, energy = await asyncio.gather(
        ledger.sums(CostQuery(begin=month.begin, end=max(at, month.begin + 1), by=(_NAMESPACE, *_BY))),
        ledger.sums(CostQuery(begin=max(0, at - DAY), end=at, by=(*_POD, *_WORKLOAD))),
        ledger.sums(CostQuery(begin=energy_since, end=max(at, energy_since), by=(_NAMESPACE,))),
    )
    by_space, by_class = _regroup(of_month, 0), _regroup(of_month, 1 + _BY.index(_CLASS))
    real = [row for row in savings if not row.is_dry_run]
    used_now = {one.slice.price_id for one in opened}
    return CostLevels(
        currency=meta.currency, total=total, rate=sum(one.slice.rate_nano or 0 for one in opened),
        projected=reports.project_month(sum(one.total.cost for one in of_month), month, min(meta.seen_until, at)),
        pods=_bound(_running(_regroup(of_day, *range(len(_POD))), opened), most_pods),
        namespaces=_bound(_held(by_space), MOST_VALUES),
        dimensions={
            (str(dimension), *labels): nano for place, dimension in enumerate(_BY, 1)
            for labels, nano in _bound(_held(_regroup(of_month, place)), MOST_VALUES).items()
        },
        idle=_bound(_find_idle(by_space), 3 * MOST_VALUES), savings=_add_savings(real),
        freed_gpu_hours=sum(counterfactuals.read_details(row).gpu_hours for row in real if not row.realised),
        acks=_add_acks(acked), unpriced_gpu_hours=_hours(sum(one.total.unpriced for one in of_month)),
        hours_by_class={
            one.key: _hours(held) for one in by_class if (held := one.held.gpu_micro_seconds)
        },
        workloads=_find_top(_regroup(of_day, *range(len(_POD), len(_POD) + len(_WORKLOAD)))),
        lag=max(0.0, now - meta.seen_until),
        stale_prices=sum(
            one.price_id in used_now and one.is_stale(at, max_age) for one in prices
        ),
        energy_mj=_add_energy(energy), nodes=_find_nodes(opened), allocations=_find_allocations(opened, most_pods),
    )


def _regroup(sums: Iterable[CostSum], *places: int) -> list[CostSum]:
    """By some of the dimensions that they are by."""
    groups = dict[Labels, dict[SpendState, Amounts]]()
    for one in sums:
        parts = groups.setdefault(tuple(one.key[place] for place in places), {})
        for state, amounts in one.parts.items():
            parts[state] = parts[state] + amounts if state in parts else amounts
    return [CostSum(key=key, begin=0, end=0, parts=parts) for key, parts in sorted(groups.items())]


def _held(sums: Iterable[CostSum]) -> dict[Labels, Nano]:
    """Of whom nothing has a price there is no cost: 0 would be one."""
    return {one.key: held.cost for one in sums if (held := one.held).gpu_micro_seconds > held.unpriced}


def _bound(values: Mapping[Labels, Nano], most: int) -> dict[Labels, Nano]:
    """The greatest `most`; the others in one."""
    ordered = sorted(values.items(), key=lambda each: (-each[1], each[0]))
    kept = dict(ordered[:most])
    if rest := ordered[most:]:
        kept[(_OTHER,) * len(rest[0][0])] = sum(nano for _, nano in rest)
    return kept


def _running(by_pod: Sequence[CostSum], opened: Iterable[Interval]) -> dict[Labels, Nano]:
    now = {(one.slice.key.namespace, one.slice.pod_name) for one in opened if one.slice.pod_uid}
    return {labels: nano for labels, nano in _held(by_pod).items() if labels[:2] in now}


def _find_idle(by_space: Iterable[CostSum]) -> dict[Labels, Nano]:
    found = defaultdict[Labels, Nano](int)
    for one in by_space:
        [namespace] = one.key
        used = one.parts.get(SpendState.used, Amounts())
        parts = {
            "allocated_unused": used.cost - used.use_cost,
            "held_idle": one.parts.get(SpendState.held_idle, Amounts()).cost,
            "unallocated": one.parts.get(SpendState.unallocated, Amounts()).cost,
        }
        for kind, nano in parts.items():
            if nano:
                found[kind, namespace] += nano
    return dict(found)


def _add_savings(rows: Iterable[cost.BookedSaving]) -> dict[SavingKind, Nano]:
    """Of a kind that nobody measures there is none: 0 would be a figure."""
    found = defaultdict[SavingKind, Nano](int, dict.fromkeys(cost.MEASURED_SAVINGS, 0))
    for row in rows:
        if row.realised:
            found[row.kind] += row.saved
    return dict(found)


def _add_acks(acked: Sequence[Interval]) -> Nano:
    """Of those that are open: all that was booked under them."""
    standing = {one.slice.ack_id for one in acked if one.is_open}
    return sum(
        one.cost(one.t0, one.t1) or 0 for one in acked
        if one.slice.ack_id in standing and one.slice.state is SpendState.held_idle
    )


def _find_top(by_workload: Sequence[CostSum]) -> dict[Labels, tuple[Nano, float | None]]:
    held = _held(by_workload)
    top = set(sorted(held, key=lambda labels: (-held[labels], labels))[:_TOP])
    return {one.key: (held[one.key], _use(one)) for one in by_workload if one.key in top}


def _use(one: CostSum) -> float | None:
    used, rests = (one.parts.get(state, Amounts()) for state in (SpendState.used, SpendState.held_idle))
    measured = used.cost + rests.cost
    return used.use_cost / measured if measured else None


def _add_energy(sums: Sequence[CostSum]) -> dict[str, int]:
    found = {one.key[0]: one.total.energy_mj for one in sums if one.total.energy_mj}
    ordered = sorted(found)
    kept = {name: found[name] for name in ordered[:MOST_VALUES]}
    if rest := ordered[MOST_VALUES:]:
        kept[_OTHER] = sum(found[name] for name in rest)
    return kept


def _find_nodes(opened: Iterable[Interval]) -> dict[Labels, NodeRate]:
    found = dict[Labels, NodeRate]()
    for one in opened:
        what, key = one.slice, one.slice.key
        labels = key.node, key.node, key.instance_type, key.region
        before = found.get(labels, NodeRate(None, 0, 0))
        gpu = before.gpu if what.rate_nano is None else what.rate_nano * WHOLE // what.share
        found[labels] = NodeRate(gpu, before.gpus + what.share, before.total + (what.rate_nano or 0))
    return found


def _find_allocations(opened: Iterable[Interval], most: int) -> dict[Labels, float]:
    shares = defaultdict[Labels, int](int)
    for one in opened:
        if one.slice.pod_uid:
            key = one.slice.key
            shares["", key.node, key.namespace, key.node, one.slice.pod_name] += one.slice.share
    return {labels: share / WHOLE for labels, share in _bound(shares, most).items()}


def _hours(micro_seconds: int) -> float:
    return micro_seconds / GPU_HOUR
