"""The page of the spot node's watch: one visitor keeps the others waiting for seconds at the most."""

import socket
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fallow.doors.spot import run


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    monkeypatch.setattr(run, "_PATIENCE", 0.5)
    options = SimpleNamespace(host="127.0.0.1", port=0, node="n")
    made = run._Server(cast(Any, options), cast(Any, SimpleNamespace(is_up=True)))
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield "127.0.0.1", made.server_address[1]
    made.shutdown()
    made.server_close()


def ask(where: tuple[str, int], head: bytes) -> bytes:
    with socket.create_connection(where, timeout=10) as line:
        line.sendall(head)
        answer = b""
        while part := line.recv(4096):
            answer += part
        return answer


@pytest.mark.parametrize(("head", "said"), [
    (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", b'gpu_autoscaler_spot_watch_up{node="n"} 1'),
    (b"GET /healthz?x HTTP/1.0\n\n", b"ok"), (b"POST /metrics HTTP/1.1\r\n\r\n", b"404"),
    (b"\0" * 40_000, b"404"),
])
def test_what_is_asked_for_is_answered(server: tuple[str, int], head: bytes, said: bytes) -> None:
    assert said in ask(server, head)


def test_who_sends_byte_by_byte_keeps_nobody_out(server: tuple[str, int]) -> None:
    stopped = threading.Event()
    slow = socket.create_connection(server, timeout=10)

    def drip() -> None:
        while not stopped.wait(0.05):
            try:
                slow.sendall(b"x")
            except OSError:
                return

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    began = time.monotonic()
    assert b"ok" in ask(server, b"GET /healthz HTTP/1.1\r\n\r\n")
    assert time.monotonic() - began < 5
    stopped.set()
    thread.join()
    slow.close()
