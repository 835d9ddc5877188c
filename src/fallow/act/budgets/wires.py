"""A message about a budget on its way: by the channel's own wire, with its secrets.

In: a channel, AlertFacts. Out: nothing, once the other side confirmed it; else a ClientError without a secret in it.
Slack and people hear when an alert fires; PagerDuty and programs also when it is over.
"""

from fallow.act.budgets import words
from fallow.act.budgets.words import AlertFacts
from fallow.act.notices import senders
from fallow.clients import errors
from fallow.clients.messages import pager, post, webhook
from fallow.model.budgets import AlertEvent
from fallow.model.policies import idle
from fallow.model.policies.budget import CostBudget
from fallow.model.policies.idle import ChannelType
from fallow.model.secret import Secret


class AlertWires:
    def __init__(
        self, poster: post.Poster, wires: senders.Senders, secrets: senders.ReadsSecrets, pager_url: str
    ) -> None:
        self._poster, self._wires, self._secrets, self._pager = poster, wires, secrets, Secret(pager_url)

    async def send(self, channel: idle.Channel, facts: AlertFacts) -> None:
        match channel.type:
            case ChannelType.slack:
                await self._wires.post_slack(channel, channel.text("channel"), words.write_slack(facts))
            case ChannelType.email:
                to = tuple(part.strip() for part in channel.text("to").split(",") if part.strip())
                await self._wires.post_letter(to, words.write_letter(facts, channel.text("subject")))
            case ChannelType.pagerduty:
                await self._page(channel, facts)
            case ChannelType.webhook:
                address, auth = await self._wires.need(channel, "url"), await self._wires.find(channel, "auth_header")
                await webhook.send(self._poster, address, words.write_plain(facts), facts.now, auth_header=auth)
            case other:
                raise errors.Misconfigured(f"no budget tells by {other}")

    async def _page(self, channel: idle.Channel, facts: AlertFacts) -> None:
        """A test opens an incident and closes it."""
        key = await self._wires.need(channel, "routing_key")
        if facts.event is not AlertEvent.resolved:
            await pager.trigger(
                self._poster, key, facts.dedup_key, summary=words.headline(facts), severity=facts.rule.severity,
                source=facts.head.cluster_name or "fallow", details=words.write_details(facts), link=facts.url,
                address=self._pager,
            )
        if facts.event is not AlertEvent.fired:
            await pager.resolve(self._poster, key, facts.dedup_key, address=self._pager)

    async def find_missing(self, of: CostBudget) -> tuple[str, ...]:
        """The Secrets that its channels name and that cannot be read, a phrase each: said before anybody needs them."""
        refs = {ref for rule in of.alerts for channel in rule.channels for _, ref in channel.settings
                if isinstance(ref, idle.SecretKey)}
        found = []
        for ref in sorted(refs, key=lambda each: (each.name, each.key)):
            try:
                await self._secrets.read(ref)
            except errors.ClientError as problem:
                found.append(f"the key {ref.key} of the Secret {ref.name}: {_shorten(problem)}")
        return tuple(found)


def _shorten(problem: errors.ClientError) -> str:
    return "it is not there" if isinstance(problem, errors.NotFound) else str(problem)
