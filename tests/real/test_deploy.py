"""The manifests in deploy/ on a real API server: they install, they grant what they should and nothing else, and the
IdlePolicy definition takes what our own reader takes and refuses the rest.

Where a test needs no fixed names, `gpu-pruner-system` becomes the test's own namespace, and `my-team` another one.
"""

import asyncio
import functools
import os
import pathlib
import re
import subprocess
from collections.abc import Iterable
from typing import Any

import aiohttp
import pytest
import yaml

import fallow
from fallow import settings
from fallow.doors.cli import pruner
from fallow.model import kinds
from fallow.model.policies import idle, idle_crd
from tests import ROOT, objects
from tests.real import build, crds, history
from tests.real import cluster as clusters
from tests.real.conftest import need
from tests.unit.model.policies import test_idle_crd

DEPLOY = ROOT / "deploy"
NAMESPACE = "gpu-pruner-system"
POLICIES = "/apis/gpuautoscaler.io/v1alpha1/idlepolicies"
READ = frozenset({"get", "list", "watch"})
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")

Rights = dict[tuple[str, str], frozenset[str]]


def manifests(*places: str, namespace: str = NAMESPACE) -> list[dict[str, Any]]:
    """The objects in these files and folders, as `kubectl apply -f` takes them: a folder without what is below it."""
    paths = [DEPLOY / place for place in places]
    files = [file for path in paths for file in ([path] if path.is_file() else sorted(path.glob("*.yaml")))]
    texts = [file.read_text().replace(NAMESPACE, namespace).replace("my-team", f"{namespace}-team") for file in files]
    return [thing for text in texts for thing in objects.read(text) if thing["kind"] != "Kustomization"]


@functools.cache
def _render(place: str) -> str:
    need("kubectl")
    command = [str(build.need("kubectl")), "kustomize", str(DEPLOY / place)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def rendered(place: str, namespace: str = NAMESPACE) -> list[dict[str, Any]]:
    """The objects of an overlay, as `kubectl apply -k` sends them."""
    text = _render(place).replace(NAMESPACE, namespace).replace("my-team", f"{namespace}-team")
    return objects.read(text)


async def install(cluster: clusters.Cluster, *places: str) -> None:
    await install_things(cluster, manifests(*places, namespace=cluster.namespace))


async def install_things(cluster: clusters.Cluster, things: list[dict[str, Any]]) -> None:
    await cluster.apply_crds(*(thing for thing in things if thing["kind"] == "CustomResourceDefinition"))
    for thing in things:
        if thing["kind"] not in ("CustomResourceDefinition", "Namespace"):
            await cluster.apply(thing)


# ---- what the account may do -----------------------------------------------------------------------------------------


def plural(kind: kinds.Kind) -> tuple[str, str]:
    return kind.group, f"{kind.kind.lower()}s"


KINDS = frozenset(plural(kind) for kind in kinds.KINDS if kind.letter)
STEERING = {("keda.sh", "scaledobjects"), ("kueue.x-k8s.io", "workloads")}
LOOKED_AT = {
    ("", "pods"), ("", "nodes"), ("", "namespaces"), ("autoscaling", "horizontalpodautoscalers"),
    ("policy", "poddisruptionbudgets"),
    ("serving.knative.dev", "configurations"), ("serving.knative.dev", "revisions"),
    ("resource.k8s.io", "resourceclaims"), ("gpuautoscaler.io", "idlepolicies"),
    ("apiextensions.k8s.io", "customresourcedefinitions"),
}
FOREIGN = {
    ("", "secrets"), ("", "configmaps"), ("", "events"), ("", "services"), ("", "pods/exec"), ("", "pods/eviction"),
    ("", "serviceaccounts/token"), ("", "persistentvolumeclaims"), ("apps", "daemonsets"),
    ("apps", "deployments/scale"), ("events.k8s.io", "events"),
    ("coordination.k8s.io", "leases"), ("rbac.authorization.k8s.io", "clusterroles"),
    ("gpuautoscaler.io", "idlepolicies/status"),
    ("authentication.k8s.io", "tokenreviews"), ("authorization.k8s.io", "subjectaccessreviews"),
    ("example.com", "things/scale"),
}
EVERYTHING = KINDS | STEERING | LOOKED_AT | FOREIGN

READER: Rights = dict.fromkeys(KINDS | STEERING | LOOKED_AT, READ) | {
    ("gpuautoscaler.io", "idlepolicies/status"): frozenset({"patch"})
}


def acting(letters: str) -> Rights:
    """The rights that pausing kinds of these letters adds."""
    rights: Rights = dict.fromkeys(STEERING, frozenset({"patch"})) | {
        ("events.k8s.io", "events"): frozenset({"create", "patch"})
    }
    rights |= {plural(kind): frozenset({"patch"}) for kind in kinds.KINDS if kind.letter and kind.letter in letters}
    if "x" in letters:
        rights |= {
            ("apps", "deployments/scale"): frozenset({"get", "patch"}),
            ("example.com", "things/scale"): frozenset({"get", "patch"})
        }
    return rights


DASHBOARD: Rights = {
    ("authentication.k8s.io", "tokenreviews"): frozenset({"create"}),
    ("authorization.k8s.io", "subjectaccessreviews"): frozenset({"create"}),
}


def together(*rights: Rights) -> Rights:
    return {one: frozenset().union(*(each.get(one, frozenset()) for each in rights)) for one in EVERYTHING}


async def may(
    cluster: clusters.Cluster, verb: str, group: str, resource: str, *, namespace: str = "", name: str = ""
) -> bool:
    what, _, part = resource.partition("/")
    asked = {"verb": verb, "group": group, "resource": what, "subresource": part, "namespace": namespace, "name": name}
    body = {"spec": {"user": f"system:serviceaccount:{cluster.namespace}:gpu-pruner", "resourceAttributes": asked}}
    answer = await cluster.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", body)
    return bool(answer["status"]["allowed"])


async def rights(cluster: clusters.Cluster, over: Iterable[tuple[str, str]], namespace: str = "") -> Rights:
    """What the API server says of each verb on each resource; everywhere where no namespace is given."""

    async def look(group: str, resource: str) -> tuple[tuple[str, str], frozenset[str]]:
        answers = [await may(cluster, verb, group, resource, namespace=namespace) for verb in VERBS]
        return (group, resource), frozenset(verb for verb, yes in zip(VERBS, answers, strict=True) if yes)

    return dict(await asyncio.gather(*(look(*one) for one in over)))


async def has_settled(cluster: clusters.Cluster, verb: str, group: str, resource: str, namespace: str = "") -> None:
    """The authorizer learns of new roles through its own watch."""
    await cluster.wait_until(lambda: may(cluster, verb, group, resource, namespace=namespace))


async def test_the_reader_reads_what_it_must_and_writes_only_the_status_of_policies(cluster):
    await install(cluster, "base/20-reader.yaml")
    await has_settled(cluster, "patch", "gpuautoscaler.io", "idlepolicies/status")
    assert await rights(cluster, EVERYTHING) == together(READER)


@pytest.mark.parametrize(
    "letters", ["", "l", "m", "o", "w", "y", "j", "c", "k", "x"], ids=lambda letters: letters or "default"
)
async def test_acting_adds_patches_of_the_enabled_kinds_and_events(cluster, letters):
    more = (f"letters/{letter}.yaml" for letter in letters)
    await install(cluster, "base/20-reader.yaml", "acting/10-role.yaml", *more)
    expected = together(READER, acting("drsin" + letters))
    await cluster.wait_until(lambda: _agrees(cluster, expected))
    assert await rights(cluster, EVERYTHING) == expected


async def _agrees(cluster: clusters.Cluster, expected: Rights) -> bool:
    return await rights(cluster, EVERYTHING) == expected


def test_every_letter_beyond_the_default_has_its_file():
    files = {file.stem for file in (DEPLOY / "letters").glob("*.yaml")}
    assert files == {kind.letter for kind in kinds.KINDS if kind.letter} - set("drsin") | {"x"}


async def test_in_its_own_namespace_it_may_hold_its_lease_read_its_prices_and_nothing_else(cluster):
    await install(cluster, "base/20-reader.yaml")
    home = cluster.namespace
    await has_settled(cluster, "create", "coordination.k8s.io", "leases", home)

    async def allowed(group: str, resource: str, name: str) -> set[str]:
        return {verb for verb in VERBS if await may(cluster, verb, group, resource, namespace=home, name=name)}

    assert await allowed("coordination.k8s.io", "leases", "gpu-pruner") == {"get", "create", "update"}
    assert await allowed("coordination.k8s.io", "leases", "somebody-else") == {"create"}
    assert await allowed("", "secrets", "gpu-pruner-slack-webhook") == set()
    assert await allowed("", "configmaps", "gpu-pruner-acting") == set()
    assert await allowed("", "configmaps", "gpu-autoscaler-prices") == {"get"}
    assert not await may(cluster, "create", "coordination.k8s.io", "leases", namespace="default")


async def test_a_dashboard_adds_reviews_and_the_secrets_that_are_named(cluster):
    await install(cluster, "base/20-reader.yaml", "dashboard/10-role.yaml")
    expected, home = together(READER, DASHBOARD), cluster.namespace
    await cluster.wait_until(lambda: _agrees(cluster, expected))
    assert await rights(cluster, EVERYTHING) == expected
    for name, allowed in (("gpu-pruner-slack-webhook", True), ("gpu-pruner-config", True), ("another", False)):
        assert await may(cluster, "get", "", "secrets", namespace=home, name=name) is allowed
    assert not await may(cluster, "list", "", "secrets", namespace=home)


async def test_one_namespace_needs_no_right_outside_it(cluster):
    team = f"{cluster.namespace}-team"
    await cluster.make_namespace(team)
    await install_things(cluster, rendered("one-namespace/acting", cluster.namespace))
    await has_settled(cluster, "patch", "apps", "deployments", team)
    await has_settled(cluster, "create", "events.k8s.io", "events", cluster.namespace)
    cluster_wide = {
        ("", "nodes"), ("apiextensions.k8s.io", "customresourcedefinitions"), ("gpuautoscaler.io", "idlepolicies")
    }
    readable: Rights = dict.fromkeys(
        KINDS | STEERING | LOOKED_AT - cluster_wide, READ
    ) | {("", "namespaces"): frozenset({"get"})}
    assert await rights(cluster, EVERYTHING, namespace=team) == together(readable, acting("drsin"))
    events = frozenset({"create", "patch"})
    about_itself: Rights = {
        ("coordination.k8s.io", "leases"): frozenset({"create"}), ("events.k8s.io", "events"): events
    }
    assert await rights(cluster, EVERYTHING, namespace=cluster.namespace) == together(about_itself)
    for elsewhere in ("default", ""):
        assert await rights(cluster, EVERYTHING, namespace=elsewhere) == together()


async def test_an_administrator_may_let_it_see_nodes(cluster):
    await cluster.make_namespace(f"{cluster.namespace}-team")
    await install(cluster, "one-namespace/base/20-reader.yaml", "one-namespace/nodes")
    await has_settled(cluster, "list", "", "nodes")
    assert (await rights(cluster, [("", "nodes")]))["", "nodes"] == READ


# ---- installing ------------------------------------------------------------------------------------------------------


async def kubectl(cluster: clusters.Cluster, *words: str) -> str:
    program = build.find("kubectl")
    assert program is not None
    command = [str(program), "--kubeconfig", str(cluster.kubeconfig), *words]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    said, complaints = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, complaints.decode()
    return said.decode()


async def _deployment(cluster: clusters.Cluster) -> dict[str, Any]:
    return await cluster.get("apps/v1", "Deployment", "gpu-pruner", NAMESPACE)


async def test_one_command_installs_and_another_switches_on(cluster):
    """With the names of the manifests, and under the restricted pod security that its namespace asks for. Whether it
    acts is in an object that the base does not have: applying the base again, or before, changes nothing about it."""
    await cluster.gpu_node(f"{cluster.namespace}-node")
    try:
        await kubectl(cluster, "apply", "-k", str(DEPLOY / "base"))
        await cluster.wait_until(lambda: _is_available(cluster))
        assert await _apply_again(cluster) == []
        assert await _is_acting(cluster) is False
        await kubectl(cluster, "apply", "-k", str(DEPLOY / "acting"))
        await kubectl(cluster, "apply", "-f", str(DEPLOY / "acting" / "example-policy.yaml"))
        assert await _is_acting(cluster) is True
        assert await _apply_again(cluster) == []
        assert await _is_acting(cluster) is True
        await kubectl(cluster, "delete", "-f", str(DEPLOY / "acting" / "20-mode.yaml"))
        await kubectl(cluster, "apply", "-k", str(DEPLOY / "base"))
        assert await _is_acting(cluster) is False
    finally:
        for file in (
            "acting/example-policy.yaml", "acting/15-bounds.yaml", "acting/20-mode.yaml", "acting/10-role.yaml",
            "base/20-reader.yaml", "base/00-namespace.yaml",
        ):  # not the definition of policies: other tests use it
            await kubectl(cluster, "delete", "--ignore-not-found", "--wait=false", "-f", str(DEPLOY / file))


async def _apply_again(cluster: clusters.Cluster) -> list[str]:
    """What it changes. Of a PodDisruptionBudget kubectl always says so: its selector is replaced, by the same one."""
    said = (await kubectl(cluster, "apply", "-k", str(DEPLOY / "base"))).splitlines()
    assert len(said) == len(rendered("base"))
    return [line for line in said if not line.endswith("unchanged") and not line.startswith("poddisruptionbudget")]


async def _is_available(cluster: clusters.Cluster) -> bool:
    return (await _deployment(cluster)).get("status", {}).get("availableReplicas") == 2


async def _is_acting(cluster: clusters.Cluster) -> bool:
    """As the kubelet would start it: the ConfigMaps of envFrom in their order, then the arguments."""
    return "--run-mode=scale-down" in await arguments(cluster, _container(await _deployment(cluster)))


async def arguments(cluster: clusters.Cluster, container: dict[str, Any]) -> list[str]:
    found = [
        (one["configMapRef"], await cluster.find("v1", "ConfigMap", one["configMapRef"]["name"], NAMESPACE))
        for one in container["envFrom"]
    ]
    assert all(there or ref.get("optional") for ref, there in found)
    return expand(container, [there for _, there in found if there])


def expand(container: dict[str, Any], config_maps: list[dict[str, Any]]) -> list[str]:
    values = {name: value for there in config_maps for name, value in there["data"].items()}
    return [re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], arg) for arg in container["args"]]


def _container(deployment: dict[str, Any]) -> dict[str, Any]:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return container


def _the(kind: str, place: str) -> dict[str, Any]:
    (found,) = (thing for thing in rendered(place) if thing["kind"] == kind)
    return found


PLACES = ["base", "acting", "one-namespace/base", "one-namespace/acting"]
ONE = [f"--watch-namespaces={NAMESPACE}-team", "--policies=false"]
TELLS = "--cost-enforcement=false"
MODES = {
    "base": ["--run-mode=dry-run", "--dry-run-scope=client", "--require-policy=false", TELLS],
    "acting": ["--run-mode=scale-down", "--dry-run-scope=client", "--require-policy=true", TELLS],
    "one-namespace/base": ["--run-mode=dry-run", "--dry-run-scope=client", "--require-policy=false", TELLS, *ONE],
    "one-namespace/acting": ["--run-mode=scale-down", "--dry-run-scope=client", "--require-policy=false", TELLS, *ONE],
}


@pytest.mark.parametrize("place", PLACES)
def test_each_overlay_starts_it_as_it_should(place):
    by_name = {thing["metadata"]["name"]: thing for thing in rendered(place) if thing["kind"] == "ConfigMap"}
    container = _container(_the("Deployment", place))
    named = [one["configMapRef"]["name"] for one in container["envFrom"]]
    assert named == ["gpu-pruner", "gpu-pruner-acting", "gpu-pruner-enforcement"]
    given = expand(container, [by_name[name] for name in named if name in by_name])
    assert given == ["-d", "--log-format=json", *MODES[place]]
    environ = {"PROMETHEUS_URL": by_name["gpu-pruner"]["data"]["PROMETHEUS_URL"], "POD_NAMESPACE": NAMESPACE}
    read = settings.read_flags(pruner.gpu_pruner.make_context("gpu-pruner", given).params, environ)
    assert (read.dry_run_scope, read.log_format, read.own_namespace) == ("client", "json", NAMESPACE)
    assert read.mandate.require_policy is (place == "acting")


@pytest.mark.parametrize("place", ["base", "one-namespace/base"])
def test_the_acting_deployment_is_the_very_same(place):
    assert _the("Deployment", place) == _the("Deployment", place.replace("base", "acting"))


@pytest.mark.parametrize("place", PLACES)
def test_the_pod_is_locked_down_probed_spread_and_of_this_version(place):
    deployment = _the("Deployment", place)
    container, pod = _container(deployment), deployment["spec"]["template"]["spec"]
    assert container["image"] == f"fallow:{fallow.__version__}"
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }
    assert pod["securityContext"]["runAsNonRoot"] is True
    probes = {probe: container[probe]["httpGet"] for probe in ("livenessProbe", "readinessProbe")}
    assert probes == {
        "livenessProbe": {"path": "/healthz", "port": "metrics"},
        "readinessProbe": {"path": "/readyz", "port": "metrics"}
    }
    known = {name for flag in settings.FLAGS for name in (flag.name, flag.short)}
    assert {arg.split("=")[0] for arg in container["args"]} <= known
    variables = {flag.variable for flag in settings.FLAGS} | {"POD_NAME", "POD_NAMESPACE", "POD_UID"}
    assert {one["name"] for one in container["env"]} <= variables
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    (spread,) = pod["topologySpreadConstraints"]
    budget, network = _the("PodDisruptionBudget", place), _the("NetworkPolicy", place)
    assert deployment["spec"]["replicas"] == 2
    assert (spread["topologyKey"], budget["spec"]["maxUnavailable"]) == ("kubernetes.io/hostname", 1)
    for selector in (spread["labelSelector"], budget["spec"]["selector"], network["spec"]["podSelector"]):
        assert selector["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize("place", PLACES)
def test_nothing_is_offered_to_the_outside(place):
    service, network, container = _the("Service", place), _the("NetworkPolicy", place), _container(
        _the("Deployment", place)
    )
    assert (service["metadata"]["name"], service["spec"]["type"]) == ("gpu-pruner-dashboard", "ClusterIP")
    assert [port["port"] for port in service["spec"]["ports"]] == [8080]
    assert [port["containerPort"] for port in container["ports"]] == [8080]
    scrapers, replicas = network["spec"]["ingress"]
    assert [port["port"] for rule in (scrapers, replicas) for port in rule["ports"]] == [8080, 8080, 3002]
    assert replicas["from"] == [{"podSelector": network["spec"]["podSelector"]}], "nobody but ourselves"
    assert network["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert all(rule["ports"] for rule in network["spec"]["egress"]), "never any port"


@pytest.mark.parametrize("place", [*PLACES, "monitoring", "enforcement", "webhook", "consolidation"])
async def test_the_server_takes_every_object_of_every_overlay(cluster, place):
    """As they stand, with unknown fields refused; nothing is kept."""
    await cluster.apply_crds(SERVICE_MONITOR, PROMETHEUS_RULE)
    await cluster.make_namespace(f"{cluster.namespace}-team")
    for thing in rendered(place, cluster.namespace):
        path = await cluster._path_of(await cluster._placed(thing))
        query = {"dryRun": "All", "fieldManager": "test", "fieldValidation": "Strict", "force": "true"}
        await cluster.request("PATCH", path, thing, "application/apply-patch+yaml", **query)


BOOKS = {
    "cost": (1, "/var/lib/fallow/costs.sqlite", "/var/lib/fallow/costs.spool"),
    "cost/postgres": (2, None, "/var/lib/fallow/costs.spool"),
}


def write_overlay(folder, place, component):
    named = {"resources": place, "components": component}
    lines = [f"{what}: [{os.path.relpath(DEPLOY / which, folder)}]" for what, which in named.items()]
    (folder / "kustomization.yaml").write_text("\n".join(lines))


async def render_component(cluster, folder, place, component):
    """The Deployment with it, and its settings; the server takes all of it."""
    write_overlay(folder, place, component)
    things = rendered(str(folder), cluster.namespace)
    for thing in things:
        path = await cluster._path_of(await cluster._placed(thing))
        query = {"dryRun": "All", "fieldManager": "test", "fieldValidation": "Strict", "force": "true"}
        await cluster.request("PATCH", path, thing, "application/apply-patch+yaml", **query)
    (deployment,) = (thing for thing in things if thing["kind"] == "Deployment")
    by_name = {thing["metadata"]["name"]: thing for thing in things if thing["kind"] == "ConfigMap"}
    return deployment, [by_name[one] for one in ("gpu-pruner", "gpu-pruner-acting") if one in by_name]


@pytest.mark.parametrize("place", ["base", "acting"])
async def test_a_component_switches_the_dashboard_on_with_one_key_for_all_replicas(cluster, tmp_path, place):
    deployment, maps = await render_component(cluster, tmp_path, place, "dashboard")
    (tmp_path / "key").write_text("k" * 64)
    container, key = _container(deployment), ("/etc/gpu-pruner/session/key", str(tmp_path / "key"))
    given = [arg.replace(*key) for arg in expand(container, maps)]
    read = settings.read_flags(pruner.gpu_pruner.make_context("gpu-pruner", given).params, {})
    assert (read.serving.auth, read.serving.session_key.reveal()) == ("kube", b"k" * 64)
    assert (read.loop.dashboard_address, deployment["spec"]["replicas"]) == (("0.0.0.0", 8080), 2)
    [mount] = container["volumeMounts"]
    [volume] = deployment["spec"]["template"]["spec"]["volumes"]
    assert (mount["mountPath"], mount["name"]) == ("/etc/gpu-pruner/session", volume["name"])
    assert volume["secret"]["secretName"] == "gpu-pruner-session-key"
    assert "optional" not in volume["secret"]  # a key of its own in each would be worse than waiting for it


@pytest.mark.parametrize("component", BOOKS)
@pytest.mark.parametrize("place", ["base", "acting"])
async def test_a_component_switches_the_books_on(cluster, tmp_path, component, place):
    """The server takes it, every flag is known, and the books have a place that outlives the process."""
    deployment, maps = await render_component(cluster, tmp_path, place, component)
    (tmp_path / "dsn").write_text("postgresql://somewhere")
    dsn = ("/etc/fallow/cost/dsn", str(tmp_path / "dsn"))
    given = [arg.replace(*dsn) for arg in expand(_container(deployment), maps)]
    read = settings.read_flags(pruner.gpu_pruner.make_context("gpu-pruner", given).params, {})
    replicas, file, spool = BOOKS[component]
    assert (read.cost.enabled, read.cost_store.path, read.cost_store.spool) == (True, file, spool)
    assert (read.cost_store.dsn is None, deployment["spec"]["replicas"]) == (file is not None, replicas)
    mounted = {one["mountPath"] for one in _container(deployment)["volumeMounts"]}
    assert str(pathlib.PurePosixPath(spool).parent) in mounted


_OPERATOR = functools.partial(crds.crd, "monitoring.coreos.com")
SERVICE_MONITOR = _OPERATOR("ServiceMonitor", ("v1",), {"selector": crds.ANY, "endpoints": crds.LIST})
PROMETHEUS_RULE = _OPERATOR("PrometheusRule", ("v1",), {"groups": crds.LIST})


def test_the_service_monitor_keeps_our_labels_and_finds_the_service():
    monitor, service = _the("ServiceMonitor", "monitoring"), _the("Service", "base")
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint == {"port": "metrics", "interval": "30s", "honorLabels": True}
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}


async def test_prometheus_takes_the_alerts_and_answers_each(prometheus, tmp_path):
    groups = _the("PrometheusRule", "monitoring")["spec"]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(groups))
    command = [str(build.need("promtool")), "check", "rules", str(tmp_path / "rules.yaml")]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 0, done.stderr
    ours = {"namespace": NAMESPACE, "instance": "10.0.0.9:8080"}
    for name, value, labels in (
        ("fallow_build_info", 1.0, {}), ("fallow_idle_leader", 1.0, {}),
        ("fallow_idle_source_up", 0.0, {"source": "prometheus"}),
        ("fallow_idle_last_success_timestamp_seconds", prometheus.now - 7200, {}), ("fallow_idle_frozen", 1.0, {}),
        ("fallow_idle_gpus", 6.0, {"state": "unknown", "model": "a"}),
        ("fallow_idle_gpus", 2.0, {"state": "idle", "model": "a"}),
        ("process_resident_memory_bytes", 5e8, {}), ("fallow_watch_age_seconds", 1000.0, {"resource": "pods"}),
        ("fallow_idle_lost_signals", 1.0, {"signal": "dram"}), ("gpu_autoscaler_stuck_nodes", 1.0, {}),
    ):
        prometheus.series(name, {**ours, **labels}, constant=value)
    rising = [float(step // 20) for step in range(120)]
    for name, labels in (
        ("gpu_pruner_scale_failures_total", {}), ("fallow_idle_fights_total", {"kind": "Deployment"}),
        ("fallow_idle_actions_total", {"action": "resume", "result": "failed"}),
        ("fallow_idle_notices_total", {"channel": "event", "result": "failed"}),
        ("fallow_api_requests_total", {"verb": "patch", "code": "403"}),
    ):
        prometheus.series(name, {**ours, **labels}, values=rising)
    await prometheus.start()
    fires = {rule["alert"] for rule in groups["groups"][0]["rules"] if await _ask(prometheus, rule["expr"])}
    calm = {"GpuPrunerGone", "GpuPrunerNoLeader", "GpuPrunerTwoLeaders"}
    assert fires == {rule["alert"] for rule in groups["groups"][0]["rules"]} - calm


async def _ask(prometheus: history.PrometheusWorld, query: str) -> list[Any]:
    async with aiohttp.ClientSession() as http, http.get(
        f"{prometheus.url}/api/v1/query", params={"query": query, "time": str(prometheus.now)}
    ) as answer:
        body = await answer.json()
    assert body["status"] == "success", body
    found: list[Any] = body["data"]["result"]
    return found


def test_openshift_gets_its_binding():
    assert [(each["metadata"]["name"], each["roleRef"]["name"]) for each in manifests("openshift")] == [
        ("gpu-pruner-monitoring-access", "cluster-monitoring-view"),
        ("gpu-pruner-nonroot", "system:openshift:scc:nonroot-v2"),
    ]


# ---- IdlePolicy ------------------------------------------------------------------------------------------------------

# Only our reader can know these; the policy is then stored and shown as not Ready.
BEYOND_A_SCHEMA = {
    "window-too-short", "for-ever", "no-gpu-need-be-idle", "open-bracket", "look-ahead", "folder-for-zone",
    "slack-without-an-address", "a-setting-of-another-type",
} | {
    case for case in test_idle_crd.BAD if case.endswith("-not-yet")
}


async def write(cluster: clusters.Cluster, name: str, spec: Any) -> dict[str, Any]:
    """As kubectl does it: unknown fields are refused."""
    body = {"apiVersion": "gpuautoscaler.io/v1alpha1", "kind": "IdlePolicy", "metadata": {"name": name}, "spec": spec}
    made: dict[str, Any] = await cluster.request("POST", POLICIES, body, fieldValidation="Strict")
    return made


@pytest.fixture
async def defined(cluster):
    await cluster.apply_crds(idle_crd.define())
    yield cluster
    await cluster.request("DELETE", POLICIES)


@pytest.mark.parametrize("example", test_idle_crd.EXAMPLES, ids=lambda path: path.stem)
async def test_the_api_server_takes_the_examples_and_changes_nothing_in_their_meaning(defined, example):
    original = yaml.safe_load(example.read_text())
    ours = idle_crd.parse(original)
    stored = idle_crd.parse(await write(defined, example.stem, original["spec"]))
    assert stored.invalid == ()
    assert (stored.rule, stored.priority, stored.classes) == (ours.rule, ours.priority, ours.classes)
    assert (stored.namespace_selector, stored.workload_selector, stored.pod_selector) == (
        ours.namespace_selector, ours.workload_selector, ours.pod_selector,
    )
    assert (len(stored.namespaces), len(stored.gpu_models)) == (len(ours.namespaces), len(ours.gpu_models))


async def test_the_api_server_shows_every_default(defined):
    stored = (await write(defined, "empty", {}))["spec"]
    assert test_idle_crd.parse(**stored).rule == test_idle_crd.parse().rule
    assert stored["priority"] == 0
    assert stored["action"]["type"] == "report"
    assert stored["notice"]["channels"] == [{"name": "event", "type": "event"}]
    assert stored["windows"] == {"goneIdle": "30m", "grace": "5m"}, "neverUsed follows goneIdle"
    assert not stored.keys() & {"kinds", "limits", "schedule", "namespaceSelector"}


@pytest.mark.parametrize("case", test_idle_crd.BAD)
async def test_the_api_server_refuses_what_our_reader_refuses(defined, case):
    spec, sentence = test_idle_crd.BAD[case]
    if case in BEYOND_A_SCHEMA:
        stored = idle_crd.parse(await write(defined, "bad", spec))
        assert stored.invalid[0].startswith(sentence)
        return
    with pytest.raises(clusters.Refused) as refused:
        await write(defined, "bad", spec)
    assert refused.value.code in (400, 422)
    field = sentence.split(": ")[0].removesuffix(".key").removesuffix(".type")
    assert field in str(refused.value)


async def test_a_policy_needs_a_spec(defined):
    with pytest.raises(clusters.Refused, match="spec: Required value"):
        await write(defined, "none", None)


async def test_the_status_is_taken_and_its_numbers_are_columns(defined):
    stored = await write(defined, "told", {"priority": 5})
    soon = idle.NextAction("Deployment", "ml", "llm", 1_800_000_600.0)
    tally = idle.Tally(
        matched_workloads=3, idle_workloads=2, idle_gpus=8, paused_workloads=1, acknowledged_workloads=0,
        next_actions=(soon,),
    )
    body = idle_crd.status(
        idle_crd.parse(stored), tally, previous={}, trouble=None, freeze=None, now=1_800_000_000.0,
    )
    body["status"]["savedGPUHours"] = 1.5  # a number that the books will fill
    path = f"{POLICIES}/told/status"
    answer = await defined.request("PATCH", path, body, "application/merge-patch+json", fieldValidation="Strict")
    expected = {key: value for key, value in body["status"].items() if value is not None}
    assert answer["status"] == expected
    row = (await kubectl(defined, "get", "idp", "told")).splitlines()
    assert row[0].split() == ["NAME", "PRIORITY", "ACTION", "IDLE", "PAUSED", "AGE"]
    assert row[1].split()[:5] == ["told", "5", "report", "2", "1"]
