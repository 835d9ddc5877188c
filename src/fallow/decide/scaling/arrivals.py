"""Machines that were asked for: which of them are nodes by now, which are still on their way, which never came.

In: what the status says was asked for, the nodes and machines of the pools, what the cloud said it does not have.
Out: ComingNodes: shortages to remember; nodes and machines that never became Ready and go; nodes that were started
ahead of demand and do not say so yet. These are on their way until they do: who is killed meanwhile still knows it.
A node has arrived once it is Ready and shows its GPUs: before, pods would seem to need yet another one.
Invariant: a node stands for one machine that was asked for, at most; what the clouds do not show is not counted twice.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from fallow.decide.scaling import fit, prewarm, remembered
from fallow.decide.scaling.drivers import PolicyGround
from fallow.model.machines import CloudMachine, MachineState, WantOfMachines
from fallow.model.policies.scaling import ScalingPolicy
from fallow.model.scaling import InFlight, ScaledNode, StockOut
from fallow.model.seen import Known
from fallow.model.units import HOUR, MINUTE, Instant, Seconds

_SKEW: Final[Seconds] = MINUTE  # by which two clocks may differ
_SOON: Final[Seconds] = 2.0  # the same, where seconds later another may have been asked for
_FORGOTTEN: Final[Seconds] = HOUR  # after its end a stock-out is no longer counted on


class ComingNodes(msgspec.Struct, kw_only=True):
    """`missing`: by token, how many are still to come. `booting`: nodes that are there and not yet of use. `failed`:
    those that never were. `started`: ahead of demand, and until when they stay. `retries`: something was asked for in
    vain, so that another may be asked for at once."""

    open: list[InFlight]
    arrived: list[InFlight]
    late: list[InFlight]
    missing: dict[str, int]
    booting: frozenset[str]
    failed: list[ScaledNode]
    strays: list[CloudMachine]
    stockouts: tuple[StockOut, ...]
    started: dict[str, Instant]

    @property
    def retries(self) -> bool:
        return bool(self.late)


def settle(ground: PolicyGround, wants: Sequence[WantOfMachines], now: Instant) -> ComingNodes:
    policy = ground.policy
    asked = sorted(ground.past.in_flight, key=lambda each: (each.since, each.token))
    shortages = remembered.find_wants(policy, asked, wants)
    stockouts = tuple(each for each in ground.past.stockouts if each.until > now - _FORGOTTEN)
    found = ComingNodes(open=[], arrived=[], late=[], missing={}, booting=frozenset(), failed=[], strays=[],
                        stockouts=stockouts, started={})
    claims = _claim(asked, ground)
    booting: set[str] = set()
    for each in asked:
        ready, waiting = claims[each.token].ready, claims[each.token].waiting
        missing = max(0, each.count - len(ready))
        want = shortages.get(each.token)
        unsaid = _find_unsaid(policy, each, ready, now)
        found.started |= unsaid
        if not missing and (unsaid or any(other.pool == each.pool for other in found.open)):
            found.open.append(each)  # else its nodes would be taken for those that an older one still waits for
            found.missing[each.token] = 0
        elif not missing:
            found.arrived.append(each)
            found.stockouts = remembered.clear_shortage(found.stockouts, pool=each.pool, tier=each.tier)
        elif want is not None or now - each.since > policy.provision_patience:
            found.late.append(msgspec.structs.replace(each, count=missing))
            found.stockouts = _note(found.stockouts, each, want, now)
            found.failed += waiting if want is None else []
            found.strays += _find_strays(ground, each, missing - len(waiting)) if want is None else []
        else:
            found.open.append(each)
            found.missing[each.token] = missing
            booting |= {node.name for node in waiting}
    found.booting = frozenset(booting)
    return found


def _find_unsaid(
    policy: ScalingPolicy, each: InFlight, ready: Sequence[ScaledNode], now: Instant
) -> dict[str, Instant]:
    if policy.prewarming is None or not each.is_prewarm or now - each.since > policy.provision_patience:
        return {}
    until = prewarm.find_end(policy.prewarming, each.since, now)
    return {node.name: until for node in ready if not node.was_prewarmed}


class _Claims(msgspec.Struct):
    """What came for one growth: nodes that are of use, and those that are there and not yet."""

    ready: list[ScaledNode]
    waiting: list[ScaledNode]

    @property
    def count(self) -> int:
        return len(self.ready) + len(self.waiting)

    def add(self, node: ScaledNode) -> None:
        if node.is_ready and fit.count_gpus(node.has):
            self.ready.append(node)
        elif not node.is_going and node.drain is None:
            self.waiting.append(node)


def _claim(asked: Sequence[InFlight], ground: PolicyGround) -> dict[str, _Claims]:
    """By token. A node is of the latest growth of its pool before its machine was started; where that has enough, of
    the latest before it that has not."""
    found = {each.token: _Claims([], []) for each in asked}
    launched = _find_launches(ground) if asked else {}
    for node in sorted(ground.nodes, key=lambda node: (node.created_at, node.name)) if asked else ():
        started = launched.get(node.provider_id, node.created_at - _SOON)
        for each in reversed(asked):
            is_its = ground.pools.get(node.name) == each.pool and started >= each.since - _SOON
            if is_its and found[each.token].count < each.count:
                found[each.token].add(node)
                break
    return found


def _find_launches(ground: PolicyGround) -> dict[str, Instant]:
    """When each machine was started, by what its node says of it."""
    machines = ground.machines.value if isinstance(ground.machines, Known) else ()
    return {one.provider_id: one.launched_at for one in machines if one.provider_id and one.launched_at is not None}


def _note(
    stockouts: tuple[StockOut, ...], each: InFlight, want: WantOfMachines | None, now: Instant
) -> tuple[StockOut, ...]:
    kind = want.instance_type if want is not None and want.instance_type else each.instance_type
    zone = want.zone if want is not None and want.zone else each.zone
    return remembered.note_shortage(
        stockouts, pool=each.pool, tier=each.tier, instance_type=kind, zone=zone, now=now
    )


def _find_strays(ground: PolicyGround, each: InFlight, most: int) -> list[CloudMachine]:
    """Machines that run since then and never became a node."""
    if not isinstance(ground.machines, Known):
        return []
    group = next((pool.group for pool in ground.policy.pools if pool.name == each.pool), "")
    nodes = {node.provider_id for node in ground.nodes if node.provider_id}
    found = [
        machine for machine in ground.machines.value
        if group and machine.group == group and machine.state in (MachineState.pending, MachineState.running)
        and machine.provider_id and machine.provider_id not in nodes
        and machine.launched_at is not None and machine.launched_at >= each.since - _SKEW
    ]
    return sorted(found, key=lambda machine: machine.id)[: max(0, most)]
