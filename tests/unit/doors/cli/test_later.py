"""Modules that run when they are first used: in an interpreter of its own, for in this one they all have run."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("command", ["views", "top", "past"])
def test_what_shows_a_daemons_answer_needs_no_numpy(command: str) -> None:
    assert run(f"""
        import sys
        from fallow.doors.cli import later
        later.load("fallow.doors.cli.{command}")
        from fallow.doors.cli import asking
        asking.ask, asking.answers.FailureTold
        print("numpy" in sys.modules)
    """) == "False"


@pytest.mark.parametrize("shape", [
    "status.StatusPage", "rows.WorkloadsPage", "workloads.Explanation", "past.DecisionsPage", "past.HistoryPage",
    "standing.StandingPage",
])
def test_neither_does_what_reads_it(shape: str) -> None:
    """The types of its fields are looked up when the first answer is read: a name imported by itself brings all."""
    module, name = shape.split(".")
    assert run(f"""
        import sys
        from fallow.doors.cli import later
        later.load("fallow.doors.cli.views")
        import msgspec
        from fallow.doors.answers import {module}
        msgspec.json.Decoder({module}.{name})
        print("numpy" in sys.modules)
    """) == "False"


def test_threads_that_ask_at_once_all_find_the_whole_module() -> None:
    assert run("""
        import sys, threading
        from concurrent.futures import ThreadPoolExecutor
        from fallow.doors.cli import later
        later.load("fallow.doors.cli.views")
        sys.setswitchinterval(1e-6)
        from fallow.model import cluster
        begin = threading.Barrier(8)

        def ask(name):
            begin.wait()
            return getattr(cluster, name).__name__

        names = ["Snapshot", "Workload", "Pod", "Ref"] * 2
        with ThreadPoolExecutor(8) as pool:
            print(list(pool.map(ask, names)) == names)
    """) == "True"


def test_a_module_that_failed_runs_anew() -> None:
    assert run("""
        import builtins, sys
        from fallow.doors.cli import later
        later.load("fallow.doors.cli.views")
        from fallow.model import usage
        sys.modules["numpy"] = None
        try:
            usage.Usage
        except ImportError:
            del sys.modules["numpy"]
        print(usage.Usage.__name__)
    """) == "Usage"
