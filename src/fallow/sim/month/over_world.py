"""A pretend world as a scene of nodes that come and go, so that the same hands and the same brain scale it.

In: a World whose nodes are those that its cluster may have; each sort of node is a pool, paid for on demand. Out: a
Scene: what the World's pods ask for, which of its nodes are there, and a cloud that brings and takes them.
A trace does not tell whether a pod may be moved: none is, and only nodes that nobody is on go.
Invariant: there are never more nodes of a sort than the World has; the World alone says who is where.
"""

from collections import defaultdict
from decimal import Decimal
from typing import Final

import numpy as np

from fallow.model import gpus, price_book
from fallow.model.classes import WorkClass
from fallow.model.cost import CapacityType
from fallow.model.machines import MachineShape
from fallow.model.policies.scaling import MachineProvider, NodeDriver, NodePool, PoolTaint, ScalingMode, ScalingPolicy
from fallow.model.scaling import ScaledPod
from fallow.model.units import MINUTE
from fallow.sim.cloud import PretendGroup
from fallow.sim.month.jobs import GpuJob
from fallow.sim.month.scene import MonthNode, MonthPod, Scene
from fallow.sim.world.lives import NONE
from fallow.sim.world.nouns import RESOURCES, SimNode, SimPod, SimWorkload
from fallow.sim.world.world import World

MODEL_LABEL, MODE_LABEL = "pretend.cloud/model", "pretend.cloud/mode"
_MEASURED: Final = 5 * MINUTE
_FIXED: Final = "a trace does not tell whether it may be moved"


def list_groups(world: World, book: price_book.ModelPrices) -> dict[str, tuple[PretendGroup, list[str]]]:
    """By its id, each sort of node with the names of those there are."""
    sorts: dict[tuple[str, int, str], list[SimNode]] = defaultdict(list)
    for node in world.nodes.values():
        sorts[node.model, node.gpus, node.mode].append(node)
    found = {}
    for number, ((model, count, mode), nodes) in enumerate(sorts.items()):
        each = price_book.find_by_model(model, book)
        shape = MachineShape(
            instance_type=f"{gpus.normalise(model)}x{count}", gpus=count, gpu_model=model,
            has={RESOURCES[nodes[0].mode]: nodes[0].slots}, labels={MODEL_LABEL: model, MODE_LABEL: mode},
            price=None if each is None else float(each * Decimal(count)),
        )
        made = PretendGroup(
            id=f"sort-{number}", shape=shape, target=sum(node.there for node in nodes), most=len(nodes),
        )
        found[made.id] = made, [node.name for node in nodes]
    return found


def make_policy(groups: dict[str, tuple[PretendGroup, list[str]]]) -> ScalingPolicy:
    """As it is unless people say otherwise, but that it acts, and adds nodes only for who waits: in a past nobody comes
    because there is room."""
    return ScalingPolicy(
        name="backtest", mode=ScalingMode.act, provider=MachineProvider.custom, driver=NodeDriver.direct,
        grow_above=1.0, most=sum(group.most for group, _ in groups.values()), tiers=(CapacityType.on_demand,),
        pools=tuple(
            NodePool(
                name=group.id, tier=CapacityType.on_demand, most=group.most, group=group.id, labels=group.shape.labels,
                instance_types=(group.shape.instance_type,), price=group.shape.price,
            )
            for group, _ in groups.values()
        ),
    )


class WorldScene(Scene):
    """`follow` after each step of the World."""

    def __init__(self, world: World, groups: dict[str, tuple[PretendGroup, list[str]]]) -> None:
        super().__init__((), [group for group, _ in groups.values()], world.now)
        self.world = world
        self._spare = {  # those that are not there first
            name: sorted(nodes, key=lambda each: world.nodes[each].there) for name, (_, nodes) in groups.items()
        }
        self._named = set[str]()
        self._made: dict[str, tuple[SimPod, MonthPod]] = {}
        for machine in self.cloud.standing():  # those that are there already
            machine.node = self._spare[machine.group.id].pop()
            self._named.add(machine.id)
        self.follow()

    def follow(self) -> None:
        self.now = self.world.now
        self.meet()
        pods = {pod.uid: (one, pod) for one in self.world.workloads for pod in one.pods}
        if pods.keys() != self.pods.keys() or any(self._made[uid][0] is not pod for uid, (_, pod) in pods.items()):
            self.version += 1
        self.pods = {uid: self._make(one, pod) for uid, (one, pod) in pods.items()}
        self.waiting = {uid: pod for uid, pod in self.pods.items() if not pod.node}
        self._made = {uid: (pods[uid][1], pod) for uid, pod in self.pods.items()}
        self._seat()

    def _make(self, one: SimWorkload, pod: SimPod) -> MonthPod:
        known = self._made.get(pod.uid)
        if known is not None and known[0] is pod:
            return known[1]
        work = WorkClass(one.part.class_)
        job = GpuJob(
            name=pod.uid, at=pod.created_at - self.begins, seconds=float("inf"), gpus=one.part.gpus, work=work, use=0.0,
            spot=False, may_move=False,
        )
        made = MonthPod(job=job, left=0.0, since=pod.created_at, node=pod.node)
        wanted = {MODE_LABEL: str(one.mode), **({MODEL_LABEL: one.part.model} if one.part.model else {})}
        made.seen = ScaledPod(
            id=made.id, node=pod.node, asks={RESOURCES[one.mode]: one.part.gpus}, fixed=_FIXED, is_ready=bool(pod.node),
            created_at=pod.created_at, waits_since=None if pod.node else pod.created_at, work=work,
            node_selector=wanted, replicas=one.part.pods,
        )
        return made

    def see(self, pod: MonthPod) -> ScaledPod:
        assert pod.seen is not None
        return pod.seen

    def list_taints(self, node: MonthNode) -> tuple[PoolTaint, ...]:
        return ()

    def _seat(self) -> None:
        for node in self.nodes.values():
            node.pods = {}
        for pod in self.pods.values():
            if pod.node in self.nodes:
                self.nodes[pod.node].pods[pod.job.name] = pod

    def meet(self) -> None:
        for machine in self.cloud.standing():
            if machine.id not in self._named:
                machine.node = self._spare[machine.group.id].pop(0)
                self._named.add(machine.id)
                self.world.bring(machine.node)
        super().meet()

    def _lose(self, node: MonthNode) -> None:
        self.world.take(node.name)
        self._spare[node.machine.group.id].append(node.name)
        node.pods = {}
        super()._lose(node)

    def place(self) -> None:
        """The World does."""
        for node in self.nodes.values():
            if self.world.nodes[node.name].cordoned != bool(node.cordoned_by):
                self.world.cordon(node.name, bool(node.cordoned_by))

    def find_use(self, node: MonthNode) -> float | None:
        """Mean of its GPUs over five minutes; a GPU that nobody has does nothing. None: one of them is not known."""
        world, columns = self.world, self.world.columns_before(_MEASURED)
        first = world.nodes[node.name].first
        seats = world.seat_at[first : first + world.nodes[node.name].slots]
        seen = world.seen[np.ix_(seats[seats >= 0], columns)]
        if not len(columns) or (seen == NONE).any():
            return None
        return float(seen.mean(axis=1).sum()) / 100 / world.nodes[node.name].slots if seen.size else 0.0
