"""The dashboards of GPUs and of our own health on a real Prometheus that holds hours of a pretend day: what the
exporters and the controller showed, minute by minute. Every panel has something to show, and says what our API says."""

from __future__ import annotations

import collections
import contextlib
import functools
import json
import pathlib
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from prometheus_client import parser

from fallow import names
from fallow.doors.cli import demo_dashboard
from fallow.model import decision, units
from fallow.model.units import HOUR, MINUTE
from fallow.sim import cast, stage
from fallow.sim.servers import boxes
from fallow.sim.servers import store as stores
from fallow.sim.world import world as worlds
from fallow.sim.world.world import SimState
from tests import ROOT
from tests.real import history

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOURS = 3
BOARDS = {name: json.loads((ROOT / "dashboards" / f"{name}.json").read_text()) for name in
          ("gpu-dashboard", "fallow-health")}
# What this cluster has no part of: nobody asks for reviews or places, and no policy scales.
QUIET = {"Brakes of scaling", "Reviews of pods", "A review takes", "A scheduler's question takes"}


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


@contextlib.asynccontextmanager
async def open_demo(made: worlds.World, folder: pathlib.Path) -> AsyncIterator[tuple[stage.Stage, str]]:
    """With owners who are told, books, and the API at that address."""
    read = boxes.Boxes(lambda: made.clock)
    async with contextlib.AsyncExitStack() as stack:
        await read.start()
        stack.push_async_callback(read.stop)
        listener = stack.enter_context(contextlib.closing(demo_dashboard.listen(0)))
        on = await stack.enter_async_context(stage.open_stage(
            made, folder, flags=demo_dashboard.flags(listener, read), outside=stage.Outside(lambda: made.now),
            policies=stage.make_policies(functools.partial(boxes.channels, read)),
        ))
        await stack.enter_async_context(demo_dashboard.serving(on, read, listener))
        yield on, demo_dashboard.link_to(listener)


def undo(on: stage.Stage, done: set[str]) -> None:
    """Somebody wants their workload back as soon as it is paused: one by hand, one by asking us."""
    paused = (each for each in on.world.workloads if each.state is SimState.paused and each.part.kind in BACK)
    for part in (each.part for each in paused):
        if part.kind not in done:
            done.add(part.kind)
            key = stores.Key("apps", part.kind, part.namespace, part.name)
            on.store.patch(key, BACK[part.kind], stores.Writer(manager="kubectl-edit"))


BACK = {
    "Deployment": {"spec": {"replicas": 1}},
    "StatefulSet": {"metadata": {"annotations": {names.RESUME_REQUESTED: "true"}}},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def played(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Any]:
    folder: pathlib.Path = tmp_path_factory.mktemp("boards")
    made = cast.make_world(seed=4, nodes=10, hours=HOURS).moved(time.time() // MINUTE * MINUTE - HOURS * HOUR)
    seen, undone = Samples(), set[str]()
    async with open_demo(made, folder) as (on, address):
        while made.now < made.span.start + HOURS * HOUR - 2 * MINUTE:
            await on.step()
            undo(on, undone)
            seen.look(on)
            seen.scrape(on.product.loop.metrics.text().decode(), made.now)
        real = history.PrometheusWorld(folder, now=made.now)
        assert on.prometheus is not None
        for one in on.prometheus.kept.all():
            real.remember(one.metric, one.labels, list(zip(one.times, one.values, strict=True)))
        for (name, labels), samples in seen.kept.items():
            real.remember(name, dict(labels), samples)
        await real.start()
        yield on, real, address
        await real.stop()


def queries(board: str) -> dict[tuple[str, int], str]:
    return {
        (panel["title"], at): target["expr"].replace("$__range", f"{HOURS}h")
        for panel in BOARDS[board]["panels"] for at, target in enumerate(panel["targets"])
    }


async def ask(real: history.PrometheusWorld, board: str, later: float = 1.0) -> dict[tuple[str, int], list[Any]]:
    """A second after the last scrape, so that what was gone by then is not looked back to. A quantile of nothing is
    nothing."""
    found = {key: await real.query(query, real.now + later) for key, query in queries(board).items()}
    return {key: [row for row in rows if row["value"][1] != "NaN"] for key, rows in found.items()}


def by(label: str, rows: list[Any]) -> dict[str, float]:
    return {row["metric"][label]: float(row["value"][1]) for row in rows}


async def read(address: str, path: str) -> Any:
    async with aiohttp.ClientSession() as session, session.get(f"{address}api/v1/{path}") as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


def only(rows: list[Any]) -> float:
    [row] = rows
    return float(row["value"][1])


@pytest.mark.parametrize("board", BOARDS)
async def test_every_panel_has_something_to_show(played: Any, board: str) -> None:
    found = await ask(played[1], board, later=0.0)  # rates need two scrapes
    assert {title for (title, _), rows in found.items() if not rows} == QUIET & {title for title, _ in found}


async def test_the_board_says_what_the_controller_says(played: Any) -> None:
    on, real, _ = played
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
    on, real, _ = played
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
    on, real, _ = played
    rows = (await ask(real, "gpu-dashboard"))["Idle workloads: every GPU idle, still requesting", 0]
    told = {(row["metric"]["namespace"], row["metric"]["pod"]) for row in rows}
    running = {(each.part.namespace, pod.name) for each in on.world.workloads for pod in each.pods}
    assert told
    assert told <= running, "one that was paused is gone"


async def test_the_board_of_gpus_says_what_the_api_says(played: Any) -> None:
    _, real, address = played
    found = await ask(real, "gpu-dashboard")
    page, rows = await read(address, "overview"), (await read(address, "workloads"))["items"]
    assert only(found["GPUs", 0]) == page["gpus"]["total"] > 0
    assert only(found["Idle workloads", 0]) == page["counts"]["idle"] > 0
    assert only(found["Idle GPUs", 0]) == sum(row["idleInstances"] for row in rows if row["verdict"] == "idle") > 0
    assert only(found["Paused workloads", 0]) == page["paused"]["workloads"] > 0
    verdicts = collections.Counter(row["verdict"] for row in rows)
    assert by("verdict", found["Verdicts", 0]) == verdicts
    hour = await list_paused(address, real.now - HOUR)
    told = {tuple(row["metric"][name] for name in ("kind", "namespace", "name"))
            for row in found["Scale-downs of the last hour", 0]}
    assert told == hour
    regrets = (await read(address, "regrets"))["byPolicy"]
    assert sum(by("policy", found["Regrets", 0]).values()) == sum(each["regrets"] for each in regrets) == 1


async def list_paused(address: str, since: float) -> set[tuple[str, str, str]]:
    items = (await read(address, "decisions?limit=200"))["items"]
    return {(each["workload"]["kind"], each["workload"]["namespace"], each["workload"]["name"]) for each in items
            if each["type"] == "paused" and (units.read_instant(each["at"]) or 0.0) > since}


async def test_the_board_of_health_says_what_the_api_says(played: Any) -> None:
    _, real, address = played
    found = await ask(real, "fallow-health")
    page, nodes = await read(address, "overview"), await read(address, "nodes")
    assert only(found["Leaders", 0]) == page["isLeader"] is True
    assert only(found["Frozen", 0]) == (page["frozen"] is not None)
    assert only(found["Sources that answer", 0]) == all(each["state"] == "ok" for each in nodes["sources"])
    asked = real.now + 1
    assert only(found["Age of the last decision", 0]) == asked - units.read_instant(page["asOf"])
    books = await read(address, "cost/summary")
    assert only(found["Books are behind by", 0]) == pytest.approx(asked - units.read_instant(books["asOf"]), abs=1)
    assert page["failure"] is None
    assert set(by("result", found["Cycles", 0])) == {"success"}
    pauses = sum(float(row["value"][1]) for row in found["Actions", 0]
                 if (row["metric"]["action"], row["metric"]["result"]) == ("pause", "done"))
    paused = await list_paused(address, real.now - HOUR)
    assert pauses == pytest.approx(len(paused), rel=0.2), "an increase of an hour is Prometheus's guess"
    assert set(by("channel", found["Notices", 0])) >= {"slack", "email"}
    assert by("kind", found["Undone", 0]) == {"Deployment": 1}
