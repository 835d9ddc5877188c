"""A replica that follows passes on what it is asked to the one that leads, so that nobody notices which one answers:
lists, figures, history, live pages, and what people change; all of it is then written down in one place.

In: a request. Out: the leader's answer as it comes; or Away, one sentence, and whoever asked goes on as far as it can
alone: it shows its own look, and keeps, resumes and freezes.
Who asks is found out here, and said to the leader in a voucher: signed with the key that all replicas share, for this
one request and this one leader (auth.py). Nobody's cookie or token leaves. Without such a key a bearer token is shown
again, as it came.
Where the leader is, the API server says: the address of the pod that holds the Lease. Nobody who can only write the
Lease has anything sent to a place of their own.
Invariant: a request is passed on once; what the leader may have carried out is not carried out here as well.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fallow import names
from fallow.clients import errors, replicas
from fallow.clients.kubernetes import api as kube
from fallow.doors.api import auth, limits, refusals
from fallow.doors.api.refusals import JSON, Denied
from fallow.model.units import Seconds
from fallow.stories.turn import Clock

PASSED_ON: Final = "X-Fallow-Passed-On"
_REMEMBERED: Final[Seconds] = 15.0  # as long as a Lease lasts
_LEFT_ALONE: Final[Seconds] = 5.0  # a leader that could not be reached
_BEARERS: Final = ("Authorization", names.RELAYED_AUTHORIZATION)
_PASSED: Final = ("Content-Type", "If-None-Match", "Accept-Encoding", "Last-Event-ID")
_KEPT: Final = ("etag", "cache-control", "vary", "retry-after", "content-encoding", "content-length", "allow",
                "x-accel-buffering")
_EVENTS: Final = "text/event-stream"
_OWN: Final = ("/api/v1/me", "/api/v1/login", "/api/v1/logout", "/api/openapi.json")  # of this replica's own keys
_ANSWERED: Final = ("/api/", "/allocation")
_WHY: Final = "this rests on what the leader wrote down"


class Away(Denied):
    """The leader cannot be asked."""

    def __init__(self, sentence: str) -> None:
        super().__init__(503, "NotLeading", f"{_WHY}, and {sentence}", retry_after=5)


class Unsure(Denied):
    """It was asked to change something, and nobody knows whether it did."""


class LeaderDoor:
    """`leads`: whether we do ourselves; `holder`: who does, as the Lease names it; `namespace`: ours; `shares_key`: all
    replicas sign with the same."""

    def __init__(
        self, api: kube.Api, ask: replicas.Replicas, gate: auth.FrontGate, *, leads: Callable[[], bool],
        holder: Callable[[], str | None], namespace: str, shares_key: bool, monotonic: Clock,
    ) -> None:
        self._api, self._replicas, self._gate, self._monotonic = api, ask, gate, monotonic
        self.leads, self._holder, self._namespace, self._shares_key = leads, holder, namespace, shares_key
        self._known: limits.Remembered[str, str] = limits.Remembered(_REMEMBERED, most=10)
        self._away: limits.Remembered[str, str] = limits.Remembered(_LEFT_ALONE, most=10)

    async def answer(self, request: Request, body: bytes) -> Response:
        """Of a page or a program: once it is known who asks, and that it is their own doing."""
        person = await self._gate.identify(request)
        if auth.is_write(request):
            self._gate.check_own_doing(request, person)
        given = {name: request.headers[name] for name in _BEARERS if name in request.headers}
        if self._shares_key:
            given = {auth.VOUCHER_HEADER: self._gate.vouch(request, person, body, self._holder() or "")}
        elif person.is_ambient:
            raise Away("this one cannot vouch for you to who leads; give all replicas the same --session-key-file")
        answer = await self.pass_on(request, body, given)
        if answer.status_code == 401:
            raise Away("who leads does not believe what this one says of you; give all the same --session-key-file")
        return answer

    async def pass_on(self, request: Request, body: bytes, proof: Mapping[str, str]) -> Response:
        """`proof`: by what the leader will know who it is. All replicas serve the same at the same port."""
        holder = self._holder()
        if not holder or PASSED_ON in request.headers:
            raise Away("nobody leads at this moment")
        given = {name: request.headers[name] for name in _PASSED if name in request.headers}
        found = await self._ask(holder, request, {**given, **proof, PASSED_ON: "1"}, body)
        headers = {name: found.headers[name] for name in _KEPT if name in found.headers}
        media, content = found.headers.get("content-type", JSON), found.body
        if media.startswith(_EVENTS):
            content = self._while_it_leads(holder, content)
        return StreamingResponse(content, found.status, headers, media)

    async def _ask(
        self, holder: str, request: Request, headers: Mapping[str, str], body: bytes
    ) -> replicas.ReplicaAnswer:
        now = self._monotonic()
        if (why := self._away.get(holder, now)) is not None:
            raise Away(why)
        try:
            address = await self._find(holder, request.scope["server"][1])
            return await self._replicas.ask(address, request.method, auth.raw_path(request), headers, body)
        except errors.ClientError as problem:
            if auth.is_write(request) and isinstance(problem, errors.Unreachable) and not problem.is_undone:
                unsure = f"{holder}, which leads, was asked and may have done it; look again ({problem})"
                raise Unsure(504, "NotKnown", unsure) from None
            why = f"{holder}, which leads, cannot be asked: {problem}"
            self._away.put(holder, why, now)
            raise Away(why) from None

    async def _find(self, holder: str, port: int) -> str:
        host = self._known.get(holder, self._monotonic())
        if host is None:
            found: dict[str, Any] = await self._api.get(kube.PODS, self._namespace, holder)
            host = str((found.get("status") or {}).get("podIP") or "")
            if not host:
                raise errors.NotFound(404, f"its pod {self._namespace}/{holder} has no address")
            self._known.put(holder, host, self._monotonic())
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def _while_it_leads(self, holder: str, news: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """An open page asks anew when somebody else does."""
        try:
            async for some in news:
                yield some
                if self._holder() != holder:
                    return
        except errors.Unreachable:  # it ended: the page comes back by itself
            return


class LeaderFirst:
    """Before all that an application answers: what is the leader's to answer goes there first. Where it cannot, the
    application finds the reason in `request.state.away`."""

    def __init__(self, app: ASGIApp, door: LeaderDoor) -> None:
        self._app, self._door = app, door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._door.leads() or not _is_leaders(scope["path"]):
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        body = await request.body()
        try:
            answer = await self._door.answer(request, body)
        except Unsure as refused:
            answer = refusals.show(refused)
        except Denied as refused:
            request.state.away = refused  # who is not let in is refused below, like everybody
            await self._app(scope, _again(body, receive), send)
            return
        await answer(scope, receive, send)


def _is_leaders(path: str) -> bool:
    return path.startswith(_ANSWERED) and path not in _OWN


def _again(body: bytes, receive: Receive) -> Receive:
    """For who reads the body once more."""
    is_given = False

    async def give() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return give
