"""Events: short enough, complete, one series for repetitions, once per episode."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some
from tests.unit.act.carrying import MakeHands, carry
from tests.unit.act.examples import EXAMPLES, NOW, identified, workload_of
from tests.unit.act.server import Server

from fallow import names
from fallow.act import events
from fallow.clients import errors
from fallow.clients.kubernetes import api as kubernetes
from fallow.model import cluster, decision
from fallow.model.decision import Status

REF = cluster.Ref("kubeflow.org", "v1", "Notebook", "team-a", "nb", "u-1")


@given(some.text(max_size=2000), some.integers(4, 1100))
def test_a_note_is_cut_at_a_character(text: str, size: int) -> None:
    short = events.cut(text, size)
    assert len(short.encode(errors="surrogatepass")) <= max(size, 0)
    assert short == text or (short.endswith("…") and text.startswith(short[:-1]))


def test_an_event_has_all_that_the_api_wants() -> None:
    body = events.event_body(REF, names.Event.PAUSE_FAILED, "x" * 5000, NOW + 0.25, instance="pod-0")
    assert body["regarding"]["apiVersion"] == "kubeflow.org/v1"
    assert body["eventTime"] == "2026-11-14T23:46:40.250000Z"
    assert body["metadata"]["name"].startswith("gpuscaler-")
    assert len(body["metadata"]["name"]) == len("gpuscaler-") + 32
    assert (body["type"], body["reportingController"]) == ("Warning", "gpu-pruner")
    assert len(body["note"].encode()) <= 1024


async def test_the_same_again_within_an_hour_is_a_series(server: Server, api: kubernetes.Api) -> None:
    announcer = events.Announcer(api, reporting_instance="pod-0")
    for seconds in (0, 600, 1200):
        await announcer.publish(REF, names.Event.PAUSE_FAILED, "no", NOW + seconds)
    (event,) = server.events
    assert event["series"] == {"count": 3, "lastObservedTime": "2026-11-15T00:06:40.000000Z"}
    await announcer.publish(REF, names.Event.RESUMED, "back", NOW + 1300)
    await announcer.publish(REF, names.Event.PAUSE_FAILED, "no", NOW + 3600)
    assert [event["reason"] for event in server.events] == ["PauseFailed", "Resumed", "PauseFailed"]


async def test_a_series_whose_event_has_gone_begins_anew(server: Server, api: kubernetes.Api) -> None:
    announcer = events.Announcer(api, reporting_instance="pod-0")
    await announcer.publish(REF, names.Event.PAUSE_FAILED, "no", NOW)
    server.objects.clear()
    await announcer.publish(REF, names.Event.PAUSE_FAILED, "no", NOW + 60)
    assert [event.get("series") for event in server.events] == [None]


async def test_a_notice_must_know_whether_its_event_was_made(server: Server, api: kubernetes.Api) -> None:
    announcer = events.Announcer(api, reporting_instance="pod-0")
    server.fail("POST", "/events", 403, times=2)
    with pytest.raises(errors.Forbidden):
        await announcer.publish(REF, names.Event.NOTICE_SENT, "idle", NOW)
    await announcer.announce(REF, names.Event.NOTICE_SENT, "idle", NOW)
    assert server.events == []


async def test_an_alert_about_ourselves_goes_on_our_own_pod(server: Server, make_hands: MakeHands) -> None:
    own = cluster.Ref("", "v1", "Pod", "gpu-pruner-system", "gpu-pruner-0", "u-p")
    alert = decision.Alert(None, names.Event.IDLE_SHARE_JUMP, "40 points more", "e")
    assert (await carry(make_hands(own_pod=own), alert)).status is Status.done
    assert (await carry(make_hands(), alert)).status is Status.done
    (event,) = server.events
    assert (event["regarding"]["apiVersion"], event["metadata"]["namespace"]) == ("v1", "gpu-pruner-system")


async def test_an_episode_is_told_once_whoever_tells_it(server: Server, make_hands: MakeHands) -> None:
    workload = workload_of(server.add(identified(EXAMPLES["deployment"])))
    for episode in ("first", "first", "second"):  # each by a process of its own
        alert = decision.Alert(workload, names.Event.IDLE_DETECTED, "quiet", episode)
        assert (await carry(make_hands(), alert)).status is Status.done
    assert [event["reason"] for event in server.events] == [names.Event.IDLE_DETECTED] * 2
