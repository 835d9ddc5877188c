"""What the kernel says of processes, under HOST_PROC: start time, name, cgroup; and which boot this is.

In: PIDs as the driver lists them. Out: model.processes.Table's answers. It is asked about every process at every poll,
so it reads little: a start time is read again only when the kernel shows another file, name and cgroup once per process
(PID and start time).
Invariant: nothing here raises, whatever a process calls itself and whenever it ends.
"""

import os
from collections.abc import Set
from typing import Final

from fallow.model.units import Instant

_MOST_NAME_BYTES: Final = 64
_MOST_FILE_BYTES: Final = 1 << 20  # /proc/stat of a machine with hundreds of cores is the longest
_START: Final = 19  # field 22 of stat, counted from the first one after the last ")"


class ProcessTable:
    """The processes under one /proc."""

    def __init__(self, root: str = "/proc") -> None:
        self._root = root.rstrip("/") or "/"
        self._ticks = os.sysconf("SC_CLK_TCK")
        self._booted: Instant | None = None
        self._starts: dict[int, tuple[int, int, int]] = {}  # PID -> inode and mtime of its stat, start time
        self._names: dict[tuple[int, int], str] = {}
        self._cgroups: dict[tuple[int, int], str] = {}

    def start_of(self, pid: int) -> int:
        """A new process has a new inode, also when its PID was used before: to ask for that takes a third of a reading.

        The kernel's files are made when they are read, so their size is 0. Of others, a copy of /proc, an inode says
        nothing.
        """
        path = f"{self._root}/{pid}/stat"
        try:
            seen = os.stat(path)
        except OSError:
            self._starts.pop(pid, None)
            return 0
        known = self._starts.get(pid)
        if known is not None and known[0] == seen.st_ino and known[1] == seen.st_mtime_ns:
            return known[2]
        start = read_start(_read(path))
        if start and not seen.st_size:
            self._starts[pid] = (seen.st_ino, seen.st_mtime_ns, start)
        return start

    def started_at(self, start: int) -> Instant | None:
        """Up to a second early, because the kernel tells its boot in whole seconds."""
        if self._booted is None:
            self._booted = read_boot(_read(f"{self._root}/stat"))
        return None if self._booted is None or not start else self._booted + start / self._ticks

    def name_of(self, pid: int, start: int) -> str:
        name = self._names.get((pid, start))
        if name is None:
            name = clean_name(_read(f"{self._root}/{pid}/comm"))
            if start:  # without a start time nobody can tell whose name this will be at the next poll
                self._names[pid, start] = name
        return name

    def cgroup_of(self, pid: int, start: int) -> str:
        text = self._cgroups.get((pid, start))
        if text is None:
            text = _read(f"{self._root}/{pid}/cgroup").decode("utf-8", "replace")
            if start and text:
                self._cgroups[pid, start] = text
        return text

    def boot_id(self) -> str:
        return _read(f"{self._root}/sys/kernel/random/boot_id").decode("ascii", "replace").strip()

    def keep_only(self, alive: Set[tuple[int, int]]) -> None:
        self._booted = None  # it moves when somebody sets the clock
        pids = {pid for pid, _ in alive}
        self._starts = {pid: known for pid, known in self._starts.items() if pid in pids}
        self._names = {key: name for key, name in self._names.items() if key in alive}
        self._cgroups = {key: text for key, text in self._cgroups.items() if key in alive}


def read_start(stat: bytes) -> int:
    """Field 22; a name may hold spaces and brackets, so fields count from the last one."""
    fields = stat[stat.rfind(b")") + 1 :].split(None, _START + 1)
    return int(fields[_START]) if len(fields) > _START and fields[_START].isdigit() else 0


def read_boot(stat: bytes) -> Instant | None:
    """The line `btime` of /proc/stat."""
    words = next((line.split() for line in stat.splitlines() if line.startswith(b"btime ")), [])
    return float(words[1]) if len(words) == 2 and words[1].isdigit() else None


def clean_name(comm: bytes) -> str:
    """No control characters, at most 64 bytes, cut between characters: whoever names a process writes into our page."""
    text = "".join(each for each in comm.decode("utf-8", "replace") if each.isprintable())
    return text.encode()[:_MOST_NAME_BYTES].decode("utf-8", "ignore").strip() or "unknown"


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_MOST_FILE_BYTES)
    except OSError:  # not visible, or it ended in between
        return b""
