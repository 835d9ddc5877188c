"""What can be read over HTTP: every path with its parameters and its answer, in one table.

In: a ReadAsk (the latest edition, parameters already read). Out: structs of doors/answers. Routes and the OpenAPI
document are made of the table, so that neither can have what the other lacks.
Invariant: nothing here writes.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from fallow import __version__, names, verbs
from fallow.account import audit, digest, held_idle, node_hours, savings
from fallow.clients import errors
from fallow.doors import answers
from fallow.doors.answers import (
    explaining,
    field,
    forecasts,
    layouts,
    nodes,
    overview,
    past,
    policies,
    scaling,
    seed,
    standing,
    suspects,
)
from fallow.doors.answers import rows as telling
from fallow.doors.answers import status as statuses
from fallow.doors.answers.clusters import ClustersPage
from fallow.doors.api import clusters, cost, workloads
from fallow.doors.api.answering import user_of
from fallow.doors.api.clusters import SAVED
from fallow.doors.api.questions import ONE, Endpoint, Parameter, ReadAsk, whole
from fallow.doors.api.refusals import Denied
from fallow.model import units
from fallow.model.digest import Digest
from fallow.model.history import AuditEntry, Happened
from fallow.model.patterns import Pattern, compile_pattern
from fallow.model.policies import idle
from fallow.model.seen import sure
from fallow.model.units import DAY, HOUR, Instant, Seconds
from fallow.stories import idle as stories
from fallow.stories.consolidation import ConsolidationCycle
from fallow.stories.defrag import DefragCycle
from fallow.stories.scaling import ScalingCycle
from fallow.stories.share_policies import PoliciesCycle
from fallow.stories.sharing import SharingCycle
from fallow.wiring.consolidation import CONSOLIDATION, DEFRAG
from fallow.wiring.scaling import SCALING
from fallow.wiring.sharing import POLICIES as SHARE_POLICIES
from fallow.wiring.sharing import SHARING

_LINE: Final = "^[^\\n]{0,253}$"
_TYPES: Final = f"^(({'|'.join(Happened)})(,|$))*$"
MOST_ROWS: Final = 1000
USUAL_ROWS: Final = 100
_SPANS: Final = ("24h", "7d", "30d")
_SAVED_DAYS: Final = {"24h": 1, "7d": 7, "14d": 14, "30d": 30}
_SEED_WINDOWS: Final = {"1h": HOUR, "7d": 7 * DAY, "30d": 30 * DAY}
_MOST_ENTRIES: Final = 10_000
_LAST_NUMBER: Final = 999_999_999
_COUNTED_DAYS: Final = 14  # of which the free GPUs are read, to say what was taken


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
        undelivered=overview.find_undelivered(edition.cycle.outcomes if edition and edition.cycle else ()),
    )
    nothing = field.GpuSums(
        total=None, busy=None, idle=None, warned=None, kept=None, left=None, unknown=None, free=None, freed=0.0
    )
    return overview.OverviewPage(
        revision=ask.editions.revision, now=units.rfc3339(ask.now),
        cluster=options.telling.cluster_name or "this cluster", peers=len(options.peers),
        mode="dry-run" if is_dry else "acting", version=__version__, as_of=units.rfc3339(plan.at) if plan else None,
        interval_seconds=options.loop.interval, watches=tuple(options.mandate.scope.watch_namespaces),
        is_leader=story.health.leading, currency=ask.editions.currency,
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
    today, source = past.find_days(1, ask.now), _find_source(ask)
    try:
        day = None if ask.editions.kept is None else (await _count_back(ask, today))[today[0]]
    except errors.ClientError:
        day = None
    given, taken = day or (None, None)
    until = answers.instant(_find_until(ask))
    return overview.GivenBack(gpu_hours=given, taken_gpu_hours=taken, source=source, until=until)


def _find_source(ask: ReadAsk) -> Literal["books", "audit"]:
    return "audit" if ask.editions.books is None else "books"


def _find_until(ask: ReadAsk) -> Instant | None:
    """What was given back later is not in the figures."""
    return ask.now if ask.editions.books is None else ask.editions.books.saved_until()


async def _count_back(ask: ReadAsk, days: Sequence[Instant]) -> dict[Instant, past.DayHours]:
    """What was given back on each of these days, by the books where they are kept."""
    if ask.editions.books is not None:
        rows = await ask.editions.books.ledger.read_savings(int(days[0]), int(ask.now) + 1)
        is_dry, until = not ask.editions.options.mandate.acting, _find_until(ask)
        return {day: past.read_day(rows, day, is_dry=is_dry, until=until) for day in days}
    spans = await _read_spans(ask, days[0])
    levels = await ask.kept.levels(days[0]) if len(days) <= _COUNTED_DAYS else ()
    return {day: past.count_day(spans, levels, day, min(day + DAY, ask.now)) for day in days}


async def _read_spans(ask: ReadAsk, since: Instant) -> list[savings.PauseSpan]:
    is_dry = not ask.editions.options.mandate.acting
    standing = digest.find_standing(ask.latest.seen if ask.latest else None, is_dry=True) if is_dry else _resting(ask)
    return await savings.read_spans(ask.kept, since, ask.now, standing=standing, is_dry=is_dry)


async def _read_pauses(ask: ReadAsk, days: float) -> Sequence[AuditEntry]:
    if ask.editions.kept is None:
        return ()
    asked = audit.AuditQuery(since=ask.now - days * DAY, types=past.PAUSES_AND_ENDS, limit=_MOST_ENTRIES)
    return await ask.editions.kept.read(asked)


def _resting(ask: ReadAsk) -> set[str]:
    return {row.uid for row in ask.latest.rows if row.rest is not None} if ask.latest else set()


_LONGEST_EXPRESSION: Final = 500


def _expression(text: str) -> Pattern:
    if len(text) > _LONGEST_EXPRESSION:
        raise ValueError(f"more than {_LONGEST_EXPRESSION} characters")
    return compile_pattern(text)


async def show_status(ask: ReadAsk) -> statuses.StatusPage:
    """As `fallow status` tells it, by the rules of this daemon."""
    edition, asked = ask.edition, (ask.given["namespace"], ask.given["model"])
    look = stories.Look(edition.seen, edition.plan, edition.options)
    try:
        view = statuses.find_view(look, *asked)
        return statuses.status(look, view, None, edition.book, ask.editions.suspects())
    except LookupError as problem:
        raise Denied(404, "NotFound", str(problem)) from None


async def show_standing(ask: ReadAsk) -> standing.StandingPage:
    """As the marks are now, which a cycle sees later."""
    reach = ask.editions.reach
    if reach is None:
        raise Denied(503, "NotYet", "the cluster has not been seen yet", retry_after=5)
    return standing.tell(verbs.list_paused(reach), verbs.acks(reach, ask.now), verbs.find_hidden(reach, or_kept=True))


async def show_field(ask: ReadAsk) -> field.FieldPage:
    return ask.edition.field


async def show_nodes(ask: ReadAsk) -> nodes.NodesPage:
    edition = ask.edition
    day = await _cover_day(ask, [node.name for pool in edition.field.pools for node in pool.nodes])
    shown = nodes.show_nodes(
        edition.field, edition.seen, edition.maker.measured, edition.plan.at, day, book=edition.book
    )
    source = "Exporters, scraped directly" if ask.editions.options.prometheus is None else "Prometheus"
    sources = nodes.show_sources(edition.seen, shown, source=source, now=ask.now)
    return nodes.NodesPage(revision=edition.revision, sources=sources, nodes=shown)


async def show_sharing(ask: ReadAsk) -> layouts.SharingPage:
    """As the stories last found it; where one is not told there is nothing to tell."""
    story = ask.editions.story
    shared, rules, packed, moved = (
        story.latest(name) if name in story.names else None
        for name in (SHARING, SHARE_POLICIES, CONSOLIDATION, DEFRAG)
    )
    return layouts.show(
        shared if isinstance(shared, SharingCycle) else None, rules if isinstance(rules, PoliciesCycle) else None,
        packed if isinstance(packed, ConsolidationCycle) else None, moved if isinstance(moved, DefragCycle) else None,
    )


async def show_scaling(ask: ReadAsk) -> scaling.ScalingPage:
    """As the story last planned it."""
    story = ask.editions.story
    found = story.latest(SCALING) if SCALING in story.names else None
    if not isinstance(found, ScalingCycle):
        return scaling.show(None, None, "nobody looks at nodes here" if SCALING not in story.names else "")
    return scaling.show(found.plan, found.sight, found.failure)


async def _cover_day(ask: ReadAsk, named: Sequence[str]) -> Mapping[str, nodes.CoverageTold]:
    """How well each was measured, as far as it was written down; what cannot be read is not known."""
    kept, now = ask.editions.kept, ask.edition.plan.at
    if kept is None:
        return {}
    try:
        past_of = await kept.conditions(map(node_hours.uid_of, named), now - DAY)
        levels = await kept.levels(now - DAY)
    except errors.ClientError:
        return {}
    away = past.find_away(levels, now - DAY, now, ask.editions.options.loop.interval)
    found = ((node, past_of.get(node_hours.uid_of(node))) for node in named)
    return {node: nodes.cover_day(some, away, now) for node, some in found if some}


# ---- what happened ---------------------------------------------------------------------------------------------------


def _types(text: str) -> frozenset[Happened]:
    known = {str(each) for each in Happened}
    asked = [word for word in text.split(",") if word]
    if unknown := [word for word in asked if word not in known]:
        raise ValueError(f"{unknown[0]!r} is none of {', '.join(sorted(known))}")
    return frozenset(map(Happened, asked))


async def list_decisions(ask: ReadAsk) -> past.DecisionsPage:
    given, since, until = ask.given, ask.given["since"] or 0.0, ask.given["until"] or float("inf")
    types: frozenset[Happened] = given["type"] or frozenset()
    found = await ask.kept.read(audit.AuditQuery(
        since=since, until=until, types=types, before=given["cursor"], limit=given["limit"]
    ))
    counts = await ask.kept.count(since, until)
    return past.DecisionsPage(
        items=tuple(map(past.tell, found)), next=str(found[-1].number) if len(found) == given["limit"] else None,
        counts={str(each): number for each, number in counts.items() if not types or each in types},
        revision=ask.editions.revision,
    )


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
    days, books = past.find_days(_SAVED_DAYS[ask.given["window"]], ask.now), ask.editions.books
    return past.show_savings(
        await _count_back(ask, days), await _find_regrets(ask, days[0]), source=_find_source(ask),
        is_dry=not ask.editions.options.mandate.acting,
        until=_find_until(ask), since=await ask.kept.read_began() if books is None else await books.ledger.read_began(),
    )


async def _find_regrets(ask: ReadAsk, since: Instant) -> list[Instant]:
    if not ask.editions.options.mandate.acting:
        return [span.begins for span in await _read_spans(ask, since) if span.is_wrong]
    entries = await _read_pauses(ask, (ask.now - since) / DAY)
    return [entry.at for entry in entries if entry.type is Happened.regretted]


async def show_digest(ask: ReadAsk) -> Digest:
    options, latest = ask.editions.options, ask.edition.cycle
    asked = digest.DigestAsk(
        since=ask.now - ask.given["window"], until=ask.now, top=ask.given["top"], book=ask.editions.book,
        cluster_name=options.telling.cluster_name, is_dry=not options.mandate.acting, interval=options.loop.interval,
    )
    return await digest.make(ask.kept, latest, asked, await _read_booked(ask, asked))


async def _read_booked(ask: ReadAsk, asked: digest.DigestAsk) -> held_idle.BookedDays | None:
    books = ask.editions.books
    if books is None:
        return None
    return await held_idle.read_booked(
        books.ledger, books.sums, ask.editions.currency, asked.since, asked.until, books.saved_until()
    )


async def show_regrets(ask: ReadAsk) -> past.RegretsPage:
    entries, since = await _read_pauses(ask, 30), ask.now - 30 * DAY
    return past.show_regrets(entries, await ask.kept.count(since), _rules(ask))


def _rules(ask: ReadAsk) -> Mapping[str, idle.Rule]:
    found = sure(ask.latest.seen.policies) if ask.latest else ()
    return {**{each.name: each.rule for each in found}, policies.FLAGS: ask.editions.options.mandate.rule}


async def show_gaming(ask: ReadAsk) -> suspects.GamingPage:
    return suspects.show_suspects(ask.editions.suspects())


async def show_policies(ask: ReadAsk) -> policies.PoliciesPage:
    edition = ask.edition
    weeks = edition.plan.memory.long.weeks
    return policies.show_policies(edition.seen, edition.rows, ask.editions.options.mandate, weeks)


async def show_acks(ask: ReadAsk) -> policies.AcksPage:
    return policies.show_acks(ask.edition.rows)


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
        raise Denied(400, "BadParameter", "invalid window", body=refused)
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
    own = seed.SeedCluster(name=options.telling.cluster_name or names.DEFAULT_CLUSTER, honor_labels=honored)
    return [own, *(seed.SeedCluster(name=each.name, honor_labels=each.honor_labels) for each in options.clusters)]


async def show_all_clusters(ask: ReadAsk) -> ClustersPage:
    return await clusters.show(ask, await show_overview(ask), show_savings)


# ---- the table -------------------------------------------------------------------------------------------------------


def _window(*choices: str, default: str) -> Parameter:
    return Parameter(name="window", help="How far back.", choices=choices, default=default)


def _span(text: str) -> Seconds:
    seconds = units.parse_duration(text)
    if not HOUR <= seconds <= digest.LONGEST:
        raise ValueError(f"{text!r} is not between 1h and {units.humane(digest.LONGEST)}")
    return seconds


def _word(text: str) -> str:
    if len(text) > 253 or "\n" in text:
        raise ValueError("more than 253 characters, or more than a line")
    return text.lower()


def _limit(usual: int, most: int) -> Parameter:
    text = f"Most items of one answer, at most {most}."
    return Parameter(name="limit", help=text, read=whole(1, most), default=str(usual), most=most)


_WORKLOAD: Final = "/api/v1/workloads/{namespace}/{kind}/{name}"

ENDPOINTS: Final = (
    Endpoint(path="/api/status", summary="Idle workloads, as gpu-pruner tells them", returns=seed.SeedStatus,
             answer=seed_status),
    Endpoint(path="/api/v1/summary", summary="Counts, as gpu-pruner tells them", returns=seed.SeedSummary,
             answer=seed_summary, is_leaders=True),
    Endpoint(path="/api/v1/stats", summary="Counts of a window, as gpu-pruner tells them", returns=seed.SeedStats,
             answer=seed_stats, is_leaders=True, is_timed=True, refusal=seed.SeedRefusal,
             parameters=(Parameter(name="window", help="1h, 7d or 30d.", default="7d", pattern="^(1h|7d|30d)$"),)),
    Endpoint(path="/api/v1/clusters", summary="The clusters that are looked at", returns=list[seed.SeedCluster],
             answer=seed_clusters),
    Endpoint(path="/api/v1/all-clusters", summary="This cluster and its peers (--peer), and their sums",
             returns=ClustersPage, answer=show_all_clusters, is_timed=True,
             parameters=(_window(SAVED["window"], default=SAVED["window"]),)),
    Endpoint(path="/api/v1/overview", summary="The cluster on one page", returns=overview.OverviewPage,
             answer=show_overview, is_timed=True),
    Endpoint(
        path="/api/v1/status", summary="The cluster as `fallow status` tells it", returns=statuses.StatusPage,
        answer=show_status, parameters=(
            Parameter(name="namespace", help="Only namespaces that match this RE2 expression as a whole.",
                      read=_expression),
            Parameter(name="model", help="Only workloads all of whose GPUs match this one.", read=_expression),
        ),
    ),
    Endpoint(path="/api/v1/standing", summary="Pauses and acknowledgements as they stand at this instant",
             returns=standing.StandingPage, answer=show_standing, is_live=True),
    Endpoint(path="/api/v1/gpus", summary="Every GPU with who holds which part of it", returns=field.FieldPage,
             answer=show_field),
    Endpoint(path="/api/v1/nodes", summary="Nodes, and how well they are measured", returns=nodes.NodesPage,
             answer=show_nodes),
    Endpoint(path="/api/v1/sharing", summary="How GPUs are shared, what is stranded, and which nodes change",
             returns=layouts.SharingPage, answer=show_sharing, is_leaders=True, is_timed=True),
    Endpoint(path="/api/v1/scaling", summary="Which nodes would be added and let go, who waits for one, and why",
             returns=scaling.ScalingPage, answer=show_scaling, is_leaders=True, is_timed=True),
    Endpoint(
        path="/api/v1/workloads", summary="Workloads that hold GPUs or rest", returns=telling.WorkloadsPage,
        answer=workloads.list_workloads, parameters=(
            Parameter(name="view", help="Which of them.", choices=tuple(telling.VIEWS), default="all"),
            Parameter(name="verdict", help="Only those with this verdict.", choices=("idle", "active", "unknown")),
            Parameter(name="namespace", help="Only of this namespace; team-* fits several.", read=_word, pattern=_LINE),
            Parameter(name="kind", help="Only of this kind."), Parameter(name="policy", help="Only by this policy."),
            Parameter(name="model", help="Only with GPUs of this model."),
            Parameter(name="q", help="Only with this in name, namespace or kind; * stands for anything.", read=_word,
                      pattern=_LINE),
            Parameter(name="sort", help="In which order.", choices=tuple(workloads.SORTS), default="next"),
            Parameter(name="order", help="Up or down.", choices=("asc", "desc"), default="asc"),
            _limit(USUAL_ROWS, MOST_ROWS), Parameter(name="cursor", help="`next` of the answer before."),
            Parameter(name="may", help="Also what you may do with these rows.", choices=("no", "yes"), default="no"),
        ),
    ),
    Endpoint(path=_WORKLOAD, summary="One workload", returns=telling.ApiRow, answer=workloads.show_workload,
             parameters=ONE),
    Endpoint(path=f"{_WORKLOAD}/explain", summary="Why, with all the evidence", returns=explaining.FullExplanation,
             answer=workloads.explain_workload, parameters=ONE),
    Endpoint(path=f"{_WORKLOAD}/timeline", summary="What its GPUs did over time", returns=past.TimelinePage,
             answer=workloads.show_timeline, parameters=(*ONE, _window(*workloads.TIMELINES, default="3h")),
             is_timed=True),
    Endpoint(path=f"{_WORKLOAD}/history", summary="What happened to it", returns=past.HistoryPage,
             answer=workloads.show_history, is_leaders=True, parameters=(*ONE, _limit(100, 1000))),
    Endpoint(path="/api/v1/preemption", summary="For which pod that waits room would be worth making; advice only",
             returns=forecasts.PreemptionPage, answer=workloads.show_preemption, is_leaders=True, is_timed=True,
             parameters=(_limit(20, 100),)),
    Endpoint(
        path="/api/v1/decisions", summary="What was decided, the newest first", returns=past.DecisionsPage,
        answer=list_decisions, is_leaders=True, parameters=(
            Parameter(name="type", help="Only of these types, with commas between.", read=_types, pattern=_TYPES),
            Parameter(name="since", help="Not before (RFC 3339).", read=units.parse_instant, form="date-time"),
            Parameter(name="until", help="Before (RFC 3339).", read=units.parse_instant, form="date-time"),
            _limit(100, 1000),
            Parameter(name="cursor", help="`next` of the answer before.", read=whole(0, _LAST_NUMBER), least=0,
                      most=_LAST_NUMBER),
        ),
    ),
    Endpoint(path="/api/v1/states", summary="GPUs by state over time", returns=past.StatesPage,
             answer=show_states, is_leaders=True,
             parameters=(_window(*_SPANS, default="24h"),), is_timed=True),
    Endpoint(path="/api/v1/pace", summary="Pauses, resumes and regrets over time", returns=past.PacePage,
             answer=show_pace, is_leaders=True, parameters=(_window(*_SPANS, default="7d"),), is_timed=True),
    Endpoint(path="/api/v1/savings", summary="GPU-hours given back", returns=past.SavingsPage,
             answer=show_savings, is_leaders=True,
             parameters=(_window(*_SAVED_DAYS, default="7d"),), is_timed=True),
    Endpoint(path="/api/v1/digest", summary="What became of the GPUs in some days", returns=Digest,
             answer=show_digest, is_leaders=True,
             is_timed=True, parameters=(
                 Parameter(name="window", help="How far back, such as 24h or 7d; at most 31d.", read=_span,
                           default="7d"),
                 Parameter(name="top", help=f"How many are named, at most {digest.MOST_TOP}.", default="10",
                           read=whole(1, digest.MOST_TOP), most=digest.MOST_TOP),
             )),
    Endpoint(path="/api/v1/regrets", summary="Pauses that were undone at once, and pauses that did not happen",
             returns=past.RegretsPage, answer=show_regrets, is_leaders=True, is_timed=True),
    Endpoint(path="/api/v1/gaming", summary="Workloads that may be kept busy only to be left alone",
             returns=suspects.GamingPage, answer=show_gaming, is_leaders=True, is_timed=True),
    Endpoint(path="/api/v1/policies", summary="Policies, and what each matches now", returns=policies.PoliciesPage,
             answer=show_policies),
    Endpoint(path="/api/v1/acks", summary="Acknowledgements that stand", returns=policies.AcksPage, answer=show_acks),
    *cost.ENDPOINTS,
)
