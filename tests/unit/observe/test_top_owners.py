"""Who stands above a pod, with what we wrote there: a back-off counts where it was written, and only there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from tests.unit.clients import loopback

from fallow import names
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config
from fallow.model.seen import Known, Unseen
from fallow.observe import budgets

UNTIL = "2026-11-20T00:00:00Z"
KINDS = {
    "/apis/apps/v1": [("deployments", "Deployment"), ("replicasets", "ReplicaSet")],
    "/apis/serving.kserve.io/v1beta1": [("inferenceservices", "InferenceService")],
}


def owner(kind: str, name: str, version: str = "apps/v1") -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "name": name, "uid": f"u-{name}", "controller": True}


def thing(name: str, above: dict[str, Any] | None, marked: bool) -> dict[str, Any]:
    marks = {names.BACKOFF_UNTIL: UNTIL} if marked else {}
    return {"metadata": {
        "name": name, "uid": f"u-{name}", "annotations": marks, "ownerReferences": [above] if above else [],
    }}


class Chain:
    """A ReplicaSet, a Deployment, and maybe an InferenceService above it."""

    def __init__(self, *, served: bool, marked: str) -> None:
        above = owner("InferenceService", "isvc", "serving.kserve.io/v1beta1") if served else None
        self.things = {
            "replicasets/rs": thing("rs", owner("Deployment", "deploy"), marked == "rs"),
            "deployments/deploy": thing("deploy", above, marked == "deploy"),
            "inferenceservices/isvc": thing("isvc", None, marked == "isvc"),
        }

    def answer(self, asked: loopback.Asked) -> web.Response:
        found = next((each for end, each in self.things.items() if asked.path.endswith(end)), None)
        if found is not None:
            return web.json_response(found)
        if asked.path == "/apis":
            groups = [each.split("/")[2:] for each in KINDS]
            return web.json_response({"kind": "APIGroupList", "groups": [
                {"name": group, "versions": [{"groupVersion": f"{group}/{version}", "version": version}],
                 "preferredVersion": {"groupVersion": f"{group}/{version}", "version": version}}
                for group, version in groups
            ]})
        rows = KINDS.get(asked.path, [])
        return web.json_response({"kind": "APIResourceList", "groupVersion": asked.path[6:], "resources": [
            {"name": name, "kind": kind, "namespaced": True, "verbs": ["get", "list"]} for name, kind in rows
        ]})


@contextlib.asynccontextmanager
async def serving(answer: Callable[[loopback.Asked], web.Response], tmp_path: Path) -> AsyncIterator[kube.Api]:
    async with loopback.serve(answer) as server:
        written = {
            "apiVersion": "v1", "kind": "Config", "current-context": "c", "users": [{"name": "u", "user": {}}],
            "clusters": [{"name": "c", "cluster": {"server": server.url}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        }
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(written))
        access = config.load_access(kubeconfig=str(tmp_path / "kubeconfig"), context=None, environment={})
        async with kube.Api(access, qps=10_000) as api:
            yield api


REPLICA_SET = budgets.OwnerRef(api_version="apps/v1", kind="ReplicaSet", name="rs", uid="u-rs", controller=True)


@pytest.mark.parametrize(("served", "marked", "kind", "heeded"), [
    (False, "deploy", "Deployment", True), (True, "isvc", "InferenceService", True),
    (True, "deploy", "InferenceService", True),  # where its marks stand
    (False, "rs", "Deployment", False),  # copied down by a controller, and never removed by it
    (True, "", "InferenceService", False),
])
async def test_a_back_off_counts_where_it_was_written(
    tmp_path: Path, served: bool, marked: str, kind: str, heeded: bool
) -> None:
    async with serving(Chain(served=served, marked=marked).answer, tmp_path) as api:
        found = await budgets.TopOwners(api).read_top("ml", [REPLICA_SET])
    assert isinstance(found, Known), found
    assert found.value.kind == kind
    assert found.value.annotations == ({names.BACKOFF_UNTIL: UNTIL} if heeded else {})


JOB = budgets.OwnerRef(api_version="batch/v1", kind="Job", name="night-1", uid="u-night-1", controller=True)


@pytest.mark.parametrize(("above", "heeded"), [
    (owner("CronJob", "night", "batch/v1"), True), (owner("Pipeline", "night", "batch/v1"), True),
    (owner("Deployment", "night"), False),
], ids=["a schedule", "a kind that may be looked past", "a workload"])
async def test_a_back_off_below_what_only_makes_workloads_counts(
    tmp_path: Path, above: dict[str, Any], heeded: bool
) -> None:
    things = {"/jobs/night-1": thing("night-1", above, True), "/night": thing("night", None, False)}
    rows = {"/apis/batch/v1": ["jobs", "cronjobs", "pipelines"], "/apis/apps/v1": ["deployments"]}
    kinds = {"jobs": "Job", "cronjobs": "CronJob", "pipelines": "Pipeline", "deployments": "Deployment"}

    def answer(asked: loopback.Asked) -> web.Response:
        found = next((each for end, each in things.items() if asked.path.endswith(end)), None)
        if found is not None:
            return web.json_response(found)
        if asked.path == "/apis":
            groups = [path.split("/")[2] for path in rows]
            return web.json_response({"kind": "APIGroupList", "groups": [
                {"name": group, "versions": [{"groupVersion": f"{group}/v1", "version": "v1"}],
                 "preferredVersion": {"groupVersion": f"{group}/v1", "version": "v1"}} for group in groups
            ]})
        return web.json_response({"kind": "APIResourceList", "groupVersion": asked.path[6:], "resources": [
            {"name": name, "kind": kinds[name], "namespaced": True, "verbs": ["get", "list"]}
            for name in rows.get(asked.path, [])
        ]})

    async with serving(answer, tmp_path) as api:
        found = await budgets.TopOwners(api).read_top("ml", [JOB])
    assert isinstance(found, Known), found
    assert found.value.annotations == ({names.BACKOFF_UNTIL: UNTIL} if heeded else {})


class Counted(Chain):
    """Counts looks for kinds, and refuses all while it is told to."""

    def __init__(self) -> None:
        super().__init__(served=False, marked="")
        self.looks, self.fails = 0, False

    def answer(self, asked: loopback.Asked) -> web.Response:
        self.looks += asked.path == "/apis"
        return web.Response(status=403) if self.fails else super().answer(asked)


def made_up(number: int) -> list[budgets.OwnerRef]:
    return [budgets.OwnerRef(
        api_version=f"made{number}.up/v1", kind=f"Kind{number}", name="x", uid=f"u-{number}", controller=True
    )]


async def test_kinds_that_people_make_up_are_looked_for_once_a_minute(tmp_path: Path) -> None:
    chain, now = Counted(), [1_000.0]
    async with serving(chain.answer, tmp_path) as api:
        owners = budgets.TopOwners(api, lambda: now[0])
        found = await asyncio.gather(*(owners.read_top("ml", made_up(number)) for number in range(20)))
        assert all(isinstance(each, Unseen) for each in found)
        assert isinstance(await owners.read_top("ml", [REPLICA_SET]), Known)
        assert chain.looks == 1
        now[0] += 61
        await owners.read_top("ml", made_up(20))
        assert chain.looks == 2


async def test_a_look_for_kinds_that_failed_is_made_again_soon(tmp_path: Path) -> None:
    chain, now = Counted(), [1_000.0]
    chain.fails = True
    async with serving(chain.answer, tmp_path) as api:
        owners = budgets.TopOwners(api, lambda: now[0])
        assert isinstance(await owners.read_top("a", [REPLICA_SET]), Unseen)
        chain.fails = False
        now[0] += 6
        assert isinstance(await owners.read_top("b", [REPLICA_SET]), Known)


async def test_a_look_for_kinds_goes_on_where_one_review_has_no_more_time(tmp_path: Path) -> None:
    chain = Counted()
    async with serving(chain.answer, tmp_path) as api:
        owners = budgets.TopOwners(api, lambda: 1_000.0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await owners.read_top("ml", [REPLICA_SET])
        assert isinstance(await owners.read_top("ml", [REPLICA_SET]), Known)
        assert chain.looks <= 1
