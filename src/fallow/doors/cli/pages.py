"""The pages of `status`, `idle` and `why`, as text: what a person reads first stands first.

In: answers (doors/answers), whoever gave them. Out: text for the terminal or pipe it goes to. Nothing is looked up or
decided here.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from fallow.doors.answers import forecasts, many, money, sharing
from fallow.doors.answers import rows as telling
from fallow.doors.answers import status as statuses
from fallow.doors.answers import workloads as answers
from fallow.doors.cli import show
from fallow.model import cluster, decision, gpus, kinds, units
from fallow.model.decision import Reason
from fallow.model.units import Instant

_MOST_NEXT: Final = 8
_UUID: Final = re.compile(r"((?:GPU|MIG)-[0-9a-f]{8})(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(.*)")
_KEPT: Final = frozenset(map(str, (Reason.Acknowledged, Reason.OptedOut, Reason.AlreadyPaused)))
_STATES: Final = ("idle", "active", "unknown")
_STEPS: Final = {"notice": "notice", "pause": "pause", "ackEnds": "ack ends", "freezeEnds": "freeze ends"}


def join(*sections: str) -> str:
    """With an empty line between two that say anything."""
    return "\n\n".join(filter(None, sections)) + "\n"


# ---- status ----------------------------------------------------------------------------------------------------------


def draw_status(first: str, page: statuses.StatusPage, asked: str, now: Instant) -> str:
    """`first`: whose answer it is, by whose rules. `asked`: what -n and -m leave of it, in words."""
    return join(
        first, show.fields(list(_summarise(page, asked)), indent=""), _draw_top(page),
        _draw_next(page, now), _draw_problems(page), _draw_shares(page),
    )


def _summarise(page: statuses.StatusPage, asked: str) -> Iterator[tuple[str, Any]]:
    of = page.cluster
    free = "how many are free cannot be seen" if of.free is None else f"{of.free:,} free"
    waits = f"; {of.waited_for:,} {'is' if of.waited_for == 1 else 'are'} waited for" if of.waited_for else ""
    yield "GPUS", f"{_tell_offered(of)}, {free}{waits}"
    who = f"{many(page.pods, 'pod')} of {many(page.workloads, 'workload')}"
    states = f"{page.active_gpus:,} busy, {page.idle_gpus:,} idle, {page.unknown_gpus:,} cannot tell"
    parts = "" if of.gpus == of.physical else ", each instance or slice as one,"
    yield "HELD", f"{page.gpus:,}{parts} by {who}{asked}: {states}"
    if page.gpus:
        yield "", show.Bar(page.active_gpus, page.idle_gpus, page.unknown_gpus, page.gpus, columns=show.fit_bar(60))
    if page.idle_gpus:
        yield "MONEY", _tell_money(page.idle_cost)
    if page.paused:
        back = many(sum(each.gpus or 0 for each in page.paused), "GPU")
        yield "PAUSED", f"{many(len(page.paused), 'workload')} by fallow, {back} given back: fallow paused -A"
    if page.frozen_until:
        yield "FROZEN", f"until {page.frozen_until}: {page.frozen_because or 'no reason is given'}"
    for rule in page.widened:
        waits = f"policy {rule.policy} waits {units.humane(rule.gone_idle_seconds)}"
        yield "WIDENED", f"{waits}, {_say_widened(rule.times)}"
    if page.suspects:
        first, more = page.suspects[0].workload, len(page.suspects) - 1
        named = f"{first.namespace}/{first.name}" + (f" and {more} more" if more else "")
        typed = f"fallow why {kinds.typed(answers.read_ref(first))} -n {first.namespace}"
        yield "SUSPECTS", f"{named} may be kept busy only to be left alone; nothing is done about it: {typed}"


def _say_widened(times: float) -> str:
    return f"{times:.4g} times as long as it says: too many of its pauses were undone at once"


def _tell_offered(of: statuses.ClusterGpus) -> str:
    """Boards, and as how many they are offered where some are cut or shared."""
    if of.gpus is None:
        return "how many the nodes have cannot be seen"
    where = f"on {many(of.nodes or 0, 'node')}"
    if of.physical is None:
        return f"{of.gpus:,} instances and slices {where} (MIG, time slices; how many GPUs that are is not labelled)"
    offered = f", offered as {of.gpus:,} (MIG, time slices)" if of.gpus > of.physical else ""
    return f"{of.physical:,} {where}{offered}"


def _tell_money(cost: statuses.IdleCost) -> str:
    unpriced = ", ".join(map(_tell_unpriced, cost.unpriced))
    if cost.per_hour is None:
        return f"what idle GPUs cost is not known; without a price: {unpriced}"
    also = f"; without a price: {unpriced}" if unpriced else ""
    said = money.say_hourly(cost.per_hour, cost.currency, is_list=cost.is_list)
    return f"idle GPUs cost {said}{_tell_partly(cost)}{also}"


def _tell_partly(cost: statuses.IdleCost) -> str:
    """What no list of idle workloads adds up to."""
    if not cost.partly_per_hour:
        return ""
    said = money.say_hourly(cost.partly_per_hour, cost.currency, is_list=False)
    rest = f"{many(cost.partly_gpus, 'GPU')} of {many(cost.partly_workloads, 'workload')}"
    return f"; {said} of it for {rest} that {'is' if cost.partly_workloads == 1 else 'are'} not idle as a whole"


def _tell_unpriced(part: money.Unpriced) -> str:
    says = f" (--price {part.model}=DOLLARS says it)" if part.model else ""
    return f"{part.gpus:,} {part.because}{says}"


def _draw_top(page: statuses.StatusPage) -> str:
    if not page.top:
        return ""
    columns = ["NAMESPACE", "WORKLOAD", "GPUS", "MODEL", "IDLE FOR", "$/H", "SO FAR", "NEXT"]
    laid = show.grid(columns, [_top_cells(row) for row in page.top], spare=("MODEL", "$/H", "SO FAR"))
    return f"{show.heading('COSTLIEST IDLE')}  all: fallow idle\n{laid}"


def _top_cells(row: answers.WorkloadRow) -> tuple[Any, ...]:
    named = (row.namespace, f"{row.kind}/{row.name}", row.idle_gpus, name_models(row.models))
    quiet = (_quiet(row), _dollars(row.cost), _so_far(row))
    return (*named, *quiet, row.skip or (row.next_action.type if row.next_action else ""))


def name_models(models: Iterable[str]) -> str:
    return ", ".join(map(gpus.shorten, models))


def _quiet(row: answers.WorkloadRow) -> str:
    quiet = "" if row.idle_seconds is None else units.humane(row.idle_seconds)
    return f"{quiet} or more" if row.at_least and quiet else quiet


def _dollars(cost: money.Cost | None) -> str:
    return "not known" if cost is None else f"{cost.per_hour:,.2f}"


def _so_far(row: answers.WorkloadRow) -> str:
    """What its idleness has cost: by that such lists are in order."""
    if row.cost is None or row.idle_seconds is None:
        return "not known"
    return f"{row.cost.per_hour * row.idle_seconds / units.HOUR:,.2f}"


def _draw_next(page: statuses.StatusPage, now: Instant) -> str:
    if not page.next:
        return ""
    rows = [_next_cells(step, now) for step in page.next[:_MOST_NEXT]]
    more = len(page.next) - _MOST_NEXT
    laid = show.grid(["WHEN", "WHAT", "WHOM", "HOLDS"], rows, spare=("HOLDS",))
    rest = f"\n... and {more} more: fallow idle" if more > 0 else ""
    return f"{show.heading('NEXT')}  by these rules; this command does none of it\n{laid}{rest}"


def _next_cells(step: statuses.NextStep, now: Instant) -> tuple[str, ...]:
    held = many(step.gpus, "GPU") if step.gpus else ""
    return _when(step.at, now), _STEPS.get(step.what, step.what), _whom(step), held


def _when(at: str | None, now: Instant) -> str:
    instant = units.read_instant(at)
    if instant is None:
        return "not known"
    return "now" if instant <= now else f"in {units.humane(instant - now)}"


def _whom(step: statuses.NextStep) -> str:
    named = step.workload
    return f"{named.namespace}/{named.name} ({named.kind})" if named else step.because


def _draw_problems(page: statuses.StatusPage) -> str:
    """What is wrong with the source as a whole ends the command with a sentence of its own."""
    shown = [each for each in page.problems if each.what != statuses.MEASUREMENTS]
    lines = (show.fold(f"  {each.what}: {each.because}", 4) for each in shown)
    helps = (show.fold(f"    what helps: {each.helps}", 4) for each in shown)
    body = "\n".join(f"{line}\n{helped}" for line, helped in zip(lines, helps, strict=True))
    return f"{show.heading('DATA')}  what cannot be told or seen\n{body}" if shown else ""


def _draw_shares(page: statuses.StatusPage) -> str:
    if not page.namespaces:
        return ""
    most = max(each.gpus for each in page.namespaces)
    rows = [
        (each.namespace, each.gpus, each.idle_gpus, show.Bar(each.active_gpus, each.idle_gpus, each.unknown_gpus, most))
        for each in page.namespaces
    ]
    laid = show.grid(["NAMESPACE", "GPUS", "IDLE", ""], rows, spare=("",))
    return f"{show.heading('NAMESPACES')}  {show.legend()}\n{laid}"


# ---- idle ------------------------------------------------------------------------------------------------------------


def draw_idle(
    first: str, rows: Sequence[telling.ApiRow], shown: Sequence[telling.ApiRow], asked: str, *, wide: bool
) -> str:
    """`first`: as of draw_status. `rows`: all that count; `asked`: what -n and -m leave of it, in words."""
    partly = sum(row.is_partly_idle for row in shown)
    also = f", {many(partly, 'workload')} only in part" if partly else ""
    idle, active, unknown = (sum(getattr(row, f"{state}_instances") for row in rows) for state in _STATES)
    sums = f"{idle:,} idle{also}, {active:,} busy, {unknown:,} cannot tell"
    if not shown:
        return join(first, show.fold(f"nothing is idle{asked}: {sums}"))
    columns = ["NAMESPACE", "WORKLOAD", "GPUS", "MODEL", "VERDICT", "IDLE FOR", "$/H", "SO FAR", "NEXT"]
    cells = [_idle_cells(row)[: len(columns) + 2 * wide] for row in shown]
    columns += ["POLICY", "WHY"] if wide else []
    laid = show.grid(columns, cells, styled="VERDICT", spare=("MODEL", "VERDICT", "$/H", "SO FAR"))
    by_list = "; $/H is at list price" if any(row.is_list and row.idle_per_hour for row in shown) else ""
    return join(first, laid, show.fold(f"of {many(idle + active + unknown, 'GPU')} held{asked}: {sums}{by_list}"))


def _idle_cells(row: telling.ApiRow) -> tuple[Any, ...]:
    line = telling.line(row)
    held = f"{row.idle_instances} of {row.held}" if row.is_partly_idle else str(row.held)
    verdict = answers.PAUSED if row.rest is not None else row.verdict
    return (
        row.namespace, f"{row.kind}/{row.name}", held, name_models(row.models), verdict, _quiet(line),
        *((_dollars(line.cost), _so_far(line)) if row.idle_instances else ("", "")), answers.next_step(line),
        row.policy, row.skip_because or row.because,
    )


# ---- why -------------------------------------------------------------------------------------------------------------


def draw_why(first: str, answer: answers.Explanation, now: Instant, *, wide: bool) -> str:
    ref, (reason,) = answers.read_ref(answer.workload), answer.reasons
    state = answers.PAUSED if _rests(answer) else answer.verdict
    head = f"{ref.short} in {ref.namespace}: {state}" + ("" if _rests(answer) else f" ({reason.reason})")
    lines = [*(_tell_pause(ref, answer.pause, now) if answer.pause else ()), *_tell_finding(ref, answer, now)]
    if answer.sharing is not None and sharing.is_of_interest(answer.sharing):
        lines += sharing.list_lines(answer.sharing, now)
    lines += [("waits", f"{each.pod}: {each.held or each.fit}: {each.because}") for each in answer.waiting]
    lines += forecasts.list_lines(answer.forecast) if answer.forecast is not None else ()
    lines += [("not seen", f"signal {each.signal}: {each.because}") for each in answer.lost_signals]
    lines += [("not seen", f"{each.who}: {each.because}") for each in answer.ignored]
    evidence = _draw_evidence(answer.gpus, wide=wide)
    return join(first, f"{show.heading(head)}\n{show.fields(lines)}", evidence)


def _rests(answer: answers.Explanation) -> bool:
    """What stands paused by us holds no GPU that could be judged: people want to see that, not that we cannot tell."""
    return answer.pause is not None and answer.held == 0


def _tell_pause(ref: cluster.Ref, pause: answers.PauseTold, now: Instant) -> Iterator[tuple[str, str]]:
    """What its marks say: why, by which rule, how many GPUs, when, by whom, and the way back."""
    at = units.read_instant(pause.at)
    ago = "" if at is None else f" ({units.humane(now - at)} ago)"
    rule = f", rule {pause.policy}" if pause.policy else ""
    yield "paused", f"at {pause.at or 'a time that cannot be read'}{ago} by {pause.by or 'somebody'}{rule}"
    yield "because", pause.reason or "no reason was written down"
    yield "gave back", "not known" if pause.gpus is None else many(pause.gpus, "GPU")
    yield "returns to", answers.return_size(pause)
    yield "back with", f"fallow resume {kinds.typed(ref)} -n {ref.namespace}"


def _tell_finding(ref: cluster.Ref, answer: answers.Explanation, now: Instant) -> Iterator[tuple[str, str]]:
    (reason,), skip, upcoming = answer.reasons, next(iter(answer.skips), None), answer.next_action
    rests, since = _rests(answer), units.read_instant(answer.idle_since)
    if not rests:
        yield "because", reason.because
    if since is not None:
        quiet = f"{'at least ' if answer.at_least else ''}{units.humane(now - since)}"
        yield "idle", f"{quiet}, since {answer.idle_since}"
    if answer.cost is not None:
        yield "costs", str(answer.cost)
    holds = "would hold for it when it runs: " if rests else ""
    yield "policy", f"{answer.policy}: {holds}quiet for {units.humane(answer.window_seconds)}, then {answer.action}"
    if answer.widened > 1.0:
        yield "widened", f"it waits {_say_widened(answer.widened)}"
    if answer.suspect:
        yield "suspect", f"it may be kept busy only to be left alone: {answer.suspect}"
    if skip is not None and not rests:
        yield "left alone", f"{skip.skip}: {skip.because}"
    elif upcoming is not None:
        yield "next", upcoming.type + (f" at {upcoming.at} at the earliest" if upcoming.at else "")
    if not rests and (helps := (skip or reason).helps):
        yield "what helps", helps
    if answer.verdict == decision.Verdict.idle and (skip is None or skip.skip not in _KEPT):
        yield "keep it", f"fallow ack {kinds.typed(ref)} -n {ref.namespace}"
    chain = " <- ".join(f"{link.kind}/{link.name}" for link in answer.owner)
    yield "owners", f"Pod <- {chain}" if chain else "none"


def _draw_evidence(evidence: Sequence[answers.GpuEvidence], *, wide: bool) -> str:
    if not evidence:
        return ""
    if not wide:
        rows = [(gpu.pod, _name_gpu(gpu), gpu.node, gpu.verdict, gpu.because) for gpu in evidence]
        return show.grid(["POD", "GPU", "NODE", "VERDICT", "WHY"], rows, styled="VERDICT", spare=("NODE",))
    columns = ["POD", "INDEX", "GPU", "MODEL", "NODE", "VERDICT", "REASON", "WHY", "SIGNALS"]
    rows_wide = [
        (gpu.pod, _name_index(gpu), gpu.uuid, gpus.shorten(gpu.model), gpu.node, gpu.verdict, gpu.reason, gpu.because,
         _name_signals(gpu)) for gpu in evidence
    ]
    return show.grid(columns, rows_wide, styled="VERDICT")


def _name_index(gpu: answers.GpuEvidence) -> str:
    return "" if gpu.index is None else str(gpu.index)


def _name_gpu(gpu: answers.GpuEvidence) -> str:
    """`3 GPU-1a2b3c4d`: its index on the node, and what is enough of its UUID to tell it from its neighbours."""
    match = _UUID.fullmatch(gpu.uuid)
    return " ".join(filter(None, (_name_index(gpu), f"{match[1]}{match[2]}" if match else gpu.uuid)))


def _name_signals(gpu: answers.GpuEvidence) -> str:
    return " ".join(f"{name}={seen.max:.3g}" for name, seen in gpu.signals.items() if seen.max is not None)
