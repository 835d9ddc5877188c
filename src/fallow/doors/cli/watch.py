"""Showing a page once, or again and again (`--watch`), for every command that only looks.

In: what makes the page, and how many seconds are between two of them. Out: on a terminal the page in place, on a screen
of its own; on a pipe one page after another.
Invariant: however it ends, the terminal is as it was; Ctrl-C ends with 130. While watching, what fails is shown like a
page, and the next look may be better.
"""

import contextlib
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from fallow.doors.cli import flags, show
from fallow.model import units
from fallow.model.units import Seconds

EVERY: Seconds = 10.0
EXIT_INTERRUPTED = 130
ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"  # a screen of its own, no cursor, lines that are too long are cut
LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
HOME, EMPTY_LINE, REST_OF_SCREEN = "\x1b[H", "\x1b[2K", "\x1b[J"

option = click.Option(
    ["--watch", "watch_every"], type=show.Number(1, 3600), default=None, metavar="[SECONDS]",
    help=f"Show it again every so many seconds, until Ctrl-C.  [{EVERY:g} where none are said]",
)


class WatchCommand(click.Command):
    """A command with --watch, whose number may be left out."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, list(_fill_in(args)))


class WatchFlagCommand(WatchCommand, flags.FlagCommand):
    """The same, with options from the table of flags."""


def _fill_in(args: Sequence[str]) -> Iterator[str]:
    """`--watch` without a number behind it is `--watch=10`."""
    for word, following in zip(args, [*args[1:], ""], strict=False):
        is_bare = word == "--watch" and not following.replace(".", "", 1).isdigit()
        yield f"{word}={EVERY:g}" if is_bare else word


def present(make: Callable[[], show.Shown], every: Seconds | None) -> None:
    if every is not None:
        _repeat(make, every)
    page = make()
    click.echo(page.text, nl=False)
    if page.failure:
        raise page.failure


def _repeat(make: Callable[[], show.Shown], every: Seconds) -> None:
    """Until Ctrl-C."""
    on_terminal = sys.stdout.isatty()
    try:
        with _own_screen() if on_terminal else contextlib.nullcontext():
            while True:
                began = time.monotonic()
                text = _make_safely(make)
                _draw(text, every) if on_terminal else click.echo(f"{text}\n")
                time.sleep(max(0.0, every - (time.monotonic() - began)))
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def _make_safely(make: Callable[[], show.Shown]) -> str:
    try:
        page = make()
    except click.UsageError:
        raise
    except click.ClickException as problem:
        return f"Error: {problem.format_message()}"
    failure = f"Error: {page.failure.format_message()}" if page.failure else ""
    return "\n\n".join(filter(None, (page.text.rstrip("\n"), failure)))


@contextlib.contextmanager
def _own_screen() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, _end)
    sys.stdout.write(ENTER + HOME + REST_OF_SCREEN + "looking ...")
    sys.stdout.flush()
    try:
        yield
    finally:
        sys.stdout.write(LEAVE)
        sys.stdout.flush()
        signal.signal(signal.SIGTERM, before)


def _end(number: int, _: Any) -> None:
    sys.exit(128 + number)


def _draw(text: str, every: Seconds) -> None:
    """In place. A line is emptied before it is written: behind one that is full, that would take its last character."""
    rows = shutil.get_terminal_size().lines
    lines = text.splitlines()
    if len(lines) > rows - 1:
        more = len(lines) - (rows - 2)
        lines = [*lines[:rows - 2], f"... {more} more lines: a higher terminal shows them"]
    foot = f"{units.rfc3339(time.time())}, again every {units.humane(every)}; Ctrl-C ends"
    drawn = "".join(f"{EMPTY_LINE}{line}\r\n" for line in lines)
    sys.stdout.write(f"{HOME}{drawn}{REST_OF_SCREEN}{foot}")
    sys.stdout.flush()
