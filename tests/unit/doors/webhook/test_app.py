"""The webhook over TLS on loopback: reviews in, answers out; whatever it cannot read, see or do in time is admitted."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.unit.decide import test_admission
from tests.unit.doors.webhook import yards

from fallow import names, telemetry
from fallow.act import certificates
from fallow.clients import errors
from fallow.clients.kubernetes import reviews as rights
from fallow.doors import listen
from fallow.doors.webhook import app, judging, serve, sharing, wire
from fallow.model import cluster, patterns
from fallow.model.policies import budget
from fallow.model.seen import ABSENT, Input, Known, Register, Unseen
from fallow.model.units import DAY

NOW = test_admission.NOW
ML = cluster.Namespace("ml", {"team": "ml"}, {})


class World:
    """What the webhook sees, as a test says."""

    def __init__(self, *found: budget.CostBudget) -> None:
        self.budgets: Input[tuple[budget.CostBudget, ...]] = Known(found)
        self.namespaces: Register[cluster.Namespace] = Register(
            {"ml": ML, "silent": cluster.Namespace("silent", {}, {})}
        )
        self.above: Input[Mapping[str, str]] | None = ABSENT  # None: never answers
        self.claims: Input[bool] = Unseen("forbidden")
        self.asked: list[rights.AccessWish] = []
        self.may: bool | errors.ClientError | None = False  # None: never answers

    def judge(self) -> judging.Judge:
        async def above(namespace: str, references: Any) -> Input[Mapping[str, str]]:
            if self.above is None:
                await asyncio.sleep(60)
                return ABSENT
            return self.above

        async def may(who: rights.Identity, wish: rights.AccessWish) -> bool:
            self.asked.append(wish)
            if self.may is None:
                await asyncio.sleep(60)
            if isinstance(self.may, errors.ClientError):
                raise self.may
            return bool(self.may)

        async def claims(namespace: str, wanted: Any) -> Input[bool]:
            return self.claims

        eyes = judging.WebhookEyes(
            budgets=lambda: self.budgets, namespaces=lambda: self.namespaces, above=above, claims=claims, may=may
        )
        return judging.Judge(
            eyes, exempt=patterns.compile_pattern("kube-system"), gpu_resources=frozenset({"example.com/fpga"}),
            clock=lambda: NOW,
        )


def review(
    namespace: str = "ml", limits: dict[str, Any] | None = None, annotations: dict[str, str] | None = None,
    **metadata: Any,
) -> dict[str, Any]:
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"} if limits is None else limits}}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "r-1", "namespace": namespace, "operation": "CREATE",
        "userInfo": {"username": "ada", "groups": ["ml", "system:authenticated"], "extra": {"x": ["y"]}},
        "object": {
            "metadata": {"name": "llm", "annotations": annotations or {}, **metadata},
            "spec": {"containers": [container]},
        },
    }}


async def ask(world: World, body: Any, mode: str = "block") -> tuple[dict[str, Any], str]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    found = world.judge().judge(raw, budget.EnforcementMode(mode))
    judged = found if isinstance(found, judging.Reviewed) else await found
    answer = json.loads(judged.body)
    assert (answer["kind"], answer["response"]["uid"]) == ("AdmissionReview", "r-1")
    return answer["response"], judged.reason


@pytest.mark.accepts("cost", 18)
@pytest.mark.parametrize(("asked", "reason"), [
    (review(limits={"cpu": "4"}), "NoGpus"), (review(limits={"nvidia.com/gpu": "0"}), "NoGpus"),
    (review("kube-system"), "Exempt"),
])
async def test_some_pods_are_never_denied(asked: dict[str, Any], reason: str) -> None:
    response, why = await ask(World(test_admission.make()), asked)
    assert (response["allowed"], why) == (True, reason)


@pytest.mark.accepts("cost", 18)
@pytest.mark.parametrize(("may", "reason"), [
    (True, "DaemonSet"), (False, "Exceeded"), (errors.Unreachable("away"), "Exceeded"),
], ids=["its-controller", "a-tenant", "cannot-be-asked"])
@pytest.mark.parametrize("mode", ["block", "throttle"])
async def test_a_daemon_sets_pod_is_one_that_its_controller_makes(may: Any, reason: str, mode: str) -> None:
    """Anybody may write that a pod of theirs is a DaemonSet's."""
    owner = {"kind": "DaemonSet", "apiVersion": "apps/v1", "name": "a", "uid": "u", "controller": True}
    world = World(test_admission.make(mode, throttle={"max_gpus": 1}))
    world.may = may
    response, why = await ask(world, review(ownerReferences=[owner]), mode)
    assert world.asked == [rights.AccessWish("update", "apps", "daemonsets", "ml", subresource="status")]
    assert why == ("Throttled" if (reason, mode) == ("Exceeded", "throttle") else reason)
    assert ("patch" in response) is (why == "Throttled")
    assert response["allowed"] is (why != "Exceeded")


async def test_a_daemon_set_is_one_of_kubernetes_itself() -> None:
    """A tenant with all rights on a group of its own may update daemonsets/status there."""
    owner = {"kind": "DaemonSet", "apiVersion": "tenant.example/v1", "name": "a", "uid": "u", "controller": True}
    world = World(test_admission.make())
    world.may = True
    response, why = await ask(world, review(ownerReferences=[owner]))
    assert (response["allowed"], why, world.asked) == (False, "Exceeded", [])


async def test_whoever_chose_its_node_goes_past_no_throttle() -> None:
    """The scheduler would not be asked, so neither a gate nor an affinity would hold it."""
    asked = review()
    asked["request"]["object"]["spec"]["nodeName"] = "gpu-1"
    world = World(test_admission.make("throttle", throttle={"max_gpus": 1}))
    response, why = await ask(world, asked, "throttle")
    assert (response["allowed"], why) == (False, "Throttled")
    assert "leave out nodeName" in response["status"]["message"]


@pytest.mark.parametrize("limits", [
    {"nvidia.com/gpu": "1"}, {"nvidia.com/mig-1g.10gb": "2"}, {"nvidia.com/gpu.shared": 1}, {"example.com/fpga": "1"},
])
async def test_whoever_asks_for_a_gpu_in_whichever_way_is_denied(limits: dict[str, Any]) -> None:
    response, why = await ask(World(test_admission.make()), review(limits=limits))
    assert (response["allowed"], response["status"]["code"], why) == (False, 403, "Exceeded")
    assert response["status"]["message"].startswith("budget b exceeded: 51,204.10 of 50,000.00 USD since ")


async def test_a_part_of_a_gpu_is_one_too() -> None:
    response, _ = await ask(World(test_admission.make()), review(limits={}, annotations={"gpu-fraction": "0.5"}))
    assert response["allowed"] is False


@pytest.mark.parametrize(("seen", "reason"), [
    (Known(True), "Exceeded"), (Known(False), "NoGpus"), (Unseen("forbidden"), "ClaimUnseen"),
    (ABSENT, "Exceeded"),
], ids=["of-gpus", "of-others", "unseen", "not-there-yet"])
async def test_whoever_claims_a_gpu_is_denied_and_who_may_claim_something_else_is_not(
    seen: Input[bool], reason: str
) -> None:
    world = World(test_admission.make())
    world.claims = seen
    asked = review(limits={})
    asked["request"]["object"]["spec"]["resourceClaims"] = [{"name": "a", "resourceClaimTemplateName": "one-gpu"}]
    response, why = await ask(world, asked)
    assert (response["allowed"], why) == (reason != "Exceeded", reason)


async def test_claims_by_the_hundred_count_as_ones_for_gpus_and_the_sentence_says_so() -> None:
    """Reading them all takes longer than a review may: that would admit the pod."""
    world, asked = World(test_admission.make()), review(limits={})
    world.claims = Known(False)
    named = [{"name": f"c{each}", "resourceClaimName": f"c{each}"} for each in range(256)]
    asked["request"]["object"]["spec"]["resourceClaims"] = named
    response, why = await ask(world, asked)
    assert (response["allowed"], why) == (False, "Exceeded")
    assert "it names more than 16 claims, which counts as asking for GPUs" in response["status"]["message"]
    asked["request"]["object"]["spec"]["resourceClaims"] = named[:16]
    assert (await ask(world, asked))[1] == "NoGpus"


async def test_by_team_the_owner_is_asked_only_where_it_matters() -> None:
    world = World(test_admission.make(scope=budget.SpendScope(teams=("ml",))))
    world.above = Unseen("forbidden")
    assert (await ask(world, review()))[1] == "Exceeded"  # its namespace says ml
    assert (await ask(world, review("silent")))[1] == "ScopeUnknown"
    world.above = Known({"team": "other"})
    assert (await ask(world, review("silent")))[1] == "NoBudget"
    world.above = Known({"team": "ml"})
    assert (await ask(world, review("silent")))[1] == "Exceeded"
    assert (await ask(world, review("new", labels={"team": "ml"})))[1] == "ScopeUnknown"


async def test_a_tenant_gets_neither_out_of_its_own_budget_nor_into_anothers() -> None:
    """By what it writes on its pods: the administrators' label of its namespace holds."""
    world = World(test_admission.make(scope=budget.SpendScope(teams=("ml",))))
    world.above = Known({"team": "web"})
    assert (await ask(world, review(labels={"team": "web"})))[1] == "Exceeded"
    world = World(test_admission.make(scope=budget.SpendScope(teams=("web",))))
    world.above = Known({"team": "web"})
    assert (await ask(world, review(labels={"team": "web"})))[1] == "NoBudget"


@pytest.mark.accepts("cost", 19)
@pytest.mark.parametrize(("may", "allowed", "said"), [
    (True, True, ""), (False, False, "ada may not override costbudgets/b"),
    (errors.Unreachable("away"), False, "could not be asked"),
])
async def test_the_glass_breaks_for_who_surely_may(may: Any, allowed: bool, said: str) -> None:
    world = World(test_admission.make())
    world.may = may
    response, why = await ask(world, review(annotations={names.BUDGET_OVERRIDE: "tonight"}))
    assert response["allowed"] is allowed
    assert world.asked == [rights.AccessWish("override", "gpuautoscaler.io", "costbudgets", name="b")]
    assert said in response.get("status", {}).get("message", "")
    assert (why == "BreakGlass") is allowed
    if allowed:
        assert response["auditAnnotations"]["budget-override"] == "ada: tonight"


@pytest.mark.accepts("cost", 19)
async def test_who_asks_to_override_gains_nothing_by_a_slow_api_server(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(test_admission.make())
    world.may = None
    monkeypatch.setattr(judging, "DEADLINE", 0.05)
    response, why = await ask(world, review(annotations={names.BUDGET_OVERRIDE: "tonight"}))
    assert (response["allowed"], why) == (False, "Exceeded")
    assert response["status"]["message"].endswith("whether ada may override it could not be asked")


async def test_what_is_not_in_time_not_loaded_or_not_readable_is_admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(test_admission.make(scope=budget.SpendScope(teams=("ml",))))
    world.above = None
    monkeypatch.setattr(judging, "DEADLINE", 0.05)
    response, why = await ask(world, review("silent"))
    assert (response["allowed"], why) == (True, "Deadline")
    world.budgets = Unseen("not seen yet")
    assert (await ask(world, review()))[1] == "NotLoaded"
    odd = review()
    odd["request"]["object"]["spec"] = []
    assert (await ask(world, odd))[1] == "Unreadable"
    world.budgets = None  # type: ignore[assignment]
    assert (await ask(world, review()))[1] == "NoBudget"
    world.namespaces = None  # type: ignore[assignment]
    world.budgets = Known((test_admission.make(),))
    assert (await ask(world, review()))[1] == "Defect"


async def test_a_throttled_pod_gets_its_patch() -> None:
    world = World(test_admission.make("throttle", throttle={"max_gpus": 1}))
    response, why = await ask(world, review(), "throttle")
    operations = json.loads(base64.b64decode(response["patch"]))
    assert (response["patchType"], why) == ("JSONPatch", "Throttled")
    assert operations[0] == {
        "op": "add", "path": "/spec/schedulingGates", "value": [{"name": "gpuautoscaler.io/budget"}],
    }
    assert (await ask(world, review(), "block"))[1] == "NoBudget"


# ---- over TLS --------------------------------------------------------------------------------------------------------


def store(folder: Path, papers: certificates.Papers) -> ssl.SSLContext:
    (folder / "tls.crt").write_bytes(papers.leaf)
    (folder / "tls.key").write_bytes(papers.leaf_key)
    return ssl.create_default_context(cadata=papers.bundle.decode())


@asynccontextmanager
async def running(
    world: World, folder: Path, sharer: sharing.ShareJudge | None = None
) -> AsyncIterator[tuple[str, serve.Certificate]]:
    certificate = serve.Certificate(str(folder))
    certificate.load()
    sharer = sharer or yards.Yard().judge()
    made = app.App(world.judge(), sharer, telemetry.Telemetry(), lambda: ["not yet"] if world.may is None else [])
    server = serve.WebhookServer(made, certificate)
    listener = listen.open_listener(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    task = asyncio.create_task(server.serve(listener))
    try:
        yield f"https://localhost:{port}", certificate
    finally:
        server.stop()
        await task
        listener.close()


async def test_who_never_begins_with_tls_keeps_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setattr(serve, "_MOST_GREETED", 5)
    trust = store(tmp_path, certificates.renew(None, "localhost", time.time()))
    async with running(World(), tmp_path) as (url, _), aiohttp.ClientSession() as http:
        port = int(url.rpartition(":")[2])
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        silent[19][1].write(b"GET / HTTP/1.1\r\n\r\n")
        async with http.get(f"{url}/healthz", ssl=trust) as answer:
            assert answer.status == 200
        for reader, _ in silent[:15]:
            assert await asyncio.wait_for(reader.read(), 5) == b""
        for _, writer in silent:
            writer.close()


async def test_paths_bodies_and_a_certificate_that_changes(tmp_path: Path) -> None:
    import time

    papers = certificates.renew(None, "localhost", time.time())
    trust, world = store(tmp_path, papers), World(test_admission.make())
    async with running(world, tmp_path) as (url, certificate), aiohttp.ClientSession() as http:
        for path, method, body, status in [
            (names.VALIDATE_PATH, "POST", json.dumps(review()).encode(), 200), (names.VALIDATE_PATH, "GET", b"", 405),
            (names.MUTATE_PATH, "POST", b"{", 400), (names.SHARE_PATH, "POST", b'{"request":{"uid":"\xff"}}', 400),
            (names.MUTATE_PATH, "POST", b'{"request":{"uid":"x"}}', 200),
            ("/healthz", "GET", b"", 200),
            ("/readyz", "GET", b"", 200), ("/metrics", "GET", b"", 200), ("/else", "GET", b"", 404),
        ]:
            async with http.request(method, url + path, data=body, ssl=trust) as answer:
                assert answer.status == status, (path, await answer.text())
        too_long = {"Content-Length": str(wire.MOST_BODY + 1)}
        async with http.post(url + names.VALIDATE_PATH, data=b"", headers=too_long, ssl=trust) as answer:
            assert answer.status == 413
        async with http.get(f"{url}/metrics", ssl=trust) as answer:
            assert 'requests_total{outcome="denied",reason="Exceeded"} 1.0' in (told := await answer.text())
            assert 'requests_total{outcome="error",reason="Unreadable"} 2.0' in told
        world.may = None
        async with http.get(f"{url}/readyz", ssl=trust) as answer:
            assert (answer.status, await answer.json()) == (503, {"reasons": ["not yet"]})
        fresh = store(tmp_path, certificates.renew(None, "localhost", time.time()))
        certificate.load()
    async with running(world, tmp_path) as (url, _), aiohttp.ClientSession() as http:
        async with http.get(f"{url}/healthz", ssl=fresh) as answer:
            assert answer.status == 200
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await http.get(f"{url}/healthz", ssl=trust)


@pytest.mark.parametrize(("leaf", "key"), [(b"half", None), (None, b"half"), (None, None), (b"", b"")],
                         ids=["half-a-leaf", "half-a-key", "another-key", "nothing"])
async def test_half_a_certificate_leaves_the_old_one_at_work(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, leaf: bytes | None, key: bytes | None
) -> None:
    import time

    now = time.time()
    trust, others = store(tmp_path, certificates.renew(None, "localhost", now)), (
        certificates.renew(None, "localhost", now), certificates.renew(None, "localhost", now)
    )
    async with running(World(), tmp_path) as (url, certificate), aiohttp.ClientSession() as http:
        (tmp_path / "tls.crt").write_bytes(others[0].leaf if leaf is None else leaf)
        (tmp_path / "tls.key").write_bytes(others[1].leaf_key if key is None else key)
        certificate.load()
        certificate.load()
        assert certificate.is_loaded
        assert caplog.text.count("cannot be read") == 1
        async with http.get(f"{url}/healthz", ssl=trust) as answer:
            assert answer.status == 200
        fresh = store(tmp_path, others[0])
        certificate.load()
        async with aiohttp.ClientSession() as anew, anew.get(f"{url}/healthz", ssl=fresh) as answer:
            assert answer.status == 200


# ---- certificates ----------------------------------------------------------------------------------------------------


def as_secret(papers: certificates.Papers) -> dict[str, Any]:
    content = {"ca.crt": papers.bundle, "ca.key": papers.authority_key, "tls.crt": papers.leaf,
               "tls.key": papers.leaf_key}
    return {
        "metadata": {"annotations": {"gpuautoscaler.io/authority-changed-at": "2026-11-03T00:00:00Z"}},
        "data": {key: base64.b64encode(value).decode() for key, value in content.items()},
    }


def test_a_leaf_is_renewed_after_sixty_days_by_the_same_authority() -> None:
    host = "gpu-autoscaler-webhook.gpu.svc"
    papers = certificates.renew(None, host, NOW)
    assert certificates.renew(papers, host, NOW + 59 * DAY) == papers
    newer = certificates.renew(papers, host, NOW + 61 * DAY)
    assert (newer.leaf != papers.leaf, newer.authorities) == (True, papers.authorities)
    assert certificates.renew(papers, "another.gpu.svc", NOW).leaf != papers.leaf


def test_while_the_authority_changes_both_are_known_and_then_the_new_one_alone() -> None:
    papers = certificates.renew(None, "h.gpu.svc", NOW)
    later = NOW + certificates.AUTHORITY_LIVES - 300 * DAY
    both = certificates.renew(papers, "h.gpu.svc", later)
    assert both.authorities[1:] == papers.authorities
    assert certificates.renew(both, "h.gpu.svc", later + 6 * DAY).authorities == both.authorities
    assert certificates.renew(both, "h.gpu.svc", later + 8 * DAY).authorities == both.authorities[:1]


def test_a_secret_that_is_none_of_ours_is_made_anew_and_ours_is_read_back() -> None:
    papers = certificates.renew(None, "h.gpu.svc", NOW)
    read = certificates.read_secret(as_secret(papers))
    assert read is not None
    assert (read.leaf, read.authorities) == (papers.leaf, papers.authorities)
    other = certificates.renew(None, "h.gpu.svc", NOW)
    mixed = as_secret(papers)
    mixed["data"]["ca.key"] = as_secret(other)["data"]["ca.key"]
    assert certificates.read_secret(mixed) is None
    assert certificates.read_secret({"data": {"tls.crt": "x"}}) is None
    assert "PRIVATE" not in repr(papers)
