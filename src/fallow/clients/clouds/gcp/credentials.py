"""Google Managed Prometheus: an access token from the credentials file, else from the metadata server.

In: GOOGLE_APPLICATION_CREDENTIALS (a service account key, or what `gcloud auth application-default login` leaves) and the addresses of
those who hand out tokens. Out: the Authorization header. A token is fetched again five minutes before it expires, and after a 401.
"""

import asyncio
import base64
from collections.abc import Mapping

import msgspec

from fallow.clients import errors
from fallow.clients.prometheus import exchange
from fallow.model.units import Instant, Seconds

_SCOPE = "https://www.googleapis.com/auth/monitoring.read"
_LIFETIME: Seconds = 3600.0
_EARLY: Seconds = 300.0


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
    return f"{text}.{_base64url(_sign(text.encode(), file, path))}"


def _sign(text: bytes, file: _File, path: str) -> bytes:
    """RS256. The library is imported here: only who uses such a key pays for it."""
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import padding, rsa

    try:
        key = serialization.load_pem_private_key(file.private_key.encode(), password=None)
    except ValueError:
        key = None
    if not isinstance(key, rsa.RSAPrivateKey):
        raise errors.Misconfigured(f"the private key in the Google credentials file {path} is not an RSA key in PEM")
    return key.sign(text, padding.PKCS1v15(), hashes.SHA256())


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
