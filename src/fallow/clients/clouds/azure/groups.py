"""Scale sets and AKS node pools of Azure as a Cloud: `NAME` of a scale set, `CLUSTER/POOL` of an AKS cluster.

In: names of groups, in one resource group. Out: our nouns of machines. AKS keeps its own count of the machines in its
scale sets, so that those are driven by the pool and never behind its back. A pool with AKS' own autoscaler has that as
owner. Changes are accepted (202) and carried out later; why machines do not come stands with the set or the pool.
Invariant: a target is raised by what was just read (If-Match, where there is an ETag), once, and never lowered; only
machines that are there and not on their way out are deleted, by name.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec
import yarl

from fallow.clients import errors, signing
from fallow.clients.clouds import growing, wire
from fallow.clients.clouds.wire import CloudTrouble
from fallow.model import units
from fallow.model.cost import CapacityType
from fallow.model.machines import (
    CloudMachine,
    Growth,
    MachineGroup,
    MachineNotice,
    MachineShape,
    MachineState,
    WantOfMachines,
)
from fallow.model.units import Instant, Seconds

T = TypeVar("T")

MANAGEMENT_URL: Final = "https://management.azure.com"
_SET_VERSION, _POOL_VERSION = "2024-07-01", "2025-05-01"
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}(/[a-z][a-z0-9]{0,11})?")
_MOST: Final = 1000  # machines of a scale set or a pool, as Azure documents it
_AKS_TAG: Final = "aks-managed-poolname"
_FAILED: Final = "Failed"
_GONE: Final = "is not an active Virtual Machine Scale Set VM instanceId"
_SET_OF: Final = re.compile(
    r"(/subscriptions/[^/]+/resourceGroups/[^/]+/providers/Microsoft\.Compute/virtualMachineScaleSets/[^/]+"
    r"/virtualMachines)/[^/]+", re.IGNORECASE)  # of a pool's machine, the list that it stands in
_RESOURCE_GROUP: Final = re.compile(r"(/resourceGroups/)([^/]+)(/)", re.IGNORECASE)
_WORDS: Final[wire.Words] = {
    **dict.fromkeys(
        ("SkuNotAvailable", "AllocationFailed", "ZonalAllocationFailed", "OverconstrainedAllocationRequest",
         "OverconstrainedZonalAllocationRequest"), CloudTrouble.out_of_stock),
    **dict.fromkeys(
        ("QuotaExceeded", "ErrCode_InsufficientVCPUQuota", "InsufficientVCPUQuota"), CloudTrouble.quota_spent),
    "TooManyRequests": CloudTrouble.throttled,
    **dict.fromkeys(("AnotherOperationInProgress", "OperationPreempted"), CloudTrouble.conflict),
    **dict.fromkeys(
        ("InvalidAuthenticationToken", "ExpiredAuthenticationToken", "AuthenticationFailed"),
        CloudTrouble.unauthorized),
    "AuthorizationFailed": CloudTrouble.forbidden,
}


class _AzureSaid(msgspec.Struct):
    code: str = ""
    message: str = ""
    details: list[dict[str, Any]] = []


class _AzureProblem(msgspec.Struct):
    """AKS says it without the envelope at times."""

    error: _AzureSaid | None = None
    code: str = ""
    message: str = ""


class _SetSku(msgspec.Struct):
    name: str = ""
    capacity: int | None = None


class _Profile(msgspec.Struct):
    priority: str = ""


class _SetProperties(msgspec.Struct, rename="camel"):
    orchestration_mode: str = "Uniform"
    virtual_machine_profile: _Profile = msgspec.field(default_factory=_Profile)


class _ScaleSet(msgspec.Struct):
    sku: _SetSku = msgspec.field(default_factory=_SetSku)
    zones: list[str] = []
    tags: dict[str, str] = {}
    etag: str = ""
    properties: _SetProperties = msgspec.field(default_factory=_SetProperties)


class _MachineProperties(msgspec.Struct, rename="camel"):
    provisioning_state: str = ""
    time_created: str = ""
    resource_id: str = ""


class _AzureMachine(msgspec.Struct, rename="camel"):
    """`instance_id`: of a scale set; a pool's machine goes by its name."""

    id: str = ""
    name: str = ""
    instance_id: str = ""
    zones: list[str] = []
    properties: _MachineProperties = msgspec.field(default_factory=_MachineProperties)


class _MachinePage(msgspec.Struct, rename="camel"):
    value: list[_AzureMachine] = []
    next_link: str | None = None


class _ViewStatus(msgspec.Struct):
    code: str = ""
    message: str = ""
    time: str = ""


class _View(msgspec.Struct):
    statuses: list[_ViewStatus] = []


class _PoolState(msgspec.Struct, rename="camel"):
    provisioning_error: _AzureSaid | None = None


class _PoolProperties(msgspec.Struct, rename="camel"):
    count: int | None = None
    vm_size: str = ""
    enable_auto_scaling: bool = False
    scale_set_priority: str = ""
    availability_zones: list[str] = []
    e_tag: str = ""
    provisioning_state: str = ""
    status: _PoolState | None = None


class _Pool(msgspec.Struct):
    properties: _PoolProperties = msgspec.field(default_factory=_PoolProperties)


class AzureWire(wire.CloudWire):
    def explain(self, status: int, answer: bytes, wait: Seconds | None) -> errors.ClientError:
        try:
            read = msgspec.json.decode(answer, type=_AzureProblem)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            read = _AzureProblem()
        said = read.error or _AzureSaid(read.code, read.message)
        return wire.make_error(self.who, wire.CloudRefusal(status, _find_code(said), said.message, wait), _WORDS)


def _find_code(said: _AzureSaid) -> str:
    """What stands within says more than what is around it; a quota is also refused as an operation not allowed."""
    inner = [str(each.get("code", "")) for each in said.details]
    known = next((code for code in (*inner, said.code) if code in _WORDS), "")
    if not known and said.code == "OperationNotAllowed" and "quota" in said.message.lower():
        return "QuotaExceeded"
    return (known or said.code)[:80]


class AzureGroups:
    def __init__(
        self, asking: AzureWire, signer: signing.Signer, *, subscription: str, resource_group: str,
        clock: Callable[[], Instant], url: str = MANAGEMENT_URL,
    ) -> None:
        self._wire, self._signer, self._clock, self._url = asking, signer, clock, url
        self._created: dict[str, dict[str, Instant]] = {}  # by group and machine
        self._base = yarl.URL(url) / "subscriptions" / subscription / "resourceGroups" / resource_group / "providers"

    # ---- what there is ----

    async def groups(self, ids: Sequence[str]) -> tuple[MachineGroup, ...]:
        return tuple(await asyncio.gather(*map(self._read_group, ids)))

    async def _read_group(self, group: str) -> MachineGroup:
        try:
            return await (self._read_pool(group) if "/" in group else self._read_set(group))
        except (errors.NotFound, errors.Forbidden, errors.Invalid, errors.BadAnswer, errors.Misconfigured) as problem:
            return MachineGroup(id=group, error=str(problem))

    async def _read_set(self, group: str) -> MachineGroup:
        found = await self._get_set(group)
        return _make_group(
            group, found.sku.capacity, found.sku.name, found.zones, found.properties.virtual_machine_profile.priority
        )

    async def _read_pool(self, group: str) -> MachineGroup:
        found = (await self._get(self._place(group), _Pool)).properties
        read = _make_group(group, found.count, found.vm_size, found.availability_zones, found.scale_set_priority)
        return msgspec.structs.replace(read, owner="AKS' autoscaler" if found.enable_auto_scaling else "")

    async def _get_set(self, group: str) -> _ScaleSet:
        """Raises Misconfigured for one that must not be driven by itself."""
        found = await self._get(self._place(group), _ScaleSet)
        if any(tag.lower() == _AKS_TAG for tag in found.tags):
            raise errors.Misconfigured(f"AKS keeps the scale set {group}: name it as CLUSTER/POOL")
        if found.properties.orchestration_mode != "Uniform":
            raise errors.Misconfigured(f"the scale set {group} is not of orchestration mode Uniform")
        return found

    async def machines(self, group: str) -> tuple[CloudMachine, ...]:
        [known], listed = await self.groups([group]), await self._list(group)
        created = await self._find_created(group, listed) if "/" in group else {}
        return tuple(
            CloudMachine(
                id=each.instance_id or each.name, group=group, state=_read_state(each.properties.provisioning_state),
                provider_id=_name_provider(each), zone=each.zones[0] if each.zones else "", tier=known.tier,
                instance_type=known.instance_types[0] if known.instance_types else "",
                launched_at=units.read_instant(each.properties.time_created) or created.get(_key(each)),
            )
            for each in listed
        )

    async def _find_created(self, group: str, listed: Sequence[_AzureMachine]) -> dict[str, Instant]:
        """Which a pool does not say of its machines, but the scale set behind it: asked once for each. Where we may
        not, nobody knows."""
        before = self._created.get(group, {})
        known = {key: before[key] for each in listed if (key := _key(each)) in before}
        places = {found[1] for each in listed if _key(each) not in known
                  and (found := _SET_OF.fullmatch(each.properties.resource_id))}
        for place in sorted(places):
            url = yarl.URL(self._url + place).with_query({"api-version": _SET_VERSION})
            try:
                behind = await self._list_pages(url)
            except (errors.Forbidden, errors.NotFound):
                continue
            known |= {_key(each): at for each in behind
                      if (at := units.read_instant(each.properties.time_created)) is not None}
        self._created[group] = known
        return known

    async def _list(self, group: str) -> list[_AzureMachine]:
        return await self._list_pages(self._place(group, "machines" if "/" in group else "virtualMachines"))

    async def _list_pages(self, url: yarl.URL) -> list[_AzureMachine]:
        found = list[_AzureMachine]()
        for _ in range(wire.MOST_PAGES):
            page = await self._get(url, _MachinePage)
            found += page.value
            if not page.next_link:
                return found
            url = self._wire.check_link(page.next_link, self._url)
        raise self._wire.too_many_pages()

    async def wants(self, group: str) -> tuple[WantOfMachines, ...]:
        if "/" in group:
            pool = (await self._get(self._place(group), _Pool)).properties
            said = pool.status.provisioning_error if pool.status and pool.provisioning_state == _FAILED else None
            now = units.rfc3339(self._clock())  # a pool does not say since when, but that nothing is under way
            return _read_wants(group, [(_find_code(said), said.message, now)] if said else [])
        view = await self._get(self._place(group, "instanceView"), _View)
        return _read_wants(group, [(each.code.rpartition("/")[2], each.message, each.time) for each in view.statuses])

    # ---- what is changed ----

    async def grow(self, growth: Growth) -> None:
        await (self._grow_pool(growth) if "/" in growth.group else self._grow_set(growth))

    async def _grow_set(self, growth: Growth) -> None:
        found = await self._get_set(growth.group)
        wanted = growing.find_target(growth, _read_target(growth.group, found.sku.capacity), _MOST)
        if wanted is not None:
            await self._change("PATCH", self._place(growth.group), {"sku": {"capacity": wanted}}, etag=found.etag)

    async def _grow_pool(self, growth: Growth) -> None:
        """A pool is written as a whole: as it was just read, with another count."""
        answer = await self._ask(self._place(growth.group))
        found, whole = self._wire.decode(answer, _Pool).properties, self._wire.decode(answer, dict[str, Any])
        target = _read_target(growth.group, found.count)
        wanted = growing.find_target(growth, target, _MOST)
        if wanted is None and found.provisioning_state == _FAILED:
            wanted = target  # AKS does not go on by itself: the same is asked for again
        if wanted is not None:
            body = {"properties": {**whole["properties"], "count": wanted}}
            await self._change("PUT", self._place(growth.group), body, etag=found.e_tag)

    async def remove(self, group: str, ids: Sequence[str]) -> None:
        if going := await self._find_leaving(group, ids):
            try:
                await self._delete(group, going)
            except (errors.Invalid, errors.NotFound) as problem:  # one went in this very moment
                is_gone = _GONE in str(problem) or isinstance(problem, errors.NotFound)
                left = await self._find_leaving(group, ids)
                if not is_gone or left == going:
                    raise
                if left:
                    await self._delete(group, left)

    async def _find_leaving(self, group: str, ids: Sequence[str]) -> list[str]:
        if "/" not in group:
            await self._get_set(group)
        here = {each.instance_id or each.name for each in await self._list(group)
                if _read_state(each.properties.provisioning_state) is not MachineState.deleting}
        return [each for each in dict.fromkeys(ids) if each in here]

    async def _delete(self, group: str, going: Sequence[str]) -> None:
        verb, key = ("deleteMachines", "machineNames") if "/" in group else ("delete", "instanceIds")
        await self._change("POST", self._place(group, verb), {key: going})

    async def _change(self, method: str, url: yarl.URL, body: Any, *, etag: str = "") -> None:
        headers = {"content-type": "application/json", **({"if-match": etag} if etag else {})}
        await self._wire.send(
            method, url, self._clock(), signer=self._signer, body=msgspec.json.encode(body), headers=headers,
            is_once=True,
        )

    # ---- notices: a node hears of its own (spot-watch); there is no queue ----

    async def notices(self) -> tuple[MachineNotice, ...]:
        return ()

    async def forget(self, notices: Sequence[MachineNotice]) -> None:
        return None

    async def _ask(self, url: yarl.URL) -> bytes:
        return await self._wire.ask("GET", url, self._clock(), signer=self._signer)

    async def _get(self, url: yarl.URL, shape: type[T]) -> T:
        return self._wire.decode(await self._ask(url), shape)

    def _place(self, group: str, verb: str = "") -> yarl.URL:
        if not _ID.fullmatch(group):
            raise errors.Misconfigured(f"{group!r} is neither the name of a scale set nor CLUSTER/POOL of AKS")
        name, _, pool = group.partition("/")
        aks = self._base / "Microsoft.ContainerService" / "managedClusters" / name / "agentPools" / pool
        place = aks if pool else self._base / "Microsoft.Compute" / "virtualMachineScaleSets" / name
        version = _POOL_VERSION if pool else _SET_VERSION
        return (place / verb if verb else place).with_query({"api-version": version})


def _read_target(group: str, count: int | None) -> int:
    if count is None or count < 0:
        raise errors.BadAnswer(f"Azure says that {group} is to have {count} machines")
    return count


def _make_group(group: str, count: int | None, size: str, zones: Sequence[str], priority: str) -> MachineGroup:
    return MachineGroup(
        id=group, tier=CapacityType.spot if priority in ("Spot", "Low") else CapacityType.on_demand,
        instance_types=(size,) if size else (), zones=tuple(zones), most=_MOST, target=_read_target(group, count),
        shape=MachineShape(instance_type=size) if size else None,
    )


def _read_state(said: str) -> MachineState:
    """A pool's machine says nothing in older versions: it is there."""
    match said:
        case "Creating" | "Updating" | "Scaling":
            return MachineState.pending if said == "Creating" else MachineState.running
        case "Deleting":
            return MachineState.deleting
        case "Failed" | "Canceled":
            return MachineState.pending
    return MachineState.running


def _name_provider(each: _AzureMachine) -> str:
    """As the node says it: the name of the resource group in small letters."""
    where = each.properties.resource_id or each.id
    lower = _RESOURCE_GROUP.sub(lambda found: f"/resourceGroups/{found[2].lower()}/", where)
    return f"azure://{lower}" if lower else ""


def _key(each: _AzureMachine) -> str:
    """The same machine's, however its name is spelt."""
    return (each.properties.resource_id or each.id).lower()


def _read_wants(group: str, said: Sequence[tuple[str, str, str]]) -> tuple[WantOfMachines, ...]:
    meant = ((_WORDS.get(code), message, time) for code, message, time in said)
    return tuple(
        WantOfMachines(
            group=group, is_quota=meaning is CloudTrouble.quota_spent, at=units.read_instant(time),
            because=" ".join(message.split())[:200],
        )
        for meaning, message, time in meant if meaning in (CloudTrouble.out_of_stock, CloudTrouble.quota_spent)
    )
