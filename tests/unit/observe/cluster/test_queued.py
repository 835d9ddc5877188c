"""Who waits in Kueue, over the wire: Workloads that it says have no quota, and nobody else."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.builders import NOW
from tests.unit.observe.cluster import pretend

from fallow.model import cluster, units
from fallow.model.seen import ABSENT, Input, Known, Unseen
from fallow.observe.cluster import mirror

SINCE = "2026-11-15T08:01:00Z"
LACKS = {"type": "QuotaReserved", "status": "False", "reason": "Pending", "lastTransitionTime": SINCE}


@pytest.fixture
async def server() -> AsyncIterator[pretend.Server]:
    async with pretend.Server(*pretend.KUEUE) as running:
        yield running


def pod_set(count: Any = 2, gpus: str = "4", **more: Any) -> dict[str, Any]:
    asks = {"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": gpus, "cpu": "1"}}}
    return {"name": "main", "count": count, "template": {"spec": {"containers": [asks], **more}}}


def put(server: pretend.Server, *sets: Any, conditions: Any = (LACKS,), **spec: Any) -> None:
    made = {"spec": {"queueName": "q", "podSets": list(sets), **spec}, "status": {"conditions": list(conditions)}}
    server.put("workloads", pretend.made("job-train", kind="Workload", version="kueue.x-k8s.io/v1beta1", **made))


async def look(server: pretend.Server) -> Input[tuple[cluster.Waiting, ...]]:
    async with server.api() as api, mirror.Mirror(api) as seen:
        await seen.list_all(NOW)
        return seen.contents.queued


async def test_one_that_is_not_admitted_waits_with_all_its_pods_and_where_they_may_go(server: pretend.Server) -> None:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
    where = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    put(server, pod_set(nodeSelector={"pool": "h100"}, affinity=where), pod_set(1, "0"))
    assert await look(server) == Known((cluster.Waiting(
        resources={"nvidia.com/gpu": 8}, each={"nvidia.com/gpu": 4}, node_selector={"pool": "h100"}, affinity=terms,
        since=units.parse_instant(SINCE),
    ),))


NOBODY: dict[str, dict[str, Any]] = {
    "not looked at yet": {"conditions": ()},
    "admitted": {"conditions": ({"type": "QuotaReserved", "status": "True"}, {"type": "Admitted", "status": "True"})},
    "has its quota": {"conditions": ({"type": "QuotaReserved", "status": "True"},)},
    "finished": {"conditions": (LACKS, {"type": "Finished", "status": "True"})},
    "no such queue": {"conditions": ({**LACKS, "reason": "Inadmissible"},)},
    "more than its queue may ever have": {"conditions": ({**LACKS, "reason": "ExceedsMaxQuota"},)},
    "since nobody knows when": {"conditions": ({"type": "QuotaReserved", "status": "False"},)},
    "stopped": {"active": False},
}


@pytest.mark.parametrize("said", NOBODY.values(), ids=NOBODY.keys())
async def test_nobody_else_waits(server: pretend.Server, said: dict[str, Any]) -> None:
    put(server, pod_set(), **said)
    assert await look(server) == ABSENT


@pytest.mark.parametrize("odd", [
    {}, {"count": 1}, pod_set("many"), pod_set(-1), pod_set(10**9), pod_set(gpus="-4"), pod_set(nodeSelector=[1]),
    {"count": 1, "template": {"spec": [1]}}, {"count": 1, "template": {"spec": {"containers": "x"}}}, "x",
], ids=str)
async def test_what_cannot_be_read_does_not_wait_and_hides_nobody(server: pretend.Server, odd: Any) -> None:
    put(server, odd, pod_set(1))
    found = await look(server)
    assert isinstance(found, Known)
    assert [each.resources for each in found.value] == [{"nvidia.com/gpu": 4}]


async def test_without_kueue_nobody_waits_and_where_it_may_not_be_read_it_is_unseen(server: pretend.Server) -> None:
    server.forbidden.add(("list", "workloads"))
    found = await look(server)
    assert isinstance(found, Unseen)
    assert "workloads" in found.why
    async with pretend.Server() as plain:
        assert await look(plain) == ABSENT
