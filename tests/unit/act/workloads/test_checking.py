"""A record that somebody else wrote: a resume by whoever is mightier must not carry it out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.act import examples
from tests.unit.act.carrying import MakeHands, Object, annotations, carry, resume_of
from tests.unit.act.examples import EXAMPLES, NOW, identified, make, workload_of
from tests.unit.act.server import Server

from fallow import names
from fallow.act import hands as doing
from fallow.model import cluster, decision, kinds, record
from fallow.model.decision import Code, Status

KEDA = "keda.sh/v1alpha1"


def crafted(companions: tuple[Object, ...] = (), **fields: Any) -> dict[str, str]:
    """Marks as of a pause, with a record of these fields; `__` stands for a slash."""
    named = {"/" + name.replace("__", "/"): value for name, value in fields.items()}
    text = json.dumps({"v": 1, "fields": named, "companions": companions})
    return {names.ORIGINAL_STATE: text, names.PAUSED_AT: "2026-11-14T20:00:00Z", names.PAUSED_BY: "fallow"}


STRANGE: dict[str, tuple[dict[str, Any], str]] = {
    "host-pid": ({"spec__template__spec__hostPID": True}, "/spec/template/spec/hostPID"),
    "and-its-own": ({"spec__replicas": 3, "spec__template__spec__serviceAccountName": "root"}, "serviceAccountName"),
    "image": ({"spec__template__spec__containers__name=main__image": "evil"}, "image"),
    "whole-spec": ({"spec": None}, "/spec,"),
    "everything": ({"": {"x": 1}}, "/,"),
    "finalizers": ({"metadata__finalizers": None}, "/metadata/finalizers"),
    "text": ({"spec__replicas": "3"}, "'3' for /spec/replicas"),
    "switch": ({"spec__replicas": True}, "True for /spec/replicas"),
    "less-than-none": ({"spec__replicas": -1}, "-1 for /spec/replicas"),
    "fraction": ({"spec__replicas": 2.5}, "2.5 for /spec/replicas"),
    "beyond-reason": ({"spec__replicas": 2**40}, "for /spec/replicas"),
    "map": ({"spec__replicas": {"a": 1}}, "for /spec/replicas"),
}


@pytest.mark.accepts("idle", 52)
@pytest.mark.parametrize(("fields", "says"), STRANGE.values(), ids=STRANGE)
@pytest.mark.parametrize("asked", ["by-hand", "by-annotation"])
async def test_what_no_pause_of_this_kind_writes_is_refused_and_named(
    server: Server, hands: doing.Hands, fields: dict[str, Any], says: str, asked: str
) -> None:
    said = crafted(**fields) | ({names.RESUME_REQUESTED: "please"} if asked == "by-annotation" else {})
    thing = server.add(identified(make("apps/v1", "Deployment", {"replicas": 0}, annotations=said)))
    outcome = await carry(hands, resume_of(workload_of(thing)))
    assert (outcome.status, outcome.code) == (Status.refused, Code.NoOriginalState)
    assert says in outcome.because
    assert server.writes() == []
    (event,) = server.events
    assert event["reason"] == names.Event.RESUME_FAILED
    assert says in event["note"]


ROWS = {
    "job": ("job", {"spec__suspend": "no"}),
    "notebook": ("notebook", {"spec__replicas": 3}),
    "workspace": ("workspace", {"spec__paused": 0}),
    "roles-as-a-whole": ("disaggregated", {"spec__roles": None}),
    "roles-by-index": ("disaggregated", {"spec__roles__0__spec__replicas": 2}),
    "a-role's-template": ("disaggregated", {"spec__roles__name=prefill__spec__template": None}),
}


@pytest.mark.accepts("idle", 52)
@pytest.mark.parametrize(("name", "fields"), ROWS.values(), ids=ROWS)
def test_every_row_has_its_own_fields(name: str, fields: dict[str, Any]) -> None:
    row = kinds.of(workload_of(identified(EXAMPLES[name])))
    found = record.read(crafted(**fields)[names.ORIGINAL_STATE])
    assert row is not None
    assert found is not None
    assert kinds.find_fault(row, found) is not None


def test_marks_that_no_pause_clears_are_refused() -> None:
    found = record.Record(1, {"/spec/replicas": 3}, (), {names.ACK_UNTIL: "2099-01-01T00:00:00Z"})
    row = kinds.of(workload_of(identified(EXAMPLES["deployment"])))
    assert row is not None
    assert names.ACK_UNTIL in (kinds.find_fault(row, found) or "")


async def test_a_number_forces_past_a_strange_record_and_nothing_of_it(server: Server, hands: doing.Hands) -> None:
    said = crafted(spec__replicas=3, spec__template__spec__hostPID=True)
    thing = server.add(identified(make("apps/v1", "Deployment", {"replicas": 0}, annotations=said)))
    assert (await hands.resume(resume_of(workload_of(thing)), NOW, replicas=2)).status is Status.done
    assert server.now(thing)["spec"] == {"replicas": 2}


# ---- companions ------------------------------------------------------------------------------------------------------


def scaler(target: str, **said: str) -> Object:
    made = make(KEDA, "ScaledObject", {"scaleTargetRef": {"name": target}}, name="so", annotations=said)
    return identified(made, "u-so", "70")


def names_of(api_version: str, kind: str, name: str) -> Object:
    return {"apiVersion": api_version, "kind": kind, "name": name}


STRANGERS = {
    "another's-scaler": names_of(KEDA, "ScaledObject", "so"),
    "any-kind": names_of("v1", "Secret", "token"),
    "another-group": names_of("evil.example/v1", "ScaledObject", "so"),
    "a-schedule": names_of("batch/v1", "CronJob", "nightly"),
}


@pytest.mark.accepts("idle", 52)
@pytest.mark.parametrize("companion", STRANGERS.values(), ids=STRANGERS)
async def test_a_companion_that_does_not_steer_it_is_refused_and_not_touched(
    server: Server, hands: doing.Hands, companion: Object
) -> None:
    server.add(scaler("somebody-else's", **{names.KEDA_PAUSED_REPLICAS: "0", names.ORIGINAL_STATE: "{}"}))
    nightly = crafted(spec__suspend=False)
    server.add(identified(make("batch/v1", "CronJob", {"suspend": True}, name="nightly", annotations=nightly), "u-c"))
    said = crafted((companion,), spec__replicas=3)
    thing = server.add(identified(make("apps/v1", "Deployment", {"replicas": 0}, annotations=said)))
    outcome = await carry(hands, resume_of(workload_of(thing)))
    assert (outcome.status, outcome.code) == (Status.refused, Code.NoOriginalState)
    assert f"{companion['kind']}/{companion['name']}" in outcome.because
    assert server.writes() == []


async def test_a_strange_record_on_its_own_scaler_is_refused(server: Server, hands: doing.Hands) -> None:
    strange = {names.KEDA_PAUSED_REPLICAS: "0", **crafted(spec__triggers=None)}
    found = server.add(scaler("llm", **strange))
    said = crafted((names_of(KEDA, "ScaledObject", "so"),), spec__replicas=3)
    thing = server.add(identified(make("apps/v1", "Deployment", {"replicas": 0}, annotations=said)))
    companion = examples.companion_of(found, kinds.SCALED_OBJECT.reads)
    outcome = await carry(hands, resume_of(workload_of(thing, scaled_objects=(companion,))))
    assert (outcome.status, outcome.code) == (Status.refused, Code.NoOriginalState)
    assert "/spec/triggers" in outcome.because
    assert server.writes() == []


async def test_an_undo_of_a_strange_record_changes_nothing(server: Server, make_hands: MakeHands) -> None:
    said = crafted(spec__replicas=3, spec__template__spec__hostPID=True)
    thing = server.add(identified(make("apps/v1", "Deployment", {"replicas": 1}, annotations=said)))
    outcome = await carry(make_hands(), decision.Undo(workload_of(thing, is_ours=True), "half taken"))
    assert (outcome.status, outcome.code) == (Status.refused, Code.NoOriginalState)
    assert server.writes() == []


async def test_what_could_not_be_put_back_is_not_paused(server: Server, hands: doing.Hands) -> None:
    thing = server.add(identified(make("example.com/v1", "Scalable", {"size": "many"})))
    outcome = await carry(hands, examples.pause_of(workload_of(thing)))
    assert (outcome.status, server.writes()) == (Status.refused, [])
    assert "'many' for /spec/size" in outcome.because


async def test_volumes_of_a_kind_that_nobody_knows_are_not_risked(server: Server, hands: doing.Hands) -> None:
    spec = {"size": 3, "volumeClaimTemplates": [{"metadata": {"name": "data"}}]}
    thing = server.add(identified(make("example.com/v1", "Scalable", spec)))
    known = workload_of(thing)
    by_scale = workload_of(thing, replicas_pointer=None, body={"spec": {"replicas": 3}})
    for workload in (known, by_scale):
        outcome = await carry(hands, examples.pause_of(workload))
        assert (outcome.status, outcome.code) == (Status.refused, decision.Detail.PvcDeletedOnScale)
    assert server.writes() == []


@pytest.mark.parametrize("trouble", cluster.Trouble)
async def test_nothing_in_trouble_is_paused(server: Server, hands: doing.Hands, trouble: cluster.Trouble) -> None:
    thing = server.add(identified(EXAMPLES["deployment"]))
    outcome = await carry(hands, examples.pause_of(workload_of(thing, trouble=trouble, trouble_because="not seen")))
    assert (outcome.status, outcome.because, server.requests) == (Status.refused, "not seen", [])
    assert annotations(server.now(thing)) == {}
