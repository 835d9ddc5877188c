"""Alibaba's openb: nodes with GPUs, pods that asked for them, the orders in which they came, the published curves.

In: the folder of the traces, as published (CSV, gzipped or not). Out: an OpenbTrace: nodes and pods in the packing
engine's own nouns, arrival and tie orders by seed; the published curves; each with a TraceReport of what was left out.
Invariant: nothing is guessed. A row that cannot be read or believed is named and counted, and the rows after it keep
their numbers: orders name pods and nodes by row. An order is the stored one, or is drawn anew and says so.
"""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from fallow.decide import packing
from fallow.model.units import Seconds
from fallow.sim.traces import published
from fallow.sim.traces.published import TraceError, TraceReport

FULL: Final = 1.3  # the published runs let pods arrive until they asked for 130 % of the cluster's GPUs
NODES_FILE: Final = "openb_node_list_gpu_node.csv"
PODS_PREFIX: Final = "openb_pod_list_"
_NODES: Final = f"openb/{NODES_FILE}"
_PODS: Final = f"openb/{PODS_PREFIX}{{}}.csv.gz"
_CURVES: Final = "openb/published_allocation_curves.csv.gz"
PODS_COLUMNS: Final = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
SET_FOLDER: Final = "set FALLOW_TRACES to the folder of the traces"
_NO_NUMBER: Final = "CPU, memory or GPUs are no whole number"
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")

Curves = Mapping[tuple[str, str, int], tuple[float | None, ...]]
# Who comes when (rows of the pod list), and which node goes first among equals (a rank per row of the node list).
Order = tuple[tuple[int, ...], tuple[int, ...]]


class NoTrace(TraceError):
    """The folder, or the trace in it, is not there."""


class AskingPod(msgspec.Struct, frozen=True):
    """A pod as it asked. Times are seconds since the trace began; None = the trace does not tell, or it never left."""

    pod: packing.PackingPod
    qos: str = ""
    created: Seconds | None = None
    deleted: Seconds | None = None


class Arrivals(msgspec.Struct, frozen=True, eq=False):
    """One run: the pods as they come, the tie order of the nodes; `origin` says where they are from."""

    pods: tuple[packing.PackingPod, ...]
    order: packing.Ints
    origin: str


class OpenbFiles(msgspec.Struct, frozen=True):
    """Where a trace lies. `name`: what people call it."""

    name: str
    pods: Path
    nodes: Path

    @property
    def mix(self) -> str:
        """By which orders and curves know it: `default` of openb_pod_list_default.csv.gz."""
        return self.pods.name.partition(".")[0].removeprefix(PODS_PREFIX)


class OpenbTrace(msgspec.Struct, frozen=True):
    name: str
    nodes: Mapping[int, packing.PackingNode]  # by row
    pods: Mapping[int, AskingPod]  # by row
    orders: Mapping[int, Order]  # by seed
    reports: Mapping[str, TraceReport]  # by file

    @property
    def sample(self) -> list[packing.PackingPod]:
        """The whole pod list: the mix that popularity and prices come from."""
        return [each.pod for each in self.pods.values()]

    def arrive(self, seed: int) -> Arrivals:
        """The run of that seed: as it was published, or drawn where no order is stored."""
        if seed not in self.orders:
            return draw(list(self.nodes.values()), self.sample, seed)
        arrivals, stored = self.orders[seed]
        known = [self.pods[row].pod for row in arrivals if row in self.pods]
        left = len(arrivals) - len(known)
        origin = f"seed {seed}, the published order" + (f"; {left} arrivals of pods that were left out" if left else "")
        ranks = np.argsort(np.argsort([stored[row] for row in self.nodes], kind="stable"), kind="stable")
        return Arrivals(tuple(known), ranks, origin)  # 0, 1, 2 ... also where a node was left out


def draw(nodes: Sequence[packing.PackingNode], pods: Sequence[packing.PackingPod], seed: int) -> Arrivals:
    """The list in any order, then pods of it at random until enough have come."""
    rng = np.random.default_rng(seed)
    wanted = FULL * sum(node.gpus for node in nodes) * packing.GPU
    drawn = [pods[i] for i in rng.permutation(len(pods))]
    asked = sum(pod.gpu_milli for pod in drawn)
    while asked < wanted and any(pod.gpus for pod in pods):
        drawn.append(pods[int(rng.integers(len(pods)))])
        asked += drawn[-1].gpu_milli
    return Arrivals(tuple(drawn), rng.permutation(len(nodes)), f"seed {seed}, drawn: no order is stored for it")


def find_names(folder: Path | None) -> list[str]:
    """The traces that are there."""
    start, end = Path(_PODS).name.split("{}")
    return sorted(path.name[len(start) : -len(end)] for path in folder.glob(_PODS.format("*"))) if folder else []


def read(folder: Path | None, name: str) -> OpenbTrace:
    """A trace with all that belongs to it. Without orders it can still be run: they are drawn."""
    if folder is None:
        raise NoTrace(f"no trace {name}: {SET_FOLDER}")
    path = folder / _PODS.format(name)
    if not _NAME.fullmatch(name) or not path.is_file() or not (folder / _NODES).is_file():
        there = ", ".join(find_names(folder))
        hint = f"; there are {there}" if there else f": {SET_FOLDER}"
        raise NoTrace(f"no trace {name} in {folder}{hint}")
    return read_files(OpenbFiles(name, path, folder / _NODES))


def read_files(where: OpenbFiles) -> OpenbTrace:
    """Orders lie in a folder beside the pods."""
    nodes, of_nodes = read_nodes(where.nodes)
    pods, of_pods = read_pods(where.pods)
    orders = where.pods.parent / "orders" / f"{where.mix}.csv.gz"
    known, of_orders = read_orders(orders, of_nodes.rows, of_pods.rows)
    return OpenbTrace(where.name, nodes, pods, known, {"nodes": of_nodes, "pods": of_pods, "orders": of_orders})


def read_nodes(path: Path) -> tuple[dict[int, packing.PackingNode], TraceReport]:
    report, nodes = TraceReport(), dict[int, packing.PackingNode]()
    columns = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
    for line, (name, *texts, model) in published.read_rows(path, columns, report):
        numbers = published.read_as(_whole_numbers, ",".join(texts), _NO_NUMBER, line, report)
        if numbers is None:
            continue
        cpu, memory, gpus = numbers
        node = packing.PackingNode(name, model if gpus else "", cpu, memory, gpus)
        if not name:
            report.leave_out("no name", line)
        elif fault := node.find_fault():
            report.leave_out("has what no machine has", line, fault)
        else:
            nodes[report.rows - 1] = node
    return nodes, report


def read_pods(path: Path) -> tuple[dict[int, AskingPod], TraceReport]:
    """More than a whole GPU of each GPU is a whole GPU."""
    report, pods = TraceReport(), dict[int, AskingPod]()
    optional = ("gpu_spec", "qos", "creation_time", "deletion_time")
    for line, (name, *asked, spec, qos, created, deleted) in published.read_rows(path, PODS_COLUMNS, report, optional):
        numbers = published.read_as(_whole_numbers, ",".join(asked), _NO_NUMBER, line, report)
        lived = published.read_as(_lifetime, f"{created},{deleted}", "a time is no number", line, report)
        if numbers is None or lived is None:
            continue
        (cpu, memory, gpus, milli), models = numbers, tuple(model for model in spec.split("|") if model)
        pod = packing.PackingPod(name, cpu, memory, gpus, min(milli, packing.GPU), models)
        if fault := pod.find_fault():
            report.leave_out("asks for what no machine has", line, fault)
        else:
            pods[report.rows - 1] = AskingPod(pod, qos, *lived)
    return pods, report


def _whole_numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def _lifetime(text: str) -> tuple[Seconds | None, Seconds | None]:
    created, deleted = (float(word) if word else None for word in text.split(","))
    if any(time is not None and not math.isfinite(time) for time in (created, deleted)):
        raise ValueError(text)
    return created, deleted


def read_orders(path: Path, nodes: int, pods: int) -> tuple[dict[int, Order], TraceReport]:
    """`nodes`, `pods`: rows of their lists. A seed needs both of its lines; without the file there is no order."""
    report, found = TraceReport(), dict[tuple[int, str], tuple[int, ...]]()
    for line, words in published.read_lines(path, report) if path.is_file() else ():
        if len(words) < 3:
            report.leave_out("too few fields", line)
            continue
        seed_text, kind, *numbers = words
        seed = published.read_as(int, seed_text, "the seed is no whole number", line, report)
        rows = published.read_as(_whole_numbers, ",".join(numbers), "a row is no whole number", line, report)
        if seed is None or rows is None:
            continue
        if kind == "nodeperm" and sorted(rows) != list(range(nodes)):
            report.leave_out("does not rank each node once", line)
        elif kind == "pods" and not all(0 <= row < pods for row in rows):
            report.leave_out("names rows that the pod list does not have", line)
        else:
            found[seed, kind] = rows
    seeds = sorted({seed for seed, _ in found})
    whole = [seed for seed in seeds if (seed, "pods") in found and (seed, "nodeperm") in found]
    report.left_out["only half of an order"] += len(seeds) - len(whole)
    return {seed: (found[seed, "pods"], found[seed, "nodeperm"]) for seed in whole}, report


def read_published(folder: Path | None) -> tuple[Curves, TraceReport]:
    """Allocated GPU % at each whole % of GPUs that arrived, by trace, policy and seed; None where that is not said."""
    report, curves = TraceReport(), dict[tuple[str, str, int], tuple[float | None, ...]]()
    if folder is None or not (folder / _CURVES).is_file():
        return curves, report
    wanted = ("workload", "sc_policy", "seed", *map(str, range(131)))
    known = {name.lower(): name for name in packing.POLICIES}
    for line, (workload, policy, seed_text, *cells) in published.read_rows(folder / _CURVES, wanted, report):
        seed = published.read_as(int, seed_text, "the seed is no whole number", line, report)
        name = known.get(policy.partition("-")[2].lower())
        if name is None:
            report.leave_out("a policy that is not known", line)
        elif seed is not None:
            curves[workload.removeprefix(PODS_PREFIX), name, seed] = tuple(
                published.read_as(_percentage, cell, "allocated is no percentage", line, report) if cell else None
                for cell in cells
            )
    return curves, report


def _percentage(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 100:
        raise ValueError(text)
    return value
