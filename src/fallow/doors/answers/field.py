"""Every physical GPU with who holds which part of it, node by node; and how well each node is measured.

In: one edition's snapshot, rows and usage. Out: FieldPage (the picture of the cluster), NodesPage (nodes and sources).
Invariant: the slots of a GPU add up to 1, so that all of them add up to the cluster. Where no series says on which GPU
a pod sits, it has a place all the same, in a stable order; a node whose capacity is not seen shows no GPUs and says so.
"""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, TypeAlias

import msgspec
import numpy as np

from fallow.doors import answers
from fallow.doors.answers import rows as telling
from fallow.doors.answers import workloads as naming
from fallow.model import cluster, gpus, marks, price_book, shares, units, usage
from fallow.model.history import Condition
from fallow.model.seen import Known, Unseen
from fallow.model.units import DAY, Instant

SlotState: TypeAlias = Literal["busy", "idle", "told", "kept", "left", "unknown", "free", "freed"]
NodeLayout: TypeAlias = Literal["whole", "mig", "slices", "mps"]
HELD: Final[Mapping[str, SlotState]] = {
    "busy": "busy", "idle": "idle", "told": "told", "kept": "kept", "left": "left", "unknown": "unknown",
    "paused": "unknown", "resuming": "unknown",
}
_NEARLY: Final = 1e-6
_SILENT_AFTER: Final = 3 * units.MINUTE


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


# ---- who holds what --------------------------------------------------------------------------------------------------


class _Hold(msgspec.Struct, frozen=True):
    """A piece of a GPU in somebody's hands; `board`: the GPU that a series names, "" = none does."""

    unit: shares.PhysicalUnit
    row: telling.ApiRow | None
    board: str
    index: int | None
    activity: float | None


class _Freed(msgspec.Struct):
    """What a pause gave back on one node and nobody took."""

    gpus: float
    row: telling.ApiRow


class _Board(msgspec.Struct):
    """A GPU while it is filled."""

    uuid: str | None = None
    holds: list[_Hold] = []
    room: float = 1.0
    left: tuple[float, float] = (1.0, 1.0)  # of compute and of memory, where it is cut

    def fits(self, unit: shares.PhysicalUnit) -> bool:
        """Instances by what they take, of both; anything else by its share."""
        if unit.takes is None:
            return self.room >= unit.share - _NEARLY
        return all(left >= takes - _NEARLY for left, takes in zip(self.left, unit.takes, strict=True))

    def take(self, hold: _Hold) -> None:
        compute, memory = hold.unit.takes or (hold.unit.share, hold.unit.share)
        self.holds.append(hold)
        self.room -= hold.unit.share
        self.left = self.left[0] - compute, self.left[1] - memory

    @property
    def worth(self) -> float:
        """What it is all of. Nothing is left to others where all compute, or all memory, is taken."""
        held = sum(hold.unit.share for hold in self.holds)
        return held if held > 1.0 or min(self.left) <= _NEARLY else 1.0


class UsageRows:
    """The rows of one window, by pod: on which GPU, and how busy it was."""

    def __init__(self, evidence: usage.Evidence) -> None:
        self.use = evidence.usage[min(evidence.usage)] if evidence.usage else None
        self._of: dict[int, list[int]] = defaultdict(list)
        for row, pod in enumerate(self.use.pod.tolist() if self.use else ()):
            self._of[pod].append(row)
        self._activity = _find_activity(self.use) if self.use else ()

    def of(self, pod: int) -> Sequence[int]:
        return self._of.get(pod, ())

    def activity(self, row: int) -> float | None:
        found = self._activity[row]
        return None if math.isnan(found) else round(float(found), 4)

    def board(self, row: int) -> str:
        assert self.use is not None
        parts = self.use.gpu[row].split("/")
        return parts[0] if parts[0].startswith(("GPU-", "MIG-")) else "/".join(parts[:2])

    def index(self, row: int) -> int | None:
        assert self.use is not None
        text = self.use.index[row] if self.use.index else ""
        text = text or (self.board(row).rpartition("/")[2])
        return int(text) if text.isdecimal() and len(text) < 4 else None


def _find_activity(use: usage.Usage) -> Sequence[float]:
    """Of each row the mean of its first ratio that has one, else its highest."""
    found = np.full(use.rows, np.nan)
    for columns in (use.mean, use.peak):
        for signal in usage.RATIOS:
            if signal in columns:
                found = np.where(np.isnan(found), columns[signal], found)
    return found.tolist()


class FieldMaker:
    """Made once for an edition."""

    def __init__(
        self, seen: cluster.Snapshot, rows: Mapping[str, telling.ApiRow], *, book: price_book.ModelPrices
    ) -> None:
        self._seen, self._book, self._freed = seen, book, _find_freed(seen, rows)
        self.measured = UsageRows(seen.evidence)
        self._pods: dict[str, list[_Hold]] = defaultdict(list)
        for workload in seen.workloads:
            for pod in workload.pods:
                if seen.pods[pod].node:
                    self._pods[seen.pods[pod].node] += self._holds_of(pod, rows.get(workload.ref.uid))

    def _holds_of(self, pod: int, row: telling.ApiRow | None) -> Iterator[_Hold]:
        found = self._seen.pods[pod]
        units_held = shares.held_by(found, self._seen.nodes.known.get(found.node))
        for unit, at in itertools.zip_longest(units_held, self.measured.of(pod)):
            if unit is not None and at is not None:
                board, index = self.measured.board(at), self.measured.index(at)
                yield _Hold(unit, row, board, index, self.measured.activity(at))
            elif unit is not None:
                yield _Hold(unit, row, "", None, None)

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
        trouble = find_trouble(node, holds, self._seen, self.measured)
        boards = () if count is None else _fill(holds, count)
        return NodeShown(
            name=node.name, ready=node.ready, layout=shares.layout_of(node),  # type: ignore[arg-type]
            activity=round(sum(known) / len(known), 4) if known else None, trouble=trouble,
            gpus=tuple(self._show_gpu(node, index, board) for index, board in enumerate(self._free(node, boards))),
        )

    def _free(self, node: cluster.Node, boards: Sequence[_Board]) -> Sequence[_Board]:
        """What nobody has, in the pieces in which the node offers it; what is left over of a GPU is a piece, too."""
        left = Counter(shares.offered_by(node) or {})
        for board in boards:
            left.subtract(Counter(hold.unit.resource for hold in board.holds))
        pieces = sorted((shares.unit_on(node, name) for name in left), key=lambda unit: -unit.share)
        for board in boards:
            for unit in pieces:
                while left[unit.resource] > 0 and board.fits(unit):
                    left[unit.resource] -= 1
                    board.take(_Hold(unit, None, "", None, None))
            if board.room > _NEARLY and min(board.left) > _NEARLY:
                board.take(_Hold(shares.PhysicalUnit("", board.room), None, "", None, None))
        return boards

    def _show_gpu(self, node: cluster.Node, index: int, board: _Board) -> GpuShown:
        start, slots, worth = 0, [], board.worth
        is_cut = shares.layout_of(node) == "mig"
        for hold in board.holds:
            of = hold.unit.of
            size = (hold.unit.size or round(hold.unit.share * of)) if is_cut else None
            slots.append(self._show_slot(node, index, hold, hold.unit.share / worth, start if is_cut else None, size))
            start += size or 0
        return GpuShown(index=index, uuid=board.uuid, slots=tuple(slots))

    def _show_slot(
        self, node: cluster.Node, index: int, hold: _Hold, share: float, start: int | None, size: int | None
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
            if left.gpus >= share - _NEARLY:
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


def _fill(holds: Iterable[_Hold], count: int) -> list[_Board]:
    """Every hold on the GPU that its series names, by its index; the others where there is room."""
    named = {hold.board: hold.index for hold in holds if hold.board}
    boards = [_Board(holds=[]) for _ in range(max(count, len(named)))]
    places: dict[str, _Board] = {}
    free = list(range(len(boards)))
    for board, index in sorted(named.items(), key=lambda each: (each[1] is None, each[1] or 0, each[0])):
        at = index if index is not None and index in free else free[0]
        free.remove(at)
        places[board] = boards[at]
        boards[at].uuid = board if board.startswith(("GPU-", "MIG-")) else None
    unplaced = []
    for hold in holds:
        place = places.get(hold.board)
        if place is not None and place.fits(hold.unit):
            place.take(hold)
        else:
            unplaced.append(hold)
    for hold in sorted(unplaced, key=lambda each: (each.row.namespace, each.row.name) if each.row else ("", "")):
        place = next((board for board in boards if board.fits(hold.unit)), None)
        if place is None:
            place = _Board(holds=[])
            boards.append(place)
        place.take(hold)
    return boards


def _show_unseen(name: str, seen: cluster.Snapshot) -> NodeShown:
    why = seen.nodes.rest.why if isinstance(seen.nodes.rest, Unseen) else "it is not in the list"
    return NodeShown(name=name, ready=None, layout="whole", activity=None, trouble=f"not seen: {why}", gpus=())


def _name(row: telling.ApiRow) -> naming.WorkloadName:
    return naming.WorkloadName(
        api_version=row.api_version, kind=row.kind, namespace=row.namespace, name=row.name, uid=row.uid
    )


_POOL_LABELS: Final = (
    "cloud.google.com/gke-nodepool", "eks.amazonaws.com/nodegroup", "karpenter.sh/nodepool",
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


def find_trouble(
    node: cluster.Node, holds: Sequence[_Hold], seen: cluster.Snapshot, measured: UsageRows
) -> str | None:
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


# ---- nodes and data --------------------------------------------------------------------------------------------------


class ExporterTold(answers.Shape, frozen=True, kw_only=True):
    state: Literal["up", "silent", "suspect", "utilisationOnly", "none", "unseen"]
    words: str


class CoverageTold(answers.Shape, frozen=True, kw_only=True):
    """Of the last day: `ratio` of as much of it as is known, `gaps` in all of it, also the time before anybody was
    here. Where nothing of it is known: of the window of the rules."""

    ratio: float | None
    gaps: tuple[tuple[str, str], ...]


class NodeRow(answers.Shape, frozen=True, kw_only=True):
    name: str
    pool: str
    model: str | None
    layout: str
    gpus: float
    held: float
    activity: float | None
    ready: bool | None
    exporter: ExporterTold
    newest_seconds: float | None
    coverage: CoverageTold
    per_hour: float | None
    plan: str | None


class SourceTold(answers.Shape, frozen=True, kw_only=True):
    name: str
    state: Literal["ok", "trouble", "partial", "unseen"]
    headline: str
    detail: str
    effect: str


class NodesPage(answers.Shape, frozen=True, kw_only=True):
    revision: int
    sources: tuple[SourceTold, ...]
    nodes: tuple[NodeRow, ...]


class NodeColumns(msgspec.Struct, frozen=True):
    """What the rows of a node's pods say: how old the newest sample is, how well the worst one is covered."""

    newest: float | None
    coverage: float | None
    is_down: bool
    is_frozen: bool
    is_coarse: bool  # nothing but utilisation


def measure_nodes(seen: cluster.Snapshot, measured: UsageRows, now: Instant) -> Mapping[str, NodeColumns]:
    use = measured.use
    if use is None or not use.rows:
        return {}
    newest, best = np.full(use.rows, np.nan), np.zeros(use.rows)
    for column in use.newest.values():
        newest = np.fmax(newest, column)
    for samples in use.count.values():
        best = np.fmax(best, samples * use.interval / use.window)
    fine = np.zeros(use.rows, np.bool_)
    for signal in usage.PRIMARIES:
        if signal in use.peak and signal is not usage.Signal.gpu_util:
            fine |= ~np.isnan(use.peak[signal])
    by_node: dict[str, list[int]] = defaultdict(list)
    for row, pod in enumerate(use.pod.tolist()):
        by_node[seen.pods[pod].node].append(row)
    return {
        node: NodeColumns(
            _known(now - float(np.nanmax(newest[some]))) if not np.isnan(newest[some]).all() else None,
            _known(float(min(1.0, best[some].min()))), bool((~use.exporter_up[some]).any()),
            bool(use.exporter_frozen[some].any()), bool((~fine[some]).all()),
        )
        for node, some in by_node.items()
    }


def _known(value: float) -> float | None:
    return round(max(0.0, value), 3) if math.isfinite(value) else None


Stretch: TypeAlias = tuple[Instant, Instant]  # from, until


def cover_day(past: Sequence[tuple[Instant, Condition | None]], away: Iterable[Stretch], now: Instant) -> CoverageTold:
    """`past`: since when a node is measured, or not, the oldest first; `away`: when nobody was here to see."""
    began, ends = now - DAY, [at for at, _ in past[1:]] + [now]
    known = max(began, past[0][0])
    silent = [(at, end) for (at, condition), end in zip(past, ends, strict=True) if condition is not Condition.busy]
    gaps = _unite([(began, known), *((max(begin, known), end) for begin, end in (*silent, *away))])
    missed = sum(end - max(begin, known) for begin, end in gaps if end > known)
    return CoverageTold(
        ratio=round(1 - missed / (now - known), 4) if now > known else None,
        gaps=tuple((units.rfc3339(begin), units.rfc3339(end)) for begin, end in gaps),
    )


def _unite(stretches: Iterable[Stretch]) -> list[Stretch]:
    """In their order, those that touch as one, and none that has no length."""
    found: list[Stretch] = []
    for begin, end in sorted(each for each in stretches if each[1] > each[0]):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def show_nodes(
    page: FieldPage, seen: cluster.Snapshot, measured: UsageRows, now: Instant, day: Mapping[str, CoverageTold], *,
    book: price_book.ModelPrices,
) -> tuple[NodeRow, ...]:
    """`day`: how well each was measured in the last day, where that is known."""
    columns = measure_nodes(seen, measured, now)
    return tuple(
        _show_row(
            pool, node, seen, columns.get(node.name), day.get(node.name), find_price(seen, node.name, book)
        )
        for pool in page.pools for node in pool.nodes
    )


def _show_row(
    pool: PoolShown, node: NodeShown, seen: cluster.Snapshot, said: NodeColumns | None, day: CoverageTold | None,
    price: float | None,
) -> NodeRow:
    held = sum(slot.share for gpu in node.gpus for slot in gpu.slots if slot.holder is not None)
    known = seen.nodes.known.get(node.name)
    layout = node.layout if known is None or node.layout != "slices" else f"time-slicing × {shares.replicas_of(known)}"
    return NodeRow(
        name=node.name, pool=pool.name, model=pool.model, layout="MIG" if layout == "mig" else layout,
        gpus=float(len(node.gpus)), held=round(held, 3), activity=node.activity, ready=node.ready,
        exporter=_tell_exporter(node, seen, said, is_held=held > 0), newest_seconds=said.newest if said else None,
        coverage=day or CoverageTold(ratio=said.coverage if said else None, gaps=()),
        per_hour=None if price is None else round(price * len(node.gpus), 2), plan=None,
    )


def _tell_exporter(
    node: NodeShown, seen: cluster.Snapshot, said: NodeColumns | None, *, is_held: bool
) -> ExporterTold:
    if seen.evidence.trouble is not None:
        return ExporterTold(state="unseen", words="Not asked: the source gave nothing")
    if said is None and seen.evidence.gpus_per_node.get(node.name):
        return ExporterTold(state="up", words="Up" if not is_held else "Up; names no pod of ours")
    if said is None:
        return ExporterTold(state="none", words="No series")
    if said.is_down or (said.newest is not None and said.newest > _SILENT_AFTER):
        quiet = "" if said.newest is None else f" for {units.spoken(said.newest)}"
        return ExporterTold(state="silent", words=f"Silent{quiet}")
    if said.is_frozen:
        return ExporterTold(state="suspect", words="Repeats itself")
    return ExporterTold(state="utilisationOnly", words="Utilisation only") if said.is_coarse else ExporterTold(
        state="up", words="Up"
    )


def show_sources(
    seen: cluster.Snapshot, nodes: Sequence[NodeRow], *, source: str, now: Instant
) -> tuple[SourceTold, ...]:
    return (_tell_source(seen, source, now), _tell_exporters(nodes), _tell_watch(seen), *_tell_lost(seen))


def _tell_source(seen: cluster.Snapshot, source: str, now: Instant) -> SourceTold:
    trouble = seen.evidence.trouble
    if trouble is not None:
        return SourceTold(
            name=source, state="trouble", headline=trouble.reason, detail=trouble.because, effect="no verdicts"
        )
    age = units.spoken(now - seen.evidence.at)
    return SourceTold(name=source, state="ok", headline="answers", detail=f"asked {age} ago", effect="verdicts")


def _tell_exporters(nodes: Sequence[NodeRow]) -> SourceTold:
    bad = [node for node in nodes if node.exporter.state in ("silent", "suspect", "none") and node.held]
    held = sum(node.held for node in bad)
    well = f"{len(nodes) - len(bad)} of {answers.many(len(nodes), 'node')}"
    if not bad:
        return SourceTold(name="Exporters", state="ok", headline=well, detail="all of them measured", effect="verdicts")
    named = ", ".join(f"{node.name}: {node.exporter.words.lower()}" for node in bad[:3])
    more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
    return SourceTold(
        name="Exporters", state="trouble", headline=well, detail=f"{named}{more}",
        effect=f"{held:g} GPUs cannot be told",
    )


def _tell_watch(seen: cluster.Snapshot) -> SourceTold:
    count = f"{answers.many(len(seen.pods), 'GPU pod')}, {answers.many(len(seen.nodes.known), 'node')}"
    if not seen.missing:
        return SourceTold(
            name="Kubernetes watch", state="ok", headline="in sync", detail=count, effect="owners, pods, capacity"
        )
    first = seen.missing[0]
    return SourceTold(
        name="Kubernetes watch", state="partial", headline=f"{len(seen.missing)} not seen",
        detail=f"{first.what}: {first.because}", effect="what rests on it cannot be told",
    )


def _tell_lost(seen: cluster.Snapshot) -> Iterator[SourceTold]:
    for lost in seen.evidence.lost_signals:
        yield SourceTold(
            name=f"Signal {lost.signal}", state="partial", headline="not read", detail=lost.because,
            effect="GPUs are judged by the other signals",
        )
