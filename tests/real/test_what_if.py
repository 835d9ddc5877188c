"""`fallow backtest` and `fallow tune` over a real Prometheus: the same figures as the same data read as a trace.

Three GPUs in pods' hands, a sample each minute. Prometheus gets the samples as dcgm-exporter's series. The minutes that
the product looked at, which are those before it was asked, are then written as a trace, and the product is asked again.
"""

from __future__ import annotations

import json
import os
import pathlib
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import yaml

from fallow.model.policies import idle_crd
from tests.real import cluster as clusters
from tests.real import history, product

MINUTE, HOURS, SPARE = 60, 6, 15  # minutes before and after, so that it does not matter when the product looks
MODEL = "NVIDIA-A100-SXM4-80GB"


def percent(pod: str, minute: int) -> int | None:
    """What each GPU did in the minute before this one since 1970; None: not scraped."""
    match pod:
        case "busy":
            return 80
        case "naps":  # quiet for 70 minutes of 100
            return 35 if minute % 100 < 30 else 0
        case _:  # quiet for 25 of 40, with holes
            return None if minute % 97 in (5, 6) else 60 if minute % 40 < 15 else 0


PODS = ("busy", "naps", "gaps")


@pytest_asyncio.fixture
async def prometheus(tmp_path: pathlib.Path) -> AsyncIterator[history.PrometheusWorld]:
    last = int(time.time() // MINUTE) + SPARE
    # Within a minute: one on its edge belongs to both sides.
    made = history.PrometheusWorld(tmp_path, now=last * MINUTE - 30.0)
    minutes = range(last - HOURS * 60 - 2 * SPARE, last + 1)
    for number, pod in enumerate(PODS):
        told = [percent(pod, minute) for minute in minutes]
        share = [None if value is None else value / 100 for value in told]
        whose = {"pod": pod, "namespace": "ml", "model": MODEL}
        made.dcgm_gpu(
            "gpu-1", number, **whose, gr_engine=share, gpu_util=None, power=None, memory_used=None, every=MINUTE
        )
    await made.start()
    yield made
    await made.stop()


async def ask(folder: pathlib.Path, *words: str) -> Any:
    ended = await product.run("fallow", *words, "-o", "json", env={"PATH": os.environ["PATH"], "HOME": str(folder)})
    assert ended.code == 0, ended.said
    return json.loads(ended.out)


async def ask_in_one_minute(folder: pathlib.Path, *words: str) -> tuple[Any, int]:
    """The answer, and the minute it was given in: asked again if one began meanwhile."""
    for _ in range(5):
        minute = int(time.time() // MINUTE)
        answer = await ask(folder, *words)
        if int(time.time() // MINUTE) == minute:
            return answer, minute
    raise AssertionError(f"fallow {words[0]} never answered within one minute")


def write_trace(path: pathlib.Path, first: int) -> str:
    rows = [(pod, minute, percent(pod, minute)) for pod in PODS for minute in range(first, first + HOURS * 60)]
    lines = [f"{pod},{minute * MINUTE},{value}" for pod, minute, value in rows if value is not None]
    path.write_text("\n".join(["pod,timestamp,duty_percent", *lines]) + "\n")
    return str(path)


@pytest.mark.parametrize(
    "words", [["backtest", "-w", "20m", "-w", "45m", "-w", "2h"], ["tune"]], ids=lambda words: words[0]
)
async def test_prometheus_and_a_trace_of_the_same_data_give_the_same_figures(
    prometheus: history.PrometheusWorld, tmp_path: pathlib.Path, words: list[str]
) -> None:
    live, minute = await ask_in_one_minute(tmp_path, *words, "--prometheus-url", prometheus.url, "--hours", str(HOURS))
    assert live["past"].startswith("3 pods over 6h from Prometheus: ")
    told = await ask(tmp_path, *words, "--trace", write_trace(tmp_path / "same.csv", minute - HOURS * 60))
    assert told["past"].startswith("3 pods over 6h from same.csv: ")
    assert figures(live) == figures(told)


async def test_the_tuned_policy_is_one_that_the_api_server_takes(
    cluster: clusters.Cluster, tmp_path: pathlib.Path
) -> None:
    """Applied as it is printed; strict validation refuses a field that the definition does not know."""
    await cluster.apply_crds(idle_crd.define())
    told = await product.run(
        "fallow", "tune", "--nodes", "5", "--hours", "10", "-o", "policy",
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
    )
    assert told.code == 0, told.said
    made = list(yaml.safe_load_all(told.out))
    assert made[0]["spec"]["action"] == {"type": "pause"}
    for policy in made:
        policy["metadata"]["name"] += f"-{cluster.namespace}"
        policy["spec"]["namespaces"] = [cluster.namespace]  # the control plane is shared with other tests
        applied = await cluster.apply(policy)
        assert applied["spec"]["windows"]["goneIdle"] == policy["spec"]["windows"]["goneIdle"]
        assert idle_crd.parse(applied).invalid == ()


def figures(answer: Any) -> list[Any]:
    """All that does not hang on the names of classes and namespaces, of which a trace knows less; none of it empty."""
    if "windows" in answer:
        assert {one["window"]: one["resumes"] for one in answer["windows"]}[2700.0] > 0
        return [answer["windows"], answer["today"], answer["asked"]["all"], answer["noneBecause"]]
    assert [result["total"]["pauses"] > 0 for result in answer["results"]] == [True, True, False]
    return [[result[key] for key in ("start", "end", "ticks", "total")] for result in answer["results"]]
