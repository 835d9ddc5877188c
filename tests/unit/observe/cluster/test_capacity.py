"""What nodes have and pods ask for, read from the API server's words."""

from typing import Any

import msgspec
import pytest
from tests.unit.observe.cluster import pretend

from fallow.clients import errors
from fallow.model.capacity import Machine, Needs
from fallow.observe.cluster import capacity, hosts, mirror

NOW = 1_794_735_600.0
READY = [{"type": "Ready", "status": "True"}]
HAS = {"cpu": "63500m", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": "8"}
LABELS = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}


def node(
    has: dict[str, str] | None = None, labels: dict[str, str] | None = None, conditions: Any = READY, **spec: Any
) -> Machine:
    thing = pretend.made("n1", namespace=None, kind="Node", labels={**LABELS, **(labels or {})}, spec=spec,
                         status={"allocatable": {**HAS, **(has or {})}, "conditions": conditions})
    return capacity.see_machine(msgspec.convert(thing, capacity.CountedNodeItem))


def pod(*requests: dict[str, str], init: Any = (), **more: Any) -> Needs:
    runs = more.pop("runs", [])
    containers = [
        {"name": f"c{number}", "resources": {"requests": each}, "command": runs} for number, each in enumerate(requests)
    ]
    inits = [
        {"name": f"i{number}", "resources": {"requests": each}, "restartPolicy": policy}
        for number, (policy, each) in enumerate(init)
    ]
    owner = pretend.made("owner", kind=more.pop("owner", "ReplicaSet"), version="apps/v1")
    marks = {key: more.pop(key) for key in ("labels", "annotations") if key in more}
    thing = pretend.made(
        "p", owner, kind="Pod", spec={"containers": containers, "initContainers": inits, **more}, **marks
    )
    return needs_of(thing)


def needs_of(thing: pretend.Object) -> Needs:
    return capacity.see_needs(msgspec.json.decode(msgspec.json.encode(thing), type=capacity.CountedPodItem))


def test_a_node_is_read_as_it_can_be_allocated() -> None:
    product = "NVIDIA-A100-SXM4-80GB"
    assert node() == Machine(name="n1", product=product, cpu=63_500, memory=256 * 1024, gpus=8, pods=110)


@pytest.mark.parametrize(
    "has", [{"nvidia.com/gpu": "32"}, {"nvidia.com/gpu": "0", "nvidia.com/gpu.shared": "32"}], ids=["same", "renamed"]
)
def test_shared_gpus_are_counted_once(has: dict[str, str]) -> None:
    found = node(has, {"nvidia.com/gpu.replicas": "4"})
    assert (found.gpus, found.replicas) == (8, 4)


@pytest.mark.parametrize(("text", "memory"), [("81920", 81_920), ("0", None), ("", None), ("80Gi", None), ("-1", None)])
def test_memory_of_gpus_that_nobody_tells_is_not_known(text: str, memory: int | None) -> None:
    assert node(labels={"nvidia.com/gpu.memory": text}).gpu_memory == memory


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"unschedulable": True}, "is cordoned"),
        ({"conditions": []}, "is not Ready"),
        ({"conditions": [{"type": "Ready", "status": "Unknown"}]}, "is not Ready"),
        ({"taints": [{"key": "team", "effect": "NoSchedule"}]}, "has a taint that only some pods tolerate"),
        (
            {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}, {"key": "x", "effect": "PreferNoSchedule"}]},
            "",
        ),
        ({"has": {"nvidia.com/mig-1g.10gb": "7"}}, "is cut by MIG"),
        ({"has": {"nvidia.com/mig-1g.10gb": "0"}}, ""),
        ({"has": {"cpu": "many"}}, "what it has cannot be read"),
        ({"labels": {"nvidia.com/gpu.replicas": "few"}}, "what it has cannot be read"),
    ],
)
def test_where_nothing_is_to_be_placed_is_said(change: dict[str, Any], why: str) -> None:
    assert node(**change).left_out == why


def test_a_pod_asks_for_the_sum_of_its_containers_or_the_most_of_its_start() -> None:
    asked = pod(
        {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"}, {"cpu": "500m", "memory": "100M"},
        init=[("Always", {"cpu": "250m"}), (None, {"cpu": "4", "memory": "10Mi"})], overhead={"cpu": "10m"},
    )
    assert (asked.cpu, asked.memory, asked.gpus, asked.shared) == (4250 + 10, 1024 + 96, 1, 0)


def test_a_limit_without_a_request_is_a_request() -> None:
    found = needs_of(pretend.pod("p", gpus=2))
    assert (found.gpus, found.cpu) == (2, 0)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, ""), ({"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-L4"}}, ""),
        ({"nodeSelector": {"pool": "a"}}, "selects nodes by other labels than the GPU's product"),
        ({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}},
         "requires nodes by affinity"),
        ({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}}, ""),
        ({"affinity": {"podAntiAffinity": {"x": 1}}}, "minds which pods are beside it"),
        ({"topologySpreadConstraints": [{}]}, "minds which pods are beside it"),
    ],
    ids=["plain", "product", "selector", "affinity", "preference", "anti-affinity", "spread"],
)
def test_what_is_not_heeded_of_where_a_pod_may_go_is_said(change: dict[str, Any], why: str) -> None:
    found = pod({"cpu": "1"}, **change)
    assert (found.unclear, found.unknown) == (why, "")


def test_requests_that_cannot_be_read_are_no_zero() -> None:
    assert pod({"cpu": "1"}, resourceClaims=[{"name": "gpu"}]).unknown == "asks for devices by claims"
    assert (
        pod({"cpu": "lots"}).unknown
        == "what it asks for cannot be read: 'lots' is not a quantity such as 250m, 4 or 64Gi"
    )
    assert pod({"nvidia.com/mig-1g.5gb": "1"}).unknown == "asks for a MIG instance"


def test_a_product_that_is_selected_is_what_it_accepts() -> None:
    assert pod({}, nodeSelector={"nvidia.com/gpu.product": "NVIDIA-L4"}).products == ("NVIDIA-L4",)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, ""),
        ({"owner": "DaemonSet"}, "belongs to its node"),
        ({"owner": "Job"}, "does work that an eviction would lose"),
        ({"owner": "PyTorchJob", "annotations": {"gpuautoscaler.io/evictable": "true"}}, ""),
        ({"labels": {"gpuautoscaler.io/workload-type": "training"}}, "does work that an eviction would lose"),
        ({"labels": {"gpu-autoscaler.io/workload-type": "Training"}}, "does work that an eviction would lose"),
        (
            {"labels": {"gpuautoscaler.io/workload-type": "training"},
             "annotations": {"gpuautoscaler.io/workload-type": "batch"}}, "does work that an eviction would lose",
        ),
        ({"owner": "StatefulSet", "runs": ["torchrun", "train.py"]}, "does work that an eviction would lose"),
        ({"runs": ["torchrun"], "annotations": {"gpuautoscaler.io/evictable": "true"}}, ""),
        ({"runs": ["torchrun"], "labels": {"gpuautoscaler.io/workload-type": "serving"}}, ""),
        ({"asks": {"nvidia.com/gpu": "8"}}, "does work that an eviction would lose"),
        ({"asks": {"nvidia.com/gpu": "1", "memory": "33Gi"}}, "does work that an eviction would lose"),
        ({"asks": {"nvidia.com/gpu": "1", "memory": "32Gi"}}, ""),
        ({"asks": {"memory": "64Gi"}}, ""),
        ({"annotations": {"karpenter.sh/do-not-disrupt": "true"}}, "asked not to be disrupted"),
        ({"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}}, "asked not to be disrupted"),
        (
            {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
            "has a volume that may be of its node",
        ),
        ({"volumes": [{"name": "v", "emptyDir": {}}]}, ""),
        ({"annotations": {"kubernetes.io/config.mirror": "x"}}, "has no controller that would make it again"),
    ],
)
def test_who_must_not_be_moved_is_said(change: dict[str, Any], why: str) -> None:
    asks, change = change.get("asks", {"cpu": "1"}), {key: change[key] for key in change if key != "asks"}
    assert pod(asks, **change).fixed == why


async def test_a_cluster_is_read_by_two_lists_and_pods_come_in_their_order() -> None:
    async with pretend.Server() as server:
        server.put("namespaces", pretend.made("kube-system", namespace=None, kind="Namespace"))
        server.put(
            "nodes", pretend.made("n1", namespace=None, kind="Node", status={"allocatable": HAS, "conditions": READY})
        )
        for name, hour in (("late", 9), ("early", 7)):
            thing = pretend.pod(name)
            thing["metadata"]["creationTimestamp"] = f"2026-11-15T{hour:02}:00:00Z"
            server.put("pods", thing)
        done = pretend.pod("done", status={"phase": "Succeeded"})
        server.put("pods", done)
        server.put("nodes", pretend.made("odd", namespace=None, kind="Node", status=7))
        async with server.api() as api:
            seen = await hosts.look(api)
    assert [one.name for one in seen.pods] == ["early", "late"]
    assert (len(seen.machines), seen.cluster, seen.unread) == (1, "Namespace-kube-system", 1)
    assert server.asked("watch") == 0


async def test_a_pod_that_cannot_be_read_could_be_on_any_node() -> None:
    async with pretend.Server() as server, server.api() as api:
        server.put("pods", pretend.pod("odd", spec={"containers": 7}))
        with pytest.raises(
            errors.BadAnswer, match="1 pods cannot be read, so what is free on their nodes cannot be told"
        ):
            await hosts.look(api)


@pytest.mark.parametrize("plural", ["nodes", "pods"])
async def test_half_of_a_cluster_is_none(plural: str) -> None:
    async with pretend.Server() as server, server.api() as api:
        server.forbidden.add(("list", plural))
        with pytest.raises(errors.Forbidden, match="cannot list resource"):
            await hosts.look(api)


async def test_a_followed_mirror_counts_pods_that_come_and_go_by_the_one_watch_it_has() -> None:
    async with pretend.Server() as server, server.api() as api, mirror.Mirror(api, counts_capacity=True) as seen:
        server.put("namespaces", pretend.made("kube-system", namespace=None, kind="Namespace"))
        server.put(
            "nodes", pretend.made("n1", namespace=None, kind="Node", status={"allocatable": HAS, "conditions": READY})
        )
        server.put("pods", pretend.pod("busy", gpus=1))
        await seen.follow(NOW)

        def counted() -> dict[str, int]:
            return {one.uid: one.needs.gpus for one in seen.capacity.pods}

        assert counted() == {"Pod-busy": 1}
        assert (seen.capacity.cluster, [machine.gpus for machine in seen.capacity.machines]) == (
            "Namespace-kube-system",
            [8],
        )
        idle_version = seen.contents.version({})
        server.put("pods", pretend.pod("web", gpus=0))
        await pretend.until(lambda: counted() == {"Pod-busy": 1, "Pod-web": 0})
        assert [pod.name for pod in seen.pods] == ["busy"], "a pod without GPUs is none of idle's"
        assert seen.contents.version({}) == idle_version
        server.remove("pods", "Pod-busy")
        await pretend.until(lambda: counted() == {"Pod-web": 0})
        assert seen.contents.version({}) != idle_version
        assert server.asked("watch", "pods") == 1


async def test_what_was_not_listed_yet_is_no_empty_cluster() -> None:
    async with pretend.Server() as server, server.api() as api, mirror.Mirror(api, counts_capacity=True) as seen:
        with pytest.raises(errors.Unreachable, match="nodes are being listed anew"):
            _ = seen.capacity


async def test_who_does_not_count_has_no_capacity_to_show() -> None:
    async with pretend.Server() as server, server.api() as api, mirror.Mirror(api) as seen:
        server.put("pods", pretend.pod("web", gpus=0))
        await seen.list_all(NOW)
        with pytest.raises(ValueError, match="was not counted"):
            _ = seen.capacity


async def test_a_cluster_without_an_id_is_read_all_the_same() -> None:
    async with pretend.Server() as server, server.api() as api:
        assert (await hosts.look(api)).cluster == ""


@pytest.mark.parametrize(("tolerations", "tolerated"), [
    ([], ()), ([{"operator": "Exists"}], ("NoExecute", "NoSchedule")),
    ([{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}], ("NoSchedule",)),
    ([{"key": "nvidia.com/gpu", "value": "present"}], ()), ([{"key": "other", "operator": "Exists"}], ()),
    ([{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute"}], ("NoExecute",)),
])
def test_which_effects_of_the_taint_of_gpus_are_tolerated(tolerations: Any, tolerated: tuple[str, ...]) -> None:
    assert pod({"nvidia.com/gpu": "1"}, tolerations=tolerations).tolerates == tolerated


def test_the_taint_of_gpus_leaves_no_node_out_and_is_kept() -> None:
    effects = ("NoSchedule", "PreferNoSchedule")
    found = node(taints=[{"key": "nvidia.com/gpu", "value": "present", "effect": effect} for effect in effects])
    assert (found.left_out, found.taints) == ("", ("NoSchedule",))


@pytest.mark.parametrize(("asked", "more", "words"), [
    ({}, {}, ""), ({"rdma/hca": "1"}, {}, "asks for rdma/hca"), ({"ephemeral-storage": "1Gi"}, {}, "ephemeral-storage"),
    ({"rdma/hca": "0"}, {}, ""), ({}, {"volumes": [{"persistentVolumeClaim": {"claimName": "c"}}]}, "volume"),
    ({}, {"volumes": [{"ephemeral": {}}]}, "volume"), ({}, {"volumes": [{"emptyDir": {}}]}, ""),
    ({}, {"nodeSelector": {"kubernetes.io/arch": "s390x"}}, "architecture"),
    ({}, {"nodeSelector": {"kubernetes.io/os": "linux"}}, "system"),
    ({}, {"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-L4", "nvidia.com/gpu.present": "true"}}, ""),
    ({}, {"containers": [{"name": "c", "ports": [{"containerPort": 80}, {"hostPort": 8000}]}]}, "port"),
    ({}, {"containers": [{"name": "c", "ports": [{"containerPort": 80}]}]}, ""),
    ({}, {"initContainers": [{"name": "c", "restartPolicy": "Always", "ports": [{"hostPort": 1}]}]}, "port"),
])
def test_what_else_decides_where_it_goes_is_said(asked: dict[str, str], more: dict[str, Any], words: str) -> None:
    found = pod({"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1", **asked}, **more).beyond
    assert (bool(found), words in found) == (bool(words), True)


@pytest.mark.parametrize(("name", "words"), [("", "makes room"), ("n1", "")])
def test_for_whom_the_scheduler_makes_room_already_nobody_has_to(name: str, words: str) -> None:
    spec = {"containers": [{"name": "c"}], "nodeName": name}
    thing = pretend.made("p", kind="Pod", spec=spec, status={"phase": "Pending", "nominatedNodeName": "n1"})
    found = needs_of(thing).beyond
    assert (bool(found), words in found) == (bool(words), True)
