"""What became of a budget: what was spent, what was told to whom, what is restricted. The nouns of the budgets' story.

An AlertRecord is the memory of one alert in one period, as the table `budget_alerts` of the ledger keeps it (a row for
each channel: `rows`, `join`). A BudgetPlan is what one evaluation wants done.
Invariant: what was delivered is written down and is never sent again.
"""

from collections.abc import Iterable, Mapping
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final, TypeAlias

import msgspec

from fallow.model import cost
from fallow.model.cluster import Ref
from fallow.model.cost import BookedAlert, BudgetReading, Nano, Second
from fallow.model.policies.budget import AlertRule, ClaimWanted, CostBudget, EnforcementMode, ThrottleRule
from fallow.model.units import Instant


class AlertEvent(StrEnum):
    fired = "fired"
    resolved = "resolved"
    test = "test"


class AlertState(StrEnum):
    """`passed`: its threshold was passed when the budget was new, and a higher alert said so."""

    fired = "fired"
    passed = "passed"
    resolved = "resolved"


class SendState(StrEnum):
    pending = "pending"
    delivered = "delivered"
    given_up = "given_up"


class Sending(msgspec.Struct, frozen=True, kw_only=True):
    """One message on one channel. `since`: when it was first to be sent; `next_at`: not before."""

    channel: str
    event: AlertEvent
    state: SendState = SendState.pending
    since: Instant
    next_at: Instant = 0.0
    tries: int = 0
    because: str = ""


class AlertRecord(msgspec.Struct, frozen=True, kw_only=True):
    budget_uid: str
    period_start: Second
    alert: str
    state: AlertState
    fired_at: Instant
    resolved_at: Instant | None = None
    sendings: tuple[Sending, ...] = ()

    @property
    def key(self) -> "AlertKey":
        return self.budget_uid, self.period_start, self.alert

    def is_due(self, now: Instant) -> bool:
        return any(each.state is SendState.pending and each.next_at <= now for each in self.sendings)


AlertKey: TypeAlias = tuple[str, Second, str]
AlertMemory: TypeAlias = Mapping[AlertKey, AlertRecord]


_SENDINGS: Final = msgspec.json.Decoder(tuple[Sending, ...])


def rows(record: AlertRecord) -> tuple[BookedAlert, ...]:
    """`channel` "": it told nobody."""
    by_channel: dict[str, list[Sending]] = {}
    for each in record.sendings:
        by_channel.setdefault(each.channel, []).append(each)
    return tuple(
        BookedAlert(
            budget_uid=record.budget_uid, period_start=record.period_start, alert=record.alert, channel=channel,
            state=str(record.state), fired_at=int(record.fired_at), delivery=msgspec.json.encode(sent).decode(),
            resolved_at=None if record.resolved_at is None else int(record.resolved_at),
        )
        for channel, sent in (by_channel or {"": []}).items()
    )


def join(found: Iterable[BookedAlert]) -> dict[AlertKey, AlertRecord]:
    """The records of these rows; what cannot be read of one was never sent, but is not fired anew either."""
    made: dict[AlertKey, AlertRecord] = {}
    for row in found:
        key = row.budget_uid, row.period_start, row.alert
        before = made[key].sendings if key in made else ()
        made[key] = AlertRecord(
            budget_uid=row.budget_uid, period_start=row.period_start, alert=row.alert,
            state=AlertState(row.state), fired_at=float(row.fired_at or 0),
            resolved_at=None if row.resolved_at is None else float(row.resolved_at),
            sendings=(*before, *_read_sendings(row.delivery)),
        )
    return made


def _read_sendings(text: str) -> tuple[Sending, ...]:
    try:
        return _SENDINGS.decode(text)
    except msgspec.DecodeError:
        return ()


class BooksSeen(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger at one instant. `until`: written up to then; `began`: nothing before; None: it is empty."""

    currency: str
    until: Instant
    began: Instant | None
    missing: tuple[str, ...] = ()  # what of it is not complete, a phrase each


class PeriodBounds(msgspec.Struct, frozen=True):
    """[start, end), whole seconds."""

    start: Second
    end: Second


class SpendSeen(msgspec.Struct, frozen=True, kw_only=True):
    """What the ledger said of one budget's period until now. `breakdowns`: by title as the status has it. `hours`: the
    scope's cost in each full hour of the last 28 days, by when it began; hours without any are not in it. `recent`: its
    cost in the last 7 days of the period. `overridden`: its cost under the override that holds. `vouched`: what of the
    total no tenant made up; None: all of it."""

    total: Nano
    unpriced: int  # GPU-micro-seconds
    breakdowns: Mapping[str, Mapping[str, Nano]] = {}
    hours: Mapping[Second, Nano] = {}
    recent: Nano = 0
    overridden: Nano | None = None
    vouched: Nano | None = None


class SpendForecast(msgspec.Struct, frozen=True):
    """`projected` None: too early to tell."""

    projected: Decimal | None
    pace: Decimal | None


class BudgetLevel(StrEnum):
    ok = "ok"
    warning = "warning"
    exceeded = "exceeded"


class OverrideHeld(msgspec.Struct, frozen=True, kw_only=True):
    """As it is now: from when we know of it to when it ends at the latest."""

    asked: str
    since: Instant
    until: Instant
    by: str
    reason: str

    def holds(self, now: Instant) -> bool:
        return now < self.until


class WhyReady(StrEnum):
    """Why a budget is ready, or not."""

    Valid = "Valid"
    Disabled = "Disabled"
    NotBegun = "NotBegun"
    Invalid = "Invalid"
    InvalidScope = "InvalidScope"
    ScopeUnknown = "ScopeUnknown"
    NoNamespace = "NoNamespace"
    CurrencyMismatch = "CurrencyMismatch"
    SecretMissing = "SecretMissing"
    LedgerUnavailable = "LedgerUnavailable"


READY: Final = frozenset({WhyReady.Valid, WhyReady.Disabled, WhyReady.NotBegun})


class WhyEnforced(StrEnum):
    """Why a budget restricts, or does not."""

    Enforced = "Enforced"
    AlertOnly = "AlertOnly"
    WithinBudget = "WithinBudget"
    OnlyClaimed = "OnlyClaimed"
    GracePeriod = "GracePeriod"
    NotEnabled = "NotEnabled"
    Overridden = "Overridden"
    NotReady = "NotReady"
    LedgerStale = "LedgerStale"
    DataIncomplete = "DataIncomplete"


class BudgetState(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one budget now. None: it is not known."""

    budget: CostBudget
    ready: WhyReady
    ready_because: str
    currency: str = ""
    period: PeriodBounds | None = None
    namespaces: tuple[str, ...] = ()
    spend: SpendSeen | None = None
    percent: Decimal | None = None
    level: BudgetLevel | None = None
    forecast: SpendForecast = SpendForecast(None, None)
    gaps: tuple[str, ...] = ()  # what data or prices are missing
    exceeded_since: Instant | None = None
    enforced: WhyEnforced = WhyEnforced.NotReady
    enforced_because: str = ""
    override: OverrideHeld | None = None
    streaks: Mapping[str, int] = {}  # evaluations in a row in which a forecast alert would fire

    @property
    def is_enforced(self) -> bool:
        return self.enforced is WhyEnforced.Enforced

    @property
    def spent(self) -> Decimal | None:
        return None if self.spend is None else money(self.spend.total)


class Restrict(msgspec.Struct, frozen=True):
    """From now on this budget restricts new GPU pods of its scope. For the webhook by its status; for scaling, here."""

    budget: str
    uid: str
    mode: EnforcementMode
    throttle: ThrottleRule
    because: str


class Lift(msgspec.Struct, frozen=True):
    """It does so no longer: every gate of it goes."""

    budget: str
    uid: str
    because: str


class NewsKind(StrEnum):
    """What may become of a budget, and is told once."""

    exceeded = "exceeded"
    enforced = "enforced"
    lifted = "lifted"
    overridden = "overridden"


class BudgetNews(msgspec.Struct, frozen=True):
    """`episode`: the same for the same piece of news, whoever finds it."""

    kind: NewsKind
    episode: str


class BudgetPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`records`: those that are new or changed. `restricts`: all that hold, not only the new ones."""

    states: tuple[BudgetState, ...]
    records: tuple[AlertRecord, ...] = ()
    restricts: tuple[Restrict, ...] = ()
    begun: tuple[Restrict, ...] = ()
    lifts: tuple[Lift, ...] = ()
    news: Mapping[str, tuple[BudgetNews, ...]] = {}  # by uid


class GatedPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that waits behind our gate. `budgets`: names as they stand on it, which its maker may write as well as the
    webhook. `gpus`: at least so many; None: a claim that it names is not there, so that it cannot run. `is_counted`:
    they are not more. `gates`: all that it has, in their order."""

    ref: Ref
    created_at: Instant
    gpus: int | None
    budgets: tuple[str, ...]
    gates: tuple[str, ...]
    is_counted: bool = True
    labels: Mapping[str, str] = {}
    claims: tuple[ClaimWanted, ...] = ()
    affinity: Mapping[str, Any] | None = None


def money(nano: Nano) -> Decimal:
    return Decimal(nano) / cost.UNIT


_MOST: Final = 2**62  # what a column of the ledger takes


def read(state: BudgetState, now: Instant) -> BudgetReading | None:
    """How far it is used, for the table `budget_tracking`; None where that is not known."""
    of, amount = state.budget, state.budget.amount
    if state.spend is None or state.percent is None or amount is None:
        return None
    return BudgetReading(
        at=int(now), budget=of.name, namespace=",".join(state.namespaces), team=",".join(sorted(of.scope.teams)),
        limit=min(int(amount * cost.UNIT), _MOST), spend=state.spend.total,
        used_micro=min(int(state.percent * 10_000), _MOST),
        status=str(state.level or ""),
    )


def find_rule(state: BudgetState, alert: str) -> AlertRule | None:
    return next((rule for rule in state.budget.alerts if rule.name == alert), None)
