"""The one entrance to the hands: decisions in their order, each alone, an Outcome for each.

In: the plan's decisions, the Hands, a way to look again, whether we may still act (the lease), the gate that a freeze
shuts. Out: an Outcome each.
A pause is looked at once more just before: anything but idle then, and nothing is done. An object that changes even
after that look gets one more look and one more try, never a blind one. A look that has grown old is made anew.
Invariant: one failure stops only itself, and every error path does less than was asked, never more.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from fallow import names
from fallow.act import hands as doing
from fallow.act import hooks
from fallow.clients import errors
from fallow.model import cluster, decision, kinds
from fallow.model.decision import Code, Detail, Outcome, Status
from fallow.model.units import Instant, Seconds

log = logging.getLogger(__name__)

LOOK_HOLDS: Seconds = 10.0  # for so long; a slow API server makes every pause of a cycle wait for those before it
_MAY_NOT = "not done: we are no longer the one who may act"


class SecondLook(msgspec.Struct, frozen=True):
    """A workload as it is now. `finding` None: it must not be paused any more, and `because` says why."""

    workload: cluster.Workload | None
    finding: decision.Finding | None
    because: str = ""
    pods: tuple[cluster.Pod, ...] = ()  # its GPU pods
    namespace: cluster.Namespace | None = None  # its own, by which its consent was judged


Looks: TypeAlias = Mapping[str, SecondLook]  # by the workload's uid
LookAgain: TypeAlias = Callable[[Sequence[decision.Pause]], Awaitable[Looks]]
MayAct: TypeAlias = Callable[[], bool]
Clock: TypeAlias = Callable[[], Instant]


class FreezeGate:
    """In the way of every notice and pause. `why_shut` None: it is open.

    Whoever shuts it knows by `in_flight` whether a pause is still under way that went through before; if not, none can
    begin any more.
    """

    def __init__(self, why_shut: Callable[[], str | None] = lambda: None) -> None:
        self.why_shut = why_shut
        self.in_flight = False

    def let_through(self) -> bool:
        """The very last look before a pause is sent."""
        self.in_flight = self.why_shut() is None
        return self.in_flight


async def carry_out(
    decisions: Sequence[decision.Decision], hands: doing.Hands, look_again: LookAgain, now: Instant,
    may_act: MayAct = lambda: True, clock: Clock | None = None, gate: FreezeGate | None = None,
) -> list[Outcome]:
    """All of them, one after the other. The pauses are looked at again together, just before the first of them; they
    wait for no channel but those of a workload whose owner must be told in this very cycle.

    `clock`: for what is true of the moment rather than of the cycle; without one time stands still meanwhile.
    """
    outcomes: list[Outcome] = []
    looks: Looks | None = None
    warned: dict[int, Outcome] | None = None
    looked, clock = now, clock or (lambda: now)
    gate = gate or FreezeGate()
    decisions = _in_order(decisions)
    for index, each in enumerate(decisions):
        if not may_act():
            outcomes.append(Outcome(each, Status.overtaken, now, _MAY_NOT, code=Code.NotBegun))
            continue
        if isinstance(each, decision.Warn | decision.Pause) and (shut := gate.why_shut()):
            outcomes.append(Outcome(each, Status.overtaken, now, f"not done: {shut}", code=Code.NotBegun))
            continue
        if isinstance(each, decision.Warn):
            if warned is None:
                still = decisions[index:]
                warned = await _warn(still, hands, now, clock, lambda: may_act() and gate.why_shut() is None)
                looks = None  # what was looked at before the notices does not know of them
            outcomes.append(warned[id(each)])
            continue
        if not isinstance(each, decision.Pause):
            outcomes.append(await _guard(each, hands, _do(each, hands, now), now))
            continue
        if looks is None or clock() - looked > LOOK_HOLDS:
            looked = clock()
            looks = await _look(look_again, [other for other in decisions[index:] if isinstance(other, decision.Pause)])
        look = looks.get(each.finding.workload.ref.uid, SecondLook(None, None, "it could not be looked at again"))
        outcomes.append(await _guard(each, hands, _pause(each, look, hands, look_again, now, may_act, gate), now))
        if hooks.wanted(look.pods):  # a hook may take a minute, after which the others' look is old
            looks = None
    return outcomes


def _in_order(decisions: Sequence[decision.Decision]) -> list[decision.Decision]:
    """Notices last, for a channel may hang; behind them only the pauses that rest on one of them (no grace)."""
    warned = {each.finding.workload.ref.uid for each in decisions if isinstance(each, decision.Warn)}

    def rank(each: decision.Decision) -> int:
        if isinstance(each, decision.Warn):
            return 1
        return 2 if isinstance(each, decision.Pause) and each.finding.workload.ref.uid in warned else 0

    return sorted(decisions, key=rank)


async def _look(look_again: LookAgain, pauses: Sequence[decision.Pause]) -> Looks:
    try:
        return await look_again(pauses)
    except errors.ClientError as problem:
        because = str(problem)
    except Exception as problem:  # a bug in looking stops the pauses, not the marks and resumes of this cycle
        log.exception("the second look failed")
        because = f"unexpected {type(problem).__name__}"
    nothing = SecondLook(None, None, f"it could not be looked at again: {because}")
    return {pause.finding.workload.ref.uid: nothing for pause in pauses}


async def _warn(
    decisions: Sequence[decision.Decision], hands: doing.Hands, now: Instant, clock: Clock, may: MayAct
) -> dict[int, Outcome]:
    """All notices together: what goes the same way may become one message. By the identity of the decision."""
    warns = [each for each in decisions if isinstance(each, decision.Warn)]
    try:
        outcomes = await hands.warn(warns, now, clock, may)
    except Exception as problem:  # a bug: nobody was warned for certain, and nothing is written down
        log.exception("the notices failed")
        because = f"unexpected {type(problem).__name__}: {problem}"
        outcomes = [Outcome(each, Status.failed, now, because) for each in warns]
    return {id(each): outcome for each, outcome in zip(warns, outcomes, strict=True)}


async def _do(
    each: decision.Resume | decision.Undo | decision.Mark | decision.Alert, hands: doing.Hands, now: Instant
) -> Outcome:
    match each:
        case decision.Resume():
            return await hands.resume(each, now)
        case decision.Undo():
            return await hands.undo(each, now)
        case decision.Mark():
            return await hands.mark(each, now)
        case decision.Alert():
            return await hands.alert(each, now)


async def _pause(
    pause: decision.Pause, look: SecondLook, hands: doing.Hands, look_again: LookAgain, now: Instant, may_act: MayAct,
    gate: FreezeGate,
) -> Outcome:
    try:
        return await _pause_once(pause, look, hands, now, may_act, gate)
    except errors.Conflict:
        again = await _look(look_again, [pause])
    if not may_act():
        return Outcome(pause, Status.overtaken, now, _MAY_NOT, code=Code.NotBegun)
    try:
        fresh = again.get(pause.finding.workload.ref.uid, SecondLook(None, None, "it is gone"))
        return await _pause_once(pause, fresh, hands, now, may_act, gate)
    except errors.Conflict as problem:
        because = f"it changed twice while it was being paused; the next cycle will see: {problem}"
        return Outcome(pause, Status.overtaken, now, because)


async def _pause_once(
    pause: decision.Pause, look: SecondLook, hands: doing.Hands, now: Instant, may_act: MayAct, gate: FreezeGate
) -> Outcome:
    if look.workload is None or look.finding is None:
        return Outcome(pause, Status.overtaken, now, f"the second look found: {look.because}")
    if look.workload.ref.uid != pause.finding.workload.ref.uid:
        return Outcome(pause, Status.overtaken, now, "the second look found another object of the same name")
    judged = msgspec.structs.replace(pause, finding=look.finding)
    try:
        return await hands.pause(
            judged, look.workload, look.pods, now, may_act=lambda: may_act() and gate.let_through(),
            namespace=look.namespace,
        )
    finally:
        gate.in_flight = False


async def _guard(each: decision.Decision, hands: doing.Hands, act: Awaitable[Outcome], now: Instant) -> Outcome:
    """Whatever goes wrong, the others go on."""
    try:
        return await act
    except errors.ClientError as problem:
        outcome = explain(each, problem, now, is_dry=hands.writer.is_dry)
    except Exception as problem:  # a bug, or an object as nobody foresaw it: its own failure, not that of the others
        log.exception("%s failed", type(each).__name__)
        outcome = Outcome(each, Status.failed, now, f"unexpected {type(problem).__name__}: {problem}")
    if outcome.status is Status.failed and not hands.writer.is_dry:
        announce, detail = hands.announcer.announce, outcome.detail
        if isinstance(each, decision.Pause):
            await announce(each.finding.workload.ref, names.Event.PAUSE_FAILED, f"Not paused: {detail}", now)
        elif isinstance(each, decision.Resume):
            await announce(each.workload.ref, names.Event.RESUME_FAILED, f"Not resumed: {detail}", now)
        elif isinstance(each, decision.Undo):
            await announce(each.workload.ref, names.Event.PAUSE_FAILED, f"{each.because}: {detail}", now)
    return outcome


def explain(each: decision.Decision, problem: errors.ClientError, now: Instant, *, is_dry: bool) -> Outcome:
    """What an error of the wire means for this decision."""
    said = f"{problem.status} {problem}" if isinstance(problem, errors.Rejected) else str(problem)
    if isinstance(problem, errors.Forbidden) and isinstance(each, decision.Resume):
        ref = each.workload.ref
        said += f"; an account that may patch it brings it back: fallow resume {kinds.typed(ref)} -n {ref.namespace}"
    if isinstance(problem, errors.Conflict):
        return Outcome(each, Status.overtaken, now, f"it changed meanwhile: {said}")
    if isinstance(problem, errors.NotFound):
        return Outcome(each, Status.overtaken, now, f"it is gone: {said}")
    if isinstance(problem, errors.Invalid) and (problem.status == 400 or _is_field_unknown(problem)):
        return Outcome(each, Status.refused, now, said, code=Detail.UnsupportedField)
    if is_dry and isinstance(each, decision.Pause) and isinstance(problem, errors.Forbidden):  # a reader's dry run
        return Outcome(each, Status.dry_run, now, f"{each.reason_text} (not checked by the API server: {said})")
    if is_dry:
        return Outcome(each, Status.refused, now, f"would fail: {said}")
    return Outcome(each, Status.failed, now, said)


def _is_field_unknown(problem: errors.Invalid) -> bool:
    """Does the server say that this version of the kind has no such field?"""
    return any(field == "patch" and "unknown field" in message for field, message in problem.causes)
