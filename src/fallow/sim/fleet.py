"""The machines of a pretend cluster that a cloud rents out: its groups, which nodes they are, how they come and go.

In: a World, and how long its day is. Out: a Fleet: a PretendCloud behind the Protocol of clouds, the AutoscalingPolicy
of its groups, and with every `follow` the World's nodes as the cloud's machines have become. Of each sort of whole node
that is to be had on spot there are two groups, one on spot and one on demand, at the prices of the demo.
In the day there is a time in which one zone has no spot machine to give, and one of those that run is taken back.
Invariant: a machine is a node from its boot to its end; a machine that is new is a node of a new name.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import msgspec

from fallow import names
from fallow.model import gpus
from fallow.model.cost import CapacityType
from fallow.model.machines import MachineShape
from fallow.model.units import MINUTE, Seconds
from fallow.sim import calling, cast, paying
from fallow.sim.cloud import Drought, PretendCloud, PretendGroup
from fallow.sim.world.nouns import SimNode
from fallow.sim.world.world import World

Object: TypeAlias = dict[str, Any]

POLICY: Final = "elastic"
NOTICE_AT: Final = cast.BURST_AT + 0.05  # of the day: when there is no room to spare
DROUGHT: Final = (cast.BURST_AT - 0.02, cast.BURST_AT + 0.08)  # of the day: no spot machine of the first group's zone
_MORE: Final = 4  # than there are at first, of each group
_TRIED_AGAIN: Final[Seconds] = 10 * MINUTE


class Rented(msgspec.Struct, frozen=True):
    """A group with the node by which its machines are made."""

    group: PretendGroup
    like: SimNode


class Fleet:
    """`came`: nodes that joined. `first`: those that were there when it began."""

    def __init__(self, world: World, length: Seconds) -> None:
        self._world = world
        self._rented = {each.group.id: each for each in _rent(world)}
        begins, ends = (world.now + part * length for part in DROUGHT)
        zone = next((each.group.zones[0] for each in self._rented.values() if _is_spot(each.group)), "")
        self.cloud = PretendCloud(
            [each.group for each in self._rented.values()], lambda: world.now, seed=world.seed,
            droughts=[Drought(begins, ends, zone, CapacityType.spot)],
        )
        self.first, self.came = tuple(world.nodes.values()), list[SimNode]()
        self._nodes = dict(self._name_first())  # by machine
        self._named = Counter(name.rpartition("-")[0] for name in world.nodes)
        if self._rented:
            world.at(world.now + NOTICE_AT * length, self._take_one_back)

    def _name_first(self) -> Iterator[tuple[str, SimNode]]:
        machines = list(self.cloud.standing())
        for node in self.first:
            mine = next((each for each in machines if node.machine == "" and each.group.id == node.pool), None)
            if mine is not None and find_rentable(node) is not None:
                machines.remove(mine)
                node.machine = mine.provider_id
                yield mine.id, node

    @property
    def is_rented(self) -> bool:
        """Whether any node is."""
        return bool(self._rented)

    @property
    def is_moving(self) -> bool:
        """A machine is being emptied or taken back: whoever is at it looks often."""
        return self.cloud.is_taking_back or any(
            node.cordoned for node in self._world.nodes.values() if node.machine and node.there
        )

    def follow(self) -> list[SimNode]:
        """Who went is gone; who has booted is there. The latter."""
        standing, new = {each.id: each for each in self.cloud.standing()}, list[SimNode]()
        for gone in [name for name in self._nodes if name not in standing]:
            self._world.take(self._nodes.pop(gone).name)
        for name, machine in standing.items():
            if name not in self._nodes:
                node = self._nodes[name] = self._make_node(self._rented[machine.group.id], machine.provider_id)
                self._world.join(node)
                new.append(node)
        self.came += new
        return new

    def _make_node(self, rented: Rented, machine: str) -> SimNode:
        family = calling.family(rented.like.pool)
        self._named[family] += 1
        return SimNode(
            f"{family}-{self._named[family]:02}", rented.like.model, rented.like.gpus, pool=rented.group.id,
            tier=str(rented.group.tier), machine=machine,
        )

    def _take_one_back(self) -> None:
        """Of the spot machines the one whose pods are the largest, and thus not easily placed; later, if none has
        any."""
        held: dict[str, list[int]] = {}
        for pod in (pod for one in self._world.workloads for pod in one.pods):
            held.setdefault(pod.node, []).append(-len(pod.slots))
        spot = [each for each in self.cloud.standing() if _is_spot(each.group) and each.id in self._nodes]
        most = min(spot, key=lambda each: sorted(held.get(self._nodes[each.id].name, [0])), default=None)
        if most is None or self._nodes[most.id].name not in held:
            self._world.at(self._world.now + _TRIED_AGAIN, self._take_one_back)
        else:
            self.cloud.take_back(most.id)
            self._world.note(f"takes {self._nodes[most.id].name} back", "cloud")

    def make_policies(self) -> list[Object]:
        """None where no node is rented."""
        if not self._rented:
            return []
        return [{
            "apiVersion": f"{names.GROUP}/{names.POLICY_VERSION}", "kind": names.SCALING_POLICY_KIND,
            "metadata": {"name": POLICY},
            "spec": {
                "mode": "act", "provider": "custom", "driver": "direct", "nodeSelector": dict(paying.RENTED),
                "minNodes": 1, "maxNodes": sum(each.group.most for each in self._rented.values()),
                "tierOrder": ["spot", "on-demand"], "spotInstancePercentage": 0.8,
                "nodePools": [_write_pool(each) for each in self._rented.values()],
            },
        }]


def find_rentable(node: SimNode) -> paying.BoughtMachine | None:
    """A whole machine of a type that is to be had on spot and on demand."""
    machine = paying.find_machine(node)
    is_usual = machine is not None and bool(machine.type) and machine.spot is not None
    return machine if is_usual and node.mode == "whole" and node.pool and node.gpus == paying.GPUS else None


def _rent(world: World) -> Iterator[Rented]:
    """Of each sort, first as it is usually bought."""
    sorts: dict[str, list[SimNode]] = {}
    for node in world.nodes.values():
        if find_rentable(node) is not None:
            sorts.setdefault(node.pool, []).append(node)
    for number, (pool, nodes) in enumerate(sorted(sorts.items())):
        machine = find_rentable(nodes[0])
        assert machine is not None
        for tier in (machine.capacity, *({paying.SPOT, paying.ON_DEMAND} - {machine.capacity})):
            there = len(nodes) if tier == machine.capacity else 0
            shape = MachineShape(
                instance_type=machine.type, gpus=nodes[0].gpus, gpu_model=nodes[0].model,
                has={names.GPU: nodes[0].gpus, "cpu": 192_000, "memory": 2 * 1024 * 1024, "pods": 110},
                price=float(machine.per_hour(tier)), labels=paying.RENTED,
            )
            yield Rented(PretendGroup(
                id=pool if tier == machine.capacity else f"{pool}-{tier}", shape=shape, tier=CapacityType(tier),
                zones=(f"{paying.REGION}{'abcdef'[number % 6]}",), target=there, most=there + _MORE,
            ), nodes[0])


def _is_spot(group: PretendGroup) -> bool:
    return group.tier is CapacityType.spot


def _write_pool(rented: Rented) -> Object:
    group = rented.group
    return {
        "name": group.id, "group": group.id, "capacityType": str(group.tier), "maxSize": group.most,
        "gpuType": gpus.normalise(rented.like.model), "instanceTypes": [group.shape.instance_type],
        "gpusPerNode": rented.like.gpus, "cpu": 192, "memory": "2Ti", "labels": dict(paying.RENTED),
    }
