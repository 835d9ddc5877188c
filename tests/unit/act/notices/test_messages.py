"""The notices of one cycle on their way: route, gather, deliver, remember; on receivers that check what they get."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from aiohttp import web
from tests import builders
from tests.builders import HOUR
from tests.unit.act.carrying import MakeHands, annotations
from tests.unit.act.examples import EXAMPLES, NOW, identified
from tests.unit.act.notices.telling import HEAD, carry_out, several, slack_at, warn_of, wires
from tests.unit.act.server import Server
from tests.unit.clients import loopback

from fallow import names, settings
from fallow.act.notices import card, delivery, facts, letter, plain, slack
from fallow.decide.idle import plan as brain
from fallow.doors.answers import workloads as naming
from fallow.model import bills, decision, units
from fallow.model.decision import Status
from fallow.model.policies import idle
from fallow.model.secret import Secret
from fallow.stories import idle as stories

EVIL = "<img src=x onerror=alert(1)>&*_[x](http://e)"


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


async def test_every_notice_by_event_is_an_event_of_its_own(server: Server, make_hands: MakeHands) -> None:
    [thing] = several(server, 1)
    hands, event = make_hands(), idle.Channel("here", "event")
    await carry_out(hands, [warn_of(thing, event)])
    later = msgspec.structs.replace(warn_of(thing, event), episode="other", pauses_at=NOW + 7200)
    await carry_out(hands, [later])
    assert len({each["note"] for each in server.events if each["reason"] == names.Event.NOTICE_SENT}) == 2


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
    assert sentence in re.sub("<[^>]+>", "", letter.notice(found).html)
    assert sentence in card.notice(found)[0][0]["text"]


def test_a_letter_marks_what_was_measured_and_names_the_cost_so_far_and_the_way_back() -> None:
    html, text = letter.notice(facts_of()).html, letter.notice(facts_of()).text
    assert ">no work for 47 min</span> on any of its 12 GPUs." in html
    assert "scaled to 0 at <b>00:16 UTC</b> at the earliest" in html
    assert "one press on the same page" in html
    assert "$20.48 an hour, $16.04 so far" in html
    assert "$20.48 an hour, $16.04 so far" in text


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


def blocks_of(message: Any) -> list[tuple[str, str]]:
    return [(each["action_id"], each["text"]["text"]) for each in message["attachments"][1]["blocks"][0]["elements"]]


def test_a_bots_buttons_are_blocks_and_a_webhooks_stand_in_the_old_form_and_none_twice() -> None:
    found = facts_of()
    webhook, bot = slack.notice(found, ()), slack.notice(found, (), by_bot=True)
    assert blocks_of(webhook) == [("why", "Why")]
    assert blocks_of(bot) == [("ack_4", "Keep 4h"), ("ack_8", "Keep 8h"), ("ack_24", "Keep 24h"), ("why", "Why")]
    assert bot["attachments"][0] == {**webhook["attachments"][0], "actions": []}
    first, *_, last = bot["attachments"][1]["blocks"][0]["elements"]
    assert (first["value"], last["url"]) == ("Deployment:team-a:llm:4", found.page)
    rests = slack.paused(found, "It rests.", (), by_bot=True)
    assert blocks_of(rests) == [("resume", "Resume"), ("why", "Why")]


@pytest.mark.parametrize(("secret", "ids"), [
    ("bot_token", ["ack_4", "ack_8", "ack_24", "why"]), ("webhook_url", ["why"]),
])
async def test_by_which_wire_it_goes_decides(
    server: Server, api: Any, make_hands: MakeHands, secret: str, ids: list[str]
) -> None:
    async with loopback.serve(lambda asked: web.Response(
        **({"text": "ok"} if secret == "webhook_url" else {"text": '{"ok": true}', "content_type": "application/json"})
    )) as inbox, wires(api) as out:
        given = (("api_url", inbox.url), ("channel", "#ml"), (secret, Secret(f"{inbox.url}/x")))
        hands = make_hands(wires=out, address=delivery.Address(head=HEAD))
        [outcome] = await carry_out(hands, [warn_of(several(server, 1)[0], idle.Channel("team", "slack", given))])
    assert outcome.status is Status.done
    assert [name for name, _ in blocks_of(msgspec.json.decode(inbox.asked[0].body))] == ids


def test_where_nobody_listens_there_are_no_buttons() -> None:
    """Who pressed one would believe that it is kept."""
    found = facts_of()
    found = msgspec.structs.replace(found, head=msgspec.structs.replace(HEAD, has_buttons=False))
    for by_bot in (False, True):
        for message in (slack.notice(found, (), by_bot=by_bot), slack.paused(found, "It rests.", (), by_bot=by_bot)):
            [only] = message["attachments"]
            assert only["actions"] == []
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
    assert "<img" not in str(slack.bundle([found] * 21, ()))
    assert "[x](http" not in str(card.notice(found)[0])


def test_links_open_the_page_with_a_time_chosen_and_never_act() -> None:
    draft = letter.notice(facts_of())
    assert "https://fallow.example.com/w/team-a/Deployment/llm?keep=4h" in draft.text
    assert draft.html.count("?keep=") == 3


BOOKS = idle.Channel("books", "webhook", (("url", Secret("https://books.example.com")),))


def test_a_webhook_is_told_what_explain_tells() -> None:
    world, notice = builders.World(), idle.Notice(required=True, grace=1800.0, channels=(BOOKS,))
    world.workload("ml/llm", gpus=[builders.idle(for_=2 * HOUR), builders.idle(for_=3 * HOUR)])
    seen, mandate = world.snapshot(), builders.mandate(builders.rule(notice=notice))
    made = brain.make_plan(seen, mandate, decision.Memory(), world.now)
    [warn] = [each for each in made.decisions if isinstance(each, decision.Warn)]
    gathered = delivery.Address(head=HEAD).gather_facts(warn.finding, world.now, warn.pauses_at, warn.proof)
    said = msgspec.json.decode(msgspec.json.encode(plain.notice(gathered)))
    look = stories.Look(seen, made, settings.read_flags({}, {}))
    answer = naming.explanation(warn.finding, made.findings.evidence(0), look.patch_of(warn.finding), world.now, None)
    explained = msgspec.json.decode(msgspec.json.encode(answer))
    beside = {"type", "cluster", "models", "page", "keep", "resume", "nextAction"}
    assert said["nextAction"] == {"type": "pause", "at": units.rfc3339(world.now + 1800)}
    assert (said["type"], said["patch"].keys(), len(said["gpus"])) == ("notice", explained["patch"].keys(), 2)
    assert all(_is_within(said[name], explained[name]) for name in said.keys() - beside)


def _is_within(some: Any, whole: Any) -> bool:
    """All that the one says, the other says too."""
    if isinstance(some, dict) and isinstance(whole, dict):
        return all(name in whole and _is_within(value, whole[name]) for name, value in some.items())
    if isinstance(some, list) and isinstance(whole, list):
        return len(some) == len(whole) and all(map(_is_within, some, whole))
    return bool(some == whole)


@pytest.mark.parametrize(("count", "kind"), [(1, "notice"), (21, "notices")])
async def test_a_webhook_gets_one_workload_as_it_is_and_many_in_a_list(
    server: Server, api: Any, make_hands: MakeHands, count: int, kind: str
) -> None:
    async with loopback.serve(lambda asked: web.Response()) as inbox, wires(api) as out:
        books = idle.Channel("books", "webhook", (("url", Secret(f"{inbox.url}/x")),))
        hands = make_hands(wires=out, address=delivery.Address(head=HEAD))
        known = (bills.ModelHolding("T4", 2.0, 8),)
        await carry_out(hands, [warn_of(thing, books, holdings=known) for thing in several(server, count)])
    [said] = [msgspec.json.decode(asked.body) for asked in inbox.asked]
    every = said.get("workloads", [said])
    assert (said["type"], len(every)) == (kind, count)
    assert {(one["verdict"], one["cost"]["currency"]) for one in every} == {("idle", "USD")}
    assert {one["idleSince"] for one in every} == {units.rfc3339(NOW - 47 * 60)}


def test_without_a_page_the_commands_are_there() -> None:
    found = facts.gather(facts_of().finding, NOW, head=facts.Letterhead(), pauses_at=None)
    assert "href" not in letter.notice(found).html
    assert "fallow ack Deployment/llm -n team-a" in letter.notice(found).text
    assert "Cost per day" not in str(slack.notice(found, ()))


async def test_a_notice_tells_what_its_gpus_cost_where_that_is_known(
    server: Server, api: Any, make_hands: MakeHands
) -> None:
    """By share: eight quarters of a T4 are two."""
    known = (bills.ModelHolding("T4", 2.0, 8),)
    unknown = (*known, bills.ModelHolding("", 1.0, 1))
    async with loopback.serve(lambda asked: web.Response(text="ok")) as inbox, wires(api) as out:
        hands = make_hands(wires=out, address=delivery.Address(head=HEAD))
        for held, thing in zip((known, unknown), several(server, 2), strict=True):
            await carry_out(hands, [warn_of(thing, slack_at(inbox.url), holdings=held)])
    fields = [msgspec.json.decode(asked.body)["attachments"][0]["fields"] for asked in inbox.asked]
    told = [{each["title"]: each["value"] for each in some} for some in fields]
    assert [each.get("Cost per day") for each in told] == ["$25.25", None]


@pytest.mark.parametrize(("seconds", "minutes", "span"), [
    (47 * 60 + 40, "47 minutes", "47 min"), (2 * 3600 + 59, "120 minutes", "2 h"), (60, "1 minute", "1 min"),
])
def test_a_message_has_one_idle_time_however_it_is_written(seconds, minutes, span) -> None:
    """Rounded up here and down there, they were two."""
    found = facts_of(idle_since=NOW - seconds)
    fields = {field["title"]: field["value"] for field in slack.notice(found, ())["attachments"][0]["fields"]}
    assert fields["Reason"] == f"GPU idle for {minutes}"
    assert f"for {span} on any" in fields["Details"]


def test_a_pause_is_announced_for_the_earliest_time_that_it_may_come() -> None:
    found = facts_of()
    assert " UTC at the earliest, in 30 min, unless you keep it." in found.upcoming
    assert " UTC at the earliest" in str(slack.bundle([found, facts_of("other")], ()))
