"""The story of the digest: when its time has come, what became of the GPUs since the last one goes to whoever wants it.

In: the schedule, the audit, the latest cycle of the idle story, the wires. Out: a DigestTurn: what was sent where.
Which digest goes to whom stands on the Lease before it goes, and that it went after: whoever takes over finds a channel
to which one was under way, cannot know whether it arrived, and leaves it at that. At most once, for what dies while it
sends would else send again and again; who misses one asks `fallow digest`. A channel that did not take it is tried
again in every turn until the next one is due, and the others are left alone.
Invariant: the first time that a schedule is seen, nothing is sent for a time before it. Whatever becomes of a digest
stops no cycle.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from fallow import names, telemetry
from fallow.account import audit, digest
from fallow.account.held_idle import BookedDays
from fallow.act.notices import digesting, facts, senders
from fallow.clients import errors
from fallow.clients.kubernetes import lease
from fallow.model import decision, units
from fallow.model.digest import Digest
from fallow.model.policies import idle
from fallow.model.schedule import Schedule
from fallow.model.units import HOUR, Instant, Seconds
from fallow.stories.turn import Turn, stumbling

log = logging.getLogger("fallow")

INTERVAL: Final[Seconds] = 60.0
Note: TypeAlias = Callable[[lease.MakeChanges], Awaitable[None]]  # writes on the Lease; a successor finds it
Booked: TypeAlias = Callable[[Instant, Instant], Awaitable[BookedDays | None]]
_PATIENCE: Final[Seconds] = HOUR  # for a cluster that cannot be seen just when the digest is due
_LOG: Final = "log"  # where it goes when there is no channel


class SentDigest(msgspec.Struct, frozen=True, omit_defaults=True):
    """On the Lease: the time it was due, the channels that have it, and the one to which it is under way."""

    due: str
    sent: tuple[str, ...] = ()
    sending: str = ""
    is_over: bool = False  # everybody has it, or it was due before anybody asked


class DigestTurn(msgspec.Struct, frozen=True):
    """What one turn amounted to. A digest that was not delivered is no failure of the daemon: it is said, and tried
    again."""

    sent: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()
    failure: str = ""


class DigestStory:
    """`recall`: the annotations of the Lease; `note`: writes there, None: there is none, and we remember ourselves.
    `booked`: what the books have of some days; None: none are kept."""

    def __init__(
        self, *, schedule: Schedule, ask: digest.DigestAsk, channels: Sequence[idle.Channel], kept: audit.Audit,
        latest: Callable[[], decision.Cycle | None], wires: senders.Senders, head: facts.Letterhead,
        metrics: telemetry.Telemetry, recall: Callable[[], Mapping[str, str]], note: Note | None,
        booked: Booked | None = None,
    ) -> None:
        self._schedule, self._ask, self._channels, self._kept = schedule, ask, channels, kept
        self._latest, self._wires, self._head, self._metrics = latest, wires, head, metrics
        self._recall, self._note, self._booked = recall, note, booked
        self._own: SentDigest | None = None
        self._missed: tuple[str, ...] = ()

    async def tick(self, turn: Turn) -> DigestTurn:
        # 1. Look: which one is due, and who has it.
        due, sent = self._schedule.latest(turn.now), self._find_sent()
        if sent is None:  # nobody was promised the one that lies before us
            await self._remember(SentDigest(units.rfc3339(due), is_over=True))
            return DigestTurn()
        is_same = sent.due >= units.rfc3339(due)
        is_over = is_same and (sent.is_over or self._have_all(sent.sent))
        if is_over or not (self._is_known() or turn.now - due > _PATIENCE):
            return DigestTurn()
        # 2. Make it, 3. send it, 4. remember who has it, 5. tell.
        had = sent.sent if is_same else ()
        try:
            with stumbling():
                made = await self._make(due)
        except errors.ClientError as problem:  # no other story reads all that it is made of
            return self._miss(had, (f"it could not be made: {problem}",))
        with stumbling():
            return await self._send(made, SentDigest(units.rfc3339(due), had), turn)

    def _is_known(self) -> bool:
        """What rests now, and whether it was seen."""
        latest = self._latest()
        return latest is not None and latest.snapshot is not None

    async def look(self, turn: Turn) -> DigestTurn:
        return DigestTurn()

    def fail(self, because: str, turn: Turn) -> DigestTurn:
        """Nothing could be looked at: the idle story says so, once for both."""
        return DigestTurn()

    async def _make(self, due: Instant) -> Digest:
        since = max(self._schedule.latest(due - 1), due - digest.LONGEST)
        booked = None if self._booked is None else await self._booked(since, due)
        asked = msgspec.structs.replace(self._ask, since=since, until=due)
        made = await digest.make(self._kept, self._latest(), asked, booked)
        return made if self._is_known() else _forget_now(made)

    async def _send(self, made: Digest, sent: SentDigest, turn: Turn) -> DigestTurn:
        if not self._channels:
            log.info("digest\n%s", digesting.write_text(made), extra={"fields": {"digest": msgspec.to_builtins(made)}})
            await self._remember(msgspec.structs.replace(sent, sent=(_LOG,), is_over=True))
            return DigestTurn((_LOG,))
        missed = []
        for channel in self._channels:
            if channel.name in sent.sent or not turn.may_act():
                continue
            if why := await self._announce(sent, channel) or await self._send_one(channel, made):
                missed.append(f"{channel.name}: {why}")
            else:
                every = (*sent.sent, channel.name)
                sent = msgspec.structs.replace(sent, sent=every, is_over=self._have_all(every))
            await self._remember(sent)
        return self._miss(sent.sent, tuple(missed))

    def _have_all(self, sent: Sequence[str]) -> bool:
        """Whatever channels there were before."""
        return bool(self._channels) and {channel.name for channel in self._channels} <= set(sent)

    async def _announce(self, sent: SentDigest, channel: idle.Channel) -> str:
        """What is under way, before it goes; "" or why that could not be written down, and then nothing is sent."""
        return await self._remember(msgspec.structs.replace(sent, sending=channel.name))

    async def _send_one(self, channel: idle.Channel, made: Digest) -> str:
        """"" or why not."""
        try:
            await self._wires.send_digest(channel, made, self._head)
        except errors.ClientError as problem:
            self._metrics.add("fallow_digests_total", 1, (channel.type, "failed"))
            return str(problem)
        except Exception as problem:  # an odd address, or a bug in one message: the others go out
            log.exception("the digest by %s failed", channel.name)
            self._metrics.add("fallow_digests_total", 1, (channel.type, "failed"))
            return f"unexpected {type(problem).__name__}"
        self._metrics.add("fallow_digests_total", 1, (channel.type, "done"))
        log.info("the digest of %s to %s went by %s", made.since, made.until, channel.name)
        return ""

    def _miss(self, sent: tuple[str, ...], missed: tuple[str, ...]) -> DigestTurn:
        """What is the matter, if anything is, is said once, not with every try."""
        for each in missed:
            if each not in self._missed:
                log.warning("the digest was not delivered, and is tried again: %s", each)
        self._missed = missed
        return DigestTurn(sent, missed)

    def _find_sent(self) -> SentDigest | None:
        """What cannot be read is as if nothing stood there: one digest too few, and none twice. What we could not write
        down there we know ourselves."""
        text, own = self._recall().get(names.DIGEST), self._own
        if text is None:
            return own
        try:
            found = msgspec.json.decode(text, type=SentDigest)
        except msgspec.DecodeError as problem:
            if own is None:
                log.warning("%s on the Lease cannot be read, so that no digest is sent before the next time: %s",
                            names.DIGEST, problem)
            return own
        if own is not None and _progress(own) >= _progress(found):
            return own
        self._own = _settle(found) if found.sending else own  # known from now on: that is said once
        return self._own if found.sending else found

    async def _remember(self, sent: SentDigest) -> str:
        """"" or why it does not stand on the Lease."""
        self._own = msgspec.structs.replace(sent, sending="")
        if self._note is None:
            return ""
        try:
            await self._note(lambda said: {names.DIGEST: msgspec.json.encode(sent).decode()})
        except errors.ClientError as problem:
            return f"what is sent could not be written on the Lease: {problem}"
        return ""


def _progress(sent: SentDigest) -> tuple[str, int]:
    return sent.due, len(sent.sent) + bool(sent.sending)


def _settle(found: SentDigest) -> SentDigest:
    """Whoever was sending it is gone: nobody knows whether it arrived, and it does not go again."""
    log.warning("the digest of %s was under way to %s when its sender ended; it is not sent there again", found.due,
                found.sending)
    return msgspec.structs.replace(found, sent=(*found.sent, found.sending), sending="")


def _forget_now(made: Digest) -> Digest:
    """What rests now was not seen, nor who keeps what: not known, which is not nothing. The books know
    what is booked."""
    saved = msgspec.structs.replace(made.savings, gpu_hours=None, cost=None, unpriced_gpu_hours=None)
    return msgspec.structs.replace(made, acks=None, savings=made.savings if made.source == "books" else saved)
