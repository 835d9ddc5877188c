"""The cluster on one page: whose rules these are, how many GPUs there are and what they do, what idleness costs, who is
idle most, what comes next, what is wrong with the data, and how namespaces share.

In: one look, the workloads that were asked for (a Selection), prices, what is known of a daemon. Out: a StatusPage.
Invariant: everything that is counted is counted of the same Selection, so that `fallow idle` and `fallow status` agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from fallow.doors import answers
from fallow.doors.answers import money
from fallow.doors.answers import rows as telling
from fallow.doors.answers import suspects as suspecting
from fallow.doors.answers import workloads as rows
from fallow.model import bills, cluster, decision, kinds, marks, price_book, shares, units, usage
from fallow.model.patterns import Pattern
from fallow.model.seen import Absent, Known, Unseen, sure
from fallow.model.units import Instant, Seconds
from fallow.stories import gaming
from fallow.stories import idle as stories
from fallow.wiring import daemon

TOP: Final = 5
MEASUREMENTS: Final = "measurements"  # the source as a whole is in trouble
_ALIVE: Final[Seconds] = 60.0  # after which a Lease that is renewed every two seconds was left behind; clocks differ
_NAMED: Final = 3


class DaemonTold(answers.Shape, frozen=True, kw_only=True):
    """`running`: None where that cannot be seen."""

    namespace: str
    running: bool | None
    renewed: str | None
    because: str


class RulesTold(answers.Shape, frozen=True, kw_only=True):
    """Whose rules an answer is by: the flags of the command, and the policies of the cluster (None: not seen)."""

    policies: int | None
    daemon: DaemonTold
    sentence: str


class ClusterGpus(answers.Shape, frozen=True, kw_only=True):
    """Of the whole cluster, whatever was asked for; None where not all of it is seen. `gpus` as nodes offer them, a MIG
    instance or a time slice as one each; `physical`: the boards, None where nodes are not seen."""

    nodes: int | None
    physical: int | None
    gpus: int | None
    free: int | None
    waited_for: int


class VerdictCount(answers.Shape, frozen=True, kw_only=True):
    verdict: str
    reason: str
    workloads: int
    gpus: int


class IdleCost(answers.Shape, frozen=True, kw_only=True):
    """`per_hour` of the idle GPUs whose price is known; None where that is none of them. `partly_per_hour`: of it, GPUs
    of workloads that are not idle as a whole, and so in no list of idle ones. `unpriced`: most first."""

    per_hour: float | None
    partly_per_hour: float | None = None
    partly_gpus: int = 0
    partly_workloads: int = 0
    currency: str
    is_list: bool = True
    unpriced_gpus: int
    unpriced: tuple[money.Unpriced, ...]


class NextStep(answers.Shape, frozen=True, kw_only=True):
    """What comes next by these rules. `what`: notice, pause, ackEnds or freezeEnds; no `workload`: it is about all."""

    what: str
    at: str | None
    workload: rows.WorkloadName | None
    gpus: int
    because: str


class DataProblem(answers.Shape, frozen=True, kw_only=True):
    """What is wrong with what we see, and what helps."""

    what: str
    because: str
    helps: str


class NamespaceShare(answers.Shape, frozen=True, kw_only=True):
    namespace: str
    gpus: int
    active_gpus: int
    idle_gpus: int
    unknown_gpus: int


class WaitsLonger(answers.Shape, frozen=True, kw_only=True):
    """A policy that waits longer than it says, because too many of its pauses were undone at once."""

    policy: str
    times: float
    gone_idle_seconds: float


class SourceState(answers.Shape, frozen=True, kw_only=True):
    reason: str
    because: str


class StatusPage(answers.Shape, frozen=True, kw_only=True):
    rules: RulesTold
    cluster: ClusterGpus
    workloads: int
    pods: int
    gpus: int
    active_gpus: int
    idle_gpus: int
    unknown_gpus: int
    idle_cost: IdleCost
    verdicts: tuple[VerdictCount, ...]
    top: tuple[rows.WorkloadRow, ...]
    next: tuple[NextStep, ...]
    problems: tuple[DataProblem, ...]
    namespaces: tuple[NamespaceShare, ...]
    paused: tuple[rows.PausedRow, ...]
    frozen_until: str | None
    frozen_because: str | None
    source: SourceState | None
    as_of: str | None
    widened: tuple[WaitsLonger, ...] = ()
    suspects: tuple[suspecting.SuspectTold, ...] | None = None  # None: not known here


def status(
    look: stories.Look, view: rows.Selection, found: daemon.DaemonSeen | None,
    book: price_book.ModelPrices = price_book.LIST, latest: gaming.GamingTurn | None = None,
) -> StatusPage:
    """`found`: what is known of a daemon; None: it is the daemon that says this. `latest`: who may be kept busy to be
    left alone, where somebody looked for them."""
    plan, seen, trouble = look.plan, look.snapshot, look.snapshot.evidence.trouble
    mine = {one.finding.workload.ref.uid for one in view.workloads}
    held = [_count_pods(one, seen) for one in view.workloads]
    return StatusPage(
        rules=tell_rules(look, found), cluster=_count_cluster(look), workloads=len([pods for pods in held if pods]),
        pods=sum(held),
        gpus=view.active + view.idle + view.unknown, active_gpus=view.active, idle_gpus=view.idle,
        unknown_gpus=view.unknown, idle_cost=_add_up(view, book), verdicts=tuple(_count_verdicts(view)),
        top=tuple(_find_top(view, seen, book)), next=tuple(_find_next(plan, view)),
        problems=tuple(_find_problems(look, view)), namespaces=tuple(_share(view)),
        paused=tuple(rows.paused(each) for each in look.paused if each.ref.uid in mine),
        frozen_until=answers.instant(plan.freeze.until if plan.freeze else None),
        frozen_because=plan.freeze.because or None if plan.freeze else None,
        source=None if trouble is None else SourceState(reason=trouble.reason, because=trouble.because),
        as_of=answers.instant(plan.at), widened=tuple(_find_widened(seen)), suspects=suspecting.list_suspects(latest),
    )


def _find_widened(seen: cluster.Snapshot) -> Iterator[WaitsLonger]:
    for rule in (each.rule for each in sure(seen.policies) if each.rule.widened > 1.0):
        yield WaitsLonger(policy=rule.name, times=round(rule.widened, 4), gone_idle_seconds=rule.gone_idle)


# ---- whose rules -----------------------------------------------------------------------------------------------------


def find_view(look: stories.Look, namespace: Pattern | None, model: Pattern | None) -> rows.Selection:
    """Raises LookupError, one sentence, for a namespace or model that is not there: an answer of nothing would be taken
    for one of no idleness."""
    view, places = rows.view(look.plan, namespace, model), look.snapshot.namespaces
    if view.workloads:
        return view
    known = places.known if not isinstance(places.rest, Unseen) else None
    if namespace is not None and known is not None and not any(map(namespace.fullmatch, known)):
        said = namespace.pattern or "''"
        raise LookupError(f"there is no namespace {said}, and none that it matches as an expression")
    if model is not None and look.snapshot.evidence.trouble is None:
        every = {name for one in rows.view(look.plan).workloads for name in one.finding.models}
        there = f"there are: {', '.join(sorted(every)) or 'none that is known'}"
        where = f" in namespaces that match {namespace.pattern}" if namespace else ""
        whole = f"{model.pattern} as a whole (-m '.*{model.pattern}.*' matches a part)"
        raise LookupError(f"no workload{where} has only GPUs whose model matches {whole}; {there}")
    return view


def tell_rules(look: stories.Look, found: daemon.DaemonSeen | None) -> RulesTold:
    mandate, running = look.options.mandate, _tell_daemon(found, look.plan.at) if found else _ITSELF
    whose = "the flags given" if found else "the flags of the daemon"
    count: int | None
    match look.snapshot.policies:
        case _ if not mandate.use_policies:
            count, which = 0, f"By {whose} alone (--policies false)"
        case Known(value=some):
            count, which = len(some), f"By {_name_policies(len(some))} and {whose}"
        case Absent():
            count, which = 0, f"By {whose} (there is no IdlePolicy)"
        case Unseen(why=why):
            count, which = None, f"By {whose}; IdlePolicies cannot be seen: {why}"
    sentence = f"{which}; {running.because}" if running.because else which
    return RulesTold(policies=count, daemon=running, sentence=sentence)


_ITSELF: Final = DaemonTold(namespace="", running=True, renewed=None, because="")


def _name_policies(count: int) -> str:
    return "1 IdlePolicy" if count == 1 else f"{count} IdlePolicies"


def _tell_daemon(found: daemon.DaemonSeen, now: Instant) -> DaemonTold:
    running: bool | None = bool(found.holder) and found.renewed is not None and abs(now - found.renewed) <= _ALIVE
    if running:
        because = f"a daemon runs in {found.namespace}, whose own flags are not known here"
    elif len(found.leases) > 1:
        running, because = None, f"daemons may run in {', '.join(found.leases)}, whose own flags are not known here"
    elif found.unseen:
        running, because = None, f"whether a daemon runs cannot be seen ({found.unseen})"
    elif found.holder and found.renewed is not None:
        because = f"the daemon in {found.namespace} was last heard of at {units.rfc3339(found.renewed)}"
    else:
        because = "no daemon is seen"
    return DaemonTold(
        namespace=found.namespace, running=running, renewed=answers.instant(found.renewed), because=because
    )


# ---- numbers ---------------------------------------------------------------------------------------------------------


def _count_pods(one: rows.WorkloadCount, seen: cluster.Snapshot) -> int:
    """That hold GPUs: what rests has none, and is not counted among those who hold."""
    return len([index for index in one.finding.workload.pods if not seen.pods[index].has_ended])


def _count_cluster(look: stories.Look) -> ClusterGpus:
    """Where only some namespaces are watched, who else holds GPUs is not seen, and so not what is free."""
    seen, waited_for = look.snapshot, look.plan.totals.waiting_gpus
    if isinstance(seen.nodes.rest, Unseen):
        return ClusterGpus(nodes=None, physical=None, gpus=None, free=None, waited_for=waited_for)
    offering = [node for node in seen.nodes.known.values() if node.gpus]
    taken = Counter[str]()
    for pod in seen.pods:
        if pod.node and not pod.has_ended:
            taken[pod.node] += sum(pod.resources.values())
    free = sum(max(0, (node.gpus or 0) - taken[node.name]) for node in offering if node.ready)
    is_whole = not look.options.mandate.scope.watch_namespaces
    gpus = sum(node.gpus or 0 for node in offering)
    return ClusterGpus(
        nodes=len(offering), physical=_add_boards(offering), gpus=gpus, free=free if is_whole else None,
        waited_for=waited_for,
    )


def _add_boards(nodes: Sequence[cluster.Node]) -> int:
    """Of nodes that offer GPUs."""
    return sum(shares.count_physical(node) or 0 for node in nodes)


def _add_up(view: rows.Selection, book: price_book.ModelPrices) -> IdleCost:
    partly = [one for one in view.workloads if one.is_partly_idle]
    rest = [telling.make_bill(one, book) for one in partly]
    found = [telling.make_bill(one, book) for one in view.workloads if one.idle and not one.is_partly_idle] + rest
    unpriced, is_priced = money.list_unpriced(found), any(bill.priced for bill in found)
    return IdleCost(
        per_hour=_round_money(found) if is_priced or not unpriced else None,
        partly_per_hour=_round_money(rest) if any(bill.priced for bill in rest) else None,
        partly_gpus=sum(one.idle for one in partly), partly_workloads=len(partly),
        currency=next((bill.currency for bill in found), price_book.LIST_CURRENCY),
        is_list=all(bill.is_list for bill in found), unpriced_gpus=sum(each.gpus for each in unpriced),
        unpriced=unpriced,
    )


def _round_money(found: Sequence[bills.Bill]) -> float:
    return round(float(sum(bill.amount for bill in found)), 2)


def _count_verdicts(view: rows.Selection) -> Iterator[VerdictCount]:
    """What wants attention first, the many before the few."""
    counts, gpus = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for one in view.workloads:
        on = rows.verdict(one.finding), one.finding.skip_label or str(one.finding.reason)
        counts[on] += 1
        gpus[on] += one.gpus
    order = [*map(str, rows.ORDER), rows.PAUSED]
    for on, count in sorted(counts.items(), key=lambda row: (order.index(row[0][0]), -row[1], row[0][1])):
        yield VerdictCount(verdict=on[0], reason=on[1], workloads=count, gpus=gpus[on])


def _find_top(view: rows.Selection, seen: cluster.Snapshot, book: price_book.ModelPrices) -> list[rows.WorkloadRow]:
    """Those whose idleness has cost most so far."""
    def rank(one: rows.WorkloadCount) -> tuple[Any, ...]:
        quiet = view.at - (one.finding.idle_since or view.at)
        ranked = telling.rank_cost(telling.make_bill(one, book).per_hour, quiet, one.idle)
        return one.finding.verdict is not decision.Verdict.idle, ranked, str(one.finding.workload.ref)

    idle = sorted(filter(_wastes, view.workloads), key=rank)
    return [telling.line(telling.make_row(one, seen, view.at, book=book)) for one in idle[:TOP]]


def _wastes(one: rows.WorkloadCount) -> bool:
    """What stands paused is letting go."""
    return bool(one.idle) and one.finding.idle_since is not None and marks.paused_at(one.finding.workload) is None


def _share(view: rows.Selection) -> list[NamespaceShare]:
    """By namespace, who has most idle GPUs first."""
    sums: dict[str, Counter[str]] = {}
    for one in view.workloads:
        of = sums.setdefault(one.finding.workload.ref.namespace, Counter())
        of.update(active_gpus=one.active, idle_gpus=one.idle, unknown_gpus=one.unknown, gpus=one.gpus)
    found = [NamespaceShare(namespace=name, **{key: of[key] for key in _STATES}) for name, of in sums.items()]
    return sorted((each for each in found if each.gpus), key=lambda of: (-of.idle_gpus, -of.gpus, of.namespace))


_STATES: Final = ("gpus", "active_gpus", "idle_gpus", "unknown_gpus")


# ---- what comes next -------------------------------------------------------------------------------------------------


def _find_next(plan: decision.Plan, view: rows.Selection) -> list[NextStep]:
    """Pauses, notices and what ends by itself, the first to come first; those without a time last."""
    found = [(at, step) for one in view.workloads for at, step in _steps(one, view.at)]
    if plan.freeze is not None:
        until = plan.freeze.until
        found.append((until, _step("freezeEnds", until, because=plan.freeze.because)))
    found.sort(key=lambda each: (each[0], each[1].what, str(each[1].workload)))
    return [step for _, step in found]


def _steps(one: rows.WorkloadCount, now: Instant) -> Iterator[tuple[Instant, NextStep]]:
    finding, workload = one.finding, one.finding.workload
    if finding.verdict is decision.Verdict.idle and finding.next_action is not None and finding.next_at is not None:
        because = finding.skip_because or finding.because
        yield finding.next_at, _step(str(finding.next_action), finding.next_at, one, because)
    until = units.read_instant(marks.ack_until({**workload.annotations, **workload.marks}))
    if until is not None and until > now:
        yield until, _step("ackEnds", until, one, finding.skip_because or "it is acknowledged")


def _step(what: str, at: Instant, one: rows.WorkloadCount | None = None, because: str = "") -> NextStep:
    name = None if one is None else rows.reference(one.finding.workload.ref)
    return NextStep(what=what, at=answers.instant(at), workload=name, gpus=one.gpus if one else 0, because=because)


# ---- what is wrong with the data -------------------------------------------------------------------------------------


def _find_problems(look: stories.Look, view: rows.Selection) -> Iterator[DataProblem]:
    seen, evidence = look.snapshot, look.snapshot.evidence
    if evidence.trouble is not None:
        helps = help_source(evidence.trouble, asks_prometheus=look.options.prometheus is not None)
        yield DataProblem(what=MEASUREMENTS, because=evidence.trouble.because, helps=helps)
    else:
        yield from _find_unmeasured(seen)
        yield from _find_untold(view)
    for lost in evidence.lost_signals:
        helps = "GPUs are judged by the other signals; have it exported to see what only it shows"
        yield DataProblem(what=f"signal {lost.signal}", because=lost.because, helps=helps)
    for missing in seen.missing:
        yield DataProblem(what=f"not seen: {missing.what}", because=missing.because, helps=_help_missing(missing))


REACH_PROMETHEUS: Final = (
    "check --prometheus-url (PROMETHEUS_URL); from outside of the cluster: kubectl -n monitoring port-forward "
    "svc/prometheus-k8s 9090, then --prometheus-url http://localhost:9090"
)


def help_source(trouble: usage.SourceTrouble, *, asks_prometheus: bool) -> str:
    """What to do where nothing is measured: by how we were told to look, and by what went wrong."""
    if asks_prometheus and trouble.reason == "NoData":
        return "does this Prometheus scrape dcgm-exporter or gpu-idle-exporter? --prometheus-matchers may be too narrow"
    if asks_prometheus:
        return REACH_PROMETHEUS
    return (
        "a single look has no past of its own: say where Prometheus is (--prometheus-url or PROMETHEUS_URL), name the "
        "daemon's --state-dir, or let the daemon measure (fallow run) and read its log and its metrics"
    )


def _help_missing(missing: cluster.Missing) -> str:
    if missing.is_untrusted:
        return "if it is yours, name its namespace in --exporter-namespaces"
    return "where that is a matter of rights, deploy/base/20-reader.yaml has them"


def _find_unmeasured(seen: cluster.Snapshot) -> Iterator[DataProblem]:
    measured = seen.evidence.gpus_per_node
    silent = [node for node in seen.nodes.known.values() if node.gpus and not measured.get(node.name)]
    if silent:
        gpus, on = answers.many(_add_boards(silent), "GPU"), sorted(node.name for node in silent)
        pods = f"kubectl get pods -A -o wide --field-selector spec.nodeName={on[0]}"
        yield DataProblem(
            what=f"{answers.many(len(silent), 'node')} without measurements",
            because=f"{gpus} on {_name_some(on)}",
            helps=f"does an exporter run there? {pods}",
        )


def _find_untold(view: rows.Selection) -> Iterator[DataProblem]:
    """By reason, the many before the few."""
    groups: dict[str, list[rows.WorkloadCount]] = {}
    for one in view.workloads:
        if one.unknown and one.finding.verdict is decision.Verdict.unknown:
            groups.setdefault(str(one.finding.reason), []).append(one)
    for reason, some in sorted(groups.items(), key=lambda each: (-len(each[1]), each[0])):
        first = min(some, key=lambda one: str(one.finding.workload.ref)).finding
        ref, gpus = first.workload.ref, sum(one.unknown for one in some)
        count = f"{answers.many(gpus, 'GPU')} of {answers.many(len(some), 'workload')}"
        yield DataProblem(
            what=reason, because=f"{count} cannot be told, such as {ref.namespace}/{ref.name}: {first.because}",
            helps=f"{rows.find_help(first)} More: fallow why {kinds.typed(ref)} -n {ref.namespace}",
        )


def _name_some(some: Sequence[str]) -> str:
    more = f" and {len(some) - _NAMED} more" if len(some) > _NAMED else ""
    return ", ".join(some[:_NAMED]) + more
