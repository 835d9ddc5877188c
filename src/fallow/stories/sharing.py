"""The story of shared nodes: every half minute, what each GPUNodeConfig asks for and the next step on the way there.

In: configs, nodes and pods as the cluster has them, two ConfigMaps. Out: a SharingCycle: a turn for every config. Who
wrote on a pod what nobody understands is told in an Event: the webhook, which only reads, cannot.
The record of a change stands on its node: a process that begins anew goes on from there.
Invariant: nothing is done that was not planned from what is seen now, one write at a time while we lead; before labels
change the server itself is asked once more who holds GPUs there.
"""

import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import msgspec

from fallow import names, telemetry
from fallow.act.partitions import PartitionHands
from fallow.clients import errors
from fallow.decide import packing, sharing
from fallow.model import cluster, gpus
from fallow.model.partition import (
    Documents,
    EvictPod,
    NodeSharing,
    NodeTurn,
    PartitionNode,
    PartitionWrite,
    PatchNode,
    RepartitionReason,
    RepartitionStep,
)
from fallow.model.policies.sharing import NodeConfig
from fallow.model.seen import Input, Known, Unseen, sure
from fallow.model.units import Instant, Seconds
from fallow.stories.turn import Complaint, Turn, stumbling

log = logging.getLogger("fallow")

INTERVAL: Final[Seconds] = 30.0
_MOST_TOLD: Final = 20  # Events of one turn: whoever writes nonsense on a thousand pods is told in time
_LABELS: Final = frozenset({names.MIG_CONFIG, names.PLUGIN_CONFIG})


class SharingSights(msgspec.Struct, frozen=True, kw_only=True):
    """`pods`: all that hold or ask for GPUs. `holding`: of a node, asked of the server itself; may raise."""

    configs: Callable[[], Input[tuple[NodeConfig, ...]]]
    nodes: Callable[[], Input[tuple[PartitionNode, ...]]]
    pods: Callable[[], Input[tuple[cluster.Pod, ...]]]
    plugin_keys: Callable[[], Coroutine[Any, Any, Input[Documents]]]
    mig_keys: Callable[[], Coroutine[Any, Any, Input[Documents]]]
    holding: Callable[[str], Coroutine[Any, Any, tuple[str, ...]]]


class SharingCycle(msgspec.Struct, frozen=True, kw_only=True):
    turns: tuple[NodeTurn, ...] = ()
    failure: str = ""


def judge_layout(layout: Sequence[str], model: gpus.Model) -> str:
    found = packing.judge_layout(layout, model)
    return found.because if found is not None else ""


class SharingStory:
    def __init__(
        self, *, sights: SharingSights, hands: PartitionHands, metrics: telemetry.Telemetry, most: int = 1,
        held: Callable[[Instant], str] = lambda _: "",
    ) -> None:
        """`held`: why no change may begin now; "": one may."""
        self._sights, self._hands, self._metrics, self._most, self._held = sights, hands, metrics, most, held
        self._said: dict[str, str] = {}  # by config: what the log has
        self._complaint = Complaint("how GPUs are shared is not seen: %s")
        self._warned: set[tuple[str, str]] = set()  # uids of pods, and what of

    async def tick(self, turn: Turn) -> SharingCycle:
        # 1. Look. 2. Plan.
        made = await self.look(turn)
        if made.failure:
            return made
        # 3. Act: the next thing to do for each; its status first, so that nobody sees a step that is not said.
        known = self._sights.configs()
        configs = {each.name: each for each in known.value} if isinstance(known, Known) else {}
        for each in made.turns:
            if not turn.may_act():
                break
            if each.config in configs:
                await self._hands.report(configs[each.config], each, self._see(each.node), turn.now)
            await self._write(each, turn)
        # 4. Account.
        stuck = {each.node for each in made.turns if each.reason is RepartitionReason.RepartitionFailed}
        self._metrics.set("gpu_autoscaler_stuck_nodes", len(stuck))
        # 5. Tell: people whose pods ask for what there is not; the log.
        await self._warn(turn)
        self._tell(made.turns)
        self._complaint.note("")
        return made

    async def look(self, turn: Turn) -> SharingCycle:
        configs, nodes = self._sights.configs(), self._sights.nodes()
        blind = next((seen.why for seen in (configs, nodes) if isinstance(seen, Unseen)), "")
        if blind:
            return self.fail(blind, turn)
        if not (sure(configs) or any(each.record or each.unreadable for each in sure(nodes))):
            return SharingCycle()  # nothing to plan: NVIDIA's ConfigMaps are no business of ours
        with stumbling():
            plugin, mig = await turn.in_time(self._sights.plugin_keys()), await turn.in_time(self._sights.mig_keys())
            sights = sharing.PartitionSights(
                configs=configs, nodes=nodes, pods=self._sights.pods(), plugin_keys=plugin, mig_keys=mig,
                judge=judge_layout, most=self._most, held=self._held(turn.now),
            )
            return SharingCycle(turns=sharing.plan_nodes(sights, turn.now))

    def fail(self, because: str, turn: Turn) -> SharingCycle:
        self._complaint.note(because)
        return SharingCycle(failure=because)

    def _see(self, name: str) -> NodeSharing | None:
        """How the node's GPUs are shared now, for its config's status; None: it is not seen, or has none."""
        nodes, pods = self._sights.nodes(), self._sights.pods()
        node = next((each for each in (nodes.value if isinstance(nodes, Known) else ()) if each.name == name), None)
        if node is None:
            return None
        holding = None if isinstance(pods, Unseen) else sum(
            pod.node == name and not pod.has_ended and names.GPU_SHARED in pod.resources
            for pod in (pods.value if isinstance(pods, Known) else ())
        )
        return sharing.see_node_sharing(node, holding)

    async def _write(self, of: NodeTurn, turn: Turn) -> None:
        for each in of.writes:
            if not turn.may_act() or not await self._is_still_free(of.node, each):
                return
            is_done = await self._hands.do(each, turn.now)
            if not is_done and not isinstance(each, EvictPod):  # a pod that may not go keeps no other one
                return
            if isinstance(each, PatchNode) and not each.record.is_running:
                outcome = "done" if each.record.step is RepartitionStep.Ready else str(each.record.reason)
                self._metrics.add("gpu_autoscaler_repartitions_total", 1, (outcome,))

    async def _is_still_free(self, node: str, write: PartitionWrite) -> bool:
        """Look again before what hurts: while labels are changed nobody may hold a GPU there."""
        if not isinstance(write, PatchNode) or not _LABELS & write.labels.keys():
            return True
        try:
            holding = await self._sights.holding(node)
        except errors.ClientError as problem:
            log.warning("who holds GPUs of %s cannot be asked, so it is not changed now: %s", node, problem)
            return False
        if holding:
            log.info("%s holds a GPU of %s: it is not changed now", holding[0], node)
        return not holding

    async def _warn(self, turn: Turn) -> None:
        seen = self._sights.pods()
        found = {(pod.uid, event.reason): (pod, event) for pod in (seen.value if isinstance(seen, Known) else ())
                 for event in sharing.find_pod_events(pod.labels, pod.annotations)}
        sent = 0
        for key, (pod, event) in found.items():
            if turn.may_act() and key not in self._warned and sent < _MOST_TOLD:
                sent += 1
                await self._hands.tell_pod(pod, event.reason, event.message, turn.now)
                self._warned.add(key)
        self._warned &= found.keys()

    def _tell(self, turns: tuple[NodeTurn, ...]) -> None:
        """A line when something else is true than before."""
        said = {each.config or each.node: f"{each.node}: {each.step}: {each.because}" for each in turns}
        for key, line in said.items():
            if self._said.get(key) != line:
                log.info("GPUs of %s", line)
        self._said = said
