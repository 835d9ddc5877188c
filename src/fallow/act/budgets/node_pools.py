"""A NodePool of Karpenter that may have no more GPUs than it has, and the way back to its own limits.

In: an Api, a NodePool as it was seen. Out: one request each, in which limits and record change together.
Invariant: nothing is written on a NodePool that is not the one that was seen, as it was seen. What it had stands on it
in the same request that changes it, and goes in the same that puts it back.
"""

from fallow import names
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.model import node_pools, units
from fallow.model.node_pools import PoolRecord, PoolSeen
from fallow.model.units import Instant


async def hold(api: kube.Api, pool: PoolSeen, gpus: int, budgets: tuple[str, ...], now: Instant) -> None:
    limits = None if pool.limits is None else dict(pool.limits)
    record = PoolRecord(limits=limits, gpus=str(gpus), budgets=budgets, since=units.rfc3339(now))
    await _write(api, pool, node_pools.write(record), {"limits": {names.GPU: str(gpus)}})


async def give_back(api: kube.Api, pool: PoolSeen) -> str:
    """What became of it, after its name. Raises Misconfigured where its record cannot be read: nothing is written."""
    record = None if pool.record is None else node_pools.read(pool.record)
    if record is None:
        why = f"its annotation {names.ORIGINAL_LIMITS} cannot be read: put its limits right, and take that away"
        raise errors.Misconfigured(why)
    way_back = node_pools.find_way_back(record, pool.limits)
    await _write(api, pool, None, way_back)
    if way_back:
        return "has its own limits back"
    return "keeps its limits, because somebody else changed that of GPUs meanwhile"


async def _write(api: kube.Api, pool: PoolSeen, record: str | None, spec: object) -> None:
    meta = {
        "uid": pool.uid, "resourceVersion": pool.version, "annotations": {names.ORIGINAL_LIMITS: record},
    }
    body = {"metadata": meta, **({"spec": spec} if spec else {})}
    await api.merge_patch(kube.NODE_POOLS, None, pool.name, body, field_manager=names.FIELD_MANAGER)
