"""Whose each part of each GPU is, and in which state: what was seen, as facts for the book of intervals.

In: looks at the cluster (pods, nodes, namespaces, workloads, who went away since), the rows of the latest idle cycle,
what each node costs. Out: facts in a Book (intervals.py). A look takes work for what differs from the look before.
Team, project and so on come from labels of the pod, of its workload, of its namespace, in this order (whose.py).
Invariant: a node that is not seen makes nothing unallocated, a row that is not there makes nothing idle; both leave
what was known as it is, or make its use unknown.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec

from fallow import names
from fallow.account import met, seating, whose
from fallow.account.intervals import Book
from fallow.account.judged import JudgedRow, JudgedRows
from fallow.account.timeline import Face, Ground, Holding
from fallow.model import cluster, decision, gpus, shares
from fallow.model.cost import HOUR, WHOLE, CostKey, Micro, NodeBill, Second, Sharing, SpendState
from fallow.model.seen import Absent, Register
from fallow.model.units import Instant

Bill: TypeAlias = Callable[[cluster.Node], NodeBill]

_PARTLY: Final = (Sharing.timeslicing, Sharing.mps, Sharing.hami, Sharing.kai, Sharing.dra)
_UNMEASURED: Final = SpendState.use_unknown
_USED: Final = SpendState.used
_HELD_IDLE: Final = SpendState.held_idle
# Until a pod has rows: a scrape, a mapping, a cycle. What they show first is of that time, too.
_FIRST_ROWS: Final[Second] = 360
_BLANK_NODE: Final = cluster.Node(
    name="", hostname="", addresses=(), ready=False, gpu_product=None, shared=False, labels={}
)


class KeepingAck(NamedTuple):
    """An acknowledgement that holds. `since` None: when it was given is not known."""

    id: str
    since: Instant | None = None


class BookLook(msgspec.Struct, frozen=True, kw_only=True):
    """What there is at one instant. `sees_all`: pods of all namespaces are seen. `rows`: of the latest idle cycle, None
    = nothing can be said of use; `row_pods`: the pods that they count by; `acks`: by uid of the workload."""

    at: Instant
    pods: tuple[cluster.Pod, ...]
    nodes: Register[cluster.Node]
    namespaces: Register[cluster.Namespace]
    workloads: tuple[cluster.Workload, ...]
    departures: Sequence[cluster.Departure] = ()
    rows: decision.HeldRows | None = None
    row_pods: tuple[cluster.Pod, ...] = ()
    acks: Mapping[str, KeepingAck] = {}
    sees_all: bool = True


class _BilledNode:
    """What is known of a node."""

    __slots__ = ("bill", "ground", "host", "node")

    def __init__(self, node: cluster.Node, bill: NodeBill, host: seating.Host, ground: Ground) -> None:
        self.node, self.bill, self.host, self.ground = node, bill, host, ground


class GpuAttribution:
    """Keeps a Book up to date, look by look. `own`: namespaces whose pods are ours."""

    def __init__(
        self, book: Book, bill: Bill, *, cluster_name: str = names.DEFAULT_CLUSTER,
        labels: Iterable[str] = whose.KEPT_LABELS, own: Iterable[str] = (),
    ) -> None:
        self.book, self._bill, self._cluster = book, bill, cluster_name
        self._whose = whose.Whose(labels, own)
        self._nodes: dict[str, _BilledNode] = {}
        self._pods = met.MetPods()  # that hold
        self._holdings: dict[str, list[Holding]] = {}
        self._judged = JudgedRows()
        self._acks: Mapping[str, KeepingAck] = {}
        self._fresh: set[str] = set()  # that began in this look
        self._sees_all, self._register = True, Register[cluster.Node]({})
        self._seen_pods: object = None
        self._reserved: set[str] = set()  # reservations that are booked
        self._leaving: set[str] = set()
        self._ahead: set[tuple[str, Instant]] = set()  # pods that this look leaves to the next, by what is dated so
        self._was_ahead: set[tuple[str, Instant]] = set()  # that the look before left to this one
        self._left: list[cluster.Departure] = []  # of them, those who went
        self._resumed_at: Second | None = None

    @property
    def odd(self) -> list[str]:
        """What did not add up, in sentences."""
        return sorted({why for each in self._nodes.values() for why in each.host.odd.values()})

    @property
    def holdings(self) -> Mapping[str, Sequence[Holding]]:
        """By uid of the pod."""
        return self._holdings

    @property
    def pods(self) -> Mapping[str, cluster.Pod]:
        """Those that hold, by uid."""
        return self._pods.by_uid

    @property
    def expected(self) -> list[cluster.PodId]:
        """Who holds by the ledger, and was not looked for since it was read."""
        if self._resumed_at is None:
            return []
        unseen = self._holdings.keys() - self._pods.by_uid.keys()
        first = (self._holdings[uid][0] for uid in sorted(unseen))
        return [cluster.PodId(one.faces.last.key.namespace, one.pod_name, one.pod_uid) for one in first]

    def take(self, look: BookLook) -> None:
        """All that differs from the look before becomes facts."""
        before, gaps = self.book.at, len(self.book.gaps)
        self._sees_all, self._register = look.sees_all, look.nodes
        self._was_ahead, self._ahead = self._ahead, set()
        now = self.book.begin_look(math.floor(look.at))
        passed = self._see_departures(look, before, now)  # first: a node that is gone ends whoever is there still
        changed = self._see_nodes(look.nodes, before, now)
        for pod, end in passed:
            self._pass_by(pod, look, now, end)
        changed |= self._see_pods(look, before, now)
        for known in self._nodes.values():
            if known.host.strays:
                known.host.find_room()
        changed |= self._whose.see(look.pods, look.workloads, look.namespaces, self._pods.by_uid)
        judged = self._see_acks(look.acks) | self._see_rows(look)
        if self._resumed_at is not None or len(self.book.gaps) > gaps:
            changed |= self._holdings.keys()
        if now // HOUR != before // HOUR:
            self._carry_on(now // HOUR * HOUR)
        for uid in sorted((changed | judged) & self._holdings.keys()):
            self._describe(uid, now, is_changed=uid in changed)
        self._resumed_at = None
        self._fresh.clear()

    def _carry_on(self, hour: Second) -> None:
        """A new hour begins with what the latest cycle shows."""
        for uid, holdings in self._holdings.items():
            rows = list(self._judged.of(uid))
            for holding in holdings:
                row = _take_row(rows, holding.gpu)
                if row is not None and row.use is not None:
                    self._measure(holding, hour, row.use)

    def _measure(self, holding: Holding, hour: Second, use: Micro) -> None:
        """Of a part only the pod's own processes are measured, and those of the whole device."""
        face = holding.faces.last
        share = face.share if face.key.sharing in _PARTLY else WHOLE
        self.book.measure(holding, hour, min(WHOLE, use * WHOLE // max(1, share)), is_final=False)

    def resume(self, checkpoint: Second) -> None:
        """The book came out of the ledger: who is still there goes on where he was at the checkpoint."""
        by_node: dict[str, list[str]] = {}
        for gpu in self.book.gpus.values():
            if any(piece.is_open for piece in gpu.pieces):
                by_node.setdefault(gpu.grounds.last.key.node, []).append(gpu.name)
            for holding in gpu.holdings:
                if holding.end is None:
                    self._holdings.setdefault(holding.pod_uid, []).append(holding)
        for name, gpu_names in by_node.items():
            host = seating.Host(name, self.book)
            host.resumed(self.book.gpus[each] for each in gpu_names)
            self._nodes[name] = _BilledNode(_BLANK_NODE, NodeBill(), host, host.gpus[0].grounds.last)
        self._resumed_at = checkpoint

    # ---- nodes ----

    def _see_nodes(self, nodes: Register[cluster.Node], before: Second, now: Second) -> set[str]:
        """Pods on nodes that changed."""
        touched = set()
        for name, node in nodes.known.items():
            bill, known = self._bill(node), self._nodes.get(name)
            if known is None or (known.node is not node and known.node != node) or known.bill != bill:
                if known is None and _lay_out(node, bill) is None:
                    continue  # no GPU, or nobody can tell: it gets some when a pod holds them
                self._see_node(node, bill, before, now)
                touched.add(name)
        if isinstance(nodes.rest, Absent):
            for name in sorted(self._nodes.keys() - nodes.known.keys()):
                self._lose_node(name, now)
        return {uid for uid, pod in self._pods.by_uid.items() if pod.node in touched} if touched else set()

    def _see_node(self, node: cluster.Node, bill: NodeBill, before: Second, now: Second) -> None:
        known, ground, layout = self._nodes.get(node.name), self._ground_of(node, bill), _lay_out(node, bill)
        if known is None:
            known = self._nodes[node.name] = _BilledNode(node, bill, seating.Host(node.name, self.book), ground)
        if layout is not None:
            if known.node is _BLANK_NODE and self._resumed_at is not None:
                known.host.fit_again(layout, self._resumed_at)
            begin = now if node.created_at is None else min(now, math.floor(node.created_at))
            lost = known.host.resize(layout, ground, begin, now, [each.uuid for each in node.boards])
            self._seat_again(lost, node, ground, now)
        self._change_ground(known, ground, bill, before, now)
        known.node, known.bill, known.ground = node, bill, ground

    def _change_ground(self, known: _BilledNode, ground: Ground, bill: NodeBill, before: Second, now: Second) -> None:
        """A price holds from the moment on that it is known; one that began between two looks, from its beginning."""
        since = bill.since if bill.since is not None and before < bill.since < now else now
        if self._resumed_at is not None and _same_price(known.ground, ground):
            since = self._resumed_at
        sure = msgspec.structs.replace(ground, is_counted=known.host.is_counted and self._sees_all)
        for gpu in known.host.gpus:
            self.book.ground(gpu, since, lambda old: msgspec.structs.replace(old, rate=ground.rate))
            self.book.ground(gpu, now if self._resumed_at is None else since, lambda _: sure)

    def _ground_of(self, node: cluster.Node, bill: NodeBill) -> Ground:
        key = CostKey(
            cluster=self._cluster, node=node.name, instance_type=bill.instance_type, region=bill.region,
            capacity_type=bill.capacity_type, sharing=Sharing.idle,
            gpu_model=bill.gpu_model or gpus.normalise(node.gpu_product or ""),
        )
        return Ground(key, bill.rate, is_counted=self._sees_all)

    def _lose_node(self, name: str, now: Second) -> None:
        self._nodes.pop(name).host.end(now)
        for uid in [uid for uid, pod in self._pods.by_uid.items() if pod.node == name]:
            self._end(uid, now)

    def _seat_again(self, lost: list[Holding], node: cluster.Node, ground: Ground, now: Second) -> None:
        """Those whose GPU went, or is divided otherwise from now on."""
        for uid in dict.fromkeys(each.pod_uid for each in lost):
            pod = self._pods.by_uid.get(uid)
            if pod is not None:
                face = next(each for each in lost if each.pod_uid == uid).faces.last
                for holding in self._holdings.pop(uid, []):
                    self.book.release(holding, now)
                self._sit(pod, node, ground, now, None, face)

    # ---- pods ----

    def _see_departures(self, look: BookLook, before: Second, now: Second) -> list[tuple[cluster.Pod, Second]]:
        """Ends those that hold. Out: those that came and went since the last look, with their ends."""
        gone, self._left, passed = (*self._left, *look.departures), [], []
        for one in sorted(gone, key=lambda each: each.pod.bound_at or 0.0):
            end = one.ended_at if one.ended_at is not None else one.gone_at
            at = before if end is None else min(now, math.floor(end))
            if self._is_ahead(one.pod, end, now):
                self._left.append(one)
            elif one.pod.uid in self._holdings:
                self._end(one.pod.uid, at)
            elif end is not None and one.pod.bound_at is not None and one.pod.bound_at < at:
                passed.append((one.pod, at))
        return passed

    def _is_ahead(self, pod: cluster.Pod, at: Instant | None, now: Second) -> bool:
        """Is it dated after this look, whose clock was read before the pods were? Then the next one books it, as it is
        dated; one that is still ahead then has the date of a wrong clock."""
        if at is None or math.floor(at) <= now or (pod.uid, at) in self._was_ahead:
            return False
        self._ahead.add((pod.uid, at))
        return True

    def _pass_by(self, pod: cluster.Pod, look: BookLook, now: Second, end: Second) -> None:
        if pod.node and not _is_reservation(pod):
            self._whose.meet(pod, look.workloads, look.namespaces)
            self._begin(pod, now, end)
            self._end(pod.uid, end)

    def _see_pods(self, look: BookLook, before: Second, now: Second) -> set[str]:
        """Those that are new, or are not as they were."""
        if look.pods is self._seen_pods:
            return set()
        self._seen_pods = look.pods
        changed, gone = self._pods.compare(look.pods)
        lost = {pod.uid for pod in gone}
        if self._resumed_at is not None:
            lost |= self._holdings.keys() - self._pods.by_uid.keys() - {pod.uid for pod in changed}
        for uid in sorted(lost.difference(one.pod.uid for one in self._left)):  # nobody heard of its end
            self._end(uid, before)
        opaque = self._see_reservations(look.pods, changed, now)
        for pod in changed:
            if (pod.ended_at is not None or pod.has_ended) and not self._is_ahead(pod, pod.ended_at, now):
                self._end(pod.uid, now if pod.ended_at is None else min(now, math.floor(pod.ended_at)))
        changed.sort(key=lambda pod: (pod.bound_at or pod.created_at, pod.uid))
        met = {pod.uid for pod in changed if self._meet(pod, opaque, now)}
        if self._ahead:  # the next look has to look at them even where nothing changes until then
            self._seen_pods = None
        return met

    def _see_reservations(
        self, pods: tuple[cluster.Pod, ...], changed: Sequence[cluster.Pod], now: Second
    ) -> frozenset[str]:
        """Those behind which nobody is seen; whoever else was booked is looked through from now on."""
        if not self._reserved and not any(map(_is_reservation, changed)):
            return frozenset()
        opaque = _find_opaque(pods)
        for uid in sorted(self._reserved - opaque):
            groups = shares.groups_of(self._pods.by_uid[uid])
            behind = (each for each in pods if not _is_reservation(each) and groups & shares.groups_of(each))
            self._end(uid, min(now, math.floor(min((each.bound_at or now for each in behind), default=now))))
        return opaque

    def _meet(self, pod: cluster.Pod, opaque: frozenset[str], now: Second) -> bool:
        if not pod.node or pod.has_ended or pod.ended_at is not None:
            return False
        if pod.uid not in self._holdings and self._is_ahead(pod, _bound_at(pod), now):
            return False
        if _is_reservation(pod):
            if pod.uid not in opaque:
                return False
            self._reserved.add(pod.uid)
        if pod.uid not in self._holdings and not self._begin(pod, now, None):
            return False
        self._pods.put(pod)
        if pod.terminating:
            self._leaving.add(pod.uid)
        return True

    def _begin(self, pod: cluster.Pod, now: Second, end: Second | None) -> bool:
        bound = _bound_at(pod)
        begin = now if bound is None else min(now, math.floor(bound))
        known = self._nodes.get(pod.node)
        if known is None:
            if isinstance(self._register.find(pod.node), Absent):
                return False  # what is left of a pod whose node is gone holds nothing
            known = self._imagine_node(pod.node)
        ground = known.ground.key  # whose it is is described at the end of this look, but of those who are gone by then
        key = ground if end is None else self._whose.key_of(pod, ground, Sharing.exclusive)
        self._fresh.add(pod.uid)
        node = None if known.node is _BLANK_NODE else known.node
        return self._sit(pod, node, known.ground, max(begin, self.book.settled), end, Face(key, _UNMEASURED))

    def _imagine_node(self, name: str) -> _BilledNode:
        """One that is not seen: it has the GPUs that are held on it, as far as anybody knows."""
        ground = Ground(CostKey(cluster=self._cluster, node=name, sharing=Sharing.idle), None, is_counted=False)
        made = self._nodes[name] = _BilledNode(_BLANK_NODE, NodeBill(), seating.Host(name, self.book), ground)
        return made

    def _sit(
        self, pod: cluster.Pod, node: cluster.Node | None, ground: Ground, begin: Second, end: Second | None, face: Face
    ) -> bool:
        host = self._nodes[pod.node].host
        named = [row.gpu for row in self._judged.of(pod.uid) if row.gpu]
        held = self._holdings.setdefault(pod.uid, [])
        self._pods.put(pod)
        for unit in shares.units_of(pod, node):
            left = [name for name in named if all(name != each.gpu for each in held)]
            mine = msgspec.structs.replace(face, key=msgspec.structs.replace(face.key, sharing=unit.sharing))
            since: Second | None = begin
            while since is not None:
                seat = host.seat(unit, since, end, left, ground, pod.uid)
                until = end if seat.until is None else seat.until
                holding = Holding(seat.gpu.name, seat.slot, pod.uid, pod.name, since, seat.fit(mine), until)
                self.book.hold(seat.gpu, holding)
                held.append(holding)
                if seat.is_odd:
                    host.strays.append((holding, unit))
                since = seat.until
        if not held:
            self._forget(pod.uid)
        return bool(held)

    def _end(self, uid: str, at: Second) -> None:
        self.book.release_pod(uid, at)
        self._forget(uid)

    def _forget(self, uid: str) -> None:
        pod = self._pods.drop(uid)
        if pod is not None and pod.node in self._nodes:
            self._nodes[pod.node].host.odd.pop(uid, None)
        self._holdings.pop(uid, None)
        self._judged.forget(uid)
        self._whose.forget(uid)
        self._reserved.discard(uid)
        self._leaving.discard(uid)

    # ---- in which state ----

    def _see_acks(self, acks: Mapping[str, KeepingAck]) -> set[str]:
        """Pods whose acknowledgement came or went."""
        if acks == self._acks:
            return set()
        moved = {uid for uid in acks.keys() | self._acks.keys() if acks.get(uid) != self._acks.get(uid)}
        self._acks = dict(acks)
        return {uid for uid in self._holdings if self._whose.workload_of(uid) in moved}

    def _see_rows(self, look: BookLook) -> set[str]:
        """Pods whose rows are not what they were."""
        changed, new = self._judged.see(look.rows, look.row_pods, self._leaving)
        for uid in sorted(new & self._pods.by_uid.keys()):
            self._heed_names(uid)
        return changed

    def _heed_names(self, uid: str) -> None:
        """Until all of its GPUs are named: some series come later than others."""
        named, holdings = [row.gpu for row in self._judged.of(uid) if row.gpu], self._holdings[uid]
        known = self._nodes.get(self._pods.by_uid[uid].node)
        if known is not None and {each.gpu for each in holdings} != set(named):
            known.host.heed(uid, holdings, named, self._judged.named)
        if len(named) >= sum(each.end is None for each in holdings):
            self._judged.name(uid)

    def _describe(self, uid: str, now: Second, *, is_changed: bool) -> None:
        """Its faces as they are now: whose from now on, where that may have changed; in which state since when."""
        pod = self._pods.by_uid.get(uid)
        if pod is None or pod.node not in self._nodes:
            return
        since = 0 if uid in self._fresh else now if self._resumed_at is None else self._resumed_at
        ground, rows = self._nodes[pod.node].ground, list(self._judged.of(uid))
        ack = self._acks.get(self._whose.workload_of(uid))
        for holding in self._holdings[uid]:
            if is_changed:
                sharing = holding.faces.last.key.sharing
                self._set_key(holding, since, self._whose.key_of(pod, ground.key, sharing))
            self._set_state(holding, _take_row(rows, holding.gpu), ack, now)

    def _set_key(self, holding: Holding, since: Second, key: CostKey) -> None:
        if key != holding.faces.last.key:
            self.book.face(holding, since, lambda face: msgspec.structs.replace(face, key=key))

    def _set_state(self, holding: Holding, row: JudgedRow | None, ack: KeepingAck | None, now: Second) -> None:
        if row is None or (row.use is None and row.since is None):
            self._become(holding, _UNMEASURED, now)
            return
        if row.use is not None:
            self._measure(holding, now // HOUR * HOUR, row.use)
        if row.since is None:
            is_first = now - holding.begin <= _FIRST_ROWS and _is_blank(holding)
            if is_first and row.use is not None and holding.begin // HOUR != now // HOUR:
                self._measure(holding, holding.begin // HOUR * HOUR, row.use)
            self._become(holding, _USED, holding.begin if is_first else now)
        else:
            self.book.date_back(holding, min(row.since, now), _HELD_IDLE)
            self._keep(holding, ack, max(row.since, holding.begin), now)

    def _become(self, holding: Holding, state: SpendState, since: Second) -> None:
        if holding.faces.last.state is not state:
            self.book.face(holding, since, lambda face: msgspec.structs.replace(face, state=state, ack_id=""))

    def _keep(self, holding: Holding, ack: KeepingAck | None, idle_since: Second, now: Second) -> None:
        """Under its acknowledgement from when that was given."""
        given = now if ack is None or ack.since is None else min(now, max(idle_since, math.floor(ack.since)))
        id_ = ack.id if ack else ""
        if holding.faces.last.ack_id != id_ or holding.faces.at(given).ack_id != id_:
            self.book.face(holding, given, lambda face: msgspec.structs.replace(face, ack_id=id_))


def _lay_out(node: cluster.Node, bill: NodeBill) -> Sequence[tuple[shares.GpuSlot, ...]] | None:
    """As many GPUs as its price was divided by; None where nobody knows how many there are. A node that shows none any
    more still has those that it had: who offers them was restarted, mostly."""
    layout = shares.lay_out(node)
    if bill.gpus:
        return [*layout[: bill.gpus], *((),) * (bill.gpus - len(layout))]
    return layout or None


def _same_price(before: Ground, after: Ground) -> bool:
    known = (before.rate.price_id if before.rate else None, after.rate.price_id if after.rate else None)
    return known[0] == known[1]


def _is_blank(holding: Holding) -> bool:
    """Has nothing ever been measured of it?"""
    return all(face.state is _UNMEASURED for face in holding.faces.values)


def _bound_at(pod: cluster.Pod) -> Instant | None:
    return pod.bound_at if pod.bound_at is not None else pod.started_at


def _is_reservation(pod: cluster.Pod) -> bool:
    return pod.namespace in names.RESERVATION_NAMESPACES


def _find_opaque(pods: Iterable[cluster.Pod]) -> frozenset[str]:
    """Reservations of GPUs behind which nobody is seen."""
    pods = tuple(pods)
    reserved = [pod for pod in pods if _is_reservation(pod)]
    if not reserved:
        return frozenset()
    seen = {group for pod in pods if not _is_reservation(pod) for group in shares.groups_of(pod)}
    return frozenset(pod.uid for pod in reserved if seen.isdisjoint(shares.groups_of(pod)))


def _take_row(rows: list[JudgedRow], gpu: str) -> JudgedRow | None:
    """The row of this GPU; else one that nobody has claimed yet."""
    if not rows:
        return None
    return rows.pop(next((at for at, row in enumerate(rows) if row.gpu == gpu), 0))
