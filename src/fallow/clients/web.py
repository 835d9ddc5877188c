"""aiohttp, loaded without the authorities that it reads while it is imported.

It makes two TLS contexts then and reads all of the system's certificate authorities into each: a tenth of the time that
a short command takes, also where it speaks plain http or trusts one authority alone.
Invariant: those two trust nobody. Whoever speaks https brings a context of its own (tls.py), or is refused.
"""

import contextlib
import ssl
from collections.abc import Iterator


@contextlib.contextmanager
def _reading_no_authorities() -> Iterator[None]:
    read = ssl.SSLContext.set_default_verify_paths
    ssl.SSLContext.set_default_verify_paths = lambda _: None  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        ssl.SSLContext.set_default_verify_paths = read  # type: ignore[method-assign]


with _reading_no_authorities():
    import aiohttp as aiohttp
