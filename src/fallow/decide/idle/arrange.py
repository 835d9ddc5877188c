"""Columns of numbers over pods, GPU rows and workloads: what the judges compute on.

In: a snapshot and the mandate. Out: an Arrangement, and a Layout per window that says which rows belong to which pod
and workload. A Cache keeps the last Arrangement between cycles; it is used again while snapshot and usage have the
versions it was made from, so a cycle in which nothing changed does no work per pod or workload. With or without it the
plan is the same.
"""

from collections import Counter
from itertools import chain
from typing import Final, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from fallow import names
from fallow.decide.idle import courtesy, rules
from fallow.model import cluster, gpus, usage
from fallow.model.policies import idle
from fallow.model.seen import Unseen, sure
from fallow.model.units import Seconds
from fallow.model.usage import Bools, Floats

Indices = NDArray[np.int64]
Number = TypeVar("Number", bound=np.generic)

MARKS: Final = frozenset({*names.ACK_KEYS, *names.PENDING_KEYS, *names.PAUSE_KEYS, names.RESUME_REQUESTED})
NOTICE: Final = frozenset(names.PENDING_KEYS)
_CUT: Final = "-MIG-"  # in the product of a node whose GPUs are
_NUMBERS: Final = (
    "gone_idle", "never_used", "grace", "activity", "coverage", "max_sample_age", "idle_gpu_fraction", "power_watts",
)


class Groups(msgspec.Struct):
    """Runs of equal keys in a sorted column: where each begins, and of whom it is."""

    starts: Indices
    keys: Indices
    size: int

    def reduce(self, ufunc: np.ufunc, column: NDArray[Number], into: NDArray[Number]) -> NDArray[Number]:
        """One value per key; keys without rows keep what `into` holds."""
        if self.size:
            into[self.keys] = ufunc.reduceat(column, self.starts)
        return into

    def spread(self, values: NDArray[Number]) -> NDArray[Number]:
        """A value per key, back to every row of it."""
        return np.repeat(values[self.keys], np.diff(self.starts, append=self.size))

    def slice_of(self, key: int) -> slice:
        at = int(self.keys.searchsorted(key))
        if at == len(self.keys) or self.keys[at] != key:
            return slice(0, 0)
        return slice(int(self.starts[at]), int(self.starts[at + 1]) if at + 1 < len(self.starts) else self.size)


def group(keys: Indices) -> Groups:
    starts = np.flatnonzero(np.diff(keys, prepend=keys[0] - 1)) if len(keys) else np.zeros(0, np.int64)
    return Groups(starts, keys[starts], len(keys))


class PodColumns(msgspec.Struct, kw_only=True):
    """One entry per pod of the snapshot."""

    workload: Indices  # -1 = nobody's
    counts: Bools  # alive, and of a workload
    gpus: Indices  # -1 = not known
    on_ready_node: Bools
    on_unseen_node: Bools
    running: Bools
    reserved: Bools  # holds a GPU for others whom we cannot see
    started: Floats
    ready: Bools
    turned: Floats  # since when it is ready, or is not
    shared: Bools
    mig: Bools  # asks for instances, or its node is cut into some
    alive: Bools  # scheduled, not ended, not ending
    node: Indices
    model: Indices  # of its node, as an index into Arrangement.models
    by_workload: Indices  # pods that count, in the order of their workloads
    groups: Groups


class RuleColumns(msgspec.Struct, kw_only=True):
    """One entry per distinct ruling: of its rule, under the same names."""

    gone_idle: Floats
    never_used: Floats
    grace: Floats
    activity: Floats
    coverage: Floats
    max_sample_age: Floats
    idle_gpu_fraction: Floats
    power_watts: Floats  # nan = not asked for
    power_floor: Bools
    disabled: dict[str, Bools]  # by signal


class Layout(msgspec.Struct):
    """Whose the rows of one window are."""

    use: usage.Usage  # the one it was made from: the same rows may come again with other numbers
    rows: Indices  # rows that count, sorted by workload, then pod
    pods: Groups
    workloads: Groups
    held: Indices  # distinct GPUs seen, per pod
    model: Indices  # per row, as an index into Arrangement.models
    device: Indices  # per row: rows of one GPU have the same number
    contested: Bools  # per row: several pods for one whole GPU, or more GPUs for a pod than it asked for


class Arrangement(msgspec.Struct, kw_only=True):
    """Everything about a snapshot that stays while its objects do."""

    snapshot: cluster.Snapshot
    mandate: idle.Mandate
    pods: PodColumns
    layouts: dict[Seconds, Layout]
    rulings: tuple[rules.Ruling, ...]
    rule_of: Indices  # per workload
    rule_of_pod: Indices  # nobody's pods get the first rule, and count nowhere
    terms: RuleColumns
    gpus: Indices  # per workload, over the pods that count
    gpus_in_use: Indices  # of those what a kubelet granted: anybody may bind a pod to a node that is not there
    marked: tuple[int, ...]  # workloads that carry any mark of ours
    noticed: frozenset[int]  # those with a mark of a notice
    lookups_failed: Indices  # workloads of which it is not known what all belongs to them
    uids: tuple[str, ...]
    index_of: dict[str, int]  # UID -> workload
    models: tuple[str, ...]  # "" = not known
    watts: Floats  # what each of them is rated; nan = not known
    waiting: tuple[cluster.Pod, ...]  # pods that no node takes
    odd: dict[int, str]  # workloads for which no rule could be found, and why
    answers: dict[int, courtesy.Answered] = {}  # by workload, as they are asked for
    episodes: dict[int, courtesy.Episode] = {}

    def ruling(self, index: int) -> rules.Ruling:
        return self.rulings[int(self.rule_of[index])]

    def subject(self, index: int) -> rules.Subject:
        return _subject(self.snapshot, self.layouts, self.pods, index)


class Cache:
    """The arrangement of the last cycle, for the next one."""

    def __init__(self) -> None:
        self.last: Arrangement | None = None

    def arrange(self, snapshot: cluster.Snapshot, mandate: idle.Mandate) -> Arrangement:
        """The arrangement of this snapshot: the last one where it still fits."""
        if self.last is None or not _is_same(self.last, snapshot, mandate):
            self.last = _make(snapshot, mandate)
        return self.last


def _is_same(last: Arrangement, snapshot: cluster.Snapshot, mandate: idle.Mandate) -> bool:
    return (
        snapshot.version is not None and snapshot.version == last.snapshot.version and mandate == last.mandate
        and last.layouts.keys() == snapshot.evidence.usage.keys()
        # What widens a rule stands on the Lease and makes no object another one.
        and [each.rule.widened for each in sure(last.snapshot.policies)]
        == [each.rule.widened for each in sure(snapshot.policies)]
        and all(_has_same_rows(last.layouts[window].use, use) for window, use in snapshot.evidence.usage.items())
    )


def _has_same_rows(old: usage.Usage, new: usage.Usage) -> bool:
    return new.version is not None and new.version == old.version


def _make(snapshot: cluster.Snapshot, mandate: idle.Mandate) -> Arrangement:
    models: dict[str, int] = {}
    workloads, products = snapshot.workloads, _products(snapshot)
    pods = _columns_of(snapshot, products, models)
    layouts = {window: _lay_out(use, pods, models, products) for window, use in snapshot.evidence.usage.items()}
    rulings, rule_of, odd = _rule(snapshot, mandate, layouts, pods)
    failed = [index for index, one in enumerate(workloads) if _is_unclear(one)]
    return Arrangement(
        snapshot=snapshot, mandate=mandate, pods=pods, layouts=layouts, rulings=rulings, rule_of=rule_of,
        rule_of_pod=np.append(rule_of, 0)[pods.workload], terms=_columns_of_rules(rulings),
        gpus=_count_gpus(pods, pods.counts, len(workloads)),
        gpus_in_use=_count_gpus(pods, pods.counts & pods.running, len(workloads)),
        lookups_failed=np.array(failed, np.int64),
        marked=tuple(index for index, workload in enumerate(workloads) if _is_marked(workload)),
        noticed=frozenset(index for index, one in enumerate(workloads) if not NOTICE.isdisjoint(one.marks)),
        uids=tuple(workload.ref.uid for workload in workloads), models=tuple(models),
        watts=_floats([float(model.watts) if (model := gpus.find(name)) else None for name in models]),
        index_of={workload.ref.uid: index for index, workload in enumerate(workloads)},
        waiting=tuple(pod for pod in snapshot.pods if pod.unschedulable_since is not None), odd=odd,
    )


def _is_unclear(workload: cluster.Workload) -> bool:
    """Is it unknown which pods are its own, or what it is?"""
    return workload.trouble is cluster.Trouble.OwnerLookupFailed or isinstance(workload.strays, Unseen)


def _count_gpus(pods: PodColumns, these: Bools, workloads: int) -> Indices:
    known = np.where(these & (pods.gpus > 0) & (pods.workload >= 0), pods.gpus, 0)
    return np.bincount(np.maximum(pods.workload, 0), known, workloads).astype(np.int64)[:workloads]


def _is_marked(workload: cluster.Workload) -> bool:
    return not (
        MARKS.isdisjoint(workload.annotations)
        and (workload.marks is workload.annotations or MARKS.isdisjoint(workload.marks))
        and all(MARKS.isdisjoint(companion.annotations) for companion in sure(workload.kueue))
    )


def _products(snapshot: cluster.Snapshot) -> list[str]:
    """The GPU model of each pod's node; "" = not known."""
    known = snapshot.nodes.known
    return [node.gpu_product or "" if (node := known.get(pod.node)) else "" for pod in snapshot.pods]


def _columns_of(snapshot: cluster.Snapshot, products: list[str], models: dict[str, int]) -> PodColumns:
    pods = snapshot.pods
    nodes = [snapshot.nodes.known.get(pod.node) for pod in pods]
    are_unseen = isinstance(snapshot.nodes.rest, Unseen)  # those that are not known
    unseen = _bools([are_unseen and node is None for node in nodes])
    workload = _owners(snapshot)
    alive = _bools([_is_alive(pod) for pod in pods])
    counts = alive & (workload >= 0)
    by_workload = np.flatnonzero(counts)
    by_workload = by_workload[np.argsort(workload[by_workload], kind="stable")]
    codes: dict[str, int] = {}
    return PodColumns(
        workload=workload, counts=counts, by_workload=by_workload, groups=group(workload[by_workload]),
        gpus=np.array([-1 if (count := pod.gpu_count) is None else count for pod in pods], np.int64),
        on_ready_node=_bools([pod.phase != "Unknown" for pod in pods])
        & (unseen | _bools([node is not None and node.ready for node in nodes])),
        on_unseen_node=unseen,
        running=_bools([pod.phase == "Running" and pod.started_at is not None for pod in pods]),
        reserved=_bools([pod.namespace in names.RESERVATION_NAMESPACES for pod in pods]),
        started=_floats([pod.started_at for pod in pods]), ready=_bools([pod.ready for pod in pods]),
        turned=_floats([pod.ready_since for pod in pods]),
        shared=unseen | _bools([  # by all we know it may be
            names.GPU_SHARED in pod.resources or (node is not None and node.shared)
            for pod, node in zip(pods, nodes, strict=True)
        ]),
        mig=_bools([_is_mig(pod, node) for pod, node in zip(pods, nodes, strict=True)]), alive=alive,
        node=np.array([codes.setdefault(pod.node, len(codes)) for pod in pods], np.int64),
        model=np.array([models.setdefault(product, len(models)) for product in products], np.int64),
    )


def _owners(snapshot: cluster.Snapshot) -> Indices:
    owners = np.full(len(snapshot.pods), -1, np.int64)
    sizes = [len(workload.pods) for workload in snapshot.workloads]
    held = np.fromiter(chain.from_iterable(workload.pods for workload in snapshot.workloads), np.int64, sum(sizes))
    owners[held] = np.repeat(np.arange(len(sizes)), sizes)
    return owners


def _is_alive(pod: cluster.Pod) -> bool:
    return bool(pod.node) and not pod.terminating and not pod.has_ended


def _is_mig(pod: cluster.Pod, node: cluster.Node | None) -> bool:
    if any(name.startswith(names.MIG_PREFIX) for name in pod.resources):
        return True
    if node is None:
        return False
    if node.gpu_product is not None:
        # Where GPUs are cut the product says so. The strategy alone does not: it is set where nothing is cut, too.
        return _CUT in node.gpu_product.upper()
    return node.labels.get(names.MIG_STRATEGY) == "single"


def _bools(values: list[bool]) -> Bools:
    return np.array(values, np.bool_)


def _floats(values: list[float] | list[float | None]) -> Floats:
    return np.array(values, np.float64)  # None becomes nan


def _lay_out(use: usage.Usage, pods: PodColumns, models: dict[str, int], products: list[str]) -> Layout:
    rows = np.flatnonzero(pods.counts[use.pod])
    holder = use.pod[rows].astype(np.int64)
    order = np.lexsort((holder, pods.workload[holder]))
    rows, holder = rows[order], holder[order]
    named = (model or products[pod] for pod, model in zip(use.pod.tolist(), use.model, strict=True))
    model = np.array([models.setdefault(name, len(models)) for name in named], np.int64)
    held, codes = _count_held(use, len(pods.counts)), dict[str, int]()
    device = np.array([codes.setdefault(gpu, len(codes)) for gpu in use.gpu], np.int64)
    contested = _find_contested(use, pods, device)
    return Layout(use, rows, group(holder), group(pods.workload[holder]), held, model, device, contested)


def _find_contested(use: usage.Usage, pods: PodColumns, device: Indices) -> Bools:
    """A board above its instances is nobody's claim; where nobody knows how many were asked for, none are too many."""
    cut = {gpu.rpartition("/")[0] for gpu, is_cut in zip(use.gpu, use.mig.tolist(), strict=True) if is_cut}
    claims = pods.alive[use.pod] & ~_bools([gpu in cut for gpu in use.gpu])
    shared = use.shared | (pods.shared & ~pods.on_unseen_node)[use.pod]  # by what was declared, not by what may be
    whole = claims & ~(use.mig | pods.mig[use.pod]) & ~shared
    hands = np.bincount(device[whole], minlength=len(use.gpu))
    claimed, asked = np.bincount(use.pod[claims], minlength=len(pods.gpus)), pods.gpus
    is_greedy = (asked > 0) & (claimed > asked)
    return np.asarray((whole & (hands[device] > 1)) | is_greedy[use.pod])


def _count_held(use: usage.Usage, pods: int) -> Indices:
    """Distinct GPUs per pod: a GPU that came twice must not stand in for one that did not come."""
    pairs = set(zip(use.pod.tolist(), use.gpu, strict=True))
    if len(pairs) == use.rows:
        return np.bincount(use.pod, minlength=pods).astype(np.int64)
    held = Counter(pod for pod, _ in pairs)
    return np.array([held[pod] for pod in range(pods)], np.int64)


def _rule(
    snapshot: cluster.Snapshot, mandate: idle.Mandate, layouts: dict[Seconds, Layout], pods: PodColumns
) -> tuple[tuple[rules.Ruling, ...], Indices, dict[int, str]]:
    book, odd = rules.Rulebook(mandate, snapshot.policies), dict[int, str]()
    if not book.policies:
        return (book.last,), np.zeros(len(snapshot.workloads), np.int64), odd

    def find(index: int) -> rules.Ruling:
        with SetAside(odd, index):
            return book.find(_subject(snapshot, layouts, pods, index))
        return book.last

    found = [find(index) for index in range(len(snapshot.workloads))]
    distinct = {id(ruling): ruling for ruling in found}  # the book hands out the same one to all whom it holds for
    codes = {key: code for code, key in enumerate(distinct)}
    return tuple(distinct.values()) or (book.last,), np.array([codes[id(ruling)] for ruling in found], np.int64), odd


class SetAside:
    """Around what is thought about one workload. Whatever goes wrong in it, a defect of ours or an object as nobody
    foresaw it, makes that one odd, which is unknown and named; the others go on."""

    def __init__(self, odd: dict[int, str], index: int) -> None:
        self._odd, self._index = odd, index

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> bool:
        if not isinstance(problem, Exception):
            return False
        self._odd[self._index] = f"{type(problem).__name__}: {problem}"[:200]
        return True


def _subject(
    snapshot: cluster.Snapshot, layouts: dict[Seconds, Layout], pods: PodColumns, index: int
) -> rules.Subject:
    workload = snapshot.workloads[index]
    held = tuple([snapshot.pods[pod] for pod in workload.pods])
    namespace = snapshot.namespaces.find(workload.ref.namespace)
    return rules.Subject(workload, held, namespace, lambda: _find_models(snapshot, layouts, pods, index))


def _find_models(
    snapshot: cluster.Snapshot, layouts: dict[Seconds, Layout], pods: PodColumns, index: int
) -> frozenset[str]:
    """The models of its GPUs: as measured, and of their nodes where the measured ones do not tell of all."""
    workload = snapshot.workloads[index]
    held, known = (snapshot.pods[pod] for pod in workload.pods), snapshot.nodes.known
    models = {node.gpu_product or "" if (node := known.get(pod.node)) else "" for pod in held if pod.node}
    if layouts:
        layout = layouts[max(layouts)]
        rows = layout.rows[layout.workloads.slice_of(index)]
        measured = {layout.use.model[row] for row in rows}
        is_complete = all(layout.held[pod] >= max(1, pods.gpus[pod]) for pod in workload.pods if pods.counts[pod])
        models = measured if measured and is_complete and "" not in measured else measured - {""} | models
    return frozenset(models)


def _columns_of_rules(rulings: tuple[rules.Ruling, ...]) -> RuleColumns:
    each = [ruling.rule for ruling in rulings]
    disabled = {name for rule in each for name in rule.disabled_signals}
    return RuleColumns(
        power_floor=_bools([rule.power_floor for rule in each]),
        disabled={name: _bools([name in rule.disabled_signals for rule in each]) for name in disabled},
        **{name: _floats([getattr(rule, name) for rule in each]) for name in _NUMBERS},
    )
