"""An OpenID Connect provider: where people log in, what a code stands for, whose ID token it is.

In: the issuer's address, our client's id and secret, a code that a browser brought. Out: the address to send a browser
to; the claims of an ID token that holds. What the provider says of itself (its endpoints, its keys) is remembered for
ten minutes; its keys are asked for anew when a token is signed by one that we do not know, at most once a second.
Invariant: a claim is believed only from a token with the signature of a key of this very issuer, by an asymmetric
algorithm, made for us, for this login, and not over. No code, token or secret stands in an error or a log.
"""

import hmac
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar
from urllib import parse

import msgspec

from fallow.clients import errors, faults, proxies, retry, secret, tls
from fallow.clients.web import aiohttp
from fallow.model import loopback
from fallow.model.login import OidcClient
from fallow.model.units import MINUTE, Instant, Seconds

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

T = TypeVar("T")

TIMEOUT: Seconds = 10.0
SKEW: Final = 60  # seconds that our clock and the provider's may differ
_REMEMBERED: Seconds = 10 * MINUTE
_KEYS_AT_MOST_EVERY: Seconds = 1.0
_FAILURE_HOLDS: Seconds = 5.0  # who comes within it is told the same, so that nobody floods a provider that is down
_LONGEST_ANSWER: Final = 512 * 1024
_WELL_KNOWN: Final = "/.well-known/openid-configuration"
# Signatures that only the provider can make: none, and those by a shared secret, are not among them.
ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA",
)
_PATIENCE = retry.Patience(tries=2, first_wait=0.2)


class _Described(msgspec.Struct, frozen=True):
    """What the provider says of itself, of which we use this."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


class _Tokens(msgspec.Struct, frozen=True):
    id_token: str


class Provider:
    """`environment`: for proxies."""

    def __init__(self, client: OidcClient, environment: Mapping[str, str]) -> None:
        self.client = client
        self._environment = environment
        self._secret_file = secret.SecretFile(client.secret_file) if client.secret_file else None
        self._session: aiohttp.ClientSession | None = None
        self._described: tuple[Instant, _Described] | None = None
        self._keys: tuple[Instant, KeySet] | None = None
        self._failure: tuple[Instant, errors.ClientError] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *why: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def check(self, ticks: Instant) -> None:
        """Raises ClientError where the provider cannot be asked, or does not say what it must."""
        await self._describe(ticks)

    async def begin(self, *, redirect: str, state: str, nonce: str, challenge: str, ticks: Instant) -> str:
        """The address at which somebody logs in and comes back from to `redirect`."""
        query = {
            "response_type": "code", "client_id": self.client.client_id, "redirect_uri": redirect,
            "scope": " ".join(dict.fromkeys(("openid", *self.client.scopes))), "state": state, "nonce": nonce,
            "code_challenge": challenge, "code_challenge_method": "S256",
        }
        endpoint = (await self._describe(ticks)).authorization_endpoint
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{parse.urlencode(query)}"

    async def finish(
        self, code: str, *, redirect: str, verifier: str, nonce: str, now: Instant, ticks: Instant
    ) -> Mapping[str, Any]:
        """Whose login it was: the claims. `now`: of the clock on the wall, `ticks`: of one that only goes forward.
        Raises Rejected where the provider does not take the code, BadAnswer where its token does not hold."""
        described = await self._describe(ticks)
        form = {
            "grant_type": "authorization_code", "code": code, "redirect_uri": redirect, "code_verifier": verifier,
            "client_id": self.client.client_id,
        }
        headers = {}
        if (shared := await self._read_secret(now)) is not None:
            if _is_by_header(described):
                headers["Authorization"] = _basic(self.client.client_id, shared)
                del form["client_id"]
            else:
                form["client_secret"] = shared
        answer = await self._ask("POST", described.token_endpoint, headers=headers, form=form)
        return await self._verify(_read(answer, _Tokens, "token").id_token, nonce, now, ticks)

    async def _read_secret(self, now: Instant) -> str | None:
        if self._secret_file is not None:
            return await self._secret_file.read(now)
        return self.client.secret.reveal() if self.client.secret else None

    # ---- what it says of itself ----

    async def _describe(self, ticks: Instant) -> _Described:
        if self._described is not None and ticks - self._described[0] < _REMEMBERED:
            return self._described[1]
        if self._failure is not None and ticks - self._failure[0] < _FAILURE_HOLDS:
            raise self._failure[1]
        try:
            found = await self._discover()
        except errors.ClientError as problem:
            self._failure = ticks, problem
            raise
        self._described, self._failure = (ticks, found), None
        return found

    async def _discover(self) -> _Described:
        answer = await self._ask("GET", self.client.issuer.rstrip("/") + _WELL_KNOWN)
        found = _read(answer, _Described, "description of itself")
        if found.issuer != self.client.issuer:
            raise errors.BadAnswer(f"who answers at {self.client.issuer} calls itself {found.issuer[:200]!r}")
        for address in (found.authorization_endpoint, found.token_endpoint, found.jwks_uri):
            check_address(address)
        return found

    async def _find_keys(self, ticks: Instant, *, anew: bool = False) -> "KeySet":
        """`anew`: those that are remembered lack one."""
        from joserfc import errors as jose
        from joserfc import jwk  # here and not above: a tenth of a second that only who logs in so waits for

        oldest = _KEYS_AT_MOST_EVERY if anew else _REMEMBERED
        if self._keys is not None and ticks - self._keys[0] < oldest:
            return self._keys[1]
        answer = await self._ask("GET", (await self._describe(ticks)).jwks_uri)
        try:
            found = jwk.KeySet.import_key_set(msgspec.json.decode(answer))
        except (jose.JoseError, msgspec.DecodeError, ValueError, TypeError, KeyError, AttributeError):
            raise errors.BadAnswer("the keys of the login provider cannot be read") from None
        self._keys = ticks, found
        return found

    # ---- whose token it is ----

    async def _verify(self, token: str, nonce: str, now: Instant, ticks: Instant) -> Mapping[str, Any]:
        from joserfc import errors as jose
        from joserfc import jwt

        try:
            try:
                found = jwt.decode(token, await self._find_keys(ticks), algorithms=ALGORITHMS)
            except (jose.InvalidKeyIdError, jose.BadSignatureError):  # it has changed its keys since we looked
                found = jwt.decode(token, await self._find_keys(ticks, anew=True), algorithms=ALGORITHMS)
            jwt.JWTClaimsRegistry(
                now=int(now), leeway=SKEW, iss={"essential": True, "value": self.client.issuer},
                aud={"essential": True, "value": self.client.client_id}, sub={"essential": True},
                exp={"essential": True}, iat={"essential": True}, nonce={"essential": True},
            ).validate(found.claims)
        except (jose.JoseError, ValueError, TypeError) as problem:  # the library's words may hold what is in the token
            raise errors.BadAnswer(f"the provider's ID token does not hold: {type(problem).__name__}") from None
        self._check_bound(found.claims, nonce)
        return found.claims

    def _check_bound(self, claims: Mapping[str, Any], nonce: str) -> None:
        """To this login, and to us where it is also for others."""
        if not hmac.compare_digest(str(claims["nonce"]).encode(), nonce.encode()):
            raise errors.BadAnswer("the provider's ID token does not hold: it is of another login")
        several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
        if claims.get("azp", None if several else self.client.client_id) != self.client.client_id:
            raise errors.BadAnswer("the provider's ID token does not hold: it was made for another client")

    # ---- the wire ----

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            trusted = tls.from_files(tls.TlsFiles(ca_file=self.client.ca_file), "the login provider")
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=20, ssl=trusted), cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(TIMEOUT), headers={"Accept": "application/json"},
            )
        return self._session

    async def _ask(
        self, method: str, address: str, *, headers: Mapping[str, str] | None = None,
        form: Mapping[str, str] | None = None,
    ) -> bytes:
        """A code is good for once: what brings one is not sent again."""
        return await retry.persist(
            lambda: self._ask_once(method, address, headers or {}, form), _PATIENCE, is_read=method == "GET"
        )

    async def _ask_once(
        self, method: str, address: str, headers: Mapping[str, str], form: Mapping[str, str] | None
    ) -> bytes:
        host = parse.urlsplit(address).netloc.rpartition("@")[2]
        proxy = proxies.find_proxy(address, self._environment) or None
        try:
            async with self._open().request(
                method, address, headers=headers, data=form, proxy=proxy, allow_redirects=False
            ) as got:
                body = await got.content.read(_LONGEST_ANSWER + 1)
                while len(body) <= _LONGEST_ANSWER and (more := await got.content.read(_LONGEST_ANSWER)):
                    body += more
        except TimeoutError:
            raise errors.Unreachable(f"the login provider {host} did not answer within {TIMEOUT:.0f} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as problem:
            because = faults.name_fault(problem)
            raise errors.Unreachable(f"the login provider {host} cannot be reached: {because}") from None
        if got.status != 200:
            raise errors.rejection(got.status, f"the login provider {host} answered {got.status}{_read_error(body)}")
        if len(body) > _LONGEST_ANSWER:
            raise errors.BadAnswer(f"the login provider {host} says more than {_LONGEST_ANSWER // 1024} KiB")
        return body


def check_address(address: str) -> None:
    """Raises BadAnswer for one that codes and secrets must not go to: only https, but on this machine."""
    try:
        parts = parse.urlsplit(address)
        host, scheme = parts.hostname or "", parts.scheme
        is_safe = bool(host) and (scheme == "https" or (scheme == "http" and loopback.is_here(host)))
    except ValueError:
        is_safe = False
    if not is_safe:
        raise errors.BadAnswer("the login provider names an address that is not https")


def _is_by_header(described: _Described) -> bool:
    methods = described.token_endpoint_auth_methods_supported
    return "client_secret_basic" in methods or "client_secret_post" not in methods


def _basic(name: str, password: str) -> str:
    """As RFC 6749 has it: both are encoded as in a form before."""
    return aiohttp.encode_basic_auth(parse.quote_plus(name), parse.quote_plus(password))


def _read(answer: bytes, kind: type[T], what: str) -> T:
    try:
        return msgspec.json.decode(answer, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise errors.BadAnswer(f"the login provider's {what} cannot be read") from None


def _read_error(body: bytes) -> str:
    """Its one word, such as invalid_grant; its sentences may repeat what was sent."""
    try:
        word = msgspec.json.decode(body, type=dict[str, Any]).get("error", "")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    return f": {word}" if isinstance(word, str) and word.isidentifier() and len(word) <= 60 else ""
