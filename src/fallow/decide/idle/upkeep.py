"""Marks that must be put in order, whatever the verdict: those of pauses, resumes, acks and notices.

In: a Sight. Out: an Upkeep: what is to be done about marks, by workload, and what stands paused.
Invariant: one write per object and cycle: a workload whose marks are put in order takes its next step in the next
cycle. What the flags leave out is not ours: nothing is put in order there.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from fallow import names
from fallow.decide.idle import arrange, consent, fairness, judge, pauses, rules
from fallow.model import cluster, kinds, marks
from fallow.model.decision import Alert, Alerted, Decision, Mark, Memory, Resume, Undo
from fallow.model.units import Instant

# Of one cycle, at 20 requests a second: what is left over comes in the next ones, and pauses still have their time.
MOST_RESUMES: Final = 300
MOST_MARKS: Final = 200
MOST_ALERTS: Final = 100


class Upkeep(msgspec.Struct, frozen=True):
    by_workload: Mapping[int, list[Decision]]
    paused: Mapping[int, Instant | None]  # since when, if it was us
    odd: Mapping[int, str]  # those whose marks could not be considered, and what went wrong

    def decisions(self, memory: Memory, now: Instant) -> Iterable[Decision]:
        """Resumes first: somebody waits, or something stands as nobody asked for. No Alert is given twice, and what
        fails is tried less and less often: tenants can write what cannot be resumed, by the thousand."""
        vain, every = memory.vain, [each for found in self.by_workload.values() for each in found]
        backs = [each for each in every if isinstance(each, Resume | Undo) and not fairness.waits(vain, each, now)]
        marked = [each for each in every if isinstance(each, Mark)]
        alerts = [each for each in every if isinstance(each, Alert) and not _was_given(each, memory.alerted)]
        return (
            *fairness.choose_acts(backs, MOST_RESUMES, vain), *fairness.choose_acts(marked, MOST_MARKS, vain),
            *fairness.choose_acts(alerts, MOST_ALERTS, vain),
        )

    @property
    def written(self) -> frozenset[int]:
        """Workloads whose marks this cycle changes."""
        found = self.by_workload.items()
        return frozenset(index for index, each in found if not all(isinstance(one, Alert) for one in each))


def _was_given(each: Alert, given: frozenset[Alerted]) -> bool:
    return each.workload is not None and Alerted(each.workload.ref.uid, each.episode) in given


def tend(sight: judge.Sight) -> Upkeep:
    workloads = sight.snapshot.workloads
    # Of the unseen ones the fields were not read: a pause that stands would look undone.
    marked = [index for index in sight.arranged.marked if workloads[index].trouble not in cluster.OWNER_UNSEEN]
    found, paused, odd = dict[int, list[Decision]](), dict[int, Instant | None](), dict[int, str]()
    for index in marked:
        with arrange.SetAside(odd, index):
            if decisions := [] if _is_outside(sight, index) else _tend_one(sight, index, workloads[index]):
                found[index] = decisions
            if kinds.stands_paused(workloads[index]):
                paused[index] = marks.paused_at(workloads[index])
    return Upkeep({index: decisions for index, decisions in found.items() if index not in odd}, paused, odd)


def _is_outside(sight: judge.Sight, index: int) -> bool:
    subject, rule = sight.arranged.subject(index), sight.arranged.ruling(index).rule
    return rules.is_outside(subject, kinds.of(subject.workload), rule, sight.mandate.scope)


def _tend_one(sight: judge.Sight, index: int, workload: cluster.Workload) -> list[Decision]:
    rule, pods = sight.arranged.ruling(index).rule, tuple(sight.snapshot.pods[pod] for pod in workload.pods)
    found = pauses.tend(workload, pods, rule, sight.now) or consent.tend_acks(workload, rule.consent, sight.now)
    writes = any(not isinstance(one, Alert) for one in found)
    if not writes and sight.code[index] == judge.BUSY and marks.has_notice(workload):
        found = [*found, withdraw(workload, "it is active again")]
    if kinds.is_markable(workload):
        return found
    return [each for each in found if not isinstance(each, Mark)]  # they would restart its pods


def withdraw(workload: cluster.Workload, because: str) -> Mark:
    """Without a precondition: taking a notice back can only do less."""
    return Mark(workload, workload.marks_ref, None, consent.drop(workload.marks, names.PENDING_KEYS), None, because)
