"""Who and what is in a pretend cluster, as values: nodes, parts (who is to live there), workloads, pods, faults.

A slot is what one pod can be given: a GPU, or a part of one. A seat is one GPU in a workload's hands, wherever it is.
Invariant: a name gives the same uid and the same GPUs, whenever it is asked.
"""

import uuid
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, Literal, TypeAlias

import msgspec

from fallow import names
from fallow.model import cluster
from fallow.model.units import Instant, Seconds
from fallow.sim.world import edits, people, shapes

Mode: TypeAlias = Literal["whole", "mig", "time-sliced", "mps"]

PARTS: Final[Mapping[Mode, int]] = {"whole": 1, "mig": 7, "time-sliced": 4, "mps": 8}  # pods that one GPU can serve
SHARED: Final[frozenset[Mode]] = frozenset({"time-sliced", "mps"})  # several pods hold the same GPU
MIG_PROFILE: Final = "1g.10gb"
RESOURCES: Final[Mapping[Mode, str]] = {
    "whole": names.GPU, "mig": f"{names.MIG_PREFIX}{MIG_PROFILE}", "time-sliced": names.GPU,
    "mps": names.GPU_SHARED,  # a plugin that renames what it shares, beside one that does not
}
_IDENTITY: Final = uuid.UUID("6f0c7f0e-0000-4000-8000-66616c6c6f77")


class SimState(StrEnum):
    absent = "absent"  # not there yet
    waiting = "waiting"  # for free GPUs
    starting = "starting"
    running = "running"
    paused = "paused"
    finished = "finished"


class Fault(StrEnum):
    exporter_silent = "exporter-silent"  # no samples from these nodes
    exporter_zero = "exporter-zero"  # profiling reads 0 there, while the other counters still tell the truth
    node_lost = "node-lost"
    api_slow = "api-slow"  # by so many seconds
    clock_jump = "clock-jump"  # whoever asks for the time hears so many seconds more


class SimNode(msgspec.Struct):
    name: str
    model: str = "NVIDIA-A100-SXM4-80GB"
    gpus: int = 8
    mode: Mode = "whole"
    ready: bool = True
    cordoned: bool = False
    first: int = 0  # its first slot
    pool: str = ""  # "" = none in particular
    there: bool = True  # False: no machine has this name now
    tier: str = ""  # how it is paid for; "" = as machines of its model usually are
    machine: str = ""  # what its cloud calls it; "" = no cloud does

    @property
    def is_open(self) -> bool:
        """Whether anybody new is put there."""
        return self.there and self.ready and not self.cordoned

    @property
    def share(self) -> float:
        """How much of a GPU one slot on it is."""
        return 1 / PARTS[self.mode]

    @property
    def slots(self) -> int:
        return self.gpus * PARTS[self.mode]

    @property
    def crowd(self) -> int:
        """How many of its slots are of one GPU that several are given."""
        return PARTS[self.mode] if self.mode in SHARED else 1


class Part(msgspec.Struct, frozen=True):
    """Who is to live in the world, and how. Namespace and name come first, and for most that is all."""

    namespace: str
    name: str
    kind: str = "Deployment"
    class_: str = "inference"
    life: str = "inference"
    replicas: int = 1
    gpus: int = 1  # per pod
    group_size: int = 1  # pods per replica
    mode: Mode = "whole"
    model: str = ""  # "" = any
    owner: str = "absent"
    person: str = ""  # whose it is, an e-mail address; "" = nobody is named
    room: str = ""  # where they want to be told, in Slack
    arrives_at: Instant | None = None  # None: it was there before
    ends_at: Instant | None = None  # None: it stays
    restarts_at: Instant | None = None  # its owner rolls it out anew
    memory: float | None = None  # of each GPU, MiB at most; None: nobody knows
    errand: bool = False  # it may run on a machine that its cloud may take back
    roams: bool = False  # its pods say nothing of nodes, so that it is known where else they fit

    @property
    def pods(self) -> int:
        return self.replicas * self.group_size

    @property
    def seats(self) -> int:
        return self.pods * self.gpus


class SimPod(msgspec.Struct, frozen=True):
    name: str
    uid: str
    created_at: Instant
    bound_at: Instant | None = None  # when it was given its node; None while it waits
    ready_at: Instant = float("inf")  # from then on it runs; inf while it waits
    node: str = ""  # "" while it waits
    slots: tuple[int, ...] = ()


class SimWorkload(msgspec.Struct, kw_only=True):
    """One Part in its present state, and what was counted of it."""

    part: Part
    number: int
    first_seat: int
    object: dict[str, Any]
    view: cluster.Workload  # the same as the eyes see it, without pods
    state: SimState = SimState.absent
    since: Instant = 0.0
    pods: tuple[SimPod, ...] = ()
    life: int = 0  # how often it was started
    mode: Mode = "whole"  # of what its pods are given; whoever admits them may give them less than they asked for
    patch: tuple[dict[str, Any], ...] = ()  # what was changed about its pods at the gate
    left_at: Instant = 0.0  # when its pods were last gone
    missed_since: Instant | None = None  # wanted, and not there
    noticed: str = ""  # the notice its owner has read
    pending: str = ""  # the mark of a notice that stands on it
    noticed_at: Instant | None = None  # since when it stands there, by the world's own time
    by_hand: str = ""  # who stopped it past the controller; counted neither as a pause nor as a regret
    pauses: int = 0
    regrets: int = 0
    resumes: int = 0
    complaints: int = 0
    acks: int = 0
    waited: Seconds = 0.0

    @property
    def uid(self) -> str:
        return self.view.ref.uid

    @property
    def owner(self) -> people.Character:
        return people.CHARACTERS[self.part.owner]

    @property
    def who(self) -> str:
        """Its owner's name, as it stands on what they do."""
        return self.part.person or self.owner.signs

    @property
    def seats(self) -> slice:
        return slice(self.first_seat, self.first_seat + self.part.seats)


class SimChange(msgspec.Struct, frozen=True):
    """Something happened. `by`: person, product, or world."""

    number: int
    at: Instant
    what: str
    uid: str  # of the workload; the name of a node
    by: str


def move(part: Part, by: Seconds) -> Part:
    times = part.arrives_at, part.ends_at, part.restarts_at
    arrives, ends, restarts = (None if at is None else at + by for at in times)
    return msgspec.structs.replace(part, arrives_at=arrives, ends_at=ends, restarts_at=restarts)


def name_devices(node: SimNode) -> list[str]:
    """Of each of its slots the GPU."""
    devices = [f"GPU-{make_uid(f'{node.name}/{gpu}')}" for gpu in range(node.gpus)]
    return [device for device in devices for _ in range(PARTS[node.mode])]


def make_uid(of: str) -> str:
    return str(uuid.uuid5(_IDENTITY, of))


def settle(part: Part, number: int, first_seat: int) -> SimWorkload:
    thing = shapes.make_workload(
        part.kind, part.namespace, part.name, make_uid(f"{part.kind}/{part.namespace}/{part.name}"),
        replicas=part.replicas, gpus=part.gpus, resource=RESOURCES[part.mode], group_size=part.group_size,
        class_=part.class_, annotations=_wishes(part),
    )
    return SimWorkload(
        part=part, number=number, first_seat=first_seat, object=thing, view=edits.see(thing), mode=part.mode
    )


def _wishes(part: Part) -> dict[str, str]:
    """Whom its owners want told."""
    said = {names.OWNER: part.person, names.NOTIFY: f"slack:{part.room}" if part.room else ""}
    return {key: value for key, value in said.items() if value}
