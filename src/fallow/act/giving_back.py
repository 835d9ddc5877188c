"""What is given back, besides workloads, when fallow is removed: the door to new pods, gates, limits of NodePools,
nodes that were to leave, places that are kept, room that is kept ahead of demand, finalizers; and what the daemon made
elsewhere than at home.

In: an Api, the hands that empty and cut nodes. Out: sentences, each as soon as it is so: what was given back, and what
is still held and why; a look that fails is one of these. Only gates are waited for, some seconds: who asks again later
finds less.
Invariant: each way back is the one that the records tell of, with the version that was seen. A node whose GPUs are
being cut anew is left to whoever does it, because half a change is worse than a late one. What is deleted is ours by
its name and by what stands in it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from fallow import names
from fallow.act import headroom
from fallow.act.budgets import gates, node_pools
from fallow.act.emptying import Emptier
from fallow.act.leaving import TAINTS, LeavingHands
from fallow.act.moving import Mover
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.model import emptying, partition, scaling
from fallow.model.claims import ClaimTemplate
from fallow.model.emptying import NodeNow, StopReason
from fallow.model.leaving import LeavingNode, UndoDrain
from fallow.model.moving import MoveNode
from fallow.model.node_pools import PoolSeen
from fallow.model.scaling import ScaledNode
from fallow.model.seen import Input, Known, Unseen
from fallow.model.units import Instant, Seconds

_BECAUSE = "fallow is removed"
_MOVES = "has a place that is kept for a pod"  # where one is moved for another
_SETTLES: Final[Seconds] = 5.0  # until what came back has made its pods, and API servers have forgotten the webhook
_LOOKS: Final = 3  # for gates
_UNPLACED: Final = "spec.nodeName=,status.phase=Pending"


class Leavings(msgspec.Struct, frozen=True):
    """Sentences. `held`: with any of them, who would give it back later must not be removed yet."""

    given_back: tuple[str, ...] = ()
    held: tuple[str, ...] = ()


class _LeftMeta(msgspec.Struct, rename="camel"):
    name: str
    uid: str
    resource_version: str
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    finalizers: tuple[str, ...] = ()


class _LeftTaint(msgspec.Struct):
    key: str = ""


class _LeftSpec(msgspec.Struct):
    unschedulable: bool = False
    taints: list[_LeftTaint] | None = None


class _LeftNode(msgspec.Struct):
    metadata: _LeftMeta
    spec: _LeftSpec = msgspec.field(default_factory=_LeftSpec)


class _LeftConfig(msgspec.Struct):
    metadata: _LeftMeta


async def find_door(api: kube.Api) -> list[tuple[kube.Resource, kube.ObjectMeta]]:
    """The configurations by which the API server asks our webhook about new pods."""
    found = [(each, await _find(api, each, names.WEBHOOK, _is_door)) for each in kube.WEBHOOK_CONFIGURATIONS]
    return [(resource, meta) for resource, meta in found if meta is not None]


def _is_door(body: Mapping[str, Any]) -> bool:
    return all(str(each.get("name")).endswith(f".{names.GROUP}") for each in body.get("webhooks") or ())


async def open_door(api: kube.Api) -> AsyncIterator[Leavings]:
    """First of all: else pods of what comes back would get gates, or be refused, by a webhook that is about to go."""
    async for each in _drop_all(api, lambda: find_door(api)):
        yield each


async def find_class(api: kube.Api) -> list[tuple[kube.Resource, kube.ObjectMeta]]:
    """The PriorityClass of placeholders."""
    found = await _find(api, headroom.CLASSES, names.HEADROOM_CLASS, lambda body: body.get("value", 0) < 0)
    return [(headroom.CLASSES, found)] if found is not None else []


async def drop_class(api: kube.Api) -> AsyncIterator[Leavings]:
    """Once no placeholder is left."""
    async for each in _drop_all(api, lambda: find_class(api)):
        yield each


async def _find(
    api: kube.Api, resource: kube.Resource, name: str, is_ours: Callable[[Mapping[str, Any]], bool]
) -> kube.ObjectMeta | None:
    try:
        body = await api.get(resource, None, name)
    except errors.NotFound:
        return None
    return msgspec.convert(body["metadata"], kube.ObjectMeta) if is_ours(body) else None


async def _drop_all(
    api: kube.Api, find: Callable[[], Awaitable[list[tuple[kube.Resource, kube.ObjectMeta]]]]
) -> AsyncIterator[Leavings]:
    try:
        found = await find()
    except errors.ClientError as problem:
        yield Leavings(held=(f"whether something is left of the installation is not seen: {problem}",))
        return
    for resource, meta in found:
        yield await _drop(api, resource, meta)


async def _drop(api: kube.Api, resource: kube.Resource, meta: kube.ObjectMeta) -> Leavings:
    called = f"{resource.kind} {meta.name}" + (f" in {meta.namespace}" if meta.namespace else "")
    try:
        await headroom.clear(api, resource, meta)
    except errors.ClientError as problem:
        return Leavings(held=(f"{called} is still there: {problem}",))
    return Leavings((f"{called} is gone",))


async def lift_gates(api: kube.Api, settles: Seconds = _SETTLES) -> AsyncIterator[Leavings]:
    """Last of all, and until a look finds none: what came back makes its pods only now, and an API server that has not
    heard yet that the webhook is gone may give some of them a gate."""
    for _ in range(_LOOKS):
        await asyncio.sleep(settles)
        try:
            waiting = await gates.find(api, lambda resource: False)
        except errors.ClientError as problem:
            yield Leavings(held=(f"whether pods wait for a budget is not seen: {problem}",))
            return
        if not waiting:
            return
        if lifted := await gates.remove(api, waiting):
            yield Leavings((f"{lifted} pods no longer wait for a budget",))
    yield Leavings(held=(
        f"pods may still wait for a budget: at each of {_LOOKS} looks there were some, {len(waiting)} at the last",
    ))


async def give_pools_back(
    api: kube.Api, find: Callable[[kube.Api], Awaitable[Input[tuple[PoolSeen, ...]]]]
) -> AsyncIterator[Leavings]:
    """NodePools of Karpenter that a budget holds have their limits back. `find`: all of them."""
    seen = await find(api)
    if isinstance(seen, Unseen):
        yield Leavings(held=(f"whether a budget holds NodePools is not seen: {seen.why}",))
    for pool in seen.value if isinstance(seen, Known) else ():
        if pool.record is None:
            continue
        try:
            yield Leavings((f"NodePool {pool.name} {await node_pools.give_back(api, pool)}",))
        except errors.ClientError as problem:
            yield Leavings(held=(f"NodePool {pool.name} is still held: {problem}",))


async def give_nodes_back(
    api: kube.Api, emptier: Emptier, leaving: LeavingHands, mover: Mover, now: Instant
) -> AsyncIterator[Leavings]:
    try:
        nodes = await _list_nodes(api)
    except errors.ClientError as problem:
        yield Leavings(held=(f"whether nodes are held is not seen: {problem}",))
        return
    for node in nodes:
        name, said = node.metadata.name, node.metadata.annotations or {}
        if why := _why_cut(said.get(names.REPARTITION)):
            yield Leavings(held=(f"node {name} {why}",))
        if names.EMPTYING in said:
            why = await _give_back(emptier, node, said[names.EMPTYING], now)
            yield _tell(why, f"node {name} is given back", f"node {name} is still to be given back")
        if names.MOVE in said or names.PLACE_HELD in said:
            why = await _try(mover.clear(MoveNode(name, node.metadata.uid, node.metadata.resource_version)))
            yield _tell(why, f"a place is no longer kept on node {name}", f"a place is still kept on node {name}")
        elif names.DEFRAG in (node.metadata.labels or {}):
            why, marked = await _try(mover.forget(name)), "marked as one that a pod was moved from"
            yield _tell(why, f"node {name} is no longer {marked}", f"node {name} is still {marked}")
        if names.SCALE_DOWN in said or names.SPOT_RECORD in said:
            why = await _keep_node(leaving, node, now)
            yield _tell(why, f"node {name} is no longer let go", f"node {name} is still let go")


def _tell(why: str, given: str, held: str) -> Leavings:
    """`why`: it is held; "": it is given back."""
    return Leavings(held=(f"{held}: {why}",)) if why else Leavings((given,))


async def find_held_nodes(api: kube.Api) -> list[str]:
    """A sentence for each node that we hold, for who only asks."""
    marks = {
        names.EMPTYING: "is being emptied", names.MOVE: _MOVES, names.PLACE_HELD: _MOVES,
        names.SCALE_DOWN: "is let go", names.SPOT_RECORD: "is taken back",
    }
    found = list[str]()
    for node in await _list_nodes(api):
        said = node.metadata.annotations or {}
        whys = dict.fromkeys(word for mark, word in marks.items() if mark in said)
        found += [f"node {node.metadata.name} {why}" for why in (*whys, _why_cut(said.get(names.REPARTITION))) if why]
    return found


async def _list_nodes(api: kube.Api) -> list[_LeftNode]:
    """All, before the first is touched: a list that breaks off has changed nothing."""
    return await api.gather(kube.NODES, item=_LeftNode, keep=lambda node: node)


def _why_cut(text: str | None) -> str:
    """"": nothing runs there."""
    if text is None:
        return ""
    try:
        record = partition.read(text)
    except ValueError:
        return "has a record of a change of its GPUs that cannot be read: look at its cordon yourself"
    if record.is_stuck:
        return f"stays cordoned, because its GPUs did not get their old layout back ({record.reason})"
    return f"is being cut or shared anew ({record.step}): wait until that is over" if record.is_running else ""


async def _give_back(emptier: Emptier, node: _LeftNode, text: str, now: Instant) -> str:
    """Why it is not done; "": it is. Where its record cannot be read our label tells whose the cordon is: they come in
    one patch."""
    record, meta = emptying.read(text), node.metadata
    is_marked = (meta.labels or {}).get(names.CONSOLIDATION) == names.BEING_EMPTIED
    is_ours = record.cordoned_by_us if record is not None else is_marked
    there = NodeNow(
        name=meta.name, uid=meta.uid, version=meta.resource_version, is_cordoned=node.spec.unschedulable,
        record=record, is_broken=record is None, pods=(),
    )
    stop = emptying.Stop(StopReason.SwitchedOff, _BECAUSE, uncordons=is_ours)
    return await _try(emptier.carry_out(there, stop, now))


async def _keep_node(leaving: LeavingHands, node: _LeftNode, now: Instant) -> str:
    """Why it is not done; "": it is. Where no record can be read our taint tells, as above."""
    said, meta = node.metadata.annotations or {}, node.metadata
    drain, spot = scaling.read_drain(said.get(names.SCALE_DOWN)), scaling.read_spot(said.get(names.SPOT_RECORD))
    if drain is not None and drain.removing is not None:
        return "its machine was told to go, wait until it is gone"
    seen = ScaledNode(
        name=meta.name, uid=meta.uid, version=meta.resource_version, has={}, created_at=now, drain=drain, spot=spot
    )
    known = [each for each in (drain, spot) if each is not None]
    is_marked = any(each.key in TAINTS for each in node.spec.taints or ())
    ours = any(each.cordoned_by_us for each in known) if known else is_marked
    undo = UndoDrain(_BECAUSE, uncordons=ours, rests=0.0)
    return await _try(leaving.carry_out(LeavingNode(node=seen, pods=(), policy=None), undo, now, _remove_nothing))


async def _try(act: Awaitable[object]) -> str:
    """Why it is not done; "": it is."""
    try:
        await act
    except errors.ClientError as problem:
        return str(problem)
    return ""


async def _remove_nothing(_: ScaledNode) -> None:
    return None


async def clear_room(api: kube.Api, namespace: str | None) -> AsyncIterator[Leavings]:
    """Placeholders, buffers and requests: without us they would hold nodes for ever. What has changed since it was
    read is found anew the next time. `namespace`: where we lived; None: that is not known, and nothing goes, because
    elsewhere a label is only what somebody says of an object of theirs."""
    try:
        standing = await headroom.find_standing(api, namespace)
    except errors.ClientError as problem:
        yield Leavings(held=(f"whether room is kept ahead of demand is not seen: {problem}",))
        return
    for resource, meta in standing:
        if namespace is None:
            yield Leavings(held=(
                f"{resource.kind} {meta.name} in {meta.namespace} may keep room for fallow, or be somebody's own: "
                f"where the daemon lived is not known. If it was there, repeat this with -n {meta.namespace}",
            ))
            continue
        try:
            await headroom.clear(api, resource, meta)
        except errors.ClientError as problem:
            yield Leavings(held=(f"{resource.kind} {meta.name} still keeps room: {problem}",))
        else:
            yield Leavings((f"{resource.kind} {meta.name} keeps no more room",))


async def drop_finalizers(api: kube.Api) -> AsyncIterator[Leavings]:
    """Of GPUNodeConfigs: without us nobody would take them off, and none could be deleted any more."""
    try:
        pages = api.list_pages(kube.NODE_CONFIGS, item=_LeftConfig)
        ours = [each.metadata async for page in pages for each in page.items if _is_finalized(each)]
    except errors.NotFound:  # no such kind here
        return
    except errors.ClientError as problem:
        yield Leavings(held=(f"whether a GPUNodeConfig can be deleted is not seen: {problem}",))
        return
    for meta in ours:
        others = [each for each in meta.finalizers if each != names.REPARTITION]
        body = {"metadata": {"resourceVersion": meta.resource_version, "finalizers": others}}
        try:
            await api.merge_patch(kube.NODE_CONFIGS, None, meta.name, body, field_manager=names.FIELD_MANAGER)
        except errors.ClientError as problem:
            yield Leavings(held=(f"GPUNodeConfig {meta.name} cannot be deleted yet: {problem}",))
        else:
            yield Leavings((f"GPUNodeConfig {meta.name} can be deleted",))


class _LeftClaim(msgspec.Struct, rename="camel"):
    name: str
    resource_claim_template_name: str | None = None


class _ClaimSpec(msgspec.Struct, rename="camel"):
    resource_claims: tuple[_LeftClaim, ...] | None = None


class _ClaimStatus(msgspec.Struct, rename="camel"):
    resource_claim_statuses: tuple[_LeftClaim, ...] | None = None


class _ClaimPod(msgspec.Struct):
    metadata: kube.ObjectMeta
    spec: _ClaimSpec = msgspec.field(default_factory=_ClaimSpec)
    status: _ClaimStatus = msgspec.field(default_factory=_ClaimStatus)


async def drop_templates(
    api: kube.Api, find: Callable[[kube.Api], Awaitable[Sequence[ClaimTemplate]]]
) -> AsyncIterator[Leavings]:
    """Of claims, once no pod is given one any more; claims that were made stay with their pods. `find`: which are
    ours."""
    try:
        found = await find(api)
        waiting = {place: await _list_waiting(api, place) for place in {each.namespace for each in found}}
    except errors.ClientError as problem:
        yield Leavings(held=(f"whether templates of claims are left is not seen: {problem}",))
        return
    for each in found:
        if pod := waiting[each.namespace].get(each.name):
            yield Leavings(held=(f"pod {pod} in {each.namespace} has no claim yet by {each.name}: wait for it",))
            continue
        meta = kube.ObjectMeta(
            uid=each.uid, resource_version=each.resource_version, name=each.name, namespace=each.namespace
        )
        yield await _drop(api, kube.CLAIM_TEMPLATES, meta)


async def _list_waiting(api: kube.Api, namespace: str) -> dict[str, str]:
    """By the template of which its claim is still to be made: a pod."""
    pages = api.list_pages(kube.PODS, item=_ClaimPod, namespace=namespace, field_selector=_UNPLACED)
    return {
        claim.resource_claim_template_name: pod.metadata.name
        async for page in pages for pod in page.items for claim in pod.spec.resource_claims or ()
        if claim.resource_claim_template_name
        and claim.name not in {each.name for each in pod.status.resource_claim_statuses or ()}
    }


def _is_finalized(config: _LeftConfig) -> bool:
    return names.REPARTITION in config.metadata.finalizers
