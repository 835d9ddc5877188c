"""What machines of Google Cloud cost: Google lists cores, memory and GPUs each by itself, and a machine is their sum.

In: machines by type, region and GPUs. Out: rows in the wanted currency, on demand or spot (Preemptible). A type names
its own cores and memory; GPUs of an N1 are those that its node has. A machine whose parts are not all in the catalogue,
or whose type is not known here, has no price: half a sum is none.
The catalogue is tens of megabytes and changes once a day at most: of what was read what matters is kept for an hour.
"""

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Final

import msgspec
import yarl

from fallow.clients import signing
from fallow.clients.clouds.pricing import FetchedPrices, Harvest, PriceWire, WantedPrice, agree
from fallow.clients.clouds.wire import MOST_PAGES
from fallow.model.cost import CapacityType
from fallow.model.node_facts import GCP
from fallow.model.price_table import USD, PriceSource
from fallow.model.units import HOUR, Instant

BILLING_URL: Final = "https://cloudbilling.googleapis.com"
SCOPE: Final = "https://www.googleapis.com/auth/cloud-billing.readonly"
_COMPUTE_ENGINE: Final = "6F81-5844-456A"
_NANO: Final = Decimal(10) ** 9
_USAGE: Final = {CapacityType.on_demand: "OnDemand", CapacityType.spot: "Preemptible"}
# What a description begins with: whatever else it says (a commitment, a calendar, sole tenancy) is another product.
_PART: Final = re.compile(
    r"(?:Spot Preemptible )?(?P<family>[A-Z]\d\w*(?: Predefined)?) Instance (?P<part>Core|Ram) running in "
    r"|Nvidia (?P<gpu>[\w ]+?) GPU (?:attached to Spot Preemptible VMs )?running in "
)


class _Shape(msgspec.Struct, frozen=True):
    """How a type is made up: its name in the catalogue, cores, GiB, and its GPUs where they come with it."""

    family: str
    cores: int
    gib: Decimal
    gpu: str = ""


# Google's machine families with GPUs: https://cloud.google.com/compute/docs/gpus. By the type's name up to its number:
# cores and GiB of each (of each core: n1, g2; of each GPU: a2, a3).
_BY_CORE: Final = {
    "n1-standard": ("N1 Predefined", Decimal("3.75"), ""), "n1-highmem": ("N1 Predefined", Decimal("6.5"), ""),
    "n1-highcpu": ("N1 Predefined", Decimal("0.9"), ""), "g2-standard": ("G2", Decimal(4), "L4"),
}
_BY_GPU: Final = {
    "a2-highgpu": ("A2", 12, 85, "Tesla A100"), "a2-ultragpu": ("A2", 12, 170, "Tesla A100 80GB"),
    "a3-highgpu": ("A3", 26, 234, "H100 80GB"), "a3-megagpu": ("A3Plus", 26, 234, "H100 80GB Mega"),
}
_MEGA: Final = {"a2-megagpu-16g": _Shape("A2", 96, Decimal(1360), "Tesla A100")}
_ATTACHED: Final = {"T4": "Tesla T4", "V100-16GB": "Tesla V100", "P100": "Tesla P100", "P4": "Tesla P4"}
_TYPE: Final = re.compile(r"(\w+-\w+)-(\d{1,3})(g?)")


class _Money(msgspec.Struct, rename="camel"):
    currency_code: str = ""
    units: str = "0"
    nanos: int = 0


class _Tier(msgspec.Struct, rename="camel"):
    unit_price: _Money
    start_usage_amount: float = 0.0


class _Expression(msgspec.Struct, rename="camel"):
    usage_unit: str = ""
    tiered_rates: list[_Tier] = []


class _PricingInfo(msgspec.Struct, rename="camel"):
    pricing_expression: _Expression = msgspec.field(default_factory=_Expression)


class _Category(msgspec.Struct, rename="camel"):
    resource_family: str = ""
    usage_type: str = ""


class _Sku(msgspec.Struct, rename="camel"):
    description: str = ""
    category: _Category = msgspec.field(default_factory=_Category)
    service_regions: list[str] = []
    pricing_info: list[_PricingInfo] = []


class _SkuPage(msgspec.Struct, rename="camel"):
    skus: list[_Sku] = []
    next_page_token: str = ""


class _Listed(msgspec.Struct, frozen=True):
    """One part's price: `part` is Core, Ram or GPU, `name` its family or the GPU's name."""

    part: str
    name: str
    usage: str
    regions: frozenset[str]
    price: Decimal


class GooglePrices:
    provider = GCP

    def __init__(
        self, wire: PriceWire, signer: signing.Signer, *, url: str = BILLING_URL, currency: str = USD
    ) -> None:
        self._wire, self._signer, self._url, self._currency = wire, signer, url, currency
        self._kept: tuple[Instant, Sequence[_Listed]] | None = None

    async def fetch(self, wanted: Sequence[WantedPrice], now: Instant) -> FetchedPrices:
        if self._kept is None or not 0 <= now - self._kept[0] < HOUR:
            self._kept = now, await self._list(now)
        had = Harvest()
        for each in wanted:
            try:
                price = _add_up(each, self._kept[1])
                had.rows.append(each.make_row(price, PriceSource.gcp, now, provider=GCP, currency=self._currency))
            except ValueError as problem:
                had.miss(each, problem)
        return had.end()

    async def _list(self, now: Instant) -> Sequence[_Listed]:
        found, token = list[_Listed](), ""
        url = yarl.URL(f"{self._url}/v1/services/{_COMPUTE_ENGINE}/skus")
        for _ in range(MOST_PAGES):
            query = {"pageSize": "5000", "currencyCode": self._currency, **({"pageToken": token} if token else {})}
            page = self._wire.decode(
                await self._wire.ask("GET", url.with_query(query), now, signer=self._signer), _SkuPage
            )
            found += filter(None, (_read_sku(sku, self._currency) for sku in page.skus))
            token = page.next_page_token
            if not token:
                return found
        raise self._wire.too_many_pages()


def _read_sku(sku: _Sku, currency: str) -> _Listed | None:
    """None: it is no part of a machine with GPUs, or its price is not one number."""
    said, category = _PART.match(sku.description), sku.category
    if said is None or category.resource_family != "Compute" or category.usage_type not in _USAGE.values():
        return None
    is_spot = "Spot Preemptible" in said[0]
    rates = [tier for info in sku.pricing_info[-1:] for tier in info.pricing_expression.tiered_rates]
    unit = sku.pricing_info[-1].pricing_expression.usage_unit if sku.pricing_info else ""
    is_plain = len(rates) == 1 and rates[0].unit_price.currency_code == currency and unit in ("h", "GiBy.h")
    if not is_plain or is_spot != (category.usage_type == "Preemptible"):
        return None
    money = rates[0].unit_price
    if not (money.units.isascii() and money.units.isdigit() and len(money.units) < 9 and 0 <= money.nanos < _NANO):
        return None
    price = Decimal(money.units) + Decimal(money.nanos) / _NANO
    part, name = said["part"] or "GPU", said["family"] or said["gpu"]
    return _Listed(part, name, category.usage_type, frozenset(sku.service_regions), price)


def _add_up(each: WantedPrice, listed: Sequence[_Listed]) -> Decimal:
    """ValueError says what is missing."""
    shape = _find_shape(each)
    gpu = shape.gpu or _ATTACHED.get(each.gpu_model, "")
    if not each.gpus:
        raise ValueError("how many GPUs it has is not known")
    if not gpu:
        raise ValueError(f"GPUs of {each.gpu_model or 'an unknown model'} are not attached to such a machine")
    parts = (("Core", shape.family, Decimal(shape.cores)), ("Ram", shape.family, shape.gib),
             ("GPU", gpu, Decimal(each.gpus)))
    return sum((amount * _find_part(part, name, each, listed) for part, name, amount in parts), Decimal(0))


def _find_part(part: str, name: str, each: WantedPrice, listed: Sequence[_Listed]) -> Decimal:
    usage = _USAGE[each.capacity_type]
    prices = [
        one.price for one in listed
        if (one.part, one.name, one.usage) == (part, name, usage) and each.region in one.regions
    ]
    try:
        return agree(prices)
    except ValueError as problem:
        raise ValueError(f"{part} of {name}: {problem}") from None


def _find_shape(each: WantedPrice) -> _Shape:
    said = _TYPE.fullmatch(each.instance_type)
    if each.instance_type in _MEGA:
        return _MEGA[each.instance_type]
    if said and not said[3] and said[1] in _BY_CORE:
        family, gib, gpu = _BY_CORE[said[1]]
        return _Shape(family, int(said[2]), gib * int(said[2]), gpu)
    if said and said[3] and said[1] in _BY_GPU:
        family, cores, ram, gpu = _BY_GPU[said[1]]
        return _Shape(family, cores * int(said[2]), Decimal(ram * int(said[2])), gpu)
    raise ValueError("what such a machine is made up of is not known here")
