"""The flags about nodes that come and go: whether they are scaled, and in which cloud.

In: flag texts, named as the values of the chart. Out: ScalingSettings, valid in full. Without a word of the
operator AutoscalingPolicies are only advised on, and no cloud is asked. A cloud of which half is said is a usage error,
before anything is contacted.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec

from fallow.model.units import Seconds
from fallow.settings import readers as read
from fallow.settings import sharing
from fallow.settings.flags import Flag, group
from fallow.settings.readers import UsageError

SCALING: Final = "Nodes that come and go"
CloudName: TypeAlias = Literal["aws", "gcp", "azure", "none"]
Score: TypeAlias = Literal["price", "article"]
_LEAST_INTERVAL: Final[Seconds] = 5.0


def _interval(text: str) -> Seconds:
    seconds = read.duration(text)
    if seconds < _LEAST_INTERVAL:
        raise ValueError(f"{text!r} is less than 5s: clouds do not answer so often")
    return seconds


FLAGS: tuple[Flag, ...] = group(
    SCALING,
    Flag("--scaling", "MODE",
         "What becomes of AutoscalingPolicies: off: they are not looked at; recommend: their status tells what would "
         "be done; act: those that say mode: act are carried out.", read.one_of("off", "recommend", "act"),
         "recommend"),
    Flag("--autoscaling-provider", "CLOUD",
         "Whose groups of machines are asked, and driven where nobody else does; none: no cloud is asked, prices come "
         "from the price book.", read.one_of("aws", "gcp", "azure", "none"), "none"),
    Flag("--autoscaling-reconcile-interval", "DURATION", "How often nodes and pods that wait are looked at.", _interval,
         "30s"),
    Flag("--autoscaling-instance-score", "WAY",
         "Which of several kinds of machines is asked for first: price: the cheapest for what is to run there; "
         "article: the highest score of memory and GPUs for the money.", read.one_of("price", "article"), "price"),
    Flag("--autoscaling-aws-region", "REGION", "Region of the Auto Scaling groups.", variable="AWS_REGION"),
    Flag("--autoscaling-aws-endpoint", "URL",
         "Address of Auto Scaling, EC2 and SQS; default: that of each in the region.", read.secure_url),
    Flag("--autoscaling-aws-interruption-queue-url", "URL",
         "SQS queue that EventBridge fills with notices of spot interruptions and of recommendations to rebalance.",
         read.secure_url),
    Flag("--autoscaling-gcp-project", "PROJECT", "Project of the managed instance groups."),
    Flag("--autoscaling-gcp-endpoint", "URL", "Address of Compute Engine and of Google Kubernetes Engine.",
         read.secure_url),
    Flag("--autoscaling-azure-subscription", "ID", "Subscription of the scale sets or of the AKS cluster."),
    Flag("--autoscaling-azure-resource-group", "NAME",
         "Resource group of the scale sets; of AKS, that of the cluster itself."),
    Flag("--autoscaling-azure-endpoint", "URL", "Address of Azure Resource Manager.", read.secure_url),
)


class AwsPlace(msgspec.Struct, frozen=True, kw_only=True):
    """"" = the region's own address; no queue."""

    region: str = ""
    endpoint: str = ""
    queue: str = ""


class GcpPlace(msgspec.Struct, frozen=True, kw_only=True):
    project: str = ""
    endpoint: str = ""


class AzurePlace(msgspec.Struct, frozen=True, kw_only=True):
    subscription: str = ""
    resource_group: str = ""
    endpoint: str = ""


class ScalingSettings(msgspec.Struct, frozen=True, kw_only=True):
    is_on: bool = True
    acts: bool = False
    provider: CloudName = "none"
    interval: Seconds = 30.0
    score: Score = "price"
    aws: AwsPlace = AwsPlace()
    gcp: GcpPlace = GcpPlace()
    azure: AzurePlace = AzurePlace()


_NEEDED: Final = {
    "aws": ("autoscaling_aws_region",), "gcp": ("autoscaling_gcp_project",),
    "azure": ("autoscaling_azure_subscription", "autoscaling_azure_resource_group"), "none": (),
}


def read_scaling(values: Mapping[str, Any]) -> ScalingSettings:
    """Raises UsageError for half of a cloud, and for what would act in a dry run."""
    provider: CloudName = values["autoscaling_provider"]
    for key in _NEEDED[provider]:
        if not values[key]:
            raise UsageError(f"--autoscaling-provider {provider} needs --{key.replace('_', '-')}")

    def said(name: str) -> str:
        return values[f"autoscaling_{name}"] or ""

    return ScalingSettings(
        is_on=values["scaling"] != "off", acts=sharing.may_act("scaling", values), provider=provider,
        interval=values["autoscaling_reconcile_interval"], score=values["autoscaling_instance_score"],
        aws=AwsPlace(
            region=said("aws_region"), endpoint=said("aws_endpoint"), queue=said("aws_interruption_queue_url")
        ),
        gcp=GcpPlace(project=said("gcp_project"), endpoint=said("gcp_endpoint")),
        azure=AzurePlace(
            subscription=said("azure_subscription"), resource_group=said("azure_resource_group"),
            endpoint=said("azure_endpoint"),
        ),
    )
