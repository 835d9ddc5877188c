"""How fast we may go, whatever the rules allow: the order of pauses, the caps, and the freeze when too much turns idle at once.

In: candidates with their GPUs, what was paused in the last hour, the last cycles' idle shares. Out: who may go now and why others wait;
whether we freeze.
Invariants: no cap is ever exceeded, except that one workload always fits the hourly share (else a large one could never be paused);
a freeze stops notices and pauses, never a resume.
"""

import math
from collections import Counter
from collections.abc import Mapping
from statistics import median
from typing import Final

import msgspec

from fallow.model import decision, units
from fallow.model.policies import idle
from fallow.model.units import HOUR, Instant

REMEMBERED: Final = 10  # cycles whose median is the baseline
KNOWN: Final = 3  # with fewer there is no baseline yet


class Spent(msgspec.Struct, frozen=True):
    """What the last hour took: GPUs in all and by rule; and what there is."""

    gpus: int
    by_rule: Mapping[str, int]
    allocated: int
    allocated_by_rule: Mapping[str, int]


class Caps:
    """Hands out permissions in the order it is asked."""

    def __init__(self, brakes: idle.Brakes, spent: Spent) -> None:
        self._brakes = brakes
        self._spent = spent
        self._gpus = spent.gpus
        self._gpus_by_rule = Counter(spent.by_rule)
        self._taken = 0
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


# ---- freeze -----------------------------------------------------------------------------------------------------------------


class Freeze(msgspec.Struct, frozen=True):
    """Are notices and pauses held back, until when, and what is remembered for the next cycle."""

    until: Instant | None
    because: str
    is_new: bool
    shares: tuple[tuple[float, int], ...]
    baseline_reset: bool
    unseen_until: Instant | None  # our own freeze, until it was seen on the Lease


def watch(
    brakes: idle.Brakes, memory: decision.Memory, on_lease: tuple[Instant | None, str], level: tuple[int, int] | None, now: Instant
) -> Freeze:
    """`level`: idle and observed GPUs of this cycle, None where nothing is known. `on_lease`: the freeze that stands on the Lease."""
    until, because, unseen = _find_freeze(memory, on_lease, now)
    if until is not None and memory.baseline_reset:
        return Freeze(until, because, False, memory.idle_shares, True, unseen)
    shares = () if memory.baseline_reset else memory.idle_shares
    if level is None or not level[1]:
        return Freeze(until, because, False, shares, False, unseen)
    quiet, observed = level
    share = quiet / observed
    if until is None and (jump := _why_freeze(brakes, shares, share, quiet)):
        until = now + brakes.freeze_hold
        return Freeze(until, jump, True, shares, True, until)
    return Freeze(until, because, False, (*shares, (share, quiet))[-REMEMBERED:], False, unseen)


def _find_freeze(
    memory: decision.Memory, on_lease: tuple[Instant | None, str], now: Instant
) -> tuple[Instant | None, str, Instant | None]:
    """The freeze that ends last, and our own while it is not on the Lease: once it is, who takes it off there ends it."""
    own = memory.frozen_until
    if own is not None and on_lease[0] is not None and on_lease[0] >= math.floor(own):  # the Lease has whole seconds
        own = None
    standing = [(until, because) for until, because in (on_lease, (own, memory.frozen_because)) if until is not None and now < until]
    until, because = max(standing) if standing else (None, "")
    return until, because, own if own is not None and now < own else None


def _why_freeze(brakes: idle.Brakes, shares: tuple[tuple[float, int], ...], share: float, quiet: int) -> str | None:
    if len(shares) < KNOWN:
        return None
    usual, usual_idle = median(share for share, _ in shares), median(count for _, count in shares)
    has_jumped = (share - usual) * 100 > brakes.freeze_jump + 1e-9 and quiet - usual_idle >= brakes.freeze_min_gpus
    if not has_jumped:
        return None
    return (
        f"the share of idle GPUs jumped from {usual:.0%} to {share:.0%} ({quiet - usual_idle:g} more): "
        f"no notices and pauses for {units.humane(brakes.freeze_hold)}"
    )


def is_recent(paused: Instant, now: Instant) -> bool:
    """Does this pause count against the hourly share?"""
    return now - paused < HOUR
