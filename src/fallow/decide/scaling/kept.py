"""What a cycle need not compute again: who is where, what is free, what was simulated, kept while nothing changed.

In: the nodes and pods of each cycle; objects that are the same object are taken for unchanged, others are counted anew.
Out: tenants by node, who waits, FreeRoom. Handed in by the caller, who keeps it between cycles; a new one gives the
same answers, only slower.
Invariant: what is kept is what would be computed.
"""

from collections.abc import Callable, Sequence
from typing import Any

from fallow.decide.scaling import fit, shrink, templates
from fallow.decide.scaling.fit import FreeRoom
from fallow.decide.scaling.shrink import Candidate, Guests, Simulated
from fallow.decide.scaling.templates import NodesAlike
from fallow.model.scaling import ScaledNode, ScaledPod


class KeptSight:
    """Make one, and hand it to every `plan` of the same cluster."""

    def __init__(self) -> None:
        self._nodes: tuple[ScaledNode, ...] | None = None
        self._pods: tuple[ScaledPod, ...] = ()
        self._by_id: dict[int, ScaledPod] = {}
        self._tenants: dict[str, dict[int, ScaledPod]] = {}
        self._guests: dict[str, Guests] = {}
        self._answers: dict[str, tuple[Any, Any]] = {}
        self.version = 0  # of all that simulations rest on
        self.shapes = 0  # of what nodes have, their labels and taints
        self.room = FreeRoom((), ())
        self.waiting: tuple[ScaledPod, ...] = ()

    def refresh(self, nodes: tuple[ScaledNode, ...], pods: tuple[ScaledPod, ...]) -> None:
        came, went = ((), ()) if pods is self._pods else self._count_pods(pods)
        if self._nodes is None or not _are_alike(self._nodes, nodes):
            self.room = FreeRoom(nodes, pods)
            self.shapes += 1
            self.version += 1
        elif came or went:
            self.room.shift(went, -1)
            self.room.shift(came, 1)
            self.version += 1
        self._nodes = nodes

    def _count_pods(self, pods: tuple[ScaledPod, ...]) -> tuple[Sequence[ScaledPod], Sequence[ScaledPod]]:
        """Who came and who went."""
        now = {id(pod): pod for pod in pods}
        came = [pod for key, pod in now.items() if key not in self._by_id]
        went = [pod for key, pod in self._by_id.items() if key not in now]
        for pod in went:
            self._tenants[pod.node].pop(id(pod))
        for pod in came:
            self._tenants.setdefault(pod.node, {})[id(pod)] = pod
        for pod in (*went, *came):
            self._guests.pop(pod.node, None)
        self._by_id, self._pods = now, pods
        if came or went:
            self.waiting = tuple(pod for pod in pods if not pod.node and (pod.unclear or fit.count_gpus(pod.asks)))
        return came, went

    def guests(self, node: str) -> Guests:
        found = self._guests.get(node)
        if found is None:
            found = self._guests[node] = shrink.count_guests(self.tenants(node))
        return found

    def tenants(self, node: str) -> tuple[ScaledPod, ...]:
        return tuple(self._tenants.get(node, {}).values())

    def belongings(self, node: str) -> list[ScaledPod]:
        return [pod for pod in self.tenants(node) if pod.stays]

    def compare(self, pool: str, alive: Sequence[ScaledNode]) -> NodesAlike:
        key = (self.shapes, [node.name for node in alive])
        found: NodesAlike = self.ask(f"compare {pool}", key, lambda: templates.compare(alive))
        return found

    def ask(self, name: str, key: Any, answer: Callable[[], Any]) -> Any:
        """What was answered last to the same question, or the answer."""
        kept = self._answers.get(name)
        if kept is None or kept[0] != key:
            kept = self._answers[name] = (key, answer())
        return kept[1]

    def simulate(self, policy: str, candidates: Sequence[Candidate], usable: fit.Bools) -> Simulated:
        key = (self.version, usable.tobytes(), tuple((each.node.uid, each.kind) for each in candidates))
        found: Simulated = self.ask(
            f"simulate {policy}", key, lambda: shrink.simulate(candidates, self.room.copy(), usable)
        )
        return found


def _are_alike(before: Sequence[ScaledNode], now: Sequence[ScaledNode]) -> bool:
    """For who asks what fits."""
    return before is now or (len(before) == len(now) and all(
        one is other or (
            one.name == other.name and one.has == other.has and one.taints == other.taints
            and one.labels == other.labels
        ) for one, other in zip(before, now, strict=True)
    ))
