"""What `fallow demo` shows: the cluster map, what happens, what was reclaimed so far; and the report at the end.

In: a Scene, plain facts about one instant of the pretend day. Out: something rich can draw, or lines of text where nobody watches.
Invariant: every GPU is in exactly one state; money is only told for models that have a price, and what has none is told beside it.
"""

from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
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
from fallow.model.units import Instant, Seconds

BUSY, IDLE, NOTICE, UNKNOWN, STARTING, FREE = "busy", "idle", "notice", "unknown", "starting", "free"
# Each state has a letter of its own beside its colour: not everybody sees colours.
CELLS = {BUSY: ("█", "green"), IDLE: ("▒", "yellow"), NOTICE: ("!", "bold yellow"), UNKNOWN: ("?", "cyan"), STARTING: ("+", "bright_blue"),
         FREE: ("·", "bright_black")}
WORDS = {BUSY: "busy", IDLE: "idle", NOTICE: "idle, owner told", UNKNOWN: "cannot tell", STARTING: "starting", FREE: "free"}
STYLES = {
    "notice": "yellow", "pause": "magenta", "resume": "green", "ack": "cyan", "person": "bright_blue", "frozen": "bold red", "fault": "red",
}  # fmt: skip
_FEED = 14


class NodeRow(msgspec.Struct, frozen=True):
    name: str
    model: str
    cells: tuple[str, ...]  # one state per GPU
    ready: bool = True


class Happening(msgspec.Struct, frozen=True):
    at: Instant
    kind: str  # a key of STYLES
    text: str


class Sums(msgspec.Struct, frozen=True):
    """Since the day began."""

    held_gpu_hours: float = 0.0
    idle_gpu_hours: float = 0.0
    reclaimed_gpu_hours: float = 0.0
    money: Decimal = Decimal(0)
    unpriced_gpu_hours: float = 0.0
    notices: int = 0
    acks: int = 0
    pauses: int = 0
    resumes: int = 0
    regrets: int = 0
    complaints: int = 0
    waited: Seconds = 0.0
    frozen_cycles: int = 0
    failed_cycles: int = 0


class Scene(msgspec.Struct, frozen=True):
    """One instant of the day."""

    began: Instant
    now: Instant
    ends: Instant
    nodes: tuple[NodeRow, ...]
    sums: Sums
    feed: tuple[Happening, ...]
    paused: int  # workloads that stand paused
    frozen: str = ""
    faults: tuple[str, ...] = ()
    speed: float = 0.0  # simulated seconds per second

    def count(self) -> Counter[str]:
        return Counter(cell for node in self.nodes for cell in node.cells)


class View:
    """The live picture. It is drawn anew for whatever size the terminal has."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = options.height or console.size.height
        yield from draw(self.scene, height)


def draw(scene: Scene, height: int) -> list[RenderableType]:
    room = max(4, height - 12)
    feed = min(_FEED, max(3, room // 2))
    return [
        _headline(scene),
        _progress(scene),
        Panel(_map(scene, max(3, room - feed)), title="GPUs by node", title_align="left", border_style="bright_black"),
        Panel(_feed(scene, feed), title="what happens", title_align="left", border_style="bright_black"),
        _sums(scene.sums, scene.paused),
    ]


def _headline(scene: Scene) -> Text:
    line = Text(f" fallow demo  {units.rfc3339(scene.now)[:16].replace('T', ' ')} ", style="bold reverse")
    line.append("  ")
    counted = scene.count()
    for state, (cell, style) in CELLS.items():
        line.append(f"{cell} ", style=style)
        line.append(f"{counted[state]} {WORDS[state]}   ")
    if scene.frozen:
        line.append(f" frozen: {show.plain(scene.frozen)[:60]} ", style="bold white on red")
    for fault in scene.faults:
        line.append(f" fault: {fault} ", style="white on red")
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def _progress(scene: Scene) -> RenderableType:
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(ratio=1)
    grid.add_column(justify="right", no_wrap=True)
    total = max(1.0, scene.ends - scene.began)
    speed = f"{scene.speed:,.0f} x" if scene.speed else ""
    told = f"{units.humane(scene.now - scene.began)} of {units.humane(total)}  {speed}"
    grid.add_row(ProgressBar(total=total, completed=scene.now - scene.began, complete_style="green", finished_style="green"), told)
    return grid


def _map(scene: Scene, rows: int) -> RenderableType:
    """As many nodes as fit, in columns; the rest is counted."""
    most = rows * 4
    lines = [_node(node) for node in scene.nodes[:most]]
    left = len(scene.nodes) - most
    if left > 0:
        lines[-1] = Text(f"and {left + 1} more nodes", style="bright_black")
    return Columns(lines, padding=(0, 3), column_first=True)


def _node(node: NodeRow) -> Text:
    line = Text(f"{show.plain(node.name)} ", style="" if node.ready else "red strike")
    for cell in node.cells:
        letter, style = CELLS[cell]
        line.append(letter, style=style)
    return line


def _feed(scene: Scene, rows: int) -> RenderableType:
    lines = [_happening(one) for one in scene.feed[-rows:]]
    return Group(*lines, *(Text("") for _ in range(rows - len(lines))))


def _happening(one: Happening) -> Text:
    line = Text(f"{units.clock_time(one.at)}  ", style="bright_black")
    line.append(f"{one.kind:<7} ", style=STYLES.get(one.kind, ""))
    line.append(show.plain(one.text))
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def _sums(sums: Sums, paused: int) -> RenderableType:
    grid = Table.grid(padding=(0, 3))
    reclaimed = Text.assemble("reclaimed ", (f"{sums.reclaimed_gpu_hours:,.0f} GPU-hours", "bold green"), f"  {tell_money(sums)}")
    grid.add_row(
        reclaimed, f"{sums.notices} notices", f"{sums.acks} kept by their owners", f"{sums.pauses} pauses ({paused} stand)",
        f"{sums.resumes} resumes", f"{sums.regrets} regretted",
    )
    return grid


def tell_money(sums: Sums) -> str:
    told = f"${sums.money:,.0f}"
    return f"{told} (+ {sums.unpriced_gpu_hours:,.0f} GPU-hours of models without a price)" if sums.unpriced_gpu_hours >= 0.5 else told


# ---- where nobody watches -------------------------------------------------------------------------------------------------------


def hour_line(scene: Scene) -> str:
    """One line per simulated hour."""
    counted, sums = scene.count(), scene.sums
    parts = [
        f"{units.clock_time(scene.now)}  {counted[BUSY]} busy, {counted[IDLE] + counted[NOTICE]} idle, {counted[UNKNOWN]} cannot tell, "
        f"{counted[FREE]} free",
        f"{sums.notices} notices, {sums.pauses} pauses ({scene.paused} stand), {sums.resumes} resumes, {sums.regrets} regretted",
        f"{sums.reclaimed_gpu_hours:,.1f} GPU-hours reclaimed",
    ]
    if scene.frozen:
        parts.append("frozen")
    parts += [f"fault {fault}" for fault in scene.faults]
    return "; ".join(parts)


# ---- the report -----------------------------------------------------------------------------------------------------------------


class Share(msgspec.Struct, frozen=True):
    """One line of a table of the report."""

    name: str
    workloads: int
    held: float
    idle: float
    reclaimed: float
    pauses: int
    regrets: int
    waited: Seconds


class Report(msgspec.Struct, frozen=True):
    """The whole day."""

    title: str
    sums: Sums
    by_class: tuple[Share, ...]
    by_namespace: tuple[Share, ...]
    measured: tuple[str, ...]  # sentences on what it cost to find out


def tell(report: Report) -> None:
    """The closing report, to standard output."""
    sums = report.sums
    asked = sums.held_gpu_hours + sums.reclaimed_gpu_hours
    share = sums.reclaimed_gpu_hours / max(asked, 1e-9)
    click.echo()
    show.sentence(report.title)
    show.sentence(
        f"  {asked:,.0f} GPU-hours asked for; {sums.reclaimed_gpu_hours:,.0f} reclaimed ({share:.0%}), "
        f"{tell_money(sums)}; {sums.idle_gpu_hours:,.0f} more were idle: in their window or notice, kept by their owners, or too short"
    )
    show.sentence(
        f"  {sums.notices} notices, {sums.acks} answered with \"keep it\"; {sums.pauses} pauses, {sums.resumes} resumes, of which "
        f"{sums.complaints} by hand; {sums.regrets} pauses regretted within 15m; {units.humane(sums.waited)} waited in all"
    )
    if sums.frozen_cycles or sums.failed_cycles:
        show.sentence(f"  {sums.frozen_cycles} cycles frozen, {sums.failed_cycles} without a decision: nothing was paused in these")
    for name, groups in (("CLASS", report.by_class), ("NAMESPACE", report.by_namespace)):
        click.echo()
        show.table([name, "WORKLOADS", "HELD", "IDLE", "RECLAIMED", "PAUSES", "REGRETS", "WAITED"], [_cells(group) for group in groups])
    click.echo()
    for sentence in report.measured:
        show.sentence(f"  {sentence}")


def _cells(group: Share) -> Sequence[Any]:
    return (
        group.name, group.workloads, f"{group.held:,.0f} h", f"{group.idle:,.0f} h", f"{group.reclaimed:,.0f} h",
        group.pauses, group.regrets, units.humane(group.waited),
    )
