"""What is remembered of a cloud: what it was out of, and for how long nobody asks again; that it failed, and how often.

In: StockOuts, the memory, what happened just now. Out: the same with that in it, and whether a pool is shut. Stock-outs
stand in the policy's status and outlive the process, for forgetting them would make us faster.
Invariant: no stock-out lasts longer than an hour, whatever the clock does meanwhile.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from fallow.model import scaling_status
from fallow.model.cost import CapacityType
from fallow.model.machines import MachineGroup, WantOfMachines
from fallow.model.policies.scaling import NodePool, ScalingPolicy
from fallow.model.scaling import InFlight, ScalingMemory, ScalingSight, StockOut
from fallow.model.seen import Unseen
from fallow.model.units import HOUR, MINUTE, Instant, Seconds

FIRST_SHUT: Final[Seconds] = 5 * MINUTE
LONGEST_SHUT: Final[Seconds] = HOUR
_FAILURES: Final = 3  # of a provider in a row, after which it is left alone for a while
_LONGEST_REST: Final[Seconds] = 30 * MINUTE


def note_shortage(
    stockouts: Sequence[StockOut], *, pool: str, tier: CapacityType, now: Instant, instance_type: str = "",
    zone: str = "",
) -> tuple[StockOut, ...]:
    """One more failure: shut for five minutes, twice as long each time, an hour at most."""
    what = (pool, instance_type, zone, tier)
    before = max((each.failures for each in stockouts if _key(each) == what), default=0)
    lasts = min(LONGEST_SHUT, FIRST_SHUT * float(1 << min(before, 10)))
    made = StockOut(
        pool=pool, tier=tier, until=now + lasts, failures=before + 1, instance_type=instance_type, zone=zone
    )
    return (*(each for each in stockouts if _key(each) != what), made)


def clear_shortage(stockouts: Sequence[StockOut], *, pool: str, tier: CapacityType) -> tuple[StockOut, ...]:
    """It gave again."""
    return tuple(each for each in stockouts if (each.pool, each.tier) != (pool, tier))


def _key(each: StockOut) -> tuple[str, str, str, CapacityType]:
    return each.pool, each.instance_type, each.zone, each.tier


def is_shut(stockouts: Sequence[StockOut], pool: NodePool, tier: CapacityType, now: Instant) -> bool:
    """Whether nothing of the pool is to be had: every machine type in every zone; where it names none, any tells."""
    shut = [each for each in stockouts
            if each.pool == pool.name and each.tier is tier and now < each.until <= now + LONGEST_SHUT]
    return bool(shut) and all(
        any(_means(each.instance_type, kind) and _means(each.zone, zone) for each in shut)
        for kind in pool.instance_types or ("",) for zone in pool.zones or ("",)
    )


def _means(said: str, asked: str) -> bool:
    return not said or not asked or said == asked


def find_wants(
    policy: ScalingPolicy, in_flight: Sequence[InFlight], wants: Sequence[WantOfMachines]
) -> dict[str, WantOfMachines]:
    """By token: machines that were asked for and that the cloud later said it does not have."""
    groups = {pool.name: pool.group for pool in policy.pools}
    found = {}
    for each in in_flight:
        for want in wants:
            if want.group and want.group == groups.get(each.pool) and want.at is not None and want.at >= each.since:
                found[each.token] = want
    return found


# ---- a provider that fails -------------------------------------------------------------------------------------------


def lose(memory: ScalingMemory) -> ScalingMemory:
    """Nobody can tell since when a node is not needed, or all are busy, once they were out of sight."""
    return msgspec.structs.replace(memory, unneeded={}, busy={})


def bridge(memory: ScalingMemory, now: Instant, most: Seconds) -> ScalingMemory:
    """Without what lasted, where nobody looked for longer than `most`, or the clock was set."""
    is_near = memory.taken_at is None or 0 <= now - memory.taken_at <= most
    return memory if is_near else lose(memory)


def note_failure(memory: ScalingMemory, policy: str, now: Instant) -> ScalingMemory:
    count = memory.failures.get(policy, (0, now))[0] + 1
    return msgspec.structs.replace(memory, failures={**memory.failures, policy: (count, now)})


def recall(memory: ScalingMemory, policies: Iterable[ScalingPolicy]) -> ScalingMemory:
    """After a restart: how often each cloud had failed, as the statuses tell."""
    found = {}
    for policy in policies:
        past = scaling_status.read(policy.status)
        if past.failures and past.failed_at is not None:
            found[policy.name] = (past.failures, past.failed_at)
    return msgspec.structs.replace(memory, failures={**found, **memory.failures})


def clear_failures(memory: ScalingMemory, policy: str) -> ScalingMemory:
    left = {name: failed for name, failed in memory.failures.items() if name != policy}
    return msgspec.structs.replace(memory, failures=left)


def note_looks(memory: ScalingMemory, sight: ScalingSight, now: Instant) -> ScalingMemory:
    """Of each policy whose cloud was asked what it has: how often in a row it did not answer, and when last. One that
    answers a look has not thereby done what it failed to do, which counts apart."""
    found = {}
    for policy, groups in sight.groups.items():
        if isinstance(groups, Unseen):
            found[policy] = memory.unanswered.get(policy, (0, now))[0] + 1, now
    return msgspec.structs.replace(memory, unanswered=found)


def count_failures(memory: ScalingMemory, policy: str) -> int:
    return max(memory.failures.get(policy, (0, 0.0))[0], memory.unanswered.get(policy, (0, 0.0))[0])


def find_rest(memory: ScalingMemory, policy: str, now: Instant) -> Seconds:
    """How long a provider that failed three times in a row is left alone yet. It is looked at all the same, so that one
    that answers again is known at once."""
    return max(_find_rest(*counts.get(policy, (0, now)), now) for counts in (memory.failures, memory.unanswered))


def _find_rest(count: int, last: Instant, now: Instant) -> Seconds:
    if count < _FAILURES:
        return 0.0
    rest = min(_LONGEST_REST, MINUTE * float(1 << min(count - _FAILURES, 10)))
    return max(0.0, rest - abs(now - last))


def find_group(groups: Sequence[MachineGroup], pool: NodePool) -> MachineGroup | None:
    return next((each for each in groups if pool.group and each.id == pool.group), None)
