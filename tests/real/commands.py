"""Our commands as processes of their own that do not import everything anew: half of a short command's time is imports.

In: a command's name, its arguments and its environment. Out: its exit code and what it printed.
Each is forked from a server that has the modules in memory and has done nothing with them; it gets the environment, the
arguments and the outputs that a shell would give it. Daemons are started by their installed scripts, which are proven
that way.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import multiprocessing
import os
import pathlib
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Final

_MODULES: Final = [
    "fallow.wiring.daemon", *(f"fallow.doors.cli.{name}" for name in ("verbs", "look", "views", "prune"))
]
_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(_MODULES)


async def run(command: str, arguments: Sequence[str], env: Mapping[str, str], timeout: float) -> tuple[int, str, str]:
    with tempfile.TemporaryDirectory() as folder:
        out, err = pathlib.Path(folder, "out"), pathlib.Path(folder, "err")
        process = _server.Process(target=_become, args=(command, list(arguments), dict(env), str(out), str(err)))
        process.start()
        try:
            await asyncio.to_thread(process.join, timeout)
            if process.exitcode is None:
                raise TimeoutError(f"{command} {' '.join(arguments)} did not end in {timeout:g} s")
        finally:
            process.kill()
            process.join()
        return process.exitcode, await asyncio.to_thread(out.read_text), await asyncio.to_thread(err.read_text)


def _become(command: str, arguments: list[str], env: dict[str, str], out: str, err: str) -> None:
    os.environ.clear()
    os.environ.update(env)
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = [command, *arguments]
    (script,) = importlib.metadata.entry_points(group="console_scripts", name=command)
    sys.exit(script.load()())
