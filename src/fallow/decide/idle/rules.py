"""Which rule holds for a workload, and what flags and rules leave alone whatever it does.

In: the mandate, the policies, the workload with its pods, namespace and GPU models. Out: a Ruling (the rule, and why
it may only report), or a skip with its sentence.
Invariant: what cannot be known (a model, a namespace's labels) never moves a workload to a laxer rule: the first
policy that might be meant for it holds it, and only reports.
"""

from collections.abc import Callable
from datetime import datetime
from typing import TypeAlias
from zoneinfo import ZoneInfo

import msgspec

from fallow.model import cluster, kinds, work
from fallow.model.decision import Detail
from fallow.model.patterns import Pattern
from fallow.model.policies import idle
from fallow.model.seen import Input, Known, Unseen, sure
from fallow.model.units import MINUTE, Instant


class Ruling(msgspec.Struct, frozen=True):
    """The rule for one workload; `detail` and `because` are set where it may only report."""

    rule: idle.Rule
    detail: Detail | None = None
    because: str = ""


class Subject(msgspec.Struct, frozen=True):
    """A workload as rules see it."""

    workload: cluster.Workload
    pods: tuple[cluster.Pod, ...]
    namespace: Input[cluster.Namespace]
    find_models: Callable[[], frozenset[str]]  # of its GPUs; "" = not known. Few rules ask


Policies: TypeAlias = Input[tuple[idle.IdlePolicy, ...]]


def in_order(mandate: idle.Mandate, policies: Policies) -> list[idle.IdlePolicy]:
    return sorted(sure(policies), key=lambda one: (-one.priority, one.name)) if mandate.use_policies else []


class Rulebook:
    """The policies in their order, with what depends on the namespace alone worked out once per namespace."""

    def __init__(self, mandate: idle.Mandate, policies: Policies) -> None:
        self.policies = [(one, _sure(one), _unclear(one)) for one in in_order(mandate, policies)]
        self._here: dict[str, list[tuple[idle.IdlePolicy, Ruling, Ruling, bool | None]]] = {}
        self.last = Ruling(mandate.rule)
        if mandate.use_policies and isinstance(policies, Unseen):
            because = f"which policy holds for it cannot be seen: {policies.why}"
            self.last = Ruling(mandate.rule, Detail.Unseen, because)
        elif mandate.require_policy:
            self.last = Ruling(mandate.rule, Detail.NoPolicy, "no IdlePolicy is meant for it, and one is required")

    def find(self, subject: Subject) -> Ruling:
        """The same Ruling object for all whom one policy holds."""
        for one, clear, unclear, is_here in self._in_namespace(subject):
            fits = _both(is_here, _fits(one, subject))
            if fits is not False:
                return unclear if fits is None else clear
        return self.last

    def _in_namespace(self, subject: Subject) -> list[tuple[idle.IdlePolicy, Ruling, Ruling, bool | None]]:
        name = subject.workload.ref.namespace
        if name not in self._here:
            judged = [(*each, _fits_namespace(each[0], name, subject.namespace)) for each in self.policies]
            self._here[name] = [each for each in judged if each[3] is not False]
        return self._here[name]


def _sure(one: idle.IdlePolicy) -> Ruling:
    if one.invalid:
        return Ruling(one.rule, Detail.InvalidPolicy, f"policy {one.name} is not valid: {one.invalid[0]}")
    return Ruling(one.rule)


def _unclear(one: idle.IdlePolicy) -> Ruling:
    because = f"policy {one.name} may be meant for it: its GPU model or the labels of its namespace are not known"
    return Ruling(one.rule, Detail.PolicyUnclear, because)


def _both(left: bool | None, right: bool | None) -> bool | None:
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def _fits_namespace(one: idle.IdlePolicy, name: str, namespace: Input[cluster.Namespace]) -> bool | None:
    return one.reaches(name, namespace.value.labels if isinstance(namespace, Known) else None)


def _fits(one: idle.IdlePolicy, subject: Subject) -> bool | None:
    if not one.workload_selector.matches(subject.workload.labels):
        return False
    if not all(one.pod_selector.matches(pod.labels) for pod in subject.pods):
        return False
    if one.classes and work.classify(subject.workload, subject.pods, subject.namespace)[0] not in one.classes:
        return False
    return _fits_models(one.gpu_models, subject.find_models()) if one.gpu_models else True


def _fits_models(patterns: tuple[Pattern, ...], models: frozenset[str]) -> bool | None:
    """All its GPUs must match; one whose model is not known leaves it open."""
    if not all(any(pattern.fullmatch(model) for pattern in patterns) for model in models if model):
        return False
    return None if not models or "" in models else True


def is_unlisted(workload: cluster.Workload, kind: kinds.Kind | None, rule: idle.Rule) -> str | None:
    """Why its policy is not for its kind; None where it is, or where the letters or its trouble say more."""
    if kind is None or workload.trouble is not None or rule.kinds is None:
        return None
    return None if kinds.is_listed(kind.key, rule.kinds) else f"policy {rule.name} is not for {kind.kind}"


def is_disabled(workload: cluster.Workload, kind: kinds.Kind | None, rule: idle.Rule, scope: idle.Scope) -> str | None:
    """Why the letters leave its kind out; None where they do not, or where its policy or its trouble says more."""
    if kind is None or workload.trouble is not None or rule.kinds is not None or kind.letter in scope.letters:
        return None
    return f"{kind.kind} (letter {kind.letter}) is not among the enabled kinds"


def why_not_past(workload: cluster.Workload, rule: idle.Rule) -> str | None:
    """Why it may not be paused below what another rule looks past: whoever stands above would bring it back."""
    for owner in workload.passed:
        if not kinds.is_listed((owner.group, owner.kind), rule.action.look_past):
            return f"{owner.kind}/{owner.name} stands above it, and rule {rule.name} does not look past that kind"
    return None


def is_outside(subject: Subject, kind: kinds.Kind | None, rule: idle.Rule, scope: idle.Scope) -> bool:
    """Is it, by the flags, not ours? Then we write nothing at all on it: it may well be another instance's.

    What stands paused has no GPU that could be of another model.
    """
    workload = subject.workload
    if is_disabled(workload, kind, rule, scope) or is_protected(workload.ref.namespace, scope):
        return True
    if scope.model is not None and not subject.find_models():
        scope = msgspec.structs.replace(scope, model=None)
    return is_excluded(subject, scope) is not None


def is_protected(namespace: str, scope: idle.Scope) -> str | None:
    pattern = scope.protected_namespaces
    return f"namespace {namespace} is protected" if pattern is not None and pattern.fullmatch(namespace) else None


def is_excluded(subject: Subject, scope: idle.Scope) -> str | None:
    """Why the flags leave it out."""
    namespace = subject.workload.ref.namespace
    if scope.watch_namespaces and namespace not in scope.watch_namespaces:
        return f"namespace {namespace} is not watched"
    if scope.namespace is not None and not scope.namespace.fullmatch(namespace):
        return f"namespace {namespace} is not the one asked for"
    if scope.exclude_namespaces is not None and scope.exclude_namespaces.fullmatch(namespace):
        return f"namespace {namespace} is excluded"
    if scope.exclude_pods is not None:
        for pod in subject.pods:
            if scope.exclude_pods.fullmatch(pod.name):
                return f"its pod {pod.name} is excluded"
    if scope.model is not None and not _fits_models((scope.model,), models := subject.find_models()):
        found = ", ".join(sorted(models)) or "not known"
        return f"not all of its GPUs are known to be of the model asked for ({found})"
    return None


def why_not_now(rule: idle.Rule, now: Instant) -> str | None:
    """Why this is not a time to act under this rule."""
    if any(_is_inside(slot, now) is not False for slot in rule.freeze_slots):
        return f"policy {rule.name} freezes at this time of the week"
    if rule.active_slots and not any(_is_inside(slot, now) for slot in rule.active_slots):
        return f"policy {rule.name} is not active at this time of the week"
    return None


def next_turn(now: Instant) -> Instant:
    """Slots begin and end on whole minutes, so until the next one the answer of a schedule stays."""
    return (now // MINUTE + 1) * MINUTE


def _is_inside(slot: idle.Slot, now: Instant) -> bool | None:
    """None where the zone cannot be read: then the slot neither allows nor ends anything."""
    try:
        local = datetime.fromtimestamp(now, ZoneInfo(slot.time_zone))
    except (OSError, ValueError, LookupError):
        return None
    minute, day = local.hour * 60 + local.minute, local.weekday()
    is_day, was_day = day in slot.days, (day - 1) % 7 in slot.days
    if slot.start_minute < slot.end_minute:
        return is_day and slot.start_minute <= minute < slot.end_minute
    # Past midnight: the slot belongs to the day on which it began.
    return (is_day and minute >= slot.start_minute) or (was_day and minute < slot.end_minute)
