"""Advice for what workloads really hold: of a GPU that is shared in turns, each holds a part."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

import msgspec
import pytest
from tests import builders

from fallow import names
from fallow.model import bills, cluster, decision, price_book
from fallow.model.classes import ContainerText
from fallow.model.seen import ABSENT, Input, Known
from fallow.model.share_advice import AdviceKind, ShareUse
from fallow.model.sharing import ShareContainer, SharePod
from fallow.model.units import DAY
from fallow.wiring import optimizing

USE = ShareUse(gpu=0.02, memory=0.3, coverage=1.0, total=81_920, peak=24_576, p95=0.1, seconds=DAY)


@pytest.mark.parametrize(("held", "kind"), [(1.0, AdviceKind.mig), (0.25, AdviceKind.none)])
@pytest.mark.accepts("packing", 23)
def test_who_asks_for_one_gpu_and_holds_a_quarter_is_not_advised_to_take_a_half(held: float, kind: AdviceKind) -> None:
    world = builders.World()
    world.workload("nb", pods=[world.pod("nb-0")])
    found = advise(world.snapshot(), held=held)
    assert (found.advice.kind, found.advice.saves is None) == (kind, kind is AdviceKind.none), found.advice


@pytest.mark.parametrize(("labels", "price", "model"), [
    ({}, ABSENT, "A10"), ({"karpenter.sh/capacity-type": "on-demand"}, ABSENT, "A10"),
    ({"karpenter.sh/capacity-type": "spot"}, ABSENT, ""),  # what an A10 costs as spot nobody knows
    ({}, Known(Decimal("2.0")), ""),  # books are kept: it costs what its node costs
])
def test_another_model_is_advised_only_where_both_prices_are_the_lists(
    labels: dict[str, str], price: Input[Decimal], model: str
) -> None:
    world = builders.World()
    world.workload("w", pods=[world.pod("w-0")], labels={names.WORKLOAD_TYPE: "training"})
    world.node("node-1", labels=labels)
    book = {"A100-80GB": Decimal("4.0"), "A10": Decimal("0.6")}
    use = msgspec.structs.replace(USE, peak=10_000)
    found = advise(world.snapshot(), model="A100-SXM4-80GB", price=price, book=book, use=use)
    assert found.advice.model == model
    assert (found.advice.saves == pytest.approx(3.4 * 730)) is bool(model)


def advise(
    seen: cluster.Snapshot, running: Mapping[str, SharePod] | None = None, held: float = 1.0, *,
    model: str = "A100-SXM4-80GB", price: Input[Decimal] = ABSENT, book: price_book.ModelPrices = price_book.LIST,
    use: ShareUse = USE,
) -> optimizing.AdvisedWorkload:
    finding = decision.Finding(
        workload=seen.workloads[0], verdict=decision.Verdict.active, reason=decision.Reason.Busy, because="",
        rule=builders.rule(), gpus=1, idle_gpus=0, models=(model,), window=builders.WINDOW,
        holdings=(bills.ModelHolding(model, held, 1, price),),
    )
    used = {(seen.pods[0].namespace, seen.pods[0].name): use}
    (found,) = optimizing.advise(seen, [finding], running or {}, used, builders.NOW, 600.0, book)
    return found


@pytest.mark.parametrize(("command", "memory", "of_pod", "of_namespace", "work"), [
    (("python", "x.py"), "8Gi", {}, {}, "batch"),
    (("torchrun", "x.py"), "8Gi", {}, {}, "training"),
    (("python", "x.py"), "33Gi", {}, {}, "training"),
    (("python", "x.py"), "8Gi", {}, {names.WORKLOAD_TYPE: "training"}, "training"),
    (("torchrun", "x.py"), "8Gi", {names.WORKLOAD_TYPE: "dev"}, {names.WORKLOAD_TYPE: "training"}, "notebook"),
], ids=["nothing", "runs", "memory", "namespace", "pod-first"])
@pytest.mark.accepts("packing", 23)
def test_who_trains_by_whatever_tells_it_is_advised_no_part_of_a_gpu(
    command: tuple[str, ...], memory: str, of_pod: dict[str, str], of_namespace: dict[str, str], work: str
) -> None:
    world = builders.World()
    world.workload("w", pods=[world.pod("w-0", labels=of_pod)])
    world.namespace(world.workloads[0].ref.namespace, labels=of_namespace)
    seen = world.snapshot()
    container = ShareContainer(
        runs=ContainerText("app", command), requests={names.GPU: "1", "memory": memory}, limits={names.GPU: "1"}
    )
    pod = SharePod(namespace="ml", name="w-0", labels=of_pod, containers=(container,))
    found = advise(seen, {seen.pods[0].uid: pod})
    assert found.facts.work == work
    assert (found.advice.kind is AdviceKind.mig) == (work != "training"), found.advice
