"""Auto: what is played, who is chosen, and when the one in force stays."""

import numpy as np
import pytest
from tests.unit.decide.packing import examples

from fallow.decide import packing
from fallow.decide.packing import auto, policies
from fallow.decide.packing.room import Nodes, PackingPod

NODES = examples.cluster(*[examples.node(gpus=4, cpu=64_000)] * 10)
SAMPLE = [examples.pod(milli=300)] * 5 + [examples.pod(milli=700)] * 3 + [examples.pod(gpus=2)] * 2


def play(prepare_share: dict[str, int], in_force: str = "SPP", **given: object) -> auto.Rehearsal:
    """Candidates that can use only so many of the ten nodes: fuller or less full by a known amount."""

    def prepare(name: str, nodes: Nodes) -> packing.PackingPolicy:
        if name not in prepare_share:
            return packing.PackingPolicy("FGD", policies.first_fit, fallback="NoSolver")
        kept = prepare_share[name]
        return packing.PackingPolicy(
            name, lambda room, rows, ask: (np.where(rows < kept, 1, 0), policies.tightest(room, rows, ask))
        )

    return auto.rehearse(
        NODES, SAMPLE, examples.in_row(NODES), prepare, in_force=in_force, **given  # type: ignore[arg-type]
    )


def test_every_candidate_is_played_on_the_same_arrivals() -> None:
    result = play(dict.fromkeys(auto.CANDIDATES, 10))
    assert len(set(result.shares.values())) == 1
    assert list(result.shares) == ["Balanced", "SPP", "FGD", "FirstFit"]
    assert result.because.startswith("SPP stays, nothing beats it by more than 0.03 points: Balanced ")


@pytest.mark.parametrize(
    ("shares", "in_force", "chosen"),
    [
        ({"SPP": 95.0, "FGD": 95.2, "FirstFit": 90.0}, "SPP", "FGD"),
        ({"SPP": 95.0, "FGD": 95.02, "FirstFit": 90.0}, "SPP", "SPP"),
        ({"SPP": 95.0, "FGD": 95.05, "FirstFit": 94.0}, "FirstFit", "FGD"),
        ({"FGD": 93.0, "FirstFit": 94.0}, "SPP", "FirstFit"),
    ],
    ids=["clearly-beaten", "within-noise", "another-in-force", "the-one-in-force-cannot-play"],
)
def test_the_one_in_force_must_be_beaten_clearly(shares: dict[str, float], in_force: str, chosen: str) -> None:
    result = auto.choose(shares, in_force)
    assert result.chosen == chosen
    assert chosen in result.because


@pytest.mark.parametrize(
    ("nodes", "is_small"), [(200, False), (5, True)], ids=["many-gpus", "so-few-that-it-may-be-luck"]
)
def test_who_is_clearly_behind_is_not_played_again(nodes: int, is_small: bool) -> None:
    stage = examples.cluster(*[examples.node(gpus=4, cpu=64_000)] * nodes)
    plays: list[bool] = []

    def rehearsed(other: str) -> auto.Rehearsal:
        plays.clear()
        rules = dict.fromkeys(auto.CANDIDATES, "BestFit") | {"FirstFit": other}
        prepare = lambda name, nodes: packing.prepare(rules[name], nodes, SAMPLE)  # noqa: E731
        return auto.rehearse(stage, SAMPLE, examples.in_row(stage), prepare, may_go_on=lambda: not plays.append(True))

    rehearsed("BestFit")
    assert len(plays) == 16  # who is in force and leads is not played a fifth time
    shares = rehearsed("WorstFit").shares
    assert shares["Balanced"] - shares["FirstFit"] > auto.HOPELESS
    assert len(plays) == (16 if is_small else 13)


@pytest.mark.parametrize(
    ("nodes", "usual", "other", "chosen", "plays"),
    [(200, "WorstFit", {"FGD": "BestFit"}, "FGD", 4), (5, "BestFit", {"Balanced": "WorstFit"}, "SPP", 20)],
    ids=["nobody-is-left-to-beat", "who-is-in-force-does-not-lead"],
)
def test_it_is_played_until_it_is_decided(
    nodes: int, usual: str, other: dict[str, str], chosen: str, plays: int
) -> None:
    stage = examples.cluster(*[examples.node(gpus=4, cpu=64_000)] * nodes)
    played: list[bool] = []
    rules = dict.fromkeys(auto.CANDIDATES, usual) | other
    prepare = lambda name, nodes: packing.prepare(rules[name], nodes, SAMPLE)  # noqa: E731
    result = auto.rehearse(stage, SAMPLE, examples.in_row(stage), prepare, may_go_on=lambda: not played.append(True))
    assert (result.chosen, len(played)) == (chosen, plays)


def test_an_unfinished_rehearsal_changes_nothing() -> None:
    turns = iter([True, True, False])
    result = play({"SPP": 10, "FGD": 10, "FirstFit": 10}, in_force="FirstFit", may_go_on=lambda: next(turns))
    assert result.chosen == "FirstFit"
    assert result.because == "FirstFit stays: the rehearsal was not finished in its time"


@pytest.mark.parametrize(
    ("nodes", "sample"),
    [
        (NODES, []), (NODES, [examples.pod(gpus=0)]), (examples.cluster(), SAMPLE),
        (examples.cluster(examples.node(gpus=0)), SAMPLE),
    ],
    ids=["no-sample", "nobody-wants-gpus", "no-nodes", "no-gpus"],
)
def test_with_nothing_to_play_the_one_in_force_stays(nodes: Nodes, sample: list[PackingPod]) -> None:
    result = packing.rehearse(nodes, sample, examples.in_row(nodes))
    assert (result.chosen, result.shares) == ("Balanced", {})
    assert result.because == "Balanced stays: there is no GPU, or no pod in the sample that wants one"
    assert packing.prepare("auto", nodes, sample).fallback == "NothingToPrice"


def test_auto_is_the_policy_that_it_chose() -> None:
    order = np.random.default_rng(3).permutation(len(NODES))
    chosen = packing.rehearse(NODES, SAMPLE, order, seed=5)
    assert set(chosen.shares) == set(auto.CANDIDATES)
    assert packing.prepare("Auto", NODES, SAMPLE, 5, order).name == chosen.chosen
    assert chosen == packing.rehearse(NODES, SAMPLE, order, seed=5)


def test_arrivals_ask_for_all_gpus_of_the_cluster() -> None:
    arrivals = auto.draw_arrivals(NODES, SAMPLE, np.random.default_rng(1))
    assert sum(pod.gpu_milli for pod in arrivals) >= 1.01 * NODES.capacity
    assert set(arrivals) == set(SAMPLE)


def test_every_round_of_arrivals_has_each_pod_once() -> None:
    """Else two plays differ by the cores that happen to be asked for, and not by the candidates."""
    sample = [examples.pod(milli=300, cpu=cores) for cores in range(1, 11)]
    arrivals = auto.draw_arrivals(NODES, sample, np.random.default_rng(1))
    rounds = [arrivals[first : first + 10] for first in range(0, len(arrivals) - 9, 10)]
    assert all(set(each) == set(sample) for each in rounds)
    assert len(rounds) > 10


def test_a_large_cluster_is_played_small_with_the_same_groups() -> None:
    large, small = examples.node(model="A100", gpus=8), examples.node(model="T4", gpus=2)
    single = examples.node(model="H100", gpus=1)
    nodes = examples.cluster(*[large] * 3_000, *[small] * 1_000, single)
    order = np.random.default_rng(1).permutation(len(nodes))
    stage, ranks = auto.shrink(nodes, order)
    assert stage.groups == nodes.groups
    assert 1_000 <= len(stage) <= auto.MANY_NODES
    assert np.bincount(stage.model).tolist() == [900, 1, 300]
    assert sorted(ranks) == list(range(len(stage)))
    kept = [nodes.names.index(name) for name in stage.names]
    assert (np.argsort(order[kept]) == np.argsort(ranks)).all()
    assert auto.shrink(NODES, examples.in_row(NODES))[0] is NODES
