"""`GET /prom/{cluster}/api/v1/query`: somebody's own question to the Prometheus that we ask, as gpu-pruner relays it.

In: `query` and, if it is not about now, `time`. Out: what Prometheus answers, as it is.
Invariant: only for people who are known and may see everything; a question takes 30 seconds and an answer 10 MiB at
most, few are asked at a time, and nothing but this one path is relayed.
"""

import asyncio
import math
from collections.abc import Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fallow.clients import errors
from fallow.clients.prometheus import client as prometheus
from fallow.doors.api import refusals, rights
from fallow.doors.api.refusals import JSON, Denied
from fallow.model import units
from fallow.model.units import Instant, Seconds
from fallow.stories.turn import Clock

LONGEST: Seconds = 30.0
MOST_BYTES: Final = 10 * 2**20
_AT_ONCE: Final = 4
_LONGEST_QUERY: Final = 16_384


def make_route(
    sources: Mapping[str, prometheus.Prometheus], may: rights.Rights, clock: Clock, longest: Seconds = LONGEST
) -> Route:
    """`sources`: by the name of the cluster."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def show(request: Request) -> Response:
        await may.demand_all(request)
        asked = sources.get(request.path_params["cluster"])
        if asked is None:
            raise Denied(404, "NotFound", f"there is no such cluster here; there is {', '.join(map(repr, sources))}")
        query, at = _read(request, clock())
        try:
            async with asyncio.timeout(longest), turns:
                body = await asked.relay(query, at, clock(), most=MOST_BYTES)
        except TimeoutError:
            raise Denied(504, "TooSlow", f"Prometheus did not answer within {longest:.0f} seconds") from None
        except errors.Invalid as problem:
            raise Denied(400, "BadQuery", str(problem)) from None
        except errors.ClientError as problem:
            raise Denied(502, "SourceError", str(problem)) from None
        return Response(body, media_type=JSON, headers={"Cache-Control": "no-store"})

    return Route("/prom/{cluster}/api/v1/query", refusals.shown(show))


def _read(request: Request, now: Instant) -> tuple[str, Instant]:
    given = request.query_params
    if unknown := sorted(set(given) - {"query", "time"}):
        raise Denied(400, "BadParameter", f"there is no parameter {unknown[0]!r} here; there are: query, time")
    query = given.get("query", "")
    if not query.strip() or len(query) > _LONGEST_QUERY:
        raise Denied(400, "BadParameter", f"query: a question of at most {_LONGEST_QUERY} characters is needed")
    return query, _read_time(given["time"]) if "time" in given else now


def _read_time(text: str) -> Instant:
    """Seconds since 1970, or RFC 3339: as Prometheus takes it."""
    try:
        found = float(text)
    except ValueError:
        try:
            found = units.parse_instant(text)
        except (ValueError, OverflowError) as problem:
            raise Denied(400, "BadParameter", f"time: {problem}") from None
    if not math.isfinite(found) or abs(found) > 1e11:
        raise Denied(400, "BadParameter", f"time: {text[:40]!r} is no time")
    return found
