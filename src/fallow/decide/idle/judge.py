"""Is a GPU, a pod, a workload idle? Verdicts for all of them at once, from what was measured over their windows.

In: an Arrangement and the evidence of this cycle. Out: a Sight: one code per GPU row, pod and workload, and since when
the idle ones are.
A code is an index into CODES: Busy, then every way of not knowing, then Idle. So the verdict of a pod is the lowest
code of its GPUs, and that of a workload the lowest of its pods: one busy GPU makes it active, one unknown makes it
unknown, and only if all are idle is it idle.
Invariant: only a complete, fresh and uncontradicted window of silence is Idle. `nan` compares as False everywhere, and
every rung that leads to Idle asks for something to be True.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from fallow.decide.idle import arrange
from fallow.model import cluster, usage
from fallow.model.decision import Reason
from fallow.model.policies import idle
from fallow.model.units import HOUR, Instant, Seconds
from fallow.model.usage import Bools, Floats, Signal

Codes: TypeAlias = NDArray[np.int8]

CODES: Final = (
    Reason.Busy,
    Reason.SourceDown, Reason.WarmingUp, Reason.OwnerLookupFailed, Reason.Odd, Reason.NoGpuPods,
    Reason.NodeNotReady, Reason.PodStarting, Reason.ReservationOpaque,
    Reason.ExporterDown, Reason.FrozenSeries, Reason.ExporterSuspect, Reason.SignalContradiction,
    Reason.NodeUnseen, Reason.SharedDevice, Reason.BlankSamples,
    Reason.MigUtilOnly, Reason.NoSignal, Reason.FutureSamples, Reason.Stale, Reason.LowCoverage,
    Reason.MissingGpuSeries, Reason.NotReady, Reason.TooYoung,
    Reason.GoneIdle,
)
CODE: Final = {reason: np.int8(code) for code, reason in enumerate(CODES)}
BUSY: Final = CODE[Reason.Busy]
IDLE: Final = CODE[Reason.GoneIdle]
ODD: Final = CODE[Reason.Odd]

CONTRADICTS: Final = 0.05  # gpu_util of a GPU that surely does something
CANARY_SHARE: Final = 0.5  # of its rated power that only work explains; an open context draws far less
CANARY_POWER: Final = 2.5  # times the lowest power of a day, where nobody knows what it is rated
CANARY_WATTS: Final = 75.0  # ... and so much above it; or above 0, while nobody knows the lowest either
FLOOR_WATTS: Final = 15.0
MAX_SKEW: Final = 60.0  # a sample further in the future comes from a clock that is wrong
UNREADY_COUNTS: Final = 2 * HOUR  # a pod that stays not ready for so long is judged by its start alone

# What makes a signal active where its rule does not say: the unit of each is told in model/usage.py.
LIMITS: Final = {
    Signal.copy: 1.0, Signal.enc: 1.0, Signal.dec: 1.0, Signal.pcie: 10.0 * 1024 * 1024, Signal.fb_growth: 256.0,
    Signal.requests: 1.0,
}
NOT_ON_MIG: Final = frozenset({Signal.gpu_util, Signal.device_util, Signal.copy, Signal.enc, Signal.dec, Signal.pcie})
OF_THE_POD: Final = frozenset({Signal.process_sm, Signal.last_kernel, Signal.requests})


class Terms(arrange.RuleColumns, kw_only=True):
    """What the rules ask, and what is told of the GPU itself, per row."""

    mig: Bools  # by its series, or as its pod and node say: what cannot speak for an instance does not
    shared: Bools
    node: arrange.Indices
    device: arrange.Indices
    contested: Bools
    watts: Floats  # what its model is rated; nan = not known
    on_unseen_node: Bools  # then `shared` is set: nobody can tell, nor whether it is a MIG instance


class Pass(msgspec.Struct, kw_only=True):
    """All verdicts over one window."""

    use: usage.Usage
    layout: arrange.Layout
    terms: Terms
    rows: Codes
    pods: Codes
    workloads: Codes
    coverage: Floats  # per row, of its best primary; nan = it has none


class Sight(msgspec.Struct, kw_only=True):
    """What the evidence of this cycle shows. Columns are per workload: its code, over which window, idle since when."""

    arranged: arrange.Arrangement
    snapshot: cluster.Snapshot  # of this cycle: its evidence is newer than what the arrangement was made from
    now: Instant
    passes: dict[Seconds, Pass]
    code: Codes
    window: Floats
    idle_since: Floats  # nan where it is not idle
    at_least: Bools
    looked_back: Bools  # where its idle time was looked up: it is not longer than that
    never_used: Bools
    clock: Floats  # per pod: since when its quiet counts
    odd: Mapping[int, str] = {}  # workloads that could not be considered, and what went wrong

    @property
    def mandate(self) -> idle.Mandate:
        return self.arranged.mandate

    @property
    def evidence(self) -> usage.Evidence:
        return self.snapshot.evidence


def look(arranged: arrange.Arrangement, snapshot: cluster.Snapshot, now: Instant) -> Sight:
    """Judge everything. Where the source has trouble, nothing is known of anything."""
    clock, evidence = _start_clocks(arranged.pods, now), snapshot.evidence
    measured = {} if evidence.trouble else evidence.usage
    passes = {window: _judge_window(arranged, use, clock, now) for window, use in measured.items()}
    sight = _choose_windows(arranged, snapshot, passes, clock, now)
    _note_troubles(arranged, evidence, sight.code)
    sight.idle_since[sight.code != IDLE] = np.nan
    return set_aside(sight, arranged.odd)


def set_aside(sight: Sight, odd: Mapping[int, str]) -> Sight:
    """The same, with these workloads unknown: considering them failed, and that must not stop the others."""
    if not odd:
        return sight
    code, idle_since, at = sight.code.copy(), sight.idle_since.copy(), list(odd)
    code[at], idle_since[at] = ODD, np.nan
    return msgspec.structs.replace(sight, code=code, idle_since=idle_since, odd={**sight.odd, **odd})


def _start_clocks(pods: arrange.PodColumns, now: Instant) -> Floats:
    """When each pod's quiet begins to count; nan while it does not."""
    is_stuck = ~pods.ready & (now - np.fmax(pods.turned, pods.started) >= UNREADY_COUNTS)
    return np.where(pods.ready, np.maximum(pods.started, pods.turned), np.where(is_stuck, pods.started, np.nan))


def _note_troubles(arranged: arrange.Arrangement, evidence: usage.Evidence, code: Codes) -> None:
    if evidence.trouble is not None:
        code[:] = CODE[Reason.WarmingUp if evidence.trouble.reason == Reason.WarmingUp else Reason.SourceDown]
    code[arranged.lookups_failed] = CODE[Reason.OwnerLookupFailed]
    code[~np.isin(np.arange(len(code)), arranged.pods.groups.keys)] = CODE[Reason.NoGpuPods]


# ---- one GPU: the first rung that holds decides --------------------------------------------------------------------


def climb(*rungs: tuple[Reason, Bools]) -> Codes:
    """The first rung that holds decides; where none does, it is idle."""
    return np.select([held for _, held in rungs], [CODE[reason] for reason, _ in rungs], IDLE).astype(np.int8)


def judge_rows(use: usage.Usage, terms: Terms, now: Instant) -> Codes:
    """The ladder of the specification, 4.1. A shared GPU is active only by what speaks of the pod itself."""
    valid = usage.find_speakers(use, terms.mig, terms.shared)
    fresh = {signal: held & (newest(use, signal) >= now - terms.max_sample_age) for signal, held in valid.items()}
    covered = {signal: held & (coverage(use, signal) >= terms.coverage) for signal, held in fresh.items()}
    active = {signal: is_active_by(use, terms, signal) for signal in Signal if signal in use.peak}
    own = _any(use, (held for signal, held in active.items() if signal in OF_THE_POD))
    any_active = _any(use, active.values())
    return climb(
        (Reason.ExporterDown, ~use.exporter_up),
        (Reason.FrozenSeries, use.exporter_frozen),
        (Reason.ExporterSuspect, _is_suspect(use, terms)),
        (Reason.SignalContradiction, terms.contested | _contradicts_itself(use, terms)),
        (Reason.Busy, np.where(terms.shared, own, any_active)),
        (Reason.NodeUnseen, terms.on_unseen_node & (~usage.speaks_for_itself(use) | _lacks_rating(use, terms))),
        (Reason.SharedDevice, terms.shared & any_active & ~_is_acquitted(use, terms, active)),
        (Reason.BlankSamples, _any(use, (has_blanks(use, terms, signal) for signal in use.blank))),
        (Reason.MigUtilOnly, ~_any(use, valid.values()) & terms.mig & ~np.isnan(utilisation(use))),
        (Reason.NoSignal, ~_any(use, valid.values())),
        (Reason.FutureSamples, _any(use, (on & (newest(use, one) > now + MAX_SKEW) for one, on in valid.items()))),
        (Reason.Stale, ~_any(use, fresh.values())),
        (Reason.LowCoverage, ~_any(use, covered.values())),
    )


def is_active_by(use: usage.Usage, terms: Terms, signal: Signal) -> Bools:
    """Where this signal shows activity, by the rule of the row."""
    peak = use.peak[signal]
    if signal is Signal.power:
        held = (peak >= terms.power_watts) | (terms.power_floor & (peak > use.power_floor + FLOOR_WATTS))
    elif signal is Signal.last_kernel:
        held = peak < use.window
    else:
        held = peak >= LIMITS.get(signal, terms.activity)
    if signal in use.mean:
        held |= trickles(use, terms, signal)
    return held & _heeds(use, terms, signal)


def has_blanks(use: usage.Usage, terms: Terms, signal: Signal) -> Bools:
    """Where this signal might have shown activity, and some of its samples say nothing: no silence to believe."""
    return use.blank[signal] & _heeds(use, terms, signal)


def _heeds(use: usage.Usage, terms: Terms, signal: Signal) -> Bools:
    """Where activity by this signal counts."""
    heeded = np.ones(use.rows, np.bool_)
    if signal in NOT_ON_MIG:  # by the series themselves: what only might be an instance is not excused by that
        heeded &= ~use.mig
    if signal.name in terms.disabled:
        heeded &= ~terms.disabled[signal.name]
    if signal is Signal.power:
        heeded &= terms.power_floor | ~np.isnan(terms.power_watts)
    return heeded


def trickles(use: usage.Usage, terms: Terms, signal: Signal) -> Bools:
    """A steady trickle: DCGM's values are averages themselves, so that a little work in each of them never shows."""
    return np.asarray(use.mean[signal] >= terms.activity / usage.TRICKLE)


def _is_acquitted(use: usage.Usage, terms: Terms, active: Mapping[Signal, Bools]) -> Bools:
    """Rows of a busy device that did nothing themselves, where the same signal shows who on that device did."""
    found = np.zeros(use.rows, np.bool_)
    for signal in (Signal.process_sm, Signal.last_kernel):
        if signal in active:
            culprits = np.bincount(terms.device[active[signal]], minlength=int(terms.device.max(initial=-1)) + 1)
            found |= (use.peak[signal] >= 0) & (culprits[terms.device] > 0)
    return found


def newest(use: usage.Usage, signal: Signal) -> Floats:
    return use.newest.get(signal, _unknown(use))


def coverage(use: usage.Usage, signal: Signal) -> Floats:
    """Share of the window that was sampled; a hair is forgiven, so that 0.8 of a window is 0.8."""
    return use.count[signal] * use.interval / use.window + 1e-9 if signal in use.count else _unknown(use)


def best_coverage(use: usage.Usage, terms: Terms) -> Floats:
    found = _unknown(use)
    for signal, held in usage.find_speakers(use, terms.mig, terms.shared).items():
        found = np.fmax(found, np.where(held, np.minimum(coverage(use, signal), 1.0), np.nan))
    return found


def profiling(use: usage.Usage) -> Floats:
    return np.fmax(use.peak.get(Signal.gr_engine, _unknown(use)), use.peak.get(Signal.sm_active, _unknown(use)))


def utilisation(use: usage.Usage) -> Floats:
    return np.fmax(use.peak.get(Signal.gpu_util, _unknown(use)), use.peak.get(Signal.device_util, _unknown(use)))


def _contradicts_itself(use: usage.Usage, terms: Terms) -> Bools:
    return ~use.mig & (profiling(use) < terms.activity) & (utilisation(use) >= CONTRADICTS)


def _is_suspect(use: usage.Usage, terms: Terms) -> Bools:
    """The node canary: profiling reads exactly 0 on a whole node (it can for hours) while something shows work."""
    profiled, nodes = profiling(use), int(terms.node.max(initial=-1)) + 1
    works = ~use.mig & ((utilisation(use) >= CONTRADICTS) | (_power(use) > _working_power(use, terms)))
    profiles = np.bincount(terms.node[profiled >= 0], minlength=nodes) > 0
    is_silent = np.bincount(terms.node[profiled > 0], minlength=nodes) == 0
    is_suspect = profiles & is_silent & (np.bincount(terms.node[works], minlength=nodes) > 0)
    return np.asarray(is_suspect[terms.node])


def _lacks_rating(use: usage.Usage, terms: Terms) -> Bools:
    """On whose node the canary cannot tell work by power, because only the node could name a model."""
    unrated, nodes = ~np.isnan(_power(use)) & np.isnan(terms.watts), int(terms.node.max(initial=-1)) + 1
    return np.asarray((np.bincount(terms.node[unrated], minlength=nodes) > 0)[terms.node])


def _power(use: usage.Usage) -> Floats:
    return use.peak.get(Signal.power, _unknown(use))


def _working_power(use: usage.Usage, terms: Terms) -> Floats:
    """Watts that only work explains: by the model, else by the board's floor, else the least that may be work: a floor
    that is not known yet excuses nothing."""
    floor = np.nan_to_num(use.power_floor, nan=0.0)
    above = np.maximum(floor * CANARY_POWER, floor + CANARY_WATTS)
    return np.where(np.isnan(terms.watts), above, terms.watts * CANARY_SHARE)


def _unknown(use: usage.Usage) -> Floats:
    return np.full(use.rows, np.nan)


def _any(use: usage.Usage, columns: Iterable[Bools]) -> Bools:
    found = np.zeros(use.rows, np.bool_)
    for column in columns:
        found |= column
    return found


# ---- pods and workloads: the lowest code decides -------------------------------------------------------------------


def _judge_window(arranged: arrange.Arrangement, use: usage.Usage, clock: Floats, now: Instant) -> Pass:
    layout, pods, terms = arranged.layouts[use.window], arranged.pods, gather_terms(arranged, use)
    lives = _judge_lives(arranged, use.window, clock, now)
    rows = _overrule(judge_rows(use, terms, now), lives[use.pod])
    by_pod = _judge_pods(arranged, layout, rows, lives)
    nothing = np.full(len(arranged.uids), CODE[Reason.NoGpuPods], np.int8)
    return Pass(
        use=use, layout=layout, terms=terms, rows=rows, pods=by_pod, coverage=best_coverage(use, terms),
        workloads=pods.groups.reduce(np.minimum, by_pod[pods.by_workload], nothing),
    )


def gather_terms(arranged: arrange.Arrangement, use: usage.Usage) -> Terms:
    pods, asked = arranged.pods, take(arranged.terms, arranged.rule_of_pod[use.pod])
    layout = arranged.layouts[use.window]
    return Terms(
        **asked, mig=use.mig | pods.mig[use.pod], shared=use.shared | pods.shared[use.pod], node=pods.node[use.pod],
        device=layout.device, contested=layout.contested, watts=arranged.watts[layout.model],
        on_unseen_node=pods.on_unseen_node[use.pod],
    )


def take(table: msgspec.Struct, at: arrange.Indices | slice) -> dict[str, Any]:
    """The columns of a table, over these rows only; its single numbers are left out."""
    columns = {name: getattr(table, name) for name in table.__struct_fields__}
    return {
        name: {key: each[at] for key, each in column.items()} if isinstance(column, Mapping) else column[at]
        for name, column in columns.items() if not isinstance(column, int | float | None)
    }


def _judge_lives(arranged: arrange.Arrangement, window: Seconds, clock: Floats, now: Instant) -> Codes:
    """What speaks against judging a pod at all, whatever its GPUs do; IDLE where nothing does."""
    pods, grace = arranged.pods, arranged.terms.grace[arranged.rule_of_pod]
    return climb(
        (Reason.NodeNotReady, ~pods.on_ready_node),
        (Reason.PodStarting, ~pods.running),
        (Reason.ReservationOpaque, pods.reserved),
        (Reason.NodeUnseen, pods.on_unseen_node & ~pods.ready),
        (Reason.NotReady, ~pods.ready & np.isnan(clock)),
        (Reason.TooYoung, ~(now - clock >= window + grace)),
    )


def _overrule(rows: Codes, lives: Codes) -> Codes:
    """A pod that is not there yet says nothing; one that is young or not ready can be busy, but not idle."""
    is_absent = lives <= CODE[Reason.ReservationOpaque]
    return np.where(is_absent | ((rows != BUSY) & (lives < IDLE)), lives, rows)


def _judge_pods(arranged: arrange.Arrangement, layout: arrange.Layout, rows: Codes, lives: Codes) -> Codes:
    pods, sorted_rows = arranged.pods, rows[layout.rows]
    lowest = layout.pods.reduce(np.minimum, sorted_rows, lives.copy())
    if (arranged.terms.idle_gpu_fraction < 1).any():
        lowest[_has_idle_share(arranged, layout, sorted_rows)] = IDLE
    is_missing = (pods.gpus < 0) | (layout.held < np.maximum(pods.gpus, 1))
    return np.where(is_missing, np.where(lives < IDLE, lives, CODE[Reason.MissingGpuSeries]), lowest)


def _has_idle_share(arranged: arrange.Arrangement, layout: arrange.Layout, sorted_rows: Codes) -> Bools:
    """Pods of which the rule lets a share of idle GPUs suffice: the others may be busy, never unknown."""
    pods = arranged.pods
    fraction = arranged.terms.idle_gpu_fraction[arranged.rule_of_pod]
    none = np.zeros(len(pods.counts), np.int64)
    quiet = layout.pods.reduce(np.add, (sorted_rows == IDLE).astype(np.int64), none.copy())
    unknown = layout.pods.reduce(np.add, ((sorted_rows != IDLE) & (sorted_rows != BUSY)).astype(np.int64), none)
    enough = quiet >= fraction * np.maximum(pods.gpus, layout.held) - 1e-9
    return np.asarray((fraction < 1) & (quiet > 0) & (unknown == 0) & enough)


# ---- two windows, and since when -----------------------------------------------------------------------------------


class _Lives(msgspec.Struct):
    """Per workload, from the look-back of its idle GPUs."""

    since: Floats
    is_exact: Bools
    looked_back: Bools
    was_used: Bools
    never_used: Bools


def _choose_windows(
    arranged: arrange.Arrangement, snapshot: cluster.Snapshot, passes: dict[Seconds, Pass], clock: Floats, now: Instant
) -> Sight:
    """A workload is judged over the window of what it did since its start; where nobody knows, over the longer one."""
    gone, never = arranged.terms.gone_idle[arranged.rule_of], arranged.terms.never_used[arranged.rule_of]
    shorter, window, count = np.minimum(gone, never), np.maximum(gone, never), len(arranged.uids)
    code, since = np.full(count, CODE[Reason.MissingGpuSeries], np.int8), np.full(count, np.nan)
    is_exact, looked_back, never_used = (np.zeros(count, np.bool_) for _ in range(3))
    for seconds, one in passes.items():
        here, lives = shorter == seconds, _read_lives(one, clock, now)
        chosen = np.where(lives.was_used, gone, np.where(lives.never_used, never, window))
        window, since = np.where(here, chosen, window), np.where(here, lives.since, since)
        is_exact = np.where(here, lives.is_exact, is_exact)
        looked_back = np.where(here, lives.looked_back, looked_back)
        never_used = np.where(here, lives.never_used & ~lives.was_used, never_used)
    for seconds, one in passes.items():
        code = np.where(window == seconds, one.workloads, code)
    for seconds, one in passes.items():  # idle over the longer window includes idle over the shorter
        code = np.where(shorter == seconds, np.minimum(code, one.workloads), code)
    return Sight(
        arranged=arranged, snapshot=snapshot, now=now, passes=passes, clock=clock, code=code, window=window,
        idle_since=since, at_least=~is_exact, looked_back=looked_back, never_used=never_used,
    )


def _read_lives(one: Pass, clock: Floats, now: Instant) -> _Lives:
    rows, groups, count = one.layout.rows, one.layout.workloads, len(one.workloads)
    is_idle = one.rows[rows] == IDLE
    since, is_exact = row_since(one.use, rows, clock, now)
    start, active, seen = clock[one.use.pod[rows]], one.use.last_active[rows], one.use.observed_since[rows]
    was_used = is_idle & np.isfinite(active) & (active >= start)
    never_used = (active < start) & (seen <= start + usage.FIRST_SAMPLE)
    latest = groups.reduce(np.maximum, np.where(is_idle, since, -np.inf), np.full(count, -np.inf))
    decides = is_idle & is_exact & (since == groups.spread(latest))
    no, yes = np.zeros(count, np.bool_), np.ones(count, np.bool_)
    return _Lives(
        np.where(np.isfinite(latest), latest, np.nan),
        groups.reduce(np.logical_or, decides, no.copy()),
        groups.reduce(np.logical_and, ~np.isnan(active) | ~is_idle, yes.copy()),
        groups.reduce(np.logical_or, was_used, no),
        groups.reduce(np.logical_and, never_used | ~is_idle, yes),
    )


def row_since(use: usage.Usage, rows: arrange.Indices, clock: Floats, now: Instant) -> tuple[Floats, Bools]:
    """Since when these rows are idle if they are, and whether that is exact or only as far back as was watched.

    Never before the end of the last longer gap: nobody knows what was in it.
    """
    start, active, seen = clock[use.pod[rows]], use.last_active[rows], use.observed_since[rows]
    edge = np.maximum(now - use.window, start)  # so much the window itself shows
    begin = np.minimum(np.maximum(np.where(np.isfinite(active), active, -np.inf), start), edge)
    soon = begin + usage.FIRST_SAMPLE
    is_exact = np.where(np.isfinite(active), ~(seen > soon), np.isneginf(active) & (seen <= soon))
    as_far = np.where(np.isnan(active) | np.isnan(seen), edge, np.maximum(seen, start))
    return np.where(is_exact, begin, as_far), is_exact
