"""Whose series is it? The labels of a series, in any of the dialects in use, read into facts once and remembered.

In: the label set as the server wrote it (raw JSON bytes; the same series is the same bytes in every query and cycle).
Out: a small number for it, and its `Facts`. A cycle that meets only known series does one dictionary look-up per
series, nothing else.
Invariant: a label that is missing never drops a series; it only leaves a fact unknown (""). A label set that cannot be
read says nothing at all, and is counted (`unreadable`); so is one for which there is no room: what tenants write into
their labels is kept up to a bound in bytes.
"""

import hashlib
import sys
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

_POD_LABELS = ("workload_pod", "exported_pod", "pod", "pod_name")
_NAMESPACE_LABELS = ("workload_namespace", "exported_namespace", "namespace", "pod_namespace")
_NODE_LABELS = ("Hostname", "hostname", "node", "kubernetes_node")
_UUID_LABELS = ("UUID", "uuid", "device_uuid")  # the last is HAMi's
_INDEX_LABELS = ("gpu", "device")
_INSTANCE_LABELS = ("GPU_I_ID", "gi", "dra_mig_device_uuid")
_MODEL_LABELS = ("modelName", "model")
# What older scrape configurations call the target, beside whatever a page says of `pod` and `namespace`.
_SCRAPED_LABELS = ("kubernetes_namespace", "kubernetes_pod_name")
_GPU_LABELS = (
    *_NODE_LABELS, *_UUID_LABELS, *_INDEX_LABELS, *_INSTANCE_LABELS, "GPU_I_PROFILE", *_MODEL_LABELS, "job", "instance",
    *_SCRAPED_LABELS,
)
_LONGEST_KEY = 1024  # bytes of a label set that is kept as it is; most are shorter, and a digest costs time
_LONGEST_READ = 16 * 2**10
_TARGET_LABELS = ("pod", "namespace")  # what Prometheus calls the target itself, unless the exporter's own are honoured
_SURE_POD_LABELS = frozenset({"workload_pod", "exported_pod"})  # plain `pod` may be the exporter itself


class Dialect(msgspec.Struct, frozen=True):
    """Which labels say whose a series is. `sure` = the pod label always names a workload, never the exporter."""

    pod: tuple[str, ...]
    namespace: tuple[str, ...]
    sure: bool
    of_gpus: bool = True
    strict: bool = False  # counts only from an exporter that is known and believed (trust.py)
    split: bool = False  # who says it hands out parts of GPUs
    honored: bool = False  # plain `pod` and `namespace` are the exporter's words, not Prometheus's on the target

    @property
    def by(self) -> str:
        """The L of `max by (L)`: everything that is read here. Containers are left out: nothing is said of each."""
        of_target = _TARGET_LABELS if self.strict else ()
        read = [*self.pod, *self.namespace, *of_target, *(_GPU_LABELS if self.of_gpus else ())]
        return ",".join(dict.fromkeys(read))


def foreign(honor_labels: bool) -> Dialect:
    """DCGM's exporter and others whose labels Prometheus may have renamed to `exported_*`."""
    if honor_labels:
        return Dialect(("pod",), ("namespace",), sure=True, honored=True)
    return Dialect(_POD_LABELS, _NAMESPACE_LABELS, sure=False)


def kernels(honor_labels: bool) -> Dialect:
    """HAMi's word on when a container last launched a kernel."""
    return msgspec.structs.replace(foreign(honor_labels), strict=True, split=True)


def serving(honor_labels: bool) -> Dialect:
    """Model servers, which speak of their own pod and of no GPU."""
    return msgspec.structs.replace(foreign(honor_labels), of_gpus=False)


OWN = Dialect(("workload_pod",), ("workload_namespace",), sure=True, strict=True)  # gpu_idle_*: `pod` is the exporter's
TARGETS = Dialect((), (), sure=True, of_gpus=False)  # `up`: only job and instance are read


class Facts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the labels of one series say."""

    namespace: str
    pod: str
    sure: bool  # the pod label is one that only workloads have
    nodes: tuple[str, ...]  # every node label there is, in lower case
    host: str  # the scrape target without its port, in lower case: sometimes the node's address
    uuid: str
    spot: str  # node/index; "" when either is missing
    instance: str  # MIG instance
    mig: bool
    model: str
    job: str
    target: str
    exporter: tuple[str, str] = ("", "")  # namespace and pod of the target, as far as Prometheus says so
    scraped: tuple[str, str] = ("", "")  # the same by other labels: they can discredit, as a page may hold them as well
    strict: bool = False
    split: bool = False


NOTHING_SAID: Final = Facts(
    namespace="", pod="", sure=False, nodes=(), host="", uuid="", spot="", instance="", mig=False, model="", job="",
    target="",
)


class LabelRoom:
    """How many bytes of labels are kept, by all books that share it."""

    def __init__(self, size: int = 64 * 2**20) -> None:
        self._left = size

    @property
    def is_full(self) -> bool:
        """Whether there is none left for a label set as long as is read."""
        return self._left < _LONGEST_READ

    def take(self, raw: bytes) -> bool:
        if len(raw) > min(_LONGEST_READ, self._left):
            return False
        self._left -= len(raw)
        return True


class LabelBook:
    """Numbers for series of one dialect: the same label set always has the same number; `facts[number]` is what it
    says.

    Books that write into the same list of facts never give the same number to two series.
    """

    def __init__(self, dialect: Dialect, facts: list[Facts], room: LabelRoom) -> None:
        self._room = room
        self.dialect = dialect
        self.facts = facts
        self.pod_labels: set[str] = set()  # the forms met so far
        self.uuid_labels: set[str] = set()
        self.unreadable = 0  # label sets of which nothing could be read
        self._numbers: dict[bytes, int] = {}  # by the label set itself, or by its digest if it is long

    def number(self, metrics: Sequence[msgspec.Raw]) -> list[int]:
        sets = list(map(bytes, metrics))
        keys = [raw if len(raw) <= _LONGEST_KEY else hashlib.blake2b(raw, digest_size=32).digest() for raw in sets]
        try:
            return list(map(self._numbers.__getitem__, keys))
        except KeyError:  # seldom: series that were never seen
            pairs = zip(keys, sets, strict=True)
            return [self._numbers[key] if key in self._numbers else self._add(key, raw) for key, raw in pairs]

    def _add(self, key: bytes, raw: bytes) -> int:
        try:
            is_text = _NUL not in raw
            facts = self._read(_DECODER.decode(raw)) if self._room.take(raw) and is_text else NOTHING_SAID
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            facts = NOTHING_SAID
        self.unreadable += facts is NOTHING_SAID
        number = self._numbers[key] = len(self.facts)
        self.facts.append(facts)
        return number

    def _read(self, labels: dict[str, str]) -> Facts:
        pod_label, pod = _first(labels, self.dialect.pod)
        uuid_label, uuid = _first(labels, _UUID_LABELS)
        self.pod_labels.update(filter(None, (pod_label,)))
        self.uuid_labels.update(filter(None, (uuid_label,)))
        nodes = tuple(sys.intern(labels[name].lower()) for name in _NODE_LABELS if labels.get(name))
        target = labels.get("instance", "")
        host = sys.intern(_without_port(target).lower())
        index = _first(labels, _INDEX_LABELS)[1].removeprefix("nvidia")
        node = nodes[0] if nodes else host
        instance = _first(labels, _INSTANCE_LABELS)[1]
        return Facts(
            namespace=sys.intern(_first(labels, self.dialect.namespace)[1]), pod=pod,
            sure=self.dialect.sure or pod_label in _SURE_POD_LABELS, nodes=nodes, host=host, uuid=uuid,
            spot=f"{node}/{index}" if node and index else "", instance=instance,
            mig=bool(instance or labels.get("GPU_I_PROFILE")) or uuid.startswith("MIG-"),
            model=sys.intern(_first(labels, _MODEL_LABELS)[1]), job=sys.intern(labels.get("job", "")),
            target=sys.intern(target), exporter=self._find_exporter(labels, pod_label), strict=self.dialect.strict,
            split=self.dialect.split, scraped=_scraped_from(labels),
        )

    def _find_exporter(self, labels: dict[str, str], pod_label: str) -> tuple[str, str]:
        """Plain `pod` and `namespace` are the target's where others name the workload, or nothing does."""
        if self.dialect.honored or pod_label in ("pod", "pod_name"):
            return "", ""
        return sys.intern(labels.get("namespace", "")), sys.intern(labels.get("pod", ""))


class Jobs:
    """The job of each series, as a column of small numbers."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.of_series = np.zeros(0, dtype=np.int64)
        self._numbers: dict[str, int] = {}

    def catch_up(self, facts: Sequence[Facts]) -> None:
        new = [self._number(one.job) for one in facts[len(self.of_series) :]]
        self.of_series = np.concatenate([self.of_series, np.array(new, dtype=np.int64)])

    def _number(self, job: str) -> int:
        number = self._numbers.setdefault(job, len(self.names))
        if number == len(self.names):
            self.names.append(job)
        return number


_DECODER = msgspec.json.Decoder(dict[str, str])
_NUL = rb"\u0000"  # PostgreSQL takes no text with it: one GPU of that name would keep all books from being written


def _first(labels: dict[str, str], names: Sequence[str]) -> tuple[str, str]:
    """The first label that says something, and what it says."""
    for name in names:
        if value := labels.get(name):
            return name, value
    return "", ""


def _scraped_from(labels: dict[str, str]) -> tuple[str, str]:
    namespace, pod = (sys.intern(labels.get(name, "")) for name in _SCRAPED_LABELS)
    return namespace, pod


def _without_port(target: str) -> str:
    if target.startswith("["):
        return target[1:].partition("]")[0]
    host, colon, port = target.rpartition(":")
    return host if colon and port.isdigit() and ":" not in host else target
