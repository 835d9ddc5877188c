"""What GPUs cost, over the wire: as an OpenCost client reads it, and pages of our own; refusals as promised."""

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib import parse

import pytest
from tests import cost_scenes
from tests.builders import NOW
from tests.cost_scenes import TODAY, YESTERDAY
from tests.unit.doors.api.serving import Client, serving
from tests.unit.doors.api.test_reads import MANDATE, entry, make_world

from fallow.doors.answers import allocation
from fallow.doors.answers.cost_books import CostBooks
from fallow.doors.api import app, cost
from fallow.model import units
from fallow.model.cost import DAY, HOUR, BookedSaving, CapacityType, SavingKind, SpendState
from fallow.model.history import Happened

WINDOW = f"{YESTERDAY},{TODAY}"
TOTAL = 786.48


@contextlib.asynccontextmanager
async def costing(intervals: Any = None, **said: Any) -> AsyncIterator[Client]:
    some = cost_scenes.example() if intervals is None else intervals
    async with cost_scenes.opened(some) as ledger, serving(
        make_world(), MANDATE, books=CostBooks(ledger=ledger), **said
    ) as client:
        yield client


class OpenCostClient:
    """As programs read OpenCost: a code, a list of sets, allocations by name with the fields that they have there."""

    _NUMBERS = ("minutes", "gpuHours", "gpuCost", "gpuCostAdjustment", "cpuCost", "ramCost", "sharedCost",
                "externalCost", "totalCost")

    def __init__(self, client: Client, path: str = "/allocation") -> None:
        self._client, self._path = client, path

    async def read(self, **params: str) -> list[dict[str, dict[str, Any]]]:
        status, body, _ = await self._client.ask(f"{self._path}?{parse.urlencode(params)}")
        assert (status, body["code"]) == (200, 200), body
        for one in body["data"]:
            for name, each in one.items():
                assert each["name"] == name
                assert each["window"]["start"] <= each["start"] <= each["end"] <= each["window"]["end"]
                assert isinstance(each["properties"], dict)
                assert all(isinstance(each[number], int | float) for number in self._NUMBERS)
                parts = ("gpuCost", "cpuCost", "ramCost", "sharedCost", "externalCost", "gpuCostAdjustment")
                assert sum(each[part] for part in parts) == pytest.approx(each["totalCost"])
        found: list[dict[str, dict[str, Any]]] = body["data"]
        return found


@pytest.mark.accepts("cost", 24)
@pytest.mark.parametrize("path", ["/allocation", "/allocation/compute"])
@pytest.mark.parametrize("only_costs", [False, True], ids=["main-api", "own-port"])
async def test_an_opencost_client_reads_a_week_by_namespace(path, only_costs):
    async with costing(only_costs=only_costs) as client:
        [found] = await OpenCostClient(client, path).read(window="7d", aggregate="namespace")
    assert {name: round(one["gpuCost"], 4) for name, one in found.items()} == {
        "red": 163.85, "blue": 98.31, "green": 73.7325}
    red = found["red"]
    assert (red["properties"]["namespace"], red["gpuHours"]) == ("red", 40.0)
    assert red["gpuEfficiency"] == pytest.approx(0.3)
    assert found["green"]["gpuEfficiency"] is None  # nobody measured it
    assert found["green"]["gpuUsageAverage"] is None


@pytest.mark.accepts("cost", 24)
@pytest.mark.parametrize(("query", "says"), [
    ("window=banana", "window: 'banana' is no window"), ("", "'window' is needed"),
    ("window=7d&aggregate=wheel", "aggregate: 'wheel' is nothing to group by"),
    ("window=7d&step=nine", "step: 'nine' is no window"), ("window=7d&step=1m", "10,080 steps are more than 1,000"),
    ("window=7d&shareIdle=perhaps", "shareIdle: 'perhaps' is not one of"),
    ("window=7d&filter=namespace", "is no filter"),
    ("window=7d&filter=wheel%3A%22a%22", "nothing to group by"), ("window=7d&basis=mood", "basis"),
    ("window=7d&wheel=1", "there is no parameter 'wheel' here"), ("window=7d&window=8d", "given twice"),
    ("window=7d&aggregate=pod,pod,pod,pod,pod,pod", "at most 5"), ("window=7d&step=0d", "no length"),
])
async def test_what_is_wrong_is_400_as_opencost_says_it(query, says):
    async with costing([]) as client:
        status, body, _ = await client.ask(f"/allocation?{query}")
    assert (status, body["code"], set(body)) == (400, 400, {"code", "message"})
    assert says in body["message"]


async def test_steps_lie_side_by_side_and_come_to_the_whole():
    async with costing() as client:
        reader = OpenCostClient(client)
        steps = await reader.read(window=WINDOW, aggregate="namespace", step="6h", includeIdle="true")
        odd = await reader.read(window=WINDOW, aggregate="namespace", step="7h", includeIdle="true")
        whole = await reader.read(
            window=WINDOW, aggregate="namespace", step="6h", accumulate="true", includeIdle="true")
    assert (len(steps), len(odd), len(whole)) == (4, 4, 1)
    for sets in (steps, odd, whole):
        assert sum(one["totalCost"] for each in sets for one in each.values()) == pytest.approx(TOTAL, abs=1e-9)
    assert steps[0]["red"]["totalCost"] == pytest.approx(98.31)
    assert "red" not in steps[2]


@pytest.mark.parametrize(("given", "idle"), [
    ({}, None), ({"includeIdle": "true"}, 450.5875), ({"includeIdle": "true", "basis": "use"}, 678.339),
], ids=["without", "with", "by-use"])
async def test_idle_is_one_by_itself(given, idle):
    async with costing() as client:
        [found] = await OpenCostClient(client).read(window=WINDOW, aggregate="namespace", **given)
    shown = found.pop("__idle__", None)
    assert (shown and round(shown["totalCost"], 4)) == idle
    if idle:
        assert sum(one["totalCost"] for one in found.values()) + shown["totalCost"] == pytest.approx(TOTAL)


@pytest.mark.parametrize("how", ["true", "weighted", "even"])
async def test_idle_that_is_shared_is_in_what_everybody_pays(how):
    async with costing() as client:
        [found] = await OpenCostClient(client).read(window=WINDOW, aggregate="namespace", shareIdle=how)
        [only] = await OpenCostClient(client).read(
            window=WINDOW, aggregate="namespace", shareIdle=how, filter='namespace:"red"')
    assert "__idle__" not in found
    assert sum(one["totalCost"] for one in found.values()) == pytest.approx(TOTAL)
    share = 450.5875 / 3 if how == "even" else 450.5875 * 163.85 / 335.8925
    assert found["red"]["totalCost"] == pytest.approx(163.85 + share, abs=1e-6)
    assert {name: one["totalCost"] for name, one in only.items()} == {"red": pytest.approx(found["red"]["totalCost"])}


async def test_idle_by_node_is_shared_on_its_node():
    far = cost_scenes.key("red", "far", node="node-2")
    some = [
        *cost_scenes.example(), *cost_scenes.held("GPU-20", YESTERDAY, TODAY, far),
        *cost_scenes.free("GPU-21", YESTERDAY, TODAY, of={"node": "node-3"}),
    ]
    async with costing(some) as client:
        reader = OpenCostClient(client)
        [apart] = await reader.read(window=WINDOW, aggregate="namespace", idleByNode="true", includeIdle="true")
        [shared] = await reader.read(window=WINDOW, aggregate="namespace", idleByNode="true", shareIdle="true")
    assert {name for name in apart if "__idle__" in name} == {"node-1/__idle__", "node-3/__idle__"}
    assert {name for name in shared if "__idle__" in name} == {"node-3/__idle__"}  # nobody is there
    on_one = 450.5875 * 163.85 / 335.8925
    assert shared["red"]["totalCost"] == pytest.approx(163.85 + 98.31 + on_one, abs=1e-6)


async def test_filters_and_labels_and_each_pod_by_itself():
    async with costing() as client:
        reader = OpenCostClient(client)
        [one] = await reader.read(window=WINDOW, aggregate="namespace", filter='namespace:"red","blue"+label[app]:"x"')
        [labels] = await reader.read(window=WINDOW, aggregate="label:app,namespace")
        [pods] = await reader.read(window=WINDOW, filter='controllerName:"lab"', resolution="1m")
    assert list(one) == ["red"]
    assert labels["x/red"]["properties"] == {"namespace": "red", "labels": {"app": "x"}}
    assert "__unallocated__/blue" in labels  # as OpenCost names what has no such label
    assert set(pods) == {f"main/node-1/green/green-lab-{number}" for number in range(3)}
    assert pods["main/node-1/green/green-lab-0"]["properties"]["controllerKind"] == "Deployment"


async def test_a_pod_that_comes_again_under_another_controller_costs_what_both_cost():
    """OpenCost's name of a pod does not have the controller in it."""
    first, again = cost_scenes.key("red", "web"), cost_scenes.key("red", "web-0", owner_kind="Pod")
    lived = [
        *cost_scenes.held("GPU-0", YESTERDAY, YESTERDAY + HOUR, first, pod="uid-web-0"),
        *cost_scenes.held("GPU-0", YESTERDAY + HOUR, YESTERDAY + 3 * HOUR, again, pod="uid-web-0"),
    ]
    async with costing(lived) as client:
        [pods] = await OpenCostClient(client).read(window=WINDOW)
    assert {name: each["totalCost"] for name, each in pods.items()} == {"main/node-1/red/web-0": 3 * 4.09625}


@pytest.mark.parametrize("by", ["namespace,namespace", "namespace,node,namespace"])
async def test_what_is_named_twice_counts_once(by):
    async with costing() as client:
        [one] = await OpenCostClient(client).read(window=WINDOW, aggregate=by, includeIdle="true")
    assert sum(each["totalCost"] for each in one.values()) == pytest.approx(TOTAL)


@pytest.mark.parametrize("text", [
    'namespace:"a"', 'namespace:"a","b"', 'namespace:"a"+label[team]:"b"', 'label[app.kubernetes.io/name]:"x"',
])
def test_a_filter_is_read(text):
    assert sum(len(one.values) for one in allocation.read_filter(text)) == text.count('"') // 2


@pytest.mark.parametrize("text", [
    "", "namespace", 'namespace:a', 'namespace:"a', 'namespace:"a"+', '+namespace:"a"', 'namespace:"a" + pod:"b"',
    'namespace!:"a"', 'label:"x"', 'namespace[x]:"a"', 'namespace:"a"|pod:"b"', 'namespace:"a",',
])
def test_what_is_no_filter_is_refused(text):
    with pytest.raises(ValueError, match=r"no filter|nothing to group by|names no label|nothing behind it"):
        allocation.read_filter(text)


# ---- our own pages ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [each.path for each in cost.ENDPOINTS])
async def test_where_no_books_are_kept_it_is_said(path):
    async with serving(make_world(), MANDATE) as client:
        status, body, _ = await client.ask(f"{path}?window=7d" if "allocation" in path else path)
    assert (status, body["error"]["code"]) == (503, "NoBooks")
    assert "--cost true" in body["error"]["message"]


async def test_a_report_is_filtered_grouped_and_compared():
    async with costing() as client:
        page = await client.get(f"/api/v1/cost/report?window={WINDOW}&by=namespace,model&compare=true&most=1")
        red = await client.get(f"/api/v1/cost/report?window={WINDOW}&namespace=red")
        label = await client.get(f'/api/v1/cost/report?window={WINDOW}&filter=label[app]:"x"&by=team')
    assert [row["key"] for row in page["rows"]] == ["red/A100-40GB", "__other__/__other__"]
    assert (page["before"], page["total"]) == (None, TOTAL)  # no books were kept then
    assert (red["total"], red["platform"]["cost"], label["total"]) == (163.85, 0.0, 163.85)


@pytest.mark.parametrize(("path", "says"), [
    ("report?window=banana", "no window"), ("report?by=wheel", "nothing to group by"),
    ("report?most=0", "whole number"), ("hours?window=3d", "at most 24 hours"),
    ("report?zone=Mars", "is no time zone"), ("series?step=minute", "is not one of"), ("savings?window=x", "no window"),
    ("series?window=3000d&step=hour", "more than 20000 pieces"),
])
async def test_a_wrong_parameter_is_a_sentence(path, says):
    async with costing([]) as client:
        status, body, _ = await client.ask(f"/api/v1/cost/{path}")
    assert (status, body["error"]["code"]) == (400, "BadParameter")
    assert says in body["error"]["message"]


async def test_pages_have_etags_and_are_made_once_in_a_moment():
    async with costing() as client:
        _, first, headers = await client.ask("/api/v1/cost/summary")
        status, _, _ = await client.ask("/api/v1/cost/summary", headers={"If-None-Match": headers["ETag"]})
        every = [await client.get(f"/api/v1/cost/{name}") for name in
                 ("series", "savings", "acks", "prices", "budgets", "attributions")]
    assert status == 304
    assert first["week"]["total"] == TOTAL
    assert every[2]["items"][0]["sentence"] == "this acknowledgement has cost 65.54 USD"
    assert every[3]["items"][0]["pricePerHour"] == "32.77"


async def test_the_port_for_opencost_has_nothing_else():
    async with costing(only_costs=True) as client:
        assert (await client.ask("/api/v1/cost/summary"))[0] == 404
        assert (await client.ask("/api/v1/overview"))[0] == 404
        assert (await client.ask("/healthz"))[0] == 200
        document = await client.get("/api/openapi.json")
    assert set(document["paths"]) == {"/allocation", "/allocation/compute"}


@pytest.mark.parametrize(("auth", "host"), [
    ("email", "127.0.0.1"), ("kube", "0.0.0.0"), ("oidc", "0.0.0.0"), ("proxy", "0.0.0.0"),
])
def test_nobody_unknown_is_answered_beyond_this_machine(auth, host):
    assert app.find_cost_address(9003, auth) == (host, 9003)


async def test_without_a_login_the_port_answers_this_machine_only():
    async with costing(only_costs=True) as client:
        status, body, _ = await client.ask("/allocation?window=7d", headers={"Host": "fallow.example.com"})
    assert (status, body["error"]["code"]) == (403, "Forbidden")


async def test_an_answer_is_json_that_any_program_reads():
    odd = cost_scenes.held("GPU-0", YESTERDAY, YESTERDAY + HOUR, cost_scenes.key("red", "x", team='</script>"\n'),
                           SpendState.held_idle)
    spot = cost_scenes.held("GPU-1", YESTERDAY, YESTERDAY + DAY,
                            cost_scenes.key("red", "y", capacity_type=CapacityType.spot), rate=None)
    async with costing([*odd, *spot]) as client:
        [found] = await OpenCostClient(client).read(window=WINDOW, aggregate="team")
    assert json.loads(json.dumps(found))['</script>"\n']["totalCost"] == pytest.approx(4.09625)
    assert found["red"]["totalCost"] == 0.0
    assert found["red"]["gpuHours"] == 24.0


# ---- one figure, one source ------------------------------------------------------------------------------------------


def saving(hours: float, *, is_realised: bool, at: int = TODAY) -> BookedSaving:
    details = json.dumps({"gpuHours": hours})
    return BookedSaving(
        id=f"{hours}-{at}", at=at, namespace="red", kind=SavingKind.waste,
        saved=10**9 if is_realised else 0, baseline=10**9, actual=0 if is_realised else 10**9,
        details=details, realised=is_realised,
    )


async def test_what_was_given_back_is_the_same_figure_on_the_first_page_in_the_digest_and_on_the_page_of_costs():
    """The audit here knows of a pause of two hours that the books do not claim: nobody adds it."""
    saved = (
        saving(5.0, is_realised=True), saving(3.0, is_realised=False), saving(2.0, is_realised=True, at=YESTERDAY),
    )
    async with cost_scenes.opened(cost_scenes.example(), savings=saved) as ledger, serving(
        make_world(), MANDATE, books=CostBooks(ledger=ledger, saved_until=lambda: NOW - HOUR)
    ) as client:
        await client.kept.enter(entry(Happened.paused, NOW - 5 * HOUR, gpus=2))
        await client.kept.enter(entry(Happened.resumed, NOW - 4 * HOUR))
        first = (await client.get("/api/v1/overview"))["givenBackToday"]
        days = await client.get("/api/v1/savings?window=7d")
        costs = await client.get("/api/v1/cost/savings?window=7d")
        digest = (await client.get("/api/v1/digest?window=7d"))["savings"]
        report = await client.get("/api/v1/cost/report?window=7d")
        idle = (await client.get("/api/v1/digest?window=7d"))["idle"]
    until = units.rfc3339(NOW - HOUR)
    assert first == {"gpuHours": 8.0, "takenGpuHours": 5.0, "source": "books", "until": until}
    assert days["until"] == digest["until"] == until
    assert [day["gpuHours"] for day in days["days"]] == [None] * 5 + [2.0, 8.0]  # no books were kept before
    [line] = costs["lines"]
    assert line["gpuHours"] == days["gpuHours"] == digest["gpuHours"] == 10.0
    assert line["realisedGpuHours"] == digest["takenGpuHours"] == 7.0
    assert costs["saved"] == digest["cost"] == 2.0
    assert report["held"]["heldIdle"] == idle["cost"] == 65.54


@pytest.mark.parametrize(("days", "before"), [(1, None), (2, TOTAL)], ids=["books-began-then", "books-are-older"])
async def test_a_time_before_the_books_is_compared_with_nothing(days, before):
    some = [one for back in range(days) for one in cost_scenes.example(YESTERDAY - back * DAY)]
    async with costing(some) as client:
        page = await client.get(f"/api/v1/cost/report?window={WINDOW}&compare=true")
    assert page["before"] == before
    assert {row["change"] for row in page["rows"]} == {None if before is None else 0.0}


async def test_what_is_not_worked_out_yet_is_not_zero():
    async with costing() as client:
        first = (await client.get("/api/v1/overview"))["givenBackToday"]
        digest = (await client.get("/api/v1/digest?window=7d"))["savings"]
    assert first == {"gpuHours": None, "takenGpuHours": None, "source": "books", "until": None}
    assert (digest["gpuHours"], digest["until"]) == (None, None)


async def test_of_the_days_before_the_books_nothing_is_known_and_that_is_not_zero():
    async with costing() as client:
        series = await client.get("/api/v1/cost/series?window=7d&by=namespace")
        budgets = await client.get("/api/v1/cost/budgets")
    assert series["booksSince"] == budgets["booksSince"] == units.rfc3339(YESTERDAY)
    assert (series["total"][:6], series["total"][6]) == ([None] * 6, TOTAL)
    assert {tuple(one["costs"][:6]) for one in series["series"]} == {(None,) * 6}
