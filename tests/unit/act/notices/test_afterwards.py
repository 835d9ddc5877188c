"""What is told when the acts of a cycle are over: in the background, once, tried again. No pause waits for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from aiohttp import web
from tests.unit.act.carrying import MakeHands
from tests.unit.act.examples import NOW, workload_of
from tests.unit.act.notices.telling import HEAD, several, slack_at, warn_of, wires
from tests.unit.act.server import Server
from tests.unit.clients import loopback

from fallow import names
from fallow.act import execute
from fallow.act import hands as doing
from fallow.act.notices import courier, delivery, senders
from fallow.model import decision
from fallow.model.decision import Delivery, Status
from fallow.model.policies import idle
from fallow.model.secret import Secret

CYCLE = 180.0


def pause_of(thing: Any, *channels: idle.Channel) -> decision.Pause:
    return decision.Pause(warn_of(thing, *channels).finding, "idle")


async def carry_out(hands: doing.Hands, decisions: Sequence[decision.Decision]) -> list[decision.Outcome]:
    async def look_again(pauses: Any) -> dict[str, execute.SecondLook]:
        return {
            each.finding.workload.ref.uid: execute.SecondLook(each.finding.workload, each.finding) for each in pauses
        }

    return await execute.carry_out(decisions, hands, look_again, NOW)


async def hang(asked: loopback.Asked) -> web.Response:
    await asyncio.Event().wait()
    raise AssertionError("it never ends")


async def test_pauses_do_not_wait_for_a_channel_that_hangs(server: Server, api: Any, make_hands: MakeHands) -> None:
    things = several(server, 3)
    async with loopback.serve(hang) as inbox, wires(api) as out:
        hands, channel = make_hands(wires=out), slack_at(inbox.url)
        began = time.monotonic()
        outcomes = await carry_out(hands, [pause_of(thing, channel) for thing in things])
        hands.tell_afterwards((), (), NOW)
        took = time.monotonic() - began
        asked_by_then = len(inbox.asked)
        await hands.afterwards.finish(0.2)
    assert [each.status for each in outcomes] == [Status.done] * 3
    assert [server.now(thing)["spec"]["replicas"] for thing in things] == [0] * 3
    assert took < 1.0, "the wire itself waits for two seconds"
    assert asked_by_then == 0


async def test_pauses_come_before_notices_that_a_hanging_channel_holds_up(
    server: Server, api: Any, make_hands: MakeHands
) -> None:
    warned, resting = several(server, 2)
    at_rest = []

    async def note_and_hang(asked: loopback.Asked) -> web.Response:
        at_rest.append(server.now(resting)["spec"]["replicas"])
        return await hang(asked)

    async with loopback.serve(note_and_hang) as inbox, wires(api) as out:
        channel = slack_at(inbox.url)
        outcomes = await carry_out(make_hands(wires=out), [warn_of(warned, channel), pause_of(resting)])
    became = {type(each.decision): each.status for each in outcomes}
    assert became == {decision.Warn: Status.failed, decision.Pause: Status.done}
    assert at_rest == [0]


async def test_a_pause_that_rests_on_a_notice_of_this_very_cycle_comes_after_it(
    server: Server, api: Any, make_hands: MakeHands
) -> None:
    [thing] = several(server, 1)
    looks = []

    async def look_again(pauses: Any) -> dict[str, execute.SecondLook]:
        looks.append(names.PENDING_SINCE in server.now(thing)["metadata"].get("annotations", {}))
        return {"u-0": execute.SecondLook(workload_of(server.now(thing)), pauses[0].finding)}

    async with loopback.serve(lambda asked: web.Response(text="ok")) as inbox, wires(api) as out:
        channel = slack_at(inbox.url)
        asked = [pause_of(thing, channel), warn_of(thing, channel)]
        outcomes = await execute.carry_out(asked, make_hands(wires=out), look_again, NOW)
    assert [(type(each.decision), each.status) for each in outcomes] == [
        (decision.Warn, Status.done), (decision.Pause, Status.done)
    ]
    assert looks == [True]


async def test_a_channel_that_hangs_is_asked_once_in_a_round_and_holds_up_no_other(
    server: Server, api: Any, make_hands: MakeHands
) -> None:
    things = several(server, 20)
    async with (
        loopback.serve(hang) as dead, loopback.serve(lambda asked: web.Response(text="ok")) as inbox, wires(api) as out,
    ):
        channels = msgspec.structs.replace(slack_at(dead.url), name="dead"), slack_at(inbox.url)
        began = time.monotonic()
        outcomes = await carry_out(make_hands(wires=out), [warn_of(thing, *channels) for thing in things])
        took = time.monotonic() - began
    assert [each.status for each in outcomes] == [Status.done] * 20
    assert len(inbox.asked) == 20
    assert len(dead.asked) == 8  # those at once
    assert took < 4.0, "one wait of the wire, not three"
    assert "it did not answer others a moment ago" in outcomes[-1].because


async def test_a_round_ends_with_its_budget(server: Server, api: Any, make_hands: MakeHands) -> None:
    [thing] = several(server, 1)
    async with loopback.serve(hang) as inbox, wires(api) as out:
        hands, channel = make_hands(wires=out), slack_at(inbox.url)
        finding = warn_of(thing, channel).finding
        address = delivery.Address()
        [each] = address.find_routes(finding, [channel]).routes
        sent = senders.Envelope(route=each, facts=(address.gather_facts(finding, NOW, None),))
        became = await courier.Courier(hands.announcer, out, budget=0.1).deliver({each: [sent]})
    assert became == {(each, "u-0"): "channel team: the time for messages of this cycle was over"}


async def test_whoever_was_told_is_told_that_it_rests_and_how_it_comes_back(
    server: Server, api: Any, make_hands: MakeHands
) -> None:
    [thing] = several(server, 1)
    noted = list[Delivery]()
    async with loopback.serve(lambda asked: web.Response(text="ok")) as inbox, wires(api) as out:
        hands = make_hands(wires=out, address=delivery.Address(head=HEAD), note=noted.append)
        await carry_out(hands, [pause_of(thing, slack_at(inbox.url))])
        hands.tell_afterwards((), (), NOW)
        await hands.afterwards.finish(5.0)
    [button] = msgspec.json.decode(inbox.asked[0].body)["attachments"][0]["actions"]
    assert (button["name"], button["value"]) == ("resume", "Deployment:team-a:llm-0:resume")
    assert [(each.channel, each.failure) for each in noted] == [("team", "")]


LATER = {
    "still-rests": (NOW + CYCLE, True, 2), "came-back": (NOW + CYCLE, False, 1), "too-late": (NOW + 3601, True, 1),
}


@pytest.mark.parametrize(("then", "rests", "asked"), LATER.values(), ids=LATER)
async def test_who_was_not_reached_is_told_later_while_it_rests_and_never_twice(
    server: Server, api: Any, make_hands: MakeHands, then: float, rests: bool, asked: int
) -> None:
    [thing] = several(server, 1)
    answers = loopback.in_turn(lambda asked: web.Response(status=500), lambda asked: web.Response(text="ok"))
    async with (
        loopback.serve(answers) as inbox, loopback.serve(lambda asked: web.Response(text="ok")) as well,
        wires(api) as out,
    ):
        hands = make_hands(wires=out)
        fine = msgspec.structs.replace(slack_at(well.url), name="well")
        await carry_out(hands, [pause_of(thing, slack_at(inbox.url), fine)])
        hands.tell_afterwards((), (), NOW)
        await hands.afterwards.finish(5.0)
        for cycle in range(3):
            hands.tell_afterwards([workload_of(server.now(thing) if rests else thing)], (), then + cycle)
            await hands.afterwards.finish(5.0)
    assert len(inbox.asked) == asked
    assert len(well.asked) == 1


async def test_what_is_on_its_way_arrives_before_we_end_and_what_hangs_does_not_hold_us_up(
    server: Server, api: Any, make_hands: MakeHands, caplog: pytest.LogCaptureFixture
) -> None:
    [thing] = several(server, 1)
    async with loopback.serve(hang) as inbox, wires(api) as out:
        hands = make_hands(wires=out)
        await carry_out(hands, [pause_of(thing, slack_at(inbox.url))])
        hands.tell_afterwards((), (), NOW)
        began = time.monotonic()
        await hands.afterwards.finish(0.1)
    assert time.monotonic() - began < 1.0
    assert "is paused, and we end before team is told" in caplog.text


async def test_a_dry_run_tells_nobody(server: Server, api: Any, make_hands: MakeHands) -> None:
    [thing] = several(server, 1)
    async with loopback.serve(lambda asked: web.Response(text="ok")) as inbox, wires(api) as out:
        hands, channel = make_hands(wires=out, dry_run="client"), slack_at(inbox.url)
        await carry_out(hands, [pause_of(thing, channel)])
        hands.tell_afterwards((), (), NOW)
        await hands.afterwards.finish(1.0)
    assert inbox.asked == []


# ---- incidents -------------------------------------------------------------------------------------------------------


def pager_at(url: str) -> idle.Channel:
    return idle.Channel("pager", "pagerduty", (("routing_key", Secret("k")), ("url", Secret(url))))


async def settle(hands: doing.Hands, findings: Sequence[decision.Finding]) -> None:
    hands.tell_afterwards((), findings, NOW)
    await hands.afterwards.finish(5.0)


async def test_an_incident_is_closed_when_its_idle_time_is_over(
    server: Server, api: Any, make_hands: MakeHands
) -> None:
    [thing] = several(server, 1)
    thing["metadata"]["annotations"] = {names.IDLE_EPISODE: "abc"}
    taken = web.Response(text="{}", status=202)
    answers = loopback.in_turn(lambda asked: web.Response(status=500), lambda asked: taken)
    async with loopback.serve(answers) as inbox, wires(api) as out:
        hands = make_hands(wires=out, address=delivery.Address(head=HEAD))
        await settle(hands, [warn_of(thing, pager_at(inbox.url)).finding])
        assert inbox.asked == []
        for _ in range(3):  # the first is not taken, and tried again; then it is over
            await settle(hands, [])
    assert len(inbox.asked) == 2
    sent = msgspec.json.decode(inbox.asked[-1].body)
    assert (sent["event_action"], sent["dedup_key"]) == ("resolve", "fallow/ml-west/u-0/abc")


async def test_a_pager_whose_address_is_none_ends_nothing(
    server: Server, api: Any, make_hands: MakeHands, caplog: pytest.LogCaptureFixture
) -> None:
    [thing] = several(server, 1)
    thing["metadata"]["annotations"] = {names.IDLE_EPISODE: "abc"}
    async with wires(api) as out:
        hands = make_hands(wires=out)
        for url in ("https://events..pagerduty.com/x", "https://[x", "nowhere"):
            caplog.clear()
            await settle(hands, [warn_of(thing, pager_at(url)).finding])
            await settle(hands, [])
            assert "channel pager" in caplog.text
