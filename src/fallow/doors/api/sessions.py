"""What we signed: who has logged in, who is on the way to, which browser it is (for CSRF tokens), and for whom one
replica vouches to another.

In: a key, a Session, now. Out: the text of a cookie or header; the Session again, if it is ours, whole and not over.
Invariant: nothing is believed before its signature was compared, in constant time. A cookie tells its reader no secret.
"""

import base64
import binascii
import hashlib
import hmac
import secrets
from typing import TypeVar

import msgspec

from fallow.model.secret import Secret
from fallow.model.units import HOUR, MINUTE, Instant, Seconds

SESSION, VISIT, TICKET = "fallow_session", "fallow_visit", "fallow_login"
LASTS: Seconds = 8 * HOUR
TICKET_LASTS: Seconds = 10 * MINUTE
LEAST_KEY = 32  # bytes
VOUCHER_LASTS: Seconds = MINUTE  # clocks of two nodes may differ by that
LONGEST = 3_800  # characters of a cookie: browsers keep 4,096 with its name and attributes
_LONGEST_VOUCHER = 32_768


class Session(msgspec.Struct, frozen=True):
    """Somebody who has shown who they are, until when we believe it."""

    name: str
    groups: tuple[str, ...]
    until: Instant


class LoginTicket(msgspec.Struct, frozen=True):
    """Somebody who went to a provider to log in, and where they want to be when they come back."""

    number: str
    then: str
    until: Instant


class Voucher(msgspec.Struct, frozen=True):
    """What the replica that was asked found out: who it is, and that the request is their own doing. `address`: where
    they asked from."""

    name: str | None
    groups: tuple[str, ...]
    is_verified: bool
    address: str
    number: str
    until: Instant


S = TypeVar("S", Session, LoginTicket, Voucher)


class Seals:
    """All that is signed with one key, each for its own purpose."""

    def __init__(self, key: Secret[bytes]) -> None:
        self._key = key

    def write(self, session: Session) -> str:
        return self._write("session", session)

    def read(self, cookie: str, now: Instant) -> Session | None:
        return self._read("session", cookie, Session, now)

    def write_ticket(self, ticket: LoginTicket) -> str:
        return self._write("login", ticket)

    def read_ticket(self, cookie: str, now: Instant) -> LoginTicket | None:
        return self._read("login", cookie, LoginTicket, now)

    def vouch(self, voucher: Voucher, asked: str) -> str:
        """`asked`: all of the request; it holds for no other."""
        return self._write(f"voucher|{asked}", voucher)

    def read_voucher(self, text: str, asked: str, now: Instant) -> Voucher | None:
        return self._read(f"voucher|{asked}", text, Voucher, now, _LONGEST_VOUCHER)

    def _write(self, purpose: str, content: Session | LoginTicket | Voucher) -> str:
        body = base64.urlsafe_b64encode(msgspec.json.encode(content)).rstrip(b"=").decode()
        return f"{body}.{self._sign(purpose, body)}"

    def _read(self, purpose: str, cookie: str, kind: type[S], now: Instant, longest: int = LONGEST) -> S | None:
        body, _, signature = cookie.partition(".")
        if len(cookie) > longest or not _same(signature, self._sign(purpose, body)):
            return None
        try:
            found = msgspec.json.decode(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)), type=kind)
        except (binascii.Error, ValueError, msgspec.DecodeError):
            return None
        return found if now < found.until else None

    def derive(self, purpose: str, number: str) -> str:
        """What only we can know of a login: 64 letters that give nothing else away."""
        return self._sign(f"login-{purpose}", number)

    def is_derived(self, given: str, purpose: str, number: str) -> bool:
        return _same(given, self.derive(purpose, number))

    def csrf(self, visit: str, name: str) -> str:
        """What a page of ours was told, and another's cannot know: of this browser, and of who is logged in there."""
        return self._sign("csrf", f"{visit}|{name}")

    def is_csrf(self, given: str, visit: str, name: str) -> bool:
        return bool(visit) and _same(given, self.csrf(visit, name))

    def _sign(self, purpose: str, text: str) -> str:
        return hmac.new(self._key.reveal(), f"{purpose}|{text}".encode(), hashlib.sha256).hexdigest()


def _same(given: str, right: str) -> bool:
    return hmac.compare_digest(given.encode(), right.encode())


def make_key() -> Secret[bytes]:
    return Secret(secrets.token_bytes(LEAST_KEY))


def make_visit() -> str:
    return secrets.token_urlsafe(24)
