"""An AdmissionReview: what of it is read, and how it is answered.

In: the bytes of a request. Out: a PodWanted with who asks; the bytes of an answer. Only what the rules need is decoded.
Invariant: a review whose uid can be read is always answered with that uid.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from fallow import names
from fallow.decide import admission
from fallow.model.policies.budget import ClaimWanted
from fallow.observe.budgets import OwnerRef

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_VERSION: Final = "admission.k8s.io/v1"
_LONGEST: Final = 1000  # characters of what is said
_LONGEST_WARNING: Final = 256  # the API server cuts longer ones where there are several


class ReviewUser(msgspec.Struct, frozen=True):
    username: str = ""
    groups: tuple[str, ...] = ()


class WantedMeta(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    generate_name: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerRef] | None = None


class WantedResources(msgspec.Struct, frozen=True):
    limits: dict[str, Any] | None = None


class WantedContainer(msgspec.Struct, frozen=True):
    resources: WantedResources | None = None


class WantedGate(msgspec.Struct, frozen=True):
    name: str = ""


class WantedSpec(msgspec.Struct, frozen=True, rename="camel"):
    containers: tuple[WantedContainer, ...] = ()
    init_containers: tuple[WantedContainer, ...] | None = None
    node_name: str = ""
    node_selector: dict[str, str] | None = None
    affinity: dict[str, Any] | None = None
    scheduling_gates: tuple[WantedGate, ...] | None = None
    resource_claims: tuple[ClaimWanted, ...] | None = None


class WantedObject(msgspec.Struct, frozen=True):
    metadata: WantedMeta = WantedMeta()
    spec: WantedSpec = WantedSpec()


class ReviewRequest(msgspec.Struct, frozen=True, rename="camel"):
    uid: str
    namespace: str = ""
    operation: str = ""
    user_info: ReviewUser = ReviewUser()
    object: WantedObject = WantedObject()
    dry_run: bool | None = None


class ReviewAsked(msgspec.Struct, frozen=True):
    request: ReviewRequest


class _BareRequest(msgspec.Struct, frozen=True):
    uid: str


class _BareReview(msgspec.Struct, frozen=True):
    request: _BareRequest


_ASKED: Final = msgspec.json.Decoder(ReviewAsked)
_BARE: Final = msgspec.json.Decoder(_BareReview)
_ENCODER: Final = msgspec.json.Encoder()


def read(body: bytes) -> ReviewRequest | str:
    """The request; only its uid, where the rest cannot be read. Raises one of UNREADABLE where not even that can."""
    try:
        return _ASKED.decode(body).request
    except UNREADABLE:
        return read_uid(body)


def read_uid(body: bytes) -> str:
    """Raises one of UNREADABLE where there is none."""
    return _BARE.decode(body).request.uid


def wanted(request: ReviewRequest, gpu_resources: frozenset[str]) -> admission.PodWanted:
    meta, spec = request.object.metadata, request.object.spec
    return admission.PodWanted(
        namespace=request.namespace, labels=meta.labels or {}, annotations=meta.annotations,
        has_gpus=_asks_for_gpus(meta, spec, gpu_resources), claims=spec.resource_claims or (),
        node_name=spec.node_name,
        is_daemons=any(each.controller and _is_daemon_set(each) for each in meta.owner_references or ()),
        node_selector=spec.node_selector or {}, affinity=spec.affinity,
        gates=tuple(each.name for each in spec.scheduling_gates or ()),
    )


def _is_daemon_set(owner: OwnerRef) -> bool:
    """Of Kubernetes itself: a group that a tenant has all rights on may have any name and kind."""
    return (owner.kind, owner.api_version.rpartition("/")[0]) == ("DaemonSet", "apps")


def _asks_for_gpus(meta: WantedMeta, spec: WantedSpec, gpu_resources: frozenset[str]) -> bool:
    for container in (*spec.containers, *(spec.init_containers or ())):
        limits = container.resources.limits if container.resources is not None else None
        for name, count in (limits or {}).items():
            if (name in gpu_resources or name.startswith(names.MIG_PREFIX)) and str(count) != "0":
                return True
    return bool(meta.annotations) and any(name in (meta.annotations or {}) for name in names.GPU_FRACTIONS)


def admit(
    uid: str, *, patch: admission.Patch = (), notes: Mapping[str, str] | None = None, warnings: Sequence[str] = ()
) -> bytes:
    """`notes`: for the API server's own audit log; `warnings`: for who makes the pod, a line each."""
    response: dict[str, Any] = {"uid": uid, "allowed": True}
    if patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(_ENCODER.encode(patch)).decode()
    if notes:
        response["auditAnnotations"] = notes
    if warnings:
        response["warnings"] = [" ".join(each[:_LONGEST_WARNING].split()) for each in warnings]
    return _answer(response)


def deny(uid: str, because: str, *, notes: Mapping[str, str] | None = None) -> bytes:
    status = {"code": 403, "reason": "Forbidden", "message": because[:_LONGEST]}
    return _answer({"uid": uid, "allowed": False, "status": status, **({"auditAnnotations": notes} if notes else {})})


def _answer(response: Mapping[str, Any]) -> bytes:
    return _ENCODER.encode({"apiVersion": _VERSION, "kind": "AdmissionReview", "response": response})
