"""A way to a server that can be shut and opened again: for a browser the server is then gone, and nobody had to end it.

In: an address on loopback. Out: another address that leads there while it is open.
"""

from __future__ import annotations

import asyncio
import contextlib
from urllib import parse

from tests.real import product


class Way:
    def __init__(self, base: str) -> None:
        self._to = parse.urlsplit(base)
        self._port = product.free_port()
        self.base = f"http://127.0.0.1:{self._port}"
        self._door: asyncio.Server | None = None
        self._ends = set[asyncio.StreamWriter]()

    async def open(self) -> None:
        self._door = await asyncio.start_server(self._join, "127.0.0.1", self._port)

    def shut(self) -> None:
        if self._door is not None:
            self._door.close()
        for end in self._ends:
            end.transport.abort()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self._to.hostname, self._to.port)
        self._ends |= {writer, back}
        await asyncio.gather(_pour(reader, back), _pour(there, writer))
        self._ends -= {writer, back}


async def _pour(source: asyncio.StreamReader, into: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):  # either side may go at any time: that is what this is for
        while some := await source.read(65536):
            into.write(some)
            await into.drain()
    into.close()
