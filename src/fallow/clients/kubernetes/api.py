"""Requests to the Kubernetes API: read, list by pages, create, replace, patch, and open a watch.

In: a `Resource` and names. Out: decoded objects, or one error of the clients' tree with the server's own message.
What fails is tried three times, by the rule of clients/retry.py, unless the caller wants it sent once.
Invariant: never more than `in_flight` requests at once, and `qps` a second after a `burst` (watches count when they are
opened), and no write is sent again that may have been done.
"""

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, Self, TypeVar, cast, overload
from urllib import parse

import msgspec

from fallow import names
from fallow.clients import errors, retry
from fallow.clients.kubernetes import config, nesting, pace, transport
from fallow.model.seen import Input
from fallow.model.units import Instant

T = TypeVar("T")
K = TypeVar("K")

PATIENCE = retry.Patience(tries=3, first_wait=0.25)
ONCE = retry.Patience(tries=1, first_wait=0.0)
# A continue token lives five minutes (etcd compaction); a list that is overtaken this often is not going to finish.
_MOST_RESTARTS = 3
# A watch is silent for a minute at most (bookmarks); twice that means the connection is dead and nobody said so.
_WATCH_SILENCE_SECONDS = 150.0

_METADATA = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1,application/json"


class Resource(msgspec.Struct, frozen=True):
    """A kind the server has, and how it is addressed."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    scalable: bool = False  # serves /scale
    also: tuple[str, ...] = ()  # what else people call it: in the singular, and for short

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def words(self) -> tuple[str, ...]:
        """All that people call it, in small letters."""
        return self.kind.lower(), self.plural, *self.also

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """The collection's path, or one object's; without a namespace, all namespaces'."""
        if name is not None and self.namespaced and namespace is None:
            raise errors.rejection(400, f"{self.kind} {name!r} needs a namespace")
        root = ["apis", self.group, self.version] if self.group else ["api", self.version]
        inside = ["namespaces", namespace] if self.namespaced and namespace is not None else []
        rest = [part for part in (name, subresource) if part is not None]
        return "/" + "/".join(_quote(part) for part in [*root, *inside, self.plural, *rest])


def _quote(part: str) -> str:
    if part in ("", ".", ".."):  # these would address something else than was meant
        raise errors.rejection(400, f"{part!r} cannot be a name in Kubernetes")
    return parse.quote(part, safe="")


PODS = Resource("", "v1", "pods", "Pod", True)
NODES = Resource("", "v1", "nodes", "Node", False)
SECRETS = Resource("", "v1", "secrets", "Secret", True)
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap", True)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", False)
DEPLOYMENTS = Resource("apps", "v1", "deployments", names.DEPLOYMENT_KIND, True, scalable=True)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease", True)
EVENTS = Resource("events.k8s.io", "v1", "events", "Event", True)
IDLE_POLICIES = Resource(names.GROUP, names.POLICY_VERSION, names.POLICY_PLURAL, names.POLICY_KIND, False)
COST_BUDGETS = Resource(names.GROUP, names.POLICY_VERSION, names.BUDGET_PLURAL, names.BUDGET_KIND, False)
COST_ATTRIBUTIONS = Resource(
    names.GROUP, names.POLICY_VERSION, names.ATTRIBUTION_PLURAL, names.ATTRIBUTION_KIND, False
)
SHARING_POLICIES = Resource(
    names.GROUP, names.POLICY_VERSION, names.SHARING_POLICY_PLURAL, names.SHARING_POLICY_KIND, False
)
RESOURCE_SLICES = Resource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", False)
DEVICE_CLASSES = Resource("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", False)
CLAIM_TEMPLATES = Resource("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate", True)
SCALING_POLICIES = Resource(
    names.GROUP, names.POLICY_VERSION, names.SCALING_POLICY_PLURAL, names.SCALING_POLICY_KIND, False
)
NODE_CONFIGS = Resource(names.GROUP, names.POLICY_VERSION, names.NODE_CONFIG_PLURAL, names.NODE_CONFIG_KIND, False)
NODE_POOLS = Resource("karpenter.sh", "v1", "nodepools", "NodePool", False)
WEBHOOK_CONFIGURATIONS = tuple(
    Resource("admissionregistration.k8s.io", "v1", f"{kind.lower()}s", kind, False)
    for kind in ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration")
)


class ListPage(msgspec.Struct, Generic[T], frozen=True):
    """Some of a list. `restarted`: it began anew, drop all earlier pages. `unreadable`: the objects left out."""

    items: list[T]
    resource_version: str
    restarted: bool = False
    unreadable: "tuple[ObjectMeta, ...]" = ()


class _ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_token: str | None = msgspec.field(default=None, name="continue")


class _List(msgspec.Struct, Generic[T]):
    items: list[T] | None = None
    metadata: _ListMeta = _ListMeta()


class ObjectMeta(msgspec.Struct, frozen=True, rename="camel"):
    """What every object has."""

    uid: str = ""
    resource_version: str = ""
    name: str = ""
    namespace: str = ""


class BareObject(msgspec.Struct, frozen=True):
    """Any object, of which only what every one has is read."""

    metadata: ObjectMeta = ObjectMeta()


_BARE = msgspec.json.Decoder(BareObject)
# By what content a decoder may be beaten: it is no JSON, not of that type, not UTF-8, or nested too deep.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


@functools.cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """One decoder per type, made once: making one costs more than decoding a small object."""
    return msgspec.json.Decoder(kind)


class Api:
    """The API server, as an async context manager."""

    def __init__(
        self, access: config.Access, *, qps: float = 20, burst: int = 0, in_flight: int = 10,
        timeout: float = 30.0, monotonic: Callable[[], float] = time.monotonic,
        note: transport.Note = lambda verb, code: None,
    ) -> None:
        """`burst`: how many may go before `qps` counts; at least as many as `in_flight`. `monotonic`: by which clock we
        pace ourselves, and carry on the server's. `note` hears verb and code of every request."""
        self._wire = transport.Wire(access, note, monotonic)
        self._pace = pace.Pace(qps, max(burst, in_flight), monotonic=monotonic)
        self._slots = asyncio.Semaphore(in_flight)
        self._timeout = timeout

    @property
    def requests_sent(self) -> int:
        return self._wire.sent

    @property
    def clock(self) -> Input[Instant]:
        """What time it is at the server."""
        return self._wire.clock.read()

    async def __aenter__(self) -> Self:
        await self._wire.__aenter__()
        return self

    async def __aexit__(self, *why: object) -> None:
        await self._wire.__aexit__(*why)

    async def request(
        self, method: str, path: str, *, params: Mapping[str, str] | None = None, body: bytes | None = None,
        content_type: str = "application/json", accept: str = "application/json", patience: retry.Patience = PATIENCE,
    ) -> bytes:
        request = transport.Request(
            method=method, path=path, params=params or {}, body=body, content_type=content_type, accept=accept,
            timeout=self._timeout,
        )
        return await self._persist(method, functools.partial(self._wire.fetch, request), patience)

    async def relay(
        self, path: str, params: Mapping[str, str], headers: Mapping[str, str], most: int = transport.MAX_BODY
    ) -> bytes:
        """Asked once of somebody behind the server, such as a Service; or of another server than Kubernetes' own.
        `most`: bytes of the answer."""
        request = transport.Request(
            method="GET", path=path, params=params, headers=headers, timeout=self._timeout, is_relayed=True, most=most
        )
        return await self._persist("GET", functools.partial(self._wire.fetch, request), ONCE)

    @overload
    async def get(self, resource: Resource, namespace: str | None, name: str) -> dict[str, Any]: ...
    @overload
    async def get(self, resource: Resource, namespace: str | None, name: str, *, kind: type[T]) -> T: ...
    async def get(self, resource: Resource, namespace: str | None, name: str, *, kind: Any = dict) -> Any:
        path = resource.path(namespace, name)
        return _decode(await self.request("GET", path), kind, path)

    async def read_scale(self, resource: Resource, namespace: str | None, name: str) -> dict[str, Any]:
        """The object's autoscaling/v1 Scale."""
        path = resource.path(namespace, name, "scale")
        return _decode(await self.request("GET", path), dict[str, Any], path)

    async def create(self, resource: Resource, namespace: str | None, body: Mapping[str, Any]) -> dict[str, Any]:
        return await self._write("POST", resource.path(namespace), body, {})

    async def who_am_i(self) -> str | None:
        """Our name as the API server knows it; None where it does not tell (before Kubernetes 1.28, or forbidden)."""
        path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        try:
            answer = await self._write("POST", path, body, {})
        except errors.ClientError:
            return None
        name = ((answer.get("status") or {}).get("userInfo") or {}).get("username")
        return name if isinstance(name, str) and name else None

    async def replace(
        self, resource: Resource, namespace: str | None, name: str, body: Mapping[str, Any]
    ) -> dict[str, Any]:
        """PUT; a resourceVersion in the body makes it conditional."""
        return await self._write("PUT", resource.path(namespace, name), body, {})

    async def delete(
        self, resource: Resource, namespace: str | None, name: str, *, uid: str, resource_version: str
    ) -> None:
        """The one that was seen, as it was seen; else a Conflict."""
        body = {
            "apiVersion": "v1", "kind": "DeleteOptions",
            "preconditions": {"uid": uid, "resourceVersion": resource_version},
        }
        await self._write("DELETE", resource.path(namespace, name), body, {})

    async def merge_patch(
        self, resource: Resource, namespace: str | None, name: str, body: Mapping[str, Any], *,
        field_manager: str, dry_run: bool = False, subresource: str | None = None, patience: retry.Patience = PATIENCE,
    ) -> dict[str, Any]:
        """RFC 7396. A field the server does not know is an error and not silently dropped."""
        params = {"fieldManager": field_manager, "fieldValidation": "Strict"} | ({"dryRun": "All"} if dry_run else {})
        path = resource.path(namespace, name, subresource)
        return await self._write("PATCH", path, body, params, "application/merge-patch+json", patience)

    async def apply(
        self, resource: Resource, namespace: str | None, name: str, body: Mapping[str, Any], *, field_manager: str,
        force: bool = False, dry_run: bool = False, subresource: str | None = None,
    ) -> dict[str, Any]:
        """Server-side: what we applied before and is not in the body goes. `force`: take over what others own. A field
        the server does not know is an error."""
        params = {"fieldManager": field_manager, "force": str(force).lower(), "fieldValidation": "Strict"}
        params |= {"dryRun": "All"} if dry_run else {}
        path = resource.path(namespace, name, subresource)
        return await self._write("PATCH", path, body, params, "application/apply-patch+yaml")

    async def json_patch(
        self, resource: Resource, namespace: str | None, name: str, operations: Sequence[Mapping[str, Any]], *,
        field_manager: str,
    ) -> dict[str, Any]:
        """RFC 6902; `test` operations make it conditional."""
        path, params = resource.path(namespace, name), {"fieldManager": field_manager}
        return await self._write("PATCH", path, operations, params, "application/json-patch+json")

    async def list_pages(
        self, resource: Resource, *, item: type[T], namespace: str | None = None, label_selector: str | None = None,
        field_selector: str | None = None, limit: int = 500, metadata_only: bool = False,
    ) -> AsyncIterator[ListPage[T]]:
        """All objects, page by page, never more than one page in memory.

        What is msgspec.Raw in an item holds until the next page. When the list is overtaken (410 on a continue token)
        it begins anew, and the first page says so.
        """
        path = resource.path(namespace)
        chosen = _select(label_selector, field_selector) | {"limit": str(limit)}
        accept = _METADATA.format("List") if metadata_only else "application/json"
        token: str | None = None
        restarts, restarted = 0, False
        room = transport.BodyMemory()
        while True:
            params = chosen | ({"continue": token} if token else {})
            request = transport.Request(method="GET", path=path, params=params, accept=accept, timeout=self._timeout)
            try:
                body = await self._persist("GET", functools.partial(self._wire.fetch_into, room, request))
            except errors.Gone:
                if token is None or restarts == _MOST_RESTARTS:
                    raise
                token, restarts, restarted = None, restarts + 1, True
                continue
            page, following = _read_page(body, item, path, restarted)
            yield page
            del page
            if following and following == token:
                raise errors.BadAnswer(f"GET {path}: the server gives the same page again and again")
            token, restarted = following, False
            if not token:
                return

    async def gather(
        self, resource: Resource, *, item: type[T], keep: Callable[[T], K], namespace: str | None = None,
        label_selector: str | None = None, field_selector: str | None = None,
    ) -> list[K]:
        """What is kept of each object of a list, once: a list that begins anew forgets what came before. What cannot
        be read is left out."""
        found = list[K]()
        async for page in self.list_pages(
            resource, item=item, namespace=namespace, label_selector=label_selector, field_selector=field_selector
        ):
            found = [*([] if page.restarted else found), *map(keep, page.items)]
        return found

    @contextlib.asynccontextmanager
    async def watch(
        self, resource: Resource, *, resource_version: str, seconds: int, namespace: str | None = None,
        label_selector: str | None = None, field_selector: str | None = None, metadata_only: bool = False,
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The bytes of a watch, as they come, until the server ends it after `seconds` or the connection breaks."""
        stream = {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": resource_version}
        request = transport.Request(
            method="GET",
            path=resource.path(namespace),
            params={**_select(label_selector, field_selector), **stream, "timeoutSeconds": str(seconds)},
            accept=_METADATA.format("") if metadata_only else "application/json",
            timeout=seconds + self._timeout,
            silence=_WATCH_SILENCE_SECONDS,
        )
        response = await self._persist("GET", functools.partial(self._wire.open, request))
        try:
            async with contextlib.aclosing(self._wire.chunks(request, response)) as chunks:
                yield chunks
        finally:
            response.close()

    async def _write(
        self, method: str, path: str, body: object, params: Mapping[str, str], content_type: str = "application/json",
        patience: retry.Patience = PATIENCE,
    ) -> dict[str, Any]:
        encoded = msgspec.json.encode(body)
        answer = await self.request(
            method, path, params=params, body=encoded, content_type=content_type, patience=patience
        )
        return _decode(answer, dict[str, Any], path)

    async def _persist(
        self, method: str, attempt: Callable[[], Awaitable[T]], patience: retry.Patience = PATIENCE
    ) -> T:
        async def paced() -> T:
            async with self._slots:
                await self._pace.wait()
                return await attempt()

        return await retry.persist(paced, patience, is_read=method == "GET")


def _select(label_selector: str | None, field_selector: str | None) -> dict[str, str]:
    chosen = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {key: value for key, value in chosen.items() if value}


def _decode(body: bytes | memoryview, kind: type[T], path: str) -> T:
    try:
        return cast(T, _decoder(cast(Any, kind)).decode(body))
    except UNREADABLE as problem:
        raise errors.BadAnswer(f"{path}: the server's answer cannot be read: {problem}") from problem


def _read_page(body: memoryview, item: Any, path: str, restarted: bool) -> tuple[ListPage[Any], str | None]:
    try:
        whole: _List[Any] = _decoder(_List[item]).decode(body)
    except UNREADABLE:
        return _read_one_by_one(body, item, path, restarted)
    meta = whole.metadata
    return ListPage(whole.items or [], meta.resource_version, restarted), meta.continue_token


def _read_one_by_one(body: memoryview, item: Any, path: str, restarted: bool) -> tuple[ListPage[Any], str | None]:
    """An object that does not fit must not hide the others."""
    rough = _read_roughly(body, path)
    good: list[Any] = []
    bad: list[ObjectMeta] = []
    decoder = _decoder(item)
    for raw in rough.items or ():
        try:
            found = None if nesting.is_cut(raw) else decoder.decode(raw)
        except UNREADABLE:
            found = None
        if found is None:
            bad.append(read_meta(raw))
        else:
            good.append(found)
    return ListPage(good, rough.metadata.resource_version, restarted, tuple(bad)), rough.metadata.continue_token


def _read_roughly(body: memoryview, path: str) -> _List[msgspec.Raw]:
    """Even what is skipped must not be nested too deep."""
    try:
        return cast(_List[msgspec.Raw], _decoder(_List[msgspec.Raw]).decode(body))
    except RecursionError:
        return _decode(nesting.cut(body), _List[msgspec.Raw], path)
    except UNREADABLE as problem:
        raise errors.BadAnswer(f"{path}: the server's answer cannot be read: {problem}") from problem


def read_meta(raw: bytes | msgspec.Raw) -> ObjectMeta:
    """What every object has, empty where even that cannot be read."""
    with contextlib.suppress(*UNREADABLE):
        return _BARE.decode(raw).metadata
    with contextlib.suppress(*UNREADABLE):
        return _BARE.decode(nesting.cut(bytes(raw))).metadata
    return ObjectMeta()
