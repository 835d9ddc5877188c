"""What the daemon serves: /metrics, /healthz and /readyz, which need no authentication and give nothing away but
numbers; the API and the dashboard where they are asked for.

/healthz: 200 `ok` while the loop keeps beginning cycles, else 503: restart me.
/readyz: 200 while we see the cluster and the last cycle was good, else 503 with the reasons in JSON: do not rely on me.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fallow import loop, telemetry
from fallow.clients import errors
from fallow.doors import probes
from fallow.doors.answers import allocation
from fallow.doors.api import (
    answering,
    bodies,
    bounds,
    cost,
    editions,
    endpoints,
    openapi,
    pages,
    questions,
    refusals,
    writes,
)
from fallow.doors.api.leader import Away, LeaderDoor, LeaderFirst
from fallow.doors.api.refusals import Denied
from fallow.settings.serving import AuthMode
from fallow.stories.turn import Clock

log = logging.getLogger(__name__)


_LAST_WORDS = 1  # seconds in which answers under way may end when we stop
_REST = "/api/{rest:path}"
_MOMENT = 5.0  # seconds for which an answer of this moment is good enough
_SECURITY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin", "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
}


class Reads(msgspec.Struct, frozen=True, kw_only=True):
    """What the API reads from, and who may: `guard` raises Denied for who may not, and may leave the name of who
    asks in `request.state.user`. `may`: what that person may do with a workload; `may_in`: with the rows of a list.
    `leader`: who is asked first, while we do not lead."""

    editions: editions.Editions
    guard: answering.Guard
    may: questions.May | None = None
    may_in: questions.MayIn | None = None
    auth: AuthMode = "email"
    leader: LeaderDoor | None = None


def make_app(
    health: loop.Health, metrics: telemetry.Telemetry, clock: Clock, *, reads: Reads | None = None,
    routes: Sequence[BaseRoute] = (), files: dict[str, pages.BuiltFile] | None = None,
) -> Starlette:
    """`reads` None: metrics and health only. `routes`: what else there is, before whatever is not found. `files`: the
    dashboard; by default as it was built."""
    served = [*_health_routes(health, metrics, clock), *routes]
    if reads is not None:
        served += [*_read_routes(reads), Route(_REST, _find_nothing)]
        served.append(Route("/{path:path}", pages.BuiltPages(pages.read_files() if files is None else files).show))
    return _make(served, reads)


def make_cost_app(health: loop.Health, metrics: telemetry.Telemetry, clock: Clock, reads: Reads) -> Starlette:
    """What reads OpenCost finds here all that it asks for, and nothing else; who may is the same as everywhere."""
    served = [*_health_routes(health, metrics, clock), *_read_routes(reads, cost.ALLOCATIONS, ())]
    return _make([*served, Route("/{path:path}", _find_nothing)], reads)


def _make(served: Sequence[BaseRoute], reads: Reads | None) -> Starlette:
    app = Starlette(routes=served, exception_handlers={
        Denied: refusals.answer, HTTPException: _show_http_problem,
        errors.ClientError: _show_away, 500: _show_defect,
    })
    if reads is not None and reads.leader is not None:
        app.add_middleware(LeaderFirst, door=reads.leader)
    app.add_middleware(SecureHeaders)
    return app


def _health_routes(health: loop.Health, metrics: telemetry.Telemetry, clock: Clock) -> list[BaseRoute]:
    async def show_metrics(request: Request) -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def show_health(request: Request) -> Response:
        return _verdict(health.why_stuck(clock()))

    async def show_readiness(request: Request) -> Response:
        return _verdict(health.why_not_ready(clock()))

    return [Route("/metrics", show_metrics), Route("/healthz", show_health), Route("/readyz", show_readiness)]


def _read_routes(
    reads: Reads, table: Sequence[questions.Endpoint] = endpoints.ENDPOINTS,
    changes: Sequence[bodies.WriteEndpoint] = writes.WRITES,
) -> list[BaseRoute]:
    answerer = answering.Answerer()
    document = msgspec.json.encode(openapi.make_document(table, changes))

    async def show_document(request: Request) -> Response:
        return Response(document, media_type=refusals.JSON, headers={"Cache-Control": "no-cache"})

    def make(endpoint: questions.Endpoint) -> Callable[[Request], object]:
        async def show(request: Request) -> Response:
            return await _answer(reads, answerer, endpoint, request)

        return show

    found: list[BaseRoute] = [Route(each.path, make(each)) for each in table]
    return [Route(openapi.PATH, show_document), *found]


async def _answer(
    reads: Reads, answerer: answering.Answerer, endpoint: questions.Endpoint, request: Request
) -> Response:
    await reads.guard(request)
    try:
        return await _answer_well(reads, answerer, endpoint, request)
    except Denied as problem:
        if endpoint.refusal is allocation.AllocationRefusal and problem.status_code == 400:
            problem.body = allocation.AllocationRefusal(code=problem.status_code, message=problem.detail)
        raise


async def _answer_well(
    reads: Reads, answerer: answering.Answerer, endpoint: questions.Endpoint, request: Request
) -> Response:
    given = questions.read_parameters(endpoint, request)
    away = getattr(request.state, "away", None)
    if endpoint.is_leaders and isinstance(away, Away):
        raise away
    latest = await reads.editions.latest()
    ask = questions.ReadAsk(
        editions=reads.editions, given=given, request=request, may=reads.may, may_in=reads.may_in, auth=reads.auth,
        latest=latest,
    )
    moment = f".{reads.editions.clock() // _MOMENT:.0f}" if endpoint.is_timed else ""
    if endpoint.is_live:
        moment = f".{time.monotonic_ns():x}"
    return await answerer.respond(request, f"{reads.editions.revision:x}{moment}", lambda: endpoint.answer(ask))


# ---- what went wrong -------------------------------------------------------------------------------------------------


async def _find_nothing(request: Request) -> Response:
    raise Denied(404, "NotFound", f"there is no {request.url.path}; /api/openapi.json names what there is")


async def _show_away(request: Request, problem: Exception) -> Response:
    """Somebody outside who was needed for this answer, such as the file of what happened."""
    log.warning("%s could not be answered: %s", request.url.path, problem)
    return refusals.show(Denied(503, "Unavailable", f"this cannot be answered now: {problem}"))


async def _show_http_problem(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    code = {404: "NotFound", 405: "MethodNotAllowed"}.get(problem.status_code, "Refused")
    words, headers = f"{request.method} {request.url.path}: {problem.detail}", dict(problem.headers or {})
    if problem.status_code == 405:
        headers["Allow"] = ", ".join(sorted(_methods(request)))
    return refusals.show(Denied(problem.status_code, code, words, headers=headers))


def _methods(request: Request) -> set[str]:
    """All that can be asked of this path, whichever route of it was found first."""
    found = (each for each in request.app.routes if isinstance(each, Route))
    return {
        method for each in found if ":path}" not in each.path and each.matches(request.scope)[0] is not Match.NONE
        for method in each.methods or ()
    }


async def _show_defect(request: Request, problem: Exception) -> Response:
    return refusals.show(Denied(500, "Defect", "this could not be answered; the log of fallow says why"))


class SecureHeaders:
    """Every answer tells browsers what they may do with it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _SECURITY.items():
                    headers[name] = value
            await send(message)

        await self._app(scope, receive, send_safely)


def _verdict(reasons: list[str]) -> Response:
    status, body, content_type = probes.tell_reasons(reasons)
    return Response(body, status, media_type=content_type.decode())


class Server(uvicorn.Server):
    """uvicorn, with signals left to the loop: SIGTERM must finish the patch in flight, not just the requests."""

    def __init__(
        self, app: Starlette, protocol: type[bounds.BoundedProtocol] = bounds.BoundedProtocol
    ) -> None:
        """Headers about who is behind a proxy are left to doors/api/auth.py: uvicorn would believe all of loopback."""
        super().__init__(uvicorn.Config(
            app, http=protocol, ws="none", log_config=None, lifespan="off", access_log=False, date_header=False,
            proxy_headers=False, timeout_graceful_shutdown=_LAST_WORDS,
        ))
        self._ended = asyncio.Event()

    def stop(self) -> None:
        self._ended.set()

    async def main_loop(self) -> None:
        """Waits. uvicorn itself would look around ten times a second: a sixth of all that a daemon took that looks
        every ten seconds."""
        await self.on_tick(0)
        await self._ended.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_server(
    health: loop.Health, metrics: telemetry.Telemetry, reads: Reads | None, routes: Sequence[BaseRoute]
) -> Server:
    """What a daemon serves at one address: health always; pages and writes where they are asked for."""
    protocol = bounds.PageProtocol if reads is not None or routes else bounds.BoundedProtocol
    return Server(make_app(health, metrics, time.monotonic, reads=reads, routes=routes), protocol)


def make_cost_server(health: loop.Health, metrics: telemetry.Telemetry, reads: Reads) -> Server:
    """The listener of --cost-api-port."""
    return Server(make_cost_app(health, metrics, time.monotonic, reads))


def find_cost_address(port: int, auth: AuthMode) -> tuple[str, int]:
    """Where nobody says who they are (mode email) this very machine alone is answered: kubectl port-forward leads here.
    In all other modes, all addresses, and whoever asks shows who they are as for the rest of the API."""
    return ("127.0.0.1" if auth == "email" else "0.0.0.0", port)
