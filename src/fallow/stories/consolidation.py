"""Nodes that are hardly used, emptied one at a time.

    look    nodes that are being emptied; where none is, what all nodes have and who is on them
    plan    the next step of that node, or which node to begin with
    act     that one step
    tell    what was done, in a sentence; the node's record and Events say the rest

Whatever is on a node because of us is ended first, also where emptying was switched off meanwhile. One step a turn:
what is killed between two turns goes on, or is given back, in the next.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet

import msgspec

from fallow.act.emptying import Emptier
from fallow.clients import errors
from fallow.decide import packing
from fallow.model import cluster, emptying
from fallow.model.units import HOUR, Instant, Seconds
from fallow.observe.cluster.emptied import NodeEyes, TouchedNode

log = logging.getLogger("fallow")


class ConsolidationEyes(msgspec.Struct, frozen=True):
    """`kept`: uids of pods whose workload somebody keeps by an acknowledgement. Both raise where that is not seen."""

    nodes: NodeEyes
    capacity: Callable[[], Awaitable[cluster.Capacity]]
    kept: Callable[[], AbstractSet[str]]


async def tick(
    eyes: ConsolidationEyes, hands: Emptier, now: Instant, *, is_acting: bool,
    threshold: float = packing.THRESHOLD, timeout: Seconds = packing.EVICT_TIMEOUT,
) -> tuple[packing.ConsolidationPlan | None, str]:
    """The plan, where one was made, and what was done; "": nothing."""
    touched = await eyes.nodes.find_touched()
    for each in touched:
        if each.is_emptying:
            return None, await _advance(eyes.nodes, hands, each.name, now, is_acting=is_acting, timeout=timeout)
    await _forget_old(hands, touched, now)
    seen = await eyes.capacity()
    found = packing.plan_consolidation(seen, now, kept=eyes.kept(), threshold=threshold)
    gpu_nodes = sum(machine.gpus > 0 for machine in seen.machines)
    begun = [each.began_at if each.began_at is not None else now for each in touched]
    if not is_acting or found.chosen is None or not packing.may_begin(gpu_nodes, begun, now):
        return found, ""
    there = await eyes.nodes.look(found.chosen.node, now)
    if there is None or there.is_cordoned or any(pod.fixed for pod in there.pods):
        return found, f"{found.chosen.node} is not as it was: nothing was begun"
    done = await _carry_out(hands, there, packing.begin_emptying(there, found.chosen.because, now), now)
    return found, done


async def _advance(
    eyes: NodeEyes, hands: Emptier, name: str, now: Instant, *, is_acting: bool, timeout: Seconds
) -> str:
    there = await eyes.look(name, now)
    step = packing.advance_emptying(there, now, is_on=is_acting, timeout=timeout) if there is not None else None
    if there is None or step is None:
        return ""
    return await _carry_out(hands, there, step, now)


async def _carry_out(hands: Emptier, there: emptying.NodeNow, step: emptying.EmptyingStep, now: Instant) -> str:
    try:
        done = f"{there.name}: {await hands.carry_out(there, step, now)}"
    except errors.Conflict:
        done = f"{there.name} changed meanwhile: it is looked at again"
    log.info("%s", done)
    return done


async def _forget_old(hands: Emptier, touched: Sequence[TouchedNode], now: Instant) -> None:
    for each in touched:
        if each.began_at is not None and each.began_at <= now - HOUR:
            await hands.forget(each.name)
