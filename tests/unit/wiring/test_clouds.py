"""Which cloud the flags lead to, asked at the address that they name."""

import contextlib
import json
from pathlib import Path

import pytest
from aiohttp import web
from tests.unit.clients import loopback
from tests.unit.clients.loopback import Asked

from fallow import settings
from fallow.wiring import clouds

KEYS = {"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "s3cret"}
GROUPS = {"aws": "g", "gcp": "us-central1-a/g", "azure": "g"}
SAID = {
    "aws": {"autoscaling_aws_region": "us-east-1"}, "gcp": {"autoscaling_gcp_project": "p"},
    "azure": {"autoscaling_azure_subscription": "s", "autoscaling_azure_resource_group": "r"},
}


def answer(asked: Asked) -> web.Response:
    if asked.path.endswith("/token"):
        return web.json_response({"access_token": "t0ken", "expires_in": 3599})
    return web.Response(status=404, text="{}") if asked.method == "GET" else web.Response(text="<r/>")


@pytest.mark.parametrize("name", GROUPS)
async def test_the_flags_lead_to_one_cloud(name: str, tmp_path: Path) -> None:
    async with loopback.serve(answer) as server, contextlib.AsyncExitStack() as stack:
        token, login = tmp_path / "token", tmp_path / "google.json"
        token.write_text("federated")
        login.write_text(json.dumps({"type": "authorized_user", "token_uri": f"{server.url}/token"}))
        environment = {
            **KEYS, "AZURE_FEDERATED_TOKEN_FILE": str(token), "AZURE_CLIENT_ID": "c", "AZURE_TENANT_ID": "t",
            "AZURE_AUTHORITY_HOST": server.url, "GOOGLE_APPLICATION_CREDENTIALS": str(login),
        }
        given = {"autoscaling_provider": name, f"autoscaling_{name}_endpoint": server.url, **SAID[name]}
        options = settings.read_flags(given, environment)
        cloud = await clouds.make_cloud(options, stack)
        assert cloud is not None
        [found] = await cloud.groups([GROUPS[name]])
        assert found.error
        assert server.asked


async def test_without_a_word_there_is_none() -> None:
    async with contextlib.AsyncExitStack() as stack:
        assert await clouds.make_cloud(settings.read_flags({}, {}), stack) is None
