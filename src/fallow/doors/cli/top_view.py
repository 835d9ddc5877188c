"""`fallow top` as lines of a screen: sums and a bar, the views, the workloads, the chosen one, what can be pressed.

In: a TopState, columns and rows, the time. Out: as many lines as there are rows, each as wide as the screen at most.
Invariant: what somebody is asked stands in full, on as many lines as it takes; text from the cluster is never obeyed.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from fallow.doors.answers import rows as telling
from fallow.doors.answers import workloads as naming
from fallow.doors.cli import pages, show, top_state
from fallow.model import units
from fallow.model.units import Instant

_STATES: Final = {  # of a workload: its words, its colour
    "busy": ("busy", "active"), "idle": ("idle", "idle"), "told": ("told", "idle"), "kept": ("kept", "unknown"),
    "left": ("left alone", "idle"), "unknown": ("cannot tell", "unknown"), "paused": ("paused", "paused"),
    "resuming": ("coming back", "active"),
}
_COLUMNS: Final = ("NAMESPACE", "WORKLOAD", "GPUS", "MODEL", "STATE", "IDLE FOR", "$/H", "NEXT")
_RIGHT: Final = frozenset({"GPUS", "$/H"})
_SPARE: Final = ("MODEL", "$/H", "STATE")  # which a narrow screen does without, the first one first
_SHRINKS: Final = ("NEXT", "NAMESPACE", "WORKLOAD")
_LEAST: Final = 12
_KEYS: Final = "enter why  k keep  p pause  r resume  / filter  s sort  tab view  ? help  q end"


def draw(state: top_state.TopState, columns: int, rows: int, now: Instant) -> list[str]:
    head, foot = _draw_head(state, columns, now), _draw_foot(state, columns)
    head = head[: max(0, rows - len(foot) - 1)]  # what is asked goes before what is shown
    room = max(1, rows - len(head) - len(foot))
    if state.face in ("page", "help"):
        body = [Text.from_ansi(line) for line in state.page[state.scroll : state.scroll + room]]
    else:
        body = _draw_rows(state, columns, room)
    body += [Text()] * (room - len(body))
    return _render([*head, *body[:room], *foot][:rows], columns)


def _render(lines: Iterable[Text], columns: int) -> list[str]:
    console = Console(highlight=False, width=columns + 1, legacy_windows=False)
    drawn = []
    for line in lines:
        line.truncate(columns, overflow="ellipsis")
        with console.capture() as captured:
            console.print(line, end="", soft_wrap=True)
        drawn.append(captured.get())
    return drawn


# ---- above and below -------------------------------------------------------------------------------------------------


def _draw_head(state: top_state.TopState, columns: int, now: Instant) -> list[Text]:
    idle, active, unknown = (sum(getattr(row, f"{name}_instances") for row in state.rows)
                             for name in ("idle", "active", "unknown"))
    paused = sum(row.rest is not None for row in state.rows)
    cost = sum(row.idle_per_hour or 0.0 for row in state.rows)
    title = Text.assemble(("fallow top", "bold"), f"  {units.clock_time(now)} UTC  ")
    title.append(show.plain(state.source or "looking ..."))
    held = idle + active + unknown
    sums = Text.assemble(
        ("GPUS", "bold"), f" {held:,} held: ", (f"{active:,} busy", show.STYLES["active"]), ", ",
        (f"{idle:,} idle", show.STYLES["idle"]), f" (${cost:,.2f} an hour), ",
        (f"{unknown:,} cannot tell", show.STYLES["unknown"]), f"; {paused:,} paused",
    )
    bar = show.Bar(active, idle, unknown, max(held, 1), columns=max(1, columns - 2))
    drawn = Text.assemble(*((characters, show.STYLES[state]) for state, characters in bar.segments()))
    trouble = [Text(show.plain(line), show.STYLES["too many"]) for line in _wrap(state.failure, columns)[:3]]
    return [title, sums, drawn, _draw_views(state), *trouble]


def _draw_views(state: top_state.TopState) -> Text:
    counts = telling.count_views(state.rows)
    line = Text()
    for view in top_state.VIEWS:
        line.append(f" {view} {getattr(counts, view)} ", "reverse" if view == state.view else "")
        line.append(" ")
    line.append(f" by {state.sort}")
    if state.words or state.face == "filter":
        line.append(f"  / {show.plain(state.words)}{'_' if state.face == 'filter' else ''}", "bold")
    return line


def _draw_foot(state: top_state.TopState, columns: int) -> list[Text]:
    row = state.chosen
    if state.face == "confirm" and row is not None and state.asked is not None:
        asked = top_state.describe(state.asked, row)
        return [Text(line, f"bold {show.STYLES['idle']}") for line in _wrap(asked, columns)]
    if state.face == "filter":
        return [Text("type what the name, namespace or kind has; enter keeps it, escape ends it", "bold")]
    if state.face in ("page", "help"):
        return [Text("up and down scroll; escape goes back", "bold")]
    about = [] if row is None else [Text(line) for line in _wrap(_tell_chosen(row), columns)[:2]]
    said = [Text(line, "bold") for line in _wrap(state.message, columns)[:3]]
    return [*about, *said, Text(_KEYS, "dim")]


def _tell_chosen(row: telling.ApiRow) -> str:
    why = row.rest.reason if row.rest else row.skip_because or row.because
    return f"{top_state.name(row)} in {row.namespace}: {why}"


def _wrap(text: str, columns: int) -> list[str]:
    return textwrap.wrap(show.plain(text), max(20, columns - 1))


# ---- the workloads ---------------------------------------------------------------------------------------------------


def _draw_rows(state: top_state.TopState, columns: int, room: int) -> list[Text]:
    shown, place = state.shown, state.place
    if not shown:
        what = "nothing here" if state.rows or not state.at else "no workload holds a GPU"
        return [Text(what if state.at else "")]
    room -= 1
    first = min(max(0, place - room // 2), max(0, len(shown) - room))
    page = shown[first : first + room]
    cells = [_cells(row, state.at or 0.0) for row in shown]
    names, widths = _lay_out(cells, columns)
    head = Text(_line(names, list(names), widths), "bold")
    lines = [
        _draw_row(row, cells[first + at], names, widths, is_marked=first + at == place) for at, row in enumerate(page)
    ]
    return [head, *lines]


def _draw_row(
    row: telling.ApiRow, cells: dict[str, str], names: Sequence[str], widths: Sequence[int], *, is_marked: bool
) -> Text:
    line = Text(_line(names, [cells[name] for name in names], widths), "reverse" if is_marked else "")
    if "STATE" in names and not is_marked:
        at = names.index("STATE")
        start = sum(widths[:at]) + 2 * at
        line.stylize(show.STYLES[_STATES[row.state][1]], start, start + widths[at])
    return line


def _cells(row: telling.ApiRow, now: Instant) -> dict[str, str]:
    held = f"{row.idle_instances} of {row.held}" if row.is_partly_idle else str(row.held)
    if row.rest is not None and not row.held:
        held = "" if row.rest.gpus is None else f"({row.rest.gpus:g})"  # given back
    quiet = "" if row.idle_seconds is None else units.humane(row.idle_seconds)
    values = (
        row.namespace, f"{row.kind}/{row.name}", held, pages.name_models(row.models), _STATES[row.state][0],
        f"{quiet}+" if row.at_least and quiet else quiet,
        "" if row.idle_per_hour is None else f"{row.idle_per_hour:,.2f}", _tell_next(row, now),
    )
    return {name: show.plain(value) for name, value in zip(_COLUMNS, values, strict=True)}


def _tell_next(row: telling.ApiRow, now: Instant) -> str:
    """What comes next and when, or why nothing does; of what rests, since when."""
    if row.rest is not None:
        since = units.read_instant(row.rest.at)
        return "" if since is None else f"for {units.humane(now - since)}"
    if row.state == "busy" and not row.is_partly_idle:
        return ""
    if row.next is None:
        return naming.next_step(telling.line(row))
    at = units.read_instant(row.next.at)
    span = units.humane(max(0.0, at - now)) if at is not None else ""
    if row.next.type == "keepEnds":
        return f"kept for {span}"
    return f"{row.next.type} {'next' if at is None else 'now' if at <= now else f'in {span}'}"


def _lay_out(cells: Sequence[dict[str, str]], columns: int) -> tuple[list[str], list[int]]:
    """Which columns, and how wide: the spare ones go first, then long names are cut (the chosen one stands in full
    below)."""
    names = list(_COLUMNS)
    need = {name: max(len(name), *(cell_len(each[name]) for each in cells)) for name in names}
    for spare in _SPARE:
        if sum(need[name] + 2 for name in names) - 2 > columns:
            names.remove(spare)
    for name in _SHRINKS:
        over = sum(need[each] + 2 for each in names) - 2 - columns
        if over > 0:
            need[name] = min(need[name], max(_LEAST, need[name] - over))
    return names, [need[name] for name in names]


def _line(names: Sequence[str], cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(_fit(cell, width, name) for name, cell, width in zip(names, cells, widths, strict=True))


def _fit(cell: str, width: int, name: str) -> str:
    if cell_len(cell) > width:
        cell = f"{set_cell_size(cell, width - 1)}\N{HORIZONTAL ELLIPSIS}"
    padding = " " * (width - cell_len(cell))
    return padding + cell if name in _RIGHT else cell + padding
