"""A login provider on loopback that does whatever a test wants: a real one never signs a wrong token.

In: what its tokens say, how they are signed, what it answers. Out: its address, and what it was asked.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from collections.abc import Callable
from typing import Any
from urllib import parse

from aiohttp import web
from joserfc import jwk, jwt

CLIENT, SECRET = "fallow", "s3cret of+the client"


class PretendProvider:
    """Whoever comes is ada. `claims` changes what a token says; `sign`, how; `down`: nothing is answered but 500."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.claims: dict[str, Any] = {"sub": "ada", "groups": ["team"]}
        self.described: dict[str, Any] = {}
        self.sign: Callable[[dict[str, Any]], str] = self.sign_well
        self.is_down = False
        self.asked: list[str] = []
        self.forms: list[dict[str, str]] = []
        self.codes: dict[str, dict[str, str]] = {}  # code -> what was asked for at its login
        self.change_key("first")
        self.url = ""

    def change_key(self, name: str) -> None:
        self.key = jwk.ECKey.generate_key("P-256", {"kid": name, "use": "sig", "alg": "ES256"})

    def sign_well(self, claims: dict[str, Any]) -> str:
        return jwt.encode({"alg": "ES256", "kid": self.key.kid}, claims, self.key)

    async def start(self) -> str:
        app = web.Application()
        app.router.add_get("/.well-known/openid-configuration", self._describe)
        app.router.add_get("/jwks", self._show_keys)
        app.router.add_post("/token", self._exchange)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self.url

    async def stop(self) -> None:
        await self._runner.cleanup()

    def log_in(self, address: str) -> dict[str, str]:
        """What a browser comes back with, of somebody who logs in at `address`."""
        asked = dict(parse.parse_qsl(parse.urlsplit(address).query))
        code = f"code-{secrets.token_hex(8)}"
        self.codes[code] = asked
        return {"code": code, "state": asked["state"], "iss": self.url}

    async def _describe(self, request: web.Request) -> web.Response:
        self.asked.append("description")
        if self.is_down:
            return web.Response(status=500)
        return web.json_response({
            "issuer": self.url, "authorization_endpoint": f"{self.url}/auth", "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/jwks", **self.described,
        })

    async def _show_keys(self, request: web.Request) -> web.Response:
        self.asked.append("keys")
        return web.json_response({"keys": [self.key.as_dict(private=False)]})

    async def _exchange(self, request: web.Request) -> web.Response:
        self.asked.append("token")
        if self.is_down:
            return web.Response(status=500)
        form = {name: str(value) for name, value in (await request.post()).items()}
        self.forms.append({**form, "authorization": request.headers.get("Authorization", "")})
        asked = self.codes.pop(form["code"], None)
        if asked is None or asked["code_challenge"] != _challenge(form["code_verifier"]):
            words = {"error": "invalid_grant", "error_description": f"{form['code']} of {SECRET} is not good"}
            return web.json_response(words, status=400)
        now = int(self.now())
        usual = {"iss": self.url, "aud": CLIENT, "iat": now, "exp": now + 300, "nonce": asked["nonce"]}
        claims = {name: value for name, value in {**usual, **self.claims}.items() if value is not None}
        return web.json_response({"access_token": "x", "token_type": "Bearer", "id_token": self.sign(claims)})


def _challenge(verifier: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()


def unsigned(claims: dict[str, Any]) -> str:
    """alg=none."""
    parts = [json.dumps(part).encode() for part in ({"alg": "none", "typ": "JWT"}, claims)]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts) + "."
