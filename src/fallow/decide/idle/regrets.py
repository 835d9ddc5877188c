"""Learning from pauses that were undone at once: whoever paused too soon waits longer.

In: the pauses of the last hour, as we remember them ourselves; when their workloads were resumed; the policies. Out: a
RuleWeek for each rule that paused something, with how far its window is widened.
Of a policy that asks for it: more than its threshold of at least ten pauses undone within a quarter of an hour, in
seven days and since the last change, widens its window by half, four times at most; a week of pauses of which less than
half the threshold was undone takes one step back. Without any pause nothing is learned.
Invariant: what we remember is counted, once each; a tenant's mark can only make us wait longer. The widening stands on
the Lease; where that was lost, what the policy's own status says counts, so that nobody waits less for it.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from fallow import names
from fallow.model import cluster, history, marks
from fallow.model.long_memory import LongMemory, PastPause, RegretCount, RuleWeek
from fallow.model.policies import idle
from fallow.model.units import DAY, WEEK, Instant

LEAST_PAUSES: Final = 10
STEP: Final = 1.5
MOST_RULES: Final = 32


def learn(
    long: LongMemory, policies: Iterable[idle.IdlePolicy], workload_of: Mapping[str, cluster.Workload], now: Instant
) -> LongMemory:
    """What was undone since the last cycle is counted, and what follows from it. `workload_of`: by uid."""
    weeks, pauses = {each.rule: _forget(each, now) for each in long.weeks}, list[PastPause]()
    for past in long.pauses:
        is_undone = not past.is_regretted and past.uid in workload_of and _is_undone(past, workload_of[past.uid])
        if is_undone and past.rule in weeks:
            weeks[past.rule] = _count(weeks[past.rule], past.at, regrets=1)
        pauses.append(msgspec.structs.replace(past, is_regretted=True) if is_undone else past)
    for each in policies:
        rule = each.rule
        if rule.auto_widen:
            weeks[rule.name] = _adjust(weeks.get(rule.name) or _begin(rule, now), rule, now)
        elif rule.name in weeks:
            weeks[rule.name] = msgspec.structs.replace(weeks[rule.name], widened=1.0)
    return msgspec.structs.replace(long, weeks=_keep(weeks.values()), pauses=tuple(pauses))


def note_pause(weeks: Iterable[RuleWeek], rule: str, now: Instant) -> tuple[RuleWeek, ...]:
    found = {each.rule: each for each in weeks}
    found[rule] = _count(found.get(rule, RuleWeek(rule)), now, pauses=1)
    return _keep(found.values())


def _is_undone(past: PastPause, workload: cluster.Workload) -> bool:
    resumed = marks.latest(marks.read_all(workload, names.RESUMED_AT))
    # Marks have whole seconds.
    return resumed is not None and int(past.at) <= resumed <= past.at + history.REGRET_WITHIN


def _begin(rule: idle.Rule, now: Instant) -> RuleWeek:
    """As the policy's status last said it was."""
    return _change(RuleWeek(rule.name), rule.widened, now) if rule.widened > 1 else RuleWeek(rule.name)


def _adjust(week: RuleWeek, rule: idle.Rule, now: Instant) -> RuleWeek:
    pauses, regrets = week.sum_up(week.changed_at)
    if pauses >= LEAST_PAUSES and regrets / pauses > rule.regret_threshold and week.widened < idle.MOST_WIDENED:
        return _change(week, min(idle.MOST_WIDENED, week.widened * STEP), now)
    is_calm = pauses > 0 and (not regrets or regrets / pauses < rule.regret_threshold / 2)
    if week.widened > 1 and is_calm and now - week.changed_at >= WEEK:
        return _change(week, max(1.0, week.widened / STEP), now)
    return week


def _change(week: RuleWeek, widened: float, now: Instant) -> RuleWeek:
    """What was counted before is not counted against the new window: a new count begins."""
    counts = (*week.counts, RegretCount(now))
    return RuleWeek(week.rule, round(widened, 4), now, counts)


def _count(week: RuleWeek, at: Instant, *, pauses: int = 0, regrets: int = 0) -> RuleWeek:
    """In the count of its day; a change of the window begins a new one."""
    known = [each for each in week.counts if each.at <= at]
    if not known or known[-1].at // DAY != at // DAY:
        last, before, after = RegretCount(at // DAY * DAY), known, week.counts[len(known):]
    else:
        last, before, after = known[-1], known[:-1], week.counts[len(known):]
    grown = msgspec.structs.replace(last, pauses=last.pauses + pauses, regrets=last.regrets + regrets)
    return msgspec.structs.replace(week, counts=(*before, grown, *after))


def _forget(week: RuleWeek, now: Instant) -> RuleWeek:
    """A day counts until all of it is a week ago. What lies in the future is nobody's."""
    counts = tuple(each for each in week.counts if now - WEEK - DAY < each.at <= now)
    return week if len(counts) == len(week.counts) else msgspec.structs.replace(week, counts=counts)


def _keep(weeks: Iterable[RuleWeek]) -> tuple[RuleWeek, ...]:
    """Those that are widened before the others: to forget one of them would be to wait less."""
    worth = [each for each in weeks if each.counts or each.widened > 1]
    worth.sort(key=lambda each: (-each.widened, -each.sum_up()[0], each.rule))
    return tuple(worth[:MOST_RULES])
