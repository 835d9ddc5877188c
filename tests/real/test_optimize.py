"""`fallow optimize` by the real engine of Prometheus: on a real control plane as it is typed, and on a real trace."""

from __future__ import annotations

import collections
import csv
import gzip
import json
import time

import pytest

from fallow.clients.prometheus import auth, client
from fallow.decide import sharing
from fallow.doors.cli import optimize, pasts
from fallow.model import cluster, gpus
from fallow.model.classes import WorkClass
from fallow.model.share_advice import AdviceKind, ShareFacts
from fallow.observe.usage import owning, share_use
from fallow.sim.traces import published
from fallow.wiring import optimizing
from tests.real import cluster as clusters
from tests.real import history, scene

TOTAL = 81_559.0  # MiB that an H100 of 80 GB shows
FREE, SM = "DCGM_FI_DEV_FB_FREE", "DCGM_FI_PROF_SM_ACTIVE"
EVERY = 57


def read_trace() -> dict[str, list[tuple[int, float, float]]]:
    """By pod: seconds, how busy, MiB."""
    folder, found = pasts.traces_folder(), collections.defaultdict(list)
    if folder is None:
        pytest.skip("the traces are not here (FALLOW_TRACES)")
    with gzip.open(folder / published.GENTD26, "rt") as rows:
        for row in csv.DictReader(rows):
            if row["duty_percent"] and row["memory_used_bytes"]:
                values = float(row["duty_percent"]) / 100, float(row["memory_used_bytes"]) / 2**20
                found[row["pod"]].append((int(row["timestamp"]), *values))
    return dict(found)


def replay(world: history.PrometheusWorld, trace: dict[str, list[tuple[int, float, float]]]) -> None:
    """As it was, and its end is now; who ended before is not seen now."""
    end = max(at for samples in trace.values() for at, _, _ in samples)
    for board, (pod, samples) in enumerate(sorted(trace.items())):
        last = (end - samples[-1][0]) // EVERY
        known = {(end - at) // EVERY: (busy, used) for at, busy, used in samples}
        steps = range(max(known), last - 1, -1)
        busy = [known[step][0] if step in known else None for step in steps]
        used = [known[step][1] if step in known else None for step in steps]
        free = [None if each is None else TOTAL - each for each in used]
        world.dcgm_gpu(
            "gpu-1", board, pod=pod, namespace="gentd26", gr_engine=busy, gpu_util=None, power=None, memory_used=used,
            more={FREE: free, SM: busy}, every=EVERY, until=world.now - last * EVERY,
        )


@pytest.mark.accepts("packing", 23)
async def test_on_a_real_trace_every_pod_is_listed_and_none_gets_less_than_it_used(
    prometheus: history.PrometheusWorld,
) -> None:
    trace = read_trace()
    replay(prometheus, trace)
    await prometheus.start()
    words = owning.UseWords(exporters="gpu-operator|monitoring")
    async with client.Prometheus(prometheus.url, login=auth.Login(method="none")) as asked:
        used = await share_use.read(asked, sorted(trace), words, time.time(), 600.0)
    model = gpus.find("NVIDIA H100 80GB HBM3")
    lines = []
    for pod in sorted(trace):
        facts = ShareFacts(
            work=WorkClass.inference, gpus=1.0, each=1, use=sharing.join_uses([used["gentd26", pod]]), model=model,
            per_hour=2.0, prices={name: 2.0 if name == "H100-80GB" else 1.0 for name in gpus.SPEEDS},
        )
        ref = cluster.Ref("", "v1", "Pod", "gentd26", pod, pod)
        lines.append(optimizing.AdvisedWorkload(
            ref=ref, facts=facts, advice=sharing.advise(facts), wasted_gpu_hours=None, currency="USD"
        ))
    page = optimize.make_page(lines, 0.0)
    assert (len(trace), len(page.lines)) == (77, 77)
    for line in page.lines:
        peak = max(used for _, _, used in trace[line.workload.removeprefix("Pod/")])
        assert line.share * TOTAL >= peak
        is_unknown = line.recommendation == AdviceKind.unknown
        assert (line.coverage < 0.8) is is_unknown
        assert (line.savings_per_month is None) is (line.share == 1.0 and not line.model)
        if line.model:
            other = gpus.find(line.model)
            assert other is not None
            assert other.memory_gib * 1024 >= peak
    ways = collections.Counter(line.recommendation for line in page.lines)
    assert ways["MIG"] + ways["MPS"] >= 5  # most are as busy at times as a whole GPU can be
    assert page.unknown == ways["unknown"] < 25  # who had ended before the end of the trace
    assert page.savings_per_month > 0
    assert ways["other GPU"] > 0


async def test_two_instances_of_one_board_in_one_pod_are_both_counted(prometheus: history.PrometheusWorld) -> None:
    """The exporter names them by the board's UUID, each with a number of its own."""
    for number, used in ((1, 2000.0), (2, 4000.0)):
        prometheus.dcgm_gpu(
            "gpu-1", 0, pod="cut", namespace="ml", gr_engine=0.1, gpu_util=None, power=None, memory_used=used,
            more={FREE: 10_000 - used}, mig=(number, "1g.10gb"),
        )
    await prometheus.start()
    words = owning.UseWords(exporters="gpu-operator|monitoring")
    async with client.Prometheus(prometheus.url, login=auth.Login(method="none")) as asked:
        use = (await share_use.read(asked, ["cut"], words, time.time(), 600.0))["ml", "cut"]
    assert (use.total, use.peak, use.memory) == (10_000.0, 4000.0, pytest.approx(0.3))


async def test_gpus_of_a_pod_that_it_never_touched_are_counted_and_what_was_not_measured_is_none(
    prometheus: history.PrometheusWorld,
) -> None:
    """The third of `eight` holds a model and computes nothing, the fourth was busy once, the fifth is not exported."""
    for board, (pod, busy, held, more) in enumerate((
        ("eight", 0.9, 40_000.0, {}), ("eight", 0.0, 3.0, {}), ("eight", 0.0, 40_000.0, {}),
        ("eight", [0.0] * 60 + [0.5] + [0.0] * 59, 3.0, {}), ("none", 0.9, 5.0, {}),
        ("past", 0.0, 3.0, {"until": 1800}), ("twice", 0.0, 3.0, {}), ("twice", 0.9, 3.0, {}),
    )):
        until = prometheus.now - more.get("until", 0)
        prometheus.dcgm_gpu("gpu-1", board, pod=pod, namespace="ml", gr_engine=busy, gpu_util=None, power=None,
                            memory_used=held, more={FREE: TOTAL - held}, minutes=120, every=60, until=until)
    for node in ("gpu-1", "gpu-2"):  # an exporter that is made anew shows its GPU under another name
        prometheus.dcgm_gpu(node, 9, pod="anew", namespace="ml", uuid="GPU-one", gpu_util=None, power=None,
                            memory_used=3.0, more={FREE: TOTAL - 3.0}, minutes=120, every=60)
    words = owning.UseWords(exporters="gpu-operator|monitoring")
    await prometheus.start()
    pods = ["anew", "eight", "none", "past", "twice"]
    async with client.Prometheus(prometheus.url, login=auth.Login(method="none")) as asked:
        used = await share_use.read(asked, pods, words, time.time(), 600.0)
    found = {pod: use.unused for (_, pod), use in used.items()}
    assert found == {"anew": 1, "eight": 1, "none": None, "past": None, "twice": 1}


@pytest.mark.accepts("packing", 23)
async def test_as_it_is_typed_on_a_real_control_plane(
    cluster: clusters.Cluster, prometheus: history.PrometheusWorld
) -> None:
    stage = await scene.Scene(cluster, prometheus).prepare()
    for name, busy, minutes in (("small", 0.1, 90), ("busy", 0.9, 90)):
        (pod,) = await stage.run(clusters.replicated("apps/v1", "Deployment", name, 1, 1))
        stage.measure(pod, busy, memory_used=7000.0, more={FREE: TOTAL - 7000, SM: busy}, minutes=minutes)
    (half,) = await stage.run(clusters.replicated("apps/v1", "Deployment", "half", 1, 1))
    stage.measure(half, 0.1, more={FREE: 1000.0}, minutes=30, until=prometheus.now - 420)  # covered: half
    await stage.begin()
    here = ("optimize", "-n", stage.namespace)
    page = json.loads((await stage.type("fallow", *here, "-o", "json", "--price", "H100-80GB-HBM3=2.00")).out)
    lines = {line["workload"]: line for line in page["lines"]}
    assert set(lines) == {"Deployment/small", "Deployment/half"}
    small, unknown = lines["Deployment/small"], lines["Deployment/half"]
    assert (small["recommendation"], small["confidence"], small["share"]) == ("MIG", "low", 0.125)
    assert small["savingsPerMonth"] == pytest.approx(2.0 * 7 / 8 * 730)
    assert small["wasteScore"] == pytest.approx(60 * 0.9 + 40 * (1 - 7000 / TOTAL), abs=0.1)
    assert unknown["coverage"] == pytest.approx(0.5, abs=0.11)
    assert (unknown["recommendation"], unknown["wasteScore"], unknown["savingsPerMonth"]) == ("unknown", None, None)
    shown = (await stage.type("gpu-autoscaler", *here)).out
    assert shown.split()[: len(optimize.COLUMNS)] == list(optimize.COLUMNS)
    assert (await stage.type("fallow", *here, "-o", "csv")).out.count("\n") == 3
    assert (await stage.type("fallow", *here, "--lookback", "0", code=2)).err
    gone = await stage.type("fallow", *here, PROMETHEUS_URL="", code=4)
    assert "--prometheus-url" in gone.err
