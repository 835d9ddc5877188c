"""IdlePolicy as people write it: every field, its default and what may stand in it; what it means; what is answered.

In: an object as the API server gives it. Out: the policy, with a sentence in `invalid` for each thing that is wrong
with it; the definition for the API server; the status. The schema and the table in
docs/operators/policies.md are made from, or checked against, the fields below (crd.py reads and describes them), so
none of them can drift.
Invariant: `parse` never raises, and what cannot be read never makes a policy do more: a selector that cannot be read
selects all, a priority that cannot be read is the highest, and the action of an invalid policy is `report`. So a broken
policy shields its workloads from the policies below it instead of leaving them to those.
"""

import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, TypeAlias

import msgspec

from fallow import names
from fallow.model import selectors, units, usage
from fallow.model.long_memory import Freeze
from fallow.model.policies import crd, idle
from fallow.model.policies.crd import Count, Duration, Flag, Moment, Ratio, Share, Text, Timeout, Window, one_of
from fallow.model.secret import Secret
from fallow.model.units import MINUTE, Instant, Seconds

HIGHEST_PRIORITY = 1_000_000  # that can be written; a policy whose priority cannot be read stands above
MOST_NEXT_ACTIONS = 20
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")

# What a channel of each type may be told, and of that, what it needs one of.
SETTINGS_OF: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    idle.ChannelType.slack: (
        frozenset({"webhook_url", "bot_token", "channel", "api_url"}), frozenset({"webhook_url", "bot_token"})
    ),
    idle.ChannelType.email: (frozenset({"to"}), frozenset()),
    idle.ChannelType.pagerduty: (frozenset({"routing_key", "url"}), frozenset({"routing_key"})),
    idle.ChannelType.webhook: (frozenset({"url", "auth_header", "hmac_key"}), frozenset({"url"})),
    idle.ChannelType.teams: (frozenset({"url"}), frozenset({"url"})),
}
_SHOWN = frozenset({"to", "channel", "api_url"})  # settings that are no secret, whoever writes them where

Priority = Annotated[int, crd.integer(-HIGHEST_PRIORITY, HIGHEST_PRIORITY)]
Watts = Annotated[int, crd.integer(1, 5000)]
PowerFloor = Annotated[str, one_of("off", "auto")]
Actions = Annotated[int, crd.integer(1, 10_000)]
Percent = Annotated[int, crd.integer(1, 100)]
Buttons = Annotated[tuple[Annotated[int, crd.integer(1, 168)], ...], {"maxItems": 5}]
Users = Annotated[tuple[Text, ...], {"maxItems": 256}]
Groups = Annotated[tuple[Text, ...], {"maxItems": 64}]
SecretRefs: TypeAlias = Mapping[str, crd.SecretRef]
Sender = Annotated[str, one_of(*map(str, idle.ChannelType))]
Regexes = Annotated[tuple[crd.Regex, ...], {"maxItems": 64}]
Signals = Annotated[tuple[Annotated[str, one_of(*(one.label for one in usage.OPTIONAL))], ...], {"maxItems": 16}]
Classes = Annotated[tuple[Annotated[str, one_of("training", "inference", "notebook", "batch")], ...], {"maxItems": 4}]
Kinds = Annotated[tuple[crd.KindName, ...], {"maxItems": 64}]
LookPast = Annotated[tuple[crd.KindName, ...], {"maxItems": 32}]
OnFailure = Annotated[str, one_of("abort", "continue")]
TypeOfAction = Annotated[str, one_of("report", "notify", "pause")]
Days = Annotated[tuple[Annotated[str, one_of(*DAYS)], ...], {"minItems": 1, "maxItems": 7}]


class WindowsSpec(msgspec.Struct, frozen=True, rename="camel"):
    gone_idle: Annotated[Window, "Silence after which a GPU that was once used is idle."] = "30m"
    never_used: Annotated[
        Window | None, "The same for a GPU never used since its container started; not given: as goneIdle."
    ] = None
    grace: Annotated[Duration, "Added to the window before a young container is judged at all."] = "5m"


class ThresholdsSpec(msgspec.Struct, frozen=True, rename="camel"):
    activity: Annotated[Ratio, "Utilisation from which a sample counts as activity."] = "0.01"
    coverage: Annotated[Share, "Share of the window that must have been measured."] = "0.8"
    max_sample_age: Annotated[Timeout, "The newest sample may be this old."] = "3m"
    idle_gpu_fraction: Annotated[Share, "Share of a pod's GPUs that must be idle for the pod to be idle."] = "1"
    power_watts: Annotated[Watts | None, "Power draw that counts as activity; not looked at when not given."] = None
    power_floor: Annotated[PowerFloor, "auto: drawing more than its own lowest power plus 15 W is activity."] = "off"


class SignalsSpec(msgspec.Struct, frozen=True):
    disable: Annotated[Signals, "Secondary signals that do not count as activity."] = ()


class ChannelSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    name: Annotated[crd.Name, "Name of the channel, unique in the policy."]
    type: Annotated[Sender, "How the notice is sent."]
    config: Annotated[Mapping[str, Text], "Settings of the channel that are no secret."] = {}
    config_secret_refs: Annotated[SecretRefs, "Settings of the channel that are read from Secrets."] = {}

    law: ClassVar = crd.Law(
        "self.type != 'event' || !(has(self.config) || has(self.configSecretRefs))",
        "a channel of type event has no settings",
        lambda channel: channel.type != idle.ChannelType.event or not (channel.config or channel.config_secret_refs),
    )


class NoticeSpec(msgspec.Struct, frozen=True, rename="camel"):
    required: Annotated[Flag, "Never pause without a delivered notice."] = True
    grace: Annotated[Duration, "Time between the delivered notice and the pause."] = "5m"
    require_all: Annotated[Flag, "Every channel must confirm; otherwise one is enough."] = False
    channels: Annotated[tuple[ChannelSpec, ...], crd.keyed("name"), "Where notices go."] = (
        ChannelSpec(name="event", type=idle.ChannelType.event),
    )

    law: ClassVar = crd.Law(
        "!has(self.channels) || self.channels.all(one, self.channels.exists_one(other, other.name == one.name))",
        "two channels have the same name",
        lambda notice: len({channel.name for channel in notice.channels}) == len(notice.channels),
    )


class ConsentSpec(msgspec.Struct, frozen=True, rename="camel"):
    max_ack: Annotated[Duration, "An acknowledgement holds no longer than this."] = "168h"
    buttons: Annotated[Buttons, "Hours on the buttons of a notice."] = (4, 8, 24)
    allow_opt_out: Annotated[Flag, "Heed opt-outs on workloads and pods; those on the namespace always count."] = True
    immunity: Annotated[Duration, "A resumed workload is left alone for this long."] = "1h"
    slack_users: Annotated[Users, "Slack users who may press the buttons; none: anyone in the channel."] = ()
    slack_groups: Annotated[Groups, "Slack groups whose members may press the buttons."] = ()


class HookSpec(msgspec.Struct, frozen=True, rename="camel"):
    timeout: Annotated[Timeout, "How long a pod's pre-pause hook may take."] = "60s"
    on_failure: Annotated[OnFailure, "abort: no pause in this cycle when the hook fails."] = "abort"


class ActionSpec(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    type: Annotated[TypeOfAction, "The most that may be done; pause needs --run-mode=scale-down."] = "report"
    pressure: Annotated[str, one_of("off", "only"), "only: pause only while somebody waits for such a GPU."] = "off"
    gitops: Annotated[str, one_of("act", "report"), "report: never pause what Argo CD, Flux or Helm manage."] = "act"
    kserve_method: Annotated[str, one_of("auto", "stop", "min-replicas"), "How an InferenceService is paused."] = "auto"
    respect_pdb: Annotated[Flag, "Never pause what a PodDisruptionBudget protects."] = msgspec.field(
        default=False, name="respectPDB"
    )
    allow_knative_rollout: Annotated[Flag, "Pause a Knative Service by a new revision that may scale to 0."] = False
    look_past: Annotated[LookPast, "Kinds of owner below which workloads may be paused all the same."] = ()
    hook: Annotated[HookSpec, "Pre-pause hooks of pods."] = HookSpec()


class LimitsSpec(msgspec.Struct, frozen=True, rename="camel"):
    max_actions_per_cycle: Annotated[Actions | None, "Pauses in one cycle, inside the global cap."] = None
    max_percent_per_hour: Annotated[Percent | None, "Percent of GPUs paused in an hour, inside the global cap."] = None


class SlotSpec(msgspec.Struct, frozen=True, rename="camel"):
    days: Annotated[Days, "Days on which the slot begins."] = DAYS
    start: Annotated[crd.Clock, "When it begins."] = "00:00"
    end: Annotated[crd.ClockOrMidnight, "When it ends; before start means on the next day."] = "24:00"
    time_zone: Annotated[crd.Zone, "IANA time zone of start and end."] = "UTC"

    law: ClassVar = crd.Law(
        "self.start != self.end", "start and end are the same; a whole day is '00:00' to '24:00'",
        lambda slot: slot.start != slot.end,
    )


Slots = Annotated[tuple[SlotSpec, ...], {"maxItems": 32}]


class ScheduleSpec(msgspec.Struct, frozen=True):
    active: Annotated[Slots, "Notices and pauses only in these slots; none: always."] = ()
    freeze: Annotated[Slots, "No notices and pauses in these slots."] = ()


class RegretSpec(msgspec.Struct, frozen=True, rename="camel"):
    auto_widen: Annotated[Flag, "Lengthen goneIdle when too many pauses are undone at once."] = False
    threshold: Annotated[Ratio, "Share of undone pauses that is too many."] = "0.2"


class IdlePolicySpec(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Which workloads, how they are judged, whom to tell, what may be done and how fast."""

    priority: Annotated[Priority, "The highest that matches decides; ties by name."] = 0
    namespace_selector: Annotated[crd.SelectorSpec, "Labels of the namespace; empty: all."] = crd.SelectorSpec()
    workload_selector: Annotated[crd.SelectorSpec, "Labels of the workload; empty: all."] = crd.SelectorSpec()
    pod_selector: Annotated[crd.SelectorSpec, "Labels of its pods; empty: all."] = crd.SelectorSpec()
    namespaces: Annotated[Regexes, "Regular expressions (RE2) for the whole namespace name; none: all."] = ()
    gpu_models: Annotated[Regexes, "Regular expressions (RE2) for the whole GPU model name; none: all."] = ()
    kinds: Annotated[Kinds, "Kind or Kind.group; none: the letters of --enabled-resources."] = ()
    classes: Annotated[Classes, "Classes of workload; none: all."] = ()
    windows: Annotated[WindowsSpec, "How long silence must last."] = WindowsSpec()
    thresholds: Annotated[ThresholdsSpec, "What counts as silence, and how well it must be measured."] = (
        ThresholdsSpec()
    )
    signals: Annotated[SignalsSpec, "Which signals count."] = SignalsSpec()
    notice: Annotated[NoticeSpec, "Telling the owner first."] = NoticeSpec()
    consent: Annotated[ConsentSpec, "How the owner may say no."] = ConsentSpec()
    action: Annotated[ActionSpec, "What may be done."] = ActionSpec()
    limits: Annotated[LimitsSpec, "How much of it."] = LimitsSpec()
    schedule: Annotated[ScheduleSpec, "When."] = ScheduleSpec()
    regret: Annotated[RegretSpec, "Learning from pauses that were undone."] = RegretSpec()


class NextActionStatus(msgspec.Struct, frozen=True):
    kind: Annotated[Text, "Kind of the workload."]
    namespace: Annotated[Text, "Its namespace."]
    name: Annotated[Text, "Its name."]
    at: Annotated[Moment, "When the notice or pause is due."]


NextActions = Annotated[tuple[NextActionStatus, ...], {"maxItems": MOST_NEXT_ACTIONS}]


class IdlePolicyCondition(crd.PolicyCondition, frozen=True, rename="camel"):
    type: Annotated[str, one_of("Ready", "DataHealthy", "Frozen"), "What is said."]


class IdlePolicyStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What became of the policy in the last cycle. A number that is not known is absent."""

    observed_generation: Annotated[Count | None, "Generation of the spec that was read."] = None
    matched_workloads: Annotated[Count | None, "Workloads that this policy decides about."] = None
    idle_workloads: Annotated[Count | None, "Of these, idle now."] = None
    idle_gpus: Annotated[Count | None, "GPUs that these hold."] = msgspec.field(default=None, name="idleGPUs")
    paused_workloads: Annotated[Count | None, "Of these, paused now."] = None
    acknowledged_workloads: Annotated[Count | None, "Of these, idle and acknowledged."] = None
    pauses_7d: Annotated[Count | None, "Pauses in the last 7 days."] = msgspec.field(default=None, name="pauses7d")
    regrets_7d: Annotated[Count | None, "Of these, undone within 15 minutes."] = msgspec.field(
        default=None, name="regrets7d"
    )
    effective_gone_idle: Annotated[Duration | None, "goneIdle as it is now, after widening."] = None
    saved_gpu_hours: Annotated[crd.Number | None, "GPU-hours saved by pauses."] = msgspec.field(
        default=None, name="savedGPUHours"
    )
    last_evaluation_time: Annotated[Moment | None, "When the policy was last looked at."] = None
    next_actions: Annotated[NextActions, "What comes next, soonest first."] = ()
    conditions: Annotated[tuple[IdlePolicyCondition, ...], crd.keyed("type"), "Ready, DataHealthy, Frozen."] = ()


def define() -> dict[str, Any]:
    """The CustomResourceDefinition to install."""
    return crd.define(
        names.POLICY_KIND, names.POLICY_PLURAL, "idp",
        "How idle GPU workloads are judged, whom to tell, and what may be done.",
        version=names.POLICY_VERSION, spec=IdlePolicySpec, status=IdlePolicyStatus,
        columns=(
            ("Priority", "integer", ".spec.priority"), ("Action", "string", ".spec.action.type"),
            ("Idle", "integer", ".status.idleWorkloads"), ("Paused", "integer", ".status.pausedWorkloads"),
            ("Age", "date", ".metadata.creationTimestamp"),
        ),
    )


# ---- from what is written to what is meant ---------------------------------------------------------------------------


def parse(obj: Mapping[str, Any]) -> idle.IdlePolicy:
    """Never raises. What is wrong is said in `.invalid`, one sentence per field."""
    written = crd.read(IdlePolicySpec, obj)
    spec, rule = written.spec, _make_rule(written.name, written.spec)
    faults = (*written.faults, *_channel_faults(spec.notice.channels))
    is_priority_known = not any(fault.path in ("spec", "spec.priority") for fault in faults)
    return idle.IdlePolicy(
        name=written.name, uid=written.uid, generation=written.generation,
        rule=msgspec.structs.replace(rule, action=idle.Action()) if faults else rule,
        priority=spec.priority if is_priority_known else HIGHEST_PRIORITY + 1,
        namespace_selector=_make_selector(spec.namespace_selector),
        workload_selector=_make_selector(spec.workload_selector), pod_selector=_make_selector(spec.pod_selector),
        namespaces=tuple(crd.compile_regex(text) for text in spec.namespaces),
        gpu_models=tuple(crd.compile_regex(text) for text in spec.gpu_models), classes=frozenset(spec.classes),
        invalid=tuple(map(str, faults)), effective_gone_idle=_read_effective(obj),
    )


def _read_effective(obj: Mapping[str, Any]) -> Seconds | None:
    """Of our own last report; what cannot be read was not said."""
    standing = obj.get("status")
    text = standing.get("effectiveGoneIdle") if isinstance(standing, Mapping) else None
    try:
        return units.parse_duration(text) if isinstance(text, str) else None
    except ValueError:
        return None


def _channel_faults(channels: tuple[ChannelSpec, ...]) -> Iterator[crd.FieldFault]:
    """What a channel is told that it does not know, or is not told that it cannot do without."""
    for index, channel in enumerate(channels):
        known, needed = SETTINGS_OF.get(channel.type, (frozenset(), frozenset()))
        path, given = f"spec.notice.channels[{index}]", {*channel.config, *channel.config_secret_refs}
        if odd := sorted(given - known):
            yield crd.FieldFault(path, f"{channel.type} knows no {odd[0]}; it knows {', '.join(sorted(known))}")
        if needed and not given & needed:
            yield crd.FieldFault(path, f"{channel.type} needs {' or '.join(sorted(needed))}")


def _make_rule(name: str, spec: IdlePolicySpec) -> idle.Rule:
    seconds, ratio, thresholds = units.parse_duration, units.parse_ratio, spec.thresholds
    return idle.Rule(
        name=name, gone_idle=seconds(spec.windows.gone_idle),
        never_used=seconds(spec.windows.never_used or spec.windows.gone_idle), grace=seconds(spec.windows.grace),
        activity=ratio(thresholds.activity), coverage=ratio(thresholds.coverage),
        max_sample_age=seconds(thresholds.max_sample_age), idle_gpu_fraction=ratio(thresholds.idle_gpu_fraction),
        power_watts=thresholds.power_watts, power_floor=thresholds.power_floor == "auto",
        disabled_signals=frozenset(spec.signals.disable), kinds=frozenset(spec.kinds) or None,
        notice=_make_notice(spec.notice), consent=_make_consent(spec.consent), action=_make_action(spec.action),
        max_actions_per_cycle=spec.limits.max_actions_per_cycle, max_percent_per_hour=spec.limits.max_percent_per_hour,
        active_slots=tuple(map(_make_slot, spec.schedule.active)),
        freeze_slots=tuple(map(_make_slot, spec.schedule.freeze)),
        auto_widen=spec.regret.auto_widen, regret_threshold=ratio(spec.regret.threshold),
    )


def _make_notice(notice: NoticeSpec) -> idle.Notice:
    channels = tuple(map(_make_channel, notice.channels))
    return idle.Notice(notice.required, units.parse_duration(notice.grace), notice.require_all, channels)


def _make_channel(channel: ChannelSpec) -> idle.Channel:
    """What should have been a reference is at least never shown."""
    secrets = ((key, idle.SecretKey(ref.name, ref.key)) for key, ref in channel.config_secret_refs.items())
    plain = ((key, text if key in _SHOWN else Secret(text)) for key, text in channel.config.items())
    return idle.Channel(channel.name, idle.ChannelType(channel.type), (*plain, *secrets))


def _make_consent(consent: ConsentSpec) -> idle.Consent:
    max_ack, immunity = units.parse_duration(consent.max_ack), units.parse_duration(consent.immunity)
    return idle.Consent(
        max_ack=max_ack, allow_opt_out=consent.allow_opt_out, immunity=immunity, buttons=consent.buttons,
        slack_users=frozenset(consent.slack_users), slack_groups=frozenset(consent.slack_groups),
    )


def _make_action(action: ActionSpec) -> idle.Action:
    wire = {key: getattr(action, key) for key in action.__struct_fields__ if key not in ("type", "look_past", "hook")}
    hook = idle.Hook(units.parse_duration(action.hook.timeout), typing.cast(Any, action.hook.on_failure))
    return idle.Action(type=idle.ActionType(action.type), look_past=frozenset(action.look_past), hook=hook, **wire)


def _make_slot(slot: SlotSpec) -> idle.Slot:
    start, end = (int(clock[:2]) * 60 + int(clock[3:]) for clock in (slot.start, slot.end))
    return idle.Slot(frozenset(DAYS.index(day) for day in slot.days), start, end, slot.time_zone)


def _make_selector(selector: crd.SelectorSpec) -> selectors.Selector:
    expressions = tuple((one.key, one.operator, one.values) for one in selector.match_expressions)
    return selectors.Selector(match_labels=selector.match_labels, match_expressions=expressions)


# ---- the answer ------------------------------------------------------------------------------------------------------


def status(
    of: idle.IdlePolicy, tally: idle.Tally, *, previous: Mapping[str, Any], trouble: usage.SourceTrouble | None,
    freeze: Freeze | None, now: Instant,
) -> dict[str, Any]:
    """The merge patch for the status subresource. `previous` is the status as it stands."""
    said = {
        "Ready": ("True", "Valid", "every field was understood"),
        "DataHealthy": ("True", "Measured", "the source of the measurements answered"),
        "Frozen": ("False", "NotFrozen", "notices and pauses are allowed"),
    }
    if of.invalid:
        said["Ready"] = "False", "Invalid", "; ".join(of.invalid)
    if trouble is not None:
        said["DataHealthy"] = "False", trouble.reason, trouble.because
    if freeze is not None and freeze.holds(now):
        until = units.rfc3339(freeze.until)
        said["Frozen"] = "True", "Frozen", f"no notice or pause until {until}: {freeze.because}"
    soonest = sorted(tally.next_actions, key=lambda action: action.at)[:MOST_NEXT_ACTIONS]
    upcoming = (NextActionStatus(one.kind, one.namespace, one.name, units.rfc3339(one.at)) for one in soonest)
    counted = {key: value for key, value in msgspec.structs.asdict(tally).items() if key != "next_actions"}
    window = tally.effective_gone_idle
    counted["effective_gone_idle"] = None if window is None else f"{window / MINUTE:.0f}m"
    return crd.plain({"status": IdlePolicyStatus(
        **counted, observed_generation=of.generation, last_evaluation_time=units.rfc3339(now),
        next_actions=tuple(upcoming),
        conditions=crd.conditions(IdlePolicyCondition, said, of.generation, previous, now),
    )})
