"""Requests to AWS: every one signed (Signature Version 4) with keys that are found where AWS puts them.

In: the AWS_* variables, the region and service, the addresses of those who hand out keys. Out: the headers of one
signed request. Order: keys in the environment, web identity, EKS Pod Identity, the instance's own role (IMDSv2).
"""

import hashlib
import hmac
import math
import re
import urllib.parse
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TypeAlias

import msgspec
import yarl

from fallow.clients import errors, secret, signing
from fallow.clients.clouds import exchange
from fallow.clients.web import aiohttp
from fallow.model import loopback, units
from fallow.model.secret import Secret
from fallow.model.units import Instant

_SESSION_NAME = "fallow"
_ALGORITHM = "AWS4-HMAC-SHA256"
# Where credentials may come from in plain http: this machine, and the link-local addresses of ECS and EKS.
_PLAIN_HOSTS = frozenset({"169.254.170.2", "169.254.170.23", "fd00:ec2::23"})


class AwsAddresses(msgspec.Struct, frozen=True):
    """Base addresses; `sts` "" = the region's own."""

    sts: str = ""
    metadata: str = "http://169.254.169.254"


_USUAL = AwsAddresses()


class Keys:
    """A key pair."""

    def __init__(self, key_id: str, secret_key: str, session_token: str = "") -> None:
        self.key_id = key_id
        self.secret_key = secret_key
        self.session_token = session_token


_Lent: TypeAlias = tuple[Keys, Instant]  # and until when


class _KeyDocument(msgspec.Struct, rename="pascal"):
    """What pod identity and the instance metadata answer."""

    access_key_id: str
    secret_access_key: Secret[str]
    token: Secret[str]
    expiration: str


class SigV4:
    """Signs for one service of one region, with whatever keys the environment leads to. Raises Misconfigured."""

    def __init__(
        self, environment: Mapping[str, str], region: str, service: str, *, purpose: str,
        addresses: AwsAddresses = _USUAL,
    ) -> None:
        self._environment = environment
        self.region = region or environment.get("AWS_REGION", "") or environment.get("AWS_DEFAULT_REGION", "")
        if not re.fullmatch(r"[a-z0-9-]+", self.region):
            raise errors.Misconfigured(f"{purpose} needs an AWS region such as eu-west-1")
        self._service = service
        self._addresses = addresses
        self._keys = exchange.Borrowed(self._find_keys)

    async def headers(self, outgoing: signing.Outgoing) -> Mapping[str, str]:
        keys = await self._keys.get(outgoing)
        content = outgoing.headers or ({"content-type": "application/x-www-form-urlencoded"} if outgoing.body else {})
        return sign(
            outgoing.method, outgoing.url, content, outgoing.body, keys, self.region, self._service, outgoing.now
        )

    def forget(self) -> None:
        self._keys.forget()

    async def _find_keys(self, outgoing: signing.Outgoing) -> _Lent:
        known = self._environment
        if known.get("AWS_ACCESS_KEY_ID") and known.get("AWS_SECRET_ACCESS_KEY"):
            token = known.get("AWS_SESSION_TOKEN", "")
            return Keys(known["AWS_ACCESS_KEY_ID"], known["AWS_SECRET_ACCESS_KEY"], token), math.inf
        if known.get("AWS_WEB_IDENTITY_TOKEN_FILE") and known.get("AWS_ROLE_ARN"):
            return await self._from_web_identity(outgoing)
        if known.get("AWS_CONTAINER_CREDENTIALS_FULL_URI"):
            return await self._from_pod_identity(outgoing)
        return await self._from_instance(outgoing.session)

    async def _from_web_identity(self, outgoing: signing.Outgoing) -> _Lent:
        token = await secret.SecretFile(self._environment["AWS_WEB_IDENTITY_TOKEN_FILE"]).read(outgoing.now)
        form = {
            "Action": "AssumeRoleWithWebIdentity",
            "Version": "2011-06-15",
            "RoleArn": self._environment["AWS_ROLE_ARN"],
            "RoleSessionName": self._environment.get("AWS_ROLE_SESSION_NAME") or _SESSION_NAME,
            "WebIdentityToken": token,
        }
        sts = self._addresses.sts or service_url("sts", self.region)
        request = exchange.CloudRequest("AWS STS", "POST", f"{sts}/", form=form)
        return _read_sts(await exchange.fetch(outgoing.session, request))

    async def _from_pod_identity(self, outgoing: signing.Outgoing) -> _Lent:
        address = self._environment["AWS_CONTAINER_CREDENTIALS_FULL_URI"]
        _check_pod_identity_address(address)
        token = self._environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN", "")
        if file := self._environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"):
            token = await secret.SecretFile(file).read(outgoing.now)
        request = exchange.CloudRequest("AWS pod identity", "GET", address, {"Authorization": token} if token else {})
        return _keys_of(await exchange.fetch_json(outgoing.session, request, _KeyDocument))

    async def _from_instance(self, session: aiohttp.ClientSession) -> _Lent:
        def ask(method: str, path: str, headers: Mapping[str, str]) -> exchange.CloudRequest:
            url = f"{self._addresses.metadata}/latest/{path}"
            return exchange.CloudRequest("AWS instance metadata", method, url, headers)

        lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": "300"}
        token = (await exchange.fetch(session, ask("PUT", "api/token", lifetime))).decode()
        headers, roles = {"X-aws-ec2-metadata-token": token}, "meta-data/iam/security-credentials/"
        listed = (await exchange.fetch(session, ask("GET", roles, headers))).decode().split()
        if not listed:
            raise errors.Misconfigured("this AWS instance has no role, and no other AWS credentials were found")
        request = ask("GET", roles + urllib.parse.quote(listed[0]), headers)
        return _keys_of(await exchange.fetch_json(session, request, _KeyDocument))


def service_url(service: str, region: str) -> str:
    return f"https://{service}.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}"


def sign(
    method: str, url: yarl.URL, headers: Mapping[str, str], body: bytes, keys: Keys, region: str, service: str,
    now: Instant,
) -> Mapping[str, str]:
    """The headers to add. `headers` (names in lower case) are signed along with the host and the date."""
    stamp = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
    host = (url.raw_host or "") if url.is_default_port() else url.raw_authority
    signed = {**headers, "host": host, "x-amz-date": stamp}
    if keys.session_token:
        signed["x-amz-security-token"] = keys.session_token
    names = ";".join(sorted(signed))
    canonical = "\n".join([
        method,
        urllib.parse.quote(url.raw_path or "/", safe="/~"),
        "&".join(sorted(_canonical_pair(key, value) for key, value in url.query.items())),
        *(f"{name}:{' '.join(signed[name].split())}" for name in sorted(signed)),
        "",
        names,
        hashlib.sha256(body).hexdigest(),
    ])
    scope = f"{stamp[:8]}/{region}/{service}/aws4_request"
    to_sign = "\n".join([_ALGORITHM, stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    signature = hmac.new(_signing_key(keys.secret_key, scope), to_sign.encode(), hashlib.sha256).hexdigest()
    authorization = f"{_ALGORITHM} Credential={keys.key_id}/{scope}, SignedHeaders={names}, Signature={signature}"
    token = {"X-Amz-Security-Token": keys.session_token} if keys.session_token else {}
    return {"X-Amz-Date": stamp, "Authorization": authorization, **token}


def _signing_key(secret_key: str, scope: str) -> bytes:
    key = f"AWS4{secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key


def _canonical_pair(key: str, value: str) -> str:
    return f"{urllib.parse.quote(key, safe='~')}={urllib.parse.quote(value, safe='~')}"


def _read_sts(body: bytes) -> _Lent:
    try:
        root = ElementTree.fromstring(body)
        wanted = ("AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration")
        found = {name: root.findtext(f".//{{*}}{name}") for name in wanted}
        document = msgspec.convert({**found, "Token": found["SessionToken"]}, _KeyDocument, dec_hook=secret.hide)
    except (ElementTree.ParseError, msgspec.ValidationError):
        raise errors.BadAnswer("AWS STS answered without the credentials that were asked for") from None
    return _keys_of(document)


def _keys_of(document: _KeyDocument) -> _Lent:
    expires_at = units.read_instant(document.expiration)
    if expires_at is None:
        raise errors.BadAnswer("AWS handed out credentials without saying when they expire")
    return Keys(document.access_key_id, document.secret_access_key.reveal(), document.token.reveal()), expires_at


def _check_pod_identity_address(address: str) -> None:
    url = yarl.URL(address)
    if url.scheme == "https" or url.host in _PLAIN_HOSTS or loopback.is_here(url.host or ""):
        return
    known = "neither https nor an address of this machine or of its agent"
    raise errors.Misconfigured(f"AWS_CONTAINER_CREDENTIALS_FULL_URI is {known}")
