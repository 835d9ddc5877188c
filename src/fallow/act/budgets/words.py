"""What a message about a budget says, worded once: the same facts in Slack, mail, PagerDuty and for programs.

In: a BudgetState, an alert, what happened. Out: AlertFacts; Slack's JSON, a letter, an event of PagerDuty, a plain
object. What comes from the cluster is escaped where it is laid out.
"""

from collections.abc import Mapping
from decimal import Decimal
from html import escape
from typing import Any
from urllib import parse

import msgspec

from fallow.act.notices import letter
from fallow.act.notices.facts import Letterhead
from fallow.act.notices.slack import escape as escape_slack
from fallow.model import money, units
from fallow.model.budgets import AlertEvent, BudgetState
from fallow.model.policies.budget import AlertBasis, AlertRule, SpendScope
from fallow.model.units import Instant

_COLORS = {"info": "#777777", "warning": "warning", "critical": "danger"}
_MOST_NAMED = 5  # namespaces in a message for people


class AlertFacts(msgspec.Struct, frozen=True, kw_only=True):
    event: AlertEvent
    state: BudgetState
    rule: AlertRule
    head: Letterhead
    now: Instant
    period_start: int

    @property
    def name(self) -> str:
        return self.state.budget.name

    @property
    def is_late(self) -> bool:
        """It tells of a period that is over: what is known now is of another one."""
        bounds = self.state.period
        return self.event is AlertEvent.fired and bounds is not None and bounds.start != self.period_start

    @property
    def dedup_key(self) -> str:
        return f"fallow/{self.state.budget.uid}/{units.rfc3339(self.period_start)}/{self.rule.name}"

    @property
    def amount(self) -> Decimal:
        return self.state.budget.amount or Decimal(0)

    @property
    def url(self) -> str | None:
        root = self.head.public_url.rstrip("/")
        return f"{root}/budgets/{parse.quote(self.name, safe='')}" if root else None

    def money(self, amount: Decimal | None) -> str:
        return "unknown" if amount is None else f"{amount:,.2f} {self.state.currency}".rstrip()


def scope_words(scope: SpendScope) -> str:
    parts = []
    if scope.namespace_selector is not None:
        said = [f"{key}={value}" for key, value in scope.namespace_selector.match_labels.items()]
        parts.append(f"namespaces with {', '.join(said) or 'certain labels'}")
    parts += [f"namespaces {', '.join(scope.namespaces)}"] if scope.namespaces else []
    parts += [f"team {', '.join(scope.teams)}"] if scope.teams else []
    parts += [f"labels {', '.join(f'{key}={value}' for key, value in scope.labels)}"] if scope.labels else []
    parts += [f"experiment {scope.experiment}"] if scope.experiment else []
    return " and ".join(parts) or "the whole cluster"


def headline(facts: AlertFacts) -> str:
    of = f"of {facts.money(facts.amount)}"
    if facts.event is AlertEvent.test:
        return f"This is a test of the budget {facts.name}: nothing happened."
    if facts.event is AlertEvent.resolved:
        return f"Budget {facts.name}: {facts.rule.name} is over."
    if facts.is_late:
        began = units.rfc3339(facts.period_start)[:10]
        return f"Budget {facts.name}: {facts.rule.name} fired in the period from {began}, which is over."
    if facts.rule.basis is AlertBasis.forecast and facts.state.forecast.projected is not None:
        will = facts.state.forecast.projected / facts.amount * 100
        return f"Budget {facts.name} will have spent {will:.1f} % {of} when its period ends."
    percent = facts.state.percent
    return f"Budget {facts.name} has spent {'an unknown part' if percent is None else f'{percent:.1f} %'} {of}."


def _rows(facts: AlertFacts) -> list[tuple[str, str]]:
    state = facts.state
    if facts.is_late:
        return [
            ("Whose", scope_words(state.budget.scope)), ("Alert", f"{facts.rule.name}, {facts.rule.severity}"),
            ("See", f"fallow cost budget {facts.name}"),
        ]
    rows = [
        ("Whose", scope_words(state.budget.scope)), ("Spent", facts.money(state.spent)),
        ("Will be", facts.money(state.forecast.projected)), ("Alert", f"{facts.rule.name}, {facts.rule.severity}"),
    ]
    if state.period is not None:
        rows.append(("Period", f"{units.rfc3339(state.period.start)[:10]} to {units.rfc3339(state.period.end)[:10]}"))
    spent = state.spend.breakdowns.get("byNamespace", {}) if state.spend is not None else {}
    most = sorted(spent.items(), key=lambda each: -each[1])[:_MOST_NAMED]
    shown = money.spread(dict(most))
    named = ", ".join(f"{name or 'nobody'} {amount}" for name, amount in shown.items())
    rows += [("Most of it", named)] if named else []
    rows.append(("What else", state.enforced_because or "nothing is restricted"))
    rows += [("Not counted", gap) for gap in state.gaps]
    return [*rows, ("See", f"fallow cost budget {facts.name}")]


def write_slack(facts: AlertFacts) -> dict[str, Any]:
    fields = [
        {"title": title, "value": escape_slack(said), "short": len(said) < 40} for title, said in _rows(facts)
    ]
    said = escape_slack(headline(facts))
    attachment = {
        "color": _COLORS[facts.rule.severity], "title": f"Budget {escape_slack(facts.name)}", "fallback": said,
        "fields": fields, "footer": "fallow", "ts": int(facts.now),
        **({"title_link": facts.url} if facts.url else {}),
    }
    return {"text": said, "attachments": [attachment]}


def write_letter(facts: AlertFacts, subject: str = "") -> letter.Draft:
    said, rows = headline(facts), _rows(facts)
    plain = "\n".join([said, "", *(f"  {title:<12} {text}" for title, text in rows), ""])
    top = f'<p style="margin:0 0 16px;font:22px/30px Georgia,serif">{escape(said)}</p>'
    link = f'<p><a href="{escape(facts.url)}">The budget</a></p>' if facts.url else ""
    return letter.Draft(subject or said.rstrip("."), plain, letter.wrap(facts.head, top + link + letter.table(rows)))


def write_details(facts: AlertFacts) -> dict[str, Any]:
    """For whoever is paged."""
    return dict(_rows(facts))


def write_plain(facts: AlertFacts) -> dict[str, Any]:
    """For programs. Of a period that is over only what is still known."""
    state, of = facts.state, facts.state.budget
    begin, end = _find_bounds(facts)
    if facts.is_late:
        state = BudgetState(budget=of, ready=state.ready, ready_because="", currency=state.currency)
    return {
        "version": "1", "event": str(facts.event), "budget": of.name, "scope": _plain_scope(of.scope),
        "alert": facts.rule.name, "threshold": float(facts.rule.threshold), "severity": str(facts.rule.severity),
        "currentSpend": _text(state.spent), "amount": f"{facts.amount:f}", "currency": state.currency,
        "percentageUsed": None if state.percent is None else round(float(state.percent), 2),
        "projected": _text(state.forecast.projected),
        "period": None if begin is None else {"start": begin, "end": end},
        "enforcement": {"mode": str(of.enforcement.mode), "active": state.is_enforced},
        "breakdown": {title: money.spread(money.top(parts)) for title, parts in _breakdowns(state).items()},
        "url": facts.url,
    }


def _find_bounds(facts: AlertFacts) -> tuple[str | None, str | None]:
    if facts.is_late:
        return units.rfc3339(facts.period_start), None
    bounds = facts.state.period
    return (None, None) if bounds is None else (units.rfc3339(bounds.start), units.rfc3339(bounds.end))


def _breakdowns(state: BudgetState) -> Mapping[str, Mapping[str, int]]:
    return {} if state.spend is None else state.spend.breakdowns


def _text(amount: Decimal | None) -> str | None:
    return None if amount is None else f"{amount:.2f}"


def _plain_scope(scope: SpendScope) -> dict[str, Any]:
    made: dict[str, Any] = {"type": str(scope.type)}
    if scope.namespace_selector is not None:
        made["namespaceSelector"] = {"matchLabels": dict(scope.namespace_selector.match_labels)}
    given = {
        "namespaces": list(scope.namespaces), "teams": list(scope.teams), "labels": dict(scope.labels),
        "experimentID": scope.experiment,
    }
    return made | {key: value for key, value in given.items() if value}
