"""This node's pods and ResourceSlices, followed on the API server: the names behind ids. Loaded only when that is done.

In: how to reach the API server, the node's name. Out: `pods` and `uuids`, and `why_down`, a sentence if they cannot be
followed. Of a pod only names, ids and its phase are kept. ResourceSlices are followed from the moment somebody asks.
Invariant: a break loses nothing that was known: ids are never given twice, so an old name is still the right one.
"""

import asyncio
from collections.abc import Sequence

import msgspec

from fallow import names
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config, follow
from fallow.observe.node import directory, grants

_OVER = ("Succeeded", "Failed")
_SLICE_VERSIONS = ("v1", "v1beta2", "v1beta1")  # newest first
_UUID = "uuid"


class _ItemMeta(msgspec.Struct):
    uid: str = ""
    name: str = ""
    namespace: str = ""
    annotations: dict[str, str] | None = None


class _ContainerId(msgspec.Struct, rename="camel"):
    name: str = ""
    container_id: str | None = msgspec.field(default=None, name="containerID")


class _PodPhase(msgspec.Struct, rename="camel"):
    phase: str = ""
    container_statuses: list[_ContainerId] | None = None
    init_container_statuses: list[_ContainerId] | None = None
    ephemeral_container_statuses: list[_ContainerId] | None = None


class _NodePod(msgspec.Struct):
    metadata: _ItemMeta
    status: _PodPhase = msgspec.field(default_factory=_PodPhase)


class _Attribute(msgspec.Struct):
    string: str | None = None


class _SliceDevice(msgspec.Struct):
    name: str = ""
    attributes: dict[str, _Attribute] | None = None
    basic: "_SliceDevice | None" = None  # v1beta1 has them in here


class _SlicePool(msgspec.Struct):
    name: str = ""
    generation: int = 0


class _SliceSpec(msgspec.Struct):
    driver: str = ""
    pool: _SlicePool = msgspec.field(default_factory=_SlicePool)
    devices: list[_SliceDevice] | None = None


class _ResourceSlice(msgspec.Struct):
    metadata: _ItemMeta
    spec: _SliceSpec = msgspec.field(default_factory=_SliceSpec)


_SliceUuids = tuple[int, grants.Claimed]  # the generation of its pool, and what it says


class NodeFollower:
    """`run` follows until it is cancelled."""

    def __init__(self, access: config.Access, node: str) -> None:
        self._access = access
        self._here = f"spec.nodeName={node}"
        self._pods: follow.Follower[_NodePod, directory.Named] | None = None
        self._slices: follow.Follower[_ResourceSlice, _SliceUuids] | None = None
        self._wants_slices = asyncio.Event()

    @property
    def why_down(self) -> str | None:
        """Empty: the pods are followed. None: there was no answer yet."""
        if self._pods is not None and self._pods.problem is not None:
            return str(self._pods.problem)
        return "" if self._pods is not None and self._pods.synced else None

    @property
    def pods(self) -> Sequence[directory.Named]:
        return list(self._pods.store.values()) if self._pods else []

    @property
    def uuids(self) -> grants.Claimed:
        """Of two generations of a pool the newer one says what is there."""
        parts = sorted(self._slices.store.values(), key=lambda part: part[0]) if self._slices else []
        return {device: uuid for _, uuids in parts for device, uuid in uuids.items()}

    @property
    def generation(self) -> tuple[int, int]:
        """Another one: something changed."""
        return (self._pods.generation if self._pods else -1, self._slices.generation if self._slices else -1)

    def follow_slices(self) -> None:
        self._wants_slices.set()

    async def run(self) -> None:
        async with kube.Api(self._access, qps=2, in_flight=4) as api, asyncio.TaskGroup() as tasks:
            self._pods = follow.Follower(api, kube.PODS, item=_NodePod, keep=_see_pod, field_selector=self._here)
            tasks.create_task(self._pods.run())
            await self._wants_slices.wait()
            await self._follow_slices(api)

    async def _follow_slices(self, api: kube.Api) -> None:
        """By the newest version that the server has; if it has none, nobody can have got a device by a claim."""
        for version in _SLICE_VERSIONS:
            resource = kube.Resource("resource.k8s.io", version, "resourceslices", "ResourceSlice", False)
            follower = follow.Follower(api, resource, item=_ResourceSlice, keep=_see_slice, field_selector=self._here)
            try:
                await follower.list_once()
            except errors.NotFound:
                continue
            except errors.ClientError:
                pass  # refused or broken, but not unknown: the follower keeps trying
            self._slices = follower
            await follower.run()


def _see_pod(pod: _NodePod) -> directory.Named:
    status, meta = pod.status, pod.metadata
    lists = (status.init_container_statuses, status.ephemeral_container_statuses, status.container_statuses)
    statuses = (each for found in lists for each in found or () if each.container_id)
    containers = {(each.container_id or "").rpartition("/")[2]: each.name for each in statuses}
    static_uid = (meta.annotations or {}).get(names.MIRROR_POD, "")
    return directory.Named(meta.uid, meta.namespace, meta.name, containers, static_uid, status.phase in _OVER)


def _see_slice(part: _ResourceSlice) -> _SliceUuids:
    spec = part.spec
    found = (((spec.driver, spec.pool.name, device.name), _uuid_of(device)) for device in spec.devices or ())
    return spec.pool.generation, {device: uuid for device, uuid in found if uuid}


def _uuid_of(device: _SliceDevice) -> str:
    attributes = device.attributes or (device.basic.attributes if device.basic else None) or {}
    attribute = attributes.get(_UUID) or attributes.get(f"{names.DRA_DRIVER}/{_UUID}")
    return (attribute.string if attribute else None) or ""
