"""Costs in the shape of OpenCost's `/allocation`, for what reads OpenCost: dashboards, exporters, its own clients.

In: CostBooks, an AllocationAsk. Out: an AllocationsPage, one set of allocations by name for each step.
What nobody held is `__idle__`, and what has no such label `__unallocated__`, as OpenCost names them. CPU and memory are
0: the price of a node is its GPUs' here (docs/cost-model.md).
Invariant: the sets of an answer with `includeIdle` come to what the ledger has of the window, whatever is shared and
however it is divided. Efficiency is None where nothing was measured.
"""

import asyncio
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from fallow.account.reports import Basis
from fallow.doors import answers
from fallow.doors.answers.cost_books import CostBooks
from fallow.model import calendar, cost, units
from fallow.model.cost import (
    Amounts,
    CostFilter,
    CostQuery,
    CostSum,
    Dimension,
    DimensionName,
    Nano,
    Second,
    SpendState,
)
from fallow.model.windows import TimeSpan

ShareIdle: TypeAlias = Literal["false", "true", "even", "weighted"]
Key: TypeAlias = tuple[str, ...]
MOST_STEPS: Final = 1000
MOST_ALLOCATIONS: Final = 50_000  # 5,000 pods by the day for a week, and 30 MB as JSON
_EACH: Final = tuple(map(cost.read_dimension, ("cluster", "node", "namespace", "controllerKind", "controller", "pod")))
_NAMED_BY: Final = ("cluster", "node", "namespace", "pod")  # of one that nobody aggregated
_NODE: Final = cost.read_dimension("node")
_TERM: Final = re.compile(r'([A-Za-z]+)(?:\[([^\]\s"]+)\])?:((?:"[^"]*"(?:,(?=")|$|(?=\+)))+)')
_FILTERED: Final = r'([A-Za-z]+|label\[[^\]\s"]+\]):"[^"]*"(,"[^"]*")*'
FILTER: Final = f"^{_FILTERED}(\\+{_FILTERED})*$"
_ALIASES: Final = {"controllerName": DimensionName.controller}  # as OpenCost's filters call it


class AllocationAsk(msgspec.Struct, frozen=True, kw_only=True):
    """`by` (): each pod by itself. `step` None: one set."""

    span: TimeSpan
    by: tuple[Dimension, ...] = ()
    step: Second | None = None
    includes_idle: bool = False
    share_idle: ShareIdle = "false"
    idle_by_node: bool = False
    where: tuple[CostFilter, ...] = ()
    basis: Basis = Basis.allocation

    @property
    def is_shared(self) -> bool:
        return self.share_idle != "false"

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        return self.by or _EACH


class AllocationProperties(answers.Shape, frozen=True, kw_only=True, omit_defaults=True, rename={
    "controller_kind": "controllerKind", "provider_id": "providerID",
}):
    cluster: str = ""
    node: str = ""
    namespace: str = ""
    controller_kind: str = ""
    controller: str = ""
    pod: str = ""
    container: str = ""
    provider_id: str = ""
    labels: dict[str, str] = {}  # noqa: RUF012  msgspec makes a new one for each


class AllocationWindow(answers.Shape, frozen=True, kw_only=True):
    start: str
    end: str


class Allocation(answers.Shape, frozen=True, kw_only=True):
    name: str
    properties: AllocationProperties
    window: AllocationWindow
    start: str
    end: str
    minutes: float
    gpu_count: float
    gpu_hours: float
    unpriced_gpu_hours: float
    gpu_cost: float
    gpu_cost_adjustment: float
    gpu_cost_idle: float
    gpu_request_average: float
    gpu_usage_average: float | None
    gpu_efficiency: float | None
    cpu_cost: float
    ram_cost: float
    shared_cost: float
    external_cost: float
    total_cost: float
    total_efficiency: float | None


class AllocationsPage(answers.Shape, frozen=True, kw_only=True):
    code: int
    data: list[dict[str, Allocation]]


class AllocationRefusal(answers.Shape, frozen=True, kw_only=True):
    code: int
    message: str


# ---- what is asked ---------------------------------------------------------------------------------------------------


def read_aggregate(text: str) -> tuple[Dimension, ...]:
    """What is named twice counts once."""
    return tuple(dict.fromkeys(map(cost.read_dimension, text.split(","))))


def read_filter(text: str) -> tuple[CostFilter, ...]:
    """`namespace:"a","b"+label[team]:"c"`: one of the values there, and all terms."""
    found, at = list[CostFilter](), 0
    while at < len(text) or not text:
        term = _TERM.match(text, at)
        if term is None or (term.end() < len(text) and text[term.end()] != "+"):
            such = 'such as namespace:"a","b"+label[team]:"c"'
            raise ValueError(f"{text[at : at + 60]!r} is no filter {such}; only + between terms, only : within one")
        name, label, values = term.groups()
        found.append(CostFilter(_read_field(name, label), frozenset(re.findall(r'"([^"]*)"', values))))
        at = term.end() + 1
    if text.endswith("+"):
        raise ValueError(f"{text[-60:]!r} ends with +, and nothing behind it")
    return tuple(found)


def _read_field(name: str, label: str | None) -> Dimension:
    if name in _ALIASES and label is None:
        return Dimension(_ALIASES[name])
    return cost.read_dimension(f"{name}:{label}" if label is not None else name)


# ---- what is answered ------------------------------------------------------------------------------------------------


async def read_allocations(books: CostBooks, asked: AllocationAsk) -> AllocationsPage:
    """ValueError where there are too many steps, or too much in them."""
    pieces = calendar.cut(asked.span.begin, asked.span.end, asked.step, "UTC")
    if len(pieces) > MOST_STEPS:
        raise ValueError(f"{len(pieces):,} steps are more than {MOST_STEPS:,}; ask for longer ones")
    dimensions = _ask_for(asked)
    query = CostQuery(
        begin=asked.span.begin, end=asked.span.end, by=dimensions, step=asked.step,
        where=() if asked.is_shared else asked.where,  # who is left out carries its share of what is idle, too
    )
    meta, sums = await asyncio.gather(books.ledger.read_meta(), books.sums(query))
    if len(sums) > MOST_ALLOCATIONS:
        raise ValueError(
            f"{len(sums):,} allocations are more than {MOST_ALLOCATIONS:,}; ask for longer steps, or aggregate them"
        )
    return await asyncio.to_thread(_make_page, asked, dimensions, sums, pieces, meta.seen_until)


def _make_page(
    asked: AllocationAsk, dimensions: Sequence[Dimension], sums: Sequence[CostSum],
    pieces: Sequence[tuple[Second, Second]], seen_until: Second,
) -> AllocationsPage:
    by_piece = defaultdict[Second, list[CostSum]](list)
    for one in sums:
        by_piece[one.begin].append(one)
    return AllocationsPage(code=200, data=[
        _make_set(asked, dimensions, by_piece.get(begin, []), begin, end, seen_until) for begin, end in pieces
    ])


def _ask_for(asked: AllocationAsk) -> tuple[Dimension, ...]:
    """What is shown, and what idle parts are shared and left out by."""
    more = [*(fit.on for fit in asked.where if asked.is_shared), *([_NODE] if asked.idle_by_node else [])]
    return tuple(dict.fromkeys((*asked.dimensions, *more)))


class _Atom(msgspec.Struct):
    """Of one group of the ledger what it pays, what it held, and what of it nobody used."""

    key: Key
    held: Amounts
    pays: Nano
    own_idle: Nano
    measured: Amounts
    shared: Nano = 0


def _make_set(
    asked: AllocationAsk, dimensions: Sequence[Dimension], sums: Iterable[CostSum], begin: Second, end: Second,
    seen_until: Second,
) -> dict[str, Allocation]:
    atoms, idle, unused = list[_Atom](), defaultdict[str, Amounts](Amounts), defaultdict[str, Amounts](Amounts)
    at_node = dimensions.index(_NODE) if asked.idle_by_node else None
    for one in sums:
        node = one.key[at_node] if at_node is not None else ""
        if (free := one.parts.get(SpendState.unallocated)) is not None:
            idle[node] += free
        if (atom := _make_atom(one, asked.basis)) is not None:
            atoms.append(atom)
            unused[node] += Amounts(cost=atom.held.cost - atom.pays)  # by use: its holder's own idle, which none shares
    shown = _SetLayout(asked, dimensions, TimeSpan(begin, end), seen_until)
    if asked.is_shared:
        _share(atoms, idle, asked, dimensions)
        atoms = [one for one in atoms if _fits(asked.where, dimensions, one.key)]
    made = shown.show_atoms(atoms)
    if asked.includes_idle or asked.is_shared:
        left = {node: idle[node] + unused[node] for node in (*idle, *unused)}
        made |= shown.show_idle({node: amounts for node, amounts in left.items() if amounts != Amounts()})
    return dict(sorted(made.items()))


def _make_atom(one: CostSum, basis: Basis) -> _Atom | None:
    parts = {state: amounts for state, amounts in one.parts.items() if state is not SpendState.unallocated}
    if not parts:
        return None
    held = sum(parts.values(), Amounts())
    used, rests = parts.get(SpendState.used, Amounts()), parts.get(SpendState.held_idle, Amounts())
    return _Atom(
        key=one.key, held=held, pays=held.cost if basis is Basis.allocation else used.use_cost,
        own_idle=used.cost - used.use_cost + rests.cost, measured=used + rests,
    )


def _share(
    atoms: Sequence[_Atom], idle: dict[str, Amounts], asked: AllocationAsk, dimensions: Sequence[Dimension]
) -> None:
    """What is idle goes to those that are there, by what each pays or evenly; what nobody is there for stays."""
    at_node = dimensions.index(_NODE) if asked.idle_by_node else None
    groups = defaultdict[str, list[_Atom]](list)
    for atom in atoms:
        groups[atom.key[at_node] if at_node is not None else ""].append(atom)
    for node, some in groups.items():
        weights = _weigh(some, asked)
        pool = idle[node].cost
        if not pool or not sum(weights):
            continue
        for atom, part in zip(some, cost.divide(pool, weights), strict=True):
            atom.shared += part
        del idle[node]


def _weigh(atoms: Sequence[_Atom], asked: AllocationAsk) -> tuple[int, ...]:
    if asked.share_idle != "even":
        return tuple(atom.pays for atom in atoms)
    count = len(asked.dimensions)
    sums = defaultdict[Key, int](int)
    for atom in atoms:
        sums[atom.key[:count]] += atom.pays + 1
    # Each name the same, and within a name by what its parts pay.
    return tuple((atom.pays + 1) * cost.UNIT * cost.UNIT // sums[atom.key[:count]] for atom in atoms)


def _fits(where: Iterable[CostFilter], dimensions: Sequence[Dimension], key: Key) -> bool:
    return all(key[dimensions.index(fit.on)] in fit.values for fit in where)


class _SetLayout:
    """Lays out the allocations of one step."""

    def __init__(
        self, asked: AllocationAsk, dimensions: Sequence[Dimension], span: TimeSpan, seen_until: Second
    ) -> None:
        self._asked, self._dimensions, self._span = asked, dimensions, span
        self._until = max(span.begin, min(span.end, seen_until))
        self._start, self._end = units.rfc3339(span.begin), units.rfc3339(self._until)
        self._window = AllocationWindow(start=self._start, end=units.rfc3339(span.end))

    def show_atoms(self, atoms: Iterable[_Atom]) -> dict[str, Allocation]:
        """By name: a pod that came again under another controller has the name of the one before."""
        groups, count = dict[Key, list[_Atom]](), len(self._asked.dimensions)
        for atom in atoms:
            groups.setdefault(atom.key[:count], []).append(atom)
        named = dict[str, tuple[AllocationProperties, list[_Atom]]]()
        for key, some in groups.items():
            name, properties = self._name(key)
            named.setdefault(name, (properties, []))[1].extend(some)
        return {name: self._show(name, properties, some) for name, (properties, some) in named.items()}

    def show_idle(self, idle: Mapping[str, Amounts]) -> dict[str, Allocation]:
        found = dict[str, Allocation]()
        for node, left in idle.items():
            name = f"{node}/{cost.IDLE}" if self._asked.idle_by_node else cost.IDLE
            properties = AllocationProperties(node=node)
            found[name] = self._lay_out(name, properties, left, pays=left.cost, own_idle=left.cost, efficiency=0.0)
        return found

    def _show(self, name: str, properties: AllocationProperties, atoms: Sequence[_Atom]) -> Allocation:
        held, measured = (sum((getattr(one, name) for one in atoms), Amounts()) for name in ("held", "measured"))
        efficiency = measured.use_cost / measured.cost if measured.cost else None
        made = self._lay_out(
            name, properties, held, pays=sum(one.pays + one.shared for one in atoms),
            own_idle=sum(one.own_idle for one in atoms), efficiency=efficiency,
        )
        if efficiency is None or not self._hours:
            return made
        used = efficiency * measured.gpu_micro_seconds / cost.GPU_HOUR / self._hours
        return msgspec.structs.replace(made, gpu_usage_average=round(used, 6))

    @property
    def _hours(self) -> float:
        return (self._until - self._span.begin) / cost.HOUR

    def _lay_out(
        self, name: str, properties: AllocationProperties, held: Amounts, *, pays: Nano, own_idle: Nano,
        efficiency: float | None,
    ) -> Allocation:
        hours, ratio = held.gpu_micro_seconds / cost.GPU_HOUR, None if efficiency is None else round(efficiency, 6)
        count = round(hours / self._hours, 6) if self._hours else 0.0
        return Allocation(
            name=name, properties=properties, window=self._window, start=self._start, end=self._end,
            minutes=self._hours * 60,
            gpu_count=count, gpu_hours=round(hours, 6), unpriced_gpu_hours=round(held.unpriced / cost.GPU_HOUR, 6),
            gpu_cost=_units(pays), gpu_cost_adjustment=0.0,
            gpu_cost_idle=_units(own_idle), gpu_request_average=count, gpu_usage_average=None, gpu_efficiency=ratio,
            cpu_cost=0.0, ram_cost=0.0, shared_cost=0.0, external_cost=0.0, total_cost=_units(pays),
            total_efficiency=ratio,
        )

    def _name(self, key: Key) -> tuple[str, AllocationProperties]:
        said = [cost.UNALLOCATED if value == cost.NONE else value for value in key]
        fields, labels = dict[str, str](), dict[str, str]()
        for dimension, value in zip(self._asked.dimensions, said, strict=True):
            if dimension.name is DimensionName.label:
                labels[dimension.label] = value
            elif dimension.name in _FIELDS:
                fields[_FIELDS[dimension.name]] = value
            else:
                labels[str(dimension)] = value
        parts = said if self._asked.by else [
            value for one, value in zip(_EACH, said, strict=True) if str(one) in _NAMED_BY
        ]
        return "/".join(parts), AllocationProperties(**fields, labels=labels)


_FIELDS: Final = {
    DimensionName.cluster: "cluster", DimensionName.node: "node", DimensionName.namespace: "namespace",
    DimensionName.controller_kind: "controller_kind", DimensionName.controller: "controller", DimensionName.pod: "pod",
}


def _units(nano: Nano) -> float:
    """OpenCost's amounts are not rounded to cents."""
    return nano / cost.UNIT
