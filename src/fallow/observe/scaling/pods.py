"""All pods that run or wait, as slim as nodes that come and go need them, kept equal to the server's by list and watch.

In: an Api. Out: ScaledPods: what each asks for, where it may run, why it waits or must not be moved, in which order it
would go. One that waits behind a gate, a queue, a volume or the scheduler's own choice is `held`: nobody's demand.
Invariant: what cannot be read is `unclear`; while not all pods can be read, all are unseen.
"""

import functools
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from fallow import names
from fallow.clients.kubernetes import api as kube
from fallow.model.classes import WorkClass
from fallow.model.cluster import PodId
from fallow.model.scaling import EvictionRank, NodeToleration, ScaledPod, WaitHold
from fallow.model.seen import Input, Known, sure
from fallow.observe.budgets import Watching
from fallow.observe.cluster import capacity, objects, pods

_HIGH: Final = 1000  # a PriorityClass above it is somebody's who goes last
_RANKS: Final = {
    WorkClass.training: EvictionRank.high, WorkClass.inference: EvictionRank.medium,
    WorkClass.notebook: EvictionRank.low, WorkClass.batch: EvictionRank.low,
}


class _Gate(msgspec.Struct, gc=False):
    name: str = ""


class _WaitCondition(objects.ObjectCondition, gc=False):
    message: str = ""


class _WaitStatus(capacity.CountedStatus, rename="camel", gc=False):
    conditions: Sequence[_WaitCondition] | None = None


class _ScaledSpec(capacity.CountedSpec, kw_only=True, gc=False):
    termination_grace_period_seconds: int = 30
    priority: int | None = None
    scheduling_gates: list[_Gate] | None = None


class ScaledPodItem(capacity.CountedPodItem, kw_only=True, gc=False):
    spec: _ScaledSpec
    status: _WaitStatus = msgspec.field(default_factory=_WaitStatus)


class PodEyes:
    """`seen`: all pods, each with how many of its owner's there are where that matters. `is_fresh`: somebody who was
    not counted yet waits for a GPU."""

    def __init__(self, api: kube.Api, wake: Callable[[], None] = lambda: None) -> None:
        """`wake`: the first such has come."""
        self._wake, self._waiting = wake, set[str]()
        self.is_fresh = False
        self._reader, self._pool = pods.PodReader(), objects.Pool()
        self.watching: Watching[ScaledPod] = Watching(
            api, kube.PODS, ScaledPodItem, self._keep, field_selector=pods.ALIVE
        )
        self._made: tuple[Input[tuple[ScaledPod, ...]], Input[tuple[ScaledPod, ...]]] | None = None

    @property
    def seen(self) -> Input[tuple[ScaledPod, ...]]:
        found = self.watching.seen
        if self._made is None or self._made[0] is not found:
            self._made = found, Known(count_replicas(found.value)) if isinstance(found, Known) else found
        return self._made[1]

    def count(self) -> None:
        """Everybody who waits now."""
        self._waiting = {pod.id.uid for pod in sure(self.watching.seen) if not pod.node}
        self.is_fresh = False

    def _keep(self, item: ScaledPodItem) -> ScaledPod:
        found = self.see(item)
        waits = found.waits_since is not None and found.held is None and _asks_gpus(found.asks)
        if waits and found.id.uid not in self._waiting:
            self._waiting.add(found.id.uid)
            if not self.is_fresh:
                self._wake()
            self.is_fresh = True
        return found

    def see(self, item: ScaledPodItem) -> ScaledPod:
        meta, spec = item.metadata, item.spec
        pod = self._reader.read_counted(item, capacity.see_needs(item))
        asks, unclear = _read_asks(spec)
        neighbours = _read_neighbours(spec)
        apart = not unclear and neighbours.is_apart
        if not unclear and neighbours.are_minded:
            unclear = "minds which pods are beside it"
        if not spec.node_name and (apart or not (spec.resource_claims or _asks_gpus(asks))):
            unclear = ""  # an empty node does for it; and who waits for no GPU keeps no node
        work = capacity.find_class(meta, spec)
        said = {**(meta.labels or {}), **(meta.annotations or {})}
        stays = pod.belongs_to_node
        return ScaledPod(
            id=PodId(pod.namespace, pod.name, pod.uid), node=pod.node, asks=self._pool.share(asks), unclear=unclear,
            apart=apart, fixed="" if stays else capacity.why_fixed(meta, spec, work, frees_alone=True),
            held=_find_hold(item), stays=stays, is_going=pod.terminating, is_ready=pod.ready, owner=pod.owner,
            created_at=pod.created_at, waits_since=pod.unschedulable_since, priority=spec.priority or 0, work=work,
            spot_ok={"true": True, "false": False}.get(said.get(names.SPOT_OK, "")),
            rank=_find_rank(said, spec.priority or 0, work), grace=float(spec.termination_grace_period_seconds),
            node_selector=self._pool.share(spec.node_selector), affinity=pods.required_terms(spec.affinity),
            tolerations=_share(tuple(spec.tolerations or ())), gang=_find_gang(pod.namespace, said),
            gang_size=_read_size(said.get(names.KUEUE_POD_GROUP_SIZE, "")),
        )


def _find_gang(namespace: str, said: Mapping[str, str]) -> str:
    """Of those that only start together, as Kueue, JobSet, Volcano or the coscheduling plugin say it, or an Indexed
    Job. Whoever has a request already starts by that."""
    if any(key in said for key in names.CONSUMES_REQUEST):
        return ""
    for key in names.POD_GROUPS:
        if said.get(key):
            return sys.intern(f"{namespace}/{said[key]}")
    is_indexed = names.INDEXED_POD in said and names.JOB_NAME in said
    return sys.intern(f"{namespace}/{said[names.JOB_NAME]}") if is_indexed else ""


def _read_size(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < 6 else None


@functools.lru_cache(objects.MOST_SHARED)
def _share(tolerations: tuple[NodeToleration, ...]) -> tuple[NodeToleration, ...]:
    return tolerations


def count_replicas(found: tuple[ScaledPod, ...]) -> tuple[ScaledPod, ...]:
    """Of whoever serves: one of one must not be lost."""
    served = Counter(each.owner.uid for each in found if each.work is WorkClass.inference and each.owner is not None)
    return tuple(
        msgspec.structs.replace(each, replicas=served[each.owner.uid])
        if each.work is WorkClass.inference and each.owner is not None else each for each in found
    )


def _read_asks(spec: _ScaledSpec) -> tuple[dict[str, int], str]:
    try:
        asks = {name: amount for name, amount in capacity.add_up(spec).items() if amount}
    except ValueError as problem:
        return {}, f"what it asks for cannot be read: {problem}"
    return asks, "asks for devices by claims" if spec.resource_claims else ""


class _Neighbours(msgspec.Struct, frozen=True):
    """What it minds of who is beside it: pods that must be there, and such that must not."""

    wanted: Sequence[Any]
    unwanted: Sequence[Any]

    @property
    def are_minded(self) -> bool:
        return bool(self.wanted or self.unwanted)

    @property
    def is_apart(self) -> bool:
        """All that it minds is that none of them is on its node: then an empty one does. In a zone there may be some
        all the same."""
        terms = self.unwanted if not self.wanted else ()
        return bool(terms) and all(isinstance(each, Mapping) and each.get("topologyKey") == names.HOSTNAME
                                   for each in terms)


def _read_neighbours(spec: _ScaledSpec) -> _Neighbours:
    affinity = spec.read_affinity()
    wanted, unwanted = (
        (affinity.get(key) or {}).get(names.REQUIRED) or []
        for key in ("podAffinity", "podAntiAffinity")
    )
    spreads = [each for each in spec.topology_spread_constraints or () if _must_spread(each)]
    return _Neighbours(wanted, [*unwanted, *spreads])


def _asks_gpus(asks: Mapping[str, int]) -> bool:
    return any(name.startswith(names.NVIDIA) for name in asks)


def _must_spread(constraint: Any) -> bool:
    return isinstance(constraint, Mapping) and constraint.get("whenUnsatisfiable") != "ScheduleAnyway"


def _find_hold(item: ScaledPodItem) -> WaitHold | None:
    """Why it is nobody's demand, although it has no node; of those that have one, placeholders are nobody's."""
    spec, status = item.spec, item.status
    if not spec.node_name and item.metadata.deletion_timestamp is not None:
        return WaitHold.BeingDeleted
    if names.HEADROOM in (item.metadata.labels or {}) or spec.priority_class_name == names.HEADROOM_CLASS:
        return WaitHold.Placeholder
    if spec.node_name:
        return None
    if gates := [gate.name for gate in spec.scheduling_gates or ()]:
        is_queued = any(gate.startswith(names.KUEUE_GATES) for gate in gates)
        return WaitHold.Queued if is_queued else WaitHold.SchedulingGated
    if status.nominated_node_name:
        return WaitHold.Nominated
    said = next((each for each in status.conditions or () if each.type == "PodScheduled"), None)
    if said is None or said.status != "False" or said.reason != "Unschedulable":
        return WaitHold.NotJudged
    return WaitHold.VolumeUnbound if names.UNBOUND_VOLUMES in said.message else None


def _find_rank(said: Mapping[str, str], priority: int, work: WorkClass) -> EvictionRank:
    word = said.get(names.EVICTION_PRIORITY, "")
    if word in list(EvictionRank):
        return EvictionRank(word)
    return EvictionRank.high if priority > _HIGH else _RANKS[work]
