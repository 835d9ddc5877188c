"""Curves, drawn: with dots in a terminal, and as SVG for a report.

In: a Chart of plain numbers. Out: text of a given width and height, or an SVG document; both show the same curves,
marks and axes.
Invariant: a number that is not finite is not drawn; labels are shown, never obeyed (no markup, no control characters).
"""

import itertools
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from xml.sax import saxutils

import click
import msgspec

from fallow.doors.cli import show

Point = tuple[float, float]

_COLOURS = ("#2563eb", "#d97706", "#059669", "#db2777", "#7c3aed", "#475569")
_INK, _GREY, _GRID, _RED = "#0f172a", "#64748b", "#e2e8f0", "#dc2626"
_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 880, 480, 76, 72, 32, 64  # of the picture, in units of the SVG
_LINE = 20  # of the legend
_APART = 34  # names of points that would stand nearer are left out
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # Braille: the bit of each of a cell's 4 x 2 dots
_BLANK = 0x2800


class CannotDraw(click.UsageError):
    """One sentence on why there is no picture."""


class ChartCurve(msgspec.Struct, frozen=True):
    """`names`: of its points, as many, shown in the picture only."""

    label: str
    points: tuple[Point, ...]
    names: tuple[str, ...] = ()


class ChartMark(msgspec.Struct, frozen=True):
    """A point that has a name. In the terminal it is shown by its `letter`."""

    letter: str
    label: str
    at: Point


class Chart(msgspec.Struct, frozen=True):
    title: str
    across: str  # what the horizontal axis is
    up: str
    curves: tuple[ChartCurve, ...]
    marks: tuple[ChartMark, ...] = ()


class _Frame(msgspec.Struct, frozen=True):
    """The rectangle of numbers that is shown. Both axes begin at 0: half an axis makes small differences look large."""

    most_across: float
    most_up: float

    def scale(self, point: Point) -> Point:
        """Between 0 and 1 on both axes."""
        return point[0] / self.most_across, point[1] / self.most_up

    def locate(self, point: Point) -> Point:
        """In units of the SVG."""
        across, up = self.scale(point)
        return _LEFT + across * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM)


def _finite(points: Iterable[Point]) -> tuple[Point, ...]:
    return tuple(point for point in points if all(map(math.isfinite, point)))


def _frame(chart: Chart) -> _Frame:
    points = _finite([*(point for curve in chart.curves for point in curve.points), *(mark.at for mark in chart.marks)])
    if not points:
        raise CannotDraw("there is nothing to draw: the history holds no pause for any window")
    return _Frame(_round_up(max(point[0] for point in points)), _round_up(max(point[1] for point in points)))


def _round_up(value: float) -> float:
    """The next number that looks well at the end of an axis."""
    if value <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next(step * unit for step in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if step * unit >= value * (1 - 1e-9))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:.3g}"


class _Canvas:
    """Cells of 4 x 2 dots each; a letter laid on a cell hides its dots."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self._bits = [[0] * columns for _ in range(rows)]
        self._letters: dict[tuple[int, int], str] = {}

    def dot(self, across: float, up: float) -> None:
        x, y = round(across * (self.columns * 2 - 1)), round((1 - up) * (self.rows * 4 - 1))
        self._bits[y // 4][x // 2] |= _DOTS[y % 4][x % 2]

    def line(self, start: Point, end: Point) -> None:
        across, up = end[0] - start[0], end[1] - start[1]
        steps = max(1, math.ceil(max(abs(across) * self.columns * 2, abs(up) * self.rows * 4)))
        for step in range(steps + 1):
            self.dot(start[0] + across * (step / steps), start[1] + up * (step / steps))

    def letter(self, at: Point, text: str) -> None:
        self._letters[round((1 - at[1]) * (self.rows - 1)), round(at[0] * (self.columns - 1))] = text

    def lines(self) -> Iterator[str]:
        for y, row in enumerate(self._bits):
            cells = (self._letters.get((y, x)) or (chr(_BLANK + bits) if bits else " ") for x, bits in enumerate(row))
            yield "".join(cells).rstrip()


def draw_text(chart: Chart, columns: int = 72, rows: int = 16) -> str:
    """The chart in dots, its axes in numbers, its marks by letters that are explained below."""
    frame, canvas = _frame(chart), _Canvas(columns, rows)
    for curve in chart.curves:
        points = [frame.scale(point) for point in _finite(curve.points)]
        for start, end in itertools.pairwise(points):
            canvas.line(start, end)
        for point in points[:1]:
            canvas.dot(*point)
    for mark in chart.marks:
        canvas.letter(frame.scale(mark.at), mark.letter[:1])
    return "\n".join([chart.title, chart.up, *_with_axes(canvas, frame, chart.across), *_legend(chart)])


def _with_axes(canvas: _Canvas, frame: _Frame, across: str) -> Iterator[str]:
    parts = (0.0, 0.25, 0.5, 0.75, 1.0)
    ticks = {round(part * (canvas.rows - 1)): _number(frame.most_up * (1 - part)) for part in parts}
    margin = max(map(len, ticks.values()))
    for y, line in enumerate(canvas.lines()):
        yield f"{ticks.get(y, ''):>{margin}} {'┤' if y in ticks else '│'}{line}"
    yield f"{'':>{margin}} └{'─' * canvas.columns}"
    half, full = _number(frame.most_across / 2), _number(frame.most_across)
    yield f"{'':>{margin}}  0{half:>{canvas.columns // 2}}{full:>{canvas.columns - canvas.columns // 2 - 1}}"
    yield f"{'':>{margin}}  {across:>{canvas.columns}}"


def _legend(chart: Chart) -> Iterator[str]:
    if len(chart.curves) > 1:
        yield "  curves: " + ", ".join(curve.label for curve in chart.curves)
    for mark in chart.marks:
        yield f"  {mark.letter[:1]}  {mark.label}"


def check_file(svg: str) -> None:
    """What can be known of a file before anything is worked out for it. Raises ValueError."""
    path = Path(svg.replace("\0", ""))
    why = next((why for is_so, why in (
        ("\0" in svg, "embedded null byte"), (path.is_dir(), "Is a directory"),
        (not path.parent.exists(), "No such file or directory"),
        (not path.parent.is_dir(), "Not a directory"),
        (not os.access(path if path.exists() else path.parent, os.W_OK), "Permission denied"),
    ) if is_so), "")
    if why:
        raise ValueError(f"{svg} cannot be written: {why}")


def svg_option(help: str) -> click.Option:
    return click.Option(["--svg"], metavar="FILE", help=help, callback=show.checked(check_file))


def save(chart: Chart, svg: str | None) -> None:
    """Writes the picture, if a file for it was named; comes last, so that nothing else is lost where it cannot."""
    if svg is None:
        return
    try:
        Path(svg).write_bytes(draw_svg(chart).encode())
    except (OSError, ValueError) as problem:  # a name with a NUL is a ValueError
        why = getattr(problem, "strerror", None) or problem
        raise CannotDraw(show.plain(f"--svg: {svg} cannot be written: {why}")) from None
    click.echo(show.plain(f"written: {svg}"), err=True)


def draw_svg(chart: Chart) -> str:
    """The chart as an SVG document of its own: no script, no font, nothing from outside; what lies above comes last."""
    frame = _frame(chart)
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}"'
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>', _words((_LEFT, 30), chart.title, size=17),
        _words((_LEFT, 54), chart.up, _GREY),
        _words((_WIDTH - _RIGHT, _HEIGHT - 14), chart.across, _GREY, anchor="end"), *_draw_grid(frame),
        *(shape for number, curve in enumerate(chart.curves) for shape in _draw_curve(frame, curve, number)),
        *(shape for mark in chart.marks if _finite([mark.at]) for shape in _draw_mark(frame, mark)),
        *_draw_legend(chart), "</svg>\n",
    ])


def _stroke(points: Sequence[Point], colour: str, width: float = 1.0) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline fill="none" stroke="{colour}" stroke-width="{width}" stroke-linejoin="round" points="{path}"/>'


def _circle(at: Point, radius: float, fill: str, edge: str = "none") -> str:
    return f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="{radius}" fill="{fill}" stroke="{edge}" stroke-width="2"/>'


def _words(at: Point, text: str, colour: str = _INK, size: int = 13, anchor: str = "start") -> str:
    """`at`: where their baseline starts, ends, or has its middle."""
    where = f'x="{at[0]:.1f}" y="{at[1]:.1f}" font-size="{size}" text-anchor="{anchor}"'
    return f'<text {where} fill="{colour}">{saxutils.escape(show.plain(text))}</text>'


def _draw_grid(frame: _Frame) -> Iterator[str]:
    for part in (0.0, 0.25, 0.5, 0.75, 1.0):
        across, up = frame.most_across * part, frame.most_up * part
        x, y = frame.locate((across, up))
        yield _stroke(((_LEFT, y), (_WIDTH - _RIGHT, y)), _GRID if part else _GREY)
        yield _words((_LEFT - 10, y + 4), _number(up), _GREY, anchor="end")
        yield _words((x, _HEIGHT - _BOTTOM + 20), _number(across), _GREY, anchor="middle")


def _draw_curve(frame: _Frame, curve: ChartCurve, number: int) -> Iterator[str]:
    colour = _COLOURS[number % len(_COLOURS)]
    points = [frame.locate(point) for point in _finite(curve.points)]
    if points:
        yield _stroke(points, colour, 2.5)
        yield from (_circle(point, 3.5, colour) for point in points if len(points) <= 40)
    last = (-math.inf, -math.inf)
    for point, name in zip(curve.points, curve.names, strict=False):
        if _finite([point]) and math.dist(last, here := frame.locate(point)) >= _APART:
            last = here
            right, down = (10, 0) if here[1] + 20 > _HEIGHT - _BOTTOM else (7, 17)  # beside it where it stands low
            yield _words((here[0] + right, here[1] + down), name, _GREY, 11)


def _draw_mark(frame: _Frame, mark: ChartMark) -> Iterator[str]:
    x, y = frame.locate(mark.at)
    yield _circle((x, y), 10, "#ffffff", _RED)
    yield _words((x, y + 4.5), mark.letter[:1], _RED, anchor="middle")


def _draw_legend(chart: Chart) -> Iterator[str]:
    """In the corner below on the right, where a curve of savings never is."""
    curves = chart.curves if len(chart.curves) > 1 else ()
    lines = [(curve.label, _COLOURS[number % len(_COLOURS)]) for number, curve in enumerate(curves)]
    lines += [(f"{mark.letter[:1]}  {mark.label}", _RED) for mark in chart.marks]
    top = _HEIGHT - _BOTTOM - 16 - _LINE * (len(lines) - 1)
    for number, (text, colour) in enumerate(lines):
        yield _words((_WIDTH - _RIGHT - 10, top + _LINE * number), text, colour, anchor="end")
