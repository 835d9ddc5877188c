"""The gates that the admission webhook put before pods of a throttled budget: who waits behind one, and taking it away.

In: an Api. Out: GatedPods; a pod without our gate. Only unscheduled pods are listed, and only our gate goes.
Invariant: the patch tests the pod's uid and where the gate stands, so that no other gate can go by mistake. However
many wait and whatever their claims are, reading those ends in time.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeAlias

import msgspec

from fallow import names
from fallow.clients import errors
from fallow.clients.kubernetes import api as kubernetes
from fallow.model import cluster
from fallow.model.budgets import GatedPod
from fallow.model.policies.budget import ClaimWanted
from fallow.model.seen import Absent, Input, Known
from fallow.model.units import Seconds

log = logging.getLogger("fallow")

CLAIMS_WITHIN: Final[Seconds] = 10.0  # what is not read by then is not known
CountClaimed: TypeAlias = Callable[[str, Sequence[ClaimWanted]], Awaitable[Input[int]]]


class GateMeta(msgspec.Struct, frozen=True, rename="camel"):
    uid: str
    name: str
    creation_timestamp: datetime
    namespace: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class GateResources(msgspec.Struct, frozen=True):
    limits: dict[str, Any] | None = None


class GateContainer(msgspec.Struct, frozen=True):
    resources: GateResources | None = None


class PodGate(msgspec.Struct, frozen=True):
    name: str


class GateSpec(msgspec.Struct, frozen=True, rename="camel"):
    containers: tuple[GateContainer, ...] = ()
    init_containers: tuple[GateContainer, ...] | None = None
    scheduling_gates: tuple[PodGate, ...] | None = None
    resource_claims: tuple[ClaimWanted, ...] | None = None
    affinity: dict[str, Any] | None = None


class GateItem(msgspec.Struct, frozen=True):
    metadata: GateMeta
    spec: GateSpec = GateSpec()


async def find(api: kubernetes.Api, is_gpu: Callable[[str], bool]) -> tuple[GatedPod, ...]:
    """`is_gpu`: of the name of a resource. What their claims ask for is not in it: see `count`."""
    pages = api.list_pages(kubernetes.PODS, item=GateItem, field_selector="spec.nodeName=,status.phase=Pending")
    return tuple([_read(item, is_gpu) async for page in pages for item in page.items if _is_gated(item)])


def _is_gated(item: GateItem) -> bool:
    return any(gate.name == names.BUDGET_GATE for gate in item.spec.scheduling_gates or ())


def _read(item: GateItem, is_gpu: Callable[[str], bool]) -> GatedPod:
    meta, spec, asked = item.metadata, item.spec, _count(item.spec, is_gpu)
    said = (meta.annotations or {}).get(names.GATED_BY, "")
    return GatedPod(
        ref=cluster.Ref("", "v1", "Pod", meta.namespace, meta.name, meta.uid), labels=meta.labels or {},
        created_at=meta.creation_timestamp.timestamp(), gpus=asked or 0, is_counted=asked is not None,
        budgets=tuple(part for part in said.split(",") if part), affinity=spec.affinity,
        gates=tuple(gate.name for gate in spec.scheduling_gates or ()), claims=spec.resource_claims or (),
    )


def _count(spec: GateSpec, is_gpu: Callable[[str], bool]) -> int | None:
    first, main = ([_list(each, is_gpu) for each in some or ()] for some in (spec.init_containers, spec.containers))
    if not all(text.isdecimal() for counts in (*first, *main) for text in counts):
        return None
    sums = [sum(map(int, counts)) for counts in first]  # those run one after the other
    return max(sum(int(text) for counts in main for text in counts), *sums, 0)


def _list(container: GateContainer, is_gpu: Callable[[str], bool]) -> list[str]:
    limits = container.resources.limits if container.resources is not None else None
    return [str(count) for name, count in (limits or {}).items() if is_gpu(name)]


async def count(
    pods: Iterable[GatedPod], count_claimed: CountClaimed, within: Seconds = CLAIMS_WITHIN
) -> tuple[GatedPod, ...]:
    """With what their claims ask for, oldest first. Pods of one template are asked about once."""
    found: dict[tuple[str, tuple[ClaimWanted, ...]], Input[int]] = {}
    waiting = sorted(pods, key=lambda each: each.created_at)
    try:
        async with asyncio.timeout(within):
            for pod in waiting:
                key = pod.ref.namespace, pod.claims
                if pod.claims and key not in found:
                    found[key] = await count_claimed(*key)
    except TimeoutError:
        log.warning("what pods that wait behind a budget ask for by claims was not read within %g s", within)
    return tuple(_add(pod, found) if pod.claims else pod for pod in waiting)


def _add(pod: GatedPod, found: Mapping[tuple[str, tuple[ClaimWanted, ...]], Input[int]]) -> GatedPod:
    """A claim that cannot be counted is one for at least one GPU."""
    claimed, asked = found.get((pod.ref.namespace, pod.claims)), pod.gpus or 0
    if isinstance(claimed, Absent):
        return msgspec.structs.replace(pod, gpus=None)
    if isinstance(claimed, Known):
        return msgspec.structs.replace(pod, gpus=asked + claimed.value)
    return msgspec.structs.replace(pod, gpus=asked + len(pod.claims), is_counted=False)


async def remove(
    api: kubernetes.Api, pods: Iterable[GatedPod], may_go_on: Callable[[], bool] = lambda: True
) -> int:
    """From how many it is gone; a pod that changed meanwhile keeps it until the next time, and so do all that are left
    when we may not go on."""
    removed = 0
    for pod in pods:
        if not may_go_on():
            break
        place = pod.gates.index(names.BUDGET_GATE)
        path = f"/spec/schedulingGates/{place}"
        operations = [
            {"op": "test", "path": "/metadata/uid", "value": pod.ref.uid},
            {"op": "test", "path": f"{path}/name", "value": names.BUDGET_GATE}, {"op": "remove", "path": path},
        ]
        try:
            await api.json_patch(
                kubernetes.PODS, pod.ref.namespace, pod.ref.name, operations, field_manager=names.FIELD_MANAGER
            )
        except errors.NotFound:
            continue
        except errors.ClientError as problem:
            log.warning("the gate of %s stays for now: %s", pod.ref, problem)
            continue
        removed += 1
    return removed
