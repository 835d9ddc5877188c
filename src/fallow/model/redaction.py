"""Takes out of a text or an object what nobody else may read, before it leaves this machine.

In: any text, any tree of JSON; the secrets that are known by their value. Out: the same, with *** in their place.
Invariant: what looks like a secret is one: a password that stays is worse than a word that is missing. Of an address
only scheme, host and port stay, because its path and query may be what lets one in; of annotations of others only the
names.
"""

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from urllib import parse

import msgspec

from fallow import names

HIDDEN: Final = "***"
LEAST_LENGTH: Final = 6  # of a secret that is looked for by its value: shorter ones are words
_WORDS: Final = (
    r"pass(?:word|wd|phrase)?|pwd|secret|token|credentials?|(?:api|access|account|private|routing|signing|hmac|session|"
    r"client|encryption|master|shared|integration|webhook|licen[cs]e)[_-]?key|key[_-]data|"
    r"auth(?:orization|[_-]?header)?|dsn|cookie|signature|session[_-]?id|jwt"
)
_KEY: Final = re.compile(rf"(?i)(?:{_WORDS})")
_OUR_PREFIXES: Final = (f"{names.GROUP}/", f"{names.ALIAS_GROUP}/")
_DROPPED: Final = frozenset({"managedFields", "selfLink"})
_SETTINGS: Final = frozenset({"config"})  # of channels, in policies and budgets: whatever it says may be a secret
# Who is written about chooses names and texts: every repetition has an end, or cannot be tried from many places.
# A list, an object, what YAML has below `|` or `>`, what stands between quotes: threefold, single, escaped.
_QUOTED: Final = (
    r"""\[[^\]]*|\{[^}]*|[|>][-+0-9]{0,2}[ \t]*(?:\n[ \t]+[^\n]*)+|\"{3}(?:(?!\"{3})[\s\S])*|'{3}(?:(?!'{3})[\s\S])*|"""
    r""""(?:\\.|[^"\\])*|'(?:\\.|[^'\\])*|\\+["'](?:(?!(?<!\\)\\["'])[^\n])*"""
)
_IS: Final = r"""\\{0,8}["']?\s{0,20}(?:=>|[:=]|%3[ADad])\s{0,20}"""
_HOST: Final = re.compile(r"((?:\[[0-9a-fA-F:.%]+\]|[\w.-]*)(?::\d+)?)([^\w@]*)")


def _cut_address(found: re.Match[str]) -> str:
    """scheme://user:password@host:port/path?query#part. An @ behind the host, or a port that is none: all of it may be
    a password."""
    scheme, rest = found[1], found[2].replace("\\/", "/")
    place, *behind = re.split(r"[/?#]", rest, maxsplit=1)
    host = _HOST.fullmatch(place.rpartition("@")[2])
    if host is None or "@" in "".join(behind):
        return f"{scheme}{HIDDEN}"
    return f"{scheme}{host[1]}/{HIDDEN}" if behind or "@" in place else f"{scheme}{rest}"


_PATTERNS: Final = (
    (re.compile(r"\A(?:(?!-----BEGIN )[\s\S])*?-----END [A-Z0-9 ]*-----"), HIDDEN),  # its begin was cut off
    (re.compile(r"-----BEGIN [A-Z0-9 ]*-----.*?(?:-----END [A-Z0-9 ]*-----|\Z)", re.DOTALL), HIDDEN),
    # The same, JSON and a kubeconfig, in base64.
    (re.compile(r"LS0tLS1CRUdJTi[\w+/=-]*|(?:eyJ|ewo[JKg]|YXBpVmVyc2lvbj)[\w+/-]{12,}+=*+(?:\.[\w-]*+)*+"), HIDDEN),
    (re.compile(
        r"\b(?:(?:xox[a-z][.-]|xapp-)[\w-]+|A[KS]IA[0-9A-Z]{12,}|(?:AIza|gh[a-z]_|github_pat_|glpat-|hf_|nvapi-|npm_|"
        r"dckr_pat_|sk-|[sr]k_live_|whsec_|ya29\.|SG\.|hvs\.|glsa_|glc_|GOCSPX-|pypi-)[\w.-]{16,}"
        r"|hooks\.slack\.com/[^\s\"']+|[a-zA-Z][a-zA-Z0-9+.-]{0,30}%3[Aa](?:%2[Ff]){2}[^\s\"'&]+)"
    ), HIDDEN),
    (re.compile(rf"(?i)((?:authorization|cookie){_IS})(?:{_QUOTED}|[^\n]+)"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{6,}"), rf"\1 {HIDDEN}"),
    (re.compile(r"""([a-zA-Z][a-zA-Z0-9+.-]{0,30}+:(?:\\?/){2})((?:[^\s/?#]*@)?(?:[^\s"'<>\\]|\\(?!["'nrt]))*)"""),
     _cut_address),
    (re.compile(r"""(?<![\w.-])[\w.-]{1,64}+:[^\s:@/"']{1,128}+@(?!sha\d+:)(?=[\w(\[])"""), f"{HIDDEN}@"),
    (re.compile(rf"(?i)((?:{_WORDS})[\w-]{{0,64}}+{_IS})(?:{_QUOTED}|[^\s\"']+)"), rf"\1{HIDDEN}"),
    (re.compile(rf"(?i)(?<![\w-])(--[a-z-]{{0,40}}?(?:{_WORDS})[\w-]{{0,64}}+(?:\s{{1,20}}|[\"']\s{{0,20}},\s{{0,20}}))"
                rf"(?:{_QUOTED}|[^\s\"']+)"), rf"\1{HIDDEN}"),
    (re.compile(r"""([?&](?:sig|code|key)=)[^\s&"']+"""), rf"\1{HIDDEN}"),
)


class Redactor(msgspec.Struct, frozen=True):
    """`known`: secrets by their value, wherever they stand; the longest first."""

    known: tuple[str, ...] = ()

    def text(self, text: str) -> str:
        for each in self.known:
            text = text.replace(each, HIDDEN)
        for pattern, instead in _PATTERNS:
            text = pattern.sub(instead, text)
        return text

    def tree(self, value: Any) -> Any:
        """JSON of any shape. A key that speaks of a secret hides the text or the number under it, and keeps an object:
        a reference to a Secret is none."""
        match value:
            case str():
                return self.text(value)
            case Mapping():
                kept = ((str(key), each) for key, each in value.items() if key not in _DROPPED)
                named = str(value.get("name", ""))  # of {"name": "Authorization", "value": "..."}
                return {self.text(key): self._member(named if key == "value" and _KEY.search(named) else key, each)
                        for key, each in kept}
            case list() | tuple():
                return [self.tree(each) for each in value]
            case _:
                return value

    def _member(self, key: str, value: Any) -> Any:
        if key == "annotations" and isinstance(value, Mapping):
            return {name: self.text(str(said)) if str(name).startswith(_OUR_PREFIXES) else HIDDEN
                    for name, said in value.items()}
        if key in _SETTINGS and value:
            return dict.fromkeys(map(str, value), HIDDEN) if isinstance(value, Mapping) else HIDDEN
        return self._hide(value) if value and _KEY.search(key) else self.tree(value)

    def _hide(self, value: Any) -> Any:
        match value:
            case bool():  # whether there is one
                return value
            case str() | int() | float():
                return HIDDEN
            case list() | tuple():
                return [self._hide(each) for each in value]
            case _:
                return self.tree(value)


def know(secrets: Iterable[str]) -> Redactor:
    """One that knows these; what is too short to be told from a word is left to the patterns."""
    found = {each.strip() for text in secrets for each in (text, *text.splitlines())}
    spelled = {form for each in found if len(each) >= LEAST_LENGTH for form in _spell(each)}
    return Redactor(tuple(sorted(spelled, key=len, reverse=True)))


def _spell(secret: str) -> Iterator[str]:
    """As it is, in an address, in JSON, in base64."""
    yield from (secret, parse.quote(secret, safe=""), json.dumps(secret)[1:-1])
    yield base64.b64encode(secret.encode(errors="replace")).decode().rstrip("=")


def is_secret_name(name: str) -> bool:
    """Of a variable or a member: does it speak of a secret?"""
    return _KEY.search(name) is not None


def hide_logins(said: str, given: Iterable[str]) -> str:
    """A sentence that repeats what somebody gave, without the user name and password of an address in it, whole or
    broken: nobody can read them in a log or over a shoulder."""
    for login in (each for text in given for each in _find_logins(text)):
        for form in (login, repr(login)[1:-1]):
            said = said.replace(form, HIDDEN)
    return said


def _find_logins(text: str) -> Iterator[str]:
    """All before the last @, because a password may have anything in it, also without `NAME=` in front; none where it
    is no address, as in ada@example.com."""
    before, _, _ = text.rpartition("@")
    _, slashes, login = before.partition("//")
    if slashes:
        yield login
        return
    while ":" in before:
        yield before
        before = before.partition("=")[2]
