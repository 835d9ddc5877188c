"""A node, or an object of ours, explained: what it is, what it means now, what waits for what.

In: what wiring/subjects.py saw. Out: SubjectTold: lines of a heading and a sentence, the conditions of its status, the
pods that it concerns.
Invariant: what is not known is said to be, or is no line; a cordon of ours is never told without its reason.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from fallow import names
from fallow.decide import packing
from fallow.doors import answers
from fallow.doors.answers import budgets, scaling
from fallow.model import cluster, gpus, units
from fallow.model.partition import NodeSharing
from fallow.model.policies.sharing import NodeConfig, SharingPolicy
from fallow.model.seen import Absent, Input, Known, Unseen
from fallow.model.share_advice import CrowdAdvice
from fallow.model.units import Instant
from fallow.wiring.subjects import NodeSubject, PolicySubject

MOST_NAMED: Final = 10
_CAUSES: Final = {
    packing.Cause.LackBoth: "neither CPU nor enough of a GPU is left",
    packing.Cause.LackGpu: "what is left of each GPU is too small, or on too few GPUs",
    packing.Cause.LackCpu: "no CPU is left beside them",
    packing.Cause.NoAccess: "the pods that usually come do not take this model of GPU",
    packing.Cause.CpuOnlySatisfied: "many of the pods that usually come want no GPU",
    packing.Cause.CpuOnlyLackCpu: "many of the pods that usually come want no GPU",
}


class LineTold(answers.Shape, frozen=True, kw_only=True):
    about: str
    sentence: str


class ConditionTold(answers.Shape, frozen=True, kw_only=True):
    type: str
    status: str
    reason: str
    message: str
    since: str | None


class HolderTold(answers.Shape, frozen=True, kw_only=True):
    """`holds`: resources and how many; `strategy`: by which we had it ask for a part, None where we did not."""

    namespace: str
    pod: str
    holds: dict[str, int]
    strategy: str | None


class SubjectTold(answers.Shape, frozen=True, kw_only=True):
    """`status`: as the object has it."""

    kind: str
    name: str
    lines: tuple[LineTold, ...]
    status: dict[str, Any]
    conditions: tuple[ConditionTold, ...] = ()
    holders: tuple[HolderTold, ...] = ()


def tell_node(of: NodeSubject, now: Instant, planned: scaling.ScalingPage | None = None) -> SubjectTold:
    """`planned`: of all nodes; None: nobody asked."""
    found = (
        *_tell_layout(of), *_tell_change(of, now), *_tell_cordon(of), *_tell_room(of), *_tell_crowd(of),
        *_tell_emptying(of), *_tell_move(of, now),
        *(scaling.tell_of_node(planned, of.node.name) if planned is not None else ()),
    )
    return SubjectTold(
        kind="Node", name=of.node.name, lines=_lines(found), holders=tuple(map(_tell_holder, of.pods)),
        conditions=read_conditions(of.config.status) if of.config is not None else (),
        status=dict(of.config.status) if of.config is not None else {},
    )


def _lines(found: Sequence[tuple[str, str]]) -> tuple[LineTold, ...]:
    return tuple(LineTold(about=about, sentence=sentence) for about, sentence in found)


def _tell_holder(pod: cluster.Pod) -> HolderTold:
    held = {**pod.resources, **({"claims": len(pod.claims)} if pod.claims else {})}
    strategy = pod.annotations.get(names.OPTIMIZATION_STRATEGY)
    return HolderTold(namespace=pod.namespace, pod=pod.name, holds=held, strategy=strategy)


# ---- a node ----------------------------------------------------------------------------------------------------------


def _tell_layout(of: NodeSubject) -> Iterator[tuple[str, str]]:
    node = of.node
    product = node.labels.get(names.GPU_PRODUCT, "")
    count = "an unknown number of" if of.sharing.gpus is None else str(of.sharing.gpus)
    yield "GPUs", f"{count} {gpus.shorten(product) or 'of an unknown model'}: {name_layout(of.sharing)}"
    offers = ", ".join(f"{many} {name}" for name, many in sorted(node.offers.items()) if many)
    yield "offers", offers or "no GPU and no part of one"
    if not of.unseen:
        held = sum(sum(pod.resources.values()) for pod in of.pods)
        yield "held", f"{held} of them, by {answers.many(len(of.pods), 'pod')}" if of.pods else "nobody holds any"
    if not node.is_ready:
        yield "not ready", "the node is not Ready: nothing begins there"


def name_layout(sharing: NodeSharing) -> str:
    cut = ", ".join(f"{many} × {profile}" for profile, many in sorted(sharing.profiles.items()))
    ways = {"mps": "MPS", "time-slicing": "time-slicing"}
    each = "" if sharing.replicas is None else f" × {sharing.replicas}"
    shared = f"{ways.get(sharing.way, sharing.way)}{each}" if sharing.way else ""
    return "; ".join(filter(None, (f"MIG ({cut})" if cut else "", shared))) or "whole"


def _tell_change(of: NodeSubject, now: Instant) -> Iterator[tuple[str, str]]:
    record, config = of.node.record, of.config
    if config is not None:
        said = config.status.get("message") or "no daemon has said yet what becomes of it"
        step = config.status.get("step") or config.status.get("phase") or "not begun"
        yield "config", f"GPUNodeConfig {config.name} ({config.mode}) asks for {name_wish(config)}"
        yield "step", f"{step}: {said}"
    if record is not None and (config is None or record.is_running):
        late = "" if record.until is None else f", at the latest until {units.rfc3339(record.until)}"
        since = f"{units.humane(now - record.since)} ago" if now > record.since else "just now"
        yield "change", f"{record.step} for {record.config}, begun {since}{late}"
    if of.node.unreadable:
        yield "change", f"its record cannot be read, so nothing is done: {of.node.unreadable}"


def name_wish(config: NodeConfig) -> str:
    if config.invalid:
        return f"what cannot be done: {config.invalid[0]}"
    cut = config.mig_config or ", ".join(config.profiles) or "as it is cut now"
    ways = (
        f"MIG ({cut})" if config.mig else "",
        f"MPS for {config.mps_clients} clients" if config.mps_clients is not None else "",
        f"time-slicing × {config.slicing_replicas}" if config.slicing_replicas is not None else "",
    )
    return " and ".join(filter(None, ways)) or "whole GPUs"


def _tell_cordon(of: NodeSubject) -> Iterator[tuple[str, str]]:
    if not of.node.is_cordoned:
        return
    record, emptied = of.node.record, of.emptied
    if record is not None and record.cordoned_by_us:
        yield "cordoned", f"by fallow, while its GPUs are cut or shared anew ({record.step})"
    elif emptied is not None and emptied.cordoned_by_us:
        yield "cordoned", f"by fallow, while it is emptied: {emptied.because}"
    elif of.drain is not None and of.drain.cordoned_by_us:
        yield "cordoned", f"by fallow, to let it go ({of.drain.reason}): {of.drain.because}"
    elif of.spot is not None and of.spot.cordoned_by_us:
        ends = answers.instant(of.spot.ends_at)
        yield "cordoned", f"by fallow: its cloud takes it back{f' at {ends}' if ends else ', or may soon'}"
    else:
        yield "cordoned", "by somebody else; fallow leaves it so"


def _tell_room(of: NodeSubject) -> Iterator[tuple[str, str]]:
    if of.room is None:
        yield "stranded", f"not known: {of.unseen}"
        return
    if of.room.left_out:
        yield "stranded", f"not known: it {of.room.left_out}"
        return
    yield "free", f"{of.room.free:g} of {answers.many(of.room.gpus, 'GPU')}"
    stranded = {
        cause: free for cause, free in of.room.free_by_cause.items() if cause in _CAUSES and free >= 0.005
    }
    if of.room.free and not of.room.free_by_cause:
        yield "stranded", "not known: nothing is known of the pods that usually come"
    elif not stranded:
        yield "stranded", "nothing: what is free can be used by the pods that usually come"
    for cause, free in sorted(stranded.items(), key=lambda one: -one[1]):
        yield "stranded", f"{free:.2f} GPUs: {_CAUSES[cause]} ({cause})"


def _tell_crowd(of: NodeSubject) -> Iterator[tuple[str, str]]:
    if not isinstance(of.crowd, Absent):
        yield "could share", tell_crowd(of.crowd)


def tell_crowd(seen: Input[CrowdAdvice]) -> str:
    """How many of these pods one GPU would do for, and who keeps his own."""
    if not isinstance(seen, Known):
        return f"not known: {seen.why if isinstance(seen, Unseen) else 'nobody looked'}"
    of = seen.value
    if of.replicas is None or of.clients is None or of.largest_need is None:
        could = "nobody"
    else:
        mps = f", or {of.clients} by MPS" if of.clients > 1 else ""
        need = f"each is given up to {of.largest_need:,} MiB of its memory"
        could = f"{of.replicas} could take turns on a GPU{mps}; {need}: {name_some(of.could, 'pod', '')}"
    alone = f"; too busy or too large for that: {name_some(of.alone, 'pod', '')}" if of.alone else ""
    unknown = f"; not known: {name_some(of.unknown, 'pod', '')}" if of.unknown else ""
    return f"{could}{alone}{unknown}"


def _tell_emptying(of: NodeSubject) -> Iterator[tuple[str, str]]:
    if of.emptied is not None:
        refused = f"; last refused: {of.emptied.refusal}" if of.emptied.refusal else ""
        leaving = f"; {of.emptied.leaving.namespace}/{of.emptied.leaving.name} is leaving" if of.emptied.leaving else ""
        yield "emptying", f"since {units.rfc3339(of.emptied.since)}: {of.emptied.because}{leaving}{refused}"
    elif of.result:
        yield "emptying", f"over: {of.result}"
    if of.plan is None or of.emptied is not None:
        return
    if of.plan.chosen is not None and of.plan.chosen.node == of.node.name:
        yield "empty it", f"it is the next that could be emptied: {of.plan.chosen.because}"
    stays = next((each for each in of.plan.staying if each.node == of.node.name), None)
    if stays is not None:
        yield "empty it", f"no ({stays.reason}): {stays.because}"


def _tell_move(of: NodeSubject, now: Instant) -> Iterator[tuple[str, str]]:
    if of.move is not None:
        refused = f"; last refused: {of.move.refusal}" if of.move.refusal else ""
        step = "is evicted" if of.move.evicting is not None else "goes once the extender keeps both places"
        yield "moving", f"since {units.rfc3339(of.move.since)}: {of.move.because}; {of.move.moved} {step}{refused}"
    elif of.moved:
        yield "moving", f"over: {of.moved}"
    if of.held is not None and of.held.is_kept(now):
        whom = "a pod that waits" if of.held.pod else "a pod that is moved here"
        until = units.rfc3339(of.held.until)
        yield "kept", f"a place is kept until {until} for {whom}, of namespace {of.held.namespace}"


# ---- objects of ours -------------------------------------------------------------------------------------------------


def tell_policy(
    of: PolicySubject, now: Instant, matched: Sequence[str] | None = None, planned: scaling.ScalingPage | None = None
) -> SubjectTold:
    """`matched`: of an IdlePolicy the workloads that it rules now; None: nobody knows. `planned`: of an
    AutoscalingPolicy."""
    found = list(
        _tell_object(of, now, matched) if planned is None else scaling.tell_of_policy(planned, of.name)
    )
    if not of.status:
        found.append(("status", "none yet: no daemon has looked at it"))
    return SubjectTold(
        kind=of.kind, name=of.name, lines=_lines(found), conditions=read_conditions(of.status), status=dict(of.status)
    )


def _tell_object(of: PolicySubject, now: Instant, matched: Sequence[str] | None) -> Iterator[tuple[str, str]]:
    if of.policy is not None:
        yield from _tell_sharing(of, of.policy)
    elif of.budget is not None:
        yield from _tell_budget(of, now)
    elif of.kind == names.NODE_CONFIG_KIND:
        yield "node", f"{of.spec.get('nodeName')}; more: fallow explain node/{of.spec.get('nodeName')}"
        yield "mode", str(of.spec.get("mode", "audit"))
        if of.status:
            yield "step", f"{of.status.get('step') or of.status.get('phase')}: {of.status.get('message') or '-'}"
    else:
        action = (of.spec.get("action") or {}).get("type", "report")
        yield "action", f"{action}, priority {of.spec.get('priority', 0)}"
        if matched is not None:
            yield "rules", name_some(matched, "workload", "no workload now")


def _tell_sharing(of: PolicySubject, policy: SharingPolicy) -> Iterator[tuple[str, str]]:
    force = "in force" if policy.enforces else "audits: it changes nothing"
    share = "" if policy.rollout_percent == 100 else f", for {policy.rollout_percent} % of owners"
    yield "asks", f"{policy.strategy}, {force}{share}, priority {policy.priority}"
    for problem in policy.invalid:
        yield "wrong", problem
    unknown, none = f"not known: {of.unseen}", "no running pod"
    yield "changed", unknown if of.changed is None else name_some(of.changed, "running pod", none)
    could = "" if of.selected is None else name_some(of.selected, "running pod", none)
    yield "could", f"{could} with a whole GPU; why: fallow why" if could else unknown
    reverted = of.status.get("revertedWorkloads")
    if reverted:
        yield "taken back", f"{answers.many(reverted, 'workload')} have whole GPUs because sharing hurt them"


def name_some(called: Sequence[str], what: str, none: str) -> str:
    if not called:
        return none
    more = f" and {len(called) - MOST_NAMED} more" if len(called) > MOST_NAMED else ""
    return f"{answers.many(len(called), what)}: {', '.join(sorted(called)[:MOST_NAMED])}{more}"


def _tell_budget(of: PolicySubject, now: Instant) -> Iterator[tuple[str, str]]:
    assert of.budget is not None
    row = budgets.row(of.budget, "", now)
    currency = row.currency or ""
    yield "spent", f"{row.spent or 'not known yet'} of {row.amount or 'an amount that cannot be read'} {currency}"
    yield "enforcing", f"{'yes' if row.enforcing else 'no'}, {row.mode}{f': {row.why}' if row.why else ''}"
    if of.namespaces is not None:
        yield "means", name_some(of.namespaces, "namespace", "no namespace now")
    if row.is_stale and of.status:
        yield "as of", f"{row.updated or 'never'}, which is too old to rely on"
    yield "more", f"fallow cost budget {of.name}"


def read_conditions(status: Mapping[str, Any]) -> tuple[ConditionTold, ...]:
    found = status.get("conditions")
    return tuple(
        ConditionTold(
            type=str(each.get("type", "")), status=str(each.get("status", "")), reason=str(each.get("reason", "")),
            message=str(each.get("message", "")), since=each.get("lastTransitionTime"),
        )
        for each in (found if isinstance(found, list) else ()) if isinstance(each, Mapping)
    )
