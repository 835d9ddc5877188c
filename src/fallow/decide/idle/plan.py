"""The one entrance to the brain: what we think of every workload, and what we mean to do now.

In: a snapshot, the mandate, what was remembered of the last cycle, now. Out: a Plan; the noes too. `judge_again` is the second look by the
same judges; `remember` takes in what became of a plan; `candidate_rows` and `rules_in_force` tell the eyes what to look at more closely.
The order: judge (idle.py), tend the marks of people and of pauses (consent.py, pauses.py), find the step courtesy allows for the idle ones
(courtesy.py), then let freeze, confirmation, pressure and caps take steps away (draft.py, brakes.py, pressure.py).
Invariant: a notice or a pause only for an idle workload, and none when the source is in trouble or we are frozen.
"""

from collections.abc import Iterable, Mapping

import msgspec
import numpy as np

from fallow.decide.idle import arrange, brakes, courtesy, draft, judge, rules, words
from fallow.model import cluster, units
from fallow.model.decision import Alert, Detail, Finding, Findings, GpuFinding, Memory, Outcome, Pause, Plan, Status, Warn
from fallow.model.policies import idle
from fallow.model.units import Instant, Seconds

# ---- for the eyes -----------------------------------------------------------------------------------------------------------


def rules_in_force(mandate: idle.Mandate, policies: Iterable[idle.IdlePolicy]) -> tuple[idle.Rule, ...]:
    """Every rule that can come to hold: their windows are what the source must be asked for."""
    return rules.in_force(mandate, policies)


def candidate_rows(
    snapshot: cluster.Snapshot, mandate: idle.Mandate, now: Instant, memory: Memory | None = None
) -> dict[tuple[Seconds, float], arrange.Indices]:
    """Rows of workloads that look idle, by window and by what counts as activity: for these the exact idle time is worth a query."""
    sight = judge.look(arrange.arrange(snapshot, mandate, _desk(memory)), snapshot, now)
    terms, rule_of = sight.arranged.terms, sight.arranged.rule_of
    shorter, activity = np.minimum(terms.gone_idle, terms.never_used)[rule_of], terms.activity[rule_of]
    found = {}
    for window, one in sight.passes.items():
        looks_idle = (shorter == window) & (one.workloads == judge.IDLE)
        for threshold in np.unique(activity[looks_idle]).tolist() if one.layout.rows.size else ():
            wanted = looks_idle & (activity == threshold)
            found[window, threshold] = np.sort(one.layout.rows[one.layout.workloads.spread(wanted)])
    return found


def first_memory() -> Memory:
    """Of somebody who has seen nothing yet, with a desk on which the first arrangement stays."""
    return Memory(arrangement=arrange.Desk())


def _desk(memory: Memory | None) -> arrange.Desk:
    return memory.arrangement if memory is not None and isinstance(memory.arrangement, arrange.Desk) else arrange.Desk()


# ---- the plan ---------------------------------------------------------------------------------------------------------------


def make_plan(snapshot: cluster.Snapshot, mandate: idle.Mandate, memory: Memory, now: Instant) -> Plan:
    desk = _desk(memory)
    sight = judge.look(arrange.arrange(snapshot, mandate, desk), snapshot, now)
    counted = draft.count_gpus(sight)
    level = None if snapshot.evidence.trouble else (counted.idle, counted.observed)
    freeze = brakes.watch(mandate.brakes, memory, (snapshot.frozen_until, snapshot.frozen_because), level, now)
    tended = draft.tend(sight, now)
    made = draft.Draft(sight, mandate, memory, freeze, tended)
    made.consider_all()
    made.choose_pauses()
    findings = Findings({}, made.make_finding, len(snapshot.workloads))
    decisions = (*draft.new_alerts(tended.decisions(), memory), *made.decisions(findings))
    return Plan(
        now, findings, decisions, freeze.until, freeze.because, freeze.is_new, made.total(counted), judge.count_held(sight),
        made.tally_policies(), made.memory(desk),
    )


# ---- after the plan ---------------------------------------------------------------------------------------------------------


def remember(plan: Plan, outcomes: Iterable[Outcome], mandate: idle.Mandate, now: Instant) -> Memory:
    """The plan's memory, and what became of it: what was told, what a dry run would have done, what an API server will not take."""
    memory = plan.memory
    episodes = {uid: episode for uid, episode in memory.told if ":" not in episode}  # one per workload: the one it is in
    told = {each for each in memory.told if ":" in each[1]}
    pending, paused, refused = dict(memory.would_be_pending), dict(memory.would_be_paused), dict(memory.refused)
    for outcome in outcomes:
        match outcome:
            case Outcome(decision=Alert(workload=cluster.Workload(ref=ref), episode=episode), status=Status.done | Status.dry_run):
                if ":" in episode:
                    told.add((ref.uid, episode))
                else:
                    episodes[ref.uid] = episode
            case Outcome(decision=Warn() as warn, status=Status.dry_run):
                pending[warn.finding.workload.ref.uid] = (warn.idle_since, plan.at)
            case Outcome(decision=Pause() as pause, status=Status.dry_run):
                paused[pause.finding.workload.ref.uid] = plan.at
            case Outcome(decision=Pause() as pause, code=Detail.UnsupportedField, because=because):
                refused[pause.finding.workload.ref.uid] = because
    return msgspec.structs.replace(
        memory, told=frozenset({*told, *episodes.items()}), would_be_pending=pending, would_be_paused=paused, refused=refused,
    )


def judge_again(
    fresh: cluster.Snapshot, meant: Mapping[int, Pause], mandate: idle.Mandate, now: Instant
) -> dict[int, tuple[Finding | None, str]]:
    """The second look, just before pauses: the same judges on what is true now, by workload. (None, why) = it must not be paused."""
    sight = judge.look(arrange.arrange(fresh, mandate, arrange.Desk()), fresh, now)
    return {index: _judge_again(sight, index, pause, mandate) for index, pause in meant.items()}


def _judge_again(sight: judge.Sight, index: int, pause: Pause, mandate: idle.Mandate) -> tuple[Finding | None, str]:
    fresh, now = sight.snapshot, sight.now
    if fresh.workloads[index].ref.uid != pause.finding.workload.ref.uid:
        return None, "another object of the same name has taken its place"
    if fresh.frozen_until is not None and now < fresh.frozen_until:
        return None, f"frozen until {units.rfc3339(fresh.frozen_until)}: {fresh.frozen_because}"
    if draft.pod_uids(fresh, index) != pause.pods:
        return None, "its pods are not the ones it was judged by"
    if sight.code[index] != judge.IDLE:
        return None, words.explain(sight, index)
    _carry_over(sight, index, pause)
    pending = (pause.told_at, pause.told_at) if pause.told_at is not None and not mandate.acting else None
    standing = courtesy.consider(draft.make_case(sight, mandate, index, (pending, None, None)), now)
    if not standing.pauses or standing.warns:
        return None, standing.because or "its owner has not been told yet"
    return draft.describe(sight, index, standing), ""


def _carry_over(sight: judge.Sight, index: int, pause: Pause) -> None:
    """The second look measures the window only. Where that reaches back to the plan, what the plan knew of the time before still holds."""
    since, decided = pause.finding.idle_since, pause.finding.next_at
    if sight.at_least[index] and since is not None and decided is not None and sight.now - sight.window[index] <= decided:
        sight.idle_since[index] = min(since, sight.idle_since[index])
        sight.at_least[index] = pause.finding.at_least
        sight.never_used[index] = pause.finding.never_used


def explain(snapshot: cluster.Snapshot, plan: Plan, index: int, mandate: idle.Mandate) -> tuple[Finding, list[GpuFinding]]:
    """The finding and its evidence, GPU by GPU."""
    sight = judge.look(arrange.arrange(snapshot, mandate, _desk(plan.memory)), snapshot, plan.at)
    return plan.findings[index], words.describe_gpus(sight, index)
