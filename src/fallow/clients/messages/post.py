"""One POST to somebody's address, for all channels that are spoken to by HTTP.

In: an address (a secret: whoever knows a webhook's may write there), a body. Out: the answer, or a ClientError. A
channel that is slow or down is asked three times in all, and given up after ten seconds each time.
Invariant: errors and logs name the host and nothing else of the address; redirects are not followed, so that a secret
goes nowhere but where it was meant to.
"""

from collections.abc import Mapping
from typing import NamedTuple, Self
from urllib import parse

import msgspec
import yarl

from fallow.clients import errors, faults, proxies, retry, tls
from fallow.clients.web import aiohttp
from fallow.model.secret import Secret
from fallow.model.units import Seconds

TIMEOUT: Seconds = 10.0
PATIENCE = retry.Patience(tries=3, first_wait=0.5)
_LONGEST_ANSWER = 65_536  # bytes; what these services say fits into one line


class PostAnswer(NamedTuple):
    status: int
    text: str

    def decode(self) -> object:
        """As JSON; None where it is not."""
        try:
            return msgspec.json.decode(self.text)
        except msgspec.DecodeError:
            return None


class Poster:
    """The connections of all channels. `environment`: for proxies."""

    def __init__(
        self, environment: Mapping[str, str], *, timeout: Seconds = TIMEOUT, patience: retry.Patience = PATIENCE,
        trusted: tls.TlsFiles | None = None,
    ) -> None:
        self._environment, self._timeout, self._patience = environment, timeout, patience
        self._trusted = trusted or tls.TlsFiles()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    def _open(self) -> aiohttp.ClientSession:
        """With the first message: most send none, and to read the system's authorities takes 33 ms."""
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=20, ssl=tls.from_files(self._trusted, "channels of notices"))
            self._session = aiohttp.ClientSession(
                connector=connector, cookie_jar=aiohttp.DummyCookieJar(), timeout=aiohttp.ClientTimeout(self._timeout)
            )
        return self._session

    async def __aexit__(self, *why: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def post_json(
        self, address: Secret[str], content: object, headers: Mapping[str, str] | None = None
    ) -> PostAnswer:
        return await self.post(address, msgspec.json.encode(content), headers)

    async def post(
        self, address: Secret[str], body: bytes, headers: Mapping[str, str] | None = None
    ) -> PostAnswer:
        """An answer below 300. A message that came twice is better than one that never came: hence it is a read."""
        url = _read_address(address)
        sent = {"Content-Type": "application/json", **(headers or {})}
        return await retry.persist(lambda: self._post_once(url, body, sent), self._patience, is_read=True)

    async def _post_once(self, url: yarl.URL, body: bytes, headers: Mapping[str, str]) -> PostAnswer:
        session = self._open()
        proxy = proxies.find_proxy(str(url.origin()), self._environment) or None
        try:
            async with session.post(url, data=body, headers=headers, proxy=proxy, allow_redirects=False) as got:
                text = (await got.content.read(_LONGEST_ANSWER)).decode(errors="replace")
                wait = retry.read_header(got.headers.get("Retry-After"))
        except TimeoutError:
            raise errors.Unreachable(f"{url.host} did not answer within {self._timeout:.0f} s") from None
        except (aiohttp.ClientError, OSError) as problem:
            raise errors.Unreachable(f"{url.host} cannot be reached: {_name(problem)}") from None
        if got.status >= 300:
            said = _shorten(_hide(url, text))
            raise errors.rejection(got.status, f"{url.host} answered {got.status}: {said}", retry_after=wait)
        return PostAnswer(got.status, text)


def _read_address(address: Secret[str]) -> yarl.URL:
    """Raises Misconfigured without showing it."""
    try:
        parts = parse.urlsplit(address.reveal().strip())
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        url = yarl.URL(parts.geturl())
    except ValueError:  # of ports, brackets, characters that no host has
        is_usable = False
    if not is_usable:
        raise errors.Misconfigured("the address of the channel is no http or https URL")
    return url


def _hide(url: yarl.URL, text: str) -> str:
    """What is secret of an address, taken out of what the other side says: many repeat what they were asked."""
    secrets = (*url.parts, url.path, url.query_string, *url.query.values(), url.user or "", url.password or "")
    for part in sorted({each for each in secrets if len(each) > 3}, key=len, reverse=True):
        text = text.replace(part, "***")
    return text


def _name(problem: Exception) -> str:
    """The kind of trouble; the library's sentence may hold the whole address."""
    if isinstance(problem, aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorSSLError):
        return "its certificate is not accepted"
    return faults.name_fault(problem)


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 200 else f"{line[:200]}..."
