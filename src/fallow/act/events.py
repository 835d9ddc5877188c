"""The Kubernetes Events that tell what was done, on the very objects it was done to.

In: a sentence, its reason, the object. Out: an Event of events.k8s.io/v1 with a note of at most 1024 bytes. The same
reason on the same object within an hour becomes a series on the first Event, not a new one.
Invariant: an Event is sent after the change it tells of, and a failed one never fails the change. Nothing else is ever
created here.
"""

import hashlib
import logging
import uuid
from typing import Any

import msgspec

from fallow import names
from fallow.clients import errors
from fallow.clients.kubernetes import api as kubernetes
from fallow.model import cluster, units
from fallow.model.units import HOUR, Instant

log = logging.getLogger(__name__)

NOTE_BYTES = 1024  # the API server refuses longer ones
_SAID = names.Event
_ACTIONS = {
    _SAID.SCALED_TO_ZERO: "scale_down", _SAID.SUSPENDED: "scale_down", _SAID.PAUSE_FAILED: "scale_down",
    _SAID.PAUSE_INEFFECTIVE: "scale_down", _SAID.RESUMED: "resume", _SAID.RESUME_FAILED: "resume",
    _SAID.NOTICE_SENT: "notify", _SAID.NOTICE_FAILED: "notify", _SAID.ACKNOWLEDGED: "acknowledge",
    _SAID.UNACKNOWLEDGED: "acknowledge", _SAID.ACK_EXPIRED: "acknowledge", _SAID.INVALID_ACK: "acknowledge",
}


class _SentEvent(msgspec.Struct):
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
        self._sent: dict[tuple[str, str], _SentEvent] = {}  # by uid and reason

    async def announce(
        self, ref: cluster.Ref, reason: str, note: str, now: Instant, related: cluster.Pod | None = None
    ) -> None:
        """Tells, and only logs when that fails: what it tells of has happened all the same."""
        try:
            await self.publish(ref, reason, note, now, related)
        except errors.ClientError as problem:
            log.warning("no Event %s for %s: %s", reason, ref, problem)

    async def announce_once(self, ref: cluster.Ref, reason: str, note: str, now: Instant, episode: str) -> None:
        """Like announce, but never twice for one episode, whoever tells it: the Event is named after the episode."""
        name = hashlib.sha256(f"{ref.uid}/{reason}/{episode}".encode()).hexdigest()[:32]
        try:
            await self._create(event_body(ref, reason, note, now, instance=self._instance, name=name))
        except errors.Conflict:
            log.debug("%s of %s is told already", reason, ref)
        except errors.ClientError as problem:
            log.warning("no Event %s for %s: %s", reason, ref, problem)

    async def publish(
        self, ref: cluster.Ref, reason: str, note: str, now: Instant, related: cluster.Pod | None = None, *,
        is_news: bool = False,
    ) -> None:
        """Tells; raises when the Event was neither created nor continued. `is_news`: its words are not those of the
        last one, so that it must be one of its own."""
        self._sent = {key: sent for key, sent in self._sent.items() if now - sent.at < HOUR}
        key = (ref.uid, reason)
        before = self._sent.get(key)
        if is_news or before is None or not await self._continue(before, now):
            body = event_body(ref, reason, note, now, instance=self._instance, related=related)
            await self._create(body)
            self._sent[key] = _SentEvent(body["metadata"]["namespace"], body["metadata"]["name"], now)

    async def _create(self, body: dict[str, Any]) -> None:
        await self._api.create(kubernetes.EVENTS, body["metadata"]["namespace"], body)

    async def _continue(self, sent: _SentEvent, now: Instant) -> bool:
        series = {"series": {"count": sent.count + 1, "lastObservedTime": units.rfc3339_micros(now)}}
        try:
            where = kubernetes.EVENTS, sent.namespace, sent.name
            await self._api.merge_patch(*where, series, field_manager=names.FIELD_MANAGER)
        except errors.NotFound:  # Events live for an hour on most servers; this one was shorter
            return False
        sent.count += 1
        return True


def event_body(
    ref: cluster.Ref, reason: str, note: str, now: Instant, *, instance: str, name: str | None = None,
    related: cluster.Pod | None = None,
) -> dict[str, Any]:
    namespace = ref.namespace or "default"  # where Kubernetes keeps the Events of objects without a namespace
    body: dict[str, Any] = {
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {"name": f"{names.EVENT_PREFIX}{name or uuid.uuid4().hex}", "namespace": namespace},
        "eventTime": units.rfc3339_micros(now), "type": "Warning" if reason in names.WARNINGS else "Normal",
        "reason": reason, "action": _ACTIONS.get(reason, "observe"), "note": cut(note, NOTE_BYTES),
        "reportingController": names.REPORTING_CONTROLLER, "reportingInstance": instance,
        "regarding": _reference(ref.api_version, ref.kind, ref),
    }
    return body if related is None else body | {"related": _reference("v1", "Pod", related)}


def _reference(api_version: str, kind: str, thing: cluster.Ref | cluster.Pod) -> dict[str, str]:
    return {"apiVersion": api_version, "kind": kind, "name": thing.name, "namespace": thing.namespace, "uid": thing.uid}


def cut(text: str, size: int) -> str:
    """At most that many bytes, never half a character; an ellipsis says that something is missing."""
    encoded = text.encode()
    return text if len(encoded) <= size else encoded[: size - 3].decode(errors="ignore") + "…"
