"""A message on its way: by the channel's own wire, with its secrets, laid out as that channel shows it.

In: an Envelope. Out: nothing, once the other side confirmed it; else a ClientError that says why not, without a secret.
Secrets stand in Secrets of our own namespace and are read when they are needed, at most once a minute.
"""

import base64
import binascii
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from fallow.act.notices import card, digesting, letter, plain, route, slack
from fallow.act.notices.facts import Letterhead, NoticeFacts
from fallow.clients import errors
from fallow.clients.kubernetes import api as kubernetes
from fallow.clients.messages import mail, pager, post, teams, webhook
from fallow.clients.messages import slack as slack_wire
from fallow.model import mailing
from fallow.model.digest import Digest
from fallow.model.policies import idle
from fallow.model.policies.idle import ChannelType
from fallow.model.secret import Secret
from fallow.model.units import Seconds

log = logging.getLogger(__name__)

_REMEMBERED: Seconds = 60.0  # a Secret: for so long


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """One message: about one workload, or several at once. `what`: the pause it tells of; "" = it is a notice."""

    route: route.NoticeRoute
    facts: tuple[NoticeFacts, ...]
    mentions: tuple[str, ...] = ()
    what: str = ""
    dedup_key: str = ""  # of an incident


class SecretReader:
    """Keys of Secrets in our own namespace."""

    def __init__(self, api: kubernetes.Api, namespace: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._api, self._namespace, self._monotonic = api, namespace, monotonic
        self._known: dict[str, tuple[float, Mapping[str, str]]] = {}

    async def read(self, ref: idle.SecretKey) -> Secret[str]:
        data = await self._read_all(ref.name)
        try:
            return Secret(base64.b64decode(data[ref.key], validate=True).decode().strip())
        except KeyError:
            raise errors.Misconfigured(f"the Secret {ref.name} has no key {ref.key}") from None
        except (binascii.Error, UnicodeDecodeError):
            raise errors.Misconfigured(f"the key {ref.key} of the Secret {ref.name} is no text") from None

    async def _read_all(self, name: str) -> Mapping[str, str]:
        known = self._known.get(name)
        if known is None or self._monotonic() - known[0] > _REMEMBERED:
            found = await self._api.get(kubernetes.SECRETS, self._namespace, name)
            known = self._known[name] = self._monotonic(), found.get("data") or {}
        return known[1]


class ReadsSecrets(Protocol):
    async def read(self, ref: idle.SecretKey) -> Secret[str]: ...


class Senders:
    """All wires but that of Events. `server`: by which mail is sent; None: there is none."""

    def __init__(self, poster: post.Poster, secrets: ReadsSecrets, server: mailing.MailServer | None) -> None:
        self._poster, self._secrets, self._server = poster, secrets, server

    async def send(self, envelope: Envelope) -> None:
        match envelope.route.channel.type:
            case ChannelType.slack:
                await self._send_slack(envelope)
            case ChannelType.email:
                await self._send_letter(envelope)
            case ChannelType.pagerduty:
                await self._page(envelope)
            case ChannelType.webhook:
                await self._call(envelope)
            case ChannelType.teams:
                await self._send_card(envelope)
            case other:
                raise errors.Misconfigured(f"no channel is of type {other}")

    async def send_digest(self, channel: idle.Channel, made: Digest, head: Letterhead) -> None:
        """To whom the operator said: no owner is asked."""
        match channel.type:
            case ChannelType.slack:
                await self.post_slack(channel, channel.text("channel"), digesting.write_slack(made, head))
            case ChannelType.email:
                addresses = tuple(part.strip() for part in channel.text("to").split(",") if part.strip())
                await self.post_letter(addresses, digesting.write_letter(made, head))
            case other:
                raise errors.Misconfigured(f"a digest does not go by {other}")

    async def _send_slack(self, envelope: Envelope) -> None:
        channel = envelope.route.channel
        by_bot = channel.find("bot_token") is not None
        await self.post_slack(channel, envelope.route.room, _write_slack(envelope, by_bot=by_bot))

    async def post_slack(self, channel: idle.Channel, room: str, message: slack.Message) -> None:
        if token := await self.find(channel, "bot_token"):
            if not room:
                raise errors.Misconfigured(f"channel {channel.name}: a bot must be told in which channel to speak")
            api = channel.text("api_url", slack_wire.API)
            await slack_wire.post_message(self._poster, token, room, message, api=api)
            return
        named = {"channel": room} if room else {}
        await slack_wire.post_webhook(self._poster, await self.need(channel, "webhook_url"), message | named)

    async def _send_letter(self, envelope: Envelope) -> None:
        await self.post_letter(envelope.route.addresses, _write_letter(envelope))

    async def post_letter(self, to: tuple[str, ...], draft: letter.Draft) -> None:
        if self._server is None:
            raise errors.Misconfigured("no mail server is configured: --smtp-url and --email-from")
        refused = await mail.send(self._server, mail.Letter(
            to=to, subject=draft.subject, text=draft.text, html=draft.html
        ))
        if refused:
            log.warning("%s takes no mail for %s", self._server.host, ", ".join(refused))

    async def _page(self, envelope: Envelope) -> None:
        channel, facts = envelope.route.channel, envelope.facts[0]
        if envelope.what:
            await self.resolve(channel, envelope.dedup_key)
            return
        key, address = await self.need(channel, "routing_key"), await self.find(channel, "url")
        details = {"holds": facts.holds, "measured": facts.measured, "keep": facts.keep_command}
        await pager.trigger(
            self._poster, key, envelope.dedup_key, summary=f"{facts.headline} {facts.upcoming}", details=details,
            source=facts.head.cluster_name or facts.ref.namespace, link=facts.page, address=address or pager.EVENTS,
        )

    async def resolve(self, channel: idle.Channel, dedup_key: str) -> None:
        """An incident whose reason has gone."""
        key, address = await self.need(channel, "routing_key"), await self.find(channel, "url")
        await pager.resolve(self._poster, key, dedup_key, address=address or pager.EVENTS)

    async def _call(self, envelope: Envelope) -> None:
        channel = envelope.route.channel
        await webhook.send(
            self._poster, await self.need(channel, "url"), _write_plain(envelope), envelope.facts[0].now,
            auth_header=await self.find(channel, "auth_header"), hmac_key=await self.find(channel, "hmac_key"),
        )

    async def _send_card(self, envelope: Envelope) -> None:
        body, actions = _write_card(envelope)
        await teams.post_card(self._poster, await self.need(envelope.route.channel, "url"), body, actions)

    async def find(self, channel: idle.Channel, key: str) -> Secret[str] | None:
        found = channel.find(key)
        if isinstance(found, idle.SecretKey):
            return await self._secrets.read(found)
        return Secret(found) if isinstance(found, str) else found

    async def need(self, channel: idle.Channel, key: str) -> Secret[str]:
        found = await self.find(channel, key)
        if found is None or not found.reveal():
            raise errors.Misconfigured(f"channel {channel.name} of type {channel.type} has no {key}")
        return found


def _write_slack(envelope: Envelope, *, by_bot: bool) -> dict[str, Any]:
    if len(envelope.facts) > 1:
        return slack.bundle(envelope.facts, envelope.mentions)
    [facts] = envelope.facts
    if envelope.what:
        return slack.paused(facts, envelope.what, (), by_bot=by_bot)
    return slack.notice(facts, envelope.mentions, by_bot=by_bot)


def _write_letter(envelope: Envelope) -> letter.Draft:
    if len(envelope.facts) > 1:
        return letter.bundle(envelope.facts)
    [facts] = envelope.facts
    return letter.paused(facts, envelope.what) if envelope.what else letter.notice(facts)


def _write_card(envelope: Envelope) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    if len(envelope.facts) > 1:
        return card.bundle(envelope.facts)
    [facts] = envelope.facts
    return card.paused(facts, envelope.what) if envelope.what else card.notice(facts)


def _write_plain(envelope: Envelope) -> dict[str, Any]:
    if len(envelope.facts) > 1:
        return plain.bundle(envelope.facts)
    [facts] = envelope.facts
    return plain.paused(facts, envelope.what) if envelope.what else plain.notice(facts)
