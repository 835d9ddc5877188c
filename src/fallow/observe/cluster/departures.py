"""Pods with GPUs that ended or went away since somebody asked, so that who comes and goes between two looks is booked.

In: what a follower kept of a pod, and its last object, of an event; None where a list was made anew and it was not on
it. Out: Departures, once. Of a pod that ended and is still there, the watch tells how it was before it ended, because
we follow only those that live: when that was, is asked for (`ask_ends`).
Invariant: bounded; where more go than fit, the oldest are forgotten, and their pods are found missing like any other.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.model import cluster
from fallow.model.units import Instant
from fallow.observe.cluster import pods

log = logging.getLogger("fallow")

MOST: Final = 20_000
_MOST_ASKED: Final = 1_000  # of one look; of the others counts when we heard that they went
_AT_ONCE: Final = 16


class Departures:
    def __init__(self, reader: pods.PodReader, clock: Callable[[], Instant] | None) -> None:
        self._reader, self._clock = reader, clock
        self._gone: deque[cluster.Departure] = deque(maxlen=MOST)

    def note(self, kept: cluster.Pod, last: pods.PodItem | None) -> None:
        if not kept.resources and not kept.claims:
            return
        if last is None or self._clock is None:
            self._gone.append(cluster.Departure(kept))
            return
        final = self._reader.read(last) or kept
        self._gone.append(cluster.Departure(final, pods.read_end(last.status), self._clock()))

    def take(self) -> tuple[cluster.Departure, ...]:
        gone = tuple(self._gone)
        self._gone.clear()
        return gone

    def give_back(self, gone: Sequence[cluster.Departure]) -> None:
        """Taken by a look that came to nothing: the next one has them."""
        self._gone.extendleft(reversed(gone))


async def ask_ends(
    api: kube.Api, reader: pods.PodReader, gone: Sequence[cluster.Departure], missed: Iterable[cluster.PodId]
) -> tuple[cluster.Departure, ...]:
    """The same, with the ends that only the pods themselves tell; and of those that were missed, who ended since."""
    known = {each.pod.uid: each for each in gone}
    unclear = [each.pod.id for each in gone if each.ended_at is None]
    wanted = [*unclear, *(each for each in missed if each.uid not in known)][:_MOST_ASKED]
    turns = asyncio.Semaphore(_AT_ONCE)

    async def ask(one: cluster.PodId) -> cluster.Departure | None:
        async with turns:
            return await _ask_end(api, reader, one)

    found = [each for each in await asyncio.gather(*map(ask, wanted)) if each is not None]
    return tuple({**known, **{each.pod.uid: each for each in found}}.values())


async def _ask_end(api: kube.Api, reader: pods.PodReader, one: cluster.PodId) -> cluster.Departure | None:
    try:
        item = await api.get(kube.PODS, one.namespace, one.name, kind=pods.PodItem)
    except errors.NotFound:
        return None
    except errors.ClientError as problem:
        log.info("when the pod %s/%s ended cannot be asked: %s", one.namespace, one.name, problem)
        return None
    ended_at, pod = pods.read_end(item.status), reader.read(item)
    if pod is None or pod.uid != one.uid or not pod.has_ended or ended_at is None:
        return None
    return cluster.Departure(pod, ended_at)
