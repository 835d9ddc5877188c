"""Auto Scaling groups against a loopback server that answers as AWS does on a bad day; on a good one: tests/real."""

import urllib.parse
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from tests.unit.clients import loopback
from tests.unit.clients.loopback import Asked, Loopback

from fallow.clients import errors, retry
from fallow.clients.clouds import wire
from fallow.clients.clouds.aws import query
from fallow.clients.clouds.aws.groups import AwsGroups
from fallow.model.cost import CapacityType
from fallow.model.machines import Growth, MachineState, WantOfMachines
from fallow.model.units import parse_instant

NOW = parse_instant("2026-11-17T10:00:00Z")
AT_ONCE = retry.Patience(tries=3, first_wait=0.001, longest_wait=5.0)
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "s3cret"}
GROWTH = Growth(group="g", count=2, base=3, token="t")
Answers = dict[str, Callable[[Any], Any]]


def xml(text: str, status: int = 200) -> web.Response:
    return web.Response(text=f"<?xml version='1.0'?>{text}", content_type="text/xml", status=status)


def refusal(code: str, message: str = "", status: int = 400) -> web.Response:
    return xml(
        f'<ErrorResponse xmlns="http://autoscaling.amazonaws.com/doc/2011-01-01/"><Error><Type>Sender</Type>'
        f"<Code>{code}</Code><Message>{message}</Message></Error></ErrorResponse>", status,
    )


def member(machine: str, state: str = "InService") -> str:
    return (
        f"<member><InstanceId>{machine}</InstanceId><AvailabilityZone>us-east-1a</AvailabilityZone>"
        f"<InstanceType>g5.xlarge</InstanceType><LifecycleState>{state}</LifecycleState></member>"
    )


def group(target: str = "3", more: str = "", *members: str, name: str = "g", token: str = "") -> web.Response:
    return xml(
        '<DescribeAutoScalingGroupsResponse xmlns="http://autoscaling.amazonaws.com/doc/2011-01-01/">'
        f"<DescribeAutoScalingGroupsResult><AutoScalingGroups><member><AutoScalingGroupName>{name}"
        f"</AutoScalingGroupName><MinSize>0</MinSize><MaxSize>9</MaxSize><DesiredCapacity>{target}</DesiredCapacity>"
        f"{more}<Instances>{''.join(members)}</Instances></member></AutoScalingGroups>"
        f"<NextToken>{token}</NextToken></DescribeAutoScalingGroupsResult></DescribeAutoScalingGroupsResponse>"
    )


OK = xml("<r/>")


@asynccontextmanager
async def aws(answers: Answers, **said: Any) -> AsyncIterator[tuple[AwsGroups, Loopback]]:
    def answer(asked: Asked) -> web.Response:
        return loopback.again(answers[asked.form["Action"]](asked.form))

    async with loopback.serve(answer) as server, query.AwsWire("AWS", {}, patience=AT_ONCE, **said) as asking:
        yield AwsGroups(query.AwsQuery(
            asking, ENVIRONMENT, clock=lambda: NOW, region="us-east-1", endpoint=server.url
        )), server


def actions(server: Loopback) -> list[str]:
    return [asked.form["Action"] for asked in server.asked]


async def test_requests_are_signed_forms_of_the_service_that_they_are_for() -> None:
    async with aws({"DescribeAutoScalingGroups": lambda _: group("1", "", member("i-1")),
                    "DescribeInstances": lambda _: OK}) as (cloud, server):
        [machine] = await cloud.machines("g")
    assert (machine.state, machine.tier) == (MachineState.running, CapacityType.unknown)  # EC2 does not know it yet
    signed = [asked.headers["Authorization"].partition("aws4_request")[0] for asked in server.asked]
    assert [each.split("/")[-2] for each in signed] == ["autoscaling", "ec2"]
    sent = dict(urllib.parse.parse_qsl(server.asked[1].body.decode()))
    assert sent == {
        "Action": "DescribeInstances", "Version": "2016-11-15", "Filter.1.Name": "instance-id",
        "Filter.1.Value.1": "i-1",
    }


# ---- grow ----

TARGETS = {
    "as it was": ("3", [("5", "false")]), "there already": ("5", []), "above": ("8", []),
    "half way, and somebody else's": ("4", [("5", "false")]),
}


@pytest.mark.accepts("scaling", 9)
@pytest.mark.parametrize("name", TARGETS)
async def test_a_target_is_raised_by_what_is_still_missing_and_never_lowered(name: str) -> None:
    target, sent = TARGETS[name]
    async with aws({"DescribeAutoScalingGroups": lambda _: group(target), "SetDesiredCapacity": lambda _: OK}) as (
        cloud, server,
    ):
        await cloud.grow(GROWTH)
    told = [(each.form["DesiredCapacity"], each.form["HonorCooldown"]) for each in server.asked[1:]]
    assert told == sent


@pytest.mark.parametrize(("target", "error", "because"), [
    ("2", errors.Conflict, "somebody lowered that"), ("-1", errors.BadAnswer, "DesiredCapacity is '-1'"),
    ("", errors.BadAnswer, "DesiredCapacity is ''"), ("1e3", errors.BadAnswer, "DesiredCapacity is '1e3'"),
    ("9999999999", errors.BadAnswer, "DesiredCapacity"), ("٣", errors.BadAnswer, "DesiredCapacity"),
])
async def test_nothing_grows_by_a_target_that_cannot_be(target: str, error: type[Exception], because: str) -> None:
    async with aws({"DescribeAutoScalingGroups": lambda _: group(target)}) as (cloud, server):
        with pytest.raises(error, match=because):
            await cloud.grow(GROWTH)
        [found] = await cloud.groups(["g"])
        assert bool(found.error) is (error is errors.BadAnswer)
    assert actions(server) == ["DescribeAutoScalingGroups"] * 2


REFUSALS = {
    "throttled": (refusal("Throttling", "Rate exceeded"), errors.Throttled),
    "busy": (refusal("ScalingActivityInProgress"), errors.Conflict),
    "contention": (refusal("ResourceContention", status=500), errors.Conflict),
    "no stock": (refusal("InsufficientInstanceCapacity"), errors.OutOfStock),
    "quota": (refusal("VcpuLimitExceeded"), errors.QuotaSpent),
    "denied": (refusal("AccessDenied", "User AKID may not", 403), errors.Forbidden),
    "unknown key": (refusal("InvalidClientTokenId", "token s3cret", 403), errors.Unauthorized),
    "wrong": (refusal("ValidationError", "above max value"), errors.Invalid),
    "down": (refusal("ServiceUnavailable", status=503), errors.ServerFault),
    "broken": (web.Response(status=500, text="<html>oops"), errors.ServerFault),
}


@pytest.mark.parametrize("name", REFUSALS)
async def test_what_is_refused_is_told_by_what_it_means_and_sent_once(name: str) -> None:
    answer, error = REFUSALS[name]
    async with aws({"DescribeAutoScalingGroups": lambda _: group(), "SetDesiredCapacity": lambda _: answer}) as (
        cloud, server,
    ):
        with pytest.raises(error) as caught:
            await cloud.grow(GROWTH)
    assert "s3cret" not in str(caught.value)
    assert "AKID" not in str(caught.value)
    assert actions(server).count("SetDesiredCapacity") == 1


# ---- what there is ----


@pytest.mark.parametrize(("more", "tier", "types"), [
    ("<MixedInstancesPolicy><LaunchTemplate><Overrides><member><InstanceType>g5.xlarge</InstanceType></member><member>"
     "<InstanceType>g6.xlarge</InstanceType></member></Overrides></LaunchTemplate><InstancesDistribution>"
     "<OnDemandBaseCapacity>0</OnDemandBaseCapacity><OnDemandPercentageAboveBaseCapacity>0"
     "</OnDemandPercentageAboveBaseCapacity></InstancesDistribution></MixedInstancesPolicy>", CapacityType.spot,
     ("g5.xlarge", "g6.xlarge")),
    ("<MixedInstancesPolicy><InstancesDistribution><OnDemandBaseCapacity>1</OnDemandBaseCapacity>"
     "<OnDemandPercentageAboveBaseCapacity>0</OnDemandPercentageAboveBaseCapacity></InstancesDistribution>"
     "</MixedInstancesPolicy>", CapacityType.on_demand, ("g5.xlarge",)),
    ("<LaunchConfigurationName>old</LaunchConfigurationName>", CapacityType.on_demand, ("g5.xlarge",)),
    ("<LaunchTemplate><LaunchTemplateId>lt-1</LaunchTemplateId></LaunchTemplate>", CapacityType.unknown,
     ("g5.xlarge",)),
], ids=["mixed, all spot", "mixed", "launch configuration", "a template that we may not read"])
async def test_what_a_group_is_made_of(more: str, tier: CapacityType, types: tuple[str, ...]) -> None:
    async with aws({"DescribeAutoScalingGroups": lambda _: group("1", more, member("i-1")),
                    "DescribeLaunchTemplateVersions": lambda _: refusal("UnauthorizedOperation", status=403)}) as (
        cloud, _,
    ):
        [found] = await cloud.groups(["g"])
    assert (found.tier, found.instance_types, found.error) == (tier, types, "")
    assert found.mixes == (tier is CapacityType.on_demand and "MixedInstancesPolicy" in more)


@pytest.mark.parametrize(("data", "tier"), [
    ("<instanceMarketOptions><marketType>spot</marketType></instanceMarketOptions>", CapacityType.spot),
    ("<instanceMarketOptions><marketType>capacity-block</marketType></instanceMarketOptions>", CapacityType.reserved),
    ("<capacityReservationSpecification><capacityReservationPreference>capacity-reservations-only"
     "</capacityReservationPreference></capacityReservationSpecification>", CapacityType.reserved),
    ("", CapacityType.on_demand),
])
async def test_a_template_tells_the_tier_and_is_asked_for_once(data: str, tier: CapacityType) -> None:
    template = xml(
        "<r><launchTemplateVersionSet><item><launchTemplateData><instanceType>p5.48xlarge</instanceType>"
        f"{data}</launchTemplateData></item></launchTemplateVersionSet></r>"
    )
    more = "<LaunchTemplate><LaunchTemplateId>lt-1</LaunchTemplateId><Version>$Latest</Version></LaunchTemplate>"
    async with aws({"DescribeAutoScalingGroups": lambda _: group("0", more),
                    "DescribeLaunchTemplateVersions": lambda _: template}) as (cloud, server):
        for _ in range(3):
            [found] = await cloud.groups(["g"])
    assert (found.tier, found.instance_types) == (tier, ("p5.48xlarge",))
    assert actions(server).count("DescribeLaunchTemplateVersions") == 1


def seen(machine: str, state: str, more: str = "") -> str:
    return (
        f"<item><instanceId>{machine}</instanceId><instanceState><name>{state}</name></instanceState>{more}"
        "<launchTime>2026-11-17T09:00:00.000Z</launchTime></item>"
    )


async def test_machines_are_as_ec2_has_them_where_it_knows_more() -> None:
    found = "".join([
        seen("i-1", "running", "<instanceLifecycle>spot</instanceLifecycle>"), seen("i-2", "shutting-down"),
        seen("i-3", "pending", "<capacityReservationId>cr-1</capacityReservationId>"),
        seen("i-4", "terminated", "<instanceLifecycle>capacity-block</instanceLifecycle>"),
    ])
    page = xml(f"<r><reservationSet><item><instancesSet>{found}</instancesSet></item></reservationSet></r>")
    members = [
        member("i-1"), member("i-2"), member("i-3", "Pending:Wait"), member("i-4", "Terminating:Proceed"),
        member("i-5", "A new one"),
    ]
    async with aws({"DescribeAutoScalingGroups": lambda _: group("3", "", *members),
                    "DescribeInstances": lambda _: page}) as (cloud, _):
        machines = await cloud.machines("g")
    assert [(each.id, each.state.value, each.tier.value) for each in machines] == [
        ("i-1", "running", "spot"), ("i-2", "deleting", "on-demand"), ("i-3", "pending", "reserved"),
        ("i-4", "gone", "reserved"), ("i-5", "pending", "unknown"),
    ]
    assert machines[0].launched_at == parse_instant("2026-11-17T09:00:00Z")
    assert machines[4].launched_at is None


def activity(code: str, said: str, at: str = "2026-11-17T09:50:00Z", details: str = "") -> str:
    return (
        f"<member><StatusCode>{code}</StatusCode><StatusMessage>{said}</StatusMessage><StartTime>{at}</StartTime>"
        f"<Details>{details}</Details></member>"
    )


SAID = "We currently do not have sufficient p5.48xlarge capacity in the Availability Zone you requested (us-east-1b)."
QUOTA = "You have requested more vCPU capacity than your current vCPU limit of 0 allows for the instance bucket"
ACTIVITIES = {
    "no stock": (activity("Failed", SAID), [("p5.48xlarge", "us-east-1b", False)]),
    "no spot": (activity("Failed", "Could not launch Spot Instances. UnfulfillableCapacity - Unable to fulfill",
                         details='{"Availability Zone":"us-east-1c"}'), [("", "us-east-1c", False)]),
    "a code": (activity("Failed", "Could not launch Spot Instances. InsufficientInstanceCapacity - There is no Spot"),
               [("", "", False)]),
    "quota of spot": (activity("Failed", "Could not launch Spot Instances. MaxSpotInstanceCountExceeded"),
                      [("", "", True)]),
    "quota": (activity("Failed", QUOTA), [("", "", True)]),
    "quota by its code": (activity("Failed", f"Could not launch On-Demand Instances. VcpuLimitExceeded - {QUOTA}"),
                          [("", "", True)]),
    "another trouble": (activity("Failed", "The image id does not exist. Launching EC2 instance failed."), []),
    "long ago": (activity("Failed", SAID, "2026-11-17T08:50:00Z"), []),
    "at no time": (activity("Failed", SAID, "yesterday"), []),
    "it went well": (activity("Successful", SAID), []),
    "none": ("", []),
}


@pytest.mark.parametrize("name", ACTIVITIES)
async def test_why_no_machine_came_stands_in_the_activities(name: str) -> None:
    told, wants = ACTIVITIES[name]
    page = xml(
        f"<r><DescribeScalingActivitiesResult><Activities>{told}</Activities></DescribeScalingActivitiesResult></r>"
    )
    async with aws({"DescribeScalingActivities": lambda _: page}) as (cloud, _):
        found = await cloud.wants("g")
    assert [(each.instance_type, each.zone, each.is_quota) for each in found] == wants
    assert all(isinstance(each, WantOfMachines) and each.group == "g" for each in found)


# ---- remove ----


async def test_of_machines_that_cannot_all_go_each_that_stays_is_named_with_its_reason() -> None:
    def terminate(form: dict[str, str]) -> web.Response:
        assert form["ShouldDecrementDesiredCapacity"] == "true"
        return {
            "i-1": OK, "i-2": refusal("ScalingActivityInProgress"),
            "i-3": refusal("ValidationError", "Instance Id not found - No managed instance found for instance ID: i-3"),
            "i-4": refusal("ValidationError", "would violate group's min size constraint"),
        }[form["InstanceId"]]

    members = [*map(member, ("i-1", "i-2", "i-3", "i-4")), member("i-5", "Terminating"), member("i-6")]
    async with aws({"DescribeAutoScalingGroups": lambda _: group("6", "", *members),
                    "TerminateInstanceInAutoScalingGroup": terminate}) as (cloud, server):
        with pytest.raises(errors.PartlyDone, match="of 4 machines of g 2 could not be removed: i-2: ") as caught:
            await cloud.remove("g", ["i-1", "i-2", "i-3", "i-4", "i-5", "i-9", "i-1"])
        assert {name: type(each) for name, each in caught.value.failed.items()} == {
            "i-2": errors.Conflict, "i-4": errors.Invalid
        }
        with pytest.raises(errors.Conflict):
            await cloud.remove("g", ["i-2"])
        await cloud.remove("g", ["i-3", "i-5", "i-9"])
    sent = [asked.form["InstanceId"] for asked in server.asked if "InstanceId" in asked.form]
    assert sent == ["i-1", "i-2", "i-3", "i-4", "i-2", "i-3"]


async def test_a_removal_whose_answer_is_lost_is_not_sent_again_but_one_that_was_throttled_is() -> None:
    answers = loopback.in_turn(lambda _: refusal("Throttling"), lambda _: web.Response(status=502), lambda _: OK)
    async with aws({"DescribeAutoScalingGroups": lambda _: group("1", "", member("i-1")),
                    "TerminateInstanceInAutoScalingGroup": answers}) as (cloud, server):
        with pytest.raises(errors.ServerFault):
            await cloud.remove("g", ["i-1"])
    assert actions(server).count("TerminateInstanceInAutoScalingGroup") == 2


# ---- bad days ----

GARBAGE = {
    "no xml": web.Response(text="<html>"), "empty": web.Response(text=""), "bytes": web.Response(body=b"\xff\x00"),
    "an encoding": web.Response(text="<?xml version='1.0' encoding='klingon'?><a/>"),
    "entities": web.Response(text="<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;"), "long": web.Response(text="x" * 100_000),
}


@pytest.mark.parametrize("name", GARBAGE)
async def test_garbage_is_no_answer_and_nothing_is_done_by_it(name: str) -> None:
    async with aws({"DescribeAutoScalingGroups": lambda _: GARBAGE[name]}, longest=50_000) as (cloud, server):
        for asked in (cloud.groups(["g"]), cloud.machines("g"), cloud.grow(GROWTH), cloud.remove("g", ["i-1"])):
            with pytest.raises(errors.BadAnswer):
                await asked
    assert set(actions(server)) == {"DescribeAutoScalingGroups"}


async def test_pages_without_end_are_given_up_and_pages_are_put_together() -> None:
    pages = loopback.in_turn(lambda _: group(name="a", token="2"), lambda _: group(name="b"))
    async with aws({"DescribeAutoScalingGroups": pages}) as (cloud, server):
        assert [each.error for each in await cloud.groups(["a", "b"])] == ["", ""]
        assert server.asked[1].form["NextToken"] == "2"
    async with aws({"DescribeAutoScalingGroups": lambda _: group(token="again")}) as (cloud, server):
        with pytest.raises(errors.BadAnswer, match="more than 100 pages"):
            await cloud.groups(["g"])
    assert len(server.asked) == wire.MOST_PAGES


async def test_a_cloud_that_is_down_or_throttles_is_asked_three_times() -> None:
    async with aws({"DescribeAutoScalingGroups": lambda _: refusal("Throttling")}) as (cloud, server):
        with pytest.raises(errors.Throttled):
            await cloud.groups(["g"])
    assert len(server.asked) == 3
    async with query.AwsWire("AWS", {}, patience=AT_ONCE) as asking:
        away = query.AwsQuery(asking, ENVIRONMENT, clock=lambda: NOW, region="us-east-1", endpoint=server.url)
        with pytest.raises(errors.Unreachable, match="AWS cannot be reached: connection refused"):
            await AwsGroups(away).groups(["g"])
    long = web.Response(status=400, text="<Code>Throttling</Code>", headers={"Retry-After": "30"})
    async with aws({"DescribeAutoScalingGroups": lambda _: long}) as (cloud, server):
        with pytest.raises(errors.Throttled) as caught:
            await cloud.groups(["g"])
    assert caught.value.retry_after == 30.0  # longer than a cycle can wait: the caller plans for it
    assert len(server.asked) == 1


async def test_without_a_region_nothing_is_asked() -> None:
    async with query.AwsWire("AWS", {}) as asking:
        with pytest.raises(errors.Misconfigured, match="driving Auto Scaling groups needs an AWS region"):
            query.AwsQuery(asking, ENVIRONMENT, clock=lambda: NOW)
