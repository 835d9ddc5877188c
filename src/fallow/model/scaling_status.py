"""What the status of an AutoscalingPolicy remembers, read back: nodes on their way, what was out of stock, times.

In: the status as we wrote it last. Out: a PolicyStatus. A part of it that cannot be read is left out: then we wait
longer or ask once more, and the target that a growth started from says whether that was asked before.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fallow.model import units
from fallow.model.cost import CapacityType
from fallow.model.scaling import InFlight, RoomAhead, SpotRuns, StockOut
from fallow.model.scaling_plan import Headroom
from fallow.model.units import Instant


class PolicyStatus(msgspec.Struct, frozen=True, kw_only=True):
    """`hits`, `misses`: of the last nodes that were started ahead of demand. `rooms`: what another was asked for.
    `full_at`: GPUs that were all held when a node was last added for that reason alone, unless somebody came since.
    `failures`: of its cloud, in a row."""

    in_flight: tuple[InFlight, ...] = ()
    stockouts: tuple[StockOut, ...] = ()
    grew_at: Instant | None = None
    shrank_at: Instant | None = None
    action: str = ""
    reason: str = ""
    interruptions: int = 0
    hits: int = 0
    misses: int = 0
    full_at: int | None = None
    failures: int = 0
    failed_at: Instant | None = None
    rooms: tuple[RoomAhead, ...] = ()
    spot_watch: SpotRuns | None = None


def read(status: Mapping[str, Any]) -> PolicyStatus:
    ahead = status.get("predictiveScaling")
    fared = ahead if isinstance(ahead, Mapping) else {}
    return PolicyStatus(
        in_flight=tuple(filter(None, map(_read_in_flight, _list(status, "inFlight")))),
        stockouts=tuple(filter(None, map(_read_stock_out, _list(status, "stockouts")))),
        grew_at=_instant(status, "lastScaleUpTime"), shrank_at=_instant(status, "lastScaleDownTime"),
        action=_text(status, "lastScalingAction"), reason=_text(status, "lastScalingReason"),
        interruptions=_count(status, "spotInterruptions"), hits=_count(fared, "hits"), misses=_count(fared, "misses"),
        full_at=_count(status, "fullAtGPUs") or None, failures=_count(status, "providerFailures"),
        failed_at=_instant(status, "lastProviderFailureTime"),
        rooms=tuple(filter(None, map(_read_room, _list(fared, "headroom")))),
        spot_watch=_read_spot_watch(status.get("spotWatch")),
    )


def write_rooms(some: Sequence[Headroom]) -> list[dict[str, Any]]:
    return [{"pool": each.pool.name, "nodes": each.nodes, "since": units.rfc3339(each.since)} for each in some]


def write_in_flight(some: Sequence[InFlight]) -> list[dict[str, Any]]:
    return [
        {
            "pool": each.pool, "tier": str(each.tier), "count": each.count, "base": each.base, "token": each.token,
            "since": units.rfc3339(each.since), "instanceType": each.instance_type, "zone": each.zone,
            "prewarm": each.is_prewarm, "machine": each.machine, "late": each.is_late,
        }
        for each in some
    ]


def write_stockouts(some: Sequence[StockOut]) -> list[dict[str, Any]]:
    return [
        {
            "pool": each.pool, "tier": str(each.tier), "instanceType": each.instance_type, "zone": each.zone,
            "until": units.rfc3339(each.until), "failures": each.failures,
        }
        for each in some
    ]


def _read_in_flight(one: Mapping[str, Any]) -> InFlight | None:
    since, tier, token = _instant(one, "since"), _tier(one), _text(one, "token")
    if since is None or tier is None or not token or _count(one, "count") < 1:
        return None
    return InFlight(
        pool=_text(one, "pool"), tier=tier, count=_count(one, "count"), base=_count(one, "base"), token=token,
        since=since, instance_type=_text(one, "instanceType"), zone=_text(one, "zone"),
        is_prewarm=one.get("prewarm") is True, machine=_text(one, "machine"), is_late=one.get("late") is True,
    )


def _read_spot_watch(one: object) -> SpotRuns | None:
    since = _instant(one, "since") if isinstance(one, Mapping) else None
    if not isinstance(one, Mapping) or since is None:
        return None
    return SpotRuns(since=since, node_hours=_count(one, "nodeHours"), interruptions=_count(one, "interruptions"))


def _read_room(one: Mapping[str, Any]) -> RoomAhead | None:
    since, nodes = _instant(one, "since"), _count(one, "nodes")
    return None if since is None or not nodes else RoomAhead(pool=_text(one, "pool"), nodes=nodes, since=since)


def _read_stock_out(one: Mapping[str, Any]) -> StockOut | None:
    until, tier = _instant(one, "until"), _tier(one)
    if until is None or tier is None:
        return None
    return StockOut(
        pool=_text(one, "pool"), tier=tier, until=until, failures=max(1, _count(one, "failures")),
        instance_type=_text(one, "instanceType"), zone=_text(one, "zone"),
    )


def _list(of: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    found = of.get(key)
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, Sequence) else []


def _tier(of: Mapping[str, Any]) -> CapacityType | None:
    word = of.get("tier")
    return CapacityType(word) if isinstance(word, str) and word in list(CapacityType) else None


def _text(of: Mapping[str, Any], key: str) -> str:
    found = of.get(key)
    return found if isinstance(found, str) else ""


def _count(of: Mapping[str, Any], key: str) -> int:
    found = of.get(key)
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else 0


def _instant(of: Mapping[str, Any], key: str) -> Instant | None:
    return units.read_instant(_text(of, key))
