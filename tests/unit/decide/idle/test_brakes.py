"""How fast we go: order, caps, the freeze, and who waits under pressure only."""

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import builders
from tests.builders import NOW, World, idle, paused_marks

from fallow import names
from fallow.decide.idle import brakes, plan
from fallow.model import cluster, decision
from fallow.model.decision import Alert, Code, Memory, Outcome, Pause, Plan, Reason, Status, Warn
from fallow.model.long_memory import Freeze, Level, LongMemory, PastPause
from fallow.model.policies import idle as policy
from fallow.model.policies.idle import Brakes
from fallow.model.seen import ABSENT, Known, Register, Unseen
from fallow.model.units import DAY, HOUR, MINUTE

WIDE = Brakes(confirm_cycles=1, max_actions_per_cycle=1000, max_actions_per_namespace=1000, max_percent_per_hour=100.0)


def make(
    world: World, said: Brakes, memory: Memory | None = None, *, rule: policy.Rule | None = None, **seen: Any
) -> Plan:
    return plan.make_plan(world.snapshot(**seen), builders.mandate(rule, brakes=said), memory or Memory(), world.now)


def paused(made: Plan) -> list[str]:
    return [each.finding.workload.ref.name for each in made.decisions if isinstance(each, Pause)]


def brake(**said: Any) -> Brakes:
    return msgspec.structs.replace(WIDE, **said)


def test_the_longest_idle_times_gpus_goes_first() -> None:
    world = World()
    world.workload("ml/long", gpus=[idle(for_=5 * HOUR)])
    world.workload("ml/wide", gpus=[idle(for_=2 * HOUR)] * 8)
    world.workload("ml/short", gpus=[idle(for_=HOUR)])
    assert paused(make(world, WIDE)) == ["wide", "long", "short"]


@pytest.mark.accepts("idle", 25)
def test_of_50_candidates_10_are_paused_and_40_are_capped() -> None:
    world = World()
    for index in range(50):
        world.workload(f"team-{index}/llm", gpus=[idle(for_=HOUR + index)])
    made = make(world, brake(max_actions_per_cycle=10))
    assert len(paused(made)) == 10
    counted = {Reason.GoneIdle: 10, Reason.Capped: 40}
    heading, quiet = decision.Heading, decision.Verdict.idle
    assert made.totals.verdicts == {heading(quiet, reason): count for reason, count in counted.items()}
    assert made.findings[0].skip is Reason.Capped
    assert made.findings[49].skip is None
    assert "10 pauses in one cycle" in made.findings[0].skip_because


def test_no_namespace_loses_more_than_its_share_in_one_cycle() -> None:
    world = World()
    for index in range(4):
        world.workload(f"ml/llm-{index}", gpus=[idle(for_=HOUR + index)])
    world.workload("web/api", gpus=[idle(for_=40 * MINUTE)])
    assert paused(make(world, brake(max_actions_per_namespace=2))) == ["llm-3", "llm-2", "api"]


PERCENT = {
    "rounds-up": (21.0, [], 3),
    "exactly": (30.0, [], 3),
    "one-always-fits": (0.0, [], 1),
    "paused-before-counts": (30.0, [(10 * MINUTE, 2)], 2),  # of 12 that were held at the begin of the hour: four
    "all-of-them": (100.0, [(10 * MINUTE, 10)], 10),
    "an-hour-ago-does-not": (30.0, [(HOUR, 2)], 3),
    "used-up": (30.0, [(10 * MINUTE, 9)], 0),
}


@pytest.mark.parametrize(("percent", "before", "count"), PERCENT.values(), ids=PERCENT.keys())
def test_only_a_share_of_all_gpus_is_paused_in_an_hour(
    percent: float, before: list[tuple[float, int]], count: int
) -> None:
    world = World()
    for index in range(10):
        world.workload(f"ml/llm-{index}")
    for index, (ago, _) in enumerate(before):
        world.workload(f"ml/old-{index}", pods=(), annotations=paused_marks(NOW - ago), body={"spec": {"replicas": 0}})
    known = [PastPause(f"uid-ml/old-{index}", NOW - ago, gpus, "flags") for index, (ago, gpus) in enumerate(before)]
    memory = Memory(long=LongMemory(pauses=tuple(known)))
    assert len(paused(make(world, brake(max_percent_per_hour=percent), memory))) == count


@pytest.mark.parametrize("bound_to", ["nowhere", "node-1"])
def test_gpus_that_no_kubelet_granted_are_no_part_of_all(bound_to: str) -> None:
    """Whoever may create pods may name their node, and ask for anything."""
    world = World()
    for index in range(5):
        world.workload(f"ml/llm-{index}")
    asks = {"node": bound_to, "phase": "Pending", "started_at": None, "resources": {names.GPU: 9999}}
    world.workload("evil/phantom", gpus=(), pod=asks)
    nodes = {name: node for name, node in world.snapshot().nodes.known.items() if name != "nowhere"}
    assert len(paused(make(world, brake(max_percent_per_hour=20.0), nodes=Register(nodes)))) == 1


@pytest.mark.accepts("idle", 49)
@pytest.mark.parametrize("since", ["resumed", "gone", "stands"])
def test_pauses_of_the_last_hour_count_whatever_became_of_them(since: str) -> None:
    world = World()
    for index in range(8):
        world.workload(f"ml/llm-{index}")
    if since != "gone":
        pods, body = ((), {"spec": {"replicas": 0}}) if since == "stands" else (None, {"spec": {"replicas": 2}})
        world.workload("ml/old", gpus=[builders.busy()] * 2, body=body, **({} if pods is None else {"pods": pods}))
    on_lease = LongMemory(at=NOW - MINUTE, pauses=(PastPause("uid-ml/old", NOW - 10 * MINUTE, 2, "flags"),))
    made = make(world, brake(max_percent_per_hour=20.0), long_memory=on_lease)
    assert (len(paused(made)), made.memory.long.pauses) == (0, on_lease.pauses)
    assert made.findings[0].skip is Reason.Capped


@pytest.mark.parametrize("at", [NOW, NOW + 73 * 365 * DAY, NOW - MINUTE])
def test_no_mark_of_a_tenant_uses_up_the_hour(at: float) -> None:
    world = World()
    for index in range(10):
        world.workload(f"ml/llm-{index}")
    world.workload("ml/evil", pods=(), annotations=paused_marks(at, 999_999), body={"spec": {"replicas": 0}})
    assert len(paused(make(world, brake(max_percent_per_hour=20.0)))) == 2


def test_what_was_summed_up_counts_for_every_rule_and_frees_nothing() -> None:
    world = World()
    for index in range(10):
        world.workload(f"ml/llm-{index}")
    world.policies = [policy.IdlePolicy(name="p", uid="u", generation=1, rule=builders.rule(max_percent_per_hour=30.0))]
    many = Memory(long=LongMemory(pauses=(PastPause("", NOW - MINUTE, 2, ""),)))
    assert len(paused(make(world, WIDE, many))) == 1


def test_a_stamp_in_the_future_is_none() -> None:
    world = World()
    world.workload()
    world.workload("ml/other")
    late = LongMemory(
        at=NOW + DAY, pauses=(PastPause("a", NOW + DAY, 9, "flags"),), levels=(Level(0, 9, NOW + DAY),) * 3
    )
    made = make(world, brake(max_percent_per_hour=50.0), long_memory=late)
    assert (len(paused(made)), made.memory.long.pauses, len(made.memory.long.levels)) == (1, (), 1)


def test_after_lost_memory_nothing_is_paused_for_an_hour() -> None:
    world, seen = World(), []
    world.workload(gpus=[idle(for_=9 * HOUR)])
    memory, lost = Memory(), LongMemory(lost_at=NOW)
    for after in (0, 59 * MINUTE, HOUR):
        world.now = NOW + after
        made = make(world, WIDE, memory, long_memory=lost if not after else LongMemory())
        memory = made.memory
        seen.append(made.findings[0].skip)
    assert seen == [Reason.Capped, Reason.Capped, None]


# ---- what is tried in vain -------------------------------------------------------------------------------------------


def outcomes(made: Plan, status: Status, code: Code | None = None) -> list[Outcome]:
    return [Outcome(each, status, made.at, "403 no", code=code) for each in made.decisions if isinstance(each, Pause)]


def vain() -> World:
    """Twelve that refuse, idle for longest, and six others."""
    world = World()
    for index in range(12):
        world.workload(f"no-{index}/llm", gpus=[idle(for_=9 * HOUR)])
    for index in range(6):
        world.workload(f"yes-{index}/api", gpus=[idle(for_=HOUR)])
    return world


@pytest.mark.accepts("idle", 48)
@pytest.mark.parametrize("interval", [10.0, 180.0, 1200.0])
@pytest.mark.parametrize("status", [Status.failed, Status.refused, Status.overtaken])
def test_ten_in_vain_do_not_hold_up_the_rest(status: Status, interval: float) -> None:
    world, memory, done = vain(), Memory(), list[str]()
    for cycle in range(3):
        world.now = NOW + cycle * interval
        made = make(world, brake(max_actions_per_cycle=10, max_percent_per_hour=60.0), memory)
        every = [
            Outcome(each, Status.done if each.finding.workload.ref.name == "api" else status, made.at, "403 no")
            for each in made.decisions if isinstance(each, Pause)
        ]
        assert len(every) <= 10
        done += [each.decision.finding.workload.ref.namespace for each in every if each.status is Status.done]
        memory = plan.remember(made, every)
    assert sorted(set(done)) == [f"yes-{index}" for index in range(6)]
    assert len(memory.long.pauses) >= 6


def test_a_workload_backs_off_longer_each_time_and_an_hour_at_most() -> None:
    world, memory, waits = World(), Memory(), list[float]()
    world.workload(gpus=[idle(for_=9 * HOUR)])
    for _ in range(7):
        made = make(world, WIDE, memory)
        memory = plan.remember(made, outcomes(made, Status.failed))
        (attempt,) = memory.long.attempts
        waits.append((attempt.until - world.now) / MINUTE)
        world.now = attempt.until - 1
        held = make(world, WIDE, memory).findings[0]
        assert (held.skip, held.next_at) == (Reason.BackingOff, attempt.until)
        assert "403 no" in held.skip_because
        world.now = attempt.until
    assert waits == [2, 4, 8, 16, 32, 60, 60]
    made = make(world, WIDE, memory)
    assert plan.remember(made, outcomes(made, Status.done)).long.attempts == ()


def test_who_acts_once_tries_again_at_once_and_after_the_others() -> None:
    world = vain()
    made = make(world, brake(max_actions_per_cycle=10, backs_off=False))
    memory = plan.remember(made, outcomes(made, Status.failed))
    again = paused(make(world, brake(max_actions_per_cycle=10, backs_off=False), memory))
    assert again == ["llm"] * 2 + ["api"] * 6 + ["llm"] * 2


def test_an_attempt_whose_answer_was_lost_counts_once_it_is_seen_paused() -> None:
    world = World()
    world.workload(gpus=[idle()] * 4)
    made = make(world, WIDE)
    memory = plan.remember(made, outcomes(made, Status.failed))
    world.workloads.clear(), world.pods.clear(), world.gpus.clear()
    world.workload(pods=(), annotations=paused_marks(NOW), body={"spec": {"replicas": 0}})
    world.now = NOW + MINUTE
    after = make(world, WIDE, memory).memory.long
    assert (after.pauses, after.attempts) == ((PastPause("uid-ml/llm", NOW + MINUTE, 4, "flags"),), ())


def test_what_was_not_begun_is_no_attempt() -> None:
    world = World()
    world.workload()
    made = make(world, WIDE)
    assert plan.remember(made, outcomes(made, Status.overtaken, Code.NotBegun)).long.attempts == ()


def test_what_is_expected_before_the_act_is_what_is_remembered_when_all_succeeds() -> None:
    world = World()
    world.workload()
    made = make(world, WIDE)
    assert plan.expect(made) == plan.remember(made, outcomes(made, Status.done)).long
    assert [each.uid for each in plan.expect(made).pauses] == ["uid-ml/llm"]


def test_a_dry_run_counts_what_it_would_have_paused() -> None:
    world, memory, mandate = World(), Memory(), builders.mandate(brakes=brake(max_percent_per_hour=30.0), acting=False)
    for index in range(10):
        world.workload(f"ml/llm-{index}", gpus=[idle(for_=HOUR + index)])
    names_seen = []
    for _ in range(2):
        made = plan.make_plan(world.snapshot(), mandate, memory, NOW)
        memory = plan.remember(made, [Outcome(each, Status.dry_run, NOW, "") for each in made.decisions])
        names_seen.append(paused(made))
    assert names_seen == [["llm-9", "llm-8", "llm-7"], []]


@pytest.mark.parametrize(
    ("limits", "count"), [({"max_actions_per_cycle": 1}, 1), ({"max_percent_per_hour": 50.0}, 2), ({}, 4)]
)
def test_a_policys_limits_lie_inside_the_global_ones(limits: dict[str, Any], count: int) -> None:
    world = World()
    for index in range(4):
        world.workload(f"ml/llm-{index}")
        world.workload(f"web/api-{index}")
    rule = builders.rule(name="strict", **limits)
    only_ml = (builders.pattern("ml"),)
    world.policies = [policy.IdlePolicy(name="strict", uid="u", generation=1, rule=rule, namespaces=only_ml)]
    made = paused(make(world, WIDE))
    assert len([name for name in made if name.startswith("llm")]) == count
    assert len([name for name in made if name.startswith("api")]) == 4


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), st.floats(HOUR, 9 * HOUR)), min_size=1, max_size=12),
    st.integers(0, 6), st.integers(0, 4), st.floats(0, 100),
)
def test_no_cap_is_ever_exceeded(
    workloads: list[tuple[int, int, float]], cycle: int, per_namespace: int, percent: float
) -> None:
    world = World()
    for index, (team, gpus, long) in enumerate(workloads):
        world.workload(f"team-{team}/w{index}", gpus=[idle(for_=long)] * gpus)
    said = brake(max_actions_per_cycle=cycle, max_actions_per_namespace=per_namespace, max_percent_per_hour=percent)
    chosen = [each.finding for each in make(world, said).decisions if isinstance(each, Pause)]
    allocated = sum(gpus for _, gpus, _ in workloads)
    assert len(chosen) <= cycle
    for team in range(3):
        assert sum(finding.workload.ref.namespace == f"team-{team}" for finding in chosen) <= per_namespace
    assert len(chosen) <= 1 or sum(finding.gpus for finding in chosen) <= math.ceil(percent / 100 * allocated + 1e-6)


# ---- confirmation --------------------------------------------------------------------------------------------------


def test_a_workload_must_be_found_idle_in_so_many_cycles_in_a_row() -> None:
    world, memory, seen = World(), Memory(), []
    for gpu in (idle(), idle(age=HOUR), idle(), idle()):
        world.workloads.clear(), world.pods.clear(), world.gpus.clear()
        world.workload(gpus=[gpu])
        made = make(world, brake(confirm_cycles=2), memory)
        memory = made.memory
        seen.append((made.findings[0].skip, len(made.decisions)))
    assert seen == [(Reason.Confirming, 0), (None, 0), (Reason.Confirming, 0), (None, 2)]


STALE = {
    "fresh": (360.0, 1, 1, None),
    "old": (361.5, 1, 1, Reason.Confirming),
    "another-led-since": (180.0, 3, 1, Reason.Confirming),
    "another-leads-anew": (180.0, None, 1, Reason.Confirming),
}


@pytest.mark.parametrize(("age", "term", "before", "skip"), STALE.values(), ids=STALE.keys())
def test_confirmations_go_stale_with_time_and_with_another_leader(
    age: float, term: int | None, before: int, skip: Reason | None
) -> None:
    world = World()
    world.workload()
    memory = Memory(at=NOW - age, term=before, confirmed={"uid-ml/llm": 1})
    made = make(world, brake(confirm_cycles=2, confirm_within=361.0), memory, lease_term=term)
    assert (made.findings[0].skip, made.memory.at, made.memory.term) == (skip, NOW, term)


def test_when_all_policies_are_gone_the_flags_wait_an_hour() -> None:
    world, seen = World(), list[Any]()
    world.workload(gpus=[idle(for_=9 * HOUR)])
    world.policies = [policy.IdlePolicy(name="p", uid="u", generation=1, rule=builders.rule(name="p"))]
    on_lease = make(world, WIDE).memory.long
    world.policies = []
    for after in (MINUTE, 59 * MINUTE, HOUR):
        world.now = NOW + after
        made = make(world, WIDE, long_memory=on_lease)
        on_lease = made.memory.long
        seen.append((made.findings[0].skip, len(paused(made))))
    assert seen == [(Reason.Confirming, 0), (Reason.Confirming, 0), (None, 1)]
    assert on_lease.policies == ("p",)


# ---- freeze --------------------------------------------------------------------------------------------------------


def levels(*idle_gpus: int, of: int = 100, at: float = NOW - 3 * MINUTE) -> tuple[Level, ...]:
    return tuple(Level(each, of, at) for each in idle_gpus)


def recalling(*known: Level, **more: Any) -> Memory:
    return Memory(long=LongMemory(levels=known, **more))


def measured(idle_gpus: int, of: int = 100, at: float = NOW) -> Level:
    return Level(idle_gpus, of, at)


def watch(memory: Memory, level: Level | None, now: float = NOW, on_lease: Freeze | None = None) -> brakes.Braking:
    return brakes.watch(Brakes(), memory, on_lease, level, now)


FREEZES = {
    "jump": ((10, 10, 10), 41, True),
    "exactly-the-jump": ((10, 10, 10), 40, False),
    "under-three-known": ((10, 10), 90, False),
    "median-not-mean": ((10, 10, 10, 90, 90), 41, True),
    "no-jump": ((50, 50, 50), 60, False),
    "fewer-idle": ((90, 90, 90), 10, False),
}


@pytest.mark.parametrize(("before", "now", "freezes"), FREEZES.values(), ids=FREEZES.keys())
def test_a_jump_of_the_idle_share_freezes(before: tuple[int, ...], now: int, freezes: bool) -> None:
    found = watch(recalling(*levels(*before)), measured(now))
    assert (found.is_new, found.freeze and found.freeze.until) == (freezes, NOW + 1800 if freezes else None)


def test_a_few_gpus_more_do_not_freeze_a_small_cluster() -> None:
    memory = recalling(*levels(0, 0, 0))
    assert not watch(memory, measured(7, 10)).is_new
    assert watch(memory, measured(8, 10)).is_new


def test_only_the_last_ten_cycles_are_remembered_and_unknown_ones_not() -> None:
    memory = recalling(*levels(*range(10)))
    assert watch(memory, levels(10)[0]).levels == levels(*range(1, 11))
    assert watch(memory, None).levels == memory.long.levels


@pytest.mark.accepts("idle", 24)
def test_a_freeze_holds_on_then_the_new_level_is_the_baseline_and_work_goes_on() -> None:
    world, seen = World(), []
    for index in range(20):
        world.workload(f"ml/llm-{index}", gpus=[idle(for_=HOUR)] if index < 10 else [builders.busy()])
    memory = recalling(*levels(1, 1, 1, 1, 1, of=20))
    said = Brakes(confirm_cycles=1, freeze_hold=10 * MINUTE)
    on_lease: Freeze | None = None
    for after in (0, 3, 6, 9, 10, 13, 16, 19):
        world.now = NOW + after * MINUTE
        world.gpus = [
            (pod, msgspec.structs.replace(gpu, last_busy=world.now) if pod >= 10 else gpu) for pod, gpu in world.gpus
        ]
        made = make(world, said, memory, freeze=on_lease)
        memory = made.memory
        if made.newly_frozen and made.freeze:
            on_lease = Freeze(math.floor(made.freeze.until), made.freeze.because)
        acts = sum(isinstance(each, Warn | Pause) for each in made.decisions)
        seen.append((made.newly_frozen, made.findings[0].skip is Reason.Frozen, acts > 0))
    assert seen == [(True, True, False)] + [(False, True, False)] * 3 + [(False, False, True)] * 4
    assert memory.long.levels[0].share == 0.5


@pytest.mark.accepts("idle", 49)
@pytest.mark.parametrize("restarts", [False, True])
def test_a_restart_between_a_busy_and_an_all_idle_cluster_freezes_all_the_same(restarts: bool) -> None:
    world = World()
    for index in range(10):
        world.workload(f"ml/llm-{index}")
    before = recalling(*levels(0, 0, 0, of=10), at=NOW - MINUTE)
    memory, on_lease = (Memory(), before.long) if restarts else (before, LongMemory())
    made = make(world, brake(baseline_cycles=3), memory, long_memory=on_lease)
    assert (made.newly_frozen, paused(made)) == (True, [])
    after = make(world, brake(baseline_cycles=3), long_memory=made.memory.long, freeze=Freeze(NOW + HOUR, "jump"))
    assert (after.newly_frozen, after.memory.long.baseline_reset) == (False, True)


def test_a_daemon_without_a_baseline_pauses_nothing_in_its_first_three_cycles() -> None:
    world, memory, seen = World(), Memory(), list[Any]()
    world.workload()
    for cycle in range(4):
        world.now = NOW + cycle
        made = make(world, brake(baseline_cycles=3), memory)
        memory = made.memory
        seen.append((made.findings[0].skip, len(paused(made))))
    assert seen == [(Reason.Confirming, 0)] * 3 + [(None, 1)]


def test_a_baseline_counts_for_a_day() -> None:
    world = World()
    world.workload()
    for age, count in ((DAY - MINUTE, 1), (DAY, 0)):
        on_lease = LongMemory(at=1.0, levels=levels(1, 1, 1, at=NOW - age))
        made = make(world, brake(baseline_cycles=3), long_memory=on_lease)
        assert len(paused(made)) == count


def test_after_a_freeze_an_unknown_cycle_does_not_lose_the_baseline() -> None:
    memory = recalling(*levels(0, 0, 0), baseline_reset=True)
    assert watch(memory, None).baseline_reset
    known = watch(memory, measured(90))
    assert (known.levels, known.baseline_reset) == ((measured(90),) * 3, False)


def test_a_new_freeze_is_announced_about_ourselves() -> None:
    world = World()
    for index in range(10):
        world.workload(f"ml/llm-{index}")
    made = make(world, brake(), recalling(*levels(0, 0, 0)))
    (alert,) = made.decisions
    assert isinstance(alert, Alert)
    assert (alert.workload, alert.event) == (None, names.Event.IDLE_SHARE_JUMP)
    assert "from 0% to 100%" in alert.because


def test_our_own_freeze_holds_although_the_lease_could_not_be_written_until_it_was_seen_there() -> None:
    level = measured(90)
    first = watch(recalling(*levels(0, 0, 0)), level, NOW + 0.7)
    memory = Memory(long=LongMemory(levels=first.levels, baseline_reset=True), freeze=first.unseen)
    unseen = watch(memory, level, NOW + MINUTE)
    assert first.freeze is not None
    assert (unseen.freeze, unseen.unseen) == (Freeze(NOW + 1800.7, first.freeze.because), first.freeze)
    on_lease = Freeze(float(math.floor(NOW + 1800.7)), "jump")
    seen = watch(memory, level, NOW + MINUTE, on_lease)
    assert (seen.freeze, seen.unseen) == (on_lease, None)
    lifted = watch(msgspec.structs.replace(memory, freeze=None), level, NOW + 2 * MINUTE)
    assert (lifted.freeze, lifted.is_new, lifted.levels) == (None, False, (level,) * 3)


def test_a_freeze_by_hand_stops_notices_and_pauses_and_nothing_else() -> None:
    world = World()
    world.workload("ml/idle", annotations=builders.pending_marks(NOW - 7 * 24 * HOUR))
    world.workload("ml/busy", gpus=[builders.busy()], annotations=builders.pending_marks(NOW - HOUR))
    by_hand = Freeze(NOW + HOUR, "maintenance")
    made = make(world, WIDE, rule=builders.rule(notice=builders.notice()), freeze=by_hand)
    assert [type(each).__name__ for each in made.decisions] == ["Mark", "Mark"]
    assert (made.freeze, made.newly_frozen) == (by_hand, False)
    assert "maintenance" in made.findings[0].skip_because


# ---- pressure ------------------------------------------------------------------------------------------------------

PRESSED = builders.rule(pressure="only")


def wait(world: World, gpus: int = 1, since: float = 2 * MINUTE, **said: Any) -> None:
    facts = {"node": "", "phase": "Pending", "started_at": None, "ready": False, "unschedulable_since": NOW - since}
    world.pod("waiting", gpus=[builders.unseen()] * gpus, **{**facts, **said})


def affinity(operator: str, *values: str, key: str = "zone") -> list[Any]:
    return [{"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}]


WAITING = {
    "nobody": (None, False),
    "somebody": ({}, True),
    "not-for-long": ({"since": 59.0}, False),
    "terminating": ({"terminating": True}, False),
    "another-resource": ({"resources": {"nvidia.com/mig-1g.5gb": 1}}, False),
    "selector-fits": ({"node_selector": {"zone": "a"}}, True),
    "selector-does-not": ({"node_selector": {"zone": "b"}}, False),
    "affinity-in": ({"affinity": affinity("In", "a", "b")}, True),
    "affinity-not-in": ({"affinity": affinity("NotIn", "a")}, False),
    "affinity-exists": ({"affinity": affinity("Exists")}, True),
    "affinity-does-not-exist": ({"affinity": affinity("DoesNotExist")}, False),
    "affinity-gt": ({"affinity": affinity("Gt", "3", key="gen")}, True),
    "affinity-lt": ({"affinity": affinity("Lt", "3", key="gen")}, False),
    "affinity-of-too-many-digits": ({"affinity": affinity("Lt", "9" * 5000, key="gen")}, False),
    "affinity-odd": ({"affinity": affinity("Near", "a")}, False),
    "affinity-empty-term": ({"affinity": [{}]}, False),
    "affinity-second-term": ({"affinity": [{}, *affinity("In", "a")]}, True),
    "affinity-by-name": (
        {"affinity": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}]}, True
    ),
    "affinity-unreadable": ({"affinity": "zone a"}, False),
}


@pytest.mark.parametrize(("said", "pauses"), WAITING.values(), ids=WAITING.keys())
def test_under_pressure_only_a_pause_must_help_somebody(said: dict[str, Any] | None, pauses: bool) -> None:
    world = World()
    world.node("node-1", labels={"zone": "a", "gen": "4"})
    world.workload("ml/llm")
    if said is not None:
        wait(world, **said)
    made = make(world, WIDE, rule=PRESSED)
    assert (paused(made), made.findings[0].skip) == ((["llm"], None) if pauses else ([], Reason.NoPressure))


def in_kueue(gpus: int = 1, since: float = 2 * MINUTE, **said: Any) -> Known[tuple[cluster.Waiting, ...]]:
    asks: dict[str, Any] = {"resources": {"nvidia.com/gpu": gpus}, "node_selector": {}, "affinity": None, **said}
    return Known((cluster.Waiting(since=NOW - since, **{"each": asks["resources"], **asks}),))


QUEUED = {
    "nobody": (ABSENT, False), "somebody": (in_kueue(), True), "not-for-long": (in_kueue(since=59.0), False),
    "another-resource": (in_kueue(resources={"nvidia.com/mig-1g.5gb": 1}), False),
    "selector-does-not-fit": (in_kueue(node_selector={"zone": "b"}), False),
    "affinity-fits": (in_kueue(affinity=affinity("In", "a")), True), "unseen": (Unseen("403"), False),
}


@pytest.mark.parametrize(("queued", "pauses"), QUEUED.values(), ids=QUEUED.keys())
def test_who_waits_in_kueue_is_pressure_too(queued: Any, pauses: bool) -> None:
    world = World()
    world.node("node-1", labels={"zone": "a"})
    world.workload("ml/llm")
    made = make(world, WIDE, rule=PRESSED, queued=queued)
    assert (paused(made), made.findings[0].skip) == ((["llm"], None) if pauses else ([], Reason.NoPressure))


@pytest.mark.parametrize("by_kueue", [False, True])
@pytest.mark.parametrize(("each", "pauses"), [(8, True), (9, False), (10_000, False)])
def test_one_that_fits_on_no_node_has_nothing_paused_for_it(each: int, pauses: bool, by_kueue: bool) -> None:
    world = World()
    world.node("node-1")
    world.nodes["node-1"] = msgspec.structs.replace(world.nodes["node-1"], gpus=8, offers={"nvidia.com/gpu": 8})
    world.workload("ml/llm")
    if not by_kueue:
        wait(world, resources={"nvidia.com/gpu": each})
    queued = in_kueue(2 * each, each={"nvidia.com/gpu": each}) if by_kueue else ABSENT
    assert paused(make(world, WIDE, rule=PRESSED, queued=queued)) == (["llm"] if pauses else [])


class CountedLabels(dict[str, str]):
    looked_up = 0

    def get(self, key: str, default: Any = None) -> Any:
        self.looked_up += key == "zone"
        return super().get(key, default)


def test_many_who_wait_are_asked_once_for_each_node() -> None:
    """Thousands in a queue that no node suits, beside thousands who are idle, must not take a cycle's time."""
    world, labels = World(), CountedLabels(zone="a")
    world.node("node-1", labels=labels)
    for index in range(50):
        world.workload(f"ml/llm-{index}")
    (one,) = in_kueue(node_selector={"zone": "b"}).value
    made = make(world, WIDE, rule=PRESSED, queued=Known((one,) * 100))
    assert (paused(made), made.totals.waiting_gpus, labels.looked_up) == ([], 100, 1)


def test_where_kueue_cannot_be_seen_nothing_is_paused_for_anybodys_sake() -> None:
    """Not for the pod that is seen to wait either: with all in sight another might go, and this one be capped."""
    world = World()
    world.workload("ml/llm")
    wait(world)
    made = make(world, WIDE, rule=PRESSED, queued=Unseen("workloads.kueue.x-k8s.io may not be listed"))
    assert (paused(made), made.totals.waiting_gpus) == ([], 1)
    assert "may not be listed" in made.findings[0].skip_because
    assert paused(make(world, WIDE, queued=Unseen("403"))) == ["llm"]  # who pauses in any case does


def test_what_kueue_waits_for_is_freed_once() -> None:
    world = World()
    for index in range(4):
        world.workload(f"ml/llm-{index}", gpus=[idle(for_=HOUR + index)] * 2)
    wait(world, gpus=1)
    made = make(world, WIDE, rule=PRESSED, queued=in_kueue(gpus=2))
    assert (paused(made), made.totals.waiting_gpus) == (["llm-3", "llm-2"], 3)


def test_no_more_is_freed_than_is_waited_for() -> None:
    world = World()
    for index in range(4):
        world.workload(f"ml/llm-{index}", gpus=[idle(for_=HOUR + index)] * 2)
    wait(world, gpus=3)
    assert paused(make(world, WIDE, rule=PRESSED)) == ["llm-3", "llm-2"]


@pytest.mark.parametrize("leaving", ["terminating", "paused"])
def test_what_is_on_its_way_out_counts_as_freed(leaving: str) -> None:
    world = World()
    world.workload("ml/llm")
    is_paused = leaving == "paused"
    marks = paused_marks(NOW - MINUTE) if is_paused else {}
    world.workload("ml/old", pod={"terminating": not is_paused}, annotations=marks,
                   body={"spec": {"replicas": 0 if is_paused else 1}})
    wait(world)
    assert paused(make(world, WIDE, rule=PRESSED)) == []


def test_a_cap_does_not_use_up_what_is_waited_for() -> None:
    world = World()
    world.workload("ml/a", gpus=[idle(for_=5 * HOUR)])
    world.workload("ml/b", gpus=[idle(for_=4 * HOUR)])
    world.workload("web/c", gpus=[idle(for_=3 * HOUR)])
    wait(world, gpus=2)
    assert paused(make(world, brake(max_actions_per_namespace=1), rule=PRESSED)) == ["a", "c"]


def test_notices_go_out_without_pressure() -> None:
    world = World()
    world.workload()
    made = make(world, WIDE, rule=builders.rule(pressure="only", notice=builders.notice()))
    assert [type(each).__name__ for each in made.decisions] == ["Alert", "Warn"]
