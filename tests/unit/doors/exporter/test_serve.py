"""The exporter's HTTP over real sockets: pages, refusals, slow and many clients, TLS, passwords, files that change."""

import asyncio
import base64
import os
import socket
import ssl
import time

import aiohttp
import bcrypt
import pytest
import trustme

from fallow import settings
from fallow.doors import listen
from fallow.doors.exporter import access, serve

PAGE = b"gpu_idle_exporter_nvml_up 1\n"
BIG = b"x" * (8 << 20)


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Running:
    """A server on loopback. Its clock is only for looks at files."""

    def __init__(self, config=None):
        self.clock = Clock()
        self.asked = []
        self.gate = access.Gate(str(config) if config else None, self.clock)
        self.listener = listen.open_listener(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.server = serve.PageServer(self.listener, self.gate, {
            "/metrics": serve.Route(self._show),
            "/healthz": serve.Route(lambda _: serve.HttpAnswer(200, b"ok\n"), is_open=True),
            "/big": serve.Route(lambda _: serve.HttpAnswer(200, BIG)), "/broken": serve.Route(self._fail),
        })

    def _show(self, accept):
        self.asked.append(accept)
        return serve.HttpAnswer(200, PAGE, "text/plain; version=0.0.4; charset=utf-8")

    def _fail(self, accept):
        raise RuntimeError("a defect")

    async def __aenter__(self):
        self.task = asyncio.create_task(self.server.serve())
        return self

    async def __aexit__(self, *_):
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        self.listener.close()  # a task that never began closes nothing

    async def connect(self, **tls):
        return await asyncio.open_connection("127.0.0.1", self.port, **tls)

    async def say(self, request, **tls):
        """Everything the server says until it closes."""
        reader, writer = await self.connect(**tls)
        writer.write(request)
        async with asyncio.timeout(10):
            said = await reader.read()
        writer.close()
        return said

    async def get(self, path, *, auth=None, tls=None, headers=None):
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(10)) as session:
            url = f"{'https' if tls else 'http'}://localhost:{self.port}{path}"
            known = {"Authorization": "Basic " + base64.b64encode(":".join(auth).encode()).decode()} if auth else {}
            async with session.get(url, ssl=tls or True, headers={**known, **(headers or {})}) as answer:
                return answer.status, await answer.read(), answer.headers


@pytest.fixture
async def running():
    async with Running() as server:
        yield server


async def until(is_true):
    async with asyncio.timeout(10):
        while not is_true():  # noqa: ASYNC110 - nothing tells us
            await asyncio.sleep(0.005)


# ---- pages ---------------------------------------------------------------------------------------------------------


async def test_a_page_has_its_type_and_its_length(running):
    status, body, headers = await running.get("/metrics?name[]=x", headers={"Accept": "text/plain"})
    assert (status, body) == (200, PAGE)
    assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert headers["Content-Length"] == str(len(PAGE))
    assert running.asked == ["text/plain"]


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("GET /healthz HTTP/1.1", 200), ("GET http://there/healthz HTTP/1.1", 200), ("GET / HTTP/1.1", 404),
        ("GET /metrics/ HTTP/1.1", 404), ("GET //healthz HTTP/1.1", 404), ("GET /%68ealthz HTTP/1.1", 404),
        ("POST /metrics HTTP/1.1", 405),
        ("DELETE /healthz HTTP/1.1", 405), ("OPTIONS * HTTP/1.1", 405), ("GET /broken HTTP/1.1", 500),
        ("GET :// HTTP/1.1", 400),
        ("get /metrics HTTP/1.1", 400), ("\x16\x03\x01\x02", 400), ("GET /metrics HTTP/9.9", 400), ("", 400),
    ],
)
async def test_each_request_line_has_its_answer(running, request_line, status):
    said = await running.say(f"{request_line}\r\nHost: x\r\nConnection: close\r\n\r\n".encode("latin-1"))
    assert said.startswith(f"HTTP/1.1 {status} ".encode())
    assert said.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("Content-Length: 5", 413), ("Transfer-Encoding: chunked", 413), ("Content-Length: 0", 200),
        ("Content-Length: x", 400),
        ("Content-Length: 5\r\nContent-Length: 6", 400),
        ("Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk", 200),
    ],
)
async def test_no_body_is_accepted(running, header, status):
    reader, writer = await running.connect()
    writer.write(f"GET /healthz HTTP/1.1\r\nHost: x\r\n{header}\r\n\r\n".encode())
    async with asyncio.timeout(10):
        assert (await reader.readline()).startswith(f"HTTP/1.1 {status} ".encode())
        if status != 200:
            assert b"Connection: close" in await reader.read()
    writer.close()


async def test_a_head_has_no_body_and_the_connection_is_kept(running):
    reader, writer = await running.connect()
    for method, body in (("HEAD", b""), ("GET", PAGE), ("GET", PAGE)):
        writer.write(f"{method} /metrics HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        async with asyncio.timeout(10):
            head = await reader.readuntil(b"\r\n\r\n")
            assert f"Content-Length: {len(PAGE)}".encode() in head
            assert await reader.readexactly(len(body)) == body
    writer.close()


async def test_two_requests_at_once_get_two_answers_in_turn(running):
    said = await running.say(b"GET /metrics HTTP/1.1\r\n\r\nGET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert said.index(PAGE) < said.index(b"ok\n")
    assert said.count(b"HTTP/1.1 200 OK") == 2


async def test_an_old_client_is_not_kept(running):
    assert (await running.say(b"GET /healthz HTTP/1.0\r\n\r\n")).endswith(b"Connection: close\r\n\r\nok\n")


async def test_a_header_has_a_bound(running):
    said = await running.say(b"GET /metrics HTTP/1.1\r\nX: " + b"a" * (64 << 10))
    assert said.startswith(b"HTTP/1.1 431 ")


# ---- slow and many -------------------------------------------------------------------------------------------------


async def test_who_sends_or_takes_nothing_holds_up_nobody_and_is_let_go(running, monkeypatch):
    monkeypatch.setattr(serve, "_HEAD", 0.3)
    monkeypatch.setattr(serve, "_SEND", 0.3)
    silent, half_written = await running.connect()
    half_written.write(b"GET /metr")
    raw = socket.create_connection(("127.0.0.1", running.port))
    raw.sendall(b"GET /big HTTP/1.1\r\n\r\n")  # and reads nothing
    assert (await running.get("/metrics"))[0] == 200
    async with asyncio.timeout(10):
        assert await silent.read() == b""
    await until(lambda: not running.server._connections)
    half_written.close()
    raw.close()


async def test_a_big_page_arrives_whole(running):
    assert (await running.get("/big"))[1] == BIG


async def test_when_there_are_too_many_the_longest_silent_one_goes(running, monkeypatch):
    monkeypatch.setattr(serve, "MOST_CONNECTIONS", 3)
    silent = [await running.connect() for _ in range(3)]
    await until(lambda: len(running.server._connections) == 3)
    assert (await running.get("/metrics"))[0] == 200
    async with asyncio.timeout(10):
        assert await silent[0][0].read() == b""
    assert not silent[2][0].at_eof()
    for _, writer in silent:
        writer.close()


async def test_the_end_closes_every_connection():
    async with Running() as server:
        reader, writer = await server.connect()
        await until(lambda: server.server._connections)
    async with asyncio.timeout(10):
        assert await reader.read() == b""
    writer.close()
    with pytest.raises(ConnectionRefusedError):
        await server.connect()


async def test_an_answer_does_not_wait_for_more():
    """40 ms each, where the client acknowledges late and Nagle waits for it."""
    async with Running() as server:
        reader, writer = await server.connect()
        began = time.monotonic()
        for _ in range(20):
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().split(b"content-length:")[1].split()[0]))
        took = time.monotonic() - began
        writer.close()
    assert took < 0.4


# ---- TLS -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


def write_certificate(folder, authority, name="localhost"):
    issued = authority.issue_cert(name, "127.0.0.1")
    (folder / "tls.crt").write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    (folder / "tls.key").write_bytes(issued.private_key_pem.bytes())
    authority.cert_pem.write_to_path(str(folder / "ca.crt"))
    return issued


def write_config(folder, text):
    path = folder / "web.yaml"
    path.write_text(text)
    return path


TLS = "tls_server_config:\n  cert_file: tls.crt\n  key_file: tls.key\n"
MUTUAL = TLS + "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n"


def trust(authority, client=None, newest=None):
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if client is not None:
        client.configure_cert(context)
    if newest is not None:
        context.maximum_version = newest
    return context


async def test_over_tls(tmp_path, authority):
    write_certificate(tmp_path, authority)
    async with Running(write_config(tmp_path, TLS)) as server:
        assert (await server.get("/metrics", tls=trust(authority)))[:2] == (200, PAGE)
        with pytest.raises(aiohttp.ClientError):
            await server.get("/metrics")
        silent, writer = await server.connect()  # no handshake: it holds up nobody
        assert (await server.get("/metrics", tls=trust(authority)))[0] == 200
        writer.close()
        assert silent is not None


async def test_the_least_version_is_heeded(tmp_path, authority):
    write_certificate(tmp_path, authority)
    async with Running(write_config(tmp_path, TLS + "  min_version: TLS13\n")) as server:
        assert (await server.get("/metrics", tls=trust(authority)))[0] == 200
        with pytest.raises(aiohttp.ClientError):
            await server.get("/metrics", tls=trust(authority, newest=ssl.TLSVersion.TLSv1_2))


async def test_a_client_needs_a_certificate_of_the_named_authority(tmp_path, authority):
    write_certificate(tmp_path, authority)
    async with Running(write_config(tmp_path, MUTUAL)) as server:
        assert (await server.get("/metrics", tls=trust(authority, authority.issue_cert("prometheus"))))[0] == 200
        for stranger in (None, trustme.CA().issue_cert("prometheus")):
            with pytest.raises((aiohttp.ClientError, OSError)):
                await server.get("/metrics", tls=trust(authority, stranger))


async def test_a_new_certificate_is_used_without_a_restart_and_a_bad_one_is_not(tmp_path, authority, caplog):
    write_certificate(tmp_path, authority)
    async with Running(write_config(tmp_path, TLS)) as server:
        await server.get("/metrics", tls=trust(authority))
        later = trustme.CA()
        write_certificate(tmp_path, later)
        server.clock.now += 2
        assert (await server.get("/metrics", tls=trust(later)))[0] == 200
        (tmp_path / "tls.key").write_text("not a key")
        server.clock.now += 2
        assert (await server.get("/metrics", tls=trust(later)))[0] == 200
        assert "what held before still holds" in caplog.text


async def test_a_file_that_is_swapped_by_link_as_secrets_are_is_seen(tmp_path, authority):
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    write_certificate(tmp_path / "1", authority)
    (tmp_path / "now").symlink_to("1")
    config = write_config(tmp_path, "tls_server_config: {cert_file: now/tls.crt, key_file: now/tls.key}\n")
    async with Running(config) as server:
        await server.get("/metrics", tls=trust(authority))
        later = trustme.CA()
        write_certificate(tmp_path / "2", later)
        (tmp_path / "new").symlink_to("2")
        os.replace(tmp_path / "new", tmp_path / "now")
        server.clock.now += 2
        assert (await server.get("/metrics", tls=trust(later)))[0] == 200


# ---- passwords -----------------------------------------------------------------------------------------------------


def hashed(password, cost=4):
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(cost)).decode()


def users(**passwords):
    return "basic_auth_users:\n" + "".join(f"  {name}: {hashed(password)}\n" for name, password in passwords.items())


@pytest.mark.parametrize(
    ("path", "auth", "status"),
    [
        ("/metrics", None, 401), ("/metrics", ("ada", "lovelace"), 200), ("/metrics", ("ada", "babbage"), 401),
        ("/metrics", ("eve", "lovelace"), 401), ("/metrics", ("", ""), 401), ("/nothing", None, 401),
        ("/nothing", ("ada", "lovelace"), 404),
        ("/healthz", None, 200), ("/metrics", ("ada", "x" * 100), 401), ("/metrics", ("ada", "a\0b"), 401),
        ("/metrics", ("grace", "hopper"), 200),
    ],
)
async def test_a_password_is_asked_for_but_not_of_health_probes(tmp_path, path, auth, status):
    async with Running(write_config(tmp_path, users(ada="lovelace", grace="hopper"))) as server:
        for _ in range(2):  # the second time from memory
            answer = await server.get(path, auth=auth)
            assert answer[0] == status
            assert ("WWW-Authenticate" in answer[2]) == (status == 401)


@pytest.mark.parametrize(
    "header", ["Bearer abc", "Basic", "Basic !!!", "Basic YWRh", "Basic " + "//8=", "basic  YWRhOmxvdmVsYWNl"]
)
async def test_odd_credentials_are_no_credentials(tmp_path, header):
    async with Running(write_config(tmp_path, users(ada="lovelace"))) as server:
        expected = 200 if header.startswith("basic") else 401  # the scheme's case does not matter
        assert (await server.get("/metrics", headers={"Authorization": header}))[0] == expected


async def test_a_user_who_is_taken_out_is_out_and_one_with_a_new_password_needs_it(tmp_path):
    ada, grace = ("ada", "lovelace"), ("grace", "hopper")
    async with Running(write_config(tmp_path, users(ada="lovelace", grace="hopper"))) as server:
        assert [(await server.get("/metrics", auth=who))[0] for who in (ada, grace)] == [200, 200]
        write_config(tmp_path, users(grace="murray"))
        server.clock.now += 2
        assert [(await server.get("/metrics", auth=who))[0] for who in (ada, grace)] == [401, 401]
        assert (await server.get("/metrics", auth=("grace", "murray")))[0] == 200


async def test_a_good_password_is_hashed_once_and_hashing_holds_up_nobody(tmp_path, monkeypatch):
    slow = asyncio.Event()
    loop, calls = asyncio.get_running_loop(), []
    real = bcrypt.checkpw

    def check(password, stored):
        calls.append(password)
        asyncio.run_coroutine_threadsafe(slow.wait(), loop).result(10)
        return real(password, stored)

    monkeypatch.setattr(bcrypt, "checkpw", check)  # the other side of the wire has no seam for time
    async with Running(write_config(tmp_path, users(ada="lovelace"))) as server:
        first = asyncio.create_task(server.get("/metrics", auth=("ada", "lovelace")))
        await until(lambda: calls)
        assert (await server.get("/healthz"))[0] == 200
        slow.set()
        assert (await first)[0] == 200
        for _ in range(3):
            assert (await server.get("/metrics", auth=("ada", "lovelace")))[0] == 200
    assert calls == [b"lovelace"]


# ---- the file ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tls_server_config: {cert_file: a}", "key_file"),
        ("tls_server_config: {cert_file: none.crt, key_file: none.key}", "cannot be loaded"),
        ("http_server_config: {http2: false}", "http_server_config"),
        ("tls_server_config: {cert_file: a, key_file: b, ciphers: []}", "ciphers"),
        (TLS + "  client_auth_type: RequireAnyClientCert", "client_auth_type"),
        (TLS + "  client_auth_type: RequireAndVerifyClientCert", "client_ca_file"),
        (TLS + "  client_ca_file: ca.crt", "client_auth_type"), (TLS + "  min_version: SSL30", "min_version"),
        (TLS + "  client_auth_type: VerifyClientCertIfGiven\n  client_ca_file: none.crt", "cannot be loaded"),
        ("basic_auth_users: {ada: sesame}", "'ada' is not a bcrypt hash"),
        ("basic_auth_users: {ada: 5}", "basic_auth_users"),
        ("basic_auth_users: [ada]", "basic_auth_users"), ("[1, 2]", "array"), ("a: b: sesame", "not YAML at line 1"),
        ("\tsesame", "not YAML"), ("!!python/object/apply:os.system [sesame]", "not YAML"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_sentence_without_its_secrets(tmp_path, authority, text, says):
    write_certificate(tmp_path, authority)
    with pytest.raises(settings.UsageError) as refused:
        access.read(write_config(tmp_path, text))
    sentence = str(refused.value)
    assert sentence.startswith("WEB_CONFIG_FILE: ")
    assert says in sentence
    assert "\n" not in sentence
    assert "sesame" not in sentence


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(settings.UsageError, match=r"WEB_CONFIG_FILE: .*none\.yaml cannot be read: No such file"):
        access.read(tmp_path / "none.yaml")


def test_an_empty_file_asks_for_nothing(tmp_path):
    read = access.read(write_config(tmp_path, "# nothing yet\n"))
    assert (read.tls, dict(read.users)) == (None, {})
