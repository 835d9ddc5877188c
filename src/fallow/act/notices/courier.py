"""Messages on their way: each by its wire, some at a time on each channel; one that fails stops only itself.

In: envelopes by route. Out: by route and workload, "" or why it was not delivered. Waiting and trying again is the
wire's matter (clients/messages/post.py), written once for all channels.
Invariant: a round ends with BUDGET, whatever hangs; a channel that does not answer is not asked again in the same
round, and holds up no other.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from fallow import names
from fallow.act import events
from fallow.act.notices import route, senders, text
from fallow.clients import errors
from fallow.model.policies import idle
from fallow.model.policies.idle import ChannelType
from fallow.model.units import Seconds

log = logging.getLogger(__name__)

BUDGET: Seconds = 60.0  # for all messages of a round; what is not sent by then was not delivered
_AT_ONCE = 8  # on one channel
_MAY_NOT = "we are no longer the one who may act"

Envelopes: TypeAlias = Mapping[route.NoticeRoute, Sequence[senders.Envelope]]
Became: TypeAlias = dict[tuple[route.NoticeRoute, str], str]  # by route and uid: "" = delivered, else why not


class _Round:
    """What the messages of one round share: when they must be over, and whom it is no use to ask."""

    def __init__(self, budget: Seconds) -> None:
        self.ends = asyncio.get_running_loop().time() + budget
        self.turns: defaultdict[idle.Channel, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(_AT_ONCE))
        self.silent: set[idle.Channel] = set()


class Courier:
    """`wires` None: there are no channels but Events."""

    def __init__(
        self, announcer: events.Announcer, wires: senders.Senders | None = None, *, budget: Seconds = BUDGET
    ) -> None:
        self._announcer, self._wires, self._budget = announcer, wires, budget

    async def deliver(self, envelopes: Envelopes, may: Callable[[], bool] = lambda: True) -> Became:
        """All of them. `may`: whether we may still act."""
        found, around = Became(), _Round(self._budget)

        async def send(envelope: senders.Envelope) -> None:
            async with around.turns[envelope.route.channel]:
                failure = await self._send(envelope, around) if may() else _MAY_NOT
            found.update({(envelope.route, facts.ref.uid): failure for facts in envelope.facts})

        await asyncio.gather(*(send(envelope) for some in envelopes.values() for envelope in some))
        return found

    async def _send(self, envelope: senders.Envelope, around: _Round) -> str:
        """"" or why not. A room that an owner wished for and that is not there costs the operator no notice."""
        failure = await self._send_once(envelope, around)
        if failure and envelope.route.is_wish:
            own = msgspec.structs.replace(envelope, route=envelope.route.own)
            failure = await self._send_once(own, around) and failure
        return failure

    async def _send_once(self, envelope: senders.Envelope, around: _Round) -> str:
        channel = envelope.route.channel
        if channel in around.silent:
            return f"channel {channel.name}: it did not answer others a moment ago, and was not asked again"
        try:
            async with asyncio.timeout_at(around.ends):
                return await self._hand_over(envelope)
        except TimeoutError:
            return f"channel {channel.name}: the time for messages of this cycle was over"
        except errors.Unreachable as problem:
            around.silent.add(channel)
            return f"channel {channel.name}: {problem}"
        except errors.ClientError as problem:
            return f"channel {channel.name}: {problem}"
        except Exception as problem:  # a bug in one message: the others go out
            log.exception("a message by channel %s failed", channel.name)
            return f"channel {channel.name}: unexpected {type(problem).__name__}"

    async def _hand_over(self, envelope: senders.Envelope) -> str:
        channel = envelope.route.channel
        if channel.type == ChannelType.event:
            [facts] = envelope.facts
            note = text.notice_note(facts.finding, facts.pauses_at, facts.now)
            await self._announcer.publish(facts.ref, names.Event.NOTICE_SENT, note, facts.now, is_news=True)
        elif self._wires is None:
            return f"channel {channel.name}: {channel.type} is not set up here"
        else:
            await self._wires.send(envelope)
        return ""

    async def close(self, channel: idle.Channel, dedup_key: str) -> bool:
        """Of an incident: whether there is nothing more to do about it."""
        try:
            if self._wires is not None:
                await self._wires.resolve(channel, dedup_key)
        except errors.Misconfigured as problem:  # never opened, and never to be closed
            log.warning("channel %s cannot be used: %s", channel.name, problem)
        except errors.ClientError as problem:
            log.warning("an incident of channel %s is still open: %s", channel.name, problem)
            return False
        except Exception:  # a bug: of this message only
            log.exception("an incident of channel %s was not closed", channel.name)
        return True
