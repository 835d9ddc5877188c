"""What GPUs cost, as far as that is known now: the operator's own table, and what the cloud says of the machines here.

In: the ConfigMap of prices in our own namespace, read at every look; a cloud's price list, asked for the machines that
there are, every six hours (spot: every ten minutes), and at once for a machine that is new. Out: PricesSeen, whose book
is known or unseen. Fetched prices outlive us where somebody keeps them (`recall`).
Invariant: what fails leaves the last known prices, which grow old. While the operator's own table was never read
nothing has a price: it may say another one.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeAlias

import msgspec

from fallow import names
from fallow.clients import errors
from fallow.clients.clouds.pricing import FetchedPrices, PriceFetcher, WantedPrice
from fallow.clients.kubernetes import api as kube
from fallow.model import cluster, commitments, node_facts, price_changes, price_table, units
from fallow.model.commitments import Commitment
from fallow.model.cost import CapacityType
from fallow.model.node_facts import NodeFacts
from fallow.model.price_book import PriceBook
from fallow.model.price_changes import SuspiciousPrice
from fallow.model.price_table import PriceRow, PriceTable
from fallow.model.seen import Input, Known, Unseen
from fallow.model.units import HOUR, MINUTE, Instant, Seconds

log = logging.getLogger(__name__)

REFRESH: Final[Seconds] = 6 * HOUR
SPOT_REFRESH: Final[Seconds] = 10 * MINUTE
RETRY: Final[Seconds] = 5 * MINUTE  # after a list that could not be had
LONGEST_FETCH: Final[Seconds] = 3 * MINUTE
_NO_TABLE: Final = commitments.NONE
_MOST_TOLD: Final = 20  # lines of a table that were refused
_ASKED: Final = (CapacityType.on_demand, CapacityType.spot)
Recall: TypeAlias = Callable[[], Awaitable[Sequence[PriceRow]]]  # fetched rows of an earlier life
MakeBook: TypeAlias = Callable[[Sequence[PriceRow], Sequence[PriceRow]], PriceBook]  # of given and of fetched rows


class _ConfigMap(msgspec.Struct):
    data: dict[str, str] | None = None


class PricesSeen(msgspec.Struct, frozen=True, kw_only=True):
    """`nodes`: those with GPUs. `given`: the operator's own table, with what was refused of it. `fetched`: rows that
    are new or were confirmed by this look. `problems`: what could not be had, and why."""

    at: Instant
    book: Input[PriceBook]
    nodes: tuple[NodeFacts, ...] = ()
    given: Input[PriceTable] = Known(price_table.EMPTY)
    committed: Input[tuple[Commitment, ...]] = Known(())  # machines that are reserved
    fetched: tuple[PriceRow, ...] = ()
    suspicious: tuple[SuspiciousPrice, ...] = ()
    problems: tuple[str, ...] = ()


class PriceWatch:
    """`fetcher` None: no cloud is asked. `region`: of nodes that do not name theirs."""

    def __init__(
        self, api: kube.Api, *, namespace: str, make_book: MakeBook, currency: str, fetcher: PriceFetcher | None = None,
        region: str = "", refresh: Seconds = REFRESH, recall: Recall | None = None,
    ) -> None:
        self._api, self._namespace, self._make_book, self._currency = api, namespace, make_book, currency
        self._fetcher, self._region, self._recall = fetcher, region, recall
        self._every = {CapacityType.on_demand: refresh, CapacityType.spot: min(refresh, SPOT_REFRESH)}
        self._given: PriceTable | None = None  # None: never read
        self._committed: tuple[Commitment, ...] = ()
        self._rows: tuple[PriceRow, ...] = ()
        self._suspicious: dict[tuple[str, ...], SuspiciousPrice] = {}
        self._due: dict[CapacityType, Instant] = {}
        self._asked: dict[CapacityType, frozenset[WantedPrice]] = {}
        self._missing: dict[CapacityType, tuple[str, ...]] = {}

    async def look(self, nodes: Iterable[cluster.Node], now: Instant) -> PricesSeen:
        found = (node_facts.read(node, region=self._region) for node in nodes)
        facts = tuple(each for each in found if each.gpus or each.gpu_model)
        problems = [*await self._read_given(), *await self._remember()]
        changed = list[PriceRow]()
        for capacity in _ASKED if self._fetcher else ():
            changed += await self._refresh(capacity, facts, now)
            problems += self._missing.get(capacity, ())
        unread = Unseen(f"the ConfigMap {self._namespace}/{names.PRICES} could not be read")
        return PricesSeen(
            at=now, nodes=facts, problems=tuple(problems), fetched=tuple(changed),
            book=unread if self._given is None else Known(self._make_book(self._given.rows, self._rows)),
            given=unread if self._given is None else Known(self._given),
            committed=unread if self._given is None else Known(self._committed),
            suspicious=tuple(self._suspicious.values()),
        )

    # ---- the operator's own ----

    async def _read_given(self) -> Sequence[str]:
        """What is wrong with it. One that is not there is empty."""
        where = f"ConfigMap {self._namespace}/{names.PRICES}"
        try:
            found = await self._api.get(kube.CONFIG_MAPS, self._namespace, names.PRICES, kind=_ConfigMap)
        except errors.NotFound:
            self._given, self._committed = price_table.EMPTY, ()
            return ()
        except errors.ClientError as problem:
            kept = "nothing has a price until it can be" if self._given is None else "its last prices stay"
            return (f"the {where} cannot be read, and {kept}: {problem}",)
        data = found.data or {}
        reserved = commitments.read_csv(data[names.COMMITMENTS_KEY]) if names.COMMITMENTS_KEY in data else _NO_TABLE
        self._committed, text = reserved.rows, data.get(names.PRICES_KEY)
        refused = [f"{where}, {names.COMMITMENTS_KEY}, line {each.line}: {each.because}" for each in reserved.refused]
        if text is None:
            self._given = price_table.EMPTY
            return (*refused[:_MOST_TOLD], f"the {where} has no key {names.PRICES_KEY}")
        self._given = price_table.read_csv(text, self._currency)
        refused += [f"{where}, line {each.line}: {each.because}" for each in self._given.refused]
        more = len(refused) - _MOST_TOLD
        return (*refused[:_MOST_TOLD], *([f"{where}: {units.many(more, 'further line')} refused"] if more > 0 else []))

    # ---- the cloud's ----

    async def _remember(self) -> Sequence[str]:
        """What an earlier life fetched; asked for until it answers."""
        if self._recall is None:
            return ()
        try:
            recalled = await self._recall()
        except errors.ClientError as problem:
            return (f"prices of an earlier run cannot be read: {problem}",)
        self._recall = None
        self._rows = (*(row for row in recalled if row.is_fetched), *self._rows)
        return ()

    async def _refresh(
        self, capacity: CapacityType, facts: Sequence[NodeFacts], now: Instant
    ) -> Sequence[PriceRow]:
        """The rows that changed. What is asked for again is asked for as a whole: a list is one answer or none."""
        wanted = self._list_wanted(capacity, facts)
        is_due = now >= self._due.get(capacity, now) or not wanted <= self._asked.get(capacity, frozenset())
        if not wanted or not is_due:
            return ()
        try:
            found = await self._fetch(sorted(wanted, key=str), now)
        except errors.ClientError as problem:
            self._missing[capacity] = (f"prices ({capacity}) could not be fetched: {problem}",)
            self._due[capacity], self._asked[capacity] = now + min(RETRY, self._every[capacity]), wanted
            return ()
        self._due[capacity], self._asked[capacity] = now + self._every[capacity], wanted
        self._missing[capacity] = tuple(f"no price of {each}" for each in found.missing)
        return self._absorb(found, now)

    def _list_wanted(self, capacity: CapacityType, facts: Sequence[NodeFacts]) -> frozenset[WantedPrice]:
        """Of spot nodes the list price is wanted too: against that they save."""
        assert self._fetcher is not None
        return frozenset(
            WantedPrice(
                region=each.region, instance_type=each.instance_type, capacity_type=capacity,
                gpu_model=each.gpu_model, gpus=each.gpus,
            )
            for each in facts
            if each.instance_type and each.region and each.provider in ("", self._fetcher.provider)
            and (capacity is CapacityType.on_demand or each.capacity_type is CapacityType.spot)
        )

    async def _fetch(self, wanted: Sequence[WantedPrice], now: Instant) -> FetchedPrices:
        assert self._fetcher is not None
        try:
            async with asyncio.timeout(LONGEST_FETCH):
                return await self._fetcher.fetch(wanted, now)
        except TimeoutError:
            raise errors.Unreachable(f"it took longer than {LONGEST_FETCH:.0f} s") from None

    def _absorb(self, found: FetchedPrices, now: Instant) -> Sequence[PriceRow]:
        taken = price_changes.absorb(self._rows, found.rows, now)
        self._rows = taken.rows
        stay = {what: each for what, each in self._suspicious.items() if what not in taken.checked}
        self._suspicious = {**stay, **{each.row.what: each for each in taken.suspicious}}
        return taken.changed
