"""What `fallow demo` shows: the cluster map, the day so far, what happens, what was reclaimed.

In: a Moment, plain facts about one instant of the pretend day. Out: something rich can draw into whatever room the
terminal has, or a line of text where nobody watches.
Invariant: every GPU is in exactly one state; a state has one letter and one colour wherever it is drawn, and each
colour can be read on black and on white.
"""

import itertools
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec
from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fallow.doors.cli import show
from fallow.model import units
from fallow.model.units import HOUR, Instant, Seconds
from fallow.sim import backtest

BUSY, IDLE, NOTICE, UNKNOWN, STARTING, FREED, FREE = "busy", "idle", "notice", "unknown", "starting", "freed", "free"
GREEN, ORANGE, CYAN, BLUE = "color(28)", "color(166)", "color(31)", "color(63)"
MAGENTA, RED, GREY = "color(133)", "color(160)", "color(244)"
CELLS: Final = {  # state: its words, its colour, and a letter of its own beside that: not everybody sees colours
    BUSY: ("busy", GREEN, "█"), IDLE: ("idle", ORANGE, "▒"), NOTICE: ("owner told", f"bold {ORANGE}", "!"),
    UNKNOWN: ("cannot tell", CYAN, "?"), STARTING: ("starting", BLUE, "+"), FREED: ("freed", MAGENTA, "○"),
    FREE: ("free", GREY, "·"),
}
STYLES: Final = {
    "notice": ORANGE, "lapse": GREEN, "pause": MAGENTA, "taken": GREEN, "resume": GREEN, "ack": CYAN, "person": BLUE,
    "share": CYAN, "node": BLUE, "frozen": f"bold {RED}", "fault": RED,
}
_UPWARDS: Final = (BUSY, STARTING, UNKNOWN, NOTICE, IDLE, FREED, FREE)  # in the chart
_SIDE_BY_SIDE: Final = 130  # columns from which on there is room for two panes
_ROOMY: Final = 30  # rows from which on the commands are shown while the day plays
_MOST_NODES, _MOST_CHART, _LEAST_FEED, _LEAST_CHART = 1000, 10, 5, 7


class NodeCells(msgspec.Struct, frozen=True):
    """A node of the map: one state per GPU."""

    name: str
    cells: tuple[str, ...]
    ready: bool = True
    note: str = ""  # its model, and how its GPUs are given out


class Happening(msgspec.Struct, frozen=True):
    at: Instant
    kind: str  # a key of STYLES
    text: str
    back: str = ""  # the command that undoes it; shown whole or not at all: half a command cannot be typed

    def say(self, width: int | None = None) -> str:
        whole = f"{self.text}; back: {self.back}" if self.back else self.text
        return show.plain(whole if width is None or cell_len(whole) <= width else self.text)


class Unknown(msgspec.Struct, frozen=True):
    """Why nothing can be told of some GPUs."""

    gpus: int
    where: str
    because: str


class DayMoney(msgspec.Struct, frozen=True, kw_only=True):
    """What the books have of the day so far. `held`: of the cost, the teams'; `given_back`: GPU-hours, by pauses;
    `saved`: what of these others had. `regretted`: pauses that were taken back within 15m."""

    currency: str
    cost: float
    held: float
    held_idle: float
    given_back: float
    saved: float
    regretted: int
    unpriced_gpu_hours: float = 0.0


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """One instant of the day."""

    began: Instant
    now: Instant
    ends: Instant
    nodes: tuple[NodeCells, ...]
    sums: backtest.BacktestResult  # since the day began, by what the world knows
    money: DayMoney | None = None  # as the books were last read; None: none are kept, or not yet
    feed: tuple[Happening, ...]
    paused: int  # workloads that stand paused
    past: tuple[tuple[Instant, dict[str, int]], ...] = ()  # GPUs by state, cycle by cycle
    unknowns: tuple[Unknown, ...] = ()
    waiting: str = ""  # who waits for GPUs
    taken: int = 0  # GPUs that a pause freed and somebody else has taken
    commands: tuple[str, ...] = ()  # to type in another terminal
    is_live: bool = False  # the day is over, and the cluster goes on a second a second
    frozen: str = ""
    faults: tuple[str, ...] = ()
    speed: float = 0.0  # simulated seconds per second

    def count(self) -> Counter[str]:
        return Counter(cell for node in self.nodes for cell in node.cells)


class Picture:
    """The live picture. It is drawn anew for whatever size the terminal has."""

    def __init__(self, moment: Moment) -> None:
        self.moment = moment

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = options.max_width, options.height or console.size.height
        moment = self.moment
        top = [_headline(moment), *_fold(_legend(moment), width), *_warnings(moment)]
        bottom = [*_fold(_sums(moment), width), *_commands(moment, height)]
        rows = max(0, height - len(top) - len(bottom))
        yield Group(*top, *([_body(moment, width, rows)] if rows > 2 else []), *bottom)


# ---- lines -----------------------------------------------------------------------------------------------------------


def _line(*parts: str | tuple[str, str]) -> Text:
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def _fold(parts: Sequence[Text], width: int) -> list[Text]:
    """As many to a line as fit, none of them cut."""
    lines: list[Text] = []
    for part in parts:
        if lines and cell_len(lines[-1].plain) + 3 + cell_len(part.plain) <= width:
            lines[-1].append("   ").append_text(part)
        else:
            lines.append(_line(" ").append_text(part))
    return lines


def _headline(moment: Moment) -> RenderableType:
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    grid.add_column(justify="right", no_wrap=True)
    title = Text.assemble((" fallow demo ", "bold reverse"), f" {units.rfc3339(moment.now)[:16].replace('T', ' ')} UTC")
    if moment.is_live:
        grid.add_row(title, _line(("the day is over: live, until Ctrl-C", GREEN)), "")
        return grid
    total, spent = max(1.0, moment.ends - moment.began), moment.now - moment.began
    speed = f"  {moment.speed:,.0f}x" if moment.speed else ""
    bar = ProgressBar(total=total, completed=spent, style=GREY, complete_style=GREEN, finished_style=GREEN)
    grid.add_row(title, bar, f"{units.humane(spent)} of {total / HOUR:.4g}h{speed}")
    return grid


def _legend(moment: Moment) -> list[Text]:
    counted = moment.count()
    return [
        Text.assemble((f"{letter} ", style), f"{counted[state]} {words}")
        for state, (words, style, letter) in CELLS.items()
    ]


def _warnings(moment: Moment) -> list[Text]:
    said = [f"fault: {fault}" for fault in moment.faults]
    said += [f"frozen: {show.plain(moment.frozen)}"] if moment.frozen else []
    return [_line((f" {'; '.join(said)} ", f"bold reverse {RED}"))] if said else []


def _sums(moment: Moment) -> list[Text]:
    total = moment.sums.total
    return [
        *_money(moment.money), Text(_some(moment.sums.notices, "notice")), Text(f"{total.acks} kept by their owners"),
        Text(f"{_some(total.pauses, 'pause')} ({moment.paused} stand)"),
        Text(f"{_some(moment.taken, 'freed GPU')} taken by others"), Text(_some(total.resumes, "resume")),
        *([Text(f"{moment.money.regretted} regretted")] if moment.money else []),
        Text(f"{total.regrets} missed within 15m"),
    ]


def _money(money: DayMoney | None) -> Iterator[Text]:
    if money is not None:
        yield Text.assemble("given back ", (f"{money.given_back:,.0f} GPU-hours", f"bold {GREEN}"))
        yield Text(f"{say_money(money.saved)} saved by that")
        yield Text.assemble(
            "teams paid ", (say_money(money.held), "bold"), f", {say_money(money.held_idle)} for idle GPUs"
        )


def _some(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def _commands(moment: Moment, height: int) -> list[Text]:
    """As many as have room; in a small terminal they come when the day is over."""
    if not moment.commands or not (moment.is_live or height >= _ROOMY):
        return []
    lines = [_line(("In another terminal:", "bold")), *(_line("  ", show.plain(each)) for each in moment.commands)]
    return [_line(" ").append_text(line) for line in lines[: max(4, height // 3)]]


def say_money(amount: float) -> str:
    return f"${amount:,.2f}"


# ---- panes -----------------------------------------------------------------------------------------------------------


def _body(moment: Moment, width: int, rows: int) -> RenderableType:
    """Map, chart and feed: below one another, or in a wide terminal the feed beside the others."""
    if width < _SIDE_BY_SIDE:
        return Group(*_stack(moment, width, rows, feed=max(_LEAST_FEED, rows // 4) if rows >= 2 * _LEAST_FEED else 0))
    grid, left = Table.grid(padding=0), max(60, width * 2 // 5)
    grid.add_column(width=left)
    grid.add_column(width=width - left)
    grid.add_row(Group(*_stack(moment, left, rows, feed=0)), _feed(moment, width - left, rows))
    return grid


def _stack(moment: Moment, width: int, rows: int, *, feed: int) -> list[Panel]:
    """`feed`: rows that it has at least; 0: it is elsewhere. What the map does not need goes to the chart, and of that
    at least half to the feed."""
    nodes = _map(moment, width - 4, max(1, rows - feed - 2))
    used = min(rows - feed, len(nodes) + 2)
    left = rows - used
    chart = min(_MOST_CHART, left - max(feed, left // 2)) if feed else left
    chart = chart if chart >= _LEAST_CHART else 0
    panes = [_panel(nodes, "GPUs by node", used + (left if not feed and not chart else 0))]
    if chart:
        title = f"all {sum(moment.count().values())} GPUs over the day"
        panes.append(_panel(_chart(moment, width - 4, chart - 2), title, chart))
    if feed:
        panes.append(_feed(moment, width, left - chart))
    return panes


def _panel(lines: Iterable[Text], title: str, rows: int) -> Panel:
    return Panel(Group(*lines), title=title, title_align="left", border_style=GREY, box=box.ROUNDED, height=rows)


def _map(moment: Moment, width: int, rows: int) -> list[Text]:
    """Every node if there is room, with as much about each as fits in half of it; and what explains the picture."""
    words = _explain(moment, width, max(0, min(4, rows // 3)))
    room = max(1, rows - len(words))
    for with_notes, gap in itertools.product((True, False), (" ", "")):
        entries = list(_nodes(moment.nodes[:_MOST_NODES], with_notes, gap))
        each = max((cell_len(entry.plain) for entry in entries), default=1) + 2
        columns = max(1, (width + 2) // each)
        if -(-len(moment.nodes) // columns) <= room * 0.6:
            break
    if len(moment.nodes) > room * columns:
        entries = entries[: max(1, room - 1) * columns]
        words = [_line((f"and {len(moment.nodes) - len(entries)} more nodes", GREY)), *words]
    return [*_in_columns(entries, columns, (width + 2) // columns), *words]


def _in_columns(entries: Sequence[Text], columns: int, each: int) -> Iterator[Text]:
    """Downwards first."""
    rows = -(-len(entries) // columns)
    for row in range(rows):
        line = _line()
        for entry in entries[row::rows]:
            line.append_text(entry).append(" " * (each - cell_len(entry.plain)))
        line.rstrip()
        yield line


def _nodes(nodes: Sequence[NodeCells], with_notes: bool, gap: str) -> Iterator[Text]:
    notes = max((cell_len(node.note) for node in nodes), default=0) if with_notes else 0
    names = max((cell_len(node.name) for node in nodes), default=0)
    for node in nodes:
        line = Text(f"{show.plain(node.name):<{names}} ", style="" if node.ready else f"{RED} strike")
        if notes:
            line.append(f"{show.plain(node.note):<{notes}} ", style=GREY)
        for cell in node.cells:
            _, style, letter = CELLS[cell]
            line.append(letter + gap, style=style)
        line.rstrip()
        yield line


def _explain(moment: Moment, width: int, rows: int) -> list[Text]:
    """Who waits, and why nothing can be told of some, folded into so many rows."""
    _, style, letter = CELLS[UNKNOWN]
    said = [("waiting ", BLUE, moment.waiting)] if moment.waiting else []
    said += [(f"{letter} ", style, f"{one.gpus} on {one.where}: {one.because}") for one in moment.unknowns if one.gpus]
    lines, said = list[Text](), said[:rows]
    for number, (begins, colour, words) in enumerate(said, 1):
        room = rows - len(lines) - (len(said) - number)  # each has a line at least
        lines += _hang((begins, colour), words, width, room)
    return lines


def _hang(begins: tuple[str, str], words: str, width: int, rows: int) -> Iterator[Text]:
    """A sentence, its further lines below its own words; what has no room is cut."""
    at = len(begins[0])
    folded = textwrap.wrap(show.plain(words), max(10, width - at), max_lines=rows, placeholder=" …")
    for number, line in enumerate(folded):
        yield _line(" " * at if number else begins, line)


def _chart(moment: Moment, width: int, rows: int) -> Iterator[Text]:
    """Shares of all GPUs over the day, each state by its letter; below it the hours."""
    levels = max(1, rows - 1)
    columns = [_pile(counted, levels) for counted in _resample(moment, width)]
    for level in range(levels - 1, -1, -1):
        line = _line()
        for pile in columns:
            _, style, letter = CELLS[pile[level]] if pile else ("", "", " ")
            line.append(letter, style=style)
        yield line
    yield _hours(moment, width)


def _span(moment: Moment) -> tuple[Instant, Seconds]:
    """What the chart shows: the day, and when that is over as much before now."""
    length = max(1.0, moment.ends - moment.began)
    return max(moment.began, moment.now - length), length


def _resample(moment: Moment, width: int) -> list[dict[str, int] | None]:
    """The last word on each column of the chart; where none was said, the one before it. None: not yet."""
    (start, length), found = _span(moment), dict[int, dict[str, int]]()
    for at, counted in moment.past:
        found[int((at - start) / length * width)] = counted
    last = max(found, default=-1)
    latest: dict[str, int] | None = None
    columns = list[dict[str, int] | None]()
    for column in range(width):
        latest = found.get(column, latest)
        columns.append(latest if column <= last else None)
    return columns


def _pile(counted: dict[str, int] | None, levels: int) -> list[str]:
    """The state at each level, from below."""
    total = sum(counted.values()) if counted else 0
    if counted is None or not total:
        return []
    ends = itertools.accumulate(counted.get(state, 0) for state in _UPWARDS)
    tops = [round(end / total * levels) for end in ends]
    return [next(state for state, top in zip(_UPWARDS, tops, strict=True) if level < top) for level in range(levels)]


def _hours(moment: Moment, width: int) -> Text:
    (start, length), line = _span(moment), [" "] * width
    for part in range(5):
        text = units.clock_time(start + length * part / 4)
        at = min(round(width * part / 4), width - len(text))
        line[max(0, at) : max(0, at) + len(text)] = text
    return _line(("".join(line[:width]), GREY))


def _feed(moment: Moment, width: int, rows: int) -> Panel:
    shown = moment.feed[-max(1, rows - 2) :]
    return _panel((_happening(one, width - 4) for one in shown), "what happens", rows)


def _happening(one: Happening, width: int) -> Text:
    begins = _line((f"{units.clock_time(one.at)} ", GREY), (f"{one.kind:<7} ", STYLES.get(one.kind, "")))
    return begins.append(one.say(width - cell_len(begins.plain)))
