"""What one cycle amounts to, for a shell."""

import asyncio
import json
import os
import signal
import time

import msgspec
import pytest
from tests import builders

from fallow import settings
from fallow.decide.idle import plan as brain
from fallow.doors.cli import prune
from fallow.model import decision, usage
from fallow.model.decision import Outcome, Status
from fallow.model.long_memory import Freeze


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


async def test_sigterm_ends_a_daemon_that_still_waits_for_its_api_server(tmp_path):
    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    (tmp_path / "config").write_text(json.dumps({
        "clusters": [{"name": "c", "cluster": {"server": address}}], "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "users": [{"name": "u", "user": {}}],
    }))
    given = {"kubeconfig": str(tmp_path / "config"), "daemon_mode": True, "metrics_addr": "127.0.0.1:0"}
    watching = asyncio.create_task(prune._watch(settings.read_flags(given, {"PROMETHEUS_URL": "http://127.0.0.1:9"})))
    async with asyncio.timeout(10):
        while signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    began = time.monotonic()
    os.kill(os.getpid(), signal.SIGTERM)
    assert await watching == 0
    assert time.monotonic() - began < 3
    server.close()
