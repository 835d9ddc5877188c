"""One page of metrics from one exporter.

In: the address of an exporter and the Reader that knows its lines. Out: a Page, or an error of clients/errors.py whose
sentence names the address. There is no second try: the next round comes in seconds, and a sample taken late is a sample
of another time. Invariant: a scrape takes at most `timeout`, at most _AT_ONCE are under way, and of a page no more
than a chunk is kept, so that a page of any size costs bounded time and memory. What was cut, packed, too long or
unreadable is an error and never half a page.
"""

import asyncio
from typing import Self

import yarl

from fallow.clients import errors, exposition, faults
from fallow.clients.web import aiohttp
from fallow.model.units import Seconds

MAX_BODY = 32 * 2**20
_AT_ONCE = 50
_OPENMETRICS = "application/openmetrics-text"
_HEADERS = {
    "Accept": f"{_OPENMETRICS};version=1.0.0,text/plain;version=0.0.4;q=0.5",
    # Unpacking costs more CPU than the wire inside a cluster, and a small page could unpack to a huge one.
    "Accept-Encoding": "identity",
}


class Exporters:
    """Whatever serves /metrics. Use it as an async context manager."""

    def __init__(self, *, timeout: Seconds) -> None:
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            timeout=self._timeout, cookie_jar=aiohttp.DummyCookieJar(), connector=aiohttp.TCPConnector(limit=_AT_ONCE),
            auto_decompress=False, headers=_HEADERS,
        )
        return self

    async def __aexit__(self, *why: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def scrape(self, url: str, reader: exposition.Reader) -> exposition.Page:
        """Raises a ClientError."""
        if self._session is None:
            raise errors.Misconfigured("the exporters are asked before they are opened")
        called = name_of(url)
        try:
            async with self._slots, self._session.get(yarl.URL(url), allow_redirects=False) as response:
                return await _read(called, response, reader)
        except TimeoutError:
            within = f"{self._timeout.total:g}s"
            raise errors.Unreachable(f"the exporter at {called} did not answer within {within}") from None
        except (aiohttp.ClientError, ValueError) as error:
            why = faults.name_fault(error)
            raise errors.Unreachable(f"the exporter at {called} cannot be reached: {why}") from None


def name_of(url: str) -> str:
    """The address for messages: what comes before an @ and after the question mark may be a secret."""
    scheme, separator, rest = url.partition("?")[0].rpartition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}"


async def _read(called: str, response: aiohttp.ClientResponse, reader: exposition.Reader) -> exposition.Page:
    if response.status != 200:
        raise errors.rejection(response.status, f"the exporter at {called} answered {response.status}")
    if (packed := response.headers.get("Content-Encoding", "identity")) != "identity":
        raise errors.BadAnswer(f"the exporter at {called} sent a packed page ({packed[:20]}), which was not asked for")
    page, size = reader.begin(is_openmetrics=response.headers.get("Content-Type", "").startswith(_OPENMETRICS)), 0
    try:
        async for chunk in response.content.iter_any():
            size += len(chunk)
            if size > MAX_BODY:
                raise errors.BadAnswer(f"the exporter at {called} sent more than {MAX_BODY // 2**20} MiB")
            page.feed(chunk)
        return page.end()
    except exposition.Unreadable as problem:
        raise errors.BadAnswer(f"the exporter at {called} sent {problem}") from None
