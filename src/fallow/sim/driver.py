"""A pretend driver: GPUs that are not there, with processes that live as processes do, for `fallow exporter --fake N`.

In: how many GPUs, a seed, a clock (epoch seconds). Out: the answers of a model.processes.Driver; `PretendTable` gives
those of the kernel for the same processes, `PretendOwners` those of the kubelet. The cast repeats every seven GPUs: a
trainer; a notebook that nobody types in; an inference server and a neighbour in time slices; MIG; MPS; a driver that
loses a call now and then, and a display; a job that ends and comes again, beside a pod that holds its share and runs
nothing.
Invariant: what is said is a function of seed and clock (energy alone adds up from read to read), so the same run can be
seen twice; and it is consistent: a device is as busy as its processes, and one that does nothing has no sample.
"""

import hashlib
import zlib
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Final, TypeAlias

import msgspec

from fallow import names
from fallow.clients import errors
from fallow.model import processes
from fallow.model.processes import Device, Grant, Problem, ProcessOwner, Reading, Sample, Samples, Share
from fallow.model.units import DAY, HOUR, MINUTE, Instant, Seconds
from fallow.names import NvmlCode

GIB: Final = 2**30
VERSION: Final = "570.86.15"
_MODEL: Final = "NVIDIA H100 80GB HBM3"
_TOTAL: Final = 80 * GIB
_TICKS: Final = 100  # of the kernel's clock, in a second
_UPTIME: Final = 3 * DAY  # of the node when the pretending begins
_SEATS: Final = 16  # processes on one GPU at most
_BUFFERED: Final = 8  # seconds of samples in the driver's buffer
_SPELL: Final = 20.0  # seconds for which a failing call fails
_POWER, _RUNNING, _SAMPLES = _CALLS = (
    "nvmlDeviceGetPowerUsage", "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetProcessesUtilizationInfo",
)  # that fail on an unsteady GPU

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


class _PretendRole(msgspec.Struct, frozen=True):
    """A process of the cast. `lasts`: after that it ends and another of its kind begins."""

    name: str
    load: Load
    gib: int
    pod: str = ""  # namespace/name; empty: it runs outside pods
    lasts: Seconds | None = None
    is_graphics: bool = False
    is_mps: bool = False
    gi: int | None = None


class _PretendGpu(msgspec.Struct, frozen=True):
    """A GPU of the cast: who is on it, and its MIG instances as (GPU instance, profile, GiB)."""

    roles: tuple[_PretendRole, ...]
    slices: tuple[tuple[int, str, int], ...] = ()
    is_unsteady: bool = False
    share: Share = Share.exclusive
    unused: tuple[tuple[int | None, str], ...] = ()  # (GPU instance, pod) of those who hold and run nothing


_CAST: Final = (
    _PretendGpu((_PretendRole("python", _train, 62, "research/pretrain"),)),
    _PretendGpu((_PretendRole("ipykernel_launc", _type, 11, "research/notebook-ada"),)),
    _PretendGpu(
        (_PretendRole("vllm", _serve, 34, "serving/chat"), _PretendRole("tritonserver", _sleep, 12, "serving/ranker")),
        share=Share.timeslice,
    ),
    _PretendGpu(
        (
            _PretendRole("python", _train, 30, "research/finetune", gi=1),
            _PretendRole("ipykernel_launc", _type, 4, "research/notebook-bob", gi=5),
        ),
        slices=((1, "3g.40gb", 40), (5, "1g.10gb", 10), (6, "1g.10gb", 10)),
        share=Share.mig, unused=((6, "research/eval"),),
    ),
    _PretendGpu(
        (
            _PretendRole("nvidia-cuda-mps", _sleep, 0),  # the kernel cuts -server off
            _PretendRole("worker", _serve, 8, "serving/embed", is_mps=True),
            _PretendRole("worker", _sleep, 8, "serving/rerank", is_mps=True),
        ),
        share=Share.mps,
    ),
    _PretendGpu(
        (_PretendRole("python", _train, 40, "vision/train"), _PretendRole("Xorg", _sleep, 1, is_graphics=True)),
        is_unsteady=True,
    ),
    _PretendGpu(
        (
            _PretendRole("torchrun", _train, 55, "vision/sweep", lasts=12 * MINUTE),
            _PretendRole("jupyter-lab", _sleep, 2, "vision/notebook-eve", lasts=7 * HOUR),
        ),
        share=Share.timeslice, unused=((None, "vision/debug"),),
    ),
)


class _Actor(msgspec.Struct, frozen=True):
    """A process as it is now. `seat`: its number in the cast, the same for those who come after it."""

    pid: int
    seat: int
    role: _PretendRole
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
            return Samples(None, problems=[Problem("", _SAMPLES, "GpuNotFound", NvmlCode.GPU_NOT_FOUND)])
        if _gpu_at(index).slices:
            return Samples(None, is_supported=False)
        now = self.clock()
        if self._failing(index, now) == _SAMPLES:
            return Samples(None, problems=[_problem(index, _SAMPLES)])
        this, seconds = int(now * 1e6), range(int(now) - _BUFFERED, int(now) + 1)
        stamps = [*(second * 10**6 for second in seconds if second * 10**6 < this), this]
        return Samples([
            Sample(actor.pid, stamp, actor.load, actor.load // 3)
            for stamp in stamps if stamp > since for actor in self._actors(index, stamp / 1e6) if actor.load
        ])

    def uuid_of(self, index: int) -> str:
        return f"GPU-{_make_uuid(f'{self.seed}/{index}')}"

    def find(self, pid: int, start: int | None = None) -> _Actor | None:
        """The process that has this PID now, if it is the one that started then."""
        seat = (pid - 1) % (_SEATS * max(self._gpus, 1))
        actors = self._actors(seat // _SEATS, self.clock()) if seat // _SEATS < self._gpus else ()
        return next((actor for actor in actors if actor.pid == pid and start in (None, actor.start)), None)

    def _actors(self, index: int, now: Instant) -> Iterator[_Actor]:
        for number, role in enumerate(_gpu_at(index).roles):
            seat, age = index * _SEATS + number, now - self.booted
            since, generation = HOUR + 7.0 * seat, 0
            if role.lasts:
                generation = int((age - since) // role.lasts)
                since += generation * role.lasts
            pid = 1 + seat + _SEATS * self._gpus * (1 + generation)
            yield _Actor(pid, seat, role, int(since * _TICKS), role.load(now, self._noise(seat)))

    def _read_device(self, index: int, now: Instant, problems: list[Problem]) -> Device:
        part, actors = _gpu_at(index), list(self._actors(index, now))
        busy = min(100, sum(actor.load for actor in actors))
        watts = 70.0 + 6.0 * busy
        self._joules[index] += watts * max(0.0, now - self._counted_at)
        device = Device(
            index=index, uuid=self.uuid_of(index), model=_MODEL, minor=index, compute_mode="default",
            pci_bus_id=f"00000000:{16 + index:02X}:00.0", is_mig=bool(part.slices), utilization=busy,
            memory_used=GIB * sum(role.gib for role in part.roles), memory_total=_TOTAL, power_watts=watts,
            temperature=34 + busy // 3, energy_joules=self._joules[index],
            holders=[_hold(actor) for actor in actors],
            instances=[
                processes.Instance(
                    gi, 0, f"MIG-{_make_uuid(f'{self.seed}/{index}/{gi}')}", profile, memory_total=gib * GIB,
                    utilization=float(min(100, sum(actor.load for actor in actors if actor.role.gi == gi))),
                )
                for gi, profile, gib in part.slices
            ],
        )
        self._spoil(device, now, problems)
        return device

    def _spoil(self, device: Device, now: Instant, problems: list[Problem]) -> None:
        """What drivers leave out: utilisation on MIG, always; and a call that fails just now."""
        if device.is_mig:
            device.utilization = None
            call = "nvmlDeviceGetUtilizationRates"
            problems.append(Problem(str(device.index), call, "NotSupported", NvmlCode.NOT_SUPPORTED))
        failing = self._failing(device.index, now)
        if failing == _POWER:
            device.power_watts = None
        elif failing == _RUNNING:
            device.holders = None
        if failing in (_POWER, _RUNNING):
            problems.append(_problem(device.index, failing))

    def _failing(self, index: int, now: Instant) -> str | None:
        """The call that fails on this device just now: one spell in six, of one call."""
        if not _gpu_at(index).is_unsteady:
            return None
        chance = self._noise(index * _SEATS + _SEATS - 1)(int(now // _SPELL))
        return _CALLS[int(chance * 18)] if chance < 1 / 6 else None

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
        actor = self._driver.find(pid, start)
        return actor.role.name if actor else "unknown"

    def cgroup_of(self, pid: int, start: int) -> str:
        """The path that containerd gives a container under systemd; of those outside pods, a service's."""
        actor = self._driver.find(pid, start)
        if actor is None:
            return ""
        if not actor.role.pod:
            return f"0::/system.slice/{actor.role.name}.service\n"
        owner, burstable = _own(self._driver, actor), "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable"
        pod = owner.pod_uid.replace("-", "_")
        return f"{burstable}-pod{pod}.slice/cri-containerd-{owner.container_id}.scope\n"

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

    def owner_of(self, pid: int, start: int, cgroup_text: str) -> ProcessOwner:
        actor = self._driver.find(pid, start)
        return ProcessOwner() if actor is None else _own(self._driver, actor)

    def grants(self, devices: Sequence[processes.Judged]) -> list[Grant] | None:
        return [grant for judged in devices for grant in self._grants_of(judged.device)]

    def _grants_of(self, device: Device) -> Iterator[Grant]:
        part = _gpu_at(device.index)
        for gi, pod in (*((role.gi, role.pod) for role in part.roles if role.pod), *part.unused):
            profile = next((profile for number, profile, _ in part.slices if number == gi), "")
            whole = names.GPU if part.share is Share.exclusive else names.GPU_SHARED
            namespace, name = _name_pod(pod, device.index)
            yield Grant(
                uuid=device.uuid, gi=gi, namespace=namespace, pod=name, container="main", share=part.share,
                resource=f"{names.MIG_PREFIX}{profile}" if profile else whole,
                pod_uid=_pod_uid(self._driver.seed, namespace, name),
            )


def _own(driver: PretendDriver, actor: _Actor) -> ProcessOwner:
    if not actor.role.pod:
        return ProcessOwner()
    namespace, name = _name_pod(actor.role.pod, actor.seat // _SEATS)
    container = hashlib.sha256(f"{driver.seed}/{actor.pid}/{actor.start}".encode()).hexdigest()
    return ProcessOwner(namespace, name, "main", _pod_uid(driver.seed, namespace, name), container)


def _name_pod(pod: str, index: int) -> tuple[str, str]:
    namespace, _, name = pod.partition("/")
    return namespace, f"{name}-{index}"


def _pod_uid(seed: int, namespace: str, name: str) -> str:
    return _make_uuid(f"{seed}/pod/{namespace}/{name}")


def _gpu_at(index: int) -> _PretendGpu:
    return _CAST[index % len(_CAST)]


def _hold(actor: _Actor) -> processes.Holder:
    role, instances = actor.role, () if actor.role.gi is None else ((actor.role.gi, 0),)
    return processes.Holder(actor.pid, role.gib * GIB, not role.is_graphics, role.is_graphics, role.is_mps, instances)


def _problem(index: int, call: str) -> Problem:
    return Problem(str(index), call, "Unknown", NvmlCode.UNKNOWN)


def _make_uuid(text: str) -> str:
    digits = hashlib.sha256(text.encode()).hexdigest()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:32]))
