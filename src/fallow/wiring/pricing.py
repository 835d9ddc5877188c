"""For the story of prices: which cloud is asked, by which credentials, and where what it says is kept.

In: the options. Out: a Story for the loop; nothing is asked of anybody yet.
"""

import contextlib
import functools

from fallow import loop, settings, telemetry
from fallow.act import hands as doing
from fallow.clients.clouds import pricing
from fallow.clients.clouds.aws import prices as aws
from fallow.clients.clouds.azure import prices as azure
from fallow.clients.clouds.gcp import credentials as google
from fallow.clients.clouds.gcp import prices as gcp
from fallow.clients.kubernetes import api as kube
from fallow.model import price_book
from fallow.observe import prices as observing
from fallow.observe.cluster import mirror
from fallow.stories import prices

PRICES = "prices"  # the name of the story


async def make_story(
    options: settings.Settings, api: kube.Api, *, namespace: str, seen: mirror.Mirror, hands: doing.Hands,
    metrics: telemetry.Telemetry, stack: contextlib.AsyncExitStack, recall: observing.Recall | None = None,
    keep: prices.Keep | None = None,
) -> loop.Story:
    """`recall`, `keep`: where fetched rows outlive us; None: nowhere."""
    asked = options.cost
    wire = pricing.PriceWire(f"the price list of {asked.provider}", options.environment)
    await stack.enter_async_context(wire)
    watch = observing.PriceWatch(
        api, namespace=namespace, currency=asked.currency, fetcher=make_fetcher(options, wire), region=asked.region,
        refresh=asked.refresh, recall=recall, make_book=functools.partial(make_book, options),
    )
    story = prices.PricesStory(
        watch=watch, nodes=lambda: seen.nodes.known.values(), hands=hands, metrics=metrics, keep=keep
    )
    return loop.Story(
        name=PRICES, interval=prices.INTERVAL, budget=prices.BUDGET, tick=story.tick, look=story.look, fail=story.fail
    )


def make_book(
    options: settings.Settings, given: price_book.Rows, fetched: price_book.Rows
) -> price_book.PriceBook:
    asked = options.cost
    return price_book.PriceBook(
        given=given, fetched=fetched, currency=asked.currency, max_age=asked.max_age,
        split=price_book.NodeSplit(asked.node_split),
    )


def make_fetcher(options: settings.Settings, wire: pricing.PriceWire) -> pricing.PriceFetcher | None:
    asked, environment = options.cost, options.environment
    match asked.provider:
        case "aws":
            where = aws.AwsPriceAddresses(asked.aws_pricing_url or aws.PRICING_URL, asked.aws_ec2_url or "")
            return aws.AwsPrices(wire, environment, addresses=where)
        case "gcp":
            signer, url = google.make_signer(environment, gcp.SCOPE), asked.gcp_billing_url or gcp.BILLING_URL
            return gcp.GooglePrices(wire, signer, url=url, currency=asked.currency)
        case "azure":
            url = asked.azure_prices_url or azure.PRICES_URL
            return azure.AzurePrices(wire, url=url, currency=asked.currency)
        case "onprem" | "none":
            return None
