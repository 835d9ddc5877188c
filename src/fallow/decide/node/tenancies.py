"""What each pod does with the GPUs it holds: its processes, their memory, how busy, since when one is held in vain.

In: a judged poll, whose each process is, who was granted which GPU, what is remembered, two clocks.
Out: one Tenancy per grant. A process belongs to a grant by its pod, on MIG also by its instance, and to one of several
containers by its container.

    scope process    its processes' utilisation, summed
    scope instance   that of its MIG instance, if it has it alone
    scope device     that of the GPU, if it has it alone and its processes cannot be measured or told from others'

Invariant: "no process" is said only after a list that was read and in which no process could be this pod's. A process
whose owner nobody knows, a list that failed, a device that works while nobody is listed: all of these make it unknown,
which is None.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from fallow.decide.node.processes import HIDDEN_PERCENT
from fallow.model.processes import Grant, Judged, KeptTenancy, Key, Poll, Process, ProcessOwner, Share, Tenancy, Type
from fallow.model.units import Instant, Seconds

Hold: TypeAlias = tuple[str, int | None, str, str, str]  # UUID, GPU instance, namespace, pod, container
OwnersByProcess: TypeAlias = Mapping[Key, ProcessOwner]

_NOBODY_KNOWS: Final = ProcessOwner(is_known=False)


class TenancyHistory:
    """What outlives a poll, and by export() and restore() a restart."""

    def __init__(self) -> None:
        self._kept: dict[Hold, KeptTenancy] = {}

    def export(self) -> list[KeptTenancy]:
        return list(self._kept.values())

    def restore(self, kept: Any, monotonic: Seconds) -> str:
        """Only of the same boot, as JSON gave it back. Why it cannot be used; empty if it is."""
        try:
            found = msgspec.convert(kept or [], list[KeptTenancy])
        except msgspec.ValidationError as problem:
            return f"what was remembered of pods cannot be read: {problem}"
        self._kept = {_hold(each): each for each in found if _newest(each) <= monotonic}
        return ""

    def recall(self, grant: Grant) -> KeptTenancy:
        """A pod that has only the name of another is not that one."""
        hold = _hold(grant)
        kept = self._kept.get(hold)
        if kept is None or (kept.pod_uid and grant.pod_uid and kept.pod_uid != grant.pod_uid):
            kept = self._kept[hold] = KeptTenancy(
                uuid=grant.uuid, gi=grant.gi, namespace=grant.namespace, pod=grant.pod, container=grant.container
            )
        kept.pod_uid = grant.pod_uid or kept.pod_uid
        return kept

    def forget(self, monotonic: Seconds, stale_after: Seconds) -> None:
        self._kept = {hold: kept for hold, kept in self._kept.items() if monotonic - _newest(kept) <= stale_after}


def tenancies(
    poll: Poll, owners: OwnersByProcess, grants: Sequence[Grant] | None, history: TenancyHistory,
    now: Instant, monotonic: Seconds, stale_after: Seconds,
) -> list[Tenancy]:
    """One for each grant on a device of this poll; none if nobody knows who holds what.

    `stale_after`: a longer time without an observation is a gap. It must be longer than the time between two polls.
    """
    history.forget(monotonic, stale_after)
    devices = {judged.device.uuid: judged for judged in poll.devices if not judged.device.is_lost}
    on_device: dict[str, list[Grant]] = {}
    for grant in grants or ():
        if grant.uuid in devices:
            on_device.setdefault(grant.uuid, []).append(grant)
    found: list[Tenancy] = []
    for uuid, here in on_device.items():
        for seen in _look(devices[uuid], here, owners):
            kept = history.recall(seen.grant)
            _remember(kept, seen, now, monotonic, stale_after)
            found.append(_describe(devices[uuid], seen, kept, monotonic))
    found.sort(key=lambda each: (each.gpu, -1 if each.grant.gi is None else each.grant.gi, _hold(each.grant)[2:]))
    return found


class _SeenGrant(msgspec.Struct, gc=False):
    """A grant at this poll. `processes` None: not known which are its."""

    grant: Grant
    scope: str
    processes: list[Process] | None
    utilization: float | None
    active: Instant | None  # when one of the processes that are certainly its last worked


def _look(judged: Judged, grants: Sequence[Grant], owners: OwnersByProcess) -> list[_SeenGrant]:
    crews, uncertain = _assign(judged.processes or (), grants, owners)
    seen = []
    for index, (grant, crew) in enumerate(zip(grants, crews, strict=True)):
        is_distinct = index not in uncertain and not grant.may_hide
        is_known = judged.processes is not None and is_distinct and (bool(crew) or not _hides_activity(judged, grant))
        known = crew if is_known else None
        scope = _choose_scope(judged, grant, is_distinct)
        is_alone = sum(other.gi == grant.gi for other in grants) == 1
        active = max((each.last_active for each in crew if each.last_active is not None), default=None)
        seen.append(_SeenGrant(grant, scope, known, _measure(judged, grant, scope, known, is_alone), active))
    _withhold_zeros(seen)
    return seen


def _withhold_zeros(seen: Sequence[_SeenGrant]) -> None:
    """A zero beside a container of the same pod of which nothing is known: added up, the pod would seem idle."""
    pods = [_hold(each.grant)[1:4] for each in seen]
    unknown = {pod for pod, each in zip(pods, seen, strict=True) if each.utilization is None}
    for pod, each in zip(pods, seen, strict=True):
        if each.utilization == 0 and pod in unknown:
            each.utilization = None


def _assign(
    processes: Iterable[Process], grants: Sequence[Grant], owners: OwnersByProcess
) -> tuple[list[list[Process]], set[int]]:
    """The processes of each grant; and the grants (by index) to which one more may belong, nobody can tell."""
    crews: list[list[Process]] = [[] for _ in grants]
    uncertain: set[int] = set()
    for process in processes:
        owner = owners.get((process.pid, process.start), _NOBODY_KNOWS)
        possible = [at for at, grant in enumerate(grants) if _may_use(process, grant) and _may_be(owner, grant)]
        exact = [at for at in possible if owner.container and grants[at].container == owner.container]
        likely = exact or possible
        if len(likely) == 1 and owner.pod:
            crews[likely[0]].append(process)
        else:
            uncertain.update(likely)
    return crews, uncertain


def _may_be(owner: ProcessOwner, grant: Grant) -> bool:
    """Whether this is the grant's pod, as far as anybody knows. Of one that the API server knows we have the name."""
    if owner.pod:
        return (owner.namespace, owner.pod) == (grant.namespace, grant.pod)
    return not owner.is_known or (bool(owner.pod_uid) and not grant.pod_uid)


def _may_use(process: Process, grant: Grant) -> bool:
    """On MIG a process runs on instances; where the driver does not say on which, it may be any."""
    if grant.gi is None or not process.instances:
        return True
    return any(gi == grant.gi and grant.ci in (None, ci) for gi, ci in process.instances)


def _hides_activity(judged: Judged, grant: Grant) -> bool:
    """The device or instance works, and nobody who is listed on it does: an empty list may be wrong."""
    load = _load_of(judged, grant)
    if load is None or load <= HIDDEN_PERCENT:
        return False
    users = [process for process in judged.processes or () if _may_use(process, grant)]
    return not (users if judged.is_supported is False else any(process.sm for process in users))


def _load_of(judged: Judged, grant: Grant) -> float | None:
    """Utilisation of what was granted, whoever caused it."""
    if grant.gi is None:
        return None if judged.device.utilization is None else float(judged.device.utilization)
    instances = (each for each in judged.device.instances if each.gi == grant.gi and grant.ci in (None, each.ci))
    return next((each.utilization for each in instances if each.utilization is not None), None)


def _choose_scope(judged: Judged, grant: Grant, is_distinct: bool) -> str:
    if grant.gi is not None:
        return "instance"
    is_measured = judged.is_supported is not False and is_distinct
    return "process" if is_measured or grant.share is not Share.exclusive else "device"


def _measure(
    judged: Judged, grant: Grant, scope: str, processes: Sequence[Process] | None, is_alone: bool
) -> float | None:
    load = _load_of(judged, grant)
    if scope == "device" or (scope == "instance" and is_alone and load is not None):
        return load
    if processes is None:
        return None
    # What an MPS server does it does for its clients.
    percents = [process.sm for process in processes if process.type is not Type.mps_server]
    if None in percents:
        return None
    return min(100.0, float(sum(percent for percent in percents if percent is not None)))


def _hold(of: Grant | KeptTenancy) -> Hold:
    return of.uuid, of.gi, of.namespace, of.pod, of.container


def _newest(kept: KeptTenancy) -> Seconds:
    return max((at for at in (kept.observed, kept.counted) if at is not None), default=0.0)


def _remember(kept: KeptTenancy, seen: _SeenGrant, now: Instant, monotonic: Seconds, stale_after: Seconds) -> None:
    if kept.observed is None or monotonic - kept.observed > stale_after:
        kept.observed_since = kept.last_active = None
    if kept.counted is None or monotonic - kept.counted > stale_after:
        kept.empty_since = None
    if seen.utilization is not None:
        kept.observed = monotonic
        kept.observed_since = now if kept.observed_since is None else kept.observed_since
    works_now = now if seen.utilization and seen.scope != "process" else None
    kept.last_active = max((at for at in (kept.last_active, seen.active, works_now) if at is not None), default=None)
    if seen.processes is not None:
        kept.counted = monotonic
        since = monotonic if kept.empty_since is None else kept.empty_since
        kept.empty_since = None if seen.processes else since


def _describe(judged: Judged, seen: _SeenGrant, kept: KeptTenancy, monotonic: Seconds) -> Tenancy:
    processes = seen.processes
    memories = None if processes is None else [process.memory for process in processes]
    empty_for = 0.0 if kept.empty_since is None else max(0.0, monotonic - kept.empty_since)
    return Tenancy(
        gpu=judged.device.index, grant=seen.grant, scope=seen.scope, utilization=seen.utilization,
        processes=None if processes is None else len(processes),
        memory=None if memories is None or None in memories else sum(memory or 0 for memory in memories),
        last_active=kept.last_active, observed_since=kept.observed_since,
        no_process_seconds=None if processes is None else empty_for,
    )
