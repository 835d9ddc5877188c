"""What we must remember although the process ends: it stands on our own Lease, where no tenant can write.

In: the annotations of the Lease. Out: what they say, and what is to be written there.
Invariants: what is written is bounded (`MOST_BYTES`, `MOST_KINDS`), and pauses that do not fit one by one are summed up
and still count. What cannot be read is lost memory, which is remembered too: nothing is paused for an hour after it.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Final, TypeAlias

import msgspec

from fallow import names
from fallow.model import units
from fallow.model.units import HOUR, MINUTE, Instant, Seconds

MOST_KINDS: Final = 64
MOST_BYTES: Final = 16 * 1024
MOST_ONES: Final = 128  # pauses, and attempts, that are written one by one
_MOST_ATTEMPTS: Final = 4096  # that one process remembers
_ERROR_TEXT: Final = 120  # characters of what a server said to an attempt
_SKEW: Final = 5 * MINUTE  # by which the clock of the holder before us may be ahead; a later stamp is no stamp

KindName: TypeAlias = tuple[str, str, str]  # group, version, kind
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class Level(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """How idle the cluster was in one cycle: GPUs found idle, of those that were measured."""

    idle: Count
    observed: Count
    at: Instant

    @property
    def share(self) -> float:
        return self.idle / self.observed if self.observed else 0.0


class PastPause(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A pause of ours, resumed since or not. Without uid and rule: several, summed up, which count for every rule."""

    uid: str
    at: Instant
    gpus: Count
    rule: str
    is_regretted: bool = False  # it was undone at once, and that is counted


class RegretCount(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """From then on, until the next one: pauses, and of these, undone at once."""

    at: Instant
    pauses: Count = 0
    regrets: Count = 0


class RuleWeek(msgspec.Struct, frozen=True, array_like=True):
    """How the pauses of one rule fared in a week, and by how much its window is widened, since when."""

    rule: str
    widened: Annotated[float, msgspec.Meta(ge=1.0, le=4.0)] = 1.0
    changed_at: Instant = 0.0
    counts: tuple[RegretCount, ...] = ()

    def sum_up(self, since: Instant = 0.0) -> tuple[int, int]:
        """Pauses and regrets, from then on."""
        counts = [each for each in self.counts if each.at >= since]
        return sum(each.pauses for each in counts), sum(each.regrets for each in counts)


class Attempt(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A workload whose pause was tried in vain so often in a row, and is not tried again before `until`."""

    uid: str
    count: Count
    until: Instant
    because: str
    gpus: Count = 0


class Freeze(msgspec.Struct, frozen=True):
    """No notices and no pauses until then."""

    until: Instant
    because: str

    def __str__(self) -> str:
        return f"frozen until {units.rfc3339(self.until)}: {self.because}"

    def holds(self, now: Instant) -> bool:
        return now < self.until


class LongMemory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Written by the holder of the Lease in every cycle; `at` tells the newer of two."""

    at: Instant = 0.0
    levels: tuple[Level, ...] = ()  # of the last known cycles, newest last
    baseline_reset: bool = False  # we froze: the level after the hold is the new baseline
    pauses: tuple[PastPause, ...] = ()  # of the last hour, oldest first
    attempts: tuple[Attempt, ...] = ()
    policies: tuple[str, ...] = ()  # some names of those that were last seen
    policies_at: Instant | None = None
    weeks: tuple[RuleWeek, ...] = ()
    lost_at: Instant | None = None  # what was remembered before could not be read


def is_within(at: Instant, now: Instant, span: float) -> bool:
    """A stamp of the last `span` seconds. One in the future is none."""
    return now - span < at <= now + _SKEW


def newer(own: LongMemory, on_lease: LongMemory) -> LongMemory:
    """Our own as long as nobody wrote after us; without any, what is lost is lost."""
    return on_lease if on_lease.at > own.at or (on_lease.lost_at and not own.at) else own


def note_attempt(
    attempts: Iterable[Attempt], uid: str, gpus: int, now: Instant, because: str, *, waits: bool
) -> tuple[Attempt, ...]:
    """One more in vain: 2, 4, 8 ... 60 minutes, unless it `waits` for nothing."""
    others, before = [each for each in attempts if each.uid != uid], [each for each in attempts if each.uid == uid]
    count = 1 + max((each.count for each in before), default=0)
    until = now + back_off(count, HOUR) if waits else now
    return (*others, Attempt(uid, count, until, because[:_ERROR_TEXT], gpus))[-_MOST_ATTEMPTS:]


def back_off(count: int, most: Seconds) -> Seconds:
    return min(2.0 ** min(count, 6) * MINUTE, most)


# ---- on the Lease ----------------------------------------------------------------------------------------------------


def read(annotations: Mapping[str, str], now: Instant) -> tuple[LongMemory, str]:
    """What stands there, and what is wrong with it."""
    text = annotations.get(names.MEMORY)
    if text is None:
        return LongMemory(), ""
    try:
        return msgspec.json.decode(text, type=LongMemory), ""
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        return LongMemory(lost_at=now), f"{names.MEMORY} on the Lease cannot be read: {problem}"


def read_freeze(annotations: Mapping[str, str], now: Instant) -> Freeze | None:
    """By hand, or our own before a restart. One that cannot be read freezes too: somebody wanted us to stand still."""
    text = annotations.get(names.FROZEN_UNTIL)
    if not text:
        return None
    until = units.read_instant(text)
    if until is None:
        odd = f"{names.FROZEN_UNTIL} on the Lease is {text!r}, which is no time"
        return Freeze(now + HOUR, f"{odd}; frozen until it is mended or removed")
    return Freeze(until, annotations.get(names.FROZEN_BECAUSE, ""))


def write_freeze(freeze: Freeze) -> dict[str, str]:
    return {names.FROZEN_UNTIL: units.rfc3339(freeze.until), names.FROZEN_BECAUSE: freeze.because}


def write(memory: LongMemory) -> dict[str, str]:
    """As an annotation. What does not fit one by one is summed up: the older pauses; or left out: the older attempts,
    which are tried once more."""
    ones = MOST_ONES
    while True:
        pauses, attempts = _sum_up(memory.pauses, ones), memory.attempts[max(0, len(memory.attempts) - ones):]
        text = msgspec.json.encode(msgspec.structs.replace(memory, pauses=pauses, attempts=attempts))
        if len(text) <= MOST_BYTES or not ones:
            return {names.MEMORY: text.decode()}
        ones //= 2


def _sum_up(pauses: tuple[PastPause, ...], ones: int) -> tuple[PastPause, ...]:
    older, rest = pauses[: max(0, len(pauses) - ones)], pauses[max(0, len(pauses) - ones):]
    if not older:
        return pauses
    return (PastPause("", max(each.at for each in older), sum(each.gpus for each in older), ""), *rest)


def read_kinds(annotations: Mapping[str, str]) -> tuple[KindName, ...]:
    """Each kind outside the table that we ever paused, oldest first."""
    found = (text.split("/") for text in annotations.get(names.PAUSED_KINDS, "").split())
    return tuple((parts[0], parts[1], parts[2]) for parts in found if len(parts) == 3)


def add_kinds(annotations: Mapping[str, str], paused: Iterable[KindName]) -> dict[str, str]:
    """The change that makes the Lease name these too; nothing where it does."""
    known = read_kinds(annotations)
    every = tuple(dict.fromkeys((*known, *paused)))
    if every == known:
        return {}
    return {names.PAUSED_KINDS: " ".join("/".join(each) for each in every[-MOST_KINDS:])}
