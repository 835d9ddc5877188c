"""What owners are told when the acts of a cycle are over: that a workload rests now, that an incident has ended.

In: what was paused, what stands paused, who still has a notice. Out: messages, in the background: no pause waits for a
channel, and no cycle does. There is one round at a time, within the courier's budget. Who did not confirm is tried
again after the next cycle, for an hour and only while the workload rests; who did is not told twice.
Invariant: it counts for nothing else: a message that is never delivered changes no verdict, mark or grace.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

import msgspec

from fallow import names
from fallow.act.notices import courier, delivery, route, senders
from fallow.model import cluster, decision
from fallow.model.decision import Delivery
from fallow.model.policies import idle
from fallow.model.policies.idle import ChannelType
from fallow.model.units import HOUR, Instant, Seconds

log = logging.getLogger(__name__)

LAST_WORDS: Seconds = 5.0  # for what is on its way when a daemon stops
_TRIED_FOR = HOUR
_MOST_CLOSED = 20  # incidents in one round


class _Owed(msgspec.Struct, frozen=True):
    """That a workload rests, to be told to who did not confirm it yet."""

    finding: decision.Finding
    what: str
    at: Instant
    left: tuple[route.NoticeRoute, ...]

    @property
    def ref(self) -> cluster.Ref:
        return self.finding.workload.ref


class Afterwards:
    """`note`: is handed what became of each message."""

    def __init__(
        self, sending: courier.Courier, address: delivery.Address, note: Callable[[Delivery], None] = lambda each: None
    ) -> None:
        self._courier, self._address, self._note = sending, address, note
        self._owed: dict[str, _Owed] = {}  # by uid: of an older pause nobody wants to know
        # Who was paged, for which idle time (uid, episode): those that run, and those to be closed.
        self._incidents: dict[tuple[str, str], tuple[idle.Channel, ...]] = {}
        self._ended: dict[tuple[str, str], tuple[idle.Channel, ...]] = {}
        self._round: asyncio.Task[None] | None = None

    def owe(self, finding: decision.Finding, what: str, now: Instant) -> None:
        """It was paused: to be told when the acts of this cycle are over."""
        routing = self._address.find_routes(finding, finding.rule.notice.channels)
        spoken = tuple(each for each in routing.routes if each.channel.type != ChannelType.event)
        if spoken:
            self._owed[finding.workload.ref.uid] = _Owed(finding, what, now, spoken)

    def begin(self, now: Instant, resting: Iterable[str], noticed: Iterable[decision.Finding]) -> None:
        """The acts are over. `resting`: uids of what stood paused before them; `noticed`: those with a notice."""
        self._note_incidents(noticed)
        if any(each.at < now for each in self._owed.values()):
            still = frozenset(resting)
            self._owed = {
                uid: each for uid, each in self._owed.items()
                if each.at >= now or (uid in still and now - each.at < _TRIED_FOR)
            }
        is_free = self._round is None or self._round.done()
        if is_free and (self._owed or self._ended):
            self._round = asyncio.create_task(self._go_round())

    async def finish(self, patience: Seconds) -> None:
        """Before we end: what is on its way may arrive in that time."""
        if self._round is None:
            return
        await asyncio.wait({self._round}, timeout=patience)
        self._round.cancel()
        await asyncio.gather(self._round, return_exceptions=True)
        for each in self._owed.values():
            log.warning("%s is paused, and we end before %s is told", each.ref, _whom(each.left))

    async def _go_round(self) -> None:
        await asyncio.gather(self._tell(), self._close())

    async def _tell(self) -> None:
        envelopes: dict[route.NoticeRoute, list[senders.Envelope]] = {}
        tried = dict(self._owed)
        for owed in tried.values():
            for each in owed.left:
                envelopes.setdefault(each, []).append(self._write(owed, each))
        became = await self._courier.deliver(envelopes)
        for (each, _), failure in became.items():
            self._note(Delivery(each.channel.name, each.channel.type, failure))
        for uid, owed in tried.items():
            self._take_in(uid, owed, {each: became[each, uid] for each in owed.left})

    def _write(self, owed: _Owed, each: route.NoticeRoute) -> senders.Envelope:
        episode = owed.finding.workload.marks.get(names.IDLE_EPISODE, "")
        return senders.Envelope(
            route=each, facts=(self._address.gather_facts(owed.finding, owed.at),), what=owed.what,
            dedup_key=self._address.dedup_key(owed.ref.uid, episode),
        )

    def _take_in(self, uid: str, owed: _Owed, became: dict[route.NoticeRoute, str]) -> None:
        for each, failure in became.items():
            if failure:
                log.warning("%s is paused, and %s was not told: %s", owed.ref, each.whom, failure)
        if self._owed.get(uid) is not owed:  # it was paused anew meanwhile, or rests no more
            return
        if left := tuple(each for each, failure in became.items() if failure):
            self._owed[uid] = msgspec.structs.replace(owed, left=left)
        else:
            del self._owed[uid]

    # ---- incidents

    def _note_incidents(self, noticed: Iterable[decision.Finding]) -> None:
        """Who was paged for an idle time that is over is to be told so."""
        running = {
            (each.workload.ref.uid, each.workload.marks.get(names.IDLE_EPISODE, "")): tuple(
                channel for channel in each.rule.notice.channels if channel.type == ChannelType.pagerduty
            ) for each in noticed
        }
        self._ended |= {key: channels for key, channels in self._incidents.items() if key not in running}
        self._incidents = {key: channels for key, channels in running.items() if channels}

    async def _close(self) -> None:
        """Those that are not closed are tried again."""
        try:
            async with asyncio.timeout(courier.BUDGET):
                for (uid, episode), channels in list(self._ended.items())[:_MOST_CLOSED]:
                    key = self._address.dedup_key(uid, episode)
                    left = tuple([each for each in channels if not await self._courier.close(each, key)])
                    del self._ended[uid, episode]
                    if left:  # behind the others
                        self._ended[uid, episode] = left
        except TimeoutError:
            log.warning("%d incidents are still open: there was no time left to close them", len(self._ended))


def _whom(routes: Iterable[route.NoticeRoute]) -> str:
    return ", ".join(dict.fromkeys(each.whom for each in routes))
