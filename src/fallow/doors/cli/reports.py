"""`fallow report` and `fallow version`, which `gpu-autoscaler` has too.

In: options that say who is to answer. Out: all of it on one page (status, waste, costs and savings of a week) as text,
JSON or CSV. Where no books are kept that is said, with what would help; nothing is left
as a placeholder.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from typing import Any, Final

import click

from fallow import __version__, names
from fallow.doors import answers
from fallow.doors.answers import cost as telling
from fallow.doors.answers import status as statuses
from fallow.doors.answers import waste
from fallow.doors.cli import cost_pages, cost_reports, cost_source, flags, look, pages, show, views
from fallow.model import price_book, units

_WEEK: Final = "7d"
_OF_WORKLOAD: Final = "namespace,controllerKind,controller"
_KINDS: Final = {"idle": "idle", "neverUsed": "idle since start", "smallUse": "small use"}


class ReportPage(answers.Shape, frozen=True, kw_only=True):
    """`cost_problem`: why there is nothing about money of the past."""

    version: str
    as_of: str
    status: statuses.StatusPage
    waste: waste.WastePage
    cost: telling.CostReportPage | None
    savings: telling.CostSavingsPage | None
    cost_problem: str | None


# ---- waste -----------------------------------------------------------------------------------------------------------


def _look(
    form: str, namespace: str | None, cost_store: str | None, given: dict[str, Any]
) -> tuple[waste.WastePage, list[Any], str, str]:
    """What is wasted; the week's report and savings; why there are none; whose word it is."""
    asked = views.read_filter({**given, "namespace": namespace})
    seen = views.see_rows({**given, "namespace": namespace}, asked, "json" if form == "json" else form)
    if seen.failure:
        raise seen.failure
    costs, problem = _read_costs(namespace, cost_store, given)
    by_workload = costs[2] if costs else None
    return waste.find_waste(seen.rows, by_workload, price_book.LIST_CURRENCY), costs, problem, seen.source


def _read_costs(namespace: str | None, cost_store: str | None, given: dict[str, Any]) -> tuple[list[Any], str]:
    questions: list[cost_source.CostQuestion[Any]] = [
        cost_reports.ask_report(_WEEK, namespace=namespace, compares=True), cost_reports.ask_savings(_WEEK),
        cost_reports.ask_report(_WEEK, by=_OF_WORKLOAD, namespace=namespace),
        cost_reports.ask_days(_WEEK, namespace, None),
    ]
    try:
        found, _ = cost_source.ask_all({**given, "cost_store": cost_store}, questions)
    except cost_source.NoBooks as problem:
        return [], problem.format_message()
    return found, ""


def _draw_waste(source: str, found: waste.WastePage, problem: str) -> str:
    if not found.lines:
        said = "No GPU is idle, and none is held for small use, as far as it is measured."
        return pages.join(show.fold(source), said, show.fold(problem))
    return pages.join(show.fold(source), _lay_waste(found), _sum_waste(found), show.fold(problem))


def _lay_waste(found: waste.WastePage) -> str:
    rows = [
        (_KINDS[one.kind_of_waste], one.namespace, f"{one.kind}/{one.name}",
         "" if one.gpus is None else f"{round(one.gpus, 2):g}", "" if one.use is None else f"{one.use:.0%}",
         _amount(one.per_hour, is_asked=one.gpus is not None), _amount(one.wasted, is_asked=found.wasted is not None),
         one.helps)
        for one in found.lines
    ]
    columns = ["WASTE", "NAMESPACE", "WORKLOAD", "GPUS", "USE%", "IDLE $/H", "UNUSED", "NEXT"]
    filled = [at for at in range(len(columns)) if any(row[at] for row in rows)]  # what nobody knows needs no column
    return show.grid(
        [columns[at] for at in filled], [[row[at] for at in filled] for row in rows], spare=("GPUS",), below=("NEXT",)
    )


def _amount(value: float | None, *, is_asked: bool) -> str:
    """What nobody asks for is left out; what nobody knows is said."""
    return f"{value:,.2f}" if value is not None else "not known" if is_asked else ""


def _sum_waste(found: waste.WastePage) -> str:
    week = "" if found.wasted is None else \
        f"; these workloads did not use {found.wasted:,.2f} {found.currency} of the last {_WEEK}"
    unknown = f"; of {found.unknown} it is not known" if found.unknown else ""
    counts = ", ".join(f"{waste.count(found.lines, kind)} {said}" for kind, said in _KINDS.items())
    by_list = " at list price" if found.is_list else ""
    of_week = any(line.use is not None or line.wasted is not None for line in found.lines)
    since = "Idle since start: from when the pods that run now began. " if waste.count(found.lines, "neverUsed") else ""
    since += f"USE% and UNUSED are of the last {_WEEK}, whatever ran then. " if of_week else ""
    now = f"Idle GPUs cost {found.per_hour:,.2f} {found.currency} an hour now{by_list}{week}{unknown}. {counts}."
    return show.fold(f"{now} {since}Each with its evidence: fallow why KIND/NAME -n NAMESPACE")


# ---- report ----------------------------------------------------------------------------------------------------------


def _report(form: str, namespace: str | None, cost_store: str | None, **given: Any) -> None:
    asked = views.read_filter({**given, "namespace": namespace})
    seen = views.see_status({**given, "namespace": namespace}, asked, "json" if form == "json" else form)
    found, costs, problem, _ = _look(form, namespace, cost_store, given)
    page = ReportPage(
        version=__version__, as_of=units.rfc3339(seen.at), status=seen.page, waste=found,
        cost=costs[0] if costs else None, savings=costs[1] if costs else None, cost_problem=problem or None,
    )
    if form == "json":
        click.echo(show.encode(page, "json"), nl=False)
    elif form == "csv":
        click.echo(cost_pages.write_csv(["SECTION", "KEY", "FIELD", "VALUE"], list(_flatten(page))), nl=False)
    else:
        click.echo(_draw_report(seen, page, costs, str(asked)), nl=False)
    if seen.failure:
        raise seen.failure


def _draw_report(seen: views.StatusSeen, page: ReportPage, costs: list[Any], asked: str) -> str:
    first = "\n".join(filter(None, (show.fold(seen.source), show.fold(page.status.rules.sentence))))
    parts = [
        show.heading(f"GPU REPORT  {page.as_of}"), pages.draw_status(first, page.status, asked, seen.at).rstrip(),
        show.heading("WASTE"), _draw_waste("", page.waste, "").strip(), show.heading(f"COST OF {_WEEK}"),
    ]
    if page.cost is None or page.savings is None:
        parts.append(show.fold(page.cost_problem or ""))
    else:
        parts.append(cost_pages.draw_cost("", page.cost, costs[3], "", "summary").strip())
        parts += [show.heading(f"SAVINGS OF {_WEEK}"), cost_pages.draw_savings("", page.savings).strip()]
    return pages.join(*parts)


def _flatten(page: ReportPage) -> Iterator[tuple[str, str, str, Any]]:
    """One figure a line, for who has a spreadsheet and no program."""
    for name in ("gpus", "active_gpus", "idle_gpus", "unknown_gpus", "workloads", "pods"):
        yield "status", "cluster", name, getattr(page.status, name)
    for line in page.waste.lines:
        for name in ("kind_of_waste", "gpus", "use", "per_hour", "wasted"):
            yield "waste", f"{line.namespace}/{line.kind}/{line.name}", name, getattr(line, name)
    for row in (*page.cost.rows, page.cost.held) if page.cost else ():
        for name in ("gpu_hours", "cost", "used", "allocated_unused", "held_idle", "use_unknown", "unpriced_gpu_hours"):
            yield "cost", row.key, name, getattr(row, name)
    if page.cost is not None:
        yield "cost", "platform", "cost", page.cost.platform.cost
        yield "cost", "total", "cost", page.cost.total
    for saved in page.savings.lines if page.savings else ():
        for name in ("baseline", "actual", "saved", "gpu_hours", "realised_gpu_hours"):
            yield "savings", saved.type, name, getattr(saved, name)
    if page.cost_problem:
        yield "cost", "problem", "because", page.cost_problem


# ---- version ---------------------------------------------------------------------------------------------------------


class VersionTold(answers.Shape, frozen=True, kw_only=True):
    version: str
    python: str
    api_version: str


@click.command("version", context_settings=flags.CONTEXT)
@click.option("-o", "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True,
              help="How to show it.")
def version(form: str) -> None:
    """The version of this program, of Python, and of the custom resources that it speaks."""
    found = VersionTold(
        version=__version__, python=platform.python_version(), api_version=f"{names.GROUP}/{names.POLICY_VERSION}"
    )
    if form == "json":
        click.echo(show.encode(found, "json"), nl=False)
    else:
        click.echo(f"fallow {found.version} (Python {found.python}, {found.api_version})")


_STORE = click.Option(["--cost-store"], metavar="PATH|DSN", help="The ledger, where no daemon keeps one.")
_NAMESPACE = "Only namespaces that match this RE2 expression as a whole; costs: of this very name."


def _options(*choices: str) -> list[click.Parameter]:
    found = [option for option in look.look_options() if option.name not in ("namespace", "output")]
    namespace = click.Option(["-n", "--namespace"], default=None, help=_NAMESPACE)
    return [namespace, cost_source.format_option(*choices), _STORE, *found]


report = look.LookCommand(
    "report", callback=_report, context_settings=flags.CONTEXT, params=_options("text", "json", "csv"),
    help="All of it on one page, complete: the cluster now, what is wasted, what a week cost and what was saved."
    "\n\n\b\n  fallow report\n  fallow report --format json > report.json",
)
