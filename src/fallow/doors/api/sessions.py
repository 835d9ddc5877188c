"""Cookies that we signed: who has logged in, and which browser it is (for CSRF tokens).

In: a key, a Session, now. Out: the text of a cookie; the Session again, if it is ours, whole and not over.
Invariant: nothing is believed before its signature was compared, in constant time. A cookie tells its reader no secret.
"""

import base64
import binascii
import hashlib
import hmac
import secrets

import msgspec

from fallow.model.secret import Secret
from fallow.model.units import HOUR, Instant, Seconds

SESSION, VISIT = "fallow_session", "fallow_visit"
LASTS: Seconds = 8 * HOUR
LEAST_KEY = 32  # bytes
LONGEST = 3_800  # characters of a cookie: browsers keep 4,096 with its name and attributes


class Session(msgspec.Struct, frozen=True):
    """Somebody who has shown who they are, until when we believe it."""

    name: str
    groups: tuple[str, ...]
    until: Instant


_DECODER = msgspec.json.Decoder(Session)


class Seals:
    """All that is signed with one key, each for its own purpose."""

    def __init__(self, key: Secret[bytes]) -> None:
        self._key = key

    def write(self, session: Session) -> str:
        body = base64.urlsafe_b64encode(msgspec.json.encode(session)).rstrip(b"=").decode()
        return f"{body}.{self._sign('session', body)}"

    def read(self, cookie: str, now: Instant) -> Session | None:
        body, _, signature = cookie.partition(".")
        if len(cookie) > LONGEST or not _same(signature, self._sign("session", body)):
            return None
        try:
            session = _DECODER.decode(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        except (binascii.Error, ValueError, msgspec.DecodeError):
            return None
        return session if now < session.until else None

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
