"""GPUSharingPolicy as people write it: every field, its default and what may stand in it; what it means; the answer.

In: an object as the API server gives it. Out: the SharingPolicy, with a sentence in `invalid` for each thing that is
wrong with it; the definition for the API server.
Invariant: `parse` never raises, and a policy that is wrong changes nobody's pods.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import msgspec

from fallow import names
from fallow.model import units
from fallow.model.classes import WorkClass
from fallow.model.policies import crd, scope_crd, sharing
from fallow.model.policies.crd import Count, Flag, Moment, Text, one_of
from fallow.model.selectors import Selector
from fallow.model.share_hurts import RevertsKept, ShareRevert

PROFILE = r"[1-7]g\.[0-9]+gb(\+me)?"
_INT32 = 2**31
MOST_REVERTS = 100  # whose owners a status names; those before are only counted
_MOST_HOURS = 26

StrategyName = Annotated[str, one_of(*sharing.Strategy)]
ModeName = Annotated[str, one_of(*sharing.SharingMode)]
ProfileName = Annotated[str, crd.text(PROFILE, 16, "a MIG profile such as 1g.10gb or 1g.5gb+me")]
ProfileOrNone = Annotated[str, crd.text(rf"({PROFILE})?", 16, "a MIG profile such as 1g.10gb or 1g.5gb+me")]
Work = Annotated[tuple[Annotated[str, one_of(*WorkClass)], ...], {"maxItems": 4}]
Factor = Annotated[str, crd.text(r"[0-9]{1,4}(\.[0-9]{1,6})?", 12, 'a factor in quotes, such as "1.25"')]
Fairness = Annotated[str, one_of("roundrobin", "priority", "weighted")]


class MigSpec(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    profile: Annotated[ProfileOrNone, "The profile to ask for."] = ""
    auto_select_profile: Annotated[Flag, "Without a profile: the smallest that is enough."] = True


class MpsSpec(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    max_clients: Annotated[Annotated[int, crd.integer(2, 48)], "How many pods share a GPU at most."] = 16
    default_active_threads: Annotated[
        Annotated[int, crd.integer(1, 100)], "Percent of the threads; nobody heeds it yet."
    ] = 100
    memory_limit_mb: Annotated[
        Annotated[int, crd.integer(64, 1024 * 1024)] | None, "MiB of memory of each; nobody heeds it yet."
    ] = msgspec.field(default=None, name="memoryLimitMB")


class TimeSlicingSpec(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    replicas_per_gpu: Annotated[Annotated[int, crd.integer(1, 16)], "How many pods take turns."] = msgspec.field(
        default=4, name="replicasPerGPU"
    )
    slice_ms: Annotated[Annotated[int, crd.integer(1, 1000)], "Length of a turn, up to 1, 10 or more; DRA only."] = 100
    fairness_mode: Annotated[Fairness, "Whose turn it is; the driver knows roundrobin only."] = "roundrobin"


class GuardSpec(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    max_restarts: Annotated[Annotated[int, crd.integer(0, 100)], "Restarts in 30 minutes that are borne."] = 2
    latency_query: Annotated[Text, "PromQL of a latency that must not grow."] = ""
    max_latency_ratio: Annotated[Factor, "By which factor it may grow."] = "1.25"
    restart_on_revert: Annotated[Flag, "Restart the owner, rolling, when sharing hurt it."] = False


class SharingPolicySpec(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Whose pods share GPUs, how, and where."""

    strategy: Annotated[StrategyName | None, "How GPUs are shared; auto: by class and need."] = None
    mode: Annotated[ModeName, "audit: only counted and said; enforce: pods are changed."] = "audit"
    node_selector: Annotated[Mapping[str, crd.LabelValue], "Labels of nodes; none: all with GPUs."] = {}
    namespace_selector: Annotated[crd.SelectorSpec | None, "Labels of namespaces; none: all."] = None
    pod_selector: Annotated[crd.SelectorSpec | None, "Labels of pods; none: all."] = None
    workload_types: Annotated[Work, "Classes of work; none: all."] = ()
    priority: Annotated[
        Annotated[int, crd.integer(-_INT32, _INT32 - 1)], "Of several that match the highest counts, then the oldest."
    ] = 0
    rollout_percent: Annotated[Annotated[int, crd.integer(0, 100)], "Share of owners changed; the rest audited."] = 100
    mig_config: Annotated[MigSpec, "Of strategies mig and auto."] = MigSpec()
    mps_config: Annotated[MpsSpec, "Of strategies mps and auto."] = MpsSpec()
    time_slicing_config: Annotated[TimeSlicingSpec, "Of strategies timeslicing and auto."] = TimeSlicingSpec()
    guard: Annotated[GuardSpec, "When sharing counts as having hurt somebody, and is taken back."] = GuardSpec()

    laws: ClassVar = (
        crd.Law("has(self.strategy)", "is missing", lambda spec: spec.strategy is not None, "strategy"),
        crd.Law(
            "!has(self.strategy) || self.strategy != 'mig' || !has(self.migConfig) || "
            "!has(self.migConfig.autoSelectProfile) || self.migConfig.autoSelectProfile || "
            "(has(self.migConfig.profile) && self.migConfig.profile != '')",
            "strategy mig without autoSelectProfile needs migConfig.profile",
            lambda spec: spec.strategy != "mig" or spec.mig_config.auto_select_profile or spec.mig_config.profile,
            "migConfig",
        ),
    )


class SharingCondition(crd.PolicyCondition, frozen=True, rename="camel"):
    type: Annotated[str, one_of("Ready", "Degraded"), "What is said."]


class RevertStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    owner: Annotated[Text, "The uid of the owner."]
    at: Annotated[Moment, "When."]


class RevertsOfHour(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    hour: Annotated[Moment, "Its beginning."]
    owners: Annotated[Count, "How many."]


Reverts = Annotated[tuple[RevertStatus, ...], {"maxItems": MOST_REVERTS}]
HourlyReverts = Annotated[tuple[RevertsOfHour, ...], {"maxItems": _MOST_HOURS}]


class SharingPolicyStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    observed_generation: Annotated[Count | None, "Generation of the spec that was read."] = None
    applied_pods: Annotated[Count | None, "Running pods that it changed."] = None
    audited_pods: Annotated[Count | None, "Pods that it would have changed."] = None
    reverted_workloads: Annotated[Count | None, "Owners that have whole GPUs again, because sharing hurt."] = None
    recent_reverts: Annotated[Reverts, "Owners that sharing hurt within a day, the last of them."] = ()
    earlier_reverts: Annotated[HourlyReverts, "Those of the day before them, by the hour."] = ()
    last_update_time: Annotated[Moment | None, "When this was last known."] = None
    conditions: Annotated[tuple[SharingCondition, ...], crd.keyed("type"), "Ready, Degraded."] = ()


def define() -> dict[str, Any]:
    """The CustomResourceDefinition to install."""
    return crd.define(
        names.SHARING_POLICY_KIND, names.SHARING_POLICY_PLURAL, "gsp", "Whose pods share GPUs, and how.",
        version=names.POLICY_VERSION, spec=SharingPolicySpec, status=SharingPolicyStatus,
        columns=(
            ("Strategy", "string", ".spec.strategy"), ("Mode", "string", ".spec.mode"),
            ("Priority", "integer", ".spec.priority"), ("AppliedPods", "integer", ".status.appliedPods"),
            ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status'),
            ("Age", "date", ".metadata.creationTimestamp"),
        ),
    )


def parse(obj: Mapping[str, Any]) -> sharing.SharingPolicy:
    """Never raises. What is wrong is said in `.invalid`, one sentence per field."""
    written = crd.read(SharingPolicySpec, obj)
    spec, mps, turns = written.spec, written.spec.mps_config, written.spec.time_slicing_config
    return sharing.SharingPolicy(
        name=written.name, uid=written.uid, generation=written.generation, created_at=read_creation(obj),
        strategy=sharing.Strategy(spec.strategy or "exclusive"), mode=sharing.SharingMode(spec.mode),
        node_selector=spec.node_selector, namespace_selector=_select(spec.namespace_selector),
        pod_selector=_select(spec.pod_selector), work=frozenset(map(WorkClass, spec.workload_types)),
        priority=spec.priority, rollout_percent=spec.rollout_percent, profile=spec.mig_config.profile,
        max_clients=mps.max_clients, active_threads=mps.default_active_threads, memory_limit=mps.memory_limit_mb,
        replicas=turns.replicas_per_gpu, slice_ms=turns.slice_ms, fairness=turns.fairness_mode,
        guard=_guard(spec.guard), invalid=tuple(map(str, written.faults)), reverts_too_often=_reverts(obj),
        status=found if isinstance(found := obj.get("status"), Mapping) else {},
    )


def _guard(spec: GuardSpec) -> sharing.HurtGuard:
    return sharing.HurtGuard(
        max_restarts=spec.max_restarts, latency_query=spec.latency_query, restarts_on_revert=spec.restart_on_revert,
        max_latency_ratio=float(spec.max_latency_ratio),
    )


def _select(spec: crd.SelectorSpec | None) -> Selector:
    return Selector() if spec is None else scope_crd.make_selector(spec)


def read_creation(obj: Mapping[str, Any]) -> units.Instant:
    """When it was made. What has no such time, as an object that is only checked, is as young as can be."""
    metadata = found if isinstance(found := obj.get("metadata"), Mapping) else {}
    made = metadata.get("creationTimestamp")
    return (units.read_instant(made) if isinstance(made, str) else None) or float("inf")


def _reverts(obj: Mapping[str, Any]) -> bool:
    """As it was for this very spec: whoever changes a policy has it tried anew."""
    metadata = found if isinstance(found := obj.get("metadata"), Mapping) else {}
    said = ("Degraded", "True", "TooManyReverts", metadata.get("generation"))
    return any(
        (one.get("type"), one.get("status"), one.get("reason"), one.get("observedGeneration")) == said
        for one in _list_status(obj, "conditions")
    )


def read_reverts(status: Mapping[str, Any]) -> RevertsKept:
    """As we wrote them; what nobody can have written so is not there."""
    found = ((one.get("owner"), one.get("at")) for one in _list_status({"status": status}, "recentReverts"))
    read = ((owner, units.read_instant(at) if isinstance(at, str) else None) for owner, at in found)
    recent = tuple(ShareRevert(owner, at) for owner, at in read if isinstance(owner, str) and at is not None)
    hours = ((one.get("hour"), one.get("owners")) for one in _list_status({"status": status}, "earlierReverts"))
    counted = ((units.read_instant(at) if isinstance(at, str) else None, many) for at, many in hours)
    earlier = ((at, many) for at, many in counted if at is not None and isinstance(many, int) and many > 0)
    return RevertsKept(recent, tuple(earlier))


def write_reverts(kept: RevertsKept) -> dict[str, list[dict[str, Any]]]:
    """By the fields of the status."""
    return {
        "recentReverts": [{"owner": each.owner, "at": units.rfc3339(each.at)} for each in kept.recent],
        "earlierReverts": [{"hour": units.rfc3339(hour), "owners": many} for hour, many in kept.earlier],
    }


def _list_status(obj: Mapping[str, Any], field: str) -> list[Mapping[str, Any]]:
    status = found if isinstance(found := obj.get("status"), Mapping) else {}
    listed = status.get(field)
    return [one for one in listed if isinstance(one, Mapping)] if isinstance(listed, list | tuple) else []
