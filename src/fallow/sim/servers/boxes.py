"""The pretend Slack and the pretend mail server of the demo: they take every message and keep it to be read.

In: what the product posts to a webhook, and letters by SMTP, both over sockets on loopback. Out: `BoxedMessage`s in the
order in which they came, each with the instant of the world, in plain text.
Invariant: bounded; nothing leaves this process, and a message that cannot be read is refused, as a real one would be.
"""

import asyncio
import contextlib
import email
import email.policy
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal

import msgspec
from aiohttp import web

from fallow.model.units import Instant

_MOST: Final = 1_000
_LARGEST: Final = 256 * 1024
_DONE: Final = {b"EHLO": b"250 pretend\r\n", b"HELO": b"250 pretend\r\n", b"QUIT": b"221 bye\r\n"}
_LINK = re.compile(r"<(?:https?://[^|>]+)\|([^>]+)>")


class BoxedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """`to`: the room or the addresses; `title`: of a Slack card, or the subject of a letter."""

    at: Instant
    by: Literal["slack", "mail"]
    to: tuple[str, ...]
    title: str
    text: str
    fields: tuple[tuple[str, str], ...] = ()


class Boxes:
    """`webhook` and `smtp`: where the product reaches them, once started."""

    def __init__(self, clock: Callable[[], Instant]) -> None:
        self.messages: deque[BoxedMessage] = deque(maxlen=_MOST)
        self.webhook, self.smtp = "", ""
        self._clock = clock
        self._slack: web.AppRunner | None = None
        self._mail: asyncio.Server | None = None

    async def start(self) -> None:
        app = web.Application(client_max_size=_LARGEST)
        app.router.add_post("/services/pretend", self._take_slack)
        self._slack = web.AppRunner(app, access_log=None)
        await self._slack.setup()
        await web.TCPSite(self._slack, "127.0.0.1", 0).start()
        self.webhook = f"http://127.0.0.1:{self._slack.addresses[0][1]}/services/pretend"
        self._mail = await asyncio.start_server(self._talk, "127.0.0.1", 0, limit=_LARGEST)
        self.smtp = f"smtp://127.0.0.1:{self._mail.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        if self._slack is not None:
            await self._slack.cleanup()
        if self._mail is not None:
            self._mail.close()

    # ---- Slack -------------------------------------------------------------------------------------------------------

    async def _take_slack(self, request: web.Request) -> web.Response:
        try:
            said = msgspec.json.decode(await request.read())
            self.messages.append(self._read_slack(said))
        except (msgspec.DecodeError, KeyError, IndexError, TypeError, AttributeError):
            return web.Response(status=400, text="invalid_payload")
        return web.Response(text="ok")

    def _read_slack(self, said: Mapping[str, Any]) -> BoxedMessage:
        card = said["attachments"][0]
        fields = tuple((each["title"], _plain(each["value"])) for each in card.get("fields", ()))
        text = _plain(card.get("text") or said.get("text", ""))
        details = next((value for title, value in fields if title == "Details"), text)
        return BoxedMessage(
            at=self._clock(), by="slack", to=(said.get("channel") or "the webhook's own room",), title=card["title"],
            text=details, fields=tuple(each for each in fields if each[0] != "Details"),
        )

    # ---- mail --------------------------------------------------------------------------------------------------------

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """As much of SMTP as a client needs that sends one letter."""
        to: list[str] = []
        writer.write(b"220 pretend ESMTP\r\n")
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            while line := await reader.readuntil(b"\r\n"):
                word = line[:4].upper()
                if word == b"RCPT":
                    to.append(_address(line))
                if word == b"DATA":
                    writer.write(b"354 go on\r\n")
                    await writer.drain()
                    self._take_letter(to, await reader.readuntil(b"\r\n.\r\n"))
                    to = []
                writer.write(_DONE.get(word, b"250 ok\r\n"))
                await writer.drain()
                if word == b"QUIT":
                    break
        writer.close()

    def _take_letter(self, to: list[str], data: bytes) -> None:
        letter = email.message_from_bytes(data.removesuffix(b".\r\n"), policy=email.policy.SMTP)
        body = letter.get_body(("plain",))
        text = body.get_content() if body is not None else ""
        self.messages.append(BoxedMessage(
            at=self._clock(), by="mail", to=tuple(to), title=str(letter["Subject"]), text=text.strip()
        ))


def _address(line: bytes) -> str:
    found = re.search(rb"<([^>]*)>", line)
    return found[1].decode("ascii", "replace") if found else ""


def _plain(text: str) -> str:
    """Slack's own marks taken out: links by their words, its three escapes undone."""
    shown = _LINK.sub(r"\1", text).replace("`", "")
    return shown.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def channels(boxes: Boxes, *kinds: str) -> Iterator[dict[str, Any]]:
    """For a policy of the demo: by these, and always by an Event."""
    for kind in kinds:
        config = {"config": {"webhook_url": boxes.webhook}} if kind == "slack" else {}
        yield {"name": kind, "type": kind, **config}
    yield {"name": "event", "type": "event"}
