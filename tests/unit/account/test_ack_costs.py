"""What acknowledgements have cost, by workload."""

import pytest
from tests import cost_scenes
from tests.builders import NOW

from fallow.account.ack_costs import AckCosts
from fallow.model import cluster
from fallow.model.cost import DAY, HOUR, CostRetention, SpendState

AT = int(NOW)


def ref(name: str) -> cluster.Ref:
    return cluster.Ref("apps", "v1", "Deployment", "red", name, f"uid-{name}")


async def test_each_workload_has_what_was_booked_while_it_was_idle_under_its_acknowledgement() -> None:
    one, other = cost_scenes.key("red", "one"), cost_scenes.key("red", "other")
    idle = SpendState.held_idle
    booked = [
        *cost_scenes.held("GPU-0", AT - 9 * HOUR, AT - 5 * HOUR, one, idle, ack="a@1"),
        *cost_scenes.held("GPU-0", AT - 5 * HOUR, AT - 4 * HOUR, one, use=0.5),
        *cost_scenes.held("GPU-0", AT - 4 * HOUR, AT - 2 * HOUR, one, idle, ack="a@2"),
        *cost_scenes.held("GPU-1", AT - 4 * HOUR, AT, other, idle, ack="red@3", is_open=True),
    ]
    async with cost_scenes.opened(booked, at=AT) as ledger:
        costs = AckCosts(ledger, "USD")
        assert costs.find(ref("one"), "a@1") is None, "nothing was read yet"
        await costs.read(NOW)
        per_hour = cost_scenes.P4D / 10**9
        found = {name: costs.find(ref(name), ack) for name, ack in (("one", "a@1"), ("other", "red@3"))}
        assert {name: each and each.amount for name, each in found.items()} == pytest.approx(
            {"one": 4 * per_hour, "other": 4 * per_hour}
        )
        last = costs.find_last(ref("one"))
        assert last is not None
        assert (last.id, last.amount) == ("a@2", pytest.approx(2 * per_hour))
        assert costs.find_last(ref("nobody")) is None


@pytest.mark.parametrize(("kept", "hours"), [(90, 1), (400, 3)])
async def test_it_is_added_up_for_as_long_as_intervals_are_kept(kept: int, hours: int) -> None:
    mine, idle, long_ago = cost_scenes.key("red", "one"), SpendState.held_idle, AT - 200 * DAY
    booked = [
        *cost_scenes.held("GPU-0", long_ago, long_ago + 2 * HOUR, mine, idle, ack="a@1"),
        *cost_scenes.held("GPU-0", AT - 2 * HOUR, AT - HOUR, mine, idle, ack="a@1"),
    ]
    async with cost_scenes.opened(booked, at=AT) as ledger:
        await ledger.roll_up(AT, 1)
        await ledger.forget(CostRetention(intervals=kept * DAY, hours=500 * DAY), AT, 1)
        costs = AckCosts(ledger, "USD")
        await costs.read(NOW)
        found = costs.find(ref("one"), "a@1")
        assert found is not None
        assert found.amount == pytest.approx(hours * cost_scenes.P4D / 10**9)
