"""One connection of the webhook on a real socket: what it answers, and what it ends."""

from __future__ import annotations

import asyncio
import contextlib
import time
import tracemalloc
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fallow.doors.webhook import wire

GET = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Desk:
    """An app that answers at once, or when it is let."""

    def __init__(self) -> None:
        self.let, self.asked = asyncio.Event(), list[tuple[str, str, bytes]]()

    def answer(self, method: str, path: str, body: bytes) -> wire.WireAnswer | Coroutine[Any, Any, wire.WireAnswer]:
        self.asked.append((method, path, body))
        if path == "/broken":
            raise ValueError(path)
        if path == "/large":
            return wire.WireAnswer(200, b"x" * 1_000_000)
        return self._later(path) if path in ("/later", "/defect") else wire.WireAnswer(200, b"ok")

    async def _later(self, path: str) -> wire.WireAnswer:
        await self.let.wait()
        if path == "/defect":
            raise ValueError(path)
        return wire.WireAnswer(200, b"later")


@asynccontextmanager
async def serving(desk: Desk) -> AsyncIterator[tuple[int, set[wire.ReviewLine]]]:
    lines = set[wire.ReviewLine]()
    server = await asyncio.get_running_loop().create_server(lambda: wire.ReviewLine(desk.answer, lines), "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], lines
        for line in list(lines):
            line.transport.abort()


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return int(head.split()[1]), await reader.readexactly(length)


async def ask(port: int, sent: bytes) -> tuple[int, bytes]:
    """What is answered; the connection is to end after it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    status, body = await read_answer(reader)
    assert await asyncio.wait_for(reader.read(), 10) == b""
    writer.close()
    return status, body


async def test_a_connection_serves_one_request_after_the_other_in_whatever_pieces_they_come() -> None:
    desk = Desk()
    async with serving(desk) as (port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):
            for piece in (b"POST /a?timeout=3s HTT", b"P/1.1\r\nContent-Le", b"ngth: 4\r\n\r\nab", b"cd"):
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            assert await read_answer(reader) == (200, b"ok")
        writer.write(b"POST /later HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
        desk.let.set()
        assert await read_answer(reader) == (200, b"later")
        writer.close()
    assert desk.asked == [("POST", "/a", b"abcd")] * 2 + [("POST", "/later", b"abc")]


@pytest.mark.parametrize(("sent", "status"), [
    (b"nonsense\r\n\r\n", 400), (b"GET / HTTP/1.1\r\nA: " + b"x" * wire.MOST_HEAD, 431),
    (f"POST / HTTP/1.1\r\nContent-Length: {wire.MOST_BODY + 1}\r\n\r\n".encode(), 413),
    (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400), (b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n", 200),
    (b"GET /later HTTP/1.1\r\n\r\n" + GET, 400), (b"GET / HTTP/1.0\r\n\r\n", 200),
])
async def test_what_is_too_much_or_no_request_ends_the_connection(sent: bytes, status: int) -> None:
    async with serving(Desk()) as (port, _):
        assert (await ask(port, sent))[0] == status


async def test_a_body_in_chunks_is_counted_as_it_comes() -> None:
    async with serving(Desk()) as (port, _):
        chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        sent = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk * (wire.MOST_BODY // 0x10000 + 2)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        with contextlib.suppress(ConnectionError):  # a reset, because of what was not read, may overtake the answer
            assert (await read_answer(reader))[0] == 413
        await ended(reader)
        writer.close()


async def test_a_defect_is_an_answer_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    desk.let.set()
    async with serving(desk) as (port, _):
        assert (await ask(port, b"GET /defect HTTP/1.1\r\n\r\n"))[0] == 500
        assert (await ask(port, b"GET /broken HTTP/1.1\r\n\r\n"))[0] == 500
        assert [str(each.exc_info[1]) for each in caplog.records if each.exc_info] == ["/defect", "/broken"]


async def ended(reader: asyncio.StreamReader) -> None:
    """By a reset, where something of the client's was not read."""
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), 10) == b""


async def until(lines: set[wire.ReviewLine], count: int, *, held: int = 0) -> None:
    """So many connections, which hold at least so many bytes."""
    for _ in range(100_000):
        if len(lines) == count and sum(each.size for each in lines) >= held:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{len(lines)} connections")


async def test_who_keeps_us_waiting_is_ended_and_who_is_answered_is_not() -> None:
    async with serving(Desk()) as (port, lines):
        slow, kept = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        slow[1].write(b"POST / HT")
        kept[1].write(GET)
        assert (await read_answer(kept[0]))[0] == 200
        await until(lines, 2)
        wire.end_late(lines, time.monotonic() + wire.REQUEST + 1)
        await ended(slow[0])
        await until(lines, 1)
        wire.end_late(lines, time.monotonic() + wire.KEEP_ALIVE + 1)
        await ended(kept[0])
        slow[1].close()
        kept[1].close()


async def test_who_takes_no_answers_is_given_no_more_of_them() -> None:
    desk = Desk()
    async with serving(desk) as (port, lines):
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(b"GET /large HTTP/1.1\r\n\r\n" * 200)
        await until(lines, 1)
        for _ in range(2000):
            await asyncio.sleep(0)
        assert len(desk.asked) < 20
        wire.end_late(lines, time.monotonic() + wire.ANSWER + 1)
        await until(lines, 0)
        writer.close()


async def test_of_too_many_the_one_that_keeps_us_waiting_longest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MOST_CONNECTIONS", 2)
    async with serving(Desk()) as (port, lines):
        first = await asyncio.open_connection("127.0.0.1", port)
        await until(lines, 1)
        others = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        await ended(first[0])
        for reader, writer in others:
            writer.write(GET)
            assert (await read_answer(reader))[0] == 200
            writer.close()
        first[1].close()


async def test_of_too_much_that_is_held_the_one_that_keeps_us_waiting_longest_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire, "MOST_TOGETHER", 2_500_000)
    async with serving(Desk()) as (port, lines):
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        for count, (_, writer) in enumerate(held, 1):
            writer.write(b"POST / HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 900_000)
            await until(lines, 4 if count < 3 else 6 - count, held=900_000 * min(count, 2))
        held[3][1].write(b"x" * 100_000)
        assert await read_answer(held[3][0]) == (200, b"ok")
        await ended(held[0][0])
        for _, writer in held:
            writer.close()


async def test_a_body_in_small_chunks_takes_no_more_memory_than_its_bytes() -> None:
    desk = Desk()
    async with serving(desk) as (port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        tracemalloc.start()
        writer.write(b"2\r\nab\r\n" * 100_000)
        await writer.drain()
        writer.write(b"0\r\n\r\n")
        assert await read_answer(reader) == (200, b"ok")
        assert tracemalloc.get_traced_memory()[1] < 3_000_000  # of 700,000 bytes on the wire
        tracemalloc.stop()
        writer.close()
    assert desk.asked == [("POST", "/", b"ab" * 100_000)]
