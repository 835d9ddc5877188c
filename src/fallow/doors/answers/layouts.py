"""How GPUs are shared and packed: nodes that get another layout, policies, what is stranded, which node could be empty.

In: the latest turns of the stories of sharing, of its policies, of consolidation and of moves; None where one had none
yet. Out: a SharingPage.
Invariant: what no story has found out is None or absent, with the reason where there is one, and never 0.
"""

from collections.abc import Iterator
from typing import Final, Literal, TypeAlias

from fallow import names
from fallow.doors import answers
from fallow.model import units
from fallow.model.partition import NodeLayout, NodeTurn, RepartitionRecord, RepartitionStep
from fallow.model.policies.sharing import SharingPolicy
from fallow.model.sharing import PolicyStanding
from fallow.stories.consolidation import ConsolidationCycle
from fallow.stories.defrag import DefragCycle
from fallow.stories.share_policies import PoliciesCycle
from fallow.stories.sharing import SharingCycle

CAUSES: Final = {  # of the free GPUs, as docs/packing.md names them: for people
    "q1_lack_both": "the node has too few GPUs and too few cores for what usually comes",
    "q2_lack_gpu": "the node has too few GPUs free for it", "q3_satisfied": "usable: it fits here",
    "q4_lack_cpu": "the node has too few cores left for it",
    "xl_satisfied": "pods that need no GPU come: they fit, and leave it",
    "xr_lack_cpu": "not even pods without GPUs fit: no cores are left", "no_access": "it does not accept this model",
}
_MOST_STRANDED: Final = 8  # nodes that are named
_WAY: Final = (
    RepartitionStep.Planned, RepartitionStep.Cordoning, RepartitionStep.Draining, RepartitionStep.Labelling,
    RepartitionStep.Verifying, RepartitionStep.Uncordoning,
)
_STAYS: Final = frozenset({"Unmovable", "NoRoomElsewhere", "NextTime"})  # of which one wonders why

StepState: TypeAlias = Literal["done", "now", "ahead", "failed"]


class ChangeStep(answers.Shape, frozen=True, kw_only=True):
    name: str
    state: StepState


class LayoutChange(answers.Shape, frozen=True, kw_only=True):
    """`config`: the GPUNodeConfig that asks for it; None: it is gone. `layout`: what the node is to offer, where that
    is worked out already. `steps`: the way there, or back; none before it began."""

    node: str
    config: str | None
    phase: Literal["Pending", "Configuring", "Failed"]
    layout: str | None
    reason: str
    because: str
    since: str | None
    until: str | None
    steps: tuple[ChangeStep, ...]


class SharingRule(answers.Shape, frozen=True, kw_only=True):
    """A GPUSharingPolicy. `pods`: running ones that it changed; `audited`: that it would have; `reverted`: owners who
    have whole GPUs again, because sharing hurt them. None: nobody counted. `trouble`: why it does less than it says."""

    name: str
    strategy: str
    mode: Literal["audit", "enforce"]
    enforces: bool
    pods: int | None
    audited: int | None
    reverted: int | None
    trouble: str | None


class StrandedCause(answers.Shape, frozen=True, kw_only=True):
    cause: str
    gpus: float
    words: str


class StrandedNode(answers.Shape, frozen=True, kw_only=True):
    node: str
    gpus: float


class RoomLeft(answers.Shape, frozen=True, kw_only=True):
    """Free GPUs, and how many of them fit nothing that usually comes (None: of that nothing is known). `causes` are of
    all that is free, also of what is usable. `notes`: which nodes are in none of these figures, and what else is to be
    said of them."""

    as_of: str | None
    free: float
    stranded: float | None
    notes: tuple[str, ...]
    causes: tuple[StrandedCause, ...]
    nodes: tuple[StrandedNode, ...]


class NodePlan(answers.Shape, frozen=True, kw_only=True):
    node: str
    what: Literal["newLayout", "canBeEmptied", "stays", "podMoves", "placeKept", "moveWouldHelp"]
    words: str
    because: str


class SharingPage(answers.Shape, frozen=True, kw_only=True):
    """`room` None: nobody has looked yet, or it cannot be looked at; then `unknown` says why where that is known."""

    changes: tuple[LayoutChange, ...]
    policies: tuple[SharingRule, ...]
    plans: tuple[NodePlan, ...]
    room: RoomLeft | None
    unknown: tuple[str, ...]


def show(
    shared: SharingCycle | None, policies: PoliciesCycle | None, packed: ConsolidationCycle | None,
    moved: DefragCycle | None = None,
) -> SharingPage:
    changes = tuple(_tell_change(each) for each in (shared.turns if shared else ()) if _is_told(each))
    rules = policies.policies if policies else ()
    planned = (*_plan_changes(changes), *_plan_moves(moved))
    return SharingPage(
        changes=changes, plans=(*planned, *_plan_emptying(packed, {each.node for each in planned})),
        policies=tuple(_tell_rule(each, policies.standings.get(each.name) if policies else None) for each in rules),
        room=_tell_room(packed) if packed else None,
        unknown=tuple(each.failure for each in (shared, policies, packed, moved) if each is not None and each.failure),
    )


# ---- a node that gets another layout ---------------------------------------------------------------------------------


def _is_told(turn: NodeTurn) -> bool:
    return turn.step is not RepartitionStep.Ready


def _tell_change(turn: NodeTurn) -> LayoutChange:
    record = turn.record
    return LayoutChange(
        node=turn.node, config=turn.config or None, phase=turn.phase, reason=turn.reason,  # type: ignore[arg-type]
        because=answers.capital(turn.because), layout=name_layout(record.after) if record else None,
        since=answers.instant(record.since) if record else None,
        until=answers.instant(record.until) if record else None,
        steps=tuple(_list_steps(turn.step, record)) if record else (),
    )


def name_layout(layout: NodeLayout) -> str | None:
    """What is offered, in the words of people: parts of a GPU by their size, the largest first."""
    found = sorted((name, count) for name, count in (layout.offers or {}).items() if count)
    return ", ".join(f"{count} × {_name_part(name)}" for name, count in reversed(found)) or None


def _name_part(resource: str) -> str:
    if resource.startswith(names.MIG_PREFIX):
        return resource.removeprefix(names.MIG_PREFIX)
    return "whole GPU" if resource == names.GPU else "share of a GPU"


def _list_steps(step: RepartitionStep, record: RepartitionRecord) -> Iterator[ChangeStep]:
    if step in _WAY:
        at = _WAY.index(step)
        for place, each in enumerate(_WAY):
            yield ChangeStep(name=str(each), state="done" if place < at else "now" if place == at else "ahead")
        return
    for each in _WAY[: 4 if record.is_labelled else 3]:
        yield ChangeStep(name=str(each), state="done")
    is_over = step is RepartitionStep.Failed
    back: StepState = "failed" if record.is_stuck else "done" if is_over else "now"
    yield ChangeStep(name=str(RepartitionStep.RollingBack), state=back)
    last: StepState = "done" if is_over and not record.is_stuck else "ahead"
    yield ChangeStep(name=str(RepartitionStep.Uncordoning), state=last)


# ---- policies --------------------------------------------------------------------------------------------------------


def _tell_rule(policy: SharingPolicy, standing: PolicyStanding | None) -> SharingRule:
    counts = standing.counts if standing else None
    return SharingRule(
        name=policy.name, strategy=policy.strategy, mode=policy.mode.value, enforces=policy.enforces,
        pods=counts.applied if counts else None, audited=counts.audited if counts else None,
        reverted=standing.reverted if standing else None, trouble=_find_trouble(policy, standing),
    )


def _find_trouble(policy: SharingPolicy, standing: PolicyStanding | None) -> str | None:
    if policy.invalid:
        return policy.invalid[0]
    if standing is not None and standing.ready[0] == "False":
        return standing.ready[2]
    return standing.degraded[2] if standing is not None and standing.degraded[0] == "True" else None


# ---- what is stranded, and which node could be emptied ---------------------------------------------------------------


def _tell_room(packed: ConsolidationCycle) -> RoomLeft | None:
    room = packed.room
    if room is None:
        return None
    worst = sorted(room.stranded.items(), key=lambda each: (-each[1], each[0]))[:_MOST_STRANDED]
    causes = sorted(room.free_by_cause.items(), key=lambda each: -each[1])
    free = room.gpus - room.allocated_gpus
    return RoomLeft(
        as_of=answers.instant(packed.planned_at), free=round(free, 3),
        stranded=None if room.fragmented is None else round(room.fragmented * free, 3),
        notes=room.notes,
        causes=tuple(
            StrandedCause(cause=str(cause), gpus=round(count, 2), words=CAUSES[str(cause)])
            for cause, count in causes if round(count, 2)
        ),
        nodes=tuple(StrandedNode(node=node, gpus=round(count, 2)) for node, count in worst if round(count, 2)),
    )


def _plan_changes(changes: tuple[LayoutChange, ...]) -> Iterator[NodePlan]:
    for each in changes:
        step = next((step.name for step in each.steps if step.state in ("now", "failed")), each.phase)
        yield NodePlan(node=each.node, what="newLayout", words="new layout", because=step.lower())


def _plan_moves(moved: DefragCycle | None) -> Iterator[NodePlan]:
    """The move that runs, on both its nodes; or the one that would let somebody in."""
    record, choice = (moved.move, moved.choice) if moved else (None, None)
    if moved is not None and record is not None:
        yield NodePlan(
            node=moved.source, what="podMoves", words="a pod moves",
            because=f"{record.moved} to {record.target}, so that {record.waits} fits",
        )
        because = f"for {record.moved}, which leaves {moved.source}"
        yield NodePlan(node=record.target, what="placeKept", words="keeps a place", because=because)
    elif choice is not None and choice.moved is not None and choice.waits is not None:
        who, goes = (f"{pod.namespace}/{pod.name}" for pod in (choice.waits, choice.moved))
        because = f"{who} would fit, if {goes} went to {choice.target}"
        yield NodePlan(node=choice.source, what="moveWouldHelp", words="one move would help", because=because)


def _plan_emptying(packed: ConsolidationCycle | None, changing: set[str]) -> Iterator[NodePlan]:
    """Of a node that gets another layout, or from which somebody is moved, that is said, and nothing else."""
    found = packed.plan if packed else None
    chosen, staying = (found.chosen, found.staying) if found else (None, ())
    if chosen is not None and chosen.node not in changing:
        onto = sorted({node for _, node in chosen.moves})
        more = f" and {units.many(len(onto) - 2, 'other')}" if len(onto) > 2 else ""
        because = f"{units.many(len(chosen.moves), 'pod')} would fit on {', '.join(onto[:2])}{more}"
        yield NodePlan(node=chosen.node, what="canBeEmptied", words="can be emptied", because=because)
    for each in staying:
        if each.node not in changing and str(each.reason) in _STAYS:
            yield NodePlan(node=each.node, what="stays", words="stays", because=each.because)
