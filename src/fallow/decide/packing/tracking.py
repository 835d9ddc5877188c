"""A live cluster, kept up to date pod by pod, that says where a pod goes best among the nodes a scheduler offers.

In: machines, once; then tenants as they come, change and go; and what a pod needs with the names of nodes that have
room for it by the scheduler's own count. Out: the best of them, of which the very best is promised to the pod.
Which GPU of a node a pod holds the API server does not say; a share is taken to be of the tightest that fits.
Invariant: free is only what is known to be free. A node that runs somebody of whom it cannot be said what they take, or
more than it has, is not ranked until they are gone.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from fallow.decide.packing import fragments, live, packer, reserve
from fallow.decide.packing.packer import PackingPolicy
from fallow.decide.packing.room import GPU, Ints, Nodes, PackingPod, Placement
from fallow.model.capacity import Machine, Needs, Tenant
from fallow.model.moving import HeldPlace
from fallow.model.units import Instant

RANKED: Final = 10  # nodes; a scheduler's extender gives at most 10 points
LOOKED_FOR: Final = 40  # of the best of all, among those that are offered, before all that are offered are read
MOST_KEPT: Final = 64  # classes: 200 KB each on 12,000 nodes


class NoOpinion(StrEnum):
    """Why nothing is said about a pod's place."""

    UnknownRequest = "UnknownRequest"  # by claims, of a MIG instance, or of what cannot be read
    UnevenShares = "UnevenShares"  # the nodes offered do not all share their GPUs alike
    UnknownNodes = "UnknownNodes"  # of none of them it is known what is free


class PackingGround(msgspec.Struct, frozen=True, eq=False):
    """The nodes that can be counted, as rows."""

    nodes: Nodes
    order: Ints
    rows: Mapping[str, int]
    replicas: Ints
    renamed: NDArray[np.bool_]  # whether what is shared is asked for by a name of its own
    gpu_memory: tuple[int | None, ...]  # MiB of each GPU
    models: live.ShareModels


def lay_out(machines: Iterable[Machine], cluster: str) -> PackingGround:
    usable = sorted((each for each in machines if not each.left_out), key=lambda machine: machine.name)
    made = [(machine, live.make_node(machine)) for machine in usable]
    kept = [(machine, node) for machine, node in made if not node.find_fault()]
    nodes = Nodes([node for _, node in kept])
    return PackingGround(
        nodes=nodes, order=packer.order_nodes(nodes.names, cluster),
        rows={name: row for row, name in enumerate(nodes.names)},
        replicas=np.array([machine.replicas for machine, _ in kept], np.int64),
        renamed=np.array([machine.is_renamed for machine, _ in kept], np.bool_),
        gpu_memory=tuple(machine.gpu_memory for machine, _ in kept),
        models=live.ShareModels(machine for machine, _ in kept),
    )


def read_request(ground: PackingGround, needs: Needs, shares: int) -> PackingPod | None:
    """What is asked for where each GPU has so many shares; None where that cannot be said."""
    count = needs.gpus + needs.shared
    if needs.unknown or (needs.shared and shares == 1) or (count > 1 and shares > 1):
        return None
    milli = GPU // shares if count else 0
    models = ground.models.accept(needs, shares) if count else ()
    pod = PackingPod("", needs.cpu, needs.memory, count, milli, models)
    return None if pod.find_fault() else pod


def draw_sample(ground: PackingGround, tenants: Iterable[Tenant], now: Instant) -> tuple[PackingPod, ...]:
    """What usually comes: the pods of a week, or all where they are few."""
    usual = int(ground.replicas[ground.nodes.gpus > 0].max(initial=1))  # where a share waits, of the finest
    known: dict[tuple[Needs, int], PackingPod | None] = {}
    recent, older = list[PackingPod](), list[PackingPod]()
    for tenant in tenants:
        row = ground.rows.get(tenant.node)
        shares = int(ground.replicas[row]) if row is not None else usual if tenant.needs.shared else 1
        asked = tenant.needs, shares
        if asked not in known:
            known[asked] = read_request(ground, *asked)
        if (pod := known[asked]) is not None:
            (recent if tenant.created_at >= now - live.RECENT else older).append(pod)
    sample = tuple(recent) if len(recent) >= live.ENOUGH else (*recent, *older)
    return sample if len(known) <= fragments.MOST_CLASSES else fragments.keep_usual(sample)


class Offered(msgspec.Struct, frozen=True):
    """The nodes a scheduler offers. Of 12,000 the few best are looked for among them (`has`), which takes a tenth of
    the time that reading all `names` does."""

    names: Callable[[], Sequence[str]]
    has: Callable[[str], bool]


def offer(names: Sequence[str]) -> Offered:
    return Offered(lambda: names, names.__contains__)


class Ranking(msgspec.Struct, frozen=True):
    """Nodes, best first; none: all that were offered are full as far as we know."""

    nodes: tuple[str, ...]


class _Seat(msgspec.Struct, frozen=True, gc=False):
    tenant: Tenant
    pod: PackingPod | None  # None: it is there, and what it takes cannot be counted
    placement: Placement | None


_Found = tuple[PackingPod, list[Placement]]


def _find_only(replicas: Ints) -> int | None:
    """How many shares each GPU has, where all have as many."""
    found = np.unique(replicas).tolist()
    return int(found[0]) if len(found) == 1 else None


class LiveRoom:
    def __init__(self, ground: PackingGround, policy: PackingPolicy) -> None:
        self.ground, self.policy = ground, policy
        self._packer = packer.Packer(ground.nodes, policy, ground.order, most_kept=MOST_KEPT)
        self.promises = reserve.Reservations(self._packer)
        self._seats: dict[str, _Seat] = {}
        self._uncounted: dict[int, set[str]] = {}  # by row: uids
        self._requests: dict[tuple[Needs, int], PackingPod | None] = {}
        self._placements: dict[Placement, Placement] = {}  # equal ones kept once
        self._gpu_memory: dict[int, int] = {}  # by row: MiB that tenants said they need
        self._every: Ints = np.arange(len(ground.nodes))
        has_gpus = ground.nodes.gpus > 0
        self._shares, self._shares_shared = (
            _find_only(ground.replicas[has_gpus & named]) for named in (~ground.renamed, ground.renamed)
        )

    @property
    def allocated(self) -> int:
        """GPU milli, with what is promised."""
        return self._packer.room.allocated

    def see(self, uid: str, tenant: Tenant | None) -> None:
        """The pod is there as it is now, or (None) no more. Told twice is told once."""
        before = self._seats.get(uid)
        if before is not None:
            if tenant is not None and (before.tenant.node, before.tenant.needs) == (tenant.node, tenant.needs):
                return
            self._leave(uid, before)
        if tenant is None or tenant.node:
            self.promises.settle(uid)
        if tenant is not None and tenant.node in self.ground.rows:
            self._sit(uid, tenant, self.ground.rows[tenant.node])

    def _sit(self, uid: str, tenant: Tenant, row: int) -> None:
        pod = self._read(tenant.needs, int(self.ground.replicas[row]))
        placement = None if pod is None else self._find_seat(pod, row)
        if pod is not None and placement is None:
            self.promises.release(row)
            placement = self._find_seat(pod, row)
        if pod is None or placement is None:
            self._uncounted.setdefault(row, set()).add(uid)
        else:
            self._packer.room.add(pod, placement)
        self._remember_memory(tenant, row, 1)
        self._seats[uid] = _Seat(tenant, pod, placement)

    def _find_seat(self, pod: PackingPod, row: int) -> Placement | None:
        """The tightest GPU for a share, the first untouched ones for whole GPUs."""
        room = self._packer.room
        free = room.gpu[row].tolist() if pod.gpus else []
        fitting = [gpu for gpu, milli in enumerate(free) if milli >= pod.milli]
        chosen = sorted(sorted(fitting, key=lambda gpu: (free[gpu], gpu))[: pod.gpus])
        placement = Placement(row, tuple(chosen), pod.milli)
        return self._placements.setdefault(placement, placement) if room.fits(pod, placement) else None

    def _leave(self, uid: str, seat: _Seat) -> None:
        del self._seats[uid]
        row = self.ground.rows[seat.tenant.node]
        self._remember_memory(seat.tenant, row, -1)
        if seat.pod is not None and seat.placement is not None:
            self._packer.room.remove(seat.pod, seat.placement)
        else:
            self._uncounted[row].discard(uid)
        for waiting in sorted(self._uncounted.pop(row, ())):  # there may be room for it now
            again = self._seats.pop(waiting).tenant
            self._remember_memory(again, row, -1)
            self._sit(waiting, again, row)

    def _remember_memory(self, tenant: Tenant, row: int, sign: int) -> None:
        """Of who is on a GPU, and no more than its share has: what somebody claims beyond that keeps nobody away."""
        count, each = tenant.needs.gpus + tenant.needs.shared, self.ground.gpu_memory[row]
        if tenant.gpu_memory is not None and count and each is not None:
            share = count * each // int(self.ground.replicas[row])
            self._gpu_memory[row] = self._gpu_memory.get(row, 0) + sign * min(tenant.gpu_memory, share)

    def _read(self, needs: Needs, shares: int) -> PackingPod | None:
        if (needs, shares) not in self._requests:
            if len(self._requests) > 16 * MOST_KEPT:
                self._requests.clear()
            self._requests[needs, shares] = read_request(self.ground, needs, shares)
        return self._requests[needs, shares]

    def rank(self, uid: str, needs: Needs, offered: Offered, now: Instant, kept: str = "") -> Ranking | NoOpinion:
        """The best of the nodes offered; the first is promised to the pod. `kept`: the node where a place is kept for
        it, which comes first."""
        self.promises.expire(now)
        self.promises.settle(uid)  # what was promised to itself must not stand in its way
        found = self._rank_known(needs, offered) or self._rank_all(needs, offered)
        if isinstance(found, NoOpinion):
            return found
        pod, best = found
        best = self._put_first(pod, best, kept) if kept and offered.has(kept) else best
        if best:
            self.promises.hold(reserve.Promise(uid, pod, best[0], now + reserve.PROMISED_FOR))
        return Ranking(tuple(self.ground.nodes.names[each.node] for each in best))

    def _put_first(self, pod: PackingPod, best: list[Placement], node: str) -> list[Placement]:
        row = self.ground.rows.get(node)
        seat = self._find_seat(pod, row) if row is not None and row not in self._uncounted else None
        return best if seat is None else [seat, *(each for each in best if each.node != row)][:RANKED]

    def has_place(self, node: str, place: HeldPlace, beside: Needs | None = None) -> bool | None:
        """Whether there is room for whom a place is kept, once who leaves it is gone, and for another `beside`; None:
        nobody can tell."""
        row = self.ground.rows.get(node)
        if row is None or row in self._uncounted:
            return None
        shares = int(self.ground.replicas[row])
        asked = [self._read(needs, shares) for needs in (place.needs, *([beside] if beside is not None else []))]
        come = [pod for pod in asked if pod is not None]
        leaving = self._seats.get(place.leaving)
        if len(come) < len(asked):
            return None
        if leaving is None or leaving.tenant.node != node or leaving.pod is None or leaving.placement is None:
            return self._fit_in(row, come)
        self._packer.room.remove(leaving.pod, leaving.placement)
        try:
            return self._fit_in(row, come)
        finally:
            self._packer.room.add(leaving.pod, leaving.placement)

    def _fit_in(self, row: int, asked: Sequence[PackingPod]) -> bool:
        """All of them at once. Tried on the room itself, and undone."""
        room, came = self._packer.room, list[tuple[PackingPod, Placement]]()
        try:
            for pod in asked:
                seat = self._find_seat(pod, row) if pod.accepts(self.ground.nodes.rows[row].model) else None
                if seat is None:
                    return False
                room.add(pod, seat)
                came.append((pod, seat))
            return True
        finally:
            for pod, seat in reversed(came):
                room.remove(pod, seat)

    def _rank_known(self, needs: Needs, offered: Offered) -> _Found | None:
        """The best of all nodes, as far as they are offered; None where those are too few, or shares differ."""
        shares = self._shares_shared if needs.shared else self._shares if needs.gpus else 1
        pod = self._read(needs, shares) if shares is not None else None
        if pod is None:
            return None
        best = (each for each in self._packer.rank(pod, self._every, LOOKED_FOR) if each.node not in self._uncounted)
        there = itertools.islice((each for each in best if offered.has(self.ground.nodes.names[each.node])), RANKED)
        found = list(there)
        return (pod, found) if len(found) == RANKED else None

    def _rank_all(self, needs: Needs, offered: Offered) -> _Found | NoOpinion:
        rows = self._find_rows(offered.names())
        if not rows.size:
            return NoOpinion.UnknownNodes
        asks = needs.gpus or needs.shared  # who asks for no GPU does not mind how they are shared
        shares = np.unique(self.ground.replicas[rows]) if asks else [1]
        if len(shares) > 1:
            return NoOpinion.UnevenShares
        pod = self._read(needs, int(shares[0]))
        return NoOpinion.UnknownRequest if pod is None else (pod, self._packer.rank(pod, rows, RANKED))

    def _find_rows(self, offered: Iterable[str]) -> Ints:
        known, uncounted = self.ground.rows, self._uncounted
        rows = [row for name in offered if (row := known.get(name)) is not None]
        return np.array([row for row in rows if row not in uncounted] if uncounted else rows, np.int64)

    def bind(self, uid: str, node: str, now: Instant) -> None:
        """The scheduler says where the pod goes: it counts there until it is seen."""
        promise = next((each for each in self.promises if each.uid == uid), None)
        row = self.ground.rows.get(node)
        if promise is None or row is None or promise.placement.node == row:
            return
        self.promises.settle(uid)
        if (seat := self._find_seat(promise.pod, row)) is not None:
            self.promises.hold(reserve.Promise(uid, promise.pod, seat, now + reserve.PROMISED_FOR))

    def lacks_gpu_memory(self, need: int, offered: Iterable[str]) -> list[str]:
        """Shared nodes on which even all that is free of GPU memory together is less than a pod says it needs."""
        lacking = []
        for name in offered:
            row = self.ground.rows.get(name)
            if row is None or self.ground.replicas[row] == 1 or (each := self.ground.gpu_memory[row]) is None:
                continue
            if int(self.ground.nodes.gpus[row]) * each - self._gpu_memory.get(row, 0) < need:
                lacking.append(name)
        return lacking

    def adopt(self, other: "LiveRoom") -> None:
        """What another room has promised, as far as there is room here."""
        for promise in other.promises:
            row = self.ground.rows.get(other.ground.nodes.names[promise.placement.node])
            seat = None if row is None or promise.uid in self._seats else self._find_seat(promise.pod, row)
            if seat is not None:
                self.promises.hold(reserve.Promise(promise.uid, promise.pod, seat, promise.until))
