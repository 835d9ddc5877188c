"""Acks and opt-outs: where they are heeded, how long they hold, and what is written about them."""

from typing import Any

import pytest
from tests import builders
from tests.builders import NOW, World

from fallow import names
from fallow.decide.idle import plan
from fallow.model import cluster, decision, marks
from fallow.model.decision import Alert, Mark, Memory, Pause, Plan, Reason
from fallow.model.policies import idle
from fallow.model.units import DAY, HOUR, MINUTE, rfc3339

LATER, EARLIER = rfc3339(NOW + HOUR), rfc3339(NOW - HOUR)
STAMP = {names.ACK_AT: rfc3339(NOW - 2 * HOUR)}


def make(world: World, rule: idle.Rule | None = None, memory: Memory | None = None) -> Plan:
    return plan.make_plan(world.snapshot(), builders.mandate(rule), memory or Memory(), NOW)


def only(made: Plan, kind: type[Any]) -> list[Any]:
    return [each for each in made.decisions if isinstance(each, kind)]


ACKS = {
    "ours": ({names.ACK_UNTIL: LATER}, True),
    "alias": ({names.ACK_UNTIL_ALIAS: LATER}, True),
    "later-of-two": ({names.ACK_UNTIL: EARLIER, names.ACK_UNTIL_ALIAS: LATER}, True),
    "one-of-two-unreadable": ({names.ACK_UNTIL: "tomorrow", names.ACK_UNTIL_ALIAS: LATER}, True),
    "with-an-offset": ({names.ACK_UNTIL: "2026-11-15T13:30:00+01:00"}, True),
    "ended": ({names.ACK_UNTIL: EARLIER}, False),
    "ends-now": ({names.ACK_UNTIL: rfc3339(NOW)}, False),
    "unreadable": ({names.ACK_UNTIL: "tomorrow"}, False),
    "no-zone": ({names.ACK_UNTIL: "2026-11-15T13:30:00"}, False),
    "longer-than-allowed": ({names.ACK_UNTIL: rfc3339(NOW + 30 * DAY), names.ACK_AT: rfc3339(NOW - 8 * DAY)}, False),
    "stamped-in-the-future": ({names.ACK_UNTIL: rfc3339(NOW + 30 * DAY), names.ACK_AT: rfc3339(NOW + 9 * DAY)}, True),
}


@pytest.mark.parametrize(("said", "holds"), ACKS.values(), ids=ACKS.keys())
def test_an_ack_holds_until_it_ends_or_was_given_too_long_ago(said: dict[str, str], holds: bool) -> None:
    world = World()
    world.workload(annotations={**STAMP, **said})
    made = make(world)
    assert (made.findings[0].skip is Reason.Acknowledged) is holds
    assert not (holds and only(made, Pause))


PLACES = {
    "namespace": True, "workload": True, "marks": True, "pod": True, "pod-copied-from-workload-that-lost-it": False,
    "pod-copied-from-a-link": False,
}


@pytest.mark.accepts("idle", 33)
@pytest.mark.parametrize(("place", "holds"), PLACES.items(), ids=PLACES.keys())
@pytest.mark.parametrize(("key", "value", "skip"), [
    (names.ACK_UNTIL, LATER, Reason.Acknowledged), (names.OPT_OUT, "ignore", Reason.OptedOut),
    (names.OPT_OUT_UNTIL, LATER, Reason.OptedOut),
], ids=["ack", "opt-out", "opt-out-until"])
def test_words_are_heeded_where_people_put_them_and_not_where_controllers_copied_them(
    place: str, holds: bool, key: str, value: str, skip: Reason
) -> None:
    world, said = World(), {key: value}
    child = cluster.Ref("apps", "v1", "Deployment", "ml", "child", "uid-child")
    if place == "namespace":
        world.namespace("ml", annotations=said)
    world.workload(
        annotations=said if place == "workload" else {},
        marks=said if place == "marks" else {} if place != "workload" else None,
        marks_on=child if place == "marks" else None,
        pod={"annotations": said} if place.startswith("pod") else None,
        chain_annotations=(said,) if "copied" in place else (),
    )
    assert (make(world).findings[0].skip is skip) is holds


OPT_OUTS = {
    "ignore": ({names.OPT_OUT: "ignore"}, True), "other-word": ({names.OPT_OUT: "report"}, False),
    "until": ({names.OPT_OUT_UNTIL: LATER}, True), "until-past": ({names.OPT_OUT_UNTIL: EARLIER}, False),
    "until-unreadable": ({names.OPT_OUT_UNTIL: "soon"}, True),
    "downscaler": ({names.DOWNSCALER_EXCLUDE: "true"}, True),
    "downscaler-false": ({names.DOWNSCALER_EXCLUDE: "false"}, False),
    "downscaler-until": ({names.DOWNSCALER_EXCLUDE_UNTIL: LATER}, True),
    "until-the-end-of-time": ({names.OPT_OUT_UNTIL: "9999-12-31T23:59:59-12:00"}, True),
    "downscaler-date": ({names.DOWNSCALER_EXCLUDE_UNTIL: "2026-12-01"}, True),
    "karpenter": ({names.KARPENTER_DO_NOT_DISRUPT: "true"}, True),
}


@pytest.mark.parametrize(("said", "holds"), OPT_OUTS.values(), ids=OPT_OUTS.keys())
def test_opt_outs_of_ours_and_of_others_are_heeded(said: dict[str, str], holds: bool) -> None:
    world = World()
    world.workload(annotations=said)
    assert (make(world).findings[0].skip is Reason.OptedOut) is holds


def test_a_label_opts_out_too() -> None:
    world = World()
    world.workload("ml/a", labels={names.OPT_OUT: "ignore"})
    world.workload("ml/b", pod={"labels": {names.OPT_OUT: "ignore"}})
    world.workload("web/c")
    world.namespace("web", labels={names.OPT_OUT: "ignore"})
    made = make(world)
    assert [made.findings[index].skip for index in range(3)] == [Reason.OptedOut] * 3


def test_a_rule_may_heed_the_namespace_only() -> None:
    world = World()
    world.namespace("web", annotations={names.OPT_OUT: "ignore"})
    world.workload("ml/a", annotations={names.OPT_OUT: "ignore"})
    world.workload("web/b")
    made = make(world, builders.rule(consent=idle.Consent(allow_opt_out=False)))
    assert [made.findings[index].skip for index in range(2)] == [None, Reason.OptedOut]


# ---- bookkeeping ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "gpu", [builders.idle(), builders.busy(), builders.idle(age=HOUR)], ids=["idle", "active", "unknown"]
)
def test_an_ack_made_by_hand_is_stamped_and_voids_the_notice_before_it(gpu: Any) -> None:
    world = World()
    world.workload(
        gpus=[gpu], annotations={names.ACK_UNTIL: LATER, names.ACK_BY: "ada", **builders.pending_marks(NOW - MINUTE)}
    )
    (mark,) = only(make(world), Mark)
    gone = {names.PENDING_SINCE: None, names.IDLE_SINCE: None, names.IDLE_EPISODE: None}
    assert mark.changes == {names.ACK_AT: rfc3339(NOW), **gone}
    assert (mark.event, mark.resource_version, mark.on) == (names.Event.ACKNOWLEDGED, "7", world.workloads[0].ref)


@pytest.mark.parametrize("stamp", [rfc3339(NOW + 9 * DAY), "just now"], ids=["in-the-future", "unreadable"])
def test_a_stamp_that_would_stretch_the_longest_ack_is_replaced(stamp: str) -> None:
    world = World()
    world.workload(annotations={names.ACK_UNTIL: rfc3339(NOW + 30 * DAY), names.ACK_AT: stamp})
    made = make(world)
    assert [mark.changes for mark in only(made, Mark)] == [{names.ACK_AT: rfc3339(NOW)}]
    assert rfc3339(NOW + 7 * DAY) in made.findings[0].skip_because


def test_an_ack_that_is_stamped_is_left_as_it_is() -> None:
    world = World()
    world.workload(annotations={names.ACK_UNTIL: LATER, **STAMP})
    assert make(world).decisions == ()


@pytest.mark.parametrize("gpu", [builders.idle(), builders.busy()], ids=["idle", "active"])
def test_an_ack_that_ended_is_taken_away_once_and_nothing_else_happens_in_that_cycle(gpu: Any) -> None:
    world = World()
    acked = {names.ACK_UNTIL: EARLIER, names.ACK_UNTIL_ALIAS: EARLIER, names.ACK_BY: "ada"}
    said = {**acked, **STAMP, **builders.pending_marks(NOW - 5 * HOUR)}
    world.workload(gpus=[gpu], annotations=said)
    made = make(world, builders.rule(notice=builders.notice()))
    (mark,) = [each for each in made.decisions if not isinstance(each, Alert)]
    assert mark.changes == dict.fromkeys(said)
    assert (mark.event, mark.resource_version) == (names.Event.ACK_EXPIRED, "7")


def test_an_ack_by_hand_where_marks_would_restart_pods_is_stamped_elsewhere_and_stays_when_it_ends() -> None:
    child = cluster.Ref("apps", "v1", "Deployment", "ml", "child", "uid-child")
    world = World()
    world.workload("ml/new", "InferenceService", annotations={names.ACK_UNTIL: LATER}, marks={}, marks_on=child)
    world.workload("ml/old", "InferenceService", annotations={names.ACK_UNTIL: EARLIER}, marks=STAMP, marks_on=child)
    made = make(world)
    (mark,) = only(made, Mark)
    assert (mark.on, mark.resource_version, mark.changes) == (child, None, {names.ACK_AT: rfc3339(NOW)})
    expired = [each for each in only(made, Alert) if each.event == names.Event.ACK_EXPIRED]
    assert [each.workload.ref.name for each in expired] == ["old"]
    assert made.findings[0].skip is Reason.Acknowledged
    outcomes = [decision.Outcome(each, decision.Status.done, NOW, "") for each in made.decisions]
    memory = plan.remember(made, outcomes)
    again = plan.make_plan(world.snapshot(), builders.mandate(), memory, NOW + MINUTE)
    assert [each for each in only(again, Alert) if each.event == names.Event.ACK_EXPIRED] == []


def test_an_unreadable_ack_is_said_once_per_value() -> None:
    world = World()
    world.workload(annotations={names.ACK_UNTIL: "tomorrow"})
    mandate = builders.mandate(builders.rule(action=idle.ActionType.notify))
    made = plan.make_plan(world.snapshot(), mandate, Memory(), NOW)
    (alert,) = made.decisions
    assert (alert.event, alert.workload) == (names.Event.INVALID_ACK, world.workloads[0])
    assert "'tomorrow'" in alert.because
    memory = plan.remember(made, [decision.Outcome(alert, decision.Status.done, NOW, "")])
    assert plan.make_plan(world.snapshot(), mandate, memory, NOW).decisions == ()
    failed = plan.remember(made, [decision.Outcome(alert, decision.Status.failed, NOW, "")])
    assert len(plan.make_plan(world.snapshot(), mandate, failed, NOW).decisions) == 1
    world.workloads.clear()
    world.workload(annotations={names.ACK_UNTIL: "next week"})
    assert len(plan.make_plan(world.snapshot(), mandate, memory, NOW).decisions) == 1


SOURCES = {
    "the workload's, later than its marks'": ({names.ACK_UNTIL: LATER}, {names.ACK_UNTIL: EARLIER}, {}),
    "its marks', later than the workload's": ({names.ACK_UNTIL: EARLIER}, {names.ACK_UNTIL: LATER}, {}),
    "the namespace's, later than its own": (
        {names.ACK_UNTIL: LATER}, {}, {names.ACK_UNTIL: rfc3339(NOW + 2 * HOUR), names.ACK_BY: "ops"},
    ),
    "the namespace's, where its own is over": ({names.ACK_UNTIL: EARLIER}, {}, {names.ACK_UNTIL: LATER}),
    "its own, where one cannot be read": ({names.ACK_UNTIL: "tomorrow", names.ACK_UNTIL_ALIAS: LATER}, {}, {}),
    "none": ({names.ACK_UNTIL: EARLIER}, {names.ACK_UNTIL: "soon"}, {names.ACK_UNTIL_ALIAS: EARLIER}),
}


@pytest.mark.parametrize(("own", "carried", "space"), SOURCES.values(), ids=SOURCES.keys())
def test_what_is_shown_is_the_ack_that_is_heeded(
    own: dict[str, str], carried: dict[str, str], space: dict[str, str]
) -> None:
    world = World()
    world.namespace("ml", annotations=space)
    world.workload(annotations={**STAMP, **own}, marks=carried)
    finding, workload = make(world).findings[0], world.workloads[0]
    shown = marks.find_ack(workload, world.namespaces[workload.ref.namespace], finding.rule.consent.max_ack, NOW)
    assert (shown is None) == (finding.skip is not Reason.Acknowledged)
    assert shown is None or finding.skip_because.endswith(f"until {rfc3339(shown.until)}")
