"""A place that is kept for a pod which is moved keeps its node from being emptied or let go, as long as it is kept."""

from typing import Any

import msgspec
import pytest
from tests.unit.observe.cluster import pretend

from fallow import names
from fallow.model import moving
from fallow.observe.cluster import emptied
from fallow.observe.scaling import nodes

NOW = 1_800_000_000.0


def holding(until: float) -> Any:
    place = moving.HeldPlace(v=1, move="m", namespace="ml", until=until, cpu=1, memory=1, gpus=1, shared=0)
    return pretend.made(
        "n1", namespace=None, kind="Node", annotations={names.PLACE_HELD: moving.write(place)}, spec={}, status={}
    )


@pytest.mark.parametrize(("node", "is_held"), [
    (holding(NOW + 1), True), (holding(NOW), False), (holding(NOW + 10 * moving.KEPT_FOR), False),
    (pretend.made("n1", namespace=None, kind="Node", annotations={names.PLACE_HELD: "{"}, spec={}, status={}), False),
], ids=["kept", "over", "of-nobody-of-ours", "nonsense"])
async def test_a_place_that_is_over_keeps_no_node(node: Any, is_held: bool) -> None:
    async with pretend.Server() as server, server.api() as api:
        server.put("nodes", node)
        there = await emptied.NodeEyes(api, lambda *_: "").look("n1", NOW)
    assert there is not None
    assert there.has_place_held is is_held
    seen = nodes.see(msgspec.convert(node, nodes.ScaledNodeItem))
    (joined,) = nodes.join((seen,), (), (), {}, lambda _: None, {}, NOW)
    assert ("a place is kept" in joined.kept) is is_held
