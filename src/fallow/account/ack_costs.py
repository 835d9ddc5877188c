"""What acknowledgements have cost, by the ledger, at hand for whoever shows or tells a workload.

In: a ledger, read now and then. Out: by workload and acknowledgement, what was booked while it stood and the workload
was idle. Invariant: what the ledger could not be asked for is as it was, and what nobody booked is not there.
"""

import logging
from collections import defaultdict
from typing import Final, NamedTuple, TypeAlias

from fallow.account.ledger import Ledger
from fallow.clients import errors
from fallow.model import cluster
from fallow.model.cost import UNIT, Nano, Second, SpendState
from fallow.model.units import Instant, Seconds

log = logging.getLogger("fallow")

_FRESH: Final[Seconds] = 30.0
_Owner: TypeAlias = tuple[str, str, str]  # namespace, kind, name


class AckCost(NamedTuple):
    id: str
    nano: Nano
    until: Second  # booked up to then

    @property
    def amount(self) -> float:
        return self.nano / UNIT


class AckCosts:
    """As far back as the ledger keeps intervals."""

    def __init__(self, ledger: Ledger, currency: str) -> None:
        self._ledger, self.currency = ledger, currency
        self._known: dict[_Owner, dict[str, AckCost]] = {}
        self._read_at: Instant = float("-inf")

    async def read(self, now: Instant) -> None:
        """Anew, unless that was done just now."""
        if 0 <= now - self._read_at < _FRESH:
            return
        try:
            acked = await self._ledger.read_acked(0, int(now) + 1)
        except errors.ClientError as problem:
            log.info("what acknowledgements have cost is told as it was: %s", problem)
            return
        found = defaultdict[_Owner, dict[str, AckCost]](dict)
        for one in acked:
            if one.slice.state is SpendState.held_idle:
                key, ack = one.slice.key, one.slice.ack_id
                by_id = found[key.namespace, key.owner_kind, key.owner_name]
                before = by_id.get(ack, AckCost(ack, 0, 0))
                booked = one.cost(one.t0, one.t1) or 0
                by_id[ack] = AckCost(ack, before.nano + booked, max(before.until, one.t1))
        self._known, self._read_at = dict(found), now

    def find(self, ref: cluster.Ref, ack: str) -> AckCost | None:
        return self._known.get((ref.namespace, ref.kind, ref.name), {}).get(ack)

    def find_last(self, ref: cluster.Ref) -> AckCost | None:
        """The one under which it was idle last."""
        known = self._known.get((ref.namespace, ref.kind, ref.name), {}).values()
        return max(known, key=lambda each: each.until, default=None)
