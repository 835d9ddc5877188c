"""What operators and people do to what we paused, as it was seen under the real ones, on a real API server.

KServe, Knative, Kueue, Kruise and the training operators are not here: stand-ins in the tests do what those did.
"""

from __future__ import annotations

from typing import Any

import pytest

from fallow import names
from fallow.model import cluster as nouns
from tests.real import cluster as clusters
from tests.real import test_eyes, test_hands

Object = dict[str, Any]
Cluster = clusters.Cluster


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
