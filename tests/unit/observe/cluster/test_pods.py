"""What is remembered of a pod."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.unit.observe.cluster import pretend

from fallow import names
from fallow.model import cluster, units
from fallow.observe.cluster import pods


def read(thing: pretend.Object, *extra: str) -> cluster.Pod | None:
    item = msgspec.json.decode(msgspec.json.encode(thing), type=pods.PodItem)
    return pods.PodReader(frozenset(extra)).read(item)


def must_read(thing: pretend.Object, *extra: str) -> cluster.Pod:
    found = read(thing, *extra)
    assert found is not None
    return found


def container(name: str, limits: dict[str, str], **more: Any) -> dict[str, Any]:
    return {"name": name, "resources": {"limits": limits}, **more}


@pytest.mark.parametrize(
    ("containers", "init", "expected"),
    [
        ([container("a", {"nvidia.com/gpu": "2"}), container("b", {"nvidia.com/gpu": "1", "cpu": "4"})], [], 3),
        ([container("a", {"nvidia.com/gpu.shared": "1"})], [], 1),
        ([container("a", {"nvidia.com/mig-1g.10gb": "1", "nvidia.com/mig-2g.20gb": "2"})], [], 3),
        ([container("a", {"acme.io/gpu": "4"})], [], 4),
        (
            [container("a", {"nvidia.com/gpu": "1"})],
            [container("s", {"nvidia.com/gpu": "1"}, restartPolicy="Always")], 2,
        ),
        ([container("a", {"nvidia.com/gpu": "1"})], [container("s", {"nvidia.com/gpu": "1"})], 1),
        ([container("a", {"nvidia.com/gpu": "1"})], [container("s", {"nvidia.com/gpu": "8"})], 8),
        ([{"name": "a"}], [container("s", {"nvidia.com/gpu": "2"}), container("t", {"nvidia.com/gpu": "1"})], 2),
        (
            [container("a", {"nvidia.com/gpu": "1"})],
            [container("s", {"nvidia.com/gpu": "1"}, restartPolicy="Always"), container("t", {"nvidia.com/gpu": "4"})],
            5,
        ),
        ([container("a", {"nvidia.com/gpu": "1k"})], [], 1000),
        ([container("a", {"nvidia.com/gpu": "0", "cpu": "1"})], [], None),
        ([container("a", {"amd.com/gpu": "1"})], [], None),
        ([{"name": "a"}], [], None),
    ],
    ids=[
        "sum", "shared", "mig", "named-by-flag", "sidecar", "init-alike", "init-asks-more", "only-init",
        "init-beside-sidecar", "thousand", "none", "other-vendor", "no-resources",
    ],
)
def test_gpus_are_counted_as_the_scheduler_does(containers: list[Any], init: list[Any], expected: int | None) -> None:
    found = read(pretend.pod("p", spec={"containers": containers, "initContainers": init}), "acme.io/gpu")
    assert (found.gpu_count if found else None) == expected


@pytest.mark.accepts("idle", 45)
@pytest.mark.parametrize("counts", [
    ["1e3"], ["9223372036854775807"], ["9223372036854775807", "1"], ["6000", "6000"], ["99999k"], ["1E"], ["4Ki"],
    ["-1"], ["0.5"], ["9" * 5000], ["1", "1e30"],
], ids=lambda counts: "+".join(counts)[:30])
def test_a_count_that_cannot_be_read_or_is_beyond_reason_is_not_known(counts: list[str]) -> None:
    asking = [container(f"c{at}", {"nvidia.com/gpu": count}) for at, count in enumerate(counts)]
    started = states(**{one["name"]: "2026-11-15T08:00:00Z" for one in asking})
    thing = pretend.pod("p", spec={"containers": asking}, status={"containerStatuses": started})
    found = must_read(thing)
    assert (found.gpu_count, found.started_at is not None) == (None, True)
    assert all(count <= pods.MOST_GPUS for count in found.resources.values())


def states(**started: str | None) -> list[dict[str, Any]]:
    return [
        {"name": name, "state": {"running": {"startedAt": at}} if at else {"waiting": {}}}
        for name, at in started.items()
    ]


@pytest.mark.parametrize(
    ("found", "start"),
    [
        (
            states(a="2026-11-15T08:00:00Z", b="2026-11-15T09:00:00Z", cpu="2026-11-15T10:00:00Z"),
            "2026-11-15T09:00:00Z",
        ),
        (states(a="2026-11-15T08:00:00Z", b=None), None),
        (states(a="2026-11-15T08:00:00Z"), None),
        ([], None),
    ],
    ids=["latest-of-gpu-containers", "one-waits", "one-unheard-of", "none-yet"],
)
def test_it_started_when_the_last_of_its_gpu_containers_did(found: list[Any], start: str | None) -> None:
    containers = [container("a", {names.GPU: "1"}), container("b", {names.GPU: "1"}), container("cpu", {})]
    thing = pretend.pod("p", spec={"containers": containers}, status={"phase": "Running", "containerStatuses": found})
    assert must_read(thing).started_at == (units.parse_instant(start) if start else None)


@pytest.mark.parametrize("status", ["True", "False"])
def test_readiness_and_since_when_it_is_so(status: str) -> None:
    condition = {"type": "Ready", "status": status, "lastTransitionTime": "2026-11-15T09:00:00Z"}
    found = must_read(pretend.pod("p", status={"phase": "Running", "conditions": [condition]}))
    assert (found.ready, found.ready_since) == (status == "True", units.parse_instant("2026-11-15T09:00:00Z"))


def test_of_a_pod_that_waits_we_know_where_it_would_fit() -> None:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    condition = {
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "lastTransitionTime": "2026-11-15T09:00:00Z",
    }
    spec = {"nodeSelector": {"gpu": "h100"}, "affinity": affinity}
    found = must_read(pretend.pod("p", node="", spec=spec, status={"phase": "Pending", "conditions": [condition]}))
    assert (found.node_selector, found.affinity) == ({"gpu": "h100"}, terms)
    assert found.unschedulable_since == units.parse_instant("2026-11-15T09:00:00Z")
    bound = must_read(pretend.pod("p", spec=spec))
    assert (bound.node_selector, bound.affinity, bound.unschedulable_since) == ({}, None, None)


def test_only_annotations_that_somebody_heeds_are_kept() -> None:
    heeded = {
        names.ACK_UNTIL: "x", names.ACK_UNTIL_ALIAS: "y", names.KARPENTER_DO_NOT_DISRUPT: "true",
        names.SAFE_TO_EVICT: "false",  # heeded where a node's GPUs are cut anew and pods are evicted for it
    }
    found = must_read(pretend.pod("p", annotations={**heeded, "bulk": "z" * 1000}))
    assert found.annotations == heeded


def test_equal_labels_are_kept_once() -> None:
    reader = pods.PodReader()
    items = [
        msgspec.json.decode(msgspec.json.encode(pretend.pod(name, labels={"app": "a"})), type=pods.PodItem)
        for name in "pq"
    ]
    first, second = (reader.read(item) for item in items)
    assert first is not None
    assert second is not None
    assert first.labels is second.labels


@pytest.mark.parametrize(
    ("claim", "statuses", "expected"),
    [
        ({"name": "g", "resourceClaimName": "mine"}, [], ("mine",)),
        ({"name": "g", "resourceClaimTemplateName": "t"}, [{"name": "g", "resourceClaimName": "made-1"}], ("made-1",)),
        ({"name": "g", "resourceClaimTemplateName": "t"}, [], ("",)),
        ({"name": "g", "resourceClaimTemplateName": "t"}, [{"name": "g"}], ()),
    ],
    ids=["by-name", "from-template", "not-made-yet", "none-needed"],
)
def test_claims_are_named(claim: dict[str, str], statuses: list[dict[str, str]], expected: tuple[str, ...]) -> None:
    status = {"phase": "Running", "resourceClaimStatuses": statuses}
    found = must_read(pretend.pod("p", gpus=0, spec={"resourceClaims": [claim]}, status=status))
    assert found.claims == expected


def test_a_mirror_pod_is_static() -> None:
    assert must_read(pretend.pod("p", annotations={names.MIRROR_POD: "x"})).static


@pytest.mark.parametrize(("kind", "is_static"), [("v1/Node", True), ("apps/v1/ReplicaSet", False)])
def test_what_a_controller_made_is_not_static_whatever_its_template_says(kind: str, is_static: bool) -> None:
    thing = pretend.pod("p", annotations={names.MIRROR_POD: "x"})
    version, _, name = kind.rpartition("/")
    thing["metadata"]["ownerReferences"] = [
        {"apiVersion": version, "kind": name, "name": "a", "uid": "u", "controller": True}
    ]
    assert must_read(thing).static is is_static


def test_each_pod_has_the_owner_that_itself_names() -> None:
    reader = pods.PodReader()
    said = [("apps/v1", "DaemonSet", "a"), ("apps/v1", "ReplicaSet", "a"), ("apps/v1", "ReplicaSet", "b")]
    for version, kind, name in said:
        thing = pretend.pod("p")
        thing["metadata"]["ownerReferences"] = [
            {"apiVersion": version, "kind": kind, "name": name, "uid": "same", "controller": True}
        ]
        found = reader.read(msgspec.convert(thing, pods.PodItem))
        assert found is not None
        assert found.owner is not None
        assert (found.owner.kind, found.owner.name) == (kind, name)


@pytest.mark.parametrize("more", [
    {"annotations": {"gpu-fraction": "0.5"}}, {"annotations": {"gpu-memory": "4000"}},
    {"labels": {names.RESERVATION_GROUP_LABEL: "g1"}}, {"labels": {f"{names.RESERVATION_GROUP_LABEL}/g1": "g1"}},
], ids=["fraction", "memory", "group", "several-groups"])
def test_a_pod_on_a_part_of_a_gpu_is_kept_as_one_of_its_sharers(more: dict[str, Any]) -> None:
    found = must_read(pretend.pod("p", gpus=0, **more))
    assert (dict(found.resources), found.gpu_count) == ({names.GPU_SHARED: 1}, 1)
    assert found.started_at is not None, "its containers are those that run on it"
    assert read(pretend.pod("p", gpus=0)) is None
    assert must_read(pretend.pod("p", gpus=2, **more)).gpu_count == 2
