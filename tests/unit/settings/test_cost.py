"""The flags about money."""

from decimal import Decimal
from typing import Any

import pytest

from fallow import settings
from fallow.model.energy import EnergyTerms
from fallow.settings import cost


def read(**given: str) -> cost.CostSettings:
    return settings.read_flags(given, {}).cost


def test_no_books_are_kept_unless_somebody_asks() -> None:
    assert read() == cost.CostSettings()
    assert not read().enabled
    assert read().provider == "none"


def test_what_is_said_is_heard() -> None:
    said = read(
        cost="true", cost_provider="gcp", cost_region="r", cost_currency="EUR", cost_node_split="ratio",
        cost_prices_max_age_days="7", cost_prices_refresh="1h", cost_gcp_billing_url="http://127.0.0.1:8/",
    )
    assert said == cost.CostSettings(
        enabled=True, provider="gcp", region="r", currency="EUR", node_split="ratio", max_age=7 * 86400.0,
        refresh=3600.0, gcp_billing_url="http://127.0.0.1:8",
    )


def test_what_a_kwh_is_worth_is_heard_and_needs_a_price_to_be_in_the_cost() -> None:
    said = {
        "cost_energy_price_per_kwh": "0.31", "cost_energy_gco2_per_kwh": "380", "cost_energy_include_in_cost": "true",
    }
    read_all = settings.read_flags(said, {}).cost_doors.energy
    assert read_all == EnergyTerms(price=Decimal("0.31"), grams=Decimal(380), in_cost=True)
    assert settings.read_flags({}, {}).cost_doors.energy == EnergyTerms()


@pytest.mark.parametrize(("given", "says"), [
    ({"cost_energy_include_in_cost": "true"}, "--cost-energy-include-in-cost needs --cost-energy"),
    ({"cost_energy_price_per_kwh": "NaN"}, "--cost-energy-price-per-kwh: 'NaN' is no number from 0 to 1,000"),
    ({"cost_energy_gco2_per_kwh": "-1"}, "--cost-energy-gco2-per-kwh: '-1' is no number from 0 to 10,000"),
    ({"cost": "perhaps"}, "--cost: 'perhaps' is neither true nor false"),
    ({"cost_provider": "oracle"}, "--cost-provider: 'oracle' is none of aws, gcp, azure, onprem, none"),
    ({"cost_currency": "dollars"}, "--cost-currency: 'dollars' is not a currency such as USD or EUR"),
    ({"cost_currency": "EUR", "cost_provider": "aws"}, "--cost-currency EUR: AWS has prices in USD only"),
    ({"cost_node_split": "half"}, "--cost-node-split: 'half' is none of gpu, ratio, opencost"),
    ({"cost_prices_max_age_days": "0"}, "--cost-prices-max-age-days: '0' is not a whole number of at least 1"),
    ({"cost_prices_refresh": "10s"}, "--cost-prices-refresh: '10s' is less than 5m"),
    ({"cost_aws_ec2_url": "ec2"}, "--cost-aws-ec2-url: 'ec2' is not an address"),
    ({"cost_azure_prices_url": "http://prices.example.com"},
     "--cost-azure-prices-url: 'http://prices.example.com' is not https"),
], ids=lambda value: "" if isinstance(value, dict) else value.partition(":")[0])
def test_what_is_wrong_is_named(given: dict[str, Any], says: str) -> None:
    with pytest.raises(settings.UsageError) as caught:
        read(**given)
    assert str(caught.value).startswith(says)
