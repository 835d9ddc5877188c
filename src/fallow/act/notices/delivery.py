"""Telling owners, in four steps: route, gather, deliver, remember.

In: the notices of one cycle. Out: an Outcome for each, with what became of it on every channel. Waiting and trying
again is the wire's matter (clients/messages/post.py), written once for all channels.
Invariant: a notice that was not delivered leaves no mark, so that no grace begins that nobody was told of; the grace of
one that was begins with the delivery, however long the cycle took.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from fallow import names
from fallow.act import events, marking, sending
from fallow.act.notices import facts as wording
from fallow.act.notices import route, senders, text
from fallow.clients import errors
from fallow.model import decision
from fallow.model.decision import Delivery, Outcome, Status
from fallow.model.policies import idle
from fallow.model.units import HOUR, Instant, Seconds

log = logging.getLogger(__name__)

MOST_SINGLE = 20  # notices in a cycle and channel; more become one message, or a few
_MOST_IN_ONE = 40  # workloads that one message names: all of them must be read
BUDGET: Seconds = 60.0  # for all messages of a cycle; what is not sent by then was not delivered
_AT_ONCE = 8
_MOST_CLOSED = 20  # incidents in one cycle: a pager that is down must not take all its time
_TOLD_CHARACTERS = 200

Price: TypeAlias = Callable[[decision.Finding], float | None]  # of all its GPUs, an hour; None: not known


class Address(msgspec.Struct, frozen=True):
    """What the operator said of all messages: who we are, whom to mention, what a GPU costs."""

    head: wording.Letterhead = wording.Letterhead()
    mentions: route.Mentions = {}
    domains: frozenset[str] = frozenset()  # whose addresses owners may name
    price: Price = lambda finding: None


class _Notice(msgspec.Struct, frozen=True):
    warn: decision.Warn
    routing: route.Routing
    facts: wording.NoticeFacts


class Messenger:
    """Tells owners. `wires` None: there are no channels but Events."""

    def __init__(
        self, writer: sending.PatchWriter, announcer: events.Announcer, *, wires: senders.Senders | None = None,
        address: Address | None = None, compat: bool = True,
    ) -> None:
        self._writer, self._announcer, self._wires = writer, announcer, wires
        self._address, self._compat = address or Address(), compat
        # Who was paged, for which idle time: (uid, episode).
        self._incidents: dict[tuple[str, str], tuple[idle.Channel, ...]] = {}
        # Who has it already, though another channel that must confirm it did not: nobody is told in every cycle.
        self._confirmed: dict[tuple[route.NoticeRoute, str, str], Instant] = {}

    async def warn(
        self, warns: Sequence[decision.Warn], now: Instant, clock: Callable[[], Instant],
        may: Callable[[], bool] = lambda: True,
    ) -> list[Outcome]:
        """`now`: of the cycle; `may`: whether we may still act."""
        if self._writer.is_dry:
            return [Outcome(each, Status.dry_run, now, _would_tell(each)) for each in warns]
        notices = [self._route(each, now) for each in warns]
        self._confirmed = {key: at for key, at in self._confirmed.items() if now - at < HOUR}
        envelopes = _gather(notices, lambda each, notice: (each, *_episode(notice)) in self._confirmed)
        deliveries = await self._deliver(envelopes, may)
        self._confirmed |= {
            (each, *_episode(notice)): now for notice in notices for each in notice.routing.routes
            if deliveries.get((each, notice.facts.ref.uid)) == ""
        }
        outcomes = [await self._remember(notice, deliveries, now, clock, may) for notice in notices]
        given = {_episode(each) for each, became in zip(notices, outcomes, strict=True) if became.status is Status.done}
        # One that was given is over: should the same idle time be told again, that is a new one.
        self._confirmed = {key: at for key, at in self._confirmed.items() if key[1:] not in given}
        return outcomes

    # ---- 1. Route: by which channels, to whom.

    def _route(self, warn: decision.Warn, now: Instant) -> _Notice:
        return _Notice(
            warn, self._find_routes(warn.finding, warn.channels),
            self._gather_facts(warn.finding, now, warn.pauses_at),
        )

    def _find_routes(self, finding: decision.Finding, channels: Iterable[idle.Channel]) -> route.Routing:
        return route.find(finding, channels, self._address.mentions, self._address.domains)

    def _gather_facts(self, finding: decision.Finding, now: Instant, pauses_at: Instant | None) -> wording.NoticeFacts:
        price = self._address.price(finding)
        return wording.gather(finding, now, head=self._address.head, pauses_at=pauses_at, per_hour=price)

    # ---- 3. Deliver: each message by its wire, some at a time; one that fails stops only itself.

    async def _deliver(
        self, envelopes: Mapping[route.NoticeRoute, Sequence[senders.Envelope]], may: Callable[[], bool]
    ) -> dict[tuple[route.NoticeRoute, str], str]:
        """By route and uid: "" = delivered, else why not."""
        turn, found = asyncio.Semaphore(_AT_ONCE), dict[tuple[route.NoticeRoute, str], str]()
        clock = asyncio.get_running_loop().time
        ends = clock() + BUDGET

        async def send(envelope: senders.Envelope) -> None:
            async with turn:
                late = f"channel {envelope.route.channel.name}: the time for messages of this cycle was over"
                failure = "we are no longer the one who may act" if not may() else late if clock() > ends else ""
                failure = failure or await self._send(envelope)
            found.update({(envelope.route, facts.ref.uid): failure for facts in envelope.facts})

        await asyncio.gather(*(send(envelope) for some in envelopes.values() for envelope in some))
        return found

    async def _send(self, envelope: senders.Envelope) -> str:
        """"" or why not. A room that an owner wished for and that is not there costs the operator no notice."""
        failure = await self._send_once(envelope)
        if failure and envelope.route.is_wish:
            own = msgspec.structs.replace(envelope, route=envelope.route.own)
            failure = await self._send_once(own) and failure
        return failure

    async def _send_once(self, envelope: senders.Envelope) -> str:
        channel = envelope.route.channel
        try:
            if channel.type == "event":
                [facts] = envelope.facts
                note = text.notice_note(facts.finding, facts.pauses_at, facts.now)
                await self._announcer.publish(facts.ref, names.Event.NOTICE_SENT, note, facts.now, is_news=True)
            elif self._wires is None:
                return f"channel {channel.name}: {channel.type} is not set up here"
            else:
                await self._wires.send(envelope)
        except errors.ClientError as problem:
            return f"channel {channel.name}: {problem}"
        except Exception as problem:  # a bug in one message: the others go out
            log.exception("a message by channel %s failed", channel.name)
            return f"channel {channel.name}: unexpected {type(problem).__name__}"
        return ""

    # ---- 4. Remember: on the object, and only what was delivered.

    async def _remember(
        self, notice: _Notice, found: Mapping[tuple[route.NoticeRoute, str], str], now: Instant,
        clock: Callable[[], Instant], may: Callable[[], bool],
    ) -> Outcome:
        warn, workload = notice.warn, notice.warn.finding.workload
        tried = [(each, self._failure_of(each, notice, found)) for each in notice.routing.routes]
        deliveries = tuple(Delivery(each.channel.name, each.channel.type, failure) for each, failure in tried)
        failures = [failure for _, failure in tried if failure]
        if len(failures) == len(tried) or (failures and warn.finding.rule.notice.require_all):
            because = "the notice was not delivered: " + ("; ".join(failures) or "there is nobody to tell")
            await self._announcer.announce(workload.ref, names.Event.NOTICE_FAILED, because, now)
            return Outcome(warn, Status.failed, now, because, deliveries=deliveries)
        if not may():
            return Outcome(warn, Status.overtaken, now, "told, and not written down: we may no longer act",
                           code=decision.Code.NotBegun, deliveries=deliveries)
        whom = ", ".join(dict.fromkeys(each.whom for each, failure in tried if not failure))[:_TOLD_CHARACTERS]
        changes = marking.with_aliases(marking.notice_changes(warn, whom, clock()), self._compat)
        try:
            version = workload.marks_version
            await self._writer.send(sending.annotate(workload.marks_ref, changes, resource_version=version))
        except errors.ClientError as problem:
            because = f"told {whom}, but that could not be written down, so that the notice does not count: {problem}"
            return Outcome(warn, Status.failed, now, because, deliveries=deliveries)
        said = f"told {whom}: {notice.facts.headline} {notice.facts.upcoming}"
        return Outcome(warn, Status.done, now, "; ".join([said, *failures]), after=changes, deliveries=deliveries)

    def _failure_of(
        self, each: route.NoticeRoute, notice: _Notice, found: Mapping[tuple[route.NoticeRoute, str], str]
    ) -> str:
        """"" only where it was confirmed, now or in a cycle before."""
        if (each, *_episode(notice)) in self._confirmed:
            return ""
        return found.get((each, notice.facts.ref.uid)) or f"channel {each.channel.name}: nothing was sent"

    # ---- After the notice.

    async def tell_paused(self, finding: decision.Finding, what: str, now: Instant) -> tuple[Delivery, ...]:
        """Whoever was told before is told that it rests now, and how it comes back. It counts for nothing else."""
        routing = self._find_routes(finding, finding.rule.notice.channels)
        facts, ref = self._gather_facts(finding, now, None), finding.workload.ref
        episode = finding.workload.marks.get(names.IDLE_EPISODE, "")
        spoken = [each for each in routing.routes if each.channel.type != "event"]
        envelopes = {each: [senders.Envelope(
            route=each, facts=(facts,), what=what, dedup_key=_dedup_key(self._address.head, ref.uid, episode)
        )] for each in spoken}
        found = await self._deliver(envelopes, lambda: True)
        for (each, _), failure in found.items():
            if failure:
                log.warning("%s is paused, and %s was not told: %s", ref, each.whom, failure)
        return tuple(Delivery(each.channel.name, each.channel.type, failure) for (each, _), failure in found.items())

    async def settle(self, findings: Iterable[decision.Finding]) -> None:
        """Of a cycle: who was paged for an idle time that is over is told so. `findings`: those with a notice."""
        running = {
            (each.workload.ref.uid, each.workload.marks.get(names.IDLE_EPISODE, "")): tuple(
                channel for channel in each.rule.notice.channels if channel.type == "pagerduty"
            ) for each in findings
        }
        ended = {key: channels for key, channels in self._incidents.items() if key not in running}
        self._incidents = {key: channels for key, channels in running.items() if channels}
        self._incidents |= dict(list(ended.items())[_MOST_CLOSED:])
        for (uid, episode), channels in list(ended.items())[:_MOST_CLOSED]:
            key = _dedup_key(self._address.head, uid, episode)
            if left := tuple([channel for channel in channels if not await self._close(channel, key)]):
                self._incidents[uid, episode] = left  # tried again in the next cycle

    async def _close(self, channel: idle.Channel, key: str) -> bool:
        try:
            if self._wires is not None:
                await self._wires.resolve(channel, key)
        except errors.Misconfigured as problem:  # never opened, and never to be closed
            log.warning("channel %s cannot be used: %s", channel.name, problem)
        except errors.ClientError as problem:
            log.warning("an incident of channel %s is still open: %s", channel.name, problem)
            return False
        except Exception:  # a bug: of this message only
            log.exception("an incident of channel %s was not closed", channel.name)
        return True


# ---- 2. Gather: what goes the same way in one cycle, and is too much to be read one by one, becomes one message.


def _gather(
    notices: Sequence[_Notice], has: Callable[[route.NoticeRoute, _Notice], bool]
) -> dict[route.NoticeRoute, list[senders.Envelope]]:
    """`has`: who was told of that idle time already."""
    by_route: dict[route.NoticeRoute, list[_Notice]] = {}
    for notice in notices:
        for each in notice.routing.routes:
            if not has(each, notice):
                by_route.setdefault(each, []).append(notice)
    return {each: list(_fill(each, some)) for each, some in by_route.items()}


def _fill(each: route.NoticeRoute, notices: Sequence[_Notice]) -> Iterable[senders.Envelope]:
    if len(notices) > MOST_SINGLE and each.channel.type not in ("event", "pagerduty"):
        for start in range(0, len(notices), _MOST_IN_ONE):
            some = notices[start : start + _MOST_IN_ONE]
            mentions = tuple(dict.fromkeys(whom for notice in some for whom in notice.routing.mentions))
            yield senders.Envelope(route=each, facts=tuple(notice.facts for notice in some), mentions=mentions)
        return
    for notice in notices:
        key = _dedup_key(notice.facts.head, notice.facts.ref.uid, notice.warn.episode)
        yield senders.Envelope(route=each, facts=(notice.facts,), mentions=notice.routing.mentions, dedup_key=key)


def _episode(notice: _Notice) -> tuple[str, str]:
    return notice.facts.ref.uid, notice.warn.episode


def _dedup_key(head: wording.Letterhead, uid: str, episode: str) -> str:
    """What makes several messages one incident."""
    return f"{names.FIELD_MANAGER}/{head.cluster_name}/{uid}/{episode}"


def _would_tell(warn: decision.Warn) -> str:
    return f"would tell the owner of {warn.finding.workload.ref}"
