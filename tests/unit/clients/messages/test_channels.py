"""What each channel sends, what counts as confirmed, and what is never shown: on receivers that check what they get."""

import asyncio
import contextlib
import hashlib
import hmac
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import trustme
from aiohttp import web
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session
from tests.unit.clients import loopback

from fallow.clients import errors, retry
from fallow.clients.messages import mail, pager, post, slack, teams, webhook
from fallow.model import mailing
from fallow.model.secret import Secret

HASTY = retry.Patience(tries=3, first_wait=0.001)
KEY = Secret("s3cr3t")


@asynccontextmanager
async def poster(timeout: float = 5.0) -> AsyncIterator[post.Poster]:
    async with post.Poster({}, timeout=timeout, patience=HASTY) as made:
        yield made


def say(text: str = "ok", status: int = 200) -> loopback.Answer:
    return lambda asked: web.Response(text=text, status=status)


async def test_slack_has_it_when_its_webhook_says_ok() -> None:
    async with loopback.serve(say()) as server, poster() as wire:
        await slack.post_webhook(wire, Secret(f"{server.url}/services/T/B/x"), {"text": "a < b"})
    assert msgspec.json.decode(server.asked[0].body) == {"text": "a < b"}
    assert server.asked[0].headers["Content-Type"] == "application/json"


@pytest.mark.accepts("idle", 18)
@pytest.mark.parametrize(
    ("answer", "asked"), [(say("no_service", 404), 1), (say("oops", 500), 3), (say("<html>", 200), 1)],
    ids=["gone", "broken", "not-slack"],
)
async def test_slack_does_not_have_it_otherwise(answer: loopback.Answer, asked: int) -> None:
    async with loopback.serve(answer) as server, poster() as wire:
        with pytest.raises(errors.ClientError):
            await slack.post_webhook(wire, Secret(f"{server.url}/services/T/B/x"), {"text": "hello"})
    assert len(server.asked) == asked


async def test_a_service_that_was_busy_is_asked_again() -> None:
    answers = loopback.in_turn(say("later", 429), say("oops", 503), say())
    async with loopback.serve(answers) as server, poster() as wire:
        await slack.post_webhook(wire, Secret(server.url), {"text": "hello"})
    assert len(server.asked) == 3


async def test_a_bot_speaks_in_the_channel_it_was_told_to() -> None:
    async with loopback.serve(say('{"ok":true}')) as server, poster() as wire:
        await slack.post_message(wire, Secret("xoxb-1"), "#ml", {"text": "hello"}, api=f"{server.url}/api")
    assert server.asked[0].path == "/api/chat.postMessage"
    assert server.asked[0].headers["Authorization"] == "Bearer xoxb-1"
    assert msgspec.json.decode(server.asked[0].body) == {"text": "hello", "channel": "#ml"}


@pytest.mark.parametrize("said", ['{"ok":false,"error":"channel_not_found"}', "[]", "hm"])
async def test_a_bot_that_slack_did_not_hear_has_said_nothing(said: str) -> None:
    async with loopback.serve(say(said)) as server, poster() as wire:
        with pytest.raises(errors.BadAnswer, match=r"channel_not_found|no JSON object"):
            await slack.post_message(wire, Secret("xoxb-1"), "#ml", {}, api=server.url)


@pytest.mark.accepts("idle", 21)
@pytest.mark.parametrize("address", [
    "http://hooks.slack.com/a", "https://hooks.slack.com.evil.example/a", "https://evil.example/hooks.slack.com",
    "https://hooks.slack.com@evil.example/", "https://user:pass@hooks.slack.com/a", "https://hooks.slack.com:8443/a",
    "//hooks.slack.com/a", "https://[::1", "", "javascript:alert(1)",
])
async def test_an_answer_to_a_button_goes_to_slack_alone(address: str) -> None:
    async with poster() as wire:
        with pytest.raises(errors.Misconfigured, match="nothing was sent there"):
            await slack.respond(wire, address, {})


async def test_an_answer_to_a_button_reaches_slack() -> None:
    assert slack.may_respond_to("https://hooks.slack.com/actions/T/1/x")
    async with loopback.serve(say()) as server, poster() as wire:
        await slack.respond(wire, f"{server.url}/actions/1", {"replace_original": True}, hosts=(server.url,))
    assert msgspec.json.decode(server.asked[0].body) == {"replace_original": True}


async def test_an_incident_is_opened_and_closed_under_one_key() -> None:
    async with loopback.serve(say('{"status":"success"}', 202)) as server, poster() as wire:
        address = Secret(f"{server.url}/v2/enqueue")
        about: dict[str, Any] = {"summary": "llm is idle", "source": "ml-west", "details": {"gpus": 4}}
        await pager.trigger(wire, KEY, "fallow/c/u/e", **about, link="https://f/w", address=address)
        await pager.resolve(wire, KEY, "fallow/c/u/e", address=address)
    opened, closed = (msgspec.json.decode(asked.body) for asked in server.asked)
    assert (opened["event_action"], opened["dedup_key"]) == ("trigger", "fallow/c/u/e")
    assert opened["routing_key"] == "s3cr3t"
    assert opened["payload"]["severity"] == "warning"
    assert (closed["event_action"], closed["dedup_key"], "payload" in closed) == ("resolve", "fallow/c/u/e", False)


async def test_only_202_opens_an_incident() -> None:
    async with loopback.serve(say("{}", 200)) as server, poster() as wire:
        with pytest.raises(errors.BadAnswer, match="200 and not 202"):
            await pager.resolve(wire, KEY, "k", address=Secret(server.url))


async def test_whoever_has_the_key_can_tell_that_a_webhook_is_ours_and_new() -> None:
    async with loopback.serve(say("", 204)) as server, poster() as wire:
        await webhook.send(
            wire, Secret(server.url), {"verdict": "idle"}, 1_700_000_000.7, auth_header=Secret("Token t"), hmac_key=KEY
        )
    asked = server.asked[0]
    assert (asked.headers["Authorization"], asked.headers["X-Fallow-Timestamp"]) == ("Token t", "1700000000")
    expected = hmac.new(b"s3cr3t", b"1700000000." + asked.body, hashlib.sha256).hexdigest()
    assert asked.headers["X-Fallow-Signature"] == f"sha256={expected}"


async def test_a_webhook_without_a_key_is_not_signed() -> None:
    async with loopback.serve(say()) as server, poster() as wire:
        await webhook.send(wire, Secret(server.url), {}, 1.0)
    assert "X-Fallow-Signature" not in server.asked[0].headers
    assert "Authorization" not in server.asked[0].headers


async def test_teams_gets_an_adaptive_card() -> None:
    async with loopback.serve(say("", 202)) as server, poster() as wire:
        await teams.post_card(wire, Secret(server.url), [{"type": "TextBlock", "text": "idle"}])
    message = msgspec.json.decode(server.asked[0].body)
    assert message["attachments"][0]["content"]["body"] == [{"type": "TextBlock", "text": "idle"}]
    assert message["attachments"][0]["contentType"] == "application/vnd.microsoft.card.adaptive"


@pytest.mark.parametrize(("status", "text", "is_taken"), [
    (202, "", True), (200, "1", True), (200, "", True), (200, "Webhook message delivery failed with error", False),
])
async def test_teams_may_complain_in_a_200(status: int, text: str, is_taken: bool) -> None:
    async with loopback.serve(say(text, status)) as server, poster() as wire:
        with contextlib.nullcontext() if is_taken else pytest.raises(errors.BadAnswer):
            await teams.post_card(wire, Secret(server.url), [])


async def test_a_redirect_is_not_followed_because_a_secret_would_go_along() -> None:
    def move(asked: loopback.Asked) -> web.Response:
        return web.Response(status=307, headers={"Location": "/elsewhere"})

    async with loopback.serve(move) as server, poster() as wire:
        with pytest.raises(errors.Rejected, match="answered 307"):
            await webhook.send(wire, Secret(server.url), {}, 1.0, auth_header=KEY)
    assert [asked.path for asked in server.asked] == ["/"]


@pytest.mark.parametrize("break_it", ["refused", "slow", "cut", "no-url", "bad-port", "bad-host", "repeats"])
async def test_no_error_shows_the_address_of_a_webhook(break_it: str) -> None:
    async def never(asked: loopback.Asked) -> web.Response:
        await asyncio.sleep(30)
        return web.Response()

    def cut(asked: loopback.Asked) -> web.Response:
        raise ConnectionResetError

    def repeat(asked: loopback.Asked) -> web.Response:
        return web.Response(text=f"<pre>Cannot POST {asked.path}</pre>", status=404)

    answer = {"slow": never, "repeats": repeat}.get(break_it, cut)
    async with loopback.serve(answer) as server, poster(timeout=0.2) as wire:
        secret = "/services/T0/B0/p4ssw0rd"
        address = {
            "refused": f"http://127.0.0.1:9{secret}", "no-url": f"hooks{secret}", "bad-port": f"http://h:99999{secret}",
            "bad-host": "https://ada:p4ssw0rd：x@hooks.example/a",
        }.get(break_it, f"{server.url}{secret}")
        with pytest.raises(errors.ClientError) as problem:
            await slack.post_webhook(wire, Secret(address), {})
    assert "p4ssw0rd" not in str(problem.value)
    assert problem.value.__suppress_context__ or problem.value.__cause__ is None


# ---- e-mail, to a real SMTP server -----------------------------------------------------------------------------------

FORGED = "llm: idle\r\nBcc: all@example.com"
LETTER = mail.Letter(to=("ana@example.com",), subject=FORGED, text="plain", html="<b>rich</b>")


class Inbox:
    """Takes mail, or refuses it as a test says."""

    def __init__(self, refuse: Callable[[str], str | None] = lambda step: None) -> None:
        self.refuse = refuse
        self.letters: list[tuple[Envelope, bool]] = []

    async def handle_RCPT(self, server: SMTP, session: Session, envelope: Envelope, to: str, _: Any) -> str:  # noqa: N802
        if said := self.refuse("rcpt"):
            return said
        envelope.rcpt_tos.append(to)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        if said := self.refuse("data"):
            return said
        self.letters.append((envelope, session.ssl is not None))
        return "250 OK"


@asynccontextmanager
async def smtp(inbox: Inbox, tls: ssl.SSLContext | None = None, **more: Any) -> AsyncIterator[int]:
    """`tls`: from the first byte."""
    serving = asyncio.get_running_loop().create_server
    async with await serving(lambda: SMTP(inbox, **more), "127.0.0.1", 0, ssl=tls) as server:
        yield server.sockets[0].getsockname()[1]


def server_at(port: int, login: str = "", scheme: str = "smtp") -> mailing.MailServer:
    return mailing.MailServer.parse(Secret(f"{scheme}://{login}127.0.0.1:{port}"), "fallow <fallow@example.com>")


class RefusingInLatin(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        self._out = transport
        self._out.write(b"220 mail\r\n")

    def data_received(self, data: bytes) -> None:
        is_mail = data[:4].upper() == b"MAIL"
        self._out.write("550 Absender unzul\u00e4ssig\r\n".encode("latin-1") if is_mail else b"250 ok\r\n")


async def test_what_a_server_says_in_another_alphabet_can_be_written_down() -> None:
    async with await asyncio.get_running_loop().create_server(RefusingInLatin, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(errors.Rejected, match="Absender unzul") as refused:
            await mail.send(server_at(port), LETTER, patience=HASTY)
    str(refused.value).encode()


async def test_a_letter_is_handed_in_as_text_and_html_and_forges_no_header() -> None:
    inbox = Inbox()
    async with smtp(inbox) as port:
        await mail.send(server_at(port), LETTER, patience=HASTY)
    [(envelope, _)] = inbox.letters
    assert envelope.rcpt_tos == ["ana@example.com"]
    content = bytes(envelope.content or b"").decode()
    assert "Subject: llm: idle Bcc: all@example.com\r\n" in content
    assert "\r\nBcc:" not in content
    assert "text/plain" in content
    assert "<b>rich</b>" in content


@pytest.mark.parametrize(
    ("step", "said", "tries"),
    [("data", "554 no", 1), ("data", "451 later", 3), ("rcpt", "550 unknown", 1)], ids=["refused", "later", "nobody"],
)
async def test_a_letter_counts_only_when_it_was_taken(step: str, said: str, tries: int) -> None:
    asked: list[str] = []

    def refuse(at: str) -> str | None:
        asked.extend([at] if at == step else [])
        return said if at == step else None

    async with smtp(Inbox(refuse)) as port:
        with pytest.raises(errors.Rejected):
            await mail.send(server_at(port), LETTER, patience=HASTY)
    assert len(asked) == tries


def tls_pair(authority: trustme.CA) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    served, trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(served)
    authority.configure_trust(trusting)
    return served, trusting


def accept(server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: Any) -> AuthResult:
    known = isinstance(data, LoginPassword) and (data.login, data.password) == (b"ada", b"p@ss")
    return AuthResult(success=known, handled=False)


async def test_a_password_goes_only_through_tls() -> None:
    inbox, (served, trusting) = Inbox(), tls_pair(trustme.CA())
    async with smtp(inbox, tls_context=served, authenticator=accept, auth_required=True) as port:
        await mail.send(server_at(port, "ada:p%40ss@"), LETTER, patience=HASTY, tls=trusting)
    assert [was_tls for _, was_tls in inbox.letters] == [True]
    async with smtp(Inbox(), authenticator=accept, auth_require_tls=False) as port:  # offers no STARTTLS
        with pytest.raises(errors.ClientError) as problem:
            await mail.send(server_at(port, "ada:p%40ss@"), LETTER, patience=HASTY, tls=trusting)
    assert "p@ss" not in str(problem.value)


async def test_a_wrong_password_is_said_and_not_shown() -> None:
    served, trusting = tls_pair(trustme.CA())
    async with smtp(Inbox(), tls_context=served, authenticator=accept, auth_required=True) as port:
        with pytest.raises(errors.Rejected, match="does not accept our user and password") as problem:
            await mail.send(server_at(port, "ada:wr0ng@"), LETTER, patience=HASTY, tls=trusting)
    assert "wr0ng" not in str(problem.value)


async def test_smtps_speaks_tls_from_the_first_byte() -> None:
    inbox, (served, trusting) = Inbox(), tls_pair(trustme.CA())
    async with smtp(inbox, tls=served) as port:
        await mail.send(server_at(port, scheme="smtps"), LETTER, patience=HASTY, tls=trusting)
    assert len(inbox.letters) == 1


async def test_a_server_that_is_not_there_is_said() -> None:
    with pytest.raises(errors.Unreachable, match=r"127\.0\.0\.1 cannot be reached by SMTP"):
        await mail.send(server_at(9), LETTER, patience=retry.Patience(tries=1, first_wait=0.0), timeout=1.0)


async def test_a_letter_that_somebody_got_was_delivered() -> None:
    class Picky(Inbox):
        async def handle_RCPT(self, server: SMTP, session: Session, envelope: Envelope, to: str, _: Any) -> str:  # noqa: N802
            if to.startswith("nobody"):
                return "550 unknown"
            envelope.rcpt_tos.append(to)
            return "250 OK"

    inbox, letter = Picky(), mail.Letter(to=("a@b.com", "nobody@b.com"), subject="s", text="t", html="h")
    async with smtp(inbox) as port:
        assert await mail.send(server_at(port), letter, patience=HASTY) == ("nobody@b.com",)
    assert len(inbox.letters) == 1


@pytest.mark.parametrize("sender", ["f@x.org\r\nBcc: a@b.c", "nobody", "<>", ""])
def test_a_sender_that_is_none_is_refused(sender: str) -> None:
    with pytest.raises(ValueError, match="whose name letters carry"):
        mailing.MailServer.parse(Secret("smtp://h"), sender)


@pytest.mark.parametrize("address", [
    "smtp://ada:p4ss：x@mail.example", "http://h", "smtp://", "h:25", "smtp://u@h", "smtp://h:0x1", "smtp://:p@h",
])
def test_an_address_that_is_none_is_refused_and_not_shown(address: str) -> None:
    with pytest.raises(ValueError, match=r"smtp://|user or a password|port is no number"):
        mailing.MailServer.parse(Secret(address), "f@example.com")
