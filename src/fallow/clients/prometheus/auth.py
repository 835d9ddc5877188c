"""How to log in to a Prometheus-compatible server: from what people configured to the headers of one request.

In: `Login` (values, not names of environment variables that we would read) and the address. Out: a Signer, asked before
every request. Files are read again at each new instant, which is each cycle, and after a 401. How the clouds' own
servers are called, to those who hand out credentials for them, is here too.
Invariant: a token of the cluster that nobody named for this purpose goes only over https or to a service inside the
cluster.
"""

import asyncio
import base64
import dataclasses
import functools
import logging
import pathlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal, TypeAlias

import yarl

from fallow import names
from fallow.clients import errors, secret, signing
from fallow.model.secret import Secret
from fallow.model.units import Instant, Seconds

log = logging.getLogger(__name__)

Method: TypeAlias = Literal["auto", "none", "bearer", "basic"]

AWS_SERVICE = "aps"
GOOGLE_SCOPE = "https://www.googleapis.com/auth/monitoring.read"
AZURE_RESOURCE = "https://prometheus.monitor.azure.com"

_SERVICE_ACCOUNT_TOKEN = f"{names.SERVICE_ACCOUNT_DIR}/token"
_OC_TIMEOUT: Seconds = 5.0
_CLUSTER_SUFFIXES = (".svc", ".svc.cluster.local")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Login:
    """What people configured. `environment`: the variables that the methods name (PROMETHEUS_TOKEN, ..._PASSWORD)."""

    method: Method = "auto"
    token: Secret[str] | None = None
    token_file: str = ""
    username: str = ""
    password_file: str = ""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    kubernetes_token: Callable[[], Awaitable[str | None]] | None = None  # of the kubeconfig
    service_account_token_file: str = _SERVICE_ACCOUNT_TOKEN
    oc: str = "oc"

    def literal(self) -> str:
        return self.token.reveal() if self.token else ""


def choose(login: Login, url: yarl.URL) -> signing.Signer:
    """Raises Misconfigured where the method lacks what it needs."""
    match login.method:
        case "auto" if url.user:
            return Given(url.password or "", "", functools.partial(basic, url.user))
        case "auto":
            return Auto(login, url)
        case "none":
            return Given("", "", signing.bearer)
        case "bearer":
            return _bearer(login)
        case "basic":
            return _basic(login)


def _bearer(login: Login) -> signing.Signer:
    literal = login.literal() or ("" if login.token_file else login.environment.get("PROMETHEUS_TOKEN", ""))
    if not literal and not login.token_file:
        raise errors.Misconfigured("Prometheus authentication 'bearer' needs a token, a token file or PROMETHEUS_TOKEN")
    return Given(literal, login.token_file, signing.bearer)


def _basic(login: Login) -> signing.Signer:
    password = login.environment.get("PROMETHEUS_PASSWORD", "")
    if not login.username or not (password or login.password_file):
        need = "needs a username, and PROMETHEUS_PASSWORD or a password file"
        raise errors.Misconfigured(f"Prometheus authentication 'basic' {need}")
    return Given(password, login.password_file, functools.partial(basic, login.username))


def basic(username: str, password: str) -> Mapping[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()}


class Given:
    """A token or password given literally, or in a file, and the header it makes."""

    def __init__(self, literal: str, file: str, write: Callable[[str], Mapping[str, str]]) -> None:
        self._literal = literal
        self._file = secret.SecretFile(file) if file and not literal else None
        self._write = write

    async def headers(self, outgoing: signing.Outgoing) -> Mapping[str, str]:
        return self._write(await self._file.read(outgoing.now) if self._file else self._literal)

    def forget(self) -> None:
        if self._file:
            self._file.forget()


class Auto:
    """The first token there is: one meant for Prometheus, else one of the cluster if the address may see it."""

    def __init__(self, login: Login, url: yarl.URL) -> None:
        self._login = login
        self._url = url
        is_inside = (url.host or "").rstrip(".").endswith(_CLUSTER_SUFFIXES)
        self._may_see_cluster_token = url.scheme == "https" or is_inside
        self._token_file = secret.SecretFile(login.token_file) if login.token_file else None
        self._account_file = secret.SecretFile(login.service_account_token_file)
        self._oc_token: str | None = None
        self._warned = False
        self._lock = asyncio.Lock()

    async def headers(self, outgoing: signing.Outgoing) -> Mapping[str, str]:
        return signing.bearer(await self._explicit(outgoing.now) or await self._implicit(outgoing.now))

    def forget(self) -> None:
        self._account_file.forget()
        self._oc_token = None
        if self._token_file:
            self._token_file.forget()

    async def _explicit(self, now: Instant) -> str:
        if literal := self._login.literal():
            return literal
        if self._token_file:
            return await self._token_file.read(now)
        return self._login.environment.get("PROMETHEUS_TOKEN", "")

    async def _implicit(self, now: Instant) -> str:
        if not self._may_see_cluster_token:
            self._warn_once()
            return ""
        async with self._lock:  # plugins and programs are not run four times at once
            return await self._from_kubeconfig() or await self._from_pod(now) or await self._from_oc()

    def _warn_once(self) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "asking Prometheus at %s without a token: the cluster's own goes only over https or to a .svc host",
                self._url.host,
            )

    async def _from_kubeconfig(self) -> str:
        return (await self._login.kubernetes_token() or "") if self._login.kubernetes_token else ""

    async def _from_pod(self, now: Instant) -> str:
        if not await asyncio.to_thread(pathlib.Path(self._login.service_account_token_file).exists):
            return ""
        return await self._account_file.read(now)

    async def _from_oc(self) -> str:
        if self._oc_token is None:
            self._oc_token = await ask_oc(self._login.oc)
        return self._oc_token


async def ask_oc(program: str, timeout: Seconds = _OC_TIMEOUT) -> str:
    """The token of whoever is logged in with `oc`; no `oc`, no login or no answer in time means none."""
    try:
        output, _, code = await secret.ask_program(program, "whoami", "-t", seconds=timeout)
    except OSError:
        return ""
    return output.decode(errors="replace").strip() if code == 0 else ""
