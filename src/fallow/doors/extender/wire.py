"""kube-scheduler's extender protocol, v1: what of a question is read, and how it is answered.

In: the bytes of a request (ExtenderArgs, ExtenderBindingArgs of k8s.io/kube-scheduler/extender/v1). Out: the pod, the
nodes, and the bytes of an answer. Those Go types have no JSON names, so keys come as the fields are spelled; older
schedulers wrote them small. Both are read; Go reads any case.
Invariant: nodes that pass are handed back as they came, byte for byte.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from fallow.clients.kubernetes import api as kube
from fallow.observe.cluster import capacity

MOST_SCORE: Final = 10

_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NAMES: Final = msgspec.json.Decoder(list[str])
_NULL: Final = msgspec.Raw(b"null")
_TEXT: Final = msgspec.json.Decoder(str)
_POD: Final = msgspec.json.Decoder(capacity.CountedPodItem)
_ENCODER: Final = msgspec.json.Encoder()
_SCHEDULER: Final = re.compile(rb'"schedulerName":\s*"([^"\\]{1,253})"')
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)


class _NodeList(msgspec.Struct):
    items: list[msgspec.Raw] | None = None


_NODES: Final = msgspec.json.Decoder(_NodeList | None)
_NODE: Final = msgspec.json.Decoder(kube.BareObject)


class Offer(msgspec.Struct, frozen=True):
    """A question about one pod and the nodes offered to it, neither of which is read yet. `whole`: the nodes themselves
    with their names, where they came and not only their names."""

    pod: msgspec.Raw
    text: bytes  # of the names
    whole: Mapping[str, msgspec.Raw] | None = None

    def names(self) -> Sequence[str]:
        """Raises one of UNREADABLE."""
        return _NAMES.decode(self.text) if self.whole is None else list(self.whole)

    def has(self, name: str) -> bool:
        """Found in the text as it came: names of nodes need no escapes."""
        if self.whole is not None:
            return name in self.whole
        return f'"{name}"'.encode() in self.text

    def says(self, key: str) -> bool:
        """Whether the text of the pod names this annotation at all: to read a pod only for that would cost as much as
        the whole answer."""
        return key.encode() in bytes(self.pod)

    def find_scheduler(self) -> str:
        """Of the pod, which is who asks; "" where nobody can tell. Found in the text, as above."""
        found = _SCHEDULER.findall(bytes(self.pod))
        return found[0].decode() if len(found) == 1 else ""

    def read_pod(self) -> capacity.CountedPodItem | None:
        """None where it cannot be read."""
        try:
            return _POD.decode(self.pod)
        except UNREADABLE:
            return None


class BindAsked(msgspec.Struct, frozen=True):
    name: str
    namespace: str
    uid: str
    node: str


def read_offer(body: bytes) -> Offer:
    """Raises one of UNREADABLE."""
    fields = _fold(body)
    pod, names = fields.get("pod", _NULL), bytes(fields.get("nodenames", _NULL))
    if names.startswith(b"["):
        return Offer(pod, names)
    listed = _NODES.decode(fields.get("nodes", _NULL))
    if listed is None:
        raise ValueError("neither Nodes nor NodeNames were given")
    return Offer(pod, b"null", {_NODE.decode(each).metadata.name: each for each in listed.items or ()})


def read_bind(body: bytes) -> BindAsked:
    """Raises one of UNREADABLE."""
    fields = {key: _TEXT.decode(value) for key, value in _fold(body).items()}
    found = BindAsked(*(fields.get(key, "") for key in ("podname", "podnamespace", "poduid", "node")))
    if not (found.name and found.namespace and found.uid and found.node):
        raise ValueError("PodName, PodNamespace, PodUID and Node are needed")
    return found


def _fold(body: bytes) -> dict[str, msgspec.Raw]:
    return {key.lower(): value for key, value in _FIELDS.decode(body).items()}


def passed(offer: Offer, failed: Mapping[str, str] | None = None) -> bytes:
    """All nodes but those that failed, each with why. Raises one of UNREADABLE."""
    found: dict[str, Any] = {"Nodes": None, "NodeNames": None, "FailedNodes": failed or {}}
    if offer.whole is not None:
        found["Nodes"] = {"items": [node for name, node in offer.whole.items() if name not in (failed or ())]}
    else:
        kept = [name for name in offer.names() if name not in failed] if failed else msgspec.Raw(offer.text)
        found["NodeNames"] = kept
    return _ENCODER.encode({**found, "FailedAndUnresolvableNodes": {}, "Error": ""})


def scored(best: Sequence[str]) -> bytes:
    """10 for the best key, then 9, 8, ... No two nodes have the same key, for the tie order is the last part of it: so
    each place is a key of its own. A node that is not named has 0, and the scheduler has less to read."""
    return _ENCODER.encode([{"Host": name, "Score": MOST_SCORE - place} for place, name in enumerate(best)])


def bound(error: str = "") -> bytes:
    return _ENCODER.encode({"Error": error})


def make_binding(asked: BindAsked) -> bytes:
    """With the uid: a pod of the same name that came later is not meant."""
    return _ENCODER.encode({
        "apiVersion": "v1", "kind": "Binding",
        "metadata": {"name": asked.name, "namespace": asked.namespace, "uid": asked.uid},
        "target": {"apiVersion": "v1", "kind": "Node", "name": asked.node},
    })
