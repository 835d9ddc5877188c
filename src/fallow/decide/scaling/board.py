"""What all policies of a cycle stand on: nodes and pods, who fits where, what is on its way, what a new node would be.

Out: what may be opened for a policy, and which of its nodes count.
"""

from collections.abc import Mapping

import msgspec

from fallow.decide.scaling import remembered, spot, tiers
from fallow.decide.scaling.arrivals import ComingNodes
from fallow.decide.scaling.demand import DemandFound, FitPlace
from fallow.decide.scaling.drivers import PolicyGround
from fallow.decide.scaling.fit import Bools
from fallow.decide.scaling.kept import KeptSight
from fallow.decide.scaling.pack import Opening
from fallow.decide.scaling.templates import NodeTemplate
from fallow.decide.scaling.tiers import Purse, ScalingTerms
from fallow.model import seen
from fallow.model.cost import CapacityType
from fallow.model.scaling import ScaledNode, ScaledPod, ScalingMemory, ScalingSight
from fallow.model.seen import Known
from fallow.model.units import Instant


class ScalingBoard(msgspec.Struct, kw_only=True):
    """What all policies of one cycle share."""

    sight: ScalingSight
    memory: ScalingMemory
    now: Instant
    terms: ScalingTerms
    kept: KeptSight
    nodes: tuple[ScaledNode, ...]
    usable: Bools
    grounds: tuple[PolicyGround, ...]
    arrived: Mapping[str, ComingNodes]
    templates: Mapping[str, Mapping[str, NodeTemplate]]
    found: DemandFound
    places: list[FitPlace]  # as they are once everybody who waits has one
    stuck: Mapping[str, str]  # nodes that are being drained, and why nobody may be sent away from there now
    leaving: Mapping[str, list[ScaledPod]]  # by policy: pods of nodes that their cloud takes back, without a place


def find_counted(ground: PolicyGround, now: Instant) -> list[ScaledNode]:
    """Nodes whose use is asked for: those that stay."""
    return [node for node in ground.nodes
            if not node.is_going and node.drain is None and not spot.is_taken_back(node, now)]


def find_mixed(ground: PolicyGround) -> dict[str, float]:
    """By pool whose group has machines of both kinds: the share of spot, as people say it."""
    found = ((pool, remembered.find_group(ground.groups, pool)) for pool in ground.policy.pools)
    return {pool.name: pool.spot_share for pool, group in found if group is not None and group.mixes}


def open_up(board: ScalingBoard, ground: PolicyGround) -> Opening:
    policy = ground.policy
    made, arrived = board.templates[policy.name], board.arrived[policy.name]
    rooms = {}
    for pool in policy.pools:
        group = remembered.find_group(ground.groups, pool)
        rooms[pool.name] = pool.most if group is None else min(pool.most, group.most)
    on_spot = {
        pod.id.uid: node.name for node in ground.nodes if node.tier is CapacityType.spot
        for pod in board.kept.guests(node.name).gpu
    } if isinstance(board.sight.limits, Known) else {}
    return Opening(
        policy=policy, templates=made, rooms=rooms, purse=Purse(seen.sure(board.sight.limits), on_spot),
        terms=board.terms, shut=tiers.find_shut(policy, made, arrived.stockouts, board.now), tiers=policy.tiers,
        mixed=frozenset(find_mixed(ground)), currency=board.sight.currency,
    )
