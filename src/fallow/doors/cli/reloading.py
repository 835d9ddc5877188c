"""A daemon whose file of settings changes: what holds from then on is read from it anew, without a restart of the pod.

In: how to read the settings again, the path of the file, the settings that hold. Out: those that are to hold next, once
they differ and can be read. The daemon then ends its cycle, gives its Lease back and is put together anew: what it must
not forget stands outside of it anyway.
Invariant: a file that is wrong, half written, empty or gone changes nothing: what held holds on, and the log says why,
once, and again whenever somebody asks by SIGHUP.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

from fallow import settings
from fallow.settings import config_file

log = logging.getLogger("fallow")
EVERY: Final = 5.0  # seconds; what is mounted from a ConfigMap comes a minute late anyhow
SETTLES: Final = 1.0  # seconds: who writes a file empties it first, and half of it may be valid


class SettingsFile:
    """Heeds SIGHUP from now on. `read`: all settings, as at the start; raises UsageError. `holds`: those by which the
    daemon goes, which are not what the file says where it has changed before anybody looked, or does not work."""

    def __init__(self, path: Path, read: Callable[[], settings.Settings], holds: settings.Settings) -> None:
        self._path, self._read, self.holds = path, read, holds
        self._seen: tuple[bytes | None, ...] = ()  # what it had in it when it was last read; empty: to be read
        self._settling = self._content()
        self._asked = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._ask)  # or it would end us

    def _ask(self) -> None:
        """What was wrong may be mended elsewhere, in a file that this one names: it is read although it is the same."""
        self._seen = ()
        self._asked.set()

    def _content(self) -> bytes | None:
        """Of the file itself: where it is a link, as a mounted ConfigMap is, its time says little. None: there is no
        file; what stands there instead, such as a pipe, could keep us waiting for ever."""
        try:
            return config_file.read_content(self._path) if self._path.is_file() else None
        except OSError:
            return None

    async def follow(self) -> settings.Settings:
        """Returns when there are others to hold."""
        while True:
            if (found := self.look()) is not None:
                return found
            try:
                await asyncio.wait_for(self._asked.wait(), EVERY if self._seen == (self._settling,) else SETTLES)
            except TimeoutError:
                continue
            self._asked.clear()

    def look(self) -> settings.Settings | None:
        """None: it is as it was, cannot be used, or is not yet twice the same."""
        content, before = self._content(), self._settling
        self._settling = content
        if self._seen == (content,) or content != before:
            return None
        self._seen = (content,)
        try:
            if content is None:
                raise settings.UsageError(f"{self._path} is gone, or no file")
            found = self._read()
            if found == self.holds:
                return None
            if not content.strip():
                raise settings.UsageError(f"{self._path} is empty")
        except settings.UsageError as problem:
            log.error("%s cannot be used; the former settings hold on: %s", self._path, problem)
            return None
        self.holds = found
        log.info("%s has changed: its settings hold from now on", self._path)
        return found
