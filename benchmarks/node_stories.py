"""What the stories of sharing and emptying cost on a large cluster: 10,000 pods with GPUs on 2,500 nodes.

The guard: how many questions Prometheus is asked in a look, how long they are, and our own CPU, where few owners have
many pods and where each pod has an owner of its own. Consolidation: CPU of a look at everything (every five minutes),
of its list of pods and nodes, and how much is listed for one step of a node that is being emptied.
"""

import asyncio
import time
from typing import Any

import msgspec
import numpy as np
from tests import builders

from benchmarks import figures
from fallow.clients.prometheus import client
from fallow.decide import packing
from fallow.model import capacity, cluster
from fallow.model.policies.sharing import HurtGuard
from fallow.model.share_hurts import SharedOwner
from fallow.observe.usage import hurting
from fallow.observe.usage.owning import UseWords

PODS, NODES, GPUS = 10_000, 2_500, 8
NOW = 1_794_900_000.0
MOST_BYTES = 150_000
GOAL_QUESTIONS, GOAL_GUARD, GOAL_PLAN = 2_200, 5.0, 10.0  # in a look; CPU seconds


class Silent:
    """A Prometheus that has no series: what is counted is what it is asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def selector(self, metric: str, *matchers: str) -> str:
        return f"{metric}{{{','.join(matchers)}}}"

    async def query(self, promql: str, at: float, **_: Any) -> Any:
        self.asked.append(len(promql))
        return client.QueryAnswer([], (), (), False)


def _make_owners(count: int) -> list[SharedOwner]:
    world = builders.World()
    for number in range(count):
        world.workload(f"team-{number % 50}/service-{number}", gpus=[builders.busy()])
    made = []
    for number, workload in enumerate(world.snapshot(version=1).workloads):
        pods = tuple(f"service-{number}-7c9d8b6f5d-{place:05}" for place in range(PODS // count))
        guard = HurtGuard(latency_query='histogram_quantile(0.99, rate(x{namespace="$namespace",name="$name"}[5m]))')
        made.append(SharedOwner(
            workload=workload, policy="services", since=NOW - 3600, strategy="mps", pods=pods, guard=guard, times=0,
        ))
    return made


async def _guard(count: int) -> None:
    owners, told = _make_owners(count), Silent()
    reader = hurting.HurtReader(told, UseWords("pod", "namespace"))  # type: ignore[arg-type]
    began = time.process_time()
    await reader.read(owners, NOW)
    used, first, longest = time.process_time() - began, len(told.asked), max(told.asked)
    told.asked.clear()
    began = time.process_time()
    await reader.read(owners, NOW + 300)
    shown = (
        f"{first} questions, then {len(told.asked)}; the longest {longest / 1000:.0f} KB; CPU {used:.2f}, then "
        f"{time.process_time() - began:.2f} s"
    )
    held = first <= GOAL_QUESTIONS and longest <= MOST_BYTES and used <= GOAL_GUARD
    figures.show(f"guard of {PODS:,} pods of {count:,} owners", shown, f"{GOAL_QUESTIONS}, 150 KB, 5 s", held)


def _make_capacity() -> cluster.Capacity:
    machines = tuple(
        capacity.Machine(name=f"gpu-{number:04}", product=f"model-{number % 4}", cpu=128_000, memory=1 << 20, gpus=GPUS,
                         pods=110)
        for number in range(NODES)
    )
    draw, pods, left = np.random.default_rng(3), list[cluster.Pod](), [GPUS] * NODES
    world = builders.World()
    world.workload("team/any", gpus=[builders.busy()])
    [template] = world.snapshot(version=1).pods[:1]
    while len(pods) < PODS:
        node, gpus = int(draw.integers(NODES)), int(draw.choice([1, 1, 1, 2, 4]))
        if left[node] >= gpus:
            left[node] -= gpus
            number = len(pods)
            pods.append(msgspec.structs.replace(
                template, name=f"p-{number}", uid=f"u-{number}", node=f"gpu-{node:04}", created_at=NOW - 90_000,
                needs=capacity.Needs(cpu=4000, memory=8192, gpus=gpus),
            ))
        elif sum(left) < PODS // 20:
            break
    return cluster.Capacity(machines, tuple(pods), "bench", 0)


def _consolidate() -> None:
    seen = _make_capacity()
    took = dict[str, float]()
    for name, work in (
        ("plan", lambda: packing.plan_consolidation(seen, NOW)), ("room", lambda: packing.measure_room(seen, NOW)),
        ("bound", lambda: packing.measure_bound(seen, NOW)),
    ):
        began = time.process_time()
        work()
        took[name] = time.process_time() - began
    total = sum(took.values())
    parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in took.items())
    what = f"consolidation's look at {len(seen.pods):,} GPU pods on {NODES:,} nodes"
    figures.show(what, f"CPU {total:.2f} s ({parts})", f"{GOAL_PLAN:g} s every 5 min", total <= GOAL_PLAN)


def main() -> None:
    for owners in (100, PODS):
        asyncio.run(_guard(owners))
    _consolidate()


if __name__ == "__main__":
    main()
