"""The flags about money: whether books are kept, and where prices come from.

In: flag texts. Out: CostSettings. A currency in which the cloud has no prices is a usage error, before anything is
contacted.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec

from fallow.model.units import DAY, HOUR, MINUTE, Seconds
from fallow.settings import readers as read
from fallow.settings.flags import Flag, group
from fallow.settings.readers import UsageError

COST = "What GPUs cost"
Provider: TypeAlias = Literal["aws", "gcp", "azure", "onprem", "none"]
Split: TypeAlias = Literal["gpu", "ratio", "opencost"]
_LEAST_REFRESH: Final[Seconds] = 5 * MINUTE


def _currency(text: str) -> str:
    if not re.fullmatch(r"[A-Z]{3}", text):
        raise ValueError(f"{text!r} is not a currency such as USD or EUR")
    return text


def _refresh(text: str) -> Seconds:
    seconds = read.duration(text)
    if seconds < _LEAST_REFRESH:
        raise ValueError(f"{text!r} is less than 5m: price lists do not change so often")
    return seconds


FLAGS: tuple[Flag, ...] = group(
    COST,
    Flag("--cost", "BOOL", "Keep books of what GPUs cost, in daemon mode.", read.truth, "false"),
    Flag("--cost-provider", "CLOUD",
         "Whose price list is asked for the machines here; onprem, none: nobody's, prices come from the table that is "
         "shipped, from the ConfigMap gpu-autoscaler-prices and from annotations of nodes.",
         read.one_of("aws", "gcp", "azure", "onprem", "none"), "none"),
    Flag("--cost-region", "REGION", "Region of nodes that do not name theirs."),
    Flag("--cost-currency", "CODE", "The one currency of the books; prices in another one are refused.", _currency,
         "USD"),
    Flag("--cost-node-split", "SPLIT",
         "Which part of a node's price is its GPUs': gpu, all of it; ratio, 0.95; opencost, by the prices of its "
         "cores, memory and GPUs.", read.one_of("gpu", "ratio", "opencost"), "gpu"),
    Flag("--cost-prices-max-age-days", "DAYS", "Days after which a price that nobody confirmed is marked stale.",
         read.whole_number(1), "90"),
    Flag("--cost-prices-refresh", "DURATION", "How often the price list is asked; spot prices every 10m at least.",
         _refresh, "6h"),
    Flag("--cost-aws-pricing-url", "URL", "Address of the AWS Price List.", read.secure_url),
    Flag("--cost-aws-ec2-url", "URL", "Address of EC2, for spot prices; default: that of each region.",
         read.secure_url),
    Flag("--cost-gcp-billing-url", "URL", "Address of the Google Cloud Billing API.", read.secure_url),
    Flag("--cost-azure-prices-url", "URL", "Address of Azure's retail prices.", read.secure_url),
)


class CostSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Addresses: None = the cloud's own."""

    enabled: bool = False
    provider: Provider = "none"
    region: str = ""
    currency: str = "USD"
    node_split: Split = "gpu"
    max_age: Seconds = 90 * DAY
    refresh: Seconds = 6 * HOUR
    aws_pricing_url: str | None = None
    aws_ec2_url: str | None = None
    gcp_billing_url: str | None = None
    azure_prices_url: str | None = None


def read_cost(values: Mapping[str, Any]) -> CostSettings:
    if values["cost_provider"] == "aws" and values["cost_currency"] != "USD":
        raise UsageError(f"--cost-currency {values['cost_currency']}: AWS has prices in USD only")
    return CostSettings(
        enabled=values["cost"], provider=values["cost_provider"], region=values["cost_region"] or "",
        currency=values["cost_currency"], node_split=values["cost_node_split"],
        max_age=values["cost_prices_max_age_days"] * DAY, refresh=values["cost_prices_refresh"],
        aws_pricing_url=values["cost_aws_pricing_url"], aws_ec2_url=values["cost_aws_ec2_url"],
        gcp_billing_url=values["cost_gcp_billing_url"], azure_prices_url=values["cost_azure_prices_url"],
    )
