"""What the ledger's sums say to people: rows that add up, to the cent.

In: sums of a window (and of the window before it), what was asked for. Out: a CostReport: a row for each group of what
was held, what nobody held as the platform's, the total. Money is Decimal, in cents.
Invariant: the printed cells of a row sum to its printed cost, the printed rows and the platform's to the printed total,
and no row is a cent or more off its exact cost. What has no price is hours, never money.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final, TypeVar

import msgspec

from fallow.model import calendar, cost, energy, money
from fallow.model.cost import Amounts, CostSum, Nano, SpendState
from fallow.model.energy import EnergyTerms
from fallow.model.windows import TimeSpan

_FIRST_HOURS: Final[cost.Second] = 6 * cost.HOUR  # of a month: too little to say what it will come to
N = TypeVar("N", Decimal, float)


class Basis(StrEnum):
    """Who pays: who held it, or who used it."""

    allocation = "allocation"
    use = "use"


class ReportAsk(msgspec.Struct, frozen=True, kw_only=True):
    """`most`: rows; the others are one row more, `__other__`."""

    by: tuple[cost.Dimension, ...]
    begin: cost.Second
    end: cost.Second
    currency: str
    basis: Basis = Basis.allocation
    most: int | None = None
    energy: EnergyTerms = EnergyTerms()


class ReportRow(msgspec.Struct, frozen=True, kw_only=True):
    """`cost` is what this row pays by the basis asked for: by allocation the four parts, by use only the first. `use`:
    of the money whose use was measured, the part that was used; None: nothing was measured."""

    key: tuple[str, ...]
    gpu_hours: float
    cost: Decimal
    used: Decimal
    allocated_unused: Decimal
    held_idle: Decimal
    use_unknown: Decimal
    share: float | None
    use: float | None
    per_gpu_hour: float | None
    kwh: float
    unpriced_gpu_hours: float
    energy_cost: Decimal | None = None  # None: nobody said what a kWh costs
    co2_kg: float | None = None
    change: float | None = None  # against the window before; None: there was nothing to compare with


class PlatformRow(msgspec.Struct, frozen=True, kw_only=True):
    """What nobody held. `key`: `__unallocated__` or `__unused_commitment__`."""

    key: str
    gpu_hours: float
    cost: Decimal
    share: float | None
    kwh: float
    unpriced_gpu_hours: float
    energy_cost: Decimal | None = None
    co2_kg: float | None = None


class CostReport(msgspec.Struct, frozen=True, kw_only=True):
    asked: ReportAsk
    rows: tuple[ReportRow, ...]  # the costliest first
    platform: tuple[PlatformRow, ...]
    held: ReportRow  # all rows in one
    rest: Decimal  # of the total, what no row and no platform row pays: by use, what holders did not use
    total: Decimal
    gpu_hours: float
    unpriced_gpu_hours: float


class _RowParts:
    """The parts of one row, while they come together."""

    def __init__(self) -> None:
        self.parts: dict[SpendState, Amounts] = {}

    def add(self, parts: Mapping[SpendState, Amounts]) -> None:
        for state, amounts in parts.items():
            self.parts[state] = self.parts.get(state, Amounts()) + amounts

    def of(self, state: SpendState) -> Amounts:
        return self.parts.get(state, Amounts())

    @property
    def held(self) -> Amounts:
        return sum((each for state, each in self.parts.items() if state is not SpendState.unallocated), Amounts())

    def cells(self) -> tuple[Nano, Nano, Nano, Nano]:
        """Used, allocated and not used, held idle, use unknown."""
        used = self.of(SpendState.used)
        idle, unknown = self.of(SpendState.held_idle), self.of(SpendState.use_unknown)
        return used.use_cost, used.cost - used.use_cost, idle.cost, unknown.cost


def make_report(sums: Iterable[CostSum], asked: ReportAsk, before: Iterable[CostSum] = ()) -> CostReport:
    """`sums`: by the dimensions asked for, in one piece or in steps. `before`: the same of the window before."""
    held, free = _gather(sums)
    earlier, _ = _gather(before)
    ordered = sorted(held.items(), key=lambda each: (-_pays(each[1], asked.basis), each[0]))
    kept = ordered if asked.most is None else ordered[: asked.most]
    if rest := ordered[len(kept):]:
        kept.append(((cost.OTHER,) * len(asked.by), _merge(group for _, group in rest)))
        known = {key for key, _ in kept}
        earlier[kept[-1][0]] = _merge(group for key, group in earlier.items() if key not in known)
    every = _merge(itertools.chain(held.values(), free.values()))
    unallocated = [(key, group.of(SpendState.unallocated)) for key, group in sorted(free.items())]
    mine, nobodys = [group.held.cost for _, group in kept], [amounts.cost for _, amounts in unallocated]
    everybodys = _merge(held.values())
    whole_held, whole_free = money.to_cents([sum(mine), sum(nobodys)])  # of all, so that they are the same by whatever
    whole, columns = whole_held + whole_free, money.to_cents(everybodys.cells(), whole_held)
    cents = money.to_cents(mine, whole_held) + money.to_cents(nobodys, whole_free)
    table = money.to_table([group.cells() for _, group in kept], cents[: len(kept)], columns)
    burned = _tell_energy([*(group.held for _, group in kept), *(amounts for _, amounts in unallocated)], asked.energy)
    rows = tuple(
        msgspec.structs.replace(_make_row(key, group, cells, whole, earlier.get(key), asked.basis), **beside)
        for (key, group), cells, beside in zip(kept, table, burned, strict=False)
    )
    platform = tuple(
        PlatformRow(
            key=key, gpu_hours=_hours(amounts.gpu_micro_seconds), cost=_money(paid), share=_share(paid, whole),
            kwh=amounts.energy_mj / energy.KWH, unpriced_gpu_hours=_hours(amounts.unpriced), **beside,
        )
        for (key, amounts), paid, beside in zip(unallocated, cents[len(kept):], burned[len(kept):], strict=True)
    )
    total = sum(every.parts.values(), Amounts())
    paid = sum((row.cost for row in rows), Decimal(0)) + sum((row.cost for row in platform), Decimal(0))
    return CostReport(
        asked=asked, rows=rows, platform=platform, held=_sum_rows(rows, everybodys, whole, columns),
        rest=_money(whole) - paid, total=_money(whole), gpu_hours=_hours(total.gpu_micro_seconds),
        unpriced_gpu_hours=_hours(total.unpriced),
    )


def _tell_energy(burned: Sequence[Amounts], terms: EnergyTerms) -> list[dict[str, Any]]:
    """Of each row, the columns of energy; their money adds up in cents, too."""
    paid = [terms.cost_of(each.energy_mj) for each in burned]
    known = money.to_cents([nano for nano in paid if nano is not None])
    grams = [terms.grams_of(each.energy_mj) for each in burned]
    return [
        {"energy_cost": _money(known[at]) if known else None, "co2_kg": None if each is None else float(each / 1000)}
        for at, each in enumerate(grams)
    ]


def project_month(spent: Nano, month: TimeSpan, seen: cost.Second, zone: str = "UTC") -> Nano | None:
    """What a month of that zone will have cost if it goes on as its days so far, up to where somebody looked; None in
    its first hours."""
    known = seen - month.begin
    if known < _FIRST_HOURS:
        return None
    [(_, end), *_] = calendar.cut(month.begin, month.begin + 32 * cost.DAY, cost.CostStep.month, zone)
    return spent * (end - month.begin) // known


def _gather(sums: Iterable[CostSum]) -> tuple[dict[tuple[str, ...], _RowParts], dict[str, _RowParts]]:
    """What was held, by key; what nobody held, by why."""
    held, free = dict[tuple[str, ...], _RowParts](), dict[str, _RowParts]()
    for each in sums:
        mine = dict(each.parts)
        nobodys = mine.pop(SpendState.unallocated, None)
        if mine:
            held.setdefault(each.key, _RowParts()).add(mine)
        if nobodys is not None:
            why = cost.UNUSED_COMMITMENT if cost.UNUSED_COMMITMENT in each.key else cost.UNALLOCATED
            free.setdefault(why, _RowParts()).add({SpendState.unallocated: nobodys})
    return held, free


def _merge(groups: Iterable[_RowParts]) -> _RowParts:
    made = _RowParts()
    for group in groups:
        made.add(group.parts)
    return made


def _pays(group: _RowParts, basis: Basis) -> Nano:
    return group.held.cost if basis is Basis.allocation else group.of(SpendState.used).use_cost


def _make_row(
    key: tuple[str, ...], group: _RowParts, cells: Sequence[int], whole: int, before: _RowParts | None, basis: Basis
) -> ReportRow:
    held, paid = group.held, sum(cells)
    used, unused, idle, unknown = map(_money, cells)
    measured = group.of(SpendState.used).cost + group.of(SpendState.held_idle).cost
    return ReportRow(
        key=key, gpu_hours=_hours(held.gpu_micro_seconds), cost=_money(paid) if basis is Basis.allocation else used,
        used=used, allocated_unused=unused, held_idle=idle, use_unknown=unknown, share=_share(paid, whole),
        use=group.of(SpendState.used).use_cost / measured if measured else None,
        per_gpu_hour=_per_hour(held), kwh=held.energy_mj / energy.KWH, unpriced_gpu_hours=_hours(held.unpriced),
        change=None if before is None or not before.held.cost else held.cost / before.held.cost - 1.0,
    )


def _sum_rows(rows: Sequence[ReportRow], group: _RowParts, whole: int, columns: Sequence[int]) -> ReportRow:
    """Every column adds up as printed."""
    return msgspec.structs.replace(
        _make_row((), group, columns, whole, None, Basis.allocation),
        cost=sum((row.cost for row in rows), Decimal(0)),
        energy_cost=add_known(row.energy_cost for row in rows), co2_kg=add_known(row.co2_kg for row in rows),
    )


def add_known(values: Iterable[N | None]) -> N | None:
    """None where there are none, or one is not known."""
    found = list(values)
    known = [value for value in found if value is not None]
    return sum(known[1:], known[0]) if known and len(known) == len(found) else None


def _money(cents: int) -> Decimal:
    return Decimal(cents).scaleb(-2)


def _hours(micro_seconds: int) -> float:
    return micro_seconds / cost.GPU_HOUR


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _per_hour(held: Amounts) -> float | None:
    """Of the hours that have a price."""
    priced = held.gpu_micro_seconds - held.unpriced
    return held.cost / cost.UNIT / _hours(priced) if priced else None
