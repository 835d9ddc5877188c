"""Why does a pod share a GPU, or not? What was done to it, and what a pod like it would get now.

In: a pod as it is, what stands around it, the terms of the installation. Out: a ShareWhy.
Invariant: the same ladder judges here as in the webhook, on the pod as its people wrote it: what we changed is first
put back. What a change cannot tell of itself is not guessed.
"""

from collections.abc import Mapping

import msgspec

from fallow import names
from fallow.decide.sharing import hurts, strategy
from fallow.decide.sharing.strategy import ShareAround, ShareTerms
from fallow.model import cluster, units
from fallow.model.policies.sharing import SharingPolicy
from fallow.model.seen import Known, Register
from fallow.model.sharing import PartHad, ShareBackOff, ShareContainer, SharePod, ShareWhy
from fallow.model.units import Instant


def explain(pod: SharePod, around: ShareAround, terms: ShareTerms, now: Instant) -> ShareWhy:
    written = put_back(pod)
    owner = around.owner.value if isinstance(around.owner, Known) else None
    verdict = strategy.judge(written, around, terms, now)
    return ShareWhy(
        pod=pod.name, had=find_part(pod), verdict=verdict, work=strategy.classify(written, around, terms),
        back_off=_find_back_off(owner.annotations, now) if owner is not None else None,
    )


def is_meant(
    policy: SharingPolicy, pod: SharePod, namespaces: Register[cluster.Namespace], terms: ShareTerms
) -> bool:
    """Do the policy's selectors mean this pod, which could share? By what the pod and its namespace tell alone."""
    written, place = put_back(pod), namespaces.find(pod.namespace)
    if not isinstance(place, Known) or strategy.leave_alone(written, terms) is not None:
        return False
    found = strategy.classify(written, ShareAround(namespace=place), terms)
    return strategy.matches(policy, written, place.value.labels, found.work)


def find_part(pod: SharePod) -> PartHad | None:
    """What we had it ask for instead of a whole GPU; None: we did not change it."""
    if not strategy.is_optimized(pod):
        return None
    part = next((name for each in pod.containers for name in each.asked if _is_part(name)), "")
    resource = "a claim" if pod.has_claims else part
    return PartHad(
        strategy=pod.marks.get(names.OPTIMIZATION_STRATEGY, ""), resource=resource,
        policy=strategy.find_policy_name(pod), was=pod.marks.get(names.ORIGINAL_GPU_REQUEST, "1"),
        at=units.read_instant(pod.marks.get(names.OPTIMIZATION_TIMESTAMP)),
    )


def _is_part(resource: str) -> bool:
    return resource == names.GPU_SHARED or resource.startswith(names.MIG_PREFIX)


def put_back(pod: SharePod) -> SharePod:
    """The pod as somebody would make it anew: bound to no node, and with the whole GPU that it asked for."""
    free = msgspec.structs.replace(pod, node_name="")
    if not strategy.is_optimized(pod):
        return free
    keys = (names.OPTIMIZED, names.OPTIMIZATION_STRATEGY, names.OPTIMIZATION_TIMESTAMP, names.OPTIMIZATION_POLICY,
            names.ORIGINAL_GPU_REQUEST)
    selector = {key: value for key, value in (pod.node_selector or {}).items() if key != names.GPU_SHARING}
    return msgspec.structs.replace(
        free, annotations={key: text for key, text in pod.marks.items() if key not in keys}, node_selector=selector,
        containers=tuple(map(_put_back, pod.containers)), has_claims=False,
    )


def _put_back(container: ShareContainer) -> ShareContainer:
    held = container.has_claims or any(map(_is_part, container.asked))
    if not held:
        return container
    whole = {names.GPU: "1"}
    kept = ({name: count for name, count in (some or {}).items() if not _is_part(name)}
            for some in (container.requests, container.limits))
    requests, limits = ({**some, **whole} for some in kept)
    return msgspec.structs.replace(container, requests=requests, limits=limits, has_claims=False)


def _find_back_off(marks: Mapping[str, str], now: Instant) -> ShareBackOff | None:
    if not hurts.is_backing_off(marks, now):
        return None
    return ShareBackOff(
        until=units.read_instant(marks.get(names.BACKOFF_UNTIL)), because=marks.get(names.REVERTED_BECAUSE, ""),
        policy=marks.get(names.REVERTED_POLICY, ""), times=hurts.count_before(marks),
    )
