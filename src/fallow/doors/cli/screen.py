"""A terminal of which all of the screen is ours for a while, and its keys one by one.

In: a terminal. Out: Screen, which draws lines and gives keys by their names; `wake` makes whoever waits for a key look
up. Invariant: however it ends (a key, Ctrl-C, SIGTERM, a defect), and while it is stopped by Ctrl-Z, the terminal is as
it was before.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, Final

from fallow.doors.cli import watch
from fallow.model.units import Seconds

_SEQUENCES: Final = {
    "[A": "up", "[B": "down", "OA": "up", "OB": "down", "[5~": "page up", "[6~": "page down", "[H": "home",
    "[F": "end", "[1~": "home", "[4~": "end", "OH": "home", "OF": "end", "[Z": "back tab",
}
_NAMED: Final = {"\r": "enter", "\n": "enter", "\t": "tab", "\x7f": "backspace", "\x08": "backspace", "\x1b": "escape"}
_FULL: Final = 0.05  # seconds in which all of an arrow key has come


def can_be_opened() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


class Screen:
    """Made by `opened`."""

    def __init__(self, keyboard: int, before: list[Any]) -> None:
        self._keyboard, self._before = keyboard, before
        self._heard, self._wake = os.pipe()
        os.set_blocking(self._wake, False)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows."""
        size = shutil.get_terminal_size()
        return size.columns, size.lines

    def wake(self) -> None:
        """From any thread. A pipe that is full has woken already."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake, b"!")

    def read_keys(self, patience: Seconds) -> list[str]:
        """Those that were pressed, as soon as there is one; none after that time, or when somebody wakes us."""
        ready, _, _ = select.select([self._keyboard, self._heard], [], [], patience)
        if self._heard in ready:
            os.read(self._heard, 4096)
        if self._keyboard not in ready:
            return []
        pressed = os.read(self._keyboard, 1024)
        if not pressed:
            raise EOFError
        while pressed.endswith((b"\x1b", b"\x1b[", b"\x1bO")):  # half of an arrow, or the key itself
            if not select.select([self._keyboard], [], [], _FULL)[0]:
                break
            pressed += os.read(self._keyboard, 64)
        return list(split_keys(pressed.decode(errors="replace")))

    def draw(self, lines: Sequence[str]) -> None:
        """In place, as many as there are rows."""
        rows = self.size[1]
        # Emptied before, and not behind: the last column of a full line would go with it.
        drawn = "\r\n".join(f"{watch.EMPTY_LINE}{line}" for line in lines[:rows])
        rest = f"\r\n{watch.REST_OF_SCREEN}" if len(lines) < rows else ""
        _write(f"{watch.HOME}{drawn}{rest}")

    def enter(self) -> None:
        tty.setcbreak(self._keyboard, termios.TCSADRAIN)
        _write(watch.ENTER)

    def leave(self) -> None:
        _write(watch.LEAVE)
        termios.tcsetattr(self._keyboard, termios.TCSADRAIN, self._before)

    def stop(self, number: int, _: FrameType | None) -> None:
        """Ctrl-Z: the shell gets its terminal back until it lets us go on."""
        self.leave()
        before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, before)
        self.enter()
        self.wake()

    def close(self) -> None:
        os.close(self._heard)
        os.close(self._wake)


@contextlib.contextmanager
def opened() -> Iterator[Screen]:
    keyboard = sys.stdin.fileno()
    screen = Screen(keyboard, termios.tcgetattr(keyboard))
    handlers = {
        signal.SIGTERM: _end, signal.SIGHUP: _end, signal.SIGTSTP: screen.stop,
        signal.SIGWINCH: lambda number, frame: screen.wake(),
    }
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        screen.enter()
        yield screen
    finally:
        screen.leave()
        for number, handler in before.items():
            signal.signal(number, handler)
        screen.close()


def split_keys(text: str) -> Iterator[str]:
    """The keys of what a terminal sent: by name, or the letter itself; a sequence that nobody knows is no key."""
    at = 0
    while at < len(text):
        if text[at] == "\x1b" and text[at + 1 : at + 2] in ("[", "O"):
            end = at + 2
            while end < len(text) and not text[end].isalpha() and text[end] != "~":
                end += 1
            if name := _SEQUENCES.get(text[at + 1 : end + 1]):
                yield name
            at = end + 1
            continue
        letter = text[at]
        if letter in _NAMED:
            yield _NAMED[letter]
        elif letter.isprintable():
            yield letter
        at += 1


def _end(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
