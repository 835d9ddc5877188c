"""How workloads look in Kubernetes: the object that people write, what its operator makes of it, and nodes with GPUs.

In: plain facts (kind, name, replicas, GPUs). Out: JSON objects as an API server would show them, without what a server
adds itself. `wanted` is the other direction: how many replicas an operator would keep for an object as it stands. It
follows the operators' own documentation and knows nothing of the table by which the product pauses, so that a mistake
there shows here.
"""

from collections.abc import Mapping
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
_UNAPPROVED = "unapproved, pretend world"
_WELL = ("PodScheduled", "Initialized", "ContainersReady", "Ready")  # conditions of a pod that runs

_REPLICA_SET: Link = ("apps/v1", "ReplicaSet")
_STATEFUL_SET: Link = ("apps/v1", "StatefulSet")
_DEPLOYMENT: Link = ("apps/v1", "Deployment")
_JOB: Link = ("batch/v1", "Job")


class KindShape(msgspec.Struct, frozen=True):
    """One kind: where it is served, and which objects stand between it and its pods, from the top."""

    api_version: str
    links: tuple[Link, ...] = ()


SHAPES: Mapping[str, KindShape] = {
    "Deployment": KindShape("apps/v1", (_REPLICA_SET,)),
    "ReplicaSet": KindShape("apps/v1"),
    "StatefulSet": KindShape("apps/v1"),
    "Job": KindShape("batch/v1"),
    "LeaderWorkerSet": KindShape("leaderworkerset.x-k8s.io/v1", (_STATEFUL_SET,)),
    "Rollout": KindShape("argoproj.io/v1alpha1", (_REPLICA_SET,)),
    "Notebook": KindShape("kubeflow.org/v1", (_STATEFUL_SET,)),
    "Workspace": KindShape("kubeflow.org/v1beta1", (_STATEFUL_SET,)),
    "InferenceService": KindShape("serving.kserve.io/v1beta1", (_DEPLOYMENT, _REPLICA_SET)),
    "LLMInferenceService": KindShape("serving.kserve.io/v1alpha2", (_DEPLOYMENT, _REPLICA_SET)),
    "JobSet": KindShape("jobset.x-k8s.io/v1alpha2", (_JOB,)),
    "TrainJob": KindShape("trainer.kubeflow.org/v1alpha1", (("jobset.x-k8s.io/v1alpha2", "JobSet"), _JOB)),
    "AppWrapper": KindShape("workload.codeflare.dev/v1beta2", (_JOB,)),
    "RayCluster": KindShape("ray.io/v1"),
    "RayJob": KindShape("ray.io/v1", (("ray.io/v1", "RayCluster"),)),
    "RayService": KindShape("ray.io/v1", (("ray.io/v1", "RayCluster"),)),
    **{kind: KindShape("kubeflow.org/v1") for kind in TRAINING_JOBS},
}
_SUFFIXES = {"ReplicaSet": "-7d4c9b6f5", "Deployment": "-predictor", "RayCluster": "-raycluster", "Job": "-worker-0"}
_SHARING = {"time-sliced": "time-slicing", "mps": "mps"}  # as NVIDIA's feature discovery says it
SCALED = ("Deployment", "ReplicaSet", "StatefulSet", "Rollout", "LeaderWorkerSet", "LLMInferenceService")


def make_workload(
    kind: str, namespace: str, name: str, uid: str, *, replicas: int, gpus: int, resource: str, group_size: int,
    class_: str, annotations: Mapping[str, str] | None = None,
) -> Object:
    """As its owner wrote it, in its first version, running. `group_size`: pods per replica."""
    metadata = {
        "name": name, "namespace": namespace, "labels": {"app": name, names.WORKLOAD_TYPE: class_},
        "annotations": dict(annotations or {}),
        "uid": uid, "resourceVersion": "1",
    }
    spec = _make_spec(kind, name, replicas, _template(name, gpus, resource), group_size)
    made = {"apiVersion": SHAPES[kind].api_version, "kind": kind, "metadata": metadata, "spec": spec}
    return {**made, "status": make_status(made, replicas, 0.0)}


def _template(name: str, gpus: int, resource: str) -> Object:
    limits = {"limits": {resource: str(gpus)}}
    container = {"name": "main", "image": f"registry.example.com/{name}:1", "resources": limits}
    return {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}}


def _make_spec(kind: str, name: str, replicas: int, template: Object, group_size: int = 1) -> Object:
    replicated = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    workers = [{"groupName": "gpu", "replicas": replicas, "template": template}]
    match kind:
        case "Deployment" | "ReplicaSet" | "Rollout":
            return replicated
        case "StatefulSet":
            return {**replicated, "serviceName": name}
        case "LeaderWorkerSet":
            return {"replicas": replicas, "leaderWorkerTemplate": {"size": group_size, "workerTemplate": template}}
        case "Job" | "JobSet" | "TrainJob" | "AppWrapper":
            return {"parallelism": replicas, "completions": replicas, "suspend": False, "template": template}
        case "InferenceService":
            return {"predictor": {"minReplicas": replicas, "containers": template["spec"]["containers"]}}
        case "LLMInferenceService":
            return {"replicas": replicas, "template": template["spec"]}
        case "RayCluster" | "RayService":
            return {"suspend": False, "workerGroupSpecs": workers}
        case "RayJob":
            inner = {"suspend": False, "workerGroupSpecs": workers}
            return {"suspend": False, "shutdownAfterJobFinishes": True, "rayClusterSpec": inner}
        case _ if kind in TRAINING_JOBS:
            worker = {"replicas": replicas, "template": template}
            return {"runPolicy": {"suspend": False}, "replicaSpecs": {"Worker": worker}}
    return {"template": template}


def own(child: Object, owner: Object) -> Object:
    """The child with its controller reference."""
    meta = owner["metadata"]
    reference = {
        "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": meta["name"], "uid": meta["uid"],
        "controller": True, "blockOwnerDeletion": True,
    }
    return {**child, "metadata": {**child["metadata"], "ownerReferences": [reference]}}


def make_link(link: Link, above: Object, replicas: int) -> Object:
    """The next object down: a ReplicaSet below a Deployment, a StatefulSet below a Notebook."""
    (api_version, kind), meta = link, above["metadata"]
    labels = dict(meta.get("labels", {}))
    if above["kind"] == "InferenceService":
        labels[names.KSERVE_ISVC_LABEL] = meta["name"]
    metadata = {"name": meta["name"] + _SUFFIXES.get(kind, ""), "namespace": meta["namespace"], "labels": labels}
    spec = _make_spec(kind, labels["app"], replicas, _template(labels["app"], 1, names.GPU))
    return own({"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}, above)


def wanted(thing: Object) -> int | None:
    """How many replicas its operator keeps for it as it stands; None = as many as it had: it is not stopped."""
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
        word = "Suspended" if stopped else "Running"
        own = {"RayJob": {"jobDeploymentStatus": word}, "RayCluster": {"state": "suspended" if stopped else "ready"},
               "AppWrapper": {"phase": word}}
        return {"active": running, "conditions": conditions, **own.get(kind, {})}
    return {"replicas": running, "readyReplicas": running, "availableReplicas": running}


def _condition(type_: str, status: str, at: str, reason: str = "") -> Object:
    return {"type": type_, "status": status, "lastTransitionTime": at, "reason": reason or type_}


def make_pod(
    owner: Object, name: str, *, node: str, gpus: int, resource: str, labels: Mapping[str, str], status: Object
) -> Object:
    meta, said = owner["metadata"], owner["metadata"].get("labels", {})
    app, own_labels = said.get("app", meta["name"]), {key: said[key] for key in (names.WORKLOAD_TYPE,) if key in said}
    metadata = {"name": name, "namespace": meta["namespace"], "labels": {"app": app, **own_labels, **labels}}
    spec = {**_template(app, gpus, resource)["spec"], "nodeName": node}
    return own({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}, owner)


def waiting_status(since: Instant) -> Object:
    """Of a pod that no node has room for."""
    why = {"status": "False", "reason": "Unschedulable", "lastTransitionTime": units.rfc3339(since)}
    return {"phase": "Pending", "conditions": [{"type": "PodScheduled", **why}]}


def starting_status(bound_at: Instant) -> Object:
    """Of a pod that was given a node then, and does not run yet."""
    bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": units.rfc3339(bound_at)}
    return {"phase": "Pending", "conditions": [bound, {"type": "Ready", "status": "False"}]}


def running_status(started_at: Instant, ip: str, bound_at: Instant | None = None) -> Object:
    """Of a pod that runs since then, and is ready."""
    at = units.rfc3339(started_at)
    bound = units.rfc3339(started_at if bound_at is None else bound_at)
    times = {"PodScheduled": bound}
    conditions = [{"type": type_, "status": "True", "lastTransitionTime": times.get(type_, at)} for type_ in _WELL]
    container = {"name": "main", "ready": True, "started": True, "restartCount": 0, "image": "", "imageID": ""}
    statuses = [{**container, "state": {"running": {"startedAt": at}}}]
    return {"phase": "Running", "startTime": at, "podIP": ip, "conditions": conditions, "containerStatuses": statuses}


def ended_status(status: Object, at: Instant) -> Object:
    """Of a pod whose containers ended then; one that never ran has none."""
    ended = {"terminated": {"exitCode": 0, "finishedAt": units.rfc3339(at)}}
    over = [{**each, "ready": False, "state": ended} for each in status.get("containerStatuses", ())]
    return {**status, "containerStatuses": over} if over else status


def name_exporter(node: str) -> str:
    return f"dcgm-exporter-{node}"


def make_exporter(node: str, port: int) -> Object:
    """The pod of a node's dcgm-exporter, on the network of its host, which is this machine."""
    labels = {names.NAME_LABEL: names.DCGM_EXPORTER, "app": names.DCGM_APP}
    ports = [{"name": "metrics", "containerPort": port}]
    container = {"name": "main", "image": "registry.example.com/dcgm-exporter:4", "ports": ports}
    above = {"name": names.DCGM_APP, "namespace": EXPORTERS, "uid": f"{names.DCGM_APP}-daemonset"}
    return own({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name_exporter(node), "namespace": EXPORTERS, "labels": labels},
        "spec": {"containers": [container], "nodeName": node, "hostNetwork": True},
        "status": running_status(0.0, "127.0.0.1"),
    }, {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": above})


def make_node(
    name: str, *, model: str, gpus: int, ip: str, mode: str, slices: int, resource: str, pool: str = "",
    machine: str = "", labels: Mapping[str, str] | None = None, annotations: Mapping[str, str] | None = None,
) -> Object:
    """`mode`: whole, mig, time-sliced or mps; then each GPU is offered as so many slices. `machine`: the cloud's id."""
    known = {names.HOSTNAME: name, names.GPU_PRODUCT: model.replace(" ", "-"), names.GPU_COUNT: str(gpus)}
    if pool:
        known |= {names.NODE_POOL: pool}
    if mode in _SHARING:
        known |= {names.GPU_REPLICAS: str(slices), names.GPU_SHARING: _SHARING[mode]}
    amount = {resource: str(gpus * slices), "cpu": "192", "memory": "2Ti", "pods": "110"}
    status = {"capacity": amount, "allocatable": amount, **node_status(ip, ready=True, since=0.0)}
    metadata = {"name": name, "labels": {**known, **(labels or {})}, "annotations": dict(annotations or {})}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status,
            "spec": {"providerID": machine} if machine else {}}


def node_status(ip: str, *, ready: bool, since: Instant) -> Object:
    at, (word, reason) = units.rfc3339(since), ("True", "KubeletReady") if ready else ("Unknown", "NodeStatusUnknown")
    return {
        "conditions": [{**_condition("Ready", word, at, reason), "lastHeartbeatTime": at}],
        "addresses": [{"type": type_, "address": ip} for type_ in ("InternalIP", "Hostname")],
        "nodeInfo": {"kubeletVersion": "v1.36.3", "operatingSystem": "linux", "architecture": "amd64"},
    }


def make_definitions() -> list[Object]:
    """CustomResourceDefinitions of every kind above that Kubernetes itself does not have; their specs are left open."""
    served = [(kind, *shape.api_version.split("/")) for kind, shape in SHAPES.items()]
    return [_definition(group, kind, version) for kind, group, version in served if "." in group]


def _definition(group: str, kind: str, version: str) -> Object:
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    parts: Object = {"status": {}}
    if kind in SCALED:
        parts["scale"] = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
    schema = {"type": "object", "properties": {"spec": anything, "status": anything}}
    served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    versions = [{**served, "subresources": parts}]
    plural = f"{kind.lower()}es" if kind.endswith("s") else f"{kind.lower()}s"
    called = {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}", "annotations": {"api-approved.kubernetes.io": _UNAPPROVED}},
        "spec": {"group": group, "names": called, "scope": "Namespaced", "versions": versions},
    }
