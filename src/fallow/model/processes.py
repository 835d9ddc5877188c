"""One node's GPUs and their processes: what was said, what was made of it, what is remembered. The exporter's nouns.

`Reading` is what the driver said, `Collected` what driver and kernel said at one poll, `Poll` the judgement on that,
`Tenancy` what a pod has of a GPU, `NodeView` all that is shown. `Driver`, `Table` and `Owners` are those who are asked:
the real ones, or pretend ones.
Invariant: None means "not available" and never 0; whatever could not be read is None and has its `Problem`.
"""

import enum
import functools
import heapq
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import Annotated, Final, Protocol, TypeAlias

import msgspec

from fallow.model.units import Instant, Seconds

MOST_ERROR_SERIES: Final = 200
OTHER_ERRORS: Final = ("", "_other", "_other")  # where errors go once there are as many series as may be

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Key: TypeAlias = tuple[int, int]  # PID and start time: they name a process for good


# ---- what the driver and the kernel say ------------------------------------------------------------------------------


class Problem(msgspec.Struct, frozen=True, gc=False):
    """A driver call that failed: `call` as the driver names it, `error` its short name; `gpu` is the index, or ""."""

    gpu: str
    call: str
    error: str
    code: int


class Sample(msgspec.Struct, gc=False):
    """Percent of each engine that a process used; `stamp` in microseconds since the epoch. Raw: may be garbage.

    Made by position: there are thousands at every poll.
    """

    pid: int
    stamp: int
    sm: int
    memory: int = 0
    encoder: int = 0
    decoder: int = 0
    jpeg: int = 0
    ofa: int = 0


class Holder(msgspec.Struct, gc=False):
    """A process in the driver's lists of one device; memory is the largest of the lists, summed over MIG instances."""

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


class Device(msgspec.Struct, kw_only=True):
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
    """Utilisation of one device's processes. `found` None: it could not be read (see `problems`); []: nothing ran."""

    found: list[Sample] | None
    is_supported: bool = True  # False: this driver or device has no per-process utilisation
    problems: list[Problem] = []


class Fact(msgspec.Struct, frozen=True, gc=False):
    """What the kernel says of a process: `start` in ticks since boot, 0 if it does not show it."""

    start: int
    name: str = "unknown"
    started_at: Instant | None = None


class Driver(Protocol):
    """A node's driver: NVML, or a pretend one. Calls block; errors are clients.errors.DriverDown."""

    def open(self) -> None:
        """Raises DriverDown with the reason; may be tried again."""

    def close(self) -> None: ...

    def read(self) -> Reading:
        """All devices with their processes; raises DriverDown if the devices cannot even be counted."""

    def read_samples(self, uuid: str, since: int) -> Samples:
        """Samples newer than `since` (microseconds) of a device of the last reading."""


class Table(Protocol):
    """A node's processes: the kernel's own, or pretend ones. Nothing raises: what cannot be read is empty."""

    def start_of(self, pid: int) -> int:
        """The kernel's start time in ticks since boot; 0 if the process is not visible."""

    def started_at(self, start: int) -> Instant | None:
        """What a start time is on the wall clock."""

    def name_of(self, pid: int, start: int) -> str:
        """Its comm, fit for a label; `unknown` if unreadable."""

    def cgroup_of(self, pid: int, start: int) -> str:
        """The text of its cgroup file; "" if unreadable."""

    def boot_id(self) -> str: ...

    def keep_only(self, alive: Set[Key]) -> None:
        """Forget what was remembered of all processes but these."""


class Result(enum.StrEnum):
    ok = "ok"
    partial = "partial"
    error = "error"


class Collected(msgspec.Struct, kw_only=True):
    """What driver and kernel said at one poll. `lost`: (index, UUID) of devices gone less than an hour ago."""

    result: Result
    driver_version: str = ""
    devices: list[Device] = []
    samples: dict[str, Samples] = {}  # by UUID
    facts: dict[int, Fact] = {}  # by PID
    lost: list[tuple[int, str]] = []
    problems: list[Problem] = []


# ---- what was made of it ---------------------------------------------------------------------------------------------


class Type(enum.StrEnum):
    compute = "compute"
    graphics = "graphics"
    both = "compute+graphics"
    mps_client = "mps_client"
    mps_server = "mps_server"


class Process(msgspec.Struct, gc=False, kw_only=True):
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


class Judged(msgspec.Struct):
    """One device with its processes (None: the list could not be read)."""

    device: Device
    processes: list[Process] | None
    idle_memory: int | None  # held by idle processes; None if utilisation could not be read
    is_supported: bool | None  # per-process utilisation; None: not known yet, there was no process to ask about


class Poll(msgspec.Struct, kw_only=True):
    """All that one poll found."""

    at: Instant
    result: Result
    driver_version: str = ""
    devices: list[Judged] = []
    lost: list[tuple[int, str]] = []
    problems: list[Problem] = []
    discarded: dict[str, int] = {}  # reason -> samples thrown away at this poll


class ProcessOwner(msgspec.Struct, frozen=True, gc=False):
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


class Grant(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The kubelet gave a container (part of) a GPU. `gi` None: the whole device."""

    uuid: str
    gi: int | None = None
    ci: int | None = None  # the compute instance, where the GPU instance is divided further
    namespace: str
    pod: str
    container: str
    resource: str
    share: Share
    pod_uid: str = ""  # empty: not known
    may_hide: bool = False  # processes of it may be invisible to us: an empty list proves nothing


class Tenancy(msgspec.Struct, gc=False, kw_only=True):
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
    """Who holds what, by kubelet and cluster, or pretend ones. `up` by source; empty: nobody is asked."""

    up: dict[str, bool]

    async def refresh(self, now: Instant) -> None:
        """Ask what is due; call it at every poll."""

    async def close(self) -> None: ...

    def owner_of(self, pid: int, start: int, cgroup_text: str) -> ProcessOwner: ...

    def grants(self, devices: Sequence[Judged]) -> list[Grant] | None:
        """Of the devices of this poll; None: nobody could tell."""


# ---- what outlives a restart, in STATE_DIR ---------------------------------------------------------------------------


class KeptProcess(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """A streak of zeros. `first_zero` and `known` are of the monotonic clock, which goes on until the next boot."""

    uuid: str
    pid: Count
    start: Count
    streak: Count
    first_zero: float
    known: float
    last_active: float | None
    stamp: Count


class KeptTenancy(msgspec.Struct, gc=False, array_like=True, kw_only=True):
    """A pod's hold on a GPU. Times that are not Instants are of the monotonic clock."""

    uuid: str
    gi: int | None
    namespace: str
    pod: str
    container: str
    pod_uid: str = ""
    observed: Seconds | None = None  # when its utilisation was last known
    observed_since: Instant | None = None
    last_active: Instant | None = None
    counted: Seconds | None = None  # when its processes were last known
    empty_since: Seconds | None = None


# ---- what is shown ---------------------------------------------------------------------------------------------------


class PollTotals(msgspec.Struct, frozen=True):
    """What is counted for as long as the exporter lives."""

    polls: Mapping[str, int] = msgspec.field(default_factory=lambda: {result.value: 0 for result in Result})
    errors: Mapping[tuple[str, str, str], int] = {}  # (gpu, call, error)
    discarded: Mapping[str, int] = {}

    def plus(self, poll: Poll) -> "PollTotals":
        errors, discarded = Counter(self.errors), Counter(self.discarded)
        discarded.update(poll.discarded)
        for problem in poll.problems:
            key = (problem.gpu, problem.call, problem.error)
            errors[key if key in errors or len(errors) < MOST_ERROR_SERIES - 1 else OTHER_ERRORS] += 1
        return PollTotals({**self.polls, poll.result: self.polls[poll.result] + 1}, errors, discarded)


class NodeView(msgspec.Struct, dict=True, kw_only=True):
    """All that one scrape shows. `poll` None: there was none yet, or it is too old to be shown."""

    poll: Poll | None = None
    owners: Mapping[Key, ProcessOwner] = {}
    tenancies: Sequence[Tenancy] = ()
    most_processes: int = 256  # that have series, for each GPU
    is_up: bool = False
    last_success: Instant | None = None
    poll_duration: Seconds | None = None
    sources_up: Mapping[str, bool] = {}
    totals: PollTotals = msgspec.field(default_factory=PollTotals)

    @functools.cached_property
    def devices(self) -> list[Judged]:
        return [] if self.poll is None else [judged for judged in self.poll.devices if not judged.device.is_lost]

    @functools.cached_property
    def shown(self) -> list[tuple[Device, Process]]:
        """The processes that have series: of too many on a GPU, the largest by memory."""
        return [(each.device, process) for each in self.devices for process in self._largest(each.processes or [])]

    @property
    def dropped(self) -> dict[str, int]:
        held = sum(len(judged.processes or ()) for judged in self.devices)
        return {"max_processes_per_gpu": held - len(self.shown)}

    def _largest(self, held: list[Process]) -> list[Process]:
        if len(held) <= self.most_processes:
            return held
        return heapq.nlargest(self.most_processes, held, key=lambda process: (process.memory or 0, -process.pid))
