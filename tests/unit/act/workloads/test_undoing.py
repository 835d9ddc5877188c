"""A pause of which the server makes something else: found by its rehearsal; where that did not show it, put back in the
same cycle, or kept on record for the next."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.unit.act import examples
from tests.unit.act.carrying import MakeHands, Object, annotations, carry, resume_of
from tests.unit.act.examples import EXAMPLES, NOW, identified, make, pause_of, workload_of
from tests.unit.act.server import Seen, Server

from fallow import names
from fallow.act import hands as doing
from fallow.decide.idle import pauses
from fallow.model import cluster, decision, kinds
from fallow.model.decision import Status

RESUMED = {names.RESUMED_AT: "2026-11-14T22:00:00Z", names.RESUMED_BY: "ada"}
NOTICED = {names.IDLE_SINCE: "2026-11-14T22:30:00Z", names.PENDING_SINCE: "2026-11-14T22:40:00Z"}
KEPT = {**RESUMED, **NOTICED}


def clamp(server: Server, least: int = 1) -> None:
    """As an admission webhook does: replicas are never less."""

    def change(seen: Seen) -> None:
        spec = seen.body.get("spec") if isinstance(seen.body, dict) else None
        if isinstance(spec, dict) and isinstance(spec.get("replicas"), int):
            spec["replicas"] = max(least, spec["replicas"])

    server.before = change


def deployment(**said: str) -> Object:
    return identified(make("apps/v1", "Deployment", {"replicas": 3}, annotations=said))


def half_paused(**fields: Any) -> Object:
    """One of three, with the record of three."""
    text = json.dumps({"v": 1, "fields": {"/spec/replicas": 3}, "marks": RESUMED})
    said = {names.ORIGINAL_STATE: text, names.PAUSED_AT: "2026-11-14T23:00:00Z", names.ORIGINAL_REPLICAS: "3"}
    return identified(make("apps/v1", "Deployment", {"replicas": 1, **fields}, annotations=said))


def undo_of(thing: Object, **more: Any) -> decision.Undo:
    return decision.Undo(workload_of(thing, is_ours=True, **more), "half taken")


@pytest.mark.accepts("idle", 40)
async def test_what_is_clamped_is_put_back_with_everything_the_pause_took(server: Server, hands: doing.Hands) -> None:
    thing = server.add(deployment(**KEPT))
    clamp(server)
    outcome = await carry(hands, pause_of(workload_of(thing)))
    assert outcome.status is Status.failed
    assert "is 1 and not 0; it was put back to /spec/replicas 3" in outcome.because
    assert server.now(thing)["spec"] == {"replicas": 3}
    assert annotations(server.now(thing)) == KEPT
    assert [event["reason"] for event in server.events] == [names.Event.PAUSE_FAILED]


@pytest.mark.accepts("idle", 40)
async def test_the_record_stays_until_the_object_equals_it(server: Server, hands: doing.Hands) -> None:
    thing = server.add(deployment(**KEPT))
    clamp(server, least=5)  # what it was is not allowed either
    outcome = await carry(hands, pause_of(workload_of(thing)))
    assert outcome.status is Status.failed
    assert "is 5 and not 0, and what stood there (/spec/replicas 3) could not be put back" in outcome.because
    assert server.now(thing)["spec"] == {"replicas": 5}
    record = json.loads(annotations(server.now(thing))[names.ORIGINAL_STATE])
    assert record == {"v": 1, "fields": {"/spec/replicas": 3}, "marks": KEPT}
    still = await carry(hands, undo_of(server.now(thing)))
    assert still.status is Status.failed
    assert names.ORIGINAL_STATE in annotations(server.now(thing))
    server.before = None
    assert (await carry(hands, undo_of(server.now(thing)))).status is Status.done
    assert (server.now(thing)["spec"], annotations(server.now(thing))) == ({"replicas": 3}, KEPT)
    assert {event["reason"] for event in server.events} == {names.Event.PAUSE_FAILED}


@pytest.mark.parametrize("times", [1, 5])
async def test_status_that_changes_meanwhile_does_not_stop_it(server: Server, hands: doing.Hands, times: int) -> None:
    thing = server.add(half_paused())
    server.fail("PATCH", "/deployments", 409, times=times)
    assert (await carry(hands, undo_of(thing))).status is Status.done
    assert (server.now(thing)["spec"], annotations(server.now(thing))) == ({"replicas": 3}, RESUMED)


@pytest.mark.parametrize("at", ["at-the-fields", "at-the-marks"])
async def test_what_somebody_else_sets_meanwhile_is_not_overwritten(
    server: Server, hands: doing.Hands, at: str
) -> None:
    thing = server.add(half_paused())
    turns = iter([at == "at-the-fields", True])

    def set_seven(_: Seen) -> None:
        if next(turns, False):
            server.touch(thing, lambda found: found["spec"].update(replicas=7))

    server.before = set_seven
    assert (await carry(hands, undo_of(thing))).status is Status.overtaken
    assert server.now(thing)["spec"] == {"replicas": 7}
    assert names.ORIGINAL_STATE in annotations(server.now(thing))


async def test_what_equals_its_record_only_loses_the_marks(server: Server, hands: doing.Hands) -> None:
    thing = server.add(half_paused(replicas=3))
    assert (await carry(hands, undo_of(thing))).status is Status.done
    assert [list(seen.body) for seen in server.writes()] == [["metadata"]]
    assert annotations(server.now(thing)) == RESUMED


async def test_a_dry_run_neither_puts_back_nor_leaves_anything(server: Server, make_hands: MakeHands) -> None:
    thing, server.meets_dry = server.add(deployment()), True
    clamp(server)
    outcome = await carry(make_hands(dry_run="server"), pause_of(workload_of(thing)))
    assert outcome.status is Status.refused
    assert "is 1 and not 0" in outcome.because
    assert server.writes() == []
    assert (await carry(make_hands(dry_run="server"), undo_of(half_paused()))).status is Status.dry_run
    assert server.writes() == []


# ---- two writes ------------------------------------------------------------------------------------------------------


async def test_a_scale_that_is_clamped_is_put_back(server: Server, hands: doing.Hands) -> None:
    thing = server.add(identified(make("example.com/v1", "Scalable", {"size": 7}, annotations=dict(KEPT))))
    clamp(server)
    workload = workload_of(thing, replicas_pointer=None, body={"spec": {"replicas": 7}})
    outcome = await carry(hands, pause_of(workload))
    assert outcome.status is Status.failed
    assert "put back to /spec/replicas 7" in outcome.because
    assert (server.now(thing)["spec"], annotations(server.now(thing))) == ({"size": 7}, KEPT)


def scaler() -> Object:
    spec = {"scaleTargetRef": {"name": "llm"}, "minReplicaCount": 1}
    return identified(make("keda.sh/v1alpha1", "ScaledObject", spec, name="so"), "u-so", "70")


def with_scaler(server: Server, target: Object, found: Object) -> cluster.Workload:
    companion = examples.companion_of(server.now(found), kinds.SCALED_OBJECT.reads)
    return workload_of(server.now(target), scaled_objects=(companion,))


def insist_on_two(seen: Seen) -> None:
    """As a webhook does that lets nobody pause at 0."""
    said = seen.body["metadata"].get("annotations", {}) if isinstance(seen.body, dict) else {}
    if said.get(names.KEDA_PAUSED_REPLICAS) == "0":
        said[names.KEDA_PAUSED_REPLICAS] = "2"


SECOND: dict[str, Callable[[Server], None]] = {
    "forbidden": lambda server: server.fail("PATCH", "/scaledobjects", 403),
    "conflicts": lambda server: server.fail("PATCH", "/scaledobjects", 409, times=4),
    "is-changed": lambda server: setattr(server, "before", insist_on_two),
}


@pytest.mark.accepts("idle", 62)
@pytest.mark.parametrize("fault", SECOND.values(), ids=SECOND)
async def test_a_second_write_that_fails_puts_back_all_of_the_first(
    server: Server, hands: doing.Hands, fault: Callable[[Server], None]
) -> None:
    target, found = server.add(deployment(**KEPT)), server.add(scaler())
    fault(server)
    outcome = await carry(hands, pause_of(with_scaler(server, target, found)))
    assert outcome.status in (Status.failed, Status.overtaken)
    assert (server.now(target)["spec"], annotations(server.now(target))) == ({"replicas": 3}, KEPT)
    assert annotations(server.now(found)) == {}


UNKNOWN: dict[str, Callable[[Server], None]] = {
    "breaks-down": lambda server: server.fail("PATCH", "/scaledobjects", 504),
    "is-cut": lambda server: server.drop("PATCH", "/scaledobjects", done=False),
}


@pytest.mark.accepts("idle", 40, 62)
@pytest.mark.parametrize("fault", UNKNOWN.values(), ids=UNKNOWN)
@pytest.mark.parametrize("is_late", [True, False], ids=["lands-late", "never-lands"])
async def test_a_second_write_of_unknown_end_keeps_the_record_until_the_next_cycle(
    server: Server, hands: doing.Hands, fault: Callable[[Server], None], is_late: bool
) -> None:
    target, found = server.add(deployment(**KEPT)), server.add(scaler())
    fault(server)
    assert (await carry(hands, pause_of(with_scaler(server, target, found)))).status is Status.failed
    assert names.ORIGINAL_STATE in annotations(server.now(target))
    (sent,) = (seen for seen in server.writes() if "/scaledobjects" in seen.path)
    if is_late:
        said = dict(sent.body["metadata"]["annotations"])
        server.touch(found, lambda held: held["metadata"].update(annotations=said))
    decisions = pauses.tend(with_scaler(server, target, found), (), examples.RULE, NOW + 60)
    for each in decisions:
        assert (await carry(hands, each)).status is Status.done
    assert (decisions == []) is is_late, "it stands paused, with its record"
    assert (names.ORIGINAL_STATE in annotations(server.now(target))) is is_late
    if not is_late:
        assert KEPT.items() <= annotations(server.now(target)).items(), "the immunity goes on"


def strip(*stripped: str) -> Callable[[Seen], None]:
    """As a webhook does that lets annotations of ours through to nobody."""

    def change(seen: Seen) -> None:
        said = seen.body["metadata"].get("annotations", {}) if isinstance(seen.body, dict) else {}
        for name in stripped:
            said.pop(name, None)

    return change


@pytest.mark.accepts("idle", 40)
@pytest.mark.parametrize("name", [names.ORIGINAL_STATE, names.PAUSED_AT])
async def test_a_pause_whose_marks_are_stripped_is_put_back(server: Server, hands: doing.Hands, name: str) -> None:
    thing = server.add(deployment(**KEPT))
    server.before = strip(name)
    outcome = await carry(hands, pause_of(workload_of(thing)))
    assert outcome.status is Status.failed
    assert "is None and not '" in outcome.because
    assert outcome.because.endswith("it was put back to /spec/replicas 3")
    assert (server.now(thing)["spec"], annotations(server.now(thing))) == ({"replicas": 3}, KEPT)


@pytest.mark.accepts("idle", 40)
async def test_a_stripped_record_that_cannot_be_put_back_is_told_whole(server: Server, hands: doing.Hands) -> None:
    thing = server.add(deployment())
    server.before = strip(names.ORIGINAL_STATE)
    server.seen = lambda seen: server.fail("PATCH", "/deployments", 500) if len(server.writes()) == 2 else None
    outcome = await carry(hands, pause_of(workload_of(thing)))
    assert outcome.status is Status.failed
    assert "(/spec/replicas 3) could not be put back" in outcome.because
    assert outcome.because.endswith("put it back by hand, for its record was stripped")


@pytest.mark.accepts("idle", 40)
async def test_under_keda_a_stripped_record_pauses_nothing(server: Server, hands: doing.Hands) -> None:
    target, found = server.add(deployment(**KEPT)), server.add(scaler())
    server.before = strip(names.ORIGINAL_STATE)
    assert (await carry(hands, pause_of(with_scaler(server, target, found)))).status is Status.failed
    assert (server.now(target)["spec"], annotations(server.now(target))) == ({"replicas": 3}, KEPT)
    assert annotations(server.now(found)) == {}
    assert not any("/scaledobjects" in seen.path for seen in server.writes())


async def test_half_a_write_whose_answer_is_lost_stays_on_record_for_the_next_cycle(
    server: Server, hands: doing.Hands
) -> None:
    target, found = server.add(deployment(**RESUMED)), server.add(scaler())
    server.before = insist_on_two
    server.drop("PATCH", "/scaledobjects", done=True)
    assert (await carry(hands, pause_of(with_scaler(server, target, found)))).status is Status.failed
    assert names.ORIGINAL_STATE in annotations(server.now(target))
    companion = examples.companion_of(server.now(found), kinds.SCALED_OBJECT.reads)
    half = workload_of(server.now(target), scaled_objects=(msgspec.structs.replace(companion, is_ours=True),))
    (undo,) = pauses.tend(half, (), examples.RULE, NOW + 60)
    assert (await carry(hands, undo)).status is Status.done
    assert annotations(server.now(target)) == RESUMED
    assert annotations(server.now(found)) == {}


@pytest.mark.accepts("idle", 38, 62)
async def test_one_conflict_of_the_second_write_is_tried_again(server: Server, hands: doing.Hands) -> None:
    target, found = server.add(deployment()), server.add(scaler())
    workload = with_scaler(server, target, found)
    server.touch(found)  # its status, just now
    assert (await carry(hands, pause_of(workload))).status is Status.done
    assert annotations(server.now(found))[names.KEDA_PAUSED_REPLICAS] == "0"
    assert len([seen for seen in server.writes() if "/deployments" in seen.path]) == 1


async def test_a_scaler_that_somebody_else_paused_meanwhile_is_looked_at_first(
    server: Server, hands: doing.Hands
) -> None:
    target, found = server.add(deployment()), server.add(scaler())
    workload = with_scaler(server, target, found)
    server.touch(found, lambda one: one["metadata"].update(annotations={names.KEDA_PAUSED_REPLICAS: "0"}))
    assert (await carry(hands, pause_of(workload))).status is Status.overtaken
    assert annotations(server.now(target)) == {}
    assert annotations(server.now(found)) == {names.KEDA_PAUSED_REPLICAS: "0"}


# ---- rehearsed -------------------------------------------------------------------------------------------------------


@pytest.mark.accepts("idle", 40)
@pytest.mark.parametrize("altered", [clamp, lambda server: setattr(server, "before", strip(names.ORIGINAL_STATE))])
async def test_what_a_dry_run_shows_altered_is_never_written(
    server: Server, hands: doing.Hands, altered: Callable[[Server], None]
) -> None:
    thing, server.meets_dry = server.add(deployment(**KEPT)), True
    altered(server)
    outcome = await carry(hands, pause_of(workload_of(thing)))
    assert outcome.status is Status.failed
    assert outcome.because.startswith("nothing was changed, for something would alter our patch")
    assert (server.writes(), server.now(thing)) == ([], thing)


async def test_of_two_writes_both_are_rehearsed_before_the_first(server: Server, hands: doing.Hands) -> None:
    target, found = server.add(deployment(**KEPT)), server.add(scaler())
    server.meets_dry, server.before = True, insist_on_two
    assert (await carry(hands, pause_of(with_scaler(server, target, found)))).status is Status.failed
    assert (server.writes(), server.now(target)) == ([], target)


async def test_a_server_that_knows_no_dry_run_has_nothing_paused(server: Server, hands: doing.Hands) -> None:
    thing, server.meets_dry = server.add(deployment()), True
    server.fail("PATCH", "/deployments", 400, message="admission webhook does not support dry run")
    outcome = await carry(hands, pause_of(workload_of(thing)))
    assert (outcome.status, server.writes()) == (Status.refused, [])
    assert "does not support dry run" in outcome.because


# ---- roles -----------------------------------------------------------------------------------------------------------


def role(name: str, replicas: int) -> Object:
    return {"name": name, "spec": {"replicas": replicas}}


CHANGED = {
    "reordered": ([role("decode", 0), role("prefill", 0)], [role("decode", 4), role("prefill", 2)]),
    "added": ([role("router", 1), role("prefill", 0), role("decode", 0)],
              [role("router", 1), role("prefill", 2), role("decode", 4)]),
    "removed": ([role("decode", 0)], [role("decode", 4)]),
}


@pytest.mark.parametrize(("meanwhile", "after"), CHANGED.values(), ids=CHANGED)
async def test_roles_come_back_by_name(
    server: Server, hands: doing.Hands, meanwhile: list[Object], after: list[Object]
) -> None:
    thing = server.add(identified(EXAMPLES["disaggregated"]))
    assert (await carry(hands, pause_of(workload_of(thing)))).status is Status.done
    server.touch(thing, lambda found: found["spec"].update(roles=meanwhile))
    outcome = await carry(hands, resume_of(workload_of(server.now(thing))))
    assert outcome.status is Status.done, outcome.detail
    assert server.now(thing)["spec"]["roles"] == after
    assert not set(annotations(server.now(thing))) & set(names.PAUSE_KEYS)


async def test_what_others_brought_back_in_part_comes_back_whole_and_theirs_stays(
    server: Server, hands: doing.Hands
) -> None:
    thing = server.add(identified(EXAMPLES["disaggregated"]))
    assert (await carry(hands, pause_of(workload_of(thing)))).status is Status.done
    server.touch(thing, lambda found: found["spec"].update(roles=[role("prefill", 0), role("decode", 1)]))
    (resume,) = pauses.tend(workload_of(server.now(thing), writer="ada"), (), examples.RULE, NOW + 60)
    outcome = await carry(hands, resume)
    assert outcome.status is Status.done, outcome.detail
    assert server.now(thing)["spec"]["roles"] == [role("prefill", 2), role("decode", 1)]
    said = annotations(server.now(thing))
    assert said[names.RESUMED_BY] == "external:ada"
    assert said[names.PAUSE_REVERSALS]
    assert not set(said) & set(names.PAUSE_KEYS)


@pytest.mark.parametrize("roles", [[role("a", 1), role("a", 2)], [{"spec": {"replicas": 1}}]], ids=["same", "nameless"])
async def test_roles_that_no_name_tells_apart_are_left_alone(
    server: Server, hands: doing.Hands, roles: list[Object]
) -> None:
    thing = server.add(identified(make("disaggregatedset.x-k8s.io/v1", "DisaggregatedSet", {"roles": roles})))
    outcome = await carry(hands, pause_of(workload_of(thing)))
    assert (outcome.status, outcome.code) == (Status.refused, decision.Detail.NoRoles)
    assert server.writes() == []
