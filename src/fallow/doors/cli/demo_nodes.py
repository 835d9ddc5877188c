"""Nodes of the demo that are cut anew, emptied, or left by one pod for another: what there is to tell of them.

In: the Stage. Out: a GPUNodeConfig that somebody applies in the course of the day; Happenings as nodes go from step to
step, read from what the controller writes on them; the sums for the report.
Invariant: what is told stands on the nodes.
"""

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import msgspec

from fallow import names
from fallow.doors.cli import demo_view as view
from fallow.model import emptying, partition, units
from fallow.model.moving import MoveEnd
from fallow.model.partition import RepartitionStep
from fallow.model.units import Instant, Seconds
from fallow.sim import stage
from fallow.sim.servers import partitions
from fallow.sim.servers import store as stores
from fallow.sim.world import nouns
from fallow.sim.world import world as worlds

Object: TypeAlias = dict[str, Any]

ASKED_AT: Final = 0.35  # of the day
MODEL: Final = "NVIDIA-A100-SXM4-80GB"
ACTING: Final = {  # flags; the day is looked at every three minutes, and nodes must not be out of sight for longer
    "sharing": "act", "consolidation": "act", "defrag": "act", "scaling": "act", "autoscaling_reconcile_interval": "1m",
}


class NodeCut(msgspec.Struct, frozen=True):
    """A change that came to its end. `took`: since it began."""

    node: str
    into: str
    took: Seconds
    failed: str = ""


class NodeEmptied(msgspec.Struct, frozen=True):
    """`early`: why it was given back before it was empty; "": it was empty."""

    node: str
    early: str = ""


class PodMoved(msgspec.Struct, frozen=True):
    """`early`: why it ended before `comes` was on the node; "": it is there."""

    node: str
    went: str
    comes: str
    early: str = ""


def find_node(world: worlds.World) -> str | None:
    """The one that is cut in the course of the day: the last of several that are alike."""
    alike = [node.name for node in world.nodes.values() if node.mode == "whole" and node.model == MODEL]
    return alike[-1] if len(alike) > 1 else None


def make_config(node: str) -> Object:
    spec = {
        "nodeName": node, "mode": "enforce", "migEnabled": True, "migProfiles": [nouns.MIG_PROFILE] * 7,
        "disruption": "evict", "drainTimeoutSeconds": 4 * 3600,
    }
    return {
        "apiVersion": f"{names.GROUP}/{names.POLICY_VERSION}", "kind": names.NODE_CONFIG_KIND,
        "metadata": {"name": node}, "spec": spec,
    }


def plan_cut(on: stage.Stage, length: Seconds) -> None:
    """Somebody asks for small parts of one of the larger nodes."""
    node = find_node(on.world)
    if node is None:
        return

    def ask() -> None:
        on.store.create(make_config(node), stores.Writer(manager="kubectl-create"))
        on.world.note(f"asks for {nouns.MIG_PROFILE} on {node}")

    on.world.at(on.world.now + ASKED_AT * length, ask)


class NodeNews:
    """Remembers what was told."""

    def __init__(self, on: stage.Stage) -> None:
        self._on = on
        self._seen: dict[str, partitions.PartitionSight] = {}
        self._began: dict[str, Instant] = {}
        self.cuts: list[NodeCut] = []
        self.emptied: list[NodeEmptied] = []
        self.moves: list[PodMoved] = []

    def hear(self) -> Iterator[view.Happening]:
        for name in self._on.world.nodes:
            before, after = self._seen.get(name), partitions.look(self._on.store, name)
            self._seen[name] = after
            yield from self._hear_change(name, before.change if before else None, after.change)
            yield from self._hear_emptying(before, after)
            yield from self._hear_move(before, after)

    def _hear_change(
        self, node: str, before: partition.RepartitionRecord | None, after: partition.RepartitionRecord | None
    ) -> Iterator[view.Happening]:
        if after is None or (before is not None and before.step is after.step):
            return
        if before is None or not before.is_running:
            self._began[node] = after.since
        yield view.Happening(after.since, "node", f"{node}: {_say_step(after)}")
        if not after.is_running:
            failed = str(after.reason) if after.step is RepartitionStep.Failed else ""
            self.cuts.append(NodeCut(node, _say_layout(after.after), after.since - self._began[node], failed))

    def _hear_emptying(
        self, before: partitions.PartitionSight | None, after: partitions.PartitionSight
    ) -> Iterator[view.Happening]:
        now, was = self._on.world.now, emptying.read(before.emptying) if before else None
        record = emptying.read(after.emptying)
        if record is not None and was is None:
            yield view.Happening(record.since, "node", f"{after.node} is emptied: {record.because}")
        if record is not None and record.leaving is not None and (was is None or was.leaving != record.leaving):
            who = f"{record.leaving.namespace}/{record.leaving.name}"
            yield view.Happening(now, "node", f"{after.node}: {who} moves elsewhere")
        if record is None and was is not None:
            _, _, said = after.result.partition(" ")  # after its time
            is_empty = said.startswith(emptying.StopReason.NotTaken)
            self.emptied.append(NodeEmptied(after.node, "" if is_empty else said.partition(":")[0]))
            yield view.Happening(now, "node", f"{after.node} is given back: {said}")

    def _hear_move(
        self, before: partitions.PartitionSight | None, after: partitions.PartitionSight
    ) -> Iterator[view.Happening]:
        was, record = before.move if before else None, after.move
        if record is not None and was is None:
            yield view.Happening(record.since, "node", f"{after.node}: {record.because}")
        if record is None and was is not None:
            _, _, said = after.moved.partition(" ")  # after its time
            reason = said.partition(":")[0]
            early = "" if reason == MoveEnd.Moved else reason
            self.moves.append(PodMoved(after.node, str(was.moved), str(was.waits), early))
            yield view.Happening(self._on.world.now, "node", f"{after.node}: {said}")


def _say_layout(layout: partition.NodeLayout) -> str:
    return ", ".join(f"{count} {name.removeprefix(names.NVIDIA)}" for name, count in (layout.offers or {}).items())


def _say_step(record: partition.RepartitionRecord) -> str:
    words = {
        RepartitionStep.Cordoning: f"is to become {_say_layout(record.after)}; it is cordoned",
        RepartitionStep.Draining: "its pods move elsewhere, or end",
        RepartitionStep.Labelling: "nobody holds a GPU of it any more",
        RepartitionStep.Verifying: f"NVIDIA's programs are asked for {_say_layout(record.after)}",
        RepartitionStep.Uncordoning: "it offers what was asked for",
        RepartitionStep.RollingBack: f"it gets its old layout back ({record.reason})",
        RepartitionStep.Ready: f"it is open again, with {_say_layout(record.after)}",
        RepartitionStep.Failed: f"the change failed ({record.reason}), and its old layout is back",
    }
    return words[record.step]


def say(news: NodeNews) -> Iterator[str]:
    """For the report."""
    for cut in news.cuts:
        if cut.failed:
            yield f"node {cut.node} kept its layout, because its change failed ({cut.failed})"
        else:
            yield f"node {cut.node} was cut anew in {units.humane(cut.took)}: {cut.into}"
    if empty := [each.node for each in news.emptied if not each.early]:
        yield f"nodes that were hardly used and were emptied, pod by pod: {', '.join(empty)}"
    if early := [f"{each.node} ({each.early})" for each in news.emptied if each.early]:
        yield f"nodes that were given back before they were empty: {', '.join(early)}"
    for move in news.moves:
        if move.early:
            yield f"{move.went} on {move.node} was to make room for {move.comes}, and that ended early ({move.early})"
        else:
            yield f"{move.comes} waited and is on {move.node}: one pod, {move.went}, made room and went elsewhere"
