"""Telling owners, in four steps: route, gather, deliver, remember.

In: the notices of one cycle. Out: an Outcome for each, with what became of it on every channel. How a message gets
there is the courier's matter; what is told when the acts are over, that of afterwards.py.
Invariant: a notice that was not delivered leaves no mark, so that no grace begins that nobody was told of; the grace of
one that was begins with the delivery, however long the cycle took.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from fallow import names
from fallow.act import events, marking, sending
from fallow.act.notices import courier, route, senders
from fallow.act.notices import facts as wording
from fallow.clients import errors
from fallow.model import bills, cluster, decision, price_book
from fallow.model.decision import Delivery, Outcome, Status
from fallow.model.policies import idle
from fallow.model.policies.idle import ChannelType
from fallow.model.units import HOUR, Instant

MOST_SINGLE = 20  # notices in a cycle and channel; more become one message, or a few
_MOST_IN_ONE = 40  # workloads that one message names: all of them must be read
_TOLD_CHARACTERS = 200
_ONE_BY_ONE = (ChannelType.event, ChannelType.pagerduty)


class Address(msgspec.Struct, frozen=True):
    """What the operator said of all messages: who we are, whom to mention, what a GPU costs. `kept_for`: what the last
    acknowledgement of a workload has cost, None where nobody booked any."""

    head: wording.Letterhead = wording.Letterhead()
    mentions: route.Mentions = {}
    domains: frozenset[str] = frozenset()  # whose addresses owners may name
    book: price_book.ModelPrices = msgspec.field(default_factory=lambda: price_book.LIST)
    kept_for: Callable[[cluster.Ref], float | None] = lambda ref: None

    def find_routes(self, finding: decision.Finding, channels: Iterable[idle.Channel]) -> route.Routing:
        return route.find(finding, channels, self.mentions, self.domains)

    def gather_facts(
        self, finding: decision.Finding, now: Instant, pauses_at: Instant | None = None,
        proof: decision.Proof = decision.UNPROVEN,
    ) -> wording.NoticeFacts:
        price = bills.make(finding.holdings, self.book).per_hour
        return wording.gather(finding, now, head=self.head, pauses_at=pauses_at, per_hour=price,
                              kept_for=self.kept_for(finding.workload.ref), proof=proof)

    def dedup_key(self, uid: str, episode: str) -> str:
        """What makes several messages one incident."""
        return f"{names.FIELD_MANAGER}/{self.head.cluster_name}/{uid}/{episode}"


class _Notice(msgspec.Struct, frozen=True):
    warn: decision.Warn
    routing: route.Routing
    facts: wording.NoticeFacts


class Messenger:
    """Tells owners."""

    def __init__(
        self, writer: sending.PatchWriter, announcer: events.Announcer, out: courier.Courier, address: Address, *,
        compat: bool = True,
    ) -> None:
        self._writer, self._announcer, self._courier = writer, announcer, out
        self._address, self._compat = address, compat
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
        envelopes = self._gather(notices, lambda each, notice: (each, *_episode(notice)) in self._confirmed)
        deliveries = await self._courier.deliver(envelopes, may)  # 3. Deliver.
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
            warn, self._address.find_routes(warn.finding, warn.channels),
            self._address.gather_facts(warn.finding, now, warn.pauses_at, warn.proof),
        )

    # ---- 2. Gather: what goes the same way in one cycle, and is too much to be read one by one, becomes one message.

    def _gather(
        self, notices: Sequence[_Notice], has: Callable[[route.NoticeRoute, _Notice], bool]
    ) -> dict[route.NoticeRoute, list[senders.Envelope]]:
        """`has`: who was told of that idle time already."""
        by_route: dict[route.NoticeRoute, list[_Notice]] = {}
        for notice in notices:
            for each in notice.routing.routes:
                if not has(each, notice):
                    by_route.setdefault(each, []).append(notice)
        return {each: list(self._fill(each, some)) for each, some in by_route.items()}

    def _fill(self, each: route.NoticeRoute, notices: Sequence[_Notice]) -> Iterable[senders.Envelope]:
        if len(notices) > MOST_SINGLE and each.channel.type not in _ONE_BY_ONE:
            for start in range(0, len(notices), _MOST_IN_ONE):
                some = notices[start : start + _MOST_IN_ONE]
                mentions = tuple(dict.fromkeys(whom for notice in some for whom in notice.routing.mentions))
                yield senders.Envelope(route=each, facts=tuple(notice.facts for notice in some), mentions=mentions)
            return
        for notice in notices:
            key = self._address.dedup_key(*_episode(notice))
            yield senders.Envelope(route=each, facts=(notice.facts,), mentions=notice.routing.mentions, dedup_key=key)

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


def _episode(notice: _Notice) -> tuple[str, str]:
    return notice.facts.ref.uid, notice.warn.episode


def _would_tell(warn: decision.Warn) -> str:
    return f"would tell the owner of {warn.finding.workload.ref}"
