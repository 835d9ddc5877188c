"""Who answers what GPUs cost: a running daemon, or a ledger that is named.

In: the options below, a CostQuestion. Out: its answer, and whose it is. With `--cost-store` that ledger is read, and
nobody is asked; else the daemon is.
Invariant: nothing is written, and a ledger is opened for reading only. Exit codes: 1 a call failed, 2 something was
typed wrongly, 4 there is nobody who could tell.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import click
import msgspec

from fallow import settings
from fallow.account import ledger, ledger_postgres
from fallow.clients import errors
from fallow.doors.answers import cost_books
from fallow.doors.cli import asking, flags, interrupts, show, where
from fallow.model import units, windows
from fallow.model.cost import Nano
from fallow.model.energy import EnergyTerms
from fallow.model.secret import Secret
from fallow.model.units import Instant
from fallow.settings import cost_doors

T = TypeVar("T")
_NAME_ONE: Final = "Name a daemon that keeps books (--daemon-url), or a ledger (--cost-store PATH or a DSN)"


class NoBooks(show.NoSource):
    """There is nobody who keeps books."""

    def __init__(self, because: str) -> None:
        super().__init__(f"{because or 'no books were asked'}. {_NAME_ONE}")


class CostQuestion(msgspec.Struct, Generic[T], frozen=True):
    """`path`, `params`, `kind`: as a daemon is asked; `here`: as a ledger is, which we read ourselves."""

    path: str
    params: Mapping[str, str | None]
    kind: Any  # type[T]: msgspec does not take that
    here: Callable[[cost_books.CostBooks, Instant], Awaitable[T]]


class CostAnswer(msgspec.Struct, Generic[T], frozen=True):
    answer: T
    whose: str


def options() -> list[click.Parameter]:
    _, *daemon = where.daemon_options()
    return [
        click.Option(["--cost-store"], metavar="PATH|DSN",
                     help="Read this ledger, a file or a PostgreSQL DSN, and ask no daemon."),
        *map(flags.flag_option, cost_doors.ENERGY), *daemon, *where.cluster_options(),
        where.prometheus_option(),
    ]


def format_option(*choices: str) -> click.Option:
    return click.Option(["-o", "--format", "form"], type=click.Choice(choices), default=choices[0], show_default=True,
                        help="How to show it.")


def ask(given: dict[str, Any], question: CostQuestion[T], *, invested: Nano = 0) -> CostAnswer[T]:
    (found,), whose = ask_all(given, [question], invested=invested)
    return CostAnswer(found, whose)


def ask_all(
    given: dict[str, Any], questions: Sequence[CostQuestion[Any]], *, invested: Nano = 0
) -> tuple[list[Any], str]:
    """All of one source, or none."""
    if store := given.get("cost_store"):
        with show.refusals():
            return interrupts.run(_read_store(store, questions, invested, read_energy(given)))
    if read_energy(given) != EnergyTerms():
        raise click.UsageError("--cost-energy-...: a daemon knows its own; they go with --cost-store")
    try:
        heard = asking.ask(given, lambda daemon: _ask_daemon(daemon, questions))
    except show.NoSource as problem:
        raise NoBooks(problem.format_message()) from None
    except asking.UnknownThere as problem:
        raise click.ClickException(problem.format_message()) from None
    if isinstance(heard, asking.Untold):
        raise NoBooks(heard.because)
    return heard.answer, heard.whose


async def _ask_daemon(daemon: asking.Daemon, questions: Sequence[CostQuestion[Any]]) -> list[Any]:
    try:
        return list(await asyncio.gather(*(
            daemon.read(each.path, each.kind, **each.params) for each in questions
        )))
    except errors.Rejected as problem:
        if problem.status == 400:
            raise click.UsageError(show.plain(problem)) from None
        if problem.status != 503:
            raise click.ClickException(show.plain(f"{daemon.door.where} failed: {problem}")) from None
        raise


def read_energy(given: Mapping[str, Any]) -> EnergyTerms:
    """Of a ledger that we read ourselves; a daemon knows its own."""
    try:
        return cost_doors.read_energy(given)
    except settings.UsageError as problem:
        raise click.UsageError(str(problem)) from None


async def _read_store(
    store: str, questions: Sequence[CostQuestion[Any]], invested: Nano, energy: EnergyTerms
) -> tuple[list[Any], str]:
    opened, place = _open(store)
    try:
        await opened.open()
        meta = await opened.read_meta()
        books = cost_books.CostBooks(ledger=opened, invested=invested, energy=energy)
        answers = [await each.here(books, time.time()) for each in questions]
    except errors.Unreachable as problem:
        raise NoBooks(str(problem)) from None
    finally:
        await opened.close()
    seen = units.rfc3339(meta.seen_until) if meta.seen_until else "never"
    return answers, f"By {place}, which was written last at {seen}"


def _open(store: str) -> tuple[ledger.Ledger, str]:
    """What may be a password in a DSN is shown to nobody."""
    if "://" in store:
        return ledger_postgres.on_postgres(Secret(store), currency="", writes=False), "the ledger of that DSN"
    return ledger.on_file(Path(store), currency="", writes=False), f"the ledger {store}"


def read_last(text: str) -> str:
    """As it was typed, if it is a duration."""
    return _check(text, windows.read_last)


def read_window(last: str | None, begin: str | None, end: str | None, usual: str) -> str:
    """As the API takes it: a duration, a word, or two instants."""
    if begin is None and end is None:
        return _check(last or usual, windows.read_window)
    if last is not None:
        raise click.UsageError("say either --last, or --from and --to")
    if begin is None:
        raise click.UsageError("--to goes with --from: since when?")
    try:
        span = windows.read_between(begin, end, time.time())
    except ValueError as problem:
        raise click.UsageError(show.plain(f"--from, --to: {problem}")) from None
    return f"{units.rfc3339(span.begin)},{units.rfc3339(span.end)}"


def _check(text: str, read: Callable[[str, Instant], windows.TimeSpan]) -> str:
    try:
        read(text, time.time())
    except ValueError as problem:
        raise click.UsageError(show.plain(f"--last: {problem}")) from None
    return text
