"""Request bodies: a pause and its resume restore every object exactly, whatever it was."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from tests.unit.act import examples
from tests.unit.act.examples import EXAMPLES, NOW, identified, make, pause_of, workload_of
from tests.unit.act.server import merged

from fallow import names
from fallow.act import sending
from fallow.act.workloads import bodies
from fallow.model import cluster, kinds, marks, pointers, record

Object = dict[str, Any]


def row_of(workload: cluster.Workload) -> kinds.Kind:
    kind = kinds.of(workload)
    assert kind is not None
    return kind


def paused(thing: Object) -> tuple[Object, sending.Write]:
    workload = workload_of(thing)
    (write,) = bodies.pause_writes(workload, row_of(workload), pause_of(workload, reason="quiet"), NOW)
    return merged(thing, write.body), write


def resumed(thing: Object) -> Object:
    workload = workload_of(thing, body=thing)  # a resume reads it whole
    kind = row_of(workload)
    target = kinds.pause_target(kind, workload)
    found = record.read(workload.annotations[names.ORIGINAL_STATE])
    assert found is not None
    fields = bodies.raise_replicas(kind, workload, bodies.restored_fields(kind, target, found))
    marks = bodies.resume_marks(kind, workload.annotations, NOW + 60, "ada", {})
    result: Object = merged(thing, bodies.resume_write(target, fields, marks).body)
    return result


def without_marks(thing: Object) -> Object:
    """As it was, apart from who resumed it and when; an empty map of annotations is the same as none."""
    said = thing["metadata"].get("annotations") or {}
    annotations = {name: value for name, value in said.items() if not name.startswith(names.GROUP)}
    metadata = {name: value for name, value in thing["metadata"].items() if name != "annotations"}
    return thing | {"metadata": metadata | ({"annotations": annotations} if annotations else {})}


@pytest.mark.parametrize("name", EXAMPLES)
def test_pause_then_resume_restores_every_kind_exactly(name: str) -> None:
    before = identified(EXAMPLES[name])
    stopped, write = paused(before)
    workload = workload_of(stopped)
    assert kinds.is_paused(row_of(workload), workload)
    assert write.ref.uid == write.body["metadata"]["uid"] == before["metadata"]["uid"]
    assert write.body["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    back = resumed(stopped)
    assert without_marks(back) == without_marks(before)
    ours = {key: value for key, value in back["metadata"]["annotations"].items() if key.startswith(names.GROUP)}
    assert ours == {names.RESUMED_AT: "2026-11-14T23:47:40Z", names.RESUMED_BY: "ada"}


@pytest.mark.accepts("idle", 37)
@pytest.mark.parametrize("suspend", [None, False], ids=["absent", "false"])
def test_a_ray_cluster_resumes_with_an_explicit_false(suspend: bool | None) -> None:
    before = identified(make("ray.io/v1", "RayCluster", {} if suspend is None else {"suspend": suspend}))
    assert resumed(paused(before)[0])["spec"] == {"suspend": False}


LEAF = some.one_of(some.booleans(), some.integers(0, 50), some.text("xyz", max_size=3))
NOISE = some.dictionaries(some.sampled_from(["image", "args", "cleanPodPolicy", "x/y"]), LEAF, max_size=3)
NOTED = some.sampled_from(["team", "serving.kserve.io/stop2", "gpuautoscaler.io/notify", "a~b"])
NOTES = some.dictionaries(NOTED, some.text("ab", max_size=3))
COUNT = some.one_of(some.none(), some.integers(1, 40))


@some.composite
def _objects(draw: some.DrawFn) -> Object:
    thing = identified(EXAMPLES[draw(some.sampled_from(sorted(EXAMPLES.keys() - {"disaggregated", "raycluster"})))])
    spec = thing["spec"] | draw(NOISE)
    if thing["kind"].endswith("Job") and "runPolicy" in spec:
        spec["runPolicy"] = draw(NOISE) | draw(some.sampled_from([{}, {"suspend": False}]))
    if "replicas" in spec and (replicas := draw(COUNT)):
        spec["replicas"] = replicas
    thing["spec"] = spec
    thing["metadata"]["annotations"] = (thing["metadata"].get("annotations") or {}) | draw(NOTES)
    return thing


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(_objects())
def test_pause_then_resume_restores_any_object_exactly(thing: Object) -> None:
    back = resumed(paused(thing)[0])
    said, ended = back["metadata"]["annotations"], (names.RESUMED_AT, names.RESUMED_BY)
    back["metadata"]["annotations"] = {key: value for key, value in said.items() if key not in ended}
    assert back == thing


@given(some.lists(some.tuples(some.integers(1, 9), NOISE), min_size=1, max_size=4))
def test_roles_come_back_in_their_places(roles: list[tuple[int, Object]]) -> None:
    specs = [{**noise, "replicas": count} for count, noise in roles]
    spec = {"roles": [{"name": f"r{index}", "spec": each} for index, each in enumerate(specs)]}
    before = identified(make("disaggregatedset.x-k8s.io/v1", "DisaggregatedSet", spec))
    stopped, _ = paused(before)
    assert [role["spec"]["replicas"] for role in stopped["spec"]["roles"]] == [0] * len(roles)
    assert resumed(stopped)["spec"] == before["spec"]


def test_what_others_put_into_a_parent_meanwhile_is_kept() -> None:
    stopped, _ = paused(identified(make("kubeflow.org/v1", "PyTorchJob", {})))
    assert json.loads(stopped["metadata"]["annotations"][names.ORIGINAL_STATE])["fields"] == {"/spec/runPolicy": None}
    stopped["spec"]["runPolicy"]["cleanPodPolicy"] = "All"
    assert resumed(stopped)["spec"] == {"runPolicy": {"cleanPodPolicy": "All"}}


def test_the_marks_of_a_pause_are_complete_and_the_episode_is_over() -> None:
    earlier = dict.fromkeys((*names.PENDING_KEYS, names.RESUMED_AT, names.RESUMED_BY), "2026-11-01T00:00:00Z")
    stopped, write = paused(identified(make("apps/v1", "Deployment", {"replicas": 3}, annotations=earlier)))
    assert stopped["metadata"]["annotations"] == {
        names.ORIGINAL_STATE: json.dumps(
            {"v": 1, "fields": {"/spec/replicas": 3}, "marks": earlier}, separators=(",", ":")
        ),
        names.ORIGINAL_REPLICAS: "3", names.PAUSED_GPUS: "12", names.PAUSED_POLICY: "default",
        names.PAUSED_AT: "2026-11-14T23:46:40Z", names.PAUSED_BY: "fallow", names.PAUSED_REASON: "quiet",
    }
    assert write.shows == {"/spec/replicas": 0}


@pytest.mark.accepts("idle", 63)
def test_what_others_undid_travels_with_the_pause_where_the_marks_would_be_lost() -> None:
    """Of an InferenceService they stand on a Deployment, which goes with the stop."""
    own, below = "2026-11-14T10:00:00Z", "2026-11-14T20:00:00Z"
    old = "2026-11-13T10:00:00Z"  # more than a day ago
    service = identified(make("serving.kserve.io/v1beta1", "InferenceService", {"predictor": {}}, annotations={
        names.PAUSE_REVERSALS: f"{old},{own}"
    }))
    noted = {names.PAUSE_REVERSALS: f"{own},{below}", names.FIGHT_HOLD_UNTIL: "2026-11-15T20:00:00Z"}
    workload = workload_of(service, marks=noted)
    (write,) = bodies.pause_writes(workload, row_of(workload), pause_of(workload), NOW)
    said = write.body["metadata"]["annotations"]
    assert (said[names.PAUSE_REVERSALS], said[names.FIGHT_HOLD_UNTIL]) == (f"{own},{below}", "2026-11-15T20:00:00Z")


def test_a_long_reason_is_cut() -> None:
    workload = workload_of(identified(EXAMPLES["deployment"]))
    (write,) = bodies.pause_writes(workload, row_of(workload), pause_of(workload, reason="x" * 999), NOW)
    assert write.body["metadata"]["annotations"][names.PAUSED_REASON] == "x" * 200


@pytest.mark.accepts("idle", 39)
def test_a_record_that_is_present_is_never_overwritten() -> None:
    known = make("apps/v1", "Deployment", {"replicas": 3}, annotations={names.ORIGINAL_STATE: "anything"})
    with pytest.raises(bodies.CannotWrite, match="RecordPresent"):
        paused(identified(known))


def test_a_record_that_would_be_too_large_is_refused() -> None:
    roles = [{"name": f"r{index}", "spec": {"replicas": 1}} for index in range(200)]
    with pytest.raises(bodies.CannotWrite, match=r"RecordTooLarge.*more than 4096"):
        paused(identified(make("disaggregatedset.x-k8s.io/v1", "DisaggregatedSet", {"roles": roles})))


@pytest.mark.parametrize(
    ("recorded", "least", "back"), [(3, [1], 3), (3, [5], 5), (3, [], 3), (1, [2, 4], 4), (3, [None], 3)]
)
def test_replicas_come_back_to_what_the_autoscaler_asks_at_least(
    recorded: int, least: list[int | None], back: int
) -> None:
    specs = [{"minReplicas": count} if count is not None else {} for count in least]
    made = [identified(make("autoscaling/v2", "HPA", spec)) for spec in specs]
    hpas = tuple(examples.companion_of(thing, kinds.HPA_READS) for thing in made)
    workload = workload_of(identified(EXAMPLES["deployment"]), hpas=hpas)
    assert bodies.raise_replicas(row_of(workload), workload, {"/spec/replicas": recorded}) == {"/spec/replicas": back}


def test_a_notebook_is_touched_at_resume_only_where_cullers_look() -> None:
    seen = {names.NOTEBOOK_LAST_ACTIVITY: "2026-01-01T00:00:00Z"}
    stopped, _ = paused(identified(make("kubeflow.org/v1", "Notebook", annotations=seen)))
    assert names.NOTEBOOK_STOPPED in stopped["metadata"]["annotations"]
    annotations = resumed(stopped)["metadata"]["annotations"]
    assert annotations[names.NOTEBOOK_LAST_ACTIVITY] == "2026-11-14T23:47:40Z"
    assert names.NOTEBOOK_LAST_CHECK not in annotations
    assert names.NOTEBOOK_STOPPED not in annotations


# ---- managedFields ---------------------------------------------------------------------------------------------------


def test_our_entries_lose_the_pause_and_nothing_else() -> None:
    mine = {
        "f:spec": {"f:replicas": {}}, "f:metadata": {"f:annotations": {".": {}, "f:gpuautoscaler.io/resumed-at": {}}},
    }
    only = {"f:spec": {"f:replicas": {}}}
    entries = [
        {"manager": "kubectl", "operation": "Apply", "fieldsV1": only},
        {"manager": names.RESUME_FIELD_MANAGER, "fieldsV1": mine},
        {"manager": names.FIELD_MANAGER, "fieldsV1": only},
    ]
    thing = {"metadata": {"resourceVersion": "9", "managedFields": entries}}
    operations = bodies.release_operations(thing, ["/spec/replicas"])
    rest = {"f:metadata": {"f:annotations": {".": {}, "f:gpuautoscaler.io/resumed-at": {}}}}
    assert operations == [
        {"op": "test", "path": "/metadata/managedFields/2", "value": entries[2]},
        {"op": "remove", "path": "/metadata/managedFields/2"},
        {"op": "test", "path": "/metadata/managedFields/1", "value": entries[1]},
        {"op": "replace", "path": "/metadata/managedFields/1", "value": {**entries[1], "fieldsV1": rest}},
    ]


def test_a_list_that_we_wrote_is_given_up_as_a_whole() -> None:
    entries = [{"manager": names.FIELD_MANAGER, "fieldsV1": {"f:spec": {"f:roles": {}, "f:x": {}}}}]
    written = ["/spec/roles/name=a/spec/replicas"]
    operations = bodies.release_operations({"metadata": {"managedFields": entries}}, written)
    assert operations[1]["value"] == {"manager": names.FIELD_MANAGER, "fieldsV1": {"f:spec": {"f:x": {}}}}


def test_nothing_is_sent_where_we_own_nothing() -> None:
    others = {"metadata": {"managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {"f:x": {}}}}]}}
    assert bodies.release_operations(others, ["/spec/x"]) == []


@pytest.mark.parametrize(
    ("paused_at", "resumed_at", "stale"),
    [("2026-11-14T10:00:00Z", "2026-11-14T11:00:00Z", True), ("2026-11-14T12:00:00Z", "2026-11-14T11:00:00Z", False),
     ("2026-11-14T12:00:00Z", None, False), (None, None, False), ("2026-11-14T12:00:00Z", "odd", False)],
    ids=["undone", "newer", "never-resumed", "none", "unreadable"],
)
@pytest.mark.accepts("idle", 34)
def test_marks_older_than_the_resume_are_stale(paused_at: str | None, resumed_at: str | None, stale: bool) -> None:
    found = {names.PAUSED_AT: paused_at, names.RESUMED_AT: resumed_at}
    assert marks.is_stale({name: value for name, value in found.items() if value}) is stale


def test_pointers_of_the_record_survive_odd_annotation_names() -> None:
    assert pointers.annotation("a~b/c") == "/metadata/annotations/a~0b~1c"
