"""As much PromQL as we ask ourselves (observe/usage: queries.py, share_use.py, pod_use.py, hurting.py), and no more.

In: the text of a question, an instant, the samples. Out: an instant vector as the real engine computes it, or NotAsked
for whatever is not known here: no question that is not understood gets an answer.
Known are selectors; max_, min_, avg_, count_, last_, present_ and quantile_over_time, changes and increase of a range,
all with an offset, and of a question asked again every so often; timestamp and label_replace; sums, differences and
ratios of two vectors; a vector times or by a number; ==, !=, >=, > and < a number; and, or; max, min, avg, sum and
count, by labels.
"""

import itertools
import math
import operator
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, TypeAlias

import msgspec

from fallow.model import patterns
from fallow.model.units import Instant, Seconds
from fallow.sim.servers.prometheus import samples

Labels: TypeAlias = Mapping[str, str]
NAME: Final = "__name__"

_TOKEN = re.compile(
    r"""\s*(?:(?P<word>[a-zA-Z_][a-zA-Z0-9_:]*)|(?P<length>(?:\d+(?:ms|[smhdwy]))+)|(?P<number>\d+(?:\.\d+)?(?:e[+-]?\d+)?)
    |(?P<text>"(?:[^"\\\n]|\\.)*")|(?P<sign>=~|!~|!=|==|>=|[=<>(){}\[\],:*/+-]))""", re.VERBOSE,
)
_LENGTHS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0, "y": 31536000.0}
_LENGTH = re.compile(r"(\d+)(ms|[smhdwy])")
_ESCAPED = re.compile(r"\\(.)")
_DEEPEST = 50  # questions within questions; ours are 4 deep
_LEAST_STEP = 60.0  # of what is asked again: samples are a minute apart
_MOST_AGAIN = 2  # side by side
_MOST_PARTS = 200  # in a row: each is computed within the next


_SMALL: Final = (
    "this is the demo's Prometheus, which understands only what fallow itself asks, such as "
    "max by (Hostname) (max_over_time(DCGM_FI_DEV_GPU_UTIL[30m])); a real one understands all of PromQL"
)


class NotAsked(Exception):
    """A question of which this engine does not know the answer."""


class Element(NamedTuple):
    """One series of an instant vector."""

    labels: Labels
    value: float


class Asked(NamedTuple):
    """When is asked, of what. `behind`: how far the samples' clock is behind that of whoever asks. `chosen`: what each
    selector chose, for who asks again and again of the same samples: by it a subquery of a day takes 1.5 s, not 8."""

    at: Instant
    kept: samples.KeptSamples
    behind: Seconds = 0.0
    chosen: "dict[int, list[samples.KeptSeries]] | None" = None


Vector: TypeAlias = list[Element]
Question: TypeAlias = Callable[[Asked], Vector]
OverTime: TypeAlias = Callable[["RangePart"], float | None]


class RangePart(NamedTuple):
    """The samples of one series in a range; at least one."""

    times: "array[float]"
    values: "array[float]"
    after: Instant
    until: Instant


class SeriesSelector(msgspec.Struct, frozen=True):
    metric: str
    matchers: tuple[tuple[str, Callable[[str], bool]], ...]

    def choose(self, moment: Asked) -> list[samples.KeptSeries]:
        if moment.chosen is not None and id(self) in moment.chosen:
            return moment.chosen[id(self)]
        found = [
            series for series in moment.kept.of(self.metric)
            if all(fits(series.labels.get(label, "")) for label, fits in self.matchers)
        ]
        if moment.chosen is not None:
            moment.chosen[id(self)] = found
        return found


# ---- what is computed ------------------------------------------------------------------------------------------------


def _increase(part: RangePart) -> float | None:
    """Resets counted, and carried on to the borders as far as the samples let one guess, as the real engine does."""
    times, values = part.times, part.values
    if len(values) < 2:
        return None
    lost = sum(before for before, after in itertools.pairwise(values) if after < before)
    rise = values[-1] - values[0] + lost
    sampled = times[-1] - times[0]
    mean = sampled / (len(values) - 1)
    before, after = times[0] - part.after, part.until - times[-1]
    before, after = (gap if gap < 1.1 * mean else mean / 2 for gap in (before, after))
    if rise > 0 and values[0] >= 0:
        before = min(before, sampled * values[0] / rise)
    return rise * (sampled + before + after) / sampled


def _take_last(part: RangePart) -> float:
    return part.values[-1]


def _take_quantile(share: float) -> OverTime:
    def compute(part: RangePart) -> float:
        ordered, rank = sorted(part.values), share * (len(part.values) - 1)
        lower = math.floor(rank)
        upper = min(lower + 1, len(ordered) - 1)
        return ordered[lower] * (1 - (rank - lower)) + ordered[upper] * (rank - lower)

    return compute


def _divide(left: float, right: float) -> float:
    """As floating point has it."""
    return left / right if right else math.nan if left == 0 else math.copysign(math.inf, left)


_OVER_TIME: Final[Mapping[str, OverTime]] = {
    "max_over_time": lambda part: max(part.values), "min_over_time": lambda part: min(part.values),
    "avg_over_time": lambda part: math.fsum(part.values) / len(part.values),
    "count_over_time": lambda part: float(len(part.values)), "present_over_time": lambda part: 1.0,
    "last_over_time": _take_last, "increase": _increase,
    "changes": lambda part: float(sum(before != after for before, after in itertools.pairwise(part.values))),
}
_QUANTILE: Final = "quantile_over_time"
_AGGREGATIONS: Final[Mapping[str, Callable[[Sequence[float]], float]]] = {
    "max": max, "min": min, "avg": lambda values: math.fsum(values) / len(values), "sum": math.fsum,
    "count": lambda values: float(len(values)),
}
_SUMS: Final[Mapping[str, Callable[[float, float], float]]] = {"+": operator.add, "-": operator.sub}
_PRODUCTS: Final[Mapping[str, Callable[[float, float], float]]] = {"*": operator.mul, "/": _divide}
_COMPARISONS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "==": lambda left, right: left == right, "!=": lambda left, right: left != right,
    ">=": lambda left, right: left >= right, ">": lambda left, right: left > right,
    "<": lambda left, right: left < right,
}


def _select(selector: SeriesSelector, *, wants_time: bool = False, offset: Seconds = 0.0) -> Question:
    def ask(moment: Asked) -> Vector:
        found = ((series, series.newest(moment.at - offset)) for series in selector.choose(moment))
        if wants_time:
            return [Element(series.labels, newest[0] + moment.behind) for series, newest in found if newest]
        return [Element({NAME: series.metric, **series.labels}, newest[1]) for series, newest in found if newest]

    return ask


def _over_time(compute: OverTime, selector: SeriesSelector, length: Seconds, offset: Seconds) -> Question:
    def ask(moment: Asked) -> Vector:
        until = moment.at - offset
        parts = ((one, RangePart(*one.within(until - length, until), until - length, until))
                 for one in selector.choose(moment) if one.overlaps(until - length, until))
        computed = ((one, compute(part)) for one, part in parts if part.values)
        keeps_name = compute is _take_last  # all others say something else of the series than it does itself
        return [
            Element({NAME: one.metric, **one.labels} if keeps_name else one.labels, value)
            for one, value in computed if value is not None
        ]

    return ask


def _over_steps(compute: OverTime, question: Question, length: Seconds, step: Seconds) -> Question:
    """A question asked again at every multiple of `step` in the range, as far back as anything is remembered."""

    def ask(moment: Asked) -> Vector:
        after, moment = moment.at - length, moment._replace(chosen={})
        first = math.floor(max(after, moment.kept.oldest() - step) / step) + 1
        found: dict[frozenset[tuple[str, str]], RangePart] = {}
        for number in range(first, math.floor(moment.at / step) + 1):
            for labels, value in question(moment._replace(at=number * step)):
                part = found.setdefault(_identify(labels), RangePart(array("d"), array("d"), after, moment.at))
                part.times.append(number * step)
                part.values.append(value)
        computed = ((labels, compute(part)) for labels, part in found.items())
        return [Element(dict(labels), value) for labels, value in computed if value is not None]

    return ask


def _aggregate(compute: Callable[[Sequence[float]], float], by: tuple[str, ...], question: Question) -> Question:
    def ask(moment: Asked) -> Vector:
        groups: dict[tuple[str, ...], list[float]] = {}
        for labels, value in question(moment):
            groups.setdefault(tuple([labels.get(name, "") for name in by]), []).append(value)
        return [
            Element({name: text for name, text in zip(by, group, strict=True) if text}, compute(values))
            for group, values in groups.items()
        ]

    return ask


def _unite(left: Question, right: Question) -> Question:
    def ask(moment: Asked) -> Vector:
        found = left(moment)
        known = {_identify(labels) for labels, _ in found}
        return found + [each for each in right(moment) if _identify(each.labels) not in known]

    return ask


def _choose(left: Question, right: Question, *, wants: bool) -> Question:
    """`wants`: those that the right has, too; else those that it has not."""
    def ask(moment: Asked) -> Vector:
        known = {_identify(labels) for labels, _ in right(moment)}
        return [each for each in left(moment) if (_identify(each.labels) in known) is wants]

    return ask


def _combine(left: Question, right: Question, compute: Callable[[float, float], float]) -> Question:
    def ask(moment: Asked) -> Vector:
        others = {_identify(labels): value for labels, value in right(moment)}
        found = ((labels, value, others.get(_identify(labels))) for labels, value in left(moment))
        return [Element(_unnamed(labels), compute(value, other)) for labels, value, other in found if other is not None]

    return ask


def _scale(question: Question, number: float, compute: Callable[[float, float], float]) -> Question:
    return lambda moment: [Element(_unnamed(labels), compute(value, number)) for labels, value in question(moment)]


def _compare(question: Question, holds: Callable[[float, float], bool], number: float) -> Question:
    return lambda moment: [each for each in question(moment) if holds(each.value, number)]


def _relabel(question: Question, to: str, text: str, source: str, pattern: patterns.Pattern) -> Question:
    def relabel(labels: Labels) -> Labels:
        return {**labels, to: text} if pattern.fullmatch(labels.get(source, "")) else labels

    return lambda moment: [Element(relabel(labels), value) for labels, value in question(moment)]


def _unnamed(labels: Labels) -> Labels:
    return {name: value for name, value in labels.items() if name != NAME}


def _identify(labels: Labels) -> frozenset[tuple[str, str]]:
    return frozenset(_unnamed(labels).items())


# ---- how it is read --------------------------------------------------------------------------------------------------


def read(text: str) -> Question:
    """Raises NotAsked."""
    reader = _QuestionReader(text)
    question = reader.read_union()
    reader.expect("end", "")
    return question


class _QuestionReader:
    """One token ahead."""

    def __init__(self, text: str) -> None:
        self._tokens = _split(text)
        self._depth = 0
        self._again = 0  # how many questions are asked again and again
        self._next()

    def _next(self) -> str:
        """The token that was ahead."""
        taken = getattr(self, "_text", "")
        self._sort, self._text, self._at = next(self._tokens)
        return taken

    def _refuse(self) -> NotAsked:
        found = f"{self._text!r}" if self._sort != "end" else "the end"
        return NotAsked(f"{self._at}: parse error: unexpected {found}: {_SMALL}")

    def expect(self, sort: str, text: str | None = None) -> str:
        if self._sort != sort or (text is not None and self._text != text):
            raise self._refuse()
        return self._next() if sort != "end" else ""

    def _takes(self, text: str) -> bool:
        """Whether this is ahead, and then it is taken."""
        is_ahead = self._text == text and self._sort in ("sign", "word")
        if is_ahead:
            self._next()
        return is_ahead

    def read_union(self) -> Question:
        with self._one_deeper():
            question = self._read_both()
            for _ in self._while_takes("or"):
                question = _unite(question, self._read_both())
            return question

    def _read_both(self) -> Question:
        question = self._read_comparison()
        for word in self._while_takes("and", "unless"):
            question = _choose(question, self._read_comparison(), wants=word == "and")
        return question

    @contextmanager
    def _one_deeper(self) -> Iterator[None]:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise NotAsked(f"{self._at}: parse error: nested deeper than {_DEEPEST}")
        yield
        self._depth -= 1

    def _while_takes(self, *texts: str) -> Iterator[str]:
        for number in itertools.count(1):
            if (found := next(filter(self._takes, texts), None)) is None:
                return
            if number > _MOST_PARTS:
                raise NotAsked(f"{self._at}: parse error: more than {_MOST_PARTS} parts in a row")
            yield found

    def _read_comparison(self) -> Question:
        question = self._read_sum()
        if self._sort == "sign" and self._text in _COMPARISONS:
            holds = _COMPARISONS[self._next()]
            return _compare(question, holds, float(self.expect("number")))
        return question

    def _read_sum(self) -> Question:
        question = self._read_product()
        for sign in self._while_takes(*_SUMS):
            question = _combine(question, self._read_product(), _SUMS[sign])
        return question

    def _read_product(self) -> Question:
        question = self._read_part()
        for sign in self._while_takes(*_PRODUCTS):
            if self._sort == "number":
                question = _scale(question, float(self._next()), _PRODUCTS[sign])
            else:
                question = _combine(question, self._read_part(), _PRODUCTS[sign])
        return question

    def _read_part(self) -> Question:
        if self._takes("("):
            return self._closed(self.read_union())
        word = self.expect("word")
        if word in _AGGREGATIONS:
            return self._read_aggregation(word)
        if not self._takes("("):
            return _select(self._read_matchers(word), offset=self._read_offset())
        if word in _OVER_TIME:
            return self._closed(self._read_range(_OVER_TIME[word]))
        if word == _QUANTILE:
            share = float(self.expect("number"))
            self.expect("sign", ",")
            return self._closed(self._read_range(_take_quantile(share)))
        if word == "timestamp":
            return self._closed(_select(self._read_matchers(self.expect("word")), wants_time=True))
        if word == "label_replace":
            return self._closed(self._read_relabelling())
        raise NotAsked(f"parse error: unknown function with name {word!r}: {_SMALL}")

    def _closed(self, question: Question) -> Question:
        self.expect("sign", ")")
        return question

    def _read_aggregation(self, word: str) -> Question:
        by = list[str]()
        if self._takes("by"):
            self.expect("sign", "(")
            by.append(self.expect("word"))
            while self._takes(","):
                by.append(self.expect("word"))
            self.expect("sign", ")")
        self.expect("sign", "(")
        return self._closed(_aggregate(_AGGREGATIONS[word], tuple(by), self.read_union()))

    def _read_range(self, compute: OverTime) -> Question:
        before = self._again
        selector = None if self._text == "(" else self._read_matchers(self.expect("word"))
        question = self._read_part() if selector is None else _select(selector)
        self.expect("sign", "[")
        length = _read_length(self.expect("length"))
        if self._takes(":"):
            step = _read_length(self.expect("length"))
            self.expect("sign", "]")
            if step < _LEAST_STEP or self._again > before or self._again == _MOST_AGAIN:
                known = f"{_MOST_AGAIN} subqueries are known, none in another, of {_LEAST_STEP:g} s a step at least"
                raise NotAsked(f"{self._at}: parse error: {known}")
            self._again += 1
            return _over_steps(compute, question, length, step)
        if selector is None:
            raise self._refuse()
        self.expect("sign", "]")
        return _over_time(compute, selector, length, self._read_offset())

    def _read_offset(self) -> Seconds:
        return _read_length(self.expect("length")) if self._takes("offset") else 0.0

    def _read_relabelling(self) -> Question:
        question, words = self.read_union(), list[str]()
        while self._takes(","):
            words.append(_read_text(self.expect("text")))
        if len(words) != 4 or "$" in words[1]:
            raise self._refuse()
        to, text, source, pattern = words
        return _relabel(question, to, text, source, _compile(pattern))

    def _read_matchers(self, metric: str) -> SeriesSelector:
        if not self._takes("{"):
            return SeriesSelector(metric, ())
        matchers = []
        while self._sort == "word":
            label, sign = self._next(), self.expect("sign")
            matchers.append((label, _make_matcher(sign, _read_text(self.expect("text")))))
            if not self._takes(","):
                break
        self.expect("sign", "}")
        return SeriesSelector(metric, tuple(matchers))


def _split(text: str) -> Iterator[tuple[str, str, str]]:
    """Sort, text and place (as Prometheus counts it) of each token; then the end, for ever."""
    at, text = 0, text.rstrip()
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None or found.lastgroup is None:
            raise NotAsked(f"1:{at + 1}: parse error: unexpected character: {text[at : at + 1]!r}")
        yield found.lastgroup, found[found.lastgroup], f"1:{found.start(found.lastgroup) + 1}"
        at = found.end()
    while True:
        yield "end", "", f"1:{len(text) + 1}"


def _make_matcher(sign: str, text: str) -> Callable[[str], bool]:
    if sign in ("=", "!="):
        return lambda value: (value == text) is (sign == "=")
    if sign in ("=~", "!~"):
        pattern = _compile(text)
        return lambda value: bool(pattern.fullmatch(value)) is (sign == "=~")
    raise NotAsked(f"parse error: unexpected {sign!r} in label matching")


def _compile(text: str) -> patterns.Pattern:
    try:
        return patterns.compile_pattern(text)
    except ValueError as problem:
        raise NotAsked(f"parse error: {text!r} is no regular expression: {problem}") from None


def _read_text(quoted: str) -> str:
    return _ESCAPED.sub(lambda found: {"n": "\n", "t": "\t"}.get(found[1], found[1]), quoted[1:-1])


def _read_length(text: str) -> Seconds:
    return sum(int(number) * _LENGTHS[unit] for number, unit in _LENGTH.findall(text))
