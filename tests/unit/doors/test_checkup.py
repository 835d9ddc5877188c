"""The checklist of `fallow doctor`: what it says of a cluster that is old, late or half seen."""

import pytest

from fallow.doors.answers import checkup
from fallow.doors.answers.checkup import CheckMark
from fallow.model.seen import ABSENT, Known, Unseen
from fallow.wiring import checking

NOW = 1_790_000_000.0
WELL = {
    "version": "v1.33.1", "who": "ada", "at": NOW, "server_at": Known(NOW - 1), "kinds": Known(checkup._KINDS),
    "has_bounds": Known(True),
}


def check(**changes) -> dict[str, checkup.Check]:
    facts = checking.ClusterFacts(**{**WELL, **changes})
    return {each.name: each for each in checkup.check(facts, "the look failed").checks}


def test_a_cluster_that_is_well_is_ticked_and_a_look_that_failed_is_not():
    found = check()
    assert {each.mark for name, each in found.items() if name != "Look"} == {CheckMark.good}
    assert (found["Look"].mark, found["Look"].found) == (CheckMark.bad, "the look failed")


@pytest.mark.parametrize(("name", "changes", "mark", "said"), [
    ("Cluster", {"version": "v1.24.9+k3s1"}, CheckMark.doubtful, "v1.24.9"),
    ("Cluster", {"version": ""}, CheckMark.unknown, "unknown version"),
    ("Cluster", {"who": ""}, CheckMark.good, "not told who"),
    ("Clocks", {"server_at": Known(NOW - 3600)}, CheckMark.doubtful, "1h ahead of the server's"),
    ("Clocks", {"server_at": Known(NOW + 3600)}, CheckMark.doubtful, "1h behind the server's"),
    ("Clocks", {"server_at": Unseen("no Date")}, CheckMark.unknown, "no Date"),
    ("Custom resources", {"kinds": ABSENT}, CheckMark.doubtful, "none is served"),
    ("Custom resources", {"kinds": Known(("idlepolicies",))}, CheckMark.doubtful, "not served: costbudgets"),
    ("Custom resources", {"kinds": Unseen("forbidden")}, CheckMark.unknown, "forbidden"),
    ("Bounds", {"has_bounds": Known(False)}, CheckMark.doubtful, "not served"),
    ("Bounds", {"has_bounds": Unseen("forbidden")}, CheckMark.unknown, "forbidden"),
])
def test_each_line_says_what_was_found(name, changes, mark, said):
    found = check(**changes)[name]
    assert found.mark is mark
    assert said in found.found
    assert found.helps or mark is not CheckMark.doubtful


def test_what_is_not_known_is_not_well():
    facts = checking.ClusterFacts(**{**WELL, "server_at": Unseen("no Date")})
    assert not checkup.check(facts, "").is_well


def test_a_cluster_that_does_not_answer_is_all_there_is_to_say():
    [only] = checkup.check("connection refused", "").checks
    assert (only.name, only.mark, only.found) == ("Cluster", CheckMark.bad, "connection refused")
