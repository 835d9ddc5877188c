"""Does sharing hurt somebody? Who is watched, what counts as hurt, how long whole GPUs follow, when a policy stops.

In: workloads with their pods, policies, what was measured of each owner that shares (HurtSeen). Out: SharedOwners,
a Hurt or None, the Mark that gives whole GPUs back, and whether a policy hurt too many.
Invariant: what is not known hurts nobody. A mark that cannot be read counts as the longest: whole GPUs harm no one.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from fallow import names
from fallow.model import cluster, decision, units
from fallow.model.policies import sharing_crd
from fallow.model.policies.sharing import HurtGuard, SharingPolicy
from fallow.model.share_hurts import (
    EVALUATIONS,
    WATCHED,
    Hurt,
    HurtReason,
    HurtSeen,
    PolicyReverts,
    RevertsKept,
    SharedOwner,
    ShareRevert,
)
from fallow.model.units import DAY, HOUR, Instant, Seconds

_BACK_OFFS: Final[tuple[Seconds, ...]] = (24 * HOUR, 72 * HOUR, 30 * DAY)
_FULL: Final = 0.95
_TOO_MANY: Final = 0.2  # of a policy's owners within a day


# ---- who is watched --------------------------------------------------------------------------------------------------


def find_watched(
    workloads: Iterable[cluster.Workload], pods: Sequence[cluster.Pod], policies: Sequence[SharingPolicy], now: Instant
) -> tuple[SharedOwner, ...]:
    """Owners whose first shared pod is less than a day old, and that are not in back-off."""
    by_name = {each.name: each for each in policies}
    found = (_see_owner(each, pods, by_name) for each in workloads if not is_backing_off(each.marks, now))
    return tuple(each for each in found if each is not None and 0 <= now - each.since <= WATCHED)


def _see_owner(
    of: cluster.Workload, pods: Sequence[cluster.Pod], policies: Mapping[str, SharingPolicy]
) -> SharedOwner | None:
    ended = units.read_instant(of.marks.get(names.BACKOFF_UNTIL)) or 0.0
    shared = [pod for pod in list_shared(of, pods) if pod.created_at >= ended]
    if not shared or of.ref.kind == "Pod":
        return None
    first = min(shared, key=lambda pod: pod.created_at)
    policy = policies.get(first.annotations.get(names.OPTIMIZATION_POLICY, ""))
    return SharedOwner(
        workload=of, policy=policy.name if policy is not None else "", since=first.created_at,
        strategy=first.annotations.get(names.OPTIMIZATION_STRATEGY, ""), pods=tuple(pod.name for pod in shared),
        guard=policy.guard if policy is not None else HurtGuard(), times=count_before(of.marks),
    )


def list_shared(of: cluster.Workload, pods: Sequence[cluster.Pod]) -> list[cluster.Pod]:
    """Those that have a place: a thousand that only wait, and say that they share by a policy, would otherwise pass for
    owners whom it did not hurt."""
    mine = (pods[place] for place in of.pods)
    placed = (pod for pod in mine if pod.node and not pod.has_ended)
    return [pod for pod in placed if pod.annotations.get(names.OPTIMIZED) == "true"]


def is_backing_off(marks: Mapping[str, str], now: Instant) -> bool:
    """What is no time does not end."""
    until = marks.get(names.BACKOFF_UNTIL)
    end = units.read_instant(until)
    return until is not None and (end is None or end > now)


def count_before(marks: Mapping[str, str]) -> int:
    """How often sharing hurt it so far."""
    text = marks.get(names.SHARING_REVERTS, "0")
    return int(text) if text.isdecimal() and len(text) <= 4 else len(_BACK_OFFS)


# ---- what hurts ------------------------------------------------------------------------------------------------------


def judge(seen: HurtSeen, guard: HurtGuard) -> Hurt | None:
    return _judge_restarts(seen, guard) or _judge_fault(seen) or _judge_latency(seen, guard) or _judge_share(seen)


def _judge_restarts(seen: HurtSeen, guard: HurtGuard) -> Hurt | None:
    if seen.restarts is None or seen.restarts_before != 0 or seen.restarts <= guard.max_restarts:
        return None
    return Hurt(HurtReason.Restarts, f"its pods restarted {seen.restarts} times in 30 minutes, and never in the seven "
                                     "days before they shared a GPU")


def _judge_fault(seen: HurtSeen) -> Hurt | None:
    if seen.fault is None:
        return None
    return Hurt(HurtReason.GpuFault, f"the GPU that it shares reported XID {seen.fault}")


def _judge_latency(seen: HurtSeen, guard: HurtGuard) -> Hurt | None:
    known = [each for each in seen.latencies if each is not None]
    if not seen.latency_before or len(known) < EVALUATIONS:
        return None
    least, ratio = min(known), guard.max_latency_ratio
    if least <= ratio * seen.latency_before:
        return None
    return Hurt(HurtReason.Latency, f"its latency is {least / seen.latency_before:.2f} times what it was in the seven "
                                    f"days before it shared a GPU; {ratio:g} times is borne")


def _judge_share(seen: HurtSeen) -> Hurt | None:
    if seen.full is None or seen.full < _FULL:
        return None
    return Hurt(HurtReason.ShareFull, f"its share of a GPU was {seen.full * 100:.0f} % busy for 30 minutes")


# ---- what follows ----------------------------------------------------------------------------------------------------


def revert_schedule(
    owner: SharedOwner, hurt: Hurt, schedule: cluster.Ref, marks: Mapping[str, str], now: Instant
) -> decision.Mark:
    """A Job ends, and whoever comes next is its CronJob's: the back-off stands there, too, and grows by what did."""
    again = msgspec.structs.replace(owner, times=count_before(marks))
    return msgspec.structs.replace(revert(again, hurt, now), on=schedule, event=None)


def revert(owner: SharedOwner, hurt: Hurt, now: Instant) -> decision.Mark:
    """Whole GPUs for its next pods: a day, three days, thirty days."""
    until = units.rfc3339(now + _BACK_OFFS[min(owner.times, len(_BACK_OFFS) - 1)])
    changes: dict[str, str | None] = {
        names.BACKOFF_UNTIL: until, names.SHARING_REVERTS: str(owner.times + 1),
        names.REVERTED_POLICY: owner.policy or None, names.REVERTED_BECAUSE: hurt.because,
    }
    because = f"Sharing hurt it: {hurt.because}. Its next pods have whole GPUs until {until}."
    workload = owner.workload  # by no version: the status of one that crashes changes every few seconds
    return decision.Mark(workload, workload.marks_ref, None, changes, names.Event.SHARING_REVERTED, because)


def count_reverts(
    policy: SharingPolicy, workloads: Iterable[cluster.Workload], pods: Sequence[cluster.Pod],
    reverts: RevertsKept, now: Instant,
) -> PolicyReverts:
    """`reverts`: as the policy's own status has them: what tenants can edit is no brake. Of those that are only counted
    nobody knows whether they still share: then they pass for some of those who do, and the brake holds the sooner."""
    kept = keep_reverts(reverts, now)
    hurt = {each.owner for each in kept.recent}
    sharing, backing_off = set[str](), 0
    for each in workloads:
        backing_off += each.marks.get(names.REVERTED_POLICY) == policy.name and is_backing_off(each.marks, now)
        if any(pod.annotations.get(names.OPTIMIZATION_POLICY) == policy.name for pod in list_shared(each, pods)):
            sharing.add(each.ref.uid)
    return PolicyReverts(reverted=backing_off, owners=max(len(sharing | hurt), len(kept)), recent=len(kept))


def keep_reverts(before: RevertsKept, now: Instant, *more: ShareRevert) -> RevertsKept:
    """Those of a day, of each owner the last; of whom there is no room for are counted by the hour."""
    known = sorted((*before.recent, *more), key=lambda each: each.at)
    last = {each.owner: each for each in known if now - each.at < DAY}
    named = sorted(last.values(), key=lambda each: each.at)
    counted = {hour: many for hour, many in before.earlier if now - hour < DAY + HOUR}
    for each in named[: -sharing_crd.MOST_REVERTS]:
        hour = each.at // HOUR * HOUR
        counted[hour] = counted.get(hour, 0) + 1
    return RevertsKept(tuple(named[-sharing_crd.MOST_REVERTS :]), tuple(sorted(counted.items())))


def hurts_too_many(counts: PolicyReverts) -> bool:
    return counts.recent > _TOO_MANY * counts.owners
