"""What a policy's status tells of the past: nodes on their way, what was out of stock, when it last grew or shrank.

In: the status as we wrote it, an instant. Out: InFlight, StockOut and times; what becomes of them where a cloud has
none, gives again, or fails. All of it outlives the process, for forgetting it would make us faster.
Invariant: what cannot be read is not there; a time that lies ahead of now never makes anything sooner.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from fallow.model import units
from fallow.model.cost import CapacityType
from fallow.model.machines import MachineGroup, WantOfMachines
from fallow.model.policies.scaling import NodePool, ScalingPolicy
from fallow.model.policies.scaling_crd import InFlightStatus, StockOutStatus
from fallow.model.scaling import InFlight, ScalingMemory, StockOut
from fallow.model.units import HOUR, MINUTE, Instant, Seconds

FIRST_SHUT: Final[Seconds] = 5 * MINUTE
LONGEST_SHUT: Final[Seconds] = HOUR
_FAILURES: Final = 3  # of a provider in a row, after which it is left alone for a while
_LONGEST_REST: Final[Seconds] = 30 * MINUTE


def read_in_flight(status: Mapping[str, Any]) -> tuple[InFlight, ...]:
    found = []
    for each in _read_each(status.get("inFlight"), InFlightStatus):
        since = units.read_instant(each.since)
        if since is not None:
            found.append(InFlight(
                pool=each.pool, tier=CapacityType(each.tier), count=each.count, base=each.base, token=each.token,
                since=since, instance_type=each.instance_type, zone=each.zone, is_prewarm=each.prewarm,
            ))
    return tuple(found)


def read_stockouts(status: Mapping[str, Any]) -> tuple[StockOut, ...]:
    found = []
    for each in _read_each(status.get("stockouts"), StockOutStatus):
        until = units.read_instant(each.until)
        if until is not None:
            found.append(StockOut(
                pool=each.pool, tier=CapacityType(each.tier), until=until, failures=each.failures,
                instance_type=each.instance_type, zone=each.zone,
            ))
    return tuple(found)


def read_time(status: Mapping[str, Any], key: str) -> Instant | None:
    found = status.get(key)
    return units.read_instant(found) if isinstance(found, str) else None


def read_prewarms(status: Mapping[str, Any]) -> tuple[int, int]:
    """Nodes started ahead of time that were used, and that were not."""
    found = status.get("predictiveScaling")
    counts = [found.get(key) for key in ("hits", "misses")] if isinstance(found, Mapping) else [0, 0]
    hits, misses = (count if isinstance(count, int) and count >= 0 else 0 for count in counts)
    return hits, misses


def _read_each(found: Any, shape: Any) -> list[Any]:
    read = []
    for each in found if isinstance(found, list | tuple) else ():
        try:
            read.append(msgspec.convert(each, shape))
        except msgspec.ValidationError:
            continue
    return read


# ---- out of stock ----------------------------------------------------------------------------------------------------


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
    """Whether nothing of the pool is to be had: every machine type in every zone."""
    shut = [each for each in stockouts
            if each.pool == pool.name and each.tier is tier and now < each.until <= now + LONGEST_SHUT]
    return bool(shut) and all(
        any(each.instance_type in ("", kind) and each.zone in ("", zone) for each in shut)
        for kind in pool.instance_types or ("",) for zone in pool.zones or ("",)
    )


def is_type_shut(stockouts: Sequence[StockOut], pool: NodePool, kind: str, now: Instant) -> bool:
    return any(
        each.pool == pool.name and each.instance_type == kind and now < each.until <= now + LONGEST_SHUT
        for each in stockouts
    )


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


def note_failure(memory: ScalingMemory, policy: str, now: Instant) -> ScalingMemory:
    count = memory.failures.get(policy, (0, now))[0] + 1
    return msgspec.structs.replace(memory, failures={**memory.failures, policy: (count, now)})


def clear_failures(memory: ScalingMemory, policy: str) -> ScalingMemory:
    left = {name: failed for name, failed in memory.failures.items() if name != policy}
    return msgspec.structs.replace(memory, failures=left)


def find_rest(memory: ScalingMemory, policy: str, now: Instant) -> Seconds:
    """How long a provider that failed three times in a row is left alone yet."""
    count, last = memory.failures.get(policy, (0, now))
    if count < _FAILURES:
        return 0.0
    rest = min(_LONGEST_REST, MINUTE * float(1 << min(count - _FAILURES, 10)))
    return max(0.0, rest - abs(now - last))


def find_group(groups: Sequence[MachineGroup], pool: NodePool) -> MachineGroup | None:
    return next((each for each in groups if pool.group and each.id == pool.group), None)
