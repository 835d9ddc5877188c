"""Whose workloads they are: how an owner answers a notice, and what they do when they need what was paused.

In: a character and the world's own random numbers. Out: when they acknowledge (or that they do not), how long until
they miss their workload, and by which way they bring it back.
Three ways back exist in life and here: the command (at once, recorded), the annotation (the next cycle does it), and by
hand (somebody scales it up and does not say a word, which the product must take as a complaint).
"""

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import msgspec
import numpy as np

from fallow.model.units import MINUTE, Seconds

Way: TypeAlias = Literal["command", "annotation", "hand"]


class Character(msgspec.Struct, frozen=True):
    """`acknowledges`: how likely a notice is answered; `answers` and `misses`: after how long at the latest. `signs`:
    as whom."""

    name: str
    acknowledges: float
    answers: Seconds
    keeps_hours: float
    misses: Seconds
    way: Way
    signs: str = "its owner"

    def answer(self, rng: np.random.Generator) -> Seconds | None:
        """After how long they acknowledge a notice; None: they do not."""
        return float(rng.uniform(0.1, 1.0)) * self.answers if rng.random() < self.acknowledges else None

    def miss(self, rng: np.random.Generator) -> Seconds:
        """After how long they bring back what they need and do not find."""
        return float(rng.uniform(0.1, 1.0)) * self.misses


CHARACTERS: Final[Mapping[str, Character]] = {
    one.name: one
    for one in (
        Character("attentive", 0.5, 4 * MINUTE, 4.0, 2 * MINUTE, "command"),
        Character("absent", 0.0, 0.0, 0.0, 30 * MINUTE, "command"),
        Character("polite", 0.2, 8 * MINUTE, 2.0, 5 * MINUTE, "annotation"),
        Character("impatient", 0.1, 2 * MINUTE, 8.0, 20.0, "hand"),
        Character("machine", 0.0, 0.0, 0.0, 1.0, "command", "its gateway"),  # for whoever calls the service, at once
    )
}
