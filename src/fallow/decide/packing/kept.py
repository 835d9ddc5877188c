"""What keeps a pod on its node, beside what the pod itself says: where we may act at all, and what people said of its
workload and namespace.

In: GPU pods with their workloads, namespaces, the Scope of the flags, now. Out: a WhyKept for every pod of the cluster.
Invariant: a namespace that is not seen keeps its pods where they are, and so does an owner: it may be acknowledged.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from fallow import names
from fallow.model import cluster, marks, work
from fallow.model.capacity import LOSES_WORK
from fallow.model.classes import WorkClass
from fallow.model.policies import idle
from fallow.model.seen import Known, Register
from fallow.model.units import Instant, Seconds


class AskedPod(Protocol):
    """What is asked about a pod: more is not needed to say who keeps it."""

    @property
    def namespace(self) -> str: ...
    @property
    def uid(self) -> str: ...
    @property
    def resources(self) -> Mapping[str, int]: ...
    @property
    def claims(self) -> tuple[str, ...]: ...


WhyKept: TypeAlias = Callable[[AskedPod], str]  # "": nothing does


def nothing(_: AskedPod) -> str:
    return ""


def find(
    pods: Sequence[cluster.Pod], workloads: Sequence[cluster.Workload], namespaces: Register[cluster.Namespace],
    mandate: idle.Mandate, now: Instant,
) -> WhyKept:
    longest = mandate.rule.consent.max_ack
    held = {
        pods[place].uid: why_held or _why_lasting(each, pods[place], namespaces)
        for each in workloads for why_held in [_why_workload(each, longest, now)] for place in each.pods
    }

    def why(pod: AskedPod) -> str:
        unknown = "its owner is not known" if pod.resources or pod.claims else ""  # of others owners are not looked for
        return (
            _why_out_of_reach(pod.namespace, mandate.scope) or held.get(pod.uid, unknown)
            or _why_namespace(pod.namespace, namespaces, longest, now)
        )

    return why


def _why_workload(of: cluster.Workload, longest: Seconds, now: Instant) -> str:
    if (ack := marks.find_ack(of, None, longest, now)) is not None:
        return f"{of.ref.short} is kept by {ack.by}"
    return f"its owner is not seen: {of.trouble_because}" if of.trouble in cluster.OWNER_UNSEEN else ""


def _why_lasting(of: cluster.Workload, pod: cluster.Pod, namespaces: Register[cluster.Namespace]) -> str:
    """By what its owner and namespace say, too: what is seen of the pod alone does not tell."""
    kind, _ = work.classify(of, (pod,), namespaces.find(pod.namespace))
    is_evictable = any(said.get(names.EVICTABLE) == "true" for said in (pod.labels, pod.annotations))
    return LOSES_WORK if kind == WorkClass.training and not is_evictable else ""


def _why_out_of_reach(namespace: str, scope: idle.Scope) -> str:
    if scope.protected_namespaces is not None and scope.protected_namespaces.fullmatch(namespace):
        return f"namespace {namespace} is protected"
    if scope.exclude_namespaces is not None and scope.exclude_namespaces.fullmatch(namespace):
        return f"namespace {namespace} is excluded"
    is_chosen = scope.namespace is None or scope.namespace.fullmatch(namespace)
    return "" if is_chosen else f"namespace {namespace} is not one of those that --namespace names"


def _why_namespace(
    name: str, namespaces: Register[cluster.Namespace], longest: Seconds, now: Instant
) -> str:
    found = namespaces.find(name)
    if not isinstance(found, Known):
        return f"namespace {name} is not seen"
    ack = marks.choose_ack([marks.read_ack([found.value.annotations], longest, now)], now)
    return "" if ack is None else f"namespace {name} is kept by an acknowledgement"
