"""Who asks, by one of four ways, and whether the request is their own doing.

    email  nobody shows who they are, and this machine alone is answered: reading is open, and only an acknowledgement
           may be written, by a given address
    kube   a bearer token that the API server knows (TokenReview), or a session that was begun with one
    oidc   the same token, or a session that was begun at an OpenID Connect provider (login.py)
    proxy  headers that a trusted proxy set; from any other address they are not looked at

In: a request. Out: a Person, or Denied (401). What a person may do, rights.py finds out. In every mode: whom another
replica vouches for to this one while it leads, signed with the key that all share, is who it says (leader.py).
Invariant: to come from loopback proves nothing about who it is; it only bounds who can ask where nobody is known. What
a browser sends by itself (a cookie, an address behind a proxy) is believed for a write only with our CSRF token and
from our own origin.
"""

import hashlib
import ipaddress
import logging
from collections.abc import Callable, Sequence
from typing import TypeAlias
from urllib import parse

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fallow import names
from fallow.clients import errors, oidc
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import reviews
from fallow.doors.api import limits, sessions
from fallow.doors.api.refusals import Denied
from fallow.model import loopback
from fallow.model.units import MINUTE
from fallow.settings.serving import AuthMode
from fallow.stories.turn import Clock

log = logging.getLogger(__name__)

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

MOST_TRIES = 30  # a minute and address: of tokens that we do not know yet
_RESERVED = "system:"  # names that Kubernetes keeps to itself: no proxy and no provider may speak for those
EVERYBODY = "system:authenticated"
_CSRF_HEADER = "X-Fallow-CSRF"
VOUCHER_HEADER = "X-Fallow-Voucher"
_LONGEST_TOKEN = 16_384


class Person(msgspec.Struct, frozen=True):
    """Somebody who asks. `is_ambient`: a browser showed it by itself, so it may not know what it does."""

    name: str | None = None  # None: nobody in particular
    groups: tuple[str, ...] = ()
    is_verified: bool = False
    is_ambient: bool = True

    @property
    def by(self) -> str:
        """As it stands in marks and in the audit."""
        return f"{names.BY_API}{self.name}" if self.is_verified else f"{names.BY_EMAIL}{self.name or 'somebody'}"

    @property
    def identity(self) -> reviews.Identity:
        return reviews.Identity(self.name or "", self.groups)


class FrontGate:
    """Tells who stands before it. `api`: with its own pace, so that no cycle waits behind strangers' tokens."""

    def __init__(
        self, mode: AuthMode, api: kube.Api, seals: sessions.Seals, *, clock: Clock, monotonic: Clock,
        trusted: Sequence[Network] = (), public_url: str = "", provider: oidc.Provider | None = None,
        leads_as: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`provider`: in mode oidc. `leads_as`: our name on the Lease; None: we do not lead."""
        self.mode, self.seals = mode, seals
        self._provider, self._leads_as = provider, leads_as
        self._api, self._clock, self._monotonic = api, clock, monotonic
        self._trusted, self._public = tuple(trusted), public_url
        self._known: limits.Remembered[bytes, reviews.Identity] = limits.Remembered(MINUTE, most=1_000)
        self._tries = limits.Limiter(MOST_TRIES)
        self._ended: limits.Remembered[str, bool] = limits.Remembered(sessions.LASTS)  # sessions of who logged out
        self._used: limits.Remembered[str, bool] = limits.Remembered(2 * sessions.VOUCHER_LASTS)  # numbers of vouchers

    async def identify(self, request: Request) -> Person:
        """Raises Denied (401) where somebody must be known and is not."""
        person = await self._look(request)
        if person is None:
            await self._check_provider()
            ways = {"proxy": "come through the proxy that logs people in"}
            way = ways.get(self.mode, "log in at /login, or send a bearer token")
            raise Denied(401, "Unauthorized", f"nobody is known here by that: {way}")
        return person

    async def _check_provider(self) -> None:
        """Before somebody is sent there to log in."""
        if self._provider is None:
            return
        try:
            await self._provider.check(self._monotonic())
        except errors.ClientError as problem:
            raise Denied(503, "AuthUnavailable", f"nobody can log in now: {problem}", retry_after=10) from None

    async def look(self, request: Request) -> Person:
        """The same, where strangers may ask too."""
        return await self._look(request) or Person()

    async def _look(self, request: Request) -> Person | None:
        if VOUCHER_HEADER in request.headers:
            return await self._read_voucher(request)
        match self.mode:
            case "email":
                check_from_here(request)
                return Person()
            case "proxy":
                return self._read_proxy(request)
            case "kube" | "oidc":
                if (token := _read_bearer(request)) is not None:
                    who = await self.review(request, token)
                    return None if who is None else Person(who.name, who.groups, is_verified=True, is_ambient=False)
                return self._read_session(request)

    def _read_session(self, request: Request) -> Person | None:
        cookie = request.cookies.get(sessions.SESSION, "")
        session = self.seals.read(cookie, self._clock())
        if self._ended.get(cookie, self._monotonic()):
            return None
        return None if session is None else Person(session.name, session.groups, is_verified=True)

    def _read_proxy(self, request: Request) -> Person | None:
        users = request.headers.getlist("X-Forwarded-User")
        if not self._is_trusted(peer(request)) or len(users) != 1 or not is_name(users[0].strip()):
            return None
        given = ",".join(request.headers.getlist("X-Forwarded-Groups")).split(",")
        groups = tuple(group for each in given if is_name(group := each.strip()))
        return Person(users[0].strip(), (*groups, EVERYBODY), is_verified=True)

    # ---- one replica to another ----

    def vouch(self, request: Request, person: Person, body: bytes, holder: str) -> str:
        """For the replica that leads, and no other: who asks this, by what they showed here."""
        until, number = self._clock() + sessions.VOUCHER_LASTS, sessions.make_visit()
        voucher = sessions.Voucher(
            person.name, person.groups, person.is_verified, self.address(request), number, until
        )
        return self.seals.vouch(voucher, _describe(request, body, holder))

    async def _read_voucher(self, request: Request) -> Person | None:
        """Of a write, once: who listens on the way cannot have it done again, here or by way of another replica."""
        voucher: sessions.Voucher | None = getattr(request.state, "voucher", None)
        if voucher is None:
            if not (name := self._leads_as()):
                raise Denied(503, "NotLeading", "the replica that was asked leads no more; ask again", retry_after=5)
            asked, given = _describe(request, await request.body(), name), request.headers[VOUCHER_HEADER]
            voucher, now = self.seals.read_voucher(given, asked, self._clock()), self._monotonic()
            if voucher is None or self._used.get(voucher.number, now):
                return None
            if is_write(request):
                self._used.put(voucher.number, True, now)
            request.state.voucher = voucher
        return Person(voucher.name, voucher.groups, voucher.is_verified, is_ambient=False)

    async def review(self, request: Request, token: str) -> reviews.Identity | None:
        """Whose token it is, asked of the API server at most once a minute."""
        key, now = hashlib.sha256(token.encode()).digest(), self._monotonic()
        if (known := self._known.get(key, now)) is not None:
            return known
        where = limits.neighbourhood(self.address(request))
        if not self._tries.take(where, now):
            raise Denied(429, "TooManyTries", "too many tokens from this address; wait a minute", retry_after=60)
        try:
            found = await reviews.review_token(self._api, token)
        except errors.ClientError as problem:
            log.warning("no token can be reviewed: %s", problem)
            raise Denied(503, "AuthUnavailable", "the API server cannot say now whose token this is") from None
        if found is not None:
            self._known.put(key, found, now)
        return found

    # ---- where from ----

    def _is_trusted(self, address: str) -> bool:
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
        return any((mapped or found) in network for network in self._trusted)

    def address(self, request: Request) -> str:
        """Of who asks; behind a trusted proxy, the one that this proxy saw; of whom a replica vouches for, theirs."""
        if (voucher := getattr(request.state, "voucher", None)) is not None:
            return str(voucher.address)
        direct = peer(request)
        if not self._is_trusted(direct):
            return direct
        seen = ",".join(request.headers.getlist("X-Forwarded-For")).rpartition(",")[2].strip()
        return seen or direct

    def is_secure(self, request: Request) -> bool:
        by_proxy = self._is_trusted(peer(request)) and request.headers.get("X-Forwarded-Proto") == "https"
        return by_proxy or request.url.scheme == "https" or self._public.startswith("https://")

    # ---- is it their own doing? ----

    def check_own_doing(self, request: Request, person: Person, *, csrf: str | None = None) -> None:
        """Of a write. Another's page can make a browser send one, but not read our token, nor lie about its origin.
        `csrf`: where a form carries it."""
        if not person.is_ambient:
            return
        self.check_origin(request)
        visit = request.cookies.get(sessions.VISIT, "")
        given = request.headers.get(_CSRF_HEADER, "") if csrf is None else csrf
        if not self.seals.is_csrf(given, visit, person.name or ""):
            where = f"the header {_CSRF_HEADER} must carry the token of /api/v1/me"
            raise Denied(403, "CSRF", f"this page is out of date, or not ours: {where}")

    def check_origin(self, request: Request) -> None:
        origin = request.headers.get("Origin", "")
        host = _read_host(origin)
        ours = {request.headers.get("Host", ""), parse.urlsplit(self._public).netloc} - {""}
        if not host or host not in ours:
            raise Denied(403, "BadOrigin", "a write from a browser must come from a page of this very address")

    def set_cookie(self, request: Request, response: Response, name: str, value: str, lasts: int | None) -> None:
        secure = self.is_secure(request)
        response.set_cookie(name, value, max_age=lasts, httponly=True, samesite="strict", secure=secure, path="/")

    def set_ticket(self, request: Request, response: Response, value: str) -> None:
        """Lax: the browser that brings it back comes from the provider's page."""
        response.set_cookie(
            sessions.TICKET, value, max_age=int(sessions.TICKET_LASTS), httponly=True, samesite="lax",
            secure=self.is_secure(request), path="/oidc",
        )

    def drop_ticket(self, response: Response) -> None:
        response.delete_cookie(sessions.TICKET, path="/oidc", httponly=True, samesite="lax")

    def end_session(self, request: Request, response: Response) -> None:
        """Here, too: a cookie that was copied ends with it. One that is no session is not kept in mind, or strangers
        would crowd out those that were."""
        cookie = request.cookies.get(sessions.SESSION, "")
        if self.seals.read(cookie, self._clock()) is not None:
            self._ended.put(cookie, True, self._monotonic())
        response.delete_cookie(sessions.SESSION, path="/", httponly=True, samesite="strict")


def _describe(request: Request, body: bytes, holder: str) -> str:
    """All of a request that says what is asked for, and of whom."""
    return f"{holder} {request.method} {raw_path(request)} {hashlib.sha256(body).hexdigest()}"


def raw_path(request: Request) -> str:
    """With its question, as it came over the wire."""
    path, question = request.scope["raw_path"].decode("latin-1"), request.scope["query_string"].decode("latin-1")
    return f"{path}?{question}" if question else path


def is_write(request: Request) -> bool:
    return request.method not in ("GET", "HEAD")


def peer(request: Request) -> str:
    """The other end of the wire, whatever headers say."""
    return request.client.host if request.client else ""


def check_from_here(request: Request) -> None:
    """Raises Denied but for this very machine, and under its own name, so that no web page of somebody else reads
    along."""
    if not (loopback.is_here(peer(request)) and loopback.is_here(request.url.hostname or "")):
        why = "without logging in this answers its own machine only, at localhost; use kubectl port-forward"
        raise Denied(403, "Forbidden", why)


def _read_host(origin: str) -> str:
    """"" where it names none."""
    try:
        return parse.urlsplit(origin).netloc
    except ValueError:
        return ""


def _read_bearer(request: Request) -> str | None:
    """The API server, when it passes a request on, keeps Authorization to itself."""
    given = request.headers.get("Authorization") or request.headers.get(names.RELAYED_AUTHORIZATION, "")
    scheme, _, token = given.partition(" ")
    token = token.strip()
    return token if scheme.lower() == "bearer" and token.isascii() and len(token) <= _LONGEST_TOKEN else None


def is_name(text: str) -> bool:
    return 0 < len(text) <= 256 and text.isprintable() and not text.startswith(_RESERVED)
