"""Which pods that wait behind a budget's gate may go on.

In: the gated pods with whose each is, the budgets that hold gates, what each of their scopes has of GPUs and of spot
nodes. Out: the pods whose gate goes, the oldest first.
Invariant: a gate stays only while a budget that restricts now, and whose scope the pod is or may be in, has no room for
it, or has closed the nodes that it could run on. What a pod says of itself, by its gate's note or by labels that its
namespace does not vouch for, takes no room from others. What cannot be counted counts as one.
"""

from collections.abc import Iterable, Mapping

import msgspec

from fallow.model.budgets import GatedPod
from fallow.model.policies.budget import CostBudget, PodTraits, ThrottleRule


class ScopeUse(msgspec.Struct, frozen=True):
    """What a budget's scope holds now. None: that is not known. `unclear`: pods in it that count as one GPU."""

    gpus: int | None
    spot_nodes: int | None
    unclear: int = 0


class HeldPod(msgspec.Struct, frozen=True, kw_only=True):
    """`is_cheap`: it can run on spot or reserved nodes alone."""

    pod: GatedPod
    whose: PodTraits
    is_cheap: bool


def find_holding(waiting: HeldPod, holding: Mapping[str, CostBudget]) -> tuple[CostBudget, ...]:
    """Those that it waits for. `holding`: the budgets that hold gates now, by name; any other one holds none."""
    named = (holding[name] for name in dict.fromkeys(waiting.pod.budgets) if name in holding)
    return tuple(of for of in named if of.scope.covers(waiting.whose, payer=True) is not False)


def release(
    waiting: Iterable[HeldPod], holding: Mapping[str, CostBudget], uses: Mapping[str, ScopeUse]
) -> tuple[GatedPod, ...]:
    taken = dict.fromkeys(holding, 0)
    released = []
    for each in sorted(waiting, key=lambda one: (one.pod.created_at, one.pod.ref.namespace, one.pod.ref.name)):
        mine = find_holding(each, holding)
        if all(_has_room(of.enforcement.throttle, uses.get(of.name), taken[of.name], each) for of in mine):
            released.append(each.pod)
            for of in mine:
                if of.scope.covers(each.whose, payer=True, vouched=True) is not False:  # as uses are counted
                    taken[of.name] += _count(each.pod)
    return tuple(released)


def _has_room(rule: ThrottleRule, use: ScopeUse | None, taken: int, waiting: HeldPod) -> bool:
    """What is not known has no room in it for more than was allowed; but a cap of nodes is only a cap on new ones:
    below it one pod at a time goes on, for it may need a node of its own."""
    if rule.block_on_demand and not waiting.is_cheap:
        return False
    return _has_gpus(rule.max_gpus, use, taken, waiting.pod) and _has_nodes(rule.max_spot_instances, use, taken)


def _has_gpus(cap: int | None, use: ScopeUse | None, taken: int, pod: GatedPod) -> bool:
    if cap is None:
        return True
    return use is not None and use.gpus is not None and pod.gpus is not None and use.gpus + taken + _count(pod) <= cap


def _count(pod: GatedPod) -> int:
    """At least one: a pod that asks for a part of one, by an annotation, would else go past every cap."""
    return max(1, pod.gpus or 0)


def _has_nodes(cap: int | None, use: ScopeUse | None, taken: int) -> bool:
    if cap is None:
        return True
    return use is not None and use.spot_nodes is not None and use.spot_nodes < cap and not taken
