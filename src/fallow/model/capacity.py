"""What nodes have and what pods ask of them, as far as packing asks: CPU in milli-cores, memory in MiB, GPUs.

In: what was seen of a cluster at one instant. Out: nothing; these are nouns.
Invariant: what could not be read is said in a reason (`left_out`, `unknown`, `unclear`, `fixed`), and no 0 stands for it.
"""

import msgspec

from fallow.model.units import Instant


class Machine(msgspec.Struct, frozen=True):
    """`replicas`: how many pods share each of its GPUs."""

    name: str
    product: str
    cpu: int
    memory: int
    gpus: int
    pods: int
    replicas: int = 1
    left_out: str = ""  # why nothing is to be placed there


class Tenant(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    node: str  # "" while it waits
    cpu: int
    memory: int
    gpus: int
    shared: int  # replicas of shared GPUs
    products: tuple[str, ...]  # that it accepts; empty = any
    created_at: Instant
    unknown: str = ""  # why it cannot be said what it takes
    unclear: str = ""  # why it cannot be said where it fits
    fixed: str = ""  # why it must not be moved


class Capacity(msgspec.Struct, frozen=True):
    machines: tuple[Machine, ...]
    tenants: tuple[Tenant, ...]  # in the order they came
    cluster: str  # uid of kube-system; "" where it may not be read
    unread: int  # nodes that could not be read
