"""A review as sharing reads it: what of a pod tells whether it may share a GPU, and nothing else is decoded.

In: the bytes of a request. Out: a ShareRequest, or only its uid where the rest cannot be read; a SharePod made of it.
Invariant: a quantity stays the text that was written. A field that is not there is not taken for an empty one.
"""

from typing import Any, Final

import msgspec

from fallow import names
from fallow.doors.webhook import reviews
from fallow.model.classes import ContainerText
from fallow.model.sharing import PodToleration, ShareContainer, SharePod
from fallow.observe.budgets import OwnerRef


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
    affinity: dict[str, Any] | None = None
    tolerations: tuple[TolerationAsked, ...] | None = None
    scheduler_name: str = ""
    resource_claims: list[Any] | None = None


class ShareObject(msgspec.Struct, frozen=True):
    metadata: reviews.WantedMeta = reviews.WantedMeta()
    spec: ShareSpec = ShareSpec()


class ShareRequest(msgspec.Struct, frozen=True, rename="camel"):
    uid: str
    namespace: str = ""
    operation: str = ""
    object: ShareObject = ShareObject()

    @property
    def owners(self) -> list[OwnerRef] | None:
        return self.object.metadata.owner_references


class ShareAsked(msgspec.Struct, frozen=True):
    request: ShareRequest


_ASKED: Final = msgspec.json.Decoder(ShareAsked)


def read(body: bytes) -> ShareRequest | str:
    """The request; only its uid, where the rest cannot be read. Raises msgspec.DecodeError where not even that can."""
    try:
        return _ASKED.decode(body).request
    except (msgspec.DecodeError, RecursionError):
        return reviews.read_uid(body)


def see(request: ShareRequest) -> SharePod:
    meta, spec = request.object.metadata, request.object.spec
    return SharePod(
        namespace=request.namespace, name=meta.name or meta.generate_name, labels=meta.labels or {},
        annotations=meta.annotations, containers=tuple(map(_see_container, spec.containers)),
        init_containers=tuple(map(_see_container, spec.init_containers or ())), node_name=spec.node_name,
        node_selector=spec.node_selector, terms=_required(spec.affinity), scheduler=spec.scheduler_name,
        tolerations=None if spec.tolerations is None else tuple(map(_see_toleration, spec.tolerations)),
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


def _see_toleration(asked: TolerationAsked) -> PodToleration:
    return PodToleration(asked.key, asked.operator or "Equal", asked.value, asked.effect)


def _required(affinity: dict[str, Any] | None) -> Any:
    node = (affinity or {}).get("nodeAffinity") or {}
    return (node.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms")
