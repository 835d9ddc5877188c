"""What one cycle amounts to, for a shell."""

import msgspec
import pytest
from tests import builders

from fallow.decide.idle import plan as brain
from fallow.doors.cli import prune
from fallow.model import decision
from fallow.model.decision import Outcome, Status


def cycle(*statuses: Status, frozen=None, failure="", planned=True) -> decision.Cycle:
    world = builders.World()
    world.workload()
    made = brain.make_plan(world.snapshot(), builders.mandate(), decision.Memory(), world.now)
    made = msgspec.structs.replace(made, frozen_until=frozen)
    outcomes = tuple(Outcome(made.decisions[-1], status, 0.0, "") for status in statuses)
    return decision.Cycle(made if planned else None, None, outcomes, failure, 0.0)


@pytest.mark.parametrize(
    ("ended", "code"),
    [
        (cycle(), 0), (cycle(Status.done), 0), (cycle(Status.dry_run), 0), (cycle(Status.refused), 0),
        (cycle(Status.overtaken), 0), (cycle(failure="no Prometheus"), 1),
        (cycle(planned=False, failure="no API server"), 1), (cycle(Status.done, Status.failed), 3),
        (cycle(frozen=1.0), 4), (cycle(Status.failed, frozen=1.0), 3),
    ],
    ids=[
        "nothing", "done", "dry", "refused", "overtaken", "source", "cluster", "one-failed", "frozen",
        "frozen-and-failed",
    ],
)
def test_exit_codes(ended, code):
    assert prune.exit_code(ended) == code
