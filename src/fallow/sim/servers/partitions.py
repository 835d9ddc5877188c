"""NVIDIA's programs on the nodes of a pretend cluster: what their labels ask for is done to the GPUs of the world.

In: a World and the Store in which labels and ConfigMaps are written. Out: with every `step`, one of them writes the
next thing on its node (sim/nvidia.py says what), and the world's GPUs are given out accordingly.
Invariant: a GPU that somebody is on is not cut: the manager waits. A layout that this world has no pods for is shown,
and given to nobody.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import yaml

from fallow import names
from fallow.model import moving, partition
from fallow.settings.sharing import MIG_MAP, PLUGIN_MAP
from fallow.sim import nvidia
from fallow.sim.servers import store as stores
from fallow.sim.world import nouns
from fallow.sim.world import world as worlds

WRITER: Final = stores.Writer(manager="nvidia-mig-manager")
_LABELS: Final = (names.MIG_CONFIG, names.PLUGIN_CONFIG)


class NodePrograms:
    def __init__(self, world: worlds.World, store: stores.Store) -> None:
        self._world, self._store = world, store
        self._programs: dict[str, nvidia.NvidiaNode] = {}

    def step(self) -> None:
        """On every node whose labels ask for something."""
        for node in self._world.nodes.values():
            found = self._store.find(stores.Key("", "Node", "", node.name))
            labels = found.object["metadata"]["labels"] if found is not None else {}
            if found is not None and (node.name in self._programs or any(label in labels for label in _LABELS)):
                self._heed(node, found, labels)

    def _heed(self, node: nouns.SimNode, found: stores.Entry, labels: Mapping[str, str]) -> None:
        programs = self._programs.get(node.name) or self._programs.setdefault(
            node.name, nvidia.NvidiaNode(node.gpus, node.model, offers=_offers(found.object))
        )
        mig = self._read(MIG_MAP).get(partition.MIG_KEY) or {}
        written = programs.heed(labels, self._read(PLUGIN_MAP), mig.get("mig-configs") or {})
        if written is None:
            return
        if written.labels:
            self._store.patch(found.key, {"metadata": {"labels": dict(written.labels)}}, WRITER)
        if written.offers is not None:
            counts = {name: str(count) for name, count in written.offers.items()}
            self._store.patch(found.key, {"status": {"capacity": counts, "allocatable": counts}}, WRITER)
            self._give_out(node, written.offers, labels)

    def _give_out(self, node: nouns.SimNode, offers: Mapping[str, int], labels: Mapping[str, str]) -> None:
        mode = find_mode(offers, by_mps="mps" in labels.get(names.PLUGIN_CONFIG, ""))
        if mode is not None and mode != node.mode:
            self._world.cut_anew(node.name, mode)

    def _read(self, place: tuple[str, str]) -> dict[str, Any]:
        found = self._store.find(stores.Key("", "ConfigMap", *place))
        texts = (found.object.get("data") or {}) if found is not None else {}
        return {key: yaml.safe_load(text) for key, text in texts.items()}


def _offers(node: Mapping[str, Any]) -> dict[str, int]:
    return {name: int(text) for name, text in node["status"]["allocatable"].items() if name.startswith(names.NVIDIA)}


def find_mode(offers: Mapping[str, int], *, by_mps: bool) -> nouns.Mode | None:
    """How the world gives out what is offered; None: nothing is, or nobody here has a use for it."""
    there = {name for name, count in offers.items() if count}
    if there == {names.GPU}:
        return "whole"
    if there == {nouns.RESOURCES["mig"]}:
        return "mig"
    return ("mps" if by_mps else "time-sliced") if there == {names.GPU_SHARED} else None


class PartitionSight(msgspec.Struct, frozen=True):
    """A node's change, emptying and move as they stand on it."""

    node: str
    change: partition.RepartitionRecord | None
    emptying: str
    result: str
    move: moving.MoveRecord | None = None
    moved: str = ""


def look(store: stores.Store, node: str) -> PartitionSight:
    found = store.find(stores.Key("", "Node", "", node))
    marks = (found.object["metadata"].get("annotations") or {}) if found is not None else {}
    text = marks.get(names.REPARTITION)
    return PartitionSight(
        node, partition.read(text) if text else None, marks.get(names.EMPTYING, ""),
        marks.get(names.EMPTYING_RESULT, ""), moving.read_record(marks.get(names.MOVE)),
        marks.get(names.MOVE_RESULT, ""),
    )
