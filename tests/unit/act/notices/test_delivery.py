"""Notices: what was delivered, and only that, is written on the object."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.act import examples
from tests.unit.act.carrying import MakeHands, annotations, carry
from tests.unit.act.examples import EXAMPLES, NOW, finding_of, identified, make, workload_of
from tests.unit.act.server import Server

from fallow import names
from fallow.act import hands as doing
from fallow.act import marking
from fallow.clients import errors
from fallow.model import cluster, decision
from fallow.model.decision import Status
from fallow.model.policies import idle

EVENT, SLACK = idle.Channel("here", "event"), idle.Channel("team", "slack")


def warn_of(workload: cluster.Workload, *channels: idle.Channel, require_all: bool = False) -> decision.Warn:
    notice = idle.Notice(required=True, require_all=require_all, channels=channels)
    rule = msgspec.structs.replace(examples.RULE, notice=notice)
    return decision.Warn(finding_of(workload, rule), "abcdef123456", NOW - 47 * 60, NOW + 300, channels)


@pytest.mark.parametrize("compat", [True, False], ids=["compat", "plain"])
async def test_a_delivered_notice_is_written_on_the_object(server: Server, make_hands: MakeHands, compat: bool) -> None:
    thing = server.add(identified(EXAMPLES["deployment"]))
    outcome = await carry(make_hands(compat_annotations=compat), warn_of(workload_of(thing), EVENT))
    assert outcome.status is Status.done
    (event,) = server.events
    assert event["reason"] == names.Event.NOTICE_SENT
    keeps = "Keep it for 8h: fallow ack Deployment/llm -n team-a"
    assert f"It will be scaled to 0 at 23:51 UTC at the earliest. {keeps}" in event["note"]
    marks = {
        names.IDLE_SINCE: "2026-11-14T22:59:40Z", names.IDLE_EPISODE: "abcdef123456",
        names.PENDING_SINCE: "2026-11-14T23:46:40Z", names.TOLD: "an Event on it",
    }
    alias = {names.PENDING_SINCE_ALIAS: "2026-11-14T23:46:40Z"} if compat else {}
    assert annotations(server.now(thing)) == marks | alias


async def test_the_grace_begins_with_the_delivery_however_long_the_cycle_took(
    server: Server, hands: doing.Hands
) -> None:
    thing = server.add(identified(EXAMPLES["deployment"]))
    outcome = await carry(hands, warn_of(workload_of(thing), EVENT), clock=lambda: NOW + 90)
    assert outcome.status is Status.done
    assert annotations(server.now(thing))[names.PENDING_SINCE] == "2026-11-14T23:48:10Z"


@pytest.mark.parametrize("require_all", [True, False], ids=["all", "any"])
@pytest.mark.parametrize("channels", [(), (EVENT,), (SLACK,), (EVENT, SLACK)], ids=["none", "event", "slack", "both"])
async def test_a_notice_counts_only_if_it_was_delivered(
    server: Server, hands: doing.Hands, channels: tuple[idle.Channel, ...], require_all: bool
) -> None:
    thing = server.add(identified(EXAMPLES["deployment"]))
    outcome = await carry(hands, warn_of(workload_of(thing), *channels, require_all=require_all))
    delivered = EVENT in channels and not (require_all and SLACK in channels)
    assert outcome.status is (Status.done if delivered else Status.failed)
    assert (names.PENDING_SINCE in annotations(server.now(thing))) is delivered
    assert ("slack is not set up here" in outcome.detail) is (SLACK in channels)


async def test_a_notice_whose_event_fails_writes_nothing(server: Server, hands: doing.Hands) -> None:
    thing = server.add(identified(EXAMPLES["deployment"]))
    server.fail("POST", "/events", 500, times=2)
    outcome = await carry(hands, warn_of(workload_of(thing), EVENT))
    assert outcome.status is Status.failed
    assert server.writes() == []


@pytest.mark.accepts("idle", 31)
async def test_a_notice_and_an_ack_of_an_inference_service_touch_only_its_child(
    server: Server, hands: doing.Hands
) -> None:
    service = server.add(identified(EXAMPLES["isvc"]))
    child = server.add(identified(make("apps/v1", "Deployment", {"replicas": 2}, name="llm-predictor"), "u-2"))
    seen = {"marks_ref": examples.ref_of(child), "marks": {}}
    workload = workload_of(service, **seen, marks_version=child["metadata"]["resourceVersion"])
    assert (await carry(hands, warn_of(workload, EVENT))).status is Status.done
    overtaken = marking.ack_mark(workload, until=NOW + 3600, by="ada", reason="demo", now=NOW)
    with pytest.raises(errors.Conflict):  # the child has changed since it was looked at
        await hands.mark(overtaken, NOW)
    workload = workload_of(service, **seen, marks_version=server.now(child)["metadata"]["resourceVersion"])
    ack = marking.ack_mark(workload, until=NOW + 3600, by="ada", reason="demo", now=NOW)
    assert (await hands.mark(ack, NOW)).status is Status.done
    assert server.now(service) == service
    assert {names.ACK_UNTIL, names.ACK_UNTIL_ALIAS, names.ACK_BY} <= set(annotations(server.now(child)))
    assert names.PENDING_SINCE not in annotations(server.now(child))
