"""What is given back, besides workloads, when fallow is removed: gates, nodes that were being emptied, finalizers.

In: an Api, the hands that empty and cut nodes. Out: sentences: what was given back, and what is still held and why.
Nobody is waited for: who asks again later finds less.
Invariant: each way back is the one that the records tell of, with the version that was seen. A node whose GPUs are
being cut anew is left to whoever does it, because half a change is worse than a late one.
"""

from collections.abc import AsyncIterator

import msgspec

from fallow import names
from fallow.act.budgets import gates
from fallow.act.emptying import Emptier
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.model import emptying, partition
from fallow.model.emptying import NodeNow, StopReason
from fallow.model.units import Instant

_BECAUSE = "fallow is removed"


class Leavings(msgspec.Struct, frozen=True):
    """Sentences. `held`: with any of them, who would give it back later must not be removed yet."""

    given_back: tuple[str, ...] = ()
    held: tuple[str, ...] = ()


class _LeftMeta(msgspec.Struct, rename="camel"):
    name: str
    uid: str
    resource_version: str
    annotations: dict[str, str] | None = None
    finalizers: tuple[str, ...] = ()


class _LeftSpec(msgspec.Struct):
    unschedulable: bool = False


class _LeftNode(msgspec.Struct):
    metadata: _LeftMeta
    spec: _LeftSpec = msgspec.field(default_factory=_LeftSpec)


class _LeftConfig(msgspec.Struct):
    metadata: _LeftMeta


async def lift_gates(api: kube.Api) -> Leavings:
    waiting = await gates.find(api, lambda resource: False)
    lifted = await gates.remove(api, waiting)
    stay = len(waiting) - lifted
    return Leavings(
        (f"{lifted} pods no longer wait for a budget",) if lifted else (),
        (f"{stay} pods still wait for a budget: their gate could not be taken away",) if stay else (),
    )


async def give_nodes_back(api: kube.Api, emptier: Emptier, now: Instant) -> Leavings:
    done, held = list[str](), list[str]()
    async for node in _list_nodes(api):
        name, said = node.metadata.name, node.metadata.annotations or {}
        if why := _why_cut(said.get(names.REPARTITION)):
            held.append(f"node {name} {why}")
        if names.EMPTYING in said:
            given = await _give_back(emptier, node, said[names.EMPTYING], now)
            (done if given else held).append(f"node {name} is {'' if given else 'still to be '}given back")
    return Leavings(tuple(done), tuple(held))


async def _list_nodes(api: kube.Api) -> AsyncIterator[_LeftNode]:
    async for page in api.list_pages(kube.NODES, item=_LeftNode):
        for node in page.items:
            yield node


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


async def _give_back(emptier: Emptier, node: _LeftNode, text: str, now: Instant) -> bool:
    """Is it done? A record that cannot be read tells of no cordon of ours."""
    record, meta = emptying.read(text), node.metadata
    there = NodeNow(
        name=meta.name, uid=meta.uid, version=meta.resource_version, is_cordoned=node.spec.unschedulable,
        record=record, is_broken=record is None, pods=(),
    )
    stop = emptying.Stop(StopReason.SwitchedOff, _BECAUSE, uncordons=record is not None and record.cordoned_by_us)
    try:
        await emptier.carry_out(there, stop, now)
    except errors.ClientError:
        return False
    return True


async def drop_finalizers(api: kube.Api) -> Leavings:
    """Of GPUNodeConfigs: without us nobody would take them off, and none could be deleted any more."""
    done = []
    try:
        pages = api.list_pages(kube.NODE_CONFIGS, item=_LeftConfig)
        ours = [each.metadata async for page in pages for each in page.items]
    except errors.NotFound:  # no such kind here
        return Leavings()
    for meta in ours:
        if names.REPARTITION in meta.finalizers:
            others = [each for each in meta.finalizers if each != names.REPARTITION]
            body = {"metadata": {"resourceVersion": meta.resource_version, "finalizers": others}}
            await api.merge_patch(kube.NODE_CONFIGS, None, meta.name, body, field_manager=names.FIELD_MANAGER)
            done.append(f"GPUNodeConfig {meta.name} can be deleted")
    return Leavings(tuple(done))
