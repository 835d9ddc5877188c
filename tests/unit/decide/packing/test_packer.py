"""The choice that all policies share: nothing overfilled, nothing forgotten, one answer however scores were kept."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.decide.packing import examples

from fallow.decide import packing
from fallow.decide.packing import policies
from fallow.decide.packing.room import GPU, Nodes, Overfull, PackingPod, Placement, Room

COLUMNS = ("cpu", "memory", "pods", "gpu", "free", "whole", "most", "takers", "free_of_model")
PATIENT = settings(max_examples=15)


def columns(room: Room) -> dict[str, Any]:
    return {name: getattr(room, name).tolist() for name in COLUMNS} | {"allocated": room.allocated}


def play(
    packer: packing.Packer, story: list[tuple[PackingPod, bool, int]], check: Any = lambda pod, placement: None
) -> list[tuple[PackingPod, Placement]]:
    """Pods come and go; `check` hears of every answer before it is true of the room."""
    running: list[tuple[PackingPod, Placement]] = []
    for pod, leaves, number in story:
        check(pod, packer.find(pod))
        if placement := packer.arrive(pod):
            running.append((pod, placement))
        if leaves and running:
            packer.room.remove(*running.pop(number % len(running)))
    return running


@pytest.mark.parametrize("name", [*examples.DETERMINED, "Random"])
@given(nodes=examples.nodes_by_chance, story=examples.stories, seed=st.integers(0, 9))
@PATIENT
def test_nothing_is_overfilled_and_what_is_free_is_what_nobody_holds(
    name: str, nodes: Nodes, story: Any, seed: int
) -> None:
    sample = [pod for pod, _, _ in story]
    packer = packing.Packer(nodes, examples.make_policy(name, nodes, sample, seed), examples.in_row(nodes))
    running = play(packer, story)
    fresh = Room(nodes)
    for pod, placement in running:
        assert nodes.models[nodes.model[placement.node]] in pod.models or not pod.models or not pod.gpus
        assert all(gpu < nodes.gpus[placement.node] for gpu in placement.gpus)
        fresh.add(pod, placement)  # refuses what does not fit
    assert columns(packer.room) == columns(fresh)
    assert all(packer.room.cpu >= 0)
    assert all(packer.room.memory >= 0)
    assert all(packer.room.pods >= 0)
    assert packer.room.gpu.min() >= 0
    assert packer.room.allocated == sum(pod.gpu_milli for pod, _ in running)


@pytest.mark.parametrize("name", examples.DETERMINED)
@given(nodes=examples.nodes_by_chance, story=examples.stories, seed=st.integers(0, 9))
@PATIENT
def test_kept_scores_answer_like_a_look_at_every_node(name: str, nodes: Nodes, story: Any, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(nodes))
    policy = examples.make_policy(name, nodes, [pod for pod, _, _ in story], seed)
    packer = packing.Packer(nodes, policy, order)
    play(packer, story, lambda pod, placement: check_equal(placement, packing.place(packer.room, pod, policy, order)))


def check_equal(kept: Placement | None, full: Placement | None) -> None:
    assert kept == full


@pytest.mark.parametrize("name", examples.DETERMINED)
@given(nodes=examples.nodes_by_chance, story=examples.stories, seed=st.integers(0, 9))
@PATIENT
def test_a_placement_does_not_depend_on_names_or_on_the_order_of_the_list(
    name: str, nodes: Nodes, story: Any, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    # row i of the other list is node shuffle[i]
    order, shuffle = rng.permutation(len(nodes)), rng.permutation(len(nodes))
    other = examples.cluster(*(nodes.rows[i] for i in shuffle))
    sample = [pod for pod, _, _ in story]
    here: list[Placement | None] = []
    there: list[Placement | None] = []
    # The same prices for both: groups are sorted, so they have the same numbers.
    one = packing.Packer(nodes, examples.make_policy(name, nodes, sample, seed), order)
    two = packing.Packer(other, examples.make_policy(name, other, sample, seed), order[shuffle])
    play(one, story, lambda _, placement: here.append(placement))
    play(two, story, lambda _, placement: there.append(placement))
    assert [p and (p.node, p.gpus) for p in here] == [p and (int(shuffle[p.node]), p.gpus) for p in there]


@given(nodes=examples.nodes_by_chance, story=examples.stories)
@PATIENT
def test_leaving_restores_the_state_exactly(nodes: Nodes, story: Any) -> None:
    packer = packing.Packer(nodes, packing.prepare("BestFit", nodes, []), examples.in_row(nodes))
    empty = columns(packer.room)
    running = play(packer, story)
    before = columns(packer.room)
    if placement := packer.arrive(examples.pod(milli=50, cpu=1, memory=1)):
        packer.room.remove(examples.pod(milli=50, cpu=1, memory=1), placement)
    assert columns(packer.room) == before
    for pod, spot in running:
        packer.room.remove(pod, spot)
    assert columns(packer.room) == empty


def test_a_placement_without_room_is_refused_and_changes_nothing() -> None:
    room = Room(examples.cluster(examples.node(gpus=1)))
    room.add(examples.pod(milli=600), Placement(0, (0,), 600))
    before = columns(room)
    with pytest.raises(Overfull, match="no room for pod p on n-0"):
        room.add(examples.pod(milli=500), Placement(0, (0,), 500))
    assert columns(room) == before


@pytest.mark.parametrize(
    ("nodes", "pod", "refusal"),
    [
        (examples.cluster(examples.node()), examples.pod(gpus=5), packing.Refusal.LargerThanAnyNode),
        (examples.cluster(examples.node()), examples.pod(cpu=65_000), packing.Refusal.LargerThanAnyNode),
        (
            examples.cluster(examples.node(model="A100", gpus=1)), examples.pod(gpus=2, models=("A100",)),
            packing.Refusal.LargerThanAnyNode,
        ),
        (examples.cluster(examples.node()), examples.pod(models=("H900",)), packing.Refusal.UnknownModel),
        (examples.cluster(examples.node(gpus=0, model="")), examples.pod(), packing.Refusal.LargerThanAnyNode),
        (examples.cluster(), examples.pod(), packing.Refusal.LargerThanAnyNode),
        (examples.cluster(examples.node()), examples.pod(cpu=-1), packing.Refusal.Invalid),
        (examples.cluster(examples.node(pods=0)), examples.pod(), packing.Refusal.NoRoom),
    ],
    ids=[
        "gpus", "cpu", "gpus-of-that-model", "unknown-model", "no-gpu-anywhere", "no-nodes", "negative", "no-pod-slot"
    ],
)
@pytest.mark.parametrize("name", [*policies.PLAIN, "FGD"])
def test_what_cannot_be_placed_is_named_and_counted(
    name: str, nodes: Nodes, pod: PackingPod, refusal: packing.Refusal
) -> None:
    packer = packing.Packer(nodes, packing.prepare(name, nodes, [pod]), examples.in_row(nodes))
    assert packer.arrive(pod) is None
    assert packer.refused == {refusal: 1}
    assert packing.place(Room(nodes), pod, packer.policy, packer.order) is None


def test_a_pod_without_gpus_is_not_bound_to_models() -> None:
    nodes = examples.cluster(examples.node(model="", gpus=0))
    packer = packing.Packer(nodes, packing.prepare("FGD", nodes, []), examples.in_row(nodes))
    assert packer.arrive(examples.pod(gpus=0, models=("T4",))) == Placement(0, (), 0)


@pytest.mark.parametrize(
    "pod",
    [
        examples.pod(milli=1001), examples.pod(milli=-1), examples.pod(gpus=-1), examples.pod(gpus=2, milli=500),
        examples.pod(milli=0), PackingPod("p", 1, 1, 0, 500), examples.pod(cpu=1 << 50), examples.pod(memory=-5),
    ],
    ids=[
        "over-a-gpu", "negative-share", "negative-gpus", "half-of-two", "nothing-of-one", "share-of-none", "absurd-cpu",
        "memory",
    ],
)
def test_an_absurd_request_is_told_in_a_sentence(pod: PackingPod) -> None:
    assert pod.find_fault().startswith("pod p asks for ")


def test_a_node_that_cannot_be_is_told_in_a_sentence() -> None:
    assert examples.node(gpus=4).find_fault() == ""
    assert "65 GPUs" in examples.node(gpus=65).find_fault()
    with pytest.raises(ValueError, match="2 nodes cannot be believed; the first: node n-0 has -1 milli-cores"):
        examples.cluster(examples.node(cpu=-1), examples.node(), examples.node(gpus=-2))


def test_a_tie_order_ranks_every_node_once() -> None:
    nodes = examples.cluster(examples.node(), examples.node())
    with pytest.raises(ValueError, match="must rank each of the 2 nodes once"):
        packing.Packer(nodes, packing.prepare("FirstFit", nodes, []), np.array([0, 0]))


def test_the_live_tie_order_is_stable_and_blind_to_names() -> None:
    names = [f"a100-{i:03}" for i in range(100)] + [f"t4-{i:03}" for i in range(100)]
    ranks = packing.order_nodes(names, "uid-1")
    assert sorted(ranks) == list(range(200))
    assert 30 < (ranks[:100] < 100).sum() < 70  # the models are mixed
    assert (packing.order_nodes(names[::-1], "uid-1")[::-1] == ranks).all()
    assert (packing.order_nodes(names, "uid-2") != ranks).any()
    # The digests of u/node-1 ... u/node-4 begin with 679e, 0ada, e305, 5b89.
    assert packing.order_nodes(["node-1", "node-2", "node-3", "node-4"], "u").tolist() == [2, 0, 3, 1]


def test_memory_says_where_a_pod_may_go_but_not_which_spotis_better() -> None:
    nodes = examples.cluster(examples.node(memory=1_000), examples.node(memory=262_144))
    packer = packing.Packer(nodes, packing.prepare("BestFit", nodes, []), examples.in_row(nodes))
    assert packer.arrive(examples.pod(memory=500)) == Placement(0, (0,), GPU)
    assert packer.arrive(examples.pod(memory=501)) == Placement(1, (0,), GPU)
