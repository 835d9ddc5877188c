"""The story without Prometheus: wired by the flags alone, against a small API server and a small exporter."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.unit.clients import loopback
from tests.unit.observe.cluster import pretend

from fallow import loop, settings
from fallow.clients import errors
from fallow.wiring import daemon

LABELS = 'gpu="0",UUID="GPU-1",modelName="NVIDIA A10G",Hostname="n1",pod="llm-0",namespace="ml",container="main"'
PAGE = f"DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{LABELS}}} 0\n"


def _page(_: web.Request) -> web.Response:
    return web.Response(text=PAGE)


@contextlib.asynccontextmanager
async def story_of(tmp_path: Path, **given: Any) -> AsyncIterator[tuple[loop.Loop, loopback.Loopback]]:
    async with pretend.Server("coordination.k8s.io/v1 leases Lease") as server, loopback.serve(_page) as exporter:
        server.put_all(pretend.deployed("llm"))
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        server.put("nodes", pretend.made("n1", namespace=None, kind="Node", status=ready))
        cluster = {
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.url[1]}"}}],
            "current-context": "c",
        }
        context = {
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "users": [{"name": "u", "user": {}}]
        }
        (tmp_path / "config").write_text(json.dumps(cluster | context))
        where = {"kubeconfig": str(tmp_path / "config"), "scrape_target": [exporter.url], "leader_elect": "false"}
        told = settings.read_flags({**where, **given}, {})
        async with daemon.assemble(told, time.time) as made:
            yield made.loop, exporter


async def test_one_look_without_a_past_decides_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with story_of(tmp_path) as (story, exporter):
        cycle = await story.run_once(daemon.IDLE, acting=False)
        assert cycle is not None
        assert cycle.failure
    assert len(exporter.asked) == 1
    assert "no decision: exporters answer, but there are no measurements of the 30m before this look" in caplog.text


async def test_a_daemon_that_is_warming_up_is_well_and_keeps_scraping(tmp_path: Path) -> None:
    pace = {"check_interval": "1", "scrape_interval": "1", "scrape_timeout": "1"}
    async with story_of(tmp_path, daemon_mode=True, state_dir=str(tmp_path / "state"), **pace) as (story, exporter):
        background = [asyncio.create_task(task) for task in story.background()]
        running = asyncio.create_task(story.run())
        deadline = time.monotonic() + 20
        while len(exporter.asked) < 3 or story.health.pulses["idle"].succeeded_at is None:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        assert story.health.why_not_ready(time.monotonic()) == []
        told = story.metrics.text().decode()
        story.stop()
        assert await running
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
    assert 'fallow_idle_source_up{source="scrape"} 0.0' in told
    assert 'fallow_idle_workloads{reason="WarmingUp",verdict="unknown"} 1.0' in told
    assert (tmp_path / "state" / "usage.sqlite").exists()


async def test_a_state_directory_that_cannot_be_used_is_said_before_anything_is_done(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.Misconfigured, match="cannot be used"):
        async with story_of(tmp_path, daemon_mode=True, state_dir=str(tmp_path / "file")):
            pass
