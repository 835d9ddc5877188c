"""What the API answers, over the wire: counts that agree, filters, pages, ETags, refusals in one shape."""

import re

import msgspec
import numpy as np
import pytest
from aiohttp import web
from tests import builders, cost_scenes
from tests.builders import HOUR, MINUTE, NOW, World
from tests.unit.clients import loopback
from tests.unit.doors.api.serving import make_forecasts, serving

from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config
from fallow.doors.answers import rows as telling
from fallow.doors.answers import status as statuses
from fallow.doors.answers import workloads as naming
from fallow.doors.answers.cost_books import CostBooks
from fallow.doors.api import answering, endpoints, openapi, pages
from fallow.doors.cli import pages as pages_of
from fallow.model import cluster, decision, marks, units
from fallow.model.gaming import Suspect
from fallow.model.history import AuditEntry, CameBy, Happened
from fallow.model.policies import idle
from fallow.model.seen import ABSENT, Register, Unseen
from fallow.stories import gaming
from fallow.wiring import share_terms, share_why

T4 = "Tesla-T4"


def node(world, name, offers, *, product=T4, ready=True, labels=None, shared=False):
    world.node(name, product=product, ready=ready, labels=labels or {}, shared=shared)
    total = None if offers is None else sum(offers.values())
    world.nodes[name] = msgspec.structs.replace(world.nodes[name], gpus=total, offers=offers or {})


def make_world():
    """Four whole GPUs, an A100 cut by MIG, and one GPU shared by four; somebody in every state."""
    world = World()
    node(world, "node-1", {"nvidia.com/gpu": 8})
    node(world, "mig-1", {"nvidia.com/mig-3g.40gb": 1, "nvidia.com/mig-1g.10gb": 2}, product="NVIDIA-A100-SXM4-80GB")
    node(
        world, "slices-1", {"nvidia.com/gpu": 4}, product="Tesla-T4-SHARED", shared=True,
        labels={"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "time-slicing"},
    )
    ack = {"gpuautoscaler.io/ack-until": "2026-11-15T16:00:00Z", "gpuautoscaler.io/ack-by": "user:ana",
           "gpuautoscaler.io/ack-reason": "<b>demo</b>", "gpuautoscaler.io/ack-at": "2026-11-15T11:00:00Z"}
    world.workload("ml/quiet", gpus=[builders.idle(model=T4)] * 2)
    world.workload("ml/kept", gpus=[builders.idle(model=T4)], annotations=ack)
    world.workload("web/busy", gpus=[builders.busy(model=T4)])
    world.workload("web/blind", gpus=[builders.unseen()])
    world.workload("web/noticed", gpus=[builders.idle(model=T4)], annotations=builders.pending_marks(NOW - MINUTE))
    paused = {**builders.paused_marks(NOW - HOUR, gpus=3), "gpuautoscaler.io/paused-reason": "idle"}
    world.workload("web/resting", gpus=[], pods=[], annotations=paused, body={"spec": {"replicas": 0}})
    a100 = "NVIDIA A100-SXM4-80GB"
    world.workload("ml/cut", gpus=[builders.busy(model=a100, mig=True, uuid="GPU-a/1")], pod={
        "node": "mig-1", "resources": {"nvidia.com/mig-3g.40gb": 1}})
    world.workload("ml/slice", gpus=[builders.unseen()], pod={"node": "slices-1"})
    return world


@pytest.fixture
def world():
    return make_world()


MANDATE = builders.mandate(builders.rule(notice=builders.notice(grace=30 * MINUTE)), acting=True)


async def test_gpus_are_shares_of_physical_ones_and_add_up_to_the_cluster(world):
    async with serving(world, MANDATE) as client:
        page, field = await client.get("/api/v1/overview"), await client.get("/api/v1/gpus")
        rows = (await client.get("/api/v1/workloads"))["items"]
    gpus = page["gpus"]
    assert gpus["total"] == 10.0  # eight, one that is cut, one that is shared
    assert sum(value for name, value in gpus.items() if name != "total") == pytest.approx(gpus["total"])
    slots = [slot for pool in field["pools"] for one in pool["nodes"] for gpu in one["gpus"] for slot in gpu["slots"]]
    assert sum(slot["share"] for slot in slots) == pytest.approx(10.0, abs=1e-4)
    held = {row["name"]: (row["gpus"], row["instances"], row["profile"]) for row in rows}
    assert held["cut"] == (0.5, 1, "3g.40gb")
    assert held["slice"] == (0.25, 1, None)
    assert held["quiet"] == (2.0, 2, None)
    for pool in field["pools"]:
        for one in pool["nodes"]:
            for gpu in one["gpus"]:
                assert sum(slot["share"] for slot in gpu["slots"]) == pytest.approx(1.0, abs=1e-4)
    assert {one["name"]: one["layout"] for pool in field["pools"] for one in pool["nodes"]} == {
        "node-1": "whole", "mig-1": "mig", "slices-1": "slices"}


async def test_a_capacity_that_is_not_seen_is_null_and_its_node_says_so(world):
    node(world, "node-2", None)
    async with serving(world, MANDATE) as client:
        gpus = (await client.get("/api/v1/overview"))["gpus"]
    assert (gpus["total"], gpus["free"]) == (None, None)
    assert gpus["busy"] == 1.5
    hidden = make_world()
    unseen = Register({}, Unseen("nodes may not be listed"))
    async with serving(hidden, MANDATE, nodes=unseen) as client:
        field = await client.get("/api/v1/gpus")
        assert (await client.get("/api/v1/overview"))["gpus"]["total"] is None
    shown = [one for pool in field["pools"] for one in pool["nodes"]]
    assert {one["name"] for one in shown} == {"node-1", "mig-1", "slices-1"}
    assert all(one["gpus"] == [] and "may not be listed" in one["trouble"] for one in shown)


def rest(world, name, **told):
    """Paused, its pods gone, before anybody looked. `told`: what its marks say beyond the usual."""
    at = next(index for index, one in enumerate(world.workloads) if one.ref.name == name)
    paused = builders.paused_marks(NOW, **{"gpus": 2, "paused_reason": "idle", **told})
    world.workloads[at] = msgspec.structs.replace(
        world.workloads[at], pods=(), annotations=paused, marks=paused, body={"spec": {"replicas": 0}})


def slots_of(field):
    return [slot for pool in field["pools"] for one in pool["nodes"] for gpu in one["gpus"] for slot in gpu["slots"]]


async def test_what_a_pause_gave_back_is_shown_to_whoever_looks_first_until_somebody_takes_it(world):
    held = [world.pods[index] for one in world.workloads if one.ref.name == "quiet" for index in one.pods]
    async with serving(world, MANDATE) as client:
        before = (await client.get("/api/v1/overview"))["gpus"]
    rest(world, "quiet", paused_nodes=marks.write_nodes(held))
    async with serving(world, MANDATE) as client:  # another daemon, which never saw it at work
        after, field = (await client.get("/api/v1/overview"))["gpus"], await client.get("/api/v1/gpus")
        world.workload("ml/new", gpus=[builders.busy(model=T4)] * 4)
        client.loop.look_at(world, MANDATE)
        last = (await client.get("/api/v1/overview"))["gpus"]
    assert (before["freed"], after["freed"], after["free"]) == (0.0, 2.0, before["free"])
    assert after["total"] == before["total"] == last["total"]
    assert {slot["freedBy"]["name"] for slot in slots_of(field) if slot["state"] == "freed"} == {"quiet"}
    assert last["free"] + last["freed"] == pytest.approx(after["free"] + after["freed"] - 4)


@pytest.mark.parametrize(("told", "freed"), [
    ("", 0.0), ("[]", 0.0), ('{"node-1": 2}', 0.0), ('{"node-1": {"nvidia.com/gpu": -2}}', 0.0),
    ('{"nowhere": {"nvidia.com/gpu": 2}}', 0.0), ('{"slices-1": {"nvidia.com/gpu": 2}}', 0.5),
    ('{"node-1": {"nvidia.com/gpu": 999999}}', 4.0),
    (f'{{"node-1": {{"nvidia.com/mig-{"9" * 5000}g.5gb": 1}}}}', 0.0),
], ids=["none", "list", "flat", "negative", "unknown-node", "parts", "more-than-there-is", "no-number"])
async def test_marks_that_somebody_wrote_free_no_more_than_is_free(world, told, freed):
    rest(world, "quiet", paused_nodes=told)
    async with serving(world, MANDATE) as client:
        gpus, field = (await client.get("/api/v1/overview"))["gpus"], await client.get("/api/v1/gpus")
    assert (gpus["total"], gpus["freed"]) == (10.0, freed)
    assert sum(slot["share"] for slot in slots_of(field) if slot["freedBy"]) == pytest.approx(freed)


async def test_every_state_has_its_view_and_the_counts_agree_with_the_lists(world):
    async with serving(world, MANDATE) as client:
        every = await client.get("/api/v1/workloads")
        by_view = {view: await client.get(f"/api/v1/workloads?view={view}") for view in every["counts"]}
    states = {row["name"]: row["state"] for row in every["items"]}
    assert states == {
        "quiet": "idle", "kept": "kept", "busy": "busy", "blind": "unknown", "noticed": "told", "resting": "paused",
        "cut": "busy", "slice": "unknown",
    }
    assert {view: page["total"] for view, page in by_view.items()} == every["counts"]
    assert {row["name"] for row in by_view["idle"]["items"]} == {"quiet", "kept", "noticed"}
    rest = by_view["paused"]["items"][0]["rest"]
    assert (rest["gpus"], rest["size"]) == (3, "3 replicas")
    assert rest["resumeCommand"] == "fallow resume Deployment/resting -n web"
    keep = by_view["kept"]["items"][0]
    assert (keep["keep"]["by"], keep["keep"]["reason"]) == ("user:ana", "<b>demo</b>")
    assert keep["next"] == {"type": "keepEnds", "at": "2026-11-15T16:00:00Z", "because": keep["skipBecause"]}


async def test_who_keeps_for_too_long_is_told_when_it_really_ends(world):
    written = {"gpuautoscaler.io/ack-until": "2099-01-01T00:00:00Z", "gpuautoscaler.io/ack-at": "2026-11-15T11:00:00Z"}
    world.workload("ml/greedy", gpus=[builders.idle(model=T4)], annotations=written)
    async with serving(world, MANDATE) as client:
        (row,) = (await client.get("/api/v1/workloads?view=kept&q=greedy"))["items"]
    assert row["keep"]["until"] == row["next"]["at"] == "2026-11-22T11:00:00Z"
    assert row["skipBecause"].endswith("until 2026-11-22T11:00:00Z")


@pytest.mark.parametrize(("query", "names"), [
    ("namespace=m*&view=idle", {"quiet", "kept"}), ("q=QUI", {"quiet"}), ("verdict=active", {"busy", "cut"}),
    ("kind=Job", set()), ("q=w*b", {"busy", "blind", "noticed", "resting"}), ("policy=none", set()),
    ("model=Tesla-T4&view=busy", {"busy"}),
])
async def test_filters_fit_all_that_was_asked_for(world, query, names):
    async with serving(world, MANDATE) as client:
        assert {row["name"] for row in (await client.get(f"/api/v1/workloads?{query}"))["items"]} == names


@pytest.mark.parametrize("query", ["q", "namespace"])
async def test_many_stars_do_not_hold_up_the_others(query):
    """A tenant may call things as they like, and so could make a search try every place of every star."""
    made = World()
    made.workload(f"{'a' * 63}/{'a' * 200}")
    async with serving(made, MANDATE) as client:
        assert (await client.get(f"/api/v1/workloads?{query}={'*a' * 30}*b"))["items"] == []
        assert len((await client.get(f"/api/v1/workloads?{query}={'*a' * 30}"))["items"]) == 1


@pytest.mark.parametrize("sort", ["next", "gpus", "idle", "cost", "name", "namespace"])
async def test_pages_hold_every_row_once_in_one_order(world, sort):
    async with serving(world, MANDATE) as client:
        whole = await client.get(f"/api/v1/workloads?sort={sort}&order=desc")
        found, cursor = [], ""
        while cursor is not None:
            page = await client.get(f"/api/v1/workloads?sort={sort}&order=desc&limit=3{cursor}")
            found += page["items"]
            cursor = f"&cursor={page['next']}" if page["next"] else None
    assert found == whole["items"]
    assert len(found) == 8


async def test_what_did_not_change_is_not_sent_again_and_a_cycle_makes_it_anew(world):
    path = "/api/v1/workloads?view=idle"
    async with serving(world, MANDATE) as client:
        _, first, headers = await client.ask(path)
        status, body, _ = await client.ask(path, headers={"If-None-Match": f'"x", W/{headers["ETag"]}'})
        assert (status, body) == (304, b"")
        client.loop.look_at(world, MANDATE)
        status, second, fresh = await client.ask(path, headers={"If-None-Match": headers["ETag"]})
    assert status == 200
    assert second["revision"] > first["revision"]
    assert fresh["ETag"] != headers["ETag"]


async def test_who_asks_gets_no_answer_that_was_made_for_another(world):
    async def guard(request):
        request.state.user = request.headers["X-User"]

    async with serving(world, MANDATE, guard=guard) as client:
        _, ana, tag = await client.ask("/api/v1/overview", headers={"X-User": "ana"})
        _, bob, other = await client.ask("/api/v1/overview", headers={"X-User": "bob", "If-None-Match": tag["ETag"]})
    assert (ana["user"], bob["user"]) == ("ana", "bob")
    assert tag["ETag"] != other["ETag"]


async def test_answers_are_packed_where_that_is_asked_for(world):
    async with serving(world, MANDATE) as client:
        _, plain, headers = await client.ask("/api/v1/workloads", headers={"Accept-Encoding": "identity"})
        _, packed, more = await client.ask("/api/v1/workloads", headers={"Accept-Encoding": "gzip"})
    assert "Content-Encoding" not in headers
    assert more["Content-Encoding"] == "gzip"
    assert plain == packed


WRONG = {
    "/api/v1/workloads?view=none": (400, "BadParameter", "'none' is not one of idle"),
    "/api/v1/workloads?limit=-1": (400, "BadParameter", "not a whole number from 1 to 1000"),
    "/api/v1/workloads?limit=1e3": (400, "BadParameter", "not a whole number"),
    "/api/v1/workloads?veiw=idle": (400, "BadParameter", "no parameter 'veiw'"),
    "/api/v1/workloads?view=idle&view=busy": (400, "BadParameter", "given twice"),
    "/api/v1/decisions?since=yesterday": (400, "BadParameter", "'yesterday' is not a time"),
    "/api/v1/decisions?type=paused,x": (400, "BadParameter", "'x' is none of"),
    "/api/v1/decisions?cursor=<b>": (400, "BadParameter", "not a whole number"),
    "/api/v1/states?window=1y": (400, "BadParameter", "'1y' is not one of 24h, 7d, 30d"),
    "/api/v1/workloads/ml/Deployment/none": (404, "NotFound", "no workload Deployment ml/none"),
    "/api/v1/workloads/ml/Job/quiet/explain": (404, "NotFound", "no workload Job ml/quiet"),
    "/api/v1/nothing": (404, "NotFound", "there is no /api/v1/nothing"),
}


@pytest.mark.parametrize("path", WRONG)
async def test_what_is_wrong_is_one_sentence_in_one_shape(world, path):
    status, code, words = WRONG[path]
    async with serving(world, MANDATE) as client:
        answered, body, headers = await client.ask(path)
    assert (answered, body["error"]["code"]) == (status, code)
    assert words in body["error"]["message"]
    assert headers["Cache-Control"] == "no-store"


async def test_the_seeds_window_is_refused_in_its_own_shape(world):
    async with serving(world, MANDATE) as client:
        status, body, _ = await client.ask("/api/v1/stats?window=2h")
        stats = await client.get("/api/v1/stats?window=1h")
        assert stats["scale_downs"] == {"lifetime": 0, "in_window": 0, "window": "1h"}
        assert (await client.get("/api/v1/summary"))["idle_workloads"] == {"current": 3}
        idle = (await client.get("/api/status"))["idle_workloads"]
    assert (status, body) == (400, {"error": "invalid window", "allowed": ["1h", "7d", "30d"]})
    assert [row["name"] for row in idle] == ["quiet", "kept", "noticed"]


async def test_only_reading_goes_and_head_has_no_body(world):
    async with serving(world, MANDATE) as client:
        status, body, headers = await client.ask("/api/v1/overview", "HEAD")
        assert (status, body) == (200, b"")
        assert "ETag" in headers
        for method in ("PUT", "DELETE"):
            status, body, _ = await client.ask("/api/v1/overview", method)
            assert (status, body["error"]["code"]) == (405, "MethodNotAllowed")


async def test_without_a_cycle_there_is_nothing_to_tell_and_no_empty_list_says_otherwise():
    async with serving(World(), MANDATE) as client:
        status, body, headers = await client.ask("/api/v1/workloads")
        assert (status, body["error"]["code"], headers["Retry-After"]) == (503, "NotYet", "5")
        page = await client.get("/api/v1/overview")
    assert (page["asOf"], page["gpus"]["total"], page["gpus"]["idle"]) == (None, None, None)
    assert page["banners"][0]["kind"] == "stale"


async def test_after_a_cycle_without_a_decision_the_last_one_is_told_with_its_age(world):
    async with serving(world, MANDATE) as client:
        await client.get("/api/v1/overview")
        good = client.loop.ended
        client.loop.ended = type(good)(None, None, (), "Prometheus does not answer", 1.0)
        client.loop.health.pulses["idle"].failures, client.loop.health.pulses["prices"].failures = 2, 9
        page = await client.get("/api/v1/overview")
        assert (await client.get("/api/v1/workloads"))["total"] == 8
    assert (page["failure"]["because"], page["failure"]["cycles"]) == ("Prometheus does not answer", 2)
    assert page["counts"]["all"] == 8
    assert "Prometheus does not answer" in page["banners"][0]["sentence"]


async def test_nobody_from_elsewhere_reads_while_there_is_no_logging_in(world):
    async with serving(world, MANDATE) as client:
        for host in ("fallow.example.com", "10.0.0.1"):
            status, body, _ = await client.ask("/api/v1/overview", headers={"Host": host})
            assert (status, body["error"]["code"]) == (403, "Forbidden")
        assert (await client.ask("/healthz", headers={"Host": "10.0.0.1"}))[0] in (200, 503)


async def test_every_answer_tells_browsers_what_they_may_do(world):
    async with serving(world, MANDATE) as client:
        for path in ("/", "/api/v1/overview", "/api/nothing", "/metrics", "/nothing"):
            headers = (await client.ask(path))[2]
            assert "default-src 'none'" in headers["Content-Security-Policy"]
            assert "unsafe" not in headers["Content-Security-Policy"]
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert "Access-Control-Allow-Origin" not in headers


# ---- one workload ----------------------------------------------------------------------------------------------------


@pytest.mark.accepts("idle", 30)
async def test_a_workload_is_explained_with_the_same_row_and_what_a_pause_writes(world):
    path = "/api/v1/workloads/ml/Deployment/quiet"
    async with serving(world, MANDATE) as client:
        row, why = await client.get(path), await client.get(f"{path}/explain")
    assert why["row"] == row
    assert why["sentence"].startswith("No work for 2 h on any of its 2 GPUs.")
    assert [gpu["share"] for gpu in why["gpus"]] == [1.0, 1.0]
    write = why["writes"][0]
    assert write["path"] == "/apis/apps/v1/namespaces/ml/deployments/quiet"
    assert write["body"]["spec"] == {"replicas": 0}
    assert why["was"] == "was 1; resume writes 1"
    assert not any(why["may"][verb]["allowed"] for verb in ("keep", "pause", "resume"))
    assert {check["group"] for check in why["checks"]} == {"idle", "pausable", "waiting"}
    assert why["keepHours"] == [4, 8, 24]
    assert [step["kind"] for step in why["episode"]] == ["work", "idle", "now"]


@pytest.mark.parametrize(("status", "sharing"), [
    (200, ("whole", "NoPolicy", 2)), (404, None), (403, None),
], ids=["seen", "gone", "not allowed"])
async def test_it_is_told_whether_its_pods_share_where_the_server_tells(world, status, sharing):
    """The rest is told all the same."""

    def answer(asked: loopback.Asked) -> web.Response:
        if asked.path.startswith("/api/v1/namespaces/ml/pods/"):
            name = asked.path.rpartition("/")[2]
            limits = {"limits": {"nvidia.com/gpu": "1"}}
            body = {"metadata": {"name": name}, "spec": {"containers": [{"image": "jupyter", "resources": limits}]}}
            return web.json_response(body if status == 200 else {"message": "no"}, status=status)
        return web.json_response({"metadata": {"name": "ml"}})

    async def look() -> share_why.WhySights:
        return share_why.WhySights(policies=ABSENT, nodes=ABSENT, claims=ABSENT, terms=share_terms.make_usual("own"))

    async def use(uid):
        raise AssertionError("it has no owner")

    world.workload("ml/two", gpus=[builders.busy()], replicas=2)
    async with loopback.serve(answer) as server, kube.Api(config.Access(server=server.url, context="")) as api:
        explainer = share_why.ShareExplainer(api, look, use)
        async with serving(world, MANDATE, explainer=explainer) as client:
            why = await client.get("/api/v1/workloads/ml/Deployment/two/explain")
    found = why["sharing"]
    assert (found and (found["next"], found["reason"], found["pods"])) == sharing
    assert why["verdict"] == "active"


async def test_who_cannot_be_told_is_told_what_helps(world):
    async with serving(world, MANDATE) as client:
        why = await client.get("/api/v1/workloads/web/Deployment/blind/explain")
    failed = next(check for check in why["checks"] if check["state"] == "failed")
    assert failed["reason"] == why["reasons"][0]["reason"]
    assert failed["helps"]
    assert why["writes"] == []
    assert why["sentence"].startswith("Cannot tell whether it works:")


async def test_a_timeline_has_the_source_s_points_and_gaps_are_null(world):
    async def draw(pods, gpus, span, now):
        assert {pod.name for pod in pods} == {"quiet-0"}
        values = np.full(span.points, np.nan)
        values[0], values[-1] = 0.25, 0.0
        return {sorted(gpus)[0]: values}

    async with serving(world, MANDATE, draw=draw) as client:
        line = await client.get("/api/v1/workloads/ml/Deployment/quiet/timeline?window=24h")
    first, second = line["gpus"]
    assert (line["stepSeconds"], line["from"], line["to"]) == (300.0, "2026-11-14T12:00:00Z", "2026-11-15T12:00:00Z")
    assert (len(first["values"]), first["values"][0], first["values"][1], first["values"][-1]) == (289, 0.25, None, 0.0)
    assert set(second["values"]) == {None}
    assert (first["coverage"], first["newestSeconds"], first["max"]) == (1.0, 15.0, 0.0)
    assert (line["lastWork"], line["more"], line["threshold"]) == ("2026-11-15T10:00:00Z", 0, 0.01)


async def test_a_source_that_fails_is_said_and_nothing_is_drawn(world):
    async def draw(*asked):
        raise errors.Unreachable("Prometheus at http://p cannot be reached")

    async with serving(world, MANDATE, draw=draw) as client:
        status, body, _ = await client.ask("/api/v1/workloads/ml/Deployment/quiet/timeline")
    assert (status, body["error"]["code"]) == (502, "SourceError")
    assert "cannot be reached" in body["error"]["message"]


# ---- what happened ---------------------------------------------------------------------------------------------------


def entry(what, at, number=0, **more):
    ref = cluster.Ref("apps", "v1", "Deployment", "ml", "quiet", "uid-ml/quiet")
    said = {"sentence": str(what), "actor": "fallow", "source": CameBy.cycle, "ref": ref, **more}
    return AuditEntry(at=at, type=what, number=number, **said)


async def test_history_regrets_and_savings_come_from_what_was_written_down(world):
    async with serving(world, MANDATE) as client:
        for one in (
            entry(Happened.paused, NOW - 5 * HOUR, gpus=2, policy="flags"), entry(Happened.resumed, NOW - 4 * HOUR),
            entry(Happened.regretted, NOW - 4 * HOUR), entry(Happened.not_paused, NOW - HOUR, gpus=2),
            AuditEntry(at=NOW - 2 * HOUR, type=Happened.frozen, sentence="", actor="fallow", source=CameBy.cycle),
        ):
            await client.kept.enter(one)
        decisions = await client.get("/api/v1/decisions?limit=2")
        older = await client.get(f"/api/v1/decisions?cursor={decisions['next']}")
        some = await client.get("/api/v1/decisions?type=paused,regretted")
        early = await client.get(f"/api/v1/decisions?until={units.rfc3339(NOW - 4 * HOUR)}")
        history = await client.get("/api/v1/workloads/ml/Deployment/quiet/history")
        savings, regrets = await client.get("/api/v1/savings"), await client.get("/api/v1/regrets")
        pace = await client.get("/api/v1/pace?window=24h")
        why = await client.get("/api/v1/workloads/ml/Deployment/quiet/explain")
    assert [one["type"] for one in decisions["items"] + older["items"]] == [
        "frozen", "notPaused", "regretted", "resumed", "paused"]
    assert [one["type"] for one in some["items"]] == ["regretted", "paused"]
    every = dict.fromkeys(("paused", "resumed", "regretted", "notPaused", "frozen"), 1)
    assert decisions["counts"] == older["counts"] == every  # also of what is not shown
    assert (some["counts"], early["counts"]) == ({"paused": 1, "regretted": 1}, {"paused": 1})
    assert [one["type"] for one in history["items"]] == ["notPaused", "regretted", "resumed", "paused"]
    assert (savings["gpuHours"], savings["days"][-1]["regrets"], len(savings["days"])) == (2.0, 1, 7)
    assert savings["days"][-1]["takenGpuHours"] is None
    assert regrets["byPolicy"] == [
        {"policy": "flags", "pauses": 1, "regrets": 1, "threshold": 0.2, "windowSeconds": 1800.0}]
    assert [one["count"] for one in regrets["notHappened"]] == [1]
    assert (sum(pace["paused"]), sum(pace["resumed"]), sum(pace["regretted"])) == (1, 1, 1)
    assert pace["freezes"] == [{"from": "2026-11-15T10:00:00Z", "to": "2026-11-15T12:00:00Z"}]
    assert why["pausedBefore"] == [{
        "at": "2026-11-15T07:00:00Z", "until": "2026-11-15T08:00:00Z", "by": "fallow", "readyAfterSeconds": None,
        "regretted": True,
    }]


async def test_stretches_that_nobody_saw_are_gaps(world):
    async with serving(world, MANDATE) as client:
        states = await client.get("/api/v1/states")
    assert set(states["busy"]) == {None}
    assert len(states["busy"]) == len(states["total"]) == 289
    assert len(states["gaps"]) == 1


# ---- the document ----------------------------------------------------------------------------------------------------


def violations(value, schema, components, where="$"):
    """What of a JSON Schema the value breaks: as much of the standard as the document uses."""
    if "$ref" in schema:
        return violations(value, components[schema["$ref"].rpartition("/")[2]], components, where)
    if "anyOf" in schema:
        tried = [violations(value, one, components, where) for one in schema["anyOf"]]
        return [] if any(not one for one in tried) else min(tried, key=len)
    if "enum" in schema and value not in schema["enum"]:
        return [f"{where}: {value!r} is none of {schema['enum']}"]
    return _breaks(value, schema, components, where)


def _breaks(value, schema, components, where):
    kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
    kind, found = schema.get("type"), []
    if kind in kinds and not isinstance(value, kinds[kind]):
        return [f"{where}: {value!r} is no {kind}"]
    if kind in ("number", "integer") and (isinstance(value, bool) or not isinstance(value, int | float)):
        return [f"{where}: {value!r} is no {kind}"]
    if kind == "integer" and not isinstance(value, int):
        return [f"{where}: {value!r} is not whole"]
    if kind == "object":
        known = schema.get("properties", {})
        found += [f"{where}: {name} is missing" for name in schema.get("required", ()) if name not in value]
        if known:
            found += [f"{where}: {name} is not in the document" for name in value if name not in known]
        for name, one in value.items():
            rest = schema.get("additionalProperties")
            inner = known.get(name, rest if isinstance(rest, dict) else {})
            found += violations(one, inner, components, f"{where}.{name}")
    if kind == "array" and "items" in schema and schema["items"] is not False:
        for number, one in enumerate(value):
            found += violations(one, schema["items"], components, f"{where}[{number}]")
    return found


@pytest.mark.parametrize("endpoint", endpoints.ENDPOINTS, ids=lambda endpoint: endpoint.path)
async def test_real_answers_are_as_the_document_says(world, endpoint):
    async with cost_scenes.opened(cost_scenes.example()) as ledger, serving(
        world, MANDATE, books=CostBooks(ledger=ledger),
        forecasts=make_forecasts(world, ledger),
    ) as client:
        document = await client.get(openapi.PATH)
        for name in ("quiet", "kept"):
            path = endpoint.path.format(namespace="ml", kind="Deployment", name=name)
            needed = "&".join(f"{each.name}=7d" for each in endpoint.parameters if each.is_required)
            answer = await client.get(f"{path}?{needed}")
            operation = document["paths"][endpoint.path]["get"]
            schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
            assert violations(answer, schema, document["components"]["schemas"]) == []


async def test_errors_are_as_the_document_says(world):
    async with serving(world, MANDATE) as client:
        document = await client.get(openapi.PATH)
        _, body, _ = await client.ask("/api/v1/nothing")
    assert violations(body, {"$ref": "#/x/ErrorAnswer"}, document["components"]["schemas"]) == []
    assert violations({"error": 1}, {"$ref": "#/x/ErrorAnswer"}, document["components"]["schemas"])


def test_every_path_stands_in_the_document_with_all_its_parameters():
    document = openapi.make_document(endpoints.ENDPOINTS)
    assert document["openapi"] == "3.1.0"
    assert set(document["paths"]) == {endpoint.path for endpoint in endpoints.ENDPOINTS}
    for endpoint in endpoints.ENDPOINTS:
        named = {one["name"] for one in document["paths"][endpoint.path]["get"]["parameters"]}
        assert named == {one.name for one in endpoint.parameters} >= set(re.findall(r"{(\w+)}", endpoint.path))
    assert msgspec.json.encode(document) == msgspec.json.encode(openapi.make_document(endpoints.ENDPOINTS))


# ---- the pages -------------------------------------------------------------------------------------------------------


async def test_the_dashboard_is_served_under_all_its_addresses(world, tmp_path):
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("<!doctype html><p>fallow</p>")
    (tmp_path / "assets" / "main-1a2b.js").write_text("export {}")
    async with serving(world, MANDATE, files=pages.read_files(tmp_path)) as client:
        for path in ("/", "/workloads", "/w/ml/Deployment/v1.2", "/activity", "/nodes", "/policies/x"):
            status, body, headers = await client.ask(path)
            assert (status, body, headers["Cache-Control"]) == (200, b"<!doctype html><p>fallow</p>", "no-cache")
        _, body, headers = await client.ask("/assets/main-1a2b.js")
        assert (body, "immutable" in headers["Cache-Control"]) == (b"export {}", True)
        assert headers["Content-Type"].startswith("text/javascript")
        for path in ("/assets/none.js", "/assets/../../app.py", "/etc/passwd"):
            assert (await client.ask(path))[0] == 404


@pytest.mark.parametrize(("is_built", "says"), [(True, b"<p>fallow</p>"), (False, b'<a href="/">Overview</a>')])
async def test_who_is_lost_in_a_browser_is_led_home(world, tmp_path, is_built, says):
    if is_built:
        (tmp_path / "index.html").write_text("<!doctype html><p>fallow</p>")
    async with serving(world, MANDATE, files=pages.read_files(tmp_path)) as client:
        status, body, headers = await client.ask("/nope", headers={"Accept": "text/html,*/*"})
        assert (status, says in body) == (404, True)
        assert headers["Content-Type"].startswith("text/html")
        status, body, _ = await client.ask("/nope")
        assert (status, body) == (404, b"404: there is nothing here\n")


async def test_where_the_dashboard_was_not_built_a_page_says_how(world):
    async with serving(world, MANDATE) as client:
        status, body, headers = await client.ask("/w/ml/Deployment/quiet")
    assert (status, b"npm run build" in body) == (200, True)
    assert headers["Content-Type"].startswith("text/html")


# ---- the cache -------------------------------------------------------------------------------------------------------


def test_the_cache_is_bounded_in_number_and_in_bytes():
    cache = answering.AnswerCache()
    for number in range(1000):
        cache.keep((None, str(number)), answering._KeptAnswer("1", b"x" * 10))
    assert len(cache._kept) == answering._MOST_KEPT
    for number in range(100):
        cache.keep((None, str(number)), answering._KeptAnswer("1", b"x" * 2**20))
    assert cache._bytes <= answering._MOST_BYTES
    assert cache._bytes == sum(one.size for one in cache._kept.values())
    assert cache.find((None, "99"), "2") is None


async def test_further_clusters_are_named_behind_our_own(world):
    async with serving(world, MANDATE, clusters=("a=http://127.0.0.1:1",)) as client:
        listed = await client.get("/api/v1/clusters")
    assert listed == [{"name": "default", "honor_labels": False}, {"name": "a", "honor_labels": False}]


async def test_that_owners_could_not_be_told_is_said_on_the_first_page(world):
    async with serving(world, MANDATE) as client:
        good, before = client.loop.ended, await client.get("/api/v1/overview")
        warn = decision.Warn(good.plan.findings[0], "abc", NOW - HOUR, NOW + HOUR, ())
        failed = decision.Outcome(
            warn, decision.Status.failed, NOW, "not delivered: channel team: hooks.slack.com answered 500"
        )
        client.loop.ended = decision.Cycle(good.plan, good.snapshot, (failed,), "", 0.1)
        page = await client.get("/api/v1/overview")
    [told] = [each for each in page["banners"] if each["kind"] == "data"]
    assert told["headline"].startswith("1 owner could not be told. ")
    assert "hooks.slack.com answered 500. It is tried again" in told["sentence"]
    [usual] = [each for each in before["banners"] if each["kind"] == "data"]
    assert "owner" not in usual["headline"]


async def test_suspects_and_widened_windows_stand_where_people_look_and_in_the_terminal(world):
    """The same answers: `fallow status` and `fallow why` read these paths, and draw them."""
    rule = idle.widen(builders.rule(name="nightly", auto_widen=True), 1.5)
    world.policies.append(idle.IdlePolicy(name="nightly", uid="u", generation=1, rule=rule))
    busy = next(each.ref for each in world.workloads if each.ref.name == "busy")
    found = Suspect(
        workload=busy, gpus=("GPU-1",), since=NOW - 6 * HOUR, until=NOW, mean=0.012, tensor=0.0, dram=0.001, bursts=36,
        every=600.0, variation=0.01,
    )
    async with serving(world, MANDATE, suspects=gaming.GamingTurn(NOW, (found,), 1)) as client:
        status = await client.get("/api/v1/status")
        why = await client.get("/api/v1/workloads/web/Deployment/busy/explain")
        other = await client.get("/api/v1/workloads/ml/Deployment/quiet/explain")
    assert status["widened"] == [{"policy": "nightly", "times": 1.5, "goneIdleSeconds": 45 * 60.0}]
    assert [each["workload"]["name"] for each in status["suspects"]] == ["busy"]
    assert (why["widened"], other["widened"], other["suspect"]) == (1.5, 1.5, None)
    assert "a burst every 10m" in why["suspect"]
    page = pages_of.draw_status("", msgspec.convert(status, statuses.StatusPage), "", NOW)
    assert re.search(r"WIDENED +policy nightly waits 45m, 1.5 times as long as it says", page)
    assert re.search(r"SUSPECTS +web/busy may be kept busy only to be left alone; nothing is done", page)
    drawn = pages_of.draw_why("", msgspec.convert(why, naming.Explanation), NOW, wide=False)
    assert re.search(r"widened +it waits 1.5 times as long as it says", drawn)
    assert re.search(r"suspect +it may be kept busy only to be left alone: 1 GPU: a burst every 10m", drawn)


async def test_where_nobody_looked_for_suspects_they_are_not_known(world):
    async with serving(world, MANDATE) as client:
        assert (await client.get("/api/v1/status"))["suspects"] is None


async def test_a_list_says_what_may_be_done_only_to_who_asks(world):
    async def may_in(request, refs):
        return tuple(
            telling.RowsMay(namespace=ref.namespace, api_version=ref.api_version, kind=ref.kind, keep=True, pause=False,
                            resume=False, missing="x") for ref in refs[:1])

    async with serving(world, MANDATE, may_in=may_in) as client:
        plain, asked = await client.get("/api/v1/workloads"), await client.get("/api/v1/workloads?may=yes&limit=3")
        status, _, _ = await client.ask("/api/v1/workloads?may=perhaps")
    assert (plain["may"], status) == ([], 400)
    assert [(one["namespace"], one["keep"], one["pause"]) for one in asked["may"]] == [
        (asked["items"][0]["namespace"], True, False)]


@pytest.mark.parametrize("grace", [30 * MINUTE, 0], ids=["told-first", "paused-at-once"])
async def test_all_that_is_idle_stands_under_what_it_waits_for(world, grace):
    """Also what nothing speaks against: a sum of all idle that lacks those due next is wrong."""
    mandate = builders.mandate(builders.rule(notice=builders.notice(grace=grace)), acting=True)
    async with serving(world, mandate) as client:
        page = await client.get("/api/v1/overview")
        rows = (await client.get("/api/v1/workloads?view=idle"))["items"]
    assert sum(each["workloads"] for each in page["leftAlone"]) == len(rows) == page["counts"]["idle"]
    assert sum(each["gpus"] for each in page["leftAlone"]) == pytest.approx(sum(row["gpus"] for row in rows))
    due = {row["next"]["type"] for row in rows if row["skip"] is None}
    assert due
    assert due <= {each["label"] for each in page["leftAlone"]}
    assert all(each["sentence"] for each in page["leftAlone"])


async def test_who_cannot_be_told_is_named_with_what_is_said_of_it(world):
    """`Its pod is not ready` says nothing where nobody was named before."""
    async with serving(world, MANDATE) as client:
        page = await client.get("/api/v1/overview")
    named = {"Deployment/blind in web: ", "Deployment/slice in ml: "}
    sentences = [each["sentence"] for each in page["unknowns"]]
    assert sentences
    assert all(any(sentence.startswith(who) for who in named) for sentence in sentences)
    [told] = [each for each in page["banners"] if each["kind"] == "data"]
    assert told["headline"] == "Whether 1.2 GPUs work cannot be told."
    assert told["sentence"] == f"{sentences[0]}. What cannot be told is never paused."
