"""Readers of single values: what a flag or a variable says, as text, into what it means.

In: a text. Out: a value; ValueError with half a sentence if it is none (the caller says whose text it was).
A Secret prints as `***` wherever it is shown.
"""

import math
import re
from collections.abc import Callable
from typing import Any

import msgspec

from fallow import names
from fallow.model import loopback, patterns, units
from fallow.model.secret import Secret
from fallow.model.units import Seconds

LETTERS = "".join(names.LETTERS)
_LONGEST = 9.2e9  # what fits 64 bits of nanoseconds: longer is no duration in Go either, and no clock can wait for it

Read = Callable[[str], Any]


class UsageError(Exception):
    """One sentence that names the flag or variable and says what would be right."""


def explain(problem: ValueError, text: str) -> str:
    """What is wrong with a text, without the password that an address in it may have."""
    from fallow.model import redaction  # here and not above: --help does without it

    return redaction.hide_logins(str(problem), [text])


class WholeNumber(msgspec.Struct, frozen=True):
    """Readers that are values say what they take: the schema of the chart's values is made from them."""

    least: int

    def __call__(self, text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < self.least:
            raise ValueError(f"{text!r} is not a whole number of at least {self.least}")
        return int(text)


class BoundedNumber(msgspec.Struct, frozen=True):
    least: float
    most: float

    def __call__(self, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a number") from None
        if not self.least <= value <= self.most:
            raise ValueError(f"{text!r} is not between {self.least:g} and {self.most:g}")
        return value


class OneOf(msgspec.Struct, frozen=True):
    choices: tuple[str, ...]

    def __call__(self, text: str) -> str:
        if text not in self.choices:
            raise ValueError(f"{text!r} is none of {', '.join(self.choices)}")
        return text


whole_number, number = WholeNumber, BoundedNumber


def one_of(*choices: str) -> OneOf:
    return OneOf(choices)


def truth(text: str) -> bool:
    match text.lower():
        case "true" | "yes" | "1" | "on":
            return True
        case "false" | "no" | "0" | "off":
            return False
    raise ValueError(f"{text!r} is neither true nor false")


def letters(text: str) -> frozenset[str]:
    unknown = sorted(set(text) - set(LETTERS))
    if unknown:
        raise ValueError(f"unknown letter {', '.join(map(repr, unknown))}; known are {LETTERS}")
    if not text:
        raise ValueError(f"no letter given; known are {LETTERS}")
    return frozenset(text)


def name_list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def duration(text: str) -> Seconds:
    seconds = units.parse_duration(text.removeprefix("+"))
    if not math.isfinite(seconds) or seconds > _LONGEST:
        raise ValueError(f"{text!r} is longer than any clock can wait")
    return seconds


def regex(text: str) -> patterns.Pattern:
    """RE2, matched against whole strings, never sent to Prometheus."""
    try:
        return patterns.compile_pattern(text)
    except ValueError as problem:
        raise ValueError(f"{text!r} is not a valid RE2 expression: {problem}") from None


def ip_address(text: str) -> str:
    import ipaddress  # here and not above: --help does without it

    try:
        return str(ipaddress.ip_address(text.removeprefix("[").removesuffix("]")))
    except ValueError:
        raise ValueError(f"{text!r} is not an IP address such as 0.0.0.0 or ::") from None


def port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= 65535):
        raise ValueError(f"{text!r} is not a port between 1 and 65535")
    return int(text)


def network(text: str) -> str:
    import ipaddress  # here and not above: --help does without it

    try:
        return str(ipaddress.ip_network(text))
    except ValueError:
        raise ValueError(f"{text!r} is not a network such as 10.0.0.0/8 or 10.1.2.3/32") from None


def issuer(text: str) -> str:
    """To the letter: it is compared with what tokens say."""
    from urllib import parse  # here and not above: --help does without it

    parts = parse.urlsplit(text)
    is_safe = parts.scheme == "https" or (parts.scheme == "http" and loopback.is_here(parts.hostname or ""))
    if "@" in parts.netloc:
        raise ValueError("an address with a user name or a password in it is not taken")
    if not is_safe or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"{text!r} is not an address such as https://login.example.com/realms/main")
    return text


def listen_address(text: str) -> tuple[str, int] | None:
    """IP:PORT, or nothing for off."""
    if not text:
        return None
    import ipaddress  # here and not above: --help does without it

    host, colon, port = text.rpartition(":")
    try:
        ipaddress.ip_address(host.strip("[]"))
        if not colon or not 0 <= int(port) <= 65535:
            raise ValueError
    except ValueError:
        raise ValueError(f"{text!r} is not IP:PORT such as 0.0.0.0:8080") from None
    return host.strip("[]"), int(port)


def http_url(text: str) -> str:
    if not text.startswith(("http://", "https://")) or len(text.split("://", 1)[1].strip("/")) == 0:
        raise ValueError(f"{text!r} is not an address such as http://prometheus-k8s.monitoring.svc:9090")
    return text.rstrip("/")


def secure_url(text: str) -> str:
    """Credentials go there: over https, but on this machine."""
    from urllib import parse  # here and not above: --help does without it

    url = http_url(text)
    if not url.startswith("https://") and not loopback.is_here(parse.urlsplit(url).hostname or ""):
        raise ValueError(f"{text!r} is not https")
    return url


def secret_url(text: str) -> Secret[str]:
    """An address that nobody may see: what is wrong with it is said without it."""
    from urllib import parse  # here and not above: --help does without it

    try:
        parts = parse.urlsplit(text.strip())
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable:
        raise ValueError("it is no address such as https://hooks.slack.com/services/...")
    return Secret(text.strip())


def scrape_target(text: str) -> str:
    scheme, _, rest = text.partition("://")
    host = rest.partition("/")[0]
    if scheme not in ("http", "https") or not host.strip(":"):
        raise ValueError(f"{text!r} is not an address such as http://10.0.0.7:9400/metrics")
    if "@" in host:
        raise ValueError("an address with a user name or a password in it is not taken")
    return text


def scrape_selector(text: str) -> tuple[str, str]:
    """NAMESPACE/SELECTOR; the namespace * is all of them."""
    namespace, slash, selector = text.partition("/")
    if not slash or not selector.strip() or not re.fullmatch(r"\*|[a-z0-9]([-a-z0-9]*[a-z0-9])?", namespace):
        example = "NAMESPACE/SELECTOR such as gpu-operator/app=nvidia-dcgm-exporter (* means all namespaces)"
        raise ValueError(f"{text!r} is not {example}")
    return "" if namespace == "*" else namespace, selector.strip()


def text_map(text: str) -> dict[str, str]:
    """A JSON object of texts."""
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except msgspec.MsgspecError:
        raise ValueError('it is not a JSON object of texts such as {"team-ml-": "<!subteam^S1>"}') from None


def named_url(text: str) -> tuple[str, str]:
    """`NAME=URL`; the name as it stands in a path."""
    name, url = _named(text, "URL")
    return name, http_url(url)


def named_file(text: str) -> tuple[str, str]:
    """`NAME=FILE`; what it holds is read when it is needed."""
    name, file = _named(text, "FILE")
    if not file:
        raise ValueError(f"{text!r} names no file")
    return name, file


def _named(text: str, what: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?", name):
        raise ValueError(f"{text!r} is not NAME={what} with a name of small letters, digits, dots and hyphens")
    return name, value


def header(text: str) -> tuple[str, Secret[str]]:
    name, colon, value = text.partition(":")
    is_plain = not set(name.strip()) & set(" \t\r\n") and not set(value) & set("\r\n")
    if not (colon and name.strip() and value.strip() and is_plain):
        raise ValueError("it is not of the form 'Name: value'")
    return name.strip(), Secret(value.strip())
