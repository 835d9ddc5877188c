"""Pods in the API server's words, and what is remembered of the few that hold GPUs.

In: `PodItem`s, which name only what is read. Out: cluster.Pod, or None for a pod that asks for no GPU: it is forgotten
at once, and with it nine tenths of a cluster. A pod with ResourceClaims is kept until the claims tell whether they are
about GPUs; one in a namespace of exporters is kept for its address. A pod on a part of a GPU, which a reservation of
KAI or Run:ai holds for it, asks for none by its limits, and is kept as one of the sharers of one GPU.
Who counts capacity (capacity.py) decodes more and keeps every pod, in the same shape.
Invariant: a count that cannot be read, or is beyond reason, is not known (`claimed` None), never 0 and never 1.
"""

import functools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from fallow import names
from fallow.clients.kubernetes import api as kube
from fallow.model import capacity, cluster
from fallow.model.units import Instant
from fallow.observe.cluster import objects

# Succeeded and Failed pods hold nothing any more; the server leaves them out for us.
ALIVE = "status.phase!=Succeeded,status.phase!=Failed"

_HEEDED = frozenset({
    names.DOWNSCALER_EXCLUDE, names.DOWNSCALER_EXCLUDE_UNTIL, names.KARPENTER_DO_NOT_DISRUPT, names.SAFE_TO_EVICT,
    names.WORKLOAD_TYPE_ALIAS, *names.GPU_FRACTIONS, names.GPU_FRACTION_DEVICES, names.HAMI_ALLOCATED,
})
_OURS = (*objects.OURS, f"{names.SEED_GROUP}/")
_MIG = names.MIG_PREFIX
# One that is still to be made from its template, or a request that cannot be read: no such claim is ever seen.
_UNKNOWN_CLAIM = ""
_SUFFIXES = {"k": 1_000}  # the server writes 1000 as 1k
_ENDED = ("Succeeded", "Failed")
_MOST_AFFINITY = 8192  # bytes
MOST_GPUS = 10_000  # of one pod: no node has as many, cut and shared as finely as may be


class PodMeta(msgspec.Struct, rename="camel", gc=False):
    """Less than objects.Meta: of every pod in the cluster this is decoded."""

    uid: str
    name: str
    creation_timestamp: datetime
    namespace: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[objects.Reference] | None = None
    deletion_timestamp: str | None = None


class PodResources(msgspec.Struct, gc=False):
    limits: dict[str, str] | None = None
    claims: list[Any] | None = None


class PodContainer(msgspec.Struct, rename="camel", gc=False):
    name: str
    resources: PodResources | None = None
    restart_policy: str | None = None


class _PodClaim(msgspec.Struct, rename="camel", gc=False):
    name: str
    resource_claim_name: str | None = None


class PodSpec(msgspec.Struct, rename="camel", gc=False):
    containers: Sequence[PodContainer]
    init_containers: Sequence[PodContainer] | None = None
    node_name: str = ""
    node_selector: dict[str, str] | None = None
    affinity: msgspec.Raw = msgspec.Raw(b"null")
    resource_claims: list[_PodClaim] | None = None
    priority_class_name: str = ""
    priority: int | None = None


class _Running(msgspec.Struct, rename="camel", gc=False):
    started_at: datetime | None = None


class _Terminated(msgspec.Struct, rename="camel", gc=False):
    finished_at: datetime | None = None


class _State(msgspec.Struct, gc=False):
    running: _Running | None = None
    terminated: _Terminated | None = None


class _GpuContainerStatus(msgspec.Struct, gc=False):
    name: str
    state: _State | None = None


class PodStatus(msgspec.Struct, rename="camel", gc=False):
    phase: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    conditions: Sequence[objects.ObjectCondition] | None = None
    container_statuses: list[_GpuContainerStatus] | None = None
    init_container_statuses: list[_GpuContainerStatus] | None = None
    resource_claim_statuses: list[_PodClaim] | None = None


class PodItem(msgspec.Struct, gc=False):
    metadata: PodMeta
    spec: PodSpec
    status: PodStatus = msgspec.field(default_factory=PodStatus)


def identify(item: PodItem) -> tuple[str, str, str]:
    """Its uid, its namespace, and the uid of its controller ("": it has none)."""
    meta = item.metadata
    owner = next((each.uid for each in meta.owner_references or () if each.controller), "")
    return meta.uid, meta.namespace, owner


class _Asked(msgspec.Struct, gc=False):
    """What a pod asks for: GPUs by resource name, in which containers, and whether all of it could be read."""

    resources: dict[str, int]
    containers: set[str]
    is_readable: bool = True
    part: dict[str, int] | None = None  # of each GPU, as HAMi reads it


class PodReader:
    """Knows which resources are GPUs, and keeps equal labels once."""

    def __init__(
        self, gpu_resources: frozenset[str] = frozenset(), has_exporters: Callable[[str], bool] = lambda _: False
    ) -> None:
        """`has_exporters`: whether exporters are looked for in a namespace."""
        self._names = gpu_resources | {names.GPU, names.GPU_SHARED}
        self._has_exporters = functools.lru_cache(objects.MOST_SHARED)(has_exporters)
        self._pool = objects.Pool()
        # The pods of a ReplicaSet share theirs. By all that is said of it: anybody may name any uid.
        self._owners: dict[tuple[str, str, str, str], cluster.Owner] = {}

    def is_gpu(self, resource: str) -> bool:
        return resource in self._names or resource.startswith(_MIG)

    def read(self, item: PodItem) -> cluster.Pod | None:
        asked = self._read_request(item.spec)
        if not asked.resources and asked.is_readable and not item.spec.resource_claims:
            if _is_fraction(item.metadata):
                asked = _Asked({names.GPU_SHARED: 1}, {container.name for container in _lasting(item.spec)})
            elif not self._has_exporters(item.metadata.namespace) or not item.status.pod_ip:
                return None
            else:
                item = _cut(item)
        return self._keep(item, asked, capacity.NOT_COUNTED)

    def read_counted(self, item: PodItem, needs: capacity.Needs) -> cluster.Pod:
        """Any pod, whatever it asks for."""
        return self._keep(item, self._read_request(item.spec), needs)

    def _keep(self, item: PodItem, asked: _Asked, needs: capacity.Needs) -> cluster.Pod:
        meta, spec, status = item.metadata, item.spec, item.status
        ready = _find(status.conditions, "Ready")
        waits = not spec.node_name
        claims = _name_claims(spec, status) if asked.is_readable else (_UNKNOWN_CLAIM,)
        owner = self._find_owner(meta.owner_references)
        return cluster.Pod(
            namespace=sys.intern(meta.namespace), name=meta.name, uid=meta.uid, node=sys.intern(spec.node_name),
            phase=sys.intern(status.phase), terminating=meta.deletion_timestamp is not None,
            owner=owner, labels=self._pool.share(meta.labels),
            annotations=self._pool.share(_heeded(meta.annotations) if meta.annotations else None),
            resources=self._pool.share(asked.resources), claims=claims, claimed=None if claims else 0,
            created_at=meta.creation_timestamp.timestamp(), started_at=_read_start(status, asked.containers),
            ready=ready is not None and ready.status == "True",
            ready_since=_instant(ready.last_transition_time) if ready else None, ip=status.pod_ip,
            static=names.MIRROR_POD in (meta.annotations or {}) and _may_be_static(owner),
            node_selector=self._pool.share(spec.node_selector) if waits else {},
            affinity=required_terms(spec.affinity) if waits else None,
            unschedulable_since=_read_unschedulable(status.conditions) if waits else None, needs=needs,
            priority_class=sys.intern(spec.priority_class_name) if waits else "", priority=spec.priority,
            bound_at=None if waits else _read_bound(status.conditions), part=self._pool.share(asked.part),
            ended_at=read_end(status) if meta.deletion_timestamp or status.phase in _ENDED else None,
        )

    def _find_owner(self, references: list[objects.Reference] | None) -> cluster.Owner | None:
        for reference in references or ():
            if reference.controller:
                said = reference.api_version, reference.kind, reference.name, reference.uid
                known = self._owners.get(said)
                if known is None:
                    if len(self._owners) > objects.MOST_SHARED:
                        self._owners.clear()
                    known = self._owners[said] = objects.owner_of(reference)
                return known
        return None

    def _read_request(self, spec: PodSpec) -> _Asked:
        """As the scheduler and the kubelet count: what an init container asks for beyond the rest stays the pod's, from
        its binding to its end."""
        asked = self._add_up(_lasting(spec))
        beside = list[PodContainer]()
        for container in spec.init_containers or ():
            if container.restart_policy == "Always":
                beside.append(container)
            elif container.resources is not None and container.resources.limits:
                asked = _at_most(asked, self._add_up([*beside, container]))
        return asked

    def _add_up(self, containers: Iterable[PodContainer]) -> _Asked:
        asked = _Asked({}, set())
        for container in containers:
            resources = container.resources
            if resources is None:
                continue
            if resources.claims:
                asked.containers.add(container.name)
            if resources.limits is None:
                continue
            for name, text in resources.limits.items():
                if self.is_gpu(name):
                    self._add(asked, container.name, name, text)
                elif name in names.HAMI_PARTS:
                    known = asked.part or {}
                    asked.part = {**known, name: max(_read_count(text) or 0, known.get(name, 0))}
        return asked

    def read_template(self, spec: Mapping[str, Any], count: int, since: Instant) -> cluster.Waiting | None:
        """What so many pods made of it would wait for; None: no GPUs, or it cannot be told. Raises ValidationError for
        what is no pod's spec."""
        read = msgspec.json.decode(msgspec.json.encode(spec), type=PodSpec)
        asked = self._read_request(read)
        if not asked.resources or not asked.is_readable:
            return None
        return cluster.Waiting(
            resources={name: each * count for name, each in asked.resources.items()}, each=asked.resources,
            node_selector=read.node_selector or {}, affinity=required_terms(read.affinity), since=since,
        )

    def _add(self, asked: _Asked, container: str, name: str, text: str) -> None:
        count = _read_count(text)
        if count == 0:
            return
        asked.containers.add(container)
        if count is None or asked.resources.get(name, 0) + count > MOST_GPUS:
            asked.is_readable = False
        else:
            asked.resources[name] = asked.resources.get(name, 0) + count


def _at_most(lasting: _Asked, passing: _Asked) -> _Asked:
    """Of each resource the greater count. That what passes has ended does not make the pod one that waits."""
    resources = {name: max(each.get(name, 0) for each in (lasting.resources, passing.resources))
                 for name in (*lasting.resources, *passing.resources)}
    part = lasting.part if lasting.resources else passing.part
    return _Asked(resources, lasting.containers, lasting.is_readable and passing.is_readable, part)


def _cut(item: PodItem) -> PodItem:
    """Only what tells where it runs: pods of exporters' namespaces are many."""
    meta, status = item.metadata, item.status
    return PodItem(
        PodMeta(uid=meta.uid, name=meta.name, creation_timestamp=meta.creation_timestamp, namespace=meta.namespace),
        PodSpec(containers=(), node_name=item.spec.node_name), PodStatus(phase=status.phase, pod_ip=status.pod_ip),
    )


def _may_be_static(owner: cluster.Owner | None) -> bool:
    """What a controller made is no mirror pod, even if its template bears the kubelet's annotation."""
    return owner is None or (owner.group, owner.kind) == ("", kube.NODES.kind)


def _is_fraction(meta: PodMeta) -> bool:
    if meta.annotations and any(name in meta.annotations for name in names.GPU_FRACTIONS):
        return True
    return bool(meta.labels) and any(label.startswith(names.RESERVATION_GROUP_LABEL) for label in meta.labels or ())


def _lasting(spec: PodSpec) -> Sequence[PodContainer]:
    """Containers that run as long as the pod: its own, and init containers that restart (sidecars)."""
    if not spec.init_containers:
        return spec.containers
    return [*spec.containers, *(one for one in spec.init_containers if one.restart_policy == "Always")]


def _read_count(text: str) -> int | None:
    if text.isdecimal() and len(text) < 6:
        return int(text)
    digits, factor = (text[:-1], _SUFFIXES[text[-1]]) if text[-1:] in _SUFFIXES else (text, 1)
    return int(digits) * factor if digits.isdecimal() and len(digits) < 6 else None


def _name_claims(spec: PodSpec, status: PodStatus) -> tuple[str, ...]:
    if not spec.resource_claims:
        return ()
    made = {claim.name: claim.resource_claim_name for claim in status.resource_claim_statuses or ()}
    found = (claim.resource_claim_name or made.get(claim.name, _UNKNOWN_CLAIM) for claim in spec.resource_claims)
    return tuple(name for name in found if name is not None)  # None in the status: no claim was needed after all


def _read_start(status: PodStatus, containers: set[str]) -> Instant | None:
    """When the last of its GPU containers started; None while any of them is not running."""
    latest, waiting = None, len(containers)
    for one in _statuses(status):
        if one.name in containers:
            running = one.state.running if one.state else None
            if running is None or running.started_at is None:
                return None
            waiting -= 1
            latest = running.started_at if latest is None or running.started_at > latest else latest
    return _instant(latest) if waiting == 0 else None


def _statuses(status: PodStatus) -> list[_GpuContainerStatus]:
    if not status.init_container_statuses:
        return status.container_statuses or []
    return (status.container_statuses or []) + status.init_container_statuses


def _instant(moment: datetime | None) -> Instant | None:
    return None if moment is None else moment.timestamp()


def _read_bound(conditions: Sequence[objects.ObjectCondition] | None) -> Instant | None:
    found = _find(conditions, "PodScheduled")
    return _instant(found.last_transition_time) if found is not None and found.status == "True" else None


def read_end(status: PodStatus) -> Instant | None:
    """When the last of its containers ended; None while one runs, or was never seen to end."""
    ends = [one.state.terminated if one.state else None for one in status.container_statuses or ()]
    if not ends or any(end is None or end.finished_at is None for end in ends):
        return None
    if any(one.state and one.state.running for one in status.init_container_statuses or ()):  # a sidecar ends last
        return None
    beside = (one.state.terminated for one in status.init_container_statuses or () if one.state)
    return max(end.finished_at.timestamp() for end in (*ends, *beside) if end and end.finished_at)


def _read_unschedulable(conditions: Sequence[objects.ObjectCondition] | None) -> Instant | None:
    found = _find(conditions, "PodScheduled")
    if found is None or found.status != "False" or found.reason != "Unschedulable":
        return None
    return _instant(found.last_transition_time)


def required_terms(raw: msgspec.Raw) -> Any:
    """What is longer than anybody writes by hand accepts no node here: compared with each of thousands, one pod would
    keep us busy for minutes."""
    if len(bytes(raw)) > _MOST_AFFINITY:
        return []
    affinity = (msgspec.json.decode(raw) or {}).get("nodeAffinity") or {}
    return (affinity.get(names.REQUIRED) or {}).get("nodeSelectorTerms")


def _find(conditions: Sequence[objects.ObjectCondition] | None, type_: str) -> objects.ObjectCondition | None:
    for condition in conditions or ():
        if condition.type == type_:
            return condition
    return None


def _heeded(annotations: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in annotations.items() if key in _HEEDED or key.startswith(_OURS)}


def as_link(pod: cluster.Pod) -> objects.Seen:
    """A pod as a link of an owner chain: the leader of a LeaderWorkerSet's group owns the workers' StatefulSet."""
    ref = cluster.Ref("", kube.PODS.version, kube.PODS.kind, pod.namespace, pod.name, pod.uid)
    return objects.Seen(ref=ref, owner=pod.owner, labels=pod.labels, annotations=pod.annotations)


def settle_claims(pod: cluster.Pod, claims: Mapping[tuple[str, str], objects.Claim]) -> cluster.Pod:
    """With the GPUs that its claims hold; of claims not seen the number stays unknown."""
    if not pod.claims:
        return pod
    found = [claims.get((pod.namespace, name)) for name in pod.claims]
    known = [claim for claim in found if claim is not None]
    devices = tuple(device for claim in known for device in claim.devices)
    claimed = len(devices) if len(known) == len(found) else None
    return msgspec.structs.replace(pod, claimed=claimed, devices=devices)
