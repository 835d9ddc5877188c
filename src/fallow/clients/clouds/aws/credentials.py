"""Amazon Managed Prometheus: every request signed (Signature Version 4, service `aps`) with keys that are found where AWS puts them.

In: the AWS_* variables, the region, the addresses of those who hand out keys. Out: the headers of one signed request.
Order: keys in the environment, web identity, EKS Pod Identity, the instance's own role (IMDSv2). Keys that expire are
fetched again five minutes before they do.
"""

import asyncio
import hashlib
import hmac
import ipaddress
import math
import re
import urllib.parse
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec
import yarl

from fallow.clients import errors
from fallow.clients.prometheus import exchange
from fallow.model import units
from fallow.model.units import Instant, Seconds

_EARLY: Seconds = 300.0
_SESSION_NAME = "fallow"
_ALGORITHM = "AWS4-HMAC-SHA256"
# Where credentials may come from in plain http: this machine, and the link-local addresses of ECS and EKS.
_PLAIN_HOSTS = frozenset({"localhost", "169.254.170.2", "169.254.170.23", "fd00:ec2::23"})


class Places(msgspec.Struct, frozen=True):
    """Base addresses; `sts` "" = the region's own."""

    sts: str = ""
    metadata: str = "http://169.254.169.254"


class Keys:
    """A key pair, and until when it holds."""

    def __init__(self, key_id: str, secret: str, session_token: str = "", expires_at: Instant = math.inf) -> None:
        self.key_id = key_id
        self.secret = secret
        self.session_token = session_token
        self.expires_at = expires_at


class _KeyDocument(msgspec.Struct, rename="pascal"):
    """What pod identity and the instance metadata answer."""

    access_key_id: str
    secret_access_key: str
    token: str
    expiration: str


class SigV4:
    """Signs with whatever keys the environment leads to."""

    def __init__(self, environment: Mapping[str, str], region: str, places: Places) -> None:
        self._environment = environment
        self._region = region or environment.get("AWS_REGION", "") or environment.get("AWS_DEFAULT_REGION", "")
        if not re.fullmatch(r"[a-z0-9-]+", self._region):
            raise errors.Misconfigured("Prometheus authentication 'sigv4' needs an AWS region such as eu-west-1")
        self._places = places
        self._keys: Keys | None = None
        self._lock = asyncio.Lock()

    async def headers(self, outgoing: exchange.Outgoing) -> Mapping[str, str]:
        async with self._lock:
            if self._keys is None or self._keys.expires_at - _EARLY <= outgoing.now:
                self._keys = await self._find_keys(outgoing)
            keys = self._keys
        content = {"content-type": "application/x-www-form-urlencoded"} if outgoing.body else {}
        return sign(outgoing.method, outgoing.url, content, outgoing.body, keys, self._region, "aps", outgoing.now)

    def forget(self) -> None:
        self._keys = None

    async def _find_keys(self, outgoing: exchange.Outgoing) -> Keys:
        known = self._environment
        if known.get("AWS_ACCESS_KEY_ID") and known.get("AWS_SECRET_ACCESS_KEY"):
            return Keys(known["AWS_ACCESS_KEY_ID"], known["AWS_SECRET_ACCESS_KEY"], known.get("AWS_SESSION_TOKEN", ""))
        if known.get("AWS_WEB_IDENTITY_TOKEN_FILE") and known.get("AWS_ROLE_ARN"):
            return await self._from_web_identity(outgoing)
        if known.get("AWS_CONTAINER_CREDENTIALS_FULL_URI"):
            return await self._from_pod_identity(outgoing)
        return await self._from_instance(outgoing)

    async def _from_web_identity(self, outgoing: exchange.Outgoing) -> Keys:
        token = await exchange.SecretFile(self._environment["AWS_WEB_IDENTITY_TOKEN_FILE"]).read(outgoing.now)
        form = {
            "Action": "AssumeRoleWithWebIdentity",
            "Version": "2011-06-15",
            "RoleArn": self._environment["AWS_ROLE_ARN"],
            "RoleSessionName": self._environment.get("AWS_ROLE_SESSION_NAME") or _SESSION_NAME,
            "WebIdentityToken": token,
        }
        suffix = "amazonaws.com.cn" if self._region.startswith("cn-") else "amazonaws.com"
        sts = self._places.sts or f"https://sts.{self._region}.{suffix}"
        return _read_sts(await exchange.fetch(outgoing.session, "AWS STS", "POST", f"{sts}/", form=form))

    async def _from_pod_identity(self, outgoing: exchange.Outgoing) -> Keys:
        address = self._environment["AWS_CONTAINER_CREDENTIALS_FULL_URI"]
        _check_pod_identity_address(address)
        token = self._environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN", "")
        if file := self._environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"):
            token = await exchange.SecretFile(file).read(outgoing.now)
        headers = {"Authorization": token} if token else {}
        who = "AWS pod identity"
        return _keys_of(await exchange.fetch_json(outgoing.session, who, "GET", address, shape=_KeyDocument, headers=headers))

    async def _from_instance(self, outgoing: exchange.Outgoing) -> Keys:
        base, who, session = f"{self._places.metadata}/latest", "AWS instance metadata", outgoing.session
        lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": "300"}
        token = (await exchange.fetch(session, who, "PUT", f"{base}/api/token", headers=lifetime)).decode()
        headers = {"X-aws-ec2-metadata-token": token}
        roles = f"{base}/meta-data/iam/security-credentials/"
        listed = (await exchange.fetch(session, who, "GET", roles, headers=headers)).decode().split()
        if not listed:
            raise errors.Misconfigured("this AWS instance has no role, and no other AWS credentials were found")
        role = urllib.parse.quote(listed[0])
        return _keys_of(await exchange.fetch_json(session, who, "GET", roles + role, shape=_KeyDocument, headers=headers))


def sign(
    method: str, url: yarl.URL, headers: Mapping[str, str], body: bytes, keys: Keys, region: str, service: str, now: Instant
) -> Mapping[str, str]:
    """The headers to add. `headers` (names in lower case) are signed along with the host and the date."""
    stamp = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
    signed = {**headers, "host": _host(url), "x-amz-date": stamp}
    if keys.session_token:
        signed["x-amz-security-token"] = keys.session_token
    names = ";".join(sorted(signed))
    canonical = "\n".join(
        [
            method,
            urllib.parse.quote(url.raw_path or "/", safe="/~"),
            "&".join(sorted(_canonical_pair(key, value) for key, value in url.query.items())),
            *(f"{name}:{' '.join(signed[name].split())}" for name in sorted(signed)),
            "",
            names,
            hashlib.sha256(body).hexdigest(),
        ]
    )
    scope = f"{stamp[:8]}/{region}/{service}/aws4_request"
    to_sign = "\n".join([_ALGORITHM, stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    signature = hmac.new(_signing_key(keys.secret, scope), to_sign.encode(), hashlib.sha256).hexdigest()
    authorization = f"{_ALGORITHM} Credential={keys.key_id}/{scope}, SignedHeaders={names}, Signature={signature}"
    token = {"X-Amz-Security-Token": keys.session_token} if keys.session_token else {}
    return {"X-Amz-Date": stamp, "Authorization": authorization, **token}


def _signing_key(secret: str, scope: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key


def _canonical_pair(key: str, value: str) -> str:
    return f"{urllib.parse.quote(key, safe='~')}={urllib.parse.quote(value, safe='~')}"


def _host(url: yarl.URL) -> str:
    return url.raw_authority if not url.is_default_port() else (url.raw_host or "")


def _read_sts(body: bytes) -> Keys:
    try:
        root = ElementTree.fromstring(body)
        found = {name: root.findtext(f".//{{*}}{name}") for name in ("AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration")}
        document = msgspec.convert({**found, "Token": found["SessionToken"]}, _KeyDocument)
    except (ElementTree.ParseError, msgspec.ValidationError):
        raise errors.BadAnswer("AWS STS answered without the credentials that were asked for") from None
    return _keys_of(document)


def _keys_of(document: _KeyDocument) -> Keys:
    expires_at = units.read_instant(document.expiration)
    if expires_at is None:
        raise errors.BadAnswer("AWS handed out credentials without saying when they expire")
    return Keys(document.access_key_id, document.secret_access_key, document.token, expires_at)


def _check_pod_identity_address(address: str) -> None:
    url = yarl.URL(address)
    if url.scheme == "https" or url.host in _PLAIN_HOSTS or _is_loopback(url.host or ""):
        return
    raise errors.Misconfigured("AWS_CONTAINER_CREDENTIALS_FULL_URI is neither https nor an address of this machine or of its agent")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
