"""Each policy's rule, worked out by hand on small clusters; fragmentation and FGD against their definitions."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.decide.packing import examples

from fallow.decide import packing
from fallow.decide.packing import fragments, packer, policies
from fallow.decide.packing.room import GPU, Nodes, PackingPod, Placement, Room

LARGE = examples.node(cpu=128_000, gpus=8)
SMALL = examples.node(cpu=64_000, gpus=2)


def state_of(nodes: Nodes, *taken: tuple[int, int, int]) -> Room:
    """`taken`: (node, GPU, milli) by pods that ask for 1 core each."""
    room = Room(nodes)
    for row, gpu, milli in taken:
        room.add(examples.pod(milli=milli, cpu=1_000), Placement(row, (gpu,), milli))
    return room


def scores(name: str, room: Room, pod: PackingPod) -> list[int]:
    rows = np.arange(len(room.nodes))
    return policies.PLAIN[name](room, rows, packer.make_ask(room.nodes, pod))[0].tolist()


@pytest.mark.parametrize(
    ("name", "pod", "expected"),
    [
        # 8 GPUs, 128 cores, of which 300 milli and 1 core are taken | 2 GPUs, 64 cores, untouched; scores are cut
        ("FirstFit", examples.pod(), [0, 0]),
        # 100 (1 - 123/256 - 6.7/16) = 10.08; 100 (1 - 60/256 - 1/16) = 70.3
        ("BestFit", examples.pod(cpu=4_000), [10, 70]),
        ("WorstFit", examples.pod(cpu=4_000), [-10, -70]),
        # 100 (1 - (127/128 / 2 + 7.7/8 / 8) / 2); 100 (1 - (1/4 + 2/8/8) / 2) = 85.9
        ("DotProd", examples.pod(cpu=64_000), [69, 85]),
        ("GPUClustering", examples.pod(milli=500), [75, 43]),  # 25*300//8000 + 75; 25*6000//8000 + 25
        ("GPUClustering", examples.pod(), [0, 43]),
        ("GPUClustering", examples.pod(gpus=0), [0, 0]),
        # the GPU in use: 100 - 700*100//1000//10; empty: max(33 - 2, 2)
        ("GPUPacking", examples.pod(milli=500), [93, 31]),
        ("GPUPacking", examples.pod(milli=800), [49, 31]),  # one untouched GPU: max(50 - 1, 33)
        ("GPUPacking", examples.pod(gpus=2), [48, 31]),
        ("GPUPacking", examples.pod(gpus=0), [0, 0]),
    ],
)
def test_the_score_of_each_policy(name: str, pod: PackingPod, expected: list[int]) -> None:
    assert scores(name, state_of(examples.cluster(LARGE, SMALL), (0, 0, 300)), pod) == expected


@pytest.mark.parametrize(
    ("there", "asked", "expected"),
    [([], 0, 25), ([300], 0, 75), ([300, 1000], 0, 50), ([1000], 0, 0), ([1000], 1, 75), ([300], 1, 0)],
    ids=["nobody", "same", "same-and-others", "others", "same-whole", "others-shared"],
)
def test_clustering_likes_company_of_its_kind(there: list[int], asked: int, expected: int) -> None:
    room = state_of(examples.cluster(LARGE), *((0, gpu, milli) for gpu, milli in enumerate(there)))
    fullness = 25 * sum(there) // 8000
    assert scores("GPUClustering", room, examples.pod(milli=GPU if asked else 500)) == [fullness + expected]


@pytest.mark.parametrize(
    ("name", "milli", "gpus"),
    [
        ("BestFit", 200, (2,)), ("BestFit", 350, (1,)), ("BestFit", GPU, (3,)), ("WorstFit", 200, (3,)),
        ("FirstFit", 200, (2,)),
    ],
    ids=["tightest", "tightest-with-room", "whole", "loosest", "first-fit-takes-the-tightest"],
)
def test_which_gpu_of_the_node(name: str, milli: int, gpus: tuple[int, ...]) -> None:
    nodes = examples.cluster(examples.node(gpus=5))
    room = state_of(nodes, (0, 0, 100), (0, 1, 600), (0, 2, 700))
    placement = packing.place(room, examples.pod(milli=milli), packing.prepare(name, nodes, []), examples.in_row(nodes))
    assert placement == Placement(0, gpus, milli)


def test_whole_gpus_are_the_first_free_ones() -> None:
    nodes = examples.cluster(examples.node(gpus=4))
    room = state_of(nodes, (0, 1, 100))
    found = packing.place(room, examples.pod(gpus=2), packing.prepare("FGD", nodes, []), examples.in_row(nodes))
    assert found == Placement(0, (0, 2), GPU)


@pytest.mark.parametrize("name", examples.DETERMINED)
def test_ties_go_to_the_first_in_tie_order(name: str) -> None:
    nodes, sample = examples.cluster(LARGE, LARGE, LARGE), [examples.pod(), examples.pod(milli=300)]
    policy = examples.make_policy(name, nodes, sample)
    for pod in (*sample, examples.pod(gpus=0), examples.pod(gpus=4)):
        found = packing.place(Room(nodes), pod, policy, np.array([2, 0, 1]))
        assert found is not None
        assert found.node == 1


def test_random_is_uniform_and_seeded() -> None:
    nodes = examples.cluster(examples.node(gpus=2), examples.node(gpus=2), examples.node(model="A100"))
    room, pod, order = Room(nodes), examples.pod(milli=400, models=("T4",)), examples.in_row(nodes)

    def draw(seed: int) -> list[tuple[int, tuple[int, ...]]]:
        policy = packing.prepare("random", nodes, [], seed)
        return [(found.node, found.gpus) for _ in range(400) if (found := packing.place(room, pod, policy, order))]

    drawn = draw(1)
    assert drawn == draw(1)
    assert drawn != draw(2)
    assert {spot: 60 < drawn.count(spot) < 140 for spot in set(drawn)} == {
        (n, (g,)): True for n in (0, 1) for g in (0, 1)
    }


@pytest.mark.parametrize("spelling", ["FGD", "fgd", "gpuclustering", "bestfit", "SPP"])
def test_policies_are_found_in_any_case(spelling: str) -> None:
    nodes = examples.cluster(LARGE)
    assert packing.prepare(spelling, nodes, [examples.pod(milli=300)]).name.lower() == spelling.lower()


def test_an_unknown_policy_is_told_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="no packing policy is called Tetris; there are FirstFit, BestFit, "):
        packing.prepare("Tetris", examples.cluster(LARGE), [])


# ---- fragmentation and FGD ------------------------------------------------------------------------------------------


def define_f(room: Room, row: int, popular: dict[PackingPod, int]) -> float:
    """F of one node, as the definition says it."""
    nodes, total = room.nodes, sum(popular.values())
    free = room.gpu[row].tolist()
    model = nodes.models[nodes.model[row]]
    mean = 0.0
    for each, count in popular.items():
        hosts = room.cpu[row] >= each.cpu and each.accepts(model) and sum(r >= each.milli for r in free) >= each.gpus
        unusable = sum(r for r in free if r < each.milli) if hosts and each.gpus else sum(free)
        mean += count / total * unusable
    return mean


def fill(nodes: Nodes, story: Any) -> Room:
    packer = packing.Packer(nodes, packing.prepare("Random", nodes, [], 3), examples.in_row(nodes))
    for pod, _, _ in story:
        packer.arrive(pod)
    return packer.room


@given(
    nodes=examples.nodes_by_chance, story=examples.stories,
    pods=st.lists(examples.pods_by_chance(), min_size=1, max_size=8),
)
def test_fragmentation_and_its_fall_are_what_the_definition_says(
    nodes: Nodes, story: Any, pods: list[PackingPod]
) -> None:
    popular = fragments.find_popular(pods)
    room, tables = fill(nodes, story), fragments.Fragments(nodes, popular)
    measured = tables.measure(room) / tables.pods
    assert measured == pytest.approx([define_f(room, row, popular) for row in range(len(nodes))])
    for pod in pods:
        ask = packer.make_ask(nodes, pod)
        rows = np.flatnonzero(packer.has_room(room, np.arange(len(nodes)), ask) & (room.memory >= pod.memory))
        falls = (tables.fall(room, rows, ask) / tables.pods).tolist() if rows.size else []
        for row, fall in zip(rows.tolist(), falls, strict=True):
            for placement, expected in possible(room, pod, row, fall):
                after = room.copy()
                after.add(pod, placement)
                assert expected == pytest.approx(define_f(room, row, popular) - define_f(after, row, popular))


def possible(room: Room, pod: PackingPod, row: int, fall: Any) -> list[tuple[Placement, float]]:
    free = room.gpu[row].tolist()
    if 0 < pod.milli < GPU:
        return [(Placement(row, (gpu,), pod.milli), fall[gpu]) for gpu, room in enumerate(free) if room >= pod.milli]
    whole = tuple([gpu for gpu, room in enumerate(free) if room == GPU][: pod.gpus])
    return [(Placement(row, whole if pod.gpus else (), pod.milli), fall)]


@given(
    nodes=examples.nodes_by_chance, story=examples.stories,
    pods=st.lists(examples.pods_by_chance(), min_size=1, max_size=8),
)
@settings(max_examples=25)
def test_the_causes_share_out_all_that_is_free(nodes: Nodes, story: Any, pods: list[PackingPod]) -> None:
    popular = fragments.find_popular(pods)
    room = fill(nodes, story)
    causes = fragments.split_by_cause(room, pods)
    fragmented = sum(define_f(room, row, popular) for row in range(len(nodes))) / GPU
    assert sum(causes.values()) == pytest.approx(room.free.sum() / GPU)
    assert sum(causes.values()) - causes[fragments.Cause.Satisfied] == pytest.approx(fragmented)


@pytest.mark.parametrize(
    ("pod", "cause"),
    [
        (examples.pod(gpus=3, cpu=9_000), fragments.Cause.LackBoth), (examples.pod(gpus=3), fragments.Cause.LackGpu),
        (examples.pod(), fragments.Cause.Satisfied), (examples.pod(cpu=9_000), fragments.Cause.LackCpu),
        (examples.pod(gpus=0), fragments.Cause.CpuOnlySatisfied),
        (examples.pod(gpus=0, cpu=9_000), fragments.Cause.CpuOnlyLackCpu),
        (examples.pod(models=("A100",)), fragments.Cause.NoAccess),
    ],
    ids=lambda value: value.value if isinstance(value, fragments.Cause) else "",
)
def test_what_a_node_lacks_has_a_name(pod: PackingPod, cause: fragments.Cause) -> None:
    room = Room(examples.cluster(examples.node(gpus=2, cpu=8_000)))
    assert {name: gpus for name, gpus in fragments.split_by_cause(room, [pod]).items() if gpus} == {cause: 2.0}


def test_popular_classes_are_the_most_frequent_until_95_percent() -> None:
    sample = [examples.pod()] * 90 + [examples.pod(milli=500)] * 5 + [examples.pod(milli=300)] * 5
    assert [(each.milli, count) for each, count in fragments.find_popular(sample).items()] == [(1000, 90), (500, 5)]
    assert fragments.find_popular([]) == {}
    assert fragments.find_popular([examples.pod(milli=-3)]) == {}


@given(pods=st.integers(1, 20_000), fall=st.floats(-9_000, 9_000))
def test_grades_by_look_up_are_the_grades_of_the_formula(pods: int, fall: float) -> None:
    tables = fragments.Fragments(examples.cluster(LARGE), {PackingPod("", 1, 0, 1, 500): pods})
    whole = round(fall * pods)
    expected = int(100 / (1 + math.exp(-round(whole / pods, 6) / 1000)))
    assert tables.grade(np.array([whole, 0])).tolist() == [expected, 50]


def test_fgd_prefers_the_gpu_that_is_of_no_use_otherwise() -> None:
    """Whole GPUs usually come: a small pod goes where a GPU is broken already, not to the emptier cluster."""
    nodes = examples.cluster(LARGE, LARGE)
    room = state_of(nodes, (1, 3, 600))
    policy = packing.prepare("FGD", nodes, [examples.pod()] * 9 + [examples.pod(milli=300)])
    assert packing.place(room, examples.pod(milli=300), policy, examples.in_row(nodes)) == Placement(1, (3,), 300)
