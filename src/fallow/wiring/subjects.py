"""One look at a node or at an object of ours, for who asks what becomes of it: the object, and what it means now.

In: an Api, a name. Out: NodeSubject, or a PolicySubject; verbs.Declined in one sentence where there is no such thing.
Nothing is written anywhere.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from fallow import names, verbs
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.decide import packing, sharing
from fallow.model import cluster, emptying, moving, scaling, spelling
from fallow.model.emptying import EmptyingRecord
from fallow.model.moving import HeldPlace, MoveRecord
from fallow.model.partition import NodeSharing, PartitionNode
from fallow.model.policies import budget as budgeting
from fallow.model.policies import budget_crd, sharing_crd
from fallow.model.policies.budget import CostBudget
from fallow.model.policies.sharing import NodeConfig, SharingPolicy
from fallow.model.scaling import DrainRecord, SpotRecord
from fallow.model.seen import ABSENT, Input, Known, Unseen
from fallow.model.share_advice import CrowdAdvice
from fallow.model.units import Instant
from fallow.observe import share_pods
from fallow.observe import sharing as watching
from fallow.observe.cluster import hosts
from fallow.wiring import share_why, sharers


class NodeSubject(msgspec.Struct, frozen=True, kw_only=True):
    """`emptied`: the record of who empties it. `drain`, `spot`: why it leaves, where it does. `move`, `held`: whom it
    is left by for another, and for whom a place is kept; `moved`: how the last one ended. `room`, `plan`: None where
    pods or nodes are not seen in full, and why stands in `unseen`. `pods`: those on it that hold GPUs. `crowd`: how
    many of them could share one."""

    node: PartitionNode
    sharing: NodeSharing
    config: NodeConfig | None
    emptied: EmptyingRecord | None
    result: str
    pods: tuple[cluster.Pod, ...] = ()
    room: packing.NodeRoom | None = None
    plan: packing.ConsolidationPlan | None = None
    drain: DrainRecord | None = None
    spot: SpotRecord | None = None
    move: MoveRecord | None = None
    held: HeldPlace | None = None
    moved: str = ""
    crowd: Input[CrowdAdvice] = ABSENT
    unseen: str = ""


class PolicySubject(msgspec.Struct, frozen=True, kw_only=True):
    """`status`: as the object has it. `changed`: running pods that it changed; `selected`: others with a whole GPU that
    its selectors mean; None: pods or namespaces are not seen, and `unseen` says why. Of a budget `namespaces`: that it
    means now; None: all, or nobody can tell."""

    kind: str
    name: str
    spec: Mapping[str, Any]
    status: Mapping[str, Any]
    policy: SharingPolicy | None = None
    budget: CostBudget | None = None
    changed: tuple[str, ...] | None = None
    selected: tuple[str, ...] | None = None
    namespaces: tuple[str, ...] | None = None
    unseen: str = ""


async def read(api: kube.Api, resource: kube.Resource, name: str, now: Instant) -> NodeSubject | PolicySubject:
    """Raises verbs.Declined, or what the server says."""
    try:
        if resource == kube.NODES:
            return await _read_node(api, name, now)
        found = await api.get(resource, None, name)
    except errors.NotFound:
        raise verbs.Declined(verbs.Why.unknown, await _explain_absence(api, resource, name)) from None
    made = PolicySubject(
        kind=resource.kind, name=name, spec=found.get("spec") or {}, status=found.get("status") or {}
    )
    if resource == kube.SHARING_POLICIES:
        return await _see_sharing_policy(api, made, sharing_crd.parse(found))
    if resource == kube.COST_BUDGETS:
        return await _see_budget(api, made, budget_crd.parse(found))
    return made


async def _explain_absence(api: kube.Api, resource: kube.Resource, name: str) -> str:
    try:
        pages = api.list_pages(resource, item=kube.BareObject, metadata_only=True)
        known = {each.metadata.name: each.metadata.name async for page in pages for each in page.items}
    except errors.NotFound:
        return f"this cluster has no kind {resource.kind}, so there is nothing of it"
    except errors.ClientError:
        known = {}
    return f"there is no {resource.kind} {name}{spelling.suggest(name, known)}"


# ---- nodes -----------------------------------------------------------------------------------------------------------


async def _read_node(api: kube.Api, name: str, now: Instant) -> NodeSubject:
    item = await api.get(kube.NODES, None, name, kind=watching.SharingNodeItem)
    node, said = watching.see_partition_node(item), item.metadata.annotations or {}
    configs = watching.watch_node_configs(api)
    await configs.list_once()
    known = configs.seen.value if isinstance(configs.seen, Known) else ()
    mine = sorted((each for each in known if each.node == name), key=lambda each: (each.created_at, each.name))
    made = NodeSubject(
        node=node, sharing=sharing.see_node_sharing(node, None), config=mine[0] if mine else None,
        emptied=emptying.read(said.get(names.EMPTYING)), result=said.get(names.EMPTYING_RESULT, ""),
        drain=scaling.read_drain(said.get(names.SCALE_DOWN)), spot=scaling.read_spot(said.get(names.SPOT_RECORD)),
        move=moving.read_record(said.get(names.MOVE)), held=moving.read_place(said.get(names.PLACE_HELD)),
        moved=said.get(names.MOVE_RESULT, ""),
    )
    try:
        seen = await hosts.look(api)
    except errors.ClientError as problem:
        return msgspec.structs.replace(made, unseen=str(problem))
    there = tuple(pod for pod in seen.pods if pod.node == name and (pod.resources or pod.claims) and not pod.has_ended)
    return msgspec.structs.replace(
        made, pods=there, room=packing.measure_node(seen, name, now), plan=packing.plan_consolidation(seen, now),
        sharing=sharing.see_node_sharing(node, sum(names.GPU_SHARED in pod.resources for pod in there)),
        crowd=await _advise_crowd(api, seen, name, now),
    )


async def _advise_crowd(
    api: kube.Api, seen: cluster.Capacity, name: str, now: Instant
) -> Input[CrowdAdvice]:
    """Absent: its GPUs are cut or shared already, or nobody there holds a whole one."""
    machine = next((each for each in seen.machines if each.name == name), None)
    whole = (pod for pod in seen.pods if pod.node == name and pod.needs.gpus == 1 and not pod.needs.shared)
    if machine is None or machine.replicas > 1 or next(whole, None) is None:
        return ABSENT
    found = await sharers.find(api, now, name)
    return Known(sharing.advise_crowd(found.value, machine.gpu_memory)) if isinstance(found, Known) else found


# ---- objects of ours -------------------------------------------------------------------------------------------------


async def _see_sharing_policy(api: kube.Api, made: PolicySubject, policy: SharingPolicy) -> PolicySubject:
    made = msgspec.structs.replace(made, policy=policy)
    try:
        running = await share_pods.list_running(api)
    except errors.ClientError as problem:  # what its status says is told all the same
        return msgspec.structs.replace(made, unseen=str(problem))
    changed = tuple(_name(each) for each in running if sharing.find_policy_name(each.pod) == policy.name)
    made, places = msgspec.structs.replace(made, changed=changed), await sharers.list_namespaces(api)
    if isinstance(places.rest, Unseen):
        return msgspec.structs.replace(made, unseen=places.rest.why)
    _, terms = await share_why.find_terms(api)
    selected = tuple(
        _name(each) for each in running
        if sharing.find_part(each.pod) is None and sharing.is_meant(policy, each.pod, places, terms)
    )
    return msgspec.structs.replace(made, selected=selected)


def _name(of: share_pods.RunningPod) -> str:
    return f"{of.pod.namespace}/{of.pod.name}"


async def _see_budget(api: kube.Api, made: PolicySubject, found: CostBudget) -> PolicySubject:
    live = budgeting.find_live(found.scope, await sharers.list_namespaces(api))
    named = live.value if isinstance(live, Known) else None
    return msgspec.structs.replace(made, budget=found, namespaces=named)
