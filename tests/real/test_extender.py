"""The extender beside the real kube-scheduler: it steers, and whatever becomes of it GPU pods are still bound."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import signal
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest
import trustme
import yaml
from aiohttp import web

from fallow.decide import packing
from fallow.model.capacity import Machine
from tests import ROOT
from tests.real import cluster as clusters
from tests.real import product, replaying, test_deploy, world

Start = Callable[[world.Options], Awaitable[clusters.Cluster]]
FOLDER = ROOT / "deploy/extender"


def scheduler(url: str, **more: Any) -> dict[str, Any]:
    """The configuration that is shipped, asking at this address."""
    found: dict[str, Any] = yaml.safe_load((FOLDER / "scheduler/config.yaml").read_text())
    found["leaderElection"] = {"leaderElect": False}
    (extender,) = found["extenders"]
    extender |= {"urlPrefix": url, **more}
    return found


class Extender:
    """Our process, and the cluster whose scheduler asks it."""

    def __init__(self, folder: pathlib.Path, *, papers: bool = False) -> None:
        self.folder, self.port = folder, product.free_port()
        self.log = folder / "extender.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.authority = trustme.CA() if papers else None
        self.url = f"https://localhost:{self.port}" if papers else f"http://127.0.0.1:{self.port}"

    def write_papers(self) -> dict[str, Any]:
        """Ours, and what the scheduler's configuration says of them."""
        assert self.authority is not None
        leaf = self.authority.issue_cert("localhost")
        client = self.authority.issue_cert(common_name="system:kube-scheduler")
        for name, content in (
            ("tls.crt", leaf.cert_chain_pems[0]), ("tls.key", leaf.private_key_pem),
            ("client.crt", client.cert_chain_pems[0]), ("client.key", client.private_key_pem),
            ("ca.crt", self.authority.cert_pem),
        ):
            content.write_to_path(self.folder / name)
        files = {"caFile": "ca.crt", "certFile": "client.crt", "keyFile": "client.key"}
        return {"enableHTTPS": True, "tlsConfig": {key: str(self.folder / name) for key, name in files.items()}}

    async def start(self, cluster: clusters.Cluster, policy: str = "BestFit") -> None:
        parts = list(yaml.safe_load_all((FOLDER / "role/10-role.yaml").read_text()))
        rules = [rule for each in parts if each["kind"] in ("ClusterRole", "Role") for rule in each["rules"]]
        account = await cluster.service_account("extender", rules)
        lease = next(each for each in parts if each["kind"] == "Lease")
        await cluster.apply({**lease, "metadata": {"name": lease["metadata"]["name"]}})
        words = [
            str(product.BIN / "fallow"), "extender", "--addr", f"127.0.0.1:{self.port}", "--kubeconfig", str(account),
            "--policy", policy, *(["--cert-dir", str(self.folder)] if self.authority else []),
        ]
        environ = {"PATH": os.environ["PATH"], "HOME": str(self.folder)}
        with self.log.open("ab") as log:
            self.process = await asyncio.to_thread(subprocess.Popen, words, env=environ, stderr=log)
        await cluster.wait_until(self.is_ready)

    async def ask(self, path: str) -> tuple[int, str]:
        context = ssl.create_default_context()
        if self.authority is not None:
            self.authority.configure_trust(context)
        async with aiohttp.ClientSession() as http, http.get(self.url + path, ssl=context) as answer:
            return answer.status, await answer.text()

    async def is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()
        try:
            return (await self.ask("/readyz"))[0] == 200
        except aiohttp.ClientError:
            return False

    async def count(self, start: str) -> float:
        """Of a metric, all series that begin so."""
        _, text = await self.ask("/metrics")
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(start))

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(30)


async def make_nodes(cluster: clusters.Cluster, count: int, gpus: int, **more: Any) -> None:
    """Of one kind, all at once; back when the scheduler may use every one of them."""
    await cluster.gpu_node("gpu-000", gpus=gpus, **more)
    first = await cluster.get("v1", "Node", "gpu-000")
    labels, status = first["metadata"]["labels"], {key: first["status"][key] for key in ("capacity", "allocatable")}
    kwok = {"kwok.x-k8s.io/node": "fake"}
    for number in range(1, count):
        name = f"gpu-{number:03}"
        named = {"name": name, "labels": {**labels, "kubernetes.io/hostname": name}, "annotations": kwok}
        made = await cluster.create({"apiVersion": "v1", "kind": "Node", "metadata": named, "status": status})
        await cluster.patch(made, {"status": status}, part="status")

    async def are_usable() -> bool:
        nodes = await cluster.objects("v1", "Node")
        ready = [{"type": "Ready", "status": "True"}.items() <= one.items() for each in nodes
                 for one in each["status"].get("conditions", ())]
        return sum(ready) == count and not any(each["spec"].get("taints") for each in nodes)

    await cluster.wait_until(are_usable)


@pytest.fixture
async def extender(tmp_path: pathlib.Path) -> AsyncIterator[Extender]:
    made = Extender(tmp_path)
    yield made
    made.stop()


async def run(cluster: clusters.Cluster, name: str, pods: int, timeout: float = 60) -> list[str]:
    """The nodes that so many pods of one GPU each were bound to."""
    await cluster.apply(clusters.replicated("apps/v1", "Deployment", name, pods, 1))
    found = await cluster.wait_until(lambda: cluster.ready_pods(f"app={name}", pods), timeout=timeout)
    return [pod["spec"]["nodeName"] for pod in found]


@pytest.mark.accepts("packing", 18)
async def test_it_steers_and_stopped_slow_or_silent_gpu_pods_are_still_bound(
    start_control_plane: Start, extender: Extender
) -> None:
    cluster = await start_control_plane(world.Options(scheduler=scheduler(extender.url)))
    await make_nodes(cluster, 6, gpus=8)
    await extender.start(cluster)
    steered = await run(cluster, "together", 8)
    assert len(set(steered)) == 1, steered  # by itself the scheduler spreads them
    assert await extender.count('gpu_autoscaler_packing_decisions_total{outcome="steered"') == 8
    extender.signal(signal.SIGSTOP)  # the kernel still takes connections: nothing is ever answered
    assert len(await run(cluster, "slow", 2)) == 2
    extender.signal(signal.SIGCONT)
    extender.stop()
    assert len(await run(cluster, "stopped", 8)) == 8
    await extender.start(cluster)
    assert len(set(await run(cluster, "again", 3))) == 1


@pytest.mark.accepts("packing", 18)
async def test_whatever_is_answered_gpu_pods_are_bound(start_control_plane: Start) -> None:
    kind, asked = "", set[tuple[str, str]]()

    async def answer(request: web.Request) -> web.Response:
        asked.add((kind, request.path))
        unknown = {
            "/filter": '{"NodeNames": ["nobody"]}', "/prioritize": '[{"Host": "nobody", "Score": 10}]',
            "/bind": '{"Error": "nobody is bound"}',
        }
        text = {"garbage": "\x00no sense", "wrong types": "7", "unknown nodes": unknown[request.path], "500": ""}
        return web.Response(text=text[kind], status=500 if kind == "500" else 200)

    port = product.free_port()
    site = web.Application()
    site.router.add_post("/{verb}", answer)
    runner = web.AppRunner(site)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        options = world.Options(scheduler=scheduler(f"http://127.0.0.1:{port}", bindVerb="bind"))
        cluster = await start_control_plane(options)
        await make_nodes(cluster, 2, gpus=4)  # of one alone nobody would be asked which is best
        for kind in ("garbage", "wrong types", "unknown nodes", "500"):
            assert set(await run(cluster, kind.replace(" ", "-"), 2)) <= {"gpu-000", "gpu-001"}
            assert {(kind, "/filter"), (kind, "/prioritize"), (kind, "/bind")} <= asked
    finally:
        await runner.cleanup()


@pytest.mark.accepts("packing", 19)
async def test_two_pods_at_once_and_one_free_share(start_control_plane: Start, extender: Extender) -> None:
    cluster = await start_control_plane(world.Options(scheduler=scheduler(extender.url)))
    await make_nodes(cluster, 2, gpus=1, replicas=4, sharing="time-slicing")
    await extender.start(cluster)
    (full,) = set(await run(cluster, "before", 3))
    await check_that_one_is_steered_there(cluster, extender, full)
    made = [clusters.pod_template(f"p{number}", 1) for number in range(2)]
    await asyncio.gather(*(cluster.create(_name(each)) for each in made))
    bound = [each["spec"]["nodeName"] for each in await cluster.wait_until(lambda: _both(cluster))]
    assert sorted(bound) == ["gpu-000", "gpu-001"]
    assert full in bound


async def check_that_one_is_steered_there(cluster: clusters.Cluster, extender: Extender, full: str) -> None:
    """Two pods that nobody binds: what the scheduler counts itself keeps nobody away, only what was promised."""
    templates = [clusters.pod_template(f"asks{number}", 1, schedulerName="nobody") for number in range(2)]
    pods = [await cluster.create(_name(each)) for each in templates]
    async with aiohttp.ClientSession() as http:
        async def find_best(pod: dict[str, Any]) -> str:
            asked = {"Pod": pod, "NodeNames": ["gpu-000", "gpu-001"]}
            async with http.post(f"{extender.url}/prioritize", json=asked) as answer:
                scores = {each["Host"]: each["Score"] for each in await answer.json(content_type=None)}
                return max(scores, key=lambda name: scores[name])

        best = await asyncio.gather(*map(find_best, pods))
    assert sorted(best) == ["gpu-000", "gpu-001"]
    assert full in best
    for each in pods:
        await cluster.delete(each)


def _name(template: dict[str, Any]) -> dict[str, Any]:
    name = template["metadata"]["labels"]["app"]
    template["metadata"]["labels"]["pair"] = "yes"
    return {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {**template["metadata"], "name": name}}


async def _both(cluster: clusters.Cluster) -> list[dict[str, Any]] | None:
    return await cluster.ready_pods("pair=yes", 2)


async def test_what_comes_one_by_one_is_packed_as_the_engine_alone_packs_it(
    start_control_plane: Start, extender: Extender
) -> None:
    """Nodes with whole GPUs and nodes that share theirs, of one product; pods with whole GPUs, parts, or none."""
    options = world.Options(scheduler=scheduler(extender.url, managedResources=[]))  # asked about all pods
    cluster = await start_control_plane(options)
    rows = [
        Machine(name=f"n-{number:02}", product=f"A{number % 2}", cpu=16_000 * gpus, memory=65_536 * gpus, gpus=gpus,
                pods=110, replicas=2 if number % 5 == 0 else 1, is_renamed=number % 5 == 0)
        for number, gpus in enumerate([1, 2, 4, 4] * 5)
    ]
    asks = ((0, 9000), (1, 4000), (1, 15_000), (2, 8000), (1, 2000), (0, 14_000), (4, 20_000), (1, 12_000))
    wishes = [
        replaying.Wish(
            packing.PackingPod("", cpu, 4096, gpus, packing.GPU if gpus else 0, ("A1",) if number % 11 == 7 else ()),
            is_part=gpus == 1 and number % 3 == 0,
        )
        for number, (gpus, cpu) in enumerate(asks[number % 8] for number in range(72))
    ]
    used = await replaying.live(cluster, rows, wishes, lambda: extender.start(cluster, "BestFit"))
    uid = (await cluster.get("v1", "Namespace", "kube-system"))["metadata"]["uid"]
    own = replaying.play(rows, wishes, uid, "BestFit")
    assert used == own, f"{used} GPUs through the scheduler, {own} by the engine alone"
    assert own < sum(wish.gpus for wish in wishes), "all of it fits: nothing was shown"
    assert await extender.count("gpu_autoscaler_packing_fallback_total") == 0


async def test_by_tls_with_a_certificate_and_it_binds(start_control_plane: Start, tmp_path: pathlib.Path) -> None:
    extender = Extender(tmp_path, papers=True)
    more = extender.write_papers()
    cluster = await start_control_plane(world.Options(scheduler=scheduler(extender.url, bindVerb="bind", **more)))
    await make_nodes(cluster, 3, gpus=4)
    with contextlib.ExitStack() as stack:
        stack.callback(extender.stop)
        await extender.start(cluster)
        # without the right to bind it refuses, and the scheduler binds by itself
        assert len(set(await run(cluster, "refused", 2))) == 1
        assert await extender.count('gpu_autoscaler_packing_decisions_total{outcome="refused"') == 2
        rule = {"apiGroups": [""], "resources": ["pods/binding"], "verbs": ["create"]}
        await cluster.grant({"kind": "ServiceAccount", "name": "extender", "namespace": cluster.namespace}, [rule])

        async def binds() -> bool:
            await run(cluster, "bound", 1)
            return await extender.count('gpu_autoscaler_packing_decisions_total{outcome="bound"') >= 1

        await cluster.wait_until(binds)
        user = f"system:serviceaccount:{cluster.namespace}:extender"
        assert any(asked.code == 201 for asked in cluster.requests(user, ["create"], "/binding"))
        assert (await extender.ask("/healthz"))[0] == 200


async def test_the_second_scheduler_schedules_who_names_it_and_its_manifests_are_taken(
    start_control_plane: Start, extender: Extender
) -> None:
    second: dict[str, Any] = yaml.safe_load((FOLDER / "scheduler/second.yaml").read_text())
    second["extenders"][0]["urlPrefix"] = extender.url
    second["leaderElection"]["leaderElect"] = False  # alone; its Lease is in the manifests
    cluster = await start_control_plane(world.Options(scheduler=second))
    await make_nodes(cluster, 3, gpus=4)
    await extender.start(cluster, "Auto")
    own = clusters.replicated("apps/v1", "Deployment", "own", 3, 1, schedulerName="fallow-scheduler")
    made = await cluster.run(own, 3)
    assert len({pod["spec"]["nodeName"] for pod in await cluster.pods("app=own")}) == 1, made["metadata"]["name"]
    await cluster.make_namespace(test_deploy.NAMESPACE)
    for place in ("extender", "extender/service"):
        for thing in test_deploy.rendered(place):
            path = await cluster._path_of(thing)
            await cluster.request(
                "PATCH", path, thing, "application/apply-patch+yaml", fieldManager="test", dryRun="All",
                fieldValidation="Strict", force="true",
            )


async def test_a_thousand_pods_at_once_are_bound_none_is_lost_and_no_node_is_overfilled(
    start_control_plane: Start, extender: Extender
) -> None:
    cluster = await start_control_plane(world.Options(scheduler=scheduler(extender.url)))
    await make_nodes(cluster, 130, gpus=8)
    await extender.start(cluster, "FGD")
    bound = await run(cluster, "burst", 1000, timeout=200)
    assert max(bound.count(node) for node in set(bound)) == 8
    assert len(set(bound)) <= 127, "1,000 GPUs are 125 nodes of eight"
    steered = await extender.count('gpu_autoscaler_packing_decisions_total{outcome="steered"')
    assert steered >= 950, f"only {steered} of 1,000 were steered"

    async def are_settled() -> bool:
        return await extender.count("gpu_autoscaler_packing_reservations") == 0

    await cluster.wait_until(are_settled)
    cluster._made.clear()  # all of it goes with its control plane, sooner than one by one
