"""Who may, on the real API server: tokens that it knows, rights that it knows, for people who may and who may not; with
our own account holding no more than what deploy/ gives it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
import yaml
from starlette.requests import Request

from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config, reviews
from fallow.doors.api import auth, rights, sessions
from fallow.doors.api.refusals import Denied
from fallow.observe.cluster import mirror
from tests import ROOT
from tests.real import cluster as clusters

EDITS = [
    {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get", "patch"]},
    {"apiGroups": ["gpuautoscaler.io"], "resources": ["idlepolicies"], "verbs": ["get", "update"]},
]
SEES = [{"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get"]}]


def access_to(kubeconfig: object) -> config.Access:
    return config.load_access(kubeconfig=str(kubeconfig), context=None, environment={})


def token_of(kubeconfig: object) -> str:
    token = access_to(kubeconfig).token
    assert token is not None
    return token.reveal()


def role_rules(*files: str) -> list[clusters.Object]:
    """Of the ClusterRoles in deploy/."""
    things = [thing for file in files for thing in yaml.safe_load_all((ROOT / "deploy" / file).read_text())]
    return [rule for thing in things if thing and thing["kind"] == "ClusterRole" for rule in thing["rules"]]


@pytest_asyncio.fixture
async def ours(cluster: clusters.Cluster) -> AsyncIterator[kube.Api]:
    """Our own account, with the roles of deploy/ and nothing else."""
    rules = role_rules("base/20-reader.yaml", "dashboard/10-role.yaml")
    async with kube.Api(access_to(await cluster.service_account("gpu-pruner", rules)), qps=200) as running:
        yield running


def asking(token: str, path: str = "/api/v1/me") -> Request:
    return Request({
        "type": "http", "method": "GET", "path": path, "query_string": b"", "scheme": "http",
        "headers": [(b"authorization", f"Bearer {token}".encode())], "server": ("127.0.0.1", 1),
        "client": ("127.0.0.1", 2),
    })


def gate_on(api: kube.Api) -> auth.FrontGate:
    seals = sessions.Seals(sessions.make_key())
    return auth.FrontGate("kube", api, seals, clock=time.time, monotonic=time.monotonic)


async def test_a_token_is_somebodys_or_nobodys(cluster: clusters.Cluster, ours: kube.Api) -> None:
    ada = token_of(await cluster.service_account("ada"))
    who = await reviews.review_token(ours, ada)
    assert who is not None
    assert who.name == f"system:serviceaccount:{cluster.namespace}:ada"
    assert "system:authenticated" in who.groups
    for wrong in ("", "not-a-token", ada[:-4] + "AAAA", f"{ada}x"):
        assert await reviews.review_token(ours, wrong) is None


async def test_who_may_and_who_may_not(cluster: clusters.Cluster, ours: kube.Api) -> None:
    tokens = {
        name: token_of(await cluster.service_account(name, rules))
        for name, rules in (("ada", EDITS), ("bob", SEES), ("eve", None))
    }
    gate = gate_on(ours)
    async with mirror.Mirror(ours, watch_namespaces=[cluster.namespace]) as seen:
        await seen.list_all(time.time())
        may = rights.Rights(gate, ours, seen, time.monotonic)
        people = {name: await gate.identify(asking(token)) for name, token in tokens.items()}
        await may.demand_patch(people["ada"], cluster.namespace, "deploy", "llm")
        await may.demand_freeze(people["ada"])
        missing = f"patch on deployments in {cluster.namespace}"
        for name in ("bob", "eve"):
            with pytest.raises(Denied) as refused:
                await may.demand_patch(people[name], cluster.namespace, "Deployment", "llm")
            assert (refused.value.status_code, refused.value.missing) == (403, missing)
            with pytest.raises(Denied):
                await may.demand_freeze(people[name])
        one = f"/api/v1/workloads/{cluster.namespace}/Deployment/llm/explain"
        await may.guard(asking(tokens["bob"], one))
        for name, path in (("eve", one), ("bob", "/api/v1/overview")):
            with pytest.raises(Denied):
                await may.guard(asking(tokens[name], path))


async def test_without_its_role_nobody_is_let_in(cluster: clusters.Cluster) -> None:
    """What cannot be asked is not allowed."""
    ada = token_of(await cluster.service_account("ada", EDITS))
    rules = role_rules("base/20-reader.yaml")
    async with kube.Api(access_to(await cluster.service_account("gpu-pruner", rules))) as bare:
        gate = gate_on(bare)
        with pytest.raises(Denied) as refused:
            await gate.identify(asking(ada))
    assert (refused.value.status_code, refused.value.code) == (503, "AuthUnavailable")
