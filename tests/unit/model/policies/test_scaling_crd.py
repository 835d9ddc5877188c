"""AutoscalingPolicy: what is read of it, what is refused and how."""

import datetime
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
from tests import bad_scaling

from fallow.model.cost import CapacityType
from fallow.model.policies import scaling, scaling_crd, sharing


def read(spec: Any, **metadata: Any) -> scaling.ScalingPolicy:
    return scaling_crd.parse({"metadata": {"name": "default", "uid": "u", "generation": 1, **metadata}, "spec": spec})


@pytest.mark.accepts("scaling", 23)
@pytest.mark.parametrize(
    ("spec", "field"), [*bad_scaling.BAD.values(), *bad_scaling.BAD_BEYOND_THE_SERVER.values()],
    ids=[*bad_scaling.BAD, *bad_scaling.BAD_BEYOND_THE_SERVER],
)
def test_what_is_wrong_is_named_by_its_field_and_changes_nothing(spec: dict[str, Any], field: str) -> None:
    found = read({"mode": "act", **spec})
    assert [each.partition(":")[0] for each in found.invalid] == [field]
    assert not found.acts


@pytest.mark.parametrize("spec", bad_scaling.GOOD.values(), ids=bad_scaling.GOOD)
def test_what_is_right_is_taken(spec: dict[str, Any]) -> None:
    assert read(spec).invalid == ()


def test_what_it_means() -> None:
    found = read(bad_scaling.GOOD["most"])
    assert found.acts
    assert (found.grow_above, found.shrink_below, found.most, found.least) == (0.75, 0.3, 8, 1)
    assert found.tiers == (CapacityType.reserved, CapacityType.spot, CapacityType.on_demand)
    assert found.prewarming == scaling.Prewarming(horizon=7200.0, least_confidence=0.8)
    big, small = found.pools
    assert (big.gpus, big.cpu, big.memory, big.price) == (8, 96, 1152 * 1024, 9.83)
    assert big.sharing == scaling.PoolSharing(sharing.Strategy.timeslicing, 4)
    assert (small.tier, small.gpus, small.price) == (CapacityType.on_demand, None, None)


def test_false_can_be_said_and_is_not_the_default() -> None:
    off = read(bad_scaling.GOOD["off"])
    assert (off.enabled, off.spot, off.tiers) == (False, False, (CapacityType.spot,))
    plain = read(bad_scaling.policy())
    assert (plain.enabled, plain.mode, plain.acts) == (True, scaling.ScalingMode.recommend, False)


@pytest.mark.parametrize(("limit", "nodes", "may_go"), [
    (scaling.NodeLimit(percent=10), 1, 1), (scaling.NodeLimit(percent=10), 25, 3), (scaling.NodeLimit(percent=0), 9, 0),
    (scaling.NodeLimit(2), 100, 2),
])
def test_a_part_of_the_nodes_is_rounded_up(limit: scaling.NodeLimit, nodes: int, may_go: int) -> None:
    assert limit.of(nodes) == may_go


@pytest.mark.parametrize(("at", "limit"), [
    ("2026-11-16T08:30:00+00:00", scaling.NodeLimit(0)),  # a Monday, 9:30 in Berlin
    ("2026-11-16T07:30:00+00:00", scaling.NodeLimit(2)), ("2026-11-16T16:30:00+00:00", scaling.NodeLimit(2)),
    ("2026-11-15T10:00:00+00:00", scaling.NodeLimit(2)),  # a Sunday
    ("2026-07-13T07:30:00+00:00", scaling.NodeLimit(0)),  # in summer it begins an hour earlier by our clock
], ids=["inside", "before", "after", "weekend", "summer"])
def test_inside_a_window_its_own_limit_rules(at: str, limit: scaling.NodeLimit) -> None:
    found = read(bad_scaling.GOOD["most"])
    assert found.find_disruption(datetime.datetime.fromisoformat(at).timestamp()) == limit


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3), max_leaves=8,
)
FIELDS = st.sampled_from(sorted({"tierOrder", "disruption", "predictive", *bad_scaling.GOOD["most"]}))


@hypothesis.given(st.dictionaries(FIELDS, JSON), JSON, JSON)
def test_whatever_stands_there_is_read_and_never_raises(spec: dict[str, Any], status: Any, metadata: Any) -> None:
    scaling_crd.parse({"metadata": metadata, "spec": spec, "status": status})
