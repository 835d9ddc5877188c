"""The manifests in deploy/ on a real API server: they install, they grant what they should and nothing else, and the
IdlePolicy definition takes what our own reader takes and refuses the rest.

Where a test needs no fixed names, `gpu-pruner-system` becomes the test's own namespace, and `my-team` another one.
"""

import asyncio
import shlex
from collections.abc import Iterable
from typing import Any

import pytest
import yaml

import fallow
from fallow import names, settings
from fallow.model import kinds
from fallow.model.policies import idle, idle_crd
from tests import ROOT
from tests.real import build
from tests.real import cluster as clusters
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
    return [thing for text in texts for thing in yaml.safe_load_all(text) if thing]


async def install(cluster: clusters.Cluster, *places: str) -> None:
    things = manifests(*places, namespace=cluster.namespace)
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
    await install(cluster, "20-reader.yaml")
    await has_settled(cluster, "patch", "gpuautoscaler.io", "idlepolicies/status")
    assert await rights(cluster, EVERYTHING) == together(READER)


@pytest.mark.parametrize(
    "letters", ["", "l", "m", "o", "w", "y", "j", "c", "k", "x"], ids=lambda letters: letters or "default"
)
async def test_acting_adds_patches_of_the_enabled_kinds_and_events(cluster, letters):
    await install(cluster, "20-reader.yaml", "acting/10-role.yaml", *(f"letters/{letter}.yaml" for letter in letters))
    expected = together(READER, acting("drsin" + letters))
    await cluster.wait_until(lambda: _agrees(cluster, expected))
    assert await rights(cluster, EVERYTHING) == expected


async def _agrees(cluster: clusters.Cluster, expected: Rights) -> bool:
    return await rights(cluster, EVERYTHING) == expected


def test_every_letter_beyond_the_default_has_its_file():
    files = {file.stem for file in (DEPLOY / "letters").glob("*.yaml")}
    assert files == {kind.letter for kind in kinds.KINDS if kind.letter} - set("drsin") | {"x"}


async def test_in_its_own_namespace_it_may_hold_its_lease_and_read_two_secrets(cluster):
    await install(cluster, "20-reader.yaml")
    home = cluster.namespace
    await has_settled(cluster, "create", "coordination.k8s.io", "leases", home)

    async def allowed(group: str, resource: str, name: str) -> set[str]:
        return {verb for verb in VERBS if await may(cluster, verb, group, resource, namespace=home, name=name)}

    assert await allowed("coordination.k8s.io", "leases", "gpu-pruner") == {"get", "create", "update"}
    assert await allowed("coordination.k8s.io", "leases", "somebody-else") == {"create"}
    assert await allowed("", "secrets", "gpu-pruner-slack-webhook") == {"get"}
    assert await allowed("", "secrets", "gpu-pruner-config") == {"get"}
    assert await allowed("", "secrets", "other") == set()
    assert not await may(cluster, "create", "coordination.k8s.io", "leases", namespace="default")


async def test_one_namespace_needs_no_right_outside_it(cluster):
    team = f"{cluster.namespace}-team"
    await cluster.make_namespace(team)
    await install(cluster, "one-namespace", "one-namespace/acting")
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
    await install(cluster, "one-namespace", "one-namespace/nodes")
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


async def test_one_command_installs_and_another_switches_on_and_back(cluster):
    """With the names of the manifests, and under the restricted pod security that its namespace asks for."""
    await cluster.gpu_node(f"{cluster.namespace}-node")
    try:
        await kubectl(cluster, "apply", "-f", str(DEPLOY))
        await cluster.wait_until(lambda: _is_available(cluster))
        again = (await kubectl(cluster, "apply", "-f", str(DEPLOY))).splitlines()
        assert again
        assert all(line.endswith("unchanged") for line in again), again
        await kubectl(cluster, "apply", "-f", str(DEPLOY / "acting"))
        assert "--run-mode=scale-down" in _container(await _deployment(cluster))["args"]
        await kubectl(cluster, "delete", "-f", str(DEPLOY / "acting" / "10-role.yaml"))
        await kubectl(cluster, "apply", "-f", str(DEPLOY / "30-gpu-pruner.yaml"))
        assert "--run-mode=dry-run" in _container(await _deployment(cluster))["args"]
    finally:
        for file in (
            "30-gpu-pruner.yaml", "20-reader.yaml", "15-settings.yaml", "00-namespace.yaml", "acting/10-role.yaml"
        ):
            await kubectl(cluster, "delete", "--ignore-not-found", "--wait=false", "-f", str(DEPLOY / file))


async def _is_available(cluster: clusters.Cluster) -> bool:
    return (await _deployment(cluster)).get("status", {}).get("availableReplicas") == 1


def _container(deployment: dict[str, Any]) -> dict[str, Any]:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return container


def _the_deployment(*places: str) -> dict[str, Any]:
    (found,) = (thing for thing in manifests(*places) if thing["kind"] == "Deployment")
    return found


@pytest.mark.parametrize("place", [".", "one-namespace"], ids=["cluster", "one-namespace"])
def test_the_acting_deployment_is_the_same_but_for_its_run_mode(place):
    looking, acts = _the_deployment(place), _the_deployment(f"{place}/acting")
    args = _container(looking)["args"]
    assert "--run-mode=dry-run" in args
    _container(looking)["args"] = [arg.replace("dry-run", "scale-down") for arg in args]
    assert looking == acts


@pytest.mark.parametrize("place", [".", "one-namespace"], ids=["cluster", "one-namespace"])
def test_the_pod_is_locked_down_probed_and_of_this_version(place):
    container = _container(_the_deployment(place))
    assert container["image"] == f"fallow:{fallow.__version__}"
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }
    probes = {probe: container[probe]["httpGet"] for probe in ("livenessProbe", "readinessProbe")}
    assert probes == {
        "livenessProbe": {"path": "/healthz", "port": "metrics"},
        "readinessProbe": {"path": "/readyz", "port": "metrics"}
    }
    known = {name for flag in settings.FLAGS for name in (flag.name, flag.short)}
    assert {arg.split("=")[0] for arg in container["args"]} <= known
    variables = {flag.variable for flag in settings.FLAGS} | {"POD_NAME", "POD_NAMESPACE", "POD_UID"}
    assert {one["name"] for one in container["env"]} <= variables


def test_nothing_is_offered_to_the_outside():
    services = [thing for place in (".", "one-namespace") for thing in manifests(place) if thing["kind"] == "Service"]
    assert [
        (one["metadata"]["name"], one["spec"]["type"]) for one in services
    ] == [("gpu-pruner-dashboard", "ClusterIP")] * 2
    assert {port["port"] for one in services for port in one["spec"]["ports"]} == {8080, 3002}


def test_the_service_monitor_keeps_our_labels_and_finds_the_service():
    (monitor,) = manifests("monitoring")
    (service,) = (thing for thing in manifests(".") if thing["kind"] == "Service")
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint == {"port": "metrics", "interval": "30s", "honorLabels": True}
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}


def test_openshift_gets_its_binding():
    (binding,) = manifests("openshift")
    assert (binding["metadata"]["name"], binding["roleRef"]["name"]) == (
        "gpu-pruner-monitoring-access", "cluster-monitoring-view"
    )


async def test_the_documented_command_lists_what_is_paused(cluster):
    lines = (ROOT / "docs" / "installation.md").read_text().splitlines()
    (command,) = (line for line in lines if line.startswith("kubectl get deployments,"))
    paused, running = (
        clusters.replicated("apps/v1", "Deployment", name, replicas=0, gpus=1) for name in ("llm", "busy")
    )
    paused["metadata"]["annotations"] = {names.PAUSED_AT: "2026-11-15T09:30:00Z", "other": "x"}
    for thing in (paused, running):
        await cluster.apply(thing)
    said = await kubectl(cluster, *shlex.split(command)[1:])
    assert said.splitlines() == [f"Deployment/llm -n {cluster.namespace}"]


# ---- IdlePolicy ------------------------------------------------------------------------------------------------------

# Only our reader can know these; the policy is then stored and shown as not Ready.
BEYOND_A_SCHEMA = {
    "window-too-short", "for-ever", "no-gpu-need-be-idle", "open-bracket", "look-ahead", "folder-for-zone"
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
        idle_crd.parse(stored), tally, previous={}, trouble=None, frozen_until=None, frozen_because="",
        now=1_800_000_000.0,
    )
    body["status"]["savedGPUHours"] = 1.5  # a number that the books will fill
    path = f"{POLICIES}/told/status"
    answer = await defined.request("PATCH", path, body, "application/merge-patch+json", fieldValidation="Strict")
    expected = {key: value for key, value in body["status"].items() if value is not None}
    assert answer["status"] == expected
    row = (await kubectl(defined, "get", "idp", "told")).splitlines()
    assert row[0].split() == ["NAME", "PRIORITY", "ACTION", "IDLE", "PAUSED", "AGE"]
    assert row[1].split()[:5] == ["told", "5", "report", "2", "1"]
