"""Nodes ahead of demand: earned by good guesses, packed in the mix that runs, lost by misses."""

from typing import Any

import msgspec
import numpy as np
import pytest
from tests.unit.decide.scaling.stage import (
    NOW,
    ON_DEMAND,
    first,
    grown,
    long_unneeded,
    look,
    node,
    pod,
    policy,
    pool,
    released,
    sight,
    stays,
)

from fallow.decide import scaling
from fallow.model import scaling_status, units
from fallow.model.policies.scaling import NodeDriver, Prewarming
from fallow.model.scaling import DemandPast, InFlight, ScaledNode, ScalingSight, WaitHold
from fallow.model.scaling_plan import GrowReason
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
    assert made.headroom == ()
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


@pytest.mark.parametrize(("fared", "is_lost"), [((4, 6), True), ((5, 5), False), ((0, 9), False)])
def test_trust_is_lost_by_misses(fared: tuple[int, int], is_lost: bool) -> None:
    assert bool(scaling.find_distrust(*fared)) is is_lost
    made = first(look(morning(status={"predictiveScaling": {"hits": fared[0], "misses": fared[1]}}), now=MONDAY + 10))
    assert made.guess is not None
    assert ("were used" in made.guess.refused) is is_lost


def asked(count: int = 2, ago: float = 300.0, **more: Any) -> dict[str, Any]:
    growth = InFlight(pool="main", tier=ON_DEMAND, count=count, base=0, token="t", since=NOW - ago, is_prewarm=True)
    return {"inFlight": scaling_status.write_in_flight([msgspec.structs.replace(growth, **more)])}


def come(name: str, **more: Any) -> ScaledNode:
    return node(name, created_at=NOW - 100, **more)


def test_nodes_that_come_of_a_forecast_are_marked_before_they_count_as_arrived() -> None:
    rule = policy(prewarming=Prewarming(), status=asked())
    one = first(look(sight(rule, come("a"))))
    assert one.started == {"a": NOW - 300 + 1800 + 3600}
    assert [each.token for each in one.in_flight] == ["t"]
    both = first(look(sight(rule, come("a", was_prewarmed=True, prewarmed_until=NOW + 9), come("b"))))
    assert (set(both.started), both.arrived) == ({"b"}, ())
    marked = [come(name, was_prewarmed=True, prewarmed_until=NOW + 9) for name in "ab"]
    done = first(look(sight(rule, *marked)))
    assert (done.started, [each.token for each in done.arrived]) == ({}, ["t"])


def test_one_that_was_counted_is_not_marked_again_while_others_still_come() -> None:
    rule = policy(prewarming=Prewarming(), status=asked())
    made = first(look(sight(rule, come("a", was_prewarmed=True), pod("p", 1, "a"))))
    assert (made.started, made.prewarmed) == ({}, {})


@pytest.mark.parametrize("change", [{"is_prewarm": False}, {"ago": 1000.0}], ids=["demand", "long-ago"])
def test_other_growth_is_not_marked(change: dict[str, Any]) -> None:
    rule = policy(prewarming=Prewarming(), status=asked(1, **change))
    nodes = [node("a", created_at=NOW - 50)]
    made = first(look(sight(rule, *nodes)))
    assert made.started == {}
    assert [each.token for each in made.arrived] == ["t"]


def test_a_node_that_was_started_ahead_stays_until_its_time_is_up() -> None:
    free, gone = node("free", prewarmed_until=NOW + 1, use=0.0), node("gone", prewarmed_until=NOW - 1, use=0.0)
    plan = look(sight(policy(), free, gone, node("busy"), pod("x", 8, "busy")), long_unneeded(free, gone))
    assert released(plan) == ["gone"]
    assert stays(plan)["free"] == "Prewarmed"


# ---- where another drives --------------------------------------------------------------------------------------------


def room(nodes: int = 5, since: float = MONDAY - 600) -> dict[str, Any]:
    return {"predictiveScaling": {"headroom": [{"pool": "main", "nodes": nodes, "since": units.rfc3339(since)}]}}


def elsewhere(*more: Any, **about: Any) -> ScalingSight:
    return morning(*more, **{"driver": NodeDriver.cluster_autoscaler, "status": room(), **about})


def late(name: str, **more: Any) -> ScaledNode:
    return node(name, created_at=MONDAY - 300, **more)


def test_a_buffer_s_empty_nodes_are_marked_and_are_no_answer_to_what_is_asked_for() -> None:
    made = first(look(elsewhere(late("b0"), late("b1")), now=MONDAY + 10))
    assert made.started == dict.fromkeys(("b0", "b1"), MONDAY - 600 + 1800 + 3600)
    wanted = sum(each.nodes for each in made.headroom)
    assert wanted in (4, 5)
    assert made.headroom[0].since == MONDAY - 600
    marks = {"was_prewarmed": True, "prewarmed_until": MONDAY + 4000}
    again = first(look(elsewhere(late("b0", **marks), late("b1", **marks)), now=MONDAY + 40))
    assert (again.started, again.prewarmed, sum(each.nodes for each in again.headroom)) == ({}, {}, wanted)


@pytest.mark.parametrize(("things", "status"), [
    ([node("old")], room()), ([late("used"), pod("p", 1, "used")], room()), ([late("unready", is_ready=False)], room()),
    ([late("soon"), pod("w", 8, held=None)], room()), ([late("more")], room(nodes=0)), ([late("new")], {}),
], ids=["there-before", "used", "unready", "wanted-now", "asked-for-none", "not-asked"])
def test_other_nodes_are_not_taken_for_such(things: list[Any], status: dict[str, Any]) -> None:
    assert first(look(elsewhere(*things, status=status), now=MONDAY + 10)).started == {}


def test_a_placeholder_that_was_pushed_aside_is_a_hit_and_room_given_up_is_a_miss() -> None:
    marks = {"was_prewarmed": True, "prewarmed_until": MONDAY + 4000}
    hold = pod("hold", 8, "idle", held=WaitHold.Placeholder, priority=-10)
    there = [late("taken", **marks), pod("real", 8, "taken"), late("idle", **marks), hold]
    assert first(look(elsewhere(*there), now=MONDAY + 10)).prewarmed == {"taken": True}
    quiet = weeks(level=5.0)
    assert first(look(elsewhere(*there, past=quiet), now=MONDAY + 10)).prewarmed == {"taken": True, "idle": False}


def test_guesses_are_kept_for_an_hour() -> None:
    kept = scaling.KeptSight()
    seen = morning()
    assert isinstance(seen.pods, Known)
    one = scaling.plan(seen, look(seen).memory, MONDAY + 10, kept=kept)
    assert scaling.plan(seen, look(seen).memory, MONDAY + 10, kept=kept) == one
