"""Quiet and covered, back from now: how far? One search for idle times, for gaps, and for exporters that restarted.

In: candidate rows with what the window itself showed, then answers about stretches of the past. Out: which stretch of
which rows to ask about next, until nothing is left to ask; then per row since when it is quiet and watched, and how
many samples the window really has.
The window comes first, then stretches that grow (from one window ago to four, from four to sixteen, ...): the server
goes through all series for each of them, so few long ones cost less than many short ones. A stretch that is quiet and
covered leads to the next older one; one that is not is halved, the newer half first, until the last activity is known
to a tenth of its age (or 5 minutes), or the last gap is found.
Samples of several series of a row (an exporter that restarted) never add up within a stretch: of each the best series
counts. So two that follow each other make a whole, and two that overlap do not.
Invariant: a row is never called quiet or covered over a stretch of which no answer said so.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from fallow.model import usage
from fallow.model.units import DAY, Seconds
from fallow.observe.usage.readings import Numbers

_CLOSE_ENOUGH: Final = 0.1  # of the time since
_CLOSE: Final[Seconds] = 300.0
_FARTHEST: Final[Seconds] = 30 * DAY  # no notice is looked for beyond
_GROWS: Final = 4
_REMAINDER: Final = 1.5  # what would be left of it is asked with the last one
_MOST_STEPS: Final = 200  # of one search; who is not done by then has been watched for as long as was seen


class Stretch(NamedTuple):
    """From so many seconds ago to so many. `is_busy`: it holds activity, only where is not known."""

    far: Seconds
    near: Seconds
    is_busy: bool = False

    @property
    def between(self) -> tuple[Seconds, Seconds]:
        return self.far, self.near

    @property
    def length(self) -> Seconds:
        return self.far - self.near

    def halve(self) -> tuple["Stretch", "Stretch"]:
        """The newer one first. If there was activity and the newer half turns out quiet, it was in the older."""
        middle = float(round((self.far + self.near) / 2))
        return Stretch(middle, self.near), Stretch(self.far, middle, self.is_busy)


class Answer(NamedTuple):
    """Of one stretch, per row that was asked about."""

    busy: usage.Bools
    odd: usage.Bools  # its highest is no reading
    samples: usage.Floats  # of the best series


class Wanted(msgspec.Struct, kw_only=True):
    """The rows, in columns. Ages are seconds before now."""

    rows: Numbers  # of the Usage
    window: Seconds
    interval: usage.Floats
    count: usage.Floats  # samples in the window, as far as is known
    age: usage.Floats  # of the pod; inf = not known
    warned: usage.Floats  # how long ago a notice was given; nan = none


class Cohort(NamedTuple):
    """Rows (by place) of which the same is known, and what is ahead of them, the newest first."""

    at: Numbers
    ahead: tuple[Stretch, ...]


class Search:
    """Ask about `questions()`, `take` the answers in their order, and again, until there are none."""

    def __init__(self, wanted: Wanted, lookback: Seconds) -> None:
        size = len(wanted.rows)
        self.wanted = wanted
        self.quiet_for = np.zeros(size)  # quiet and covered for so long
        self.active_ago = np.full(size, np.nan)  # seconds since activity; nan = none met
        self.in_window = np.zeros(size)  # samples, best series of each stretch
        self._counted = np.zeros(size)
        self._unsure = np.zeros(size)  # seconds at the far end of the last clean stretch that may have no sample
        self._longest_gap = usage.longest_gap(wanted.interval)
        # Not halved any further: no longer gap fits between samples of two such neighbours, and each surely has one.
        self._finest = np.maximum(self._longest_gap / 2, 2 * wanted.interval)
        self._asked: list[tuple[Stretch, list[Cohort]]] = []
        self._steps = 0
        itself = Stretch(wanted.window, 0.0)
        begin = [Cohort(at, (itself, *_grow(wanted.window, far))) for at, far in self._lookbacks(lookback)]
        nothing = np.zeros(size, dtype=np.bool_)
        whole = Answer(nothing, nothing, np.nan_to_num(wanted.count))
        self._todo = [later for one in begin for later in self._judge(one, _pick(whole, one.at))]

    def _lookbacks(self, lookback: Seconds) -> Iterator[tuple[Numbers, Seconds]]:
        """Who was warned longer ago than that is looked back at as far."""
        is_far = self.wanted.warned > lookback
        farthest = float(np.max(self.wanted.warned, where=is_far, initial=lookback))
        for held, far in ((~is_far, lookback), (is_far, min(farthest, _FARTHEST))):
            if held.any():
                yield np.flatnonzero(held), far

    def questions(self) -> list[tuple[Stretch, Numbers]]:
        """Stretches, and the places of the rows that they are to be answered for."""
        by_stretch: dict[Stretch, list[Cohort]] = {}
        for one in self._todo if self._steps < _MOST_STEPS else ():
            by_stretch.setdefault(one.ahead[0], []).append(one)
        self._asked, self._todo, self._steps = list(by_stretch.items()), [], self._steps + 1
        return [(stretch, np.concatenate([one.at for one in some])) for stretch, some in self._asked]

    def take(self, answers: Sequence[Answer]) -> None:
        for (_, some), answer in zip(self._asked, answers, strict=True):
            start = 0
            for one in some:
                part = np.arange(start, start + len(one.at))
                self._todo += self._judge(one, _pick(answer, part))
                start += len(one.at)

    def _judge(self, cohort: Cohort, answer: Answer) -> Iterator[Cohort]:
        """What is next for whom; who is done is not in it."""
        at, (stretch, *rest) = cohort
        thin = self._is_thin(stretch, at, answer.samples) | answer.odd
        busy = answer.busy & ~answer.odd
        clean = ~busy & ~thin
        self._note_clean(stretch, at[clean], answer.samples[clean])
        self._note_gap(at[thin & ~busy & (stretch.length <= self._finest[at])])
        yield from self._go_on(at[clean], tuple(rest), stretch)
        yield from self._narrow(at[busy], stretch._replace(is_busy=True))
        yield from _go_for(at[thin & ~busy & (stretch.length > self._finest[at])], (*stretch.halve(), *rest))

    def _note_clean(self, stretch: Stretch, at: Numbers, count: usage.Floats) -> None:
        pace = self._paces(at)
        missing = self._expect(stretch, at, pace) - count
        self._unsure[at] = np.where(missing > 1, (missing + 1) * pace, 0.0)
        self.quiet_for[at] = np.minimum(stretch.far, np.maximum(self.wanted.age[at], stretch.near))
        self._counted[at] += count
        if stretch.far <= self.wanted.window:
            self.in_window[at] += count

    def _note_gap(self, at: Numbers) -> None:
        """It may reach into the stretch before: as far as that one lacks samples."""
        self.quiet_for[at] = np.maximum(self.quiet_for[at] - self._unsure[at], 0.0)

    def _go_on(self, at: Numbers, ahead: tuple[Stretch, ...], done: Stretch) -> Iterator[Cohort]:
        """To what is older, but not beyond the start of the pod."""
        left = at[self.wanted.age[at] > done.far]
        if ahead and ahead[0].is_busy:
            yield from self._narrow(left, ahead[0])
        elif ahead:
            yield from _go_for(left, ahead)

    def _narrow(self, at: Numbers, stretch: Stretch) -> Iterator[Cohort]:
        """Activity was in there: halve it until that is close enough, and on one side of the notice."""
        warned, close = self.wanted.warned[at], stretch.length <= max(_CLOSE_ENOUGH * stretch.near, _CLOSE)
        hides_notice = (stretch.near < warned) & (warned < stretch.far) & (stretch.length > _CLOSE)
        is_found = np.asarray(close & ~hides_notice)
        self.active_ago[at[is_found]] = stretch.near
        yield from _go_for(at[~is_found], stretch.halve())

    def _is_thin(self, stretch: Stretch, at: Numbers, count: usage.Floats) -> usage.Bools:
        """May there be a longer gap in it? Half of one could be in the stretch before, and half in the one after."""
        pace, age = self._paces(at), self.wanted.age[at]
        expected = self._expect(stretch, at, pace)
        is_finest = stretch.length <= self._finest[at]
        missing = np.where(is_finest, (count < 1) & (expected >= 1), expected - count > self._spare(at, pace))
        # Samples from before the pod began (one of the same name) could stand in for those that are missing.
        is_older = (age < stretch.far) & (count > np.maximum(age - stretch.near, 0.0) / pace + 2)
        return np.asarray(missing | (is_older & ~is_finest))

    def _expect(self, stretch: Stretch, at: Numbers, pace: usage.Floats) -> usage.Floats:
        """Samples of a pod that may have begun within the stretch."""
        age = self.wanted.age[at]
        since = np.where(age < stretch.far, age - usage.FIRST_SAMPLE, stretch.far)
        return np.asarray(np.maximum(since - stretch.near, 0.0) / pace)

    def _spare(self, at: Numbers, pace: usage.Floats) -> usage.Floats:
        return np.maximum(self._longest_gap[at] / pace / 2 - 1, 1.0)

    def _paces(self, at: Numbers) -> usage.Floats:
        """Seconds between samples, the better known the more was counted: by the best row of the same interval."""
        interval, window = self.wanted.interval, self.wanted.window
        rate = np.divide(self._counted, self.quiet_for, out=np.zeros_like(self.quiet_for), where=self.quiet_for > 0)
        kinds, kind = np.unique(interval, return_inverse=True)
        best = np.zeros(len(kinds))
        np.maximum.at(best, kind, rate)
        longest = interval * window / np.maximum(window - interval, interval)
        known = np.divide(1.0, best[kind], out=interval.copy(), where=best[kind] > 0)
        return np.clip(known, interval, longest)[at]

    @property
    def was_whole(self) -> usage.Bools:
        """Rows of which the whole window is quiet and covered."""
        return np.asarray(self.quiet_for >= np.minimum(self.wanted.window, self.wanted.age))


def is_thin(count: usage.Floats, interval: usage.Floats, window: Seconds) -> usage.Bools:
    """Rows whose window may hide a longer gap."""
    spare = np.maximum(usage.longest_gap(interval) / interval / 2 - 1, 1.0)
    return np.asarray(~(window / interval - count <= spare))


def _grow(window: Seconds, lookback: Seconds) -> Iterator[Stretch]:
    near = window
    while near < lookback:
        far = _GROWS * near if lookback > _REMAINDER * _GROWS * near else lookback
        yield Stretch(far, near)
        near = far


def _go_for(at: Numbers, ahead: Iterable[Stretch]) -> Iterator[Cohort]:
    if len(at):
        yield Cohort(at, tuple(ahead))


def _pick(answer: Answer, at: Numbers) -> Answer:
    return Answer(answer.busy[at], answer.odd[at], answer.samples[at])
