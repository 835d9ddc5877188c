"""`fallow cost budget` and `budget test`, typed: over a pretend API server, with receivers on loopback."""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from click.testing import CliRunner, Result
from tests.unit.clients import loopback
from tests.unit.stories.test_node_pools import DEFINITION

from fallow import names
from fallow.doors.cli import main
from fallow.model.policies import budget_crd
from fallow.sim.servers import store as stores
from fallow.sim.servers.kubernetes import server as servers

NOW = 1_793_700_000.0


class Place:
    """An API server and a receiver in a thread of their own: commands have their own loop."""

    def __init__(self, folder: Path) -> None:
        self.store, self.asked, self._folder = stores.Store(lambda: NOW), list[loopback.Asked](), folder
        self.store.create(budget_crd.define())
        self._stop, self._ready = asyncio.Event(), threading.Event()
        self.status = 202

    def __enter__(self) -> Place:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = servers.KubernetesServer(self.store, lambda: NOW)
        await server.start()
        path = self._folder / "kubeconfig"
        path.write_text(yaml.safe_dump(server.kubeconfig()))
        self.kubeconfig = str(path)
        async with loopback.serve(lambda asked: web.Response(status=self.status, text="ok")) as receiver:
            self.url, self.asked = receiver.url, receiver.asked
            self._ready.set()
            await self._stop.wait()
        await server.stop()

    def put(self, name: str, status: dict[str, Any] | None = None, **spec: Any) -> None:
        self.store.create({
            "apiVersion": "gpuautoscaler.io/v1alpha1", "kind": "CostBudget", "metadata": {"name": name},
            "spec": {"scope": {"type": "team", "teams": ["ml"]}, "budget": {"amount": 1000}, **spec},
            "status": status or {},
        })

    def type(self, *words: str) -> Result:
        return CliRunner().invoke(main.fallow, ["cost", *words, "--kubeconfig", self.kubeconfig])


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv("POD_NAMESPACE", "books")
    with Place(tmp_path) as running:
        yield running


STATUS = {
    "currentSpend": "870.50", "percentageUsed": 87.05, "budgetStatus": "warning", "currency": "USD",
    "lastUpdated": "2026-11-03T00:00:00Z", "enforcementActive": False, "projectedMonthlySpend": "1204.00",
    "period": {"start": "2026-11-01T00:00:00Z", "end": "2026-12-01T00:00:00Z"}, "pace": 1.7,
    "alertsFired": [
        {"alertName": "at-80", "timestamp": "2026-11-02T00:00:00Z", "threshold": 80, "acknowledged": True},
    ],
    "override": {
        "until": "2026-11-03T00:00:00Z", "by": "user:ada", "reason": "release", "asked": "x",
        "since": "2026-11-02T00:00:00Z", "cost": "12.00",
    },
}


def test_budgets_are_listed_and_shown(place: Place) -> None:
    assert place.type("budget").output == "there are no CostBudgets\n"
    place.put("ml-team", STATUS)
    listed = place.type("budget")
    assert listed.exit_code == 0, listed.output
    assert "870.50" in listed.output
    assert "87.0" in listed.output
    assert "its status is old" in listed.output
    shown = place.type("budget", "ml-team").output
    for said in ("team ml", "870.50 of 1,000.00 USD", "1,204.00 USD", "at-80 (seen)", "spent under it: 12.00 USD"):
        assert said in shown
    row = json.loads(place.type("budget", "ml-team", "-o", "json").output)
    assert (row["spent"], row["usedPercent"], row["isStale"]) == ("870.50", 87.05, True)
    missing = place.type("budget", "nobody")
    assert (missing.exit_code, "there is no CostBudget nobody" in missing.output) == (1, True)
    assert place.type("budget", "a", "b").exit_code == 2


def test_a_test_goes_to_every_channel_and_says_what_became_of_it(place: Place) -> None:
    channels = [
        {"type": "webhook", "config": {"url": f"{place.url}/hook"}},
        {"type": "pagerduty", "configSecretRefs": {"routingKey": {"name": "pager", "key": "key"}}},
        {"type": "email", "config": {"to": "lead@example.com"}},
    ]
    place.put("ml-team", STATUS, alerts=[{"threshold": 80, "channels": channels}])
    place.store.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "books"}})
    data = {"key": base64.b64encode(b"s3cret").decode()}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "pager", "namespace": "books"}, "data": data}
    place.store.create(secret)
    done = place.type("budget", "test", "ml-team", "--cost-pagerduty-url", f"{place.url}/v2/enqueue")
    assert done.exit_code == 1  # there is no mail server
    assert done.output.splitlines() == [
        "at-80, webhook-1: delivered", "at-80, pagerduty-1: delivered",
        "at-80, email-1: no mail server is configured: --smtp-url and --email-from",
    ]
    hook, opened, closed = (json.loads(asked.body) for asked in place.asked)
    assert (hook["event"], hook["budget"], hook["percentageUsed"]) == ("test", "ml-team", 87.05)
    assert (opened["event_action"], closed["event_action"], opened["routing_key"]) == ("trigger", "resolve", "s3cret")
    assert "This is a test" in opened["payload"]["summary"]
    assert "s3cret" not in done.output


def test_a_budget_without_channels_has_nothing_to_test(place: Place) -> None:
    place.put("ml-team")
    done = place.type("budget", "test", "ml-team")
    assert (done.exit_code, "has no alert with a channel" in done.output) == (1, True)


def test_a_cluster_without_the_definition_says_how_to_get_it(place: Place) -> None:
    place.store.delete(stores.Key(
        "apiextensions.k8s.io", "CustomResourceDefinition", "", "costbudgets.gpuautoscaler.io"
    ))
    done = place.type("budget")
    assert (done.exit_code, "fallow crds | kubectl apply" in done.output) == (1, True)


@pytest.mark.parametrize(("words", "said"), [
    (("--for", "4h"), "--reason TEXT"), (("--for", "4", "--reason", "x"), "not a duration"),
    (("--reason", "x"), "--for 4h"), (("--for", "4h", "--reason", "a\nb"), "on one line"),
    (("--for", "366d", "--reason", "x"), "at most 365d"),
    (("--for", "0s", "--reason", "x"), "more than 0"),
])
def test_an_override_needs_a_time_and_a_reason(place: Place, words: tuple[str, ...], said: str) -> None:
    done = place.type("override", "ml-team", *words)
    assert (done.exit_code, said in done.output) == (2, True), done.output


def test_how_long_an_override_may_be_is_the_daemons_to_say(place: Place) -> None:
    place.put("ml-team")
    done = place.type("override", "ml-team", "--for", "100h", "--reason", "release")
    assert (done.exit_code, "unless the daemon allows less (--cost-max-override-hours)" in done.output) == (0, True)


def test_an_alert_is_marked_as_seen_beside_others_and_only_one_that_there_is(place: Place) -> None:
    alerts = [{"threshold": 80, "channels": []}, {"name": "spent", "threshold": 100, "channels": []}]
    place.put("ml-team", alerts=alerts)
    assert place.type("budget", "ack", "ml-team", "spent").output.startswith("spent of ml-team is marked as seen")
    assert place.type("budget", "ack", "ml-team", "at-80").exit_code == 0
    assert place.type("budget", "ack", "ml-team", "at-80").output == "at-80 of ml-team was marked as seen already\n"
    found = place.store.find(stores.Key(names.GROUP, "CostBudget", "", "ml-team"))
    assert found is not None
    assert found.object["metadata"]["annotations"][names.ALERT_ACK] == "at-80,spent"
    place.put("other", {"period": STATUS["period"]}, alerts=alerts)
    marked = place.type("budget", "ack", "other", "at-80")
    assert marked.exit_code == 0, marked.output
    assert place.type("budget", "ack", "other", "at-80").output == "at-80 of other was marked as seen already\n"
    found = place.store.find(stores.Key(names.GROUP, "CostBudget", "", "other"))
    assert found is not None
    assert found.object["metadata"]["annotations"][names.ALERT_ACK] == "at-80@2026-11-01T00:00:00Z"
    done = place.type("budget", "ack", "ml-team", "nope")
    assert (done.exit_code, "has no alert nope; it has at-80, spent" in done.output) == (1, True), done.output
    done = place.type("budget", "ack", "ml-team")
    assert (done.exit_code, "ack NAME ALERT" in done.output) == (2, True), done.output


def test_lift_without_anybody_waiting_says_so(place: Place) -> None:
    place.put("ml-team")
    assert place.type("lift", "ml-team").output == "no pod waits for ml-team\n"


def test_lift_of_what_is_not_there_is_no_success(place: Place) -> None:
    done = place.type("lift", "nope")
    assert (done.exit_code, "there is no CostBudget nope" in done.output) == (1, True), done.output


def test_lift_gives_back_what_a_budget_holds_that_is_gone(place: Place) -> None:
    place.store.create(copy.deepcopy(DEFINITION))
    record = json.dumps({"limits": {names.GPU: "9"}, "gpus": "4", "budgets": ["gone"], "since": "2026-11-15T11:58:00Z"})
    place.store.create({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "spec": {"limits": {names.GPU: "4"}},
        "metadata": {"name": "gpu", "annotations": {names.ORIGINAL_LIMITS: record}},
    })
    assert place.type("lift", "nope").exit_code == 1
    done = place.type("lift", "gone")
    assert (done.exit_code, "NodePool gpu has its own limits back" in done.output) == (0, True), done.output
    found = place.store.find(stores.Key("karpenter.sh", "NodePool", "", "gpu"))
    assert found is not None
    assert found.object["spec"] == {"limits": {names.GPU: "9"}}
    assert place.type("lift", "gone").exit_code == 1


@pytest.mark.parametrize(("status", "says"), [
    ({}, "never looked at"),
    ({"currentSpend": "12.00", "lastUpdated": "2026-11-15T11:58:00Z"}, "as of 2026-11-15 11:58 UTC"),
], ids=["never-looked-at", "looked-at"])
def test_a_list_of_budgets_says_of_when_it_is(place: Place, status: dict[str, Any], says: str) -> None:
    place.put("ml-team", status)
    assert place.type("budget").output.splitlines()[2] == says
    place.put("other", {"lastUpdated": "2026-11-15T11:00:00Z"})
    lines = place.type("budget").output.splitlines()
    assert {f"ml-team: {says}", "other: as of 2026-11-15 11:00 UTC"} <= set(lines), lines
