"""What something would have cost and did not: pauses, spot prices, sharing, nodes that went. Measured, never assumed.

In: what we did (spans of pauses, nodes removed, GPUs made shareable) and what the ledger has of the parts concerned.
Out: BookedSavings, a row for each UTC day, each with its method in `details`; the same row again has the same id.
A second of a freed part is *realised* where somebody else held that part, or its node was gone while we looked at the
cluster; then it is money, at the price that was paid. Else it is freed capacity: GPU-hours, and no money.
Invariant: a GPU-second is claimed once, by the pause before the node; a dry run, a regret and an unknown price claim
nothing.
"""

import hashlib
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeAlias

import msgspec

from fallow.account.savings import PauseSpan
from fallow.model.cost import (
    DAY,
    GPU_HOUR,
    HOUR,
    WHOLE,
    BookedSaving,
    CapacityType,
    CostKey,
    Interval,
    Micro,
    Nano,
    SavingKind,
    Second,
    SpendState,
    cost_of,
    divide,
)

Stretch: TypeAlias = tuple[Second, Second]  # [begin, end)
OnDemand: TypeAlias = Callable[[CostKey, Second], Nano | None]  # of a whole GPU, an hour; None: nobody knows

LONGEST_NODE: Final[Second] = 24 * HOUR  # a node that we removed saves no longer than this
_BEFORE: Final[Second] = 15 * 60  # a workload that was paused held its parts at most so long before

METHODS: Final = {
    SavingKind.waste: "share x price from when its pods were gone until it came back, was deleted, or 30 days",
    SavingKind.spot: "on-demand price of that type, region and time, less what was paid",
    SavingKind.sharing: "(pods on one GPU - 1) x price of the GPU while they overlap",
    SavingKind.autoscaling: "price of a removed node until as much is added, at most 24 h, less what pauses claimed",
}


class FreedPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part that a pause gave back, from when its pod was gone. `rate`: of this share; None: it has no price."""

    node: str
    gpu: str
    slot: str
    share: int
    rate: Nano | None
    begin: Second
    end: Second

    def is_of(self, interval: Interval) -> bool:
        """Of a whole GPU all parts are its parts, however it is divided later."""
        what = interval.slice
        return what.gpu == self.gpu and (self.share == WHOLE or what.slot == self.slot)

    def overlaps(self, other: "FreedPart") -> bool:
        return other.gpu == self.gpu and (WHOLE in (self.share, other.share) or other.slot == self.slot)


class NodeClaim(msgspec.Struct, frozen=True):
    """What is claimed of a node that was gone, so that nobody claims it again: money, and a share of its GPUs."""

    node: str
    begin: Second
    end: Second
    nano: Nano
    share: Micro


class RemovedNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node that we removed. `rate`: of the whole node, an hour. `until`: as much was added again, or now."""

    node: str
    rate: Nano | None
    at: Second
    until: Second
    gpus: int = 0


class _Day(msgspec.Struct):
    """Micro-GPU seconds and money of one day."""

    realised: int = 0
    realised_nano: Nano = 0
    freed: int = 0
    freed_nano: Nano = 0


# ---- waste -----------------------------------------------------------------------------------------------------------


def find_freed(span: PauseSpan, held: Iterable[Interval]) -> list[FreedPart]:
    """The parts that it held when it was paused. `held`: intervals around then. A part that none of them tells of is
    not known, and nothing is claimed for it."""
    if span.ref is None or span.is_regretted or span.is_wrong:
        return []
    asked, last = int(span.paused_at), dict[tuple[str, str], Interval]()
    for interval in sorted((one for one in held if _is_own(one, span)), key=lambda one: one.t0):
        place = interval.slice.gpu, interval.slice.slot
        is_then = interval.t0 <= asked and interval.t1 > asked - _BEFORE
        if is_then or (place in last and _goes_on(last[place], interval)):
            last[place] = interval
    return [
        FreedPart(
            node=one.slice.key.node, gpu=one.slice.gpu, slot=one.slice.slot, share=one.slice.share,
            rate=one.slice.rate_nano, begin=max(one.t1, asked), end=int(span.ends),
        )
        for one in last.values() if max(one.t1, asked) < span.ends
    ]


def leave_out(part: FreedPart, others: Iterable[FreedPart]) -> Iterator[FreedPart]:
    """What it may claim where somebody took it, and was paused on it later: while that pause lasts it is that one's,
    also where only a part of it was. Too little is claimed rather than a second twice."""
    later = sorted((one.begin, one.end) for one in others if one.begin > part.begin and part.overlaps(one))
    at = part.begin
    for begin, end in (*later, (part.end, part.end)):
        if at < min(begin, part.end):
            yield msgspec.structs.replace(part, begin=at, end=min(begin, part.end))
        at = max(at, end)


def _goes_on(before: Interval, after: Interval) -> bool:
    """The same pod on the same part, in the interval that follows: it was still ending."""
    return after.slice.pod_uid == before.slice.pod_uid and after.t0 <= before.t1


def book_pause(
    span: PauseSpan, held: Sequence[Interval], after: Sequence[Interval], watched: Sequence[Stretch], *,
    since: Second = 0, is_dry: bool = False, others: Sequence[FreedPart] = (),
) -> tuple[list[BookedSaving], list[NodeClaim]]:
    """`held`: intervals around the pause. `after`: all of the nodes concerned, from then on. `watched`: when we looked
    at the cluster at all. `since`: what was before then is not asked for. `others`: what all pauses gave back
    there. A dry run is told as freed, whatever became of it: nothing was given back."""
    days, claims = defaultdict[Second, _Day](_Day), list[NodeClaim]()
    for found in (one for whole in find_freed(span, held) for one in leave_out(whole, others)):
        part = msgspec.structs.replace(found, begin=max(found.begin, since))
        for interval in (one for one in after if part.is_of(one) and not _is_own(one, span)):
            is_free = interval.slice.state is SpendState.unallocated
            share = min(part.share, interval.slice.share)
            rate = _rate_of(interval, share, part)
            for day, begin, end in _by_day(max(interval.t0, part.begin), min(interval.t1, part.end)):
                _add(days[day], share, rate, begin, end, is_realised=not is_free)
        for begin, end in _find_gone(part, after, watched):
            claims.append(NodeClaim(part.node, begin, end, cost_of(part.rate or 0, end - begin), part.share))
            for day, first, last in _by_day(begin, end):
                _add(days[day], part.share, part.rate, first, last, is_realised=True)
    return list(_make_rows(span, days, is_dry=is_dry)), claims


def _is_own(interval: Interval, span: PauseSpan) -> bool:
    key, ref = interval.slice.key, span.ref
    return ref is not None and (key.namespace, key.owner_kind, key.owner_name) == (ref.namespace, ref.kind, ref.name)


def _rate_of(interval: Interval, share: int, part: FreedPart) -> Nano | None:
    """As it is paid then; where that is not known, as it was."""
    what = interval.slice
    if what.rate_nano is not None:
        return what.rate_nano * share // what.share
    return None if part.rate is None else part.rate * share // part.share


def _add(day: _Day, share: int, rate: Nano | None, begin: Second, end: Second, *, is_realised: bool) -> None:
    micro, nano = share * (end - begin), cost_of(rate or 0, end - begin)
    if is_realised:
        day.realised += micro
        day.realised_nano += nano
    else:
        day.freed += micro
        day.freed_nano += nano


def _find_gone(part: FreedPart, after: Iterable[Interval], watched: Sequence[Stretch]) -> Iterator[Stretch]:
    """When its node had no part at all, and we looked."""
    there = sorted((one.t0, one.t1) for one in after if one.slice.key.node == part.node)
    at = part.begin
    gaps = list[Stretch]()
    for begin, end in there:
        if begin > at:
            gaps.append((at, min(begin, part.end)))
        at = max(at, end)
    gaps.append((at, part.end))
    for first, last in gaps:
        for begin, end in watched:
            if max(first, begin) < min(last, end):
                yield max(first, begin), min(last, end)


def _make_rows(span: PauseSpan, days: dict[Second, _Day], *, is_dry: bool) -> Iterator[BookedSaving]:
    assert span.ref is not None
    named = f"{span.ref.kind}/{span.ref.name}"
    seed = f"{span.uid}\n{int(span.paused_at)}"
    for at, day in sorted(days.items()):
        details = {"workload": named, "policy": span.policy}
        if day.realised and not is_dry:
            yield _row(
                SavingKind.waste, seed, at, span.ref.namespace, day.realised, baseline=day.realised_nano, actual=0,
                details=details, realised=True,
            )
        freed, nano = (day.freed + day.realised, day.freed_nano + day.realised_nano) if is_dry else (
            day.freed, day.freed_nano
        )
        if freed:
            yield _row(
                SavingKind.waste, seed, at, span.ref.namespace, freed, baseline=nano, actual=nano, details=details,
                realised=False, is_dry_run=is_dry,
            )


# ---- spot ------------------------------------------------------------------------------------------------------------


def book_spot(intervals: Iterable[Interval], on_demand: OnDemand, begin: Second, end: Second) -> list[BookedSaving]:
    """What spot nodes cost less than they would on demand; where that price is not known nothing is claimed."""
    found = defaultdict[tuple[Second, str], list[int]](lambda: [0, 0, 0])
    for interval in intervals:
        what = interval.slice
        if what.key.capacity_type is not CapacityType.spot or what.rate_nano is None:
            continue
        whole = on_demand(what.key, max(interval.t0, begin))
        if whole is None:
            continue
        for day, first, last in _by_day(max(interval.t0, begin), min(interval.t1, end)):
            sums = found[day, what.key.namespace]
            sums[0] += cost_of(whole * what.share // WHOLE, last - first)
            sums[1] += cost_of(what.rate_nano, last - first)
            sums[2] += what.share * (last - first)
    return [
        _row(SavingKind.spot, "", day, namespace, micro, baseline=baseline, actual=actual, details={}, realised=True)
        for (day, namespace), (baseline, actual, micro) in sorted(found.items()) if baseline > actual
    ]


# ---- sharing ---------------------------------------------------------------------------------------------------------


def book_sharing(gpu: str, mine: Sequence[Interval], begin: Second, end: Second) -> list[BookedSaving]:
    """While several pods were on one GPU that we made share: each beyond the first would have had its own. Each would
    have paid for a GPU, and pays its equal part of one. `mine`: what these pods held of it."""
    cuts = (at for one in mine for at in (one.t0, one.t1) if begin < at < end)
    found = defaultdict[tuple[Second, str], list[int]](lambda: [0, 0, 0])
    for first, last in itertools.pairwise(sorted({begin, end, *cuts})):
        there = [one for one in mine if one.t0 <= first and one.t1 >= last]
        rate = next((one.slice.rate_nano * WHOLE // one.slice.share for one in there if one.slice.rate_nano), None)
        pods = Counter({one.slice.pod_uid: one.slice.key.namespace for one in there}.values())
        if rate is not None and pods.total() > 1:
            _add_sharing(found, rate, pods, first, last)
    return [
        _row(SavingKind.sharing, gpu, day, namespace, micro, baseline=baseline, actual=actual, details={"gpu": gpu},
             realised=True)
        for (day, namespace), (baseline, actual, micro) in sorted(found.items())
    ]


def _add_sharing(
    found: dict[tuple[Second, str], list[int]], rate: Nano, pods: Counter[str], first: Second, last: Second
) -> None:
    """`pods`: how many there are of each namespace."""
    for day, since, until in _by_day(first, last):
        whole, seconds = cost_of(rate, until - since), WHOLE * (until - since) * (pods.total() - 1)
        parts = tuple(pods.values())
        for (namespace, many), paid, saved in zip(
            pods.items(), divide(whole, parts), divide(seconds, parts), strict=True
        ):
            sums = found[day, namespace]
            sums[0] += whole * many
            sums[1] += paid
            sums[2] += saved


# ---- autoscaling -----------------------------------------------------------------------------------------------------


def book_removal(removed: RemovedNode, claims: Iterable[NodeClaim]) -> list[BookedSaving]:
    """What the node would have cost on, less what pauses have claimed of it already."""
    if removed.rate is None:
        return []
    until = min(removed.until, removed.at + LONGEST_NODE)
    taken = [one for one in claims if one.node == removed.node]
    found = list[BookedSaving]()
    for day, begin, end in _by_day(removed.at, until):
        claimed = sum(one.nano * _overlap(one, begin, end) // (one.end - one.begin) for one in taken)
        freed = removed.gpus * WHOLE * (end - begin) - sum(one.share * _overlap(one, begin, end) for one in taken)
        baseline = cost_of(removed.rate, end - begin)
        if baseline > claimed:
            found.append(_row(
                SavingKind.autoscaling, f"{removed.node}\n{removed.at}", day, "", max(0, freed),
                baseline=baseline - claimed, actual=0, details={"node": removed.node}, realised=True,
            ))
    return found


def _overlap(claim: NodeClaim, begin: Second, end: Second) -> Second:
    return max(0, min(claim.end, end) - max(claim.begin, begin))


# ---- rows ------------------------------------------------------------------------------------------------------------


def _by_day(begin: Second, end: Second) -> Iterator[tuple[Second, Second, Second]]:
    """(first second of its UTC day, begin, end)."""
    while begin < end:
        day = begin // DAY * DAY
        yield day, begin, min(end, day + DAY)
        begin = day + DAY


def _row(
    kind: SavingKind, seed: str, at: Second, namespace: str, micro: int, *, baseline: Nano, actual: Nano,
    details: dict[str, str], realised: bool, is_dry_run: bool = False,
) -> BookedSaving:
    said = {**details, "method": METHODS[kind], "gpuHours": round(micro / GPU_HOUR, 6)}
    id_of = "\n".join((kind, namespace, seed, str(at), str(int(realised)), str(int(is_dry_run))))
    return BookedSaving(
        id=hashlib.blake2b(id_of.encode(), digest_size=16).hexdigest(), at=at, namespace=namespace, kind=kind,
        saved=baseline - actual, baseline=baseline, actual=actual, details=msgspec.json.encode(said).decode(),
        realised=realised, is_dry_run=is_dry_run,
    )


class SavingDetails(msgspec.Struct, frozen=True, rename="camel"):
    """What is read of a row's details; what is not there is nothing."""

    method: str = ""
    gpu_hours: float = 0.0
    workload: str = ""
    node: str = ""


def read_details(row: BookedSaving) -> SavingDetails:
    try:
        return msgspec.json.decode(row.details, type=SavingDetails)
    except msgspec.DecodeError:
        return SavingDetails()
