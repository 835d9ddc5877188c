"""A pretend node with NVIDIA's programs on it, and the machine that changes it: values in, writes out, nothing kept.

The programs are the pretend ones of fallow.sim.nvidia. `answers` says how the MIG manager answers, one word for each
change.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from fallow import names
from fallow.decide import packing, sharing
from fallow.model import cluster, gpus, partition
from fallow.model.partition import (
    EvictPod,
    NodeTurn,
    PartitionNode,
    PartitionWrite,
    PatchNode,
    RepartitionRecord,
    SetFinalizer,
    TellNode,
    WhichMap,
    WriteKey,
)
from fallow.model.policies.sharing import NodeConfig, SharingMode
from fallow.model.seen import Input, Known
from fallow.model.sharing import NodeTaint
from fallow.sim import nvidia

START = 1_794_900_000.0
LABELS = {names.MIG_CONFIG, names.PLUGIN_CONFIG}


def judge(layout: Any, model: gpus.Model) -> str:
    found = packing.judge_layout(layout, model)
    return found.because if found is not None else ""


def gpu_pod(name: str, node: str = "gpu-1", **more: Any) -> cluster.Pod:
    return cluster.Pod(**{
        "namespace": "ml", "name": name, "uid": f"u-{name}", "node": node, "phase": "Running", "terminating": False,
        "owner": None, "labels": {}, "annotations": {}, "resources": {names.GPU: 1}, "claims": (), "claimed": 0,
        "created_at": START, "started_at": None, "ready": True, "ready_since": None, "ip": "", "static": False,
        "node_selector": {}, "affinity": None, "unschedulable_since": None, **more,
    })


def config(**more: Any) -> NodeConfig:
    return NodeConfig(**{
        "name": "cut", "uid": "c-1", "created_at": 1.0, "node": "gpu-1", "mode": SharingMode.enforce, **more,
    })


SEVEN = {"mig": True, "profiles": ("1g.5gb",) * 7}


class Stage:
    """One node, the objects around it, and time. Each `tick` looks, plans, and does as many of the writes as it may
    before it is killed."""

    def __init__(self, *configs: NodeConfig, answers: tuple[str, ...] = ("success",), **labels: str) -> None:
        self.now = START
        self.programs = nvidia.NvidiaNode(8, "NVIDIA-A100-SXM4-40GB", answers=answers)
        self.configs: dict[str, NodeConfig] = {each.name: each for each in configs}
        self.labels: dict[str, str] = {
            names.GPU_PRODUCT: "NVIDIA-A100-SXM4-40GB", names.GPU_COUNT: "8", names.MPS_CAPABLE: "false",
            names.MIG_STRATEGY: "mixed", **{key.replace("__", "/").replace("_", "."): text for key, text in
                                            labels.items()},
        }
        self.offers: dict[str, int] = {names.GPU: 8}
        self.cordoned, self.is_ready, self.is_there = False, True, True
        self.taints: tuple[NodeTaint, ...] = ()
        self.plugin_is_deaf = False
        self.annotation: str | None = None
        self.version = 1
        self.pods: list[cluster.Pod] = []
        self.waiting: list[cluster.Pod] = []
        self.plugin_keys: dict[str, Any] = {"default": {"version": "v1"}}
        self.mig_keys: dict[str, Any] = {}
        self.pods_seen: Input[tuple[cluster.Pod, ...]] | None = None
        self.held = ""
        self.events: list[str] = []
        self.evicted: list[str] = []
        self.written: list[PartitionWrite] = []
        self.turns: tuple[NodeTurn, ...] = ()

    # ---- what is seen ----

    @property
    def record(self) -> RepartitionRecord | None:
        return partition.read(self.annotation) if self.annotation else None

    def node(self) -> PartitionNode:
        return PartitionNode(
            name="gpu-1", resource_version=str(self.version), labels=dict(self.labels), offers=dict(self.offers),
            is_ready=self.is_ready, is_cordoned=self.cordoned, record=self.record, pool="a100",
            taints=self.taints,
        )

    def sights(self) -> sharing.PartitionSights:
        pods = Known((*self.pods, *self.waiting)) if self.pods_seen is None else self.pods_seen
        return sharing.PartitionSights(
            configs=Known(tuple(self.configs.values())), nodes=Known((self.node(),) if self.is_there else ()),
            pods=pods, plugin_keys=Known(self.plugin_keys), mig_keys=Known(self.mig_keys), judge=judge,
            held=self.held,
        )

    # ---- what is done ----

    def tick(self, *, seconds: float = 10.0, writes: int | None = None) -> NodeTurn | None:
        """`writes`: how many of all are done before the process is killed; None: all."""
        self.turns = sharing.plan_nodes(self.sights(), self.now)
        every = [each for turn in self.turns for each in turn.writes]
        for each in every[:writes]:
            self.write(each)
        self.heed()
        self.now += seconds
        return self.turns[0] if self.turns else None

    def run(self, most: int = 400, seconds: float = 10.0) -> NodeTurn | None:
        """Until nothing is written any more."""
        for _ in range(most):
            before = len(self.written)
            made = self.tick(seconds=seconds)
            if len(self.written) == before and not (self.record and self.record.is_running):
                return made
        return made

    def write(self, each: PartitionWrite) -> None:
        self.written.append(each)
        match each:
            case PatchNode():
                assert each.resource_version == str(self.version)
                assert not self.pods or not LABELS & each.labels.keys(), "under a pod that holds a GPU"
                self.version += 1
                self.annotation = partition.write(each.record)
                for key, value in each.labels.items():
                    if value is None:
                        self.labels.pop(key, None)
                    else:
                        self.labels[key] = value
                self.cordoned = self.cordoned if each.cordon is None else each.cordon
            case WriteKey(which=WhichMap.plugin):
                self.plugin_keys[each.key] = json.loads(each.content)
            case WriteKey():
                self.mig_keys[each.key] = json.loads(each.content)
            case EvictPod():
                self.evicted.append(each.name)
            case SetFinalizer():
                self._finalize(each)
            case TellNode():
                self.events.append(each.reason)

    def _finalize(self, each: SetFinalizer) -> None:
        found = self.configs.get(each.config)
        if found is None:
            return
        self.configs[each.config] = msgspec.structs.replace(found, has_finalizer=each.present)
        if found.is_going and not each.present:
            del self.configs[each.config]

    def change(self, name: str = "cut", **fields: Any) -> None:
        if name in self.configs:
            self.configs[name] = msgspec.structs.replace(self.configs[name], **fields)

    def delete(self, name: str = "cut") -> None:
        found = self.configs.get(name)
        if found is not None and found.has_finalizer:
            self.change(name, is_going=True)
        else:
            self.configs.pop(name, None)

    # ---- NVIDIA's programs ----

    def heed(self) -> None:
        """Until they have nothing left to do."""
        while (written := self.programs.heed(self.labels, self._readable(), self.mig_keys)) is not None:
            self._show(written)

    def _readable(self) -> dict[str, Any]:
        return {} if self.plugin_is_deaf else self.plugin_keys

    def _show(self, written: nvidia.NodeWrite) -> None:
        for key, value in written.labels.items():
            self.labels.pop(key, None)
            if value is not None:
                self.labels[key] = value
        if written.offers is not None:
            self.offers = {name: count for name, count in written.offers.items() if count}

    def settle(self, state: str) -> None:
        """The manager has done what it was at."""
        self.programs.settle(state, self.mig_keys)
        self.heed()
