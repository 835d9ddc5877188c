"""What all ways to log in share: the request to be signed, secrets in files, and small requests to those who hand out credentials.

Each request is bounded in time, tried at most three times where trying again can help, and fails with an error of clients/errors.py
that says who did not answer. Answers hold secrets: no part of a body ever reaches a message.
"""

import asyncio
import pathlib
import random
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import aiohttp
import msgspec
import yarl

from fallow.clients import errors
from fallow.model.units import Instant, Seconds

T = TypeVar("T")

_TIMEOUT = aiohttp.ClientTimeout(total=5.0)
_TRIES = 3
_BACKOFF: Seconds = 0.2


class Outgoing(NamedTuple):
    """A request to Prometheus, about to be sent."""

    session: aiohttp.ClientSession
    method: str
    url: yarl.URL
    body: bytes
    now: Instant


class SecretFile:
    """A file that others rotate: read once per instant, and again after `forget`."""

    def __init__(self, path: str) -> None:
        self._path = pathlib.Path(path)
        self._read_at: Instant | None = None
        self._content = ""

    async def read(self, now: Instant) -> str:
        if self._read_at != now:
            try:
                self._content = (await asyncio.to_thread(self._path.read_text)).strip()
            except OSError as error:
                raise errors.Misconfigured(f"the file {self._path} cannot be read: {error.strerror}") from None
            except UnicodeDecodeError:
                raise errors.Misconfigured(f"the file {self._path} cannot be read: it is not text") from None
            self._read_at = now
        return self._content

    def forget(self) -> None:
        self._read_at = None


def bearer(token: str) -> Mapping[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


async def fetch(
    session: aiohttp.ClientSession,
    who: str,
    method: str,
    url: str,
    *,
    headers: Mapping[str, str] = {},
    form: Mapping[str, str] | None = None,
) -> bytes:
    for attempt in range(1, _TRIES):
        try:
            return await _fetch_once(session, who, method, url, headers, form)
        except (errors.Unreachable, errors.Throttled, errors.ServerFault):
            await asyncio.sleep(_BACKOFF * attempt * random.uniform(1.0, 1.5))
    return await _fetch_once(session, who, method, url, headers, form)


async def fetch_json(
    session: aiohttp.ClientSession,
    who: str,
    method: str,
    url: str,
    *,
    shape: type[T],
    headers: Mapping[str, str] = {},
    form: Mapping[str, str] | None = None,
) -> T:
    body = await fetch(session, who, method, url, headers=headers, form=form)
    try:
        return msgspec.json.decode(body, type=shape, strict=False)
    except msgspec.MsgspecError:
        raise errors.BadAnswer(f"{who} answered without the credentials that were asked for") from None


async def _fetch_once(
    session: aiohttp.ClientSession, who: str, method: str, url: str, headers: Mapping[str, str], form: Mapping[str, str] | None
) -> bytes:
    try:
        async with session.request(method, url, headers=headers, data=form, timeout=_TIMEOUT, allow_redirects=False) as response:
            body = await response.read()
            if response.status != 200:
                raise errors.rejection(response.status, f"{who} answered {response.status}")
            return body
    except TimeoutError:
        raise errors.Unreachable(f"{who} did not answer in time") from None
    except aiohttp.ClientError as error:
        raise errors.Unreachable(f"{who} cannot be reached: {type(error).__name__}") from None
