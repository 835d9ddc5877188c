"""Backtests: the product's own brain over a pretend day, what it reclaims, whom it annoys, and that it never breaks a
law."""

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from fallow import names
from fallow.decide.idle import plan
from fallow.model import decision, units
from fallow.model.policies import idle
from fallow.model.units import HOUR, MINUTE
from fallow.sim import backtest, cast, snapshots, tuning
from fallow.sim.traces import published
from fallow.sim.world import edits, laws
from fallow.sim.world.lives import LifeSpan
from fallow.sim.world.nouns import Fault, Part, SimNode, SimState
from fallow.sim.world.world import World
from tests import builders
from tests.unit.sim import folder

QUIET = builders.Brakes(
    confirm_cycles=1, max_actions_per_cycle=1000, max_actions_per_namespace=1000, max_percent_per_hour=100,
    freeze_jump=100,
)
T4 = "Tesla-T4"


def mandate(*, notice: bool = False, brakes: idle.Brakes | None = None, **said: Any) -> idle.Mandate:
    rule = builders.rule(notice=builders.notice() if notice else None, **said)
    return builders.mandate(rule, brakes=brakes or idle.Brakes())


def make(*parts: Part, hours: int = 6, node: SimNode | None = None, **lives: Any) -> World:
    span = LifeSpan(cast.MONDAY, MINUTE, hours * 60)
    rows = [np.resize(np.array(lives[part.name], np.uint8), span.columns) for part in parts for _ in range(part.seats)]
    return World([node or SimNode("n1", T4)], parts, np.stack(rows), span, start_seconds=120.0)


# ---- what it says ----------------------------------------------------------------------------------------------------


def test_a_gpu_that_is_never_used_is_reclaimed_for_all_the_rest_of_the_day() -> None:
    world = make(Part("ml", "held", gpus=2), Part("web", "busy", class_="training"), held=[0], busy=[90])
    result = backtest.run(world, mandate(brakes=QUIET))
    held = result.by_namespace["ml"]
    assert (held.pauses, held.regrets, held.resumes, held.waited) == (1, 0, 0, 0)
    assert held.gpu_hours + held.reclaimed_gpu_hours == pytest.approx(12, abs=0.1)
    assert held.idle_gpu_hours == held.gpu_hours
    assert held.gpu_hours == pytest.approx(2 * 36 / 60, abs=0.2)  # 30 minutes of window, 5 of grace, and the next look
    assert held.money == pytest.approx(Decimal("0.526") * Decimal(held.reclaimed_gpu_hours), rel=Decimal("0.001"))
    busy = result.by_class["training"]
    assert (busy.pauses, busy.reclaimed_gpu_hours, busy.idle_gpu_hours) == (0, 0, 0)
    assert result.total.reclaimed_gpu_hours == held.reclaimed_gpu_hours
    assert result.total.workloads == 2


def test_a_pause_just_before_the_work_is_a_regret_and_makes_somebody_wait() -> None:
    world = make(Part("ml", "a", owner="machine"), a=[80] * 10 + [0] * 40 + [80] * 310)
    total = backtest.run(world, mandate(brakes=QUIET)).total
    assert (total.pauses, total.regrets, total.resumes) == (1, 1, 1)
    assert 120 <= total.waited <= 125
    late = make(Part("ml", "a", owner="machine"), a=[80] * 10 + [0] * 120 + [80] * 230)
    total = backtest.run(late, mandate(brakes=QUIET)).total
    assert (total.pauses, total.regrets, total.resumes) == (1, 0, 1)


@pytest.mark.parametrize(("mode", "share"), [("whole", 1.0), ("mig", 1 / 7), ("time-sliced", 1 / 4)])
def test_a_slice_counts_as_its_share_of_a_gpu(mode: Any, share: float) -> None:
    world = make(Part("ml", "a", mode=mode), node=SimNode("n1", T4, 8, mode), a=[0])
    total = backtest.run(world, mandate(brakes=QUIET)).total
    assert total.pauses == 1
    assert total.gpu_hours + total.reclaimed_gpu_hours == pytest.approx(6 * share, abs=0.1 * share)


def test_a_model_without_a_price_makes_no_money_and_says_so() -> None:
    world = make(Part("ml", "a"), node=SimNode("n1", "NVIDIA-Foo-9000"), a=[0])
    total = backtest.run(world, mandate(brakes=QUIET)).total
    assert (total.money, total.unpriced_gpu_hours) == (0, total.reclaimed_gpu_hours)
    assert total.unpriced_gpu_hours > 5


def test_policies_side_by_side_each_have_a_world_of_their_own() -> None:
    def build() -> World:
        return cast.make_world(seed=6, nodes=12, hours=12)

    mandates = {f"{minutes}m": backtest.with_window(mandate(), minutes * MINUTE) for minutes in (15, 60, 180)}
    results = [backtest.run(build(), each, name=name) for name, each in mandates.items()]
    assert [result.name for result in results] == ["15m", "60m", "180m"]
    reclaimed, regrets, pauses = (
        [getattr(one.total, what) for one in results] for what in ("reclaimed_gpu_hours", "regrets", "pauses")
    )
    # The hourly cap counts pauses that were regretted, too: waiting 15 minutes gains little over waiting an hour.
    assert min(reclaimed[:2]) > reclaimed[2] > 0
    assert regrets[0] > regrets[2]
    assert pauses[0] > pauses[2]
    assert backtest.run(build(), mandates["60m"], name="60m") == results[1]


def test_activity_that_history_cannot_show_is_refused() -> None:
    why = backtest.find_obstacle(backtest.Trial(name="", mandate=mandate(activity=0.005)))
    assert "counts activity from 0.5 %: a backtest knows whole percents only" in why
    assert not backtest.find_obstacle(backtest.Trial(name="", mandate=mandate(activity=0.02)))


def test_a_rule_that_only_reports_reclaims_nothing() -> None:
    total = backtest.run(make(Part("ml", "a"), a=[0]), mandate(action=idle.ActionType.report)).total
    assert (total.pauses, total.reclaimed_gpu_hours) == (0, 0)


# ---- the laws, on every tick of every day ----------------------------------------------------------------------------

FAULTS: dict[str, Callable[[World], None]] = {
    "well": lambda world: None,
    "exporters silent": lambda world: _break(world, Fault.exporter_silent, 2),
    "all exporters silent": lambda world: _break(world, Fault.exporter_silent, 1),
    "exporters zero": lambda world: _break(world, Fault.exporter_zero, 1),
    "some zero": lambda world: _break(world, Fault.exporter_zero, 3),
    "nodes lost": lambda world: _break(world, Fault.node_lost, 3),
    "slow": lambda world: _break(world, Fault.api_slow, 1, 600.0),
    "clock ahead": lambda world: _break(world, Fault.clock_jump, 1, 2 * HOUR),
    "clock behind": lambda world: _break(world, Fault.clock_jump, 1, -2 * HOUR),
}


def _break(world: World, fault: Fault, every: int, amount: float = 0.0) -> None:
    """From the sixth to the tenth hour, on every so many nodes."""
    nodes = list(world.nodes)[::every]
    world.at(world.span.start + 6 * HOUR, lambda: world.switch_on(fault, nodes, amount))
    world.at(world.span.start + 10 * HOUR, lambda: world.switch_off(fault))


@pytest.mark.parametrize("notice", [True, False], ids=["with notice", "without"])
@pytest.mark.parametrize("fault", FAULTS)
def test_no_law_is_ever_broken_whatever_fails(fault: str, notice: bool) -> None:
    world = cast.make_world(seed=3, nodes=10, hours=14)
    FAULTS[fault](world)
    result = backtest.run(world, mandate(notice=notice))
    assert result.total.pauses > 10
    assert (result.notices > 0) is notice
    assert result.lost_ticks == (80 if fault == "slow" else 0)


@pytest.mark.parametrize(
    ("fault", "reasons"),
    [("all exporters silent", {"Stale"}), ("exporters zero", {"ExporterSuspect", "SignalContradiction"}),
     ("nodes lost", {"NodeNotReady"}), ("clock ahead", {"Stale"}), ("clock behind", {"FutureSamples", "TooYoung"})],
)
def test_under_a_fault_it_says_that_it_cannot_tell(fault: str, reasons: set[str]) -> None:
    world = cast.make_world(seed=3, nodes=10, hours=14)
    FAULTS[fault](world)
    going = backtest.Run(world, mandate())
    seen: set[str] = set()
    pauses = 0
    while world.now < world.span.start + 9.9 * HOUR:
        made = going.tick()
        if made is not None and world.now > world.span.start + 6.3 * HOUR:
            seen |= {each.label for each in made.totals.verdicts if each.verdict is decision.Verdict.unknown}
            pauses += sum(isinstance(each, decision.Pause) for each in made.decisions)
    assert reasons <= seen
    if fault != "nodes lost":  # there two of three nodes are well
        assert pauses == 0 or fault == "exporters zero"  # MIG nodes cannot be zeroed


def test_a_sudden_silence_of_the_work_freezes() -> None:
    lives = {f"w{number}": [90] * 120 + [0] * 240 for number in range(16)}
    world = make(*(Part("ml", name, gpus=1) for name in lives), node=SimNode("n1", T4, 16), **lives)
    result = backtest.run(world, mandate())
    assert result.frozen_ticks >= 10


# ---- a law that is broken is found -----------------------------------------------------------------------------------


def _a_pause(world: World, rule: idle.Rule) -> decision.Pause:
    view = world.workloads[0].view
    finding = decision.Finding(
        workload=view, verdict=decision.Verdict.idle, reason=decision.Reason.GoneIdle, because="", rule=rule,
        gpus=1, idle_gpus=1, models=(), window=rule.gone_idle, idle_since=0.0,
    )
    return decision.Pause(finding, "")


@pytest.mark.parametrize(
    ("life", "fault", "notice", "sentence"),
    [
        ([0], None, False, None),
        ([0] * 50 + [2] + [0] * 9, None, False, "1 of its GPUs active"),
        ([0], Fault.exporter_silent, False, "not covered"),
        ([0], Fault.node_lost, False, "node n1 is not ready"),
        ([80], Fault.exporter_zero, False, "1 of its GPUs active"),
        ([0], None, True, "without a notice"),
    ],
    ids=["well", "active", "uncovered", "lost", "zero", "untold"],
)
def test_what_breaks_a_law_is_found(life: list[int], fault: Fault | None, notice: bool, sentence: str | None) -> None:
    world = make(Part("ml", "a"), a=life)
    if fault:
        world.switch_on(fault, ["n1"])
    world.advance(59 * MINUTE)
    pause = _a_pause(world, builders.rule(notice=builders.notice() if notice else None))
    if sentence is None:
        laws.check_pause(world, world.workloads[0], pause)
    else:
        with pytest.raises(laws.LawBroken, match=sentence):
            laws.check_pause(world, world.workloads[0], pause)


@pytest.mark.parametrize(
    ("told_ago", "life", "sentence"),
    [(3, [0], "3m after its notice"), (55, [0] * 20 + [9] + [0] * 40, "active after its notice"), (20, [0], None)],
    ids=["too soon", "used since", "in time"],
)
def test_a_notice_must_be_old_enough_and_nothing_may_have_happened_since(
    told_ago: int, life: list[int], sentence: str | None
) -> None:
    world = make(Part("ml", "a"), a=life)
    world.advance((60 - told_ago) * MINUTE)
    marks = {names.PENDING_SINCE: units.rfc3339(world.now), names.IDLE_EPISODE: "e"}
    world.notice(edits.annotate(world.workloads[0].object, marks))
    world.advance(told_ago * MINUTE)
    pause = _a_pause(world, builders.rule(notice=builders.notice()))
    if sentence is None:
        laws.check_pause(world, world.workloads[0], pause)
    else:
        with pytest.raises(laws.LawBroken, match=sentence):
            laws.check_pause(world, world.workloads[0], pause)


def test_a_way_back_that_does_not_lead_back_is_found() -> None:
    world = make(Part("ml", "a", replicas=3), a=[0])
    before = world.workloads[0].object
    after = edits.pause(before, _a_pause(world, idle.Rule()), world.now)
    laws.check_way_back(before, after, world.now)
    forged = edits.annotate(after, {names.ORIGINAL_STATE: '{"v":1,"fields":{"/spec/replicas":2}}'})
    with pytest.raises(laws.LawBroken, match="cannot be brought back as it was"):
        laws.check_way_back(before, forged, world.now)
    with pytest.raises(laws.LawBroken, match="does not stop it"):
        laws.check_way_back(before, before, world.now)


# ---- the eyes of a backtest ------------------------------------------------------------------------------------------


def test_while_nothing_changes_the_same_objects_are_handed_out() -> None:
    world = make(Part("ml", "a"), Part("ml", "b"), a=[0], b=[50])
    viewer = snapshots.Viewer(world, 1)
    world.advance(HOUR)
    first = viewer.look([1800.0])
    world.advance(3 * MINUTE)
    second = viewer.look([1800.0])
    assert (
        second.pods is first.pods, second.workloads is first.workloads, second.nodes.known is first.nodes.known
    ) == (True, True, True)
    world.notice(edits.annotate(world.workloads[0].object, {names.RESUMED_BY: "ada"}))
    third = viewer.look([1800.0])
    assert third.pods is first.pods
    assert third.workloads[1] is first.workloads[1]
    assert third.workloads[0].marks == {names.RESUMED_BY: "ada"}


def test_the_last_activity_is_known_exactly() -> None:
    world = make(Part("ml", "a"), a=[0] * 40 + [7] + [0] * 319)
    viewer = snapshots.Viewer(world, 1)
    world.advance(90 * MINUTE)
    seen = viewer.look([1800.0])
    use = seen.evidence.usage[1800.0]
    assert use.last_active.tolist() == [world.span.start + 40 * MINUTE]
    assert use.observed_since.tolist() == [world.span.start]
    assert use.peak[0].tolist() == [0.0]
    finding = plan.make_plan(seen, mandate(brakes=QUIET), decision.Memory(), seen.taken_at).findings[0]
    assert (finding.verdict, finding.idle_since, finding.at_least) == ("idle", world.span.start + 40 * MINUTE, False)


def test_a_tick_that_is_left_out_would_have_found_nobody_idle() -> None:
    """The same day with and without the short cut."""

    class Diligent(backtest.Run):
        def _may_rest(self) -> bool:
            return False

    results = []
    for sort in (backtest.Run, Diligent):
        going = sort(cast.make_world(seed=9, nodes=4, hours=10), backtest.with_window(mandate(notice=True), 2 * HOUR))
        plans = 0
        while going.world.now < going.world.span.start + 10 * HOUR:
            plans += going.tick() is not None
        results.append((plans, going.account("x"), going.world.changes_since(0)))
    assert results[0][0] < results[1][0]
    assert results[0][1:] == results[1][1:]


def test_the_real_trace_under_several_windows() -> None:
    trace = published.read_gentd26(folder.find(published.GENTD26))
    mandates = {f"{window / MINUTE:g}m": backtest.with_window(mandate(), window) for window in (1800.0, 3600.0, 7200.0)}
    results = [backtest.run(published.to_world(trace), each, name=name) for name, each in mandates.items()]
    assert [one.total.regrets for one in results] == sorted((one.total.regrets for one in results), reverse=True)
    assert results[0].total.reclaimed_gpu_hours > results[2].total.reclaimed_gpu_hours > 20
    held = results[0].total.gpu_hours + results[0].total.reclaimed_gpu_hours
    assert held == pytest.approx(89745 * 57 / 3600, rel=0.02)
    ceiling = tuning.measure(
        tuning.find_silences(trace.parts, trace.percents, trace.span.step), 1800.0, 0.0
    ).saved_gpu_hours
    # notices, brakes and looks take time; savings never exceed what idled
    assert results[0].total.reclaimed_gpu_hours < ceiling
    assert all(one.state is not SimState.waiting for one in published.to_world(trace).workloads)
