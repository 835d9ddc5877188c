"""Pauses that are undone at once make a policy wait longer, and a calm week takes that back; lost memory never does."""

import msgspec
import pytest
from tests import builders
from tests.builders import DAY, HOUR, MINUTE, NOW, World, idle

from fallow import names
from fallow.decide.idle import plan, regrets
from fallow.model import cluster, long_memory
from fallow.model.decision import Memory, Outcome, Pause, Status
from fallow.model.long_memory import LongMemory, PastPause, RuleWeek
from fallow.model.policies import idle as policy
from fallow.model.units import rfc3339

RULE = builders.rule(name="p", auto_widen=True)


def policy_of(rule: policy.Rule = RULE) -> policy.IdlePolicy:
    return policy.IdlePolicy(name=rule.name, uid="u", generation=1, rule=rule)


def resumed(uid: str, at: float) -> cluster.Workload:
    made = World()
    made.workload(f"ml/{uid}", gpus=[idle()], annotations={names.RESUMED_AT: rfc3339(at)})
    return made.snapshot().workloads[0]


class Weeks:
    """Pauses one after the other, some undone, as cycles learn of them."""

    def __init__(self, rule: policy.Rule = RULE) -> None:
        self.long, self.now, self.rule, self._number = LongMemory(), NOW, rule, 0

    @property
    def widened(self) -> float:
        return next((week.widened for week in self.long.weeks if week.rule == "p"), 1.0)

    def pause(self, count: int, undone: int, *, after: float = 5 * MINUTE) -> None:
        for index in range(count):
            self._number += 1
            uid = f"u-{self._number}"
            past = PastPause(uid, self.now, 1, "p")
            weeks = regrets.note_pause(self.long.weeks, "p", self.now)
            self.long = msgspec.structs.replace(self.long, pauses=(past,), weeks=weeks)
            back = {uid: resumed(uid, self.now + after)} if index < undone else {}
            for _ in range(3):  # what is seen in several cycles is counted once
                self.long = regrets.learn(self.long, [policy_of(self.rule)], back, self.now + after)
            self.now += after

    def wait(self, days: float) -> None:
        self.now += days * DAY
        self.long = regrets.learn(self.long, [policy_of(self.rule)], {}, self.now)


@pytest.mark.parametrize(("pauses", "undone", "widened"), [
    (9, 9, 1.0), (10, 2, 1.0), (10, 3, 1.5), (20, 4, 1.0), (20, 5, 1.5), (10, 0, 1.0),
])
def test_more_than_the_threshold_of_at_least_ten_pauses_widens(pauses: int, undone: int, widened: float) -> None:
    weeks = Weeks()
    weeks.pause(pauses - undone, 0)
    weeks.pause(undone, undone)
    assert weeks.widened == widened


def test_a_resume_after_a_quarter_of_an_hour_is_no_regret() -> None:
    weeks = Weeks()
    weeks.pause(20, 20, after=16 * MINUTE)
    assert weeks.widened == 1.0


def test_after_a_change_it_counts_anew_and_never_goes_beyond_four_times() -> None:
    weeks, steps = Weeks(), []
    for _ in range(6):
        weeks.pause(10, 10)
        steps.append(weeks.widened)
        weeks.pause(3, 3)  # too few to say anything of the new window
        assert weeks.widened == steps[-1]
    assert steps[:4] == [1.5, 2.25, 3.375, 4.0]
    assert max(steps) == 4.0


def test_it_goes_back_a_step_after_a_calm_week_and_not_before() -> None:
    weeks = Weeks()
    weeks.pause(10, 10)
    weeks.pause(10, 10)
    assert weeks.widened == 2.25
    weeks.wait(6)
    weeks.pause(11, 1)  # less than a tenth: half of the threshold
    assert weeks.widened == 2.25
    weeks.wait(1.1)
    assert weeks.widened == 1.5
    weeks.wait(7.1)
    assert weeks.widened == 1.5, "nothing was paused: nothing is learned"


def test_a_week_that_is_not_calm_enough_stays() -> None:
    weeks = Weeks()
    weeks.pause(10, 10)
    weeks.wait(6)
    weeks.pause(10, 1)  # a tenth is not under half of the threshold
    weeks.wait(1.1)
    assert weeks.widened == 1.5


def test_what_is_older_than_a_week_does_not_count() -> None:
    weeks = Weeks()
    weeks.pause(9, 9)
    weeks.wait(8)
    weeks.pause(1, 1)
    assert weeks.widened == 1.0


def test_a_policy_that_no_longer_asks_for_it_waits_as_long_as_it_says() -> None:
    weeks = Weeks()
    weeks.pause(10, 10)
    weeks.rule = builders.rule(name="p")
    weeks.wait(0.1)
    assert weeks.widened == 1.0


def test_a_mark_of_a_tenant_without_a_pause_of_ours_counts_for_nothing() -> None:
    weeks = Weeks()
    weeks.pause(9, 0)
    weeks.long = regrets.learn(weeks.long, [policy_of()], {"u-x": resumed("u-x", NOW + 60)}, NOW + 120)
    [week] = weeks.long.weeks
    assert week.sum_up() == (9, 0)


def test_it_stands_on_the_lease_bounded_and_survives_a_restart() -> None:
    weeks = Weeks()
    weeks.pause(10, 10)
    counts = weeks.long.weeks[0].counts
    many = tuple(RuleWeek(f"rule-{number:03}-{'x' * 200}", 1.0, 0.0, counts) for number in range(90))
    long = msgspec.structs.replace(weeks.long, weeks=(*many, *weeks.long.weeks))
    long = regrets.learn(long, [policy_of()], {}, NOW + HOUR)
    assert len(long.weeks) == regrets.MOST_RULES
    read, lost = long_memory.read(long_memory.write(long), NOW)
    assert lost == ""
    assert {each.rule: each.widened for each in read.weeks}["p"] == 1.5, "those that are widened are kept first"


def test_where_memory_is_lost_what_was_reported_counts() -> None:
    """As the eyes hand it over: the rule is widened, and no week knows why."""
    learned = regrets.learn(LongMemory(lost_at=NOW), [policy_of(policy.widen(RULE, 2.25))], {}, NOW)
    assert [each.widened for each in learned.weeks] == [2.25]
    later = regrets.learn(learned, [policy_of()], {}, NOW + 6 * DAY)
    assert [each.widened for each in later.weeks] == [2.25]


@pytest.mark.parametrize(("by", "gone", "never"), [
    (1.0, 30, 30), (1.5, 45, 45), (2.25, 68, 68), (4.0, 120, 120), (9.0, 120, 120),
])
def test_the_window_grows_in_whole_minutes_and_never_used_with_it(by: float, gone: int, never: int) -> None:
    found = policy.widen(RULE, by)
    assert (found.gone_idle, found.never_used) == (gone * MINUTE, never * MINUTE)
    apart = policy.widen(builders.rule(never_used=10 * MINUTE), by)
    assert apart.never_used == 10 * MINUTE


def test_a_cycle_counts_what_it_paused_and_the_status_shows_it() -> None:
    """Through the plan: ten pauses, all undone within minutes; then the policy says so, and what it waits now."""
    world = World()
    for number in range(10):
        world.workload(f"ml/w{number}", gpus=[idle(for_=3 * HOUR)])
    world.policies = [policy_of()]
    mandate = builders.mandate(acting=True)
    made = plan.make_plan(world.snapshot(), mandate, Memory(), NOW)
    done = [Outcome(each, Status.done, NOW, "") for each in made.decisions if isinstance(each, Pause)]
    assert len(done) == 10
    memory = plan.remember(made, done)
    back = World(NOW + 5 * MINUTE)
    for number in range(10):
        back.workload(f"ml/w{number}", gpus=[idle()], annotations={names.RESUMED_AT: rfc3339(NOW + 4 * MINUTE)})
    back.policies = [policy_of()]
    after = plan.make_plan(back.snapshot(), mandate, memory, back.now)
    assert [(each.rule, each.widened) for each in after.memory.long.weeks] == [("p", 1.5)]
    tally = after.policies["p"]
    assert (tally.pauses_7d, tally.regrets_7d, tally.effective_gone_idle) == (10, 10, 30 * MINUTE)
    assert all(each.is_regretted for each in after.memory.long.pauses)
