"""What exporters write: the Prometheus text format 0.0.4 and OpenMetrics, read fast.

In: the bytes of a page, chunk by chunk. Out: `Page`: for each sample of a wanted metric the number of its series and
its value; a `Reader` belongs to one exporter and remembers its lines, because the next page has the same ones with
other values. Lines of other metrics are passed over by their first letters and never looked into.
Invariant: a page is taken whole or not at all. A line of a wanted metric that cannot be read, an end that is missing,
or more series than anybody can mean make it Unreadable.
"""

import io
import re
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

MOST_SERIES = 20_000  # wanted ones of one page; 16 GPUs in 7 instances, each shared by 10 pods, have about as many
LONGEST_LINE = 64 * 1024
_FORGET_ABOVE = 1_000  # lines that are no more on the page, before all are read anew

_NAME = re.compile(rb"[a-zA-Z_:][a-zA-Z0-9_:]*+")
_LINE = re.compile(
    rb'(?P<series>(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*+)(?:[ \t]*+\{(?P<labels>(?:[^"}]|"(?:[^"\\]|\\.)*+")*+)\})?)'
    rb"[ \t]++(?P<value>[^ \t\r\n#]++)(?:[ \t]++(?P<at>[-+0-9.eE]++))?[ \t]*+(?:#.*+)?\r?\n?"
)
_LABEL = re.compile(rb'[ \t]*+([a-zA-Z_][a-zA-Z0-9_]*+)[ \t]*+=[ \t]*+"((?:[^"\\]|\\.)*+)"[ \t]*+(?:,|\Z)')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", '"': '"', "\\": "\\"}


class Unreadable(ValueError):
    """This is no page of metrics, or not all of it."""


class Series(msgspec.Struct, frozen=True):
    metric: str
    labels: dict[str, str]


class Page(NamedTuple):
    """numbers[i] is the series (in Reader.series) of values[i]; `stamps`: the few with their own time, by index."""

    numbers: list[int]
    values: list[float]
    stamps: dict[int, float]


class Reader:
    """Reads the pages of one exporter. `series` only grows until `generation` changes: then all numbers are new."""

    def __init__(self, wanted: Iterable[str]) -> None:
        self.series: list[Series] = []
        self.generation = 0
        self._wanted = frozenset(name.encode() for name in wanted)
        self._beginnings = tuple(sorted({name[:5] for name in self._wanted}))
        self._numbers: dict[bytes, int] = {}
        self._last = 0  # series on the last page

    def begin(self, *, is_openmetrics: bool) -> "IncomingPage":
        if len(self.series) > 2 * self._last + _FORGET_ABOVE:
            self.series, self._numbers, self.generation = [], {}, self.generation + 1
        return IncomingPage(self, is_openmetrics)

    def note(self, page: Page) -> None:
        self._last = len(page.numbers)

    def pick(self, lines: Iterable[bytes], into: "IncomingPage") -> None:
        """The wanted samples of these lines. The loop that costs: a known line takes two look-ups and no parsing."""
        beginnings, find = self._beginnings, self._numbers.get
        add_number, add_value = into.numbers.append, into.texts.append
        for line in lines:
            if not line.startswith(beginnings):
                continue
            head, _, value = line.rpartition(b" ")
            number = find(head)
            if number is not None:
                add_number(number)
                add_value(value)
            elif (name := _NAME.match(line)) and name[0] in self._wanted:
                self._read(line, into)

    def _read(self, line: bytes, into: "IncomingPage") -> None:
        found = _LINE.fullmatch(line)
        if found is None:
            raise Unreadable(f"a line of {_shown(line)} cannot be read")
        series = found["series"]
        number = self._numbers.get(series)
        if number is None:
            number = len(self.series)
            self.series.append(Series(found["name"].decode(), _read_labels(found["labels"] or b"")))
            self._numbers[series] = number
        if found["at"]:
            into.stamps[len(into.numbers)] = _number(found["at"]) * (1.0 if into.is_openmetrics else 0.001)
        into.numbers.append(number)
        into.texts.append(found["value"])


class IncomingPage:
    """One page on its way in."""

    def __init__(self, reader: Reader, is_openmetrics: bool) -> None:
        self.is_openmetrics = is_openmetrics
        self.numbers: list[int] = []
        self.texts: list[bytes] = []
        self.stamps: dict[int, float] = {}
        self._reader = reader
        self._rest = b""
        self._ending = b""
        self._begun = False

    def feed(self, chunk: bytes) -> None:
        """Raises Unreadable."""
        if not self._begun and (start := chunk.lstrip()):
            self._begun = True
            if start.startswith(b"<"):
                raise Unreadable("a web page instead of metrics")
        whole, newline, rest = (self._rest + chunk).rpartition(b"\n")
        self._rest = rest
        if len(rest) > LONGEST_LINE:
            raise Unreadable(f"a line longer than {LONGEST_LINE} bytes")
        if newline:
            self._reader.pick(io.BytesIO(whole + newline), self)
            self._ending = whole[-8:]
        if len(self.numbers) > MOST_SERIES:
            raise Unreadable(f"more than {MOST_SERIES} series")

    def end(self) -> Page:
        """All of it. Raises Unreadable where the end is missing."""
        ending = self._rest if self._rest else self._ending
        if self.is_openmetrics and ending.rstrip(b"\r").rpartition(b"\n")[2] != b"# EOF":
            raise Unreadable("the end of the page is missing")
        if self._rest and not self.is_openmetrics:
            raise Unreadable("the last line is cut")
        if any(b"_" in text for text in self.texts):
            raise Unreadable("a value that is no number")  # Python would read 1_0 as ten
        page = Page(self.numbers, [_number(text) for text in self.texts], self.stamps)
        self._reader.note(page)
        return page


def _number(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        raise Unreadable(f"{_shown(text)} is no number") from None


def _read_labels(text: bytes) -> dict[str, str]:
    labels: dict[str, str] = {}
    index = 0
    while index < len(text):
        found = _LABEL.match(text, index)
        if found is None:
            if not text[index:].strip():
                break
            raise Unreadable(f"labels of {_shown(text)} cannot be read")
        try:
            labels[found[1].decode()] = _ESCAPE.sub(_unescape, found[2].decode())
        except UnicodeDecodeError:
            raise Unreadable("a label that is not UTF-8") from None
        index = found.end()
    return labels


def _unescape(found: re.Match[str]) -> str:
    return _ESCAPED.get(found[1], found[0])


def _shown(text: bytes) -> str:
    return repr(text[:60].decode(errors="replace"))

