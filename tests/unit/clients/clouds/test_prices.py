"""Price lists of the clouds, each against a loopback server that speaks as the cloud does: pages, refusals, nonsense.
"""

import asyncio
import contextlib
import json
import urllib.parse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any

import aiohttp
import pytest
import yarl
from aiohttp import web
from tests.unit.clients import loopback
from tests.unit.clients.loopback import Asked, Loopback

from fallow.clients import errors, retry, signing
from fallow.clients.clouds import pricing
from fallow.clients.clouds import wire as clouds_wire
from fallow.clients.clouds.aws import credentials as keys
from fallow.clients.clouds.aws.prices import AwsPriceAddresses, AwsPrices
from fallow.clients.clouds.azure.prices import AzurePrices
from fallow.clients.clouds.gcp import credentials as google
from fallow.clients.clouds.gcp.prices import SCOPE, GooglePrices
from fallow.clients.clouds.pricing import FetchedPrices, WantedPrice
from fallow.model.cost import CapacityType
from fallow.model.units import HOUR, parse_instant, rfc3339

NOW = parse_instant("2026-11-17T10:00:00Z")
AT_ONCE = retry.Patience(tries=3, first_wait=0.001)
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "s3cret", "AWS_SESSION_TOKEN": "session"}
KEYS = keys.Keys("AKID", "s3cret", "session")
ON_DEMAND, SPOT = CapacityType.on_demand, CapacityType.spot


def want(
    instance_type: str, region: str, capacity: CapacityType = ON_DEMAND, model: str = "", gpus: int = 1
) -> WantedPrice:
    return WantedPrice(
        instance_type=instance_type, region=region, capacity_type=capacity, gpu_model=model, gpus=gpus
    )


def prices(found: FetchedPrices) -> dict[tuple[str, str], str]:
    return {(row.instance_type, row.zone or row.region): f"{row.price:f}" for row in found.rows}


def wire(who: str = "the cloud", **said: Any) -> pricing.PriceWire:
    return pricing.PriceWire(who, {}, patience=AT_ONCE, **said)


# ---- AWS ------------------------------------------------------------------------------------------------------------


def verify_signature(asked: Asked, server: Loopback, region: str, service: str) -> None:
    """Sign what arrived once more, as AWS would: by the headers that the signature says it is of."""
    _, _, fields = asked.headers["Authorization"].partition(" ")
    said = dict(field.split("=", 1) for field in fields.split(", "))
    arrived = {name.lower(): value for name, value in asked.headers.items()}
    names = said["SignedHeaders"].split(";")
    assert {"host", "x-amz-date", *(name for name in arrived if name.startswith("x-amz-"))} <= set(names)
    further = {name: arrived[name] for name in names if name not in ("host", "x-amz-date", "x-amz-security-token")}
    again = keys.sign(
        asked.method, yarl.URL(f"{server.url}{asked.path}").with_query(asked.query), further, asked.body, KEYS, region,
        service, NOW,
    )
    assert asked.headers["Authorization"] == again["Authorization"]


# As AWS' own library (botocore 1.44) signs these very requests with these keys at this instant.
LIST_BODY = (
    b'{"ServiceCode": "AmazonEC2", "Filters": [{"Type": "TERM_MATCH", "Field": "instanceType", "Value": '
    b'"p4d.24xlarge"}], "FormatVersion": "aws_v1", "MaxResults": 100}'
)
SPOT_BODY = (
    b"Action=DescribeSpotPriceHistory&Version=2016-11-15&InstanceType.1=g5.xlarge&ProductDescription.1=Linux%2FUNIX"
    b"&StartTime=2026-11-17T10%3A00%3A00Z&MaxResults=1000&NextToken=two"
)
SIGNED = {
    "pricing": (
        "https://api.pricing.us-east-1.amazonaws.com/", LIST_BODY,
        "b0f56c55725546edcbc77e05a5c4e13a7830e46892d600051d566ef08603e1bf",
        {"content-type": "application/x-amz-json-1.1", "x-amz-target": "AWSPriceListService.GetProducts"},
    ),
    "ec2": (
        "https://ec2.us-east-1.amazonaws.com/", SPOT_BODY,
        "47e4acc4ce497a1ea2315be32dfb0e4e05a7aa8d1fdad257aaa6494e0950cac7",
        {"content-type": "application/x-www-form-urlencoded; charset=utf-8"},
    ),
}


@pytest.mark.parametrize("service", SIGNED)
async def test_aws_signatures_are_those_of_its_own_library(service: str) -> None:
    url, body, signature, headers = SIGNED[service]
    signer = keys.SigV4(ENVIRONMENT, "us-east-1", service, purpose="a test")
    async with aiohttp.ClientSession() as session:
        found = await signer.headers(signing.Outgoing(session, "POST", yarl.URL(url), body, NOW, headers))
    assert found["Authorization"].endswith(f"Signature={signature}")


def product(price: str = "32.7726000000", unit: str = "Hrs", currency: str = "USD", **attributes: str) -> str:
    """An entry of PriceList, which is JSON in JSON."""
    usual = {
        "instanceType": "p4d.24xlarge", "regionCode": "us-east-1", "operatingSystem": "Linux", "tenancy": "Shared",
        "preInstalledSw": "NA", "capacitystatus": "Used", "marketoption": "OnDemand", "gpu": "8", "vcpu": "96",
    }
    dimension = {"unit": unit, "pricePerUnit": {currency: price}, "description": "$32.7726 per On Demand Linux"}
    term = {"priceDimensions": {"X.JRT.6YS": dimension}, "effectiveDate": "2026-11-01T00:00:00Z"}
    return json.dumps({
        "product": {"sku": "X", "productFamily": "Compute Instance", "attributes": {**usual, **attributes}},
        "serviceCode": "AmazonEC2", "terms": {"OnDemand": {"X.JRT": term}},
    })


def page(*products: str, token: str | None = None) -> web.Response:
    return web.json_response({
        "FormatVersion": "aws_v1", "PriceList": list(products), **({"NextToken": token} if token else {})
    })


@asynccontextmanager
async def aws(answer: loopback.Answer) -> AsyncIterator[tuple[AwsPrices, Loopback]]:
    async with loopback.serve(answer) as server, wire("the AWS price list") as asking:
        where = AwsPriceAddresses(pricing=server.url, ec2=f"{server.url}/ec2")
        yield AwsPrices(asking, ENVIRONMENT, addresses=where), server


P4D = want("p4d.24xlarge", "us-east-1", model="A100-40GB", gpus=8)


async def test_aws_list_price_by_pages_and_signed() -> None:
    others = page(product("1.0", tenancy="Dedicated"), product("0.000", marketoption="CapacityBlock"), token="two")
    async with aws(loopback.in_turn(lambda _: others, lambda _: page(product()))) as (cloud, server):
        found = await cloud.fetch([P4D], NOW)
    [row] = found.rows
    assert (row.price, row.currency, row.region, row.gpus) == (Decimal("32.7726"), "USD", "us-east-1", 8)
    assert (row.provider, row.gpu_model, row.source) == ("aws", "A100-40GB", "AWS Price List")
    assert (row.valid_from, row.retrieved_at, row.is_fetched) == (None, NOW, True)
    assert found.missing == ()
    first, second = server.asked
    for asked in server.asked:
        verify_signature(asked, server, "us-east-1", "pricing")
        assert asked.headers["x-amz-target"] == "AWSPriceListService.GetProducts"
    sent = json.loads(first.body)
    assert {each["Field"]: each["Value"] for each in sent["Filters"]} == {
        "instanceType": "p4d.24xlarge", "regionCode": "us-east-1", "operatingSystem": "Linux", "tenancy": "Shared",
        "preInstalledSw": "NA", "capacitystatus": "Used",
    }
    assert {each["Type"] for each in sent["Filters"]} == {"TERM_MATCH"}
    assert sent["ServiceCode"] == "AmazonEC2"
    assert json.loads(second.body) == {**sent, "NextToken": "two"}


@pytest.mark.parametrize(("host", "region"), [
    ("http://api.pricing.eu-central-1.amazonaws.com", "eu-central-1"), ("http://prices.example.com", "us-east-1"),
])
async def test_aws_signs_for_the_region_whose_list_is_asked(host: str, region: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(loopback.serve(lambda _: page(product())))
        asking = await stack.enter_async_context(pricing.PriceWire("AWS", {"HTTP_PROXY": server.url}))
        await AwsPrices(asking, ENVIRONMENT, addresses=AwsPriceAddresses(pricing=host)).fetch([P4D], NOW)
    assert f"/{region}/pricing/aws4_request" in server.asked[0].headers["Authorization"]


LISTED_BADLY = {
    "nothing": (page(), "it is not in the price list"),
    "another machine": (page(product(instanceType="p5.48xlarge")), "it is not in the price list"),
    "another region": (page(product(regionCode="eu-west-1")), "it is not in the price list"),
    "windows": (page(product(operatingSystem="Windows")), "it is not in the price list"),
    "only a capacity block": (page(product(marketoption="CapacityBlock")), "it is not in the price list"),
    "another unit": (page(product(unit="Quantity")), "it is not in the price list"),
    "another currency": (page(product(currency="CNY")), "price_per_hour '' is not a number such as 32.77"),
    "two prices": (page(product(), product("1")), "the price list has 2 prices of it"),
    "absurd": (page(product("1e8")), "price_per_hour 1e+8 is absurd: more than 10,000 USD"),
    "negative": (page(product("-3")), "price_per_hour -3 is negative"),
    "no number": (page(product("NaN")), "price_per_hour 'NaN' is not a number such as 32.77"),
}


@pytest.mark.parametrize("name", LISTED_BADLY)
async def test_aws_what_was_not_asked_for_is_no_price(name: str) -> None:
    answer, because = LISTED_BADLY[name]
    async with aws(lambda _: answer) as (cloud, _):
        found = await cloud.fetch([P4D], NOW)
    assert found == FetchedPrices((), (f"p4d.24xlarge in us-east-1 (on-demand): {because}",))


async def test_aws_the_same_price_twice_is_one_price() -> None:
    async with aws(lambda _: page(product(), product("32.77260"))) as (cloud, _):
        assert prices(await cloud.fetch([P4D], NOW)) == {("p4d.24xlarge", "us-east-1"): "32.7726"}


def sales(*items: tuple[str, str, str, str], token: str = "") -> web.Response:
    """Type, zone, price, time: as EC2 writes them."""
    rows = "".join(
        f"<item><instanceType>{kind}</instanceType><productDescription>Linux/UNIX</productDescription>"
        f"<spotPrice>{price}</spotPrice><timestamp>{at}</timestamp><availabilityZone>{zone}</availabilityZone></item>"
        for kind, zone, price, at in items
    )
    return web.Response(content_type="text/xml", text=(
        '<?xml version="1.0" encoding="UTF-8"?>'
        '<DescribeSpotPriceHistoryResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><requestId>r</requestId>'
        f"<spotPriceHistorySet>{rows}</spotPriceHistorySet><nextToken>{token}</nextToken>"
        "</DescribeSpotPriceHistoryResponse>"
    ))


EARLIER, LATER = "2026-11-17T07:00:00.000Z", "2026-11-17T09:30:00.000Z"


async def test_aws_spot_prices_are_by_zone_the_newest_each() -> None:
    first = sales(
        ("g5.xlarge", "us-east-1a", "0.41", LATER), ("g5.xlarge", "us-east-1a", "0.40", EARLIER), token="two"
    )
    second = sales(
        ("g5.xlarge", "us-east-1b", "0.52", EARLIER), ("p4d.24xlarge", "us-east-1a", "11.5", EARLIER),
        ("g5.xlarge", "us-east-1b", "9.99", "2026-11-18T00:00:00Z"),
    )
    async with aws(loopback.in_turn(lambda _: first, lambda _: second)) as (cloud, server):
        found = await cloud.fetch([want("g5.xlarge", "us-east-1", SPOT), want("p4d.24xlarge", "us-east-1", SPOT)], NOW)
    assert prices(found) == {
        ("g5.xlarge", "us-east-1a"): "0.41", ("g5.xlarge", "us-east-1b"): "0.52",
        ("p4d.24xlarge", "us-east-1a"): "11.5",
    }
    assert {row.zone: row.valid_from for row in found.rows if row.instance_type == "g5.xlarge"} == {
        "us-east-1a": parse_instant(LATER), "us-east-1b": parse_instant(EARLIER)
    }
    assert {row.source for row in found.rows} == {"AWS spot price history"}
    for asked in server.asked:
        verify_signature(asked, server, "us-east-1", "ec2")
    sent = dict(urllib.parse.parse_qsl(server.asked[0].body.decode()))
    assert sent == {
        "Action": "DescribeSpotPriceHistory", "Version": "2016-11-15", "ProductDescription.1": "Linux/UNIX",
        "StartTime": rfc3339(NOW), "MaxResults": "1000", "InstanceType.1": "g5.xlarge",
        "InstanceType.2": "p4d.24xlarge",
    }
    assert dict(urllib.parse.parse_qsl(server.asked[1].body.decode())) == {**sent, "NextToken": "two"}


async def test_aws_spot_prices_that_are_none() -> None:
    answer = sales(
        ("g5.xlarge", "us-east-1a", "0", LATER), ("g5.xlarge", "us-east-1b", "-1", LATER),
        ("g5.xlarge", "us-east-1c", "NaN", LATER), ("g5.xlarge", "us-east-1d", "1e9", LATER),
        ("g5.xlarge", "eu-west-1a", "0.40", LATER), ("g6.xlarge", "eu-west-1a", "0.40", LATER),
    )
    async with aws(lambda _: answer) as (cloud, _):
        found = await cloud.fetch([want("g5.xlarge", "us-east-1", SPOT), want("g6.xlarge", "us-east-1", SPOT)], NOW)
    assert found == FetchedPrices((), (
        "g5.xlarge in us-east-1 (spot), us-east-1a: the price is 0",
        "g5.xlarge in us-east-1 (spot), us-east-1b: price_per_hour -1 is negative",
        "g5.xlarge in us-east-1 (spot), us-east-1c: price_per_hour 'NaN' is not a number such as 32.77",
        "g5.xlarge in us-east-1 (spot), us-east-1d: price_per_hour 1e+9 is absurd: more than 10,000 USD",
        "g6.xlarge in us-east-1 (spot): it is not in the history of spot prices",
    ))


_LAUGHS = '<!DOCTYPE l [<!ENTITY a "ha">' + "".join(
    f'<!ENTITY {name} "{f"&{before};" * 50}">' for before, name in zip("abcdefg", "bcdefgh", strict=True)
) + "]><l>&h;</l>"


@pytest.mark.parametrize("text", [
    "", "{}", "<a>", '<?xml version="1.0" encoding="no-such"?><a/>', '<?xml version="1.0" encoding="gbk"?><a/>',
    _LAUGHS,
], ids=["nothing", "JSON", "cut", "an encoding that there is not", "an encoding of several bytes", "a bomb"])
async def test_aws_spot_prices_that_cannot_be_read_are_told_so(text: str) -> None:
    async with aws(lambda _: web.Response(text=text, content_type="text/xml")) as (cloud, _):
        with pytest.raises(errors.BadAnswer, match="an answer that cannot be read"):
            await cloud.fetch([want("g5.xlarge", "us-east-1", SPOT)], NOW)


async def test_aws_throttles_by_a_400_and_is_asked_again() -> None:
    throttled = web.json_response({"__type": "ThrottlingException", "message": "Rate exceeded"}, status=400)
    async with aws(loopback.in_turn(lambda _: throttled, lambda _: page(product()))) as (cloud, server):
        assert len((await cloud.fetch([P4D], NOW)).rows) == 1
    assert len(server.asked) == 2


async def test_aws_what_it_refuses_is_told_by_its_word_alone() -> None:
    said = {"__type": "com.amazon.coral.service#AccessDeniedException", "Message": "User AKID is not authorized"}
    async with aws(lambda _: web.json_response(said, status=400)) as (cloud, server):
        with pytest.raises(errors.Invalid, match=r"^the AWS price list answered 400 \(AccessDeniedException\)$"):
            await cloud.fetch([P4D], NOW)
    assert len(server.asked) == 1


async def test_of_a_list_that_breaks_off_what_was_had_is_kept() -> None:
    answer = loopback.in_turn(lambda _: page(product()), lambda _: web.Response(status=403))
    async with aws(answer) as (cloud, _):
        found = await cloud.fetch([P4D, want("g5.xlarge", "us-east-1"), want("g6.xlarge", "us-east-1")], NOW)
    assert prices(found) == {("p4d.24xlarge", "us-east-1"): "32.7726"}
    assert found.missing == (
        "g5.xlarge in us-east-1 (on-demand), and what comes after it: the AWS price list answered 403",
    )


async def test_one_machine_that_is_refused_takes_no_price_from_the_others() -> None:
    answer = loopback.in_turn(lambda _: web.Response(status=400), lambda _: page(product()))
    async with aws(answer) as (cloud, _):
        found = await cloud.fetch([want("odd", "us-east-1"), P4D], NOW)
    assert prices(found) == {("p4d.24xlarge", "us-east-1"): "32.7726"}
    assert found.missing == ("odd in us-east-1 (on-demand): the AWS price list answered 400",)


async def test_aws_a_region_that_is_none_is_asked_nowhere_and_takes_nothing_from_the_others() -> None:
    async with aws(lambda _: sales(("g5.xlarge", "us-east-1a", "0.41", LATER))) as (cloud, server):
        found = await cloud.fetch([want("g5.xlarge", "Evil.example", SPOT), want("g5.xlarge", "us-east-1", SPOT)], NOW)
    assert prices(found) == {("g5.xlarge", "us-east-1a"): "0.41"}
    assert found.missing == (
        "spot prices in Evil.example: fetching prices needs an AWS region such as eu-west-1",
    )
    assert len(server.asked) == 1


async def test_aws_pages_without_end_are_given_up() -> None:
    async with aws(lambda _: page(token="again")) as (cloud, server):
        with pytest.raises(errors.BadAnswer, match="more than 100 pages"):
            await cloud.fetch([P4D], NOW)
    assert len(server.asked) == clouds_wire.MOST_PAGES


# ---- Google ---------------------------------------------------------------------------------------------------------


def sku(
    description: str, units: str, nanos: int, *regions: str, usage: str = "OnDemand", **said: Any
) -> dict[str, Any]:
    unit = "GiBy.h" if " Ram " in description else "h"
    money = {"currencyCode": said.get("currency", "USD"), "units": units, "nanos": nanos}
    rates = [{"startUsageAmount": 0, "unitPrice": money}] * said.get("tiers", 1)
    return {
        "name": "services/6F81-5844-456A/skus/X", "skuId": "X", "description": description,
        "category": {
            "serviceDisplayName": "Compute Engine", "resourceFamily": "Compute", "resourceGroup": "GPU",
            "usageType": usage,
        },
        "serviceRegions": list(regions or ("us-central1", "us-east1")),
        "pricingInfo": [{"effectiveTime": "2026-11-17T00:00:00Z", "pricingExpression": {
            "usageUnit": unit, "displayQuantity": 1, "tieredRates": rates,
        }}],
        "serviceProviderName": "Google",
    }


ON = "running in Americas"
CATALOGUE = [
    sku(f"A2 Instance Core {ON}", "0", 31_611_000), sku(f"A2 Instance Ram {ON}", "0", 4_237_000),
    sku(f"Nvidia Tesla A100 GPU {ON}", "2", 933_908_000), sku(f"Nvidia Tesla A100 80GB GPU {ON}", "3", 930_000_000),
    sku(f"N1 Predefined Instance Core {ON}", "0", 31_611_000), sku(f"N1 Predefined Instance Ram {ON}", "0", 4_237_000),
    sku(f"Nvidia Tesla T4 GPU {ON}", "0", 350_000_000), sku(f"G2 Instance Core {ON}", "0", 24_988_000),
    sku(f"G2 Instance Ram {ON}", "0", 2_927_000), sku(f"Nvidia L4 GPU {ON}", "0", 560_040_000),
    sku(f"Spot Preemptible A2 Instance Core {ON}", "0", 9_483_000, usage="Preemptible"),
    sku(f"Spot Preemptible A2 Instance Ram {ON}", "0", 1_271_000, usage="Preemptible"),
    sku(f"Nvidia Tesla A100 GPU attached to Spot Preemptible VMs {ON}", "0", 880_000_000, usage="Preemptible"),
    # Others of nearly the same name.
    sku("Commitment v1: A2 Cpu in Americas for 1 Year", "0", 1, usage="Commit1Yr"),
    sku(f"Capacity Optimized Nvidia Tesla A100 GPU {ON}", "9", 0),
    sku(f"DWS Defined Duration A2 Instance Core {ON}", "9", 0),
    sku("A2 Instance Core running in Netherlands", "0", 40_000_000, "europe-west4"),
    sku(f"A2 Sole Tenancy Instance Core {ON}", "9", 0), sku(f"Custom Instance Core {ON}", "9", 0),
    sku(f"Nvidia Tesla T4 GPU {ON}", "7", 0, usage="Preemptible"),
    sku(f"Nvidia Tesla T4 GPU {ON}", "6", 0, currency="EUR"),
    sku(f"Nvidia Tesla T4 GPU {ON}", "5", 0, tiers=2),
]
A2 = want("a2-highgpu-1g", "us-central1", model="A100-40GB")


def catalogue(asked: Asked, *, by: int = 7) -> web.Response:
    begin = int(asked.query.get("pageToken", "0"))
    following = {"nextPageToken": str(begin + by)} if begin + by < len(CATALOGUE) else {"nextPageToken": ""}
    return web.json_response({"skus": CATALOGUE[begin:begin + by], **following})


@asynccontextmanager
async def gcp(answer: loopback.Answer = catalogue, **said: Any) -> AsyncIterator[tuple[GooglePrices, Loopback]]:
    def either(asked: Asked) -> Any:
        if asked.path.endswith("/token"):
            return web.json_response({"access_token": "t0ken", "expires_in": 3599})
        return answer(asked)

    async with loopback.serve(either) as server, wire("Google's price list", **said) as asking:
        signer = google.make_signer({}, SCOPE, google.GoogleAddresses(metadata=server.url))
        yield GooglePrices(asking, signer, url=server.url), server


def asked_of_google(server: Loopback) -> list[Asked]:
    return [asked for asked in server.asked if asked.path == "/v1/services/6F81-5844-456A/skus"]


@pytest.mark.parametrize(("wanted", "price"), [
    (A2, "3.673385"), (want("a2-highgpu-8g", "us-east1", model="A100-40GB", gpus=8), "29.38708"),
    (want("a2-highgpu-1g", "us-central1", SPOT), "1.101831"), (want("a2-ultragpu-1g", "us-central1"), "5.029622"),
    (want("a2-megagpu-16g", "us-central1", gpus=16), "55.739504"),
    (want("n1-standard-8", "us-central1", model="T4", gpus=2), "1.079998"),
    (want("g2-standard-24", "us-central1", model="L4", gpus=2), "2.000784"),
], ids=["a2", "a2 of eight", "spot", "80 GB", "sixteen", "n1 with GPUs", "g2"])
async def test_google_a_machine_is_the_sum_of_its_parts(wanted: WantedPrice, price: str) -> None:
    async with gcp() as (cloud, server):
        found = await cloud.fetch([wanted], NOW)
    assert [f"{row.price.normalize():f}" for row in found.rows] == [price]
    assert found.missing == ()
    assert found.rows[0].source == "Google Cloud Billing Catalog"
    pages = asked_of_google(server)
    assert [asked.query.get("pageToken") for asked in pages] == [None, "7", "14", "21"][:len(pages)]
    assert {asked.headers["Authorization"] for asked in pages} == {"Bearer t0ken"}
    assert {(asked.query["pageSize"], asked.query["currencyCode"]) for asked in pages} == {("5000", "USD")}


@pytest.mark.parametrize(("wanted", "because"), [
    (want("a2-highgpu-1g", "europe-west4"), "Ram of A2: it is not in the price list"),
    (want("a3-highgpu-8g", "us-central1", gpus=8), "Core of A3: it is not in the price list"),
    (want("n1-standard-8", "us-central1", SPOT, "T4"), "Core of N1 Predefined: it is not in the price list"),
    (want("n1-standard-8", "us-central1", model="L4"), "GPUs of L4 are not attached to such a machine"),
    (want("n1-standard-8", "us-central1"), "GPUs of an unknown model are not attached to such a machine"),
    (want("a4-highgpu-8g", "us-central1"), "what such a machine is made up of is not known here"),
    (want("custom-8-53248", "us-central1"), "what such a machine is made up of is not known here"),
    (want("a2-highgpu-1g", "us-central1", gpus=0), "how many GPUs it has is not known"),
], ids=["a part missing", "no core", "no spot core", "GPU of another", "no model", "new", "custom", "no GPUs"])
async def test_google_half_a_sum_is_no_price(wanted: WantedPrice, because: str) -> None:
    async with gcp() as (cloud, _):
        assert await cloud.fetch([wanted], NOW) == FetchedPrices((), (f"{wanted}: {because}",))


async def test_google_two_prices_of_one_part_are_none() -> None:
    twice = [*CATALOGUE, sku("A2 Instance Core running in Iowa", "0", 1, "us-central1")]
    async with gcp(lambda _: web.json_response({"skus": twice})) as (cloud, _):
        found = await cloud.fetch([A2], NOW)
    assert found.missing == ("a2-highgpu-1g in us-central1 (on-demand): Core of A2: the price list has 2 prices of it",)


@pytest.mark.parametrize(("units", "nanos", "because"), [
    ("0", 0, "the price is 0"), ("-1", 0, "it is not in the price list"), ("0", -5, "it is not in the price list"),
    ("NaN", 0, "it is not in the price list"), ("1" * 40, 0, "it is not in the price list"),
    ("\u0661", 0, "it is not in the price list"),
], ids=["free", "negative", "negative nanos", "no number", "beyond all", "digits of another script"])
async def test_google_a_part_that_lies_about_its_price_makes_no_sum(units: str, nanos: int, because: str) -> None:
    name = f"A2 Instance Core {ON}"
    lying = [sku(name, units, nanos) if each["description"] == name else each for each in CATALOGUE]
    async with gcp(lambda _: web.json_response({"skus": lying})) as (cloud, _):
        assert await cloud.fetch([A2], NOW) == FetchedPrices((), (f"{A2}: Core of A2: {because}",))


@pytest.mark.parametrize("cloud", ["gcp", "azure"])
async def test_pages_without_end_are_given_up(cloud: str) -> None:
    def turn(asked: Asked) -> web.Response:
        here = f"http://{asked.headers['Host']}{asked.path}?again"
        return web.json_response({"skus": CATALOGUE, "nextPageToken": "again", "Items": METERS, "NextPageLink": here})

    opened: Any = gcp(turn) if cloud == "gcp" else azure(turn)
    async with opened as (fetcher, _):
        with pytest.raises(errors.BadAnswer, match="more than 100 pages"):
            await fetcher.fetch([A2 if cloud == "gcp" else NC6], NOW)


async def test_google_is_asked_once_an_hour_for_all_of_it() -> None:
    async with gcp() as (cloud, server):
        for at in (NOW, NOW + 600, NOW + HOUR):
            assert (await cloud.fetch([A2], at)).rows[0].retrieved_at == at
    assert len([asked for asked in asked_of_google(server) if "pageToken" not in asked.query]) == 2


# ---- Azure ----------------------------------------------------------------------------------------------------------


def meter(price: float | str, meter_name: str = "NC6s v3", **said: Any) -> dict[str, Any]:
    return {
        "currencyCode": "USD", "tierMinimumUnits": 0.0, "retailPrice": price, "unitPrice": price,
        "armRegionName": "eastus", "location": "US East", "effectiveStartDate": "2026-01-01T00:00:00Z",
        "meterName": meter_name, "productName": "Virtual Machines NCSv3 Series", "skuName": meter_name,
        "serviceName": "Virtual Machines", "serviceFamily": "Compute", "unitOfMeasure": "1 Hour",
        "type": "Consumption", "isPrimaryMeterRegion": True, "armSkuName": "Standard_NC6s_v3", **said,
    }


METERS = [
    meter(5.0, productName="Virtual Machines NCSv3 Series Windows"), meter(0.6, "NC6s v3 Low Priority"),
    meter(1.07, "NC6s v3 Spot"), meter(1.5, "NC6s v3 Spot", productName="Virtual Machines NCSv3 Series Windows"),
    meter(3.06), meter(9.0, armRegionName="westus"), meter(8.0, armSkuName="Standard_NC12s_v3"),
    meter(7.0, unitOfMeasure="1/Month"), meter(6.0, type="Reservation"), meter(4.0, currencyCode="EUR"),
]
NC6 = want("Standard_NC6s_v3", "eastus", model="V100-16GB")


def retail(asked: Asked) -> web.Response:
    """Two to a page, as Azure does with a hundred."""
    begin = int(asked.query.get("$skip", "0"))
    here = yarl.URL(f"http://{asked.headers['Host']}{asked.path}").with_query({**asked.query, "$skip": str(begin + 2)})
    more = {"NextPageLink": str(here) if begin + 2 < len(METERS) else None}
    return web.json_response({"BillingCurrency": "USD", "Items": METERS[begin:begin + 2], "Count": 2, **more})


@asynccontextmanager
async def azure(answer: loopback.Answer = retail, **said: Any) -> AsyncIterator[tuple[AzurePrices, Loopback]]:
    async with loopback.serve(answer) as server, wire("Azure's price list", **said) as asking:
        yield AzurePrices(asking, url=server.url), server


async def test_azure_both_prices_from_one_list_by_pages() -> None:
    async with azure() as (cloud, server):
        found = await cloud.fetch([NC6, want("Standard_NC6s_v3", "eastus", SPOT)], NOW)
    assert [(row.capacity_type, f"{row.price:f}") for row in found.rows] == [(ON_DEMAND, "3.06"), (SPOT, "1.07")]
    assert found.missing == ()
    assert len(server.asked) == 5
    assert server.asked[0].path == "/api/retail/prices"
    assert server.asked[0].query == {
        "currencyCode": "'USD'",
        "$filter": "serviceName eq 'Virtual Machines' and armRegionName eq 'eastus' and "
                   "armSkuName eq 'Standard_NC6s_v3' and priceType eq 'Consumption'",
    }


@pytest.mark.parametrize(("meters", "because"), [
    ([], "it is not in the price list"), ([meter(3.06), meter(3.07)], "the price list has 2 prices of it"),
    ([meter(306_000)], "price_per_hour 306000 is absurd: more than 10,000 USD"),
    ([meter(-1)], "price_per_hour -1 is negative"),
    ([meter(0)], "the price is 0"),
    ([meter("NaN")], "its price is no number"), ([meter("sNaN"), meter(3.06)], "its price is no number"),
    ([meter("Infinity")], "its price is no number"),
    ([meter("1e999999999")], "price_per_hour 1e+999999999 is absurd: more than 10,000 USD"),
    ([meter(3.06, serviceName="Cloud Services")], "it is not in the price list"),
], ids=["nothing", "two prices", "absurd", "negative", "free", "no number", "no number that warns", "endless",
        "beyond all", "another service"])
async def test_azure_what_nobody_can_mean_is_no_price(meters: list[Any], because: str) -> None:
    async with azure(lambda _: web.json_response({"Items": meters})) as (cloud, _):
        assert await cloud.fetch([NC6], NOW) == FetchedPrices((), (f"{NC6}: {because}",))


async def test_azure_leads_nowhere_else() -> None:
    away = {"Items": [], "NextPageLink": "http://169.254.169.254/x"}
    async with azure(lambda _: web.json_response(away)) as (cloud, _):
        with pytest.raises(errors.BadAnswer, match="leads to another host"):
            await cloud.fetch([NC6], NOW)


async def test_azure_a_name_cannot_change_the_question() -> None:
    async with azure() as (cloud, server):
        found = await cloud.fetch([want("x' or 'a' eq 'a", "eastus")], NOW)
    assert found.rows == ()
    assert server.asked == []


# ---- what goes wrong everywhere -------------------------------------------------------------------------------------


def broken(text: str) -> loopback.Answer:
    return lambda _: web.Response(text=text, content_type="application/json")


TROUBLE: dict[str, tuple[loopback.Answer, type[errors.ClientError], int]] = {
    "429": (lambda _: web.Response(status=429, headers={"Retry-After": "0"}), errors.Throttled, 3),
    "429 for long": (lambda _: web.Response(status=429, headers={"Retry-After": "3600"}), errors.Throttled, 1),
    "500": (lambda _: web.Response(status=500, text="<html>oops"), errors.ServerFault, 3),
    "403": (lambda _: web.Response(status=403), errors.Forbidden, 1),
    "a redirect": (lambda _: web.Response(status=302, headers={"Location": "/elsewhere"}), errors.Rejected, 1),
    "cut JSON": (broken('{"Items": [{"retailPrice": 3.'), errors.BadAnswer, 1),
    "no JSON": (broken("<html>"), errors.BadAnswer, 1),
    "another shape": (broken('{"Items": [{"retailPrice": "dear"}], "skus": 3}'), errors.BadAnswer, 1),
    "too deep": (broken('{"Items": ' + "[" * 100_000), errors.BadAnswer, 1),
    "too much": (broken('{"x": "' + "x" * 5000 + '"}'), errors.BadAnswer, 1),
}


@pytest.mark.parametrize("name", TROUBLE)
@pytest.mark.parametrize("cloud", ["gcp", "azure"])
async def test_whatever_goes_wrong_is_an_error_of_a_known_kind(cloud: str, name: str) -> None:
    answer, kind, tries = TROUBLE[name]
    size = {"longest": 4096} if name == "too much" else {}
    opened: Any = gcp(answer, **size) if cloud == "gcp" else azure(answer, **size)
    async with opened as (fetcher, server):
        with pytest.raises(kind):
            await fetcher.fetch([A2 if cloud == "gcp" else NC6], NOW)
    assert len([asked for asked in server.asked if not asked.path.endswith("/token")]) == tries


async def test_who_is_down_for_a_moment_is_asked_again() -> None:
    answers = loopback.in_turn(
        lambda _: web.Response(status=429), lambda _: web.Response(status=503),
        lambda _: web.json_response({"Items": METERS}),
    )
    async with azure(answers) as (cloud, server):
        assert prices(await cloud.fetch([NC6], NOW)) == {("Standard_NC6s_v3", "eastus"): "3.06"}
    assert len(server.asked) == 3


async def test_nobody_there_and_nobody_in_time() -> None:
    async with wire("Azure's price list") as asking:
        with pytest.raises(errors.Unreachable, match="cannot be reached: connection refused"):
            await AzurePrices(asking, url="http://127.0.0.1:9").fetch([NC6], NOW)

    async def slow(asked: Asked) -> web.Response:
        await asyncio.Event().wait()
        return web.Response()

    async with azure(slow, timeout=0.05) as (cloud, _):
        with pytest.raises(errors.Unreachable, match="did not answer within"):
            await cloud.fetch([NC6], NOW)
