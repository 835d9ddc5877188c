"""What people asked for: which workloads are judged how, whom to tell, what may be done, and how fast.

A Rule is everything that holds for one workload, whether it came from flags or from an IdlePolicy; IdlePolicy adds whom
it is for. Reading IdlePolicy objects from the cluster, and the CRD itself: idle_crd.py. All of it is already valid
here.
"""

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Literal

import msgspec

from fallow import names
from fallow.model.patterns import Pattern
from fallow.model.secret import Secret
from fallow.model.selectors import Selector
from fallow.model.units import HOUR, MINUTE, Instant, Seconds


class ActionType(StrEnum):
    report = "report"
    notify = "notify"
    pause = "pause"


class ChannelType(StrEnum):
    """By which wire people are told."""

    event = "event"
    slack = "slack"
    email = "email"
    pagerduty = "pagerduty"
    webhook = "webhook"
    teams = "teams"


class SecretKey(msgspec.Struct, frozen=True):
    """A key of a Secret in our own namespace: it is read when it is needed, and nowhere kept."""

    name: str
    key: str


class Channel(msgspec.Struct, frozen=True):
    """Where a notice goes. A setting that nobody may see is there by reference; from a flag, as the Secret itself."""

    name: str
    type: ChannelType
    settings: tuple[tuple[str, str | SecretKey | Secret[str]], ...] = ()

    def find(self, key: str) -> str | SecretKey | Secret[str] | None:
        return dict(self.settings).get(key)

    def text(self, key: str, default: str = "") -> str:
        """A setting that is no secret."""
        found = self.find(key)
        return found if isinstance(found, str) else default


class Notice(msgspec.Struct, frozen=True):
    required: bool = False
    grace: Seconds = 5 * MINUTE
    require_all: bool = False
    channels: tuple[Channel, ...] = ()


USUAL_ACK: Final[Seconds] = 8 * HOUR  # how long an acknowledgement holds where nobody says


class Consent(msgspec.Struct, frozen=True):
    max_ack: Seconds = 168 * HOUR
    allow_opt_out: bool = True
    immunity: Seconds = HOUR
    buttons: tuple[int, ...] = (4, 8, 24)  # hours
    slack_users: frozenset[str] = frozenset()  # who may press; empty, like the groups: anyone in the channel
    slack_groups: frozenset[str] = frozenset()


class Hook(msgspec.Struct, frozen=True):
    timeout: Seconds = 60.0
    on_failure: Literal["abort", "continue"] = "abort"


class Action(msgspec.Struct, frozen=True, kw_only=True):
    type: ActionType = ActionType.report
    pressure: Literal["off", "only"] = "off"
    gitops: Literal["act", "report"] = "act"
    kserve_method: Literal["auto", "stop", "min-replicas"] = "auto"
    respect_pdb: bool = False
    allow_knative_rollout: bool = False
    look_past: frozenset[str] = frozenset()  # `Kind` or `Kind.group`
    hook: Hook = Hook()


class Slot(msgspec.Struct, frozen=True):
    """A recurring stretch of the week. `end` before `start` runs past midnight."""

    days: frozenset[int]  # Monday is 0
    start_minute: int
    end_minute: int
    time_zone: str


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that holds for one workload."""

    name: str = "flags"
    gone_idle: Seconds = 30 * MINUTE
    never_used: Seconds = 30 * MINUTE
    grace: Seconds = 5 * MINUTE
    activity: float = 0.01
    coverage: float = 0.8
    max_sample_age: Seconds = 180.0
    idle_gpu_fraction: float = 1.0
    power_watts: float | None = None
    power_floor: bool = False
    disabled_signals: frozenset[str] = frozenset()  # names of non-primary signals
    kinds: frozenset[str] | None = None  # `Kind` or `Kind.group`; None = by the letters of Scope
    notice: Notice = Notice()
    consent: Consent = Consent()
    action: Action = Action()
    max_actions_per_cycle: int | None = None
    max_percent_per_hour: float | None = None
    active_slots: tuple[Slot, ...] = ()  # empty = always
    freeze_slots: tuple[Slot, ...] = ()
    auto_widen: bool = False  # its window grows when too many pauses are undone at once
    regret_threshold: float = 0.2
    widened: float = 1.0  # by how much it has grown; the windows above are as they are now
    asked_windows: tuple[Seconds, Seconds] | None = None  # gone idle, never used: as asked for, where it has grown

    @property
    def windows(self) -> frozenset[Seconds]:
        return frozenset({self.gone_idle, self.never_used})


MOST_WIDENED: Final = 4.0


def widen(rule: Rule, by: float) -> Rule:
    """The rule with its window so many times as long, in whole minutes; that of what was never used grows with it
    where nobody made it another one."""
    if by <= 1.0:
        return rule
    gone = math.ceil(round(rule.gone_idle * min(by, MOST_WIDENED) / MINUTE, 6)) * MINUTE
    never = gone if rule.never_used == rule.gone_idle else rule.never_used
    asked = (rule.gone_idle, rule.never_used)
    return msgspec.structs.replace(rule, gone_idle=gone, never_used=never, widened=by, asked_windows=asked)


class IdlePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """A Rule and whom it is for. `invalid` lists what is wrong with it; its matches are then report-only."""

    name: str
    uid: str
    generation: int
    rule: Rule
    priority: int = 0
    namespace_selector: Selector = Selector()
    workload_selector: Selector = Selector()
    pod_selector: Selector = Selector()
    namespaces: tuple[Pattern, ...] = ()
    gpu_models: tuple[Pattern, ...] = ()
    classes: frozenset[str] = frozenset()
    invalid: tuple[str, ...] = ()
    effective_gone_idle: Seconds | None = None  # as its status said when it was read, for when memory is lost

    def reaches(self, namespace: str, labels: Mapping[str, str] | None) -> bool | None:
        """Is it for workloads of that namespace? None: that rests on its labels, and they are not known (None)."""
        if self.namespaces and not any(pattern.fullmatch(namespace) for pattern in self.namespaces):
            return False
        if self.namespace_selector == Selector():
            return True
        return None if labels is None else self.namespace_selector.matches(labels)


class NextAction(msgspec.Struct, frozen=True):
    kind: str
    namespace: str
    name: str
    at: Instant


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """What one cycle found for one policy. None = not known; it is then absent from the status, not 0."""

    matched_workloads: int
    idle_workloads: int | None
    idle_gpus: int | None
    paused_workloads: int
    acknowledged_workloads: int | None
    next_actions: tuple[NextAction, ...] = ()
    pauses_7d: int | None = None
    regrets_7d: int | None = None
    effective_gone_idle: Seconds | None = None


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of the cluster the flags allow us to touch at all."""

    letters: frozenset[str] = frozenset(names.DEFAULT_LETTERS)
    namespace: Pattern | None = None
    model: Pattern | None = None
    exclude_namespaces: Pattern | None = None
    exclude_pods: Pattern | None = None
    protected_namespaces: Pattern | None = None
    watch_namespaces: tuple[str, ...] = ()  # empty = all


class Brakes(msgspec.Struct, frozen=True, kw_only=True):
    """How fast we may go, whatever the rules say."""

    confirm_cycles: int = 2
    confirm_within: Seconds = float("inf")  # an older confirmation does not count
    baseline_cycles: int = 0  # before how many known cycles nothing is paused
    backs_off: bool = True  # what was tried in vain waits; else it only goes after the others
    max_actions_per_cycle: int = 10
    max_actions_per_namespace: int = 5
    max_percent_per_hour: float = 20.0
    freeze_jump: float = 30.0  # percentage points
    freeze_min_gpus: int = 8
    freeze_hold: Seconds = 1800.0


class Mandate(msgspec.Struct, frozen=True, kw_only=True):
    """All that people asked for by flags: the last rule, its reach, how fast, and whether anything is really done."""

    rule: Rule = Rule()
    scope: Scope = Scope()
    brakes: Brakes = Brakes()
    acting: bool = False  # run-mode scale-down
    use_policies: bool = True
    require_policy: bool = False
    compat_annotations: bool = True
