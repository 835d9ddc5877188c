"""Which pod's hold on which GPU does a series speak of? The rows of a Usage, and the edges from series to rows.

In: the facts of the series that were seen; GPU pods, nodes and exporters of this cluster (Holders). Out: `RowLayout`.
Three kinds of edges, each containing the one before: `own` (the series names this pod and this GPU), `device` (it
measures the GPU that the row holds: all series of a shared GPU, and those that name no pod), `board` (it measures the
whole board above a MIG instance).
Invariant: a series counts for a pod only if that pod exists here, no node label contradicts it, and whoever said it is
believed (trust.py). A GPU is shared only where that is declared. A pod that came back under its old name is not given
the GPUs it had before: of more claims than fit, those that nobody makes any more are none.
"""

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from fallow import names
from fallow.model import cluster, shares, usage
from fallow.model.units import Seconds
from fallow.observe.usage import labels, trust
from fallow.observe.usage.readings import Numbers
from fallow.observe.usage.trust import Credit, Witness

Join = Literal["own", "device", "board"]
Pairs: TypeAlias = list[tuple[int, int]]
Witnesses: TypeAlias = Callable[[labels.Facts], Witness]

_ANYBODY = Witness(Credit.unknown)  # where it does not matter who says so


class Edges(NamedTuple):
    """series[i] speaks of rows[i]."""

    series: Numbers
    rows: Numbers

    @classmethod
    def of(cls, pairs: Pairs) -> "Edges":
        both = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        return cls(both[:, 0], both[:, 1])

    def spread(self, values: usage.Floats, rows: int, fold: np.ufunc = np.fmax) -> usage.Floats:
        """Values per series into values per row; several for one row are folded, none leaves nan."""
        column = np.full(rows, np.nan)
        fold.at(column, self.rows, values[self.series])
        return column


class Row(NamedTuple):
    pod: int
    gpu: str


class Holders:
    """The pods and nodes of this cluster, found by what labels call them. `nodes` are those that were seen.

    `version`: others with the same number have the same pods and nodes; None = not known.
    """

    def __init__(
        self, pods: tuple[cluster.Pod, ...], nodes: Mapping[str, cluster.Node], version: int | None = None,
        exporters: trust.KnownExporters = trust.NOBODY,
    ) -> None:
        self.pods = pods
        self.nodes = nodes
        self.version = version
        self.exporters = exporters
        self._by_name = {(pod.namespace, pod.name): index for index, pod in enumerate(pods)}
        self._names = {node.name: _names_of(node) for node in nodes.values()}
        self._node_called = {alias: node for node, aliases in self._names.items() for alias in aliases}
        self._groups = _group_members(pods)
        believed = exporters.is_believed
        self._strangers = {
            pod.ip: f"{pod.namespace}/{pod.name}" for pod in pods
            if pod.ip and pod.ip not in self._node_called and not believed(pod.namespace)
        }

    def witness(self, facts: labels.Facts) -> Witness:
        """Who said it, by Prometheus's labels."""
        found = self.exporters.find(facts)
        if stranger := self._strangers.get(facts.host):  # whatever its labels say
            return found._replace(credit=Credit.untrusted, called=stranger)
        namespace, name = facts.scraped
        if namespace and not self.exporters.is_believed(namespace):
            return found._replace(credit=Credit.untrusted, called=f"{namespace}/{name}")
        if found.credit is not Credit.unknown:
            return found
        # A plain `pod` is the workload's, or else the target's own: then it says where the series comes from.
        is_target = bool(facts.pod) and not facts.sure and (facts.namespace, facts.pod) not in self._by_name
        if is_target and not self.exporters.is_believed(facts.namespace):
            return found._replace(credit=Credit.untrusted, pod=facts.pod.lower(), called="")
        return found._replace(pod=facts.pod.lower()) if is_target else found

    def holders(self, facts: labels.Facts, witness: Witness = _ANYBODY) -> tuple[int, ...]:
        """The pods that a series speaks of: none, one, or those behind a reservation."""
        index = self._by_name.get((facts.namespace, facts.pod))
        if index is None or not self._fits(facts, self.pods[index].node, witness):
            return ()
        if facts.namespace not in names.RESERVATION_NAMESPACES:
            return (index,)
        return self._behind(self.pods[index]) or (index,)  # nobody found behind it: the brain calls it opaque

    def node_of(self, facts: labels.Facts) -> str:
        """The node of ours where it was measured; "" = none of ours, or not known."""
        return next(filter(None, map(self._node_called.get, (*facts.nodes, facts.host))), "")

    def product_of(self, holder: int) -> str:
        node = self.nodes.get(self.pods[holder].node)
        return (node.gpu_product if node else None) or ""

    def is_shared(self, pod: cluster.Pod) -> bool:
        node = self.nodes.get(pod.node)
        return names.GPU_SHARED in pod.resources or (node is not None and node.shared)

    def reaches(self, facts: labels.Facts, witness: Witness, node: str) -> bool:
        """Whether whoever said it may speak of that node."""
        return not witness.node or witness.node == node or not (facts.strict or witness.binds)

    def oversteps(self, facts: labels.Facts, witness: Witness) -> bool:
        """Whether it names a pod of ours that is none of its business."""
        index = self._by_name.get((facts.namespace, facts.pod))
        return index is not None and not self.reaches(facts, witness, self.pods[index].node)

    def _fits(self, facts: labels.Facts, node: str, witness: Witness) -> bool:
        if not self.reaches(facts, witness, node):
            return False
        called = self._names.get(node) or frozenset({node.lower()})
        if facts.host in called or not called.isdisjoint(facts.nodes):
            return True
        # Without the host's network an exporter takes its own pod's name for that of its node.
        exporters = self.exporters.names
        said = [name for name in facts.nodes if name != witness.pod and name not in exporters]
        # The scrape target is mostly the exporter's own address: it speaks against a pod only as another node of ours.
        return not said and (witness.node == node or facts.host not in self._node_called)

    def _behind(self, reservation: cluster.Pod) -> tuple[int, ...]:
        members = {member for group in shares.groups_of(reservation) for member in self._groups.get(group, ())}
        return tuple(sorted(member for member in members if self.pods[member].node == reservation.node))


class RowLayout:
    """Rows and edges for one set of series. `series` are numbers of facts; `version` is that of Usage.

    `current`: those of them that have a value of now; None = that does not matter. `witnesses`: who says what, if not
    Prometheus's labels tell it. `has_believed`: a believed exporter shows devices, if not among these.
    """

    def __init__(
        self, held: Holders, facts: Sequence[labels.Facts], series: Iterable[int], version: int | None = None, *,
        current: tuple[int, ...] | None = None, witnesses: Witnesses | None = None, has_believed: bool = False,
    ) -> None:
        self.version = version
        self.held = held
        self.current = current
        self._facts = facts
        self.series = tuple(series)
        self._witness = [(witnesses or held.witness)(facts[number]) for number in self.series]
        self.has_believed = has_believed or self._find_believed()
        self._doubts = trust.Doubts(held.exporters.unseen)
        self._uuid_at = {facts[n].spot: facts[n].uuid for n in self.series if facts[n].uuid and facts[n].spot}
        self._numbers: dict[Row, int] = {}
        self._models: dict[str, str] = {}  # board -> what any of its series calls it
        self._shared_rows: set[int] = set()
        self._boards: dict[str, str] = {}  # GPU -> its board
        self._node_of_gpu: dict[str, str] = {}
        self._measures: dict[str, list[int]] = defaultdict(list)  # GPU -> all series of it
        self._nameless: dict[str, list[int]] = defaultdict(list)  # GPU -> series that name no pod
        self._mig_gpus: set[str] = set()
        self._split: set[str] = set()  # handed out in parts, as a believed exporter shows
        self._speakers: dict[int, Witness] = {}  # of the series that are heard
        self.crowded: frozenset[int] = frozenset()  # pods with more claims than fit, or with claims of others on theirs
        self.dropped: frozenset[int] = frozenset()  # pods with claims that nobody makes any more
        own = self._find_rows()
        self._vouched = self._find_vouched()
        self._find_shared()
        own = self._drop_old(own)
        self._build(own)
        self.unallocated, self.per_node = self._count_gpus()
        self.ignored = self._doubts.listed()

    def _find_rows(self) -> Pairs:
        own: Pairs = []
        for number, witness in zip(self.series, self._witness, strict=True):
            facts = self._facts[number]
            if not _is_heard(facts, witness, self.has_believed):
                self._doubts.add(witness)
                continue
            gpu = self._identify(facts)
            if not gpu:
                continue
            self._speakers[number] = witness
            self._measures[gpu].append(number)
            holders = self.held.holders(facts, witness)
            own += [(number, self._row(holder, gpu, facts, len(holders) > 1)) for holder in holders]
            if not holders and not (facts.pod and facts.sure):
                self._nameless[gpu].append(number)
            elif not holders and self.held.oversteps(facts, witness):
                self._doubts.add(witness)
        return own

    def _find_vouched(self) -> Numbers:
        """The series that show that a GPU was watched."""
        vouched = []
        for number, witness in self._speakers.items():
            if counts(self._facts[number], witness, self.has_believed):
                vouched.append(number)
            else:
                self._doubts.add(witness)
        return np.array(vouched, dtype=np.int64)

    def _find_believed(self) -> bool:
        """Whether any exporter that we were told of shows devices."""
        believed = (Credit.trusted, Credit.unseen)
        return any(
            witness.credit in believed and not self._facts[number].strict
            for number, witness in zip(self.series, self._witness, strict=True)
        )

    def _identify(self, facts: labels.Facts) -> str:
        """UUID, else node/index; a MIG instance adds its id. A GPU has one name, whichever exporter speaks of it."""
        board = facts.uuid or self._uuid_at.get(facts.spot, facts.spot)
        if not board:
            return ""
        gpu = f"{board}/{facts.instance}" if facts.instance else board
        if gpu not in self._boards:
            self._boards[gpu] = board
            self._node_of_gpu[gpu] = self.held.node_of(facts)
        if facts.mig:
            self._mig_gpus.add(gpu)
        if facts.split:
            self._split.add(gpu)
        if facts.model:
            self._models.setdefault(board, facts.model)
        return gpu

    def _row(self, holder: int, gpu: str, facts: labels.Facts, reserved: bool) -> int:
        size = len(self._numbers)
        number = self._numbers.setdefault(Row(holder, gpu), size)
        if number == size:
            self._node_of_gpu[gpu] = self.held.pods[holder].node
            is_reserved = reserved or facts.namespace in names.RESERVATION_NAMESPACES
            if is_reserved or self.held.is_shared(self.held.pods[holder]):
                self._shared_rows.add(number)
        return number

    def _find_shared(self) -> None:
        """Shared for one is shared for all; so is what HAMi hands out in parts. Several hands alone share nothing."""
        self.rows_of_gpu: dict[str, list[int]] = defaultdict(list)
        for row, number in self._numbers.items():
            self.rows_of_gpu[row.gpu].append(number)
        for gpu, numbers in self.rows_of_gpu.items():
            if not self._shared_rows.isdisjoint(numbers) or (len(numbers) > 1 and gpu in self._split):
                self._shared_rows.update(numbers)

    def _drop_old(self, own: Pairs) -> Pairs:
        """Without claims that nobody makes any more, where those that are made leave no room for them."""
        if self.current is None:
            return own
        surplus = list(self._find_surplus())
        crowded = {row for rows in surplus for row in rows}
        self.crowded = frozenset(row.pod for row, number in self._numbers.items() if number in crowded)
        now = frozenset(self.current) if surplus else frozenset()
        is_made = {row for series, row in own if series in now}
        too_many = [rows for rows in surplus if not is_made.isdisjoint(rows)]
        dropped = {row for rows in too_many for row in rows if row not in is_made}
        if not dropped:
            return own
        self.dropped = frozenset(row.pod for row, number in self._numbers.items() if number in dropped)
        kept = [(row, number) for row, number in self._numbers.items() if number not in dropped]
        moved = {number: place for place, (_, number) in enumerate(kept)}
        self._numbers = {row: moved[number] for row, number in kept}
        self._shared_rows = {moved[number] for number in self._shared_rows if number in moved}
        self._find_shared()
        return [(series, moved[row]) for series, row in own if row in moved]

    def _find_surplus(self) -> Iterator[list[int]]:
        """The rows of pods with more GPUs than they asked for, and of unshared GPUs in several hands."""
        rows_of_pod: dict[int, list[int]] = defaultdict(list)
        for row, number in self._numbers.items():
            rows_of_pod[row.pod].append(number)
        for pod, numbers in rows_of_pod.items():
            if 0 < (self.held.pods[pod].gpu_count or 0) < len(numbers):
                yield numbers
        for numbers in self.rows_of_gpu.values():
            if len(numbers) > 1 and self._shared_rows.isdisjoint(numbers):
                yield numbers

    def _build(self, own: Pairs) -> None:
        self._nodes_of_rows = [self.held.pods[row.pod].node for row in self._numbers]
        lent = self._lent(own)
        above = self._above()
        self.own, self.device, self.board = Edges.of(own), Edges.of(own + lent), Edges.of(own + lent + above)
        rows = tuple(self._numbers)
        self.pod: usage.Ints = np.array([row.pod for row in rows], dtype=np.int32)
        self.gpu = tuple(row.gpu for row in rows)
        self.boards = tuple(self._boards[gpu] for gpu in self.gpu)
        spots = {uuid: spot for spot, uuid in self._uuid_at.items()}
        self.index = tuple(spots.get(board, board).partition("/")[2] for board in self.boards)
        # A series that names a pod may not say the model, while another one of that board does.
        self.model = tuple(self._models.get(self._boards[row.gpu]) or self.held.product_of(row.pod) for row in rows)
        self.mig: usage.Bools = np.array([gpu in self._mig_gpus for gpu in self.gpu], dtype=np.bool_)
        self.shared: usage.Bools = np.zeros(len(rows), dtype=np.bool_)
        self.shared[list(self._shared_rows)] = True
        # Rows that series of other names speak of, too.
        self.borrows: usage.Bools = np.zeros(len(rows), dtype=np.bool_)
        self.borrows[[row for _, row in lent + above]] = True

    def vouched(self, values: usage.Floats) -> usage.Floats:
        """Of these by number of series, those of series that show that a GPU was watched; nan for all others."""
        kept = np.full(len(values), np.nan)
        kept[self._vouched] = values[self._vouched]
        return kept

    @functools.cached_property
    def vouched_targets(self) -> frozenset[tuple[str, str]]:
        """Job and instance of the exporters behind them."""
        behind = (self._facts[number] for number in self._vouched.tolist())
        return frozenset((one.job, one.target) for one in behind)

    @functools.cached_property
    def vouched_jobs(self) -> frozenset[str]:
        return frozenset(job for job, _ in self.vouched_targets)

    def edges(self, join: Join) -> Edges:
        return {"own": self.own, "device": self.device, "board": self.board}[join]

    def _lent(self, own: Pairs) -> Pairs:
        """From series that name another pod of a shared GPU, or no pod at all."""
        has = set(own)
        pairs = []
        for gpu, rows in self.rows_of_gpu.items():
            series = self._measures[gpu] if rows[0] in self._shared_rows else self._nameless.get(gpu, ())
            pairs += [
                (number, row) for number in series for row in rows
                if (number, row) not in has and self._may_lend(number, row)
            ]
        return pairs

    def _may_lend(self, number: int, row: int) -> bool:
        witness = self._speakers[number]
        if self.held.reaches(self._facts[number], witness, self._nodes_of_rows[row]):
            return True
        self._doubts.add(witness)
        return False

    def _above(self) -> Pairs:
        """From series of the whole board to the MIG instances on it."""
        return [
            (number, row)
            for gpu, rows in self.rows_of_gpu.items()
            if (board := self._boards[gpu]) != gpu
            for number in self._measures.get(board, ())
            for row in rows
            if self._may_lend(number, row)
        ]

    def borrowed_boards(self) -> Iterator[tuple[cluster.Pod, str]]:
        """Pods, and UUIDs of boards on which series of other names speak of their GPUs."""
        for row in np.flatnonzero(self.borrows):
            if "/" not in self.boards[row]:  # a board known only by its place has no UUID to ask for
                yield self.held.pods[self.pod[row]], self.boards[row]

    def _count_gpus(self) -> tuple[int, dict[str, int]]:
        """GPUs on our nodes that no pod holds, and all GPUs by node. A board in MIG mode is its instances."""
        split = {board for gpu, board in self._boards.items() if gpu != board}
        free, by_node = 0, dict[str, int]()
        for gpu, node in self._node_of_gpu.items():
            if node and gpu not in split:
                by_node[node] = by_node.get(node, 0) + 1
                free += gpu not in self.rows_of_gpu
        return free, by_node


class Layouts:
    """The last layout of each window: the same again while holders and series are the same."""

    def __init__(self) -> None:
        self.current: dict[Seconds, RowLayout] = {}
        self._made = 0

    def forget(self) -> None:
        """Series have other numbers from now on."""
        self.current = {}

    def lay_out(
        self, window: Seconds, held: Holders, facts: Sequence[labels.Facts], series: tuple[int, ...],
        current: tuple[int, ...], witnesses: Witnesses | None = None,
    ) -> RowLayout:
        before = self.current.get(window)
        is_same = before is not None and held.version is not None and before.held.version == held.version
        # Who makes a claim now matters only where there are more of them than fit.
        if before is None or not is_same or before.series != series or (before.crowded and before.current != current):
            self._made += 1
            before = self.current[window] = RowLayout(
                held, facts, series, self._made, current=current, witnesses=witnesses
            )
        return before


def _is_heard(facts: labels.Facts, witness: Witness, has_believed: bool) -> bool:
    if facts.strict or witness.binds:
        return witness.credit is Credit.trusted
    return not has_believed or witness.credit is not Credit.untrusted


def counts(facts: labels.Facts, witness: Witness, has_believed: bool) -> bool:
    """Whether its samples show that a GPU was watched, and how often. Who cannot be told, where others can, may show
    activity; but their silence must not stand in for that of an exporter which died."""
    is_told = witness.credit is not Credit.unknown or not has_believed
    return is_told and _is_heard(facts, witness, has_believed)


def _names_of(node: cluster.Node) -> frozenset[str]:
    return frozenset(name.lower() for name in (node.name, node.hostname, *node.addresses) if name)


def _group_members(pods: tuple[cluster.Pod, ...]) -> dict[str, list[int]]:
    members: dict[str, list[int]] = defaultdict(list)
    if any(pod.namespace in names.RESERVATION_NAMESPACES for pod in pods):
        for index, pod in enumerate(pods):
            if pod.namespace not in names.RESERVATION_NAMESPACES:
                for group in shares.groups_of(pod):
                    members[group].append(index)
    return members
