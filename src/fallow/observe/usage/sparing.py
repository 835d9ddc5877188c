"""What need not be asked: the questions about a primary whose answers could change no verdict.

In: what was read so far, what the rules ask of a GPU at the strictest. Out: the primaries whose completeness is asked
of all series (`find_leads`), the rows of which that of the others is asked as well (`find_open`), and those of which
the lowest sample is asked (`find_doubtful`).
Two metrics of one page have the same labels (their series are twins): scraped together, they are as complete and as
fresh as each other. So one of them is asked how complete and how fresh it is; the other only where the first leaves a
doubt (thin, old or odd), or where its own peak may hide a steady trickle and nothing else shows work. Peaks are asked
of all of them.
A sample that is none shows in a peak or in a mean, except for two: a blank may stand alone or among readings, and
something below 0 may be made up for by others, so that it only lowers the mean. The lowest tells both.
Invariant: a row that is not open is judged as if everything had been asked.
"""

from collections.abc import Collection, Sequence
from typing import TypeAlias

import numpy as np

from fallow.model import usage
from fallow.model.units import Instant, Seconds
from fallow.observe.usage import queries, spans
from fallow.observe.usage.readings import NOTHING, Readings, Topic, What

Exported: TypeAlias = dict[queries.GpuMetric, set[int]]  # the series of each primary that has any


def find_exported(found: Readings, windows: Collection[Seconds]) -> Exported:
    exported = {}
    for metric in queries.PRIMARIES:
        read = [found.get(Topic(What.peak, metric.name, window), NOTHING).series.tolist() for window in windows]
        if series := set[int]().union(*read):
            exported[metric] = series
    return exported


def find_leads(exported: Exported) -> list[queries.GpuMetric]:
    """Every primary that has a series without a twin among those before it."""
    leads, met = [], set[int]()
    for metric, series in exported.items():
        if not series <= met:
            leads.append(metric)
            met |= series
    return leads


def find_open(
    seen: usage.Usage, left_out: Sequence[queries.GpuMetric], terms: usage.Strictest, now: Instant
) -> usage.Bools:
    """The rows whose verdict could depend on primaries that were left out."""
    speakers, nothing = usage.find_speakers(seen, seen.mig, seen.shared), np.zeros(seen.rows, np.bool_)
    is_settled, may_matter, may_trickle = nothing.copy(), nothing.copy(), nothing.copy()
    for signal, speaks in speakers.items():
        if signal in seen.count and signal in seen.newest:
            is_settled |= speaks & _is_settled(seen, signal, terms, now)
    for metric in left_out:
        peak = seen.peak.get(metric.signal, np.full(seen.rows, np.nan))
        may_matter |= peak >= 0.0
        if metric.signal in usage.RATIOS:
            is_low = (peak >= terms.quiet / usage.TRICKLE) & (peak < terms.busy)
            may_trickle |= is_low & ~_is_outshone(seen, metric.signal, terms.busy)
    return np.asarray((may_matter & ~is_settled) | may_trickle)


def find_working(seen: usage.Usage, busy: float) -> usage.Bools:
    """The rows that are surely not idle by the highest of a ratio alone, however complete it is: nobody else has a
    hand in their device."""
    found = np.zeros(seen.rows, np.bool_)
    for signal in usage.OF_DEVICES:
        if signal in seen.peak:
            found |= (seen.peak[signal] >= busy) & (~seen.mig if signal in usage.NEVER_ON_MIG else True)
    return found & ~seen.shared


def find_doubtful(seen: usage.Usage, signal: usage.Signal, busy: float) -> usage.Bools:
    """The rows of which this signal may have samples that are none, unnoticed. From `busy` on that changes nothing.

    Where all is 0 there is none: one would make the mean differ from it.
    """
    found = seen.blank.get(signal, np.zeros(seen.rows, np.bool_))
    if signal in usage.RATIOS and signal in seen.peak:
        peak, mean = seen.peak[signal], seen.mean.get(signal, np.full(seen.rows, np.nan))
        found = found | ((peak > 0.0) & (peak < busy) & ~(mean >= busy / usage.TRICKLE))
    return np.asarray(found & ~_is_outshone(seen, signal, busy))


def _is_outshone(seen: usage.Usage, signal: usage.Signal, busy: float) -> usage.Bools:
    """The rows whose device is busy by another's peak already: a trickle by this one adds nothing. What speaks of the
    pod itself can always add something: on a shared device it tells whose the work is."""
    found = np.zeros(seen.rows, np.bool_)
    for other, speaks in usage.find_speakers(seen, seen.mig, seen.shared).items():
        if other in usage.RATIOS and signal is not usage.Signal.process_sm:
            found |= speaks & (seen.peak[other] >= busy)
    return found


def _is_settled(seen: usage.Usage, signal: usage.Signal, terms: usage.Strictest, now: Instant) -> usage.Bools:
    count = seen.count[signal]
    is_covered = count * seen.interval / seen.window >= terms.coverage
    is_fresh = seen.newest[signal] >= now - terms.max_sample_age
    return np.asarray(is_covered & is_fresh & ~spans.is_thin(count, seen.interval, seen.window))
