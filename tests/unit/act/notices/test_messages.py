"""The notices of one cycle on their way: route, gather, deliver, remember; on receivers that check what they get."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import web
from tests.unit.act import examples
from tests.unit.act.carrying import MakeHands, annotations
from tests.unit.act.examples import EXAMPLES, NOW, finding_of, identified, workload_of
from tests.unit.act.server import Server
from tests.unit.clients import loopback

from fallow import names
from fallow.act import execute
from fallow.act.notices import card, delivery, facts, letter, senders, slack
from fallow.clients import retry
from fallow.clients.messages import post
from fallow.model import decision
from fallow.model.decision import Status
from fallow.model.policies import idle
from fallow.model.secret import Secret

HEAD = facts.Letterhead(cluster_name="ml-west", public_url="https://fallow.example.com/", has_buttons=True)
EVIL = "<img src=x onerror=alert(1)>&*_[x](http://e)"


@asynccontextmanager
async def wires(api: Any) -> AsyncIterator[senders.Senders]:
    async with post.Poster({}, timeout=2.0, patience=retry.Patience(tries=1, first_wait=0.0)) as poster:
        yield senders.Senders(poster, senders.SecretReader(api, "gpu-pruner-system"), None)


def slack_at(url: str) -> idle.Channel:
    return idle.Channel("team", "slack", (("webhook_url", Secret(f"{url}/services/x")),))


def warn_of(thing: Any, *channels: idle.Channel, **more: Any) -> decision.Warn:
    notice = idle.Notice(required=True, channels=channels)
    finding = finding_of(workload_of(thing), msgspec.structs.replace(examples.RULE, notice=notice))
    finding = msgspec.structs.replace(finding, idle_since=NOW - 47 * 60, **more)
    return decision.Warn(finding, "abcdef123456", NOW - 47 * 60, NOW + 1800, channels)


def several(server: Server, count: int) -> list[Any]:
    made = []
    for number in range(count):
        thing = identified(EXAMPLES["deployment"], f"u-{number}")
        thing["metadata"]["name"] = f"llm-{number}"
        made.append(server.add(thing))
    return made


async def carry_out(hands: Any, warns: list[decision.Warn], **more: Any) -> list[decision.Outcome]:
    async def look_again(pauses: Any) -> dict[str, execute.SecondLook]:
        return {}

    return await execute.carry_out(warns, hands, look_again, NOW, **more)


@pytest.mark.accepts("idle", 18)
@pytest.mark.parametrize("status", [200, 500], ids=["taken", "down"])
async def test_only_a_notice_that_slack_took_starts_the_clock(
    server: Server, api: Any, make_hands: MakeHands, status: int
) -> None:
    [thing] = several(server, 1)
    async with loopback.serve(lambda asked: web.Response(text="ok", status=status)) as inbox, wires(api) as out:
        hands = make_hands(wires=out, address=delivery.Address(head=HEAD))
        [outcome] = await carry_out(hands, [warn_of(thing, slack_at(inbox.url))])
    assert outcome.status is (Status.done if status == 200 else Status.failed)
    assert (names.PENDING_SINCE in annotations(server.now(thing))) is (status == 200)
    assert [each.failure == "" for each in outcome.deliveries] == [status == 200]


@pytest.mark.parametrize(("count", "messages"), [(1, 1), (20, 20), (21, 1)])
async def test_more_than_twenty_notices_of_a_cycle_become_one_message(
    server: Server, api: Any, make_hands: MakeHands, count: int, messages: int
) -> None:
    things = several(server, count)
    async with loopback.serve(lambda asked: web.Response(text="ok")) as inbox, wires(api) as out:
        hands, channel = make_hands(wires=out, address=delivery.Address(head=HEAD)), slack_at(inbox.url)
        outcomes = await carry_out(hands, [warn_of(thing, channel) for thing in things])
    assert [outcome.status for outcome in outcomes] == [Status.done] * count
    assert len(inbox.asked) == messages
    assert all(names.PENDING_SINCE in annotations(server.now(thing)) for thing in things)
    if messages == 1 and count > 1:
        said = inbox.asked[0].body.decode()
        assert "21 workloads are idle" in said
        assert all(f"Deployment/llm-{number}," in said for number in range(count)), "who is not named was not told"


async def test_a_channel_that_fails_stops_only_itself(server: Server, api: Any, make_hands: MakeHands) -> None:
    one, other = several(server, 2)
    async with loopback.serve(lambda asked: web.Response(text="ok")) as inbox, wires(api) as out:
        hands = make_hands(wires=out)
        broken = idle.Channel("broken", "slack", (("webhook_url", idle.SecretKey("none", "key")),))
        outcomes = await carry_out(hands, [warn_of(one, broken), warn_of(other, broken, slack_at(inbox.url))])
    assert [outcome.status for outcome in outcomes] == [Status.failed, Status.done]
    assert "channel broken" in outcomes[0].because


async def test_nobody_is_told_once_we_may_no_longer_act(server: Server, api: Any, make_hands: MakeHands) -> None:
    [thing] = several(server, 1)
    async with loopback.serve(lambda asked: web.Response(text="ok")) as inbox, wires(api) as out:
        allowed = iter([True, False, False, False])
        [outcome] = await carry_out(
            make_hands(wires=out), [warn_of(thing, slack_at(inbox.url))], may_act=lambda: next(allowed)
        )
    assert outcome.status is not Status.done
    assert inbox.asked == []
    assert names.PENDING_SINCE not in annotations(server.now(thing))


async def test_a_room_that_is_not_there_costs_the_operator_no_notice(
    server: Server, api: Any, make_hands: MakeHands
) -> None:
    """Else whoever wishes for such a room is never told, and so never paused."""
    [thing] = several(server, 1)
    rooms = list[Any]()

    def answer(asked: loopback.Asked) -> web.Response:
        rooms.append(msgspec.json.decode(asked.body).get("channel"))
        is_there = rooms[-1] != "#nowhere"
        return web.Response(text="ok") if is_there else web.Response(text="channel_not_found", status=404)

    async with loopback.serve(answer) as inbox, wires(api) as out:
        warn = warn_of(thing, slack_at(inbox.url), wishes=decision.Wishes(notify="slack:#nowhere"))
        [outcome] = await carry_out(make_hands(wires=out), [warn])
    assert (outcome.status, rooms) == (Status.done, ["#nowhere", None])


async def test_who_has_it_is_not_told_in_every_cycle_while_another_channel_fails(
    server: Server, api: Any, make_hands: MakeHands
) -> None:
    [thing] = several(server, 1)
    async with loopback.serve(lambda asked: web.Response(text="ok")) as inbox, wires(api) as out:
        broken = idle.Channel("broken", "slack", (("webhook_url", Secret("http://127.0.0.1:9/x")),))
        warn = warn_of(thing, slack_at(inbox.url), broken)
        notice = msgspec.structs.replace(warn.finding.rule.notice, require_all=True)
        rule = msgspec.structs.replace(warn.finding.rule, notice=notice)
        warn = msgspec.structs.replace(warn, finding=msgspec.structs.replace(warn.finding, rule=rule))
        hands = make_hands(wires=out)
        outcomes = [(await carry_out(hands, [warn]))[0] for _ in range(3)]
    assert [outcome.status for outcome in outcomes] == [Status.failed] * 3
    assert len(inbox.asked) == 1


async def test_a_notice_of_the_same_idle_time_that_is_given_anew_is_sent_anew(
    server: Server, api: Any, make_hands: MakeHands
) -> None:
    """Kept, and then kept no longer: nobody would know that the clock runs again."""
    [thing] = several(server, 1)
    async with loopback.serve(lambda asked: web.Response(text="ok")) as inbox, wires(api) as out:
        hands, warn = make_hands(wires=out), warn_of(thing, slack_at(inbox.url))
        assert [(await carry_out(hands, [warn]))[0].status for _ in range(2)] == [Status.done] * 2
    assert len(inbox.asked) == 2


async def test_a_pager_whose_address_is_none_ends_nothing(server: Server, api: Any, make_hands: MakeHands) -> None:
    [thing] = several(server, 1)
    thing["metadata"]["annotations"] = {names.IDLE_EPISODE: "abc"}
    async with wires(api) as out:
        messenger = make_hands(wires=out).messenger
        for url in ("https://events..pagerduty.com/x", "https://[x", "nowhere"):
            channel = idle.Channel("pager", "pagerduty", (("routing_key", Secret("k")), ("url", Secret(url))))
            await messenger.settle([warn_of(thing, channel).finding])
            await messenger.settle([])


async def test_every_notice_by_event_is_an_event_of_its_own(server: Server, make_hands: MakeHands) -> None:
    [thing] = several(server, 1)
    hands, event = make_hands(), idle.Channel("here", "event")
    await carry_out(hands, [warn_of(thing, event)])
    later = msgspec.structs.replace(warn_of(thing, event), episode="other", pauses_at=NOW + 7200)
    await carry_out(hands, [later])
    assert len({each["note"] for each in server.events if each["reason"] == names.Event.NOTICE_SENT}) == 2


async def test_whoever_was_told_is_told_that_it_rests_and_how_it_comes_back(
    server: Server, api: Any, make_hands: MakeHands
) -> None:
    [thing] = several(server, 1)
    async with loopback.serve(lambda asked: web.Response(text="ok")) as inbox, wires(api) as out:
        hands = make_hands(wires=out, address=delivery.Address(head=HEAD))
        finding = warn_of(thing, slack_at(inbox.url)).finding
        told = await hands.messenger.tell_paused(finding, "Scaled Deployment ml/llm from 3 to 0", NOW)
    [button] = msgspec.json.decode(inbox.asked[0].body)["attachments"][0]["actions"]
    assert (button["name"], button["value"]) == ("resume", "Deployment:team-a:llm-0:resume")
    assert [each.failure for each in told] == [""]


async def test_an_incident_is_closed_when_its_idle_time_is_over(
    server: Server, api: Any, make_hands: MakeHands
) -> None:
    [thing] = several(server, 1)
    thing["metadata"]["annotations"] = {names.IDLE_EPISODE: "abc"}
    async with loopback.serve(lambda asked: web.Response(text="{}", status=202)) as inbox, wires(api) as out:
        hands = make_hands(wires=out, address=delivery.Address(head=HEAD))
        channel = idle.Channel("pager", "pagerduty", (("routing_key", Secret("k")), ("url", inbox.url)))
        await hands.messenger.settle([warn_of(thing, channel).finding])
        assert inbox.asked == []
        await hands.messenger.settle([])
        await hands.messenger.settle([])
    [asked] = inbox.asked
    sent = msgspec.json.decode(asked.body)
    assert (sent["event_action"], sent["dedup_key"]) == ("resolve", "fallow/ml-west/u-0/abc")


# ---- what they say ---------------------------------------------------------------------------------------------------


def facts_of(name: str = "llm", **more: Any) -> facts.NoticeFacts:
    thing = identified(EXAMPLES["deployment"])
    thing["metadata"]["name"] = name
    finding = warn_of(thing, **more).finding
    return facts.gather(finding, NOW, head=HEAD, pauses_at=NOW + 1800, per_hour=20.48)


def test_the_same_sentence_everywhere() -> None:
    found = facts_of()
    sentence = "llm has done no work for 47 min on any of its 12 GPUs."
    assert sentence in slack.notice(found, ())["attachments"][0]["fallback"]
    assert sentence in letter.notice(found).text
    assert sentence in letter.notice(found).html
    assert sentence in card.notice(found)[0][0]["text"]


def test_slack_is_told_as_the_contract_says() -> None:
    message = slack.notice(facts_of(), ["<@U1>", "<!here>"])
    attachment = message["attachments"][0]
    fields = {field["title"]: field["value"] for field in attachment["fields"]}
    assert message["text"] == "<@U1> <!here>"
    assert (attachment["callback_id"], attachment["color"]) == ("ack_idle_gpu", "warning")
    assert (attachment["title"], attachment["footer"]) == ("Idle GPU Detected", "gpu-pruner")
    assert attachment["ts"] == int(NOW)
    assert fields["Resource"] == "`Deployment: llm`"
    assert fields["Reason"] == "GPU idle for 47 minutes"
    assert fields["Action"] == "You have 30 minutes to acknowledge before scale-down"
    assert fields["Cost per day"] == "$491.52"
    assert [(each["text"], each["value"]) for each in attachment["actions"]] == [
        (f"Keep {hours}h", f"Deployment:team-a:llm:{hours}") for hours in (4, 8, 24)
    ]


def test_where_nobody_listens_there_are_no_buttons() -> None:
    """Who pressed one would believe that it is kept."""
    found = facts_of()
    found = msgspec.structs.replace(found, head=msgspec.structs.replace(HEAD, has_buttons=False))
    assert slack.notice(found, ())["attachments"][0]["actions"] == []
    assert slack.paused(found, "It rests.", ())["attachments"][0]["actions"] == []
    assert "fallow resume Deployment/llm -n team-a" in str(slack.paused(found, "It rests.", ()))


def test_seconds_are_said_below_a_minute() -> None:
    found = msgspec.structs.replace(facts_of(), pauses_at=NOW + 45)
    fields = {field["title"]: field["value"] for field in slack.notice(found, ())["attachments"][0]["fields"]}
    assert fields["Action"] == "You have 45 seconds to acknowledge before scale-down"


def test_buttons_end_where_the_policys_cap_does() -> None:
    assert facts.offered_hours(idle.Consent(max_ack=8 * 3600.0)) == (4, 8)
    assert facts.offered_hours(idle.Consent(max_ack=2 * 3600.0)) == (2,)
    assert facts.offered_hours(idle.Consent(max_ack=60.0)) == ()


def test_what_tenants_wrote_is_text_wherever_it_is_shown() -> None:
    found = facts_of(EVIL, because=EVIL, models=(EVIL,))
    assert EVIL not in letter.notice(found).html
    assert "<img" not in letter.notice(found).html
    assert "<img" not in str(slack.notice(found, ())["attachments"][0]["fields"])
    assert "<img" not in str(slack.digest([found] * 21, ()))
    assert "[x](http" not in str(card.notice(found)[0])


def test_links_open_the_page_with_a_time_chosen_and_never_act() -> None:
    draft = letter.notice(facts_of())
    assert "https://fallow.example.com/w/team-a/Deployment/llm?keep=4h" in draft.text
    assert draft.html.count("?keep=") == 3


def test_without_a_page_the_commands_are_there() -> None:
    found = facts.gather(facts_of().finding, NOW, head=facts.Letterhead(), pauses_at=None)
    assert "href" not in letter.notice(found).html
    assert "fallow ack Deployment/llm -n team-a" in letter.notice(found).text
    assert "Cost per day" not in str(slack.notice(found, ()))
