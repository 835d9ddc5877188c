"""The gates that the admission webhook put before pods of a throttled budget: who waits behind one, and taking it away.

In: an Api. Out: GatedPods; a pod without our gate. Only unscheduled pods are listed, and only our gate goes.
Invariant: the patch tests the pod's uid and where the gate stands, so that no other gate can go by mistake.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, TypeAlias

import msgspec

from fallow import names
from fallow.clients import errors
from fallow.clients.kubernetes import api as kubernetes
from fallow.model import cluster
from fallow.model.budgets import GatedPod
from fallow.model.policies.budget import ClaimWanted
from fallow.model.seen import Input, Known

log = logging.getLogger("fallow")

CountClaimed: TypeAlias = Callable[[str, Sequence[ClaimWanted]], Awaitable[Input[int]]]


class GateMeta(msgspec.Struct, frozen=True, rename="camel"):
    uid: str
    name: str
    creation_timestamp: datetime
    namespace: str = ""
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


class GateItem(msgspec.Struct, frozen=True):
    metadata: GateMeta
    spec: GateSpec = GateSpec()


async def find(
    api: kubernetes.Api, is_gpu: Callable[[str], bool], count_claimed: CountClaimed | None = None
) -> tuple[GatedPod, ...]:
    """`is_gpu`: of the name of a resource. `count_claimed`: GPUs that the claims of a namespace's pod ask for; None: it
    does not matter how many."""
    pages = api.list_pages(kubernetes.PODS, item=GateItem, field_selector="spec.nodeName=,status.phase=Pending")
    found = [item async for page in pages for item in page.items if _is_gated(item)]
    return tuple([await _read(item, is_gpu, count_claimed) for item in found])


def _is_gated(item: GateItem) -> bool:
    return any(gate.name == names.BUDGET_GATE for gate in item.spec.scheduling_gates or ())


async def _read(item: GateItem, is_gpu: Callable[[str], bool], count_claimed: CountClaimed | None) -> GatedPod:
    meta, asked, claims = item.metadata, _count(item.spec, is_gpu), item.spec.resource_claims or ()
    claimed = await count_claimed(meta.namespace, claims) if claims and count_claimed is not None else Known(0)
    # At least one: a pod that asks for a part of one, by an annotation, would else go past every cap.
    gpus = max(1, asked + claimed.value) if asked is not None and isinstance(claimed, Known) else None
    said = (meta.annotations or {}).get(names.GATED_BY, "")
    return GatedPod(
        ref=cluster.Ref("", "v1", "Pod", meta.namespace, meta.name, meta.uid),
        created_at=meta.creation_timestamp.timestamp(), gpus=gpus,
        budgets=tuple(part for part in said.split(",") if part),
        gates=tuple(gate.name for gate in item.spec.scheduling_gates or ()),
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


async def remove(api: kubernetes.Api, pods: Iterable[GatedPod]) -> int:
    """From how many it is gone; a pod that changed meanwhile keeps it until the next time."""
    removed = 0
    for pod in pods:
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
