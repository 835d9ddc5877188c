"""`fallow optimize`, which `gpu-autoscaler` has too: who could do with less of a GPU, and what that would save.

In: options that say which cluster and which Prometheus. Out: a line for each workload that wastes more than was asked
for, or of which that is not known; as a table, JSON, YAML or CSV. Nothing is changed.
Exit codes: 1 a call failed, 2 something was typed wrongly, 4 there is no Prometheus to ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import click

from fallow import logs
from fallow.doors import answers
from fallow.doors.cli import cost_pages, flags, interrupts, look, main, pages, show, where
from fallow.model import price_book
from fallow.model.share_advice import AdviceKind
from fallow.model.units import MINUTE
from fallow.settings import readers

COLUMNS: Final = (
    "NAMESPACE", "WORKLOAD", "CLASS", "GPUS", "GPU_UTIL", "MEM_UTIL", "WASTE", "RECOMMENDATION", "SAVINGS/MONTH",
    "CONFIDENCE",
)
_NO_SOURCE: Final = "there is no Prometheus to ask what GPUs did: name one with --prometheus-url"


class AdviceLine(answers.Shape, frozen=True, kw_only=True):
    """Ratios 0 to 1; `share`: of what it holds now. `replicas`, `mps_clients`: how many such pods could take turns on
    one GPU, or share it by MPS. None: not known."""

    namespace: str
    workload: str
    work_class: str
    gpus: float
    gpu_util: float | None
    mem_util: float | None
    coverage: float
    waste_score: float | None
    wasted_gpu_hours: float | None
    recommendation: str
    because: str
    share: float
    savings_per_month: float | None
    currency: str
    confidence: str
    replicas: int | None
    mps_clients: int | None


class AdvicePage(answers.Shape, frozen=True, kw_only=True):
    """`savings_per_month`: of those of which it is known; `unknown`: how many were not measured enough."""

    lines: tuple[AdviceLine, ...]
    savings_per_month: float
    unknown: int


def _optimize(
    output: str, lookback: int, min_waste_score: float, namespace: str | None, price: tuple[str, ...], **given: Any
) -> None:
    from fallow.doors.answers import status as statuses
    from fallow.wiring import optimizing  # a packing engine: --help does without

    book = {**price_book.LIST, **main.load("views").read_prices(price)}
    options = flags.read_settings(given, look.UNUSED_VARIABLES)
    logs.set_up("default", "error")
    with show.refusals():
        optimizing.check_cluster(options)
        if options.prometheus is None:
            raise show.NoSource(_NO_SOURCE)
        seen = interrupts.run_shortly(optimizing.see(options, tell=show.tell))
    if why := main.load("views").why_none(seen.look):
        raise why
    with show.refusals(helps=statuses.REACH_PROMETHEUS):
        found = interrupts.run_shortly(
            optimizing.measure(seen, options, options.prometheus, lookback * MINUTE, book)
        )
    matching = readers.regex(namespace) if namespace is not None else None
    page = make_page([each for each in found if matching is None or matching.fullmatch(each.ref.namespace)],
                     min_waste_score)
    if output == "csv":
        columns = list(AdviceLine.__struct_fields__)
        rows = [[getattr(line, name) for name in columns] for line in page.lines]
        click.echo(cost_pages.write_csv(columns, rows), nl=False)
    elif not show.data(page, output):
        click.echo(draw(page), nl=False)


def make_page(found: Sequence[Any], least: float) -> AdvicePage:
    """`found`: AdvisedWorkloads. Those that waste most first, then those that nobody knows."""
    shown = [each for each in found if each.advice.score is None or each.advice.score > least]
    ordered = sorted(shown, key=lambda each: (-(each.advice.score or -1.0), str(each.ref)))
    lines = tuple(map(_tell, ordered))
    saved = sum(line.savings_per_month or 0.0 for line in lines)
    unknown = sum(line.recommendation == AdviceKind.unknown for line in lines)
    return AdvicePage(lines=lines, savings_per_month=round(saved, 2), unknown=unknown)


def _tell(each: Any) -> AdviceLine:
    ref, use, advice = each.ref, each.facts.use, each.advice
    return AdviceLine(
        namespace=ref.namespace, workload=ref.short, work_class=str(each.facts.work), gpus=round(each.facts.gpus, 3),
        gpu_util=_round(use.gpu), mem_util=_round(use.memory), coverage=round(use.coverage, 3),
        waste_score=advice.score, wasted_gpu_hours=each.wasted_gpu_hours, recommendation=str(advice.kind),
        because=advice.because, share=round(advice.share, 4), savings_per_month=advice.saves, currency=each.currency,
        confidence="unknown" if advice.score is None else "high" if advice.is_sure else "low",
        replicas=advice.replicas, mps_clients=advice.clients,
    )


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def draw(page: AdvicePage) -> str:
    if not page.lines:
        return "No workload wastes more of its GPUs than was asked for, as far as it is measured.\n"
    rows = [
        (line.namespace, line.workload, line.work_class, f"{line.gpus:g}", _percent(line.gpu_util),
         _percent(line.mem_util), "unknown" if line.waste_score is None else f"{line.waste_score:.0f}",
         _recommend(line), _amount(line), line.confidence)
        for line in page.lines
    ]
    unknown = f" {page.unknown} could not be judged: too little of the time was measured." if page.unknown else ""
    currency = " ".join(sorted({line.currency for line in page.lines}))
    amount = f"{page.savings_per_month:,.2f} {currency} a month"
    total = f"Together {amount}, at list prices (or --price) as far as they are known.{unknown}"
    spare = ("CLASS", "GPUS", "CONFIDENCE", "MEM_UTIL")
    return pages.join(show.grid(COLUMNS, rows, spare=spare, below=("RECOMMENDATION",)), show.fold(total))


def _recommend(line: AdviceLine) -> str:
    if line.recommendation == AdviceKind.none:
        return f"none: {line.because}"
    return line.because if line.share < 1 else line.recommendation


def _amount(line: AdviceLine) -> str:
    return "-" if line.savings_per_month is None else f"{line.savings_per_month:,.2f} {line.currency}"


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.0%}"


_OPTIONS: Final[list[click.Parameter]] = [
    click.Option(["-n", "--namespace"], default=None,
                 help="Only namespaces that match this RE2 expression as a whole.",
                 callback=show.checked(readers.regex)),
    click.Option(["--lookback"], type=click.IntRange(1, 7 * 24 * 60), default=10, show_default=True,
                 metavar="MINUTES", help="Of how long means are taken."),
    click.Option(["--min-waste-score"], type=show.Number(0, 100), default=50, show_default=True,
                 help="List only what wastes more; 0 to 100."),
    click.Option(["-o", "--output", "--format", "output"], type=click.Choice(["table", "json", "csv", "yaml"]),
                 default="table", show_default=True, help="How to show it."),
]

# It looks itself: no daemon is asked.
_UNUSED: Final = frozenset({"namespace", "model_name", "output", *(each.name for each in where.daemon_options())})

optimize = look.LookCommand(
    "optimize", callback=_optimize, context_settings=flags.CONTEXT,
    params=[*_OPTIONS, look.price_option, *(each for each in look.look_options() if each.name not in _UNUSED)],
    help="Who could do with less of a GPU: what each workload uses, a score of what it wastes, the smallest part that "
    "is enough for it, and what that saves a month. Never less memory than it ever used and a fifth. Nothing is "
    "changed.\n\n\b\n  fallow optimize --prometheus-url http://localhost:9090\n"
    "  fallow optimize -n ml-team --lookback 60 -o json",
)
