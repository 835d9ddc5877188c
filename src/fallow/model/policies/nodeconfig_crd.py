"""GPUNodeConfig as people write it: how the GPUs of one node are to be cut or shared; what it means; the answer.

In: an object as the API server gives it. Out: the NodeConfig, with a sentence in `invalid` for each thing that is wrong
with it; the definition for the API server. Whether a layout is legal depends on the node's GPUs, and is said later.
Invariant: `parse` never raises; the node that an object means never changes.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import msgspec

from fallow import names
from fallow.model.policies import crd, sharing, sharing_crd
from fallow.model.policies.crd import Count, Flag, Moment, Text, one_of
from fallow.model.policies.sharing_crd import ModeName, ProfileName

NodeName = Annotated[str, crd.text(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", 253, "the name of a node")]
Layout = Annotated[tuple[ProfileName, ...], {"maxItems": 7}]
ConfigName = Annotated[str, crd.text(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?", 63, "a name of mig-parted's")]
DisruptionName = Annotated[str, one_of(*sharing.Disruption)]
PHASES = ("Pending", "Configuring", "Ready", "Failed")


def _both(one: str, other: str) -> str:
    return f"!(has(self.{one}) && self.{one} && has(self.{other}) && self.{other})"


class NodeConfigSpec(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """How the GPUs of one node are cut or shared. All three false: nothing is shared."""

    node_name: Annotated[NodeName | None, "The node; it cannot be changed."] = None
    mode: Annotated[ModeName, "audit: only said; enforce: done."] = "audit"
    mig_enabled: Annotated[Flag, "Cut its GPUs by MIG."] = False
    mig_profiles: Annotated[Layout, "Of every GPU, one for each instance; none: the layout stays."] = ()
    mig_config: Annotated[ConfigName, "An existing configuration of mig-parted, instead of migProfiles."] = ""
    mps_enabled: Annotated[Flag, "Share its GPUs by MPS."] = False
    mps_max_clients: Annotated[Annotated[int, crd.integer(2, 48)], "How many pods share a GPU."] = 16
    time_slicing_enabled: Annotated[Flag, "Share its GPUs by turns."] = False
    time_slicing_replicas: Annotated[Annotated[int, crd.integer(2, 16)], "How many pods share a GPU."] = 4
    disruption: Annotated[DisruptionName, "Wait for its GPU pods to end, or evict them."] = "wait"
    drain_timeout_seconds: Annotated[Annotated[int, crd.integer(60, 86_400)], "How long; then all is as before."] = 3600

    laws: ClassVar = (
        crd.Law("has(self.nodeName)", "is missing", lambda spec: spec.node_name is not None, "nodeName"),
        crd.Law("!has(self.nodeName) || !has(oldSelf.nodeName) || self.nodeName == oldSelf.nodeName",
                "cannot be changed: make another object for another node", lambda spec: True, "nodeName"),
        crd.Law(_both("mpsEnabled", "migEnabled"), "MPS and MIG exclude each other",
                lambda spec: not (spec.mps_enabled and spec.mig_enabled), "mpsEnabled"),
        crd.Law(_both("mpsEnabled", "timeSlicingEnabled"), "MPS and time-slicing exclude each other",
                lambda spec: not (spec.mps_enabled and spec.time_slicing_enabled), "mpsEnabled"),
        crd.Law("!(has(self.migConfig) && self.migConfig != '' && has(self.migProfiles) && size(self.migProfiles) > 0)",
                "give migProfiles or migConfig, and not both",
                lambda spec: not (spec.mig_config and spec.mig_profiles), "migConfig"),
    )


class NodeConfigCondition(crd.PolicyCondition, frozen=True, rename="camel"):
    type: Annotated[str, one_of("Ready"), "What is said."]


class PreviousStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    mig_config: Annotated[Text | None, "Label nvidia.com/mig.config before the change."] = None
    device_plugin_config: Annotated[Text | None, "Label nvidia.com/device-plugin.config before it."] = None


class MigStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    enabled: Annotated[Flag, "Its GPUs are cut."]
    configured_profiles: Annotated[tuple[Text, ...], {"maxItems": 32}, "Profiles that it advertises."] = ()
    available_devices: Annotated[Count, "Instances that it advertises."] = 0


class MpsStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    enabled: Annotated[Flag, "Its GPUs are shared by MPS."]
    active_clients: Annotated[Count | None, "Pods that hold a share now."] = None
    max_clients: Annotated[Count | None, "Shares of all its GPUs."] = None


class SlicingStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    enabled: Annotated[Flag, "Its GPUs are shared by turns."]
    physical_gpus: Annotated[Count | None, "GPUs."] = msgspec.field(default=None, name="physicalGPUs")
    virtual_gpus: Annotated[Count | None, "What it advertises."] = msgspec.field(default=None, name="virtualGPUs")
    replicas_per_gpu: Annotated[Count | None, "Pods on each."] = msgspec.field(default=None, name="replicasPerGPU")


class NodeConfigStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    observed_generation: Annotated[Count | None, "Generation of the spec that was read."] = None
    phase: Annotated[Annotated[str, one_of(*PHASES)] | None, "How far it is."] = None
    step: Annotated[Text | None, "Which step of the change runs."] = None
    message: Annotated[Text | None, "What it waits for, or what went wrong."] = None
    last_update_time: Annotated[Moment | None, "When this was last known."] = None
    previous: Annotated[PreviousStatus | None, "What a change goes back to."] = None
    mig_status: Annotated[MigStatus | None, "MIG on the node."] = None
    mps_status: Annotated[MpsStatus | None, "MPS on the node."] = None
    time_slicing_status: Annotated[SlicingStatus | None, "Time-slicing on the node."] = None
    conditions: Annotated[tuple[NodeConfigCondition, ...], crd.keyed("type"), "Ready."] = ()


def define() -> dict[str, Any]:
    """The CustomResourceDefinition to install."""
    return crd.define(
        names.NODE_CONFIG_KIND, names.NODE_CONFIG_PLURAL, "gnc", "How the GPUs of one node are cut or shared.",
        version=names.POLICY_VERSION, spec=NodeConfigSpec, status=NodeConfigStatus,
        columns=(
            ("Node", "string", ".spec.nodeName"), ("Phase", "string", ".status.phase"),
            ("Step", "string", ".status.step"), ("Age", "date", ".metadata.creationTimestamp"),
        ),
    )


def parse(obj: Mapping[str, Any]) -> sharing.NodeConfig:
    """Never raises. What is wrong is said in `.invalid`, one sentence per field."""
    written = crd.read(NodeConfigSpec, obj)
    spec, metadata, status = written.spec, _mapping(obj.get("metadata")), _mapping(obj.get("status"))
    finalizers = metadata.get("finalizers")
    return sharing.NodeConfig(
        name=written.name, uid=written.uid, generation=written.generation, created_at=sharing_crd.read_creation(obj),
        node=spec.node_name or "", mode=sharing.SharingMode(spec.mode), mig=spec.mig_enabled,
        profiles=spec.mig_profiles, mig_config=spec.mig_config,
        mps_clients=spec.mps_max_clients if spec.mps_enabled else None,
        slicing_replicas=spec.time_slicing_replicas if spec.time_slicing_enabled else None,
        disruption=sharing.Disruption(spec.disruption), drain_timeout=float(spec.drain_timeout_seconds),
        is_going=bool(metadata.get("deletionTimestamp")),
        has_finalizer=isinstance(finalizers, list | tuple) and names.REPARTITION in finalizers,
        invalid=tuple(map(str, written.faults)), status=status,
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
