"""Secrets that come from outside: in files that others rotate, from programs, and in documents that are decoded.

In: a path, and the instant of each request. Out: what the file holds, read once per instant and again after `forget`.
Invariant: a file that cannot be read raises Misconfigured, which names the file and nothing that is in it; a program
does not outlive the question; what `hide` decodes is a Secret from the first moment.
"""

import asyncio
import contextlib
import pathlib
from collections.abc import Mapping
from typing import Any

from fallow.clients import errors
from fallow.model.secret import Secret
from fallow.model.units import Instant, Seconds


class SecretFile:
    def __init__(self, path: str) -> None:
        self._path = pathlib.Path(path)
        self._read_at: Instant | None = None
        self._content = Secret("")

    async def read(self, now: Instant) -> str:
        if self._read_at != now:
            try:
                self._content = Secret((await asyncio.to_thread(self._path.read_text)).strip())
            except OSError as error:
                raise errors.Misconfigured(f"the file {self._path} cannot be read: {error.strerror}") from None
            except UnicodeDecodeError:
                raise errors.Misconfigured(f"the file {self._path} cannot be read: it is not text") from None
            self._read_at = now
        return self._content.reveal()

    def forget(self) -> None:
        self._read_at = None


async def ask_program(
    *command: str, seconds: Seconds, environment: Mapping[str, str] | None = None
) -> tuple[bytes, bytes, int | None]:
    """What it printed, what it complained of, and its exit code. Raises OSError, ValueError or TimeoutError."""
    process = await asyncio.create_subprocess_exec(
        *command, env=environment,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(seconds):
            return *await process.communicate(), process.returncode
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def hide(kind: type, value: object) -> object:
    """For decoders (`dec_hook`): Secret[Any] takes whatever stands there, every other one text."""
    if kind != Secret[Any] and not isinstance(value, str):  # equal, not the same: typing makes such types anew
        raise ValueError(f"Expected `str`, got `{type(value).__name__}`")
    return Secret(value)
