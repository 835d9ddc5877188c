"""How busy every GPU of a cluster was in the last minutes, whoever holds it: for who counts machines.

In: two questions for each engine signal, or what was scraped; the node each series is of, and who may be believed.
Out: by node and board the mean use, 0 to 1: the largest of what the signals say, of those that cover the window.
Invariant: a board that nobody watched through the window has no value, and no 0; on MIG no utilisation counts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np

from fallow.clients.prometheus import client
from fallow.model import usage
from fallow.model.units import Seconds
from fallow.observe.usage import inquiry, labels, queries, rows
from fallow.observe.usage.asking import Question
from fallow.observe.usage.readings import NOTHING, Readings, Topic, What

WINDOW: Final[Seconds] = 300.0
COVERED: Final = 0.8
METRICS: Final = tuple(metric for metric in queries.PRIMARIES if metric.signal in usage.OF_DEVICES)
DeviceUse: TypeAlias = Mapping[str, Mapping[str, float]]  # by node and board


def ask(prometheus: client.Prometheus, books: inquiry.LabelBooks) -> Iterator[Question]:
    for metric in METRICS:
        selector, label = prometheus.selector(metric.name, metric.matcher), metric.signal.label
        mean = f"avg_over_time({selector}[{queries.span(WINDOW)}])"
        yield Question(Topic(What.mean, metric.name, WINDOW), mean, books.of(metric), label, required=True)
        counted = queries.count([selector], WINDOW)
        yield Question(Topic(What.count, metric.name, WINDOW), counted, books.of(metric), label, required=True)


def fold(
    found: Readings, facts: Sequence[labels.Facts], held: rows.Holders, pace_of: Callable[[str], Seconds | None], *,
    witnesses: rows.Witnesses | None = None, has_believed: bool = False,
) -> DeviceUse:
    """`pace_of`: how often a job is scraped; None: nobody knows, and then it covers nothing."""
    made: dict[str, dict[str, float]] = {}
    witness_of = witnesses or held.witness
    spots = {one.spot: one.uuid for one in facts if one.spot and one.uuid}
    for number, value in _find_covered(found, facts, pace_of):
        one, node = facts[number], held.node_of(facts[number])
        witness, board = witness_of(one), one.uuid or spots.get(one.spot, one.spot)
        if not node or not board or not rows.counts(one, witness, has_believed):
            continue
        if held.reaches(one, witness, node):
            known = made.setdefault(node, {})
            known[board] = max(value, known.get(board, 0.0))
    return made


def _find_covered(
    found: Readings, facts: Sequence[labels.Facts], pace_of: Callable[[str], Seconds | None]
) -> Iterator[tuple[int, float]]:
    """Series with their means, where enough samples are good."""
    mig = np.array([one.mig for one in facts], np.bool_)
    paces = np.array([pace_of(one.job) or np.nan for one in facts])
    for metric in METRICS:
        means, counts = (
            found.get(Topic(what, metric.name, WINDOW), NOTHING).by_series(len(facts))
            for what in (What.mean, What.count)
        )
        values = queries.believe(means, metric)
        values = np.where(mig, np.nan, values) if metric.signal in usage.NEVER_ON_MIG else values
        covered = counts * paces >= COVERED * WINDOW
        for number in np.flatnonzero(covered & ~np.isnan(values)).tolist():
            yield number, float(values[number])
