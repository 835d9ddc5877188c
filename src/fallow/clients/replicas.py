"""Another replica of ours, asked over HTTP for what is its to answer.

In: its address, a request as it came. Out: its answer as it comes, whatever the status, piece by piece (a live page has
no end); or Unreachable, which says whether the other one can have heard of it.
Invariant: one request on a connection of its own, so that one which was never taken is known as that; no redirect, no
proxy (replicas live side by side), and nothing that stays silent for longer than a live page may.
"""

from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple, Self

import yarl

from fallow.clients import errors, faults
from fallow.clients.web import aiohttp
from fallow.model.units import Seconds

CONNECT: Seconds = 2.0
SILENCE: Seconds = 45.0  # a freeze is answered after 15 s, and a live page says something as often
_NOT_TAKEN = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)


class ReplicaAnswer(NamedTuple):
    """`body`: what is left of it; it must be read to its end, or closed."""

    status: int
    headers: Mapping[str, str]
    body: AsyncIterator[bytes]


class Replicas:
    def __init__(self, connect: Seconds = CONNECT, silence: Seconds = SILENCE) -> None:
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect, sock_read=silence)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *why: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def ask(
        self, address: str, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> ReplicaAnswer:
        """`address`: with scheme and port; `path`: as it was asked, with its question, already encoded."""
        session, url = self._open(), yarl.URL(f"{address}{path}", encoded=True)
        try:
            got = await session.request(method, url, headers=headers, data=body or None, allow_redirects=False)
        except _NOT_TAKEN as problem:
            why = f"{address} cannot be reached: {faults.name_fault(problem)}"
            raise errors.Unreachable(why, is_undone=True) from None
        except (aiohttp.ClientError, OSError, TimeoutError) as problem:
            raise errors.Unreachable(f"{address} did not answer: {faults.name_fault(problem)}") from None
        return ReplicaAnswer(got.status, {name.lower(): value for name, value in got.headers.items()}, _read(got))

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                cookie_jar=aiohttp.DummyCookieJar(), timeout=self._timeout, auto_decompress=False,
                connector=aiohttp.TCPConnector(limit=0, force_close=True),
            )
        return self._session


async def _read(got: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Who breaks off in the midst of it is known by what is missing."""
    try:
        async for some in got.content.iter_any():
            yield some
    except (aiohttp.ClientError, OSError, TimeoutError) as problem:
        raise errors.Unreachable(f"the answer broke off: {faults.name_fault(problem)}") from None
    finally:
        got.close()
