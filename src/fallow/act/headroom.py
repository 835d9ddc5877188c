"""Room ahead of demand where somebody else adds machines: a CapacityBuffer where the server has it, else placeholders.

In: the Headroom that was planned, which versions are served. Out: objects in our own namespace, each named after its
pool: a PodTemplate with its CapacityBuffer, or a Deployment of pause pods in a PriorityClass that everybody may push
aside; for pods that must start together, a ProvisioningRequest. Room that is no longer wanted is set to none, not
deleted; a request goes when nobody waits for it.
Invariant: written only where it differs; nothing but pause runs, and what it asks for is a whole node of its pool.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from fallow import names
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.model.policies.scaling import NodeDriver, NodePool
from fallow.model.scaling import DriversSeen, GangAsk, GangRequest, Headroom

PAUSE: Final = "registry.k8s.io/pause:3.10"
STRATEGY: Final = "buffer.x-k8s.io/active-capacity"
GANG_CLASS: Final = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
PREFIX: Final = "fallow-headroom-"
_VALID_SECONDS: Final = "600"
_PRIORITY: Final = -10
_GROUP: Final = "autoscaling.x-k8s.io"
_TEMPLATES: Final = kube.Resource("", "v1", "podtemplates", "PodTemplate", True)
_CLASSES: Final = kube.Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False)
_REQUESTS: Final = kube.Resource(_GROUP, "v1", "provisioningrequests", "ProvisioningRequest", True)


class HeadroomHands:
    def __init__(self, api: kube.Api, namespace: str) -> None:
        self._api, self._namespace = api, namespace
        self._standing: dict[str, tuple[str, int]] = {}  # by name: how it was made, and how many
        self._is_listed = False

    async def keep(self, wanted: Sequence[Headroom], drivers: DriversSeen, driver: NodeDriver) -> list[str]:
        """So many nodes ahead, and no others; what was done. Raises what the server says."""
        version, done = drivers.buffers, list[str]()
        await self._learn(version)
        asked = {name_of(each.policy, each.pool): each for each in wanted}
        for name, each in asked.items():
            if self._standing.get(name) != (version, each.nodes):
                await self._make(name, each, version, driver)
                done.append(f"room for {each.nodes} of pool {each.pool.name} is kept: {each.because}")
                self._standing[name] = version, each.nodes
        for name, (how, count) in list(self._standing.items()):
            if name not in asked and count:
                await self._shrink(name, how)
                done.append(f"no more room is kept by {name}")
                self._standing[name] = how, 0
        return done

    async def _learn(self, version: str) -> None:
        """What stands there since before we were started."""
        if self._is_listed:
            return
        for how, resource in (("", kube.DEPLOYMENTS), *([(version, _buffers(version))] if version else [])):
            pages = self._api.list_pages(
                resource, item=_Sized, namespace=self._namespace, label_selector=names.HEADROOM
            )
            found = [each async for page in pages for each in page.items]
            self._standing |= {each.metadata.name: (how, each.spec.replicas or 0) for each in found}
        self._is_listed = True

    async def _make(self, name: str, of: Headroom, version: str, driver: NodeDriver) -> None:
        template = make_template(of.pool, driver)
        if not version:
            await self._ensure_class()
            chosen = {"matchLabels": {names.HEADROOM: of.pool.name}}
            spec = {"replicas": of.nodes, "selector": chosen, "template": template}
            await self._apply(kube.DEPLOYMENTS, name, of.pool, {"spec": spec})
            return
        await self._apply(_TEMPLATES, name, of.pool, {"template": template})
        buffer = {"podTemplateRef": {"name": name}, "replicas": of.nodes, "provisioningStrategy": STRATEGY}
        await self._apply(_buffers(version), name, of.pool, {"spec": buffer})

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
            "apiVersion": _CLASSES.api_version, "kind": _CLASSES.kind, "metadata": {"name": names.HEADROOM_CLASS},
            "value": _PRIORITY, "preemptionPolicy": "Never", "globalDefault": False,
            "description": "Placeholders of GPU nodes that are started ahead of demand: anybody may take their room.",
        }
        try:
            await self._api.create(_CLASSES, None, body)
        except errors.Conflict:
            return

    async def _apply(self, resource: kube.Resource, name: str, pool: NodePool, content: Mapping[str, Any]) -> None:
        label, word = names.MANAGED_BY
        meta = {"name": name, "namespace": self._namespace, "labels": {label: word, names.HEADROOM: pool.name}}
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta, **content}
        await self._api.apply(resource, self._namespace, name, body, field_manager=names.FIELD_MANAGER, force=True)

    async def ask_together(self, asked: GangAsk) -> str:
        """One ProvisioningRequest for pods that only start together; one that stands there already is enough. What was
        done."""
        sets, (label, word) = [], names.MANAGED_BY
        for pool, count in asked.rooms:
            name = name_of(asked.policy, pool)
            await self._apply(
                _TEMPLATES, name, pool, {"template": make_template(pool, NodeDriver.cluster_autoscaler)}
            )
            sets.append({"podTemplateRef": {"name": name}, "count": count})
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


class _SizedSpec(msgspec.Struct):
    replicas: int | None = None


class _Sized(msgspec.Struct):
    metadata: kube.ObjectMeta
    spec: _SizedSpec = msgspec.field(default_factory=_SizedSpec)


def _buffers(version: str) -> kube.Resource:
    return kube.Resource(_GROUP, version, "capacitybuffers", "CapacityBuffer", True)


def name_of(policy: str, pool: NodePool) -> str:
    """The pool's name; of two policies with pools of one name each has its own."""
    digest = hashlib.sha256(policy.encode()).hexdigest()[:4]
    return f"{PREFIX}{pool.name[:40].strip('.-')}-{digest}"


def make_template(pool: NodePool, driver: NodeDriver) -> dict[str, Any]:
    """A pod that takes all GPUs of a node of the pool."""
    chosen = dict(pool.labels)
    if driver is NodeDriver.karpenter and pool.group:
        chosen[names.KARPENTER_NODEPOOL] = pool.group
    tolerations = [
        {"key": each.key, "operator": "Equal", "value": each.value, "effect": each.effect} for each in pool.taints
    ]
    amounts = {names.GPU: str(pool.gpus or 1)}
    return {
        "metadata": {"labels": {names.HEADROOM: pool.name}},
        "spec": {
            "priorityClassName": names.HEADROOM_CLASS, "terminationGracePeriodSeconds": 0, "nodeSelector": chosen,
            "tolerations": [*tolerations, {"key": names.GPU, "operator": "Exists", "effect": "NoSchedule"}],
            "automountServiceAccountToken": False,
            "containers": [{"name": "pause", "image": PAUSE, "resources": {"limits": amounts, "requests": amounts}}],
        },
    }
