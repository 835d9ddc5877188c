"""The dashboards of GPUs and of our own health on a real Prometheus that holds hours of a pretend day: what the
exporters and the controller showed, minute by minute. Every panel has something to show, and says what our API says."""

from __future__ import annotations

import json
import pathlib
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from prometheus_client import parser

from fallow.model import decision
from fallow.model.units import HOUR, MINUTE
from fallow.sim import cast, stage
from fallow.sim.world.world import SimState
from tests import ROOT
from tests.real import history

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOURS = 3
BOARDS = {name: json.loads((ROOT / "dashboards" / f"{name}.json").read_text()) for name in
          ("gpu-dashboard", "fallow-health")}
# What this cluster has no part of: nobody asks for reviews or places, no policy scales, nobody regretted anything.
QUIET = {
    "Undone", "Brakes of scaling", "Reviews of pods", "A review takes", "A scheduler's question takes", "Regrets",
    "Notices", "Books are behind by",
}


class Samples:
    """Of every series what was scraped, and when."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, tuple[tuple[str, str], ...]], list[tuple[float, float]]] = {}

    def add(self, name: str, labels: dict[str, str], at: float, value: float) -> None:
        self.kept.setdefault((name, tuple(sorted(labels.items()))), []).append((at, value))

    def scrape(self, text: str, at: float) -> None:
        for family in parser.text_string_to_metric_families(text):
            for sample in family.samples:
                self.add(sample.name, {**sample.labels, "job": "fallow", "instance": "one:8080"}, at, sample.value)

    def look(self, on: stage.Stage) -> None:
        """What kube-state-metrics shows of pods, and what of GPUs the pretend exporters leave out."""
        at = on.world.now
        for workload in on.world.workloads:
            for pod in workload.pods:
                about = {"namespace": workload.part.namespace, "pod": pod.name}
                asked = {**about, "resource": "nvidia_com_gpu", "unit": "integer", "container": "main"}
                self.add("kube_pod_container_resource_requests", asked, at, float(workload.part.gpus))
                self.add("kube_pod_status_phase", {**about, "phase": "Running"}, at, 1.0)
        for node in on.world.nodes:
            labels = {"Hostname": node, "UUID": f"GPU-{node}-0", "gpu": "0"}
            self.add("DCGM_FI_DEV_GPU_TEMP", labels, at, 61.0)
            self.add("DCGM_FI_DEV_XID_ERRORS", labels, at, 79.0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def played(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Any]:
    folder: pathlib.Path = tmp_path_factory.mktemp("boards")
    made = cast.make_world(seed=4, nodes=10, hours=HOURS).moved(time.time() // MINUTE * MINUTE - HOURS * HOUR)
    seen = Samples()
    async with stage.open_stage(made, folder, outside=stage.Outside(lambda: made.now)) as on:
        while made.now < made.span.start + HOURS * HOUR - 2 * MINUTE:
            await on.step()
            seen.look(on)
            seen.scrape(on.product.loop.metrics.text().decode(), made.now)
        real = history.PrometheusWorld(folder, now=made.now)
        assert on.prometheus is not None
        for one in on.prometheus.kept.all():
            real.remember(one.metric, one.labels, list(zip(one.times, one.values, strict=True)))
        for (name, labels), samples in seen.kept.items():
            real.remember(name, dict(labels), samples)
        await real.start()
        yield on, real
        await real.stop()


def queries(board: str) -> dict[tuple[str, int], str]:
    return {
        (panel["title"], at): target["expr"].replace("$__range", f"{HOURS}h")
        for panel in BOARDS[board]["panels"] for at, target in enumerate(panel["targets"])
    }


async def ask(real: history.PrometheusWorld, board: str) -> dict[tuple[str, int], list[Any]]:
    return {key: await real.query(query, real.now) for key, query in queries(board).items()}


def only(rows: list[Any]) -> float:
    [row] = rows
    return float(row["value"][1])


@pytest.mark.parametrize("board", BOARDS)
async def test_every_panel_has_something_to_show(played: Any, board: str) -> None:
    found = await ask(played[1], board)
    assert {title for (title, _), rows in found.items() if not rows} <= QUIET


async def test_the_board_says_what_the_controller_says(played: Any) -> None:
    on, real = played
    found = await ask(real, "gpu-dashboard")
    plan = on.cycle.plan
    idle = [index for index, each in enumerate(plan.findings) if each.verdict is decision.Verdict.idle]
    assert only(found["Idle workloads", 0]) == len(idle) > 0
    assert only(found["Idle GPUs", 0]) == sum(plan.findings[index].idle_gpus for index in idle)
    paused = sum(workload.state is SimState.paused for workload in on.world.workloads)
    assert only(found["Paused workloads", 0]) == paused > 0
    assert sum(float(row["value"][1]) for row in found["Scale-downs of the last hour", 0]) >= 1
    assert only(found["Age of the last decision", 0]) == pytest.approx(0.0, abs=1.0)


async def test_every_gpu_is_counted_once(played: Any) -> None:
    """Shares and instances of one GPU are one, also where several series tell of it; the parts make up the whole."""
    on, real = played
    found = await ask(real, "gpu-dashboard")
    total = only(found["GPUs", 0])
    uuids = {one.labels["UUID"] for one in on.prometheus.kept.of("DCGM_FI_DEV_FB_USED")
             if one.times[-1] > real.now - 5 * MINUTE}
    assert total == len(uuids)
    assert only(found["Memory in use", 0]) + only(found["Memory free", 0]) == total
    states = [only(found[title, 0]) for title in ("Engine idle", "Engine active", "No data")]
    assert sum(states) == total
    assert states[0] > 0
    assert states[1] > 0


async def test_an_idle_workload_is_one_whose_every_gpu_is_idle_and_which_still_asks(played: Any) -> None:
    on, real = played
    rows = (await ask(real, "gpu-dashboard"))["Idle workloads: every GPU idle, still requesting", 0]
    told = {(row["metric"]["namespace"], row["metric"]["pod"]) for row in rows}
    running = {(each.part.namespace, pod.name) for each in on.world.workloads for pod in each.pods}
    assert told
    assert told <= running, "one that was paused is gone"
