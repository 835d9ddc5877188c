"""The plan as a whole: the second look, what is looked at closely, what is explained, what holds whatever comes in."""

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import builders
from tests.builders import NOW, World, busy, idle, never_used, pending_marks

from fallow import names
from fallow.decide.idle import plan
from fallow.model import cluster
from fallow.model.decision import Alert, Heading, Mark, Memory, Outcome, Pause, Plan, Reason, Status, Verdict, Warn
from fallow.model.long_memory import Freeze
from fallow.model.policies import idle as policy
from fallow.model.seen import Known
from fallow.model.units import HOUR, MINUTE, read_instant, rfc3339
from fallow.model.usage import Signal, SourceTrouble

POLITE = builders.rule(notice=builders.notice(grace=5 * MINUTE))


def pause_of(world: World, mandate: policy.Mandate, *windows: float) -> Pause:
    made = plan.make_plan(world.snapshot(*windows), mandate, Memory(), NOW)
    (pause,) = [each for each in made.decisions if isinstance(each, Pause)]
    return pause


def idle_world(**said: Any) -> World:
    world = World()
    world.workload(gpus=[idle(for_=HOUR)] * 2, replicas=2, annotations=pending_marks(NOW - 6 * MINUTE), **said)
    return world


# ---- the second look -----------------------------------------------------------------------------------------------


def change(world: World, **said: Any) -> World:
    """The same workload, seen again with something changed."""
    workload = msgspec.structs.replace(world.workloads[0], **said)
    if "annotations" in said:
        workload = msgspec.structs.replace(workload, marks=said["annotations"])
    world.workloads[0] = workload
    return world


MEANWHILE = {
    "nothing": (lambda world: world, ""),
    "active": (lambda world: world.gpus.__setitem__(0, (0, busy())) or world, "reached 90%"),
    "unknown": (lambda world: world.gpus.__setitem__(0, (0, idle(age=HOUR))) or world, "its last sample is 1h old"),
    "a-gpu-is-missing": (lambda world: world.gpus.pop() and world, "1 of them are measured"),
    "one-pod-more": (
        lambda world: change(world, pods=(*world.workloads[0].pods, world.pod())), "not the ones it was judged by"
    ),
    "one-pod-less": (lambda world: change(world, pods=world.workloads[0].pods[:1]), "not the ones it was judged by"),
    "acknowledged": (
        lambda world: change(
            world, annotations={**world.workloads[0].annotations, names.ACK_UNTIL: rfc3339(NOW + HOUR)}
        ),
        "acknowledged until"),
    "opted-out": (lambda world: change(world, annotations={names.OPT_OUT: "ignore"}), "it says"),
    "notice-withdrawn": (lambda world: change(world, annotations={}), "has not been told"),
    "paused-by-others": (lambda world: change(world, body={"spec": {"replicas": 0}}), "already scaled to 0"),
    "source-down": (
        lambda world: setattr(world, "trouble", SourceTrouble("SourceError", "no answer")) or world, "no answer"
    ),
    "recreated": (
        lambda world: change(world, ref=msgspec.structs.replace(world.workloads[0].ref, uid="other")), "another object"
    ),
}


@pytest.mark.parametrize(("happen", "because"), MEANWHILE.values(), ids=MEANWHILE.keys())
def test_the_second_look_stops_everything_that_is_not_as_it_was(happen: Any, because: str) -> None:
    mandate = builders.mandate(POLITE)
    world = idle_world()
    pause = pause_of(world, mandate)
    finding, why = plan.judge_again(happen(world).snapshot(), {0: pause}, mandate, NOW)[0]
    assert (finding is None) is bool(because)
    assert because in why


def test_the_second_look_heeds_a_freeze() -> None:
    mandate, world = builders.mandate(POLITE), idle_world()
    pause = pause_of(world, mandate)
    frozen = world.snapshot(freeze=Freeze(NOW + HOUR, "by hand"))
    assert plan.judge_again(frozen, {0: pause}, mandate, NOW)[0][0] is None


def test_the_second_look_carries_over_what_its_shorter_span_cannot_show() -> None:
    """It measures the window only; the notice is older than that, and the plan knew that nothing happened since."""
    rule = builders.rule(notice=builders.notice(grace=5 * MINUTE), gone_idle=MINUTE, never_used=MINUTE)
    mandate, world = builders.mandate(rule), idle_world()
    pause = pause_of(world, mandate, MINUTE)
    world.gpus = [(pod, msgspec.structs.replace(gpu, looked_back=False)) for pod, gpu in world.gpus]
    world.now = NOW + 30
    assert plan.judge_again(world.snapshot(MINUTE), {0: pause}, mandate, world.now)[0][0] is not None
    world.now = NOW + 2 * MINUTE  # between the plan and this window something may have happened
    assert plan.judge_again(world.snapshot(MINUTE), {0: pause}, mandate, world.now)[0][0] is None


def test_the_second_look_tells_the_idle_time_that_the_plan_measured() -> None:
    """After a hole in what was measured the plan's idle time is shorter than the window, and is not made longer."""
    mandate, world = builders.mandate(POLITE), idle_world()
    pause = pause_of(world, mandate)
    since = NOW - 7 * MINUTE
    finding = msgspec.structs.replace(pause.finding, idle_since=since, at_least=True, never_used=False)
    meant = {0: msgspec.structs.replace(pause, finding=finding)}
    world.gpus = [(pod, msgspec.structs.replace(gpu, looked_back=False)) for pod, gpu in world.gpus]
    found, _ = plan.judge_again(world.snapshot(), meant, mandate, NOW)[0]
    assert found is not None
    assert (found.idle_since, found.at_least) == (since, True)
    after_the_notice = msgspec.structs.replace(pause, finding=msgspec.structs.replace(finding, idle_since=NOW - MINUTE))
    assert plan.judge_again(world.snapshot(), {0: after_the_notice}, mandate, NOW)[0][0] is None


def test_with_a_grace_of_0_only_a_notice_that_was_delivered_leads_to_the_pause() -> None:
    mandate, world = builders.mandate(builders.rule(notice=builders.notice(grace=0.0))), World()
    world.workload(gpus=[idle(for_=HOUR)])
    pause = pause_of(world, mandate)
    assert plan.judge_again(world.snapshot(), {0: pause}, mandate, NOW + 2)[0][0] is None
    delivered = change(world, annotations=pending_marks(NOW)).snapshot()
    assert plan.judge_again(delivered, {0: pause}, mandate, NOW + 2)[0][0] is not None


@pytest.mark.parametrize("grace", [0.0, 5 * MINUTE])
def test_a_dry_run_passes_its_second_look_by_the_notice_it_pretended(grace: float) -> None:
    mandate = builders.mandate(builders.rule(notice=builders.notice(grace=grace)), acting=False)
    world, memory = World(), Memory()
    world.workload(gpus=[idle(for_=HOUR)])
    for after in (0, 6):
        world.now = NOW + after * MINUTE
        made = plan.make_plan(world.snapshot(), mandate, memory, world.now)
        memory = plan.remember(made, [Outcome(each, Status.dry_run, world.now, "") for each in made.decisions])
        if pauses := [each for each in made.decisions if isinstance(each, Pause)]:
            break
    assert plan.judge_again(world.snapshot(), {0: pauses[0]}, mandate, world.now)[0][0] is not None


# ---- for the eyes, and for people ----------------------------------------------------------------------------------


def test_only_rows_of_workloads_that_look_idle_are_worth_a_closer_look() -> None:
    world = World()
    world.workload("ml/busy", gpus=[busy(), idle()])
    world.workload("ml/quiet", gpus=[idle(), idle()])
    world.workload("ml/unknown", gpus=[idle(), idle(age=HOUR)])
    world.workload("ml/never", gpus=[never_used()])
    found = plan.candidate_rows(world.snapshot(), builders.mandate(), NOW)
    assert {window: wanted.rows.tolist() for window, wanted in found.items()} == {(builders.WINDOW, 0.01): [2, 3, 6]}


def test_with_two_windows_the_shorter_one_is_looked_back_at() -> None:
    world = World()
    world.workload(gpus=[idle(for_=HOUR)])
    rule = builders.rule(gone_idle=2 * HOUR, never_used=30 * MINUTE)
    found = plan.candidate_rows(world.snapshot(2 * HOUR, 30 * MINUTE), builders.mandate(rule), NOW)
    assert {window: wanted.rows.tolist() for window, wanted in found.items()} == {(30 * MINUTE, 0.01): [0]}


def test_each_rule_looks_back_for_its_own_activity() -> None:
    world = World()
    world.workload("ml/plain", gpus=[idle()])
    world.workload("hr/lax", gpus=[idle()])
    rule, only_hr = builders.rule(name="lax", activity=0.05), (builders.pattern("hr"),)
    lax = policy.IdlePolicy(name="lax", uid="lax", generation=1, rule=rule, namespaces=only_hr)
    found = plan.candidate_rows(world.snapshot(policies=Known((lax,))), builders.mandate(), NOW)
    assert {key: wanted.rows.tolist() for key, wanted in found.items()} == {
        (builders.WINDOW, 0.01): [0], (builders.WINDOW, 0.05): [1]
    }


def test_a_thousand_owners_are_not_told_in_one_cycle() -> None:
    world = World()
    for number in range(250):
        world.workload(f"ml/quiet-{number}", gpus=[idle()])
    made = plan.make_plan(world.snapshot(), builders.mandate(POLITE, acting=True), Memory(), NOW)
    assert Counter(type(each).__name__ for each in made.decisions) == {"Warn": plan.MOST_NEWS, "Alert": plan.MOST_NEWS}


def test_nothing_at_all_is_a_plan_too() -> None:
    made = plan.make_plan(World().snapshot(), builders.mandate(), Memory(), NOW)
    assert (made.decisions, len(made.findings), made.totals.gpus, made.totals.verdicts) == ((), 0, 0, {})
    assert plan.candidate_rows(World().snapshot(), builders.mandate(), NOW) == {}


def test_pods_that_nobody_owns_disturb_nothing() -> None:
    world = World()
    world.pod(gpus=[idle()])
    assert plan.make_plan(world.snapshot(), builders.mandate(), Memory(), NOW).totals.gpus == 0


@pytest.mark.accepts("idle", 30)
def test_whatever_is_asked_about_is_explained_with_its_evidence() -> None:
    world = World()
    world.workload("ml/busy", gpus=[busy(signals={Signal.power: 300.0}), idle()])
    world.workload("ml/quiet", gpus=[idle(for_=47 * MINUTE)])
    world.workload("ml/lost", gpus=[unknown := idle(coverage=0.1)])
    snapshot, mandate = world.snapshot(), builders.mandate()
    made = plan.make_plan(snapshot, mandate, Memory(), NOW)
    finding, gpus = made.findings[0], made.findings.evidence(0)
    assert finding.because == "gr_engine reached 90%; GPU-0 of pod busy-0"
    assert [(gpu.gpu, gpu.verdict, gpu.reason) for gpu in gpus] == [
        ("GPU-0", Verdict.active, Reason.Busy), ("GPU-1", Verdict.idle, Reason.GoneIdle)]
    assert gpus[0].signals == {"gr_engine": {"max": 0.9, "samples": 60.0, "newest": NOW - 15}, "power": {"max": 300.0}}
    quiet, (only,) = made.findings[1], made.findings.evidence(1)
    assert quiet.because == "its GPU did nothing above 1% for 47m"
    assert (quiet.next_action, quiet.next_at, quiet.coverage) == ("pause", NOW, 1.0)
    assert (only.node, only.model) == ("node-1", "NVIDIA A100")
    lost, _ = made.findings[2], made.findings.evidence(2)
    assert lost.because.startswith("10% of the last 30m was measured, 80% is asked")
    assert unknown.coverage == pytest.approx(lost.coverage)


def test_the_numbers_of_the_cycle_are_gpus_and_not_workloads() -> None:
    world = World()
    world.workload("ml/busy", gpus=[busy(), busy(), idle()])
    world.workload("ml/quiet", gpus=[idle(model="NVIDIA H100")] * 2)
    world.workload("ml/lost", gpus=[idle(), builders.unseen()])
    totals = plan.make_plan(world.snapshot(), builders.mandate(), Memory(), NOW).totals
    assert (totals.workloads, totals.pods, totals.gpus) == (3, 3, 7)
    assert (totals.active_gpus, totals.idle_gpus, totals.unknown_gpus) == (2, 4, 1)
    assert totals.gpus_by_model == {
        ("active", "NVIDIA A100"): 2, ("idle", "NVIDIA A100"): 2, ("idle", "NVIDIA H100"): 2,
        ("unknown", "NVIDIA A100"): 1}
    assert totals.verdicts == {
        Heading(Verdict.active, Reason.Busy): 1, Heading(Verdict.idle, Reason.GoneIdle): 1,
        Heading(Verdict.unknown, Reason.MissingGpuSeries): 1}


# ---- invariants ----------------------------------------------------------------------------------------------------

marks = st.one_of(
    st.just({}),
    st.builds(pending_marks, st.sampled_from([NOW - HOUR, NOW - 6 * MINUTE, NOW - MINUTE, NOW + HOUR])),
    st.builds(builders.paused_marks, st.sampled_from([NOW - 2 * HOUR, NOW - MINUTE])),
    st.dictionaries(
        st.sampled_from([*names.ACK_KEYS, *names.PENDING_KEYS, *names.PAUSE_KEYS, names.RESUMED_AT,
                         names.RESUME_REQUESTED, names.FIGHT_HOLD_UNTIL, names.PAUSE_REVERSALS, names.OPT_OUT_UNTIL]),
        st.sampled_from(
            ["", "x", "ignore", rfc3339(NOW - HOUR), rfc3339(NOW + HOUR), rfc3339(NOW - 6 * MINUTE), "9" * 400]
        ), max_size=4,
    ),
)
one_gpu = st.sampled_from(
    [idle(for_=HOUR), idle(for_=3 * MINUTE), idle(looked_back=False), busy(), never_used(), idle(age=HOUR)]
)
gpus = st.lists(one_gpu, min_size=1, max_size=3)
kinds = st.sampled_from(["Deployment", "StatefulSet", "InferenceService", "Job", "Notebook"])
workloads = st.lists(st.tuples(gpus, marks, kinds, st.booleans()), max_size=5)
rules = st.sampled_from([
    builders.rule(), POLITE, builders.rule(notice=builders.notice(grace=0.0)),
    builders.rule(action=policy.ActionType.notify),
    builders.rule(notice=builders.notice(), pressure="only"), builders.rule(gone_idle=HOUR, never_used=10 * MINUTE),
])


def build(content: list[Any]) -> World:
    world = World()
    for index, (held, said, kind, is_down) in enumerate(content):
        world.workload(
            f"ml/w{index}", kind, gpus=held, annotations=said, body={"spec": {"replicas": 0 if is_down else 2}}
        )
    return world


def snapshot_of(world: World) -> cluster.Snapshot:
    return world.snapshot(10 * MINUTE, 30 * MINUTE, HOUR)


@given(workloads, rules, st.booleans(), st.sampled_from(["calm", "trouble", "frozen"]))
def test_a_pause_is_always_earned(content: list[Any], rule: policy.Rule, acting: bool, state: str) -> None:
    world = build(content)
    if state == "trouble":
        world.trouble = SourceTrouble("NoData", "nothing came")
    snapshot = snapshot_of(world)
    if state == "frozen":
        snapshot = msgspec.structs.replace(snapshot, freeze=Freeze(NOW + HOUR, "by hand"))
    made = plan.make_plan(snapshot, builders.mandate(rule, acting=acting), Memory(), NOW)
    steps = [each for each in made.decisions if isinstance(each, Pause | Warn)]
    assert state == "calm" or not steps
    warned = {each.finding.workload.ref.uid for each in steps if isinstance(each, Warn)}
    for each in steps:
        assert each.finding.verdict is Verdict.idle
        assert each.finding.skip is None or isinstance(each, Warn)
        assert isinstance(each, Warn) or was_warned(each, warned)
    written = [each.on.uid for each in made.decisions if isinstance(each, Mark)]
    uids = ((each, each.finding.workload.ref.uid) for each in steps)
    written += [uid for each, uid in uids if isinstance(each, Warn) or uid not in warned]
    assert len(written) == len(set(written)), "one write per object and cycle"


def was_warned(pause: Pause, warned: set[str]) -> bool:
    """Under a rule that asks for it: a delivered notice of this idleness, older than its grace; or one just now."""
    finding, notice = pause.finding, pause.finding.rule.notice
    if not notice.required or (notice.grace == 0 and finding.workload.ref.uid in warned):
        return True
    notices = [
        read_instant(finding.workload.marks.get(key)) for key in (names.PENDING_SINCE, names.PENDING_SINCE_ALIAS)
    ]
    since = next((instant for instant in notices if instant is not None), None)
    return since is not None and finding.idle_since is not None and finding.idle_since <= since <= NOW - notice.grace


later = st.sampled_from([0.0, 10.0, 3 * MINUTE, 6 * MINUTE, HOUR])


@given(workloads, rules, st.booleans(), st.lists(later, min_size=1, max_size=4))
def test_what_is_kept_in_the_cache_never_changes_the_plan(
    content: list[Any], rule: policy.Rule, acting: bool, steps: list[float]
) -> None:
    """Cycle after cycle over the same objects: with the arrangement of the last cycle and without."""
    world = build(content)
    first, mandate, memory, cache = snapshot_of(world), builders.mandate(rule, acting=acting), Memory(), plan.Cache()
    for step in steps:
        world.now += step
        seen = msgspec.structs.replace(first, taken_at=world.now, evidence=snapshot_of(world).evidence)
        kept = plan.make_plan(seen, mandate, memory, world.now, cache)
        bare = plan.make_plan(seen, mandate, memory, world.now)
        assert kept.decisions == bare.decisions
        assert kept.totals == bare.totals
        assert all(kept.findings[index] == bare.findings[index] for index in range(len(content)))
        outcomes = [Outcome(each, Status.done if acting else Status.dry_run, world.now, "") for each in kept.decisions]
        memory = plan.remember(kept, outcomes)


def test_findings_of_an_old_plan_stay_what_they_were() -> None:
    world, mandate = World(), builders.mandate(builders.rule(notice=builders.notice()), acting=False)
    world.workload(gpus=[idle(for_=HOUR)])
    first = plan.make_plan(world.snapshot(), mandate, Memory(), NOW)
    memory = plan.remember(first, [Outcome(each, Status.dry_run, NOW, "") for each in first.decisions])
    world.now = NOW + MINUTE
    second: Plan = plan.make_plan(world.snapshot(), mandate, memory, world.now)
    assert second.findings[0].skip is Reason.InNotice
    assert first.findings[0].skip is None
    assert [each.event for each in first.decisions if isinstance(each, Alert)] == ["IdleDetected"]
