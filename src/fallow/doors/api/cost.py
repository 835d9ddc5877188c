"""What GPUs cost, over HTTP: OpenCost's `/allocation`, and pages of our own under `/api/v1/cost/`.

In: a ReadAsk with its parameters. Out: structs of doors/answers. Where no books are kept all of it is 503, in words.
Invariant: nothing here writes; a parameter that is wrong is one sentence and 400, of OpenCost's shape where its clients
ask (`{"code": 400, "message": ...}`).
"""

import re
from typing import Any, Final

from fallow.account.reports import Basis
from fallow.doors.answers import allocation, cost_books, cost_budgets, cost_hours
from fallow.doors.answers import cost as telling
from fallow.doors.answers.allocation import AllocationAsk, AllocationRefusal, AllocationsPage
from fallow.doors.answers.cost_books import AttributionsPage, SpendAsk
from fallow.doors.answers.cost_budgets import BudgetsPage
from fallow.doors.api.questions import Endpoint, Parameter, ReadAsk, whole
from fallow.doors.api.refusals import Denied
from fallow.model import calendar, cost, windows
from fallow.model.cost import CostFilter, CostStep, Dimension
from fallow.model.windows import TimeSpan

_MOST_ROWS: Final = 1000
_DURATION: Final = "^[0-9]{1,6}[mhdw]$"
_INSTANT: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9:.]+([Zz]|[+-][0-9:]+)"
_WINDOW: Final = (
    f"^((last)?(week|month)|today|yesterday|[0-9]{{1,6}}[mhdw]|[0-9]{{1,12}},[0-9]{{1,12}}|{_INSTANT},{_INSTANT})$"
)
_DIMENSION: Final = f"({'|'.join(one for one in cost.DimensionName if one != 'label')}|label:[A-Za-z0-9._/-]{{1,317}})"
_BY: Final = f"^{_DIMENSION}(,{_DIMENSION}){{0,4}}$"
_TRUTHS: Final = ("false", "true")


# ---- OpenCost's ------------------------------------------------------------------------------------------------------


async def show_allocation(ask: ReadAsk) -> AllocationsPage:
    return await _allocate(ask)


async def compute_allocation(ask: ReadAsk) -> AllocationsPage:
    return await _allocate(ask)


async def _allocate(ask: ReadAsk) -> AllocationsPage:
    given = ask.given
    asked = AllocationAsk(
        span=_read_window(ask, given["window"]), by=given["aggregate"] or (),
        step=None if given["accumulate"] == "true" else given["step"], includes_idle=given["includeIdle"] == "true",
        share_idle=given["shareIdle"], idle_by_node=given["idleByNode"] == "true", where=given["filter"] or (),
        basis=Basis(given["basis"]),
    )
    try:
        return await allocation.read_allocations(ask.books, asked)
    except ValueError as problem:
        raise _bad(f"step: {problem}") from None


def _bad(sentence: str) -> Denied:
    return Denied(400, "BadParameter", sentence)


def _read_window(ask: ReadAsk, text: str) -> TimeSpan:
    try:
        return windows.read_window(text, ask.now, ask.given.get("zone") or "UTC")
    except ValueError as problem:
        raise _bad(f"window: {problem}") from None


# ---- our own ---------------------------------------------------------------------------------------------------------


async def show_cost_summary(ask: ReadAsk) -> telling.CostSummaryPage:
    return await cost_books.read_summary(ask.books, ask.now, ask.given["zone"])


async def show_cost_report(ask: ReadAsk) -> telling.CostReportPage:
    return await cost_books.read_report(ask.books, _read_ask(ask))


async def show_cost_series(ask: ReadAsk) -> telling.CostSeriesPage:
    try:
        return await cost_books.read_series(ask.books, _read_ask(ask), CostStep(ask.given["step"]))
    except ValueError as problem:
        raise _bad(f"step: {problem}") from None


def _read_ask(ask: ReadAsk) -> SpendAsk:
    given = ask.given
    return SpendAsk(
        span=_read_window(ask, given["window"]), by=given["by"], zone=given["zone"], where=_read_where(ask),
        basis=Basis(given.get("basis") or Basis.allocation), compares=given.get("compare") == "true",
        most=given["most"],
    )


def _read_where(ask: ReadAsk) -> tuple[CostFilter, ...]:
    named = ((cost_books.NAMESPACE, ask.given["namespace"]), (cost_books.TEAM, ask.given["team"]))
    by_name = tuple(CostFilter(on, frozenset({value})) for on, value in named if value)
    return (*by_name, *(ask.given["filter"] or ()))


async def show_cost_savings(ask: ReadAsk) -> telling.CostSavingsPage:
    return await cost_books.read_savings(ask.books, _read_window(ask, ask.given["window"]))


async def list_cost_hours(ask: ReadAsk) -> cost_hours.HoursPage:
    try:
        return await cost_hours.read_hours(ask.books, _read_window(ask, ask.given["window"]))
    except ValueError as problem:
        raise _bad(f"window: {problem}") from None


async def show_cost_acks(ask: ReadAsk) -> telling.AckSpendPage:
    return await cost_books.read_acks(ask.books, ask.now)


async def show_cost_prices(ask: ReadAsk) -> telling.PricesPage:
    return await cost_books.read_prices(ask.books, ask.now)


async def show_cost_budgets(ask: ReadAsk) -> BudgetsPage:
    return await cost_budgets.read_budgets(ask.books, ask.now)


async def show_cost_attributions(ask: ReadAsk) -> AttributionsPage:
    return await cost_books.read_attributions(ask.books, ask.now)


# ---- the table -------------------------------------------------------------------------------------------------------


def _step(text: str) -> cost.Second:
    """Of OpenCost: `1h`, `1d`; ours have weeks, too."""
    return windows.read_last(text, 2**33).seconds


def _zone(text: str) -> str:
    calendar.find_zone(text)
    return text


def _dimensions(text: str) -> tuple[Dimension, ...]:
    found = allocation.read_aggregate(text)
    if not re.fullmatch(_BY, text):
        raise ValueError(f"{text!r}: at most 5 of them, and of labels only such as can be one")
    return found


_WINDOW_HELP: Final = (
    "today, yesterday, week, lastweek, month, lastmonth; a duration before now such as 30m, 12h, 7d or 2w; or two "
    "times with a comma between, RFC 3339 or Unix seconds."
)
_BY_HELP: Final = f"Group by these, with commas between: {', '.join(cost.DimensionName)}:KEY."
_FILTER: Final = Parameter(
    name="filter", read=allocation.read_filter, help='Only these: namespace:"a","b"+label[team]:"c".',
    pattern=allocation.FILTER,
)
_BASIS: Final = Parameter(
    name="basis", help="Who pays: who held it, or who used it.", choices=tuple(Basis), default="allocation"
)
_ZONE: Final = Parameter(name="zone", help="Of the calendar, such as Europe/Berlin.", read=_zone, default="UTC")


def _window(default: str | None) -> Parameter:
    return Parameter(name="window", help=_WINDOW_HELP, default=default, is_required=default is None, pattern=_WINDOW)


def _truth(name: str, text: str) -> Parameter:
    return Parameter(name=name, help=text, choices=_TRUTHS, default="false")


_ALLOCATION: Final = (
    _window(None),
    Parameter(name="aggregate", help=f"{_BY_HELP} None: each pod by itself.", read=_dimensions, pattern=_BY),
    Parameter(name="step", help="One set for each so long, such as 1h or 1d; none: one for all.", read=_step,
              pattern=_DURATION),
    _truth("accumulate", "One set for all of the window, whatever the step."),
    _truth("includeIdle", "With what nobody held, as __idle__."),
    Parameter(name="shareIdle", help="Give what nobody held to those that are there: by what each pays, or evenly.",
              choices=("false", "true", "weighted", "even"), default="false"),
    _truth("idleByNode", "What is idle on a node by itself, and shared there."),
    _FILTER, _BASIS, Parameter(name="resolution", help="Accepted and ignored: nothing here is sampled."),
)
ALLOCATIONS: Final = tuple(
    Endpoint(path=path, summary="Costs in the shape of OpenCost", returns=AllocationsPage, answer=answer,
             parameters=_ALLOCATION, is_timed=True, refusal=AllocationRefusal)
    for path, answer in (("/allocation", show_allocation), ("/allocation/compute", compute_allocation))
)


def _grouped(usual: str, most: int | None, *more: Parameter) -> tuple[Parameter, ...]:
    return (
        _window(usual), Parameter(name="by", help=_BY_HELP, read=_dimensions, pattern=_BY, default="namespace"),
        Parameter(name="namespace", help="Only of this namespace."), Parameter(name="team", help="Only of this team."),
        _FILTER, _ZONE,
        Parameter(name="most", help="Most rows; the others are one, __other__.", read=whole(1, _MOST_ROWS),
                  default=None if most is None else str(most), most=_MOST_ROWS),
        *more,
    )


def _endpoint(name: str, summary: str, returns: Any, answer: Any, *parameters: Parameter) -> Endpoint:
    return Endpoint(path=f"/api/v1/cost/{name}", summary=summary, returns=returns, answer=answer,
                    parameters=parameters, is_timed=True)


ENDPOINTS: Final = (
    *ALLOCATIONS,
    _endpoint("summary", "Money on one page", telling.CostSummaryPage, show_cost_summary, _ZONE),
    _endpoint("report", "Who caused which costs", telling.CostReportPage, show_cost_report,
              *_grouped("30d", None, _BASIS, _truth("compare", "With the window before."))),
    _endpoint("series", "Costs over time", telling.CostSeriesPage, show_cost_series,
              *_grouped("30d", cost_books.MOST_SERIES,
                        Parameter(name="step", help="By which pieces of the calendar.", choices=tuple(CostStep),
                                  default="day"))),
    _endpoint("savings", "What was saved, and whether we are worth it", telling.CostSavingsPage, show_cost_savings,
              _window("30d")),
    _endpoint("hours", "All there is of at most a day, hour by hour", cost_hours.HoursPage, list_cost_hours,
              _window("1h")),
    _endpoint("acks", "What acknowledgements have cost", telling.AckSpendPage, show_cost_acks),
    _endpoint("prices", "Prices that are used, with their age and source", telling.PricesPage, show_cost_prices),
    _endpoint("budgets", "Budgets, as they were read last", BudgetsPage, show_cost_budgets),
    _endpoint("attributions", "What CostAttributions come to", AttributionsPage, show_cost_attributions),
)
