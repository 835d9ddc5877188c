"""The daemon's listener over raw sockets: what one client may take, and that a probe is answered all the same."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from fallow import loop, telemetry
from fallow.doors import listen
from fallow.doors.api import app, bounds

PROBE = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[tuple[int, app.Server]]:
    listener = listen.open_listener(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    server = app.Server(app.make_app(loop.Health({}), telemetry.Telemetry(), lambda: 0.0))
    task = asyncio.create_task(server.serve([listener]))
    while not server.started:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    try:
        yield port, server
    finally:
        server.stop()
        await asyncio.wait_for(task, 5)
        listener.close()


@contextlib.asynccontextmanager
async def listening() -> AsyncIterator[int]:
    async with serving() as (port, _):
        yield port


async def say(port: int, *parts: bytes) -> bytes:
    """All that comes back until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        async with asyncio.timeout(5):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def probe(port: int) -> bool:
    return (await say(port, PROBE[:-2] + b"Connection: close\r\n\r\n")).endswith(b"ok")


REFUSED = {
    "a-head-too-long": (b"GET /healthz HTTP/1.1\r\nX: " + b"x" * bounds.MOST_HEAD + b"\r\n\r\n", b"431"),
    "a-url-too-long": (b"GET /" + b"x" * bounds.MOST_HEAD + b" HTTP/1.1\r\n\r\n", b"431"),
    "a-head-without-end": (b"GET /healthz HTTP/1.1\r\n" + b"X: y\r\n" * (bounds.MOST_HEAD // 6 + 1), b"431"),
    "a-body": (b"POST /healthz HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi", b"413"),
    "a-body-in-chunks": (b"POST /healthz HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n", b"413"),
    "no-request": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"400"),
    "two-at-once": (PROBE + PROBE, b"400"),
}


@pytest.mark.parametrize(("said", "status"), REFUSED.values(), ids=REFUSED.keys())
async def test_what_goes_beyond_is_refused_and_the_next_one_is_served(said: bytes, status: bytes) -> None:
    async with listening() as port:
        answer = await say(port, said)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 " + status)
        assert await probe(port)


async def test_a_head_just_within_is_answered() -> None:
    long = b"X: " + b"x" * (bounds.MOST_HEAD - 200) + b"\r\nConnection: close\r\n\r\n"
    async with listening() as port:
        assert (await say(port, b"GET /healthz HTTP/1.1\r\nHost: x\r\n", long)).endswith(b"ok")


async def test_a_kept_connection_serves_one_request_after_the_other() -> None:
    async with listening() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(3):
            writer.write(PROBE)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            assert await reader.readexactly(2) == b"ok"
        writer.close()


@pytest.mark.parametrize("before", [b"", PROBE], ids=["first-request", "second-request"])
async def test_who_sends_slowly_is_cut_off(monkeypatch: pytest.MonkeyPatch, before: bytes) -> None:
    monkeypatch.setattr(bounds, "REQUEST", 0.2)
    async with listening() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(before)
        if before:
            await reader.readuntil(b"\r\n\r\nok")
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(5):
                for byte in PROBE * 1000:  # a byte now and then, so that it is never silent for long
                    writer.write(bytes([byte]))
                    await writer.drain()
                    with contextlib.suppress(TimeoutError):
                        assert await asyncio.wait_for(reader.read(1), 0.02) == b""
                        break
                else:
                    pytest.fail("it was never cut off")
        writer.close()
        assert await probe(port)


async def test_who_does_not_take_the_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "ANSWER", 0.2)
    monkeypatch.setattr(telemetry.Telemetry, "text", lambda self: b"x" * 50_000_000)
    async with serving() as (port, server):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.setblocking(False)
            await asyncio.get_running_loop().sock_sendall(client, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            async with asyncio.timeout(5):
                while not server.server_state.total_requests or server.server_state.connections:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            got = 0
            with contextlib.suppress(ConnectionError):
                while chunk := await asyncio.get_running_loop().sock_recv(client, 2**20):
                    got += len(chunk)
            assert got < 50_000_000
        assert await probe(port)


async def test_those_who_only_hold_connections_keep_nobody_out() -> None:
    async with listening() as port, contextlib.AsyncExitStack() as stack:
        held = []
        for _ in range(bounds.MOST_CONNECTIONS + 20):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.close)
            held.append(reader)
            assert len(held) % 50 or await probe(port)
        assert await probe(port)
        async with asyncio.timeout(5):
            with contextlib.suppress(ConnectionError):
                assert await held[0].read() == b""  # the longest went
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(held[-1].read(1), 0.05)


async def test_who_holds_a_request_open_does_not_hold_up_the_end() -> None:
    async with listening() as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /healthz HTTP/1.1\r\n")
        await writer.drain()
    writer.close()


# ---- pages -----------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def page_serving(endless: bytes = b"") -> AsyncIterator[tuple[int, app.Server]]:
    """Answers a POST with the size of its body, and a GET for ever with `endless`, a moment apart."""

    async def count(request: Request) -> Response:
        return PlainTextResponse(str(len(await request.body())))

    async def stream(request: Request) -> Response:
        async def parts() -> AsyncIterator[bytes]:
            while True:
                yield endless
                await asyncio.sleep(0.01)

        return StreamingResponse(parts())

    listener = listen.open_listener(("127.0.0.1", 0))
    routes = [Route("/count", count, methods=["POST"]), Route("/stream", stream)]
    server = app.Server(Starlette(routes=routes), bounds.PageProtocol)
    task = asyncio.create_task(server.serve([listener]))
    while not server.started:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    try:
        yield listener.getsockname()[1], server
    finally:
        server.stop()
        await asyncio.wait_for(task, 5)
        listener.close()


async def test_a_page_may_send_a_small_body() -> None:
    head = b"POST /count HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    async with page_serving() as (port, _):
        assert (await say(port, head + b"Content-Length: 5\r\n\r\nhello")).endswith(b"5")
        assert (await say(port, head + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")).endswith(b"5")
        most = b"x" * bounds.MOST_PAGE_BODY
        full = head + f"Content-Length: {len(most)}\r\n\r\n".encode() + most
        assert (await say(port, full)).endswith(str(len(most)).encode())


@pytest.mark.parametrize("length", [b"65537", b"9" * 30, b"-1", b"x"])
async def test_a_page_may_not_announce_a_large_one(length: bytes) -> None:
    async with page_serving() as (port, _):
        answer = await say(port, b"POST /count HTTP/1.1\r\nHost: x\r\nContent-Length: " + length + b"\r\n\r\n")
        assert answer == b"" or answer.startswith((b"HTTP/1.1 413", b"HTTP/1.1 400"))


async def test_a_body_in_chunks_ends_where_it_is_too_much() -> None:
    chunk = b"1000\r\n" + b"x" * 4096 + b"\r\n"
    head = b"POST /count HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with page_serving() as (port, _):
        answer = await say(port, head, *[chunk] * 64)
        assert answer == b"" or b" 413 " in answer


async def test_a_page_that_takes_its_answer_stays_and_one_that_does_not_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounds, "ANSWER", 0.1)
    ask = b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n"
    async with page_serving(b"x") as (port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(ask)
        async with asyncio.timeout(10):
            for _ in range(60):  # six times as long as an answer may hang
                assert await reader.readuntil(b"x\r\n")
        writer.close()
    async with page_serving(b"x" * 1_000_000) as (port, server):
        slow = socket.create_connection(("127.0.0.1", port))
        slow.send(ask)
        async with asyncio.timeout(30):
            for is_there in (False, True):
                while bool(server.server_state.connections) is is_there:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        slow.close()
