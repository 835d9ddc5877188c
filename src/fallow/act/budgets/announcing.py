"""What became of a budget, as Events on the CostBudget itself: `kubectl describe costbudget` tells who asks.

In: a BudgetState whose status was just written, what the plan found new about it. Out: an Event for each: exceeded,
enforced, lifted, overridden.
Invariant: each is told once, whoever leads: an Event is named after the status upon which it was news. Nothing secret
is in it: only amounts, times, and what stands in the budget for all who may read it.
"""

from collections.abc import Iterator

from fallow import names
from fallow.act import events
from fallow.act.budgets import words
from fallow.clients.kubernetes import api as kubernetes
from fallow.model import cluster, units
from fallow.model.budgets import BudgetNews, BudgetState, NewsKind
from fallow.model.policies.budget import EnforcementMode
from fallow.model.units import Instant

_REASONS = {
    NewsKind.exceeded: names.Event.BUDGET_EXCEEDED, NewsKind.enforced: names.Event.BUDGET_ENFORCED,
    NewsKind.lifted: names.Event.BUDGET_LIFTED, NewsKind.overridden: names.Event.BUDGET_OVERRIDDEN,
}
_DONE = {EnforcementMode.block: "denied", EnforcementMode.throttle: "throttled"}


async def announce(announcer: events.Announcer, state: BudgetState, news: BudgetNews, now: Instant) -> None:
    of, what = state.budget, kubernetes.COST_BUDGETS
    ref = cluster.Ref(what.group, what.version, what.kind, "", of.name, of.uid)
    note = "; ".join(_say(state, news.kind))
    await announcer.announce_once(ref, _REASONS[news.kind], note, now, news.episode)


def _say(state: BudgetState, kind: NewsKind) -> Iterator[str]:
    of, spent = state.budget, state.spent
    why = state.enforced_because or state.ready_because
    match kind:
        case NewsKind.exceeded:
            yield f"{spent or 0:,.2f} of {of.amount or 0:,.2f} {state.currency} are spent".strip()
            yield why
        case NewsKind.enforced:
            done = _DONE.get(of.enforcement.mode, "told of")
            yield f"new GPU pods of {words.scope_words(of.scope)} are {done}: {why}"
            yield f"override: fallow cost override {of.name} --for 4h --reason TEXT"
        case NewsKind.lifted:
            yield f"new GPU pods are restricted no more: {why}"
        case NewsKind.overridden if state.override is not None:
            held = state.override
            who = f"{held.by or 'somebody'} lets it be exceeded until {units.rfc3339(held.until)}"
            yield f"{who}: {held.reason}" if held.reason else who
