"""A pretend cloud: groups of machines that boot, run out, are taken back and cost money, behind the Protocol of clouds.

In: groups with their prices, a clock, a seed; hours in which a zone has nothing to give, and faults that somebody
switches on. Out: the verbs of `clients.clouds.Cloud`; beside them what only a world may ask: which machines stand as
nodes now (`standing`), and what all of it has cost (`bill`).
As real groups do, it starts machines until there are as many as its target says, one that was taken back included.
Invariant: the same seed and the same calls at the same times give the same cloud; a machine's fate is drawn from its
number, so that one more machine changes no other's.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec
import numpy as np

from fallow.clients import errors
from fallow.model.cost import CapacityType
from fallow.model.machines import (
    CloudMachine,
    Growth,
    MachineGroup,
    MachineNotice,
    MachineShape,
    MachineState,
    WantOfMachines,
)
from fallow.model.units import DAY, HOUR, MINUTE, Instant, Seconds

_NEVER: Final = float("inf")
ENDING: Final[Seconds] = 30.0  # from being told to go until it is gone
_TOLD_FOR: Final[Seconds] = HOUR  # how long it remembers what it could not give


class CloudFault(StrEnum):
    down = "down"
    throttled = "throttled"
    lying = "lying"  # targets are those of a while ago
    lagging = "lagging"  # new machines are not listed yet


class PretendGroup(msgspec.Struct, frozen=True, kw_only=True):
    """`boots`: from its start until it is a node, least and most. `lead`: how long before its end a spot machine is
    told; `taken_a_day`: how many of a day's are taken back. `astray`, `renamed`: shares of machines that never become
    nodes, and that do under another name than theirs. `tells_later`: as where a target is only a wish, it takes any and
    says afterwards what it could not give."""

    id: str
    shape: MachineShape
    tier: CapacityType = CapacityType.on_demand
    zones: tuple[str, ...] = ("zone-a",)
    target: int = 0
    most: int = 100
    quota: int | None = None
    boots: tuple[Seconds, Seconds] = (2 * MINUTE, 4 * MINUTE)
    lead: Seconds = 120.0
    taken_a_day: float = 0.0
    astray: float = 0.0
    renamed: float = 0.0
    tells_later: bool = False
    owner: str = ""

    @property
    def price(self) -> float:
        return self.shape.price or 0.0


class Drought(msgspec.Struct, frozen=True):
    """Nothing to give in a zone, from then until then; "" as a zone or a tier: any."""

    begins: Instant
    ends: Instant
    zone: str = ""
    tier: CapacityType | None = None

    def holds(self, zone: str, tier: CapacityType, now: Instant) -> bool:
        return self.begins <= now < self.ends and self.zone in ("", zone) and self.tier in (None, tier)


class PretendMachine(msgspec.Struct, kw_only=True):
    """`ends_at`: when it is gone. `warned_at`: when its cloud says so."""

    id: str
    number: int
    group: PretendGroup
    zone: str
    node: str  # what its node is called
    launched_at: Instant
    boots_at: Instant
    warned_at: Instant = _NEVER
    ends_at: Instant = _NEVER
    is_told: bool = False  # to go, by us
    is_asked_for: bool = False  # by a growth; else the group replaces one that went

    @property
    def provider_id(self) -> str:
        return f"pretend:///{self.zone}/{self.id}"

    def state(self, now: Instant) -> MachineState:
        if now >= self.ends_at:
            return MachineState.gone
        if self.is_told:
            return MachineState.deleting
        return MachineState.running if now >= self.boots_at else MachineState.pending

    def cost(self, now: Instant) -> float:
        return self.group.price * max(0.0, min(now, self.ends_at) - self.launched_at) / HOUR


class PretendCloud:
    """One account. Times are those of the clock it is given; one that goes back stands still."""

    def __init__(
        self, groups: Iterable[PretendGroup], clock: Callable[[], Instant], *, seed: int = 0,
        droughts: Sequence[Drought] = (),
    ) -> None:
        self.faults: set[CloudFault] = set()
        self.calls = 0
        self.started = 0  # machines
        self.refused = 0  # growths that there was nothing for
        self._clock, self._seed, self._droughts = clock, seed, tuple(droughts)
        self._groups = {group.id: group for group in groups}
        self._targets = {group.id: group.target for group in self._groups.values()}
        self._told = dict(self._targets)  # what groups() says while it lies
        self._alive: dict[str, PretendMachine] = {}
        self._paid = 0.0  # for machines that are gone
        self._wants: list[WantOfMachines] = []
        self._notices: dict[str, MachineNotice] = {}
        self._now = clock()
        self._due, self._is_settled = -_NEVER, False  # when anything changes by itself; whether all is as it is to be
        for group in self._groups.values():  # those that are there already
            for _ in range(group.target):
                self._start(group, group.zones[self.started % len(group.zones)], boots=0.0)

    # ---- what a world may ask ---------------------------------------------------------------------------------------

    def standing(self) -> tuple[PretendMachine, ...]:
        """Machines that are nodes now."""
        now = self._go_on()
        return tuple(one for one in self._alive.values() if one.boots_at <= now < one.ends_at)

    def coming(self) -> tuple[PretendMachine, ...]:
        """Machines that may yet become nodes."""
        now = self._go_on()
        return tuple(one for one in self._alive.values() if one.boots_at > now and not one.is_told)

    def bill(self) -> float:
        """What every machine has cost so far, from its start to its end."""
        now = self._go_on()
        return self._paid + sum(one.cost(now) for one in self._alive.values())

    def next_change(self) -> Instant:
        """When a machine next becomes a node, is taken back or ends, if nobody asks for anything."""
        self._go_on()
        return self._due

    @property
    def prices(self) -> Mapping[tuple[str, CapacityType], float]:
        """Of an hour, by machine type and tier."""
        return {(group.shape.instance_type, group.tier): group.price for group in self._groups.values()}

    @property
    def is_taking_back(self) -> bool:
        """Somebody was told of a machine's end, and has it still."""
        now = self._go_on()
        return any(now < one.ends_at < _NEVER and not one.is_told for one in self._alive.values())

    def lacking(self, group: str) -> int:
        """Machines that the group is to have and has not."""
        self._go_on()
        return self._targets[group] - sum(one.group.id == group and not one.is_told for one in self._alive.values())

    def take_back(self, machine: str, lead: Seconds | None = None) -> None:
        """A spot machine's end is announced now."""
        now, one = self._go_on(), self._alive[machine]
        one.warned_at, one.ends_at = now, now + (one.group.lead if lead is None else lead)
        self._is_settled = False
        self._go_on()

    # ---- the Protocol -----------------------------------------------------------------------------------------------

    async def groups(self, ids: Sequence[str]) -> tuple[MachineGroup, ...]:
        self._answer()
        return tuple(map(self._describe, ids))

    async def machines(self, group: str) -> tuple[CloudMachine, ...]:
        now = self._answer()
        self._find(group)
        lag = MINUTE if CloudFault.lagging in self.faults else 0.0
        return tuple(
            _describe_machine(one, now) for one in self._alive.values()
            if one.group.id == group and one.launched_at + lag <= now
        )

    async def wants(self, group: str) -> tuple[WantOfMachines, ...]:
        self._answer()
        return tuple(want for want in self._wants if want.group == group)

    async def grow(self, growth: Growth) -> None:
        now, group = self._answer(), self._find(growth.group)
        target = growth.base + growth.count
        more = target - self._targets[group.id]
        if growth.base > self._targets[group.id]:
            raise errors.rejection(409, f"{group.id}: its target is below {growth.base} by now")
        if more <= 0:
            return
        if target > group.most:
            raise errors.rejection(400, f"{group.id}: {target} is above its most, {group.most}")
        if not group.tells_later:
            if group.quota is not None and target > group.quota:
                raise errors.QuotaSpent(f"{group.id}: the quota of {group.quota} machines is spent")
            if not self._stocked(group, now):
                kind, self.refused = group.shape.instance_type, self.refused + 1
                raise errors.OutOfStock(f"{group.id}: no {kind} to be had", instance_type=kind, zone=group.zones[0])
        self._targets[group.id], self._is_settled = target, False
        before = self.started
        self._go_on()
        for one in [one for one in self._alive.values() if one.number >= before]:
            one.is_asked_for = True

    async def remove(self, group: str, ids: Sequence[str]) -> None:
        now = self._answer()
        self._find(group)
        for one in [self._alive[name] for name in ids if name in self._alive]:
            if one.group.id == group and not one.is_told:
                one.is_told, one.ends_at = True, min(one.ends_at, now + ENDING)
                self._targets[group] = max(0, self._targets[group] - 1)
                self._is_settled = False

    async def notices(self) -> tuple[MachineNotice, ...]:
        self._answer()
        return tuple(self._notices.values())

    async def forget(self, notices: Sequence[MachineNotice]) -> None:
        self._answer()
        for notice in notices:
            self._notices.pop(notice.receipt, None)

    # ---- how it goes on ---------------------------------------------------------------------------------------------

    def _answer(self) -> Instant:
        self.calls += 1
        now = self._go_on()
        if CloudFault.down in self.faults:
            raise errors.Unreachable("the pretend cloud does not answer", is_undone=True)
        if CloudFault.throttled in self.faults:
            raise errors.rejection(429, "the pretend cloud is asked too often", retry_after=30.0)
        return now

    def _find(self, group: str) -> PretendGroup:
        if group not in self._groups:
            raise errors.rejection(404, f"the pretend cloud has no group {group}")
        return self._groups[group]

    def _describe(self, group_id: str) -> MachineGroup:
        group = self._groups.get(group_id)
        if group is None:
            return MachineGroup(id=group_id, error=f"the pretend cloud has no group {group_id}")
        is_lying = CloudFault.lying in self.faults
        if not is_lying:
            self._told[group_id] = self._targets[group_id]
        return MachineGroup(
            id=group_id, tier=group.tier, instance_types=(group.shape.instance_type,), zones=group.zones,
            most=group.most, target=self._told[group_id], shape=group.shape, owner=group.owner,
        )

    def _go_on(self) -> Instant:
        """To the present: who ended is gone, who is taken back is told, and what is lacking is started."""
        now = self._now = max(self._now, self._clock())
        if now < self._due and self._is_settled:
            return now
        for one in [one for one in self._alive.values() if one.ends_at <= now]:
            self._paid += one.cost(now)
            del self._alive[one.id]
            self._notices.pop(one.id, None)
        for one in self._alive.values():
            if one.warned_at <= now and not one.is_told and one.id not in self._notices:
                one.warned_at = _NEVER
                self._notices[one.id] = MachineNotice(
                    provider_id=one.provider_id, seen_at=now, ends_at=one.ends_at, receipt=one.id
                )
        there = Counter(one.group.id for one in self._alive.values() if not one.is_told)
        lacking = [group.id for group in self._groups.values() if not self._fill(group, there[group.id], now)]
        self._is_settled = not lacking
        times = (at for one in self._alive.values() for at in (one.boots_at, one.warned_at, one.ends_at) if at > now)
        self._due = min(times, default=_NEVER)
        return now

    def _fill(self, group: PretendGroup, there: int, now: Instant) -> bool:
        """Whether there are as many as it wants."""
        for number in range(there, self._targets[group.id]):
            zones = self._stocked(group, now)
            if group.quota is not None and number >= group.quota:
                self._want(group, now, "its quota is spent", is_quota=True)
                return False
            if not zones:
                self._want(group, now, "there are none", zone=group.zones[0])
                return False
            self._start(group, zones[self.started % len(zones)])
        return True

    def _stocked(self, group: PretendGroup, now: Instant) -> list[str]:
        """Zones that have some."""
        return [
            zone for zone in group.zones if not any(each.holds(zone, group.tier, now) for each in self._droughts)
        ]

    def _want(self, group: PretendGroup, now: Instant, why: str, *, zone: str = "", is_quota: bool = False) -> None:
        self._wants = [want for want in self._wants if want.group != group.id and now - (want.at or now) < _TOLD_FOR]
        self._wants.append(WantOfMachines(
            group=group.id, instance_type=group.shape.instance_type, zone=zone, is_quota=is_quota, at=now,
            because=f"{group.id}: {why}",
        ))

    def _start(self, group: PretendGroup, zone: str, *, boots: Seconds | None = None) -> None:
        rng, now = np.random.default_rng([self._seed, self.started]), self._now
        drawn, fate, life = float(rng.uniform(*group.boots)), float(rng.random()), float(rng.exponential())
        name = f"{group.id.rpartition('/')[2]}-{self.started:05}"
        one = PretendMachine(
            id=name, number=self.started, group=group, zone=zone, launched_at=now,
            node=f"host-{self.started:05}" if fate < group.renamed else name,
            boots_at=now + (drawn if boots is None else boots),
        )
        if boots is None and group.renamed <= fate < group.renamed + group.astray:
            one.boots_at = _NEVER
        if group.tier is CapacityType.spot and group.taken_a_day:
            one.warned_at = max(now + life * DAY / group.taken_a_day, one.boots_at)
            one.ends_at = one.warned_at + group.lead
        self.started += 1
        self._alive[one.id] = one


def _describe_machine(one: PretendMachine, now: Instant) -> CloudMachine:
    return CloudMachine(
        id=one.id, group=one.group.id, state=one.state(now), provider_id=one.provider_id, zone=one.zone,
        instance_type=one.group.shape.instance_type, tier=one.group.tier, launched_at=one.launched_at,
    )
