"""One look at what workloads hold and use, for advice: the cluster, its running pods, Prometheus.

In: settings, how far to look back. Out: who holds GPUs, and then a line for each of them. Nothing is written anywhere.
"""

import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from fallow import names, settings
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config
from fallow.decide import sharing
from fallow.model import bills, classes, cluster, decision, gpus, kinds, price_book
from fallow.model.share_advice import ShareAdvice, ShareFacts, ShareUse
from fallow.model.sharing import SharePod
from fallow.model.units import MINUTE, Instant, Seconds
from fallow.observe import share_pods
from fallow.observe.usage import owning, share_use
from fallow.stories import idle
from fallow.wiring import daemon, ground, helping

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
    made = []
    for finding in findings:
        pods = [seen.pods[place] for place in finding.workload.pods if not seen.pods[place].has_ended]
        if any(pod.started_at is not None and pod.started_at <= now - _YOUNG for pod in pods):
            made.append(_advise(finding, pods, running, used, lookback, book))
    return tuple(made)


def _advise(
    finding: decision.Finding, pods: Sequence[cluster.Pod], running: Mapping[str, SharePod],
    used: Mapping[tuple[str, str], ShareUse], lookback: Seconds, book: price_book.ModelPrices,
) -> AdvisedWorkload:
    bill = bills.make(finding.holdings, book)
    models = {each.model for each in finding.holdings}
    uses = [used.get((pod.namespace, pod.name), ShareUse()) for pod in pods]
    facts = ShareFacts(
        work=_classify(finding.workload, pods, running), gpus=sum(each.gpus for each in finding.holdings),
        each=0 if any(one.gpus < one.pieces for one in finding.holdings) else _count_each(pods),
        use=sharing.join_uses(uses),
        model=gpus.find(models.pop()) if len(models) == 1 else None, per_hour=bill.per_hour,
        most_clients=_read_most(pods, names.MPS_CLIENTS), most_replicas=_read_most(pods, names.TIMESLICE_REPLICAS),
    )
    return AdvisedWorkload(
        ref=finding.workload.ref, facts=facts, advice=sharing.advise(facts), currency=bill.currency,
        wasted_gpu_hours=sharing.waste_hours(facts, lookback),
    )


def _read_most(pods: Sequence[cluster.Pod], key: str) -> int | None:
    """The least that any of its pods says; what is no number from 1 to 999 says nothing."""
    said = (classes.read_key(pod.annotations, key)[0] or "" for pod in pods)
    known = [int(text) for text in said if text.isdecimal() and len(text) <= 3 and int(text)]
    return min(known, default=None)


def _count_each(pods: Sequence[cluster.Pod]) -> int:
    """GPUs that each pod asks for; 0 where one asks for something else, or not all for as many."""
    counts = {sum(pod.resources.values()) if set(pod.resources) == {names.GPU} else 0 for pod in pods}
    return counts.pop() if len(counts) == 1 else 0


def _classify(
    workload: cluster.Workload, pods: Sequence[cluster.Pod], running: Mapping[str, SharePod]
) -> classes.WorkClass:
    first = next((running[pod.uid] for pod in pods if pod.uid in running), None)
    ref, said = workload.ref, (pods[0].labels, pods[0].annotations, workload.labels, workload.annotations)
    return classes.classify(classes.WorkFacts(
        said=said, owned=kinds.find_class(ref.group, ref.kind), gpus=_count_each(pods),
        containers=tuple(each.runs for each in first.containers) if first is not None else (),
    )).work
