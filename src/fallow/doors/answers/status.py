"""The cluster on one page: whose rules these are, how many GPUs there are and what they do, what idleness costs, who is
idle most, what comes next, what is wrong with the data, and how namespaces share.

In: one look, the workloads that were asked for (a Selection), prices, what is known of a daemon. Out: a StatusPage.
Invariant: everything that is counted is counted of the same Selection, so that `fallow idle` and `fallow status` agree.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from fallow import names
from fallow.doors import answers
from fallow.doors.answers import money
from fallow.doors.answers import workloads as rows
from fallow.model import cluster, decision, kinds, marks, prices, units, usage
from fallow.model.seen import Absent, Known, Unseen
from fallow.model.units import Instant, Seconds
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
    instance or a time slice as one each; `physical`: the boards, None where labels do not tell."""

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
    """`per_hour` of the idle GPUs whose price is known; None where that is none of them. `unpriced`: most first."""

    per_hour: float | None
    currency: str
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


def status(
    look: stories.Look, view: rows.Selection, found: daemon.DaemonSeen, book: prices.Book = prices.DEFAULT
) -> StatusPage:
    plan, seen, trouble = look.plan, look.snapshot, look.snapshot.evidence.trouble
    mine = {one.finding.workload.ref.uid for one in view.workloads}
    held = [index for one in view.workloads for index in one.finding.workload.pods]
    return StatusPage(
        rules=tell_rules(look, found), cluster=_count_cluster(look), workloads=len(view.workloads),
        pods=len([index for index in held if not seen.pods[index].has_ended]),
        gpus=view.active + view.idle + view.unknown, active_gpus=view.active, idle_gpus=view.idle,
        unknown_gpus=view.unknown, idle_cost=_add_up(view, seen, book), verdicts=tuple(_count_verdicts(view)),
        top=tuple(_find_top(view, seen, book)), next=tuple(_find_next(plan, view)),
        problems=tuple(_find_problems(look, view)), namespaces=tuple(_share(view)),
        paused=tuple(rows.paused(each) for each in look.paused if each.ref.uid in mine),
        frozen_until=answers.instant(plan.freeze.until if plan.freeze else None),
        frozen_because=plan.freeze.because or None if plan.freeze else None,
        source=None if trouble is None else SourceState(reason=trouble.reason, because=trouble.because),
        as_of=answers.instant(plan.at),
    )


# ---- whose rules -----------------------------------------------------------------------------------------------------


def tell_rules(look: stories.Look, found: daemon.DaemonSeen) -> RulesTold:
    mandate, running = look.options.mandate, _tell_daemon(found, look.plan.at)
    count: int | None
    match look.snapshot.policies:
        case _ if not mandate.use_policies:
            count, which = 0, "By the flags given alone (--policies false)"
        case Known(value=some):
            count, which = len(some), f"By {_name_policies(len(some))} and the flags given"
        case Absent():
            count, which = 0, "By the flags given (there is no IdlePolicy)"
        case Unseen(why=why):
            count, which = None, f"By the flags given; IdlePolicies cannot be seen: {why}"
    return RulesTold(policies=count, daemon=running, sentence=f"{which}; {running.because}")


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


def _add_boards(nodes: Sequence[cluster.Node]) -> int | None:
    """None where labels do not tell of all of them."""
    boards = [_count_boards(node) for node in nodes]
    return None if None in boards else sum(count or 0 for count in boards)


def _count_boards(node: cluster.Node) -> int | None:
    """Where all are cut by MIG (strategy single), gpu.count counts instances: how many boards there are is not told."""
    offered = node.gpus or 0
    if "-MIG-" in (node.gpu_product or ""):
        return None
    count, replicas = (_read_count(node.labels.get(name)) for name in (names.GPU_COUNT, names.GPU_REPLICAS))
    if count:
        return min(count, offered)  # one that is broken is not offered
    return offered if not node.shared else offered // replicas if replicas else None


def _read_count(label: str | None) -> int | None:
    return int(label) if label and label.isdecimal() and len(label) < 5 else None


def _add_up(view: rows.Selection, seen: cluster.Snapshot, book: prices.Book) -> IdleCost:
    bill = money.add_up(_bill(one, seen, book) for one in view.workloads if one.idle)
    return IdleCost(
        per_hour=money.cost(bill.amount).per_hour if bill.priced or not bill.unpriced else None,
        currency=prices.CURRENCY, unpriced_gpus=sum(each.gpus for each in bill.unpriced), unpriced=bill.unpriced,
    )


def _bill(
    one: rows.WorkloadCount, seen: cluster.Snapshot, book: prices.Book, *, of_all: bool = False
) -> money.Bill:
    whole = money.holds_whole(one.finding.workload, seen)
    return money.make_bill(one.count_models(of_all=of_all), book, whole=whole)


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


def find_cost(
    one: rows.WorkloadCount, seen: cluster.Snapshot, book: prices.Book, *, of_all: bool = False
) -> money.Cost | None:
    """Of its idle GPUs, or of all that it holds; None: not known, or there are none."""
    return money.find_cost(_bill(one, seen, book, of_all=of_all))


def _find_top(view: rows.Selection, seen: cluster.Snapshot, book: prices.Book) -> list[rows.WorkloadRow]:
    """Those with the most idle GPU-hours so far."""
    lost = [
        ((view.at - one.finding.idle_since) * one.idle, one)
        for one in view.workloads if one.finding.idle_since is not None
    ]
    lost.sort(key=lambda each: (-each[0], str(each[1].finding.workload.ref)))
    return [rows.row(one, view.at, find_cost(one, seen, book)) for _, one in lost[:TOP]]


def _share(view: rows.Selection) -> list[NamespaceShare]:
    """By namespace, who has most idle GPUs first."""
    sums: dict[str, Counter[str]] = {}
    for one in view.workloads:
        of = sums.setdefault(one.finding.workload.ref.namespace, Counter())
        of.update(active_gpus=one.active, idle_gpus=one.idle, unknown_gpus=one.unknown, gpus=one.gpus)
    shares = [NamespaceShare(namespace=name, **{key: of[key] for key in _STATES}) for name, of in sums.items()]
    return sorted((each for each in shares if each.gpus), key=lambda of: (-of.idle_gpus, -of.gpus, of.namespace))


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
    if missing.what.startswith(names.UNTRUSTED_EXPORTER):
        return "if it is yours, name its namespace in --exporter-namespaces"
    return "where that is a matter of rights, deploy/base/20-reader.yaml has them"


def _find_unmeasured(seen: cluster.Snapshot) -> Iterator[DataProblem]:
    measured = seen.evidence.gpus_per_node
    silent = [node for node in seen.nodes.known.values() if node.gpus and not measured.get(node.name)]
    if silent:
        boards, on = _add_boards(silent), sorted(node.name for node in silent)
        offered = f"{sum(node.gpus or 0 for node in silent):,} instances and slices"
        gpus = offered if boards is None else answers.many(boards, "GPU")
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
