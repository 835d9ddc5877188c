"""The demo as a process of its own, with its dashboard, its API server, and a way to end it; and how several test
processes share a server.

In: how long a day, how many nodes. Out: a Demo that is past its day and goes on in real time.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib import request

PROGRAM = ["-c", "from fallow.doors.cli.main import fallow; fallow()"]


class Demo:
    def __init__(self, said: str) -> None:
        self.base = re.findall(r"in a browser: (\S+)/", said)[-1]
        kubeconfig = json.loads(pathlib.Path(re.findall(r"KUBECONFIG=(\S+)", said)[-1]).read_text())
        self._server: str = kubeconfig["clusters"][0]["cluster"]["server"]

    def ask(self, path: str) -> Any:
        """The dashboard's own API."""
        with request.urlopen(f"{self.base}{path}", timeout=20) as answer:
            return json.load(answer)

    def read_object(self, row: dict[str, Any]) -> Any:
        """What stands in the API server, whatever the dashboard says."""
        group, _, version = row["apiVersion"].rpartition("/")
        root = f"/apis/{group}/{version}" if group else f"/api/{version}"
        plural = row["kind"].lower() + "s"
        path = f"{root}/namespaces/{row['namespace']}/{plural}/{row['name']}"
        with request.urlopen(f"{self._server}{path}", timeout=20) as answer:
            return json.load(answer)

    def rows(self, view: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask(f"/api/v1/workloads?view={view}&limit=500")["items"]
        return found


@contextlib.contextmanager
def demo(*, hours: float, nodes: int, seed: int = 7) -> Iterator[Demo]:
    with tempfile.TemporaryDirectory() as folder:
        said = pathlib.Path(folder, "said")
        pid = start(said, hours=hours, nodes=nodes, seed=seed)
        try:
            yield Demo(said.read_text())
        finally:
            os.kill(pid, signal.SIGTERM)
            os.waitpid(pid, 0)


@contextlib.contextmanager
def shared(folder: pathlib.Path, begin: Callable[[pathlib.Path], int]) -> Iterator[str]:
    """What a server says that all processes share who ask with the same folder: the first begins it, the last ends it.
    `begin`: its pid, once it is ready and has said so into that file."""
    folder.mkdir(exist_ok=True)
    standing, said = folder / "standing", folder / "said"
    with _locked(folder):
        users, pid = json.loads(standing.read_text()) if standing.exists() else (0, 0)
        if not users:
            pid = begin(said)
        standing.write_text(json.dumps([users + 1, pid]))
    try:
        yield said.read_text()
    finally:
        with _locked(folder):
            users, pid = json.loads(standing.read_text())
            standing.write_text(json.dumps([users - 1, pid]))
            if users == 1:
                os.kill(pid, signal.SIGTERM)


@contextlib.contextmanager
def _locked(folder: pathlib.Path) -> Iterator[None]:
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def spawn(said: pathlib.Path, *command: object) -> int:
    """Its pid. It speaks into a file and is nobody's `Popen`: both may outlive whoever started it."""
    into = [(os.POSIX_SPAWN_OPEN, 1, str(said), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)]
    return os.posix_spawn(sys.executable, [sys.executable, *map(str, command)], os.environ, file_actions=into)


def hear(pid: int, said: pathlib.Path, words: str) -> int:
    """The pid again, once it has said that."""
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if re.search(words, said.read_text() if said.exists() else "", re.DOTALL):
            return pid
        time.sleep(0.05)
    raise RuntimeError(f"it ended:\n{said.read_text()}")


def start(said: pathlib.Path, *, hours: float, nodes: int, seed: int) -> int:
    """Its pid, once its day is over and it has said how to look in."""
    words = ("--hours", hours, "--nodes", nodes, "--seed", seed, "--stay", "--port", 0, "--dashboard-port", 0)
    pid = spawn(said, *PROGRAM, "demo", *words)
    return hear(pid, said, r"goes on in real time.*in a browser: \S+\s")
