"""Slack: messages by incoming webhook or by bot token, and the answer to a pressed button.

In: a message as Slack's own JSON. Out: nothing, once Slack confirmed it: a webhook with the text `ok`, the API with
`ok: true`. A webhook's address and a bot's token are secrets.
"""

from collections.abc import Mapping
from typing import Any
from urllib import parse

from fallow.clients import errors
from fallow.clients.messages import post
from fallow.model.secret import Secret

API = "https://slack.com/api"
RESPONSE_HOSTS = ("https://hooks.slack.com",)  # where an answer to a pressed button may go


async def post_webhook(poster: post.Poster, address: Secret[str], message: Mapping[str, Any]) -> None:
    answer = await poster.post_json(address, message)
    if answer.text.strip() != "ok":
        raise errors.BadAnswer("Slack did not confirm the message with ok")


async def post_message(
    poster: post.Poster, token: Secret[str], channel: str, message: Mapping[str, Any], *, api: str = API
) -> None:
    headers = {"Authorization": f"Bearer {token.reveal()}", "Content-Type": "application/json; charset=utf-8"}
    address = Secret(f"{api}/chat.postMessage")
    said = (await poster.post_json(address, {**message, "channel": channel}, headers)).decode()
    if not isinstance(said, dict) or said.get("ok") is not True:
        why = said.get("error") if isinstance(said, dict) else None
        raise errors.BadAnswer(f"Slack did not take the message for {channel}: {why or 'its answer is no JSON object'}")


async def list_members(
    poster: post.Poster, token: Secret[str], group: str, *, api: str = API
) -> frozenset[str]:
    """The ids of who is in a user group; a bot needs the scope usergroups:read for it."""
    headers = {
        "Authorization": f"Bearer {token.reveal()}", "Content-Type": "application/x-www-form-urlencoded",
    }
    body = parse.urlencode({"usergroup": group}).encode()
    said = (await poster.post(Secret(f"{api}/usergroups.users.list"), body, headers)).decode()
    found = said.get("users") if isinstance(said, dict) and said.get("ok") is True else None
    if not isinstance(found, list):
        raise errors.BadAnswer(f"Slack does not tell who is in the group {group}")
    return frozenset(each for each in found if isinstance(each, str))


def may_respond_to(address: str, hosts: tuple[str, ...] = RESPONSE_HOSTS) -> bool:
    """Whoever can forge where an answer goes could make us call anybody."""
    try:
        parts = parse.urlsplit(address)
        origin = f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}"
    except ValueError:
        return False
    return origin in hosts and not parts.username and not parts.password


async def respond(
    poster: post.Poster, address: str, message: Mapping[str, Any], hosts: tuple[str, ...] = RESPONSE_HOSTS
) -> None:
    """Raises Misconfigured, and calls nobody, where the address is not Slack's own."""
    if not may_respond_to(address, hosts):
        raise errors.Misconfigured("the address to answer at is not Slack's: nothing was sent there")
    await poster.post_json(Secret(address), message)
