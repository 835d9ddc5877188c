"""Policies as answers: what each asks for and matches now; acknowledgements and the freeze that stand.

In: the policies of a snapshot, rows. Out: PoliciesPage, AcksPage.
Invariant: nothing secret is told: of a channel only its name and type. The spec is as it was asked for, the windows
beside it are as they are now.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from fallow.doors import answers
from fallow.doors.answers import overview
from fallow.doors.answers import rows as telling
from fallow.doors.answers import workloads as naming
from fallow.model import cluster, units
from fallow.model.long_memory import RuleWeek
from fallow.model.policies import idle
from fallow.model.seen import sure

MOST_NAMED: Final = 50
FLAGS: Final = "flags"


class WidenedTold(answers.Shape, frozen=True, kw_only=True):
    """Its window grew. `back_at`: a step back, at the earliest; `calm_below`: the ratio of its pauses that may be
    undone until then. `pauses`, `regrets`: since it grew last; `since`, `back_at` None: no longer remembered."""

    times: float
    from_seconds: float
    because: str
    since: str | None
    back_at: str | None
    calm_below: float
    pauses: int
    regrets: int


class PolicyTold(answers.Shape, frozen=True, kw_only=True):
    """`workloads`: what it matches now, at most MOST_NAMED of them."""

    name: str
    priority: int
    action: Literal["report", "notify", "pause"]
    is_valid: bool
    trouble: str | None
    matched: int
    idle: int
    idle_gpus: float
    paused: int
    acknowledged: int
    gone_idle_seconds: float
    never_used_seconds: float
    grace_seconds: float
    widened: WidenedTold | None
    classes: tuple[str, ...]
    kinds: tuple[str, ...]
    namespaces: str
    spec: dict[str, Any]
    workloads: tuple[naming.WorkloadName, ...]


class PoliciesPage(answers.Shape, frozen=True, kw_only=True):
    items: tuple[PolicyTold, ...]


def show_policies(
    seen: cluster.Snapshot, rows: Sequence[telling.ApiRow], mandate: idle.Mandate, weeks: Iterable[RuleWeek]
) -> PoliciesPage:
    """Those of the cluster by priority, then what the flags say for all others."""
    matched: dict[str, list[telling.ApiRow]] = {}
    for row in rows:
        matched.setdefault(row.policy, []).append(row)
    policies = sure(seen.policies) if mandate.use_policies else ()
    listed = sorted(policies, key=lambda each: (-each.priority, each.name))
    by_flags = idle.IdlePolicy(name=FLAGS, uid="", generation=0, rule=mandate.rule)
    known = {week.rule: week for week in weeks}
    return PoliciesPage(
        items=tuple(_tell(each, matched.get(each.name, []), known) for each in (*listed, by_flags))
    )


def _tell(
    policy: idle.IdlePolicy, rows: Sequence[telling.ApiRow], weeks: Mapping[str, RuleWeek]
) -> PolicyTold:
    rule, quiet = policy.rule, [row for row in rows if row.verdict == "idle"]
    return PolicyTold(
        name=policy.name, priority=policy.priority, action=str(rule.action.type),  # type: ignore[arg-type]
        is_valid=not policy.invalid, trouble="; ".join(policy.invalid) or None, matched=len(rows), idle=len(quiet),
        idle_gpus=round(sum(row.idle_gpus for row in quiet), 3), paused=sum(row.rest is not None for row in rows),
        acknowledged=sum(row.keep is not None for row in rows),
        gone_idle_seconds=rule.gone_idle, never_used_seconds=rule.never_used, grace_seconds=rule.notice.grace,
        widened=_widened(rule, weeks.get(rule.name)), classes=tuple(sorted(policy.classes)),
        kinds=tuple(sorted(rule.kinds or ())), namespaces=_reach(policy), spec=_spec(policy),
        workloads=tuple(map(overview.name_of, rows[:MOST_NAMED])),
    )


def _widened(rule: idle.Rule, week: RuleWeek | None) -> WidenedTold | None:
    if rule.asked_windows is None:
        return None
    seen = week or RuleWeek(rule.name)
    (pauses, undone), (pauses_in_all, undone_in_all) = seen.sum_up(seen.changed_at), seen.sum_up()
    pauses_before, undone_before = pauses_in_all - pauses, undone_in_all - undone
    because = (
        f"{undone_before} of {pauses_before} pauses were undone within 15 min, more than {rule.regret_threshold:.0%}"
        if undone_before else "its status says so; the pauses that led to it are no longer remembered"
    )
    return WidenedTold(
        times=rule.widened, from_seconds=rule.asked_windows[0], because=because,
        since=answers.instant(week.changed_at) if week else None,
        back_at=answers.instant(week.changed_at + units.WEEK) if week else None,
        calm_below=rule.regret_threshold / 2, pauses=pauses, regrets=undone,
    )


def _reach(policy: idle.IdlePolicy) -> str:
    patterns = ", ".join(pattern.pattern for pattern in policy.namespaces)
    has_selector = policy.namespace_selector != type(policy.namespace_selector)()
    labels = "those whose labels it selects" if has_selector else ""
    return "; ".join(filter(None, (patterns, labels))) or "all"


def _spec(policy: idle.IdlePolicy) -> dict[str, Any]:
    """What it asks for, in the words of the CRD; without what is secret."""
    rule = policy.rule
    gone_idle, never_used = rule.asked_windows or (rule.gone_idle, rule.never_used)
    return {
        "priority": policy.priority, "classes": sorted(policy.classes),
        "windows": {"goneIdle": units.humane(gone_idle), "neverUsed": units.humane(never_used)},
        "thresholds": {"activity": rule.activity, "coverage": rule.coverage, "powerWatts": rule.power_watts},
        "notice": {
            "required": rule.notice.required, "grace": units.humane(rule.notice.grace),
            "channels": [{"name": channel.name, "type": channel.type} for channel in rule.notice.channels],
        },
        "consent": {
            "maxAck": units.humane(rule.consent.max_ack), "allowOptOut": rule.consent.allow_opt_out,
            "immunity": units.humane(rule.consent.immunity),
        },
        "action": {"type": str(rule.action.type), "pressure": rule.action.pressure, "gitops": rule.action.gitops},
        "regret": {"autoWiden": rule.auto_widen, "threshold": rule.regret_threshold},
    }


class AckTold(telling.KeepTold, frozen=True, kw_only=True):
    workload: naming.WorkloadName
    active: bool


class AcksPage(answers.Shape, frozen=True, kw_only=True):
    items: tuple[AckTold, ...]


def show_acks(rows: Iterable[telling.ApiRow]) -> AcksPage:
    """Those that end first before the others."""
    found = [
        AckTold(
            until=row.keep.until, by=row.keep.by, reason=row.keep.reason, at=row.keep.at,
            idle_seconds=row.keep.idle_seconds, cost=row.keep.cost, workload=overview.name_of(row), active=True,
        )
        for row in rows if row.keep is not None
    ]
    return AcksPage(items=tuple(sorted(found, key=lambda ack: (ack.until, ack.workload.namespace, ack.workload.name))))
