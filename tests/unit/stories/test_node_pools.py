"""NodePools of Karpenter under budgets that throttle, turn by turn: a pretend API server, and the ledger that a test
says. What is there before and after is compared as the server has it."""

from __future__ import annotations

import contextlib
import copy
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.stories import test_budgets as offices

from fallow import names, verbs
from fallow.act import giving_back
from fallow.act.budgets import node_pools as hands
from fallow.clients import errors
from fallow.decide.budgets.node_pools import PoolEdits
from fallow.model.node_pools import PoolRecord, write
from fallow.model.seen import ABSENT, Known
from fallow.observe import node_pools
from fallow.observe.scaling import drivers
from fallow.sim.servers import store as stores

Object = dict[str, Any]
GPU, KEY = names.GPU, names.ORIGINAL_LIMITS
ANY = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
    "metadata": {"name": "nodepools.karpenter.sh"}, "spec": {
        "group": "karpenter.sh", "scope": "Cluster", "names": {"plural": "nodepools", "kind": "NodePool"},
        "versions": [{
            "name": "v1", "served": True, "storage": True, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": ANY, "status": ANY}}},
        }],
    },
}
WHOLE = {"scope": {"type": "cluster"}}


def throttling(**rule: Any) -> Object:
    return {"mode": "throttle", "gracePeriod": "0s", "throttleConfig": rule or {"blockOnDemand": True}}


class Ground:
    """An office in a cluster that Karpenter drives."""

    def __init__(self, office: offices.Office) -> None:
        self.office, self.store = office, office.store
        self.store.create(copy.deepcopy(DEFINITION))
        self.set(PoolEdits.done)

    def set(self, pools: PoolEdits) -> None:
        """A process begins, with this said by the operator."""
        self.office.terms = msgspec.structs.replace(
            self.office.terms, pools=pools, enforces=pools is not PoolEdits.said
        )
        self.office.start()

    def pool(
        self, name: str, *tiers: str, limits: Any = None, resources: Any = None, key: str = names.KARPENTER_CAPACITY,
        **spec: Any,
    ) -> Object:
        requirements = [{"key": key, "operator": "In", "values": list(tiers)}] if tiers else []
        more = {} if limits is None else {"limits": limits}
        made = {
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": name},
            "spec": {"template": {"spec": {"requirements": requirements}}, "weight": 10, **more, **spec},
            "status": {"resources": {GPU: "4", "nodes": "2"} if resources is None else resources},
        }
        self.store.create(copy.deepcopy(made))
        return self.find(name)

    def find(self, name: str) -> Object:
        found = self.store.find(stores.Key("karpenter.sh", "NodePool", "", name))
        assert found is not None
        return copy.deepcopy(found.object)

    def write(self, name: str, spec: Object | None = None, annotations: Object | None = None) -> None:
        """By somebody else."""
        found = self.find(name)
        found["spec"].update(spec or {})
        found["metadata"].setdefault("annotations", {}).update(annotations or {})
        self.store.write(stores.Key("karpenter.sh", "NodePool", "", name), found, stores.Writer("test"))

    def record(self, name: str) -> Object | None:
        text = (self.find(name)["metadata"].get("annotations") or {}).get(KEY)
        return None if text is None else json.loads(text)

    def events(self) -> list[tuple[str, str, str]]:
        found = (each.object for each in self.store.entries("", "Event"))
        mine = [each for each in found if each["involvedObject"]["kind"] == "NodePool"]
        mine.sort(key=lambda each: int(each["metadata"]["resourceVersion"]))
        return [(each["involvedObject"]["name"], each["reason"], each["message"]) for each in mine]


@contextlib.asynccontextmanager
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    async with offices.town(tmp_path) as town:
        yield Ground(town.office)


async def throttled(place: Ground, **rule: Any) -> None:
    place.office.put("all", **WHOLE, enforcement=throttling(**rule))
    await place.office.tick(2000.0)
    assert place.office.status("all")["enforcementActive"] is True


LIMITS = [None, {}, {"cpu": "1k"}, {GPU: "16", "cpu": 100}, {GPU: 8}]


@pytest.mark.accepts("cost", 17)
@pytest.mark.parametrize("limits", LIMITS, ids=str)
async def test_under_a_throttle_it_gets_no_more_than_it_has_and_then_all_that_it_had(
    tmp_path: Path, limits: Any
) -> None:
    async with ground(tmp_path) as place:
        before = place.pool("gpu", "on-demand", limits=limits)
        others = [place.pool("spot", "spot"), place.pool("both", "spot", "on-demand"), place.pool("mute")]
        await throttled(place)
        held = place.find("gpu")
        assert held["spec"] == {**before["spec"], "limits": {**(limits or {}), GPU: "4"}}
        record = place.record("gpu")
        assert record is not None
        assert (record["limits"], record["gpus"], record["budgets"]) == (limits, "4", ["all"])
        await place.office.tick()
        assert place.find("gpu") == held  # once
        await place.office.tick(10.0)
        after = place.find("gpu")
        assert after["spec"] == before["spec"]
        assert place.record("gpu") is None
        assert [place.find(each["metadata"]["name"]) for each in others] == others
        assert [each[:2] for each in place.events()] == [("gpu", "NodePoolHeld"), ("gpu", "NodePoolGivenBack")]
        assert "the 4 GPUs that it has, by its limits: budget all" in place.events()[0][2]


@pytest.mark.parametrize("end", ["period", "override", "deleted", "off", "said", "amount", "mode", "narrowed", "stale"])
async def test_whatever_ends_it_gives_back_also_after_a_restart_that_forgot_all(tmp_path: Path, end: str) -> None:
    async with ground(tmp_path) as place:
        office, before = place.office, place.pool("gpu", "on-demand", limits={"cpu": "1k"})
        await throttled(place)
        assert place.record("gpu") is not None
        place.set({"off": PoolEdits.off, "said": PoolEdits.said}.get(end, PoolEdits.done))
        at = None
        match end:
            case "period":
                at = offices.DAY0 + 30 * offices.DAY + 60
                office.ledger.spent["ml"] = 1.0
            case "override":
                key, until = stores.Key(names.GROUP, "CostBudget", "", "all"), "2026-11-03T00:00:00Z"
                said = {names.OVERRIDE_UNTIL: until, names.OVERRIDE_BY: "ada", names.OVERRIDE_REASON: "release"}
                found = office.object("all")
                found = {**found, "metadata": {**found["metadata"], "annotations": said}}
                office.store.write(key, found, stores.Writer("test"))
            case "deleted":
                office.store.delete(stores.Key(names.GROUP, "CostBudget", "", "all"), stores.Writer("test"))
            case "amount":
                office.change({"budget": {"amount": 5000, "period": "30d"}}, "all")
            case "mode":
                office.change({"enforcement": {"mode": "alert"}}, "all")
            case "narrowed":
                office.change({"scope": {"type": "namespace", "namespaces": ["ml"]}}, "all")
            case "stale":
                office.ledger.until = office.now - 3600
        await office.tick(at=at)
        assert place.find("gpu")["spec"] == before["spec"]
        assert place.record("gpu") is None


async def test_what_somebody_else_wrote_meanwhile_stays_and_is_not_written_again(tmp_path: Path) -> None:
    async with ground(tmp_path) as place:
        place.pool("gpu", "on-demand", limits={GPU: "16"})
        await throttled(place)
        place.write("gpu", {"limits": {GPU: "12", "cpu": "5"}})
        await place.office.tick()
        assert place.find("gpu")["spec"]["limits"] == {GPU: "12", "cpu": "5"}
        await place.office.tick(10.0)
        assert place.find("gpu")["spec"]["limits"] == {GPU: "12", "cpu": "5"}
        assert place.record("gpu") is None
        assert place.events()[-1][2].startswith("it keeps its limits, because somebody else changed that of GPUs")


@pytest.mark.parametrize("rule", [{"maxSpotInstances": 0}, {"maxGPUs": 0}, {"preferOnDemand": True}], ids=str)
async def test_caps_are_kept_by_gates_alone(tmp_path: Path, rule: Object) -> None:
    async with ground(tmp_path) as place:
        made = [place.pool("gpu", "on-demand"), place.pool("spot", "spot")]
        await throttled(place, **rule)
        assert [place.find(each["metadata"]["name"]) for each in made] == made


async def test_a_narrower_budget_touches_no_pool_and_its_status_says_why(tmp_path: Path) -> None:
    async with ground(tmp_path) as place:
        made = place.pool("gpu", "on-demand")
        place.office.put("team", enforcement=throttling())
        await place.office.tick(2000.0)
        assert place.office.conditions("team")["Enforcing"] == ("True", "Enforced")
        said = place.office.message("Enforcing", "team")
        assert said.endswith("NodePools stay as they are, because they serve others, too")
        assert place.find("gpu") == made


async def test_a_dry_run_says_what_it_would_do_once_and_writes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with ground(tmp_path) as place:
        made = place.pool("gpu", "on-demand")
        place.set(PoolEdits.said)
        place.office.put("all", **WHOLE, enforcement=throttling())
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                await place.office.tick(2000.0)
        said = [each.getMessage() for each in caplog.records if "NodePool" in each.getMessage()]
        needs = "that needs --cost-enforcement true and --run-mode scale-down"
        assert said == [f"NodePool gpu would get no more than the GPUs that it has: {needs}"]
        assert place.find("gpu") == made


async def test_frozen_it_holds_none_anew_and_still_gives_back(tmp_path: Path) -> None:
    async with ground(tmp_path) as place:
        before = place.pool("gpu", "on-demand")
        await throttled(place)
        place.office.frozen = "frozen until tomorrow: it is removed"
        made = place.pool("late", "on-demand")
        await place.office.tick()
        assert place.find("late") == made
        await place.office.tick(10.0)
        assert place.find("gpu")["spec"] == before["spec"]


async def test_who_does_not_lead_writes_nothing(tmp_path: Path) -> None:
    async with ground(tmp_path) as place:
        made = place.pool("gpu", "on-demand")
        place.office.leads = False
        place.office.put("all", **WHOLE, enforcement=throttling())
        await place.office.tick(2000.0)
        assert place.find("gpu") == made


async def test_what_is_not_seen_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with ground(tmp_path) as place:
        office, made = place.office, place.pool("gpu", "on-demand")
        office.server.refused, office.server.refusal = frozenset({"nodepools"}), 403
        office.put("all", **WHOLE, enforcement=throttling())
        with caplog.at_level(logging.WARNING):
            await office.tick(2000.0)
            await office.tick()
        assert place.find("gpu") == made
        assert caplog.text.count("NodePools stay as they are: NodePools are not seen: nodepools cannot be read") == 1
        office.server.refused = frozenset()
        await office.tick()
        held = place.find("gpu")
        assert held != made
        office.server.refused = frozenset({"nodepools"})
        await office.tick(10.0)
        assert place.find("gpu") == held
        office.start()
        office.server.refused = frozenset({"costbudgets"})
        assert (await office.tick()).failure
        assert place.find("gpu") == held
        office.server.refused = frozenset()
        await office.tick()
        assert place.find("gpu")["spec"] == made["spec"]


async def test_another_version_than_the_one_that_was_seen_is_not_written_on(tmp_path: Path) -> None:
    async with ground(tmp_path) as place:
        place.pool("gpu", "on-demand")
        seen = await node_pools.find(place.office.api)
        assert isinstance(seen, Known)
        place.write("gpu", {"weight": 11})
        changed = place.find("gpu")
        with pytest.raises(errors.Conflict):
            await hands.hold(place.office.api, seen.value[0], 4, ("all",), 0.0)
        assert place.find("gpu") == changed


async def test_switched_off_it_looks_for_what_is_to_be_given_back_once_in_a_term(tmp_path: Path) -> None:
    async with ground(tmp_path) as place:
        office, before = place.office, place.pool("gpu", "on-demand")
        place.set(PoolEdits.off)
        await office.tick(1.0)
        record = PoolRecord(limits=None, gpus="4", budgets=("all",), since="2026-11-02T00:00:00Z")
        place.write("gpu", {"limits": {GPU: "4"}}, {KEY: write(record)})
        await office.tick()
        assert place.record("gpu") is not None
        office.ledger.term += 1  # somebody else led meanwhile, who may hold some
        await office.tick()
        assert place.find("gpu")["spec"] == before["spec"]
        assert place.record("gpu") is None


async def test_without_karpenter_nothing_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with offices.town(tmp_path) as town:
        town.office.terms = msgspec.structs.replace(town.office.terms, pools=PoolEdits.done)
        town.office.start()
        town.office.put("all", **WHOLE, enforcement=throttling())
        await town.office.tick(2000.0)
        assert await node_pools.find(town.office.api) == ABSENT
        assert "NodePool" not in caplog.text


@pytest.mark.parametrize(("spec", "status", "expected"), [
    ({}, None, (None, None)),
    ({"requirements": [{"key": names.KARPENTER_CAPACITY, "operator": "NotIn", "values": ["spot"]}]}, {}, (None, None)),
    ({"requirements": [{"key": names.KARPENTER_CAPACITY, "operator": "Exists"}]}, {"cpu": "4"}, (None, 0)),
    ({"requirements": [{"key": names.KARPENTER_CAPACITY, "operator": "In", "values": ["cheap"]}]}, {}, (None, None)),
    ({"requirements": [{"key": "node.kubernetes.io/role", "operator": "In", "values": ["spot"]}]}, {}, (None, None)),
    ({"requirements": [
        {"key": names.KARPENTER_CAPACITY, "operator": "In", "values": ["spot", "on-demand"]},
        {"key": names.KARPENTER_CAPACITY, "operator": "In", "values": ["on-demand", "reserved"]},
    ]}, {GPU: "8"}, ({"on-demand"}, 8)),
    ({"requirements": [
        {"key": names.KARPENTER_CAPACITY, "operator": "In", "values": ["spot"]},
        {"key": names.KARPENTER_CAPACITY, "operator": "In", "values": ["on-demand"]},
    ]}, {GPU: "0.5"}, (None, None)),
], ids=range(7))
async def test_what_a_pool_does_not_say_is_not_known(tmp_path: Path, spec: Any, status: Any, expected: Any) -> None:
    async with ground(tmp_path) as place:
        made: Object = {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "x"}}
        place.store.create({**made, "spec": {"template": {"spec": spec}}, "status": {"resources": status}})
        found = await node_pools.find(place.office.api)
        assert isinstance(found, Known)
        assert (found.value[0].tiers, found.value[0].gpus) == expected


async def test_lift_and_uninstall_give_back_with_the_rights_of_who_asks(tmp_path: Path) -> None:
    async with ground(tmp_path) as place:
        api, before = place.office.api, place.pool("gpu", "on-demand", limits={GPU: "9"})
        await throttled(place)
        assert await verbs.free_pools(api, "another") == ((), ())
        assert await verbs.free_pools(api, "all") == (("NodePool gpu has its own limits back",), ())
        assert place.find("gpu")["spec"] == before["spec"]
        await place.office.tick()
        assert place.record("gpu") is not None  # while it restricts, it comes again
        place.pool("odd", "spot")
        place.write("odd", annotations={KEY: "{"})
        told = [each async for each in giving_back.give_pools_back(api, node_pools.find)]
        assert [each.given_back for each in told if each.given_back] == [("NodePool gpu has its own limits back",)]
        [held] = [sentence for each in told for sentence in each.held]
        assert held.startswith("NodePool odd is still held: its annotation gpuautoscaler.io/original-limits cannot be")
        assert place.find("gpu")["spec"] == before["spec"]


async def test_who_waits_for_such_a_pool_is_told_of_the_budget(tmp_path: Path) -> None:
    async with ground(tmp_path) as place:
        place.pool("gpu", "on-demand", limits={"cpu": "8"}, resources={GPU: "4", "cpu": "8"})
        await throttled(place)
        seen = await drivers.DriverEyes(place.office.api).look((), 0.0)
        assert isinstance(seen, Known)
        said = {each.resource: each.said for each in seen.value.limits["gpu"]}
        assert said == {
            "cpu": "has 8 of at most 8 cpu",
            GPU: "has 4 of at most 4 nvidia.com/gpu, while budget all is exceeded",
        }
