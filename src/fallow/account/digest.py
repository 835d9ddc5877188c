"""Makes a digest: what became of the GPUs in some days, of what was written down and of what stands now.

In: the audit, the latest good cycle, the window; what the books have of it, or where none are kept list prices. Out: a
Digest (model/digest.py).
Invariant: what nobody saw is said (`health`) and never counted as quiet; money only where a price is known. Of two
sources one counts: where books are kept, hours held idle and given back are theirs, as on every page of costs.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from fallow.account import audit, held_idle, savings
from fallow.account.held_idle import BookedDays, HeldHours, Name
from fallow.model import cluster, decision, marks, price_book, units
from fallow.model.digest import DataHealth, Digest, DigestAck, DigestCounts, DigestSavings, IdlePlace
from fallow.model.history import Happened, Levels
from fallow.model.units import DAY, Instant, Seconds

LONGEST: Final[Seconds] = 31 * DAY  # so far back goes what was held idle
MOST_TOP: Final = 100
_MOST_ACKS: Final = 50


class DigestAsk(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for. `top`: how many namespaces and workloads are named."""

    since: Instant
    until: Instant
    top: int = 10
    cluster_name: str = ""
    is_dry: bool
    interval: Seconds = audit.LEVELS_EVERY  # between cycles
    book: price_book.ModelPrices = msgspec.field(default_factory=lambda: price_book.LIST)


async def make(
    kept: audit.Audit, latest: decision.Cycle | None, asked: DigestAsk, booked: BookedDays | None = None
) -> Digest:
    """`booked` None: no books are kept."""
    plan, seen = (latest.plan, latest.snapshot) if latest else (None, None)
    idle = await _find_idle(kept, asked, booked)
    places = held_idle.add_up_by_namespace(idle) if booked is None else booked.places
    counted = await kept.count(asked.since, asked.until)
    spans = await savings.read_spans(
        kept, asked.since, asked.until, standing=find_standing(seen, is_dry=asked.is_dry),
        is_dry=asked.is_dry,
    )
    levels = await kept.levels(asked.since, asked.until)
    return Digest(
        cluster=asked.cluster_name or "this cluster", since=units.rfc3339(asked.since),
        until=units.rfc3339(asked.until), source="audit" if booked is None else "books",
        currency=price_book.LIST_CURRENCY if booked is None else booked.currency,
        counts=_count(counted, len(spans) if asked.is_dry else 0),
        idle=_tell(held_idle.add_up(idle, ("", None, None))), namespaces=_rank(places, asked.top),
        workloads=_rank(idle, asked.top), acks=_find_acks(plan, seen, idle),
        savings=_save(spans, asked) if booked is None else _save_booked(spans, asked, booked),
        health=_find_health(levels, counted, latest, asked),
    )


async def _find_idle(kept: audit.Audit, asked: DigestAsk, booked: BookedDays | None) -> Sequence[HeldHours]:
    if booked is not None:
        return booked.idle
    return held_idle.find_in_audit(await kept.held(asked.since, asked.until), asked.book)


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


def _rank(idle: Sequence[HeldHours], top: int) -> tuple[IdlePlace, ...]:
    ordered = sorted(idle, key=lambda each: (-each.all.hours, each.name[0], each.name[2] or ""))
    return tuple(map(_tell, ordered[:top]))


def _tell(idle: HeldHours) -> IdlePlace:
    namespace, kind, name = idle.name
    return IdlePlace(
        namespace=namespace, kind=kind, name=name, gpu_hours=round(idle.all.hours, 2),
        kept_gpu_hours=round(idle.kept.hours, 2), cost=idle.all.known_cost,
        unpriced_gpu_hours=round(idle.all.unpriced, 2),
    )


def _find_acks(
    plan: decision.Plan | None, seen: cluster.Snapshot | None, idle: Sequence[HeldHours]
) -> tuple[DigestAck, ...]:
    """Those that stand, and cost most first."""
    if plan is None or seen is None:
        return ()
    spent: dict[Name, HeldHours] = {each.name: each for each in idle}
    found = []
    for index, workload in enumerate(seen.workloads):
        space, longest = seen.namespaces.known.get(workload.ref.namespace), plan.findings[index].rule.consent.max_ack
        ack = marks.find_ack(workload, space, longest, plan.at)
        if ack is not None:
            name = workload.ref.namespace, workload.ref.kind, workload.ref.name
            found.append(_tell_ack(ack, spent.get(name) or HeldHours(name=name)))
    found.sort(key=lambda each: (-each.gpu_hours, each.namespace, each.name))
    return tuple(found[:_MOST_ACKS])


def _tell_ack(ack: marks.OpenAck, idle: HeldHours) -> DigestAck:
    namespace, kind, name = idle.name
    return DigestAck(
        namespace=namespace, kind=kind or "", name=name or "", by=ack.by, until=units.rfc3339(ack.until),
        reason=ack.reason, gpu_hours=round(idle.kept.hours, 2), cost=idle.kept.known_cost,
    )


def _save(spans: Collection[savings.PauseSpan], asked: DigestAsk) -> DigestSavings:
    begin, end = asked.since, asked.until
    priced = [one.per_hour * one.hours(begin, end) for one in spans if one.per_hour is not None]
    return DigestSavings(
        mode="dry-run" if asked.is_dry else "acting", gpu_hours=savings.hours_between(spans, begin, end),
        taken_gpu_hours=None, until=units.rfc3339(end),
        cost=round(sum(priced), 2) if priced else None,
        unpriced_gpu_hours=savings.hours_between((one for one in spans if one.per_hour is None), begin, end),
        pauses=len(spans), wrong=sum(one.is_wrong for one in spans) if asked.is_dry else None,
    )


def _save_booked(spans: Collection[savings.PauseSpan], asked: DigestAsk, booked: BookedDays) -> DigestSavings:
    """Money is what was taken: the rest is capacity, and no money."""
    back, is_dry = booked.back or held_idle.BackHours(), asked.is_dry
    given, paid = (back.dry, back.dry) if is_dry else (back.given, back.taken)
    return DigestSavings(
        mode="dry-run" if is_dry else "acting", cost=paid.known_cost,
        gpu_hours=None if booked.back is None else round(given.hours, 2),
        until=None if booked.until is None else units.rfc3339(booked.until),
        taken_gpu_hours=None if is_dry or booked.back is None else round(back.taken.hours, 2),
        unpriced_gpu_hours=round(paid.unpriced, 2), pauses=len(spans),
        wrong=sum(one.is_wrong for one in spans) if is_dry else None,
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
