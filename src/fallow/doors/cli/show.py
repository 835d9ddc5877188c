"""Laying out answers: tables for people, JSON and YAML for machines, one sentence and an exit code for what is refused.

Text from the cluster (names, reasons) is never read as markup, and control characters in it are shown, not obeyed.
What a command may not need (rich, yaml, the verbs) is imported only when it does.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import click
import msgspec

UNFOLDED = 10_000  # columns; rich fills a line only as far as its cells need
SENTENCE = 30  # columns that a sentence gets at least, be the terminal ever so narrow
NUMBERS = frozenset({
    "GPUS", "WORKLOADS", "HELD", "IDLE", "RECLAIMED", "OF HELD", "MONEY", "PAUSES", "REGRETTED", "RESUMES", "WAITED",
    "NOTICES", "FROZEN", "COST", "SILENCES",
})
SENTENCES = frozenset({"WHY", "REASON GIVEN"})  # only these are folded: half a name cannot be copied
STYLES = {
    "idle": "yellow", "active": "green", "unknown": "cyan", "paused": "magenta",
    "recommended": "bold green", "today": "cyan", "too many": "red",
}

output_option = click.Option(
    ["-o", "--output"], type=click.Choice(["table", "wide", "json", "yaml"]), default="table", show_default=True,
    help="How to show it.",
)


def data(value: Any, output: str) -> bool:
    """JSON or YAML to standard output, where one of them was asked for; whether that was it."""
    if output == "yaml":
        import yaml

        click.echo(yaml.safe_dump(value, sort_keys=False, allow_unicode=True), nl=False)
    elif output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))
    return output in ("json", "yaml")


def plain(text: Any) -> str:
    """Text safe to print: no escape sequence from a label reaches the terminal."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in str(text))


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, styled: str | None = None) -> None:
    """A table, the column `styled` coloured by its word. A terminal gets sentences folded, a pipe one line per row."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [[plain(cell) for cell in row] for row in rows]
    console = Console(highlight=False)
    console.width = max(console.width, _need(columns, cells)) if console.is_terminal else UNFOLDED
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        side: Literal["left", "right"] = "right" if column in NUMBERS else "left"
        grid.add_column(column, overflow="fold", no_wrap=column not in SENTENCES, justify=side)
    for row in cells:
        styles = (STYLES.get(cell, "") if column == styled else "" for column, cell in zip(columns, row, strict=True))
        grid.add_row(*map(Text, row, styles))
    with console.capture() as captured:
        console.print(grid)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _need(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> int:
    """How wide it is when only sentences are folded; where a terminal has less, lines run over, and nothing is lost."""
    widest = {column: max(map(len, [column, *texts])) for column, *texts in zip(columns, *cells, strict=True)}
    least = (min(width, SENTENCE) if column in SENTENCES else width for column, width in widest.items())
    return sum(least) + 2 * len(columns)


@contextlib.contextmanager
def progress(label: str, length: int, every: int = 1) -> Iterator[Callable[[object], None]]:
    """A bar on the terminal's standard error, drawn again every so many steps; nothing where that is none."""
    to, hidden = sys.stderr, not sys.stderr.isatty()
    with click.progressbar(length=length, label=label, file=to, hidden=hidden, update_min_steps=every) as bar:
        yield lambda what: bar.update(1)


def sentence(text: str, *notes: str) -> None:
    click.echo("\n".join(map(plain, (text, *(f"  {note}" for note in notes)))))


def prose(text: str, *notes: str) -> None:
    """Sentences that nobody copies: folded between words on a terminal, a line each elsewhere."""
    import shutil
    import textwrap

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else UNFOLDED
    for line, indent in ((text, ""), *((note, "  ") for note in notes)):
        click.echo(textwrap.fill(plain(line), width, initial_indent=indent, subsequent_indent=indent))


def checked(check: Callable[[str], object]) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
    """For an option or argument: what is malformed ends with 2 before anything is asked of the cluster."""

    def callback(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
        with refusals():
            if value is not None:
                check(value)
        return value

    return callback


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """What is declined, or cannot be had from outside: 2 where it was typed or configured wrongly, else 1."""
    from fallow import verbs
    from fallow.clients import errors

    try:
        yield
    except verbs.Declined as problem:
        raises = click.UsageError if problem.why is verbs.Why.malformed else click.ClickException
        way_out = "; --force pauses it all the same" if problem.why is verbs.Why.held else ""
        raise raises(plain(f"{problem}{way_out}")) from None
    except errors.Misconfigured as problem:
        raise click.UsageError(plain(problem)) from None
    except errors.ClientError as problem:
        raise click.ClickException(plain(problem)) from None
