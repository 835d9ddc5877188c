"""`fallow doctor` on a real cluster with a real Prometheus: what is well is ticked, what is not says what helps."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests import ROOT, objects
from tests.real import cluster as clusters
from tests.real import history, scene

Scene = scene.Scene


@pytest.fixture
async def stage(cluster: clusters.Cluster, prometheus: history.PrometheusWorld) -> Scene:
    await cluster.apply_crds(*objects.read_files(sorted((ROOT / "deploy" / "base").glob("1*crd*.yaml"))))
    return await Scene(cluster, prometheus).prepare()


async def check(stage: Scene, *words: str, code: int = 0) -> dict[str, dict[str, Any]]:
    found = json.loads((await stage.type("fallow", "doctor", *words, "-o", "json", code=code)).out)
    return {each["name"]: each for each in found["checks"]}


async def test_what_is_well_is_ticked_and_what_is_missing_says_what_helps(stage: Scene) -> None:
    await stage.deployment("quiet", gpus=2)
    await stage.begin()
    found = await check(stage)
    assert {found[name]["mark"] for name in ("Cluster", "Clocks", "Custom resources", "Bounds", "GPU nodes",
                                             "Measurements")} == {"ok"}
    assert "Kubernetes v1." in found["Cluster"]["found"]
    assert "all 6 are served" in found["Custom resources"]["found"]
    assert found["Daemon"]["mark"] in ("warn", "ok"), "another test's may run"
    page = (await stage.type("fallow", "doctor")).out
    assert page.splitlines()[0].startswith("ok         Cluster: Kubernetes v1.")


async def test_without_measurements_it_ends_with_1_and_says_where_to_look(stage: Scene) -> None:
    await stage.deployment("quiet", gpus=2)
    await stage.begin()
    found = await check(stage, "--prometheus-url", "http://127.0.0.1:9", code=1)
    assert found["Measurements"]["mark"] == "fail"
    assert "127.0.0.1:9" in found["Measurements"]["found"]
    assert "--prometheus-url" in found["Measurements"]["helps"]
    assert found["Cluster"]["mark"] == "ok"


async def test_without_a_cluster_there_is_one_line(stage: Scene) -> None:
    gone = await check(stage, "--context", "nobodys", code=1)
    assert list(gone) == ["Cluster"]
    assert "has no context 'nobodys'" in gone["Cluster"]["found"]
