"""The chart as somebody has installed it: a release in a namespace of its own, its daemon from this checkout, and what
of its rights it used.

In: a Stage. Out: `Release` (install, upgrade, run); `check_rights`, by the audit log.
"""

from __future__ import annotations

import base64
import contextlib
import pathlib
import subprocess
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests import objects
from tests.real import cluster as clusters
from tests.real import helm, product, shipped
from tests.real.shipped import EVERYBODYS

Object = dict[str, Any]


def container_of(deployment: Object) -> Object:
    found: Object = deployment["spec"]["template"]["spec"]["containers"][0]
    return found


def arguments(deployment: Object) -> list[str]:
    return [str(each) for each in container_of(deployment)["args"]]


class Release:
    """The chart in a namespace of its own, and its daemon from this checkout: no image can be pulled here. It is given
    the arguments, the Secrets and the token of the account that the API server has after the install."""

    def __init__(self, stage: product.Stage, folder: pathlib.Path, chart: pathlib.Path = helm.CHART) -> None:
        self.cluster, self.stage, self.folder, self.home = stage.cluster, stage, folder, stage.system
        self.helm, self._chart = helm.Helm(stage.cluster.kubeconfig, folder), str(chart)
        self.user = f"system:serviceaccount:{self.home}:gpu-pruner"

    async def install(self, *sets: str) -> str:
        words = [word for each in sets for word in ("--set", each)]
        return await self.helm.run("install", "fallow", self._chart, "-n", self.home, "--wait", *words)

    async def upgrade(self, *sets: str) -> str:
        """Nobody waits for pods: no volume is made here, and no RuntimeClass of NVIDIA."""
        words = [word for each in sets for word in ("--set", each)]
        return await self.helm.run("upgrade", "fallow", self._chart, "-n", self.home, *words)

    async def account(self) -> pathlib.Path:
        path = f"/api/v1/namespaces/{self.home}/serviceaccounts/gpu-pruner/token"
        token = (await self.cluster.request("POST", path, {"spec": {"expirationSeconds": 3600}}))["status"]["token"]
        kubeconfig = self.folder / "account.kubeconfig"
        return self.cluster.plane.kubeconfig_with_token(token, kubeconfig, self.home)

    @contextlib.asynccontextmanager
    async def running(self, *further: str) -> AsyncIterator[product.Daemon]:
        """`further`: flags besides, or instead; a cycle every second unless one of them says otherwise."""
        daemon = await self._start(further or ("-c", "1"))
        try:
            yield daemon
        finally:
            await daemon.kill()

    async def tells(self, daemon: product.Daemon, *words: str) -> bool:
        return any(all(word in line for word in words) for line in daemon.log.splitlines())

    async def _start(self, further: tuple[str, ...]) -> product.Daemon:
        """As the kubelet would start it; but for names of hosts."""
        deployment = await self.cluster.get("apps/v1", "Deployment", "gpu-pruner", self.home)
        made = product.Product(self.stage, await self.account(), self.folder, self.user)
        given = [await self._place(each) for each in arguments(deployment)]
        port = product.free_port()
        here = ["--metrics-addr", f"127.0.0.1:{port}", "--dashboard-addr", f"127.0.0.1:{port}", *further]
        log = self.folder / f"{port}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: ASYNC220  a daemon
                [str(product.BIN / "gpu-pruner"), *given, "--kubeconfig", str(made.kubeconfig), *here],
                env=made.environment({"POD_NAME": "gpu-pruner-0", "PROMETHEUS_URL": ""}),
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )
        daemon = product.Daemon(process, port, log)
        await daemon.until(daemon.answers)
        return daemon

    async def _place(self, argument: str) -> str:
        """A file of a mounted Secret, as a file here; the dashboard's port is said with its address; Prometheus is
        where it really is."""
        flag = argument.partition("=")[0]
        if flag == "--prometheus-url":
            return f"{flag}={self.stage.prometheus.url}"
        if flag == "--session-key-file":
            secret = await self.cluster.get("v1", "Secret", "gpu-pruner-session-key", self.home)
            (self.folder / "key").write_bytes(base64.b64decode(secret["data"]["key"]))
            return f"{flag}={self.folder / 'key'}"
        return argument if flag != "--dashboard-port" else "--dashboard-auth=kube"

    def asked(self) -> set[shipped.Right]:
        """What its account asked the API server for and was given, by the audit log."""
        return shipped.used(self.cluster, self.user)


async def install_prometheus(cluster: clusters.Cluster) -> None:
    """Its Service, as its operator makes it; that it leads to a server on this machine is the tests' own. It stays, for
    the next test would find a namespace that is going."""
    await cluster.make_namespace("monitoring")
    cluster._made.pop()
    meta = {"name": "prometheus-operated", "namespace": "monitoring"}
    ports = [{"name": "web", "port": 9090}]
    await cluster.apply({"apiVersion": "v1", "kind": "Service", "metadata": meta,
                         "spec": {"clusterIP": "None", "ports": ports}})
    cluster._made.pop()


async def granted(release: Release) -> set[shipped.Right]:
    """What the roles of its account allow, as helm has them now."""
    manifest = await release.helm.run("get", "manifest", "fallow", "-n", release.home)
    roles = [each for each in objects.read(manifest) if each["kind"] in ("ClusterRole", "Role")]
    return shipped.granted([rule for each in roles for rule in each["rules"]])


@pytest.fixture
async def release(stage, tmp_path):
    made = Release(stage, tmp_path)
    restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
    await stage.cluster.make_namespace(stage.system, restricted)
    await forget_configs(stage.cluster)
    await install_prometheus(stage.cluster)
    yield made
    with contextlib.suppress(helm.HelmRefused):
        await made.helm.run("uninstall", "fallow", "-n", made.home, "--no-hooks", "--ignore-not-found")


async def forget_configs(cluster: clusters.Cluster) -> None:
    """Whoever finds a GPUNodeConfig reads the device plugin's ConfigMap, for which rights come with sharing only; other
    tests on this cluster leave such."""
    try:
        left = await cluster.objects("gpuautoscaler.io/v1alpha1", "GPUNodeConfig", "")
    except (clusters.Refused, LookupError):
        return  # the kind is not served here yet
    for each in left:
        await cluster.patch(each, {"metadata": {"finalizers": None}})
        await cluster.delete(each)


async def check_rights(release: Release, changes: set[str]) -> None:
    """None is missing (`asked` says so), and none unused: nothing but `changes` was changed."""
    assert await reads_all(release)
    asked = release.asked()
    written = {what for verb, group, what in asked if verb in product.WRITES and (verb, group, what) not in EVERYBODYS}
    assert written - {"leases"} == changes


async def reads_all(release: Release) -> bool:
    """Of what this cluster serves, every resource that may be listed was."""
    asked, allowed = release.asked(), await granted(release)
    served = {
        (group["name"], each["name"])
        for group in [{"name": ""}, *(await release.cluster.request("GET", "/apis"))["groups"]]
        for each in await _resources(release.cluster, group)
    }
    return not {
        (group, what) for verb, group, what in allowed
        if verb == "list" and (group, what) in served and not {("list", group, what), ("watch", group, what)} & asked
    }


async def _resources(cluster: clusters.Cluster, group: Object) -> list[Object]:
    root = f"/apis/{group['preferredVersion']['groupVersion']}" if group["name"] else "/api/v1"
    found: list[Object] = (await cluster.request("GET", root))["resources"]
    return found
