"""One cloud's connection: what prices and groups of all clouds share.

In: a request, and who signs it. Out: the answer, or an error of clients/errors.py. Every try is bounded in time and
size, and there are three at most, where trying again can help and cannot do harm. `Words` are a cloud's own codes, by
what they mean to us: a cloud that is out of stock, or gives us no more, says so in its own word and by any status.
Invariant: whoever answers does not choose whom we ask next, and no sentence about credentials is repeated.
"""

from collections.abc import AsyncIterator, Mapping
from enum import Enum
from typing import Final, NamedTuple, Self, TypeAlias, TypeVar

import msgspec
import yarl

from fallow.clients import errors, faults, proxies, retry, signing, tls
from fallow.clients.web import aiohttp
from fallow.model.units import Instant, Seconds

T = TypeVar("T")

TIMEOUT: Final[Seconds] = 10.0
LONGEST_ANSWER: Final = 8 * 1024 * 1024
MOST_PAGES: Final = 100
PATIENCE: Final = retry.Patience(tries=3, first_wait=0.5, longest_wait=5.0)
_MOST_SAID: Final = 200  # characters of a cloud's sentence


class CloudAnswer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


class CloudRefusal(NamedTuple):
    """What a cloud said instead. `code`: its own word; `said`: its sentence."""

    status: int
    code: str = ""
    said: str = ""
    wait: Seconds | None = None


class CloudTrouble(Enum):
    """What a cloud's word means: the status by which errors.py knows it; out of stock and quota have none."""

    out_of_stock = 0
    quota_spent = 1
    unauthorized = 401
    forbidden = 403
    missing = 404
    conflict = 409
    throttled = 429
    fault = 500


Words: TypeAlias = Mapping[str, CloudTrouble]


def make_error(who: str, refused: CloudRefusal, words: Words) -> errors.ClientError:
    meaning = words.get(refused.code, CloudTrouble.conflict if refused.status == 412 else None)
    status = refused.status if meaning is None else meaning.value
    said = " ".join(refused.said.split())[:_MOST_SAID] if status not in (401, 403) else ""
    text = f"{who} answered {refused.status}" + f" ({refused.code})" * bool(refused.code) + f": {said}" * bool(said)
    match meaning:
        case CloudTrouble.out_of_stock:
            return errors.OutOfStock(text)
        case CloudTrouble.quota_spent:
            return errors.QuotaSpent(text)
    return errors.rejection(status, text, retry_after=refused.wait)


class CloudWire:
    """`who` is asked, for messages. `environment`: for proxies."""

    def __init__(
        self, who: str, environment: Mapping[str, str], *, timeout: Seconds = TIMEOUT,
        longest: int = LONGEST_ANSWER, patience: retry.Patience = PATIENCE,
    ) -> None:
        self.who, self._environment, self._timeout = who, environment, timeout
        self._longest, self._patience = longest, patience
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *why: object) -> None:
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=4, ssl=tls.from_files(tls.TlsFiles(), self.who))
            self._session = aiohttp.ClientSession(
                connector=connector, cookie_jar=aiohttp.DummyCookieJar(), timeout=aiohttp.ClientTimeout(self._timeout),
            )
        return self._session

    def explain(self, status: int, answer: bytes, wait: Seconds | None) -> errors.ClientError:
        """Each cloud's wire knows its words; without any, the status is all that is told."""
        return make_error(self.who, CloudRefusal(status, wait=wait), {})

    async def ask(
        self, method: str, url: yarl.URL, now: Instant, *, signer: signing.Signer | None = None, body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """What only reads."""
        return (await self.send(method, url, now, signer=signer, body=body, headers=headers, is_read=True)).body

    async def send(
        self, method: str, url: yarl.URL, now: Instant, *, signer: signing.Signer | None = None, body: bytes = b"",
        headers: Mapping[str, str] | None = None, is_read: bool = False, is_once: bool = False,
    ) -> CloudAnswer:
        """`headers`: by their names in small letters; they are signed. `is_once`: never tried again, because it is by
        what was just read."""
        async def attempt() -> CloudAnswer:
            outgoing = signing.Outgoing(self._open(), method, url, body, now, headers or {})
            proof = await signer.headers(outgoing) if signer else {}
            return await self._send_once(method, url, body, {**(headers or {}), **proof})

        try:
            return await (attempt() if is_once else retry.persist(attempt, self._patience, is_read=is_read))
        except (errors.Unauthorized, errors.Forbidden):
            if signer:
                signer.forget()
            raise

    async def _send_once(self, method: str, url: yarl.URL, body: bytes, headers: Mapping[str, str]) -> CloudAnswer:
        proxy = proxies.find_proxy(str(url.origin()), self._environment) or None
        try:
            async with self._open().request(
                method, url, data=body or None, headers=headers, proxy=proxy, allow_redirects=False
            ) as got:
                answer = b"".join([chunk async for chunk in self._read(got.content)])
        except TimeoutError:
            raise errors.Unreachable(f"{self.who} did not answer within {self._timeout:.0f} s") from None
        except (aiohttp.ClientError, OSError) as problem:
            undone = isinstance(problem, aiohttp.ClientConnectorError)
            because = f"{self.who} cannot be reached: {faults.name_fault(problem)}"
            raise errors.Unreachable(because, is_undone=undone) from None
        if not 200 <= got.status < 300:
            raise self.explain(got.status, answer, retry.read_header(got.headers.get("Retry-After")))
        return CloudAnswer(got.status, got.headers, answer)

    async def _read(self, content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in content.iter_any():
            size += len(chunk)
            if size > self._longest:
                raise errors.BadAnswer(f"{self.who} answers more than {self._longest // 1024:,} KiB")
            yield chunk

    def decode(self, answer: bytes, shape: type[T]) -> T:
        try:
            return msgspec.json.decode(answer, type=shape)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise errors.BadAnswer(f"{self.who} gave an answer that cannot be read") from None

    def check_link(self, link: str, own: str) -> yarl.URL:
        """Where an answer says to go on: on the same host only."""
        try:
            url, home = yarl.URL(link), yarl.URL(own)
            is_own = (url.scheme, url.host, url.port) == (home.scheme, home.host, home.port)
        except ValueError:
            is_own = False
        if not is_own:
            raise errors.BadAnswer(f"{self.who} leads to another host")
        return url

    def too_many_pages(self) -> errors.BadAnswer:
        return errors.BadAnswer(f"{self.who} answers with more than {MOST_PAGES} pages")
