"""AutoscalingPolicy as people write it: every field, its default and what may stand in it; what it means; the answer.

In: an object as the API server gives it. Out: the ScalingPolicy, with a sentence in `invalid` for each thing that is
wrong with it; the definition for the API server.
Invariant: `parse` never raises, and a policy that is wrong moves no node.
"""

from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any, ClassVar

import msgspec

from fallow import names
from fallow.model import quantities, schedule
from fallow.model.cost import CapacityType
from fallow.model.policies import crd, scaling, sharing, sharing_crd
from fallow.model.policies.crd import Count, Flag, Moment, Text, one_of

_MOST_NODES = 100_000
_MOST_SECONDS = 30 * 86_400
_PERCENT = r"(100|[1-9]?[0-9])%"


def _check_ratio(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal) or not 0 <= value <= 1:
        shown = value if isinstance(value, Decimal) else repr(value)
        raise ValueError(f"{shown} is not a number from 0 to 1")


def _check_limit(value: Any) -> None:
    try:
        _read_limit(value)
    except ValueError:
        raise ValueError(f'{value!r} is not a number of nodes such as 3, nor a part of them such as "10%"') from None


def _read_limit(value: Any) -> scaling.NodeLimit:
    if isinstance(value, str) and value.endswith("%") and value[:-1].isdecimal() and int(value[:-1]) <= 100:
        return scaling.NodeLimit(percent=int(value[:-1]))
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_NODES:
        return scaling.NodeLimit(value)
    raise ValueError(value)


def _check_cron(text: str) -> None:
    schedule.Schedule.parse(text, "UTC")


def _check_memory(text: str) -> None:
    if quantities.parse(text) <= 0:
        raise ValueError(f"{text!r} is not above 0")


ModeName = Annotated[str, one_of(*scaling.ScalingMode)]
ProviderName = Annotated[str, one_of(*scaling.MachineProvider)]
DriverName = Annotated[str, one_of(*scaling.NodeDriver)]
TierName = Annotated[str, one_of(*scaling.TIERS)]
OrderName = Annotated[str, one_of(*scaling.ShrinkOrder)]
StrategyName = Annotated[str, one_of("mig", "mps", "timeslicing", "exclusive")]
Tiers = Annotated[tuple[TierName, ...], {"minItems": 1, "maxItems": 3}]
Part = Annotated[float, crd.Form({"type": "number", "minimum": 0, "maximum": 1}, _check_ratio)]
Nodes = Annotated[int, crd.integer(0, _MOST_NODES)]
Seconds = Annotated[int, crd.integer(0, _MOST_SECONDS)]
Timeout = Annotated[int, crd.integer(60, 86_400)]
# int or string, as in a PodDisruptionBudget; 0 keeps all.
LimitValue = Annotated[
    Any, crd.Form({"x-kubernetes-int-or-string": True, "pattern": f"^{_PERCENT}$", "maxLength": 4}, _check_limit)
]
Cron = Annotated[str, crd.text(r"\S+( \S+){4}", 128, "a time of cron such as '0 22 * * 1-5'", _check_cron)]
Quantity = Annotated[str, crd.text(r"[0-9]+(\.[0-9]+)?([KMGTP]i?|k)?", 24, "an amount such as 960Gi", _check_memory)]
Price = Annotated[str, crd.text(r"[0-9]{1,6}(\.[0-9]{1,6})?", 16, 'a price in quotes, such as "12.24"')]
PoolName = Annotated[str, crd.text(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", 63, "a name of lower case letters and dashes")]
Zones = Annotated[tuple[Text, ...], {"maxItems": 32}]
Types = Annotated[tuple[Text, ...], {"maxItems": 64}]
Effect = Annotated[str, one_of("NoSchedule", "PreferNoSchedule", "NoExecute")]
Profiles = Annotated[tuple[sharing_crd.ProfileName, ...], {"maxItems": 7}]


class PredictiveSpec(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    horizon_minutes: Annotated[Annotated[int, crd.integer(15, 1440)], "How far ahead demand is guessed."] = 60
    prewarm_minutes: Annotated[Annotated[int, crd.integer(5, 240)], "How long before it nodes are started."] = 30
    min_confidence: Annotated[Part, "Share of past guesses that must have been nearly right."] = 0.7
    release_minutes: Annotated[Annotated[int, crd.integer(10, 1440)], "When a node that nobody used goes again."] = 60


class WindowSpec(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    schedule: Annotated[Cron, "When it begins."]
    duration_minutes: Annotated[Annotated[int, crd.integer(1, 7 * 1440)], "How long it lasts."]
    time_zone: Annotated[crd.Zone, "IANA time zone of the schedule."] = "UTC"
    max_nodes: Annotated[LimitValue, "How many nodes of a pool may go meanwhile; 0: none."] = 0


Windows = Annotated[tuple[WindowSpec, ...], {"maxItems": 16}]


class DisruptionSpec(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    max_nodes: Annotated[LimitValue, "How many nodes of a pool may go at a time, rounded up."] = "10%"
    windows: Annotated[Windows, "Times with a limit of their own."] = ()


class PoolSharingSpec(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    strategy: Annotated[StrategyName, "How a new node's GPUs are shared."]
    replicas: Annotated[Annotated[int, crd.integer(1, 48)], "How many pods share a GPU."] = 1
    profiles: Annotated[Profiles, "Of MIG: one for each instance of a GPU."] = ()


class TaintSpec(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    key: Annotated[crd.LabelKey, "Key of the taint."]
    value: Annotated[crd.LabelValue, "Its value."] = ""
    effect: Annotated[Effect, "What it keeps away."] = "NoSchedule"


class PoolSpec(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    name: Annotated[PoolName, "What it is called."]
    capacity_type: Annotated[TierName, "How its nodes are paid for."]
    min_size: Annotated[Nodes, "Nodes that stay."] = 0
    max_size: Annotated[Nodes, "Nodes at most."] = 100
    gpu_type: Annotated[Text, "Model of its GPUs."] = ""
    instance_types: Annotated[Types, "Machines that it is made of."] = ()
    availability_zones: Annotated[Zones, "Where they may stand."] = ()
    spot_percentage: Annotated[Part, "Of a group that mixes: the part that is spot."] = 0.6
    priority: Annotated[Annotated[int, crd.integer(-(2**31), 2**31 - 1)], "The highest is taken first."] = 0
    release_reserved: Annotated[Flag, "Remove its nodes although they are paid for anyway."] = False
    labels: Annotated[Mapping[str, crd.LabelValue], "Labels of a new node."] = {}
    taints: Annotated[Annotated[tuple[TaintSpec, ...], {"maxItems": 16}], "Taints of a new node."] = ()
    group: Annotated[Text, "The cloud's group, or Karpenter's NodePool."] = ""
    gpus_per_node: Annotated[Annotated[int, crd.integer(1, 64)] | None, "GPUs of a new node."] = None
    cpu: Annotated[Annotated[int, crd.integer(1, 4096)] | None, "Cores of a new node."] = None
    memory: Annotated[Quantity | None, "Memory of a new node."] = None
    sharing: Annotated[PoolSharingSpec | None, "How a new node's GPUs are shared."] = None
    price_per_hour: Annotated[Price | None, "What a node costs in an hour; absent: by the price book."] = None

    law: ClassVar = crd.Law(
        "!has(self.minSize) || !has(self.maxSize) || self.minSize <= self.maxSize", "is above maxSize",
        lambda pool: pool.min_size <= pool.max_size, "minSize",
    )


_POOLS = {"maxItems": 64, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
Pools = Annotated[tuple[PoolSpec, ...], _POOLS]


class ScalingPolicySpec(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """When nodes with GPUs are added and released."""

    enabled: Annotated[Flag, "false: it does and recommends nothing."] = True
    mode: Annotated[ModeName, "recommend: only said; act: done."] = "recommend"
    provider: Annotated[ProviderName | None, "Whose machines they are; custom: known by their prices only."] = None
    driver: Annotated[DriverName, "Who adds and removes machines; auto: whoever is there."] = "auto"
    scale_up_threshold: Annotated[Part, "Mean use of all GPUs above which a node is added."] = 0.8
    scale_down_threshold: Annotated[Part, "Mean use of a node below which it may go."] = 0.2
    scale_up_cooldown_seconds: Annotated[Seconds, "Rest after nodes were added."] = 180
    scale_down_cooldown_seconds: Annotated[Seconds, "Rest after nodes were added or removed."] = 600
    pending_pod_timeout_seconds: Annotated[Seconds, "How long a pod waits before a node is added."] = 120
    queue_length_threshold: Annotated[Nodes, "Pods that wait, above which nothing more is waited for."] = 10
    queue_wait_seconds: Annotated[Seconds, "Mean wait above which nothing more is waited for."] = 300
    min_nodes: Annotated[Nodes, "Nodes that stay."] = 0
    max_nodes: Annotated[Nodes, "Nodes at most."] = 100
    enable_spot_instances: Annotated[Flag, "Whether machines may be taken that can be taken back."] = True
    spot_instance_percentage: Annotated[Part, "The part of all nodes that may be spot."] = 0.6
    enable_multi_tier_scaling: Annotated[Flag, "false: the first of tierOrder only."] = True
    tier_order: Annotated[Tiers, "Which way of paying is tried first."] = ("spot", "on-demand", "reserved")
    enable_predictive_scaling: Annotated[Flag, "Start nodes ahead of time where guesses have earned it."] = False
    predictive: Annotated[PredictiveSpec, "How far ahead, and how sure."] = PredictiveSpec()
    node_selector: Annotated[Mapping[str, crd.LabelValue], "Labels of its nodes; none: all with GPUs."] = {}
    unneeded_seconds: Annotated[Timeout, "How long nobody must have needed a node."] = 600
    disruption: Annotated[DisruptionSpec, "How many nodes may go at a time."] = DisruptionSpec()
    max_unready_percent: Annotated[Annotated[int, crd.integer(1, 100)], "Unready nodes that halt everything."] = 45
    drain_timeout_seconds: Annotated[Timeout, "How long pods may take to leave a node."] = 900
    provision_timeout_seconds: Annotated[Timeout, "How long a new node may take to be ready."] = 900
    scale_down_order: Annotated[OrderName, "Which node goes first: the dearest, or spot."] = "price"
    node_pools: Annotated[Pools, "The kinds of nodes that it may add and remove."] = ()

    laws: ClassVar = (
        crd.Law("has(self.provider)", "is missing", lambda spec: spec.provider is not None, "provider"),
        crd.Law(
            "!has(self.scaleDownThreshold) || !has(self.scaleUpThreshold) || "
            "self.scaleDownThreshold < self.scaleUpThreshold",
            "is not below scaleUpThreshold", lambda spec: spec.scale_down_threshold < spec.scale_up_threshold,
            "scaleDownThreshold",
        ),
        crd.Law(
            "!has(self.minNodes) || !has(self.maxNodes) || self.minNodes <= self.maxNodes", "is above maxNodes",
            lambda spec: spec.min_nodes <= spec.max_nodes, "minNodes",
        ),
    )


class ScalingCondition(crd.PolicyCondition, frozen=True, rename="camel"):
    type: Annotated[str, one_of("Ready", "ScalingHalted"), "What is said."]


class HeadroomStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    pool: Annotated[Text, "Where."]
    nodes: Annotated[Count, "For how many nodes."]
    since: Annotated[Moment, "Since when."]


class PredictionStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    enabled: Annotated[Flag, "Whether nodes are started ahead of time."]
    predicted_utilization: Annotated[crd.Number | None, "GPUs wanted at the coming peak, by those there are."] = None
    recommended_nodes: Annotated[Count | None, "Nodes that it would take."] = None
    confidence: Annotated[crd.Number | None, "Share of past guesses that were nearly right."] = None
    next_busy_period: Annotated[Moment | None, "When demand is next expected above 0.6 of the GPUs."] = None
    hits: Annotated[Count, "Nodes started ahead of time that were used, of the last ones."] = 0
    misses: Annotated[Count, "Of the last ones, those that nobody used."] = 0
    headroom: Annotated[
        Annotated[tuple[HeadroomStatus, ...], {"maxItems": 64}], "Room that another autoscaler is asked to keep."
    ] = ()


class InFlightStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    pool: Annotated[Text, "Where."]
    tier: Annotated[TierName, "How it is paid for."]
    count: Annotated[Count, "How many nodes were asked for."]
    token: Annotated[Text, "By which they are known, so that none is asked for twice."]
    since: Annotated[Moment, "When."]
    base: Annotated[Count, "Machines that its group had, or was still to start, before."] = 0
    instance_type: Annotated[Text, "Which machine."] = ""
    zone: Annotated[Text, "In which zone."] = ""
    prewarm: Annotated[Flag, "Whether it was started ahead of demand."] = False
    machine: Annotated[Text, "The one that is meant, where its group started it by itself, or it is to go."] = ""
    late: Annotated[Flag, "Whether it never became a node, and has to go."] = False


class StockOutStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    pool: Annotated[Text, "Where there was none."]
    instance_type: Annotated[Text, "Of which machine."] = ""
    zone: Annotated[Text, "In which zone."] = ""
    tier: Annotated[TierName, "How it would have been paid for."]
    until: Annotated[Moment, "When it is tried again."]
    failures: Annotated[Count, "How often in a row."]


class SpotWatchStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    since: Annotated[Moment, "Since when it is counted."]
    node_hours: Annotated[Count, "Hours that spot nodes ran, all together."] = 0
    interruptions: Annotated[Count, "How many of them were taken back."] = 0


class GangStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    gang: Annotated[Text, "Who starts together: namespace and name."]
    nodes: Annotated[Count, "How many nodes at once."]
    request: Annotated[Text, "The ProvisioningRequest."]
    state: Annotated[Text, "What its conditions say."]
    message: Annotated[Text, "And why."] = ""


class ScalingPolicyStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    observed_generation: Annotated[Count | None, "Generation of the spec that was read."] = None
    driver: Annotated[Annotated[str, one_of(*scaling.NodeDriver)] | None, "Who adds and removes machines."] = None
    current_nodes: Annotated[Count | None, "Nodes now."] = None
    desired_nodes: Annotated[Count | None, "Nodes that there should be."] = None
    spot_nodes: Annotated[Count | None, "Of these, spot."] = None
    on_demand_nodes: Annotated[Count | None, "Of these, on demand."] = None
    reserved_nodes: Annotated[Count | None, "Of these, reserved."] = None
    average_gpu_utilization: Annotated[crd.Number | None, "Mean use of all GPUs, 0 to 1; absent: not known."] = (
        msgspec.field(default=None, name="averageGPUUtilization")
    )
    pending_pods: Annotated[Count | None, "Pods that need a node which is not there."] = None
    last_scale_up_time: Annotated[Moment | None, "When nodes were last added."] = None
    last_scale_down_time: Annotated[Moment | None, "When one was last removed."] = None
    last_scaling_action: Annotated[Text | None, "What was done last."] = None
    last_scaling_reason: Annotated[Text | None, "Why."] = None
    full_at_gpus: Annotated[
        Count | None, "GPUs that were all busy when a node was added for that alone: not again while nobody comes."
    ] = msgspec.field(default=None, name="fullAtGPUs")
    provider_failures: Annotated[Count | None, "How often its cloud failed in a row."] = None
    last_provider_failure_time: Annotated[Moment | None, "When it last did."] = None
    spot_interruptions: Annotated[Count | None, "Spot nodes that were taken back."] = None
    estimated_monthly_cost: Annotated[Text | None, "What its nodes cost in 730 hours."] = None
    estimated_monthly_savings: Annotated[Text | None, "What the removed ones would have."] = None
    predictive_scaling: Annotated[PredictionStatus | None, "What is expected."] = None
    in_flight: Annotated[Annotated[tuple[InFlightStatus, ...], {"maxItems": 1000}], "Nodes on their way."] = ()
    stockouts: Annotated[Annotated[tuple[StockOutStatus, ...], {"maxItems": 1000}], "What was not to be had."] = ()
    spot_watch: Annotated[SpotWatchStatus | None, "By which a share of spot nodes is advised."] = None
    gangs: Annotated[
        Annotated[tuple[GangStatus, ...], {"maxItems": 1000}], "For whom cluster-autoscaler is asked for several nodes."
    ] = ()
    conditions: Annotated[tuple[ScalingCondition, ...], crd.keyed("type"), "Ready, ScalingHalted."] = ()


def define() -> dict[str, Any]:
    """The CustomResourceDefinition to install."""
    return crd.define(
        names.SCALING_POLICY_KIND, names.SCALING_POLICY_PLURAL, "asp", "When nodes with GPUs are added and released.",
        version=names.POLICY_VERSION, spec=ScalingPolicySpec, status=ScalingPolicyStatus,
        columns=(
            ("Provider", "string", ".spec.provider"), ("Driver", "string", ".status.driver"),
            ("Nodes", "integer", ".status.currentNodes"), ("Desired", "integer", ".status.desiredNodes"),
            ("Pending", "integer", ".status.pendingPods"), ("Util", "number", ".status.averageGPUUtilization"),
            ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status'),
            ("Age", "date", ".metadata.creationTimestamp"),
        ),
    )


def parse(obj: Mapping[str, Any]) -> scaling.ScalingPolicy:
    """Never raises. What is wrong is said in `.invalid`, one sentence per field."""
    written = crd.read(ScalingPolicySpec, obj)
    spec = written.spec
    tiers = tuple(map(CapacityType, dict.fromkeys(spec.tier_order)))
    return scaling.ScalingPolicy(
        name=written.name, uid=written.uid, generation=written.generation, created_at=sharing_crd.read_creation(obj),
        enabled=spec.enabled, mode=scaling.ScalingMode(spec.mode),
        provider=scaling.MachineProvider(spec.provider or "custom"), driver=scaling.NodeDriver(spec.driver),
        grow_above=float(spec.scale_up_threshold),
        shrink_below=float(spec.scale_down_threshold), grow_rest=float(spec.scale_up_cooldown_seconds),
        shrink_rest=float(spec.scale_down_cooldown_seconds), pending_patience=float(spec.pending_pod_timeout_seconds),
        queue_length=spec.queue_length_threshold, queue_wait=float(spec.queue_wait_seconds), least=spec.min_nodes,
        most=spec.max_nodes, spot=spec.enable_spot_instances, spot_share=float(spec.spot_instance_percentage),
        tiers=tiers if spec.enable_multi_tier_scaling else tiers[:1],
        prewarming=_prewarming(spec.predictive) if spec.enable_predictive_scaling else None,
        node_selector=spec.node_selector, unneeded=float(spec.unneeded_seconds),
        disruption=_read_limit(spec.disruption.max_nodes), windows=tuple(map(_window, spec.disruption.windows)),
        most_unready=spec.max_unready_percent, drain_patience=float(spec.drain_timeout_seconds),
        provision_patience=float(spec.provision_timeout_seconds),
        shrink_order=scaling.ShrinkOrder(spec.scale_down_order), pools=tuple(map(_pool, spec.node_pools)),
        invalid=(*map(str, written.faults), *_name_twice(spec.node_pools)),
        status=found if isinstance(found := obj.get("status"), Mapping) else {},
    )


def _name_twice(pools: tuple[PoolSpec, ...]) -> list[str]:
    """The API server keeps names apart; a file that is only read has nobody who does."""
    names_of = [pool.name for pool in pools]
    twice = sorted({name for name in names_of if names_of.count(name) > 1})
    return [f"spec.nodePools: {name!r} is there more than once" for name in twice]


def _prewarming(spec: PredictiveSpec) -> scaling.Prewarming:
    return scaling.Prewarming(
        horizon=60.0 * spec.horizon_minutes, ahead=60.0 * spec.prewarm_minutes,
        least_confidence=float(spec.min_confidence), release=60.0 * spec.release_minutes,
    )


def _window(spec: WindowSpec) -> scaling.DisruptionWindow:
    return scaling.DisruptionWindow(
        schedule.Schedule(spec.schedule, spec.time_zone), 60.0 * spec.duration_minutes, _read_limit(spec.max_nodes)
    )


def _pool(spec: PoolSpec) -> scaling.NodePool:
    return scaling.NodePool(
        name=spec.name, tier=CapacityType(spec.capacity_type), least=spec.min_size, most=spec.max_size,
        gpu_type=spec.gpu_type, instance_types=spec.instance_types, zones=spec.availability_zones,
        spot_share=float(spec.spot_percentage), priority=spec.priority, releases_reserved=spec.release_reserved,
        labels=spec.labels, taints=tuple(scaling.PoolTaint(one.key, one.value, one.effect) for one in spec.taints),
        group=spec.group, gpus=spec.gpus_per_node, cpu=spec.cpu,
        memory=None if spec.memory is None else int(quantities.parse(spec.memory) // 2**20),
        sharing=None if spec.sharing is None else _sharing(spec.sharing),
        price=None if spec.price_per_hour is None else float(spec.price_per_hour),
    )


def _sharing(spec: PoolSharingSpec) -> scaling.PoolSharing:
    return scaling.PoolSharing(sharing.Strategy(spec.strategy), spec.replicas, spec.profiles)
