"""How busy each GPU was in one full hour of the clock, in whose hands, and what energy it took: for the books.

In: a source that is asked after the hour, or what was scraped in it. Out: an HourReading for each pod on a GPU that was
measured, and one without a pod for what was measured of a GPU that nobody is named for.
One question for each metric, by range functions, no subquery. Energy is what the counter grew by, whose resets the
functions know; where there is none, mean watts stand in.
Invariant: what is not believable was not measured. What a device did that several share is no pod's use: it is told
apart from what the pod's own processes did, which is.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec
import numpy as np

from fallow.clients.prometheus import client
from fallow.model import shares, usage
from fallow.model.cost import Sharing
from fallow.model.units import HOUR, Instant, Seconds
from fallow.observe.usage import inquiry, labels, queries, rows, trust
from fallow.observe.usage.asking import Question
from fallow.observe.usage.readings import NOTHING, Readings, Topic, What

RATIOS: Final = tuple(metric for metric in queries.PRIMARIES if metric.signal in usage.RATIOS)
_FIELDS: Final = {
    "use": tuple(metric for metric in RATIOS if metric.join != "own"),
    "own_use": tuple(metric for metric in RATIOS if metric.join == "own"), "watts": queries.POWER,
}
_NOT_ON_MIG: Final = (usage.Signal.gpu_util, usage.Signal.device_util)
_MOST_MJ: Final = 5000.0 * 1000.0 * HOUR  # of one GPU in an hour: no board draws more than 5 kW
_Key = tuple[str, str, str, str]  # node, namespace and pod ("" = nobody's), GPU


def ask(prometheus: client.Prometheus, books: inquiry.LabelBooks, hour: Instant, now: Instant) -> Iterator[Question]:
    """About the hour that begins then, asked now: signatures and tokens are of now."""
    part = f"[{queries.span(HOUR)}]{_ago(now - hour - HOUR)}"
    for metric in (*RATIOS, *queries.POWER):
        promql = f"avg_over_time({prometheus.selector(metric.name, metric.matcher)}{part})"
        is_primary = metric in RATIOS
        yield Question(
            Topic(What.mean, metric.name, HOUR), promql, books.of(metric), metric.signal.label, required=is_primary
        )
    grown = f"increase({prometheus.selector(queries.ENERGY)}{part})"
    yield Question(Topic(What.increase, queries.ENERGY, HOUR), grown, books.foreign, "energy")


def _ago(seconds: Seconds) -> str:
    return f" offset {queries.span(seconds)}" if seconds > 0 else ""


def is_any_shared(held: rows.Holders) -> bool:
    """Does anybody hold a part of a GPU? Then what that draws when it does nothing counts."""
    return any(
        unit.sharing is not Sharing.exclusive
        for pod in held.pods for unit in shares.held_by(pod, held.nodes.get(pod.node))
    )


def fold(
    found: Readings, facts: Sequence[labels.Facts], held: rows.Holders, witnesses: rows.Witnesses | None = None,
    *, has_believed: bool = False, floors: Mapping[str, float] = MappingProxyType({}),
) -> tuple[usage.HourReading, ...]:
    """Series into readings, by whoever may be believed. Of several series of one GPU in one hand the highest counts.
    `floors`: the lowest power of each board."""
    gathered: dict[_Key, dict[str, float]] = {}
    keys: dict[int, _Key | None] = {}
    witness_of = witnesses or held.witness
    spots = {one.spot: one.uuid for one in facts if one.spot and one.uuid}
    for field, number, value in _values(found, np.array([one.mig for one in facts], np.bool_)):
        if number not in keys:
            one = facts[number]
            witness = witness_of(one)
            is_heard = rows.counts(one, witness, has_believed)
            keys[number] = _key_of(one, witness, held, spots) if is_heard else None
        key = keys[number]
        if key is not None:
            known = gathered.setdefault(key, {})
            known[field] = max(value, known.get(field, 0.0))
    readings = (
        usage.HourReading(node=key[0], namespace=key[1], pod=key[2], gpu=key[3], **found)
        for key, found in sorted(gathered.items())
    )
    return tuple(
        msgspec.structs.replace(one, floor_watts=floor) if (floor := floors.get(one.board, math.nan)) >= 0 else one
        for one in readings
    )


def _values(found: Readings, mig: usage.Bools) -> Iterator[tuple[str, int, float]]:
    """(which field of a reading, of which series, how much): of several signals of a series the first of the table. On
    MIG no utilisation counts."""
    for field, metrics in _FIELDS.items():
        best = np.full(len(mig), np.nan)
        for metric in metrics:
            reading = found.get(Topic(What.mean, metric.name, HOUR), NOTHING)
            values = queries.believe(reading.by_series(len(mig)), metric)
            values = np.where(mig, np.nan, values) if metric.signal in _NOT_ON_MIG else values
            best = np.where(np.isnan(best), values, best)
        yield from ((field, number, float(best[number])) for number in np.flatnonzero(~np.isnan(best)).tolist())
    grown = found.get(Topic(What.increase, queries.ENERGY, HOUR), NOTHING)
    for number, value in zip(grown.series.tolist(), grown.values.tolist(), strict=True):
        if 0.0 <= value <= _MOST_MJ:
            yield "energy_mj", number, value


def _key_of(
    facts: labels.Facts, witness: trust.Witness, held: rows.Holders, spots: dict[str, str]
) -> _Key | None:
    """A pod that is gone since is known by its name, where that surely is a workload's."""
    board = facts.uuid or spots.get(facts.spot, facts.spot)
    if not board:
        return None
    gpu = f"{board}/{facts.instance}" if facts.instance else board
    several = held.holders(facts, witness)
    is_named = len(several) == 1 or (not several and facts.sure and bool(facts.pod))
    namespace, pod = (facts.namespace, facts.pod) if is_named else ("", "")
    return held.node_of(facts), namespace, pod, gpu
