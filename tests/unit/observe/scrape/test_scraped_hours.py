"""An hour of the clock from what was scraped: means and energy by pod, as a Prometheus would tell them."""

import pytest
from tests.unit.observe.scrape.test_source import NOW, line, scene
from tests.unit.observe.usage.gpu_pods import held, pod

from fallow.model.units import HOUR

ENERGY, GR = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
OWN = (
    'gpu_idle_pod_gpu_utilization_percent{{uuid="GPU-0",workload_pod="llm",workload_namespace="ml",scope="process"}}'
    " {}\n"
)


async def test_an_hour_of_minutes_by_pod_and_gpu() -> None:
    pages = {"gpu-1": ""}
    async with scene(pages) as running:
        for minute in range(70):
            busy, power = (0.5 if minute < 30 else 0.0), 100.0 if minute < 60 else 900.0
            pages["gpu-1"] = (
                line(GR, busy) + line(ENERGY, 1000 * minute) + OWN.format(10)
                + line("DCGM_FI_DEV_POWER_USAGE", power, 1, name="", namespace="")
            )
            await running.source.scrape(NOW + 60.0 * minute)
        found = await running.source.read_hour(held((pod("llm"),), running.nodes), NOW, NOW + 70 * 60.0)
    by_gpu = {(one.pod, one.gpu): one for one in found}
    assert set(by_gpu) == {("llm", "GPU-0"), ("", "GPU-1")}
    mine = by_gpu["llm", "GPU-0"]
    assert (mine.use, mine.own_use) == (pytest.approx(0.25), pytest.approx(0.1))
    assert mine.energy_mj == pytest.approx(59_000, rel=0.001)
    assert by_gpu["", "GPU-1"].watts == pytest.approx(100.0)
    assert NOW % HOUR == 0
