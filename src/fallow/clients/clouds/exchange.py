"""What the credentials of all clouds share: requests to those who hand them out, and keeping them until they end.

Each request is bounded in time, tried at most three times where trying again can help, and fails with an error of
clients/errors.py that says who did not answer. Answers hold secrets: no part of a body ever reaches a message.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, NamedTuple, TypeVar

import msgspec

from fallow.clients import errors, retry, secret, signing, tls
from fallow.clients.web import aiohttp
from fallow.model.secret import Secret
from fallow.model.units import Instant, Seconds

T = TypeVar("T")

_TIMEOUT = aiohttp.ClientTimeout(total=5.0)
_PATIENCE = retry.Patience(tries=3, first_wait=0.2)
_EARLY: Seconds = 300.0


class Borrowed(Generic[T]):
    """What is handed out for a while: fetched when first needed, five minutes before it ends, and after `forget`."""

    def __init__(self, fetch: Callable[[signing.Outgoing], Awaitable[tuple[T, Instant]]]) -> None:
        self._fetch = fetch
        self._lent: tuple[T, Instant] | None = None  # and until when
        self._lock = asyncio.Lock()

    async def get(self, outgoing: signing.Outgoing) -> T:
        async with self._lock:
            if self._lent is None or self._lent[1] - _EARLY <= outgoing.now:
                self._lent = await self._fetch(outgoing)
            return self._lent[0]

    def forget(self) -> None:
        self._lent = None


class AccessToken(msgspec.Struct, frozen=True):
    """As OAuth has it. Azure's metadata server writes the number as a string."""

    access_token: Secret[str]
    expires_in: Seconds


class TokenSigner:
    """Signs with an access token."""

    def __init__(self, fetch: Callable[[signing.Outgoing], Awaitable[AccessToken]]) -> None:
        async def borrow(outgoing: signing.Outgoing) -> tuple[Secret[str], Instant]:
            token = await fetch(outgoing)
            return token.access_token, outgoing.now + token.expires_in

        self._token = Borrowed(borrow)

    async def headers(self, outgoing: signing.Outgoing) -> Mapping[str, str]:
        return signing.bearer((await self._token.get(outgoing)).reveal())

    def forget(self) -> None:
        self._token.forget()


class CloudRequest(NamedTuple):
    who: str  # is asked, for messages
    method: str
    url: str
    headers: Mapping[str, str] = {}
    form: Mapping[str, str] | None = None


async def fetch(session: aiohttp.ClientSession, request: CloudRequest) -> bytes:
    return await retry.persist(functools.partial(_fetch_once, session, request), _PATIENCE)


async def fetch_json(session: aiohttp.ClientSession, request: CloudRequest, shape: type[T]) -> T:
    body = await fetch(session, request)
    try:
        return msgspec.json.decode(body, type=shape, strict=False, dec_hook=secret.hide)
    except msgspec.MsgspecError:
        raise errors.BadAnswer(f"{request.who} answered without the credentials that were asked for") from None


async def _fetch_once(session: aiohttp.ClientSession, request: CloudRequest) -> bytes:
    who, method, url, headers, form = request
    try:
        async with session.request(
            method, url, headers=headers, data=form, timeout=_TIMEOUT, allow_redirects=False, ssl=tls.trust_system()
        ) as response:
            body = await response.read()
            if response.status != 200:
                raise errors.rejection(response.status, f"{who} answered {response.status}")
            return body
    except TimeoutError:
        raise errors.Unreachable(f"{who} did not answer in time") from None
    except aiohttp.ClientError as error:
        raise errors.Unreachable(f"{who} cannot be reached: {type(error).__name__}") from None
