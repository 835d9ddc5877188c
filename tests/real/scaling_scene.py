"""Nodes that come and go on a real API server: a scene with the story as a daemon runs it; the cloud is pretended.
A story that is made anew has forgotten everything, as after a kill -9: what it must know stands on the node or in the
policy's status.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from fallow import names, telemetry
from fallow.account.scaling import ScalingAccount
from fallow.act import events, growing, headroom, leaving, scaling_statuses
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config
from fallow.decide import scaling as deciding
from fallow.model import units
from fallow.model.cost import CapacityType
from fallow.model.history import AuditEntry
from fallow.model.machines import (
    CloudMachine,
    Growth,
    MachineGroup,
    MachineNotice,
    MachineShape,
    MachineState,
    WantOfMachines,
)
from fallow.model.policies import scaling_crd
from fallow.model.scaling import DemandPast, ScaledPod
from fallow.observe.scaling import sight
from fallow.observe.usage.device_use import DeviceUse
from fallow.stories import scaling as story_of_scaling
from fallow.stories.turn import Turn
from tests.real import cluster as clusters
from tests.real import shipped

VERSION, KIND = "gpuautoscaler.io/v1alpha1", "AutoscalingPolicy"
LOOKS = 100.0  # seconds between two of them
SCENE = "scene"  # the label by which a test's own nodes are told apart
SHIPPED = ("base/20-reader.yaml", "acting/10-role.yaml", "scaling/10-role.yaml")


class Killed(BaseException):
    """The process ends here."""


class PretendMachines:
    """A cloud of one zone whose machines are nodes at once. `dies`: before or after it did what it was asked. `ails`:
    `down`, it fails at once; `hangs`, it never answers; `deaf`, its queue forgets nothing; `stuck`, it removes nothing;
    `mute`, it removes and does not say so. `hidden`: machines that it does not list. `kind`: of all its machines; "":
    it does not say."""

    def __init__(self, cluster: clusters.Cluster, **targets: int) -> None:
        self.cluster, self.targets, self.asked = cluster, targets, list[Growth]()
        self.empty, self.dies, self.owner = set[str](), "", ""
        self.removed, self.told, self.ails = list[str](), list[MachineNotice](), ""
        self.hidden, self.kind = set[str](), ""

    async def groups(self, ids: Sequence[str]) -> tuple[MachineGroup, ...]:
        if self.ails == "down":
            raise errors.Unreachable("the cloud is down")
        if self.ails == "hangs":
            await asyncio.sleep(3600)
        shape = MachineShape(
            instance_type="h100", gpus=4, price=10.0, labels={SCENE: self.cluster.namespace},
            has={"cpu": 128_000, "memory": 1024 * 1024, "pods": 200, names.GPU: 4},
        )
        return tuple(
            MachineGroup(id=each, tier=_tier(each), most=50, target=self.targets[each], shape=shape, owner=self.owner)
            for each in ids if each in self.targets
        )

    async def machines(self, group: str) -> tuple[CloudMachine, ...]:
        found = await self.cluster.objects("v1", "Node", labelSelector=f"{SCENE}={self.cluster.namespace}")
        return tuple(
            CloudMachine(
                id=node["metadata"]["name"], group=group, state=MachineState.running, instance_type=self.kind,
                provider_id=node["spec"].get("providerID", ""),
                launched_at=units.read_instant(node["metadata"]["creationTimestamp"]),
            )
            for node in found if node["metadata"]["labels"].get(names.SCALING_GROUP) == group
            and node["metadata"]["name"] not in self.hidden
        )

    async def wants(self, group: str) -> tuple[WantOfMachines, ...]:
        return ()

    async def grow(self, growth: Growth) -> None:
        self.asked.append(growth)
        if self.dies == "before":
            raise Killed
        if growth.group in self.empty:
            raise errors.OutOfStock("there is none", zone="a")
        self.targets[growth.group] = max(self.targets[growth.group], growth.base + growth.count)
        if self.dies == "after":
            raise Killed

    async def remove(self, group: str, ids: Sequence[str]) -> None:
        if self.ails == "stuck":
            raise errors.Unreachable("the cloud is down")
        if self.dies == "before":
            raise Killed
        for each in ids:
            node = await self.cluster.find("v1", "Node", each)
            if node is not None:
                self.removed.append(each)
                self.targets[group] -= 1
                await self.cluster.delete(node)
        if self.dies == "after":
            raise Killed
        if self.ails == "mute":
            raise errors.Unreachable("the answer was lost")

    async def notices(self) -> tuple[MachineNotice, ...]:
        return tuple(self.told)

    async def forget(self, notices: Sequence[MachineNotice]) -> None:
        if self.ails == "deaf":
            raise errors.rejection(403, "the queue may not be emptied")
        self.told = [each for each in self.told if each not in notices]


def _tier(group: str) -> CapacityType:
    return CapacityType.spot if "spot" in group else CapacityType.on_demand


class Scene:
    def __init__(self, cluster: clusters.Cluster, api: kube.Api) -> None:
        self.cluster, self.api, self.later = cluster, api, 0.0
        self.cloud = PretendMachines(cluster, **{"spot": 0, "on-demand": 0})
        self.use: Callable[[], DeviceUse] | None = None
        self.acts, self.kept = True, ""
        self.meanwhile: Callable[[], Awaitable[None]] | None = None  # what happens while it looks
        self.past: DemandPast | None = None
        self.wakes = list[float]()  # after how many seconds it wanted its next turns
        self.metrics = telemetry.Telemetry()
        self.entries = list[AuditEntry]()
        self.account = ScalingAccount(self.metrics, put=lambda chapter: self.entries.extend(chapter.entries))
        self.fresh()

    def fresh(self, wake: Callable[[], None] = lambda: None) -> None:
        """A process that was just started. `wake`: its watch tells of a notice."""
        statuses = scaling_statuses.ScalingStatuses(self.api)
        self.eyes = sight.ScalingEyes(self.api, sight.ScalingSources(
            use=self._measure, why_kept=self._keep, find_cloud=lambda policy: self.cloud, status=statuses.find,
            price_of=lambda node: 10.0, past=lambda name: self.past,
            namespace=self.cluster.namespace,
        ), wake)
        announcer = events.Announcer(self.api, reporting_instance="test")
        self.story = story_of_scaling.ScalingStory(
            eyes=self.eyes, find_cloud=lambda policy: self.cloud, account=self.account,
            terms=story_of_scaling.ScalingStoryTerms(acts=self.acts, wake_in=self.wakes.append),
            hands=story_of_scaling.ScalingHands(
                leaving=leaving.LeavingHands(self.api, announcer), announcer=announcer, statuses=statuses,
                grower=growing.Grower(statuses, deciding.note_shortage),
                headroom=headroom.HeadroomHands(self.api, self.cluster.namespace),
            ),
        )

    async def _measure(self, now: float) -> DeviceUse:
        if self.meanwhile is not None:
            await self.meanwhile()
        if self.use is None:
            raise errors.Unreachable("Prometheus is down")
        return self.use()

    async def _keep(self, now: float) -> Callable[[ScaledPod], str]:
        return lambda pod: self.kept

    async def policy(self, *pools: dict[str, Any], **spec: Any) -> None:
        """A pool's usual words are not said where a test gives None."""
        usual = [{"name": "spot", "capacityType": "spot"}, {"name": "on-demand", "capacityType": "on-demand"}]
        said: dict[str, Any] = {
            "labels": {SCENE: self.cluster.namespace}, "gpusPerNode": 4, "cpu": 128, "memory": "1Ti",
            "pricePerHour": "10", "instanceTypes": ["h100"],
        }
        made = [
            {key: value for key, value in {"group": each["name"], **said, **each}.items() if value is not None}
            for each in pools or usual
        ]
        await self.cluster.apply({
            "apiVersion": VERSION, "kind": KIND, "metadata": {"name": self.cluster.namespace}, "spec": {
                "provider": "custom", "mode": "act", "nodeSelector": {SCENE: self.cluster.namespace},
                "nodePools": made, **spec,
            },
        })

    async def node(self, name: str, group: str = "on-demand", gpus: int = 4, **more: Any) -> str:
        """The name it has in this test's cluster."""
        full = f"{name}-{self.cluster.namespace}"
        labels = {SCENE: self.cluster.namespace, names.SCALING_GROUP: group, names.OWN_CAPACITY: str(_tier(group))}
        node = await self.cluster.gpu_node(full, gpus=gpus, labels=labels, **more)
        await self.cluster.patch(node, {"spec": {"providerID": f"pretend://{full}"}})
        self.cloud.targets[group] += 1
        return full

    def busy(self, **nodes: float) -> None:
        """By what a node's name begins with; all of its four GPUs alike."""
        made = {
            f"{name}-{self.cluster.namespace}": {f"{name}-{gpu}": use for gpu in range(4)}
            for name, use in nodes.items()
        }
        self.use = lambda: made

    def grant(self) -> Turn:
        return Turn(
            clock=lambda: time.time() + self.later, monotonic=time.monotonic, budget=60.0, stopping=asyncio.Event(),
            leads=lambda: True,
        )

    async def turn(self) -> str:
        await self.eyes.list_once()
        made = await self.story.tick(self.grant())
        assert not made.failure
        return "; ".join(made.done)

    async def pass_time(self, seconds: float) -> str:
        """With a look now and then, as a daemon takes it: what nobody looked at did not last."""
        ends, said = self.later + seconds, list[str]()
        while self.later < ends:
            self.later = min(self.later + LOOKS, ends)
            said.append(await self.turn())
        return "; ".join(filter(None, said))

    async def status(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.cluster.get(VERSION, KIND, self.cluster.namespace)).get("status", {})
        return found

    async def condition(self, type_: str) -> tuple[str, str]:
        listed = (await self.status())["conditions"]
        return next((each["status"], each["reason"]) for each in listed if each["type"] == type_)

    async def wait_for(self, app: str, count: int) -> None:
        """So many pods that the scheduler has said to fit nowhere."""

        async def holds() -> bool:
            found = await self.cluster.pods(f"app={app}")
            told = [each for pod in found for each in pod["status"].get("conditions", [])
                    if each["type"] == "PodScheduled" and each.get("reason") == "Unschedulable"]
            return len(told) == count

        await self.cluster.wait_until(holds)

    async def marks(self, name: str) -> tuple[bool, set[str], set[str]]:
        """Cordoned, our annotations, our taints."""
        found = await self.cluster.get("v1", "Node", name)
        ours = {key.removeprefix(f"{names.GROUP}/") for key in found["metadata"].get("annotations", {})
                if key.startswith(names.GROUP)}
        taints = {each["key"].removeprefix(f"{names.GROUP}/") for each in found["spec"].get("taints", ())
                  if each["key"].startswith(names.GROUP)}
        return bool(found["spec"].get("unschedulable")), ours, taints

    def written(self, contains: str = "", verbs: Sequence[str] = ("create", "patch", "delete")) -> list[Any]:
        user = f"system:serviceaccount:{self.cluster.namespace}:scaler"
        return self.cluster.requests(user, verbs, contains)


@contextlib.asynccontextmanager
async def open_scene(cluster: clusters.Cluster) -> AsyncIterator[Scene]:
    await cluster.apply_crds(scaling_crd.define())
    kubeconfig = await shipped.account(cluster, "scaler", *SHIPPED)
    access = config.load_access(kubeconfig=str(kubeconfig), context=None, environment={})
    async with contextlib.AsyncExitStack() as stack:
        yield Scene(cluster, await stack.enter_async_context(kube.Api(access)))
    shipped.used(cluster, f"system:serviceaccount:{cluster.namespace}:scaler")  # no right was missing


def waiting(name: str, replicas: int, scene: Scene, gpus: int = 4, **more: Any) -> dict[str, Any]:
    return clusters.replicated(
        "apps/v1", "Deployment", name, replicas, gpus, nodeSelector={SCENE: scene.cluster.namespace}, **more
    )
