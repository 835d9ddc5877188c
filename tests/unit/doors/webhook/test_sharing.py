"""The sharing webhook over TLS on loopback: exactly what the table names is changed, and on doubt nothing is."""

from __future__ import annotations

import base64
import copy
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import hypothesis
import msgspec
import pytest
from hypothesis import strategies as st
from tests.unit.decide.sharing import scenes
from tests.unit.doors.webhook import test_app
from tests.unit.doors.webhook.yards import Yard, pod, review

from fallow import names
from fallow.act import certificates
from fallow.decide import sharing as ladder
from fallow.doors.webhook import sharing
from fallow.model.policies import sharing_crd
from fallow.model.policies.sharing import SharingMode
from fallow.model.seen import Known, Register, Unseen
from fallow.model.selectors import Selector
from fallow.model.sharing import NodeTaint
from fallow.sim.servers.kubernetes import patches

MIG = scenes.policy("mig", name="small-models")
NEEDS_8 = {names.GPU_MEMORY_NEED: "8Gi"}


class Door:
    """The webhook, listening; as the API server speaks to it."""

    def __init__(self, http: aiohttp.ClientSession, url: str, trust: Any) -> None:
        self._http, self._url, self._trust = http, url, trust

    async def ask(self, body: Any) -> dict[str, Any]:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self._http.post(self._url + names.SHARE_PATH, data=raw, ssl=self._trust) as answer:
            assert answer.status == 200, await answer.text()
            made: dict[str, Any] = (await answer.json())["response"]
            assert (made["uid"], made["allowed"]) == ("r-1", True)
            return made

    async def admit(self, of: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The pod as it then is, and the answer."""
        made = await self.ask(review(of))
        operations = json.loads(base64.b64decode(made["patch"])) if "patch" in made else []
        return patches.json_patch(of, operations), made

    async def counted(self) -> dict[tuple[str, str], float]:
        async with self._http.get(f"{self._url}/metrics", ssl=self._trust) as answer:
            text = await answer.text()
        rows = [line for line in text.splitlines() if line.startswith("gpu_autoscaler_webhook_requests_total{")]
        return {(row.split('"')[1], row.split('"')[3]): float(row.rpartition(" ")[2]) for row in rows}


@asynccontextmanager
async def opened(yard: Yard, folder: Path) -> AsyncIterator[Door]:
    trust = test_app.store(folder, certificates.renew(None, "localhost", time.time()))
    async with test_app.running(test_app.World(), folder, yard.judge()) as (url, _), aiohttp.ClientSession() as http:
        yield Door(http, url, trust)


@pytest.mark.accepts("packing", 4, 5)
async def test_a_whole_gpu_becomes_the_smallest_profile_that_is_enough_once(tmp_path: Path) -> None:
    before = pod(annotations=NEEDS_8)
    async with opened(Yard(MIG), tmp_path) as door:
        after, _ = await door.admit(before)
        asked = after["spec"]["containers"][1]["resources"]
        kept = {"cpu": "4", "memory": "8Gi"}
        assert asked == {
            "limits": {**kept, "nvidia.com/mig-1g.10gb": "1"}, "requests": {**kept, "nvidia.com/mig-1g.10gb": "1"},
        }
        again, answer = await door.admit(after)
        assert (again == after, "patch" in answer) == (True, False)
        assert await door.counted() == {("patched", "Shared"): 1.0, ("unchanged", "AlreadyOptimized"): 1.0}
    assert after["metadata"]["annotations"] == {
        **NEEDS_8, names.OPTIMIZED: "true", names.ORIGINAL_GPU_REQUEST: "1", names.OPTIMIZATION_STRATEGY: "mig",
        names.OPTIMIZATION_TIMESTAMP: "2026-11-17T07:20:00Z", names.OPTIMIZATION_POLICY: "small-models",
    }
    assert after["spec"]["tolerations"][1:] == [{"key": names.GPU, "operator": "Exists", "effect": "NoSchedule"}]
    assert untouched(after) == untouched(before)


def untouched(of: dict[str, Any]) -> dict[str, Any]:
    """All of a pod but what may be changed."""
    rest = copy.deepcopy(of)
    rest["metadata"].pop("annotations", None)
    for field in ("tolerations", "nodeSelector"):
        rest["spec"].pop(field, None)
    for container in rest["spec"]["containers"]:
        for where in ("limits", "requests"):
            asked = (container.get("resources") or {}).get(where) or {}
            for name in [name for name in asked if name.startswith("nvidia.com/")]:
                del asked[name]
            (container.get("resources") or {}).pop(where, None) if not asked else None
    return rest


@pytest.mark.parametrize(("strategy", "label"), [("mps", "mps"), ("timeslicing", "time-slicing")])
async def test_sharing_by_turns_or_mps_asks_for_a_share_on_such_nodes(strategy: str, label: str) -> None:
    chosen = scenes.policy(strategy, node_selector={names.GPU_PRODUCT: "NVIDIA-A100-SXM4-80GB"})
    after = await changed(Yard(chosen), pod(annotations=NEEDS_8, nodeSelector={"kubernetes.io/os": "linux"}))
    assert after is None  # the nodes of this scene do not say which system they run
    after = await changed(Yard(chosen), pod(annotations=NEEDS_8))
    assert after is not None
    assert after["spec"]["containers"][1]["resources"]["limits"][names.GPU_SHARED] == "1"
    assert after["spec"]["nodeSelector"] == {
        names.GPU_SHARING: label, names.GPU_PRODUCT: "NVIDIA-A100-SXM4-80GB",
    }


async def changed(yard: Yard, of: dict[str, Any]) -> dict[str, Any] | None:
    made = await yard.judge().judge(json.dumps(review(of)).encode())
    response = json.loads(made.body)["response"]
    if "patch" not in response:
        return None
    return patches.json_patch(of, json.loads(base64.b64decode(response["patch"])))


async def test_where_nodes_do_not_rename_only_the_selector_is_written_and_once() -> None:
    yard = Yard(scenes.policy("timeslicing"))
    yard.nodes = Known(ladder.PartIndex((scenes.sharing_node(renames=False),)))
    after = await changed(yard, pod(annotations=NEEDS_8))
    assert after is not None
    assert after["spec"]["containers"] == pod()["spec"]["containers"]
    assert after["spec"]["nodeSelector"] == {names.GPU_SHARING: "time-slicing"}
    assert await changed(yard, after) is None


async def test_a_pod_without_any_of_the_fields_gets_them() -> None:
    bare = pod()
    del bare["spec"]["tolerations"]
    del bare["spec"]["containers"][1]["resources"]["requests"]
    bare["metadata"]["annotations"] = NEEDS_8
    after = await changed(Yard(MIG), bare)
    assert after is not None
    resources = after["spec"]["containers"][1]["resources"]
    assert resources["requests"] == {"nvidia.com/mig-1g.10gb": "1"}
    tolerant = pod(annotations=NEEDS_8, tolerations=[{"operator": "Exists"}])
    kept = await changed(Yard(MIG), tolerant)
    assert kept is not None
    assert kept["spec"]["tolerations"] == [{"operator": "Exists"}]


@pytest.mark.accepts("packing", 6)
async def test_two_gpus_an_opt_out_and_exempt_namespaces_are_admitted_as_they_are(tmp_path: Path) -> None:
    elsewhere = pod(annotations=NEEDS_8)
    elsewhere["metadata"]["namespace"] = "kube-system"
    wanted = [
        (pod("2", annotations=NEEDS_8), "NotOneGpu"),
        (pod(annotations={**NEEDS_8, names.OPTIMIZE: "false"}), "OptedOut"), (elsewhere, "ExemptNamespace"),
    ]
    async with opened(Yard(MIG), tmp_path) as door:
        for asked, _ in wanted:
            assert await door.ask(review(asked)) == {"uid": "r-1", "allowed": True}
        assert await door.counted() == {("unchanged", reason): 1.0 for _, reason in wanted}


@pytest.mark.accepts("packing", 7)
async def test_an_unknown_mode_is_admitted_as_it_is_and_its_maker_is_told(tmp_path: Path) -> None:
    async with opened(Yard(MIG), tmp_path) as door:
        answer = await door.ask(review(pod(annotations={**NEEDS_8, names.SHARING_MODE: "turbo"})))
        assert "patch" not in answer
        [warning] = answer["warnings"]
        assert warning.startswith("fallow: gpuautoscaler.io/sharing-mode: 'turbo' is none of mig, mps")
        assert await door.counted() == {("unchanged", "InvalidSharingMode"): 1.0}


@pytest.mark.accepts("packing", 8)
async def test_garbage_a_stopped_mirror_and_a_broken_selector_change_nothing_and_are_counted(tmp_path: Path) -> None:
    yard, fine = Yard(MIG), review(pod(annotations=NEEDS_8))
    broken = sharing_crd.parse({
        "metadata": {"name": "broken"},
        "spec": {"strategy": "mig", "mode": "enforce", "priority": 9, "podSelector": {"matchLabels": ["app"]}},
    })
    assert broken.invalid
    expected: dict[tuple[str, str], float] = {}

    async def unchanged(door: Door, body: Any, outcome: str, reason: str) -> None:
        answer = await door.ask(body)
        assert "patch" not in answer
        expected[outcome, reason] = expected.get((outcome, reason), 0.0) + 1
        assert await door.counted() == expected

    async with opened(yard, tmp_path) as door:
        odd = review({"metadata": {"name": "x"}, "spec": {"containers": "none"}})
        await unchanged(door, odd, "error", "Unreadable")
        await unchanged(door, {"request": {"uid": "r-1", "object": [["a pod"]]}}, "error", "Unreadable")
        await unchanged(door, review(pod(annotations=NEEDS_8), "UPDATE"), "unchanged", "NotCreate")
        yard.stale = "the API server was last heard of 61 s ago"
        await unchanged(door, fine, "error", "MirrorStale")
        yard.stale, yard.policies = "", Known((broken, MIG))
        await unchanged(door, fine, "unchanged", "PolicyInvalid")
        yard.policies = Unseen("not seen yet")
        await unchanged(door, fine, "error", "NotLoaded")
        yard.policies, yard.nodes = Known((MIG,)), Unseen("not seen yet")
        await unchanged(door, fine, "error", "NotLoaded")
        yard.namespaces = None  # type: ignore[assignment]
        await unchanged(door, fine, "error", "Defect")
        yard.namespaces = Register({})
        await unchanged(door, fine, "error", "NamespaceUnseen")


async def test_an_answer_that_takes_too_long_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "DEADLINE", 0.05)
    yard = Yard(MIG)
    yard.owner = None
    made = await yard.judge().judge(json.dumps(review(pod(annotations=NEEDS_8))).encode())
    assert (made.outcome, made.reason) == ("error", "Deadline")


@pytest.mark.parametrize(("yard", "reason"), [
    (Yard(MIG, rewrites=False), "RewritesOff"),
    (Yard(msgspec.structs.replace(MIG, mode=SharingMode.audit)), "PolicyAudits"),
    (Yard(msgspec.structs.replace(MIG, rollout_percent=0)), "NotInRollout"),
])
async def test_an_audit_changes_nothing_and_says_what_it_would(yard: Yard, reason: str) -> None:
    made = await yard.judge().judge(json.dumps(review(pod(annotations=NEEDS_8))).encode())
    response = json.loads(made.body)["response"]
    assert (made.outcome, made.reason, "patch" in response) == ("audited", reason, False)
    [warning] = response["warnings"]
    assert warning.startswith("fallow would have this pod ask for nvidia.com/mig-1g.10gb instead of a whole GPU: ")
    assert len(warning) <= 256


async def test_who_owns_it_is_asked_only_where_it_could_share() -> None:
    here, elsewhere, none = Yard(MIG), Yard(scenes.policy(namespace_selector=Selector({"team": "x"}))), Yard()
    for yard in (here, elsewhere, none):
        await yard.judge().judge(json.dumps(review(pod(annotations=NEEDS_8))).encode())
    assert [yard.owners_asked for yard in (here, elsewhere, none)] == [1, 0, 0]
    await none.judge().judge(json.dumps(review(pod(annotations={**NEEDS_8, names.SHARING: "enabled"}))).encode())
    assert none.owners_asked == 1


async def test_a_thousand_containers_and_a_megabyte_are_judged_like_others() -> None:
    many = pod("1", annotations={**NEEDS_8, "note": "x" * 1_000_000})
    many["spec"]["containers"] += [{"name": f"c{number}", "image": "app"} for number in range(1000)]
    many["spec"]["ephemeralContainers"] = [{"name": "debug", "image": "sh"}]
    after = await changed(Yard(MIG), many)
    assert after is not None
    assert untouched(after) == untouched(many)


def _require(*terms: dict[str, Any]) -> dict[str, Any]:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": required}}


def _in(key: str, *values: str) -> list[dict[str, Any]]:
    return [{"key": key, "operator": "In", "values": list(values)}]


TAINT = NodeTaint("team", "x", "NoSchedule")


@pytest.mark.parametrize(("spec", "taints"), [
    (_require(*({"matchFields": _in("metadata.name", f"x{number}")} for number in range(18_000))), ()),
    (_require({"matchExpressions": _in(names.HOSTNAME, *(f"x{number}" for number in range(130_000)))}), ()),
    ({"tolerations": [{"key": f"k{number}", "operator": "Exists"} for number in range(30_000)],
      **_require({"matchExpressions": [{"key": names.HOSTNAME, "operator": "Exists"}]})}, (TAINT,)),
], ids=["terms", "names", "tolerations"])
async def test_who_writes_long_lists_of_nodes_keeps_nobody_waiting(
    spec: dict[str, Any], taints: tuple[NodeTaint, ...]
) -> None:
    """The API server takes pods of a megabyte and a half. One that kept us busy for minutes would let pods of budgets
    that are spent pass meanwhile."""
    yard = Yard(MIG)
    yard.nodes = Known(ladder.PartIndex(
        msgspec.structs.replace(
            scenes.CUT, name=f"n{number}", labels={**scenes.A100, names.HOSTNAME: f"n{number}"}, taints=taints,
        ) for number in range(1000)
    ))
    began = time.process_time()
    made = await yard.judge().judge(json.dumps(review(pod(annotations=NEEDS_8, **spec))).encode())
    assert (made.outcome, made.reason) == ("unchanged", "NoTargetNode")
    assert time.process_time() - began < 1


ODD = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5),
                   lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3))


@hypothesis.given(
    st.fixed_dictionaries({}, optional={
        "nodeSelector": st.dictionaries(st.sampled_from([names.GPU_SHARING, "pool", names.GPU_PRODUCT]),
                                        st.sampled_from(["mps", "x", "NVIDIA-A100-SXM4-80GB"])) | ODD,
        "tolerations": st.lists(st.fixed_dictionaries({}, optional={
            "key": st.sampled_from(["", names.GPU]), "operator": st.sampled_from(["", "Exists", "Equal"])})) | ODD,
        "affinity": ODD, "schedulerName": ODD, "initContainers": ODD,
    }),
    st.sampled_from(["mig", "mps", "timeslicing", "auto"]), st.sampled_from(["1", 1, "2", "1000m"]),
)
async def test_whatever_stands_in_it_the_rest_of_a_pod_is_never_touched(
    spec: dict[str, Any], strategy: str, gpus: Any
) -> None:
    before, yard = pod(gpus, annotations=NEEDS_8, **spec), Yard(scenes.policy(strategy))
    after = await changed(yard, before)
    if after is None:
        return
    assert untouched(after) == untouched(before)
    assert await changed(yard, after) is None
    assert (before["spec"].get("nodeSelector") or {}).items() <= (after["spec"].get("nodeSelector") or {}).items()


