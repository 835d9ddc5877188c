"""Makes a digest: what became of the GPUs in some days, of what was written down and of what stands now.

In: the audit, the latest good cycle, the window; what each workload paid for a GPU-hour by the ledger, or where no
books are kept list prices. Out: a Digest (model/digest.py).
Invariant: what nobody saw is said (`health`) and never counted as quiet; money only where a price is known. Of two
sources of prices one counts: where books are kept no list price is asked.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec

from fallow.account import audit, savings
from fallow.clients import errors
from fallow.model import cluster, cost, decision, marks, price_book, units
from fallow.model.cost import Amounts, CostQuery, CostSum
from fallow.model.digest import DataHealth, Digest, DigestAck, DigestCounts, DigestSavings, IdlePlace
from fallow.model.history import Happened, HeldIdle, Levels
from fallow.model.units import DAY, HOUR, Instant, Seconds

LONGEST: Final[Seconds] = 31 * DAY  # so far back goes what was held idle
MOST_TOP: Final = 100
Sums: TypeAlias = Callable[[CostQuery], Awaitable[Sequence[CostSum]]]  # of the ledger
_MOST_ACKS: Final = 50
_WORKLOAD: Final = tuple(map(cost.read_dimension, ("namespace", "controllerKind", "controller")))


class DigestAsk(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for. `top`: how many namespaces and workloads are named."""

    since: Instant
    until: Instant
    top: int = 10
    cluster_name: str = ""
    is_dry: bool
    interval: Seconds = audit.LEVELS_EVERY  # between cycles
    book: price_book.ModelPrices = msgspec.field(default_factory=lambda: price_book.LIST)


Name = tuple[str, str | None, str | None]  # namespace, kind, name


class PaidRates(msgspec.Struct, frozen=True):
    """What each workload paid for a GPU-hour, by the books; one that is not in it has no price that is known."""

    currency: str
    by_workload: Mapping[Name, float] = {}


async def read_paid(read: Sums, currency: str, since: Instant, until: Instant) -> PaidRates:
    """A workload of which an hour has no price has none; books that cannot be read know nothing."""
    try:
        sums = await read(CostQuery(begin=int(since), end=int(until), by=_WORKLOAD))
    except errors.ClientError:
        return PaidRates(currency)
    return PaidRates(currency, {
        one.key: one.total.cost / cost.UNIT / _gpu_hours(one.total)  # type: ignore[misc]
        for one in sums if one.total.gpu_micro_seconds and not one.total.unpriced
    })


def _gpu_hours(amounts: Amounts) -> float:
    return amounts.gpu_micro_seconds / cost.GPU_HOUR


class _Prices(NamedTuple):
    """Of a GPU-hour; `paid` None: no books are kept."""

    book: price_book.ModelPrices
    paid: PaidRates | None

    def find(self, each: HeldIdle) -> float | None:
        if self.paid is not None:
            return self.paid.by_workload.get((each.namespace, each.kind, each.name))
        price = price_book.find_by_model(each.model, self.book) if each.model else None
        return None if price is None else float(price)


async def make(
    kept: audit.Audit, latest: decision.Cycle | None, asked: DigestAsk, paid: PaidRates | None = None
) -> Digest:
    """`paid` None: no books are kept."""
    plan, seen = (latest.plan, latest.snapshot) if latest else (None, None)
    held = await kept.held(asked.since, asked.until)
    counted = await kept.count(asked.since, asked.until)
    spans = await savings.read_spans(
        kept, asked.since, asked.until, standing=find_standing(seen, is_dry=asked.is_dry),
        is_dry=asked.is_dry,
    )
    levels, prices = await kept.levels(asked.since, asked.until), _Prices(asked.book, paid)
    return Digest(
        cluster=asked.cluster_name or "this cluster", since=units.rfc3339(asked.since),
        until=units.rfc3339(asked.until), currency=price_book.LIST_CURRENCY if paid is None else paid.currency,
        counts=_count(counted, len(spans) if asked.is_dry else 0),
        idle=_sum_up(held, prices, ("", None, None)), namespaces=_rank(held, asked.top, prices, by_workload=False),
        workloads=_rank(held, asked.top, prices, by_workload=True), acks=_find_acks(plan, seen, held, prices),
        savings=_save(spans, asked), health=_find_health(levels, counted, latest, asked),
    )


def find_standing(seen: cluster.Snapshot | None, *, is_dry: bool) -> set[str]:
    """Uids of what rests now by a pause of ours; of a dry run, of all that is there."""
    workloads = seen.workloads if seen else ()
    return {each.ref.uid for each in workloads if is_dry or marks.paused_at(each) is not None}


def _count(counted: Mapping[Happened, int], would: int) -> DigestCounts:
    def total(*types: Happened) -> int:
        return sum(counted.get(each, 0) for each in types)

    return DigestCounts(
        notices=total(Happened.notified), paused=total(Happened.paused), would_pause=would,
        resumed=total(*savings.ENDS), regretted=total(Happened.regretted), kept=total(Happened.kept),
        failed=total(Happened.failed, Happened.refused),
    )


def _rank(held: Sequence[HeldIdle], top: int, prices: _Prices, *, by_workload: bool) -> tuple[IdlePlace, ...]:
    places = defaultdict[Name, list[HeldIdle]](list)
    for each in held:
        places[(each.namespace, each.kind, each.name) if by_workload else (each.namespace, None, None)].append(each)
    found = [_sum_up(some, prices, name) for name, some in places.items()]
    found.sort(key=lambda place: (-place.gpu_hours, place.namespace, place.name or ""))
    return tuple(found[:top])


def _sum_up(held: Iterable[HeldIdle], prices: _Prices, name: Name) -> IdlePlace:
    some, (namespace, kind, called) = list(held), name
    return IdlePlace(
        namespace=namespace, kind=kind, name=called, gpu_hours=_hours(each.idle for each in some),
        kept_gpu_hours=_hours(each.kept for each in some),
        cost=_price(((each, each.idle) for each in some), prices),
    )


def _hours(seconds: Iterable[Seconds]) -> float:
    return round(sum(seconds) / HOUR, 2)


def _price(held: Iterable[tuple[HeldIdle, Seconds]], prices: _Prices) -> float | None:
    """Of GPU-seconds; None: there is one without a price."""
    total = 0.0
    for each, seconds in held:
        price = prices.find(each)
        if price is None:
            return None
        total += price * seconds / HOUR
    return round(total, 2)


def _find_acks(
    plan: decision.Plan | None, seen: cluster.Snapshot | None, held: Sequence[HeldIdle], prices: _Prices
) -> tuple[DigestAck, ...]:
    """Those that stand, and cost most first."""
    if plan is None or seen is None:
        return ()
    spent = defaultdict[Name, list[tuple[HeldIdle, Seconds]]](list)
    for each in held:
        spent[each.namespace, each.kind, each.name].append((each, each.kept))
    found = []
    for index, workload in enumerate(seen.workloads):
        space, longest = seen.namespaces.known.get(workload.ref.namespace), plan.findings[index].rule.consent.max_ack
        ack = marks.find_ack(workload, space, longest, plan.at)
        if ack is not None:
            ref = workload.ref
            some = spent[ref.namespace, ref.kind, ref.name]
            found.append(DigestAck(
                namespace=ref.namespace, kind=ref.kind, name=ref.name, by=ack.by, until=units.rfc3339(ack.until),
                reason=ack.reason, gpu_hours=_hours(seconds for _, seconds in some), cost=_price(some, prices),
            ))
    found.sort(key=lambda each: (-each.gpu_hours, each.namespace, each.name))
    return tuple(found[:_MOST_ACKS])


def _save(spans: Collection[savings.PauseSpan], asked: DigestAsk) -> DigestSavings:
    begin, end = asked.since, asked.until
    priced = [one.per_hour * one.hours(begin, end) for one in spans if one.per_hour is not None]
    return DigestSavings(
        mode="dry-run" if asked.is_dry else "acting", gpu_hours=savings.hours_between(spans, begin, end),
        cost=round(sum(priced), 2) if priced else None,
        unpriced_gpu_hours=savings.hours_between((one for one in spans if one.per_hour is None), begin, end),
        pauses=len(spans), wrong=sum(one.is_wrong for one in spans) if asked.is_dry else None,
    )


def _find_health(
    levels: Sequence[Levels], counted: Mapping[Happened, int], latest: decision.Cycle | None, asked: DigestAsk
) -> DataHealth:
    held = sum(each.busy + each.idle + each.kept + each.unknown for each in levels)
    step = max(audit.LEVELS_EVERY, asked.interval)
    seen = len(levels) * step / max(asked.until - asked.since, step)
    return DataHealth(
        seen_share=round(min(1.0, seen), 3),
        known_share=round(1 - sum(each.unknown for each in levels) / held, 3) if held else None,
        no_decision=counted.get(Happened.no_decision, 0),
        trouble=latest.failure or None if latest else "no cycle has ended yet",
    )
