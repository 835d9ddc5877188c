"""Ways to log in to Prometheus that need nobody else: tokens, files, basic, and what `auto` chooses."""

import base64
import logging
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yarl
from aiohttp import web
from tests.unit.clients import loopback
from tests.unit.clients.prometheus.test_client import NOW, ONE, Row, says

from fallow.clients import errors, signing
from fallow.clients.prometheus import auth, client
from fallow.model.secret import Secret


async def sent(login: auth.Login, url: str = "", times: int = 1) -> list[str | None]:
    """The Authorization headers of so many queries, each in a cycle of its own."""
    async with (
        loopback.serve(says(ONE_AT_ANY_TIME)) as server,
        client.Prometheus(url or server.url, login=login) as prometheus,
    ):
        for cycle in range(times):
            await prometheus.query("up", NOW + cycle, row=Row)
    return [asked.headers.get("Authorization") for asked in server.asked]


ONE_AT_ANY_TIME = {"status": "success", "data": {"resultType": "vector", "result": []}}


class Kubeconfig:
    """Has a token, and another one once that was refused."""

    def __init__(self) -> None:
        self.refused = 0

    async def token(self) -> str | None:
        return f"of-kubeconfig{self.refused or ''}"

    def invalidate(self) -> None:
        self.refused += 1


async def test_none_sends_nothing(tmp_path: Path) -> None:
    everything = auth.Login(
        method="none", token=Secret("t"), environment={"PROMETHEUS_TOKEN": "e"}, kubernetes=Kubeconfig()
    )
    assert await sent(everything) == [None]


async def test_bearer_by_literal_environment_and_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("of-file\n")
    assert await sent(auth.Login(method="bearer", token=Secret("literal"), environment={"PROMETHEUS_TOKEN": "e"})) == [
        "Bearer literal"
    ]
    assert await sent(auth.Login(method="bearer", environment={"PROMETHEUS_TOKEN": "of-environment"})) == [
        "Bearer of-environment"
    ]
    assert await sent(auth.Login(method="bearer", token_file=str(file), environment={"PROMETHEUS_TOKEN": "e"})) == [
        "Bearer of-file"
    ]


async def test_a_token_file_is_read_again_each_cycle_and_after_a_401(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old")

    def answer(asked: loopback.Asked) -> web.Response:
        if asked.headers["Authorization"] == "Bearer old":
            file.write_text("new")
            return web.Response(status=401)
        return web.json_response(ONE)

    async with (
        loopback.serve(answer) as server,
        client.Prometheus(server.url, login=auth.Login(method="bearer", token_file=str(file))) as prometheus,
    ):
        await prometheus.query("up", NOW, row=Row)
        file.write_text("newer")
        await prometheus.query("up", NOW, row=Row)
        server.answer = says(ONE_AT_ANY_TIME)
        await prometheus.query("up", NOW + 1, row=Row)
    tokens = [asked.headers["Authorization"].removeprefix("Bearer ") for asked in server.asked]
    assert tokens == ["old", "new", "new", "newer"], "one reading per instant, one more after the 401"


async def test_a_second_401_is_final() -> None:
    login = auth.Login(method="bearer", token=Secret("s3cret"))
    async with (
        loopback.serve(lambda _: web.Response(status=401)) as server,
        client.Prometheus(server.url, login=login) as prometheus,
    ):
        with pytest.raises(errors.Unauthorized) as caught:
            await prometheus.query("up", NOW, row=Row)
    assert len(server.asked) == 2
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("how", ["environment", "file"])
async def test_basic(how: str, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("p:w\n")
    given: dict[str, Any] = (
        {"environment": {"PROMETHEUS_PASSWORD": "p:w"}} if how == "environment" else {"password_file": str(file)}
    )
    (header,) = await sent(auth.Login(method="basic", username="ada", **given))
    assert header is not None
    assert base64.b64decode(header.removeprefix("Basic ")) == b"ada:p:w"


INCOMPLETE = {
    "bearer": auth.Login(method="bearer"),
    "basic without password": auth.Login(method="basic", username="ada"),
    "basic without user": auth.Login(method="basic", environment={"PROMETHEUS_PASSWORD": "x"}),
}


@pytest.mark.parametrize("name", INCOMPLETE)
def test_a_method_without_what_it_needs_is_refused_at_once(name: str) -> None:
    with pytest.raises(errors.Misconfigured):
        client.Prometheus("https://p", login=INCOMPLETE[name])


async def test_a_token_file_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.Misconfigured, match="gone"):
        await sent(auth.Login(method="bearer", token_file=str(tmp_path / "gone")))


# ---- auto -----------------------------------------------------------------------------------------


def everything(tmp_path: Path) -> dict[str, Any]:
    """A login with every source of `auto`, each with a token that names it, in the order of the specification."""
    files = {name: tmp_path / name for name in ("token_file", "account", "oc")}
    files["token_file"].write_text("token_file")
    files["account"].write_text("account")
    files["oc"].write_text('#!/bin/sh\n[ "$*" = "whoami -t" ] && echo oc\n')
    files["oc"].chmod(0o755)
    return {
        "token": Secret("token"),
        "token_file": str(files["token_file"]),
        "environment": {"PROMETHEUS_TOKEN": "environment"},
        "username": "ada",
        "kubernetes": Kubeconfig(),
        "service_account_token_file": str(files["account"]),
        "oc": str(files["oc"]),
    }


ABSENT: dict[str, Any] = {
    "token": None,
    "token_file": "",
    "environment": {},
    "username": "",
    "kubernetes": None,
    "service_account_token_file": "/nonexistent",
    "oc": "/nonexistent",
}
ORDER = {
    "token": "token",
    "token_file": "token_file",
    "environment": "environment",
    "username": "Basic YWRhOnBhc3M=",
    "kubernetes": "of-kubeconfig",
    "service_account_token_file": "account",
    "oc": "oc",
}


async def chosen(login: auth.Login, url: str) -> str | None:
    """What would be sent to an address that need not exist."""
    async with aiohttp.ClientSession() as session:
        headers = await auth.choose(login, yarl.URL(url)).headers(
            signing.Outgoing(session, "POST", yarl.URL(url), b"", NOW)
        )
    return headers.get("Authorization", "").removeprefix("Bearer ") or None


@pytest.mark.parametrize("missing", range(8))
async def test_auto_takes_the_first_that_is_there(missing: int, tmp_path: Path) -> None:
    given = {**everything(tmp_path), **{name: ABSENT[name] for name in list(ORDER)[:missing]}}
    given["environment"] = {**given["environment"], "PROMETHEUS_PASSWORD": "pass"}
    expected = [*ORDER.values(), None][missing]
    assert await chosen(auth.Login(**given), "https://prometheus.monitoring.svc") == expected


async def test_a_header_given_by_hand_wins_over_everything(tmp_path: Path) -> None:
    for login in (auth.Login(**everything(tmp_path)), auth.Login(method="bearer", token=Secret("token"))):
        async with (
            loopback.serve(says(ONE_AT_ANY_TIME)) as server,
            client.Prometheus(server.url, login=login, headers=["authorization: Bearer by-hand"]) as prometheus,
        ):
            await prometheus.query("up", NOW, row=Row)
        assert [asked.headers.get("Authorization") for asked in server.asked] == ["Bearer by-hand"]


API = "https://api.c.example.com:6443"
REACH = {
    "https://thanos-querier.openshift-monitoring.svc:9091": True,
    "https://prometheus.monitoring.svc.cluster.local": True,
    "https://thanos.apps.c.example.com": True,
    "https://THANOS.apps.c.example.com.": True,
    "http://prometheus.monitoring.svc:9090": False,
    "http://thanos.apps.c.example.com": False,
    "https://prometheus.example.com": False,
    "https://c.example.com": False,
    "https://evil-c.example.com": False,
    "https://prometheus.monitoring.svc.evil.com": False,
    "https://svc": False,
    "https://127.0.0.1:9090": False,
}


@pytest.mark.parametrize(("url", "may"), REACH.items())
@pytest.mark.parametrize("source", ["kubernetes", "service_account_token_file", "oc"])
async def test_the_clusters_own_token_goes_only_to_hosts_of_the_cluster(
    url: str, may: bool, source: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    login = auth.Login(**{**ABSENT, source: everything(tmp_path)[source], "api_server": API})
    with caplog.at_level(logging.WARNING):
        assert await chosen(login, url) == (ORDER[source] if may else None)
    assert bool(caplog.records) != may
    assert may or all(flag in caplog.text for flag in ("--prometheus-token-file", "--prometheus-auth kube"))


@pytest.mark.parametrize(("api_server", "host"), [
    ("https://10.0.0.1:6443", "x.0.0.1"), ("https://10.0.0.1:6443", "10.0.0.1"), ("https://[fd00::1]", "x.example"),
    ("https://kubernetes", "x.kubernetes"), ("https://api.com", "x.com"), ("", "x.example.com"),
    ("https://ABCD.gr7.eu-west-1.eks.amazonaws.com", "EF01.gr7.eu-west-1.eks.amazonaws.com"),
    ("https://mine.hcp.westeurope.azmk8s.io", "theirs.hcp.westeurope.azmk8s.io"),
])
def test_an_api_server_without_a_domain_of_its_own_vouches_for_nobody(api_server: str, host: str) -> None:
    assert not auth.is_of_the_cluster(yarl.URL(f"https://{host}"), auth.Login(api_server=api_server))


async def test_where_the_certificate_is_not_verified_the_clusters_token_stays_here() -> None:
    login = auth.Login(**{**ABSENT, "kubernetes": Kubeconfig(), "verifies": False})
    assert await chosen(login, "https://prometheus.monitoring.svc") is None


async def test_kube_sends_the_clusters_token_wherever_the_address_points() -> None:
    login = {**ABSENT, "kubernetes": Kubeconfig(), "method": "kube", "verifies": False}
    assert await chosen(auth.Login(**login), "http://prometheus.example.com") == "of-kubeconfig"
    with pytest.raises(errors.Misconfigured, match="needs a Kubernetes token"):
        await chosen(auth.Login(**{**login, "kubernetes": None}), "http://prometheus.example.com")


async def test_a_kubernetes_token_that_was_refused_is_asked_for_again() -> None:
    def answer(asked: loopback.Asked) -> web.Response:
        is_new = asked.headers["Authorization"] == "Bearer of-kubeconfig1"
        return web.json_response(ONE_AT_ANY_TIME) if is_new else web.Response(status=401)

    login = auth.Login(**{**ABSENT, "method": "kube", "kubernetes": Kubeconfig()})
    async with loopback.serve(answer) as server, client.Prometheus(server.url, login=login) as prometheus:
        await prometheus.query("up", NOW, row=Row)


async def test_a_redirect_carries_nothing_to_another_host() -> None:
    async with loopback.serve(says(ONE_AT_ANY_TIME)) as other:

        def send_on(asked: loopback.Asked) -> web.Response:
            return web.Response(status=307, headers={"Location": f"{other.url}{asked.path}"})

        login = auth.Login(method="bearer", token=Secret("s3cret"))
        async with loopback.serve(send_on) as server, client.Prometheus(server.url, login=login) as prometheus:
            with pytest.raises(errors.Rejected, match="answered 307"):
                await prometheus.query("up", NOW, row=Row)
    assert other.asked == []


async def test_a_token_meant_for_prometheus_goes_anywhere(tmp_path: Path) -> None:
    assert await chosen(auth.Login(**{**ABSENT, "token": Secret("mine")}), "http://prometheus.example.com") == "mine"


async def test_the_warning_comes_once(caplog: pytest.LogCaptureFixture) -> None:
    signer = auth.choose(auth.Login(**ABSENT), yarl.URL("http://prometheus.example.com"))
    async with aiohttp.ClientSession() as session:
        asked = signing.Outgoing(session, "POST", yarl.URL("http://prometheus.example.com"), b"", NOW)
        with caplog.at_level(logging.WARNING):
            assert [await signer.headers(asked) for _ in range(3)] == [{}] * 3
    assert len(caplog.records) == 1


async def test_a_port_forward_is_asked_without_a_token_and_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    """`kubectl port-forward`, as the README has it: the kubeconfig's token does not go there, and nothing is amiss."""
    with caplog.at_level(logging.WARNING):
        assert await sent(auth.Login(**{**ABSENT, "kubernetes": Kubeconfig()}), times=3) == [None] * 3
    assert caplog.records == []


OC = {"fails": "exit 1", "hangs": "exec sleep 60", "noise on failure": "echo token; exit 1"}


@pytest.mark.parametrize("name", OC)
async def test_an_oc_that_gives_no_token_is_no_error(name: str, tmp_path: Path) -> None:
    program = tmp_path / "oc"
    program.write_text(f"#!/bin/sh\n{OC[name]}\n")
    program.chmod(0o755)
    assert await auth.ask_oc(str(program), timeout=0.2) == ""


def test_secrets_are_not_in_a_repr() -> None:
    login = auth.Login(token=Secret("s3cret"), environment={"PROMETHEUS_PASSWORD": "s3cret"}, username="ada")
    prometheus = client.Prometheus("https://p", login=login, headers=["X-Key: s3cret"])
    assert "s3cret" not in f"{login!r} {prometheus!r} {vars(prometheus)['_signer']!r}"
