"""The rate limit, in pretend time."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallow.clients.kubernetes import pace


def test_a_burst_goes_at_once_and_the_rest_at_the_rate() -> None:
    limit = pace.Pace(qps=20, burst=3, monotonic=lambda: 100.0)
    assert [round(limit.reserve(), 3) for _ in range(6)] == [-0.1, -0.05, 0.0, 0.05, 0.1, 0.15]


@given(
    qps=st.floats(0.5, 100),
    burst=st.integers(1, 20),
    gaps=st.lists(st.floats(0, 2), min_size=1, max_size=60),
)
def test_no_stretch_of_time_sees_more_than_burst_and_rate_allow(qps: float, burst: int, gaps: list[float]) -> None:
    now = 0.0
    limit = pace.Pace(qps, burst, monotonic=lambda: now)
    sent = []
    for gap in gaps:
        now += gap
        sent.append(now + max(0.0, limit.reserve()))
    sent.sort()
    for first, last in itertools.combinations(range(len(sent)), 2):
        assert last - first + 1 <= burst + qps * (sent[last] - sent[first]) + 1e-6


@pytest.mark.parametrize(("qps", "burst"), [(0, 1), (-1, 1), (1, 0)])
def test_a_limit_that_lets_nothing_through_is_refused(qps: float, burst: int) -> None:
    with pytest.raises(ValueError, match="the rate must be above 0"):
        pace.Pace(qps, burst)
