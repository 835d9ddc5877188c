"""One move at a time: the least trouble, never more than the budget, and every plan can be carried out as it is written."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.decide.packing import examples

from fallow.decide.packing import defrag, place, policies, replay
from fallow.decide.packing.state import GPU, Nodes, Placement, Pod, State


def settle(nodes: Nodes, *pods: tuple[Pod, Placement]) -> tuple[State, list[defrag.Running]]:
    state = State(nodes)
    for pod, placement in pods:
        state.add(pod, placement)
    return state, [defrag.Running(pod, placement) for pod, placement in pods]


def share(node: int, gpu: int, milli: int, cpu: int = 4_000, gpus: int = 1) -> tuple[Pod, Placement]:
    pod = examples.pod(milli=milli, cpu=cpu, gpus=gpus, name=f"q{node}{gpu}-{milli}")
    return pod, Placement(node, (gpu,) if gpus else (), pod.milli)


NODES = examples.cluster(examples.node(gpus=1), examples.node(gpus=1), examples.node(gpus=1))


def test_the_least_pod_makes_room() -> None:
    state, running = settle(NODES, share(0, 0, 300), share(1, 0, 200), share(2, 0, 400))
    plan = defrag.plan(state, running, [examples.pod(name="p")], examples.in_row(NODES))
    move = plan.moves[0]
    assert (move.moved.name, move.source, move.target) == ("q10-200", Placement(1, (0,), 200), Placement(2, (0,), 200))  # the tightest
    assert (move.pod.name, move.placement, move.gain) == ("p", Placement(1, (0,), GPU), GPU)
    assert (plan.gain, plan.left, plan.direct) == (GPU, (), ())


def test_what_fits_needs_no_move() -> None:
    state, running = settle(NODES, share(0, 0, 300))
    plan = defrag.plan(state, running, [examples.pod(milli=700)], examples.in_row(NODES))
    assert plan.moves == ()
    assert plan.direct == ((examples.pod(milli=700), Placement(0, (0,), 700)),)


def test_cpu_can_be_what_a_move_frees() -> None:
    nodes = examples.cluster(examples.node(gpus=1, cpu=8_000), examples.node(gpus=0, cpu=8_000, model=""))
    state, running = settle(nodes, share(0, 0, 0, cpu=6_000, gpus=0))
    plan = defrag.plan(state, running, [examples.pod(cpu=4_000)], examples.in_row(nodes))
    assert [(move.target.node, move.placement.node) for move in plan.moves] == [(1, 0)]


@pytest.mark.parametrize(
    ("change", "waiting"),
    [
        ("fixed", examples.pod()), ("full", examples.pod()),
        ("", examples.pod(gpus=2)), ("", examples.pod(gpus=0)), ("", examples.pod(cpu=-1)),
    ],
    ids=["not-movable", "no-other-place", "several-gpus", "no-gpu", "absurd"],
)
def test_what_one_move_cannot_help_is_left(change: str, waiting: Pod) -> None:
    taken = 900 if change == "full" else 300
    state, running = settle(NODES, share(0, 0, taken), share(1, 0, taken), share(2, 0, taken))
    running = [defrag.Running(each.pod, each.placement, change != "fixed") for each in running]
    plan = defrag.plan(state, running, [waiting], examples.in_row(NODES))
    assert (plan.moves, plan.direct, plan.left) == ((), (), (waiting,))


def test_the_budget_bounds_the_moves() -> None:
    nodes = examples.cluster(*[examples.node(gpus=1)] * 8)
    state, running = settle(nodes, *(share(node, 0, 100) for node in range(8)))
    waiting = [examples.pod(name=f"p{i}") for i in range(8)]
    assert len(defrag.plan(state, running, waiting, examples.in_row(nodes)).moves) == 7  # one GPU ends up with all the small ones
    plan = defrag.plan(state, running, waiting, examples.in_row(nodes), budget=3)
    assert (len(plan.moves), len(plan.left)) == (3, 5)


@given(examples.nodes_by_chance, examples.stories, st.lists(examples.pods_by_chance(), max_size=8), st.integers(0, 9))
def test_a_plan_can_be_carried_out_as_written_and_gains_what_it_says(nodes: Nodes, story: Any, waiting: list[Pod], seed: int) -> None:
    pods = [pod for pod, _, _ in story]
    order = np.random.default_rng(seed).permutation(len(nodes))
    curve = replay.replay(nodes, pods, policies.prepare("Random", nodes, [], seed), order)
    running = [defrag.Running(pod, put) for pod, put in zip(pods, curve.placements, strict=True) if put]
    before = curve.state.allocated
    plan = defrag.plan(curve.state, running, waiting, order)
    assert curve.state.allocated == before  # only planned
    places = [each.placement for each in running]
    state = curve.state.copy()
    direct = list(plan.direct)
    for move in plan.moves:
        direct = put_all_that_fit(state, direct)
        assert places[move.number] == move.source
        assert move.target.node != move.source.node
        assert move.moved.gpus <= 1
        state.remove(move.moved, move.source)
        state.add(move.moved, move.target)
        state.add(move.pod, move.placement)
        places[move.number] = move.target
    assert put_all_that_fit(state, direct) == []
    assert state.allocated == before + plan.gain == plan.state.allocated
    assert (state.gpu == plan.state.gpu).all()
    assert len(plan.moves) + len(plan.direct) + len(plan.left) == len(waiting)


def put_all_that_fit(state: State, direct: list[tuple[Pod, Placement]]) -> list[tuple[Pod, Placement]]:
    for i, (pod, placement) in enumerate(direct):
        if not state.has_room(pod, placement) or not place.has_room(state, np.array([placement.node]), place.make_ask(state.nodes, pod))[0]:
            return direct[i:]
        state.add(pod, placement)
    return []
