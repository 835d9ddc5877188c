"""`status`, `idle` and `why` as they are typed, where nothing is measured; and every read command watched.

The other end is a small API server that only reads.
"""

import asyncio
import json
import os
import pty
import signal
import sys

import pytest
from tests.unit.doors.cli import test_verbs
from tests.unit.observe.cluster import pretend

from fallow.doors.cli import watch

ask, type_in = test_verbs.ask, test_verbs.type_in


@pytest.fixture
async def server():
    async with pretend.Server("coordination.k8s.io/v1 leases Lease") as running:
        yield running


@pytest.fixture
def kubeconfig(ask, tmp_path):
    return tmp_path / "kubeconfig"  # as `ask` uses it


MARKS = {**test_verbs.PAUSED_MARKS, "gpuautoscaler.io/paused-policy": "nightly"}


@pytest.mark.parametrize("verb", ["status", "idle"])
@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["-n", "ml", "-A"], "say either -n or -A"), (["-n", "("], "--namespace"), (["-m", "("], "--model-name"),
        (["--watch", "0"], "--watch"), (["--watch=soon"], "--watch"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_cannot_be_meant_is_refused_before_anything_is_asked(verb, flags, says):
    done = type_in(verb, *flags, KUBECONFIG="/nonexistent/kubeconfig")
    assert (done.exit_code, says in done.output.splitlines()[-1]) == (2, True), done.output


@pytest.mark.parametrize("price", ["FOO", "=3", "T4=-1", "T4=nan", "T4=much"])
def test_a_price_that_is_none_is_refused(price):
    done = type_in("status", "--price", price, KUBECONFIG="/nonexistent/kubeconfig")
    assert (done.exit_code, "MODEL=DOLLARS" in done.output) == (2, True)


@pytest.mark.parametrize("verb", ["status", "idle", "why", "top"])
def test_help_is_a_page_and_the_rest_is_asked_for(verb):
    brief, full = (type_in(verb, word).output for word in ("--help", "--help-all"))
    first = "\n".join(brief.splitlines()[:24])
    for words in ("daemon" if verb != "top" else "live", "-n, --namespace", "--help-all"):
        assert words in (brief if words == "--help-all" else first), brief
    for option in ("-n, --namespace", "--look", "--prometheus-url", "--kubeconfig", "-h, --help"):
        assert option in brief
    assert len(brief.splitlines()) <= 36
    for option in ("--coverage", "--prometheus-token-file", "The brakes of `fallow run`"):
        assert (option in brief, option in full) == (False, True)
    for option in ("--smtp-url", "--slack-channel", "--run-mode", "--freeze-jump", "--metrics-addr"):
        assert option not in full


async def test_a_mail_server_in_the_environment_does_not_keep_anybody_from_looking(server, ask, monkeypatch):
    server.put_all(pretend.deployed("llm"))
    monkeypatch.setenv("SMTP_URL", "smtp://mail.example.com")
    assert (await ask("status")).exit_code == 4  # nobody said where measurements are, as ever


async def test_the_price_of_a_model_that_nobody_knows_is_refused(server, ask):
    server.put_all(pretend.deployed("llm"))
    done = await ask("status", "--price", "FOO=3")
    assert done.exit_code == 2
    assert "--price: no GPU model is known as FOO; this cluster has " in done.output.splitlines()[-1]
    assert (await ask("status", "--price", "H100-80GB-HBM3=3")).exit_code == 4  # nobody said where measurements are


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("--watch", ["--watch=10"]), ("--watch 3", ["--watch", "3"]), ("--watch=3", ["--watch=3"]),
        ("--watch Deployment/llm -n ml", ["--watch=10", "Deployment/llm", "-n", "ml"]),
        ("Deployment/llm --watch -n ml", ["Deployment/llm", "--watch=10", "-n", "ml"]), ("", []),
    ],
    ids=str,
)
def test_the_seconds_of_watch_may_be_left_out(typed, read):
    assert list(watch._fill_in(typed.split())) == read


@pytest.mark.parametrize("words", ["status", "idle", "why Deployment/llm -n ml"])
async def test_without_a_source_every_look_ends_with_4_and_says_what_to_do(server, ask, words):
    server.put_all(pretend.deployed("llm"))
    done = await ask(*words.split())
    assert done.exit_code == 4
    last = done.output.splitlines()[-1]
    assert last.startswith("Error: no decision possible: ")
    assert "say where Prometheus is (--prometheus-url or PROMETHEUS_URL)" in last


@pytest.mark.parametrize("words", ["status", "idle", "why Deployment/llm -n ml", "prune --dry-run-scope client"])
async def test_who_may_not_look_hears_how_one_looks_with_fewer_rights(server, ask, words):
    server.forbidden.add(("list", "pods"))
    done = await ask(*words.split(), "--prometheus-url", "http://127.0.0.1:1")
    assert done.exit_code == 1
    last = done.output.splitlines()[-1]
    assert "pods is forbidden" in last
    assert "What helps: who may read single namespaces only names them (--watch-namespaces ml); " in last


@pytest.mark.parametrize("words", ["query up", "optimize", "status"])
async def test_a_prometheus_that_is_away_is_said_with_how_to_reach_it(server, ask, words):
    server.put_all(pretend.deployed("llm"))
    done = await ask(*words.split(), "--prometheus-url", "http://127.0.0.1:1")
    assert done.exit_code == 1
    first, last = done.output.splitlines()[0], done.output.splitlines()[-1]
    assert first.endswith("cannot be reached: connection refused; trying again ...")
    assert "Prometheus at http://127.0.0.1:1 cannot be reached: connection refused. What helps: check " in last
    assert done.output.count("trying again") == 1, "it is not asked twice for as long"


async def test_status_shows_what_needs_no_measurements(server, ask):
    server.put_all(pretend.deployed("llm"))
    server.put_all(pretend.deployed("asleep", pods=0, annotations=MARKS, spec={"replicas": 0}))
    done = await ask("status")
    assert "1 cannot tell" in done.output
    assert "PAUSED     1 workload by fallow, 4 GPUs given back" in done.output
    page = json.loads((await ask("status", "-o", "json")).stdout)
    assert (page["unknownGpus"], page["paused"][0]["name"], page["source"]["reason"]) == (1, "asleep", "NoData")


async def test_why_of_a_paused_one_needs_no_measurements(server, ask):
    server.put_all(pretend.deployed("asleep", pods=0, annotations=MARKS, spec={"replicas": 0}))
    said = (await ask("why", "Deployment/asleep", "-n", "ml")).output
    for words in ("by fallow, rule nightly", "because    quiet", "gave back  4 GPUs", "spec.replicas 1"):
        assert words in said, said


async def test_a_namespace_that_is_not_there_is_not_the_whole_cluster(server, ask):
    server.put_all(pretend.deployed("llm"))
    server.put("namespaces", pretend.made("ml", namespace=None, kind="Namespace", version="v1"))
    server.put("namespaces", pretend.made("empty", namespace=None, kind="Namespace", version="v1"))
    done = await ask("status", "-n", "nowhere")
    assert (done.exit_code, "there is no namespace nowhere" in done.output) == (1, True), done.output
    done = await ask("status", "-n", "")
    assert (done.exit_code, "there is no namespace ''," in done.output) == (1, True), done.output
    done = await ask("status", "-n", "empty")
    assert "HELD       0 by 0 pods of 0 workloads in namespaces that match empty" in done.output
    done = await ask("status", "-n", "m.")
    assert "1 by 1 pod of 1 workload in namespaces that match m." in done.output


async def test_acks_are_listed_of_all_namespaces_in_the_order_in_which_they_end(server, ask):
    for name, namespace, until in (("late", "ml", "21"), ("early", "other", "20")):
        said = {"gpuautoscaler.io/ack-until": f"2026-11-{until}T18:00:00Z"}
        server.put_all(pretend.deployed(name, namespace=namespace, annotations=said))
    listed = json.loads((await ask("acks", "-A", "-o", "json")).output)
    assert [row["name"] for row in listed] == ["early", "late"]


async def _watch(server, kubeconfig, out):
    server.put("namespaces", pretend.made("ml", namespace=None, kind="Namespace", version="v1"))
    server.put_all(pretend.deployed("asleep", pods=0, annotations=MARKS, spec={"replicas": 0}))
    words = ("from fallow.doors.cli import main; main.fallow()", "paused", "--watch", "1")
    env = {"PATH": os.environ["PATH"], "KUBECONFIG": str(kubeconfig), "TERM": "xterm-256color"}
    return await asyncio.create_subprocess_exec(sys.executable, "-c", *words, stdout=out, stderr=out, env=env)


async def _read_until(read, word, times):
    """What came until it came so often."""
    said = b""
    async with asyncio.timeout(30):
        while said.count(word) < times:
            said += await read()
    return said


async def test_watched_on_a_terminal_it_redraws_in_place_and_leaves_it_as_it_was(server, ask, kubeconfig):
    leader, follower = pty.openpty()
    process = await _watch(server, kubeconfig, follower)
    os.close(follower)
    read = lambda: asyncio.to_thread(os.read, leader, 65536)  # noqa: E731
    said = await _read_until(read, b"Deployment/asleep", 2)
    process.send_signal(signal.SIGINT)
    assert await process.wait() == 130
    said += await read()
    os.close(leader)
    assert said.startswith(watch.ENTER.encode())
    assert said.rstrip().endswith(watch.LEAVE.encode())
    assert b"Traceback" not in said
    assert b"Ctrl-C ends" in said


async def test_watched_on_a_pipe_it_shows_one_page_after_another(server, ask, kubeconfig):
    process = await _watch(server, kubeconfig, asyncio.subprocess.PIPE)
    assert process.stdout is not None
    said = await _read_until(lambda: process.stdout.read(65536), b"Deployment/asleep", 2)
    process.send_signal(signal.SIGINT)
    assert await process.wait() == 130
    assert b"\x1b" not in said
