"""The rival: nodes by what pods ask for, and nothing else, as Karpenter's rule does it.

In: the scene. Out: machines, by the same cloud. Who waits is grown for after a batching window, of one second at the
least and ten at the most (its BATCH_IDLE_DURATION and BATCH_MAX_DURATION): pods are put together, largest first, onto
as few new machines as hold them, the cheapest that fits, spot where the pod allows.
Nodes that nobody is on go at once; then one whose pods fit onto the others, or onto one that is cheaper and started
first; no more than a tenth of the nodes at a time (defaults of NodePool v1: consolidateAfter 0s, budgets 10 %, and
fifteen seconds to make sure). Pods that must not be moved block their node. A pod is moved by being sent away.
Nothing here looks at what GPUs do.
"""

import math
from typing import Final

from fallow.clients import errors
from fallow.model.machines import Growth
from fallow.model.units import Instant, Seconds
from fallow.sim.cloud import CloudFault
from fallow.sim.month import pools
from fallow.sim.month.claims import MachineClaim, bundle, claim_of, put
from fallow.sim.month.jobs import GpuJob
from fallow.sim.month.scene import MonthNode, Scene

_SURE: Final[Seconds] = 15.0
_BUDGET: Final = 0.1
_CALM: Final[Seconds] = 60.0
_BATCH: Final[Seconds] = 1.0  # without anybody new


class Rival:
    """Karpenter's rule, every ten seconds."""

    pace: Seconds = 10.0
    keeps: Seconds = 0.0

    def __init__(self, scene: Scene) -> None:
        self.scene, self._cloud = scene, scene.cloud
        self._version = -1
        self._quiet_since: Instant = scene.now  # nothing changed since
        self._replacing: dict[str, int] = {}  # nodes that go when so many machines have joined
        self.grown = self.released = 0

    def next_look(self) -> Instant:
        """While nothing happens by itself, and it has had its say, it does nothing."""
        scene, soon = self.scene, self.scene.now + self.pace
        is_calm = scene.version == self._version and scene.now - self._quiet_since > _CALM
        if not is_calm or scene.waiting or self._replacing:
            return soon
        return max(soon, scene.next_change() + _BATCH)

    async def tick(self) -> None:
        scene = self.scene
        if scene.version != self._version:
            self._version, self._quiet_since = scene.version, scene.now
        await self._heed_notices()
        if self._cloud.faults & {CloudFault.down, CloudFault.throttled}:
            return
        await self._finish_replacing()
        if scene.waiting:
            await self._grow()
        elif scene.now - self._quiet_since >= _SURE:
            await self._consolidate()

    # ---- more -------------------------------------------------------------------------------------------------------

    async def _grow(self) -> None:
        coming = [claim_of(one.group) for one in self._cloud.coming()]
        room = [one.group.shape.gpus or 0 for one in self._cloud.coming()]
        homeless = put(self._waiting(), coming, room)
        for claim in bundle(homeless):
            await self._buy(claim)

    def _waiting(self) -> list[GpuJob]:
        return [pod.job for pod in self.scene.waiting.values()]

    async def _buy(self, claim: MachineClaim) -> bool:
        name = pools.name_pool(claim.tier, claim.size)
        (group,) = await self._cloud.groups([name])
        try:
            await self._cloud.grow(Growth(group=name, count=1, base=group.target or 0, token=""))
        except (errors.OutOfStock, errors.QuotaSpent):
            return False
        self.grown += 1
        return True

    # ---- less -------------------------------------------------------------------------------------------------------

    async def _consolidate(self) -> None:
        scene = self.scene
        going = sum(bool(node.cordoned_by) for node in scene.nodes.values())
        allowed = math.ceil(_BUDGET * len(scene.nodes)) - going
        empty = [node for node in scene.nodes.values() if not node.pods and node.is_open][: max(0, allowed)]
        for node in empty:
            await self._remove(node)
        if empty or allowed <= 0 or self._replacing or self._cloud.coming():
            return
        for node in sorted(scene.nodes.values(), key=lambda node: (len(node.pods), node.name)):
            if node.is_open and node.pods and await self._try(node):
                return

    async def _try(self, node: MonthNode) -> bool:
        """Whether this one is let go: its pods have room elsewhere, or on one that is cheaper."""
        asked = [pod.job for pod in node.pods.values()]
        if not all(job.may_move for job in asked):
            return False
        others = [one for one in self.scene.nodes.values() if one is not node and one.is_open]
        claims = [claim_of(one.machine.group) for one in others]
        left = put(asked, claims, [one.free for one in others])
        if not left:
            await self._empty(node)
            return True
        (claim, *more) = bundle(left)
        if more or node.is_spot or claim.price >= node.machine.group.price:  # spot to spot is off by default
            return False
        if await self._buy(claim):
            node.cordoned_by = "rival"
            self._replacing[node.name] = self.scene.joined + 1
            return True
        return False

    async def _finish_replacing(self) -> None:
        for name, joined in list(self._replacing.items()):
            if self.scene.joined < joined:
                continue
            del self._replacing[name]
            if node := self.scene.nodes.get(name):
                await self._empty(node)

    async def _empty(self, node: MonthNode) -> None:
        node.cordoned_by = "rival"
        for pod in list(node.pods.values()):
            self.scene.send_away(pod)
        self.scene.place()
        await self._remove(node)

    async def _remove(self, node: MonthNode) -> None:
        node.cordoned_by = "rival"
        await self._cloud.remove(node.machine.group.id, [node.machine.id])
        self.released += 1

    async def _heed_notices(self) -> None:
        """A notice: the node is closed and emptied at once; who was there is grown for as whoever waits."""
        if self._cloud.faults & {CloudFault.down, CloudFault.throttled}:
            return
        notices = await self._cloud.notices()
        by_id = {node.machine.provider_id: node for node in self.scene.nodes.values()}
        for notice in notices:
            if node := by_id.get(notice.provider_id):
                await self._empty(node)
        await self._cloud.forget(notices)
