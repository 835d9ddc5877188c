"""Short-lived credentials from the clouds, each against a loopback server that speaks as the cloud does."""

import base64
import json
import urllib.parse
from pathlib import Path
from typing import Any

import pytest
import yarl
from aiohttp import web
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from tests.unit.clients import loopback
from tests.unit.clients.prometheus.test_client import NOW, Row

from fallow.clients import errors, signing
from fallow.clients.clouds.aws import credentials as aws
from fallow.clients.clouds.azure import credentials as azure
from fallow.clients.clouds.gcp import credentials as gcp
from fallow.clients.prometheus import auth, client
from fallow.model import units

EMPTY = {"status": "success", "data": {"resultType": "vector", "result": []}}
EXAMPLE = aws.Keys("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
EXAMPLE_TIME = units.parse_instant("2015-08-30T12:36:00Z")


async def query(server: loopback.Loopback, signer: signing.Signer, *cycles: float) -> list[loopback.Asked]:
    """Ask Prometheus (which shares the loopback server with the cloud) at these instants; what Prometheus saw."""
    async with client.Prometheus(f"{server.url}/prometheus", signer=signer, backoff=0.001) as prometheus:
        for at in cycles or (NOW,):
            await prometheus.query("up", at, row=Row)
    return [asked for asked in server.asked if asked.path == "/prometheus/api/v1/query"]


def cloud(**routes: Any) -> loopback.Answer:
    """Answers by the last part of the path; a callable may look at the request."""

    def answer(asked: loopback.Asked) -> web.Response:
        if asked.path == "/prometheus/api/v1/query":
            return web.json_response(EMPTY)
        found = routes.get(asked.path.rstrip("/").rpartition("/")[2] or "root", web.Response(status=404))
        return found(asked) if callable(found) else found

    return answer


# ---- AWS ------------------------------------------------------------------------------------------


FORM = {"content-type": "application/x-www-form-urlencoded"}
MANUAL = "https://iam.amazonaws.com/?Action=ListUsers&Version=2010-05-08"
PUBLISHED = {
    "vanilla": (
        ("GET", "https://example.amazonaws.com/", {}, b"", "service"),
        "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
    ),
    "query in order": (
        ("GET", "https://example.amazonaws.com/?Param2=value2&Param1=value1", {}, b"", "service"),
        "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
    ),
    "form": (
        ("POST", "https://example.amazonaws.com/", FORM, b"Param1=value1", "service"),
        "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a",
    ),
    "the example of the manual": (
        ("GET", MANUAL, {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}, b"", "iam"),
        "5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7",
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_signatures_are_those_that_aws_publishes(name: str) -> None:
    (method, url, headers, body, service), signature = PUBLISHED[name]
    signed = aws.sign(method, yarl.URL(url), headers, body, EXAMPLE, "us-east-1", service, EXAMPLE_TIME)
    assert signed["X-Amz-Date"] == "20150830T123600Z"
    assert signed["Authorization"].endswith(f"Signature={signature}")
    assert signed["Authorization"].startswith(
        f"AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/{service}/aws4_request, "
    )


def test_a_session_token_is_signed_too() -> None:
    keys = aws.Keys("AKID", "secret", "session")
    signed = aws.sign("GET", yarl.URL("https://x:8443/a"), {}, b"", keys, "eu-west-1", "aps", NOW)
    assert signed["X-Amz-Security-Token"] == "session"
    assert "SignedHeaders=host;x-amz-date;x-amz-security-token" in signed["Authorization"]


def verify_aws(asked: loopback.Asked, server: loopback.Loopback, keys: aws.Keys) -> None:
    """Sign what arrived once more, as the server would."""
    url = yarl.URL(f"{server.url}{asked.path}").with_query(asked.query)
    body = urllib.parse.urlencode(asked.form, quote_via=urllib.parse.quote).encode() if asked.form else b""
    content = {"content-type": asked.headers["Content-Type"]} if body else {}
    again = aws.sign(asked.method, url, content, body, keys, "eu-west-1", "aps", NOW)
    assert asked.headers["Authorization"] == again["Authorization"]
    assert asked.headers.get("X-Amz-Security-Token", "") == keys.session_token


KEYS = aws.Keys("ASIA1", "s3cret", "session")
DOCUMENT = {
    "AccessKeyId": "ASIA1",
    "SecretAccessKey": "s3cret",
    "Token": "session",
    "Expiration": units.rfc3339(NOW + 3600),
}
STS = (
    '<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">'
    "<AssumeRoleWithWebIdentityResult><Credentials>"
    f"<AccessKeyId>ASIA1</AccessKeyId><SecretAccessKey>s3cret</SecretAccessKey><SessionToken>session</SessionToken>"
    f"<Expiration>{units.rfc3339(NOW + 3600)}</Expiration></Credentials>"
    "</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
)


def sigv4(server: loopback.Loopback, **environment: str) -> signing.Signer:
    addresses = aws.AwsAddresses(sts=f"{server.url}/sts", metadata=server.url)
    return aws.SigV4(environment, "eu-west-1", auth.AWS_SERVICE, purpose="a test", addresses=addresses)


@pytest.mark.parametrize("region", ["", "eu west", "eu/west"])
def test_aws_without_a_region_is_refused_at_once(region: str) -> None:
    with pytest.raises(
        errors.Misconfigured, match=r"^Prometheus authentication 'sigv4' needs an AWS region such as eu-west-1$"
    ):
        aws.SigV4({"AWS_REGION": region}, "", auth.AWS_SERVICE, purpose="Prometheus authentication 'sigv4'")


async def test_aws_keys_of_the_environment() -> None:
    async with loopback.serve(cloud()) as server:
        (asked,) = await query(server, sigv4(server, AWS_ACCESS_KEY_ID="AKID", AWS_SECRET_ACCESS_KEY="s3cret"))
    verify_aws(asked, server, aws.Keys("AKID", "s3cret"))


async def test_aws_signs_the_query_of_a_get_too() -> None:
    def only_get(asked: loopback.Asked) -> web.Response:
        return web.json_response(EMPTY) if asked.method == "GET" else web.Response(status=405)

    async with loopback.serve(only_get) as server:
        signer = sigv4(server, AWS_ACCESS_KEY_ID="AKID", AWS_SECRET_ACCESS_KEY="s3cret")
        async with client.Prometheus(server.url, signer=signer) as prometheus:
            await prometheus.query('up{a="b c+~"} == 1', NOW, row=Row)
    verify_aws(server.asked[1], server, aws.Keys("AKID", "s3cret"))


async def test_aws_web_identity(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("jwt")
    async with loopback.serve(cloud(sts=web.Response(text=STS))) as server:
        signer = sigv4(server, AWS_WEB_IDENTITY_TOKEN_FILE=str(token), AWS_ROLE_ARN="arn:aws:iam::1:role/r")
        (asked,) = await query(server, signer)
    verify_aws(asked, server, KEYS)
    assert server.asked[0].form["WebIdentityToken"] == "jwt"
    assert server.asked[0].form["RoleArn"] == "arn:aws:iam::1:role/r"


async def test_aws_pod_identity(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("jwt")
    async with loopback.serve(cloud(credentials=lambda _: web.json_response(DOCUMENT))) as server:
        uri = f"{server.url}/v1/credentials"
        (asked,) = await query(
            server,
            sigv4(server, AWS_CONTAINER_CREDENTIALS_FULL_URI=uri, AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=str(token)),
        )
    verify_aws(asked, server, KEYS)
    assert server.asked[0].headers["Authorization"] == "jwt"


async def test_aws_pod_identity_sends_its_token_to_no_stranger() -> None:
    async with loopback.serve(cloud()) as server:
        with pytest.raises(errors.Misconfigured, match="FULL_URI"):
            await query(
                server,
                sigv4(
                    server,
                    AWS_CONTAINER_CREDENTIALS_FULL_URI="http://169.254.1.1/x",
                    AWS_CONTAINER_AUTHORIZATION_TOKEN="t",
                ),
            )
    assert server.asked == []


def instance_metadata(asked: loopback.Asked) -> web.Response:
    if asked.method == "PUT" and asked.headers.get("X-aws-ec2-metadata-token-ttl-seconds"):
        return web.Response(text="imds")
    if asked.headers.get("X-aws-ec2-metadata-token") != "imds":
        return web.Response(status=401)
    return (
        web.Response(text="node-role\n")
        if asked.path.endswith("/security-credentials/")
        else web.json_response(DOCUMENT)
    )


async def test_aws_instance_role_and_renewal_before_expiry() -> None:
    routes = {"token": instance_metadata, "security-credentials": instance_metadata, "node-role": instance_metadata}
    async with loopback.serve(cloud(**routes)) as server:
        asked = await query(server, sigv4(server), NOW, NOW + 3000, NOW + 3301)
    verify_aws(asked[0], server, KEYS)
    assert [one.path.rpartition("/")[2] for one in server.asked].count("token") == 2, (
        "kept until five minutes before the end"
    )


AWS_ANSWERS = {
    "404": web.Response(status=404),
    "not keys": web.Response(text="{}"),
    "no time": web.json_response({**DOCUMENT, "Expiration": "soon"}),
}


@pytest.mark.parametrize("name", AWS_ANSWERS)
async def test_aws_without_keys_is_an_error_without_secrets(name: str) -> None:
    async with loopback.serve(cloud(credentials=lambda _: AWS_ANSWERS[name])) as server:
        with pytest.raises(errors.ClientError) as caught:
            await query(server, sigv4(server, AWS_CONTAINER_CREDENTIALS_FULL_URI=f"{server.url}/credentials"))
    assert "s3cret" not in str(caught.value)


# ---- Google ---------------------------------------------------------------------------------------


def google(server: loopback.Loopback, file: str = "") -> signing.Signer:
    environment = {"GOOGLE_APPLICATION_CREDENTIALS": file} if file else {}
    addresses = gcp.GoogleAddresses(metadata=server.url, token=f"{server.url}/exchange")
    return gcp.make_signer(environment, auth.GOOGLE_SCOPE, addresses)


def hand_out(*tokens: str) -> Any:
    left = list(tokens)

    def answer(asked: loopback.Asked) -> web.Response:
        return web.json_response({"access_token": left.pop(0) if len(left) > 1 else left[0], "expires_in": 3599})

    return answer


async def test_google_metadata_server_with_renewal_and_after_a_401() -> None:
    refused: list[str] = []

    def answer(asked: loopback.Asked) -> web.Response:
        if asked.path == "/prometheus/api/v1/query" and asked.headers["Authorization"] == "Bearer two" and not refused:
            refused.append("two")
            return web.Response(status=401)
        return cloud(token=tokens)(asked)  # type: ignore[return-value]

    tokens = hand_out("one", "two", "three")
    async with loopback.serve(answer) as server:
        asked = await query(server, google(server), NOW, NOW + 3000, NOW + 3300)
    assert [one.headers["Authorization"] for one in asked] == ["Bearer one", "Bearer one", "Bearer two", "Bearer three"]
    assert server.asked[0].headers["Metadata-Flavor"] == "Google"
    assert server.asked[0].path == "/computeMetadata/v1/instance/service-accounts/default/token"


async def test_google_service_account_key_signs_its_assertion(tmp_path: Path) -> None:
    key = rsa.generate_private_key(65537, 2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    file = tmp_path / "key.json"
    content = {
        "type": "service_account",
        "client_email": "f@p.example.com",
        "private_key": pem,
        "private_key_id": "k1",
        "token_uri": "https://t/token",
    }
    file.write_text(json.dumps(content))
    async with loopback.serve(cloud(exchange=hand_out("good"))) as server:
        (asked,) = await query(server, google(server, str(file)))
    assert asked.headers["Authorization"] == "Bearer good"
    form = server.asked[0].form
    assert form["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer"
    header, claims, signature = form["assertion"].split(".")
    key.public_key().verify(_decode(signature), f"{header}.{claims}".encode(), padding.PKCS1v15(), hashes.SHA256())
    assert json.loads(_decode(header)) == {"alg": "RS256", "typ": "JWT", "kid": "k1"}
    assert json.loads(_decode(claims)) == {
        "iss": "f@p.example.com",
        "scope": "https://www.googleapis.com/auth/monitoring.read",
        "aud": "https://t/token",
        "iat": int(NOW),
        "exp": int(NOW) + 3600,
    }


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


async def test_google_credentials_of_a_person(tmp_path: Path) -> None:
    file = tmp_path / "adc.json"
    file.write_text(
        json.dumps({"type": "authorized_user", "client_id": "i", "client_secret": "s", "refresh_token": "r"})
    )
    async with loopback.serve(cloud(exchange=hand_out("good"))) as server:
        (asked,) = await query(server, google(server, str(file)))
    assert asked.headers["Authorization"] == "Bearer good"
    assert server.asked[0].form == {
        "grant_type": "refresh_token",
        "client_id": "i",
        "client_secret": "s",
        "refresh_token": "r",
    }


GOOGLE_FILES = {
    "not JSON": "s3cret",
    "other type": '{"type": "external_account", "private_key": "s3cret"}',
    "no key": '{"type": "service_account", "private_key": "s3cret"}',
    "cut key": json.dumps(
        {"type": "service_account", "private_key": "-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----"}
    ),
}


@pytest.mark.parametrize("name", GOOGLE_FILES)
async def test_a_google_file_that_cannot_be_used_is_named(name: str, tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    file.write_text(GOOGLE_FILES[name])
    async with loopback.serve(cloud()) as server:
        with pytest.raises(errors.Misconfigured, match=r"file\.json") as caught:
            await query(server, google(server, str(file)))
    assert "s3cret" not in str(caught.value)


# ---- Azure ----------------------------------------------------------------------------------------


def test_half_of_an_azure_identity_is_refused_at_once() -> None:
    with pytest.raises(errors.Misconfigured, match="AZURE_CLIENT_ID"):
        azure.make_signer({"AZURE_FEDERATED_TOKEN_FILE": "f"}, auth.AZURE_RESOURCE)


async def test_azure_workload_identity(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("jwt")
    environment = {"AZURE_FEDERATED_TOKEN_FILE": str(token), "AZURE_CLIENT_ID": "client", "AZURE_TENANT_ID": "tenant"}
    async with loopback.serve(cloud(token=hand_out("good"))) as server:
        signer = azure.make_signer(environment, auth.AZURE_RESOURCE, azure.AzureAddresses(authority=server.url))
        (asked,) = await query(server, signer)
    assert asked.headers["Authorization"] == "Bearer good"
    assert server.asked[0].path == "/tenant/oauth2/v2.0/token"
    assert server.asked[0].form == {
        "grant_type": "client_credentials",
        "client_id": "client",
        "scope": "https://prometheus.monitor.azure.com/.default",
        "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
        "client_assertion": "jwt",
    }


async def test_azure_managed_identity_retries_and_reads_numbers_in_strings() -> None:
    answers = [web.Response(status=500), web.json_response({"access_token": "good", "expires_in": "3599"})]
    async with loopback.serve(cloud(token=lambda _: answers.pop(0))) as server:
        addresses = azure.AzureAddresses(metadata=server.url)
        signer = azure.make_signer({"AZURE_CLIENT_ID": "client"}, auth.AZURE_RESOURCE, addresses)
        asked = await query(server, signer, NOW, NOW + 3000)
    assert [one.headers["Authorization"] for one in asked] == ["Bearer good", "Bearer good"]
    expected = {"api-version": "2018-02-01", "resource": "https://prometheus.monitor.azure.com", "client_id": "client"}
    assert (server.asked[0].path, server.asked[0].query, server.asked[0].headers["Metadata"]) == (
        "/metadata/identity/oauth2/token",
        expected,
        "true",
    )


async def test_a_cloud_that_hands_out_nothing_is_an_error() -> None:
    async with loopback.serve(cloud(token=lambda _: web.Response(text='{"error": "s3cret"}'))) as server:
        signer = azure.make_signer({}, auth.AZURE_RESOURCE, azure.AzureAddresses(metadata=server.url))
        with pytest.raises(errors.BadAnswer) as caught:
            await query(server, signer)
    assert "s3cret" not in str(caught.value)
