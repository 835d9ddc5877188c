"""What every pod that waits for GPUs means for nodes: it fits now, fits what is on its way, needs a node, or fits none.

In: pods in the order in which they are served (priority, then GPUs, then memory), rooms to try one after the other, the
templates of policies that may grow. Out: a PodVerdict each, who needs a node of which policy, and which node that is
being drained would be wanted.
Who only goes apart from its like is served last, a node each on which nobody has a GPU.
Invariant: each place is given once; a pod that is held, or of which it is not known what it takes, is nobody's demand.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from fallow.decide.scaling import fit, words
from fallow.decide.scaling.fit import Bools, Constraint, FreeRoom
from fallow.decide.scaling.templates import NodeTemplate
from fallow.model.scaling import ScaledPod, WaitHold
from fallow.model.scaling_plan import Fit, PodVerdict


class PodRun(msgspec.Struct):
    """Pods that are alike, one after the other in the order of service."""

    pods: list[ScaledPod]
    asks: Mapping[str, int]
    wanted: Constraint


class FitPlace(msgspec.Struct, frozen=True):
    """Where pods may go: `room` changes as they do. `policies`: whose each row is; "" where that does not matter."""

    fit: Fit
    room: FreeRoom
    may: Bools
    policies: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()  # what a row is called for people, where it is no node


class DemandFound(msgspec.Struct):
    """`needs`: by policy, in order. `wanted`: pods by the node that is drained and that they fit. `unclear`: pods whose
    demand is not known."""

    verdicts: list[PodVerdict]
    needs: dict[str, list[ScaledPod]]
    in_flight: dict[str, int]
    wanted: dict[str, str]
    nobody: int = 0  # pods that no pool fits
    unclear: list[ScaledPod] = []


def order(pods: Iterable[ScaledPod]) -> list[ScaledPod]:
    return sorted(pods, key=lambda pod: (
        -pod.priority, -fit.measure(pod.asks), -pod.asks.get("memory", 0), pod.id.namespace, pod.id.name, pod.id.uid
    ))


def run_up(pods: Iterable[ScaledPod]) -> list[PodRun]:
    runs: list[PodRun] = []
    last: object = None
    for pod in pods:
        key = (pod.priority, tuple(sorted(pod.asks.items())), fit.constrain(pod))
        if key == last:
            runs[-1].pods.append(pod)
        else:
            runs.append(PodRun([pod], pod.asks, key[2]))
            last = key
    return runs


def judge(
    waiting: Iterable[ScaledPod], places: Sequence[FitPlace], templates: Mapping[str, Sequence[NodeTemplate]]
) -> DemandFound:
    """`places`: as they are tried. `templates`: by policy, as they are tried."""
    found = DemandFound([], {}, {}, {})
    clear = []
    for pod in waiting:
        if pod.held is not None or pod.is_going:
            held = pod.held or WaitHold.BeingDeleted
            found.verdicts.append(PodVerdict(pod=pod.id, fit=Fit.Held, because=words.HELD[held], held=held))
        elif pod.unclear:
            found.verdicts.append(PodVerdict(pod=pod.id, fit=Fit.CannotTell, because=pod.unclear))
            found.unclear.append(pod)
        else:
            clear.append(pod)
    known = dict[tuple[object, Constraint], tuple[str, str]]()
    for run in run_up(order(pod for pod in clear if not pod.apart)):
        _serve(run, places, templates, known, found)
    for pod in order(pod for pod in clear if pod.apart):
        whole = [msgspec.structs.replace(place, may=place.may & place.room.find_whole()) for place in places]
        _serve(PodRun([pod], pod.asks, fit.constrain(pod)), whole, templates, known, found)
    return found


def could_go(pod: ScaledPod, room: FreeRoom, nodes: Bools, templates: Iterable[NodeTemplate]) -> bool:
    """Whether a pod of which it is not known what it takes may mean one of these nodes, or a new one."""
    wanted = fit.constrain(pod)
    return bool((room.mask(wanted) & nodes).any()) or any(
        fit.accepts(wanted, template.labels, template.taints) for template in templates
    )


def _serve(
    run: PodRun, places: Sequence[FitPlace], templates: Mapping[str, Sequence[NodeTemplate]],
    known: dict[tuple[object, Constraint], tuple[str, str]], found: DemandFound,
) -> None:
    left = run.pods
    for place in places:
        if not left:
            return
        left = _seat(run, left, place, found)
    if not left:
        return
    key = (tuple(sorted(run.asks.items())), run.wanted)
    if key not in known:
        known[key] = _find_pool(run, templates)
    policy, pool = known[key]
    if not policy:
        found.nobody += len(left)
    found.verdicts += [
        PodVerdict(pod=pod.id, fit=Fit.NeedsNode, policy=policy, where=pool, because=words.needs_node(pool, policy))
        if policy else PodVerdict(pod=pod.id, fit=Fit.NoPoolFits, because=pool) for pod in left
    ]
    if policy:
        found.needs.setdefault(policy, []).extend(left)


def _seat(run: PodRun, left: list[ScaledPod], place: FitPlace, found: DemandFound) -> list[ScaledPod]:
    for row, count in place.room.place(run.asks, len(left), place.may & place.room.mask(run.wanted)):
        node = place.room.nodes[row].name
        policy = place.policies[row] if place.policies else ""
        shown = place.shown[row] if place.shown else node
        for pod in left[:count]:
            because = words.fits(place.fit, shown)
            found.verdicts.append(PodVerdict(pod=pod.id, fit=place.fit, policy=policy, where=shown, because=because))
        if place.fit is Fit.FitsInFlight:
            found.in_flight[policy] = found.in_flight.get(policy, 0) + count
            if not place.shown:
                found.wanted.setdefault(node, f"{left[0].id.namespace}/{left[0].id.name}")
        left = left[count:]
    return left


def _find_pool(run: PodRun, templates: Mapping[str, Sequence[NodeTemplate]]) -> tuple[str, str]:
    """The first policy with a pool whose empty node it fits, and that pool; else "" and why."""
    for policy, every in templates.items():
        for template in every:
            if hosts(template, run.asks, run.wanted):
                return policy, template.pool.name
    return "", words.no_pool(run.asks, [template for every in templates.values() for template in every])


def hosts(template: NodeTemplate, asks: Mapping[str, int], wanted: Constraint) -> bool:
    """Whether an empty node of it would do."""
    return (
        template.has is not None and fit.holds(template.has, asks)
        and fit.accepts(wanted, template.labels, template.taints)
    )
