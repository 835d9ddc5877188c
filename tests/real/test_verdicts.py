"""Verdicts through the commands: real pods on a real cluster, their past in a real Prometheus, and what `fallow idle`
and `explain` say.

What must not be paused is also given to an acting `gpu-pruner`, and the API server's audit log is asked whether
anything was written.
"""

from __future__ import annotations

import copy
import datetime

import pytest

from fallow.model import units
from tests.real import cluster as clusters
from tests.real import history, scene

Cluster = clusters.Cluster
Scene = scene.Scene


@pytest.fixture
async def stage(cluster: Cluster, prometheus: history.PrometheusWorld) -> Scene:
    return await Scene(cluster, prometheus).prepare()


async def assert_left_alone(stage: Scene) -> None:
    """An acting run writes nothing, not even an Event."""
    await stage.prune()
    assert stage.writes() == []
    assert await stage.reasons() == []


# ---- one busy part saves the whole -----------------------------------------------------------------------------------


@pytest.mark.accepts("idle", 1)
async def test_seven_idle_gpus_of_eight_do_not_condemn_the_pod(stage: Scene) -> None:
    (pod,) = await stage.run(clusters.replicated("apps/v1", "Deployment", "trainer", 1, 8))
    uuids = [stage.measure(pod, 0.9 if gpu == 5 else 0.0) for gpu in range(8)]
    await stage.begin()
    assert await stage.verdicts() == {"trainer": ("active", "Busy")}
    told = await stage.explain("Deployment/trainer")
    assert {gpu["uuid"]: gpu["verdict"] for gpu in told["gpus"]} == {
        uuid: "active" if uuid == uuids[5] else "idle" for uuid in uuids
    }
    await assert_left_alone(stage)


@pytest.mark.accepts("idle", 51)
async def test_a_steady_trickle_is_activity(stage: Scene) -> None:
    """200 ms of work in every 30 s: no sample reaches the threshold, and all of them tell of it."""
    await stage.deployment(busy=0.0067)
    await stage.begin()
    assert await stage.verdicts() == {"llm": ("active", "Busy")}
    shown = await stage.explain("Deployment/llm")
    assert shown["gpus"][0]["signals"]["gr_engine"]["mean"] == pytest.approx(0.0067)
    assert "gr_engine averaged 0.67%" in shown["gpus"][0]["because"]
    assert await stage.verdicts("--idle-threshold", "0.04") == {"llm": ("idle", "NeverUsed")}
    await assert_left_alone(stage)


@pytest.mark.accepts("idle", 2)
async def test_nine_idle_replicas_of_ten_do_not_condemn_the_deployment(stage: Scene) -> None:
    pods = await stage.run(clusters.replicated("apps/v1", "Deployment", "web", 10, 1), pods=10)
    one_sample = [0.0] * 170 + [0.4] + [0.0] * 10  # one busy sample in the window is enough
    for number, pod in enumerate(pods):
        stage.measure(pod, one_sample if number == 3 else 0.0)
    await stage.begin()
    (row,) = (await stage.rows()).values()
    assert (row["verdict"], row["gpus"], row["idleGpus"], row["nextAction"]) == ("active", 10, 9, None)
    await assert_left_alone(stage)


# ---- what is not measured is not idle --------------------------------------------------------------------------------


@pytest.mark.accepts("idle", 3, 4)
async def test_gaps_in_the_measurements_are_named(stage: Scene) -> None:
    (lacking,) = await stage.run(clusters.replicated("apps/v1", "Deployment", "lacking", 1, 4))
    for _ in range(3):
        stage.measure(lacking)
    (thin,) = await stage.run(clusters.replicated("apps/v1", "Deployment", "thin", 1, 1))
    stage.measure(thin, [0.0])
    (old,) = await stage.run(clusters.replicated("apps/v1", "Deployment", "old", 1, 1))
    stage.measure(old, until=stage.prometheus.now - 600)
    await stage.run(clusters.replicated("apps/v1", "Deployment", "unseen", 1, 1))
    await stage.begin()
    assert await stage.verdicts() == {
        "lacking": ("unknown", "MissingGpuSeries"), "thin": ("unknown", "LowCoverage"), "old": ("unknown", "Stale"),
        "unseen": ("unknown", "MissingGpuSeries"),
    }
    await assert_left_alone(stage)


@pytest.mark.accepts("idle", 6)
async def test_profiling_that_reads_0_on_a_working_node_makes_all_its_gpus_unknown(stage: Scene) -> None:
    (busy,) = await stage.run(clusters.replicated("apps/v1", "Deployment", "busy", 1, 1))
    stage.measure(busy, 0.0, gpu_util=80.0)
    (quiet,) = await stage.run(clusters.replicated("apps/v1", "Deployment", "quiet", 1, 2))
    for _ in range(2):
        stage.measure(quiet)
    await stage.begin()
    assert await stage.verdicts() == {"busy": ("unknown", "ExporterSuspect"), "quiet": ("unknown", "ExporterSuspect")}
    assert [gpu["reason"] for gpu in (await stage.explain("Deployment/quiet"))["gpus"]] == ["ExporterSuspect"] * 2
    await stage.make_policy()  # one that would send notices
    await assert_left_alone(stage)


# ---- parts of a GPU --------------------------------------------------------------------------------------------------


@pytest.mark.accepts("idle", 7)
async def test_a_mig_instance_is_judged_by_its_own_profiling_only(
    cluster: Cluster, prometheus: history.PrometheusWorld
) -> None:
    stage = await Scene(cluster, prometheus).prepare(gpus=0, mig={"1g.10gb": 7})
    engines: dict[str, float | None] = {"blind": None, "quiet": 0.0, "busy": 0.5}
    for number, (name, engine) in enumerate(engines.items(), start=1):
        (pod,) = await stage.run(
            clusters.replicated("apps/v1", "Deployment", name, 1, 1, resource="nvidia.com/mig-1g.10gb")
        )
        stage.measure(pod, uuid="GPU-sliced", mig=(number, "1g.10gb"), gr_engine=engine, gpu_util=0.0)
    await stage.begin()
    assert await stage.verdicts() == {
        "blind": ("unknown", "MigUtilOnly"), "quiet": ("idle", "NeverUsed"), "busy": ("active", "Busy")
    }


@pytest.mark.accepts("idle", 8)
@pytest.mark.parametrize(
    ("has_process_data", "expected"),
    [
        (True, [("active", "Busy"), ("idle", "NeverUsed")]),
        (False, [("unknown", "SharedDevice"), ("unknown", "SharedDevice")]),
    ],
    ids=["per-process", "device-only"],
)
async def test_on_a_shared_gpu_only_a_pods_own_activity_counts(
    cluster: Cluster, prometheus: history.PrometheusWorld, has_process_data: bool, expected: list[tuple[str, str]]
) -> None:
    stage = await Scene(cluster, prometheus).prepare(gpus=1, replicas=4, sharing="time-slicing")
    for name, percent in (("a", 65.0), ("b", 0.0)):
        (pod,) = await stage.run(clusters.replicated("apps/v1", "Deployment", name, 1, 1))
        # dcgm-exporter shows the device's values under every pod that shares it, or zeroes them for one: neither is the
        # pod's own.
        stage.measure(pod, 0.65, uuid="GPU-shared", gpu_util=65.0 if name == "a" else 0.0)
        if has_process_data:
            _measure_processes(stage, pod, percent)
    await stage.begin()
    found = await stage.verdicts("--trust-metrics")  # only the scene's own namespace is watched
    assert [found["a"], found["b"]] == expected


def _measure_processes(stage: Scene, pod: clusters.Object, percent: float) -> None:
    exporter = {
        "job": "gpu-idle-exporter", "instance": f"{stage.node}:9835", "pod": "gpu-idle-exporter-x",
        "namespace": "gpu-operator",
    }
    whose = {
        "workload_pod": pod["metadata"]["name"], "workload_namespace": stage.namespace, "workload_container": "main"
    }
    labels = {**exporter, **whose, "UUID": "GPU-shared", "node": stage.node, "scope": "process"}
    stage.prometheus.series("gpu_idle_pod_gpu_utilization_percent", labels, constant=percent, minutes=scene.MINUTES)


# ---- dialects --------------------------------------------------------------------------------------------------------


@pytest.mark.accepts("idle", 9)
async def test_both_dialects_of_labels_lead_to_the_same_verdicts(stage: Scene) -> None:
    past: dict[str, history.Values] = {"busy": 0.7, "quiet": 0.0, "stopped": [0.8] * 61 + [0.0] * 120}
    for name, busy in past.items():
        (new,) = await stage.run(clusters.replicated("apps/v1", "Deployment", f"{name}-new", 1, 1))
        stage.measure(new, busy)
        (old,) = await stage.run(clusters.replicated("apps/v1", "Deployment", f"{name}-old", 1, 1))
        _measure_plainly(stage, old, busy)
    await stage.begin()
    rows = await stage.rows("--trust-metrics")  # beside exporters that labels name, honoured ones cannot be told
    assert {name: rows[f"{name}-new"]["verdict"] for name in past} == {
        "busy": "active", "quiet": "idle", "stopped": "idle"
    }
    for name in past:
        one, other = rows[f"{name}-new"], rows[f"{name}-old"]
        for field in ("verdict", "reason", "atLeast", "gpus", "idleGpus", "models"):
            assert one[field] == other[field], f"{name}: {field}"
        since = [units.parse_instant(row["idleSince"]) if row["idleSince"] else 0.0 for row in (one, other)]
        assert abs(since[0] - since[1]) <= 1, name  # one of them may have been measured just before a full second


def _measure_plainly(stage: Scene, pod: clusters.Object, busy: history.Values) -> None:
    """As an exporter with honorLabels and the older, lower-case labels shows it."""
    labels = {
        "pod": pod["metadata"]["name"], "namespace": stage.namespace, "container": "main",
        "hostname": stage.node.upper(), "gpu": "0", "uuid": f"GPU-plain-{pod['metadata']['name']}",
        "modelName": "NVIDIA H100 80GB HBM3", "job": "dcgm", "instance": "192.0.2.9:9400",
    }
    values = [busy] * (scene.MINUTES * 2 + 1) if isinstance(busy, int | float) else busy
    stage.prometheus.series("DCGM_FI_PROF_GR_ENGINE_ACTIVE", labels, values)


# ---- clocks ----------------------------------------------------------------------------------------------------------


@pytest.mark.accepts("idle", 10)
async def test_the_clock_starts_when_the_containers_did(stage: Scene) -> None:
    """Waiting in the queue does not count, nor does the time before a restart."""
    for name, started in (("late", 1), ("restarted", 5), ("ripe", 36)):
        (pod,) = await stage.deployment(name)
        await _start_again(stage.cluster, pod, minutes_ago=started)
    await stage.begin()
    rows = await stage.rows()
    assert {name: (row["verdict"], row["reason"]) for name, row in rows.items()} == {
        "late": ("unknown", "TooYoung"), "restarted": ("unknown", "TooYoung"), "ripe": ("idle", "NeverUsed"),
    }
    assert 35 * 60 <= rows["ripe"]["idleSeconds"] <= 38 * 60, "what was quiet before the start is not its idleness"
    assert (await stage.verdicts("-g", "0", "-t", "4"))["restarted"] == ("idle", "NeverUsed")
    await stage.prune()
    assert [asked.uri.partition("?")[0].rpartition("/")[2] for asked in stage.writes("/deployments/")] == ["ripe"]


async def _start_again(cluster: Cluster, pod: clusters.Object, minutes_ago: float) -> None:
    """The container was started so long ago; the pod itself is older and was scheduled long before."""
    started = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=minutes_ago)
    then = started.strftime("%Y-%m-%dT%H:%M:%SZ")
    status = copy.deepcopy(pod["status"])
    status["containerStatuses"][0] |= {"restartCount": 1, "state": {"running": {"startedAt": then}}}
    for condition in status["conditions"]:
        if condition["type"] in ("Ready", "ContainersReady"):
            condition["lastTransitionTime"] = then
    await cluster.patch(pod, {"status": status}, part="status")


@pytest.mark.accepts("idle", 10)
async def test_a_pod_on_its_way_out_has_no_say(stage: Scene) -> None:
    stays, goes = await stage.run(clusters.replicated("apps/v1", "StatefulSet", "pair", 2, 1), pods=2)
    stage.measure(stays)
    stage.measure(goes, 0.9)
    await stage.begin()
    assert (await stage.verdicts())["pair"] == ("active", "Busy")
    held = await stage.cluster.patch(goes, {"metadata": {"finalizers": ["fallow.test/held"]}})
    await stage.cluster.delete(held)
    try:
        (row,) = (await stage.rows()).values()
        assert (row["verdict"], row["gpus"]) == ("idle", 1)
    finally:
        await stage.cluster.patch(held, {"metadata": {"finalizers": None}})


# ---- the answer to "why" ---------------------------------------------------------------------------------------------


@pytest.mark.accepts("idle", 30)
async def test_every_workload_can_be_explained(stage: Scene) -> None:
    await stage.deployment("quiet", gpus=2)
    await stage.deployment("busy", busy=0.5)
    await stage.deployment("kept")
    await stage.run(clusters.replicated("apps/v1", "Deployment", "unseen", 1, 1))
    await stage.begin()
    await stage.fallow("ack", "Deployment/kept", "--hours", "1")
    expected = {"quiet": "idle", "busy": "active", "kept": "idle", "unseen": "unknown"}
    told = {name: await stage.explain(f"Deployment/{name}", "--max-percent-per-hour", "100") for name in expected}
    for name, answer in told.items():
        assert answer["workload"]["name"] == name
        assert [link["kind"] for link in answer["owner"]] == ["ReplicaSet", "Deployment"]
        assert answer["policy"] == "flags"
        assert answer["reasons"][0]["because"]
    assert {name: answer["verdict"] for name, answer in told.items()} == expected
    assert {name: len(answer["gpus"]) for name, answer in told.items()} == {
        "quiet": 2, "busy": 1, "kept": 1, "unseen": 0
    }
    engine = told["quiet"]["gpus"][0]["signals"]["gr_engine"]
    assert (engine["max"], engine["samples"] >= 59, engine["newest"][-1]) == (0.0, True, "Z")
    assert (told["quiet"]["nextAction"]["type"], told["quiet"]["skips"]) == ("pause", [])
    (body,) = told["quiet"]["patch"].values()
    assert body["spec"] == {"replicas": 0}
    assert (told["kept"]["nextAction"], [skip["skip"] for skip in told["kept"]["skips"]]) == (None, ["Acknowledged"])
    assert (told["busy"]["nextAction"], told["busy"]["patch"]) == (None, None)
    await _explain_in_words(stage)


async def _explain_in_words(stage: Scene) -> None:
    said = await stage.fallow(
        "why", "deployment/quiet", "--watch-namespaces", stage.namespace, "--max-percent-per-hour", "100"
    )
    for word in (
        "idle (NeverUsed)", "policy", "flags", "next", "pause", "Pod <- ReplicaSet/", f"0 GPU-{stage.node}-0",
        f"keep it    fallow ack Deployment/quiet -n {stage.namespace}", "By the flags given",
    ):
        assert word in said, f"{word!r} is not in:\n{said}"
    wide = await stage.fallow("why", "deployment/quiet", "-o", "wide", "--watch-namespaces", stage.namespace)
    assert "gr_engine=0" in wide
    gone = await stage.fallow("why", "Deployment/nobody", "--watch-namespaces", stage.namespace, code=1)
    assert "no Deployment nobody in namespace" in gone
