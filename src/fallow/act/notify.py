"""Sentences for people, and the Kubernetes Events that carry them.

In: what was done or will be done, to which object. Out: notes of at most 1024 bytes, as Events of events.k8s.io/v1 on that object.
The same reason on the same object within an hour becomes a series on the first Event, not a new one.
Invariant: an Event is sent after the change it tells of, and a failed one never fails the change. Nothing else is ever created here.
"""

import hashlib
import logging
import uuid
from typing import Any

import msgspec

from fallow import names
from fallow.clients import errors
from fallow.clients.kubernetes import api as kubernetes
from fallow.model import cluster, decision, kinds, units
from fallow.model.policies import idle
from fallow.model.units import HOUR, Instant

log = logging.getLogger(__name__)

_VERBS = {"scaled to 0": ("Scaled", "Would scale"), "suspended": ("Suspended", "Would suspend"), "stopped": ("Stopped", "Would stop")}
NOTE_BYTES = 1024  # the API server refuses longer ones
_SERIES_SECONDS = HOUR
_ACTIONS = {
    names.Event.SCALED_TO_ZERO: "scale_down", names.Event.SUSPENDED: "scale_down", names.Event.PAUSE_FAILED: "scale_down",
    names.Event.PAUSE_INEFFECTIVE: "scale_down", names.Event.RESUMED: "resume", names.Event.RESUME_FAILED: "resume",
    names.Event.NOTICE_SENT: "notify", names.Event.NOTICE_FAILED: "notify", names.Event.ACKNOWLEDGED: "acknowledge",
    names.Event.UNACKNOWLEDGED: "acknowledge", names.Event.ACK_EXPIRED: "acknowledge", names.Event.INVALID_ACK: "acknowledge",
}


class _Told(msgspec.Struct):
    """An Event that we created, and how often it was said since."""

    namespace: str
    name: str
    at: Instant
    count: int = 1


class Announcer:
    """Creates our Events, and remembers for an hour which, so that a repetition becomes a series."""

    def __init__(self, api: kubernetes.Api, *, reporting_instance: str) -> None:
        self._api = api
        self._instance = reporting_instance
        self._told: dict[tuple[str, str], _Told] = {}

    async def announce(self, ref: cluster.Ref, reason: str, note: str, now: Instant, related: cluster.Pod | None = None) -> None:
        """Tells, and only logs when that fails: what it tells of has happened all the same."""
        try:
            await self.publish(ref, reason, note, now, related)
        except errors.ClientError as problem:
            log.warning("no Event %s for %s: %s", reason, ref, problem)

    async def announce_once(self, ref: cluster.Ref, reason: str, note: str, now: Instant, episode: str) -> None:
        """Like announce, but never twice for one episode, whoever tells it: its Event has a name that follows from the episode."""
        body = event_body(ref, reason, note, now, instance=self._instance)
        text = f"{ref.uid}/{reason}/{episode}"
        body["metadata"]["name"] = f"{names.EVENT_PREFIX}{hashlib.sha256(text.encode()).hexdigest()[:32]}"
        try:
            await self._api.create(kubernetes.EVENTS, body["metadata"]["namespace"], body)
        except errors.Conflict:
            log.debug("%s of %s is told already", reason, ref)
        except errors.ClientError as problem:
            log.warning("no Event %s for %s: %s", reason, ref, problem)

    async def publish(self, ref: cluster.Ref, reason: str, note: str, now: Instant, related: cluster.Pod | None = None) -> None:
        """Tells; raises when the Event was neither created nor continued."""
        self._told = {key: told for key, told in self._told.items() if now - told.at < _SERIES_SECONDS}
        told = self._told.get((ref.uid, reason))
        if told is None or not await self._continue(told, now):
            body = event_body(ref, reason, note, now, instance=self._instance, related=related)
            await self._api.create(kubernetes.EVENTS, body["metadata"]["namespace"], body)
            self._told[ref.uid, reason] = _Told(body["metadata"]["namespace"], body["metadata"]["name"], now)

    async def _continue(self, told: _Told, now: Instant) -> bool:
        series = {"series": {"count": told.count + 1, "lastObservedTime": units.rfc3339_micros(now)}}
        try:
            await self._api.merge_patch(kubernetes.EVENTS, told.namespace, told.name, series, field_manager=names.FIELD_MANAGER)
        except errors.NotFound:  # Events live for an hour on most servers; this one was shorter
            return False
        told.count += 1
        return True


def event_body(
    ref: cluster.Ref, reason: str, note: str, now: Instant, *, instance: str, related: cluster.Pod | None = None
) -> dict[str, Any]:
    namespace = ref.namespace or "default"  # where Kubernetes keeps the Events of objects without a namespace
    body: dict[str, Any] = {
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {"name": f"{names.EVENT_PREFIX}{uuid.uuid4().hex}", "namespace": namespace},
        "eventTime": units.rfc3339_micros(now), "type": "Warning" if reason in names.WARNINGS else "Normal",
        "reason": reason, "action": _ACTIONS.get(reason, "observe"), "note": cut(note, NOTE_BYTES),
        "reportingController": names.REPORTING_CONTROLLER, "reportingInstance": instance,
        "regarding": {"apiVersion": ref.api_version, "kind": ref.kind, "name": ref.name, "namespace": ref.namespace, "uid": ref.uid},
    }
    if related is not None:
        body["related"] = {"apiVersion": "v1", "kind": "Pod", "name": related.name, "namespace": related.namespace, "uid": related.uid}
    return body


def cut(text: str, size: int) -> str:
    """At most that many bytes, never half a character; an ellipsis says that something is missing."""
    encoded = text.encode()
    if len(encoded) <= size:
        return text
    return encoded[: size - 3].decode(errors="ignore") + "…"


# ---- sentences ----------------------------------------------------------------------------------------------------------------


def typed(ref: cluster.Ref) -> str:
    """The object as it is typed on the command line; with its group where the bare kind could mean another."""
    row = kinds.find(ref.group, ref.kind)
    return f"{ref.kind}/{ref.name}" if row and not row.needs_group else f"{ref.kind}.{ref.group}/{ref.name}"


def idle_sentence(finding: decision.Finding, now: Instant) -> str:
    """`12 GPUs idle for 47m (policy default)`."""
    gpus = f"{finding.gpus} GPU{'' if finding.gpus == 1 else 's'}"
    rule = "flags" if finding.rule.name == "flags" else f"policy {finding.rule.name}"
    if finding.idle_since is None:
        return f"{gpus} idle ({rule})"
    least = "at least " if finding.at_least else ""
    return f"{gpus} idle for {least}{units.humane(now - finding.idle_since)} ({rule})"


def pause_note(finding: decision.Finding, kind: kinds.Kind, replicas: int | None, now: Instant, *, is_dry: bool = False) -> str:
    """What was done, why, and how to undo it; of a dry run what would be done."""
    ref = finding.workload.ref
    done, would = _VERBS[kind.verb]
    size = "" if kind.verb != "scaled to 0" else " to 0" if replicas is None else f" from {replicas} to 0"
    why = idle_sentence(finding, now) if finding.verdict is decision.Verdict.idle else finding.because
    note = f"{would if is_dry else done} {ref.kind} {ref.namespace}/{ref.name}{size}: {why}."
    return note if is_dry else f"{note} Resume: fallow resume {typed(ref)} -n {ref.namespace}"


def notice_note(warn: decision.Warn, kind: kinds.Kind | None, now: Instant) -> str:
    """What will happen, when, how to keep it, and what its owner should know before that. The important part first: the end may be cut."""
    finding, ref = warn.finding, warn.finding.workload.ref
    parts = [f"{ref.kind} {ref.namespace}/{ref.name}: {idle_sentence(finding, now)}."]
    if warn.pauses_at is not None and kind is not None:
        parts.append(f"It will be {kind.verb} at {units.clock_time(warn.pauses_at)} UTC.")
    parts.append(f"Keep it: fallow ack {typed(ref)} -n {ref.namespace}")
    if kind is not None:
        parts += (f"| {warning}" for warning in warnings(finding.workload, kind, finding.rule))
    return " ".join(parts)


def warnings(workload: cluster.Workload, kind: kinds.Kind, rule: idle.Rule) -> list[str]:
    """What a pause of this workload brings with it, one sentence each."""
    found = kinds.warnings(kind, workload)
    found.append(f"While it is paused, a server-side apply of another value conflicts with {names.FIELD_MANAGER}.")
    if rule.action.gitops == "act" and (hint := gitops_hint(workload)):
        found.append(hint)
    return found


def gitops_hint(workload: cluster.Workload) -> str | None:
    """What the owner's GitOps tool must be told, lest it undo the pause."""
    match kinds.gitops_tool(workload):
        case "Argo CD":
            return f"Argo CD may undo it unless its Application has: {gitops_snippet(workload)}"
        case str(tool):
            return f"{tool} may undo it at its next run."
        case _:
            return None


def gitops_snippet(workload: cluster.Workload) -> str:
    """For an Argo CD Application's spec, as YAML on one line."""
    ref = workload.ref
    group = f"group: {ref.group}, " if ref.group else ""
    return (
        f"{{ignoreDifferences: [{{{group}kind: {ref.kind}, name: {ref.name}, managedFieldsManagers: [{names.FIELD_MANAGER}]}}], "
        "syncPolicy: {syncOptions: [RespectIgnoreDifferences=true]}}"
    )
