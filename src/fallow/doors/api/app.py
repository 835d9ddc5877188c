"""/metrics, /healthz and /readyz of the daemon. They need no authentication and give nothing away but numbers.

/healthz: 200 `ok` while the loop keeps beginning cycles, else 503: restart me.
/readyz: 200 while we see the cluster and the last cycle was good, else 503 with the reasons in JSON: do not rely on me.
"""

import asyncio
import contextlib
import socket
from collections.abc import Iterator, Sequence

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from fallow import loop, settings, telemetry
from fallow.doors.api import bounds
from fallow.stories.turn import Clock

_LAST_WORDS = 1  # seconds in which answers under way may end when we stop


def make_app(health: loop.Health, metrics: telemetry.Telemetry, clock: Clock) -> Starlette:
    async def show_metrics(request: Request) -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def show_health(request: Request) -> Response:
        return _verdict(health.why_stuck(clock()))

    async def show_readiness(request: Request) -> Response:
        return _verdict(health.why_not_ready(clock()))

    return Starlette(
        routes=[Route("/metrics", show_metrics), Route("/healthz", show_health), Route("/readyz", show_readiness)]
    )


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


def make_buttons(routes: Sequence[BaseRoute]) -> Server:
    """For the listener that Slack calls."""
    return Server(Starlette(routes=routes), bounds.PageProtocol)
