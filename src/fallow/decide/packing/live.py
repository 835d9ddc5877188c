"""A live cluster as it stands, in the engine's nouns: everybody where they run, who waits, what usually comes.

In: a Capacity and `now`. Out: a LiveCluster, with what was left out counted by reason.
Invariant: free is only what is known to be free. A node that runs a pod of which it cannot be said what it takes, or
more than it has, is left out with all its pods. Which GPU of a node a pod holds the API server does not say; a share is
taken to be of the tightest that fits.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from fallow.decide.packing import defrag, fragments, packer
from fallow.decide.packing.room import GPU, Ints, Nodes, PackingNode, PackingPod, Placement, Room
from fallow.model import cluster
from fallow.model.capacity import OF_ITS_NODE, Machine, Needs
from fallow.model.units import DAY, MINUTE, Instant, many

UNKNOWN_MODEL: Final = "unknown"
RECENT: Final = 7 * DAY  # what usually comes: pods of so long, if they are enough
ENOUGH: Final = 200
SETTLED: Final = 10 * MINUTE  # a younger pod is not moved: it has hardly begun


class LiveCluster(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    room: Room
    order: Ints
    running: tuple[defrag.Running, ...]
    waiting: tuple[PackingPod, ...]
    unclear: tuple[tuple[str, str], ...]  # pods that wait and cannot be judged, and why
    sample: tuple[PackingPod, ...]
    notes: tuple[str, ...]


def settle(seen: cluster.Capacity, now: Instant) -> LiveCluster:
    machines, notes = _choose(seen)
    requests = _Requests(seen.machines, machines)
    room = Room(Nodes([make_node(machine) for machine in machines]))
    rows = {machine.name: row for row, machine in enumerate(machines)}
    running, waiting, unclear = list[defrag.Running](), list[PackingPod](), list[tuple[str, str]]()
    for tenant in seen.pods:
        if tenant.node in rows:
            needs, is_settled = tenant.needs, tenant.created_at <= now - SETTLED
            is_movable = is_settled and not needs.fixed and not needs.unclear
            running.append(_seat(room, requests.read(tenant), rows[tenant.node], is_movable=is_movable))
        elif tenant.node:
            continue
        elif why := requests.why_unclear(tenant):
            unclear.append((_name(tenant), why))
        else:
            waiting.append(requests.read(tenant))
    sample, guessed = _sample(requests, seen.pods, now)
    if guessed:
        notes.append(
            f"{many(guessed, 'pod')} chose nodes in a way that packing does not read: "
            f"{'it is' if guessed == 1 else 'each is'} taken to accept the GPU model on which it runs"
        )
    return LiveCluster(
        room=room, order=packer.order_nodes(room.nodes.names, seen.cluster), running=tuple(running),
        waiting=tuple(waiting), unclear=tuple(unclear), sample=sample, notes=tuple(notes),
    )


def _seat(room: Room, pod: PackingPod, node: int, *, is_movable: bool) -> defrag.Running:
    """The tightest GPU for a share, the first untouched ones for whole GPUs."""
    free = room.gpu[node].tolist()
    fitting = [gpu for gpu, milli in enumerate(free) if milli >= pod.milli]
    chosen = sorted(fitting, key=lambda gpu: (free[gpu], gpu))[: pod.gpus]
    placement = Placement(node, tuple(sorted(chosen)), pod.milli)
    room.add(pod, placement)
    return defrag.Running(pod, placement, is_movable)


def _sample(
    requests: "_Requests", tenants: Sequence[cluster.Pod], now: Instant
) -> tuple[tuple[PackingPod, ...], int]:
    """What usually comes: the pods of a week, or all where they are few; and of how many it is guessed where they may
    go. Who belongs to a node comes with it, and is nobody who arrives."""
    found = [
        (tenant, pod) for tenant in tenants
        if tenant.needs.fixed != OF_ITS_NODE and (pod := requests.read_usual(tenant)) is not None
    ]
    recent = [each for each in found if each[0].created_at >= now - RECENT]
    usual = recent if len(recent) >= ENOUGH else found
    return fragments.keep_usual([pod for _, pod in usual]), sum(bool(tenant.needs.unclear) for tenant, _ in usual)


def _choose(seen: cluster.Capacity) -> tuple[list[Machine], list[str]]:
    """The nodes whose free room is known, and what is to be said of the others."""
    tenants: dict[str, list[cluster.Pod]] = {}
    for tenant in seen.pods:
        tenants.setdefault(tenant.node, []).append(tenant)
    why = {machine.name: why_left_out(machine, tenants.get(machine.name, ())) for machine in seen.machines}
    counts = Counter(reason for reason in why.values() if reason)
    if seen.unread:
        counts["could not be read"] += seen.unread
    notes = [
        f"{many(count, 'node')} left out: {'it' if count == 1 else 'each'} {reason}" for reason, count in counts.items()
    ]
    if not seen.cluster:
        notes.append("the cluster's own id could not be read: ties are decided by the names of nodes alone")
    return [machine for machine in seen.machines if not why[machine.name]], notes


def why_left_out(machine: Machine, tenants: Sequence[cluster.Pod]) -> str:
    """Why what is free there cannot be told; "": it can be."""
    if machine.left_out:
        return machine.left_out
    if make_node(machine).find_fault():
        return "has what no machine has"
    if any(tenant.needs.unknown for tenant in tenants):
        return "runs a pod of which it cannot be said what it takes"
    if any(_count(tenant) > 1 if machine.replicas > 1 else tenant.needs.shared for tenant in tenants):
        return "runs a pod that asks for other shares than its GPUs have"
    has = machine.cpu, machine.memory, machine.gpus * machine.replicas, machine.pods
    cpu, memory = sum(tenant.needs.cpu for tenant in tenants), sum(tenant.needs.memory for tenant in tenants)
    taken = cpu, memory, sum(map(_count, tenants)), len(tenants)
    is_over = any(asked > there for asked, there in zip(taken, has, strict=True))
    return "runs pods that ask for more than it has" if is_over else ""


def _count(tenant: cluster.Pod) -> int:
    return tenant.needs.gpus + tenant.needs.shared


def name_model(product: str, shares: int, *, is_renamed: bool) -> str:
    """GPUs that are shared otherwise, or not, are of another model: none of them serves for another."""
    return product if shares == 1 else f"{product} in {shares} {'parts' if is_renamed else 'replicas'}"


def make_node(machine: Machine) -> PackingNode:
    named = name_model(machine.product or UNKNOWN_MODEL, machine.replicas, is_renamed=machine.is_renamed)
    model = named if machine.gpus else ""
    return PackingNode(machine.name, model, machine.cpu, machine.memory, machine.gpus, machine.pods)


def _name(tenant: cluster.Pod) -> str:
    return f"{tenant.namespace}/{tenant.name}"


class ShareModels:
    """Which models a request is for. A share is asked for by a name of its own where nodes have renamed it; where they
    have not, only the node on which it runs tells that it is one."""

    def __init__(self, machines: Iterable[Machine]) -> None:
        self._by_kind: dict[tuple[int, bool], set[str]] = {}
        for machine in machines:
            if machine.gpus:
                kind = machine.replicas, machine.replicas > 1 and machine.is_renamed
                self._by_kind.setdefault(kind, set()).add(make_node(machine).model)

    def accept(self, needs: Needs, shares: int) -> tuple[str, ...]:
        """Empty: any."""
        is_renamed = shares > 1 and needs.shared > 0
        if needs.products:
            return tuple(name_model(each, shares, is_renamed=is_renamed) for each in needs.products)
        if not set(self._by_kind) - {(shares, is_renamed)}:
            return ()
        return tuple(sorted(self._by_kind.get((shares, is_renamed), ()))) or (UNKNOWN_MODEL,)


class _Requests:
    """Requests as the engine knows them. GPUs that are shared and GPUs that are not never serve for each other."""

    def __init__(self, everywhere: Iterable[Machine], usable: Sequence[Machine]) -> None:
        self._replicas: Mapping[str, int] = {machine.name: machine.replicas for machine in everywhere}
        self._shares = {machine.replicas for machine in usable if machine.gpus and machine.replicas > 1}
        self._models = ShareModels(usable)
        self._runs_on = {machine.name: make_node(machine).model for machine in usable if machine.gpus}

    def read_usual(self, tenant: cluster.Pod) -> PackingPod | None:
        """As one of those that usually come; None: it cannot be said what it is. Who runs, and chose its node in a way
        that is not read here, accepts at least what it runs on."""
        if not tenant.needs.unclear:
            return None if self.why_unclear(tenant) else self.read(tenant)
        model = self._runs_on.get(tenant.node)
        sure = msgspec.structs.replace(tenant, needs=msgspec.structs.replace(tenant.needs, unclear=""))
        if model is None or not _count(tenant) or self.why_unclear(sure):
            return None
        return msgspec.structs.replace(self.read(sure), models=(model,))

    def read(self, tenant: cluster.Pod) -> PackingPod:
        name, shares = _name(tenant), self._count_shares(tenant)
        if not _count(tenant):
            return PackingPod(name, tenant.needs.cpu, tenant.needs.memory)
        models = self._models.accept(tenant.needs, shares)
        count = tenant.needs.gpus if shares == 1 else 1
        return PackingPod(name, tenant.needs.cpu, tenant.needs.memory, count, GPU // shares, models)

    def _count_shares(self, tenant: cluster.Pod) -> int:
        """Of how many one is asked for; where it runs its node tells."""
        if tenant.node:
            return self._replicas.get(tenant.node, 1)
        return max(self._shares, default=1) if tenant.needs.shared else 1

    def why_unclear(self, tenant: cluster.Pod) -> str:
        """Why it cannot be said where a pod like this one would fit; "" if it can."""
        if tenant.needs.unknown or tenant.needs.unclear:
            return tenant.needs.unknown or tenant.needs.unclear
        if _count(tenant) > 1 and (tenant.needs.shared or self._count_shares(tenant) > 1):
            return "asks for several shares"
        if tenant.needs.shared and not tenant.node and len(self._shares) != 1:
            nodes = "nodes do not all share alike" if self._shares else "no node shares its GPUs"
            return f"asks for a share, and {nodes}"
        return self.read(tenant).find_fault()
