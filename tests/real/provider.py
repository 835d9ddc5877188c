"""A real OpenID Connect provider on loopback (npm's oidc-provider, run by node), and a browser that logs in at it.

In: where people come back to. Out: `Provider`, to start with a key, stop, and start again with another; `Browser`.
Invariant: what npm brings is pinned by oidc/package-lock.json and kept in the cache of built programs; where node or
npm is missing, or cannot bring it, the test is skipped with that sentence.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from typing import Any
from urllib import parse

import aiohttp
import pytest
from joserfc import jwk

from tests.real import build, product

HERE = pathlib.Path(__file__).parent / "oidc"
FILES = ("package.json", "package-lock.json", "provider.mjs")
SECRET = "a secret: of the/client"


def install() -> pathlib.Path:
    """The folder to run it in."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not here: install Node.js 20 or newer to run a real OpenID Connect provider")
    version = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in FILES)).hexdigest()[:12]
    folder = build.cache() / f"oidc-{version}"
    folder.mkdir(parents=True, exist_ok=True)
    with build.lock(folder / ".lock"):
        if not (folder / ".ready").exists():
            for name in FILES:
                shutil.copy(HERE / name, folder / name)
            command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=240)
            if done.returncode != 0:
                pytest.skip(f"npm does not bring oidc-provider: {done.stderr.strip().splitlines()[-1:]}")
            (folder / ".ready").touch()
    return folder


class Provider:
    def __init__(self, folder: pathlib.Path, redirect: str) -> None:
        self._folder, self._redirect, self._port = folder, redirect, product.free_port()
        self._process: asyncio.subprocess.Process | None = None
        self.issuer = f"http://127.0.0.1:{self._port}"

    async def start(self, key: str) -> None:
        """With a new key of this name."""
        made = jwk.RSAKey.generate_key(2048, {"kid": key, "use": "sig", "alg": "RS256"})
        said = {
            "port": self._port, "redirect": self._redirect, "secret": SECRET, "key": made.as_dict(private=True),
        }
        self._process = await asyncio.create_subprocess_exec(
            "node", "provider.mjs", json.dumps(said), cwd=self._folder, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL, env={"PATH": os.environ["PATH"]},
        )
        assert self._process.stdout is not None
        async with asyncio.timeout(60):
            line = await self._process.stdout.readline()
        assert line == b"ready\n", line

    async def stop(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.communicate()  # its pipe, too
            self._process = None


@contextlib.asynccontextmanager
async def provider_for(redirect: str) -> AsyncIterator[Provider]:
    made = Provider(await asyncio.to_thread(install), redirect)
    await made.start("first")
    try:
        yield made
    finally:
        await made.stop()


class Browser:
    """One person's: it keeps cookies, follows where it is sent, and fills in the provider's form."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self.http, self.url = http, url
        self.came_back = ""  # the address at which the provider's answer was brought

    async def go(self, address: str, form: dict[str, str] | None = None) -> tuple[int, str, str]:
        """Status, where to next, text; one step."""
        method = "GET" if form is None else "POST"
        async with self.http.request(method, address, data=form, allow_redirects=False) as got:
            return got.status, parse.urljoin(address, got.headers.get("Location", "")), await got.text()

    async def walk(self, address: str, name: str) -> tuple[int, str, str]:
        """Until it ends; where the provider asks who it is, `name`. Status, where it ended, text."""
        for _ in range(20):
            if address.startswith(f"{self.url}/oidc/callback"):
                self.came_back = address
            status, to, text = await self.go(address)
            if status == 200 and (found := re.search(r'<form[^>]* action="([^"]+/interaction/[^"]+)"', text)):
                form = {"prompt": "login", "login": name, "password": "any"}
                status, to, text = await self.go(parse.urljoin(address, found[1]), form)
            if status not in (302, 303):
                return status, address, text
            address = to
        raise AssertionError(f"no end of it: {address}")

    async def log_in(self, name: str, then: str = "/healthz") -> tuple[int, str, str]:
        return await self.walk(f"{self.url}/oidc/login?then={parse.quote(then)}", name)

    async def read(self, path: str) -> tuple[int, Any]:
        async with self.http.get(f"{self.url}{path}") as got:
            return got.status, await got.json()

    async def press(self, path: str, body: Any) -> tuple[int, Any]:
        """As a page of ours does it."""
        _, me = await self.read("/api/v1/me")
        own = {"X-Fallow-CSRF": me["csrf"], "Origin": self.url}
        async with self.http.post(f"{self.url}{path}", json=body, headers=own) as got:
            return got.status, await got.json() if got.content_type == "application/json" else None


@contextlib.asynccontextmanager
async def browser_on(url: str) -> AsyncIterator[Browser]:
    jar = aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(cookie_jar=jar, timeout=aiohttp.ClientTimeout(30)) as http:
        yield Browser(http, url)
