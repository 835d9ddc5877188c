"""Hours of spot nodes, counted look by look, handed to the status once an hour."""

from fallow.account.spot_hours import SpotHours
from fallow.model.scaling import SpotRuns
from fallow.model.units import DAY, HOUR

NOW = 1_800_000_000.0


def count(hours: SpotHours, nodes: int, seconds: float, begin: float = NOW) -> float:
    at = begin
    while at < begin + seconds:
        hours.enter({"p": nodes}, at)
        at += 30.0
    hours.enter({"p": nodes}, begin + seconds)
    return begin + seconds


def test_whole_hours_are_told_once_an_hour() -> None:
    hours = SpotHours()
    at = count(hours, 10, HOUR / 2)
    assert hours.watch("p", None, 0, at) == SpotRuns(since=at)
    at = count(hours, 10, HOUR / 2, at)
    kept = hours.watch("p", SpotRuns(since=NOW), 0, at)
    assert kept == SpotRuns(since=NOW, node_hours=10)
    assert hours.watch("p", kept, 0, at) == kept


def test_an_interruption_is_told_at_once_with_what_ran_until_then() -> None:
    hours = SpotHours()
    at = count(hours, 10, HOUR / 2)
    assert hours.watch("p", SpotRuns(since=NOW), 2, at) == SpotRuns(since=NOW, node_hours=5, interruptions=2)


def test_what_nobody_looked_at_did_not_run_and_without_spot_nodes_there_is_nothing() -> None:
    hours = SpotHours()
    hours.enter({"p": 10, "q": 0}, NOW)
    hours.enter({"p": 10, "q": 0}, NOW + DAY)
    assert hours.watch("p", SpotRuns(since=NOW), 1, NOW + DAY) == SpotRuns(since=NOW, interruptions=1)
    assert hours.watch("q", None, 0, NOW + DAY) is None
    assert hours.watch("nobody", None, 0, NOW) is None


def test_what_is_old_fades_and_rounds_against_spot() -> None:
    before = SpotRuns(since=NOW - 29 * DAY, node_hours=101, interruptions=3)
    assert SpotHours().watch("p", before, 0, NOW) == SpotRuns(
        since=NOW - 15 * DAY, node_hours=50, interruptions=2
    )
