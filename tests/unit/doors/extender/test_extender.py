"""The extender on loopback over a pretend API server: the scheduler's JSON in, answers out; on doubt no opinion."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme
from tests.unit.observe.cluster import pretend

from fallow import telemetry
from fallow.decide import packing
from fallow.doors import listen
from fallow.doors.extender import advice, app, serve, study, wire
from fallow.observe.cluster import tenants

READY = [{"type": "Ready", "status": "True"}]
HAS = {"cpu": "64", "memory": "256Gi", "pods": "110"}


def node(name: str, gpus: int = 4, replicas: int = 1, **more: str) -> dict[str, Any]:
    labels = {"nvidia.com/gpu.product": "A100", "nvidia.com/gpu.replicas": str(replicas), **more}
    gpu = "nvidia.com/gpu.shared" if replicas > 1 else "nvidia.com/gpu"
    status = {"allocatable": {**HAS, gpu: str(gpus * replicas)}, "conditions": READY}
    return pretend.made(name, namespace=None, kind="Node", labels=labels, status=status)


def pod(name: str, node: str = "", resource: str = "nvidia.com/gpu", count: int = 1, **more: Any) -> dict[str, Any]:
    limits = {"cpu": "4", "memory": "8Gi", resource: str(count)}
    spec = {"containers": [{"name": "main", "resources": {"limits": limits, "requests": limits}}], "nodeName": node}
    return pretend.made(name, kind="Pod", spec=spec, status={"phase": "Running" if node else "Pending"}, **more)


class Stage:
    """A server with nodes and pods, the desk over it, and its door on loopback."""

    def __init__(self, server: pretend.Server, url: str, asked: advice.Advisor, eyes: tenants.Tenants) -> None:
        self.server, self.url, self.desk, self.eyes = server, url, asked, eyes
        self.http = aiohttp.ClientSession(url)

    async def post(self, verb: str, body: Any) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.http.post(f"/{verb}", data=data) as answer:
            text = await answer.text()
            return answer.status, json.loads(text) if answer.status == 200 else text

    async def ask(self, verb: str, asking: dict[str, Any], *names: str) -> Any:
        code, answer = await self.post(verb, {"Pod": asking, "Nodes": None, "NodeNames": list(names)})
        assert code == 200, answer
        if verb != "prioritize":
            return answer
        assert {each["Host"] for each in answer} <= set(names)
        return dict.fromkeys(names, 0) | {each["Host"]: each["Score"] for each in answer}  # as the scheduler reads it

    async def metrics(self) -> str:
        async with self.http.get("/metrics") as answer:
            return await answer.text()

    async def until(self, holds: Any) -> None:
        async with asyncio.timeout(10):
            while not holds():  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def staged(*things: dict[str, Any], policy: str = "BestFit") -> AsyncIterator[Stage]:
    async with pretend.Server() as server, server.api() as api:
        for thing in things:
            server.put("nodes" if thing["kind"] == "Node" else "pods", thing)
        eyes, metrics = tenants.Tenants(api), telemetry.Telemetry()
        asked = advice.Advisor(eyes, api, metrics)
        listener = listen.open_listener(("127.0.0.1", 0))
        made = app.ExtenderApp(asked, metrics, lambda: serve._why_not_ready(eyes, asked))
        door = serve.ExtenderServer(made, None, None)
        work = [eyes.run(), study.Student(eyes, asked, policy).run(), door.serve([listener])]
        tasks = [asyncio.create_task(each) for each in work]
        stage = Stage(server, f"http://127.0.0.1:{listener.getsockname()[1]}", asked, eyes)
        try:
            await stage.until(lambda: asked.room is not None)
            yield stage
        finally:
            door.should_exit = True
            await tasks.pop()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await stage.http.close()


async def test_prioritize_gives_ten_to_the_best_then_nine_and_nothing_to_the_others() -> None:
    nodes = [node(f"n{number:02}") for number in range(14)]
    async with staged(*nodes, pod("there", "n07")) as stage:
        names = [each["metadata"]["name"] for each in nodes]
        scores = await stage.ask("prioritize", pod("p"), *names, "unknown")
        assert (scores["n07"], sorted(scores.values(), reverse=True)) == (10, [*range(10, 0, -1), 0, 0, 0, 0, 0])
        assert 'gpu_autoscaler_packing_decisions_total{outcome="steered",policy="BestFit"} 1.0' in await stage.metrics()


@pytest.mark.accepts("packing", 19)
async def test_two_pods_at_once_are_not_both_steered_to_the_last_share() -> None:
    shares = [pod(f"s{number}", "full", "nvidia.com/gpu.shared") for number in range(3)]
    async with staged(node("full", 1, 4), node("empty", 1, 4), *shares) as stage:
        asking = [pod(name, resource="nvidia.com/gpu.shared") for name in ("first", "second")]
        both = await asyncio.gather(*(stage.ask("prioritize", each, "full", "empty") for each in asking))
        assert sorted(max(scores, key=lambda name: scores[name]) for scores in both) == ["empty", "full"]
        assert "gpu_autoscaler_packing_reservations 2.0" in await stage.metrics()


@pytest.mark.parametrize("spell", [str, str.lower, lambda key: key[0].lower() + key[1:]], ids=["Go", "small", "camel"])
async def test_either_case_is_read_and_whole_nodes_come_back_as_they_were(spell: Any) -> None:
    first, second = node("a", odd="kept"), node("b")
    async with staged(first, second, pod("there", "b")) as stage:
        whole = {spell("Pod"): pod("p"), spell("Nodes"): {"items": [first, second]}, spell("NodeNames"): None}
        code, answer = await stage.post("filter", whole)
        assert (code, answer["Nodes"]["items"], answer["NodeNames"]) == (200, [first, second], None)
        assert (answer["FailedNodes"], answer["FailedAndUnresolvableNodes"], answer["Error"]) == ({}, {}, "")
        code, answer = await stage.post("prioritize", whole)
        assert (code, answer) == (200, [{"Host": "b", "Score": 10}, {"Host": "a", "Score": 9}])


@pytest.mark.parametrize("key", ["gpuautoscaler.io/gpu-memory", "gpu-autoscaler.io/gpu-memory"])
async def test_filter_drops_only_what_the_scheduler_cannot_see(key: str) -> None:
    need = {"annotations": {key: "30Gi"}}
    there = [pod(f"there-{each}", "tight", "nvidia.com/gpu.shared", annotations={key: "60000"}) for each in range(3)]
    memory = {"nvidia.com/gpu.memory": "81559"}
    async with staged(node("tight", 1, 4, **memory), node("free", 1, 4, **memory), node("whole"), *there) as stage:
        names = ("tight", "free", "whole", "unknown")
        answer = await stage.ask("filter", pod("p", resource="nvidia.com/gpu.shared", **need), *names)
        assert answer["NodeNames"] == ["free", "whole", "unknown"]
        assert "30720 MiB" in answer["FailedNodes"]["tight"]
        answer = await stage.ask("filter", pod("q", resource="nvidia.com/gpu.shared"), *names)
        assert (answer["NodeNames"], answer["FailedNodes"]) == (list(names), {})
        odd = {"annotations": {"gpuautoscaler.io/gpu-memory": "much"}}
        answer = await stage.ask("filter", pod("q", resource="nvidia.com/gpu.shared", **odd), *names)
        assert answer["NodeNames"] == list(names)


NEED = {"annotations": {"gpuautoscaler.io/gpu-memory": "30Gi"}}
SMALL = node("small", 1, 4, **{"nvidia.com/gpu.memory": "16384"})  # too small for who needs as much


@pytest.mark.accepts("packing", 18)
async def test_an_old_mirror_has_no_opinion_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async with staged(node("a"), node("b"), SMALL, pod("there", "b")) as stage:
        assert (await stage.ask("prioritize", pod("p"), "a", "b"))["b"] == 10
        assert (await stage.ask("filter", pod("p", **NEED), "a", "small"))["NodeNames"] == ["a"]
        monkeypatch.setattr(tenants, "OLDEST", -1.0)
        assert await stage.ask("prioritize", pod("p"), "a", "b") == {"a": 0, "b": 0}
        assert (await stage.ask("filter", pod("p", **NEED), "a", "small"))["NodeNames"] == ["a", "small"]
        assert 'gpu_autoscaler_packing_fallback_total{reason="StaleMirror"} 2.0' in await stage.metrics()
        async with stage.http.get("/readyz") as answer:
            assert (answer.status, await answer.json()) == (503, {"reasons": ["StaleMirror"]})


@pytest.mark.accepts("packing", 18)
@pytest.mark.parametrize(("odd", "reason"), [
    ({"spec": {"containers": []}}, "UnreadablePod"), (7, "UnreadablePod"), (None, "UnreadablePod"),
    ({"metadata": {"uid": 5, **NEED}}, "UnreadablePod"),
    (pod("mig", resource="nvidia.com/mig-1g.10gb"), "UnknownRequest"),
], ids=["no-metadata", "a-number", "null", "a-wrong-uid", "mig"])
async def test_a_pod_that_cannot_be_read_or_counted_gets_no_opinion(odd: Any, reason: str) -> None:
    async with staged(node("a"), SMALL) as stage:
        assert await stage.ask("prioritize", odd, "a", "small") == {"a": 0, "small": 0}
        told = await stage.metrics()
        assert f'gpu_autoscaler_packing_fallback_total{{reason="{reason}"}} 1.0' in told
        assert (await stage.ask("filter", odd, "a", "small"))["NodeNames"] == ["a", "small"]


@pytest.mark.parametrize("body", [b"", b"garbage", b"[]", b"\xff\xfe", b"{}", b'{"NodeNames": 7}', b"[" * 100_000])
@pytest.mark.parametrize("verb", ["filter", "prioritize", "bind"])
async def test_garbage_is_refused_in_one_sentence(body: bytes, verb: str) -> None:
    async with staged(node("a")) as stage:
        code, said = await stage.post(verb, body)
        assert (code, said.startswith("the question cannot be read: "), said.count("\n")) == (400, True, 1)


@pytest.mark.accepts("packing", 18)
async def test_a_defect_of_ours_costs_the_opinion_not_the_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    async with staged(node("a"), SMALL) as stage:
        def broken(*_: Any) -> Any:
            raise ZeroDivisionError

        monkeypatch.setattr(packing.LiveRoom, "rank", broken)
        monkeypatch.setattr(packing.LiveRoom, "lacks_gpu_memory", broken)
        assert await stage.ask("prioritize", pod("p"), "a", "small") == {"a": 0, "small": 0}
        assert (await stage.ask("filter", pod("p", **NEED), "a", "small"))["NodeNames"] == ["a", "small"]
        assert 'gpu_autoscaler_packing_fallback_total{reason="Defect"} 2.0' in await stage.metrics()


async def test_nodes_that_come_later_are_ranked_and_a_policy_that_learns_is_learned(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "MOVE_IN_EVERY", 0.0)
    monkeypatch.setattr(study, "LOOK_EVERY", 0.05)
    there = [pod(f"p{number}", "a") for number in range(3)]
    async with staged(node("a"), *there, policy="SPP") as stage:
        stage.server.put("nodes", node("late"))
        await stage.until(lambda: stage.desk.room is not None and "late" in stage.desk.room.ground.rows)
        async with asyncio.timeout(60):
            while stage.desk.room is None or stage.desk.room.policy.name != "SPP":  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        scores = await stage.ask("prioritize", pod("p"), "a", "late")
        assert sorted(scores.values()) == [9, 10]
        assert 'gpu_autoscaler_packing_policy{policy="SPP"} 1.0' in await stage.metrics()


# ---- who may ask -----------------------------------------------------------------------------------------------------


def write(folder: Path, authority: trustme.CA) -> None:
    leaf = authority.issue_cert("localhost")
    leaf.private_key_pem.write_to_path(folder / "tls.key")
    leaf.cert_chain_pems[0].write_to_path(folder / "tls.crt")
    authority.cert_pem.write_to_path(folder / "ca.crt")


def trusting(authority: trustme.CA, name: str | None, issuer: trustme.CA | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if name is not None:
        (issuer or authority).issue_cert(common_name=name).configure_cert(context)
    return context


async def test_beyond_loopback_only_the_scheduler_is_answered_and_new_papers_are_read(tmp_path: Path) -> None:
    authority, other = trustme.CA(), trustme.CA()
    write(tmp_path, authority)
    papers = serve.Certificates(str(tmp_path))
    papers.context.sni_callback = papers.attach
    async with pretend.Server() as server, server.api() as api:
        eyes, metrics = tenants.Tenants(api), telemetry.Telemetry()
        made = app.ExtenderApp(advice.Advisor(eyes, api, metrics), metrics, list)
        door = serve.ExtenderServer(made, frozenset({"system:kube-scheduler"}), papers)
        listener = listen.open_listener(("127.0.0.1", 0))
        serving, url = asyncio.create_task(door.serve([listener])), f"https://localhost:{listener.getsockname()[1]}"

        async def post(context: ssl.SSLContext, path: str = "/prioritize") -> int:
            async with aiohttp.ClientSession() as http:
                body = wire._ENCODER.encode({"Pod": None, "NodeNames": ["a"]})
                async with http.post(url + path, data=body, ssl=context) as answer:
                    return answer.status

        scheduler = trusting(authority, "system:kube-scheduler")
        assert await post(scheduler) == 200
        assert await post(trusting(authority, "somebody-else")) == 403
        assert await post(trusting(authority, None)) == 403
        assert await post(trusting(authority, None), "/healthz") == 200
        with pytest.raises(aiohttp.ClientError):
            await post(trusting(authority, "system:kube-scheduler", other))
        write(tmp_path, other)
        papers.renew()
        assert await post(trusting(other, "system:kube-scheduler")) == 200
        with pytest.raises(aiohttp.ClientError):
            await post(scheduler)
        mixed = trusting(other, "system:kube-scheduler", authority)  # of the authority that is no longer one
        with pytest.raises(aiohttp.ClientError):
            await post(mixed)
        (tmp_path / "tls.key").write_text("broken")
        papers.renew()
        assert await post(trusting(other, "system:kube-scheduler")) == 200
        door.should_exit = True
        await serving


async def test_a_mirror_that_is_quiet_is_not_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch is opened anew before anybody may doubt."""
    assert tenants.WATCH_SECONDS[1] + 10 < tenants.OLDEST
    monkeypatch.setattr(tenants, "WATCH_SECONDS", (1, 1))
    async with staged(node("a")) as stage:
        began = time.monotonic()
        stage.server.cut_watches("pods")
        await stage.until(lambda: (stage.eyes._pods.heard_at or 0) > began)
        assert f"timeoutSeconds={tenants.WATCH_SECONDS[0]}" in str(stage.server.requests)
