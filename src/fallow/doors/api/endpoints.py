"""What can be read over HTTP: every path with its parameters and its answer, in one table.

In: a ReadAsk (the latest edition, parameters already read). Out: structs of doors/answers. Routes and the OpenAPI
document
are made of the table, so that neither can have what the other lacks.
Invariant: nothing here writes. A parameter that is wrong, or that there is none of that name, is a sentence and 400.
"""

import math
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec
from starlette.requests import Request

from fallow import __version__
from fallow.account import audit
from fallow.clients import errors
from fallow.doors.answers import explaining, field, overview, past, policies, seed
from fallow.doors.answers import rows as telling
from fallow.doors.answers import status as statuses
from fallow.doors.answers import workloads as naming
from fallow.doors.api.answering import ApiProblem, user_of
from fallow.doors.api.editions import Edition, Editions
from fallow.model import cluster, prices, units, usage
from fallow.model.history import AuditEntry, Happened
from fallow.model.policies import idle
from fallow.model.seen import sure
from fallow.model.units import DAY, HOUR, MINUTE, Instant
from fallow.stories import idle as stories

May: TypeAlias = Callable[[Request, cluster.Workload], Awaitable[explaining.MayDo]]
Read: TypeAlias = Callable[[str], Any]  # raises ValueError, one sentence

MOST_ROWS: Final = 1000
USUAL_ROWS: Final = 100
_SPANS: Final = ("24h", "7d", "30d")
_SAVED_DAYS: Final = {"24h": 1, "7d": 7, "14d": 14, "30d": 30}
_SEED_WINDOWS: Final = {"1h": HOUR, "7d": 7 * DAY, "30d": 30 * DAY}
_MOST_ENTRIES: Final = 10_000


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """`in_path`: a part of the path, by its name there."""

    name: str
    help: str
    read: Read = str
    choices: tuple[str, ...] = ()
    default: str | None = None
    in_path: bool = False
    is_number: bool = False


class ReadAsk(msgspec.Struct, frozen=True, kw_only=True):
    """One question: what there is to tell, by which parameters, by whom."""

    editions: Editions
    given: Mapping[str, Any]
    request: Request
    may: May | None
    auth: overview.AuthMode
    latest: Edition | None

    @property
    def edition(self) -> Edition:
        if self.latest is None:
            raise ApiProblem(503, "NotYet", "no cycle has ended yet", headers={"Retry-After": "5"})
        return self.latest

    @property
    def now(self) -> Instant:
        return self.editions.clock()

    @property
    def kept(self) -> audit.Audit:
        if self.editions.kept is None:
            raise ApiProblem(503, "NoHistory", "nothing is written down here")
        return self.editions.kept


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    summary: str
    returns: Any
    answer: Callable[[ReadAsk], Awaitable[Any]]
    parameters: tuple[Parameter, ...] = ()
    is_timed: bool = False  # its answer is of this moment, not of a revision


def read_parameters(endpoint: Endpoint, request: Request) -> dict[str, Any]:
    known = {each.name: each for each in endpoint.parameters}
    query = request.query_params
    for name in query:
        if name not in known or known[name].in_path:
            there = ", ".join(each.name for each in endpoint.parameters if not each.in_path) or "none"
            raise ApiProblem(400, "BadParameter", f"there is no parameter {name!r} here; there are: {there}")
        if len(query.getlist(name)) > 1:
            raise ApiProblem(400, "BadParameter", f"the parameter {name!r} is given twice")
    found = {}
    for name, each in known.items():
        text = request.path_params[name] if each.in_path else query.get(name) or each.default
        found[name] = None if text is None else _read(each, text)
    return found


def _read(parameter: Parameter, text: str) -> Any:
    if parameter.choices and text not in parameter.choices:
        allowed = ", ".join(parameter.choices)
        raise ApiProblem(400, "BadParameter", f"{parameter.name}: {text!r} is not one of {allowed}")
    try:
        return parameter.read(text)
    except (ValueError, OverflowError) as problem:
        raise ApiProblem(400, "BadParameter", f"{parameter.name}: {problem}") from None


def _whole(least: int, most: int) -> Read:
    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", text) or not least <= int(text) <= most:
            raise ValueError(f"{text!r} is not a whole number from {least} to {most}")
        return int(text)

    return read


# ---- the first page --------------------------------------------------------------------------------------------------


async def show_overview(ask: ReadAsk) -> overview.OverviewPage:
    options, edition, story = ask.editions.options, ask.latest, ask.editions.story
    rows = edition.rows if edition else []
    plan = edition.plan if edition else None
    frozen, unknown = overview.tell_freeze(plan), overview.group_unknown(rows, edition.nodes_of if edition else {})
    is_dry = not options.mandate.acting
    banners = overview.find_banners(
        failure=ask.editions.failure, frozen=frozen, unknown=unknown, as_of=plan.at if plan else None,
        interval=options.loop.interval, now=ask.now, is_dry=is_dry,
    )
    nothing = field.GpuSums(
        total=None, busy=None, idle=None, warned=None, kept=None, left=None, unknown=None, free=None, freed=0.0
    )
    return overview.OverviewPage(
        revision=ask.editions.revision, cluster=options.telling.cluster_name or "this cluster",
        mode="dry-run" if is_dry else "acting", version=__version__, as_of=units.rfc3339(plan.at) if plan else None,
        interval_seconds=options.loop.interval, is_leader=story.health.leading, currency=prices.CURRENCY,
        took_seconds=round(edition.cycle.took, 3) if edition and edition.cycle else None, auth=ask.auth,
        user=user_of(ask.request), frozen=frozen, failure=ask.editions.failure,
        gpus=edition.gpus if edition else nothing,
        money=overview.add_money(rows), counts=edition.counts if edition else telling.count_views(()),
        paused=overview.count_paused(rows), given_back_today=await _give_back_today(ask),
        next=overview.find_coming(rows, frozen), by_namespace=overview.share_namespaces(rows),
        brakes=overview.count_brakes(edition.cycle if edition else None, plan, options.mandate.brakes),
        left_alone=overview.group_left(rows), unknowns=unknown, banners=tuple(banners),
    )


async def _give_back_today(ask: ReadAsk) -> overview.GivenBack:
    begin = ask.now // DAY * DAY
    spans = past.find_spans(await _read_pauses(ask, 30), _resting(ask), ask.now)
    return overview.GivenBack(gpu_hours=past.hours_between(spans, begin, ask.now), taken_gpu_hours=None)


async def _read_pauses(ask: ReadAsk, days: float) -> Sequence[AuditEntry]:
    if ask.editions.kept is None:
        return ()
    asked = audit.AuditQuery(since=ask.now - days * DAY, types=past.PAUSES_AND_ENDS, limit=_MOST_ENTRIES)
    return await ask.editions.kept.read(asked)


def _resting(ask: ReadAsk) -> set[str]:
    return {row.uid for row in ask.latest.rows if row.rest is not None} if ask.latest else set()


async def show_field(ask: ReadAsk) -> field.FieldPage:
    return ask.edition.field


async def show_nodes(ask: ReadAsk) -> field.NodesPage:
    edition = ask.edition
    nodes = field.show_nodes(edition.field, edition.seen, edition.maker.measured, edition.plan.at)
    source = "Exporters, scraped directly" if ask.editions.options.prometheus is None else "Prometheus"
    sources = field.show_sources(edition.seen, nodes, source=source, now=ask.now)
    return field.NodesPage(revision=edition.revision, sources=sources, nodes=nodes)


# ---- workloads -------------------------------------------------------------------------------------------------------

_LAST: Final = "9999"
_SORTS: Final[Mapping[str, Callable[[telling.ApiRow], Any]]] = {
    "next": lambda row: (row.next.at or "" if row.next else row.keep.until if row.keep else _LAST),
    "gpus": lambda row: row.gpus, "idle": lambda row: -1 if row.idle_seconds is None else row.idle_seconds,
    "cost": lambda row: -1.0 if row.per_hour is None else row.per_hour, "name": lambda row: row.name,
    "namespace": lambda row: row.namespace,
}
_VERDICTS: Final = {"idle": "idle", "active": "busy", "unknown": "unknown"}


async def list_workloads(ask: ReadAsk) -> telling.RawWorkloads:
    edition, given = ask.edition, ask.given
    found = edition.order(given["sort"], _SORTS[given["sort"]], down=given["order"] == "desc")
    for fits in _tests(given):
        found = [row for row in found if fits(row)]
    if given["q"]:
        found = _search(found, edition.words, given["q"])
    start = _find_start(found, given["cursor"])
    page, rest = found[start : start + given["limit"]], len(found) - start - given["limit"]
    return telling.RawWorkloads(
        revision=edition.revision, items=[edition.encoded[row.uid] for row in page],
        next=page[-1].uid if page and rest > 0 else None, total=len(found), counts=edition.counts,
        sums=telling.add_up(found),
    )


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
    """`team-*` as a test of a whole line; nothing but the star is special."""
    return re.compile(f"(?m)^{'.*'.join(map(re.escape, glob.split('*')))}$")


def _word(text: str) -> str:
    if len(text) > 253 or "\n" in text:
        raise ValueError("more than 253 characters, or more than a line")
    return text.lower()


def _find_start(rows: Sequence[telling.ApiRow], cursor: str | None) -> int:
    """After the row that the cursor names; one that is gone meanwhile begins anew, so that nothing is left out."""
    return 0 if cursor is None else next((at + 1 for at, row in enumerate(rows) if row.uid == cursor), 0)


def _find(ask: ReadAsk) -> tuple[int, telling.ApiRow]:
    given, edition = ask.given, ask.edition
    index = edition.find(given["namespace"], given["kind"], given["name"])
    if index is None:
        called = f"{given['kind']} {given['namespace']}/{given['name']}"
        raise ApiProblem(404, "NotFound", f"no workload {called} is known that holds a GPU or rests")
    return index, edition.by_uid[edition.seen.workloads[index].ref.uid]


async def show_workload(ask: ReadAsk) -> telling.ApiRow:
    return _find(ask)[1]


async def explain_workload(ask: ReadAsk) -> explaining.FullExplanation:
    index, row = _find(ask)
    edition = ask.edition
    look = stories.Look(edition.seen, edition.plan, edition.options)
    (finding, evidence), lost = look.explain(index), edition.seen.evidence.lost_signals
    share = row.gpus / row.instances if row.instances else 1.0
    one = naming.count(edition.plan, index)
    cost = statuses.find_cost(one, edition.seen, edition.book, of_all=True)
    base = naming.explanation(finding, evidence, look.patch_of(finding), edition.plan.at, lost, cost, round(share, 6))
    ref = finding.workload.ref
    may = await ask.may(ask.request, finding.workload) if ask.may else explaining.nobody_may(ref)
    frozen = edition.plan.freeze
    return explaining.explain(
        base, finding, row, now=edition.plan.at, may=may, past=await _read_history(ask, ref, 500),
        frozen=frozen.because if frozen else None,
    )


async def _read_history(ask: ReadAsk, ref: cluster.Ref, limit: int) -> Sequence[AuditEntry]:
    if ask.editions.kept is None:
        return ()
    asked = audit.AuditQuery(namespace=ref.namespace, kind=ref.kind, name=ref.name, limit=limit)
    return await ask.editions.kept.read(asked)


async def show_history(ask: ReadAsk) -> past.HistoryPage:
    """Also of what is gone."""
    given = ask.given
    kind = given["kind"].partition(".")[0]
    asked = audit.AuditQuery(namespace=given["namespace"], kind=kind, name=given["name"], limit=given["limit"])
    return past.HistoryPage(items=tuple(map(past.tell, await ask.kept.read(asked))))


_LINES: Final = 16
_TIMELINES: Final = {"3h": (3 * HOUR, MINUTE), "24h": (DAY, 5 * MINUTE), "7d": (7 * DAY, 30 * MINUTE)}


async def show_timeline(ask: ReadAsk) -> past.TimelinePage:
    index, _ = _find(ask)
    edition, (length, step) = ask.edition, _TIMELINES[ask.given["window"]]
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
        raise ApiProblem(503, "NoHistory", "what GPUs did over time is not known here")
    pods = [ask.edition.seen.pods[pod] for pod in workload.pods]
    try:
        return await ask.editions.draw(pods, gpus, span, ask.now) if gpus else {}
    except errors.ClientError as problem:
        raise ApiProblem(502, "SourceError", str(problem)) from None


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


# ---- what happened ---------------------------------------------------------------------------------------------------


def _types(text: str) -> frozenset[Happened]:
    known = {str(each) for each in Happened}
    asked = [word for word in text.split(",") if word]
    if unknown := [word for word in asked if word not in known]:
        raise ValueError(f"{unknown[0]!r} is none of {', '.join(sorted(known))}")
    return frozenset(map(Happened, asked))


async def list_decisions(ask: ReadAsk) -> past.DecisionsPage:
    given, infinite = ask.given, float("inf")
    asked = audit.AuditQuery(
        since=given["since"] or 0.0, until=given["until"] or infinite, types=given["type"] or frozenset(),
        before=given["cursor"], limit=given["limit"],
    )
    found = await ask.kept.read(asked)
    following = str(found[-1].number) if len(found) == given["limit"] else None
    return past.DecisionsPage(items=tuple(map(past.tell, found)), next=following, revision=ask.editions.revision)


async def show_states(ask: ReadAsk) -> past.StatesPage:
    window = ask.given["window"]
    return past.show_states(await ask.kept.levels(ask.now - past.WINDOWS[window][0] - HOUR), window, ask.now)


async def show_pace(ask: ReadAsk) -> past.PacePage:
    span, step = past.PACES[ask.given["window"]]
    begin = (ask.now - span) // step * step
    types = (Happened.paused, Happened.resumed, Happened.brought_back, Happened.regretted)
    counted = await ask.kept.pace(types, begin, step, ask.now)
    frozen = frozenset({Happened.frozen, Happened.unfrozen})
    freezes = await ask.kept.read(audit.AuditQuery(since=begin, types=frozen, limit=_MOST_ENTRIES))
    return past.show_pace(counted, freezes, begin=begin, step=step, now=ask.now)


async def show_savings(ask: ReadAsk) -> past.SavingsPage:
    days = _SAVED_DAYS[ask.given["window"]]
    entries = await _read_pauses(ask, 30 + days)
    is_dry = not ask.editions.options.mandate.acting
    return past.show_savings(entries, _resting(ask), days=days, now=ask.now, is_dry=is_dry)


async def show_regrets(ask: ReadAsk) -> past.RegretsPage:
    entries, since = await _read_pauses(ask, 30), ask.now - 30 * DAY
    return past.show_regrets(entries, await ask.kept.count(since), _rules(ask))


def _rules(ask: ReadAsk) -> Mapping[str, idle.Rule]:
    found = sure(ask.latest.seen.policies) if ask.latest else ()
    return {**{each.name: each.rule for each in found}, policies.FLAGS: ask.editions.options.mandate.rule}


async def show_policies(ask: ReadAsk) -> policies.PoliciesPage:
    edition = ask.edition
    return policies.show_policies(edition.seen, edition.rows, ask.editions.options.mandate)


async def show_acks(ask: ReadAsk) -> policies.AcksPage:
    return policies.show_acks(ask.edition.rows)


async def show_freeze(ask: ReadAsk) -> policies.FreezeState:
    return policies.show_freeze(ask.edition.plan)


# ---- the seed's own paths --------------------------------------------------------------------------------------------


async def seed_status(ask: ReadAsk) -> seed.SeedStatus:
    return seed.show_status(ask.edition.rows, ask.edition.plan)


async def seed_summary(ask: ReadAsk) -> seed.SeedSummary:
    edition, counted = ask.edition, await ask.kept.count(0.0)
    return seed.SeedSummary(
        scale_downs=seed.SeedPauses(lifetime=counted.get(Happened.paused, 0)),
        idle_workloads=seed.SeedCurrent(current=seed.count_idle(edition.rows)), pods_checked=edition.plan.totals.pods,
        updated_at=seed.updated(edition.plan.at),
    )


async def seed_stats(ask: ReadAsk) -> seed.SeedStats:
    window = ask.given["window"]
    if window not in _SEED_WINDOWS:
        refused = seed.SeedRefusal(error="invalid window", allowed=list(_SEED_WINDOWS))
        raise ApiProblem(400, "BadParameter", "invalid window", body=refused)
    edition, ever = ask.edition, await ask.kept.count(0.0)
    lately = await ask.kept.count(ask.now - _SEED_WINDOWS[window])
    return seed.SeedStats(
        scale_downs=seed.SeedPausesIn(
            lifetime=ever.get(Happened.paused, 0), in_window=lately.get(Happened.paused, 0), window=window
        ),
        idle_workloads=seed.SeedCurrent(current=seed.count_idle(edition.rows)),
        prometheus_available=edition.seen.evidence.trouble is None and ask.editions.options.prometheus is not None,
        pods_checked=edition.plan.totals.pods, updated_at=seed.updated(edition.plan.at),
    )


async def seed_clusters(ask: ReadAsk) -> list[seed.SeedCluster]:
    options = ask.editions.options
    honored = options.prometheus.honor_labels if options.prometheus else options.scrape.honor_labels
    return [seed.SeedCluster(name=options.telling.cluster_name or "default", honor_labels=honored)]


# ---- the table -------------------------------------------------------------------------------------------------------


def _window(*choices: str, default: str) -> Parameter:
    return Parameter(name="window", help="How far back.", choices=choices, default=default)


def _limit(usual: int, most: int) -> Parameter:
    text = f"Most items of one answer, at most {most}."
    return Parameter(name="limit", help=text, read=_whole(1, most), default=str(usual), is_number=True)


_ONE: Final = (
    Parameter(name="namespace", help="Namespace of the workload.", in_path=True),
    Parameter(name="kind", help="Its kind, such as Deployment or Rollout.argoproj.io.", in_path=True),
    Parameter(name="name", help="Its name.", in_path=True),
)
_WORKLOAD: Final = "/api/v1/workloads/{namespace}/{kind}/{name}"

ENDPOINTS: Final = (
    Endpoint(path="/api/status", summary="Idle workloads, as gpu-pruner tells them", returns=seed.SeedStatus,
             answer=seed_status),
    Endpoint(path="/api/v1/summary", summary="Counts, as gpu-pruner tells them", returns=seed.SeedSummary,
             answer=seed_summary),
    Endpoint(path="/api/v1/stats", summary="Counts of a window, as gpu-pruner tells them", returns=seed.SeedStats,
             answer=seed_stats, is_timed=True,
             parameters=(Parameter(name="window", help="1h, 7d or 30d.", default="7d"),)),
    Endpoint(path="/api/v1/clusters", summary="The clusters that are looked at", returns=list[seed.SeedCluster],
             answer=seed_clusters),
    Endpoint(path="/api/v1/overview", summary="The cluster on one page", returns=overview.OverviewPage,
             answer=show_overview, is_timed=True),
    Endpoint(path="/api/v1/gpus", summary="Every GPU with who holds which part of it", returns=field.FieldPage,
             answer=show_field),
    Endpoint(path="/api/v1/nodes", summary="Nodes, and how well they are measured", returns=field.NodesPage,
             answer=show_nodes),
    Endpoint(
        path="/api/v1/workloads", summary="Workloads that hold GPUs or rest", returns=telling.WorkloadsPage,
        answer=list_workloads, parameters=(
            Parameter(name="view", help="Which of them.", choices=tuple(telling.VIEWS), default="all"),
            Parameter(name="verdict", help="Only those with this verdict.", choices=tuple(_VERDICTS)),
            Parameter(name="namespace", help="Only of this namespace; team-* fits several.", read=_word),
            Parameter(name="kind", help="Only of this kind."), Parameter(name="policy", help="Only by this policy."),
            Parameter(name="model", help="Only with GPUs of this model."),
            Parameter(name="q", help="Only with this in name, namespace or kind; * stands for anything.", read=_word),
            Parameter(name="sort", help="In which order.", choices=tuple(_SORTS), default="next"),
            Parameter(name="order", help="Up or down.", choices=("asc", "desc"), default="asc"),
            _limit(USUAL_ROWS, MOST_ROWS), Parameter(name="cursor", help="`next` of the answer before."),
        ),
    ),
    Endpoint(path=_WORKLOAD, summary="One workload", returns=telling.ApiRow, answer=show_workload, parameters=_ONE),
    Endpoint(path=f"{_WORKLOAD}/explain", summary="Why, with all the evidence", returns=explaining.FullExplanation,
             answer=explain_workload, parameters=_ONE),
    Endpoint(path=f"{_WORKLOAD}/timeline", summary="What its GPUs did over time", returns=past.TimelinePage,
             answer=show_timeline, parameters=(*_ONE, _window("3h", "24h", "7d", default="3h")), is_timed=True),
    Endpoint(path=f"{_WORKLOAD}/history", summary="What happened to it", returns=past.HistoryPage, answer=show_history,
             parameters=(*_ONE, _limit(100, 1000))),
    Endpoint(
        path="/api/v1/decisions", summary="What was decided, the newest first", returns=past.DecisionsPage,
        answer=list_decisions, parameters=(
            Parameter(name="type", help="Only of these types, with commas between.", read=_types),
            Parameter(name="since", help="Not before (RFC 3339).", read=units.parse_instant),
            Parameter(name="until", help="Before (RFC 3339).", read=units.parse_instant), _limit(100, 1000),
            Parameter(name="cursor", help="`next` of the answer before.", read=_whole(0, 999_999_999)),
        ),
    ),
    Endpoint(path="/api/v1/states", summary="GPUs by state over time", returns=past.StatesPage, answer=show_states,
             parameters=(_window(*_SPANS, default="24h"),), is_timed=True),
    Endpoint(path="/api/v1/pace", summary="Pauses, resumes and regrets over time", returns=past.PacePage,
             answer=show_pace, parameters=(_window(*_SPANS, default="7d"),), is_timed=True),
    Endpoint(path="/api/v1/savings", summary="GPU-hours given back", returns=past.SavingsPage, answer=show_savings,
             parameters=(_window(*_SAVED_DAYS, default="7d"),), is_timed=True),
    Endpoint(path="/api/v1/regrets", summary="Pauses that were undone at once, and pauses that did not happen",
             returns=past.RegretsPage, answer=show_regrets, is_timed=True),
    Endpoint(path="/api/v1/policies", summary="Policies, and what each matches now", returns=policies.PoliciesPage,
             answer=show_policies),
    Endpoint(path="/api/v1/acks", summary="Acknowledgements that stand", returns=policies.AcksPage, answer=show_acks),
    Endpoint(path="/api/v1/freeze", summary="Whether notices and pauses are held back", returns=policies.FreezeState,
             answer=show_freeze),
)
