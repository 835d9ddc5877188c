"""Ledgers filled by hand: the day of docs/cost-model.md, and many pods for the bars.

In: nothing, or how many. Out: an open Ledger with intervals as the books would have written them.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

from fallow.account import ledger
from fallow.model.cost import (
    DAY,
    HOUR,
    WHOLE,
    BookedPrice,
    CapacityType,
    CostBatch,
    CostKey,
    Dims,
    Interval,
    Nano,
    PriceUnit,
    Second,
    Sharing,
    Slice,
    SpendState,
)
from tests.builders import NOW

TODAY: Second = int(NOW) // DAY * DAY
YESTERDAY: Second = TODAY - DAY
P4D: Nano = 4_096_250_000  # of a GPU: 32.77 / 8
PRICE = "p4d"


def key(namespace: str = "", owner: str = "", **said: Any) -> CostKey:
    team = said.pop("team", namespace)
    labels = said.pop("labels", ())
    dims = Dims(team=team, labels=tuple(labels)) if namespace else Dims()
    found = {
        "cluster": "main", "node": "node-1", "instance_type": "p4d.24xlarge", "region": "us-east-1",
        "capacity_type": CapacityType.on_demand, "gpu_model": "A100-40GB", "namespace": namespace,
        "owner_kind": "Deployment" if owner else "", "owner_name": owner, "dims": dims,
        "workload_type": "training" if owner else "", "sharing": Sharing.exclusive if owner else Sharing.idle, **said,
    }
    return CostKey(**found)


def held(
    gpu: str, begin: Second, end: Second, of: CostKey, state: SpendState = SpendState.used, *, use: float | None = None,
    share: int = WHOLE, slot: str = "", rate: Nano | None = P4D, is_open: bool = False, pod: str = "", ack: str = "",
    price: str = PRICE, energy: int | None = None,
) -> Iterator[Interval]:
    """One interval for each UTC day."""
    while begin < end:
        until = min(end, begin // DAY * DAY + DAY)
        hours = (until - 1) // HOUR - begin // HOUR + 1
        uid = pod or (f"uid-{of.namespace}-{of.owner_name}" if of.owner_name else "")
        yield Interval(
            slice=Slice(
                gpu=gpu, slot=slot, share=share, key=of, state=state, price_id=price if rate is not None else "",
                rate_nano=None if rate is None else rate * share // WHOLE, pod_uid=uid, ack_id=ack,
                pod_name=uid.removeprefix("uid-") if uid else "",
            ),
            t0=begin, t1=until, is_open=is_open and until == end,
            use=() if use is None else (round(use * WHOLE),) * hours,
            energy_mj=() if energy is None else (energy,) * hours,
        )
        begin = until


def free(gpu: str, begin: Second, end: Second, **said: Any) -> Iterator[Interval]:
    return held(gpu, begin, end, key(**said.pop("of", {})), SpendState.unallocated, **said)


def example(day: Second = YESTERDAY) -> list[Interval]:
    """The day of docs/cost-model.md: 8 GPUs, 786.48 USD."""
    red, blue = key("red", "train", labels=(("app", "x"),)), key("blue", "serve")

    slices = key("green", "lab", sharing=Sharing.timeslicing)
    found = list[Interval]()
    for number in range(4):
        gpu = f"GPU-{number}"
        found += held(gpu, day, day + 6 * HOUR, red, use=0.5)
        found += held(gpu, day + 6 * HOUR, day + 10 * HOUR, red, SpendState.held_idle, ack="ack-1")
        found += free(gpu, day + 10 * HOUR, day + DAY)
    found += held("GPU-4", day, day + 12 * HOUR, blue, use=0.8, energy=1_800_000_000)
    found += held("GPU-4", day + 12 * HOUR, day + 18 * HOUR, blue, SpendState.use_unknown)
    found += held("GPU-4", day + 18 * HOUR, day + DAY, blue, use=0.8)
    for slot in range(3):
        found += held("GPU-5", day, day + DAY, slices, SpendState.use_unknown, share=WHOLE // 4, slot=str(slot),
                      pod=f"uid-green-lab-{slot}")
    found += free("GPU-5", day, day + DAY, share=WHOLE // 4, slot="3")
    for number in (6, 7):
        found += free(f"GPU-{number}", day, day + DAY)
    return found


def price(id_: str = PRICE, **said: Any) -> BookedPrice:
    found = {
        "provider": "aws", "region": "us-east-1", "instance_type": "p4d.24xlarge", "gpu_model": "A100-40GB", "gpus": 8,
        "capacity_type": CapacityType.on_demand, "unit": PriceUnit.node_hour, "price_per_hour": "32.77",
        "currency": "USD", "source": "list price", "retrieved_at": int(NOW) - 10 * DAY, **said,
    }
    return BookedPrice(price_id=id_, **found)


@contextlib.asynccontextmanager
async def opened(
    intervals: Iterable[Interval], path: Path | None = None, *, prices: Iterable[BookedPrice] = (price(),),
    at: Second = TODAY, roll: Second = 0, currency: str = "USD", **more: Any,
) -> AsyncIterator[ledger.Ledger]:
    """`roll`: what is before is rolled up. `more`: of the batch."""
    made = ledger.on_file(path, currency=currency)
    await made.open()
    try:
        batch = CostBatch(at=at, intervals=tuple(intervals), prices=tuple(prices), **more)
        booked = await made.write(batch, 1)
        assert booked.refused == ()
        if roll:
            await made.roll_up(roll, 1)
        yield made
    finally:
        await made.close()


def crowd(pods: int, days: int, end: Second) -> list[Interval]:
    """So many pods with a GPU each, in a namespace for every ten; a day in eight hours of work and of rest."""
    found = list[Interval]()
    for number in range(pods):
        space = f"team-{number // 10}"
        of = key(space, f"job-{number}", node=f"node-{number // 8}")
        for day in range(end - days * DAY, end, DAY):
            for hour, state in ((0, SpendState.used), (8, SpendState.held_idle), (16, SpendState.used)):
                until = min(day + (hour + 8) * HOUR, end)
                found += held(
                    f"GPU-{number}", day + hour * HOUR, until, of, state,
                    use=0.5 if state is SpendState.used else None,
                )
    return found


def crowd_today(pods: int, begin: Second, now: Second) -> Iterator[Interval]:
    """The same pods, still at work."""
    for number in range(pods):
        of = key(f"team-{number // 10}", f"job-{number}", node=f"node-{number // 8}")
        yield from held(f"GPU-{number}", begin, now, of, use=0.5, is_open=True)
