"""What the demo's report says of nodes that came and went: less, or more and why."""

from typing import Any

import pytest

from fallow.doors.cli import demo_scaling


def day(**more: Any) -> str:
    said = {"first": 4, "added": 2, "released": 1, "taken_back": 0, "replaced": 0, "sold_out": 0, "paid": 9_000,
            "alone": 10_000, "of_added": 500, "saved": 15.0, **more}
    return "\n".join(demo_scaling.say(demo_scaling.DayScaled(**said)))


def test_a_day_that_cost_less_says_by_how_much_and_why() -> None:
    told = day()
    assert "(10.0%) less" in told
    assert "still wait" not in told


@pytest.mark.parametrize("paid", [10_001, 20_000])
def test_a_day_that_cost_more_says_what_pausing_alone_would_not_have_done(paid: int) -> None:
    told = day(paid=paid, of_added=10_500)
    assert ") more, because" in told
    assert told.endswith("with pausing alone, pods that got these would still wait")


def test_a_day_on_which_no_node_moved_says_nothing() -> None:
    assert day(added=0, released=0) == ""
