"""The body of a write, read strictly: JSON of a few fields, bounded, nothing unknown in it; and its answer.

In: a request, the shape that is wanted. Out: the shape, or Denied with what is wrong and where.
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fallow.doors.api.refusals import JSON, Denied

MOST_BYTES = 64 * 1024
T = TypeVar("T", bound="BodyShape")


class BodyShape(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What a body asks for; a field that nobody knows is a slip that would else go unnoticed."""


class WriteEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table of writes, of which routes and the OpenAPI document are made."""

    path: str
    method: str
    summary: str
    act: Callable[[Any, Request], Awaitable[Response]]  # of Writes
    status: int
    asks: Any = None  # None: there is no body
    returns: Any = None  # None: it answers with none
    is_shown: bool = False  # it changes nothing in the cluster, and is not audited


async def read_bytes(request: Request, most: int = MOST_BYTES) -> bytes:
    """All of it, or Denied (413) as soon as it is more than that."""
    read = bytearray()
    async for chunk in request.stream():
        read += chunk
        if len(read) > most:
            raise Denied(413, "TooLarge", f"a body has at most {most // 1024} KiB here")
    return bytes(read)


async def read(request: Request, kind: type[T], *, may_be_empty: bool = False) -> T:
    """`may_be_empty`: no body says as much as `{}`."""
    body = await read_bytes(request)
    if not body and may_be_empty:
        body = b"{}"
    elif request.headers.get("Content-Type", "").partition(";")[0].strip().lower() != JSON:
        raise Denied(415, "NotJson", f"the body must be JSON, and its Content-Type {JSON}")
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise Denied(400, "BadRequest", f"the body cannot be read: {problem}") from None


def answer(content: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, {"Cache-Control": "no-store"}, JSON)
