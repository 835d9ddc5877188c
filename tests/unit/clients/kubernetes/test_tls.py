"""Over TLS and through proxies: whom we trust, which certificate we show, which way we go."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
import trustme
from cryptography.hazmat.primitives import serialization
from tests.unit.clients.kubernetes import wire
from tests.unit.clients.kubernetes.test_credentials import Plugin

from fallow.clients import errors, tls
from fallow.clients.kubernetes import api, config
from fallow.model.secret import Secret

NODE = "/api/v1/nodes/n"


def inline(data: bytes) -> config.Pem:
    return config.Pem("inline", data=Secret(data))


def issue(authority: trustme.CA, name: str) -> tuple[bytes, bytes]:
    leaf = authority.issue_cert(name)
    return leaf.cert_chain_pems[0].bytes(), leaf.private_key_pem.bytes()


def serve_tls(authority: trustme.CA, *names: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


@pytest_asyncio.fixture
async def secure(authority: trustme.CA) -> AsyncIterator[wire.Server]:
    async with wire.Server(serve_tls(authority, "127.0.0.1", "kubernetes.example")) as running:
        running.on("GET", NODE, wire.give({"kind": "Node"}))
        yield running


def access_of(server: wire.Server, authority: trustme.CA, **more: Any) -> config.Access:
    return msgspec.structs.replace(server.access, **({"ca": inline(authority.cert_pem.bytes())} | more))


async def read(access: config.Access) -> dict[str, Any]:
    async with api.Api(access) as client:
        return await client.get(api.NODES, None, "n")


async def test_the_clusters_own_authority_is_trusted_and_comments_in_it_do_not_matter(
    secure: wire.Server, authority: trustme.CA
) -> None:
    bundle = "# für alle\n".encode("latin-1") + authority.cert_pem.bytes()
    assert await read(access_of(secure, authority, ca=inline(bundle))) == {"kind": "Node"}


@pytest.mark.parametrize("trusted", ["system", "other"])
async def test_an_authority_we_do_not_trust_is_refused_at_once(
    secure: wire.Server, authority: trustme.CA, trusted: str
) -> None:
    ca = None if trusted == "system" else inline(trustme.CA().cert_pem.bytes())
    async with api.Api(access_of(secure, authority, ca=ca)) as client:
        with pytest.raises(errors.Unreachable, match=r"TLS failed: .*certificate in certificate chain"):
            await client.get(api.NODES, None, "n")
        assert client.requests_sent == 1  # a certificate does not become good by asking again
    assert secure.seen == []


async def test_verification_can_be_switched_off(secure: wire.Server, authority: trustme.CA) -> None:
    assert await read(access_of(secure, authority, ca=None, verify=False)) == {"kind": "Node"}


async def test_tls_server_name_is_what_is_verified(authority: trustme.CA) -> None:
    async with wire.Server(serve_tls(authority, "kubernetes.example")) as server:
        server.on("GET", NODE, wire.give({"kind": "Node"}))
        with pytest.raises(errors.Unreachable, match="TLS failed"):
            await read(access_of(server, authority))
        assert await read(access_of(server, authority, tls_server_name="kubernetes.example")) == {"kind": "Node"}


def shown(server: wire.Server) -> list[str | None]:
    """The names in the client certificates the server was shown."""
    return [each.certificate["subjectAltName"][0][1] if each.certificate else None for each in server.seen]


async def test_a_client_certificate_is_shown(secure: wire.Server, authority: trustme.CA) -> None:
    certificate, key = issue(authority, "ada.example")
    await read(access_of(secure, authority))
    await read(access_of(secure, authority, client_certificate=inline(certificate), client_key=inline(key)))
    assert shown(secure) == [None, "ada.example"]


async def test_renewed_certificate_files_are_used_without_a_restart(
    secure: wire.Server, authority: trustme.CA, tmp_path: Path
) -> None:
    paths = tmp_path / "c.pem", tmp_path / "k.pem"

    def renew(name: str) -> None:
        for path, data in zip(paths, issue(authority, name), strict=True):
            path.write_bytes(data)

    renew("one.example")
    access = access_of(
        secure, authority, client_certificate=config.Pem("c", path=paths[0]), client_key=config.Pem("k", path=paths[1])
    )
    async with api.Api(access) as client:
        await client.get(api.NODES, None, "n")
        renew("two.example")
        await client.get(api.NODES, None, "n")
        paths[1].write_bytes(b"half a k")  # being replaced: the old pair goes on
        await client.get(api.NODES, None, "n")
    assert shown(secure) == ["one.example", "two.example", "two.example"]


@pytest.mark.parametrize("version", ["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"])
async def test_a_plugins_certificate_is_shown_and_replaced_after_a_401(
    secure: wire.Server, authority: trustme.CA, tmp_path: Path, version: str
) -> None:
    plugin = Plugin(tmp_path)

    def hand_out(name: str) -> None:
        certificate, key = issue(authority, name)
        plugin.answers(version, clientCertificateData=certificate.decode(), clientKeyData=key.decode())

    async def refuse(request: Any) -> Any:
        hand_out("two.example")
        return await wire.status(401, "Unauthorized")(request)

    hand_out("one.example")
    secure.on("GET", NODE, refuse, wire.give({"kind": "Node"}))
    access = plugin.access(version, server=secure.url, ca=inline(authority.cert_pem.bytes()))
    assert await read(access) == {"kind": "Node"}
    assert shown(secure) == ["one.example", "two.example"]
    assert plugin.runs == 2


def test_an_encrypted_key_is_refused_and_not_asked_about(authority: trustme.CA) -> None:
    certificate, key = issue(authority, "ada.example")
    locked = serialization.load_pem_private_key(key, None).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"pw")
    )
    with pytest.raises(errors.Misconfigured, match="not be encrypted"):
        tls.check(None, (certificate, locked))


def test_a_key_of_another_certificate_is_refused(authority: trustme.CA) -> None:
    with pytest.raises(errors.Misconfigured, match="belong together"):
        tls.check(None, (issue(authority, "a.example")[0], issue(authority, "b.example")[1]))


# Proxies


class Proxy:
    """CONNECT for TLS, absolute addresses for plain HTTP; counts and remembers what it was asked."""

    def __init__(self, refuse: int | None = None) -> None:
        self.asked: list[str] = []
        self.authorizations: list[str] = []
        self._refuse = refuse

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, target, _ = head.split("\r\n")[0].split(" ")
        self.asked.append(f"{method} {target}")
        self.authorizations += [
            line.split(": ")[1] for line in head.split("\r\n") if line.lower().startswith("proxy-authorization")
        ]
        if self._refuse:
            writer.write(f"HTTP/1.1 {self._refuse} No\r\nContent-Length: 0\r\n\r\n".encode())
        elif method == "CONNECT":
            host, port = target.split(":")
            behind = await asyncio.open_connection(host, int(port))
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            await asyncio.gather(_pump(reader, behind[1]), _pump(behind[0], writer))
        else:
            body = b'{"kind": "Node"}'
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body)
        writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    writer.close()


async def test_the_proxy_is_asked_to_tunnel(secure: wire.Server, authority: trustme.CA) -> None:
    async with Proxy() as proxy:
        address = Secret(f"http://ada:pw@127.0.0.1:{proxy.port}")
        assert await read(access_of(secure, authority, proxy=address, tls_server_name="kubernetes.example")) == {
            "kind": "Node"
        }
    assert proxy.asked == [f"CONNECT 127.0.0.1:{secure.port}"]
    assert proxy.authorizations == ["Basic YWRhOnB3"]
    assert len(secure.seen) == 1


async def test_plain_http_goes_through_the_proxy_too(server: wire.Server) -> None:
    async with Proxy() as proxy:
        access = msgspec.structs.replace(server.access, proxy=Secret(f"http://127.0.0.1:{proxy.port}"))
        assert await read(access) == {"kind": "Node"}
    assert proxy.asked == [f"GET {server.url}{NODE}"]
    assert server.seen == []


async def test_a_proxy_that_says_no_is_named_without_its_password(secure: wire.Server, authority: trustme.CA) -> None:
    async with Proxy(refuse=407) as proxy:
        access = access_of(secure, authority, proxy=Secret(f"http://ada:hunter2@127.0.0.1:{proxy.port}"))
        with pytest.raises(errors.Unreachable, match="the proxy answered 407") as caught:
            await read(access)
    assert "hunter2" not in str(caught.value)
    assert secure.seen == []
