"""`gpu-idle-exporter` as a process on a pretend node, read by a real Prometheus and by `gpu-pruner` on a real cluster.

The driver's library, /proc and the kubelet are pretend ones; Prometheus, the API server, the exporter's role and the
pruner are not.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import pathlib
import re
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from fallow import names
from tests.fakes.nvml import fake
from tests.real import cluster as clusters
from tests.real import gpu_node, history, product, test_exporter_examples, test_exporter_eyes
from tests.real.test_exporter_examples import EXAMPLES, NAME, Object

GIB = 2**30
UUID = [fake.uuid_of(index) for index in range(4)]
HOUR = 3600.0
ACT = ("-r", "scale-down")


# ---- Prometheus and the example queries ----------------------------------------------------------------------------


@pytest.fixture
def node(tmp_path: pathlib.Path) -> Iterator[gpu_node.GpuNode]:
    """A busy GPU, an idle one, one without a process, one that is shared."""
    with gpu_node.GpuNode(tmp_path) as made:
        made.host("trainer", UUID[0], pid=10)
        made.host("notebook", UUID[1], pid=11, comm="ipykernel")
        made.host("forgotten", UUID[2])
        made.host("one", f"{UUID[3]}::0", pid=13)
        made.host("two", f"{UUID[3]}::1", pid=14)
        made.drive(
            fake.Device(utilization=90, processes=[fake.Process(10, 60 * GIB, sm=90)]),
            fake.Device(processes=[fake.Process(11, 20 * GIB)]),
            fake.Device(),
            fake.Device(utilization=40, processes=[fake.Process(13, 8 * GIB, sm=40), fake.Process(14, 4 * GIB)]),
        )
        made.remember(
            {"trainer": 0.0, "notebook": 2 * HOUR, "forgotten": None, "one": 0.0, "two": HOUR / 2},
            zeros={11: (UUID[1], 2 * HOUR), 14: (UUID[3], HOUR / 2)}, since=3 * HOUR,
        )
        yield made


def queries() -> dict[str, str]:
    """Those of the README, by their comments."""
    (block,) = re.findall(
        r"^```promql\n(.*?)^```", (EXAMPLES / "prometheus" / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    parts = [part.strip().split("\n", 1) for part in block.split("\n\n")]
    return {title.removeprefix("# "): query for title, query in parts}


async def ask(prometheus: history.PrometheusWorld, query: str, *labels: str) -> dict[tuple[str, ...], float]:
    found = await prometheus.query(query, time.time())
    return {tuple(one["metric"].get(label, "") for label in labels): float(one["value"][1]) for one in found}


@pytest.mark.accepts("exporter", 19, 20, 23)
async def test_prometheus_scrapes_it_and_the_example_queries_have_sensible_answers(
    node: gpu_node.GpuNode, prometheus: history.PrometheusWorld
) -> None:
    async with node.exporting() as exporter:
        target = {"targets": [exporter.url.removeprefix("http://")], "labels": {"pod": "exporter-0"}}
        prometheus.scrape_configs = [
            {
                "job_name": NAME, "honor_labels": True, "scrape_interval": "2s", "scrape_timeout": "2s",
                "static_configs": [target],
            }
        ]
        await exporter.until(lambda page: re.search(r'idle_seconds\{gpu="1",pid="11",.*\} [1-9]', page))
        await prometheus.start()
        deadline = time.monotonic() + 90
        # Who shares a busy GPU is known later.
        while len(await ask(prometheus, "gpu_idle_process_idle_seconds > 600", "pid")) < 2:
            assert time.monotonic() < deadline
        said = queries()

        async def answer(title: str, *labels: str) -> dict[tuple[str, ...], float]:
            return await ask(prometheus, said.pop(title), *labels)

        idle = {("1", "11"): pytest.approx(2 * HOUR, abs=60), ("3", "14"): pytest.approx(HOUR / 2, abs=60)}
        assert await answer("Memory that is held idle, of all GPUs, in bytes") == {(): 24 * GIB}
        assert await answer("Processes idle for more than 10 minutes", "gpu", "pid") == idle
        assert await answer(
            "Who holds the most memory idle", "gpu", "pid"
        ) == {("1", "11"): 20 * GIB, ("3", "14"): 4 * GIB}
        assert await answer("Share of each GPU's memory that is held idle, in percent", "node", "gpu") == {
            ("gpu-1", "0"): 0, ("gpu-1", "1"): 25, ("gpu-1", "2"): 0, ("gpu-1", "3"): 5,
        }
        assert await answer("Idle for over an hour with more than 1 GB", "process") == {("ipykernel",): idle["1", "11"]}
        whose = ("workload_namespace", "workload_pod", "process")
        assert await answer("The same, with the pod's name", *whose) == {
            ("ml", "notebook", "ipykernel"): idle["1", "11"]
        }
        empty = await answer("Pods that hold a GPU and run nothing on it, and for how long", "workload_pod", "gpu")
        assert empty == {("forgotten", "2"): pytest.approx(3 * HOUR, abs=60)}
        shared = await answer("How much each pod uses of a GPU that several share", "workload_pod")
        assert shared == {("one",): 40, ("two",): 0}
        quiet = await answer("Seconds since a pod last used its GPU", "workload_pod")
        assert quiet["notebook",] == pytest.approx(2 * HOUR, abs=60)
        assert quiet["trainer",] < 60
        assert await answer("Nodes of which nothing is known") == {}
        assert said == {}
        assert (await ask(prometheus, f'up{{job="{NAME}"}}')) == {(): 1}


# ---- the idle loop, with the exporter alone ------------------------------------------------------------------------


class Sliced:
    """A node of the real cluster whose GPU is shared by a quiet Deployment and a busy one, and the exporter on it."""

    def __init__(self, stage: product.Stage, node: gpu_node.GpuNode) -> None:
        self.stage = stage
        self.node = node
        self.tenants: dict[str, Object] = {}
        self.pods: dict[str, str] = {}

    async def settle(self) -> None:
        cluster = self.stage.cluster
        await cluster.make_namespace(self.stage.system)
        await cluster.gpu_node(self.node.name, 1, replicas=4, sharing="time-slicing")
        await test_exporter_examples.install_account(cluster)
        for number, name in enumerate(("quiet", "busy")):
            self.tenants[name] = await cluster.deployment(name)
            (pod,) = await cluster.age(f"app={name}", 90)
            self.pods[name] = pod["metadata"]["name"]
            where = {"namespace": cluster.namespace, "uid": pod["metadata"]["uid"]}
            self.node.host(self.pods[name], f"{UUID[0]}::{number}", pid=700 + number, **where)
        self.drive()

    @property
    def believing(self) -> tuple[str, str]:
        """Its exporter runs where its tenants do."""
        return "--exporter-namespaces", self.stage.namespace

    def drive(self) -> None:
        """As it is now."""
        processes = [fake.Process(700, 20 * GIB), fake.Process(701, 30 * GIB, sm=70)]
        self.node.drive(fake.Device(utilization=70, processes=processes))

    def remember(self) -> None:
        self.node.remember({self.pods["quiet"]: HOUR, self.pods["busy"]: 0.0})

    async def exporter_pod(self, port: int) -> Object:
        """The example's DaemonSet on this node, its pod at an address where something really listens."""
        cluster = self.stage.cluster
        await cluster.apply({
            "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}, "handler": "nvidia"
        })
        (daemon,) = test_exporter_examples.read("daemonset/20-daemonset.yaml")
        daemon["metadata"]["namespace"] = cluster.namespace
        spec = daemon["spec"]["template"]["spec"]
        spec["nodeSelector"] = {"kubernetes.io/hostname": self.node.name}
        spec["containers"][0]["ports"][0]["containerPort"] = port
        await cluster.apply(daemon)
        (pod,) = await cluster.wait_until(lambda: cluster.ready_pods(f"app.kubernetes.io/name={NAME}", 1))
        status = {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}
        return await cluster.patch(pod, {"status": status}, part="status")

    @contextlib.asynccontextmanager
    async def exporting(self, port: int = 0) -> AsyncIterator[gpu_node.Exporter]:
        """With the example's role and nothing else to learn pods' names from."""
        kubeconfig = await self.stage.cluster.service_account(NAME)
        nowhere = str(kubeconfig.parent / "no-logs")
        async with self.node.exporting(port, KUBECONFIG=str(kubeconfig), POD_LOGS_DIR=nowhere) as exporter:
            await exporter.until(lambda page: re.search(r'attribution_up\{source="api",.*\} 1', page))
            await exporter.until(lambda page: _utilization(page, self.pods) == {"quiet": 0.0, "busy": 70.0})
            yield exporter

    async def check(self, pruner: product.Product, *flags: str) -> None:
        """What is said of both before anything is done."""
        said = {name: await self.explain(pruner, name, *flags) for name in self.tenants}
        assert (said["quiet"]["verdict"], said["busy"]["verdict"]) == ("idle", "active"), said
        (gpu,) = said["quiet"]["gpus"]
        assert gpu["uuid"] == UUID[0]
        assert gpu["signals"]["process_sm"]["max"] == 0
        since = datetime.datetime.fromisoformat(said["quiet"]["idleSince"]).timestamp()
        assert time.time() - since == pytest.approx(HOUR, abs=120)
        assert said["quiet"]["atLeast"] is False

    async def explain(self, pruner: product.Product, name: str, *flags: str) -> Any:
        scope = ("-n", self.stage.namespace, "--watch-namespaces", self.stage.namespace)
        done = await pruner.fallow("explain", f"Deployment/{name}", *scope, *self.believing, "-o", "json", *flags)
        assert done.code == 0, done.said
        return json.loads(done.out)

    async def is_left_alone(self, pruner: product.Product) -> bool:
        """The busy one was not even marked."""
        now = await self.stage.now(self.tenants["busy"])
        is_marked = names.PAUSED_AT in now["metadata"].get("annotations", {})
        return now["spec"]["replicas"] == 1 and not pruner.writes("/busy") and not is_marked


def _utilization(page: str, pods: dict[str, str]) -> dict[str, float]:
    found = re.findall(
        r'^gpu_idle_pod_gpu_utilization_percent\{.*workload_pod="([^"]*)".*scope="process".*\} (\S+)$', page,
        re.MULTILINE,
    )
    by_pod = {pod: float(value) for pod, value in found}
    return {name: by_pod[pod] for name, pod in pods.items() if pod in by_pod}


@pytest.fixture
async def sliced(
    cluster: clusters.Cluster, prometheus: history.PrometheusWorld, tmp_path: pathlib.Path
) -> AsyncIterator[Sliced]:
    with gpu_node.GpuNode(tmp_path, f"gpu-{cluster.namespace}") as node:
        made = Sliced(product.Stage(cluster, prometheus), node)
        await made.settle()
        yield made


@pytest.mark.accepts("idle", 8)
@pytest.mark.accepts("exporter", 20)
async def test_one_look_at_a_named_exporter_pauses_the_idle_tenant_and_leaves_its_neighbour(
    sliced: Sliced, folder: pathlib.Path
) -> None:
    """Without any past of its own: the exporter remembers."""
    sliced.remember()
    async with sliced.exporting() as exporter, product.product_on(sliced.stage, folder) as pruner:
        where = ("--scrape-target", exporter.url)
        await sliced.check(pruner, *where)
        done = await pruner.prune(*ACT, *where)
        assert done.code == 0, done.said
        assert await sliced.stage.is_paused(sliced.tenants["quiet"]), done.said
        assert await sliced.is_left_alone(pruner)


@pytest.mark.accepts("idle", 8)
async def test_a_daemon_finds_the_example_daemonset_by_itself(sliced: Sliced, folder: pathlib.Path) -> None:
    sliced.remember()
    port = product.free_port()
    await sliced.exporter_pod(port)
    async with sliced.exporting(port), product.product_on(sliced.stage, folder) as pruner:
        daemon = await pruner.start(
            *ACT, *sliced.believing, "--state-dir", str(folder / "state"), "--scrape-interval", "1",
            "--scrape-timeout", "1",
        )
        await daemon.until(lambda: sliced.stage.is_paused(sliced.tenants["quiet"]))
        await daemon.more_cycles(2)
        assert await sliced.is_left_alone(pruner)
        assert await daemon.metric('fallow_idle_source_up{source="scrape"}') == 1
        assert await daemon.terminate() == 0
    assert (folder / "state" / "usage.sqlite").exists()


async def test_an_exporter_that_has_just_begun_vouches_for_nothing(sliced: Sliced, folder: pathlib.Path) -> None:
    async with sliced.exporting() as exporter, product.product_on(sliced.stage, folder) as pruner:
        done = await pruner.prune(*ACT, "--scrape-target", exporter.url)
        assert done.code == 0, done.said
        said = await sliced.explain(pruner, "quiet", "--scrape-target", exporter.url)
        assert (said["verdict"], said["gpus"][0]["reason"]) == ("unknown", "LowCoverage")
        assert pruner.writes("/quiet") + pruner.writes("/busy") == []


@pytest.mark.accepts("idle", 8)
@pytest.mark.accepts("exporter", 20)
async def test_by_prometheus_the_same_comes_out(
    sliced: Sliced, folder: pathlib.Path, prometheus: history.PrometheusWorld
) -> None:
    """An hour and a half of the exporter's pages is in the store already; the example's configuration goes on there."""
    port, end = product.free_port(), math.floor(time.time())
    pages, past = [], gpu_node.Past(sliced.node, test_exporter_eyes.EVERY)
    for step in range(test_exporter_eyes.STEPS):
        at = end - test_exporter_eyes.EVERY * (test_exporter_eyes.STEPS - 1 - step)
        tasks = ((700, 40 if end - at > HOUR else 0), (701, 70))
        sliced.node.drive(test_exporter_eyes.gpu("", 0, *tasks, now=at, uuid=UUID[0]))
        pages.append(await past.page(at))
    await past.close()
    sliced.drive()
    pod = await sliced.exporter_pod(port)
    own = {"instance": f"127.0.0.1:{port}", "pod": pod["metadata"]["name"], "namespace": sliced.stage.namespace}
    prometheus.now = end
    test_exporter_eyes.store({sliced.node.name: pages}, prometheus, own)
    config = test_exporter_examples.scrape_config(pod)
    prometheus.scrape_configs = [{**config, "scrape_interval": "1s", "scrape_timeout": "1s"}]
    async with sliced.exporting(port):
        await prometheus.start()
        before = await ask(prometheus, "count(gpu_idle_pod_gpu_utilization_percent)")
        deadline = time.monotonic() + 90
        while await ask(prometheus, f'max(timestamp(up{{pod="{own["pod"]}"}}) > bool {end})') != {(): 1}:
            assert time.monotonic() < deadline
        assert await ask(
            prometheus, "count(gpu_idle_pod_gpu_utilization_percent)"
        ) == before == {(): 2}, "the same series go on"
        async with product.product_on(sliced.stage, folder) as pruner:
            # It was scraped each half minute until now and is scraped each second since; who learns the pace would
            # want more of the past.
            pace = ("--expected-scrape-interval", f"{test_exporter_eyes.EVERY:g}")
            await sliced.check(pruner, *pace)
            done = await pruner.prune(*ACT, *pace, *sliced.believing)
            assert done.code == 0, done.said
            assert await sliced.stage.is_paused(sliced.tenants["quiet"]), done.said
            assert await sliced.is_left_alone(pruner)
