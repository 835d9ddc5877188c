"""Whom our own scaling has bought a machine for: nobody is moved for them meanwhile."""

import types
from typing import cast

import pytest

from fallow.model.cluster import PodId
from fallow.model.scaling_plan import Fit, PodVerdict, ScalingPlan
from fallow.stories.scaling import ScalingCycle
from fallow.wiring import consolidation
from fallow.wiring.ground import Later

PLAN = ScalingPlan(taken_at=0.0, pods=tuple(
    PodVerdict(pod=PodId("ml", str(fit), f"u-{fit}"), fit=fit, because="x") for fit in Fit
))


@pytest.mark.parametrize(("cycle", "served"), [
    (None, set()), (ScalingCycle(), set()), (ScalingCycle(plan=PLAN), {"u-FitsInFlight"}),
], ids=["before-the-first", "no-plan", "planned"])
def test_only_who_fits_a_machine_on_its_way_is_served(cycle: ScalingCycle | None, served: set[str]) -> None:
    asked: list[str] = []

    def latest(name: str) -> ScalingCycle | None:
        asked.append(name)
        return cycle

    later = cast(Later, types.SimpleNamespace(looping=types.SimpleNamespace(latest=latest)))
    assert consolidation.find_served(later) == served
    assert asked == ["scaling"]
