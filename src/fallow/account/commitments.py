"""Reserved machines that nobody ran: what they cost all the same, as intervals of the platform.

In: commitments with their price, how much of such machines ran in each hour by the ledger. Out: an interval for each
GPU that was paid for and not there, of that hour, in the namespace `__unused_commitment__`.
Invariant: what ran and what did not come to what is reserved, to a millionth of a GPU; made again they are the same
intervals. An hour in which nobody looked is not one in which nothing ran.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, TypeAlias

import msgspec

from fallow.model import cost
from fallow.model.commitments import Commitment
from fallow.model.cost import (
    GPU_HOUR,
    HOUR,
    UNUSED_COMMITMENT,
    WHOLE,
    CapacityType,
    CostFilter,
    CostKey,
    CostQuery,
    CostStep,
    Dims,
    Interval,
    KeySum,
    Rate,
    Second,
    Sharing,
    Slice,
    SpendState,
)
from fallow.model.price_table import fold_type

OURS: Final = (CostFilter(cost.read_dimension("namespace"), frozenset({UNUSED_COMMITMENT})),)
Kind: TypeAlias = tuple[str, str]  # of machine: type and region


class ReservedPrice(msgspec.Struct, frozen=True, kw_only=True):
    """What one GPU of such a machine costs, and how many it has. `rate` None: that is not known."""

    gpus: int
    gpu_model: str = ""
    rate: Rate | None = None


class ReservedUse(msgspec.Struct, frozen=True):
    """Micro-GPU-seconds of reserved machines by hour and kind; `watched`: hours in which anybody looked."""

    ran: Mapping[tuple[Second, Kind], int]
    watched: Collection[Second]


def ask(begin: Second, end: Second) -> CostQuery:
    return CostQuery(begin=begin, end=end, step=CostStep.hour)


def read_use(sums: Iterable[KeySum]) -> ReservedUse:
    ran, watched = defaultdict[tuple[Second, Kind], int](int), set[Second]()
    for one in sums:
        if one.key.namespace == UNUSED_COMMITMENT:
            continue
        watched.add(one.begin)
        if one.key.capacity_type is CapacityType.reserved:
            ran[one.begin, (fold_type(one.key.instance_type), one.key.region)] += one.total.gpu_micro_seconds
    return ReservedUse(dict(ran), watched)


def book(
    wanted: Iterable[tuple[Commitment, ReservedPrice]], use: ReservedUse, hour: Second, cluster: str
) -> Iterator[Interval]:
    """Of one hour. Of two commitments of the same machines the first is used first."""
    if hour not in use.watched:
        return
    left = dict[Kind, int]()
    for number, (of, price) in enumerate(wanted):
        kind = fold_type(of.instance_type), of.region
        ran, paid_for = left.get(kind, use.ran.get((hour, kind), 0)), of.count * price.gpus * GPU_HOUR
        left[kind] = max(0, ran - paid_for)
        shares = _divide(max(0, paid_for - ran) // HOUR)
        yield from (_interval(of, price, f"{number}/{at}", share, hour, cluster) for at, share in enumerate(shares))


def _divide(micro: int) -> Iterator[int]:
    """Whole GPUs, and what is left of one."""
    whole, rest = divmod(micro, WHOLE)
    yield from (WHOLE,) * whole
    if rest:
        yield rest


def _interval(
    of: Commitment, price: ReservedPrice, number: str, share: int, hour: Second, cluster: str
) -> Interval:
    key = CostKey(
        cluster=cluster, node="", instance_type=of.instance_type, region=of.region, gpu_model=price.gpu_model,
        capacity_type=CapacityType.reserved, sharing=Sharing.idle, namespace=UNUSED_COMMITMENT,
        dims=Dims(team=UNUSED_COMMITMENT),
    )
    rate = price.rate
    name = f"{UNUSED_COMMITMENT}/{fold_type(of.instance_type)}/{of.region}/{number}"
    return Interval(t0=hour, t1=hour + HOUR, slice=Slice(
        gpu=name, slot="", share=share, key=key, state=SpendState.unallocated, price_id=rate.price_id if rate else "",
        rate_nano=None if rate is None else rate.nano * share // WHOLE,
    ))
