"""Odd pods, and two instances side by side, on the real API server: what is unknown is named, what is not ours is left.

Each command is a process of its own, as in tests/real/scene.py.
"""

from __future__ import annotations

import datetime

import pytest

from fallow import names
from tests.real import cluster as clusters
from tests.real import history, scene

Object = clusters.Object
Scene = scene.Scene
WRITES = ("create", "update", "patch", "delete")


@pytest.fixture
async def stage(cluster: clusters.Cluster, prometheus: history.PrometheusWorld) -> Scene:
    return await Scene(cluster, prometheus).prepare()


# ---- odd pods --------------------------------------------------------------------------------------------------------

MOST = str(2**63 - 1)
ODD = {
    "most": [MOST], "sum-of-most": [MOST, MOST], "sum-in-range": [str(2**62)] * 2, "exponent": ["1e15"],
    "suffix": ["5E"], "binary": ["4Gi"], "many": ["10001"],
}


def ask(name: str, counts: list[str], node: str) -> Object:
    """Bound by whoever made it, past the scheduler, which would not have."""
    containers = [
        {"name": f"c{at}", "image": "example.invalid/app:1", "resources": {"limits": {"nvidia.com/gpu": count}}}
        for at, count in enumerate(counts)
    ]
    metadata = {"name": name, "labels": {"app": "odd"}}
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"nodeName": node, "containers": containers}
    }


@pytest.mark.accepts("idle", 45)
async def test_a_pod_that_asks_beyond_reason_is_unknown_and_the_rest_goes_on(stage: Scene) -> None:
    await stage.deployment("llm", replicas=2)
    for name, counts in ODD.items():
        await stage.cluster.create(ask(name, counts, stage.node))
    await stage.cluster.create(ask("waits", [MOST], ""))
    await stage.cluster.wait_until(lambda: stage.cluster.pods("app=odd"))
    await stage.cluster.age("app=odd", 90)
    await stage.begin()
    rows = await stage.rows()
    assert {name: rows[name]["verdict"] for name in (*ODD, "waits")} == dict.fromkeys((*ODD, "waits"), "unknown")
    assert {rows[name]["reason"] for name in ODD} == {"MissingGpuSeries"}
    told = await stage.explain("Pod/most")
    assert "asked for GPUs that cannot be counted" in str(told)
    said = await stage.prune()
    assert (await stage.cluster.get("apps/v1", "Deployment", "llm"))["spec"]["replicas"] == 0, said
    status = await stage.type("fallow", "status", "--watch-namespaces", stage.namespace)
    assert "GPU" in status.out


# ---- two instances ---------------------------------------------------------------------------------------------------


async def run_in(stage: Scene, place: str, name: str, **annotations: str) -> Object:
    made = clusters.replicated("apps/v1", "Deployment", name, 1, 1)
    marks = {f"{names.GROUP}/{key.replace('_', '-')}": value for key, value in annotations.items()}
    made["metadata"] |= {"namespace": place, "annotations": marks}
    await stage.cluster.apply(made)
    await stage.cluster.wait_until(lambda: stage.cluster.ready_pods(f"app={name}", 1, place))
    (pod,) = await stage.cluster.age(f"app={name}", 90, place)
    stage.measure(pod)
    return made


@pytest.mark.accepts("idle", 57)
async def test_two_instances_leave_what_is_the_others_alone(stage: Scene) -> None:
    ours, theirs = stage.namespace, f"{stage.namespace}-theirs"
    await stage.cluster.make_namespace(theirs)
    await stage.make_policy(namespaces=[ours, theirs])
    later = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=2)).strftime("%Y-%m-%dT%H:%M:%SZ")
    for place in (ours, theirs):
        await run_in(stage, place, "quiet")
        await run_in(stage, place, "kept", ack_until=later)
        await run_in(stage, place, "garbled", ack_until="tomorrow")
    await stage.begin()

    async def look(place: str) -> None:
        both = f"{ours},{theirs}"
        flags = ("-r", "scale-down", "-n", place, "--watch-namespaces", both, "--max-percent-per-hour", "100")
        await stage.type("gpu-pruner", *flags, POD_NAMESPACE=f"{stage.namespace}-own")

    async def marks(place: str, name: str) -> dict[str, str]:
        found = await stage.cluster.get("apps/v1", "Deployment", name, place)
        return {key: value for key, value in scene.marks_of(found).items() if key.startswith(names.GROUP)}

    def written(place: str) -> int:
        return len(stage.cluster.requests(verbs=WRITES, agent="fallow/", contains=f"/namespaces/{place}/"))

    await look(ours)
    assert written(theirs) == 0
    assert names.PENDING_SINCE in await marks(ours, "quiet")
    assert names.ACK_AT in await marks(ours, "kept")
    await look(theirs)
    mine = {name: await marks(ours, name) for name in ("quiet", "kept", "garbled")}
    others = {name: await marks(theirs, name) for name in ("quiet", "kept", "garbled")}
    assert names.PENDING_SINCE in others["quiet"]
    assert names.ACK_AT in others["kept"]
    for here, elsewhere in ((ours, theirs), (theirs, ours)) * 2:
        before = written(elsewhere)
        await look(here)
        assert written(elsewhere) == before
    assert {name: await marks(ours, name) for name in mine} == mine
    assert {name: await marks(theirs, name) for name in others} == others
    for place in (ours, theirs):
        assert len(await stage.cluster.events(names.Event.INVALID_ACK, place)) == 1
