"""Machines on their way: which of them are nodes by now, which are still to come, which never came.

In: what the status says was asked for, the nodes and machines of the pools, what the cloud said it does not have.
Out: ComingNodes: shortages to remember; nodes and machines that never became Ready and go; nodes that were started
ahead of demand and do not say so yet. These are on their way until they do: who is killed meanwhile still knows it.
A node has arrived once it is Ready and shows its GPUs: before, pods would seem to need yet another one. A machine that
its group started by itself, as in place of one that was taken back, comes like one that was asked for. What a cloud
says later that it does not have is no longer on its way; its target stays as it is, so that the next growth goes on
from the machines that are there and those still to be started (`there`), and asks for no more than is then lacking.
Invariant: a node stands for one machine that was asked for, at most; what the clouds do not show is not counted twice.
A machine that may be a node under another name is never called a stray.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from fallow.decide.scaling import fit, prewarm, remembered
from fallow.decide.scaling.drivers import PolicyGround
from fallow.model.machines import CloudMachine, MachineState, WantOfMachines
from fallow.model.policies.scaling import NodePool, ScalingPolicy
from fallow.model.scaling import InFlight, ScaledNode, StockOut
from fallow.model.seen import Known
from fallow.model.units import HOUR, MINUTE, Instant, Seconds

_SKEW: Final[Seconds] = MINUTE  # by which two clocks may differ
_SOON: Final[Seconds] = 2.0  # the same, where seconds later another may have been asked for
_MOST_OPEN: Final = 500  # that the status holds of what nobody asked for
_FORGOTTEN: Final[Seconds] = HOUR  # after its end a stock-out is no longer counted on


class ComingNodes(msgspec.Struct, kw_only=True):
    """`missing`: by token, how many are still to come. `booting`: nodes that are there and not yet of use. `failed`:
    those that never were. `strays`: machines that never became nodes; each stands among `open`, with nothing missing,
    until its cloud has it no more. `started`: ahead of demand, and until when they stay. `there`: machines by group,
    those still to be started included. `retries`: something was asked for in vain, so that another may be asked for at
    once."""

    open: list[InFlight]
    arrived: list[InFlight]
    late: list[InFlight]
    missing: dict[str, int]
    booting: frozenset[str]
    failed: list[ScaledNode]
    strays: list[CloudMachine]
    stockouts: tuple[StockOut, ...]
    started: dict[str, Instant]
    there: dict[str, int]

    @property
    def retries(self) -> bool:
        return bool(self.late)

    @property
    def is_awaiting(self) -> bool:
        return any(self.missing.values())

    def keep(self, each: InFlight, missing: int) -> None:
        self.open.append(each)
        self.missing[each.token] = missing

    def drop(self, machine: CloudMachine, pool: NodePool) -> None:
        """It has to go, and is told so until it has."""
        self.strays.append(machine)
        self.keep(_name(machine, pool, is_late=True), 0)


def settle(
    ground: PolicyGround, nodes: Sequence[ScaledNode], wants: Sequence[WantOfMachines], now: Instant
) -> ComingNodes:
    """`nodes`: all there are, whosever."""
    policy, running = ground.policy, _PoolMachines(ground, nodes)
    past = sorted((_date(each, now) for each in ground.past.in_flight), key=lambda each: (each.since, each.token))
    asked = [each for each in past if not each.is_late and not (each.machine and running.is_gone(each.machine))]
    asked, unstarted = _adopt(asked, ground, running, now)
    shortages = remembered.find_wants(policy, [each for each in asked if not each.machine], wants)
    stockouts = tuple(each for each in ground.past.stockouts if each.until > now - _FORGOTTEN)
    found = ComingNodes(open=[], arrived=[], late=[], missing={}, booting=frozenset(), failed=[], strays=[],
                        stockouts=stockouts, started={}, there={})
    claims = _claim(asked, ground, running)
    booting: set[str] = set()
    short: dict[str, tuple[InFlight, WantOfMachines | None]] = {}  # by pool
    for each in asked:
        ready, waiting = claims[each.token].ready, claims[each.token].waiting
        missing = max(0, each.count - len(ready))
        lacking = unstarted.get(each.token, 0)
        want = shortages.get(each.token) if lacking else None  # of what has started, it is not said
        unsaid = _find_unsaid(policy, each, ready, now)
        found.started |= unsaid
        if not missing and (unsaid or any(other.pool == each.pool for other in found.open)):
            found.keep(each, 0)  # else its nodes would be taken for those that an older one still waits for
        elif not missing:
            found.arrived.append(each)
            found.stockouts = remembered.clear_shortage(found.stockouts, pool=each.pool, tier=each.tier)
        elif want is not None:
            found.late.append(msgspec.structs.replace(each, count=lacking))
            short[each.pool] = each, want
            if missing > lacking:
                found.keep(msgspec.structs.replace(each, count=each.count - lacking), missing - lacking)
                booting |= {node.name for node in waiting}
        elif now - each.since > policy.provision_patience:
            found.late.append(msgspec.structs.replace(each, count=missing))
            short.setdefault(each.pool, (each, None))
            found.failed += waiting
            for stray, pool in running.find_strays(each, missing - len(waiting)):
                found.drop(stray, pool)
        else:
            found.keep(each, missing)
            booting |= {node.name for node in waiting}
    for each in past:
        if each.is_late and not running.is_gone(each.machine) and each.token not in found.missing:
            found.keep(each, 0)
            found.strays += [one for one, _ in running.unjoined if one.id == each.machine]
    found.booting = frozenset(booting)
    for each, want in short.values():
        found.stockouts = _note(policy, found.stockouts, each, want, now)
    found.there = _count_there(ground, running, [each for each in found.open if each.token in unstarted], unstarted)
    return found


def _count_there(
    ground: PolicyGround, running: "_PoolMachines", awaited: Sequence[InFlight], unstarted: Mapping[str, int]
) -> dict[str, int]:
    """Machines by group, and those that were asked for and are still to be started; no more than its target says, and
    where its machines are not seen, as many. A target that is above that was raised in vain."""
    groups = {pool.name: pool.group for pool in ground.policy.pools}
    there = running.count()
    for each in awaited:
        group = groups.get(each.pool, "")
        there[group] += min(each.count, unstarted[each.token])
    return {
        group.id: min(group.target, there[group.id]) if running.is_seen else group.target
        for group in ground.groups if group.target is not None and not group.error
    }


def _date(each: InFlight, now: Instant) -> InFlight:
    """One from the future was written by a clock that was set back since: it would be awaited until then."""
    return msgspec.structs.replace(each, since=now) if each.since > now + _SKEW else each


class _PoolMachines:
    """Machines that pend or run, by whether one of the nodes is theirs."""

    def __init__(self, ground: PolicyGround, nodes: Sequence[ScaledNode]) -> None:
        pools = {pool.group: pool for pool in reversed(ground.policy.pools) if pool.group}
        listed = ground.machines.value if isinstance(ground.machines, Known) else ()
        self.is_seen = isinstance(ground.machines, Known)
        alive = [one for one in listed if one.state in (MachineState.pending, MachineState.running)]
        self._alive, self._ids = alive, {one.id for one in alive}
        self.by_provider = {one.provider_id: one for one in listed if one.provider_id}
        there = nodes if alive else ()  # of thousands in a cycle
        joined = {node.provider_id for node in there}
        nameless = max((node.created_at for node in there if not node.provider_id), default=-math.inf)
        self.unjoined = sorted((
            (one, pools[one.group]) for one in alive
            if one.group in pools and one.provider_id and one.provider_id not in joined
            and one.launched_at is not None and one.launched_at - _SKEW > nameless
        ), key=lambda each: each[0].id)

    def count(self) -> Counter[str]:
        return Counter(one.group for one in self._alive)

    def is_gone(self, machine: str) -> bool:
        return self.is_seen and machine not in self._ids

    def find_strays(self, each: InFlight, most: int) -> list[tuple[CloudMachine, NodePool]]:
        """Machines that run since then and never became a node."""
        found = [
            (one, pool) for one, pool in self.unjoined
            if pool.name == each.pool and each.machine in ("", one.id)
            and (one.launched_at or 0.0) >= each.since - _SKEW
        ]
        return found[: max(0, most)]


def _name(machine: CloudMachine, pool: NodePool, *, is_late: bool) -> InFlight:
    """One machine, as something that is on its way, or has to go."""
    return InFlight(
        pool=pool.name, tier=pool.tier, count=1, base=0, token=f"{'late' if is_late else 'found'}-{machine.id}",
        since=machine.launched_at or 0.0, instance_type=machine.instance_type, zone=machine.zone, machine=machine.id,
        is_late=is_late,
    )


def _adopt(
    asked: Sequence[InFlight], ground: PolicyGround, running: _PoolMachines, now: Instant
) -> tuple[list[InFlight], dict[str, int]]:
    """With machines that nobody here asked for, and that were started too lately to be given up; and by token how many
    of what was asked for are not started yet."""
    claims = _claim(asked, ground, running)
    left = {each.token: each.count - claims[each.token].count for each in asked if not each.machine}
    named = {each.machine for each in ground.past.in_flight}
    found = list(asked)
    for one, pool in running.unjoined:
        started = one.launched_at or 0.0
        if one.id in named or now - started > ground.policy.provision_patience:
            continue
        its = [each for each in asked if each.pool == pool.name and left.get(each.token, 0) > 0
               and started >= each.since - _SOON]
        if its:
            left[its[-1].token] -= 1
        elif len(found) < _MOST_OPEN:
            found.append(_name(one, pool, is_late=False))
    return sorted(found, key=lambda each: (each.since, each.token)), left


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


def _claim(asked: Sequence[InFlight], ground: PolicyGround, running: _PoolMachines) -> dict[str, _Claims]:
    """By token. A node is of the latest growth of its pool before its machine was started; where that has enough, of
    the latest before it that has not."""
    found = {each.token: _Claims([], []) for each in asked}
    for node in sorted(ground.nodes, key=lambda node: (node.created_at, node.name)) if asked else ():
        machine = running.by_provider.get(node.provider_id)
        launched = machine.launched_at if machine is not None else None
        started = node.created_at - _SOON if launched is None else launched
        for each in reversed(asked):
            is_its = ground.pools.get(node.name) == each.pool and started >= each.since - _SOON
            is_meant = not each.machine or (machine is not None and machine.id == each.machine)
            if is_its and is_meant and found[each.token].count < each.count:
                found[each.token].add(node)
                break
    return found


def _note(
    policy: ScalingPolicy, stockouts: tuple[StockOut, ...], each: InFlight, want: WantOfMachines | None, now: Instant
) -> tuple[StockOut, ...]:
    """A group that may choose among zones or machine types has tried them: what it did not get, it got nowhere."""
    pool = next((pool for pool in policy.pools if pool.name == each.pool), None)
    kind = want.instance_type if want is not None and want.instance_type else each.instance_type
    zone = want.zone if want is not None and want.zone else each.zone
    if pool is not None:
        kind, zone = kind if len(pool.instance_types) < 2 else "", zone if len(pool.zones) < 2 else ""
    return remembered.note_shortage(
        stockouts, pool=each.pool, tier=each.tier, instance_type=kind, zone=zone, now=now
    )

