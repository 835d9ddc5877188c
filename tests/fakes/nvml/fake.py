"""The pretend NVIDIA driver library for tests: built once, then told what to say through a file.

In: fake_nvml.c next to this file and a C compiler; a `State` written with `Fake.put` (or `State.write`). Out:
`library()`, the path of a libnvidia-ml.so.1 in
`${FALLOW_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/fallow}/fake-nvml-<hash of the source>/`.
For this process use `Fake(tmp_path)`; another program gets `Fake.environment()` (LD_LIBRARY_PATH, NVML_LIBRARY,
FAKE_NVML_STATE).
Invariant: a library in the cache is whole (built aside, then renamed), and two states written one after the other never
look the same.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import hashlib
import itertools
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence

import pytest

SONAME = "libnvidia-ml.so.1"
NOT_AVAILABLE = 2**64 - 1  # of memory and energy
NO_INSTANCE = 2**32 - 1
GIB = 2**30
_SOURCE = pathlib.Path(__file__).with_name("fake_nvml.c")
_clock = itertools.count(time.time_ns())


@dataclasses.dataclass
class Process:
    """`sm` not None: there is always a fresh sample of it. `lists`: of c (compute), g (graphics), m (MPS compute)."""

    pid: int
    memory: int = GIB
    sm: int | None = None
    lists: str = "c"
    gi: int = NO_INSTANCE
    ci: int = NO_INSTANCE


@dataclasses.dataclass
class Sample:
    """`stamp`: microseconds since the epoch, "+N" or "-N" from the moment of the call, or "live"."""

    pid: int
    sm: int = 0
    stamp: int | str = "live"
    memory: int = 0
    encoder: int = 0
    decoder: int = 0
    jpeg: int = 0
    ofa: int = 0


@dataclasses.dataclass
class Instance:
    """`sm`, `graphics`: what GPM measures, negative for a metric it does not have."""

    gi: int
    ci: int = 0
    uuid: str = ""
    profile: str = "1g.10gb"
    total: int = 10 * GIB
    used: int = 0
    sm: float = 0.0
    graphics: float = 0.0


@dataclasses.dataclass
class Device:
    """`mig`: -1 the model has none, 0 off, 1 on. A `lost` device answers every call with 15. Instances are by slot."""

    uuid: str = ""
    name: str = "NVIDIA H100 80GB HBM3"
    minor: int | None = None  # as the index
    pci: str = ""
    compute_mode: int = 0
    mig: int = 0
    lost: bool = False
    utilization: int = 0
    total: int = 80 * GIB
    used: int = GIB
    milliwatts: int = 75_500
    celsius: int = 41
    millijoules: int = 1_234_567
    gpm: bool = False
    processes: Sequence[Process] = ()
    samples: Sequence[Sample] = ()
    instances: Sequence[Instance | None] = ()
    slots: int = 7


@dataclasses.dataclass
class Error:
    """`call` as the library names it, with its version or without. `device`: *, 0, or 0.2 for MIG slot 2.

    `code` 0 says success and does nothing. `times` < 0: always.
    """

    call: str
    code: int
    device: str = "*"
    times: int = -1


@dataclasses.dataclass
class Delay:
    call: str
    milliseconds: int
    device: str = "*"


@dataclasses.dataclass
class State:
    devices: Sequence[Device] = ()
    driver: str = "550.54.15"
    errors: Sequence[Error] = ()
    delays: Sequence[Delay] = ()

    def write(self, path: pathlib.Path) -> None:
        """In one piece: a call sees the old state or the new one. Times differ even within a tick of the kernel."""
        aside = path.with_name(f".{path.name}.{os.getpid()}")
        aside.write_text("".join(line + "\n" for line in self._lines()), errors="surrogateescape")
        stamp = next(_clock)
        os.utime(aside, ns=(stamp, stamp))
        aside.rename(path)

    def _lines(self) -> list[str]:
        lines = [f"driver {self.driver}"]
        lines += [f"error {error.call} {error.device} {error.code} {error.times}" for error in self.errors]
        lines += [f"delay {delay.call} {delay.device} {delay.milliseconds}" for delay in self.delays]
        for index, device in enumerate(self.devices):
            lines += _lines_of(index, device)
        return lines


def _lines_of(index: int, device: Device) -> list[str]:
    minor, pci = index if device.minor is None else device.minor, device.pci or f"00000000:{16 + index:02X}:00.0"
    lines = [
        f"device {device.uuid or uuid_of(index)} {minor} {pci} {device.compute_mode} {device.mig} {int(device.lost)} "
        f"{device.utilization} {device.total} {device.used} {device.milliwatts} {device.celsius} {device.millijoules} "
        f"{device.slots} {int(device.gpm)} {device.name}"
    ]
    for slot, instance in enumerate(device.instances):
        if instance:
            uuid = instance.uuid or f"MIG-{index:08d}-{instance.gi:04d}-{instance.ci:04d}"
            lines.append(
                f"instance {index} {slot} {instance.gi} {instance.ci} {instance.total} {instance.used} {instance.sm} "
                f"{instance.graphics} {uuid} {device.name} MIG {instance.profile}"
            )
    lines += [
        f"process {index} {process.lists} {process.pid} {process.memory} {process.gi} {process.ci}"
        for process in device.processes
    ]
    living = [Sample(process.pid, process.sm) for process in device.processes if process.sm is not None]
    for sample in (*device.samples, *living):
        engines = f"{sample.sm} {sample.memory} {sample.encoder} {sample.decoder} {sample.jpeg} {sample.ofa}"
        lines.append(f"sample {index} {sample.pid} {sample.stamp} {engines}")
    return lines


def uuid_of(index: int) -> str:
    """What a device is called that was not given a name."""
    return f"GPU-{index:08d}-0000-0000-0000-000000000000"


class Fake:
    """The library and the state it reads, for this process. A new one takes over from the one before."""

    def __init__(self, folder: pathlib.Path, state: State | None = None) -> None:
        self.library = library()
        self.path = folder / "nvml.state"
        self._counting = ctypes.CDLL(str(self.library), mode=ctypes.RTLD_GLOBAL)
        self._counting.fake_nvml_calls.restype = ctypes.c_ulong
        if state:
            self.put(state)
        os.environ["FAKE_NVML_STATE"] = str(self.path)

    def put(self, state: State) -> None:
        state.write(self.path)

    def remove(self) -> None:
        """The driver is unloaded: its calls answer 9."""
        self.path.unlink(missing_ok=True)

    def calls(self, name: str) -> int:
        """How often this process called it (all versions if `name` has none)."""
        return int(self._counting.fake_nvml_calls(name.encode()))

    def environment(self) -> dict[str, str]:
        """For a program that has to find the library by itself."""
        return {
            "LD_LIBRARY_PATH": str(self.library.parent), "NVML_LIBRARY": str(self.library),
            "FAKE_NVML_STATE": str(self.path),
        }


@functools.cache
def library() -> pathlib.Path:
    """The library, built first if need be. Skips the test that asks where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    name = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]
    kept = _cache() / f"fake-nvml-{name}" / SONAME
    if kept.exists():
        return kept
    if compiler is None:
        pytest.skip("there is no C compiler (cc, gcc or clang) to build the pretend NVIDIA driver library with")
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".making-") as scratch:
        made = pathlib.Path(scratch) / SONAME
        flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread", f"-Wl,-soname,{SONAME}"]
        subprocess.run([compiler, *flags, "-o", str(made), str(_SOURCE)], check=True)
        made.rename(kept)
    return kept


def _cache() -> pathlib.Path:
    """The same home as that of tests/real/build.py."""
    home = os.environ.get("FALLOW_CACHE")
    caches = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    return pathlib.Path(home) if home else caches / "fallow"
