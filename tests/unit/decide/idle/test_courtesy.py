"""The courtesy ladder: why an idle workload is left alone, and the order of notice, wait and pause."""

from typing import Any

import msgspec
import pytest
from tests import builders
from tests.builders import NOW, World, busy, idle, pending_marks

from fallow import names
from fallow.decide.idle import plan
from fallow.model import cluster
from fallow.model.cluster import Trouble
from fallow.model.decision import Alert, Detail, Mark, Memory, Outcome, Pause, Plan, Reason, Status, Warn
from fallow.model.long_memory import Freeze
from fallow.model.policies import idle as policy
from fallow.model.policies.idle import ActionType, Notice
from fallow.model.units import DAY, HOUR, MINUTE, rfc3339

POLITE = builders.rule(notice=builders.notice(grace=5 * MINUTE))


def make(world: World, rule: policy.Rule = POLITE, memory: Memory | None = None, **said: Any) -> Plan:
    return plan.make_plan(world.snapshot(), builders.mandate(rule, **said), memory or Memory(), world.now)


def words(made: Plan) -> list[str]:
    return [type(each).__name__ for each in made.decisions if not isinstance(each, Alert)]


SKIPS = {
    "scaled-to-0": ({"body": {"spec": {"replicas": 0}}}, "AlreadyPaused"),
    "notebook-stopped": ({"kind": "Notebook", "annotations": {names.NOTEBOOK_STOPPED: "x"}}, "AlreadyPaused"),
    "finished": (
        {"kind": "Job", "body": {"status": {"conditions": [{"type": "Complete", "status": "True"}]}}}, "AlreadyPaused"
    ),
    "bare-pod": ({"kind": "Pod", "trouble": Trouble.BarePod}, "ReportOnly:BarePod"),
    "owner-forbidden": ({"trouble": Trouble.OwnerForbidden}, "ReportOnly:OwnerForbidden"),
    "volumes-would-go": (
        {"kind": "StatefulSet", "body": {"spec": {
            "replicas": 1, "volumeClaimTemplates": [{}],
            "persistentVolumeClaimRetentionPolicy": {"whenScaled": "Delete"}}}},
        "ReportOnly:PvcDeletedOnScale"),
    "fight": ({"annotations": {names.FIGHT_HOLD_UNTIL: rfc3339(NOW + HOUR)}}, "FightHold"),
    "fight-over": ({"annotations": {names.FIGHT_HOLD_UNTIL: rfc3339(NOW - HOUR)}}, None),
    "fight-unreadable": ({"annotations": {names.FIGHT_HOLD_UNTIL: "x"}}, None),
    "fight-for-ever": ({"annotations": {names.FIGHT_HOLD_UNTIL: "2099-01-01T00:00:00Z"}}, None),
    "fight-for-a-day": ({"annotations": {names.FIGHT_HOLD_UNTIL: rfc3339(NOW + DAY)}}, "FightHold"),
    "resumed-in-2099": ({"annotations": {names.RESUMED_AT: "2099-01-01T00:00:00Z"}}, None),
    "resumed-by-a-fast-clock": ({"annotations": {names.RESUMED_AT: rfc3339(NOW + 10 * MINUTE)}}, "Immune"),
    "just-resumed": ({"annotations": {names.RESUMED_AT: rfc3339(NOW - 59 * MINUTE)}}, "Immune"),
    "resumed-long-ago": ({"annotations": {names.RESUMED_AT: rfc3339(NOW - HOUR)}}, None),
    "nothing": ({}, None),
}


@pytest.mark.parametrize(("said", "label"), SKIPS.values(), ids=SKIPS.keys())
def test_an_idle_workload_is_left_alone_for_a_reason(said: dict[str, Any], label: str | None) -> None:
    world = World()
    world.workload(**said)
    finding = make(world, builders.rule()).findings[0]
    assert finding.skip_label == label
    assert bool(finding.skip_because) is (label is not None)


def test_the_first_reason_in_the_order_of_the_ladder_is_given() -> None:
    """Peeled off one by one: each reason hides those below it."""
    world = World()
    world.namespace("ml", annotations={names.OPT_OUT: "ignore"})
    annotations = {
        names.ACK_UNTIL: rfc3339(NOW + HOUR), names.ACK_AT: rfc3339(NOW), names.FIGHT_HOLD_UNTIL: rfc3339(NOW + HOUR),
        names.RESUMED_AT: rfc3339(NOW),
    }
    slots = (policy.Slot(frozenset({0}), 0, 60, "UTC"),)
    here = builders.pattern("ml")
    scope = {"letters": frozenset("s"), "protected_namespaces": here, "exclude_namespaces": here}
    seen = []

    def look(rule: policy.Rule, frozen: Freeze | None = None, confirm: int = 2) -> None:
        world.workloads.clear()
        world.pods.clear()
        world.gpus.clear()
        world.workload(annotations=dict(annotations), body={"spec": {"replicas": replicas}})
        mandate = builders.mandate(
            rule, scope=policy.Scope(**scope), brakes=policy.Brakes(confirm_cycles=confirm, max_actions_per_cycle=0)
        )
        seen.append(plan.make_plan(world.snapshot(freeze=frozen), mandate, Memory(), NOW).findings[0].skip)

    replicas = 0
    report = builders.rule(action=ActionType.report, active_slots=slots)
    pausing = builders.rule(active_slots=slots)
    look(report)
    replicas = 1
    look(report)
    scope["letters"] = frozenset("d")
    look(report)
    del scope["protected_namespaces"]
    look(report)
    del scope["exclude_namespaces"]
    look(report)
    look(pausing)
    world.namespace("ml")
    look(pausing)
    del annotations[names.ACK_UNTIL]
    look(pausing)
    del annotations[names.FIGHT_HOLD_UNTIL]
    look(pausing)
    del annotations[names.RESUMED_AT]
    look(pausing)
    look(builders.rule(), frozen=Freeze(NOW + HOUR, "by hand"))
    look(builders.rule())
    look(builders.rule(), confirm=1)
    assert seen == [
        Reason.AlreadyPaused, Reason.KindDisabled, Reason.ProtectedNamespace, Reason.Excluded, Reason.ReportOnly,
        Reason.OptedOut, Reason.Acknowledged, Reason.FightHold, Reason.Immune, Reason.OutsideSchedule, Reason.Frozen,
        Reason.Confirming, Reason.Capped,
    ]


# ---- the notice ----------------------------------------------------------------------------------------------------


def test_first_the_owner_is_told() -> None:
    world = World()
    world.workload(gpus=[idle(for_=HOUR)] * 2)
    made = make(world)
    (warn,) = [each for each in made.decisions if isinstance(each, Warn)]
    assert words(made) == ["Warn"]
    assert (warn.idle_since, warn.pauses_at, warn.channels) == (NOW - HOUR, NOW + 5 * MINUTE, (builders.SLACK,))
    assert len(warn.episode) == 12
    assert (warn.finding.next_action, warn.finding.gpus) == ("notice", 2)


NOTICES = {
    "fresh": (pending_marks(NOW - MINUTE), HOUR, [], Reason.InNotice),
    "grace-over": (pending_marks(NOW - 5 * MINUTE), HOUR, ["Pause"], None),
    "alias": ({names.PENDING_SINCE_ALIAS: rfc3339(NOW - 6 * MINUTE)}, HOUR, ["Pause"], None),
    "older-than-the-idleness": (pending_marks(NOW - 7 * 24 * HOUR), HOUR, ["Warn"], None),
    "unreadable": ({names.PENDING_SINCE: "yesterday"}, HOUR, ["Warn"], None),
    "from-the-future": (pending_marks(NOW + HOUR), HOUR, ["Warn"], None),
}


@pytest.mark.accepts("idle", 19)
@pytest.mark.parametrize(("marks", "idle_for", "does", "skip"), NOTICES.values(), ids=NOTICES.keys())
def test_a_notice_counts_only_for_the_idleness_it_was_given_for(
    marks: dict[str, str], idle_for: float, does: list[str], skip: Reason | None
) -> None:
    world = World()
    world.workload(gpus=[idle(for_=idle_for)], annotations=marks)
    made = make(world)
    assert (words(made), made.findings[0].skip) == (does, skip)


def test_during_the_notice_the_next_action_is_told() -> None:
    world = World()
    world.workload(gpus=[idle(for_=HOUR)], annotations=pending_marks(NOW - MINUTE))
    finding = make(world).findings[0]
    assert (finding.next_action, finding.next_at) == ("pause", NOW + 4 * MINUTE)


@pytest.mark.parametrize(("gpu", "removes"), [(busy(), True), (idle(age=HOUR), False)], ids=["active", "unknown"])
def test_activity_takes_the_notice_back_and_not_knowing_keeps_it(gpu: Any, removes: bool) -> None:
    world = World()
    world.workload(gpus=[gpu], annotations=pending_marks(NOW - HOUR))
    made = make(world)
    marks = [each for each in made.decisions if isinstance(each, Mark)]
    assert words(made) == ["Mark"] * removes
    assert [mark.changes for mark in marks] == [
        dict.fromkeys((names.IDLE_SINCE, names.IDLE_EPISODE, names.PENDING_SINCE))
    ] * removes


@pytest.mark.parametrize("said", [
    {names.OPT_OUT: "ignore"}, {names.RESUMED_AT: rfc3339(NOW)},
    {names.ACK_UNTIL: rfc3339(NOW + HOUR), names.ACK_AT: rfc3339(NOW)},
], ids=["opted-out", "immune", "acknowledged"])
def test_who_is_left_alone_is_told_again_before_anything_happens(said: dict[str, str]) -> None:
    world = World()
    world.workload(gpus=[idle(for_=3 * HOUR)], annotations={**pending_marks(NOW - HOUR), **said})
    (mark,) = make(world).decisions
    assert isinstance(mark, Mark)
    assert set(mark.changes) == set(pending_marks(NOW))


@pytest.mark.parametrize(("waited", "does"), [(MINUTE, []), (6 * MINUTE, ["Warn"])], ids=["in-grace", "after"])
def test_where_the_look_back_fails_a_running_notice_stands_and_is_then_given_anew(
    waited: float, does: list[str]
) -> None:
    """The window (4 min) does not reach back to the notice, so the evidence cannot show that it still counts."""
    world = World()
    world.workload(gpus=[idle(for_=HOUR, looked_back=False)], annotations=pending_marks(NOW - waited))
    rule = builders.rule(notice=builders.notice(5 * MINUTE), gone_idle=30.0, never_used=30.0)
    made = plan.make_plan(world.snapshot(30.0), builders.mandate(rule), Memory(), NOW)
    assert words(made) == does


def test_a_grace_of_0_tells_and_pauses_in_one_cycle_in_this_order() -> None:
    world = World()
    world.workload()
    made = make(world, builders.rule(notice=builders.notice(grace=0.0)))
    assert words(made) == ["Warn", "Pause"]


CHANNELS = {
    "no-channel-not-required": (builders.rule(), ["Pause"], None),
    "no-channel-required": (builders.rule(notice=Notice(required=True)), [], "ReportOnly:NoChannel"),
    "notify-no-channel": (builders.rule(action=ActionType.notify), [], "ReportOnly:NoChannel"),
    "notify": (builders.rule(notice=builders.notice(), action=ActionType.notify), ["Warn"], None),
    "report": (builders.rule(notice=builders.notice(), action=ActionType.report), [], "ReportOnly:Report"),
}


@pytest.mark.parametrize(("rule", "does", "label"), CHANNELS.values(), ids=CHANNELS.keys())
def test_the_rule_says_how_far_to_go(rule: policy.Rule, does: list[str], label: str | None) -> None:
    world = World()
    world.workload()
    made = make(world, rule)
    assert (words(made), made.findings[0].skip_label) == (does, label)


def test_a_rule_that_only_notifies_says_so_once() -> None:
    world = World()
    world.workload(gpus=[idle(for_=HOUR)], annotations=pending_marks(NOW - 30 * MINUTE))
    made = make(world, builders.rule(notice=builders.notice(), action=ActionType.notify))
    assert (words(made), made.findings[0].skip_label) == ([], "ReportOnly:NotifyOnly")


def test_a_notice_of_a_rule_that_only_notifies_names_no_pause() -> None:
    world = World()
    world.workload()
    made = make(world, builders.rule(notice=builders.notice(), action=ActionType.notify))
    assert [each.pauses_at for each in made.decisions if isinstance(each, Warn)] == [None]


# ---- once per episode ----------------------------------------------------------------------------------------------


def follow(world: World, memory: Memory, rule: policy.Rule, *, acting: bool = True) -> tuple[Plan, Memory]:
    """One cycle in which everything works."""
    mandate = builders.mandate(rule, acting=acting)
    made = plan.make_plan(world.snapshot(), mandate, memory, world.now)
    status = Status.done if acting else Status.dry_run
    return made, plan.remember(made, [Outcome(each, status, world.now, "") for each in made.decisions])


@pytest.mark.parametrize("looked_back", [True, False], ids=["exact", "at-least"])
def test_idle_is_announced_once_per_episode(looked_back: bool) -> None:
    world, memory, alerts = World(), Memory(), []
    for after, last_busy in ((0, 120), (3, 120), (6, 120), (40, -30), (100, -30), (103, -30)):
        world.now = NOW + after * MINUTE
        world.workloads.clear(), world.pods.clear(), world.gpus.clear()
        world.workload(gpus=[builders.Gpu(last_busy=NOW - last_busy * MINUTE, looked_back=looked_back)])
        made, memory = follow(world, memory, builders.rule(action=ActionType.report))
        alerts.append([each.event for each in made.decisions if isinstance(each, Alert)])
    assert alerts == [["IdleDetected"], [], [], [], ["IdleDetected"], []]


def test_a_dry_run_goes_the_same_way_and_remembers_what_it_would_have_written() -> None:
    world, memory, seen = World(), Memory(), []
    for after in (0, 3, 6, 9):
        world.now = NOW + after * MINUTE
        world.workloads.clear(), world.pods.clear(), world.gpus.clear()
        world.workload(gpus=[idle(for_=HOUR)])
        made, memory = follow(world, memory, POLITE, acting=False)
        seen.append((words(made), made.findings[0].skip))
    assert seen == [(["Warn"], None), ([], Reason.InNotice), (["Pause"], None), ([], Reason.AlreadyPaused)]
    world.workloads.clear(), world.pods.clear(), world.gpus.clear()
    world.workload(gpus=[builders.Gpu(last_busy=world.now)])
    made, memory = follow(world, memory, POLITE, acting=False)
    assert (memory.would_be_paused, memory.would_be_pending, memory.announced) == ({}, {}, {})


def test_what_the_api_server_will_not_take_is_not_tried_again() -> None:
    world = World()
    world.workload()
    mandate = builders.mandate()
    made = plan.make_plan(world.snapshot(), mandate, Memory(), NOW)
    why, code = "unknown field spec.suspend", Detail.UnsupportedField
    refusals = [Outcome(each, Status.refused, NOW, why, code=code) for each in made.decisions]
    memory = plan.remember(made, refusals)
    finding = plan.make_plan(world.snapshot(), mandate, memory, NOW).findings[0]
    assert (finding.skip_label, finding.skip_because) == ("ReportOnly:UnsupportedField", "unknown field spec.suspend")


@pytest.mark.parametrize(
    ("listed", "label"),
    [(["Trainer"], None), (["Trainer.acme.io"], None), ([], "ReportOnly:ManagedByUnknownOwner")],
    ids=["kind", "with-group", "another-rule"],
)
def test_only_the_deciding_rule_looks_past_an_owner(listed: list[str], label: str | None) -> None:
    world, rule = World(), builders.rule()
    world.workload(passed=(cluster.Owner("acme.io", "v1", "Trainer", "t", "u-t"),))
    action = msgspec.structs.replace(rule.action, look_past=frozenset(listed))
    made = make(world, msgspec.structs.replace(rule, action=action))
    assert (words(made), made.findings[0].skip_label) == (["Pause"] if label is None else [], label)


def test_the_reason_of_a_pause_is_short_and_says_how_long() -> None:
    world = World()
    world.workload(gpus=[idle(for_=47 * MINUTE)] * 4)
    (pause,) = [each for each in make(world, builders.rule(name="p" * 300)).decisions if isinstance(each, Pause)]
    assert pause.reason_text.startswith("4 GPUs idle for 47m (ppp")
    assert len(pause.reason_text) == 200
    assert pause.pods == frozenset({world.pods[0].uid})




def test_every_trouble_of_a_workload_that_can_be_idle_is_a_word_after_report_only() -> None:
    judged = set(cluster.Trouble) - {cluster.Trouble.OwnerLookupFailed}  # never idle: we cannot tell
    assert {str(trouble) for trouble in judged} <= {str(detail) for detail in Detail}
