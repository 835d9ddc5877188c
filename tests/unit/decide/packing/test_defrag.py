"""One move at a time: the least trouble, never more than the budget, and every plan can be carried out as written."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.decide.packing import examples

from fallow.decide import packing
from fallow.decide.packing import packer
from fallow.decide.packing.room import GPU, Nodes, PackingPod, Placement, Room


def settle(nodes: Nodes, *pods: tuple[PackingPod, Placement]) -> tuple[Room, list[packing.Running]]:
    room = Room(nodes)
    for pod, placement in pods:
        room.add(pod, placement)
    return room, [packing.Running(pod, placement) for pod, placement in pods]


def share(node: int, gpu: int, milli: int, cpu: int = 4_000, gpus: int = 1) -> tuple[PackingPod, Placement]:
    pod = examples.pod(milli=milli, cpu=cpu, gpus=gpus, name=f"q{node}{gpu}-{milli}")
    return pod, Placement(node, (gpu,) if gpus else (), pod.milli)


NODES = examples.cluster(examples.node(gpus=1), examples.node(gpus=1), examples.node(gpus=1))


def test_the_least_pod_makes_room() -> None:
    room, running = settle(NODES, share(0, 0, 300), share(1, 0, 200), share(2, 0, 400))
    plan = packing.plan_moves(room, running, [examples.pod(name="p")], examples.in_row(NODES))
    move = plan.moves[0]
    assert (move.moved.name, move.source) == ("q10-200", Placement(1, (0,), 200))
    assert move.target == Placement(2, (0,), 200)  # the tightest
    assert (move.pod.name, move.placement, move.gain) == ("p", Placement(1, (0,), GPU), GPU)
    assert (plan.gain, plan.left, plan.direct) == (GPU, (), ())


def test_what_fits_needs_no_move() -> None:
    room, running = settle(NODES, share(0, 0, 300))
    plan = packing.plan_moves(room, running, [examples.pod(milli=700)], examples.in_row(NODES))
    assert plan.moves == ()
    assert plan.direct == ((examples.pod(milli=700), Placement(0, (0,), 700)),)


def test_cpu_can_be_what_a_move_frees() -> None:
    nodes = examples.cluster(examples.node(gpus=1, cpu=8_000), examples.node(gpus=0, cpu=8_000, model=""))
    room, running = settle(nodes, share(0, 0, 0, cpu=6_000, gpus=0))
    plan = packing.plan_moves(room, running, [examples.pod(cpu=4_000)], examples.in_row(nodes))
    assert [(move.target.node, move.placement.node) for move in plan.moves] == [(1, 0)]


@pytest.mark.parametrize(
    ("change", "waiting"),
    [
        ("fixed", examples.pod()), ("full", examples.pod()),
        ("", examples.pod(gpus=2)), ("", examples.pod(gpus=0)), ("", examples.pod(cpu=-1)),
    ],
    ids=["not-movable", "no-other-place", "several-gpus", "no-gpu", "absurd"],
)
def test_what_one_move_cannot_help_is_left(change: str, waiting: PackingPod) -> None:
    taken = 900 if change == "full" else 300
    room, running = settle(NODES, share(0, 0, taken), share(1, 0, taken), share(2, 0, taken))
    running = [packing.Running(each.pod, each.placement, change != "fixed") for each in running]
    plan = packing.plan_moves(room, running, [waiting], examples.in_row(NODES))
    assert (plan.moves, plan.direct, plan.left) == ((), (), (waiting,))


def test_the_budget_bounds_the_moves() -> None:
    nodes = examples.cluster(*[examples.node(gpus=1)] * 8)
    room, running = settle(nodes, *(share(node, 0, 100) for node in range(8)))
    waiting = [examples.pod(name=f"p{i}") for i in range(8)]
    # one GPU ends up with all the small ones
    assert len(packing.plan_moves(room, running, waiting, examples.in_row(nodes)).moves) == 7
    plan = packing.plan_moves(room, running, waiting, examples.in_row(nodes), budget=3)
    assert (len(plan.moves), len(plan.left)) == (3, 5)


@given(examples.nodes_by_chance, examples.stories, st.lists(examples.pods_by_chance(), max_size=8), st.integers(0, 9))
def test_a_plan_can_be_carried_out_as_written_and_gains_what_it_says(
    nodes: Nodes, story: Any, waiting: list[PackingPod], seed: int
) -> None:
    pods = [pod for pod, _, _ in story]
    order = np.random.default_rng(seed).permutation(len(nodes))
    curve = packing.replay(nodes, pods, packing.prepare("Random", nodes, [], seed), order)
    running = [packing.Running(pod, put) for pod, put in zip(pods, curve.placements, strict=True) if put]
    before = curve.room.allocated
    plan = packing.plan_moves(curve.room, running, waiting, order)
    assert curve.room.allocated == before  # only planned
    places = [each.placement for each in running]
    room = curve.room.copy()
    direct = list(plan.direct)
    for move in plan.moves:
        direct = put_all_that_fit(room, direct)
        assert places[move.number] == move.source
        assert move.target.node != move.source.node
        assert move.moved.gpus <= 1
        room.remove(move.moved, move.source)
        room.add(move.moved, move.target)
        room.add(move.pod, move.placement)
        places[move.number] = move.target
    assert put_all_that_fit(room, direct) == []
    assert room.allocated == before + plan.gain == plan.room.allocated
    assert (room.gpu == plan.room.gpu).all()
    assert len(plan.moves) + len(plan.direct) + len(plan.left) == len(waiting)


def put_all_that_fit(room: Room, direct: list[tuple[PackingPod, Placement]]) -> list[tuple[PackingPod, Placement]]:
    for i, (pod, placement) in enumerate(direct):
        ask = packer.make_ask(room.nodes, pod)
        if not room.fits(pod, placement) or not packer.has_room(room, np.array([placement.node]), ask)[0]:
            return direct[i:]
        room.add(pod, placement)
    return []
