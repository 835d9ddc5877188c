"""What the page of nodes says of sharing: steps of a change, policies, what is stranded, who could be emptied."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.decide.packing.test_moving import stuck, there

from fallow import names
from fallow.decide import packing
from fallow.decide.packing import ClusterRoom, ConsolidationPlan, consolidate, fragments
from fallow.doors.answers import layouts
from fallow.model.partition import NodeLayout, NodeTurn, RepartitionReason, RepartitionRecord, RepartitionStep
from fallow.model.policies.sharing import SharingMode, SharingPolicy, Strategy
from fallow.model.sharing import PolicyCounts, PolicyStanding
from fallow.model.units import parse_instant
from fallow.stories.consolidation import ConsolidationCycle
from fallow.stories.defrag import DefragCycle
from fallow.stories.share_policies import PoliciesCycle
from fallow.stories.sharing import SharingCycle

NOW = parse_instant("2026-11-17T14:47:00Z")
CUT = NodeLayout(offers={f"{names.MIG_PREFIX}1g.10gb": 16, f"{names.MIG_PREFIX}3g.40gb": 8})
FINE = ("True", "Ready", "it is well"), ("False", "AsExpected", "")


def turn(step: RepartitionStep, *, has_record: bool = True, **more: Any) -> NodeTurn:
    record = RepartitionRecord(
        config="cut", uid="u", before=NodeLayout(), after=CUT, step=step, since=NOW, until=NOW + 600, **more
    )
    return NodeTurn(
        config="cut", node="mig-02", step=step, reason=RepartitionReason.Running, because="it waits for 4 pods",
        record=record if has_record else None,
    )


def show(
    *, turns: tuple[NodeTurn, ...] = (), policies: PoliciesCycle | None = None, packed: ConsolidationCycle | None = None
) -> layouts.SharingPage:
    return layouts.show(SharingCycle(turns=turns), policies, packed)


@pytest.mark.parametrize(("step", "done", "ahead"), [
    (RepartitionStep.Cordoning, 1, 4), (RepartitionStep.Draining, 2, 3), (RepartitionStep.Verifying, 4, 1),
], ids=str)
def test_a_change_is_told_step_by_step_with_what_it_waits_for(step: RepartitionStep, done: int, ahead: int) -> None:
    change, = show(turns=(turn(step),)).changes
    states = [each.state for each in change.steps]
    assert states == ["done"] * done + ["now"] + ["ahead"] * ahead
    assert change.steps[done].name == step
    assert (change.phase, change.layout) == ("Configuring", "8 × 3g.40gb, 16 × 1g.10gb")
    assert (change.because, change.until) == ("It waits for 4 pods", "2026-11-17T14:57:00Z")


@pytest.mark.parametrize(("step", "cordoned", "back", "last"), [
    (RepartitionStep.RollingBack, True, "now", "ahead"), (RepartitionStep.Failed, False, "done", "done"),
    (RepartitionStep.Failed, True, "failed", "ahead"),
], ids=["on-its-way", "back", "stuck"])
def test_a_change_that_failed_shows_how_far_the_way_back_came(
    step: RepartitionStep, cordoned: bool, back: str, last: str
) -> None:
    change, = show(turns=(turn(step, cordoned_by_us=cordoned, is_labelled=True),)).changes
    assert [(each.name, each.state) for each in change.steps[-2:]] == [("RollingBack", back), ("Uncordoning", last)]
    assert [each.name for each in change.steps[:-2]] == ["Planned", "Cordoning", "Draining", "Labelling"]


def test_a_change_that_has_not_begun_has_no_steps_and_one_that_is_done_is_not_told() -> None:
    waits, done = turn(RepartitionStep.Planned, has_record=False), turn(RepartitionStep.Ready)
    page = show(turns=(waits, done))
    assert [(each.phase, each.steps, each.layout) for each in page.changes] == [("Pending", (), None)]
    assert [(each.node, each.what, each.because) for each in page.plans] == [("mig-02", "newLayout", "pending")]


@pytest.mark.parametrize(("mode", "standing", "told"), [
    (SharingMode.enforce, PolicyStanding(ready=FINE[0], degraded=FINE[1], counts=PolicyCounts(3, 1), reverted=1),
     (True, 3, 1, 1, None)),
    (SharingMode.audit, PolicyStanding(ready=FINE[0], degraded=FINE[1]), (False, None, None, None, None)),
    (SharingMode.enforce, PolicyStanding(ready=("False", "NoTargetNode", "no node offers one"), degraded=FINE[1]),
     (True, None, None, None, "no node offers one")),
    (SharingMode.enforce, PolicyStanding(ready=FINE[0], degraded=("True", "SliceMsIgnored", "slices are not heeded")),
     (True, None, None, None, "slices are not heeded")),
], ids=["in-force", "uncounted", "no-node", "degraded"])
def test_a_policy_says_what_it_did_and_what_it_would_do(
    mode: SharingMode, standing: PolicyStanding, told: tuple[Any, ...]
) -> None:
    policy = SharingPolicy(name="notebooks", strategy=Strategy.timeslicing, mode=mode)
    rule, = show(policies=PoliciesCycle(policies=(policy,), standings={"notebooks": standing})).policies
    assert (rule.enforces, rule.pods, rule.audited, rule.reverted, rule.trouble) == told


def test_what_is_stranded_is_told_with_its_causes_and_its_nodes() -> None:
    room = ClusterRoom(
        gpus=16, allocated_gpus=8.0, fragmented=0.25, stranded={"a": 0.5, "b": 1.5}, notes=("1 node left out",),
        free_by_cause={fragments.Cause.Satisfied: 6.0, fragments.Cause.LackGpu: 2.0, fragments.Cause.NoAccess: 0.0},
    )
    told = show(packed=ConsolidationCycle(room=room, planned_at=NOW)).room
    assert told is not None
    assert (told.free, told.stranded, told.as_of) == (8.0, 2.0, "2026-11-17T14:47:00Z")
    assert told.notes == ("1 node left out",)
    assert [(each.cause, each.gpus) for each in told.causes] == [("q3_satisfied", 6.0), ("q2_lack_gpu", 2.0)]
    assert [(each.node, each.gpus) for each in told.nodes] == [("b", 1.5), ("a", 0.5)]


def test_what_nobody_knows_is_not_zero() -> None:
    room = ClusterRoom(gpus=16, allocated_gpus=8.0, fragmented=None, free_by_cause={})
    told = show(packed=ConsolidationCycle(room=room)).room
    assert told is not None
    assert told.stranded is None
    blind = layouts.show(None, PoliciesCycle(failure="no rights"), ConsolidationCycle(failure="pods are not seen"))
    assert (blind.room, blind.unknown) == (None, ("no rights", "pods are not seen"))
    assert layouts.show(None, None, None).room is None


def test_a_node_that_could_be_emptied_says_where_its_pods_would_go_and_others_why_they_stay() -> None:
    plan = ConsolidationPlan(
        consolidate.EmptyNode("l4-06", "", (("a", "l4-05"), ("b", "l4-05"))),
        (consolidate.StayingNode("h100-04", consolidate.StayReason.Unmovable, "somebody keeps it"),
         consolidate.StayingNode("h100-01", consolidate.StayReason.Busy, "it is busy")), (),
    )
    plans = show(packed=ConsolidationCycle(plan=plan)).plans
    assert [(each.node, each.what, each.because) for each in plans] == [
        ("l4-06", "canBeEmptied", "2 pods would fit on l4-05"), ("h100-04", "stays", "somebody keeps it"),
    ]


def test_a_move_is_told_of_both_its_nodes_and_before_it_where_it_would_help() -> None:
    moved, waits = there("q", "a"), stuck("p")
    choice = packing.MoveChoice(moved, waits, "a", "b")
    stays = consolidate.StayingNode("a", consolidate.StayReason.Unmovable, "somebody keeps it")
    packed = ConsolidationCycle(plan=ConsolidationPlan(None, (stays,), ()))
    would = layouts.show(None, None, packed, DefragCycle(choice=choice)).plans
    assert [(each.node, each.what, each.because) for each in would] == [
        ("a", "moveWouldHelp", "ml/p would fit, if ml/q went to b"),
    ]
    begun = packing.begin_move(choice, 1, NOW)
    assert begun is not None
    runs = layouts.show(None, None, packed, DefragCycle(move=begun.record, source="a")).plans
    assert [(each.node, each.what, each.because) for each in runs] == [
        ("a", "podMoves", "ml/q to b, so that ml/p fits"), ("b", "placeKept", "for ml/q, which leaves a"),
    ]
    assert [each.what for each in layouts.show(None, None, packed, DefragCycle()).plans] == ["stays"]
