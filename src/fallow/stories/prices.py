"""The story of prices: what GPUs cost is looked up once a minute, fetched where it is due, kept, and told.

In: the nodes as they are mirrored, the eyes on prices, where fetched rows are kept. Out: a PricesTurn, with the book
for whoever books. A price list that is down is no failure of the daemon: the last known prices stay, and it is said
once.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeAlias

import msgspec

from fallow import names, telemetry
from fallow.act import hands as doing
from fallow.clients import errors
from fallow.model import cluster, decision, price_ages, units
from fallow.model.price_changes import SuspiciousPrice
from fallow.model.price_table import PriceRow
from fallow.model.seen import Known
from fallow.model.units import Instant, Seconds
from fallow.observe import prices
from fallow.stories.turn import Turn

log = logging.getLogger("fallow")

INTERVAL: Final[Seconds] = 60.0
BUDGET: Final[Seconds] = 600.0  # a cloud's price list may take minutes
Keep: TypeAlias = Callable[[Sequence[PriceRow]], Awaitable[None]]  # for a later life


class PricesTurn(msgspec.Struct, frozen=True):
    """`seen` None: nothing was looked at."""

    at: Instant
    seen: prices.PricesSeen | None = None
    failure: str = ""


class PricesStory:
    """`keep` None: what is fetched is forgotten with us."""

    def __init__(
        self, *, watch: prices.PriceWatch, nodes: Callable[[], Iterable[cluster.Node]], hands: doing.Hands,
        metrics: telemetry.Telemetry, keep: Keep | None = None,
    ) -> None:
        self._watch, self._nodes, self._hands, self._metrics, self._keep = watch, nodes, hands, metrics, keep
        self._unkept: dict[str, PriceRow] = {}
        self._said: frozenset[str] = frozenset()

    async def tick(self, turn: Turn) -> PricesTurn:
        # 1. Look: what the operator, the cloud and the nodes themselves say.
        seen = await turn.in_time(self._watch.look(list(self._nodes()), turn.now))
        # 2. Plan, 3. act: who must be told of a price that nobody can believe.
        for alert in map(_alert, seen.suspicious):
            if turn.may_act() and alert.because not in self._said:
                await self._hands.alert(alert, turn.now)
        # 4. Account: what was fetched is kept, how old it is.
        problems = [*seen.problems, *await self._store(seen)]
        if isinstance(seen.book, Known):
            ages = price_ages.list_ages(seen.book.value, seen.nodes, turn.now)
            self._metrics.replace("gpu_autoscaler_price_age_seconds", ages)
        # 5. Tell.
        self._tell(frozenset((*problems, *(each.because for each in seen.suspicious))))
        return PricesTurn(turn.now, seen)

    async def look(self, turn: Turn) -> PricesTurn:
        return PricesTurn(turn.now)

    def fail(self, because: str, turn: Turn) -> PricesTurn:
        """Nothing could be looked at: the idle story says so, once for both."""
        return PricesTurn(turn.now)

    async def _store(self, seen: prices.PricesSeen) -> Sequence[str]:
        """What could not be kept is kept next time."""
        if self._keep is None:
            return ()
        self._unkept |= {row.id: row for row in seen.fetched}
        try:
            if self._unkept:
                await self._keep(tuple(self._unkept.values()))
        except errors.ClientError as problem:
            return (f"fetched prices could not be kept: {problem}",)
        self._unkept = {}
        return ()

    def _tell(self, problems: frozenset[str]) -> None:
        """Each once, until it is over."""
        for each in sorted(problems - self._said):
            log.warning("prices: %s", each)
        if self._said and not problems:
            log.info("prices: all that was amiss is well again")
        self._said = problems


def _alert(each: SuspiciousPrice) -> decision.Alert:
    """Once for each such price, whoever finds it."""
    what = "/".join((*each.row.what, f"{each.row.price:f}", units.rfc3339(each.before.valid_from or 0.0)))
    return decision.Alert(None, names.Event.PRICE_SUSPICIOUS, each.because, what)
