"""The dashboard of the demo: the daemon's own API and pages over the pretend cluster, and what only a demo has.

In: a Stage that plays, its Boxes, a listener. Whoever opens it is the same visitor, known by name and allowed
everything, because nothing here is anybody's; and there is a page on which the messages can be read that went out.
Invariant: on loopback only. The pages' clock is the world's: a Date on every answer tells browsers which time it is.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable
from email import utils
from typing import Any, Final

import msgspec
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fallow import settings
from fallow.doors import answers
from fallow.doors import listen as opening
from fallow.doors.api import app, bounds, costs, editions, people
from fallow.model import units
from fallow.model.units import Instant, Seconds
from fallow.sim import stage
from fallow.sim.servers import boxes
from fallow.wiring import gaming

VISITOR: Final = "you@example.com"
BOOKS: Final = {"cost": "true", "cost_tracking_interval": "5m"}  # flags: costs are kept, in memory


class MessageTold(answers.Shape, frozen=True, kw_only=True):
    at: str
    by: str
    to: tuple[str, ...]
    title: str
    text: str
    fields: tuple[tuple[str, str], ...]


class ConversationPage(answers.Shape, frozen=True, kw_only=True):
    """The newest first."""

    items: tuple[MessageTold, ...]


class Visitors:
    """Whoever comes is VISITOR, as if a proxy had asked them; every answer carries the world's time, and says that it
    is a demo's."""

    def __init__(self, inner: ASGIApp, clock: Callable[[], Instant]) -> None:
        self._inner, self._clock = inner, clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_dated(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["Date"] = utils.formatdate(self._clock(), usegmt=True)
                headers["X-Fallow-Demo"] = "1"
            await send(message)

        said = [each for each in scope.get("headers", ()) if not each[0].startswith(b"x-forwarded-")]
        known = {**scope, "headers": [*said, (b"x-forwarded-user", VISITOR.encode())]}
        await self._inner(known, receive, send_dated)


def flags(listener: socket.socket, read: boxes.Boxes) -> dict[str, Any]:
    """What the controller is told of visitors, and of where its messages go."""
    return {
        "dashboard_auth": "proxy", "trusted_proxy": ["127.0.0.1/32"], "dashboard_public_url": link_to(listener),
        "cluster_name": "demo", "smtp_url": read.smtp, "email_from": "fallow@example.com",
        **BOOKS,
    }


def link_to(listener: socket.socket) -> str:
    return f"http://localhost:{listener.getsockname()[1]}/"


def listen(port: int) -> socket.socket:
    """There, or where there is room."""
    try:
        return opening.open_listener(("127.0.0.1", port))
    except settings.UsageError:  # taken since we looked
        return opening.open_listener(("127.0.0.1", 0))


@contextlib.asynccontextmanager
async def serving(on: stage.Stage, read: boxes.Boxes, listener: socket.socket) -> AsyncIterator[editions.Editions]:
    made, clock = on.product, lambda: on.world.clock
    latest = editions.Editions(
        made.loop, on.options, clock, kept=made.audit, draw=made.eyes.draw,
        suspects=lambda: gaming.find_suspects(made.loop),
    )
    latest.books, latest.acks = costs.make_books(on.options, made), made.books.acks if made.books else None
    latest.explainer, latest.forecasts = made.explainer, made.forecasts
    async with people.open_people(on.options, made, latest, clock) as who:
        routes = [*who.routes, _conversation(read)]
        pages = app.make_app(made.loop.health, made.loop.metrics, time.monotonic, reads=who.reads, routes=routes)
        pages.add_middleware(Visitors, clock=clock)
        server = app.Server(pages, bounds.PageProtocol)
        tasks = [asyncio.create_task(each) for each in (server.serve([listener]), who.live.run())]
        try:
            yield latest
        finally:
            who.changes.close()
            server.stop()
            tasks[1].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def tell_pace(shown: editions.Editions, interval: Seconds) -> None:
    """From now on pages and commands say that it looks so often."""
    pace = msgspec.structs.replace(shown.options.loop, interval=interval)
    shown.options = msgspec.structs.replace(shown.options, loop=pace)


def _conversation(read: boxes.Boxes) -> Route:
    async def show(request: Request) -> Response:
        page = ConversationPage(items=tuple(map(_tell, reversed(read.messages))))
        return Response(msgspec.json.encode(page), media_type="application/json", headers={"Cache-Control": "no-store"})

    return Route("/api/v1/conversation", show)


def _tell(one: boxes.BoxedMessage) -> MessageTold:
    at = units.rfc3339(one.at)
    return MessageTold(at=at, by=one.by, to=one.to, title=one.title, text=one.text, fields=one.fields)
