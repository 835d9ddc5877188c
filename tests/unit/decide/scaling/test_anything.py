"""Whatever a cluster, a policy and a cloud look like: what a plan never does."""

from collections import Counter
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as some
from tests.unit.decide.scaling.stage import GPU, NOW, ON_DEMAND, SPOT, look, node, pod, policy, pool, sight

from fallow.decide import scaling
from fallow.model import scaling_status, units
from fallow.model.machines import CloudMachine, MachineGroup, MachineState
from fallow.model.policies.scaling import ScalingPolicy
from fallow.model.scaling import (
    DrainKind,
    DrainRecord,
    InFlight,
    ScaledNode,
    ScaledPod,
    ScalingMemory,
    ScalingSight,
    WaitHold,
)
from fallow.model.scaling_plan import PolicyPlan
from fallow.model.seen import Known, Unseen

POOLS = {"main": ON_DEMAND, "cheap": SPOT}
AGES = some.sampled_from([-7200.0, 0.0, 30.0, 600.0, 901.0, 1e6])
DRAINED = DrainRecord(v=1, policy="default", since=NOW - 60, reason=DrainKind.empty, because="", cordoned_by_us=True)


@some.composite
def nodes(draw: some.DrawFn, number: int) -> ScaledNode:
    name = draw(some.sampled_from(["main", "cheap", ""]))
    return node(
        f"n{number}", draw(some.sampled_from([0, 4, 8, 8])), pool=name, tier=POOLS.get(name, ON_DEMAND),
        is_ready=draw(some.sampled_from([True, True, True, False])), created_at=NOW - draw(AGES),
        use=draw(some.sampled_from([None, 0.0, 0.1, 0.5, 0.95])), kept=draw(some.sampled_from(["", "", "", "people"])),
        is_cordoned=draw(some.sampled_from([False, False, False, True])),
        price=draw(some.sampled_from([None, 3.0, 8.0])), drain=draw(some.sampled_from([None, None, None, DRAINED])),
        is_broken=draw(some.sampled_from([False] * 5 + [True])),
        provider_id=draw(some.sampled_from(["", f"cloud://i-{number}", f"cloud://i-{number}"])),
        ends_at=draw(some.sampled_from([None, None, None, NOW + 60])),
    )


@some.composite
def guests(draw: some.DrawFn, number: int, names: list[str]) -> ScaledPod:
    return pod(
        f"p{number}", draw(some.integers(0, 9)), draw(some.sampled_from(["", *names])),
        fixed=draw(some.sampled_from(["", "", "", "no controller"])),
        unclear=draw(some.sampled_from([""] * 6 + ["claims"])),
        stays=draw(some.sampled_from([False] * 4 + [True])), is_going=draw(some.sampled_from([False] * 5 + [True])),
        held=draw(some.sampled_from([None, None, None, WaitHold.Queued])), priority=draw(some.integers(-1, 1)),
        waits_since=NOW - draw(AGES),
    )


@some.composite
def machines(draw: some.DrawFn, number: int) -> CloudMachine:
    return CloudMachine(
        id=f"i-{number}", group=draw(some.sampled_from(["group-main", "group-cheap", "another"])),
        state=draw(some.sampled_from(list(MachineState))), provider_id=f"cloud://i-{number}",
        launched_at=draw(some.sampled_from([None, *(NOW - age for age in (30.0, 600.0, 901.0, 1e6))])),
    )


@some.composite
def rules(draw: some.DrawFn) -> ScalingPolicy:
    asked = tuple(
        InFlight(pool=draw(some.sampled_from(list(POOLS))), tier=ON_DEMAND, count=draw(some.integers(1, 3)), base=0,
                 token=f"t{number}", since=NOW - draw(AGES), machine=draw(some.sampled_from(["", "", "i-1"])))
        for number in range(draw(some.integers(0, 3)))
    )
    said: dict[str, Any] = {"inFlight": scaling_status.write_in_flight(asked)}
    if draw(some.booleans()):
        said |= {"lastScaleUpTime": units.rfc3339(NOW - draw(AGES)), "fullAtGPUs": draw(some.integers(0, 40))}
    return policy(
        pool("main", most=draw(some.integers(0, 9))), pool("cheap", SPOT, price=3.0, least=draw(some.integers(0, 2))),
        status=said, most=draw(some.integers(0, 12)), least=draw(some.integers(0, 3)), unneeded=600.0,
        pending_patience=draw(some.sampled_from([0.0, 120.0])), shrink_rest=draw(some.sampled_from([0.0, 600.0])),
        grow_rest=draw(some.sampled_from([0.0, 180.0])), enabled=draw(some.sampled_from([True] * 5 + [False])),
    )


@some.composite
def sights(draw: some.DrawFn) -> ScalingSight:
    there = [draw(nodes(number)) for number in range(draw(some.integers(0, 7)))]
    names = [each.name for each in there]
    tenants = [draw(guests(number, names)) for number in range(draw(some.integers(0, 12)))]
    rule = draw(rules())
    groups = tuple(MachineGroup(id=f"group-{name}", tier=tier, most=99, target=3) for name, tier in POOLS.items())
    listed = Known(tuple(draw(machines(number)) for number in range(draw(some.integers(0, 9)))))
    return sight(
        rule, *there, *tenants,
        groups={"default": draw(some.sampled_from([Known(groups), Known(groups), Unseen("down")]))},
        machines={"default": draw(some.sampled_from([listed, listed, Unseen("down")]))},
        measured=draw(some.sampled_from(["", "", "Prometheus is away"])),
    )


def parts(seen: ScalingSight) -> tuple[dict[str, ScaledNode], tuple[ScaledPod, ...]]:
    there = seen.nodes.value if isinstance(seen.nodes, Known) else ()
    return {each.name: each for each in there}, seen.pods.value if isinstance(seen.pods, Known) else ()


def check_releases(seen: ScalingSight, made: PolicyPlan) -> None:
    there, tenants = parts(seen)
    gone = {each.node for each in made.releases}
    for each in (there[name] for name in gone):
        assert (each.kept, each.is_broken, each.drain, each.ends_at) == ("", False, None, None)
    taken = Counter[str]()
    for release in made.releases:
        own = [each for each in tenants if each.node == release.node and not each.stays]
        if release.kind is DrainKind.failed:
            continue
        assert there[release.node].is_ready
        assert (seen.measured, made.grows) == ("", ())
        assert not any(each.fixed or each.unclear for each in own)
        assert {moved for moved, _ in release.moves} == {each.id for each in own}
        for moved, home in release.moves:
            assert home not in gone
            assert there[home].is_ready
            assert not there[home].is_cordoned
            taken[home] += next(each for each in own if each.id == moved).asks.get(GPU, 0)
    for home, gpus in taken.items():
        held = sum(each.asks.get(GPU, 0) for each in tenants if each.node == home)
        assert held + gpus <= there[home].has.get(GPU, 0)
    by_choice = [each for each in made.releases if each.kind is not DrainKind.failed]
    assert len(by_choice) <= max(1, len(there) // 5)
    assert not by_choice or len(there) - len(by_choice) >= made.policy.least


def check_growth(seen: ScalingSight, made: PolicyPlan) -> None:
    _, tenants = parts(seen)
    grown = sum(each.count for each in made.grows)
    assert not grown or made.desired <= made.policy.most
    served = [name for each in made.grows for name in each.pods]
    assert len(served) == len(set(served))
    for each in tenants:
        if each.id in served and not each.node:
            assert each.asks.get(GPU, 0) <= 8
            assert (each.held, each.is_going, each.unclear) == (None, False, "")
    joined = {each.provider_id for each in parts(seen)[0].values()}
    assert not any(each.provider_id in joined for each in made.strays)
    assert len({each.token for each in made.in_flight}) == len(made.in_flight)


@settings(deadline=None)
@given(seen=sights(), since=some.dictionaries(some.sampled_from([f"uid-n{at}" for at in range(7)]), AGES))
def test_nothing_is_moved_without_a_place_nor_grown_without_need(seen: ScalingSight, since: dict[str, float]) -> None:
    memory = ScalingMemory(unneeded={uid: NOW - age for uid, age in since.items()}, busy={"default": NOW - 900})
    kept = scaling.KeptSight()
    plan = scaling.plan(seen, memory, NOW, kept=kept)
    assert plan == look(seen, memory) == scaling.plan(seen, memory, NOW, kept=kept)
    for made in plan.policies:
        check_releases(seen, made)
        check_growth(seen, made)
    blind = msgspec.structs.replace(seen, nodes=Unseen("gone"), pods=Unseen("gone"))
    assert not any(each.grows or each.releases or each.strays for each in look(blind, memory).policies)
