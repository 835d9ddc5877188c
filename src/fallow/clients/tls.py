"""TLS to whatever we ask: whom we trust and which certificate we show. Once for all clients.

In: PEM bytes as files or credentials gave them, or the names of files. Out: an `ssl.SSLContext`, rebuilt by its owner
when they change.
Invariant: a key is never written to a disk that outlives the call, and an encrypted one is refused, not asked about.
"""

import contextlib
import functools
import os
import re
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from fallow.clients import errors

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


class TlsFiles(msgspec.Struct, frozen=True):
    """What people name for one server; what is not given is the system's own, or not shown."""

    verify: bool = True
    ca_file: str | None = None
    client_cert: str | None = None
    client_key: str | None = None


def from_files(files: TlsFiles, whom: str) -> ssl.SSLContext:
    """Raises Misconfigured, naming the file and whom it is for, where a certificate cannot be read."""
    if files.client_key and not files.client_cert:
        raise errors.Misconfigured(f"the client key {files.client_key} for {whom} needs a client certificate as well")
    with _named(f"the CA certificate {files.ca_file} for {whom} cannot be read"):
        ca = Path(files.ca_file).read_bytes() if files.ca_file else None
        context = build_context(ca, verify=files.verify, certificate=None)
    if files.client_cert:
        with _named(f"the client certificate {files.client_cert} for {whom} cannot be used"):
            key = Path(files.client_key).read_bytes() if files.client_key else b""
            show(context, Path(files.client_cert).read_bytes(), key)
    return context


class LiveContext:
    """The context of files that others renew: built anew once one of them has changed.

    While they are being replaced, or cannot be read, what was good a moment ago still is.
    """

    def __init__(self, files: TlsFiles, whom: str) -> None:
        self._files, self._whom = files, whom
        self._basis = self._stamp()
        self._context = from_files(files, whom)

    def current(self) -> ssl.SSLContext:
        basis = self._stamp()
        if basis != self._basis:
            with contextlib.suppress(errors.Misconfigured):
                self._context = from_files(self._files, self._whom)
                self._basis = basis
        return self._context

    def _stamp(self) -> tuple[object, ...]:
        named = (self._files.ca_file, self._files.client_cert, self._files.client_key)
        return tuple(_stamp_of(file) for file in named if file)


def _stamp_of(file: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


@contextlib.contextmanager
def _named(what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, errors.Misconfigured) as problem:
        raise errors.Misconfigured(f"{what}: {getattr(problem, 'strerror', None) or problem}") from problem


@functools.cache
def trust_system() -> ssl.SSLContext:
    """Who trusts the authorities of the system, and shows nothing."""
    return build_context(None, verify=True, certificate=None)


def build_context(ca: bytes | None, *, verify: bool, certificate: tuple[bytes, bytes] | None) -> ssl.SSLContext:
    """A context that trusts `ca` (None: the system's own) and shows `certificate`, a (certificate, key) pair."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["http/1.1"])
    if ca is not None:
        trust(context, ca)
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate is not None:
        show(context, *certificate)
    return context


def trust(context: ssl.SSLContext, ca: bytes) -> None:
    # Bundles carry comments in any encoding, and the library takes ASCII only.
    text = b"\n".join(_CERTIFICATE.findall(ca)).decode("ascii", errors="replace")
    try:
        context.load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError):
        raise errors.Misconfigured("the certificate authority holds no certificate that can be read") from None


def show(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    try:
        with _as_file(certificate + b"\n" + key) as path:
            context.load_cert_chain(path, password=_refuse_password)
    except (ssl.SSLError, OSError, ValueError):
        must = "they must be PEM, belong together, and the key not be encrypted"
        raise errors.Misconfigured(f"the client certificate and key cannot be used: {must}") from None


def check(ca: bytes | None, certificate: tuple[bytes, bytes] | None) -> None:
    """Raise Misconfigured if these cannot be used, without looking at the system's own authorities."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if ca is not None:
        trust(context, ca)
    if certificate is not None:
        show(context, *certificate)


def _refuse_password() -> str:
    raise ValueError("the key is encrypted")


@contextlib.contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """The library loads keys from files only: one in memory, where the system has such a thing."""
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("client-certificate"), "wb") as file:
            file.write(data)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
    else:
        with tempfile.NamedTemporaryFile() as named:
            named.write(data)
            named.flush()
            yield named.name
