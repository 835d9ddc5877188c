"""Pods and nodes that hold GPUs, in few words, for tests of what was measured."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import re2

from fallow.model import cluster, usage
from fallow.observe.usage import rows, trust

BELIEF = trust.Belief(re2.compile("gpu|gpu-operator|gpu-system|kube-system"))


def pod(name: str, node: str = "gpu-1", namespace: str = "ml", **changes: object) -> cluster.Pod:
    facts: dict[str, object] = {
        "namespace": namespace, "name": name, "uid": f"uid-{namespace}-{name}", "node": node, "phase": "Running",
        "terminating": False, "owner": None, "labels": {}, "annotations": {}, "resources": {"nvidia.com/gpu": 1},
        "claims": (), "claimed": 0, "created_at": 0.0, "started_at": 0.0, "ready": True, "ready_since": 0.0, "ip": "",
        "static": False, "node_selector": {}, "affinity": None, "unschedulable_since": None,
    }
    return cluster.Pod(**{**facts, **changes})  # type: ignore[arg-type]


def node(
    name: str = "gpu-1", *, hostname: str = "", addresses: tuple[str, ...] = (), shared: bool = False,
    product: str | None = None,
) -> cluster.Node:
    return cluster.Node(
        name=name, hostname=hostname or name, addresses=addresses, ready=True, gpu_product=product, shared=shared,
        labels={},
    )


def nodes(*some: cluster.Node) -> dict[str, cluster.Node]:
    return {one.name: one for one in some or (node(),)}


def exporters(*said: str, belief: trust.Belief = BELIEF, **more: Any) -> trust.KnownExporters:
    """Pods of exporters' namespaces, each as `namespace/name node address`."""
    found = [(*place.split("/"), *rest) for place, *rest in (one.split() for one in said)]
    return trust.KnownExporters(belief, [trust.ExporterPod(*one) for one in found], **more)


def held(
    pods: tuple[cluster.Pod, ...], on: Mapping[str, cluster.Node] | None = None, version: int | None = None,
    known: trust.KnownExporters | None = None,
) -> rows.Holders:
    """Who holds GPUs; without a version nothing is said to be as before. By default everybody is believed."""
    everybody = exporters(belief=trust.Belief(BELIEF.namespaces, everything=True))
    return rows.Holders(pods, nodes() if on is None else on, version, known or everybody)


def wanted(rows_wanted: Iterable[int], warned: float = np.nan) -> usage.Candidates:
    """Rows to look back at; `warned`: when all their owners were."""
    at = np.array(list(rows_wanted), dtype=np.int64)
    return usage.Candidates(at, np.full(len(at), warned))
