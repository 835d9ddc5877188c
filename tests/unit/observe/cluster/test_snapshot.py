"""The snapshot and the second look, against a server on the wire; the source of usage notes what it was asked."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib import parse

import msgspec
import numpy as np
import pytest
from tests.unit.observe.cluster import pretend

from fallow import names
from fallow.clients import errors
from fallow.model import long_memory, usage
from fallow.model.cluster import Trouble
from fallow.model.policies import idle
from fallow.model.seen import ABSENT, Input, Known, Unseen, sure
from fallow.model.units import HOUR, Instant, Seconds
from fallow.observe.cluster import mirror, snapshot
from fallow.observe.usage import rows

NOW = 1_794_735_600.0
RULE = idle.Rule(gone_idle=1800.0, never_used=3600.0)


class Notes:
    """A usage source that has measured nothing, and remembers the questions."""

    def __init__(self, clock: Input[Instant] = ABSENT, ignored: tuple[usage.Ignored, ...] = ()) -> None:
        self.questions: list[tuple[Any, ...]] = []
        self.clock, self.ignored = clock, ignored

    async def evidence(
        self, held: rows.Holders, windows: frozenset[Seconds], now: Instant, *, with_floors: bool = True,
        strictest: usage.Strictest | None = None,
    ) -> usage.Evidence:
        self.questions.append(("evidence", [pod.name for pod in held.pods], windows, now))
        return usage.Evidence(now, {window: _empty(window) for window in windows}, None, 0, {}, (), self.ignored)

    async def again(self, held: rows.Holders, windows: frozenset[Seconds], now: Instant) -> usage.Evidence:
        self.questions.append(("again", [pod.name for pod in held.pods], windows, now))
        return usage.Evidence(now, {}, None, 0, {}, ())

    async def look_back(
        self, seen: usage.Usage, wanted: usage.Candidates, held: rows.Holders, now: Instant, threshold: float
    ) -> usage.Usage:
        self.questions.append(("look_back", seen.window, wanted.rows.tolist(), threshold))
        return msgspec.structs.replace(seen, last_active=np.array([now - 60.0]))


def _empty(window: Seconds) -> usage.Usage:
    none, flags = np.zeros(0), np.zeros(0, dtype=bool)
    pods = np.zeros(0, dtype=np.int32)
    return usage.Usage(
        window=window, pod=pods, gpu=(), model=(), mig=flags, shared=flags, peak={}, count={}, newest={}, interval=none,
        mean={}, exporter_up=flags, exporter_frozen=flags, power_floor=none, last_active=none, observed_since=none,
    )


@pytest.fixture
async def server() -> AsyncIterator[pretend.Server]:
    async with pretend.Server(*pretend.KEDA, *pretend.POLICIES) as running:
        for name in ("ml", "hr"):
            running.put("namespaces", pretend.made(name, namespace=None, kind="Namespace", labels={"team": name}))
        running.put_all(pretend.deployed("llm", pods=2))
        yield running


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def lease() -> dict[str, str]:
    return {}


@pytest.fixture
async def eyes(server: pretend.Server, notes: Notes, lease: dict[str, str]) -> AsyncIterator[snapshot.Eyes]:
    async with server.api() as api, mirror.Mirror(api) as seen:
        await seen.list_all(NOW)
        yield snapshot.Eyes(seen, notes, clock=time.time, lease_annotations=lambda: lease)


async def test_a_snapshot_asks_for_every_window_of_the_rules(eyes: snapshot.Eyes, notes: Notes) -> None:
    taken = await eyes.take_snapshot([RULE, idle.Rule(gone_idle=60.0, never_used=60.0)], NOW)
    assert notes.questions == [("evidence", ["llm-0", "llm-1"], frozenset({60.0, 1800.0, 3600.0}), NOW)]
    assert (taken.taken_at, len(taken.pods), [each.ref.short for each in taken.workloads]) == (
        NOW, 2, ["Deployment/llm"]
    )
    assert set(taken.namespaces.known) == {"ml", "hr"}


async def test_while_nothing_changes_the_same_objects_come_again(eyes: snapshot.Eyes) -> None:
    first, second = await eyes.take_snapshot([RULE], NOW), await eyes.take_snapshot([RULE], NOW + 180)
    for field in ("pods", "nodes", "namespaces", "workloads", "policies"):
        assert getattr(first, field) is getattr(second, field), field
    assert first.version is not None
    assert first.version == second.version


@pytest.mark.parametrize(
    ("plural", "thing"),
    [
        ("pods", pretend.pod("new")), ("nodes", pretend.made("n2", namespace=None, kind="Node")),
        ("namespaces", pretend.made("ml", namespace=None, kind="Namespace", labels={"team": "b"})),
        ("deployments", pretend.deployment("llm", spec={"replicas": 9})),
        ("idlepolicies", pretend.made("p", namespace=None, kind="IdlePolicy", spec={"windows": {"goneIdle": "1h"}})),
    ],
    ids=["pod", "node", "namespace", "workload", "policy"],
)
async def test_whatever_differs_makes_another_version(
    server: pretend.Server, plural: str, thing: pretend.Object
) -> None:
    async with server.api() as api, mirror.Mirror(api) as seen:
        eyes = snapshot.Eyes(seen, Notes(), clock=time.time)
        versions = []
        for cycle in range(4):
            await seen.list_all(NOW)
            versions.append((await eyes.take_snapshot([RULE], NOW)).version)
            if cycle == 1:
                server.put(plural, json.loads(json.dumps(thing)))
    before, same, after, settled = versions
    assert (before == same, same == after, after == settled) == (True, False, True)


async def test_a_second_look_has_no_version(eyes: snapshot.Eyes) -> None:
    (before,) = (await eyes.take_snapshot([RULE], NOW)).workloads
    assert (await eyes.look_again([before], [RULE], NOW)).version is None


async def test_idle_times_are_filled_in_where_asked(eyes: snapshot.Eyes, notes: Notes) -> None:
    taken = await eyes.take_snapshot([RULE], NOW)
    deeper = await eyes.look_back(taken, {(1800.0, 0.01): usage.Candidates(np.array([0]), np.array([np.nan]))}, NOW)
    assert notes.questions[1:] == [("look_back", 1800.0, [0], 0.01)]
    assert deeper.evidence.usage[1800.0].last_active.tolist() == [NOW - 60.0]
    assert deeper.pods is taken.pods


@pytest.mark.parametrize(
    ("marks", "until", "because"),
    [
        ({}, None, ""),
        ({names.FROZEN_UNTIL: "2026-11-15T10:00:00Z", names.FROZEN_BECAUSE: "by ada"}, 1_794_736_800.0, "by ada"),
        ({names.FROZEN_UNTIL: "tomorrow"}, NOW + HOUR, "'tomorrow'"),
    ],
    ids=["not-frozen", "frozen", "unreadable-freezes-too"],
)
async def test_the_freeze_stands_on_the_lease(
    eyes: snapshot.Eyes, lease: dict[str, str], marks: dict[str, str], until: float | None, because: str
) -> None:
    lease |= marks
    taken = await eyes.take_snapshot([RULE], NOW)
    assert (taken.freeze.until if taken.freeze else None) == until
    assert because in (taken.freeze.because if taken.freeze else "")


# ---- clocks ----


@pytest.mark.accepts("idle", 53)
@pytest.mark.parametrize("shift", [-600.0, 600.0], ids=["behind", "ahead"])
async def test_clocks_that_are_apart_fail_the_look(server: pretend.Server, shift: float) -> None:
    async with server.api() as api, mirror.Mirror(api) as seen:
        await seen.list_all(NOW)
        ours = snapshot.Eyes(seen, Notes(), clock=lambda: time.time() + shift)
        with pytest.raises(errors.BadAnswer, match=r"of the API server says .*, ours says .*: nothing is decided"):
            await ours.take_snapshot([RULE], NOW)
        with pytest.raises(errors.BadAnswer, match="of the API server says"):
            await ours.take_inventory(NOW)  # thirty days ahead for a minute would be a month's bill
        theirs = snapshot.Eyes(seen, Notes(Known(time.time() + shift)), clock=time.time)
        with pytest.raises(errors.BadAnswer, match="the clock of Prometheus says"):
            await theirs.take_snapshot([RULE], NOW)
        with pytest.raises(errors.BadAnswer, match="the clock of Prometheus says"):
            await theirs.look_again([], [RULE], NOW)


@pytest.mark.accepts("idle", 53)
async def test_a_clock_that_nobody_tells_fails_the_look_and_a_little_apart_is_nothing(server: pretend.Server) -> None:
    async with server.api() as api, mirror.Mirror(api) as seen:
        await seen.list_all(NOW)
        near = snapshot.Eyes(seen, Notes(Known(time.time())), clock=lambda: time.time() + 50)
        assert (await near.take_snapshot([RULE], NOW)).missing == ()
        silent = snapshot.Eyes(seen, Notes(Unseen("no Date")), clock=time.time)
        with pytest.raises(errors.BadAnswer, match="the clock of Prometheus is not told: no Date: nothing is decided"):
            await silent.take_snapshot([RULE], NOW)
        with pytest.raises(errors.BadAnswer, match="the clock of Prometheus is not told"):
            await silent.look_again([], [RULE], NOW)


async def test_whose_series_do_not_count_is_not_seen_and_told_apart_from_the_rest(server: pretend.Server) -> None:
    ignored = (usage.Ignored("exporter x", "not believed", is_untrusted=True), usage.Ignored("2 series", "odd"))
    async with server.api() as api, mirror.Mirror(api) as seen:
        await seen.list_all(NOW)
        found = (await snapshot.Eyes(seen, Notes(ignored=ignored), clock=time.time).take_snapshot([RULE], NOW)).missing
    assert [(each.what, each.is_untrusted) for each in found] == [("exporter x", True), ("2 series", False)]


# ---- looking past ----


async def looked_at(server: pretend.Server, rules: list[idle.Rule]) -> dict[str, Trouble | None]:
    async with server.api() as api, mirror.Mirror(api) as seen:
        await seen.list_all(NOW)
        eyes = snapshot.Eyes(seen, Notes(), clock=time.time)
        taken = await eyes.take_snapshot([*rules, *(each.rule for each in sure(eyes.policies))], NOW)
        return {str(each.ref): each.trouble for each in taken.workloads}


async def test_a_policy_looks_past_kinds_only_in_the_namespaces_it_selects(server: pretend.Server) -> None:
    server.install("acme.io/v1 trainers Trainer")
    spec = {"namespaceSelector": {"matchLabels": {"team": "hr"}}, "action": {"lookPast": ["Trainer"]}}
    server.put("idlepolicies", pretend.made("hr", namespace=None, kind="IdlePolicy", spec=spec))
    for namespace in ("ml", "hr"):
        top = pretend.made(f"t-{namespace}", kind="Trainer", version="acme.io/v1", namespace=namespace)
        server.put("trainers", top)
        server.put_all(pretend.deployed(f"d-{namespace}", namespace=namespace, owner=top))
    found = await looked_at(server, [])
    assert found == {
        "ml/llm (Deployment)": None, "ml/t-ml (Trainer)": Trouble.ManagedByUnknownOwner, "hr/d-hr (Deployment)": None
    }


# ---- the second look ----


async def test_the_second_look_reads_everything_anew(server: pretend.Server, eyes: snapshot.Eyes, notes: Notes) -> None:
    (before,) = (await eyes.take_snapshot([RULE], NOW)).workloads
    middle = server.kinds["replicasets"].objects["ReplicaSet-llm-rs"]
    server.put("pods", pretend.pod("llm-new", middle))
    server.put("deployments", pretend.deployment("llm", spec={"replicas": 3}, annotations={names.ACK_UNTIL: "x"}))
    fresh = await eyes.look_again([before], [RULE], NOW + 5)
    (after,) = fresh.workloads
    assert after.body == {"spec": {"replicas": 3}}
    assert (after.annotations, after.marks) == ({names.ACK_UNTIL: "x"}, {names.ACK_UNTIL: "x"})
    assert after.resource_version != before.resource_version
    assert [fresh.pods[index].name for index in after.pods] == ["llm-0", "llm-1", "llm-new"]
    assert notes.questions[-1] == ("again", ["llm-0", "llm-1", "llm-new"], frozenset({1800.0, 3600.0}), NOW + 5)


@pytest.mark.parametrize(
    ("selector", "asked"),
    [
        pytest.param({"matchLabels": {"app": "llm", "tier": "gpu"}}, "app=llm,tier=gpu", id="labels"),
        pytest.param(
            {
                "matchLabels": {"app": "llm"},
                "matchExpressions": [
                    {"key": "a", "operator": "In", "values": ["x", "y"]},
                    {"key": "b", "operator": "NotIn", "values": ["z"]}, {"key": "c", "operator": "Exists"},
                    {"key": "d", "operator": "DoesNotExist"},
                ],
            },
            "app=llm,a in (x,y),b notin (z),c,!d",
            id="expressions",
        ),
        pytest.param({"matchLabels": {}}, None, id="empty: it would find all or none"),
        pytest.param(
            {"matchExpressions": [{"key": "a", "operator": "Like", "values": ["x"]}]}, None,
            id="an operator we do not know",
        ),
        pytest.param({"matchLabels": {"app": "llm"}, "matchFields": []}, None, id="a field we do not know"),
        pytest.param(None, None, id="none"),
    ],
)
async def test_its_pods_are_asked_for_by_its_own_selector(
    server: pretend.Server, eyes: snapshot.Eyes, selector: dict[str, Any] | None, asked: str | None
) -> None:
    (before,) = (await eyes.take_snapshot([RULE], NOW)).workloads
    server.put(
        "deployments", pretend.deployment("llm", spec={"replicas": 2} | ({"selector": selector} if selector else {}))
    )
    server.requests.clear()
    await eyes.look_again([before], [RULE], NOW)
    (query,) = [parse.parse_qs(query) for verb, plural, query in server.requests if (verb, plural) == ("list", "pods")]
    assert query.get("labelSelector", [None]) == [asked]


async def test_pods_that_its_pods_started_are_found_too(server: pretend.Server, notes: Notes) -> None:
    """Executors bear labels of their own: the selector of the Job would miss a busy one."""
    job = server.put(
        "jobs",
        pretend.made("train", kind="Job", version="batch/v1", spec={"selector": {"matchLabels": {"job": "train"}}}),
    )
    driver = server.put("pods", pretend.pod("driver", job, labels={"job": "train"}))
    server.put("pods", pretend.pod("executor", driver))
    async with server.api() as api, mirror.Mirror(api) as seen:
        await seen.list_all(NOW)
        eyes = snapshot.Eyes(seen, notes, clock=time.time)
        before = next(each for each in (await eyes.take_snapshot([RULE], NOW)).workloads if each.ref.kind == "Job")
        server.requests.clear()
        fresh = await eyes.look_again([before], [RULE], NOW)
    assert [fresh.pods[index].name for index in fresh.workloads[0].pods] == ["driver", "executor"]
    others = [pod.name for index, pod in enumerate(fresh.pods) if index not in fresh.workloads[0].pods]
    assert others == ["llm-0", "llm-1"], "who else is on the node may explain what its GPUs did"
    assert [
        query
        for verb, plural, query in server.requests
        if (verb, plural) == ("list", "pods") and "labelSelector" in query
    ] == []


async def test_many_workloads_of_a_namespace_are_one_question(server: pretend.Server, notes: Notes) -> None:
    for number in range(30):
        server.put_all(
            pretend.deployed(f"w{number}", spec={"replicas": 1, "selector": {"matchLabels": {"app": f"w{number}"}}})
        )
    async with server.api() as api, mirror.Mirror(api) as seen:
        await seen.list_all(NOW)
        eyes = snapshot.Eyes(seen, notes, clock=time.time)
        before = (await eyes.take_snapshot([RULE], NOW)).workloads
        server.requests.clear()
        fresh = await eyes.look_again(before, [RULE], NOW)
    assert len(fresh.workloads) == len(before) == 31
    assert [plural for verb, plural, _ in server.requests if verb == "list"] == ["pods"]


async def test_it_shows_only_the_workloads_asked_for(server: pretend.Server, eyes: snapshot.Eyes) -> None:
    (before,) = (await eyes.take_snapshot([RULE], NOW)).workloads
    server.put_all(pretend.deployed("other"))
    fresh = await eyes.look_again([before], [RULE], NOW)
    assert [each.ref.short for each in fresh.workloads] == ["Deployment/llm"]
    assert [each.name for each in fresh.pods] == ["llm-0", "llm-1"]


async def test_pods_of_a_new_replica_set_are_found(server: pretend.Server, eyes: snapshot.Eyes) -> None:
    (before,) = (await eyes.take_snapshot([RULE], NOW)).workloads
    newer = server.put(
        "replicasets", pretend.replica_set("llm-rs2", server.kinds["deployments"].objects["Deployment-llm"])
    )
    server.put("pods", pretend.pod("llm-9", newer))
    (after,) = (await eyes.look_again([before], [RULE], NOW)).workloads
    assert len(after.pods) == 3


async def test_companions_are_read_anew(server: pretend.Server, notes: Notes) -> None:
    target = {"scaleTargetRef": {"name": "llm"}}
    server.put("scaledobjects", pretend.made("s", kind="ScaledObject", spec=target))
    server.put(
        "horizontalpodautoscalers",
        pretend.made("h", kind="HPA", spec={"scaleTargetRef": {"apiVersion": "apps/v1", "name": "llm"}}),
    )
    async with server.api() as api, mirror.Mirror(api) as seen:
        await seen.list_all(NOW)
        eyes = snapshot.Eyes(seen, notes, clock=time.time)
        (before,) = (await eyes.take_snapshot([RULE], NOW)).workloads
        assert (len(sure(before.hpas)), sure(before.scaled_objects)[0].annotations) == (1, {})
        server.put(
            "scaledobjects",
            pretend.made("s", kind="ScaledObject", spec=target, annotations={names.KEDA_PAUSED_REPLICAS: "0"}),
        )
        server.remove("horizontalpodautoscalers", "HPA-h")
        (after,) = (await eyes.look_again([before], [RULE], NOW)).workloads
    assert after.hpas == ABSENT
    assert sure(after.scaled_objects)[0].annotations == {names.KEDA_PAUSED_REPLICAS: "0"}


def _forbid(server: pretend.Server) -> None:
    server.forbidden.add(("get", "deployments"))


def _break_pods(server: pretend.Server) -> None:
    server.failing.add(("list", "pods"))


def _delete(server: pretend.Server) -> None:
    server.remove("deployments", "Deployment-llm")


def _recreate(server: pretend.Server) -> None:
    server.remove("deployments", "Deployment-llm")
    server.put("deployments", pretend.made("llm", kind="Reborn", version="apps/v1", spec={"replicas": 1}))


def _empty_it(server: pretend.Server) -> None:
    for number in range(2):
        server.remove("pods", f"Pod-llm-{number}")


@pytest.mark.parametrize(
    ("meanwhile", "because"),
    [
        (_forbid, "cannot get resource"),
        (_break_pods, "etcd is on holiday"),
        (_delete, "it is gone"),
        (_recreate, "it is gone"),
        (_empty_it, "it has no GPU pods any more"),
    ],
    ids=["forbidden", "no-pods-to-be-had", "deleted", "other-uid", "no-pods-left"],
)
async def test_what_cannot_be_seen_a_second_time_is_left_out(
    server: pretend.Server, eyes: snapshot.Eyes, meanwhile: Any, because: str
) -> None:
    (before,) = (await eyes.take_snapshot([RULE], NOW)).workloads
    meanwhile(server)
    fresh = await eyes.look_again([before], [RULE], NOW)
    assert (fresh.workloads, fresh.pods) == ((), ())
    assert [each.what for each in fresh.missing] == ["ml/llm (Deployment)"]
    assert because in fresh.missing[0].because


async def test_the_namespace_is_read_anew(server: pretend.Server, eyes: snapshot.Eyes) -> None:
    (before,) = (await eyes.take_snapshot([RULE], NOW)).workloads
    opted = {names.OPT_OUT: "ignore"}
    server.put("namespaces", pretend.made("ml", namespace=None, kind="Namespace", annotations=opted))
    fresh = await eyes.look_again([before], [RULE], NOW)
    assert fresh.namespaces.known["ml"].annotations == opted
    server.forbidden.add(("get", "namespaces"))
    found = (await eyes.look_again([before], [RULE], NOW)).namespaces.find("ml")
    assert isinstance(found, Unseen)
    assert "ml: " in found.why


async def test_a_pod_with_its_labels_that_is_somebody_elses_stops_the_pause(
    server: pretend.Server, eyes: snapshot.Eyes
) -> None:
    (before,) = (await eyes.take_snapshot([RULE], NOW)).workloads
    selecting = {"replicas": 1, "selector": {"matchLabels": {"app": "llm"}}, "template": {"spec": {}}}
    server.put("deployments", pretend.deployment("llm", spec=selecting))
    job = server.put("jobs", pretend.made("other", kind="Job", version="batch/v1"))
    server.put("pods", pretend.pod("borrowed", job, labels={"app": "llm"}))
    fresh = await eyes.look_again([before], [RULE], NOW)
    assert [each.because for each in fresh.missing] == ["pod borrowed bears its labels and is not its own"]
    assert fresh.workloads == ()


async def test_a_server_that_is_away_raises(server: pretend.Server) -> None:
    async with server.api(timeout=2.0) as api, mirror.Mirror(api) as seen:
        await server._runner.cleanup()
        with pytest.raises(errors.Unreachable):
            await seen.list_all(NOW)


@pytest.mark.parametrize(("remembered", "reported", "window"), [
    (None, None, 1200.0), (1.5, None, 1800.0), (1.5, "40m", 1800.0), (None, "30m", 1800.0), (None, "9d", 4800.0),
    ("{", "45m", 2700.0), (None, "soon", 1200.0),
], ids=["nothing", "lease", "lease-first", "status", "bounded", "lost", "unreadable"])
async def test_a_widened_window_is_known_from_the_lease_or_from_what_was_reported(
    server: pretend.Server, remembered: float | str | None, reported: str | None, window: float
) -> None:
    spec = {"windows": {"goneIdle": "20m"}, "regret": {"autoWiden": True}}
    status = {"status": {"effectiveGoneIdle": reported}} if reported else {}
    server.put("idlepolicies", pretend.made("p", namespace=None, kind="IdlePolicy", spec=spec, **status))
    weeks = (long_memory.RuleWeek("p", remembered, NOW),) if isinstance(remembered, float) else ()
    lease = long_memory.write(long_memory.LongMemory(at=NOW, weeks=weeks))
    lease = {names.MEMORY: remembered} if isinstance(remembered, str) else lease
    async with server.api() as api, mirror.Mirror(api) as seen:
        await seen.list_all(NOW)
        eyes = snapshot.Eyes(seen, Notes(), clock=time.time, lease_annotations=lambda: lease)
        taken = await eyes.take_snapshot([RULE], NOW)
        [asked], [found] = sure(eyes.policies), sure(taken.policies)
    assert (asked.rule.gone_idle, found.rule.gone_idle, found.rule.never_used) == (window,) * 3
