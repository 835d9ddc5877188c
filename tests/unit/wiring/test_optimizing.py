"""Advice for what workloads really hold: of a GPU that is shared in turns, each holds a part."""

from __future__ import annotations

import pytest
from tests import builders

from fallow.model import bills, decision, price_book
from fallow.model.share_advice import AdviceKind, ShareUse
from fallow.model.units import DAY
from fallow.wiring import optimizing

USE = ShareUse(gpu=0.02, memory=0.3, coverage=1.0, total=81_920, peak=24_576, p95=0.1, seconds=DAY)


@pytest.mark.parametrize(("held", "kind"), [(1.0, AdviceKind.mig), (0.25, AdviceKind.none)])
@pytest.mark.accepts("packing", 23)
def test_who_asks_for_one_gpu_and_holds_a_quarter_is_not_advised_to_take_a_half(held: float, kind: AdviceKind) -> None:
    world = builders.World()
    world.workload("nb", pods=[world.pod("nb-0")])
    seen = world.snapshot()
    finding = decision.Finding(
        workload=seen.workloads[0], verdict=decision.Verdict.active, reason=decision.Reason.Busy, because="",
        rule=builders.rule(), gpus=1, idle_gpus=0, models=("A100-SXM4-80GB",), window=builders.WINDOW,
        holdings=(bills.ModelHolding("A100-SXM4-80GB", held, 1),),
    )
    used = {(seen.pods[0].namespace, seen.pods[0].name): USE}
    (found,) = optimizing.advise(seen, [finding], {}, used, builders.NOW, 600.0, price_book.LIST)
    assert (found.advice.kind, found.advice.saves is None) == (kind, kind is AdviceKind.none), found.advice
