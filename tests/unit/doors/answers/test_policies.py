"""A policy whose window grew says from what, why and until when; the spec beside it stays as it was asked for."""

import msgspec
import pytest
from tests import builders
from tests.builders import DAY, MINUTE, NOW, World

from fallow.doors.answers import policies
from fallow.model.long_memory import RegretCount, RuleWeek
from fallow.model.policies import idle
from fallow.model.units import rfc3339

RULE = builders.rule(name="serving", auto_widen=True, gone_idle=60 * MINUTE, never_used=60 * MINUTE)
GREW = NOW - 2 * DAY
WEEK = RuleWeek("serving", 1.5, GREW, (RegretCount(GREW - DAY, 12, 4), RegretCount(GREW, 8, 1)))


def told(rule: idle.Rule, *weeks: RuleWeek) -> policies.PolicyTold:
    world = World()
    world.policies.append(idle.IdlePolicy(name=rule.name, uid="u", generation=1, rule=rule))
    mandate = msgspec.structs.replace(builders.mandate(), use_policies=True)
    page = policies.show_policies(world.snapshot(), (), mandate, weeks)
    return next(item for item in page.items if item.name == rule.name)


def test_a_window_that_grew_is_told_with_its_evidence_and_the_earliest_way_back() -> None:
    policy = told(idle.widen(RULE, 1.5), WEEK)
    assert policy.gone_idle_seconds == 90 * MINUTE
    assert policy.spec["windows"] == {"goneIdle": "1h", "neverUsed": "1h"}
    assert policy.widened == policies.WidenedTold(
        times=1.5, from_seconds=60 * MINUTE, because="4 of 12 pauses were undone within 15 min, more than 20%",
        since=rfc3339(GREW), back_at=rfc3339(GREW + 7 * DAY), calm_below=0.1, pauses=8, regrets=1,
    )


def test_where_the_pauses_are_forgotten_nothing_is_made_up() -> None:
    widened = told(idle.widen(RULE, 1.5)).widened
    assert widened is not None
    assert widened.because == "its status says so; the pauses that led to it are no longer remembered"
    assert (widened.since, widened.back_at) == (None, None)


@pytest.mark.parametrize("by", [1.0, 0.5])
def test_a_window_as_it_was_asked_for_is_not_called_widened(by: float) -> None:
    assert told(idle.widen(RULE, by), WEEK).widened is None
