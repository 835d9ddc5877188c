"""CostAttribution as people write it: whose cost is shown in its status, grouped by what; what it means; what is
answered.

In: an object as the API server gives it. Out: the CostAttribution, with a sentence in `invalid` for each thing that is
wrong with it; the definition for the API server. Fields of the system before (`namespace`, `labels`, `team`, ...)
narrow the scope down as its own selectors do.
Invariant: `parse` never raises.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from fallow import names
from fallow.model import cost, units
from fallow.model.policies import budget, crd, scope_crd
from fallow.model.policies.crd import Moment, Text, one_of
from fallow.model.policies.scope_crd import FilledLabel, Money

MOST_ROWS = 200
_LONGEST = 90 * units.DAY


def _check_dimension(text: str) -> None:
    cost.read_dimension(text)


def _check_period(text: str) -> None:
    if not units.HOUR <= units.parse_duration(text) <= _LONGEST:
        raise ValueError(f"{text!r} is not between 1h and 90d")


TrackBy = Annotated[tuple[Annotated[str, crd.text(
    f"({'|'.join(name for name in cost.DimensionName if name != 'label')}|label:[A-Za-z0-9][-A-Za-z0-9_./]*)", 330,
    "something to group by such as namespace, team or label:KEY", _check_dimension,
)], ...], {"minItems": 1, "maxItems": 5}]
ReportingPeriod = Annotated[str, crd.text(
    r"([0-9]+(m|h|d))+", 16, "a duration between 1h and 90d such as 24h or 7d", _check_period,
)]
RetentionDays = Annotated[int, crd.integer(1, 365)]


class CostAttributionSpec(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Whose cost, grouped by what, of which time."""

    scope: Annotated[scope_crd.ScopeSpec, "Whose cost; all selectors must fit; none: everybody's."] = (
        scope_crd.ScopeSpec()
    )
    track_by: Annotated[TrackBy, "What it is grouped by."] = ("namespace",)
    reporting_period: Annotated[ReportingPeriod, "Of how long until now."] = "24h"
    namespace: Annotated[crd.Name | None, "As scope.namespaces with one name."] = None
    labels: Annotated[Mapping[str, FilledLabel], "As scope.labels."] = {}
    experiment_id: Annotated[FilledLabel | None, "As scope.experimentID."] = msgspec.field(
        default=None, name="experimentID"
    )
    team: Annotated[FilledLabel | None, "As scope.teams with one name."] = None
    project: Annotated[FilledLabel | None, "As scope.labels with the key project."] = None
    cost_center: Annotated[FilledLabel | None, "As scope.labels with the key cost-center."] = None
    tags: Annotated[Mapping[str, Text], "For people."] = {}
    retention_days: Annotated[RetentionDays | None, "For people: how long the books are kept is a setting."] = None


class AttributionGroup(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    key: Annotated[Text, "Its values, in the order of trackBy, by slashes."]
    cost: Annotated[Money, "What it cost, by what was held."]
    use_cost: Annotated[Money, "Of that, what was used."]
    idle_cost: Annotated[Money, "Of that, what did nothing: held and not used, held idle, or held by nobody."]
    gpu_hours: Annotated[crd.Number, "GPU-hours held."] = msgspec.field(name="gpuHours")


class AttributionDay(msgspec.Struct, frozen=True, rename="camel"):
    timestamp: Annotated[Moment, "When the day began, UTC."]
    cost: Annotated[Money, "What it cost."]
    gpu_hours: Annotated[crd.Number, "GPU-hours held."]


class DetailedBreakdown(msgspec.Struct, frozen=True, rename="camel"):
    by_pod: Annotated[Mapping[str, Money], "By pod."] = {}
    by_gpu_type: Annotated[Mapping[str, Money], "By model of GPU."] = msgspec.field(
        default_factory=dict, name="byGPUType"
    )
    by_capacity_type: Annotated[Mapping[str, Money], "By how its nodes are paid."] = {}
    by_node: Annotated[Mapping[str, Money], "By node."] = {}
    by_hour: Annotated[Mapping[str, Money], "Of the last hours."] = {}
    by_day: Annotated[Mapping[str, Money], "Of the last days."] = {}


class SavingsStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """What is not known is absent."""

    total: Annotated[Money | None, "All of it."] = None
    spot: Annotated[Money | None, "By spot nodes."] = None
    sharing: Annotated[Money | None, "By sharing GPUs."] = None
    autoscaling: Annotated[Money | None, "By nodes that were removed."] = None
    waste_eliminated: Annotated[Money | None, "By pauses."] = None
    savings_percentage: Annotated[crd.Number | None, "Of what it would have cost."] = None
    baseline_cost: Annotated[Money | None, "What it would have cost."] = None


class AttributionCondition(crd.PolicyCondition, frozen=True, rename="camel"):
    type: Annotated[str, one_of("Ready", "Complete"), "What is said."]


class CostAttributionStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What is known of the last reportingPeriod. What is not known is absent."""

    observed_generation: Annotated[crd.Count | None, "Generation of the spec that was read."] = None
    total_cost: Annotated[Money | None, "Of the reporting period."] = None
    daily_cost: Annotated[Money | None, "Of the last 24 hours."] = None
    monthly_cost: Annotated[Money | None, "Of the last 30 days."] = None
    hourly_cost: Annotated[Money | None, "Of the last hour."] = None
    active_pods: Annotated[crd.Count | None, "GPU pods of the scope that run now."] = None
    active_gpus: Annotated[crd.Count | None, "GPUs that these hold."] = msgspec.field(default=None, name="activeGPUs")
    gpu_hours: Annotated[crd.Number | None, "GPU-hours held."] = msgspec.field(default=None, name="gpuHours")
    cost_per_gpu_hour: Annotated[Money | None, "Of those with a price."] = msgspec.field(
        default=None, name="costPerGPUHour"
    )
    last_updated: Annotated[Moment | None, "When this was last known."] = None
    detailed_breakdown: Annotated[DetailedBreakdown | None, "Where it went."] = None
    historical_data: Annotated[
        tuple[AttributionDay, ...], {"maxItems": MOST_ROWS}, "Each of the last days."
    ] = ()
    savings: Annotated[SavingsStatus | None, "What was saved; absent: not known."] = None
    groups: Annotated[tuple[AttributionGroup, ...], {"maxItems": MOST_ROWS}, "By trackBy, the dearest first."] = ()
    conditions: Annotated[tuple[AttributionCondition, ...], crd.keyed("type"), "Ready, Complete."] = ()


def define() -> dict[str, Any]:
    """The CustomResourceDefinition to install."""
    return crd.define(
        names.ATTRIBUTION_KIND, names.ATTRIBUTION_PLURAL, "ca", "Whose cost of GPUs is shown, grouped by what.",
        version=names.POLICY_VERSION, spec=CostAttributionSpec, status=CostAttributionStatus,
        columns=(
            ("Total", "string", ".status.totalCost"), ("Hourly", "string", ".status.hourlyCost"),
            ("GPUs", "integer", ".status.activeGPUs"), ("GPUHours", "number", ".status.gpuHours"),
            ("Age", "date", ".metadata.creationTimestamp"),
        ),
    )


def parse(obj: Mapping[str, Any]) -> budget.CostAttribution:
    written = crd.read(CostAttributionSpec, obj)
    spec, status = written.spec, obj.get("status")
    return budget.CostAttribution(
        name=written.name, uid=written.uid, generation=written.generation, scope=_make_scope(spec),
        track_by=tuple(map(cost.read_dimension, spec.track_by)),
        period=int(units.parse_duration(spec.reporting_period)), invalid=tuple(map(str, written.faults)),
        status=status if isinstance(status, Mapping) else {},
    )


def _make_scope(spec: CostAttributionSpec) -> budget.SpendScope:
    made = scope_crd.make(spec.scope)
    further = {"project": spec.project, "cost-center": spec.cost_center}
    labels = {**dict(made.labels), **spec.labels, **{key: value for key, value in further.items() if value}}
    return msgspec.structs.replace(
        made, namespaces=(spec.namespace,) if spec.namespace else made.namespaces,
        teams=(spec.team,) if spec.team else made.teams, labels=tuple(sorted(labels.items())),
        experiment=spec.experiment_id or made.experiment,
    )
