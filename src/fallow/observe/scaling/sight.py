"""All that nodes which come and go rest on, at one instant; and one node with its pods, read anew before a step.

In: an Api, what wiring knows of prices, budgets, the past and who must stay. Out: a ScalingSight; a node's pods.
Pods and nodes are followed once there is a policy, or where a look at the start finds a node that an earlier self had
begun to let go: its policy may have gone while nobody ran. Else nobody asks.
Invariant: what is followed and was not heard of for too long is unseen.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import msgspec

from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.model import cluster
from fallow.model.cost import CapacityType
from fallow.model.machines import MachineShape
from fallow.model.policies.scaling import ScalingPolicy
from fallow.model.scaling import DemandPast, DriversSeen, ScaledNode, ScaledPod, ScalingSight, SpendLimit
from fallow.model.seen import ABSENT, Absent, Input, Known, Register, Unseen, several, sure
from fallow.model.units import Instant, Seconds
from fallow.observe import budgets
from fallow.observe.cluster import pods as pods_of
from fallow.observe.scaling import clouds, drivers, nodes, pods, policies
from fallow.observe.usage.device_use import DeviceUse

WhyKept = Callable[[ScaledPod], str]

_LOOK_AGAIN: Final[Seconds] = 60.0  # for nodes that were left, where they could not be seen
_HURRIED: Final[Seconds] = 3.0  # that clouds and measurements are waited for while a node ends: GCP tells 30 s before


class ScalingSources(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked elsewhere. `use`: by node and board; raises where it is not known. `why_kept`: what else keeps a
    pod; raises where that is not seen. `price_of`, `price_of_type`: of an hour of the whole machine; `shape_of_type`:
    what is known of one. `namespace`: where requests of ours for other autoscalers stand; "": none are made.
    `patience`: for `use`."""

    use: Callable[[Instant], Awaitable[DeviceUse]]
    why_kept: Callable[[Instant], Awaitable[WhyKept]]
    find_cloud: clouds.FindCloud = lambda policy: None
    price_of: Callable[[cluster.Node], float | None] = lambda node: None
    price_of_type: Callable[[str, CapacityType], float | None] = lambda kind, tier: None
    shape_of_type: Callable[[str], MachineShape | None] = lambda kind: None
    limits: Callable[[Instant], Input[tuple[SpendLimit, ...]]] = lambda now: ABSENT
    past: Callable[[str], DemandPast | None] = lambda policy: None
    status: Callable[[ScalingPolicy], Mapping[str, object]] = lambda policy: policy.status
    namespace: str = ""
    currency: str = "USD"
    patience: Seconds = clouds.PATIENCE


class ScalingEyes:
    def __init__(
        self, api: kube.Api, sources: ScalingSources, wake: Callable[[], None] = lambda: None,
        wake_soon: Callable[[], None] = lambda: None,
    ) -> None:
        """`wake`: a cloud takes a node back. `wake_soon`: somebody waits, and others who came with them may follow."""
        self._api, self._sources = api, sources
        self._policies, self._pods = policies.watch(api), pods.PodEyes(api, wake_soon)
        self._nodes, self._drivers = nodes.watch(api, wake), drivers.DriverEyes(api, sources.namespace)
        self._see_pod, self._has_looked = self._pods.see, False

    async def run(self) -> None:
        """Until cancelled."""
        changed = self._policies.follower.changed
        async with asyncio.TaskGroup() as group:
            group.create_task(self._policies.run())
            while not (isinstance(self._policies.seen, Known) or await self._are_left()):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_AGAIN):
                        await changed.wait()
                changed.clear()
            group.create_task(self._nodes.run())
            group.create_task(self._pods.watching.run())

    async def _are_left(self) -> bool:
        """Whether nodes have a record of ours, although there is no policy. Seen once, it is not asked again."""
        if self._has_looked or not isinstance(self._policies.seen, Absent):
            return False
        try:
            left = await self._api.gather(kube.NODES, item=nodes.ScaledNodeItem, keep=nodes.has_record)
        except errors.ClientError:
            return False
        self._has_looked = True
        return any(left)

    async def list_once(self) -> None:
        """For who looks once."""
        for each in (self._policies, self._nodes, self._pods.watching):
            await each.list_once()

    @property
    def touched(self) -> tuple[ScaledNode, ...]:
        """Nodes that are drained, or that their clouds take back, as the watch tells it."""
        return tuple(each.node for each in sure(self._nodes.seen) if is_leaving(each.node))

    def find_by_provider(self, provider_id: str) -> Input[tuple[ScaledNode, ...]]:
        """More than one where somebody claims another's machine: whose it is cannot be told."""
        found = self._nodes.seen
        if isinstance(found, Unseen):
            return found
        named = (each.node for each in sure(found) if provider_id and each.node.provider_id == provider_id)
        return several(tuple(named))

    @property
    def policies(self) -> Input[tuple[ScalingPolicy, ...]]:
        """By rank, each with its status as it stands there."""
        seen = policies.rank(self._policies.seen)
        if not isinstance(seen, Known):
            return seen
        return Known(tuple(
            msgspec.structs.replace(each, status=self._sources.status(each)) for each in seen.value
        ))

    @property
    def has_fresh_demand(self) -> bool:
        """Somebody waits for a GPU who did not at the last look."""
        return self._pods.is_fresh

    async def look(self, now: Instant, *, hurry: bool = False) -> ScalingSight:
        """`hurry`: a node ends within minutes, so that nobody is waited for who is slow to answer."""
        self._pods.count()
        asked = self.policies
        seen, stale = self._nodes.seen, self._why_stale()
        known, there = sure(asked), () if stale else sure(seen)
        driving = await self._drivers.look((each.node for each in there), now)
        patience = _HURRIED if hurry else clouds.PATIENCE
        cloudy, (use, unmeasured) = await asyncio.gather(  # at once: two that do not answer take as long as one
            clouds.look(known, self._sources.find_cloud, driving, patience),
            self._measure(now, _HURRIED if hurry else self._sources.patience),
        )
        joined: tuple[ScaledNode, ...] = nodes.join(
            there, known, cloudy.all_machines, use, self._sources.price_of, nodes.find_twins(there), now
        )
        return ScalingSight(
            taken_at=now, policies=Unseen(stale) if stale else asked,
            pods=Unseen(stale) if stale else await self._see_pods(now, joined),
            nodes=Unseen(stale) if stale else _with(seen, joined),
            drivers=driving, groups=cloudy.groups, machines=cloudy.machines, wants=cloudy.wants,
            shapes=self._find_shapes(known, cloudy), prices=self._find_prices(known, cloudy),
            limits=self._sources.limits(now),
            past={each.name: found for each in known if (found := self._sources.past(each.name)) is not None},
            measured=unmeasured, currency=self._sources.currency,
        )

    async def find_drivers(self, now: Instant) -> Input[DriversSeen]:
        """Who moves machines here."""
        return await self._drivers.look((each.node for each in sure(self._nodes.seen)), now)

    def _why_stale(self) -> str:
        return budgets.find_stale((self._policies, self._nodes, self._pods.watching), time.monotonic())

    async def _measure(self, now: Instant, patience: Seconds) -> tuple[DeviceUse, str]:
        try:
            async with asyncio.timeout(patience):
                return await self._sources.use(now), ""
        except TimeoutError:
            return {}, f"it was not told within {patience:g} s"
        except errors.ClientError as problem:
            return {}, str(problem)

    async def _see_pods(self, now: Instant, joined: Sequence[ScaledNode]) -> Input[tuple[ScaledPod, ...]]:
        """With who must stay, of those that could be told to go."""
        seen = self._pods.seen
        if not isinstance(seen, Known):
            return seen
        why_kept = await self._find_kept(now)
        leaving = {each.name for each in joined if each.gpus or each.pool}
        return Known(tuple(_keep(each, why_kept) if each.node in leaving else each for each in seen.value))

    async def _find_kept(self, now: Instant) -> WhyKept:
        try:
            return await self._sources.why_kept(now)
        except errors.ClientError as problem:
            because = f"who must stay is not seen: {problem}"
            return lambda pod: because

    def _find_shapes(self, known: Sequence[ScalingPolicy], cloudy: clouds.CloudsSeen) -> Register[MachineShape]:
        found = ((kind, self._sources.shape_of_type(kind)) for kind, _ in _list_types(known, cloudy))
        return Register({kind: shape for kind, shape in found if shape is not None})

    def _find_prices(
        self, known: Sequence[ScalingPolicy], cloudy: clouds.CloudsSeen
    ) -> dict[tuple[str, CapacityType], float]:
        found = ((each, self._sources.price_of_type(*each)) for each in _list_types(known, cloudy))
        return {each: price for each, price in found if price is not None}

    # ---- anew ----

    async def list_joined(self) -> frozenset[str]:
        """By the provider's id, the machines that are nodes, asked of the server itself. Raises what it says."""
        pages = self._api.list_pages(kube.NODES, item=nodes.ScaledNodeItem)
        return frozenset([one.spec.provider_id async for page in pages for one in page.items])

    async def look_at(self, name: str, now: Instant) -> tuple[ScaledNode, tuple[ScaledPod, ...]] | None:
        """The node and everybody on it, asked of the server itself; None: it is gone. Raises what the server says."""
        try:
            item = await self._api.get(kube.NODES, None, name, kind=nodes.ScaledNodeItem)
        except errors.NotFound:
            return None
        node, known = nodes.see(item), sure(self.policies)
        others = [each for each in sure(self._nodes.seen) if each.node.uid != node.node.uid]
        twins = nodes.find_twins((*others, node)) if node.node.provider_id else {}
        (joined,) = nodes.join((node,), known, (), {}, self._sources.price_of, twins, now)
        if isinstance(self._nodes.seen, Unseen):
            joined = msgspec.structs.replace(joined, twin=f"which others there are is not seen: {self._nodes.seen.why}")
        why_kept = await self._find_kept(now)
        pages = self._api.list_pages(
            kube.PODS, item=pods.ScaledPodItem, field_selector=f"spec.nodeName={name},{pods_of.ALIVE}"
        )
        found = [self._see_pod(one) async for page in pages for one in page.items]
        return joined, tuple(_keep(each, why_kept) for each in found)


def _list_types(
    known: Sequence[ScalingPolicy], cloudy: clouds.CloudsSeen
) -> list[tuple[str, CapacityType]]:
    """Machine types of pools, as people name them, or as their groups have them."""
    groups = {each.id: each.instance_types for seen in cloudy.groups.values() for each in sure(seen)}
    return sorted({
        (kind, pool.tier) for policy in known for pool in policy.pools
        for kind in pool.instance_types or groups.get(pool.group, ())
    })


def is_leaving(node: ScaledNode) -> bool:
    said = (node.drain, node.spot, node.warned_at, node.ends_at)
    return node.is_broken or any(each is not None for each in said)


def _with(seen: Input[tuple[nodes.SeenNode, ...]], joined: tuple[ScaledNode, ...]) -> Input[tuple[ScaledNode, ...]]:
    return Known(joined) if isinstance(seen, Known) else seen


def _keep(pod: ScaledPod, why_kept: WhyKept) -> ScaledPod:
    if pod.stays or pod.fixed:
        return pod
    because = why_kept(pod)
    return msgspec.structs.replace(pod, fixed=because) if because else pod
