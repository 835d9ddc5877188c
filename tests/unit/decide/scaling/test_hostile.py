"""What liars, broken clocks and blind eyes make of nodes: always less than would be done otherwise."""

import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as some
from tests.unit.decide.scaling.stage import (
    NOW,
    SPOT,
    first,
    grown,
    long_unneeded,
    look,
    node,
    pod,
    pods,
    policy,
    pool,
    released,
    sight,
)

from fallow.decide import scaling
from fallow.model import scaling_status
from fallow.model.leaving import (
    BeginSpot,
    EvictNow,
    LeavingNode,
    LeavingStep,
    RemoveMachine,
    StayPut,
    UndoDrain,
)
from fallow.model.machines import CloudMachine, MachineGroup, MachineState, WantOfMachines
from fallow.model.policies.scaling import NodeDriver, ScalingMode
from fallow.model.scaling import (
    DrainKind,
    DrainRecord,
    DriversSeen,
    EvictionRank,
    InFlight,
    ScaledPod,
    ScalingMemory,
    SpendLimit,
    SpotRecord,
)
from fallow.model.scaling_plan import Blocked
from fallow.model.seen import Known, Unseen

YEARS = 10 * 365 * 86_400.0
DRAIN = DrainRecord(1, "default", NOW - 60, DrainKind.empty, "nobody is on it", True)
SPOT_RECORD = SpotRecord(1, "default", NOW, NOW + 120, True)


def step_of(*guests: ScaledPod, now: float = NOW, **about: Any) -> LeavingStep:
    there = node("n1", **{"is_cordoned": True, "use": 0.05, **about})
    return scaling.advance(LeavingNode(node=there, pods=guests, policy=policy()), now)[0]


# ---- notices that somebody made up ----------------------------------------------------------------------------------


@pytest.mark.parametrize("lead", [3601.0, YEARS])
def test_an_end_that_no_cloud_would_tell_so_long_before_is_no_notice(lead: float) -> None:
    forged = node("n1", ends_at=NOW + lead, warned_at=NOW)
    assert isinstance(step_of(ends_at=NOW + lead, is_cordoned=False), StayPut)
    made = look(sight(policy(), forged, pod("a", 8, "n1"), node("n2")))
    assert grown(made) == {}
    assert isinstance(step_of(ends_at=NOW + 3600.0, is_cordoned=False), BeginSpot)


def test_what_was_begun_by_such_an_end_is_undone() -> None:
    """As after a clock that was wrong when it began."""
    record = msgspec.structs.replace(SPOT_RECORD, ends_at=NOW + YEARS)
    step = step_of(pod("a", 1, "n1"), spot=record, ends_at=NOW + YEARS)
    assert isinstance(step, UndoDrain)
    assert step.uncordons


def test_such_an_end_is_undone_also_where_nobody_may_act_for_it() -> None:
    record = msgspec.structs.replace(SPOT_RECORD, ends_at=NOW + YEARS)
    for rule in (None, policy(mode=ScalingMode.recommend)):
        there = LeavingNode(node=node("n1", is_cordoned=True, spot=record, ends_at=NOW + YEARS), pods=(), policy=rule)
        assert isinstance(scaling.advance(there, NOW)[0], UndoDrain)


def test_a_true_notice_is_not_put_off_by_a_later_lie() -> None:
    low = pod("a", 1, "n1", rank=EvictionRank.low)
    assert step_of(low, spot=SPOT_RECORD, ends_at=NOW + YEARS) == EvictNow(low.id, 30.0)


def test_advice_of_a_cloud_does_not_empty_a_node_that_people_keep() -> None:
    kept = {"kept": "gpuautoscaler.io/scale-down-disabled says so"}
    assert isinstance(step_of(warned_at=NOW, is_cordoned=False, **kept), StayPut)
    advice = msgspec.structs.replace(SPOT_RECORD, ends_at=None)
    assert isinstance(step_of(spot=advice, warned_at=NOW, **kept), UndoDrain)
    assert isinstance(step_of(ends_at=NOW + 120, is_cordoned=False, **kept), BeginSpot)  # it ends all the same


# ---- clocks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [3600.0, YEARS])
def test_a_clock_that_was_set_back_leaves_no_node_cordoned(ahead: float) -> None:
    drain = msgspec.structs.replace(DRAIN, since=NOW + ahead, reason=DrainKind.under_used)
    assert isinstance(step_of(pod("a", 1, "n1"), drain=drain), UndoDrain)
    advice = SpotRecord(1, "default", NOW + ahead, None, True)
    assert isinstance(step_of(pod("a", 1, "n1"), spot=advice, warned_at=NOW), UndoDrain)
    told = msgspec.structs.replace(DRAIN, removing=NOW + ahead)
    step = step_of(drain=told)
    assert isinstance(step, RemoveMachine)
    assert step.record.removing == NOW


def test_a_clock_that_was_set_back_does_not_wait_for_machines_for_years() -> None:
    asked = InFlight(pool="main", tier=pool().tier, count=1, base=0, token="t", since=NOW + YEARS)
    rule = policy(status={"inFlight": scaling_status.write_in_flight((asked,))})
    made = first(look(sight(rule, *pods(1))))
    assert [each.since for each in made.in_flight] == [NOW]
    later = policy(status={"inFlight": scaling_status.write_in_flight(made.in_flight)})
    assert first(look(sight(later, *pods(1)), now=NOW + 901)).in_flight == ()


# ---- a machine that was told to go ----------------------------------------------------------------------------------


def test_who_came_to_a_machine_that_was_told_to_go_is_not_removed_with_it() -> None:
    """Somebody tolerates everything, or uncordoned it; and we were killed before the cloud had heard."""
    guest = pod("bold", 1, "n1")
    for ago in (60.0, 300.0):
        assert isinstance(step_of(guest, drain=msgspec.structs.replace(DRAIN, removing=NOW - ago)), StayPut)
    never = step_of(guest, drain=msgspec.structs.replace(DRAIN, removing=NOW - 901))
    assert isinstance(never, UndoDrain)
    silent = step_of(guest, drain=msgspec.structs.replace(DRAIN, removing=NOW - 901), is_ready=False)
    assert isinstance(silent, RemoveMachine)


# ---- what is not seen ------------------------------------------------------------------------------------------------

BLIND = Unseen("hidden")
INPUTS: dict[str, dict[str, Any]] = {
    "policies": {"policies": BLIND}, "pods": {"pods": BLIND}, "nodes": {"nodes": BLIND}, "drivers": {"drivers": BLIND},
    "groups": {"groups": {"default": BLIND}}, "no-groups": {"groups": {}}, "machines": {"machines": {"default": BLIND}},
    "limits": {"limits": BLIND}, "measured": {"measured": "Prometheus is away"}, "past": {"past": {}},
    "prices": {"prices": {}},
}
IDLE = [node("n0"), node("n1"), node("n2", use=0.0), pod("b0", 8, "n0"), pod("b1", 8, "n1")]


@pytest.mark.parametrize("hidden", list(INPUTS))
def test_whatever_is_not_seen_nothing_more_is_done(hidden: str) -> None:
    """Than with everything in sight: where a node would be added, where one would go."""
    memory = long_unneeded(node("n2"))
    for things in (IDLE, [*IDLE[:2], *IDLE[3:], *pods(3)]):
        seen = sight(policy(), *things)
        full, blind = look(seen, memory), look(msgspec.structs.replace(seen, **INPUTS[hidden]), memory)
        assert set(released(blind)) <= set(released(full))
        acting = [each for each in blind.policies if each.acts]
        assert sum(grow.count for each in acting for grow in each.grows) <= sum(grown(full).values())
    assert released(look(sight(policy(), *IDLE), memory)) == ["n2"]


@pytest.mark.parametrize("hidden", ["pods", "nodes", "drivers"])
def test_where_sight_fails_nodes_that_end_are_emptied_all_the_same(hidden: str) -> None:
    rule = policy(driver=NodeDriver.auto)
    assert first(look(sight(rule, *IDLE, **INPUTS[hidden]))).heeds
    advising = msgspec.structs.replace(rule, mode=ScalingMode.recommend)
    assert not first(look(sight(advising, *IDLE, **INPUTS[hidden]))).heeds


def test_without_sight_of_budgets_nothing_is_bought_but_what_replaces_a_node_that_ends() -> None:
    rule = policy(pool("cheap", SPOT))
    blind = first(look(sight(rule, *pods(8), limits=BLIND)))
    assert blind.grows == ()
    assert "hidden" in blind.blocked[Blocked.Unseen]
    assert "hidden" in blind.because
    drivers = Known(DriversSeen(cluster_autoscaler=True, requests=True))
    together = sight(policy(driver=NodeDriver.cluster_autoscaler), *pods(3, 8, gang="ml/train"), drivers=drivers)
    assert len(first(look(together)).gangs) == 1
    assert first(look(msgspec.structs.replace(together, limits=BLIND))).gangs == ()
    ends = node("n1", tier=SPOT, pool="cheap", ends_at=NOW + 100)
    assert grown(look(sight(rule, ends, pod("a", 8, "n1"), limits=BLIND))) == {"cheap": 1}
    some_limit = SpendLimit(budget="b", pods=frozenset())
    assert grown(look(sight(rule, *pods(8), limits=Known((some_limit,))))) == {"cheap": 1}


# ---- clouds that lie -------------------------------------------------------------------------------------------------

NUMBERS = some.sampled_from([None, -5, 0, 1, 3, 10**12])
IDS = some.sampled_from(["i-0", "i-1", "", "cloud://n0", "x" * 5000])
PROVIDERS = some.sampled_from(["", "cloud://n0", "cloud://n1", "cloud://n2", "garbage"])
GROUPS = some.sampled_from(["group-main", "group-cheap", "another", ""])
TIMES = some.sampled_from([None, -1e18, 0.0, NOW - 950, NOW - 30, NOW + 30, NOW + YEARS, 1e18])


@some.composite
def liars(draw: some.DrawFn) -> dict[str, Any]:
    groups = tuple(
        MachineGroup(id=draw(GROUPS), most=draw(NUMBERS) or 0, least=draw(NUMBERS) or 0, target=draw(NUMBERS),
                     error=draw(some.sampled_from(["", "", "500"])))
        for _ in range(draw(some.integers(0, 4)))
    )
    machines = tuple(
        CloudMachine(id=draw(IDS), group=draw(GROUPS), state=draw(some.sampled_from(list(MachineState))),
                     provider_id=draw(PROVIDERS), launched_at=draw(TIMES))
        for _ in range(draw(some.integers(0, 8)))
    )
    wants = tuple(WantOfMachines(group=draw(GROUPS), at=draw(TIMES)) for _ in range(draw(some.integers(0, 3))))
    return {"groups": {"default": Known(groups)}, "machines": {"default": Known(machines)}, "wants": wants}


@settings(max_examples=150, deadline=None)
@given(lies=liars(), waits=some.booleans())
def test_a_cloud_that_lies_ends_no_machine_of_a_node_and_buys_no_more_than_may_be(
    lies: dict[str, Any], waits: bool
) -> None:
    late = [
        InFlight(pool=name, tier=tier, count=3, base=0, token=name, since=NOW - 1000)
        for name, tier in (("main", pool().tier), ("cheap", SPOT))
    ]
    past = {"inFlight": scaling_status.write_in_flight(late)}
    rule = policy(pool("main", most=5), pool("cheap", SPOT, most=2), most=6, status=past)
    made = first(look(sight(rule, *IDLE, *(pods(40, 8) if waits else ()), **lies), long_unneeded(node("n2"))))
    event(f"strays: {len(made.strays)}")
    assert len(IDLE[:3]) + sum(grow.count for grow in made.grows) <= 6
    joined = {each.provider_id for each in IDLE[:3] if hasattr(each, "provider_id")}
    assert not any(each.provider_id in joined for each in made.strays)
    assert {each.node for each in made.releases} <= {"n2"}


def test_a_machine_that_came_late_and_is_no_node_is_a_stray_in_such_a_sight() -> None:
    """Without this the test above could not fail."""
    late = InFlight(pool="main", tier=pool().tier, count=3, base=0, token="t", since=NOW - 1000)
    rule = policy(status={"inFlight": scaling_status.write_in_flight((late,))})
    lost, joined = (
        CloudMachine(id=f"i-{name}", group="group-main", state=MachineState.running, provider_id=f"cloud://{name}",
                     launched_at=NOW - 950) for name in ("lost", "n0")
    )
    made = first(look(sight(rule, *IDLE, machines={"default": Known((lost, joined))})))
    assert made.strays == (lost,)


# ---- memory ----------------------------------------------------------------------------------------------------------


def test_a_pod_after_the_other_that_selects_by_labels_nobody_has_is_not_remembered() -> None:
    kept = scaling.KeptSight()
    nodes = [node(f"n{number}") for number in range(1000)]
    tracemalloc.start()
    try:
        for turn in range(12):
            odd = [pod(f"p{turn}-{number}", 1, node_selector={f"k{turn}-{number}": "v"}) for number in range(200)]
            scaling.plan(sight(policy(), *nodes, *odd), ScalingMemory(), NOW, kept=kept)
        assert tracemalloc.get_traced_memory()[0] < 12 * 2**20
    finally:
        tracemalloc.stop()
