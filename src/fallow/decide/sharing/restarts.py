"""Whose pods begin anew because sharing hurt them: where their policy says so, and only once for each time it did.

In: workloads with their pods and marks, policies, what our own statuses keep of reverts; then the object as it was read
just before. Out: ShareRestarts, and why one of them is not done after all.
Invariant: whom our own status does not name is not restarted, whatever stands on it: tenants can write marks. What is
not rolled by its controller, pod after pod, is said and left.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from fallow import names
from fallow.decide.sharing import hurts
from fallow.model import cluster, kinds, pointers
from fallow.model.policies.sharing import SharingPolicy
from fallow.model.share_hurts import RestartRefusal, RevertsKept, ShareRestart
from fallow.model.units import Instant

_ROLLING: Final = "RollingUpdate"


def find(
    workloads: Iterable[cluster.Workload], pods: Sequence[cluster.Pod], policies: Iterable[SharingPolicy],
    reverts: Mapping[str, RevertsKept], now: Instant,
) -> tuple[ShareRestart, ...]:
    """Those that still share although they are in back-off. `reverts`: by the policy's name, as its status has them."""
    asked = {each.name for each in policies if each.enforces and each.guard.restarts_on_revert}
    hurt = {name: {one.owner for one in kept.recent} for name, kept in reverts.items() if name in asked}
    return tuple(
        ShareRestart(workload=each, policy=policy, until=each.marks[names.BACKOFF_UNTIL])
        for each in workloads if (policy := each.marks.get(names.REVERTED_POLICY, "")) in hurt
        and each.ref.uid in hurt[policy] and _is_due(each.marks, now) and hurts.list_shared(each, pods)
    )


def _is_due(marks: Mapping[str, str], now: Instant) -> bool:
    return hurts.is_backing_off(marks, now) and marks.get(names.SHARING_RESTARTED) != marks[names.BACKOFF_UNTIL]


def refuse(restart: ShareRestart, body: Mapping[str, Any]) -> tuple[RestartRefusal, str] | None:
    """`body`: the object as it is now. None: nothing speaks against it."""
    kind, marks = restart.workload.ref.kind, body["metadata"].get("annotations") or {}
    if (restart.workload.ref.group, kind in kinds.HOW_REPLACED) != ("apps", True):
        return RestartRefusal.OtherKind, f"a {kind} has no rolling restart: its pods stay until they end"
    is_same = marks.get(names.BACKOFF_UNTIL) == restart.until and not body["metadata"].get("deletionTimestamp")
    if not is_same or marks.get(names.SHARING_RESTARTED) == restart.until:
        return RestartRefusal.NotAsItWas, "it changed meanwhile: it is looked at again"
    if pointers.read(body, "/spec/paused") is True or pointers.read(body, "/spec/replicas") == 0:
        return RestartRefusal.Paused, "its rollouts are paused, or it has no replicas: nothing would follow"
    how = pointers.read(body, kinds.HOW_REPLACED[kind]) or _ROLLING
    if how != _ROLLING:
        return RestartRefusal.NotRolling, f"it replaces its pods by {how}, and not one after the other"
    return None
