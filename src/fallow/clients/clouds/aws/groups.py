"""Auto Scaling groups of AWS as a Cloud: read, raised, and emptied of exactly the machines that were named.

In: names of groups; for notices a queue (interruptions.py). Out: our nouns of machines. A group that cluster-autoscaler
was listed to drive, by its tag, has that as owner. What a launch failed by, AWS only tells in the sentences of scaling
activities: each names its code, or is one of two that AWS has written for years.
Invariant: a target is raised by what was just read, once, and never lowered; only a machine that is in the group and
not on its way out is terminated, so that no machine of another group and no target is hit twice.
"""

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from fallow.clients import errors
from fallow.clients.clouds import growing
from fallow.clients.clouds.aws import interruptions, query
from fallow.clients.clouds.aws.query import find_all, find_text, number_all
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
from fallow.model.units import HOUR, MINUTE, Instant, Seconds

OWNER_TAG: Final = "k8s.io/cluster-autoscaler/enabled"
_MOST_NAMES: Final = 50  # groups asked about at once
_RECENT: Final[Seconds] = HOUR
_KEPT: Final[Seconds] = 10 * MINUTE  # a launch template's version
_GONE: Final = "No managed instance found for instance ID"
_LACKS: Final = re.compile(
    r"do not have sufficient (\S{1,60}) capacity in the Availability Zone you requested \(([a-z0-9-]{1,40})\)"
)
_SPENT: Final = "more vCPU capacity than your current vCPU limit"
_CODE: Final = re.compile(r"\b([A-Z]\w{6,60})\b")
_ZONE: Final = re.compile(r'"Availability Zone"\s*:\s*"([a-z0-9-]{1,40})"')


class _Template(msgspec.Struct, frozen=True):
    """What a launch template says. Tier None: nothing."""

    instance_type: str = ""
    tier: CapacityType | None = None


class AwsGroups:
    """`queue`: the URL of an SQS queue that EventBridge fills; "": none."""

    def __init__(self, asking: query.AwsQuery, *, queue: str = "") -> None:
        self._aws, self._clock = asking, asking.clock
        self._notices = interruptions.InterruptionQueue(asking, queue, self._find_instances) if queue else None
        self._templates: dict[tuple[str, str], tuple[Instant, _Template]] = {}

    # ---- what there is ----

    async def groups(self, ids: Sequence[str]) -> tuple[MachineGroup, ...]:
        found = await self._describe(ids)
        return tuple([await self._read_group(name, found.get(name)) for name in ids])

    async def machines(self, group: str) -> tuple[CloudMachine, ...]:
        members = _list_members(await self._get(group))
        known = await self._find_instances([find_text(each, "InstanceId") for each in members])
        return tuple(_read_machine(group, each, known.get(find_text(each, "InstanceId"))) for each in members)

    async def wants(self, group: str) -> tuple[WantOfMachines, ...]:
        asked = {"AutoScalingGroupName": group, "MaxRecords": "50"}
        page = await self._aws.read("autoscaling", "DescribeScalingActivities", asked)
        since = self._clock() - _RECENT
        listed = find_all(page, "DescribeScalingActivitiesResult/Activities/member")
        found = (_read_want(group, each) for each in listed)
        return tuple(want for want in found if want is not None and (want.at or 0.0) >= since)

    async def _describe(self, names: Sequence[str]) -> dict[str, ElementTree.Element]:
        found = {}
        for begin in range(0, len(names), _MOST_NAMES):
            asked = number_all("AutoScalingGroupNames.member", names[begin:begin + _MOST_NAMES])
            result = "DescribeAutoScalingGroupsResult"
            pages = await self._aws.read_pages(
                "autoscaling", "DescribeAutoScalingGroups", {**asked, "MaxRecords": "100"}, f"{result}/NextToken"
            )
            for group in (each for page in pages for each in find_all(page, f"{result}/AutoScalingGroups/member")):
                found[find_text(group, "AutoScalingGroupName")] = group
        return found

    async def _get(self, name: str) -> ElementTree.Element:
        found = (await self._describe([name])).get(name)
        if found is None:
            raise errors.NotFound(404, f"{self._aws.wire.who}: there is no Auto Scaling group {name}")
        return found

    async def _read_group(self, name: str, group: ElementTree.Element | None) -> MachineGroup:
        if group is None:
            return MachineGroup(id=name, error=f"there is no Auto Scaling group {name}")
        try:
            least, most, target = (_read_count(group, each) for each in ("MinSize", "MaxSize", "DesiredCapacity"))
        except errors.BadAnswer as problem:
            return MachineGroup(id=name, error=str(problem))
        overrides = [find_text(each, "InstanceType") for each in find_all(
            group, "MixedInstancesPolicy/LaunchTemplate/Overrides/member")]
        template = await self._read_template(group)
        here = [find_text(each, "InstanceType") for each in _list_members(group)]
        types = tuple(dict.fromkeys(filter(None, overrides or [template.instance_type]))) or tuple(
            dict.fromkeys(filter(None, here)))
        tags = {find_text(each, "Key") for each in find_all(group, "Tags/member")}
        return MachineGroup(
            id=name, tier=_read_tier(group, template), instance_types=types, least=least, most=most, target=target,
            zones=tuple(zone.text or "" for zone in find_all(group, "AvailabilityZones/member")),
            shape=MachineShape(instance_type=types[0]) if len(types) == 1 else None,
            owner="cluster-autoscaler" if OWNER_TAG in tags else "", mixes=_is_mixed(group),
        )

    async def _read_template(self, group: ElementTree.Element) -> _Template:
        for path in ("LaunchTemplate", "MixedInstancesPolicy/LaunchTemplate/LaunchTemplateSpecification"):
            name, version = find_text(group, f"{path}/LaunchTemplateId"), find_text(group, f"{path}/Version")
            if name:
                return await self._find_template(name, version or "$Default")
        return _Template()

    async def _find_template(self, name: str, version: str) -> _Template:
        """What we may not read is not known: it is no reason not to see the group."""
        now = self._clock()
        kept = self._templates.get((name, version))
        if kept is None or not 0 <= now - kept[0] < _KEPT:
            asked = {"LaunchTemplateId": name, "LaunchTemplateVersion.1": version}
            try:
                page = await self._aws.read("ec2", "DescribeLaunchTemplateVersions", asked)
            except (errors.Forbidden, errors.NotFound, errors.Invalid):
                return _Template()
            kept = self._templates[name, version] = now, _parse_template(page)
        return kept[1]

    async def _find_instances(self, ids: Iterable[str]) -> dict[str, ElementTree.Element]:
        """By filter: asked for by name, one that is gone would hide all others."""
        wanted, found = [each for each in ids if each], {}
        for begin in range(0, len(wanted), 200):
            asked = {"Filter.1.Name": "instance-id", **number_all("Filter.1.Value", wanted[begin:begin + 200])}
            for page in await self._aws.read_pages("ec2", "DescribeInstances", asked, "nextToken"):
                for each in find_all(page, "reservationSet/item/instancesSet/item"):
                    found[find_text(each, "instanceId")] = each
        return found

    # ---- what is changed ----

    async def grow(self, growth: Growth) -> None:
        group = await self._get(growth.group)
        wanted = growing.find_target(growth, _read_count(group, "DesiredCapacity"), _read_count(group, "MaxSize"))
        if wanted is None:
            return
        await self._aws.change("SetDesiredCapacity", {
            "AutoScalingGroupName": growth.group, "DesiredCapacity": str(wanted), "HonorCooldown": "false",
        }, is_once=True)

    async def remove(self, group: str, ids: Sequence[str]) -> None:
        here = {
            find_text(each, "InstanceId") for each in _list_members(await self._get(group))
            if _STATES.get(find_text(each, "LifecycleState").partition(":")[0]) not in _LEAVING
        }
        failed = dict[str, errors.ClientError]()
        going = [each for each in dict.fromkeys(ids) if each in here]
        for each in going:
            try:
                await self._terminate(each)
            except errors.ClientError as problem:
                failed[each] = problem
        if failed and len(failed) == len(going):
            raise next(iter(failed.values()))
        if failed:
            raise errors.PartlyDone(f"of {len(going)} machines of {group}", failed)

    async def _terminate(self, machine: str) -> None:
        try:
            await self._aws.change("TerminateInstanceInAutoScalingGroup", {
                "InstanceId": machine, "ShouldDecrementDesiredCapacity": "true",
            })
        except errors.Invalid as problem:
            if _GONE not in str(problem):
                raise

    # ---- notices ----

    async def notices(self) -> tuple[MachineNotice, ...]:
        return await self._notices.receive() if self._notices else ()

    async def forget(self, notices: Sequence[MachineNotice]) -> None:
        if self._notices and notices:
            await self._notices.forget([each.receipt for each in notices])


_STATES: Final = {
    "Pending": MachineState.pending, "InService": MachineState.running, "Standby": MachineState.running,
    "EnteringStandby": MachineState.running, "Terminating": MachineState.deleting, "Terminated": MachineState.gone,
    "Detaching": MachineState.deleting, "Detached": MachineState.gone,
}
_EC2_STATES: Final = {
    "pending": MachineState.pending, "running": MachineState.running, "shutting-down": MachineState.deleting,
    "terminated": MachineState.gone, "stopping": MachineState.deleting, "stopped": MachineState.gone,
}
_LEAVING: Final = (MachineState.deleting, MachineState.gone)


def _list_members(group: ElementTree.Element) -> list[ElementTree.Element]:
    return find_all(group, "Instances/member")


def _read_count(group: ElementTree.Element, name: str) -> int:
    text = find_text(group, name)
    if not (text.isascii() and text.isdigit() and len(text) < 7):
        raise errors.BadAnswer(f"AWS says of a group that its {name} is {text[:20]!r}")
    return int(text)


def _is_mixed(group: ElementTree.Element) -> bool:
    """AWS has on demand whatever it does not say otherwise."""
    shares = find_all(group, "MixedInstancesPolicy/InstancesDistribution")
    above = find_text(shares[0], "OnDemandPercentageAboveBaseCapacity") if shares else ""
    base = find_text(shares[0], "OnDemandBaseCapacity") if shares else ""
    return above not in ("", "100") and not (above == "0" and base in ("", "0"))


def _read_tier(group: ElementTree.Element, template: _Template) -> CapacityType:
    """A mixed group is spot where nothing in it is on demand; of any other one its template tells."""
    shares = find_all(group, "MixedInstancesPolicy/InstancesDistribution")
    if shares:
        base, above = (find_text(shares[0], each) for each in (
            "OnDemandBaseCapacity", "OnDemandPercentageAboveBaseCapacity"))
        return CapacityType.spot if base in ("", "0") and above == "0" else CapacityType.on_demand
    if find_text(group, "LaunchConfigurationName"):
        return CapacityType.on_demand
    return CapacityType.unknown if template.tier is None else template.tier


def _parse_template(page: ElementTree.Element) -> _Template:
    for data in find_all(page, "launchTemplateVersionSet/item/launchTemplateData"):
        market = find_text(data, "instanceMarketOptions/marketType")
        reserved = find_text(data, "capacityReservationSpecification/capacityReservationPreference")
        is_reserved = market == "capacity-block" or reserved == "capacity-reservations-only"
        tier = CapacityType.reserved if is_reserved else (
            CapacityType.spot if market == "spot" else CapacityType.on_demand)
        return _Template(find_text(data, "instanceType"), tier)
    return _Template()


def _read_machine(group: str, member: ElementTree.Element, seen: ElementTree.Element | None) -> CloudMachine:
    """`seen`: as EC2 has it, which knows more, and before the group does."""
    name, zone = find_text(member, "InstanceId"), find_text(member, "AvailabilityZone")
    state = _STATES.get(find_text(member, "LifecycleState").partition(":")[0], MachineState.pending)
    tier, launched_at = CapacityType.unknown, None
    if seen is not None:
        as_seen = _EC2_STATES.get(find_text(seen, "instanceState/name"))
        state = as_seen if as_seen in _LEAVING and as_seen is not None else state
        tier = read_lifecycle(seen)
        launched_at = units.read_instant(find_text(seen, "launchTime"))
    return CloudMachine(
        id=name, group=group, state=state, provider_id=f"aws:///{zone}/{name}", zone=zone, tier=tier,
        instance_type=find_text(member, "InstanceType"), launched_at=launched_at,
    )


def read_lifecycle(seen: ElementTree.Element) -> CapacityType:
    match find_text(seen, "instanceLifecycle"):
        case "spot":
            return CapacityType.spot
        case "capacity-block":
            return CapacityType.reserved
    return CapacityType.reserved if find_text(seen, "capacityReservationId") else CapacityType.on_demand


def _read_want(group: str, activity: ElementTree.Element) -> WantOfMachines | None:
    """None: it is no want of machines."""
    said = find_text(activity, "StatusMessage")
    if find_text(activity, "StatusCode") != "Failed" or not said:
        return None
    lacks = _LACKS.search(said)
    meanings = {query.WORDS.get(each) for each in _CODE.findall(said[:400])}
    is_quota = CloudTrouble.quota_spent in meanings or _SPENT in said
    if not (lacks or is_quota or CloudTrouble.out_of_stock in meanings):
        return None
    zone = _ZONE.search(find_text(activity, "Details"))
    return WantOfMachines(
        group=group, instance_type=lacks[1] if lacks else "", zone=zone[1] if zone else lacks[2] if lacks else "",
        is_quota=is_quota, because=" ".join(said.split())[:200],
        at=units.read_instant(find_text(activity, "StartTime")),
    )
