"""What must hold at every tick of every pretend day, checked against the truth and not the brain's own words.

In: the world, a pause that is about to happen, the object before and after it. Out: nothing, or LawBroken. The laws: no
workload with an active, unknown or uncovered GPU is paused; where notices are asked for, one was given, its grace is
over, and the workload was quiet all the time since; every pause can be undone to the exact former state.
"""

from typing import Any

import numpy as np

from fallow import names
from fallow.model import decision, kinds, units
from fallow.model.policies import idle as policy
from fallow.model.units import Instant, Seconds
from fallow.model.usage import Bools
from fallow.sim.world import edits
from fallow.sim.world.lives import NONE, Percents
from fallow.sim.world.nouns import SimState, SimWorkload
from fallow.sim.world.world import World


class LawBroken(Exception):
    """The product did what it promises never to do."""


def check_pause(world: World, workload: SimWorkload, pause: decision.Pause) -> None:
    """Before the pause is carried out."""
    rule, name = pause.finding.rule, str(workload.view.ref)
    if workload.state is not SimState.running:
        raise LawBroken(f"{name} is {workload.state}, and was to be paused")
    if lost := [pod.node for pod in workload.pods if not world.nodes[pod.node].ready]:
        raise LawBroken(f"{name} was to be paused while node {lost[0]} is not ready")
    _check_quiet(world, workload, rule, pause.finding.window)
    if rule.notice.channels:
        _check_notice(world, workload, rule)


def _check_quiet(world: World, workload: SimWorkload, rule: policy.Rule, window: float) -> None:
    """Every one of its GPUs was measured well enough, lately, and did nothing in any step that was measured."""
    done, measured, name = *_look_back(world, workload, window), str(workload.view.ref)
    covered = measured.sum(axis=1) * world.span.step >= rule.coverage * window - 1e-6
    if not covered.all():
        uncovered = f"{int((~covered).sum())} of its GPUs not covered over {units.humane(window)}"
        raise LawBroken(f"{name} was to be paused with {uncovered}")
    newest = world.span.start + (world.taken - 1 - np.argmax(measured[:, ::-1], axis=1)) * world.span.step
    if (newest < world.now - rule.max_sample_age).any():
        raise LawBroken(f"{name} was to be paused on samples older than {units.humane(rule.max_sample_age)}")
    idle = (done < rule.activity * 100).all(axis=1)
    if idle.reshape(workload.part.pods, -1).mean(axis=1).min() < rule.idle_gpu_fraction - 1e-9:
        raise LawBroken(f"{name} was to be paused with {int((~idle).sum())} of its GPUs active")


def _look_back(world: World, workload: SimWorkload, window: Seconds) -> tuple[Percents, Bools]:
    """What each of its GPUs really did (0 where nobody knows), and in which steps that was measured."""
    columns = world.columns_before(window)
    seen, done = world.seen[workload.seats][:, columns], world.done[workload.seats][:, columns]
    measured = (seen != NONE) & (done != NONE)
    return np.where(measured, done, 0), measured


def _check_notice(world: World, workload: SimWorkload, rule: policy.Rule) -> None:
    """By the world's own time: what the mark says is the product's clock, which may have jumped since."""
    name = str(workload.view.ref)
    if workload.noticed_at is None:
        raise LawBroken(f"{name} was to be paused without a notice")
    since = world.now - workload.noticed_at
    if since < rule.notice.grace - 1:
        raise LawBroken(f"{name} was to be paused {units.humane(since)} after its notice")
    if rule.idle_gpu_fraction >= 1 and (_look_back(world, workload, since)[0] >= rule.activity * 100).any():
        raise LawBroken(f"{name} was active after its notice, and was to be paused on it")


def check_way_back(before: dict[str, Any], after: dict[str, Any], now: Instant) -> None:
    """Once it is paused: would a resume restore it exactly?"""
    row = kinds.find(str(before["apiVersion"]).rpartition("/")[0], before["kind"])
    back, name = edits.resume(after, now, "law"), f"{before['kind']}/{before['metadata']['name']}"
    if not edits.has_stopped(after):
        raise LawBroken(f"the pause of {name} does not stop it")
    if _bare(back) != _bare(before) and not (row and row.resumes):
        raise LawBroken(f"{name} cannot be brought back as it was")
    if edits.has_stopped(back):
        raise LawBroken(f"the resume of {name} does not start it")


def _bare(thing: dict[str, Any]) -> tuple[Any, ...]:
    """Everything but our marks and the server's version."""
    said = thing["metadata"].get("annotations") or {}
    kept = {key: value for key, value in said.items() if names.GROUP not in key and names.ALIAS_GROUP not in key}
    return thing.get("spec"), kept, thing["metadata"].get("labels")
