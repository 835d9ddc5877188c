"""The hands that change nodes for sharing: labels, cordons, records; keys of NVIDIA's ConfigMaps; evictions; statuses.

In: the writes of a NodeTurn, in their order. Out: whether each was done. One that is refused or overtaken ends its
turn, but for an eviction: the next look finds what is missing.
Invariant: a node is changed in one request, guarded by the version that was seen, with the record in it. Of the device
plugin's ConfigMap only keys that begin with fallow- are ever written; a pod is evicted by its uid.
"""

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from fallow import names
from fallow.act import evicting, share_statuses
from fallow.act.events import Announcer
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.model import cluster, partition, units
from fallow.model.partition import (
    EvictPod,
    NodeSharing,
    NodeTurn,
    PartitionWrite,
    PatchNode,
    RepartitionStep,
    SetFinalizer,
    TellNode,
    WhichMap,
    WriteKey,
)
from fallow.model.policies import crd, nodeconfig_crd
from fallow.model.policies.sharing import NodeConfig
from fallow.model.units import Instant

log = logging.getLogger("fallow")


class PartitionHands:
    """`plugin_map`, `mig_map`: namespace and name of the two ConfigMaps."""

    def __init__(
        self, api: kube.Api, announcer: Announcer, *, plugin_map: tuple[str, str], mig_map: tuple[str, str]
    ) -> None:
        self._api, self._announcer = api, announcer
        self._statuses = share_statuses.ShareStatuses(api)
        self._maps = {WhichMap.plugin: plugin_map, WhichMap.mig: mig_map}

    async def do(self, write: PartitionWrite, now: Instant) -> bool:
        """Is it done? What was refused is logged; an object that is gone needs nothing any more."""
        try:
            match write:
                case PatchNode():
                    await self._patch_node(write)
                case WriteKey():
                    await self._write_key(write)
                case EvictPod():
                    await self._evict(write)
                case SetFinalizer():
                    await self._set_finalizer(write)
                case TellNode():
                    await self._tell(write, now)
        except (errors.NotFound, errors.Conflict) as problem:
            log.info("overtaken: %s", problem)
            return False
        except errors.ClientError as problem:
            log.warning("%s was not done: %s", type(write).__name__, problem)
            return False
        return True

    async def _patch_node(self, write: PatchNode) -> None:
        metadata: dict[str, Any] = {
            "resourceVersion": write.resource_version, "labels": dict(write.labels),
            "annotations": {names.REPARTITION: partition.write(write.record)},
        }
        body: dict[str, Any] = {"metadata": metadata}
        if write.cordon is not None:
            body["spec"] = {"unschedulable": True if write.cordon else None}
        await self._api.merge_patch(kube.NODES, None, write.node, body, field_manager=names.FIELD_MANAGER)

    async def _write_key(self, write: WriteKey) -> None:
        namespace, name = self._maps[write.which]
        try:
            found = await self._api.get(kube.CONFIG_MAPS, namespace, name)
        except errors.NotFound:
            found = {}
        data: Mapping[str, str] = found.get("data") or {}
        head = {"apiVersion": "v1", "kind": "ConfigMap"}
        if write.which is WhichMap.plugin:  # what we applied before and leave out would go
            ours = {key: text for key, text in data.items() if key.startswith(partition.OURS)}
            body = {**head, "metadata": {"name": name}, "data": {**ours, write.key: write.content}}
            await self._api.apply(
                kube.CONFIG_MAPS, namespace, name, body, field_manager=names.FIELD_MANAGER, force=True
            )
            return
        text = partition.merge_mig(_decode(data.get(partition.MIG_KEY, "")), write.key, write.content)
        if not found:
            made = {**head, "metadata": {"name": name}, "data": {partition.MIG_KEY: text}}
            await self._api.create(kube.CONFIG_MAPS, namespace, made)
            return
        change = {"metadata": {"resourceVersion": found["metadata"]["resourceVersion"]},
                  "data": {partition.MIG_KEY: text}}
        await self._api.merge_patch(kube.CONFIG_MAPS, namespace, name, change, field_manager=names.FIELD_MANAGER)

    async def _evict(self, write: EvictPod) -> None:
        await evicting.send(self._api, cluster.PodId(write.namespace, write.name, write.uid))

    async def _set_finalizer(self, write: SetFinalizer) -> None:
        found = await self._api.get(kube.NODE_CONFIGS, None, write.config)
        metadata = found["metadata"]
        others = [each for each in metadata.get("finalizers") or () if each != names.REPARTITION]
        wanted = [*others, names.REPARTITION] if write.present else others
        body = {"metadata": {"resourceVersion": metadata["resourceVersion"], "finalizers": wanted}}
        await self._api.merge_patch(kube.NODE_CONFIGS, None, write.config, body, field_manager=names.FIELD_MANAGER)

    async def _tell(self, write: TellNode, now: Instant) -> None:
        node = await self._api.get(kube.NODES, None, write.node)
        ref = cluster.node_ref(write.node, node["metadata"]["uid"])
        await self._announcer.announce(ref, write.reason, write.message, now)

    async def tell_pod(self, pod: cluster.Pod, reason: str, message: str, now: Instant) -> None:
        """Once for each pod, whoever tells it."""
        ref = cluster.Ref("", kube.PODS.version, kube.PODS.kind, pod.namespace, pod.name, pod.uid)
        await self._announcer.announce_once(ref, reason, message, now, pod.uid)

    async def report(
        self, config: NodeConfig, turn: NodeTurn, sharing: NodeSharing | None, now: Instant
    ) -> None:
        """Its status, where that says something else; a failure never fails the change."""
        await self._statuses.write(kube.NODE_CONFIGS, config, make_status(config, turn, sharing, now))


def _decode(text: str) -> Any:
    import yaml  # only who changes nodes needs it

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as problem:
        raise errors.BadAnswer(f"{partition.MIG_KEY} is no YAML, and is left as it is: {problem}") from None


def make_status(
    config: NodeConfig, turn: NodeTurn, sharing: NodeSharing | None, now: Instant
) -> dict[str, Any]:
    """`sharing`: None where its node is not seen."""
    ready = "True" if turn.step is RepartitionStep.Ready else "False"
    said = {"Ready": (ready, str(turn.reason), turn.because)}
    before = turn.record.before if turn.record is not None else None
    made = nodeconfig_crd.NodeConfigStatus(
        observed_generation=config.generation, phase=turn.phase, step=str(turn.step), message=turn.because[:1024],
        last_update_time=units.rfc3339(now), conditions=crd.conditions(
            nodeconfig_crd.NodeConfigCondition, said, config.generation, config.status, now,
        ),
        previous=None if before is None else nodeconfig_crd.PreviousStatus(
            mig_config=before.mig_config, device_plugin_config=before.device_plugin_config,
        ),
        **({} if sharing is None else _tell_sharing(sharing)),
    )
    status: dict[str, Any] = share_statuses.without_none(msgspec.to_builtins(made))
    return status


def _tell_sharing(found: NodeSharing) -> dict[str, Any]:
    mps, turns = found.way == "mps", found.way == "time-slicing"
    return {
        "mig_status": nodeconfig_crd.MigStatus(
            enabled=bool(found.profiles), configured_profiles=tuple(found.profiles)[:32],
            available_devices=sum(found.profiles.values()),
        ),
        "mps_status": nodeconfig_crd.MpsStatus(
            enabled=mps, active_clients=found.holding if mps else None, max_clients=found.shares if mps else None,
        ),
        "time_slicing_status": nodeconfig_crd.SlicingStatus(
            enabled=turns, physical_gpus=found.gpus, virtual_gpus=found.shares if turns else None,
            replicas_per_gpu=found.replicas if turns else None,
        ),
    }
