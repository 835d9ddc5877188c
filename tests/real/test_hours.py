"""An hour of the clock from a real Prometheus: means, energy with resets, whose it was, by its own engine."""

import msgspec
import pytest

from fallow.clients import errors
from fallow.clients.prometheus import auth, client
from fallow.model.units import HOUR
from fallow.model.usage import HourReading
from fallow.observe.usage import prometheus as eyes
from tests.real import history
from tests.unit.observe.usage.gpu_pods import held, node, nodes, pod

ENERGY = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
GR = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"


async def read(
    world: history.PrometheusWorld, hour: float, *, is_shared: bool = False
) -> dict[tuple[str, str], HourReading]:
    """By pod and GPU. `is_shared`: pods take turns on those of its node."""
    await world.start()
    labels = {"nvidia.com/gpu.replicas": "2"} if is_shared else {}
    on = nodes(msgspec.structs.replace(node("gpu-1", shared=is_shared), labels=labels))
    async with client.Prometheus(world.url, login=auth.Login(method="none"), backoff=0.001) as prometheus:
        source = eyes.PrometheusSource(prometheus)
        found = await source.read_hour(held((pod("llm"),), on), hour, world.now)
    return {(one.pod, one.gpu): one for one in found}


def labels(number: int, of: str = "", **more: str) -> dict[str, str]:
    named = {"exported_pod": of, "exported_namespace": "ml"} if of else {}
    return {"UUID": f"GPU-{number}", "gpu": str(number), "Hostname": "gpu-1", "job": "dcgm", **named, **more}


@pytest.mark.accepts("cost", 11)
async def test_an_hour_is_read_after_it_with_who_held_the_gpus_then(prometheus: history.PrometheusWorld) -> None:
    hour = prometheus.now // HOUR * HOUR - 2 * HOUR
    minutes = [hour + 30.0 + 60.0 * at for at in range(60)]
    late = [at + HOUR for at in minutes]
    half = [0.5] * 30 + [0.0] * 30
    prometheus.remember(GR, labels(0, "llm"), list(zip(minutes, half, strict=True)) + [(at, 1.0) for at in late])
    prometheus.remember(GR, labels(1, "gone"), [(at, 0.8) for at in minutes[:30]])  # it ended at half past
    prometheus.remember(GR, labels(1), [(at, 0.0) for at in minutes[30:]])
    grown = [1000.0 * at for at in range(40)] + [500.0 * at for at in range(20)]  # the driver was loaded anew
    prometheus.remember(ENERGY, labels(0, "llm"), list(zip(minutes, grown, strict=True)))
    prometheus.remember("DCGM_FI_DEV_POWER_USAGE", labels(1), [(at, 60.0) for at in minutes[30:]])
    found = await read(prometheus, hour)
    assert set(found) == {("llm", "GPU-0"), ("gone", "GPU-1"), ("", "GPU-1")}
    assert found["llm", "GPU-0"].use == pytest.approx(0.25)
    assert found["llm", "GPU-0"].energy_mj == pytest.approx(39_000 + 9_500, rel=0.03)  # as far as it extrapolates
    assert found["gone", "GPU-1"].use == pytest.approx(0.8)
    assert found["", "GPU-1"].watts == pytest.approx(60.0)
    assert {one.node for one in found.values()} == {"gpu-1"}


async def test_what_processes_of_a_pod_did_is_told_apart_and_what_is_no_reading_was_not_measured(
    prometheus: history.PrometheusWorld,
) -> None:
    hour = prometheus.now // HOUR * HOUR - HOUR
    minutes = [hour + 30.0 + 60.0 * at for at in range(60)]
    own = {"workload_pod": "llm", "workload_namespace": "ml", "uuid": "GPU-0", "node": "gpu-1", "scope": "process"}
    prometheus.remember("gpu_idle_pod_gpu_utilization_percent", own, [(at, 20.0) for at in minutes])
    prometheus.remember("DCGM_FI_DEV_GPU_UTIL", labels(0, "llm"), [(at, 90.0) for at in minutes])
    prometheus.remember("DCGM_FI_DEV_GPU_UTIL", labels(1, "blank"), [(at, 2147483632.0) for at in minutes])
    found = await read(prometheus, hour)
    assert set(found) == {("llm", "GPU-0")}
    assert found["llm", "GPU-0"].use == pytest.approx(0.9)


@pytest.mark.parametrize("is_shared", [True, False], ids=["in parts", "whole"])
async def test_what_a_gpu_draws_at_rest_is_learned_where_somebody_holds_a_part_of_it(
    prometheus: history.PrometheusWorld, is_shared: bool,
) -> None:
    hour = prometheus.now // HOUR * HOUR - HOUR
    day = [hour + 30.0 + 60.0 * at - 23 * HOUR for at in range(24 * 60)]
    drawn = [(at, 45.0 if number < 300 else 200.0) for number, at in enumerate(day)]
    prometheus.remember("DCGM_FI_DEV_POWER_USAGE", labels(0, "llm"), drawn)
    prometheus.remember("DCGM_FI_DEV_POWER_USAGE", labels(1), drawn[-60:])  # of no day
    prometheus.remember(GR, labels(0, "llm"), [(at, 0.5) for at in day[-60:]])
    found = await read(prometheus, hour, is_shared=is_shared)
    assert found["llm", "GPU-0"].watts == pytest.approx(200.0)
    assert found["llm", "GPU-0"].floor_watts == (45.0 if is_shared else None)
    assert found["", "GPU-1"].floor_watts is None


async def test_a_server_that_does_not_answer_raises_and_is_asked_again_later(
    prometheus: history.PrometheusWorld,
) -> None:
    async with client.Prometheus("http://127.0.0.1:9", login=auth.Login(method="none"), backoff=0.001) as dead:
        with pytest.raises(errors.ClientError):
            await eyes.PrometheusSource(dead).read_hour(held((pod("llm"),)), 0.0, prometheus.now)
