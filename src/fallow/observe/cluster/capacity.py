"""What nodes have and what pods need, as packing sees it: of all pods, not only of those with GPUs.

In: pods and nodes in the API server's words, with more of them than idle reads. Out: cluster.Pod and cluster.Node as
everywhere, with `needs` and `machine` filled in.
Of a machine that must not be packed, and of a pod that must not be moved or cannot be judged, the first reason is kept.
Invariant: a quantity that cannot be read is said, and is no 0.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from fallow import names
from fallow.model import classes, cluster, kinds, quantities
from fallow.model.capacity import LOSES_WORK, OF_ITS_NODE, Machine, Needs
from fallow.model.classes import ContainerText, WorkClass, WorkFacts
from fallow.model.scaling import NodeToleration
from fallow.observe.cluster import objects, pods

_COUNTED: Final = {"cpu", "memory", names.GPU, names.GPU_SHARED}
_OF_MACHINES: Final = {names.OS_LABEL, names.ARCH_LABEL}  # heeded only where a mistake would cost somebody a place
_SELF_EVIDENT: Final = {names.GPU_PRODUCT, names.GPU_PRESENT, *_OF_MACHINES}
_PATTERNS: Final = classes.Patterns()


class _CountedResources(pods.PodResources, gc=False):
    requests: dict[str, str] | None = None

    def asked(self) -> dict[str, str]:
        """A limit without a request is a request."""
        return {**(self.limits or {}), **(self.requests or {})}


class _ContainerPort(msgspec.Struct, rename="camel", gc=False):
    host_port: int = 0  # on the host's network the API server fills it in


class CountedContainer(pods.PodContainer, gc=False):
    resources: _CountedResources | None = None
    ports: Sequence[_ContainerPort] | None = None
    image: str = ""
    command: list[str] | None = None
    args: list[str] | None = None


class _PodVolume(msgspec.Struct, rename="camel", gc=False):
    persistent_volume_claim: Any = None
    ephemeral: Any = None
    host_path: Any = None


class CountedSpec(pods.PodSpec, kw_only=True, gc=False):
    containers: Sequence[CountedContainer]
    init_containers: Sequence[CountedContainer] | None = None
    overhead: dict[str, str] | None = None
    topology_spread_constraints: list[Any] | None = None
    volumes: list[_PodVolume] | None = None
    scheduler_name: str = names.DEFAULT_SCHEDULER
    tolerations: list[NodeToleration] | None = None

    def read_affinity(self) -> dict[str, Any]:
        return msgspec.json.decode(self.affinity) or {}


class CountedStatus(pods.PodStatus, rename="camel", gc=False):
    nominated_node_name: str = ""


class CountedPodItem(pods.PodItem, kw_only=True, gc=False):
    spec: CountedSpec
    status: CountedStatus = msgspec.field(default_factory=CountedStatus)


class _Taint(msgspec.Struct):
    key: str
    effect: str = ""


class _CountedNodeSpec(objects.NodeSpec):
    unschedulable: bool = False
    taints: list[_Taint] | None = None


class CountedNodeItem(objects.NodeItem):
    spec: _CountedNodeSpec = msgspec.field(default_factory=_CountedNodeSpec)


def see_node(item: CountedNodeItem) -> cluster.Node:
    return msgspec.structs.replace(objects.see_node(item), machine=see_machine(item))


def see_machine(item: CountedNodeItem, *, is_offered: bool = False) -> Machine:
    """`is_offered`: somebody else says whether a node may be used; here only whether what is free there can be told."""
    name, labels, has = item.metadata.name, item.metadata.labels or {}, item.status.allocatable or {}
    try:
        replicas = max(1, _whole(labels.get(names.GPU_REPLICAS, "1")))
        seats = sum(_whole(has.get(resource)) for resource in (names.GPU, names.GPU_SHARED))
        return Machine(
            name=name, product=labels.get(names.GPU_PRODUCT, ""), gpus=seats // replicas, replicas=replicas,
            cpu=quantities.parse_milli(has.get("cpu", "0"), up=False), pods=_whole(has.get("pods", "110")),
            memory=quantities.parse_mebi(has.get("memory", "0"), up=False), gpu_memory=_read_memory(labels),
            is_renamed=_whole(has.get(names.GPU_SHARED)) > 0,
            left_out=("" if is_offered else why_closed(item)) or _why_uncounted(has), taints=_find_taints(item),
        )
    except ValueError:
        why = "what it has cannot be read"
        return Machine(name=name, product="", cpu=0, memory=0, gpus=0, pods=0, left_out=why)


def _read_memory(labels: Mapping[str, str]) -> int | None:
    """None: nobody says it, or says none at all."""
    text = labels.get(names.GPU_MEMORY, "")
    return (int(text) if text.isdecimal() and len(text) < 9 else 0) or None


def _whole(text: str | None) -> int:
    return int(quantities.parse(text or "0"))


READERS: Final[Mapping[str, Callable[[str], int]]] = {"cpu": quantities.parse_milli, "memory": quantities.parse_mebi}


def _find_taints(item: CountedNodeItem) -> tuple[str, ...]:
    taints = item.spec.taints or ()
    return tuple(sorted({each.effect for each in taints if each.key == names.GPU and each.effect in names.KEEP_OUT}))


def why_closed(item: CountedNodeItem) -> str:
    """Why nothing new is to come there; "": it may."""
    if item.spec.unschedulable:
        return "is cordoned"
    if not objects.is_ready(item.status):
        return "is not Ready"
    if any(taint.effect in names.KEEP_OUT and taint.key != names.GPU for taint in item.spec.taints or ()):
        return "has a taint that only some pods tolerate"
    return ""


def _why_uncounted(has: Mapping[str, str]) -> str:
    if any(resource.startswith(names.MIG_PREFIX) and _whole(count) for resource, count in has.items()):
        return "is cut by MIG"
    return ""


def keeper(reader: pods.PodReader) -> Callable[[CountedPodItem], cluster.Pod]:
    """Keeps every pod, as the reader reads it, with its needs."""
    return lambda item: reader.read_counted(item, see_needs(item))


def see_needs(item: CountedPodItem) -> Needs:
    spec = item.spec
    try:
        asked, unknown = add_up(spec), _why_unknown(spec)
    except ValueError as problem:
        asked, unknown = Counter(), f"what it asks for cannot be read: {problem}"
    product = (spec.node_selector or {}).get(names.GPU_PRODUCT)
    return Needs(
        cpu=asked["cpu"], memory=asked["memory"], gpus=asked[names.GPU], shared=asked[names.GPU_SHARED],
        products=(product,) if product else (), unknown=unknown, unclear=_why_unclear(spec),
        fixed=why_fixed(item.metadata, spec, find_class(item.metadata, spec)), scheduler=spec.scheduler_name,
        tolerates=_find_tolerated(spec.tolerations or ()), beyond=_find_beyond(item, asked),
    )


def _find_tolerated(tolerations: Sequence[NodeToleration]) -> tuple[str, ...]:
    """Effects of the taint of GPUs, of whatever value: one that is tolerated by its value alone does not count."""
    ours = {each.effect for each in tolerations if each.operator == "Exists" and each.key in ("", names.GPU)}
    return tuple(effect for effect in names.KEEP_OUT if ours & {"", effect})


def _find_beyond(item: CountedPodItem, asked: Mapping[str, int]) -> str:
    spec = item.spec
    if other := next((name for name in sorted(asked) if asked[name] and name not in _COUNTED), ""):
        return f"asks for {other}, too"
    if any(one.persistent_volume_claim is not None or one.ephemeral is not None for one in spec.volumes or ()):
        return "has a volume that may be of some nodes only"
    if _OF_MACHINES & set(spec.node_selector or {}):
        return "selects nodes by their system or architecture"
    if any(port.host_port for one in (*spec.containers, *(spec.init_containers or ())) for port in one.ports or ()):
        return "needs a port of its node, which another may have"
    is_nominated = item.status.nominated_node_name and not spec.node_name
    return "the scheduler makes room for it already" if is_nominated else ""


def add_up(spec: CountedSpec) -> Counter[str]:
    """By resource, as the scheduler counts: containers and sidecars together, or the init container that asks for more
    meanwhile. CPU in milli-cores, memory in MiB. Raises ValueError."""
    beside, most = Counter[str](), Counter[str]()
    for container in spec.init_containers or ():
        if container.restart_policy == "Always":
            beside += _amounts(container)
            most |= beside
        else:
            most |= beside + _amounts(container)
    lasting = sum(map(_amounts, spec.containers), beside)
    return (lasting | most) + _read(spec.overhead or {})


def _amounts(container: CountedContainer) -> Counter[str]:
    return _read(container.resources.asked() if container.resources else {})


def _read(asked: Mapping[str, str]) -> Counter[str]:
    return Counter({name: READERS.get(name, _whole)(text) for name, text in asked.items()})


def _why_unknown(spec: CountedSpec) -> str:
    if spec.resource_claims:
        return "asks for devices by claims"
    asking = [one.resources.asked() for one in [*spec.containers, *(spec.init_containers or ())] if one.resources]
    if any(name.startswith(names.MIG_PREFIX) for asked in asking for name in asked):
        return "asks for a MIG instance"
    return ""


def _why_unclear(spec: CountedSpec) -> str:
    if set(spec.node_selector or {}) - _SELF_EVIDENT:
        return "selects nodes by other labels than the GPU's product"
    affinity = spec.read_affinity()
    if (affinity.get("nodeAffinity") or {}).get(names.REQUIRED):
        return "requires nodes by affinity"
    if affinity.get("podAffinity") or affinity.get("podAntiAffinity") or spec.topology_spread_constraints:
        return "minds which pods are beside it"
    return ""


def find_class(meta: pods.PodMeta, spec: CountedSpec) -> WorkClass:
    """As far as the pod itself and the kind above it tell. What it asks for tells only of who has GPUs."""
    owner = next((each for each in meta.owner_references or () if each.controller), None)
    group, kind = (objects.split_version(owner.api_version)[0], owner.kind) if owner is not None else ("", "")
    gpus, memory = _weigh(spec)
    return classes.classify(WorkFacts(
        said=(meta.labels or {}, meta.annotations or {}), owned=kinds.find_class(group, kind),
        containers=tuple(map(_run_of, spec.containers)), gpus=gpus, memory=memory if gpus else None,
    ), _PATTERNS).work


def _weigh(spec: CountedSpec) -> tuple[int, int]:
    """GPUs of all its containers, bytes of memory of the largest; what cannot be read is said elsewhere."""
    try:
        asked = [_amounts(container) for container in spec.containers]
    except ValueError:
        return 0, 0
    gpus = sum(count for each in asked for name, count in each.items() if name.startswith(names.NVIDIA))
    return gpus, max((each["memory"] for each in asked), default=0) * 2**20


def _run_of(container: CountedContainer) -> ContainerText:
    return ContainerText(container.image, tuple(container.command or ()), tuple(container.args or ()))


def why_fixed(meta: pods.PodMeta, spec: CountedSpec, work: WorkClass, *, frees_alone: bool = False) -> str:
    """Why it must not be moved; "": it may be. `frees_alone`: one that nobody makes again may be, where its people say
    so."""
    marks = {**(meta.labels or {}), **(meta.annotations or {})}
    controller = next((reference.kind for reference in meta.owner_references or () if reference.controller), None)
    is_evictable = marks.get(names.EVICTABLE) == "true"
    if names.MIRROR_POD in marks or (controller is None and not (frees_alone and is_evictable)):
        return "has no controller that would make it again"
    if controller == "DaemonSet":
        return OF_ITS_NODE
    if (work is WorkClass.training or controller in kinds.LASTING) and not is_evictable:
        return LOSES_WORK
    if marks.get(names.KARPENTER_DO_NOT_DISRUPT) == "true" or marks.get(names.SAFE_TO_EVICT) == "false":
        return "asked not to be disrupted"
    if any(one.persistent_volume_claim is not None or one.host_path is not None for one in spec.volumes or ()):
        return "has a volume that may be of its node"
    return ""
