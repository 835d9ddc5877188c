"""Bad days, a few of them: every fault, and a tenant who lies. `make soak` lives two hundred."""

import pytest

from tests.functional import bad_days


@pytest.mark.parametrize(("seed", "hours"), [(2, 16.0), (7, 8.0)])
async def test_no_fault_and_no_lie_makes_a_pause_that_the_truth_does_not_allow(seed: int, hours: float) -> None:
    day = await bad_days.live(seed, hours=hours)
    assert day.broken == []
    assert day.pauses > 0, "a day without a pause proves nothing"
    assert day.pranks.total() > 5
