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


async def kubeconfig_token() -> str | None:
    return "of-kubeconfig"


async def test_none_sends_nothing(tmp_path: Path) -> None:
    everything = auth.Login(
        method="none", token=Secret("t"), environment={"PROMETHEUS_TOKEN": "e"}, kubernetes_token=kubeconfig_token
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
        "kubernetes_token": kubeconfig_token,
        "service_account_token_file": str(files["account"]),
        "oc": str(files["oc"]),
    }


ABSENT: dict[str, Any] = {
    "token": None,
    "token_file": "",
    "environment": {},
    "kubernetes_token": None,
    "service_account_token_file": "/nonexistent",
    "oc": "/nonexistent",
}
ORDER = {
    "token": "token",
    "token_file": "token_file",
    "environment": "environment",
    "kubernetes_token": "of-kubeconfig",
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


@pytest.mark.parametrize("missing", range(7))
async def test_auto_takes_the_first_that_is_there(missing: int, tmp_path: Path) -> None:
    given = {**everything(tmp_path), **{name: ABSENT[name] for name in list(ORDER)[:missing]}}
    expected = [*ORDER.values(), None][missing]
    assert await chosen(auth.Login(**given), "https://prometheus.example.com") == expected


@pytest.mark.parametrize(
    ("url", "may"),
    [
        ("https://prometheus.example.com", True),
        ("http://prometheus.monitoring.svc:9090", True),
        ("http://prometheus.monitoring.svc.cluster.local:9090", True),
        ("http://prometheus.example.com", False),
        ("http://svc", False),
        ("http://prometheus.monitoring.svc.evil.com", False),
        ("http://127.0.0.1:9090", False),
    ],
)
@pytest.mark.parametrize("source", ["kubernetes_token", "service_account_token_file", "oc"])
async def test_the_clusters_own_token_goes_only_where_it_is_safe(
    url: str, may: bool, source: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    login = auth.Login(**{**ABSENT, source: everything(tmp_path)[source]})
    with caplog.at_level(logging.WARNING):
        assert await chosen(login, url) == (ORDER[source] if may else None)
    assert bool(caplog.records) != may


async def test_a_token_meant_for_prometheus_goes_anywhere(tmp_path: Path) -> None:
    assert await chosen(auth.Login(**{**ABSENT, "token": Secret("mine")}), "http://prometheus.example.com") == "mine"


async def test_the_warning_comes_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert await sent(auth.Login(**ABSENT), times=3) == [None] * 3
    assert len(caplog.records) == 1


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
