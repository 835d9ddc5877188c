"""What is told of nodes that come and go: for the table, the API, and who asks about one node or policy."""

import msgspec
import pytest
from tests.unit.decide.scaling.stage import NOW, daemon, long_unneeded, look, node, pod, policy, pool, sight

from fallow.doors.answers import scaling
from fallow.doors.cli import scale_plan
from fallow.model import scaling_status
from fallow.model.policies.scaling import ScalingMode
from fallow.model.scaling import DemandPast, InFlight, ScalingMemory, ScalingSight
from fallow.model.scaling_plan import DemandGuess, ScalingPlan
from fallow.model.seen import Known

RIPE = long_unneeded(node("n0"), node("n1"), node("n2"))


def quiet(**about: object) -> ScalingSight:
    """Two nodes at work, and one that nobody needs."""
    nodes = [node(f"n{number}", price=4.0) for number in range(3)]
    busy = [pod(f"b{number}", 8, f"n{number}") for number in range(2)]
    rule = policy(mode=ScalingMode.recommend)
    return sight(rule, *nodes, *busy, daemon("d", "n2"), **about)


def page_of(seen: ScalingSight, memory: ScalingMemory = RIPE) -> scaling.ScalingPage:
    return scaling.show(look(seen, memory), seen)


@pytest.mark.accepts("scaling", 25)
def test_what_would_go_is_told_with_what_it_saves() -> None:
    (rule,) = page_of(quiet()).policies
    assert [(each.node, each.kind, each.per_hour) for each in rule.releases] == [("n2", "empty", 4.0)]
    assert rule.acts is False
    assert page_of(quiet()).per_hour == -4.0
    lines = dict(scaling.tell_of_node(page_of(quiet()), "n2"))
    assert lines["let go"].startswith("AutoscalingPolicy")
    assert "saves 4.00 USD an hour" in lines["let go"]


def test_a_price_that_is_not_known_is_no_nought() -> None:
    seen = quiet()
    assert isinstance(seen.nodes, Known)
    bare = tuple(msgspec.structs.replace(each, price=None) for each in seen.nodes.value)
    made = page_of(msgspec.structs.replace(seen, nodes=Known(bare)))
    assert made.per_hour is None
    assert made.policies[0].releases[0].per_hour is None


def test_who_waits_is_told_with_what_it_means() -> None:
    seen = sight(policy(pools=(pool(gpus=8),)), pod("large", 16), pod("small", 1))
    told = {each.pod: each for each in page_of(seen, ScalingMemory()).pods}
    assert told["large"].fit == "NoPoolFits"
    assert told["small"].fit == "NeedsNode"
    assert all(each.because for each in told.values())


def test_the_past_has_holes_where_nobody_looked() -> None:
    seen = quiet(past={policy().name: DemandPast(ends_at=NOW, hours=(*([1.0] * 30), float("nan"), 2.0))})
    demand = page_of(seen).policies[0].demand
    assert demand is not None
    assert demand.gpus[-2:] == (None, 2.0)
    assert len(demand.gpus) == 24
    assert b"NaN" not in msgspec.json.encode(page_of(seen))


def test_before_anybody_looked_there_is_a_reason_and_no_zero() -> None:
    made = scaling.show(None, None)
    assert made.unseen == "nobody has looked yet"
    assert made.per_hour is None
    assert list(scaling.tell_of_policy(made, "gpu")) == [("plan", "not known: nobody has looked yet")]


def test_a_guess_is_told_with_how_far_off_it_was() -> None:
    plan = look(quiet(), RIPE)
    guess = DemandGuess(peak=12.0, model="hour-of-week", error=0.09, confidence=0.8, ahead=(8.0, 12.0))
    plan = msgspec.structs.replace(
        plan, policies=tuple(msgspec.structs.replace(each, guess=guess) for each in plan.policies)
    )
    lines = dict(scaling.tell_of_policy(scaling.show(plan, quiet()), plan.policies[0].policy.name))
    assert lines["forecast"] == (
        "12 GPUs at the coming peak by hour-of-week, off by 9% lately; 80% of past peaks were nearly right"
    )


def test_the_table_names_what_goes_and_hides_who_works() -> None:
    drawn = scale_plan.draw(page_of(quiet()), "As somebody saw it")
    assert "let go" in drawn
    assert "Together this saves 4.00 USD an hour." in drawn
    assert "n2" in drawn
    assert "n0" not in drawn
    assert "2 nodes in use or nobody's to let go are not shown" in drawn
    assert "n0" in scale_plan.draw(page_of(quiet()), "", everything=True)


def test_the_table_says_what_is_added_costs_or_that_nobody_knows() -> None:
    for price, said in ((8.0, "Together this costs 8.00 USD an hour."), (None, "a price is missing")):
        waits = sight(policy(pool(price=price)), pod("w", 1))
        assert said in scale_plan.draw(page_of(waits, ScalingMemory()), "")
    assert "Together" not in scale_plan.draw(page_of(quiet(), ScalingMemory()), "")


def test_money_is_said_in_the_currency_of_the_books() -> None:
    waits = msgspec.structs.replace(sight(policy(pool(price=8.0)), pod("w", 1)), currency="EUR")
    drawn = scale_plan.draw(page_of(waits, ScalingMemory()), "")
    assert "Together this costs 8.00 EUR an hour." in drawn
    assert "8.00 EUR an hour each" in drawn


def test_nodes_that_are_on_their_way_are_listed() -> None:
    said = {"inFlight": scaling_status.write_in_flight((
        InFlight(pool="main", tier=pool().tier, count=1, base=0, token="t", since=NOW - 100),
    ))}
    page = page_of(sight(policy(status=said), pod("w", 1)), ScalingMemory())
    lines = dict(scaling.tell_of_policy(page, "default"))
    assert lines["coming"] == f"1 node of main (on-demand), since {page.policies[0].in_flight[0].since}"
    assert "there should be 1" in lines["nodes"]


def test_without_a_policy_the_table_says_what_to_do() -> None:
    drawn = scale_plan.draw(scaling.show(ScalingPlan(taken_at=NOW), None), "")
    assert "There is no AutoscalingPolicy" in drawn
