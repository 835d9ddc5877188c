"""What pods mind of who is beside them, as nodes that come and go need it."""

from typing import Any, cast

import msgspec
import pytest

from fallow import names
from fallow.clients.kubernetes import api as kube
from fallow.model.scaling import ScaledPod
from fallow.observe.scaling import pods

HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def see(node: str = "", gpus: int = 1, **spec: Any) -> ScaledPod:
    body = {
        "metadata": {"name": "p", "namespace": "ml", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"nodeName": node, "containers": [
            {"name": "main", "resources": {"limits": {names.GPU: str(gpus)} if gpus else {}}}
        ], **spec},
    }
    item = msgspec.json.decode(msgspec.json.encode(body), type=pods.ScaledPodItem)
    return pods.PodEyes(cast(kube.Api, None)).see(item)


def away(key: str) -> dict[str, Any]:
    return {"affinity": {"podAntiAffinity": {REQUIRED: [{"topologyKey": key}]}}}


def beside(key: str) -> dict[str, Any]:
    return {"affinity": {"podAffinity": {REQUIRED: [{"topologyKey": key}]}}}


def spread(key: str, when: str = "DoNotSchedule") -> dict[str, Any]:
    return {"topologySpreadConstraints": [{"topologyKey": key, "whenUnsatisfiable": when, "maxSkew": 1}]}


@pytest.mark.parametrize(("spec", "apart", "unclear"), [
    ({}, False, ""), (away(HOST), True, ""), (spread(HOST), True, ""), (spread(ZONE, "ScheduleAnyway"), False, ""),
    (away(ZONE), False, "beside"), (spread(ZONE), False, "beside"), (beside(HOST), False, "beside"),
    ({**away(HOST), **spread(ZONE)}, False, "beside"), ({**away(HOST), **spread(HOST)}, True, ""),
    ({"affinity": {**away(HOST)["affinity"], **beside(ZONE)["affinity"]}}, False, "beside"),
    ({**away(HOST), "resourceClaims": [{"name": "gpu", "resourceClaimName": "mine"}]}, False, "claims"),
], ids=str)
def test_who_only_keeps_away_from_its_like_is_clear_while_it_waits(
    spec: dict[str, Any], apart: bool, unclear: str
) -> None:
    found = see(**spec)
    assert (found.apart, bool(found.unclear)) == (apart, bool(unclear))
    assert unclear in found.unclear


def test_who_runs_and_minds_its_neighbours_is_not_moved() -> None:
    """Where else it fits is not known; that another node would do for it is."""
    found = see("n1", **away(HOST))
    assert "beside" in found.unclear
    assert found.apart


def test_who_waits_for_no_gpu_keeps_no_node() -> None:
    assert see(gpus=0, **beside(ZONE)).unclear == ""
