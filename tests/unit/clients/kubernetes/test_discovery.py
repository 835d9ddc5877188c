"""Which kinds there are: from one document, from many, with a group that is down, and which version is taken."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.clients.kubernetes import wire

from fallow.clients import errors
from fallow.clients.kubernetes import api, discovery

VERBS = ["get", "list", "patch"]


def kind(plural: str, name: str, *subresources: str, scope: str = "Namespaced") -> dict[str, Any]:
    subs = [
        {"subresource": each, "responseKind": {"kind": "Scale"}, "verbs": ["get", "patch"]} for each in subresources
    ]
    return {
        "resource": plural,
        "responseKind": {"group": "", "version": "", "kind": name},
        "scope": scope,
        "verbs": VERBS,
        "subresources": subs,
    }


def group(name: str, **versions: list[dict[str, Any]]) -> dict[str, Any]:
    listed = [{"version": version, "freshness": "Current", "resources": kinds} for version, kinds in versions.items()]
    return {"metadata": {"name": name} if name else {}, "versions": listed}


def aggregated(*groups: dict[str, Any]) -> wire.Answer:
    return wire.give({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "items": list(groups)})


async def test_two_requests_to_a_current_server(server: wire.Server, client: api.Api) -> None:
    server.on(
        "GET",
        "/api",
        aggregated(group("", v1=[kind("pods", "Pod", "eviction"), kind("nodes", "Node", scope="Cluster")])),
    )
    server.on(
        "GET",
        "/apis",
        aggregated(
            group("apps", v1=[kind("deployments", "Deployment", "scale", "status"), kind("daemonsets", "DaemonSet")])
        ),
    )
    found = await discovery.discover(client)
    assert len(server.seen) == 2
    assert "v=v2;as=APIGroupDiscoveryList" in server.seen[0].headers["Accept"]
    assert found.find("", "Node") == api.Resource("", "v1", "nodes", "Node", False, False)
    assert found.find("apps", "Deployment") == api.Resource(
        "apps", "v1", "deployments", "Deployment", True, True
    )
    assert (found.find("apps", "Pod"), found.find_version("apps", "v2", "Deployment")) == (None, None)
    assert {each.plural for each in found.resources} == {"pods", "nodes", "deployments", "daemonsets"}


async def test_the_preferred_version_wins_if_it_has_the_kind_else_the_highest(
    server: wire.Server, client: api.Api
) -> None:
    both, only_alpha, only_beta = kind("as", "Both"), kind("bs", "Old"), kind("cs", "Mid")
    server.on("GET", "/api", aggregated())
    server.on(
        "GET",
        "/apis",
        aggregated(
            group(
                "x.io", v1beta1=[both, only_beta], v1=[both], v1alpha2=[only_alpha, only_beta], v1alpha10=[only_alpha]
            )
        ),
    )
    found = await discovery.discover(client)
    versions = {name: found.find("x.io", name) for name in ("Both", "Old", "Mid")}
    assert {name: each and each.version for name, each in versions.items()} == {
        "Both": "v1beta1",
        "Old": "v1alpha10",
        "Mid": "v1beta1",
    }


async def test_a_group_that_is_down_is_noted_and_hides_no_other(server: wire.Server, client: api.Api) -> None:
    down = {"metadata": {"name": "metrics.k8s.io"}, "versions": [{"version": "v1beta1", "freshness": "Stale"}]}
    server.on("GET", "/api", aggregated())
    server.on("GET", "/apis", aggregated(down, group("apps", v1=[kind("deployments", "Deployment")])))
    found = await discovery.discover(client)
    assert found.find("apps", "Deployment") is not None
    assert list(found.unavailable) == ["metrics.k8s.io/v1beta1"]
    assert found.is_unavailable("metrics.k8s.io")
    assert not found.is_unavailable("apps")


def serve_classic(server: wire.Server) -> None:
    server.on("GET", "/api", wire.give({"kind": "APIVersions", "versions": ["v1"]}))
    pods = [
        {"name": "pods", "kind": "Pod", "namespaced": True, "verbs": VERBS},
        {"name": "pods/eviction", "kind": "Eviction", "namespaced": True, "verbs": ["create"]},
    ]
    server.on("GET", "/api/v1", wire.give({"kind": "APIResourceList", "resources": pods}))
    groups = [
        {
            "name": "apps",
            "versions": [{"version": "v1"}, {"version": "v1beta1"}],
            "preferredVersion": {"version": "v1"},
        },
        {"name": "down.io", "versions": [{"version": "v1"}], "preferredVersion": {"version": "v1"}},
        {"name": "odd.io", "versions": [{"version": "v1"}]},
    ]
    server.on("GET", "/apis", wire.give({"kind": "APIGroupList", "groups": groups}))
    deployments = [
        {"name": "deployments", "kind": "Deployment", "namespaced": True, "verbs": VERBS},
        {"name": "deployments/scale", "kind": "Scale", "namespaced": True, "verbs": VERBS},
    ]
    server.on("GET", "/apis/apps/v1", wire.give({"kind": "APIResourceList", "resources": deployments}))
    server.on(
        "GET",
        "/apis/apps/v1beta1",
        wire.give({"kind": "APIResourceList", "resources": [*deployments, {"name": "olds", "kind": "Old"}]}),
    )
    server.on("GET", "/apis/down.io/v1", wire.status(503, "ServiceUnavailable", "service unavailable"))
    server.on("GET", "/apis/odd.io/v1", wire.give(b"<html>"))


async def test_an_old_server_is_asked_group_by_group(server: wire.Server, client: api.Api) -> None:
    serve_classic(server)
    found = await discovery.discover(client)
    assert found.find("", "Pod") == api.Resource("", "v1", "pods", "Pod", True, False)
    assert found.find("apps", "Deployment") == api.Resource(
        "apps", "v1", "deployments", "Deployment", True, True
    )
    assert found.find("apps", "Old") == api.Resource("apps", "v1beta1", "olds", "Old", False)
    assert set(found.unavailable) == {"down.io/v1", "odd.io/v1"}
    assert found.unavailable["down.io/v1"] == "service unavailable"
    assert found.find("", "Eviction") is None


async def test_no_list_of_groups_at_all_is_an_error(server: wire.Server, client: api.Api) -> None:
    server.on("GET", "/api", aggregated())
    server.on("GET", "/apis", wire.give(b"[]"))
    with pytest.raises(errors.BadAnswer, match="/apis: the server's list of kinds cannot be read"):
        await discovery.discover(client)
    server.on("GET", "/apis", wire.status(403, "Forbidden"))
    with pytest.raises(errors.Forbidden):
        await discovery.discover(client)


ORDER = ["v10", "v2", "v1", "v11beta2", "v10beta3", "v3beta1", "v12alpha1", "v11alpha2", "foo1", "foo10", "v1gamma1"]


@given(st.permutations(ORDER))
def test_versions_are_ordered_as_kubernetes_documents_it(shuffled: list[str]) -> None:
    ranked = sorted(shuffled, key=discovery.rank_version, reverse=True)
    assert ranked[:8] == ORDER[:8]
