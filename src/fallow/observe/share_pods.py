"""Pods as sharing reads them: what of one tells whether it may share a GPU, and nothing else is decoded.

In: a pod in the API server's words, of a review or of a list. Out: a SharePod; `list_running`: every pod that runs, for
who counts what policies did, by one list.
Invariant: a quantity stays the text that was written. A field that is not there is not taken for an empty one.
"""

from typing import Any, Final

import msgspec

from fallow import names
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.model.classes import ContainerText
from fallow.model.sharing import PodToleration, ShareContainer, SharePod
from fallow.observe.budgets import OwnerRef
from fallow.observe.cluster import pods

_MOST_TOLERATIONS: Final = 100  # each is compared with the taints of every node; further ones tolerate nothing


class ShareMeta(msgspec.Struct, frozen=True, rename="camel"):
    uid: str = ""
    name: str = ""
    namespace: str = ""
    generate_name: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerRef] | None = None


class ShareEnv(msgspec.Struct, frozen=True):
    name: str = ""


class ShareSecurity(msgspec.Struct, frozen=True):
    privileged: bool | None = None


class ShareResources(msgspec.Struct, frozen=True):
    limits: dict[str, Any] | None = None
    requests: dict[str, Any] | None = None
    claims: list[Any] | None = None


class ContainerAsked(msgspec.Struct, frozen=True, rename="camel"):
    image: str = ""
    command: tuple[str, ...] | None = None
    args: tuple[str, ...] | None = None
    env: tuple[ShareEnv, ...] | None = None
    resources: ShareResources | None = None
    security_context: ShareSecurity | None = None


class TolerationAsked(msgspec.Struct, frozen=True):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class ShareSpec(msgspec.Struct, frozen=True, rename="camel"):
    containers: tuple[ContainerAsked, ...] = ()
    init_containers: tuple[ContainerAsked, ...] | None = None
    node_name: str = ""
    node_selector: dict[str, str] | None = None
    affinity: msgspec.Raw = msgspec.Raw(b"null")
    tolerations: tuple[TolerationAsked, ...] | None = None
    scheduler_name: str = ""
    resource_claims: list[Any] | None = None


class ShareObject(msgspec.Struct, frozen=True):
    metadata: ShareMeta = ShareMeta()
    spec: ShareSpec = ShareSpec()


class RunningPod(msgspec.Struct, frozen=True):
    """`owners`: as its metadata names them."""

    uid: str
    pod: SharePod
    owners: tuple[OwnerRef, ...] = ()

    @property
    def is_owned(self) -> bool:
        """Something made it."""
        return any(each.controller for each in self.owners)


async def list_running(api: kube.Api, node: str = "") -> tuple[RunningPod, ...]:
    """Those that ask for GPUs of NVIDIA, or asked before we changed them, on one node or everywhere. Raises what the
    server says."""
    fields = f"status.phase=Running{f',spec.nodeName={node}' if node else ''}"
    pages = api.list_pages(kube.PODS, item=ShareObject, field_selector=fields)
    found = []
    async for page in pages:
        for item in page.items:
            if _concerns_us(item):
                meta = item.metadata
                found.append(RunningPod(meta.uid, see(item, meta.namespace), tuple(meta.owner_references or ())))
    return tuple(found)


async def read(api: kube.Api, namespace: str, name: str) -> ShareObject | None:
    """One pod, as it is now; None: there is none of that name. Raises what the server says."""
    try:
        return await api.get(kube.PODS, namespace, name, kind=ShareObject)
    except errors.NotFound:
        return None


def _concerns_us(item: ShareObject) -> bool:
    asked = (each.resources.limits or {} for each in item.spec.containers if each.resources is not None)
    return names.OPTIMIZED in (item.metadata.annotations or {}) or any(names.GPU in each for each in asked)


def see(item: ShareObject, namespace: str) -> SharePod:
    """`namespace`: of a pod that is still to be made its metadata may have none."""
    meta, spec = item.metadata, item.spec
    return SharePod(
        namespace=namespace, name=meta.name or meta.generate_name, labels=meta.labels or {},
        annotations=meta.annotations, containers=tuple(map(_see_container, spec.containers)),
        init_containers=tuple(map(_see_container, spec.init_containers or ())), node_name=spec.node_name,
        node_selector=spec.node_selector, terms=pods.required_terms(spec.affinity), scheduler=spec.scheduler_name,
        tolerations=_see_tolerations(spec.tolerations),
        has_claims=bool(spec.resource_claims), is_static=names.MIRROR_POD in (meta.annotations or {}),
    )


def _see_container(asked: ContainerAsked) -> ShareContainer:
    resources = asked.resources or ShareResources()
    return ShareContainer(
        runs=ContainerText(asked.image, asked.command or (), asked.args or ()),
        requests=_as_text(resources.requests), limits=_as_text(resources.limits), has_claims=bool(resources.claims),
        sets_devices=any(each.name == names.VISIBLE_DEVICES for each in asked.env or ()),
        is_privileged=asked.security_context is not None and asked.security_context.privileged is True,
    )


def _as_text(asked: dict[str, Any] | None) -> dict[str, str] | None:
    return None if asked is None else {name: str(count) for name, count in asked.items()}


def _see_tolerations(asked: tuple[TolerationAsked, ...] | None) -> tuple[PodToleration, ...] | None:
    if asked is None:
        return None
    heeded = asked[:_MOST_TOLERATIONS]
    return tuple(PodToleration(each.key, each.operator or "Equal", each.value, each.effect) for each in heeded)
