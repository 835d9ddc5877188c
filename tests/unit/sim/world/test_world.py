"""The pretend cluster: its clock, who runs where, what its owners do, what its faults hide."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from fallow import names
from fallow.model import decision, kinds, units
from fallow.model.policies import idle
from fallow.model.units import HOUR, MINUTE
from fallow.sim import cast
from fallow.sim.world import edits, laws, shapes
from fallow.sim.world.lives import NONE, LifeSpan
from fallow.sim.world.nouns import Fault, Part, SimNode, SimState
from fallow.sim.world.world import World

START = cast.MONDAY


def make(*parts: Part, nodes: list[SimNode] | None = None, hours: int = 4, **lives: Any) -> World:
    """`lives`: by name of the part (- written as _), the percent of each minute, repeated."""
    span = LifeSpan(START, MINUTE, hours * 60)
    seats = [lives.get(part.name.replace("-", "_"), [0]) for part in parts for _ in range(part.seats)]
    rows = np.stack([np.resize(np.array(life, np.uint8), span.columns) for life in seats])
    return World(nodes or [SimNode("n1"), SimNode("n2")], parts, rows, span, start_seconds=90.0)


def pause(world: World, number: int = 0, window: float = 30 * MINUTE) -> None:
    """As the product would: the patch with the way back."""
    workload = world.workloads[number]
    finding = decision.Finding(
        workload=workload.view, verdict=decision.Verdict.idle, reason=decision.Reason.GoneIdle, because="",
        rule=idle.Rule(), gpus=1, idle_gpus=1, models=(), window=window, idle_since=world.now - window,
    )
    world.notice(edits.pause(workload.object, decision.Pause(finding, "idle"), world.now))


def warn(world: World, number: int = 0) -> None:
    marks = {names.IDLE_EPISODE: f"e{world.now}", names.PENDING_SINCE: units.rfc3339(world.now)}
    world.notice(edits.annotate(world.workloads[number].object, marks))


def words(world: World) -> Counter[str]:
    return Counter(change.what for change in world.changes_since(0))


# ---- time and slot ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1])
def test_the_same_seed_is_the_same_day(seed: int) -> None:
    days = [cast.make_world(seed=seed, nodes=8, hours=6) for _ in range(2)]
    for day in days:
        day.advance(3 * HOUR)
        for number in range(0, len(day.workloads), 3):
            if day.workloads[number].state is SimState.running:
                pause(day, number)
        day.advance(3 * HOUR)
    assert days[0].changes_since(0) == days[1].changes_since(0)
    assert (days[0].done == days[1].done).all()
    other = cast.make_world(seed=seed + 10, nodes=8, hours=6)
    assert other.wanted.shape != days[0].wanted.shape or (other.wanted != days[0].wanted).any()


@pytest.mark.parametrize(
    "steps", [(7200.0,), (61.0,) * 118 + (2.0,), (1.0,) * 7200], ids=["at once", "minutes", "seconds"]
)
def test_how_the_time_is_cut_changes_nothing(steps: tuple[float, ...]) -> None:
    day, whole = (cast.make_world(seed=4, nodes=4, hours=3) for _ in range(2))
    for step in steps:
        day.advance(step)
    whole.advance(sum(steps))
    assert day.now == whole.now == START + 7200
    assert (day.done == whole.done).all()
    assert day.changes_since(0) == whole.changes_since(0)


def test_a_day_that_is_over_begins_anew() -> None:
    world = make(Part("ml", "a"), hours=1, a=[50, 0])
    world.advance(2.5 * HOUR)
    assert world.taken == 151
    assert world.done[0, world.columns_before(2 * MINUTE)].tolist() == [0, 50]


def test_no_slot_is_given_twice_and_pods_stay_on_one_node() -> None:
    world = cast.make_world(seed=2, nodes=10, hours=4)
    for _ in range(16):
        world.advance(15 * MINUTE)
        pods = [(one, pod) for one in world.workloads for pod in one.pods if pod.node]
        taken = [slot for _, pod in pods for slot in pod.slots]
        assert len(taken) == len(set(taken)) == (world.seat_at >= 0).sum() == (world.slot_of >= 0).sum()
        for one, pod in pods:
            node = world.nodes[pod.node]
            assert node.mode == one.part.mode
            assert all(node.first <= slot < node.first + node.slots for slot in pod.slots)


def test_who_finds_no_room_waits_until_somebody_leaves() -> None:
    world = make(
        Part("ml", "first", gpus=8, ends_at=START + HOUR), Part("ml", "second", gpus=8), nodes=[SimNode("n1")],
        first=[90],
    )
    world.advance(30 * MINUTE)
    first, second = world.workloads
    assert (first.state, second.state) == (SimState.running, SimState.waiting)
    assert [pod.node for pod in second.pods] == [""]
    world.advance(30 * MINUTE + 90)
    assert (first.state, second.state) == (SimState.finished, SimState.running)
    assert second.pods[0].ready_at == START + HOUR + 90


def test_lives_that_do_not_fit_the_parts_are_refused() -> None:
    with pytest.raises(ValueError, match=r"lives are \(1, 60\), and 2 GPUs for 60 steps"):
        World([SimNode("n1")], [Part("ml", "a", gpus=2)], np.zeros((1, 60), np.uint8), LifeSpan(START, MINUTE, 60))


@pytest.mark.parametrize("mode", ["whole", "mig", "time-sliced", "mps"])
def test_every_slot_of_a_node_has_a_device_and_at_most_one_holder(mode: Any) -> None:
    world = make(Part("ml", "a", mode=mode), nodes=[SimNode("n1", gpus=2, mode=mode)], a=[40])
    world.advance(MINUTE)
    slots = range(world.nodes["n1"].slots)
    assert [(part.namespace, pod.name) for part, pod in filter(None, map(world.holder_of, slots))] == [("ml", "a-0")]
    assert world.seen[0, 0] == 40
    assert len(set(world.uuids)) == 2
    assert len({(world.uuids[slot], world.device_of(slot)[2]) for slot in slots}) == len(slots)


def test_who_is_at_the_gate_waits_until_it_is_let_in_and_may_be_given_less_than_it_asked_for() -> None:
    nodes = [SimNode("n1"), SimNode("n2", mode="time-sliced")]
    world = make(Part("ml", "a", arrives_at=START + MINUTE), Part("ml", "b", arrives_at=START + MINUTE), nodes=nodes)
    world.is_gated = True
    first, second = world.workloads
    world.advance(10 * MINUTE)
    assert (world.at_gate, first.state) == ([first, second], SimState.waiting)
    world.let_in(first, "time-sliced", ({"op": "add"},))
    world.let_in(second, "whole")
    world.advance(HOUR)
    assert (first.state, first.pods[0].node, second.pods[0].node) == (SimState.running, "n2", "n1")
    assert [int(steps) for steps in world.given_steps] == [int(world.held_steps[0]), 0]
    assert [each.what for each in world.changes_since(0) if each.what in ("shares", "admitted")] == [
        "shares", "admitted"
    ]


def test_who_is_rolled_out_anew_asks_anew() -> None:
    world = make(Part("ml", "a", restarts_at=START + HOUR / 2), nodes=[SimNode("n1"), SimNode("n2", mode="mps")])
    world.is_gated = True
    workload = world.workloads[0]
    assert (workload.state, workload.life) == (SimState.running, 1), "who was there before is not asked"
    world.advance(HOUR / 2 + MINUTE)
    assert (world.at_gate, workload.life) == ([workload], 2)
    world.let_in(workload, "mps")
    world.advance(HOUR / 4)
    assert workload.pods[0].node == "n2"


# ---- pauses and people -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(shapes.SHAPES))
def test_every_kind_is_paused_and_comes_back_exactly_as_it_was(kind: str) -> None:
    world = make(Part("ml", "a", kind, replicas=2))
    workload = world.workloads[0]
    assert kinds.find(workload.view.ref.group, kind) is not None
    before = workload.object
    world.advance(HOUR)
    pause(world)
    assert (workload.state, workload.pods, world.holder_of(0)) == (SimState.paused, (), None)
    laws.check_way_back(before, workload.object, world.now)
    world.notice(edits.resume(workload.object, world.now, "ada"), "person")
    world.advance(90)
    assert workload.state is SimState.running
    assert (len(workload.pods), workload.resumes) == (2, 1)
    assert names.ORIGINAL_STATE not in workload.view.annotations


@pytest.mark.parametrize(
    ("owner", "by_itself", "complaints"), [
        ("machine", True, 0), ("absent", True, 0), ("impatient", True, 1), ("polite", False, 0)
    ]
)
def test_owners_bring_back_what_they_need_in_their_own_way(owner: str, by_itself: bool, complaints: int) -> None:
    world = make(Part("ml", "a", owner=owner), a=[0] * 60 + [70] * 60)
    world.advance(50 * MINUTE)
    pause(world)
    world.advance(9 * MINUTE)
    assert world.workloads[0].state is SimState.paused
    world.advance(35 * MINUTE)
    one = world.workloads[0]
    assert (one.pauses, one.regrets, one.complaints) == (1, 1, complaints)
    assert (one.state is SimState.running) is by_itself
    assert (names.RESUME_REQUESTED in one.view.marks) is not by_itself
    if by_itself:
        assert 90 <= one.waited <= one.owner.misses + 90
        assert (names.PAUSED_AT in one.view.annotations) is bool(complaints)  # by hand nobody clears our marks


def test_who_is_missed_much_later_is_no_regret() -> None:
    world = make(Part("ml", "a", owner="machine"), a=[0] * 60 + [70] * 60)
    world.advance(30 * MINUTE)
    pause(world)
    world.advance(40 * MINUTE)
    assert (world.workloads[0].regrets, world.workloads[0].resumes) == (0, 1)


def test_some_owners_answer_a_notice_and_some_do_not() -> None:
    parts = [Part("ml", f"{owner}-{number}", owner=owner) for owner in ("attentive", "absent") for number in range(8)]
    world = make(*parts, nodes=[SimNode(f"n{number}") for number in range(2)])
    for number in range(len(parts)):
        warn(world, number)
    world.advance(10 * MINUTE)
    acks = [one.acks for one in world.workloads]
    assert 1 <= sum(acks[:8]) < 8
    assert sum(acks[8:]) == 0
    for one in world.workloads:
        assert (names.ACK_UNTIL in one.view.marks) is bool(one.acks)
        assert (names.PENDING_SINCE in one.view.marks) is not bool(one.acks)
    assert words(world)["noticed"] == 16


def test_a_write_on_another_version_is_refused() -> None:
    world = make(Part("ml", "a"))
    thing = world.workloads[0].object
    with pytest.raises(edits.Refused, match="resourceVersion 1, not 7"):
        edits.apply(thing, {"metadata": {"resourceVersion": "7"}})
    with pytest.raises(edits.Refused, match="uid"):
        edits.apply(thing, {"metadata": {"uid": "other"}})


# ---- faults ----------------------------------------------------------------------------------------------------------


def test_a_silent_exporter_hides_what_is_done_and_a_zero_one_lies() -> None:
    world = make(Part("ml", "a", gpus=8), Part("ml", "b", gpus=8), a=[80], b=[80])
    on = {one.part.name: one.pods[0].node for one in world.workloads}
    world.advance(5 * MINUTE)
    world.switch_on(Fault.exporter_silent, [on["a"]])
    world.switch_on(Fault.exporter_zero, [on["b"]])
    world.advance(5 * MINUTE)
    assert [world.strikes(Fault.exporter_silent, on[name]) for name in "ab"] == [True, False]
    assert (world.seen[:8, 6:11] == NONE).all()
    assert (world.seen[8:, 6:11] == 0).all()
    assert (world.done[:, :11] >= 75).all()
    world.switch_off(Fault.exporter_silent)
    world.switch_off(Fault.exporter_zero)
    world.advance(5 * MINUTE)
    assert (world.seen[:, 11:16] >= 75).all()


def test_a_lost_node_is_not_ready_and_takes_nobody_until_it_is_back() -> None:
    world = make(Part("ml", "a", arrives_at=START + HOUR), nodes=[SimNode("n1")])
    world.switch_on(Fault.node_lost, ["n1"])
    world.advance(2 * HOUR)
    assert (world.nodes["n1"].ready, world.workloads[0].state) == (False, SimState.waiting)
    world.switch_off(Fault.node_lost)
    assert world.nodes["n1"].ready
    world.advance(2 * MINUTE)
    assert world.workloads[0].state is SimState.running


def test_profiling_of_mig_is_never_zeroed_since_nobody_could_tell() -> None:
    world = make(Part("ml", "a", mode="mig"), nodes=[SimNode("n1", mode="mig")], a=[60])
    world.switch_on(Fault.exporter_zero, ["n1"])
    world.advance(3 * MINUTE)
    assert (world.seen[0, :4] == 60).all()


def test_a_clock_that_jumps_is_the_clocks_error_not_the_worlds() -> None:
    world = make(Part("ml", "a"))
    world.switch_on(Fault.clock_jump, amount=HOUR)
    world.advance(MINUTE)
    assert (world.now, world.clock) == (START + MINUTE, START + MINUTE + HOUR)
