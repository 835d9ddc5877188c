"""What workloads held idle in some days, and what pauses gave back, for a digest: from the books where they are kept.

In: a ledger, or where none is kept the audit's hours and a list of prices. Out: HeldHours of each workload, and a
GivenBack. By the books an hour is idle from when the silence began, as on every page of costs; the audit counts from
the verdict on, so that who tells of it says so.
Invariant: of two sources one counts. Money is in cents that add up, by the books those of a cost report. What has no
price is counted in hours beside the money, never as 0 of it.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from fallow.account import counterfactuals, reports
from fallow.account.ledger import Ledger
from fallow.model import cost, money, price_book
from fallow.model.cost import Amounts, BookedSaving, CostQuery, CostSum, Interval, SavingKind, SpendState
from fallow.model.history import HeldIdle
from fallow.model.units import HOUR, Instant, Seconds

Name: TypeAlias = tuple[str, str | None, str | None]  # namespace, kind, name
Sums: TypeAlias = Callable[[CostQuery], Awaitable[Sequence[CostSum]]]  # of the ledger
_WORKLOAD = tuple(map(cost.read_dimension, ("namespace", "controllerKind", "controller")))


class PricedHours(msgspec.Struct, frozen=True, kw_only=True):
    """GPU-hours. `unpriced`: of these, without a price; `cost`: of the others."""

    hours: float = 0.0
    unpriced: float = 0.0
    cost: float = 0.0

    def __add__(self, other: "PricedHours") -> "PricedHours":
        return PricedHours(
            hours=self.hours + other.hours, unpriced=self.unpriced + other.unpriced, cost=self.cost + other.cost
        )

    @property
    def known_cost(self) -> float | None:
        """None: nothing of it has a price."""
        return round(self.cost, 2) if self.unpriced < self.hours or not self.hours else None


class HeldHours(msgspec.Struct, frozen=True, kw_only=True):
    """Of one workload. `kept`: of `all`, under an acknowledgement."""

    name: Name
    all: PricedHours = PricedHours()
    kept: PricedHours = PricedHours()


class BackHours(msgspec.Struct, frozen=True, kw_only=True):
    """What pauses gave back. `taken`: of it, somebody else held it or its node went: only that is money. `dry`: what a
    dry run would have given back, at the price of all of it."""

    given: PricedHours = PricedHours()
    taken: PricedHours = PricedHours()
    dry: PricedHours = PricedHours()


class BookedDays(msgspec.Struct, frozen=True, kw_only=True):
    """What the books have of some days. `idle`: by workload; `places`: by namespace. `back` None: what was given back
    is not worked out yet; `until`: up to when it is, None where that was before we started."""

    currency: str
    idle: tuple[HeldHours, ...]
    places: tuple[HeldHours, ...]
    back: BackHours | None
    until: Instant | None


# ---- from the books --------------------------------------------------------------------------------------------------


async def read_booked(
    ledger: Ledger, read: Sums, currency: str, since: Instant, until: Instant, saved_until: Instant | None
) -> BookedDays:
    """`read`: sums of the ledger, with whatever else is counted as cost. Raises errors.ClientError."""
    begin, end = int(since), int(until)
    sums = await read(CostQuery(begin=begin, end=end, by=_WORKLOAD))
    acked = await ledger.read_acked(begin, end)
    rows = await ledger.read_savings(begin // cost.DAY * cost.DAY, end)
    idle = find_idle(sums, acked, begin, end)
    return BookedDays(
        currency=currency, idle=idle, places=_find_places(idle, sums), back=find_given_back(rows, saved_until),
        until=saved_until,
    )


def find_idle(
    sums: Iterable[CostSum], acked: Iterable[Interval], begin: cost.Second, end: cost.Second
) -> tuple[HeldHours, ...]:
    kept = defaultdict[Name, PricedHours](PricedHours)
    for one in acked:
        key = one.slice.key
        if one.slice.state is SpendState.held_idle:
            kept[key.namespace, key.owner_kind, key.owner_name] += _of_interval(one, begin, end)
    every = list(sums)
    cents = _read_cents(every)
    return tuple(
        HeldHours(name=_name(one.key), all=_of_amounts(idle, cents[one.key]), kept=kept[_name(one.key)])
        for one in every if (idle := one.parts.get(SpendState.held_idle)) and idle.gpu_micro_seconds
    )


def _find_places(idle: Iterable[HeldHours], sums: Iterable[CostSum]) -> tuple[HeldHours, ...]:
    """What `fallow cost` says of each namespace: it is no sum of rounded workloads."""
    cents = _read_cents([msgspec.structs.replace(one, key=one.key[:1]) for one in sums])
    found = (msgspec.structs.replace(each, all=msgspec.structs.replace(each.all, cost=cents[(each.name[0],)]))
             for each in add_up_by_namespace(idle))
    return tuple(found)


def _read_cents(sums: Sequence[CostSum]) -> dict[tuple[str, ...], float]:
    made = reports.make_report(sums, reports.ReportAsk(by=(), begin=0, end=1, currency=""))
    return {row.key: float(row.held_idle) for row in made.rows}


def _name(key: Sequence[str]) -> Name:
    namespace, kind, name = key
    return namespace, kind, name


def _of_amounts(idle: Amounts, paid: float) -> PricedHours:
    return PricedHours(
        hours=idle.gpu_micro_seconds / cost.GPU_HOUR, unpriced=idle.unpriced / cost.GPU_HOUR, cost=paid,
    )


def _of_interval(one: Interval, begin: cost.Second, end: cost.Second) -> PricedHours:
    hours = one.slice.share * max(0, min(one.t1, end) - max(one.t0, begin)) / cost.GPU_HOUR
    booked = one.cost(begin, end)
    return PricedHours(hours=hours, unpriced=hours if booked is None else 0.0, cost=(booked or 0) / cost.UNIT)


def find_given_back(rows: Sequence[BookedSaving], saved_until: Instant | None) -> BackHours | None:
    """None: there is nothing because nobody has worked it out yet, which is not nothing."""
    return None if not rows and saved_until is None else add_given_back(rows)


def add_given_back(rows: Iterable[BookedSaving]) -> BackHours:
    """Of pauses: what sharing, spot prices and nodes saved is told apart."""
    back = BackHours()
    for row in rows:
        if row.kind is not SavingKind.waste:
            continue
        hours = counterfactuals.read_details(row).gpu_hours
        worth = row.baseline if row.is_dry_run else row.saved
        one = PricedHours(hours=hours, unpriced=0.0 if row.baseline else hours, cost=worth / cost.UNIT)
        if row.is_dry_run:
            back = msgspec.structs.replace(back, dry=back.dry + one)
        else:
            taken = one if row.realised else PricedHours()
            back = msgspec.structs.replace(back, given=back.given + one, taken=back.taken + taken)
    return back


# ---- where none are kept ---------------------------------------------------------------------------------------------


def find_in_audit(held: Iterable[HeldIdle], book: price_book.ModelPrices) -> tuple[HeldHours, ...]:
    found: Mapping[Name, list[HeldIdle]] = defaultdict(list)
    for each in held:
        found[each.namespace, each.kind, each.name].append(each)
    every = [
        HeldHours(
            name=name, all=_add(_of_held(each, each.idle, book) for each in some),
            kept=_add(_of_held(each, each.kept, book) for each in some),
        )
        for name, some in found.items()
    ]
    cents = money.to_cents([round(each.all.cost * cost.UNIT) for each in every])
    return tuple(
        msgspec.structs.replace(each, all=msgspec.structs.replace(each.all, cost=paid / 100))
        for each, paid in zip(every, cents, strict=True)
    )


def _of_held(each: HeldIdle, seconds: Seconds, book: price_book.ModelPrices) -> PricedHours:
    price, hours = price_book.find_by_model(each.model, book) if each.model else None, seconds / HOUR
    if price is None:
        return PricedHours(hours=hours, unpriced=hours)
    return PricedHours(hours=hours, cost=float(price) * hours)


def _add(some: Iterable[PricedHours]) -> PricedHours:
    return sum(some, PricedHours())


def add_up(some: Iterable[HeldHours], name: Name) -> HeldHours:
    every = list(some)
    return HeldHours(name=name, all=_add(each.all for each in every), kept=_add(each.kept for each in every))


def add_up_by_namespace(idle: Iterable[HeldHours]) -> list[HeldHours]:
    places = defaultdict[str, list[HeldHours]](list)
    for each in idle:
        places[each.name[0]].append(each)
    return [add_up(some, (namespace, None, None)) for namespace, some in places.items()]
