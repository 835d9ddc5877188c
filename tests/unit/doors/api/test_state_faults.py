"""The file of what happened is locked, full or broken: what is now is told all the same, what was is 503 in a sentence
or still told, and whatever takes GPUs away refuses clearly, with nothing half done."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests import builders
from tests.unit.doors.api import scene as scenes
from tests.unit.doors.api.scene import Scene, open_scene
from tests.unit.doors.api.serving import StandingLoop, nothing
from tests.unit.doors.api.test_reads import MANDATE, make_world

from fallow import settings, telemetry
from fallow.account import audit
from fallow.doors.api import app, editions
from fallow.model.history import AuditEntry, CameBy, Happened

ADA = {"token": "of-ada"}
NOW_PATHS = (
    "/api/v1/overview", "/api/v1/workloads", "/api/v1/gpus", "/api/v1/nodes", "/api/v1/policies", "/api/v1/acks",
    "/api/status", "/api/v1/workloads/ml/Deployment/quiet", "/api/v1/workloads/ml/Deployment/quiet/explain",
)
PAST_PATHS = (
    "/api/v1/decisions", "/api/v1/states", "/api/v1/pace", "/api/v1/savings", "/api/v1/regrets", "/api/v1/summary",
    "/api/v1/stats", "/api/v1/workloads/ml/Deployment/quiet/history",
)


@contextlib.contextmanager
def locked(scene: Scene, file: Path) -> Iterator[None]:
    with contextlib.closing(sqlite3.connect(file)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield


@contextlib.contextmanager
def full(scene: Scene, file: Path) -> Iterator[None]:
    connection = scene.kept._database._connection
    assert connection is not None
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count={pages}")
    yield
    connection.execute("PRAGMA max_page_count=1000000")


@contextlib.contextmanager
def corrupt(scene: Scene, file: Path) -> Iterator[None]:
    connection = scene.kept._database._connection
    assert connection is not None
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    size = file.stat().st_size
    with file.open("r+b") as raw:
        raw.seek(4096)
        raw.write(b"\xa5" * (size - 4096))
    connection.execute("PRAGMA shrink_memory")
    yield


@contextlib.asynccontextmanager
async def daemon(folder: Path) -> AsyncIterator[Scene]:
    async with open_scene("kube", state_dir=str(folder)) as scene:
        entry = AuditEntry(
            at=scene.now - 60, type=Happened.paused, sentence="x" * 2000, actor="api:ada", source=CameBy.api
        )
        for number in range(40):  # several pages, so that there is something to break
            await scene.kept.enter(msgspec.structs.replace(entry, at=entry.at - number))
        connection = scene.kept._database._connection
        assert connection is not None
        connection.execute("PRAGMA busy_timeout=10")
        standing = StandingLoop(builders.NOW)
        standing.look_at(make_world(), MANDATE)
        options = msgspec.structs.replace(settings.read_flags({"daemon_mode": True}, {}), mandate=MANDATE)
        told = editions.Editions(standing, options, lambda: scene.now, kept=scene.kept, draw=nothing)  # type: ignore[arg-type]
        reads = app.Reads(editions=told, guard=scene.rights.guard, may=scene.rights.may, auth="kube")
        made = app.make_app(
            standing.health, telemetry.Telemetry(), lambda: scene.now, reads=reads, routes=scene.routes, files={}
        )
        async with scenes.serve_app(made) as scene.origin:
            yield scene


@pytest.mark.parametrize("fault", [locked, full, corrupt])
async def test_reads_go_on_and_writes_refuse_clearly(fault: Any, tmp_path: Path) -> None:
    async with daemon(tmp_path) as scene:
        with fault(scene, tmp_path / audit.FILE):
            for path in NOW_PATHS:
                assert (await scene.ask("GET", path, **ADA)).status == 200, path
            for path in PAST_PATHS:
                answer = await scene.ask("GET", path, **ADA)
                assert answer.status == 200 or (answer.status, answer.code) == (503, "Unavailable"), path
                assert fault is corrupt or answer.status == 200, path
            # the first refusal that cannot be written down shows the trouble
            long = {"reason": "y" * 200}
            for _ in range(60):
                await scene.ask("POST", "/api/v1/workloads/ml/Deployment/none/resume", {}, **ADA)
                scene.now += 1
                scene.ticks += 61
                if scene.kept.trouble:
                    break
            pause = await scene.ask("POST", "/api/v1/workloads/ml/Deployment/llm/pause", long, **ADA)
            assert (pause.status, pause.code) == (503, "AuditUnavailable")
            assert scene.thing("llm")["spec"]["replicas"] == 1
            assert not [key for key in scene.marks("llm") if "paused" in key]
            back = await scene.ask("POST", "/api/v1/workloads/ml/Deployment/off/resume", {}, **ADA)
            assert back.status == 202  # what gives back is not held up
        if fault is not corrupt:
            done = await scene.ask("POST", "/api/v1/workloads/ml/Deployment/llm/pause", long, **ADA)
            assert done.status == 202
            assert {Happened.paused, Happened.resumed} <= {entry.type for entry in await scene.audited()}
