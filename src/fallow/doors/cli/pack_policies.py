"""`fallow pack plan -o policy`: the objects by which small work would share GPUs, ready to be applied; they audit.

In: a Capacity, which node could be emptied, who could share what he holds. Out: a GPUSharingPolicy for all that asks
for exactly one whole GPU, and where no node shares its GPUs yet a GPUNodeConfig for one that is free for it, with
comments that say why.
Invariant: nothing that is printed changes anything once it is applied: `mode: audit` says what it would do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from fallow import names
from fallow.decide import packing, sharing
from fallow.doors.answers import subjects
from fallow.model import cluster
from fallow.model.classes import WorkClass
from fallow.model.policies.sharing import SharingMode, SharingPolicy, Strategy
from fallow.model.seen import Input, Known
from fallow.model.share_advice import CrowdAdvice
from fallow.model.units import many

POLICY: Final = "small-work"
REPLICAS: Final = SharingPolicy(name="", strategy=Strategy.timeslicing).replicas
_SHARED: Final = (WorkClass.inference, WorkClass.notebook, WorkClass.batch)  # training keeps whole GPUs


def count_small(seen: cluster.Capacity) -> int:
    """Pods that run or wait and ask for exactly one whole GPU."""
    shared = {machine.name for machine in seen.machines if machine.replicas > 1}
    return sum(pod.needs.gpus == 1 and not pod.needs.shared and pod.node not in shared for pod in seen.pods)


def find_node(seen: cluster.Capacity, found: packing.ConsolidationPlan) -> tuple[str, str] | None:
    """Which node could share its GPUs, and why that one; None: some do already, or none is free for it."""
    if any(machine.replicas > 1 for machine in seen.machines):
        return None
    empty = next((each for each in found.staying if each.reason == "Empty"), None)
    if empty is not None:
        return empty.node, "no node shares its GPUs yet, and nobody is on this one"
    chosen = found.chosen
    return None if chosen is None else (chosen.node, f"no node shares its GPUs yet, and of this one {chosen.because}")


def advise(
    seen: cluster.Capacity, sharers: Input[tuple[sharing.Sharer, ...]], node: str = ""
) -> Input[CrowdAdvice]:
    """How many of them a GPU of this node would do for, or of the smallest that any of them has now."""
    if not isinstance(sharers, Known):
        return sharers
    homes = {node} if node else {each.node for each in sharers.value}
    sizes = [machine.gpu_memory for machine in seen.machines if machine.name in homes]
    known = [size for size in sizes if size is not None]
    smallest = min(known) if known and len(known) == len(sizes) else None
    return Known(sharing.advise_crowd(sharers.value, smallest))


def count_replicas(advice: Input[CrowdAdvice]) -> int:
    """How many are to take turns on a GPU; as a policy has it that says nothing, where nobody can tell."""
    return (advice.value.replicas if isinstance(advice, Known) else None) or REPLICAS


def make_objects(node: tuple[str, str] | None, replicas: int) -> list[dict[str, Any]]:
    version = f"{names.GROUP}/{names.POLICY_VERSION}"
    made = [{
        "apiVersion": version, "kind": names.SHARING_POLICY_KIND, "metadata": {"name": POLICY},
        "spec": {
            "strategy": str(Strategy.auto), "mode": str(SharingMode.audit),
            "workloadTypes": [str(each) for each in _SHARED],
        },
    }]
    if node is not None:
        made.append({
            "apiVersion": version, "kind": names.NODE_CONFIG_KIND, "metadata": {"name": node[0]},
            "spec": {
                "nodeName": node[0], "mode": str(SharingMode.audit), "timeSlicingEnabled": True,
                "timeSlicingReplicas": replicas,
            },
        })
    return made


def explain(
    seen: cluster.Capacity, node: tuple[str, str] | None, advice: Input[CrowdAdvice]
) -> Iterator[str]:
    """What stands above them."""
    yield f"{many(count_small(seen), 'pod')} ask for exactly one whole GPU; what each gets its class decides."
    if node is not None:
        replicas = count_replicas(advice)
        yield f"{node[0]}: {node[1]}. Time-slicing keeps neither memory nor faults of its {replicas} pods apart."
        yield f"How many could share a GPU there: {subjects.tell_crowd(advice)}."
    yield "Nothing is changed: both kinds audit. What would become of whom: kubectl get gsp,gnc; fallow optimize."
    yield "To put one in force: mode: enforce, and let the webhook rewrite requests (admissionWebhook.rewriteRequests)."
