"""The choice that all policies share: nothing overfilled, nothing forgotten, the same answer however the scores were kept."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.decide.packing import examples

from fallow.decide.packing import place, policies
from fallow.decide.packing.state import GPU, Nodes, Overfull, Placement, Pod, State, find_fault, find_node_fault

COLUMNS = ("cpu", "memory", "pods", "gpu", "free", "whole", "most", "kinds", "free_of_model")
PATIENT = settings(max_examples=15)


def columns(state: State) -> dict[str, Any]:
    return {name: getattr(state, name).tolist() for name in COLUMNS} | {"allocated": state.allocated}


def play(packer: place.Packer, story: list[tuple[Pod, bool, int]], check: Any = lambda pod, placement: None) -> list[tuple[Pod, Placement]]:
    """Pods come and go; `check` hears of every answer before it is true of the state."""
    running: list[tuple[Pod, Placement]] = []
    for pod, leaves, number in story:
        check(pod, packer.find(pod))
        if placement := packer.arrive(pod):
            running.append((pod, placement))
        if leaves and running:
            packer.leave(*running.pop(number % len(running)))
    return running


@pytest.mark.parametrize("name", [*examples.DETERMINED, "Random"])
@given(nodes=examples.nodes_by_chance, story=examples.stories, seed=st.integers(0, 9))
@PATIENT
def test_nothing_is_overfilled_and_what_is_free_is_what_nobody_holds(name: str, nodes: Nodes, story: Any, seed: int) -> None:
    sample = [pod for pod, _, _ in story]
    packer = place.Packer(nodes, examples.make_policy(name, nodes, sample, seed), examples.in_row(nodes))
    running = play(packer, story)
    fresh = State(nodes)
    for pod, placement in running:
        assert nodes.models[nodes.model[placement.node]] in pod.models or not pod.models or not pod.gpus
        assert all(gpu < nodes.gpus[placement.node] for gpu in placement.gpus)
        fresh.add(pod, placement)  # refuses what does not fit
    assert columns(packer.state) == columns(fresh)
    assert all(packer.state.cpu >= 0)
    assert all(packer.state.memory >= 0)
    assert all(packer.state.pods >= 0)
    assert packer.state.gpu.min() >= 0
    assert packer.state.allocated == sum(pod.gpus * pod.milli for pod, _ in running)


@pytest.mark.parametrize("name", examples.DETERMINED)
@given(nodes=examples.nodes_by_chance, story=examples.stories, seed=st.integers(0, 9))
@PATIENT
def test_kept_scores_answer_like_a_look_at_every_node(name: str, nodes: Nodes, story: Any, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(nodes))
    policy = examples.make_policy(name, nodes, [pod for pod, _, _ in story], seed)
    packer = place.Packer(nodes, policy, order)
    play(packer, story, lambda pod, placement: check_equal(placement, place.place(packer.state, pod, policy, order)))


def check_equal(kept: Placement | None, full: Placement | None) -> None:
    assert kept == full


@pytest.mark.parametrize("name", examples.DETERMINED)
@given(nodes=examples.nodes_by_chance, story=examples.stories, seed=st.integers(0, 9))
@PATIENT
def test_a_placement_does_not_depend_on_names_or_on_the_order_of_the_list(name: str, nodes: Nodes, story: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    order, shuffle = rng.permutation(len(nodes)), rng.permutation(len(nodes))  # row i of the other list is node shuffle[i]
    other = examples.cluster(*(nodes.rows[i] for i in shuffle))
    sample = [pod for pod, _, _ in story]
    here: list[Placement | None] = []
    there: list[Placement | None] = []
    # The same prices for both: groups are sorted, so they have the same numbers.
    play(place.Packer(nodes, examples.make_policy(name, nodes, sample, seed), order), story, lambda _, placement: here.append(placement))
    play(place.Packer(other, examples.make_policy(name, other, sample, seed), order[shuffle]), story, lambda _, put: there.append(put))
    assert [p and (p.node, p.gpus) for p in here] == [p and (int(shuffle[p.node]), p.gpus) for p in there]


@given(nodes=examples.nodes_by_chance, story=examples.stories)
@PATIENT
def test_leaving_restores_the_state_exactly(nodes: Nodes, story: Any) -> None:
    packer = place.Packer(nodes, policies.prepare("BestFit", nodes, []), examples.in_row(nodes))
    empty = columns(packer.state)
    running = play(packer, story)
    before = columns(packer.state)
    if placement := packer.arrive(examples.pod(milli=50, cpu=1, memory=1)):
        packer.leave(examples.pod(milli=50, cpu=1, memory=1), placement)
    assert columns(packer.state) == before
    for pod, place_ in running:
        packer.leave(pod, place_)
    assert columns(packer.state) == empty


def test_a_placement_without_room_is_refused_and_changes_nothing() -> None:
    state = State(examples.cluster(examples.node(gpus=1)))
    state.add(examples.pod(milli=600), Placement(0, (0,), 600))
    before = columns(state)
    with pytest.raises(Overfull, match="no room for pod p on n-0"):
        state.add(examples.pod(milli=500), Placement(0, (0,), 500))
    assert columns(state) == before


@pytest.mark.parametrize(
    ("nodes", "pod", "refusal"),
    [
        (examples.cluster(examples.node()), examples.pod(gpus=5), place.Refusal.LargerThanAnyNode),
        (examples.cluster(examples.node()), examples.pod(cpu=65_000), place.Refusal.LargerThanAnyNode),
        (examples.cluster(examples.node(model="A100", gpus=1)), examples.pod(gpus=2, models=("A100",)), place.Refusal.LargerThanAnyNode),
        (examples.cluster(examples.node()), examples.pod(models=("H900",)), place.Refusal.UnknownModel),
        (examples.cluster(examples.node(gpus=0, model="")), examples.pod(), place.Refusal.LargerThanAnyNode),
        (examples.cluster(), examples.pod(), place.Refusal.LargerThanAnyNode),
        (examples.cluster(examples.node()), examples.pod(cpu=-1), place.Refusal.Invalid),
        (examples.cluster(examples.node(pods=0)), examples.pod(), place.Refusal.NoRoom),
    ],
    ids=["gpus", "cpu", "gpus-of-that-model", "unknown-model", "no-gpu-anywhere", "no-nodes", "negative", "no-pod-slot"],
)
@pytest.mark.parametrize("name", [*policies.PLAIN, "FGD"])
def test_what_cannot_be_placed_is_named_and_counted(name: str, nodes: Nodes, pod: Pod, refusal: place.Refusal) -> None:
    packer = place.Packer(nodes, policies.prepare(name, nodes, [pod]), examples.in_row(nodes))
    assert packer.arrive(pod) is None
    assert packer.refused == {refusal: 1}
    assert place.place(State(nodes), pod, packer.policy, packer.order) is None


def test_a_pod_without_gpus_is_not_bound_to_models() -> None:
    nodes = examples.cluster(examples.node(model="", gpus=0))
    packer = place.Packer(nodes, policies.prepare("FGD", nodes, []), examples.in_row(nodes))
    assert packer.arrive(examples.pod(gpus=0, models=("T4",))) == Placement(0, (), 0)


@pytest.mark.parametrize(
    "pod",
    [
        examples.pod(milli=1001), examples.pod(milli=-1), examples.pod(gpus=-1), examples.pod(gpus=2, milli=500),
        examples.pod(milli=0), Pod("p", 1, 1, 0, 500), examples.pod(cpu=1 << 50), examples.pod(memory=-5),
    ],
    ids=["over-a-gpu", "negative-share", "negative-gpus", "half-of-two", "nothing-of-one", "share-of-none", "absurd-cpu", "memory"],
)
def test_an_absurd_request_is_told_in_a_sentence(pod: Pod) -> None:
    assert find_fault(pod).startswith("pod p asks for ")


def test_a_node_that_cannot_be_is_told_in_a_sentence() -> None:
    assert find_node_fault(examples.node(gpus=4)) == ""
    assert "65 GPUs" in find_node_fault(examples.node(gpus=65))
    with pytest.raises(ValueError, match="2 nodes cannot be believed; the first: node n-0 has -1 milli-cores"):
        examples.cluster(examples.node(cpu=-1), examples.node(), examples.node(gpus=-2))


def test_a_tie_order_ranks_every_node_once() -> None:
    nodes = examples.cluster(examples.node(), examples.node())
    with pytest.raises(ValueError, match="must rank each of the 2 nodes once"):
        place.Packer(nodes, policies.prepare("FirstFit", nodes, []), np.array([0, 0]))


def test_the_live_tie_order_is_stable_and_blind_to_names() -> None:
    names = [f"a100-{i:03}" for i in range(100)] + [f"t4-{i:03}" for i in range(100)]
    ranks = place.order_nodes(names, "uid-1")
    assert sorted(ranks) == list(range(200))
    assert 30 < (ranks[:100] < 100).sum() < 70  # the models are mixed
    assert (place.order_nodes(names[::-1], "uid-1")[::-1] == ranks).all()
    assert (place.order_nodes(names, "uid-2") != ranks).any()
    # The digests of u/node-1 ... u/node-4 begin with 679e, 0ada, e305, 5b89.
    assert place.order_nodes(["node-1", "node-2", "node-3", "node-4"], "u").tolist() == [2, 0, 3, 1]


def test_memory_says_where_a_pod_may_go_but_not_which_place_is_better() -> None:
    nodes = examples.cluster(examples.node(memory=1_000), examples.node(memory=262_144))
    packer = place.Packer(nodes, policies.prepare("BestFit", nodes, []), examples.in_row(nodes))
    assert packer.arrive(examples.pod(memory=500)) == Placement(0, (0,), GPU)
    assert packer.arrive(examples.pod(memory=501)) == Placement(1, (0,), GPU)
