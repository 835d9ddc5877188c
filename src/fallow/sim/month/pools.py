"""What the month's cluster may buy, and the AutoscalingPolicy by which it does.

Machines with one, two, four and eight GPUs, each on spot and on demand, at one price by GPU, as where machines of a
kind differ in size only. Spot nodes carry a taint, so that only pods which want to be there are; large ones carry one,
too, so that no small job keeps eight GPUs.
The policy has the defaults but for what its fields are for: here every pod that waits is somebody who waits, so nothing
is waited for; and a node that is gone is started again in minutes, so few are kept.
Invariant: of the machines' prices none is below the lowest that the bound counts with.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from fallow import names
from fallow.model.cost import CapacityType
from fallow.model.machines import MachineShape
from fallow.model.policies import scaling, scaling_crd
from fallow.model.units import MINUTE
from fallow.sim.cloud import PretendGroup
from fallow.sim.month.scene import SPOT_LABEL, list_taints

SIZES: Final = (1, 2, 4, 8)
PER_GPU: Final = {CapacityType.on_demand: 3.67, CapacityType.spot: 1.47}
MODEL: Final = "A100-40GB"
ZONES: Final = ("zone-a", "zone-b")
_CORES, _MEMORY = 12, 87_040  # by GPU
_TAKEN_A_DAY: Final = 0.02
BOOTS: Final = (2 * MINUTE, 4 * MINUTE)  # the shortest and the longest


def name_pool(tier: CapacityType, gpus: int) -> str:
    return f"{tier}-{gpus}g"


def list_groups(**more: Any) -> Iterator[PretendGroup]:
    """`more`: how the groups are beside that."""
    for tier, per_gpu in PER_GPU.items():
        for gpus in SIZES:
            shape = MachineShape(
                instance_type=f"pretend-{gpus}g", gpus=gpus, gpu_model=MODEL, price=round(per_gpu * gpus, 2),
                labels={SPOT_LABEL: "true"} if tier is CapacityType.spot else {},
                has={names.GPU: gpus, "cpu": 1000 * _CORES * gpus, "memory": _MEMORY * gpus},
            )
            yield PretendGroup(
                id=name_pool(tier, gpus), shape=shape, tier=tier, zones=ZONES, most=300, boots=BOOTS,
                taken_a_day=_TAKEN_A_DAY if tier is CapacityType.spot else 0.0, **more,
            )


TUNED: Final[Mapping[str, Any]] = {
    "spotInstancePercentage": 1.0, "pendingPodTimeoutSeconds": 0, "scaleUpCooldownSeconds": 0,
    "scaleDownCooldownSeconds": 0, "unneededSeconds": 300, "disruption": {"maxNodes": "50%"},
}


def write_policy(tuned: Mapping[str, Any] = TUNED) -> dict[str, Any]:
    """As people would write it. `tuned`: what of it is not left as it is."""
    return {
        "apiVersion": f"{names.GROUP}/{names.POLICY_VERSION}", "kind": names.SCALING_POLICY_KIND,
        "metadata": {"name": "month", "uid": "policy-month", "generation": 1},
        "spec": {
            "mode": "act", "provider": "custom", "driver": "direct", "maxNodes": 1000,
            **tuned, "nodePools": [_write_pool(group) for group in list_groups()],
        },
    }


def _write_pool(group: PretendGroup) -> dict[str, Any]:
    gpus = group.shape.gpus or 0
    taints = [{"key": each.key, "value": each.value, "effect": each.effect} for each in list_taints(group)]
    return {
        "name": group.id, "capacityType": str(group.tier), "group": group.id, "maxSize": group.most, "gpuType": MODEL,
        "instanceTypes": [group.shape.instance_type], "availabilityZones": list(group.zones),
        "gpusPerNode": gpus, "cpu": _CORES * gpus, "memory": f"{_MEMORY * gpus}Mi", "priority": -gpus,
        "labels": dict(group.shape.labels),
        "pricePerHour": f"{group.price:.2f}", "taints": taints,
    }


def read_policy(tuned: Mapping[str, Any] = TUNED) -> scaling.ScalingPolicy:
    return scaling_crd.parse(write_policy(tuned))
