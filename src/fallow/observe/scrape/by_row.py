"""What several series of one row show together: an exporter that restarted goes on as another series.

In: tracks of minutes, and which series speaks of which row. Out: samples of a window, and the past, per row.
Of each minute the best series counts: two that follow each other make a whole, two that overlap do not.
Invariant: a minute counts as watched only if some series has a sample in it.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fallow.model import usage
from fallow.model.units import MINUTE, Seconds
from fallow.observe.scrape import buckets
from fallow.observe.usage import rows
from fallow.observe.usage.readings import Numbers


class Pairs(NamedTuple):
    """columns[i] of a track speaks of rows[i]."""

    columns: Numbers
    rows: Numbers

    def only(self, wanted: usage.Bools) -> "Pairs":
        """Of the rows that are wanted, which from now on are numbered in their order."""
        held, place = wanted[self.rows], np.cumsum(wanted) - 1
        return Pairs(self.columns[held], place[self.rows[held]])


class WatchedRows(NamedTuple):
    """Per row: the end of its last active minute, and since when it is watched without a longer gap; nan = never."""

    active: usage.Floats
    since: usage.Floats


def pair(track: buckets.Track, edges: rows.Edges) -> Pairs:
    order = np.argsort(edges.series, kind="stable")
    known = edges.series[order]
    first, last = (np.searchsorted(known, track.series, side) for side in ("left", "right"))
    many = last - first
    columns = np.repeat(np.arange(track.size), many)
    within = np.arange(len(columns)) - np.repeat(np.cumsum(many) - many, many)
    return Pairs(columns, edges.rows[order][np.repeat(first, many) + within])


def count_together(track: buckets.Track, pairs: Pairs, size: int, span: buckets.Span) -> usage.Floats:
    """Samples of rows that several series measured in that span; nan for all others."""
    has_data = np.asarray((track.fields["count"][span.rows, : track.size] > 0).any(axis=0))
    used = Pairs(pairs.columns[has_data[pairs.columns]], pairs.rows[has_data[pairs.columns]])
    wanted, found = np.bincount(used.rows, minlength=size) > 1, np.full(size, np.nan)
    if wanted.any():
        found[wanted] = span.weights @ _best(track.fields["count"], used.only(wanted), int(wanted.sum()), span)
    return found


def watch(
    track: buckets.Track, pairs: Pairs, size: int, span: buckets.Span, ends: usage.Floats, least: float, gap: Seconds
) -> WatchedRows:
    """`ends`: of the minutes of the span; `least`: what counts as activity."""
    if not len(span.rows):
        return WatchedRows(np.full(size, np.nan), np.full(size, np.nan))
    has_data = _best(track.fields["count"], pairs, size, span) > 0
    is_active = _best(track.fields["high"] >= least, pairs, size, span) > 0
    return WatchedRows(_last(is_active, ends), _last(_begins(has_data, gap / MINUTE), ends))


def _best(cells: buckets.Cells, pairs: Pairs, size: int, span: buckets.Span) -> usage.Floats:
    """Of each minute and row, the most of any series."""
    found = np.zeros((size, len(span.rows)))
    np.maximum.at(found, pairs.rows, cells[np.ix_(span.rows, pairs.columns)].T)
    return found.T


def _begins(has_data: usage.Bools, gap: float) -> usage.Bools:
    """The minutes with data before which there was none for longer than that."""
    minutes = np.arange(len(has_data))[:, np.newaxis]
    seen = np.maximum.accumulate(np.where(has_data, minutes, -np.inf), axis=0)
    before = np.vstack([np.full((1, has_data.shape[1]), -np.inf), seen[:-1]])
    return np.asarray(has_data & (minutes - before > gap))


def _last(held: NDArray[np.bool_], ends: usage.Floats) -> usage.Floats:
    row = len(held) - 1 - held[::-1].argmax(axis=0)
    return np.where(held.any(axis=0), ends[row], np.nan)
