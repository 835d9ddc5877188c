"""One workload as the terminal, the pages and the API tell it: its state, what it holds, since when it is idle, what
comes next.

In: a finding, the snapshot it is of, prices. Out: ApiRow, the same in lists, on its own page and in live updates; what
`fallow idle` prints for machines is made of it.
Invariant: a state is told by verdict, skip and marks alone; no sentence is read. What is not known is None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec

from fallow import names
from fallow.act.notices import facts
from fallow.doors import answers
from fallow.doors.answers import money
from fallow.doors.answers import workloads as naming
from fallow.model import bills, cluster, decision, kinds, marks, price_book, shares, units
from fallow.model.decision import Reason, Verdict
from fallow.model.history import Condition
from fallow.model.units import DAY, HOUR, MINUTE, Instant, Seconds

WorkloadState: TypeAlias = Literal["busy", "idle", "told", "kept", "left", "unknown", "paused", "resuming"]
RowGroup: TypeAlias = Literal["willPause", "onTheWay", "leftAlone", "kept", "unknown", "busy", "paused"]
RowView: TypeAlias = Literal["idle", "unknown", "busy", "paused", "kept", "all"]
StepName: TypeAlias = Literal["notice", "pause", "keepEnds", "freezeEnds"]

VIEWS: Final[Mapping[str, frozenset[str]]] = {
    "idle": frozenset({"willPause", "onTheWay", "leftAlone", "kept"}), "unknown": frozenset({"unknown"}),
    "busy": frozenset({"busy"}), "paused": frozenset({"paused"}), "kept": frozenset({"kept"}),
    "all": frozenset({"willPause", "onTheWay", "leftAlone", "kept", "unknown", "busy", "paused"}),
}
# Left for now and not for good: it goes on by itself.
_WAITING: Final = frozenset({
    Reason.InNotice, Reason.Confirming, Reason.Capped, Reason.BackingOff, Reason.Frozen, Reason.NoPressure,
    Reason.OutsideSchedule,
})
_STARTING: Final = frozenset({Reason.PodStarting, Reason.NoGpuPods, Reason.NotReady, Reason.TooYoung})
_COMES_BACK_FOR: Final = 15 * MINUTE
_STRIP_STEP: Final = HOUR / 2
_STRIP_STEPS: Final = 48


class StepTold(answers.Shape, frozen=True, kw_only=True):
    """What comes next; `at` None: in the next cycle."""

    type: StepName
    at: str | None
    because: str


class KeepTold(answers.Shape, frozen=True, kw_only=True):
    """An acknowledgement. `idle_seconds`: for how long it was idle under it so far; `cost`: what that cost."""

    until: str
    by: str
    reason: str | None
    at: str | None
    idle_seconds: int | None
    cost: float | None


class RestTold(answers.Shape, frozen=True, kw_only=True):
    """A pause of ours that stands. `size`: what comes back."""

    at: str
    by: str
    reason: str
    gpus: float | None
    policy: str | None
    size: str
    resume_command: str


class ApiRow(naming.WorkloadName, frozen=True, kw_only=True):
    """`gpus`: physical ones; in how many pieces it holds them, and what each is, the instances say. `per_hour`: of all
    that it holds; `idle_per_hour`: of what is idle of it; `is_list`: by list prices, because nobody keeps books."""

    state: WorkloadState
    verdict: Literal["idle", "active", "unknown"]
    reason: str
    because: str
    group: RowGroup
    gpus: float
    instances: int
    idle_instances: int
    active_instances: int
    unknown_instances: int
    idle_gpus: float
    models: tuple[str, ...]
    profile: str | None
    idle_since: str | None
    at_least: bool
    idle_seconds: int | None
    never_used: bool
    strip: str | None
    per_hour: float | None
    idle_per_hour: float | None
    currency: str
    is_list: bool
    next: StepTold | None
    skip: str | None
    skip_because: str | None
    told_at: str | None
    told_to: tuple[str, ...]
    policy: str
    keep_hours: tuple[int, ...]
    max_keep_hours: float
    keep: KeepTold | None
    rest: RestTold | None
    revision: int

    @property
    def is_partly_idle(self) -> bool:
        return self.idle_instances > 0 and self.verdict != "idle"

    @property
    def held(self) -> int:
        """In how many pieces, those too that nobody measures."""
        return self.idle_instances + self.active_instances + self.unknown_instances


def is_shown(finding: decision.Finding, now: Instant) -> bool:
    """Whoever holds nothing and does not rest is nobody's business here."""
    is_gone = finding.reason is Reason.NoGpuPods and marks.paused_at(finding.workload) is None
    return not is_gone or is_coming_back(finding, now)


def is_coming_back(finding: decision.Finding, now: Instant) -> bool:
    """Resumed a moment ago, and not at work yet."""
    if finding.reason not in _STARTING:
        return False
    resumed = marks.latest(marks.read_all(finding.workload, names.RESUMED_AT))
    is_recent = resumed is not None and now - resumed < _COMES_BACK_FOR
    return marks.is_coming_back(finding.workload) or is_recent


def find_state(finding: decision.Finding, now: Instant, *, rests: bool) -> tuple[WorkloadState, RowGroup]:
    """`rests`: a pause of ours stands."""
    if rests:
        return "paused", "paused"
    if finding.verdict is Verdict.active:
        return "busy", "busy"
    if finding.verdict is Verdict.unknown:
        return ("resuming", "unknown") if is_coming_back(finding, now) else ("unknown", "unknown")
    if finding.skip is Reason.Acknowledged:
        return "kept", "kept"
    if finding.skip is not None and finding.skip not in _WAITING:
        return "left", "leftAlone"
    if marks.notice_at(finding.workload) is not None or finding.skip is Reason.InNotice:
        return "told", "willPause"
    is_next = finding.next_action is decision.Step.pause and finding.skip is None
    return "idle", "willPause" if is_next else "onTheWay"


def make_row(
    one: naming.WorkloadCount, seen: cluster.Snapshot, now: Instant, *, revision: int = 0,
    book: price_book.ModelPrices = price_book.LIST, strip: str | None = None, spent: float | None = None,
) -> ApiRow:
    """`spent`: what its acknowledgement has cost by the books; None: nobody keeps any."""
    finding = one.finding
    held, rest = shares.of_workload(finding.workload, seen), read_rest(finding.workload)
    state, group = find_state(finding, now, rests=rest is not None)
    bill = make_bill(one, book, of_all=True)
    keep = read_keep(finding, seen, now, bill.per_hour, spent)
    part = finding.idle_gpus / finding.gpus if finding.gpus else 0.0
    return ApiRow(
        **naming.identify(finding.workload.ref), state=state, verdict=str(finding.verdict),  # type: ignore[arg-type]
        reason=str(finding.reason), because=finding.because, group=group, gpus=held.gpus, instances=held.instances,
        idle_instances=one.idle, active_instances=one.active, unknown_instances=one.unknown,
        idle_per_hour=make_bill(one, book).per_hour,
        idle_gpus=held.gpus if finding.verdict is Verdict.idle and part == 1 else round(held.gpus * part, 4),
        models=finding.models, profile=held.profile, idle_since=answers.instant(finding.idle_since),
        at_least=finding.at_least, never_used=finding.never_used, strip=strip, per_hour=bill.per_hour,
        currency=bill.currency, is_list=bill.is_list,
        idle_seconds=None if finding.idle_since is None else round(now - finding.idle_since),
        next=find_next(finding, keep, group), skip=finding.skip_label, skip_because=finding.skip_because or None,
        told_at=answers.instant(marks.notice_at(finding.workload)), told_to=told_to(finding.workload),
        policy=finding.rule.name, keep=keep, rest=rest, revision=revision,
        keep_hours=facts.offered_hours(finding.rule.consent), max_keep_hours=finding.rule.consent.max_ack / HOUR,
    )


def make_bill(one: naming.WorkloadCount, book: price_book.ModelPrices, *, of_all: bool = False) -> bills.Bill:
    """Of its idle GPUs, or of all that it holds."""
    held = one.finding.holdings
    return bills.make(held if of_all else bills.take_part(held, one.count_idle()), book)


def find_next(finding: decision.Finding, keep: KeepTold | None, group: RowGroup) -> StepTold | None:
    if keep is not None and group == "kept":
        return StepTold(type="keepEnds", at=keep.until, because=finding.skip_because or "it is kept")
    step = finding.next_action
    if finding.verdict is not Verdict.idle or step is None or group == "paused":
        return None
    because = finding.skip_because or finding.because
    return StepTold(type=str(step), at=answers.instant(finding.next_at), because=because)  # type: ignore[arg-type]


def told_to(workload: cluster.Workload) -> tuple[str, ...]:
    """Whom the notice that runs has reached, as it was noted with it; none before one was given."""
    if marks.notice_at(workload) is None:
        return ()
    return tuple(filter(None, (whom.strip() for whom in workload.marks.get(names.TOLD, "").split(","))))


def read_keep(
    finding: decision.Finding, seen: cluster.Snapshot, now: Instant, per_hour: float | None,
    spent: float | None = None,
) -> KeepTold | None:
    """The acknowledgement that stands on the workload, on what carries its marks, or on its namespace. What it has cost
    is what was booked; without books, what its GPUs cost for as long as they were idle."""
    space = seen.namespaces.known.get(finding.workload.ref.namespace)
    ack = marks.find_ack(finding.workload, space, finding.rule.consent.max_ack, now)
    if ack is None:
        return None
    since = finding.idle_since
    quiet = None if since is None else max(0.0, now - max(since, ack.at or since))
    return KeepTold(
        until=units.rfc3339(ack.until), by=ack.by, reason=ack.reason, at=answers.instant(ack.at),
        idle_seconds=None if quiet is None else round(quiet),
        cost=round(spent, 2) if spent is not None
        else None if quiet is None or per_hour is None else round(per_hour * quiet / HOUR, 2),
    )


def read_rest(workload: cluster.Workload) -> RestTold | None:
    pause, ref = naming.tell_pause(workload), workload.ref
    if pause is None:
        return None
    return RestTold(
        at=pause.at or "", by=pause.by or names.FIELD_MANAGER, reason=pause.reason or "", gpus=pause.gpus,
        policy=pause.policy, size=naming.return_size(pause),
        resume_command=f"fallow resume {kinds.typed(ref)} -n {ref.namespace}",
    )


# ---- as a line of `fallow idle` --------------------------------------------------------------------------------------


def line(row: ApiRow) -> naming.WorkloadRow:
    """The same for machines that read `fallow idle -o json`."""
    cost, upcoming = row.idle_per_hour, row.next
    return naming.WorkloadRow(
        api_version=row.api_version, kind=row.kind, namespace=row.namespace, name=row.name, uid=row.uid, gpus=row.held,
        idle_gpus=row.idle_instances, active_gpus=row.active_instances, unknown_gpus=row.unknown_instances,
        models=row.models, verdict=row.verdict, reason=row.reason, because=row.because, idle_since=row.idle_since,
        at_least=row.at_least, idle_seconds=row.idle_seconds, paused_at=row.rest.at if row.rest else None,
        policy=row.policy, skip=row.skip, skip_because=row.skip_because,
        next_action=None if upcoming is None or upcoming.type == "keepEnds"
        else naming.Upcoming(type=upcoming.type, at=upcoming.at),
        cost=None if cost is None else money.Cost(per_hour=cost, currency=row.currency, is_list=row.is_list),
    )


def _by_cost(row: ApiRow) -> tuple[float, float]:
    return rank_cost(row.idle_per_hour, row.idle_seconds, row.idle_gpus)


def rank_cost(per_hour: float | None, seconds: Seconds | None, gpus: float) -> tuple[float, float]:
    """The costliest is the first; those without a price are behind those that have one, by GPU-hours."""
    cost = math.inf if per_hour is None or seconds is None else -per_hour * seconds
    return cost, -gpus * (seconds or 0)


IDLE_SORTS: Final[Mapping[str, Callable[[ApiRow], Any]]] = {
    "cost": _by_cost, "time": lambda row: row.idle_since or _LAST, "gpus": lambda row: -row.idle_gpus,
    "name": lambda row: (),
}


def listed(rows: Iterable[ApiRow], *, everything: bool, sort: str = "cost") -> list[ApiRow]:
    """Those that are idle, then those of whose GPUs some are, or all; in each the costliest first, or as asked."""
    shown = [row for row in rows if everything or row.idle_instances or row.verdict == "idle"]
    return sorted(shown, key=lambda row: (*_group(row), IDLE_SORTS[sort](row), row.namespace, row.name, row.kind))


def _group(row: ApiRow) -> tuple[bool, bool, bool, int]:
    """What stands paused and has not let go yet is behind what is only idle."""
    order = naming.ORDER.index(Verdict(row.verdict))
    return row.rest is not None, row.verdict != "idle", not row.idle_instances, order


_LAST: Final = "9999"


# ---- after a deed, before the next cycle -----------------------------------------------------------------------------

Amendment: TypeAlias = Callable[[ApiRow], ApiRow]
_DECIDES: Final = "the next cycle decides"


def as_kept(row: ApiRow, keep: KeepTold) -> ApiRow:
    """Somebody keeps it since the last cycle. Of what does not lie idle, or rests, nothing else is said."""
    if row.verdict != "idle" or row.rest is not None:
        return msgspec.structs.replace(row, keep=keep)
    step = StepTold(type="keepEnds", at=keep.until, because=f"{keep.by} keeps it")
    return msgspec.structs.replace(
        row, keep=keep, state="kept", group="kept", next=step, skip=str(Reason.Acknowledged),
        skip_because=f"acknowledged by {keep.by} until {keep.until}", told_at=None, told_to=(),
    )


def as_released(row: ApiRow) -> ApiRow:
    if row.state != "kept":
        return msgspec.structs.replace(row, keep=None)
    step = StepTold(type="notice", at=None, because=f"it is kept no longer; {_DECIDES}")
    return msgspec.structs.replace(
        row, keep=None, state="idle", group="onTheWay", next=step, skip=None, skip_because=None
    )


def as_resumed(row: ApiRow) -> ApiRow:
    return msgspec.structs.replace(
        row, rest=None, state="resuming", group="unknown", verdict="unknown", reason=str(Reason.PodStarting),
        because="it was brought back a moment ago",
    )


def as_paused(row: ApiRow, *, at: Instant, by: str, reason: str) -> ApiRow:
    rest = RestTold(
        at=units.rfc3339(at), by=by, reason=reason, gpus=row.gpus, policy=None,
        size=answers.many(row.instances, "GPU"),
        resume_command=f"fallow resume {row.kind}/{row.name} -n {row.namespace}",
    )
    return msgspec.structs.replace(row, rest=rest, state="paused", group="paused", next=None, keep=None)


# ---- the last day in 48 letters --------------------------------------------------------------------------------------


def draw_strip(past: Sequence[tuple[Instant, Condition | None]], now: Instant) -> str | None:
    """Of every half hour the state in which it began; `-`: it was not there, or nobody looked. None: no past at all."""
    if not past:
        return None
    letters, place, start = [], 0, now - DAY
    for step in range(_STRIP_STEPS):
        end = start + (step + 1) * _STRIP_STEP
        while place + 1 < len(past) and past[place + 1][0] <= end:
            place += 1
        at, condition = past[place]
        letters.append("-" if at > end or condition is None else str(condition))
    return "".join(letters)


# ---- counting --------------------------------------------------------------------------------------------------------


class ViewCounts(answers.Shape, frozen=True, kw_only=True):
    idle: int
    unknown: int
    busy: int
    paused: int
    kept: int
    all: int


def count_views(rows: Iterable[ApiRow]) -> ViewCounts:
    counted = dict.fromkeys(VIEWS, 0)
    for row in rows:
        for view, groups in VIEWS.items():
            counted[view] += row.group in groups
    return ViewCounts(**counted)


class RowSums(answers.Shape, frozen=True, kw_only=True):
    """`per_hour` of those whose price is known; None where that is none of them."""

    gpus: float
    per_hour: float | None
    unpriced_gpus: float


def add_up(rows: Iterable[ApiRow]) -> RowSums:
    gpus, unpriced, priced, is_known = 0.0, 0.0, 0.0, False
    for row in rows:
        held, per_hour = row.gpus, row.per_hour
        gpus += held
        if per_hour is None:
            unpriced += held
        else:
            priced, is_known = priced + per_hour, True
    per_hour = round(priced, 2) if is_known or not unpriced else None
    return RowSums(gpus=round(gpus, 3), per_hour=per_hour, unpriced_gpus=round(unpriced, 3))


class RowsMay(answers.Shape, frozen=True, kw_only=True):
    """What whoever asks may do with all workloads of one kind in one namespace. `missing`: the right that lacks; who
    has it for some of them by name is told so on the page of each."""

    namespace: str
    api_version: str
    kind: str
    keep: bool
    pause: bool
    resume: bool
    missing: str | None


class WorkloadsPage(answers.Shape, frozen=True, kw_only=True):
    """`next`: the cursor of what follows. `total`, `sums`: of all that were asked for, on this page or not. `may`: of
    the rows on this page, a kind and namespace each, where it was asked for; of what is not in it nothing is known."""

    revision: int
    items: tuple[ApiRow, ...]
    next: str | None
    total: int
    counts: ViewCounts
    sums: RowSums
    may: tuple[RowsMay, ...] = ()


class RawWorkloads(answers.Shape, frozen=True, kw_only=True):
    """The same, of rows that are encoded already."""

    revision: int
    items: list[msgspec.Raw]
    next: str | None
    total: int
    counts: ViewCounts
    sums: RowSums
    may: tuple[RowsMay, ...] = ()
