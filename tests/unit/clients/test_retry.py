"""When something is tried again, and after how long: the rule as a table, then the loop around it."""

import math

import pytest

from fallow.clients import errors, retry

PATIENCE = retry.Patience(tries=3, first_wait=1.0)
PROBLEMS = {  # the problem, whether a read may be tried again, whether a write may
    "429": (errors.rejection(429, "busy"), True, True),
    "429, soon": (errors.rejection(429, "busy", retry_after=5.0), True, True),
    "429, in an hour": (errors.rejection(429, "busy", retry_after=3600.0), False, False),
    "500": (errors.rejection(500, "broken"), True, False),
    "503, soon": (errors.rejection(503, "starting", retry_after=5.0), True, False),
    "no connection": (errors.Unreachable("nobody there", is_undone=True), True, True),
    "no answer": (errors.Unreachable("silence"), True, False),
    "bad certificate": (errors.Unreachable("TLS", is_undone=True, retry_after=math.inf), False, False),
    "403": (errors.rejection(403, "no"), False, False),
    "409": (errors.rejection(409, "changed"), False, False),
    "unreadable": (errors.BadAnswer("noise"), False, False),
    "misconfigured": (errors.Misconfigured("no token"), False, False),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_only_what_can_help_and_cannot_hurt_is_tried_again(name: str) -> None:
    problem, may_read, may_write = PROBLEMS[name]
    assert (PATIENCE.wait_after(1, problem, is_read=True) is not None) == may_read
    assert (PATIENCE.wait_after(1, problem, is_read=False) is not None) == may_write


@pytest.mark.parametrize(
    ("turn", "asked", "least", "most"),
    [(1, None, 1.0, 1.5), (2, None, 2.0, 3.0), (1, 5.0, 5.0, 5.5), (2, 1.0, 2.0, 3.0)],
)
def test_waits_grow_are_spread_and_heed_who_asks_for_time(
    turn: int, asked: float | None, least: float, most: float
) -> None:
    problem = errors.rejection(429, "busy", retry_after=asked)
    waits = [PATIENCE.wait_after(turn, problem, is_read=True) or 0.0 for _ in range(50)]
    assert least <= min(waits) < max(waits) <= most


def test_the_last_try_is_the_last() -> None:
    assert PATIENCE.wait_after(3, PROBLEMS["429"][0], is_read=True) is None


@pytest.mark.parametrize("failures", range(4))
async def test_an_attempt_is_repeated_until_it_works_or_the_tries_are_over(failures: int) -> None:
    tried: list[int] = []

    async def attempt() -> str:
        tried.append(1)
        if len(tried) <= failures:
            raise errors.Unreachable(f"try {len(tried)}")
        return "well"

    patience = retry.Patience(tries=3, first_wait=0.001)
    if failures < 3:
        assert await retry.persist(attempt, patience) == "well"
    else:
        with pytest.raises(errors.Unreachable, match="try 3"):
            await retry.persist(attempt, patience)
    assert len(tried) == min(failures + 1, 3)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("1", 1.0), (" 30 ", 30.0), ("Wed, 21 Oct 2026 07:28:00 GMT", None), ("-1", None), (None, None)],
)
def test_retry_after_is_read_where_it_is_a_number(header: str | None, seconds: float | None) -> None:
    assert retry.read_header(header) == seconds
