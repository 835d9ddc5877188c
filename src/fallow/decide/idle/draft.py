"""A plan in the making: from what was seen to who takes which step, and the sentence for everyone who does not.

In: a Sight, the mandate, what was remembered, the freeze. Out: standings of the idle workloads, decisions in their order, numbers, memory.
Courtesy says which step each idle workload could take; freeze, confirmation, pressure and caps can only take steps away.
Invariant: one write per object and cycle: a workload whose marks are put in order takes its next step in the next cycle.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from fallow import names
from fallow.decide.idle import arrange, brakes, consent, courtesy, judge, pauses, pressure, words
from fallow.model import cluster, decision, kinds, units
from fallow.model.decision import Alert, Decision, Finding, Findings, Mark, Memory, Pause, Reason, Warn
from fallow.model.policies import idle
from fallow.model.units import Instant

MOST_TOLD: Final = 100  # Events, or notices, of one cycle: at 20 requests a second they must end well within it
_REASON_TEXT: Final = 200  # characters, the longest paused-reason
_STATES: Final = ("active", "idle", "unknown")
_UNSEEN: Final = frozenset({cluster.Trouble.OwnerLookupFailed, cluster.Trouble.OwnerMissing, cluster.Trouble.OwnerForbidden})
_PLAIN: Final = (None,) * 5  # nothing but its objects decides


class Counted(msgspec.Struct):
    active: int
    idle: int
    unknown: int
    observed: int
    by_model: dict[tuple[str, str], int]


def count_gpus(sight: judge.Sight) -> Counted:
    """GPUs by state and model: the measured ones over the window of their workload; what was asked for and not measured is unknown."""
    arranged, pods = sight.arranged, sight.arranged.pods
    models = len(arranged.models)
    counts = np.zeros(len(_STATES) * models, np.int64)
    seen = np.zeros(len(pods.counts), np.int64)
    for window, one in sight.passes.items():
        rows = one.layout.rows[one.layout.workloads.spread(sight.window == window)] if one.layout.rows.size else one.layout.rows
        state = np.where(one.rows[rows] == judge.BUSY, 0, np.where(one.rows[rows] == judge.IDLE, 1, 2))
        counts += np.bincount(state * models + one.layout.model[rows], minlength=len(counts))
        seen += np.bincount(one.use.pod[rows], minlength=len(seen))
    observed = int(counts.sum())
    missing = np.maximum(np.where(pods.counts, pods.gpus, 0) - seen, 0)
    counts[2 * models:] += np.bincount(pods.model, weights=missing, minlength=models).astype(np.int64)
    by_state = counts.reshape(len(_STATES), models)
    by_model = {
        (state, model): int(by_state[row, column])
        for row, state in enumerate(_STATES) for column, model in enumerate(arranged.models) if by_state[row, column]
    }
    active, quiet, unknown = (int(row.sum()) for row in by_state)
    return Counted(active, quiet, unknown, observed, by_model)


# ---- marks that must be put in order, whatever the verdict ------------------------------------------------------------------


class Tended(msgspec.Struct):
    """Decisions about marks, by workload; and what stands paused."""

    by_workload: dict[int, list[Decision]]
    paused: dict[int, Instant | None]  # since when, if it was us

    def decisions(self) -> Iterable[Decision]:
        """Resumes first: somebody waits."""
        every = [each for found in self.by_workload.values() for each in found]
        return sorted(every, key=lambda each: not isinstance(each, decision.Resume))

    def find_written(self) -> frozenset[int]:
        """Workloads whose marks this cycle changes."""
        return frozenset(index for index, found in self.by_workload.items() if any(not isinstance(each, Alert) for each in found))


def tend(sight: judge.Sight, now: Instant) -> Tended:
    tended = Tended({}, {})
    for index in sight.arranged.marked:
        workload, rule = sight.snapshot.workloads[index], sight.arranged.ruling(index).rule
        if workload.trouble in _UNSEEN:  # its fields were not read: a pause that stands would look undone
            continue
        kind = kinds.of(workload)
        if kind is not None and kinds.is_paused(kind, workload):
            tended.paused[index] = pauses.paused_at(workload)
        pods = tuple(sight.snapshot.pods[pod] for pod in workload.pods)
        found = pauses.tend(workload, pods, rule, now) or consent.tend_acks(workload, rule.consent, now)
        if not found and sight.code[index] == judge.BUSY and courtesy.has_notice_marks(workload):
            found = [_withdraw(workload, "it is active again")]
        if found:
            tended.by_workload[index] = found
    return tended


def _withdraw(workload: cluster.Workload, because: str) -> Mark:
    """Without a precondition: taking a notice back can only do less."""
    return Mark(workload, workload.marks_ref, None, consent.drop(workload.marks, names.PENDING_KEYS), None, because)


def new_alerts(decisions: Iterable[Decision], memory: Memory) -> list[Decision]:
    """Without the Alerts that were given before."""
    return [each for each in decisions if not isinstance(each, Alert) or not each.workload
            or (each.workload.ref.uid, each.episode) not in memory.told]


# ---- the idle ones ----------------------------------------------------------------------------------------------------------


class Draft:
    """A plan in the making: the standing of every idle workload, and who takes which step."""

    def __init__(
        self, sight: judge.Sight, mandate: idle.Mandate, memory: Memory, freeze: brakes.Freeze, tended: Tended
    ) -> None:
        self._sight, self._arranged, self._snapshot, self._now = sight, sight.arranged, sight.snapshot, sight.now
        self._mandate, self._memory, self._freeze, self._tended = mandate, memory, freeze, tended
        self._idle: list[int] = np.flatnonzero(sight.code == judge.IDLE).tolist()
        self._special, self._written = self._find_special(), tended.find_written()
        self._standings: dict[int, courtesy.Standing] = {}
        self._confirmed: dict[str, int] = {}
        self._withdrawn: list[int] = []
        self._announced: list[int] = []
        self._warned: list[int] = []
        self._pausable: list[int] = []
        self._chosen: list[int] = []

    def consider_all(self) -> None:
        """Courtesy's answer for each, then what the whole cluster takes away again."""
        told = {uid: episode for uid, episode in self._memory.told if ":" not in episode}
        needed, before, uids = self._mandate.brakes.confirm_cycles, self._memory.confirmed, self._arranged.uids
        idle_uids = [uids[index] for index in self._idle]
        counts = [before.get(uid, 0) + 1 for uid in idle_uids]
        self._confirmed = dict(zip(idle_uids, counts, strict=True))
        standings, is_frozen = self._standings, self._freeze.until is not None
        for index, uid, count in zip(self._idle, idle_uids, counts, strict=True):
            standing = final = self._consider(index, uid)
            if (standing.warns or standing.pauses) and (is_frozen or count < needed or index in self._written):
                final = self._hold_back(standing, count, needed)
            standings[index] = final
            if final.warns:
                self._warned.append(index)
            if final.pauses:
                self._pausable.append(index)
            elif standing.is_void and not final.warns:  # a notice or a pause rewrites the marks itself
                self._withdraw(index)
            if count >= needed and not is_frozen and standing.is_announced and not self._was_told(index, told.get(uid)):
                self._announced.append(index)

    def _consider(self, index: int, uid: str) -> courtesy.Standing:
        """From the memo while neither its inputs nor the clock can have changed the answer."""
        inputs = self._inputs(index, uid) if index in self._special else _PLAIN
        known: tuple[Any, Instant, courtesy.Standing] | None = self._arranged.memo.get(index)
        if known is not None and known[1] <= self._now < known[2].until and known[0] == inputs:
            return known[2]
        standing = courtesy.consider(make_case(self._sight, self._mandate, index, inputs[2:]), self._now)
        self._arranged.memo[index] = (inputs, self._now, standing)
        return standing

    def _find_special(self) -> set[int]:
        """Those whose standing rests on more than the objects: on how long they are idle, or on what was remembered."""
        memory = self._memory
        remembered = [memory.refused] if self._mandate.acting else [memory.refused, memory.would_be_pending, memory.would_be_paused]
        places = self._arranged.places
        return {places[uid] for each in remembered for uid in each if uid in places} | self._arranged.noticed

    def _inputs(self, index: int, uid: str) -> tuple[Any, ...]:
        memory, sight = self._memory, self._sight
        pending, paused = (None, None) if self._mandate.acting else (memory.would_be_pending.get(uid), memory.would_be_paused.get(uid))
        return float(sight.idle_since[index]), bool(sight.at_least[index]), pending, paused, memory.refused.get(uid)

    def _hold_back(self, standing: courtesy.Standing, count: int, needed: int) -> courtesy.Standing:
        """Its step is not taken in this cycle."""
        if self._freeze.until is not None:
            return courtesy.Standing(Reason.Frozen, f"frozen until {units.rfc3339(self._freeze.until)}: {self._freeze.because}")
        if count < needed:
            because = f"found idle in {count} of {needed} cycles in a row"
            return courtesy.Standing(Reason.Confirming, because, next_action=standing.next_action)
        return courtesy.Standing(Reason.Confirming, "its marks are put in order first", next_action=standing.next_action)

    def _withdraw(self, index: int) -> None:
        if index in self._arranged.noticed and index not in self._written:
            self._withdrawn.append(index)

    def _was_told(self, index: int, episode: str | None) -> bool:
        """Where the begin is not exact it moves with the clock: then it is the same episode as long as it was not active."""
        return episode is not None and (bool(self._sight.at_least[index]) or episode == self._episode(index))

    def _episode(self, index: int) -> str:
        since = float(self._sight.idle_since[index])
        known = self._arranged.episodes.get(index)
        if known is None or known[0] != since:
            known = self._arranged.episodes[index] = (since, courtesy.make_episode(self._snapshot.workloads[index], since))
        return known[1]

    # ---- who may be paused now --------------------------------------------------------------------------------------------------

    def choose_pauses(self) -> None:
        """Longest idle times GPUs first, as far as pressure and caps allow."""
        if not self._pausable:
            return
        at = np.array(self._pausable)
        order = np.argsort(-(self._now - self._sight.idle_since[at]) * self._arranged.gpus[at], kind="stable")
        caps = brakes.Caps(self._mandate.brakes, self._spent())
        queue = self._queue()
        ordered: list[int] = at[order].tolist()
        for place, index in enumerate(ordered):
            if caps.is_full and queue is None:  # all the rest wait for one and the same reason
                capped = courtesy.Standing(Reason.Capped, self._why_wait(index, caps, queue)[1], next_action="pause")
                self._standings.update(dict.fromkeys(ordered[place:], capped))
                return
            reason, because = self._why_wait(index, caps, queue)
            if reason is None:
                self._chosen.append(index)
            else:
                self._standings[index] = courtesy.Standing(reason, because, next_action="pause")

    def _why_wait(self, index: int, caps: brakes.Caps, queue: pressure.Queue | None) -> tuple[Reason | None, str]:
        workload, rule, gpus = self._snapshot.workloads[index], self._arranged.ruling(index).rule, int(self._arranged.gpus[index])
        needs_pressure = queue is not None and rule.action.pressure == "only"
        if needs_pressure and queue is not None and not queue.gpus:
            return Reason.NoPressure, pressure.why_not(workload)
        because = caps.why_not(workload.ref.namespace, rule, gpus)
        if because is not None:
            return Reason.Capped, because
        if needs_pressure and queue is not None and not queue.serve(workload):
            return Reason.NoPressure, pressure.why_not(workload)
        caps.take(workload.ref.namespace, rule, gpus)
        return None, ""

    def _queue(self) -> pressure.Queue | None:
        if all(ruling.rule.action.pressure == "off" for ruling in self._arranged.rulings):
            return None
        queue = pressure.Queue(self._snapshot, self._now)
        for index in self._pretended():
            queue.serve(self._snapshot.workloads[index])
        return queue

    def _pretended(self) -> dict[int, Instant]:
        """What a dry run holds for paused."""
        held = {} if self._mandate.acting else self._memory.would_be_paused
        return {index: at for uid, at in held.items() if (index := self._arranged.places.get(uid)) is not None}

    def _spent(self) -> brakes.Spent:
        arranged, now = self._arranged, self._now
        by_rule: Counter[str] = Counter()
        for index, at in self._tended.paused.items():
            if at is not None and brakes.is_recent(at, now):
                freed = pauses.paused_gpus(self._snapshot.workloads[index])
                by_rule[arranged.ruling(index).rule.name] += 1 if freed is None else freed  # not written down: one at least
        freed_by_rule = Counter(by_rule)
        for index, at in self._pretended().items():
            if brakes.is_recent(at, now):
                by_rule[arranged.ruling(index).rule.name] += int(arranged.gpus[index])
        held = np.bincount(arranged.rule_of, weights=arranged.gpus, minlength=len(arranged.rulings))
        # What an hour's share is a share of: what is held now, and what this hour's pauses freed. A dry run's are still held.
        allocated: Counter[str] = Counter(freed_by_rule)
        for ruling, gpus in zip(arranged.rulings, held, strict=True):
            allocated[ruling.rule.name] += int(gpus)
        return brakes.Spent(by_rule.total(), by_rule, int(arranged.gpus.sum()) + freed_by_rule.total(), allocated)

    # ---- what comes out ---------------------------------------------------------------------------------------------------------

    def decisions(self, findings: Findings) -> Iterable[Decision]:
        """Marks, then what is told (the rest of it in the next cycles), then what hurts: the longest idle first."""
        if self._freeze.is_new:
            yield Alert(None, names.Event.IDLE_SHARE_JUMP, self._freeze.because, units.rfc3339(self._now))
        for index in self._withdrawn:
            yield _withdraw(self._snapshot.workloads[index], "the notice no longer counts")
        for index in self._announced[:MOST_TOLD]:
            yield Alert(self._snapshot.workloads[index], names.Event.IDLE_DETECTED, words.explain(self._sight, index), self._episode(index))
        for index in self._warned[:MOST_TOLD]:
            yield self._warn(findings[index], index)
        for index in self._chosen:
            yield self._pause(findings[index], index)

    def _warn(self, finding: Finding, index: int) -> Warn:
        pauses_at = self._now + finding.rule.notice.grace if finding.rule.action.type is idle.ActionType.pause else None
        since = float(self._sight.idle_since[index])
        return Warn(finding, self._episode(index), since, pauses_at, finding.rule.notice.channels)

    def _pause(self, finding: Finding, index: int) -> Pause:
        uid, dry = self._arranged.uids[index], not self._mandate.acting
        pending = self._memory.would_be_pending.get(uid) if dry else None
        told_at = pending[1] if pending else self._now if dry and self._standings[index].warns else None
        idle_for = units.humane(self._now - float(self._sight.idle_since[index]))
        text = f"{finding.gpus} GPU{'' if finding.gpus == 1 else 's'} idle for {idle_for} ({finding.rule.name})"
        return Pause(finding, text[:_REASON_TEXT], pod_uids(self._snapshot, index), told_at)

    def make_finding(self, index: int) -> Finding:
        return describe(self._sight, index, self._standings.get(index) or self._stand_of_others(index))

    def _stand_of_others(self, index: int) -> courtesy.Standing:
        if index in self._tended.paused:
            since = self._tended.paused[index]
            return courtesy.Standing(Reason.AlreadyPaused, "it is paused" + (f" since {units.rfc3339(since)}" if since else ""))
        return courtesy.Standing()

    def total(self, counted: Counted) -> decision.Totals:
        verdicts: Counter[tuple[str, str]] = Counter()
        for code, workloads in enumerate(np.bincount(self._sight.code, minlength=len(judge.CODES)).tolist()):
            if workloads and code != judge.IDLE:
                verdicts[str(words.verdict_of(code)), str(judge.CODES[code])] += workloads
        for index in self._tended.paused:
            if self._sight.code[index] != judge.IDLE:
                key = str(words.verdict_of(self._sight.code[index])), str(judge.CODES[self._sight.code[index]])
                verdicts[key] -= 1
                verdicts[key[0], str(Reason.AlreadyPaused)] += 1
        for (skip, detail), workloads in Counter((each.skip, each.detail) for each in self._standings.values() if each.skip).items():
            verdicts["idle", f"{skip}:{detail}" if detail else str(skip)] += workloads
        never = self._sight.never_used[[index for index, each in self._standings.items() if each.skip is None]]
        verdicts["idle", str(Reason.NeverUsed)] += int(never.sum())
        verdicts["idle", str(Reason.GoneIdle)] += int((~never).sum())
        return decision.Totals(
            workloads=len(self._arranged.uids), pods=int(self._arranged.pods.counts.sum()),
            gpus=counted.active + counted.idle + counted.unknown, active_gpus=counted.active, idle_gpus=counted.idle,
            unknown_gpus=counted.unknown, verdicts={key: count for key, count in verdicts.items() if count}, idle_by_model=counted.by_model,
        )

    def tally_policies(self) -> dict[str, idle.Tally]:
        """What this cycle found for each idle. Where nothing was measured, nothing is said of idleness."""
        if not self._snapshot.policies:
            return {}
        place = {one.rule.name: at for at, one in enumerate(self._snapshot.policies)}
        of_ruling = np.array([place.get(ruling.rule.name, len(place)) for ruling in self._arranged.rulings], np.int64)
        policy_of = of_ruling[self._arranged.rule_of]
        is_idle, skips = self._sight.code == judge.IDLE, Counter[int]()
        for index, standing in self._standings.items():
            skips[int(policy_of[index])] += standing.skip is Reason.Acknowledged
        paused = Counter(int(policy_of[index]) for index in self._tended.paused)
        upcoming = self._next_actions(policy_of)

        def count(which: Any, weights: Any = None) -> list[int]:
            found: list[int] = np.bincount(policy_of[which], weights, minlength=len(place) + 1).astype(int).tolist()
            return found

        matched, quiet, gpus = count(slice(None)), count(is_idle), count(is_idle, self._arranged.gpus[is_idle])
        known = self._snapshot.evidence.trouble is None
        return {
            name: idle.Tally(
                matched_workloads=matched[at], paused_workloads=paused[at],
                idle_workloads=quiet[at] if known else None, idle_gpus=gpus[at] if known else None,
                acknowledged_workloads=skips[at] if known else None,
                next_actions=tuple(upcoming.get(at, ())),
            )
            for name, at in place.items()
        }

    def _next_actions(self, policy_of: arrange.Indices) -> dict[int, list[idle.NextAction]]:
        """Pauses that a notice has announced, and those of this very cycle."""
        found: dict[int, list[idle.NextAction]] = {}
        waiting = {index: one.next_at for index, one in self._standings.items() if one.next_action == "pause" and one.next_at is not None}
        for index, at in {**waiting, **dict.fromkeys(self._chosen, self._now)}.items():
            ref = self._snapshot.workloads[index].ref
            found.setdefault(int(policy_of[index]), []).append(idle.NextAction(ref.kind, ref.namespace, ref.name, at))
        return found

    def memory(self, desk: arrange.Desk) -> Memory:
        """For the next cycle; what became of this plan is added by remember()."""
        old, freeze = self._memory, self._freeze
        code: list[int] = self._sight.code.tolist()
        places = self._arranged.places
        met = {uid for uid, _ in old.told}.union(old.would_be_paused, old.would_be_pending)
        stays = {uid for uid in met if (place := places.get(uid)) is not None and code[place] != judge.BUSY}
        void = {uid for uid in old.would_be_pending if uid in stays and self._is_void(places[uid])}
        return Memory(
            idle_shares=freeze.shares,
            confirmed=self._confirmed,
            told=frozenset(each for each in old.told if each[0] in stays),
            would_be_paused={uid: at for uid, at in old.would_be_paused.items() if uid in stays},
            would_be_pending={uid: at for uid, at in old.would_be_pending.items() if uid in stays and uid not in void},
            baseline_reset=freeze.baseline_reset,
            frozen_until=freeze.unseen_until,
            frozen_because=freeze.because if freeze.unseen_until is not None else "",
            refused={uid: why for uid, why in old.refused.items() if uid in places},
            arrangement=desk,
        )


    def _is_void(self, index: int) -> bool:
        return index in self._standings and self._standings[index].is_void


def _idle_reason(sight: judge.Sight, index: int) -> Reason:
    return Reason.NeverUsed if sight.never_used[index] else Reason.GoneIdle


def make_case(sight: judge.Sight, mandate: idle.Mandate, index: int, remembered: Sequence[Any]) -> courtesy.Case:
    pending, paused, refused = remembered
    subject, ruling = sight.arranged.subject(index), sight.arranged.ruling(index)
    return courtesy.Case(
        subject, subject.workload, kinds.of(subject.workload), ruling, ruling.rule, mandate,
        float(sight.idle_since[index]), bool(sight.at_least[index]),
        pending[1] if pending else None, paused, refused,
    )


def pod_uids(snapshot: cluster.Snapshot, index: int) -> frozenset[str]:
    pods = (snapshot.pods[pod] for pod in snapshot.workloads[index].pods)
    return frozenset(pod.uid for pod in pods if pod.phase not in ("Succeeded", "Failed"))


def describe(sight: judge.Sight, index: int, standing: courtesy.Standing) -> Finding:
    code, is_idle = int(sight.code[index]), bool(sight.code[index] == judge.IDLE)
    one = words.deciding_pass(sight, index)
    rows = words.rows_of(one, index) if one else []
    return Finding(
        workload=sight.snapshot.workloads[index],
        verdict=words.verdict_of(code),
        reason=_idle_reason(sight, index) if is_idle else judge.CODES[code],
        because=words.explain(sight, index),
        rule=sight.arranged.ruling(index).rule,
        gpus=int(sight.arranged.gpus[index]),
        idle_gpus=int((one.rows[rows] == judge.IDLE).sum()) if one else 0,
        models=words.models_of(sight.arranged, index),
        window=float(sight.window[index]),
        idle_since=float(sight.idle_since[index]) if is_idle else None,
        at_least=is_idle and bool(sight.at_least[index]),
        never_used=is_idle and bool(sight.never_used[index]),
        coverage=words.lowest_coverage(one, rows),
        skip=standing.skip,
        detail=standing.detail,
        skip_because=standing.because,
        next_action=standing.next_action,
        next_at=sight.now if standing.next_at is not None and standing.skip is None else standing.next_at,  # the standing may be an old one
    )
