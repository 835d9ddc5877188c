"""Machines that were asked for: which of them are nodes by now, which are still on their way, which never came.

In: what the status says was asked for, the nodes and machines of the pools, what the cloud said it does not have.
Out: ComingNodes: shortages to remember; nodes and machines that never became Ready and go.
A node has arrived once it is Ready and shows its GPUs: before, pods would seem to need yet another one.
Invariant: a node stands for one machine that was asked for, at most; what the clouds do not show is not counted twice.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from fallow.decide.scaling import fit, remembered
from fallow.decide.scaling.drivers import PolicyGround
from fallow.model.machines import CloudMachine, MachineState, WantOfMachines
from fallow.model.scaling import InFlight, ScaledNode, StockOut
from fallow.model.seen import Known
from fallow.model.units import HOUR, MINUTE, Instant, Seconds

_SKEW: Final[Seconds] = MINUTE  # by which two clocks may differ
_FORGOTTEN: Final[Seconds] = HOUR  # after its end a stock-out is no longer counted on


class ComingNodes(msgspec.Struct, kw_only=True):
    """`missing`: by token, how many are still to come. `booting`: nodes that are there and not yet of use. `failed`:
    those that never were. `retries`: something was asked for in vain, so that another may be asked for at once."""

    open: list[InFlight]
    arrived: list[InFlight]
    late: list[InFlight]
    missing: dict[str, int]
    booting: frozenset[str]
    failed: list[ScaledNode]
    strays: list[CloudMachine]
    stockouts: tuple[StockOut, ...]

    @property
    def retries(self) -> bool:
        return bool(self.late)


def settle(ground: PolicyGround, wants: Sequence[WantOfMachines], now: Instant) -> ComingNodes:
    policy = ground.policy
    asked = sorted(remembered.read_in_flight(policy.status), key=lambda each: (each.since, each.token))
    shortages = remembered.find_wants(policy, asked, wants)
    stockouts = tuple(each for each in remembered.read_stockouts(policy.status) if each.until > now - _FORGOTTEN)
    found = ComingNodes(open=[], arrived=[], late=[], missing={}, booting=frozenset(), failed=[], strays=[],
                     stockouts=stockouts)
    by_age = sorted(ground.nodes, key=lambda node: (node.created_at, node.name)) if asked else ()
    free = {node.name: node for node in by_age}
    booting: set[str] = set()
    for each in asked:
        ready, waiting = _claim(each, free, ground)
        missing = max(0, each.count - len(ready))
        want = shortages.get(each.token)
        if not missing:
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


def _claim(
    each: InFlight, free: dict[str, ScaledNode], ground: PolicyGround
) -> tuple[list[ScaledNode], list[ScaledNode]]:
    """Of the nodes that nobody claimed yet: those that arrived for it, and those that are there and not of use yet."""
    own = [node for node in free.values()
           if ground.pools.get(node.name) == each.pool and node.created_at >= each.since - _SKEW][: each.count]
    ready, waiting = list[ScaledNode](), list[ScaledNode]()
    for node in own:
        del free[node.name]
        if node.is_ready and fit.count_gpus(node.has):
            ready.append(node)
        elif not node.is_going and node.drain is None:
            waiting.append(node)
    return ready, waiting


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
