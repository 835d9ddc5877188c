"""Nodes, pods and policies for the tests of scaling, each with one line."""

from typing import Any

from fallow import names
from fallow.decide import scaling
from fallow.model.classes import WorkClass
from fallow.model.cluster import Owner, PodId
from fallow.model.cost import CapacityType
from fallow.model.machines import MachineGroup
from fallow.model.policies.scaling import MachineProvider, NodePool, ScalingMode, ScalingPolicy
from fallow.model.scaling import ScaledNode, ScaledPod, ScalingMemory, ScalingSight
from fallow.model.scaling_plan import PolicyPlan, ScalingPlan
from fallow.model.seen import ABSENT, Known, several

NOW = 1_800_000_000.0
GPU, SHARED = names.GPU, names.GPU_SHARED
SPOT, ON_DEMAND, RESERVED = CapacityType.spot, CapacityType.on_demand, CapacityType.reserved
JOB = Owner("apps", "v1", "ReplicaSet", "web", "owner-1")
DAEMON = Owner("apps", "v1", "DaemonSet", "exporter", "owner-2")


def pool(name: str = "main", tier: CapacityType = ON_DEMAND, **more: Any) -> NodePool:
    return NodePool(**{"name": name, "tier": tier, "group": f"group-{name}", "gpus": 8, "price": 8.0, **more})


def policy(*pools: NodePool, **more: Any) -> ScalingPolicy:
    return ScalingPolicy(**{
        "name": "default", "mode": ScalingMode.act, "provider": MachineProvider.custom, "pools": pools or (pool(),),
        **more,
    })


def node(name: str, gpus: int = 8, **more: Any) -> ScaledNode:
    has = {"cpu": 96_000, "memory": 800_000, **({GPU: gpus} if gpus else {})}
    return ScaledNode(**{
        "name": name, "uid": f"uid-{name}", "version": "1", "has": has, "gpus": gpus or None, "is_ready": True,
        "created_at": NOW - 86_400, "pool": "main" if gpus else "", "price": 8.0, "use": 0.5 if gpus else None,
        "provider_id": f"cloud://{name}", **more,
    })


def pod(name: str, gpus: int = 0, at: str = "", **more: Any) -> ScaledPod:
    asks = {"cpu": 1000, "memory": 1000, **({GPU: gpus} if gpus else {})}
    waits = {} if at else {"waits_since": NOW - 600}
    return ScaledPod(**{
        "id": PodId("ml", name, f"uid-{name}"), "node": at, "asks": asks, "owner": JOB, "work": WorkClass.batch,
        "created_at": NOW - 86_400, "is_ready": bool(at), **waits, **more,
    })


def pods(count: int, gpus: int = 1, name: str = "p", **more: Any) -> list[ScaledPod]:
    return [pod(f"{name}{number}", gpus, **more) for number in range(count)]


def daemon(name: str, at: str) -> ScaledPod:
    return pod(name, 0, at, stays=True, owner=DAEMON)


def groups_of(rule: ScalingPolicy) -> tuple[MachineGroup, ...]:
    return tuple(MachineGroup(id=each.group, tier=each.tier, most=1000, target=0) for each in rule.pools if each.group)


def sight(rule: ScalingPolicy | None = None, *things: ScaledNode | ScaledPod, **more: Any) -> ScalingSight:
    rules = (rule or policy(),)
    return ScalingSight(**{
        "taken_at": NOW, "policies": Known(rules), "drivers": ABSENT,
        "nodes": several(tuple(each for each in things if isinstance(each, ScaledNode))),
        "pods": several(tuple(each for each in things if isinstance(each, ScaledPod))),
        "groups": {each.name: Known(groups_of(each)) for each in rules}, **more,
    })


def look(seen: ScalingSight, memory: ScalingMemory | None = None, now: float = NOW) -> ScalingPlan:
    return scaling.plan(seen, memory or ScalingMemory(), now)


def first(plan: ScalingPlan) -> PolicyPlan:
    return plan.policies[0]


def grown(plan: ScalingPlan) -> dict[str, int]:
    """Nodes to add, by pool, of all policies."""
    made: dict[str, int] = {}
    for each in plan.policies:
        for grow in each.grows:
            made[grow.pool.name] = made.get(grow.pool.name, 0) + grow.count
    return made


def released(plan: ScalingPlan) -> list[str]:
    return [release.node for each in plan.policies for release in each.releases]


def long_unneeded(*nodes: ScaledNode, since: float = NOW - 3600, **more: Any) -> ScalingMemory:
    return ScalingMemory(unneeded={each.uid: since for each in nodes}, **more)


def stays(plan: ScalingPlan) -> dict[str, str]:
    return {verdict.node: str(verdict.stay) for verdict in plan.nodes}


def fits(plan: ScalingPlan) -> dict[str, str]:
    return {verdict.pod.name: str(verdict.fit) for verdict in plan.pods}
