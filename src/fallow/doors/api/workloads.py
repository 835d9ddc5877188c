"""What can be read of workloads: all of them by page, and each with why, what its GPUs did, what happened to it.

In: a ReadAsk. Out: structs of doors/answers.
Invariant: nothing here writes; a workload that is not known is a sentence and 404.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from fallow.account import audit
from fallow.clients import errors
from fallow.doors.answers import explaining, forecasts, past, scaling, sharing, suspects
from fallow.doors.answers import rows as telling
from fallow.doors.answers import workloads as naming
from fallow.doors.api.editions import Edition
from fallow.doors.api.questions import ReadAsk
from fallow.doors.api.refusals import Denied
from fallow.model import cluster, units, usage
from fallow.model.history import AuditEntry
from fallow.model.units import DAY, HOUR, MINUTE
from fallow.stories import idle as stories
from fallow.stories.scaling import ScalingCycle
from fallow.wiring.scaling import SCALING

_LAST: Final = "9999"
SORTS: Final[Mapping[str, Callable[[telling.ApiRow], Any]]] = {
    "next": lambda row: (row.next.at or "" if row.next else row.keep.until if row.keep else _LAST),
    "gpus": lambda row: row.gpus, "idle": lambda row: -1 if row.idle_seconds is None else row.idle_seconds,
    "cost": lambda row: -1.0 if row.per_hour is None else row.per_hour, "name": lambda row: row.name,
    "namespace": lambda row: row.namespace,
}


async def list_workloads(ask: ReadAsk) -> telling.RawWorkloads:
    edition, given = ask.edition, ask.given
    found = edition.order(given["sort"], SORTS[given["sort"]], down=given["order"] == "desc")
    for fits in _tests(given):
        found = [row for row in found if fits(row)]
    if given["q"]:
        found = _search(found, edition.words, given["q"])
    start = _find_start(found, given["cursor"])
    page, rest = found[start : start + given["limit"]], len(found) - start - given["limit"]
    return telling.RawWorkloads(
        revision=edition.revision, items=[edition.encoded[row.uid] for row in page],
        next=page[-1].uid if page and rest > 0 else None, total=len(found), counts=edition.counts,
        sums=telling.add_up(found), may=await _find_may(ask, page) if given["may"] == "yes" else (),
    )


async def _find_may(ask: ReadAsk, page: Sequence[telling.ApiRow]) -> tuple[telling.RowsMay, ...]:
    if ask.may_in is None:
        return ()
    return await ask.may_in(ask.request, [naming.read_ref(row) for row in page])


def _tests(given: Mapping[str, Any]) -> Iterator[Callable[[telling.ApiRow], bool]]:
    """All of what was asked for must fit."""
    verdict, kind, policy, model = (given[name] for name in ("verdict", "kind", "policy", "model"))
    groups = telling.VIEWS[given["view"]]
    if given["view"] != "all":
        yield lambda row: row.group in groups
    if verdict:
        yield lambda row: row.verdict == verdict
    if kind:
        yield lambda row: row.kind == kind
    if policy:
        yield lambda row: row.policy == policy
    if model:
        yield lambda row: model in row.models
    if given["namespace"]:
        find = _pattern(given["namespace"]).search
        yield lambda row: find(row.namespace.lower()) is not None


def _search(
    rows: Sequence[telling.ApiRow], words: Mapping[str, str], asked: str
) -> list[telling.ApiRow]:
    """Those that have it in their name, namespace or kind."""
    if "*" not in asked:
        return [row for row in rows if asked in words[row.uid]]
    find = _pattern(asked).search
    return [row for row in rows if find(words[row.uid])]


def _pattern(glob: str) -> re.Pattern[str]:
    """`team-*` as a test of a whole line; nothing but the star is special.

    Each part is taken where it comes first, for good: to try all the places of several stars would take hours.
    """
    first, *rest = map(re.escape, glob.split("*"))
    if not rest:
        return re.compile(f"(?m)^{first}$")
    between = "".join(f"(?>.*?{part})" for part in rest[:-1] if part)
    return re.compile(f"(?m)^{first}{between}.*{rest[-1]}$")


def _find_start(rows: Sequence[telling.ApiRow], cursor: str | None) -> int:
    """After the row that the cursor names; one that is gone meanwhile begins anew, so that nothing is left out."""
    return 0 if cursor is None else next((at + 1 for at, row in enumerate(rows) if row.uid == cursor), 0)


def _find(ask: ReadAsk) -> tuple[int, telling.ApiRow]:
    given, edition = ask.given, ask.edition
    index = edition.find(given["namespace"], given["kind"], given["name"])
    if index is None:
        called = f"{given['kind']} {given['namespace']}/{given['name']}"
        raise Denied(404, "NotFound", f"no workload {called} is known that holds a GPU or rests")
    return index, edition.by_uid[edition.seen.workloads[index].ref.uid]


async def show_workload(ask: ReadAsk) -> telling.ApiRow:
    return _find(ask)[1]


async def explain_workload(ask: ReadAsk) -> explaining.FullExplanation:
    index, row = _find(ask)
    edition = ask.edition
    look = stories.Look(edition.seen, edition.plan, edition.options)
    finding, evidence = look.explain(index)
    patch, measured = look.patch_of(finding), edition.seen.evidence
    suspect = suspects.find_suspect(ask.editions.suspects(), finding.workload.ref.uid)
    base = naming.explanation(finding, evidence, patch, edition.plan.at, measured, edition.book, suspect)
    base = msgspec.structs.replace(
        base, sharing=await _find_sharing(ask, finding.workload), forecast=await _foretell(ask, finding.workload),
        waiting=_find_waiting(ask, finding.workload),
    )
    ref = finding.workload.ref
    may = await ask.may(ask.request, finding.workload) if ask.may else explaining.nobody_may(ref)
    frozen = edition.plan.freeze
    return explaining.explain(
        base, finding, row, now=edition.plan.at, may=may, past=await _read_history(ask, ref, 500),
        writes=look.writes_of(finding), frozen=frozen.because if frozen else None,
    )


async def _find_sharing(ask: ReadAsk, workload: cluster.Workload) -> sharing.ShareTold | None:
    """None: nobody here sees to sharing, it has no pod, or the server does not tell."""
    pods = [ask.edition.seen.pods[place] for place in workload.pods]
    chosen = sharing.choose_pod(pods)
    if ask.editions.explainer is None or chosen is None:
        return None
    try:
        why = await ask.editions.explainer.explain(chosen.namespace, chosen.name, ask.now)
    except errors.ClientError:
        return None
    return None if why is None else sharing.tell(why, workload.ref, pods)


def _find_waiting(ask: ReadAsk, workload: cluster.Workload) -> tuple[scaling.WaitingTold, ...]:
    """None where nobody here sees to nodes."""
    found = ask.editions.story.latest(SCALING) if SCALING in ask.editions.story.names else None
    if not isinstance(found, ScalingCycle) or found.plan is None:
        return ()
    uids = {ask.edition.seen.pods[place].uid for place in workload.pods}
    return tuple(scaling.tell_pod(each) for each in found.plan.pods if each.pod.uid in uids)


async def _foretell(ask: ReadAsk, workload: cluster.Workload) -> forecasts.ForecastTold | None:
    """Of its newest pod; None: nobody here foretells anything, or it has none."""
    seen = ask.edition.seen
    chosen = sharing.choose_pod([seen.pods[place] for place in workload.pods])
    if ask.editions.forecasts is None or chosen is None:
        return None
    return forecasts.tell(await ask.editions.forecasts.foretell(workload, chosen, seen, ask.now), chosen.name)


async def show_preemption(ask: ReadAsk) -> forecasts.PreemptionPage:
    if ask.editions.forecasts is None:
        because = "only a daemon that may lead foretells how long pods run"
        return forecasts.PreemptionPage(
            as_of=units.rfc3339(ask.now), runs=0, because=because, all_waiting=None, waiting=()
        )
    try:
        found = await ask.editions.forecasts.advise(ask.edition.seen, ask.now, ask.given["limit"])
    except errors.ClientError as problem:
        raise Denied(502, "SourceError", str(problem)) from None
    return forecasts.tell_advice(found, ask.now)


async def _read_history(ask: ReadAsk, ref: cluster.Ref, limit: int) -> Sequence[AuditEntry]:
    if ask.editions.kept is None:
        return ()
    asked = audit.AuditQuery(namespace=ref.namespace, kind=ref.kind, name=ref.name, limit=limit)
    try:
        return await ask.editions.kept.read(asked)
    except errors.ClientError:  # why it is idle is told all the same
        return ()


async def show_history(ask: ReadAsk) -> past.HistoryPage:
    """Also of what is gone."""
    given = ask.given
    kind = given["kind"].partition(".")[0]
    asked = audit.AuditQuery(namespace=given["namespace"], kind=kind, name=given["name"], limit=given["limit"])
    return past.HistoryPage(items=tuple(map(past.tell, await ask.kept.read(asked))))


_LINES: Final = 16
TIMELINES: Final = {"3h": (3 * HOUR, MINUTE), "24h": (DAY, 5 * MINUTE), "7d": (7 * DAY, 30 * MINUTE)}


async def show_timeline(ask: ReadAsk) -> past.TimelinePage:
    index, _ = _find(ask)
    edition, (length, step) = ask.edition, TIMELINES[ask.given["window"]]
    finding, end = edition.plan.findings[index], ask.now // step * step
    measured, span = edition.maker.measured, usage.DrawnSpan(end - length, step, round(length / step) + 1)
    held = [(pod, row) for pod in finding.workload.pods for row in measured.of(pod)]
    gpus = {measured.use.gpu[row] for _, row in held} if measured.use else set()
    drawn = await _draw(ask, finding.workload, gpus, span)
    lines = [_draw_line(edition, pod, row, drawn, span) for pod, row in held]
    shown, rest = lines[:_LINES], [line.max for line in lines[_LINES:] if line.max is not None]
    worked = None if finding.never_used else finding.idle_since
    return past.TimelinePage(
        from_=units.rfc3339(span.start), to=units.rfc3339(span.end), step_seconds=step, gpus=tuple(shown),
        threshold=finding.rule.activity, window_from=units.rfc3339(edition.plan.at - finding.window),
        last_work=None if worked is None else units.rfc3339(worked), more=len(lines) - len(shown),
        more_max=max(rest, default=None),
    )


async def _draw(
    ask: ReadAsk, workload: cluster.Workload, gpus: set[str], span: usage.DrawnSpan
) -> Mapping[str, usage.Floats]:
    if ask.editions.draw is None:
        raise Denied(503, "NoHistory", "what GPUs did over time is not known here")
    pods = [ask.edition.seen.pods[pod] for pod in workload.pods]
    try:
        return await ask.editions.draw(pods, gpus, span, ask.now) if gpus else {}
    except errors.ClientError as problem:
        raise Denied(502, "SourceError", str(problem)) from None


def _draw_line(
    edition: Edition, pod: int, row: int, drawn: Mapping[str, usage.Floats], span: usage.DrawnSpan
) -> past.GpuLine:
    measured, found = edition.maker.measured, edition.seen.pods[pod]
    assert measured.use is not None
    use, board = measured.use, measured.board(row)
    values = drawn[use.gpu[row]].tolist() if use.gpu[row] in drawn else [math.nan] * span.points
    peaks = [float(use.peak[signal][row]) for signal in usage.RATIOS if signal in use.peak]
    counted = [float(column[row] * use.interval[row] / use.window) for column in use.count.values()]
    newest = [edition.plan.at - float(column[row]) for column in use.newest.values()]
    return past.GpuLine(
        node=found.node, index=measured.index(row), uuid=board if board.startswith(("GPU-", "MIG-")) else None,
        pod=found.name, values=tuple(None if math.isnan(value) else round(value, 4) for value in values),
        max=_known(peaks, max), coverage=_known([min(1.0, value) for value in counted], max),
        newest_seconds=_known(newest, min),
    )


def _known(values: Sequence[float], choose: Callable[[Sequence[float]], float]) -> float | None:
    some = [value for value in values if math.isfinite(value)]
    return round(choose(some), 4) if some else None
