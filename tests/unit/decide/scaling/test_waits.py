"""Who needs a node and gets none yet is told why: the policy's rest, its patience, its limits, what is on its way."""

from typing import Any

import pytest
from tests.unit.decide.scaling.stage import NOW, SPOT, first, look, node, pod, policy, pool, sight
from tests.unit.decide.scaling.test_growing import coming, status

from fallow.model.scaling import StockOut

SOON = "if they still wait at 2027-01-15T08:01:00Z, one is added"


def young(name: str = "p", waits: float = 60, **more: Any) -> Any:
    return pod(name, 8, waits_since=NOW - waits, **more)


@pytest.mark.parametrize(
    ("rule", "waiting", "why"),
    [
        (policy(), young(), f"no pod has waited for more than 2 min (pendingPodTimeoutSeconds); {SOON}"),
        (policy(status=status(lastScaleUpTime=NOW - 60)), young(waits=600), "nodes were added less than 3 min ago "
         "(scaleUpCooldownSeconds); the next may be added at 2027-01-15T08:02:00Z"),
        (policy(most=1), young(waits=600), "the policy has its maximum of 1 node (maxNodes)"),
        (policy(pool(most=1)), young(waits=600), "pool main has its maximum of 1 node"),
        (policy(pool(tier=SPOT)), young(waits=600, spot_ok=False),
         "pool main is spot, and nobody said that the pod may be interrupted"),
        (policy(status=status(stockouts=(
            StockOut(pool="main", tier=pool().tier, instance_type="", zone="", until=NOW + 300, failures=1),
        ))), young(waits=600), "pool main is sold out"),
    ],
    ids=["patience", "cooldown", "policy", "pool", "spot", "sold-out"],
)
def test_who_waits_for_a_node_is_told_why_none_is_added(rule: Any, waiting: Any, why: str) -> None:
    made = look(sight(rule, node("n1"), pod("busy", 8, "n1"), waiting))
    assert not first(made).grows
    assert first(made).because == f"1 pod waits for a node, and none is added yet: {why}"
    (verdict,) = made.pods
    assert verdict.because.endswith(f"; {why}")


def test_where_one_is_added_nobody_is_told_that_none_is() -> None:
    made = look(sight(policy(), node("n1"), pod("busy", 8, "n1"), young(waits=600)))
    assert first(made).grows
    assert "none is added yet" not in first(made).because + made.pods[0].because


def test_what_is_on_its_way_is_why_no_more_is_added() -> None:
    rule = policy(status=status(in_flight=(coming(),)))
    made = first(look(sight(rule, node("n1"), pod("busy", 8, "n1"), young(waits=600))))
    assert (made.nodes, made.desired) == (1, 2)
    assert made.because == "nothing more is to be added while 1 node is on the way"
