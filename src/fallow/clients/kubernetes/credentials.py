"""Proof of who we are: bearer tokens, basic auth, client certificates; fixed, from files, or from exec plugins.

In: an `Access`. Out: the token, header or certificate to use now, kept until it expires, its file changes, or the
server refuses it. Invariant: at most one plugin runs at a time, it is never given a terminal, and no error shows what
it printed on its standard output.
"""

import asyncio
import base64
import contextlib
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated

import msgspec

from fallow.clients import errors, secret
from fallow.clients.kubernetes import config
from fallow.model.secret import Secret

# A projected token is rewritten at 80 % of its life; a minute's delay in noticing is what client-go allows itself.
REREAD_SECONDS = 60.0
# Plugins of the clouds call home, some through a cold Python; a minute is slow, more is hung.
PLUGIN_SECONDS = 60.0
# A credential that ends while the request travels is refused: stop using it a little earlier.
_EARLY = timedelta(seconds=10)
# What a plugin says on stderr helps, unless it says a token: words this long are no words.
_LONG_WORD = re.compile(r"[\w.+/=~-]{32,}")


class _Given(msgspec.Struct, frozen=True, rename="camel"):
    token: Secret[str] | None = None
    client_certificate_data: str | None = None
    client_key_data: Secret[str] | None = None
    expiration_timestamp: Annotated[datetime, msgspec.Meta(tz=True)] | None = None

    def certificate(self) -> tuple[bytes, bytes] | None:
        if not self.client_certificate_data or not self.client_key_data:
            return None
        return self.client_certificate_data.encode(), self.client_key_data.reveal().encode()


class _ExecCredential(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    status: _Given | None = None


_PLUGIN_ANSWER = msgspec.json.Decoder(_ExecCredential, dec_hook=secret.hide)


def read_clock() -> datetime:
    """The one wall clock of this client: plugins date what they give in it. No decision depends on it."""
    return datetime.now(UTC)  # noqa: TID251


class Credentials:
    """What to show the server now. Safe to share between tasks of one event loop."""

    def __init__(self, access: config.Access, *, utcnow: Callable[[], datetime] = read_clock) -> None:
        self._access = access
        self._utcnow = utcnow
        self._plugin_lock = asyncio.Lock()
        self._given: _Given | None = None
        self._file_token: str | None = None
        self._file_stamp = 0
        self._file_read_at: float | None = None

    async def token(self) -> str | None:
        """The bearer token, or None where we prove ourselves otherwise or not at all."""
        if self._access.token_file is not None:
            return _check_token(self._read_token_file())
        if self._access.token is not None:
            return _check_token(self._access.token.reveal())
        given = await self._ask_plugin()
        return _check_token(given.token.reveal()) if given and given.token else None

    async def authorization(self) -> str | None:
        """The Authorization header's value."""
        token = await self.token()
        if token is not None:
            return f"Bearer {token}"
        if self._access.basic is not None:
            return "Basic " + base64.b64encode(self._access.basic.reveal().encode()).decode()
        return None

    async def certificate(self) -> tuple[bytes, bytes] | None:
        """(certificate, key) in PEM, if an exec plugin gave them."""
        given = await self._ask_plugin()
        return given.certificate() if given else None

    def invalidate(self, used: str | None = None) -> bool:
        """The server refused `used` (None: whatever we have). True if asking again may bring something else."""
        known = self._file_token or (self._given.token.reveal() if self._given and self._given.token else None)
        if used is None or known in (None, used):  # else another task has already brought a newer one
            self._given = None
            self._file_read_at = None
        return self._access.token_file is not None or self._plugin() is not None

    def _plugin(self) -> config.ExecPlugin | None:
        access = self._access  # as in kubectl, what is fixed wins over a plugin
        is_fixed = any(each is not None for each in (access.token, access.token_file, access.basic))
        return None if is_fixed else access.exec_plugin

    def _read_token_file(self) -> str:
        path = self._access.token_file
        assert path is not None
        with contextlib.suppress(OSError, UnicodeDecodeError):  # being replaced: the last one read still holds
            stamp = path.stat().st_mtime_ns
            fresh = self._file_read_at is not None and time.monotonic() - self._file_read_at < REREAD_SECONDS
            if not fresh or stamp != self._file_stamp:
                self._file_token = path.read_text(encoding="utf-8").strip() or self._file_token
                self._file_stamp, self._file_read_at = stamp, time.monotonic()
        if self._file_token:
            return self._file_token
        if self._access.token is not None:
            return self._access.token.reveal()
        raise errors.Misconfigured(f"token file {path} cannot be read or is empty")

    async def _ask_plugin(self) -> _Given | None:
        plugin = self._plugin()
        if plugin is None:
            return None
        async with self._plugin_lock:
            if self._given is None or self._is_over(self._given):
                self._given = await _run_plugin(plugin)
            return self._given

    def _is_over(self, given: _Given) -> bool:
        return given.expiration_timestamp is not None and self._utcnow() >= given.expiration_timestamp - _EARLY


def _check_token(token: str) -> str:
    if not token.isascii() or not token.isprintable() or " " in token:
        holds = "a blank, a line break or another character that no token has"
        raise errors.Misconfigured(f"the bearer token holds {holds}")
    return token


async def _run_plugin(plugin: config.ExecPlugin) -> _Given:
    called = f"exec plugin {plugin.command}"
    try:
        output, complaint, code = await secret.ask_program(
            plugin.command, *plugin.args, seconds=PLUGIN_SECONDS, environment=plugin.environment.reveal()
        )
    except TimeoutError:
        raise errors.Misconfigured(f"{called} gave no answer in {PLUGIN_SECONDS:.0f} s") from None
    except (OSError, ValueError) as problem:
        hint = f"; {plugin.install_hint.strip()}" if plugin.install_hint else ""
        why = getattr(problem, "strerror", None) or "its arguments cannot be passed"
        raise errors.Misconfigured(f"{called} cannot be started: {why}{hint}") from None
    if code != 0:
        raise errors.Misconfigured(f"{called} failed with code {code}{_last_words(complaint)}")
    return _read_answer(plugin, output)


def _last_words(complaint: bytes) -> str:
    lines = complaint.decode("utf-8", errors="replace").strip().splitlines()
    return f": {_LONG_WORD.sub('***', lines[-1])[:300]}" if lines else ""


def _read_answer(plugin: config.ExecPlugin, output: bytes) -> _Given:
    called = f"exec plugin {plugin.command}"
    try:
        answer = _PLUGIN_ANSWER.decode(output)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise errors.Misconfigured(f"{called} printed no ExecCredential: {problem}") from None
    if answer.kind != "ExecCredential" or answer.api_version != plugin.api_version:
        raise errors.Misconfigured(f"{called} answered with another kind or version than {plugin.api_version}")
    given = answer.status
    if given is None or (given.token is None and given.certificate() is None):
        raise errors.Misconfigured(f"{called} gave neither a token nor a client certificate with its key")
    return given
