"""GPUs by the kind of work on them, in the names of the seed: how busy, how many pods wait, what an hour costs.

In: snapshots. Out: gpu_utilization_by_workload_type, gpu_job_queue_length, cost_per_gpu_hour_by_workload, worked out
when somebody scrapes, once for a snapshot.
Invariant: a figure of a pod's own processes only: what a whole device did is nobody's alone. What has no price has no
cost. Past a bound there are no further series.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

import numpy as np

from fallow import names, telemetry
from fallow.model import cluster, gpus, price_book, shares, work
from fallow.model.seen import Known, Unseen
from fallow.model.usage import Signal, Usage

MOST_SERIES: Final = 5000
MOST_PRIORITIES: Final = 50
NO_PRIORITY: Final = "none"


class WorkGauges:
    def __init__(self, metrics: telemetry.Telemetry) -> None:
        self._metrics = metrics
        self._unwritten: cluster.Snapshot | None = None
        self._known: tuple[object, object, Mapping[int, str]] = None, None, {}  # workloads and pods, their classes
        metrics.before_scrape(self._write)

    def enter(self, seen: cluster.Snapshot) -> None:
        self._unwritten = seen

    def forget(self) -> None:
        """A look failed: what was true before need not be true now."""
        self._unwritten = None
        for name in ("gpu_utilization_by_workload_type", "gpu_job_queue_length", "cost_per_gpu_hour_by_workload"):
            self._metrics.replace(name, {})

    def _write(self) -> None:
        seen = self._unwritten
        if seen is None:
            return
        self._unwritten = None
        if self._known[0] is not seen.workloads or self._known[1] is not seen.pods:
            self._known = seen.workloads, seen.pods, classify_pods(seen)
        kinds = self._known[2]
        self._metrics.replace("gpu_utilization_by_workload_type", find_use(seen, kinds))
        self._metrics.replace("gpu_job_queue_length", count_waiting(seen, kinds))
        self._metrics.replace("cost_per_gpu_hour_by_workload", find_costs(seen, kinds))


def classify_pods(seen: cluster.Snapshot) -> Mapping[int, str]:
    """By the pod's place."""
    found = dict[int, str]()
    for workload in seen.workloads:
        pods, place = [seen.pods[place] for place in workload.pods], seen.namespaces.find(workload.ref.namespace)
        found |= dict.fromkeys(workload.pods, work.classify(workload, pods, place)[0])
    return found


def find_use(seen: cluster.Snapshot, kinds: Mapping[int, str]) -> dict[tuple[str, str, str], float]:
    """Percent of a GPU, by node, GPU and class."""
    use: Usage | None = seen.evidence.usage[min(seen.evidence.usage)] if seen.evidence.usage else None
    if use is None:
        return {}
    own = next((column[Signal.process_sm] for column in (use.mean, use.peak) if Signal.process_sm in column), None)
    if own is None or not use.index:
        return {}
    found = defaultdict[tuple[str, str, str], float](float)
    for row in np.flatnonzero(~np.isnan(own)).tolist():
        pod = int(use.pod[row])
        key = seen.pods[pod].node, use.index[row], kinds.get(pod, "")
        if all(key) and (key in found or len(found) < MOST_SERIES):
            found[key] = min(100.0, found[key] + 100 * float(own[row]))
    return dict(found)


def count_waiting(seen: cluster.Snapshot, kinds: Mapping[int, str]) -> dict[tuple[str, str], float]:
    """GPU pods without a node, by class and PriorityClass."""
    found = defaultdict[tuple[str, str], float](float)
    for place, pod in enumerate(seen.pods):
        if not pod.node and place in kinds and (pod.resources or pod.claims) and not (pod.has_ended or pod.terminating):
            key = kinds[place], pod.priority_class or NO_PRIORITY
            known = {priority for _, priority in found}
            if key[1] not in known and len(known) >= MOST_PRIORITIES:
                key = key[0], "_other"
            found[key] += 1
    return dict(found)


def find_costs(seen: cluster.Snapshot, kinds: Mapping[int, str]) -> dict[tuple[str, str], float]:
    """The mean price of an hour of a GPU that is held, by class and type of machine."""
    held = defaultdict[tuple[str, str], float](float)
    paid = defaultdict[tuple[str, str], float](float)
    for place, kind in kinds.items():
        pod = seen.pods[place]
        node = seen.nodes.known.get(pod.node)
        price = _find_price(seen, node) if node is not None and not pod.has_ended else None
        if node is None or price is None:
            continue
        share = sum(shares.unit_on(node, name).share * count for name, count in pod.resources.items())
        key = kind, next((node.labels[label] for label in names.INSTANCE_TYPE if label in node.labels), "unknown")
        if share and (key in held or len(held) < MOST_SERIES):
            held[key] += share
            paid[key] += share * price
    return {key: paid[key] / held[key] for key in held}


def _find_price(seen: cluster.Snapshot, node: cluster.Node) -> float | None:
    """By the price book; the list price of its model only where nobody keeps books."""
    match seen.rates:
        case Known(rates):
            price = rates.by_node.get(node.name)
        case Unseen():
            price = None
        case _:
            model = gpus.normalise(node.gpu_product or "")
            price = price_book.find_by_model(model, price_book.LIST) if model else None
    return None if price is None else float(price)
