"""Which nodes are cut or shared anew, and when: one at a time in a pool, and only where nothing speaks against it.

In: PartitionSights (configs, nodes with the record of their change, GPU pods, the keys of two ConfigMaps), now. Out: a
NodeTurn for every config, and for every node whose config is gone in mid-change. Nothing is remembered here: the record
on the node is all there is (steps.py says how a change goes on by it).
Invariant: a node that is cordoned by us has a record of a change that runs, or one that says why it stays so. What is
not seen waits.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from fallow import names
from fallow.decide.sharing import layouts, steps
from fallow.decide.sharing.layouts import NoAim, NodeAim
from fallow.decide.sharing.steps import PartitionSights
from fallow.model import cluster, selectors, units
from fallow.model.partition import (
    NodeTurn,
    PartitionNode,
    PartitionWrite,
    PatchNode,
    RepartitionReason,
    RepartitionRecord,
    RepartitionStep,
    SetFinalizer,
)
from fallow.model.policies.sharing import NodeConfig, SharingMode
from fallow.model.seen import Known, Unseen
from fallow.model.units import HOUR, Instant, Seconds

BETWEEN: Final[Seconds] = HOUR  # two changes of one node
_LEAVES: Final = (names.SCALE_DOWN, names.SPOT_INTERRUPTION)  # taints


def plan(sights: PartitionSights, now: Instant) -> tuple[NodeTurn, ...]:
    """Changes that run go on first; then the oldest config that may begins, while its pool has room."""
    if isinstance(sights.nodes, Unseen) or isinstance(sights.configs, Unseen):
        return ()
    nodes = {each.name: each for each in (sights.nodes.value if isinstance(sights.nodes, Known) else ())}
    configs = sorted(
        sights.configs.value if isinstance(sights.configs, Known) else (), key=lambda each: (each.created_at, each.name)
    )
    rulers = _find_rulers(configs, nodes)
    busy = [node.pool for node in nodes.values() if node.record and (node.record.is_running or node.record.is_stuck)]
    turns = [steps.go_on(None, node, sights, now) for node in nodes.values() if _is_orphan(node, configs)]
    for config in configs:
        node = nodes.get(config.node)
        if rulers.get(config.node) is not config:
            turns.append(_yield_to(config, rulers[config.node]))
            continue
        turn = _take_turn(config, node, sights, now, others=busy.count(node.pool) if node else 0)
        if node is not None and _begins(turn):
            busy.append(node.pool)
        turns.append(turn)
    return tuple(turns)


def _find_rulers(configs: Sequence[NodeConfig], nodes: Mapping[str, PartitionNode]) -> dict[str, NodeConfig]:
    """Of several for one node: that whose change runs, else the oldest."""
    found: dict[str, NodeConfig] = {}
    for config in configs:
        node = nodes.get(config.node)
        runs = node is not None and node.record is not None and node.record.is_running
        if config.node not in found or (runs and node and node.record and node.record.uid == config.uid):
            found[config.node] = config
    return found


def _yield_to(config: NodeConfig, ruler: NodeConfig) -> NodeTurn:
    because = f"{ruler.name} is for node {config.node} too, and older"
    gone: tuple[PartitionWrite, ...] = (SetFinalizer(config.name, False),) if _lets_go(config) else ()
    return steps.turn(config, config.node, RepartitionStep.Failed, RepartitionReason.DuplicateNode, because, gone)


def _lets_go(config: NodeConfig) -> bool:
    return config.is_going and config.has_finalizer


def _is_orphan(node: PartitionNode, configs: Iterable[NodeConfig]) -> bool:
    record = node.record
    if record is None or not (record.is_running or record.is_stuck):
        return False
    return not any(each.uid == record.uid and each.node == node.name for each in configs)


def _begins(turn: NodeTurn) -> bool:
    return any(isinstance(each, PatchNode) and each.record.step is RepartitionStep.Cordoning for each in turn.writes)


def _take_turn(
    config: NodeConfig, node: PartitionNode | None, sights: PartitionSights, now: Instant, *, others: int
) -> NodeTurn:
    if node is None:
        gone: tuple[PartitionWrite, ...] = (SetFinalizer(config.name, False),) if config.has_finalizer else ()
        because = f"there is no node {config.node} with GPUs of NVIDIA"
        return steps.turn(config, config.node, RepartitionStep.Planned, RepartitionReason.NodeGone, because, gone)
    record, gone = node.record, (SetFinalizer(config.name, False),) if _lets_go(config) else ()
    if node.unreadable:
        because = f"its annotation {names.REPARTITION} cannot be read, so nothing is touched: {node.unreadable}"
        return steps.turn(config, node.name, RepartitionStep.Failed, RepartitionReason.RecordUnreadable, because, gone)
    if record is not None and record.uid == config.uid and (record.is_running or (record.is_stuck and not gone)):
        return steps.go_on(config, node, sights, now)
    if config.is_going:
        return steps.turn(config, node.name, RepartitionStep.Ready, RepartitionReason.Withdrawn, "it is deleted", gone)
    return _consider(config, node, sights, now, others=others)


# ---- Planned: may it begin? ------------------------------------------------------------------------------------------


def _consider(
    config: NodeConfig, node: PartitionNode, sights: PartitionSights, now: Instant, *, others: int
) -> NodeTurn:
    def no(reason: RepartitionReason, because: str, step: RepartitionStep = RepartitionStep.Failed) -> NodeTurn:
        return steps.turn(config, node.name, step, reason, because, record=node.record)

    if config.invalid:
        return no(RepartitionReason.InvalidConfig, config.invalid[0])
    aim = layouts.aim(config, node, sights.judge)
    if isinstance(aim, NoAim):
        return no(aim.reason, aim.because)
    if steps.stands(node, aim.after):
        return no(RepartitionReason.Ready, "the node is as asked for", RepartitionStep.Ready)
    record = node.record
    if record is not None and (record.uid, record.wish) == (config.uid, steps.name_wish(config)):
        if record.step is RepartitionStep.Failed and record.reason is not RepartitionReason.Withdrawn:
            return no(record.reason, steps.say_failed(record))
        if record.step is RepartitionStep.Ready and steps.has_labels(node, record.after):
            return no(RepartitionReason.Ready, steps.say_drift(node, record), RepartitionStep.Ready)
    if config.mode is SharingMode.audit:
        return no(RepartitionReason.Audit, f"would change {steps.say(node, aim.after)}", RepartitionStep.Planned)
    if sights.held:
        because = f"would change {steps.say(node, aim.after)}: {sights.held}"
        return no(RepartitionReason.NotActing, because, RepartitionStep.Planned)
    if only := layouts.find_only_key(aim.documents, sights.plugin_keys):
        because = (
            f"the device plugin's ConfigMap has the one key {only}, which nodes without a label may rest on, and could "
            "not beside a second one: add a key default to it, with what they are to have"
        )
        return no(RepartitionReason.OnlyKey, because, RepartitionStep.Planned)
    if wait := _find_wait(node, sights, now, others=others):
        return no(*wait, RepartitionStep.Planned)
    return _begin(config, node, aim, now)


def _find_wait(
    node: PartitionNode, sights: PartitionSights, now: Instant, *, others: int
) -> tuple[RepartitionReason, str] | None:
    if not node.is_ready:
        return RepartitionReason.NodeNotReady, f"{node.name} is not Ready"
    if node.labels.get(names.CONSOLIDATION) == names.BEING_EMPTIED:
        return RepartitionReason.OtherChange, f"{node.name} is being emptied"
    if node.labels.get(names.DEFRAG) in (names.BEING_LEFT, names.BEING_HELD):
        return RepartitionReason.OtherChange, f"a place is kept on {node.name} for a pod that is moved"
    if any(taint.key in _LEAVES for taint in node.taints):  # its drain would be undone, and its cordon with it
        return RepartitionReason.OtherChange, f"{node.name} is to leave"
    if others >= sights.most or (node.record is not None and (node.record.is_running or node.record.is_stuck)):
        where = f"of pool {node.pool} " if node.pool else ""
        return RepartitionReason.OtherChange, f"another change {where}runs"
    if node.record is not None and abs(now - node.record.since) < BETWEEN:  # where the clock was set back, too
        when = units.rfc3339(node.record.since + BETWEEN)
        return RepartitionReason.TooSoon, f"its last change ended less than an hour ago; not before {when}"
    if isinstance(sights.pods, Unseen):
        return RepartitionReason.NotSeen, f"pods are not seen: {sights.pods.why}"
    waiting = [pod for pod in (sights.pods.value if isinstance(sights.pods, Known) else ()) if _would_fit(pod, node)]
    if waiting:
        first = waiting[0]
        return RepartitionReason.PodWaits, f"{first.namespace}/{first.name} waits and fits the layout there is"
    return None


def _would_fit(pod: cluster.Pod, node: PartitionNode) -> bool:
    if pod.node or pod.terminating or not pod.resources:
        return False
    return (
        all(node.offers.get(name, 0) >= count for name, count in pod.resources.items())
        and pod.node_selector.items() <= node.labels.items()
        and selectors.accepts(pod.affinity, node.name, node.labels)
    )


def _begin(config: NodeConfig, node: PartitionNode, aim: NodeAim, now: Instant) -> NodeTurn:
    """First the finalizer, so that whoever deletes the config waits for the way back; then, in one request, the record
    and the cordon."""
    because = f"changes {steps.say(node, aim.after)}"
    if not config.has_finalizer:
        writes: tuple[PartitionWrite, ...] = (SetFinalizer(config.name, True),)
        return steps.turn(config, node.name, RepartitionStep.Planned, RepartitionReason.Running, because, writes)
    record = RepartitionRecord(
        config=config.name, uid=config.uid, before=layouts.see(node), after=aim.after, since=now,
        step=RepartitionStep.Cordoning, cordoned_by_us=not node.is_cordoned, wish=steps.name_wish(config),
    )
    return steps.patch(config, node, record, because, cordon=None if node.is_cordoned else True)
