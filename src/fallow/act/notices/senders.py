"""A message on its way: by the channel's own wire, with its secrets, laid out as that channel shows it.

In: an Envelope. Out: nothing, once the other side confirmed it; else a ClientError that says why not, without a secret.
Secrets stand in Secrets of our own namespace and are read when they are needed, at most once a minute.
"""

import base64
import binascii
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from fallow.act.notices import card, letter, route, slack
from fallow.act.notices.facts import NoticeFacts
from fallow.clients import errors
from fallow.clients.kubernetes import api as kubernetes
from fallow.clients.messages import mail, pager, post, teams, webhook
from fallow.clients.messages import slack as slack_wire
from fallow.model import mailing, units
from fallow.model.policies import idle
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


class Senders:
    """All wires but that of Events. `server`: by which mail is sent; None: there is none."""

    def __init__(self, poster: post.Poster, secrets: SecretReader, server: mailing.MailServer | None) -> None:
        self._poster, self._secrets, self._server = poster, secrets, server

    async def send(self, envelope: Envelope) -> None:
        match envelope.route.channel.type:
            case "slack":
                await self._send_slack(envelope)
            case "email":
                await self._send_letter(envelope)
            case "pagerduty":
                await self._page(envelope)
            case "webhook":
                await self._call(envelope)
            case "teams":
                await self._send_card(envelope)
            case other:
                raise errors.Misconfigured(f"no channel is of type {other}")

    async def _send_slack(self, envelope: Envelope) -> None:
        channel, message = envelope.route.channel, _write_slack(envelope)
        if token := await self._find(channel, "bot_token"):
            if not envelope.route.room:
                raise errors.Misconfigured(f"channel {channel.name}: a bot must be told in which channel to speak")
            api = channel.text("api_url", slack_wire.API)
            await slack_wire.post_message(self._poster, token, envelope.route.room, message, api=api)
            return
        room = {"channel": envelope.route.room} if envelope.route.room else {}
        await slack_wire.post_webhook(self._poster, await self._need(channel, "webhook_url"), message | room)

    async def _send_letter(self, envelope: Envelope) -> None:
        if self._server is None:
            raise errors.Misconfigured("no mail server is configured: --smtp-url and --email-from")
        draft = _write_letter(envelope)
        refused = await mail.send(self._server, mail.Letter(
            to=envelope.route.addresses, subject=draft.subject, text=draft.text, html=draft.html
        ))
        if refused:
            log.warning("%s takes no mail for %s", self._server.host, ", ".join(refused))

    async def _page(self, envelope: Envelope) -> None:
        channel, facts = envelope.route.channel, envelope.facts[0]
        if envelope.what:
            await self.resolve(channel, envelope.dedup_key)
            return
        key, address = await self._need(channel, "routing_key"), await self._find(channel, "url")
        details = {"holds": facts.holds, "measured": facts.measured, "keep": facts.keep_command}
        await pager.trigger(
            self._poster, key, envelope.dedup_key, summary=f"{facts.headline} {facts.upcoming}", details=details,
            source=facts.head.cluster_name or facts.ref.namespace, link=facts.page, address=address or pager.EVENTS,
        )

    async def resolve(self, channel: idle.Channel, dedup_key: str) -> None:
        """An incident whose reason has gone."""
        key, address = await self._need(channel, "routing_key"), await self._find(channel, "url")
        await pager.resolve(self._poster, key, dedup_key, address=address or pager.EVENTS)

    async def _call(self, envelope: Envelope) -> None:
        channel = envelope.route.channel
        await webhook.send(
            self._poster, await self._need(channel, "url"), _write_plain(envelope), envelope.facts[0].now,
            auth_header=await self._find(channel, "auth_header"), hmac_key=await self._find(channel, "hmac_key"),
        )

    async def _send_card(self, envelope: Envelope) -> None:
        body, actions = _write_card(envelope)
        await teams.post_card(self._poster, await self._need(envelope.route.channel, "url"), body, actions)

    async def _find(self, channel: idle.Channel, key: str) -> Secret[str] | None:
        found = channel.find(key)
        if isinstance(found, idle.SecretKey):
            return await self._secrets.read(found)
        return Secret(found) if isinstance(found, str) else found

    async def _need(self, channel: idle.Channel, key: str) -> Secret[str]:
        found = await self._find(channel, key)
        if found is None or not found.reveal():
            raise errors.Misconfigured(f"channel {channel.name} of type {channel.type} has no {key}")
        return found


def _write_slack(envelope: Envelope) -> dict[str, Any]:
    if len(envelope.facts) > 1:
        return slack.digest(envelope.facts, envelope.mentions)
    [facts] = envelope.facts
    return slack.paused(facts, envelope.what, ()) if envelope.what else slack.notice(facts, envelope.mentions)


def _write_letter(envelope: Envelope) -> letter.Draft:
    if len(envelope.facts) > 1:
        return letter.digest(envelope.facts)
    [facts] = envelope.facts
    return letter.paused(facts, envelope.what) if envelope.what else letter.notice(facts)


def _write_card(envelope: Envelope) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    if len(envelope.facts) > 1:
        return card.digest(envelope.facts)
    [facts] = envelope.facts
    return card.paused(facts, envelope.what) if envelope.what else card.notice(facts)


def _write_plain(envelope: Envelope) -> dict[str, Any]:
    """For programs."""
    written = [_plain(facts) for facts in envelope.facts]
    return {"type": "paused" if envelope.what else "notice", "what": envelope.what or None, "workloads": written}


def _plain(facts: NoticeFacts) -> dict[str, Any]:
    found, ref = facts.finding, facts.ref
    return {
        "workload": {
            "apiVersion": ref.api_version, "kind": ref.kind, "namespace": ref.namespace, "name": ref.name,
            "uid": ref.uid,
        },
        "cluster": facts.head.cluster_name or None, "verdict": str(found.verdict), "reason": str(found.reason),
        "because": found.because, "gpus": found.gpus, "models": list(found.models), "policy": found.rule.name,
        "idleSeconds": None if facts.idle_for is None else round(facts.idle_for), "perHour": facts.per_hour,
        "pausesAt": None if facts.pauses_at is None else units.rfc3339(facts.pauses_at),
        "page": facts.page, "keep": facts.keep_command, "resume": facts.resume_command,
    }
