"""Managed instance groups of Google Cloud as a Cloud: zonal ones, `ZONE/NAME`, and regional ones, `REGION/NAME`.

In: names of groups. Out: our nouns of machines. A group that an autoscaler of Compute Engine drives has that as owner;
of one that Kubernetes Engine made (`gke-...`) only Kubernetes Engine knows, and where it does not say, somebody might.
A resize changes what is wanted and answers with an operation; why machines do not come, the group's own list of errors
tells (`wants`). Google does by itself what was asked under the same requestId.
Invariant: a target is raised by what was just read, once, and never lowered; only machines that are in the group and
not on their way out are deleted, by name.
"""

import asyncio
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
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
from fallow.model.units import HOUR, Instant, Seconds

T = TypeVar("T")

COMPUTE_URL: Final = "https://compute.googleapis.com"
ENGINE_URL: Final = "https://container.googleapis.com"
SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
_ID: Final = re.compile(r"([a-z]+-[a-z]+\d+)(-[a-z])?/([a-z]([a-z0-9-]{0,61}[a-z0-9])?)")
_INSTANCE: Final = re.compile(r"(?:^|/)(zones/([a-z0-9-]+)/instances/([a-z0-9-]+))$")
_TEMPLATE: Final = re.compile(r"/projects/[^/]+/((?:global|regions/[a-z0-9-]+)/instanceTemplates/[a-z0-9-]+)$")
_MOST: Final = {True: 1000, False: 2000}  # machines of a zonal and of a regional group, as Google documents it
_RECENT: Final[Seconds] = HOUR
_TOKENS: Final = uuid.UUID("9f6a1d1e-5f57-4c0e-8f0a-6f1f0b3b7a11")  # under which our tokens become UUIDs
_ENGINE: Final = "gke-"
_WORDS: Final[wire.Words] = {
    **dict.fromkeys(("rateLimitExceeded", "userRateLimitExceeded", "RESOURCE_EXHAUSTED"), CloudTrouble.throttled),
    **dict.fromkeys(("quotaExceeded", "QUOTA_EXCEEDED"), CloudTrouble.quota_spent),
    **dict.fromkeys(
        ("ZONE_RESOURCE_POOL_EXHAUSTED", "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "RESOURCE_POOL_EXHAUSTED"),
        CloudTrouble.out_of_stock),
    **dict.fromkeys(("resourceNotReady", "resourceInUseByAnotherResource", "conditionNotMet"), CloudTrouble.conflict),
    **dict.fromkeys(("authError", "UNAUTHENTICATED"), CloudTrouble.unauthorized),
}


class _GoogleSaid(msgspec.Struct):
    message: str = ""
    reason: str = ""
    code: str = ""


class _Errors(msgspec.Struct):
    errors: list[_GoogleSaid] = []


class _Problem(msgspec.Struct):
    message: str = ""
    status: str = ""
    errors: list[_GoogleSaid] = []


class _ProblemPage(msgspec.Struct):
    error: _Problem = msgspec.field(default_factory=_Problem)


class _Operation(msgspec.Struct):
    error: _Errors = msgspec.field(default_factory=_Errors)


class _ManagerStatus(msgspec.Struct):
    autoscaler: str = ""


class _Spread(msgspec.Struct):
    zones: list[dict[str, str]] = []


class _Manager(msgspec.Struct, rename="camel"):
    target_size: int
    zone: str = ""
    instance_template: str = ""
    status: _ManagerStatus = msgspec.field(default_factory=_ManagerStatus)
    distribution_policy: _Spread = msgspec.field(default_factory=_Spread)
    instance_flexibility_policy: dict[str, Any] = {}


class _Scheduling(msgspec.Struct, rename="camel"):
    preemptible: bool = False
    provisioning_model: str = ""


class _Reserved(msgspec.Struct, rename="camel"):
    consume_reservation_type: str = ""


class _Properties(msgspec.Struct, rename="camel"):
    machine_type: str = ""
    scheduling: _Scheduling = msgspec.field(default_factory=_Scheduling)
    reservation_affinity: _Reserved = msgspec.field(default_factory=_Reserved)

    @property
    def tier(self) -> CapacityType:
        model = self.scheduling.provisioning_model
        if self.scheduling.preemptible or model == "SPOT":
            return CapacityType.spot
        is_held = self.reservation_affinity.consume_reservation_type == "SPECIFIC_RESERVATION"
        return CapacityType.reserved if is_held or model == "RESERVATION_BOUND" else CapacityType.on_demand


class _GoogleTemplate(msgspec.Struct):
    properties: _Properties


class _ManagedInstance(msgspec.Struct, rename="camel"):
    """A group lists what it is to create, too: without an `id` and a status while there is no such machine."""

    id: str = ""
    instance: str = ""
    current_action: str = ""
    instance_status: str = ""


class _ManagedPage(msgspec.Struct, rename="camel"):
    managed_instances: list[_ManagedInstance] = []
    next_page_token: str = ""


class _Instance(msgspec.Struct, rename="camel"):
    id: str = ""
    creation_timestamp: str = ""


class _InstancePage(msgspec.Struct, rename="camel"):
    items: list[_Instance] = []
    next_page_token: str = ""


class _ActionDetails(msgspec.Struct):
    instance: str = ""


class _GroupError(msgspec.Struct, rename="camel"):
    error: _GoogleSaid = msgspec.field(default_factory=_GoogleSaid)
    instance_action_details: _ActionDetails = msgspec.field(default_factory=_ActionDetails)
    timestamp: str = ""


class _ErrorPage(msgspec.Struct, rename="camel"):
    items: list[_GroupError] = []
    next_page_token: str = ""


class _EnginePool(msgspec.Struct, rename="camel"):
    instance_group_urls: list[str] = []
    autoscaling: dict[str, Any] = {}


class _EngineCluster(msgspec.Struct, rename="camel"):
    node_pools: list[_EnginePool] = []


class _Engine(msgspec.Struct):
    clusters: list[_EngineCluster] = []


class GoogleWire(wire.CloudWire):
    def explain(self, status: int, answer: bytes, wait: Seconds | None) -> errors.ClientError:
        """The reason of the first error says more than the status in words."""
        try:
            said = msgspec.json.decode(answer, type=_ProblemPage).error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            said = _Problem()
        reason = next((each.reason for each in said.errors if each.reason), "")
        code = (reason or said.status)[:80]
        return wire.make_error(self.who, wire.CloudRefusal(status, code, said.message, wait), _WORDS)


class GoogleGroups:
    """`url`, `engine`: Compute Engine's and Kubernetes Engine's addresses."""

    def __init__(
        self, asking: GoogleWire, signer: signing.Signer, *, project: str, clock: Callable[[], Instant],
        url: str = COMPUTE_URL, engine: str = ENGINE_URL,
    ) -> None:
        self._wire, self._signer, self._project, self._clock = asking, signer, project, clock
        self._base, self._engine = f"{url}/compute/v1/projects/{project}", engine
        self._created: dict[str, dict[str, Instant]] = {}  # by group and id of a machine

    # ---- what there is ----

    async def groups(self, ids: Sequence[str]) -> tuple[MachineGroup, ...]:
        return tuple(await asyncio.gather(*map(self._read_group, ids)))

    async def machines(self, group: str) -> tuple[CloudMachine, ...]:
        manager = await self._get(self._place(group), _Manager)
        made_of = await self._find_template(manager)
        listed = await self._list(group)
        created = await self._find_created(group, listed)
        return tuple(
            msgspec.structs.replace(found, launched_at=created.get(each.id)) for each in listed
            if (found := _read_machine(group, each, self._project, made_of)) is not None
        )

    async def _find_created(self, group: str, listed: Sequence[_ManagedInstance]) -> dict[str, Instant]:
        """Which a group does not say of its machines: asked once for each. Where we may not, nobody knows."""
        known = {each.id: self._created.get(group, {}).get(each.id) for each in listed if each.id}
        unknown = [_INSTANCE.search(each.instance) for each in listed if each.id and known[each.id] is None]
        for zone in sorted({found[2] for found in unknown if found}):
            try:
                known |= {id_: at for id_, at in (await self._list_created(zone)).items() if id_ in known}
            except (errors.Forbidden, errors.NotFound):
                continue
        self._created[group] = {id_: at for id_, at in known.items() if at is not None}
        return self._created[group]

    async def _list_created(self, zone: str) -> dict[str, Instant | None]:
        url = yarl.URL(f"{self._base}/zones/{zone}/instances")
        url = url.with_query({"fields": "items(id,creationTimestamp),nextPageToken"})
        found = dict[str, Instant | None]()
        async for page in _pages(lambda token: self._get(str(url), _InstancePage, token)):
            found |= {each.id: units.read_instant(each.creation_timestamp) for each in page.items}
        return found

    async def wants(self, group: str) -> tuple[WantOfMachines, ...]:
        found, since = list[_GroupError](), self._clock() - _RECENT
        async for page in _pages(lambda token: self._get(f"{self._place(group)}/listErrors", _ErrorPage, token)):
            found += page.items
        read = (_read_want(group, each) for each in found)
        return tuple(each for each in read if each is not None and (each.at or 0.0) >= since)

    async def _read_group(self, group: str) -> MachineGroup:
        try:
            manager = await self._get(self._place(group), _Manager)
            template = await self._find_template(manager)
            owner = await self._find_owner(group, manager)
        except (errors.NotFound, errors.Forbidden, errors.Invalid, errors.BadAnswer, errors.Misconfigured) as problem:
            return MachineGroup(id=group, error=str(problem))
        if manager.target_size < 0:
            return MachineGroup(id=group, error=f"Google says that {group} is to have {manager.target_size} machines")
        zones = [_last(each.get("zone", "")) for each in manager.distribution_policy.zones] or [_last(manager.zone)]
        types = _read_types(manager, template)
        return MachineGroup(
            id=group, tier=template.tier if template else CapacityType.unknown, instance_types=types,
            zones=tuple(filter(None, zones)), most=_MOST[_is_zonal(group)], target=manager.target_size, owner=owner,
            shape=MachineShape(instance_type=types[0]) if len(types) == 1 else None,
        )

    async def _find_template(self, manager: _Manager) -> _Properties | None:
        """None: we may not read it."""
        found = _TEMPLATE.search(manager.instance_template)
        try:
            return (await self._get(f"{self._base}/{found[1]}", _GoogleTemplate)).properties if found else None
        except (errors.Forbidden, errors.NotFound):
            return None

    async def _find_owner(self, group: str, manager: _Manager) -> str:
        if manager.status.autoscaler:
            return "Compute Engine's autoscaler"
        name = group.partition("/")[2]
        if not name.startswith(_ENGINE):
            return ""
        try:
            url = f"{self._engine}/v1/projects/{self._project}/locations/-/clusters"
            found = await self._get(url, _Engine)
        except (errors.Forbidden, errors.NotFound) as problem:
            return f"Kubernetes Engine's autoscaler, perhaps ({problem})"
        pools = [pool for cluster in found.clusters for pool in cluster.node_pools]
        mine = [pool for pool in pools if name in map(_last, pool.instance_group_urls)]
        return "Kubernetes Engine's autoscaler" if any(pool.autoscaling.get("enabled") for pool in mine) else ""

    async def _list(self, group: str) -> list[_ManagedInstance]:
        found = list[_ManagedInstance]()
        url = f"{self._place(group)}/listManagedInstances"
        async for page in _pages(lambda token: self._get(url, _ManagedPage, token, method="POST")):
            found += page.managed_instances
        return found

    # ---- what is changed ----

    async def grow(self, growth: Growth) -> None:
        place = self._place(growth.group)
        target = (await self._get(place, _Manager)).target_size
        wanted = growing.find_target(growth, target, _MOST[_is_zonal(growth.group)])
        if wanted is not None:
            asked = {"size": str(wanted), "requestId": str(uuid.uuid5(_TOKENS, growth.token))}
            await self._change(f"{place}/resize", asked)

    async def remove(self, group: str, ids: Sequence[str]) -> None:
        here = {found[1] for each in await self._list(group) if (found := _INSTANCE.search(each.instance))
                and each.current_action not in ("DELETING", "ABANDONING")}
        going = [each for each in dict.fromkeys(ids) if each in here]
        if going:  # one that leaves in this very moment is skipped, and the target stays as it is for it
            body = msgspec.json.encode({"instances": going, "skipInstancesOnValidationError": True})
            await self._change(f"{self._place(group)}/deleteInstances", {}, body)

    async def _change(self, url: str, asked: Mapping[str, str], body: bytes = b"") -> None:
        answer = await self._wire.send(
            "POST", yarl.URL(url).with_query(asked), self._clock(), signer=self._signer, body=body,
            headers={"content-type": "application/json"}, is_once=True,
        )
        failed = self._wire.decode(answer.body, _Operation).error.errors
        if failed:
            raise wire.make_error(
                self._wire.who, wire.CloudRefusal(answer.status, failed[0].code, failed[0].message), _WORDS)

    # ---- notices: a node hears of its own (spot-watch); there is no queue ----

    async def notices(self) -> tuple[MachineNotice, ...]:
        return ()

    async def forget(self, notices: Sequence[MachineNotice]) -> None:
        return None

    async def _get(self, url: str, shape: type[T], token: str = "", *, method: str = "GET") -> T:
        asked = {"pageToken": token} if token else {}
        answer = await self._wire.ask(method, yarl.URL(url).update_query(asked), self._clock(), signer=self._signer)
        return self._wire.decode(answer, shape)

    def _place(self, group: str) -> str:
        found = _ID.fullmatch(group)
        if found is None:
            raise errors.Misconfigured(f"{group!r} is not ZONE/NAME or REGION/NAME of a managed instance group")
        region, zone, name = found[1], found[2], found[3]
        where = f"zones/{region}{zone}" if zone else f"regions/{region}"
        return f"{self._base}/{where}/instanceGroupManagers/{name}"


async def _pages(ask: Callable[[str], Any]) -> Any:
    token = ""
    for _ in range(wire.MOST_PAGES):
        page = await ask(token)
        yield page
        token = page.next_page_token
        if not token:
            return
    raise errors.BadAnswer(f"Google answers with more than {wire.MOST_PAGES} pages")


def _is_zonal(group: str) -> bool:
    found = _ID.fullmatch(group)
    return bool(found and found[2])


def _last(url: str) -> str:
    return url.rpartition("/")[2]


def _read_types(manager: _Manager, template: _Properties | None) -> tuple[str, ...]:
    """What a group may choose from, else what its template says."""
    selections = manager.instance_flexibility_policy.get("instanceSelections")
    chosen = selections.values() if isinstance(selections, dict) else ()
    listed = (each.get("machineTypes") for each in chosen if isinstance(each, dict))
    types = [str(name) for names in listed if isinstance(names, list) for name in names]
    return tuple(dict.fromkeys(filter(None, types or [_last(template.machine_type) if template else ""])))


_RUNS: Final = ("", "NONE", "VERIFYING", "REFRESHING")
_ENDED: Final = ("TERMINATED", "STOPPED", "SUSPENDED")


def _read_machine(group: str, each: _ManagedInstance, project: str, made_of: _Properties | None) -> CloudMachine | None:
    """None: there is no such machine, or not yet."""
    found = _INSTANCE.search(each.instance)
    if found is None or (not each.instance_status and each.current_action not in ("DELETING", "ABANDONING")):
        return None
    if each.current_action in ("DELETING", "ABANDONING") or each.instance_status in ("STOPPING", "DEPROVISIONING"):
        state = MachineState.deleting
    elif each.instance_status == "RUNNING" and each.current_action in _RUNS:
        state = MachineState.running
    else:
        is_over = each.instance_status in _ENDED and each.current_action in _RUNS
        state = MachineState.gone if is_over else MachineState.pending
    return CloudMachine(
        id=found[1], group=group, state=state, provider_id=f"gce://{project}/{found[2]}/{found[3]}", zone=found[2],
        instance_type=_last(made_of.machine_type) if made_of else "",
        tier=made_of.tier if made_of else CapacityType.unknown,
    )


def _read_want(group: str, each: _GroupError) -> WantOfMachines | None:
    meaning = _WORDS.get(each.error.code)
    if meaning not in (CloudTrouble.out_of_stock, CloudTrouble.quota_spent):
        return None
    found = _INSTANCE.search(each.instance_action_details.instance)
    return WantOfMachines(
        group=group, zone=found[2] if found else "", is_quota=meaning is CloudTrouble.quota_spent,
        at=units.read_instant(each.timestamp), because=" ".join(each.error.message.split())[:200],
    )
