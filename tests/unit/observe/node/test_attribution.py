"""Whose process, whose GPU: cgroups and device ids by tables; kubelet, API server and log directories as other ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes import kubelet as fake
from tests.unit.observe.cluster import pretend

from fallow.clients import kubelet
from fallow.model.processes import Device, Grant, Instance, Judged, Process, ProcessOwner, Share, Type
from fallow.observe.node import attribution, cgroups, directory, grants
from fallow.settings.exporter import Options

UID = "0c6e8d2a-4f0b-4f6e-9a51-3d1b2c4e5f60"
SYSTEMD = UID.replace("-", "_")
STATIC = "d41d8cd98f00b204e9800998ecf8427e"
ID, INNER, OTHER = "a1" * 32, "b2" * 32, "c3" * 32

# ---- process to pod, by cgroup --------------------------------------------------------------------------------------

BURSTABLE = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SYSTEMD}.slice"
POD_PATHS = {
    "v2-systemd-containerd": f"0::{BURSTABLE}/cri-containerd-{ID}.scope",
    "v2-systemd-guaranteed": f"0::/kubepods.slice/kubepods-pod{SYSTEMD}.slice/cri-containerd-{ID}.scope",
    "v2-cgroupfs": f"0::/kubepods/besteffort/pod{UID}/{ID}",
    "v2-seen-from-a-container": f"0::/../../kubepods-besteffort-pod{SYSTEMD}.slice/cri-containerd-{ID}.scope",
    "v2-crio": f"0::/kubepods.slice/kubepods-pod{SYSTEMD}.slice/crio-{ID}.scope",
    "v2-crio-crun": f"0::/kubepods.slice/kubepods-pod{SYSTEMD}.slice/crio-{ID}.scope/container",
    "v2-docker": f"0::{BURSTABLE}/docker-{ID}.scope",
    "v2-gone": f"0::/kubepods/burstable/pod{UID}/{ID} (deleted)",
    "v1-cgroupfs": f"12:memory:/kubepods/burstable/pod{UID}/{ID}\n11:cpu,cpuacct:/kubepods/burstable/pod{UID}/{ID}",
    "v1-docker": f"5:devices:/kubepods/besteffort/pod{UID}/{ID}\n1:name=systemd:/kubepods/besteffort/pod{UID}/{ID}",
    "v1-systemd": f"3:pids:{BURSTABLE}/cri-containerd-{ID}.scope",
    "v1-one-line-of-many": f"9:blkio:/\n8:pids:/system.slice\n4:memory:/kubepods/pod{UID}/{ID}\n0::/",
    "kind": f"0::/docker/{OTHER}/kubelet/kubepods/burstable/pod{UID}/{ID}",
    "k3s-kubelet-slice": (
        f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{SYSTEMD}.slice/cri-containerd-{ID}.scope"
    ),
}


@pytest.mark.accepts("exporter", 21)
@pytest.mark.parametrize("text", POD_PATHS.values(), ids=POD_PATHS.keys())
def test_a_pods_process_is_known_by_its_cgroup(text: str) -> None:
    assert cgroups.read_owner(text + "\n") == ProcessOwner(pod_uid=UID, container_id=ID)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (f"0::/kubepods/burstable/pod{STATIC}/{ID}", ProcessOwner(pod_uid=STATIC, container_id=ID)),
        (f"0::/kubepods/pod{UID}/{ID}/docker/{INNER}", ProcessOwner(pod_uid=UID, container_id=INNER)),
        (f"0::/kubepods/pod{UID}", ProcessOwner(pod_uid=UID, container_id="")),
        (
            f"0::/kubepods/pod{UID}/{ID}/pod11111111-1111-1111-1111-111111111111/x",
            ProcessOwner(pod_uid=UID, container_id=ID),
        ),
        (f"0::/../cri-containerd-{ID}.scope", ProcessOwner(container_id=ID, is_known=False)),
    ],
    ids=["static-pod", "docker-in-a-pod", "pod-only", "a-forged-pod-below", "sibling-container"],
)
def test_unusual_places(text: str, place: ProcessOwner) -> None:
    assert cgroups.read_owner(text) == place


@pytest.mark.accepts("exporter", 21)
@pytest.mark.parametrize(
    "text",
    [
        "0::/", "0::/init.scope", "0::/system.slice/sshd.service",
        "0::/../../../../system.slice/nvidia-persistenced.service",
        f"0::/docker/{ID}", f"0::/system.slice/docker-{ID}.scope", "12:memory:/user.slice\n0::/user.slice/user-0.slice",
        "0::/podman/podcast", f"0::/kubepods/pod{UID[:-1]}/x", f"0::/kubepods/xpod{UID}x",
    ],
    ids=[
        "root", "init", "service", "service-from-a-container", "docker", "docker-systemd", "v1-user", "pod-like",
        "short-uid", "long-word",
    ],
)
def test_a_host_process_has_empty_labels(text: str) -> None:
    assert cgroups.read_owner(text) == ProcessOwner()
    assert make().owner_of(1, 1, text) == ProcessOwner()


@pytest.mark.parametrize("text", ["", "\n", "garbage", "a:b"])
def test_a_cgroup_that_cannot_be_read_is_not_known(text: str) -> None:
    assert make().owner_of(1, 1, text) == attribution.UNKNOWN


@given(st.text(max_size=300) | st.lists(
    st.sampled_from(["0:", ":", "/", "pod", UID, SYSTEMD, ID, "-", ".scope", "\n"])
).map("".join))
def test_no_cgroup_raises_or_is_guessed(text: str) -> None:
    place = cgroups.read_owner(text)
    if place is not None and place.pod_uid:
        assert place.pod_uid.replace("-", "_") in text.replace("-", "_")
        assert place.container_id in text


# ---- GPU to pods, by device id -------------------------------------------------------------------------------------

GPU0, GPU1 = "GPU-00000000-aaaa-0000-0000-000000000000", "GPU-11111111-bbbb-0000-0000-000000000000"
MIG = "MIG-22222222-cccc-0000-0000-000000000000"
DEVICES = [
    Judged(Device(index=0, uuid=GPU0, minor=3), [], 0, True),
    Judged(
        Device(index=1, uuid=GPU1, minor=0, is_mig=True, instances=[Instance(7, 0, MIG), Instance(9, 1, "")]), [], None,
        False,
    ),
]


def held(
    *ids: str, resource: str = "nvidia.com/gpu", pod: str = "llm-0", container: str = "main"
) -> kubelet.PodDevices:
    return kubelet.PodDevices(
        "ml", pod, (kubelet.ContainerDevices(container, (kubelet.ResourceDevices(resource, ids),)),)
    )


def claimed(device: str, driver: str = "gpu.nvidia.com", pool: str = "n1") -> kubelet.PodDevices:
    return kubelet.PodDevices(
        "ml", "llm-0", (kubelet.ContainerDevices("main", (), (kubelet.ClaimedDevice(driver, pool, device),)),)
    )


def read(*pods: kubelet.PodDevices, devices: list[Judged] = DEVICES, **more: Any) -> list[Grant]:
    return grants.read_grants(pods, devices, more.pop("slices", {}), more.pop("resources", ()))


@pytest.mark.parametrize(
    ("device_id", "slot", "share"),
    [
        (GPU0, (GPU0, None, None), Share.exclusive),
        (f"{GPU0}::2", (GPU0, None, None), Share.timeslice),
        (MIG, (GPU1, 7, 0), Share.mig),
        (f"{MIG}::1", (GPU1, 7, 0), Share.mig),
        (f"MIG-{GPU1}/9/1", (GPU1, 9, 1), Share.mig),
        ("nvidia3", (GPU0, None, None), Share.exclusive),
        ("nvidia0/gi9", (GPU1, 9, None), Share.mig),
        ("nvidia3/vgpu4", (GPU0, None, None), Share.timeslice),
        ("nvidia0/gi9/vgpu1", (GPU1, 9, None), Share.mig),
    ],
)
def test_every_form_of_a_device_id(device_id: str, slot: tuple[Any, ...], share: Share) -> None:
    [grant] = read(held(device_id))
    assert (grant.uuid, grant.gi, grant.ci) == slot
    assert (grant.namespace, grant.pod, grant.container, grant.resource) == ("ml", "llm-0", "main", "nvidia.com/gpu")
    assert grant.share is share


@pytest.mark.parametrize(
    "device_id",
    [
        "", "GPU-", GPU0[:-1], GPU0 + "0", GPU0.lower(), "MIG-1", "MIG-GPU-9/1/1", f"MIG-{GPU1}/9", "nvidia1", "nvidia",
        "nvidia3/gi",
        "0", "::0",
    ],
)
def test_an_id_that_fits_no_device_grants_nothing(device_id: str) -> None:
    assert read(held(device_id)) == []


def test_a_minor_number_is_never_taken_from_the_index() -> None:
    assert read(held("nvidia0"), devices=[Judged(Device(index=0, uuid=GPU0), [], 0, True)]) == []


@pytest.mark.parametrize(
    ("resource", "is_gpu"),
    [
        ("nvidia.com/gpu", True), ("nvidia.com/gpu.shared", True), ("nvidia.com/mig-1g.10gb", True),
        ("ours.io/gpu", True),
        ("amd.com/gpu", False), ("nvidia.com/gpumem", False), ("rdma/hca", False),
    ],
)
def test_which_resources_are_gpus(resource: str, is_gpu: bool) -> None:
    assert bool(read(held(GPU0, resource=resource), resources=frozenset({"ours.io/gpu"}))) is is_gpu


def test_the_shared_resource_is_shared_without_a_replica() -> None:
    assert read(held(GPU0, resource="nvidia.com/gpu.shared"))[0].share is Share.timeslice


def test_two_pods_on_one_device_share_it_however_they_got_it() -> None:
    assert [grant.share for grant in read(held(GPU0), held(GPU0, pod="other"))] == [Share.timeslice] * 2
    assert [grant.share for grant in read(held(GPU0), held(GPU0, container="second"))] == [Share.exclusive] * 2


@pytest.mark.parametrize("kind", [Type.mps_client, Type.mps_server])
def test_a_shared_device_with_mps_on_it_is_shared_by_mps(kind: Type) -> None:
    process = Process(
        pid=5, start=1, name="python", type=kind, memory=1, sm=0, is_unknown=False, idle_seconds=0, idle_memory=0,
        last_active=None, in_seed=True,
    )
    devices = [Judged(Device(index=0, uuid=GPU0), [process], 0, True)]
    assert read(held(f"{GPU0}::0"), devices=devices)[0].share is Share.mps
    assert read(held(GPU0), devices=devices)[0].share is Share.exclusive


def test_replicas_of_one_container_are_one_grant() -> None:
    assert len(read(held(f"{GPU0}::0", f"{GPU0}::1"))) == 1


def test_compute_instances_of_one_container_in_one_gpu_instance_are_one_grant() -> None:
    [grant] = read(held(f"MIG-{GPU1}/9/0", f"MIG-{GPU1}/9/1"))
    assert (grant.gi, grant.ci) == (9, None)


@pytest.mark.parametrize(
    ("pod", "slot"),
    [
        (claimed("gpu-0"), (GPU0, None)),
        (claimed("mig-a"), (GPU1, 7)),
        (claimed("gpu-3", pool="elsewhere"), (GPU0, None)),
        (claimed("gpu-9"), None),
        (claimed("gpu-0-mig-9-0-1", pool="elsewhere"), None),
        (claimed("gone"), None),
        (claimed("gpu-0", driver="other.io"), None),
    ],
    ids=["slice", "mig-slice", "by-minor", "no-such-minor", "mig-without-slice", "slice-of-a-lost-gpu", "other-driver"],
)
def test_claims_are_resolved_by_slices_then_by_minor_number(
    pod: kubelet.PodDevices, slot: tuple[str, int | None] | None
) -> None:
    driver = "gpu.nvidia.com"
    known = {"gpu-0": GPU0, "mig-a": MIG, "gone": "GPU-x"}
    slices = {(maker, "n1", device): uuid for maker in (driver, "other.io") for device, uuid in known.items()}
    found = read(pod, slices=slices)
    assert [(grant.uuid, grant.gi) for grant in found] == ([slot] if slot else [])
    assert all(grant.resource == driver for grant in found)


# ---- the sources together ------------------------------------------------------------------------------------------


def make(
    folder: Path | None = None, environment: dict[str, str] | None = None, **given: Any
) -> attribution.Attribution:
    where = {
        "pod_logs_dir": str(folder / "logs"), "pod_resources_socket": str(folder / "kubelet.sock")
    } if folder else {}
    return attribution.Attribution(Options(**{**where, **given}), environment or {})


@pytest.fixture
def server(tmp_path: Path) -> Iterator[fake.Kubelet]:
    with fake.Kubelet(tmp_path) as running:
        running.pods = [fake.pod("llm-0", main={"nvidia.com/gpu": [GPU0]})]
        yield running


@pytest.mark.accepts("exporter", 22)
async def test_without_a_socket_nothing_is_known_of_pods_and_it_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    whose = make(tmp_path)
    for now in (100.0, 105.0, 110.0, 120.0):
        await whose.refresh(now)
    assert whose.up == {"pod_resources": False, "cgroup": True, "api": False, "logs": False}
    assert whose.grants(DEVICES) is None
    said = [record for record in caplog.records if "from the kubelet" in record.message]
    assert [record.levelname for record in said] == ["INFO"]


async def test_the_kubelet_is_asked_every_ten_seconds(tmp_path: Path, server: fake.Kubelet) -> None:
    whose = make(tmp_path)
    for now in (100.0, 105.0, 109.9, 110.0, 115.0, 120.0):
        await whose.refresh(now)
    assert server.calls == 3
    assert whose.up["pod_resources"]
    await whose.refresh(50.0)  # the clock was set back
    assert server.calls == 4


async def test_a_failed_list_keeps_the_last_answer_for_a_minute(
    tmp_path: Path, server: fake.Kubelet, caplog: pytest.LogCaptureFixture
) -> None:
    whose = make(tmp_path)
    await whose.refresh(100.0)
    server.refusal = (grpc.StatusCode.UNAVAILABLE, "not now")
    for now in (110.0, 130.0, 159.0):
        await whose.refresh(now)
        assert [grant.pod for grant in whose.grants(DEVICES) or ()] == ["llm-0"]
        assert whose.up["pod_resources"]
    await whose.refresh(170.0)
    assert whose.grants(DEVICES) is None
    assert not whose.up["pod_resources"]
    assert "not now" in caplog.text
    server.refusal = None
    await whose.refresh(180.0)
    assert len(whose.grants(DEVICES) or ()) == 1
    assert whose.up["pod_resources"]


async def test_an_empty_list_of_the_kubelet_is_an_answer(tmp_path: Path, server: fake.Kubelet) -> None:
    server.pods = []
    whose = make(tmp_path)
    await whose.refresh(100.0)
    assert whose.grants(DEVICES) == []


async def test_names_from_log_directories(tmp_path: Path, server: fake.Kubelet) -> None:
    for folder in (f"ml_llm-0_{UID}", "odd", "a_b_c_d", "_x_"):
        (tmp_path / "logs" / folder).mkdir(parents=True)
    whose = make(tmp_path)
    assert whose.owner_of(1, 1, f"0::/kubepods/pod{UID}/{ID}") == ProcessOwner(pod_uid=UID, container_id=ID)
    await whose.refresh(100.0)
    assert whose.up["logs"]
    assert whose.owner_of(1, 1, f"0::/kubepods/pod{UID}/{ID}") == ProcessOwner("ml", "llm-0", "main", UID, ID)
    other = UID.replace("0c6e", "ffff")
    assert whose.owner_of(1, 1, f"0::/kubepods/pod{other}/{ID}") == ProcessOwner(pod_uid=other, container_id=ID)
    (tmp_path / "logs" / f"ml_new_{other}").mkdir()
    await whose.refresh(105.0)
    assert whose.owner_of(1, 1, f"0::/kubepods/pod{other}/{ID}").pod == "new"


async def test_one_of_several_containers_is_never_guessed(tmp_path: Path, server: fake.Kubelet) -> None:
    (tmp_path / "logs" / f"ml_llm-0_{UID}").mkdir(parents=True)
    server.pods = [fake.pod("llm-0", main={"nvidia.com/gpu": [GPU0]}, proxy={})]
    whose = make(tmp_path)
    await whose.refresh(100.0)
    assert whose.owner_of(1, 1, f"0::/kubepods/pod{UID}/{ID}") == ProcessOwner("ml", "llm-0", "", UID, ID)


async def test_off_asks_nobody(tmp_path: Path, server: fake.Kubelet) -> None:
    whose = make(tmp_path, attribution="off")
    await whose.refresh(100.0)
    assert server.calls == 0
    assert (dict(whose.up), whose.grants(DEVICES)) == ({}, None)
    assert whose.owner_of(1, 1, f"0::/kubepods/pod{UID}/{ID}") == ProcessOwner()


async def test_a_sidecar_speaks_of_its_own_pod_only(tmp_path: Path, server: fake.Kubelet) -> None:
    server.pods.append(fake.pod("other", main={"nvidia.com/gpu": [GPU0]}))
    whose = make(tmp_path, scope="pod", pod_namespace="ml", pod_name="llm-0")
    await whose.refresh(100.0)
    assert [(grant.pod, grant.share) for grant in whose.grants(DEVICES) or ()] == [("llm-0", Share.timeslice)]


async def test_cgroups_are_down_while_no_process_can_be_read(tmp_path: Path) -> None:
    whose = make(tmp_path)
    await whose.refresh(100.0)
    assert whose.up["cgroup"]
    whose.owner_of(1, 1, "")
    await whose.refresh(105.0)
    assert not whose.up["cgroup"]
    await whose.refresh(110.0)  # nobody was asked about: as before
    assert not whose.up["cgroup"]
    whose.owner_of(1, 1, "")
    whose.owner_of(2, 1, "0::/")
    await whose.refresh(115.0)
    assert whose.up["cgroup"]


async def test_without_a_proc_there_are_no_cgroups(tmp_path: Path) -> None:
    whose = make(tmp_path, host_proc=str(tmp_path / "absent"))
    await whose.refresh(100.0)
    assert not whose.up["cgroup"]


@pytest.mark.parametrize(
    ("first", "is_in_pod", "is_blind"),
    [
        ("0::/", True, True),
        ("0::/../../../init.scope", True, False),
        (f"0::/../cri-containerd-{OTHER}.scope", True, False),
        ("0::/", False, False),
    ],
    ids=["own-namespace", "host-pid", "shared-in-the-pod", "no-pod"],
)
async def test_who_sees_only_himself_proves_nothing_by_an_empty_list(
    tmp_path: Path, server: fake.Kubelet, first: str, is_in_pod: bool, is_blind: bool
) -> None:
    for process, text in (("1", first), ("self", "0::/")):
        (tmp_path / "proc" / process).mkdir(parents=True)
        (tmp_path / "proc" / process / "cgroup").write_text(text)
    options = Options(pod_resources_socket=server.socket, pod_logs_dir=str(tmp_path))
    environment = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"} if is_in_pod else {}
    whose = attribution.Attribution(options, environment, own_proc=str(tmp_path / "proc"))
    await whose.refresh(100.0)
    assert [grant.may_hide for grant in whose.grants(DEVICES) or ()] == [is_blind]
    assert whose.up["cgroup"] is not is_blind
    assert (whose.owner_of(1, 1, f"0::/kubepods/pod{UID}/{ID}") == attribution.UNKNOWN) is is_blind


def test_the_cluster_client_is_not_loaded_unless_it_is_used() -> None:
    """In a process of its own, because the tests' other ends are aiohttp's."""
    source = """
import asyncio, sys
from fallow.observe.node import attribution
from fallow.settings import exporter as options
whose = attribution.Attribution(options.Options(node_name="n1", pod_resources_socket="/nowhere"), {"HOME": "/"})
asyncio.run(whose.refresh(1.0))
heavy = {"aiohttp", "numpy", "yaml", "starlette", "rich", "grpc", "google.protobuf", "cryptography"}
heavy &= sys.modules.keys()
sys.exit(", ".join(heavy) or 0)
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# ---- the API server ------------------------------------------------------------------------------------------------

SLICES = "resource.k8s.io/v1 resourceslices ResourceSlice -"


class Server(pretend.Server):
    """One that serves each kind by its own version only."""

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        slices = self.kinds.get("resourceslices")
        if "/resourceslices" in request.path and slices and f"/{slices.version}/" not in request.path:
            return web.json_response(
                {"kind": "Status", "code": 404, "reason": "NotFound", "message": "no such version"}, status=404
            )
        return await super()._answer(request)


@contextlib.asynccontextmanager
async def in_cluster(folder: Path) -> AsyncIterator[tuple[Server, attribution.Attribution]]:
    async with Server() as server:
        clusters = {
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.url[1]}"}}],
            "current-context": "c",
        }
        contexts = {
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "users": [{"name": "u", "user": {}}]
        }
        (folder / "config").write_text(json.dumps(clusters | contexts))
        whose = make(folder, {"KUBECONFIG": str(folder / "config")}, node_name="n1")
        try:
            yield server, whose
        finally:
            await whose.close()


async def refresh_until(whose: attribution.Attribution, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    await whose.refresh(100.0)
    while not is_so():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
        await whose.refresh(100.0)


def running(
    name: str, uid: str, phase: str = "Running", annotations: dict[str, str] | None = None, **containers: str
) -> dict[str, Any]:
    statuses = [{"name": container, "containerID": f"containerd://{id_}"} for container, id_ in containers.items()]
    status = {"phase": phase, "containerStatuses": statuses, "initContainerStatuses": [{"name": "waiting"}]}
    spec = {"nodeName": "n1"}
    thing = pretend.made(name, kind="Pod", version="v1", spec=spec, status=status, annotations=annotations or {})
    thing["metadata"]["uid"] = uid
    return thing


async def test_names_of_pods_and_containers_from_the_api_server(tmp_path: Path, server: fake.Kubelet) -> None:
    (tmp_path / "logs" / f"ml_stale_{UID}").mkdir(parents=True)
    async with in_cluster(tmp_path) as (api, whose):
        api.put("pods", running("llm-0", UID, main=ID, proxy=OTHER))
        await refresh_until(whose, lambda: whose.up["api"] and bool(api.kinds["pods"].watchers))
        assert whose.owner_of(1, 1, f"0::/kubepods/pod{UID}/{ID}") == ProcessOwner("ml", "llm-0", "main", UID, ID)
        assert whose.owner_of(1, 1, f"0::/kubepods/pod{UID}/{OTHER}").container == "proxy"
        assert whose.owner_of(1, 1, f"0::/kubepods/pod{UID}/{INNER}").container == "main"  # the kubelet lists just one
        assert whose.owner_of(
            1, 1, f"0::/../cri-containerd-{OTHER}.scope"
        ) == ProcessOwner("ml", "llm-0", "proxy", UID, OTHER)
        assert whose.owner_of(1, 1, f"0::/../cri-containerd-{INNER}.scope") == attribution.UNKNOWN
        assert [grant.pod_uid for grant in whose.grants(DEVICES) or ()] == [UID]
        assert all("fieldSelector=spec.nodeName%3Dn1" in query for _, plural, query in api.requests if plural == "pods")
        api.put("pods", running("llm-0", UID, main=INNER))
        await refresh_until(whose, lambda: whose.owner_of(1, 1, f"0::/../x-{INNER}.scope").container == "main")


async def test_a_static_pod_is_known_by_the_kubelets_uid(tmp_path: Path) -> None:
    async with in_cluster(tmp_path) as (api, whose):
        api.put("pods", running("dcgm-n1", UID, annotations={"kubernetes.io/config.mirror": STATIC}, main=ID))
        await refresh_until(whose, lambda: whose.up["api"])
        assert whose.owner_of(
            1, 1, f"0::/kubepods/pod{STATIC}/{ID}"
        ) == ProcessOwner("ml", "dcgm-n1", "main", STATIC, ID)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_a_pod_that_has_ended_holds_nothing_and_shares_nothing(
    tmp_path: Path, server: fake.Kubelet, phase: str
) -> None:
    server.pods.append(fake.pod("job-1", main={"nvidia.com/gpu": [GPU0]}))
    async with in_cluster(tmp_path) as (api, whose):
        api.put("pods", running("llm-0", UID))
        api.put("pods", running("job-1", UID.replace("0", "1"), phase))
        await refresh_until(whose, lambda: whose.up["api"])
        assert [(grant.pod, grant.share) for grant in whose.grants(DEVICES) or ()] == [("llm-0", Share.exclusive)]


@pytest.mark.parametrize("verb", ["list", "watch"])
async def test_a_refusal_of_the_api_server_is_said_once_and_names_come_from_logs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, verb: str
) -> None:
    caplog.set_level(logging.INFO)
    (tmp_path / "logs" / f"ml_llm-0_{UID}").mkdir(parents=True)
    async with in_cluster(tmp_path) as (api, whose):
        api.forbidden.add((verb, "pods"))
        await refresh_until(whose, lambda: "pods is forbidden" in caplog.text)
        await whose.refresh(105.0)
        assert not whose.up["api"]
        assert whose.owner_of(1, 1, f"0::/kubepods/pod{UID}/{ID}").pod == "llm-0"
        assert caplog.text.count("names of pods, from the API server: pods is forbidden") == 1


@pytest.mark.parametrize(
    ("environment", "node", "why"),
    [
        ({}, "n1", "not a pod of a cluster"),
        ({"KUBERNETES_SERVICE_HOST": "127.0.0.1"}, "", "NODE_NAME is not set"),
        ({"KUBECONFIG": "/nowhere/config"}, "n1", "names no file that exists"),
    ],
    ids=["no-cluster", "no-node", "no-file"],
)
async def test_without_a_way_to_the_api_server_it_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, environment: dict[str, str], node: str, why: str
) -> None:
    caplog.set_level(logging.INFO)
    whose = make(tmp_path, environment, node_name=node)
    for now in (100.0, 130.0, 200.0):
        await whose.refresh(now)
    await whose.close()
    assert not whose.up["api"]
    assert caplog.text.count(why) == 1


def devices_of(version: str, uuid: str) -> dict[str, Any]:
    attributes = {"attributes": {"uuid": {"string": uuid}, "type": {"string": "gpu"}, "minor": {"int": 3}}}
    return {"name": "gpu-0", **({"basic": attributes} if version == "v1beta1" else attributes)}


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
async def test_claims_are_resolved_by_the_slices_of_this_node(
    tmp_path: Path, server: fake.Kubelet, version: str
) -> None:
    async with in_cluster(tmp_path) as (api, whose):
        await refresh_until(whose, lambda: whose.up["api"])
        assert whose.grants(DEVICES) != []
        assert api.asked("list", "resourceslices") == 0  # nobody has a claim
        server.pods = [fake.pod("llm-0", main={"gpu.nvidia.com": [("n1", "gpu-0")]})]
        api.install(SLICES.replace("/v1 ", f"/{version} "))
        for number, uuid in ((2, GPU0), (1, "GPU-of-yesterday")):
            spec = {
                "nodeName": "n1", "driver": "gpu.nvidia.com", "pool": {"name": "n1", "generation": number},
                "devices": [devices_of(version, uuid)],
            }
            api.put("resourceslices", pretend.made(f"s{number}", namespace=None, kind="ResourceSlice", spec=spec))
        await whose.refresh(200.0)
        deadline = time.monotonic() + 20
        while [grant.uuid for grant in whose.grants(DEVICES) or ()] != [GPU0]:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
            await whose.refresh(200.0)


# ---- the known of names --------------------------------------------------------------------------------------------


def test_of_two_pods_with_one_name_the_one_that_lives_is_meant() -> None:
    known = directory.Directory("/nowhere")
    known.take_pods([directory.Named("new", "ml", "llm-0"), directory.Named("old", "ml", "llm-0", is_over=True)])
    named = known.find_by_name("ml", "llm-0")
    assert named is not None
    assert named.uid == "new"


def test_log_directories_that_go_away_are_forgotten(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    (logs / "ml_llm-0_1").mkdir(parents=True)
    known = directory.Directory(str(logs))
    assert known.read_logs() == ""
    assert known.find(ProcessOwner(pod_uid="1")) == directory.Named("1", "ml", "llm-0")
    (logs / "ml_llm-0_1").rmdir()
    logs.rmdir()
    assert "cannot be read" in known.read_logs()
    assert known.find(ProcessOwner(pod_uid="1")) is None
