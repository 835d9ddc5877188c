"""What a month must cost at the least, for whoever knows all of it before.

In: when each pod really ran, what it may run on, how long a node that nobody is on must stay. Out: two amounts.
`find_work`: the work alone, by the GPU, at the lowest price that each pod may pay. Nobody can be below it.
`find_clairvoyant`: the same work at the same times by who knows when each pod comes and ends, starts a machine just in
time and lets it go just when it may: it pays for the shortest boot, for the end of a machine, and for the time that the
policy has an empty node stay before it goes. Between two pods a GPU is kept or given back, whichever is cheaper.
It buys by the GPU, knows no cooldown and never lacks stock; so who keeps to the policy cannot be below it, either, but
for nodes that end before they may: taken back by their cloud, or emptied by moving pods.
Invariant: work that was done twice counts once in both.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from fallow.model.cost import CapacityType
from fallow.model.units import HOUR, Instant, Seconds
from fallow.sim import cloud
from fallow.sim.month import pools
from fallow.sim.month.scene import MonthPod

Span = tuple[Instant, Instant]


class MonthSpan(msgspec.Struct, frozen=True, kw_only=True):
    """From when until when the month lasts. `stays`: how long a node that nobody is on is kept, by the policy."""

    begins: Instant
    ends: Instant
    stays: Seconds = 0.0


def find_work(pods: Iterable[MonthPod], month: MonthSpan) -> float:
    """Of a GPU for as long as each really had one."""
    return sum(
        pod.job.gpus * (ends - begins) / HOUR * _price(pod.job.spot)
        for pod in pods for begins, ends in pod.list_runs(month.ends)
    )


def find_clairvoyant(pods: Sequence[MonthPod], month: MonthSpan) -> float:
    """Pods that are on spot and those that are not, small and large ones, share no machine."""
    total = find_work(pods, month)
    for spot in (True, False):
        for is_large in (True, False):
            own = [pod for pod in pods if pod.job.spot is spot and pod.job.is_large is is_large]
            total += _idle_least(own, month) / HOUR * _price(spot)
    return total


def _price(spot: bool) -> float:
    return pools.PER_GPU[CapacityType.spot if spot else CapacityType.on_demand]


def _idle_least(pods: Iterable[MonthPod], month: MonthSpan) -> Seconds:
    """Seconds of GPUs that are paid for and do nothing. The GPU that was needed last goes first and comes last: level
    by level, each gap between two uses costs itself, or one end and one boot."""
    boot, end = pools.BOOTS[0], month.stays + cloud.ENDING
    idle, level = 0.0, 0
    since: dict[int, Instant] = {}  # by level: not in use since
    for at, more in sorted(_list_changes(pods, month)):
        for place in range(level, level + more):
            idle += min(at - since.pop(place), boot + end) if place in since else min(at - month.begins, boot)
        since |= dict.fromkeys(range(level + more, level), at)
        level += more
    return idle + sum(min(month.ends - at, end) for at in since.values())


def _list_changes(pods: Iterable[MonthPod], month: MonthSpan) -> Iterator[tuple[Instant, int]]:
    """Ends before what begins in the same second."""
    for pod in pods:
        for begins, ends in pod.list_runs(month.ends):
            yield begins, pod.job.gpus
            if ends < month.ends:
                yield ends, -pod.job.gpus
