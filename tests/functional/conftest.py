"""One API server for a test, pretend or real: whatever a test asks of the one it asks of the other, in the same words.

`api_server` is a fresh namespace on it, with a raw HTTP client, our own client's access, and a kubeconfig for kubectl.
Invariant: the real control plane is that of all tests of a worker: what a test makes goes with its namespace, but for
foreign kinds, which are the same everywhere.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import pathlib
import secrets
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio
import yaml

from fallow.clients.kubernetes import config
from fallow.sim.servers import store as stores
from fallow.sim.servers.kubernetes import server as pretend
from tests.real import crds, world
from tests.unit.account.conftest import FilePlace

Object = dict[str, Any]
TYPES = {
    "merge": "application/merge-patch+json", "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json", "apply": "application/apply-patch+yaml",
}


class Answer(msgspec.Struct):
    code: int
    body: Any
    warnings: list[str]


class ApiServer:
    """A namespace on a server."""

    def __init__(self, url: str, tls: ssl.SSLContext | None, kubeconfig: pathlib.Path) -> None:
        self.url = url
        self.kubeconfig = kubeconfig
        self.namespace = f"t-{secrets.token_hex(3)}"
        self._tls = tls

    async def __aenter__(self) -> ApiServer:
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._tls or True), timeout=aiohttp.ClientTimeout(30)
        )
        await self.ask("POST", "/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        await self.wait_until(lambda: self._exists(f"/api/v1/namespaces/{self.namespace}/serviceaccounts/default"))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.ask("DELETE", f"/api/v1/namespaces/{self.namespace}")
        await self._http.close()

    @property
    def access(self) -> config.Access:
        return config.load_access(kubeconfig=str(self.kubeconfig), context=None, environment={})

    async def ask(
        self, method: str, path: str, body: Any = None, how: str = "", accept: str = "application/json", **query: str
    ) -> Answer:
        """One request; {ns} in the path is the namespace."""
        headers = {"Accept": accept, "Content-Type": TYPES.get(how, how or "application/json"), "User-Agent": "suite/1"}
        data = None if body is None else json.dumps(body)
        url = self.url + path.replace("{ns}", self.namespace)
        async with self._http.request(method, url, data=data, headers=headers, params=query) as answer:
            text = await answer.text()
            lines = [json.loads(line) for line in text.splitlines()] if "watch" in query else None
            content = lines if lines is not None else json.loads(text) if "json" in answer.content_type else text
            return Answer(answer.status, content, answer.headers.getall("Warning", []))

    async def make(self, path: str, body: Object) -> Object:
        made = await self.ask("POST", path, body)
        assert made.code == 201, made.body
        return dict(made.body)

    async def define(self, *names: str) -> None:
        """The foreign kinds of tests/real/crds.py, served."""
        for name in names:
            definition = crds.KINDS[name]
            await self.ask("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
            version = definition["spec"]["versions"][0]["name"]
            group, plural = definition["spec"]["group"], definition["spec"]["names"]["plural"]
            await self.wait_until(lambda path=f"/apis/{group}/{version}/{plural}": self._exists(path))
            await self.wait_until(lambda group=group: self._is_discovered(group))

    async def wait_until(self, holds: Callable[[], Awaitable[bool]], timeout: float = 90.0) -> None:
        deadline = time.monotonic() + timeout
        while not await holds():
            assert time.monotonic() < deadline, f"not within {timeout} s"
            await asyncio.sleep(0.03)

    async def _exists(self, path: str) -> bool:
        return (await self.ask("GET", path)).code == 200

    async def _is_discovered(self, group: str) -> bool:
        return any(one["name"] == group for one in (await self.ask("GET", "/apis")).body["groups"])


@pytest_asyncio.fixture(params=["pretend", pytest.param("real", marks=pytest.mark.real)])
async def api_server(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> AsyncIterator[ApiServer]:
    if request.param == "real":
        plane: world.ControlPlane = request.getfixturevalue("control_plane")
        async with ApiServer(plane.url, plane.admin_tls(), plane.kubeconfig) as handle:
            yield handle
        return
    server = pretend.KubernetesServer(stores.Store(time.time), time.time)
    await server.start()
    kubeconfig = tmp_path / "pretend.kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(server.kubeconfig()))
    async with ApiServer(server.url, None, kubeconfig) as handle:
        yield handle
    await server.stop()


@pytest.fixture
def new_place(tmp_path: pathlib.Path) -> Callable[[], FilePlace]:
    """For a ledger; in tests/real the same tests are given servers."""
    numbers = itertools.count(1)
    return lambda: FilePlace(tmp_path / f"ledger-{next(numbers)}.sqlite")
