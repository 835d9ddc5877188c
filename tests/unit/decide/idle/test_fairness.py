"""Who comes first: nobody is held up for ever, neither by a namespace with thousands nor by what always fails."""

from collections import Counter
from typing import Any

import msgspec
import pytest
from tests import builders
from tests.builders import NOW, World, idle, paused_marks

from fallow import names
from fallow.decide.idle import fairness, plan, upkeep
from fallow.model.decision import Alert, Code, Memory, Outcome, Pause, Plan, Resume, Status, Warn, workload_of
from fallow.model.units import HOUR, MINUTE

ZERO = {"spec": {"replicas": 0}}
POLITE = builders.mandate(builders.rule(notice=builders.notice()))
ASKED = {**paused_marks(NOW - HOUR), names.RESUME_REQUESTED: "ada"}


def flood(world: World, namespace: str, count: int, **said: Any) -> None:
    for number in range(count):
        world.workload(f"{namespace}/each-{number}", **said)


def names_of(made: Plan, act: type) -> list[str]:
    found = [workload_of(each) for each in made.decisions if isinstance(each, act)]
    return [f"{each.ref.namespace}/{each.ref.name}" for each in found if each is not None]


def end(made: Plan, act: type, status: Status = Status.failed, **said: Any) -> Memory:
    return plan.remember(made, [Outcome(each, status, made.at, "422", **said) for each in made.decisions
                                if isinstance(each, act)])


def test_a_notice_that_always_fails_holds_up_nobody() -> None:
    world = World()
    flood(world, "ml", plan.MOST_NEWS, gpus=[idle()])
    world.workload("ml/victim", gpus=[idle()])
    first = plan.make_plan(world.snapshot(), POLITE, Memory(), NOW)
    assert "ml/victim" not in names_of(first, Warn)
    second = plan.make_plan(world.snapshot(), POLITE, end(first, Warn), NOW + 1)
    assert names_of(second, Warn)[0] == "ml/victim"


def test_all_whose_notices_fail_are_tried_in_turn() -> None:
    world, memory, told = World(), Memory(), Counter[str]()
    flood(world, "ml", 3 * plan.MOST_NEWS, gpus=[idle()])
    for second in range(3):
        made = plan.make_plan(world.snapshot(), POLITE, memory, NOW + second)
        told.update(names_of(made, Warn))
        memory = end(made, Warn)
    assert set(told.values()) == {1}


@pytest.mark.parametrize("act", [Warn, Alert])
def test_of_each_namespace_somebody_is_told_in_the_first_cycle(act: type) -> None:
    world = World()
    flood(world, "aaa", 250, gpus=[idle()])
    world.workload("zzz/victim", gpus=[idle()])
    assert "zzz/victim" in names_of(plan.make_plan(world.snapshot(), POLITE, Memory(), NOW), act)


def test_a_flood_of_requests_to_resume_is_bounded_and_holds_up_nobody() -> None:
    world = World()
    flood(world, "aaa", 2000, pods=(), annotations={**ASKED, names.ORIGINAL_STATE: "junk"}, body=ZERO)
    world.workload("zzz/victim", pods=(), annotations=ASKED, body=ZERO)
    world.workload("zzz/quiet", gpus=[idle()])
    made = plan.make_plan(world.snapshot(), builders.mandate(), Memory(), NOW)
    back = names_of(made, Resume)
    assert (len(back), "zzz/victim" in back[:2], names_of(made, Pause)) == (upkeep.MOST_RESUMES, True, ["zzz/quiet"])
    later = plan.make_plan(world.snapshot(), builders.mandate(), end(made, Resume, Status.refused), NOW + MINUTE)
    assert not set(back).intersection(names_of(later, Resume))


def asked_back() -> World:
    world = World()
    world.workload(pods=(), annotations=ASKED, body=ZERO)
    return world


@pytest.mark.parametrize(("status", "said", "seconds", "tried"), [
    (Status.failed, {}, MINUTE, False), (Status.refused, {"code": Code.NoOriginalState}, MINUTE, False),
    (Status.failed, {}, 2 * MINUTE, True), (Status.overtaken, {}, 1, True),
    (Status.overtaken, {"code": Code.NotBegun}, 1, True), (Status.failed, {}, -2 * HOUR, True),
])
def test_a_resume_that_failed_is_tried_again_after_a_while(
    status: Status, said: dict[str, Any], seconds: float, tried: bool
) -> None:
    first = plan.make_plan(asked_back().snapshot(), builders.mandate(), Memory(), NOW)
    memory = end(first, Resume, status, **said)
    world = asked_back()
    made = plan.make_plan(world.snapshot(), builders.mandate(), memory, NOW + seconds)
    assert (len(names_of(made, Resume)) == 1) is tried


def test_it_is_tried_less_and_less_often_but_every_ten_minutes() -> None:
    world, memory, now, tries = asked_back(), Memory(), NOW, list[float]()
    while now <= NOW + HOUR:
        made = plan.make_plan(world.snapshot(), builders.mandate(), memory, now)
        tries += [now - NOW for _ in names_of(made, Resume)]
        memory, now = end(made, Resume), now + MINUTE
    assert [each / MINUTE for each in tries] == [0, 2, 6, 14, 24, 34, 44, 54]


def test_whoever_mends_it_need_not_wait() -> None:
    world = asked_back()
    memory = end(plan.make_plan(world.snapshot(), builders.mandate(), Memory(), NOW), Resume)
    world.workloads[0] = msgspec.structs.replace(world.workloads[0], resource_version="another")
    made = plan.make_plan(world.snapshot(), builders.mandate(), memory, NOW + 1)
    assert len(names_of(made, Resume)) == 1


def test_what_succeeded_or_is_gone_is_forgotten() -> None:
    world = asked_back()
    made = plan.make_plan(world.snapshot(), builders.mandate(), Memory(), NOW)
    failed = end(made, Resume)
    assert (len(failed.vain), fairness.note(failed.vain, [Outcome(made.decisions[0], Status.done, NOW, "")], NOW)) == (
        1, {}
    )
    assert plan.make_plan(World().snapshot(), builders.mandate(), failed, NOW + 1).memory.vain == {}
