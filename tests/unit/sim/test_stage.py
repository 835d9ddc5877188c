"""The stage: whoever looks in from outside, with flags of their own, judges as the controller on it does."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from fallow import settings
from fallow.model import decision
from fallow.model.units import HOUR, MINUTE
from fallow.sim import stage
from fallow.sim.world import nouns, shapes, world
from fallow.sim.world.lives import LifeSpan
from fallow.stories import idle as stories
from fallow.wiring import daemon


async def look(on: stage.Stage) -> stories.Look:
    """As `fallow status` and `idle` do, with the flags that nobody gave."""
    assert on.addresses is not None
    given = {"kubeconfig": str(on.addresses.kubeconfig), "prometheus_url": on.addresses.prometheus}
    async with daemon.assemble(settings.read_flags(given, {}), time.time) as made:
        found = await made.loop.look(daemon.IDLE)
    assert isinstance(found, stories.Look)
    return found


async def test_a_look_with_the_usual_flags_leaves_out_no_kind_on_which_the_controller_acts(tmp_path: Path) -> None:
    """One workload of every kind, all quiet: half an hour later the controller tells their owners."""
    span = LifeSpan(time.time() // MINUTE * MINUTE - HOUR, MINUTE, 120)  # an hour that ends now
    parts = [nouns.Part("ml", f"w-{kind.lower()}", kind=kind) for kind in shapes.SHAPES]
    quiet = np.zeros((len(parts), span.columns), np.uint8)
    nodes = [nouns.SimNode(f"gpu-{number}") for number in range(4)]
    made, told = world.World(nodes, parts, quiet, span), set[str]()
    flags, outside = {"freeze_jump": "100"}, stage.Outside(time.time)
    async with stage.open_stage(made, tmp_path, flags=flags, outside=outside) as on:
        while made.now < span.start + HOUR:
            outcomes = (await on.step()).outcomes
            told |= {
                each.decision.finding.workload.ref.kind for each in outcomes
                if isinstance(each.decision, decision.Warn | decision.Pause) and each.status is decision.Status.done
            }
        found = await look(on)
    assert told == set(shapes.SHAPES)
    findings = [found.plan.findings[index] for index in range(len(found.snapshot.workloads))]
    left_out = {each.workload.ref.kind for each in findings if each.reason is decision.Reason.KindDisabled}
    assert left_out == set()
