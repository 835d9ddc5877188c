"""What comes next for a node that leaves, whichever way: one door for drains and for notices of clouds.

In: a LeavingNode, now. Out: the steps that are due now, in order; never none: StayPut says what is waited for.
A machine that was told to go goes; then a cloud's notice has the word; then our own drain.
"""

from typing import Final

from fallow import names
from fallow.decide.scaling import drain, spot
from fallow.model.leaving import LeavingNode, LeavingStep, StayPut, UndoDrain
from fallow.model.units import Instant

_OURS: Final = (names.SCALE_DOWN, names.SPOT_INTERRUPTION)  # taints that come with our cordon, in one patch


def advance(there: LeavingNode, now: Instant) -> tuple[LeavingStep, ...]:
    node = there.node
    if node.is_going:
        return (StayPut("it is being deleted"),)
    if node.is_broken:
        is_ours = any(taint.key in _OURS for taint in node.taints)
        return (UndoDrain("its record cannot be read", uncordons=is_ours and node.is_cordoned),)
    if node.drain is not None and node.drain.removing is not None:
        return (drain.advance(there, node.drain, now),)
    if node.spot is not None:
        return spot.advance(there, node.spot, now)
    if spot.is_noticed(node, now) and there.policy is not None and there.policy.acts:
        return (spot.begin(there, now),)
    if node.drain is not None:
        return (drain.advance(there, node.drain, now),)
    return (StayPut("it does not leave"),)
