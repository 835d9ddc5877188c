"""How a command ends when its output goes nowhere or somebody has enough; what it is called; what a shell completes.

Each is started as a program of its own, as people do.
"""

import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from fallow.doors.cli import enter, interrupts, main

BIN = Path(sys.executable).parent
CLEAN = {key: value for key, value in os.environ.items() if key not in ("KUBECONFIG", "PROMETHEUS_URL")}
HEAVY = {
    "aiohttp", "yaml", "rich", "numpy", "fallow.wiring.daemon", "fallow.observe.cluster.mirror",
    "fallow.decide.idle.plan",
}
NEEDED = {"demo": {"rich", "numpy"}, "tune": {"numpy"}, "trace": {"numpy"}, "pack": {"numpy"}}  # for what they offer


def run(*words: str, program: str = "fallow", **options: object) -> subprocess.CompletedProcess[str]:
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": CLEAN, **options}
    return subprocess.run([BIN / program, *words], text=True, timeout=60, check=False, **given)


def write_kubeconfig(folder: Path, port: int) -> str:
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump({
        "apiVersion": "v1", "kind": "Config", "current-context": "here", "users": [],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "contexts": [{"name": "here", "context": {"cluster": "c"}}, {"name": "there", "context": {"cluster": "c"}}],
    }))
    return str(path)


@pytest.mark.parametrize(("program", "words"), [("fallow", ["crds"]), ("fallow", ["--help"]), ("gpu-pruner", ["-h"])])
def test_a_full_disk_is_one_sentence(program, words):
    with open("/dev/full", "w") as full:
        done = run(*words, program=program, stdout=full)
    assert (done.returncode, done.stderr) == (1, "Error: the output cannot be written: No space left on device\n")


def test_output_that_cannot_be_encoded_is_one_sentence():
    code = "import click; from fallow.doors.cli import main; main.Door('x', callback=lambda: click.echo('日'))()"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**CLEAN, "PYTHONIOENCODING": "latin-1"}, capture_output=True, text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("Error: this output cannot be written in latin-1: it has '\\u65e5'; set ")


def test_who_reads_no_further_hears_no_complaint():
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as gone:
        done = run("crds", stdout=gone)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("words", ["paused", "ack deploy/llm", "status", "freeze"])
def test_ctrl_c_is_130_and_no_traceback(tmp_path, words):
    """While it waits for a server that takes the connection and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        kubeconfig = write_kubeconfig(tmp_path, silent.getsockname()[1])
        given = {**CLEAN, "KUBECONFIG": kubeconfig, "PROMETHEUS_URL": "http://127.0.0.1:1"}
        running = subprocess.Popen([BIN / "fallow", *words.split()], env=given, stderr=subprocess.PIPE, text=True)
        silent.settimeout(60)
        connection, _ = silent.accept()
        with contextlib.closing(connection):
            running.send_signal(signal.SIGINT)
            _, said = running.communicate(timeout=60)
    assert (running.returncode, said.strip()) == (main.INTERRUPTED, "")


MID_CALLBACK = """
import asyncio, signal
from fallow.doors.cli import interrupts
async def wait():
    timer = asyncio.get_running_loop().create_future()
    def ring():
        assert not timer.cancelled()
        signal.raise_signal(signal.SIGINT)
        timer.set_result(None)
    asyncio.get_running_loop().call_soon(ring)
    await timer
    await asyncio.sleep(60)
try:
    interrupts.run(wait())
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_in_the_middle_of_a_callback_is_quiet_too():
    """A timer that has just seen that nobody cancelled it."""
    done = subprocess.run([sys.executable, "-c", MID_CALLBACK], env=CLEAN, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")


BUSY = """
import signal
from fallow.doors.cli import interrupts
async def compute():
    signal.raise_signal(signal.SIGINT)
    print("went on")
try:
    interrupts.run_busily(compute())
except KeyboardInterrupt:
    print("interrupted", signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""


@pytest.mark.parametrize(("is_ignored", "said"), [(False, "interrupted True\n"), (True, "went on\n")])
def test_ctrl_c_ends_what_computes_and_never_waits(is_ignored, said):
    ignore = (lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)) if is_ignored else None
    done = subprocess.run([sys.executable, "-c", BUSY], env=CLEAN, capture_output=True, text=True, check=False,
                          preexec_fn=ignore)
    assert (done.stdout, done.stderr) == (said, "")


def test_what_a_callback_gets_wrong_is_still_said():
    wrong = MID_CALLBACK.replace("signal.raise_signal(signal.SIGINT)", "timer.cancel()").replace("(60)", "(0)")
    done = subprocess.run([sys.executable, "-c", wrong], env=CLEAN, capture_output=True, text=True, check=False)
    assert "InvalidStateError" in done.stderr


@pytest.mark.parametrize("program", ["fallow", "kubectl-fallow", "gpu-pruner", "gpu-idle-exporter"])
@pytest.mark.parametrize("is_ignored", [False, True])
def test_ctrl_c_while_it_is_still_being_loaded_is_130_and_no_traceback(tmp_path, program, is_ignored):
    """In the middle of an import, the first of the heavy ones; who started it with Ctrl-C ignored is not disturbed."""
    (tmp_path / "click.py").write_text(
        "import os, signal, sys\nos.kill(os.getpid(), signal.SIGINT)\nprint('went on')\nsys.exit(7)"
    )
    ignore = (lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)) if is_ignored else None
    done = run("--help", program=program, env={**CLEAN, "PYTHONPATH": str(tmp_path)}, preexec_fn=ignore)
    expected = (7, "went on\n", "") if is_ignored else (main.INTERRUPTED, "", "")
    assert (done.returncode, done.stdout, done.stderr) == expected


def test_sigterm_while_it_is_still_being_loaded_ends_it_at_once(tmp_path):
    """By a handler, for the first process of a container has no other way to hear it."""
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\nprint('went on')")
    done = run("-d", program="gpu-pruner", env={**CLEAN, "PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stdout, done.stderr) == (enter.TERMINATED, "", "")


@pytest.mark.parametrize("program", ["fallow", "kubectl-fallow"])
def test_help_shows_the_name_it_was_called_by(program):
    assert run("idle", "-h", program=program).stdout.startswith(f"Usage: {program.replace('-f', ' f')} idle [OPTIONS]")


def test_a_verb_that_is_nearly_right_is_suggested():
    done = run("idel")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "Error: there is no command 'idel'; did you mean `fallow idle`?"


@pytest.mark.parametrize(("words", "said"), [
    ("cost reprot", "'reprot'; did you mean `fallow cost report` or"),
    ("scale paln", "did you mean `fallow scale plan`?"), ("pack plna", "did you mean `fallow pack plan`?"),
    ("cost savings", "there is no command 'savings'; --help lists"),
])
def test_a_command_of_a_command_that_is_not_there_is_told_in_the_same_way(words, said):
    done = CliRunner().invoke(main.fallow, words.split(), prog_name="fallow")
    assert (done.exit_code, said in done.stderr.splitlines()[-1]) == (2, True), done.output


@pytest.mark.parametrize("verb", main.VERBS)
def test_to_describe_a_verb_nothing_it_works_with_is_loaded(verb):
    code = (
        "import sys\nfrom fallow.doors.cli import later, main\n"
        f"main.fallow.main([{verb!r}, '--help'], standalone_mode=False)\n"
        "loaded = {name for name, module in sys.modules.items() if type(module) is not later._Later}\n"
        f"print(sorted({HEAVY - NEEDED.get(verb, set())!r} & loaded))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=CLEAN)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_asks_fallow(shell):
    script = run("completion", shell).stdout
    assert f"{main.COMPLETE}={shell}_complete" in script


def complete(*words: str, **env: str) -> list[str]:
    """As bash asks."""
    typed = {"COMP_WORDS": " ".join(("fallow", *words)), "COMP_CWORD": str(len(words)), main.COMPLETE: "bash_complete"}
    done = run(env={**CLEAN, **typed, **env})
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_verbs_options_kinds_and_contexts_are_completed(tmp_path):
    kubeconfig = write_kubeconfig(tmp_path, 1)
    assert complete("una") == ["unack"]
    assert complete("ack", "--ho") == ["--hours"]
    assert complete("ack", "statef") == ["statefulset"]
    assert complete("ack", "--context", "th", KUBECONFIG=kubeconfig) == ["there"]


@pytest.mark.parametrize("words", [("ack", "deploy/"), ("ack", "deploy", ""), ("ack", "-n", "")])
def test_a_server_that_is_not_there_completes_nothing(tmp_path, words):
    assert complete(*words, KUBECONFIG=write_kubeconfig(tmp_path, 1)) == []


def test_kubectl_is_told_what_to_complete():
    done = run("una", program="kubectl_complete-fallow")
    assert done.stdout.splitlines() == ["unack", ":4"]


NOBODY = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
LOOKING = ["status", "optimize", "report", "cost", "cost report", "cost budget"]


@pytest.mark.parametrize(("program", "words"), [
    *(("gpu-autoscaler", words) for words in LOOKING), *(("fallow", words) for words in LOOKING),
    *(("fallow", words) for words in (
        "idle", "why deploy/llm", "history", "paused", "acks", "ack deploy/llm", "freeze", "digest",
        "pack plan --cluster",
    )),
], ids=" ".join)
def test_without_a_cluster_every_command_ends_with_4_and_a_sentence(program, words):
    """Nothing was typed wrongly: no word on usage."""
    done = run(*words.split(), program=program, env=NOBODY)
    assert done.returncode == 4, done.stderr
    assert done.stderr.startswith("Error: no cluster found: name a kubeconfig with --kubeconfig")
    assert "fallow demo" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("words", ["status", "cost", "idle", "paused", "digest"])
def test_a_cluster_that_was_named_wrongly_is_2(words):
    done = run(*words.split(), "--kubeconfig", "/nowhere", env=NOBODY)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, "Error: kubeconfig /nowhere does not exist")


def test_a_dry_run_without_a_cluster_is_2_as_gpu_pruner_says():
    """Its 4 is a freeze."""
    assert run(program="gpu-pruner", env=NOBODY).returncode == 2


def test_no_garbage_is_looked_for_in_what_ends_soon() -> None:
    async def look() -> bool:
        return gc.isenabled()

    assert gc.isenabled()
    assert not interrupts.run_shortly(look())
    assert gc.isenabled()


@pytest.mark.parametrize("words", [
    ["optimize", "--min-waste-score", "nan"], ["idle", "--watch=nan"], ["top", "--every", "nan"],
    ["scale", "simulate", "--days", "nan"],
])
def test_what_is_no_number_is_refused(words: list[str]) -> None:
    done = CliRunner().invoke(main.fallow, words)
    assert done.exit_code == 2
    assert "'nan' is no number" in done.output


def test_optimize_refuses_what_is_no_expression_as_the_others_do() -> None:
    done = CliRunner().invoke(main.fallow, ["optimize", "-n", "("])
    assert done.exit_code == 2
    assert "not a valid RE2 expression" in done.output
