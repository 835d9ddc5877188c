"""How often jobs are scraped, from what the last minutes hold."""

import itertools

import numpy as np
import pytest

from fallow.observe.usage import paces, queries

WINDOW = 1800.0
ASKED = 0.8
NOW = 1_800_000_000.0

LEARNED = {  # samples in the older and in the newer half of the last 300 s: the pace, None = not known
    "every 15 s": (10, 10, 300 / 19), "every 15 s, on the border": (11, 10, 15.0), "every 30 s": (5, 5, 300 / 9),
    "every minute": (2, 3, 75.0), "every 2 min": (1, 1, 120.0), "every second": (150, 150, 300 / 299),
    "one was missed": (9, 11, 300 / 19), "one sample": (0, 1, None), "3 in the last 45 s": (0, 3, None),
    "13 in the last 200 s": (3, 10, None), "19 in the last 285 s": (9, 10, 300 / 18), "it stopped": (10, 2, None),
    "one before an outage": (1, 4, None), "nothing": (0, 0, None),
}


def late(older: int, newer: int) -> paces.Late:
    most, before = np.array([older + newer], dtype=np.float64), np.array([older], dtype=np.float64)
    return paces.Late(most[0], np.where(paces.is_steady(most, before), most, 0.0)[0], paces.LONGEST)


@pytest.mark.parametrize("name", LEARNED)
def test_a_pace_is_learned_only_from_what_was_scraped_all_the_time(name: str) -> None:
    older, newer, pace = LEARNED[name]
    known = paces.Paces()
    known.learn({"dcgm": late(older, newer)}, NOW)
    assert known.by_job == ({} if pace is None else {"dcgm": pytest.approx(pace)})


def test_a_pace_gets_shorter_at_once_and_longer_only_when_it_is_learned_anew() -> None:
    known = paces.Paces()
    for after, (older, newer), pace in (
        (0, (2, 3), 75.0), (60, (2, 9), 30.0), (120, (1, 1), 30.0), (3599, (1, 1), 30.0), (3600, (0, 1), 30.0),
        (3700, (1, 1), 120.0), (3760, (10, 10), 300 / 19),
    ):
        known.learn({"dcgm": late(older, newer)}, NOW + after)
        assert known.by_job == {"dcgm": pytest.approx(pace)}, after
    known.meet({"dcgm": 10.0}, WINDOW)
    assert known.by_job == {"dcgm": pytest.approx(1800 / 179)}
    known.learn({}, NOW + 86_400 + 3700)
    assert known.by_job == {}, "of a job that was not there for a day nothing is known"


def counted(scrapes: list[float], at: float, far: float, near: float = 0.0) -> int:
    return sum(at - far < one <= at - near for one in scrapes)


def covered(known: paces.Paces, scrapes: list[float], at: float) -> float:
    """As columns.learn_intervals and the judge make it of the best series."""
    older, whole = counted(scrapes, at, queries.PACE, queries.PACE / 2), counted(scrapes, at, queries.PACE)
    if whole:
        known.learn({"dcgm": late(older, whole - older)}, at)
    count = counted(scrapes, at, WINDOW)
    interval = min(paces.interval_of(count, WINDOW), known.by_job.get("dcgm", paces.SHORTEST))
    known.meet({"dcgm": interval} if count else {}, WINDOW)
    return count * interval / WINDOW


@pytest.mark.accepts("idle", 4)
@pytest.mark.parametrize(("every", "before"), list(itertools.product([1, 5, 10, 15, 30, 60, 120], [0, 600, 3600])))
def test_a_short_stretch_of_data_never_passes_for_a_window(every: int, before: int) -> None:
    """`before` so many seconds of data and an outage of 25 min; then the first look comes after any time."""
    outage, back = 1500.0, NOW
    scrapes = [back - outage - step for step in range(0, before, every)]
    scrapes += [back + step for step in range(0, 2400, every)]
    for first in (0, 7, 20, 50, 80, 140, 200, 290, 310, 400):
        known = paces.Paces()
        for age in range(first, 2400, 60):
            share = covered(known, scrapes, back + age)
            measured = (min(age, WINDOW) + min(before, max(WINDOW - outage - age, 0.0))) / WINDOW
            assert share < ASKED or measured > 0.6, f"first look after {first} s: {age} s of data cover {share:.0%}"
        assert share >= ASKED, "what is complete covers its window, however rarely it is scraped"
