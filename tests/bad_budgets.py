"""Budgets that must be refused, each with the field that is wrong: by the API server, and by our own reader of what was
stored before."""

from typing import Any

Spec = dict[str, Any]


def spec(**changed: Any) -> Spec:
    """One that is right, but for what is changed."""
    return {"scope": {"type": "cluster"}, "budget": {"amount": 100, "period": "30d"}, **changed}


def _amount(amount: Any) -> Spec:
    return spec(budget={"amount": amount})


def _alert(**alert: Any) -> Spec:
    return spec(alerts=[{"threshold": 80, **alert}])


# What is wrong -> (the spec, the field that is named).
BAD: dict[str, tuple[Spec, str]] = {
    "negative": (_amount(-1), "spec.budget.amount"),
    "zero": (_amount(0), "spec.budget.amount"),
    "text": (_amount("abc"), "spec.budget.amount"),
    "unit": (_amount("50k"), "spec.budget.amount"),
    "huge": (_amount(1e308), "spec.budget.amount"),
    "sixteen-digits": (_amount(1234567.890123456), "spec.budget.amount"),
    "seventeen-digits-below-one": (_amount(0.12345678901234568), "spec.budget.amount"),
    "sixteen-digits-whole": (_amount(1234567890123456), "spec.budget.amount"),
    "no-amount": (spec(budget={"period": "30d"}), "spec.budget"),
    "both-amounts": (spec(monthlyLimit=3), "spec.budget"),
    "no-days": (spec(budget={"amount": 1, "period": "0d"}), "spec.budget.period"),
    "endless": (spec(budget={"amount": 1, "period": "1000000h"}), "spec.budget.period"),
    "start": (spec(startDate=20261118), "spec.startDate"),
    "no-such-period": (spec(budget={"amount": 1, "period": "fortnight"}), "spec.budget.period"),
    "threshold": (_alert(threshold=1001), "spec.alerts[0].threshold"),
    "negative-threshold": (_alert(threshold=-0.5), "spec.alerts[0].threshold"),
    "no-threshold": (spec(alerts=[{"name": "a"}]), "spec.alerts[0].threshold"),
    "both-thresholds": (_alert(thresholdPercent=80), "spec.alerts[0].thresholdPercent"),
    "channel": (_alert(channels=[{"type": "sms"}]), "spec.alerts[0].channels[0].type"),
    "same-names": (spec(alerts=[{"threshold": 80}, {"name": "at-80", "threshold": 90}]), "spec.alerts"),
    "same-names-by-default": (spec(alerts=[{"threshold": 82.5}, {"threshold": 82.5}]), "spec.alerts"),
    "no-scope": ({"budget": {"amount": 1}}, "spec.scope"),
    "no-type": (spec(scope={"teams": ["ml"]}), "spec.scope.type"),
    "no-selector": (spec(scope={"type": "namespace"}), "spec.scope.namespaceSelector"),
    "no-teams": (spec(scope={"type": "team"}), "spec.scope.teams"),
    "no-labels": (spec(scope={"type": "label"}), "spec.scope.labels"),
    "no-experiment": (spec(scope={"type": "experiment", "teams": ["ml"]}), "spec.scope.experimentID"),
    "grace": (spec(enforcement={"gracePeriod": "2 hours"}), "spec.enforcement.gracePeriod"),
    "both-modes": (spec(enforcement={"mode": "block", "action": "block"}), "spec.enforcement.action"),
    "mode": (spec(enforcement={"mode": "kill"}), "spec.enforcement.mode"),
    "spot": (
        spec(enforcement={"throttleConfig": {"maxSpotInstances": -1}}),
        "spec.enforcement.throttleConfig.maxSpotInstances",
    ),
    "currency": (spec(budget={"amount": 1, "currency": "euro"}), "spec.budget.currency"),
}
GOOD: dict[str, Spec] = {
    "fifteen-digits": _amount(1234567.89012345),
    "cents": _amount(0.01),
    "small": _amount(0.000123456789012345),
    "largest": _amount(999999999999999),
    "deprecated": {
        "scope": {"type": "team", "teams": ["ml"]}, "monthlyLimit": 5000,
        "alerts": [{"thresholdPercent": 75}], "enforcement": {"action": "block", "gracePeriodMinutes": 30},
    },
    "quarter": spec(budget={"amount": 1, "period": "quarter", "timeZone": "America/New_York"}),
    "two-alerts": spec(alerts=[{"threshold": 80}, {"threshold": 80, "name": "b", "basis": "forecast"}]),
}
