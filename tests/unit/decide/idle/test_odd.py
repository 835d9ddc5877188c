"""One object that is as nobody foresaw is unknown and named; everything else goes on."""

import msgspec
import pytest
from tests import builders
from tests.builders import NOW, World, idle, paused_marks

from fallow.decide.idle import plan
from fallow.model.decision import Heading, Memory, Pause, Plan, Reason, Resume, Verdict
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
