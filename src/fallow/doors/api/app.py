"""What the daemon serves: /metrics, /healthz and /readyz, which need no authentication and give nothing away but
numbers; the API and the dashboard where they are asked for.

/healthz: 200 `ok` while the loop keeps beginning cycles, else 503: restart me.
/readyz: 200 while we see the cluster and the last cycle was good, else 503 with the reasons in JSON: do not rely on me.
"""

import asyncio
import contextlib
import ipaddress
import socket
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fallow import loop, settings, telemetry
from fallow.doors.answers import overview
from fallow.doors.api import answering, bounds, editions, endpoints, openapi, pages, refusals
from fallow.doors.api.answering import ApiProblem
from fallow.doors.api.refusals import Denied
from fallow.stories.turn import Clock

_LAST_WORDS = 1  # seconds in which answers under way may end when we stop
_MOMENT = 5.0  # seconds for which an answer of this moment is good enough
_SECURITY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
}


class Reads(msgspec.Struct, frozen=True, kw_only=True):
    """What the API reads from, and who may: `guard` raises ApiProblem for who may not, and may leave the name of who
    asks in `request.state.user`. `may`: what that person may do with a workload."""

    editions: editions.Editions
    guard: answering.Guard
    may: endpoints.May | None = None
    auth: overview.AuthMode = "email"


def make_app(
    health: loop.Health, metrics: telemetry.Telemetry, clock: Clock, *, reads: Reads | None = None,
    routes: Sequence[BaseRoute] = (), files: dict[str, pages.BuiltFile] | None = None,
) -> Starlette:
    """`reads` None: metrics and health only. `routes`: what else there is, before whatever is not found. `files`: the
    dashboard; by default as it was built."""
    served = [*_health_routes(health, metrics, clock), *routes]
    if reads is not None:
        served += [*_read_routes(reads), Route("/api/{rest:path}", _find_nothing)]
        served.append(Route("/{path:path}", pages.BuiltPages(pages.read_files() if files is None else files).show))
    app = Starlette(routes=served, exception_handlers={
        ApiProblem: _show_problem, Denied: refusals.answer, HTTPException: _show_http_problem, 500: _show_defect
    })
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


def _read_routes(reads: Reads) -> list[BaseRoute]:
    answerer, document = answering.Answerer(), msgspec.json.encode(openapi.make_document(endpoints.ENDPOINTS))

    async def show_document(request: Request) -> Response:
        return Response(document, media_type=answering.JSON, headers={"Cache-Control": "no-cache"})

    def make(endpoint: endpoints.Endpoint) -> Callable[[Request], object]:
        async def show(request: Request) -> Response:
            return await _answer(reads, answerer, endpoint, request)

        return show

    found: list[BaseRoute] = [Route(each.path, make(each)) for each in endpoints.ENDPOINTS]
    return [Route(openapi.PATH, show_document), *found]


async def _answer(
    reads: Reads, answerer: answering.Answerer, endpoint: endpoints.Endpoint, request: Request
) -> Response:
    await reads.guard(request)
    given, latest = endpoints.read_parameters(endpoint, request), await reads.editions.latest()
    ask = endpoints.ReadAsk(
        editions=reads.editions, given=given, request=request, may=reads.may, auth=reads.auth, latest=latest
    )
    moment = f".{reads.editions.clock() // _MOMENT:.0f}" if endpoint.is_timed else ""
    return await answerer.respond(request, f"{reads.editions.revision:x}{moment}", lambda: endpoint.answer(ask))


async def only_from_here(request: Request) -> None:
    """The guard while nobody can be asked who they are: only this very machine, and under its own name, so that no web
    page of somebody else reads along."""
    peer, name = request.client.host if request.client else "", request.url.hostname or ""
    if not (_is_here(peer) and (name == "localhost" or _is_here(name))):
        why = "without authentication the API answers on this machine only, at localhost; use kubectl port-forward"
        raise ApiProblem(403, "Forbidden", why)


def _is_here(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


# ---- what went wrong -------------------------------------------------------------------------------------------------


async def _find_nothing(request: Request) -> Response:
    raise ApiProblem(404, "NotFound", f"there is no {request.url.path}; /api/openapi.json names what there is")


async def _show_problem(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, ApiProblem)
    return answering.refuse(problem)


async def _show_http_problem(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    code = {404: "NotFound", 405: "MethodNotAllowed"}.get(problem.status_code, "Refused")
    words = f"{request.method} {request.url.path}: {problem.detail}"
    return answering.refuse(ApiProblem(problem.status_code, code, words, headers=problem.headers))


async def _show_defect(request: Request, problem: Exception) -> Response:
    return answering.refuse(ApiProblem(500, "Defect", "this could not be answered; the log of fallow says why"))


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
    if not reasons:
        return PlainTextResponse("ok")
    return Response(msgspec.json.encode({"reasons": reasons}), status_code=503, media_type="application/json")


def open_listener(address: tuple[str, int], flag: str = "--metrics-addr") -> socket.socket:
    """The socket, bound before anything else starts: a port that is taken is a usage error, not a crash later."""
    host, port = address
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as problem:
        listener.close()
        raise settings.UsageError(f"{flag}: cannot listen on {host}:{port}: {problem.strerror}") from None
    return listener


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
