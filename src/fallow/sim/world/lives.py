"""What workloads do with their GPUs over time: one row per GPU, one column per step, in whole percents of activity.

In: a kind of life, how many pods and GPUs, the time of day it begins, a random generator. Out: a uint8 matrix of what
it *wants* to do; whether it gets to do it (it may be paused, or still starting) is the world's business.
Invariant: the same generator state gives the same life. NONE stands for "not known": only traces have it.
"""

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from fallow.model.units import DAY, HOUR, Instant, Seconds

Percents: TypeAlias = NDArray[np.uint8]

NONE: Final = 255  # not measured, or nobody there
ACTIVE: Final = 1  # percent: from here on a GPU does something


class LifeSpan(msgspec.Struct, frozen=True):
    """The time a life is drawn for."""

    start: Instant
    step: Seconds
    columns: int

    def hours(self) -> NDArray[np.float64]:
        """The hour of the day (UTC) of each column."""
        return np.asarray((self.start + self.step * np.arange(self.columns)) % DAY / HOUR, np.float64)

    def count(self, seconds: Seconds) -> int:
        """How many columns that is, at least one."""
        return max(1, round(seconds / self.step))


Draw: TypeAlias = Callable[[LifeSpan, np.random.Generator], Percents]


def draw(life: str, span: LifeSpan, pods: int, gpus: int, rng: np.random.Generator) -> Percents:
    """One row per GPU. The GPUs of one workload do nearly the same at the same time; a group's leader does little."""
    one = LIVES[life](span, rng)
    rows = np.repeat(one[None, :], pods * gpus, axis=0)
    busy = rows >= 10
    wobble = rng.integers(-5, 6, rows.shape, np.int8)
    rows = np.where(busy, np.clip(rows.astype(np.int16) + wobble, ACTIVE, 100), rows).astype(np.uint8)
    if life == "group":
        rows[:gpus] = np.minimum(rows[:gpus], 3)
    return rows


def _train(span: LifeSpan, rng: np.random.Generator) -> Percents:
    """Busy for hours, a checkpoint every hour or two, a stall of the data now and then, at last an end unnoticed."""
    row = np.full(span.columns, rng.integers(75, 99), np.uint8)
    for at in range(rng.integers(10, 60), span.columns, span.count(rng.uniform(1, 2) * HOUR)):
        row[at : at + span.count(rng.uniform(60, 240))] = rng.integers(0, 20)
    for at in rng.integers(0, span.columns, rng.poisson(span.columns * span.step / DAY * 2)):
        row[at : at + span.count(rng.uniform(300, 1200))] = 0
    if rng.random() < 0.3:
        row[rng.integers(span.columns // 4, span.columns) :] = 0
    return row


def _serve(span: LifeSpan, rng: np.random.Generator) -> Percents:
    """Requests come and go with the day: a quiet night, a busy afternoon. Small services see hours without any."""
    rate = rng.lognormal(0.0, 1.5)  # requests a minute in the afternoon
    tide = 0.02 + 0.98 * np.clip(np.sin((span.hours() - 7.0) / 24 * 2 * np.pi), 0, None) ** 1.5
    requests = rng.poisson(rate * tide * span.step / 60)
    return np.asarray(np.minimum(requests * rng.integers(4, 15), 97), np.uint8)


def _open_notebook(span: LifeSpan, rng: np.random.Generator) -> Percents:
    """A few sessions in working hours, short bursts within them, and the GPU held all the rest of the day."""
    row, hours = np.zeros(span.columns, np.uint8), span.hours()
    begin = rng.uniform(7, 11)
    works = (hours >= begin) & (hours < begin + rng.uniform(3, 9)) & ~((hours >= 12) & (hours < 13))
    at = 0
    while at < span.columns:
        burst, pause = span.count(rng.exponential(6 * 60)), span.count(rng.exponential(18 * 60))
        row[at : at + burst] = rng.integers(15, 90)
        at += burst + pause
    return np.where(works, row, 0).astype(np.uint8)


def _run_batch(span: LifeSpan, rng: np.random.Generator) -> Percents:
    return np.full(span.columns, rng.integers(60, 99), np.uint8)


def _hold(span: LifeSpan, rng: np.random.Generator) -> Percents:
    return np.zeros(span.columns, np.uint8)


def _crowd(span: LifeSpan, rng: np.random.Generator) -> Percents:
    """As much as a whole GPU gives, all the time."""
    return np.full(span.columns, 99, np.uint8)


def _flap(span: LifeSpan, rng: np.random.Generator) -> Percents:
    """On for some minutes, off for longer, all day: the one that a short window hurts most."""
    row, at = np.zeros(span.columns, np.uint8), int(rng.integers(0, 30))
    while at < span.columns:
        on, off = span.count(rng.uniform(5, 15) * 60), span.count(rng.uniform(20, 60) * 60)
        row[at : at + on] = rng.integers(20, 95)
        at += on + off
    return row


LIVES: Mapping[str, Draw] = {
    "training": _train, "inference": _serve, "notebook": _open_notebook, "batch": _run_batch, "held": _hold,
    "flapping": _flap, "group": _train, "crowded": _crowd,
}
