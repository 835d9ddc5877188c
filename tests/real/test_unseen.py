"""What cannot be seen excuses nothing, on a real cluster: nodes, owners, autoscalers, clocks, kinds that went away.

The loop runs in this process, wired as always, so that a test says when a cycle is and what time it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import email.utils
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from fallow import loop, names, settings
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config
from fallow.model import decision
from fallow.model.decision import Reason
from fallow.wiring import daemon
from tests.real import cluster as clusters
from tests.real import crds, faults, history, product
from tests.real.scene import Scene
from tests.real.test_eyes import bare_pod, owned

ALL = ["*"]
RIGHTS = [  # to everything that steers or guards workloads, whatever earlier tests have brought; not to example.com
    {"apiGroups": [group], "resources": ALL, "verbs": ALL}
    for group in (
        "", "apps", "batch", "jobset.x-k8s.io", "autoscaling", "policy", "keda.sh", "kueue.x-k8s.io",
        "coordination.k8s.io", "events.k8s.io", "apiextensions.k8s.io", "resource.k8s.io", names.GROUP,
    )
]


@pytest.fixture
async def scene(cluster: clusters.Cluster, prometheus: history.PrometheusWorld) -> Scene:
    return await Scene(cluster, prometheus).prepare()


@contextlib.asynccontextmanager
async def looping(
    scene: Scene, *, kubeconfig: Path | None = None, clock: Callable[[], float] = time.time, **flags: Any
) -> AsyncIterator[loop.Loop]:
    """A daemon that acts, kept to the scene's namespace; the test drives its cycles."""
    given = {
        "kubeconfig": str(kubeconfig or scene.kubeconfig), "prometheus_url": scene.prometheus.url,
        "prometheus_auth": "none", "daemon_mode": True, "run_mode": "scale-down", "enabled_resources": "drsj",
        "watch_namespaces": scene.namespace, "confirm_cycles": "1", "max_percent_per_hour": "100", "policies": "false",
        "freeze_min_gpus": "1000", "metrics_addr": "", **flags,
    }
    options = settings.read_flags(given, {"POD_NAMESPACE": f"{scene.namespace}-own"})
    async with daemon.assemble(options, clock) as made:
        assert await made.loop.begin()
        try:
            yield made.loop
        finally:
            await made.loop.release()


async def tick(story: loop.Loop) -> decision.Cycle:
    cycle = await story.tick(daemon.IDLE)
    assert isinstance(cycle, decision.Cycle)
    return cycle


async def findings(story: loop.Loop) -> dict[str, decision.Finding]:
    """Of one cycle, by name."""
    cycle = await tick(story)
    assert cycle.plan is not None, cycle.failure
    found = [cycle.plan.findings[index] for index in range(len(cycle.plan.findings))]
    return {finding.workload.ref.name: finding for finding in found}


async def replicas(scene: Scene, name: str = "llm") -> int:
    found = await scene.cluster.get("apps/v1", "Deployment", name)
    return int(found["spec"]["replicas"])


# ---- one object that cannot be read ----

DEEP = "[" * 4000 + "]" * 4000


@pytest.mark.accepts("idle", 45)
async def test_objects_that_are_nested_too_deep_stop_nobody_else(scene: Scene) -> None:
    cluster = scene.cluster
    await scene.deployment()
    await scene.begin()
    marked = clusters.replicated("apps/v1", "Deployment", "evil", 0, 0)
    marked["metadata"]["annotations"] = {names.ORIGINAL_STATE: f'{{"v":1,"fields":{{"/spec/replicas":{DEEP}}}}}'}
    await cluster.create(marked)
    claim = (
        '{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim","metadata":{"name":"deep"},"spec":{"devices":'
        '{"requests":[{"name":"gpu","exactly":{"deviceClassName":"x.example.com"}}],"config":[{"opaque":'
        f'{{"driver":"x.example.com","parameters":{{"a":{DEEP}}}}}}}]}}}}}}'
    )
    access = config.load_access(kubeconfig=str(scene.kubeconfig), context=None, environment={})
    async with kube.Api(access) as api:
        path = f"/apis/resource.k8s.io/v1/namespaces/{scene.namespace}/resourceclaims"
        await api.request("POST", path, body=claim.encode())
    async with looping(scene) as story:
        cycle = await tick(story)
        assert cycle.plan is not None, cycle.failure
        assert cycle.snapshot is not None
        (why,) = [each.because for each in cycle.snapshot.missing if each.what == "resourceclaims.resource.k8s.io"]
        assert why == f"1 of them could not be read, such as {scene.namespace}/deep"

        async def is_paused() -> bool:
            await tick(story)
            return await replicas(scene) == 0

        await cluster.wait_until(is_paused)


# ---- owners ----


@pytest.mark.accepts("idle", 41)
async def test_a_child_of_a_kind_that_may_not_be_read_keeps_its_job_set(scene: Scene) -> None:
    cluster = scene.cluster
    await cluster.apply_crds(crds.KINDS["JobSet"], crds.KINDS["Opaque"])
    version = "jobset.x-k8s.io/v1alpha2"
    top = await cluster.apply({"apiVersion": version, "kind": "JobSet", "metadata": {"name": "big"}, "spec": {}})
    await scene.quiet(owned(clusters.job("idle"), top))
    child = owned({"apiVersion": "example.com/v1", "kind": "Opaque", "metadata": {"name": "c"}, "spec": {}}, top)
    busy = await cluster.create(owned(bare_pod("busy", node=scene.node), await cluster.apply(child)))
    await cluster.wait_until(lambda: cluster.ready_pods("app=busy", 1))
    (aged,) = await cluster.age("app=busy", 90)
    scene.measure(aged, 0.9)
    await scene.begin()
    eve = await cluster.service_account("eve", RIGHTS)
    async with looping(scene, kubeconfig=eve) as story:
        found = (await findings(story))["big"]
        assert (found.reason, found.workload.trouble) == (Reason.OwnerLookupFailed, None)
        assert "pod busy may be part of it" in found.because
        assert "suspend" not in (await cluster.get(version, "JobSet", "big"))["spec"]
        await cluster.delete(busy, gracePeriodSeconds="0")  # the proof that nothing else held us back
        await cluster.wait_until(lambda: _is_gone(cluster, "busy"))

        async def is_suspended() -> bool:
            await tick(story)
            return (await cluster.get(version, "JobSet", "big"))["spec"].get("suspend") is True

        await cluster.wait_until(is_suspended)


@pytest.mark.accepts("idle", 41)
async def test_pods_of_another_tenant_take_no_child_out_of_a_workload(scene: Scene) -> None:
    """They name the ReplicaSet of the busy worker, by its uid, as a DaemonSet and as their own."""
    cluster, evil = scene.cluster, f"a-{scene.namespace}"  # listed before the victim
    await cluster.apply_crds(crds.KINDS["InferenceService"])
    top = await cluster.create({
        "apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService",
        "metadata": {"name": "bert", "annotations": {"serving.kserve.io/deploymentMode": "RawDeployment"}},
        "spec": {"predictor": {"minReplicas": 1}},
    })
    await scene.quiet(owned(clusters.replicated("apps/v1", "Deployment", "head", 1, 1), top))
    (worker,) = await scene.quiet(owned(clusters.replicated("apps/v1", "Deployment", "worker", 1, 1), top), busy=0.97)
    await scene.begin()
    await cluster.make_namespace(evil)
    named = worker["metadata"]["ownerReferences"][0]
    for name, says in (("e1", {"kind": "DaemonSet", "name": "zzz"}), ("e2", {"kind": "DaemonSet"}), ("e3", {})):
        fake = bare_pod(name)
        fake["metadata"] |= {
            "namespace": evil, "finalizers": ["example.com/stay"],  # lest the garbage collector finds them out
            "ownerReferences": [{**named, "blockOwnerDeletion": False, **says}],
        }
        await cluster.create(fake)
    try:
        async with looping(scene, watch_namespaces=f"{evil},{scene.namespace}", enabled_resources="drsin") as story:
            found = (await findings(story))["bert"]
            assert (found.verdict, len(found.workload.pods)) == (decision.Verdict.active, 2)
            await tick(story)
            assert names.PAUSED_AT not in (await cluster.refresh(top))["metadata"]["annotations"]
    finally:
        for pod in await cluster.pods("", evil):
            await cluster.patch(pod, {"metadata": {"finalizers": None}})


async def _is_gone(cluster: clusters.Cluster, name: str) -> bool:
    return await cluster.find("v1", "Pod", name) is None


async def test_one_failing_read_of_a_replica_set_takes_no_pod_out_of_its_deployment(scene: Scene) -> None:
    """While a Deployment rolls it has two ReplicaSets, and the newer one cannot be read."""
    cluster = scene.cluster
    await scene.deployment()
    await scene.begin()
    async with product.proxy_to_api_server(cluster.plane) as proxy:
        kubeconfig = await cluster.service_account("eve", RIGHTS, through=proxy.url)
        async with looping(scene, kubeconfig=kubeconfig) as story:
            proxy.fault = faults.only("/replicasets/", faults.status(500))
            rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
            late = {"minReadySeconds": 500}  # so that the old pod stays beside the new one
            spec = {"strategy": rolling, **late, "template": {"spec": {"terminationGracePeriodSeconds": 7}}}
            await cluster.patch(await cluster.get("apps/v1", "Deployment", "llm"), {"spec": spec})
            await cluster.wait_until(lambda: _are_placed(cluster, 2))

            async def is_unclear() -> bool:
                """By the broken chain; or, where the watch was quicker than the read, by the new pod itself."""
                found = (await findings(story))["llm"]
                is_tainted = found.reason is Reason.OwnerLookupFailed and "may be part of it" in found.because
                return is_tainted or len(found.workload.pods) == 2

            await cluster.wait_until(is_unclear)
    assert await replicas(scene) == 1


async def _are_placed(cluster: clusters.Cluster, count: int) -> bool:
    found = await cluster.pods("app=llm")
    return len([pod for pod in found if pod["spec"].get("nodeName")]) == count


# ---- nodes ----


class NodesBreak:
    """Nodes are listed and watched until `broken`; then the watch ends with 410, and every list fails."""

    def __init__(self) -> None:
        self.broken = asyncio.Event()

    async def __call__(self, exchange: faults.Exchange) -> faults.web.StreamResponse:
        if " /api/v1/nodes" not in exchange.text:
            return await exchange.forward()
        if "watch=" not in exchange.text:
            return faults.web.Response(status=500) if self.broken.is_set() else await exchange.forward()
        response = faults.web.StreamResponse()
        await response.prepare(exchange.request)
        await self.broken.wait()
        await response.write(b'{"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old"}}\n')
        await response.write_eof()
        return response


@pytest.mark.accepts("idle", 43)
async def test_a_node_list_that_fails_after_it_worked_leaves_nothing_idle_that_needs_a_node(
    cluster: clusters.Cluster, prometheus: history.PrometheusWorld
) -> None:
    scene = await Scene(cluster, prometheus).prepare(replicas=4, sharing="time-slicing")
    await scene.deployment()
    await scene.begin()
    async with product.proxy_to_api_server(cluster.plane) as proxy:
        proxy.fault = breaking = NodesBreak()
        kubeconfig = await cluster.service_account("eve", RIGHTS, through=proxy.url)
        async with looping(scene, kubeconfig=kubeconfig, run_mode="dry-run") as story:
            before = (await findings(story))["llm"]
            assert before.reason is not Reason.NodeUnseen
            breaking.broken.set()

            async def is_unseen() -> bool:
                found = (await findings(story))["llm"]
                assert found.reason in (before.reason, Reason.NodeUnseen)
                return found.reason is Reason.NodeUnseen

            await cluster.wait_until(is_unseen)


@pytest.mark.accepts("idle", 43)
async def test_nodes_that_may_not_be_read_leave_nothing_idle_that_needs_a_node(scene: Scene) -> None:
    await scene.deployment("device")
    await scene.begin()
    rights = [{"apiGroups": [""], "resources": ["pods", "namespaces"], "verbs": ALL}, *RIGHTS[1:]]
    async with looping(scene, kubeconfig=await scene.cluster.service_account("eve", rights)) as story:
        found = (await findings(story))["device"]
    assert (found.reason, f"the node {scene.node} of its pod" in found.because) == (Reason.NodeUnseen, True)
    assert await replicas(scene, "device") == 1


# ---- others who steer ----


@pytest.mark.parametrize("group", ["autoscaling", "keda.sh"])
async def test_autoscalers_that_may_not_be_read_leave_it_alone(scene: Scene, group: str) -> None:
    await scene.cluster.apply_crds(crds.KINDS["ScaledObject"])
    await scene.deployment()
    await scene.begin()
    rights = [rule for rule in RIGHTS if rule["apiGroups"] != [group]]
    async with looping(scene, kubeconfig=await scene.cluster.service_account("eve", rights)) as story:
        found = (await findings(story))["llm"]
    assert (found.verdict, found.skip_label) == (decision.Verdict.idle, "ReportOnly:Unseen")
    assert await replicas(scene) == 1


@pytest.mark.parametrize(("kind", "workload", "detail"), [
    ("ScaledObject", "llm", "Unseen"), ("Workload", "train", "KueueWorkloadUnclear"),
])
async def test_managers_that_are_served_in_a_version_we_cannot_read_are_not_taken_for_none(
    start_control_plane: Any, prometheus: history.PrometheusWorld, kind: str, workload: str, detail: str
) -> None:
    """As after an upgrade of theirs that drops the versions we know."""
    cluster = await start_control_plane(clusters.world.PLAIN)
    scene = await Scene(cluster, prometheus).prepare()
    definition = copy.deepcopy(crds.KINDS[kind])
    definition["spec"]["versions"] = [{**definition["spec"]["versions"][-1], "name": "v9"}]
    await cluster.apply_crds(definition)
    await scene.deployment()
    await scene.quiet(clusters.job("train"))
    await scene.begin()
    async with looping(scene, run_mode="dry-run") as story:
        found = (await findings(story))[workload]
        cycle = await tick(story)
    assert (found.verdict, found.skip_label) == (decision.Verdict.idle, f"ReportOnly:{detail}")
    assert cycle.snapshot is not None
    assert any("v9" in one.because for one in cycle.snapshot.missing)


@pytest.mark.accepts("idle", 54)
@pytest.mark.parametrize("kind", ["ScaledObject", "Workload"])
async def test_when_another_manager_is_uninstalled_plain_workloads_are_judged_as_before(
    start_control_plane: Any, prometheus: history.PrometheusWorld, kind: str
) -> None:
    cluster = await start_control_plane(clusters.world.PLAIN)
    scene = await Scene(cluster, prometheus).prepare()
    definition = crds.KINDS[kind]
    await cluster.apply_crds(definition)
    await scene.deployment()
    await scene.quiet(clusters.job("train"))
    await scene.begin()
    async with looping(scene, run_mode="dry-run", confirm_cycles="1") as story:
        before = {name: found.verdict for name, found in (await findings(story)).items()}
        assert set(before.values()) == {decision.Verdict.idle}
        await cluster.delete(definition)

        async def is_uninstalled() -> bool:
            with contextlib.suppress(clusters.Refused):
                await cluster.request("GET", f"/apis/{definition['spec']['group']}")
                return False
            return True

        await cluster.wait_until(is_uninstalled)
        for _ in range(8):  # beyond the moment at which the server ends its watch, and no list succeeds any more
            found = await findings(story)
            assert {name: one.verdict for name, one in found.items()} == before
            assert not [one.skip_label for one in found.values() if one.skip_label and "ReportOnly" in one.skip_label]
            await asyncio.sleep(1.5)


# ---- clocks ----


@pytest.mark.accepts("idle", 53)
@pytest.mark.parametrize("shift", [-600.0, 600.0], ids=["behind", "ahead"])
async def test_our_clock_apart_from_the_api_servers_decides_nothing(scene: Scene, shift: float) -> None:
    await scene.deployment()
    await scene.begin()
    async with looping(scene, clock=lambda: time.time() + shift) as story:
        cycle = await tick(story)
    assert (cycle.plan, "the clock of the API server says" in cycle.failure) == (None, True), cycle.failure
    assert await replicas(scene) == 1


@pytest.mark.accepts("idle", 53)
@pytest.mark.parametrize("shift", [-600.0, 600.0], ids=["behind", "ahead"])
async def test_our_clock_apart_from_that_of_prometheus_decides_nothing(scene: Scene, shift: float) -> None:
    await scene.deployment()
    await scene.begin()

    async def shifted(exchange: faults.Exchange) -> faults.web.StreamResponse:
        date = email.utils.formatdate(time.time() - shift, usegmt=True)
        return faults.web.json_response(await exchange.fetch(), headers={"Date": date})

    proxy = faults.FaultyProxy(scene.prometheus.url)
    async with proxy, looping(scene, prometheus_url=proxy.url, run_mode="dry-run") as story:
        assert (await tick(story)).failure == ""
        proxy.fault = shifted
        cycle = await tick(story)
    assert (cycle.plan, "the clock of Prometheus says" in cycle.failure) == (None, True), cycle.failure


@pytest.mark.accepts("idle", 53)
async def test_a_prometheus_that_does_not_tell_its_clock_decides_nothing(scene: Scene) -> None:
    """Were it ten minutes ahead, what it dates with our now would be ten minutes old, and look fresh."""
    await scene.deployment()
    await scene.begin()

    async def undated(exchange: faults.Exchange) -> faults.web.StreamResponse:
        """As out of somebody's cache, whose date is that of another answer."""
        return faults.web.json_response(await exchange.fetch(), headers={"Age": "1"})

    proxy = faults.FaultyProxy(scene.prometheus.url)
    proxy.fault = undated
    async with proxy, looping(scene, prometheus_url=proxy.url, run_mode="dry-run") as story:
        cycle = await tick(story)
    assert (cycle.plan, "the clock of Prometheus is not told" in cycle.failure) == (None, True), cycle.failure


# ---- the second look ----


async def test_an_opt_out_on_the_namespace_between_the_looks_stops_the_pause(scene: Scene) -> None:
    """Placed when the namespace is read by itself, which is after the first look's decisions."""
    await scene.deployment()
    await scene.begin()
    namespace = await scene.cluster.get("v1", "Namespace", scene.namespace)

    async def opt_out(exchange: faults.Exchange) -> faults.web.StreamResponse:
        if f"GET /api/v1/namespaces/{scene.namespace} " in exchange.text:
            await scene.cluster.patch(namespace, {"metadata": {"annotations": {names.OPT_OUT: "ignore"}}})
        return await exchange.forward()

    async with product.proxy_to_api_server(scene.cluster.plane) as proxy:
        proxy.fault = opt_out
        kubeconfig = await scene.cluster.service_account("eve", RIGHTS, through=proxy.url)
        async with looping(scene, kubeconfig=kubeconfig) as story:
            outcome = await scene.cluster.wait_until(lambda: _pause_of(story))
    assert (outcome.status, names.OPT_OUT in outcome.detail) == (decision.Status.overtaken, True)
    assert await replicas(scene) == 1


async def _pause_of(story: loop.Loop) -> decision.Outcome | None:
    """A daemon first learns for some cycles how idle the cluster usually is."""
    outcomes = (await tick(story)).outcomes
    return next((one for one in outcomes if isinstance(one.decision, decision.Pause)), None)
