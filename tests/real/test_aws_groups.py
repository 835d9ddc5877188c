"""Auto Scaling groups, machines and a queue of notices on a server that speaks as AWS does (moto), over its own wire.

Groups are made by AWS' own calls, and everything that a Cloud promises is asked of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest

from fallow.clients import errors
from fallow.clients.clouds.aws import query
from fallow.clients.clouds.aws.groups import AwsGroups
from fallow.model.cost import CapacityType
from fallow.model.machines import Growth, MachineState
from fallow.model.units import rfc3339
from tests.real import build, product
from tests.real.conftest import need

ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "s3cret", "AWS_REGION": "us-east-1"}
GROUP = "gpu-spot"


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    need("moto-packages")
    port, log = product.free_port(), tmp_path_factory.mktemp("moto") / "log"
    environment = {"PYTHONPATH": str(build.need("moto-packages")), "PATH": os.environ["PATH"], "HOME": str(log.parent)}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-S", "-m", "moto.server", "-p", str(port)], env=environment, stdin=subprocess.DEVNULL,
            stdout=output, stderr=output, cwd=log.parent,
        )
    yield f"http://127.0.0.1:{port}"
    process.kill()
    process.wait()


async def come_up(url: str) -> None:
    async with aiohttp.ClientSession() as session, asyncio.timeout(60):
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.post(f"{url}/moto-api/reset") as got:
                    assert got.status == 200
                    return
            await asyncio.sleep(0.1)


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[query.AwsQuery]:
    await come_up(url)
    async with query.AwsWire("AWS", {}) as wire:
        yield query.AwsQuery(wire, ENVIRONMENT, clock=time.time, endpoint=url)


async def make_group(aws: query.AwsQuery, name: str, *, size: int, market: str = "", **tags: str) -> None:
    """A launch template of its own, and a group of so many."""
    spot = {"LaunchTemplateData.InstanceMarketOptions.MarketType": market} if market else {}
    try:
        await aws.read("ec2", "CreateLaunchTemplate", {
            "LaunchTemplateName": name, "LaunchTemplateData.InstanceType": "g5.xlarge",
            "LaunchTemplateData.ImageId": "ami-12c6146b", **spot,
        })
    except errors.ClientError as problem:  # asked again, because the first answer took too long
        if "AlreadyExists" not in str(problem) and "already" not in str(problem):
            raise
    tagged = {
        key: value for number, (tag, said) in enumerate(tags.items(), 1) for key, value in {
            f"Tags.member.{number}.Key": tag.replace("__", "/").replace("_", "-"), f"Tags.member.{number}.Value": said,
            f"Tags.member.{number}.ResourceType": "auto-scaling-group", f"Tags.member.{number}.ResourceId": name,
            f"Tags.member.{number}.PropagateAtLaunch": "false",
        }.items()
    }
    await aws.change("CreateAutoScalingGroup", {
        "AutoScalingGroupName": name, "LaunchTemplate.LaunchTemplateName": name, "LaunchTemplate.Version": "$Latest",
        "MinSize": "0", "MaxSize": "10", "DesiredCapacity": str(size), "AvailabilityZones.member.1": "us-east-1a",
        **tagged,
    })


async def find_target(cloud: AwsGroups, group: str = GROUP) -> int | None:
    [found] = await cloud.groups([group])
    assert found.error == ""
    return found.target


@pytest.mark.accepts("scaling", 9)
async def test_a_group_grows_once_and_loses_exactly_the_machines_that_are_named(moto: str) -> None:
    async with opened(moto) as aws:
        await make_group(aws, GROUP, size=1, market="spot")
        cloud = AwsGroups(aws)
        [found, none] = await cloud.groups([GROUP, "nobody's"])
        assert (found.least, found.most, found.target, found.tier) == (0, 10, 1, CapacityType.spot)
        assert (found.instance_types, found.zones, found.owner) == (("g5.xlarge",), ("us-east-1a",), "")
        assert none.error == "there is no Auto Scaling group nobody's"

        growth = Growth(group=GROUP, count=3, base=1, token="t1")
        for _ in range(2):  # killed before it could write that it had grown, and started again
            await cloud.grow(growth)
            assert await find_target(cloud) == 4
        await cloud.grow(Growth(group=GROUP, count=1, base=1, token="t0"))  # by a target that is long past
        assert await find_target(cloud) == 4
        with pytest.raises(errors.Conflict, match="is to have 4 machines by now, and not 7"):
            await cloud.grow(Growth(group=GROUP, count=1, base=7, token="t2"))
        with pytest.raises(errors.Invalid, match="may have 10 machines, and not 34"):
            await cloud.grow(Growth(group=GROUP, count=30, base=4, token="t3"))
        assert await find_target(cloud) == 4

        machines = await cloud.machines(GROUP)
        assert len(machines) == 4
        assert {each.state for each in machines} == {MachineState.running}
        assert {(each.zone, each.instance_type) for each in machines} == {("us-east-1a", "g5.xlarge")}
        assert all(each.provider_id == f"aws:///us-east-1a/{each.id}" for each in machines)
        assert all(each.launched_at is not None for each in machines)

        going = [machines[0].id, machines[2].id]
        await cloud.remove(GROUP, [*going, "i-0deadbeefdeadbeef"])
        left = {each.id for each in await cloud.machines(GROUP) if each.state is MachineState.running}
        assert left == {machines[1].id, machines[3].id}
        assert await find_target(cloud) == 2
        await cloud.remove(GROUP, going)  # once more: they are gone
        assert await find_target(cloud) == 2
        assert await cloud.wants(GROUP) == ()


@pytest.mark.accepts("scaling", 21)
async def test_a_group_that_is_tagged_for_cluster_autoscaler_has_an_owner(moto: str) -> None:
    async with opened(moto) as aws:
        await make_group(aws, "theirs", size=0, **{"k8s.io__cluster_autoscaler__enabled": "true"})
        await make_group(aws, "ours", size=0)
        found = await AwsGroups(aws).groups(["theirs", "ours"])
    assert [(each.id, each.owner) for each in found] == [("theirs", "cluster-autoscaler"), ("ours", "")]
    assert [each.tier for each in found] == [CapacityType.on_demand] * 2


async def test_a_machine_of_another_group_is_left_alone(moto: str) -> None:
    async with opened(moto) as aws:
        await make_group(aws, "one", size=1)
        await make_group(aws, "two", size=1)
        cloud = AwsGroups(aws)
        [other] = await cloud.machines("two")
        await cloud.remove("one", [other.id])
        assert [each.state for each in await cloud.machines("two")] == [MachineState.running]
        assert [await find_target(cloud, each) for each in ("one", "two")] == [1, 1]


def event(kind: str, machine: str, source: str = "aws.ec2") -> str:
    return json.dumps({
        "version": "0", "id": "e", "detail-type": kind, "source": source, "time": "2026-11-17T10:00:00Z",
        "region": "us-east-1", "resources": [f"arn:aws:ec2:us-east-1a:instance/{machine}"],
        "detail": {"instance-id": machine, "instance-action": "terminate"},
    })


ENDS, MAY_END = "EC2 Spot Instance Interruption Warning", "EC2 Instance Rebalance Recommendation"


async def run_instance(aws: query.AwsQuery, *, spot: bool) -> str:
    market = {"InstanceMarketOptions.MarketType": "spot"} if spot else {}
    made = await aws.read("ec2", "RunInstances", {
        "ImageId": "ami-12c6146b", "MinCount": "1", "MaxCount": "1", "InstanceType": "g5.xlarge",
        "Placement.AvailabilityZone": "us-east-1a", **market,
    })
    return query.find_text(made, "instancesSet/item/instanceId")


async def test_notices_come_from_the_queue_and_stay_there_until_they_are_recorded(moto: str) -> None:
    async with opened(moto) as aws:
        spot, firm = await run_instance(aws, spot=True), await run_instance(aws, spot=False)
        host = f"{moto}/123456789012/notices"
        await aws.ask_queue("CreateQueue", host, {"QueueName": "notices"}, dict)
        for body in (
            event(ENDS, spot), event(MAY_END, spot), event(ENDS, firm), event(ENDS, "i-0deadbeefdeadbeef"), "no JSON",
            event("EC2 Instance State-change Notification", spot), event(ENDS, spot, source="somebody.else"), "[1]",
        ):
            await aws.ask_queue("SendMessage", host, {"MessageBody": body}, dict)
        cloud = AwsGroups(aws, queue=host)
        found = await cloud.notices()
        assert [each.provider_id for each in found] == [f"aws:///us-east-1a/{spot}"] * 2
        assert [each.ends_at and rfc3339(each.ends_at) for each in found] == ["2026-11-17T10:02:00Z", None]
        assert await count(aws, host) == 2  # what is no notice of a spot machine is dropped, these two are not
        await cloud.forget(found)
        assert await count(aws, host) == 0
        assert await cloud.notices() == ()
        with pytest.raises(errors.NotFound):
            await AwsGroups(aws, queue=f"{moto}/123456789012/nowhere").notices()


async def count(aws: query.AwsQuery, queue: str) -> int:
    """Also those that are hidden for a while."""
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    found = await aws.ask_queue("GetQueueAttributes", queue, {"AttributeNames": names}, dict)
    return sum(int(each) for each in found["Attributes"].values())
