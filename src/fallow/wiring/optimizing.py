"""One look at what workloads hold and use, for advice: the cluster, its running pods, Prometheus.

In: settings, how far to look back. Out: who holds GPUs, and then a line for each of them. Nothing is written anywhere.
"""

import functools
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from fallow import names, settings
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config
from fallow.decide import sharing
from fallow.model import bills, classes, cluster, decision, gpus, node_facts, price_book, work
from fallow.model.cost import CapacityType
from fallow.model.seen import Input, Known
from fallow.model.share_advice import ShareAdvice, ShareFacts, ShareUse
from fallow.model.sharing import SharePod, TopOwner
from fallow.model.units import MINUTE, Instant, Seconds
from fallow.observe import share_pods
from fallow.observe.usage import owning, share_use
from fallow.stories import idle
from fallow.wiring import daemon, ground, helping, share_terms

_YOUNG: Seconds = 5 * MINUTE


class AdvisedWorkload(msgspec.Struct, frozen=True, kw_only=True):
    ref: cluster.Ref
    facts: ShareFacts
    advice: ShareAdvice
    wasted_gpu_hours: float | None
    currency: str


class SeenHolders(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds GPUs, and what was found out about them; pods that run, by their uid."""

    look: idle.Look
    running: Mapping[str, SharePod]
    access: config.Access


def check_cluster(options: settings.Settings) -> None:
    """Raises where no cluster is named."""
    with helping.say_what_to_do():
        config.load_access(kubeconfig=options.kubeconfig, context=options.context, environment=options.environment)


async def see(options: settings.Settings, tell: Callable[[str], None] | None = None) -> SeenHolders:
    """Raises what the API server does."""
    with helping.say_what_to_do(helping.OF_A_LOOK):
        async with daemon.assemble(options, time.time, tell=tell) as made:
            found = await made.loop.look(ground.IDLE)
            assert isinstance(found, idle.Look)
            async with kube.Api(made.access) as api:
                running = {each.uid: each.pod for each in await share_pods.list_running(api)}
            return SeenHolders(look=found, running=running, access=made.access)


async def measure(
    seen: SeenHolders, options: settings.Settings, asked: settings.PrometheusSettings, lookback: Seconds,
    book: price_book.ModelPrices,
) -> tuple[AdvisedWorkload, ...]:
    """Raises what Prometheus does."""
    found = seen.look
    called, words = sorted({pod.name for pod in found.snapshot.pods}), make_words(options, asked)
    async with daemon.make_prometheus(options, asked, seen.access) as prometheus:
        used = await share_use.read(prometheus, called, words, found.plan.at, lookback) if called else {}
    findings = [found.plan.findings[place] for place in range(len(found.snapshot.workloads))]
    return advise(found.snapshot, findings, seen.running, used, found.plan.at, lookback, book)


def make_words(options: settings.Settings, asked: settings.PrometheusSettings) -> owning.UseWords:
    """Where labels are honoured nothing tells which exporter wrote them: who looks at advice takes it as it is."""
    honors = asked.honor_labels
    named = ("pod", "namespace") if honors else ("exported_pod", "exported_namespace")
    everybody = honors or options.trust_metrics
    return owning.UseWords(*named, exporters=None if everybody else options.exporter_namespaces.pattern)


def advise(
    seen: cluster.Snapshot, findings: Sequence[decision.Finding], running: Mapping[str, SharePod],
    used: Mapping[tuple[str, str], ShareUse], now: Instant, lookback: Seconds, book: price_book.ModelPrices,
) -> tuple[AdvisedWorkload, ...]:
    made, cheap = [], frozenset(name for name, node in seen.nodes.known.items() if _is_cheap(node))

    def is_cheap(pod: cluster.Pod) -> bool:
        return pod.node in cheap

    for finding in findings:
        pods = [seen.pods[place] for place in finding.workload.pods if not seen.pods[place].has_ended]
        if any(pod.started_at is not None and pod.started_at <= now - _YOUNG for pod in pods):
            namespace = seen.namespaces.find(finding.workload.ref.namespace)
            made.append(_advise(finding, pods, running, namespace, used, lookback, book, is_cheap))
    return tuple(made)


def _advise(
    finding: decision.Finding, pods: Sequence[cluster.Pod], running: Mapping[str, SharePod],
    namespace: Input[cluster.Namespace], used: Mapping[tuple[str, str], ShareUse], lookback: Seconds,
    book: price_book.ModelPrices, is_cheap: Callable[[cluster.Pod], bool],
) -> AdvisedWorkload:
    """`is_cheap`: it runs on a node that is not paid by the list; what another would cost there nobody knows."""
    bill = bills.make(finding.holdings, book)
    models = {each.model for each in finding.holdings}
    uses = [used.get((pod.namespace, pod.name), ShareUse()) for pod in pods]
    marks, is_list = [pod.annotations for pod in pods], bill.is_list and not any(map(is_cheap, pods))
    facts = ShareFacts(
        work=_classify(finding.workload, pods, running, namespace), gpus=sum(each.gpus for each in finding.holdings),
        each=0 if any(one.gpus < one.pieces for one in finding.holdings) else _count_each(pods),
        use=sharing.join_uses(uses),
        model=gpus.find(models.pop()) if len(models) == 1 else None, per_hour=bill.per_hour,
        most_clients=sharing.read_most(marks, names.MPS_CLIENTS),
        most_replicas=sharing.read_most(marks, names.TIMESLICE_REPLICAS),
        prices={model: float(price) for model, price in book.items()} if is_list else {},
    )
    return AdvisedWorkload(
        ref=finding.workload.ref, facts=facts, advice=sharing.advise(facts), currency=bill.currency,
        wasted_gpu_hours=sharing.waste_hours(facts, lookback),
    )


def _is_cheap(node: cluster.Node) -> bool:
    return node_facts.read(node).capacity_type not in (CapacityType.on_demand, CapacityType.unknown)


def _count_each(pods: Sequence[cluster.Pod]) -> int:
    """GPUs that each pod asks for; 0 where one asks for something else, or not all for as many."""
    counts = {sum(pod.resources.values()) if set(pod.resources) == {names.GPU} else 0 for pod in pods}
    return counts.pop() if len(counts) == 1 else 0


def _classify(
    workload: cluster.Workload, pods: Sequence[cluster.Pod], running: Mapping[str, SharePod],
    namespace: Input[cluster.Namespace],
) -> classes.WorkClass:
    """As the webhook does, but for how it was seen to behave; of pods that are not seen to run, by words alone."""
    first, ref = next((running[pod.uid] for pod in pods if pod.uid in running), None), workload.ref
    if first is None:
        return classes.WorkClass(work.classify(workload, pods, namespace)[0])
    owner = TopOwner(
        group=ref.group, kind=ref.kind, name=ref.name, uid=ref.uid, labels=workload.labels,
        annotations=workload.annotations,
    )
    return sharing.classify(first, sharing.ShareAround(namespace=namespace, owner=Known(owner)), _make_terms()).work


@functools.cache
def _make_terms() -> sharing.ShareTerms:
    return share_terms.make_usual("")
