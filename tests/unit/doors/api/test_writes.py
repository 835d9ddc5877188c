"""What people change by the API: each row of the tables of docs/spec/idle.md section 13, over real sockets."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.builders import HOUR
from tests.unit.doors.api.scene import Scene, open_scene

from fallow import names
from fallow.account import audit
from fallow.doors.api import writes
from fallow.model import units
from fallow.model.history import CameBy, Happened
from fallow.model.policies import budget_crd
from fallow.sim.servers import store as stores

LLM: dict[str, Any] = {"namespace": "ml", "kind": "Deployment", "name": "llm"}
ADA = {"token": "of-ada"}


@pytest_asyncio.fixture
async def scene() -> AsyncIterator[Scene]:
    async with open_scene("kube") as running:
        yield running


@pytest_asyncio.fixture
async def open_door() -> AsyncIterator[Scene]:
    """Mode e-mail."""
    async with open_scene("email") as running:
        yield running


# ---- acknowledgements ------------------------------------------------------------------------------------------------


async def test_a_keep_is_written_told_and_audited(scene: Scene) -> None:
    answer = await scene.ask("POST", "/api/v1/acks", {**LLM, "hours": 4, "reason": "demo at 9"}, **ADA)
    assert answer.status == 201
    until = units.rfc3339(scene.now + 4 * HOUR)
    assert answer.body == {
        "until": until, "by": "api:ada", "reason": "demo at 9", "at": units.rfc3339(scene.now), "idleSeconds": None,
        "cost": None,
    }
    marks = scene.marks("llm")
    assert (marks[names.ACK_UNTIL], marks[names.ACK_BY], marks[names.ACK_REASON]) == (until, "api:ada", "demo at 9")
    (entry,) = await scene.audited()
    assert (entry.type, entry.actor, entry.source, entry.reason) == (Happened.kept, "api:ada", CameBy.api, "demo at 9")
    assert entry.detail == f"before: not kept; now: kept until {until}"
    assert scene.changes.revision == 1


async def test_a_keep_may_name_its_end_and_the_kind_for_short(scene: Scene) -> None:
    until = units.rfc3339(scene.now + HOUR)
    answer = await scene.ask("POST", "/api/v1/acks", {**LLM, "kind": "deploy", "until": until}, **ADA)
    assert (answer.status, answer.body["until"]) == (201, until)


BAD_ENDS = {
    "negative": ({"hours": -1}, "BadDuration"), "nothing": ({"hours": 0}, "BadDuration"), "none": ({}, "BadDuration"),
    "both": ({"hours": 1, "until": "2026-11-15T13:00:00Z"}, "BadDuration"),
    "past": ({"until": "2020-01-01T00:00:00Z"}, "BadDuration"), "no-time": ({"until": "tomorrow"}, "BadDuration"),
    "huge": ({"hours": 1e308}, "AckTooLong"), "beyond-the-flags": ({"hours": 101}, "AckTooLong"),
    "words": ({"hours": "four"}, "BadRequest"), "truth": ({"hours": True}, "BadRequest"),
    "list": ({"hours": [4]}, "BadRequest"), "unknown-field": ({"hours": 4, "hour": 4}, "BadRequest"),
}


@pytest.mark.parametrize(("end", "code"), BAD_ENDS.values(), ids=BAD_ENDS)
async def test_an_end_that_is_none_is_refused_in_a_sentence(scene: Scene, end: Any, code: str) -> None:
    before = scene.thing("llm")
    answer = await scene.ask("POST", "/api/v1/acks", {**LLM, **end}, **ADA)
    assert (answer.status, answer.code) == (400, code)
    assert len(answer.message) > 10
    assert scene.thing("llm") == before
    (entry,) = await scene.audited()
    assert (entry.type, entry.actor, entry.code) == (Happened.refused, "api:ada", code)


@pytest.mark.parametrize("text", [b'{"hours": NaN}', b'{"hours": Infinity}', b"[]", b"", b"{", b"\xff", b"[" * 5_000])
async def test_what_is_no_json_of_ours_is_refused(scene: Scene, text: bytes) -> None:
    answer = await scene.ask("POST", "/api/v1/acks", text, **ADA)
    assert (answer.status, answer.code) == (400, "BadRequest")


@pytest.mark.accepts("idle", 20)
async def test_four_hundred_hours_are_too_long(scene: Scene) -> None:
    answer = await scene.ask("POST", "/api/v1/acks", {**LLM, "hours": 400}, **ADA)
    assert (answer.status, answer.code) == (400, "AckTooLong")
    assert names.ACK_UNTIL not in scene.marks("llm")


BAD_WORDS = ["<script>alert(1)</script>", "a\x1b[2Jb", "line\nline", "\u202eevil", "x" * 257, "<img src=x>"]


@pytest.mark.parametrize("reason", BAD_WORDS)
async def test_words_that_a_screen_would_obey_are_refused(scene: Scene, reason: str) -> None:
    answer = await scene.ask("POST", "/api/v1/acks", {**LLM, "hours": 4, "reason": reason}, **ADA)
    assert (answer.status, answer.code) == (400, "BadReason")
    assert "\x1b" not in answer.message


async def test_a_reason_may_compare(scene: Scene) -> None:
    answer = await scene.ask("POST", "/api/v1/acks", {**LLM, "hours": 4, "reason": "loss < 0.1 & falling"}, **ADA)
    assert answer.status == 201


NOT_THERE = {
    "no-such-name": ({"name": "other"}, 404, "NotFound"), "no-such-kind": ({"kind": "Spaceship"}, 404, "NotFound"),
    "foreign-namespace": ({"namespace": "default"}, 404, "NotFound"),
    "no-name": ({"name": "../../secrets"}, 400, "BadName"), "markup": ({"name": "<b>"}, 400, "BadName"),
    "no-namespace": ({"namespace": "ml\x1b["}, 400, "BadName"),
}


@pytest.mark.parametrize(("named", "status", "code"), NOT_THERE.values(), ids=NOT_THERE)
async def test_what_is_not_there_is_said(scene: Scene, named: Any, status: int, code: str) -> None:
    answer = await scene.ask("POST", "/api/v1/acks", {**LLM, "hours": 4, **named}, **ADA)
    assert (answer.status, answer.code) == (status, code)


async def test_what_is_paused_is_not_kept(scene: Scene) -> None:
    answer = await scene.ask("POST", "/api/v1/acks", {**LLM, "name": "off", "hours": 4}, **ADA)
    assert (answer.status, answer.code) == (409, "AlreadyPaused")


async def test_a_keep_is_taken_back(scene: Scene) -> None:
    path = "/api/v1/acks/ml/Deployment/kept"
    assert (await scene.ask("DELETE", path, **ADA)).status == 204
    assert not set(names.ACK_KEYS) & set(scene.marks("kept"))
    (entry,) = await scene.audited()
    assert (entry.type, entry.actor) == (Happened.released, "api:ada")
    assert entry.detail.startswith("before: kept until")
    assert "by user:grace" in entry.detail
    await scene.look_again()
    again = await scene.ask("DELETE", path, **ADA)
    assert (again.status, again.code) == (404, "NotFound")


async def test_a_body_is_small_and_json(scene: Scene) -> None:
    long = await scene.ask("POST", "/api/v1/acks", {**LLM, "hours": 4, "reason": "x" * 70_000}, **ADA)
    assert long.status == 413
    plain = await scene.ask(
        "POST", "/api/v1/acks", {**LLM, "hours": 4}, headers={"Content-Type": "text/plain"}, **ADA
    )
    assert (plain.status, plain.code) == (415, "NotJson")


# ---- by an e-mail address alone --------------------------------------------------------------------------------------

BY_EMAIL = {**LLM, "hours": 8, "email": "ada@example.com"}


async def test_an_address_may_keep_for_a_day(open_door: Scene) -> None:
    answer = await open_door.press("POST", "/api/v1/acks", BY_EMAIL)
    assert (answer.status, answer.body["by"]) == (201, "unverified:ada@example.com")
    assert open_door.marks("llm")[names.ACK_BY] == "unverified:ada@example.com"
    long = await open_door.press("POST", "/api/v1/acks", {**BY_EMAIL, "hours": 25})
    assert (long.status, long.code) == (400, "AckTooLong")


@pytest.mark.parametrize("email", [None, "", "ada", "a@b@c", "<b>@x.org", "ada@example.com\n", "a b@example.com"])
async def test_an_address_must_be_one(open_door: Scene, email: str | None) -> None:
    answer = await open_door.press("POST", "/api/v1/acks", {**BY_EMAIL, "email": email})
    assert (answer.status, answer.code) == (400, "BadEmail")


async def test_only_the_same_address_takes_it_back(open_door: Scene) -> None:
    await open_door.press("POST", "/api/v1/acks", BY_EMAIL)
    await open_door.look_again()
    path = "/api/v1/acks/ml/Deployment/llm"
    other = await open_door.press("DELETE", path, {"email": "eve@example.com"})
    assert (other.status, other.code) == (403, "Forbidden")
    assert (await open_door.press("DELETE", path, {"email": "ada@example.com"})).status == 204


async def test_what_somebody_known_keeps_no_address_takes_over_or_back(open_door: Scene) -> None:
    mine = {**BY_EMAIL, "name": "kept", "hours": 24}
    taken = await open_door.press("POST", "/api/v1/acks", mine)
    assert (taken.status, taken.code) == (409, "AlreadyKept")
    back = await open_door.press("DELETE", "/api/v1/acks/ml/Deployment/kept", {"email": "ada@example.com"})
    assert (back.status, back.code) == (403, "Forbidden")
    assert open_door.marks("kept")[names.ACK_BY] == "user:grace"


async def test_no_address_shortens_what_another_keeps(open_door: Scene) -> None:
    await open_door.press("POST", "/api/v1/acks", BY_EMAIL)
    await open_door.look_again()
    eve = {**BY_EMAIL, "email": "eve@example.com"}
    assert (await open_door.press("POST", "/api/v1/acks", {**eve, "hours": 0.1})).code == "AlreadyKept"
    assert (await open_door.press("POST", "/api/v1/acks", {**eve, "hours": 24})).status == 201


REST = {
    "pause": ("/api/v1/workloads/ml/Deployment/llm/pause", {}), "freeze": ("/api/v1/freeze", {"forSeconds": 60}),
    "resume": ("/api/v1/workloads/ml/Deployment/off/resume", {}),
}


@pytest.mark.parametrize(("path", "body"), REST.values(), ids=REST)
async def test_an_address_may_do_nothing_else_on_loopback_either(open_door: Scene, path: str, body: Any) -> None:
    answer = await open_door.press("POST", path, body)
    assert (answer.status, answer.code) == (403, "Forbidden")
    assert "--dashboard-auth email" in answer.body["missing"]
    assert open_door.thing("off")["spec"]["replicas"] == 0
    assert open_door.thing("llm")["spec"]["replicas"] == 1


async def test_an_address_on_the_net_may_thirty_times_a_minute(open_door: Scene) -> None:
    statuses = [(await open_door.press("POST", "/api/v1/acks", {})).status for _ in range(writes.MOST_BY_EMAIL + 1)]
    assert statuses == [400] * writes.MOST_BY_EMAIL + [429]
    open_door.ticks += 61
    assert (await open_door.press("POST", "/api/v1/acks", BY_EMAIL)).status == 201


# ---- pause and resume ------------------------------------------------------------------------------------------------


def one(name: str, verb: str, namespace: str = "ml") -> str:
    return f"/api/v1/workloads/{namespace}/Deployment/{name}/{verb}"


async def test_a_pause_by_hand_and_the_way_back(scene: Scene) -> None:
    answer = await scene.ask("POST", one("llm", "pause"), {"reason": "nobody needs it"}, **ADA)
    assert (answer.status, answer.body["status"], answer.body["code"]) == (202, "done", None)
    thing = scene.thing("llm")
    assert thing["spec"]["replicas"] == 0
    assert thing["metadata"]["annotations"][names.PAUSED_BY] == "api:ada"
    await scene.look_again()
    again = await scene.ask("POST", one("llm", "pause"), **ADA)
    assert (again.status, again.code) == (409, "AlreadyPaused")
    back = await scene.ask("POST", one("llm", "resume"), **ADA)
    assert (back.status, back.body["status"]) == (202, "done")
    assert scene.thing("llm")["spec"]["replicas"] == 1
    assert scene.marks("llm")[names.RESUMED_BY] == "api:ada"
    told = [(entry.type, entry.actor, entry.code) for entry in await scene.audited()]
    done = [(Happened.resumed, "api:ada", ""), (Happened.refused, "api:ada", "AlreadyPaused")]
    assert told == [*done, (Happened.paused, "api:ada", "")]


async def test_what_runs_is_not_resumed(scene: Scene) -> None:
    answer = await scene.ask("POST", one("llm", "resume"), **ADA)
    assert (answer.status, answer.code) == (409, "AlreadyRunning")


async def test_without_its_record_nothing_is_resumed(scene: Scene) -> None:
    gone = {"metadata": {"annotations": {names.ORIGINAL_STATE: None}}}
    scene.store.patch(stores.Key("apps", "Deployment", "ml", "off"), gone)
    await scene.look_again()
    answer = await scene.ask("POST", one("off", "resume"), **ADA)
    assert (answer.status, answer.code) == (409, "NoOriginalState")


async def test_a_pause_obeys_what_owners_said_unless_forced(scene: Scene) -> None:
    held = await scene.ask("POST", one("kept", "pause"), **ADA)
    assert (held.status, held.code) == (409, "Held")
    assert (await scene.ask("POST", one("safe", "pause", "vault"), **ADA)).code == "Held"
    assert scene.thing("kept")["spec"]["replicas"] == 1
    forced = await scene.ask("POST", one("kept", "pause"), {"reason": "urgent", "force": True}, **ADA)
    assert forced.status == 202


async def test_a_dry_run_says_that_nothing_is_written() -> None:
    async with open_scene("kube", dry_run="server") as scene:
        for path, body in (("/api/v1/acks", {**LLM, "hours": 4}), (one("llm", "pause"), {})):
            answer = await scene.ask("POST", path, body, **ADA)
            assert (answer.status, answer.code) == (409, "DryRun")
        assert names.ACK_UNTIL not in scene.marks("llm")


async def test_a_cluster_that_is_away_is_said(scene: Scene) -> None:
    scene.kubernetes.go_down()
    answer = await scene.ask("POST", "/api/v1/acks", {**LLM, "hours": 4}, **ADA)
    assert (answer.status, answer.code) == (503, "AuthUnavailable")
    async with open_scene("email") as open_door:
        open_door.kubernetes.go_down()
        answer = await open_door.press("POST", "/api/v1/acks", BY_EMAIL)
        assert (answer.status, answer.code) == (503, "ClusterUnavailable")


# ---- freeze ----------------------------------------------------------------------------------------------------------


async def test_a_freeze_stands_on_the_lease(scene: Scene) -> None:
    none = await scene.ask("POST", "/api/v1/freeze", {"forSeconds": 3600, "reason": "release"}, **ADA)
    assert (none.status, none.code) == (404, "NotFound")  # no daemon, no Lease
    scene.store.create({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": names.LEASE, "namespace": "ml"},
        "spec": {},
    })
    answer = await scene.ask("POST", "/api/v1/freeze", {"forSeconds": 3600, "reason": "release"}, **ADA)
    until = units.rfc3339(scene.now + 3600)
    assert answer.body == {"frozen": True, "until": until, "reason": "release (api:ada)", "answer": "nobody"}
    off = await scene.ask("POST", "/api/v1/freeze", {"off": True}, **ADA)
    assert (off.status, off.body["frozen"]) == (200, False)
    assert [entry.type for entry in await scene.audited()] == [Happened.unfrozen, Happened.frozen, Happened.refused]


@pytest.mark.parametrize("body", [{}, {"forSeconds": -1}, {"forSeconds": 1e300}, {"off": True, "forSeconds": 5}])
async def test_a_freeze_needs_an_end(scene: Scene, body: Any) -> None:
    answer = await scene.ask("POST", "/api/v1/freeze", body, **ADA)
    assert (answer.status, answer.code) == (400, "BadDuration")


# ---- the audit -------------------------------------------------------------------------------------------------------


async def test_without_an_audit_nothing_takes_gpus_away(tmp_path: Path) -> None:
    async with open_scene("kube", state_dir=str(tmp_path)) as scene:
        scene.kept._database._connection.execute("PRAGMA busy_timeout=10")
        with contextlib.closing(sqlite3.connect(tmp_path / audit.FILE)) as other:
            other.execute("BEGIN EXCLUSIVE")
            assert (await scene.ask("POST", "/api/v1/acks", {**LLM, "hours": 4}, **ADA)).status == 201
            answer = await scene.ask("POST", one("llm", "pause"), **ADA)
            assert (answer.status, answer.code) == (503, "AuditUnavailable")
            assert scene.thing("llm")["spec"]["replicas"] == 1
            assert (await scene.ask("POST", one("off", "resume"), **ADA)).status == 202
        assert (await scene.ask("POST", "/api/v1/acks", {**LLM, "hours": 5}, **ADA)).status == 201
        written = {entry.type for entry in await scene.audited()}
        assert written == {Happened.kept, Happened.refused, Happened.resumed}


# ---- alerts of budgets -----------------------------------------------------------------------------------------------


SEEN = "/api/v1/cost/budgets/{}/alerts/{}/ack"


def put_budget(scene: Scene, name: str = "team-ml", **annotations: str) -> None:
    scene.store.create(budget_crd.define())
    scene.store.create({
        "apiVersion": "gpuautoscaler.io/v1alpha1", "kind": "CostBudget",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {
            "scope": {"type": "cluster"}, "budget": {"amount": 1000},
            "alerts": [{"threshold": 80}, {"name": "spent", "threshold": 100}],
        },
        "status": {"period": {"start": "2026-11-01T00:00:00Z", "end": "2026-12-01T00:00:00Z"}},
    })


def budget_of(scene: Scene, name: str = "team-ml") -> Any:
    entry = scene.store.find(stores.Key(names.GROUP, "CostBudget", "", name))
    assert entry is not None
    return entry.object


async def test_an_alert_is_marked_as_seen_in_its_period_and_that_is_audited_once(scene: Scene) -> None:
    put_budget(scene, **{names.ALERT_ACK: "spent"})
    before = budget_of(scene)
    answer = await scene.ask("POST", SEEN.format("team-ml", "at-80"), **ADA)
    assert (answer.status, answer.body) == (200, {"budget": "team-ml", "alert": "at-80", "wasSeen": False})
    after = budget_of(scene)
    assert after["metadata"]["annotations"] == {names.ALERT_ACK: "at-80@2026-11-01T00:00:00Z,spent"}
    read, was = budget_crd.parse(after), budget_crd.parse(before)
    assert (read.alerts, read.amount, after["status"]) == (was.alerts, was.amount, before["status"])
    again = await scene.ask("POST", SEEN.format("team-ml", "at-80"), {}, **ADA)
    assert (again.status, again.body["wasSeen"]) == (200, True)
    (entry,) = await scene.audited()
    assert (entry.type, entry.actor, entry.source) == (Happened.alert_seen, "api:ada", CameBy.api)
    assert entry.sentence == "alert at-80 of budget team-ml was seen"


async def test_who_may_not_change_the_budget_marks_nothing_and_learns_of_none(scene: Scene) -> None:
    put_budget(scene)
    for token in ("of-bob", "of-eve"):
        for budget in ("team-ml", "nobody"):
            answer = await scene.ask("POST", SEEN.format(budget, "at-80"), token=token)
            assert (answer.status, answer.body["missing"]) == (403, "patch on costbudgets")
        told = (await scene.ask("GET", "/api/v1/me", token=token)).body["maySeeAlerts"]
        assert (told["allowed"], told["missing"]) == (False, "patch on costbudgets")
    assert (await scene.ask("POST", SEEN.format("team-ml", "at-80"))).status == 401
    assert (await scene.ask("GET", "/api/v1/me", **ADA)).body["maySeeAlerts"]["allowed"] is True
    assert budget_of(scene)["metadata"]["annotations"] == {}
    assert {entry.type for entry in await scene.audited()} == {Happened.refused}


@pytest.mark.parametrize(("budget", "alert", "status", "code"), [
    ("nobody", "at-80", 404, "NotFound"), ("team-ml", "at-90", 404, "NotFound"), ("Team", "at-80", 400, "BadName"),
    ("team-ml", "a%2C-b", 400, "BadName"), ("team-ml", "at-80@x", 400, "BadName"), ("..", "at-80", 404, ""),
    ("team-ml", "a" * 64, 400, "BadName"),
])
async def test_an_alert_that_is_none_is_refused(scene: Scene, budget: str, alert: str, status: int, code: str) -> None:
    put_budget(scene)
    answer = await scene.ask("POST", SEEN.format(budget, alert), **ADA)
    assert (answer.status, answer.code if code else code) == (status, code)
    assert budget_of(scene)["metadata"]["annotations"] == {}


async def test_an_address_alone_marks_no_alert(open_door: Scene) -> None:
    put_budget(open_door)
    answer = await open_door.press("POST", SEEN.format("team-ml", "at-80"), {})
    assert (answer.status, answer.code) == (403, "Forbidden")
    assert budget_of(open_door)["metadata"]["annotations"] == {}


async def test_another_page_of_the_same_browser_marks_no_alert(scene: Scene) -> None:
    """The cookies of who is logged in come along; the token of our page does not."""
    put_budget(scene)
    await scene.ask("POST", "/api/v1/login", {"token": "of-ada"}, headers={"Origin": scene.origin})
    for headers in ({"Origin": scene.origin}, {"Origin": "https://evil.example"}):
        answer = await scene.ask("POST", SEEN.format("team-ml", "at-80"), {}, headers=headers)
        assert (answer.status, budget_of(scene)["metadata"]["annotations"]) == (403, {})
    answer = await scene.press("POST", SEEN.format("team-ml", "at-80"), {})
    assert (answer.status, answer.body["wasSeen"]) == (200, False)


async def test_in_dry_run_no_alert_is_marked_and_the_command_that_does_is_named() -> None:
    async with open_scene("kube", dry_run="client") as scene:
        put_budget(scene)
        answer = await scene.ask("POST", SEEN.format("team-ml", "at-80"), **ADA)
        assert (answer.status, answer.code) == (409, "DryRun")
        assert "fallow cost budget ack team-ml at-80" in answer.message
        assert budget_of(scene)["metadata"]["annotations"] == {}
