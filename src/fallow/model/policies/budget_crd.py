"""CostBudget as people write it: every field, its default and what may stand in it; what it means; what is answered.

In: an object as the API server gives it, decoded without floats (scope_crd.decode). Out: the CostBudget, with a
sentence in `invalid` for each thing that is wrong with it; the definition for the API server.
Fields of older versions (`monthlyLimit`, `alerts[].thresholdPercent`, `enforcement.action`,
`enforcement.gracePeriodMinutes`) are read as what they became.
Invariant: `parse` never raises, and what cannot be read never makes a budget do more: without a readable amount, scope
or period nothing is compared, and an invalid one restricts nobody.
"""

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Annotated, Any, ClassVar, TypeAlias

import msgspec

from fallow import names
from fallow.model import units
from fallow.model.policies import budget, crd, idle, scope_crd
from fallow.model.policies.crd import Duration, Flag, Moment, Text, one_of
from fallow.model.policies.scope_crd import Amount, Money
from fallow.model.secret import Secret
from fallow.model.units import DAY, Instant

MOST_ALERTS, MOST_CHANNELS, MOST_SHOWN, MOST_NAMESPACES = 20, 8, 20, 2000
_UNITS = {"h": 3600, "d": 86400, "w": 604800}

# What a channel of each type may be told, and what it cannot do without; each as our channels call it.
SPELLINGS: Mapping[str, Mapping[str, str]] = {
    "slack": {"webhook": "webhook_url", "webhook_url": "webhook_url", "channel": "channel"},
    "email": {"to": "to", "subject": "subject"},
    "pagerduty": {"routingKey": "routing_key", "routing_key": "routing_key"},
    "webhook": {"url": "url", "authHeader": "auth_header", "auth_header": "auth_header"},
}
NEEDED: Mapping[str, str] = {"slack": "webhook", "email": "to", "pagerduty": "routingKey", "webhook": "url"}
_SHOWN = frozenset({"to", "subject", "channel"})  # settings that are no secret

Period = Annotated[str, crd.text(
    r"([1-9][0-9]{0,4}h|[1-9][0-9]{0,3}d|[1-9][0-9]{0,2}w|month|week|quarter)", 8,
    "a period such as 24h, 30d, 4w, month, week or quarter",
)]
Currency = Annotated[str, crd.text(r"[A-Z]{3}", 3, "a currency such as USD (ISO 4217)")]
Threshold = Annotated[Any, scope_crd.percent(1000)]
AlertName = Annotated[str, crd.text(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", 63, "a name of letters and digits")]
ChannelKind = Annotated[str, one_of(*SPELLINGS)]
Basis = Annotated[str, one_of(*budget.AlertBasis)]
Severity = Annotated[str, one_of(*budget.AlertSeverity)]
Mode = Annotated[str, one_of(*budget.EnforcementMode)]
Cap = Annotated[int, crd.integer(0, 1_000_000)]
Minutes = Annotated[int, crd.integer(0, 527_040)]
SecretRefs: TypeAlias = Mapping[str, crd.SecretRef]


def _either(first: str, second: str, *, needed: bool) -> tuple[crd.Law, ...]:
    """Of a field and the one it was before. Their names as the API server has them."""
    one, other = (_snake(name) for name in (first, second))
    both = crd.Law(
        f"!(has(self.{first}) && has(self.{second}))", f"{second} is what {first} was called before: give one of them",
        lambda spec: getattr(spec, one) is None or getattr(spec, other) is None, second,
    )
    some = crd.Law(
        f"has(self.{first}) || has(self.{second})", "is missing",
        lambda spec: getattr(spec, one) is not None or getattr(spec, other) is not None, first,
    )
    return (both, some) if needed else (both,)


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


class BudgetSpec(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    amount: Annotated[Amount | None, "How much may be spent in a period."] = None
    period: Annotated[
        Period, "Nh, Nd, Nw: windows in a row from startDate; month, week, quarter: of the calendar in timeZone."
    ] = "month"
    currency: Annotated[Currency | None, "Of the amount; not given: that of the books."] = None
    time_zone: Annotated[crd.Zone, "IANA time zone of the calendar."] = "UTC"


class AlertChannelSpec(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    type: Annotated[ChannelKind, "How it is sent."]
    config: Annotated[Mapping[str, Text], "Settings of the channel."] = {}
    config_secret_refs: Annotated[SecretRefs, "Settings that are read from Secrets; these win."] = {}


Channels = Annotated[tuple[AlertChannelSpec, ...], {"maxItems": MOST_CHANNELS}]


class AlertSpec(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    name: Annotated[AlertName | None, "Unique in the budget; not given: at-THRESHOLD."] = None
    threshold: Annotated[Threshold | None, "Percent of the amount from which it fires."] = None
    threshold_percent: Annotated[Threshold | None, "As threshold was called before."] = None
    basis: Annotated[Basis, "What is compared: what was spent, or what will have been."] = "actual"
    severity: Annotated[Severity, "How bad that is."] = "warning"
    channels: Annotated[Channels, "Whom to tell."] = ()

    laws: ClassVar = _either("threshold", "thresholdPercent", needed=True)


class ThrottleSpec(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    max_spot_instances: Annotated[Cap | None, "Spot nodes that may run the scope's GPU pods."] = None
    max_gpus: Annotated[Cap | None, "GPUs that the scope may hold."] = msgspec.field(default=None, name="maxGPUs")
    block_on_demand: Annotated[Flag, "No on-demand nodes for the scope's GPU pods."] = False
    block_spot_creation: Annotated[Flag, "No new spot nodes for them."] = False
    prefer_on_demand: Annotated[Flag, "On-demand nodes first."] = False


class EnforcementSpec(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    mode: Annotated[Mode | None, "What happens when it is exceeded; not given: alert."] = None
    action: Annotated[Mode | None, "As mode was called before."] = None
    grace_period: Annotated[Duration | None, "How long it must be exceeded before; not given: 1h."] = None
    grace_period_minutes: Annotated[Minutes | None, "As gracePeriod was called before."] = None
    throttle_config: Annotated[ThrottleSpec, "What mode throttle does."] = ThrottleSpec()

    laws: ClassVar = (
        *_either("mode", "action", needed=False), *_either("gracePeriod", "gracePeriodMinutes", needed=False),
    )


def called(alert: AlertSpec) -> str:
    return alert.name or f"at-{_threshold(alert).normalize():f}"


def _threshold(alert: AlertSpec) -> Decimal:
    found = scope_crd.as_decimal(alert.threshold if alert.threshold is not None else alert.threshold_percent)
    return found if found is not None else Decimal(0)


_OF = "(has({0}.threshold) ? {0}.threshold : {0}.thresholdPercent)"
_A, _B = _OF.format("a"), _OF.format("b")
# A number is never made text here, because the API server would not know how long that gets.
_SAME = (
    f"has(a.name) == has(b.name) && (has(a.name) ? a.name == b.name : {_A} == {_B})",
    f"has(a.name) && a.name.matches('^at-[0-9]{{1,4}}([.][0-9]{{1,9}})?$') && !has(b.name) && "
    f"double(a.name.substring(3)) == {_B}",
)
Alerts = Annotated[tuple[AlertSpec, ...], {"maxItems": MOST_ALERTS}]


class CostBudgetSpec(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Whose cost, how much of it in which time, whom to tell and what happens then."""

    scope: Annotated[scope_crd.BudgetScopeSpec | None, "Whose cost counts; all selectors must fit."] = None
    budget: Annotated[BudgetSpec, "How much, in which time."] = BudgetSpec()
    monthly_limit: Annotated[Amount | None, "As budget.amount with the period month was called before."] = None
    start_date: Annotated[Moment | None, "From when on; not given: the day it was made, 00:00 UTC."] = None
    alerts: Annotated[Alerts, "At which percentages whom to tell."] = ()
    enforcement: Annotated[EnforcementSpec, "What else happens when it is exceeded."] = EnforcementSpec()
    enabled: Annotated[Flag, "false: nothing is compared, told or restricted."] = True

    laws: ClassVar = (
        crd.Law("has(self.scope)", "is missing", lambda spec: spec.scope is not None, "scope"),
        crd.Law(
            "(has(self.budget) && has(self.budget.amount)) != has(self.monthlyLimit)",
            "give budget.amount, or monthlyLimit as it was called before, and not both",
            lambda spec: (spec.budget.amount is None) != (spec.monthly_limit is None), "budget",
        ),
        crd.Law(
            f"!has(self.alerts) || self.alerts.all(a, self.alerts.exists_one(b, {_SAME[0]}) && "
            f"!self.alerts.exists(b, {_SAME[1]}))",
            "two alerts have the same name", lambda spec: len({*map(called, spec.alerts)}) == len(spec.alerts),
            "alerts",
        ),
    )


# ---- the answer ------------------------------------------------------------------------------------------------------


class FiredStatus(msgspec.Struct, frozen=True, rename="camel"):
    alert_name: Annotated[Text, "Name of the alert."]
    timestamp: Annotated[Moment, "When it fired."]
    threshold: Annotated[crd.Number, "Percent of the amount."]
    acknowledged: Annotated[Flag, "Somebody has seen it."]


Moneys: TypeAlias = Mapping[str, Money]


class BreakdownStatus(msgspec.Struct, frozen=True, rename="camel"):
    by_namespace: Annotated[Moneys, "What each namespace cost."] = {}
    by_label: Annotated[Moneys, "The same by the labels of the scope, or by team."] = {}
    by_instance_type: Annotated[Moneys, "The same by type of node."] = {}
    spot_vs_on_demand: Annotated[Moneys, "The same by how its nodes are paid."] = {}


class PeriodStatus(msgspec.Struct, frozen=True, rename="camel"):
    start: Annotated[Moment, "When the period began."]
    end: Annotated[Moment, "When it ends."]
    namespaces: Annotated[
        tuple[Text, ...], {"maxItems": MOST_NAMESPACES}, "That the selector meant in it; those deleted since count."
    ] = ()


class OverrideStatus(msgspec.Struct, frozen=True, rename="camel"):
    until: Annotated[Moment, "Until when it holds at most."]
    by: Annotated[Text, "Whose it is."]
    reason: Annotated[Text, "Why."]
    asked: Annotated[Text, "Until when it was asked for."]
    since: Annotated[Moment, "Since when it is known."]
    cost: Annotated[Money | None, "What was spent under it."] = None


class BudgetCondition(crd.PolicyCondition, frozen=True, rename="camel"):
    type: Annotated[str, one_of("Ready", "Complete", "Enforcing"), "What is said."]


Fired = Annotated[tuple[FiredStatus, ...], {"maxItems": MOST_ALERTS}]


class CostBudgetStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What is known of the period that runs. What is not known is absent."""

    observed_generation: Annotated[crd.Count | None, "Generation of the spec that was read."] = None
    current_spend: Annotated[Money | None, "What was spent in the period, as far as it has a price."] = None
    currency: Annotated[Text | None, "Of all amounts here."] = None
    projected_monthly_spend: Annotated[Money | None, "What will have been spent when the period ends."] = None
    percentage_used: Annotated[crd.Number | None, "Of the amount."] = None
    budget_status: Annotated[Annotated[str, one_of("ok", "warning", "exceeded")] | None, "From 80 and 100 percent."] = (
        None
    )
    days_remaining: Annotated[crd.Number | None, "Until the period ends."] = None
    alerts_fired: Annotated[Fired, "In this period."] = ()
    enforcement_active: Annotated[Flag | None, "New GPU pods of the scope are restricted."] = None
    exceeded_since: Annotated[Moment | None, "Since when the amount is spent."] = None
    last_updated: Annotated[Moment | None, "When this was last known."] = None
    breakdown: Annotated[BreakdownStatus | None, "Where it went."] = None
    period: Annotated[PeriodStatus | None, "The period that runs."] = None
    pace: Annotated[crd.Number | None, "Spent, by what would be by now if it were spent evenly."] = None
    unpriced_gpu_hours: Annotated[crd.Number | None, "Held without a known price: in no amount here."] = msgspec.field(
        default=None, name="unpricedGPUHours"
    )
    override: Annotated[OverrideStatus | None, "Somebody lets it be exceeded for a while."] = None
    conditions: Annotated[tuple[BudgetCondition, ...], crd.keyed("type"), "Ready, Complete, Enforcing."] = ()


_AMOUNT = ".spec['budget.amount','monthlyLimit']"  # a column has one path: whichever of the two is there


def define() -> dict[str, Any]:
    """The CustomResourceDefinition to install."""
    return crd.define(
        names.BUDGET_KIND, names.BUDGET_PLURAL, "cb", "How much GPUs may cost, whom to tell and what happens then.",
        version=names.POLICY_VERSION, spec=CostBudgetSpec, status=CostBudgetStatus,
        columns=(
            ("Amount", "number", _AMOUNT), ("Spend", "string", ".status.currentSpend"),
            ("Used%", "number", ".status.percentageUsed"), ("Status", "string", ".status.budgetStatus"),
            ("Enforcing", "boolean", ".status.enforcementActive"),
            ("Ready", "string", '.status.conditions[?(@.type=="Ready")].reason'),
            ("Age", "date", ".metadata.creationTimestamp"),
        ),
    )


# ---- from what is written to what is meant ---------------------------------------------------------------------------


def parse(obj: Mapping[str, Any]) -> budget.CostBudget:
    """Never raises. What is wrong is said in `.invalid`, one sentence per field."""
    written = crd.read(CostBudgetSpec, obj)
    spec, metadata = written.spec, _mapping(obj.get("metadata"))
    faults = (*written.faults, *_channel_faults(spec.alerts))
    limit = scope_crd.as_decimal(spec.budget.amount if spec.budget.amount is not None else spec.monthly_limit)
    is_clear = not any(_is_basic(fault.path) for fault in faults)
    is_monthly = spec.monthly_limit is not None
    return budget.CostBudget(
        name=written.name, uid=written.uid, generation=written.generation,
        scope=scope_crd.make(spec.scope or scope_crd.BudgetScopeSpec()), amount=limit if is_clear else None,
        period=_make_period(spec, "month" if is_monthly else spec.budget.period, metadata),
        currency=spec.budget.currency or "", alerts=tuple(map(_make_alert, spec.alerts)),
        enforcement=_make_enforcement(spec.enforcement), enabled=spec.enabled, invalid=tuple(map(str, faults)),
        acknowledged=_read_acks(metadata), wish=_read_wish(metadata), standing=_read_standing(obj.get("status")),
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _is_basic(path: str) -> bool:
    """Is it about what is compared with what?"""
    return path == "spec" or path.startswith(("spec.scope", "spec.budget", "spec.monthlyLimit", "spec.startDate",
                                              "spec.enabled"))


def _channel_faults(alerts: tuple[AlertSpec, ...]) -> Iterator[crd.FieldFault]:
    """What a channel is told that it does not know, or is not told that it cannot do without."""
    for index, alert in enumerate(alerts):
        for number, channel in enumerate(alert.channels):
            known, given = SPELLINGS[channel.type], {*channel.config, *channel.config_secret_refs}
            path = f"spec.alerts[{index}].channels[{number}]"
            if odd := sorted(given - known.keys()):
                yield crd.FieldFault(path, f"{channel.type} knows no {odd[0]}; it knows {', '.join(known)}")
            need = NEEDED[channel.type]
            if known[need] not in {known[key] for key in given & known.keys()}:
                yield crd.FieldFault(path, f"{channel.type} needs {need}")


def _make_period(spec: CostBudgetSpec, text: str, metadata: Mapping[str, Any]) -> budget.BudgetPeriod:
    made = units.read_instant(metadata.get("creationTimestamp")) or 0.0
    start = units.read_instant(spec.start_date)
    if start is None:
        start = made - made % DAY
    length = int(text[:-1]) * _UNITS[text[-1]] if text[:1].isdigit() else None
    word = budget.PeriodWord.month if length else budget.PeriodWord(text)
    return budget.BudgetPeriod(length=length, word=word, start=start, zone=spec.budget.time_zone)


def _make_alert(alert: AlertSpec) -> budget.AlertRule:
    counts: dict[str, int] = {}
    made = []
    for channel in alert.channels:
        counts[channel.type] = number = counts.get(channel.type, 0) + 1
        made.append(_make_channel(f"{channel.type}-{number}", channel))
    return budget.AlertRule(
        name=called(alert), threshold=_threshold(alert), basis=budget.AlertBasis(alert.basis),
        severity=budget.AlertSeverity(alert.severity), channels=tuple(made),
    )


def _make_channel(name: str, channel: AlertChannelSpec) -> idle.Channel:
    """What should have been a reference is at least never shown; a reference wins."""
    spelled = SPELLINGS[channel.type]
    plain = {spelled.get(key, key): text if key in _SHOWN else Secret(text) for key, text in channel.config.items()}
    secret = {spelled.get(key, key): idle.SecretKey(ref.name, ref.key)
              for key, ref in channel.config_secret_refs.items()}
    return idle.Channel(name, idle.ChannelType(channel.type), tuple({**plain, **secret}.items()))


def _make_enforcement(spec: EnforcementSpec) -> budget.EnforcementRule:
    old, throttle = spec.grace_period_minutes, spec.throttle_config
    grace = units.parse_duration(spec.grace_period or (f"{old}m" if old is not None else "1h"))
    return budget.EnforcementRule(
        mode=budget.EnforcementMode(spec.mode or spec.action or "alert"), grace=grace,
        throttle=budget.ThrottleRule(
            max_spot_instances=throttle.max_spot_instances, max_gpus=throttle.max_gpus,
            block_on_demand=throttle.block_on_demand, block_spot=throttle.block_spot_creation,
            prefer_on_demand=throttle.prefer_on_demand,
        ),
    )


def _annotation(metadata: Mapping[str, Any], key: str) -> str:
    found = _mapping(metadata.get("annotations")).get(key)
    return found if isinstance(found, str) else ""


def _read_acks(metadata: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(part.strip() for part in _annotation(metadata, names.ALERT_ACK).split(",") if part.strip())


def _read_wish(metadata: Mapping[str, Any]) -> budget.OverrideWish | None:
    """A time that cannot be read asks for nothing."""
    asked = _annotation(metadata, names.OVERRIDE_UNTIL)
    until = units.read_instant(asked)
    if until is None:
        return None
    by, reason = (_annotation(metadata, key)[:256] for key in (names.OVERRIDE_BY, names.OVERRIDE_REASON))
    return budget.OverrideWish(asked[:64], until, by, reason)


def _read_standing(value: Any) -> budget.BudgetStanding:
    """Of our own last report; what cannot be read was not said."""
    status = _mapping(value)
    period, override = _mapping(status.get("period")), _mapping(status.get("override"))
    listed = period.get("namespaces")
    return budget.BudgetStanding(
        last_updated=_instant(status.get("lastUpdated")), period_start=_instant(period.get("start")),
        namespaces=tuple(filter(None, map(str, listed))) if isinstance(listed, list) else (),
        exceeded_since=_instant(status.get("exceededSince")), is_enforced=status.get("enforcementActive") is True,
        spend=str(status.get("currentSpend") or ""), currency=str(status.get("currency") or ""),
        override=_read_override(override), status=status,
    )


def _read_override(said: Mapping[str, Any]) -> budget.OverrideSeen | None:
    since, until, asked = _instant(said.get("since")), _instant(said.get("until")), said.get("asked")
    if since is None or until is None or not isinstance(asked, str):
        return None
    return budget.OverrideSeen(asked, since, until)


def _instant(value: Any) -> Instant | None:
    return units.read_instant(value) if isinstance(value, str) else None
