"""The certificate of the admission webhook: an authority of our own, a leaf that is renewed, and who must know of both.

In: the Secret as it stands, the instant. Out: the Secret as it should be, and the `caBundle` of both webhook
configurations. P-256; the authority lives ten years, the leaf 90 days and is renewed after 60.
Invariant: the API server knows an authority before any leaf of it is used, and an old one until every leaf of it is
gone: while the authority changes, both stand in the bundle. A Secret that we cannot read as ours is replaced as a
whole; a failure leaves everything as it was.
"""

import base64
import contextlib
import datetime
import logging
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fallow import names
from fallow.clients import errors
from fallow.clients.kubernetes import api as kubernetes
from fallow.clients.kubernetes import reviews
from fallow.model import units
from fallow.model.units import DAY, Instant, Seconds

log = logging.getLogger("fallow")

AUTHORITY_LIVES: Final[Seconds] = 3652 * DAY
AUTHORITY_RENEWED: Final[Seconds] = 365 * DAY  # before its end
LEAF_LIVES: Final[Seconds] = 90 * DAY
LEAF_RENEWED: Final[Seconds] = 30 * DAY  # before its end: after 60 days
OVERLAP: Final[Seconds] = 7 * DAY  # for so long an authority that was replaced is still known
_EARLIER: Final[Seconds] = 3600.0  # clocks differ
_CHANGED: Final = f"{names.GROUP}/authority-changed-at"
_FIELDS: Final = ("ca.crt", "ca.key", "tls.crt", "tls.key")

_Configuration: TypeAlias = tuple[kubernetes.Resource, dict[str, Any]]


class Papers(msgspec.Struct, frozen=True):
    """PEM. `authorities`: the newest first."""

    authorities: tuple[bytes, ...]
    authority_key: bytes
    leaf: bytes
    leaf_key: bytes
    changed_at: Instant

    @property
    def bundle(self) -> bytes:
        return b"".join(self.authorities)

    def __repr__(self) -> str:
        return "Papers(***)"


def renew(known: Papers | None, host: str, now: Instant) -> Papers:
    """The same, where nothing is due. `host`: the name by which the API server calls us."""
    if known is None or _ends(known.authorities[0]) - now < AUTHORITY_RENEWED:
        key = ec.generate_private_key(ec.SECP256R1())
        made = _make_authority(key, now)
        old = known.authorities[:1] if known is not None and _ends(known.authorities[0]) > now else ()
        return _with_leaf((made, *old), key, host, now, changed_at=now)
    if len(known.authorities) > 1 and now - known.changed_at > OVERLAP:
        known = msgspec.structs.replace(known, authorities=known.authorities[:1])
    leaf = x509.load_pem_x509_certificate(known.leaf)
    if _ends(known.leaf) - now >= LEAF_RENEWED and host in _hosts(leaf):
        return known
    key = _load_key(known.authority_key)
    return _with_leaf(known.authorities, key, host, now, changed_at=known.changed_at)


def _with_leaf(
    authorities: tuple[bytes, ...], key: ec.EllipticCurvePrivateKey, host: str, now: Instant, *, changed_at: Instant
) -> Papers:
    leaf_key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.load_pem_x509_certificate(authorities[0]).subject
    short = host.partition(".")[0]
    hosts = dict.fromkeys((host, f"{host}.cluster.local", short))
    leaf = (
        _begin(issuer, _name(short), leaf_key, now, LEAF_LIVES)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(each) for each in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Papers(authorities, _pem_key(key), _pem(leaf), _pem_key(leaf_key), changed_at)


def _make_authority(key: ec.EllipticCurvePrivateKey, now: Instant) -> bytes:
    name = _name(f"fallow webhook {units.rfc3339(now)[:10]}")
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )
    return _pem(
        _begin(name, name, key, now, AUTHORITY_LIVES)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _begin(
    issuer: x509.Name, subject: x509.Name, key: ec.EllipticCurvePrivateKey, now: Instant, lives: Seconds
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder().issuer_name(issuer).subject_name(subject).public_key(key.public_key())
        .serial_number(x509.random_serial_number()).not_valid_before(_moment(now - _EARLIER))
        .not_valid_after(_moment(now + lives))
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _moment(at: Instant) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(at, datetime.UTC)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _pem_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _load_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("the key of the authority is none of ours")
    return key


def _ends(pem: bytes) -> Instant:
    return x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()


def _hosts(leaf: x509.Certificate) -> list[str]:
    names_of = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return names_of.get_values_for_type(x509.DNSName)


# ---- in the cluster --------------------------------------------------------------------------------------------------


class CertificateKeeper:
    """Looks once in a while; the leader's."""

    def __init__(self, api: kubernetes.Api, namespace: str) -> None:
        self._api, self._namespace = api, namespace
        self._host = f"{names.WEBHOOK}.{namespace}.svc"

    async def look(self, now: Instant) -> None:
        """The bundle first, then the leaf: nobody is shown a leaf that the API server does not know. Where no webhook
        is installed, or its certificate is none of ours to make, nothing is done."""
        if not await self._is_ours() or not (configurations := await self._find_configurations()):
            return
        stored = await self._read()
        known = read_secret(stored or {})
        papers = renew(known, self._host, now)
        await self._spread(papers.bundle, configurations)
        if papers != known:
            await self._store(papers, stored)
            log.info("the certificate of the webhook is new, until %s", units.rfc3339(_ends(papers.leaf)))

    async def _is_ours(self) -> bool:
        """Whoever was given the right to write the Secret makes it. Asked first: a refusal each time would be noise."""
        return await reviews.may_we(
            self._api, reviews.AccessWish("update", "", "secrets", self._namespace, names.WEBHOOK_CERTIFICATE)
        )

    async def _read(self) -> Mapping[str, Any] | None:
        try:
            return await self._api.get(kubernetes.SECRETS, self._namespace, names.WEBHOOK_CERTIFICATE)
        except errors.NotFound:
            return None

    async def _store(self, papers: Papers, stored: Mapping[str, Any] | None) -> None:
        version = {} if stored is None else {"resourceVersion": stored["metadata"]["resourceVersion"]}
        metadata = {
            "name": names.WEBHOOK_CERTIFICATE, "namespace": self._namespace,
            "annotations": {_CHANGED: units.rfc3339(papers.changed_at)}, **version,
        }
        content = (papers.bundle, papers.authority_key, papers.leaf, papers.leaf_key)
        data = {key: base64.b64encode(value).decode() for key, value in zip(_FIELDS, content, strict=True)}
        body = {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": metadata, "data": data}
        if stored is None:
            await self._api.create(kubernetes.SECRETS, self._namespace, body)
        else:
            await self._api.replace(kubernetes.SECRETS, self._namespace, names.WEBHOOK_CERTIFICATE, body)

    async def _spread(self, bundle: bytes, configurations: list[_Configuration]) -> None:
        """Into each that says otherwise."""
        said = base64.b64encode(bundle).decode()
        for resource, found in configurations:
            hooks = found.get("webhooks") or []
            operations = [
                {"op": "add", "path": f"/webhooks/{place}/clientConfig/caBundle", "value": said}
                for place, hook in enumerate(hooks) if (hook.get("clientConfig") or {}).get("caBundle") != said
            ]
            if operations:
                test = {"op": "test", "path": "/metadata/uid", "value": found["metadata"]["uid"]}
                await self._api.json_patch(
                    resource, None, names.WEBHOOK, [test, *operations], field_manager=names.FIELD_MANAGER
                )

    async def _find_configurations(self) -> list[_Configuration]:
        found = list[_Configuration]()
        for resource in kubernetes.WEBHOOK_CONFIGURATIONS:
            with contextlib.suppress(errors.NotFound):
                found.append((resource, await self._api.get(resource, None, names.WEBHOOK)))
        return found


def read_secret(stored: Mapping[str, Any]) -> Papers | None:
    """None: it is not there, or none of ours."""
    data, notes = stored.get("data") or {}, (stored.get("metadata") or {}).get("annotations") or {}
    try:
        bundle, key, leaf, leaf_key = (base64.b64decode(data[field], validate=True) for field in _FIELDS)
        parts = tuple(_pem(each) for each in x509.load_pem_x509_certificates(bundle))
        papers = Papers(parts, key, leaf, leaf_key, units.read_instant(notes.get(_CHANGED)) or 0.0)
        is_whole = _load_key(key).public_key() == x509.load_pem_x509_certificate(parts[0]).public_key()
        is_signed = _is_signed(leaf, parts)
    except (KeyError, ValueError, TypeError):
        return None
    return papers if is_whole and is_signed else None


def _is_signed(leaf: bytes, authorities: tuple[bytes, ...]) -> bool:
    found = x509.load_pem_x509_certificate(leaf)
    return any(found.issuer == x509.load_pem_x509_certificate(each).subject for each in authorities)
