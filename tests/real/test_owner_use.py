"""What owners used in seven days, by the real engine: the highest counts, and only exporters that are believed."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest

from fallow.clients.prometheus import auth, client
from fallow.model.seen import Known
from fallow.model.sharing import OwnerUse
from fallow.observe.usage import owning
from tests.real import history

HOURS = 30
EVERY = 120.0
SM = "DCGM_FI_PROF_SM_ACTIVE"
BELIEVED = owning.UseWords(exporters="gpu-operator|monitoring")


def owned(name: str, owner: str = "u-1", hours: float = HOURS) -> owning.OwnedPod:
    return owning.OwnedPod("ml", name, owner, time.time() - hours * 3600)


def measure(
    world: history.PrometheusWorld, pod: str, board: int, *, memory: float, busy: float, hours: float = HOURS,
    namespace: str = "ml", until: float = 0.0,
) -> None:
    """`until`: so many hours ago."""
    world.dcgm_gpu(
        "gpu-1", board, pod=pod, namespace=namespace, gr_engine=busy, gpu_util=busy * 100, memory_used=memory,
        more={SM: busy / 2}, minutes=hours * 60, every=EVERY, until=world.now - until * 3600,
    )


@pytest.fixture
async def ask(prometheus: history.PrometheusWorld) -> AsyncIterator[client.Prometheus]:
    measure(prometheus, "llm-0", 0, memory=6000, busy=0.2)
    measure(prometheus, "llm-1", 1, memory=7000, busy=0.1)
    measure(prometheus, "llm-0", 2, memory=90_000, busy=0.9, namespace="other")  # somebody else's pod of that name
    measure(prometheus, "half", 3, memory=1000, busy=0.1, hours=HOURS / 2)
    measure(prometheus, "late", 4, memory=30_000, busy=0.4, hours=2)
    measure(prometheus, "again-0", 5, memory=2000, busy=0.1, hours=90, until=26)  # of another pod with that name
    for name in ("DCGM_FI_DEV_FB_USED", "DCGM_FI_PROF_GR_ENGINE_ACTIVE"):
        labels = {"exported_namespace": "ml", "exported_pod": "forged", "namespace": "tenant", "pod": "liar"}
        prometheus.series(name, labels, constant=0.001, minutes=HOURS * 60, every=EVERY)
    await prometheus.start()
    async with client.Prometheus(prometheus.url, login=auth.Login(method="none")) as asked:
        yield asked


async def test_of_several_pods_the_highest_counts_and_of_coverage_the_lowest(ask: client.Prometheus) -> None:
    pods = [
        owned("llm-0"), owned("llm-1"), owned("half", "u-2"), owned("young", "u-3", hours=3), owned("forged", "u-4"),
    ]
    found = await owning.read(ask, pods, BELIEVED, time.time())
    assert set(found) == {"u-1", "u-2", "u-4"}  # who has not run for a day is not known
    use = found["u-1"]
    assert (use.peak_memory, use.mean, use.p95) == (7000, pytest.approx(0.2), pytest.approx(0.1))
    assert use.coverage > 0.95
    assert isinstance(use.behaviour, Known)
    assert (use.behaviour.value.deviation, use.behaviour.value.idle) == (pytest.approx(0.0, abs=1e-6), 0.0)
    assert found["u-2"].coverage == pytest.approx(0.5, abs=0.05)
    assert found["u-4"] == OwnerUse(coverage=0.0)


async def test_who_trusts_all_exporters_hears_them_too(ask: client.Prometheus) -> None:
    found = await owning.read(ask, [owned("forged", "u-4")], owning.UseWords(), time.time())
    assert (found["u-4"].peak_memory, found["u-4"].coverage > 0.9) == (1, True)


async def test_a_young_pod_that_takes_more_raises_what_its_owner_needs(ask: client.Prometheus) -> None:
    young = [owned("late", hours=2), owned("waits", hours=1), owned("ahead", hours=-1)]  # the last two not measured
    found = (await owning.read(ask, [owned("llm-0"), *young], BELIEVED, time.time()))["u-1"]
    assert (found.peak_memory, found.mean, found.p95) == (30_000, pytest.approx(0.4), pytest.approx(0.2))
    assert found.coverage > 0.95


async def test_what_was_measured_of_another_pod_of_that_name_does_not_count_as_its_own(ask: client.Prometheus) -> None:
    found = await owning.read(ask, [owned("again-0", hours=25)], BELIEVED, time.time())
    assert found["u-1"].coverage == 0
