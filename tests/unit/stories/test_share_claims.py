"""Templates of claims: what is not seen changes nothing, and what is refused is told once and hides nothing else."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from tests.unit.decide.sharing import scenes, test_claims

from fallow.act.claim_templates import ClaimHands
from fallow.clients import errors
from fallow.decide import sharing
from fallow.model import patterns
from fallow.model.claims import ClaimWrite
from fallow.model.seen import Known, Register, Unseen
from fallow.stories import share_claims
from fallow.stories.turn import Turn


class Hands:
    """Stands for the API server's answers."""

    def __init__(self) -> None:
        self.done: list[ClaimWrite] = []
        self.problem = ""

    async def do(self, write: ClaimWrite) -> str:
        self.done.append(write)
        return self.problem


class Bench:
    def __init__(self, *templates: Any) -> None:
        self.hands, self.held = Hands(), ""
        self.seen: dict[str, Any] = {
            "policies": Known((scenes.policy("mig"),)), "namespaces": Register(test_claims.PLACES),
            "nodes": Known(sharing.PartIndex((test_claims.node(test_claims.SMALL),))),
            "ground": Known(test_claims.ground(*templates)),
        }
        self.named: dict[str, Any] = {}
        self.story = share_claims.ShareClaimsStory(
            sights=share_claims.TemplateSights(
                policies=lambda: self.seen["policies"], namespaces=lambda: self.seen["namespaces"],
                nodes=lambda: self.seen["nodes"], ground=lambda: self.seen["ground"], named=self.find_named,
            ),
            hands=cast(ClaimHands, self.hands), exempt=patterns.compile_pattern("kube-system"),
            held=lambda _: self.held,
        )

    async def find_named(self, namespace: str) -> frozenset[str]:
        found = self.named.get(namespace, frozenset())
        if isinstance(found, Exception):
            raise found
        return cast(frozenset[str], found)

    async def tick(self, *, leads: bool = True) -> share_claims.ClaimsCycle:
        return await self.story.tick(Turn(
            clock=lambda: scenes.NOW, monotonic=lambda: 0.0, budget=9.0, stopping=asyncio.Event(), leads=lambda: leads,
        ))


@pytest.mark.parametrize("what", ["policies", "namespaces", "nodes", "ground"])
async def test_whatever_is_not_seen_nothing_is_written(what: str, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.seen[what] = Register({}, Unseen("away")) if what == "namespaces" else Unseen("away")
    assert (await bench.tick()).failure == (await bench.tick()).failure == "away"
    assert bench.hands.done == []
    assert [each.getMessage() for each in caplog.records] == ["templates of claims are not kept: away"]


async def test_who_does_not_lead_or_is_held_only_looks() -> None:
    bench = Bench()
    assert len((await bench.tick(leads=False)).writes) == 2
    bench.held = "--sharing is not act"
    assert len((await bench.tick()).writes) == 2
    assert bench.hands.done == []


async def test_a_refusal_is_told_once_and_the_others_are_done_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.hands.problem = "403: forbidden"
    for _ in range(2):
        await bench.tick()
    assert len(bench.hands.done) == 4
    assert [each.getMessage() for each in caplog.records] == ["templates of claims are not kept: 403: forbidden"]


async def test_one_stays_that_pods_name_or_of_which_nobody_can_say_it() -> None:
    gone = [test_claims.template(namespace=name, leaving_since=1.0) for name in ("ml", "web", "gone")]
    bench = Bench(*gone)
    bench.seen["policies"] = Known((scenes.policy("exclusive"),))
    bench.named = {"ml": frozenset({test_claims.MIG}), "web": errors.Unreachable("away")}
    await bench.tick()
    assert [each.template.namespace for each in bench.hands.done if not hasattr(each, "asks")] == ["gone"]


async def test_a_policy_that_means_very_many_namespaces_is_carried_out_in_several_turns(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_claims, "_MOST_WRITES", 1)
    bench = Bench()
    await bench.tick()
    assert len(bench.hands.done) == 1
