"""How often each job is scraped, learned from what the last minutes hold.

In: of every target (by `up`) or series of a job, the samples of the last PACE seconds and of the older half of them.
Out: seconds between samples by job. Coverage is judged by it, so it must not be too long: a few minutes of data would
pass for a whole window.
Invariant: a pace is learned only from what was scraped all through PACE. Whatever is met afterwards can make it
shorter, and nothing makes it longer until it is learned anew. A job whose pace is not known has none, and then no
window of it is covered.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from fallow.model import usage
from fallow.model.units import DAY, HOUR, Instant, Seconds
from fallow.observe.usage import labels, queries, rows
from fallow.observe.usage.readings import NOTHING, Readings, Topic, What

SHORTEST: Final[Seconds] = 1.0
LONGEST: Final[Seconds] = 120.0
LONGEST_UNSEEN: Final[Seconds] = 60.0  # Prometheus's own default; that a job is slower has to be seen by its `up`
_UNEVEN = 0.1  # of the samples, by which two halves may differ where the job was scraped in both alike


class Late(NamedTuple):
    """The samples of a job of late."""

    most: float  # of any target or series
    steady: float  # of those that were there all the time; 0 = of none
    longest: Seconds  # what is believed of it


class JobPace(NamedTuple):
    seconds: Seconds
    learned_at: Instant


class Paces:
    """By job. What is not in `by_job` is not known."""

    def __init__(self) -> None:
        self._known: dict[str, JobPace] = {}

    @property
    def by_job(self) -> dict[str, Seconds]:
        return {job: pace.seconds for job, pace in self._known.items()}

    def are_due(self, jobs: Collection[str], now: Instant) -> bool:
        return any(job not in self._known or now - self._known[job].learned_at >= HOUR for job in jobs)

    def learn(self, found: Mapping[str, Late], now: Instant) -> None:
        for job, late in found.items():
            if late.steady and self.are_due((job,), now):
                self._known[job] = JobPace(_pace_of(late.steady, late.longest), now)
        self._shorten({job: _pace_of(late.most, late.longest) for job, late in found.items()})
        self._known = {job: pace for job, pace in self._known.items() if now - pace.learned_at < DAY}

    def meet(self, intervals: Mapping[str, Seconds], window: Seconds) -> None:
        """What a window showed: the longer it is the closer it comes, and an outage later does not undo it."""
        self._shorten({job: interval_of(window / seconds - 1.0, window) for job, seconds in intervals.items()})

    def _shorten(self, met: Mapping[str, Seconds]) -> None:
        for job in met.keys() & self._known.keys():
            known = self._known[job]
            self._known[job] = known._replace(seconds=min(known.seconds, met[job]))


def interval_of(most: float, window: Seconds) -> Seconds:
    """Seconds between samples where so many were met in a window; the longest that is believed where none were."""
    return min(max(window / most, SHORTEST), LONGEST) if most > 0.0 else LONGEST


def _pace_of(count: float, longest: Seconds) -> Seconds:
    """n samples are n - 1 intervals apart: never shorter than it is, or a job scraped rarely would cover no window."""
    return min(interval_of(count - 1.0, queries.PACE), longest)


def is_steady(counts: usage.Floats, older: usage.Floats) -> usage.Bools:
    """Where there are about as many samples in both halves; what began or came back since has more in the newer."""
    return np.asarray((older > 0) & (np.abs(counts - 2 * older) <= np.maximum(1.0, _UNEVEN * counts)))


def by_targets(found: Readings, layout: rows.RowLayout, targets: Sequence[labels.Facts]) -> dict[str, Late]:
    """How often the server scraped the targets that are believed."""
    believed = layout.vouched_targets
    return _of_jobs(
        found, Topic(What.scrapes), len(targets), lambda at: targets[at].job, LONGEST,
        lambda at: (targets[at].job, targets[at].target) in believed,
    )


def within(
    found: Readings, layout: rows.RowLayout, targets: Sequence[labels.Facts], window: Seconds
) -> dict[str, Seconds]:
    """Seconds between scrapes of the target of each job that was scraped most often in the window."""
    topic, believed = Topic(What.scrapes, "", window), layout.vouched_targets
    met, most = found.get(topic, NOTHING), dict[str, float]()
    for number, count in zip(met.series.tolist(), met.values.tolist(), strict=True):
        one = targets[number]
        if (one.job, one.target) in believed:
            most[one.job] = max(most.get(one.job, 0.0), count)
    return {job: interval_of(count, window) for job, count in most.items()}


def by_series(found: Readings, layout: rows.RowLayout, facts: Sequence[labels.Facts]) -> dict[str, Late]:
    """Of jobs whose targets' `up` nobody has, how often their series were written."""
    best, vouched = dict[str, Late](), layout.vouched(np.zeros(len(facts)))
    for metric in queries.PRIMARIES:
        met = _of_jobs(
            found, Topic(What.pace, metric.name, queries.PACE), len(facts), lambda at: facts[at].job, LONGEST_UNSEEN,
            lambda at: not np.isnan(vouched[at]),
        )
        for job, late in met.items():
            before = best.get(job, late)
            best[job] = Late(max(before.most, late.most), max(before.steady, late.steady), late.longest)
    return best


def _of_jobs(
    found: Readings, topic: Topic, known: int, job_of: Callable[[int], str], longest: Seconds,
    counts_for: Callable[[int], bool],
) -> dict[str, Late]:
    met = found.get(topic, NOTHING)
    older = np.nan_to_num(found.get(topic._replace(what=OLDER[topic.what]), NOTHING).by_series(known)[met.series])
    steady, best = np.where(is_steady(met.values, older), met.values, 0.0), dict[str, Late]()
    for number, count, steadily in zip(met.series.tolist(), met.values.tolist(), steady.tolist(), strict=True):
        if counts_for(number):
            before = best.get(job_of(number), Late(0.0, 0.0, longest))
            best[job_of(number)] = Late(max(before.most, count), max(before.steady, steadily), longest)
    return best


OLDER: Final = {What.scrapes: What.scrapes_before, What.pace: What.pace_before}
