"""How does a live cluster stand, and where would the pods that wait go?

In: a LiveCluster and the policy that decides. Out: a ClusterStanding: how full the GPUs are, what of the rest is of no
use and for what cause, what no packer could exceed with these pods, and for each pod that waits a node or a reason.
Invariant: the cluster is not touched; who waits is placed one after the other, so that no share is promised twice.
"""

import msgspec

from fallow.decide.packing import fragments, live, packer, prices
from fallow.decide.packing.live import LiveCluster
from fallow.decide.packing.lp import Unsolved
from fallow.decide.packing.packer import PackingPolicy
from fallow.decide.packing.room import GPU, PackingPod, Room
from fallow.model import cluster
from fallow.model.units import Instant


class WaitingPod(msgspec.Struct, frozen=True):
    """`node`: where it would go; None and `why` where it cannot."""

    pod: str
    node: str | None
    gpus: tuple[int, ...] = ()
    why: str = ""


class ClusterStanding(msgspec.Struct, frozen=True, kw_only=True):
    gpus: int
    allocated_gpus: float
    fragmented: float | None  # % of what is free; None where nothing is, or nothing is known of what usually comes
    free_by_cause: dict[fragments.Cause, float]  # GPUs
    bound: float | None  # % of GPUs that no packer could exceed with these pods
    bound_unknown: str  # why it is not known
    waiting: tuple[WaitingPod, ...]


class ClusterRoom(msgspec.Struct, frozen=True, kw_only=True):
    """Without what takes long to find out. `fragmented`: 0 to 1 of what is free; None as above. `stranded`: free GPUs
    by node that are of no use to what usually comes, where there are any. `nodes`: those that are counted; `notes`:
    what is to be said of the others."""

    gpus: int
    allocated_gpus: float
    nodes: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    fragmented: float | None
    free_by_cause: dict[fragments.Cause, float]
    stranded: dict[str, float] = {}
    scores: dict[tuple[str, int], float] = {}  # by node and GPU: what of its free part is too small for what comes


def measure(seen: cluster.Capacity, now: Instant) -> ClusterRoom:
    found = live.settle(seen, now)
    room, tables = found.room, fragments.make_tables(found.room.nodes, found.sample)
    share = tables.find_share(room) if tables else None
    return ClusterRoom(
        gpus=room.nodes.capacity // GPU, allocated_gpus=room.allocated / GPU, nodes=frozenset(room.nodes.names),
        notes=found.notes,
        fragmented=None if share is None else share / 100, free_by_cause=fragments.split_by_cause(room, found.sample),
        stranded={} if tables is None else _find_stranded(room, tables),
        scores=fragments.score_gpus(room, found.sample),
    )


def _find_stranded(room: Room, tables: fragments.Fragments) -> dict[str, float]:
    milli = (tables.measure(room) / tables.pods).tolist()
    return {name: free / GPU for name, free in zip(room.nodes.names, milli, strict=True) if free >= 1}


def measure_bound(seen: cluster.Capacity, now: Instant) -> float | None:
    """0 to 1 of all GPUs: what no packer could exceed with these pods; None: nobody knows. It takes its time."""
    found = live.settle(seen, now)
    try:
        return prices.find_bound(found.room.nodes, [*(each.pod for each in found.running), *found.waiting]) / 100
    except Unsolved:
        return None


class NodeRoom(msgspec.Struct, frozen=True, kw_only=True):
    """One node. `free_by_cause`: its free GPUs by what keeps the pods that usually come from using them; empty where
    nothing is known of those. `left_out`: why nothing of it can be told; "": it can be."""

    gpus: int = 0
    free: float = 0.0
    free_by_cause: dict[fragments.Cause, float] = {}
    left_out: str = ""


def measure_node(seen: cluster.Capacity, name: str, now: Instant) -> NodeRoom:
    found = live.settle(seen, now)
    names = found.room.nodes.names
    if name not in names:
        machine = next((each for each in seen.machines if each.name == name), None)
        tenants = [pod for pod in seen.pods if pod.node == name]
        why = live.why_left_out(machine, tenants) if machine is not None else "it could not be read"
        return NodeRoom(left_out=why)
    row = names.index(name)
    has_demand = bool(fragments.find_popular(found.sample))
    return NodeRoom(
        gpus=int(found.room.nodes.gpus[row]), free=float(found.room.free[row]) / GPU,
        free_by_cause=fragments.split_by_cause(found.room, found.sample, row) if has_demand else {},
    )


def stand(found: LiveCluster, policy: PackingPolicy) -> ClusterStanding:
    room = found.room.copy()
    tables = fragments.make_tables(room.nodes, found.sample)
    bound, unknown = None, ""
    everybody = [*(each.pod for each in found.running), *found.waiting]
    try:
        bound = round(prices.find_bound(room.nodes, everybody), 2)
    except Unsolved as reason:
        unknown = str(reason)
    return ClusterStanding(
        gpus=room.nodes.capacity // GPU, allocated_gpus=room.allocated / GPU,
        fragmented=tables.find_share(room) if tables else None,
        free_by_cause=fragments.split_by_cause(room, found.sample), bound=bound, bound_unknown=unknown,
        waiting=(
            *(WaitingPod(name, None, why=f"cannot tell: {why}") for name, why in found.unclear),
            *[_let_in(room, pod, policy, found) for pod in found.waiting],
        ),
    )


def _let_in(room: Room, pod: PackingPod, policy: PackingPolicy, found: LiveCluster) -> WaitingPod:
    placement = packer.place(room, pod, policy, found.order)
    if placement is None:
        return WaitingPod(pod.name, None, why=str(packer.refuse(room.nodes, pod)))
    room.add(pod, placement)
    return WaitingPod(pod.name, room.nodes.names[placement.node], placement.gpus)
