"""What operators and people do to what we paused, as it was seen under the real ones, on a real API server.

KServe, Knative, Kueue, Kruise and the training operators are not here: stand-ins in the tests do what those did.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from fallow import names
from fallow.model import cluster as nouns
from tests.real import cluster as clusters
from tests.real import crds, history, scene, test_eyes, test_hands

Object = dict[str, Any]
Cluster = clusters.Cluster


@pytest.fixture
async def stage(cluster: Cluster, prometheus: history.PrometheusWorld) -> scene.Scene:
    return await scene.Scene(cluster, prometheus).prepare()


async def look(cluster: Cluster, short: str) -> nouns.Workload:
    """As a daemon sees it that starts now."""
    return (await test_eyes.look(cluster))[short]


async def pause(cluster: Cluster, thing: Object) -> Object:
    async with test_hands.hands_on(cluster) as hands:
        outcome = await test_hands.carry_in_the_end(cluster, hands, thing)
    assert outcome.status.value == "done", outcome.detail
    return await cluster.refresh(thing)


# ---- who undid a pause -----------------------------------------------------------------------------------------------


@pytest.mark.accepts("idle", 23)
@pytest.mark.parametrize("part", ["", "scale"], ids=["by-a-patch", "through-scale"])
async def test_who_undid_a_pause_is_who_owns_its_field(cluster: Cluster, part: str) -> None:
    paused = await pause(cluster, await test_hands.make(cluster, "statefulset"))
    await cluster.patch(paused, {"spec": {"replicas": 2}}, part=part, fieldManager="rival")
    await cluster.patch(paused, {"metadata": {"labels": {"touched": "later"}}}, fieldManager="zealot")
    assert (await look(cluster, "StatefulSet/llm")).writer == "rival"


@pytest.mark.accepts("idle", 23)
async def test_a_stop_annotation_that_was_removed_leaves_nobody_to_name(cluster: Cluster) -> None:
    paused = await pause(cluster, await test_hands.make(cluster, "notebook"))
    gone = {"metadata": {"annotations": {names.NOTEBOOK_STOPPED: None}}}
    await cluster.patch(paused, gone, fieldManager="rival")
    await cluster.patch(paused, {"metadata": {"labels": {"touched": "later"}}}, fieldManager="zealot")
    assert (await look(cluster, "Notebook/llm")).writer == ""


# ---- the last of its kind (Kruise) -----------------------------------------------------------------------------------


@pytest.mark.accepts("idle", 59)
@pytest.mark.parametrize("how", ["command", "all", "annotation"])
async def test_a_clone_set_that_is_paused_comes_back_although_no_pod_names_its_kind(
    stage: scene.Scene, how: str
) -> None:
    await stage.cluster.apply_crds(crds.KINDS["CloneSet"])
    made = await stage.cluster.apply({
        "apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "metadata": {"name": "clones"},
        "spec": {"replicas": 1},
    })
    (pod,) = await stage.quiet(test_eyes.owned(test_eyes.bare_pod("llm"), made))
    await stage.begin()
    said = await stage.prune("-e", "x")
    assert (await stage.cluster.refresh(made))["spec"]["replicas"] == 0
    await stage.cluster.delete(pod | {"apiVersion": "v1", "kind": "Pod"})  # what Kruise does then
    await stage.cluster.wait_until(lambda: _has_no_pods(stage.cluster))
    (row,) = json.loads((await stage.type("fallow", "paused", "-n", stage.namespace, "-o", "json")).out)
    assert (row["workload"], row["gpus"]) == ("CloneSet.apps.kruise.io/clones", 1)
    if how == "command":
        printed = re.search(r"Resume: (fallow resume \S+ -n \S+)", said)
        assert printed, said
        await stage.type(*printed[1].split())
    elif how == "all":
        await stage.type("fallow", "resume", "--all", "-n", stage.namespace)
    else:
        await stage.cluster.patch(made, {"metadata": {"annotations": {names.RESUME_REQUESTED: "ada"}}})
        await stage.prune("-e", "x")
    back = await stage.cluster.refresh(made)
    assert (back["spec"]["replicas"], names.PAUSED_AT in scene.marks_of(back)) == (1, False)
    assert json.loads((await stage.type("fallow", "paused", "-n", stage.namespace, "-o", "json")).out) == []


async def _has_no_pods(cluster: Cluster) -> bool:
    return not await cluster.pods()
