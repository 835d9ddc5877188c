"""A GPU node as `gpu-idle-exporter` sees it: driver library, /proc, kubelet, log directories; and the exporter on it.

In: pods with the GPUs they hold and the processes they run, and what the driver says (`drive`). Out: the exporter as a
process of its own (`exporting`), or in this one by a clock that the test sets (`Past`), so that an hour of its pages
takes a second.
Invariant: nothing of the machine's own /proc, kubelet or cluster is looked at unless a test says so; no process
outlives its test.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

import aiohttp

from fallow.clients import proc
from fallow.clients.nvml import driver
from fallow.doors.exporter import expose, run
from fallow.model import processes
from fallow.observe.node import attribution, keeping
from fallow.settings import exporter as options
from tests.fakes import kubelet as kubelets
from tests.fakes.nvml import fake
from tests.real import product
from tests.real.cluster import PATIENCE

BOOT_ID = "6f1e2d3c-0000-4000-8000-00000000b007"
_TICKS = os.sysconf("SC_CLK_TCK")
_BOOTED_AGO = 5 * 3600  # seconds; every process here started an hour later


@dataclasses.dataclass(frozen=True)
class Pod:
    name: str
    namespace: str
    uid: str
    pid: int  # its process; 0 = it has none
    devices: tuple[str, ...]
    resource: str = "nvidia.com/gpu"


class GpuNode:
    """The files and sockets of one node. Use as `with`."""

    def __init__(self, folder: pathlib.Path, name: str = "gpu-1") -> None:
        self.name = name
        self.pods: list[Pod] = []
        self._folder = folder / name
        self._proc, self._logs = self._folder / "proc", self._folder / "pods"
        self.state_dir = self._folder / "state"
        self.state = self._folder / "nvml.state"
        self._short = pathlib.Path(tempfile.mkdtemp(prefix="node-"))  # a socket's path must fit 108 bytes
        self.kubelet = kubelets.Kubelet(self._short)
        self._library = fake.library()

    def __enter__(self) -> GpuNode:
        self._logs.mkdir(parents=True)
        self._write("sys/kernel/random/boot_id", BOOT_ID)
        self._write("stat", f"cpu 1 2 3\nbtime {int(time.time()) - _BOOTED_AGO}\n")
        self._write("1/cgroup", "0::/init.scope\n")
        self.kubelet.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kubelet.stop()
        shutil.rmtree(self._short)

    # --- what is on it -----------------------------------------------------------------------------------------------

    def host(
        self, name: str, *devices: str, pid: int = 0, comm: str = "python", namespace: str = "ml", uid: str = "",
        resource: str = "nvidia.com/gpu",
    ) -> Pod:
        """A pod that holds these devices, with one process or none."""
        pod = Pod(
            name, namespace, uid or str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{namespace}/{name}")), pid, devices, resource
        )
        self.pods.append(pod)
        self.kubelet.pods.append(kubelets.pod(name, namespace, main={resource: list(devices)}))
        (self._logs / f"{namespace}_{name}_{pod.uid}").mkdir()
        if pid:
            slice_ = f"kubepods-burstable-pod{pod.uid.replace('-', '_')}.slice"
            self.process(
                pid, comm, f"0::/kubepods.slice/kubepods-burstable.slice/{slice_}/cri-containerd-{pid:064x}.scope\n"
            )
        return pod

    def process(self, pid: int, comm: str = "python", cgroup: str = "0::/system.slice/other.service\n") -> None:
        self._write(f"{pid}/stat", f"{pid} ({comm}) S {' '.join(['1'] * 18)} {_start_of(pid)} 0 0\n")
        self._write(f"{pid}/comm", f"{comm}\n")
        self._write(f"{pid}/cgroup", cgroup)

    def drive(self, *devices: fake.Device, **more: object) -> None:
        """What the driver says from now on."""
        fake.State(devices, **more).write(self.state)  # type: ignore[arg-type]

    def _write(self, path: str, text: str) -> None:
        file = self._proc / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def remember(
        self, pods: Mapping[str, float | None], zeros: Mapping[int, tuple[str, float]] | None = None,
        since: float = 5400.0,
    ) -> None:
        """As if the exporter had just been restarted, and had watched for so long: by pod, how many seconds ago it was
        last active; by PID, on which device it is idle, and for how long."""
        now, monotonic = time.time(), time.monotonic()
        holds = [
            processes.KeptTenancy(
                uuid=device.partition("::")[0], gi=None, namespace=pod.namespace, pod=pod.name, container="main",
                observed=monotonic, observed_since=now - since, counted=monotonic,
                last_active=None if (ago := pods[pod.name]) is None else now - ago,
                empty_since=None if pod.pid else monotonic - since,
            )
            for pod in self.pods if pod.name in pods for device in pod.devices
        ]
        idle = [
            processes.KeptProcess(
                uuid=uuid, pid=pid, start=_start_of(pid), streak=9, first_zero=monotonic - seconds, known=monotonic,
                last_active=None, stamp=int(now * 1e6),
            )
            for pid, (uuid, seconds) in (zeros or {}).items()
        ]
        self.state_dir.mkdir(exist_ok=True)
        keeping.save(str(self.state_dir), keeping.SavedState(BOOT_ID, now, monotonic, idle, holds))

    # --- the exporter ------------------------------------------------------------------------------------------------

    def variables(self, **more: str) -> dict[str, str]:
        where = {
            "HOST_PROC": str(self._proc), "POD_RESOURCES_SOCKET": self.kubelet.socket, "POD_LOGS_DIR": str(self._logs),
            "STATE_DIR": str(self.state_dir), "NVML_LIBRARY": str(self._library), "NODE_NAME": self.name,
        }
        return {**where, **more}

    @contextlib.asynccontextmanager
    async def exporting(self, port: int = 0, **variables: str) -> AsyncIterator[Exporter]:
        """`gpu-idle-exporter` as a process, from the moment at which it tells of every pod here."""
        port = port or product.free_port()
        own = {
            "POLL_INTERVAL": "200ms", "BIND_ADDRESS": "127.0.0.1", "HTTP_PORT": str(port),
            "FAKE_NVML_STATE": str(self.state),
        }
        environment = {"PATH": os.environ["PATH"], **self.variables(**own), **variables}
        exporter = Exporter(environment, f"http://127.0.0.1:{port}", self._folder / f"{port}.log")
        try:
            await exporter.until(
                lambda page: page.count("\ngpu_idle_pod_gpu_info{") == sum(len(pod.devices) for pod in self.pods)
            )
            yield exporter
        finally:
            exporter.process.kill()
            await asyncio.to_thread(exporter.process.wait, 20)


def _start_of(pid: int) -> int:
    return (_BOOTED_AGO - 4 * 3600) * _TICKS + pid


class Exporter:
    """A running one."""

    def __init__(self, environment: Mapping[str, str], url: str, log: pathlib.Path) -> None:
        self.url = url
        self._log = log
        command = [str(product.BIN / "gpu-idle-exporter")]
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    async def get(self, path: str) -> tuple[int, str]:
        timeout = aiohttp.ClientTimeout(5)
        async with aiohttp.ClientSession(timeout=timeout) as http, http.get(f"{self.url}{path}") as answer:
            return answer.status, await answer.text()

    async def until(self, holds: Callable[[str], object], timeout: float = PATIENCE) -> str:
        """The first page of which this holds."""
        deadline, page = time.monotonic() + timeout, ""
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                if holds(page := (await self.get("/metrics"))[1]):
                    return page
            if self.process.poll() is not None or time.monotonic() > deadline:
                log = self._log.read_text()[-2000:]
                raise AssertionError(f"it did not come so (exit code {self.process.poll()}); log:\n{log}\n{page}")
            await asyncio.sleep(0.05)


class Past:
    """The exporter in this process, at instants that the test names: its pages of long ago, all by its own code."""

    def __init__(self, node: GpuNode, every: float) -> None:
        chosen, _ = options.read(node.variables(POLL_INTERVAL=f"{every:g}s", STATE_DIR=""))
        self._node = node
        self._now = 0.0
        asked = (
            driver.Nvml(chosen.nvml_library), proc.ProcessTable(chosen.host_proc), attribution.Attribution(chosen, {})
        )
        self._exporter = run.NodeExporter(chosen, *asked, lambda: self._now, lambda: self._now)

    async def page(self, now: float) -> str:
        """What a scrape would have seen then. The driver's library is one for all nodes: it must know whose state."""
        self._now = now
        os.environ["FAKE_NVML_STATE"] = str(self._node.state)
        await self._exporter.poll()
        return self._exporter.page.text(expose.Format.text).decode()

    async def close(self) -> None:
        await self._exporter.story.close()


@contextlib.contextmanager
def nodes(folder: pathlib.Path, names: Sequence[str]) -> Iterator[dict[str, GpuNode]]:
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(GpuNode(folder, name)) for name in names}
