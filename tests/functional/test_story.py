"""Politeness is an order of events: timelines of the real controller in a pretend cluster, over sockets."""

from __future__ import annotations

import asyncio
import pathlib
import shutil
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from fallow import names
from fallow.model import decision
from fallow.model.units import MINUTE
from fallow.sim import cast, stage
from fallow.sim.servers import store
from fallow.sim.world import nouns, shapes
from tests.functional import story as stories
from tests.functional.story import Story
from tests.real import build


@pytest_asyncio.fixture
async def story(tmp_path: pathlib.Path) -> AsyncIterator[Story]:
    made = Story(tmp_path)
    try:
        yield made
    finally:
        await made.end()


def spec_of(story: Story, name: str, kind: str = "Deployment") -> Any:
    return story.object(name, kind)["spec"]


def holds(after: Any, before: Any) -> bool:
    """Is all of it there as it was? A server may have filled in defaults beside."""
    if isinstance(before, dict):
        return isinstance(after, dict) and all(
            key in after and holds(after[key], value) for key, value in before.items()
        )
    if isinstance(before, list):
        return isinstance(after, list) and len(after) == len(before) and all(map(holds, after, before))
    return bool(after == before)


def specs_of(story: Story) -> dict[str, Any]:
    return {
        one.part.kind: spec_of(
            story, f"{one.part.namespace}/{one.part.name}", one.part.kind
        ) for one in story.stage.world.workloads
    }


RESUMED = {names.RESUMED_AT: "2026-11-16T08:31:00Z", names.RESUMED_BY: "user:ada"}
STOPPED = "kubeflow-resource-stopped"
HALF_BACK = {
    "replicas": ("Deployment", {"spec": {"replicas": 2}, "metadata": {"annotations": RESUMED}}),
    "switch": ("Notebook", {"metadata": {"annotations": {**RESUMED, STOPPED: None}}}),
    "fields-alone": ("Deployment", {"spec": {"replicas": 2}}),  # as through a /scale, which carries no marks
}


@pytest.mark.accepts("idle", 15)
@pytest.mark.parametrize(("kind", "first"), HALF_BACK.values(), ids=HALF_BACK)
async def test_a_resume_whose_second_request_never_came_is_finished_and_immune(
    story: Story, kind: str, first: dict[str, Any]
) -> None:
    story.policies = ({**stories.QUIET, "spec": {**stories.QUIET["spec"], "consent": {"immunity": "3h"}}},)
    story.workload(kind, "ml/llm", gpus=1, replicas=2 if kind == "Deployment" else 1, busy="06:00-07:00")
    await story.at("08:30").sees("llm")
    assert names.PAUSED_AT in story.object("ml/llm", kind)["metadata"]["annotations"]
    by_hand = store.Writer(manager=names.RESUME_FIELD_MANAGER)
    story.stage.store.patch(story.key(kind, "ml/llm"), first, by_hand)
    await story.go_on(stories.clock("08:45"))
    said = story.object("ml/llm", kind)["metadata"]["annotations"]
    assert not {*names.PAUSE_KEYS, names.PENDING_SINCE, names.PAUSE_REVERSALS} & set(said)
    assert said[names.RESUMED_AT] >= RESUMED[names.RESUMED_AT]
    assert not any("PauseFailed" in line for line in story.happened())
    await story.until("11:30").sees_nothing()


async def test_an_idle_workload_is_announced_then_paused_then_comes_back_as_it_was(story: Story) -> None:
    story.deployment("ml/llm", gpus=2, replicas=3, busy="06:00-08:00")
    await story.at("08:25").sees_nothing()
    before = spec_of(story, "ml/llm")
    await story.at("08:35").sees("IdleNoticeSent llm")
    await story.at("08:55").sees("ScaledToZero llm")
    assert spec_of(story, "ml/llm")["replicas"] == 0
    assert story.stage.store.entries("", "Pod", "ml") == []
    story.annotate("ml/llm", resume_requested="ada")
    await story.at("09:10").sees("Resumed llm")
    assert holds(spec_of(story, "ml/llm"), before)


async def test_no_pause_comes_before_its_notice_and_grace(story: Story) -> None:
    story.deployment("ml/llm", busy="06:00-08:00")
    on = await story.begin()
    told = paused = None
    while paused is None and on.world.now < stories.clock("10:00"):
        for outcome in (await on.step()).outcomes:
            match outcome:
                case decision.Outcome(decision=decision.Warn(), status=decision.Status.done):
                    told = told or on.world.now
                case decision.Outcome(decision=decision.Pause(), status=decision.Status.done):
                    paused = on.world.now
    assert told is not None
    assert paused is not None
    assert paused - told >= 600.0
    assert told >= stories.clock("08:30")


async def test_an_acknowledged_workload_is_left_alone_until_that_expires(story: Story) -> None:
    story.deployment("ml/llm", busy="06:00-08:00")
    await story.at("08:35").sees("IdleNoticeSent llm")
    story.acknowledge("ml/llm", hours=4)
    await story.until("12:30").sees_nothing()
    await story.at("12:40").sees("IdleNoticeSent llm")
    await story.at("13:00").sees("ScaledToZero llm")


async def test_one_busy_replica_keeps_its_workload_and_work_after_the_notice_takes_it_back(story: Story) -> None:
    story.deployment("ml/llm", busy="06:00-08:00, 08:42-08:44")
    await story.at("08:40").sees("IdleNoticeSent llm")
    await story.until("09:10").sees_nothing()
    assert names.PENDING_SINCE not in (story.object("ml/llm")["metadata"].get("annotations") or {})


@pytest.mark.accepts("idle", 23)
async def test_who_scales_a_paused_workload_up_by_hand_is_not_fought(story: Story) -> None:
    story.deployment("ml/llm", busy="06:00-07:00", owner="absent")
    on = await story.begin()
    pauses = 0
    for hour in ("08:00", "10:00", "12:00", "14:00", "18:00"):
        await story.go_on(stories.clock(hour))
        if spec_of(story, "ml/llm")["replicas"] == 0:
            pauses += 1
            story.patch("ml/llm", {"spec": {"replicas": 1}})
    assert pauses == 3
    assert any(line.startswith("PauseReverted llm") for line in story.happened())
    assert names.FIGHT_HOLD_UNTIL in story.object("ml/llm")["metadata"]["annotations"]
    assert on.world.workloads[0].state is nouns.SimState.running


@pytest.mark.parametrize("fault", [nouns.Fault.exporter_silent, nouns.Fault.node_lost], ids=str)
async def test_what_cannot_be_measured_is_not_paused(story: Story, fault: nouns.Fault) -> None:
    story.deployment("ml/llm", busy="06:00-08:00")
    on = await story.begin()
    await story.go_on(stories.clock("08:10"))
    on.world.switch_on(fault, list(on.world.nodes))
    await story.until("10:00").sees_nothing()
    on.world.switch_off(fault)
    await story.at("11:30").sees("IdleNoticeSent llm", "ScaledToZero llm")


@pytest.mark.accepts("idle", 6)
async def test_counters_that_read_zero_on_a_busy_node_pause_nothing(story: Story) -> None:
    story.deployment("ml/llm", replicas=2, busy="06:00-20:00")
    story.deployment("ml/quiet", busy="06:00-07:00")
    on = await story.begin()
    on.world.switch_on(nouns.Fault.exporter_zero, list(on.world.nodes))
    await story.until("10:00").sees_nothing()
    assert on.cycle is not None
    assert on.cycle.plan is not None
    assert {each.verdict for each in on.cycle.plan.totals.verdicts} == {"unknown"}
    assert spec_of(story, "ml/llm")["replicas"] == 2


async def test_a_clock_that_jumps_decides_nothing_in_that_cycle(story: Story) -> None:
    story.deployment("ml/llm", busy="06:00-20:00")
    on = await story.begin()
    await story.go_on(stories.clock("07:00"))
    on.world.switch_on(nouns.Fault.clock_jump, amount=7200.0)
    cycle = await on.step()
    assert "clock jumped" in cycle.failure
    assert cycle.outcomes == ()
    await story.until("09:00").sees_nothing()


def not_paused(on: stage.Stage) -> set[str]:
    return {one.part.kind for one in on.world.workloads if one.state is not nouns.SimState.paused}


async def test_every_kind_is_paused_by_its_own_operator_and_comes_back_exactly(story: Story) -> None:
    """One idle workload of each kind: pods gone by what its own operator understands, then the very spec it had."""
    story.nodes = [nouns.SimNode(f"gpu-{number}") for number in range(8)]
    for kind in shapes.SHAPES:
        story.workload(kind, f"{kind.lower()}/thing-{kind.lower()}", group_size=2 if kind == "LeaderWorkerSet" else 1)
    on = await story.begin()
    before = specs_of(story)
    while not_paused(on) and on.world.now < stories.clock("12:00"):
        await on.step()
    assert not_paused(on) == set()
    for one in on.world.workloads:
        assert on.store.entries("", "Pod", one.part.namespace) == []
        story.annotate(f"{one.part.namespace}/{one.part.name}", one.part.kind, resume_requested="ada")
    await story.go_on(on.world.now + 30 * MINUTE)
    after = specs_of(story)
    assert [kind for kind in before if not holds(after[kind], before[kind])] == []
    assert {one.part.kind for one in on.world.workloads if one.state is not nouns.SimState.running} == set()


@pytest.mark.parametrize(
    ("seed", "faults"), [(1, []), (1, list(nouns.Fault)), (2, list(nouns.Fault))],
    ids=["1-well", "1-all-faults", "2-all-faults"],
)
async def test_no_law_is_broken_on_any_tick_of_a_day(
    tmp_path: pathlib.Path, seed: int, faults: list[nouns.Fault]
) -> None:
    made = cast.make_world(seed=seed, nodes=4, hours=12)
    stage.plan_faults(made, faults)
    reasons: set[str] = set()
    failures: list[str] = []
    async with stage.open_stage(made, tmp_path) as on:
        for _ in range(int(12 * 3600 / on.interval)):
            cycle = await on.step()
            failures += [cycle.failure] if cycle.failure else []
            headings = cycle.plan.totals.verdicts if cycle.plan else {}
            reasons |= {each.label for each in headings if each.verdict is decision.Verdict.unknown}
        assert on.broken == []
    assert sum(one.pauses for one in made.workloads) > 0
    assert any("clock jumped" in failure for failure in failures) == bool(faults)
    assert ({"ExporterDown", "NodeNotReady"} <= reasons) == bool(faults)


def find_kubectl() -> str | None:
    return shutil.which("kubectl") or next(map(str, filter(None, [build.find("kubectl")])), None)


async def kubectl(kubeconfig: pathlib.Path, *words: str) -> str:
    program = find_kubectl()
    assert program is not None
    environment = {"KUBECONFIG": str(kubeconfig), "HOME": str(kubeconfig.parent), "PATH": "/usr/bin:/bin"}
    running = await asyncio.create_subprocess_exec(
        program, *words, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await asyncio.wait_for(running.communicate(), 60)
    assert running.returncode == 0, said.decode()
    return said.decode()


@pytest.mark.skipif(find_kubectl() is None, reason="there is no kubectl on this machine")
async def test_kubectl_works_against_the_demo(story: Story, tmp_path: pathlib.Path) -> None:
    story.deployment("ml/llm", gpus=2, replicas=2, busy="06:00-20:00")
    story.workload("Notebook", "ml/pad", busy="06:00-20:00")
    on = await story.begin()
    await on.step()
    config = tmp_path / "product.kubeconfig"
    assert "llm" in await kubectl(config, "get", "deployments", "-A")
    assert "everything" in await kubectl(config, "get", "idlepolicies")
    assert "pad" in await kubectl(config, "get", "notebooks", "-n", "ml")
    assert "nvidia.com/gpu" in await kubectl(config, "describe", "pod", "-n", "ml", "llm-0")
    await kubectl(config, "scale", "deployment/llm", "-n", "ml", "--replicas=0")
    await on.pass_time(60.0)
    assert "llm-0" not in await kubectl(config, "get", "pods", "-n", "ml")
    await kubectl(config, "scale", "deployment/llm", "-n", "ml", "--replicas=2")
    await on.pass_time(300.0)
    assert "llm-0" in await kubectl(config, "get", "pods", "-n", "ml")
