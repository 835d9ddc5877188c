"""What GPUs are wasted now and what that costs: idle ones, ones never used, whole ones held for small use.

In: rows of workloads; a cost report by workload. Out: a WastePage. Where there are books all money is theirs: rows that
somebody without books looked up at list prices get what their workload really paid for a GPU-hour.
Invariant: a workload stands once, under the first of the three that it is; what nobody measured is not waste. What a
sharing of GPUs would save is not guessed here.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Literal

from fallow.doors import answers
from fallow.doors.answers import cost as telling
from fallow.doors.answers import rows as listing
from fallow.doors.answers import workloads as naming
from fallow.model import kinds, reasons

SMALL_USE: Final = 0.2  # of what was held: below it a part of a GPU would do, mostly
_LEAST_HOURS: Final = 1.0
_HELPS: Final = {
    "idle": "let fallow pause it, or stop it",
    "neverUsed": "ask its owner: since its pods began they have not used a GPU",
    "smallUse": "fallow optimize says whether a part of a GPU, or fewer GPUs, would do",
}
_RESTS: Final = "it stands paused: nothing, until somebody brings it back"


class WasteLine(answers.Shape, frozen=True, kw_only=True):
    """`per_hour`: what it wastes now; `wasted`: what it wasted in the window, by the books. None: not known."""

    kind_of_waste: Literal["idle", "neverUsed", "smallUse"]
    namespace: str
    kind: str
    name: str
    gpus: float | None
    idle_seconds: float | None
    use: float | None
    per_hour: float | None
    wasted: float | None
    helps: str
    more: str


class WastePage(answers.Shape, frozen=True, kw_only=True):
    """`per_hour`, `wasted`: of those whose money is known; `unknown`: of how many it is not."""

    currency: str
    is_list: bool  # by list prices, because nobody keeps books
    lines: tuple[WasteLine, ...]
    per_hour: float
    wasted: float | None
    unknown: int


def find_waste(rows: Iterable[listing.ApiRow], report: telling.CostReportPage | None, currency: str) -> WastePage:
    """`report`: by namespace, controllerKind and controller; None: no books are kept."""
    booked = {row.keys: row for row in report.rows} if report else {}
    rows = list(rows)
    idle = [row for row in rows if row.idle_gpus > 0]
    resting = {(row.namespace, row.kind, row.name) for row in rows if row.group == "paused"}
    by_list = report is None and any(row.is_list for row in idle)
    lines = [
        _tell_idle(row, booked.get((row.namespace, row.kind, row.name)), has_books=report is not None) for row in idle
    ]
    known = {(line.namespace, line.kind, line.name) for line in lines}
    lines += [
        _tell_small(row, _RESTS if keys in resting else _HELPS["smallUse"]) for keys, row in booked.items()
        if keys not in known and row.use is not None and row.use < SMALL_USE and row.gpu_hours >= _LEAST_HOURS
    ]
    ordered = sorted(lines, key=lambda one: (-(one.per_hour or 0.0), -(one.wasted or 0.0), one.namespace, one.name))
    wasted = [line.wasted for line in lines if line.wasted is not None]
    return WastePage(
        currency=report.currency if report else next((row.currency for row in idle), currency), is_list=by_list,
        lines=tuple(ordered),
        per_hour=round(sum(line.per_hour or 0.0 for line in lines), 4),
        wasted=round(sum(wasted), 2) if report else None,
        unknown=sum(line.per_hour is None and line.wasted is None for line in lines),
    )


def _tell_idle(row: listing.ApiRow, booked: telling.SpendRow | None, *, has_books: bool) -> WasteLine:
    what: Literal["idle", "neverUsed"] = "neverUsed" if row.never_used else "idle"
    return WasteLine(
        kind_of_waste=what, namespace=row.namespace, kind=row.kind, name=row.name, gpus=row.idle_gpus,
        idle_seconds=row.idle_seconds, use=booked.use if booked else None,
        per_hour=_now(row, booked) if has_books and row.is_list else row.idle_per_hour,
        wasted=_wasted(booked), helps=_find_help(row, what),
        more=f"fallow why {row.kind}/{row.name} -n {row.namespace}",
    )


def _find_help(row: listing.ApiRow, what: str) -> str:
    """What can be done, by whoever reads it: not what fallow does not do, and nothing against what somebody wants."""
    if row.keep is not None and row.group == "kept":
        typed = f"{kinds.typed(naming.read_ref(row))} -n {row.namespace}"
        return f"{row.keep.by} keeps it until {row.keep.until}: ask them, or end that with fallow unack {typed}"
    if row.is_partly_idle:
        return f"give it fewer GPUs: {row.idle_instances} of {row.held} are idle; fallow pauses no part of a workload"
    if row.group == "leftAlone" and row.skip is not None:
        return f"fallow leaves it alone ({row.skip}): {reasons.of_label(row.skip).helps or _HELPS[what]}"
    return _HELPS[what]


def _now(row: listing.ApiRow, booked: telling.SpendRow | None) -> float | None:
    """By what it paid for a GPU-hour; None where the books do not know."""
    if booked is None or booked.per_gpu_hour is None:
        return None
    return round(booked.per_gpu_hour * row.idle_gpus, 4)


def _tell_small(row: telling.SpendRow, helps: str) -> WasteLine:
    namespace, kind, name = row.keys
    return WasteLine(
        kind_of_waste="smallUse", namespace=namespace, kind=kind, name=name, gpus=None, idle_seconds=None, use=row.use,
        per_hour=None, wasted=_wasted(row), helps=helps, more=f"fallow why {kind}/{name} -n {namespace}",
    )


def _wasted(row: telling.SpendRow | None) -> float | None:
    return None if row is None else round(row.allocated_unused + row.held_idle, 2)


def count(lines: Sequence[WasteLine], what: str) -> int:
    return sum(line.kind_of_waste == what for line in lines)
