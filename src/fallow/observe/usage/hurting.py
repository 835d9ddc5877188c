"""How those do who share a GPU, and how they did before: asked of Prometheus.

In: SharedOwners, whose series count. Out: a HurtSeen by the owner's uid. Three questions for some hundred pods:
restarts (kube-state-metrics), XIDs and how busy their GPUs are (an exporter that is believed); for each owner its past,
asked once, and the latency that its policy names. Where very many owners are watched, only some are asked about one by
one in each look, in turn: what is not asked is not known.
Invariant: an empty answer is not known, and no 0. A latency that cannot be asked for is not known, and hinders nothing
else; whatever else Prometheus refuses is raised.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from fallow.clients import errors
from fallow.clients.prometheus import client
from fallow.model import kinds
from fallow.model.share_hurts import BEFORE, EVALUATED, EVALUATIONS, FAULTS, RECENT, WATCHED, HurtSeen, SharedOwner
from fallow.model.units import Instant, Seconds
from fallow.observe.usage.owning import PodLabels, UseWords

_RESTARTS, _XID = "kube_pod_container_status_restarts_total", "DCGM_FI_DEV_XID_ERRORS"
_ENGINE, _UTIL = "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_GPU_UTIL"
_STEP: Final[Seconds] = 60.0
_COVERAGE: Final = 0.8
_AT_ONCE: Final = 250  # pods
MOST_OWNERS: Final = 400  # asked about one by one in a look
_MOST_BUSY: Final = 1.05  # above it nothing believable was measured
_Values = Mapping[tuple[str, str], float]  # by namespace and name


class _Nobody(msgspec.Struct, frozen=True):
    """Labels that do not matter."""


class HurtReader:
    """Asks, and remembers what was before: that does not change any more."""

    def __init__(self, prometheus: client.Prometheus, words: UseWords) -> None:
        self._prometheus, self._words = prometheus, words
        self._before: dict[tuple[str, Instant, str], HurtSeen] = {}  # by owner, since when, and its latency
        self._turn = 0  # who is asked about next, one by one

    async def read(self, owners: Sequence[SharedOwner], now: Instant) -> dict[str, HurtSeen]:
        pods = sorted({pod for owner in owners for pod in owner.pods})
        asked = [await self._read_pods(pods[start : start + _AT_ONCE], now) for start in range(0, len(pods), _AT_ONCE)]
        restarts, faults, full = ({key: value for each in asked for key, value in each[which].items()}
                                  for which in range(3))
        chosen = self._take_turn(owners)
        found = {
            each.workload.ref.uid: await self._see(each, restarts, faults, full, now if number in chosen else None)
            for number, each in enumerate(owners)
        }
        self._before = {key: seen for key, seen in self._before.items() if key[0] in found}
        return found

    def _take_turn(self, owners: Sequence[SharedOwner]) -> set[int]:
        first = self._turn if self._turn < len(owners) else 0
        self._turn = first + MOST_OWNERS
        return set(range(first, self._turn))

    async def _read_pods(self, pods: Sequence[str], now: Instant) -> tuple[_Values, _Values, _Values]:
        restarts = await self._ask(_make_restarts(self._select_state(pods)), UseWords("pod", "namespace"), now)
        faults = await self._ask(_make_faults(self._select(_XID, pods)), self._words, now)
        busy = f"({self._select(_ENGINE, pods)} or {self._select(_UTIL, pods)} / 100)"
        return restarts, faults, await self._ask(_make_full(busy), self._words, now)

    async def _see(
        self, owner: SharedOwner, restarts: _Values, faults: _Values, full: _Values, asked_at: Instant | None
    ) -> HurtSeen:
        """`asked_at` None: it is not asked about alone this time."""
        before = await self._read_before(owner, may_ask=asked_at is not None)
        counted, broken, busy = (_pick(owner, each) for each in (restarts, faults, full))
        is_asked = asked_at is not None and bool(owner.guard.latency_query)
        asked = [(asked_at or 0.0) - EVALUATED * turn for turn in range(EVALUATIONS)] if is_asked else []
        return HurtSeen(
            restarts=round(sum(counted)) if counted else None, restarts_before=before.restarts_before,
            fault=round(max(broken)) if broken else None, latency_before=before.latency_before,
            latencies=tuple([await self._ask_latency(owner, at) for at in asked]),
            full=max((each for each in busy if 0 <= each <= _MOST_BUSY), default=None),
        )

    async def _read_before(self, owner: SharedOwner, *, may_ask: bool) -> HurtSeen:
        key = owner.workload.ref.uid, owner.since, owner.guard.latency_query
        if key not in self._before and not may_ask:
            return HurtSeen()
        if key not in self._before:
            latency = None
            if owner.guard.latency_query:
                latency = await self._ask_latency(owner, owner.since, over=f"[{BEFORE:.0f}s:{EVALUATED:.0f}s]")
            restarts = await self._count_before(owner)
            self._before[key] = HurtSeen(restarts_before=restarts, latency_before=latency)
        return self._before[key]

    async def _count_before(self, owner: SharedOwner) -> int | None:
        ref = owner.workload.ref
        row = kinds.of(owner.workload)
        named = client.escape(ref.name.replace(".", "\\.") + (row.pod_tail if row else kinds.ANY_TAIL))
        chosen = self._prometheus.selector(_RESTARTS, client.any_of("namespace", [ref.namespace]), f'pod=~"{named}"')
        found = await self._ask_one(f"max(max_over_time({chosen}[{BEFORE:.0f}s]))", owner.since)
        return None if found is None else round(found)

    async def _ask_latency(self, owner: SharedOwner, at: Instant, over: str = "") -> float | None:
        ref, query = owner.workload.ref, owner.guard.latency_query
        for word, value in (("$namespace", ref.namespace), ("$name", ref.name)):
            query = query.replace(word, client.escape(value))
        try:
            return await self._ask_one(f"avg_over_time(({query}){over})" if over else query, at)
        except errors.ClientError:
            return None

    async def _ask_one(self, promql: str, at: Instant) -> float | None:
        """None: there is none, or more than one."""
        answer = await self._prometheus.query(promql, at, row=_Nobody)
        if answer.partial:
            raise errors.BadAnswer("Prometheus answered only in part")
        values = [float(each.value.value) for each in answer.rows]
        return values[0] if len(values) == 1 and math.isfinite(values[0]) else None

    async def _ask(self, promql: str, words: UseWords, at: Instant) -> _Values:
        answer = await self._prometheus.query(promql.replace("$by", f"by ({words.namespace}, {words.pod})"), at,
                                              row=PodLabels)
        if answer.partial:
            raise errors.BadAnswer("Prometheus answered only in part")
        found = ((getattr(each.metric, words.namespace), getattr(each.metric, words.pod), float(each.value.value))
                 for each in answer.rows)
        return {(namespace, pod): value for namespace, pod, value in found if math.isfinite(value)}

    def _select_state(self, pods: Sequence[str]) -> str:
        return self._prometheus.selector(_RESTARTS, client.any_of("pod", pods))

    def _select(self, metric: str, pods: Sequence[str]) -> str:
        exporters = self._words.exporters
        believed = [] if exporters is None else [f'namespace=~"{client.escape(exporters)}"']
        return self._prometheus.selector(metric, client.any_of(self._words.pod, pods), *believed)


def _pick(owner: SharedOwner, values: _Values) -> list[float]:
    place = owner.workload.ref.namespace
    return [values[place, pod] for pod in owner.pods if (place, pod) in values]


def _make_restarts(series: str) -> str:
    """By how much they are more than half an hour ago. Who is younger began with none; of who is older, and was not
    measured at that instant, nobody knows. A container is one whoever exported it: where kube-state-metrics itself is
    made anew, or runs twice, nobody restarted more often for that."""
    highest = _each_container(f"max_over_time({series}[{RECENT:.0f}s])")
    before = _each_container(f"{series} offset {RECENT:.0f}s")
    older = _each_container(f"count_over_time({series}[{WATCHED:.0f}s] offset {RECENT:.0f}s)")
    return f"sum $by ({highest} - {before} or ({highest} unless {older}))"


def _each_container(promql: str) -> str:
    return f"max by (namespace, pod, uid, container) ({promql})"


def _make_faults(series: str) -> str:
    """The gauge keeps the last XID for good: only one that came while it was watched counts."""
    heeded = " or ".join(f"{series} == {each}" for each in FAULTS)
    return f"max $by (({heeded}) and changes({series}[{WATCHED:.0f}s]) > 0)"


def _make_full(busy: str) -> str:
    span = f"[{RECENT:.0f}s:{_STEP:.0f}s]"
    enough = math.ceil(RECENT / _STEP * _COVERAGE)
    return f"max $by (quantile_over_time(0.95, {busy}{span}) and count_over_time({busy}{span}) >= {enough})"
