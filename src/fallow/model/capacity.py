"""What nodes have and what pods ask of them, as far as packing asks: CPU in milli-cores, memory in MiB, GPUs.

In: what was seen of one node or one pod. Out: nothing; these are nouns that cluster.Node and cluster.Pod carry where
capacity is counted (model/cluster.py: Capacity).
Invariant: what could not be read is said in a reason (`left_out`, `unknown`, `unclear`, `fixed`); no 0 stands for it.
"""

from typing import Final

import msgspec

from fallow import names
from fallow.model.units import Instant

LOSES_WORK: Final = "does work that an eviction would lose"
OF_ITS_NODE: Final = "belongs to its node"  # a DaemonSet's: it comes with the node, not after others


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """`replicas`: how many pods share each of its GPUs. `is_renamed`: what is shared has a name of its own."""

    name: str
    product: str
    cpu: int
    memory: int
    gpus: int
    pods: int
    replicas: int = 1
    is_renamed: bool = False
    gpu_memory: int | None = None  # MiB of each of its GPUs; None: not known
    left_out: str = ""  # why nothing is to be placed there
    taints: tuple[str, ...] = ()  # effects of the taint nvidia.com/gpu, which keep out who does not tolerate them


class Needs(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one pod asks for, and what is to be heeded where it would be placed or moved."""

    cpu: int = 0
    memory: int = 0
    gpus: int = 0
    shared: int = 0  # replicas of shared GPUs
    products: tuple[str, ...] = ()  # that it accepts; empty = any
    unknown: str = ""  # why it cannot be said what it takes
    unclear: str = ""  # why it cannot be said where it fits
    fixed: str = ""  # why it must not be moved
    scheduler: str = names.DEFAULT_SCHEDULER
    tolerates: tuple[str, ...] = ()  # of the effects of that taint, those that it does, whatever the taint's value
    beyond: str = ""  # what else decides where it goes, and is not counted


class Tenant(msgspec.Struct, frozen=True, gc=False):
    """A pod as whoever chooses places knows it: no more, for there may be a hundred thousand."""

    uid: str
    node: str  # "" while unscheduled
    needs: Needs
    created_at: Instant
    gpu_memory: int | None = None  # MiB that it said it needs; None: it said nothing


NOT_COUNTED: Final = Needs(unknown="what it asks for was not counted")
