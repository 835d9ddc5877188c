"""IdlePolicy as people write it: every field, its default, and what may stand in it.

The API server's schema, the reading of objects and the table in docs/policies.md are all made from, or checked against, these lines
(model/policy_crd.py), so none of them can drift. A field is `Annotated[type, form, description]`; a list also has its bounds.
Values stay as they are written (`30m`, `"0.8"`): what they mean is made by policy_crd.
Pure, but for one thing: a time zone is looked up in the zone database of the machine.
"""

import re
import zoneinfo
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec

from fallow.model import patterns, units, usage
from fallow.model.units import Seconds

HIGHEST_PRIORITY = 1_000_000  # that can be written; a policy whose priority cannot be read stands above
MOST_NEXT_ACTIONS = 20
MOST_KEYS = 64
_LONGEST_TEXT = 4096
_LONGEST: Seconds = 366 * units.DAY  # beyond it somebody mistyped, and no metrics reach back that far
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


# ---- what may stand in a field: a schema for the API server, and a check that says it in our own sentence ---------------------


class Form(msgspec.Struct, frozen=True, eq=False):
    """How one value is written. `check` raises ValueError with the rest of a sentence that begins with the field."""

    schema: Mapping[str, Any]
    check: Callable[[Any], object]


def _text(pattern: str, most: int, such_as: str, check: Callable[[str], object] = str) -> Form:
    def check_text(value: Any) -> None:
        if not isinstance(value, str) or len(value) > most or not re.fullmatch(pattern, value):
            raise ValueError(f"{_show(value)} is not {such_as}")
        check(value)

    return Form({"type": "string", "pattern": f"^{pattern}$", "maxLength": most}, check_text)


def _duration(least: str) -> Form:
    def check_length(text: str) -> None:
        if not units.parse_duration(least) <= units.parse_duration(text) <= _LONGEST:
            raise ValueError(f"{text!r} is not between {least} and {units.humane(_LONGEST)}")

    part = r"([0-9]+(\.[0-9]+)?|\.[0-9]+)(ns|us|µs|ms|s|m|h|d)"
    return _text(rf"(0|({part})+)", 32, "a duration such as 90s, 30m, 1h30m or 7d", check_length)


def _ratio(above_zero: bool) -> Form:
    def check_ratio(text: str) -> None:
        if units.parse_ratio(text) == 0 and above_zero:
            raise ValueError(f"{text!r} is not above 0")

    return _text(r"(0(\.[0-9]+)?|1(\.0+)?|\.[0-9]+)", 16, 'a ratio between 0 and 1 in quotes, such as "0.8"', check_ratio)


def _integer(least: int, most: int) -> Form:
    def check_integer(value: Any) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise ValueError(f"{_show(value)} is not a whole number from {least} to {most}")

    return Form({"type": "integer", "minimum": least, "maximum": most}, check_integer)


def _one_of(*words: str) -> Form:
    def check_word(value: Any) -> None:
        if value not in words:
            # YAML reads a bare `off` as false, and people then wonder which false is meant.
            hint = "; write 'off' in quotes" if value is False and "off" in words else ""
            raise ValueError(f"{_show(value)} is not one of {', '.join(words)}{hint}")

    return Form({"type": "string", "enum": list(words)}, check_word)


def _check_flag(value: Any) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{_show(value)} is not true or false")


def _check_string(value: Any) -> None:
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT:  # may hold a secret: not shown
        raise ValueError(f"is not a string of at most {_LONGEST_TEXT} characters")


def _check_zone(text: str) -> None:
    try:
        zoneinfo.ZoneInfo(text)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):  # OSError: `America` is a folder
        raise ValueError(f"{text!r} is not a known IANA time zone such as Europe/Berlin") from None


def compile_regex(text: str) -> patterns.Pattern:
    try:
        return patterns.compile_pattern(text)
    except ValueError as problem:
        raise ValueError(f"{_show(text)} is not a regular expression (RE2): {problem}") from None


def _check_regex(value: Any) -> None:
    if not isinstance(value, str) or not 1 <= len(value) <= 512:
        raise ValueError(f"{_show(value)} is not a regular expression of 1 to 512 characters")
    compile_regex(value)


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


Flag = Annotated[bool, Form({"type": "boolean"}, _check_flag)]
Text = Annotated[str, Form({"type": "string", "maxLength": _LONGEST_TEXT}, _check_string)]
Duration = Annotated[str, _duration("0s")]
Timeout = Annotated[str, _duration("1s")]
Window = Annotated[str, _duration("1m")]
Ratio = Annotated[str, _ratio(above_zero=False)]
Share = Annotated[str, _ratio(above_zero=True)]
Regex = Annotated[str, Form({"type": "string", "minLength": 1, "maxLength": 512}, _check_regex)]
KindName = Annotated[str, _text(r"[A-Z][A-Za-z0-9]*(\.[a-z0-9][-a-z0-9.]*)?", 253, "a kind such as Deployment or Rollout.argoproj.io")]
Clock = Annotated[str, _text(r"([01][0-9]|2[0-3]):[0-5][0-9]", 5, "a time of day such as '08:30', in quotes")]
ClockOrMidnight = Annotated[str, _text(r"(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)", 5, "a time of day such as '17:00' or '24:00', in quotes")]
Zone = Annotated[str, _text(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*", 64, "an IANA time zone such as Europe/Berlin", _check_zone)]
LabelKey = Annotated[str, _text(r"([a-z0-9][-a-z0-9.]*/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", 317, "a label key")]
LabelValue = Annotated[str, _text(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?", 63, "a label value")]
SecondarySignal = Annotated[str, _one_of(*(signal.label for signal in usage.OPTIONAL))]
WorkloadClass = Annotated[str, _one_of("training", "inference", "notebook", "batch")]
Day = Annotated[str, _one_of(*DAYS)]
Name = Annotated[str, _text(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", 63, "a name of lower case letters, digits and dashes")]
Count = Annotated[int, Form({"type": "integer", "format": "int64"}, _integer(0, 2**53).check)]
Moment = Annotated[str, Form({"type": "string", "format": "date-time"}, units.parse_instant)]


# ---- the fields ---------------------------------------------------------------------------------------------------------------


class Expression(msgspec.Struct, frozen=True):
    key: Annotated[LabelKey, "Label key."]
    operator: Annotated[str, _one_of("In", "NotIn", "Exists", "DoesNotExist"), "How the label is compared with the values."]
    values: Annotated[tuple[LabelValue, ...], {"maxItems": 64}, "Values for In and NotIn."] = ()


class LabelSelector(msgspec.Struct, frozen=True, rename="camel"):
    match_labels: Annotated[Mapping[str, LabelValue], "Labels that must be there, with these values."] = {}
    match_expressions: Annotated[tuple[Expression, ...], {"maxItems": 32}, "Conditions that must all hold."] = ()


class Windows(msgspec.Struct, frozen=True, rename="camel"):
    gone_idle: Annotated[Window, "Silence after which a GPU that was once used is idle."] = "30m"
    never_used: Annotated[Window | None, "The same for a GPU never used since its container started; not given: as goneIdle."] = None
    grace: Annotated[Duration, "Added to the window before a young container is judged at all."] = "5m"


class Thresholds(msgspec.Struct, frozen=True, rename="camel"):
    activity: Annotated[Ratio, "Utilisation from which a sample counts as activity."] = "0.01"
    coverage: Annotated[Share, "Share of the window that must have been measured."] = "0.8"
    max_sample_age: Annotated[Timeout, "The newest sample may be this old."] = "3m"
    idle_gpu_fraction: Annotated[Share, "Share of a pod's GPUs that must be idle for the pod to be idle."] = "1"
    power_watts: Annotated[int | None, _integer(1, 5000), "Power draw that counts as activity; not looked at when not given."] = None
    power_floor: Annotated[str, _one_of("off", "auto"), "auto: drawing more than its own lowest power plus 15 W is activity."] = "off"


class Signals(msgspec.Struct, frozen=True):
    disable: Annotated[tuple[SecondarySignal, ...], {"maxItems": 16}, "Secondary signals that do not count as activity."] = ()


class SecretRef(msgspec.Struct, frozen=True):
    name: Annotated[Name, "Secret in the controller's own namespace."]
    key: Annotated[Text, "Key in that Secret."]


class Channel(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    name: Annotated[Name, "Name of the channel, unique in the policy."]
    type: Annotated[str, _one_of("event", "slack", "email", "pagerduty", "webhook"), "How the notice is sent."]
    config: Annotated[Mapping[str, Text], "Settings of the channel that are no secret."] = {}
    config_secret_refs: Annotated[Mapping[str, SecretRef], "Settings of the channel that are read from Secrets."] = {}


class Notice(msgspec.Struct, frozen=True, rename="camel"):
    required: Annotated[Flag, "Never pause without a delivered notice."] = True
    grace: Annotated[Duration, "Time between the delivered notice and the pause."] = "5m"
    require_all: Annotated[Flag, "Every channel must confirm; otherwise one is enough."] = False
    channels: Annotated[
        tuple[Channel, ...], {"maxItems": 8, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}, "Where notices go."
    ] = (Channel(name="event", type="event"),)


class Consent(msgspec.Struct, frozen=True, rename="camel"):
    max_ack: Annotated[Duration, "An acknowledgement holds no longer than this."] = "168h"
    buttons: Annotated[tuple[Annotated[int, _integer(1, 168)], ...], {"maxItems": 5}, "Hours on the buttons of a notice."] = (4, 8, 24)
    allow_opt_out: Annotated[Flag, "Heed opt-outs on workloads and pods; those on the namespace always count."] = True
    immunity: Annotated[Duration, "A resumed workload is left alone for this long."] = "1h"
    slack_users: Annotated[tuple[Text, ...], {"maxItems": 256}, "Slack users who may press the buttons; none: anyone in the channel."] = ()
    slack_groups: Annotated[tuple[Text, ...], {"maxItems": 64}, "Slack groups whose members may press the buttons."] = ()


class Hook(msgspec.Struct, frozen=True, rename="camel"):
    timeout: Annotated[Timeout, "How long a pod's pre-pause hook may take."] = "60s"
    on_failure: Annotated[str, _one_of("abort", "continue"), "abort: no pause in this cycle when the hook fails."] = "abort"


class Action(msgspec.Struct, frozen=True, rename="camel"):
    type: Annotated[str, _one_of("report", "notify", "pause"), "The most that may be done; pause needs --run-mode=scale-down."] = "report"
    pressure: Annotated[str, _one_of("off", "only"), "only: pause only while somebody waits for such a GPU."] = "off"
    gitops: Annotated[str, _one_of("act", "report"), "report: never pause what Argo CD, Flux or Helm manage."] = "act"
    kserve_method: Annotated[str, _one_of("auto", "stop", "min-replicas"), "How an InferenceService is paused."] = "auto"
    respect_pdb: Annotated[Flag, "Never pause what a PodDisruptionBudget protects."] = msgspec.field(default=False, name="respectPDB")
    allow_knative_rollout: Annotated[Flag, "Pause a Knative Service by a new revision that may scale to 0."] = False
    look_past: Annotated[tuple[KindName, ...], {"maxItems": 32}, "Kinds of owner below which workloads may be paused all the same."] = ()
    hook: Annotated[Hook, "Pre-pause hooks of pods."] = Hook()


class Limits(msgspec.Struct, frozen=True, rename="camel"):
    max_actions_per_cycle: Annotated[int | None, _integer(1, 10_000), "Pauses in one cycle, inside the global cap."] = None
    max_percent_per_hour: Annotated[int | None, _integer(1, 100), "Percent of GPUs paused in an hour, inside the global cap."] = None


class Slot(msgspec.Struct, frozen=True, rename="camel"):
    days: Annotated[tuple[Day, ...], {"minItems": 1, "maxItems": 7}, "Days on which the slot begins."] = DAYS
    start: Annotated[Clock, "When it begins."] = "00:00"
    end: Annotated[ClockOrMidnight, "When it ends; before start means on the next day."] = "24:00"
    time_zone: Annotated[Zone, "IANA time zone of start and end."] = "UTC"


class Schedule(msgspec.Struct, frozen=True):
    active: Annotated[tuple[Slot, ...], {"maxItems": 32}, "Notices and pauses only in these slots; none: always."] = ()
    freeze: Annotated[tuple[Slot, ...], {"maxItems": 32}, "No notices and pauses in these slots."] = ()


class Regret(msgspec.Struct, frozen=True, rename="camel"):
    auto_widen: Annotated[Flag, "Lengthen goneIdle when too many pauses are undone at once."] = False
    threshold: Annotated[Ratio, "Share of undone pauses that is too many."] = "0.2"


class Spec(msgspec.Struct, frozen=True, rename="camel"):
    """Which workloads, how they are judged, whom to tell, what may be done and how fast."""

    priority: Annotated[int, _integer(-HIGHEST_PRIORITY, HIGHEST_PRIORITY), "The highest that matches decides; ties by name."] = 0
    namespace_selector: Annotated[LabelSelector, "Labels of the namespace; empty: all."] = LabelSelector()
    workload_selector: Annotated[LabelSelector, "Labels of the workload; empty: all."] = LabelSelector()
    pod_selector: Annotated[LabelSelector, "Labels of its pods; empty: all."] = LabelSelector()
    namespaces: Annotated[tuple[Regex, ...], {"maxItems": 64}, "Regular expressions (RE2) for the whole namespace name; none: all."] = ()
    gpu_models: Annotated[tuple[Regex, ...], {"maxItems": 64}, "Regular expressions (RE2) for the whole GPU model name; none: all."] = ()
    kinds: Annotated[tuple[KindName, ...], {"maxItems": 64}, "Kind or Kind.group; none: the letters of --enabled-resources."] = ()
    classes: Annotated[tuple[WorkloadClass, ...], {"maxItems": 4}, "Classes of workload; none: all."] = ()
    windows: Annotated[Windows, "How long silence must last."] = Windows()
    thresholds: Annotated[Thresholds, "What counts as silence, and how well it must be measured."] = Thresholds()
    signals: Annotated[Signals, "Which signals count."] = Signals()
    notice: Annotated[Notice, "Telling the owner first."] = Notice()
    consent: Annotated[Consent, "How the owner may say no."] = Consent()
    action: Annotated[Action, "What may be done."] = Action()
    limits: Annotated[Limits, "How much of it."] = Limits()
    schedule: Annotated[Schedule, "When."] = Schedule()
    regret: Annotated[Regret, "Learning from pauses that were undone."] = Regret()


class NextAction(msgspec.Struct, frozen=True):
    kind: Annotated[Text, "Kind of the workload."]
    namespace: Annotated[Text, "Its namespace."]
    name: Annotated[Text, "Its name."]
    at: Annotated[Moment, "When the notice or pause is due."]


class Condition(msgspec.Struct, frozen=True, rename="camel"):
    type: Annotated[str, _one_of("Ready", "DataHealthy", "Frozen"), "What is said."]
    status: Annotated[str, _one_of("True", "False", "Unknown"), "Whether it holds."]
    reason: Annotated[Text, "Why, in one word."]
    message: Annotated[Text, "Why, in a sentence."]
    last_transition_time: Annotated[Moment, "Since when."]
    observed_generation: Annotated[Count, "For which generation of the policy."]


class Status(msgspec.Struct, frozen=True, rename="camel"):
    """What became of the policy in the last cycle. A number that is not known is absent."""

    observed_generation: Annotated[Count | None, "Generation of the spec that was read."] = None
    matched_workloads: Annotated[Count | None, "Workloads that this policy decides about."] = None
    idle_workloads: Annotated[Count | None, "Of these, idle now."] = None
    idle_gpus: Annotated[Count | None, "GPUs that these hold."] = msgspec.field(default=None, name="idleGPUs")
    paused_workloads: Annotated[Count | None, "Of these, paused now."] = None
    acknowledged_workloads: Annotated[Count | None, "Of these, idle and acknowledged."] = None
    pauses_7d: Annotated[Count | None, "Pauses in the last 7 days."] = msgspec.field(default=None, name="pauses7d")
    regrets_7d: Annotated[Count | None, "Of these, undone within 15 minutes."] = msgspec.field(default=None, name="regrets7d")
    effective_gone_idle: Annotated[Duration | None, "goneIdle as it is now, after widening."] = None
    saved_gpu_hours: Annotated[float | None, Form({"type": "number"}, float), "GPU-hours saved by pauses."] = msgspec.field(
        default=None, name="savedGPUHours"
    )
    last_evaluation_time: Annotated[Moment | None, "When the policy was last looked at."] = None
    next_actions: Annotated[tuple[NextAction, ...], {"maxItems": MOST_NEXT_ACTIONS}, "What comes next, soonest first."] = ()
    conditions: Annotated[
        tuple[Condition, ...],
        {"maxItems": 8, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        "Ready, DataHealthy, Frozen.",
    ] = ()


# ---- what must hold between fields: for the API server in CEL, for us in Python ------------------------------------------------


class Law(msgspec.Struct, frozen=True):
    cel: str
    message: str
    holds: Callable[[Any], bool]


LAWS: Mapping[type, Law] = {
    Expression: Law(
        "(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
        "In and NotIn need values, Exists and DoesNotExist take none",
        lambda expression: (expression.operator in ("In", "NotIn")) == bool(expression.values),
    ),
    Channel: Law(
        "self.type != 'event' || !(has(self.config) || has(self.configSecretRefs))",
        "a channel of type event has no settings",
        lambda channel: channel.type != "event" or not (channel.config or channel.config_secret_refs),
    ),
    Notice: Law(
        "!has(self.channels) || self.channels.all(one, self.channels.exists_one(other, other.name == one.name))",
        "two channels have the same name",
        lambda notice: len({channel.name for channel in notice.channels}) == len(notice.channels),
    ),
    Slot: Law(
        "self.start != self.end",
        "start and end are the same; a whole day is '00:00' to '24:00'",
        lambda slot: slot.start != slot.end,
    ),
}
