"""A listener: one way to open it, one sentence where that cannot be."""

import contextlib
import re
import socket

import pytest

from fallow import settings
from fallow.doors import listen


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_port_that_is_taken_is_a_sentence_that_names_the_flag(host: str) -> None:
    with contextlib.closing(listen.open_listener((host, 0))) as taken:
        port = taken.getsockname()[1]
        where = re.escape(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        with pytest.raises(settings.UsageError, match=f"^--x-addr: cannot listen on {where}: Address already in use$"):
            listen.open_listener((host, port), "--x-addr")


def test_an_address_that_is_not_ours_is_the_same_sentence() -> None:
    with pytest.raises(settings.UsageError, match=r"^--metrics-addr: cannot listen on 192\.0\.2\.1:80: "):
        listen.open_listener(("192.0.2.1", 80))


def test_it_is_known_as_tcp_so_that_no_answer_waits_for_more() -> None:
    with contextlib.closing(listen.open_listener(("127.0.0.1", 0))) as opened:
        assert (opened.proto, opened.getblocking()) == (socket.IPPROTO_TCP, False)
