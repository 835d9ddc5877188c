"""The driver's lists of processes and samples of their utilisation, read straight through the library's functions.

In: the loaded library, the driver's version, a device's handle. Out: the driver's code with entries or `Sample`s as the
driver gave them, true or not; and out of several lists one `Holder` per process. pynvml makes an object of every entry:
2.7 ms of CPU for 16 GPUs with 20 processes, every few seconds, on every node. Here they land in memory that is kept:
0.8 ms.
Invariant: an answer is of this call. Memory is blank before each, and whatever a driver left out reads as process 0,
which is nobody.
"""

import ctypes
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias, cast

from fallow.model.processes import Holder, Sample
from fallow.names import NvmlCode

COMPUTE: Final = "nvmlDeviceGetComputeRunningProcesses"
LISTS: Final = (  # and what being in it says of a Holder
    (COMPUTE, "is_compute"),
    ("nvmlDeviceGetGraphicsRunningProcesses", "is_graphics"),
    ("nvmlDeviceGetMPSComputeRunningProcesses", "is_mps"),
)
SAMPLES: Final = "nvmlDeviceGetProcessesUtilizationInfo"  # R550 and later
OLD_SAMPLES: Final = "nvmlDeviceGetProcessUtilization"
_OLD_SAMPLES_SINCE: Final = (535, 113, 1)  # older drivers' per-process utilisation is not to be believed
_WIDE_LISTS: Final = ((535,), (535, 104))  # in these the _v3 lists have longer entries, or are gone; _v2 is as ever

NO_MEMORY: Final = 2**64 - 1  # "not available"
NO_INSTANCE: Final = 2**32 - 1
InstanceIds: TypeAlias = tuple[int, int]  # GPU instance and compute instance
NO_INSTANCES: Final[InstanceIds] = (NO_INSTANCE, NO_INSTANCE)

_RETRIES: Final = 3  # of a list that grows while it is read
_MOST_ENTRIES: Final = 1 << 17  # a driver that asks for more room has lost count
_ENTRY: Final = struct.Struct("=I4xQII")  # pid, memory, GPU instance, compute instance
_SAMPLE: Final = struct.Struct("=QIIIIIII4x")  # stamp, pid, then percent of SM, memory, encoder, decoder, JPEG, OFA
_OLD_SAMPLE: Final = struct.Struct("=I4xQIIII")  # pid, stamp, then percent of SM, memory, encoder, decoder
_ASKED_VERSION: Final = 0x01000018

Entries: TypeAlias = Iterator[tuple[int, ...]]
Way: TypeAlias = tuple[str, Callable[[Any, int], tuple[int, list[Sample]]]]


class _Answers:
    """Memory for answers of unknown length: kept, and grown when one does not fit."""

    def __init__(self, entry: struct.Struct) -> None:
        self._entry = entry
        self.count = ctypes.c_uint()
        self.where = ctypes.byref(self.count)
        self._grow(64)

    def _grow(self, capacity: int) -> None:
        self.capacity = min(capacity, _MOST_ENTRIES)
        self.memory = ctypes.create_string_buffer(self.capacity * self._entry.size)

    def fill(self, call: Callable[[], int]) -> int:
        """The driver's last word."""
        for _ in range(1 + _RETRIES):
            self.count.value = self.capacity
            ctypes.memset(self.memory, 0, len(self.memory))
            code = call()
            if code != NvmlCode.INSUFFICIENT_SIZE:
                break
            self._grow(2 * max(self.count.value, self.capacity))  # more than it wants: by the next try it may want more
        return code

    def entries(self) -> Entries:
        size = min(self.count.value, self.capacity) * self._entry.size
        return self._entry.iter_unpack(memoryview(self.memory)[:size])


class Lists:
    """The lists, each by the newest version of its function whose entries have the length that we know."""

    def __init__(self, library: ctypes.CDLL, version: tuple[int, ...]) -> None:
        suffixes = ("_v2",) if _WIDE_LISTS[0] <= version < _WIDE_LISTS[1] else ("_v3", "_v2")
        self._functions = {call: [_find(library, call + suffix) for suffix in suffixes] for call, _ in LISTS}
        self._room = _Answers(_ENTRY)

    def read(self, call: str, handle: Any) -> tuple[int, Entries]:
        """The driver's code, and (pid, memory, GPU instance, compute instance) of each, good until the next call."""
        functions, room = self._functions[call], self._room
        while functions:
            code = room.fill(lambda: functions[0](handle, room.where, room.memory))
            if code != NvmlCode.FUNCTION_NOT_FOUND:
                return code, room.entries()
            del functions[0]  # neither now nor later
        return NvmlCode.FUNCTION_NOT_FOUND, iter(())


class _SamplesRequest(ctypes.Structure):
    """What the newer call reads and writes."""

    _fields_ = (
        ("version", ctypes.c_uint), ("count", ctypes.c_uint),
        ("since", ctypes.c_ulonglong), ("samples", ctypes.c_void_p),
    )


class Samplers:
    """The two calls for the utilisation of processes. `ways`: their names and how to read them, the better first."""

    def __init__(self, library: ctypes.CDLL, version: tuple[int, ...]) -> None:
        self._new, self._old = _find(library, SAMPLES), _find(library, OLD_SAMPLES)
        self._new_room, self._old_room = _Answers(_SAMPLE), _Answers(_OLD_SAMPLE)
        self._asked = _SamplesRequest(version=_ASKED_VERSION)
        is_believed = not version or version >= _OLD_SAMPLES_SINCE
        self.ways: Sequence[Way] = ((SAMPLES, self._read_new), (OLD_SAMPLES, self._read_old))[: 2 if is_believed else 1]

    def _read_new(self, handle: Any, since: int) -> tuple[int, list[Sample]]:
        asked, room = self._asked, self._new_room

        def call() -> int:
            asked.count, asked.since, asked.samples = room.capacity, since, ctypes.addressof(room.memory)
            code = self._new(handle, ctypes.byref(asked))
            room.count.value = asked.count
            return code

        code = room.fill(call)
        return code, [] if code else [Sample(pid, stamp, sm, *rest) for stamp, pid, sm, *rest in room.entries() if pid]

    def _read_old(self, handle: Any, since: int) -> tuple[int, list[Sample]]:
        room, begin = self._old_room, ctypes.c_ulonglong(since)
        code = room.fill(lambda: self._old(handle, room.memory, room.where, begin))
        return code, [] if code else [Sample(pid, stamp, sm, *rest) for pid, stamp, sm, *rest in room.entries() if pid]


def _find(library: ctypes.CDLL, name: str) -> Callable[..., int]:
    return cast(Callable[..., int], getattr(library, name, lambda *_: NvmlCode.FUNCTION_NOT_FOUND))


class Merger:
    """One entry per process out of all lists of a device: memory is the largest of them, summed over MIG instances."""

    def __init__(self, is_sliced: bool) -> None:
        self._is_sliced = is_sliced
        self._found: dict[int, Holder] = {}
        self._parts: dict[int, dict[InstanceIds, int | None]] = {}  # of processes in MIG instances

    def add(self, entries: Entries, kind: str, instance: InstanceIds) -> None:
        """`kind`: what being in this list says of a process. `instance`: whose list it is, if an entry names none."""
        found = self._found
        for pid, given, gi, ci in entries:
            if not pid:
                continue
            memory = None if given == NO_MEMORY else given
            holder = found.get(pid)
            if holder is None:
                holder = found[pid] = Holder(pid, None)
            setattr(holder, kind, True)
            where = (gi, ci) if gi != NO_INSTANCE else instance
            if self._is_sliced and where != NO_INSTANCES:
                parts = self._parts.setdefault(pid, {})
                parts[where] = _larger(parts.get(where), memory)
            else:
                holder.memory = _larger(holder.memory, memory)

    def merge(self) -> list[Holder]:
        for pid, parts in self._parts.items():
            holder, known = self._found[pid], [memory for memory in parts.values() if memory is not None]
            holder.instances = tuple(sorted(parts))
            if len(known) == len(parts):
                holder.memory = _larger(holder.memory, sum(known))
        return list(self._found.values())


def _larger(one: int | None, other: int | None) -> int | None:
    """Of those that are known."""
    return other if one is None else one if other is None else max(one, other)
