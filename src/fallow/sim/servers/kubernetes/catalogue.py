"""Which kinds are served: the built-in table, and each version of each CustomResourceDefinition in the store.

In: the store. Out: `ServedKind`s by group, version and plural. A definition is served from the moment it is stored, and
its status says so.
Invariant: `home` is where objects of a kind are kept, the same for all versions (and both Events).
"""

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import msgspec

from fallow.model import units
from fallow.sim.servers import store as stores

Object: TypeAlias = dict[str, Any]

VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
DEFINITION = ("apiextensions.k8s.io", "CustomResourceDefinition")
_EXTENSIONS = "apiextensions.k8s.io/v1"


class Scale(msgspec.Struct, frozen=True):
    """Where an object keeps what /scale shows, as JSON pointers."""

    replicas: str = "/spec/replicas"
    status: str = "/status/replicas"
    selector: str = "/spec/selector"


class ServedKind(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    short: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = VERBS
    subresources: tuple[str, ...] = ()
    scale: Scale | None = None
    home: stores.GroupKind
    schema: Object | None = None  # of a custom kind
    columns: tuple[Object, ...] = ()  # additionalPrinterColumns

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def is_custom(self) -> bool:
        return self.schema is not None


def _row(
    version: str, plural: str, kind: str, short: str = "", parts: str = "", *, namespaced: bool = True,
    everywhere: bool = False, verbs: tuple[str, ...] = VERBS,
) -> ServedKind:
    group, _, name = version.rpartition("/")
    subresources = tuple(parts.split())
    return ServedKind(
        group=group, version=name, plural=plural, kind=kind, namespaced=namespaced, short=tuple(short.split()),
        verbs=verbs, categories=("all",) if everywhere else (), subresources=subresources,
        scale=Scale() if "scale" in subresources else None, home=("", "Event") if kind == "Event" else (group, kind),
    )


def _review(version: str, plural: str, kind: str, *, namespaced: bool = False) -> ServedKind:
    return _row(version, plural, kind, namespaced=namespaced, verbs=("create",))


_AUTHENTICATION, _AUTHORIZATION = "authentication.k8s.io/v1", "authorization.k8s.io/v1"
_RBAC = "rbac.authorization.k8s.io/v1"
_ONE_BY_ONE = tuple(verb for verb in VERBS if verb != "deletecollection")

BUILT_IN = (
    _row("v1", "configmaps", "ConfigMap", "cm"),
    _row("v1", "events", "Event", "ev"),
    _row("v1", "namespaces", "Namespace", "ns", "status", namespaced=False, verbs=_ONE_BY_ONE),
    _row("v1", "nodes", "Node", "no", "status", namespaced=False),
    _row("v1", "persistentvolumeclaims", "PersistentVolumeClaim", "pvc", "status"),
    _row("v1", "pods", "Pod", "po", "eviction status", everywhere=True),
    _row("v1", "secrets", "Secret"),
    _row("v1", "serviceaccounts", "ServiceAccount", "sa"),
    _row("v1", "services", "Service", "svc", "status", everywhere=True),
    _row("apps/v1", "daemonsets", "DaemonSet", "ds", "status", everywhere=True),
    _row("apps/v1", "deployments", "Deployment", "deploy", "scale status", everywhere=True),
    _row("apps/v1", "replicasets", "ReplicaSet", "rs", "scale status", everywhere=True),
    _row("apps/v1", "statefulsets", "StatefulSet", "sts", "scale status", everywhere=True),
    _row("events.k8s.io/v1", "events", "Event", "ev"),
    _review(_AUTHENTICATION, "selfsubjectreviews", "SelfSubjectReview"),
    _review(_AUTHENTICATION, "tokenreviews", "TokenReview"),
    _review(_AUTHORIZATION, "localsubjectaccessreviews", "LocalSubjectAccessReview", namespaced=True),
    _review(_AUTHORIZATION, "selfsubjectaccessreviews", "SelfSubjectAccessReview"),
    _review(_AUTHORIZATION, "subjectaccessreviews", "SubjectAccessReview"),
    _row("autoscaling/v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", "hpa", "status", everywhere=True),
    _row("batch/v1", "cronjobs", "CronJob", "cj", "status", everywhere=True),
    _row("batch/v1", "jobs", "Job", "", "status", everywhere=True),
    _row("networking.k8s.io/v1", "networkpolicies", "NetworkPolicy", "netpol"),
    _row("policy/v1", "poddisruptionbudgets", "PodDisruptionBudget", "pdb", "status"),
    _row(_RBAC, "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
    _row(_RBAC, "clusterroles", "ClusterRole", namespaced=False),
    _row(_RBAC, "rolebindings", "RoleBinding"),
    _row(_RBAC, "roles", "Role"),
    _row(_EXTENSIONS, "customresourcedefinitions", "CustomResourceDefinition", "crd crds", "status", namespaced=False),
    _row("coordination.k8s.io/v1", "leases", "Lease"),
    _row("resource.k8s.io/v1", "deviceclasses", "DeviceClass", namespaced=False),
    _row("resource.k8s.io/v1", "resourceclaims", "ResourceClaim", "", "status"),
    _row("resource.k8s.io/v1", "resourceclaimtemplates", "ResourceClaimTemplate"),
    _row("resource.k8s.io/v1", "resourceslices", "ResourceSlice", namespaced=False),
)


class Catalogue:
    """All kinds that are served now."""

    def __init__(self, store: stores.Store) -> None:
        self._store = store
        self._custom: dict[str, list[ServedKind]] = {}
        self._by_plural: dict[tuple[str, str, str], ServedKind] = {}
        for entry in store.entries(*DEFINITION):
            self._take(entry)
        self._index()
        store.subscribe(self._notice, DEFINITION)

    def all(self) -> list[ServedKind]:
        return list(self._by_plural.values())

    def find(self, group: str, version: str, plural: str) -> ServedKind | None:
        return self._by_plural.get((group, version, plural))

    def has_version(self, group: str, version: str) -> bool:
        return any(kind[:2] == (group, version) for kind in self._by_plural)

    def _notice(self, change: stores.Change) -> None:
        if change.type == "DELETED":
            for kind in self._custom.pop(change.entry.key.name, []):
                for entry in self._store.entries(*kind.home):
                    self._store.delete(entry.key)
        elif self._store.find(change.entry.key) is change.entry:
            self._take(change.entry)
        self._index()

    def _take(self, entry: stores.Entry) -> None:
        self._custom[entry.key.name] = list(_read_definition(entry.object))
        for kind in self._custom[entry.key.name]:
            self._store.begin_history(*kind.home)
        status = _establish(entry.object)
        if entry.object.get("status") != status:
            self._store.write(entry.key, {**entry.object, "status": status})

    def _index(self) -> None:
        kinds = [*BUILT_IN, *(kind for each in self._custom.values() for kind in each)]
        self._by_plural = {(kind.group, kind.version, kind.plural): kind for kind in kinds}


def _read_definition(definition: Mapping[str, Any]) -> Iterable[ServedKind]:
    spec, names = definition["spec"], definition["spec"]["names"]
    for version in spec["versions"]:
        if not version.get("served", True):
            continue
        parts, schema = version.get("subresources") or {}, (version.get("schema") or {}).get("openAPIV3Schema")
        yield ServedKind(
            group=spec["group"], version=version["name"], plural=names["plural"], kind=names["kind"],
            namespaced=spec["scope"] == "Namespaced", short=tuple(names.get("shortNames") or ()),
            categories=tuple(names.get("categories") or ()), subresources=tuple(sorted(parts)),
            scale=_read_scale(parts.get("scale")), home=(spec["group"], names["kind"]),
            schema=schema or {"type": "object"}, columns=tuple(version.get("additionalPrinterColumns") or ()),
        )


def _read_scale(paths: Mapping[str, str] | None) -> Scale | None:
    if paths is None:
        return None
    wanted = (paths["specReplicasPath"], paths["statusReplicasPath"], paths.get("labelSelectorPath", ""))
    return Scale(*(path.replace(".", "/") for path in wanted))


def _establish(definition: Mapping[str, Any]) -> Object:
    """What the real controllers report of a definition that is in use."""
    spec, since = definition["spec"], definition["metadata"].get("creationTimestamp") or units.rfc3339(0.0)
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": since, "reason": reason, "message": message}
        for kind, reason, message in (
            ("NamesAccepted", "NoConflicts", "no conflicts found"),
            ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        )
    ]
    stored = [version["name"] for version in spec["versions"] if version.get("storage")]
    return {"conditions": conditions, "acceptedNames": spec["names"], "storedVersions": stored}
