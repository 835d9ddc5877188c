"""What pauses gave back: GPU-hours from the pods' going to their return, and what those cost.

In: the audit. Out: PauseSpans. A pause that a person made by hand is that person's act, and counts as nobody's saving.
A dry run's spans begin where it would have paused and end when the GPUs work again or are gone; those that end so
within a quarter of an hour would have been mistakes, which were measured and not made.
Invariant: a pause whose end nobody saw, and that does not stand, counts for nothing; none counts for more than 30 days.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from fallow.account import audit
from fallow.model import cluster, history
from fallow.model.history import AuditEntry, CameBy, Condition, Happened
from fallow.model.units import DAY, HOUR, Instant, Seconds

LONGEST: Final[Seconds] = 30 * DAY
ENDS: Final = frozenset({Happened.resumed, Happened.brought_back})
_MOST: Final = 10_000  # entries: some months of pauses on a large cluster
_GOES_WITHIN: Final[Seconds] = HOUR  # pods that are told to go are gone by then


class PauseSpan(msgspec.Struct, frozen=True, kw_only=True):
    """One pause from its beginning (its pods were gone) to its end, or until now. `gpus`: physical ones; `per_hour`:
    what they cost, None where that is not known. `ref`: of what; `paused_at`: when it was told to go. `is_regretted`:
    somebody brought it back at once."""

    uid: str
    gpus: float
    begins: Instant
    ends: Instant
    policy: str = ""
    per_hour: float | None = None
    is_wrong: bool = False  # of a dry run: it would have been a mistake
    ref: cluster.Ref | None = None
    paused_at: Instant = 0.0
    is_regretted: bool = False

    def hours(self, begin: Instant, end: Instant) -> float:
        """Of the clock, in that stretch."""
        return max(0.0, min(self.ends, end) - max(self.begins, begin)) / HOUR


async def read_spans(
    kept: audit.Audit, since: Instant, now: Instant, *, standing: Collection[str], is_dry: bool
) -> list[PauseSpan]:
    """Every span that reaches into the time after `since`. `standing`: uids of what rests now; of a dry run, which
    brings nothing to rest, of what is there."""
    begun = Happened.would_pause if is_dry else Happened.paused
    asked = audit.AuditQuery(since=since - LONGEST, until=now, types=frozenset({begun, *ENDS}), limit=_MOST)
    entries = await kept.read(asked)
    uids = {entry.ref.uid for entry in entries if entry.ref and entry.type is begun}
    pasts = await kept.conditions(uids, since - LONGEST)
    find = find_dry_spans if is_dry else find_spans
    found = find(entries, standing, pasts, now)
    return [span for span in found if span.ends > since]


def find_spans(
    entries: Sequence[AuditEntry], standing: Iterable[str], pasts: Mapping[str, audit.Past], now: Instant
) -> list[PauseSpan]:
    """`entries`: pauses and what ended them, the newest first."""
    found, ends, stands = list[PauseSpan](), dict[str, Instant](), set(standing)
    for entry in entries:
        uid = entry.ref.uid if entry.ref else ""
        if entry.type in ENDS:
            ends[uid] = entry.at
        elif entry.type is Happened.paused:
            back = ends.pop(uid, None)
            end = back or _find_gone(pasts.get(uid, []), entry.at) or (now if uid in stands else entry.at)
            stands.discard(uid)
            begin = min(_find_rest(pasts.get(uid, []), entry.at), end)
            if entry.source is CameBy.cycle:
                is_regretted = back is not None and back - entry.at <= history.REGRET_WITHIN
                found.append(msgspec.structs.replace(_span(entry, begin, end), is_regretted=is_regretted))
    return found


def find_dry_spans(
    entries: Sequence[AuditEntry], standing: Iterable[str], pasts: Mapping[str, audit.Past], now: Instant
) -> list[PauseSpan]:
    """A dry run says again and again what it would do: while a span lasts, that is the same pause. What went while
    nobody looked has no end that was seen, and is not there."""
    found, until, there = list[PauseSpan](), dict[str, Instant](), set(standing)
    for entry in reversed(entries):
        uid = entry.ref.uid if entry.ref else ""
        if entry.type is not Happened.would_pause or entry.at < until.get(uid, 0.0):
            continue
        over = (at for at, condition in pasts.get(uid, []) if at > entry.at and condition in (Condition.busy, None))
        end = next(over, now)
        works = any(at == end and condition is Condition.busy for at, condition in pasts.get(uid, []))
        is_wrong = works and end - entry.at <= history.REGRET_WITHIN
        until[uid] = end
        known = entry.at if end == now and uid not in there else end
        found.append(msgspec.structs.replace(_span(entry, entry.at, known), is_wrong=is_wrong))
    return found


def _span(entry: AuditEntry, begin: Instant, end: Instant) -> PauseSpan:
    return PauseSpan(
        uid=entry.ref.uid if entry.ref else "", begins=begin,
        gpus=float(entry.gpus or 0) if entry.shares is None else entry.shares,
        ends=min(end, begin + LONGEST), policy=entry.policy, per_hour=entry.per_hour, ref=entry.ref, paused_at=entry.at,
    )


def _find_rest(past: audit.Past, paused: Instant) -> Instant:
    """When its pods were gone; where nobody saw that, when it was paused."""
    seen = (at for at, condition in past if condition is Condition.paused and 0 <= at - paused < _GOES_WITHIN)
    return next(seen, paused)


def _find_gone(past: audit.Past, paused: Instant) -> Instant | None:
    """When it was deleted, if it was."""
    return next((at for at, condition in past if condition is None and at >= paused), None)


def hours_between(spans: Iterable[PauseSpan], begin: Instant, end: Instant) -> float:
    """GPU-hours."""
    return round(sum(one.gpus * one.hours(begin, end) for one in spans), 2)
