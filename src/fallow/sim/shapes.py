"""How workloads look in Kubernetes: the object that people write, what its operator makes below it, its pods, and nodes with GPUs.

In: plain facts (kind, name, replicas, GPUs). Out: JSON objects as an API server would show them, without what a server adds itself.
`wanted` is the other direction: how many replicas an operator would keep for an object as it stands. It follows the operators' own
documentation and knows nothing of the table by which the product pauses, so that a mistake there shows here.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from fallow import names
from fallow.model import units
from fallow.model.units import Instant

Object: TypeAlias = dict[str, Any]
Link: TypeAlias = tuple[str, str]  # apiVersion, kind

SUSPENDED_JOBS = ("Job", "JobSet", "TrainJob", "AppWrapper", "RayJob", "RayCluster", "RayService")
TRAINING_JOBS = ("PyTorchJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob", "MPIJob")
EXPORTERS = "gpu-operator"  # where the exporters run

_REPLICA_SET: Link = ("apps/v1", "ReplicaSet")
_STATEFUL_SET: Link = ("apps/v1", "StatefulSet")
_DEPLOYMENT: Link = ("apps/v1", "Deployment")
_JOB: Link = ("batch/v1", "Job")


class Row(msgspec.Struct, frozen=True):
    """One kind: where it is served, and which objects stand between it and its pods, from the top."""

    api_version: str
    links: tuple[Link, ...] = ()


ROWS: Mapping[str, Row] = {
    "Deployment": Row("apps/v1", (_REPLICA_SET,)),
    "ReplicaSet": Row("apps/v1"),
    "StatefulSet": Row("apps/v1"),
    "Job": Row("batch/v1"),
    "LeaderWorkerSet": Row("leaderworkerset.x-k8s.io/v1", (_STATEFUL_SET,)),
    "Rollout": Row("argoproj.io/v1alpha1", (_REPLICA_SET,)),
    "Notebook": Row("kubeflow.org/v1", (_STATEFUL_SET,)),
    "Workspace": Row("kubeflow.org/v1beta1", (_STATEFUL_SET,)),
    "InferenceService": Row("serving.kserve.io/v1beta1", (_DEPLOYMENT, _REPLICA_SET)),
    "LLMInferenceService": Row("serving.kserve.io/v1alpha2", (_DEPLOYMENT, _REPLICA_SET)),
    "JobSet": Row("jobset.x-k8s.io/v1alpha2", (_JOB,)),
    "TrainJob": Row("trainer.kubeflow.org/v1alpha1", (("jobset.x-k8s.io/v1alpha2", "JobSet"), _JOB)),
    "AppWrapper": Row("workload.codeflare.dev/v1beta2", (_JOB,)),
    "RayCluster": Row("ray.io/v1"),
    "RayJob": Row("ray.io/v1", (("ray.io/v1", "RayCluster"),)),
    "RayService": Row("ray.io/v1", (("ray.io/v1", "RayCluster"),)),
    **{kind: Row("kubeflow.org/v1") for kind in TRAINING_JOBS},
}
SCALED = ("Deployment", "ReplicaSet", "StatefulSet", "Rollout", "LeaderWorkerSet", "LLMInferenceService")


# ---- the object that people write ---------------------------------------------------------------------------------------------


def make_workload(
    kind: str, namespace: str, name: str, *, replicas: int, gpus: int, resource: str = names.GPU, labels: Mapping[str, str] | None = None,
    group_size: int = 1,
) -> Object:
    """`group_size`: pods per replica, where a replica is a leader with its workers."""
    template = _template(name, gpus, resource)
    metadata = {"name": name, "namespace": namespace, "labels": {"app": name, **(labels or {})}, "annotations": {}}
    spec = _SPECS.get(kind, _bare_spec)(name, replicas, template, group_size)
    return {"apiVersion": ROWS[kind].api_version, "kind": kind, "metadata": metadata, "spec": spec}


def _template(name: str, gpus: int, resource: str) -> Object:
    container = {"name": "main", "image": f"registry.example.com/{name}:1", "resources": {"limits": {resource: str(gpus)}}}
    return {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}}


def _replicated_spec(name: str, replicas: int, template: Object, group_size: int) -> Object:
    return {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}


def _ordered_spec(name: str, replicas: int, template: Object, group_size: int) -> Object:
    return {**_replicated_spec(name, replicas, template, group_size), "serviceName": name}


def _group_spec(name: str, replicas: int, template: Object, group_size: int) -> Object:
    return {"replicas": replicas, "leaderWorkerTemplate": {"size": group_size, "workerTemplate": template}}


def _job_spec(name: str, replicas: int, template: Object, group_size: int) -> Object:
    return {"parallelism": replicas, "completions": replicas, "suspend": False, "template": template}


def _training_spec(name: str, replicas: int, template: Object, group_size: int) -> Object:
    return {"runPolicy": {"suspend": False}, "replicaSpecs": {"Worker": {"replicas": replicas, "template": template}}}


def _service_spec(name: str, replicas: int, template: Object, group_size: int) -> Object:
    return {"predictor": {"minReplicas": replicas, "containers": template["spec"]["containers"]}}


def _llm_spec(name: str, replicas: int, template: Object, group_size: int) -> Object:
    return {"replicas": replicas, "template": template["spec"]}


def _ray_cluster_spec(name: str, replicas: int, template: Object, group_size: int) -> Object:
    return {"suspend": False, "workerGroupSpecs": [{"groupName": "gpu", "replicas": replicas, "template": template}]}


def _ray_job_spec(name: str, replicas: int, template: Object, group_size: int) -> Object:
    inner = _ray_cluster_spec(name, replicas, template, group_size)
    return {"suspend": False, "shutdownAfterJobFinishes": True, "rayClusterSpec": inner}


def _bare_spec(name: str, replicas: int, template: Object, group_size: int) -> Object:
    return {"template": template}


_SPECS: Mapping[str, Callable[[str, int, Object, int], Object]] = {
    "Deployment": _replicated_spec, "ReplicaSet": _replicated_spec, "Rollout": _replicated_spec, "StatefulSet": _ordered_spec,
    "LeaderWorkerSet": _group_spec, "Job": _job_spec, "JobSet": _job_spec, "TrainJob": _job_spec, "AppWrapper": _job_spec,
    "InferenceService": _service_spec, "LLMInferenceService": _llm_spec, "RayCluster": _ray_cluster_spec, "RayService": _ray_cluster_spec,
    "RayJob": _ray_job_spec, **dict.fromkeys(TRAINING_JOBS, _training_spec),
}


# ---- what its operator makes --------------------------------------------------------------------------------------------------


def own(child: Object, owner: Object) -> Object:
    """The child with its controller reference."""
    reference = {
        "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"],
        "controller": True, "blockOwnerDeletion": True,
    }
    return {**child, "metadata": {**child["metadata"], "ownerReferences": [reference]}}


def make_link(link: Link, above: Object, replicas: int) -> Object:
    """The next object down: a ReplicaSet below a Deployment, a StatefulSet below a Notebook."""
    api_version, kind = link
    meta = above["metadata"]
    labels = dict(meta.get("labels", {}))
    if above["kind"] == "InferenceService":
        labels[names.KSERVE_ISVC_LABEL] = meta["name"]
    suffix = {"ReplicaSet": "-7d4c9b6f5", "Deployment": "-predictor", "RayCluster": "-raycluster", "Job": "-worker-0"}.get(kind, "")
    metadata = {"name": meta["name"] + suffix, "namespace": meta["namespace"], "labels": labels}
    spec = _SPECS[kind](labels["app"], replicas, _template(labels["app"], 1, names.GPU), 1)
    return own({"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}, above)


def wanted(thing: Object) -> int | None:
    """How many replicas its operator keeps for it as it stands; None = whatever it had (it has no count, and is not stopped)."""
    kind, spec, marks = thing["kind"], thing.get("spec", {}), thing["metadata"].get("annotations") or {}
    if kind in ("InferenceService", "LLMInferenceService") and marks.get(names.KSERVE_STOP, "").lower() == "true":
        return 0
    if kind == "Notebook":
        return 0 if names.NOTEBOOK_STOPPED in marks else None
    if kind == "Workspace":
        return 0 if spec.get("paused") else None
    if kind in TRAINING_JOBS:
        return 0 if spec.get("runPolicy", {}).get("suspend") else None
    if kind in SUSPENDED_JOBS:
        return 0 if spec.get("suspend") else None
    if kind == "InferenceService":
        return max(1, int(spec.get("predictor", {}).get("minReplicas", 1)))  # with an autoscaler KServe reads 0 as 1
    return int(spec.get("replicas", 1))


def make_status(thing: Object, running: int, now: Instant, *, finished: bool = False) -> Object:
    """What its operator says of it."""
    kind, stopped = thing["kind"], wanted(thing) == 0
    at = units.rfc3339(now)
    if finished:
        phase = {"RayJob": {"jobDeploymentStatus": "Complete"}, "AppWrapper": {"phase": "Succeeded"}}.get(kind, {})
        return {"conditions": [_condition("Succeeded" if kind in TRAINING_JOBS else "Complete", "True", at)], **phase}
    if kind in ("InferenceService", "LLMInferenceService"):
        ready = _condition("Ready", "False" if stopped else "True", at, "Stopped" if stopped else "")
        return {"deploymentMode": "Standard", "conditions": [ready, _condition("Stopped", str(stopped), at)]}
    if kind in SUSPENDED_JOBS + TRAINING_JOBS:
        conditions = [_condition("Suspended", "True", at)] if stopped else []
        words = {"RayJob": {"jobDeploymentStatus": "Suspended" if stopped else "Running"},
                 "RayCluster": {"state": "suspended" if stopped else "ready"},
                 "AppWrapper": {"phase": "Suspended" if stopped else "Running"}}.get(kind, {})
        return {"active": running, "conditions": conditions, **words}
    return {"replicas": running, "readyReplicas": running, "availableReplicas": running}


def _condition(type_: str, status: str, at: str, reason: str = "") -> Object:
    return {"type": type_, "status": status, "lastTransitionTime": at, "reason": reason or type_}


# ---- pods and nodes -----------------------------------------------------------------------------------------------------------


def make_pod(
    owner: Object, name: str, *, node: str, ip: str, gpus: int, resource: str, started_at: Instant, labels: Mapping[str, str] | None = None
) -> Object:
    """A pod that runs since then, and is ready."""
    meta = owner["metadata"]
    app = {"app": meta.get("labels", {}).get("app", meta["name"]), **(labels or {})}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": meta["namespace"], "labels": app}}
    spec = {**_template(app["app"], gpus, resource)["spec"], "nodeName": node}
    return own({**pod, "spec": spec, "status": pod_status(started_at, ip)}, owner)


_WELL = ("PodScheduled", "Initialized", "ContainersReady", "Ready")


def pod_status(started_at: Instant, ip: str) -> Object:
    at = units.rfc3339(started_at)
    conditions = [{"type": type_, "status": "True", "lastTransitionTime": at} for type_ in _WELL]
    container = {"name": "main", "ready": True, "started": True, "restartCount": 0, "image": "", "imageID": ""}
    statuses = [{**container, "state": {"running": {"startedAt": at}}}]
    return {"phase": "Running", "startTime": at, "podIP": ip, "conditions": conditions, "containerStatuses": statuses}


def make_exporter(node: str, port: int, ip: str = "127.0.0.1") -> Object:
    """The pod of a node's dcgm-exporter, on the network of its host."""
    labels = {names.NAME_LABEL: names.DCGM_EXPORTER, "app": names.DCGM_APP}
    container = {"name": "main", "image": "registry.example.com/dcgm-exporter:4", "ports": [{"name": "metrics", "containerPort": port}]}
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": f"dcgm-exporter-{node}", "namespace": EXPORTERS, "labels": labels},
        "spec": {"containers": [container], "nodeName": node, "hostNetwork": True}, "status": pod_status(0.0, ip),
    }


def waiting_status(since: Instant) -> Object:
    """Of a pod that no node has room for."""
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": units.rfc3339(since)}
    return {"phase": "Pending", "conditions": [condition]}


def make_node(name: str, *, model: str, gpus: int, ip: str, mode: str = "whole", slices: int = 1, resource: str = names.GPU) -> Object:
    """`mode`: whole, mig or time-sliced; then each GPU is offered as so many slices."""
    labels = {names.HOSTNAME: name, names.GPU_PRODUCT: model.replace(" ", "-"), names.GPU_COUNT: str(gpus)}
    if mode == "time-sliced":
        labels |= {names.GPU_REPLICAS: str(slices), names.GPU_SHARING: "time-slicing"}
    amount = {resource: str(gpus * slices), "cpu": "192", "memory": "2Ti", "pods": "110"}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": {},
            "status": {"capacity": amount, "allocatable": amount, **node_status(ip, ready=True, since=0.0)}}


def node_status(ip: str, *, ready: bool, since: Instant) -> Object:
    condition = {
        "type": "Ready", "status": "True" if ready else "Unknown", "reason": "KubeletReady" if ready else "NodeStatusUnknown",
        "lastTransitionTime": units.rfc3339(since), "lastHeartbeatTime": units.rfc3339(since),
    }
    return {"conditions": [condition], "addresses": [{"type": "InternalIP", "address": ip}, {"type": "Hostname", "address": ip}],
            "nodeInfo": {"kubeletVersion": "v1.36.3", "operatingSystem": "linux", "architecture": "amd64"}}


# ---- definitions of the foreign kinds -----------------------------------------------------------------------------------------


def make_definitions() -> list[Object]:
    """CustomResourceDefinitions of every kind above that Kubernetes itself does not have; their specs are left open."""
    versions: dict[tuple[str, str], str] = {}
    for kind, row in ROWS.items():
        group, _, version = row.api_version.rpartition("/")
        if "." in group:
            versions[group, kind] = version
    return [_definition(group, kind, version) for (group, kind), version in versions.items()]


def _definition(group: str, kind: str, version: str) -> Object:
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    parts: Object = {"status": {}}
    if kind in SCALED:
        parts["scale"] = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
    schema = {"type": "object", "properties": {"spec": anything, "status": anything}}
    served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}, "subresources": parts}
    plural = f"{kind.lower()}es" if kind.endswith("s") else f"{kind.lower()}s"
    called = {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}", "annotations": {"api-approved.kubernetes.io": "unapproved, pretend world"}},
        "spec": {"group": group, "names": called, "scope": "Namespaced", "versions": [served]},
    }
