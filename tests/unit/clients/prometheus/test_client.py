"""The Prometheus client's protocol: what is sent, what is believed, what is tried again."""

import asyncio
import gzip
import ssl
import time
import traceback
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trustme
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.clients import loopback

from fallow.clients import errors, tls
from fallow.clients.prometheus import auth, client
from fallow.model.secret import Secret

NOW = 1_800_000_000.0
NO_LOGIN = auth.Login(method="none")


class Row(msgspec.Struct):
    pod: str = ""


def vector(*samples: tuple[dict[str, str], str], at: float = NOW, **more: Any) -> dict[str, Any]:
    result = [{"metric": metric, "value": [at, value]} for metric, value in samples]
    return {"status": "success", "data": {"resultType": "vector", "result": result}, **more}


ONE = vector(({"pod": "a", "other": "x"}, "0.5"))


def says(document: Any, status: int = 200) -> loopback.Answer:
    return lambda _: web.json_response(document, status=status)


def words(text: str, status: int = 200, kind: str = "text/plain") -> loopback.Answer:
    return lambda _: web.Response(text=text, status=status, content_type=kind)


async def ask(url: str, **options: Any) -> client.QueryAnswer[client.InstantSeries[Row]]:
    async with client.Prometheus(url, **{"login": NO_LOGIN, "backoff": 0.001, **options}) as prometheus:
        return await prometheus.query("up", NOW, row=Row)


# ---- what is sent ---------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "/", "/select/0/prometheus", "/thanos/"])
async def test_a_query_is_a_form_posted_below_the_prefix(prefix: str) -> None:
    async with loopback.serve(says(ONE)) as server:
        answer = await ask(server.url + prefix, headers=["X-Scope-OrgID: team-a"])
    (asked,) = server.asked
    assert (asked.method, asked.path) == ("POST", prefix.rstrip("/") + "/api/v1/query")
    assert asked.form == {
        "query": "up",
        "time": f"{NOW:.3f}",
        "timeout": "30s",
        "dedup": "true",
        "partial_response": "false",
    }
    assert asked.headers["X-Scope-OrgID"] == "team-a"
    assert [(row.metric.pod, row.value.value) for row in answer.rows] == [("a", "0.5")]


@pytest.mark.parametrize("status", [403, 405])
async def test_get_is_tried_once_where_post_is_not_allowed_and_then_kept(status: int) -> None:
    def answer(asked: loopback.Asked) -> web.Response:
        return web.json_response(ONE) if asked.method == "GET" else web.Response(status=status)

    async with loopback.serve(answer) as server, client.Prometheus(server.url, login=NO_LOGIN) as prometheus:
        for _ in range(2):
            assert len((await prometheus.query('up{a="ü&=+ %"}', NOW, row=Row)).rows) == 1
    assert [asked.method for asked in server.asked] == ["POST", "GET", "GET"]
    assert server.asked[1].query == server.asked[0].form


async def test_forbidden_either_way_is_forbidden() -> None:
    async with loopback.serve(words("no", 403)) as server:
        with pytest.raises(errors.Forbidden):
            await ask(server.url)
    assert [asked.method for asked in server.asked] == ["POST", "GET"]


@pytest.mark.parametrize(
    ("status", "requests"), [(500, 4), (502, 4), (503, 4), (429, 4), (400, 1), (422, 1), (404, 1), (302, 1)]
)
async def test_only_what_may_pass_is_tried_again(status: int, requests: int) -> None:
    async with loopback.serve(says({"status": "error", "error": "bad luck"}, status)) as server:
        with pytest.raises(errors.Rejected, match="bad luck") as caught:
            await ask(server.url)
    assert (caught.value.status, len(server.asked)) == (status, requests)


async def test_a_server_that_recovers_is_not_an_error() -> None:
    async with loopback.serve(loopback.in_turn(words("", 503), words("", 429), says(ONE))) as server:
        assert len((await ask(server.url)).rows) == 1
    assert len(server.asked) == 3


async def test_waits_grow_and_the_callers_deadline_holds() -> None:
    async with loopback.serve(words("", 500)) as server:
        began = time.monotonic()
        with pytest.raises(errors.ServerFault):
            await ask(server.url, backoff=0.02)
        assert time.monotonic() - began >= 0.14
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await ask(server.url, backoff=10)


async def test_nobody_there() -> None:
    async with loopback.serve(words("")) as server:
        url = server.url
    with pytest.raises(errors.Unreachable, match=r"cannot be reached: connection refused$"):
        await ask(url)


async def test_a_host_that_nobody_knows_is_named_so() -> None:
    with pytest.raises(errors.Unreachable, match=r"cannot be reached: its host name is not known here$"):
        await ask("http://prometheus.invalid:9090")


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("answers", [True, False])
async def test_no_error_tells_the_password_of_the_proxy(scheme: str, answers: bool) -> None:
    async with loopback.serve(words("", status=407)) as server:
        proxy = Secret(server.url.replace("http://", "http://bob:S3CR3T@"))
        if answers:
            with pytest.raises(errors.ClientError, match=r"answered 40[47]$") as refused:
                await ask(f"{scheme}://prometheus.example.com", proxy=proxy)
    if not answers:
        with pytest.raises(errors.Unreachable, match=r"the proxy cannot be reached: connection refused$") as refused:
            await ask(f"{scheme}://prometheus.example.com", proxy=proxy)
    told = "".join(traceback.format_exception(refused.value))
    assert "S3CR3T" not in told
    assert "bob" not in told


async def test_whoever_waits_is_told_once_and_at_once() -> None:
    said: list[str] = []
    async with loopback.serve(words("")) as server:
        url = server.url
    with pytest.raises(errors.Unreachable):
        await ask(url, tell=said.append)
    assert said == [f"Prometheus at {url} cannot be reached: connection refused; trying again ..."]
    async with loopback.serve(says(ONE)) as server:
        await ask(server.url, tell=said.append)
    assert len(said) == 1, "who is answered is told nothing"


async def test_a_silent_server_is_unreachable() -> None:
    async def never(_: loopback.Asked) -> web.Response:
        await asyncio.sleep(30)
        return web.Response()

    async with loopback.serve(never) as server:
        with pytest.raises(errors.Unreachable, match="did not answer in time"):
            await ask(server.url, timeout=0.3)
    assert len(server.asked) == 4


# ---- what is believed -----------------------------------------------------------------------------

UNBELIEVABLE = {
    "web page": (words("<!DOCTYPE html><html>Sign in</html>", kind="text/html"), errors.BadAnswer, "web page"),
    "not JSON": (words("so far so good"), errors.BadAnswer, "not JSON"),
    "no body": (words(""), errors.BadAnswer, "not JSON"),
    "a list": (says([]), errors.BadAnswer, "not JSON"),
    "no data": (says({"status": "success"}), errors.BadAnswer, "nothing instead of a vector"),
    "matrix": (
        says({"status": "success", "data": {"resultType": "matrix", "result": []}}),
        errors.BadAnswer,
        "matrix instead",
    ),
    "scalar": (
        says({"status": "success", "data": {"resultType": "scalar", "result": [1, "2"]}}),
        errors.BadAnswer,
        "scalar instead",
    ),
    "odd rows": (
        says({"status": "success", "data": {"resultType": "vector", "result": [7]}}),
        errors.BadAnswer,
        "vector",
    ),
    "error with 200": (
        says({"status": "error", "errorType": "timeout", "error": "took too long"}),
        errors.Rejected,
        "took too long",
    ),
    "nested too deep": (
        words('{"status":"success","x":' + "[" * 5000 + "]" * 5000 + "}"), errors.BadAnswer, "not JSON",
    ),
    "no UTF-8": (
        lambda _: web.Response(body=b'{"status":"success","warnings":["\xff"]}'), errors.BadAnswer, "not JSON",
    ),
    "a refusal nested too deep": (
        words('{"error":' + "[" * 5000 + "]" * 5000 + "}", status=400), errors.Rejected, "answered 400",
    ),
    "another time": (says(vector(({}, "1"), at=NOW - 2)), errors.BadAnswer, "another time"),
}


@pytest.mark.accepts("idle", 5)
@pytest.mark.parametrize("name", UNBELIEVABLE)
async def test_an_answer_that_is_no_vector_of_that_instant_is_refused(name: str) -> None:
    answer, error, match = UNBELIEVABLE[name]
    async with loopback.serve(answer) as server:
        with pytest.raises(error, match=match):
            await ask(server.url)
    assert len(server.asked) == 1


PARTLY = {
    "complete": ({}, False, (), ()),
    "a warning": ({"warnings": ["store lost"]}, True, ("store lost",), ()),
    "isPartial": ({"isPartial": True}, True, (), ()),
    "an info": ({"infos": ["PromQL info: x"]}, False, (), ("PromQL info: x",)),
    "an info among warnings": ({"warnings": ["PromQL info: x"]}, False, (), ("PromQL info: x",)),
    "nulls": ({"warnings": None, "infos": None}, False, (), ()),
}


@pytest.mark.parametrize("name", PARTLY)
async def test_partial_answers_are_known_as_such(name: str) -> None:
    more, partial, warnings, infos = PARTLY[name]
    async with loopback.serve(says({**ONE, **more})) as server:
        answer = await ask(server.url)
    assert (answer.partial, answer.warnings, answer.infos) == (partial, warnings, infos)


async def test_numbers_come_as_they_were_written() -> None:
    written = ["NaN", "+Inf", "-Inf", "1e-05", "9.223372036854776e+18"]
    async with loopback.serve(says(vector(*(({"pod": value}, value) for value in written)))) as server:
        answer = await ask(server.url)
    assert [row.value.value for row in answer.rows] == written


HISTOGRAM = [NOW, {"count": "3", "sum": "0", "buckets": [[3, "-0.001", "0.001", "3"]]}]


async def test_a_native_histogram_is_no_number_and_is_counted() -> None:
    odd = vector(({"pod": "a"}, "0.5"))
    odd["data"]["result"].append({"metric": {"pod": "b"}, "histogram": HISTOGRAM})
    async with loopback.serve(says(odd)) as server:
        answer = await ask(server.url)
    assert [(row.metric.pod, row.value.value) for row in answer.rows] == [("a", "0.5"), ("b", "NaN")]
    assert (answer.histograms, answer.partial) == (1, False)


async def test_of_a_range_native_histograms_are_left_out() -> None:
    mixed = {"metric": {"pod": "a"}, "values": [[NOW, "1"]], "histograms": [HISTOGRAM]}
    whole = {"metric": {"pod": "b"}, "histograms": [HISTOGRAM]}
    document = {"status": "success", "data": {"resultType": "matrix", "result": [mixed, whole]}}
    async with loopback.serve(says(document)) as server, client.Prometheus(server.url, login=NO_LOGIN) as prometheus:
        answer = await prometheus.query_range("up", NOW - 60, NOW, 60, row=Row, now=NOW)
    assert [(row.metric.pod, [one.value for one in row.values]) for row in answer.rows] == [("a", ["1"]), ("b", [])]


# ---- PromQL text ----------------------------------------------------------------------------------


def test_selectors_carry_the_matchers_of_the_settings() -> None:
    prometheus = client.Prometheus("http://p", login=NO_LOGIN, matchers=' cluster="a" , env=~"x|y" ')
    assert prometheus.selector("up") == 'up{cluster="a" , env=~"x|y"}'
    assert prometheus.selector("up", 'a="b"', "") == 'up{a="b",cluster="a" , env=~"x|y"}'
    assert client.Prometheus("http://p", login=NO_LOGIN).selector("up") == "up{}"


@pytest.mark.parametrize(
    "matchers", ["cluster=a", 'cluster="a"} or up{x="', 'cluster="a', '="a"', 'a="b" c="d"', 'a="b",', 'a="b\n"']
)
def test_matchers_that_are_none_are_refused(matchers: str) -> None:
    with pytest.raises(errors.Misconfigured, match="label matchers"):
        client.Prometheus("http://p", login=NO_LOGIN, matchers=matchers)


def test_literals_are_escaped() -> None:
    assert client.escape('a"b\\c\nd') == 'a\\"b\\\\c\\nd'
    assert client.any_of("pod", ["a.b"]) == 'pod="a.b"'
    assert client.any_of("pod", ["a.b", 'c"|d']) == 'pod=~"a\\\\.b|c\\"\\\\|d"'


@given(st.lists(st.text(), min_size=2, max_size=4, unique=True), st.text())
def test_any_of_matches_exactly_its_values(values: list[str], other: str) -> None:
    re2 = pytest.importorskip("re2")
    quoted = client.any_of("pod", values).removeprefix('pod=~"').removesuffix('"')
    pattern = re2.compile("(?s)^(?:" + _unquote(quoted) + ")$")
    assert all(pattern.fullmatch(value) for value in values)
    assert bool(pattern.fullmatch(other)) == (other in values)


def _unquote(text: str) -> str:
    """What PromQL reads in double quotes, as far as `escape` makes use of it."""
    out, rest = [], iter(text)
    for letter in rest:
        following = next(rest) if letter == "\\" else ""
        out.append({"n": "\n"}.get(following, following) if following else letter)
    return "".join(out)


# ---- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["", "prometheus:9090", "ftp://p", "http://", "http://[", "/path"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(errors.Misconfigured, match="not a URL"):
        client.Prometheus(url, login=NO_LOGIN)


@pytest.mark.parametrize("header", ["s3cret", "bad name: s3cret", ": s3cret", "A: s3cret\r\nC: d"])
def test_a_header_that_is_none_is_refused_without_being_shown(header: str) -> None:
    with pytest.raises(errors.Misconfigured) as caught:
        client.Prometheus("http://p", login=NO_LOGIN, headers=[header])
    assert "s3cret" not in str(caught.value)


async def test_userinfo_logs_in_and_is_never_shown() -> None:
    async with loopback.serve(words("", 401)) as server:
        url = server.url.replace("http://", "http://ada:s3cret@")
        prometheus = client.Prometheus(url, backoff=0.001)
        async with prometheus:
            with pytest.raises(errors.Unauthorized) as caught:
                await prometheus.query("up", NOW, row=Row)
    assert server.asked[0].headers["Authorization"].startswith("Basic ")
    assert server.url in str(caught.value)
    assert "s3cret" not in f"{caught.value!r} {prometheus!r} {prometheus.address}"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def server_tls(authority: trustme.CA, *, demand_client: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    if demand_client:
        authority.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


async def test_tls_trusts_the_given_ca_or_nobody_or_all(authority: trustme.CA, tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    async with loopback.serve(says(ONE), server_tls(authority)) as server:
        assert len((await ask(server.url, files=tls.TlsFiles(ca_file=str(ca)))).rows) == 1
        assert len((await ask(server.url, files=tls.TlsFiles(verify=False))).rows) == 1
        with pytest.raises(errors.Unreachable, match="certificate"):
            await ask(server.url)


async def test_mutual_tls(authority: trustme.CA, tmp_path: Path) -> None:
    ca, cert, key = tmp_path / "ca.pem", tmp_path / "cert.pem", tmp_path / "key.pem"
    authority.cert_pem.write_to_path(str(ca))
    issued = authority.issue_cert("fallow@example.com")
    issued.cert_chain_pems[0].write_to_path(str(cert))
    issued.private_key_pem.write_to_path(str(key))
    async with loopback.serve(says(ONE), server_tls(authority, demand_client=True)) as server:
        files = tls.TlsFiles(ca_file=str(ca), client_cert=str(cert), client_key=str(key))
        assert len((await ask(server.url, files=files)).rows) == 1
        with pytest.raises(errors.Unreachable):
            await ask(server.url, files=tls.TlsFiles(ca_file=str(ca)))


@pytest.mark.parametrize(
    "files",
    [tls.TlsFiles(ca_file="gone.pem"), tls.TlsFiles(client_cert="gone.pem"), tls.TlsFiles(client_key="gone.pem")],
    ids=["ca", "cert", "key alone"],
)
def test_a_certificate_that_cannot_be_read_is_named(files: tls.TlsFiles) -> None:
    with pytest.raises(errors.Misconfigured, match=r"gone\.pem"):
        client.Prometheus("https://p", login=NO_LOGIN, files=files)


async def test_certificates_are_read_again_when_they_change(authority: trustme.CA, tmp_path: Path) -> None:
    ca, stranger = tmp_path / "ca.pem", trustme.CA()
    authority.cert_pem.write_to_path(str(ca))
    how: dict[str, Any] = {"files": tls.TlsFiles(ca_file=str(ca)), "login": NO_LOGIN, "backoff": 0.001}
    async with (
        loopback.serve(says(ONE), server_tls(authority)) as server,
        client.Prometheus(server.url, **how) as prometheus,
    ):
        await prometheus.query("up", NOW, row=Row)
        ca.write_text("half a file")
        await prometheus.query("up", NOW, row=Row)  # what was good a moment ago still is
        stranger.cert_pem.write_to_path(str(ca))
        with pytest.raises(errors.Unreachable, match="certificate"):
            await prometheus.query("up", NOW, row=Row)
        authority.cert_pem.write_to_path(str(ca))
        await prometheus.query("up", NOW, row=Row)


async def test_a_proxy_is_asked_instead_of_the_server() -> None:
    async with loopback.serve(says(ONE)) as proxy:
        address = "http://prometheus.example.com"
        async with client.Prometheus(address, login=NO_LOGIN, proxy=Secret(proxy.url)) as prometheus:
            await prometheus.query("up", NOW, row=Row)
    assert [asked.headers["Host"] for asked in proxy.asked] == ["prometheus.example.com"]


PACKED = {
    "gzip": (gzip.compress(msgspec.json.encode(ONE)), None),
    "deflate": (zlib.compress(msgspec.json.encode(ONE)), None),
    "gzip-bomb": (gzip.compress(b" " * (client.MAX_BODY + 1)), "more than 64 MiB"),
    "gzip-half": (gzip.compress(msgspec.json.encode(ONE))[:20], "not JSON"),
    "gzip-not": (b"no gzip", "cannot be unpacked"),
    "br": (b"x", "in the packing 'br'"),
}


@pytest.mark.parametrize("name", PACKED)
async def test_what_a_proxy_packs_is_unpacked_within_bounds(name: str) -> None:
    body, refusal = PACKED[name]
    packing = {"Content-Encoding": name.partition("-")[0]}

    def answer(_: loopback.Asked) -> web.Response:
        return web.Response(body=body, headers=packing, content_type="application/json")

    async with loopback.serve(answer) as server:
        if refusal is None:
            assert len((await ask(server.url)).rows) == 1
        else:
            with pytest.raises(errors.BadAnswer, match=refusal):
                await ask(server.url)


async def test_an_answer_beyond_bounds_is_refused() -> None:
    async with loopback.serve(lambda _: web.Response(body=b" " * (client.MAX_BODY + 1))) as server:
        with pytest.raises(errors.BadAnswer, match="more than 64 MiB"):
            await ask(server.url)
