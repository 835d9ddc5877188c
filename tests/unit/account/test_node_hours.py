"""How well a node was measured in the last day: turns of the chronicle, told with gaps on the page of nodes."""

import msgspec
import numpy as np
import pytest
from tests import builders
from tests.builders import MINUTE, NOW, World
from tests.unit.doors.api.serving import serving

from fallow.account import audit, chronicle, node_hours
from fallow.decide.idle import plan as brain
from fallow.doors.answers import nodes
from fallow.model import decision
from fallow.model.history import Condition
from fallow.model.units import DAY, HOUR, rfc3339

MANDATE = builders.mandate()
B, U = Condition.busy, Condition.unknown


def make_world() -> World:
    world = World()
    for name in ("node-1", "node-2"):
        world.node(name, product="Tesla-T4")
        world.nodes[name] = msgspec.structs.replace(world.nodes[name], gpus=8, offers={"nvidia.com/gpu": 8})
    world.workload("ml/a", gpus=[builders.busy()])
    world.workload("ml/b", gpus=[builders.busy()], pod={"node": "node-2"})
    return world


def cycle_of(world: World, at: float, *, silent: bool = False, failure: str = "") -> decision.Cycle:
    """`silent`: of node-2 nothing is heard for ten minutes."""
    seen = world.snapshot(version=1)
    (window, use), = seen.evidence.usage.items()
    on_second = np.array([seen.pods[pod].node == "node-2" for pod in use.pod.tolist()])
    newest = {signal: np.where(on_second & silent, at - 10 * MINUTE, at - 15.0) for signal in use.newest}
    use = msgspec.structs.replace(use, newest=newest)
    evidence = msgspec.structs.replace(seen.evidence, usage={window: use})
    seen = msgspec.structs.replace(seen, evidence=evidence)
    plan = brain.make_plan(seen, MANDATE, decision.Memory(), world.now)
    return decision.Cycle(msgspec.structs.replace(plan, at=at), seen, (), failure, 0.1)


async def test_a_node_that_was_silent_for_two_hours_shows_them_whoever_looks_later():
    world, told = make_world(), chronicle.Chronicle()
    async with serving(world, MANDATE) as client:
        for step in range(289):
            at = NOW - DAY + step * 5 * MINUTE
            client.kept.put(told.add(cycle_of(world, at, silent=100 <= step < 124), at))
        await client.kept.flush(NOW)
        covered = {each["name"]: each["coverage"] for each in (await client.get("/api/v1/nodes"))["nodes"]}
    assert covered["node-1"] == {"ratio": 1.0, "gaps": []}
    begin = NOW - DAY + 100 * 5 * MINUTE
    assert covered["node-2"] == {"ratio": round(1 - 2 / 24, 4), "gaps": [[rfc3339(begin), rfc3339(begin + 2 * HOUR)]]}


async def test_where_nothing_was_written_down_it_is_that_of_the_window():
    async with serving(make_world(), MANDATE) as client:
        found = (await client.get("/api/v1/nodes"))["nodes"]
    assert [(each["coverage"]["ratio"], each["coverage"]["gaps"]) for each in found] == [(1.0, [])] * 2


def test_a_cycle_that_failed_measured_nothing_and_is_told_once():
    world, told = make_world(), node_hours.NodeHours()
    seen = cycle_of(world, NOW).snapshot
    assert [each.condition for each in told.enter(seen, NOW)] == [B, B]
    assert told.enter(seen, NOW + MINUTE) == ()  # nobody looks every minute
    assert [each.condition for each in told.forget(NOW + 5 * MINUTE)] == [U, U]
    assert told.forget(NOW + 6 * MINUTE) == ()
    later = cycle_of(world, NOW + 7 * MINUTE).snapshot
    assert [each.condition for each in told.enter(later, NOW + 7 * MINUTE)] == [B, B]
    gone = msgspec.structs.replace(later, pods=later.pods[:1], evidence=cycle_of(world, NOW).snapshot.evidence)
    gone = msgspec.structs.replace(gone, evidence=msgspec.structs.replace(gone.evidence, usage={}))
    assert [(each.uid, each.condition) for each in told.enter(gone, NOW + 13 * MINUTE)] == [
        ("node/node-1", U), ("node/node-2", None)]


@pytest.mark.parametrize(("past", "away", "ratio", "gaps"), [
    ([(-30, B)], [], 1.0, []), ([(-30, B), (-6, U), (-4, B)], [], 1 - 2 / 24, [(-6, -4)]),
    ([(-12, B)], [], 1.0, [(-24, -12)]),  # nobody was here before, and that is no fault of the node
    ([(-12, U)], [], 0.0, [(-24, 0)]),
    ([(-30, B)], [(-10, -8)], 1 - 2 / 24, [(-10, -8)]),
    ([(-30, B), (-9, U), (-7, B)], [(-10, -8)], 1 - 3 / 24, [(-10, -7)]),
    ([(-30, B), (-1, None)], [], 1 - 1 / 24, [(-1, 0)]),
], ids=["whole", "silent", "young", "never-heard", "nobody-here", "both", "gone"])
def test_gaps_of_a_day(past, away, ratio, gaps):
    def at(hours):
        return NOW + hours * HOUR

    found = nodes.cover_day([(at(since), said) for since, said in past], [(at(a), at(b)) for a, b in away], NOW)
    assert found.ratio == pytest.approx(ratio, abs=1e-4)
    assert found.gaps == tuple((rfc3339(at(begin)), rfc3339(at(end))) for begin, end in gaps)


async def test_turns_of_nodes_and_of_workloads_do_not_meet():
    kept = audit.Audit(None)
    await kept.open()
    kept.put(chronicle.Chronicle().add(cycle_of(make_world(), NOW), NOW))
    await kept.flush(NOW)
    found = await kept.conditions(["node/node-1", "node-1"], NOW - DAY)
    assert list(found) == ["node/node-1"]
    await kept.close()
