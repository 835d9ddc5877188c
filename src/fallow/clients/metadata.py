"""What a cloud tells a machine about itself: is it taken back, and when? AWS, Google Cloud and Azure, each in its way.

In: the address of its metadata. Out: TakenBack, or None: it is not; whatever else is an error of clients/errors.py.
Invariant: only an answer in the cloud's own form, that speaks of this machine and of a time near now, is a notice. A
404 is "none" where the cloud says so (AWS), and nowhere else.
"""

import email.utils
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol
from urllib import parse

from fallow.clients import errors, plain
from fallow.model import units
from fallow.model.spot_watch import TakenBack
from fallow.model.units import HOUR, Instant, Seconds

_TIMEOUT: Final[Seconds] = 4.0
_TOKEN_LIVES: Final = 21600  # seconds, the most that AWS gives
_GOOGLE_LEAD: Final[Seconds] = 30.0
_NEAR: Final[Seconds] = HOUR
_GOOGLE: Final = {"Metadata-Flavor": "Google"}
_AZURE: Final = {"Metadata": "true"}


class Metadata(Protocol):
    """`look` may take as long as `wait`, where the cloud can tell at the very moment."""

    def is_here(self) -> bool: ...

    def look(self, now: Instant, wait: Seconds) -> TakenBack | None: ...


class AwsMetadata:
    who = "AWS instance metadata"

    def __init__(self, base: str) -> None:
        self._base, self._token = base, ""

    def is_here(self) -> bool:
        return bool(self._find_token())

    def look(self, now: Instant, wait: Seconds) -> TakenBack | None:
        action = self._read("spot/instance-action")
        if action is not None:
            return TakenBack(_check_near(self.who, units.read_instant(_read_text(self.who, action, "time")), now))
        advice = self._read("events/recommendations/rebalance")
        if advice is None:
            return None
        _check_time(self.who, units.read_instant(_read_text(self.who, advice, "noticeTime")))
        return TakenBack(None)

    def _find_token(self) -> str:
        lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_LIVES)}
        answer = plain.ask(self.who, "PUT", f"{self._base}/latest/api/token", headers=lifetime, timeout=_TIMEOUT)
        if answer.status != 200:
            raise errors.rejection(answer.status, f"{self.who} answered {answer.status} to who asks for a token")
        self._token = _decode(self.who, answer.body).strip()
        if not (self._token.isascii() and self._token.isprintable() and 0 < len(self._token) < 1000):
            self._token = ""
            raise errors.BadAnswer(f"{self.who} gave a token that is none")
        return self._token

    def _read(self, what: str) -> Any:
        """None: 404, there is none. A token that is over is renewed once."""
        url = f"{self._base}/latest/meta-data/{what}"
        for is_last in (False, True):
            headers = {"X-aws-ec2-metadata-token": self._token or self._find_token()}
            answer = plain.ask(self.who, "GET", url, headers=headers, timeout=_TIMEOUT)
            if answer.status == 404:
                return None
            if answer.status == 200:
                return _parse(self.who, answer.body)
            self._token = ""
            if answer.status != 401 or is_last:
                raise errors.rejection(answer.status, f"{self.who} answered {answer.status}")
        raise AssertionError("the last try either returns or raises")


class GoogleMetadata:
    who = "Google metadata server"

    def __init__(self, base: str) -> None:
        self._base = base

    def is_here(self) -> bool:
        return self._ask("id", {}, _TIMEOUT) != ""

    def look(self, now: Instant, wait: Seconds) -> TakenBack | None:
        """It answers when the value changes, or after `wait` with what it is."""
        asked = {"wait_for_change": "true", "timeout_sec": str(max(1, int(wait)))}
        match self._ask("preempted", asked, wait + _TIMEOUT):
            case "TRUE":
                return TakenBack(now + _GOOGLE_LEAD)
            case "FALSE":
                return None
        raise errors.BadAnswer(f"{self.who} says neither TRUE nor FALSE")

    def _ask(self, what: str, asked: Mapping[str, str], timeout: Seconds) -> str:
        query = f"?{parse.urlencode(asked)}" if asked else ""
        url = f"{self._base}/computeMetadata/v1/instance/{what}{query}"
        answer = plain.ask(self.who, "GET", url, headers=_GOOGLE, timeout=timeout)
        if answer.status != 200:
            raise errors.rejection(answer.status, f"{self.who} answered {answer.status}")
        if answer.headers.get("metadata-flavor") != "Google":
            raise errors.BadAnswer(f"{self.who} is somebody else: its answer lacks Metadata-Flavor")
        return _decode(self.who, answer.body).strip()


class AzureMetadata:
    who = "Azure instance metadata"

    def __init__(self, base: str) -> None:
        self._base, self._name = base, ""

    def is_here(self) -> bool:
        return bool(self._find_name())

    def look(self, now: Instant, wait: Seconds) -> TakenBack | None:
        name = self._find_name()
        page = _parse(self.who, self._ask("scheduledevents?api-version=2020-07-01"))
        events = page.get("Events")
        if not isinstance(events, list) or not all(isinstance(each, dict) for each in events):
            raise errors.BadAnswer(f"{self.who} gave an answer without Events")
        ends = [self._read_end(each, now) for each in events if _means(each, name)]
        return TakenBack(min(ends)) if ends else None

    def _read_end(self, event: Mapping[str, Any], now: Instant) -> Instant:
        if event.get("EventStatus") == "Started":
            return now
        try:
            ends_at = email.utils.parsedate_to_datetime(_read_text(self.who, event, "NotBefore")).timestamp()
        except (ValueError, OverflowError, TypeError):
            raise errors.BadAnswer(f"{self.who} says no time at which this machine ends") from None
        return _check_near(self.who, ends_at, now)

    def _find_name(self) -> str:
        if not self._name:
            page = _decode(self.who, self._ask("instance/compute/name?api-version=2021-02-01&format=text")).strip()
            if not (page.isprintable() and 0 < len(page) < 200 and not page.startswith(("<", "{"))):
                raise errors.BadAnswer(f"{self.who} does not say what this machine is called")
            self._name = page
        return self._name

    def _ask(self, what: str) -> bytes:
        answer = plain.ask(self.who, "GET", f"{self._base}/metadata/{what}", headers=_AZURE, timeout=_TIMEOUT)
        if answer.status != 200:
            raise errors.rejection(answer.status, f"{self.who} answered {answer.status}")
        return answer.body


CLOUDS: Final[Mapping[str, Callable[[str], Metadata]]] = {
    "aws": AwsMetadata, "gcp": GoogleMetadata, "azure": AzureMetadata,
}


def _means(event: Mapping[str, Any], name: str) -> bool:
    resources = event.get("Resources")
    return event.get("EventType") == "Preempt" and isinstance(resources, list) and name in resources


def _parse(who: str, body: bytes) -> dict[str, Any]:
    try:
        read = json.loads(body)
    except (ValueError, RecursionError):
        read = None
    if not isinstance(read, dict):
        raise errors.BadAnswer(f"{who} gave an answer that cannot be read")
    return read


def _decode(who: str, body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise errors.BadAnswer(f"{who} gave an answer that cannot be read") from None


def _read_text(who: str, said: Mapping[str, Any], key: str) -> str:
    text = said.get(key)
    if not isinstance(text, str):
        raise errors.BadAnswer(f"{who} gave an answer without {key}")
    return text


def _check_time(who: str, at: Instant | None) -> Instant:
    if at is None:
        raise errors.BadAnswer(f"{who} says a time that cannot be read")
    return at


def _check_near(who: str, at: Instant | None, now: Instant) -> Instant:
    """Notices are of the coming minutes: another time is a mistake, theirs or of a clock."""
    known = _check_time(who, at)
    if abs(known - now) > _NEAR:
        raise errors.BadAnswer(f"{who} says that this machine ends at {units.rfc3339(known)}, which cannot be")
    return known
