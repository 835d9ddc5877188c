"""`fallow cost`, `cost report`, `cost roi`, `cost prices`: what they ask, and of whom. How it is drawn is in
cost_pages.py.

In: options. Out: a page for people; JSON or CSV alone on standard output. Nothing is changed.
"""

from __future__ import annotations

from typing import Any

import click

from fallow import settings
from fallow.account.reports import Basis
from fallow.doors.answers import allocation, cost_books
from fallow.doors.answers import cost as telling
from fallow.doors.cli import completing, cost_pages, cost_source, flags, show
from fallow.doors.cli.cost_source import CostQuestion
from fallow.model import cost, windows
from fallow.model.cost import CostFilter
from fallow.settings import cost_doors


def ask_report(
    window: str, *, by: str = "namespace", namespace: str | None = None, team: str | None = None,
    basis: str = "allocation", compares: bool = False,
) -> CostQuestion[telling.CostReportPage]:
    params = {
        "window": window, "by": by, "namespace": namespace, "team": team, "basis": basis,
        "compare": "true" if compares else None,
    }
    return CostQuestion(
        "/api/v1/cost/report", params, telling.CostReportPage,
        lambda books, now: cost_books.read_report(books, cost_books.SpendAsk(
            span=windows.read_window(window, now), by=allocation.read_aggregate(by), basis=Basis(basis),
            where=_filter(namespace, team), compares=compares,
        )),
    )


def ask_days(window: str, namespace: str | None, team: str | None) -> CostQuestion[telling.CostSeriesPage]:
    params = {"window": window, "namespace": namespace, "team": team, "step": "day"}
    return CostQuestion(
        "/api/v1/cost/series", params, telling.CostSeriesPage,
        lambda books, now: cost_books.read_series(
            books, cost_books.SpendAsk(span=windows.read_window(window, now), where=_filter(namespace, team))
        ),
    )


def ask_savings(window: str) -> CostQuestion[telling.CostSavingsPage]:
    return CostQuestion(
        "/api/v1/cost/savings", {"window": window}, telling.CostSavingsPage,
        lambda books, now: cost_books.read_savings(books, windows.read_window(window, now)),
    )


def _filter(namespace: str | None, team: str | None) -> tuple[CostFilter, ...]:
    named = ((cost_books.NAMESPACE, namespace), (cost_books.TEAM, team))
    return tuple(CostFilter(on, frozenset({value})) for on, value in named if value)


# ---- the commands ----------------------------------------------------------------------------------------------------


def show_cost(
    namespace: str | None, team: str | None, last: str, form: str, roi: bool, **given: Any
) -> None:
    window = cost_source.read_last(last)
    questions: list[CostQuestion[Any]] = [
        ask_report(window, namespace=namespace, team=team, compares=True), ask_days(window, namespace, team),
        *([ask_savings(window)] if roi else []),
    ]
    (report, days, *savings), whose = cost_source.ask_all(given, questions, invested=_invested(given))
    if form == "json":
        click.echo(show.encode({"report": report, "savings": savings[0]} if roi else report, "json"), nl=False)
    elif form == "csv":
        click.echo(cost_pages.write_report_csv(report), nl=False)
    else:
        asked = "".join((f", namespace {namespace}" if namespace else "", f", team {team}" if team else ""))
        click.echo(cost_pages.draw_cost(whose, report, days, asked, form), nl=False)
        if roi:
            click.echo(f"\n{cost_pages.draw_savings('', savings[0]).lstrip()}", nl=False)


def _report(
    form: str, by: str, begin: str | None, end: str | None, last: str | None, basis: str, namespace: str | None,
    team: str | None, **given: Any,
) -> None:
    window = cost_source.read_window(last, begin, end, "30d")
    try:
        allocation.read_aggregate(by)
    except ValueError as problem:
        raise click.UsageError(show.plain(f"--by: {problem}")) from None
    question = ask_report(window, by=by, namespace=namespace, team=team, basis=basis)
    found = cost_source.ask(given, question)
    if form == "json":
        click.echo(show.encode(found.answer, "json"), nl=False)
    elif form == "csv":
        click.echo(cost_pages.write_report_csv(found.answer), nl=False)
    else:
        click.echo(cost_pages.draw_report(found.whose, found.answer), nl=False)


def _roi(form: str, last: str, **given: Any) -> None:
    found = cost_source.ask(given, ask_savings(cost_source.read_last(last)), invested=_invested(given))
    if form == "json":
        click.echo(show.encode(found.answer, "json"), nl=False)
    elif form == "csv":
        click.echo(cost_pages.write_savings_csv(found.answer), nl=False)
    else:
        click.echo(cost_pages.draw_savings(found.whose, found.answer), nl=False)


def _prices(form: str, **given: Any) -> None:
    found = cost_source.ask(given, CostQuestion(
        "/api/v1/cost/prices", {}, telling.PricesPage, cost_books.read_prices
    ))
    if form == "json":
        click.echo(show.encode(found.answer, "json"), nl=False)
    else:
        click.echo(cost_pages.draw_prices(found.whose, found.answer), nl=False)


def _invested(given: dict[str, Any]) -> cost.Nano:
    """Of a ledger that we read ourselves; a daemon knows its own."""
    text = given.get("cost_roi_monthly_investment")
    try:
        return cost_doors.read_amount(text) if text else 0
    except ValueError as problem:
        raise click.UsageError(f"--cost-roi-monthly-investment: {problem}") from None


# ---- options ---------------------------------------------------------------------------------------------------------


def whose_options() -> list[click.Parameter]:
    return [
        click.Option(["-n", "--namespace"], default=None, help="Only this namespace, by its name.",
                     shell_complete=completing.namespaces),
        click.Option(["--team"], default=None, help="Only this team."),
    ]


def last_option(usual: str) -> click.Option:
    return click.Option(["--last"], default=usual, show_default=True, metavar="DURATION",
                        help="How far back from now: 30m, 12h, 7d, 2w.")


def invested_option() -> click.Option:
    [flag] = [flag for flag in settings.FLAGS if flag.name == "--cost-roi-monthly-investment"]
    return flags.flag_option(flag)


report = click.Command(
    "report", callback=_report, context_settings=flags.CONTEXT,
    params=[
        cost_source.format_option("table", "json", "csv"),
        click.Option(["--by"], default="namespace", show_default=True, metavar="A,B",
                     help="Group by these: namespace, team, label:KEY, model, capacity, class, controller, node ..."),
        click.Option(["--from", "begin"], metavar="TIME", help="Since when: a day (2026-11-01) or an instant."),
        click.Option(["--to", "end"], metavar="TIME", help="Until before; default: now."),
        click.Option(["--last"], default=None, metavar="DURATION", help="Instead: so far back.  [default: 30d]"),
        click.Option(["--basis"], type=click.Choice(list(Basis)), default="allocation", show_default=True,
                     help="Who pays: who held it, or who used it."),
        *whose_options(), *cost_source.options(),
    ],
    help="Who caused which costs: a row for each group, what nobody held, and a total to which they come, to the cent."
    "\n\nCOST is what a row pays; ALLOCATED_UNUSED what it held, worked on and did not use; HELD_IDLE what it held "
    "while nothing worked for longer than the idle rule allows. docs/cost-model.md has an example to check by hand."
    "\n\n\b\n  fallow cost report --by team --last 30d\n  fallow cost report --by namespace,label:app --from 2026-11-01"
    "\n  fallow cost report --basis use --format csv > report.csv",
)
roi = click.Command(
    "roi", callback=_roi, context_settings=flags.CONTEXT,
    params=[last_option("30d"), cost_source.format_option("table", "json", "csv"), invested_option(),
            *cost_source.options()],
    help="What was saved, how that was measured, and whether it is worth what we cost.\n\nSAVED is money only as far "
    "as somebody else used what was given back, or its node went away (REALISED); the rest is freed capacity, in "
    "GPU-hours. There are no fixed percentages.",
)
prices = click.Command(
    "prices", callback=_prices, context_settings=flags.CONTEXT,
    params=[cost_source.format_option("table", "json"), *cost_source.options()],
    help="The prices that were used, with where each is from and how old it is; and GPUs that have none.",
)
