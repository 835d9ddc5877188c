"""Everything that the books have, hour by hour: for who takes it elsewhere. The columns of `cost_hourly`, and FOCUS.

In: sums of keys of some hours. Out: HourRows (money and GPU-hours as decimal digits, for nothing is rounded on the way
out); rows of FOCUS 1.2 (FinOps Open Cost and Usage Specification) made of them.
Invariant: the rows of an hour come to what the ledger has of it, to the last digit, in both. No cost of FOCUS is empty:
where no list price is known ListCost is what was paid, as FOCUS wants of a charge without a unit price, and says so.
"""

import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec

from fallow.doors import answers
from fallow.doors.answers.cost_books import CostBooks
from fallow.model import cost, units
from fallow.model.cost import Amounts, CostKey, CostQuery, CostStep, KeySum, Nano
from fallow.model.energy import KWH, EnergyTerms
from fallow.model.windows import TimeSpan

MOST: Final[cost.Second] = cost.DAY  # of one answer


class HourRow(answers.Shape, frozen=True, kw_only=True):
    """One state of one key in one hour (or the part of it that the window has). `list_cost`: what its hours that have a
    price would have cost on demand; None: no list price is known."""

    bucket: str
    bucket_end: str
    cluster: str
    namespace: str
    owner_kind: str
    owner_name: str
    node: str
    instance_type: str
    region: str
    gpu_model: str
    capacity_type: str
    sharing_mode: str
    workload_type: str
    team: str
    project: str
    experiment_id: str
    cost_center: str
    user: str
    labels: dict[str, str]
    state: str
    cost: str
    use_cost: str
    list_cost: str | None = None  # not said by a daemon of an older version, either
    gpu_hours: str
    unpriced_gpu_hours: str
    energy_kwh: str
    energy_cost: str | None  # None: nobody said what a kWh is worth
    energy_co2_kg: str | None
    currency: str


class HoursPage(answers.Shape, frozen=True, kw_only=True):
    currency: str
    as_of: str
    items: tuple[HourRow, ...]


async def read_hours(books: CostBooks, span: TimeSpan) -> HoursPage:
    """ValueError where it is more than one answer holds."""
    if span.seconds > MOST:
        raise ValueError(f"at most {MOST // cost.HOUR} hours at once")
    meta = await books.ledger.read_meta()
    sums = await books.sums_of_keys(CostQuery(begin=span.begin, end=span.end, step=CostStep.hour))
    listed = _ListPrices(books)
    items = tuple(row for one in sums for row in _tell(one, meta.currency, books.energy, listed))
    return HoursPage(currency=meta.currency, as_of=units.rfc3339(meta.seen_until), items=items)


class _ListPrices:
    """Each is looked up once for all that ran on a node in an hour."""

    def __init__(self, books: CostBooks) -> None:
        self._books = books
        self._found: dict[tuple[object, ...], Nano | None] = {}

    def find(self, key: CostKey, at: cost.Second) -> Nano | None:
        """Nobody would have bought on demand what was reserved and never ran."""
        if key.namespace == cost.UNUSED_COMMITMENT:
            return None
        kind = (key.node, key.instance_type, key.region, key.gpu_model, at)
        if kind not in self._found:
            self._found[kind] = self._books.list_price(key, at)
        return self._found[kind]

    def cost_of(self, amounts: Amounts, price: Nano) -> Nano:
        """With energy where what was paid has it, too."""
        terms = self._books.energy
        burned = terms.cost_of(amounts.energy_mj) if terms.in_cost else None
        priced = amounts.gpu_micro_seconds - amounts.unpriced
        return round(Decimal(price) * priced / cost.GPU_HOUR) + (burned or 0)


def _tell(one: KeySum, currency: str, energy: EnergyTerms, listed: _ListPrices) -> Iterator[HourRow]:
    key, dims, price = one.key, one.key.dims, listed.find(one.key, one.begin)
    for state, amounts in one.parts.items():
        burned, grams = energy.cost_of(amounts.energy_mj), energy.grams_of(amounts.energy_mj)
        yield HourRow(
            bucket=units.rfc3339(one.begin), bucket_end=units.rfc3339(one.end), cluster=key.cluster,
            namespace=key.namespace or cost.UNALLOCATED, owner_kind=key.owner_kind, owner_name=key.owner_name,
            node=key.node, instance_type=key.instance_type, region=key.region, gpu_model=key.gpu_model,
            capacity_type=key.capacity_type.value, sharing_mode=key.sharing.value, workload_type=key.workload_type,
            team=dims.team, project=dims.project, experiment_id=dims.experiment_id, cost_center=dims.cost_center,
            user=dims.user, labels=_find_labels(dims), state=state.value, currency=currency, **_digits(amounts),
            list_cost=None if price is None else _money(listed.cost_of(amounts, price)),
            energy_cost=None if burned is None else _money(burned),
            energy_co2_kg=None if grams is None else _number(grams / 1000),
        )


def _find_labels(dims: cost.Dims) -> dict[str, str]:
    """As tenants wrote them: whose budget it counts for is no label."""
    return {key: value for key, value in dims.labels if not key.startswith(cost.PAYER)}


def _digits(amounts: Amounts) -> dict[str, str]:
    hour, kwh = Decimal(cost.GPU_HOUR), Decimal(KWH)
    return {
        "cost": _money(amounts.cost), "use_cost": _money(amounts.use_cost),
        "gpu_hours": _number(amounts.gpu_micro_seconds / hour),
        "unpriced_gpu_hours": _number(amounts.unpriced / hour), "energy_kwh": _number(amounts.energy_mj / kwh),
    }


def _money(nano: cost.Nano) -> str:
    return _number(Decimal(nano).scaleb(-9))


def _number(value: Decimal) -> str:
    text = f"{round(value, 9):f}"
    return text.rstrip("0").rstrip(".") or "0" if "." in text else text


# ---- FOCUS -----------------------------------------------------------------------------------------------------------

_CATEGORIES: Final = {"on-demand": "Standard", "unknown": "Standard", "spot": "Dynamic", "reserved": "Committed"}
_UNIT: Final = "GPU-Hours"
_SAME_IN_A_CHARGE: Final = (
    "bucket", "bucket_end", "cluster", "namespace", "owner_kind", "owner_name", "node", "instance_type", "region",
    "gpu_model", "capacity_type", "sharing_mode", "workload_type", "team", "project", "experiment_id", "cost_center",
    "user", "currency",
)


def make_focus(rows: Iterable[HourRow]) -> Iterator[dict[str, Any]]:
    """One for each hour, namespace and resource; its states are columns of our own. `rows`: those of an hour side by
    side, as they are read."""
    charges = dict[tuple[Any, ...], list[HourRow]]()
    for row in rows:
        same = (*(getattr(row, name) for name in _SAME_IN_A_CHARGE), msgspec.json.encode(row.labels))
        charges.setdefault(same, []).append(row)
    for some in charges.values():
        yield _make_charge(some)


def _make_charge(rows: Sequence[HourRow]) -> dict[str, Any]:
    one, paid, hours = rows[0], _add(rows, "cost"), _add(rows, "gpu_hours")
    listed = _add_known(rows, "list_cost")
    month = datetime.date.fromisoformat(one.bucket[:10]).replace(day=1)
    resource, kind = f"{one.owner_kind}/{one.owner_name}", one.owner_kind
    place = f"{one.cluster}/{one.namespace}"
    if not one.owner_name:
        resource, kind, place = one.node or one.namespace, "Node" if one.node else "Commitment", one.cluster
    by_state = dict[str, list[HourRow]]()  # several of one state, where only whose budget it was changed meanwhile
    for row in rows:
        by_state.setdefault(row.state, []).append(row)
    return {
        "BilledCost": paid, "EffectiveCost": paid, "ListCost": listed or paid, "ContractedCost": paid,
        "BillingCurrency": one.currency, "BillingAccountId": one.cluster, "BillingAccountName": one.cluster,
        "BillingPeriodStart": f"{month}T00:00:00Z", "BillingPeriodEnd": f"{_next_month(month)}T00:00:00Z",
        "ChargePeriodStart": one.bucket, "ChargePeriodEnd": one.bucket_end, "ChargeCategory": "Usage",
        "ChargeClass": None, "ChargeDescription": f"{one.gpu_model or 'GPU'} held by {resource} in {one.namespace}",
        "ChargeFrequency": "Usage-Based", "ConsumedQuantity": hours, "ConsumedUnit": _UNIT, "PricingQuantity": hours,
        "PricingUnit": _UNIT, "PricingCategory": _CATEGORIES[one.capacity_type], "ProviderName": one.cluster,
        "PublisherName": one.cluster, "InvoiceIssuerName": one.cluster, "ServiceCategory": "Compute",
        "ServiceName": "GPU", "RegionId": one.region or None, "ResourceId": f"{place}/{resource}",
        "ResourceName": one.owner_name or one.node or one.namespace, "ResourceType": kind,
        "SkuId": one.instance_type or one.gpu_model or None, "SubAccountId": one.namespace,
        "Tags": msgspec.json.encode(_tags(one)).decode(), "x_GpuModel": one.gpu_model, "x_Node": one.node,
        "x_CapacityType": one.capacity_type, "x_SharingMode": one.sharing_mode, "x_WorkloadType": one.workload_type,
        "x_UsedCost": _of(by_state, "used", "use_cost"), "x_AllocatedUnusedCost": _unused(by_state.get("used", ())),
        "x_HeldIdleCost": _of(by_state, "held_idle", "cost"),
        "x_UseUnknownCost": _of(by_state, "use_unknown", "cost"),
        "x_UnallocatedCost": _of(by_state, "unallocated", "cost"),
        "x_IsListCostKnown": "false" if listed is None else "true",
        "x_UnpricedGpuHours": _add(rows, "unpriced_gpu_hours"), "x_EnergyKwh": _add(rows, "energy_kwh"),
        "x_EnergyCost": _add_known(rows, "energy_cost"), "x_EnergyCo2Kg": _add_known(rows, "energy_co2_kg"),
    }


FOCUS: Final = (
    "BilledCost", "EffectiveCost", "ListCost", "ContractedCost", "BillingCurrency", "BillingAccountId",
    "BillingAccountName", "BillingPeriodStart", "BillingPeriodEnd", "ChargePeriodStart", "ChargePeriodEnd",
    "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargeFrequency", "ConsumedQuantity", "ConsumedUnit",
    "PricingQuantity", "PricingUnit", "PricingCategory", "ProviderName", "PublisherName", "InvoiceIssuerName",
    "ServiceCategory", "ServiceName", "RegionId", "ResourceId", "ResourceName", "ResourceType", "SkuId", "SubAccountId",
    "Tags", "x_GpuModel", "x_Node", "x_CapacityType", "x_SharingMode", "x_WorkloadType", "x_UsedCost",
    "x_AllocatedUnusedCost", "x_HeldIdleCost", "x_UseUnknownCost", "x_UnallocatedCost", "x_IsListCostKnown",
    "x_UnpricedGpuHours", "x_EnergyKwh", "x_EnergyCost", "x_EnergyCo2Kg",
)


def _add(rows: Iterable[HourRow], field: str) -> str:
    return _number(sum((Decimal(getattr(row, field)) for row in rows), Decimal(0)))


def _add_known(rows: Sequence[HourRow], field: str) -> str | None:
    return None if any(getattr(row, field) is None for row in rows) else _add(rows, field)


def _of(by_state: Mapping[str, Sequence[HourRow]], state: str, field: str) -> str:
    return _add(by_state.get(state, ()), field)


def _unused(used: Sequence[HourRow]) -> str:
    return _number(Decimal(_add(used, "cost")) - Decimal(_add(used, "use_cost")))


def _tags(row: HourRow) -> dict[str, str]:
    named = {
        "team": row.team, "project": row.project, "experiment-id": row.experiment_id, "cost-center": row.cost_center,
        "user": row.user,
    }
    return {**row.labels, **{name: value for name, value in named.items() if value}}


def _next_month(first: datetime.date) -> datetime.date:
    return datetime.date(first.year + first.month // 12, first.month % 12 + 1, 1)
