"""Tuning: silences are found as they are, the curve adds up, and the recommended window holds on pods it was not chosen
from."""

import itertools
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallow.model.units import HOUR, MINUTE
from fallow.sim import backtest, cast, tuning
from fallow.sim.world.lives import NONE
from fallow.sim.world.nouns import Part

ONE = [Part("ml", "a")]


def silences(*minutes: float, whose: int = 0, gpus: float = 1.0, ended: bool = True) -> tuning.Silences:
    count = len(minutes)
    return tuning.Silences(
        np.array(minutes) * MINUTE, np.full(count, ended), np.full(count, gpus), np.full(count, whose)
    )


def join(*each: tuning.Silences) -> tuning.Silences:
    return tuning.Silences(
        *(np.concatenate([getattr(one, name) for one in each]) for name in ("seconds", "ended", "gpus", "whose"))
    )


def find(text: str, parts: list[Part] | None = None) -> list[tuple[float, bool]]:
    """Of a life in letters: `#` busy, `.` quiet, `?` not known; rows are divided by blanks, a step is a minute."""
    values = {"#": 50, ".": 0, "?": NONE}
    rows = np.array([[values[letter] for letter in row] for row in text.split()], np.uint8)
    found = tuning.find_silences(parts or ONE, rows, MINUTE)
    return [(seconds / MINUTE, bool(ended)) for seconds, ended in zip(found.seconds, found.ended, strict=True)]


# ---- silences --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("life", "found"),
    [
        ("####", []),
        ("....", [(4, False)]),
        ("#..#...#", [(2, True), (3, True)]),
        ("..#", [(2, True)]),
        ("#..", [(2, False)]),
        ("#.?.#", [(3, True)]),  # what is missing for a moment was quiet before and after
        ("#.???.#", [(5, True)]),
        ("#.????.#", [(1, False), (1, True)]),  # too long to look across
        ("#..???#", [(5, True)]),
        ("#..????#", [(2, False)]),
        ("#..??", [(2, False)]),
        ("????", []),
        ("#????#", []),
    ],
)
def test_silences_are_cut_by_activity_and_by_what_is_not_known(life: str, found: list[tuple[float, bool]]) -> None:
    assert find(life) == found


def test_a_workload_is_quiet_while_all_of_its_gpus_are() -> None:
    assert find("#..... #...#.", [Part("ml", "a", gpus=2)]) == [(3, True), (1, False)]
    assert find("#...... #.????.", [Part("ml", "a", gpus=2)]) == [(1, False), (1, False)]
    assert find("#..# ....", [Part("ml", "a"), Part("ml", "b")]) == [(2, True), (4, False)]


@given(life=st.text("#.?", min_size=1, max_size=60))
def test_no_silence_holds_activity_nor_more_quiet_than_there_was(life: str) -> None:
    found = find(life)
    assert sum(length for length, _ in found) <= life.count(".") + life.count("?")
    assert sum(length for length, _ in found) >= life.count(".")
    assert sum(ended for _, ended in found) <= life.count("#")


# ---- the curve -------------------------------------------------------------------------------------------------------


def test_a_point_adds_up() -> None:
    history = join(silences(10, 40, 100), silences(200, ended=False), silences(50, gpus=8))
    point = tuning.measure(history, 30 * MINUTE, 60 * MINUTE)
    assert (point.pauses, point.interruptions, point.regrets) == (4, 3, 1)
    assert point.burned_gpu_hours == pytest.approx((10 + 30 * 3 + 30 * 8) / 60)
    assert point.saved_gpu_hours == pytest.approx((10 + 70 + 170 + 20 * 8) / 60)
    assert point.cost_gpu_hours == pytest.approx(point.burned_gpu_hours + 3)


@given(minutes=st.lists(st.floats(1, 2000), min_size=1, max_size=50), cost=st.floats(0, 300))
def test_a_longer_window_burns_more_and_interrupts_less(minutes: list[float], cost: float) -> None:
    curve = [tuning.measure(silences(*minutes), window, cost * MINUTE) for window in tuning.WINDOWS]
    for shorter, longer in itertools.pairwise(curve):
        assert longer.burned_gpu_hours >= shorter.burned_gpu_hours
        assert longer.interruptions <= shorter.interruptions
    total = sum(minutes) / 60
    assert all(point.burned_gpu_hours + point.saved_gpu_hours == pytest.approx(total) for point in curve)


# ---- the recommendation ----------------------------------------------------------------------------------------------


@given(minutes=st.lists(st.floats(1, 3000), max_size=80), cost=st.floats(1, 500))
def test_a_recommended_window_is_one_that_can_be_set(minutes: list[float], cost: float) -> None:
    window = tuning.choose(silences(*minutes), cost * MINUTE)
    assert 10 * MINUTE <= window <= 24 * HOUR
    assert window % MINUTE == 0 or not minutes


def test_two_sorts_of_silence_are_told_apart() -> None:
    """Breaks of up to 20 minutes, and nights: the window belongs between them, well away from the breaks."""
    rng = np.random.default_rng(0)
    history = silences(*rng.uniform(2, 20, 400), *rng.uniform(600, 900, 40))
    window = tuning.choose(history, 60 * MINUTE)
    assert 20 * MINUTE < window < 45 * MINUTE


def test_a_lucky_point_does_not_decide() -> None:
    """Of few silences the cheapest window is a matter of chance; judged by all there are, the middle of a good stretch
    costs less."""
    rng, cost = np.random.default_rng(1), 60 * MINUTE
    tried = np.arange(5, 1440, 5) * MINUTE
    every = silences(*(3 * (1 + rng.pareto(1.1, 20_000))))
    costs = [tuning.measure(every, window, cost).cost_gpu_hours for window in tried]
    ours, lucky = [], []
    for _ in range(40):
        few = silences(*rng.choice(every.seconds / MINUTE, 150))
        ours.append(tuning.measure(every, tuning.choose(few, cost), cost).cost_gpu_hours / min(costs))
        lucky.append(
            costs[int(np.argmin([tuning.measure(few, window, cost).cost_gpu_hours for window in tried]))] / min(costs)
        )
    assert np.mean(ours) < np.mean(lucky) < 1.1
    assert max(ours) < max(lucky)


# ---- classes and workloads -------------------------------------------------------------------------------------------


def _mixed(seed: int = 0) -> tuple[tuning.Silences, list[Part]]:
    """Ten services with short breaks and long nights, ten notebooks with long breaks, one batch job that tells
    little."""
    rng = np.random.default_rng(seed)
    parts = [Part("ml", f"s{number}", class_="inference") for number in range(10)]
    parts += [Part("ml", f"n{number}", class_="notebook") for number in range(10)] + [Part("ml", "b", class_="batch")]
    each = [silences(*rng.uniform(1, 10, 60), *rng.uniform(300, 600, 20), whose=number) for number in range(10)]
    each += [silences(*rng.uniform(20, 50, 60), *rng.uniform(600, 900, 10), whose=number) for number in range(10, 20)]
    return join(*each, silences(3, 500, whose=20)), parts


def test_a_class_with_enough_history_gets_a_window_of_its_own() -> None:
    history, parts = _mixed()
    found = tuning.recommend(history, parts, 60 * MINUTE)
    services, notebooks, batch = (found.by_class[name] for name in ("inference", "notebook", "batch"))
    assert services.window < 30 * MINUTE
    assert notebooks.window > 45 * MINUTE
    assert (services.rests_on, batch.rests_on, batch.window) == ("class", "all", found.all.window)
    assert sum(one.point.cost_gpu_hours for one in found.by_class.values()) < found.all.point.cost_gpu_hours
    assert found.by_workload["ml/b"].rests_on == "all"
    assert found.by_workload["ml/s1"].window in {services.window, *(one.window for one in found.by_workload.values())}


def test_a_workload_that_differs_from_its_class_gets_its_own_and_chance_does_not() -> None:
    rng = np.random.default_rng(3)
    parts = [Part("ml", f"w{number}") for number in range(31)]
    usual = [silences(*rng.uniform(2, 40, 80), whose=number) for number in range(30)]
    odd = silences(*rng.uniform(200, 400, 80), whose=30)
    found = tuning.recommend(join(*usual, odd), parts, 60 * MINUTE).by_workload
    assert (found["ml/w30"].rests_on, found["ml/w30"].window < 15 * MINUTE) == ("workload", True)
    assert sum(one.rests_on == "workload" for name, one in found.items() if name != "ml/w30") <= 2


def test_with_little_history_nobody_gets_a_window_of_its_own() -> None:
    parts = [Part("ml", f"w{number}") for number in range(4)]
    history = join(*(silences(*([5] * 5 + [300] * 4), whose=number) for number in range(4)))
    found = tuning.recommend(history, parts, 30 * MINUTE)
    assert {one.rests_on for one in (*found.by_class.values(), *found.by_workload.values())} == {"all"}


def test_without_any_silence_the_window_is_what_a_resume_costs() -> None:
    found = tuning.recommend(silences(), ONE, 45 * MINUTE)
    assert (found.all.window, found.by_workload) == (45 * MINUTE, {})


def test_a_world_can_be_tuned_too() -> None:
    world = cast.make_world(seed=2, nodes=10)
    found = tuning.recommend(tuning.of_world(world), [one.part for one in world.workloads], 30 * MINUTE)
    assert set(found.by_class) == {"inference", "notebook", "training", "batch"}
    assert found.all.point.saved_gpu_hours > 0


# ---- what may be recommended -----------------------------------------------------------------------------------------


def played(minutes: int, regrets: int, pauses: int = 100) -> tuning.PlayedWindow:
    sums = backtest.BacktestSums(pauses=pauses, regrets=regrets, resumes=12, idle_gpu_hours=7.0)
    return tuning.weigh(minutes * MINUTE, sums, 30 * MINUTE)


def test_a_played_window_has_the_figures_of_its_backtest_and_the_price_of_its_resumes() -> None:
    sums = backtest.BacktestSums(
        reclaimed_gpu_hours=3.5, idle_gpu_hours=7.0, money=Decimal(9), pauses=4, regrets=1, resumes=2, waited=60.0
    )
    one = tuning.weigh(HOUR, sums, 30 * MINUTE)
    for name in ("reclaimed_gpu_hours", "idle_gpu_hours", "money", "pauses", "regrets", "resumes", "waited"):
        assert getattr(one, name) == getattr(sums, name)
    assert (one.regretted, one.cost_gpu_hours) == (0.25, 8.0)


@pytest.mark.parametrize(
    ("asked", "accepted", "found"), [(8, 0.1, 60), (8, 0.4, 10), (8, 0.0, None), (45, 0.4, 60), (90, 1.0, 120)]
)
def test_the_first_window_that_people_accept_is_taken(asked: int, accepted: float, found: int | None) -> None:
    curve = [played(120, 12), played(10, 35), played(30, 20), played(60, 5)]
    settled = tuning.settle(asked * MINUTE, curve, accepted)
    assert (settled.window / MINUTE if settled else None) == found


@pytest.mark.parametrize(("minutes", "lack"), [
    ([30.0] * 40, ""),
    ([30.0] * 2 + [9.0] * 500, "there are 2 silences of 10m or more in 6h, and 40 are needed: about 5d of such"),
    ([], "there are 0 silences of 10m or more in 6h, and 40 are needed: a history in which GPUs rest"),
])
def test_too_little_history_says_how_much_more_is_needed(minutes: list[float], lack: str) -> None:
    assert tuning.find_lack(silences(*minutes), 6 * HOUR).startswith(lack)
    assert bool(tuning.find_lack(silences(*minutes), 6 * HOUR)) is bool(lack)
