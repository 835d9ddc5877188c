"""How fast we may go, whatever the rules allow: the caps, and the freeze when too much turns idle at once.

In: candidates with their GPUs, what was paused in the last hour, how idle the last cycles were. Out: who may go now and
why others wait; whether we freeze; what of our memory still counts.
Invariants: no cap is ever exceeded, except that one workload always fits the hourly share (else a large one could never
be paused); a freeze stops notices and pauses, never a resume; memory that is lost or old only makes us slower.
"""

import math
from collections import Counter
from collections.abc import Mapping
from statistics import median
from typing import Final

import msgspec

from fallow.model import long_memory, units
from fallow.model.decision import Memory, Reason
from fallow.model.long_memory import Freeze, Level, LongMemory
from fallow.model.policies import idle
from fallow.model.units import DAY, HOUR, Instant

REMEMBERED: Final = 10  # cycles whose median is the baseline
KNOWN: Final = 3  # with fewer there is no baseline yet


def recall(brakes: idle.Brakes, memory: Memory, on_lease: LongMemory, term: int | None, now: Instant) -> Memory:
    """What of it still counts: the newer of ours and the Lease's; and confirmations, unless somebody led since."""
    long = long_memory.newer(memory.long, on_lease)
    is_fresh = memory.term == term and now - memory.at <= brakes.confirm_within
    return msgspec.structs.replace(
        memory, confirmed=memory.confirmed if is_fresh else {}, long=msgspec.structs.replace(
            long, levels=tuple(each for each in long.levels if long_memory.is_within(each.at, now, DAY)),
            pauses=tuple(each for each in long.pauses if long_memory.is_within(each.at, now, HOUR)),
            attempts=tuple(each for each in long.attempts if long_memory.is_within(each.until - HOUR, now, 2 * HOUR)),
            lost_at=long.lost_at if long.lost_at and long_memory.is_within(long.lost_at, now, HOUR) else None,
        )
    )


def why_none(brakes: idle.Brakes, long: LongMemory) -> tuple[Reason, str] | None:
    """Why nothing at all is paused in this cycle."""
    if long.lost_at is not None:
        until = units.rfc3339(long.lost_at + HOUR)
        because = f"what was paused in the last hour is not known: our memory on the Lease was lost; wait until {until}"
        return Reason.Capped, because
    if len(long.levels) < brakes.baseline_cycles and not long.baseline_reset:
        known = f"{len(long.levels)} of {brakes.baseline_cycles} cycles"
        return Reason.Confirming, f"how idle the cluster usually is, is known of {known}: nothing is paused before"
    return None


def why_not_by_flags(long: LongMemory, now: Instant) -> str | None:
    """For a cycle in which no policy is there: they may have gone by accident, with their CRD or their namespace."""
    if long.policies_at is None or not long_memory.is_within(long.policies_at, now, HOUR):
        return None
    seen, until = units.rfc3339(long.policies_at), units.rfc3339(long.policies_at + HOUR)
    some = ", ".join(long.policies)
    return f"policies were there at {seen} ({some}) and none is now: the flags alone count from {until} on"


class Spent(msgspec.Struct, frozen=True):
    """What the last hour took: GPUs in all and by rule; and what there is."""

    gpus: int
    by_rule: Mapping[str, int]
    allocated: int
    allocated_by_rule: Mapping[str, int]


class Caps:
    """Hands out permissions in the order it is asked."""

    def __init__(self, brakes: idle.Brakes, spent: Spent) -> None:
        self._brakes, self._spent = brakes, spent
        self._gpus, self._gpus_by_rule, self._taken = spent.gpus, Counter(spent.by_rule), 0
        self._by_namespace: Counter[str] = Counter()
        self._by_rule: Counter[str] = Counter()

    @property
    def is_full(self) -> bool:
        return self._taken >= self._brakes.max_actions_per_cycle

    def take(self, namespace: str, rule: idle.Rule, gpus: int) -> None:
        """Count one that goes."""
        self._taken += 1
        self._by_namespace[namespace] += 1
        self._by_rule[rule.name] += 1
        self._gpus += gpus
        self._gpus_by_rule[rule.name] += gpus

    def why_not(self, namespace: str, rule: idle.Rule, gpus: int) -> str | None:
        """The cap that one more pause would break; None = it may go."""
        brakes = self._brakes
        if self.is_full:
            return f"{brakes.max_actions_per_cycle} pauses in one cycle are the most allowed"
        if self._by_namespace[namespace] >= brakes.max_actions_per_namespace:
            return f"{brakes.max_actions_per_namespace} pauses per namespace in one cycle are the most allowed"
        if rule.max_actions_per_cycle is not None and self._by_rule[rule.name] >= rule.max_actions_per_cycle:
            return f"{rule.max_actions_per_cycle} pauses in one cycle are the most that policy {rule.name} allows"
        if not _fits(self._gpus, gpus, brakes.max_percent_per_hour, self._spent.allocated):
            return f"{brakes.max_percent_per_hour:g} % of all GPUs in an hour are the most allowed"
        allocated = self._spent.allocated_by_rule.get(rule.name, 0)
        if rule.max_percent_per_hour is not None and not _fits(
            self._gpus_by_rule[rule.name], gpus, rule.max_percent_per_hour, allocated
        ):
            return f"{rule.max_percent_per_hour:g} % of its GPUs in an hour are the most that policy {rule.name} allows"
        return None


def _fits(used: int, gpus: int, percent: float, allocated: int) -> bool:
    # Rounded first: 20 % of 35 must not become 8 because of the seventeenth digit.
    return used == 0 or used + gpus <= math.ceil(round(percent * allocated / 100, 6))


class Braking(msgspec.Struct, frozen=True):
    """Are notices and pauses held back, and what is remembered for the next cycle."""

    freeze: Freeze | None
    is_new: bool
    levels: tuple[Level, ...]
    baseline_reset: bool
    unseen: Freeze | None  # our own freeze, until it was seen on the Lease


def watch(brakes: idle.Brakes, memory: Memory, on_lease: Freeze | None, level: Level | None, now: Instant) -> Braking:
    """`level`: of this cycle, None where nothing is known. `on_lease`: the freeze that stands on the Lease."""
    unseen = _find_unseen(memory.freeze, on_lease, now)
    standing = [freeze for freeze in (on_lease, unseen) if freeze is not None and freeze.holds(now)]
    freeze = max(standing, key=lambda each: (each.until, each.because), default=None)
    levels, is_reset = memory.long.levels, memory.long.baseline_reset
    if level is None or not level.observed or (freeze is not None and is_reset):
        return Braking(freeze, False, levels, is_reset, unseen)
    if is_reset:
        return Braking(freeze, False, (level,) * KNOWN, False, unseen)
    if freeze is None and (jump := _why_freeze(brakes, levels, level)):
        freeze = Freeze(now + brakes.freeze_hold, jump)
        return Braking(freeze, True, levels, True, freeze)
    return Braking(freeze, False, remember_level(levels, level), False, unseen)


def remember_level(levels: tuple[Level, ...], level: Level) -> tuple[Level, ...]:
    return (*levels, level)[-REMEMBERED:]


def _find_unseen(own: Freeze | None, on_lease: Freeze | None, now: Instant) -> Freeze | None:
    """Our own freeze while it is not on the Lease: once it is, who takes it off there ends it."""
    if own is None or not own.holds(now):
        return None
    is_seen = on_lease is not None and on_lease.until >= math.floor(own.until)  # the Lease has whole seconds
    return None if is_seen else own


def _why_freeze(brakes: idle.Brakes, levels: tuple[Level, ...], level: Level) -> str | None:
    if len(levels) < KNOWN:
        return None
    usual, more = median(each.share for each in levels), level.idle - median(each.idle for each in levels)
    if (level.share - usual) * 100 <= brakes.freeze_jump + 1e-9 or more < brakes.freeze_min_gpus:
        return None
    return (
        f"the share of idle GPUs jumped from {usual:.0%} to {level.share:.0%} ({more:g} more): "
        f"no notices and pauses for {units.humane(brakes.freeze_hold)}"
    )
