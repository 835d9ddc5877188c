"""Decisions carried out by the hands on the small API server, and what tests ask of its objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.unit.act.examples import NOW

from fallow.act import execute
from fallow.act import hands as doing
from fallow.model import cluster, decision

Object = dict[str, Any]
MakeHands = Callable[..., doing.Hands]


def resume_of(workload: cluster.Workload, by: str = "ada") -> decision.Resume:
    return decision.Resume(workload, by, "asked for")


async def carry(
    hands: doing.Hands, each: decision.Decision, look: execute.SecondLook | None = None, **more: Any
) -> decision.Outcome:
    """One decision, with a second look that finds what the first one found unless the test says otherwise."""

    async def look_again(pauses: Any) -> dict[str, execute.SecondLook]:
        found = look or execute.SecondLook(pauses[0].finding.workload, pauses[0].finding)
        return {pauses[0].finding.workload.ref.uid: found}

    (outcome,) = await execute.carry_out([each], hands, look_again, NOW, **more)
    return outcome


def annotations(thing: Object) -> Object:
    found: Object = thing["metadata"].get("annotations", {})
    return found
