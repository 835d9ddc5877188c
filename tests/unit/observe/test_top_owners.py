"""Who stands above a pod, with what we wrote there: a back-off counts where it was written, and only there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from tests.unit.clients import loopback

from fallow import names
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config
from fallow.model.seen import Known
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


@pytest.mark.parametrize(("served", "marked", "kind", "heeded"), [
    (False, "deploy", "Deployment", True), (True, "isvc", "InferenceService", True),
    (True, "deploy", "InferenceService", True),  # where its marks stand
    (False, "rs", "Deployment", False),  # copied down by a controller, and never removed by it
    (True, "", "InferenceService", False),
])
async def test_a_back_off_counts_where_it_was_written(
    tmp_path: Path, served: bool, marked: str, kind: str, heeded: bool
) -> None:
    async with loopback.serve(Chain(served=served, marked=marked).answer) as server:
        written = {
            "apiVersion": "v1", "kind": "Config", "current-context": "c", "users": [{"name": "u", "user": {}}],
            "clusters": [{"name": "c", "cluster": {"server": server.url}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        }
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(written))
        access = config.load_access(kubeconfig=str(tmp_path / "kubeconfig"), context=None, environment={})
        async with kube.Api(access, qps=10_000) as api:
            reference = budgets.OwnerRef(api_version="apps/v1", kind="ReplicaSet", name="rs", uid="u-rs",
                                         controller=True)
            found = await budgets.TopOwners(api).read_top("ml", [reference])
    assert isinstance(found, Known), found
    assert found.value.kind == kind
    assert found.value.annotations == ({names.BACKOFF_UNTIL: UNTIL} if heeded else {})
