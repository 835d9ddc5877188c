"""How an answer goes out: encoded once for a revision, with an ETag, packed where that is asked for.

In: a question (an Endpoint with its parameters), whoever asks. Out: bytes.
Invariant: what one person was told is never given to another: the cache and the ETag know who asks. The cache is
bounded.
"""

import gzip
import zlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fallow.doors.api.refusals import JSON

_MOST_KEPT: Final = 256
_MOST_BYTES: Final = 24 * 2**20
_WORTH_PACKING: Final = 1024

Guard: TypeAlias = Callable[[Request], Awaitable[None]]  # raises Denied for who may not read


def user_of(request: Request) -> str | None:
    """Who asks, as the guard found out."""
    found = getattr(request.state, "user", None)
    return found if isinstance(found, str) else None


class _KeptAnswer(msgspec.Struct):
    tag: str
    body: bytes
    packed: bytes | None = None

    @property
    def size(self) -> int:
        return len(self.body) + len(self.packed or b"")


class AnswerCache:
    """Encoded answers by who asked and for what, the latest of each."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str | None, str], _KeptAnswer] = OrderedDict()
        self._bytes = 0

    def find(self, key: tuple[str | None, str], tag: str) -> _KeptAnswer | None:
        found = self._kept.get(key)
        if found is None or found.tag != tag:
            return None
        self._kept.move_to_end(key)
        return found

    def keep(self, key: tuple[str | None, str], answer: _KeptAnswer) -> _KeptAnswer:
        self._drop(key)
        self._kept[key] = answer
        self._bytes += answer.size
        while len(self._kept) > 1 and (len(self._kept) > _MOST_KEPT or self._bytes > _MOST_BYTES):
            self._drop(next(iter(self._kept)))
        return answer

    def pack(self, answer: _KeptAnswer) -> bytes:
        if answer.packed is None:
            answer.packed = gzip.compress(answer.body, 1, mtime=0)
            self._bytes += len(answer.packed)
        return answer.packed

    def _drop(self, key: tuple[str | None, str]) -> None:
        gone = self._kept.pop(key, None)
        self._bytes -= gone.size if gone else 0


class Answerer:
    """`tag`: what an answer is of, such as a revision: the same question with the same tag has the same answer."""

    def __init__(self) -> None:
        self._cache, self._encode = AnswerCache(), msgspec.json.Encoder().encode

    async def respond(self, request: Request, tag: str, make: Callable[[], Awaitable[Any]]) -> Response:
        user = user_of(request)
        key = user, f"{request.url.path}?{request.url.query}"
        etag = f'"{tag}-{zlib.crc32((user or "").encode()):x}"'
        headers = {"ETag": etag, "Cache-Control": "private, no-cache", "Vary": "Accept-Encoding, Authorization, Cookie"}
        if etag in (part.strip().removeprefix("W/") for part in request.headers.get("if-none-match", "").split(",")):
            return Response(status_code=304, headers=headers)
        found = self._cache.find(key, tag)
        if found is None:
            found = self._cache.keep(key, _KeptAnswer(tag, self._encode(await make())))
        body = found.body
        if len(body) > _WORTH_PACKING and "gzip" in request.headers.get("accept-encoding", ""):
            body, headers["Content-Encoding"] = self._cache.pack(found), "gzip"
        return Response(body, media_type=JSON, headers=headers)
