"""`fallow status|idle|why|acks|paused|history` answered by a running daemon: through the real API server's proxy of its
Service, with the rights of whoever asks; and every way in which that does not work is one sentence and a look of one's
own."""

from __future__ import annotations

import contextlib
import json
import pathlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fallow import names
from tests.real import cluster as clusters
from tests.real import product

PROXY = {"apiGroups": [""], "resources": ["services/proxy"], "verbs": ["get"]}
SEES = [
    PROXY, {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get"]},
    {"apiGroups": [names.GROUP], "resources": [names.POLICY_PLURAL], "verbs": ["get"]},
]
LOOKS = [
    {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]},
]


def own_address() -> str:
    """Of this machine, as others reach it: the API server takes no loopback for an endpoint. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("203.0.113.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback, which no endpoint may have")
        address: str = probe.getsockname()[0]
    if address.startswith("127."):
        pytest.skip("this machine has no address but loopback, which no endpoint may have")
    return address


async def make_service(cluster: clusters.Cluster, address: str, port: int) -> None:
    """In the namespace of whoever asks. The API server passes nothing on but to a pod that has this address: one that
    nobody runs stands for the daemon's."""
    meta = {"name": names.DAEMON_SERVICE, "namespace": cluster.namespace}
    await cluster.apply({"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {
        "ports": [{"name": "metrics", "port": names.DAEMON_PORT, "targetPort": port}],
    }})
    spec = {"schedulerName": "nobody", "containers": [{"name": "main", "image": "example.invalid/fallow:1"}]}
    pod = await cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
    path = f"/api/v1/namespaces/{cluster.namespace}/pods/{names.DAEMON_SERVICE}/status"
    status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
    await cluster.request("PATCH", path, {"status": status}, kind="application/merge-patch+json")
    target = {"kind": "Pod", **meta, "uid": pod["metadata"]["uid"]}
    await cluster.apply({
        "apiVersion": "v1", "kind": "Endpoints", "metadata": meta, "subsets": [
            {"addresses": [{"ip": address, "targetRef": target}], "ports": [{"name": "metrics", "port": port}]},
        ],
    })


class Asker:
    """Somebody at a keyboard, with their own kubeconfig and without any Prometheus."""

    def __init__(self, kubeconfig: pathlib.Path, folder: pathlib.Path, **env: str) -> None:
        self.env = {"KUBECONFIG": str(kubeconfig), "HOME": str(folder), "PATH": "/usr/bin:/bin", **env}

    async def type(self, *words: str, code: int = 0, **env: str) -> product.Ended:
        ended = await product.run("fallow", *words, env={**self.env, **env})
        assert ended.code == code, ended.said
        return ended

    async def read(self, *words: str) -> Any:
        return json.loads((await self.type(*words, "-o", "json")).out)


@contextlib.asynccontextmanager
async def running(
    stage: product.Stage, folder: pathlib.Path, *flags: str
) -> AsyncIterator[tuple[product.Product, product.Daemon]]:
    """A daemon behind its Service."""
    address, port = own_address(), product.free_port()
    await make_service(stage.cluster, address, port)
    async with product.product_on(stage, folder) as pruner:
        where = ("--dashboard-addr", f"{address}:{port}", "--dashboard-auth", "kube")
        daemon = await pruner.start(*where, "-r", "dry-run", *flags)
        await daemon.until(daemon.is_ready)
        yield pruner, daemon


async def person(
    stage: product.Stage, folder: pathlib.Path, name: str, *rules: product.Object, **env: str
) -> Asker:
    return Asker(await stage.cluster.service_account(name, list(rules)), folder, **env)


async def test_a_daemon_answers_through_the_api_server_with_the_rights_of_whoever_asks(
    stage: product.Stage, tmp_path: pathlib.Path
) -> None:
    await stage.workload("quiet")
    await stage.workload("busy", busy=0.5)
    await stage.prometheus.start()
    async with running(stage, tmp_path) as (_pruner, daemon):
        ada = await person(stage, tmp_path, "ada", *SEES, FALLOW_DAEMON_AUTH="kube")  # she could not look herself
        whose = f"As the daemon in {stage.namespace} saw it "
        for words in ("status", "idle", "why Deployment/quiet"):
            first = (await ada.type(*words.split())).out.splitlines()[0]
            assert first.startswith(whose), first
            assert "it looks every 1s, in dry-run" in first
        rows = {row["name"]: row for row in await ada.read("idle", "--all")}
        assert {name: row["verdict"] for name, row in rows.items()} == {"quiet": "idle", "busy": "active"}
        page = await ada.read("status", "-n", stage.namespace)
        assert (page["idleGpus"], page["activeGpus"]) == (1, 1)
        told = await ada.read("why", "Deployment/quiet")
        assert (told["verdict"], told["gpus"][0]["verdict"]) == ("idle", "idle")
        nowhere = await ada.type("status", "-n", "no-such-place", code=1)
        assert "there is no namespace no-such-place" in nowhere.err

        async def is_written_down() -> bool:
            entries = await ada.read("history", "Deployment/quiet")
            return any(row["type"] == "wouldPause" for row in entries)

        await daemon.until(is_written_down)


async def test_who_keeps_and_pauses_sees_it_at_once_and_by_the_daemons_word(
    stage: product.Stage, tmp_path: pathlib.Path
) -> None:
    """Without waiting for a cycle: the next one is an hour away."""
    await stage.workload("quiet")
    await stage.workload("asleep")
    await stage.prometheus.start()
    async with running(stage, tmp_path, "-c", "3600") as (_pruner, daemon):
        ada = await person(stage, tmp_path, "ada", *product.ALL_RIGHTS, FALLOW_DAEMON_AUTH="kube")
        await ada.type("ack", "Deployment/quiet", "--reason", "a long job")
        await ada.type("pause", "Deployment/asleep", "--force")

        async def both_are_seen() -> bool:
            acks, paused = await ada.read("acks"), await ada.read("paused")
            return [row["name"] for row in (*acks, *paused)] == ["quiet", "asleep"]

        await daemon.until(both_are_seen)
        listed = await ada.type("acks")
        assert listed.out.splitlines()[0] == f"As the daemon in {stage.namespace} sees it now (--look looks for itself)"
        assert "a long job" in listed.out
        why = await ada.type("why", "Deployment/quiet")  # judged by what stands on it now, measured an hour's cycle ago
        assert "Acknowledged: acknowledged by user:" in " ".join(why.out.split()), why.out
        assert "Deployment/asleep in" in (rests := (await ada.type("why", "Deployment/asleep")).out)
        assert "back with" in rests, rests
        elsewhere = await ada.type("acks", "-n", "kube-system")  # which this daemon does not watch
        assert f"cannot tell: it watches only {stage.namespace}" in elsewhere.out
        events = await ada.type("history", "--look")
        assert "only what Kubernetes still has of fallow's Events" in events.out.splitlines()[0]
        assert "Deployment/asleep" in events.out
        itself = await ada.type("paused", "--look")
        assert itself.out.splitlines()[0].startswith("NAMESPACE")


async def test_where_people_must_be_known_the_proxy_does_not_do_and_a_token_goes_only_where_somebody_says(
    stage: product.Stage, tmp_path: pathlib.Path
) -> None:
    await stage.workload("quiet")
    await stage.prometheus.start()
    async with running(stage, tmp_path) as (_pruner, _daemon):
        ada = await person(stage, tmp_path, "ada", *LOOKS)
        here = ("-n", stage.namespace)
        ended = await ada.type("idle", *here, PROMETHEUS_URL=stage.prometheus.url)
        first = ended.out.splitlines()[0]
        assert first.startswith(f"A look of its own: the daemon in {stage.namespace} asks who you are"), first
        assert "port-forward svc/gpu-pruner-dashboard 8080, then --daemon-url http://localhost:8080" in first
        shown = await ada.type("idle", *here, "--daemon-auth", "kube")
        assert shown.out.startswith(f"As the daemon in {stage.namespace} saw it ")
        bob = await person(stage, tmp_path, "bob", PROXY)  # whose token the daemon knows, and who may see nothing
        refused = await bob.type("idle", "--daemon-auth", "kube", code=1)
        assert "may not be asked: " in refused.err
        assert "get on idlepolicies" in refused.err
        eve = await person(stage, tmp_path, "eve")
        refused = await eve.type("status", code=1)
        assert 'cannot get resource "services/proxy"' in refused.err
        assert "Traceback" not in refused.said
