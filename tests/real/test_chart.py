"""The Helm chart: it renders what deploy/ has, and a real API server takes it, upgrades it, takes it back and is left
clean; under the very rights that it renders the daemon looks, pauses and gives back."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import http.server
import json
import pathlib
import re
import subprocess
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
import yaml

from fallow import names, settings
from fallow.doors.cli import pruner
from fallow.model import emptying, partition
from tests import ROOT
from tests.real import build, helm, product, schemas
from tests.real import cluster as clusters
from tests.real.conftest import need
from tests.real.test_deploy import NAMESPACE, PROMETHEUS_RULE, SERVICE_MONITOR, expand, rendered, write_overlay

Object = dict[str, Any]
ALL = (
    "runMode=scale-down", "cost.enabled=true", "cost.enforcement.enabled=true", "sharing.enabled=true",
    "binPacking.consolidation.mode=act", "extender.enabled=true", "exporter.enabled=true", "slack.enabled=true",
    "monitoring.rules.enabled=true", "monitoring.serviceMonitor.enabled=true", "monitoring.openshift.enabled=true",
    f"enabledResources={settings.LETTERS}", "cost.prices.csv=a",
)


OURS = [
    each for path in sorted((helm.CHART / "crds").iterdir()) for each in yaml.safe_load_all(path.read_text()) if each
]


# ---- one source ------------------------------------------------------------------------------------------------------

# What of deploy/ or examples/ -> the values that give the same.
SAME = {
    "base": ("dashboard.enabled=false",), "acting": ("dashboard.enabled=false", "runMode=scale-down"),
    "enforcement": ALL, "sharing": ALL, "consolidation": ALL, "extender": ALL,
    "extender/service": (*ALL, "extender.mode=service"), "monitoring": ALL,
}
SAID_OTHERWISE = {("Namespace", "", NAMESPACE)} | {
    ("ConfigMap", NAMESPACE, name) for name in ("gpu-pruner", "gpu-pruner-acting", "gpu-pruner-enforcement")
}


@pytest.mark.parametrize("place", SAME)
def test_the_chart_renders_what_kustomize_renders(place):
    chart = {helm.name(each): each for each in helm.render(*SAME[place])}
    for thing in rendered(place):
        kind, namespace, called = helm.name(thing)
        called = re.sub(r"^(fallow-scheduler-config)-.*", r"\1", called)  # kustomize adds a hash
        if kind == "CustomResourceDefinition" or helm.name(thing) in SAID_OTHERWISE:
            continue
        there = chart[kind, namespace, called]
        if kind == "Deployment":
            assert bare(there) == bare(thing), called
        elif (kind, called) == ("ClusterRole", "gpu-pruner-cr") and "cost.enabled=true" not in SAME[place]:
            assert not [rule for rule in there["rules"] if "costbudgets" in rule["resources"]]
        elif kind != "Role" or called != "gpu-pruner":
            there["metadata"]["name"] = thing["metadata"]["name"]
            assert there == thing, called


def bare(deployment: Object) -> Object:
    """But for what values say as arguments, and whose names kustomize changes."""
    text = re.sub(r"fallow-scheduler-config-\w+", "fallow-scheduler-config", json.dumps(deployment))
    made: Object = json.loads(text)
    for container in made["spec"]["template"]["spec"]["containers"]:
        for key in ("args", "envFrom", "imagePullPolicy"):
            container.pop(key, None)
        if container["name"] == "gpu-pruner":
            container["env"] = [one for one in container["env"] if one["name"].startswith("POD_")]
        if container["name"] == "scheduler":
            container["image"] = container["image"].rpartition("/")[2]
    return made


COMPONENTS = {
    "dashboard": (), "cost": ("dashboard.enabled=false", "cost.enabled=true"),
    "cost/postgres": ("dashboard.enabled=false", "cost.enabled=true", "cost.store.dsnSecret=gpu-pruner-cost"),
}


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_changes_the_deployment_in_the_same_way(component, tmp_path):
    write_overlay(tmp_path, "base", component)
    things = rendered(str(tmp_path))
    by_name = {helm.name(each): each for each in helm.render(*COMPONENTS[component])}
    (deployment,) = (each for each in things if each["kind"] == "Deployment")
    there = by_name[helm.name(deployment)]
    assert bare(there) == bare(deployment)
    maps = [each for each in things if helm.name(each) == ("ConfigMap", NAMESPACE, "gpu-pruner")]
    mine, theirs = arguments(there), expand(container_of(deployment), maps)
    assert {each for each in theirs if not each.startswith("--cost-attribution")} <= set(mine)


def container_of(deployment: Object) -> Object:
    found: Object = deployment["spec"]["template"]["spec"]["containers"][0]
    return found


def arguments(deployment: Object) -> list[str]:
    return [str(each) for each in container_of(deployment)["args"]]


# ---- what values do --------------------------------------------------------------------------------------------------

# A switch -> what comes with it, by kind and name.
SWITCHES = {
    "dashboard.enabled=false": {
        ("ClusterRole", "gpu-pruner-dashboard-cr"), ("ClusterRoleBinding", "gpu-pruner-dashboard-crb"),
        ("Role", "gpu-pruner-secrets"), ("RoleBinding", "gpu-pruner-secrets"), ("Secret", "gpu-pruner-session-key"),
    },
    "networkPolicy.enabled=false": {("NetworkPolicy", "gpu-pruner")},
    "podDisruptionBudget.enabled=false": {("PodDisruptionBudget", "gpu-pruner")},
    "bounds.enabled=false": {
        ("ValidatingAdmissionPolicy", "gpu-pruner-bounds"), ("ValidatingAdmissionPolicyBinding", "gpu-pruner-bounds"),
    },
    "monitoring.dashboards.enabled=false": {
        ("ConfigMap", f"{name}-dashboard") for name in ("gpu-cost", "gpu-dashboard", "fallow-health")
    },
    "uninstall.resume=false": {
        ("Job", "gpu-pruner-uninstall"), ("ClusterRole", "gpu-pruner-uninstall-cr"),
        ("ClusterRoleBinding", "gpu-pruner-uninstall-crb"),
    },
    "exporter.enabled=true": {
        ("Namespace", "gpu-idle-exporter"), ("ServiceAccount", "gpu-idle-exporter"), ("DaemonSet", "gpu-idle-exporter"),
    },
    "runMode=scale-down": {("ClusterRole", "gpu-pruner-act-cr"), ("ClusterRoleBinding", "gpu-pruner-act-crb")},
    "cost.enabled=true": {
        ("Role", "gpu-pruner-cost"), ("RoleBinding", "gpu-pruner-cost"), ("PersistentVolumeClaim", "gpu-pruner-cost"),
    },
}


@pytest.mark.parametrize("switch", SWITCHES)
def test_a_switch_brings_its_own_and_nothing_else(switch):
    usual, changed = ({helm.name(each)[::2] for each in helm.render(*sets)} for sets in ((), (switch,)))
    assert usual ^ changed == SWITCHES[switch]


def test_without_a_controller_there_is_only_what_was_asked_for():
    kept = {helm.name(each)[::2] for each in helm.render("controller.enabled=false", "exporter.enabled=true")}
    assert kept == SWITCHES["exporter.enabled=true"] | SWITCHES["monitoring.dashboards.enabled=false"]


WRONG = {
    "runMode=stop": "'/runMode': value must be one of", "cost.nope=1": "'/cost': additional properties 'nope'",
    "flags.nope=1": "additional properties 'nope'", "flags.kubeconfig=x": "additional properties 'kubeconfig'",
    "flags.check-interval=soon": "'/flags/check-interval'", "flags.coverage=7": "'/flags/coverage'",
    "sharing.enabled=true": "a dry run changes nothing", "cost.timescaledb.enabled=true": "where is it?",
    "admissionWebhook.enabled=true": "needs a certificate", "cost.enforcement.enabled=true": "needs cost.enabled=true",
    "binPacking.consolidation.mode=act": "a dry run changes nothing",
    "sharing.mig.configMap=elsewhere/map": "the rights are those of one",
}


@pytest.mark.parametrize("value", WRONG)
def test_what_is_wrong_is_said_before_anything_is_sent(value):
    with pytest.raises(helm.HelmRefused, match=re.escape(WRONG[value])):
        helm.template(value)


def test_values_are_flags_that_the_daemon_reads():
    sets = (
        *ALL, "flags.trust-metrics=true", "flags.policies=false", "flags.check-interval=60", "cost.cloudProvider=aws",
        "flags.gpu-resource={a.com/gpu,b.com/gpu}", "flags.namespace=ml-.*", "cost.roi.monthlyInvestment=1000000",
        "cost.attribution.labels={team,app}", "binPacking.consolidation.threshold=0.3",
    )
    by_name = {helm.name(each): each for each in helm.render(*sets)}
    given = arguments(by_name["Deployment", NAMESPACE, "gpu-pruner"])
    key = [each.replace("--session-key-file=", "--prometheus-token-file=") for each in given]  # that is no file here
    read = settings.read_flags(pruner.gpu_pruner.make_context("gpu-pruner", key).params, {"POD_NAMESPACE": NAMESPACE})
    assert (read.mandate.acting, read.mandate.require_policy, read.mandate.use_policies) == (True, True, False)
    assert (read.trust_metrics, read.loop.interval, read.cost.provider) == (True, 60.0, "aws")
    assert (read.gpu_resources >= {"a.com/gpu", "b.com/gpu"}, read.cost_store.labels) == (True, ("team", "app"))
    assert (read.consolidation.acts, read.consolidation.threshold, read.sharing.acts) == (True, 0.3, True)
    assert read.enforcement.enabled


async def test_every_manifest_is_of_its_kind(cluster, tmp_path):
    """kubeconform, with the shapes that this very API server publishes; unknown fields are refused."""
    need("kubeconform")
    await cluster.apply_crds(SERVICE_MONITOR, PROMETHEUS_RULE, *OURS)
    (tmp_path / "schemas").mkdir()
    await schemas.write(cluster, tmp_path / "schemas")
    files = [*(ROOT / "deploy").rglob("*.yaml"), *(ROOT / "examples").rglob("*.yaml")]
    patches = {"20-books.yaml", "20-session-key.yaml", "kustomization.yaml", "config.yaml", "second.yaml", "logs.yaml"}
    plain = [str(path) for path in files if path.name not in patches and "prometheus" not in path.parts]
    for name, sets in (("default", ()), ("all", ALL), ("service", (*ALL, "extender.mode=service"))):
        (tmp_path / f"{name}.yaml").write_text(helm.template(*sets))
        plain.append(str(tmp_path / f"{name}.yaml"))
    command = [
        str(build.need("kubeconform")), "-summary", "-output", "json", "-skip", "CustomResourceDefinition,PodMonitor",
        "-schema-location",
        str(tmp_path / "schemas" / "{{.Group}}_{{.ResourceAPIVersion}}_{{.ResourceKind}}.json"), *plain,
    ]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False, timeout=60)
    said = json.loads(done.stdout)
    bad = [(each["filename"], each["kind"], each["msg"]) for each in said["resources"]]
    assert not bad
    assert said["summary"]["valid"] > 200
    assert done.returncode == 0


# ---- on a real API server --------------------------------------------------------------------------------------------


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
    async def running(self) -> AsyncIterator[product.Daemon]:
        daemon = await self._start()
        try:
            yield daemon
        finally:
            await daemon.kill()

    async def tells(self, daemon: product.Daemon, *words: str) -> bool:
        return any(all(word in line for word in words) for line in daemon.log.splitlines())

    async def _start(self) -> product.Daemon:
        """As the kubelet would start it; but for names of hosts, and a cycle every second."""
        deployment = await self.cluster.get("apps/v1", "Deployment", "gpu-pruner", self.home)
        made = product.Product(self.stage, await self.account(), self.folder, self.user)
        given = [await self._place(each) for each in arguments(deployment) if "prometheus-url" not in each]
        port = product.free_port()
        here = ["--metrics-addr", f"127.0.0.1:{port}", "--dashboard-addr", f"127.0.0.1:{port}", "-c", "1"]
        log = self.folder / f"{port}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: ASYNC220  a daemon
                [str(product.BIN / "gpu-pruner"), *given, "--kubeconfig", str(made.kubeconfig), *here],
                env=made.environment({"POD_NAME": "gpu-pruner-0"}), stdin=subprocess.DEVNULL, stdout=output,
                stderr=output,
            )
        daemon = product.Daemon(process, port, log)
        await daemon.until(daemon.answers)
        return daemon

    async def _place(self, argument: str) -> str:
        """A file of a mounted Secret, as a file here; the dashboard's port is said with its address."""
        flag = argument.partition("=")[0]
        if flag == "--session-key-file":
            secret = await self.cluster.get("v1", "Secret", "gpu-pruner-session-key", self.home)
            (self.folder / "key").write_bytes(base64.b64decode(secret["data"]["key"]))
            return f"{flag}={self.folder / 'key'}"
        return argument if flag != "--dashboard-port" else "--dashboard-auth=kube"

    def asked(self) -> set[tuple[str, str, str]]:
        """(verb, group, resource) that its account asked the API server for, by the audit log."""
        found = set()
        for one in self.cluster.requests(user=self.user):
            assert one.code != 403, f"a right is missing: {one.verb} {one.uri}"
            if (place := _RESOURCE.match(one.uri)) and one.code < 400:
                found.add((one.verb, place["group"] or "", place["what"] + (place["part"] or "")))
        return found


_RESOURCE = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/v[^/]+/(?:namespaces/[^/?]+/)?(?P<what>[a-z]+)(?:/[^/?]+(?P<part>/[a-z]+)?)?(?:[?]|$)"
)


async def granted(release: Release) -> set[tuple[str, str, str]]:
    """What the roles of its account allow, as helm has them now."""
    manifest = await release.helm.run("get", "manifest", "fallow", "-n", release.home)
    rules = [
        rule for each in yaml.safe_load_all(manifest) if each and each["kind"] in ("ClusterRole", "Role")
        for rule in each["rules"]
    ]
    return {
        (verb, group, what) for rule in rules for verb in rule["verbs"] for group in rule["apiGroups"]
        for what in rule["resources"]
    }


@pytest.fixture
async def release(stage, tmp_path):
    made = Release(stage, tmp_path)
    restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
    await stage.cluster.make_namespace(stage.system, restricted)
    await forget_configs(stage.cluster)
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
    """None is missing (`asked` says so), and of what this cluster serves none is unused: every resource that may be
    listed was, and nothing but `changes` was changed."""
    asked, allowed = release.asked(), await granted(release)
    served = {
        (group["name"], each["name"])
        for group in [{"name": ""}, *(await release.cluster.request("GET", "/apis"))["groups"]]
        for each in await _resources(release.cluster, group)
    }
    unread = {
        (group, what) for verb, group, what in allowed
        if verb == "list" and (group, what) in served and not {("list", group, what), ("watch", group, what)} & asked
    }
    assert not unread
    assert {what for verb, _, what in asked if verb in product.WRITES} - {"leases", "selfsubjectreviews"} == changes


async def _resources(cluster: clusters.Cluster, group: Object) -> list[Object]:
    root = f"/apis/{group['preferredVersion']['groupVersion']}" if group["name"] else "/api/v1"
    found: list[Object] = (await cluster.request("GET", root))["resources"]
    return found


async def test_it_is_installed_looks_acts_goes_back_and_leaves(release, stage):
    """Under restricted pod security, with no value set: a dry run with least rights and a dashboard. Then it acts, by
    an upgrade; then it is taken back; and an uninstall leaves nothing paused, and nothing of ours."""
    cluster = release.cluster
    before = await everything(cluster)
    idle = await stage.workload("llm", replicas=2)
    await stage.prometheus.start()
    notes = await release.install()
    assert "It only looks" in notes
    assert f"helm test fallow -n {release.home}" in notes
    async with release.running() as daemon:
        await daemon.until(lambda: release.tells(daemon, "would pause", "llm"))
        assert (await daemon.get("/"))[0] == 200
        assert (await daemon.get("/api/v1/status"))[0] == 401, "nobody is let in without a token"
    await check_rights(release, changes=set())
    assert not await stage.is_paused(idle)

    policy = {"action": {"type": "pause"}, "notice": {"grace": "0s"}}
    kind = {"apiVersion": "gpuautoscaler.io/v1alpha1", "kind": "IdlePolicy"}
    await cluster.apply({**kind, "metadata": {"name": cluster.namespace}, "spec": policy})
    assert "It acts" in await release.upgrade("runMode=scale-down", "flags.max-percent-per-hour=100")
    async with release.running() as daemon:
        await daemon.until(lambda: stage.is_paused(idle))
    await check_rights(release, changes={"deployments", "events", "idlepolicies/status"})

    await release.helm.run("rollback", "fallow", "1", "-n", release.home, "--wait")
    assert "patch" not in {verb for verb, group, what in await granted(release) if group == "apps"}
    held = await hold(release)
    leaving = asyncio.create_task(release.helm.run("uninstall", "fallow", "-n", release.home, "--wait"))
    await give_back(release)
    await leaving
    node, pod, config = [await cluster.refresh(each) for each in held]
    assert ("unschedulable" in node["spec"], names.EMPTYING in node["metadata"]["annotations"]) == (False, False)
    assert (pod["spec"].get("schedulingGates"), config["metadata"].get("finalizers")) == (None, None)
    assert not await stage.is_paused(idle)
    assert (await stage.now(idle))["spec"]["replicas"] == 2
    left = {each for each in await everything(cluster) - before if cluster.namespace in each[1] + each[2]}
    assert {each for each in left if "gpu-pruner" in each[2] or "fallow" in each[2]} == set()
    assert await cluster.find("apiextensions.k8s.io/v1", "CustomResourceDefinition", "idlepolicies.gpuautoscaler.io")


async def hold(release: Release) -> tuple[Object, Object, Object]:
    """What a daemon may hold besides workloads: a node that is being emptied, a pod behind a gate, a finalizer."""
    cluster, asked = release.cluster, {"limits": {"nvidia.com/gpu": 1}}
    record = emptying.EmptyingRecord(v=1, since=1.0, cordoned_by_us=True, because="hardly used")
    node = await cluster.gpu_node(f"{cluster.namespace}-emptied")
    meta = {"annotations": {names.EMPTYING: emptying.write(record)}, "labels": {names.CONSOLIDATION: "emptying"}}
    await cluster.patch(node, {"metadata": meta, "spec": {"unschedulable": True}})
    spec = {"containers": [{"name": "a", "image": "a", "resources": asked}],
            "schedulingGates": [{"name": names.BUDGET_GATE}]}
    pod = await cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "gated"}, "spec": spec})
    meta = {"name": node["metadata"]["name"], "finalizers": [names.REPARTITION]}
    kind = {"apiVersion": "gpuautoscaler.io/v1alpha1", "kind": "GPUNodeConfig"}
    return node, pod, await cluster.apply({**kind, "metadata": meta, "spec": {"nodeName": node["metadata"]["name"]}})


async def give_back(release: Release) -> None:
    """What the hook's Job runs, with its account and the rights that are there only now; then its pod has succeeded.
    A node whose GPUs are being cut is waited for."""
    cluster = release.cluster
    selector = "app.kubernetes.io/name=gpu-pruner-uninstall"
    (pod,) = await cluster.wait_until(lambda: cluster.ready_pods(selector, 1, release.home), timeout=30)
    container = pod["spec"]["containers"][0]
    program, *words = container["command"]
    made = product.Product(release.stage, await release.account(), release.folder, release.user)
    line = [*words, *container["args"], "--kubeconfig", str(made.kubeconfig)]
    node = await cluster.get("v1", "Node", "gpu-1")
    layout = partition.NodeLayout()
    cut = partition.RepartitionRecord(
        config="a", uid="u", before=layout, after=layout, step=partition.RepartitionStep.Draining, since=1.0,
    )
    await cluster.patch(node, {"metadata": {"annotations": {names.REPARTITION: partition.write(cut)}}})
    ended = await product.run(program, *line, env=made.environment())
    assert (ended.code, "node gpu-1 is being cut or shared anew" in ended.err) == (1, True), ended.said
    await cluster.patch(node, {"metadata": {"annotations": {names.REPARTITION: None}}})
    ended = await product.run(program, *line, env=made.environment())
    assert (ended.code, "nothing is paused or held by fallow any more" in ended.out) == (0, True), ended.said
    await cluster.patch(pod, {"status": {"phase": "Succeeded"}}, part="status")


async def everything(cluster: clusters.Cluster) -> set[tuple[str, str, str]]:
    """All objects of the kinds that the chart has, hooks too."""
    found = set()
    for version, kind in {(each["apiVersion"], each["kind"]) for each in helm.render(*ALL)}:
        if version != "monitoring.coreos.com/v1":
            path = (await cluster._path(version, kind, "", "x")).replace("/namespaces/x", "").rstrip("/")
            found |= {(kind, each["metadata"].get("namespace", ""), each["metadata"]["name"])
                      for each in (await cluster.request("GET", path))["items"]}
    return found


async def test_everything_is_switched_on_and_off_again(release, stage, tmp_path):
    """Every component on a real API server, by an upgrade; a rollback leaves what was there before, and definitions of
    another version are not upgraded past: helm never changes one."""
    cluster = release.cluster
    await cluster.apply_crds(SERVICE_MONITOR, PROMETHEUS_RULE)
    await cluster.make_namespace("gpu-operator")
    await release.helm.run("lint", "--strict", str(helm.CHART))
    await release.install("dashboard.enabled=false", *FINISHES)
    await release.helm.run("test", "fallow", "-n", release.home)
    off = await manifest(release)
    await release.upgrade(*ALL, *FINISHES)
    on = await manifest(release)
    assert {helm.name(each) for each in on} == {
        helm.name(each) for each in helm.render(*ALL, namespace=release.home) if not is_hook(each)
    }
    for thing in on:
        there = await cluster.refresh(thing)
        assert there["metadata"]["annotations"]["meta.helm.sh/release-name"] == "fallow"
    secret = await cluster.get("v1", "Secret", "gpu-pruner-session-key", release.home)
    await release.upgrade(*ALL, *FINISHES, "cost.timescaledb.enabled=true", "cost.timescaledb.host=db")
    assert (await cluster.get("v1", "Secret", "gpu-pruner-session-key", release.home))["data"] == secret["data"]

    await release.helm.run("rollback", "fallow", "1", "-n", release.home, "--wait")
    assert {helm.name(each) for each in await manifest(release)} == {helm.name(each) for each in off}
    books = ("PersistentVolumeClaim", release.home, "gpu-pruner-cost")  # kept: they outlive what made them
    for thing in on:
        if helm.name(thing) not in {helm.name(each) for each in off} | {books} and thing["kind"] != "Namespace":
            _, namespace, called = helm.name(thing)
            assert not await cluster.find(thing["apiVersion"], thing["kind"], called, namespace), called

    (definition,) = (each for each in OURS if each["metadata"]["name"] == "idlepolicies.gpuautoscaler.io")
    there = await cluster.refresh(definition)
    older = there["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    changed = {"op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/old",
               "value": {"type": "string"}}
    assert "old" not in older
    await cluster.patch(there, [changed], "json")
    with pytest.raises(helm.HelmRefused, match=r"another version.*helm show crds CHART \| kubectl apply"):
        await release.upgrade()
    await cluster.apply_crds(definition)


FINISHES = ("uninstall.podAnnotations.fallow\\.test/life=finishes",)


def is_hook(thing: Object) -> bool:
    return "helm.sh/hook" in (thing["metadata"].get("annotations") or {})


async def manifest(release: Release) -> list[Object]:
    said = await release.helm.run("get", "manifest", "fallow", "-n", release.home)
    return [each for each in yaml.safe_load_all(said) if each]


async def test_the_commands_of_gpu_autoscaler_work_as_they_are_printed(stage, tmp_path):
    """Names of hosts aside: a repository here, of the packed chart under its other name."""
    cluster, shop = stage.cluster, tmp_path / "shop"
    await cluster.make_namespace("gpu-autoscaler-system")
    kubeconfig = yaml.safe_load(cluster.kubeconfig.read_text())
    kubeconfig["contexts"][0]["context"]["namespace"] = "gpu-autoscaler-system"  # the last upgrade names none
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
    run = helm.Helm(tmp_path / "kubeconfig", tmp_path).run
    await run("package", str(ROOT / "charts" / "gpu-autoscaler"), "-d", str(shop))
    await run("repo", "index", str(shop))
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(shop))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        await run("repo", "add", "gpu-autoscaler", f"http://127.0.0.1:{server.server_port}")
        await run("repo", "update")
        chart, where = "gpu-autoscaler/gpu-autoscaler", ("--namespace", "gpu-autoscaler-system")
        await run("install", "gpu-autoscaler", chart, *where, "--create-namespace")
        await run("upgrade", "gpu-autoscaler", chart, *where, "--set", "cost.enabled=true",
                  "--set", "cost.provider=aws", "--set", "cost.region=us-west-2")
        deployment = await cluster.get("apps/v1", "Deployment", "gpu-pruner", "gpu-autoscaler-system")
        assert {"--cost=true", "--cost-provider=aws", "--cost-region=us-west-2"} <= set(arguments(deployment))
        await run("upgrade", "gpu-autoscaler", chart, "--set", "cost.timescaledb.enabled=true",
                  "--set", "cost.timescaledb.host=timescaledb.default.svc.cluster.local",
                  "--set", "cost.timescaledb.database=gpucost")
        deployment = await cluster.get("apps/v1", "Deployment", "gpu-pruner", "gpu-autoscaler-system")
        assert {"--cost=true", "--cost-store-dsn-file=/etc/fallow/cost/dsn"} <= set(arguments(deployment))
        secret = await cluster.get("v1", "Secret", "gpu-pruner-cost", "gpu-autoscaler-system")
        assert base64.b64decode(secret["data"]["dsn"]).decode() == (
            "host=timescaledb.default.svc.cluster.local port=5432 dbname=gpucost user=fallow sslmode=require"
        )
    finally:
        server.shutdown()
        server.server_close()
        await run("uninstall", "gpu-autoscaler", "-n", "gpu-autoscaler-system", "--no-hooks", "--ignore-not-found")
