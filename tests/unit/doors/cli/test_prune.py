"""What one cycle amounts to, for a shell."""

import asyncio
import json
import logging
import os
import signal
import socket
import time

import msgspec
import pytest
from tests import builders

from fallow import logs, settings
from fallow.decide.idle import plan as brain
from fallow.doors.cli import prune, reloading
from fallow.model import decision, usage
from fallow.model.decision import Outcome, Status
from fallow.model.long_memory import Freeze
from fallow.settings import config_file


def cycle(*statuses: Status, frozen=None, failure="", planned=True) -> decision.Cycle:
    world = builders.World()
    world.workload()
    made = brain.make_plan(world.snapshot(), builders.mandate(), decision.Memory(), world.now)
    made = msgspec.structs.replace(made, freeze=None if frozen is None else Freeze(frozen, "by hand"))
    outcomes = tuple(Outcome(made.decisions[-1], status, 0.0, "") for status in statuses)
    return decision.Cycle(made if planned else None, None, outcomes, failure, 0.0)


@pytest.mark.parametrize(
    ("ended", "code"),
    [
        (cycle(), 0), (cycle(Status.done), 0), (cycle(Status.dry_run), 0), (cycle(Status.refused), 0),
        (cycle(Status.overtaken), 0), (cycle(failure="no Prometheus"), 1),
        (cycle(planned=False, failure="no API server"), 1), (cycle(Status.done, Status.failed), 3),
        (cycle(frozen=1.0), 4), (cycle(Status.failed, frozen=1.0), 3),
    ],
    ids=[
        "nothing", "done", "dry", "refused", "overtaken", "source", "cluster", "one-failed", "frozen",
        "frozen-and-failed",
    ],
)
def test_exit_codes(ended, code):
    assert prune.exit_code(ended) == code


def test_who_looks_once_and_has_no_measurements_hears_what_helps(caplog):
    world = builders.World()
    world.trouble = usage.SourceTrouble("SourceError", "no Prometheus")
    ended = msgspec.structs.replace(cycle(failure="no Prometheus"), snapshot=world.snapshot())
    prune._tell_help(ended, settings.read_flags({"prometheus_url": "http://prometheus"}, {}))
    assert "what helps: check --prometheus-url (PROMETHEUS_URL)" in caplog.text


async def listen(reader, writer):
    """Somebody who never says anything."""
    await reader.read()
    writer.close()


@pytest.fixture
async def given(tmp_path):
    """What is typed for a daemon whose API server never answers."""
    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    (tmp_path / "config").write_text(json.dumps({
        "clusters": [{"name": "c", "cluster": {"server": address}}], "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "users": [{"name": "u", "user": {}}],
    }))
    yield {"kubeconfig": str(tmp_path / "config"), "daemon_mode": True, "metrics_addr": "127.0.0.1:0",
           "prometheus_url": "http://127.0.0.1:9"}
    server.close()


async def until(is_so):
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_sigterm_ends_a_daemon_that_still_waits_for_its_api_server(given):
    watching = asyncio.create_task(prune._watch_on(settings.read_flags(given, {}), given, None))
    await until(lambda: signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL)
    began = time.monotonic()
    os.kill(os.getpid(), signal.SIGTERM)
    assert await watching == 0
    assert time.monotonic() - began < 3


async def test_sigterm_while_settings_change_ends_it_all_the_same(given, tmp_path, caplog, monkeypatch):
    caplog.set_level("INFO")
    monkeypatch.setattr(reloading, "SETTLES", 0.05)
    file = tmp_path / "settings.yaml"
    file.write_text("duration: 30\n")
    given["config"] = str(file)
    read = settings.read_flags(config_file.complete(given, {}), {})
    watching = asyncio.create_task(prune._watch_on(read, given, None))
    await until(lambda: "watching, in dry-run" in caplog.text)
    file.write_text("duration: 45\n")
    os.kill(os.getpid(), signal.SIGHUP)
    await until(lambda: "its settings hold from now on" in caplog.text)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(watching, 30) == 0
    assert caplog.text.count("watching, in dry-run") == 1, "it was not put together anew"


BROKEN = {"no place for its files": "state-dir: {file}", "a port that is taken": "dashboard-addr: {port}"}


@pytest.mark.parametrize("how", BROKEN)
async def test_settings_that_do_not_work_give_way_whole_and_are_tried_again_when_asked(
    how, given, tmp_path, capfd, monkeypatch
):
    monkeypatch.setattr(reloading, "SETTLES", 0.05)
    told, said = [], tmp_path / "not-a-folder"
    said.write_text("")

    def has_said(words: str, times: int = 1) -> bool:
        told.append(capfd.readouterr().err)
        return "".join(told).count(words) >= times

    file = tmp_path / "settings.yaml"
    file.write_text("duration: 30\n")
    given["config"] = str(file)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # ours are gone when the test is
    read = prune._read_again(given, None)
    logs.set_up(read.log_format, read.log_level)
    watching = asyncio.create_task(prune._watch_on(read, given, None))
    await until(lambda: has_said("watching, in dry-run"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = f"127.0.0.1:{taken.getsockname()[1]}"
        file.write_text(f"duration: 45\nlog-format: json\n{BROKEN[how].format(file=said, port=port)}\n")
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: has_said("watching, in dry-run", 2))
    assert "the new settings do not work; the former hold on" in "".join(told)
    assert not "".join(told).splitlines()[-1].startswith("{"), "it logs as before, too"

    said.unlink()
    os.kill(os.getpid(), signal.SIGHUP)
    await until(lambda: has_said("watching, in dry-run", 3))
    assert "".join(told).splitlines()[-1].startswith("{")
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(watching, 30) == 0
