"""What is given by ResourceClaims, kept equal to the server's by list and watch: NVIDIA's devices, its device classes,
and the templates that we keep.

In: an Api. Out: nodes with their devices (ClaimDevice), a ClaimGround; `list_named`: which templates pods name at
this instant.
Invariant: where the server does not have resource.k8s.io/v1 there is none of it. A pool of which a slice is missing, or
a device with a taint, offers nothing. A quantity that cannot be read is not known.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from fallow import names
from fallow.clients.kubernetes import api as kube
from fallow.model import quantities, units
from fallow.model.claims import ClaimDevice, ClaimGround, ClaimTemplate
from fallow.model.seen import Input, Known, Unseen, several
from fallow.model.sharing import PartNode
from fallow.observe.budgets import Watching
from fallow.observe.cluster import pods

_MOST_SHARES: Final = 1000  # beyond that a number is no count of claims
_MOST_MEMORY: Final = 1 << 24  # MiB: 16 TiB, of one device
# It goes into names of templates and into expressions: nothing else is a profile, whoever publishes it.
_PROFILE: Final = re.compile(r"[1-9]g\.[0-9]{1,4}gb([+-][a-z][a-z.]{0,15})?")


# ---- devices ---------------------------------------------------------------------------------------------------------


class _ClaimMeta(msgspec.Struct, frozen=True, rename="camel"):
    uid: str = ""
    name: str = ""
    namespace: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _DeviceAttribute(msgspec.Struct, frozen=True):
    string: str | None = None


class _DeviceCapacity(msgspec.Struct, frozen=True):
    value: str = ""


class _DeviceTaint(msgspec.Struct, frozen=True):
    effect: str = ""


class _DeviceItem(msgspec.Struct, frozen=True, rename="camel"):
    attributes: dict[str, _DeviceAttribute] | None = None
    capacity: dict[str, _DeviceCapacity] | None = None
    allow_multiple_allocations: bool | None = None
    taints: list[_DeviceTaint] | None = None


class _DevicePool(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class _PublishedSpec(msgspec.Struct, frozen=True, rename="camel"):
    driver: str = ""
    node_name: str = ""
    pool: _DevicePool = _DevicePool()
    devices: list[_DeviceItem] | None = None


class SliceItem(msgspec.Struct, frozen=True):
    metadata: _ClaimMeta = _ClaimMeta()
    spec: _PublishedSpec = _PublishedSpec()


class SliceSeen(msgspec.Struct, frozen=True):
    """A part of what a driver publishes of one node. `of`: how many parts there are in that generation."""

    node: str
    pool: str
    generation: int
    of: int
    devices: tuple[ClaimDevice, ...]


def watch_slices(api: kube.Api) -> Watching[SliceSeen]:
    return Watching(api, kube.RESOURCE_SLICES, SliceItem, see_slice)


def see_slice(item: SliceItem) -> SliceSeen | None:
    spec, pool = item.spec, item.spec.pool
    if spec.driver != names.DRA_DRIVER or not spec.node_name:
        return None
    seen = (_see_device(each) for each in spec.devices or () if not any(taint.effect for taint in each.taints or ()))
    return SliceSeen(
        spec.node_name, pool.name, pool.generation, pool.resource_slice_count,
        tuple(device for device in seen if device is not None),
    )


def _see_device(item: _DeviceItem) -> ClaimDevice | None:
    """A GPU or a MIG instance; of one that is passed through to a virtual machine no part can be had."""
    said = {_own(key): attribute.string or "" for key, attribute in (item.attributes or {}).items()}
    capacity = {_own(key): each.value for key, each in (item.capacity or {}).items()}
    profile = said.get("profile", "") if said.get("type") == "mig" else ""
    if said.get("type") not in ("gpu", "mig") or (said["type"] == "mig" and not _PROFILE.fullmatch(profile)):
        return None
    return ClaimDevice(
        product=said.get("productName", ""), profile=profile,
        memory=_read_mebi(capacity.get("memory")),
        shares=_read_shares(capacity.get("shares")) if item.allow_multiple_allocations else 1,
    )


def _own(key: str) -> str:
    return key.removeprefix(f"{names.DRA_DRIVER}/")


def _read_mebi(text: str | None) -> int | None:
    try:
        found = 0 if text is None else quantities.parse_mebi(text, up=False)
    except ValueError:
        return None
    return found if 0 < found < _MOST_MEMORY else None


def _read_shares(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) < 5 and int(text) < _MOST_SHARES else None


def join_devices(
    nodes: Input[tuple[PartNode, ...]], slices: Input[tuple[SliceSeen, ...]]
) -> Input[tuple[PartNode, ...]]:
    """Nodes of which devices are given by claims, with these."""
    blind = next((seen for seen in (nodes, slices) if isinstance(seen, Unseen)), None)
    if blind is not None:
        return blind
    published = _find_published(slices.value) if isinstance(slices, Known) else {}
    known = nodes.value if isinstance(nodes, Known) else ()
    return several(tuple(
        msgspec.structs.replace(node, devices=published[node.name]) for node in known if published.get(node.name)
    ))


def _find_published(slices: Iterable[SliceSeen]) -> dict[str, tuple[ClaimDevice, ...]]:
    """By node: of every pool that is there in full its newest generation."""
    pools: dict[tuple[str, str], list[SliceSeen]] = {}
    for each in slices:
        pools.setdefault((each.node, each.pool), []).append(each)
    found: dict[str, tuple[ClaimDevice, ...]] = {}
    for (node, _), those in pools.items():
        newest = max(each.generation for each in those)
        current = [each for each in those if each.generation == newest]
        if len(current) == current[0].of:
            found[node] = (*found.get(node, ()), *(device for each in current for device in each.devices))
    return found


# ---- classes and templates -------------------------------------------------------------------------------------------


class ClassItem(msgspec.Struct, frozen=True):
    metadata: _ClaimMeta = _ClaimMeta()


class TemplateItem(msgspec.Struct, frozen=True):
    metadata: _ClaimMeta = _ClaimMeta()
    spec: dict[str, Any] = {}


def watch_classes(api: kube.Api) -> Watching[str]:
    return Watching(api, kube.DEVICE_CLASSES, ClassItem, _keep_class, metadata_only=True)


def _keep_class(item: ClassItem) -> str | None:
    return item.metadata.name if item.metadata.name in names.DRA_CLASSES else None


def watch_templates(api: kube.Api) -> Watching[ClaimTemplate]:
    """Those that are called as ours are."""
    return Watching(api, kube.CLAIM_TEMPLATES, TemplateItem, see_template)


def see_template(item: TemplateItem) -> ClaimTemplate | None:
    meta = item.metadata
    if not meta.name.startswith(names.CLAIM_TEMPLATE_PREFIX):
        return None
    label, word = names.MANAGED_BY
    return ClaimTemplate(
        namespace=meta.namespace, name=meta.name, uid=meta.uid, resource_version=meta.resource_version,
        asks=item.spec.get("spec") or {}, is_ours=(meta.labels or {}).get(label) == word,
        leaving_since=_read_leaving(meta.annotations or {}),
    )


def _read_leaving(marks: Mapping[str, str]) -> float | None:
    """A mark that is no time was made by somebody else, and counts as one from the beginning: nobody is given it."""
    text = marks.get(names.LEAVING_SINCE)
    return None if text is None else units.read_instant(text) or 0.0


def join_ground(
    classes: Input[tuple[str, ...]], templates: Input[tuple[ClaimTemplate, ...]]
) -> Input[ClaimGround]:
    blind = next((seen for seen in (classes, templates) if isinstance(seen, Unseen)), None)
    if blind is not None:
        return blind
    made = templates.value if isinstance(templates, Known) else ()
    return Known(ClaimGround(
        frozenset(classes.value if isinstance(classes, Known) else ()),
        {(each.namespace, each.name): each for each in made},
    ))


class ClaimEyes:
    """All of it, followed."""

    def __init__(self, api: kube.Api) -> None:
        self.slices, self.classes, self.templates = watch_slices(api), watch_classes(api), watch_templates(api)

    @property
    def watched(self) -> tuple[Watching[Any], ...]:
        return self.slices, self.classes, self.templates

    @property
    def ground(self) -> Input[ClaimGround]:
        return join_ground(self.classes.seen, self.templates.seen)


# ---- who uses a template ---------------------------------------------------------------------------------------------


class _ClaimNamed(msgspec.Struct, frozen=True, rename="camel"):
    resource_claim_template_name: str = ""


class _UserSpec(msgspec.Struct, frozen=True, rename="camel"):
    resource_claims: list[_ClaimNamed] | None = None


class UserItem(msgspec.Struct, frozen=True):
    metadata: _ClaimMeta = _ClaimMeta()
    spec: _UserSpec = _UserSpec()


async def list_named(api: kube.Api, namespace: str) -> frozenset[str]:
    """By pods there that have not ended, asked of the server itself. Raises what that says."""
    pages = api.list_pages(kube.PODS, item=UserItem, namespace=namespace, field_selector=pods.ALIVE)
    return frozenset([name async for page in pages for item in page.items for name in _named(item)])


def _named(item: UserItem) -> Iterator[str]:
    return (each.resource_claim_template_name for each in item.spec.resource_claims or ())
