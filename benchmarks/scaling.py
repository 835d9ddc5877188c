"""A plan over 5,000 GPU nodes and 2,000 pods that wait, one of a cycle in which nothing changed, one in which a spot
node is taken back, and forecasts of 1,000 series of 28 days, in CPU time.

    python -m benchmarks scaling

Every node runs six pods with GPUs and four of DaemonSets; a tenth of the nodes is under-used. Pods that wait ask for
two hundred different amounts, some with selectors, affinities and tolerations.
"""

import time

import msgspec
import numpy as np

from benchmarks import figures
from fallow import names
from fallow.decide import scaling
from fallow.model.cluster import Owner, PodId
from fallow.model.cost import CapacityType
from fallow.model.machines import MachineGroup
from fallow.model.policies.scaling import NodePool, PoolTaint, ScalingMode, ScalingPolicy
from fallow.model.scaling import NodeToleration, ScaledNode, ScaledPod, ScalingMemory, ScalingSight
from fallow.model.seen import ABSENT, Known

NOW = 1_800_000_000.0
NODES, WAITING = 5000, 2000
SERIES, SERIES_HOURS, AHEAD = 1000, 28 * 24, 2
KINDS = ("a100", "h100", "l4", "t4")
OWNER, DAEMON = (Owner("apps", "v1", kind, "x", "1") for kind in ("ReplicaSet", "DaemonSet"))


def make_policy() -> ScalingPolicy:
    pools = tuple(
        NodePool(
            name=f"{kind}-{tier}", tier=tier, group=f"{kind}-{tier}", gpus=8, price=8.0 + place, most=5000,
            labels={"gpu": kind}, taints=(PoolTaint("gpu", kind, "NoSchedule"),),
        )
        for place, kind in enumerate(KINDS) for tier in (CapacityType.spot, CapacityType.on_demand)
    )
    return ScalingPolicy(name="default", mode=ScalingMode.act, pools=pools, most=10_000)


def make_node(number: int) -> ScaledNode:
    kind = KINDS[number % 4]
    tier = CapacityType.spot if number % 2 else CapacityType.on_demand
    return ScaledNode(
        name=f"node-{number:04}", uid=f"n{number}", version="1", provider_id=f"cloud://{number}",
        has={"cpu": 96_000, "memory": 1_000_000, names.GPU: 8, "pods": 110}, gpus=8, is_ready=True,
        created_at=NOW - 1e6,
        labels={"gpu": kind, names.HOSTNAME: f"node-{number:04}", "zone": f"z{number % 3}"}, price=8.0, tier=tier,
        taints=(PoolTaint("gpu", kind, "NoSchedule"),), pool=f"{kind}-{tier}", use=0.1 if number % 10 == 0 else 0.6,
    )


def make_pods(number: int) -> list[ScaledPod]:
    node, pods = f"node-{number:04}", []
    for place in range(10):
        is_daemon = place >= 6
        asks = {"cpu": 100, "memory": 200} if is_daemon else {"cpu": 4000, "memory": 16_000, names.GPU: 1}
        bears = (NodeToleration("gpu", "Exists"),)
        pods.append(ScaledPod(
            id=PodId("ml", f"p{number}-{place}", f"p{number}-{place}"), node=node, asks=asks, stays=is_daemon,
            owner=DAEMON if is_daemon else OWNER, created_at=NOW - 1e5, is_ready=True, tolerations=bears,
        ))
    return pods


def make_waiting(number: int) -> ScaledPod:
    kind = KINDS[number % 4]
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["z0", "z1"]}]}
    return ScaledPod(
        id=PodId("ml", f"w{number}", f"w{number}"), created_at=NOW - 900, waits_since=NOW - 900, owner=OWNER,
        asks={"cpu": 1000 * (1 + number % 25), "memory": 4000, names.GPU: (3, 4, 8, 5)[number % 8 // 2]},
        priority=number % 2, node_selector={"gpu": kind} if number % 3 else {},
        affinity=[term] if number % 5 == 0 else None, tolerations=(NodeToleration("gpu", "Exists"),),
    )


def make_sight(waiting: int) -> ScalingSight:
    rule = make_policy()
    running = [pod for number in range(NODES) for pod in make_pods(number)]
    return ScalingSight(
        taken_at=NOW, policies=Known((rule,)), drivers=ABSENT,
        nodes=Known(tuple(map(make_node, range(NODES)))),
        pods=Known((*running, *map(make_waiting, range(waiting)))),
        groups={rule.name: Known(tuple(MachineGroup(id=each.group, tier=each.tier, most=5000) for each in rule.pools))},
    )


def spend(sight: ScalingSight, memory: ScalingMemory, now: float, kept: scaling.KeptSight | None) -> float:
    began = time.process_time()
    scaling.plan(sight, memory, now, kept=kept)
    return time.process_time() - began


def main() -> None:
    sight, memory = make_sight(WAITING), ScalingMemory()
    fresh = min(spend(sight, memory, NOW, None) for _ in range(3))
    made = scaling.plan(sight, memory, NOW)
    count = sum(grow.count for grow in made.policies[0].grows)
    what = f"a plan over {NODES:,} nodes, {NODES * 10:,} pods and {WAITING:,} that wait"
    figures.show(what, f"{fresh:.2f} CPU s, {count} nodes to add", "1 CPU s", fresh <= 1.0)

    calm = make_sight(0)
    kept = scaling.KeptSight()
    memory = scaling.plan(calm, memory, NOW, kept=kept).memory
    same = min(spend(calm, memory, NOW + 30 * cycle, kept) for cycle in range(1, 6))
    figures.show("a cycle in which nothing changed", f"{same:.3f} CPU s", "0.05 CPU s", same <= 0.05)
    assert isinstance(calm.pods, Known)
    assert isinstance(calm.nodes, Known)
    moved = []
    for cycle in range(1, 4):
        pods = Known((*calm.pods.value[10:], *make_pods(0)))
        nodes = Known(tuple(msgspec.structs.replace(node, use=(node.use or 0) + 0.001) for node in calm.nodes.value))
        moved.append(spend(msgspec.structs.replace(calm, pods=pods, nodes=nodes), memory, NOW + 30 * cycle, kept))
    print(f"         one in which ten pods and the use of all nodes changed: {min(moved):.3f} CPU s")
    ends = msgspec.structs.replace(calm.nodes.value[1], ends_at=NOW + 120, warned_at=NOW)
    nodes = Known((calm.nodes.value[0], ends, *calm.nodes.value[2:]))
    notice = spend(msgspec.structs.replace(calm, nodes=nodes), memory, NOW + 120, kept)
    print(f"         one in which a spot node is taken back: {notice:.3f} CPU s")
    foretell()


def foretell() -> None:
    """Weekly and daily seasons, noise, and series that only stay as they are; each with its backtest of two weeks."""
    rng, hours = np.random.default_rng(0), np.arange(SERIES_HOURS)
    weekly = np.where((hours // 24 % 7 < 5) & (hours % 24 > 8) & (hours % 24 < 18), 40.0, 4.0)
    shapes = np.stack([weekly, 20 + 10 * np.sin(hours / 24 * 2 * np.pi), np.full(SERIES_HOURS, 12.0)])
    demand = shapes[np.arange(SERIES) % 3] * rng.uniform(0.9, 1.1, (SERIES, SERIES_HOURS))
    slots = np.arange(SERIES_HOURS + AHEAD) % scaling.WEEK
    spent = []
    for _ in range(3):
        began = time.process_time()
        scaling.foresee(demand, slots, AHEAD, node=8.0)
        spent.append(time.process_time() - began)
    what = f"forecasts of {SERIES:,} series of 28 days, {AHEAD} h ahead, with their backtests"
    figures.show(what, f"{min(spent):.2f} CPU s", "0.5 CPU s", min(spent) <= 0.5)


if __name__ == "__main__":
    main()
