"""Who asks for GPUs in the month: jobs with a size, a length and manners, by mixes that are made up or from traces.

In: the name of a mix, days, a seed; for a trace what it tells. Out: GpuJobs in the order in which they come.
`weekly`: 40 GPUs on weekdays from 9 to 18 h, else 4. `sweeps`: many small jobs at once, a few times a day. openb: sizes
and lengths of its pods, coming by day more than by night. Helios: as many GPUs as were asked for, minute by minute.
Invariant: the same mix, days and seed give the same jobs; nobody is longer than the month.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from fallow.model.classes import WorkClass
from fallow.model.units import DAY, HOUR, MINUTE, Seconds
from fallow.sim.traces import openb, published
from fallow.sim.world.lives import LifeSpan

WEEKLY, SWEEPS = "weekly", "sweeps"
_SIZES: Final = ((1, 0.72), (2, 0.14), (4, 0.09), (8, 0.05))
_SHORTEST: Final[Seconds] = MINUTE
_OPENB_GPUS: Final = 64.0  # asked for at once, on average


class GpuJob(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`at`: since the month began. `use`: of its GPUs, 0 to 1. `spot`: its people want it on spot nodes, and nowhere
    else; others want it on none. `may_move`: it may be started anew elsewhere."""

    name: str
    at: Seconds
    seconds: Seconds
    gpus: int
    work: WorkClass
    use: float
    spot: bool
    may_move: bool

    @property
    def is_large(self) -> bool:
        """It needs a machine that small ones are kept away from."""
        return self.gpus > 2


def draw(mix: str, days: float, seed: int) -> list[GpuJob]:
    """Of a mix that is made up."""
    rng = np.random.default_rng([seed, 18])
    return _dress(MADE_UP[mix](days * DAY, rng), rng)


def of_openb(pods: Iterable[openb.AskingPod], days: float, seed: int) -> list[GpuJob]:
    """Any pod of the list may come again and again; parts of a GPU are whole ones, and what never ended lasts."""
    rng, length = np.random.default_rng([seed, 19]), days * DAY
    asking = [each for each in pods if each.pod.gpus]
    lived = np.array([_lived(each, length) for each in asking])
    gpus = np.array([each.pod.gpus for each in asking])
    rate = _OPENB_GPUS / float((lived * gpus).mean())
    times = _arrive(lambda at: rate * (1.6 if 8 <= at % DAY / HOUR < 20 else 0.4), 1.6 * rate, length, rng)
    chosen = rng.integers(len(asking), size=len(times))
    found = zip(times, lived[chosen].tolist(), gpus[chosen].tolist(), strict=True)
    return _dress(found, rng)


def of_helios(demands: Sequence[published.Demand], days: float, seed: int) -> list[GpuJob]:
    span = LifeSpan(0.0, MINUTE, round(days * DAY / MINUTE))
    parts = [part for demand in demands for part in published.demand_parts(demand, span)]
    begins = [part.arrives_at or 0.0 for part in parts]
    ends = [days * DAY if part.ends_at is None else part.ends_at for part in parts]
    found = [(begin, end - begin, part.gpus) for part, begin, end in zip(parts, begins, ends, strict=True)]
    return _dress(sorted(each for each in found if each[1] > 0), np.random.default_rng([seed, 20]))


def _lived(asking: openb.AskingPod, most: Seconds) -> Seconds:
    if asking.created is None or asking.deleted is None:
        return most
    return min(most, max(_SHORTEST, asking.deleted - asking.created))


# ---- mixes ----------------------------------------------------------------------------------------------------------


def _draw_weekly(length: Seconds, rng: np.random.Generator) -> Iterator[tuple[Seconds, Seconds, int]]:
    """The month begins on a Monday."""
    sizes, shares = zip(*_SIZES, strict=True)
    mean = 2 * HOUR * float(np.dot(sizes, shares))
    peak = 40 / mean

    def rate(at: Seconds) -> float:
        is_at_work = at // DAY % 7 < 5 and 9 <= at % DAY / HOUR < 17.5
        return peak if is_at_work else peak / 10

    for at in _arrive(rate, peak, length, rng):
        lasts = max(_SHORTEST, float(rng.lognormal(np.log(2 * HOUR) - 0.32, 0.8)))
        yield at, lasts, int(rng.choice(sizes, p=shares))


def _draw_sweeps(length: Seconds, rng: np.random.Generator) -> Iterator[tuple[Seconds, Seconds, int]]:
    """Beside a few services that stay."""
    for _ in range(8):
        yield 0.0, length, int(rng.choice([1, 2, 4]))
    for at in _arrive(lambda _: 4 / DAY, 4 / DAY, length, rng):
        lasts = float(rng.uniform(1.5 * HOUR, 5 * HOUR))
        for _ in range(int(rng.integers(8, 33))):
            yield at, lasts * float(rng.uniform(0.8, 1.2)), 1


MADE_UP: Final[Mapping[str, Callable[[Seconds, np.random.Generator], Iterable[tuple[Seconds, Seconds, int]]]]] = {
    WEEKLY: _draw_weekly, SWEEPS: _draw_sweeps,
}


def _arrive(
    rate: Callable[[Seconds], float], most: float, length: Seconds, rng: np.random.Generator
) -> list[Seconds]:
    """Times at which somebody comes, at a rate that changes."""
    times = np.cumsum(rng.exponential(1 / most, size=int(length * most * 1.3) + 100))
    kept = rng.random(len(times))
    drawn = zip(times.tolist(), kept.tolist(), strict=True)
    return [at for at, share in drawn if at < length and share < rate(at) / most]


def _dress(found: Iterable[tuple[Seconds, Seconds, int]], rng: np.random.Generator) -> list[GpuJob]:
    """What kind of work each does: large ones train and lose work when they are moved; services are on no spot."""
    made = []
    for number, (at, seconds, gpus) in enumerate(sorted(found)):
        work = WorkClass.training if gpus >= 4 else WorkClass.batch if rng.random() < 0.7 else WorkClass.inference
        spot = bool(rng.random() < (0.4 if work is WorkClass.training else 0.85 if work is WorkClass.batch else 0.0))
        made.append(GpuJob(
            name=f"job-{number:06}", at=at, seconds=max(_SHORTEST, seconds), gpus=gpus, work=work,
            use=float(rng.uniform(0.3, 0.95)), spot=spot, may_move=work is WorkClass.batch,
        ))
    return made

