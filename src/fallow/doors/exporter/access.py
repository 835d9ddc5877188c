"""Who may come in: TLS and basic auth as a web configuration file says, in the format of Prometheus' exporter-toolkit.

In: the path of the file. Out: for each new connection its TLS context, for each request whether it may come in.
The file and the certificates it names are read again when they change; a change that cannot work is said and the former
state stays. A key that is not known here is refused rather than ignored: it may be the one that keeps strangers out.
Invariant: neither a password nor a hash is ever in a message.
"""

import base64
import binascii
import hashlib
import logging
import os
import re
import secrets
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from fallow import settings
from fallow.clients import worker

log = logging.getLogger("fallow.exporter")

_LOOK_EVERY = 1.0  # seconds between looks whether a file has changed
_MOST_REMEMBERED = 100  # good credentials
_MOST_PASSWORD = 72  # bytes that bcrypt heeds
_BCRYPT = re.compile(r"\$2[abxy]\$(0[4-9]|[12]\d|3[01])\$[./A-Za-z0-9]{53}")

Version: TypeAlias = Literal["TLS10", "TLS11", "TLS12", "TLS13"]
_VERSIONS: Mapping[str, ssl.TLSVersion] = {
    "TLS10": ssl.TLSVersion.TLSv1, "TLS11": ssl.TLSVersion.TLSv1_1,
    "TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3,
}
_CLIENT_CERTIFICATES = {
    "NoClientCert": ssl.CERT_NONE, "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}


class ServerTls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cert_file: str
    key_file: str
    client_auth_type: Literal["NoClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"] = "NoClientCert"
    client_ca_file: str = ""
    min_version: Version = "TLS12"
    max_version: Version = "TLS13"


class WebConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tls_server_config: ServerTls | None = None
    basic_auth_users: dict[str, str] | None = None


class WebAccess(msgspec.Struct, frozen=True):
    """What holds now. No context: no TLS. No users: everybody."""

    tls: ssl.SSLContext | None
    users: Mapping[str, str]
    files: tuple[Path, ...]  # all that this was read from


def read(path: Path) -> WebAccess:
    """Raises settings.UsageError, one sentence, if the file cannot be used."""
    config = _parse(path)
    users = config.basic_auth_users or {}
    for name, hashed in users.items():
        if not _BCRYPT.fullmatch(hashed):
            raise _refusal(path, f"basic_auth_users: what stands for {name!r} is not a bcrypt hash")
    if config.tls_server_config is None:
        return WebAccess(None, users, (path,))
    tls = config.tls_server_config
    named = [path.parent / each for each in (tls.cert_file, tls.key_file, tls.client_ca_file) if each]
    return WebAccess(_context(tls, path), users, (path, *named))


def _refusal(path: Path, why: str) -> settings.UsageError:
    return settings.UsageError(f"WEB_CONFIG_FILE: {path}: {why}")


def _parse(path: Path) -> WebConfig:
    import yaml  # here and not above: most exporters run without such a file

    try:
        config: Any = yaml.safe_load(path.read_bytes())
    except OSError as problem:
        raise settings.UsageError(f"WEB_CONFIG_FILE: {path} cannot be read: {problem.strerror}") from None
    except yaml.YAMLError as problem:  # its text may quote the file, and with it a hash
        mark = getattr(problem, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark is not None else ""
        raise settings.UsageError(f"WEB_CONFIG_FILE: {path} is not YAML{where}") from None
    try:
        return msgspec.convert(config or {}, WebConfig)
    except msgspec.ValidationError as problem:
        raise _refusal(path, str(problem)) from None


def _context(tls: ServerTls, path: Path) -> ssl.SSLContext:
    """Relative paths start where the file is."""
    folder, context = path.parent, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    verify = _CLIENT_CERTIFICATES[tls.client_auth_type]
    if (verify is not ssl.CERT_NONE) != bool(tls.client_ca_file):
        raise _refusal(path, "client_ca_file and a client_auth_type that verifies need each other")
    try:
        context.minimum_version, context.maximum_version = _VERSIONS[tls.min_version], _VERSIONS[tls.max_version]
        # With no password it would ask the terminal.
        context.load_cert_chain(folder / tls.cert_file, folder / tls.key_file, password="")
        if tls.client_ca_file:
            context.load_verify_locations(folder / tls.client_ca_file)
    except (OSError, ValueError) as problem:  # ssl.SSLError is an OSError
        raise _refusal(path, f"the certificates of tls_server_config cannot be loaded: {problem}") from None
    context.verify_mode = verify
    return context


class Gate:
    """The access that holds now. Without a file everybody may come in."""

    def __init__(self, path: str | None, clock: Callable[[], float]) -> None:
        self._path = Path(path) if path else None
        self._clock = clock
        self._access = read(self._path) if self._path else WebAccess(None, {}, ())
        self._stamps = tuple(map(_stamp, self._access.files))
        self._looked = clock()
        self._key = secrets.token_bytes(32)
        self._good: dict[bytes, None] = {}  # keyed digests of credentials that were found good, oldest first
        self._worker = worker.Worker("passwords")

    def current(self) -> WebAccess:
        now = self._clock()
        if self._path is not None and now - self._looked >= _LOOK_EVERY:
            self._looked = now
            if (stamps := tuple(map(_stamp, self._access.files))) != self._stamps:
                self._stamps = stamps
                self._reload(self._path)
        return self._access

    def _reload(self, path: Path) -> None:
        try:
            self._access = read(path)
        except settings.UsageError as problem:
            log.error("%s; what held before still holds", problem)
        else:
            self._stamps = tuple(map(_stamp, self._access.files))  # it may name other files now
            log.info("read %s again", path)

    async def admits(self, authorization: str) -> bool:
        """Hashing is slow by design: it is done in a thread of its own, and only once for the same good credentials."""
        users = self.current().users
        if not users:
            return True
        name, password = _credentials(authorization)
        if name is None:
            return False
        # Who is not known costs the same time as who is.
        hashed = users.get(name, next(iter(users.values())))
        digest = hashlib.blake2b(msgspec.msgpack.encode((name, hashed, password)), key=self._key).digest()
        if digest in self._good:
            return True
        if not await self._worker.do(lambda: _matches(password, hashed)) or name not in users:
            return False
        self._good[digest] = None
        if len(self._good) > _MOST_REMEMBERED:
            del self._good[next(iter(self._good))]
        return True


def _credentials(authorization: str) -> tuple[str | None, bytes]:
    kind, _, text = authorization.partition(" ")
    try:
        name, colon, password = base64.b64decode(text.strip(), validate=True).partition(b":")
        return (name.decode(), password) if kind.lower() == "basic" and colon else (None, b"")
    except (binascii.Error, ValueError):
        return None, b""


def _matches(password: bytes, hashed: str) -> bool:
    import bcrypt  # as above

    try:
        return bcrypt.checkpw(password[:_MOST_PASSWORD], hashed.encode())
    except ValueError:
        return False


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        seen = os.stat(path)
    except OSError:
        return None
    return seen.st_ino, seen.st_mtime_ns, seen.st_size
