"""What happened, as answers: entries, GPUs by state over time, how many pauses an hour, what was given back, regrets.

In: entries and levels of the audit. Out: pages of them.
Invariant: a stretch that nobody saw is a gap (None), never a line between its ends; only what was written down counts.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from fallow.account import audit, held_idle, savings
from fallow.doors import answers
from fallow.doors.answers import workloads as naming
from fallow.model import units
from fallow.model.cost import BookedSaving
from fallow.model.history import AuditEntry, Happened, Levels
from fallow.model.policies import idle
from fallow.model.units import DAY, HOUR, MINUTE, Instant, Seconds

WINDOWS: Final[Mapping[str, tuple[Seconds, Seconds]]] = {
    "24h": (DAY, 5 * MINUTE), "7d": (7 * DAY, 30 * MINUTE), "30d": (30 * DAY, 2 * HOUR),
}
PACES: Final[Mapping[str, tuple[Seconds, Seconds]]] = {
    "24h": (DAY, HOUR), "7d": (7 * DAY, HOUR), "30d": (30 * DAY, 4 * HOUR),
}
_LONGEST_LEVEL: Final[Seconds] = 15 * MINUTE  # for longer than this nobody knows what the free ones were
PAUSES_AND_ENDS: Final = frozenset({Happened.paused, Happened.resumed, Happened.brought_back, Happened.regretted})
NOT_HAPPENED: Final[Mapping[Happened, tuple[str, str]]] = {
    Happened.not_paused: ("The second look said no", "it was at work again, or had changed, just before its pause"),
    Happened.refused: ("Refused", "the API server, a hook or a webhook said no"),
    Happened.failed: ("Failed", "the request did not get through"),
}


class Decided(answers.Shape, frozen=True, kw_only=True):
    id: int
    at: str
    type: Literal[
        "told", "paused", "resumed", "kept", "keepEnded", "refused", "failed", "notPaused", "broughtBack", "left",
        "frozen", "unfrozen", "noDecision", "wouldPause", "regretted", "released", "nodesAdded", "drainBegun",
        "drainUndone", "nodeRemoved", "spotInterrupted", "restarted", "moveBegun", "podMoved", "moveStopped",
        "alertSeen",
    ]
    workload: naming.WorkloadName | None
    gpus: float | None
    sentence: str
    detail: str | None
    actor: str
    source: Literal["cycle", "cli", "api", "slack", "annotation", "outside"]
    reason: str | None
    policy: str | None
    code: str | None


class DecisionsPage(answers.Shape, frozen=True, kw_only=True):
    """`counts`: how many of each type there are in the time that was asked for, shown or not."""

    items: tuple[Decided, ...]
    next: str | None
    counts: dict[str, int]
    revision: int


class HistoryPage(answers.Shape, frozen=True, kw_only=True):
    items: tuple[Decided, ...]


def tell(entry: AuditEntry) -> Decided:
    return Decided(
        id=entry.number, at=units.rfc3339(entry.at), type=str(entry.type), gpus=entry.gpus,  # type: ignore[arg-type]
        workload=naming.reference(entry.ref) if entry.ref else None, sentence=entry.sentence,
        detail=entry.detail or None, actor=entry.actor, source=str(entry.source),  # type: ignore[arg-type]
        reason=entry.reason or None, policy=entry.policy or None, code=entry.code or None,
    )


# ---- GPUs by state ---------------------------------------------------------------------------------------------------


class GapTold(answers.Shape, frozen=True, kw_only=True, rename={"from_": "from"}):
    from_: str
    to: str
    because: str


class StatesPage(answers.Shape, frozen=True, kw_only=True, rename={"from_": "from", "step_seconds": "stepSeconds"}):
    from_: str
    to: str
    step_seconds: float
    total: tuple[float | None, ...]
    busy: tuple[float | None, ...]
    idle: tuple[float | None, ...]
    kept: tuple[float | None, ...]
    unknown: tuple[float | None, ...]
    free: tuple[float | None, ...]
    gaps: tuple[GapTold, ...]


def show_states(levels: Iterable[Levels], window: str, now: Instant) -> StatesPage:
    span, step = WINDOWS[window]
    begin = (now - span) // step * step
    places: list[Levels | None] = [None] * (int((now - begin) // step) + 1)
    for each in levels:
        if begin <= each.at <= now:
            places[int((each.at - begin) // step)] = each
    columns = {
        name: tuple(None if each is None else getattr(each, name) for each in places)
        for name in ("total", "busy", "idle", "kept", "unknown", "free")
    }
    return StatesPage(
        from_=units.rfc3339(begin), to=units.rfc3339(now), step_seconds=step,
        gaps=tuple(_find_gaps(places, begin, step)), **columns,
    )


def find_away(
    levels: Sequence[Levels], begin: Instant, now: Instant, interval: Seconds
) -> list[tuple[Instant, Instant]]:
    """When nobody was here: no level stands for longer than two cycles and two steps together."""
    longest, seen = 2 * (interval + audit.LEVELS_EVERY), [begin, *(each.at for each in levels), now]
    return [(one, other) for one, other in itertools.pairwise(seen) if other - one > longest]


def _find_gaps(places: Sequence[Levels | None], begin: Instant, step: Seconds) -> Iterator[GapTold]:
    start: int | None = None
    for place, each in enumerate([*places, Levels(at=0.0, total=None, busy=0, idle=0, kept=0, unknown=0, free=None)]):
        if each is None and start is None:
            start = place
        elif each is not None and start is not None:
            yield GapTold(
                from_=units.rfc3339(begin + start * step), to=units.rfc3339(begin + place * step),
                because="nothing was measured, or nobody was here",
            )
            start = None


# ---- how many --------------------------------------------------------------------------------------------------------


class SpanTold(answers.Shape, frozen=True, kw_only=True, rename={"from_": "from"}):
    from_: str
    to: str


class PacePage(answers.Shape, frozen=True, kw_only=True, rename={"from_": "from", "step_seconds": "stepSeconds"}):
    from_: str
    to: str
    step_seconds: float
    paused: tuple[int, ...]
    resumed: tuple[int, ...]
    regretted: tuple[int, ...]
    freezes: tuple[SpanTold, ...]


def show_pace(
    counted: Mapping[Happened, Sequence[int]], freezes: Sequence[AuditEntry], *, begin: Instant, step: Seconds,
    now: Instant,
) -> PacePage:
    resumed, back = counted[Happened.resumed], counted[Happened.brought_back]
    return PacePage(
        from_=units.rfc3339(begin), to=units.rfc3339(now), step_seconds=step,
        paused=tuple(counted[Happened.paused]), regretted=tuple(counted[Happened.regretted]),
        resumed=tuple(one + other for one, other in zip(resumed, back, strict=True)),
        freezes=tuple(_find_freezes(freezes, now)),
    )


def _find_freezes(entries: Sequence[AuditEntry], now: Instant) -> Iterator[SpanTold]:
    """`entries`: frozen and unfrozen, the newest first. One that stands lasts until now."""
    end = now
    for entry in entries:
        if entry.type is Happened.unfrozen:
            end = entry.at
        elif entry.type is Happened.frozen:
            yield SpanTold(from_=units.rfc3339(entry.at), to=units.rfc3339(end))
            end = entry.at


# ---- given back ------------------------------------------------------------------------------------------------------


class SavedDay(answers.Shape, frozen=True, kw_only=True):
    """`gpu_hours` None: of that day nothing was written down. `taken_gpu_hours`: of these, somebody else held them, or
    their node went."""

    day: str
    gpu_hours: float | None
    taken_gpu_hours: float | None
    regrets: int


class SavingsPage(answers.Shape, frozen=True, kw_only=True):
    """`source`: the books where they are kept, as on the page of costs; else the audit, which knows of what was taken
    only the least. `since`: nothing is known of the time before; `until`: what is later is not in it, None where that
    is not known."""

    days: tuple[SavedDay, ...]
    gpu_hours: float
    mode: Literal["acting", "dry-run"]
    source: Literal["books", "audit"]
    since: str | None
    until: str | None


def taken_between(
    spans: Sequence[savings.PauseSpan], levels: Sequence[Levels], begin: Instant, end: Instant
) -> float | None:
    """Of what rests gave back, the GPU-hours that were surely used again, or whose node went: what is given back at an
    instant and cannot be among the free ones. None: nobody counted the free ones."""
    known = [each for each in levels if begin <= each.at < end and each.free is not None]
    if not known:
        return None
    taken = 0.0
    for each, following in zip(known, [*known[1:], None], strict=True):
        lasts = min((following.at if following else end) - each.at, _LONGEST_LEVEL)
        resting = sum(one.gpus for one in spans if one.begins <= each.at < one.ends)
        taken += max(0.0, resting - (each.free or 0.0)) * lasts / HOUR
    return round(taken, 2)


class DayHours(NamedTuple):
    """GPU-hours of one day, or of what is over of it."""

    given: float | None
    taken: float | None


def count_day(
    spans: Sequence[savings.PauseSpan], levels: Sequence[Levels], begin: Instant, end: Instant
) -> DayHours:
    """By the audit."""
    return DayHours(savings.hours_between(spans, begin, end), taken_between(spans, levels, begin, end))


def read_day(
    rows: Iterable[BookedSaving], begin: Instant, *, is_dry: bool, until: Instant | None
) -> DayHours:
    """By the books, which have a row for each UTC day. `until`: up to when that is worked out."""
    back = held_idle.find_given_back([row for row in rows if begin <= row.at < begin + DAY], until)
    if back is None:
        return DayHours(None, None)
    if is_dry:
        return DayHours(round(back.dry.hours, 2), None)
    return DayHours(round(back.given.hours, 2), round(back.taken.hours, 2))


def find_days(days: int, now: Instant) -> list[Instant]:
    """The first instants of the last so many UTC days."""
    today = now // DAY * DAY
    return [today - back * DAY for back in range(days - 1, -1, -1)]


def show_savings(
    hours: Mapping[Instant, DayHours], regretted: Iterable[Instant], *, is_dry: bool,
    source: Literal["books", "audit"], since: Instant | None, until: Instant | None,
) -> SavingsPage:
    """`regretted`: when a pause was undone at once; of a dry run, when one would have been."""
    regrets = Counter(at // DAY * DAY for at in regretted)
    shown = tuple(
        SavedDay(
            day=units.rfc3339(start)[:10], gpu_hours=one.given if is_known else None,
            taken_gpu_hours=one.taken if is_known else None, regrets=regrets[start],
        )
        for start, one in hours.items() for is_known in [since is not None and start + DAY > since]
    )
    return SavingsPage(
        days=shown, gpu_hours=round(sum(day.gpu_hours or 0.0 for day in shown), 2), source=source,
        mode="dry-run" if is_dry else "acting", since=answers.instant(since), until=answers.instant(until),
    )


# ---- regrets ---------------------------------------------------------------------------------------------------------


class PolicyRegrets(answers.Shape, frozen=True, kw_only=True):
    policy: str
    pauses: int
    regrets: int
    threshold: float
    window_seconds: float


class NotHappened(answers.Shape, frozen=True, kw_only=True):
    label: str
    sentence: str
    count: int


class RegretsPage(answers.Shape, frozen=True, kw_only=True):
    by_policy: tuple[PolicyRegrets, ...]
    items: tuple[Decided, ...]
    not_happened: tuple[NotHappened, ...]


def show_regrets(
    entries: Sequence[AuditEntry], counted: Mapping[Happened, int], rules: Mapping[str, idle.Rule]
) -> RegretsPage:
    """Of the policies that are there. `entries`: pauses and regrets, the newest first: a regret is of the policy that
    paused it last."""
    pauses, regrets, waiting = Counter[str](), Counter[str](), defaultdict[str, int](int)
    for entry in entries:
        uid = entry.ref.uid if entry.ref else ""
        if entry.type is Happened.regretted:
            waiting[uid] += 1
        elif entry.type is Happened.paused:
            pauses[entry.policy] += 1
            regrets[entry.policy] += waiting.pop(uid, 0)
    return RegretsPage(
        by_policy=tuple(
            PolicyRegrets(
                policy=name, pauses=count, regrets=regrets[name], threshold=rules[name].regret_threshold,
                window_seconds=rules[name].gone_idle,
            )
            for name, count in sorted(pauses.items()) if name in rules
        ),
        items=tuple(tell(entry) for entry in entries if entry.type is Happened.regretted),
        not_happened=tuple(
            NotHappened(label=label, sentence=sentence, count=counted[kind])
            for kind, (label, sentence) in NOT_HAPPENED.items() if counted.get(kind)
        ),
    )


# ---- GPU by GPU ------------------------------------------------------------------------------------------------------


class GpuLine(answers.Shape, frozen=True, kw_only=True):
    node: str
    index: int | None
    uuid: str | None
    pod: str
    values: tuple[float | None, ...]
    max: float | None
    coverage: float | None
    newest_seconds: float | None


class TimelinePage(answers.Shape, frozen=True, kw_only=True, rename={
    "from_": "from", "step_seconds": "stepSeconds", "window_from": "windowFrom", "last_work": "lastWork",
    "more_max": "moreMax",
}):
    """`gpus`: the first so many; `more`: how many others, `more_max`: the highest of those."""

    from_: str
    to: str
    step_seconds: float
    threshold: float
    window_from: str
    last_work: str | None
    gpus: tuple[GpuLine, ...]
    more: int
    more_max: float | None
