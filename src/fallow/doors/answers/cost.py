"""What GPUs cost, as answers: reports, days, the summary, savings, acknowledgements, prices.

In: reports of account/reports.py, rows of the ledger. Out: shapes for commands and API alike. Money is a number of the
ledger's currency in whole cents, and None where nobody knows.
Invariant: rows, the platform and the rest come to the total, as printed; what has no price is hours beside it.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Final, Literal, NamedTuple

from fallow.account import counterfactuals, reports
from fallow.doors import answers
from fallow.model import cost, gpus, units
from fallow.model import money as cents
from fallow.model.cost import BookedPrice, BookedSaving, CostSum, Nano, SavingKind
from fallow.model.windows import TimeSpan

MONTH: Final[cost.Second] = 30 * cost.DAY  # of what is paid by the month


class WindowTold(answers.Shape, frozen=True, kw_only=True):
    """[start, end)."""

    start: str
    end: str


class DoubtfulPrice(answers.Shape, frozen=True, kw_only=True):
    """A price that is older than prices may be, or an estimate. `age_days` None: nobody knows how old."""

    price_id: str
    instance_type: str
    gpu_model: str
    capacity_type: str
    source: str
    age_days: float | None


class DoubtfulPrices(NamedTuple):
    stale: tuple[DoubtfulPrice, ...] = ()
    estimated: tuple[DoubtfulPrice, ...] = ()


class SpendRow(answers.Shape, frozen=True, kw_only=True):
    """One group. `cost` is what it pays by the basis asked for; the four parts are always those of what it held.
    `energy_cost`, `co2_kg`: of its `kwh`; None where nobody said what a kWh is worth."""

    key: str
    keys: tuple[str, ...]
    gpu_hours: float
    cost: float
    used: float
    allocated_unused: float
    held_idle: float
    use_unknown: float
    share: float | None
    use: float | None
    per_gpu_hour: float | None
    kwh: float
    energy_cost: float | None
    co2_kg: float | None
    unpriced_gpu_hours: float
    change: float | None


class PlatformPart(answers.Shape, frozen=True, kw_only=True):
    """`key`: `__unallocated__` or `__unused_commitment__`."""

    key: str
    gpu_hours: float
    cost: float
    share: float | None
    kwh: float
    energy_cost: float | None
    co2_kg: float | None
    unpriced_gpu_hours: float


class PlatformTold(answers.Shape, frozen=True, kw_only=True):
    """What nobody held: the platform's to pay."""

    cost: float
    gpu_hours: float
    kwh: float
    energy_cost: float | None
    co2_kg: float | None
    parts: tuple[PlatformPart, ...]


class CostReportPage(answers.Shape, frozen=True, kw_only=True):
    """`rest`: of the total, what no row and not the platform pays: by use, what was held and not used. `held`: all rows
    in one. `before`: the total of the window before, where it was asked for. `is_energy_in_cost`: what energy cost is
    in every cost here."""

    window: WindowTold
    as_of: str
    currency: str
    basis: Literal["allocation", "use"]
    by: tuple[str, ...]
    rows: tuple[SpendRow, ...]
    held: SpendRow
    platform: PlatformTold
    rest: float
    total: float
    gpu_hours: float
    unpriced_gpu_hours: float
    stale_prices: tuple[DoubtfulPrice, ...]
    estimated_prices: tuple[DoubtfulPrice, ...]
    before: float | None
    is_energy_in_cost: bool


def tell_window(span: TimeSpan) -> WindowTold:
    return WindowTold(start=units.rfc3339(span.begin), end=units.rfc3339(span.end))


def join(keys: Sequence[str]) -> str:
    return "/".join(keys) if keys else "all"


def show_report(
    made: reports.CostReport, seen_until: cost.Second, doubtful: DoubtfulPrices, before: Nano | None = None
) -> CostReportPage:
    asked = made.asked
    parts = tuple(
        PlatformPart(
            key=one.key, gpu_hours=_hours(one.gpu_hours), cost=float(one.cost), share=_ratio(one.share),
            kwh=_hours(one.kwh), energy_cost=_amount(one.energy_cost), co2_kg=_weight(one.co2_kg),
            unpriced_gpu_hours=_hours(one.unpriced_gpu_hours),
        )
        for one in made.platform
    )
    platform = PlatformTold(
        cost=float(sum((one.cost for one in made.platform), Decimal(0))),
        gpu_hours=_hours(sum(one.gpu_hours for one in made.platform)),
        kwh=_hours(sum(one.kwh for one in made.platform)), parts=parts,
        energy_cost=_amount(reports.add_known(one.energy_cost for one in made.platform)),
        co2_kg=_weight(reports.add_known(one.co2_kg for one in made.platform)),
    )
    return CostReportPage(
        window=tell_window(TimeSpan(asked.begin, asked.end)), as_of=units.rfc3339(seen_until), currency=asked.currency,
        basis=asked.basis.value, by=tuple(map(str, asked.by)), rows=tuple(map(_tell_row, made.rows)),
        held=_tell_row(made.held), platform=platform, rest=float(made.rest), total=float(made.total),
        gpu_hours=_hours(made.gpu_hours), unpriced_gpu_hours=_hours(made.unpriced_gpu_hours),
        stale_prices=doubtful.stale, estimated_prices=doubtful.estimated,
        before=None if before is None else money(before), is_energy_in_cost=asked.energy.in_cost,
    )


def _amount(value: Decimal | None) -> float | None:
    return None if value is None else float(value)


def _weight(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _tell_row(row: reports.ReportRow) -> SpendRow:
    return SpendRow(
        key=join(row.key), keys=row.key, gpu_hours=_hours(row.gpu_hours), cost=float(row.cost), used=float(row.used),
        allocated_unused=float(row.allocated_unused), held_idle=float(row.held_idle),
        use_unknown=float(row.use_unknown), share=_ratio(row.share), use=_ratio(row.use),
        per_gpu_hour=_ratio(row.per_gpu_hour), kwh=_hours(row.kwh), energy_cost=_amount(row.energy_cost),
        co2_kg=_weight(row.co2_kg), unpriced_gpu_hours=_hours(row.unpriced_gpu_hours), change=_ratio(row.change),
    )


def money(nano: Nano) -> float:
    """In whole cents, as a report prints it."""
    return _in_units(cents.to_cent(nano))


def _in_units(cent: int) -> float:
    return float(Decimal(cent).scaleb(-2))


def _hours(value: float) -> float:
    return round(value, 4)


def _ratio(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def find_doubtful(
    prices: Iterable[BookedPrice], used: frozenset[str], at: cost.Second, longest: units.Seconds
) -> DoubtfulPrices:
    """Of those that were used: older than that, and taken for one that nobody knows."""
    mine = [one for one in prices if one.price_id in used]
    return DoubtfulPrices(
        stale=_doubt((one for one in mine if one.is_stale(at, longest)), at),
        estimated=_doubt((one for one in mine if one.is_estimated), at),
    )


def _doubt(prices: Iterable[BookedPrice], at: cost.Second) -> tuple[DoubtfulPrice, ...]:
    """The oldest first."""
    found = (
        DoubtfulPrice(
            price_id=one.price_id, instance_type=one.instance_type, gpu_model=one.gpu_model,
            capacity_type=one.capacity_type.value, source=one.source, age_days=_age(one, at),
        )
        for one in prices
    )
    return tuple(sorted(found, key=lambda one: (-(one.age_days or float("inf")), one.price_id)))


def _age(price: BookedPrice, at: cost.Second) -> float | None:
    return None if price.retrieved_at is None else round((at - price.retrieved_at) / cost.DAY, 1)


# ---- over time -------------------------------------------------------------------------------------------------------


class SpendSeries(answers.Shape, frozen=True, kw_only=True):
    """`costs`: one for each piece; None: no books were kept then."""

    key: str
    costs: tuple[float | None, ...]
    total: float


class CostSeriesPage(answers.Shape, frozen=True, kw_only=True):
    """`starts`: of the pieces; the last one ends with the window. What is left of the pieces is the platform's. None:
    of a piece that was over when the books began (`books_since`) nobody knows what it cost."""

    window: WindowTold
    as_of: str
    books_since: str | None
    currency: str
    by: tuple[str, ...]
    step: Literal["hour", "day", "week", "month"]
    starts: tuple[str, ...]
    series: tuple[SpendSeries, ...]
    platform: tuple[float | None, ...]
    used: tuple[float | None, ...]
    allocated_unused: tuple[float | None, ...]
    held_idle: tuple[float | None, ...]
    use_unknown: tuple[float | None, ...]
    total: tuple[float | None, ...]


def show_series(
    sums: Sequence[CostSum], pieces: Sequence[tuple[cost.Second, cost.Second]], *, span: TimeSpan,
    seen_until: cost.Second, began: cost.Second | None, currency: str, by: Sequence[cost.Dimension],
    step: cost.CostStep, most: int,
) -> CostSeriesPage:
    """The costliest `most` by themselves, the others as one. `began`: the books; None: they are empty."""
    place, is_kept = {begin: at for at, (begin, _) in enumerate(pieces)}, _find_kept(pieces, began)
    groups, states = defaultdict[tuple[str, ...], list[Nano]](lambda: [0] * len(pieces)), _StateSums(is_kept)
    for one in sums:
        at = place[one.begin]
        states.add(at, one)
        if held := one.held.cost:
            groups[one.key][at] += held
    ordered = sorted(groups.items(), key=lambda each: (-sum(each[1]), each[0]))
    kept = [(join(key), values) for key, values in ordered[:most]]
    if rest := ordered[most:]:
        kept.append((cost.OTHER, [sum(values) for values in zip(*(values for _, values in rest), strict=True)]))
    return CostSeriesPage(
        window=tell_window(span), as_of=units.rfc3339(seen_until), currency=currency, by=tuple(map(str, by)),
        books_since=None if began is None else units.rfc3339(began), step=step.value,
        starts=tuple(units.rfc3339(begin) for begin, _ in pieces),
        series=tuple(
            SpendSeries(key=key, costs=_tell_kept(values, is_kept), total=money(sum(values))) for key, values in kept
        ),
        platform=states.tell("unallocated"), used=states.tell("used"), allocated_unused=states.tell("unused"),
        held_idle=states.tell("held_idle"), use_unknown=states.tell("use_unknown"), total=states.tell("total"),
    )


def _find_kept(pieces: Sequence[tuple[cost.Second, cost.Second]], began: cost.Second | None) -> list[bool]:
    return [began is not None and end > began for _, end in pieces]


def _tell_kept(values: Iterable[Nano], is_kept: Sequence[bool]) -> tuple[float | None, ...]:
    return tuple(money(value) if known else None for value, known in zip(values, is_kept, strict=True))


class _StateSums:
    """Money of each piece, by what it was."""

    def __init__(self, is_kept: Sequence[bool]) -> None:
        self._is_kept = is_kept
        self._of = defaultdict[str, list[Nano]](lambda: [0] * len(is_kept))

    def add(self, at: int, one: CostSum) -> None:
        for state, amounts in one.parts.items():
            if state is cost.SpendState.used:
                self._of["used"][at] += amounts.use_cost
                self._of["unused"][at] += amounts.cost - amounts.use_cost
            else:
                self._of[state.value][at] += amounts.cost
            self._of["total"][at] += amounts.cost

    def tell(self, state: str) -> tuple[float | None, ...]:
        return _tell_kept(self._of[state], self._is_kept)


# ---- savings ---------------------------------------------------------------------------------------------------------


class SavingLine(answers.Shape, frozen=True, kw_only=True):
    """One way to save. `realised_gpu_hours`: of `gpu_hours`, those that somebody else had or whose node was gone; only
    they are money."""

    type: Literal["spot", "sharing", "autoscaling", "waste"]
    baseline: float
    actual: float
    saved: float
    gpu_hours: float
    realised_gpu_hours: float
    method: str


class RoiTold(answers.Shape, frozen=True, kw_only=True):
    """`ratio`: (saved - own cost) / own cost; None where we cost nothing."""

    own_cost: float
    of_it_pods: float
    of_it_investment: float
    saved: float
    ratio: float | None


class CostSavingsPage(answers.Shape, frozen=True, kw_only=True):
    """`saved`: realised, in money. `freed_gpu_hours`: given back and used by nobody. `dry_run_gpu_hours`: what a dry
    run would have given back, and is in no sum."""

    window: WindowTold
    as_of: str
    currency: str
    lines: tuple[SavingLine, ...]
    baseline: float
    actual: float
    saved: float
    freed_gpu_hours: float
    dry_run_gpu_hours: float
    dry_run_worth: float
    roi: RoiTold


def show_savings(
    rows: Iterable[BookedSaving], *, span: TimeSpan, seen_until: cost.Second, currency: str, own: Nano, invested: Nano
) -> CostSavingsPage:
    """`own`: what our own pods cost in the window; `invested`: of what is paid by the month, its part."""
    real, dry = list[BookedSaving](), list[BookedSaving]()
    for row in rows:
        (dry if row.is_dry_run else real).append(row)
    lines = _sum_savings(real)
    saved, whole = sum(row.saved for row in real if row.realised), cents.to_cent(sum(row.baseline for row in real))
    return CostSavingsPage(
        window=tell_window(span), as_of=units.rfc3339(seen_until), currency=currency, lines=lines,
        baseline=_in_units(whole), actual=_in_units(whole - cents.to_cent(saved)), saved=money(saved),
        freed_gpu_hours=_hours(sum(line.gpu_hours - line.realised_gpu_hours for line in lines)),
        dry_run_gpu_hours=_hours(sum(counterfactuals.read_details(row).gpu_hours for row in dry)),
        dry_run_worth=money(sum(row.baseline for row in dry)), roi=_tell_roi(saved, own, invested),
    )


def _sum_savings(rows: Sequence[BookedSaving]) -> tuple[SavingLine, ...]:
    """To the cent: each column comes to its sum, and in each line what was paid is the baseline less what was saved."""
    found = {kind: mine for kind in SavingKind if (mine := [row for row in rows if row.kind is kind])}
    baselines = cents.to_cents([sum(row.baseline for row in mine) for mine in found.values()])
    saved = cents.to_cents([sum(row.saved for row in mine if row.realised) for mine in found.values()])
    return tuple(_tell_saving(*each) for each in zip(found, found.values(), baselines, saved, strict=True))


def _tell_saving(kind: SavingKind, mine: Sequence[BookedSaving], baseline: int, saved: int) -> SavingLine:
    """Of amounts in cents."""
    hours = [(row.realised, counterfactuals.read_details(row).gpu_hours) for row in mine]
    return SavingLine(
        type=kind.value, baseline=_in_units(baseline), actual=_in_units(baseline - saved), saved=_in_units(saved),
        gpu_hours=_hours(sum(each for _, each in hours)),
        realised_gpu_hours=_hours(sum(each for realised, each in hours if realised)),
        method=counterfactuals.METHODS[kind],
    )


def _tell_roi(saved: Nano, own: Nano, invested: Nano) -> RoiTold:
    cost_of_us = own + invested
    return RoiTold(
        own_cost=money(cost_of_us), of_it_pods=money(own), of_it_investment=money(invested), saved=money(saved),
        ratio=_ratio((saved - cost_of_us) / cost_of_us) if cost_of_us else None,
    )


# ---- acknowledgements ------------------------------------------------------------------------------------------------


class AckSpend(answers.Shape, frozen=True, kw_only=True):
    """What was booked while somebody kept an idle workload. `is_open`: it is being kept still."""

    ack_id: str
    namespace: str
    kind: str
    name: str
    cost: float
    gpu_hours: float
    unpriced_gpu_hours: float
    since: str
    is_open: bool
    sentence: str


class AckSpendPage(answers.Shape, frozen=True, kw_only=True):
    as_of: str
    currency: str
    items: tuple[AckSpend, ...]
    total: float


def show_acks(
    kept: Iterable[cost.Interval], *, span: TimeSpan, seen_until: cost.Second, currency: str
) -> AckSpendPage:
    """`kept`: intervals that an acknowledgement keeps. The costliest first, those that are open before the others."""
    groups = defaultdict[str, list[cost.Interval]](list)
    for one in kept:
        if one.slice.state is cost.SpendState.held_idle:
            groups[one.slice.ack_id].append(one)
    found = [_tell_ack(ack, some, span, currency) for ack, some in groups.items()]
    total = sum(_cost_of(one, span) for some in groups.values() for one in some)
    return AckSpendPage(
        as_of=units.rfc3339(seen_until), currency=currency, total=money(total),
        items=tuple(sorted(found, key=lambda one: (not one.is_open, -one.cost, one.namespace, one.name))),
    )


def _cost_of(interval: cost.Interval, span: TimeSpan) -> Nano:
    return interval.cost(span.begin, span.end) or 0


def _tell_ack(ack: str, some: Sequence[cost.Interval], span: TimeSpan, currency: str) -> AckSpend:
    key, booked = some[0].slice.key, sum(_cost_of(one, span) for one in some)
    hours = [
        (one.slice.share * (min(one.t1, span.end) - max(one.t0, span.begin)) / cost.GPU_HOUR, one.slice.rate_nano)
        for one in some
    ]
    return AckSpend(
        ack_id=ack, namespace=key.namespace, kind=key.owner_kind, name=key.owner_name, cost=money(booked),
        gpu_hours=_hours(sum(each for each, _ in hours)),
        unpriced_gpu_hours=_hours(sum(each for each, rate in hours if rate is None)),
        since=units.rfc3339(min(max(one.t0, span.begin) for one in some)),
        is_open=any(one.is_open for one in some), sentence=say_ack(booked, currency),
    )


def say_ack(booked: Nano, currency: str) -> str:
    return f"this acknowledgement has cost {money(booked):,.2f} {currency}"


# ---- prices ----------------------------------------------------------------------------------------------------------


class PriceTold(answers.Shape, frozen=True, kw_only=True):
    """A row of the price book that the ledger names. `is_used`: by what runs now. `age_days` None: nobody knows."""

    price_id: str
    provider: str
    region: str
    zone: str
    instance_type: str
    gpu_model: str
    gpus: int | None
    capacity_type: str
    unit: Literal["node_hour", "gpu_hour"]
    price_per_hour: str
    currency: str
    source: str
    retrieved_at: str | None
    age_days: float | None
    is_stale: bool
    is_estimated: bool
    is_used: bool


class UnpricedNow(answers.Shape, frozen=True, kw_only=True):
    """GPUs that run now and have no price. Not `is_model_known`: its name is in no list of ours, as it stands here."""

    instance_type: str
    gpu_model: str
    is_model_known: bool
    region: str
    capacity_type: str
    gpus: float
    nodes: int


class PricesPage(answers.Shape, frozen=True, kw_only=True):
    as_of: str
    currency: str
    max_age_days: float
    items: tuple[PriceTold, ...]
    unpriced: tuple[UnpricedNow, ...]


def show_prices(
    prices: Iterable[BookedPrice], opened: Sequence[cost.Interval], *, at: cost.Second, seen_until: cost.Second,
    currency: str, longest: units.Seconds,
) -> PricesPage:
    """`opened`: what runs now. Those that are used first."""
    used = {one.slice.price_id for one in opened}
    items = [
        PriceTold(
            price_id=one.price_id, provider=one.provider, region=one.region, zone=one.zone,
            instance_type=one.instance_type, gpu_model=one.gpu_model, gpus=one.gpus,
            capacity_type=one.capacity_type.value, unit=one.unit.value, price_per_hour=one.price_per_hour,
            currency=one.currency, source=one.source, retrieved_at=answers.instant(one.retrieved_at),
            age_days=_age(one, at), is_stale=one.is_stale(at, longest), is_estimated=one.is_estimated,
            is_used=one.price_id in used,
        )
        for one in prices
    ]
    ordered = sorted(items, key=lambda one: (not one.is_used, one.provider, one.instance_type, one.capacity_type))
    return PricesPage(
        as_of=units.rfc3339(seen_until), currency=currency, max_age_days=round(longest / cost.DAY, 2),
        items=tuple(ordered), unpriced=_find_unpriced(opened),
    )


def _find_unpriced(opened: Iterable[cost.Interval]) -> tuple[UnpricedNow, ...]:
    shares, nodes = defaultdict[tuple[str, ...], int](int), defaultdict[tuple[str, ...], set[str]](set)
    for one in opened:
        key = one.slice.key
        if one.slice.rate_nano is None:
            of = key.instance_type, key.gpu_model, key.region, key.capacity_type.value
            shares[of] += one.slice.share
            nodes[of].add(key.node)
    most_first = sorted(shares.items(), key=lambda each: (-each[1], each[0]))
    return tuple(
        UnpricedNow(
            instance_type=of[0], gpu_model=of[1], is_model_known=gpus.find(of[1]) is not None, region=of[2],
            capacity_type=of[3], gpus=share / cost.WHOLE, nodes=len(nodes[of]),
        )
        for of, share in most_first
    )


# ---- the summary -----------------------------------------------------------------------------------------------------


class CostSummaryPage(answers.Shape, frozen=True, kw_only=True):
    """Money on one page. `per_hour`: of what runs now; `projected`: the month, if it goes on as its days so far, None
    in its first six hours. `lag_seconds`: how far the books are behind."""

    as_of: str
    lag_seconds: float
    currency: str
    per_hour: float
    unpriced_gpus: float
    today: float
    month_to_date: float
    projected: float | None
    week: "WeekTold"
    saved_this_month: float
    freed_gpu_hours_this_month: float
    open_acks: int
    open_acks_cost: float
    stale_prices: int
    trouble: str | None


class WeekTold(answers.Shape, frozen=True, kw_only=True):
    """The last seven days, by what they were. `change`: against the seven before."""

    total: float
    used: float
    allocated_unused: float
    held_idle: float
    use_unknown: float
    unallocated: float
    unpriced_gpu_hours: float
    change: float | None
    days: tuple[float, ...]
