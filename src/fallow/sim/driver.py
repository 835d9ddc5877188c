"""A pretend driver: GPUs that are not there, with processes that live as processes do, for `fallow exporter --fake N`.

In: how many GPUs, a seed, a clock (epoch seconds). Out: the answers of a model.processes.Driver; `PretendTable` gives those of the kernel
for the same processes, `PretendOwners` those of the kubelet. The cast repeats every seven GPUs: a trainer; a notebook that nobody types in;
an inference server and a neighbour in time slices; MIG; MPS; a driver that loses a call now and then, and a display; a job that ends and
comes again, beside a pod that holds its share and runs nothing.
Invariant: what is told is a function of seed and clock (energy alone adds up from read to read), so the same run can be seen twice; and
it is consistent: a device is as busy as its processes, and a process that does nothing has no sample.
"""

import hashlib
import zlib
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Final, TypeAlias

import msgspec

from fallow import names
from fallow.clients import errors
from fallow.model.processes import Device, Grant, Holder, Instance, Judged, Problem, Reading, Sample, Samples, Share, Tenant
from fallow.model.units import DAY, HOUR, MINUTE, Instant, Seconds

GIB: Final = 2**30
VERSION: Final = "570.86.15"
_MODEL: Final = "NVIDIA H100 80GB HBM3"
_TOTAL: Final = 80 * GIB
_TICKS: Final = 100  # of the kernel's clock, in a second
_UPTIME: Final = 3 * DAY  # of the node when the pretending begins
_SEATS: Final = 16  # processes on one GPU at most
_KEPT: Final = 8  # seconds of samples in the driver's buffer
_SPELL: Final = 20.0  # seconds for which a failing call fails

Noise: TypeAlias = Callable[[int], float]  # 0 to 1, another number at each step
Load: TypeAlias = Callable[[Seconds, Noise], int]  # percent of the SMs at a moment


def _train(at: Seconds, noise: Noise) -> int:
    """Busy, but for a checkpoint every ten minutes."""
    return 0 if at % (10 * MINUTE) < 20 else 84 + int(15 * noise(int(at)))


def _type(at: Seconds, noise: Noise) -> int:
    """A cell is run every quarter of an hour; in between somebody thinks, or has gone home."""
    return 20 + int(40 * noise(int(at))) if at % (15 * MINUTE) < 30 else 0


def _serve(at: Seconds, noise: Noise) -> int:
    """Requests come in bursts of ten seconds."""
    return 5 + int(60 * noise(int(at))) if noise(-1 - int(at) // 10) > 0.6 else 0


def _sleep(at: Seconds, noise: Noise) -> int:
    return 0


class _Role(msgspec.Struct, frozen=True):
    """A process of the cast. `lasts`: after that it ends and another of its kind begins."""

    name: str
    load: Load
    gib: int
    lasts: Seconds | None = None
    is_graphics: bool = False
    is_mps: bool = False
    gi: int | None = None
    pod: str = ""  # namespace/name; empty: it runs outside pods


class _Part(msgspec.Struct, frozen=True):
    """A GPU of the cast: who is on it, and its MIG instances as (GPU instance, profile, GiB)."""

    roles: tuple[_Role, ...]
    slices: tuple[tuple[int, str, int], ...] = ()
    is_unsteady: bool = False
    share: Share = Share.exclusive
    unused: tuple[tuple[int | None, str], ...] = ()  # (GPU instance, pod) of those who hold and run nothing


_CAST: Final = (
    _Part((_Role("python", _train, 62, pod="research/pretrain"),)),
    _Part((_Role("ipykernel_launc", _type, 11, pod="research/notebook-ada"),)),
    _Part(
        (_Role("vllm", _serve, 34, pod="serving/chat"), _Role("tritonserver", _sleep, 12, pod="serving/ranker")), share=Share.timeslice
    ),
    _Part(
        (_Role("python", _train, 30, gi=1, pod="research/finetune"), _Role("ipykernel_launc", _type, 4, gi=5, pod="research/notebook-bob")),
        slices=((1, "3g.40gb", 40), (5, "1g.10gb", 10), (6, "1g.10gb", 10)), share=Share.mig, unused=((6, "research/eval"),),
    ),
    _Part(
        (
            _Role("nvidia-cuda-mps", _sleep, 0),  # the kernel cuts -server off
            _Role("worker", _serve, 8, is_mps=True, pod="serving/embed"),
            _Role("worker", _sleep, 8, is_mps=True, pod="serving/rerank"),
        ),
        share=Share.mps,
    ),
    _Part((_Role("python", _train, 40, pod="vision/train"), _Role("Xorg", _sleep, 1, is_graphics=True)), is_unsteady=True),
    _Part(
        (
            _Role("torchrun", _train, 55, lasts=12 * MINUTE, pod="vision/sweep"),
            _Role("jupyter-lab", _sleep, 2, lasts=7 * HOUR, pod="vision/notebook-eve"),
        ),
        share=Share.timeslice, unused=((None, "vision/debug"),),
    ),
)  # fmt: skip


class _Actor(msgspec.Struct, frozen=True):
    """A process as it is now. `seat`: its place in the cast, the same for those who come after it."""

    pid: int
    seat: int
    role: _Role
    start: int  # in ticks since the boot
    load: int


class PretendDriver:
    """The driver of a node that has GPUs only in name."""

    def __init__(self, gpus: int, seed: int = 0, *, clock: Callable[[], Instant]) -> None:
        self.seed = seed
        self.clock = clock
        self.booted = clock() - _UPTIME
        self._gpus = gpus
        self._is_open = False
        self._joules = [1e6 * (index + 1) for index in range(gpus)]
        self._counted_at = clock()

    def open(self) -> None:
        self._is_open = True

    def close(self) -> None:
        self._is_open = False

    def read(self) -> Reading:
        if not self._is_open:
            raise errors.DriverDown("the pretend driver is not open")
        now = self.clock()
        problems: list[Problem] = []
        devices = [self._read_device(index, now, problems) for index in range(self._gpus)]
        self._counted_at = max(now, self._counted_at)
        return Reading(VERSION, devices, problems)

    def read_samples(self, uuid: str, since: int) -> Samples:
        """Of every second since then as long as the driver remembers, and of this moment."""
        index = next((index for index in range(self._gpus) if self.uuid_of(index) == uuid), None)
        if index is None:
            return Samples(None, problems=[Problem("", "nvmlDeviceGetProcessesUtilizationInfo", "GpuNotFound", 28)])
        if _part(index).slices:
            return Samples(None, is_supported=False)
        now = self.clock()
        if self._failing(index, now) == "nvmlDeviceGetProcessesUtilizationInfo":
            return Samples(None, problems=[_problem(index, "nvmlDeviceGetProcessesUtilizationInfo")])
        this = int(now * 1e6)
        stamps = [*(second * 10**6 for second in range(int(now) - _KEPT, int(now) + 1) if second * 10**6 < this), this]
        return Samples([sample for stamp in stamps if stamp > since for sample in self._sample(index, stamp)])

    def uuid_of(self, index: int) -> str:
        return f"GPU-{_make_uuid(f'{self.seed}/{index}')}"

    def find(self, pid: int) -> _Actor | None:
        """The process that has this PID now."""
        seat = (pid - 1) % (_SEATS * max(self._gpus, 1))
        actors = self._actors(seat // _SEATS, self.clock()) if seat // _SEATS < self._gpus else ()
        return next((actor for actor in actors if actor.pid == pid), None)

    def _actors(self, index: int, now: Instant) -> Iterator[_Actor]:
        for place, role in enumerate(_part(index).roles):
            seat, age = index * _SEATS + place, now - self.booted
            since, generation = HOUR + 7.0 * seat, 0
            if role.lasts:
                generation = int((age - since) // role.lasts)
                since += generation * role.lasts
            pid = 1 + seat + _SEATS * self._gpus * (1 + generation)
            yield _Actor(pid, seat, role, int(since * _TICKS), role.load(now, self._noise(seat)))

    def _sample(self, index: int, stamp: int) -> Iterator[Sample]:
        for actor in self._actors(index, stamp / 1e6):
            if actor.load:
                yield Sample(actor.pid, stamp, actor.load, actor.load // 3)

    def _read_device(self, index: int, now: Instant, problems: list[Problem]) -> Device:
        part, actors = _part(index), list(self._actors(index, now))
        busy = min(100, sum(actor.load for actor in actors))
        watts = 70.0 + 6.0 * busy
        self._joules[index] += watts * max(0.0, now - self._counted_at)
        device = Device(
            index=index, uuid=self.uuid_of(index), model=_MODEL, minor=index, pci_bus_id=f"00000000:{16 + index:02X}:00.0",
            compute_mode="default", is_mig=bool(part.slices), utilization=busy, memory_used=GIB * sum(role.gib for role in part.roles),
            memory_total=_TOTAL, power_watts=watts, temperature=34 + busy // 3, energy_joules=self._joules[index],
            holders=[_hold(actor) for actor in actors], instances=self._read_instances(index, actors),
        )  # fmt: skip
        return self._spoil(device, now, problems)

    def _read_instances(self, index: int, actors: Sequence[_Actor]) -> list[Instance]:
        return [
            Instance(
                gi, 0, f"MIG-{_make_uuid(f'{self.seed}/{index}/{gi}')}", profile, memory_total=gib * GIB,
                utilization=float(min(100, sum(actor.load for actor in actors if actor.role.gi == gi))),
            )
            for gi, profile, gib in _part(index).slices
        ]  # fmt: skip

    def _spoil(self, device: Device, now: Instant, problems: list[Problem]) -> Device:
        """What drivers leave out: utilisation on MIG, always; and a call that fails just now."""
        if device.is_mig:
            device.utilization = None
            problems.append(Problem(str(device.index), "nvmlDeviceGetUtilizationRates", "NotSupported", 3))
        failing = self._failing(device.index, now)
        if failing == "nvmlDeviceGetPowerUsage":
            device.power_watts = None
        elif failing == "nvmlDeviceGetComputeRunningProcesses":
            device.holders = None
        else:
            return device
        problems.append(_problem(device.index, failing))
        return device

    def _failing(self, index: int, now: Instant) -> str | None:
        """The call that fails on this device just now: one spell in six, of one call."""
        if not _part(index).is_unsteady:
            return None
        chance = self._noise(index * _SEATS + _SEATS - 1)(int(now // _SPELL))
        calls = ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetProcessesUtilizationInfo")
        return calls[int(chance * 18)] if chance < 1 / 6 else None

    def _noise(self, seat: int) -> Noise:
        return lambda step: zlib.crc32(b"%d/%d/%d" % (self.seed, seat, step)) / 2**32


class PretendTable:
    """The kernel's side of the pretend processes: the answers of a model.processes.Table."""

    def __init__(self, driver: PretendDriver) -> None:
        self._driver = driver

    def start_of(self, pid: int) -> int:
        actor = self._driver.find(pid)
        return actor.start if actor else 0

    def started_at(self, start: int) -> Instant | None:
        return self._driver.booted + start / _TICKS if start else None

    def name_of(self, pid: int, start: int) -> str:
        actor = self._driver.find(pid)
        return actor.role.name if actor and actor.start == start else "unknown"

    def cgroup_of(self, pid: int, start: int) -> str:
        """The path that containerd gives a container under systemd; of those outside pods, a service's."""
        actor = self._driver.find(pid)
        if actor is None or actor.start != start:
            return ""
        if not actor.role.pod:
            return f"0::/system.slice/{actor.role.name}.service\n"
        tenant = _tenant(self._driver, actor)
        pod, container = tenant.pod_uid.replace("-", "_"), tenant.container_id
        return f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{pod}.slice/cri-containerd-{container}.scope\n"

    def boot_id(self) -> str:
        return _make_uuid(f"{self._driver.seed}/{self._driver.booted}")

    def keep_only(self, alive: Set[tuple[int, int]]) -> None:
        """Nothing is remembered here."""


class PretendOwners:
    """The pods of the pretend processes: the answers of a model.processes.Owners."""

    def __init__(self, driver: PretendDriver) -> None:
        self.up = {"pod_resources": True, "cgroup": True, "api": True, "logs": False}
        self._driver = driver

    async def refresh(self, now: Instant) -> None:
        """Nothing is asked of anybody."""

    async def close(self) -> None:
        """Nothing is open."""

    def tenant_of(self, pid: int, start: int, cgroup_text: str) -> Tenant:
        actor = self._driver.find(pid)
        return Tenant() if actor is None or actor.start != start else _tenant(self._driver, actor)

    def grants(self, devices: Sequence[Judged]) -> list[Grant] | None:
        return [grant for judged in devices for grant in self._grants_of(judged.device)]

    def _grants_of(self, device: Device) -> Iterator[Grant]:
        part = _part(device.index)
        for gi, pod in (*((role.gi, role.pod) for role in part.roles if role.pod), *part.unused):
            profile = next((profile for number, profile, _ in part.slices if number == gi), "")
            resource = f"{names.MIG_PREFIX}{profile}" if profile else names.GPU if part.share is Share.exclusive else names.GPU_SHARED
            namespace, name = _name_pod(pod, device.index)
            yield Grant(
                device.uuid, gi, namespace, name, "main", resource, part.share, pod_uid=_pod_uid(self._driver.seed, namespace, name)
            )


def _tenant(driver: PretendDriver, actor: _Actor) -> Tenant:
    if not actor.role.pod:
        return Tenant()
    namespace, name = _name_pod(actor.role.pod, actor.seat // _SEATS)
    container = hashlib.sha256(f"{driver.seed}/{actor.pid}/{actor.start}".encode()).hexdigest()
    return Tenant(namespace, name, "main", _pod_uid(driver.seed, namespace, name), container)


def _name_pod(pod: str, index: int) -> tuple[str, str]:
    namespace, _, name = pod.partition("/")
    return namespace, f"{name}-{index}"


def _pod_uid(seed: int, namespace: str, name: str) -> str:
    return _make_uuid(f"{seed}/pod/{namespace}/{name}")


def _part(index: int) -> _Part:
    return _CAST[index % len(_CAST)]


def _hold(actor: _Actor) -> Holder:
    role = actor.role
    places = () if role.gi is None else ((role.gi, 0),)
    return Holder(actor.pid, role.gib * GIB, not role.is_graphics, role.is_graphics, role.is_mps, places)


def _problem(index: int, call: str) -> Problem:
    return Problem(str(index), call, "Unknown", 999)


def _make_uuid(text: str) -> str:
    digits = hashlib.sha256(text.encode()).hexdigest()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:32]))
