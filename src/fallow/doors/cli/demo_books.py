"""What the books say of the demo's day, as `fallow cost report` says it.

In: what the product is made of, since when and until when. Out: DayBooks for the report, DayMoney for the picture.
Invariant: nothing is counted here. Money and GPU-hours are the ledger's, how often something was done is the audit's.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping

import msgspec

from fallow.account import counterfactuals, savings
from fallow.doors.answers import cost, cost_books, cost_budgets
from fallow.doors.cli import demo_scaling
from fallow.doors.cli import demo_view as view
from fallow.model import cost as ledgers
from fallow.model import units
from fallow.model.cost import BookedSaving, SavingKind
from fallow.model.history import Happened
from fallow.model.seen import Known
from fallow.model.units import Instant
from fallow.model.windows import TimeSpan
from fallow.sim import fleet as fleets
from fallow.wiring import daemon

_CLASS = ledgers.read_dimension("class")


class DayBooks(msgspec.Struct, frozen=True, kw_only=True):
    """`given_back`: GPU-hours by namespace and workload (KIND/NAME). `counted`: what the audit has."""

    report: cost.CostReportPage
    classes: cost.CostReportPage
    savings: cost.CostSavingsPage
    budgets: cost_budgets.BudgetsPage
    given_back: Mapping[tuple[str, str], float]
    counted: Mapping[Happened, int]
    scaled: demo_scaling.DayScaled | None = None  # None: no node comes or goes

    def find_saving(self, kind: SavingKind) -> cost.SavingLine | None:
        return next((each for each in self.savings.lines if each.type == kind), None)

    def count(self, *types: Happened) -> int:
        return sum(self.counted.get(each, 0) for each in types)

    @property
    def resumes(self) -> int:
        return self.count(*savings.ENDS)

    def in_short(self) -> view.DayMoney:
        waste = self.find_saving(SavingKind.waste)
        return view.DayMoney(
            currency=self.report.currency, cost=self.report.total, held=self.report.held.cost,
            held_idle=self.report.held.held_idle, unpriced_gpu_hours=self.report.unpriced_gpu_hours,
            given_back=waste.gpu_hours if waste else 0.0, saved=waste.saved if waste else 0.0,
            regretted=self.count(Happened.regretted),
        )


async def read(
    made: daemon.Assembly, began: Instant, now: Instant, fleet: fleets.Fleet | None = None
) -> DayBooks | None:
    """None: no books are kept."""
    kept, audit = made.books, made.audit
    if kept is None or audit is None:
        return None
    seen = kept.budgets()
    books = cost_books.CostBooks(
        ledger=kept.ledger, budgets=lambda: seen.value if isinstance(seen, Known) else ()
    )
    span = TimeSpan(int(began), int(now))
    asked = cost_books.SpendAsk(span=span)
    report, classes, saved, rows, budgets, counted = await asyncio.gather(
        cost_books.read_report(books, asked),
        cost_books.read_report(books, msgspec.structs.replace(asked, by=(_CLASS,))),
        cost_books.read_savings(books, span),
        kept.ledger.read_savings(span.begin // ledgers.DAY * ledgers.DAY, span.end),
        cost_budgets.read_budgets(books, now), audit.count(began, now + 1),
    )
    made_books = DayBooks(
        report=report, classes=classes, savings=saved, budgets=budgets, counted=counted, given_back=_give_back(rows)
    )
    if fleet is None:
        return made_books
    scaled = await demo_scaling.read(made, fleet, span, made_books.find_saving(SavingKind.autoscaling))
    return msgspec.structs.replace(made_books, scaled=scaled)


def _give_back(rows: list[BookedSaving]) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = defaultdict(float)
    for row in rows:
        if row.kind is SavingKind.waste and not row.is_dry_run:
            details = counterfactuals.read_details(row)
            found[row.namespace, details.workload] += details.gpu_hours
    return dict(found)


def say_window(began: Instant, now: Instant) -> str:
    """The flags by which a command asks for the same."""
    return f"--from {units.rfc3339(began)} --to {units.rfc3339(now)}"
