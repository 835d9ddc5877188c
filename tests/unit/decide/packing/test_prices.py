"""Shadow prices and the bound: what the programs answer on clusters small enough to work out, and what happens when
they do not answer.
"""

import sys
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.decide.packing import examples

from fallow.decide import packing
from fallow.decide.packing import fragments, lp, prices, shadow
from fallow.decide.packing.room import GPU, Group, Nodes, PackingPod, Placement, Room

MIX = [examples.pod(milli=300)] * 4 + [examples.pod()] * 3 + [examples.pod(gpus=2)] + [examples.pod(gpus=0)] * 2


def test_patterns_leave_less_than_the_smallest_size() -> None:
    assert sorted(lp.cut_patterns([300, 460]) or []) == [(0, 2), (1, 1), (3, 0)]
    assert lp.cut_patterns([]) == []
    assert lp.cut_patterns(range(10, 500, 10)) is None


@given(sizes=st.sets(st.integers(40, 999), min_size=1, max_size=6))
def test_every_pattern_fits_a_gpu_and_none_comes_twice(sizes: set[int]) -> None:
    patterns = lp.cut_patterns(sorted(sizes), limit=1 << 20) or []
    used = [sum(n * size for n, size in zip(pattern, sorted(sizes), strict=True)) for pattern in patterns]
    assert len(set(patterns)) == len(patterns) > 0
    assert all(GPU - min(sizes) < use <= GPU for use in used)


def test_many_sizes_are_made_coarser_up_for_plans_and_down_for_bounds() -> None:
    assert prices.find_grid({100, 250, GPU}) == 1
    grid = prices.find_grid(set(range(7, 1000, 13)))
    assert grid > 1
    assert [lp.coarsen(milli, 50, up=True) for milli in (0, 7, 50, 951, GPU)] == [0, 50, 50, GPU, GPU]
    assert [lp.coarsen(milli, 50, up=False) for milli in (0, 7, 50, 951, GPU)] == [0, 0, 50, 950, GPU]
    nodes = examples.cluster(examples.node(gpus=8, cpu=960_000))
    pods = [examples.pod(milli=milli, cpu=100) for milli in range(7, 1000, 13)]
    assert prices.solve(nodes, pods).lam[0] > 0
    assert prices.find_bound(nodes, pods) == pytest.approx(100, abs=0.01)


def test_a_core_costs_where_cpu_is_scarce_and_a_gpu_where_gpus_are() -> None:
    plenty, short = examples.node(model="A100", cpu=960_000, gpus=8), examples.node(model="T4", cpu=16_000, gpus=8)
    sample = [examples.pod(cpu=8_000)] * 5
    solved = prices.solve(examples.cluster(plenty, short), sample)
    of = {group.model: i for i, group in enumerate(solved.groups)}
    assert solved.mu[of["A100"]] == pytest.approx(0)
    assert solved.lam[of["T4"]] == pytest.approx(0)
    assert solved.mu[of["T4"]] > 0.05


def test_the_rest_of_a_gpu_is_worth_what_it_can_be_cut_into() -> None:
    nu = prices.value_rests(np.array([[0.3, 0.5]]), (300, 460))[0]
    assert nu[[0, 299, 300, 459, 460, 599, 600, 760, 920, 1000]] == pytest.approx(
        [0, 0, 0.3, 0.3, 0.5, 0.5, 0.6, 0.8, 1.0, 1.0]
    )
    assert (np.diff(nu) >= 0).all()


def test_a_group_without_prices_takes_those_of_the_nearest_of_its_model_else_the_mean() -> None:
    groups = (Group(8_000, 1, "T4"), Group(64_000, 2, "T4"), Group(96_000, 8, "A100"))
    known = prices.Prices(groups, np.array([1.0, 2.0, 6.0]), np.array([1.0, 2.0, 6.0]), np.ones((3, GPU + 1)))
    large = examples.node(cpu=96_000, gpus=8, model="A100")
    nodes = Nodes([examples.node(cpu=28_000, gpus=1), examples.node(model="H100"), large])
    spread = known.spread(nodes)
    assert [group.model for group in spread.groups] == ["T4", "H100", "A100"]
    assert spread.mu == pytest.approx([2.0, 3.0, 6.0])


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        ([examples.pod()] * 4, 100.0), ([examples.pod()] * 9, 100.0), ([examples.pod()] * 2, 50.0),
        ([examples.pod(milli=700)] * 9, 70.0), ([examples.pod(cpu=32_000)] * 9, 50.0),
        ([examples.pod(memory=131_072)] * 9, 50.0), ([examples.pod(models=("H100",))] * 9, 0.0),
        ([examples.pod(gpus=5)] * 9, 0.0), ([], 0.0),
    ],
    ids=["full", "free-to-reject", "few", "rests", "cpu", "memory", "model", "too-large", "nobody"],
)
def test_the_bound_on_a_node_of_four_gpus(pods: list[PackingPod], expected: float) -> None:
    assert prices.find_bound(examples.cluster(examples.node()), pods) == pytest.approx(expected)


@pytest.mark.parametrize("name", examples.DETERMINED)
@given(nodes=examples.nodes_by_chance, pods=st.lists(examples.pods_by_chance(), min_size=1, max_size=25))
@settings(max_examples=8)
def test_nobody_beats_the_bound(name: str, nodes: Nodes, pods: list[PackingPod]) -> None:
    curve = packing.replay(nodes, pods, examples.make_policy(name, nodes, pods), examples.in_row(nodes))
    if nodes.capacity:
        assert curve.room.allocated * 100 / nodes.capacity <= prices.find_bound(nodes, pods) + 1e-6


# ---- SPP ------------------------------------------------------------------------------------------------------------


def price(nodes: Nodes, mu: float = 0.0, lam: float = 1.0, steps: dict[int, float] | None = None) -> prices.Prices:
    """The same for all groups; `steps`: free milli -> what a GPU with so much free is worth."""
    nu = np.zeros(GPU + 1)
    for milli, worth in (steps or {}).items():
        nu[milli:] = worth
    count = len(nodes.groups)
    return prices.Prices(nodes.groups, np.full(count, mu), np.full(count, lam), np.tile(nu, (count, 1)))


def test_a_pod_takes_the_rest_that_is_worth_least() -> None:
    """460 free can still hold a 460; 450 free can hold nothing that comes, so a 100 costs nothing there."""
    nodes = examples.cluster(examples.node(gpus=1), examples.node(gpus=1))
    room = Room(nodes)
    for row, milli in ((0, 540), (1, 550)):
        room.add(examples.pod(milli=milli), Placement(row, (0,), milli))
    policy = shadow.make_spp(nodes, MIX, price(nodes, steps={460: 0.5, 1000: 1.0}))
    assert packing.place(room, examples.pod(milli=100), policy, examples.in_row(nodes)) == Placement(1, (0,), 100)


def test_a_pod_that_goes_anywhere_leaves_the_model_that_others_are_bound_to() -> None:
    nodes = examples.cluster(examples.node(model="A100", gpus=2), examples.node(model="T4", gpus=2))
    bound = [examples.pod(models=("A100",))] * 5 + [examples.pod()]
    policy = shadow.make_spp(nodes, bound, price(nodes))
    assert policy.scarcity is not None
    assert packing.place(Room(nodes), examples.pod(), policy, examples.in_row(nodes)) == Placement(1, (0,), GPU)
    free = shadow.make_spp(nodes, [examples.pod()] * 6, price(nodes))
    assert free.scarcity is None
    assert packing.place(Room(nodes), examples.pod(), free, examples.in_row(nodes)) == Placement(0, (0,), GPU)


def test_scarcity_is_what_bound_pods_will_want_over_what_is_free() -> None:
    nodes = examples.cluster(examples.node(model="A100", gpus=2), examples.node(model="T4", gpus=6))
    sample = [examples.pod(models=("A100",))] + [examples.pod(models=("A100", "T4"))] * 2 + [examples.pod()]
    # Of 8 GPUs, 2 are wanted by the first (A100 only) and 4 by the second (1 on A100, 3 on T4, by capacity).
    assert prices.weigh_models(nodes, fragments.count_classes(sample)) == pytest.approx([3.0, 3.0])
    room, spp = Room(nodes), shadow.Shadow(nodes, sample, price(nodes), 0.0, shadow.STEP)
    assert spp.measure_scarcity(room) == (15, 5)  # 3 wanted of 2, 3 of 6, in tenths
    room.add(examples.pod(), Placement(0, (0,), GPU))
    assert spp.measure_scarcity(room) == (26, 4)  # 3 * 7/8 of 1; of 6: 4.375 to the nearest
    assert spp.measure_scarcity(Room(nodes)) == (15, 5)


def test_a_pod_without_gpus_goes_where_cpu_is_not_needed_beside_gpus() -> None:
    nodes = examples.cluster(examples.node(cpu=64_000, gpus=8), examples.node(cpu=64_000, gpus=1))
    policy = shadow.make_spp(nodes, [examples.pod(milli=300)] * 9, price(nodes))
    found = packing.place(Room(nodes), examples.pod(gpus=0), policy, examples.in_row(nodes))
    assert found == Placement(1, (), 0)


def test_where_cpu_is_scarce_everywhere_no_node_spares_it() -> None:
    nodes = examples.cluster(examples.node(cpu=64_000, gpus=8), examples.node(cpu=64_000, gpus=1))
    hungry = [examples.pod(cpu=60_000)] * 9
    policy = shadow.make_spp(nodes, hungry, price(nodes))
    assert packing.place(Room(nodes), examples.pod(gpus=0), policy, examples.in_row(nodes)) == Placement(0, (), 0)


@pytest.mark.parametrize(("make", "chosen"), [(shadow.make_spp, 0), (shadow.make_balanced, 1)], ids=["SPP", "Balanced"])
def test_balanced_does_not_strand_gpus_for_a_lower_price(
    make: Callable[..., packing.PackingPolicy], chosen: int
) -> None:
    """On the first node, which is cheaper, the pod would leave 7 GPUs without a core; on the second one beside many."""
    nodes = examples.cluster(examples.node(cpu=32_000, gpus=8), examples.node(cpu=96_000, gpus=2))
    even = price(nodes)
    uneven = prices.Prices(even.groups, even.mu, np.array([0.8, 1.0]), even.nu)
    policy = make(nodes, [examples.pod(cpu=4_000)] * 9, uneven)
    found = packing.place(Room(nodes), examples.pod(cpu=32_000), policy, examples.in_row(nodes))
    assert found == Placement(chosen, (0,), GPU)


@pytest.mark.parametrize(("pods", "chosen"), [(shadow.MANY_PODS, 1), (100, 0)], ids=["many pods", "few pods"])
def test_balanced_takes_a_small_difference_of_cost_for_noise_where_few_pods_were_seen(pods: int, chosen: int) -> None:
    """The second node is 0.025 GPUs cheaper: more than a step where prices are good, less than half a one where not."""
    nodes = examples.cluster(examples.node(cpu=96_000, gpus=2), examples.node(cpu=95_000, gpus=2))
    even, ranks = price(nodes), examples.in_row(nodes)
    # groups are sorted: the second node is of the first
    uneven = prices.Prices(even.groups, even.mu, np.array([0.48, 0.505]), even.nu)
    for make, expected in ((shadow.make_balanced, chosen), (shadow.make_spp, 1)):
        policy = make(nodes, [examples.pod(cpu=4_000)] * pods, uneven)
        assert packing.place(Room(nodes), examples.pod(cpu=4_000), policy, ranks) == Placement(expected, (0,), GPU)


# ---- no prices ------------------------------------------------------------------------------------------------------


@pytest.mark.accepts("packing", 17)
def test_without_a_solver_fgd_decides_and_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)  # where it cannot be loaded: ImportError
    nodes = examples.cluster(examples.node(), examples.node(model="A100"))
    policy = packing.prepare("SPP", nodes, MIX)
    assert (policy.name, policy.fallback) == ("FGD", "NoSolver")
    assert packing.prepare("Balanced", nodes, MIX).fallback == "NoSolver"
    packer = packing.Packer(nodes, policy, examples.in_row(nodes))
    for pod in MIX:
        packer.arrive(pod)
    assert packer.fallbacks == {"NoSolver": len(MIX)}
    fgd = packing.prepare("FGD", nodes, MIX)
    curves = [packing.replay(nodes, MIX, each, examples.in_row(nodes)) for each in (policy, fgd)]
    assert curves[0].placements == curves[1].placements
    auto = packing.rehearse(nodes, MIX, examples.in_row(nodes))
    assert not {"SPP", "Balanced"} & set(auto.shares)
    assert auto.chosen in ("FGD", "FirstFit")
    with pytest.raises(lp.Unsolved, match="NoSolver"):
        prices.find_bound(nodes, MIX)


@pytest.mark.parametrize(
    ("nodes", "sample"),
    [
        (examples.cluster(examples.node()), []), (examples.cluster(examples.node()), [examples.pod(gpus=0)]),
        (examples.cluster(examples.node(gpus=0, model="")), MIX), (examples.cluster(), MIX),
        (examples.cluster(examples.node()), [examples.pod(cpu=-1)]),
        (examples.cluster(examples.node()), [examples.pod(gpus=9)]),
    ],
    ids=["no-sample", "no-gpu-wanted", "no-gpu-there", "no-nodes", "absurd-sample", "nothing-fits"],
)
def test_with_nothing_to_price_fgd_decides(nodes: Nodes, sample: list[PackingPod]) -> None:
    policy = packing.prepare("SPP", nodes, sample)
    assert (policy.name, policy.fallback) == ("FGD", "NothingToPrice")
    packing.replay(nodes, MIX, policy, examples.in_row(nodes))


def test_a_program_that_takes_too_long_is_given_up() -> None:
    nodes = examples.cluster(examples.node(), examples.node(model="A100"))
    with pytest.raises(lp.Unsolved, match="TimedOut"):
        prices.solve(nodes, MIX, seconds=0.0)


@pytest.mark.parametrize(
    ("count", "reason"), [(-1.0, "Infeasible"), (float("inf"), "Unbounded")], ids=["less-than-nothing", "without-end"],
)
def test_what_the_solver_says_is_the_reason(count: float, reason: str) -> None:
    """Not to be had from a cluster: demand is a number of pods."""
    program = lp.Program(
        [lp.Stock(1, 1_000, 1)], [lp.Wish(count=count, worth=1.0, cpu=0, gpus=0, milli=0, accepted=frozenset())]
    )
    with pytest.raises(lp.Unsolved, match=reason):
        program.solve(1.0)
