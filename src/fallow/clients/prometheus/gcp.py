"""Google Managed Prometheus: an access token from the credentials file, else from the metadata server.

In: GOOGLE_APPLICATION_CREDENTIALS (a service account key, or what `gcloud auth application-default login` leaves) and the addresses of
those who hand out tokens. Out: the Authorization header. A token is fetched again five minutes before it expires, and after a 401.
"""

import asyncio
import base64
import hashlib
from collections.abc import Mapping

import msgspec

from fallow.clients import errors
from fallow.clients.prometheus import exchange
from fallow.model.units import Instant, Seconds

_SCOPE = "https://www.googleapis.com/auth/monitoring.read"
_LIFETIME: Seconds = 3600.0
_EARLY: Seconds = 300.0
_SHA256_PREFIX = bytes.fromhex("3031300d060960864801650304020105000420")  # DigestInfo of SHA-256, RFC 8017 section 9.2


class Places(msgspec.Struct, frozen=True):
    """Base addresses; `token` "" = the one that the credentials file names."""

    metadata: str = "http://metadata.google.internal"
    token: str = ""


class _Token(msgspec.Struct):
    access_token: str
    expires_in: float


class _File(msgspec.Struct):
    type: str = ""
    client_email: str = ""
    private_key: str = ""
    private_key_id: str = ""
    token_uri: str = "https://oauth2.googleapis.com/token"
    client_id: str = ""
    client_secret: str = ""
    refresh_token: str = ""

    def __repr__(self) -> str:
        return f"_File({self.type})"


class Google:
    def __init__(self, environment: Mapping[str, str], places: Places) -> None:
        self._path = environment.get("GOOGLE_APPLICATION_CREDENTIALS", "")
        self._places = places
        self._token = ""
        self._expires_at: Instant = 0.0
        self._lock = asyncio.Lock()

    async def headers(self, outgoing: exchange.Outgoing) -> Mapping[str, str]:
        async with self._lock:
            if not self._token or self._expires_at - _EARLY <= outgoing.now:
                token = await self._fetch(outgoing)
                self._token, self._expires_at = token.access_token, outgoing.now + token.expires_in
            return exchange.bearer(self._token)

    def forget(self) -> None:
        self._token = ""

    async def _fetch(self, outgoing: exchange.Outgoing) -> _Token:
        if self._path:
            return await self._from_file(outgoing)
        url = f"{self._places.metadata}/computeMetadata/v1/instance/service-accounts/default/token"
        headers = {"Metadata-Flavor": "Google"}
        return await exchange.fetch_json(outgoing.session, "Google metadata server", "GET", url, shape=_Token, headers=headers)

    async def _from_file(self, outgoing: exchange.Outgoing) -> _Token:
        try:
            file = msgspec.json.decode(await exchange.SecretFile(self._path).read(outgoing.now), type=_File)
        except msgspec.MsgspecError:
            raise errors.Misconfigured(f"the Google credentials file {self._path} cannot be read as JSON") from None
        url = self._places.token or file.token_uri
        form = _grant(file, self._path, outgoing.now)
        return await exchange.fetch_json(outgoing.session, "Google's token endpoint", "POST", url, shape=_Token, form=form)


def _grant(file: _File, path: str, now: Instant) -> Mapping[str, str]:
    if file.type == "service_account":
        return {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "assertion": _assertion(file, path, now)}
    if file.type == "authorized_user":
        names = {"client_id": file.client_id, "client_secret": file.client_secret, "refresh_token": file.refresh_token}
        return {"grant_type": "refresh_token", **names}
    raise errors.Misconfigured(f"the Google credentials file {path} is of type {file.type!r}, not service_account or authorized_user")


def _assertion(file: _File, path: str, now: Instant) -> str:
    claims = {"iss": file.client_email, "scope": _SCOPE, "aud": file.token_uri, "iat": int(now), "exp": int(now + _LIFETIME)}
    header = {"alg": "RS256", "typ": "JWT", "kid": file.private_key_id}
    text = f"{_base64url(msgspec.json.encode(header))}.{_base64url(msgspec.json.encode(claims))}"
    try:
        modulus, exponent = _read_private_key(file.private_key)
    except (ValueError, IndexError):
        raise errors.Misconfigured(f"the private key in the Google credentials file {path} is not an RSA key in PKCS #8") from None
    return f"{text}.{_base64url(_sign(text.encode(), modulus, exponent))}"


def _sign(text: bytes, modulus: int, exponent: int) -> bytes:
    """RSASSA-PKCS1-v1_5 with SHA-256. Once an hour, for a key on our own disk: no reason to ship a crypto library."""
    size = (modulus.bit_length() + 7) // 8
    digest = _SHA256_PREFIX + hashlib.sha256(text).digest()
    padded = b"\x00\x01" + b"\xff" * (size - len(digest) - 3) + b"\x00" + digest
    return pow(int.from_bytes(padded), exponent, modulus).to_bytes(size)


def _read_private_key(pem: str) -> tuple[int, int]:
    """Modulus and private exponent out of PKCS #8: SEQUENCE { version, algorithm, OCTET STRING { SEQUENCE { version, n, e, d, ...}}}."""
    lines = [line for line in pem.splitlines() if line and not line.startswith("-----")]
    outer = _elements(_elements(base64.b64decode("".join(lines), validate=True))[0])
    key = _elements(_elements(outer[2])[0])
    return int.from_bytes(key[1]), int.from_bytes(key[3])


def _elements(der: bytes) -> list[bytes]:
    """The contents of the DER elements that stand one after another."""
    found, at = [], 0
    while at < len(der):
        length, at = der[at + 1], at + 2
        if length & 0x80:
            width = length & 0x7F
            length, at = int.from_bytes(der[at : at + width]), at + width
        found.append(der[at : at + length])
        at += length
    return found


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
