"""Whom a notice goes to: which channels, and there which room, which people, which addresses.

In: a finding with what its owners wish, the channels of its rule, the operator's map of mentions. Out: a NoticeRoute
for each channel that has somebody to tell. Who owns a workload may name people and rooms; which channels there are is
the operator's to say: no tenant can open one, or page somebody by another team's key.
Invariant: what tenants wrote goes through only where it has the form of a room, a mention or an address, and to
addresses only of the domains that the operator allows: nobody makes us write to strangers.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from fallow.model import decision
from fallow.model.policies import idle
from fallow.model.policies.idle import ChannelType

Mentions = Mapping[str, str]  # namespace, or a prefix of some that ends in `-`, -> whom Slack is to mention

_MENTION = re.compile(r"<@[UW][A-Z0-9]{1,20}>|<!subteam\^S[A-Z0-9]{1,20}>|<!here>|<!channel>")
_ROOM = re.compile(r"#[a-z0-9][a-z0-9._-]{0,79}|[CG][A-Z0-9]{5,20}")
_ADDRESS = re.compile(r"[A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.)+[A-Za-z]{2,63}")
_MOST_ADDRESSES, _MOST_ROOMS = 10, 5  # of one notice: nobody makes us write to a crowd


class NoticeRoute(msgspec.Struct, frozen=True):
    """One way to some people. Notices of one cycle with equal routes may become one message."""

    channel: idle.Channel
    room: str = ""  # of Slack; "" = that of its webhook
    addresses: tuple[str, ...] = ()  # of e-mail
    is_wish: bool = False  # an owner's; where it cannot be reached, the channel's own is

    @property
    def own(self) -> "NoticeRoute":
        """Where the operator wants it."""
        return NoticeRoute(self.channel, self.channel.text("channel"))

    @property
    def whom(self) -> str:
        """For people: whom it reaches."""
        by_event = "an Event on it" if self.channel.type == ChannelType.event else ""
        return by_event or self.room or ", ".join(self.addresses) or self.channel.name


class Routing(msgspec.Struct, frozen=True):
    routes: tuple[NoticeRoute, ...]
    mentions: tuple[str, ...] = ()  # in Slack


def find(
    finding: decision.Finding, channels: Iterable[idle.Channel], mentions: Mentions, domains: frozenset[str]
) -> Routing:
    """`domains`: whose addresses owners may name, those below them too."""
    wishes = finding.wishes
    asked = list(_read_wishes(wishes.notify))
    people = [text for kind, text in asked if kind == ChannelType.slack and _MENTION.fullmatch(text)]
    people = people or _MENTION.findall(wishes.mentions) or _mapped(finding.workload.ref.namespace, mentions)
    rooms = [text for kind, text in asked if kind == ChannelType.slack and _ROOM.fullmatch(text)]
    named = [text for kind, text in asked if kind == ChannelType.email] + [wishes.owner.strip()]
    addresses = [each for each in named if _is_within(each, domains)]
    routes = (route for channel in channels for route in _routes(channel, rooms, addresses))
    return Routing(tuple(dict.fromkeys(routes)), tuple(dict.fromkeys(people)))


def _read_wishes(notify: str) -> Iterator[tuple[str, str]]:
    """`slack:#ml, email:a@b.c` as pairs; what has no such form is nobody's wish."""
    for word in notify.split(","):
        kind, _, text = word.strip().partition(":")
        yield kind.strip(), text.strip()


def _routes(channel: idle.Channel, rooms: list[str], addresses: list[str]) -> Iterator[NoticeRoute]:
    match channel.type:
        case ChannelType.slack:
            yield from (NoticeRoute(channel, room, is_wish=True) for room in rooms[:_MOST_ROOMS])
            if not rooms:
                yield NoticeRoute(channel).own
        case ChannelType.email:
            known = dict.fromkeys([*_split(channel.text("to")), *addresses])
            if usable := tuple(each for each in known if _ADDRESS.fullmatch(each))[:_MOST_ADDRESSES]:
                yield NoticeRoute(channel, addresses=usable)
        case _:
            yield NoticeRoute(channel)


def _is_within(address: str, domains: frozenset[str]) -> bool:
    host = address.rpartition("@")[2].lower()
    return any(host == domain or host.endswith(f".{domain}") for domain in domains)


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _mapped(namespace: str, mentions: Mentions) -> list[str]:
    """By the namespace itself, else by the longest prefix that fits."""
    fitting = [key for key in mentions if key == namespace or (key.endswith("-") and namespace.startswith(key))]
    if not fitting:
        return []
    key = namespace if namespace in mentions else max(fitting, key=len)
    return _MENTION.findall(mentions[key])
