"""The table of kinds: what each pause writes, what stands paused or finished, and what speaks against a pause."""

from __future__ import annotations

import ast
import re
from typing import Any

import msgspec
import pytest
from tests import ROOT
from tests.unit.act import examples
from tests.unit.act.examples import EXAMPLES, NOW, RULE, identified, make, workload_of

from fallow import names
from fallow.model import cluster, kinds, objections, pointers, record
from fallow.model.policies import idle
from fallow.model.seen import Known, Unseen

STOP = "/metadata/annotations/serving.kserve.io~1stop"
MIN_SCALE = "/spec/template/metadata/annotations/autoscaling.knative.dev~1min-scale"
EMPTY = {"/spec/replicas": 0}
SUSPENDED = {"/spec/suspend": True}
RUN_SUSPENDED = {"/spec/runPolicy/suspend": True}

WRITES: dict[str, dict[str, Any]] = {
    "deployment": EMPTY, "replicaset": EMPTY, "statefulset": EMPTY, "lws": EMPTY,
    "disaggregated": {"/spec/roles/name=prefill/spec/replicas": 0, "/spec/roles/name=decode/spec/replicas": 0},
    "rollout": EMPTY, "rollout-without-replicas": EMPTY,
    "notebook": {"/metadata/annotations/kubeflow-resource-stopped": "2026-11-14T23:46:40Z"},
    "workspace": {"/spec/paused": True},
    "isvc": {STOP: "true"}, "isvc-stop-false": {STOP: "true"},
    "llm": {"/spec/replicas": 0}, "llm-prefill": {"/spec/replicas": 0, "/spec/prefill/replicas": 0},
    "llm-prefill-uncounted": {STOP: "true"}, "llm-scaled": {STOP: "true"},
    "llm-default": {STOP: "true"}, "knative": {MIN_SCALE: "0"}, "knative-bare": {MIN_SCALE: "0"},
    "job": SUSPENDED, "job-unsaid": SUSPENDED, "cronjob": SUSPENDED, "jobset": SUSPENDED, "trainjob": SUSPENDED,
    "appwrapper": SUSPENDED,
    "pytorchjob": RUN_SUSPENDED, "pytorchjob-no-runpolicy": RUN_SUSPENDED, "tfjob-other-runpolicy": RUN_SUSPENDED,
    "xgboostjob": RUN_SUSPENDED,
    "paddlejob": RUN_SUSPENDED, "jaxjob": RUN_SUSPENDED, "mpijob-v1": RUN_SUSPENDED, "mpijob-v2": RUN_SUSPENDED,
    "rayjob": SUSPENDED, "raycluster": SUSPENDED, "rayservice": SUSPENDED, "generic": {"/spec/size": 0},
}
LETTERS = {
    "Deployment": "d", "ReplicaSet": "r", "StatefulSet": "s", "InferenceService": "i", "Notebook": "n",
    "LeaderWorkerSet": "l",
    "DisaggregatedSet": "l", "LLMInferenceService": "m", "Rollout": "o", "Workspace": "w", "RayCluster": "y",
    "RayService": "y",
    "CronJob": "c", "Service": "k", "Job": "j", "JobSet": "j", "TrainJob": "j", "AppWrapper": "j", "PyTorchJob": "j",
    "TFJob": "j", "XGBoostJob": "j",
    "PaddleJob": "j", "JAXJob": "j", "MPIJob": "j", "RayJob": "j",
}


def test_the_examples_cover_the_table() -> None:
    assert WRITES.keys() == EXAMPLES.keys()
    assert {row.kind for row in kinds.KINDS} == {thing["kind"] for thing in EXAMPLES.values()} - {"Scalable"}


def test_every_kind_has_its_letter_and_only_run_to_completion_kinds_lose_work() -> None:
    assert {row.kind: row.letter for row in kinds.KINDS} == LETTERS
    assert {row.letter for row in kinds.KINDS if row.loses_work} == {"j"}
    assert {row.letter for row in kinds.KINDS} | {"x"} == names.LETTERS.keys()
    assert set(names.DEFAULT_LETTERS) < names.LETTERS.keys()


# What may: the table, the names, and the pretend world, which is the other end.
MAY_SPELL = ("model/kinds.py", "names.py", "sim/")


def spelled(source: str) -> set[str]:
    """Kinds of the table in the literals of a module; a docstring or a sentence may give one as an example."""
    literals = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    codes = (text for text in literals if isinstance(text, str) and " " not in text.strip())
    return {row.kind for row in kinds.KINDS} & {word for text in codes for word in re.findall(r"\w+", text)}


def test_no_other_module_spells_a_kind() -> None:
    home = ROOT / "src" / "fallow"
    paths = {path.relative_to(home).as_posix(): path for path in home.rglob("*.py")}
    found = {name: spelled(path.read_text()) for name, path in paths.items() if not name.startswith(MAY_SPELL)}
    assert len(found) > 100
    assert {name: words for name, words in found.items() if words} == {}, "it belongs into the row of the kind"


@pytest.mark.parametrize(
    ("source", "words"),
    [("x == 'RayJob'", {"RayJob"}), ("f'Deployment/{x}'", {"Deployment"}), ("'such as a Job'", set())],
    ids=["compared", "put-together", "sentence"],
)
def test_a_kind_that_is_spelled_is_found(source: str, words: set[str]) -> None:
    assert spelled(source) == words


OF_OWNERS = {
    "Notebook": "notebook", "Workspace": "notebook", "InferenceService": "inference",
    "LLMInferenceService": "inference",
    "Service": "inference", "RayService": "inference", "PyTorchJob": "training", "TFJob": "training",
    "MPIJob": "training", "XGBoostJob": "training", "JAXJob": "training", "TrainJob": "training", "JobSet": "training",
    "RayJob": "batch",
}
LASTING = {"Job", "PyTorchJob", "TFJob", "MPIJob", "XGBoostJob", "JAXJob", "PaddleJob", "TrainJob", "RayCluster"}


def test_the_rows_say_what_other_rooms_ask() -> None:
    assert {row.kind: row.work for row in kinds.KINDS if row.work} == OF_OWNERS
    assert kinds.find_class("apps.nvidia.com", "NIMService") == "inference"
    assert kinds.LASTING == LASTING
    assert {row.letter for row in kinds.KINDS if row.is_queued} == {"j", "y"}
    assert {("apps", "StatefulSet"), ("leaderworkerset.x-k8s.io", "LeaderWorkerSet")} == kinds.WITH_CLAIMS


def test_labels_name_the_outer_workload_first() -> None:
    part_of = {"app.kubernetes.io/part-of": names.LLM_PART_OF, "app.kubernetes.io/name": "llm"}
    found = kinds.named_by({**part_of, names.LWS_NAME_LABEL: "w"})
    assert [(key[1], name) for key, name in found] == [("LLMInferenceService", "llm"), ("LeaderWorkerSet", "w")]
    assert list(kinds.named_by({"app.kubernetes.io/name": "llm"})) == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_pause_writes_exactly_the_fields_of_its_kind(name: str) -> None:
    workload = workload_of(identified(EXAMPLES[name]))
    kind = kinds.of(workload)
    assert kind is not None
    assert kinds.target_row(kind, workload).pauses(workload, RULE, NOW) == WRITES[name]
    assert not kinds.is_paused(kind, workload)
    assert objections.find(kind, workload, RULE) is None


@pytest.mark.parametrize("name", [name for name in EXAMPLES if not name.startswith("knative")])
def test_what_stands_at_its_pause_value_is_paused_whoever_did_it(name: str) -> None:
    before = identified(EXAMPLES[name])
    workload = workload_of(pointers.apply_merge_patch(before, pointers.merge_patch(before, WRITES[name])))
    kind = kinds.of(workload)
    assert kind is not None
    assert kinds.is_paused(kind, workload)
    assert kinds.holds_pause(kind, workload)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_eyes_keep_everything_that_a_pause_will_overwrite(name: str) -> None:
    whole = identified(EXAMPLES[name])
    workload = workload_of(whole)
    seen = kinds.view(workload.body, workload.annotations)
    whole["metadata"].setdefault("annotations", {})
    assert record.remember(seen, WRITES[name]) == record.remember(whole, WRITES[name])


OWN_MIN_SCALE = {"template": {"metadata": {"annotations": {"autoscaling.knative.dev/min-scale": "0"}}}}
ONE_ROLE = {"roles": [{"spec": {"replicas": 0}}, {"spec": {"replicas": 1}}]}
STOPPED_BY_HAND = [
    ("Notebook", make("kubeflow.org/v1", "Notebook", annotations={"kubeflow-resource-stopped": ""}), True),
    (
        "isvc-True",
        make("serving.kserve.io/v1beta1", "InferenceService", annotations={"serving.kserve.io/stop": "True"}), True
    ),
    (
        "isvc-false",
        make("serving.kserve.io/v1beta1", "InferenceService", annotations={"serving.kserve.io/stop": "false"}), False
    ),
    ("isvc-own-min-0", make("serving.kserve.io/v1beta1", "InferenceService", {"predictor": {"minReplicas": 0}}), False),
    ("knative-own-0", make("serving.knative.dev/v1", "Service", OWN_MIN_SCALE), False),
    ("one-role-left", make("disaggregatedset.x-k8s.io/v1", "DisaggregatedSet", ONE_ROLE), False),
    (
        "llm-prefill-left",
        make("serving.kserve.io/v1alpha2", "LLMInferenceService", {"replicas": 0, "prefill": {"replicas": 1}}), False
    ),
]


@pytest.mark.parametrize(
    ("thing", "paused"), [row[1:] for row in STOPPED_BY_HAND], ids=[row[0] for row in STOPPED_BY_HAND]
)
def test_paused_is_read_as_the_operators_read_it(thing: dict[str, Any], paused: bool) -> None:
    workload = workload_of(identified(thing))
    kind = kinds.of(workload)
    assert kind is not None
    assert kinds.is_paused(kind, workload) is paused


ENDS = [
    ("batch/v1", "Job", {"conditions": [{"type": "Complete", "status": "True"}]}, True),
    ("batch/v1", "Job", {"conditions": [{"type": "Failed", "status": "True"}]}, True),
    (
        "batch/v1", "Job",
        {"conditions": [{"type": "Complete", "status": "False"}, {"type": "Suspended", "status": "True"}]}, False
    ),
    ("batch/v1", "Job", {}, False),
    ("jobset.x-k8s.io/v1alpha2", "JobSet", {"conditions": [{"type": "Completed", "status": "True"}]}, True),
    ("kubeflow.org/v1", "PyTorchJob", {"conditions": [{"type": "Succeeded", "status": "True"}]}, True),
    ("kubeflow.org/v1", "PyTorchJob", {"conditions": [{"type": "Running", "status": "True"}]}, False),
    ("workload.codeflare.dev/v1beta2", "AppWrapper", {"phase": "Succeeded"}, True),
    ("workload.codeflare.dev/v1beta2", "AppWrapper", {"phase": "Running"}, False),
    ("ray.io/v1", "RayJob", {"jobDeploymentStatus": "Complete"}, True),
    ("ray.io/v1", "RayJob", {"jobDeploymentStatus": "Running"}, False),
    ("apps/v1", "Deployment", {"conditions": [{"type": "Complete", "status": "True"}]}, False),
]


@pytest.mark.parametrize(
    ("version", "kind_name", "status", "ended"), ENDS, ids=[f"{row[1]}-{index}" for index, row in enumerate(ENDS)]
)
def test_finished_is_read_from_status(version: str, kind_name: str, status: dict[str, Any], ended: bool) -> None:
    kind = kinds.find(version.rpartition("/")[0], kind_name)
    assert kind is not None
    assert kinds.is_finished(kind, {"status": status}) is ended


# ---- objections ------------------------------------------------------------------------------------------------------

CLAIMS = [{"metadata": {"name": "data"}}]


def retained(scaled: str, deleted: str, claims: Any = CLAIMS) -> dict[str, Any]:
    return {
        "volumeClaimTemplates": claims,
        "persistentVolumeClaimRetentionPolicy": {"whenScaled": scaled, "whenDeleted": deleted}
    }


def word(thing: dict[str, Any], rule: idle.Rule = RULE, **more: Any) -> str | None:
    workload = workload_of(identified(thing), **more)
    kind = kinds.of(workload)
    assert kind is not None
    found = objections.find(kind, workload, rule)
    return found[0] if found else None


@pytest.mark.accepts("idle", 32)
@pytest.mark.parametrize("claims", [CLAIMS, []], ids=["claims", "no-claims"])
@pytest.mark.parametrize(
    ("scaled", "deleted"), [("Retain", "Retain"), ("Delete", "Retain"), ("Retain", "Delete"), ("Delete", "Delete")]
)
def test_volumes_are_never_lost(scaled: str, deleted: str, claims: Any) -> None:
    spec = {"replicas": 1, **retained(scaled, deleted, claims)}
    lost_scaled, lost_either = bool(claims) and scaled == "Delete", bool(claims) and "Delete" in (scaled, deleted)
    assert word(make("apps/v1", "StatefulSet", spec)) == ("PvcDeletedOnScale" if lost_scaled else None)
    lws = make(
        "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet",
        {"replicas": 1, "leaderWorkerTemplate": retained(scaled, deleted, claims)}
    )
    assert word(lws) == ("PvcDeletedOnScale" if lost_either else None)


@pytest.mark.accepts("idle", 32)
@pytest.mark.parametrize(
    ("below", "lost"),
    [
        ({"spec": retained("Delete", "Retain")}, True),
        ({"spec": retained("Retain", "Delete")}, True),
        ({"spec": {"leaderWorkerTemplate": retained("Retain", "Delete")}}, True),
        ({"spec": retained("Retain", "Retain")}, False),
    ],
    ids=["scaled", "deleted", "lws", "kept"],
)
def test_volumes_lower_in_the_chain_are_not_lost_either(below: dict[str, Any], lost: bool) -> None:
    chain = (
        cluster.Owner("apps", "v1", "StatefulSet", "llm", "u-2"),
        cluster.Owner("kubeflow.org", "v1", "Notebook", "llm", "u-1")
    )
    assert word(EXAMPLES["notebook"], chain=chain, chain_bodies=(below,)) == ("PvcDeletedOnScale" if lost else None)


def test_a_statefulset_is_not_below_itself() -> None:
    thing = make("apps/v1", "StatefulSet", {"replicas": 1, **retained("Retain", "Delete")})
    assert word(thing, chain_bodies=({"spec": thing["spec"]},)) is None


PREVIEW = {"replicas": 2, "strategy": {"blueGreen": {"previewReplicaCount": 1}}}


@pytest.mark.parametrize(
    ("spec", "status", "expected"),
    [
        ({"replicas": 2, "paused": True}, None, "RolloutBusy"),
        (PREVIEW, {"blueGreen": {"previewSelector": "b", "activeSelector": "a"}}, "RolloutBusy"),
        (PREVIEW, {"blueGreen": {"previewSelector": "a", "activeSelector": "a"}}, None),
        ({"replicas": 2}, {"blueGreen": {"previewSelector": "b", "activeSelector": "a"}}, None),
    ],
    ids=["paused", "preview-up", "no-preview", "uncounted"],
)
def test_a_busy_rollout_is_left_alone(
    spec: dict[str, Any], status: dict[str, Any] | None, expected: str | None
) -> None:
    assert word(make("argoproj.io/v1alpha1", "Rollout", spec, status=status)) == expected


@pytest.mark.accepts("idle", 37)
@pytest.mark.parametrize("status", ["Initializing", "Running", "Waiting", "Suspended", "Retrying", None])
@pytest.mark.parametrize("selector", [None, {"a": "b"}], ids=["own-cluster", "selected"])
@pytest.mark.parametrize("shuts_down", [True, False, None])
def test_a_ray_job_is_suspended_only_where_kuberay_allows_it(
    shuts_down: bool | None, selector: Any, status: str | None
) -> None:
    spec = {
        key: value for key,
        value in {"shutdownAfterJobFinishes": shuts_down, "clusterSelector": selector}.items() if value is not None
    }
    found = word(make("ray.io/v1", "RayJob", spec, status={"jobDeploymentStatus": status} if status else None))
    may = shuts_down is True and selector is None and status in ("Initializing", "Running")
    assert found == (None if may else "RayJobNotSuspendable")


@pytest.mark.parametrize(
    ("name", "where"),
    [
        *(
            (name, "managedBy")
            for name in ("job", "jobset", "trainjob", "rayjob", "raycluster", "rayservice", "appwrapper")
        ),
        *((name, "runPolicy managedBy") for name in ("pytorchjob", "tfjob-other-runpolicy", "mpijob-v1", "mpijob-v2")),
    ],
)
def test_what_another_controller_manages_is_left_alone(name: str, where: str) -> None:
    thing = pointers.replace(EXAMPLES[name], ("spec", *where.split()), "kueue.x-k8s.io/multikueue")
    assert word(thing) == "ManagedByOther"


@pytest.mark.parametrize(
    ("name", "where", "own"),
    [
        ("mpijob-v1", "runPolicy managedBy", "kubeflow.org/training-operator"),
        ("mpijob-v2", "runPolicy managedBy", "kubeflow.org/mpi-operator"),
        ("pytorchjob", "runPolicy managedBy", "kubeflow.org/training-operator"),
        ("trainjob", "managedBy", "trainer.kubeflow.org/trainjob-controller"),
    ],
)
def test_the_kinds_own_controller_is_no_stranger(name: str, where: str, own: str) -> None:
    assert word(pointers.replace(EXAMPLES[name], ("spec", *where.split()), own)) is None


def test_the_operator_of_one_version_of_a_kind_is_a_stranger_to_the_other() -> None:
    theirs = {"mpijob-v1": "kubeflow.org/mpi-operator", "mpijob-v2": "kubeflow.org/training-operator"}
    things = (pointers.replace(EXAMPLES[name], ("spec", "runPolicy", "managedBy"), by) for name, by in theirs.items())
    assert set(map(word, things)) == {"ManagedByOther"}


def isvc(
    mode: str | None, *, ignores_stop: bool = False, autoscaler: str | None = None, least: int = 1
) -> dict[str, Any]:
    annotations = {"gpuautoscaler.io/kserve-no-stop": "2026-11-14T20:00:00Z"} if ignores_stop else {}
    annotations |= {"serving.kserve.io/autoscalerClass": autoscaler} if autoscaler else {}
    status, spec = {"deploymentMode": mode} if mode else None, {"predictor": {"minReplicas": least}}
    return make("serving.kserve.io/v1beta1", "InferenceService", spec, status=status, annotations=annotations)


@pytest.mark.accepts("idle", 14)
@pytest.mark.parametrize("mode", ["Serverless", "Knative", "RawDeployment", "Standard", None])
@pytest.mark.parametrize("ignores_stop", [False, True], ids=["heeds-stop", "ignores-stop"])
@pytest.mark.parametrize("method", ["auto", "stop", "min-replicas"])
def test_kserve_is_stopped_in_the_way_that_works(method: Any, ignores_stop: bool, mode: str | None) -> None:
    rule = msgspec.structs.replace(RULE, action=msgspec.structs.replace(RULE.action, kserve_method=method))
    workload = workload_of(identified(isvc(mode, ignores_stop=ignores_stop)))
    kind = kinds.of(workload)
    assert kind is not None
    fields = kinds.target_row(kind, workload).pauses(workload, rule, NOW)
    objection = objections.find(kind, workload, rule)
    by_replicas = method == "min-replicas" or (method == "auto" and ignores_stop)
    assert fields == ({"/spec/predictor/minReplicas": 0} if by_replicas else {STOP: "true"})
    works = not by_replicas or mode in ("Serverless", "Knative")
    assert (objection is None) is works
    assert works or objection[0] == "KServeNoStop"


def test_min_replicas_works_in_raw_mode_only_without_an_autoscaler() -> None:
    assert word(isvc("RawDeployment", ignores_stop=True, autoscaler="none")) is None
    assert word(isvc("RawDeployment", ignores_stop=True, autoscaler="hpa")) == "KServeNoStop"
    assert word(isvc("Serverless", ignores_stop=True, least=0)) == "AlreadyScalesToZero"


def test_knative_needs_leave() -> None:
    rule = msgspec.structs.replace(RULE, action=idle.Action(type=idle.ActionType.pause))
    assert word(EXAMPLES["knative"], rule) == "KnativeRollout"
    assert word(EXAMPLES["knative"], RULE) is None


def hpa(least: int | None) -> cluster.Companion:
    spec = {"minReplicas": least} if least is not None else {}
    return examples.companion_of(
        identified(make("autoscaling/v2", "HorizontalPodAutoscaler", spec), "u-h"), kinds.HPA_READS
    )


@pytest.mark.parametrize(("least", "expected"), [(0, "HpaScaleToZero"), (1, None), (3, None), (None, None)])
def test_an_hpa_that_scales_to_zero_itself_is_not_fought(least: int | None, expected: str | None) -> None:
    assert word(EXAMPLES["deployment"], hpas=(hpa(least),)) == expected
    assert word(EXAMPLES["isvc"], hpas=(hpa(least),)) is None  # KServe removes it with the rest


def scaler(name: str = "so", target: str = "llm", **annotations: str) -> cluster.Companion:
    marks = {f"autoscaling.keda.sh/{key}": value for key, value in annotations.items()}
    thing = make("keda.sh/v1alpha1", "ScaledObject", {"scaleTargetRef": {"name": target}}, name=name, annotations=marks)
    return examples.companion_of(identified(thing, f"u-{name}", "70"), kinds.SCALED_OBJECT.reads)


@pytest.mark.accepts("idle", 16)
def test_a_keda_target_is_paused_through_its_scaled_object() -> None:
    workload = workload_of(identified(EXAMPLES["deployment"]), scaled_objects=(scaler(),))
    kind = kinds.of(workload)
    assert kind is not None
    assert kinds.way(kind, workload) is kinds.Way.keda
    assert kinds.pause_target(kind, workload).ref.name == "so"
    assert kinds.record_target(kind, workload).ref == workload.ref
    assert kinds.target_row(kind, workload).pauses(workload, RULE, NOW) == {
        "/metadata/annotations/autoscaling.keda.sh~1paused-replicas": "0"
    }


@pytest.mark.parametrize(
    ("annotations", "paused"),
    [({}, False), ({"paused": "true"}, False), ({"paused-replicas": "5"}, False), ({"paused-replicas": "0"}, True)],
    ids=["nothing", "paused", "at-5", "at-0"],
)
def test_only_paused_replicas_zero_is_a_pause_of_keda(annotations: dict[str, str], paused: bool) -> None:
    workload = workload_of(identified(EXAMPLES["deployment"]), scaled_objects=(scaler(**annotations),))
    kind = kinds.of(workload)
    assert kind is not None
    assert kinds.is_paused(kind, workload) is paused


def test_scaled_objects_of_others_and_of_children_do_not_count() -> None:
    workload = workload_of(identified(EXAMPLES["deployment"]), scaled_objects=(scaler(target="other"),))
    kind = kinds.of(workload)
    assert kind is not None
    assert kinds.way(kind, workload) is kinds.Way.own
    assert word(EXAMPLES["deployment"], scaled_objects=(scaler("a"), scaler("b"))) == "ScaledObjectUnclear"
    assert word(EXAMPLES["isvc"], scaled_objects=(scaler("a"), scaler("b"))) is None


def queued(name: str, active: bool | None = None) -> cluster.Companion:
    thing = make("kueue.x-k8s.io/v1beta2", "Workload", {} if active is None else {"active": active}, name=name)
    return examples.companion_of(identified(thing, f"u-{name}", "90"), kinds.KUEUE_WORKLOAD.reads)


@pytest.mark.accepts("idle", 17)
@pytest.mark.parametrize("name", ["job", "pytorchjob", "raycluster", "rayservice", "jobset"])
def test_a_job_of_kueue_is_paused_through_its_kueue_workload(name: str) -> None:
    workload = workload_of(identified(EXAMPLES[name]), kueue=(queued("w"),))
    kind = kinds.of(workload)
    assert kind is not None
    assert kinds.pause_target(kind, workload).ref.kind == "Workload"
    assert kinds.record_target(kind, workload).ref.kind == "Workload"
    assert kinds.target_row(kind, workload).pauses(workload, RULE, NOW) == {"/spec/active": False}
    assert not kinds.is_paused(kind, workload)
    assert kinds.is_paused(kind, msgspec.structs.replace(workload, kueue=Known((queued("w", False),))))


def test_kueue_must_be_clear_and_serving_kinds_keep_their_own_row() -> None:
    labelled = pointers.replace(EXAMPLES["job"], ("metadata", "labels"), {"kueue.x-k8s.io/queue-name": "q"})
    assert word(labelled) == "KueueWorkloadUnclear"
    assert word(labelled, kueue=(queued("a"), queued("b"))) == "KueueWorkloadUnclear"
    assert word(labelled, kueue=(queued("a"),)) is None
    served = workload_of(identified(EXAMPLES["deployment"]), kueue=(queued("a"),))
    kind = kinds.of(served)
    assert kind is not None
    assert kinds.way(kind, served) is kinds.Way.own


@pytest.mark.parametrize(
    ("mark", "tool"),
    [
        ("argocd.argoproj.io/tracking-id", "Argo CD"), ("kustomize.toolkit.fluxcd.io/name", "Flux"),
        ("meta.helm.sh/release-name", "Helm")
    ],
)
@pytest.mark.parametrize("place", ["annotations", "labels"])
def test_gitops_is_acted_on_unless_the_rule_only_reports(place: str, mark: str, tool: str) -> None:
    thing = pointers.replace(EXAMPLES["deployment"], ("metadata", place), {mark: "x"})
    reports = msgspec.structs.replace(RULE, action=idle.Action(type=idle.ActionType.pause, gitops="report"))
    assert word(thing, RULE) is None
    assert word(thing, reports) == "GitOpsManaged"
    assert kinds.gitops_tool(workload_of(identified(thing))) == tool


def test_a_budget_vetoes_only_where_the_rule_respects_it() -> None:
    budget = examples.companion_of(
        identified(make("policy/v1", "PodDisruptionBudget", {"minAvailable": 1})), kinds.BUDGET_READS
    )
    respects = msgspec.structs.replace(RULE, action=idle.Action(type=idle.ActionType.pause, respect_pdb=True))
    assert word(EXAMPLES["deployment"], RULE, budgets=(budget,)) is None
    assert word(EXAMPLES["deployment"], respects, budgets=(budget,)) == "PdbProtected"
    assert word(EXAMPLES["deployment"], respects) is None
    assert word(EXAMPLES["deployment"], respects, budgets=Unseen("403")) == "PdbProtected"
    assert word(EXAMPLES["deployment"], RULE, budgets=Unseen("403")) is None


@pytest.mark.parametrize(
    ("which", "deployment", "service", "job"),
    [
        ("hpas", "Unseen", None, None), ("scaled_objects", "Unseen", None, None),
        ("kueue", None, None, "KueueWorkloadUnclear"),
    ],
)
def test_who_may_steer_it_and_cannot_be_seen_speaks_against_a_pause(
    which: str, deployment: str | None, service: str | None, job: str | None
) -> None:
    found = [word(EXAMPLES[name], **{which: Unseen("403")}) for name in ("deployment", "isvc", "job")]
    assert found == [deployment, service, job]


@pytest.mark.accepts("idle", 13)
def test_an_unknown_owner_without_scale_has_no_row() -> None:
    trouble = cluster.Trouble.ManagedByUnknownOwner
    assert kinds.of(workload_of(identified(make("example.com/v1", "Opaque")), trouble=trouble)) is None


def test_a_generic_kind_whose_replicas_nobody_may_read_is_left_alone() -> None:
    thing = make("example.com/v1", "Unread", {"size": 3})
    assert word(thing, body={}) == "ReplicasUnknown"
    seen = workload_of(identified(thing), body={"spec": {"replicas": 3}})  # its /scale
    kind = kinds.of(seen)
    assert kind is not None
    assert kinds.way(kind, seen) is kinds.Way.scale
    assert objections.find(kind, seen, RULE) is None


@pytest.mark.parametrize(
    ("body", "paused"),
    [({}, False), ({"spec": {"replicas": 3}}, False), ({"spec": {"replicas": 0}}, True), ({"spec": {}}, True)],
    ids=["unread", "at-3", "at-0", "0-left-out"],
)
def test_a_scale_without_its_count_is_at_0_and_one_that_was_not_read_is_not(body: dict[str, Any], paused: bool) -> None:
    workload = workload_of(identified(make("example.com/v1", "Unread", {"size": 3})), body=body)
    kind = kinds.of(workload)
    assert kind is not None
    assert kinds.is_paused(kind, workload) is paused


@pytest.mark.parametrize(
    "text", [
        None, "", "{", "[]", '{"v":2,"fields":{}}', '{"v":1}', '{"v":1,"fields":{"spec":1}}', '{"v":1,"fields":[]}',
        "\ud800"
    ],
    ids=["none", "empty", "broken", "list", "version", "no-fields", "no-pointer", "wrong-type", "half-a-character"],
)
def test_a_record_that_cannot_be_trusted_is_none(text: str | None) -> None:
    assert record.read(text) is None


def test_a_record_that_is_nested_too_deep_is_none_or_is_refused() -> None:
    nested = [f'{{"v":1,"fields":{{"/spec/replicas":{"[" * deep}{"]" * deep}}}}}' for deep in (3000, 500)]
    assert record.read(nested[0]) is None
    found = record.read(nested[1])
    assert found is not None
    assert record.find_fault(found, ["/spec/replicas"]) == "a list for /spec/replicas, which that cannot have been"


def test_a_record_reads_back_as_it_was_written() -> None:
    known = record.Record(
        1, {"/spec/replicas": 3, "/spec/x": None}, (record.CompanionName("keda.sh/v1alpha1", "ScaledObject", "so"),)
    )
    text = record.write(known)
    companion = '{"apiVersion":"keda.sh/v1alpha1","kind":"ScaledObject","name":"so"}'
    assert text == f'{{"v":1,"fields":{{"/spec/replicas":3,"/spec/x":null}},"companions":[{companion}]}}'
    assert record.read(text) == known
