"""How many pods one GPU would do for: no more than suits each of them, and nobody whom nobody measured."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.decide.sharing import scenes

from fallow import names
from fallow.decide import sharing
from fallow.model.classes import Behaviour, ContainerText
from fallow.model.seen import Input, Known, Unseen
from fallow.model.sharing import OwnerUse, SharePod

GPU = 80_000  # MiB


def use(mean: float = 0.1, p95: float = 0.5, peak: int | None = 5000, coverage: float = 1.0) -> Input[OwnerUse]:
    return Known(OwnerUse(coverage=coverage, peak_memory=peak, mean=mean, p95=p95))


def see(of: SharePod, used: Input[OwnerUse], **more: Any) -> sharing.Sharer | None:
    around = scenes.around(use=used, **more)
    return sharing.see_sharer(of, around, scenes.TERMS, scenes.NOW)


def gather(*uses: Input[OwnerUse]) -> list[sharing.Sharer]:
    found = [see(scenes.pod(name=f"p-{number}"), each) for number, each in enumerate(uses)]
    return [each for each in found if each is not None]


def test_a_crowd_is_as_large_as_suits_each_of_it() -> None:
    found = sharing.advise_crowd(gather(use(), use(mean=0.3, p95=0.7, peak=10_000), use(mean=0.7)), GPU)
    assert (found.could, found.alone, found.unknown) == (("ml/p-0", "ml/p-1"), ("ml/p-2",), ())
    assert (found.replicas, found.clients, found.largest_need) == (4, 1, 12_000)
    quiet = sharing.advise_crowd(gather(use(p95=0.1), use(p95=0.05)), GPU)
    assert (quiet.replicas, quiet.clients) == (2, 10)


@pytest.mark.parametrize("used", [use(coverage=0.79), use(peak=None), Unseen("too old")])
def test_who_is_not_measured_is_no_part_of_a_crowd(used: Input[OwnerUse]) -> None:
    found = sharing.advise_crowd(gather(use(), used), GPU)
    assert (found.could, found.unknown, found.replicas) == (("ml/p-0",), ("ml/p-1",), 8)
    nothing = sharing.advise_crowd(gather(used), GPU)
    assert (nothing.could, nothing.replicas, nothing.clients, nothing.largest_need) == ((), None, None, None)


@pytest.mark.parametrize("hidden", ["namespace", "owner"])
def test_whose_namespace_or_owner_is_not_seen_is_unknown_and_not_nobody(hidden: str) -> None:
    found = see(scenes.pod(name="p-0"), use(), **{hidden: Unseen("may not be read")})
    assert found is not None
    assert sharing.advise_crowd([found], GPU).unknown == ("ml/p-0",)


def test_a_gpu_of_unknown_memory_is_advised_to_nobody() -> None:
    found = sharing.advise_crowd(gather(use(), use()), None)
    assert (found.replicas, found.unknown) == (None, ("ml/p-0", "ml/p-1"))


def test_the_largest_need_of_any_lowers_it_for_all() -> None:
    assert sharing.advise_crowd(gather(use(), use(peak=25_000)), GPU).replicas == 2


def test_nobody_gets_more_company_than_his_people_say() -> None:
    said = {names.TIMESLICE_REPLICAS: "3", names.MPS_CLIENTS: "2"}
    one = see(scenes.pod(annotations=said), use(p95=0.4))
    assert one is not None
    found = sharing.advise_crowd([one], GPU)
    assert (found.replicas, found.clients) == (3, 2)


TRAINS = Known(OwnerUse(
    coverage=1.0, peak_memory=1, mean=0.1, p95=0.1,
    behaviour=Known(Behaviour(seconds=90_000, coverage=1.0, mean=0.7, deviation=0.1, idle=0.0)),
))


@pytest.mark.parametrize(("made", "used"), [
    (scenes.pod(scenes.container("2")), use()), (scenes.pod(annotations={names.SHARING: "disabled"}), use()),
    (scenes.pod(annotations={names.GPU_MEMORY_NEED: "much"}), use()),
    (scenes.pod(scenes.container(runs=ContainerText("x", ("torchrun",)))), use()),
    (scenes.pod(scenes.container(image="app")), TRAINS),
    (scenes.pod(annotations={names.OPTIMIZED: "true"}, node_selector={names.GPU_SHARING: "mps"}), use()),
], ids=["two", "opted-out", "unreadable", "trains", "seen-to-train", "shares"])
def test_who_keeps_a_whole_gpu_is_no_sharer(made: SharePod, used: Input[OwnerUse]) -> None:
    assert see(made, used) is None


def test_a_pod_that_runs_counts_as_its_people_wrote_it() -> None:
    there = see(scenes.pod(node_name="n1"), use())
    assert there is not None
    assert (there.pod, there.node, there.needs.memory) == ("ml/llm-0", "n1", 6000)
