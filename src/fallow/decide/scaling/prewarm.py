"""Nodes that are started ahead of demand: only where guesses have earned trust, and gone again where nobody came.

In: the demand of the last weeks, hourly; what there is; how earlier guesses fared. Out: a DemandGuess, the pods that
are expected beyond those that are there (in the mix of those that run), nodes whose turn is over.
A guess that is no better than "as now" starts nothing; nor does one that came true in less than half of ten cases.
Invariant: an hour that nobody saw is no demand; too many of them, and there is no guess.
"""

import math
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from fallow import names
from fallow.decide.scaling import fit, foresight
from fallow.model.cluster import PodId
from fallow.model.policies.scaling import Prewarming
from fallow.model.scaling import DemandPast, ScaledNode, ScaledPod
from fallow.model.scaling_plan import DemandGuess
from fallow.model.units import HOUR, Instant

FULL: Final = 0.7  # of the capacity: a peak above it is prepared for
BUSY: Final = 0.6
JUDGED: Final = 10  # nodes, after which half must have been used
_FEWEST_HOURS: Final = 2 * 24
_SHOWN: Final = 24  # hours ahead that people are shown
_MOST_PODS: Final = 2000  # that are imagined
_STRIDE: Final = 7919  # through the mix, so that neighbours, who are alike, do not follow each other
_NAMELESS: Final = PodId("", "", "")


class DemandOutlook(msgspec.Struct, frozen=True):
    """`ahead`: GPUs in each hour after `begins_at`. `is_seasonal`: the guess is better than "as now"."""

    begins_at: Instant
    ahead: tuple[float, ...]
    model: str
    error: float | None
    confidence: float
    is_seasonal: bool


def foresee(past: DemandPast, rule: Prewarming, node: float) -> DemandOutlook | None:
    """`node`: GPUs of one. None: too little is known."""
    hours = past.hours[-foresight.HISTORY:]
    if len(hours) < _FEWEST_HOURS:
        return None
    demand = np.array([hours], np.float64)
    first = int(past.ends_at // HOUR) - len(hours)
    slots = (first + np.arange(len(hours) + foresight.WEEK)) % foresight.WEEK
    found = foresight.foresee(demand, slots, max(1, math.ceil(rule.horizon / HOUR)), node=node)
    if np.isnan(found.ahead).any():
        return None
    chosen = int(found.guesser[0])
    said = foresight.guess(demand, slots, np.array([len(hours)], np.int64), foresight.WEEK).said[chosen, 0, 0]
    error = float(found.errors[chosen, 0])
    return DemandOutlook(
        past.ends_at, tuple(map(float, said)), list(foresight.Guesser)[chosen],
        None if math.isnan(error) else error, float(found.confidence[0]), chosen > 0,
    )


def find_peak(outlook: DemandOutlook, rule: Prewarming, now: Instant) -> float | None:
    """The most that is expected between when nodes started now are there and the end of the horizon."""
    begin, end = now + rule.ahead, now + rule.ahead + rule.horizon
    seen = [
        gpus for place, gpus in enumerate(outlook.ahead)
        if outlook.begins_at + place * HOUR < end and outlook.begins_at + (place + 1) * HOUR > begin
    ]
    return max(seen, default=None)


def find_busy(outlook: DemandOutlook, capacity: float, now: Instant) -> Instant | None:
    hours = ((outlook.begins_at + place * HOUR, gpus) for place, gpus in enumerate(outlook.ahead))
    return next((at for at, gpus in hours if at + HOUR > now and gpus > BUSY * capacity), None)


def guess(outlook: DemandOutlook, rule: Prewarming, capacity: float, now: Instant) -> DemandGuess:
    peak = find_peak(outlook, rule, now)
    return DemandGuess(
        peak=peak, utilization=peak / capacity if peak is not None and capacity else None,
        confidence=outlook.confidence, busy_at=find_busy(outlook, capacity, now), model=outlook.model,
        error=outlook.error, ahead=outlook.ahead[:_SHOWN],
    )


def find_refusal(
    outlook: DemandOutlook, rule: Prewarming, peak: float | None, capacity: float, fared: tuple[int, int]
) -> str:
    """Why nothing is started ahead of time; "": something is."""
    if said := find_distrust(*fared):
        return said
    if not outlook.is_seasonal:
        return "no guess was better than saying that all stays as it is"
    if outlook.confidence <= rule.least_confidence:
        return f"guesses were nearly right in {outlook.confidence:.0%} of the cases"
    if peak is None or peak <= FULL * capacity:
        return "what is expected fits what is there"
    return ""


def find_distrust(hits: int, misses: int) -> str:
    """Why guesses have lost their trust; "": they have not."""
    if hits + misses < JUDGED or hits >= 0.5 * (hits + misses):
        return ""
    return f"of {hits + misses} nodes that were started ahead of time {hits} were used"


def imagine(
    extra: float, running: Sequence[ScaledPod], waiting: Sequence[ScaledPod], resource: str = names.GPU
) -> list[ScaledPod]:
    """Pods of so many GPUs in the mix of those that are there; where there are none, each of one of `resource`."""
    mix = sorted((pod for pod in (*running, *waiting) if fit.measure(pod.asks)), key=lambda pod: pod.id)
    mix = mix or [ScaledPod(id=_NAMELESS, asks={resource: 1})]
    made: list[ScaledPod] = []
    left = 1000 * extra
    while left > 0 and len(made) < _MOST_PODS:
        like = mix[len(made) * _STRIDE % len(mix)]
        number = f"{len(made):04}"
        made.append(msgspec.structs.replace(
            like, id=PodId("", f"expected-{number}", f"expected-{number}"), node="", held=None, is_going=False,
            unclear="", apart=False,
        ))
        left -= fit.measure(like.asks)
    return made


def find_end(rule: Prewarming, since: Instant, now: Instant) -> Instant:
    """Until when a node that was asked for at `since`, and is there now, waits for somebody."""
    return max(now, since + rule.ahead) + rule.release


def settle(nodes: Sequence[ScaledNode], has_guests: Sequence[bool], now: Instant) -> dict[str, bool]:
    """Nodes that were started ahead of demand and whose turn is over: somebody came, or the time is up."""
    return {
        node.name: is_used for node, is_used in zip(nodes, has_guests, strict=True)
        if node.prewarmed_until is not None and (is_used or now >= node.prewarmed_until)
    }


def count_results(hits: int, misses: int, results: Sequence[bool]) -> tuple[int, int]:
    """With the newest; of more than ten one of the other kind fades, so that the last ones tell."""
    for was_used in results:
        hits, misses = hits + was_used, misses + (not was_used)
        if hits + misses > JUDGED:
            drops_miss = misses > 0 if was_used else hits == 0
            hits, misses = (hits, misses - 1) if drops_miss else (hits - 1, misses)
    return hits, misses
