"""Every command in our documents, typed as it stands there, page by page from top to bottom, on a pretend cluster with
a real Prometheus.

The cluster has what the pages speak of: an idle Deployment llm in namespace ml among busy ones, one that stands paused,
a policy, the Lease of a daemon that does not run. A page's commands act on one another: what it pauses it can bring
back. What stands in for the reader's own things: the address of Prometheus, the folder of traces, and where a picture
is written.
Blocks that say why they are not run are left out here (tests/unit/test_documents.py has their list). Those that install
something are typed on a real control plane: tests/real/test_document_commands.py, and for what is below examples/
tests/real/test_exporter_examples.py.
"""

from __future__ import annotations

import asyncio
import os
import pathlib
import shutil
import time
from collections.abc import AsyncIterator, Sequence

import numpy as np
import pytest
import yaml

from fallow import names
from fallow.model.units import MINUTE
from fallow.sim import stage
from fallow.sim.servers import objects
from fallow.sim.servers import store as stores
from fallow.sim.servers.kubernetes import server
from fallow.sim.world import nouns, world
from fallow.sim.world.lives import LifeSpan
from tests import ROOT, documents
from tests.real import build, commands, history
from tests.real import conftest as real
from tests.unit.doors.cli import test_pack, test_scale
from tests.unit.doors.cli.test_pack import root as openb  # noqa: F401 - a fixture

HOURS = 3
PARTS = (
    nouns.Part("ml", "llm", gpus=1), nouns.Part("ml", "chat", replicas=6, gpus=2), nouns.Part("ml", "old", gpus=1),
)
IDLE = PARTS[0]
README = ROOT / "README.md"


def find_blocks(page: pathlib.Path) -> list[documents.Block]:
    """Those that are typed here."""
    if "examples" in page.parts:
        return []
    needs_cluster = documents.name_of(page) in documents.ON_A_CLUSTER
    return [block for block in documents.blocks(page) if not block.why and not (needs_cluster and block.is_foreign)]


PAGES = [page for page in documents.pages() if page != README and find_blocks(page)]
# So that it ends, and soon; of an option that is given twice the last one counts.
SHORTER = {
    ("fallow", "demo"): ("--hours", "0.5", "--nodes", "2", "--port", "0"), ("fallow", "exporter"): ("--once",),
}
HERE = ("examples/", "deploy/")


class Reader:
    """Somebody with a terminal, a kubeconfig and a Prometheus."""

    def __init__(self, folder: pathlib.Path, traces: pathlib.Path, prometheus: history.PrometheusWorld) -> None:
        self.prometheus, self._folder = prometheus, folder
        self._env = {"PATH": os.environ["PATH"], "HOME": str(folder), "FALLOW_TRACES": str(traces)}
        span = LifeSpan(time.time() - HOURS * 60 * MINUTE, MINUTE, 24 * 60)
        rows = [np.full((part.seats, span.columns), 0 if part is IDLE else 80, np.uint8) for part in PARTS]
        nodes = [nouns.SimNode("gpu-1"), nouns.SimNode("gpu-2")]
        self.world = world.World(nodes, PARTS, np.concatenate(rows), span, start_seconds=60.0)
        self.world.advance(time.time() - self.world.now)
        self.store = stores.Store(time.time)
        self.server = server.KubernetesServer(self.store, time.time)
        self.objects = objects.Objects(self.world, self.store)

    async def begin(self) -> None:
        self.store.create(stage.make_policy("notebooks", "1h", priority=10, classes=["notebook"]))
        for namespace in (names.SYSTEM_NAMESPACES[0], "monitoring"):
            self.store.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        lease = {"name": names.LEASE, "namespace": names.SYSTEM_NAMESPACES[0]}
        self.store.create({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": lease, "spec": {}})
        self._measure()
        await self.prometheus.start()
        await self.server.start()
        kubeconfig = self._folder / "kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(self.server.kubeconfig()))
        self._env |= {"KUBECONFIG": str(kubeconfig), "PROMETHEUS_URL": self.prometheus.url}
        await self.type(documents.Command("before", 0, ("fallow", "pause", "Deployment/old", "-n", "ml")))

    def _measure(self) -> None:
        for workload in self.world.workloads:
            part, busy = workload.part, 0.0 if workload.part is IDLE else 0.8
            for pod in workload.pods:
                for slot in pod.slots:
                    node, gpu, _ = self.world.device_of(slot)
                    self.prometheus.dcgm_gpu(
                        node.name, gpu, pod=pod.name, namespace=part.namespace, uuid=self.world.uuids[slot],
                        gr_engine=busy, gpu_util=100 * busy, minutes=HOURS * 60 - 2,
                    )

    async def type(self, command: documents.Command) -> str:
        """What it said. It must end with 0, and soon."""
        program, *words = command.words
        if program == "export":
            return self._set(*words)
        words = [self._mine(before, word) for before, word in zip(["", *words], words, strict=False)]
        if program == "kubectl":
            code, said = await self._kubectl(words)
        else:
            more = SHORTER.get((program, words[0]), ())
            code, *outputs = await commands.run(program, [*words, *more], self._env, 120)
            said = "\n".join(outputs)
        assert code == 0, f"{command}\nended with {code}:\n{said}"
        assert "Traceback" not in said, f"{command}\n{said}"
        self.objects.step()
        return said

    def _set(self, assignment: str) -> str:
        name, _, value = assignment.partition("=")
        self._env[name] = self._mine("", value)
        return ""

    def _mine(self, before: str, word: str) -> str:
        """The reader's own, in the place of what the page has for an example."""
        if before == "--svg":
            return str(self._folder / word)
        is_file = word.startswith(HERE) and (ROOT / word).exists()  # `deploy/llm` is a Deployment
        return str(ROOT / word) if is_file else word.replace("http://localhost:9090", self.prometheus.url)

    async def _kubectl(self, words: Sequence[str]) -> tuple[int | None, str]:
        process = await asyncio.create_subprocess_exec(
            str(build.need("kubectl")), *words, env=self._env,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await asyncio.wait_for(process.communicate(), 60)
        return process.returncode, said.decode()


@pytest.fixture
def traces(openb: pathlib.Path) -> pathlib.Path:  # noqa: F811
    """Small ones, by the names that the pages have."""
    for kind in ("openb_pod_list_{}.csv.gz", "orders/{}.csv.gz"):
        shutil.copy(openb / "openb" / kind.format("default"), openb / "openb" / kind.format("cpu200"))
    duty = (f"p{pod},{57 * step},{step // 50 % 2 * 40}" for pod in range(3) for step in range(1440))
    test_pack.write(openb / "gentd26_gpu_a.csv", "pod,timestamp,duty_percent", *duty)
    test_scale.write(openb / "helios_earth_a.csv", days=28)
    return openb


def take_away() -> None:
    """What a page has one make, and fallow refuses to make twice."""
    pathlib.Path("for-support.tar.gz").unlink(missing_ok=True)


@pytest.fixture
async def reader(tmp_path: pathlib.Path, traces: pathlib.Path) -> AsyncIterator[Reader]:
    real.need("prometheus", "promtool", "kubectl")
    folder = tmp_path / "prometheus"
    folder.mkdir()
    made = Reader(tmp_path, traces, history.PrometheusWorld(folder))
    await made.begin()
    yield made
    await made.server.stop()
    await made.prometheus.kill()
    take_away()


@pytest.mark.real
@pytest.mark.parametrize("page", PAGES, ids=documents.name_of)
async def test_every_command_of_a_page_works(reader: Reader, page: pathlib.Path) -> None:
    for block in find_blocks(page):
        for command in block.commands:
            await reader.type(command)


@pytest.mark.real
async def test_the_readme_does_what_it_says(reader: Reader) -> None:
    """All its commands work; its workload is idle, is paused, comes back, and is kept."""
    said = {
        command.words: await reader.type(command)
        for block in find_blocks(README) for command in block.commands
    }
    assert "1 idle" in said["fallow", "status"]
    listed = said["fallow", "idle", "-n", "ml"]
    assert "Deployment/llm" in listed
    assert "chat" not in listed
    assert "did nothing" in said["fallow", "why", "Deployment/llm", "-n", "ml"]
    assert {"Deployment/llm", "Deployment/old"} <= set(said["fallow", "paused", "-A"].split())
    thing = reader.store.get(stores.Key("apps", "Deployment", "ml", "llm")).object
    assert thing["spec"]["replicas"] == 1
    assert names.ACK_UNTIL in thing["metadata"]["annotations"]
