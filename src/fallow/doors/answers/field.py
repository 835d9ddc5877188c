"""Every physical GPU with who holds which part of it, node by node: the picture of the cluster.

In: one edition's snapshot, rows and usage. Out: FieldPage, and GpuSums, its GPUs by state.
Invariant: the slots of a GPU add up to 1, so that all of them add up to the cluster; a node whose capacity is not seen
shows no GPUs and says so.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from fallow import names
from fallow.doors import answers
from fallow.doors.answers import boards
from fallow.doors.answers import rows as telling
from fallow.doors.answers import workloads as naming
from fallow.model import cluster, gpus, marks, price_book, shares
from fallow.model.seen import Known, Unseen

SlotState: TypeAlias = Literal["busy", "idle", "told", "kept", "left", "unknown", "free", "freed"]
NodeLayout: TypeAlias = Literal["whole", "mig", "slices", "mps"]
HELD: Final[Mapping[str, SlotState]] = {
    "busy": "busy", "idle": "idle", "told": "told", "kept": "kept", "left": "left", "unknown": "unknown",
    "paused": "unknown", "resuming": "unknown",
}


class SlotShown(answers.Shape, frozen=True, kw_only=True):
    """A part of a GPU. `start`, `size`: of a MIG instance, in compute slices. `label`: for who cannot see it."""

    share: float
    start: int | None
    size: int | None
    profile: str | None
    state: SlotState
    holder: naming.WorkloadName | None
    activity: float | None
    freed_by: naming.WorkloadName | None
    label: str


class GpuShown(answers.Shape, frozen=True, kw_only=True):
    index: int
    uuid: str | None
    slots: tuple[SlotShown, ...]


class NodeShown(answers.Shape, frozen=True, kw_only=True):
    name: str
    ready: bool | None
    layout: NodeLayout
    activity: float | None
    trouble: str | None
    gpus: tuple[GpuShown, ...]


class PoolShown(answers.Shape, frozen=True, kw_only=True):
    name: str
    model: str | None
    per_gpu_hour: float | None
    nodes: tuple[NodeShown, ...]


class FieldPage(answers.Shape, frozen=True, kw_only=True):
    revision: int
    pools: tuple[PoolShown, ...]


class _Freed(msgspec.Struct):
    """What a pause gave back on one node and nobody took."""

    gpus: float
    row: telling.ApiRow


class FieldMaker:
    """Made once for an edition."""

    def __init__(
        self, seen: cluster.Snapshot, rows: Mapping[str, telling.ApiRow], *, book: price_book.ModelPrices
    ) -> None:
        self._seen, self._book, self._freed = seen, book, _find_freed(seen, rows)
        self.measured = boards.UsageRows(seen.evidence)
        self._pods: dict[str, list[boards.BoardHold]] = defaultdict(list)
        for workload in seen.workloads:
            for pod in workload.pods:
                if seen.pods[pod].node:
                    self._pods[seen.pods[pod].node] += self._holds_of(pod, rows.get(workload.ref.uid))

    def _holds_of(self, pod: int, row: telling.ApiRow | None) -> Iterator[boards.BoardHold]:
        found = self._seen.pods[pod]
        units_held = shares.held_by(found, self._seen.nodes.known.get(found.node))
        for unit, at in itertools.zip_longest(units_held, self.measured.of(pod)):
            if unit is not None and at is not None:
                board, index = self.measured.board(at), self.measured.index(at)
                yield boards.BoardHold(unit, row, board, index, self.measured.activity(at))
            elif unit is not None:
                yield boards.BoardHold(unit, row, "", None, None)

    def page(self, revision: int) -> FieldPage:
        pools: dict[tuple[str, str], list[NodeShown]] = defaultdict(list)
        for node in sorted(self._seen.nodes.known.values(), key=lambda each: each.name):
            if node.gpus or self._pods.get(node.name):
                pools[pool_of(node), gpus.normalise(node.gpu_product or "")].append(self._show(node))
        for name in sorted(self._pods.keys() - self._seen.nodes.known.keys()):
            pools["unseen nodes", ""].append(_show_unseen(name, self._seen))
        return FieldPage(revision=revision, pools=tuple(
            PoolShown(name=name, model=model or None, per_gpu_hour=self._find_price(nodes), nodes=tuple(nodes))
            for (name, model), nodes in sorted(pools.items())
        ))

    def _find_price(self, nodes: Sequence[NodeShown]) -> float | None:
        """What a GPU of the pool costs on average; None where it is not known of one of its nodes."""
        found = [(find_price(self._seen, node.name, self._book), len(node.gpus)) for node in nodes]
        known = [(price, count) for price, count in found if price is not None]
        held = sum(count for _, count in known)
        if len(known) < len(found) or not known:
            return None
        return sum(price * count for price, count in known) / held if held else known[0][0]

    def _show(self, node: cluster.Node) -> NodeShown:
        holds, count = self._pods.get(node.name, []), shares.count_physical(node)
        known = [hold.activity for hold in holds if hold.activity is not None]
        trouble = _find_trouble(node, holds, self._seen)
        filled = () if count is None else boards.fill(holds, count)
        return NodeShown(
            name=node.name, ready=node.ready, layout=shares.layout_of(node),  # type: ignore[arg-type]
            activity=round(sum(known) / len(known), 4) if known else None, trouble=trouble,
            gpus=tuple(self._show_gpu(node, index, board) for index, board in enumerate(boards.add_free(node, filled))),
        )

    def _show_gpu(self, node: cluster.Node, index: int, board: boards.Board) -> GpuShown:
        start, slots, worth = 0, [], board.worth
        is_cut = shares.layout_of(node) == "mig"
        for hold in board.holds:
            of = hold.unit.of
            size = (hold.unit.size or round(hold.unit.share * of)) if is_cut else None
            slots.append(self._show_slot(node, index, hold, hold.unit.share / worth, start if is_cut else None, size))
            start += size or 0
        return GpuShown(index=index, uuid=board.uuid, slots=tuple(slots))

    def _show_slot(
        self, node: cluster.Node, index: int, hold: boards.BoardHold, share: float, start: int | None, size: int | None
    ) -> SlotShown:
        row, freed_by = hold.row, None if hold.row else self._take_freed(node.name, hold.unit.share)
        state: SlotState = HELD[row.state] if row else "freed" if freed_by else "unknown" if hold.board else "free"
        who = f"{row.namespace}/{row.name}" if row else f"given back by {freed_by.name}" if freed_by else ""
        place = f"GPU {index} on {node.name}{f', {hold.unit.profile}' if hold.unit.profile else ''}"
        return SlotShown(
            share=round(share, 6), start=start, size=size, profile=hold.unit.profile, state=state,
            holder=_name(row) if row else None, activity=hold.activity, freed_by=_name(freed_by) if freed_by else None,
            label=", ".join(filter(None, (place, who, state))),
        )

    def _take_freed(self, node: str, share: float) -> telling.ApiRow | None:
        """Whose pause gave it back: each gave so much, and no more."""
        for left in self._freed.get(node, ()):
            if left.gpus >= share - boards.NEARLY:
                left.gpus -= share
                return left.row
        return None


def _find_freed(seen: cluster.Snapshot, rows: Mapping[str, telling.ApiRow]) -> Mapping[str, list[_Freed]]:
    """By node, as the marks of each pause that stands tell it, less what its last pods still hold there."""
    found: dict[str, list[_Freed]] = defaultdict(list)
    for workload in (each for each in seen.workloads if each.ref.uid in rows):
        for name, count in _count_freed(workload, seen).items():
            found[name].append(_Freed(count, rows[workload.ref.uid]))
    return found


def _count_freed(workload: cluster.Workload, seen: cluster.Snapshot) -> Mapping[str, float]:
    """Physical GPUs by node. Of a node that is not seen nobody knows what that is worth."""
    known, said = seen.nodes.known, marks.read_nodes(workload)
    freed = {
        name: sum(shares.unit_on(known[name], resource).share * count for resource, count in some.items())
        for name, some in said.items() if name in known
    }
    for pod in (seen.pods[index] for index in workload.pods if seen.pods[index].node in freed):
        freed[pod.node] -= sum(unit.share for unit in shares.held_by(pod, known[pod.node]))
    return freed


def _show_unseen(name: str, seen: cluster.Snapshot) -> NodeShown:
    why = seen.nodes.rest.why if isinstance(seen.nodes.rest, Unseen) else "it is not in the list"
    return NodeShown(name=name, ready=None, layout="whole", activity=None, trouble=f"not seen: {why}", gpus=())


def _name(row: telling.ApiRow) -> naming.WorkloadName:
    return naming.WorkloadName(
        api_version=row.api_version, kind=row.kind, namespace=row.namespace, name=row.name, uid=row.uid
    )


_POOL_LABELS: Final = (
    names.NODE_POOL, "cloud.google.com/gke-nodepool", "eks.amazonaws.com/nodegroup", "karpenter.sh/nodepool",
    "kubernetes.azure.com/agentpool", "node.kubernetes.io/instance-type",
)


def pool_of(node: cluster.Node) -> str:
    """As its cloud calls the group it belongs to; else its model."""
    found = next((node.labels[label] for label in _POOL_LABELS if node.labels.get(label)), None)
    return found or gpus.normalise(node.gpu_product or "") or "GPU nodes"


def find_price(seen: cluster.Snapshot, name: str, book: price_book.ModelPrices) -> float | None:
    """Of a GPU of this node, an hour: by the price book; the list price of its model only where nobody keeps books."""
    match seen.rates:
        case Known(rates):
            price = rates.by_node.get(name)
        case Unseen():
            price = None
        case _:
            node = seen.nodes.known.get(name)
            model = gpus.normalise(node.gpu_product or "") if node is not None else ""
            price = price_book.find_by_model(model, book) if model else None
    return None if price is None else float(price)


def _find_trouble(node: cluster.Node, holds: Sequence[boards.BoardHold], seen: cluster.Snapshot) -> str | None:
    if node.gpus is None:
        return "capacity not seen"
    if not node.ready:
        return "not ready"
    if not holds or seen.evidence.trouble is not None:
        return None
    return None if any(hold.board for hold in holds) else "not measured"


# ---- sums ------------------------------------------------------------------------------------------------------------


class GpuSums(answers.Shape, frozen=True, kw_only=True):
    """Physical GPUs by state: all but `total` add up to it. None: not all of the cluster is seen."""

    total: float | None
    busy: float | None
    idle: float | None
    warned: float | None = msgspec.field(name="told")
    kept: float | None
    left: float | None
    unknown: float | None
    free: float | None
    freed: float


def add_up(page: FieldPage, rows: Iterable[telling.ApiRow], seen: cluster.Snapshot) -> GpuSums:
    sums: dict[str, float] = defaultdict(float)
    if not shares.is_capacity_known(seen):
        for row in rows:
            sums[HELD[row.state]] += row.gpus
        return GpuSums(total=None, free=None, freed=0.0, **_parts(sums))
    for slot in (slot for pool in page.pools for node in pool.nodes for gpu in node.gpus for slot in gpu.slots):
        sums[slot.state] += slot.share
    free, freed = round(sums["free"], 3), round(sums["freed"], 3)
    return GpuSums(total=round(sum(sums.values()), 3), free=free, freed=freed, **_parts(sums))


def _parts(sums: Mapping[str, float]) -> dict[str, float]:
    fields = {"warned": "told", **{name: name for name in ("busy", "idle", "kept", "left", "unknown")}}
    return {field: round(sums.get(state, 0.0), 3) for field, state in fields.items()}
