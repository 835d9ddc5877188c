"""Who is it, and may they? The API server's own answers, asked by us on behalf of somebody else; and may we?

In: a bearer token; or a name, groups, and what somebody wants to do. Out: whose token it is; yes or no. Nothing is
remembered here. Invariant: a token is sent to the API server and nowhere else, and stands in no error.
"""

from typing import Any, TypeVar

import msgspec

from fallow.clients import errors
from fallow.clients.kubernetes import api as kube

S = TypeVar("S")

_TOKENS = kube.Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", False)
_OWN_ACCESS = kube.Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", False
)
_ACCESS = kube.Resource("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", False)


class Identity(msgspec.Struct, frozen=True):
    """Somebody, as the API server knows them."""

    name: str
    groups: tuple[str, ...] = ()


class AccessWish(msgspec.Struct, frozen=True):
    """What somebody wants to do, to what. Without a namespace: in all of them; without a name: to any."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    def __str__(self) -> str:
        """`patch on deployments in team-chat`, as a right is called that lacks."""
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} on {self.resource}{where}"


class _TokenStatus(msgspec.Struct, frozen=True):
    class User(msgspec.Struct, frozen=True):
        username: str = ""
        groups: tuple[str, ...] = ()

    authenticated: bool = False
    user: User = User()


class _AccessStatus(msgspec.Struct, frozen=True):
    allowed: bool = False
    denied: bool = False


async def review_token(api: kube.Api, token: str) -> Identity | None:
    """Whose it is; None: nobody's, or no longer."""
    if not token:  # to ask about none is an error there
        return None
    body = {"apiVersion": _TOKENS.api_version, "kind": _TOKENS.kind, "spec": {"token": token}}
    status = _read(await api.create(_TOKENS, None, body), _TokenStatus)
    known = status.authenticated and bool(status.user.username)
    return Identity(status.user.username, status.user.groups) if known else None


async def review_access(api: kube.Api, who: Identity, wish: AccessWish) -> bool:
    spec = {"user": who.name, "groups": list(who.groups), "resourceAttributes": _name(wish)}
    return await _ask(api, _ACCESS, spec)


async def may_we(api: kube.Api, wish: AccessWish) -> bool:
    """Everybody may ask that of themselves."""
    return await _ask(api, _OWN_ACCESS, {"resourceAttributes": _name(wish)})


async def _ask(api: kube.Api, kind: kube.Resource, spec: dict[str, Any]) -> bool:
    body = {"apiVersion": kind.api_version, "kind": kind.kind, "spec": spec}
    status = _read(await api.create(kind, None, body), _AccessStatus)
    return status.allowed and not status.denied


def _name(wish: AccessWish) -> dict[str, str]:
    return {
        "verb": wish.verb, "group": wish.group, "resource": wish.resource, "namespace": wish.namespace,
        "name": wish.name, **({"subresource": wish.subresource} if wish.subresource else {}),
    }


def _read(answer: dict[str, Any], kind: type[S]) -> S:
    """What is not there, or not of that type, is no yes."""
    try:
        return msgspec.convert(answer.get("status") or {}, kind)
    except msgspec.ValidationError as problem:
        raise errors.BadAnswer(f"a review of the API server cannot be read: {problem}") from None
