"""Asking a cloud what its machines cost: what the price lists of all clouds share.

In: the machines whose price is wanted. Out: rows of the price book as of now, and a sentence for each that could not be
had. `PriceWire` is one cloud's connection (wire.py).
Invariant: what a cloud answers is believed only as far as it was asked for: another machine, another region, another
currency, nothing or an absurd amount is no price.
"""

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Final, Protocol

import msgspec

from fallow.clients import errors, retry
from fallow.clients.clouds import wire
from fallow.model import price_table
from fallow.model.cost import CapacityType, PriceUnit
from fallow.model.price_table import PriceRow, PriceSource
from fallow.model.units import Instant, Seconds

TIMEOUT: Final[Seconds] = 30.0
LONGEST_ANSWER: Final = 32 * 1024 * 1024  # a page of Google's catalogue is 10 MiB
PATIENCE: Final = retry.Patience(tries=3, first_wait=1.0)
# The one word by which a cloud says what is wrong. Its sentences may repeat what was sent.
_CODE: Final = re.compile(
    rb'"__type"\s*:\s*"(?:[^"#]{0,99}#)?(\w{1,60})"|"status"\s*:\s*"([A-Z_]{1,60})"|<Code>([\w.]{1,60})</Code>'
)
_THROTTLED: Final = re.compile(r"Throttl|LimitExceeded|TooManyRequests|RESOURCE_EXHAUSTED")


class WantedPrice(msgspec.Struct, frozen=True, kw_only=True):
    """A machine that there is: of which cloud is known by who is asked."""

    region: str
    instance_type: str
    capacity_type: CapacityType
    gpu_model: str = ""
    gpus: int | None = None

    def __str__(self) -> str:
        return f"{self.instance_type} in {self.region} ({self.capacity_type})"

    def make_row(
        self, price: Decimal, source: PriceSource, now: Instant, *, provider: str, currency: str, zone: str = "",
        since: Instant | None = None,
    ) -> PriceRow:
        """ValueError: nobody can mean that price. `since`: it holds from then on."""
        if price == 0:
            raise ValueError("the price is 0")
        return PriceRow(
            provider=provider, region=self.region, zone=zone, instance_type=self.instance_type, source=source,
            gpu_model=self.gpu_model, gpus=self.gpus, capacity_type=self.capacity_type, unit=PriceUnit.node_hour,
            price=price_table.check_price(price, currency), currency=currency, valid_from=since, retrieved_at=now,
        )


class FetchedPrices(msgspec.Struct, frozen=True):
    rows: tuple[PriceRow, ...] = ()
    missing: tuple[str, ...] = ()  # what could not be had, and why


class PriceFetcher(Protocol):
    """One cloud. What cannot be asked at all raises ClientError; what only some of the wanted lack is `missing`."""

    provider: str

    async def fetch(self, wanted: Sequence[WantedPrice], now: Instant) -> FetchedPrices: ...


class PriceWire(wire.CloudWire):
    """Lists are long, and slow to come."""

    def __init__(
        self, who: str, environment: Mapping[str, str], *, timeout: Seconds = TIMEOUT,
        longest: int = LONGEST_ANSWER, patience: retry.Patience = PATIENCE,
    ) -> None:
        super().__init__(who, environment, timeout=timeout, longest=longest, patience=patience)

    def explain(self, status: int, answer: bytes, wait: Seconds | None) -> errors.ClientError:
        """AWS says 400 to who asks too often."""
        found = _CODE.search(answer[:4096])
        code = next((each.decode() for each in found.groups() if each), "") if found else ""
        said = f"{self.who} answered {status}{f' ({code})' if code else ''}"
        return errors.rejection(429 if _THROTTLED.search(code) else status, said, retry_after=wait)


def agree(prices: Sequence[Decimal]) -> Decimal:
    """The one price of all that were found; ValueError where there is none, or more than one, or it is no price. A part
    that costs nothing would make a sum of parts too small."""
    if not prices:
        raise ValueError("it is not in the price list")
    if not all(price.is_finite() for price in prices):
        raise ValueError("its price is no number")
    if len(set(prices)) > 1:
        raise ValueError(f"the price list has {len(set(prices))} prices of it")
    if not prices[0]:
        raise ValueError("the price is 0")
    return prices[0]


class Harvest:
    """What was had of a list so far, and what was not: one machine's trouble is not another's."""

    def __init__(self) -> None:
        self.rows: list[PriceRow] = []
        self._missing: list[str] = []
        self._failure: errors.ClientError | None = None

    def miss(self, what: object, problem: ValueError | errors.ClientError) -> None:
        self._missing.append(f"{what}: {problem}")
        if isinstance(problem, errors.ClientError):
            self._failure = problem

    def end(self) -> FetchedPrices:
        """Raises where nothing was had because of an error."""
        if self._failure is not None and not self.rows:
            raise self._failure
        return FetchedPrices(tuple(self.rows), tuple(self._missing))
