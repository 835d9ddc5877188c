"""What we say about packing, as plain data: how full GPUs got, who should decide, how a cluster stands, what to move.

In: answers of the packing brain, and one sentence on what was looked at. Out: dictionaries ready to be encoded.
None is "not known"; keys are as programs read them, in the order people do.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from fallow.decide import packing
from fallow.doors.answers import instant
from fallow.model.seen import Input, Known, Unseen
from fallow.model.share_advice import CrowdAdvice
from fallow.model.units import Instant


def replayed(
    asked: str, curve: packing.Curve, fallback: str, points: Sequence[Any], pods_per_second: float | None
) -> dict[str, Any]:
    """One policy, played through: who was asked, who decided, and how full the GPUs were at each % that arrived."""
    return {
        "policy": asked, "decidedBy": curve.policy, "fallback": fallback or None, "points": points,
        "podsPerSecond": pods_per_second, "refused": curve.refused,
        "curve": {percent: share for percent in range(131) if (share := curve.at(percent)) is not None},
    }


def rehearsal(found: packing.Rehearsal, now: Instant) -> dict[str, Any]:
    return {"policy": found.chosen, "because": found.because, "shares": found.shares, "asOf": instant(now)}


def standing(found: packing.ClusterStanding) -> dict[str, Any]:
    """How a live cluster stands, and where the pods that wait would go."""
    return {
        "gpus": found.gpus, "allocatedGpus": found.allocated_gpus, "fragmentedPercentOfFree": found.fragmented,
        "freeGpusByCause": {str(cause): round(gpus, 2) for cause, gpus in found.free_by_cause.items()},
        "boundPercent": found.bound, "boundUnknown": found.bound_unknown or None, "waiting": found.waiting,
    }


def consolidation(found: packing.ConsolidationPlan) -> dict[str, Any]:
    """Which node could be emptied and where its pods would fit; why the others stay."""
    chosen = found.chosen
    return {"consolidation": {
        "node": chosen.node if chosen else None, "because": chosen.because if chosen else None,
        "moves": [{"pod": pod, "node": node} for pod, node in chosen.moves] if chosen else [],
        "staying": Counter(str(each.reason) for each in found.staying),
        "nodes": [{"node": each.node, "reason": each.reason, "because": each.because} for each in found.staying],
    }}


def sharers(found: Input[CrowdAdvice]) -> dict[str, Any]:
    """How many of the pods that hold a whole GPU each could share one. None: nobody can tell, or nobody could."""
    advice = found.value if isinstance(found, Known) else CrowdAdvice()
    return {"sharing": {
        "replicas": advice.replicas, "mpsClients": advice.clients, "largestNeedMib": advice.largest_need,
        "could": advice.could, "alone": advice.alone, "unknown": advice.unknown,
        "notKnown": found.why if isinstance(found, Unseen) else None,
    }}


def moves(found: packing.MovePlan, budget: int) -> dict[str, Any]:
    nodes = found.room.nodes
    before, after = (
        round(100 * milli / nodes.capacity, 2) if nodes.capacity else None
        for milli in (found.room.allocated - found.gain, found.room.allocated)
    )
    return {
        "budget": budget, "allocatedBefore": before, "allocatedAfter": after,
        "moves": [_move(nodes, move) for move in found.moves],
        "direct": [{"pod": pod.name, "node": nodes.names[placement.node]} for pod, placement in found.direct],
        "left": Counter(_why_left(pod) for pod in found.left),
    }


def _move(nodes: packing.Nodes, move: packing.Move) -> dict[str, Any]:
    source, target, home = (nodes.names[each.node] for each in (move.source, move.target, move.placement))
    return {
        "pod": move.moved.name, "from": source, "to": target, "waiting": move.pod.name, "placedOn": home,
        "gainGpus": move.gain / packing.GPU,
    }


def _why_left(pod: packing.PackingPod) -> str:
    if pod.gpus == 1:
        return "no single move helps them, or the budget is used up"
    return "they want several GPUs" if pod.gpus else "they want no GPU"
