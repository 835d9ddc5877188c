"""The API against its own OpenAPI document: schemathesis asks everything that the document allows, and what it does
not. Nothing may be a defect (5xx), nothing may answer otherwise than the document says, nothing wrong may be taken."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import sys
from collections.abc import AsyncIterator

import msgspec
import pytest

from fallow import settings, telemetry
from fallow.doors.answers.cost_books import CostBooks
from fallow.doors.api import app, deeds, editions
from fallow.model.units import HOUR
from tests import builders, cost_scenes
from tests.unit.doors.api import scene as scenes
from tests.unit.doors.api.scene import Scene, open_scene
from tests.unit.doors.api.serving import StandingLoop, nothing
from tests.unit.doors.api.test_reads import MANDATE, make_world

COSTS = "^/allocation|^/api/v1/cost/"
ALL_WEEK = msgspec.structs.replace(
    scenes.MANDATE, rule=builders.rule(consent=msgspec.structs.replace(scenes.MANDATE.rule.consent, max_ack=168 * HOUR))
)


@contextlib.asynccontextmanager
async def whole_api() -> AsyncIterator[Scene]:
    """Reads, writes and refusals as a daemon serves them, in mode kube."""
    async with open_scene("kube") as scene, cost_scenes.opened(cost_scenes.example()) as ledger:
        world, standing = make_world(), StandingLoop(builders.NOW)
        standing.look_at(world, MANDATE)
        scene.deeds.mandate = ALL_WEEK
        options = msgspec.structs.replace(settings.read_flags({"daemon_mode": True}, {}), mandate=MANDATE)
        told = editions.Editions(standing, options, lambda: scene.now, kept=scene.kept, draw=nothing)  # type: ignore[arg-type]
        told.reach = scene.deeds.reach(deeds.Doer("system:test"), "")
        told.books = CostBooks(ledger=ledger)
        reads = app.Reads(editions=told, guard=scene.rights.guard, may=scene.rights.may, auth="kube")
        made = app.make_app(
            standing.health, telemetry.Telemetry(), lambda: scene.now, reads=reads, routes=scene.routes, files={}
        )
        async with scenes.serve_app(made) as scene.origin:
            yield scene


async def fuzz(scene: Scene, folder: pathlib.Path, *more: str) -> None:
    """Bounded by the number of questions, not by time: the same ones on every machine."""
    command = [
        sys.executable, "-m", "schemathesis.cli", "run", f"{scene.origin}/api/openapi.json", "--header",
        "Authorization: Bearer of-ada", "--checks", "all", "--generation-deterministic", "--no-color", "--warnings",
        "off", "--suppress-health-check", "all", *more,
    ]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()


async def test_what_is_read_is_as_the_document_says(tmp_path: pathlib.Path) -> None:
    async with whole_api() as scene:
        await fuzz(
            scene, tmp_path, "--include-method", "GET", "--phases", "coverage,fuzzing", "--max-examples", "4",
            "--exclude-path-regex", COSTS,
        )


async def test_what_costs_are_read_is_as_the_document_says(tmp_path: pathlib.Path) -> None:
    """What is right by its form may still be refused: a window that ends before it begins, a zone that is none, more
    steps than anybody reads."""
    async with whole_api() as scene:
        await fuzz(
            scene, tmp_path, "--include-method", "GET", "--phases", "coverage,fuzzing", "--max-examples", "8",
            "--include-path-regex", COSTS, "--exclude-checks", "positive_data_acceptance",
        )


async def test_what_is_written_is_as_the_document_says(tmp_path: pathlib.Path) -> None:
    """What is right by its form may still be refused: an end that is past, a workload that is paused already."""
    async with whole_api() as scene:
        await fuzz(
            scene, tmp_path, "--exclude-method", "GET", "--phases", "coverage,fuzzing", "--max-examples", "12",
            "--exclude-checks", "positive_data_acceptance",
        )
        assert {entry.type for entry in await scene.audited()}


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "TRACE"])
async def test_what_cannot_be_asked_of_a_path_names_what_can(method: str) -> None:
    async with whole_api() as scene:
        answer = await scene.ask(method, "/api/v1/acks", token="of-ada")
        assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD, POST")
