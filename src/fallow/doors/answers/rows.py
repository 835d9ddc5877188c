"""One workload as the pages and the API tell it: its state, what it holds, since when it is idle, what comes next.

In: a finding, the snapshot it is of, prices. Out: ApiRow, the same in lists, on its own page and in live updates.
Invariant: a state is told by verdict, skip and marks alone; no sentence is read. What is not known is None.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from fallow import names
from fallow.doors import answers
from fallow.doors.answers import money
from fallow.doors.answers import workloads as naming
from fallow.model import cluster, decision, kinds, marks, prices, shares, units
from fallow.model.decision import Reason, Verdict
from fallow.model.history import Condition
from fallow.model.units import DAY, HOUR, MINUTE, Instant

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
    state: WorkloadState
    verdict: Literal["idle", "active", "unknown"]
    reason: str
    because: str
    group: RowGroup
    gpus: float
    instances: int
    idle_gpus: float
    models: tuple[str, ...]
    profile: str | None
    idle_since: str | None
    at_least: bool
    idle_seconds: int | None
    never_used: bool
    strip: str | None
    per_hour: float | None
    next: StepTold | None
    skip: str | None
    skip_because: str | None
    told_at: str | None
    told_to: tuple[str, ...]
    policy: str
    keep: KeepTold | None
    rest: RestTold | None
    revision: int


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
    finding: decision.Finding, seen: cluster.Snapshot, now: Instant, *, revision: int, book: prices.Book,
    strip: str | None = None,
) -> ApiRow:
    held, rest = shares.of_workload(finding.workload, seen), read_rest(finding.workload)
    state, group = find_state(finding, now, rests=rest is not None)
    per_hour = find_cost(finding, held.gpus, seen, book)
    keep = read_keep(finding, seen, now, per_hour)
    part = finding.idle_gpus / finding.gpus if finding.gpus else 0.0
    return ApiRow(
        **naming.identify(finding.workload.ref), state=state, verdict=str(finding.verdict),  # type: ignore[arg-type]
        reason=str(finding.reason), because=finding.because, group=group, gpus=held.gpus, instances=held.instances,
        idle_gpus=held.gpus if finding.verdict is Verdict.idle and part == 1 else round(held.gpus * part, 4),
        models=finding.models, profile=held.profile, idle_since=answers.instant(finding.idle_since),
        at_least=finding.at_least, never_used=finding.never_used, strip=strip, per_hour=per_hour,
        idle_seconds=None if finding.idle_since is None else round(now - finding.idle_since),
        next=find_next(finding, keep, group), skip=finding.skip_label, skip_because=finding.skip_because or None,
        told_at=answers.instant(marks.notice_at(finding.workload)), told_to=told_to(finding),
        policy=finding.rule.name, keep=keep, rest=rest, revision=revision,
    )


def find_cost(
    finding: decision.Finding, gpus: float, seen: cluster.Snapshot, book: prices.Book
) -> float | None:
    """An hour of all that it holds; None: not known, or nothing."""
    found = {prices.find(model, book) for model in finding.models} if gpus else set()
    if len(found) != 1 or not money.holds_whole(finding.workload, seen):
        return None
    price = found.pop()
    return None if price is None else round(float(price) * gpus, 4)


def find_next(finding: decision.Finding, keep: KeepTold | None, group: RowGroup) -> StepTold | None:
    if keep is not None and group == "kept":
        return StepTold(type="keepEnds", at=keep.until, because=finding.skip_because or "it is kept")
    step = finding.next_action
    if finding.verdict is not Verdict.idle or step is None or group == "paused":
        return None
    because = finding.skip_because or finding.because
    return StepTold(type=str(step), at=answers.instant(finding.next_at), because=because)  # type: ignore[arg-type]


def told_to(finding: decision.Finding) -> tuple[str, ...]:
    """The channels that were told, by the mark of the notice and the rule: none before one was given."""
    if marks.notice_at(finding.workload) is None:
        return ()
    wished = [word.strip() for word in finding.wishes.notify.split(",") if word.strip()]
    named = [channel.text("channel") or channel.name for channel in finding.rule.notice.channels]
    return tuple(dict.fromkeys([*wished, *named, *filter(None, [finding.wishes.owner])]))


def read_keep(
    finding: decision.Finding, seen: cluster.Snapshot, now: Instant, per_hour: float | None
) -> KeepTold | None:
    """The acknowledgement that stands on the workload, on what carries its marks, or on its namespace."""
    workload = finding.workload
    space = seen.namespaces.known.get(workload.ref.namespace)
    sources = (workload.marks, workload.annotations, space.annotations if space else {})
    said = next((each for each in sources if marks.ack_until(each)), {})
    until = units.read_instant(marks.ack_until(said))
    if until is None or until <= now:
        return None
    at = units.read_instant(said.get(names.ACK_AT))
    quiet = None if finding.idle_since is None else max(0.0, now - max(finding.idle_since, at or finding.idle_since))
    return KeepTold(
        until=units.rfc3339(until), by=said.get(names.ACK_BY) or said.get(names.ACK_BY_ALIAS) or "somebody",
        reason=said.get(names.ACK_REASON) or None, at=answers.instant(at),
        idle_seconds=None if quiet is None else round(quiet),
        cost=None if quiet is None or per_hour is None else round(per_hour * quiet / HOUR, 2),
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


class WorkloadsPage(answers.Shape, frozen=True, kw_only=True):
    """`next`: the cursor of what follows. `total`, `sums`: of all that were asked for, on this page or not."""

    revision: int
    items: tuple[ApiRow, ...]
    next: str | None
    total: int
    counts: ViewCounts
    sums: RowSums


class RawWorkloads(answers.Shape, frozen=True, kw_only=True):
    """The same, of rows that are encoded already."""

    revision: int
    items: list[msgspec.Raw]
    next: str | None
    total: int
    counts: ViewCounts
    sums: RowSums
