"""Pages of what GPUs cost, as text: where the money went, by whom, day by day; every printed column adds up.

In: answers (doors/answers/cost.py). Out: text for the terminal or pipe it goes to; CSV. Nothing is looked up here.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from fallow import names
from fallow.doors.answers import cost as telling
from fallow.doors.cli import pages, show
from fallow.model.cost import PART_WORDS

_SPARKS: Final = "▁▂▃▄▅▆▇█"
_PLATFORM, _REST, _TOTAL = "(platform)", "(not used)", "TOTAL"
REPORT_COLUMNS: Final = ("KEY", "GPU_HOURS", "COST", "SHARE%", "USE%", "ALLOCATED_UNUSED", "HELD_IDLE", "KWH")
_REPORT_SPARE: Final = ("KWH", "GPU_HOURS", "CO2_KG", "ENERGY_COST", "SHARE%", "USE%", "ALLOCATED_UNUSED")
_CSV_MORE: Final = ("USED", "USE_UNKNOWN", "UNPRICED_GPU_HOURS", "PER_GPU_HOUR", "ENERGY_COST", "CO2_KG")
_ENERGY: Final = {"ENERGY_COST": "energy_cost", "CO2_KG": "co2_kg"}  # columns that are there where a kWh is worth so


# ---- fallow cost -----------------------------------------------------------------------------------------------------


def draw_cost(
    whose: str, report: telling.CostReportPage, days: telling.CostSeriesPage, asked: str, form: str
) -> str:
    """`asked`: of whom, in words. `form`: summary, detailed or table."""
    if not report.gpu_hours:
        return pages.join(show.fold(whose), show.fold(_tell_none(report, asked)))
    if form == "table":
        return f"{_draw_table(report)}\n"
    head = show.fields(list(_summarise(report, days, asked)), indent="")
    body = _draw_table(report) if form == "detailed" else _draw_bars(report)
    groups = f"{show.heading('BY NAMESPACE')}\n{legend()}\n{body}"
    return pages.join(show.fold(whose), head, groups, _draw_doubts(report))


def _tell_none(report: telling.CostReportPage, asked: str) -> str:
    """Nobody knows whether that is a name nobody has, or one that held nothing."""
    span = f"from {show.minute(report.window.start)} to {show.minute(report.window.end)} UTC"
    return f"nothing is booked {span}{asked}. To see what there is: fallow cost report --by namespace,team"


def _summarise(
    report: telling.CostReportPage, days: telling.CostSeriesPage, asked: str
) -> Iterator[tuple[str, Any]]:
    yield "WINDOW", f"{show.minute(report.window.start)} to {show.minute(report.window.end)} UTC{asked}"
    change = ""
    if report.before:
        change = f", {report.total / report.before - 1:+.0%} on the time before ({_money(report.before)})"
    yield "COST", f"{_money(report.total)} {report.currency} for {report.gpu_hours:,.1f} GPU-hours{change}"
    amounts = _amounts(report.held, report.platform.cost)
    if any(amounts.values()):
        yield "", make_bar(amounts, sum(amounts.values()), columns=show.fit_bar(60))
    yield "", "; ".join(f"{PART_WORDS[part]} {_money(amount)}" for part, amount in amounts.items())
    if nothing := _tell_nothing(report):
        yield "IDLE MOST" if len(report.rows) > 1 else "HELD IDLE", nothing
    known = [each for each in days.total if each is not None]
    if len(days.total) > 1 and known:
        yield "BY DAY", f"{spark(days.total)}  most on one day: {_money(max(known))}{_tell_gap(days)}"


def _tell_nothing(report: telling.CostReportPage) -> str:
    """Who paid most for GPUs that did nothing, in words: bars by cost do not show it. "": nobody did."""
    ranked = sorted((row for row in report.rows if row.held_idle), key=lambda row: -row.held_idle)
    if not ranked:
        return ""
    first, *others = ranked
    if len(report.rows) == 1:
        return f"{_money(first.held_idle)} of these {_money(first.cost)} were paid for GPUs that did nothing"
    then = ", ".join(f"{row.key} {_money(row.held_idle)}" for row in others[:2])
    said = f"{first.key} paid most for GPUs that did nothing: {_money(first.held_idle)} of its {_money(first.cost)}"
    return f"{said}{f'; then {then}' if then else ''}"


def _tell_gap(days: telling.CostSeriesPage) -> str:
    """What is drawn as a gap, in words."""
    if days.books_since is None or None not in days.total:
        return ""
    return f"; books are kept since {show.minute(days.books_since)} UTC, of the days before nothing is known"


def _draw_bars(report: telling.CostReportPage) -> str:
    most = max([row.cost for row in report.rows] + [report.platform.cost, 0.01])
    rows: list[tuple[Any, ...]] = [
        (row.key, _hours(row.gpu_hours), _money(row.cost), make_bar(_amounts(row, 0.0), most, columns=30))
        for row in report.rows
    ]
    free = make_bar({"unallocated": report.platform.cost}, most, columns=30)
    if report.platform.gpu_hours:
        rows.append((_PLATFORM, _hours(report.platform.gpu_hours), _money(report.platform.cost), free))
    rows.append((_TOTAL, _hours(report.gpu_hours), _money(report.total), ""))
    return show.grid(["NAMESPACE", "GPU_HOURS", "COST", ""], rows, spare=("",))


def _draw_table(report: telling.CostReportPage) -> str:
    columns = ["NAMESPACE", "GPU_HOURS", "COST", "USED", "IDLE", "HELD_IDLE", "UNPRICED"]
    rows = [
        (row.key, _hours(row.gpu_hours), _money(row.cost), _money(row.used), _money(row.allocated_unused),
         _money(row.held_idle), _hours(row.unpriced_gpu_hours)) for row in (*report.rows, report.held)
    ]
    *each, held = rows
    unpriced = sum(part.unpriced_gpu_hours for part in report.platform.parts)
    free = report.platform
    platform = (_PLATFORM, _hours(free.gpu_hours), _money(free.cost), "", "", "", _hours(unpriced))
    total = (_TOTAL, _hours(report.gpu_hours), _money(report.total), *held[3:6], _hours(report.unpriced_gpu_hours))
    return show.grid(columns, [*each, platform, total], spare=("UNPRICED", "USED"))


def _draw_doubts(report: telling.CostReportPage) -> str:
    """What the figures do not say."""
    lines = []
    if report.unpriced_gpu_hours:
        hours = _hours(report.unpriced_gpu_hours)
        lines.append(f"{hours} GPU-hours have no price, and are in no sum: fallow cost prices")
    for word, prices in (("old", report.stale_prices), ("estimated", report.estimated_prices)):
        if named := ", ".join(dict.fromkeys(one.instance_type or one.gpu_model for one in prices)):
            lines.append(f"{word} prices were used, of {named}: fallow cost prices")
    return "\n".join(show.fold(line) for line in lines)


# ---- fallow cost report ----------------------------------------------------------------------------------------------


def draw_report(whose: str, report: telling.CostReportPage) -> str:
    energy = _find_energy(report)
    rows = [(*_report_cells(row), *_energy_cells(energy, row)) for row in report.rows]
    platform = report.platform
    rows += [
        (part.key, _hours(part.gpu_hours), _money(part.cost), _percent(part.share), "", "", "", _hours(part.kwh),
         *_energy_cells(energy, part))
        for part in platform.parts
    ]
    if report.rest:
        rows.append((_REST, "", _money(report.rest), "", "", "", "", "", *[""] * len(energy)))
    held = report.held
    rows.append((
        _TOTAL, _hours(report.gpu_hours), _money(report.total), "", _percent(held.use), _money(held.allocated_unused),
        _money(held.held_idle), _hours(held.kwh + platform.kwh), *_energy_cells(energy, held, platform),
    ))
    first = f"{show.minute(report.window.start)} to {show.minute(report.window.end)} UTC, by {', '.join(report.by)}; " \
        f"{report.currency}, {_BASES[report.basis]}{', with what energy cost' if report.is_energy_in_cost else ''}"
    return pages.join(
        f"{show.fold(whose)}\n{show.fold(first)}",
        show.grid([*REPORT_COLUMNS, *energy], rows, spare=_REPORT_SPARE), _draw_doubts(report),
    )


def _find_energy(report: telling.CostReportPage) -> list[str]:
    """The columns of energy that somebody wants: those that any row has."""
    parts = (*report.rows, *report.platform.parts)
    return [title for title, field in _ENERGY.items() if any(getattr(part, field) is not None for part in parts)]


def _energy_cells(columns: Sequence[str], *parts: Any) -> Iterator[str]:
    for title in columns:
        yield _money(sum(getattr(part, _ENERGY[title]) or 0.0 for part in parts))


_FORMULAS: Final = tuple("=+-@＝＋－＠")  # as cells begin that a spreadsheet works out
_BASES: Final = {"allocation": "who held it pays", "use": "who used it pays"}


def _report_cells(row: telling.SpendRow) -> tuple[str, ...]:
    return (
        row.key, _hours(row.gpu_hours), _money(row.cost), _percent(row.share), _percent(row.use),
        _money(row.allocated_unused), _money(row.held_idle), _hours(row.kwh),
    )


def write_report_csv(report: telling.CostReportPage) -> str:
    """The same rows with plain numbers, so that their COST comes to the total's."""
    rows = [
        [row.key, row.gpu_hours, row.cost, row.share, row.use, row.allocated_unused, row.held_idle, row.kwh, row.used,
         row.use_unknown, row.unpriced_gpu_hours, row.per_gpu_hour, row.energy_cost, row.co2_kg] for row in report.rows
    ]
    rows += [
        [part.key, part.gpu_hours, part.cost, part.share, None, None, None, part.kwh, None, None,
         part.unpriced_gpu_hours, None, part.energy_cost, part.co2_kg] for part in report.platform.parts
    ]
    if report.rest:
        rows.append([_REST, None, report.rest, *[None] * 11])
    total = [_TOTAL, report.gpu_hours, report.total, None, report.held.use, report.held.allocated_unused,
             report.held.held_idle, round(report.held.kwh + report.platform.kwh, 4), report.held.used,
             report.held.use_unknown, report.unpriced_gpu_hours, None,
             *(_add_up(getattr(report.held, field), getattr(report.platform, field)) for field in _ENERGY.values())]
    return write_csv([*REPORT_COLUMNS, *_CSV_MORE], [*rows, total])


def _add_up(*amounts: float | None) -> float | None:
    known = [each for each in amounts if each is not None]
    return round(sum(known), 4) if known else None


def write_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """As spreadsheets read it. What a tenant named like a formula is text there, too."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([["" if cell is None else plain_cell(cell) for cell in row] for row in rows])
    return file.getvalue()


def plain_cell(cell: Any) -> Any:
    """Nothing that a spreadsheet would work out, whatever blanks stand before it."""
    return f"'{cell}" if isinstance(cell, str) and cell.lstrip()[:1] in _FORMULAS else cell


# ---- savings ---------------------------------------------------------------------------------------------------------


def draw_savings(whose: str, page: telling.CostSavingsPage) -> str:
    rows: list[tuple[str, ...]] = [
        (line.type, _money(line.baseline), _money(line.actual), _money(line.saved),
         _percent(line.realised_gpu_hours / line.gpu_hours if line.gpu_hours else None), line.method)
        for line in page.lines
    ]
    rows.append((_TOTAL, _money(page.baseline), _money(page.actual), _money(page.saved), "", ""))
    columns = ["TYPE", "BASELINE", "ACTUAL", "SAVED", "REALISED", "METHOD"]
    nothing = "" if page.lines else "Nothing was saved, or nothing of it is written down yet."
    span = f"{show.minute(page.window.start)} to {show.minute(page.window.end)} UTC; {page.currency}"
    return pages.join(
        f"{show.fold(whose)}\n{show.fold(span)}",
        nothing or show.grid(columns, rows, spare=("BASELINE", "ACTUAL")),
        show.fields(list(_tell_worth(page)), indent=""),
    )


def _tell_worth(page: telling.CostSavingsPage) -> Iterator[tuple[str, str]]:
    freed = f"{_hours(page.freed_gpu_hours)} GPU-hours were given back that nobody took: capacity, and no money"
    if page.freed_gpu_hours:
        yield "FREED", freed
    if page.dry_run_gpu_hours:
        yield "DRY RUN", f"would have given back {_hours(page.dry_run_gpu_hours)} GPU-hours, worth " \
            f"{_money(page.dry_run_worth)} {page.currency} at most; in no sum above"
    roi = page.roi
    own = f"{_money(roi.of_it_pods)} for our pods and {_money(roi.of_it_investment)} beside"
    if roi.ratio is None:
        yield "ROI", "no ratio: we cost nothing that is known (--cost-roi-monthly-investment says what else we cost)"
    else:
        yield "ROI", f"{roi.ratio:+.0%}: {_money(roi.saved)} saved against {_money(roi.own_cost)} that we cost ({own})"


def write_savings_csv(page: telling.CostSavingsPage) -> str:
    columns = ["TYPE", "BASELINE", "ACTUAL", "SAVED", "GPU_HOURS", "REALISED_GPU_HOURS", "METHOD"]
    rows = [
        [line.type, line.baseline, line.actual, line.saved, line.gpu_hours, line.realised_gpu_hours, line.method]
        for line in page.lines
    ]
    return write_csv(columns, rows)


# ---- prices ----------------------------------------------------------------------------------------------------------


def draw_prices(whose: str, page: telling.PricesPage) -> str:
    rows = [
        (one.instance_type or one.gpu_model, one.region or "any", one.capacity_type, one.price_per_hour,
         one.unit.replace("_", " "), "" if one.age_days is None else f"{one.age_days:.0f}d",
         _doubt_price(one), "yes" if one.is_used else "", one.source)
        for one in page.items
    ]
    columns = ["WHAT", "REGION", "CAPACITY", "PRICE", "UNIT", "AGE", "DOUBT", "USED NOW", "SOURCE"]
    laid = show.grid(columns, rows, spare=("REGION",), below=("SOURCE",)) if rows else "No price has been used yet."
    unpriced = [
        f"  {_hours(one.gpus)} GPUs {_name_model(one)} on {one.nodes} nodes "
        f"({one.instance_type or 'no instance type'}, {one.region or 'no region'}, {one.capacity_type})"
        for one in page.unpriced
    ]
    helps = f"what helps: a row in the ConfigMap {names.PRICES}, or the annotation {names.PRICE_PER_HOUR} on the node"
    without = "\n".join([f"{show.heading('WITHOUT A PRICE')}  {show.fold(helps)}", *unpriced]) if unpriced else ""
    return pages.join(f"{show.fold(whose)}\nPrices are {page.currency} an hour", laid, without)


def _doubt_price(one: telling.PriceTold) -> str:
    return ", ".join(word for word, holds in (("stale", one.is_stale), ("estimate", one.is_estimated)) if holds)


def _name_model(one: telling.UnpricedNow) -> str:
    if not one.gpu_model:
        return "of a model that is not known"
    return one.gpu_model if one.is_model_known else f"{one.gpu_model} (no model that we know)"


# ---- bars and cells --------------------------------------------------------------------------------------------------


def _amounts(row: telling.SpendRow, free: float) -> dict[str, float]:
    values = (row.used, row.allocated_unused, row.held_idle, row.use_unknown, free)
    return {part: value for part, value in zip(PART_WORDS, values, strict=True) if value}


def make_bar(amounts: dict[str, float], most: float, columns: int) -> show.Strip:
    return show.Strip.of(amounts, most, columns)


def legend() -> str:
    count = len(PART_WORDS)
    shown = dict(show.Strip.of(dict.fromkeys(PART_WORDS, 1.0), float(count), count).segments())
    return show.join_words([(shown[part], show.SPEND_STYLES[part], word) for part, word in PART_WORDS.items()])


def spark(values: Sequence[float | None]) -> str:
    """A column for each; the lowest is 0, and what nobody knows is a gap."""
    most = max(0.01, *(value or 0.0 for value in values))
    letters, gap = (_SPARKS, "·") if show.can_write(_SPARKS) else (".:-=+*#@", " ")

    def draw(value: float) -> str:
        return letters[min(len(letters) - 1, int(value / most * len(letters)))]

    return "".join(gap if value is None else draw(value) for value in values)


def _money(amount: float) -> str:
    return f"{amount:,.2f}"


def _hours(amount: float) -> str:
    return f"{amount:,.1f}"


def _percent(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.1%}"
