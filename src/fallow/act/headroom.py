"""Room ahead of demand where somebody else adds machines: a CapacityBuffer where the server has it, else placeholders.

In: the Headroom that was planned, which versions are served. Out: objects in our own namespace, each named after its
pool: a PodTemplate with its CapacityBuffer, or a Deployment of pause pods in a PriorityClass that everybody may push
aside; for pods that must start together, a ProvisioningRequest. Room that is no longer wanted is set to none, not
deleted; a request goes when nobody waits for it.
Invariant: written only where it differs; nothing but pause runs, and what it asks for is all GPUs of a node of its
pool.
`clear`: all of it goes, when fallow does.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from fallow import names
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.model.policies.scaling import NodeDriver, NodePool
from fallow.model.scaling import GangRequest
from fallow.model.scaling_plan import GangAsk, Headroom

PAUSE: Final = "registry.k8s.io/pause:3.10"
STRATEGY: Final = "buffer.x-k8s.io/active-capacity"
GANG_CLASS: Final = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
PREFIX: Final = "fallow-headroom-"
# What Pod Security `restricted` asks for: of the pod, and of its container.
POD_SECURITY: Final = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
CONTAINER_SECURITY: Final = {
    "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
}
_VALID_SECONDS: Final = "600"
_PRIORITY: Final = -10
_GROUP: Final = "autoscaling.x-k8s.io"
_TEMPLATES: Final = kube.Resource("", "v1", "podtemplates", "PodTemplate", True)
CLASSES: Final = kube.Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False)
_REQUESTS: Final = kube.Resource(_GROUP, "v1", "provisioningrequests", "ProvisioningRequest", True)


class HeadroomHands:
    def __init__(self, api: kube.Api, namespace: str) -> None:
        self._api, self._namespace = api, namespace
        self._standing: dict[tuple[str, str], tuple[int, str]] = {}  # by version and name: how many, of which template
        self._is_listed = False

    async def keep(self, wanted: Sequence[Headroom], version: str) -> list[str]:
        """So many nodes ahead, and no others; what was done. `version`: of CapacityBuffers; "": by placeholders. Raises
        what the server says."""
        done = list[str]()
        await self._learn()
        asked = {(version, name_of(each.policy, each.pool)): each for each in wanted}
        for key, each in asked.items():
            template = make_template(each.pool, each.driver, each.asks)
            stands = each.nodes, _digest(template)
            if self._standing.get(key) != stands:
                await self._make(key[1], each, version, template)
                done.append(f"room for {each.nodes} of pool {each.pool.name} is kept: {each.because}")
                self._standing[key] = stands
        for key, (count, digest) in list(self._standing.items()):
            if key not in asked and count:
                await self._shrink(key[1], key[0])
                done.append(f"no more room is kept by {key[1]}")
                self._standing[key] = 0, digest
        return done

    async def _learn(self) -> None:
        """What stands there since before we were started. Where we may not even ask, nothing of ours can stand."""
        if self._is_listed:
            return
        for how in ("", *names.BUFFER_VERSIONS):
            pages = self._api.list_pages(
                _buffers(how) if how else kube.DEPLOYMENTS, item=_Sized, namespace=self._namespace,
                label_selector=names.HEADROOM,
            )
            try:
                found = [each async for page in pages for each in page.items]
            except (errors.NotFound, errors.Forbidden):
                continue
            known = {name for version, name in self._standing if version}  # served in two versions, it is one object
            self._standing |= {
                (how, each.metadata.name): (each.spec.replicas or 0, (each.metadata.annotations or {}).get(
                    names.HEADROOM, ""
                )) for each in found if not how or each.metadata.name not in known
            }
        self._is_listed = True

    async def _make(self, name: str, of: Headroom, version: str, template: Mapping[str, Any]) -> None:
        digest = _digest(template)
        if not version:
            await self._ensure_class()
            chosen = {"matchLabels": {names.HEADROOM: of.pool.name}}
            spec = {"replicas": of.nodes, "selector": chosen, "template": template}
            await self._apply(kube.DEPLOYMENTS, name, of.pool, {"spec": spec}, digest)
            return
        await self._apply(_TEMPLATES, name, of.pool, {"template": template})
        buffer = {"podTemplateRef": {"name": name}, "replicas": of.nodes, "provisioningStrategy": STRATEGY}
        await self._apply(_buffers(version), name, of.pool, {"spec": buffer}, digest)

    async def _shrink(self, name: str, version: str) -> None:
        resource = _buffers(version) if version else kube.DEPLOYMENTS
        try:
            await self._api.merge_patch(
                resource, self._namespace, name, {"spec": {"replicas": 0}}, field_manager=names.FIELD_MANAGER
            )
        except errors.NotFound:
            return

    async def _ensure_class(self) -> None:
        body = {
            "apiVersion": CLASSES.api_version, "kind": CLASSES.kind, "metadata": {"name": names.HEADROOM_CLASS},
            "value": _PRIORITY, "preemptionPolicy": "Never", "globalDefault": False,
            "description": "Placeholders of GPU nodes that are started ahead of demand: anybody may take their room.",
        }
        try:
            await self._api.create(CLASSES, None, body)
        except errors.Conflict:
            return

    async def _apply(
        self, resource: kube.Resource, name: str, pool: NodePool, content: Mapping[str, Any], digest: str = ""
    ) -> None:
        """`digest`: of the template, by which who is started anew knows that it is the same."""
        label, word = names.MANAGED_BY
        meta: dict[str, Any] = {
            "name": name, "namespace": self._namespace, "labels": {label: word, names.HEADROOM: pool.name},
            **({"annotations": {names.HEADROOM: digest}} if digest else {}),
        }
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta, **content}
        await self._api.apply(resource, self._namespace, name, body, field_manager=names.FIELD_MANAGER, force=True)

    async def ask_together(self, asked: GangAsk) -> str:
        """One ProvisioningRequest for pods that only start together; one that stands there already is enough. What was
        done."""
        sets, (label, word) = [], names.MANAGED_BY
        for room in asked.rooms:
            name = name_of(asked.policy, room.pool)
            template = make_template(room.pool, NodeDriver.cluster_autoscaler, room.asks)
            await self._apply(_TEMPLATES, name, room.pool, {"template": template})
            sets.append({"podTemplateRef": {"name": name}, "count": room.nodes})
        said = {names.GANG: asked.gang, names.GANG_POLICY: asked.policy}
        body = {
            "apiVersion": _REQUESTS.api_version, "kind": _REQUESTS.kind, "metadata": {
                "name": asked.name, "namespace": self._namespace, "labels": {label: word}, "annotations": said,
            },
            "spec": {
                "provisioningClassName": GANG_CLASS, "parameters": {"ValidUntilSeconds": _VALID_SECONDS},
                "podSets": sets,
            },
        }
        try:
            await self._api.create(_REQUESTS, self._namespace, body)
        except errors.Conflict:
            return f"{asked.nodes} nodes at once for {asked.gang} are asked for already"
        return f"{asked.nodes} nodes at once are asked for {asked.gang}"

    async def drop_request(self, request: GangRequest) -> str:
        try:
            await self._api.delete(
                _REQUESTS, self._namespace, request.name, uid=request.uid, resource_version=request.version
            )
        except errors.NotFound:
            return f"the request for {request.gang} is gone already"
        return f"the request for {request.gang} ends ({request.state})"


async def find_standing(api: kube.Api, namespace: str | None) -> list[tuple[kube.Resource, kube.ObjectMeta]]:
    """All that keeps room, whoever of us made it; requests before what they name. None: in all namespaces."""
    found = list[tuple[kube.Resource, kube.ObjectMeta]]()
    label, word = names.MANAGED_BY
    buffers = [_buffers(version) for version in names.BUFFER_VERSIONS]
    for resource in (_REQUESTS, *buffers, kube.DEPLOYMENTS, _TEMPLATES):
        try:
            pages = api.list_pages(
                resource, item=kube.BareObject, namespace=namespace, label_selector=f"{label}={word}",
                metadata_only=True,
            )
            there = [each.metadata async for page in pages for each in page.items]
        except errors.NotFound:  # no such kind, or not in this version
            continue
        known = {meta.uid for _, meta in found}
        found += [(resource, each) for each in there if each.uid not in known and is_ours(each.name)]
    return found


def is_ours(name: str) -> bool:
    return name.startswith((PREFIX, names.GANG_PREFIX))


async def clear(api: kube.Api, resource: kube.Resource, meta: kube.ObjectMeta) -> None:
    """Raises what the server says; one that is gone is well."""
    try:
        await api.delete(
            resource, meta.namespace, meta.name, uid=meta.uid, resource_version=meta.resource_version
        )
    except errors.NotFound:
        return


class _SizedMeta(msgspec.Struct):
    name: str
    annotations: dict[str, str] | None = None


class _SizedSpec(msgspec.Struct):
    replicas: int | None = None


class _Sized(msgspec.Struct):
    metadata: _SizedMeta
    spec: _SizedSpec = msgspec.field(default_factory=_SizedSpec)


def _buffers(version: str) -> kube.Resource:
    return kube.Resource(_GROUP, version, "capacitybuffers", "CapacityBuffer", True)


def name_of(policy: str, pool: NodePool) -> str:
    """The pool's name; of two policies with pools of one name each has its own."""
    digest = hashlib.sha256(policy.encode()).hexdigest()[:4]
    return f"{PREFIX}{pool.name[:40].strip('.-')}-{digest}"


def _digest(template: Mapping[str, Any]) -> str:
    return hashlib.sha256(msgspec.json.encode(template)).hexdigest()[:16]


def make_template(pool: NodePool, driver: NodeDriver, asks: Mapping[str, int]) -> dict[str, Any]:
    """A pod that takes all GPUs of a node of the pool: `asks`."""
    chosen = dict(pool.labels)
    if driver is NodeDriver.karpenter and pool.group:
        chosen[names.KARPENTER_NODEPOOL] = pool.group
    tolerations = [
        {"key": each.key, "operator": "Equal", "value": each.value, "effect": each.effect} for each in pool.taints
    ]
    amounts = {resource: str(count) for resource, count in sorted(asks.items())}
    pause = {
        "name": "pause", "image": PAUSE, "resources": {"limits": amounts, "requests": amounts},
        "securityContext": CONTAINER_SECURITY,
    }
    return {
        "metadata": {"labels": {names.HEADROOM: pool.name}},
        "spec": {
            "priorityClassName": names.HEADROOM_CLASS, "terminationGracePeriodSeconds": 0, "nodeSelector": chosen,
            "tolerations": [*tolerations, {"key": names.GPU, "operator": "Exists", "effect": "NoSchedule"}],
            "automountServiceAccountToken": False, "securityContext": POD_SECURITY, "containers": [pause],
        },
    }
