"""Nodes ahead of demand: earned by good guesses, packed in the mix that runs, lost by misses."""

from typing import Any

import numpy as np
import pytest
from tests.unit.decide.scaling.stage import NOW, first, grown, look, node, pod, policy, pool, released, sight

from fallow.decide import scaling
from fallow.model.policies.scaling import NodeDriver, Prewarming
from fallow.model.scaling import DemandPast, GrowReason, ScalingSight, WaitHold
from fallow.model.seen import Known
from fallow.model.units import HOUR

MONDAY = NOW - NOW % HOUR  # eight o'clock on a Monday, in this story; at nine they begin


def weeks(level: float = 40.0, noise: float = 0.1, seed: int = 1) -> DemandPast:
    """Four weeks of working days from 9 to 18 o'clock, that ended just now, at eight on a Monday."""
    draw = np.random.default_rng(seed)
    hours = np.arange(-672, 0) + 8
    day, hour = hours // 24 % 7, hours % 24
    usual = np.where((day < 5) & (hour >= 9) & (hour < 18), level, 4.0)
    return DemandPast(ends_at=MONDAY, hours=tuple(map(float, usual * draw.uniform(1 - noise, 1 + noise, 672))))


def morning(*more: Any, past: DemandPast | None = None, **about: Any) -> ScalingSight:
    rule = policy(**{"prewarming": Prewarming(), **about})
    return sight(rule, node("n0"), pod("a", 4, "n0"), *more, past={"default": past or weeks()})


def test_nodes_are_there_before_people_come() -> None:
    made = first(look(morning(), now=MONDAY + 10))
    assert [each.reason for each in made.grows] == [GrowReason.Forecast]
    assert made.grows[0].count in (4, 5)
    assert made.guess is not None
    assert made.guess.model == "hour-of-week"
    assert made.guess.confidence is not None
    assert made.guess.confidence > 0.7
    assert made.guess.busy_at == MONDAY + HOUR
    assert made.headroom[0].until == MONDAY + 10 + 5400
    assert made.guess.nodes == 1 + made.grows[0].count


@pytest.mark.parametrize("change", [
    {"prewarming": None}, {"status": {"predictiveScaling": {"hits": 4, "misses": 6}}}, {"most": 1},
    {"past": weeks(level=5.0)}, {"past": DemandPast(ends_at=MONDAY, hours=(40.0,) * 672)},
    {"past": DemandPast(ends_at=MONDAY, hours=(float("nan"),) * 200 + weeks().hours[200:])},
    {"past": DemandPast(ends_at=MONDAY, hours=(1.0,))},
], ids=["off", "missed", "limit", "room", "flat", "gaps", "short"])
def test_nothing_is_started_that_was_not_earned(change: dict[str, Any]) -> None:
    assert grown(look(morning(**change), now=MONDAY + 10)) == {}


def test_half_of_ten_is_enough() -> None:
    assert grown(look(morning(status={"predictiveScaling": {"hits": 5, "misses": 5}}), now=MONDAY + 10))


def test_room_that_is_there_is_used_first() -> None:
    free = [node(f"f{number}") for number in range(6)]
    assert grown(look(morning(*free), now=MONDAY + 10)) == {}


def test_where_another_drives_headroom_is_asked_for_and_stays_the_same_once_it_is_there() -> None:
    karpenter = {"driver": NodeDriver.karpenter}
    made = first(look(morning(**karpenter), now=MONDAY + 10))
    assert made.grows == ()
    wanted = sum(each.nodes for each in made.headroom)
    assert wanted in (4, 5)
    there = []
    for number in range(wanted):
        there += [node(f"h{number}"), pod(f"hold{number}", 8, f"h{number}", held=WaitHold.Placeholder, priority=-10)]
    again = look(morning(*there, **karpenter), now=MONDAY + 10)
    assert sum(each.nodes for each in first(again).headroom) == wanted
    assert released(again) == []
    assert first(again).driver is NodeDriver.karpenter


def test_a_node_started_ahead_is_a_hit_or_a_miss_once() -> None:
    nodes = [node(name, prewarmed_until=NOW + left) for name, left in (("used", 1), ("late", 0), ("waits", 1))]
    made = first(look(sight(policy(pool()), *nodes, pod("a", 1, "used"))))
    assert made.prewarmed == {"used": True, "late": False}


def test_the_last_ten_tell() -> None:
    assert scaling.count_prewarms(0, 0, [True, False, True]) == (2, 1)
    assert scaling.count_prewarms(10, 0, [False]) == (9, 1)
    assert scaling.count_prewarms(4, 6, [True] * 10) == (10, 0)


def test_guesses_are_kept_for_an_hour() -> None:
    kept = scaling.KeptSight()
    seen = morning()
    assert isinstance(seen.pods, Known)
    one = scaling.plan(seen, look(seen).memory, MONDAY + 10, kept=kept)
    assert scaling.plan(seen, look(seen).memory, MONDAY + 10, kept=kept) == one
