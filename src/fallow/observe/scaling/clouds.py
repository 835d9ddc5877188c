"""What the clouds of policies say: groups, machines, what they could not give, and notices of machines that end.

In: a Cloud for each policy that has one. Out: CloudsSeen. A cloud is asked only about groups of pools, and only where
nobody else in this cluster moves machines.
Invariant: a cloud that does not answer makes its policy's groups unseen, and takes nothing from the others.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from fallow.clients import errors
from fallow.clients.clouds import Cloud
from fallow.model import scaling_status
from fallow.model.machines import CloudMachine, MachineGroup, MachineNotice, WantOfMachines
from fallow.model.policies.scaling import NodeDriver, ScalingPolicy
from fallow.model.scaling import DriversSeen
from fallow.model.seen import Input, Known, Unseen, several, sure
from fallow.model.units import Seconds

FindCloud = Callable[[ScalingPolicy], Cloud | None]
CloudAnswers: TypeAlias = tuple[
    Input[tuple[MachineGroup, ...]], Input[tuple[CloudMachine, ...]], Sequence[WantOfMachines]
]

PATIENCE: Final[Seconds] = 40.0  # for all that one cloud is asked: three tries of ten seconds fit in
HEARD: Final[Seconds] = 10.0  # ... for what its queue tells: it tells that again


class CloudsSeen(msgspec.Struct, frozen=True, kw_only=True):
    """By policy."""

    groups: Mapping[str, Input[tuple[MachineGroup, ...]]] = {}
    machines: Mapping[str, Input[tuple[CloudMachine, ...]]] = {}
    wants: tuple[WantOfMachines, ...] = ()

    @property
    def all_machines(self) -> list[CloudMachine]:
        return [each for seen in self.machines.values() for each in sure(seen)]


def may_ask(policy: ScalingPolicy, drivers: Input[DriversSeen]) -> bool:
    """Not where another may be there that moves machines, unless people say that it is us."""
    if not policy.enabled or policy.invalid:
        return False
    if policy.driver is not NodeDriver.auto:
        return policy.driver is NodeDriver.direct
    return isinstance(drivers, Known) and not (drivers.value.karpenter or drivers.value.cluster_autoscaler)


async def look(
    policies: Iterable[ScalingPolicy], find: FindCloud, drivers: Input[DriversSeen], patience: Seconds = PATIENCE
) -> CloudsSeen:
    asked = [(each, cloud) for each in policies if may_ask(each, drivers) and (cloud := find(each)) is not None]
    answers = await asyncio.gather(*(_ask_within(patience, policy, cloud) for policy, cloud in asked))
    made = dict(zip((policy.name for policy, _ in asked), answers, strict=True))
    return CloudsSeen(
        groups={name: groups for name, (groups, _, _) in made.items()},
        machines={name: machines for name, (_, machines, _) in made.items()},
        wants=tuple(want for _, _, wants in made.values() for want in wants),
    )


async def _ask_within(patience: Seconds, policy: ScalingPolicy, cloud: Cloud) -> CloudAnswers:
    try:
        async with asyncio.timeout(patience):
            return await _ask(policy, cloud)
    except TimeoutError:
        why = Unseen(f"it did not answer within {patience:.0f} s")
        return why, why, ()


async def _ask(policy: ScalingPolicy, cloud: Cloud) -> CloudAnswers:
    ids = sorted({pool.group for pool in policy.pools if pool.group})
    in_flight = {each.pool for each in scaling_status.read(policy.status).in_flight}
    waiting = sorted({pool.group for pool in policy.pools if pool.group and pool.name in in_flight})
    try:
        groups = await cloud.groups(ids)
        readable = [each.id for each in groups if not each.error]
        machines = [machine for id_ in readable for machine in await cloud.machines(id_)]
        wants = [want for id_ in waiting for want in await cloud.wants(id_)]
    except errors.ClientError as problem:
        why = Unseen(str(problem))
        return why, why, ()
    return several(tuple(groups)), Known(tuple(machines)), wants


async def hear(clouds: Iterable[Cloud]) -> list[tuple[Cloud, MachineNotice]]:
    """Notices that wait in queues, with the cloud that has each. One that does not answer has none to tell."""
    found = list[tuple[Cloud, MachineNotice]]()
    for cloud in clouds:
        with contextlib.suppress(errors.ClientError, TimeoutError):
            async with asyncio.timeout(HEARD):
                found += [(cloud, each) for each in await cloud.notices()]
    return found
