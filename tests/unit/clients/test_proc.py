"""What the kernel says of processes: names, start times, cgroups, of this machine and of a made-up /proc."""

import os
import pathlib
import time

import pytest
from tests.fakes.proc import BOOT, Proc

from fallow.clients import proc


@pytest.mark.parametrize(("comm", "name"), [
    (b"python3\n", "python3"),
    (b"a b\n", "a b"),
    (b'we"ird\\\n', 'we"ird\\'),
    (b"tab\there\x1b[31m\x7f\n", "tabhere[31m"),
    (b"two\nlines\n", "twolines"),
    (b"\xff\xfebad\n", "\ufffd\ufffdbad"),
    ("\u202eevil\u2028\n".encode(), "evil"),
    (b"x" * 100, "x" * 64),
    (("x" * 63 + "é").encode(), "x" * 63),
    (b"\n", "unknown"),
    (b"", "unknown"),
])
def test_a_name_is_fit_for_a_label(comm: bytes, name: str) -> None:
    assert proc.clean_name(comm) == name
    assert len(name.encode()) <= 64


REST = b"S 1 1 1 0 -1 4194304 99 0 0 0 0 0 0 0 20 0 1 0 1158906 2998272 363"


@pytest.mark.parametrize(("stat", "start"), [
    (b"42 (head) " + REST, 1158906),
    (b"42 (a) S (b) c) " + REST, 1158906),
    (b"42 (new\nline) " + REST, 1158906),
    (b"42 (head) S 1 1", 0),
    (b"42 (head) " + REST.replace(b"1158906", b"x"), 0),
    (b"", 0),
])
def test_the_start_time_is_field_22_whatever_the_name(stat: bytes, start: int) -> None:
    assert proc.read_start(stat) == start


@pytest.mark.parametrize(
    ("stat", "boot"), [(b"cpu 1\nbtime 123\n", 123.0), (b"cpu 1\n", None), (b"btime x\n", None), (b"", None)]
)
def test_the_boot_time_is_in_stat(stat: bytes, boot: float | None) -> None:
    assert proc.read_boot(stat) == boot


def test_the_kernels_own_table_knows_us() -> None:
    table = proc.ProcessTable()
    start = table.start_of(os.getpid())
    assert start > 0
    assert table.start_of(os.getpid()) == start
    began = table.started_at(start)
    assert began is not None
    assert time.time() - 86_400 < began < time.time()
    assert table.name_of(os.getpid(), start) == pathlib.Path("/proc/self/comm").read_text().strip()
    assert table.cgroup_of(os.getpid(), start) == pathlib.Path("/proc/self/cgroup").read_text()
    assert table.boot_id() == pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_a_process_of_the_kernel_that_ended_is_not_there_any_more() -> None:
    table = proc.ProcessTable()
    child = os.posix_spawn("/bin/sleep", ["sleep", "60"], {})
    assert table.start_of(child) > 0
    os.kill(child, 9)
    os.waitpid(child, 0)
    assert table.start_of(child) == 0


def test_what_is_not_visible_is_empty_and_not_remembered(tmp_path: pathlib.Path) -> None:
    made = Proc(tmp_path / "proc")
    table = proc.ProcessTable(f"{made.root}/")
    assert (
        table.start_of(42), table.name_of(42, 0), table.cgroup_of(42, 0), table.started_at(0)
    ) == (0, "unknown", "", None)
    made.put(42, 200, cgroup="0::/kubepods\n")
    assert (table.start_of(42), table.name_of(42, 200), table.cgroup_of(42, 200)) == (200, "train", "0::/kubepods\n")
    assert table.started_at(200) == BOOT + 200 / os.sysconf("SC_CLK_TCK")
    nothing = proc.ProcessTable(str(tmp_path / "nowhere"))
    assert (nothing.boot_id(), nothing.started_at(200)) == ("", None)


def test_name_and_cgroup_are_read_once_for_each_process_and_forgotten_with_it(tmp_path: pathlib.Path) -> None:
    made = Proc(tmp_path / "proc")
    made.put(42, 200, b"one\n", "0::/a\n")
    table = proc.ProcessTable(str(made.root))
    assert (table.name_of(42, 200), table.cgroup_of(42, 200)) == ("one", "0::/a\n")
    made.put(42, 300, b"two\n", "0::/b\n")
    assert (table.name_of(42, 200), table.cgroup_of(42, 200)) == ("one", "0::/a\n")
    assert (table.start_of(42), table.name_of(42, 300), table.cgroup_of(42, 300)) == (300, "two", "0::/b\n")
    table.keep_only({(42, 300)})
    assert (table.name_of(42, 200), table.name_of(42, 300)) == ("two", "two")
