"""Access tokens of Google Cloud: by the credentials file, else from the metadata server.

In: GOOGLE_APPLICATION_CREDENTIALS (a service account key, or what `gcloud auth application-default login` leaves), the
scope that is to be used, the addresses of those who hand out tokens. Out: a Signer.
"""

import base64
from collections.abc import Mapping

import msgspec

from fallow.clients import errors, secret, signing
from fallow.clients.clouds import exchange
from fallow.model.secret import Secret
from fallow.model.units import Instant, Seconds

_LIFETIME: Seconds = 3600.0


class GoogleAddresses(msgspec.Struct, frozen=True):
    """Base addresses; `token` "" = the one that the credentials file names."""

    metadata: str = "http://metadata.google.internal"
    token: str = ""


_USUAL = GoogleAddresses()


class _GoogleFile(msgspec.Struct, kw_only=True):
    type: str = ""
    client_email: str = ""
    private_key: Secret[str] = Secret("")
    private_key_id: str = ""
    token_uri: str = "https://oauth2.googleapis.com/token"
    client_id: str = ""
    client_secret: Secret[str] = Secret("")
    refresh_token: Secret[str] = Secret("")


def make_signer(environment: Mapping[str, str], scope: str, addresses: GoogleAddresses = _USUAL) -> signing.Signer:
    path = environment.get("GOOGLE_APPLICATION_CREDENTIALS", "")

    async def fetch(outgoing: signing.Outgoing) -> exchange.AccessToken:
        if path:
            file = await _read(path, outgoing.now)
            url, form = addresses.token or file.token_uri, _grant(file, path, scope, outgoing.now)
            request = exchange.CloudRequest("Google's token endpoint", "POST", url, form=form)
        else:
            url = f"{addresses.metadata}/computeMetadata/v1/instance/service-accounts/default/token"
            request = exchange.CloudRequest("Google metadata server", "GET", url, {"Metadata-Flavor": "Google"})
        return await exchange.fetch_json(outgoing.session, request, exchange.AccessToken)

    return exchange.TokenSigner(fetch)


async def _read(path: str, now: Instant) -> _GoogleFile:
    text = await secret.SecretFile(path).read(now)
    try:
        return msgspec.json.decode(text, type=_GoogleFile, dec_hook=secret.hide)
    except msgspec.MsgspecError:
        raise errors.Misconfigured(f"the Google credentials file {path} cannot be read as JSON") from None


def _grant(file: _GoogleFile, path: str, scope: str, now: Instant) -> Mapping[str, str]:
    if file.type == "service_account":
        assertion = _assertion(file, path, scope, now)
        return {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "assertion": assertion}
    if file.type == "authorized_user":
        return {
            "grant_type": "refresh_token", "client_id": file.client_id, "client_secret": file.client_secret.reveal(),
            "refresh_token": file.refresh_token.reveal(),
        }
    is_of = f"is of type {file.type!r}, not service_account or authorized_user"
    raise errors.Misconfigured(f"the Google credentials file {path} {is_of}")


def _assertion(file: _GoogleFile, path: str, scope: str, now: Instant) -> str:
    lives = {"iat": int(now), "exp": int(now + _LIFETIME)}
    claims = {"iss": file.client_email, "scope": scope, "aud": file.token_uri, **lives}
    header = {"alg": "RS256", "typ": "JWT", "kid": file.private_key_id}
    text = f"{_base64url(msgspec.json.encode(header))}.{_base64url(msgspec.json.encode(claims))}"
    return f"{text}.{_base64url(_sign(text.encode(), file, path))}"


def _sign(text: bytes, file: _GoogleFile, path: str) -> bytes:
    """RS256. The library is imported here: only who uses such a key pays for it."""
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import padding, rsa

    try:
        key = serialization.load_pem_private_key(file.private_key.reveal().encode(), password=None)
    except ValueError:
        key = None
    if not isinstance(key, rsa.RSAPrivateKey):
        raise errors.Misconfigured(f"the private key in the Google credentials file {path} is not an RSA key in PEM")
    return key.sign(text, padding.PKCS1v15(), hashes.SHA256())


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
