"""The demo in words, where nobody watches: a line for each hour, and the report at the end.

In: a Moment; what the books have of the day, and what the pretend world knows beside them. Out: lines on standard
output.
Invariant: rows come to their total, to the cent. What the ledger, the audit and the world each know has a name of its
own: a *regret* is a pause that was taken back within 15m, *missed* is one that its owner wanted back so soon.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click
import msgspec

from fallow.doors.answers import cost
from fallow.doors.cli import demo_books, demo_scaling, show
from fallow.doors.cli import demo_view as view
from fallow.model import units
from fallow.model.cost import PART_WORDS, SavingKind
from fallow.model.history import Happened
from fallow.sim import backtest

_COLUMNS = ("GPU-HOURS", "COST", "HELD IDLE", "GIVEN BACK", "PAUSES", "MISSED", "WAITED")


class DayShared(msgspec.Struct, frozen=True, kw_only=True):
    """`by_way`: workloads that asked for whole GPUs and ran on a part, by part and how. `spared_gpu_hours`: what they
    asked for and did not hold. `taken_back`: who has whole GPUs again, because sharing hurt it."""

    by_way: Mapping[str, int]
    spared_gpu_hours: float
    taken_back: tuple[str, ...]


class DayTold(msgspec.Struct, frozen=True, kw_only=True):
    """`sums`: what the world knows; `by_class`: GPU-hours given back. `window`: flags that ask for this day."""

    title: str
    gpus: int
    day: units.Seconds
    books: demo_books.DayBooks | None
    sums: backtest.BacktestResult
    by_class: Mapping[str, float]
    window: str
    shared: DayShared
    nodes: tuple[str, ...]  # what became of nodes that were cut anew or emptied


def hour_line(moment: view.Moment) -> str:
    """Where nobody watches: one line per simulated hour."""
    counted, total = moment.count(), moment.sums.total
    idle, free = counted[view.IDLE] + counted[view.NOTICE], counted[view.FREE] + counted[view.FREED]
    states = f"{counted[view.BUSY]} busy, {idle} idle, {counted[view.UNKNOWN]} cannot tell"
    parts = [
        f"{units.clock_time(moment.now)}  {states}, {free} free",
        f"{units.many(moment.sums.notices, 'notice')}, {units.many(total.pauses, 'pause')} ({moment.paused} stand), "
        f"{units.many(total.resumes, 'resume')}, {total.regrets} missed within 15m",
        *([f"teams paid {view.say_money(moment.money.held)}"] if moment.money else []),
        *(["frozen"] if moment.frozen else []), *(f"fault {fault}" for fault in moment.faults),
    ]
    return "; ".join(parts)


def tell(day: DayTold, measured: Sequence[str]) -> None:
    """The closing report, to standard output. `measured`: sentences on what it cost to find out."""
    click.echo()
    show.sentence(day.title)
    money = _tell_money(day, day.books) if day.books else ()
    for sentence in (*money, *_tell_deeds(day), *_tell_shared(day.shared, day.books), *day.nodes):
        show.sentence(f"  {sentence}")
    if day.sums.frozen_ticks or day.sums.lost_ticks:
        cycles = f"{day.sums.frozen_ticks} cycles frozen, {day.sums.lost_ticks} without a decision"
        show.sentence(f"  {cycles}: nothing was paused in these")
    if day.books is not None:
        page, beside, given = day.books.report, day.sums.by_namespace, _by_namespace(day.books)
        click.echo()
        show.table(["NAMESPACE", *_COLUMNS], [*_rows(page, beside, given), *_totals(page, beside, given)])
        click.echo()
        show.table(["CLASS", *_COLUMNS], list(_rows(day.books.classes, day.sums.by_class, day.by_class)))
    click.echo()
    for sentence in measured:
        show.sentence(f"  {sentence}")


def _tell_parts(held: cost.SpendRow) -> str:
    """Of what teams held, in the words of every page of costs."""
    parts = {word: getattr(held, part) for part, word in PART_WORDS.items() if part != "unallocated"}
    return "; ".join(f"{word} {view.say_money(amount)}" for word, amount in parts.items())


def _tell_money(day: DayTold, books: demo_books.DayBooks) -> Iterator[str]:
    money, page = view.say_money, books.report
    held, platform = page.held, page.platform
    unpriced = f"; {page.unpriced_gpu_hours:,.0f} GPU-hours have no price" if page.unpriced_gpu_hours >= 0.5 else ""
    yield (
        f"{day.gpus} GPUs{_tell_change(books)} for {units.humane(day.day)} cost {money(page.total)}{unpriced}: teams "
        f"held {held.gpu_hours:,.1f} GPU-hours for {money(held.cost)} ({_tell_parts(held)}); nobody held "
        f"{platform.gpu_hours:,.1f} for {money(platform.cost)}"
    )
    if waste := books.find_saving(SavingKind.waste):
        free = waste.gpu_hours - waste.realised_gpu_hours
        yield (
            f"pauses gave back {waste.gpu_hours:,.1f} GPU-hours: others had {waste.realised_gpu_hours:,.1f} of them, "
            f"{money(waste.saved)} saved; {free:,.1f} stayed free, which is room and no money"
        )
    if books.scaled is not None:
        yield from demo_scaling.say(books.scaled)
    if spot := books.find_saving(SavingKind.spot):
        yield f"spot nodes cost {money(spot.saved)} less than they would on demand"
    for each in books.budgets.items:
        alerts = units.many(len(each.alerts), "alert") if each.alerts else "no alert"
        yield (
            f"budget {each.budget}: {money(each.spend or 0.0)} of {money(each.limit or 0.0)} spent "
            f"({each.percentage_used or 0.0:.0f} %), {alerts}"
        )
    yield (
        f"the same from the ledger: fallow cost report {day.window} (who pays what stays; how much of the last hours "
        "was idle is found out later)"
    )


def _tell_change(books: demo_books.DayBooks) -> str:
    return ", and those that came and went," if books.scaled is not None and books.scaled.added else ""


def _tell_deeds(day: DayTold) -> Iterator[str]:
    total = day.sums.total
    if (books := day.books) is not None:
        notices, paused = books.count(Happened.notified), books.count(Happened.paused)
        yield (
            f"{units.many(notices, 'notice')}, {books.count(Happened.kept)} answered with \"keep it\"; "
            f"{units.many(paused, 'pause')}, {units.many(books.resumes, 'resume')}; "
            f"{books.count(Happened.regretted)} regretted, which is taken back within 15m"
        )
    yield (
        f"only the pretend owners know: {total.regrets} of the pauses were missed within 15m, they waited "
        f"{units.humane(total.waited)} in all until it ran again, and {total.complaints} scaled up by hand without a "
        "word"
    )


def _tell_shared(shared: DayShared, books: demo_books.DayBooks | None) -> Iterator[str]:
    if not shared.by_way:
        return
    ways = ", ".join(f"{count} {way}" for way, count in shared.by_way.items())
    many = sum(shared.by_way.values())
    who = f"{units.many(many, 'workload')} that asked for whole GPUs ran on parts of them ({ways})"
    hurt = ", ".join(shared.taken_back)
    back = f"; sharing hurt {hurt}, whose next pods have whole GPUs" if hurt else ""
    yield f"{who}: they held {shared.spared_gpu_hours:,.1f} GPU-hours less than they asked for{back}"
    if books is not None and (saved := books.find_saving(SavingKind.sharing)):
        yield (
            f"of sharing the books, and the Cost page, count {saved.gpu_hours:,.1f} GPU-hours as freed: another "
            "figure, of all pods on parts, and only while several of them were on one GPU"
        )


def _by_namespace(books: demo_books.DayBooks) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for (namespace, _), hours in books.given_back.items():
        found[namespace] += hours
    return found


def _rows(
    page: cost.CostReportPage, beside: Mapping[str, backtest.BacktestSums], given: Mapping[str, float]
) -> Iterator[Sequence[Any]]:
    """Who paid most first."""
    for row in page.rows:
        known = beside.get(row.key, backtest.BacktestSums())
        yield _cells(row.key, row, known, given.get(row.key, 0.0))


def _totals(
    page: cost.CostReportPage, beside: Mapping[str, backtest.BacktestSums], given: Mapping[str, float]
) -> Iterator[Sequence[Any]]:
    """What nobody held, and all of it."""
    every = backtest.BacktestSums()
    for sums in beside.values():
        every.add(sums)
    free = page.platform
    yield "nobody's", f"{free.gpu_hours:,.1f} h", view.say_money(free.cost), "", "", "", "", ""
    total = msgspec.structs.replace(page.held, gpu_hours=page.gpu_hours, cost=page.total)
    yield _cells("total", total, every, sum(given.values()))


def _cells(name: str, row: cost.SpendRow, known: backtest.BacktestSums, given: float) -> Sequence[Any]:
    return (
        name, f"{row.gpu_hours:,.1f} h", view.say_money(row.cost), view.say_money(row.held_idle), f"{given:,.1f} h",
        known.pauses, known.regrets, units.humane(known.waited),
    )
