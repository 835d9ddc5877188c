"""Logging in at a real OpenID Connect provider, to a real daemon, with rights that a real API server knows: people who
may and who may not, a provider that changes its keys, goes away, and is not fooled."""

from __future__ import annotations

import pathlib
from collections.abc import AsyncIterator
from typing import Any
from urllib import parse

import pytest

from fallow import names
from tests.real import cluster as clusters
from tests.real import history, product, provider
from tests.real.test_api_auth import role_rules

MAY = [
    {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get", "patch"]},
    {"apiGroups": [names.GROUP], "resources": [names.POLICY_PLURAL], "verbs": ["get"]},
]
OWN = ("base/20-reader.yaml", "acting/10-role.yaml", "dashboard/10-role.yaml")
LEASES = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["*"]}


class Scene:
    def __init__(self, stage: product.Stage, running: provider.Provider, daemon: product.Daemon) -> None:
        self.stage, self.provider, self.daemon = stage, running, daemon
        self.ask = {"namespace": stage.namespace, "kind": "Deployment", "name": "quiet", "hours": 4}

    async def marks(self) -> dict[str, str]:
        thing = await self.stage.cluster.get("apps/v1", "Deployment", "quiet")
        return dict(thing["metadata"].get("annotations") or {})


@pytest.fixture
async def scene(
    cluster: clusters.Cluster, prometheus: history.PrometheusWorld, tmp_path: pathlib.Path
) -> AsyncIterator[Scene]:
    """ada may by her group, bob may nothing; our own account has the roles of deploy/ and no more."""
    stage = product.Stage(cluster, prometheus)
    await stage.build()
    await stage.workload("quiet")
    await stage.prometheus.start()
    group = {"kind": "Group", "name": "oidc:ml-team", "apiGroup": "rbac.authorization.k8s.io"}
    await cluster.grant(group, MAY)
    secret = tmp_path / "secret"
    secret.write_text(f"{provider.SECRET}\n")
    address = f"127.0.0.1:{product.free_port()}"
    url = f"http://{address}"
    async with (
        provider.provider_for(f"{url}/oidc/callback") as running,
        product.product_on(stage, tmp_path, [*role_rules(*OWN), LEASES]) as pruner,
    ):
        daemon = await pruner.start(
            "-r", "scale-down", "-t", "600", "--dashboard-addr", address, "--dashboard-public-url", url,
            "--dashboard-auth", "oidc", "--oidc-issuer-url", running.issuer, "--oidc-client-id", "fallow",
            "--oidc-client-secret-file", str(secret), "--oidc-username-claim", "email", "--oidc-username-prefix",
            "oidc:", "--oidc-groups-prefix", "oidc:", "--oidc-scopes", "email,groups",
        )
        daemon.url = url
        await daemon.until(daemon.is_ready)
        yield Scene(stage, running, daemon)


async def test_people_log_in_and_may_what_their_roles_say(scene: Scene) -> None:
    one = f"/api/v1/workloads/{scene.stage.namespace}/Deployment/quiet"
    async with provider.browser_on(scene.daemon.url) as ada, provider.browser_on(scene.daemon.url) as bob:
        assert (await ada.read("/api/v1/overview"))[0] == 401
        assert await ada.log_in("ada", f"{one}/explain") == (200, f"{scene.daemon.url}{one}/explain", _any())
        status, page = await ada.read("/api/v1/overview")
        assert (status, page["user"], page["auth"]) == (200, "oidc:ada@example.com", "oidc")
        status, kept = await ada.press("/api/v1/acks", scene.ask)
        assert (status, kept["by"]) == (201, "api:oidc:ada@example.com")
        assert (await scene.marks())[names.ACK_BY] == "api:oidc:ada@example.com"
        assert (await ada.press("/api/v1/freeze", {"forSeconds": 60}))[0] == 403  # she may not update policies

        assert (await bob.log_in("bob"))[0] == 200
        assert [(await bob.read(path))[0] for path in ("/api/v1/overview", one)] == [403, 403]
        status, refused = await bob.press(f"{one}/pause", {})
        assert (status, refused["missing"]) == (403, f"patch on deployments in {scene.stage.namespace}")

        assert (await ada.press("/api/v1/logout", {}))[0] == 204
        assert (await ada.read("/api/v1/overview"))[0] == 401


async def test_who_the_provider_does_not_vouch_for_is_nobody(scene: Scene) -> None:
    """mallory has given ada's address as her own."""
    async with provider.browser_on(scene.daemon.url) as mallory:
        status, _, text = await mallory.log_in("mallory")
        assert (status, "does not vouch" in text) == (401, True)
        assert (await mallory.read("/api/v1/overview"))[0] == 401


async def test_a_code_is_good_once_and_for_who_asked_for_it(scene: Scene) -> None:
    async with provider.browser_on(scene.daemon.url) as ada, provider.browser_on(scene.daemon.url) as eve:
        await ada.log_in("ada")
        used = dict(parse.parse_qsl(parse.urlsplit(ada.came_back).query))
        assert (await ada.go(ada.came_back))[0] == 400
        assert (await eve.go(ada.came_back))[0] == 400  # without ada's ticket
        _, leads, _ = await eve.go(f"{scene.daemon.url}/oidc/login")
        own = dict(parse.parse_qsl(parse.urlsplit(leads).query))
        stolen = {"code": used["code"], "state": own["state"], "iss": scene.provider.issuer}
        status, _, text = await eve.go(f"{scene.daemon.url}/oidc/callback?{parse.urlencode(stolen)}")
        assert (status, "invalid_grant" in text) == (401, True)  # the provider itself says so
        assert (await eve.read("/api/v1/overview"))[0] == 401


async def test_a_provider_that_changes_its_keys_and_one_that_is_away(scene: Scene) -> None:
    async with provider.browser_on(scene.daemon.url) as ada, provider.browser_on(scene.daemon.url) as late:
        await ada.log_in("ada")
        await scene.provider.stop()
        assert (await ada.press("/api/v1/acks", scene.ask))[0] == 201  # who is logged in goes on
        _, leads, _ = await late.go(f"{scene.daemon.url}/oidc/login")
        back = {"code": "any", "state": dict(parse.parse_qsl(parse.urlsplit(leads).query))["state"]}
        status, _, text = await late.go(f"{scene.daemon.url}/oidc/callback?{parse.urlencode(back)}")
        assert (status, "cannot be reached" in text) == (503, True)
        assert (await late.read("/api/v1/overview"))[0] == 401
        await scene.provider.start("second")

        async def is_in() -> bool:  # keys are asked for anew at most once a second
            return (await late.log_in("ada"))[0] == 200

        await scene.daemon.until(is_in)
        assert provider.SECRET not in scene.daemon.log


def _any() -> Any:
    class Anything:
        def __eq__(self, other: object) -> bool:
            return True

    return Anything()
