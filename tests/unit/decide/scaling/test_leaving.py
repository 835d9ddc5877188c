"""A node that leaves, step by step: our own drain, and a cloud that takes its machine back."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some
from tests.unit.decide.scaling.stage import NOW, daemon, node, pod, policy

from fallow import names
from fallow.decide import scaling
from fallow.model.cost import CapacityType
from fallow.model.leaving import (
    BeginSpot,
    DeleteNode,
    DeleteNow,
    EvictNow,
    LeavingNode,
    LeavingStep,
    RemoveMachine,
    StayPut,
    UndoDrain,
)
from fallow.model.policies.scaling import NodeDriver, PoolTaint, ScalingMode, ScalingPolicy
from fallow.model.scaling import DrainKind, DrainRecord, EvictionRank, ScaledPod, SpotRecord
from fallow.model.scaling_plan import Brake, Release

LOW, MEDIUM, HIGH = EvictionRank
RECORD = DrainRecord(1, "default", NOW - 60, DrainKind.under_used, "hardly used", True)
TAINT = PoolTaint(names.SCALE_DOWN, "", "NoSchedule")


def drained(*pods: ScaledPod, record: DrainRecord | None = RECORD, now: float = NOW, **more: Any) -> LeavingStep:
    """The one step that is next."""
    about = {key: more.pop(key) for key in tuple(more) if key in node("n").__struct_fields__}
    there = node("n1", drain=record, **{"is_cordoned": True, "taints": (TAINT,), "use": 0.05, **about})
    steps = scaling.advance(LeavingNode(**{"node": there, "pods": pods, "policy": policy(), **more}), now)
    assert len(steps) == 1
    return steps[0]


def tell(**more: Any) -> DrainRecord:
    return msgspec.structs.replace(RECORD, **more)


@pytest.mark.accepts("scaling", 11)
def test_a_node_with_only_daemons_goes_at_once() -> None:
    step = drained(daemon("exporter", "n1"), record=tell(since=NOW, reason=DrainKind.empty))
    assert isinstance(step, RemoveMachine)
    assert step.record.removing == NOW


def test_a_drain_begins_with_what_it_found() -> None:
    release = Release(policy="default", node="n1", uid="uid-n1", kind=DrainKind.empty, because="nobody is on it")
    assert scaling.begin_drain(release, node("n1"), NOW).record == DrainRecord(
        1, "default", NOW, DrainKind.empty, "nobody is on it", True
    )
    assert not scaling.begin_drain(release, node("n1", is_cordoned=True), NOW).record.cordoned_by_us


def test_the_lowest_in_rank_leaves_first_and_who_is_refused_is_asked_again() -> None:
    three = [pod("a", 1, "n1", rank=HIGH), pod("b", 1, "n1", rank=LOW), pod("c", 1, "n1"), daemon("d", "n1")]
    assert drained(*three) == EvictNow(three[1].id)
    assert isinstance(drained(*three, refused_at=NOW - 9), StayPut)
    assert drained(*three, refused_at=NOW - 10) == EvictNow(three[1].id)
    gone = msgspec.structs.replace(three[1], is_going=True)
    assert drained(three[0], gone, three[2]) == EvictNow(three[2].id)
    assert isinstance(drained(gone), StayPut)


@pytest.mark.accepts("scaling", 12)
def test_who_refuses_too_long_is_left_there() -> None:
    there = pod("a", 1, "n1")
    assert isinstance(drained(there, record=tell(since=NOW - 900)), EvictNow)
    step = drained(there, record=tell(since=NOW - 901, refused="Cannot evict pod: budget"))
    assert isinstance(step, UndoDrain)
    assert step.uncordons
    assert step.rests == 3600
    assert "Cannot evict" in step.because


@pytest.mark.accepts("scaling", 13)
def test_who_waits_and_fits_stops_a_drain() -> None:
    step = drained(pod("a", 1, "n1"), wanted="ml/new")
    assert isinstance(step, UndoDrain)
    assert "ml/new" in step.because
    assert isinstance(drained(record=tell(removing=NOW - 5), wanted="ml/new"), StayPut)


@pytest.mark.parametrize("change", [
    {"policy": None}, {"policy": policy(mode=ScalingMode.recommend)}, {"policy": policy(enabled=False)},
    {"policy": policy(invalid=("spec.x is wrong",))}, {"is_cordoned": False}, {"blocked": "more than one budget"},
    {"kept": "scale-down-disabled"}, {"use": 0.5},
], ids=str)
def test_anybodys_word_stops_a_drain(change: dict[str, Any]) -> None:
    step = drained(pod("a", 1, "n1"), **change)
    assert isinstance(step, UndoDrain)
    assert step.uncordons is change.get("is_cordoned", True)


@pytest.mark.accepts("scaling", 15)
@pytest.mark.parametrize("brake", list(Brake))
def test_a_brake_holds_up_a_drain_that_runs_too_and_not_for_ever(brake: Brake) -> None:
    halted = {"brakes": {brake: "5 of 10 nodes are not Ready"}}
    for guests in ((pod("a", 1, "n1"),), ()):
        assert drained(*guests, **halted) == StayPut("5 of 10 nodes are not Ready")
        late = drained(*guests, record=tell(since=NOW - 901), **halted)
        assert isinstance(late, UndoDrain)
        assert (late.uncordons, "5 of 10" in late.because) == (True, True)
    told = drained(record=tell(removing=NOW - 60), **halted)
    assert isinstance(told, RemoveMachine), "what was told to go goes"
    never_came = drained(record=tell(reason=DrainKind.failed), is_ready=False, **halted)
    assert isinstance(never_came, StayPut) is (brake in (Brake.TooManyUnready, Brake.ProviderFailing))


def test_somebody_elses_cordon_stays() -> None:
    step = drained(pod("a", 1, "n1", fixed="nobody makes it again"), record=tell(cordoned_by_us=False))
    assert isinstance(step, UndoDrain)
    assert not step.uncordons


@pytest.mark.parametrize("kind", [DrainKind.empty, DrainKind.squatted])
def test_a_new_gpu_pod_stops_a_drain_that_counted_on_none(kind: DrainKind) -> None:
    assert isinstance(drained(pod("a", 1, "n1"), record=tell(reason=kind)), UndoDrain)
    assert isinstance(drained(pod("a", 0, "n1"), record=tell(reason=kind)), EvictNow)


def test_unknown_use_holds_a_drain() -> None:
    assert isinstance(drained(pod("a", 1, "n1"), use=None), StayPut)
    assert isinstance(drained(pod("a", 1, "n1"), use=None, record=tell(since=NOW - 901)), UndoDrain)


def test_nobody_is_sent_away_from_a_drained_node_who_has_no_place_by_now() -> None:
    there = pod("a", 1, "n1")
    assert isinstance(drained(there, stuck="its 1 pod does not fit elsewhere"), StayPut)
    assert isinstance(drained(there, stuck="none", record=tell(since=NOW - 901)), UndoDrain)
    assert isinstance(drained(stuck="none"), RemoveMachine)


def test_a_machine_that_was_told_to_go_is_told_again_and_its_node_goes_in_the_end() -> None:
    assert isinstance(drained(record=tell(removing=NOW - 59)), StayPut)
    again = drained(record=tell(removing=NOW - 60))
    assert isinstance(again, RemoveMachine)
    assert (again.record.removing, again.record.asked) == (NOW - 60, NOW)
    assert isinstance(drained(record=again.record, now=NOW + 59), StayPut), "once a minute"
    assert isinstance(drained(record=again.record, now=NOW + 60), RemoveMachine)
    assert isinstance(drained(record=tell(removing=NOW - 900), is_gone=True), StayPut)
    assert isinstance(drained(record=tell(removing=NOW - 901), is_gone=True), DeleteNode)


@pytest.mark.parametrize("rule", [None, policy(mode=ScalingMode.recommend)], ids=["gone", "recommend"])
def test_no_node_is_deleted_whose_cloud_never_said_that_its_machine_is_gone(rule: ScalingPolicy | None) -> None:
    """Its cloud may have failed all the while, or nobody may ask it any more."""
    long_ago = tell(removing=NOW - 5000)
    assert isinstance(drained(record=long_ago), RemoveMachine)
    assert isinstance(drained(record=long_ago, unlisted="the cloud is down"), StayPut)
    assert isinstance(drained(record=tell(removing=NOW - 900), policy=rule), StayPut)
    back = drained(record=long_ago, policy=rule)
    assert isinstance(back, UndoDrain)
    assert back.uncordons
    assert isinstance(drained(record=long_ago, policy=rule, is_ready=False), StayPut)
    assert isinstance(drained(record=long_ago, policy=rule, is_ready=False, is_gone=True), StayPut), "others delete it"


@pytest.mark.parametrize("kind", [DrainKind.empty, DrainKind.failed])
def test_a_node_whose_machine_nobody_lists_is_given_back(kind: DrainKind) -> None:
    about: dict[str, Any] = {"unlisted": "its cloud does not list its machine", "is_ready": kind is DrainKind.empty}
    assert isinstance(drained(record=tell(reason=kind, since=NOW - 900), **about), StayPut)
    step = drained(record=tell(reason=kind, since=NOW - 901), **about)
    assert isinstance(step, UndoDrain)
    assert "does not list" in step.because
    advice = msgspec.structs.replace(SPOT, ends_at=None)
    assert isinstance(taken(record=advice, lead=None, now=NOW + 900, unlisted="none")[0], StayPut)
    assert isinstance(taken(record=advice, lead=None, now=NOW + 901, unlisted="none")[0], UndoDrain)


@pytest.mark.parametrize(("change", "says"), [
    ({}, ""), ({"is_cordoned": True}, "cordoned"), ({"is_cordoned": True, "is_emptied": True}, ""),
    ({"is_ready": False}, "not Ready"), ({"kept": "people say so"}, "people say so"),
    ({"unlisted": "its cloud does not list it"}, "does not list"),
    ({"unlisted": "its cloud does not list it", "driver": NodeDriver.karpenter}, ""),
    ({"pods": (pod("moves", 1, "n1"), daemon("exporter", "n1"), pod("ends", 1, "n1", is_going=True))}, ""),
    ({"pods": (pod("moves", 1, "n1"), pod("new", 1, "n1"))}, "ml/new has come"),
], ids=str)
def test_a_drain_begins_only_with_what_was_planned(change: dict[str, Any], says: str) -> None:
    release = Release(
        policy="default", node="n1", uid="uid-n1", kind=DrainKind.under_used, because="hardly used",
        moves=((pod("moves", 1, "n1").id, "n2"),),
    )
    about = {key: change[key] for key in change if key in node("n").__struct_fields__}
    more = {key: change[key] for key in change if key not in about}
    there = LeavingNode(**{"node": node("n1", **about), "pods": (), "policy": policy(), **more})
    found = scaling.find_objection(release, there)
    assert says in found
    assert bool(says) is bool(found)


def test_another_autoscaler_takes_an_empty_node_away_or_it_comes_back() -> None:
    for driver in (NodeDriver.karpenter, NodeDriver.cluster_autoscaler):
        assert isinstance(drained(driver=driver), StayPut)
        assert isinstance(drained(driver=driver, record=tell(since=NOW - 2701)), UndoDrain)


def test_a_node_that_never_came_goes_unless_it_does_come() -> None:
    failed = tell(reason=DrainKind.failed)
    assert isinstance(drained(record=failed, is_ready=False, use=None), RemoveMachine)
    assert isinstance(drained(record=failed, is_ready=True), UndoDrain)
    used = drained(pod("runs", 1, at="n1"), record=failed, is_ready=False, use=None)
    assert isinstance(used, UndoDrain)  # it was of use, and is unready for another reason
    assert isinstance(drained(daemon("exporter", "n1"), record=failed, is_ready=False, use=None), RemoveMachine)


def test_a_record_that_cannot_be_read_is_undone() -> None:
    step = drained(record=None, is_broken=True)
    assert isinstance(step, UndoDrain)
    assert step.uncordons
    notice = drained(record=None, is_broken=True, taints=(PoolTaint(names.SPOT_INTERRUPTION, "", "NoSchedule"),))
    assert isinstance(notice, UndoDrain)
    assert notice.uncordons
    other = drained(record=None, is_broken=True, taints=())
    assert isinstance(other, UndoDrain)
    assert not other.uncordons


@given(
    seconds=some.lists(some.sampled_from([1.0, 9.0, 30.0, 400.0]), min_size=1, max_size=80),
    refusing=some.booleans(), crashes=some.booleans(),
)
def test_a_drain_ends_whatever_happens(seconds: list[float], refusing: bool, crashes: bool) -> None:
    """Gone or undone within its patience and one step, and nobody who refuses is ever deleted."""
    record, pods, now = tell(since=NOW, removing=None), [pod("a", 1, "n1"), pod("b", 1, "n1", rank=LOW)], NOW
    for step_of_time in (*seconds, 1000.0, 1000.0):
        now += step_of_time
        is_gone = record.removing is not None
        step = drained(*pods, record=record, now=now, refused_at=now - 11 if refusing else None, is_gone=is_gone)
        assert not isinstance(step, DeleteNow)
        if isinstance(step, EvictNow) and not refusing:
            pods = [each for each in pods if each.id != step.pod]
        elif isinstance(step, RemoveMachine):
            record = record if crashes and record.removing is None and now < NOW + 100 else step.record
        elif isinstance(step, UndoDrain | DeleteNode):
            break
    assert isinstance(step, UndoDrain | DeleteNode)


# ---- spot ------------------------------------------------------------------------------------------------------------

SPOT = SpotRecord(1, "default", NOW, NOW + 120, True)


def taken(
    *pods: ScaledPod, record: SpotRecord | None = SPOT, now: float = NOW, lead: float | None = 120, **more: Any
) -> tuple[LeavingStep, ...]:
    about = {key: more.pop(key) for key in tuple(more) if key in node("n").__struct_fields__}
    there = node("n1", spot=record, tier=CapacityType.spot, warned_at=NOW, **{
        "ends_at": None if lead is None else NOW + lead, "is_cordoned": record is not None, **about,
    })
    return scaling.advance(LeavingNode(**{"node": there, "pods": pods, "policy": policy(), **more}), now)


def test_a_notice_cordons_first() -> None:
    assert taken(pod("a", 1, "n1"), record=None) == (BeginSpot(SPOT),)
    admin = taken(record=None, is_cordoned=True)[0]
    assert isinstance(admin, BeginSpot)
    assert not admin.record.cordoned_by_us
    during = taken(record=None, is_cordoned=True, drain=RECORD)[0]
    assert isinstance(during, BeginSpot)
    assert during.record.cordoned_by_us


@pytest.mark.accepts("scaling", 17)
def test_a_notice_of_two_minutes_gives_everybody_their_own_time() -> None:
    """Low at once, medium 10 s later, high 20 s later; whoever needs 60 s leaves 65 s before the end at the latest."""
    low, medium, high = (pod(each, 1, "n1", rank=each, grace=60.0) for each in (LOW, MEDIUM, HIGH))
    three = (high, medium, low)
    assert taken(*three) == (EvictNow(low.id, 60.0),)
    assert taken(*three, now=NOW + 10) == (EvictNow(low.id, 60.0), EvictNow(medium.id, 60.0))
    last = taken(*three, now=NOW + 20)
    assert [each.pod for each in last if isinstance(each, EvictNow)] == [low.id, medium.id, high.id]
    slow = pod("slow", 1, "n1", rank=HIGH, grace=110.0)
    assert isinstance(taken(slow, now=NOW + 4)[0], StayPut)
    assert taken(slow, now=NOW + 5) == (EvictNow(slow.id, 110.0),)


@pytest.mark.accepts("scaling", 18)
def test_a_notice_of_half_a_minute_is_for_all_at_once() -> None:
    record = msgspec.structs.replace(SPOT, ends_at=NOW + 30)
    slow, quick = pod("slow", 1, "n1", rank=HIGH, grace=300.0), pod("quick", 1, "n1", rank=LOW, grace=10.0)
    assert taken(slow, quick, record=record, lead=30) == (EvictNow(quick.id, 10.0), EvictNow(slow.id, 25.0))


def test_a_budget_that_refuses_is_asked_until_it_is_too_late() -> None:
    there = pod("a", 1, "n1", rank=LOW, grace=30.0)
    refused = frozenset({there.id.uid})
    assert taken(there, now=NOW + 80, refused=refused) == (EvictNow(there.id, 30.0),)
    assert isinstance(taken(there, now=NOW + 80, refused=refused, refused_at=NOW + 78)[0], StayPut)
    assert taken(there, now=NOW + 85, refused=refused) == (DeleteNow(there.id, 30.0),)
    assert taken(there, now=NOW + 119, refused=refused) == (DeleteNow(there.id, 1.0),)


def test_one_who_refuses_does_not_keep_the_others() -> None:
    stuck, other = pod("a", 1, "n1", rank=LOW), pod("b", 1, "n1", rank=LOW)
    steps = taken(stuck, other, now=NOW + 1, refused=frozenset({stuck.id.uid}), refused_at=NOW)
    assert steps == (EvictNow(other.id, 30.0),)


def test_a_false_alarm_is_undone_and_not_begun_again() -> None:
    assert isinstance(taken(now=NOW + 120 + 600)[0], StayPut)
    step = taken(now=NOW + 120 + 601)[0]
    assert isinstance(step, UndoDrain)
    assert step.uncordons
    assert isinstance(taken(now=NOW + 120 + 601, is_ready=False)[0], StayPut)
    assert isinstance(taken(record=None, now=NOW + 120 + 601)[0], StayPut)


def test_advice_of_a_cloud_is_a_polite_drain() -> None:
    record = msgspec.structs.replace(SPOT, ends_at=None)
    two = pod("a", 1, "n1", rank=LOW), pod("b", 1, "n1", rank=LOW)
    assert taken(*two, record=record, lead=None) == (EvictNow(two[0].id),)
    fixed = pod("c", 1, "n1", fixed="nobody makes it again")
    assert isinstance(taken(fixed, record=record, lead=None)[0], UndoDrain)
    removal = taken(record=record, lead=None)[0]
    assert isinstance(removal, RemoveMachine)
    assert removal.record.removing == NOW
    assert isinstance(taken(*two, record=record, lead=None, now=NOW + 901)[0], UndoDrain)
    notice = taken(*two, record=record, now=NOW + 30)[0]
    assert isinstance(notice, BeginSpot)
    assert notice.record.ends_at == NOW + 120
    rests = taken(record=None, lead=None, rests_until=NOW + 60)
    assert isinstance(rests[0], StayPut)


@given(
    lead=some.integers(0, 300), grace=some.integers(0, 4000), late=some.integers(0, 400),
    rank=some.sampled_from([*EvictionRank]), is_refused=some.booleans(),
)
def test_nobody_is_killed_without_time_nor_told_after_the_end(
    lead: int, grace: int, late: int, rank: EvictionRank, is_refused: bool
) -> None:
    there = pod("a", 1, "n1", rank=rank, grace=grace)
    refused = frozenset({there.id.uid}) if is_refused else frozenset()
    record = msgspec.structs.replace(SPOT, ends_at=NOW + lead)
    for step in taken(there, record=record, lead=lead, now=NOW + late, refused=refused):
        if isinstance(step, EvictNow | DeleteNow):
            assert step.grace is not None
            assert 1 <= step.grace <= max(1.0, grace)
            assert step.grace <= max(1.0, lead - late - 5)
        else:
            assert isinstance(step, StayPut)
            assert late < min(20.0, max(0.0, lead - grace - 5))
