"""A cycle in numbers: GPUs by state and model, workloads by verdict and reason, and what each policy found.

In: a Sight, the standings of the idle ones, what stands paused. Out: Gpus, Held, Totals, a Tally per policy.
GPUs are counted over the window their workload was judged by; what was asked for and not measured is unknown.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from typing import Final

import msgspec
import numpy as np

from fallow.decide.idle import arrange, judge, pressure, words
from fallow.decide.idle.courtesy import Standing
from fallow.model.decision import Heading, Held, HeldRows, Reason, Step, Totals, Verdict
from fallow.model.long_memory import Level, RuleWeek
from fallow.model.policies import idle
from fallow.model.seen import sure
from fallow.model.units import Instant
from fallow.model.usage import Bools, Floats, Ints, mean_use

_STATES: Final = (Verdict.active, Verdict.idle, Verdict.unknown)
# What leaves no doubt about how busy a row was; one that is young or not ready cannot be idle, and is measured.
_MEASURED: Final = [judge.BUSY, judge.IDLE, judge.CODE[Reason.TooYoung], judge.CODE[Reason.NotReady]]


class Gpus(msgspec.Struct, frozen=True):
    by_model: Mapping[tuple[Verdict, str], int]
    observed: int

    def count(self, verdict: Verdict) -> int:
        return sum(count for (each, _), count in self.by_model.items() if each is verdict)

    def level(self, now: Instant) -> Level:
        return Level(self.count(Verdict.idle), self.observed, now)


def count_gpus(sight: judge.Sight) -> Gpus:
    arranged, pods = sight.arranged, sight.arranged.pods
    models = len(arranged.models)
    counts = np.zeros(len(_STATES) * models, np.int64)
    seen = np.zeros(len(pods.counts), np.int64)
    for one, rows in _judged_rows(sight):
        state = np.where(one.rows[rows] == judge.BUSY, 0, np.where(one.rows[rows] == judge.IDLE, 1, 2))
        counts += np.bincount(state * models + one.layout.model[rows], minlength=len(counts))
        seen += np.bincount(one.use.pod[rows], minlength=len(seen))
    observed = int(counts.sum())
    missing = np.maximum(np.where(pods.counts, pods.gpus, 0) - seen, 0)
    counts[2 * models:] += np.bincount(pods.model, missing, models).astype(np.int64)
    keys = ((state, model) for state in _STATES for model in arranged.models)
    return Gpus({key: count for key, count in zip(keys, counts.tolist(), strict=True) if count}, observed)


def count_held(sight: judge.Sight) -> Held:
    """Per workload, how many of its GPUs are idle, active, or cannot be told."""
    count, pods = len(sight.code), sight.arranged.pods
    held, seen = Held(*np.zeros((3, count), np.int64)), np.zeros(len(pods.counts), np.int64)
    for one, rows in _judged_rows(sight):
        owner, code = pods.workload[one.use.pod[rows]], one.rows[rows]
        is_idle, is_active = code == judge.IDLE, code == judge.BUSY
        for column, these in ((held.idle, is_idle), (held.active, is_active), (held.unknown, ~(is_idle | is_active))):
            column += np.bincount(owner[these], minlength=count)
        seen += np.bincount(one.use.pod[rows], minlength=len(seen))
    missing, owned = np.maximum(pods.gpus - seen, 0), pods.counts & (pods.workload >= 0)
    unmeasured = np.bincount(pods.workload[owned], missing[owned], count).astype(np.int64)
    return Held(held.idle, held.active, held.unknown + unmeasured)


def list_rows(sight: judge.Sight) -> HeldRows | None:
    """Every row that was judged, over the window of its workload. None where the source had trouble.

    A row is idle here while the verdict on its workload is: a quiet GPU of one that works is held and not used, which
    its mean says. What is not measured well enough to say anything has no mean.
    """
    if sight.evidence.trouble is not None:
        return None
    parts = [_rows_of(sight, one, rows) for one, rows in _judged_rows(sight)]
    if not parts:
        return None
    pod, gpu, mig, shared, since, use = zip(*parts, strict=True)
    return HeldRows(
        pod=np.concatenate(pod), gpu=tuple(chain.from_iterable(gpu)), mig=np.concatenate(mig),
        shared=np.concatenate(shared), idle_since=np.concatenate(since), use=np.concatenate(use),
    )


def _rows_of(
    sight: judge.Sight, one: judge.Pass, rows: arrange.Indices
) -> tuple[Ints, tuple[str, ...], Bools, Bools, Floats, Floats]:
    use, terms, owner = one.use, one.terms, sight.arranged.pods.workload[one.use.pod[rows]]
    newest = np.full(use.rows, np.nan)
    for column in use.newest.values():
        newest = np.fmax(newest, column)
    is_heard = use.exporter_up & ~use.exporter_frozen & (newest >= sight.now - terms.max_sample_age)
    is_sound = is_heard & np.isin(one.rows, _MEASURED)
    mean = np.where(is_sound, mean_use(use, terms.mig, terms.shared), np.nan)
    is_idle = (one.rows[rows] == judge.IDLE) & (sight.code[owner] == judge.IDLE)
    since = np.where(is_idle, sight.idle_since[owner], np.nan)
    gpu = tuple(use.gpu[row] for row in rows.tolist())
    return use.pod[rows], gpu, use.mig[rows], terms.shared[rows], since, mean[rows]


def _judged_rows(sight: judge.Sight) -> list[tuple[judge.Pass, arrange.Indices]]:
    """Of each window the rows of the workloads that were judged by it."""
    layouts = ((window, one, one.layout) for window, one in sight.passes.items())
    return [
        (one, layout.rows[layout.workloads.spread(sight.window == window)] if layout.rows.size else layout.rows)
        for window, one, layout in layouts
    ]


def total(sight: judge.Sight, standings: Mapping[int, Standing], paused: Collection[int], gpus: Gpus) -> Totals:
    return Totals(
        workloads=len(sight.arranged.uids), pods=int(sight.arranged.pods.counts.sum()),
        gpus=sum(gpus.by_model.values()), gpus_by_model=gpus.by_model, active_gpus=gpus.count(Verdict.active),
        idle_gpus=gpus.count(Verdict.idle), unknown_gpus=gpus.count(Verdict.unknown),
        kept_gpus=sum(int(sight.arranged.gpus[index]) for index, one in standings.items()
                      if one.skip is Reason.Acknowledged),
        waiting_gpus=pressure.count_waiting(sight.snapshot, sight.arranged.waiting, sight.now),
        verdicts=_count_verdicts(sight, standings, paused),
    )


def _count_verdicts(
    sight: judge.Sight, standings: Mapping[int, Standing], paused: Collection[int]
) -> dict[Heading, int]:
    found: Counter[Heading] = Counter()
    for code, workloads in enumerate(np.bincount(sight.code, minlength=len(judge.CODES)).tolist()):
        if code != judge.IDLE:
            found[_heading(code)] += workloads
    for code, workloads in Counter(int(sight.code[index]) for index in paused).items():
        if code != judge.IDLE:
            found[_heading(code)] -= workloads
            found[Heading(words.verdict_of(code), Reason.AlreadyPaused)] += workloads
    for (skip, detail), workloads in Counter((one.skip, one.detail) for one in standings.values()).items():
        if skip is not None:
            found[Heading(Verdict.idle, skip, detail)] += workloads
    never = sight.never_used[[index for index, one in standings.items() if one.skip is None]]
    found[Heading(Verdict.idle, Reason.NeverUsed)] += int(never.sum())
    found[Heading(Verdict.idle, Reason.GoneIdle)] += int((~never).sum())
    return {heading: workloads for heading, workloads in found.items() if workloads}


def _heading(code: int) -> Heading:
    return Heading(words.verdict_of(code), judge.CODES[code])


def tally_policies(
    sight: judge.Sight, standings: Mapping[int, Standing], paused: Collection[int], chosen: Collection[int],
    weeks: Iterable[RuleWeek] = (),
) -> dict[str, idle.Tally]:
    """What this cycle found for each policy. Where nothing was measured, nothing is said of idleness.

    Of a policy that holds for anybody outside the namespaces we were given, or for nobody inside, nothing is said at
    all: another instance may be looking after those, and its report would stand against ours.
    """
    rank = {one.rule.name: rank for rank, one in enumerate(sure(sight.snapshot.policies))}
    if not rank:
        return {}
    of_ruling = [rank.get(ruling.rule.name, len(rank)) for ruling in sight.arranged.rulings]
    policy_of = np.array(of_ruling, np.int64)[sight.arranged.rule_of]
    known, is_idle = sight.evidence.trouble is None, sight.code == judge.IDLE
    acknowledged = [index for index, one in standings.items() if one.skip is Reason.Acknowledged]
    size, upcoming = len(rank) + 1, _next_actions(sight, standings, chosen, policy_of)
    matched, asleep = _count(policy_of, size), _count(policy_of[list(paused)], size)
    quiet, kept = _count(policy_of[is_idle], size), _count(policy_of[acknowledged], size)
    gpus = _count(policy_of[is_idle], size, sight.arranged.gpus[is_idle])
    foreign = _find_foreign(sight, policy_of, matched)
    fared = {week.rule: week.sum_up() for week in weeks}
    rules = {one.rule.name: one.rule for one in sure(sight.snapshot.policies)}
    return {
        name: idle.Tally(
            matched_workloads=matched[at], paused_workloads=asleep[at], next_actions=tuple(upcoming.get(at, ())),
            idle_workloads=quiet[at] if known else None, idle_gpus=gpus[at] if known else None,
            acknowledged_workloads=kept[at] if known else None,
            pauses_7d=fared.get(name, (0, 0))[0], regrets_7d=fared.get(name, (0, 0))[1],
            effective_gone_idle=rules[name].gone_idle if rules[name].auto_widen else None,
        )
        for name, at in rank.items() if at not in foreign
    }


def _find_foreign(sight: judge.Sight, policy_of: arrange.Indices, matched: list[int]) -> set[int]:
    """Policies, by rank, that are not ours alone to report on."""
    asked = sight.mandate.scope.namespace
    if asked is None:
        return set()
    places = {one.ref.namespace for one in sight.snapshot.workloads}
    outside = {place for place in places if not asked.fullmatch(place)}
    beyond = [index for index, one in enumerate(sight.snapshot.workloads) if one.ref.namespace in outside]
    return set(policy_of[beyond].tolist()) | {at for at, count in enumerate(matched) if not count}


def _count(column: arrange.Indices, size: int, weights: arrange.Indices | None = None) -> list[int]:
    counted: list[int] = np.bincount(column, weights, size).astype(int).tolist()
    return counted


def _next_actions(
    sight: judge.Sight, standings: Mapping[int, Standing], chosen: Collection[int], policy_of: arrange.Indices
) -> dict[int, list[idle.NextAction]]:
    """Pauses that a notice has announced, and those of this very cycle."""
    times: dict[int, Instant] = {
        index: one.next_at for index, one in standings.items()
        if one.next_action is Step.pause and one.next_at is not None
    }
    found: dict[int, list[idle.NextAction]] = {}
    for index, at in (times | dict.fromkeys(chosen, sight.now)).items():
        ref = sight.snapshot.workloads[index].ref
        found.setdefault(int(policy_of[index]), []).append(idle.NextAction(ref.kind, ref.namespace, ref.name, at))
    return found
