"""What idle pausing, sharing and scaling would have done to a past together, with the parts of it apart.

In: a World of a past, the rule by which is paused, which parts are played. Out: Together: GPU-hours that each part
freed, how much of that left the bill because nodes went, and the money.
Sharing comes first: who could do with a quarter of a GPU, by the advice of `fallow optimize` and by what it used in
all its life, is given one, on nodes that are cut for it beforehand. Then, look after look, the brain of idleness
pauses, and the brain of scaling lets nodes go that nobody is on, and brings them back.
Invariant: a GPU-second is claimed once. Of the GPUs whose node is gone, first those that a pause freed count as its,
then those that sharing spared, and only the rest, which nobody held anyway, as scaling's. Money is only what left the
bill.
"""

from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Final

import msgspec
import numpy as np

from fallow.decide import sharing
from fallow.model import gpus, price_book
from fallow.model.classes import WorkClass
from fallow.model.share_advice import AdviceKind, ShareFacts, ShareUse
from fallow.model.units import DAY, HOUR, Seconds
from fallow.sim import backtest
from fallow.sim.month import over_world
from fallow.sim.month.ours import Ours
from fallow.sim.world.lives import NONE
from fallow.sim.world.nouns import PARTS, Part, SimNode
from fallow.sim.world.world import World

IDLE, SHARING, SCALING = "idle", "sharing", "scaling"
PARTS_PLAYED: Final = (IDLE, SHARING, SCALING)
_QUARTER: Final = 1 / PARTS["time-sliced"]
_SHARES: Final = frozenset({AdviceKind.mig, AdviceKind.mps, AdviceKind.timeslicing})
_MODEL: Final = "NVIDIA-A100-SXM4-80GB"  # of who does not say


class PartDone(msgspec.Struct, kw_only=True, rename="camel"):
    """`freed`: GPU-hours that somebody held and then did not, or that nobody held. `gone`: of these, on nodes that were
    gone; `money`: for those."""

    part: str
    freed_gpu_hours: float = 0.0
    gone_gpu_hours: float = 0.0
    money: float = 0.0


class Together(msgspec.Struct, kw_only=True, rename="camel"):
    """GPU-hours. `unknown_gpu_hours`: held by who might share, if anybody knew how much memory it needs. `waited`: for
    nodes, beyond what people waited for what was paused."""

    parts: list[PartDone]
    gpu_hours: float  # that were there to be paid for
    money: float  # for all of them
    unpriced_gpu_hours: float
    unknown_gpu_hours: float
    workloads_sharing: int
    nodes_released: int
    nodes_added: int
    pauses: int
    regrets: int
    waited: Seconds

    def find(self, part: str) -> PartDone:
        return next(each for each in self.parts if each.part == part)


# ---- sharing ---------------------------------------------------------------------------------------------------------


def share(world: World) -> tuple[World, float]:
    """The same past with parts of GPUs for whom a quarter is enough; and GPU-hours of whom nobody knows it."""
    unknown, chosen = 0.0, list[Part]()
    for one in world.workloads:
        part = one.part
        kind, fraction = _advise(world, part, one.first_seat)
        if kind is AdviceKind.unknown:
            unknown += _held(world, part) / HOUR
        is_enough = kind in _SHARES and fraction <= _QUARTER
        chosen.append(msgspec.structs.replace(part, mode="time-sliced") if is_enough else part)
    wanted = Counter(
        part.model for part, one in zip(chosen, world.workloads, strict=True) if part.mode != one.part.mode
        for _ in range(part.seats)
    )
    return world.remade(_cut(list(world.nodes.values()), wanted), chosen), unknown


def _advise(world: World, part: Part, seat: int) -> tuple[AdviceKind, float]:
    """By what it did, and by the most memory that it had."""
    if part.gpus != 1 or part.mode != "whole" or part.class_ not in ("notebook", "inference"):
        return AdviceKind.none, 1.0
    done = world.wanted[seat : seat + part.seats]
    known, model = done[done != NONE], gpus.find(part.model or _MODEL)
    total = model.memory_gib * 1024.0 if model is not None else None
    memory = part.memory / total if part.memory is not None and total else None
    use = ShareUse(
        gpu=float(known.mean()) / 100 if known.size else None, memory=memory, coverage=1.0 if known.size else 0.0,
        total=total, peak=part.memory, p95=float(np.percentile(known, 95)) / 100 if known.size else None, seconds=DAY,
    )
    advice = sharing.advise(ShareFacts(work=WorkClass(part.class_), gpus=1.0, each=1, use=use, model=model))
    return advice.kind, advice.share


def _held(world: World, part: Part) -> Seconds:
    end = world.span.start + world.span.columns * world.span.step
    return part.seats * max(0.0, (part.ends_at or end) - (part.arrives_at or world.span.start))


def _cut(nodes: Sequence[SimNode], wanted: Counter[str]) -> list[SimNode]:
    """As many nodes as have a quarter for each, the last of each model first."""
    made = list(nodes)
    for model, quarters in wanted.items():
        for place in range(len(made) - 1, -1, -1):
            node = made[place]
            if quarters > 0 and node.mode == "whole" and model in ("", node.model):
                made[place] = SimNode(node.name, node.model, node.gpus, "time-sliced", pool=node.pool)
                quarters -= made[place].slots
    return [msgspec.structs.replace(node) for node in made]


# ---- all of it -------------------------------------------------------------------------------------------------------


class _Counting:
    """Who freed what, look by look."""

    def __init__(self, world: World, book: price_book.ModelPrices, asked: frozenset[str]) -> None:
        self._world, self._asked = world, asked
        rates = {node.name: price_book.find_by_model(node.model, book) for node in world.nodes.values()}
        self._rates = {name: None if rate is None else float(rate) for name, rate in rates.items()}
        self.parts = {part: PartDone(part=part) for part in PARTS_PLAYED if part in asked}
        self.hours = self.money = self.unpriced = 0.0
        shares = np.array([*(node.share for node in world.nodes.values()), 0.0])
        self._shares = shares

    def count(self, seconds: Seconds, sharers: Sequence[slice]) -> None:
        world, hours = self._world, seconds / HOUR
        nodes = list(world.nodes.values())
        gone = [node for node in nodes if not node.there]
        all_gpus, off = sum(node.gpus for node in nodes), float(sum(node.gpus for node in gone))
        paused = float((world.paused * self._shares[world.last_node]).sum())
        running = sum(float(world.running[seats].sum()) for seats in sharers)
        held = float((world.running * self._shares[world.last_node]).sum())
        freed = {IDLE: paused, SHARING: running * (1 - _QUARTER)}
        freed[SCALING] = max(0.0, all_gpus - held - sum(freed.values()))
        self.hours += all_gpus * hours
        self.money += sum(node.gpus * (self._rates[node.name] or 0.0) for node in nodes) * hours
        self.unpriced += sum(node.gpus for node in nodes if self._rates[node.name] is None) * hours
        each = sum(node.gpus * (self._rates[node.name] or 0.0) for node in gone) / off if off else 0.0
        for part, done in self.parts.items():
            claimed = min(off, freed[part])
            off -= claimed
            done.freed_gpu_hours += freed[part] * hours
            done.gone_gpu_hours += claimed * hours
            done.money += claimed * each * hours


def play(
    make_world: Callable[[], World], trial: backtest.Trial, asked: frozenset[str], *, interval: Seconds,
    book: price_book.ModelPrices,
) -> Together:
    """Idle pausing and whatever else is asked for, over one past."""
    world, unknown = make_world(), 0.0
    before = {one.uid: one.part.mode for one in world.workloads}
    if SHARING in asked:
        world, unknown = share(world)
    sharers = [one.seats for one in world.workloads if one.part.mode != before[one.uid]]
    going = backtest.Run(world, trial.mandate, policies=trial.policies, interval=interval)
    groups = over_world.list_groups(world, book)
    scene = over_world.WorldScene(world, groups) if SCALING in asked else None
    scaler = Ours(scene, over_world.make_policy(groups)) if scene is not None else None
    counting = _Counting(world, book, asked | {IDLE})
    end = world.span.start + world.span.columns * world.span.step
    while world.now + interval <= end:
        going.tick()
        counting.count(interval, sharers)
        if scene is not None and scaler is not None:
            scene.follow()
            _drive(scaler.tick())
    return _add_up(going, counting, unknown, len(sharers), scaler)


def _drive(going: Coroutine[None, None, None]) -> None:
    """To its end: the pretend cloud answers at once."""
    try:
        going.send(None)
    except StopIteration:
        return
    raise RuntimeError("the pretend cloud does not wait for anything")


def _add_up(
    going: backtest.Run, counting: _Counting, unknown: float, sharers: int, scaler: Ours | None
) -> Together:
    total = going.account("", {}).total
    return Together(
        parts=list(counting.parts.values()), gpu_hours=counting.hours, money=counting.money,
        unpriced_gpu_hours=counting.unpriced, unknown_gpu_hours=unknown, workloads_sharing=sharers,
        nodes_released=scaler.released if scaler else 0, nodes_added=scaler.grown if scaler else 0,
        pauses=total.pauses, regrets=total.regrets, waited=total.waited,
    )
