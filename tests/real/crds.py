"""CustomResourceDefinitions of the foreign kinds that tests pause, as small as the tests allow and written by us.

Out: `KINDS`, by kind; `OLD_RAY_SERVICE`, as KubeRay had it before `spec.suspend`. Use:
`await cluster.apply_crds(crds.KINDS["JobSet"])`. Each declares the fields that somebody reads or patches, with their
real types; what only an operator would read (templates, triggers) is opaque.
Invariant: `spec` itself is closed, so a patch with a misspelt or unsupported field is refused under
fieldValidation=Strict just as the real definition would.
"""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]

TEXT, NUMBER, FLAG = {"type": "string"}, {"type": "integer", "format": "int32"}, {"type": "boolean"}
ANY: Object = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
LIST: Object = {"type": "array", "items": ANY}


def crd(
    group: str, kind: str, versions: tuple[str, ...], spec: Object, *, plural: str = "", scale: str = "",
    selector: str = "",
) -> Object:
    """One definition; all versions have the same shape and the last is stored. `scale` is the path of the replica
    count."""
    plural = plural or f"{kind.lower()}s"
    served = [_version(name, spec, scale, selector, stored=name == versions[-1]) for name in versions]
    names = {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        # API groups under *.k8s.io are refused without a word on their approval.
        "metadata": {
            "name": f"{plural}.{group}", "annotations": {"api-approved.kubernetes.io": "unapproved, for tests only"}
        },
        "spec": {"group": group, "names": names, "scope": "Namespaced", "versions": served},
    }


def _version(name: str, spec: Object, scale: str, selector: str, stored: bool) -> Object:
    parts: Object = {"status": {}}
    if scale:
        parts["scale"] = {"specReplicasPath": scale, "statusReplicasPath": ".status.replicas"}
        if selector:
            parts["scale"]["labelSelectorPath"] = selector
    schema = {"type": "object", "properties": {"spec": closed(**spec), "status": ANY}}
    return {
        "name": name, "served": True, "storage": stored, "schema": {"openAPIV3Schema": schema}, "subresources": parts
    }


def closed(**fields: Object) -> Object:
    """An object that has these fields and no others."""
    return {"type": "object", "properties": fields}


def opened(**fields: Object) -> Object:
    """An object that has these fields, and others that nobody here reads."""
    return {**closed(**fields), "x-kubernetes-preserve-unknown-fields": True}


def _training(kind: str, replicas: str, versions: tuple[str, ...] = ("v1",)) -> Object:
    """A job of the Kubeflow training operator: they differ in the name of their replica specs."""
    policy = closed(suspend=FLAG, managedBy=TEXT, cleanPodPolicy=TEXT, backoffLimit=NUMBER)
    return crd("kubeflow.org", kind, versions, {"runPolicy": policy, replicas: ANY})


_RAY_SERVICE = {"serveConfigV2": TEXT, "rayClusterConfig": ANY}
_RAY_JOB = {
    "suspend": FLAG,
    "shutdownAfterJobFinishes": FLAG,
    "clusterSelector": {"type": "object", "additionalProperties": TEXT},
    "entrypoint": TEXT,
    "rayClusterSpec": ANY,
    "submissionMode": TEXT,
    "managedBy": TEXT,
}
_LLM = {
    "replicas": NUMBER,
    "model": ANY,
    "template": ANY,
    "worker": ANY,
    "prefill": closed(replicas=NUMBER, template=ANY, worker=ANY),
    "router": ANY,
    "scaling": ANY,
}
_SCALED_OBJECT = {
    "scaleTargetRef": opened(apiVersion=TEXT, kind=TEXT, name=TEXT),
    "minReplicaCount": NUMBER,
    "maxReplicaCount": NUMBER,
    "idleReplicaCount": NUMBER,
    "pollingInterval": NUMBER,
    "cooldownPeriod": NUMBER,
    "triggers": LIST,
    "advanced": ANY,
}
_ROLLOUT = {"replicas": NUMBER, "paused": FLAG, "selector": ANY, "template": ANY, "strategy": ANY, "workloadRef": ANY}
_LEADER_WORKER = {"replicas": NUMBER, "leaderWorkerTemplate": ANY, "startupPolicy": TEXT, "rolloutStrategy": ANY}
_ROLES = {
    "type": "array", "items": {**closed(name=TEXT, spec=opened(replicas=NUMBER)), "required": ["name"]},
    "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
}
_PREDICTOR = opened(minReplicas={**NUMBER, "minimum": 0}, maxReplicas=NUMBER, containers=LIST)

_ALL = (
    crd("kubeflow.org", "Notebook", ("v1",), {"template": ANY}),
    crd("kubeflow.org", "Workspace", ("v1beta1",), {"paused": FLAG, "kind": TEXT, "podTemplate": ANY}),
    crd(
        "serving.kserve.io", "InferenceService", ("v1beta1",),
        {"predictor": _PREDICTOR, "transformer": ANY, "explainer": ANY},
    ),
    crd("serving.kserve.io", "LLMInferenceService", ("v1alpha1", "v1alpha2"), _LLM),
    crd(
        "leaderworkerset.x-k8s.io", "LeaderWorkerSet", ("v1",), _LEADER_WORKER, scale=".spec.replicas",
        selector=".status.hpaPodSelector",
    ),
    crd("disaggregatedset.x-k8s.io", "DisaggregatedSet", ("v1",), {"roles": _ROLES}),
    crd("argoproj.io", "Rollout", ("v1alpha1",), _ROLLOUT, scale=".spec.replicas", selector=".status.selector"),
    crd("jobset.x-k8s.io", "JobSet", ("v1alpha2",), {"suspend": FLAG, "managedBy": TEXT, "replicatedJobs": LIST}),
    _training("PyTorchJob", "pytorchReplicaSpecs"),
    _training("TFJob", "tfReplicaSpecs"),
    _training("XGBoostJob", "xgbReplicaSpecs"),
    _training("PaddleJob", "paddleReplicaSpecs"),
    _training("JAXJob", "jaxReplicaSpecs"),
    _training("MPIJob", "mpiReplicaSpecs", ("v1", "v2beta1")),
    crd(
        "trainer.kubeflow.org", "TrainJob", ("v1alpha1",),
        {"suspend": FLAG, "managedBy": TEXT, "runtimeRef": ANY, "trainer": ANY},
    ),
    crd("workload.codeflare.dev", "AppWrapper", ("v1beta2",), {"suspend": FLAG, "managedBy": TEXT, "components": LIST}),
    crd(
        "ray.io", "RayCluster", ("v1",),
        {"suspend": FLAG, "managedBy": TEXT, "headGroupSpec": ANY, "workerGroupSpecs": LIST},
    ),
    crd("ray.io", "RayJob", ("v1",), _RAY_JOB),
    crd("ray.io", "RayService", ("v1",), {**_RAY_SERVICE, "suspend": FLAG}),
    crd("keda.sh", "ScaledObject", ("v1alpha1",), _SCALED_OBJECT),
    crd("keda.sh", "ScaledJob", ("v1alpha1",), {"jobTargetRef": ANY, "triggers": LIST}),
    crd("kueue.x-k8s.io", "Workload", ("v1beta1", "v1beta2"), {"active": FLAG, "queueName": TEXT, "podSets": LIST}),
    crd("apps.kruise.io", "CloneSet", ("v1alpha1",), {"replicas": NUMBER, "template": ANY}, scale=".spec.replicas"),
    # Nobody knows these two.
    crd("example.com", "Scalable", ("v1",), {"size": NUMBER, "template": ANY}, scale=".spec.size"),
    crd("example.com", "Opaque", ("v1",), {"template": ANY}, plural="opaques"),
)

KINDS: dict[str, Object] = {one["spec"]["names"]["kind"]: one for one in _ALL}
KINDS["KnativeService"] = crd("serving.knative.dev", "Service", ("v1",), {"template": ANY, "traffic": LIST})
KNATIVE = (
    KINDS["KnativeService"], crd("serving.knative.dev", "Configuration", ("v1",), {"template": ANY}),
    crd("serving.knative.dev", "Revision", ("v1",), {"containers": LIST}),
)
OLD_RAY_SERVICE = crd("ray.io", "RayService", ("v1",), _RAY_SERVICE)


PROVISIONING_REQUEST = crd("autoscaling.x-k8s.io", "ProvisioningRequest", ("v1",), {
    "provisioningClassName": TEXT, "parameters": {"type": "object", "additionalProperties": TEXT},
    "podSets": {"type": "array", "items": closed(count=NUMBER, podTemplateRef=closed(name=TEXT))},
})
_OPEN_POOL = crd("karpenter.sh", "NodePool", ("v1",), {
    "limits": {"type": "object", "additionalProperties": {"x-kubernetes-int-or-string": True}}, "template": ANY,
})
NODE_POOL = {**_OPEN_POOL, "spec": {**_OPEN_POOL["spec"], "scope": "Cluster"}}
CAPACITY_BUFFER = crd("autoscaling.x-k8s.io", "CapacityBuffer", ("v1beta1",), {
    "podTemplateRef": closed(name=TEXT), "replicas": NUMBER, "provisioningStrategy": TEXT,
})
