"""The digest goes once for each time it is due, over restarts and leader changes, and again where it did not arrive:
a real Lease on a small API server, Slack and a mail server on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import email
import json
import sqlite3
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from email import policy
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from tests import builders
from tests.unit.clients import loopback
from tests.unit.clients.kubernetes import test_lease
from tests.unit.clients.kubernetes import wire as kube_wire
from tests.unit.clients.messages import test_channels as channels

from fallow import names, settings, telemetry
from fallow.account import audit, digest
from fallow.act.notices import digesting, facts, senders
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import lease
from fallow.model import decision
from fallow.model.digest import DigestAck
from fallow.model.units import DAY, HOUR, MINUTE, parse_instant
from fallow.stories import digest as digests
from fallow.stories.turn import Turn

FRIDAY = parse_instant("2026-11-13T17:00:00Z")
SEEN = builders.World(FRIDAY).snapshot()


class Office:
    """A daemon of which only the digest is looked at; `now` is set by the test."""

    def __init__(self, api: kube.Api, wires: senders.Senders, options: settings.Settings, kept: audit.Audit) -> None:
        self.now, self.api, self.leads, self.seen = FRIDAY - DAY, api, True, SEEN
        self.metrics, self._wires, self._options, self._kept = telemetry.Telemetry(), wires, options, kept
        self.held: lease.Leadership
        self.server: kube_wire.Server
        self.leases: test_lease.LeaseServer
        self.story: digests.DigestStory

    async def start(self, identity: str, *, remembers: bool = True) -> None:
        """A process begins: what it knows, it has from the Lease."""
        self.held = lease.Leadership(
            self.api, namespace="gpu", name="gpu-pruner", identity=identity,
            utcnow=lambda: datetime.fromtimestamp(self.now, UTC),
        )
        assert await self.held.acquire(5.0)
        wanted = self._options.telling.digest
        assert wanted.schedule is not None
        self.story = digests.DigestStory(
            schedule=wanted.schedule, channels=wanted.channels, kept=self._kept, wires=self._wires,
            ask=digest.DigestAsk(since=0.0, until=0.0, is_dry=False, cluster_name="prod"),
            latest=lambda: decision.Cycle(None, self.seen, (), "", 0.1), head=facts.Letterhead("prod"),
            metrics=self.metrics, recall=lambda: self.held.annotations,
            note=self.held.note if remembers else None,
        )

    async def tick(self, at: float) -> digests.DigestTurn:
        self.now = at
        return await self.story.tick(Turn(
            clock=lambda: self.now, monotonic=lambda: 0.0, budget=60.0, stopping=asyncio.Event(),
            leads=lambda: self.leads,
        ))


@contextlib.asynccontextmanager
async def office(
    slack: loopback.Answer | None = None, mail: channels.Inbox | None = None, folder: Path | None = None, **given: Any
) -> AsyncIterator[tuple[Office, loopback.Loopback]]:
    kept = audit.Audit(None if folder is None else str(folder))
    await kept.open()
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(kube_wire.Server())
        leases = test_lease.LeaseServer(server)
        room = await stack.enter_async_context(loopback.serve(slack or channels.say()))
        poster = await stack.enter_async_context(channels.poster())
        said: dict[str, Any] = {"digest_schedule": "0 17 * * 5", **given}
        if slack is not None:
            said |= {"slack_webhook_url": f"{room.url}/services/T/B/s3cret", "slack_channel": "#gpu"}
        if mail is not None:
            port = await stack.enter_async_context(channels.smtp(mail))
            said |= {"smtp_url": f"smtp://127.0.0.1:{port}", "email_from": "fallow@example.com",
                     "digest_email": "ops@example.com,boss@example.com"}
        options = settings.read_flags(said, {})
        api = await stack.enter_async_context(kube.Api(server.access))
        wires = senders.Senders(poster, senders.SecretReader(api, "gpu"), options.telling.mail)
        made = Office(api, wires, options, kept)
        made.server, made.leases = server, leases
        await made.start("a")
        yield made, room
        await kept.close()


async def test_it_goes_once_when_it_is_due() -> None:
    async with office(channels.say()) as (made, room):
        for at in (FRIDAY - DAY, FRIDAY - MINUTE, FRIDAY, FRIDAY + MINUTE, FRIDAY + 6 * DAY):
            await made.tick(at)
        assert len(room.asked) == 1
        await made.tick(FRIDAY + 7 * DAY)
    assert len(room.asked) == 2
    message = json.loads(room.asked[0].body)
    assert message["channel"] == "#gpu"
    [shown] = message["attachments"]
    held = "0.0 GPU-hours held idle (0.00 USD)"
    assert shown["fallback"] == f"prod, 2026-11-06 to 2026-11-13: {held}"
    assert [field["title"] for field in shown["fields"]] == [
        "What was done", "Given back", "Most idle, by namespace", "Most idle, 0 workloads", "Kept on purpose",
        "How well it was seen",
    ]
    assert b'fallow_digests_total{channel="slack",result="done"} 2.0' in made.metrics.text()


async def test_neither_a_restart_nor_another_leader_sends_it_again() -> None:
    async with office(channels.say()) as (made, room):
        await made.tick(FRIDAY - DAY)
        await made.tick(FRIDAY)
        await made.start("a")
        await made.tick(FRIDAY + MINUTE)
        await made.held.release()
        await made.start("b")
        await made.tick(FRIDAY + HOUR)
    assert len(room.asked) == 1


async def test_one_that_was_under_way_when_its_sender_died_is_not_sent_again(caplog: pytest.LogCaptureFixture) -> None:
    """Whether it arrived nobody knows: what dies while it sends would else send in every life."""
    arrived = asyncio.Event()

    async def take_long(asked: loopback.Asked) -> web.Response:
        arrived.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with office(loopback.in_turn(take_long, channels.say())) as (made, room):
        await made.tick(FRIDAY - DAY)
        sending = asyncio.create_task(made.tick(FRIDAY))
        await arrived.wait()
        sending.cancel()
        await asyncio.wait({sending})
        await made.start("a")
        await made.tick(FRIDAY + MINUTE)
        await made.tick(FRIDAY + 2 * MINUTE)
        assert len(room.asked) == 1
        said = [each for each in caplog.records if "is not sent there again" in each.getMessage()]
        assert len(said) == 1  # not with every turn until the next one is due
        await made.tick(FRIDAY + 7 * DAY)
    assert len(room.asked) == 2


async def test_what_could_not_be_written_down_before_is_not_sent_yet() -> None:
    async with office(channels.say()) as (made, room):
        await made.tick(FRIDAY - DAY)
        made.server.on("PUT", test_lease.LEASE, kube_wire.status(403, "Forbidden"))
        assert "could not be written on the Lease" in (await made.tick(FRIDAY)).missed[0]
        assert room.asked == []
        made.server.on("PUT", test_lease.LEASE, made.leases.put)
        await made.tick(FRIDAY + MINUTE)
    assert len(room.asked) == 1


async def test_a_daemon_that_was_down_when_it_was_due_sends_it_late() -> None:
    async with office(channels.say()) as (made, room):
        await made.tick(FRIDAY - DAY)
        await made.start("a")
        await made.tick(FRIDAY + DAY)
        assert "2026-11-06 to 2026-11-13" in room.asked[0].body.decode()
    assert len(room.asked) == 1


async def test_nobody_is_sent_one_that_was_due_before_anybody_asked() -> None:
    async with office(channels.say()) as (made, room):
        await made.tick(FRIDAY + HOUR)
        await made.tick(FRIDAY + DAY)
    assert room.asked == []


async def test_what_did_not_arrive_is_tried_again_and_only_that(caplog: pytest.LogCaptureFixture) -> None:
    inbox, broken = channels.Inbox(), [web.Response(status=500, text="/services/T/B/s3cret is down")] * 6

    def slack(asked: loopback.Asked) -> web.Response:
        return web.Response(status=500, text=broken.pop().text) if broken else web.Response(text="ok")

    async with office(slack, inbox) as (made, room):
        await made.tick(FRIDAY - DAY)
        first, second = await made.tick(FRIDAY), await made.tick(FRIDAY + MINUTE)
        assert (first.sent, first.failure) == (("email",), "")
        assert first.missed == second.missed
        third = await made.tick(FRIDAY + 2 * MINUTE)
        assert set(third.sent) == {"email", "slack"}
        await made.tick(FRIDAY + 3 * MINUTE)
    assert len(room.asked) == 7  # three tries each, then once
    assert len(inbox.letters) == 1
    said = [each.getMessage() for each in caplog.records if "was not delivered" in each.getMessage()]
    assert len(said) == 1
    assert "s3cret" not in caplog.text
    assert b'fallow_digests_total{channel="slack",result="failed"} 2.0' in made.metrics.text()


async def test_what_it_cannot_be_made_of_is_said_once_and_it_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with office(channels.say(), folder=tmp_path) as (made, room):
        await made.tick(FRIDAY - DAY)
        with contextlib.closing(sqlite3.connect(tmp_path / audit.FILE)) as other:
            other.execute("ALTER TABLE held RENAME TO away")
        first, second = await made.tick(FRIDAY), await made.tick(FRIDAY + MINUTE)
        assert room.asked == []
        assert "it could not be made: " in first.missed[0]
        assert (second.missed, second.failure) == (first.missed, "")
        assert len([each for each in caplog.records if "was not delivered" in each.getMessage()]) == 1
        with contextlib.closing(sqlite3.connect(tmp_path / audit.FILE)) as other:
            other.execute("ALTER TABLE away RENAME TO held")
        await made.tick(FRIDAY + 2 * MINUTE)
    assert len(room.asked) == 1


async def test_who_has_it_is_known_to_the_next_leader_channel_by_channel() -> None:
    inbox, is_down = channels.Inbox(), [True]

    def slack(asked: loopback.Asked) -> web.Response:
        return web.Response(status=500) if is_down[0] else web.Response(text="ok")

    async with office(slack, inbox) as (made, room):
        await made.tick(FRIDAY - DAY)
        await made.tick(FRIDAY)
        await made.held.release()
        is_down[0] = False
        await made.start("b")
        await made.tick(FRIDAY + HOUR)
        assert json.loads(made.held.annotations[names.DIGEST])["sent"] == ["email", "slack"]
    assert (len(inbox.letters), len(room.asked)) == (1, 4)


async def test_a_letter_has_the_same_words_as_text_and_as_html() -> None:
    inbox = channels.Inbox()
    async with office(mail=inbox) as (made, _):
        await made.tick(FRIDAY - DAY)
        await made.tick(FRIDAY)
    [(envelope, _)] = inbox.letters
    assert envelope.rcpt_tos == ["ops@example.com", "boss@example.com"]
    letter = email.message_from_bytes(bytes(envelope.content or b""), policy=policy.default)
    assert letter["Subject"].startswith("GPU digest: prod, 2026-11-06 to 2026-11-13")
    plain, html = (letter.get_body((kind,)).get_content() for kind in ("plain", "html"))
    for words in ("How well it was seen", "0% of the time was seen, and nothing is known of it"):
        assert words in plain
        assert words in html


async def test_what_a_tenant_wrote_on_an_acknowledgement_is_one_short_line_of_it() -> None:
    kept = audit.Audit(None)
    await kept.open()
    ask = digest.DigestAsk(since=FRIDAY - DAY, until=FRIDAY, is_dry=False, cluster_name="prod")
    forged = DigestAck(
        namespace="ml", kind="Deployment", name="llm", by="ada\u202e\nboss", until="2026-11-14T17:00:00Z",
        reason="x\n\nGiven back\n  9,999.0 GPU-hours by 1 pause\r\x1b[2J" + "y" * 200_000, gpu_hours=1.0, cost=None,
    )
    made = msgspec.structs.replace(await digest.make(kept, None, ask), acks=(forged,))
    text, head = digesting.write_text(made), facts.Letterhead("prod")
    letter, posted = digesting.write_letter(made, head), digesting.write_slack(made, head)
    [shown] = [line for line in text.splitlines() if "Deployment/llm" in line]
    assert shown.startswith("  ml: Deployment/llm, 1.0 GPU-hours idle, until 2026-11-14T17:00:00Z by ada")
    assert [line.strip() for line in text.splitlines()].count("Given back") == 1
    assert "\x1b" not in text + letter.html + json.dumps(posted, ensure_ascii=False)
    assert max(len(text), len(letter.html), len(json.dumps(posted))) < 10_000
    await kept.close()


async def test_a_channel_that_was_taken_away_leaves_nobody_out_and_ends() -> None:
    inbox, is_down = channels.Inbox(), [True]

    def slack(asked: loopback.Asked) -> web.Response:
        return web.Response(status=500) if is_down[0] else web.Response(text="ok")

    async with office(slack, inbox) as (made, room):
        await made.tick(FRIDAY - DAY)
        due = {"due": "2026-11-13T17:00:00Z", "sent": ["pager"]}
        await made.held.note(lambda said: {names.DIGEST: json.dumps(due)})
        await made.start("a")
        assert (await made.tick(FRIDAY)).sent == ("pager", "email")
        is_down[0] = False
        assert set((await made.tick(FRIDAY + MINUTE)).sent) == {"pager", "email", "slack"}
        assert (await made.tick(FRIDAY + 2 * MINUTE)).sent == ()  # over
    assert (len(inbox.letters), len(room.asked)) == (1, 4)


async def test_without_a_channel_it_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with office() as (made, _):
        await made.tick(FRIDAY - DAY)
        await made.tick(FRIDAY)
        await made.tick(FRIDAY + MINUTE)
    [record] = [each for each in caplog.records if each.getMessage().startswith("digest\n")]
    assert record.fields["digest"]["cluster"] == "prod"  # type: ignore[attr-defined]


@pytest.mark.parametrize("text", ["{", "[]", '{"sent": []}', "\x00"])
async def test_a_memory_that_cannot_be_read_sends_one_too_few_and_none_twice(text: str) -> None:
    async with office(channels.say()) as (made, room):
        await made.held.note(lambda said: {names.DIGEST: text})
        await made.tick(FRIDAY + HOUR)
        await made.tick(FRIDAY + 2 * HOUR)
        assert room.asked == []
        await made.tick(FRIDAY + 7 * DAY)
    assert len(room.asked) == 1


async def test_what_could_not_be_written_on_the_lease_is_known_to_who_sent_it() -> None:
    async with office(channels.say()) as (made, room):
        await made.tick(FRIDAY - DAY)
        made.held._led_until = None  # it lost the Lease just now: it may not write there
        await made.tick(FRIDAY)
        await made.tick(FRIDAY + MINUTE)
    assert len(room.asked) == 1


async def test_who_no_longer_leads_sends_nothing() -> None:
    async with office(channels.say()) as (made, room):
        await made.tick(FRIDAY - DAY)
        made.leads = False
        await made.tick(FRIDAY)
    assert room.asked == []


async def test_while_the_cluster_cannot_be_seen_it_waits_for_an_hour_at_most() -> None:
    async with office(channels.say()) as (made, room):
        await made.tick(FRIDAY - DAY)
        made.seen = None  # type: ignore[assignment]
        await made.tick(FRIDAY + MINUTE)
        assert room.asked == []
        await made.tick(FRIDAY + HOUR + MINUTE)
    [asked] = room.asked
    said = {each["title"]: each["value"] for each in json.loads(asked.body)["attachments"][0]["fields"]}
    unknown = "not known: the cluster could not be seen when this was made"
    assert (said["Given back"], said["Kept on purpose"]) == (unknown, unknown)  # and not 0


def test_its_flags_are_refused_in_words() -> None:
    for given, words in (
        ({"digest_schedule": "soon"}, "--digest-schedule: 'soon' is no time of cron"),
        ({"digest_timezone": "Mars"}, "--digest-timezone: 'Mars' is no time zone"),
        ({"digest_top": "0"}, "--digest-top"), ({"digest_email": "a@b.c"}, "--digest-email needs --smtp-url"),
    ):
        with pytest.raises(settings.UsageError, match=words):
            settings.read_flags(given, {})
    assert settings.read_flags({}, {"TOP_N": "3"}).telling.digest.top == 3
