"""What nodes that we launched are to say of themselves: their pool and group, how they are paid for, which machine.

In: the nodes of one policy with their machines. Out: by node, the labels that it lacks. Pods are placed by them, the
watch for spot notices comes by them, and a reserved or spot node is known as such where no cloud marks it.
Invariant: only nodes whose machine the cloud lists in a group of the policy's pools, each machine once; what stands on
a node stays.
"""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Final

from fallow import names
from fallow.decide.scaling.drivers import PolicyGround
from fallow.model.cost import CapacityType
from fallow.model.machines import CloudMachine, MachineState
from fallow.model.policies.scaling import NodePool
from fallow.model.scaling import ScaledNode
from fallow.model.seen import sure

_VALUE: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")  # that the API server takes


def find(ground: PolicyGround) -> dict[str, Mapping[str, str]]:
    if not ground.is_driven_by_us:
        return {}
    pools = {pool.name: pool for pool in ground.policy.pools if pool.group}
    listed = {each.provider_id: each for each in sure(ground.machines) if each.state is MachineState.running}
    claimed = Counter(node.provider_id for node in ground.nodes)
    found = dict[str, Mapping[str, str]]()
    for node in ground.nodes:
        pool, machine = pools.get(ground.pools[node.name]), listed.get(node.provider_id)
        if pool is None or machine is None or machine.group != pool.group or claimed[node.provider_id] > 1:
            continue
        lacks = {key: word for key, word in _list(pool, machine, node).items()
                 if key not in node.labels and _VALUE.fullmatch(word)}
        if lacks and not node.is_going:
            found[node.name] = lacks
    return found


def _list(pool: NodePool, machine: CloudMachine, node: ScaledNode) -> dict[str, str]:
    """What is paid for by a reservation is on demand for its cloud."""
    is_paid = pool.tier is CapacityType.reserved and machine.tier is CapacityType.on_demand
    tier = pool.tier if is_paid or machine.tier is CapacityType.unknown else machine.tier
    return {
        names.NODE_POOL: pool.name, names.SCALING_GROUP: pool.group.rpartition("/")[2], names.OWN_CAPACITY: str(tier),
        names.OWN_INSTANCE_TYPE: machine.instance_type or node.instance_type, names.OWN_GPU_TYPE: pool.gpu_type,
    }
