"""Groups that mix: their cloud chooses which machine is on spot, people say how many are."""

from typing import Any

import msgspec
import pytest
from tests.unit.decide.scaling.stage import NOW, ON_DEMAND, SPOT, groups_of, grown, look, pods, policy, pool, sight

from fallow.decide.scaling.tiers import TierCounts
from fallow.model import scaling_status
from fallow.model.scaling import InFlight, ScalingSight, SpendLimit
from fallow.model.seen import Known


def mixing(*rules: Any, share: float = 0.6, waiting: int = 5, **more: Any) -> ScalingSight:
    rule = policy(pool("mixed", spot_share=share, price=4.0), *rules, spot_share=0.5, **more)
    groups = tuple(msgspec.structs.replace(each, mixes=each.id == "group-mixed") for each in groups_of(rule))
    return sight(rule, *pods(waiting, 8, spot_ok=True), groups={"default": Known(groups)})


@pytest.mark.parametrize(("share", "spot"), [(0.0, 0), (0.6, 6), (1.0, 10), (0.25, 2)])
def test_of_a_group_that_mixes_people_say_which_share_is_spot(share: float, spot: int) -> None:
    counts = TierCounts({}, {}, {"mixed": share})
    counts.open("mixed", ON_DEMAND, 10)
    assert (counts.by_tier.get(SPOT, 0), counts.total, counts.by_pool) == (spot, 10, {"mixed": 10})
    counts.open("plain", SPOT, 2)
    assert counts.by_tier[SPOT] == spot + 2


def test_a_group_that_mixes_counts_towards_the_share_of_spot() -> None:
    """Of five nodes to come three are on spot: more than half, so that the next is not; were none, it would be."""
    asked = InFlight(pool="mixed", tier=ON_DEMAND, count=5, base=0, token="t", since=NOW - 60)
    status = {"inFlight": scaling_status.write_in_flight((asked,))}
    more = {"status": status, "grow_rest": 0.0, "tiers": (SPOT, ON_DEMAND)}
    cheap = pool("cheap", SPOT, price=1.0)
    assert grown(look(mixing(cheap, waiting=6, **more))) == {"mixed": 1}
    assert grown(look(mixing(cheap, waiting=6, share=0.0, **more))) == {"cheap": 1}


def test_who_must_not_be_on_spot_gets_no_node_of_a_group_that_mixes() -> None:
    dear = pool("dear", price=9.0)
    assert grown(look(mixing(dear, waiting=2))) == {"mixed": 2}
    seen = mixing(dear, waiting=0)
    careful = msgspec.structs.replace(seen, pods=Known(tuple(pods(2, 8, spot_ok=False))))
    assert grown(look(careful)) == {"dear": 2}


@pytest.mark.parametrize(("limit", "chosen"), [
    ({"closed": frozenset({SPOT})}, {"dear": 3}), ({"most_spot_nodes": 2}, {"mixed": 2, "dear": 1}), ({}, {"mixed": 3}),
])
def test_what_a_budget_says_of_spot_binds_a_group_that_mixes(limit: dict[str, Any], chosen: dict[str, int]) -> None:
    seen = mixing(pool("dear", price=9.0), waiting=3)
    limits = Known((SpendLimit(budget="b", pods=frozenset(each.id.uid for each in seen.pods.value), **limit),))
    assert grown(look(msgspec.structs.replace(seen, limits=limits))) == chosen
