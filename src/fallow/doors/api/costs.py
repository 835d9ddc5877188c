"""What GPUs cost, for the API of a daemon: the books it reads from, and where the listener of its own is.

In: the options, what the daemon is made of. Out: CostBooks, or None where none are kept; an address, or None.
"""

from collections.abc import Sequence

from fallow import settings
from fallow.doors.answers.cost_books import AttributionAsk, CostBooks
from fallow.doors.api import app
from fallow.model import cluster, cost
from fallow.model.policies import budget as policies
from fallow.model.policies.budget import CostAttribution, CostBudget
from fallow.model.seen import Known, Register, Unseen
from fallow.wiring import daemon


def make_books(options: settings.Settings, made: daemon.Assembly) -> CostBooks | None:
    kept = made.books
    if kept is None:
        return None

    def attributions() -> Sequence[AttributionAsk]:
        seen = kept.attributions()
        found = seen.value if isinstance(seen, Known) else ()
        return [ask(each, made.seen.namespaces) for each in found]

    def budgets() -> Sequence[CostBudget]:
        seen = kept.budgets()
        return seen.value if isinstance(seen, Known) else ()

    return CostBooks(
        ledger=kept.ledger, max_age=options.cost.max_age, invested=options.cost_doors.monthly_investment,
        attributions=attributions, budgets=budgets, energy=options.cost_doors.energy,
        saved_until=kept.saved_until, list_price=kept.billing.find_on_demand,
    )


def ask(of: CostAttribution, namespaces: Register[cluster.Namespace]) -> AttributionAsk:
    """As its story asks for it: who is meant by a selector is known only now."""
    live, where = policies.find_live(of.scope, namespaces), of.scope.filters(payer=False)
    problem = "; ".join(of.invalid)
    match live:
        case Known(meant):
            problem = problem or ("" if meant else "its selector fits no namespace")
            on = cost.Dimension(cost.DimensionName.namespace)
            where = (*where, cost.CostFilter(on, frozenset(meant)))
        case Unseen(why):
            problem = problem or f"whom its selector means is not known: {why}"
    return AttributionAsk(name=of.name, by=of.track_by, where=where, seconds=of.period, problem=problem)


def find_address(options: settings.Settings) -> tuple[str, int] | None:
    """None: no books are kept, or nobody wants one."""
    port = options.cost_doors.port
    return app.find_cost_address(port, options.serving.auth) if options.cost.enabled and port is not None else None
