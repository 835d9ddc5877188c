"""What machines of Azure cost: the retail price list, which answers everybody.

In: machines by type and region. Out: rows in the wanted currency, on demand or spot: of Linux machines by the hour, in
the region that was asked for. Windows and Low Priority are other products. Pages are followed on the same host only.
"""

from collections.abc import AsyncIterator, Sequence
from decimal import Decimal
from typing import Final

import msgspec
import yarl

from fallow.clients import errors
from fallow.clients.clouds.pricing import FetchedPrices, Harvest, PriceWire, WantedPrice, agree
from fallow.clients.clouds.wire import MOST_PAGES
from fallow.model import price_table
from fallow.model.cost import CapacityType
from fallow.model.node_facts import AZURE
from fallow.model.price_table import USD, PriceSource
from fallow.model.units import Instant

PRICES_URL: Final = "https://prices.azure.com"
_PATH: Final = "/api/retail/prices"
_MACHINES: Final = "Virtual Machines"


class _Meter(msgspec.Struct, rename="camel"):
    retail_price: Decimal
    currency_code: str = ""
    arm_region_name: str = ""
    arm_sku_name: str = ""
    meter_name: str = ""
    product_name: str = ""
    sku_name: str = ""
    service_name: str = ""
    unit_of_measure: str = ""
    type: str = ""


class _MeterPage(msgspec.Struct, rename="pascal"):
    items: list[_Meter] = []
    next_page_link: str | None = None


class AzurePrices:
    provider = AZURE

    def __init__(self, wire: PriceWire, *, url: str = PRICES_URL, currency: str = USD) -> None:
        self._wire, self._url, self._currency = wire, url, currency

    async def fetch(self, wanted: Sequence[WantedPrice], now: Instant) -> FetchedPrices:
        had = Harvest()
        pages: dict[tuple[str, str], list[_Meter]] = {}  # a machine's list has both prices
        for each in wanted:
            try:
                where = each.region, each.instance_type
                if where not in pages:
                    pages[where] = [meter async for meter in self._list(each, now)]
                price = agree([meter.retail_price for meter in pages[where] if self._fits(meter, each)])
                had.rows.append(each.make_row(price, PriceSource.azure, now, provider=AZURE, currency=self._currency))
            except (ValueError, errors.Invalid) as problem:
                had.miss(each, problem)
            except errors.ClientError as problem:
                had.miss(f"{each}, and what comes after it", problem)
                break
        return had.end()

    async def _list(self, each: WantedPrice, now: Instant) -> AsyncIterator[_Meter]:
        terms = {
            "serviceName": _MACHINES, "armRegionName": each.region, "armSkuName": each.instance_type,
            "priceType": "Consumption",
        }
        if any("'" in value for value in terms.values()):
            raise ValueError("no machine has such a name")
        chosen = " and ".join(f"{name} eq '{value}'" for name, value in terms.items())
        url = yarl.URL(f"{self._url}{_PATH}").with_query({"currencyCode": f"'{self._currency}'", "$filter": chosen})
        for _ in range(MOST_PAGES):
            page = self._wire.decode(await self._wire.ask("GET", url, now), _MeterPage)
            for meter in page.items:
                if self._is_machine(meter, each):
                    yield meter
            if not page.next_page_link:
                return
            url = self._wire.check_link(page.next_page_link, self._url)
        raise self._wire.too_many_pages()

    def _is_machine(self, meter: _Meter, each: WantedPrice) -> bool:
        """Whatever was asked for, anything may be answered."""
        return (
            price_table.fold_type(meter.arm_sku_name) == price_table.fold_type(each.instance_type)
            and meter.arm_region_name.lower() == each.region.lower() and meter.currency_code == self._currency
            and meter.type == "Consumption" and meter.unit_of_measure == "1 Hour" and meter.service_name == _MACHINES
        )

    def _fits(self, meter: _Meter, each: WantedPrice) -> bool:
        name = f"{meter.meter_name} {meter.sku_name}".lower()
        is_other = "windows" in meter.product_name.lower() or "low priority" in name
        return not is_other and ("spot" in name) == (each.capacity_type is CapacityType.spot)
