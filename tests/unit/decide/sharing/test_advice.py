"""Who could do with less: a score of what is wasted, and never a part that is too small."""

from __future__ import annotations

from typing import Any

import pytest

from fallow.decide import sharing
from fallow.model import gpus
from fallow.model.classes import WorkClass
from fallow.model.share_advice import AdviceKind, ShareFacts, ShareUse
from fallow.model.units import DAY, HOUR

A100, A10 = gpus.find("NVIDIA A100-SXM4-80GB"), gpus.find("NVIDIA A10G")
V100, H100, T4 = gpus.find("Tesla-V100-SXM2-32GB"), gpus.find("NVIDIA H100 80GB HBM3"), gpus.find("Tesla T4")
BOOK = {"A100-80GB": 2.0, "A100-40GB": 1.5, "A30": 0.9, "A10": 0.6, "L4": 0.5, "T4": 0.3, "V100-32GB": 1.2, "L40S": 1.1,
        "H100-80GB": 3.0, "A10G": 0.4, "MADE-UP": 0.01}
TOTAL = 81_000.0


def facts(gpu: float = 0.1, memory: float = 0.1, peak: float = 7000, p95: float = 0.1, **more: Any) -> ShareFacts:
    use = ShareUse(**{
        "gpu": gpu, "memory": memory, "coverage": 1.0, "total": TOTAL, "peak": peak, "p95": p95, "seconds": 7 * DAY,
        **more.pop("use", {}),
    })
    return ShareFacts(**{"work": WorkClass.inference, "gpus": 1.0, "each": 1, "use": use, "model": A100,
                         "per_hour": 2.0, **more})


@pytest.mark.parametrize("use", [{"coverage": 0.5}, {"coverage": 0.79}, {"gpu": None}, {"memory": None}])
@pytest.mark.accepts("packing", 23)
def test_what_is_not_measured_enough_is_unknown_and_saves_nothing(use: dict[str, Any]) -> None:
    found = sharing.advise(facts(use=use))
    assert (found.kind, found.score, found.saves, found.share) == (AdviceKind.unknown, None, None, 1.0)


@pytest.mark.parametrize(("gpu", "memory", "score"), [(0.0, 0.0, 100.0), (1.0, 1.0, 0.0), (0.5, 0.25, 60.0)])
def test_the_score_counts_compute_more_than_memory(gpu: float, memory: float, score: float) -> None:
    assert sharing.advise(facts(gpu, memory)).score == score


@pytest.mark.parametrize(("given", "kind", "because"), [
    (facts(), AdviceKind.mig, "1g.10gb"),
    (facts(peak=9000), AdviceKind.mig, "1g.20gb"),  # with a fifth on top it does not fit the smaller
    (facts(p95=0.2), AdviceKind.mig, "2g.20gb"),
    (facts(model=A10), AdviceKind.mps, "9 on a GPU"),  # no MIG
    (facts(model=A10, most_clients=4), AdviceKind.mps, "4 on a GPU"),  # its people say with how many at most
    (facts(model=A10, most_clients=40), AdviceKind.mps, "9 on a GPU"),  # and no more than is enough for it
    (facts(model=A10, most_clients=1), AdviceKind.none, "nothing smaller"),
    (facts(0.6, 0.3, p95=0.1), AdviceKind.timeslicing, "8 on a GPU"),
    (facts(0.6, 0.3, p95=0.1, most_replicas=5), AdviceKind.timeslicing, "4 on a GPU"),
    (facts(0.4, 0.45, peak=20_000), AdviceKind.mps, "3 on a GPU"),
    (facts(0.4, 0.3, peak=20_000, p95=0.3), AdviceKind.mig, "3g.40gb"),
    (facts(0.4, 0.3, model=A10), AdviceKind.mps, "9 on a GPU"),  # no MIG
    (facts(0.4, 0.3, model=A10, p95=0.9), AdviceKind.none, "nothing smaller"),
    (facts(0.6, 0.3, p95=0.3), AdviceKind.timeslicing, "2 on a GPU"),
    (facts(0.6, 0.3, p95=0.9), AdviceKind.none, "nothing smaller"),
    (facts(0.6, 0.6), AdviceKind.none, "nothing smaller"),
    (facts(use={"peak": None}), AdviceKind.none, "not measured"),
    (facts(use={"p95": None}), AdviceKind.none, "not measured"),
    (facts(peak=79_000), AdviceKind.none, "nothing smaller"),
    (facts(work=WorkClass.training), AdviceKind.none, "nothing smaller"),
    (facts(work=WorkClass.training, gpus=8.0, each=8, peak=20_000), AdviceKind.fewer, "3 instead of 8"),
    (facts(work=WorkClass.training, gpus=8.0, each=8, p95=1.0, use={"unused": 6}), AdviceKind.fewer, "2 instead of 8"),
    (facts(work=WorkClass.training, gpus=8.0, each=8, peak=20_000, use={"unused": 1}), AdviceKind.fewer, "3 instead"),
    (facts(work=WorkClass.training, gpus=8.0, each=8, p95=1.0, use={"unused": 8}), AdviceKind.none, "nothing smaller"),
    (facts(work=WorkClass.training, gpus=8.0, each=8, p95=1.0, use={"unused": 6, "seconds": 3600.0}), AdviceKind.none,
     "nothing smaller"),
    (facts(work=WorkClass.training, gpus=8.0, each=8, p95=1.0, use={"unused": 0}), AdviceKind.none, "nothing smaller"),
    (facts(work=WorkClass.training, gpus=8.0, each=8, p95=1.0), AdviceKind.none, "nothing smaller"),
    (facts(each=0), AdviceKind.none, "parts of GPUs already"),
    (facts(each=4, gpus=8.0, p95=0.9), AdviceKind.none, "nothing smaller"),
])
def test_the_first_way_that_is_enough(given: ShareFacts, kind: AdviceKind, because: str) -> None:
    found = sharing.advise(given)
    assert (found.kind, because in found.because) == (kind, True), found


def test_no_part_is_below_the_peak_and_a_fifth_or_the_percentile_and_a_tenth() -> None:
    for step in range(1, 200):
        for p95 in (0.0, 0.1, 0.3, 0.6, 0.9):
            peak = 400.0 * step
            for model, gpu in ((A100, 0.1), (A10, 0.1), (A100, 0.6)):
                found = sharing.advise(facts(gpu, peak=peak, p95=p95, model=model))
                if found.share < 1:
                    assert found.share * TOTAL * 1.02 >= peak * 1.2  # a profile's gigabytes are rounded
                    assert found.share >= p95 * 1.1 - 1e-9 or found.kind is AdviceKind.mig


@pytest.mark.parametrize(("more", "saves"), [({}, 2.0 * 7 / 8 * 730), ({"per_hour": None}, None)])
def test_savings_come_from_the_bill_and_from_nothing_else(more: dict[str, Any], saves: float | None) -> None:
    assert sharing.advise(facts(**more)).saves == saves


def test_less_than_a_day_of_data_is_not_sure() -> None:
    assert [sharing.advise(facts(use={"seconds": each})).is_sure for each in (23 * HOUR, DAY)] == [False, True]


def test_pods_together_waste_their_mean_and_need_their_most() -> None:
    one, two = facts(0.1, peak=100).use, facts(0.3, peak=200, use={"coverage": 0.9, "total": 500.0}).use
    found = sharing.join_uses([one, two])
    assert (found.gpu, found.peak, found.coverage, found.total) == (pytest.approx(0.2), 200, 0.9, 500.0)
    assert sharing.join_uses([one, ShareUse()]) == ShareUse()
    assert sharing.waste_hours(facts(0.25, gpus=2.0), 2 * HOUR) == 3.0


@pytest.mark.parametrize(("given", "replicas", "clients"), [
    (facts(), 2, 9),  # steady: what is quiet all day long has no pauses for others
    (facts(0.1, p95=0.9), 8, 1), (facts(0.1, p95=0.9, most_replicas=3), 3, 1), (facts(0.1, p95=0.9, peak=20_000), 3, 1),
    (facts(0.3, p95=0.9), 4, 1), (facts(0.6, p95=0.6), 1, 1), (facts(most_clients=4), 2, 4),
    (facts(peak=79_000), 1, 1), (facts(work=WorkClass.training), 1, 1),
    (facts(use={"peak": None}), None, None), (facts(use={"total": None}), None, None), (facts(each=2), None, None),
    (facts(each=0), None, None), (facts(use={"coverage": 0.5}), None, None),
])
def test_how_many_such_pods_could_share_a_gpu(given: ShareFacts, replicas: int | None, clients: int | None) -> None:
    found = sharing.advise(given)
    assert (found.replicas, found.clients) == (replicas, clients)


@pytest.mark.parametrize("each", [1, 2])
@pytest.mark.parametrize(("total", "peak"), [(0.0, 0.0), (0.5, 0.0), (0.0, 5.0), (-1.0, 0.0), (1e308, 0.0)])
def test_a_gpu_of_a_size_that_none_has_is_of_a_size_that_nobody_knows(total: float, peak: float, each: int) -> None:
    """Whatever an exporter says, or somebody who pretends to be one: nothing is advised that rests on it."""
    found = sharing.advise(facts(gpu=0.1, memory=0.6, peak=peak, use={"total": total}, each=each, model=None))
    assert (found.kind, found.replicas, found.clients) == (AdviceKind.none, None, None)


def training(**more: Any) -> ShareFacts:
    """On one GPU, which it cannot share."""
    return facts(**{"work": WorkClass.training, "prices": BOOK, **more})


@pytest.mark.parametrize(("given", "model"), [
    (training(p95=0.05), "L4"),  # 300 of 2039 GB/s are enough for it; a T4 has no BF16, and of the A10G nobody knows
    (training(p95=0.14), "A10"),
    (training(p95=0.27), "A30"),
    (training(p95=0.27, peak=30_000), "L40S"),  # the A30 is cheaper, and holds too little
    (training(p95=0.4, peak=30_000), "A100-40GB"),
    (training(p95=0.4, peak=31_500), ""),  # with a fifth on top too much for what drivers leave of 40 GB
    (training(p95=0.7), ""),  # an A100 of 40 GB has three quarters of its own bandwidth
    (training(p95=0.05, model=A10), ""),  # how fast an A10G is nobody knows
    (training(p95=0.05, model=None), ""),
    (training(p95=0.05, model=V100, per_hour=1.2, peak=4000), "T4"),
    (training(p95=0.05, model=H100, per_hour=3.0), "L4"),
    (training(p95=0.2, model=H100, per_hour=3.0), "L40S"),  # no A100: it may compute in FP8
    (training(p95=0.05, per_hour=None), ""), (training(p95=0.05, prices={}), ""),
    (training(p95=0.05, per_hour=1.0), ""),  # it pays another price than the list's
    (training(p95=0.05, prices={"A100-80GB": 2.0, "L4": 2.0, "A10": 2.5}), ""),  # none is cheaper
    (training(p95=0.05, use={"total": None}), ""), (training(p95=0.05, use={"peak": None}), ""),
    (training(p95=0.05, use={"p95": None}), ""),
    (training(p95=0.05, use={"coverage": 0.79}), ""), (training(p95=0.05, each=0), ""),
    (training(p95=0.05, each=2, gpus=2.0, per_hour=4.0, peak=60_000), ""),  # how GPUs talk to each other nobody sees
    (facts(0.6, 0.3, p95=0.3, prices=BOOK), ""),  # it can share
])
@pytest.mark.accepts("packing", 23)
def test_the_cheapest_model_that_is_enough_where_nothing_else_is(given: ShareFacts, model: str) -> None:
    found = sharing.advise(given)
    assert (found.model, found.kind is AdviceKind.model) == (model, bool(model)), found


def test_another_model_saves_the_difference_of_their_prices_and_is_no_share() -> None:
    found = sharing.advise(training(p95=0.05, gpus=3.0, per_hour=6.0))
    assert (found.share, found.saves, found.because) == (1.0, (6.0 - 1.5) * 730, "L4 instead of A100-80GB")
    assert [sharing.advise(training(p95=0.05, use={"seconds": each})).is_sure for each in (HOUR, DAY)] == [False, True]


def test_no_model_is_advised_below_the_peak_and_a_fifth_or_the_percentile_and_a_tenth() -> None:
    prices = {name: 1 / (place + 1) for place, name in enumerate(gpus.SPEEDS)}
    for own in gpus.SPEEDS:
        for step in range(1, 200, 7):
            for p95 in (0.0, 0.1, 0.3, 0.6, 0.9, 1.0):
                given = training(peak=400.0 * step, p95=p95, model=gpus.find(own), prices=prices, per_hour=prices[own])
                found = sharing.advise(given)
                if not found.model:
                    continue
                model, speed = gpus.find(found.model), gpus.SPEEDS[found.model]
                assert model is not None
                assert model.memory_gib * 1024 * 0.92 >= 400.0 * step * 1.2
                assert speed.tensor[0] >= gpus.SPEEDS[own].tensor[0] * p95 * 1.1
                assert prices[found.model] < prices[own]
