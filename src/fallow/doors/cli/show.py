"""Laying out answers: tables for people, JSON and YAML for machines, one sentence and an exit code for what is refused.

In: answers. Out: text, coloured and folded for the terminal that it goes to; a pipe gets neither.
Text from the cluster (names, reasons) is never read as markup, and control characters in it are shown, not obeyed.
What a command may not need (rich, yaml, the verbs) is imported only when it does.
"""

import contextlib
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import click
import msgspec

if TYPE_CHECKING:
    from rich.text import Text

UNFOLDED = 10_000  # columns; rich fills a line only as far as its cells need
NUMBERS = frozenset({
    "GPUS", "WORKLOADS", "HELD", "IDLE", "RECLAIMED", "OF HELD", "MONEY", "PAUSES", "REGRETTED", "RESUMES", "WAITED",
    "NOTICES", "FROZEN", "COST", "SILENCES", "$/H",
})
# Only these are folded (half a name cannot be copied), to so many columns at least, be the terminal ever so narrow.
SENTENCES = {"WHY": 30, "REASON GIVEN": 30, "NEXT": 8, "IDLE FOR": 8}
# Of the 256 colours those that can be read on white and on black alike (contrast of 3.9 at least).
STYLES = {
    "idle": "color(166)", "active": "color(28)", "unknown": "color(31)", "paused": "color(133)",
    "recommended": "bold color(28)", "today": "color(31)", "too many": "color(160)",
}
_BLOCKS = {"active": "\N{FULL BLOCK}", "idle": "\N{LIGHT SHADE}", "unknown": "?"}
_LETTERS = {"active": "#", "idle": "-", "unknown": "?"}  # where the output knows no blocks
_PADDING = re.compile(r" +((?:\x1b\[[0-9;]*m)*)$")  # at the end of a line, where styles may end behind it
_LABEL = 10  # columns of a label in front of its sentence

output_option = click.Option(
    ["-o", "--output"], type=click.Choice(["table", "wide", "json", "yaml"]), default="table", show_default=True,
    help="How to show it.",
)


class Shown(msgspec.Struct, frozen=True):
    """What a command shows. `failure`: why it is not what was asked for; it then ends with 1."""

    text: str
    failure: str = ""


class Bar(msgspec.Struct, frozen=True):
    """How many are active, idle and unknown, as a cell; `of`: how many the longest bar of its column has."""

    active: int
    idle: int
    unknown: int
    of: int
    columns: int = 24

    def segments(self) -> list[tuple[str, str]]:
        """(state, characters); what there is of has at least one."""
        marks = _BLOCKS if _can_write(_BLOCKS["active"] + _BLOCKS["idle"]) else _LETTERS
        counts = {"active": self.active, "idle": self.idle, "unknown": self.unknown}
        scale = self.columns / max(self.of, 1)
        return [(state, marks[state] * max(1, round(count * scale))) for state, count in counts.items() if count]


def _can_write(text: str) -> bool:
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def data(value: Any, output: str) -> bool:
    """JSON or YAML to standard output, where one of them was asked for; whether that was it."""
    if output in ("json", "yaml"):
        click.echo(encode(value, output), nl=False)
    return output in ("json", "yaml")


def encode(value: Any, output: str) -> str:
    if output == "json":
        return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"
    import yaml

    return str(yaml.safe_dump(msgspec.to_builtins(value), sort_keys=False, allow_unicode=True))


def plain(text: Any) -> str:
    """Text safe to print: no escape sequence from a label reaches the terminal."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in str(text))


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, styled: str | None = None) -> None:
    click.echo(grid(columns, rows, styled=styled))


def grid(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], *, styled: str | None = None, spare: Sequence[str] = ()
) -> str:
    """A table, the column `styled` coloured by its word. A terminal gets sentences folded, a pipe one line per row.
    `spare`: columns that a terminal which is too narrow does without, the first one first."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    cells = [[_cell(cell, name == styled) for name, cell in zip(columns, row, strict=True)] for row in rows]
    for name in spare if console.is_terminal else ():
        if _need(columns, cells) > console.width:
            at = list(columns).index(name)
            columns, cells = _without(columns, at), [_without(row, at) for row in cells]
    console.width = max(console.width, _need(columns, cells)) if console.is_terminal else UNFOLDED
    laid = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        side: Literal["left", "right"] = "right" if column in NUMBERS else "left"
        laid.add_column(column, overflow="fold", no_wrap=column not in SENTENCES, justify=side)
    for row in cells:
        laid.add_row(*row)
    with console.capture() as captured:
        console.print(laid)
    return "\n".join(_PADDING.sub(r"\1", line) for line in captured.get().splitlines())


def _cell(cell: Any, is_styled: bool) -> "Text":
    from rich.text import Text

    if isinstance(cell, Bar):
        return Text.assemble(*((characters, STYLES[state]) for state, characters in cell.segments()))
    return Text(plain(cell), STYLES.get(str(cell), "") if is_styled else "")


def _without(row: Sequence[Any], at: int) -> list[Any]:
    return [*row[:at], *row[at + 1:]]


def _need(columns: Sequence[str], cells: Sequence[Sequence["Text"]]) -> int:
    """How wide it is when only sentences are folded; where a terminal has less, lines run over, and nothing is lost."""
    widest = {column: max(map(len, [column, *texts])) for column, *texts in zip(columns, *cells, strict=True)}
    least = (min(width, SENTENCES.get(column, width)) for column, width in widest.items())
    return sum(least) + 2 * len(columns) - 2


def fields(rows: Sequence[tuple[str, Any]], indent: str = "  ") -> str:
    """`label  text`, one below the other; a terminal gets the text folded beside its label."""
    return "\n".join(_field(label, text, indent) for label, text in rows)


def _field(label: str, text: Any, indent: str) -> str:
    begin = f"{indent}{label:<{_LABEL}} "
    if isinstance(text, Bar):
        return begin + "".join(paint(characters, STYLES[state]) for state, characters in text.segments())
    return begin + fold(text, len(begin)) if plain(text) else begin.rstrip()


def fold(text: Any, indent: int = 0) -> str:
    """On a terminal, lines of its width, all but the first indented; half a word cannot be copied."""
    room = max(SENTENCES["WHY"], shutil.get_terminal_size().columns - indent - 1)
    if not sys.stdout.isatty():
        return plain(text)
    lines = textwrap.wrap(plain(text), room, break_long_words=False, break_on_hyphens=False)
    return f"\n{' ' * indent}".join(lines)


def heading(text: str) -> str:
    return paint(plain(text), "bold")


def paint(text: str, style: str) -> str:
    """For terminals that want colours."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    console.width = UNFOLDED
    with console.capture() as captured:
        console.print(Text(text, style), end="")
    return captured.get()


def legend() -> str:
    words = {"active": "busy", "idle": "idle", "unknown": "cannot tell"}
    shown = dict(Bar(1, 1, 1, 3, columns=3).segments())
    return "  ".join(f"{paint(shown[state], STYLES[state])} {word}" for state, word in words.items())


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
    for line, indent in ((text, 0), *((note, 2) for note in notes)):
        click.echo(f"{' ' * indent}{fold(line, indent)}")


def tell(text: str) -> None:
    """To whoever waits for an answer, which goes elsewhere."""
    click.echo(plain(text), err=True)


def checked(check: Callable[[str], object]) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
    """For an option or argument: what is malformed ends with 2 before anything is asked of the cluster."""

    def callback(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
        with refusals():
            if value is not None:
                check(value)
        return value

    return callback


@contextlib.contextmanager
def refusals(helps: str = "") -> Iterator[None]:
    """What is declined, or cannot be had from outside: 2 where it was typed or configured wrongly, else 1.
    `helps`: what to do where somebody does not answer."""
    from fallow import verbs
    from fallow.clients import errors

    try:
        yield
    except verbs.Declined as problem:
        raises = click.UsageError if problem.why in (verbs.Why.malformed, verbs.Why.too_long) else click.ClickException
        way_out = "; --force pauses it all the same" if problem.why is verbs.Why.held else ""
        raise raises(plain(f"{problem}{way_out}")) from None
    except errors.Misconfigured as problem:
        raise click.UsageError(plain(problem)) from None
    except errors.ClientError as problem:
        raise click.ClickException(plain(f"{problem}. What helps: {helps}" if helps else problem)) from None
