"""What owners used of GPUs in seven days, as the daemon tells the webhook: a table in a ConfigMap.

In: OwnerUse by the owner's uid, when it was measured. Out: text and back. Bounded, so that no cluster makes it larger
than an object may be; who has no place is not known.
Invariant: a table that cannot be read, or is older than a quarter of a day, tells nothing.
"""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from fallow.model.classes import Behaviour
from fallow.model.seen import ABSENT, Input, Known, Unseen
from fallow.model.sharing import OwnerUse
from fallow.model.units import HOUR, Instant, Seconds

KEY: Final = "use.json"
MOST: Final = 5000  # owners; a row has about 110 bytes
OLDEST: Final[Seconds] = 6 * HOUR
_SKEW: Final[Seconds] = 300.0  # by which the daemon's clock may be ahead of ours


class _UseRow(msgspec.Struct, frozen=True, array_like=True):
    coverage: float
    peak: int | None
    mean: float | None
    p95: float | None
    seconds: float = 0.0
    deviation: float | None = None
    idle: float | None = None


class UseTable(msgspec.Struct, frozen=True):
    """By the owner's uid."""

    v: Literal[1]
    at: Instant
    owners: Mapping[str, _UseRow]

    def find(self, uid: str, now: Instant) -> Input[OwnerUse]:
        if not -_SKEW <= now - self.at <= OLDEST:
            return Unseen(f"what owners used was last measured {max(0.0, now - self.at) / HOUR:.0f} h ago")
        row = self.owners.get(uid)
        return ABSENT if row is None else Known(_see(row))


def write(used: Mapping[str, OwnerUse], at: Instant) -> str:
    rows = {uid: _make_row(used[uid]) for uid in sorted(used)[:MOST]}
    return msgspec.json.encode(UseTable(v=1, at=at, owners=rows)).decode()


def read(text: str) -> UseTable:
    """Raises ValueError."""
    try:
        return msgspec.json.decode(text, type=UseTable)
    except (msgspec.MsgspecError, RecursionError) as problem:
        raise ValueError(f"what owners used cannot be read: {problem}") from None


def _make_row(use: OwnerUse) -> _UseRow:
    seen = use.behaviour.value if isinstance(use.behaviour, Known) else None
    more = (0.0, None, None) if seen is None else (seen.seconds, round(seen.deviation, 4), seen.idle)
    return _UseRow(round(use.coverage, 4), use.peak_memory, _round(use.mean), _round(use.p95), *more)


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _see(row: _UseRow) -> OwnerUse:
    behaviour: Input[Behaviour] = ABSENT
    if row.mean is not None and row.deviation is not None and row.idle is not None:
        behaviour = Known(Behaviour(
            seconds=row.seconds, coverage=row.coverage, mean=row.mean, deviation=row.deviation, idle=row.idle
        ))
    return OwnerUse(
        coverage=row.coverage, peak_memory=row.peak, mean=row.mean, p95=row.p95, behaviour=behaviour
    )
