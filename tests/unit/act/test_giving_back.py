"""Nodes when fallow is removed: what is left of moves goes, and a list that begins anew touches nobody twice."""

from typing import Any

import msgspec
import pytest
from aiohttp import web
from tests.unit.clients import loopback

from fallow import names
from fallow.act import emptying, events, giving_back, leaving
from fallow.act.moving import Mover
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config


def node(name: str, labels: dict[str, str], **annotations: str) -> dict[str, Any]:
    marks = {f"{names.GROUP}/{key.replace('_', '-')}": text for key, text in annotations.items()}
    meta = {"name": name, "uid": f"n-{name}", "resourceVersion": "7", "labels": labels, "annotations": marks}
    return {"metadata": meta, "spec": {}}


NODES = [
    node("plain", {}), node("past", {names.DEFRAG: names.MOVE_DONE}, moved_owner="o", moved_in_vain="ml"),
    node("kept", {names.DEFRAG: names.BEING_HELD}, place_held="{"),
]


async def test_places_and_marks_of_moves_go_once_each_also_where_the_list_begins_anew() -> None:
    pages = iter([(NODES[:2], "x"), None, (NODES[:2], "y"), (NODES[2:], "")])

    def answer(asked: loopback.Asked) -> web.Response:
        if asked.method != "GET":
            return web.json_response(NODES[0])
        page = next(pages)
        if page is None:
            return web.json_response({"kind": "Status", "code": 410, "reason": "Expired"}, status=410)
        return web.json_response({"metadata": {"continue": page[1]}, "items": page[0]})

    async with loopback.serve(answer) as server, kube.Api(config.Access(server=server.url, context="test")) as api:
        announcer = events.Announcer(api, reporting_instance="test")
        hands = emptying.Emptier(api, announcer), leaving.LeavingHands(api, announcer), Mover(api, announcer)
        told = [each async for each in giving_back.give_nodes_back(api, *hands, 0.0)]
        patches = {each.path.rpartition("/")[2]: each.body for each in server.asked if each.method == "PATCH"}
    assert [each.given_back for each in told] == [
        ("node past is no longer marked as one that a pod was moved from",),
        ("a place is no longer kept on node kept",),
    ]
    assert set(patches) == {"past", "kept"}
    sent = msgspec.json.decode(patches["past"])["metadata"]
    assert sent["labels"] == {names.DEFRAG: None}
    assert {names.MOVED_OWNER, names.MOVED_IN_VAIN} <= set(sent["annotations"])


async def test_what_is_still_held_is_said_with_the_reason_and_a_mark_that_stays_is_none_that_went() -> None:
    held = [*NODES[1:], node("full", {names.CONSOLIDATION: names.BEING_EMPTIED}, emptying="{")]
    refusal = {"kind": "Status", "code": 403, "reason": "Forbidden", "message": "may not patch nodes"}

    def answer(asked: loopback.Asked) -> web.Response:
        listed = web.json_response({"metadata": {}, "items": held})
        return listed if asked.method == "GET" else web.json_response(refusal, status=403)

    async with loopback.serve(answer) as server, kube.Api(config.Access(server=server.url, context="test")) as api:
        announcer = events.Announcer(api, reporting_instance="test")
        hands = emptying.Emptier(api, announcer), leaving.LeavingHands(api, announcer), Mover(api, announcer)
        told = [each async for each in giving_back.give_nodes_back(api, *hands, 0.0)]
    assert [each.given_back for each in told] == [(), (), ()]
    said = [sentence for each in told for sentence in each.held]
    assert [sentence.partition(": ")[0] for sentence in said] == [
        "node past is still marked as one that a pod was moved from", "a place is still kept on node kept",
        "node full is still to be given back",
    ]
    assert all("may not patch nodes" in sentence for sentence in said)


EMPTIED = {names.CONSOLIDATION: names.BEING_EMPTIED}
OURS = [{"key": names.SCALE_DOWN, "effect": "NoSchedule"}]


@pytest.mark.parametrize(("there", "taints", "is_freed"), [
    (node("n", {}, scale_down="{"), OURS, True), (node("n", {}, spot_record="{"), OURS, True),
    (node("n", {}, scale_down="{"), [], False), (node("n", EMPTIED, emptying="{"), [], True),
    (node("n", {}, emptying="{"), [], False),
], ids=["drained", "taken-back", "another's", "emptied", "emptied-by-whom"])
async def test_a_record_that_cannot_be_read_leaves_no_cordon_of_ours_behind(
    there: dict[str, Any], taints: list[dict[str, str]], is_freed: bool
) -> None:
    """Nobody would be left who could say why the node is closed."""
    there["spec"] = {"unschedulable": True, "taints": taints}
    marks = there["metadata"]["annotations"]

    def answer(asked: loopback.Asked) -> web.Response:
        is_list = asked.path.endswith("/nodes")
        return web.json_response({"metadata": {}, "items": [there]} if is_list else there)

    async with loopback.serve(answer) as server, kube.Api(config.Access(server=server.url, context="test")) as api:
        announcer = events.Announcer(api, reporting_instance="test")
        hands = emptying.Emptier(api, announcer), leaving.LeavingHands(api, announcer), Mover(api, announcer)
        (told,) = [each async for each in giving_back.give_nodes_back(api, *hands, 0.0)]
        (sent,) = [msgspec.json.decode(each.body) for each in server.asked if each.method == "PATCH"]
    assert (len(told.given_back), told.held) == (1, ())
    assert ("unschedulable" in sent.get("spec", {})) is is_freed
    assert set(marks) <= {key for key, text in sent["metadata"]["annotations"].items() if text is None}
