"""GPUs as shares of physical ones: what a pod holds, what a node has, and into which parts each of its GPUs is divided.

In: pods, nodes, the catalogue of models. Out: PhysicalUnits: a whole GPU is 1, a replica of a shared GPU one of as
many, a MIG instance what it takes of the compute or of the memory, whichever is more (what it leaves of the other
nobody else can have), what HAMi or KAI give the greater of what was asked for; and the Slots of each GPU of a node in
micro-GPUs, for the books. Where instances would so add up to more than there is, all of a node are worth a little less:
on which of its GPUs each of them is, Kubernetes does not tell. Pages, bills and books ask here, so that a part is one
and the same everywhere.
Invariant: what is not known is None and never 0; the capacity of a node is never less than what its pods hold; the
slots of one GPU never come to more than the GPU.
"""

import functools
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Final

import msgspec

from fallow import names
from fallow.model import cluster, cost, gpus
from fallow.model.cost import Micro, Sharing
from fallow.model.seen import Unseen

_PROFILE: Final = re.compile(r"(\d+)g\.\d+gb(?:[.+]me)?")
_NUMBER: Final = re.compile(r"(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,2})?", re.ASCII)
_USUAL_SLICES: Final = 7
_USUAL_MEMORY: Final = {1: 1, 2: 2, 3: 4, 4: 4, 7: 8}  # memory slices of eight, by compute slices of seven
_ONE: Final = Fraction(1)


class PhysicalUnit(msgspec.Struct, frozen=True):
    """One of what pods ask for. Of a MIG instance: `size`, in slices of compute; `of`: how many the whole GPU has;
    `takes`: which part of the compute, and which of the memory. `group`: units of one group are parts of one GPU.
    `device`: by its name, where whoever gave it says so."""

    resource: str
    share: float = 1.0
    profile: str | None = None
    size: int | None = None
    of: int = _USUAL_SLICES
    takes: tuple[Fraction, Fraction] | None = None
    weight: Fraction = _ONE  # the share, exactly
    sharing: Sharing = Sharing.exclusive
    group: str = ""
    device: str = ""

    @property
    def micro(self) -> Micro:
        """At least one: who holds next to nothing is booked all the same."""
        return max(1, math.floor(self.weight * cost.WHOLE))


class GpuSlot(msgspec.Struct, frozen=True, gc=False):
    """A part of one GPU that exists whether anybody holds it or not: from `low` to `high` of it, exactly."""

    name: str
    resource: str
    share: Micro
    low: Fraction
    high: Fraction
    sharing: Sharing


@functools.lru_cache(4096)
def find_unit(resource: str, product: str, replicas: int) -> PhysicalUnit:
    """By the resource's own name, or, where a node offers its instances as plain GPUs, by the name of its product."""
    found = _PROFILE.search(resource if resource.startswith(names.MIG_PREFIX) else product.partition("-MIG-")[2])
    if found is None:
        return _unit(resource, Fraction(1, replicas), sharing=Sharing.timeslicing if replicas > 1 else None)
    profile, size = found[0].replace(".me", "+me"), int(found[1])
    model = gpus.find(product)
    of = model.mig.compute if model and model.mig else _USUAL_SLICES
    compute, memory = Fraction(min(size, of), of), Fraction(*_memory_of(model, profile, size))
    takes = compute / replicas, memory / replicas
    return _unit(resource, max(takes), profile=profile, size=size, of=of, takes=takes, sharing=Sharing.mig)


def _unit(resource: str, weight: Fraction, *, sharing: Sharing | None = None, **more: object) -> PhysicalUnit:
    facts = {"share": float(weight), "weight": weight, "sharing": sharing or Sharing.exclusive, **more}
    return msgspec.structs.replace(PhysicalUnit(resource), **facts)


def _memory_of(model: gpus.Model | None, profile: str, size: int) -> tuple[int, int]:
    """(slices it takes, of how many)."""
    if model and model.mig:
        known = model.mig.find(profile)
        return (known.memory if known else min(size, model.mig.memory)), model.mig.memory
    return _USUAL_MEMORY.get(size, min(size, 8)), 8


def replicas_of(node: cluster.Node | None) -> int:
    text = "1" if node is None else node.labels.get(names.GPU_REPLICAS, "1")
    return max(1, int(text)) if text.isdecimal() and len(text) < 5 else 1


def unit_on(node: cluster.Node | None, resource: str) -> PhysicalUnit:
    """Where the instances of a node come to more than its GPUs, all are scaled down alike."""
    unit = find_unit(resource, (node.gpu_product if node else None) or "", replicas_of(node))
    if unit.sharing is Sharing.timeslicing and node is not None and layout_of(node) == "mps":
        return msgspec.structs.replace(unit, sharing=Sharing.mps)
    crowd = _crowding(node) if unit.sharing is Sharing.mig and node is not None else _ONE
    return unit if crowd == 1 else msgspec.structs.replace(
        unit, share=float(unit.weight / crowd), weight=unit.weight / crowd
    )


def _crowding(node: cluster.Node) -> Fraction:
    """What its instances come to, of one GPU each on average; at least 1."""
    units = [(find_unit(name, node.gpu_product or "", replicas_of(node)), n) for name, n in node.offers.items()]
    cut = [(unit.weight, count) for unit, count in units if unit.sharing is Sharing.mig]
    whole = sum(unit.weight * count for unit, count in units if unit.sharing is not Sharing.mig)
    boards = (count_physical(node) or 0) - whole
    return max(_ONE, Fraction(sum(weight * count for weight, count in cut), boards)) if boards > 0 else _ONE


def held_by(pod: cluster.Pod, node: cluster.Node | None) -> Iterator[PhysicalUnit]:
    """What it has on its node, one by one; nothing while it has none, or after its end."""
    if not pod.node or pod.has_ended or pod.namespace in names.RESERVATION_NAMESPACES:
        return iter(())
    return units_of(pod, node)


def units_of(pod: cluster.Pod, node: cluster.Node | None) -> Iterator[PhysicalUnit]:
    """The same, whether it is still there or not."""
    devices = _hami_devices(pod) if pod.part or (node and node.boards) else ()
    for resource, count in pod.resources.items():
        unit = unit_on(node, resource)
        if resource == names.GPU_SHARED and unit.share == 1.0:
            yield from _fractions_of(pod, node, count)
        elif pod.part or (node and node.boards and resource == names.GPU):
            unit = _hami_part(pod, node, resource)
            for at in range(count):
                yield msgspec.structs.replace(unit, device=devices[at]) if at < len(devices) else unit
        else:
            yield from (unit for _ in range(count))
    known = [_claimed_part(device, node) for device in pod.devices]
    yield from known[: pod.claimed or 0]
    yield from (_unit(names.DRA_DRIVER, _ONE, sharing=Sharing.dra) for _ in range((pod.claimed or 0) - len(known)))


def _fractions_of(pod: cluster.Pod, node: cluster.Node | None, count: int) -> Iterator[PhysicalUnit]:
    """Of a pod that asked KAI or Run:ai for parts of GPUs, in its own words: each group is one GPU."""
    asked = _read_number(pod.annotations.get(names.GPU_FRACTIONS[0]))
    memory = _read_number(pod.annotations.get(names.GPU_FRACTIONS[1]))
    if asked is None and memory is not None and (each := memory_of(node)):
        asked = memory / each
    weight = asked if asked is not None and 0 < asked <= 1 else _ONE
    groups = sorted(groups_of(pod))
    several = pod.annotations.get(names.GPU_FRACTION_DEVICES, "")
    count = max(count, len(groups), int(several) if several.isdecimal() and len(several) < 3 else 1)
    for at in range(count):
        group = groups[at] if at < len(groups) else ""
        yield _unit(names.GPU_SHARED, weight, sharing=Sharing.kai, group=group)


def groups_of(pod: cluster.Pod) -> set[str]:
    """The GPUs that it shares by KAI or Run:ai: one label for each, the label's name or a longer one."""
    key = names.RESERVATION_GROUP_LABEL
    return {value for label, value in pod.labels.items() if label == key or label.startswith(f"{key}/")}


def _read_number(text: str | None) -> Fraction | None:
    """Of what a tenant wrote: 1e-999999999 would be a number that takes hours to make."""
    return Fraction(text) if text and len(text) < 20 and _NUMBER.fullmatch(text) else None


def _hami_part(pod: cluster.Pod, node: cluster.Node | None, resource: str) -> PhysicalUnit:
    """The greater of its parts of memory and cores. Who asks for no memory gets all of it."""
    memory, cores = pod.part.get(names.HAMI_MEMORY), Fraction(pod.part.get(names.HAMI_CORES, 0), 100)
    percent, each = pod.part.get(names.HAMI_MEMORY_PERCENT), memory_of(node)
    of_memory = Fraction(percent, 100) if percent else Fraction(memory, each) if memory and each else _ONE
    return _unit(resource, min(_ONE, max(of_memory, cores)), sharing=Sharing.hami)


def _hami_devices(pod: cluster.Pod) -> tuple[str, ...]:
    """`GPU-1,NVIDIA,3000,30:GPU-2,NVIDIA,3000,30:;` -> GPU-1, GPU-2. Only which: how much stands in its limits, which
    nobody may change."""
    said = pod.annotations.get(names.HAMI_ALLOCATED, "").replace(";", ":").split(":")
    return tuple(one.partition(",")[0] for one in said if one.partition(",")[0])


def _claimed_part(device: cluster.ClaimedGpu, node: cluster.Node | None) -> PhysicalUnit:
    each, product = memory_of(node), (node.gpu_product if node else None) or ""
    weight = min(_ONE, Fraction(device.memory, each)) if device.memory and each else _ONE
    if device.profile and not device.memory:
        weight = find_unit(names.MIG_PREFIX + device.profile, product, 1).weight
    return _unit(names.DRA_DRIVER, weight, sharing=Sharing.dra, group=f"{device.pool}/{device.name}")


def memory_of(node: cluster.Node | None) -> int | None:
    """MiB of each of its GPUs."""
    if node is None:
        return None
    if node.boards:
        return min(board.memory for board in node.boards) or None
    said, model = node.labels.get(names.GPU_MEMORY, ""), gpus.find(node.gpu_product or "")
    if said.isdecimal() and 0 < len(said) < 9 and int(said):
        return int(said)
    return model.memory_gib * 1024 if model else None


def offered_by(node: cluster.Node) -> Mapping[str, int] | None:
    """By resource; None where it is not known."""
    if node.gpus is None:
        return None
    return node.offers or ({names.GPU: node.gpus} if node.gpus else {})


def count_physical(node: cluster.Node) -> int | None:
    """How many GPUs are in it. A node that is cut tells its instances: of what is left over of a GPU nobody hears, so
    that whole GPUs are counted. One that gives its GPUs by claims offers none, and has them all the same."""
    offered = offered_by(node)
    if offered is None:
        return None
    if node.boards:
        return len(node.boards)
    least = math.ceil(_count_least(node, offered))
    said = node.labels.get(names.GPU_COUNT, "")
    is_cut = any(name.startswith(names.MIG_PREFIX) for name in offered)
    has_said = (is_cut or not any(offered.values())) and said.isdecimal() and len(said) < 4
    return max(least, int(said)) if has_said else least


def _count_least(node: cluster.Node, offered: Mapping[str, int]) -> Fraction:
    """Of compute as of memory there must be enough: instances that take all of one leave some of the other."""
    whole, compute, memory = Fraction(0), Fraction(0), Fraction(0)
    for name, count in offered.items():
        unit = find_unit(name, node.gpu_product or "", replicas_of(node))
        if unit.takes is None:
            whole += unit.weight * count
        else:
            compute, memory = compute + unit.takes[0] * count, memory + unit.takes[1] * count
    return whole + max(compute, memory)


def layout_of(node: cluster.Node) -> str:
    """whole, mig, slices or mps."""
    if "-MIG-" in (node.gpu_product or "") or any(name.startswith(names.MIG_PREFIX) for name in node.offers):
        return "mig"
    if not node.shared:
        return "whole"
    return "mps" if node.labels.get(names.GPU_SHARING) == "mps" else "slices"


# ---- the slots of each GPU ------------------------------------------------------------------------------------------


def lay_out(node: cluster.Node) -> tuple[tuple[GpuSlot, ...], ...]:
    """The slots of each of its GPUs; () = it is given as a whole, or in parts that exist only while they are held."""
    offered, count = offered_by(node), count_physical(node)
    if not offered or not count or node.boards:
        return ((),) * (count or 0)
    return _lay_out(
        tuple(sorted(offered.items())), node.gpu_product or "", replicas_of(node), count, layout_of(node) == "mps"
    )


@functools.lru_cache(1024)
def _lay_out(
    offered: tuple[tuple[str, int], ...], product: str, replicas: int, count: int, is_mps: bool
) -> tuple[tuple[GpuSlot, ...], ...]:
    units = {name: find_unit(name, product, replicas) for name, _ in offered}
    cut = {name: number // replicas for name, number in offered if units[name].sharing is Sharing.mig}
    plain = [name for name, number in offered if number and name not in cut]
    whole: tuple[GpuSlot, ...] = ()
    if replicas > 1 and plain:
        turns = Sharing.mps if is_mps else Sharing.timeslicing
        whole = _slots((plain[0],) * replicas, (Fraction(1, replicas),) * replicas, turns)
    if not any(cut.values()):
        return (whole,) * count
    uncut = min(count, math.ceil(sum(number for name, number in offered if name in plain) / replicas))
    cards = _deal(cut, units, max(1, count - uncut))
    return (*(whole,) * uncut, *(_cut_board(card, units, replicas) for card in cards))[:count]


def _deal(cut: Mapping[str, int], units: Mapping[str, PhysicalUnit], boards: int) -> list[tuple[str, ...]]:
    """Which instances are on which GPU: alike on all where that comes out even, as they are mostly cut; else each, the
    largest first, on the first that has compute slices left."""
    if all(number % boards == 0 for number in cut.values()):
        return [tuple(name for name, number in cut.items() for _ in range(number // boards))] * boards
    cards: list[list[str]] = [[] for _ in range(boards)]
    left = [units[next(iter(cut))].of] * boards
    for name in sorted(cut, key=lambda name: -(units[name].size or 0)):
        for _ in range(cut[name]):
            size = units[name].size or 0
            at = next((at for at, room in enumerate(left) if room >= size), max(range(boards), key=left.__getitem__))
            cards[at].append(name)
            left[at] -= size
    return [tuple(card) for card in cards]


def _cut_board(card: tuple[str, ...], units: Mapping[str, PhysicalUnit], replicas: int) -> tuple[GpuSlot, ...]:
    instances = tuple(name for name in card for _ in range(replicas))
    return _slots(instances, tuple(units[name].weight for name in instances), Sharing.mig)


def _slots(resources: tuple[str, ...], weights: tuple[Fraction, ...], sharing: Sharing) -> tuple[GpuSlot, ...]:
    """Micro-GPUs by the largest remainder, with what is left over as one more part."""
    whole = max(_ONE, sum(weights, Fraction(0)))
    edges = [Fraction(0), *itertools.accumulate(weight / whole for weight in weights)]
    scale = math.lcm(*(edge.denominator for edge in edges))
    parts = cost.divide(cost.WHOLE, tuple(int((b - a) * scale) for a, b in itertools.pairwise((*edges, _ONE))))
    found, seen = list[GpuSlot](), dict[str, int]()
    for at, resource in enumerate(resources):
        profile = resource.removeprefix(names.MIG_PREFIX) if sharing is Sharing.mig else ""
        number = seen[profile] = seen.get(profile, -1) + 1
        name = f"{profile}#{number}" if profile else str(number)
        found.append(GpuSlot(name, resource, parts[at], edges[at], edges[at + 1], sharing))
    return tuple(found)


class WorkloadShare(msgspec.Struct, frozen=True):
    """What one workload holds: physical GPUs, and in how many pieces."""
    gpus: float
    instances: int
    profile: str | None


def of_workload(workload: cluster.Workload, seen: cluster.Snapshot) -> WorkloadShare:
    units = list(_units_of(workload, seen))
    profiles = {unit.profile for unit in units if unit.profile}
    return WorkloadShare(
        round(sum(unit.share for unit in units), 4), len(units), profiles.pop() if len(profiles) == 1 else None
    )


def _units_of(workload: cluster.Workload, seen: cluster.Snapshot) -> Iterable[PhysicalUnit]:
    for index in workload.pods:
        pod = seen.pods[index]
        yield from held_by(pod, seen.nodes.known.get(pod.node))


def count_cluster(seen: cluster.Snapshot) -> float | None:
    """Physical GPUs of all nodes; None where not all of them are seen."""
    if not is_capacity_known(seen):
        return None
    return float(sum(count_physical(node) or 0 for node in seen.nodes.known.values()))


def is_capacity_known(seen: cluster.Snapshot) -> bool:
    return not isinstance(seen.nodes.rest, Unseen) and all(node.gpus is not None for node in seen.nodes.known.values())
