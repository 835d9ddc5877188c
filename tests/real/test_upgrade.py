"""From the version before to this one, and back, on a real API server with a real ledger: no row, no pause, no
acknowledgement, no freeze and no object is lost. The version before is run itself, of its commit."""

from __future__ import annotations

import asyncio
import pathlib
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import yaml

from fallow import names
from fallow.account.schema import tables
from tests import ROOT, bad_sharing
from tests.real import build, product, world
from tests.real import cluster as clusters

# Until there is a release: a commit with the first version of the ledger, and before AutoscalingPolicies.
BEFORE = "7a067acbe593c24eff124639c8c88c47d5442ca4"
OURS = "gpuautoscaler.io/v1alpha1"
ROWS = (
    "SELECT part.gpu_uuid, part.slot, i.t0, i.t1, i.is_open, i.share_micro, i.rate_nano, pod.pod_uid, key.digest"
    " FROM cost_intervals i JOIN cost_parts part USING (part_id) JOIN cost_pods pod USING (pod_id)"
    " JOIN cost_keys key USING (key_id)"
)


@pytest.fixture(scope="session")
def before() -> pathlib.Path:
    """The files of that commit."""
    place = build.cache() / f"before-{BEFORE[:12]}"
    with build.lock(build.cache() / ".before.lock"):
        if not place.exists():
            _check_out(place)
    return place


def _check_out(place: pathlib.Path) -> None:
    git = ["git", "-C", str(ROOT), "archive", BEFORE, "src", "deploy", "examples"]
    archived = subprocess.run(git, capture_output=True, check=False)
    if archived.returncode != 0:
        pytest.skip(f"the version before is not in this checkout's history: {archived.stderr.decode().strip()}")
    scratch = tempfile.mkdtemp(dir=place.parent)
    subprocess.run(["tar", "-x", "-C", scratch], input=archived.stdout, check=True)
    # Or its first start is taken for one that hangs.
    subprocess.run([sys.executable, "-m", "compileall", "-q", f"{scratch}/src"], check=True)
    pathlib.Path(scratch).rename(place)


def read_objects(folder: pathlib.Path, *patterns: str) -> Iterator[clusters.Object]:
    for pattern in patterns:
        for path in sorted(folder.glob(pattern)):
            yield from (each for each in yaml.safe_load_all(path.read_text()) if isinstance(each, dict))


# ---- definitions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", ["up", "down"])
async def test_objects_of_ours_outlive_a_change_of_their_definitions(
    before: pathlib.Path, start_control_plane: Callable[[world.Options], Awaitable[clusters.Cluster]], direction: str
) -> None:
    """Every example of the version before stands unchanged under our definitions, and is taken by them again. On the
    way back the kinds that both know stand unchanged, too."""
    cluster = await start_control_plane(world.Options())
    then, now = (list(read_objects(place, "deploy/base/1*-crd*.yaml")) for place in (before, ROOT))
    if direction == "down":
        then, now = now, then
    await cluster.apply_crds(*then)
    both = {each["spec"]["names"]["kind"] for each in then} & {each["spec"]["names"]["kind"] for each in now}
    examples = [each for each in read_objects(before, "examples/**/*.yaml") if each.get("kind") in both]
    examples += _number("GPUSharingPolicy", bad_sharing.GOOD_POLICIES)
    examples += _number("GPUNodeConfig", bad_sharing.GOOD_NODES)
    assert {each["kind"] for each in examples} == both
    made = [await _create(cluster, each) for each in examples]
    await cluster.apply_crds(*now)
    for each in made:
        found = await cluster.refresh(each)
        assert (found["metadata"]["uid"], found["spec"]) == (each["metadata"]["uid"], each["spec"])
        assert (await cluster.patch(found, {"spec": each["spec"]}))["spec"] == each["spec"]


def _number(kind: str, specs: dict[str, Any]) -> Iterator[clusters.Object]:
    for number, spec in enumerate(specs.values()):
        yield {"apiVersion": OURS, "kind": kind, "metadata": {"name": f"number-{number}"}, "spec": spec}


async def _create(cluster: clusters.Cluster, example: clusters.Object) -> clusters.Object:
    namespace = example["metadata"].get("namespace")
    if namespace and await cluster.find("v1", "Namespace", namespace) is None:
        await cluster.make_namespace(namespace)
    return await cluster.apply(example)


# ---- what is remembered ----------------------------------------------------------------------------------------------


class Scene:
    """A daemon that acts and keeps books, of either version, on one stage."""

    def __init__(self, pruner: product.Product, folder: pathlib.Path, before: pathlib.Path) -> None:
        self.pruner, self.stage, self.state = pruner, pruner.stage, folder / "state"
        self._old = {"PYTHONPATH": str(before / "src")}

    async def start(self, *flags: str, is_old: bool) -> product.Daemon:
        daemon = self.spawn(*flags, is_old=is_old)
        await daemon.until(daemon.answers)
        return daemon

    def spawn(self, *flags: str, is_old: bool) -> product.Daemon:
        said = ("-d", "-c", "1", "-r", "scale-down", "--confirm-cycles", "1", "--state-dir", str(self.state))
        books = flags or ("--cost", "true", "--cost-tracking-interval", "1s")
        return self.pruner.spawn(*said, *books, env={"POD_NAME": "one", **(self._old if is_old else {})})

    async def type(self, *words: str, is_old: bool) -> str:
        """A command of that version, which must succeed; what it printed."""
        command = [str(product.BIN / "fallow"), *words, "--kubeconfig", str(self.pruner.kubeconfig)]
        variables = self.pruner.environment(self._old if is_old else None)
        ran = await asyncio.create_subprocess_exec(*command, env=variables, stdin=subprocess.DEVNULL,
                                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        out, _ = await asyncio.wait_for(ran.communicate(), 60)
        assert ran.returncode == 0, out.decode()
        return out.decode()

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        on = sqlite3.connect(f"file:{self.state / 'costs.sqlite'}?mode=ro", uri=True)
        try:
            return on.execute(sql).fetchall()
        finally:
            on.close()

    def rows(self) -> dict[tuple[Any, ...], tuple[int, int]]:
        """Of the ledger: what an interval is of -> until when, and whether it is still open."""
        return {(*row[:3], *row[5:]): (row[3], row[4]) for row in self.ask(ROWS)}

    async def marks(self, thing: clusters.Object) -> dict[str, str]:
        found: dict[str, str] = (await self.stage.now(thing))["metadata"].get("annotations") or {}
        return {key: value for key, value in found.items() if "gpuautoscaler" in key or "gpu-pruner" in key}


def check_kept(before: dict[tuple[Any, ...], tuple[int, int]], after: dict[tuple[Any, ...], tuple[int, int]]) -> None:
    """Each row is there; one that was closed is as it was, one that was open may have gone on."""
    assert before
    for key, (until, is_open) in before.items():
        assert after[key][0] >= until if is_open else after[key] == (until, 0), key


async def test_no_row_no_pause_and_no_freeze_is_lost_on_the_way_up_and_back(
    stage: product.Stage, folder: pathlib.Path, before: pathlib.Path
) -> None:
    idle = await stage.workload("idle", replicas=2)
    kept, busy = await stage.workload("kept"), await stage.workload("busy", busy=0.5)
    await stage.prometheus.start()
    async with product.product_on(stage, folder) as pruner:
        scene = Scene(pruner, folder, before)
        old = await _live_before(scene, idle, kept)
        marks = {each["metadata"]["name"]: await scene.marks(each) for each in (idle, kept)}
        rows = scene.rows()
        assert scene.ask("SELECT schema_version FROM ledger_meta") == [(1,)]

        daemon = await scene.start(is_old=False)
        await daemon.more_cycles(3)
        assert await daemon.metric("fallow_idle_frozen") == 1
        assert [await stage.is_paused(each) for each in (idle, kept, busy)] == [True, False, False]
        for each in (idle, kept):
            assert await scene.marks(each) == marks[each["metadata"]["name"]]
        await daemon.until(lambda: _has_gone_on(scene, rows))
        assert scene.ask("SELECT schema_version FROM ledger_meta") == [(tables.VERSION,)]
        check_kept(rows, scene.rows())
        assert old in (0, 143)

        await scene.type("unfreeze", is_old=False)
        await scene.type("resume", "Deployment/idle", "-n", stage.namespace, is_old=False)
        assert (await stage.now(idle))["spec"]["replicas"] == 2
        assert await stage.is_paused(kept) is False
        await scene.type("pause", "Deployment/busy", "-n", stage.namespace, is_old=False)
        await daemon.terminate()
        rows = scene.rows()

        await _go_back(scene, busy)
        assert scene.rows() == rows


async def _go_back(scene: Scene, paused: clusters.Object) -> None:
    """The version before leaves a ledger of ours alone, and says so; without books it goes on, and brings back what we
    paused."""
    refused = scene.spawn(is_old=True)
    assert await refused.ended() == 2
    assert f"was written by a newer version of fallow ({tables.VERSION})" in refused.log
    daemon = await scene.start("--cost", "false", is_old=True)
    await daemon.more_cycles(2)
    assert await scene.stage.is_paused(paused) is True
    await scene.type("resume", f"Deployment/{paused['metadata']['name']}", "-n", scene.stage.namespace, is_old=True)
    assert (await scene.stage.now(paused))["spec"]["replicas"] == 1
    await daemon.terminate()


async def _live_before(scene: Scene, idle: clusters.Object, kept: clusters.Object) -> int:
    """The version before pauses, keeps books, heeds somebody who keeps, and is frozen; its exit code."""
    where = ("-n", scene.stage.namespace)
    await scene.type("ack", "Deployment/kept", *where, "--hours", "4", is_old=True)
    daemon = await scene.start(is_old=True)
    await daemon.until(lambda: scene.stage.is_paused(idle), timeout=60)
    await scene.type("freeze", "--for", "2h", is_old=True)
    await daemon.until(lambda: _is_written(scene))
    code = await daemon.terminate()
    assert names.ACK_UNTIL in await scene.marks(kept)
    return code


async def _is_written(scene: Scene) -> bool:
    return (scene.state / "costs.sqlite").exists() and len(scene.rows()) >= 2


async def _has_gone_on(scene: Scene, rows: dict[tuple[Any, ...], tuple[int, int]]) -> bool:
    now = scene.rows()
    return len(now) > len(rows) or any(now[key] > rows[key] for key in rows)
