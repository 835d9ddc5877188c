"""What goes wrong in a month: each fault a few times, at times that a seed draws; and what must hold all the same.

In: our side of the month (ours.py), days, a seed. Out: at every tick what is out of order then; at the end what of
the promises was broken: no node removed that held a pod which could not go elsewhere, nothing grown twice, and, hours
after the last fault, no node left cordoned.
"""

from collections.abc import Callable, Iterator
from typing import Final

import msgspec
import numpy as np

from fallow.model.cost import CapacityType
from fallow.model.units import DAY, HOUR, MINUTE, Instant, Seconds
from fallow.sim.cloud import CloudFault, Drought, PretendGroup
from fallow.sim.month import pools
from fallow.sim.month.ours import Killed, Ours

_EVERY: Final[Seconds] = 5 * HOUR  # on average one begins
CALM: Final[Seconds] = 3 * HOUR  # at the end
_ODD: Final = {"astray": 0.02, "renamed": 0.05}  # shares of machines
_QUOTA: Final = 12  # machines of a group that has one


class MonthFault(msgspec.Struct, frozen=True):
    name: str
    begins: Instant
    ends: Instant


LENGTHS: Final = {
    "provider-down": 40 * MINUTE, "throttled": 20 * MINUTE, "lying-target": 30 * MINUTE, "lagging-list": 30 * MINUTE,
    "half-unready": 15 * MINUTE, "metrics-gone": 90 * MINUTE, "metrics-zero": 20 * MINUTE, "clock-jump": 30 * MINUTE,
    "budgets-refuse": HOUR, "spot-notices": MINUTE, "kill": 20 * MINUTE,
}
_IN_CLOUD: Final = {
    "provider-down": CloudFault.down, "throttled": CloudFault.throttled, "lying-target": CloudFault.lying,
    "lagging-list": CloudFault.lagging,
}


def plan_faults(begins: Instant, days: float, seed: int) -> list[MonthFault]:
    """Of each sort as many, in an order that the seed draws, one after the other."""
    rng, at, end = np.random.default_rng([seed, 21]), begins + 2 * HOUR, begins + days * DAY - CALM
    made, order = list[MonthFault](), list[str]()
    while True:
        order = order or rng.permutation(list(LENGTHS)).tolist()
        name = order.pop()
        at += float(rng.uniform(0.4, 1.6)) * _EVERY
        if at + LENGTHS[name] >= end:
            return made
        made.append(MonthFault(name, at, at + LENGTHS[name]))


def plan_droughts(begins: Instant, days: float, seed: int) -> Iterator[Drought]:
    """A zone without spot for hours, now and then; once in a while no zone has any, or a zone has nothing at all."""
    rng, at = np.random.default_rng([seed, 22]), begins
    while (at := at + float(rng.exponential(DAY))) < begins + days * DAY - CALM:
        zone = str(rng.choice(["zone-a", "zone-b", ""]))
        tier = CapacityType.spot if not zone or rng.random() < 0.8 else None
        yield Drought(at, min(at + float(rng.uniform(HOUR, 4 * HOUR)), begins + days * DAY - CALM), zone, tier)


def list_groups() -> Iterator[PretendGroup]:
    """As they are, but that machines go astray; every other group tells later what it does not have, and one has a
    quota."""
    for place, group in enumerate(pools.list_groups(**_ODD)):
        quota = _QUOTA if group.id == pools.name_pool(CapacityType.on_demand, 2) else None
        yield msgspec.structs.replace(group, tells_later=bool(place % 2), quota=quota)


class MonthTrouble:
    """Brings the faults about, tick by tick."""

    def __init__(self, ours: Ours, faults: list[MonthFault], seed: int) -> None:
        self._ours, self._faults, self._rng = ours, faults, np.random.default_rng([seed, 23])
        self._struck = frozenset[str]()
        self.seen = set[str]()  # faults that were

    def is_near(self) -> bool:
        """Whether something is wrong, or was just now."""
        now = self._ours.scene.now
        return any(fault.begins <= now < fault.ends + HOUR / 2 for fault in self._faults)

    def next_at(self) -> Instant:
        now = self._ours.scene.now
        return min((fault.begins for fault in self._faults if fault.begins > now), default=now + HOUR)

    def strike(self) -> None:
        now, ours = self._ours.scene.now, self._ours
        on = {fault.name for fault in self._faults if fault.begins <= now < fault.ends}
        fresh, self._struck = on - self._struck, frozenset(on)
        self.seen |= on
        ours.cloud.faults = {_IN_CLOUD[name] for name in on if name in _IN_CLOUD}
        senses = ours.senses
        senses.measured = "Prometheus does not answer" if "metrics-gone" in on else ""
        senses.reads_zero = "metrics-zero" in on
        senses.refusing = "budgets-refuse" in on
        senses.off = 2 * HOUR if "clock-jump" in on else 0.0
        for number, node in enumerate(ours.scene.nodes.values()):
            node.is_ready = not ("half-unready" in on and number % 2)
        if "spot-notices" in fresh:
            self._take_back()
        ours.before_effect = self._count_down(int(self._rng.integers(1, 8))) if "kill" in on else _nothing

    def _take_back(self) -> None:
        spot = [one for one in self._ours.cloud.standing() if one.group.tier is CapacityType.spot and not one.is_told]
        for one in spot[: max(1, len(spot) // 3)]:
            self._ours.cloud.take_back(one.id, float(self._rng.choice([30.0, 120.0])))

    def _count_down(self, left: int) -> Callable[[], None]:
        """Dies before the so manieth thing that it does to the world."""
        counts = [left]

        def die() -> None:
            counts[0] -= 1
            if counts[0] == 0:
                raise Killed

        return die


def _nothing() -> None:
    return None


def find_cordoned(ours: Ours) -> list[str]:
    return [
        f"{node.name} is left cordoned" for node in ours.scene.nodes.values()
        if node.cordoned_by and node.drain is None and node.spot is None
    ] + [
        f"{node.name} is drained since {ours.now - node.drain.since:.0f}s" for node in ours.scene.nodes.values()
        if node.drain is not None and ours.now - node.drain.since > HOUR
    ]
