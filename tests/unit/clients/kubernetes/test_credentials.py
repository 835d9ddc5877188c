"""Tokens that rotate and plugins that give them: what is shown, when it is renewed, what is said when it fails."""

import asyncio
import os
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.clients.kubernetes import wire

from fallow.clients import errors
from fallow.clients.kubernetes import api, config, credentials
from fallow.model.secret import Secret

V1 = "client.authentication.k8s.io/v1"
V1BETA1 = "client.authentication.k8s.io/v1beta1"
NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


def credential(version: str, status: dict[str, Any] | None) -> str:
    """What a plugin prints."""
    return msgspec.json.encode({"apiVersion": version, "kind": "ExecCredential", "status": status}).decode()


class Plugin:
    """A small program that prints what is in a file and counts how often it was run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.script = folder / "plugin.py"
        self.script.write_text(
            "import os, pathlib, sys\n"
            "here = pathlib.Path(__file__).parent\n"
            "with (here / 'runs').open('a') as runs: runs.write(os.environ.get('KUBERNETES_EXEC_INFO', '') + '\\n')\n"
            "assert sys.stdin.read() == ''\n"
            "sys.stdout.write((here / 'answer').read_text())\n"
        )

    def answers(self, version: str = V1, **status: Any) -> None:
        self.prints(credential(version, status))

    def prints(self, text: str) -> None:
        (self.folder / "answer").write_text(text)

    def does(self, code: str) -> None:
        self.script.write_text(code)

    @property
    def runs(self) -> int:
        runs = self.folder / "runs"
        return len(runs.read_text().splitlines()) if runs.exists() else 0

    def access(self, version: str = V1, server: str = "https://unused", **more: Any) -> config.Access:
        environment = Secret({"KUBERNETES_EXEC_INFO": "{}", "PATH": os.environ["PATH"]})
        plugin = config.ExecPlugin(
            version, sys.executable, (str(self.script),), environment, "Install it from example.org."
        )
        return config.Access(server=server, context="test", exec_plugin=plugin, **more)


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    return Plugin(tmp_path)


@pytest.mark.parametrize("version", [V1, V1BETA1])
async def test_a_plugin_is_asked_once_and_its_token_kept(plugin: Plugin, version: str) -> None:
    plugin.answers(version, token="abc")
    ours = credentials.Credentials(plugin.access(version))
    assert await asyncio.gather(*(ours.token() for _ in range(5))) == ["abc"] * 5
    assert await ours.authorization() == "Bearer abc"
    assert plugin.runs == 1


async def test_a_plugin_is_asked_again_when_its_token_is_about_to_expire(plugin: Plugin) -> None:
    now = NOON
    plugin.answers(token="first", expirationTimestamp=(NOON + timedelta(minutes=10)).isoformat())
    ours = credentials.Credentials(plugin.access(), utcnow=lambda: now)
    assert await ours.token() == "first"
    plugin.answers(token="second")
    now = NOON + timedelta(minutes=9)
    assert await ours.token() == "first"
    now = NOON + timedelta(minutes=9, seconds=51)
    assert await ours.token() == "second"
    assert plugin.runs == 2


async def test_a_plugin_is_asked_again_when_the_server_refuses_its_token(plugin: Plugin) -> None:
    plugin.answers(token="first")
    ours = credentials.Credentials(plugin.access())
    await ours.token()
    plugin.answers(token="second")
    assert ours.invalidate("first")
    assert await ours.token() == "second"
    assert ours.invalidate("first")  # a slower task's 401 for what is already replaced
    assert await ours.token() == "second"
    assert plugin.runs == 2


@pytest.mark.parametrize(
    ("more", "expected"),
    [({"token": Secret("fixed")}, "Bearer fixed"), ({"basic": Secret("ada:pw")}, "Basic YWRhOnB3")],
    ids=["token", "basic"],
)
async def test_what_is_fixed_wins_over_a_plugin(plugin: Plugin, more: dict[str, Any], expected: str) -> None:
    plugin.answers(token="from-plugin")
    ours = credentials.Credentials(plugin.access(**more))
    assert await ours.authorization() == expected
    assert await ours.certificate() is None
    assert not ours.invalidate()
    assert plugin.runs == 0


async def test_nobody_has_nothing_to_show() -> None:
    ours = credentials.Credentials(config.Access(server="https://x", context="x"))
    assert await ours.token() is None
    assert await ours.authorization() is None
    assert not ours.invalidate()


@pytest.mark.parametrize(
    ("printed", "sentence"),
    [
        ("hunter2", "printed no ExecCredential"),
        (credential(V1, None), "neither a token nor a client certificate"),
        (credential(V1, {"clientCertificateData": "x"}), "neither a token nor a client certificate"),
        (credential(V1BETA1, {"token": "hunter2"}), "another kind or version"),
        (credential(V1, {"token": ["hunter2"]}), "Expected `str`"),
        (credential(V1, {"token": "hunter2", "expirationTimestamp": "soon"}), "RFC3339"),
        (credential(V1, {"token": "hunter2 x"}), "holds a blank"),
    ],
    ids=["no-json", "no-status", "certificate-without-key", "version", "type", "time", "blank"],
)
async def test_a_plugin_that_gives_nothing_usable(plugin: Plugin, printed: str, sentence: str) -> None:
    plugin.prints(printed)
    with pytest.raises(errors.Misconfigured) as caught:
        await credentials.Credentials(plugin.access()).token()
    assert sentence in str(caught.value)
    assert "hunter2" not in str(caught.value)


async def test_a_plugin_that_fails_is_quoted_without_its_secrets(plugin: Plugin) -> None:
    token = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhZGEifQ"
    plugin.does(f"import sys; sys.stderr.write('first line\\nplease log in again, not {token}\\n'); sys.exit(3)")
    with pytest.raises(errors.Misconfigured, match=r"failed with code 3: please log in again, not \*\*\*$"):
        await credentials.Credentials(plugin.access()).token()


async def test_a_plugin_that_is_not_there_comes_with_its_hint(plugin: Plugin) -> None:
    missing = config.ExecPlugin(V1, str(plugin.folder / "gone"), (), Secret({}), "Install it from example.org.")
    access = config.Access(server="https://x", context="x", exec_plugin=missing)
    with pytest.raises(
        errors.Misconfigured, match=r"gone cannot be started: No such file or directory; Install it from example\.org\."
    ):
        await credentials.Credentials(access).token()


async def test_a_plugin_that_hangs_is_ended(plugin: Plugin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "PLUGIN_SECONDS", 10.0)  # in which any machine starts it
    plugin.does(
        "import os, pathlib, time\n"
        "pathlib.Path(__file__).with_name('pid').write_text(str(os.getpid()))\ntime.sleep(600)"
    )
    with pytest.raises(errors.Misconfigured, match="gave no answer in 10 s"):
        await credentials.Credentials(plugin.access()).token()
    pid = int((plugin.folder / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


# Token files


def write_token(path: Path, token: str, age: float = 0.0) -> None:
    path.write_text(token)
    os.utime(path, (time.time() - age, time.time() - age))


async def test_a_rotated_token_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "token"
    write_token(path, "one\n", age=100)
    ours = credentials.Credentials(config.Access(server="https://x", context="x", token_file=path))
    assert await ours.token() == "one"
    write_token(path, "two", age=50)
    assert await ours.token() == "two"
    path.unlink()  # being replaced
    assert await ours.token() == "two"
    write_token(path, "", age=20)  # being written
    assert await ours.token() == "two"


async def test_a_token_file_is_read_again_after_a_while_whatever_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "token"
    write_token(path, "one")
    stamp = path.stat().st_mtime_ns
    ours = credentials.Credentials(config.Access(server="https://x", context="x", token_file=path))
    assert await ours.token() == "one"
    path.write_text("two")
    os.utime(path, ns=(stamp, stamp))
    assert await ours.token() == "one"
    monkeypatch.setattr(credentials, "REREAD_SECONDS", 0.0)
    assert await ours.token() == "two"


async def test_a_file_wins_over_the_token_beside_it_which_stands_in_while_it_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "token"
    ours = credentials.Credentials(
        config.Access(server="https://x", context="x", token_file=path, token=Secret("spare"))
    )
    assert await ours.token() == "spare"
    write_token(path, "filed")
    assert await ours.token() == "filed"
    with pytest.raises(errors.Misconfigured, match="cannot be read or is empty"):
        await credentials.Credentials(
            config.Access(server="https://x", context="x", token_file=tmp_path / "none")
        ).token()


@pytest.mark.parametrize(
    "token", ["hunter 2", "hunter\n2", "hunter²", "hunter\x002"], ids=["blank", "line", "not-ascii", "control"]
)
async def test_a_token_that_cannot_be_a_header_is_refused_unseen(token: str) -> None:
    with pytest.raises(errors.Misconfigured, match="no token has") as caught:
        await credentials.Credentials(config.Access(server="https://x", context="x", token=Secret(token))).token()
    assert "hunter" not in str(caught.value)


# On the wire


async def test_a_401_is_answered_with_a_freshly_read_token_once(server: wire.Server, tmp_path: Path) -> None:
    path = tmp_path / "token"
    write_token(path, "old")
    stamp = path.stat().st_mtime_ns

    async def rotate(request: Any) -> Any:
        path.write_text("new")
        os.utime(path, ns=(stamp, stamp))  # unseen by its time: only the 401 tells
        return await wire.status(401, "Unauthorized")(request)

    server.on("PATCH", "/api/v1/nodes/n", rotate, wire.give({"ok": True}))
    access = msgspec.structs.replace(server.access, token_file=path)
    async with api.Api(access) as client:
        assert await client.merge_patch(api.NODES, None, "n", {}, field_manager="f") == {"ok": True}
    assert [each.headers["Authorization"] for each in server.seen] == ["Bearer old", "Bearer new"]


async def test_a_second_401_is_believed(server: wire.Server, plugin: Plugin) -> None:
    plugin.answers(token="abc")
    server.on("GET", "/api/v1/nodes/n", wire.status(401, "Unauthorized", "token is not for you"))
    async with api.Api(plugin.access(server=server.url)) as client:
        with pytest.raises(errors.Unauthorized, match="token is not for you"):
            await client.get(api.NODES, None, "n")
    assert (len(server.seen), plugin.runs) == (2, 2)


async def test_a_fixed_token_is_not_tried_twice(server: wire.Server) -> None:
    server.on("GET", "/api/v1/nodes/n", wire.status(401, "Unauthorized"))
    async with api.Api(msgspec.structs.replace(server.access, token=Secret("abc"))) as client:
        with pytest.raises(errors.Unauthorized):
            await client.get(api.NODES, None, "n")
    assert len(server.seen) == 1


async def test_a_broken_plugin_means_nothing_is_sent(server: wire.Server, plugin: Plugin) -> None:
    plugin.prints("broken")
    async with api.Api(plugin.access(server=server.url)) as client:
        with pytest.raises(errors.Misconfigured, match="printed no ExecCredential"):
            await client.get(api.NODES, None, "n")
        assert client.requests_sent == 0
    assert server.seen == []
