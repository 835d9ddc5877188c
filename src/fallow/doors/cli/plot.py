"""Curves, drawn: with dots in a terminal, and as SVG for a report.

In: a Chart of plain numbers. Out: text of a given width and height, or an SVG document. Both show the same curves, marks and axes.
Invariant: a number that is not finite is not drawn; labels are shown, never obeyed (no markup, no control characters).
"""

import importlib
import itertools
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from xml.sax import saxutils

import msgspec

Point = tuple[float, float]

_COLOURS = ("#2563eb", "#d97706", "#059669", "#db2777", "#7c3aed", "#475569")
_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 880, 480, 76, 56, 24, 64  # of the SVG, in its own units
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # Braille: the bit of each of a cell's 4 x 2 dots
_BLANK = 0x2800


class CannotDraw(Exception):
    """One sentence on what is missing for the picture that was asked for."""


class Curve(msgspec.Struct, frozen=True):
    label: str
    points: tuple[Point, ...]


class Mark(msgspec.Struct, frozen=True):
    """A point that has a name. In the terminal it is shown by its `letter`."""

    letter: str
    label: str
    at: Point


class Chart(msgspec.Struct, frozen=True):
    title: str
    across: str  # what the horizontal axis is
    up: str
    curves: tuple[Curve, ...]
    marks: tuple[Mark, ...] = ()


class _Frame(msgspec.Struct, frozen=True):
    """The rectangle of numbers that is shown. Both axes begin at 0: half an axis makes a small difference look large."""

    most_across: float
    most_up: float

    def place(self, point: Point) -> Point:
        """Between 0 and 1 on both axes."""
        return point[0] / self.most_across, point[1] / self.most_up


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


# ---- in a terminal ------------------------------------------------------------------------------------------------------------


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
        steps = max(1, math.ceil(max(abs(end[0] - start[0]) * self.columns * 2, abs(end[1] - start[1]) * self.rows * 4)))
        for step in range(steps + 1):
            part = step / steps
            self.dot(start[0] + (end[0] - start[0]) * part, start[1] + (end[1] - start[1]) * part)

    def letter(self, place: Point, text: str) -> None:
        self._letters[round((1 - place[1]) * (self.rows - 1)), round(place[0] * (self.columns - 1))] = text

    def lines(self) -> Iterator[str]:
        for y, row in enumerate(self._bits):
            cells = (self._letters.get((y, x)) or (chr(_BLANK + bits) if bits else " ") for x, bits in enumerate(row))
            yield "".join(cells).rstrip()


def draw_text(chart: Chart, columns: int = 72, rows: int = 16) -> str:
    """The chart in dots, its axes in numbers, its marks by letters that are explained below."""
    frame, canvas = _frame(chart), _Canvas(columns, rows)
    for curve in chart.curves:
        places = [frame.place(point) for point in _finite(curve.points)]
        for start, end in itertools.pairwise(places):
            canvas.line(start, end)
        for place in places[:1]:
            canvas.dot(*place)
    for mark in chart.marks:
        canvas.letter(frame.place(mark.at), mark.letter[:1])
    return "\n".join([chart.title, chart.up, *_with_axes(canvas, frame, chart.across), *_legend(chart)])


def _with_axes(canvas: _Canvas, frame: _Frame, across: str) -> Iterator[str]:
    ticks = {round(part * (canvas.rows - 1)): _number(frame.most_up * (1 - part)) for part in (0.0, 0.25, 0.5, 0.75, 1.0)}
    margin = max(map(len, ticks.values()))
    for y, line in enumerate(canvas.lines()):
        yield f"{ticks.get(y, ''):>{margin}} {'┤' if y in ticks else '│'}{line}"
    yield f"{'':>{margin}} └{'─' * canvas.columns}"
    half, full = _number(frame.most_across / 2), _number(frame.most_across)
    scale = f"0{half:>{canvas.columns // 2}}{full:>{canvas.columns - canvas.columns // 2 - 1}}"
    yield f"{'':>{margin}}  {scale}"
    yield f"{'':>{margin}}  {across:>{canvas.columns}}"


def _legend(chart: Chart) -> Iterator[str]:
    if len(chart.curves) > 1:
        yield "  curves: " + ", ".join(curve.label for curve in chart.curves)
    for mark in chart.marks:
        yield f"  {mark.letter[:1]}  {mark.label}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:.3g}"


# ---- as a picture -------------------------------------------------------------------------------------------------------------


def draw_svg(chart: Chart) -> str:
    """The same chart as an SVG document of its own: no script, no font, nothing from outside."""
    frame = _frame(chart)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _text(_LEFT, 24, chart.title, size=17),
        _text(_LEFT, 44, chart.up, colour="#475569"),
        _text(_WIDTH - _RIGHT, _HEIGHT - 14, chart.across, anchor="end", colour="#475569"),
        *_grid(frame),
        *itertools.chain.from_iterable(_curve(frame, curve, number) for number, curve in enumerate(chart.curves)),
        *itertools.chain.from_iterable(_mark(frame, mark) for mark in chart.marks),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _at(frame: _Frame, point: Point) -> Point:
    across, up = frame.place(point)
    return _LEFT + across * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM)


def _grid(frame: _Frame) -> Iterator[str]:
    for part in (0.0, 0.25, 0.5, 0.75, 1.0):
        across, up = frame.most_across * part, frame.most_up * part
        x, y = _at(frame, (across, up))
        yield f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#e2e8f0"/>'
        yield _text(_LEFT - 8, y + 4, _number(up), anchor="end")
        yield _text(x, _HEIGHT - _BOTTOM + 20, _number(across), anchor="middle")


def _curve(frame: _Frame, curve: Curve, number: int) -> Iterator[str]:
    colour = _COLOURS[number % len(_COLOURS)]
    places = [_at(frame, point) for point in _finite(curve.points)]
    if places:
        yield f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}"/>'
        yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places)
        yield _text(_WIDTH - _RIGHT, 24 + 18 * number, curve.label, anchor="end", colour=colour)


def _mark(frame: _Frame, mark: Mark) -> Iterator[str]:
    x, y = _at(frame, mark.at)
    right = x > _WIDTH * 0.6
    yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="7" fill="none" stroke="#dc2626" stroke-width="2"/>'
    yield _text(x - 12 if right else x + 12, y - 8, mark.label, anchor="end" if right else "start", colour="#dc2626")


def _text(x: float, y: float, text: str, *, size: int = 13, anchor: str = "start", colour: str = "#0f172a") -> str:
    shown = saxutils.escape("".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text))
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}">{shown}</text>'


def save(chart: Chart, svg: str | None, png: str | None) -> list[str]:
    """Writes the pictures asked for; their names. PNG needs a renderer that is not ours."""
    written = []
    for name, draw in ((svg, _as_svg), (png, _as_png)):
        if name is not None:
            picture = draw(chart)
            try:
                Path(name).write_bytes(picture)
            except OSError as problem:
                raise CannotDraw(f"{name} cannot be written: {problem.strerror}") from None
            written.append(name)
    return written


def _as_svg(chart: Chart) -> bytes:
    return draw_svg(chart).encode()


def _as_png(chart: Chart) -> bytes:
    try:
        renderer = importlib.import_module("cairosvg")
    except ImportError:
        raise CannotDraw("--png needs the package cairosvg, which is not installed; --svg needs nothing") from None
    made: bytes = renderer.svg2png(bytestring=draw_svg(chart).encode(), scale=2.0)
    return made
