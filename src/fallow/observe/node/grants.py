"""Which container holds which GPU: the kubelet's device ids, turned into ours. Pure.

In: what the kubelet listed, the devices of this poll, the UUIDs behind claims. Out: one Grant for each container and
GPU (or GPU instance).

    GPU-<uuid>   GPU-<uuid>::<n>   MIG-<uuid>   MIG-GPU-<uuid>/<gi>/<ci>    the vendor's device plugin
    nvidia<N>    nvidia<N>/gi<M>   nvidia<N>/vgpu<M>                        GKE's, by minor number
    (driver, pool, device)                                   a claim: a ResourceSlice's uuid, else gpu-<minor>

Invariant: an id that fits no device of this poll grants nothing; it is never matched by likeness.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from fallow import names
from fallow.clients import kubelet
from fallow.model.processes import Device, Grant, Judged, Share, Type

_REPLICA = re.compile(r"(?:::\d+|/vgpu\d+)$")
_OLD_MIG = re.compile(r"MIG-(GPU-[^/]+)/(\d+)/(\d+)")
_BY_MINOR = re.compile(r"nvidia(\d+)(?:/gi(\d+))?")
_CLAIMED_MINOR = re.compile(r"gpu-(\d+)")
_MPS = (Type.mps_client, Type.mps_server)

Claimed = Mapping[tuple[str, str, str], str]  # (driver, pool, device) -> UUID


class _DeviceSlot(msgspec.Struct, frozen=True, gc=False):
    """A device, or an instance on it. `gi` None: the whole device; `ci` None: the whole GPU instance."""

    uuid: str
    gi: int | None = None
    ci: int | None = None
    is_replica: bool = False


class _Holding(msgspec.Struct, frozen=True, gc=False):
    slot: _DeviceSlot
    pod: kubelet.PodDevices
    container: str
    resource: str

    @property
    def key(self) -> tuple[str, int | None, str, str, str]:
        """What a series can tell apart."""
        return self.slot.uuid, self.slot.gi, self.pod.namespace, self.pod.name, self.container


def read_grants(
    pods: Iterable[kubelet.PodDevices], devices: Sequence[Judged], claimed: Claimed, resources: Collection[str] = ()
) -> list[Grant]:
    """`resources`: names of further resources that are GPUs."""
    known = _DeviceNames([judged.device for judged in devices])
    held = _merge(each for pod in pods for each in _read_pod(pod, known, claimed, resources))
    shared = _find_shared(held)
    with_mps = {each.device.uuid for each in devices for process in each.processes or () if process.type in _MPS}
    return [_grant(each, shared, with_mps) for each in held]


def _grant(held: _Holding, shared: Collection[str], with_mps: Collection[str]) -> Grant:
    slot = held.slot
    if slot.gi is not None:
        share = Share.mig
    elif slot.uuid in shared:
        share = Share.mps if slot.uuid in with_mps else Share.timeslice
    else:
        share = Share.exclusive
    return Grant(
        uuid=slot.uuid, gi=slot.gi, ci=slot.ci, namespace=held.pod.namespace, pod=held.pod.name,
        container=held.container, resource=held.resource, share=share,
    )


def _find_shared(held: Iterable[_Holding]) -> set[str]:
    """Whole devices that several pods have, or may get, at the same time."""
    shared: set[str] = set()
    owners: dict[str, tuple[str, str]] = {}
    for each in held:
        owner, is_share = (each.pod.namespace, each.pod.name), each.slot.is_replica or each.resource == names.GPU_SHARED
        if each.slot.gi is None and (is_share or owners.setdefault(each.slot.uuid, owner) != owner):
            shared.add(each.slot.uuid)
    return shared


def _merge(held: Iterable[_Holding]) -> Collection[_Holding]:
    """A container's replicas of one GPU are one hold, and so are its compute instances in one GPU instance."""
    found: dict[tuple[str, int | None, str, str, str], _Holding] = {}
    for each in held:
        first = found.setdefault(each.key, each)
        if first.slot.ci != each.slot.ci:
            found[each.key] = msgspec.structs.replace(first, slot=msgspec.structs.replace(first.slot, ci=None))
    return found.values()


def _read_pod(
    pod: kubelet.PodDevices, known: "_DeviceNames", claimed: Claimed, resources: Collection[str]
) -> Iterator[_Holding]:
    for container in pod.containers:
        for devices in container.devices:
            what = devices.resource
            if what in (names.GPU, names.GPU_SHARED, *resources) or what.startswith(names.MIG_PREFIX):
                slots = (known.find(id_) for id_ in devices.ids)
                yield from (_Holding(slot, pod, container.name, what) for slot in slots if slot)
        for claim in container.claims:
            if claim.driver == names.DRA_DRIVER and (slot := known.find_claimed(claim, claimed)):
                yield _Holding(slot, pod, container.name, claim.driver)


class _DeviceNames:
    """The devices of this poll, by everything they are called."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self._slots: dict[str, _DeviceSlot] = {device.uuid: _DeviceSlot(device.uuid) for device in devices}
        for device in devices:
            self._slots |= {one.uuid: _DeviceSlot(device.uuid, one.gi, one.ci) for one in device.instances if one.uuid}
        self._minors = {str(device.minor): device.uuid for device in devices if device.minor is not None}

    def find(self, device_id: str) -> _DeviceSlot | None:
        plain = _REPLICA.sub("", device_id)
        slot = self._slots.get(plain) or self._find_old_mig(plain) or self._find_minor(plain)
        return msgspec.structs.replace(slot, is_replica=True) if slot and plain != device_id else slot

    def find_claimed(self, claim: kubelet.ClaimedDevice, claimed: Claimed) -> _DeviceSlot | None:
        uuid = claimed.get((claim.driver, claim.pool, claim.device))
        if uuid is not None:
            return self._slots.get(uuid)
        named = _CLAIMED_MINOR.fullmatch(claim.device)
        return self._whole(named[1]) if named else None

    def _find_old_mig(self, device_id: str) -> _DeviceSlot | None:
        named = _OLD_MIG.fullmatch(device_id)
        return _DeviceSlot(named[1], int(named[2]), int(named[3])) if named and named[1] in self._slots else None

    def _find_minor(self, device_id: str) -> _DeviceSlot | None:
        named = _BY_MINOR.fullmatch(device_id)
        if named is None or (slot := self._whole(named[1])) is None:
            return None
        return slot if named[2] is None else _DeviceSlot(slot.uuid, int(named[2]))

    def _whole(self, minor: str) -> _DeviceSlot | None:
        uuid = self._minors.get(minor)
        return None if uuid is None else self._slots[uuid]
