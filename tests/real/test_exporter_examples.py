"""examples/exporter on a real API server: the READMEs' commands work as they stand, pods go where they should and are
let in at the Pod Security level that is promised, and the account may do what it needs and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import pathlib
import re
import shlex
import subprocess
from typing import Any

import msgspec
import pytest
import yaml

import fallow
from fallow.observe.scrape import targets
from fallow.settings import exporter
from tests import ROOT
from tests.real import build, crds, test_deploy
from tests.real import cluster as clusters
from tests.real.conftest import need

EXAMPLES = ROOT / "examples" / "exporter"
NAME = "gpu-idle-exporter"
LABELS = {"app.kubernetes.io/name": NAME}
POD_MONITOR = crds.crd(
    "monitoring.coreos.com", "PodMonitor", ("v1",),
    {
        "selector": crds.closed(matchLabels={"type": "object", "additionalProperties": crds.TEXT}),
        "podMetricsEndpoints": {
            "type": "array", "items": crds.closed(port=crds.TEXT, interval=crds.TEXT, honorLabels=crds.FLAG)
        },
    },
)
POD_PLACES = {
    "daemonset": "daemonset/20-daemonset.yaml", "privileged": "daemonset/privileged/20-daemonset.yaml",
    "deployment": "deployment/20-deployment.yaml", "sidecar": "sidecar/deployment.yaml",
}
NO_OBJECTS = ("scrape-config.yaml", "rules.yaml", "logs.yaml")
MANIFESTS = sorted(path for path in EXAMPLES.rglob("*.yaml") if path.name not in NO_OBJECTS)

Object = dict[str, Any]


def read(path: str | pathlib.Path) -> list[Object]:
    return [thing for thing in yaml.safe_load_all((EXAMPLES / path).read_text()) if thing]


def template(place: str) -> Object:
    (thing,) = read(POD_PLACES[place])
    found: Object = thing["spec"]["template"]
    return found


def container(place: str) -> Object:
    (found,) = (one for one in template(place)["spec"]["containers"] if one["name"] == NAME)
    return found


# ---- what stands in them -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", POD_PLACES)
def test_every_pod_is_scraped_probed_small_and_of_this_version(place: str) -> None:
    pod, one = template(place), container(place)
    assert pod["metadata"]["annotations"] == {
        "prometheus.io/scrape": "true", "prometheus.io/port": "9835", "prometheus.io/path": "/metrics",
    }
    assert one["image"] == f"gpu-idle-exporter:{fallow.__version__}"
    assert one["ports"] == [{"name": "metrics", "containerPort": 9835}]
    assert one["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "metrics"}
    assert one["resources"]["requests"] == {"cpu": "50m", "memory": "64Mi"}
    assert "limits" not in one["resources"] or "nvidia.com/gpu" not in one["resources"]["limits"]
    of_others = {"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "LD_LIBRARY_PATH"}
    assert {each["name"] for each in one["env"]} <= {each.name for each in exporter.VARIABLES} | of_others
    given, warnings = exporter.read({each["name"]: each["value"] for each in one["env"] if "value" in each})
    assert warnings == []
    assert given.scope == ("pod" if place == "sidecar" else "node")


@pytest.mark.parametrize("place", ["daemonset", "deployment", "sidecar"])
def test_no_container_has_more_than_it_needs(place: str) -> None:
    safe = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    assert container(place)["securityContext"] == safe | ({} if place == "sidecar" else {"runAsUser": 0})
    mounts = {each["mountPath"]: each.get("readOnly", False) for each in container(place).get("volumeMounts", ())}
    host = {} if place == "sidecar" else {"/var/lib/kubelet/pod-resources": True, "/state": False}
    assert mounts == host
    spec = template(place)["spec"]
    assert spec["runtimeClassName"] == "nvidia"
    assert (
        spec.get("hostPID", False), spec.get("shareProcessNamespace", False)
    ) == (place != "sidecar", place == "sidecar")
    given = {each["name"]: each.get("value") for each in container(place)["env"]}
    assert given.items() >= {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "utility"}.items()


def test_the_deployment_is_the_daemonset_with_replicas() -> None:
    deployed, daemon = template("deployment"), template("daemonset")
    (spread,) = deployed["spec"].pop("topologySpreadConstraints")
    assert deployed == daemon
    assert (
        spread["maxSkew"], spread["topologyKey"], spread["whenUnsatisfiable"]
    ) == (1, "kubernetes.io/hostname", "DoNotSchedule")
    for file in ("00-namespace.yaml", "10-account.yaml"):
        assert (EXAMPLES / "deployment" / file).read_text() == (EXAMPLES / "daemonset" / file).read_text()


@pytest.mark.parametrize("place", ["daemonset", "privileged", "deployment"])
def test_direct_scrape_finds_the_pods(place: str) -> None:
    pod = template(place)
    assert pod["metadata"]["labels"] == LABELS
    assert targets.SELECTORS[0] == f"app.kubernetes.io/name in (dcgm-exporter, {NAME})"
    item = {
        "metadata": {"name": "e-0", "namespace": "gpu", "uid": "u", "resourceVersion": "1", **pod["metadata"]},
        "spec": {**pod["spec"], "nodeName": "n1"},
        "status": {"phase": "Running", "podIP": "10.0.0.9"},
    }
    found = targets.read_pod(msgspec.convert(item, targets.ExporterItem))
    assert found == targets.ScrapeTarget("http://10.0.0.9:9835/metrics", f"gpu/{NAME}", "n1", "n1", "gpu", "e-0")


@pytest.mark.parametrize(
    ("file", "place"), [("prometheus/podmonitor.yaml", "daemonset"), ("sidecar/podmonitor.yaml", "sidecar")]
)
def test_pod_monitors_find_the_pods_and_keep_their_labels(file: str, place: str) -> None:
    (monitor,) = read(file)
    assert monitor["spec"]["selector"]["matchLabels"].items() <= template(place)["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["honorLabels"] is True
    assert endpoint["port"] in {port["name"] for port in container(place)["ports"]}


def test_links_lead_somewhere() -> None:
    documents = list(EXAMPLES.rglob("README.md"))
    assert len(documents) == 5
    for document in documents:
        text = document.read_text()
        for link, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", text):
            there = document.parent / link if link else document
            assert there.exists(), f"{document} links to {link}"
            if anchor:
                headings = re.findall(r"^#+ (.+)$", there.read_text(), re.MULTILINE)
                assert anchor in {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


# ---- on a real API server ------------------------------------------------------------------------------------------


@pytest.fixture
async def ready(cluster: clusters.Cluster) -> clusters.Cluster:
    """With what the READMEs ask for: the runtime class, and for the PodMonitors their definition."""
    await cluster.apply(
        {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}, "handler": "nvidia"}
    )
    await cluster.apply_crds(POD_MONITOR)
    return cluster


@pytest.fixture
async def nodes(ready: clusters.Cluster) -> dict[str, str]:
    """By what they are: two GPU nodes, found by different labels and one of them tainted, and one without GPU."""
    names = {kind: f"{ready.namespace}-{kind}" for kind in ("vendor", "gke", "cpu")}
    tainted = await ready.gpu_node(names["vendor"], gpus=2)
    await ready.patch(
        tainted, {"spec": {"taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]}}
    )
    gke = await ready.gpu_node(names["gke"], gpus=2, labels={"cloud.google.com/gke-accelerator": "nvidia-l4"})
    cpu = await ready.gpu_node(names["cpu"], gpus=0)
    for node in (gke, cpu):
        await ready.patch(node, {"metadata": {"labels": {"nvidia.com/gpu.present": None}}})
    return names


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: str(path.relative_to(EXAMPLES)))
async def test_every_manifest_is_taken_to_the_letter(ready: clusters.Cluster, path: pathlib.Path) -> None:
    """Server-side, with unknown fields refused."""
    for thing in read(path):
        plural, is_namespaced = await ready._resource(thing["apiVersion"], thing["kind"])
        root = f"/apis/{thing['apiVersion']}" if "/" in thing["apiVersion"] else f"/api/{thing['apiVersion']}"
        place = f"/namespaces/{ready.namespace}" if is_namespaced else ""
        if is_namespaced:
            thing["metadata"]["namespace"] = ready.namespace
        query = {"fieldManager": "test", "fieldValidation": "Strict", "dryRun": "All", "force": "true"}
        name = thing["metadata"]["name"]
        made = await ready.request(
            "PATCH", f"{root}{place}/{plural}/{name}", thing, "application/apply-patch+yaml", **query
        )
        assert made["metadata"]["name"] == name


def commands(place: str) -> list[list[str]]:
    text = (EXAMPLES / place / "README.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.splitlines() if line]


async def type_in(cluster: clusters.Cluster, words: list[str]) -> str:
    """As it stands in the README, from the top of the repository."""
    program = build.find(words[0])
    assert program is not None, words
    command = [str(program), *words[1:]]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig)},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )
    said, complaints = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, complaints.decode()
    assert not complaints, complaints.decode()  # the server's warnings
    return said.decode()


async def remove(cluster: clusters.Cluster, *places: str) -> None:
    """What the commands made, pods first: their namespace would wait for them."""
    for place in places:
        for file in sorted((EXAMPLES / place).glob("[0-9]*.yaml"), reverse=True):
            await test_deploy.kubectl(cluster, "delete", "--ignore-not-found", "--wait=true", "-f", str(file))


async def run_on(cluster: clusters.Cluster, namespace: str, count: int) -> list[str]:
    """The nodes of the exporter's pods, once so many are Ready."""
    found = await cluster.wait_until(lambda: cluster.ready_pods(f"app.kubernetes.io/name={NAME}", count, namespace))
    return sorted(pod["spec"]["nodeName"] for pod in found)


async def test_the_daemonset_by_its_readme_runs_on_every_gpu_node_and_no_other(
    ready: clusters.Cluster, nodes: dict[str, str]
) -> None:
    apply, look, from_api, from_logs, *privileged = commands("daemonset")
    try:
        await type_in(ready, apply)
        assert await run_on(ready, NAME, 2) == sorted([nodes["gke"], nodes["vendor"]])
        assert (await type_in(ready, look)).count("Running") == 2
        await type_in(ready, from_api)
        await type_in(ready, from_logs)
        daemon = await ready.get("apps/v1", "DaemonSet", NAME, NAME)
        assert "/var/log/pods" in _mounts(daemon["spec"]["template"])
        await type_in(ready, apply)  # what was chosen stays
        assert "/var/log/pods" in _mounts((await ready.get("apps/v1", "DaemonSet", NAME, NAME))["spec"]["template"])
        for command in privileged:
            await type_in(ready, command)
        daemon = await ready.get("apps/v1", "DaemonSet", NAME, NAME)
        assert daemon["spec"]["template"]["spec"]["containers"][0]["securityContext"]["privileged"] is True
    finally:
        await test_deploy.kubectl(ready, "delete", "--ignore-not-found", "-f", str(EXAMPLES / "names" / "api.yaml"))
        await remove(ready, "daemonset")


def _mounts(pod: Object) -> set[str]:
    return {each["mountPath"] for each in pod["spec"]["containers"][0]["volumeMounts"]}


async def test_the_deployment_by_its_readme_spreads_over_gpu_nodes(
    ready: clusters.Cluster, nodes: dict[str, str]
) -> None:
    apply, scale = commands("deployment")
    try:
        await type_in(ready, apply)
        assert await run_on(ready, NAME, 2) == sorted([nodes["gke"], nodes["vendor"]])
        await type_in(ready, scale)
        assert nodes["cpu"] not in await run_on(ready, NAME, 3)
    finally:
        await remove(ready, "deployment")


async def test_the_sidecar_by_its_readme_runs_with_its_workload(ready: clusters.Cluster, nodes: dict[str, str]) -> None:
    """In the namespace of whoever types: the manifests name none."""
    for command in commands("sidecar"):
        await type_in(ready, [*command, "-n", ready.namespace])
    (pod,) = await ready.wait_until(lambda: ready.ready_pods("gpu-idle-exporter=sidecar", 1))
    assert pod["spec"]["nodeName"] == nodes["gke"]
    monitor = await ready.get("monitoring.coreos.com/v1", "PodMonitor", "gpu-idle-exporter-sidecar")
    await ready.delete(monitor)
    await ready.delete(await ready.get("apps/v1", "Deployment", "my-gpu-app"))


async def test_what_prometheus_needs_is_taken(ready: clusters.Cluster) -> None:
    need("promtool")
    monitor, rules = commands("prometheus")
    (namespace,) = read("daemonset/00-namespace.yaml")
    await ready.apply(namespace)
    await type_in(ready, monitor)
    assert "SUCCESS: 4 rules found" in await type_in(ready, rules)


def scrape_config(*pods: Object) -> Object:
    """The example's, with the targets that Prometheus' discovery would find in these pods: not every build has it."""
    (config,) = yaml.safe_load((EXAMPLES / "prometheus" / "scrape-config.yaml").read_text())
    assert config.pop("kubernetes_sd_configs") == [{"role": "pod"}]
    found = [
        _discover(pod, one, port) for pod in pods for one in pod["spec"]["containers"] for port in one.get("ports", ())
    ]
    return {**config, "static_configs": found}


def _discover(pod: Object, one: Object, port: Object) -> Object:
    meta = pod["metadata"]
    facts = {
        "namespace": meta["namespace"], "pod_name": meta["name"], "pod_phase": pod["status"]["phase"],
        "pod_container_name": one["name"],
        "pod_container_port_name": port["name"], "pod_container_port_number": str(port["containerPort"]),
        **{f"pod_annotation_{re.sub('[^a-z]', '_', key)}": value for key, value in meta.get("annotations", {}).items()},
    }
    address = f"{pod['status']['podIP']}:{port['containerPort']}"
    return {"targets": [address], "labels": {f"__meta_kubernetes_{name}": value for name, value in facts.items()}}


def test_prometheus_takes_the_scrape_config(tmp_path: pathlib.Path) -> None:
    need("promtool")
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump({"scrape_configs": [scrape_config()]}))
    command = [str(build.need("promtool")), "check", "config", str(tmp_path / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 0, done.stderr


# ---- rights --------------------------------------------------------------------------------------------------------


def without_host(pod: Object) -> Object:
    """As the DaemonSet's README says: what to take out, and what to put in."""
    less = copy.deepcopy(pod)
    spec = less["spec"]
    (one,) = spec["containers"]
    del spec["hostPID"], spec["serviceAccountName"], one["securityContext"]["runAsUser"]
    one["securityContext"]["runAsNonRoot"] = True
    spec["volumes"] = [each for each in spec["volumes"] if "hostPath" not in each]
    kept = {each["name"] for each in spec["volumes"]}
    one["volumeMounts"] = [each for each in one["volumeMounts"] if each["name"] in kept]
    return less


LEVELS = {
    "daemonset": ("daemonset", "privileged"), "deployment": ("deployment", "privileged"),
    "privileged": ("privileged", "privileged"),
    "without-host": ("daemonset", "restricted"), "sidecar": ("sidecar", "restricted"),
}


@pytest.mark.parametrize("case", LEVELS)
async def test_pods_are_let_in_at_the_level_that_is_promised_and_need_it(ready: clusters.Cluster, case: str) -> None:
    place, promised = LEVELS[case]
    pod = template(place) if case != "without-host" else without_host(template(place))
    pod = {"apiVersion": "v1", "kind": "Pod", **pod, "metadata": {**pod["metadata"], "name": "tried"}}
    pod["spec"] = {**pod["spec"], "serviceAccountName": "default"}
    for level in ("restricted", "baseline", "privileged"):
        namespace = f"{ready.namespace}-{level}"
        await ready.make_namespace(namespace, {"pod-security.kubernetes.io/enforce": level})
        is_let_in = level == "privileged" or promised == "restricted"
        refused = pytest.raises(clusters.Refused, match=r"403: .*violates PodSecurity")
        with contextlib.nullcontext() if is_let_in else refused:
            await ready.request(
                "POST", f"/api/v1/namespaces/{namespace}/pods", pod, dryRun="All", fieldValidation="Strict"
            )
    (namespace_,) = read("daemonset/00-namespace.yaml")
    assert namespace_["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"


def test_no_right_is_given_until_it_is_chosen() -> None:
    assert [thing["kind"] for thing in read("daemonset/10-account.yaml")] == ["ServiceAccount"]
    assert {thing["kind"] for thing in read("names/api.yaml")} == {"ClusterRole", "ClusterRoleBinding"}
    (patch,) = read("names/logs.yaml")
    (mount,) = patch["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    assert mount == {"name": "pod-logs", "mountPath": exporter.Options().pod_logs_dir, "readOnly": True}


RIGHTS: test_deploy.Rights = {("", "pods"): test_deploy.READ, ("resource.k8s.io", "resourceslices"): test_deploy.READ}
OTHERS = {
    ("", "secrets"), ("", "configmaps"), ("", "nodes"), ("", "nodes/proxy"), ("", "namespaces"), ("", "pods/exec"),
    ("", "pods/log"),
    ("", "pods/status"), ("", "pods/eviction"), ("", "serviceaccounts/token"), ("", "events"), ("apps", "deployments"),
    ("apps", "daemonsets"), ("resource.k8s.io", "resourceclaims"), ("authentication.k8s.io", "tokenreviews"),
}


@pytest.mark.parametrize("namespace", ["", "default"], ids=["everywhere", "in one namespace"])
async def test_the_account_reads_pods_and_resource_slices_and_nothing_else(
    ready: clusters.Cluster, namespace: str
) -> None:
    await install_account(ready)
    user = f"system:serviceaccount:{ready.namespace}:{NAME}"

    async def allowed(group: str, resource: str) -> frozenset[str]:
        what, _, part = resource.partition("/")
        found = set()
        for verb in test_deploy.VERBS:
            asked = {"verb": verb, "group": group, "resource": what, "subresource": part, "namespace": namespace}
            body = {"spec": {"user": user, "resourceAttributes": asked}}
            if (
                await ready.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", body)
            )["status"]["allowed"]:
                found.add(verb)
        return frozenset(found)

    async def has_settled() -> bool:
        return bool(await allowed("", "pods"))

    await ready.wait_until(has_settled)
    expected = {one: RIGHTS.get(one, frozenset()) for one in RIGHTS.keys() | OTHERS}
    assert {one: await allowed(*one) for one in expected} == expected


async def install_account(cluster: clusters.Cluster) -> None:
    """The account and its role, with names of the test's own."""
    for thing in [*read("daemonset/10-account.yaml"), *read("names/api.yaml")]:
        thing["metadata"]["name"] = NAME if thing["kind"] == "ServiceAccount" else f"{NAME}-{cluster.namespace}"
        if thing["kind"] == "ServiceAccount":
            thing["metadata"]["namespace"] = cluster.namespace
        if thing["kind"] == "ClusterRoleBinding":
            thing["roleRef"]["name"] = f"{NAME}-{cluster.namespace}"
            thing["subjects"][0]["namespace"] = cluster.namespace
        await cluster.apply(thing)
