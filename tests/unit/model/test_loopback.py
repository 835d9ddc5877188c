"""Which addresses are this machine: one rule for tokens, doors and secrets."""

import pytest

from fallow.model import loopback


@pytest.mark.parametrize("host", ["localhost", "LocalHost.", "127.0.0.1", "127.8.9.10", "::1"])
def test_this_machine(host: str) -> None:
    assert loopback.is_here(host)


@pytest.mark.parametrize("host", [
    "", "0.0.0.0", "::", "10.0.0.1", "169.254.169.254", "localhost.example.com", "127.0.0.1.example.com", "mylocalhost",
    "[::1", "0x7f.0.0.1", "2130706433",
])
def test_anybody_else(host: str) -> None:
    assert not loopback.is_here(host)
