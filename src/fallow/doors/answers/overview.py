"""The cluster on the first page: what its GPUs do, what that costs, what comes next, what is left alone or not known.

In: one edition (rows, field, plan), what is known of failures, today's history. Out: OverviewPage.
Invariant: every sum is of the same rows that the lists show; the gravest banner is the first.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal

from fallow.doors import answers
from fallow.doors.answers import field
from fallow.doors.answers import rows as telling
from fallow.doors.answers import workloads as naming
from fallow.model import decision, reasons, units
from fallow.model.policies import idle
from fallow.model.units import Instant, Seconds
from fallow.settings.serving import AuthMode

SOONEST: Final = 8
_STALE_AFTER: Final = 3  # intervals
# Of who is idle and held up by nothing, by the next step; "": there is none.
_DUE: Final = {
    "notice": "Nothing speaks against it: its owner is told next.",
    "pause": "Nothing speaks against it: it is paused next, after a second look.",
    "": "Nothing is done about it.",
}


class FrozenTold(answers.Shape, frozen=True, kw_only=True):
    until: str
    because: str
    by: str | None


class HourlyMoney(answers.Shape, frozen=True, kw_only=True):
    busy: float | None
    idle: float | None
    kept: float | None


class MoneyTold(answers.Shape, frozen=True, kw_only=True):
    per_hour: HourlyMoney
    unpriced_gpus: float


class PausedSums(answers.Shape, frozen=True, kw_only=True):
    workloads: int
    gpus: float


class GivenBack(answers.Shape, frozen=True, kw_only=True):
    """`source`: as of the savings: the books where they are kept. `until`: what is later is not in it."""

    gpu_hours: float | None  # None: what happened cannot be read, or is not worked out yet
    until: str | None
    taken_gpu_hours: float | None
    source: Literal["books", "audit"]


class ComingStep(answers.Shape, frozen=True, kw_only=True):
    step: telling.StepName
    at: str | None
    workloads: tuple[naming.WorkloadName, ...]
    gpus: float
    model: str | None
    per_hour: float | None
    because: str
    cost: float | None


class BrakesTold(answers.Shape, frozen=True, kw_only=True):
    pauses_this_cycle: int
    most_per_cycle: int
    gpus_this_hour: int
    most_gpus_this_hour: int | None


class NamespaceHeld(answers.Shape, frozen=True, kw_only=True):
    namespace: str
    held: float
    idle: float
    kept: float


class LeftAlone(answers.Shape, frozen=True, kw_only=True):
    label: str
    sentence: str
    workloads: int
    gpus: float


class UnknownTold(answers.Shape, frozen=True, kw_only=True):
    label: str
    sentence: str
    helps: str
    workloads: int
    gpus: float
    nodes: tuple[str, ...]


class Banner(answers.Shape, frozen=True, kw_only=True):
    kind: Literal["stale", "frozen", "data", "dryRun"]
    headline: str
    sentence: str


class OverviewPage(answers.Shape, frozen=True, kw_only=True):
    """`watches`: the namespaces that are looked at; none: all. `now`: by the daemon's own clock, as all of it is.
    `peers`: how many further clusters are shown beside this one."""

    revision: int
    now: str
    cluster: str
    peers: int
    mode: Literal["acting", "dry-run"]
    version: str
    as_of: str | None
    interval_seconds: float
    took_seconds: float | None
    watches: tuple[str, ...]
    is_leader: bool
    currency: str
    auth: AuthMode
    user: str | None
    frozen: FrozenTold | None
    failure: answers.FailureTold | None
    gpus: field.GpuSums
    money: MoneyTold
    counts: telling.ViewCounts
    paused: PausedSums
    given_back_today: GivenBack
    next: tuple[ComingStep, ...]
    brakes: BrakesTold
    by_namespace: tuple[NamespaceHeld, ...]
    left_alone: tuple[LeftAlone, ...]
    unknowns: tuple[UnknownTold, ...]
    banners: tuple[Banner, ...]


def tell_freeze(plan: decision.Plan | None) -> FrozenTold | None:
    if plan is None or plan.freeze is None:
        return None
    return FrozenTold(until=units.rfc3339(plan.freeze.until), because=plan.freeze.because, by=None)


def add_money(rows: Sequence[telling.ApiRow]) -> MoneyTold:
    by: dict[str, telling.RowSums] = {}
    for name, groups in (("busy", {"busy"}), ("idle", {"willPause", "onTheWay", "leftAlone"}), ("kept", {"kept"})):
        by[name] = telling.add_up(row for row in rows if row.group in groups)
    return MoneyTold(
        per_hour=HourlyMoney(**{name: sums.per_hour for name, sums in by.items()}),
        unpriced_gpus=round(sum(sums.unpriced_gpus for sums in by.values()), 3),
    )


def count_paused(rows: Iterable[telling.ApiRow]) -> PausedSums:
    resting = [row.rest for row in rows if row.group == "paused" and row.rest is not None]
    return PausedSums(workloads=len(resting), gpus=sum(rest.gpus or 0 for rest in resting))


def find_coming(rows: Iterable[telling.ApiRow], frozen: FrozenTold | None) -> tuple[ComingStep, ...]:
    """The soonest first; those of one kind at one instant are one."""
    groups: dict[tuple[str, str | None], list[telling.ApiRow]] = defaultdict(list)
    for row in rows:
        if row.next is not None and (row.next.at is not None or row.group == "willPause"):
            groups[row.next.type, row.next.at].append(row)
    found = [_tell_coming(some) for some in groups.values()]
    if frozen is not None:
        found.append(ComingStep(
            step="freezeEnds", at=frozen.until, workloads=(), gpus=0.0, model=None, per_hour=None,
            because=frozen.because, cost=None,
        ))
    return tuple(sorted(found, key=lambda each: (each.at or "", each.step))[:SOONEST])


def _tell_coming(some: Sequence[telling.ApiRow]) -> ComingStep:
    first, sums, models = some[0], telling.add_up(some), {model for row in some for model in row.models}
    assert first.next is not None
    costs = [row.keep.cost for row in some if row.keep is not None and row.keep.cost is not None]
    return ComingStep(
        step=first.next.type, at=first.next.at, workloads=tuple(map(name_of, some)), gpus=sums.gpus,
        model=models.pop() if len(models) == 1 else None, per_hour=sums.per_hour, because=first.next.because,
        cost=round(sum(costs), 2) if costs else None,
    )


def name_of(row: telling.ApiRow) -> naming.WorkloadName:
    return naming.WorkloadName(
        api_version=row.api_version, kind=row.kind, namespace=row.namespace, name=row.name, uid=row.uid
    )


def count_brakes(cycle: decision.Cycle | None, plan: decision.Plan | None, brakes: idle.Brakes) -> BrakesTold:
    done = () if cycle is None else cycle.outcomes
    pauses = sum(isinstance(each.decision, decision.Pause) and each.status is decision.Status.done for each in done)
    spent = sum(each.gpus for each in plan.memory.long.pauses) if plan else 0
    most = math.ceil(plan.totals.gpus * brakes.max_percent_per_hour / 100) if plan else None
    return BrakesTold(
        pauses_this_cycle=pauses, most_per_cycle=brakes.max_actions_per_cycle, gpus_this_hour=spent,
        most_gpus_this_hour=most,
    )


def share_namespaces(rows: Iterable[telling.ApiRow]) -> tuple[NamespaceHeld, ...]:
    held: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for row in rows:
        sums = held[row.namespace]
        sums[0] += row.gpus
        sums[1] += row.gpus if row.group in ("willPause", "onTheWay", "leftAlone") else 0.0
        sums[2] += row.gpus if row.group == "kept" else 0.0
    found = [
        NamespaceHeld(namespace=name, held=round(all_, 3), idle=round(idle, 3), kept=round(kept, 3))
        for name, (all_, idle, kept) in held.items() if all_
    ]
    return tuple(sorted(found, key=lambda each: (-each.idle, -each.kept, -each.held, each.namespace)))


def group_left(rows: Iterable[telling.ApiRow]) -> tuple[LeftAlone, ...]:
    """All that are idle and not paused, by what they wait for: a reason, or their next step where nothing speaks
    against it."""
    groups: dict[str, list[telling.ApiRow]] = defaultdict(list)
    for row in rows:
        if row.verdict == "idle" and row.group != "paused":
            groups[row.skip or _name_due(row)].append(row)
    found = [
        LeftAlone(
            label=label, sentence=_DUE[label] if label in _DUE else reasons.of_label(label).means, workloads=len(some),
            gpus=round(sum(row.gpus for row in some), 3),
        )
        for label, some in groups.items()
    ]
    return tuple(sorted(found, key=lambda each: (-each.gpus, each.label)))


def _name_due(row: telling.ApiRow) -> str:
    return row.next.type if row.next is not None and row.next.type in _DUE else ""


def group_unknown(
    rows: Iterable[telling.ApiRow], nodes_of: dict[str, set[str]]
) -> tuple[UnknownTold, ...]:
    groups: dict[str, list[telling.ApiRow]] = defaultdict(list)
    for row in rows:
        if row.group == "unknown":
            groups[row.reason].append(row)
    found = [
        UnknownTold(
            label=label, sentence=_tell_unknown(some), workloads=len(some),
            helps=reasons.of_label(label).helps,
            gpus=round(sum(row.gpus for row in some), 3),
            nodes=tuple(sorted({node for row in some for node in nodes_of.get(row.uid, ())}))[:SOONEST],
        )
        for label, some in groups.items()
    ]
    return tuple(sorted(found, key=lambda each: (-each.gpus, each.label)))


def _tell_unknown(some: Sequence[telling.ApiRow]) -> str:
    """Of what holds for all of them, that; else of the first, by its name."""
    first, more = some[0], len(some) - 1
    if more and all(row.because == first.because for row in some):
        return answers.capital(first.because)
    others = f" (and {answers.many(more, 'workload')} more like it)" if more else ""
    return f"{first.kind}/{first.name} in {first.namespace}: {first.because}{others}"


def find_undelivered(outcomes: Iterable[decision.Outcome]) -> list[str]:
    """Why notices of a cycle did not arrive, one by one."""
    failed = (each for each in outcomes if each.status is decision.Status.failed)
    return [each.because for each in failed if isinstance(each.decision, decision.Warn)]


def find_banners(
    *, failure: answers.FailureTold | None, frozen: FrozenTold | None, unknown: Sequence[UnknownTold],
    as_of: Instant | None, interval: Seconds, now: Instant, is_dry: bool, undelivered: Sequence[str] = (),
) -> Iterator[Banner]:
    """`undelivered`: of notices of the last cycle, why they did not arrive."""
    is_old = as_of is not None and now - as_of > _STALE_AFTER * interval
    if failure is not None or is_old or as_of is None:
        age = "Nothing was measured yet." if as_of is None else f"Last measured {units.spoken(now - as_of)} ago."
        why = failure.because if failure else "no cycle has ended since" if as_of else "the first cycle has not ended"
        yield Banner(
            kind="stale", headline=age, sentence=f"{why}. What you see may be out of date; nothing will be paused."
        )
    if frozen is not None:
        until = units.parse_instant(frozen.until)
        yield Banner(
            kind="frozen", headline=f"Frozen until {units.clock_time(until)} UTC.",
            sentence=f"{frozen.because}. No notice, no pause. Resume works.",
        )
    gpus, heads, sentences = sum(each.gpus for each in unknown), list[str](), list[str]()
    if undelivered:
        heads.append(f"{answers.many(len(undelivered), 'owner')} could not be told.")
        sentences.append(f"{undelivered[0]}. It is tried again; nothing is paused that nobody was told of.")
    if unknown and as_of is not None:
        which = "GPU works" if answers.amount(gpus) == "1" else "GPUs work"
        heads.append(f"Whether {answers.amount(gpus)} {which} cannot be told.")
        sentences.append(f"{unknown[0].sentence}. What cannot be told is never paused.")
    if heads:
        yield Banner(kind="data", headline=" ".join(heads), sentence=" ".join(sentences))
    if is_dry:
        words = "Everything below is what would happen. Nothing is told, nothing is paused."
        yield Banner(kind="dryRun", headline="Dry run.", sentence=words)
