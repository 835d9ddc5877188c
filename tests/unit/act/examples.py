"""One object of every kind we can pause, and Workloads made of objects, as the eyes would make them.

`EXAMPLES` is a table of (id, object, companions): adding a kind to the product is adding a line here.
"""

from __future__ import annotations

import copy
from typing import Any

from tests import builders

from fallow.model import cluster, decision, kinds, pointers
from fallow.model.policies import idle

NOW = 1_794_700_000.0  # 2026-11-14
Object = dict[str, Any]


def make(
    api_version: str, kind: str, spec: Object | None = None, *, name: str = "llm", status: Object | None = None,
    **metadata: Any,
) -> Object:
    named = {"name": name, "namespace": "team-a", **metadata}
    thing: Object = {"apiVersion": api_version, "kind": kind, "metadata": named, "spec": spec or {}}
    return thing | ({"status": status} if status else {})


ROLES = [
    {"name": "prefill", "spec": {"replicas": 2, "template": {"a": 1}}}, {"name": "decode", "spec": {"replicas": 4}},
]
TEMPLATE = {"metadata": {"annotations": {"autoscaling.knative.dev/min-scale": "2"}}}
STOPPED_RAY_JOB = {"shutdownAfterJobFinishes": True, "entrypoint": "python train.py"}

EXAMPLES: dict[str, Object] = {
    "deployment": make("apps/v1", "Deployment", {"replicas": 3}),
    "replicaset": make("apps/v1", "ReplicaSet", {"replicas": 1}),
    "statefulset": make("apps/v1", "StatefulSet", {"replicas": 2}),
    "lws": make("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", {"replicas": 2}),
    "disaggregated": make("disaggregatedset.x-k8s.io/v1", "DisaggregatedSet", {"roles": ROLES}),
    "rollout": make("argoproj.io/v1alpha1", "Rollout", {"replicas": 5}),
    "rollout-without-replicas": make("argoproj.io/v1alpha1", "Rollout", {"strategy": {}}),
    "notebook": make("kubeflow.org/v1", "Notebook", {}),
    "workspace": make("kubeflow.org/v1beta1", "Workspace", {"paused": False}),
    "isvc": make("serving.kserve.io/v1beta1", "InferenceService", {"predictor": {"minReplicas": 2}}),
    "isvc-stop-false": make(
        "serving.kserve.io/v1beta1", "InferenceService", {"predictor": {}},
        annotations={"serving.kserve.io/stop": "false"},
    ),
    "llm": make("serving.kserve.io/v1alpha2", "LLMInferenceService", {"replicas": 2}),
    "llm-prefill": make(
        "serving.kserve.io/v1alpha2", "LLMInferenceService", {"replicas": 2, "prefill": {"replicas": 1}}
    ),
    "llm-prefill-uncounted": make(
        "serving.kserve.io/v1alpha2", "LLMInferenceService", {"replicas": 2, "prefill": {"template": {}}}
    ),
    "llm-scaled": make(
        "serving.kserve.io/v1alpha2", "LLMInferenceService", {"replicas": 2, "scaling": {"maxReplicas": 4}}
    ),
    "llm-default": make("serving.kserve.io/v1alpha1", "LLMInferenceService", {}),
    "knative": make("serving.knative.dev/v1", "Service", {"template": TEMPLATE}),
    "knative-bare": make("serving.knative.dev/v1", "Service", {"template": {"spec": {"x": 1}}}),
    "job": make("batch/v1", "Job", {"suspend": False}),
    "job-unsaid": make("batch/v1", "Job", {}),
    "cronjob": make("batch/v1", "CronJob", {"suspend": False, "concurrencyPolicy": "Forbid"}),
    "jobset": make("jobset.x-k8s.io/v1alpha2", "JobSet", {}),
    "trainjob": make(
        "trainer.kubeflow.org/v1alpha1", "TrainJob", {"managedBy": "trainer.kubeflow.org/trainjob-controller"}
    ),
    "appwrapper": make("workload.codeflare.dev/v1beta2", "AppWrapper", {}),
    "pytorchjob": make("kubeflow.org/v1", "PyTorchJob", {"runPolicy": {"suspend": False}}),
    "pytorchjob-no-runpolicy": make("kubeflow.org/v1", "PyTorchJob", {}),
    "tfjob-other-runpolicy": make("kubeflow.org/v1", "TFJob", {"runPolicy": {"cleanPodPolicy": "None"}}),
    "xgboostjob": make("kubeflow.org/v1", "XGBoostJob", {}),
    "paddlejob": make("kubeflow.org/v1", "PaddleJob", {}),
    "jaxjob": make("kubeflow.org/v1", "JAXJob", {}),
    "mpijob-v1": make("kubeflow.org/v1", "MPIJob", {}),
    "mpijob-v2": make("kubeflow.org/v2beta1", "MPIJob", {"runPolicy": {"backoffLimit": 1}}),
    "rayjob": make("ray.io/v1", "RayJob", STOPPED_RAY_JOB, status={"jobDeploymentStatus": "Running"}),
    "raycluster": make("ray.io/v1", "RayCluster", {"suspend": False}),
    "rayservice": make("ray.io/v1", "RayService", {}),
    "generic": make("example.com/v1", "Scalable", {"size": 7}),
}
POINTERS = {("example.com", "Scalable"): "/spec/size"}


def identified(thing: Object, uid: str = "u-1", version: str = "7") -> Object:
    """As the server would have it: with uid and resourceVersion."""
    found = copy.deepcopy(thing)
    found["metadata"] = {"uid": uid, "resourceVersion": version} | found["metadata"]
    return found


def ref_of(thing: Object) -> cluster.Ref:
    group, _, version = thing["apiVersion"].rpartition("/")
    metadata = thing["metadata"]
    return cluster.Ref(group, version, thing["kind"], metadata["namespace"], metadata["name"], metadata["uid"])


def companion_of(thing: Object, reads: tuple[str, ...]) -> cluster.Companion:
    metadata, body = thing["metadata"], pointers.prune(thing, reads)
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    return cluster.Companion(ref_of(thing), metadata["resourceVersion"], labels, annotations, body)


def workload_of(thing: Object, **more: Any) -> cluster.Workload:
    """The Workload that the eyes make of an object as the server has it."""
    ref, metadata = ref_of(thing), thing["metadata"]
    annotations = metadata.get("annotations") or {}
    pointer = POINTERS.get((ref.group, ref.kind))
    row = kinds.find(ref.group, ref.kind) or kinds.generic(ref.group, ref.version, ref.kind, pointer)
    chain = (cluster.Owner(ref.group, ref.version, ref.kind, ref.name, ref.uid),)
    base: dict[str, Any] = {
        "ref": ref, "resource_version": metadata["resourceVersion"], "labels": metadata.get("labels") or {},
        "annotations": annotations, "body": pointers.prune(thing, row.reads), "pods": (), "chain": chain,
        "chain_bodies": (), "trouble": None, "trouble_because": "", "marks_ref": ref, "marks": annotations,
        "replicas_pointer": pointer, **{name: builders.steering(more.pop(name, ())) for name in builders.STEERING},
    }
    if row.marks_on:
        child = cluster.Ref(row.marks_on[0], "v1", row.marks_on[1], ref.namespace, f"{ref.name}-predictor", "u-child")
        base |= {"marks_ref": child, "marks": {}, "marks_version": "3"}
    return cluster.Workload(**base | more)


RULE = idle.Rule(name="default", action=idle.Action(type=idle.ActionType.pause, allow_knative_rollout=True))


def finding_of(workload: cluster.Workload, rule: idle.Rule = RULE, gpus: int = 12) -> decision.Finding:
    return decision.Finding(
        workload=workload, verdict=decision.Verdict.idle, reason=decision.Reason.GoneIdle, because="quiet", rule=rule,
        gpus=gpus, idle_gpus=gpus, models=("NVIDIA A100",), window=1800.0, idle_since=NOW - 47 * 60,
    )


def pause_of(
    workload: cluster.Workload, rule: idle.Rule = RULE, reason: str = "12 GPUs idle for 47m"
) -> decision.Pause:
    return decision.Pause(finding_of(workload, rule), reason)


def pod(name: str = "llm-0", *, ip: str = "127.0.0.1", hook: str | None = None) -> cluster.Pod:
    annotations = {"gpuautoscaler.io/pre-pause": hook} if hook is not None else {}
    return cluster.Pod(
        namespace="team-a", name=name, uid=f"p-{name}", node="n1", phase="Running", terminating=False, owner=None,
        labels={}, annotations=annotations, resources={"nvidia.com/gpu": 8}, claims=(), claimed=0,
        created_at=NOW - 9e4, started_at=NOW - 9e4, ready=True, ready_since=NOW - 9e4, ip=ip, static=False,
        node_selector={}, affinity=None, unschedulable_since=None,
    )
