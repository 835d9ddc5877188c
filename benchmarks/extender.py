"""The scheduler's extender by itself: how long a question takes at 12,130 nodes, and what 100,000 pods cost of memory.

The nodes are openb's, ten times, filled to seven tenths by pods of the same trace; then one question after the other,
with the names of all nodes, as the scheduler sends them; in between the pod before is seen where it was sent. Under
load a second of this machine is no second of ours: beside the time that passed the CPU time is printed.
"""

import asyncio
import gc
import json
import subprocess
import sys
import time
from typing import Any

import msgspec
import numpy as np

from benchmarks import figures, pods
from benchmarks import packing as packing_bench
from fallow import telemetry
from fallow.decide import packing
from fallow.doors.extender import advice
from fallow.model.capacity import Machine, Needs, Tenant
from fallow.observe.cluster import tenants

COPIES, FILLED, QUESTIONS = 10, 0.7, 300
PODS, NODES = 100_000, 2_000
GOAL_MS, GOAL_MB = 20.0, 120


class Still:
    """A mirror that a test changes by hand."""

    def __init__(self) -> None:
        self.tenants: dict[str, Tenant] = {}
        self.changed: set[str] = set()

    def why_doubted(self) -> None:
        return None

    def take_changes(self) -> set[str]:
        changed, self.changed = self.changed, set()
        return changed

    def put(self, tenant: Tenant) -> None:
        self.tenants[tenant.uid] = tenant
        self.changed.add(tenant.uid)


def _needs(pod: packing.PackingPod) -> Needs:
    """A share of a GPU as a whole one: nodes that share are others than those that do not."""
    return Needs(cpu=pod.cpu, memory=pod.memory, gpus=pod.gpus, products=pod.models)


def _question(uid: str, needs: Needs, names: list[str]) -> bytes:
    pod = pods.make_pod(1, True)
    limits = {"cpu": f"{needs.cpu}m", "memory": f"{needs.memory}Mi", "nvidia.com/gpu": str(needs.gpus)}
    pod["metadata"]["uid"] = uid
    pod["spec"]["nodeName"] = ""
    pod["spec"]["containers"][0]["resources"] = {"limits": limits, "requests": limits}
    return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": names}).encode()


def _make(policy: str) -> tuple[advice.Advisor, Still, list[str], list[packing.PackingPod], np.random.Generator]:
    trace = packing_bench.read("default")
    machines = [
        Machine(name=f"{row.name}-{copy}", product=row.model, cpu=row.cpu, memory=row.memory, gpus=row.gpus, pods=110)
        for copy in range(COPIES) for row in trace.nodes.values()
    ]
    ground, draw = packing.lay_out(machines, "bench"), np.random.default_rng(1)
    sample = [msgspec.structs.replace(pod, name="", milli=packing.GPU if pod.gpus else 0) for pod in trace.sample]
    prepared = packing.prepare(policy, ground.nodes, sample)
    engine, still = packing.Packer(ground.nodes, prepared, ground.order), Still()
    while engine.room.allocated < FILLED * ground.nodes.capacity:
        pod = sample[int(draw.integers(len(sample)))]
        placement = engine.arrive(pod)
        if placement is not None:
            uid = f"before-{len(still.tenants)}"
            still.put(Tenant(uid, ground.nodes.names[placement.node], _needs(pod), 0.0))
    asked: Any = advice.Advisor(still, None, telemetry.Telemetry())  # type: ignore[arg-type]
    asyncio.run(asked.move_in(ground, prepared))
    return asked, still, list(ground.nodes.names), [pod for pod in sample if pod.gpus], draw


def _prioritize(policy: str) -> None:
    asked, still, names, sample, draw = _make(policy)
    took, used = list[float](), list[float]()
    for number in range(QUESTIONS):
        needs = _needs(sample[int(draw.integers(len(sample)))])
        question = _question(f"new-{number}", needs, names)
        began, cpu = time.perf_counter(), time.process_time()
        answer = asked.prioritize(question)
        took.append(1000 * (time.perf_counter() - began))
        used.append(1000 * (time.process_time() - cpu))
        best = next((each["Host"] for each in json.loads(answer) if each["Score"] == 10), None)
        if best:
            still.put(Tenant(f"new-{number}", best, needs, 0.0))
    wall, cpu99 = (float(np.quantile(each, 0.99)) for each in (took, used))
    shown = f"p99 {wall:.1f} ms (CPU {cpu99:.1f} ms), p50 {float(np.median(took)):.1f} ms"
    figures.show(f"prioritize over {len(names):,} nodes by {policy}", shown, f"{GOAL_MS:.0f} ms", wall <= GOAL_MS)


def _resident() -> float:
    import pathlib
    import re

    (found,) = re.findall(r"VmRSS:\s+(\d+) kB", pathlib.Path("/proc/self/status").read_text())
    return int(found) / 1024


async def _mirror(port: int) -> dict[str, float]:
    """In a process of its own."""
    from fallow.clients.kubernetes import api as kube
    from fallow.clients.kubernetes import config
    from fallow.doors.extender import serve  # noqa: F401  all that the process loads is part of what it takes

    gc.collect()
    before = _resident()
    async with kube.Api(config.Access(server=f"http://127.0.0.1:{port}", context="bench"), qps=10_000) as api:
        eyes = tenants.Tenants(api)
        began = time.process_time()
        await next(iter(eyes._pods.followers.values())).list_once()
        listed = time.process_time() - began
        machines = [
            Machine(name=f"node-{number}", product="A100", cpu=1_000_000, memory=1 << 22, gpus=64, pods=110)
            for number in range(NODES)
        ]
        ground = packing.lay_out(machines, "bench")
        asked = advice.Advisor(eyes, api, telemetry.Telemetry())
        sample = packing.draw_sample(ground, eyes.tenants.values(), time.time())
        began = time.process_time()
        await asked.move_in(ground, packing.prepare("FGD", ground.nodes, sample))
        filled = time.process_time() - began
        gc.collect()
        assert asked.room is not None
        assert asked.room.allocated == PODS // 10 * packing.GPU
        return {"before": before, "after": _resident(), "listed": listed, "filled": filled}


def _measure_mirror() -> dict[str, Any]:
    words = [sys.executable, "-m", "benchmarks.pods", str(PODS), "10"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            return figures.measured("benchmarks.extender", str(json.loads(server.stdout.readline())["port"]))
        finally:
            server.kill()


def main() -> None:
    if packing_bench.FOLDER is None:
        print("  left out: FALLOW_TRACES names no folder of traces")
        return
    for policy in ("FGD", "SPP"):
        _prioritize(policy)
    found = _measure_mirror()
    grown = found["after"] - found["before"]
    figures.show(
        f"mirror of {PODS:,} pods", f"{grown:.0f} MB ({found['after']:.0f} MB the whole process), "
        f"read in {found['listed']:.1f} s, seated in {found['filled']:.1f} s of CPU", f"{GOAL_MB} MB", grown <= GOAL_MB,
    )


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_mirror(int(sys.argv[1])))))
