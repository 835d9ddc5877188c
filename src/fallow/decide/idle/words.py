"""Verdicts in sentences, made for those that somebody asks about.

In: a Sight and a workload, or a GPU row. Out: what a person reads, with the number that decided; the Finding of a
workload with its standing, and its evidence GPU by GPU.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from fallow.decide.idle import courtesy, judge
from fallow.model import bills, marks, units, usage
from fallow.model.decision import Finding, GpuFinding, Reason, Verdict, Wishes
from fallow.model.seen import Unseen
from fallow.model.units import Instant
from fallow.model.usage import Signal

_PERCENT = frozenset({Signal.copy, Signal.enc, Signal.dec})
_OF_PODS = {
    Reason.NodeNotReady: "the node {node} of its pod {pod} is not ready",
    Reason.NodeUnseen: "the node {node} of its pod {pod} cannot be seen, and with it whether the GPU is shared: {why}",
    Reason.PodStarting: "its pod {pod} is bound to {node} and has not started",
    Reason.ReservationOpaque: "its pod {pod} holds a GPU for others that cannot be seen",
    Reason.NotReady: "its pod {pod} is not ready",
    Reason.TooYoung: "its pod {pod} runs for {age} only",
    Reason.MissingGpuSeries: "its pod {pod} asked for {asked}, and {held} of them are measured",
}
_OF_GPUS = {
    Reason.Busy: "{active}",
    Reason.ExporterDown: "the exporter of node {node} is down",
    Reason.FrozenSeries: "the exporter of node {node} repeats itself: energy did not move in {window}",
    Reason.ExporterSuspect: "profiling reads 0 on all of node {node} while its power or utilisation shows work",
    Reason.SignalContradiction:
        "profiling shows {profiling:.0%} at most, gpu_util {used:.0%}: one of them is wrong",
    Reason.SharedDevice: "others share this GPU and nothing tells whose the activity is ({active})",
    Reason.BlankSamples: "cannot tell: some samples of {blank} in the last {window} are blank, and hide what it did",
    Reason.MigUtilOnly: "gpu_util says nothing about a MIG instance, and no other signal is there",
    Reason.NoSignal: "no utilisation series for this GPU",
}
_CONTESTED = "several pods are named for this GPU and nothing says it is shared, or its pod for more than it asked for"


def verdict_of(code: int) -> Verdict:
    if code == judge.BUSY:
        return Verdict.active
    return Verdict.idle if code == judge.IDLE else Verdict.unknown


def count_gpus(gpus: int) -> str:
    return units.many(gpus, "GPU")


def describe(sight: judge.Sight, index: int, standing: courtesy.Standing) -> Finding:
    code, is_idle = int(sight.code[index]), bool(sight.code[index] == judge.IDLE)
    one, arranged = deciding_pass(sight, index), sight.arranged
    rows = rows_of(one, index) if one else []
    is_now = standing.next_at is not None and standing.skip is None  # the standing may be an old one
    return Finding(
        workload=sight.snapshot.workloads[index], verdict=verdict_of(code), because=explain(sight, index),
        reason=Reason.NeverUsed if is_idle and sight.never_used[index] else judge.CODES[code],
        rule=arranged.ruling(index).rule, window=float(sight.window[index]), gpus=int(arranged.gpus[index]),
        idle_gpus=int((one.rows[rows] == judge.IDLE).sum()) if one else 0,
        models=tuple(sorted(arranged.subject(index).find_models() - {""})),
        idle_since=float(sight.idle_since[index]) if is_idle else None,
        at_least=is_idle and bool(sight.at_least[index]), never_used=is_idle and bool(sight.never_used[index]),
        coverage=_lowest_coverage(one, rows), skip=standing.skip, detail=standing.detail,
        skip_because=standing.because, next_action=standing.next_action,
        next_at=sight.now if is_now else standing.next_at, wishes=_wishes(sight, index),
        holdings=bills.hold(sight.snapshot.workloads[index], sight.snapshot, _find_measured(one, rows)),
    )


def _wishes(sight: judge.Sight, index: int) -> Wishes:
    workload = sight.snapshot.workloads[index]
    namespace = sight.snapshot.namespaces.known.get(workload.ref.namespace)
    return Wishes(*marks.wishes(workload, namespace.annotations if namespace else {}))


def _find_measured(one: judge.Pass | None, rows: Sequence[int]) -> Mapping[int, Sequence[str]]:
    """By pod, the models of its GPUs as they were measured."""
    found: dict[int, list[str]] = defaultdict(list)
    if one is not None:
        for row in rows:
            found[int(one.use.pod[row])].append(one.use.model[row])
    return found


def _lowest_coverage(one: judge.Pass | None, rows: list[int]) -> float | None:
    """Of these GPUs, the least covered one's best signal; None where one of them has none."""
    lowest = float(one.coverage[rows].min()) if one and rows else math.nan
    return None if math.isnan(lowest) else lowest


def explain(sight: judge.Sight, index: int) -> str:
    """Why the workload has the verdict it has."""
    reason = judge.CODES[sight.code[index]]
    if reason is Reason.GoneIdle:
        return _explain_idle(sight, index)
    if reason in (Reason.SourceDown, Reason.WarmingUp):
        trouble = sight.evidence.trouble
        return trouble.because if trouble else "there is no evidence"
    if reason is Reason.Odd:
        return f"it is as nobody foresaw, and is left alone: {sight.odd[index]}"
    workload = sight.snapshot.workloads[index]
    if reason is Reason.OwnerLookupFailed:
        if isinstance(workload.strays, Unseen):
            return workload.strays.why
        return workload.trouble_because or "its owner could not be looked up"
    if reason is Reason.NoGpuPods:
        return "none of its pods holds a GPU now"
    return _explain_first(sight, index, reason)


def _explain_idle(sight: judge.Sight, index: int) -> str:
    rule, gpus = sight.arranged.ruling(index).rule, int(sight.arranged.gpus[index])
    for_long = units.humane(sight.now - float(sight.idle_since[index]))
    part = "all" if rule.idle_gpu_fraction >= 1 else f"at least {rule.idle_gpu_fraction:.0%}"
    whose = "its GPU" if gpus == 1 else f"{part} of its {count_gpus(gpus)}"
    since = " since it started" if sight.never_used[index] else ""
    least = "at least " if sight.at_least[index] else ""
    return f"{whose} did nothing above {rule.activity:.0%} for {least}{for_long}{since}"


def _explain_first(sight: judge.Sight, index: int, reason: Reason) -> str:
    """The first pod or GPU that decided."""
    one, code = deciding_pass(sight, index), judge.CODE[reason]
    for pod in sight.snapshot.workloads[index].pods if one else ():
        if one is None or not sight.arranged.pods.counts[pod] or one.pods[pod] != code:
            continue
        if reason in _OF_PODS:
            return _explain_pod(sight, one, pod, reason)
        row = next(row for row in rows_of(one, index) if one.use.pod[row] == pod and one.rows[row] == code)
        return f"{explain_row(sight, one, row)}; {one.use.gpu[row]} of pod {sight.snapshot.pods[pod].name}"
    return "the source was not asked about the window of its rule"


def _explain_pod(sight: judge.Sight, one: judge.Pass, index: int, reason: Reason) -> str:
    pod, clock = sight.snapshot.pods[index], float(sight.clock[index])
    asked = "GPUs that cannot be counted" if pod.gpu_count is None else count_gpus(pod.gpu_count)
    age = "a moment" if math.isnan(clock) else units.humane(sight.now - clock)
    rest = sight.snapshot.nodes.rest
    return _OF_PODS[reason].format(
        pod=pod.name, node=pod.node, asked=asked, held=int(one.layout.held[index]), age=age,
        why=rest.why if isinstance(rest, Unseen) else "it is not in the list",
    )


def deciding_pass(sight: judge.Sight, index: int) -> judge.Pass | None:
    """The window whose verdict became the workload's: the chosen one, or the shorter where that one knew better."""
    one = sight.passes.get(float(sight.window[index]))
    shorter = sight.passes.get(min(sight.arranged.ruling(index).rule.windows))
    return shorter if one is None or (shorter is not None and one.workloads[index] != sight.code[index]) else one


def rows_of(one: judge.Pass, index: int) -> list[int]:
    rows: list[int] = one.layout.rows[one.layout.workloads.slice_of(index)].tolist()
    return rows


def explain_row(sight: judge.Sight, one: judge.Pass, row: int) -> str:
    reason, pod = judge.CODES[one.rows[row]], int(one.use.pod[row])
    if reason in _OF_PODS:
        return _explain_pod(sight, one, pod, reason)
    use, terms = narrow(one, row)
    if reason is Reason.SignalContradiction and terms.contested[0]:
        return _CONTESTED
    if reason in _OF_GPUS:
        window, profiling, used = units.humane(use.window), judge.profiling(use)[0], judge.utilisation(use)[0]
        node, active, blank = sight.snapshot.pods[pod].node, _name_activity(use, terms), _name_blanks(use, terms)
        return _OF_GPUS[reason].format(
            node=node, window=window, profiling=profiling, used=used, active=active, blank=blank
        )
    return _explain_samples(use, terms, reason, sight.now)


def narrow(one: judge.Pass, row: int) -> tuple[usage.Usage, judge.Terms]:
    """The evidence of one row alone, so that the same judges can be asked about it."""
    at = slice(row, row + 1)
    use, terms = judge.take(one.use, at), judge.take(one.terms, at)
    return msgspec.structs.replace(one.use, **use), judge.Terms(**terms)


def _explain_samples(use: usage.Usage, terms: judge.Terms, reason: Reason, now: Instant) -> str:
    valid = [signal for signal, held in usage.find_speakers(use, terms.mig, terms.shared).items() if held[0]]
    newest = [float(judge.newest(use, signal)[0]) for signal in valid]
    last = max((instant for instant in newest if not math.isnan(instant)), default=None)
    if reason is Reason.FutureSamples and last is not None:
        return f"its newest sample is {units.humane(last - now)} in the future: a clock is wrong"
    if reason is Reason.Stale:
        return "it has no dated sample" if last is None else f"its last sample is {units.humane(now - last)} old"
    if reason is Reason.LowCoverage:
        share = np.nan_to_num(judge.best_coverage(use, terms)[0])
        return f"{share:.0%} of the last {units.humane(use.window)} was measured, {terms.coverage[0]:.0%} is asked"
    return f"nothing above {terms.activity[0]:.0%} in {units.humane(use.window)}"


def _name_activity(use: usage.Usage, terms: judge.Terms) -> str:
    """The first signal that was active, and how much."""
    for signal in Signal:
        if signal in use.peak and judge.is_active_by(use, terms, signal)[0]:
            peak = float(use.peak[signal][0])
            if signal in use.mean and peak < terms.activity[0]:
                return f"{signal.label} averaged {use.mean[signal][0]:.2%}: a little, all the time"
            return f"{signal.label} {_say(signal, peak)}"
    return "it is active"


def _name_blanks(use: usage.Usage, terms: judge.Terms) -> str:
    return " and ".join(signal.label for signal in use.blank if judge.has_blanks(use, terms, signal)[0])


def _say(signal: Signal, peak: float) -> str:
    match signal:
        case Signal.last_kernel:
            return f"was {units.humane(peak)} ago"
        case Signal.pcie:
            return f"reached {peak / 1024 / 1024:.0f} MiB/s"
        case Signal.fb_growth:
            return f"was {peak:.0f} MiB"
        case Signal.power:
            return f"reached {peak:.0f} W"
        case Signal.requests:
            return "were served or waiting"
        case _:
            return f"reached {peak / 100 if signal in _PERCENT else peak:.0%}"


def describe_gpus(sight: judge.Sight, index: int) -> list[GpuFinding]:
    """The evidence, GPU by GPU, over the window that decided."""
    one = deciding_pass(sight, index)
    return [_describe_row(sight, one, row) for row in rows_of(one, index)] if one else []


def _describe_row(sight: judge.Sight, one: judge.Pass, row: int) -> GpuFinding:
    use, pod, code = one.use, sight.snapshot.pods[int(one.use.pod[row])], int(one.rows[row])
    node = sight.snapshot.nodes.known.get(pod.node)
    return GpuFinding(
        gpu=use.gpu[row], index=use.index[row] if use.index else "", node=pod.node, pod=pod.name,
        verdict=verdict_of(code), reason=judge.CODES[code],
        model=use.model[row] or (node.gpu_product if node else None) or "", because=explain_row(sight, one, row),
        signals=_list_signals(use, row),
    )


def _list_signals(use: usage.Usage, row: int) -> dict[str, dict[str, float | None]]:
    found: dict[str, dict[str, float | None]] = {}
    for signal in Signal:
        if signal not in use.peak or np.isnan(use.peak[signal][row]):
            continue
        label = signal.name if signal.label in found else signal.label  # DCGM's gpu_util beside the exporter's
        found[label] = {"max": float(use.peak[signal][row])}
        for name, columns in (("mean", use.mean), ("samples", use.count), ("newest", use.newest)):
            if signal in columns:
                value = float(columns[signal][row])
                found[label][name] = None if math.isnan(value) else value
    return found
