"""Policies as answers: what each asks for and matches now; acknowledgements and the freeze that stand.

In: the policies of a snapshot, rows. Out: PoliciesPage, AcksPage, FreezeState.
Invariant: nothing secret is told: of a channel only its name and type.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

from fallow.doors import answers
from fallow.doors.answers import overview
from fallow.doors.answers import rows as telling
from fallow.doors.answers import workloads as naming
from fallow.model import cluster, decision, units
from fallow.model.policies import idle
from fallow.model.seen import sure

MOST_NAMED: Final = 50
FLAGS: Final = "flags"


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
    classes: tuple[str, ...]
    kinds: tuple[str, ...]
    namespaces: str
    spec: dict[str, Any]
    workloads: tuple[naming.WorkloadName, ...]


class PoliciesPage(answers.Shape, frozen=True, kw_only=True):
    items: tuple[PolicyTold, ...]


def show_policies(
    seen: cluster.Snapshot, rows: Sequence[telling.ApiRow], mandate: idle.Mandate
) -> PoliciesPage:
    """Those of the cluster by priority, then what the flags say for all others."""
    matched: dict[str, list[telling.ApiRow]] = {}
    for row in rows:
        matched.setdefault(row.policy, []).append(row)
    policies = sure(seen.policies) if mandate.use_policies else ()
    listed = sorted(policies, key=lambda each: (-each.priority, each.name))
    items = [_tell(each, matched.get(each.name, [])) for each in listed]
    by_flags = idle.IdlePolicy(name=FLAGS, uid="", generation=0, rule=mandate.rule)
    return PoliciesPage(items=(*items, _tell(by_flags, matched.get(FLAGS, []))))


def _tell(policy: idle.IdlePolicy, rows: Sequence[telling.ApiRow]) -> PolicyTold:
    rule, quiet = policy.rule, [row for row in rows if row.verdict == "idle"]
    return PolicyTold(
        name=policy.name, priority=policy.priority, action=str(rule.action.type),  # type: ignore[arg-type]
        is_valid=not policy.invalid, trouble="; ".join(policy.invalid) or None, matched=len(rows), idle=len(quiet),
        idle_gpus=round(sum(row.idle_gpus for row in quiet), 3), paused=sum(row.rest is not None for row in rows),
        acknowledged=sum(row.keep is not None for row in rows),
        gone_idle_seconds=rule.gone_idle, never_used_seconds=rule.never_used, grace_seconds=rule.notice.grace,
        classes=tuple(sorted(policy.classes)), kinds=tuple(sorted(rule.kinds or ())), namespaces=_reach(policy),
        spec=_spec(policy), workloads=tuple(map(overview.name_of, rows[:MOST_NAMED])),
    )


def _reach(policy: idle.IdlePolicy) -> str:
    patterns = ", ".join(pattern.pattern for pattern in policy.namespaces)
    has_selector = policy.namespace_selector != type(policy.namespace_selector)()
    labels = "those whose labels it selects" if has_selector else ""
    return "; ".join(filter(None, (patterns, labels))) or "all"


def _spec(policy: idle.IdlePolicy) -> dict[str, Any]:
    """What it asks for, in the words of the CRD; without what is secret."""
    rule = policy.rule
    return {
        "priority": policy.priority, "classes": sorted(policy.classes),
        "windows": {"goneIdle": units.humane(rule.gone_idle), "neverUsed": units.humane(rule.never_used)},
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


class FreezeState(answers.Shape, frozen=True, kw_only=True):
    """`answer`: what the daemon made of it; of what stands in its own plan, that it is heeded."""

    frozen: bool
    until: str | None
    reason: str | None
    answer: str | None


def show_freeze(plan: decision.Plan) -> FreezeState:
    freeze = plan.freeze
    return FreezeState(
        frozen=freeze is not None, until=answers.instant(freeze.until) if freeze else None,
        reason=freeze.because if freeze else None, answer="heeded" if freeze else None,
    )
