"""What becomes of policies of sharing: what cannot be counted is not known, and the log says why, once."""

from __future__ import annotations

import asyncio
from typing import cast

import msgspec
import pytest
from tests.unit.decide.sharing import scenes

from fallow import names, telemetry
from fallow.act.share_statuses import ShareStatuses
from fallow.clients import errors
from fallow.decide import sharing
from fallow.model import patterns
from fallow.model.policies.sharing import SharingPolicy
from fallow.model.seen import ABSENT, Input, Known, Register, Unseen
from fallow.model.sharing import PolicyCounts
from fallow.observe.share_pods import RunningPod
from fallow.stories.share_policies import COUNTED, PoliciesCycle, PolicySights, SharePoliciesStory
from fallow.stories.turn import Complaint, Turn


class Desk:
    """A story over one policy, that only looks."""

    def __init__(self) -> None:
        self.problem, self.terms, self.metrics = "", scenes.TERMS, telemetry.Telemetry()
        self.pods: tuple[RunningPod, ...] = ()
        self.nodes: Input[sharing.PartIndex] = Known(sharing.PartIndex(()))
        self.policies: Input[tuple[SharingPolicy, ...]] = Known((scenes.policy(),))
        self.story = SharePoliciesStory(
            sights=PolicySights(
                policies=lambda: self.policies, nodes=lambda: self.nodes, owners=dict,
                namespaces=lambda: Register({"ml": scenes.ML}), use=lambda _: ABSENT, reverts=lambda _: None,
                running=self.list_running,
            ),
            statuses=cast(ShareStatuses, None), terms=self.find_terms, metrics=self.metrics,
        )

    async def find_terms(self) -> sharing.ShareTerms:
        return self.terms

    async def list_running(self) -> tuple[RunningPod, ...]:
        if self.problem:
            raise errors.Unreachable(self.problem)
        return self.pods

    def shared(self) -> list[str]:
        shown = self.metrics.text().decode().splitlines()
        return [line for line in shown if line.startswith("gpu_autoscaler_shared_pods{") and not line.endswith(" 0.0")]

    async def look(self, at: float) -> PoliciesCycle:
        return await self.story.look(Turn(
            clock=lambda: at, monotonic=lambda: 0.0, budget=9.0, stopping=asyncio.Event(), leads=lambda: False,
        ))


async def test_pods_that_cannot_be_listed_are_not_known_and_not_none(caplog: pytest.LogCaptureFixture) -> None:
    desk, counts = Desk(), []
    for number, desk.problem in enumerate(["away", "away", "", "away"]):
        counts.append((await desk.look(number * COUNTED)).standings["small"].counts)
    assert counts == [None, None, PolicyCounts(), None]
    assert [each.getMessage() for each in caplog.records] == ["pods that share GPUs are not counted: away"] * 2


PART = {names.GPU_SHARED: "1"}
SHARES = scenes.pod(
    scenes.container(None, requests=PART, limits=PART),
    annotations={names.OPTIMIZED: "true", names.OPTIMIZATION_STRATEGY: "mps"},
)


@pytest.mark.parametrize("how", ["not listed", "policies unseen", "no policies"])
async def test_what_was_counted_is_no_gauge_any_more_while_nobody_can_count(how: str) -> None:
    desk = Desk()
    desk.pods = (RunningPod("u-1", SHARES),)
    await desk.look(0.0)
    assert desk.shared() == ['gpu_autoscaler_shared_pods{strategy="mps"} 1.0']
    desk.problem = "away" if how == "not listed" else ""
    desk.policies = {"policies unseen": Unseen("away"), "no policies": ABSENT}.get(how, desk.policies)
    await desk.look(COUNTED)
    assert desk.shared() == []
    desk.problem, desk.policies = "", Known((scenes.policy(),))
    await desk.look(COUNTED + 1)
    assert len(desk.shared()) == 1


async def test_pods_are_counted_by_the_flags_that_the_webhook_has() -> None:
    desk = Desk()
    desk.pods = (RunningPod("u-1", scenes.needing()),)
    desk.nodes = Known(sharing.PartIndex((scenes.mig_node(g1_10=3),)))
    assert (await desk.look(0.0)).standings["small"].counts == PolicyCounts(0, 1)
    desk.terms = msgspec.structs.replace(scenes.TERMS, exempt=patterns.compile_pattern("ml"))
    assert (await desk.look(COUNTED)).standings["small"].counts == PolicyCounts()


async def test_policies_that_are_not_seen_are_a_failure_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    desk.policies = Unseen("the API server is away")
    for at in (0.0, 60.0):
        assert (await desk.look(at)).failure == "the API server is away"
    assert [each.getMessage() for each in caplog.records] == [
        "what becomes of GPUSharingPolicies is not told: the API server is away"
    ]


def test_a_complaint_is_made_once_until_it_is_another_or_was_over(caplog: pytest.LogCaptureFixture) -> None:
    complaint = Complaint("it waits: %s")
    for because in ("", "a", "a", "b", "", "b"):
        complaint.note(because)
    assert [each.getMessage() for each in caplog.records] == ["it waits: a", "it waits: b", "it waits: b"]
