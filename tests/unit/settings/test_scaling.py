"""The flags about nodes that come and go: what is wrong with one stops the start, in one sentence."""

from __future__ import annotations

from typing import Any

import pytest

from fallow import settings
from fallow.settings.readers import UsageError
from fallow.settings.scaling import AwsPlace, AzurePlace, GcpPlace, ScalingSettings


def read(environ: dict[str, str] | None = None, **given: str) -> ScalingSettings:
    return settings.read_flags(given, environ or {}).scaling


def test_nothing_is_scaled_and_no_cloud_is_asked_unless_somebody_says_so() -> None:
    assert read() == ScalingSettings() == ScalingSettings(is_on=True, acts=False, provider="none")
    assert read(scaling="off").is_on is False


CLOUDS: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "aws": (
        {"autoscaling_aws_region": "eu-west-1",
         "autoscaling_aws_interruption_queue_url": "https://sqs.eu-west-1.amazonaws.com/1/q"},
        {"aws": AwsPlace(region="eu-west-1", queue="https://sqs.eu-west-1.amazonaws.com/1/q")},
    ),
    "gcp": (
        {"autoscaling_gcp_project": "p", "autoscaling_gcp_endpoint": "http://127.0.0.1:1"},
        {"gcp": GcpPlace(project="p", endpoint="http://127.0.0.1:1")},
    ),
    "azure": (
        {"autoscaling_azure_subscription": "s", "autoscaling_azure_resource_group": "r"},
        {"azure": AzurePlace(subscription="s", resource_group="r")},
    ),
}


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_cloud_is_taken_as_it_is_said(cloud: str) -> None:
    given, made = CLOUDS[cloud]
    found = read(run_mode="scale-down", scaling="act", autoscaling_provider=cloud, autoscaling_reconcile_interval="1m",
                 autoscaling_instance_score="article", **given)
    assert found == ScalingSettings(acts=True, provider=cloud, interval=60.0, score="article", **made)  # type: ignore[arg-type]


def test_the_region_may_come_from_the_environment() -> None:
    assert read({"AWS_REGION": "eu-west-2"}, autoscaling_provider="aws").aws.region == "eu-west-2"


BAD = {
    "no region": ({"autoscaling_provider": "aws"}, "--autoscaling-provider aws needs --autoscaling-aws-region"),
    "no project": ({"autoscaling_provider": "gcp"}, "--autoscaling-provider gcp needs --autoscaling-gcp-project"),
    "half of azure": ({"autoscaling_provider": "azure", "autoscaling_azure_subscription": "s"},
                      "--autoscaling-provider azure needs --autoscaling-azure-resource-group"),
    "a dry run": ({"scaling": "act"}, "--scaling act needs --run-mode scale-down"),
    "a mode": ({"scaling": "yes"}, "--scaling: 'yes' is none of off, recommend, act"),
    "a cloud": ({"autoscaling_provider": "oracle"}, "--autoscaling-provider: 'oracle' is none of"),
    "plain": ({"autoscaling_aws_endpoint": "http://example.com"}, "'http://example.com' is not https"),
    "a plain queue": ({"autoscaling_aws_interruption_queue_url": "sqs"}, "is not an address"),
    "too often": ({"autoscaling_reconcile_interval": "1s"}, "'1s' is less than 5s"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_work_is_said_before_anything_is_asked(name: str) -> None:
    given, because = BAD[name]
    with pytest.raises(UsageError, match=because):
        read(**given)
