"""What would a policy have done? World -> plan -> world, tick by tick, with the very brain of the product.

In: a World (pretend, or made of a trace) and a mandate. Out: a BacktestResult: GPU-hours and money reclaimed, pauses,
regrets, waiting caused, in all and by namespace and class. Several policies are compared by playing each on a world of
its own, on all processors. A tick at which no GPU was quiet for the shortest window, and nothing is marked, is not
planned: its plan could find nobody idle.
Invariant: sim/world/laws.py is asked before and after every pause; a broken law ends the run.
"""

import multiprocessing
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent import futures
from decimal import Decimal
from typing import Final

import msgspec
import numpy as np

from fallow import names
from fallow.act import marking
from fallow.act.workloads import bodies
from fallow.decide.idle import plan as brain
from fallow.model import decision, price_book
from fallow.model.decision import Memory, Outcome, Status
from fallow.model.policies import idle
from fallow.model.seen import several
from fallow.model.units import HOUR, Instant, Seconds
from fallow.sim import snapshots
from fallow.sim.world import edits, laws
from fallow.sim.world.nouns import Fault
from fallow.sim.world.world import World

INTERVAL: Final[Seconds] = 180.0  # between two looks, as the product's own default


class BacktestSums(msgspec.Struct, kw_only=True, rename="camel"):
    """Sums over some workloads. A slice of a GPU counts as its share; `money` is of what has a price."""

    workloads: int = 0
    gpu_hours: float = 0.0  # held
    idle_gpu_hours: float = 0.0  # of these, without activity
    reclaimed_gpu_hours: float = 0.0
    money: Decimal = Decimal(0)
    unpriced_gpu_hours: float = 0.0  # reclaimed, of a model without a price
    pauses: int = 0
    regrets: int = 0
    resumes: int = 0
    complaints: int = 0
    acks: int = 0
    waited: Seconds = 0.0

    @property
    def regretted(self) -> float:
        """Share of its pauses."""
        return self.regrets / self.pauses if self.pauses else 0.0

    def add(self, other: "BacktestSums") -> None:
        for field in self.__struct_fields__:
            setattr(self, field, getattr(self, field) + getattr(other, field))


class BacktestResult(msgspec.Struct, kw_only=True, rename="camel"):
    """What a policy would have done."""

    name: str
    start: Instant
    end: Instant
    total: BacktestSums
    by_namespace: dict[str, BacktestSums]
    by_class: dict[str, BacktestSums]
    ticks: int = 0
    notices: int = 0
    frozen_ticks: int = 0
    lost_ticks: int = 0  # the API server was too slow


class Run:
    """One policy over one world; find_obstacle says whether it can be."""

    def __init__(
        self, world: World, mandate: idle.Mandate, *, policies: tuple[idle.IdlePolicy, ...] = (),
        interval: Seconds = INTERVAL,
    ) -> None:
        self.world, self.mandate, self.interval = world, msgspec.structs.replace(mandate, acting=True), interval
        self.memory, self._cache = Memory(), brain.Cache()
        self.ticks = self.notices = self.frozen_ticks = self.lost_ticks = 0
        self._policies = policies
        rules = brain.rules_in_force(self.mandate, several(policies))
        self._windows = frozenset(window for rule in rules for window in rule.windows)
        self._viewer = snapshots.Viewer(world, min(round(rule.activity * 100) for rule in rules))

    def tick(self) -> decision.Plan | None:
        """The world goes on by one interval, then one look. None: there was nothing to plan."""
        world = self.world
        world.advance(self.interval)
        self.ticks += 1
        if world.amount(Fault.api_slow) >= self.interval:
            self.lost_ticks += 1
            return None
        if self._may_rest():
            self.memory = brain.remember_rest(self.memory, world.now)
            return None
        snapshot = self._viewer.look(self._windows, self._policies)
        made = brain.make_plan(snapshot, self.mandate, self.memory, snapshot.taken_at, self._cache)
        self.frozen_ticks += made.freeze is not None
        outcomes = [self._carry_out(each, made.at) for each in made.decisions]
        self.memory = brain.remember(made, outcomes)
        return made

    def _may_rest(self) -> bool:
        memory, viewer = self.memory, self._viewer
        if self.world.faults or memory.freeze is not None or memory.long.baseline_reset:
            return False
        return viewer.longest_quiet() + 2 * self.world.span.step < min(self._windows) and not viewer.is_marked

    def _carry_out(self, each: decision.Decision, now: Instant) -> Outcome:
        try:
            self._write(each, now)
        except (edits.Refused, bodies.CannotWrite) as problem:
            return Outcome(each, Status.refused, now, str(problem))
        return Outcome(each, Status.done, now, "")

    def _write(self, each: decision.Decision, now: Instant) -> None:
        world = self.world
        seen = each.finding.workload if isinstance(each, decision.Warn | decision.Pause) else each.workload
        found = world.find(seen.ref.uid) if seen is not None else None
        if found is None:
            return
        before = found.object
        match each:
            case decision.Pause():
                laws.check_pause(world, found, each)
                after = edits.pause(before, each, now)
                laws.check_way_back(before, after, now)
            case decision.Warn():
                self.notices += 1
                after = edits.annotate(before, marking.notice_changes(each, "its owner", now))
            case decision.Resume() | decision.Undo():
                after = edits.resume(before, now, each.by if isinstance(each, decision.Resume) else names.FIELD_MANAGER)
            case decision.Mark():
                after = edits.annotate(before, each.changes)
            case decision.Alert():
                return
        world.notice(after)

    def account(self, name: str, book: price_book.ModelPrices = price_book.LIST) -> BacktestResult:
        """The sums so far."""
        made = add_up(self.world, name, book)
        return msgspec.structs.replace(
            made, ticks=self.ticks, notices=self.notices, frozen_ticks=self.frozen_ticks, lost_ticks=self.lost_ticks
        )


def run(
    world: World, mandate: idle.Mandate, *, name: str = "", policies: tuple[idle.IdlePolicy, ...] = (),
    interval: Seconds = INTERVAL, book: price_book.ModelPrices = price_book.LIST,
) -> BacktestResult:
    """From now to the end of the lives."""
    going = Run(world, mandate, policies=policies, interval=interval)
    end = world.span.start + world.span.columns * world.span.step
    while world.now + interval <= end:
        going.tick()
    return going.account(name or mandate.rule.name, book)


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What is tried on a past."""

    name: str
    mandate: idle.Mandate
    policies: tuple[idle.IdlePolicy, ...] = ()


class _Game(msgspec.Struct, frozen=True):
    make_world: Callable[[], World]
    trials: Sequence[Trial]
    interval: Seconds
    book: price_book.ModelPrices

    def play(self, number: int) -> BacktestResult:
        trial = self.trials[number]
        return run(
            self.make_world(), trial.mandate, name=trial.name, policies=trial.policies, interval=self.interval,
            book=self.book,
        )


def play(
    make_world: Callable[[], World], trials: Sequence[Trial], *, interval: Seconds = INTERVAL,
    book: price_book.ModelPrices = price_book.LIST, tell: Callable[[str], None] = lambda name: None,
    workers: int | None = None,
) -> list[BacktestResult]:
    """Each on a world of its own, in the order given. `tell` hears who is done; `workers`: processes, by default one
    per processor. They are forked, so that neither the past nor a policy need be written down for them."""
    game, count = _Game(make_world, trials, interval, book), min(workers or os.cpu_count() or 1, len(trials))
    if count < 2:
        return [_told(game.play(number), tell) for number in range(len(trials))]
    fork = multiprocessing.get_context("fork")
    with futures.ProcessPoolExecutor(count, fork, _inherit, (game,)) as pool:
        going = [pool.submit(_play_inherited, number) for number in range(len(trials))]
        for done in futures.as_completed(going):
            _told(done.result(), tell)
        return [done.result() for done in going]


def _told(result: BacktestResult, tell: Callable[[str], None]) -> BacktestResult:
    tell(result.name)
    return result


_inherited: list[_Game] = []  # in a worker: what its parent was given


def _inherit(game: _Game) -> None:
    _inherited[:] = [game]


def _play_inherited(number: int) -> BacktestResult:
    return _inherited[0].play(number)


def with_window(mandate: idle.Mandate, window: Seconds) -> idle.Mandate:
    rule = msgspec.structs.replace(mandate.rule, gone_idle=window, never_used=window)
    return msgspec.structs.replace(mandate, rule=rule)


def find_obstacle(trial: Trial) -> str:
    """Why this cannot be tried; "": it can."""
    for rule in brain.rules_in_force(trial.mandate, several(trial.policies)):
        percent = round(rule.activity * 100, 6)
        if percent != round(percent) or percent < 1:
            known = "a backtest knows whole percents only, from 1 on"
            return f"rule {rule.name} counts activity from {percent:g} %: {known}"
    return ""


def add_up(world: World, name: str, book: price_book.ModelPrices = price_book.LIST) -> BacktestResult:
    """What became of a world so far, whoever acted in it; how often they looked is theirs to say."""
    made = BacktestResult(
        name=name, start=world.span.start, end=world.now, total=BacktestSums(), by_namespace={}, by_class={}
    )
    for sums, part in zip(_count(world, book), (one.part for one in world.workloads), strict=True):
        made.total.add(sums)
        made.by_namespace.setdefault(part.namespace, BacktestSums()).add(sums)
        made.by_class.setdefault(part.class_, BacktestSums()).add(sums)
    return made


def _count(world: World, book: price_book.ModelPrices) -> Iterable[BacktestSums]:
    nodes = list(world.nodes.values())
    shares = np.array([*(node.share for node in nodes), 0.0])[world.last_node]  # -1: it never ran
    costs, hours = [price_book.find_by_model(node.model, book) for node in nodes], world.span.step / HOUR
    for one in world.workloads:
        share, seats = shares[one.seats], one.seats
        reclaimed = world.paused_steps[seats] * share * hours
        money, unpriced = Decimal(0), 0.0
        for node, freed in zip(world.last_node[seats].tolist(), reclaimed.tolist(), strict=True):
            price = costs[node] if node >= 0 else None
            if price is None:
                unpriced += freed
            else:
                money += price * Decimal(str(round(freed, 6)))
        yield BacktestSums(
            workloads=1, gpu_hours=float((world.held_steps[seats] * share).sum() * hours),
            idle_gpu_hours=float((world.idle_steps[seats] * share).sum() * hours), money=money,
            reclaimed_gpu_hours=float(reclaimed.sum()), unpriced_gpu_hours=unpriced, pauses=one.pauses,
            regrets=one.regrets, resumes=one.resumes, complaints=one.complaints, acks=one.acks, waited=one.waited,
        )
