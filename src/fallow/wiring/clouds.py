"""The cloud whose machines are driven, with its credentials: by the flags, or none.

In: the options. Out: a Cloud, or None; nothing is asked of it yet. Which policies mean it is its user's to say.
"""

import contextlib
import time

from fallow import settings
from fallow.clients.clouds import Cloud
from fallow.clients.clouds.aws import groups as aws
from fallow.clients.clouds.aws import query
from fallow.clients.clouds.azure import credentials as microsoft
from fallow.clients.clouds.azure import groups as azure
from fallow.clients.clouds.gcp import credentials as google
from fallow.clients.clouds.gcp import groups as gcp


async def make_cloud(options: settings.Settings, stack: contextlib.AsyncExitStack) -> Cloud | None:
    """Raises errors.Misconfigured where credentials are half of what is needed."""
    asked, environment = options.scaling, options.environment
    match asked.provider:
        case "aws":
            amazon = await stack.enter_async_context(query.AwsWire("AWS", environment))
            asking = query.AwsQuery(
                amazon, environment, clock=time.time, region=asked.aws.region, endpoint=asked.aws.endpoint
            )
            return aws.AwsGroups(asking, queue=asked.aws.queue)
        case "gcp":
            return gcp.GoogleGroups(
                await stack.enter_async_context(gcp.GoogleWire("Google Cloud", environment)),
                google.make_signer(environment, gcp.SCOPE), project=asked.gcp.project, clock=time.time,
                url=asked.gcp.endpoint or gcp.COMPUTE_URL, engine=asked.gcp.endpoint or gcp.ENGINE_URL,
            )
        case "azure":
            resource = azure.MANAGEMENT_URL
            return azure.AzureGroups(
                await stack.enter_async_context(azure.AzureWire("Azure", environment)),
                microsoft.make_signer(environment, resource), subscription=asked.azure.subscription,
                resource_group=asked.azure.resource_group, clock=time.time,
                url=asked.azure.endpoint or resource,
            )
        case "none":
            return None
