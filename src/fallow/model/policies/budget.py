"""What people may spend, and what happens when it is spent: a CostBudget, already valid; whom a CostAttribution is for.

A SpendScope says whose cost counts; `covers` says of one pod whether it is meant. Reading the objects, and the CRDs
themselves: budget_crd.py, attribution_crd.py. Money is Decimal, in the currency of the budget.
Who pays (budgets) is what the namespace says, where it says anything: an administrator wrote that. Who is shown
(attributions, reports) is what the pod says first. What only a tenant says never counts towards restricting others.
Invariant: what cannot be known about a pod makes `covers` None, and nobody is restricted by that.
"""

from collections.abc import Iterable, Mapping
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final

import msgspec

from fallow import names
from fallow.model import cost
from fallow.model.policies.idle import Channel
from fallow.model.seen import ABSENT, Input, Known, Register, Unseen
from fallow.model.selectors import Selector
from fallow.model.units import HOUR, Instant, Seconds, rfc3339

WARNING, FULL = Decimal(80), Decimal(100)  # percent
STALE_AFTER: Final[Seconds] = 900.0  # books or a status that is older says nothing about now


class ScopeType(StrEnum):
    cluster = "cluster"
    namespace = "namespace"
    team = "team"
    label = "label"
    experiment = "experiment"


class PodTraits(msgspec.Struct, frozen=True, kw_only=True):
    """What tells whose a pod is. `above`: labels of its topmost owner; absent: it has none."""

    namespace: str
    labels: Mapping[str, str]
    above: Input[Mapping[str, str]]
    around: Input[Mapping[str, str]]  # labels of its namespace


MOST_CLAIMS: Final = 16  # of one pod, that are looked at


class ClaimWanted(msgspec.Struct, frozen=True, rename="camel"):
    """One of `spec.resourceClaims`: a claim by its name, or a template of one."""

    resource_claim_name: str = ""
    resource_claim_template_name: str = ""


class SpendScope(msgspec.Struct, frozen=True, kw_only=True):
    """All that is given must fit; nothing given: everything."""

    type: ScopeType = ScopeType.cluster
    namespace_selector: Selector | None = None
    namespaces: tuple[str, ...] = ()
    teams: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    experiment: str = ""

    @property
    def is_whole(self) -> bool:
        """Everybody in the cluster is meant."""
        narrows = self.namespaces or self.teams or self.labels or self.experiment
        return self.type is ScopeType.cluster and self.namespace_selector is None and not narrows

    @property
    def may_be_claimed(self) -> bool:
        """By any tenant of any namespace that says nothing itself: no namespace is named, only labels are."""
        return bool(self.teams or self.labels or self.experiment) and not (self.namespaces or self.namespace_selector)

    def filters(self, *, payer: bool, vouched: bool = False) -> tuple[cost.CostFilter, ...]:
        """For the ledger, but for the selector: who is meant by that is known only now. `payer`: of a budget;
        `vouched`: without what only tenants say."""
        name, sure = cost.DimensionName, vouched and self.may_be_claimed
        made = [(cost.Dimension(name.namespace), self.namespaces)] if self.namespaces else []
        made += [(cost.Dimension(name.team, "", payer, sure), self.teams)] if self.teams else []
        made += [(cost.Dimension(name.experiment, "", payer, sure), (self.experiment,))] if self.experiment else []
        made += [(cost.Dimension(name.label, key, payer, sure), (value,)) for key, value in self.labels]
        return tuple(cost.CostFilter(on, frozenset(values)) for on, values in made)

    def covers(self, pod: PodTraits, *, payer: bool, vouched: bool = False) -> bool | None:
        """Is it meant? None: that rests on what is not known. One part that does not fit is enough for no. `payer`: of
        a budget; `vouched`: not by what only a tenant says."""
        place = self._covers_place(pod)
        if place is False:
            return False
        find = find_vouched if vouched and self.may_be_claimed else find_payer if payer else find_label
        found: list[bool | None] = [place]
        if self.teams:
            found.append(_is_one_of(find(pod, names.TEAM_LABEL), self.teams))
        if self.experiment:
            found.append(_is_one_of(find(pod, names.EXPERIMENT_LABEL), (self.experiment,)))
        found += [_is_one_of(find(pod, key), (value,)) for key, value in self.labels]
        if False in found:
            return False
        return None if None in found else True

    def _covers_place(self, pod: PodTraits) -> bool | None:
        if self.namespaces and pod.namespace not in self.namespaces:
            return False
        if self.namespace_selector is None:
            return True
        match pod.around:
            case Known(labels):
                return self.namespace_selector.matches(labels)
            case Unseen():
                return None
        return self.namespace_selector.matches({})


def find_label(pod: PodTraits, key: str) -> str | None:
    """As the books find it: on the pod, its topmost owner, its namespace; "": nowhere. None: it may stand where we
    cannot look."""
    return _first((Known(pod.labels), pod.above, pod.around), key)


def find_payer(pod: PodTraits, key: str) -> str | None:
    """As budgets find it: on its namespace, which tenants do not write; then as the books do."""
    return _first((pod.around, Known(pod.labels), pod.above), key)


def find_vouched(pod: PodTraits, key: str) -> str | None:
    """As what may restrict others counts it: on its namespace alone."""
    return _first((pod.around,), key)


def _first(places: Iterable[Input[Mapping[str, str]]], key: str) -> str | None:
    for place in places:
        match place:
            case Known(labels) if labels.get(key):
                return labels[key]
            case Unseen():
                return None
    return ""


def _is_one_of(value: str | None, wanted: Iterable[str]) -> bool | None:
    return None if value is None else value in wanted


def find_live(scope: SpendScope, namespaces: Register[Any]) -> Input[tuple[str, ...]]:
    """The namespaces that its selector means now; `namespaces`: anything with labels. Absent: it has no selector."""
    if scope.namespace_selector is None:
        return ABSENT
    if isinstance(namespaces.rest, Unseen):
        return namespaces.rest
    meant = (name for name, each in namespaces.known.items() if scope.namespace_selector.matches(each.labels))
    return Known(tuple(sorted(meant)))


class PeriodWord(StrEnum):
    month = "month"
    week = "week"
    quarter = "quarter"


class BudgetPeriod(msgspec.Struct, frozen=True, kw_only=True):
    """`length`: windows in a row from `start`; else a word, of the calendar of `zone`. None begins before `start` where
    that lies ahead."""

    length: int | None = None  # seconds
    word: PeriodWord = PeriodWord.month
    start: Instant = 0.0
    zone: str = "UTC"


class AlertBasis(StrEnum):
    actual = "actual"
    forecast = "forecast"


class AlertSeverity(StrEnum):
    info = "info"
    warning = "warning"
    critical = "critical"


class AlertRule(msgspec.Struct, frozen=True, kw_only=True):
    """`threshold`: percent of the amount. A channel's name is its type and which one of that type it is."""

    name: str
    threshold: Decimal
    basis: AlertBasis = AlertBasis.actual
    severity: AlertSeverity = AlertSeverity.warning
    channels: tuple[Channel, ...] = ()


class EnforcementMode(StrEnum):
    alert = "alert"
    throttle = "throttle"
    block = "block"


class ThrottleRule(msgspec.Struct, frozen=True, kw_only=True):
    """None: no cap."""

    max_spot_instances: int | None = None
    max_gpus: int | None = None
    block_on_demand: bool = False
    block_spot: bool = False
    prefer_on_demand: bool = False

    @property
    def has_cap(self) -> bool:
        return self.max_gpus is not None or self.max_spot_instances is not None


class EnforcementRule(msgspec.Struct, frozen=True, kw_only=True):
    mode: EnforcementMode = EnforcementMode.alert
    grace: Seconds = HOUR
    throttle: ThrottleRule = ThrottleRule()


class OverrideWish(msgspec.Struct, frozen=True):
    """As its annotations say. `asked`: the time, as it is written."""

    asked: str
    until: Instant
    by: str
    reason: str


class OverrideSeen(msgspec.Struct, frozen=True):
    """As our last status says: since when we know of it, and until when it holds at most."""

    asked: str
    since: Instant
    until: Instant


class BudgetStanding(msgspec.Struct, frozen=True, kw_only=True):
    """What our own last status says of it, for when the process forgets, and for the webhook. None: nothing yet."""

    last_updated: Instant | None = None
    period_start: Instant | None = None
    namespaces: tuple[str, ...] = ()  # that its selector meant in that period
    exceeded_since: Instant | None = None
    is_enforced: bool = False
    spend: str = ""
    currency: str = ""
    override: OverrideSeen | None = None
    status: Mapping[str, Any] = {}  # all of it


class CostBudget(msgspec.Struct, frozen=True, kw_only=True):
    """`invalid`: what is wrong with it, a sentence each; it then restricts nobody. `amount` None: how much, for whom or
    since when cannot be read, so that there is nothing to compare with."""

    name: str
    uid: str
    generation: int
    scope: SpendScope
    amount: Decimal | None
    period: BudgetPeriod
    currency: str = ""  # "": that of the books
    alerts: tuple[AlertRule, ...] = ()
    enforcement: EnforcementRule = EnforcementRule()
    enabled: bool = True
    invalid: tuple[str, ...] = ()
    acknowledged: frozenset[str] = frozenset()  # alerts that somebody has seen: NAME, or NAME@START of one period
    wish: OverrideWish | None = None
    standing: BudgetStanding = BudgetStanding()

    def has_seen(self, alert: str, period_start: Instant) -> bool:
        """Has somebody acknowledged it, in every period or in that one?"""
        return not self.acknowledged.isdisjoint((alert, name_seen(alert, period_start)))


def name_seen(alert: str, period_start: Instant) -> str:
    """As it is acknowledged of one period: what somebody has seen then says nothing of the next one."""
    return f"{alert}@{rfc3339(period_start)}"


class CostAttribution(msgspec.Struct, frozen=True, kw_only=True):
    """Whose cost is shown, grouped by what, of how long. Invalid ones show nothing but what is wrong with them."""

    name: str
    uid: str
    generation: int
    scope: SpendScope
    track_by: tuple[cost.Dimension, ...]
    period: int  # seconds
    invalid: tuple[str, ...] = ()
    status: Mapping[str, Any] = {}


def find_label_keys(attributions: Iterable[CostAttribution], budgets: Iterable[CostBudget]) -> frozenset[str]:
    """The labels by which somebody groups or chooses: the books must have them."""
    shown = tuple(attributions)
    tracked = (each.label for one in shown for each in one.track_by if each.label)
    scopes = [*(each.scope for each in shown), *(each.scope for each in budgets)]
    return frozenset((*tracked, *(key for each in scopes for key, _ in each.labels)))
