"""The pretend Slack and mail server take what the product's own clients send, and refuse what is neither."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest

from fallow.clients.messages import mail, post, slack
from fallow.model import mailing
from fallow.model.secret import Secret
from fallow.sim.servers import boxes

NOW = 1_000.0


@pytest.fixture
async def read() -> AsyncIterator[boxes.Boxes]:
    made = boxes.Boxes(lambda: NOW)
    await made.start()
    yield made
    await made.stop()


async def test_a_letter_arrives_with_its_receivers_and_its_words(read: boxes.Boxes) -> None:
    server = mailing.MailServer.parse(Secret(read.smtp), "fallow@example.com")
    both = ("ana@example.com", "ben@example.com")
    letter = mail.Letter(to=both, subject="llm rests", text="Hello.", html="<p>Hello.")
    assert await mail.send(server, letter) == ()
    [one] = read.messages
    assert (one.at, one.by, one.to) == (NOW, "mail", both)
    assert (one.title, one.text) == ("llm rests", "Hello.")


async def test_a_card_of_slack_arrives_in_plain_words(read: boxes.Boxes) -> None:
    fields = [{"title": "GPUs", "value": "2 &lt; 3"}, {"title": "Details", "value": "see <http://x/y|Evidence> `now`"}]
    card = {"channel": "#team", "attachments": [{"title": "Paused", "fields": fields}]}
    async with post.Poster({}) as poster:
        await slack.post_webhook(poster, Secret(read.webhook), card)
    [one] = read.messages
    assert (one.to, one.title, one.text) == (("#team",), "Paused", "see Evidence now")
    assert one.fields == (("GPUs", "2 < 3"),)


@pytest.mark.parametrize("body", [b"", b"no json", b"[]", b"{}", b'{"attachments":[]}', b'{"attachments":[{}]}'])
async def test_what_is_no_message_is_refused(read: boxes.Boxes, body: bytes) -> None:
    async with aiohttp.ClientSession() as session, session.post(read.webhook, data=body) as answer:
        assert answer.status == 400
    assert not read.messages
