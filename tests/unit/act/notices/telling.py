"""Notices of Deployments on the small API server, and wires to receivers on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from tests.unit.act import examples
from tests.unit.act.examples import EXAMPLES, NOW, finding_of, identified, workload_of
from tests.unit.act.server import Server

from fallow.act import execute
from fallow.act.notices import facts, senders
from fallow.clients import retry
from fallow.clients.messages import post
from fallow.model import decision
from fallow.model.policies import idle
from fallow.model.secret import Secret

HEAD = facts.Letterhead(cluster_name="ml-west", public_url="https://fallow.example.com/", has_buttons=True)


@asynccontextmanager
async def wires(api: Any) -> AsyncIterator[senders.Senders]:
    async with post.Poster({}, timeout=2.0, patience=retry.Patience(tries=1, first_wait=0.0)) as poster:
        yield senders.Senders(poster, senders.SecretReader(api, "gpu-pruner-system"), None)


def slack_at(url: str) -> idle.Channel:
    return idle.Channel("team", "slack", (("webhook_url", Secret(f"{url}/services/x")),))


def warn_of(thing: Any, *channels: idle.Channel, **more: Any) -> decision.Warn:
    notice = idle.Notice(required=True, channels=channels)
    finding = finding_of(workload_of(thing), msgspec.structs.replace(examples.RULE, notice=notice))
    finding = msgspec.structs.replace(finding, **{"idle_since": NOW - 47 * 60, **more})
    return decision.Warn(finding, "abcdef123456", NOW - 47 * 60, NOW + 1800, channels)


def several(server: Server, count: int) -> list[Any]:
    made = []
    for number in range(count):
        thing = identified(EXAMPLES["deployment"], f"u-{number}")
        thing["metadata"]["name"] = f"llm-{number}"
        made.append(server.add(thing))
    return made


async def carry_out(hands: Any, warns: list[decision.Warn], **more: Any) -> list[decision.Outcome]:
    async def look_again(pauses: Any) -> dict[str, execute.SecondLook]:
        return {}

    return await execute.carry_out(warns, hands, look_again, NOW, **more)
