"""Which pods that wait behind a budget's gate may go on.

In: the gated pods, the pods of each throttled budget's scope with the GPUs they hold and the spot nodes they run on.
Out: the pods whose gate goes, the oldest first.
Invariant: a gate stays only while a budget that restricts now, with a cap, has no room for it; a pod that one such
budget means, or may mean, waits for that one.
"""

from collections.abc import Iterable, Mapping

import msgspec

from fallow.model.budgets import GatedPod
from fallow.model.policies.budget import ThrottleRule


class ScopeUse(msgspec.Struct, frozen=True):
    """What a budget's scope holds now. None: that is not known."""

    gpus: int | None
    spot_nodes: int | None


def release(
    waiting: Iterable[GatedPod], throttles: Mapping[str, ThrottleRule], uses: Mapping[str, ScopeUse]
) -> tuple[GatedPod, ...]:
    """`throttles`: of the budgets that hold gates now, by name; a budget that is not among them holds none."""
    taken = dict.fromkeys(throttles, 0)
    released = []
    for pod in sorted(waiting, key=lambda each: (each.created_at, each.ref.namespace, each.ref.name)):
        holding = [name for name in pod.budgets if name in throttles]
        if all(_has_room(throttles[name], uses.get(name), taken[name], pod) for name in holding):
            released.append(pod)
            for name in holding:
                taken[name] += pod.gpus or 0
    return tuple(released)


def _has_room(rule: ThrottleRule, use: ScopeUse | None, taken: int, pod: GatedPod) -> bool:
    """What is not known has no room in it for more than was allowed; but a cap of nodes is only a cap on new ones:
    below it one pod at a time goes on, for it may need a node of its own."""
    return _has_gpus(rule.max_gpus, use, taken, pod) and _has_nodes(rule.max_spot_instances, use, taken)


def _has_gpus(cap: int | None, use: ScopeUse | None, taken: int, pod: GatedPod) -> bool:
    if cap is None:
        return True
    return use is not None and use.gpus is not None and pod.gpus is not None and use.gpus + taken + pod.gpus <= cap


def _has_nodes(cap: int | None, use: ScopeUse | None, taken: int) -> bool:
    if cap is None:
        return True
    return use is not None and use.spot_nodes is not None and use.spot_nodes < cap and not taken
