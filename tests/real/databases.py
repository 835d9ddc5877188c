"""Real PostgreSQL servers on loopback, with and without TimescaleDB, and a wire to one that can be cut.

In: the server's programs (see build). Out: a Server, with a schema of its own for each who asks, so that one server
serves a session of tests.
Invariant: a server listens on 127.0.0.1 alone, runs as nobody (it refuses root), keeps its data in a folder that goes
with it, and ends when the test that started it does.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import psycopg

from tests.real import build

NOBODY = 65534
SUPERUSER = "fallow"
_numbers = itertools.count(1)
# A crash of the machine is not what is tested: without fsync the tests take half the time.
_SETTINGS = ("fsync=off", "dynamic_shared_memory_type=mmap", "max_connections=60", "listen_addresses=127.0.0.1",
             "log_line_prefix=%a ")


class Server:
    """One server. `root`: changed into first. `bin`: where its programs are, within the root."""

    def __init__(self, home: pathlib.Path, binaries: pathlib.Path, root: pathlib.Path | None, port: int) -> None:
        self.home, self._bin, self._root, self.port = home, binaries, root, port
        self._process: subprocess.Popen[bytes] | None = None

    def make(self) -> None:
        said = ["--username", SUPERUSER, "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C"]
        command = self._command("initdb", "-D", self._inside("data"), *said)
        subprocess.run(command, check=True, capture_output=True, timeout=120)

    def start(self, *settings: str) -> None:
        options = [word for one in (*_SETTINGS, *settings) for word in ("-c", one)]
        place = ["-D", self._inside("data"), "-p", str(self.port), "-c", f"unix_socket_directories={self._inside('')}"]
        with (self.home / "log").open("ab") as log:
            self._process = subprocess.Popen(self._command("postgres", *place, *options), stdout=log, stderr=log)
        self._wait()

    def stop(self) -> None:
        """At once, as a machine that fails."""
        if self._process is not None:
            # chroot and setpriv exec the server, so this is the server itself.
            self._process.send_signal(3)  # SIGQUIT: immediate shutdown, children and all
            self._process.wait(60)
            self._process = None

    def dsn(self, **more: str) -> str:
        return psycopg.conninfo.make_conninfo(
            "", host="127.0.0.1", port=self.port, user=SUPERUSER, dbname="postgres", **more
        )

    def schema(self) -> str:
        """The DSN of an empty one."""
        name = f"s{os.getpid()}_{next(_numbers)}"
        self.run(f"CREATE SCHEMA {name}")
        return self.dsn(options=f"-csearch_path={name},public")

    def run(self, sql: str, dsn: str = "") -> list[tuple[Any, ...]]:
        with psycopg.connect(dsn or self.dsn(), autocommit=True) as on:
            done = on.execute(sql.encode())
            return done.fetchall() if done.description else []

    def _wait(self) -> None:
        until = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.dsn(), connect_timeout=5).close()
            except psycopg.OperationalError:
                if time.monotonic() > until or self._process is None or self._process.poll() is not None:
                    raise AssertionError((self.home / "log").read_text()[-2000:]) from None
                time.sleep(0.05)
            else:
                return

    def _inside(self, name: str) -> str:
        place = self.home / name
        return "/" + str(place.relative_to(self._root)) if self._root else str(place)

    def _command(self, program: str, *arguments: str) -> list[str]:
        command = [str(self._bin / program), *arguments]
        if self._root:
            return ["chroot", f"--userspec={NOBODY}:{NOBODY}", str(self._root), *command]
        if os.geteuid() == 0:
            return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *command]
        return command


@contextlib.contextmanager
def postgres() -> Iterator[Server]:
    found = build.need("postgresql-server")
    with _running(found / "bin", None, pathlib.Path(tempfile.gettempdir())) as server:
        yield server


@contextlib.contextmanager
def timescale() -> Iterator[Server]:
    root = build.need("timescaledb-root")
    binaries = pathlib.Path("/usr/lib/postgresql/17/bin")
    preload = ("shared_preload_libraries=timescaledb", "timescaledb.telemetry_level=off", "jit=off")
    with _running(binaries, root, root / "tmp", *preload) as server:
        server.run("CREATE EXTENSION IF NOT EXISTS timescaledb")
        yield server


@contextlib.contextmanager
def _running(
    binaries: pathlib.Path, root: pathlib.Path | None, parent: pathlib.Path, *settings: str
) -> Iterator[Server]:
    home = pathlib.Path(tempfile.mkdtemp(prefix="fallow-pg-", dir=parent))
    try:
        if os.geteuid() == 0:
            shutil.chown(home, NOBODY, NOBODY)
        server = Server(home, binaries, root, free_port())
        server.make()
        server.start(*settings)
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


class Wire:
    """Passes bytes between a port of its own and a server, until it is cut: at once, or after so many more bytes."""

    def __init__(self, to_port: int) -> None:
        self._to, self.port = to_port, free_port()
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        self._left: int | None = None

    async def join(self) -> None:
        self._left = None
        if self._listener is None:
            self._listener = await asyncio.start_server(self._meet, "127.0.0.1", self.port)

    def cut_after(self, count: int) -> None:
        """So many bytes towards the server are passed on, and then it is cut."""
        self._left = count

    async def cut(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for writer in list(self._open):
            writer.transport.abort()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, there_writer}
        for task in (self._pass(reader, there_writer, True), self._pass(there_reader, writer, False)):
            made = asyncio.get_running_loop().create_task(task)
            self._tasks.add(made)
            made.add_done_callback(self._tasks.discard)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_counted: bool) -> None:
        with contextlib.suppress(OSError):
            while said := await reader.read(65536):
                if is_counted and self._left is not None:
                    said, self._left = said[: self._left], max(0, self._left - len(said))
                    writer.write(said)
                    if not self._left:
                        self._left = None
                        self._break()
                        return
                else:
                    writer.write(said)
                await writer.drain()
        self._open.discard(writer)
        writer.transport.abort()

    def _break(self) -> None:
        """No more of any of it: the listener goes too, so that whoever asks again is refused."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for each in list(self._open):
            each.transport.abort()
