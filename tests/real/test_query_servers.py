"""Servers that speak as Prometheus does and hold more than one cluster's series: what Thanos and Mimir do differently,
played by a proxy before a real Prometheus; gpu-pruner is run as people run it."""

from __future__ import annotations

import pathlib
from typing import Any
from urllib import parse

import pytest
from aiohttp import web

from tests.real import faults, product

IDLE = "1 idle (1 workload"


async def be_mimir(exchange: faults.Exchange) -> web.StreamResponse:
    """Who does not say whose series they mean is not answered."""
    if exchange.request.headers.get("X-Scope-OrgID") != "gpus":
        return web.Response(status=401, text="no org id\n")
    return await exchange.forward()


def form_of(exchange: faults.Exchange) -> dict[str, str]:
    return dict(parse.parse_qsl(exchange.body.decode()))


async def be_thanos(exchange: faults.Exchange) -> web.StreamResponse:
    """Unless told otherwise it answers with what those stores have that answer, and warns; and without deduplication
    there is a series for each replica of Prometheus."""
    asked, answer = form_of(exchange), await exchange.fetch()
    if asked.get("partial_response") != "false":
        return web.json_response({**answer, "warnings": ["store at 10.0.0.9:10901 did not answer"]})
    if asked.get("dedup") != "true":
        answer["data"]["result"] = [
            {**row, "metric": {**row["metric"], "prometheus_replica": name}}
            for row in answer["data"]["result"] for name in ("a", "b")
        ]
    return web.json_response(answer)


async def lose_a_store(exchange: faults.Exchange) -> web.StreamResponse:
    """Thanos that was told to answer in full, and cannot."""
    assert form_of(exchange)["partial_response"] == "false"
    words = {"status": "error", "errorType": "execution", "error": "expanding series: store did not answer"}
    return web.json_response(words, status=422)


async def prune(stage: product.Stage, folder: pathlib.Path, url: str, *flags: str) -> product.Ended:
    async with product.product_on(stage, folder) as pruner:
        pruner.prometheus_url = url
        return await pruner.prune(*flags)


async def test_mimir_is_asked_below_its_prefix_for_one_organisation(stage: product.Stage, folder: pathlib.Path) -> None:
    await stage.workload("quiet")
    await stage.prometheus.start()
    async with faults.FaultyProxy(stage.prometheus.url, prefix="/prometheus") as mimir:
        mimir.fault = be_mimir
        seen = await prune(stage, folder, mimir.url, "--prometheus-header", "X-Scope-OrgID: gpus")
        assert (seen.code, IDLE in seen.said) == (0, True), seen.said
        assert all("/prometheus/api/v1/" in each for each in mimir.seen)
        unsaid = await prune(stage, folder, mimir.url)
    assert (unsaid.code, "answered 401" in unsaid.said, IDLE in unsaid.said) == (1, True, False), unsaid.said


async def test_thanos_is_asked_for_whole_answers_of_which_each_series_is_there_once(
    stage: product.Stage, folder: pathlib.Path
) -> None:
    await stage.workload("quiet")
    await stage.prometheus.start()
    async with faults.FaultyProxy(stage.prometheus.url) as thanos:
        thanos.fault = be_thanos
        seen = await prune(stage, folder, thanos.url)
        assert (seen.code, IDLE in seen.said) == (0, True), seen.said
        thanos.fault = lose_a_store
        lost = await prune(stage, folder, thanos.url)
    assert (lost.code, IDLE in lost.said) == (1, False), lost.said


MATCHER = ("--prometheus-matchers", 'cluster="ours"')
TWO = ({"cluster": "ours"}, {"cluster": "theirs"})
# Who works in which of the two, and whether gpu-pruner is told which one it is in -> whether ours is idle.
SEEN: dict[str, tuple[tuple[int, ...], tuple[str, ...], bool]] = {
    "ours rests, and it is told": ((1,), MATCHER, True), "ours works, and it is told": ((0,), MATCHER, False),
    "ours works, and it is not told": ((0,), (), False), "ours rests, and it is not told": ((1,), (), False),
}


@pytest.mark.parametrize("how", SEEN)
async def test_of_several_clusters_in_one_server_only_ones_own_counts(
    stage: product.Stage, folder: pathlib.Path, how: str
) -> None:
    """Pods and nodes are called the same in both. Who does not say which is theirs is never wrong, only blind."""
    works, flags, is_idle = SEEN[how]
    await stage.workload("quiet")
    stage.prometheus.copies(*TWO, busy=works)
    await stage.prometheus.start()
    seen: Any = await prune(stage, folder, stage.prometheus.url, *flags)
    assert (seen.code, IDLE in seen.said) == (0, is_idle), seen.said


async def test_two_replicas_of_prometheus_behind_a_server_that_keeps_both_are_one_cluster(
    stage: product.Stage, folder: pathlib.Path
) -> None:
    await stage.workload("quiet")
    stage.prometheus.copies({"prometheus_replica": "a"}, {"prometheus_replica": "b"})
    await stage.prometheus.start()
    seen = await prune(stage, folder, stage.prometheus.url)
    assert (seen.code, IDLE in seen.said) == (0, True), seen.said
