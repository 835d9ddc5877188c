"""What share of spot nodes is advised, by how often they were taken back; shown, and never applied."""

import msgspec
import pytest
from tests.unit.decide.scaling.stage import NOW, first, look, node, policy, sight

from fallow.doors.answers import scaling as answers
from fallow.model import units
from fallow.model.scaling import ScalingSight
from fallow.model.scaling_plan import ScalingPlan
from fallow.model.units import DAY


def plan_of(days: float, node_hours: int, interruptions: int) -> tuple[ScalingPlan, ScalingSight]:
    since = units.rfc3339(NOW - days * DAY)
    status = {"spotWatch": {"since": since, "nodeHours": node_hours, "interruptions": interruptions}}
    seen = sight(policy(status=status), node("n0"))
    return look(seen), seen


@pytest.mark.parametrize(("interruptions", "share"), [(0, 0.75), (1, 0.75), (2, 0.6), (10, 0.6), (11, 0.4)])
def test_the_share_goes_by_interruptions_of_a_node_on_a_day(interruptions: int, share: float) -> None:
    made, seen = plan_of(10, 2400, interruptions)  # a hundred days of nodes
    found = first(made).spot_advice
    assert found is not None
    assert (found.share, found.daily) == (share, interruptions / 100)
    told = dict(answers.tell_of_policy(answers.show(made, seen), "default"))
    assert told["spot"].endswith(f"a share of {share:g} would do; spotInstancePercentage is 0.6")
    bare = look(sight(policy(), node("n0")))
    assert msgspec.structs.replace(first(made), spot_advice=None, policy=first(bare).policy) == first(bare), "no act"


@pytest.mark.parametrize(("days", "node_hours"), [(6.9, 2400), (30, 160)], ids=["too-new", "too-few-nodes"])
def test_less_than_a_week_advises_nothing(days: float, node_hours: int) -> None:
    assert first(plan_of(days, node_hours, 5)[0]).spot_advice is None


def test_what_cannot_be_read_advises_nothing() -> None:
    assert first(look(sight(policy(status={"spotWatch": {"nodeHours": 9999}}), node("n0")))).spot_advice is None
