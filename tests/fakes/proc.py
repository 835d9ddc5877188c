"""A made-up /proc: the files of processes that are not there."""

import pathlib
import shutil

NOW = 1_800_000_000.0
BOOT = int(NOW) - 100_000


class Proc:
    """The files of one node."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root = root
        (root / "sys/kernel/random").mkdir(parents=True)
        (root / "sys/kernel/random/boot_id").write_text("3f1c\n")
        (root / "stat").write_text(f"cpu 1 2 3\nintr 5 0 0\nctxt 9\nbtime {BOOT}\nprocesses 7\n")

    def put(self, pid: int, start: int = 777, comm: bytes = b"train\n", cgroup: str = "0::/\n") -> None:
        folder = self.root / str(pid)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "stat").write_bytes(b"%d (%s) S 1 %s %d 0 0\n" % (pid, comm.strip(), b"0 " * 17, start))
        (folder / "comm").write_bytes(comm)
        (folder / "cgroup").write_text(cgroup)

    def remove(self, pid: int) -> None:
        shutil.rmtree(self.root / str(pid))
