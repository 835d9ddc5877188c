"""May this new pod run, and where, although budgets of its scope are spent?

In: a pod that somebody wants to make, the budgets as their status says, whose pod it is. Out: Admitted with a reason,
perhaps with changes to the pod; or Denied with the sentence that its maker reads.
Invariant: denied or changed is only a pod that asks for GPUs, in the known scope of a budget that restricts now, by a
status of now. Exempt namespaces never are, nor pods that a DaemonSet's controller makes. The changes are a gate and a
choice of nodes, and made twice they change nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Any, Final, TypeAlias

import msgspec

from fallow import names
from fallow.model import pointers, units
from fallow.model.policies.budget import (
    MOST_CLAIMS,
    STALE_AFTER,
    ClaimWanted,
    CostBudget,
    EnforcementMode,
    PodTraits,
)
from fallow.model.units import Instant

Patch: TypeAlias = tuple[dict[str, Any], ...]  # operations of a JSON patch
_MOST_TERMS: Final = 60  # of one node affinity, with ours multiplied in: beyond, a pod waits behind the gate instead
_ON_DEMAND: Final = frozenset({"on-demand", "on_demand", "ON_DEMAND", "ondemand", "regular"})
_CHEAP: Final = dict(names.CHEAP_NODES)


class AdmitReason(StrEnum):
    """Why a pod was let in, or not, or changed: one word, which is counted."""

    NoGpus = "NoGpus"
    ClaimUnseen = "ClaimUnseen"
    Exempt = "Exempt"
    DaemonSet = "DaemonSet"
    NoBudget = "NoBudget"
    ScopeUnknown = "ScopeUnknown"
    StatusStale = "StatusStale"
    Overridden = "Overridden"
    BreakGlass = "BreakGlass"
    Exceeded = "Exceeded"
    Throttled = "Throttled"
    NotLoaded = "NotLoaded"
    Unreadable = "Unreadable"
    Deadline = "Deadline"
    Defect = "Defect"


class PodWanted(msgspec.Struct, frozen=True, kw_only=True):
    """What of a pod matters here. `is_daemons`: it says that it is of a DaemonSet. Its maker wrote that, so it proves
    nothing. `claims`: whether they are of GPUs is not said on the pod."""

    namespace: str
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] | None = None
    has_gpus: bool = False
    claims: tuple[ClaimWanted, ...] = ()
    is_daemons: bool = False
    node_name: str = ""
    node_selector: Mapping[str, str] = {}
    affinity: Mapping[str, Any] | None = None
    gates: tuple[str, ...] = ()


class Restricting(msgspec.Struct, frozen=True, kw_only=True):
    """The budgets that restrict at one instant; `stale`: there are others whose status is too old to say."""

    budgets: tuple[CostBudget, ...] = ()
    stale: tuple[str, ...] = ()


def find_restricting(known: Iterable[CostBudget], mode: EnforcementMode, now: Instant) -> Restricting:
    wanted = [each for each in known if each.standing.is_enforced and each.enforcement.mode is mode]
    fresh = [each for each in wanted if not each.invalid and each.enabled and _is_fresh(each, now)]
    return Restricting(
        budgets=tuple(each for each in fresh if not _is_overridden(each, now)),
        stale=tuple(each.name for each in wanted if not _is_fresh(each, now)),
    )


def _is_fresh(of: CostBudget, now: Instant) -> bool:
    """One from the future would be of now for as long."""
    updated = of.standing.last_updated
    return updated is not None and abs(now - updated) <= STALE_AFTER


def _is_overridden(of: CostBudget, now: Instant) -> bool:
    """At once, before the controller has seen it; afterwards no longer than that one says."""
    wish, seen = of.wish, of.standing.override
    if wish is None:
        return False
    return now < (min(wish.until, seen.until) if seen is not None and seen.asked == wish.asked else wish.until)


def look_past(pod: PodWanted, *, is_exempt: bool) -> AdmitReason | None:
    """Why no budget is asked about it; None: they are."""
    if not pod.has_gpus and not pod.claims:
        return AdmitReason.NoGpus
    return AdmitReason.Exempt if is_exempt else None


def find_too_many(pod: PodWanted) -> str:
    """Why what its claims ask for is not looked at, so that it counts as asking for GPUs; "": it is."""
    if len(set(pod.claims)) <= MOST_CLAIMS:
        return ""
    return f"it names more than {MOST_CLAIMS} claims, which counts as asking for GPUs: name fewer"


def find_meant(restricting: Restricting, whose: PodTraits) -> tuple[tuple[CostBudget, ...], AdmitReason]:
    """Those that surely mean it; and why, where there is none."""
    covered = [(each, each.scope.covers(whose, payer=True)) for each in restricting.budgets]
    meant = tuple(each for each, is_meant in covered if is_meant)
    if any(is_meant is None for _, is_meant in covered):
        return meant, AdmitReason.ScopeUnknown
    return meant, AdmitReason.StatusStale if restricting.stale else AdmitReason.NoBudget


def find_wish(pod: PodWanted) -> str:
    """Why somebody wants it to run all the same; "": nobody says so."""
    return ((pod.annotations or {}).get(names.BUDGET_OVERRIDE) or "").strip()


def deny(of: CostBudget) -> str:
    """The sentence that its maker reads."""
    since = of.standing.exceeded_since
    amount = f"{of.amount:,.2f}" if of.amount is not None else "?"
    when = f" since {units.rfc3339(since)[:10]}" if since is not None else ""
    spent = f"{_money(of.standing.spend)} of {amount} {of.currency or of.standing.currency}".strip()
    return (
        f"budget {of.name} exceeded: {spent}{when}; see fallow cost budget {of.name}; "
        f"override: fallow cost override {of.name} --for 4h --reason TEXT"
    )


def _money(text: str) -> str:
    try:
        return f"{Decimal(text):,.2f}"
    except InvalidOperation:
        return text or "?"


# ---- throttle: where a pod may run, and whether it waits -----------------------------------------------------------


def change(pod: PodWanted, meant: Sequence[CostBudget]) -> Patch:
    """What makes it keep to these budgets, where it can still wait and choose (`find_bound`)."""
    closed = [each for each in meant if each.enforcement.throttle.block_on_demand]
    capped = [each for each in meant if each.enforcement.throttle.has_cap]
    affinity = _keep_to_cheap(pod) if closed else None
    holding = [*capped, *(each for each in closed if affinity is None and each not in capped)]
    operations = [] if affinity is None or affinity == pod.affinity else [_put("/spec/affinity", affinity)]
    if holding:
        operations += _gate(pod, sorted({each.name for each in holding}))
    return tuple(operations)


def find_bound(pod: PodWanted, meant: Sequence[CostBudget]) -> str:
    """Why it can be made to keep to none of them: its maker chose a node, so that it goes past the scheduler. "": it
    can."""
    throttles = [each.enforcement.throttle for each in meant]
    if not pod.node_name or not any(each.block_on_demand or each.has_cap for each in throttles):
        return ""
    return f"it names its node ({pod.node_name}), so that it could not wait for room: leave out nodeName"


def _put(path: str, value: Any) -> dict[str, Any]:
    return {"op": "add", "path": path, "value": value}


def _keep_to_cheap(pod: PodWanted) -> dict[str, Any] | None:
    """Its affinity, with spot or reserved nodes required; None: it does not fit those."""
    if (pod.annotations or {}).get(names.SPOT_OK) == "false" or _selects_on_demand(pod.node_selector):
        return None
    affinity = {key: dict(value) for key, value in (pod.affinity or {}).items() if isinstance(value, Mapping)}
    node = affinity.setdefault("nodeAffinity", {})
    if keeps_to_cheap(pod.affinity):
        return dict(pod.affinity or {})
    fitting = [term for term in _list_terms(pod.affinity) if not _demands_on_demand(term)]
    made = [_with(term, key, values) for term in fitting for key, values in names.CHEAP_NODES]
    if not made or len(made) > _MOST_TERMS:
        return None
    node[names.REQUIRED] = {"nodeSelectorTerms": made}
    return affinity


def keeps_to_cheap(affinity: Mapping[str, Any] | None) -> bool:
    """By this a pod can run on spot or reserved nodes alone, whoever wrote it."""
    return all(_is_cheap(term) for term in _list_terms(affinity))


def _list_terms(affinity: Mapping[str, Any] | None) -> Sequence[Mapping[str, Any]]:
    """One of them must fit; without any, every node does."""
    node = (affinity or {}).get("nodeAffinity")
    required = (node.get(names.REQUIRED) if isinstance(node, Mapping) else None) or {}
    return required.get("nodeSelectorTerms") or [{}]


def _with(term: Mapping[str, Any], key: str, values: Sequence[str]) -> dict[str, Any]:
    mine = {"key": key, "operator": "In", "values": list(values)}
    return {**term, "matchExpressions": [*(term.get("matchExpressions") or ()), mine]}


def _is_cheap(term: Mapping[str, Any]) -> bool:
    """It asks for such nodes already, by us or by its maker."""
    return any(
        one.get("operator") == "In" and one.get("values") and set(one["values"]) <= set(_CHEAP.get(one.get("key"), ()))
        for one in term.get("matchExpressions") or ()
    )


def _demands_on_demand(term: Mapping[str, Any]) -> bool:
    return any(
        one.get("key") in _CHEAP and one.get("operator") == "In" and not set(one.get("values") or ())
        & set(_CHEAP[one["key"]])
        for one in term.get("matchExpressions") or ()
    )


def _selects_on_demand(selector: Mapping[str, str]) -> bool:
    return any(selector.get(key) in _ON_DEMAND or (key in selector and selector[key] not in values)
               for key, values in names.CHEAP_NODES)


def _gate(pod: PodWanted, budgets: Sequence[str]) -> list[dict[str, Any]]:
    made = []
    if names.BUDGET_GATE not in pod.gates:
        gate = {"name": names.BUDGET_GATE}
        made.append(_put("/spec/schedulingGates/-", gate) if pod.gates else _put("/spec/schedulingGates", [gate]))
    said = ",".join(budgets)
    if pod.annotations is None:
        made.append(_put("/metadata/annotations", {names.GATED_BY: said}))
    elif pod.annotations.get(names.GATED_BY) != said:
        made.append(_put(pointers.annotation(names.GATED_BY), said))
    return made
