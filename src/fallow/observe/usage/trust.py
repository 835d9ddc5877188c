"""Whom do we believe? Which pod a series was scraped from, and whether that is an exporter we were told to trust.

In: the namespaces of exporters (a Belief), the pods there, the labels of a series. Out: a `Witness`: how the target of
the series stands with us, and on which node it runs.
A tenant may have Prometheus scrape a pod of theirs (a PodMonitor is enough), and that page may name any pod and GPU. So
gpu_idle_* and hami_* series, which can acquit a tenant of a busy device, count only from a pod of these namespaces on
the GPU's own node. DCGM's series fold by maximum, so a forged 0 lowers nothing; from a target of another namespace they
count only in a cluster where no believed exporter speaks at all, lest they stand in for one that died. Where nothing
tells which pod it is, they show activity beside believed exporters, and never that a GPU was watched.
What remains: the labels of a target are Prometheus's word. Who may give a target other labels (honorLabels, relabelings
of a monitor that Prometheus does not override) can name any exporter; hostNetwork pods share the address of their node.
Invariant: what cannot be told is not believed where belief could acquit, and it is named.
"""

import functools
from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import Final, NamedTuple

import msgspec

from fallow import names
from fallow.model import usage
from fallow.model.patterns import Pattern
from fallow.observe.usage import labels

_MOST_NAMED = 10  # whoever makes many targets must not fill the log with them
_MOST_KEPT = 20_000
_BELIEVE = "--trust-metrics believes it"


class Credit(Enum):
    trusted = auto()  # a pod of these namespaces that is there
    unseen = auto()  # it is said to be such a pod, and we see none of that name
    unknown = auto()  # nothing tells which pod it is
    untrusted = auto()  # a pod of another namespace


class Witness(NamedTuple):
    credit: Credit
    node: str = ""  # where it runs; "" = not known
    pod: str = ""  # its name, in lower case
    called: str = ""  # for people
    binds: bool = False  # it speaks of its own node only, whatever it says


class Belief(msgspec.Struct, frozen=True):
    """`everything`: whoever says it (--trust-metrics)."""

    namespaces: Pattern
    everything: bool = False

    def may_be_in(self, namespace: str) -> bool:
        """Whether exporters are looked for there."""
        return bool(self.namespaces.fullmatch(namespace))

    def holds_for(self, namespace: str) -> bool:
        return self.everything or self.may_be_in(namespace)


class ExporterPod(msgspec.Struct, frozen=True, gc=False):
    namespace: str
    name: str
    node: str
    ip: str


class KnownExporters:
    """The pods of exporters' namespaces, found by what series call them."""

    def __init__(
        self, belief: Belief | None = None, pods: Iterable[ExporterPod] = (), *, unseen: str = "",
        before: Mapping[tuple[str, str], ExporterPod] | None = None,
    ) -> None:
        """`belief` None: nobody was named. `before`: pods that were there once; what they said is still in the window.
        `unseen`: why these pods cannot be seen, or not all of them."""
        current = {(pod.namespace, pod.name): pod for pod in pods}
        self._belief, self.unseen = belief, unseen
        self.known = {**(before or {}), **current}
        self._by_address = {pod.ip: pod for pod in current.values() if pod.ip}
        self.names = {pod.name.lower() for pod in self.known.values()}
        self.is_believed = functools.lru_cache(_MOST_KEPT)(self._is_believed)  # each is asked for every series of it
        self._find = functools.lru_cache(_MOST_KEPT)(self._look_up)

    def _is_believed(self, namespace: str) -> bool:
        return self._belief is not None and self._belief.holds_for(namespace)

    @property
    def _all_count(self) -> bool:
        return self._belief is not None and self._belief.everything

    def find(self, facts: labels.Facts) -> Witness:
        """Who said it."""
        return self._find(*facts.exporter, facts.host, facts.target)

    def _look_up(self, namespace: str, name: str, host: str, target: str) -> Witness:
        pod = self.known.get((namespace, name)) or self._by_address.get(host)
        called = f"{namespace}/{name}" if namespace and name else namespace or target
        if namespace and not self.is_believed(namespace):
            return Witness(Credit.untrusted, pod=name.lower(), called=called)
        if pod is not None or self._all_count:
            return Witness(Credit.trusted, pod.node if pod else "", (pod.name if pod else name).lower(), called)
        return Witness(Credit.unseen if namespace else Credit.unknown, pod=name.lower(), called=called)


NOBODY: Final = KnownExporters()


class Doubts:
    """Whose series were left out, and why."""

    def __init__(self, unseen: str) -> None:
        self._unseen = unseen
        self._found: dict[str, Credit] = {}

    def add(self, witness: Witness) -> None:
        if witness.called:
            self._found.setdefault(witness.called, witness.credit)

    def listed(self) -> tuple[usage.Ignored, ...]:
        return name_untrusted({who: self._explain(credit) for who, credit in self._found.items()})

    def _explain(self, credit: Credit) -> str:
        if credit is Credit.untrusted:
            return "its series are ignored: its namespace is not one of --exporter-namespaces"
        if credit is Credit.unseen:
            why = self._unseen or "there is no such pod"
            return f"its gpu_idle_* and hami_* series are ignored: its pod cannot be seen ({why}); {_BELIEVE}"
        if credit is Credit.unknown:
            why = self._unseen or "no pod of --exporter-namespaces has that address, and no label names one"
            return f"its series are ignored, but where DCGM's show activity: {why}; {_BELIEVE}"
        return "its series about pods and GPUs of other nodes are ignored"


def name_untrusted(found: Mapping[str, str]) -> tuple[usage.Ignored, ...]:
    """Who they are and why they do not count, up to a number; how many more there are is said."""
    named = sorted(found.items())[:_MOST_NAMED]
    if more := len(found) - len(named):
        named.append((f"and {more} more", "ignored for the like reasons"))
    return tuple(usage.Ignored(f"{names.UNTRUSTED_EXPORTER} {who}", why, is_untrusted=True) for who, why in named)
