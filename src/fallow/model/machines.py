"""What clouds offer and run: groups of machines, the machines in them, growth that was asked for, notices of their end.

In: what a cloud's client read, in our nouns. Out: nothing; the brain counts with these, and the hands name them.
Invariant: a Growth names the target it starts from, so that asking twice is growing once: whoever carries it out raises
the target to `base + count` and never lowers it. What a cloud did not say is None, never 0.
"""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from fallow.model.cost import CapacityType
from fallow.model.units import Instant


class MachineState(StrEnum):
    pending = "pending"
    running = "running"
    deleting = "deleting"
    gone = "gone"


class MachineShape(msgspec.Struct, frozen=True, kw_only=True):
    """What a machine of this kind will have once it is a node. `has`: by resource as nodes advertise it (CPU in
    milli-cores, memory in MiB); None: not known, and nothing is known to fit there."""

    instance_type: str = ""
    has: Mapping[str, int] | None = None
    gpus: int | None = None  # physical
    gpu_memory: int | None = None  # MiB of each
    gpu_model: str = ""
    labels: Mapping[str, str] = {}
    price: float | None = None  # of an hour of the whole machine


class MachineGroup(msgspec.Struct, frozen=True, kw_only=True):
    """An Auto Scaling group, an instance group, a scale set or an agent pool. `owner`: another autoscaler that resizes
    it, as people call it; "": none is known to. `mixes`: each new machine of it is on spot or on demand as its cloud
    chooses. `error`: why nothing of it could be read."""

    id: str
    tier: CapacityType = CapacityType.on_demand
    instance_types: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    least: int = 0
    most: int = 0
    target: int | None = None
    shape: MachineShape | None = None
    owner: str = ""
    mixes: bool = False
    error: str = ""


class CloudMachine(msgspec.Struct, frozen=True, kw_only=True):
    """One machine of a group. `id`: as the cloud's `remove` takes it; `provider_id`: as its node says it."""

    id: str
    group: str
    state: MachineState
    provider_id: str = ""
    zone: str = ""
    instance_type: str = ""
    tier: CapacityType = CapacityType.on_demand
    launched_at: Instant | None = None


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """So many more than `base`. `token`: by which it is known, here and where the cloud keeps such a word."""

    group: str
    count: int
    base: int
    token: str


class MachineNotice(msgspec.Struct, frozen=True, kw_only=True):
    """A cloud says that a machine will go. `ends_at` None: it may, soon (a recommendation). `receipt`: by which the
    queue forgets it, once it is recorded."""

    provider_id: str
    seen_at: Instant
    ends_at: Instant | None = None
    receipt: str = ""


class WantOfMachines(msgspec.Struct, frozen=True, kw_only=True):
    """Why a cloud did not give what a Growth asked for, as it tells later: out of stock, or a quota is spent."""

    group: str
    instance_type: str = ""
    zone: str = ""
    is_quota: bool = False
    at: Instant | None = None
    because: str = ""
