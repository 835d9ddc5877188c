"""Who guesses the demand of GPUs must have been better than "as now", and an hour that nobody saw teaches nothing."""

import numpy as np
import pytest

from fallow.decide import scaling
from fallow.decide.scaling import foresight

DAY, WEEK, NODE = 24, scaling.WEEK, 8.0
HORIZON = 24


def weekly(weeks: int = 4, *, rows: int = 1, seed: int = 0) -> foresight.Floats:
    """Weekdays from 9 to 18 h at 40 GPUs, else 4, give or take a tenth; it begins on a Monday."""
    hours = np.arange(weeks * WEEK)
    at_work = (hours // DAY % 7 < 5) & (hours % DAY >= 9) & (hours % DAY < 18)
    noise = np.random.default_rng(seed).standard_normal((rows, len(hours)))
    return np.where(at_work, 40.0, 4.0) * (1 + 0.1 * noise)


def slots(demand: foresight.Floats) -> foresight.Ints:
    return np.arange(demand.shape[1] + HORIZON) % WEEK


def foresee(demand: foresight.Floats, horizon: int = HORIZON) -> scaling.Foresight:
    return scaling.foresee(demand, slots(demand), horizon, node=NODE)


@pytest.mark.accepts("scaling", 24)
def test_a_week_that_repeats_is_known_after_three() -> None:
    demand = weekly()
    errors, chosen = scaling.rehearse(demand, slots(demand), HORIZON, first=3 * WEEK)
    assert chosen <= 0.15
    by_name = dict(zip(scaling.Guesser, errors.tolist(), strict=True))
    assert by_name["hour-of-week"] < by_name["holt-winters"] < by_name["persistence"]


@pytest.mark.accepts("scaling", 24)
def test_on_sunday_night_monday_morning_is_foreseen() -> None:
    seen = foresee(weekly())  # ends on a Sunday at midnight
    (hours,) = seen.ahead
    assert scaling.Guesser.hour_of_week == list(scaling.Guesser)[seen.guesser[0]]
    assert hours[8] == pytest.approx(4, rel=0.2)
    assert hours[9] == pytest.approx(40, rel=0.2)
    assert seen.confidence[0] > 0.9


def test_where_nothing_repeats_it_stays_as_now_and_nobody_is_confident_for_nothing() -> None:
    steps = np.random.default_rng(3).standard_normal((1, 4 * WEEK))
    walk = 100 + np.cumsum(3 * steps, axis=1)
    seen = foresee(walk)
    assert not seen.is_seasonal()[0]
    assert seen.ahead[0] == pytest.approx(np.full(HORIZON, walk[0, -1]))


@pytest.mark.parametrize(("share", "is_told"), [(0.1, True), (0.19, True), (0.3, False)], ids=["few", "some", "many"])
def test_too_many_gaps_give_no_guess(share: float, is_told: bool) -> None:
    demand = weekly()
    rng = np.random.default_rng(1)
    demand[0, rng.choice(demand.shape[1], int(share * demand.shape[1]), replace=False)] = np.nan
    assert np.isnan(foresee(demand).ahead[0]).all() != is_told


def test_a_night_that_nobody_saw_is_not_taken_for_an_empty_one() -> None:
    """Had the gap been nought, Monday's hours would be thought smaller."""
    whole, broken = weekly(), weekly()
    broken[0, -WEEK : -WEEK + DAY] = np.nan
    full, holed = foresee(whole).ahead[0], foresee(broken).ahead[0]
    assert holed[9:18] == pytest.approx(full[9:18], rel=0.15)


def test_a_young_series_is_as_now_without_confidence() -> None:
    seen = foresee(weekly(1)[:, : 2 * DAY])
    assert not seen.is_seasonal()[0]
    assert seen.confidence[0] == 0


def test_no_series_and_no_hours_are_no_trouble() -> None:
    assert foresee(np.zeros((0, 4 * WEEK))).ahead.shape == (0, HORIZON)
    assert np.isnan(foresee(np.full((1, 2 * WEEK), np.nan)).ahead).all()


def test_a_guess_knows_nothing_of_what_came_after() -> None:
    """The same past gives the same guess, whatever followed."""
    demand = weekly()
    changed = demand.copy()
    changed[0, 3 * WEEK :] = 500.0
    origins = np.array([3 * WEEK])
    said = [foresight.guess(each, slots(each), origins, HORIZON).said for each in (demand, changed)]
    np.testing.assert_array_equal(said[0], said[1])


def test_every_series_is_guessed_as_if_it_were_alone() -> None:
    demand = weekly(rows=5)
    together, alone = foresee(demand), foresee(demand[2:3])
    np.testing.assert_allclose(together.ahead[2], alone.ahead[0])
    np.testing.assert_allclose(together.errors[:, 2], alone.errors[:, 0])
