"""What is foretold and advised, from a real ledger over the wires to who asks: how long, how busy, what remains, and
whether room is worth making."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests import builders, cost_scenes
from tests.unit.doors.api.serving import Client, serving
from tests.unit.observe.cluster import pretend

from fallow.decide import packing
from fallow.doors.answers import forecasts as telling
from fallow.model import units
from fallow.model.cost import DAY, Interval
from fallow.model.policies import idle
from fallow.observe.cluster import hosts
from fallow.wiring import forecasts

NOW = builders.NOW
MANDATE = idle.Mandate()
BEGAN = int(NOW) // DAY * DAY - 20 * DAY
GPU = "nvidia.com/gpu"


def ran(owner: str, minutes: float, times: int = 15, use: float = 0.5) -> list[Interval]:
    """So often, one run each day at noon."""
    of, found = cost_scenes.key("ml", owner), list[Interval]()
    for day in range(1, times + 1):
        begin = BEGAN + day * DAY + 43_200
        end = begin + round(60 * minutes)
        found += cost_scenes.held(f"GPU-{owner}", begin, end, of, use=use, pod=f"{owner}-run-{day}")
    return found


FIRST = [*cost_scenes.held("GPU-x", BEGAN, BEGAN + 60, cost_scenes.key("web", "x"), pod="the-first")]
LONG = [*ran("train", 160.0, use=0.9), *ran("sweep", 600.0, use=0.2), *ran("other", 45.0, use=0.4)]


class Yard:
    """Pods on a pretend server, and the same in the snapshot of the daemon."""

    def __init__(self, server: pretend.Server) -> None:
        self.server, self.world = server, builders.World()
        server.put("nodes", pretend.made("n1", namespace=None, kind="Node", status={
            "conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {GPU: "2", "cpu": "64", "memory": "1Ti", "pods": "110"},
        }))

    def add(self, owner: str, priority: int | None, age: float | None, **notes: str) -> None:
        """`age`: minutes since it runs; None: it waits."""
        name, node = f"{owner}-0", "" if age is None else "n1"
        began = NOW - 60 * (age or 0)
        place = self.world.pod(
            name, () if age is None else [builders.busy()], node=node, phase="Running" if node else "Pending",
            bound_at=began if node else None, created_at=began, resources={GPU: 1}, priority=priority,
        )
        self.world.workload(f"ml/{owner}", pods=[place])
        thing = pretend.pod(name, gpus=1, node=node or None)
        thing["metadata"] |= {"uid": self.world.pods[place].uid, "creationTimestamp": units.rfc3339(began)}
        thing["metadata"]["annotations"] = dict(notes)
        thing["metadata"]["ownerReferences"] = [{
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "uid": f"rs-{owner}", "controller": True,
        }]
        thing["spec"] |= {"priority": priority, "nodeName": node} if priority is not None else {"nodeName": node}
        thing["status"]["phase"] = "Running" if node else "Pending"
        if node:
            thing["status"]["conditions"] = [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": units.rfc3339(began)}
            ]
        self.server.put("pods", thing)


@contextlib.asynccontextmanager
async def yard(
    runs: list[Interval] | None, *pods: tuple[str, int | None, float | None], kept: packing.WhyKept = lambda _: "",
    **notes: str,
) -> AsyncIterator[Client]:
    """`runs` None: no books are kept."""
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(pretend.Server())
        made = Yard(server)
        for pod in pods:
            made.add(*pod, **notes)
        api = await stack.enter_async_context(server.api())
        ledger = None
        if runs is not None:
            ledger = await stack.enter_async_context(cost_scenes.opened([*FIRST, *runs], at=int(NOW)))

        async def why_kept() -> packing.WhyKept:
            return kept

        told = forecasts.Forecasts(ledger, forecasts.RoomEyes(lambda: hosts.look(api), why_kept))
        yield await stack.enter_async_context(serving(made.world, MANDATE, forecasts=told))


async def ask(incoming: float, *, running: tuple[str, int | None, float] = ("train", 100, 60.0), **more: Any) -> Any:
    """One that waits with priority 200, and one that runs."""
    async with yard([*LONG, *ran("quick", incoming)], ("quick", 200, None), running, **more) as client:
        (waiting,) = (await client.get("/api/v1/preemption"))["waiting"]
        return waiting


@pytest.mark.accepts("packing", 22)
@pytest.mark.parametrize(("incoming", "running", "should", "reason"), [
    (29.0, ("train", 100, 60.0), True, "WorthIt"),
    (30.0, ("train", 100, 60.0), False, "NotShortEnough"),
    (29.0, ("train", 100, 64.0), False, "NotShortEnough"),
    (29.0, ("train", 200, 60.0), False, "PriorityNotHigher"),
    (29.0, ("train", None, 60.0), False, "PriorityUnknown"),
    (29.0, ("nobody-knows", 100, 60.0), False, "RestUnknown"),
    (29.0, ("train", 100, 200.0), False, "RestUnknown"),
], ids=["29", "30", "less left", "as important", "no priority", "no past", "longer than ever"])
async def test_room_is_worth_making_for_who_is_more_important_and_takes_less_than_a_third_of_what_is_left(
    incoming: float, running: tuple[str, int | None, float], should: bool, reason: str
) -> None:
    found = await ask(incoming, running=running)
    (one,) = found["running"]
    assert (found["pod"], found["priority"], found["minutes"]["value"]) == ("quick-0", 200, incoming)
    assert found["minutes"]["error"] < found["minutes"]["medianError"]
    assert (one["pod"], one["shouldPreempt"], one["reason"]) == (f"{running[0]}-0", should, reason)
    assert (found["shouldPreempt"], found["counts"]) == (should, {reason: 1})
    if reason in ("WorthIt", "NotShortEnough"):
        assert one["remainingMinutes"]["value"] == 160 - running[2]
        assert one["remainingMinutes"]["error"] < one["remainingMinutes"]["medianError"]


async def test_what_may_not_be_moved_stays() -> None:
    (one,) = (await ask(29.0, kept=lambda pod: "ada keeps it"))["running"]
    assert (one["reason"], one["shouldPreempt"]) == ("NotMovable", False)
    assert "ada keeps it" in one["because"]
    disrupted = {"karpenter.sh/do-not-disrupt": "true"}
    assert (await ask(29.0, **disrupted))["running"][0]["reason"] == "NotMovable"


async def test_without_books_or_with_few_runs_nothing_is_foretold_and_nobody_is_advised_to_go() -> None:
    pods = ("quick", 200, None), ("train", 100, 60.0)
    for runs, because in ((None, "no books are kept"), (ran("train", 160.0), None)):
        async with yard(runs, *pods) as client:
            page = await client.get("/api/v1/preemption")
            (found,) = page["waiting"]
            assert (found["minutes"], found["shouldPreempt"], found["counts"]) == (None, False, {"RestUnknown": 1})
            assert (because or "") in (page["because"] or "")
            why = (await client.get("/api/v1/workloads/ml/Deployment/train/explain"))["forecast"]
            assert (why["minutes"], why["use"], why["remainingMinutes"]) == (None, None, None)
            assert (because or "15 runs are over") in why["because"]


async def test_a_workload_is_explained_with_what_is_foretold_of_it_and_by_how_much_that_was_wrong() -> None:
    async with yard([*LONG, *ran("quick", 29.0)], ("train", 100, 60.0)) as client:
        found = (await client.get("/api/v1/workloads/ml/Deployment/train/explain"))["forecast"]
    assert (found["pod"], found["runs"], found["ownRuns"], found["because"]) == ("train-0", 60, 15, None)
    assert (found["minutes"]["value"], found["remainingMinutes"]["value"], found["use"]["value"]) == (160, 100, 0.9)
    lines = dict(telling.list_lines(telling.ForecastTold(
        pod="train-0", runs=60, own_runs=15, because=None,
        **{name: telling.ForetoldTold(value=90.0, error=4.0, median_error=9.0, by="owner", runs=60)
           for name in ("minutes", "remaining_minutes")},
        use=telling.ForetoldTold(value=0.9, error=0.05, median_error=0.2, by="group", runs=60),
    )))
    assert lines == {
        "will run": "about 1h30m in all (train-0), wrong by 4m on the mean; by its last runs, of 60",
        "remains": "about 1h30m, wrong by 4m on the mean; by its last runs, of 60",
        "will use": "90 % busy on the mean, wrong by 5 points on the mean; by runs like it, of 60",
    }


async def test_what_does_no_better_than_the_median_is_not_shown() -> None:
    """Everybody runs equally long: whoever knows the median knows as much."""
    alike = [*ran("train", 160.0), *ran("sweep", 160.0), *ran("quick", 160.0)]
    async with yard(alike, ("quick", 200, None), ("train", 100, 60.0)) as client:
        page = await client.get("/api/v1/preemption")
        assert page["waiting"][0]["minutes"] is None
        assert page["waiting"][0]["counts"] == {"RestUnknown": 1}
        why = (await client.get("/api/v1/workloads/ml/Deployment/train/explain"))["forecast"]
        assert (why["minutes"], why["remainingMinutes"]) == (None, None)
        assert "better than the median" in why["because"]
