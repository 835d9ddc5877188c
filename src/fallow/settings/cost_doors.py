"""The flags about who may read what GPUs cost, and what stands beside it: what we cost, and energy.

In: flag texts. Out: CostDoorSettings. Energy that shall be in the cost, and has no price, is a usage error.
"""

from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import msgspec

from fallow.model.cost import UNIT, Nano
from fallow.model.energy import EnergyTerms
from fallow.settings import readers as read
from fallow.settings.flags import Flag, group, read_values
from fallow.settings.readers import UsageError

COST_DOORS: Final = "Who reads what GPUs cost"


def read_amount(text: str) -> Nano:
    """Of the ledger's currency, such as 1200 or 99.50."""
    try:
        amount = Decimal(text)
    except InvalidOperation:
        amount = Decimal("NaN")
    if not (amount.is_finite() and 0 <= amount <= 10**9):
        raise ValueError(f"{text!r} is no amount such as 1200 or 99.50")
    return int(amount * UNIT)


def _read_per_kwh(most: int) -> Callable[[str], Decimal]:
    def read_one(text: str) -> Decimal:
        try:
            value = Decimal(text)
        except InvalidOperation:
            value = Decimal("NaN")
        if not (value.is_finite() and 0 <= value <= most):
            raise ValueError(f"{text!r} is no number from 0 to {most:,}")
        return value

    return read_one


ENERGY: tuple[Flag, ...] = group(
    COST_DOORS,
    Flag("--cost-energy-price-per-kwh", "AMOUNT",
         "What a kWh costs, in the currency of the books: reports and exports get a column of it.",
         _read_per_kwh(1000)),
    Flag("--cost-energy-gco2-per-kwh", "GRAMS", "Grams of CO2 of a kWh: reports and exports get a column of it.",
         _read_per_kwh(10_000)),
    Flag("--cost-energy-include-in-cost", "BOOL",
         "Add what energy costs to what GPUs cost, in every report, export and budget; false: it only stands beside.",
         read.truth, "false"),
)

FLAGS: tuple[Flag, ...] = (*group(
    COST_DOORS,
    Flag("--cost-api-port", "PORT",
         "Answer OpenCost's /allocation at a port of its own, too (OpenCost's is 9003). With --dashboard-auth email it "
         "is heard on this machine only; else everywhere, by whoever shows who they are.", read.port),
    Flag("--cost-roi-monthly-investment", "AMOUNT",
         "What fallow costs a month beside its pods, in the currency of the books, for the return on it.", read_amount,
         "0"),
    Flag("--cost-metrics-max-pods", "N", "Most pods whose costs are metrics of their own; the costliest first.",
         read.whole_number(0), "5000"),
), *ENERGY)


class CostDoorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`port` None: there is none."""

    port: int | None = None
    monthly_investment: Nano = 0
    most_pods: int = 5000
    energy: EnergyTerms = EnergyTerms()


def read_cost_doors(values: Mapping[str, Any]) -> CostDoorSettings:
    return CostDoorSettings(
        port=values["cost_api_port"], monthly_investment=values["cost_roi_monthly_investment"],
        most_pods=values["cost_metrics_max_pods"], energy=_read_energy(values),
    )


def read_energy(given: Mapping[str, Any]) -> EnergyTerms:
    """Of flag texts."""
    return _read_energy(read_values(ENERGY, given, {}))


def _read_energy(values: Mapping[str, Any]) -> EnergyTerms:
    price, in_cost = values["cost_energy_price_per_kwh"], values["cost_energy_include_in_cost"]
    if in_cost and price is None:
        raise UsageError("--cost-energy-include-in-cost needs --cost-energy-price-per-kwh: what does a kWh cost?")
    return EnergyTerms(price=price, grams=values["cost_energy_gco2_per_kwh"], in_cost=in_cost)
