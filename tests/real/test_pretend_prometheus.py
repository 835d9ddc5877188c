"""The pretend Prometheus beside the real one: the same samples in both, the same questions, the same answers and
verdicts."""

from __future__ import annotations

import pathlib
import time
from collections.abc import AsyncIterator, Iterator

import msgspec
import numpy as np
import pytest

from fallow import settings
from fallow.clients.prometheus import auth, client
from fallow.model import decision
from fallow.model.policies.sharing import HurtGuard
from fallow.model.share_hurts import SharedOwner
from fallow.model.units import HOUR, MINUTE, Instant
from fallow.observe.usage import asking, hurting, inquiry, owning, queries, share_use, spans
from fallow.sim import cast, stage
from fallow.sim.traces import history as traces
from fallow.sim.world.nouns import Fault
from fallow.stories import idle as stories
from fallow.wiring import daemon
from tests.real import history

HOURS = 3
AT = {Fault.exporter_silent: (60, 80), Fault.exporter_zero: (100, 110)}  # minutes


@pytest.fixture
async def played(
    tmp_path: pathlib.Path, prometheus: history.PrometheusWorld
) -> AsyncIterator[tuple[stage.Stage, history.PrometheusWorld]]:
    """Ten nodes (one of MIG, one time-sliced, one of MPS) over three hours that end now; no controller acts in them."""
    made = cast.make_world(seed=4, nodes=10, hours=HOURS).moved(time.time() // MINUTE * MINUTE - HOURS * HOUR)
    struck = list(made.nodes)[1:3]
    for fault, (begins, ends) in AT.items():
        made.at(made.now + begins * MINUTE, lambda fault=fault: made.switch_on(fault, struck))
        made.at(made.now + ends * MINUTE, lambda fault=fault: made.switch_off(fault))
    async with stage.open_stage(made, tmp_path, outside=stage.Outside(lambda: made.now)) as on:
        for _ in range(round(HOURS * HOUR / MINUTE)):
            await on.pass_time(MINUTE)
        made.advance(time.time() - made.now)
        assert on.prometheus is not None
        for one in on.prometheus.kept.all():
            prometheus.remember(one.metric, one.labels, list(zip(one.times, one.values, strict=True)))
        await prometheus.start()
        yield on, prometheus


def ask_all(to: client.Prometheus) -> Iterator[asking.Question]:
    """Every form of question there is."""
    asked = inquiry.Inquiry(to, inquiry.LabelBooks(False))
    few = inquiry.Focus(("nb-ocr-0", "llm-chat-0"), ("GPU-none",))
    yield from asked.about([30 * MINUTE, 90 * MINUTE])
    yield from asked.about([30 * MINUTE], few)
    yield from asked.about_paces(True)
    yield from asked.about_scrapes({"nvidia-dcgm-exporter"}, True)
    yield from asked.about_floors()
    for stretch in (spans.Stretch(HOUR, HOUR / 2), spans.Stretch(HOUR / 2, 0.0)):
        for metric in queries.PRIMARIES:
            yield asked.about_activity(metric, None, stretch, 0.01, 0)
            yield asked.about_samples(metric, None, stretch, 0)


async def answer(to: client.Prometheus, question: asking.Question, at: Instant) -> dict[str, float]:
    found = await to.query(question.promql, at, row=dict[str, str])
    return {str(sorted(each.metric.items())): float(each.value.value) for each in found.rows}


async def test_every_question_has_the_same_answer(
    played: tuple[stage.Stage, history.PrometheusWorld],
) -> None:
    on, real = played
    assert on.addresses is not None
    login = auth.Login(method="none")
    answered = 0
    async with client.Prometheus(on.addresses.prometheus, login=login) as ours, client.Prometheus(
        real.url, login=login
    ) as theirs:
        for question in ask_all(theirs):
            expected = await answer(theirs, question, on.world.now)
            assert await answer(ours, question, on.world.now) == pytest.approx(expected, rel=1e-6), question.promql
            answered += bool(expected)
    assert answered > 30


async def test_what_pods_used_is_the_same_by_either(played: tuple[stage.Stage, history.PrometheusWorld]) -> None:
    """As `fallow optimize` asks. Between two scrapes, as below; of pods that were never out of sight, for a sample that
    was written into a real one is carried on for five minutes, and ours knows at once that a scrape did not show it."""
    on, real = played
    assert on.addresses is not None
    at, login = on.world.now // MINUTE * MINUTE - MINUTE / 2, auth.Login(method="none")
    assert on.prometheus is not None
    pods = sorted({
        one.labels["exported_pod"] for one in on.prometheus.kept.of("DCGM_FI_DEV_FB_USED")
        if "exported_pod" in one.labels and one.times[-1] > at - MINUTE and np.diff(one.times).max() < 1.5 * MINUTE
    })
    words, found = owning.UseWords("exported_pod", "exported_namespace", exporters=None), []
    for url in (on.addresses.prometheus, real.url):
        async with client.Prometheus(url, login=login) as asked:
            found.append(await share_use.read(asked, pods, words, at, 10 * MINUTE))
    ours, theirs = (
        {pod: {name: value and round(value, 6) for name, value in msgspec.structs.asdict(use).items()}
         for pod, use in each.items()}
        for each in found
    )
    assert ours == theirs
    assert sum(use["gpu"] is not None and use["total"] is not None for use in theirs.values()) > 10


async def test_the_history_of_the_day_is_the_same_by_either(
    played: tuple[stage.Stage, history.PrometheusWorld],
) -> None:
    """As `fallow backtest` and `tune` read it, further back than anything was measured."""
    on, real = played
    assert on.addresses is not None
    end, login = on.world.now // MINUTE * MINUTE - MINUTE / 2, auth.Login(method="none")
    found = []  # between two scrapes: whether a window holds its first instant is not the same in every version
    for url in (on.addresses.prometheus, real.url):
        async with client.Prometheus(url, login=login) as asked:
            found.append(await traces.read_history(asked, end - (HOURS + 7) * HOUR, end, now=on.world.now))
    (names, rows), theirs = (
        (sorted(part.name for part in each.parts), sorted(row.tobytes() for row in each.percents)) for each in found
    )
    assert (names, rows) == theirs
    assert len(names) > 10


def told(finding: decision.Finding) -> tuple[object, ...]:
    """What people are told."""
    since = None if finding.idle_since is None else round(finding.idle_since, 3)
    return str(finding.workload.ref), finding.verdict, finding.reason, finding.gpus, finding.idle_gpus, since


async def look(on: stage.Stage, url: str) -> stories.Look:
    """As `fallow status` does, at the instant at which the day ended."""
    assert on.addresses is not None
    options = settings.read_flags({"kubeconfig": str(on.addresses.kubeconfig), "prometheus_url": url}, {})
    async with daemon.assemble(options, lambda: on.world.now) as made:
        found = await made.loop.look(daemon.IDLE)
    assert isinstance(found, stories.Look)
    return found


async def test_a_look_gives_the_same_verdicts_by_either(
    played: tuple[stage.Stage, history.PrometheusWorld],
) -> None:
    on, real = played
    assert on.addresses is not None
    ours, theirs = await look(on, on.addresses.prometheus), await look(on, real.url)
    found, expected = (
        [told(each.plan.findings[index]) for index in range(len(each.snapshot.workloads))] for each in (ours, theirs)
    )
    assert found == expected
    assert {decision.Verdict.idle, decision.Verdict.active} <= {each[1] for each in found}
    assert (ours.snapshot.evidence.lost_signals, ours.snapshot.evidence.trouble) == ((), None)


async def test_what_is_asked_about_those_who_share_has_the_same_answer(
    played: tuple[stage.Stage, history.PrometheusWorld],
) -> None:
    on, real = played
    assert on.addresses is not None
    owners = [
        SharedOwner(
            workload=one.view, policy="", strategy="mps", guard=HurtGuard(), since=on.world.now - HOUR,
            pods=tuple(pod.name for pod in one.pods),
        ) for one in on.world.workloads if one.pods
    ]
    login, words = auth.Login(method="none"), owning.UseWords(exporters=".*")
    async with client.Prometheus(on.addresses.prometheus, login=login) as ours, client.Prometheus(
        real.url, login=login
    ) as theirs:
        expected = await hurting.HurtReader(theirs, words).read(owners, on.world.now)
        found = await hurting.HurtReader(ours, words).read(owners, on.world.now)
    full = {uid: seen.full for uid, seen in expected.items()}
    assert {uid: seen.full for uid, seen in found.items()} == pytest.approx(full, nan_ok=True)
    assert sum(each is not None for each in full.values()) > 10
