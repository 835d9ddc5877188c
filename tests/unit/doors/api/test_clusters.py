"""Several clusters on one page, over the wire: sums of those that are seen, and a cluster that is away is never 0."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from aiohttp import web
from tests import cost_scenes
from tests.builders import NOW
from tests.unit.clients import loopback
from tests.unit.doors.api.serving import Client, serving
from tests.unit.doors.api.test_reads import MANDATE, make_world

from fallow import settings
from fallow.doors.answers.cost_books import CostBooks
from fallow.model import units
from fallow.model.units import DAY

GPUS_SAID = {
    "total": 100, "busy": 60, "idle": 10, "told": 5, "kept": 4, "left": 1, "unknown": 8, "free": 10, "freed": 2,
}
OVERVIEW = {
    "now": "2026-11-15T12:00:00Z", "asOf": "2026-11-15T11:59:00Z", "intervalSeconds": 180, "mode": "acting",
    "version": "9.9.9", "currency": "USD", "a further field": [1],
    "gpus": GPUS_SAID,
}
COSTS = {"currency": "USD", "perHour": 250.5, "monthToDate": 1000.25, "projected": 2000.0, "savedThisMonth": 300.1}
SAVINGS = {"days": [], "gpuHours": 70.5, "mode": "acting", "source": "books", "since": None, "until": None}
GPUS = ("total", "busy", "idle", "unknown", "free")


class PretendPeer:
    """What fallow elsewhere would say; `answers` by path, None: 503 as where no books are kept."""

    def __init__(self, **answers: Any) -> None:
        pages = {"overview": OVERVIEW, "savings": SAVINGS, "cost/summary": COSTS, **answers}
        self.answers = {f"/api/v1/{name}": answer for name, answer in pages.items()}
        self.asked: list[web.Request] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request)
        found = self.answers[request.path]
        if isinstance(found, web.StreamResponse):
            return web.Response(status=found.status, body=found.body, content_type="application/json")
        if callable(found):
            return await found()
        if found is None:
            return web.json_response({"error": {"code": "NoBooks", "message": "costs are not kept here"}}, status=503)
        return web.json_response(found)


@contextlib.asynccontextmanager
async def beside(*peers: PretendPeer, flags: Any = None, **said: Any) -> AsyncIterator[Client]:
    """A dashboard of ours that shows these peers."""
    async with contextlib.AsyncExitStack() as stack:
        for peer in peers:
            peer.url = (await stack.enter_async_context(loopback.serve(peer.answer))).url
        named = tuple(f"peer-{at}={peer.url}" for at, peer in enumerate(peers, 1))
        given = {"peer": named, "cluster_name": "home", **(flags or {})}
        yield await stack.enter_async_context(serving(make_world(), MANDATE, flags=given, **said))


async def test_figures_of_all_clusters_stand_side_by_side_and_are_summed():
    peer = PretendPeer()
    async with cost_scenes.opened(cost_scenes.example()) as ledger, beside(
        peer, books=CostBooks(ledger=ledger)
    ) as client:
        own, page = await client.get("/api/v1/overview"), await client.get("/api/v1/all-clusters")
        books = await client.get("/api/v1/cost/summary")
    home, other = page["clusters"]
    assert (home["name"], home["url"], own["peers"]) == ("home", None, 1)
    assert (home["total"], home["busy"]) == (own["gpus"]["total"], own["gpus"]["busy"])
    assert home["idle"] == sum(own["gpus"][name] for name in ("idle", "told", "kept", "left"))
    assert (other["name"], other["sight"], other["version"]) == ("peer-1", "seen", "9.9.9")
    assert other["measuredSeconds"] == 60
    assert [other[name] for name in GPUS] == [100, 60, 20, 8, 12]
    sums = page["sums"]
    assert [sums[name] for name in GPUS] == [pytest.approx(home[name] + other[name]) for name in GPUS]
    assert (sums["clusters"], sums["unseen"], sums["withoutBooks"]) == (2, [], 0)
    assert sums["money"] == [{
        "currency": "USD", "clusters": 2, "perHour": pytest.approx(books["perHour"] + 250.5),
        "monthToDate": pytest.approx(books["monthToDate"] + 1000.25), "projected": sums["money"][0]["projected"],
        "savedThisMonth": pytest.approx(books["savedThisMonth"] + 300.1),
    }]
    assert sums["givenBackGpuHours"] == pytest.approx(home["givenBackGpuHours"] + 70.5)
    assert {request.method for request in peer.asked} == {"GET"}, "nothing is written elsewhere"


async def silent() -> web.Response:
    await asyncio.sleep(30)
    return web.Response()


AWAY = {
    "refused": web.Response(status=500, body=b"{}"), "no login": web.Response(status=401, body=b"{}"),
    "no right": web.Response(status=403, body=b"{}"), "not fallow": web.Response(body=b"<html>"),
    "another shape": {"now": 1}, "no GPUs said": {**OVERVIEW, "gpus": None},
    "an interval without end": {**OVERVIEW, "intervalSeconds": 1e99}, "silent": silent,
    "less than nothing": {**OVERVIEW, "gpus": {**GPUS_SAID, "busy": -120}},
    "more than can be": {**OVERVIEW, "gpus": {**GPUS_SAID, "busy": 1e300}},
    "a word without end": {**OVERVIEW, "version": "U" * 1000}, "nested without end": web.Response(body=b"[" * 100_000),
    "huge": web.Response(body=b'{"a": "' + b"x" * 9 * 2**20 + b'"}'),
    "redirects": web.Response(status=302, headers={"Location": "http://127.0.0.1:9/"}),
}


@pytest.mark.parametrize("how", AWAY)
async def test_a_cluster_that_is_away_is_not_seen_and_never_nothing(how):
    async with beside(PretendPeer(), PretendPeer(overview=AWAY[how])) as client:
        page = await client.get("/api/v1/all-clusters")
    home, good, away = page["clusters"]
    assert (away["sight"], away["seenAt"]) == ("away", None)
    assert away["because"]
    assert {away[name] for name in (*GPUS, "givenBackGpuHours", "costs", "mode")} == {None}
    assert (page["sums"]["clusters"], page["sums"]["unseen"]) == (2, ["peer-2"])
    assert page["sums"]["total"] == home["total"] + good["total"]


OLD = {
    "long ago": {"asOf": "2026-11-15T11:00:00Z"}, "not yet": {"asOf": None}, "no clock": {"now": "soon"},
    "to come": {"asOf": "2026-11-15T13:00:00Z"},
}


@pytest.mark.parametrize("how", OLD)
async def test_what_is_old_is_in_no_sum(how):
    async with beside(PretendPeer(overview={**OVERVIEW, **OLD[how]})) as client:
        page = await client.get("/api/v1/all-clusters")
    home, other = page["clusters"]
    assert (other["sight"], other["total"], other["costs"], page["sums"]["unseen"]) == ("old", None, None, ["peer-1"])
    assert page["sums"]["total"] == home["total"]


async def test_a_figure_that_one_does_not_know_is_not_known_of_all():
    gpus = {**GPUS_SAID, "total": None, "free": None}
    async with beside(PretendPeer(overview={**OVERVIEW, "gpus": gpus})) as client:
        sums = (await client.get("/api/v1/all-clusters"))["sums"]
    assert (sums["total"], sums["free"], sums["busy"] is None) == (None, None, False)


async def test_currencies_dry_runs_and_who_keeps_no_books_are_told_apart():
    euros = PretendPeer(**{"cost/summary": {**COSTS, "currency": "EUR", "projected": None}})
    dry = PretendPeer(overview={**OVERVIEW, "mode": "dry-run"}, savings={**SAVINGS, "mode": "dry-run"})
    without = PretendPeer(**{"cost/summary": None, "savings": None})
    async with beside(euros, dry, without) as client:
        page = await client.get("/api/v1/all-clusters")
    sums = page["sums"]
    assert [(each["currency"], each["clusters"], each["projected"]) for each in sums["money"]] == [
        ("EUR", 1, None), ("USD", 1, 2000.0)]
    assert (sums["withoutBooks"], sums["wouldGiveBackGpuHours"]) == (2, 70.5)
    assert sums["givenBackGpuHours"] is None, "one that acts did not say"


NOT_TOLD = {
    **{name: AWAY[name] for name in ("refused", "no right", "not fallow", "silent")}, "no books": None,
    "another version": {"hours": 1}, "less than nothing": {**SAVINGS, **COSTS, "gpuHours": -1, "monthToDate": -1},
    "not there": web.Response(status=404, body=b"{}"),
}


@pytest.mark.parametrize("how", NOT_TOLD)
async def test_who_does_not_say_what_was_saved_and_paid_still_shows_its_gpus(how):
    async with beside(PretendPeer(savings=NOT_TOLD[how], **{"cost/summary": NOT_TOLD[how]})) as client:
        page = await client.get("/api/v1/all-clusters")
    home, other = page["clusters"]
    assert (other["sight"], other["total"], other["givenBackGpuHours"], other["costs"]) == ("seen", 100, None, None)
    assert (page["sums"]["total"], page["sums"]["withoutBooks"]) == (home["total"] + 100, 2)


async def test_a_version_that_says_more_or_less_of_its_savings_is_understood():
    async with beside(PretendPeer(savings={"gpuHours": 7, "source": "a new one"})) as client:
        _, other = (await client.get("/api/v1/all-clusters"))["clusters"]
    assert other["givenBackGpuHours"] == 7


async def test_what_was_saved_may_be_less_than_nothing():
    async with beside(PretendPeer(**{"cost/summary": {**COSTS, "savedThisMonth": -3.5}})) as client:
        page = await client.get("/api/v1/all-clusters")
    assert page["sums"]["money"][0]["savedThisMonth"] == -3.5


async def test_a_token_is_shown_to_its_own_cluster_only(tmp_path):
    token, peers = tmp_path / "token", [PretendPeer(), PretendPeer()]
    token.write_text("of-ours\n")
    async with beside(*peers, flags={"peer_token_file": (f"peer-1={token}",)}) as client:
        await client.get("/api/v1/all-clusters")
    shown = [{request.headers.get("Authorization") for request in peer.asked} for peer in peers]
    assert shown == [{"Bearer of-ours"}, {None}]


async def test_many_who_look_ask_each_cluster_once():
    peer, gone = PretendPeer(), PretendPeer(overview=AWAY["refused"])
    async with beside(peer, gone) as client:
        await asyncio.gather(*(client.ask("/api/v1/all-clusters", headers={"X-No": str(at)}) for at in range(10)))
    assert (len(peer.asked), len(gone.asked)) == (3, 1)


async def test_who_went_away_is_told_with_when_it_was_last_seen():
    peer, world = PretendPeer(), make_world()
    async with loopback.serve(peer.answer) as there, serving(
        world, MANDATE, flags={"peer": (f"peer-1={there.url}",)}
    ) as client:
        assert (await client.get("/api/v1/all-clusters"))["clusters"][1]["sight"] == "seen"
        peer.answers["/api/v1/overview"] = AWAY["refused"]
        world.now += 20
        away = (await client.get("/api/v1/all-clusters"))["clusters"][1]
        assert (away["sight"], away["total"], away["seenAt"]) == ("away", None, units.rfc3339(NOW))
        peer.answers["/api/v1/overview"] = OVERVIEW
        world.now += 61
        assert (await client.get("/api/v1/all-clusters"))["clusters"][1]["sight"] == "seen"


async def test_a_clock_that_was_ahead_keeps_no_figure_of_then():
    peer, world = PretendPeer(), make_world()
    async with loopback.serve(peer.answer) as there, serving(
        world, MANDATE, flags={"peer": (f"peer-1={there.url}",)}
    ) as client:
        world.now += DAY
        assert (await client.get("/api/v1/all-clusters"))["clusters"][1]["busy"] == 60
        world.now -= DAY
        peer.answers["/api/v1/overview"] = AWAY["refused"]
        away = (await client.get("/api/v1/all-clusters"))["clusters"][1]
        assert (away["sight"], away["busy"]) == ("away", None)


WRONG = {
    "--peer: here is named twice": {"peer": ("here=https://a", "here=https://b")},
    "--peer: a is named twice": {"peer": ("a=https://a",), "cluster_name": "a"},
    "there is no --peer b": {"peer": ("a=https://a",), "peer_token_file": ("b=/f",)},
    "--peer-token-file: a is named twice": {"peer": ("a=https://a",), "peer_token_file": ("a=/f", "a=/g")},
    "a token is shown over https only": {"peer": ("a=http://far:8080",), "peer_token_file": ("a=/f",)},
    "a password in it is not taken": {"peer": ("a=https://me:secret@far",)},
    "is not NAME=URL": {"peer": ("https://far",)}, "names no file": {"peer_token_file": ("a=",)},
    "--peer-ca-file: /nowhere is no file": {"peer_ca_file": "/nowhere"},
    "is not an address": {"peer": ("a=javascript:alert(1)",)},
}


@pytest.mark.parametrize("says", WRONG)
def test_what_is_wrong_is_one_sentence(says):
    with pytest.raises(settings.UsageError, match=says.replace("(", r"\(")) as refused:
        settings.read_flags({"daemon_mode": True, **WRONG[says]}, {})
    assert "secret" not in str(refused.value)
    assert msgspec.json.encode(str(refused.value)).count(b"\\n") == 0
