"""What machines of AWS cost: list prices from the Price List (GetProducts), spot prices from EC2's own history.

In: machines by type and region. Out: rows in US dollars: on demand for Linux on shared hardware with nothing installed;
spot as of now, for every zone of the region. AWS sells capacity blocks under the same product: they are left out.
The Price List answers in a few regions only, whatever region is asked about; EC2 answers in its own.
"""

import re
import urllib.parse
import xml.etree.ElementTree as ElementTree
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Final

import msgspec
import yarl

from fallow.clients import errors
from fallow.clients.clouds.aws import credentials
from fallow.clients.clouds.pricing import FetchedPrices, Harvest, PriceWire, WantedPrice, agree
from fallow.clients.clouds.wire import MOST_PAGES
from fallow.model import price_table, units
from fallow.model.cost import CapacityType
from fallow.model.node_facts import AWS
from fallow.model.price_table import USD, PriceRow, PriceSource
from fallow.model.units import Instant

PRICING_URL: Final = "https://api.pricing.us-east-1.amazonaws.com"
_PRICING_REGION: Final = re.compile(r"api\.pricing\.([a-z0-9-]+)\.")
_LIST_HEADERS: Final = {
    "content-type": "application/x-amz-json-1.1", "x-amz-target": "AWSPriceListService.GetProducts"
}
_FORM: Final = {"content-type": "application/x-www-form-urlencoded"}
_EXACTLY: Final = {"operatingSystem": "Linux", "tenancy": "Shared", "preInstalledSw": "NA", "capacitystatus": "Used"}
_LINUX: Final = "Linux/UNIX"
_SAME: Final = (_LINUX, f"{_LINUX} (Amazon VPC)")  # what EC2 calls it, by the age of the account
_AHEAD: Final = 300.0  # seconds that AWS' clock may be ahead of ours


class AwsPriceAddresses(msgspec.Struct, frozen=True):
    """Base addresses; `ec2` "" = the region's own."""

    pricing: str = PRICING_URL
    ec2: str = ""


class _Dimension(msgspec.Struct, rename="camel"):
    unit: str = ""
    price_per_unit: dict[str, str] = {}


class _Term(msgspec.Struct, rename="camel"):
    price_dimensions: dict[str, _Dimension] = {}


class _Terms(msgspec.Struct):
    on_demand: dict[str, _Term] = msgspec.field(default_factory=dict, name="OnDemand")


class _Product(msgspec.Struct):
    attributes: dict[str, str] = {}


class _ListedProduct(msgspec.Struct):
    product: _Product = msgspec.field(default_factory=_Product)
    terms: _Terms = msgspec.field(default_factory=_Terms)


class _ProductPage(msgspec.Struct, rename="pascal"):
    price_list: list[str] = []  # each is JSON of its own
    next_token: str | None = None


class AwsPrices:
    provider = AWS

    def __init__(
        self, wire: PriceWire, environment: Mapping[str, str], *, addresses: AwsPriceAddresses | None = None,
        login: credentials.AwsAddresses | None = None,
    ) -> None:
        """`login`: where credentials are handed out, if not where they usually are."""
        self._wire, self._environment = wire, environment
        self._addresses, self._login = addresses or AwsPriceAddresses(), login or credentials.AwsAddresses()
        self._signers: dict[tuple[str, str], credentials.SigV4] = {}

    async def fetch(self, wanted: Sequence[WantedPrice], now: Instant) -> FetchedPrices:
        had = Harvest()
        for each in (each for each in wanted if each.capacity_type is CapacityType.on_demand):
            try:
                had.rows.append(await self._fetch_listed(each, now))
            except (ValueError, errors.Invalid) as problem:
                had.miss(each, problem)
            except errors.ClientError as problem:
                had.miss(f"{each}, and what comes after it", problem)
                break
        spot = [each for each in wanted if each.capacity_type is CapacityType.spot]
        for region in sorted({each.region for each in spot}):  # each is a server of its own
            try:
                await self._fetch_spot(region, [each for each in spot if each.region == region], now, had)
            except errors.ClientError as problem:
                had.miss(f"spot prices in {region}", problem)
        return had.end()

    def _signer(self, region: str, service: str) -> credentials.SigV4:
        if (region, service) not in self._signers:
            self._signers[region, service] = credentials.SigV4(
                self._environment, region, service, purpose="fetching prices", addresses=self._login
            )
        return self._signers[region, service]

    # ---- on demand ----

    async def _fetch_listed(self, each: WantedPrice, now: Instant) -> PriceRow:
        wanted = {"instanceType": each.instance_type, "regionCode": each.region, **_EXACTLY}
        found = [price async for price in self._list(wanted, now)]
        return each.make_row(agree(found), PriceSource.aws, now, provider=AWS, currency=USD)

    async def _list(self, wanted: Mapping[str, str], now: Instant) -> AsyncIterator[Decimal]:
        url = yarl.URL(f"{self._addresses.pricing}/")
        found = _PRICING_REGION.match(url.host or "")
        signer, token = self._signer(found[1] if found else "us-east-1", "pricing"), ""
        filters = [{"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in wanted.items()]
        asked = {"ServiceCode": "AmazonEC2", "Filters": filters, "FormatVersion": "aws_v1", "MaxResults": 100}
        for _ in range(MOST_PAGES):
            body = msgspec.json.encode({**asked, **({"NextToken": token} if token else {})})
            answer = await self._wire.ask("POST", url, now, signer=signer, body=body, headers=_LIST_HEADERS)
            page = self._wire.decode(answer, _ProductPage)
            for text in page.price_list:
                for price in _read_product(self._wire.decode(text.encode(), _ListedProduct), wanted):
                    yield price
            token = page.next_token or ""
            if not token:
                return
        raise self._wire.too_many_pages()

    # ---- spot ----

    async def _fetch_spot(
        self, region: str, wanted: Sequence[WantedPrice], now: Instant, had: Harvest
    ) -> None:
        types = sorted({each.instance_type for each in wanted})
        found = [sale async for sale in self._list_sales(region, types, now) if sale.zone.startswith(region)]
        for each in wanted:
            newest = {sale.zone: sale for sale in sorted(found, key=lambda sale: sale.at)
                      if sale.instance_type == each.instance_type and sale.at <= now + _AHEAD}
            if not newest:
                had.miss(each, ValueError("it is not in the history of spot prices"))
            for sale in newest.values():
                try:
                    price = price_table.read_price(sale.price, USD)
                    had.rows.append(each.make_row(
                        price, PriceSource.aws_spot, now, provider=AWS, currency=USD, zone=sale.zone, since=sale.at
                    ))
                except ValueError as problem:
                    had.miss(f"{each}, {sale.zone}", problem)

    async def _list_sales(self, region: str, types: Iterable[str], now: Instant) -> AsyncIterator["_Sale"]:
        url = yarl.URL(f"{self._addresses.ec2 or credentials.service_url('ec2', region)}/")
        asked = {
            "Action": "DescribeSpotPriceHistory", "Version": "2016-11-15", "ProductDescription.1": _LINUX,
            "StartTime": units.rfc3339(now), "MaxResults": "1000",
            **{f"InstanceType.{number}": name for number, name in enumerate(types, 1)},
        }
        signer, token = self._signer(region, "ec2"), ""
        for _ in range(MOST_PAGES):
            form = urllib.parse.urlencode({**asked, **({"NextToken": token} if token else {})})
            answer = await self._wire.ask("POST", url, now, signer=signer, body=form.encode(), headers=_FORM)
            sales, token = _read_sales(answer, self._wire.who)
            for sale in sales:
                yield sale
            if not token:
                return
        raise self._wire.too_many_pages()


class _Sale(msgspec.Struct, frozen=True):
    instance_type: str
    zone: str
    price: str
    at: Instant


def _read_product(listed: _ListedProduct, wanted: Mapping[str, str]) -> Iterable[Decimal]:
    """Prices above 0: what costs nothing by the hour is paid in another way."""
    has = listed.product.attributes
    is_asked_for = all(has.get(name) == value for name, value in wanted.items())
    if not is_asked_for or has.get("marketoption", "OnDemand") != "OnDemand":
        return
    for term in listed.terms.on_demand.values():
        for dimension in term.price_dimensions.values():
            text = dimension.price_per_unit.get(USD, "")
            price = price_table.read_price(text, USD) if dimension.unit == "Hrs" else Decimal(0)
            if price:
                yield price.normalize()


def _read_sales(answer: bytes, who: str) -> tuple[list[_Sale], str]:
    try:
        root = ElementTree.fromstring(answer)
    except (ElementTree.ParseError, LookupError, ValueError):  # the latter of encodings that there are not
        raise errors.BadAnswer(f"{who} gave an answer that cannot be read") from None
    found = []
    for item in root.iterfind("{*}spotPriceHistorySet/{*}item"):
        said = {child.tag.rpartition("}")[2]: child.text or "" for child in item}
        at = units.read_instant(said.get("timestamp"))
        if at is not None and said.get("productDescription") in _SAME and said.get("availabilityZone"):
            found.append(_Sale(said.get("instanceType", ""), said["availabilityZone"], said.get("spotPrice", ""), at))
    return found, root.findtext("{*}nextToken") or ""
