"""What `fallow demo` shows: the cluster map, what happens, what was reclaimed so far; and the report at the end.

In: a Moment, plain facts about one instant of the pretend day. Out: something rich can draw, or lines of text where
nobody watches.
Invariant: every GPU is in exactly one state; money is only given for models that have a price, and what has none is
said beside it.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import click
import msgspec
from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fallow.doors.cli import show
from fallow.model import units
from fallow.model.units import Instant
from fallow.sim import backtest

BUSY, IDLE, NOTICE, UNKNOWN, STARTING, FREE = "busy", "idle", "notice", "unknown", "starting", "free"
CELLS = {  # state: its words, its colour, and a letter of its own beside that: not everybody sees colours
    BUSY: ("busy", "green", "█"), IDLE: ("idle", "yellow", "▒"), NOTICE: ("idle, owner told", "bold yellow", "!"),
    UNKNOWN: ("cannot tell", "cyan", "?"), STARTING: ("starting", "bright_blue", "+"),
    FREE: ("free", "bright_black", "·"),
}
STYLES = {
    "notice": "yellow", "pause": "magenta", "resume": "green", "ack": "cyan", "person": "bright_blue",
    "frozen": "bold red", "fault": "red",
}
_FEED = 14


class NodeCells(msgspec.Struct, frozen=True):
    """A node of the map: one state per GPU."""

    name: str
    cells: tuple[str, ...]
    ready: bool = True


class Happening(msgspec.Struct, frozen=True):
    at: Instant
    kind: str  # a key of STYLES
    text: str


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """One instant of the day."""

    began: Instant
    now: Instant
    ends: Instant
    nodes: tuple[NodeCells, ...]
    sums: backtest.BacktestResult  # since the day began
    feed: tuple[Happening, ...]
    paused: int  # workloads that stand paused
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
        moment, room = self.moment, max(4, (options.height or console.size.height) - 12)
        feed = min(_FEED, max(3, room // 2))
        yield _headline(moment)
        yield _progress(moment)
        yield _panel(_map(moment, max(3, room - feed)), "GPUs by node")
        yield _panel(_feed(moment, feed), "what happens")
        yield _sums(moment)


def _panel(shown: RenderableType, title: str) -> Panel:
    return Panel(shown, title=title, title_align="left", border_style="bright_black")


def _headline(moment: Moment) -> Text:
    line = _one_line(f" fallow demo  {units.rfc3339(moment.now)[:16].replace('T', ' ')} ", "bold reverse")
    line.append("  ")
    counted = moment.count()
    for state, (words, style, letter) in CELLS.items():
        line.append(f"{letter} ", style=style)
        line.append(f"{counted[state]} {words}   ")
    if moment.frozen:
        line.append(f" frozen: {show.plain(moment.frozen)[:60]} ", style="bold white on red")
    for fault in moment.faults:
        line.append(f" fault: {fault} ", style="white on red")
    return line


def _one_line(text: str, style: str) -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _progress(moment: Moment) -> RenderableType:
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(ratio=1)
    grid.add_column(justify="right", no_wrap=True)
    total, spent = max(1.0, moment.ends - moment.began), moment.now - moment.began
    speed = f"{moment.speed:,.0f} x" if moment.speed else ""
    bar = ProgressBar(total=total, completed=spent, complete_style="green", finished_style="green")
    grid.add_row(bar, f"{units.humane(spent)} of {units.humane(total)}  {speed}")
    return grid


def _map(moment: Moment, rows: int) -> RenderableType:
    """As many nodes as fit, in columns; the rest is counted."""
    most = rows * 4
    lines = [_node(node) for node in moment.nodes[:most]]
    left = len(moment.nodes) - most
    if left > 0:
        lines[-1] = Text(f"and {left + 1} more nodes", style="bright_black")
    return Columns(lines, padding=(0, 3), column_first=True)


def _node(node: NodeCells) -> Text:
    line = Text(f"{show.plain(node.name)} ", style="" if node.ready else "red strike")
    for cell in node.cells:
        _, style, letter = CELLS[cell]
        line.append(letter, style=style)
    return line


def _feed(moment: Moment, rows: int) -> RenderableType:
    lines = [_happening(one) for one in moment.feed[-rows:]]
    return Group(*lines, *(Text("") for _ in range(rows - len(lines))))


def _happening(one: Happening) -> Text:
    line = _one_line(f"{units.clock_time(one.at)}  ", "bright_black")
    line.append(f"{one.kind:<7} ", style=STYLES.get(one.kind, ""))
    line.append(show.plain(one.text))
    return line


def _sums(moment: Moment) -> RenderableType:
    grid, total = Table.grid(padding=(0, 3)), moment.sums.total
    hours = f"{total.reclaimed_gpu_hours:,.0f} GPU-hours"
    grid.add_row(
        Text.assemble("reclaimed ", (hours, "bold green"), f"  {say_money(total)}"),
        f"{moment.sums.notices} notices", f"{total.acks} kept by their owners",
        f"{total.pauses} pauses ({moment.paused} stand)", f"{total.resumes} resumes", f"{total.regrets} regretted",
    )
    return grid


def say_money(total: backtest.BacktestSums) -> str:
    unpriced = f" (+ {total.unpriced_gpu_hours:,.0f} GPU-hours of models without a price)"
    return f"${total.money:,.0f}" + (unpriced if total.unpriced_gpu_hours >= 0.5 else "")


def hour_line(moment: Moment) -> str:
    """Where nobody watches: one line per simulated hour."""
    counted, total = moment.count(), moment.sums.total
    states = f"{counted[BUSY]} busy, {counted[IDLE] + counted[NOTICE]} idle, {counted[UNKNOWN]} cannot tell"
    parts = [
        f"{units.clock_time(moment.now)}  {states}, {counted[FREE]} free",
        f"{moment.sums.notices} notices, {total.pauses} pauses ({moment.paused} stand), {total.resumes} resumes, "
        f"{total.regrets} regretted",
        f"{total.reclaimed_gpu_hours:,.1f} GPU-hours reclaimed",
        *(["frozen"] if moment.frozen else []), *(f"fault {fault}" for fault in moment.faults),
    ]
    return "; ".join(parts)


def tell(title: str, sums: backtest.BacktestResult, measured: Sequence[str]) -> None:
    """The closing report, to standard output. `measured`: sentences on what it cost to find out."""
    total = sums.total
    asked = total.gpu_hours + total.reclaimed_gpu_hours
    share = total.reclaimed_gpu_hours / max(asked, 1e-9)
    click.echo()
    show.sentence(title)
    show.sentence(
        f"  {asked:,.0f} GPU-hours asked for; {total.reclaimed_gpu_hours:,.0f} reclaimed ({share:.0%}), "
        f"{say_money(total)}; {total.idle_gpu_hours:,.0f} more were idle: in their window or notice, kept by their "
        "owners, or too short"
    )
    show.sentence(
        f"  {sums.notices} notices, {total.acks} answered with \"keep it\"; {total.pauses} pauses, {total.resumes} "
        f"resumes, of which {total.complaints} by hand; {total.regrets} pauses regretted within 15m; "
        f"{units.humane(total.waited)} waited in all"
    )
    if sums.frozen_ticks or sums.lost_ticks:
        cycles = f"{sums.frozen_ticks} cycles frozen, {sums.lost_ticks} without a decision"
        show.sentence(f"  {cycles}: nothing was paused in these")
    for name, lines in (("CLASS", sums.by_class), ("NAMESPACE", sums.by_namespace)):
        click.echo()
        rows = [_cells(*item) for item in sorted(lines.items(), key=lambda item: -item[1].reclaimed_gpu_hours)]
        show.table([name, "WORKLOADS", "HELD", "IDLE", "RECLAIMED", "PAUSES", "REGRETS", "WAITED"], rows)
    click.echo()
    for sentence in measured:
        show.sentence(f"  {sentence}")


def _cells(name: str, line: backtest.BacktestSums) -> Sequence[Any]:
    hours = (f"{hours:,.0f} h" for hours in (line.gpu_hours, line.idle_gpu_hours, line.reclaimed_gpu_hours))
    return name, line.workloads, *hours, line.pauses, line.regrets, units.humane(line.waited)
