"""Marks: acknowledgements come and go, under both names, where they restart nothing."""

from __future__ import annotations

import pytest
from tests.unit.act.carrying import annotations, carry
from tests.unit.act.examples import EXAMPLES, NOW, identified, make, workload_of
from tests.unit.act.server import Server

from fallow import names
from fallow.act import hands as doing
from fallow.act import marking
from fallow.model import cluster, decision
from fallow.model.decision import Status


@pytest.mark.parametrize("compat", [True, False], ids=["compat", "plain"])
def test_aliases_are_written_if_asked_for_and_removed_always(compat: bool) -> None:
    written = marking.with_aliases({names.PENDING_SINCE: "t", names.ACK_UNTIL: None}, compat)
    expected = {names.PENDING_SINCE: "t", names.ACK_UNTIL: None, names.ACK_UNTIL_ALIAS: None}
    assert written == (expected | {names.PENDING_SINCE_ALIAS: "t"} if compat else expected)


def test_an_ack_is_one_patch_that_withdraws_the_notice() -> None:
    workload = workload_of(identified(EXAMPLES["deployment"]))
    mark = marking.ack_mark(workload, until=NOW + 3600, by="ada", reason="y" * 300, now=NOW)
    assert {name for name, value in mark.changes.items() if value is None} == set(names.PENDING_KEYS)
    kept = {name: value for name, value in mark.changes.items() if value is not None}
    assert kept == {
        names.ACK_UNTIL: "2026-11-15T00:46:40Z", names.ACK_BY: "ada", names.ACK_AT: "2026-11-14T23:46:40Z",
        names.ACK_REASON: "y" * 256,
    }


def test_an_unack_empties_every_place_and_tells_once() -> None:
    child = cluster.Ref("apps", "v1", "Deployment", "team-a", "llm-predictor", "u-2")
    old = {names.ACK_UNTIL_ALIAS: "2026-12-01T00:00:00Z"}
    thing = make("serving.kserve.io/v1beta1", "InferenceService", annotations=old)
    workload = workload_of(identified(thing), marks_ref=child, marks={names.ACK_UNTIL: "2026-12-01T00:00:00Z"})
    marks = marking.unack_marks(workload, by="ada")
    assert [(mark.on.kind, mark.event) for mark in marks] == [
        ("Deployment", names.Event.UNACKNOWLEDGED), ("InferenceService", None),
    ]
    assert all(mark.changes == dict.fromkeys(names.ACK_KEYS) for mark in marks)
    assert marking.unack_marks(workload_of(identified(EXAMPLES["isvc"])), by="ada") == ()


@pytest.mark.accepts("idle", 31)
def test_marks_of_an_inference_service_go_where_they_restart_nothing() -> None:
    child = cluster.Ref("apps", "v1", "Deployment", "team-a", "llm-predictor", "u-2")
    workload = workload_of(identified(EXAMPLES["isvc"]), marks_ref=child, marks={})
    mark = marking.ack_mark(workload, until=NOW, by="ada", reason="", now=NOW)
    assert isinstance(mark, decision.Mark)
    assert mark.on == child


async def test_an_ack_comes_and_goes(server: Server, hands: doing.Hands) -> None:
    thing = server.add(identified(EXAMPLES["deployment"]))
    await hands.mark(marking.ack_mark(workload_of(thing), until=NOW + 3600, by="ada", reason="demo", now=NOW), NOW)
    (gone,) = marking.unack_marks(workload_of(server.now(thing)), by="ada")
    assert (await hands.mark(gone, NOW)).status is Status.done
    assert annotations(server.now(thing)) == {}
    assert [event["reason"] for event in server.events] == [names.Event.ACKNOWLEDGED, names.Event.UNACKNOWLEDGED]
    assert marking.unack_marks(workload_of(server.now(thing)), by="ada") == ()


async def test_a_mark_with_a_version_gives_way(server: Server, hands: doing.Hands) -> None:
    thing = server.add(identified(EXAMPLES["deployment"]))
    workload = workload_of(thing)
    server.touch(thing)
    version, changes = workload.resource_version, {names.PENDING_SINCE: None}
    mark = decision.Mark(workload, workload.ref, version, changes, names.Event.ACK_EXPIRED, "over")
    assert (await carry(hands, mark)).status is Status.overtaken
    assert server.events == []


@pytest.mark.parametrize("kept", [names.ACK_UNTIL, names.PENDING_SINCE], ids=["ack", "notice"])
async def test_a_mark_that_a_webhook_strips_was_not_made(server: Server, hands: doing.Hands, kept: str) -> None:
    thing = server.add(identified(EXAMPLES["deployment"]))
    server.before = lambda seen: seen.body["metadata"].get("annotations", {}).pop(kept, None)
    workload = workload_of(thing)
    mark = decision.Mark(workload, workload.ref, None, {kept: "2026-11-15T09:30:00Z"}, names.Event.ACKNOWLEDGED, "kept")
    outcome = await carry(hands, mark)
    assert outcome.status is Status.failed
    assert kept.rpartition("/")[2] in outcome.because
    assert server.events == []
