"""PagerDuty, Events API v2: an incident opened, and closed when its reason has gone.

In: a routing key (a secret), what to say, a key that makes two events one incident. Confirmed by 202.
"""

from collections.abc import Mapping
from typing import Literal

from fallow.clients import errors
from fallow.clients.messages import post
from fallow.model.secret import Secret

EVENTS = Secret("https://events.pagerduty.com/v2/enqueue")
_LONGEST_SUMMARY = 1024  # characters, by their documentation


async def trigger(
    poster: post.Poster, routing_key: Secret[str], dedup_key: str, *, summary: str, source: str,
    details: Mapping[str, object], link: str | None = None, address: Secret[str] = EVENTS, severity: str = "warning",
) -> None:
    about = {"summary": summary[:_LONGEST_SUMMARY], "source": source, "severity": severity, "custom_details": details}
    links = {"links": [{"href": link, "text": "Evidence"}]} if link else {}
    await _enqueue(poster, routing_key, "trigger", {"dedup_key": dedup_key, "payload": about, **links}, address)


async def resolve(
    poster: post.Poster, routing_key: Secret[str], dedup_key: str, *, address: Secret[str] = EVENTS
) -> None:
    await _enqueue(poster, routing_key, "resolve", {"dedup_key": dedup_key}, address)


async def _enqueue(
    poster: post.Poster, routing_key: Secret[str], action: Literal["trigger", "resolve"],
    event: Mapping[str, object], address: Secret[str],
) -> None:
    body = {"routing_key": routing_key.reveal(), "event_action": action, "client": "fallow", **event}
    answer = await poster.post_json(address, body)
    if answer.status != 202:
        raise errors.BadAnswer(f"PagerDuty answered {answer.status} and not 202")
