"""Budgets that act, evaluation by evaluation and over restarts: a pretend API server with the real definitions, Slack,
PagerDuty, a webhook and a mail server on loopback; the ledger is what a test says was spent."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from aiohttp import web
from tests import builders
from tests.unit.clients import loopback
from tests.unit.clients.messages import test_channels as channels

from fallow import names, telemetry
from fallow.act import events
from fallow.act.budgets import gates as gating
from fallow.act.budgets import sending, statuses, wires
from fallow.act.notices import facts, senders
from fallow.clients import errors, retry
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config
from fallow.clients.messages import post
from fallow.decide.budgets import plan
from fallow.doors.answers import budgets as answers
from fallow.model import budgets, cluster, cost, units
from fallow.model.policies import attribution_crd, budget_crd
from fallow.model.policies.budget import ClaimWanted
from fallow.model.seen import ABSENT, Known, Register, Unseen
from fallow.observe import budgets as watching
from fallow.observe import claimed, node_pools
from fallow.sim.servers import store as stores
from fallow.sim.servers.kubernetes import server as servers
from fallow.stories import budgets as told
from fallow.stories.turn import Turn

DAY0 = units.parse_instant("2026-11-02T00:00:00Z")
HOUR, DAY = 3600.0, 86400.0
BOX = "books"  # our namespace


class Ledger:
    """What was spent, by namespace, as a test says; it keeps what is told, as a real one would."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {"ml": 0.0}
        self.rows: dict[tuple[str, int, str, str], cost.BookedAlert] = {}
        self.until: float | None = None
        self.problem: errors.ClientError | None = None
        self.hangs = self.is_full = False
        self.unpriced = 0
        self.currency = "USD"
        self.term = 1
        self.readings: list[cost.BudgetReading] = []
        self.savings: list[cost.BookedSaving] = []

    def books(self, clock: Any) -> told.BudgetBooks:
        async def look() -> Any:
            if self.problem:
                raise self.problem
            if self.hangs:
                await asyncio.Event().wait()
            at = clock() if self.until is None else self.until
            return Known(budgets.BooksSeen(currency=self.currency, until=at, began=DAY0 - 60 * DAY))

        async def sums(asked: cost.CostQuery) -> Sequence[cost.CostSum]:
            wanted = [each.values for each in asked.where if each.on.name is cost.DimensionName.namespace]
            meant = {name: spent for name, spent in self.spent.items() if all(name in values for values in wanted)}
            return [
                cost.CostSum(
                    key=tuple(_value(each, name) for each in asked.by), begin=asked.begin, end=asked.end,
                    parts={cost.SpendState.used: cost.Amounts(
                        cost=int(spent * cost.UNIT), unpriced=self.unpriced, gpu_micro_seconds=3_600_000_000,
                    )},
                )
                for name, spent in meant.items()
            ] if asked.step is None else []

        async def recall() -> budgets.AlertMemory:
            return budgets.join(self.rows.values())

        async def keep(records: Sequence[budgets.AlertRecord]) -> None:
            if self.is_full:
                raise errors.Unreachable("no space left on device")
            for record in records:
                for row in budgets.rows(record):
                    self.rows[row.budget_uid, row.period_start, row.alert, row.channel] = row

        async def track(readings: Sequence[cost.BudgetReading]) -> None:
            self.readings += readings

        async def savings(begin: int, end: int) -> Sequence[cost.BookedSaving]:
            return [one for one in self.savings if begin <= one.at < end]

        return told.BudgetBooks(
            look=look, sums=sums, savings=savings, recall=recall, keep=keep, track=track, term=lambda: self.term
        )


def _value(dimension: cost.Dimension, namespace: str) -> str:
    known = {"namespace": namespace, "instance": "p4d.24xlarge", "capacity": "on-demand"}
    return known.get(str(dimension), "")


class Office:
    """The story on its own, with everybody it speaks to; `now` is set by the test."""

    server: servers.KubernetesServer

    def __init__(self, api: kube.Api, store: stores.Store, alerts: wires.AlertWires) -> None:
        self.now, self.api, self.store, self.wires, self.ledger = DAY0 + HOUR, api, store, alerts, Ledger()
        self.namespaces: Register[cluster.Namespace] = Register(
            {"ml": cluster.Namespace("ml", {"team": "ml-team"}, {})}
        )
        self.pods: Any = ABSENT
        self.leads = True
        self.nodes: Register[cluster.Node] = Register({})
        self.terms, self.frozen = plan.BudgetTerms(enforces=True), ""
        self.metrics = telemetry.Telemetry()
        self.start()

    def start(self) -> None:
        """A process begins: it knows what the books and the statuses say."""
        self.known, self.shown = watching.watch_budgets(self.api), watching.watch_attributions(self.api)
        sights = told.BudgetSights(
            budgets=lambda: self.known.seen, attributions=lambda: self.shown.seen,
            namespaces=lambda: self.namespaces, pods=lambda: self.pods, nodes=lambda: self.nodes,
            node_pools=lambda: node_pools.find(self.api), frozen=lambda now: self.frozen,
        )
        hands = told.BudgetHands(
            api=self.api, wires=self.wires, statuses=statuses.StatusWriter(self.api),
            sender=sending.AlertSender(self.wires, facts.Letterhead("prod", "https://fallow.example"), self.metrics),
            is_gpu=lambda name: name == names.GPU, count_claimed=claimed.ClaimReader(self.api).count_gpus,
            announcer=events.Announcer(self.api, reporting_instance="pod-0"),
        )
        self.story = told.BudgetsStory(
            sights=sights, books=self.ledger.books(lambda: self.now), hands=hands, terms=self.terms,
            metrics=self.metrics,
        )

    def put(self, name: str = "team", *, annotations: dict[str, str] | None = None, **spec: Any) -> None:
        body = {
            "scope": {"type": "namespace", "namespaces": ["ml"]}, "budget": {"amount": 1000, "period": "30d"},
            "startDate": "2026-11-02T00:00:00Z", **spec,
        }
        self.store.create({
            "apiVersion": "gpuautoscaler.io/v1alpha1", "kind": "CostBudget",
            "metadata": {"name": name, "annotations": annotations or {}}, "spec": body,
        })

    def change(self, spec: dict[str, Any], name: str = "team") -> None:
        found = self.object(name)
        key = stores.Key(names.GROUP, "CostBudget", "", name)
        self.store.write(key, {**found, "spec": {**found["spec"], **spec}}, stores.Writer("test"))

    def object(self, name: str = "team", kind: str = "CostBudget") -> dict[str, Any]:
        found = self.store.find(stores.Key(names.GROUP, kind, "", name))
        assert found is not None
        return found.object

    def status(self, name: str = "team", kind: str = "CostBudget") -> dict[str, Any]:
        return self.object(name, kind).get("status") or {}

    def conditions(self, name: str = "team") -> dict[str, tuple[str, str]]:
        return {one["type"]: (one["status"], one["reason"]) for one in self.status(name)["conditions"]}

    def message(self, kind: str, name: str = "team") -> str:
        return next(one["message"] for one in self.status(name)["conditions"] if one["type"] == kind)

    async def tick(self, spent: float | None = None, at: float | None = None) -> told.BudgetCycle:
        self.now = self.now + 60 if at is None else at
        if spent is not None:
            self.ledger.spent["ml"] = spent
        await self.known.list_once()
        await self.shown.list_once()
        return await self.story.tick(Turn(
            clock=lambda: self.now, monotonic=lambda: 0.0, budget=60.0, stopping=asyncio.Event(),
            leads=lambda: self.leads,
        ))


class Town:
    """Whom the office speaks to."""

    def __init__(self, office: Office, slack: loopback.Loopback, others: loopback.Loopback, inbox: Any) -> None:
        self.office, self.slack, self.others, self.inbox = office, slack, others, inbox

    def channel(self, kind: str, **more: Any) -> dict[str, Any]:
        settings = {
            "slack": {"webhook": f"{self.slack.url}/services/T/B/s3cret"}, "email": {"to": "lead@example.com"},
            "pagerduty": {"routingKey": "k3y"}, "webhook": {"url": f"{self.others.url}/hook", "authHeader": "Token t"},
        }
        return {"type": kind, "config": settings[kind], **more}

    def events(self, path: str = "/v2/enqueue") -> list[dict[str, Any]]:
        return [json.loads(asked.body) for asked in self.others.asked if asked.path == path]


@contextlib.asynccontextmanager
async def town(tmp_path: Path, slack: loopback.Answer | None = None) -> AsyncIterator[Town]:
    async with contextlib.AsyncExitStack() as stack:
        store = stores.Store(lambda: DAY0)
        server = servers.KubernetesServer(store, lambda: DAY0)
        for definition in (budget_crd.define(), attribution_crd.define()):
            store.create(definition)
        await server.start()
        stack.push_async_callback(server.stop)
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(server.kubeconfig()))
        access = config.load_access(kubeconfig=str(path), context=None, environment={})
        api = await stack.enter_async_context(kube.Api(access, qps=10_000))
        hook = await stack.enter_async_context(loopback.serve(slack or (lambda asked: web.Response(text="ok"))))
        others = await stack.enter_async_context(loopback.serve(lambda asked: web.Response(status=202)))
        inbox = channels.Inbox()
        port = await stack.enter_async_context(channels.smtp(inbox))
        hasty = retry.Patience(tries=1, first_wait=0.001)
        poster = await stack.enter_async_context(post.Poster({}, patience=hasty))
        server_of_mail = channels.server_at(port)
        secrets = senders.SecretReader(api, BOX, monotonic=lambda: office.now)
        sender = senders.Senders(poster, secrets, server_of_mail)
        office = Office(api, store, wires.AlertWires(poster, sender, secrets, f"{others.url}/v2/enqueue"))
        office.server = server
        yield Town(office, hook, others, inbox)


@pytest.mark.accepts("cost", 14)
async def test_over_a_hundred_evaluations_and_a_restart_one_message_each(tmp_path: Path) -> None:
    async with town(tmp_path) as place:
        office = place.office
        office.put(alerts=[
            {"threshold": 80, "channels": [place.channel("slack")]},
            {"threshold": 100, "severity": "critical", "channels": [
                place.channel("email"), place.channel("pagerduty"), place.channel("webhook"),
            ]},
        ])
        for turn in range(100):
            if turn == 60:
                office.start()
            await office.tick(turn * 11.0)
        assert len(place.slack.asked) == 1
        assert len(place.inbox.letters) == 1
        [opened] = place.events()
        start = "2026-11-02T00:00:00Z"
        uid = office.object()["metadata"]["uid"]
        assert opened["dedup_key"] == f"fallow/{uid}/{start}/at-100"
        assert (opened["event_action"], opened["payload"]["severity"]) == ("trigger", "critical")
        [posted] = place.events("/hook")
        assert (posted["version"], posted["event"], posted["alert"], posted["currency"]) == (
            "1", "fired", "at-100", "USD"
        )
        assert posted["period"] == {"start": start, "end": "2026-12-02T00:00:00Z"}
        assert {one["alertName"] for one in office.status()["alertsFired"]} == {"at-80", "at-100"}
        await office.tick(5.0, at=DAY0 + 30 * DAY + 60)  # a new period
        assert [each["event_action"] for each in place.events()] == ["trigger", "resolve"]
        assert place.events()[1]["dedup_key"] == opened["dedup_key"]
        assert office.status()["alertsFired"] == []
        await office.tick(2000.0)
        assert (len(place.slack.asked), len(place.inbox.letters), len(place.events())) == (2, 2, 3)


@pytest.mark.accepts("cost", 15)
async def test_a_channel_that_is_down_gets_it_once_later_and_others_not_again(tmp_path: Path) -> None:
    is_down = True

    def answer(asked: loopback.Asked) -> web.Response:
        return web.Response(status=500) if is_down else web.Response(text="ok")

    async with town(tmp_path, answer) as place:
        office = place.office
        office.put(alerts=[{"threshold": 80, "channels": [place.channel("slack"), place.channel("email")]}])
        await office.tick(10.0)
        for _ in range(10):
            await office.tick(900.0)
        tried = len(place.slack.asked)
        assert 3 <= tried <= 6  # after 30 s, then twice as long each time; we look once a minute
        assert len(place.inbox.letters) == 1
        is_down = False
        office.start()
        for _ in range(30):
            await office.tick(900.0)
        assert (len(place.slack.asked), len(place.inbox.letters)) == (tried + 1, 1)
        text = office.metrics.text().decode()
        assert 'budget_alerts_total{budget="team",channel="slack",outcome="delivered"} 1.0' in text


@pytest.mark.accepts("cost", 15)
async def test_a_channel_that_is_down_for_a_day_is_given_up_and_not_asked_again(tmp_path: Path) -> None:
    async with town(tmp_path, lambda asked: web.Response(status=500)) as place:
        office = place.office
        office.put(alerts=[{"threshold": 80, "channels": [place.channel("slack")]}])
        began = office.now
        await office.tick(900.0)
        for half_hours in range(1, 50):
            await office.tick(at=began + half_hours * HOUR / 2)
        tried = len(place.slack.asked)
        assert 24 <= tried <= 30  # twice as long each time, and then once an hour
        for hours in range(25, 72):
            await office.tick(at=began + hours * HOUR)
        assert len(place.slack.asked) == tried
        [record] = (await office.ledger.books(lambda: office.now).recall()).values()
        assert [(each.event, each.state) for each in record.sendings] == [("fired", "given_up")]


@pytest.mark.accepts("cost", 15)
async def test_what_a_channel_did_not_take_before_the_period_ended_comes_later_and_says_of_when_it_is(
    tmp_path: Path
) -> None:
    is_down = True

    def answer(asked: loopback.Asked) -> web.Response:
        return web.Response(status=500) if is_down else web.Response(text="ok")

    async with town(tmp_path, answer) as place:
        office, hook = place.office, {"type": "webhook", "config": {"url": f"{place.slack.url}/hook"}}
        office.put(alerts=[{"threshold": 100, "channels": [place.channel("slack"), hook]}])
        await office.tick(10.0, at=DAY0 + 30 * DAY - 180)
        await office.tick(1200.0, at=DAY0 + 30 * DAY - 90)
        tried, is_down = len(place.slack.asked), False
        for minute in range(1, 30):
            await office.tick(5.0, at=DAY0 + 30 * DAY + 60 * minute)
        sent = [json.loads(asked.body) for asked in place.slack.asked[tried:]]
        [said] = [one["text"] for one in sent if "text" in one]
        assert said == "Budget team: at-100 fired in the period from 2026-11-02, which is over."
        told = [(one["event"], one["currentSpend"], one["period"]["start"]) for one in sent if "event" in one]
        assert told == [("fired", None, "2026-11-02T00:00:00Z"), ("resolved", "5.00", "2026-12-02T00:00:00Z")]


@pytest.mark.accepts("cost", 16)
async def test_a_missing_secret_is_named_other_channels_fire_and_no_value_is_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor in what is said at the finest level, nor where the other side fails and says the address it was called by."""
    caplog.set_level(logging.DEBUG)

    def fail_first(asked: Any) -> web.Response:
        is_first = len(place.slack.asked) == 1
        return web.Response(text=f"nobody at {asked.path}", status=500) if is_first else web.Response(text="ok")

    async with town(tmp_path, fail_first) as place:
        office, stored = place.office, list[Any]()
        office.store.subscribe(lambda change: stored.append(change.entry.object))
        lost = {"type": "slack", "configSecretRefs": {"webhook": {"name": "nowhere", "key": "url"}}}
        office.put(alerts=[{"threshold": 80, "channels": [lost, place.channel("email")]}])
        await office.tick(10.0)
        assert office.conditions()["Ready"] == ("False", "SecretMissing")
        assert office.message("Ready") == "the key url of the Secret nowhere: it is not there"
        await office.tick(900.0)
        assert (len(place.slack.asked), len(place.inbox.letters)) == (0, 1)
        url = base64.b64encode(f"{place.slack.url}/services/x/y/s3cret".encode()).decode()
        metadata = {"name": "nowhere", "namespace": BOX}
        office.store.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": BOX}})
        office.store.create({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"url": url}})
        for _ in range(20):
            await office.tick(900.0)
            stored.append(repr(office.ledger.rows))
        assert office.conditions()["Ready"] == ("True", "Valid")
        assert [asked.path for asked in place.slack.asked] == ["/services/x/y/s3cret"] * 2
        shown = json.dumps(stored) + caplog.text + office.metrics.text().decode()
        assert ("nobody at" in shown, "s3cret" in shown) == (True, False)


async def test_the_status_is_decimal_text_adds_up_and_is_written_only_on_change(tmp_path: Path) -> None:
    async with town(tmp_path) as place:
        office = place.office
        office.put(scope={"type": "cluster"})
        office.ledger.spent = {f"team-{number:02}": 10.001 for number in range(30)}
        await office.tick()
        status = office.status()
        parts = status["breakdown"]["byNamespace"]
        assert (len(parts), "__other__" in parts) == (21, True)
        assert sum(round(float(each) * 100) for each in parts.values()) == round(float(status["currentSpend"]) * 100)
        assert (status["currentSpend"], status["budgetStatus"], status["percentageUsed"]) == ("300.03", "ok", 30.0)
        assert (status["pace"] > 0, status["daysRemaining"]) == (True, 30.0)
        version = office.object()["metadata"]["resourceVersion"]
        frozen = office.now
        office.ledger.spent = dict(office.ledger.spent)
        await office.tick(at=frozen)
        assert office.object()["metadata"]["resourceVersion"] == version


@pytest.mark.accepts("cost", 17)
async def test_it_throttles_after_its_grace_and_a_higher_amount_lifts_it_and_gates_go(tmp_path: Path) -> None:
    async with town(tmp_path) as place:
        office = place.office
        office.put(enforcement={"mode": "throttle", "gracePeriod": "2h", "throttleConfig": {"maxGPUs": 0}})
        begin = DAY0 + DAY
        cycle = await office.tick(1200.0, at=begin)
        assert (cycle.restricts, office.conditions()["Enforcing"]) == ((), ("False", "GracePeriod"))
        await office.tick(at=begin + 2 * HOUR - 60)
        assert office.status()["enforcementActive"] is False
        cycle = await office.tick(at=begin + 2 * HOUR)
        assert office.status()["enforcementActive"] is True
        assert [(each.budget, each.mode) for each in cycle.restricts] == [("team", "throttle")]
        gated(office, "first", DAY0 + 10)
        await office.tick()
        assert gates_of(office, "first") == ["other.example/gate", names.BUDGET_GATE]
        office.change({"budget": {"amount": 5000, "period": "30d"}})
        cycle = await office.tick()
        assert cycle.restricts == ()
        assert office.status()["enforcementActive"] is False
        assert gates_of(office, "first") == ["other.example/gate"]


@pytest.mark.accepts("cost", 15)
async def test_channels_that_never_answer_keep_nobody_elses_status_from_being_of_now(tmp_path: Path) -> None:
    """The webhook restricts by statuses of now: whoever may write one budget must not set all others free."""
    known, waiting, all_there = list[str](), 0, asyncio.Event()

    async def answer(asked: Any) -> web.Response:
        nonlocal waiting
        waiting += 1
        known.append(place.office.status("zebra").get("lastUpdated", ""))
        if waiting == 3:
            all_there.set()
        await all_there.wait()  # one after the other they would wait for ever
        return web.Response(text="ok")

    async with town(tmp_path, answer) as place:
        place.office.put("ant", alerts=[{"threshold": 1, "channels": [place.channel("slack")] * 3}])
        place.office.put("zebra")
        await place.office.tick(250.0)
        assert known == [units.rfc3339(place.office.now)] * 3


@pytest.mark.parametrize("asks", [
    {"containers": [{"name": "main", "image": "x"}]},  # for a part, by an annotation
    {"containers": [{"name": "main", "image": "x"}], "initContainers": [
        {"name": "first", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}},
    ]},
], ids=["a-part", "at-its-start"])
async def test_who_asks_for_a_gpu_in_another_way_goes_past_no_cap(tmp_path: Path, asks: dict[str, Any]) -> None:
    async with town(tmp_path) as place:
        office = place.office
        office.put(enforcement={"mode": "throttle", "gracePeriod": "0s", "throttleConfig": {"maxGPUs": 0}})
        await office.tick(1200.0, at=DAY0 + DAY)
        gated(office, "first", DAY0 + 10, **asks)
        await office.tick()
        assert gates_of(office, "first") == ["other.example/gate", names.BUDGET_GATE]


@pytest.mark.parametrize(("count", "goes_on"), [(2, True), (3, False), (None, False)], ids=["fits", "more", "gone"])
async def test_a_pod_that_waits_counts_as_what_its_template_of_claims_asks_for(
    tmp_path: Path, count: int | None, goes_on: bool
) -> None:
    async with town(tmp_path) as place:
        office = place.office
        office.put(enforcement={"mode": "throttle", "gracePeriod": "0s", "throttleConfig": {"maxGPUs": 2}})
        await office.tick(1200.0, at=DAY0 + DAY)
        if count is not None:
            asks = [{"name": "gpu", "exactly": {"deviceClassName": names.DRA_GPU_CLASS, "count": count}}]
            office.store.create({
                "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
                "metadata": {"name": "gpus", "namespace": "ml"}, "spec": {"spec": {"devices": {"requests": asks}}},
            })
        claims = [{"name": "gpu", "resourceClaimTemplateName": "gpus"}]
        gated(office, "first", DAY0 + 10, containers=[{"name": "main", "image": "x"}], resourceClaims=claims)
        await office.tick()
        assert (names.BUDGET_GATE not in gates_of(office, "first")) is goes_on


@pytest.mark.parametrize("throttle", [
    {"blockOnDemand": True}, {"blockOnDemand": True, "maxGPUs": 100}, {"blockOnDemand": True, "maxSpotInstances": 9},
], ids=["alone", "with-room-for-gpus", "with-room-for-nodes"])
async def test_who_is_unfit_for_spot_waits_over_restarts_until_the_budget_is_lifted(
    tmp_path: Path, throttle: dict[str, Any]
) -> None:
    cheap = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]}]},
    ]}}}
    async with town(tmp_path) as place:
        office = place.office
        office.put(enforcement={"mode": "throttle", "gracePeriod": "0s", "throttleConfig": throttle})
        await office.tick(10.0, at=DAY0 + DAY)
        await office.tick(1200.0)
        gated(office, "unfit", DAY0 + 10)
        gated(office, "fit", DAY0 + 20, affinity=cheap)
        await office.tick()
        office.start()
        await office.tick()
        assert office.status()["enforcementActive"] is True
        assert gates_of(office, "unfit") == ["other.example/gate", names.BUDGET_GATE]
        assert gates_of(office, "fit") == ["other.example/gate"]
        office.change({"budget": {"amount": 5000, "period": "30d"}})
        await office.tick()
        assert gates_of(office, "unfit") == ["other.example/gate"]


@pytest.mark.accepts("cost", 17)
@pytest.mark.parametrize("after", [60.0, 14 * 60.0, HOUR], ids=[
    "at-once", "as-long-as-an-old-status-counts", "nobody-could-look-meanwhile",
])
async def test_who_is_gated_by_a_status_from_before_the_lift_goes_on_too(tmp_path: Path, after: float) -> None:
    """A webhook whose watch is behind puts gates for as long as it believes what it saw."""
    async with town(tmp_path) as place:
        office = place.office
        office.put(enforcement={"mode": "throttle", "gracePeriod": "0s", "throttleConfig": {"maxGPUs": 0}})
        await office.tick(1200.0, at=DAY0 + DAY)
        office.change({"budget": {"amount": 5000, "period": "30d"}})
        await office.tick()
        assert office.status()["enforcementActive"] is False
        gated(office, "late", DAY0 + 10)
        await office.tick(at=office.now + after)
        assert gates_of(office, "late") == ["other.example/gate"]
        await office.tick(at=office.now + HOUR)
        asked = office.api.requests_sent
        await office.tick()
        assert office.api.requests_sent == asked + 3  # two lists of ours and a status: no pods any more


async def test_statuses_are_written_before_any_gate_goes_and_strangers_claims_are_not_read(tmp_path: Path) -> None:
    """Else pods that any tenant may make, with claims by the dozen, take the time in which statuses stay of now."""
    async with town(tmp_path) as place:
        office, changed = place.office, list[str]()
        office.put(enforcement={"mode": "throttle", "gracePeriod": "0s", "throttleConfig": {"maxGPUs": 0}})
        office.put("zebra")
        office.store.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "stranger"}})
        for number in range(5):
            claims = [{"name": f"c{each}", "resourceClaimName": f"{number}-{each}"} for each in range(10)]
            gated(office, f"x{number}", DAY0, namespace="stranger", resourceClaims=claims)
        office.store.subscribe(lambda change: changed.append(change.entry.key.kind))
        asked = office.api.requests_sent
        await office.tick(1200.0, at=DAY0 + DAY)
        kinds = [kind for kind in changed if kind in ("CostBudget", "Pod")]
        assert kinds == ["CostBudget"] * 2 + ["Pod"] * 5
        assert office.api.requests_sent - asked < 20


async def test_what_cannot_be_counted_counts_as_one_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Else one pod whose claim cannot be read holds back all others of its scope, and one for all of a node never
    goes on."""
    world = builders.World()
    world.workload("ml/llm")
    seen = world.snapshot()
    pods = tuple(msgspec.structs.replace(pod, claimed=None) for pod in seen.pods)
    async with town(tmp_path) as place:
        office = place.office
        office.pods = Known(watching.find_traits(pods, seen.workloads, seen.namespaces))
        office.put(enforcement={
            "mode": "throttle", "gracePeriod": "0s", "throttleConfig": {"maxGPUs": len(pods) + 1},
        })
        asks = [{"name": "gpu", "exactly": {"deviceClassName": names.DRA_GPU_CLASS, "allocationMode": "All"}}]
        office.store.create({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": "node", "namespace": "ml"}, "spec": {"devices": {"requests": asks}},
        })
        await office.tick(1200.0, at=DAY0 + DAY)
        claims = [{"name": "gpu", "resourceClaimName": "node"}]
        gated(office, "all", DAY0 + 10, containers=[{"name": "main", "image": "x"}], resourceClaims=claims)
        gated(office, "more", DAY0 + 20)
        await office.tick()
        assert gates_of(office, "all") == ["other.example/gate"]
        assert gates_of(office, "more") == ["other.example/gate", names.BUDGET_GATE]
        assert f"how many GPUs {len(pods) + 1} pods ask for: each counts as one" in caplog.text


async def test_claims_that_take_too_long_to_read_hold_up_nobody(tmp_path: Path) -> None:
    async def hang(namespace: str, claims: Sequence[ClaimWanted]) -> Any:
        await asyncio.Event().wait()

    named = (ClaimWanted(resource_claim_name="a"), ClaimWanted(resource_claim_name="b"))
    pod = budgets.GatedPod(
        ref=cluster.Ref("", "v1", "Pod", "ml", "x", "x"), created_at=0.0, gpus=1, budgets=(), gates=(), claims=named
    )
    [found] = await gating.count([pod], hang, within=0.01)
    assert (found.gpus, found.is_counted) == (3, False)


def gated(office: Office, name: str, created: float, *, namespace: str = "ml", **more: Any) -> None:
    spec = {
        "containers": [{"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
        "schedulingGates": [{"name": "other.example/gate"}, {"name": names.BUDGET_GATE}], **more,
    }
    metadata = {"name": name, "namespace": namespace, "annotations": {names.GATED_BY: "team"}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}
    office.store.create(pod)


def gates_of(office: Office, name: str) -> list[str]:
    found = office.store.find(stores.Key("", "Pod", "ml", name))
    assert found is not None
    return [gate["name"] for gate in found.object["spec"].get("schedulingGates", [])]


def events_of(office: Office, name: str = "team") -> list[tuple[str, str, str]]:
    """Type, reason and note, in their order."""
    kept = (each.object for each in office.store.entries("", "Event"))
    mine = [each for each in kept if each["involvedObject"]["name"] == name]
    assert all(each["involvedObject"]["kind"] == "CostBudget" and each["involvedObject"]["uid"] for each in mine)
    mine.sort(key=lambda each: (each["eventTime"], int(each["metadata"]["resourceVersion"])))
    return [(each["type"], each["reason"], each["message"]) for each in mine]


async def test_what_becomes_of_a_budget_is_an_event_on_it_once_over_restarts(tmp_path: Path) -> None:
    async with town(tmp_path) as place:
        office, begin = place.office, DAY0 + DAY
        office.put(enforcement={"mode": "block", "gracePeriod": "1h"})
        await office.tick(900.0, at=begin - 60)
        assert events_of(office) == []
        for minute in range(61):
            if minute % 20 == 0:
                office.start()
            await office.tick(1200.0, at=begin + minute * 60)
        told_of = events_of(office)
        assert [each[:2] for each in told_of] == [("Warning", "BudgetExceeded"), ("Warning", "BudgetEnforced")]
        assert told_of[0][2].startswith("1,200.00 of 1,000.00 USD are spent; exceeded since 2026-11-03T00:00:00Z: ")
        assert told_of[1][2] == (
            "new GPU pods of namespaces ml are denied: exceeded since 2026-11-03T00:00:00Z: block; "
            "override: fallow cost override team --for 4h --reason TEXT"
        )
        found = office.object()
        said = {names.OVERRIDE_UNTIL: units.rfc3339(begin + 3 * HOUR), names.OVERRIDE_BY: "ada",
                names.OVERRIDE_REASON: "release"}
        changed = {**found, "metadata": {**found["metadata"], "annotations": said}}
        office.store.write(stores.Key(names.GROUP, "CostBudget", "", "team"), changed, stores.Writer("test"))
        await office.tick()
        await office.tick()
        assert [each[:2] for each in events_of(office)[2:]] == [
            ("Warning", "BudgetOverridden"), ("Normal", "BudgetLifted"),
        ]
        assert events_of(office)[2][2] == "ada lets it be exceeded until 2026-11-03T03:00:00Z: release"
        await office.tick(at=begin + 3 * HOUR)  # it ends, and the budget restricts again: that is news
        assert events_of(office)[4][1] == "BudgetEnforced"


async def test_a_status_that_cannot_be_written_is_told_of_by_no_event(tmp_path: Path) -> None:
    """Who denies pods reads the status: what does not stand there is not so."""
    async with town(tmp_path) as place:
        office = place.office
        office.put(enforcement={"mode": "block", "gracePeriod": "0s"})
        key = stores.Key(names.GROUP, "CostBudget", "", "team")
        await office.known.list_once()
        office.store.delete(key)
        office.ledger.spent["ml"] = 1200.0
        office.now += 60
        await office.story.tick(Turn(
            clock=lambda: office.now, monotonic=lambda: 0.0, budget=60.0, stopping=asyncio.Event(), leads=lambda: True
        ))
        assert events_of(office) == []


async def test_in_another_currency_no_metric_says_dollars(tmp_path: Path) -> None:
    async with town(tmp_path) as place:
        office = place.office
        office.ledger.currency = "EUR"
        office.put()
        office.put("dollars", budget={"amount": 5, "currency": "USD"})
        await office.tick(250.0, at=DAY0 + 10 * DAY)
        text = office.metrics.text().decode()
        assert 'gpu_autoscaler_budget_spend_cost{budget="team",currency="EUR"} 250.0' in text
        assert 'gpu_autoscaler_budget_projected_cost{budget="team",currency="EUR"}' in text
        assert "gpu_autoscaler_budget_spend_usd{" not in text
        assert 'budget="dollars"' not in text.replace('enforcement_active{budget="dollars"', "")
        assert office.conditions("dollars")["Ready"] == ("False", "CurrencyMismatch")


@pytest.mark.parametrize(("change", "reason"), [
    (lambda office: setattr(office.ledger, "until", DAY0), "LedgerStale"),
    (lambda office: setattr(office.ledger, "problem", errors.Unreachable("the database is away")), "NotReady"),
    (lambda office: setattr(office, "namespaces", Register({}, Unseen("forbidden"))), "NotReady"),
])
async def test_what_is_not_known_restricts_nobody_and_what_was_known_stays(
    tmp_path: Path, change: Any, reason: str
) -> None:
    async with town(tmp_path) as place:
        office = place.office
        selector = {"type": "namespace", "namespaceSelector": {"matchLabels": {"team": "ml-team"}}}
        office.put(scope=selector, enforcement={"mode": "block", "gracePeriod": "0s"}, alerts=[
            {"threshold": 200, "channels": [place.channel("slack")]},
        ])
        await office.tick(1200.0, at=DAY0 + DAY)
        assert office.status()["enforcementActive"] is True
        change(office)
        office.ledger.spent["ml"] = 9000.0
        await office.tick()
        assert office.conditions()["Enforcing"] == ("False", reason)
        assert office.status()["enforcementActive"] is False
        if reason == "NotReady":
            assert office.status()["currentSpend"] == "1200.00"
            assert place.slack.asked == []


@pytest.mark.accepts("cost", 21)
async def test_a_deleted_namespace_stays_in_the_budget_of_that_period(tmp_path: Path) -> None:
    async with town(tmp_path) as place:
        office = place.office
        office.put(scope={"type": "namespace", "namespaceSelector": {"matchLabels": {"team": "ml-team"}}})
        await office.tick(700.0)
        office.namespaces = Register({})
        office.start()
        await office.tick()
        assert office.status()["currentSpend"] == "700.00"
        await office.tick(at=DAY0 + 31 * DAY)
        assert office.status()["currentSpend"] == "0.00"


async def test_a_selector_that_no_namespace_fits_is_said_wherever_the_budget_is_shown(tmp_path: Path) -> None:
    async with town(tmp_path) as place:
        office = place.office
        there = office.namespaces
        office.namespaces = Register({})
        office.put(scope={"type": "namespace", "namespaceSelector": {"matchLabels": {"team": "ml-team"}}})
        await office.tick(700.0)
        assert office.conditions()["Ready"] == ("False", "NoNamespace")
        assert (office.status()["currentSpend"], office.status()["budgetStatus"]) == ("0.00", "ok")
        (problem,) = answers.row(budget_crd.parse(office.object()), "", office.now).problems  # of commands and pages
        assert problem == "no namespace has the labels that spec.scope.namespaceSelector asks for: nobody's cost counts"
        office.namespaces = there
        await office.tick()
        assert office.conditions()["Ready"] == ("True", "Valid")
        assert office.status()["currentSpend"] == "700.00"
        assert answers.row(budget_crd.parse(office.object()), "", office.now).problems == ()


async def test_a_namespace_that_is_not_there_is_said_wherever_the_budget_is_shown(tmp_path: Path) -> None:
    async with town(tmp_path) as place:
        office = place.office
        office.put(scope={"type": "namespace", "namespaces": ["ghost"]})
        await office.tick(700.0)
        assert office.conditions()["Ready"] == ("False", "NoNamespace")
        (problem,) = answers.row(budget_crd.parse(office.object()), "", office.now).problems
        assert problem == (
            "there is no namespace ghost, and nothing was spent in this period: nobody's cost counts"
        )


@pytest.mark.accepts("cost", 21)
async def test_a_namespace_that_is_named_and_was_deleted_stays_in_the_budget_of_that_period(tmp_path: Path) -> None:
    async with town(tmp_path) as place:
        office = place.office
        office.put(scope={"type": "namespace", "namespaces": ["ml", "ghost"]})
        await office.tick(700.0)
        assert office.conditions()["Ready"] == ("True", "Valid")
        assert office.message("Ready") == (
            "every field was understood; there is no namespace ghost now, and what was spent there counts"
        )
        office.namespaces = Register({})
        await office.tick()
        assert office.status()["currentSpend"] == "700.00"
        assert office.conditions()["Ready"] == ("True", "Valid")
        office.namespaces = Register({}, Unseen("nobody may list them"))  # what is not seen is not gone
        await office.tick(0.0, at=DAY0 + 31 * DAY)
        assert (office.status()["currentSpend"], *office.conditions()["Ready"]) == ("0.00", "True", "Valid")
        office.namespaces = Register({})
        await office.tick()
        assert office.conditions()["Ready"] == ("False", "NoNamespace")


async def test_an_override_is_heeded_shown_with_its_cost_and_ends(tmp_path: Path) -> None:
    async with town(tmp_path) as place:
        office = place.office
        said = {
            names.OVERRIDE_UNTIL: units.rfc3339(DAY0 + DAY + 4 * HOUR), names.OVERRIDE_BY: "user:ada",
            names.OVERRIDE_REASON: "release", names.ALERT_ACK: "at-50",
        }
        office.put(
            annotations=said, enforcement={"mode": "block", "gracePeriod": "0s"}, alerts=[{"threshold": 50}]
        )
        await office.tick(1200.0, at=DAY0 + DAY)
        assert office.conditions()["Enforcing"] == ("False", "Overridden")
        held = office.status()["override"]
        assert (held["by"], held["reason"], held["cost"]) == ("user:ada", "release", "1200.00")
        assert office.status()["alertsFired"][0]["acknowledged"] is True
        await office.tick(at=DAY0 + DAY + 4 * HOUR)
        assert office.conditions()["Enforcing"] == ("True", "Enforced")


async def test_what_somebody_has_seen_in_one_period_is_not_seen_in_the_next(tmp_path: Path) -> None:
    """Two alerts: of one its name alone was marked, by hand, which counts for every period."""
    async with town(tmp_path) as place:
        office = place.office
        office.put(annotations={names.ALERT_ACK: f"at-50@{units.rfc3339(DAY0)},at-60"}, alerts=[
            {"threshold": 50}, {"threshold": 60},
        ])
        for at, seen in ((DAY0 + DAY, {"at-50": True, "at-60": True}), (
            DAY0 + 31 * DAY, {"at-50": False, "at-60": True},
        )):
            await office.tick(1.0, at=at)
            await office.tick(1200.0)
            assert {one["alertName"]: one["acknowledged"] for one in office.status()["alertsFired"]} == seen


async def test_an_attribution_shows_its_groups_and_stays_small(tmp_path: Path) -> None:
    async with town(tmp_path) as place:
        office = place.office
        office.store.create({
            "apiVersion": "gpuautoscaler.io/v1alpha1", "kind": "CostAttribution", "metadata": {"name": "all"},
            "spec": {"trackBy": ["namespace", "capacity"]},
        })
        office.ledger.spent = {f"team-{number:04}": 1.005 for number in range(1500)}
        await office.tick()
        status = office.status("all", "CostAttribution")
        assert len(status["groups"]) == 200
        assert status["groups"][-1]["key"] == "__other__"
        cents = [round(float(each["cost"]) * 100) for each in status["groups"]]
        assert sum(cents) == round(float(status["totalCost"]) * 100) == 150750
        assert len(msgspec.json.encode(status)) <= 256 * 1024
        version = office.object("all", "CostAttribution")["metadata"]["resourceVersion"]
        office.ledger.spent["team-0000"] = 50.0
        await office.tick()
        assert office.object("all", "CostAttribution")["metadata"]["resourceVersion"] == version  # within 5 minutes
        await office.tick(at=office.now + 300)
        assert office.status("all", "CostAttribution")["groups"][0]["key"] == "team-0000/on-demand"


async def test_an_attribution_shows_what_was_saved_and_only_what_somebody_measured(tmp_path: Path) -> None:
    def saved(number: int, kind: cost.SavingKind, amount: int, namespace: str = "ml", **said: Any) -> cost.BookedSaving:
        return cost.BookedSaving(
            id=str(number), at=int(DAY0), namespace=namespace, kind=kind, saved=amount * cost.UNIT, baseline=0,
            actual=0, details="{}", **{"realised": True, **said},
        )

    waste, spot, sharing = cost.SavingKind.waste, cost.SavingKind.spot, cost.SavingKind.sharing
    async with town(tmp_path) as place:
        office = place.office
        for name, scope in (("place", {"namespaces": ["ml"]}), ("team", {"teams": ["ml-team"]})):
            office.store.create({
                "apiVersion": "gpuautoscaler.io/v1alpha1", "kind": "CostAttribution", "metadata": {"name": name},
                "spec": {"scope": scope},
            })
        office.ledger.savings = [
            saved(1, waste, 30), saved(2, spot, 10), saved(3, waste, 50, "other"), saved(4, waste, 7, realised=False),
            saved(5, waste, 9, is_dry_run=True), saved(6, sharing, 20),
        ]
        await office.tick(60.0)
        assert office.status("place", "CostAttribution")["savings"] == {
            "total": "60.00", "spot": "10.00", "sharing": "20.00", "wasteEliminated": "30.00",
            "savingsPercentage": 50.0, "baselineCost": "120.00",
        }
        assert "savings" not in office.status("team", "CostAttribution")  # booked by namespace alone: not known


async def test_budgets_that_cannot_be_seen_fail_the_cycle_and_change_nothing(tmp_path: Path) -> None:
    async with town(tmp_path) as place:
        office = place.office
        cycle = await office.story.tick(Turn(
            clock=lambda: office.now, monotonic=lambda: 0.0, budget=60.0, stopping=asyncio.Event(), leads=lambda: True
        ))
        assert "not seen yet" in cycle.failure


@pytest.mark.parametrize(("labels", "is_seen", "goes_on"), [
    ({"karpenter.sh/capacity-type": "spot"}, True, False), ({"cloud.google.com/gke-spot": "true"}, True, False),
    ({"karpenter.sh/capacity-type": "reserved"}, True, True), ({}, False, False),
], ids=["spot", "spot of GKE", "reserved", "a node that is not seen"])
async def test_a_pod_waits_while_its_budget_has_as_many_spot_nodes_as_it_may_or_nobody_knows_how_many(
    tmp_path: Path, labels: dict[str, str], is_seen: bool, goes_on: bool
) -> None:
    world = builders.World()
    world.node("node-1", labels=labels)
    world.workload("ml/llm")
    seen = world.snapshot()
    async with town(tmp_path) as place:
        office = place.office
        office.pods = Known(watching.find_traits(seen.pods, seen.workloads, seen.namespaces))
        office.nodes = seen.nodes if is_seen else Register({}, Unseen("nodes may not be listed"))
        throttle = {"maxSpotInstances": 1}
        office.put(enforcement={"mode": "throttle", "gracePeriod": "0s", "throttleConfig": throttle})
        await office.tick(1200.0, at=DAY0 + DAY)
        gated(office, "first", DAY0 + 10)
        await office.tick()
        assert office.status()["enforcementActive"] is True
        assert (names.BUDGET_GATE not in gates_of(office, "first")) is goes_on


@pytest.mark.parametrize(("ended", "goes_on"), [(False, False), (True, True)], ids=["has-no-node-yet", "has-ended"])
async def test_who_was_let_go_on_and_has_no_node_yet_takes_room(tmp_path: Path, ended: bool, goes_on: bool) -> None:
    """Else every minute as many go on as the cap has room for, and all of them run once there are nodes for them."""
    world = builders.World()
    world.workload("ml/llm")
    seen = world.snapshot()
    phase = "Succeeded" if ended else "Pending"
    pods = tuple(msgspec.structs.replace(pod, node="", phase=phase) for pod in seen.pods)
    async with town(tmp_path) as place:
        office = place.office
        office.pods = Known(watching.find_traits(pods, seen.workloads, seen.namespaces))
        office.put(enforcement={"mode": "throttle", "gracePeriod": "0s", "throttleConfig": {"maxGPUs": 1}})
        await office.tick(1200.0, at=DAY0 + DAY)
        gated(office, "first", DAY0 + 10)
        await office.tick()
        assert (names.BUDGET_GATE not in gates_of(office, "first")) is goes_on


async def test_a_follower_looks_no_longer_than_its_budget(tmp_path: Path) -> None:
    """Books that hang hold up nobody, who leads or not."""
    async with town(tmp_path) as place:
        office = place.office
        office.put()
        await office.known.list_once()
        office.ledger.hangs = True
        turn = Turn(
            clock=lambda: office.now, monotonic=lambda: 0.0, budget=0.05, stopping=asyncio.Event(), leads=lambda: False
        )
        with pytest.raises(errors.ClientError, match="did not end within its budget"):
            await office.story.look(turn)


@pytest.mark.accepts("cost", 16)
@pytest.mark.parametrize("odd", [
    {"type": "webhook", "config": {"url": "http://hooks..example/x"}},
    {"type": "webhook", "config": {"url": "http://127.0.0.1:1/x", "authHeader": "a\r\nX-Evil: 1"}},
    {"type": "email", "config": {"to": "a@b\r\nBcc: x@y"}}, {"type": "email", "config": {"to": "a@["}},
], ids=["host", "header", "line", "bracket"])
async def test_a_channel_that_cannot_be_used_keeps_no_other_from_it(tmp_path: Path, odd: dict[str, Any]) -> None:
    async with town(tmp_path) as place:
        place.office.put("odd", alerts=[{"threshold": 1, "name": "x", "channels": [odd]}])
        place.office.put("plain", alerts=[{"threshold": 1, "name": "x", "channels": [place.channel("slack")]}])
        await place.office.tick(900.0)
        assert len(place.slack.asked) == 1


@pytest.mark.accepts("cost", 14)
async def test_books_that_can_be_read_and_not_written_send_nothing_until_they_can(tmp_path: Path) -> None:
    """For who starts then would not know that it was told. Of a message that went before, all that waits is kept."""
    async with town(tmp_path) as place:
        office = place.office
        office.put(alerts=[{"threshold": each, "channels": [place.channel("slack")]} for each in (80, 90)])
        office.ledger.is_full = True
        for _ in range(5):
            await office.tick(850.0)
        assert (place.slack.asked, office.ledger.rows) == ([], {})
        assert office.status()["currentSpend"] == "850.00"
        office.ledger.is_full = False
        await office.tick()
        office.start()
        await office.tick()
        assert len(place.slack.asked) == 1
        assert [row.state for row in office.ledger.rows.values()] == ["fired"]
        office.ledger.is_full = True
        await office.tick(950.0)
        office.start()  # before anything could be kept: it fires for who starts now
        await office.tick()
        office.ledger.is_full = False
        await office.tick()
        assert len(place.slack.asked) == 2


@pytest.mark.accepts("cost", 14)
async def test_who_does_not_lead_tells_and_writes_nothing(tmp_path: Path) -> None:
    async with town(tmp_path) as place:
        office = place.office
        office.put(alerts=[{"threshold": 80, "channels": [place.channel("slack")]}])
        office.leads = False
        await office.tick(900.0)
        await office.tick()
        assert (place.slack.asked, office.status(), office.ledger.rows, office.ledger.readings) == ([], {}, {}, [])


@pytest.mark.accepts("cost", 14)
async def test_who_leads_again_repeats_nothing_that_another_told_meanwhile(tmp_path: Path) -> None:
    async with town(tmp_path) as place:
        office = place.office
        office.put(alerts=[{"threshold": 80, "channels": [place.channel("slack")]}])
        await office.tick(10.0)
        first, known = office.story, office.known
        office.start()
        office.ledger.term = 2
        await office.tick(900.0)
        office.story, office.known, office.ledger.term = first, known, 3
        await office.tick(900.0)
        assert len(place.slack.asked) == 1
