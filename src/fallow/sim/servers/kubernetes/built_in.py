"""What is known of the built-in kinds' fields: the names in their specs, the defaults the product sees, some rules.

In: an object that somebody wants to write. Out: its unknown fields, the object with defaults, what is wrong with it.
This is a small part of what the real server knows: the parts that the product, or a person with kubectl, runs into.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from fallow.model import pointers
from fallow.sim.servers.kubernetes import catalogue, selectors

Object: TypeAlias = dict[str, Any]
Fault: TypeAlias = tuple[str, str, str]

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_FREE_NAMES = ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
_NAME_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    f"'{_NAME.pattern}')"
)
_POD = (
    "activeDeadlineSeconds affinity automountServiceAccountToken containers dnsConfig dnsPolicy "
    "enableServiceLinks ephemeralContainers hostAliases hostIPC hostNetwork hostPID hostUsers hostname "
    "hostnameOverride imagePullSecrets initContainers nodeName nodeSelector os overhead preemptionPolicy "
    "priority priorityClassName readinessGates resourceClaims resources restartPolicy runtimeClassName "
    "schedulerName schedulingGates securityContext serviceAccount serviceAccountName setHostnameAsFQDN "
    "shareProcessNamespace subdomain terminationGracePeriodSeconds tolerations topologySpreadConstraints "
    "volumes workloadRef schedulingGroup"
)
_JOB = (
    "activeDeadlineSeconds backoffLimit backoffLimitPerIndex completionMode completions managedBy "
    "manualSelector maxFailedIndexes parallelism podFailurePolicy podReplacementPolicy selector successPolicy "
    "suspend template ttlSecondsAfterFinished"
)
_TEMPLATED = "minReadySeconds selector template"
_SPECS = {
    "Pod": _POD,
    "Deployment": f"{_TEMPLATED} paused progressDeadlineSeconds replicas revisionHistoryLimit strategy",
    "StatefulSet": f"{_TEMPLATED} ordinals persistentVolumeClaimRetentionPolicy podManagementPolicy replicas "
    "revisionHistoryLimit serviceName updateStrategy volumeClaimTemplates",
    "ReplicaSet": f"{_TEMPLATED} replicas",
    "DaemonSet": f"{_TEMPLATED} revisionHistoryLimit updateStrategy",
    "Job": _JOB,
    "CronJob": "concurrencyPolicy failedJobsHistoryLimit jobTemplate schedule startingDeadlineSeconds "
    "successfulJobsHistoryLimit suspend timeZone",
    "HorizontalPodAutoscaler": "behavior maxReplicas metrics minReplicas scaleTargetRef",
    "PodDisruptionBudget": "maxUnavailable minAvailable selector unhealthyPodEvictionPolicy",
    "Lease": "acquireTime holderIdentity leaseDurationSeconds leaseTransitions preferredHolder renewTime strategy",
    "Node": "configSource externalID podCIDR podCIDRs providerID taints unschedulable",
    "Namespace": "finalizers",
    "Scale": "replicas",
}
_KNOWN = {kind: frozenset(names.split()) for kind, names in _SPECS.items()}
_REPLICATED = {"/spec/replicas": 1, "/spec/revisionHistoryLimit": 10}
_POD_DEFAULTS = {
    "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "Deployment": _REPLICATED | {"/spec/progressDeadlineSeconds": 600, "/spec/strategy/type": "RollingUpdate"},
    "StatefulSet": _REPLICATED
    | {"/spec/podManagementPolicy": "OrderedReady", "/spec/updateStrategy/type": "RollingUpdate"},
    "ReplicaSet": {"/spec/replicas": 1},
    "Job": {"/spec/parallelism": 1, "/spec/completions": 1, "/spec/backoffLimit": 6, "/spec/suspend": False},
    "CronJob": {"/spec/suspend": False, "/spec/concurrencyPolicy": "Allow"},
    "HorizontalPodAutoscaler": {"/spec/minReplicas": 1},
    "Pod": {f"/spec/{name}": value for name, value in _POD_DEFAULTS.items()} | {"/status/phase": "Pending"},
    "Namespace": {"/status/phase": "Active", "/spec/finalizers": ["kubernetes"]},
    "PodDisruptionBudget": {
        f"/status/{name}": 0 for name in ("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods")
    },
}
_WITH_TEMPLATE = ("Deployment", "StatefulSet", "ReplicaSet", "DaemonSet")
_KEEP_STATUS = ("Node",)  # a kubelet registers itself with its status
_COUNTS = ("/spec/replicas", "/spec/parallelism", "/spec/minReplicas")
_NOTE_CHARACTERS = 1024


def find_unknown(kind: str, obj: Mapping[str, Any]) -> list[str]:
    """Fields of the spec (and of the pod template's) that the kind does not have."""
    found = [f"spec.{name}" for name in obj.get("spec") or {} if kind in _KNOWN and name not in _KNOWN[kind]]
    template = pointers.read(obj, "/spec/template/spec") if kind in (*_WITH_TEMPLATE, "Job") else None
    return found + [f"spec.template.spec.{name}" for name in template or {} if name not in _KNOWN["Pod"]]


def drop_unknown(obj: Object, unknown: list[str]) -> Object:
    for name in unknown:
        obj = pointers.replace(obj, tuple(name.split(".")), None)
    return obj


def fill(kind: catalogue.ServedKind, obj: Object, *, is_new: bool) -> Object:
    """The object as the server stores it: without what only a controller may report, with the defaults."""
    if is_new and "status" in kind.subresources and kind.kind not in _KEEP_STATUS:
        obj = {name: part for name, part in obj.items() if name != "status"}
    defaults = dict(_DEFAULTS.get(kind.kind, {}))
    if kind.kind in _WITH_TEMPLATE:
        defaults |= {f"/spec/template/spec/{name}": value for name, value in _POD_DEFAULTS.items()}
    if kind.kind == "Namespace":
        defaults[pointers.join(("metadata", "labels", "kubernetes.io/metadata.name"))] = obj["metadata"].get("name")
    for pointer, value in defaults.items():
        if pointers.read(obj, pointer) is None and (is_new or not pointer.startswith("/status")):
            obj = pointers.replace(obj, pointers.parts(pointer), value)
    return obj


def check(kind: catalogue.ServedKind, obj: Mapping[str, Any]) -> Iterator[Fault]:
    name = obj["metadata"].get("name") or ""
    if not name:
        yield "metadata.name", "FieldValueRequired", "Required value: name or generateName is required"
    elif kind.kind not in _FREE_NAMES and not _NAME.fullmatch(name):
        yield "metadata.name", "FieldValueInvalid", f'Invalid value: "{name}": {_NAME_RULE}'
    for pointer in _COUNTS:
        count = pointers.read(obj, pointer)
        if isinstance(count, int) and count < 0 and not kind.is_custom:
            field = ".".join(pointers.parts(pointer))
            yield field, "FieldValueInvalid", f"Invalid value: {count}: must be greater than or equal to 0"
    if kind.kind in _WITH_TEMPLATE:
        yield from _check_template(obj)
    if kind.kind == "Pod" and not pointers.read(obj, "/spec/containers"):
        yield "spec.containers", "FieldValueRequired", "Required value"
    if kind.kind == "CustomResourceDefinition":
        yield from _check_definition(obj)
    if kind.kind == "Event":
        yield from _check_event(obj)


def _check_template(obj: Mapping[str, Any]) -> Iterator[Fault]:
    selector, template = pointers.read(obj, "/spec/selector"), pointers.read(obj, "/spec/template") or {}
    labels = (template.get("metadata") or {}).get("labels") or {}
    if selector is None:
        yield "spec.selector", "FieldValueRequired", "Required value"
    if not selectors.matches(selector, labels):
        why = "Invalid value: null: `selector` does not match template `labels`"
        yield "spec.template.metadata.labels", "FieldValueInvalid", why
    if not (template.get("spec") or {}).get("containers"):
        yield "spec.template.spec.containers", "FieldValueRequired", "Required value"


def _check_definition(obj: Mapping[str, Any]) -> Iterator[Fault]:
    for pointer in ("/spec/group", "/spec/scope", "/spec/names/plural", "/spec/names/kind", "/spec/versions/0/name"):
        if not isinstance(pointers.read(obj, pointer), str):
            yield ".".join(pointers.parts(pointer)), "FieldValueRequired", "Required value"
            return
    name = f"{pointers.read(obj, '/spec/names/plural')}.{pointers.read(obj, '/spec/group')}"
    if obj["metadata"].get("name") != name:
        message = f'Invalid value: "{obj["metadata"].get("name")}": must be spec.names.plural+"."+spec.group'
        yield "metadata.name", "FieldValueInvalid", message


def _check_event(obj: Mapping[str, Any]) -> Iterator[Fault]:
    """Events in the new form, which have a time of their own, must say who did what."""
    if obj.get("eventTime"):
        for name in ("reportingComponent", "reportingInstance", "action", "reason"):
            if not obj.get(name):
                yield name, "FieldValueRequired", "Required value"
        if obj.get("type") not in ("Normal", "Warning"):
            yield "type", "FieldValueInvalid", f'Invalid value: "": has invalid value: {obj.get("type")}'
        if len(obj.get("message") or "") > _NOTE_CHARACTERS:
            yield "message", "FieldValueInvalid", f'Invalid value: "": can have at most {_NOTE_CHARACTERS} characters'


def find_type_fault(obj: Mapping[str, Any], *, custom: bool) -> str | None:
    """What the real decoder could not read into the type: numbers that are none, labels that are no text."""
    for name in ("labels", "annotations"):
        marks = obj["metadata"].get(name) or {}
        if not isinstance(marks, dict) or not all(isinstance(value, str) for value in marks.values()):
            return f"json: cannot unmarshal into Go struct field ObjectMeta.metadata.{name} of type string"
    for pointer in () if custom else _COUNTS:
        if not isinstance(pointers.read(obj, pointer), int | None):
            field = ".".join(pointers.parts(pointer))
            return f"json: cannot unmarshal string into Go struct field of type int32: {field}"
    return None
