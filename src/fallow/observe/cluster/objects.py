"""Objects of any kind in the API server's words, cut down on decoding, and what of them is remembered.

In: `Item`s, decoded in two stages (metadata now, spec and status as raw bytes that are read only for what is wanted).
Out: `Seen` for links of owner chains, workloads and companions, and the model's own nouns for everything else.
Invariant: nothing here keeps the bytes it was decoded from, and strings that repeat are kept once.
"""

import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from fallow import names
from fallow.clients.kubernetes import api as kube
from fallow.model import cluster, pointers, quantities, record, selectors, units
from fallow.model.policies import idle, idle_crd

OURS = (f"{names.GROUP}/", f"{names.ALIAS_GROUP}/")  # how our annotations begin
MOST_SHARED = 20_000

_MOST_DEEP = 50  # a Kueue Workload holds whole templates of pods, and those are 20 deep
_NOTHING = msgspec.Raw(b"null")
_EMPTY: Mapping[str, str] = {}
_US = (names.FIELD_MANAGER, names.RESUME_FIELD_MANAGER)


class Reference(msgspec.Struct, gc=False, rename="camel"):
    """An ownerReference."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None


class Meta(msgspec.Struct, rename="camel"):
    uid: str
    name: str
    namespace: str = ""
    resource_version: str = ""
    generation: int = 0
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[Reference] | None = None
    managed_fields: msgspec.Raw = _NOTHING
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None


class Item(msgspec.Struct):
    """Any object. Of a PartialObjectMetadata only the metadata is there."""

    metadata: Meta
    spec: msgspec.Raw = _NOTHING
    status: msgspec.Raw = _NOTHING


class Seen(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An object that is a link of an owner chain, a workload, or the companion of one."""

    ref: cluster.Ref
    owner: cluster.Owner | None
    resource_version: str = ""
    labels: Mapping[str, str] = _EMPTY
    annotations: Mapping[str, str] = _EMPTY
    body: Mapping[str, Any] = _EMPTY
    writer: str = ""  # who else owns, since our pause, the field that paused it
    is_ours: bool = False  # we alone own it


class Pool:
    """Equal mappings kept once: the pods of one ReplicaSet all carry the same labels."""

    def __init__(self) -> None:
        self._shared: dict[tuple[tuple[str, Any], ...], Mapping[str, Any]] = {}

    def share(self, mapping: Mapping[str, Any] | None) -> Mapping[str, Any]:
        if not mapping:
            return _EMPTY
        if len(self._shared) > MOST_SHARED:  # of pods long gone, mostly; those alive keep theirs
            self._shared.clear()
        key = tuple(mapping.items())
        found = self._shared.get(key)
        if found is None:
            found = {sys.intern(name): sys.intern(value) if isinstance(value, str) else value for name, value in key}
            self._shared[key] = found
        return found


def split_version(api_version: str) -> tuple[str, str]:
    """`apps/v1` -> ("apps", "v1"); `v1` -> ("", "v1")."""
    group, _, version = api_version.rpartition("/")
    return sys.intern(group), sys.intern(version)


def controller_of(meta: Meta) -> cluster.Owner | None:
    """The one owner that answers for it; an object has at most one."""
    return next((owner_of(reference) for reference in meta.owner_references or () if reference.controller), None)


def owner_of(reference: Reference) -> cluster.Owner:
    group, version = split_version(reference.api_version)
    kind, name, uid = map(sys.intern, (reference.kind, reference.name, reference.uid))
    return cluster.Owner(group, version, kind, name, uid)


def has_our_marks(annotations: Mapping[str, str] | None) -> bool:
    return bool(annotations) and any(key.startswith(OURS) for key in annotations or ())


def name_object(resource: kube.Resource, meta: Meta) -> cluster.Ref:
    namespace, name, uid = map(sys.intern, (meta.namespace, meta.name, meta.uid))
    return cluster.Ref(resource.group, resource.version, resource.kind, namespace, name, uid)


def see(item: Item, resource: kube.Resource, reads: Iterable[str], writes: Sequence[str] = ()) -> Seen:
    """What is remembered of a wanted object. `writes`: where a pause of its kind writes; () = only through /scale."""
    meta = item.metadata
    writer, is_ours = _find_owners(meta, writes)
    return Seen(
        ref=name_object(resource, meta), owner=controller_of(meta), resource_version=meta.resource_version,
        labels=meta.labels or _EMPTY, annotations=_without_bulk(meta.annotations), body=_read_body(item, reads),
        writer=writer, is_ours=is_ours,
    )


class _Managed(msgspec.Struct, rename="camel"):
    """An entry of managedFields."""

    manager: str = ""
    subresource: str = ""
    time: str | None = None
    fields_v1: dict[str, Any] = {}


def _find_owners(meta: Meta, writes: Sequence[str]) -> tuple[str, bool]:
    """The manager besides us that owns the very field by which we paused it ("": nobody), and whether we alone do.

    Our pause made the field ours alone, so whoever owns it now wrote it since. A field that was removed has no owner:
    whoever wrote last elsewhere on the object is not to blame. Of several owners, who want the same value, the last;
    what was written through /scale carries no time.
    """
    said = meta.annotations or _EMPTY
    if names.PAUSED_AT not in said and names.ORIGINAL_STATE not in said:  # nearly all
        return "", False
    entries = msgspec.json.decode(meta.managed_fields, type=list[_Managed] | None) or ()
    paths = [pointers.parts(pointer) for pointer in writes if _is_recorded(pointer, said)]
    owning = [
        entry for entry in entries if entry.subresource != "status"
        and (any(_owns(entry.fields_v1, path) for path in paths) if writes else entry.subresource == "scale")
    ]
    others = [entry for entry in owning if entry.manager not in _US]
    dated = ((units.read_instant(entry.time) or math.inf, entry.manager) for entry in others)
    return max(dated, default=(0, ""))[1], bool(owning) and not others


def _is_recorded(pointer: str, said: Mapping[str, str]) -> bool:
    """Did our pause write there? By its record; where that cannot be read, it may have."""
    recorded = record.fields_in(said)
    return not recorded or any(pointers.leads_to(one, pointer) for one in recorded)


def _owns(fields: Mapping[str, Any], path: tuple[str, ...]) -> bool:
    """Of a list as a whole, or of its members by key."""
    if not path:
        return True
    if path[0] != pointers.EVERY:
        return f"f:{path[0]}" in fields and _owns(fields[f"f:{path[0]}"], path[1:])
    members = [owned for key, owned in fields.items() if key.startswith("k:")]
    return not members or any(_owns(owned, path[1:]) for owned in members)


def _read_body(item: Item, reads: Iterable[str]) -> dict[str, Any]:
    wanted = tuple(reads)
    body = pointers.prune(_parts(item), wanted) if wanted else {}
    if _may_be_deep(item) and _is_deeper(body, _MOST_DEEP):
        raise ValueError(f"it is nested more than {_MOST_DEEP} deep")
    return body


def _may_be_deep(item: Item) -> bool:
    """What opens few brackets is not: to count them is a tenth of the work of looking."""
    raw = bytes(item.spec) + bytes(item.status)
    return raw.count(b"{") + raw.count(b"[") > _MOST_DEEP


def _is_deeper(value: Any, most: int) -> bool:
    """What is kept is compared and copied by functions that call themselves."""
    members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return most < 0 or any(_is_deeper(member, most - 1) for member in members)


def _parts(item: Item) -> dict[str, Any]:
    parts = {"spec": msgspec.json.decode(item.spec), "status": msgspec.json.decode(item.status)}
    return {name: part for name, part in parts.items() if part is not None}


def _without_bulk(annotations: dict[str, str] | None) -> Mapping[str, str]:
    if annotations is None:
        return _EMPTY
    annotations.pop(names.LAST_APPLIED, None)  # kubectl's copy of the whole object, as large as that
    return annotations


# ---- nodes, namespaces, claims, policies ----


class ObjectCondition(msgspec.Struct, rename="camel", gc=False):
    type: str
    status: str
    reason: str = ""
    last_transition_time: datetime | None = None


class _Address(msgspec.Struct):
    type: str
    address: str


class NodeStatus(msgspec.Struct):
    conditions: list[ObjectCondition] | None = None
    addresses: list[_Address] | None = None
    allocatable: dict[str, str] | None = None
    capacity: dict[str, str] | None = None


class NodeSpec(msgspec.Struct):
    provider_id: str = msgspec.field(default="", name="providerID")


class NodeItem(msgspec.Struct):
    metadata: Meta
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)


def see_node(item: NodeItem, is_gpu: Callable[[str], bool] = lambda name: name == names.GPU) -> cluster.Node:
    """`is_gpu`: is a resource of that name one?"""
    labels = {sys.intern(key): sys.intern(value) for key, value in (item.metadata.labels or {}).items()}
    offers = _read_offers(item.status.allocatable, is_gpu)
    return cluster.Node(
        name=sys.intern(item.metadata.name), hostname=labels.get(names.HOSTNAME, item.metadata.name),
        addresses=tuple(address.address for address in item.status.addresses or () if address.type == "InternalIP"),
        ready=is_ready(item.status), gpu_product=labels.get(names.GPU_PRODUCT), shared=_is_shared(labels),
        labels=labels, gpus=None if offers is None else sum(offers.values()), offers=offers or _NO_GPUS,
        provider_id=item.spec.provider_id, price_per_hour=(item.metadata.annotations or {}).get(names.PRICE_PER_HOUR),
        cpu=_read_size(item.status.capacity, "cpu", quantities.parse_milli),
        memory=_read_size(item.status.capacity, "memory", quantities.parse_mebi),
        created_at=units.read_instant(item.metadata.creation_timestamp),
        boards=_read_register((item.metadata.annotations or {}).get(names.HAMI_REGISTER)),
    )


def _read_size(capacity: Mapping[str, str] | None, name: str, read: Callable[[str], int]) -> int | None:
    try:
        return read((capacity or {})[name])
    except (KeyError, ValueError):
        return None


def _read_register(said: str | None) -> tuple[cluster.RegisteredGpu, ...]:
    """`[{"id": "GPU-1", "devmem": 81920, ...}]`, or as it was written before: `GPU-1,10,81920,100,...:`."""
    if not said:
        return ()
    try:
        if said.lstrip().startswith("["):
            found = [(str(one["id"]), int(one["devmem"])) for one in msgspec.json.decode(said)]
        else:
            parts = [one.split(",") for one in said.split(":") if one.count(",") >= 2]
            found = [(one[0], int(one[2])) for one in parts]
    except (msgspec.MsgspecError, ValueError, TypeError, KeyError):
        return ()
    return tuple(cluster.RegisteredGpu(sys.intern(uuid), memory) for uuid, memory in found if uuid and memory > 0)


_NO_GPUS: Mapping[str, int] = {}


def _read_offers(allocatable: Mapping[str, str] | None, is_gpu: Callable[[str], bool]) -> Mapping[str, int] | None:
    """GPUs by resource; None where that cannot be read."""
    try:
        offered = {sys.intern(name): int(text) for name, text in (allocatable or {}).items() if is_gpu(name)}
    except ValueError:
        return None
    return None if allocatable is None else offered or _NO_GPUS


def is_ready(status: NodeStatus) -> bool:
    return any(condition.type == "Ready" and condition.status == "True" for condition in status.conditions or ())


def _is_shared(labels: Mapping[str, str]) -> bool:
    """What cannot be read as "one pod per GPU" is shared: there a device's activity says nothing about one pod."""
    return labels.get(names.GPU_REPLICAS, "1") not in ("0", "1") or labels.get(names.GPU_SHARING, "none") != "none"


class Bare(msgspec.Struct):
    metadata: Meta


def name_of(item: Bare) -> str:
    return item.metadata.name


def see_namespace(item: Bare) -> cluster.Namespace:
    meta = item.metadata
    return cluster.Namespace(sys.intern(meta.name), meta.labels or _EMPTY, _without_bulk(meta.annotations))


class Claim(msgspec.Struct, frozen=True, gc=False):
    """A ResourceClaim, and the GPUs that it holds."""

    namespace: str
    name: str
    devices: tuple[cluster.ClaimedGpu, ...]


def see_claim(item: Item) -> Claim:
    """Devices lent for administration (monitoring) hold nothing: the GPU stays with whoever else has it."""
    status = msgspec.json.decode(item.status) or {}
    devices = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
    held = (device for device in devices if device.get("driver") == names.DRA_DRIVER and not device.get("adminAccess"))
    return Claim(sys.intern(item.metadata.namespace), sys.intern(item.metadata.name), tuple(map(_see_device, held)))


# Of `gpu-0-mig-1g10gb-19-4`: as NVIDIA's driver names an instance after its board, profile and place.
_INSTANCE: Final = re.compile(r"([1-7])g(\d{1,3})gb")


def _see_device(device: Mapping[str, Any]) -> cluster.ClaimedGpu:
    """Of a device that is given in parts (consumedCapacity), how much memory; a MIG device is a part of its board."""
    consumed = device.get("consumedCapacity") or {}
    said = next((text for name, text in consumed.items() if name.rpartition("/")[2] == "memory"), None)
    board, _, instance = str(device.get("device", "")).partition("-mig-")
    cut = _INSTANCE.match(instance)
    try:
        memory = quantities.parse_mebi(str(said)) if said is not None else None
    except ValueError:
        memory = None
    profile = f"{cut[1]}g.{cut[2]}gb" if cut is not None else ""
    pool, is_shared = sys.intern(str(device.get("pool", ""))), bool(consumed or device.get("shareID"))
    return cluster.ClaimedGpu(pool, sys.intern(board), memory, profile, is_shared)


def see_policy(item: Item) -> idle.IdlePolicy:
    meta = item.metadata
    about = {"name": meta.name, "uid": meta.uid, "generation": meta.generation}
    return idle_crd.parse({"metadata": about, **_parts(item)})


def selector_of(body: Mapping[str, Any]) -> selectors.Selector | None:
    """Of a PodDisruptionBudget; None selects nothing (an absent one), an empty one everything."""
    return selectors.read((body.get("spec") or {}).get("selector"))
