"""Who moves machines for a policy, and what keeps it from doing anything: overlap, another's group, what is not seen.

In: policies, who else is there, groups of the cloud, nodes. Out: the driver of each policy, the nodes that are its own,
and why it is blocked, with a sentence each.
Invariant: a node has one policy at most, the oldest that means it. Where another autoscaler owns a group, nothing is.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from fallow.decide.scaling import fit, remembered
from fallow.model import scaling_status
from fallow.model.machines import CloudMachine, MachineGroup, MachineState
from fallow.model.policies.scaling import MachineProvider, NodeDriver, NodePool, ScalingPolicy
from fallow.model.scaling import DriversSeen, ScaledNode, ScalingSight
from fallow.model.scaling_plan import Blocked
from fallow.model.scaling_status import PolicyStatus
from fallow.model.seen import Input, Known, Unseen

FATAL = frozenset({
    Blocked.Overlap, Blocked.OwnedByOtherAutoscaler, Blocked.Invalid, Blocked.Disabled, Blocked.Unseen
})


class PolicyGround(msgspec.Struct, frozen=True, kw_only=True):
    """A policy with what it stands on. `nodes`: its own; `pools`: of each of them by name, "" where none claims it."""

    policy: ScalingPolicy
    driver: NodeDriver
    blocked: Mapping[Blocked, str]
    nodes: tuple[ScaledNode, ...]
    pools: Mapping[str, str]
    groups: tuple[MachineGroup, ...] = ()
    machines: Input[tuple[CloudMachine, ...]]
    past: PolicyStatus
    only_advises: bool = False  # no cloud is there to carry anything out

    @property
    def is_blocked(self) -> bool:
        return any(why in FATAL for why in self.blocked)

    @property
    def is_driven_by_us(self) -> bool:
        return self.driver is NodeDriver.direct

    def find_unlisted(self) -> frozenset[str]:
        """Names of nodes whose machines its cloud does not list: of another group, or gone. Where it was not asked, of
        none; who removes asks again."""
        if not self.is_driven_by_us or not isinstance(self.machines, Known):
            return frozenset()
        listed = {each.provider_id for each in self.machines.value if each.state is not MachineState.gone}
        return frozenset(node.name for node in self.nodes if node.provider_id not in listed)


def means(policy: ScalingPolicy, node: ScaledNode) -> bool:
    if not policy.node_selector:
        return bool(node.gpus) or fit.count_gpus(node.has) > 0 or bool(node.pool)
    return all(node.labels.get(key) == value for key, value in policy.node_selector.items())


def share_out(policies: Sequence[ScalingPolicy], nodes: Sequence[ScaledNode]) -> dict[str, list[ScaledNode]]:
    """The nodes of each policy that is switched on: the oldest that means one has it."""
    own: dict[str, list[ScaledNode]] = {policy.name: [] for policy in policies}
    ranked = [policy for policy in sorted(policies, key=lambda each: each.rank) if policy.enabled]
    for node in nodes:
        for policy in ranked:
            if means(policy, node):
                own[policy.name].append(node)
                break
    return own


def find_overlaps(policies: Sequence[ScalingPolicy], nodes: Sequence[ScaledNode]) -> dict[str, str]:
    """By policy: the older one that means nodes of it, or would."""
    ranked = [policy for policy in sorted(policies, key=lambda each: each.rank) if policy.enabled]
    found: dict[str, str] = {}
    for place, younger in enumerate(ranked):
        for older in ranked[:place]:
            if older.name not in found and _overlap(older, younger, nodes):
                found[younger.name] = f"policy {older.name} is older and means nodes of it, too"
                break
    return found


def _overlap(older: ScalingPolicy, younger: ScalingPolicy, nodes: Sequence[ScaledNode]) -> bool:
    one, other = older.node_selector, younger.node_selector
    if any(one[key] != other[key] for key in one.keys() & other.keys()):
        return False
    if one.items() <= other.items() or other.items() <= one.items():
        return True
    if {pool.group for pool in older.pools if pool.group} & {pool.group for pool in younger.pools if pool.group}:
        return True
    return any(means(older, node) and means(younger, node) for node in nodes)


def find_driver(policy: ScalingPolicy, drivers: Input[DriversSeen]) -> NodeDriver | None:
    """None: it cannot be said."""
    if policy.driver is not NodeDriver.auto:
        return policy.driver
    match drivers:
        case Known(there) if there.karpenter:
            return NodeDriver.karpenter
        case Known(there) if there.cluster_autoscaler:
            return NodeDriver.cluster_autoscaler
        case Unseen():
            return None
    return NodeDriver.direct


def stand(
    policy: ScalingPolicy, sight: ScalingSight, nodes: Sequence[ScaledNode], overlaps: Mapping[str, str]
) -> PolicyGround:
    driver = find_driver(policy, sight.drivers)
    groups, machines = sight.groups.get(policy.name), sight.machines.get(policy.name)
    known = groups.value if isinstance(groups, Known) else ()
    pools = {node.name: find_pool(policy, node, machines) for node in nodes}
    blocked = _find_blocks(policy, driver, sight, nodes, groups, overlaps)
    return PolicyGround(
        policy=policy, driver=driver or NodeDriver.auto, blocked=blocked, nodes=tuple(nodes), pools=pools, groups=known,
        machines=machines if machines is not None else Unseen("nobody asked its cloud for machines"),
        past=scaling_status.read(policy.status),
        only_advises=driver is NodeDriver.direct and not isinstance(groups, Known),
    )


def find_pool(
    policy: ScalingPolicy, node: ScaledNode, machines: Input[tuple[CloudMachine, ...]] | None
) -> str:
    for pool in policy.pools:
        if node.pool == pool.name or (pool.group and node.driver_pool == pool.group):
            return pool.name
    if isinstance(machines, Known) and node.provider_id:
        groups = {pool.group: pool.name for pool in policy.pools if pool.group}
        found = (groups.get(each.group, "") for each in machines.value if each.provider_id == node.provider_id)
        return next(found, "")
    return ""


def _find_blocks(
    policy: ScalingPolicy, driver: NodeDriver | None, sight: ScalingSight, nodes: Iterable[ScaledNode],
    groups: Input[tuple[MachineGroup, ...]] | None, overlaps: Mapping[str, str],
) -> dict[Blocked, str]:
    if policy.invalid:
        return {Blocked.Invalid: policy.invalid[0]}
    if not policy.enabled:
        return {Blocked.Disabled: "it is switched off"}
    if policy.name in overlaps:
        return {Blocked.Overlap: overlaps[policy.name]}
    if driver is None:
        why = sight.drivers.why if isinstance(sight.drivers, Unseen) else ""
        return {Blocked.Unseen: f"who else adds and removes nodes here is not seen: {why}"}
    if driver is not NodeDriver.direct:
        return {}
    if why := _find_owner(policy, nodes, groups):
        return {Blocked.OwnedByOtherAutoscaler: why}
    return _find_cloud_troubles(policy, groups)


def _find_owner(
    policy: ScalingPolicy, nodes: Iterable[ScaledNode], groups: Input[tuple[MachineGroup, ...]] | None
) -> str:
    ours = {pool.group: pool.name for pool in policy.pools if pool.group}
    for group in groups.value if isinstance(groups, Known) else ():
        if group.owner and group.id in ours:
            return f"{group.owner} resizes group {group.id} of pool {ours[group.id]}"
    for node in nodes:
        if node.driver_pool:
            return f"node {node.name} is of Karpenter's NodePool {node.driver_pool}"
    return ""


def _find_cloud_troubles(
    policy: ScalingPolicy, groups: Input[tuple[MachineGroup, ...]] | None
) -> dict[Blocked, str]:
    if isinstance(groups, Unseen):
        return {Blocked.ProviderUnavailable: f"its cloud does not answer: {groups.why}"}
    if groups is None and policy.provider is not MachineProvider.custom:
        return {Blocked.ProviderUnavailable: "nobody asked its cloud"}
    if isinstance(groups, Known) and policy.pools:
        troubles = [_find_trouble(pool, groups.value) for pool in policy.pools]
        if all(troubles):  # where one pool can be reached, the others wait
            return {Blocked.ProviderUnavailable: troubles[0]}
    return {}


def _find_trouble(pool: NodePool, groups: Sequence[MachineGroup]) -> str:
    group = remembered.find_group(groups, pool)
    if group is None:
        return f"pool {pool.name}: there is no group {pool.group!r}"
    return f"pool {pool.name}: {group.error}" if group.error else ""


def can_reach(ground: PolicyGround, pool: NodePool) -> bool:
    """Whether its cloud would carry out what is asked of the pool; where none is asked at all, this is advice."""
    if not ground.is_driven_by_us or ground.only_advises:
        return True
    return not _find_trouble(pool, ground.groups)
