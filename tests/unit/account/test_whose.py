"""Whose cost it is: as reports show it, and as budgets count it although a tenant writes another team on its pods."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.unit.account.paper import DAY0, Scene

from fallow.account import ledger, ledger_read
from fallow.account.ledger import Ledger
from fallow.model import cost
from fallow.model.cost import CostBatch, CostFilter, CostQuery
from fallow.model.policies import budget

HOUR = 3600
UNIT = cost.UNIT


async def book(scene: Scene, path: Path) -> Ledger:
    opened = ledger.on_file(path / "costs.sqlite")
    await opened.open()
    await opened.claim(1)
    booked = await opened.write(CostBatch(at=scene.paper.at, intervals=tuple(scene.paper.rows.values())), 1)
    assert booked.refused == ()
    return opened


async def spent(opened: Ledger, where: Iterable[CostFilter]) -> float:
    sums = await opened.sums(CostQuery(begin=DAY0, end=DAY0 + HOUR, where=tuple(where)))
    return sum(one.total.cost for one in sums) / UNIT


def of(**said: object) -> budget.SpendScope:
    return budget.SpendScope(type=budget.ScopeType.team, **said)  # type: ignore[arg-type]


@pytest.mark.parametrize("rolled", [False, True])
async def test_a_tenant_that_writes_another_team_on_its_pods_spends_its_own_budget(
    tmp_path: Path, rolled: bool
) -> None:
    """Team red's namespace is labelled by an administrator; its pods say they are blue's."""
    scene = Scene()
    scene.node("n", 3)
    scene.world.namespace("red-space", labels={"team": "red", "experiment-id": "e1"})
    scene.world.namespace("blue-space", labels={"team": "blue"})
    scene.world.namespace("open-space")
    hostile = {"team": "blue", "experiment-id": "e2"}
    scene.world.pod("hostile", node="n", namespace="red-space", bound_at=float(DAY0), labels=hostile)
    scene.world.pod("honest", node="n", namespace="blue-space", bound_at=float(DAY0))
    scene.world.pod("guest", node="n", namespace="open-space", bound_at=float(DAY0), labels={"team": "blue"})
    scene.look(DAY0)
    scene.look(DAY0 + HOUR + 60)
    opened = await book(scene, tmp_path)
    if rolled:
        await opened.roll_up(DAY0 + HOUR, 1)
    red, blue = of(teams=("red",)), of(teams=("blue",))
    assert await spent(opened, red.filters(payer=True)) == 1.0
    assert await spent(opened, blue.filters(payer=True)) == 2.0  # and the guest, whose namespace says nothing
    assert await spent(opened, blue.filters(payer=True, vouched=True)) == 1.0  # but for the guest
    assert await spent(opened, red.filters(payer=True, vouched=True)) == 1.0
    named = of(teams=("blue",), namespaces=("open-space",))
    assert await spent(opened, named.filters(payer=True, vouched=True)) == 1.0  # by name it is meant
    assert await spent(opened, of(experiment="e1").filters(payer=True)) == 1.0
    assert await spent(opened, of(experiment="e2").filters(payer=True)) == 0.0
    assert await spent(opened, of(labels=(("team", "red"),)).filters(payer=True)) == 1.0
    # Reports show what the pod says, as before.
    assert await spent(opened, red.filters(payer=False)) == 0.0
    assert await spent(opened, blue.filters(payer=False)) == 3.0
    await opened.close()


def test_what_the_namespace_says_is_booked_beside_what_the_pod_says() -> None:
    scene = Scene()
    scene.node("n", 2)
    scene.world.namespace("red-space", labels={"team": "red"})
    scene.world.pod("plain", node="n", namespace="red-space", bound_at=float(DAY0))
    scene.world.pod("same", node="n", namespace="red-space", bound_at=float(DAY0), labels={"team": "red"})
    scene.look(DAY0)
    paid = (("__payer__/label:team", "red"), ("__payer__/team", "red"))
    assert {each.slice.key.dims.labels for each in scene.paper.intervals} == {(*paid, ("team", "red"))}


@pytest.mark.parametrize("most", ["of the process", "of the ledger"])
async def test_who_makes_up_labels_makes_no_budget_blind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: str
) -> None:
    """Team red changes a label of its pod until there is room for no further set; then blue begins."""
    if most == "of the process":
        monkeypatch.setattr(cost, "MOST_LABEL_SETS", 2)
    scene = Scene(own=("fallow",))
    scene.node("n", 3)
    for name in ("red", "blue"):
        scene.world.namespace(f"{name}-space", labels={"team": name})
    for number in range(4):
        scene.world.pods.clear()
        scene.world.pod("hostile", node="n", namespace="red-space", bound_at=float(DAY0),
                        labels={"experiment-id": f"e{number}"})
        scene.look(DAY0 + 900 * number)
    scene.world.pod("honest", node="n", namespace="blue-space", bound_at=float(DAY0))
    scene.world.pod("own", node="n", namespace="fallow", bound_at=float(DAY0), labels={"experiment-id": "e"})
    scene.look(DAY0 + HOUR)
    monkeypatch.setattr(cost, "MOST_LABEL_SETS", 2)
    opened = await book(scene, tmp_path)
    for team in ("red", "blue"):
        assert await spent(opened, of(teams=(team,)).filters(payer=True)) == 1.0
    assert await spent(opened, of(teams=(cost.PLATFORM,)).filters(payer=False)) == 1.0
    await opened.close()


def test_our_own_pods_are_the_platforms_whatever_anybody_writes() -> None:
    scene = Scene(own=("fallow",))
    scene.node("n", 1)
    scene.world.namespace("fallow", labels={"team": "red"})
    scene.world.pod("own", node="n", namespace="fallow", bound_at=float(DAY0), labels={"team": "blue"})
    scene.look(DAY0)
    [dims] = {each.slice.key.dims for each in scene.paper.intervals}
    assert (dims.team, dims.labels) == (cost.PLATFORM, (("team", "blue"),))


def test_beyond_so_many_sets_of_labels_all_are_others_by_every_label(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "MOST_LABEL_SETS", 1)  # 10,000 take a while
    scene = Scene(labels=("app",))
    scene.node("n", 3)
    for name in ("a", "b", "c"):
        scene.world.pod(name, node="n", bound_at=float(DAY0), labels={"app": name, "team": name})
    scene.look(DAY0)
    held = {each.slice.pod_name: each.slice.key for each in scene.paper.intervals if each.slice.pod_name}
    shown = {
        name: [ledger_read.value_of(cost.read_dimension(by), key, cost.SpendState.used, name)
               for by in ("team", "label:app")]
        for name, key in held.items()
    }
    assert shown == {"a": ["a", "a"], "b": ["b", cost.OTHER], "c": [cost.OTHER, cost.OTHER]}


def test_a_label_that_somebody_names_later_is_kept_from_then_on() -> None:
    wanted = {"team"}
    scene = Scene(labels=wanted)
    scene.node("n", 1)
    scene.world.pod("a", node="n", bound_at=float(DAY0), labels={"team": "red", "model": "llama"})
    scene.look(DAY0)
    scene.look(DAY0 + 60)
    wanted.add("model")  # a CostAttribution tracks by it
    scene.look(DAY0 + 120)
    scene.look(DAY0 + 180)
    kept = {(each.t0 - DAY0, each.t1 - DAY0): dict(each.slice.key.dims.labels) for each in scene.paper.intervals}
    assert kept == {(0, 120): {"team": "red"}, (120, 180): {"team": "red", "model": "llama"}}
