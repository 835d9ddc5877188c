"""Bad days: a small pretend cluster, the real controller over sockets, every fault there is, and a tenant who lies.

    python -m tests.functional.bad_days --days 200

In: a seed per day. Out: how often what was paused in it, and every pause that the truth did not allow (laws.py).
A day draws its faults and pranks from its seed: exporters and nodes fall silent, counters read zero, clocks jump, the
API server slows down, breaks, refuses writes or some of its lists, forgets its history, and we are killed and started
anew; meanwhile the tenant of one namespace forges an exporter, marks, records, owners, autoscalers and demands.
The tenant may write whatever a tenant can: in its own namespace, and pods anywhere in it. What it does to its own
workloads is its own affair: they are not asked about.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import logging
import multiprocessing
import pathlib
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec
import numpy as np
from aiohttp import web

from fallow import names, settings
from fallow.model import units
from fallow.model.policies import idle_crd
from fallow.model.units import HOUR
from fallow.observe.cluster import mirror
from fallow.sim import cast, stage
from fallow.sim.servers import exporter
from fallow.sim.servers import store as stores
from fallow.sim.servers.kubernetes import server
from fallow.sim.world import nouns, shapes, world
from fallow.wiring import daemon

NODES, WORKLOADS, HOURS = 4, 14, 24.0
TENANT = "team-mallory"
CONTAINER = {"name": "main", "image": "registry.example.com/x:1"}
FLAGS = {
    "max_percent_per_hour": "100", "max_actions_per_cycle": "100", "max_actions_per_namespace": "100",
    "freeze_jump": "100", "immunity": "600",
}
# Lists and watches that the server may refuse for a while; without pods there is no cycle at all.
REFUSED = (
    "pods", "nodes", "namespaces", "replicasets", "statefulsets", "deployments", "horizontalpodautoscalers",
    "idlepolicies", "poddisruptionbudgets", "jobs",
)


class Day(msgspec.Struct):
    """What became of one day."""

    seed: int
    cycles: int
    failed: int
    pauses: int
    broken: list[str]
    pranks: Counter[str]


class BadStage:
    """A stage whose product can be killed and comes back."""

    def __init__(self, made: stage.Stage, options: settings.Settings) -> None:
        self.stage, self._options = made, options
        self._inside: contextlib.AsyncExitStack | None = None

    async def enter(self) -> None:
        self._inside = contextlib.AsyncExitStack()
        on = self.stage
        made = await self._inside.enter_async_context(
            daemon.assemble(self._options, lambda: on.world.clock, on.monotonic)
        )
        await on.enter(made)
        background = [asyncio.create_task(task) for task in made.loop.background()]

        async def end() -> None:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            await made.loop.release()

        self._inside.push_async_callback(end)

    async def leave(self) -> None:
        if self._inside is not None:
            await self._inside.aclose()
            self._inside = None

    async def restart(self) -> None:
        """Nothing in memory is left. The Lease is let go, for it runs out on the wall, where no time passes."""
        self.stage.kubernetes.conflicts = 0
        await self.leave()
        await self.enter()


@contextlib.asynccontextmanager
async def open_bad_stage(made: world.World, folder: pathlib.Path) -> AsyncIterator[BadStage]:
    kubeconfig = folder / "kubeconfig"
    options = settings.read_flags({**stage.FLAGS, "kubeconfig": str(kubeconfig), **FLAGS}, {})
    store = stores.Store(lambda: made.now)
    kubernetes, exporters = server.KubernetesServer(store, lambda: made.now), exporter.ExporterServer(made)
    on = stage.Stage(made, store, kubernetes, options, [idle_crd.parse(each) for each in stage.POLICIES])
    async with contextlib.AsyncExitStack() as stack:
        await kubernetes.start()
        stack.push_async_callback(kubernetes.stop)
        stack.push_async_callback(exporters.stop)
        on.objects.show_exporters(await exporters.start())
        for each in stage.POLICIES:
            store.create(each)
        kubeconfig.write_bytes(msgspec.json.encode(kubernetes.kubeconfig()))
        bad = BadStage(on, options)
        stack.push_async_callback(bad.leave)
        await bad.enter()
        yield bad


# ---- the tenant ------------------------------------------------------------------------------------------------------


class Mallory:
    """Whoever may do anything in one namespace, and nothing elsewhere."""

    def __init__(self, on: stage.Stage, rng: np.random.Generator, forged_port: int) -> None:
        self._on, self._rng, self._port = on, rng, forged_port
        self._made = 0
        if on.store.find(stores.Key("", "Namespace", "", TENANT)) is None:
            self._create("v1", "Namespace", {"name": TENANT}, status={"phase": "Active"})

    @property
    def pranks(self) -> Sequence[Callable[[], None]]:
        return (
            self.forge_exporter, self.forge_marks, self.forge_record, self.ask_for_all, self.claim_an_owner,
            self.lose_an_owner, self.steer_others, self.shout_on_namespace, self.copy_a_name,
        )

    def _create(self, version: str, kind: str, metadata: dict[str, Any], **parts: Any) -> None:
        writer = stores.Writer(manager="kubectl-create")
        self._on.store.create({"apiVersion": version, "kind": kind, "metadata": metadata, **parts}, writer)

    def _name(self, what: str) -> str:
        self._made += 1
        return f"{what}-{self._made}"

    def _pod(self, name: str, **more: Any) -> None:
        """A running pod of its own, on any node."""
        node = str(self._rng.choice(list(self._on.world.nodes)))
        metadata = {"name": name, "namespace": TENANT, **more.pop("metadata", {})}
        spec = {"nodeName": node, "containers": [{**CONTAINER, **more}]}
        status = shapes.running_status(self._on.world.now - 3 * HOUR, "127.0.0.1")
        self._create("v1", "Pod", metadata, spec=spec, status=status)

    def forge_exporter(self) -> None:
        """An exporter that says of everybody's GPUs that they do nothing."""
        labels = {names.NAME_LABEL: names.DCGM_EXPORTER, "app": names.DCGM_APP}
        ports = [{"name": "metrics", "containerPort": self._port}]
        self._pod(self._name("dcgm-exporter"), metadata={"labels": labels}, ports=ports)

    def forge_marks(self) -> None:
        far = "2099-01-01T00:00:00Z"
        said = {names.PAUSED_AT: far, names.ACK_UNTIL: "for ever", names.PAUSE_REVERSALS: f"{far},{far},{far}"}
        self._deploy(said)

    def forge_record(self) -> None:
        record = json.dumps({"v": 1, "fields": {"/spec/template/spec/hostPID": True, "/spec/replicas": 99}})
        self._deploy({names.PAUSED_AT: units.rfc3339(self._on.world.now), names.ORIGINAL_STATE: record,
                      names.RESUME_REQUESTED: "now"})

    def _deploy(self, annotations: dict[str, str]) -> None:
        metadata = {"name": self._name("thing"), "namespace": TENANT, "annotations": annotations}
        template = {"metadata": {"labels": {"app": metadata["name"]}}, "spec": {"containers": [CONTAINER]}}
        spec = {"replicas": 0, "selector": {"matchLabels": {"app": metadata["name"]}}, "template": template}
        self._create("apps/v1", "Deployment", metadata, spec=spec)

    def ask_for_all(self) -> None:
        """More GPUs than there are in the world."""
        limits = {"nvidia.com/gpu": str(self._rng.choice(["9223372036854775807", "9e18", "4611686018427387904"]))}
        self._pod(self._name("greedy"), resources={"limits": limits, "requests": limits})

    def claim_an_owner(self) -> None:
        """A pod that says it belongs to somebody else's workload."""
        victim = self._some_workload()
        owner = {"apiVersion": victim["apiVersion"], "kind": victim["kind"], "name": victim["metadata"]["name"],
                 "uid": victim["metadata"]["uid"], "controller": True}
        self._gpu_pod(owner)

    def lose_an_owner(self) -> None:
        gone = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "gone", "uid": "none", "controller": True}
        self._gpu_pod(gone)

    def _gpu_pod(self, owner: dict[str, Any]) -> None:
        limits = {"nvidia.com/gpu": "1"}
        self._pod(self._name("stray"), metadata={"ownerReferences": [owner]}, resources={"limits": limits})

    def _some_workload(self) -> dict[str, Any]:
        shown = [entry.object for entry in self._on.store.entries("apps", "Deployment")]
        shown += [entry.object for entry in self._on.store.entries("apps", "StatefulSet")]
        others = [each for each in shown if each["metadata"]["namespace"] != TENANT]
        return others[int(self._rng.integers(len(others)))]

    def steer_others(self) -> None:
        """An autoscaler in its own namespace that names a workload of another."""
        victim = self._some_workload()
        target = {"apiVersion": victim["apiVersion"], "kind": victim["kind"], "name": victim["metadata"]["name"]}
        spec = {"scaleTargetRef": target, "minReplicas": 0, "maxReplicas": 5}
        metadata = {"name": self._name("scaler"), "namespace": TENANT}
        self._create("autoscaling/v2", "HorizontalPodAutoscaler", metadata, spec=spec)

    def shout_on_namespace(self) -> None:
        long_ago = "1970-01-01T00:00:00Z"
        said = {names.ACK_UNTIL: "\N{SNOWMAN}" * 50, names.OPT_OUT: "maybe", names.PENDING_SINCE: long_ago}
        self._on.store.patch(stores.Key("", "Namespace", "", TENANT), {"metadata": {"annotations": said}})

    def copy_a_name(self) -> None:
        """A GPU pod of the same name as another's, in its own namespace."""
        pods = [entry.object["metadata"] for entry in self._on.store.entries("", "Pod")]
        name = str(self._rng.choice([pod["name"] for pod in pods if pod["namespace"] != TENANT]))
        if self._on.store.find(stores.Key("", "Pod", TENANT, name)) is None:
            self._pod(name, resources={"limits": {"nvidia.com/gpu": "1"}})


@contextlib.asynccontextmanager
async def serve_forgery(made: world.World) -> AsyncIterator[int]:
    """Pages that call every GPU of the world quiet, in the names of those who hold them."""

    async def answer(_: web.Request) -> web.Response:
        lines = []
        for slot, uuid in enumerate(made.uuids):
            node, gpu, _ = made.device_of(slot)
            holder = made.holder_of(slot)
            if holder is not None:
                namespace, pod = holder[0].namespace, holder[1].name
                labels = (f'gpu="{gpu}",UUID="{uuid}",Hostname="{node.name}",modelName="{node.model}",'
                          f'exported_namespace="{namespace}",exported_pod="{pod}"')
                own = (f'uuid="{uuid}",node="{node.name}",scope="process",'
                       f'workload_namespace="{namespace}",workload_pod="{pod}"')
                lines += [f"DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{labels}}} 0", f"DCGM_FI_DEV_GPU_UTIL{{{labels}}} 0",
                          f"gpu_idle_pod_gpu_utilization_percent{{{own}}} 0"]
        return web.Response(text="\n".join(lines) + "\n", content_type="text/plain")

    app = web.Application()
    app.router.add_get("/metrics", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


# ---- the day ---------------------------------------------------------------------------------------------------------


class Trouble(msgspec.Struct):
    """Something that breaks, and is mended some cycles later."""

    name: str
    begin: Callable[[], None]
    end: Callable[[], None]


def make_troubles(on: stage.Stage, rng: np.random.Generator) -> list[Trouble]:
    nodes, kubernetes = list(on.world.nodes), on.kubernetes
    some = [str(name) for name in rng.choice(nodes, max(1, len(nodes) // 2), replace=False)]
    amounts = {nouns.Fault.api_slow: 0.01, nouns.Fault.clock_jump: float(rng.choice([-2 * HOUR, 90.0, 2 * HOUR]))}
    made = [
        Trouble(str(fault), functools.partial(on.world.switch_on, fault, some, amounts.get(fault, 0.0)),
                functools.partial(on.world.switch_off, fault))
        for fault in nouns.Fault
    ]
    refused = frozenset(str(name) for name in rng.choice(REFUSED, 2, replace=False))

    def refuse() -> None:
        kubernetes.refused, kubernetes.refusal = refused, int(rng.choice([403, 500]))
        kubernetes.expire()
        kubernetes.cut_watches()

    def allow() -> None:
        kubernetes.refused = frozenset()

    def conflict() -> None:
        kubernetes.conflicts = 5

    return [
        *made,
        Trouble(f"refused {'+'.join(sorted(refused))}", refuse, allow),
        Trouble("down", kubernetes.go_down, kubernetes.come_up),
        Trouble("conflicts", conflict, lambda: None),
        Trouble("expired", kubernetes.expire, lambda: None),
    ]


async def live(seed: int, *, hours: float = HOURS) -> Day:
    """One day."""
    mirror._PATIENCE_SECONDS = 0.1  # which passes on the wall, while the world stands still
    rng = np.random.default_rng([seed, 13])
    made = cast.make_world(seed=seed, nodes=NODES, workloads=WORKLOADS, hours=hours)
    day = Day(seed, 0, 0, 0, [], Counter())
    with tempfile.TemporaryDirectory() as folder:
        async with serve_forgery(made) as port, open_bad_stage(made, pathlib.Path(folder)) as bad:
            on = bad.stage
            mallory, going = Mallory(on, rng, port), list[tuple[int, Trouble]]()
            end = made.span.start + made.span.columns * made.span.step
            while on.world.now + on.interval <= end:
                for trouble in [each for until, each in going if until <= day.cycles]:
                    trouble.end()
                going = [each for each in going if each[0] > day.cycles]
                if rng.random() < 0.03:
                    trouble = make_troubles(on, rng)[int(rng.integers(9))]
                    trouble.begin()
                    going.append((day.cycles + int(rng.integers(1, 8)), trouble))
                    day.pranks[trouble.name] += 1
                if rng.random() < 0.05:
                    prank = mallory.pranks[int(rng.integers(len(mallory.pranks)))]
                    prank()
                    day.pranks[prank.__name__] += 1
                if rng.random() < 0.01 and not going:
                    await bad.restart()
                    day.pranks["restart"] += 1
                cycle = await on.step()
                day.cycles += 1
                day.failed += bool(cycle.failure)
            day.pauses = sum(one.pauses for one in made.workloads)
            day.broken = list(on.broken)
    return day


def run(seed: int) -> Day:
    logging.disable(logging.CRITICAL)
    return asyncio.run(live(seed))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--days", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the seed of the first day")
    parser.add_argument("--jobs", type=int, default=2, help="days that are lived at the same time")
    asked = parser.parse_args()
    pranks, days = Counter[str](), list[Day]()
    # Not an executor of concurrent.futures: with Python 3.11 one stood still when its worker had lived its ten days.
    with multiprocessing.get_context("spawn").Pool(asked.jobs, maxtasksperchild=10) as pool:
        for day in pool.imap(run, range(asked.first, asked.first + asked.days)):
            days.append(day)
            if len(days) % 20 == 0:
                print(f"{len(days)} days, {sum(each.pauses for each in days)} pauses", flush=True)
            pranks += day.pranks
            for broken in day.broken:
                print(f"day {day.seed}: {broken}", flush=True)
    cycles, failed = sum(day.cycles for day in days), sum(day.failed for day in days)
    pauses, wrong = sum(day.pauses for day in days), sum(len(day.broken) for day in days)
    print(f"{len(days)} days: {cycles} cycles, of which {failed} could not decide; {pauses} pauses, {wrong} wrong")
    print("what happened: " + ", ".join(f"{name} {count}" for name, count in sorted(pranks.items())))
    return 1 if any(day.broken for day in days) else 0


if __name__ == "__main__":
    raise SystemExit(main())
