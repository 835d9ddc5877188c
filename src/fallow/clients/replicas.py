"""Another replica of ours, asked over HTTP what only it knows.

In: its address, a path, the headers to pass on. Out: its answer as it is, whatever the status; or Unreachable.
Invariant: one request, no redirect, so much time and so many bytes; it goes by no proxy: replicas live side by side.
"""

from collections.abc import Mapping
from typing import NamedTuple, Self

import aiohttp
import yarl

from fallow.clients import errors, faults
from fallow.model.units import Seconds

TIMEOUT: Seconds = 10.0
MOST_BYTES = 32 * 2**20


class ReplicaAnswer(NamedTuple):
    status: int
    body: bytes
    headers: Mapping[str, str]


class Replicas:
    def __init__(self, timeout: Seconds = TIMEOUT) -> None:
        self._timeout = timeout
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *why: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, address: str, path: str, headers: Mapping[str, str]) -> ReplicaAnswer:
        """`address`: with scheme and port; `path`: as it was asked, with its question, already encoded."""
        session, url = self._open(), yarl.URL(f"{address}{path}", encoded=True)
        try:
            async with session.get(url, headers=headers, allow_redirects=False) as got:
                body = await got.content.read(MOST_BYTES + 1)
                while not got.content.at_eof() and len(body) <= MOST_BYTES:
                    body += await got.content.read(MOST_BYTES + 1 - len(body))
        except TimeoutError:
            raise errors.Unreachable(f"{address} did not answer within {self._timeout:.0f} s") from None
        except (aiohttp.ClientError, OSError) as problem:
            raise errors.Unreachable(f"{address} cannot be reached: {faults.name_fault(problem)}") from None
        if len(body) > MOST_BYTES:
            raise errors.BadAnswer(f"{address} answered with more than {MOST_BYTES // 2**20} MiB")
        return ReplicaAnswer(got.status, body, {name.lower(): value for name, value in got.headers.items()})

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                cookie_jar=aiohttp.DummyCookieJar(), timeout=aiohttp.ClientTimeout(self._timeout),
                connector=aiohttp.TCPConnector(limit=20),
            )
        return self._session
