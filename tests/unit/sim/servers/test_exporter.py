"""The pretend exporters: pages as dcgm-exporter writes them, read by the product's own reader."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import numpy as np
import pytest
import pytest_asyncio

from fallow.clients import exposition
from fallow.model.units import MINUTE
from fallow.sim.servers import dcgm, exporter
from fallow.sim.world import lives, nouns, world
from fallow.sim.world.lives import LifeSpan

SPAN = LifeSpan(0.0, MINUTE, 120)
METRICS = (
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_POWER_USAGE",
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
)


def make_world(mode: nouns.Mode = "whole", pods: int = 1) -> world.World:
    """One node; busy at 80 % in minute 1 only, from then on quiet."""
    part = nouns.Part("ml", "llm", replicas=pods, mode=mode)
    wanted = np.zeros((pods, SPAN.columns), np.uint8)
    wanted[:, 1] = 80
    return world.World([nouns.SimNode("gpu-1", gpus=2, mode=mode)], [part], wanted, SPAN)


def read(page: bytes) -> dict[str, list[tuple[dict[str, str], float]]]:
    reader = exposition.Reader(METRICS)
    reading = reader.begin(is_openmetrics=False)
    reading.feed(page)
    told = reading.end()
    found: dict[str, list[tuple[dict[str, str], float]]] = {name: [] for name in METRICS}
    for number, value in zip(told.numbers, told.values, strict=True):
        found[reader.series[number].metric].append((reader.series[number].labels, value))
    return found


def show(server: exporter.ExporterServer, here: world.World) -> dict[str, list[tuple[dict[str, str], float]]]:
    shown = server.measure(here.nodes["gpu-1"])
    assert shown is not None
    return read(dcgm.DcgmPage("gpu-1").render(shown))


def test_what_happened_between_two_reads_is_in_the_later_one_and_only_there() -> None:
    here = make_world()
    server = exporter.ExporterServer(here)
    here.advance(180.0)
    first = show(server, here)
    here.advance(60.0)
    second = show(server, here)
    held = [(labels["pod"], value) for labels, value in first["DCGM_FI_PROF_GR_ENGINE_ACTIVE"] if "pod" in labels]
    assert held == [("llm-0", 0.8)]
    assert {value for _, value in second["DCGM_FI_PROF_GR_ENGINE_ACTIVE"]} == {0.0}
    energy = [[value for _, value in page["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"]] for page in (first, second)]
    assert all(later > earlier for earlier, later in zip(*energy, strict=True))


def test_what_a_trace_does_not_know_is_no_line_and_no_zero() -> None:
    here = make_world()
    here.wanted[:, 3] = lives.NONE
    server, told = exporter.ExporterServer(here), list[list[float]]()
    for _ in range(5):
        here.advance(60.0)
        page = show(server, here)
        told.append([value for labels, value in page["DCGM_FI_PROF_GR_ENGINE_ACTIVE"] if "pod" in labels])
        free = [labels for labels, _ in page["DCGM_FI_PROF_GR_ENGINE_ACTIVE"] if "pod" not in labels]
        assert len(free) == 1, "the GPU that nobody holds is not concerned"
    assert told == [[0.8], [0.0], [], [0.0], [0.0]]


def test_whoever_asks_at_the_same_instant_is_shown_the_same() -> None:
    here = make_world()
    server = exporter.ExporterServer(here)
    here.advance(180.0)
    assert show(server, here) == show(server, here)


def test_labels_are_those_of_dcgm_exporter() -> None:
    here = make_world()
    here.advance(60.0)
    (labels, _), (free, _) = show(exporter.ExporterServer(here), here)["DCGM_FI_DEV_GPU_UTIL"]
    assert {"gpu", "UUID", "device", "modelName", "Hostname", "namespace", "pod", "container"} <= set(labels)
    assert (labels["Hostname"], labels["namespace"], labels["pod"]) == ("gpu-1", "ml", "llm-0")
    assert "pod" not in free


def test_a_mig_instance_has_its_own_lines_and_no_utilisation() -> None:
    here = make_world("mig", pods=2)
    here.advance(60.0)
    page = show(exporter.ExporterServer(here), here)
    assert page["DCGM_FI_DEV_GPU_UTIL"] == []
    held = [labels for labels, _ in page["DCGM_FI_PROF_GR_ENGINE_ACTIVE"] if "pod" in labels]
    assert {labels["GPU_I_PROFILE"] for labels in held} == {nouns.MIG_PROFILE}
    assert len({(labels["UUID"], labels["GPU_I_ID"]) for labels in held}) == 2


def test_pods_that_share_a_gpu_show_the_same_activity() -> None:
    here = make_world("time-sliced", pods=3)
    here.wanted[1:] = 0  # only the first of them works
    server = exporter.ExporterServer(here)
    here.advance(180.0)
    page = show(server, here)
    told = {labels["pod"]: value for labels, value in page["DCGM_FI_PROF_GR_ENGINE_ACTIVE"] if "pod" in labels}
    assert told == {"llm-0": 0.8, "llm-1": 0.0, "llm-2": 0.8}, "the second is on the GPU that was shared least"


@pytest.mark.parametrize("mode", ["time-sliced", "mps"])
def test_pods_that_share_a_gpu_fill_it_together(mode: str) -> None:
    here = make_world(mode, pods=4)
    here.wanted[0], here.wanted[2] = 30, 80
    here.wanted[1], here.wanted[3] = 20, 25
    server = exporter.ExporterServer(here)
    here.advance(180.0)
    page = show(server, here)
    told = {labels["pod"]: value for labels, value in page["DCGM_FI_PROF_GR_ENGINE_ACTIVE"] if "pod" in labels}
    assert told == pytest.approx({"llm-0": 1.0, "llm-2": 1.0, "llm-1": 0.45, "llm-3": 0.45})


def test_counters_that_lie_leave_utilisation_and_power_true() -> None:
    here = make_world()
    server = exporter.ExporterServer(here)
    here.switch_on(nouns.Fault.exporter_zero, ["gpu-1"])
    here.advance(180.0)
    page = show(server, here)
    assert {value for _, value in page["DCGM_FI_PROF_GR_ENGINE_ACTIVE"]} == {0.0}
    assert max(value for _, value in page["DCGM_FI_DEV_GPU_UTIL"]) == 80.0
    assert max(value for _, value in page["DCGM_FI_DEV_POWER_USAGE"]) > 0.5 * exporter.rate("NVIDIA-A100-SXM4-80GB")


def test_labels_are_escaped() -> None:
    page = dcgm.DcgmPage('no"de\\')
    shown = dcgm.make_values([dcgm.Hold(0, "GPU-1", "a\nb", "ml", "p")], [dcgm.HoldReading(0.5, 1.0, 9.0, 60.0, 1.0)])
    told = page.render(shown)
    ((labels, value),) = read(told)["DCGM_FI_PROF_GR_ENGINE_ACTIVE"]
    assert (labels["Hostname"], labels["modelName"], value) == ('no"de\\', "a\nb", 0.5)


@pytest_asyncio.fixture
async def served() -> AsyncIterator[tuple[world.World, str]]:
    here = make_world()
    server = exporter.ExporterServer(here)
    ports = await server.start()
    yield here, f"http://127.0.0.1:{ports['gpu-1']}/metrics"
    await server.stop()


@pytest.mark.parametrize("fault", [nouns.Fault.exporter_silent, nouns.Fault.node_lost], ids=str)
async def test_a_silent_exporter_gives_no_page(served: tuple[world.World, str], fault: nouns.Fault) -> None:
    here, url = served
    async with aiohttp.ClientSession() as http:
        async with http.get(url) as well:
            assert well.status == 200
            assert well.content_type == "text/plain"
        here.switch_on(fault, ["gpu-1"])
        async with http.get(url) as ill:
            assert ill.status == 503
