"""`fallow status`, `idle` and `why` on a real cluster with a real Prometheus: what is asked for is what is shown and
counted, both pages agree, a paused workload tells its own story, and a Prometheus that is away is one sentence."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from fallow import names
from fallow.model.policies import scaling_crd
from tests.real import cluster as clusters
from tests.real import history, scene

Scene = scene.Scene


@pytest.fixture
async def stage(cluster: clusters.Cluster, prometheus: history.PrometheusWorld) -> Scene:
    return await Scene(cluster, prometheus).prepare()


async def look(stage: Scene, *words: str, code: int = 0) -> Any:
    return json.loads((await stage.type("fallow", *words, "-o", "json", code=code)).out)


async def test_what_is_asked_for_is_what_is_shown_and_counted(stage: Scene) -> None:
    """Without --watch-namespaces: the whole cluster is looked at, with whatever other tests left in it."""
    await stage.deployment("quiet", gpus=2)
    await stage.deployment("busy", busy=0.5)
    pods = await stage.run(clusters.replicated("apps/v1", "Deployment", "half", 2, 1), pods=2)
    for pod, busy in zip(pods, (0.0, 0.9), strict=True):
        stage.measure(pod, busy)
    await stage.begin()
    here = ("-n", stage.namespace)
    page, rows = await look(stage, "status", *here), await look(stage, "idle", *here)
    assert {(row["name"], row["idleGpus"], row["gpus"]) for row in rows} == {("quiet", 2, 2), ("half", 1, 2)}
    assert (page["workloads"], page["pods"], page["gpus"]) == (3, 4, 5)
    assert (page["activeGpus"], page["idleGpus"], page["unknownGpus"]) == (2, 3, 0)
    assert page["idleGpus"] == sum(row["idleGpus"] for row in rows)
    assert [of["namespace"] for of in page["namespaces"]] == [stage.namespace]
    assert page["cluster"]["gpus"] >= 16
    assert 0 <= page["cluster"]["free"] <= page["cluster"]["gpus"] - 5
    assert {row["namespace"] for row in await look(stage, "idle", "--all", *here)} == {stage.namespace}
    by_expression = await look(stage, "idle", "-n", f"{stage.namespace[:-1]}.")
    assert [row["name"] for row in by_expression] == [row["name"] for row in rows]
    assert {row["name"] for row in await look(stage, "idle", "-A")} >= {"quiet", "half"}
    await _refuse_what_is_not_there(stage)


async def _refuse_what_is_not_there(stage: Scene) -> None:
    nowhere = await stage.type("fallow", "status", "-n", "no-such-place", code=1)
    assert "there is no namespace no-such-place" in nowhere.err
    other = await stage.type("fallow", "idle", "-n", stage.namespace, "-m", "NVIDIA A10G", code=1)
    assert "model matches NVIDIA A10G as a whole (-m '.*NVIDIA A10G.*' matches a part); there are: " in other.err
    assert "NVIDIA H100 80GB HBM3" in other.err
    same = await look(stage, "idle", "-n", stage.namespace, "-m", "NVIDIA H100.*")
    assert {row["name"] for row in same} == {"quiet", "half"}
    priced = await stage.type("fallow", "status", "-n", stage.namespace, "--price", "H100-80GB-HBM3=2.00")
    assert "idle GPUs cost $6.00 an hour" in priced.out
    assert "is not known" in (await stage.type("fallow", "status", "-n", stage.namespace)).out


async def test_who_may_see_one_namespace_hears_how_to_look_at_it_and_then_can(stage: Scene) -> None:
    await stage.deployment("quiet")
    await stage.begin()
    rbac, subject = "rbac.authorization.k8s.io", f"ana-{stage.namespace}"
    nodes = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]}]
    ana = await stage.cluster.user(subject, nodes)
    rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]}]
    metadata = {"name": "ana", "namespace": stage.namespace}
    await stage.cluster.apply({"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": metadata, "rules": rules})
    await stage.cluster.apply({
        "apiVersion": f"{rbac}/v1", "kind": "RoleBinding", "metadata": metadata,
        "subjects": [{"kind": "User", "name": subject, "apiGroup": rbac}],
        "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "ana"},
    })
    for words in ("status", "idle", "why Deployment/quiet"):
        typed = ("fallow", *words.split(), "-n", stage.namespace)
        refused = (await stage.type(*typed, code=1, kubeconfig=ana)).err.splitlines()[-1]
        assert refused.startswith("Error: pods is forbidden: "), refused
        assert "What helps: who may read single namespaces only names them (--watch-namespaces " in refused
        await stage.type(*typed, "--watch-namespaces", stage.namespace, kubeconfig=ana)
    kept = (await stage.type("fallow", "ack", "deploy/quiet", "-n", stage.namespace, code=1, kubeconfig=ana)).err
    assert 'cannot patch resource "deployments"' in kept
    assert "What helps: ask whoever runs the cluster for that right" in kept
    seen = await stage.type("fallow", "idle", "--watch-namespaces", stage.namespace, "-o", "json", kubeconfig=ana)
    assert [(row["name"], row["verdict"]) for row in json.loads(seen.out)] == [("quiet", "idle")]


async def test_the_first_line_says_whose_rules_these_are(stage: Scene) -> None:
    await stage.deployment("quiet")
    await stage.make_policy()
    await stage.begin()
    said = [
        (await stage.type("fallow", *words.split(), "-n", stage.namespace)).out.splitlines()[:2]
        for words in ("status", "idle", "why Deployment/quiet")
    ]
    assert said[0] == said[1] == said[2]
    source, rules = said[0]
    assert source.startswith("A look of its own: no daemon answers: ")
    assert "IdlePolic" in rules
    assert rules.endswith("; no daemon is seen")
    page = await look(stage, "status", "-n", stage.namespace)
    assert [(step["what"], step["workload"]["name"]) for step in page["next"]] == [("notice", "quiet")]


async def test_a_paused_workload_tells_its_own_story_and_prometheus_away_is_one_sentence(stage: Scene) -> None:
    await stage.deployment("quiet", replicas=2, gpus=2)
    await stage.begin()
    await stage.prune()
    told = await stage.explain("Deployment/quiet")
    found = await stage.cluster.get("apps/v1", "Deployment", "quiet")
    assert scene.marks_of(found)[names.PAUSED_POLICY] == told["pause"]["policy"] == "flags"
    assert (told["pause"]["gpus"], told["pause"]["replicas"], told["pause"]["by"]) == (4, 2, "fallow")
    assert told["pause"]["returnsTo"] == {"/spec/replicas": 2}
    (row,) = await look(stage, "paused", "-n", stage.namespace)
    assert (row["name"], row["policy"], row["gpus"], row["replicas"]) == ("quiet", "flags", 4, 2)
    await stage.prometheus.kill()
    words = ("status", "idle", "why Deployment/quiet")
    ends = await asyncio.gather(
        *(stage.type("fallow", *each.split(), "-n", stage.namespace, code=1) for each in words)
    )
    for end in ends:
        first, *_, last = end.err.splitlines()
        assert first.endswith("cannot be reached: connection refused; trying again ...")
        assert last.startswith("Error: no decision possible: Prometheus at ")
        assert "What helps: check --prometheus-url" in last
    assert "PAUSED     1 workload by fallow, 4 GPUs given back" in ends[0].out
    for line in ("by fallow, rule flags", "gave back  4 GPUs", "returns to 2 replicas", "back with  fallow resume"):
        assert line in ends[2].out


async def test_a_plan_of_nodes_by_a_look_of_ones_own_knows_how_busy_they_are(stage: Scene) -> None:
    await stage.cluster.apply_crds(scaling_crd.define())
    await stage.cluster.apply({
        "apiVersion": "gpuautoscaler.io/v1alpha1", "kind": "AutoscalingPolicy", "metadata": {"name": stage.namespace},
        "spec": {"provider": "custom", "nodeSelector": {"kubernetes.io/hostname": stage.node}},
    })
    (pod,) = await stage.run(clusters.replicated("apps/v1", "Deployment", "busy", 1, 16))
    for _ in range(16):
        stage.measure(pod, 0.5, until=stage.prometheus.now + 600)  # its last minutes count, however late the look comes
    await stage.begin()
    page = await look(stage, "scale", "plan", "--look")
    (policy,) = [each for each in page["policies"] if each["name"] == stage.namespace]
    assert policy["utilization"] == pytest.approx(0.5, abs=0.05)


@pytest.mark.accepts("scaling", 22)
async def test_a_plan_of_nodes_chooses_machines_as_it_is_told_to(stage: Scene) -> None:
    """Of machines of which only the type is said: what they cost and have is in the price book."""
    await stage.cluster.apply_crds(scaling_crd.define())
    kinds = {"t4": "g4dn.xlarge", "v100": "p3.2xlarge", "v100s": "p3.8xlarge", "a100": "p4d.24xlarge"}
    here = {"example.com/scene": stage.namespace}
    pools = [{"name": name, "capacityType": "on-demand", "instanceTypes": [kind], "labels": here}
             for name, kind in kinds.items()]
    await stage.cluster.apply({
        "apiVersion": "gpuautoscaler.io/v1alpha1", "kind": "AutoscalingPolicy", "metadata": {"name": stage.namespace},
        "spec": {
            "provider": "custom", "nodeSelector": here, "nodePools": pools, "queueLengthThreshold": 0,
        },
    })
    await stage.cluster.apply(clusters.replicated("apps/v1", "Deployment", "waits", 1, 1, nodeSelector=here))
    await stage.begin()

    async def choose(*more: str) -> list[str]:
        page = await look(stage, "scale", "plan", "--look", *more)
        (policy,) = [each for each in page["policies"] if each["name"] == stage.namespace]
        return [each["pool"] for each in policy["grows"]]

    async def is_chosen() -> bool:
        return await choose() == ["t4"]

    await stage.cluster.wait_until(is_chosen)
    assert await choose("--autoscaling-instance-score", "article") == ["a100"]
