"""Which parts of GPUs there are for a pod: MIG instances by profile, or replicas of a GPU that several pods share.

In: the pod, what it needs, the nodes as they are, the node selector of a policy. Out: a GpuPart for one strategy, or
None where no node offers one. A node counts if it is Ready, not cordoned, advertises the resource, and both the pod and
the policy accept it.
Invariant: never a part with less memory or compute than is needed, as far as that is known.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from fallow import names
from fallow.decide.sharing.needs import ShareNeeds
from fallow.model import gpus, selectors
from fallow.model.policies.sharing import Strategy
from fallow.model.sharing import GpuPart, NodeTaint, PartNode, PodToleration, SharePod

# Of what a profile is called by: NVIDIA's own figures are down to 0.889 GiB for each GB of the name (1g.18gb of an
# H200 has 16.0), so that less than this surely fits where nothing else is known.
_GIB_PER_GB: Final = 0.85
SHARING_LABELS: Final = {Strategy.mps: "mps", Strategy.timeslicing: "time-slicing"}
NAME_FIELD: Final = "metadata.name"
_TELLING: Final = (names.GPU_PRODUCT, names.GPU_MEMORY, names.GPU_SHARING, names.GPU_REPLICAS)
_MOST_QUESTIONS: Final = 64  # sets of labels asked about that are remembered


class MigPart(msgspec.Struct, frozen=True, kw_only=True):
    """A profile as the nodes that advertise it have it: of several, the least."""

    profile: str
    memory: int  # MiB
    compute: float  # share of the GPU's SMs


class PartIndex:
    """Nodes that are open, by what tells them apart for one question: a cluster has thousands of them, of a few sorts.
    Of those that are alike one stands for all."""

    def __init__(self, nodes: Iterable[PartNode]) -> None:
        self._nodes = tuple(node for node in nodes if node.is_ready and not node.is_cordoned)
        self._keys = frozenset(key for node in self._nodes for key in node.labels) | {NAME_FIELD}
        self._alike: dict[frozenset[str], tuple[PartNode, ...]] = {}

    def list_alike(self, keys: frozenset[str]) -> tuple[PartNode, ...]:
        """`keys`: labels that somebody asks about; NAME_FIELD: the node's name."""
        keys &= self._keys  # what no node has tells none apart, whatever people make up
        if keys not in self._alike:
            if len(self._alike) >= _MOST_QUESTIONS:
                self._alike.clear()
            self._alike[keys] = self._choose(sorted(keys - {NAME_FIELD}), by_name=NAME_FIELD in keys)
        return self._alike[keys]

    def list_on(self, host: str) -> Sequence[PartNode]:
        """Those with this label of their host: one, mostly."""
        return self._by_host.get(host, ())

    def _choose(self, asked: Sequence[str], *, by_name: bool) -> tuple[PartNode, ...]:
        """One of each sort. Whoever makes a pod chooses what it asks about, so that this is quick."""
        found: dict[tuple[Any, ...], PartNode] = {}
        for node, sort in zip(self._nodes, self._sorts, strict=True):
            found.setdefault((sort, by_name and node.name, *map(node.labels.get, asked)), node)
        return tuple(found.values())

    @functools.cached_property
    def _sorts(self) -> tuple[int, ...]:
        """Of each node: the same number for all that offer the same, whatever else is asked about."""
        numbers: dict[tuple[Any, ...], int] = {}
        return tuple(numbers.setdefault(_tell_offer(node), len(numbers)) for node in self._nodes)

    @functools.cached_property
    def _by_host(self) -> Mapping[str, Sequence[PartNode]]:
        found: dict[str, list[PartNode]] = {}
        for node in self._nodes:
            found.setdefault(node.labels.get(names.HOSTNAME, ""), []).append(node)
        return found


def _tell_offer(node: PartNode) -> tuple[Any, ...]:
    offers = tuple(name for name in sorted(node.offers) if node.offers[name] > 0)
    telling = (*_TELLING, *(f"{name}.{what}" for name in offers for what in ("memory", "replicas")))
    return offers, *map(node.labels.get, telling), node.taints, tuple(dict.fromkeys(node.devices))


def find_keys(pod: SharePod, selector: Mapping[str, str]) -> frozenset[str]:
    """The labels of nodes that pod and policy ask about."""
    terms = [term for term in pod.terms if isinstance(term, Mapping)] if isinstance(pod.terms, list) else []
    asked = [one for term in terms for one in term.get("matchExpressions") or () if isinstance(one, Mapping)]
    by_name = any(term.get("matchFields") for term in terms)
    keys = {*selector, *(pod.node_selector or {}), *(str(one.get("key", "")) for one in asked)}
    return frozenset(keys | ({NAME_FIELD} if by_name else set()))


def find_nodes(pod: SharePod, index: PartIndex, selector: Mapping[str, str]) -> tuple[PartNode, ...]:
    """Those that pod and policy accept, as they are now; one of each sort."""
    wanted = {**selector, **(pod.node_selector or {})}
    host = wanted.get(names.HOSTNAME)
    there = index.list_alike(find_keys(pod, selector)) if host is None else index.list_on(host)
    return tuple(
        node for node in there
        if wanted.items() <= node.labels.items()
        and all(tolerates(pod.tolerations or (), taint) for taint in node.taints)
        and selectors.accepts(pod.terms, node.name, node.labels)
    )


def tolerates(tolerations: Sequence[PodToleration], taint: NodeTaint) -> bool:
    """That of GPU nodes is tolerated by whoever we change."""
    if taint.effect not in names.KEEP_OUT or (taint.key, taint.effect) == (names.GPU, "NoSchedule"):
        return True
    return any(
        each.effect in ("", taint.effect) and each.key in ("", taint.key)
        and (each.operator == "Exists" or (bool(each.key) and each.value == taint.value))
        for each in tolerations
    )


def find(
    strategy: Strategy, needs: ShareNeeds, accepted: Sequence[PartNode], *, profile: str = ""
) -> GpuPart | None:
    """`profile`: one that somebody asks for; "": the smallest that is enough."""
    if strategy is Strategy.mig:
        chosen = choose_profile(list_profiles(accepted), needs, wanted=profile)
        return None if chosen is None else GpuPart(strategy, gpus.name_resource(chosen), {}, chosen)
    selector = {names.GPU_SHARING: SHARING_LABELS[strategy]}
    sharing = [
        node for node in accepted if selector.items() <= node.labels.items() and _has_room(node, needs)
        and (strategy is not Strategy.mps or _has_threads(node, needs))
    ]
    if any(node.offers.get(names.GPU_SHARED, 0) > 0 for node in sharing):
        return GpuPart(strategy, names.GPU_SHARED, selector)
    if any(node.offers.get(names.GPU, 0) > 0 and count_replicas(node) for node in sharing):
        return GpuPart(strategy, names.GPU, selector)  # a plugin that does not rename what it shares
    return None


def _has_room(node: PartNode, needs: ShareNeeds) -> bool:
    """Would its memory be enough if all who share a GPU used as much? MPS grants no more, time-slicing knows no
    bound."""
    if needs.memory is None:
        return True
    memory, replicas = read_memory(node), count_replicas(node)
    return memory is not None and replicas is not None and needs.memory * replicas <= memory


def _has_threads(node: PartNode, needs: ShareNeeds) -> bool:
    """MPS grants each of N clients one Nth of the threads."""
    replicas = count_replicas(node)
    return needs.compute is None or (replicas is not None and needs.compute * replicas <= 1)


def count_replicas(node: PartNode) -> int | None:
    """How many pods share each of its GPUs; None: not told."""
    said = node.labels.get(names.GPU_REPLICAS, "")
    return int(said) if said.isdecimal() and len(said) <= 4 and int(said) > 1 else None


def read_memory(node: PartNode) -> int | None:
    """MiB of one whole GPU, as its labels tell, else as the book knows its model."""
    said = node.labels.get(names.GPU_MEMORY, "")
    if said.isdecimal() and len(said) <= 9:
        return int(said)
    model = gpus.find(node.labels.get(names.GPU_PRODUCT, ""))
    return None if model is None else int(model.memory_gib * 1024 * _GIB_PER_GB)


# ---- MIG -------------------------------------------------------------------------------------------------------------


def list_profiles(nodes: Sequence[PartNode]) -> tuple[MigPart, ...]:
    """Without those whose instances several pods share on any of the nodes: a pod may go there."""
    shared = {resource for node in nodes for resource in node.offers if _takes_turns(node, resource)}
    offered = (part for node in nodes for part in _profiles_of(node))
    return join_profiles(part for part in offered if gpus.name_resource(part.profile) not in shared)


def join_profiles(offered: Iterable[MigPart]) -> tuple[MigPart, ...]:
    """Of a profile that differs between nodes the least of each counts: nobody knows to which one a pod will go."""
    found: dict[str, MigPart] = {}
    for part in offered:
        other = found.get(part.profile, part)
        found[part.profile] = MigPart(
            profile=part.profile, memory=min(part.memory, other.memory), compute=min(part.compute, other.compute)
        )
    return tuple(found[name] for name in sorted(found))


def _profiles_of(node: PartNode) -> Iterator[MigPart]:
    model = gpus.find(node.labels.get(names.GPU_PRODUCT, ""))
    cut = model.mig if model is not None else None
    for resource, count in node.offers.items():
        if not resource.startswith(names.MIG_PREFIX) or count <= 0:
            continue
        name = gpus.read_plain(resource.removeprefix(names.MIG_PREFIX))
        known = cut.find(name) if cut is not None else None
        memory = _read_instance_memory(node, resource, known) or guess_memory(name)
        if memory is not None:
            yield MigPart(profile=name, memory=memory, compute=find_compute(name, cut))


def _takes_turns(node: PartNode, resource: str) -> bool:
    """By a plugin that does not rename what it shares."""
    return node.offers[resource] > 0 and node.labels.get(f"{resource}.replicas", "1") not in ("0", "1")


def _read_instance_memory(node: PartNode, resource: str, known: gpus.Profile | None) -> int | None:
    said = node.labels.get(f"{resource}.memory", "")
    if said.isdecimal() and len(said) <= 9:
        return int(said)
    return None if known is None or known.memory_gib is None else int(known.memory_gib * 1024)


def name_memory(name: str) -> int | None:
    """MiB that a profile is called by: no instance has more, whoever says so."""
    digits = name.partition("+")[0].partition("-")[0].partition(".")[2].removesuffix("gb")
    return int(digits) * 1024 if digits.isdecimal() and len(digits) <= 4 else None


def guess_memory(name: str) -> int | None:
    """`1g.10gb` has at least 8.5 GiB; what is not called so tells nothing."""
    _, _, size = name.removesuffix("+me").partition(".")
    digits = size.removesuffix("gb")
    return int(int(digits) * 1024 * _GIB_PER_GB) if digits.isdecimal() and len(digits) <= 4 else None


def find_compute(name: str, cut: gpus.Mig | None) -> float:
    """Which share of the SMs a profile has; `cut`: how its model is cut, None where that is not known."""
    known = cut.find(name) if cut is not None else None
    whole = cut.profiles[-1] if cut is not None else None
    if known is not None and known.sms and whole is not None and whole.sms:
        return known.sms / whole.sms
    slices = name.partition("g")[0]
    return int(slices) / (cut.compute if cut is not None else 7) if slices.isdecimal() and len(slices) == 1 else 0.0


def choose_profile(offered: Iterable[MigPart], needs: ShareNeeds, *, wanted: str = "") -> str | None:
    """The smallest that is enough. Memory must be known; where compute is not, the smallest share is taken. One that
    somebody asks for must be offered, and enough as far as the need is known."""
    enough = [
        part for part in offered
        if (not wanted or part.profile == wanted) and part.memory >= (needs.memory or 0)
        and part.compute >= (needs.compute or 0.0)
    ]
    if not enough or (needs.memory is None and not wanted):
        return None
    return min(enough, key=lambda part: (part.memory, part.compute, part.profile)).profile
