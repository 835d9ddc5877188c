"""Sentences for people: why a pod needs a node or not, why a node stays or goes, why a policy grows or rests.

In: what was found. Out: one sentence each, without a time that runs on, so that what did not change reads the same.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from fallow.decide.scaling.templates import NodeTemplate
from fallow.model import units
from fallow.model.policies.scaling import NodePool, ScalingPolicy
from fallow.model.scaling import DrainKind, WaitHold
from fallow.model.scaling_plan import Fit, GangAsk, GrowReason
from fallow.model.units import Instant

HELD: Final[Mapping[WaitHold, str]] = {
    WaitHold.SchedulingGated: "it has a scheduling gate: nobody may place it yet",
    WaitHold.Nominated: "the scheduler has chosen a node and makes room there",
    WaitHold.Queued: "its queue has not admitted it",
    WaitHold.VolumeUnbound: "it waits for its volume, not for a node",
    WaitHold.BeingDeleted: "it is being deleted",
    WaitHold.NotJudged: "the scheduler has not said yet that it fits nowhere",
    WaitHold.Placeholder: "it only keeps room free",
}


def fits(fit: Fit, where: str) -> str:
    if fit is Fit.FitsNow:
        return f"it fits {where}, which is Ready: the scheduler has not placed it yet"
    return f"it fits {where}, which is on its way"


def needs_node(pool: str, policy: str) -> str:
    return f"nothing that is there has room, and an empty node of pool {pool} of policy {policy} would"


def show_asks(asks: Mapping[str, int]) -> str:
    shown = []
    for resource, count in sorted(asks.items()):
        if count and resource == "cpu":
            shown.append(f"{count / 1000:g} cores")
        elif count and resource == "memory":
            shown.append(f"{count / 1024:.4g} GiB")
        elif count:
            shown.append(f"{count} {resource}")
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def no_pool(asks: Mapping[str, int], templates: Sequence[NodeTemplate]) -> str:
    if not templates:
        return f"it asks for {show_asks(asks)}, and no policy that may grow has a pool"
    blank = sorted({template.pool.name for template in templates if template.has is None})
    more = f"; what a node of pool {', '.join(blank)} has is not known" if blank else ""
    return f"it asks for {show_asks(asks)}, and no empty node of any pool would do{more}"


def grows(reason: GrowReason, pods: int, policy: ScalingPolicy) -> str:
    many = units.many(pods, "pod")
    match reason:
        case GrowReason.PendingPods:
            waits = "one has waited" if pods != 1 else "it has waited"
            return f"{many} fit no node, and {waits} for more than {units.spoken(policy.pending_patience)}"
        case GrowReason.QueueLong:
            return f"{many} fit no node, more than {policy.queue_length}"
        case GrowReason.QueueSlow:
            return f"{many} fit no node and have waited for more than {units.spoken(policy.queue_wait)} in the mean"
        case GrowReason.SpotReplacement:
            return f"{many} must leave nodes that their cloud takes back, and fit nowhere else"
        case GrowReason.Forecast:
            return "more GPUs are expected to be wanted than there are"
        case GrowReason.HighUtilization:
            return f"all GPUs are held and were used above {policy.grow_above:.0%} for 5 min"


def together(gang: GangAsk) -> str:
    asked = f"{units.many(gang.nodes, 'node')} at once for {gang.gang}"
    if gang.request is None:
        return f"cluster-autoscaler is asked for {asked}"
    more = f": {gang.request.because}" if gang.request.because else ""
    return f"cluster-autoscaler was asked for {asked} ({gang.request.state}{more})"


def full(gpus: int) -> str:
    return f"all {gpus} GPUs are busy; a node was added for that before, nobody came, and it is not tried again"


def counted(base: str, count: int, pool: NodePool, price: float | None, currency: str) -> str:
    costs = f", {price:,.2f} {currency} an hour each" if price is not None else ", of unknown price"
    return f"{base}: {units.many(count, 'node')} of pool {pool.name} ({pool.tier}{costs})"


def released(kind: DrainKind, use: float | None, pods: int, since: Instant) -> str:
    at = f"since {units.rfc3339(since)}"
    match kind:
        case DrainKind.empty:
            return f"nobody is on it {at}"
        case DrainKind.squatted:
            return f"nobody uses its GPUs {at}, and its {units.many(pods, 'pod')} without any fit elsewhere"
        case DrainKind.under_used:
            used = "" if use is None else f" to {use:.0%}"
            return f"its GPUs are used{used} and it was not needed {at}: its {units.many(pods, 'pod')} fit elsewhere"
        case DrainKind.failed:
            return "it never became Ready"


def waited(since: Instant, policy: ScalingPolicy) -> str:
    return f"not needed since {units.rfc3339(since)}; it may go after {units.spoken(policy.unneeded)} of that"
