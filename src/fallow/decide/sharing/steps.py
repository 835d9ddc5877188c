"""A change of a node that runs: its record says in which step it is, and each step has one next thing to do.

    Cordoning -> Draining -> Labelling -> Verifying -> Uncordoning -> Ready
                     \\____________\\__________\\-> RollingBack -> Failed

In: the config (None: it is gone), the node with its record, PartitionSights, now. Out: a NodeTurn.
Invariant: whatever of a turn is not done is found missing the next time, for the record changes in the same request as
the node. Who changes a label meanwhile has the last word. Only what differs between before and after is ever written.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from fallow import names
from fallow.decide.sharing import layouts
from fallow.decide.sharing.layouts import JudgeLayout, NoAim
from fallow.model import cluster, partition, units
from fallow.model.partition import (
    Documents,
    EvictPod,
    NodeLayout,
    NodeTurn,
    PartitionNode,
    PartitionWrite,
    PatchNode,
    RepartitionReason,
    RepartitionRecord,
    RepartitionStep,
    TellNode,
    WhichMap,
    WriteKey,
)
from fallow.model.policies.sharing import Disruption, NodeConfig, SharingMode
from fallow.model.seen import ABSENT, Input, Known, Unseen
from fallow.model.units import Instant, Seconds

MIG_TAKES: Final[Seconds] = 600.0
REBOOT_TAKES: Final[Seconds] = 1800.0
PLUGIN_TAKES: Final[Seconds] = 300.0
_BEFORE_LABELS: Final = (RepartitionStep.Cordoning, RepartitionStep.Draining, RepartitionStep.Labelling)


class PartitionSights(msgspec.Struct, frozen=True, kw_only=True):
    """`pods`: all that hold or ask for GPUs and have not ended. `plugin_keys`, `mig_keys`: what the ConfigMaps hold,
    decoded; of mig-parted's the configurations by name. `most`: changes at once in a pool. `held`: why nothing may
    begin now ("": it may); a change that has not reached its labels turns back then."""

    configs: Input[tuple[NodeConfig, ...]]
    nodes: Input[tuple[PartitionNode, ...]]
    pods: Input[tuple[cluster.Pod, ...]]
    plugin_keys: Input[Documents] = ABSENT
    mig_keys: Input[Documents] = ABSENT
    judge: JudgeLayout
    most: int = 1
    held: str = ""


def turn(
    config: NodeConfig | None, node: str, step: RepartitionStep, reason: RepartitionReason, because: str,
    writes: tuple[PartitionWrite, ...] = (), record: RepartitionRecord | None = None,
) -> NodeTurn:
    return NodeTurn(
        config=config.name if config else "", node=node, step=step, reason=reason, because=because, writes=writes,
        record=record,
    )


def name_wish(config: NodeConfig) -> str:
    """Short, and another one when the config asks for something else."""
    asked = (config.mig, config.profiles, config.mig_config, config.mps_clients, config.slicing_replicas)
    return hashlib.blake2b(msgspec.json.encode(asked), digest_size=6).hexdigest()


def say(node: PartitionNode, after: NodeLayout) -> str:
    before = layouts.see(node)
    pairs = ((names.MIG_CONFIG, before.mig_config, after.mig_config),
             (names.PLUGIN_CONFIG, before.device_plugin_config, after.device_plugin_config))
    return " and ".join(f"{key} from {old or 'none'} to {new or 'none'}" for key, old, new in pairs if old != new)


def say_failed(record: RepartitionRecord) -> str:
    cordoned = " and is cordoned by us until its old layout is back" if record.cordoned_by_us else ""
    return f"the change failed ({record.reason}); the node has its old layout{cordoned}; change the spec to try again"


def say_drift(node: PartitionNode, record: RepartitionRecord) -> str:
    if _advertises(node, record.after):
        return "the node is as asked for"
    return f"its labels are as asked for, and it advertises {_show(node)} instead of {_list(record.after.offers)}"


def patch(
    config: NodeConfig | None, node: PartitionNode, record: RepartitionRecord, because: str, *,
    labels: Mapping[str, str | None] | None = None, cordon: bool | None = None,
    tells: tuple[PartitionWrite, ...] = (),
) -> NodeTurn:
    made = PatchNode(
        node=node.name, resource_version=node.resource_version, record=record, labels=labels or {}, cordon=cordon
    )
    return turn(config, node.name, record.step, record.reason, because, (made, *tells), record)


def _next(record: RepartitionRecord, step: RepartitionStep, now: Instant, **more: Any) -> RepartitionRecord:
    return msgspec.structs.replace(record, **{"step": step, "since": now, "until": None, **more})


def go_on(config: NodeConfig | None, node: PartitionNode, sights: PartitionSights, now: Instant) -> NodeTurn:
    record = node.record
    assert record is not None
    if record.until is not None and record.until > now + max(REBOOT_TAKES, config.drain_timeout if config else 0.0):
        return patch(config, node, msgspec.structs.replace(record, until=now + _allowed(config, record)),
                      "the clock was set back")
    if record.step in (RepartitionStep.RollingBack, RepartitionStep.Failed):
        return _roll_back(config, node, record, sights, now)
    if record.step is RepartitionStep.Uncordoning:
        done = _next(record, RepartitionStep.Ready, now, reason=RepartitionReason.Ready, cordoned_by_us=False,
                     is_labelled=False)
        return patch(config, node, done, "the node is as asked for", cordon=_uncordon(node, record))
    if stop := _find_intruder(node, record):
        return _stop(config, node, record, stop, now)
    if why := _find_withdrawal(config, record, sights.held):
        return _turn_back(config, node, record, RepartitionReason.Withdrawn, why, now)
    if record.step is RepartitionStep.Cordoning:
        timeout = config.drain_timeout if config else 0.0
        return patch(config, node, _next(record, RepartitionStep.Draining, now, until=now + timeout), "it is cordoned")
    if record.step is RepartitionStep.Draining:
        return _drain(config, node, record, sights, now)
    if record.step is RepartitionStep.Labelling:
        return _label(config, node, record, sights, now)
    return _verify(config, node, record, now)


def _allowed(config: NodeConfig | None, record: RepartitionRecord) -> Seconds:
    if record.step is RepartitionStep.Draining:
        return config.drain_timeout if config else 0.0
    return _takes(record)


def _takes(record: RepartitionRecord) -> Seconds:
    if record.has_rebooted:
        return REBOOT_TAKES
    return MIG_TAKES if _changes_mig(record) else PLUGIN_TAKES


def _changes_mig(record: RepartitionRecord) -> bool:
    return not _is_same_mig(record.before.mig_config, record.after.mig_config)


def _is_same_mig(one: str | None, other: str | None) -> bool:
    """No label is no MIG: operators write all-disabled themselves."""
    return (one or names.MIG_DISABLED) == (other or names.MIG_DISABLED)


def _uncordon(node: PartitionNode, record: RepartitionRecord) -> bool | None:
    return False if record.cordoned_by_us and node.is_cordoned else None


def has_labels(node: PartitionNode, layout: NodeLayout) -> bool:
    return (
        _is_same_mig(node.labels.get(names.MIG_CONFIG), layout.mig_config)
        and node.labels.get(names.PLUGIN_CONFIG) == layout.device_plugin_config
    )


def stands(node: PartitionNode, layout: NodeLayout) -> bool:
    """Labels, and what is advertised as far as that is foreseen."""
    return has_labels(node, layout) and _advertises(node, layout)


def _advertises(node: PartitionNode, layout: NodeLayout) -> bool:
    return layout.offers is None or layouts.find_offers(node.offers) == layouts.find_offers(layout.offers)


def _find_intruder(node: PartitionNode, record: RepartitionRecord) -> str:
    """What somebody else did to the node in mid-change; "": nothing."""
    expected = record.after if record.is_labelled else record.before
    if not has_labels(node, expected):
        return f"somebody else changed {names.MIG_CONFIG} or {names.PLUGIN_CONFIG}"
    if record.step in _BEFORE_LABELS and not node.is_cordoned:
        return "somebody else uncordoned it"
    return ""


def _stop(
    config: NodeConfig | None, node: PartitionNode, record: RepartitionRecord, because: str, now: Instant
) -> NodeTurn:
    ended = _next(record, RepartitionStep.Failed, now, reason=RepartitionReason.ChangedByOther, cordoned_by_us=False,
                  is_labelled=False)
    return patch(config, node, ended, f"{because}: we stop", cordon=_uncordon(node, record))


def _find_withdrawal(config: NodeConfig | None, record: RepartitionRecord, held: str) -> str:
    if held and record.step in _BEFORE_LABELS:
        return held
    if config is None or config.is_going:
        return "its GPUNodeConfig was deleted"
    if config.mode is SharingMode.audit or config.invalid:
        return "its GPUNodeConfig does not enforce any more"
    return "its GPUNodeConfig asks for something else now" if name_wish(config) != record.wish else ""


def _turn_back(
    config: NodeConfig | None, node: PartitionNode, record: RepartitionRecord, reason: RepartitionReason,
    because: str, now: Instant,
) -> NodeTurn:
    back = _next(record, RepartitionStep.RollingBack, now, reason=reason, has_rebooted=False)
    return patch(config, node, back, f"{because}: it gets its old layout back")


# ---- Draining --------------------------------------------------------------------------------------------------------


def _drain(
    config: NodeConfig | None, node: PartitionNode, record: RepartitionRecord, sights: PartitionSights, now: Instant
) -> NodeTurn:
    if isinstance(sights.pods, Unseen):
        if _is_late(record, now):
            return _turn_back(config, node, record, RepartitionReason.DrainTimeout, "its pods are not seen", now)
        return _waits(config, node, record, f"pods are not seen: {sights.pods.why}")
    holding = _find_holding(node, sights)
    if not holding:
        return patch(config, node, _next(record, RepartitionStep.Labelling, now, until=now + PLUGIN_TAKES),
                      "no pod holds a GPU of it any more")
    if _is_late(record, now):
        because = f"{units.many(len(holding), 'pod')} still held GPUs of it when the time was over"
        return _turn_back(config, node, record, RepartitionReason.DrainTimeout, because, now)
    evicts = config is not None and config.disruption is Disruption.evict
    leaving = tuple(EvictPod(each.namespace, each.name, each.uid) for each in holding if evicts and may_evict(each))
    return _waits(config, node, record, f"waits for {_say_holding(holding)}", leaving)


def _say_holding(pods: Sequence[cluster.Pod]) -> str:
    return f"{units.many(len(pods), 'pod')} to end, such as {pods[0].namespace}/{pods[0].name}"


def _is_late(record: RepartitionRecord, now: Instant) -> bool:
    return record.until is not None and now >= record.until


def _waits(
    config: NodeConfig | None, node: PartitionNode, record: RepartitionRecord, because: str,
    writes: tuple[PartitionWrite, ...] = (),
) -> NodeTurn:
    return turn(config, node.name, record.step, record.reason, because, writes, record)


def _find_holding(node: PartitionNode, sights: PartitionSights) -> list[cluster.Pod]:
    pods = sights.pods.value if isinstance(sights.pods, Known) else ()
    return [pod for pod in pods if pod.node == node.name and not pod.has_ended and (pod.resources or pod.claims)]


def may_evict(pod: cluster.Pod) -> bool:
    """Not who asked to be left alone, nor whom its node or kubelet would make again at once, nor whom nobody would."""
    marks = pod.annotations
    if marks.get(names.KARPENTER_DO_NOT_DISRUPT) == "true" or marks.get(names.SAFE_TO_EVICT) == "false":
        return False
    return pod.owner is not None and not pod.terminating and not pod.belongs_to_node


# ---- Labelling -------------------------------------------------------------------------------------------------------


def _label(
    config: NodeConfig | None, node: PartitionNode, record: RepartitionRecord, sights: PartitionSights, now: Instant
) -> NodeTurn:
    """The documents first, then both labels, with the record, in one request. The MIG manager's last word is taken off
    with them: it was about another configuration."""
    blind = isinstance(sights.pods, Unseen)
    if blind or _find_holding(node, sights):  # one that tolerates the cordon, or was bound by hand
        why = "pods are not seen" if blind else "a pod holds a GPU of it again"
        if _is_late(record, now):
            return _turn_back(config, node, record, RepartitionReason.LabelTimeout, why, now)
        return _waits(config, node, record, why)
    missing = _find_missing(config, node, sights)
    if isinstance(missing, str):
        if _is_late(record, now):
            return _turn_back(config, node, record, RepartitionReason.LabelTimeout, missing, now)
        return _waits(config, node, record, missing)
    if missing:
        return _waits(config, node, record, "writes the configuration", missing)
    labels = _labels_of(record, record.after)
    ahead = _next(record, RepartitionStep.Verifying, now, until=now + _takes(record), is_labelled=True)
    return patch(config, node, ahead, f"changes {say(node, record.after)}", labels=labels)


def _find_missing(
    config: NodeConfig | None, node: PartitionNode, sights: PartitionSights
) -> tuple[WriteKey, ...] | str:
    """Documents that are not there yet; a sentence where that is not seen."""
    found = layouts.aim(config, node, sights.judge) if config is not None else None
    if isinstance(found, NoAim):
        return found.because
    missing: list[WriteKey] = []
    for wanted in found.documents if found is not None else ():
        held = sights.plugin_keys if wanted.which is WhichMap.plugin else sights.mig_keys
        if isinstance(held, Unseen):
            return f"a ConfigMap is not seen: {held.why}"
        there = held.value if isinstance(held, Known) else {}
        if there.get(wanted.key) != msgspec.json.decode(wanted.content):
            missing.append(wanted)
    return tuple(missing)


def _labels_of(record: RepartitionRecord, layout: NodeLayout) -> dict[str, str | None]:
    """Only what differs between before and after is ever written."""
    made: dict[str, str | None] = {}
    if _changes_mig(record):
        made = {names.MIG_CONFIG: layout.mig_config or names.MIG_DISABLED, names.MIG_CONFIG_STATE: None}
    if record.before.device_plugin_config != record.after.device_plugin_config:
        made[names.PLUGIN_CONFIG] = layout.device_plugin_config
    return made


# ---- Verifying and RollingBack ---------------------------------------------------------------------------------------


def _verify(config: NodeConfig | None, node: PartitionNode, record: RepartitionRecord, now: Instant) -> NodeTurn:
    state = node.labels.get(names.MIG_CONFIG_STATE) if _changes_mig(record) else "success"
    if state == "failed":
        return _turn_back(config, node, record, *_why_failed(record), now)
    if node.is_ready and state == "success" and _advertises(node, record.after):
        return patch(config, node, _next(record, RepartitionStep.Uncordoning, now), "it advertises what was asked for")
    if state == "rebooting" and not record.has_rebooted:
        longer = msgspec.structs.replace(record, has_rebooted=True, until=now + REBOOT_TAKES)
        return patch(config, node, longer, "it reboots")
    if _is_late(record, now):
        because = f"the MIG manager says {state or 'nothing'} and it advertises {_show(node)}"
        return _turn_back(config, node, record, RepartitionReason.VerifyTimeout, because, now)
    return _waits(config, node, record, f"waits until it advertises {_list(record.after.offers)}; now {_show(node)}")


def _why_failed(record: RepartitionRecord) -> tuple[RepartitionReason, str]:
    if (record.after.mig_config or "").startswith(partition.OURS):
        because = "the MIG manager failed; does its operator read the ConfigMap that holds our configurations?"
        return RepartitionReason.ConfigMapNotUsed, because
    return RepartitionReason.StateFailed, "the MIG manager failed"


def _show(node: PartitionNode) -> str:
    return _list(layouts.find_offers(node.offers))


def _list(offers: Mapping[str, int] | None) -> str:
    return ", ".join(f"{count} {name}" for name, count in (offers or {}).items()) or "nothing"


def _roll_back(
    config: NodeConfig | None, node: PartitionNode, record: RepartitionRecord, sights: PartitionSights, now: Instant
) -> NodeTurn:
    restored = _labels_of(record, record.before)
    at_work = {key: value for key, value in restored.items() if key != names.MIG_CONFIG_STATE}
    if record.is_stuck and not node.is_cordoned:
        freed = msgspec.structs.replace(record, cordoned_by_us=False)
        return patch(config, node, freed, "somebody uncordoned it")
    if record.is_labelled and any(node.labels.get(key) != value for key, value in at_work.items()):
        if record.step is RepartitionStep.RollingBack and record.until is None and has_labels(node, record.after):
            return _write_old(config, node, record, sights, now)
        return _stop(config, node, record, "somebody else changed its labels", now)
    state = node.labels.get(names.MIG_CONFIG_STATE) if record.is_labelled and _changes_mig(record) else "success"
    if not record.is_labelled or (node.is_ready and state == "success" and _advertises(node, record.before)):
        ended = _next(record, RepartitionStep.Failed, now, cordoned_by_us=False, is_labelled=False)
        return patch(config, node, ended, say_failed(ended), cordon=_uncordon(node, record))
    return _wait_for_the_old(config, node, record, state, now)


def _write_old(
    config: NodeConfig | None, node: PartitionNode, record: RepartitionRecord, sights: PartitionSights, now: Instant
) -> NodeTurn:
    """Not under pods that came when somebody uncordoned it; once they are gone it is cordoned anew, before others
    come."""
    if isinstance(sights.pods, Unseen):
        return _waits(config, node, record, f"its old layout waits: pods are not seen: {sights.pods.why}")
    if holding := _find_holding(node, sights):
        return _waits(config, node, record, f"its old layout waits for {_say_holding(holding)}")
    if not node.is_cordoned:
        closed = msgspec.structs.replace(record, cordoned_by_us=True)
        return patch(config, node, closed, "it is cordoned anew, for its old layout", cordon=True)
    back = msgspec.structs.replace(record, until=now + _takes(record))
    return patch(config, node, back, "its old labels are written", labels=_labels_of(record, record.before))


def _wait_for_the_old(
    config: NodeConfig | None, node: PartitionNode, record: RepartitionRecord, state: str | None, now: Instant
) -> NodeTurn:
    because = f"its old layout is not back: the MIG manager says {state or 'nothing'}, it advertises {_show(node)}"
    if record.step is RepartitionStep.Failed:
        return turn(config, node.name, record.step, RepartitionReason.RepartitionFailed, because, (), record)
    if record.until is None:  # somebody wrote its old labels before us
        return patch(config, node, msgspec.structs.replace(record, until=now + _takes(record)), because)
    if state == "rebooting" and not record.has_rebooted:
        longer = msgspec.structs.replace(record, has_rebooted=True, until=now + REBOOT_TAKES)
        return patch(config, node, longer, "it reboots")
    if state != "failed" and not _is_late(record, now):
        return _waits(config, node, record, because)
    said = f"{because}; {'it stays cordoned' if record.cordoned_by_us else 'it is not cordoned by us'}"
    stuck = _next(record, RepartitionStep.Failed, now, reason=RepartitionReason.RepartitionFailed)
    return patch(config, node, stuck, said,
                  tells=(TellNode(node.name, names.Event.REPARTITION_FAILED, said),))
