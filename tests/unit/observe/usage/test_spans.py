"""Quiet and covered, back from now: against pasts of which the truth is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallow.observe.usage import spans

WINDOW, DAY, EVERY = 1800.0, 86400.0, 30.0
LIMIT = 300.0


def search(samples: list[np.ndarray], busy: np.ndarray, *, age: float = np.inf, warned: float = np.nan) -> spans.Search:
    """One row: of each of its series the ages of the samples; the ages of what was active."""

    def count(far: float, near: float) -> float:
        return float(max(((each >= near) & (each < far)).sum() for each in samples))

    one = {"interval": np.array([EVERY]), "age": np.array([age]), "warned": np.array([warned])}
    wanted = spans.Wanted(rows=np.array([0]), window=WINDOW, count=np.array([count(WINDOW, 0.0)]), **one)
    found = spans.Search(wanted, DAY)
    while parts := found.questions():
        found.take([
            spans.Answer(
                np.array([bool(((busy >= part.near) & (busy < part.far)).any())]), np.array([False]),
                np.array([count(*part.between)]),
            )
            for part, _ in parts
        ])
    return found


def every(far: float, near: float = 10.0, step: float = EVERY) -> np.ndarray:
    return np.arange(near, far, step)


def longest_gap(samples: np.ndarray, reach: float) -> float:
    within = np.sort(samples[samples <= reach])
    return float(np.diff(np.concatenate([[0.0], within, [reach]])).max())


NOTHING = np.zeros(0)


def test_a_quiet_day_takes_one_question_for_each_stretch() -> None:
    found = search([every(DAY + 100)], NOTHING)
    assert (found.quiet_for.tolist(), np.isnan(found.active_ago).all()) == ([DAY], True)


def test_a_pod_is_not_looked_at_before_its_start() -> None:
    found = search([every(5000.0)], NOTHING, age=5060.0)
    assert found.quiet_for.tolist() == [5060.0]


@pytest.mark.accepts("idle", 55)
@pytest.mark.parametrize("restart", [40.0, 700.0, 1234.0, 1790.0])
def test_series_that_follow_each_other_are_a_whole(restart: float) -> None:
    found = search([every(restart), every(3000.0, restart)], NOTHING)
    assert found.was_whole.all()
    assert found.in_window[0] >= 55  # of 60: where they meet, the better one of a few minutes


@pytest.mark.accepts("idle", 55)
def test_series_that_overlap_are_not() -> None:
    found = search([every(DAY, 10.0, 60.0), every(DAY, 40.0, 60.0)], NOTHING)
    assert found.in_window[0] <= 32


@given(st.data())
def test_no_gap_and_no_activity_is_ever_within_what_is_called_quiet_and_covered(data: st.DataObject) -> None:
    samples = every(data.draw(st.floats(3600, DAY)))
    for begin, length in data.draw(st.lists(st.tuples(st.floats(0, DAY), st.floats(0, 7200)), max_size=4)):
        samples = samples[(samples < begin) | (samples > begin + length)]
    lost = data.draw(st.sets(st.integers(0, max(len(samples) - 1, 0)), max_size=30))
    samples = np.delete(samples, [place for place in lost if place < len(samples)])
    busy = np.array(data.draw(st.lists(st.sampled_from(samples[samples >= WINDOW].tolist() or [DAY]), max_size=3)))
    found = search([samples], busy)
    reach, active = float(found.quiet_for[0]), float(found.active_ago[0])
    assert longest_gap(samples, reach) <= LIMIT + 2 * EVERY
    assert not (busy < min(reach, DAY)).any()
    if not np.isnan(active):
        assert active <= busy.min() <= active + max(0.1 * active, LIMIT) + 1


@given(st.floats(WINDOW + 60, DAY - 600), st.floats(WINDOW, DAY))
def test_what_was_found_is_on_the_right_side_of_the_notice(last: float, warned: float) -> None:
    """A notice given while it was idle, a window after the last activity, is found good."""
    warned = min(warned, last - WINDOW)
    found = search([every(DAY)], np.array([last]), warned=max(warned, 1.0))
    assert found.active_ago[0] >= warned - LIMIT
