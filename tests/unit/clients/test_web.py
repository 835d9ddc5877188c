"""aiohttp is loaded in one place, and trusts nobody by itself."""

import pathlib
import ssl
import subprocess
import sys

import fallow
from fallow.clients import tls
from fallow.clients.web import aiohttp


def test_no_other_module_of_the_clients_and_hands_loads_aiohttp() -> None:
    """Who loads it first decides whether the authorities are read."""
    home = pathlib.Path(fallow.__file__).parent
    own = [path for room in ("clients", "act") for path in (home / room).rglob("*.py")]
    assert len(own) > 40
    beside = [str(path) for path in own if "\nimport aiohttp\n" in path.read_text() and path.name != "web.py"]
    assert beside == []


def test_its_own_contexts_trust_nobody_and_ours_the_system() -> None:
    """In a process of its own: here somebody may have loaded it before."""
    told = subprocess.run(
        [sys.executable, "-c", _TELL], capture_output=True, text=True, check=True, timeout=60,
    ).stdout.split()
    assert told == ["0", "True", "True"]
    assert tls.trust_system().verify_mode is ssl.CERT_REQUIRED
    assert aiohttp.__name__ == "aiohttp"


_TELL = """
import ssl
from fallow.clients.web import aiohttp
made = aiohttp.connector._SSL_CONTEXT_VERIFIED
print(len(made.get_ca_certs()) + made.cert_store_stats()["x509"])
print(made.verify_mode is ssl.CERT_REQUIRED and made.check_hostname)
print(ssl.SSLContext.set_default_verify_paths.__name__ == "set_default_verify_paths")
"""
