"""The one entrance to the brain of this concern: what we think of every workload, and what we mean to do now.

In: a snapshot, the mandate, what was remembered of the last cycle, now. Out: a Plan; the noes too. `judge_again` is
the second look by the same judges; `remember` takes in what became of a plan; `rules_in_force` and `candidate_rows`
tell the eyes what to look at more closely; `find_exemption`, `find_consent` and the acks are for who acts by hand.
The order: judge (judge.py), put marks in order (upkeep.py), find the step courtesy allows the idle ones and what
freeze and confirmation leave of it (standings.py), choose who is paused now (choice.py), count (counts.py).
Invariant: a notice or a pause only for an idle workload, and none when the source is in trouble or we are frozen.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec
import numpy as np

from fallow import names
from fallow.decide.idle import (
    arrange,
    brakes,
    choice,
    consent,
    counts,
    courtesy,
    fairness,
    judge,
    regrets,
    rules,
    standings,
    upkeep,
)
from fallow.decide.idle import words as sentences
from fallow.decide.idle.courtesy import Standing
from fallow.model import cluster, decision, long_memory, marks, units, usage
from fallow.model.decision import Alert, Decision, Finding, Findings, Memory, Outcome, Pause, Plan, Status, Warn
from fallow.model.long_memory import LongMemory
from fallow.model.policies import idle
from fallow.model.seen import Input, sure
from fallow.model.units import Instant, Seconds

MOST_NEWS: Final = 100  # Events, or notices, of one cycle: at 20 requests a second they must end well within it
_MOST_NAMED: Final = 5
_GIVEN: Final = (Status.done, Status.dry_run)
_NO_ATTEMPT: Final = (decision.Code.AlreadyPaused, decision.Code.NotBegun)

LIMITS: Final = judge.LIMITS  # from which a signal is activity, where the rule does not say
Cache = arrange.Cache  # may be kept from cycle to cycle; without one the plan is the same, and later


def rules_in_force(mandate: idle.Mandate, policies: rules.Policies) -> tuple[idle.Rule, ...]:
    """Every rule that can come to hold: their windows are what the source must be asked for."""
    return (*(one.rule for one in rules.in_order(mandate, policies)), mandate.rule)


def candidate_rows(
    snapshot: cluster.Snapshot, mandate: idle.Mandate, now: Instant, cache: Cache | None = None
) -> dict[tuple[Seconds, float], usage.Candidates]:
    """Rows of workloads that look idle, or would if all of their window was measured, by window and by what counts as
    activity: their idle time, and what else is known of their window, is worth a query."""
    sight = _look(snapshot, mandate, now, cache)
    terms, rule_of = sight.arranged.terms, sight.arranged.rule_of
    gone, never = terms.gone_idle[rule_of], terms.never_used[rule_of]
    shorter, longer, activity = np.minimum(gone, never), np.maximum(gone, never), terms.activity[rule_of]
    warned = _notices(sight)
    found = {}
    for window, one in sight.passes.items():
        is_thin = one.workloads == judge.CODE[decision.Reason.LowCoverage]
        looks_idle = (shorter == window) & ((one.workloads == judge.IDLE) | is_thin) | (longer == window) & is_thin
        for threshold in sorted(set(activity[looks_idle].tolist())) if one.layout.rows.size else ():
            wanted = one.layout.workloads.spread(looks_idle & (activity == threshold))
            order = np.argsort(one.layout.rows[wanted])
            rows, at = one.layout.rows[wanted][order], one.layout.workloads.spread(warned)[wanted][order]
            found[window, threshold] = usage.Candidates(rows, at)
    return found


def _notices(sight: judge.Sight) -> usage.Floats:
    """When each workload's owner was told, by its marks; nan = not."""
    warned = np.full(len(sight.arranged.uids), np.nan)
    for index in sight.arranged.noticed:
        warned[index] = marks.notice_at(sight.snapshot.workloads[index]) or np.nan
    return warned


def find_exemption(
    workload: cluster.Workload, pods: tuple[cluster.Pod, ...], namespace: Input[cluster.Namespace], now: Instant
) -> consent.Exemption | None:
    """The ack or opt-out that a pause by hand heeds, whatever the rules say."""
    subject, terms = rules.Subject(workload, pods, namespace, frozenset), idle.Consent()
    return consent.find_ack(subject, terms, now) or consent.find_opt_out(subject, terms, now)


find_given_ack, find_pod_ack = consent.find_given_ack, consent.find_pod_ack


def find_consent(
    workload: cluster.Workload, pods: tuple[cluster.Pod, ...], namespace: Input[cluster.Namespace],
    policies: rules.Policies, mandate: idle.Mandate,
) -> idle.Consent:
    """What the policy that holds for a workload lets its owner say; where none does, what the mandate lets owners."""
    subject = rules.Subject(workload, pods, namespace, frozenset)
    return rules.Rulebook(mandate, policies).find(subject).rule.consent


def _look(snapshot: cluster.Snapshot, mandate: idle.Mandate, now: Instant, cache: Cache | None = None) -> judge.Sight:
    return judge.look((cache or Cache()).arrange(snapshot, mandate), snapshot, now)


def make_plan(
    snapshot: cluster.Snapshot, mandate: idle.Mandate, memory: Memory, now: Instant, cache: Cache | None = None
) -> Plan:
    sight = _look(snapshot, mandate, now, cache)
    memory = brakes.recall(mandate.brakes, memory, snapshot.long_memory, snapshot.lease_term, now)
    gpus, tended = counts.count_gpus(sight), upkeep.tend(sight)
    long = regrets.learn(
        _count_late(sight, memory.long, tended.paused), sure(snapshot.policies), _find_paused(sight, memory.long), now
    )
    memory = msgspec.structs.replace(
        memory, long=long, vain=fairness.recall(memory.vain, now)
    )
    level = None if snapshot.evidence.trouble else gpus.level(now)
    watched = brakes.watch(mandate.brakes, memory, snapshot.freeze, level, now)
    stands = standings.find(judge.set_aside(sight, tended.odd), memory, watched.freeze, tended.written)
    sight = judge.set_aside(sight, {**tended.odd, **stands.odd})
    choosing = choice.choose(sight, memory, stands.pausable)
    final = {**stands.by_workload, **choosing.waiting}
    findings = Findings(
        functools.partial(_find, sight, final, tended.paused), functools.partial(sentences.describe_gpus, sight),
        len(snapshot.workloads),
    )
    return Plan(
        at=now, findings=findings, newly_frozen=watched.is_new, held=counts.count_held(sight),
        decisions=(
            *tended.decisions(memory, now), *_tell(sight, memory, watched, stands, findings),
            *(_pause(sight, memory, index, findings[index], final[index].warns) for index in choosing.chosen),
        ),
        freeze=watched.freeze, totals=counts.total(sight, final, tended.paused, gpus),
        policies=counts.tally_policies(sight, final, tended.paused, choosing.chosen, memory.long.weeks),
        memory=_carry_on(sight, memory, watched, stands, final), noticed=sight.arranged.noticed,
        odd={snapshot.workloads[index].ref: why for index, why in sight.odd.items()}, rows=counts.list_rows(sight),
    )


def _find(
    sight: judge.Sight, final: Mapping[int, Standing], paused: Mapping[int, Instant | None], index: int
) -> Finding:
    standing = final.get(index) or Standing()
    if index not in final and index in paused:
        since = paused[index]
        because = "it is paused" + (f" since {units.rfc3339(since)}" if since else "")
        standing = Standing(skip=decision.Reason.AlreadyPaused, because=because)
    return sentences.describe(sight, index, standing)


def _tell(
    sight: judge.Sight, memory: Memory, watched: brakes.Braking, stands: standings.Standings, findings: Findings
) -> Iterator[Decision]:
    """Notices taken back, then what is news; the rest of it comes in the next cycles."""
    workloads = sight.snapshot.workloads

    def choose(indices: list[int], act: type[Decision]) -> list[int]:
        return fairness.choose(
            indices, MOST_NEWS, lambda index: fairness.stand_back(memory.vain, act, workloads[index])
        )

    if watched.is_new and watched.freeze is not None:
        yield Alert(None, names.Event.IDLE_SHARE_JUMP, watched.freeze.because, units.rfc3339(sight.now))
    for index in choose(stands.withdrawn, decision.Mark):
        yield upkeep.withdraw(workloads[index], "the notice no longer counts")
    for index in choose(stands.announced, Alert):
        episode, because = standings.episode_of(sight, index), sentences.explain(sight, index)
        yield Alert(workloads[index], names.Event.IDLE_DETECTED, because, episode)
    for index in choose(stands.warned, Warn):
        finding, since = findings[index], float(sight.idle_since[index])
        ends = sight.now + finding.rule.notice.grace
        pauses_at = ends if finding.rule.action.type is idle.ActionType.pause else None
        channels, episode = finding.rule.notice.channels, standings.episode_of(sight, index)
        is_proven = any(channel.type == idle.ChannelType.webhook for channel in channels)
        proof = _prove(sight, findings, index) if is_proven else decision.UNPROVEN
        yield Warn(finding, episode, since, pauses_at, channels, proof)


def _prove(sight: judge.Sight, findings: Findings, index: int) -> decision.Proof:
    pods = tuple(sight.snapshot.pods[pod] for pod in findings[index].workload.pods)
    return decision.Proof(tuple(findings.evidence(index)), pods)


def _pause(sight: judge.Sight, memory: Memory, index: int, finding: Finding, warns: bool) -> Pause:
    notice_at = None
    if not sight.mandate.acting:
        notice_at = memory.would_be_pending.get(sight.arranged.uids[index], sight.now if warns else None)
    idle_for = units.humane(sight.now - float(sight.idle_since[index]))
    text = f"{sentences.count_gpus(finding.gpus)} idle for {idle_for} ({finding.rule.name})"
    return Pause(finding, text[: decision.REASON_CHARACTERS], _pod_uids(sight.snapshot, index), notice_at)


def _pod_uids(snapshot: cluster.Snapshot, index: int) -> frozenset[str]:
    pods = (snapshot.pods[pod] for pod in snapshot.workloads[index].pods)
    return frozenset(pod.uid for pod in pods if not pod.has_ended)


def _carry_on(
    sight: judge.Sight, old: Memory, watched: brakes.Braking, stands: standings.Standings, final: Mapping[int, Standing]
) -> Memory:
    """For the next cycle, without those who are gone or active; what became of this plan is added by remember()."""
    code, index_of = sight.code.tolist(), sight.arranged.index_of
    met = {each.uid for each in old.alerted}.union(old.announced, old.would_be_paused, old.would_be_pending)
    stays = {uid for uid in met if uid in index_of and code[index_of[uid]] != judge.BUSY}
    pending = {uid: at for uid, at in old.would_be_pending.items() if uid in stays}
    return Memory(
        at=sight.now, term=sight.snapshot.lease_term, long=_carry_on_long(sight, old.long, watched),
        freeze=watched.unseen, confirmed=stands.confirmed,
        announced={uid: episode for uid, episode in old.announced.items() if uid in stays},
        alerted=frozenset(each for each in old.alerted if each.uid in stays),
        would_be_paused={uid: at for uid, at in old.would_be_paused.items() if uid in stays},
        would_be_pending={uid: at for uid, at in pending.items() if not final.get(index_of[uid], Standing()).is_void},
        refused={uid: why for uid, why in old.refused.items() if uid in index_of},
        vain={tried: each for tried, each in old.vain.items() if tried.uid in index_of},
    )


def _carry_on_long(sight: judge.Sight, old: LongMemory, watched: brakes.Braking) -> LongMemory:
    seen = tuple(each.name for each in sure(sight.snapshot.policies))
    return msgspec.structs.replace(
        old, at=sight.now, levels=watched.levels, baseline_reset=watched.baseline_reset,
        policies=seen[:_MOST_NAMED] or old.policies, policies_at=sight.now if seen else old.policies_at,
        attempts=tuple(each for each in old.attempts if each.uid in sight.arranged.index_of),
    )


def _find_paused(sight: judge.Sight, long: LongMemory) -> dict[str, cluster.Workload]:
    """Those that were paused in the last hour and are still there, by uid."""
    index_of, workloads = sight.arranged.index_of, sight.snapshot.workloads
    return {past.uid: workloads[index_of[past.uid]] for past in long.pauses if past.uid in index_of}


def _count_late(sight: judge.Sight, long: LongMemory, paused: Mapping[int, Instant | None]) -> LongMemory:
    """An attempt whose answer was lost, and which stands paused by us after all, was a pause."""
    index_of, rule_of = sight.arranged.index_of, sight.arranged.ruling
    late = [each for each in long.attempts if paused.get(index_of.get(each.uid, -1)) is not None]
    pauses = (
        long_memory.PastPause(each.uid, sight.now, each.gpus, rule_of(index_of[each.uid]).rule.name) for each in late
    )
    attempts, added, weeks = tuple(each for each in long.attempts if each not in late), tuple(pauses), long.weeks
    for past in added:
        weeks = regrets.note_pause(weeks, past.rule, past.at)
    return msgspec.structs.replace(long, pauses=(*long.pauses, *added), attempts=attempts, weeks=weeks)


def expect(plan: Plan) -> LongMemory:
    """What is remembered if every pause succeeds: who writes it down before, forgets none by dying meanwhile."""
    pauses = (each for each in plan.decisions if isinstance(each, Pause))
    return remember(plan, [Outcome(each, Status.done, plan.at, "") for each in pauses]).long


def remember(plan: Plan, outcomes: Iterable[Outcome]) -> Memory:
    """The plan's memory, and what became of it: what was said, what a dry run would have done, what was refused."""
    memory, outcomes = plan.memory, tuple(outcomes)
    announced, alerted = dict(memory.announced), set(memory.alerted)
    pending, paused, refused = dict(memory.would_be_pending), dict(memory.would_be_paused), dict(memory.refused)
    for outcome in outcomes:
        match outcome:
            case Outcome(decision=Alert(workload=cluster.Workload(ref=ref)) as alert) if outcome.status in _GIVEN:
                if alert.event == names.Event.IDLE_DETECTED:  # of idleness a workload has one episode at a time
                    announced[ref.uid] = alert.episode
                else:
                    alerted.add(decision.Alerted(ref.uid, alert.episode))
            case Outcome(decision=Warn(finding=finding), status=Status.dry_run):
                pending[finding.workload.ref.uid] = plan.at
            case Outcome(decision=Pause(finding=finding), status=Status.dry_run):
                paused[finding.workload.ref.uid] = plan.at
            case Outcome(decision=Pause(finding=finding), code=decision.Detail.UnsupportedField, because=because):
                refused[finding.workload.ref.uid] = because
    return msgspec.structs.replace(
        memory, announced=announced, alerted=frozenset(alerted), would_be_pending=pending, would_be_paused=paused,
        refused=refused, vain=fairness.note(memory.vain, outcomes, plan.at),
        long=_remember_pauses(memory.long, outcomes, plan.at),
    )


def _remember_pauses(long: LongMemory, outcomes: Iterable[Outcome], now: Instant) -> LongMemory:
    """What was paused counts for an hour; what was tried in vain counts for nothing, and is tried later."""
    pauses, attempts, weeks = list(long.pauses), long.attempts, long.weeks
    for outcome in outcomes:
        if not isinstance(outcome.decision, Pause) or outcome.code in _NO_ATTEMPT:
            continue
        found, uid = outcome.decision.finding, outcome.decision.finding.workload.ref.uid
        if outcome.status in _GIVEN:
            attempts = tuple(each for each in attempts if each.uid != uid)
        else:
            waits = outcome.status is not Status.overtaken
            attempts = long_memory.note_attempt(attempts, uid, found.gpus, now, outcome.detail, waits=waits)
        if outcome.status is Status.done:
            pauses.append(long_memory.PastPause(uid, now, found.gpus, found.rule.name))
            weeks = regrets.note_pause(weeks, found.rule.name, now)
    return msgspec.structs.replace(long, pauses=tuple(pauses), attempts=attempts, weeks=weeks)


def remember_rest(memory: Memory, now: Instant) -> Memory:
    """After a cycle in which surely nothing was idle, so that none was planned."""
    levels = brakes.remember_level(memory.long.levels, long_memory.Level(0, 0, now))
    return msgspec.structs.replace(memory, long=msgspec.structs.replace(memory.long, levels=levels), confirmed={})


def judge_again(
    fresh: cluster.Snapshot, meant: Mapping[int, Pause], mandate: idle.Mandate, now: Instant
) -> dict[int, tuple[Finding | None, str]]:
    """Just before pauses: the same judges on what is true now, by workload. (None, why) = it must not be paused."""
    sight = _carry_over(_look(fresh, mandate, now), meant)
    found, odd = dict[int, tuple[Finding | None, str]](), dict[int, str]()
    for index, pause in meant.items():
        with arrange.SetAside(odd, index):
            found[index] = _judge_again(sight, index, pause)
    return found | {index: (None, f"it could not be considered: {why}") for index, why in odd.items()}


def _judge_again(sight: judge.Sight, index: int, pause: Pause) -> tuple[Finding | None, str]:
    fresh, now = sight.snapshot, sight.now
    if fresh.workloads[index].ref.uid != pause.finding.workload.ref.uid:
        return None, "another object of the same name has taken its place"
    if fresh.freeze is not None and fresh.freeze.holds(now):
        return None, str(fresh.freeze)
    if _pod_uids(fresh, index) != pause.pods:
        return None, "its pods are not the ones it was judged by"
    if sight.code[index] != judge.IDLE:
        return None, sentences.explain(sight, index)
    pretended = None if sight.mandate.acting else pause.notice_at
    grounds = msgspec.structs.replace(standings.find_times(sight, index), pretended_notice=pretended)
    standing = courtesy.consider(standings.make_case(sight, index, grounds), now)
    if not standing.pauses or standing.warns:
        return None, standing.because or "its owner has not been told yet"
    return sentences.describe(sight, index, standing), ""


def _carry_over(sight: judge.Sight, meant: Mapping[int, Pause]) -> judge.Sight:
    """The second look measures the window only. Where that reaches back to the plan, what the plan knew still holds.

    That is so when the plan's idle time is the shorter one, too: it began after a hole in what was measured.
    """
    idle_since, at_least, never_used = sight.idle_since.copy(), sight.at_least.copy(), sight.never_used.copy()
    looked_back = sight.looked_back.copy()
    for index, pause in meant.items():
        finding, since, decided = pause.finding, pause.finding.idle_since, pause.finding.next_at
        if at_least[index] and since is not None and decided is not None and sight.now - sight.window[index] <= decided:
            idle_since[index] = since
            at_least[index], never_used[index], looked_back[index] = finding.at_least, finding.never_used, True
    return msgspec.structs.replace(
        sight, idle_since=idle_since, at_least=at_least, never_used=never_used, looked_back=looked_back
    )
