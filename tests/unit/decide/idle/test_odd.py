"""One object that is as nobody foresaw is unknown and named; everything else goes on."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import builders
from tests.builders import NOW, World, idle, paused_marks

from fallow import names, telemetry
from fallow.account import tally
from fallow.decide.idle import plan
from fallow.model import kinds, pointers
from fallow.model.decision import Cycle, Heading, Memory, Pause, Plan, Reason, Resume, Verdict
from fallow.model.policies.idle import IdlePolicy
from fallow.model.seen import Known
from fallow.model.selectors import Selector
from fallow.model.units import HOUR

POLICY = IdlePolicy(
    name="labelled", uid="1", generation=1, rule=builders.rule(name="labelled"), workload_selector=Selector({"a": "b"})
)


def make(world: World, **said: object) -> Plan:
    return plan.make_plan(world.snapshot(), builders.mandate(**said), Memory(), NOW)


def with_odd_spec(world: World) -> None:
    """Of a kind whose CRD lets everything through."""
    world.workload("ml/odd", "StatefulSet", body={"spec": "everything"})


def with_odd_marks(world: World) -> None:
    odd = {"replicas": 0, "template": {"spec": {"terminationGracePeriodSeconds": "long"}}}
    world.workload("ml/odd", "StatefulSet", body={"spec": odd}, annotations=paused_marks(NOW - HOUR))


def with_odd_labels(world: World) -> None:
    world.policies = [POLICY]
    world.workload("ml/odd")
    world.workloads[-1] = msgspec.structs.replace(world.workloads[-1], labels=None)


@pytest.mark.accepts("idle", 45)
@pytest.mark.parametrize("make_odd", [with_odd_spec, with_odd_marks, with_odd_labels])
def test_an_odd_one_is_unknown_and_named_and_the_others_are_paused(make_odd: object) -> None:
    world = World()
    world.workload("ml/llm", gpus=[idle(for_=HOUR)])
    assert callable(make_odd)
    make_odd(world)
    world.workload(
        "ml/back", body={"spec": {"replicas": 0}}, pods=[], annotations=paused_marks(NOW - HOUR, resume_requested="me")
    )
    made = make(world)
    assert [type(each) for each in made.decisions if isinstance(each, Pause | Resume)] == [Resume, Pause]
    (pause,) = [each for each in made.decisions if isinstance(each, Pause)]
    assert pause.finding.workload.ref.name == "llm"
    finding = made.findings[1]
    assert (finding.verdict, finding.reason) == (Verdict.unknown, Reason.Odd)
    assert finding.because.startswith("it is as nobody foresaw, and is left alone: ")
    assert [ref.name for ref in made.odd] == ["odd"]
    assert made.totals.verdicts[Heading(Verdict.unknown, Reason.Odd)] == 1


def test_an_odd_one_at_the_second_look_is_not_paused() -> None:
    world = World()
    world.workload("ml/llm", "StatefulSet")
    (pause,) = [each for each in make(world).decisions if isinstance(each, Pause)]
    world.workloads[0] = msgspec.structs.replace(world.workloads[0], body={"spec": "everything"})
    (found,) = plan.judge_again(world.snapshot(), {0: pause}, builders.mandate(), NOW).values()
    assert found[0] is None
    assert found[1].startswith("it could not be considered: ")


def test_an_odd_one_counts_as_on_its_way_out_for_those_who_wait() -> None:
    world = World()
    world.workload("ml/llm")
    world.workload("ml/odd", "StatefulSet")
    world.workloads[1] = msgspec.structs.replace(world.workloads[1], scaled_objects=Known((None,)))
    world.pod("waiting", gpus=[idle(), idle()], node="", phase="Pending", unschedulable_since=NOW - HOUR)
    made = make(world, a_rule=builders.rule(pressure="only"))
    assert [each.finding.workload.ref.name for each in made.decisions if isinstance(each, Pause)] == ["llm"]


KEYS = sorted({*names.ACK_KEYS, *names.PENDING_KEYS, *names.PAUSE_KEYS, names.RESUME_REQUESTED, names.OPT_OUT_UNTIL})
TEXTS = st.sampled_from([
    "", "x", "-1", "\x00", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00+23:59", "2026-11-15T10:00:00Z", "9" * 40, "[]",
    '{"v":1,"fields":{"/spec/replicas":"x"}}', '{"v":1,"fields":5}', "a,b,2026-11-15T10:00:00Z",
]) | st.text(max_size=20)
NAMES = st.sampled_from(["type", "status", "spec"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2), max_leaves=4,
)


@st.composite
def bodies(draw: st.DrawFn, row: kinds.Kind) -> dict[str, Any]:
    """What a CRD without a schema lets through, at the places that the row of the kind reads."""
    body: Any = {}
    for pointer in row.reads:
        path = pointers.parts(pointer)
        deep = draw(st.integers(0, len(path)))
        if deep and isinstance(pointers.read(body, pointers.join(path[: deep - 1])) if deep > 1 else body, dict):
            body = pointers.replace(body, path[:deep], draw(VALUES))
    return {key: value for key, value in body.items() if value is not None}


@pytest.mark.accepts("idle", 45)
@given(st.data())
def test_whatever_stands_on_one_object_the_others_are_judged_and_counted(data: st.DataObject) -> None:
    row = data.draw(st.sampled_from(kinds.KINDS))
    said = data.draw(st.dictionaries(st.sampled_from(KEYS), TEXTS, max_size=6))
    world = World()
    world.workload("ml/llm", gpus=[idle(for_=HOUR)])
    world.workload("ml/odd", row.kind, body=data.draw(bodies(row)), annotations=said, pod={"annotations": said})
    ref = msgspec.structs.replace(world.workloads[1].ref, group=row.group)
    world.workloads[1] = msgspec.structs.replace(world.workloads[1], ref=ref, marks_ref=ref)
    made, seen = make(world), world.snapshot()
    assert "llm" in [each.finding.workload.ref.name for each in made.decisions if isinstance(each, Pause)]
    assert all(made.findings[index].because and made.findings.evidence(index) for index in range(2))
    tally.Books(telemetry.Telemetry(), dry_run=False, source="").enter(Cycle(made, seen, (), "", 0.1), NOW)
