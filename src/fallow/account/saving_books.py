"""Savings as they are written down: what the pauses of some time gave back, spot nodes and shared GPUs, read from the
ledger.

In: the ledger, the spans of pauses that reach into [begin, end), what a GPU costs on demand. Out: a CostBatch with the
rows of these days and the ids of those that do not hold any more (a pause that was regretted), for the one writer.
Invariant: it may be done again and again: rows of the same pause and day are the same rows. Whole UTC days are made
anew, so that nothing is claimed twice and a correction replaces what was claimed.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from fallow.account import audit, counterfactuals
from fallow.account.counterfactuals import FreedPart, NodeClaim, OnDemand, RemovedNode, Stretch
from fallow.account.ledger import Ledger
from fallow.account.savings import PauseSpan
from fallow.model import cost
from fallow.model.cost import (
    DAY,
    HOUR,
    MEASURED_SAVINGS,
    UNIT,
    BookedSaving,
    CapacityType,
    CostBatch,
    CostFilter,
    CostQuery,
    CostStep,
    Interval,
    SavingKind,
    Second,
    Sharing,
)
from fallow.model.history import AuditEntry, Happened
from fallow.model.units import Instant

Owner: TypeAlias = tuple[str, str, str]  # its namespace, kind and name
HeldBy: TypeAlias = Mapping[Owner, Sequence[Interval]]

_OWNER: Final = tuple(cost.read_dimension(name) for name in ("namespace", "controllerKind", "controller"))
_MOST_REMOVED: Final = 100_000  # entries of half a year
_BOOKED: Final = (*MEASURED_SAVINGS, SavingKind.autoscaling)
_NODE: Final = cost.read_dimension("node")
_SHARING: Final = cost.read_dimension("sharing")
_SHARED: Final = frozenset({Sharing.mig, Sharing.mps, Sharing.timeslicing, Sharing.dra})
_CAPACITY: Final = cost.read_dimension("capacity")


async def find_savings(
    ledger: Ledger, spans: Sequence[PauseSpan], begin: Second, end: Second, on_demand: OnDemand, *,
    is_dry: bool = False, removed: Sequence[RemovedNode] = (),
) -> CostBatch:
    """Of the days that [begin, end) touches, up to where we looked. `is_dry`: the spans are those of a dry run.
    `removed`: nodes that we removed; what a pause has claimed of one is not claimed again."""
    begin, end = begin // DAY * DAY, min(end, (await ledger.read_meta()).seen_until)
    if begin >= end:
        return CostBatch()
    watched, rows = await _read_watched(ledger, begin, end), list[BookedSaving]()
    held = await _read_held(ledger, spans)
    pauses = [each for span in spans if (each := _find_pause(span, held, begin, end)) is not None]
    after, freed = await _read_after(ledger, pauses, end), defaultdict[str, list[FreedPart]](list)
    for part in (part for each in pauses for part in each.parts):
        freed[part.node].append(part)
    claims = list[NodeClaim]()
    for each in pauses:
        there = [one for node in each.nodes for one in after.get(node, ())]
        found, claimed = counterfactuals.book_pause(
            each.span, each.held, there, watched, since=each.first, is_dry=is_dry,
            others=[part for node in each.nodes for part in freed[node]],
        )
        rows += found
        claims += claimed
    if not is_dry:
        gone_nodes = (row for each in removed for row in counterfactuals.book_removal(_until(each, end), claims))
        rows += [row for row in gone_nodes if row.at >= begin]
        spot = await ledger.read_intervals(begin, end, (CostFilter(_CAPACITY, frozenset({CapacityType.spot})),))
        rows += counterfactuals.book_spot(spot, on_demand, begin, end)
        rows += await _find_sharing(ledger, begin, end)
    made, before = {row.id for row in rows}, await ledger.read_savings(begin, end)
    mine = (row for row in before if row.kind in _BOOKED and row.is_dry_run == is_dry)
    gone = tuple(row.id for row in mine if row.id not in made)
    return CostBatch(savings=tuple(rows), removed_savings=gone)


async def read_removed(kept: audit.Audit, since: Instant, now: Instant) -> list[RemovedNode]:
    """Nodes that we removed since, each until as much was added again. All that is remembered is read: what went since
    may have been added long before, and a removal must not save more the later it is looked at."""
    types = frozenset({Happened.node_removed, Happened.nodes_added})
    entries = await kept.read(audit.AuditQuery(until=now, types=types, limit=_MOST_REMOVED))
    return [each for each in find_removed(entries, now) if each.at >= since]


def find_removed(entries: Iterable[AuditEntry], now: Instant) -> list[RemovedNode]:
    """GPUs that a policy adds, whatever the pool, stand for those that it removed last; those beyond were not there
    before us, and save nothing when they go. How many came is not always known: then they stand for all."""
    found, away, beyond = list[RemovedNode](), defaultdict[str, list[int]](list), defaultdict[str, float](float)
    for entry in sorted(entries, key=lambda each: each.at):
        policy, gpus = entry.policy, entry.gpus or 0
        if entry.type is Happened.nodes_added:
            left: float = gpus or math.inf
            while left > 0 and away[policy]:
                back = away[policy].pop()
                left -= found[back].gpus
                found[back] = msgspec.structs.replace(found[back], until=int(entry.at))
            beyond[policy] += max(0.0, left)
        elif beyond[policy] >= max(1, gpus):
            beyond[policy] -= gpus
        elif entry.ref is not None:
            rate = None if entry.per_hour is None else round(entry.per_hour * UNIT)
            away[policy].append(len(found))
            found.append(RemovedNode(node=entry.ref.name, rate=rate, at=int(entry.at), until=int(now), gpus=gpus))
    return found


def _until(node: RemovedNode, end: Second) -> RemovedNode:
    return msgspec.structs.replace(node, until=min(node.until, end))


async def _find_sharing(ledger: Ledger, begin: Second, end: Second) -> list[BookedSaving]:
    """Of GPUs on which several pods are that we made share: others who share by themselves were not saved by us."""
    held = await ledger.read_intervals(begin, end, (CostFilter(_SHARING, _SHARED),))
    ours = await ledger.read_shared({one.slice.pod_uid for one in held if one.slice.pod_uid})
    by_gpu = defaultdict[str, list[Interval]](list)
    for one in held:
        if one.slice.pod_uid in ours:
            by_gpu[one.slice.gpu].append(one)
    return [
        row for gpu, mine in sorted(by_gpu.items()) for row in counterfactuals.book_sharing(gpu, mine, begin, end)
    ]


class _Pause(msgspec.Struct, frozen=True):
    """A span within what is asked for. `held`: intervals around it; `parts`: what it gave back."""

    span: PauseSpan
    first: Second
    held: Sequence[Interval]
    parts: Sequence[FreedPart]

    @property
    def nodes(self) -> list[str]:
        return sorted({part.node for part in self.parts})


def _find_pause(span: PauseSpan, held: HeldBy, begin: Second, end: Second) -> _Pause | None:
    """None: it gave nothing back then. Pods that are told to go are gone within the hour after."""
    asked, owner = int(span.paused_at), _owner_of(span)
    mine = [one for one in held.get(owner, ()) if one.t1 > asked - HOUR and one.t0 < asked + HOUR] if owner else []
    first, last = max(asked, begin), min(int(span.ends), end)
    within = msgspec.structs.replace(span, ends=float(last))
    parts = counterfactuals.find_freed(within, mine) if first < last else []
    return _Pause(within, first, mine, parts) if parts else None


async def _read_held(ledger: Ledger, spans: Iterable[PauseSpan]) -> HeldBy:
    """What their owners held around then, read once for all that were paused on the same day."""
    days, found = defaultdict[int, list[tuple[Second, Owner]]](list), defaultdict[Owner, list[Interval]](list)
    for span in spans:
        if (owner := _owner_of(span)) is not None:
            days[int(span.paused_at) // DAY].append((int(span.paused_at), owner))
    for some in days.values():
        asked, owners = [at for at, _ in some], zip(*(owner for _, owner in some), strict=True)
        where = tuple(CostFilter(on, frozenset(values)) for on, values in zip(_OWNER, owners, strict=True))
        for one in await ledger.read_intervals(min(asked) - HOUR, max(asked) + HOUR, where):
            key = one.slice.key
            found[key.namespace, key.owner_kind, key.owner_name].append(one)
    return found


async def _read_after(ledger: Ledger, pauses: Sequence[_Pause], end: Second) -> dict[str, list[Interval]]:
    """What became of their nodes, by node: read once for all of them."""
    nodes, found = frozenset(node for each in pauses for node in each.nodes), defaultdict[str, list[Interval]](list)
    if nodes:
        first = min(each.first for each in pauses)
        for one in await ledger.read_intervals(first, end, (CostFilter(_NODE, nodes),)):
            found[one.slice.key.node].append(one)
    return found


def _owner_of(span: PauseSpan) -> Owner | None:
    return (span.ref.namespace, span.ref.kind, span.ref.name) if span.ref else None


async def _read_watched(ledger: Ledger, begin: Second, end: Second) -> list[Stretch]:
    """Hours in which the ledger has anything: in the others nobody looked, and a node that is not there is not gone."""
    hours = await ledger.sums(CostQuery(begin=begin, end=end, step=CostStep.hour))
    return [(one.begin, one.end) for one in hours if one.total.gpu_micro_seconds]
