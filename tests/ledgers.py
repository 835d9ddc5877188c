"""Histories of GPUs for tests of the ledger, and an oracle that adds them up second by second.

In: random draws. Out: batches as the books write them, and what is true in the end: intervals, made without the ledger.
Invariant: the oracle shares no line with account/: it has a number for every second of every interval.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from fallow.model.cost import (
    DAY,
    HOUR,
    NONE,
    UNALLOCATED,
    UNIT,
    WHOLE,
    Amounts,
    CapacityType,
    CostBatch,
    CostKey,
    CostSum,
    Dims,
    Interval,
    IntervalRef,
    Sharing,
    Slice,
    SpendState,
)

Ints: TypeAlias = npt.NDArray[np.int64]
MIDNIGHT = 1_789_257_600  # 2026-09-13 00:00 UTC
assert MIDNIGHT % DAY == 0
USED, HELD, FREE, UNKNOWN = (
    SpendState.used, SpendState.held_idle, SpendState.unallocated, SpendState.use_unknown
)
STATES = tuple(SpendState)


def key(
    namespace: str = "ml", *, team: str = "", owner: str = "llm", node: str = "n1", **labels: str
) -> CostKey:
    return CostKey(
        cluster="c1", node=node, instance_type="p4d.24xlarge", region="eu", capacity_type=CapacityType.on_demand,
        gpu_model="A100-40GB", namespace=namespace, owner_kind="Deployment", owner_name=owner,
        workload_type="training", dims=Dims(team=team, labels=tuple(sorted(labels.items()))),
    )


def part_of(
    gpu: str = "GPU-1", slot: str = "", *, pod: str = "llm-0", at: CostKey | None = None, share: int = WHOLE,
    state: SpendState = USED, rate: int | None = UNIT, price: str = "list", ack: str = "",
) -> Slice:
    """`rate`: an hour of this share."""
    return Slice(
        gpu=gpu, slot=slot, share=share, key=at or key(), state=state, rate_nano=rate, price_id=price if rate else "",
        pod_uid=f"uid-{pod}" if pod else "", pod_name=pod, ack_id=ack,
    )


def free(gpu: str = "GPU-1", slot: str = "", *, share: int = WHOLE, rate: int | None = UNIT) -> Slice:
    nobody = CostKey(cluster="c1", node="n1", gpu_model="A100-40GB", sharing=Sharing.idle)
    return Slice(gpu=gpu, slot=slot, share=share, key=nobody, state=FREE, rate_nano=rate)


def lasting(what: Slice, t0: int, t1: int, **more: object) -> Interval:
    return Interval(slice=what, t0=t0, t1=t1, **more)  # type: ignore[arg-type]


# ---- the oracle ------------------------------------------------------------------------------------------------------


def _growth(interval: Interval) -> Ints:
    """A column for each second since the begin: what cost, use cost and energy came to until then, rounded as a bill
    is."""
    passed = np.arange(1, interval.t1 - interval.t0 + 1, dtype=np.int64)  # seconds, after each of them
    starts = _starts(interval, 0, len(passed))
    length = np.diff(starts, append=len(passed))
    spent = np.append(0, _half_even((interval.slice.rate_nano or 0) * passed, HOUR))
    used = burned = np.zeros(len(passed), np.int64)
    if any(interval.use) and interval.slice.state is USED:
        use = np.repeat(_hours(interval.use, len(starts)), length)
        in_hour = spent[1:] - np.repeat(spent[starts], length)
        if (interval.slice.rate_nano or 0) < 2**62 // WHOLE:
            used = _half_even(in_hour * use, WHOLE)
        else:  # the product may not fit
            used = _half_even(in_hour % WHOLE * use, WHOLE, in_hour // WHOLE * use)
    if any(interval.energy_mj):
        energy = np.repeat(_hours(interval.energy_mj, len(starts)), length)
        burned = _half_even(energy * (passed - np.repeat(starts, length)), np.repeat(length, length))
    return np.stack((spent, _go_on(used, starts), _go_on(burned, starts)))


def _starts(interval: Interval, first: int, last: int) -> Ints:
    """Where hours of the clock begin within its seconds from `first` until before `last`, which are counted from
    there."""
    begin = interval.t0 + first
    return np.append(0, np.arange(HOUR - begin % HOUR, last - first, HOUR))


def _go_on(within: Ints, starts: Ints) -> Ints:
    """Of each hour on top of what the hours before came to in full."""
    full = np.cumsum(np.append(0, within[starts[1:] - 1]))
    return np.append(0, within + np.repeat(full, np.diff(starts, append=len(within))))


def _hours(said: Sequence[int | None], count: int) -> Ints:
    return np.array([*(one or 0 for one in said), *(0,) * count][:count], np.int64)


def _half_even(number: Ints, by: Ints | int, more: Ints | int = 0) -> Ints:
    """`more` + number / by; a product of all of it may not fit."""
    whole, rest = np.divmod(2 * number + by, 2 * by)  # half up, but for halves
    whole += more
    whole -= (rest == 0) & (whole & 1 == 1)
    return whole


def second_by_second(
    truth: Iterable[Interval], begin: int, end: int, name: Callable[[Interval], tuple[str, ...]]
) -> dict[tuple[str, ...], dict[SpendState, Amounts]]:
    found = defaultdict[tuple[str, ...], dict[SpendState, list[int]]](dict)
    for interval in truth:
        first, last = max(begin, interval.t0) - interval.t0, min(end, interval.t1) - interval.t0
        if first >= last:
            continue
        what = interval.slice
        grew, starts = np.diff(_growth(interval)[:, first : last + 1]), _starts(interval, first, last)
        in_hours = np.add.reduceat(grew, starts, axis=1).T.tolist()
        lengths = np.diff(starts, append=last - first).tolist()
        for number, (length, (cost, use, energy)) in enumerate(zip(lengths, in_hours, strict=True)):
            hour = (interval.t0 + first) // HOUR - interval.t0 // HOUR + number
            time, sums = what.share * length, found[name(interval)].setdefault(_state(interval, hour), [0] * 5)
            for at, amount in enumerate((cost, use, time, time if what.rate_nano is None else 0, energy)):
                sums[at] += amount
    fields = ("cost", "use_cost", "gpu_micro_seconds", "unpriced", "energy_mj")
    return {
        group: {state: Amounts(**dict(zip(fields, sums, strict=True))) for state, sums in states.items()}
        for group, states in found.items()
    }


def _state(interval: Interval, hour: int) -> SpendState:
    """In an hour of it, counted from its first: one that was used as nobody knows how much is unknown."""
    state = interval.slice.state
    is_known = state is not USED or (hour < len(interval.use) and interval.use[hour] is not None)
    return state if is_known else UNKNOWN


def as_groups(sums: Iterable[CostSum]) -> dict[tuple[str, ...], dict[SpendState, Amounts]]:
    return {one.key: one.parts for one in sums}


def total(sums: Iterable[CostSum]) -> Amounts:
    return sum((one.total for one in sums), Amounts())


def by_namespace(one: Interval) -> tuple[str, ...]:
    what = one.slice
    return (what.key.namespace or (UNALLOCATED if what.state is FREE else NONE),)


def by_team_and_pod(one: Interval) -> tuple[str, ...]:
    what = one.slice
    missing = UNALLOCATED if what.state is FREE else NONE
    return what.key.dims.team or missing, what.pod_name or missing


# ---- random histories ------------------------------------------------------------------------------------------------


class History(msgspec.Struct):
    """Batches in the order they were made, and what is true after each of them."""

    batches: list[CostBatch]
    truths: list[list[Interval]]
    begin: int
    parts: int

    @property
    def end(self) -> int:
        return self.batches[-1].at

    @property
    def truth(self) -> list[Interval]:
        return self.truths[-1]


class _PretendBooks:
    """Looks at parts of GPUs that change hands by chance, and writes what a writer of books would."""

    def __init__(self, chance: random.Random, begin: int) -> None:
        self._chance, self._last, self._closed = chance, begin, list[Interval]()
        halves = [("GPU-2", "0", 600_000), ("GPU-2", "1", 400_000)]
        self._parts = [("GPU-1", "", WHOLE), *halves]
        self._hours = dict[tuple[str, str, int, int], tuple[int | None, int | None]]()
        self._open = [lasting(self._draw(part), begin, begin, is_open=True) for part in self._parts]

    def first(self) -> CostBatch:
        return CostBatch(at=self._last, intervals=tuple(self._open))

    def look(self, now: int) -> CostBatch:
        written, removed = list[Interval](), list[IntervalRef]()
        for midnight in range((self._last // DAY + 1) * DAY, now + 1, DAY):
            for number, one in enumerate(self._open):
                written.append(self._close(one, midnight))
                self._open[number] = lasting(one.slice, midnight, midnight, is_open=True)
                written.append(self._open[number])
        for number, one in enumerate(self._open):
            written += self._change(number, one, now, removed)
        self._last = now
        return CostBatch(at=now, intervals=tuple(written), removed=tuple(removed))

    def truth(self) -> list[Interval]:
        """What is open ends where we looked last."""
        return sorted(
            [*self._closed, *(msgspec.structs.replace(one, t1=self._last) for one in self._open)],
            key=lambda one: (one.t0, one.slice.gpu, one.slice.slot),
        )

    def _change(self, number: int, one: Interval, now: int, removed: list[IntervalRef]) -> list[Interval]:
        kind = self._chance.random()
        if kind < 0.35:
            return []
        if kind < 0.6 or now == one.t0:  # a checkpoint, with what was measured
            self._open[number] = self._measured(one, now)
            return [self._open[number]]
        since, after = now, self._draw(self._parts[number])
        if kind < 0.75 and one.t0 < now - 1:  # idle, and since before we looked last
            since = self._chance.randrange(one.t0, now)
            after = msgspec.structs.replace(one.slice, state=HELD)
            removed.append(one.ref)
        done = [] if since == one.t0 else [self._close(one, since)]
        self._open[number] = self._measured(lasting(after, since, since, is_open=True), now)
        return [*done, self._open[number]]

    def _close(self, one: Interval, at: int) -> Interval:
        closed = msgspec.structs.replace(self._measured(one, at), is_open=False)
        self._closed.append(closed)
        return closed

    def _measured(self, one: Interval, until: int) -> Interval:
        """The hours that it touches until then; each has one value, whenever it is asked for."""
        hours = range(one.t0 // HOUR, max(until - 1, one.t0) // HOUR + 1)
        found = [self._hour(one, hour) for hour in hours]
        use, energy = _trimmed([use for use, _ in found]), _trimmed([energy for _, energy in found])
        return msgspec.structs.replace(one, t1=until, use=use, energy_mj=energy)

    def _hour(self, one: Interval, hour: int) -> tuple[int | None, int | None]:
        name = (one.slice.gpu, one.slice.slot, one.t0, hour)
        if name not in self._hours:
            use = self._chance.choice((None, 0, WHOLE, self._chance.randrange(WHOLE)))
            self._hours[name] = use, self._chance.choice((None, self._chance.randrange(10**9)))
        return self._hours[name]

    def _draw(self, part: tuple[str, str, int]) -> Slice:
        gpu, slot, share = part
        rate = self._chance.choice((None, 0, UNIT, 4_096_250_000, self._chance.randrange(10**13)))
        if self._chance.random() < 0.3:
            return free(gpu, slot, share=share, rate=rate)
        namespace, team = self._chance.choice((("ml", "red"), ("ml", "blue"), ("web", "")))
        pod = f"{namespace}-{self._chance.randrange(3)}-{self._last}"
        state = self._chance.choice((USED, USED, UNKNOWN))
        return part_of(gpu, slot, pod=pod, at=key(namespace, team=team), share=share, state=state, rate=rate)


def _trimmed(hours: Sequence[int | None]) -> tuple[int | None, ...]:
    """Unmeasured hours at the end are not written."""
    known = [at for at, one in enumerate(hours) if one is not None]
    return tuple(hours[: known[-1] + 1]) if known else ()


def make_history(seed: int, steps: Sequence[int], begin: int) -> History:
    books = _PretendBooks(random.Random(seed), begin)
    batches, truths, now = [books.first()], [books.truth()], begin
    for step in steps:
        now += step
        batches.append(books.look(now))
        truths.append(books.truth())
    return History(batches, truths, begin, 3)
