"""Curves, drawn: with dots in a terminal, and as SVG or PNG for a report.

In: a Chart of plain numbers. Out: text of a given width and height, an SVG document, or a PNG. All show the same curves, marks and axes;
the two pictures are made of the very same strokes, circles and words. PNG needs Pillow, which is imported only then.
Invariant: a number that is not finite is not drawn; labels are shown, never obeyed (no markup, no control characters).
"""

import importlib
import io
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias
from xml.sax import saxutils

import msgspec

Point = tuple[float, float]

_COLOURS = ("#2563eb", "#d97706", "#059669", "#db2777", "#7c3aed", "#475569")
_INK, _GREY, _GRID, _RED = "#0f172a", "#64748b", "#e2e8f0", "#dc2626"
_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 880, 480, 76, 72, 32, 64  # of the pictures, in units of the SVG
_LINE = 20  # of the legend
_APART = 34  # names of points that would stand nearer are left out
_FINE, _SCALE = 2, 2  # a PNG has so many pixels a unit, and is drawn so much finer for smooth edges
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # Braille: the bit of each of a cell's 4 x 2 dots
_BLANK = 0x2800


class CannotDraw(Exception):
    """One sentence on what is missing for the picture that was asked for."""


class Curve(msgspec.Struct, frozen=True):
    """`names`: of its points, as many, shown in pictures only."""

    label: str
    points: tuple[Point, ...]
    names: tuple[str, ...] = ()


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


class _Stroke(msgspec.Struct, frozen=True):
    points: tuple[Point, ...]
    colour: str
    width: float = 1.0


class _Circle(msgspec.Struct, frozen=True):
    at: Point
    radius: float
    fill: str
    edge: str = ""


class _Words(msgspec.Struct, frozen=True):
    """`at`: where their baseline begins, ends, or has its middle."""

    at: Point
    text: str
    colour: str = _INK
    size: int = 13
    anchor: Literal["start", "middle", "end"] = "start"


_Shape: TypeAlias = _Stroke | _Circle | _Words


def _compose(chart: Chart) -> list[_Shape]:
    """Everything that is in the picture, what lies above last."""
    frame = _frame(chart)
    return [
        _Words((_LEFT, 30), chart.title, size=17),
        _Words((_LEFT, 54), chart.up, _GREY),
        _Words((_WIDTH - _RIGHT, _HEIGHT - 14), chart.across, _GREY, anchor="end"),
        *_lay_grid(frame),
        *itertools.chain.from_iterable(_lay_curve(frame, curve, number) for number, curve in enumerate(chart.curves)),
        *itertools.chain.from_iterable(_lay_mark(_at(frame, mark.at), mark.letter[:1]) for mark in chart.marks if _finite([mark.at])),
        *_lay_legend(chart),
    ]


def _at(frame: _Frame, point: Point) -> Point:
    across, up = frame.place(point)
    return _LEFT + across * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM)


def _lay_grid(frame: _Frame) -> Iterator[_Shape]:
    for part in (0.0, 0.25, 0.5, 0.75, 1.0):
        across, up = frame.most_across * part, frame.most_up * part
        x, y = _at(frame, (across, up))
        yield _Stroke(((_LEFT, y), (_WIDTH - _RIGHT, y)), _GRID if part else _GREY)
        yield _Words((_LEFT - 10, y + 4), _number(up), _GREY, anchor="end")
        yield _Words((x, _HEIGHT - _BOTTOM + 20), _number(across), _GREY, anchor="middle")


def _lay_curve(frame: _Frame, curve: Curve, number: int) -> Iterator[_Shape]:
    colour = _COLOURS[number % len(_COLOURS)]
    places = [_at(frame, point) for point in _finite(curve.points)]
    if places:
        yield _Stroke(tuple(places), colour, 2.5)
        yield from (_Circle(place, 3.5, colour) for place in places if len(places) <= 40)
    last = (-math.inf, -math.inf)
    for point, name in zip(curve.points, curve.names, strict=False):
        if _finite([point]) and math.dist(last, here := _at(frame, point)) >= _APART:
            last = here
            is_low = here[1] + 20 > _HEIGHT - _BOTTOM
            yield _Words((here[0] + (10 if is_low else 7), here[1] + (0 if is_low else 17)), name, _GREY, 11)


def _lay_mark(at: Point, letter: str) -> Iterator[_Shape]:
    yield _Circle(at, 10, "#ffffff", _RED)
    yield _Words((at[0], at[1] + 4.5), letter, _RED, anchor="middle")


def _lay_legend(chart: Chart) -> Iterator[_Shape]:
    """In the corner below on the right, where a curve of savings never is."""
    curves = chart.curves if len(chart.curves) > 1 else ()
    x, y = _WIDTH - _RIGHT - 10, _HEIGHT - _BOTTOM - 16 - _LINE * (len(curves) + len(chart.marks) - 1)
    for number, curve in enumerate(curves):
        yield _Words((x, y + _LINE * number), curve.label, _COLOURS[number % len(_COLOURS)], anchor="end")
    for number, mark in enumerate(chart.marks, len(curves)):
        yield _Words((x, y + _LINE * number), f"{mark.letter[:1]}  {mark.label}", _RED, anchor="end")


def _plain(text: str) -> str:
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def draw_svg(chart: Chart) -> str:
    """The chart as an SVG document of its own: no script, no font, nothing from outside."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
        'font-family="sans-serif">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        *map(_as_element, _compose(chart)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _as_element(shape: _Shape) -> str:
    match shape:
        case _Stroke(points=points, colour=colour, width=width):
            places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            return f'<polyline fill="none" stroke="{colour}" stroke-width="{width}" stroke-linejoin="round" points="{places}"/>'
        case _Circle(at=(x, y), radius=radius, fill=fill, edge=edge):
            return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{fill}" stroke="{edge or "none"}" stroke-width="2"/>'
        case _Words(at=(x, y), text=text, colour=colour, size=size, anchor=anchor):
            shown = saxutils.escape(_plain(text))
            return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}">{shown}</text>'


def draw_png(chart: Chart) -> bytes:
    """The same picture in pixels, drawn finer than it is shown, so that its edges are smooth."""
    try:
        images, pens, fonts = (importlib.import_module(f"PIL.{name}") for name in ("Image", "ImageDraw", "ImageFont"))
    except ImportError:
        raise CannotDraw("--png needs the package Pillow: pip install 'fallow[png]'; --svg needs nothing") from None
    scale = _SCALE * _FINE
    image = images.new("RGB", (_WIDTH * scale, _HEIGHT * scale), "white")
    pen = pens.Draw(image)
    for shape in _compose(chart):
        _paint(pen, fonts, shape, scale)
    made = io.BytesIO()
    image.resize((_WIDTH * _SCALE, _HEIGHT * _SCALE), images.Resampling.LANCZOS).save(made, "PNG", optimize=True)
    return made.getvalue()


def _paint(pen: Any, fonts: Any, shape: _Shape, scale: int) -> None:
    match shape:
        case _Stroke(points=points, colour=colour, width=width):
            pen.line(_enlarge(points, scale), colour, round(width * scale), joint="curve")
        case _Circle(at=at, radius=radius, fill=fill, edge=edge):
            pen.circle(*_enlarge([at], scale), radius * scale, fill, edge or None, 2 * scale if edge else 0)
        case _Words(at=at, text=text, colour=colour, size=size, anchor=anchor):
            place = {"start": "ls", "middle": "ms", "end": "rs"}[anchor]  # on the baseline
            pen.text(*_enlarge([at], scale), _plain(text), colour, fonts.load_default(size * scale), place)


def _enlarge(points: Sequence[Point], scale: int) -> list[Point]:
    return [(x * scale, y * scale) for x, y in points]


def save(chart: Chart, svg: str | None, png: str | None) -> list[str]:
    """Writes the pictures asked for; their names."""
    written = []
    for name, draw in ((svg, _svg_bytes), (png, draw_png)):
        if name is not None:
            picture = draw(chart)
            try:
                Path(name).write_bytes(picture)
            except OSError as problem:
                raise CannotDraw(f"{name} cannot be written: {problem.strerror}") from None
            written.append(name)
    return written


def _svg_bytes(chart: Chart) -> bytes:
    return draw_svg(chart).encode()
