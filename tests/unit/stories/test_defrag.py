"""A pod that is moved for another, on loopback: what was not done is not told, and what fails stops nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from aiohttp import web
from tests import builders
from tests.unit.clients import loopback

from fallow import names, telemetry
from fallow.act import events
from fallow.act.moving import Mover
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config
from fallow.decide import packing
from fallow.model import cluster, moving, units
from fallow.model.capacity import Machine, Needs
from fallow.model.history import AuditEntry
from fallow.observe.cluster import moved
from fallow.stories import defrag
from fallow.stories.turn import Turn

NOW = 1_800_000_000.0
RECORD = moving.MoveRecord(
    v=1, move="m", since=NOW - 60, because="x", moved=moving.MovedPod("u-any", "ml", "any"), owner="o", ready=1,
    waits=moving.MovedPod("u-picky", "ml", "picky"), target="old",
)
NEEDS = Needs(cpu=1000, memory=1000, gpus=1)


def node(name: str, state: str, **annotations: str) -> dict[str, Any]:
    marks = {f"{names.GROUP}/{key.replace('_', '-')}": text for key, text in annotations.items()}
    labels = {names.DEFRAG: state} if state else {}
    meta = {"name": name, "uid": f"n-{name}", "resourceVersion": "7", "labels": labels, "annotations": marks}
    return {"metadata": meta, "spec": {}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}


def pod(name: str, where: str = "") -> dict[str, Any]:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "controller": True}
    owner["uid"] = "o-2" if name == "picky" else "o"
    limits = {"cpu": "1", "memory": "1000Mi", "nvidia.com/gpu": "1"}
    return {
        "metadata": {
            "name": name, "namespace": "ml", "uid": f"u-{name}", "creationTimestamp": "2026-01-01T00:00:00Z",
            "ownerReferences": [owner],
        },
        "spec": {"nodeName": where, "containers": [{"name": "c", "resources": {"limits": limits, "requests": limits}}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }


class Stage:
    """`new` is left by `any`; whoever is written to may answer with a `code` of its own."""

    def __init__(self) -> None:
        self.nodes: dict[str, dict[str, Any]] = {}
        self.pods = {each["metadata"]["name"]: each for each in (pod("any", "new"), pod("picky"))}
        self.codes: dict[str, int] = {}
        self.lease: dict[str, Any] = {"metadata": {}}
        self.entries: list[AuditEntry] = []
        self.metrics, self.looks, self.held = telemetry.Telemetry(), 0, ""
        self.served: set[str] = set()
        self.capacity: cluster.Capacity | None = None

    def answer(self, asked: loopback.Asked) -> web.Response:
        name = asked.path.rpartition("/")[2]
        if asked.method != "GET":
            return web.json_response(self.nodes.get(name, {}), status=self.codes.get(name, 200))
        if asked.path == "/api/v1/nodes":
            wanted = asked.query.get("labelSelector", "").partition("=")[0]
            found = [each for each in self.nodes.values() if wanted in each["metadata"]["labels"]]
            return web.json_response({"metadata": {}, "items": found})
        if name == "pods":
            return web.json_response({"metadata": {}, "items": list(self.pods.values())})
        if "/leases/" in asked.path:
            headers = {"Date": email.utils.formatdate(NOW, usegmt=True)}
            return web.json_response(self.lease, headers=headers)
        found = (self.nodes if "/nodes/" in asked.path else self.pods).get(name)
        return web.json_response(found or {}, status=200 if found else 404)

    async def look_around(self) -> cluster.Capacity:
        self.looks += 1
        if self.capacity is None:
            raise errors.Unreachable("away")
        return self.capacity

    async def why_kept(self) -> packing.WhyKept:
        return lambda _: ""

    async def enter(self, entry: AuditEntry) -> None:
        self.entries.append(entry)

    @contextlib.asynccontextmanager
    async def open(self, *nodes: dict[str, Any]) -> AsyncIterator[Stage]:
        self.nodes = {each["metadata"]["name"]: each for each in nodes}
        async with (
            loopback.serve(self.answer) as self.server,
            kube.Api(config.Access(server=self.server.url, context="test")) as api,
        ):
            self.story = defrag.DefragStory(
                eyes=defrag.DefragEyes(
                    moves=moved.MoveEyes(api, lambda *_: "", "home"), waits=lambda _: True, served=lambda: self.served,
                    capacity=self.look_around, why_kept=self.why_kept,
                ),
                hands=Mover(api, events.Announcer(api, reporting_instance="test")), metrics=self.metrics,
                terms=defrag.DefragTerms(held=lambda _: self.held, enter=self.enter),
            )
            yield self

    async def tick(self, at: float = NOW) -> defrag.DefragCycle:
        turn = Turn(clock=lambda: at, monotonic=lambda: 0.0, budget=60, stopping=asyncio.Event(), leads=lambda: True)
        return await self.story.tick(turn)

    def written(self) -> list[str]:
        return [each.path.rpartition("/")[2] for each in self.server.asked if "/nodes/" in each.path
                and each.method != "GET"]


def leaving(**more: Any) -> dict[str, Any]:
    return node("new", names.BEING_LEFT, move=moving.write(msgspec.structs.replace(RECORD, **more)))


def movable() -> cluster.Capacity:
    world = builders.World()
    world.pod("any", node="new", created_at=NOW - 86_400, needs=NEEDS)
    world.pod("picky", node="", created_at=NOW - 86_400, needs=msgspec.structs.replace(NEEDS, products=("A100",)))
    owner = cluster.Owner("apps", "v1", "ReplicaSet", "r", "o")
    first = msgspec.structs.replace(world.pods[0], uid="u-any", ready=True, owner=owner, needs=NEEDS)
    waits = msgspec.structs.replace(world.pods[1], uid="u-picky", unschedulable_since=NOW - 601)
    machines = [
        Machine(name=name, product=product, cpu=64_000, memory=500_000, gpus=1, pods=100)
        for name, product in (("new", "A100"), ("old", "T4"))
    ]
    return cluster.Capacity(tuple(machines), (first, waits), "c", 0)


@pytest.mark.parametrize(("code", "told"), [(200, 1), (409, 0)])
async def test_an_end_is_told_and_counted_only_where_it_was_written(code: int, told: int) -> None:
    stage = Stage()
    stage.held, stage.codes["new"] = "switched off", code
    async with stage.open(leaving(), node("old", "")) as at:
        assert ("SwitchedOff" in (await at.tick()).done) is (code == 200)
    assert [entry.type for entry in stage.entries] == ["moveStopped"] * told
    assert ("SwitchedOff" in stage.metrics.text().decode()) is bool(told)


@pytest.mark.parametrize("code", [409, 200])
async def test_a_beginning_is_told_only_where_it_was_written(code: int) -> None:
    stage = Stage()
    stage.capacity, stage.codes["new"] = movable(), code
    stage.pods["picky"]["spec"]["nodeSelector"] = {names.GPU_PRODUCT: "A100"}
    async with stage.open(node("new", ""), node("old", "")) as at:
        done = (await at.tick()).done
    assert ("waits and fits where" in done, "changed meanwhile" in done) == (code == 200, code == 409)
    assert [entry.type for entry in stage.entries] == (["moveBegun"] if code == 200 else [])


@pytest.mark.parametrize("code", [403, 409, 500])
async def test_what_cannot_be_tidied_stops_neither_the_move_nor_the_rest(code: int) -> None:
    stage = Stage()
    stage.held = "switched off"
    stage.codes["stray"] = code
    async with stage.open(
        node("stray", names.BEING_HELD), leaving(), node("old", ""), node("older", names.BEING_HELD),
        node("past", "done", move_result=f"{units.rfc3339(NOW - 3700)} Moved: x"),
    ) as at:
        assert "SwitchedOff" in (await at.tick()).done
        assert at.written()[0] == "new", "what runs comes first"
        assert set(at.written()) == {"new", "stray", "older", "past"}


async def test_everything_is_looked_at_every_five_minutes_also_where_it_cannot_be_seen() -> None:
    stage = Stage()
    async with stage.open() as at:
        for second in (0.0, 10.0, 299.0, 301.0, 310.0):
            with contextlib.suppress(errors.Unreachable):
                await at.tick(NOW + second)
    assert stage.looks == 2


@pytest.mark.parametrize(("seconds", "goes"), [(3700, False), (86_500, True)])
async def test_for_a_day_nobody_is_moved_for_who_did_not_come(seconds: float, goes: bool) -> None:
    """Nor for the next pod that its people make, which has another uid, and another owner, too."""
    stage = Stage()
    stage.capacity = movable()
    result = f"{units.rfc3339(NOW - seconds)} NotTaken: x"
    async with stage.open(
        node("new", ""), node("old", ""), node("third", "done", move_result=result, moved_in_vain="ml"),
    ) as at:
        cycle = await at.tick()
        assert cycle.choice is not None
        assert (cycle.choice.moved, "no pod waits" in cycle.choice.because) == (None, True)
        assert at.written() == (["third"] if goes else [])


@pytest.mark.parametrize("ready", ["True", "False"])
async def test_who_did_not_come_is_remembered_on_the_node(ready: str) -> None:
    stage = Stage()
    stage.pods["next"] = pod("next", "old")
    stage.pods["next"]["status"]["conditions"][0]["status"] = ready
    del stage.pods["any"]
    async with stage.open(leaving(evicting=NOW - 700), node("old", "")) as at:
        assert ("NotTaken" if ready == "True" else "ReplacementLate") in (await at.tick()).done
        (sent,) = [each for each in at.server.asked if each.path == "/api/v1/nodes/new" and each.method == "PATCH"]
        assert msgspec.json.decode(sent.body)["metadata"]["annotations"][names.MOVED_IN_VAIN] == "ml"
        assert msgspec.json.decode(sent.body)["metadata"]["annotations"][names.MOVED_OWNER] == "o"


async def test_who_is_deleted_once_another_was_evicted_for_it_has_not_come_either() -> None:
    """Else its people could have one pod after the other evicted, for pods of theirs that they take away again."""
    stage = Stage()
    stage.pods["next"] = pod("next", "old")
    del stage.pods["any"], stage.pods["picky"]
    async with stage.open(leaving(evicting=NOW - 30), node("old", "")) as at:
        assert "NotTaken" in (await at.tick()).done
        (sent,) = [each for each in at.server.asked if each.path == "/api/v1/nodes/new" and each.method == "PATCH"]
        assert msgspec.json.decode(sent.body)["metadata"]["annotations"][names.MOVED_IN_VAIN] == "ml"


def picking() -> Stage:
    """A stage on which a move would begin."""
    stage = Stage()
    stage.capacity = movable()
    stage.pods["picky"]["spec"]["nodeSelector"] = {names.GPU_PRODUCT: "A100"}
    return stage


async def test_nobody_is_moved_while_a_machine_is_on_its_way_or_where_somebody_was_moved_within_the_hour() -> None:
    stage = picking()
    stage.served = {"u-picky"}
    async with stage.open(node("new", ""), node("old", "")) as at:
        await at.tick()
        assert at.written() == []
    stage = picking()
    result = f"{units.rfc3339(NOW - 60)} Moved: x"
    async with stage.open(
        node("new", ""), node("old", ""), node("third", names.MOVE_DONE, move_result=result, moved_owner="o"),
    ) as at:
        cycle = await at.tick()
        assert cycle.choice is not None
        assert cycle.choice.moved is None, "its owner has had its turn"


SHUT: dict[str, dict[str, Any]] = {
    "cordoned": {"spec": {"unschedulable": True}}, "not-ready": {"status": {}},
    "taken-by-karpenter": {"spec": {"taints": [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]}},
    "taken-by-cluster-autoscaler": {
        "spec": {"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]}
    },
}


@pytest.mark.parametrize("which", ["new", "old"])
@pytest.mark.parametrize("how", SHUT)
async def test_nothing_is_begun_where_a_node_has_closed_meanwhile(how: str, which: str) -> None:
    stage = picking()
    async with stage.open(*(node(name, "") | (SHUT[how] if name == which else {}) for name in ("new", "old"))) as at:
        assert "nothing was begun" in (await at.tick()).done
        assert at.written() == []


@pytest.mark.parametrize("how", SHUT)
async def test_nobody_is_evicted_again_to_where_nobody_can_come_any_more(how: str) -> None:
    stage = Stage()
    stage.lease = saying(NOW)
    async with stage.open(leaving(evicting=NOW - 20, refusal="a budget"), kept_there() | SHUT[how]) as at:
        assert "ChangedByOther" in (await at.tick()).done
        assert not [each for each in at.server.asked if each.path.endswith("/eviction")]


async def test_of_what_is_being_deleted_nothing_is_begun_and_what_is_begun_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "fallow")
    stage = picking()
    async with stage.open(node("new", ""), node("old", "")) as at:
        await at.tick()
        assert [line for line in caplog.messages if "would fit" in line] == [], "it is done, not advised"
    stage = picking()
    stage.pods["picky"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    async with stage.open(node("new", ""), node("old", "")) as at:
        assert "nothing was begun" in (await at.tick()).done


@pytest.mark.parametrize("since", [NOW - moving.KEPT_FOR - 1, NOW + 3600], ids=["old", "of-the-future"])
async def test_a_move_that_is_over_ends_before_anything_that_it_names_is_asked_for(since: float) -> None:
    stage = Stage()
    async with stage.open(leaving(since=since), node("old", names.BEING_HELD)) as at:
        assert "Overdue" in (await at.tick()).done
        assert not [each for each in at.server.asked if "/pods" in each.path]
        assert at.written() == ["new"], "the place on the other is tidied away in the next turn"


async def test_a_place_that_is_over_is_in_nobodys_way() -> None:
    stage = picking()
    over = moving.write(msgspec.structs.replace(PLACE, until=NOW - 1))
    async with stage.open(node("new", "", place_held=over), node("old", "", place_held=over)) as at:
        assert "waits and fits where" in (await at.tick()).done
    stage = picking()
    async with stage.open(node("new", ""), node("old", "", place_held=moving.write(PLACE))) as at:
        assert "nothing was begun" in (await at.tick()).done


PLACE = moving.HeldPlace(v=1, move="m", namespace="ml", until=NOW + 600, cpu=1, memory=1, gpus=1, shared=0, owner="o")


def kept_there() -> dict[str, Any]:
    return node("old", names.BEING_HELD, place_held=moving.write(PLACE))


def saying(at: float, kept: str = "m@new m@old", refused: str = "") -> dict[str, Any]:
    said = moving.PlacesSaid(v=1, at=at, kept=tuple(kept.split()), refused=tuple(refused.split()))
    return {"metadata": {"annotations": {f"{names.PLACES_KEPT}{at}-{kept}": moving.write(said)}}}


@pytest.mark.parametrize(("ago", "evicts"), [(5, True), (59, True), (70, False), (-30, False)])
async def test_what_the_extender_said_counts_for_a_minute_and_never_from_the_future(ago: float, evicts: bool) -> None:
    stage = Stage()
    stage.lease = saying(NOW - ago)
    async with stage.open(leaving(), kept_there()) as at:
        assert ("was evicted" in (await at.tick()).done) is evicts


@pytest.mark.parametrize(("voices", "evicts"), [
    ([saying(NOW), saying(NOW - 1)], True),
    ([saying(NOW, "m@new"), saying(NOW, "m@old")], True),  # each asked by the scheduler of one
    ([saying(NOW), saying(NOW - 1, "", "m@old")], False),
    ([saying(NOW), saying(NOW - 1, "m@new", "m@old")], False),
    ([saying(NOW), saying(NOW - 1, "", "other@old")], True),
    ([saying(NOW), saying(NOW - 3600, "", "m@old")], True),  # of a process that ended
    ([saying(NOW, "m@new")], False),
    ([saying(NOW), {"metadata": {"annotations": {f"{names.PLACES_KEPT}x": "{"}}}], False),
], ids=["both", "one-each", "against", "partly-against", "of-another", "long-ago", "half", "unreadable"])
async def test_of_two_extenders_none_may_say_that_it_cannot_keep_a_place(
    voices: list[dict[str, Any]], evicts: bool
) -> None:
    stage = Stage()
    said = {key: text for each in voices for key, text in each["metadata"]["annotations"].items()}
    stage.lease = {"metadata": {"annotations": said}}
    async with stage.open(leaving(), kept_there()) as at:
        assert ("was evicted" in (await at.tick()).done) is evicts
