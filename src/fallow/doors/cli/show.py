"""Laying out answers: tables for people, JSON and YAML for machines, one sentence and an exit code for what is refused.

In: answers. Out: text, coloured and folded for the terminal that it goes to; a pipe gets neither.
Text from the cluster (names, reasons) is never read as markup, and control characters in it are shown, not obeyed.
What a command may not need (rich, yaml, the verbs) is imported only when it does.
"""

import contextlib
import math
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import click
import msgspec

from fallow.model import units

_FORCED = {"FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"}  # by which rich takes a pipe for a terminal
NUMBERS = frozenset({
    "GPUS", "WORKLOADS", "HELD", "IDLE", "RECLAIMED", "OF HELD", "MONEY", "PAUSES", "REGRETTED", "RESUMES", "WAITED",
    "GPU-HOURS", "HELD IDLE", "GIVEN BACK", "MISSED", "NOTICES", "FROZEN", "COST", "SILENCES", "$/H", "SO FAR",
    "ARRIVED %", "ALLOCATED %", "FRAGMENTED %", "BOUND %", "IDLE GPUS", "FREE GPUS", "GAIN ON FGD", "TO BOUND",
    "PODS/S", "MARGIN", "GPUS GAINED",
    "GPU_HOURS", "USED", "HELD_IDLE", "UNPRICED", "SHARE%", "USE%", "ALLOCATED_UNUSED", "KWH", "BASELINE", "ACTUAL",
    "ENERGY_COST", "CO2_KG", "SAVED", "REALISED", "PRICE", "AGE", "IDLE $/H", "UNUSED",
    "AMOUNT", "SPENT", "USED %", "PROJECTED", "GPU_UTIL", "MEM_UTIL", "MEM_USED", "POWER", "TEMP", "SAVINGS/MONTH",
    "FREED", "LEFT THE BILL", "OF BOUND", "P95", "LONGEST", "ADDED", "RELEASED", "MOVED",
    "PERSISTENCE", "HOUR-OF-WEEK", "HOLT-WINTERS", "BELIEVED",
})
# Only these are folded (half a name cannot be copied), to so many columns at least, be the terminal ever so narrow.
SENTENCES = {"WHY": 30, "REASON GIVEN": 30, "NEXT": 12, "IDLE FOR": 8, "METHOD": 24, "SOURCE": 16}
_TIGHT = 16  # columns of a sentence, before lines run over
# Of the 256 colours those that can be read on white and on black alike (contrast of 3.8 at least).
STYLES = {
    "idle": "color(166)", "active": "color(28)", "unknown": "color(31)", "paused": "color(133)",
    "recommended": "bold color(28)", "today": "color(31)", "too many": "color(160)",
}
_BLOCKS = {"active": "\N{FULL BLOCK}", "idle": "\N{LIGHT SHADE}", "unknown": "?"}
# Of money, by the five parts of it.
SPEND_STYLES = {
    "used": STYLES["active"], "allocated_unused": STYLES["idle"], "held_idle": STYLES["idle"],
    "use_unknown": STYLES["unknown"], "unallocated": "",
}
_SPEND_BLOCKS = {"used": "\N{FULL BLOCK}", "allocated_unused": "\N{MEDIUM SHADE}", "held_idle": "\N{LIGHT SHADE}",
                 "use_unknown": "?", "unallocated": "\N{MIDDLE DOT}"}
_SPEND_LETTERS = {"used": "#", "allocated_unused": "=", "held_idle": "-", "use_unknown": "?", "unallocated": "."}
_LETTERS = {"active": "#", "idle": "-", "unknown": "?"}  # where the output knows no blocks
_LABEL = 10  # columns of a label in front of its sentence

output_option = click.Option(
    ["-o", "--output"], type=click.Choice(["table", "wide", "json", "yaml"]), default="table", show_default=True,
    help="How to show it.",
)


class Shown(msgspec.Struct, frozen=True):
    """What a command shows. `failure`: why it is not what was asked for, and with which code it ends."""

    text: str
    failure: click.ClickException | None = None


class Bar(msgspec.Struct, frozen=True):
    """How many are active, idle and unknown, as a cell; `of`: how many the longest bar of its column has."""

    active: int
    idle: int
    unknown: int
    of: int
    columns: int = 24

    def segments(self) -> list[tuple[str, str]]:
        """(state, characters); what there is of has at least one."""
        marks = _BLOCKS if can_write(_BLOCKS["active"] + _BLOCKS["idle"]) else _LETTERS
        counts = {"active": self.active, "idle": self.idle, "unknown": self.unknown}
        scale = self.columns / max(self.of, 1)
        return [(state, marks[state] * max(1, round(count * scale))) for state, count in counts.items() if count]


class Strip(msgspec.Struct, frozen=True):
    """Money by what became of it, as a cell."""

    parts: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, amounts: Mapping[str, float], most: float, columns: int) -> "Strip":
        """`most`: what a bar of so many columns stands for. What is there has one at least."""
        marks = _SPEND_BLOCKS if can_write("".join(_SPEND_BLOCKS.values())) else _SPEND_LETTERS
        scale = columns / (most or 1.0)
        return cls(tuple(
            (state, marks[state] * max(1, round(amount * scale))) for state, amount in amounts.items() if amount > 0
        ))

    def segments(self) -> list[tuple[str, str]]:
        return list(self.parts)


class Paper(msgspec.Struct, frozen=True):
    """What is written on. `room`: columns of a terminal; None: it is none. `colours`: those that it has, for rich."""

    room: int | None = None
    colours: Any = None

    def paint(self, text: str, style: str) -> str:
        if not style or self.colours is None:
            return text
        from rich.style import Style

        return Style.parse(style).render(text, color_system=self.colours)


def find_paper() -> Paper:
    from fallow import settings

    if not sys.stdout.isatty() and not _FORCED & settings.environment().keys():
        return Paper()  # without rich, whose import takes longer than the page
    from rich.console import Console

    console = Console()
    colours = None if console.no_color else console._color_system
    return Paper(console.width, colours) if console.is_terminal else Paper()


class Cell(msgspec.Struct, frozen=True):
    """Text of a table, and how its parts look; none: plain. Its length is in columns of a terminal."""

    text: str
    parts: tuple[tuple[str, str], ...] = ()

    def __len__(self) -> int:
        if self.text.isascii():
            return len(self.text)
        from rich.cells import cell_len

        return cell_len(self.text)

    def fold(self, width: int) -> "list[Cell]":
        """Between words, as wide as that; a word that is wider is broken."""
        if len(self) <= width:
            return [self]
        style = self.parts[0][1] if self.parts else ""
        pieces = textwrap.wrap(self.text, width, break_on_hyphens=False) if self.text.isascii() else self._fold(width)
        return [Cell(piece, ((piece, style),) if style else ()) for piece in pieces]

    def _fold(self, width: int) -> list[str]:
        """Where some letters are two columns wide."""
        from rich.console import Console
        from rich.text import Text

        return [line.plain.rstrip() for line in Text(self.text).wrap(Console(), width, overflow="fold")]

    def paint(self, on: Paper) -> str:
        return "".join(on.paint(text, style) for text, style in self.parts) if self.parts else self.text


def can_write(text: str) -> bool:
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


class Number(click.FloatRange):
    """Between two bounds, which `nan` never is."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{plain(value)!r} is no number", param, ctx)
        return number


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, styled: str | None = None) -> None:
    click.echo(grid(columns, rows, styled=styled))


def grid(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], *, styled: str | None = None, spare: Sequence[str] = (),
    below: Sequence[str] = (),
) -> str:
    """A table, the column `styled` coloured by its word. A terminal gets sentences folded, a pipe one line per row.
    `spare`: columns that a terminal which is too narrow does without, the first one first. `below`: columns that stand
    there below their row instead, all of its width theirs; no other may be folded then."""
    paper = find_paper()
    cells, room = [[_cell(*each, styled) for each in zip(columns, row, strict=True)] for row in rows], paper.room
    if below and room is not None and _need(columns, cells) > room:
        return _stack(paper, *_spare(columns, cells, spare, room, below), below)
    if room is not None:
        columns, cells = _spare(columns, cells, spare, room)
    return "\n".join(_lay(paper, columns, cells, room and max(room, _need(columns, cells, _TIGHT))))


def _spare(
    columns: Sequence[str], cells: list[list[Cell]], spare: Sequence[str], room: int, below: Sequence[str] = ()
) -> tuple[Sequence[str], list[list[Cell]]]:
    """Without those of `spare` for which there is no room, where it has them. What stands `below` a row needs none
    beside it."""
    for name in spare:
        beside = [at for at, each in enumerate(columns) if each not in below]
        need = _need([columns[at] for at in beside], [[row[at] for at in beside] for row in cells])
        if name in columns and need > room:
            at = list(columns).index(name)
            columns, cells = _without(columns, at), [_without(row, at) for row in cells]
    return columns, cells


def _stack(paper: Paper, columns: Sequence[str], cells: Sequence[Sequence[Cell]], below: Sequence[str]) -> str:
    """Each row on one line, and below it what has no room there, by its name."""
    beside = [at for at, name in enumerate(columns) if name not in below]
    head, *lines = _lay(paper, [columns[at] for at in beside], [[row[at] for at in beside] for row in cells], None)
    stacked = [head]
    for line, row in zip(lines, cells, strict=True):
        said = [f"{name} {cell.text}" for name, cell in zip(columns, row, strict=True) if name in below and cell.text]
        stacked += [line, *textwrap.wrap(
            "  ".join(said), (paper.room or 0) - 1, initial_indent="  ", subsequent_indent="  ", break_long_words=False,
            break_on_hyphens=False,
        )]
    return "\n".join(stacked)


def _lay(paper: Paper, columns: Sequence[str], cells: Sequence[Sequence[Cell]], room: int | None) -> list[str]:
    """The lines of a table, two blanks between columns. `room`: how wide it may be; None: as wide as it is."""
    widths = _share(columns, [max(map(len, texts)) for texts in zip(map(Cell, columns), *cells, strict=True)], room)
    head = [Cell(name, ((name, "bold"),) if name else ()) for name in columns]
    return [line for row in (head, *cells) for line in _lay_row(paper, columns, row, widths)]


def _share(columns: Sequence[str], widths: list[int], room: int | None) -> list[int]:
    """What is too much is taken from the widest sentence, and from the next one when they are alike."""
    over = 0 if room is None else sum(widths) + 2 * len(widths) - 2 - room
    folded = [at for at, name in enumerate(columns) if name in SENTENCES]
    while over > 0 and folded:
        widest = max(folded, key=lambda at: widths[at])
        if widths[widest] <= 1:
            break
        widths[widest], over = widths[widest] - 1, over - 1
    return widths


def _lay_row(paper: Paper, columns: Sequence[str], row: Sequence[Cell], widths: Sequence[int]) -> list[str]:
    """One line, or as many as its longest sentence is folded to."""
    parts = [cell.fold(width) for cell, width in zip(row, widths, strict=True)]
    lines = []
    for number in range(max(map(len, parts), default=1)):
        laid = []
        for name, part, width in zip(columns, parts, widths, strict=True):
            piece = part[number] if number < len(part) else Cell("")
            blanks, shown = " " * (width - len(piece)), piece.paint(paper)
            laid.append(f"{blanks}{shown}" if name in NUMBERS else f"{shown}{blanks}")
        lines.append("  ".join(laid).rstrip())
    return lines


def _cell(column: str, cell: Any, styled: str | None) -> Cell:
    if isinstance(cell, Bar | Strip):
        styles, segments = STYLES if isinstance(cell, Bar) else SPEND_STYLES, cell.segments()
        return Cell(
            "".join(characters for _, characters in segments),
            tuple((characters, styles[state]) for state, characters in segments),
        )
    text, style = plain(cell), STYLES.get(str(cell), "") if column == styled else ""
    return Cell(text, ((text, style),) if style else ())


def _without(row: Sequence[Any], at: int) -> list[Any]:
    return [*row[:at], *row[at + 1:]]


def _need(columns: Sequence[str], cells: Sequence[Sequence[Cell]], most: int = sys.maxsize) -> int:
    """How wide it is when only sentences are folded, to `most` at least; where a terminal has less, lines run over, and
    nothing is lost."""
    widest = {column: max([len(column), *map(len, texts)]) for column, *texts in zip(columns, *cells, strict=True)}
    least = (min(width, most, SENTENCES[column]) if column in SENTENCES else width for column, width in widest.items())
    return sum(least) + 2 * len(columns) - 2


def minute(instant: str) -> str:
    """An instant as people read it, UTC."""
    at = units.read_instant(instant)
    return instant if at is None else units.rfc3339(at)[:16].replace("T", " ")


def fields(rows: Sequence[tuple[str, Any]], indent: str = "  ") -> str:
    """`label  text`, one below the other; a terminal gets the text folded beside its label."""
    return "\n".join(_field(label, text, indent) for label, text in rows)


def _field(label: str, text: Any, indent: str) -> str:
    begin = f"{indent}{label:<{_LABEL}} "
    if isinstance(text, Bar | Strip):
        styles = STYLES if isinstance(text, Bar) else SPEND_STYLES
        return begin + "".join(paint(characters, styles[state]) for state, characters in text.segments())
    return begin + fold(text, len(begin)) if plain(text) else begin.rstrip()


def fold(text: Any, indent: int = 0) -> str:
    """On a terminal, lines of its width, all but the first indented; half a word cannot be copied."""
    room = max(_TIGHT, shutil.get_terminal_size().columns - indent - 1)
    if not sys.stdout.isatty():
        return plain(text)
    lines = textwrap.wrap(plain(text), room, break_long_words=False, break_on_hyphens=False)
    return f"\n{' ' * indent}".join(lines)


def heading(text: str) -> str:
    return paint(plain(text), "bold")


def paint(text: str, style: str) -> str:
    """For terminals that want colours."""
    return find_paper().paint(text, style)


def legend() -> str:
    words = {"active": "busy", "idle": "idle", "unknown": "cannot tell"}
    shown = dict(Bar(1, 1, 1, 3, columns=3).segments())
    return join_words([(shown[state], STYLES[state], word) for state, word in words.items()])


def join_words(parts: Sequence[tuple[str, str, str]]) -> str:
    """A legend: a mark, its style and its word each; on as many lines of a terminal as it takes."""
    paper, lines, width = find_paper(), list[list[str]]([[]]), 0
    for mark, style, word in parts:
        width += len(f"{mark} {word}  ")
        if paper.room is not None and lines[-1] and width - 2 > paper.room:
            lines.append([])
            width = len(f"{mark} {word}  ")
        lines[-1].append(f"{paper.paint(mark, style)} {word}")
    return "\n".join("  ".join(line) for line in lines)


def fit_bar(most: int) -> int:
    """Columns of a bar beside a label: as many as a terminal has, and no more than `most`; a pipe has all of them."""
    room = find_paper().room
    return most if room is None else max(1, min(most, room - _LABEL - 2))


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

    def callback(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
        try:
            with refusals():
                if value is not None:
                    check(value)
        except ValueError as problem:
            raise click.BadParameter(plain(problem), ctx, param) from None
        return value

    return callback


class NoSource(click.ClickException):
    """Nothing is wrong with what was typed: there is nobody who could tell."""

    exit_code = 4

    def __init__(self, because: str) -> None:
        super().__init__(plain(because))


def failure(because: str) -> click.ClickException:
    """A call that failed, or what was asked for is not so: 1."""
    return click.ClickException(plain(because))


@contextlib.contextmanager
def refusals(helps: str = "", lists: str = "") -> Iterator[None]:
    """With which code a command ends whose question is declined, or finds nobody: 2 where it was typed or configured
    wrongly, 4 where nobody said whom to ask, 1 where a call failed. (`run`, `prune` and gpu-pruner have their own:
    flags.py.) `helps`: what to do where somebody does not answer; `lists`: the command that has what was not found."""
    from fallow import verbs
    from fallow.clients import errors

    try:
        yield
    except verbs.Declined as problem:
        raises = click.UsageError if problem.why in (verbs.Why.malformed, verbs.Why.too_long) else click.ClickException
        way_out = "; --force pauses it all the same" if problem.why is verbs.Why.held else ""
        if lists and problem.why is verbs.Why.unknown:
            way_out = f"{' ' if str(problem).endswith('?') else '. '}To see what there is: {lists}"
        raise raises(plain(f"{problem}{way_out}")) from None
    except errors.NoCluster as problem:
        raise NoSource(f"{problem}. To look around without one: fallow demo") from None
    except errors.Misconfigured as problem:
        raise click.UsageError(plain(problem)) from None
    except errors.Invalid as problem:  # who was asked has answered
        raise failure(str(problem)) from None
    except errors.ClientError as problem:
        raise failure(f"{problem}. What helps: {helps}" if helps else str(problem)) from None
