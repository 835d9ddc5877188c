"""Each decision alone: conflicts, refusals, the second look, a lost lease, dry runs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.act.carrying import MakeHands, Object, carry
from tests.unit.act.examples import EXAMPLES, NOW, companion_of, identified, make, pause_of, workload_of
from tests.unit.act.server import Seen, Server

from fallow import names
from fallow.act import execute
from fallow.act import hands as doing
from fallow.clients import errors
from fallow.model import cluster, decision, kinds
from fallow.model.decision import Status
from fallow.model.policies import idle


@pytest.mark.accepts("idle", 22, 36)
@pytest.mark.parametrize("how", ["changed", "recreated"])
@pytest.mark.parametrize("still_idle", [True, False], ids=["still-idle", "busy-now"])
async def test_a_conflict_is_looked_at_again_and_never_retried_blindly(
    server: Server, hands: doing.Hands, how: str, still_idle: bool
) -> None:
    thing = server.add(identified(EXAMPLES["deployment"]))
    looks = 0

    async def look_again(pauses: Any) -> dict[str, execute.SecondLook]:
        nonlocal looks
        looks += 1
        seen = workload_of(server.now(thing))
        if looks == 1:  # between this look and the patch somebody else is faster
            server.touch(thing, lambda found: found["metadata"].update(uid="u-9") if how == "recreated" else None)
            return {"u-1": execute.SecondLook(seen, pauses[0].finding)}
        return {"u-1": execute.SecondLook(seen, pauses[0].finding if still_idle else None, "it is busy now")}

    (outcome,) = await execute.carry_out([pause_of(workload_of(thing))], hands, look_again, NOW)
    assert looks == 2
    may = still_idle and how == "changed"  # another object of the same name is not the one that was decided on
    assert outcome.status is (Status.done if may else Status.overtaken)
    assert len(server.writes()) == {"recreated": 0, "changed": 1}[how] + may  # another uid shows in the rehearsal
    assert "UnsupportedField" not in outcome.detail
    assert server.now(thing)["spec"]["replicas"] == (0 if may else 3)


SAID_MEANWHILE = {
    "an-ack": (lambda found: found.update(annotations={names.ACK_UNTIL: "2026-11-15T23:46:40Z"}), False),
    "an-opt-out": (lambda found: found.update(labels={names.OPT_OUT: names.OPT_OUT_VALUE}), False),
    "what-kubectl-copies": (lambda found: found.update(annotations={names.LAST_APPLIED: "{}"}), True),
}


@pytest.mark.accepts("idle", 22)
@pytest.mark.parametrize(("change", "may"), SAID_MEANWHILE.values(), ids=SAID_MEANWHILE)
async def test_what_is_said_on_the_namespace_after_the_second_look_is_heeded(
    server: Server, hands: doing.Hands, change: Any, may: bool
) -> None:
    thing = server.add(identified(EXAMPLES["deployment"]))
    space = {"kind": "Namespace", "metadata": {"name": "team-a", "uid": "u-ns", "resourceVersion": "1"}}
    server.objects["/api/v1/namespaces/team-a"] = space
    pause = pause_of(workload_of(thing))
    looked_at = [cluster.Namespace("team-a", {}, {})]

    async def look_again(pauses: Any) -> dict[str, execute.SecondLook]:
        finding = pauses[0].finding if looked_at else None
        found = {"u-1": execute.SecondLook(workload_of(thing), finding, "kept", (), *looked_at[:1])}
        looked_at.clear()
        change(space["metadata"])
        return found

    (outcome,) = await execute.carry_out([pause], hands, look_again, NOW)
    assert outcome.status is (Status.done if may else Status.overtaken)
    assert len(server.writes()) == may


async def test_a_second_conflict_waits_for_the_next_cycle(server: Server, hands: doing.Hands) -> None:
    thing = server.add(identified(EXAMPLES["deployment"]))
    server.fail("PATCH", "/deployments", 409, times=5)
    outcome = await carry(hands, pause_of(workload_of(thing)))
    assert outcome.status is Status.overtaken
    assert len(server.writes()) == 2


@pytest.mark.accepts("idle", 58)
@pytest.mark.parametrize("when", ["before", "while-it-is-looked-at", "never"])
async def test_a_gate_that_shuts_stops_a_pause_before_it_is_sent(
    server: Server, hands: doing.Hands, when: str
) -> None:
    thing, shut = server.add(identified(EXAMPLES["deployment"])), list[str]()
    gate = execute.FreezeGate(lambda: next(iter(shut), None))
    pause = pause_of(workload_of(thing))

    async def look_again(pauses: Any) -> dict[str, execute.SecondLook]:
        shut.extend(["frozen by ada"] * (when != "never"))
        return {"u-1": execute.SecondLook(workload_of(thing), pauses[0].finding)}

    shut.extend(["frozen by ada"] * (when == "before"))
    (outcome,) = await execute.carry_out([pause], hands, look_again, NOW, gate=gate)
    assert (outcome.status is Status.done, len(server.writes()) > 0) == ((when == "never"),) * 2
    assert outcome.code is (None if when == "never" else decision.Code.NotBegun)
    assert not gate.in_flight


async def test_a_look_that_has_grown_old_is_made_anew(server: Server, hands: doing.Hands) -> None:
    things = [server.add(identified(EXAMPLES[name], f"u-{name}")) for name in ("statefulset", "deployment", "notebook")]
    time, looked = [NOW], list[tuple[float, int]]()

    def take_six_seconds(seen: Seen) -> None:
        time[0] += 6.0 if isinstance(seen.body, dict) and names.PAUSED_AT in str(seen.body) else 0.0

    async def look_again(pauses: Any) -> dict[str, execute.SecondLook]:
        looked.append((time[0], len(pauses)))
        found = [pause.finding for pause in pauses]
        return {each.workload.ref.uid: execute.SecondLook(each.workload, each) for each in found}

    server.before = take_six_seconds
    pauses = [pause_of(workload_of(thing)) for thing in things]
    outcomes = await execute.carry_out(pauses, hands, look_again, NOW, clock=lambda: time[0])
    assert [outcome.status for outcome in outcomes] == [Status.done] * 3
    assert looked == [(NOW, 3), (NOW + 12, 1)]


async def test_a_pause_that_the_server_puts_off_is_not_sent_again(server: Server, hands: doing.Hands) -> None:
    """By then another may be the one who acts."""
    thing = server.add(identified(EXAMPLES["deployment"]))
    server.fail("PATCH", "/deployments", 429)
    outcome = await carry(hands, pause_of(workload_of(thing)))
    assert (outcome.status, len(server.writes())) == (Status.failed, 1)
    assert server.now(thing)["spec"]["replicas"] == 3


ELSEWHERE = {"isvc": "its marks", "kueue": "the job"}


@pytest.mark.parametrize("name", ELSEWHERE, ids=ELSEWHERE.values())
async def test_an_ack_after_the_second_look_counts_on_whatever_object_it_stands(
    server: Server, hands: doing.Hands, name: str
) -> None:
    thing = server.add(identified(EXAMPLES["isvc" if name == "isvc" else "job"]))
    if name == "isvc":
        below = make("apps/v1", "Deployment", {"replicas": 1}, name="llm-predictor")
        workload, kept = workload_of(thing), server.add(identified(below, "u-child", "3"))
    else:
        held = make("kueue.x-k8s.io/v1beta2", "Workload", {"active": True}, name="job-llm")
        companion = companion_of(server.add(identified(held, "u-held", "9")), kinds.KUEUE_WORKLOAD.reads)
        workload, kept = workload_of(thing, kueue=(companion,)), thing
    server.touch(kept)  # somebody keeps it
    outcome = await carry(hands, pause_of(workload))
    assert (outcome.status, server.writes()) == (Status.overtaken, [])
    assert "was changed since it was looked at" in outcome.because


UNKNOWN = [{"reason": "FieldValueInvalid", "field": "patch", "message": 'Invalid value: unknown field "spec.suspend"'}]
REFUSALS: dict[str, tuple[int, list[Object], Status, str]] = {
    "unknown-field": (422, UNKNOWN, Status.refused, "ReportOnly:UnsupportedField"),
    "bad-request": (400, [], Status.refused, "ReportOnly:UnsupportedField"),
    "webhook-says-no": (422, [{"field": "spec.replicas", "message": "too few"}], Status.failed, "422 no"),
    "forbidden": (403, [], Status.failed, "403 no"),
    "server-fault": (500, [], Status.failed, "500 no"),
    "gone": (404, [], Status.overtaken, "it is gone"),
}


@pytest.mark.parametrize(("status", "causes", "becomes", "says"), REFUSALS.values(), ids=REFUSALS)
async def test_each_refusal_means_what_it_means(
    server: Server, hands: doing.Hands, status: int, causes: list[Object], becomes: Status, says: str
) -> None:
    thing = server.add(identified(EXAMPLES["deployment"]))
    server.fail("PATCH", "/deployments", status, causes=causes)
    outcome = await carry(hands, pause_of(workload_of(thing)))
    assert outcome.status is becomes
    assert outcome.detail.startswith(says)
    expected = [names.Event.PAUSE_FAILED] if becomes is Status.failed else []
    assert [event["reason"] for event in server.events] == expected


async def test_one_failure_stops_only_itself(server: Server, hands: doing.Hands) -> None:
    things = [server.add(identified(EXAMPLES[name], f"u-{name}")) for name in ("statefulset", "deployment", "notebook")]
    server.fail("PATCH", "/deployments", 403)
    pauses = [pause_of(workload_of(thing)) for thing in things]

    async def look_again(wanted: Any) -> dict[str, execute.SecondLook]:
        found = [pause.finding for pause in wanted]
        return {each.workload.ref.uid: execute.SecondLook(each.workload, each) for each in found}

    outcomes = await execute.carry_out(pauses, hands, look_again, NOW)
    assert [outcome.status for outcome in outcomes] == [Status.done, Status.failed, Status.done]


async def test_an_odd_object_fails_alone(server: Server, hands: doing.Hands) -> None:
    thing = server.add(identified(make("disaggregatedset.x-k8s.io/v1", "DisaggregatedSet", {"roles": ["odd"]})))
    outcome = await carry(hands, pause_of(workload_of(thing)))
    assert (outcome.status, server.writes()) == (Status.refused, [])


async def test_what_nobody_foresaw_fails_alone(server: Server, hands: doing.Hands) -> None:
    odd = workload_of(identified(EXAMPLES["deployment"]), hpas=("not a companion",))
    outcome = await carry(hands, pause_of(odd))
    assert outcome.status is Status.failed
    assert outcome.detail.startswith("unexpected AttributeError")
    assert server.writes() == []


@pytest.mark.parametrize("look", [execute.SecondLook(None, None, "it is gone"), None], ids=["gone", "nothing-known"])
async def test_without_a_second_look_nothing_happens(
    server: Server, hands: doing.Hands, look: execute.SecondLook | None
) -> None:
    workload = workload_of(server.add(identified(EXAMPLES["deployment"])))

    async def look_again(pauses: Any) -> dict[str, execute.SecondLook]:
        return {workload.ref.uid: look} if look else {}

    (outcome,) = await execute.carry_out([pause_of(workload)], hands, look_again, NOW)
    assert (outcome.status, server.requests) == (Status.overtaken, [])


async def test_a_look_that_fails_stops_the_pauses_and_nothing_else(server: Server, hands: doing.Hands) -> None:
    workload = workload_of(server.add(identified(EXAMPLES["deployment"])))
    mark = decision.Mark(workload, workload.ref, None, {names.PENDING_SINCE: None}, None, "active again")

    async def look_again(pauses: Any) -> dict[str, execute.SecondLook]:
        raise errors.Unreachable("no Prometheus")

    outcomes = await execute.carry_out([pause_of(workload), mark], hands, look_again, NOW)
    assert [outcome.status for outcome in outcomes] == [Status.overtaken, Status.done]
    assert "no Prometheus" in outcomes[0].detail


async def test_a_lease_lost_while_a_hook_runs_stops_the_patch(server: Server, hands: doing.Hands) -> None:
    pause = pause_of(workload_of(server.add(identified(EXAMPLES["deployment"]))))
    left = iter([True, False])
    outcome = await carry(hands, pause, may_act=lambda: next(left))
    assert (outcome.status, server.writes()) == (Status.overtaken, [])


async def test_a_look_with_a_bug_stops_only_the_pauses(server: Server, hands: doing.Hands) -> None:
    workload = workload_of(server.add(identified(EXAMPLES["deployment"])))
    mark = decision.Mark(workload, workload.ref, None, {names.PENDING_SINCE: None}, None, "active again")

    async def look_again(pauses: Any) -> dict[str, execute.SecondLook]:
        raise KeyError("oops")

    outcomes = await execute.carry_out([pause_of(workload), mark], hands, look_again, NOW)
    assert [outcome.status for outcome in outcomes] == [Status.overtaken, Status.done]


async def test_a_lost_lease_stops_between_decisions(server: Server, hands: doing.Hands) -> None:
    workload = workload_of(server.add(identified(EXAMPLES["deployment"])))
    mark = decision.Mark(workload, workload.ref, None, {names.PENDING_SINCE: None}, None, "active again")
    left = iter([True, False, False])

    async def look_again(pauses: Any) -> dict[str, execute.SecondLook]:
        raise AssertionError("nobody may look any more")

    outcomes = await execute.carry_out([mark, mark, pause_of(workload)], hands, look_again, NOW, lambda: next(left))
    assert [outcome.status for outcome in outcomes] == [Status.done, Status.overtaken, Status.overtaken]
    assert len(server.writes()) == 1


def everything(workload: cluster.Workload) -> list[decision.Decision]:
    pause = pause_of(workload)
    return [
        decision.Mark(workload, workload.ref, None, {names.PENDING_SINCE: None}, names.Event.ACK_EXPIRED, "over"),
        decision.Warn(pause.finding, "abc", NOW - 60, NOW + 300, (idle.Channel("e", "event"),)),
        decision.Alert(workload, names.Event.IDLE_DETECTED, "idle", "abc"),
        pause,
    ]


@pytest.mark.accepts("idle", 28)
@pytest.mark.parametrize("scope", ["server", "client"])
async def test_a_dry_run_changes_nothing_and_asks_the_server_only_in_its_scope(
    server: Server, make_hands: MakeHands, scope: str
) -> None:
    thing = server.add(identified(EXAMPLES["deployment"]))
    before = json.dumps(server.objects, sort_keys=True)
    hands = make_hands(dry_run=scope)
    outcomes = [await carry(hands, each) for each in everything(workload_of(thing))]
    assert {outcome.status for outcome in outcomes} == {Status.dry_run}
    assert json.dumps(server.objects, sort_keys=True) == before
    assert len(server.writes(dry=True)) == (1 if scope == "server" else 0)
    assert len(server.requests) == len(server.writes(dry=True))


@pytest.mark.accepts("idle", 28)
async def test_missing_rights_show_in_a_dry_run(server: Server, make_hands: MakeHands) -> None:
    thing = server.add(identified(EXAMPLES["deployment"]))
    server.meets_dry = True
    server.fail("PATCH", "/deployments", 403, message='deployments.apps "llm" is forbidden')
    outcome = await carry(make_hands(dry_run="server"), pause_of(workload_of(thing)))
    assert outcome.status is Status.dry_run
    assert outcome.detail.endswith('(not checked by the API server: 403 deployments.apps "llm" is forbidden)')
    assert server.events == []
