"""Places kept for pods that are moved: who may take them, whom they keep away, and what the extender says of them."""

from __future__ import annotations

import asyncio
import email.utils
import json
import time
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.unit.clients import loopback
from tests.unit.doors.extender.test_extender import Stage, node, pod, staged

from fallow import names
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config
from fallow.doors.extender import advice, serve
from fallow.doors.extender.herald import SAY_EVERY, Herald
from fallow.model import moving, units
from fallow.observe.cluster import tenants
from fallow.settings.packing import ExtenderSettings

PLACE: dict[str, Any] = {
    "v": 1, "move": "m", "namespace": "ml", "cpu": 4000, "memory": 8192, "gpus": 1, "shared": 0, "owner": "o-1",
    "leaving": "gone",
}


def holding(name: str, has: int = 1, seconds: float = moving.KEPT_FOR, **more: Any) -> dict[str, Any]:
    made = node(name, has)
    place = moving.HeldPlace(**{**PLACE, "until": time.time() + seconds, **more})
    made["metadata"]["annotations"] = {names.PLACE_HELD: moving.write(place)}
    return made


def owned(name: str, owner: str = "o-1", where: str = "", **more: Any) -> dict[str, Any]:
    made = pod(name, where, **more)
    made["metadata"]["ownerReferences"] = [
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": owner, "controller": True}
    ]
    return made


def asking(made: dict[str, Any], scheduler: str = names.DEFAULT_SCHEDULER) -> dict[str, Any]:
    return {**made, "spec": {**made["spec"], "schedulerName": scheduler}}


async def passes(stage: Stage, given: dict[str, Any]) -> bool:
    answer = await stage.ask("filter", asking(given), "kept", "other")
    return "kept" in answer["NodeNames"]


async def test_a_place_is_kept_for_its_pod_alone() -> None:
    async with staged(holding("kept"), node("other", 1)) as stage:
        answer = await stage.ask("filter", pod("thief"), "kept", "other")
        assert (answer["NodeNames"], list(answer["FailedNodes"])) == (["other"], ["kept"])
        assert await passes(stage, owned("comes"))
        assert not await passes(stage, owned("comes", "o-2"))
        elsewhere = owned("comes")
        elsewhere["metadata"]["namespace"] = "theirs"
        assert not await passes(stage, elsewhere), "an owner's uid alone is easily said"
        vip = pod("vip")
        vip["spec"]["priority"] = 1
        assert await passes(stage, vip), "who has more priority is not kept away"
        scores = await stage.ask("prioritize", owned("comes"), "other", "kept")
        assert scores["kept"] == 10 > scores["other"]


async def test_beside_it_there_may_be_room_for_others() -> None:
    async with staged(holding("kept", 2), node("other", 1)) as stage:
        assert await passes(stage, pod("small"))
        assert not await passes(stage, pod("large", count=2))


async def test_who_leaves_counts_as_gone_and_who_waits_has_its_place() -> None:
    there = pod("leaves", "kept")
    place = {"owner": "", "pod": "u-waits", "leaving": there["metadata"]["uid"]}
    waits = pod("waits")
    waits["metadata"]["uid"] = "u-waits"
    async with staged(holding("kept", **place), node("other", 1), there) as stage:
        assert stage.desk.find_kept() == {}, "it could, and nobody has asked yet"
        assert await passes(stage, waits)
        assert stage.desk.find_kept() == {"m@kept": True}
        assert not await passes(stage, pod("thief"))
        stage.server.put("pods", {**waits, "spec": {**waits["spec"], "nodeName": "kept"}})
        await stage.until(lambda: stage.eyes.taken)
        assert stage.desk.find_kept() == {}


async def test_a_sibling_that_was_there_before_does_not_take_the_place() -> None:
    before = owned("sibling", where="kept")
    before["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    after = owned("comes", where="kept")
    after["metadata"]["creationTimestamp"] = units.rfc3339(time.time() + 5)
    async with staged(holding("kept", 2), node("other", 1), before) as stage:
        stage.server.put("pods", {**before, "status": {"phase": "Running", "podIP": "10.0.0.1"}})
        stage.server.put("pods", pod("sign", "other"))
        await stage.until(lambda: any(each.node == "other" for each in stage.eyes.tenants.values()))
        assert (stage.eyes.taken, await passes(stage, pod("large", count=2))) == (set(), False)
        stage.server.put("pods", after)
        await stage.until(lambda: stage.eyes.taken == {"m@kept"})


@pytest.mark.parametrize(("more", "said"), [
    ({"seconds": -1.0}, {}), ({"seconds": 10 * moving.KEPT_FOR}, {}), ({"products": ("H100",)}, {"m@kept": False}),
    ({"gpus": 2}, {"m@kept": False}), ({"cpu": 1 << 50}, {"m@kept": False}), ({"gpus": -1}, {"m@kept": False}),
    ({"memory": -5}, {"m@kept": False}),
], ids=["over", "of-nobody-of-ours", "wrong-model", "too-large", "absurd", "negative", "negative-memory"])
async def test_what_cannot_be_kept_is_not_said_to_be(more: dict[str, Any], said: dict[str, bool]) -> None:
    async with staged(holding("kept", **more), node("other", 1)) as stage:
        assert stage.desk.find_kept() == said, "whether or not anybody asks"
        await passes(stage, pod("asks"))
        assert stage.desk.find_kept() == said


async def test_who_is_in_doubt_says_that_nothing_is_kept_also_where_nobody_asks_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with staged(holding("kept"), node("other", 1)) as stage:
        assert stage.desk.find_kept() == {}
        monkeypatch.setattr(tenants, "OLDEST", -1.0)  # whatever was heard is too old
        assert stage.desk.find_kept() == {"m@kept": False}


async def test_a_place_is_said_to_be_kept_only_where_its_own_scheduler_asks_and_did_lately(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with staged(holding("kept", scheduler="mine"), node("other", 1)) as stage:
        for scheduler, kept in (("theirs", {}), ("mine", {"m@kept": True})):
            await stage.ask("filter", asking(pod("p"), scheduler), "kept", "other")
            assert stage.desk.find_kept() == kept
        later = time.monotonic() + advice.ASKED_WITHIN + 1
        monkeypatch.setattr(stage.desk, "_monotonic", lambda: later)
        assert stage.desk.find_kept() == {}


async def test_a_defect_means_that_nothing_is_said_to_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    async with staged(holding("kept"), node("other", 1)) as stage:
        await passes(stage, pod("asks"))
        assert stage.desk.room is not None
        monkeypatch.setattr(stage.desk.room, "has_place", lambda *_: 1 // 0)
        assert stage.desk.find_kept() == {"m@kept": False}
        assert 'packing_fallback_total{reason="Defect"}' in await stage.metrics()


@pytest.mark.parametrize("seconds", [-1.0, 10 * moving.KEPT_FOR])
async def test_a_place_that_is_over_or_absurd_keeps_nobody_away(seconds: float) -> None:
    async with staged(holding("kept", seconds=seconds), node("other", 1)) as stage:
        assert await passes(stage, pod("comes"))


async def test_garbage_on_a_node_is_no_place() -> None:
    made = node("kept", 1)
    made["metadata"]["annotations"] = {names.PLACE_HELD: "{" * 1000}
    async with staged(made, node("other", 1)) as stage:
        assert stage.eyes.held == {}
        assert await passes(stage, pod("comes"))


class Desk:
    def __init__(self) -> None:
        self.kept: dict[str, bool] = {}

    def find_kept(self) -> dict[str, bool]:
        return self.kept


@pytest.mark.parametrize("code", [200, 403, 404])
async def test_what_is_kept_is_said_in_the_lease_and_only_when_it_is_kept(code: int) -> None:
    def answer(asked: loopback.Asked) -> web.Response:
        headers = {"Date": email.utils.formatdate(1_600_000_000, usegmt=True)}
        return web.json_response({"metadata": {}}, status=200 if asked.method == "GET" else code, headers=headers)

    desk = Desk()
    async with loopback.serve(answer) as server, kube.Api(config.Access(server=server.url, context="test")) as api:
        herald = Herald(desk, api, "home")  # type: ignore[arg-type]
        await herald.look(0.0)
        assert not server.asked
        desk.kept = {"m@b": True, "m@a": True, "m@c": False}
        await herald.look(0.5)
        assert not server.asked, "what time it is there nobody has said yet"
        await api.request("GET", "/version")
        server.asked.clear()
        for now in (1.0, 2.0, 2.0 + SAY_EVERY):
            await herald.look(now)
        said = [(each.method, each.path) for each in server.asked]
        path = f"/apis/coordination.k8s.io/v1/namespaces/home/leases/{names.EXTENDER_LEASE}"
        assert set(said) == {("PATCH", path)}
        ((key, text),) = json.loads(server.asked[0].body)["metadata"]["annotations"].items()
        told = moving.read_said(text)
        assert told is not None
        assert (key.startswith(names.PLACES_KEPT), told.kept, told.refused) == (True, ("m@a", "m@b"), ("m@c",))
        assert abs(told.at - 1_600_000_000) < 60, "by the server's clock"
        assert len(said) == (2 if code == 200 else 3), "a failure is tried again; what was said is said again later"


async def test_each_process_has_its_own_word_and_takes_away_what_others_left() -> None:
    lease: dict[str, str] = {"somebody.else/key": "stays", f"{names.PLACES_KEPT}old": "{", f"{names.PLACES_KEPT}dead": (
        moving.write(moving.PlacesSaid(v=1, at=1_600_000_000 - 3700, kept=("m@a",), refused=()))
    )}

    def answer(asked: loopback.Asked) -> web.Response:
        said = json.loads(asked.body)["metadata"]["annotations"] if asked.method == "PATCH" else {}
        for key, text in said.items():
            lease.pop(key, None)
            lease.update({key: text} if text is not None else {})
        headers = {"Date": email.utils.formatdate(1_600_000_000, usegmt=True)}
        return web.json_response({"metadata": {"annotations": lease}}, headers=headers)

    desks = Desk(), Desk()
    async with loopback.serve(answer) as server, kube.Api(config.Access(server=server.url, context="test")) as api:
        await api.request("GET", "/version")
        first, second = (Herald(desk, api, "home") for desk in desks)  # type: ignore[arg-type]
        desks[0].kept, desks[1].kept = {"m@a": True}, {"m@a": False}
        for now in (0.0, SAY_EVERY):
            await first.look(now)
            await second.look(now)
        voices = [moving.read_said(text) for key, text in lease.items() if key.startswith(names.PLACES_KEPT)]
        assert {(each.kept, each.refused) for each in voices if each is not None} == {(("m@a",), ()), ((), ("m@a",))}
        assert len(voices) == 2, "of who is gone, and of nobody, nothing is left"
        desks[0].kept = {}
        await first.look(SAY_EVERY + 1)
        assert len(lease) == 2, "it has nothing to say any more"


async def test_the_extender_ends_with_any_part_of_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Beside a scheduler it is started again; half of it would go unnoticed."""

    async def fail(_: Herald) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(Herald, "run", fail)
    (tmp_path / "config").write_text(json.dumps({
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}], "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "users": [{"name": "u", "user": {}}],
    }))
    options = ExtenderSettings(
        address=("127.0.0.1", 0), cert_dir=None, clients=(), health_address=None, policy="BestFit", log_format="text",
        kubeconfig=str(tmp_path / "config"), context=None,
    )
    async with asyncio.timeout(20):
        assert await serve.run(options) == 1
    assert "a defect" in caplog.text
