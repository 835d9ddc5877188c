"""Packing beside the real scheduler: what must hold before anybody is asked to let us choose places."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from fallow import names
from tests.real import cluster as clusters
from tests.real import world

NOBODY = "http://127.0.0.1:9"  # the port of discard: nothing listens there
# An extender as we ask people to configure it: it may be away, and GPU pods are still the scheduler's own business.
EXTENDER = {
    "urlPrefix": NOBODY, "filterVerb": "filter", "prioritizeVerb": "prioritize", "bindVerb": "bind", "weight": 100,
    "nodeCacheCapable": True, "ignorable": True, "httpTimeout": "2s",
    "managedResources": [{"name": names.GPU, "ignoredByScheduler": False}],
}
SCHEDULER = {
    "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
    "leaderElection": {"leaderElect": False}, "extenders": [EXTENDER],
}


@pytest.mark.accepts("packing", 18)
@pytest.mark.parametrize("verb", [None, "bindVerb"], ids=["it also binds", "it only ranks"])
async def test_with_the_extender_stopped_gpu_pods_are_still_bound(
    start_control_plane: Callable[[world.Options], Awaitable[clusters.Cluster]], verb: str | None
) -> None:
    extender = {key: value for key, value in EXTENDER.items() if key != verb}
    cluster = await start_control_plane(world.Options(scheduler={**SCHEDULER, "extenders": [extender]}))
    await cluster.gpu_node("gpu-1", gpus=2)
    await cluster.run(clusters.replicated("apps/v1", "Deployment", "llm", 2, 1), 2)
    pods = await cluster.pods("app=llm")
    assert [pod["spec"]["nodeName"] for pod in pods] == ["gpu-1", "gpu-1"]
