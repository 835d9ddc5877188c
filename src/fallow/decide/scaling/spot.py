"""A node whose cloud takes it back: who must leave when, so that everybody has time to end well.

    BeginSpot -> (a replacement is started) -> EvictNow low, medium, high -> DeleteNow where a budget refused too long

In: a LeavingNode with a notice or its record; now. Out: the steps that are due, in order. Without a deadline (a
recommendation) it is a normal drain, and budgets bind.
Invariant: nobody is given no time at all; no pod is asked to leave later than its own grace before the end. A notice
that does not come true, or cannot, is undone.
"""

from typing import Final

from fallow.decide.scaling import drain
from fallow.model import units
from fallow.model.leaving import (
    BeginSpot,
    DeleteNow,
    EvictNow,
    LeavingNode,
    LeavingStep,
    RemoveMachine,
    StayPut,
    UndoDrain,
)
from fallow.model.policies.scaling import NodeDriver
from fallow.model.scaling import DrainKind, DrainRecord, EvictionRank, ScaledNode, ScaledPod, SpotRecord
from fallow.model.units import HOUR, MINUTE, Instant, Seconds

SLOTS: Final = {EvictionRank.low: 0.0, EvictionRank.medium: 10.0, EvictionRank.high: 20.0}
SHORT_LEAD: Final[Seconds] = 45.0  # no time for slots
MARGIN: Final[Seconds] = 5.0
FALSE_ALARM: Final[Seconds] = 10 * MINUTE  # Ready so long after its end
LONGEST_LEAD: Final[Seconds] = HOUR  # clouds tell minutes before: an end later than that is a mistake, or made up
_FALSE: Final = "its machine is still there 10 min after its end: a false alarm"


def is_noticed(node: ScaledNode, now: Instant) -> bool:
    """A notice that has not been begun with, is not long over and can be true. Advice is for who may be let go."""
    if node.ends_at is not None:
        return now < node.ends_at + FALSE_ALARM and _is_near(node.ends_at, now)
    is_resting = node.rests_until is not None and now < node.rests_until
    return node.warned_at is not None and not is_resting and not node.kept


def _is_near(ends_at: Instant, now: Instant) -> bool:
    return ends_at <= now + LONGEST_LEAD


def is_taken_back(node: ScaledNode, now: Instant) -> bool:
    if node.spot is None and node.warned_at is None and node.ends_at is None:  # of thousands in a cycle
        return False
    return node.spot is not None or is_noticed(node, now)


def begin(there: LeavingNode, now: Instant) -> BeginSpot:
    """Also where a recommendation becomes a notice, or its end moves."""
    node, before = there.node, there.node.spot
    ours = before or node.drain
    return BeginSpot(SpotRecord(
        v=1, policy=there.policy.name if there.policy else "", since=before.since if before else now,
        ends_at=node.ends_at, cordoned_by_us=ours.cordoned_by_us if ours else not node.is_cordoned,
    ))


def advance(there: LeavingNode, record: SpotRecord, now: Instant) -> tuple[LeavingStep, ...]:
    node, acts = there.node, there.policy is not None and there.policy.acts
    if acts and node.ends_at is not None and node.ends_at != record.ends_at and _is_near(node.ends_at, now):
        return (begin(there, now),)
    if record.ends_at is not None and not _is_near(record.ends_at, now):
        return (_undo(record, f"no cloud tells so long before: {units.rfc3339(record.ends_at)}"),)
    if not acts:
        return (_wait_without(record, node, now),)
    if record.ends_at is None:
        return (_follow_advice(there, record, now),)
    if _is_false(record.ends_at, node, now):
        return (_undo(record, _FALSE),)
    return _clear(there, record, record.ends_at, now)


def _wait_without(record: SpotRecord, node: ScaledNode, now: Instant) -> LeavingStep:
    """Nobody may act for it any more; what was an alarm is still taken back."""
    if _is_false(record.since if record.ends_at is None else record.ends_at, node, now):
        return _undo(record, _FALSE)
    return StayPut(f"policy {record.policy} is gone or acts no longer")


def _is_false(ends_at: Instant, node: ScaledNode, now: Instant) -> bool:
    return node.is_ready and now > ends_at + FALSE_ALARM


def _undo(record: SpotRecord, because: str) -> UndoDrain:
    return UndoDrain(because, uncordons=record.cordoned_by_us)


def _follow_advice(there: LeavingNode, record: SpotRecord, now: Instant) -> LeavingStep:
    assert there.policy is not None
    patience = there.policy.drain_patience
    if there.node.kept:
        return _undo(record, f"somebody wants it to stay: {there.node.kept}")
    left = [pod for pod in there.pods if not pod.stays]
    if not left and there.driver is NodeDriver.direct and not there.unlisted:
        return RemoveMachine(DrainRecord(
            v=1, policy=record.policy, since=record.since, reason=DrainKind.empty,
            because="its cloud may take it back, and it is empty", cordoned_by_us=record.cordoned_by_us, removing=now,
            asked=now,
        ))
    if abs(now - record.since) > patience:  # a clock that was set back counts, too
        return _undo(record, f"its cloud only may take it back, and did not within {units.spoken(patience)}")
    if not left:
        return StayPut(there.unlisted or f"it is empty, for {there.driver} to take away")
    if there.blocked:
        return _undo(record, there.blocked)
    if fixed := next((pod for pod in left if (pod.fixed or pod.unclear) and not pod.is_going), None):
        return _undo(record, f"{fixed.id.namespace}/{fixed.id.name} must stay: {fixed.fixed or fixed.unclear}")
    return drain.evict_next(there, now)


def _clear(there: LeavingNode, record: SpotRecord, ends_at: Instant, now: Instant) -> tuple[LeavingStep, ...]:
    left = [pod for pod in there.pods if not pod.stays and not pod.is_going]
    due = [pod for pod in left if now >= find_moment(pod, record.since, ends_at)]
    steps: list[LeavingStep] = []
    for pod in sorted(due, key=drain.rank):
        step = _send_off(there, pod, ends_at, now)
        if step is not None:
            steps.append(step)
    if steps:
        return tuple(steps)
    waits = f"{units.many(len(left), 'pod')} leave later" if left else "everybody has left, or is leaving"
    return (StayPut(f"it ends at {units.rfc3339(ends_at)}; {waits}"),)


def find_moment(pod: ScaledPod, since: Instant, ends_at: Instant) -> Instant:
    """When it is asked to leave: by its rank, but in time for its own grace."""
    if ends_at - since <= SHORT_LEAD:
        return since
    return min(since + SLOTS[pod.rank], _find_latest(pod, ends_at))


def _find_latest(pod: ScaledPod, ends_at: Instant) -> Instant:
    return ends_at - pod.grace - MARGIN


def _send_off(there: LeavingNode, pod: ScaledPod, ends_at: Instant, now: Instant) -> LeavingStep | None:
    """None: it was refused a moment ago, and there is time to ask again."""
    grace = max(1.0, min(pod.grace, ends_at - now - MARGIN))
    if pod.id.uid in there.refused:
        if now >= _find_latest(pod, ends_at):
            return DeleteNow(pod.id, grace)
        if there.refused_at is not None and 0 <= now - there.refused_at < MARGIN:
            return None
    return EvictNow(pod.id, grace)
