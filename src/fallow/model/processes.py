"""One node's GPUs and the processes on them: what the driver said, and what was made of it. The nouns of the node exporter.

`Reading` is what came out of the driver in one poll, `Poll` what the exporter says about it, `Tenancy` what a pod has of a GPU.
Invariant: None means "not available" and never 0; whatever could not be read is None and has its `Problem`.
"""

import enum
from collections.abc import Sequence, Set
from typing import Protocol

import msgspec

from fallow.model.units import Instant, Seconds


class Problem(msgspec.Struct, frozen=True, gc=False):
    """A driver call that failed: `call` as the driver names it, `error` its short name (`NotSupported`); `gpu` is the index, or ""."""

    gpu: str
    call: str
    error: str
    code: int


class Sample(msgspec.Struct, gc=False):
    """Percent of each engine that a process used; `stamp` in microseconds since the epoch. Raw: may be garbage."""

    pid: int
    stamp: int
    sm: int
    memory: int = 0
    encoder: int = 0
    decoder: int = 0
    jpeg: int = 0
    ofa: int = 0


class Holder(msgspec.Struct, gc=False):
    """A process in the driver's lists of one device, merged: memory is the largest of the lists, summed over MIG instances."""

    pid: int
    memory: int | None
    is_compute: bool = False
    is_graphics: bool = False
    is_mps: bool = False
    instances: tuple[tuple[int, int], ...] = ()  # (GPU instance, compute instance) ids, on MIG


class Instance(msgspec.Struct, gc=False):
    """A MIG instance; `utilization` in percent where the driver can measure instances."""

    gi: int
    ci: int
    uuid: str
    profile: str = ""
    utilization: float | None = None
    memory_total: int | None = None


class Device(msgspec.Struct):
    """One physical GPU at one poll."""

    index: int
    uuid: str
    model: str = ""
    minor: int | None = None
    pci_bus_id: str = ""
    compute_mode: str = ""  # default, exclusive_process, prohibited, ...
    is_mig: bool | None = None
    utilization: int | None = None  # percent
    memory_used: int | None = None
    memory_total: int | None = None
    power_watts: float | None = None
    temperature: int | None = None
    energy_joules: float | None = None
    holders: list[Holder] | None = None  # None: a list could not be read
    instances: list[Instance] = []
    is_lost: bool = False  # fell off the bus at this poll: nothing else of it holds


class Reading(msgspec.Struct):
    driver_version: str
    devices: list[Device]
    problems: list[Problem] = []


class Samples(msgspec.Struct):
    """Utilisation of the processes of one device. `found` None: it could not be read (see `problems`); [] : nothing ran."""

    found: list[Sample] | None
    is_supported: bool = True  # False: this driver or device has no per-process utilisation
    problems: list[Problem] = []


class Driver(Protocol):
    """A node's driver: the real one (clients/nvml.py), or a pretend one. Calls block; errors are clients.errors.DriverDown."""

    def open(self) -> None:
        """Raises DriverDown with the reason; may be tried again."""

    def close(self) -> None: ...

    def read(self) -> Reading:
        """All devices with their processes; raises DriverDown if the devices cannot even be counted."""

    def read_samples(self, uuid: str, since: int) -> Samples:
        """Samples newer than `since` (microseconds) of a device of the last reading."""


class Table(Protocol):
    """A node's processes: the kernel's own (doors/exporter/proc.py), or pretend ones. Nothing raises: what cannot be read is empty."""

    def start_of(self, pid: int) -> int:
        """The kernel's start time in ticks since boot; 0 if the process is not visible. With the PID it names a process for good."""

    def started_at(self, start: int) -> Instant | None:
        """What a start time is on the wall clock."""

    def name_of(self, pid: int, start: int) -> str:
        """Its comm, fit for a label; `unknown` if unreadable."""

    def cgroup_of(self, pid: int, start: int) -> str:
        """The text of its cgroup file; "" if unreadable."""

    def boot_id(self) -> str: ...

    def keep_only(self, alive: Set[tuple[int, int]]) -> None:
        """Forget what was remembered of all processes but these (PID, start time)."""


class Type(enum.StrEnum):
    compute = "compute"
    graphics = "graphics"
    both = "compute+graphics"
    mps_client = "mps_client"
    mps_server = "mps_server"


class Process(msgspec.Struct, gc=False):
    """A process on a GPU, judged. `start` is the kernel's start time in ticks since boot, 0 if unreadable."""

    pid: int
    start: int
    name: str
    type: Type
    memory: int | None
    sm: int | None  # the largest since the last poll; None: not known
    is_unknown: bool
    idle_seconds: Seconds | None  # 0 when active, None when unknown
    idle_memory: int | None
    last_active: Instant | None  # by any engine
    in_seed: bool  # graphics-only processes and the MPS server stay out of the seed's series
    instances: tuple[tuple[int, int], ...] = ()


class Result(enum.StrEnum):
    ok = "ok"
    partial = "partial"
    error = "error"


class Judged(msgspec.Struct):
    """One device with its processes (None: the list could not be read)."""

    device: Device
    processes: list[Process] | None
    idle_memory: int | None  # held by idle processes; None if utilisation could not be read
    is_supported: bool | None  # per-process utilisation; None: not known yet, there was no process to ask about


class Poll(msgspec.Struct):
    """All that one poll found. `lost`: (index, uuid) of devices that fell off the bus less than an hour ago."""

    at: Instant
    result: Result
    driver_version: str
    devices: list[Judged]
    lost: list[tuple[int, str]]
    problems: list[Problem]
    discarded: dict[str, int]  # reason -> samples thrown away at this poll


class Tenant(msgspec.Struct, frozen=True, gc=False):
    """Whose a process is. All empty: it runs outside pods, or, if not `is_known`, nobody can tell where it runs."""

    namespace: str = ""
    pod: str = ""
    container: str = ""
    pod_uid: str = ""
    container_id: str = ""
    is_known: bool = True


class Share(enum.StrEnum):
    exclusive = "exclusive"
    timeslice = "timeslice"
    mps = "mps"
    mig = "mig"


class Grant(msgspec.Struct, frozen=True, gc=False):
    """The kubelet gave a container (part of) a GPU. `gi` None: the whole device."""

    uuid: str
    gi: int | None
    namespace: str
    pod: str
    container: str
    resource: str
    share: Share
    ci: int | None = None  # the compute instance, where the GPU instance is divided further
    pod_uid: str = ""  # empty: not known
    may_hide: bool = False  # processes of it may be invisible to us: an empty list proves nothing


class Tenancy(msgspec.Struct, gc=False):
    """What a pod's container has of one GPU, and what it does with it."""

    gpu: int
    grant: Grant
    scope: str  # process, instance or device: what `utilization` was measured on
    processes: int | None
    memory: int | None
    utilization: float | None
    last_active: Instant | None
    observed_since: Instant | None
    no_process_seconds: Seconds | None


class Owners(Protocol):
    """Who holds what: the real ones (doors/exporter/attribution.py), or pretend ones. `up` by source; empty: nobody is asked."""

    up: dict[str, bool]

    async def refresh(self, now: Instant) -> None:
        """Ask what is due; call it at every poll."""

    async def close(self) -> None: ...

    def tenant_of(self, pid: int, start: int, cgroup_text: str) -> Tenant: ...

    def grants(self, devices: Sequence[Judged]) -> list[Grant] | None:
        """Of the devices of this poll; None: nobody could tell."""
