"""Microsoft Teams: an adaptive card to the webhook of a workflow. Confirmed by 202, or by 200 without a complaint: the
older kind of webhook says in the text of a 200 that it failed."""

from collections.abc import Mapping, Sequence
from typing import Any

from fallow.clients import errors
from fallow.clients.messages import post
from fallow.model.secret import Secret

_CARD = "application/vnd.microsoft.card.adaptive"
_VERSION = "1.4"  # the newest that Teams shows everywhere


async def post_card(
    poster: post.Poster, address: Secret[str], body: Sequence[Mapping[str, Any]],
    actions: Sequence[Mapping[str, Any]] = (),
) -> None:
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json", "type": "AdaptiveCard", "version": _VERSION,
        "body": list(body), "actions": list(actions),
    }
    attached = {"contentType": _CARD, "contentUrl": None, "content": card}
    answer = await poster.post_json(address, {"type": "message", "attachments": [attached]})
    if answer.status != 202 and answer.text.strip() not in ("", "1"):
        raise errors.BadAnswer("Teams did not confirm the message")
