"""How to log in to a Prometheus-compatible server: from what people configured to the headers of one request.

In: `Login` (values, not names of environment variables that we would read) and the address. Out: `Credentials`, asked before every
request. Files are read again at each new instant, which is each cycle, and after a 401.
Invariant: a token of the cluster that nobody named for this purpose goes only over https or to a service inside the cluster.
"""

import asyncio
import base64
import dataclasses
import logging
import pathlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal, Protocol, TypeAlias, get_args

import yarl

from fallow.clients import errors
from fallow.clients.prometheus import aws, azure, exchange, gcp
from fallow.model.units import Instant, Seconds

log = logging.getLogger(__name__)

Method: TypeAlias = Literal["auto", "none", "bearer", "basic", "sigv4", "gcp", "azure"]
METHODS: tuple[str, ...] = get_args(Method)

_SERVICE_ACCOUNT_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"
_OC_TIMEOUT: Seconds = 5.0
_CLUSTER_SUFFIXES = (".svc", ".svc.cluster.local")


class Credentials(Protocol):
    async def headers(self, outgoing: exchange.Outgoing) -> Mapping[str, str]: ...

    def forget(self) -> None:
        """The last ones were refused: get new ones."""


@dataclasses.dataclass(frozen=True)
class Login:
    """What people configured. `environment` are the variables that the methods name (PROMETHEUS_TOKEN, AWS_*, AZURE_*, GOOGLE_*)."""

    method: Method = "auto"
    token: str = dataclasses.field(default="", repr=False)
    token_file: str = ""
    username: str = ""
    password_file: str = ""
    aws_region: str = ""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    kubernetes_token: Callable[[], Awaitable[str | None]] | None = dataclasses.field(default=None, repr=False)  # of the kubeconfig
    service_account_token_file: str = _SERVICE_ACCOUNT_TOKEN
    oc: str = "oc"
    aws_places: aws.Places = dataclasses.field(default_factory=aws.Places)
    gcp_places: gcp.Places = dataclasses.field(default_factory=gcp.Places)
    azure_places: azure.Places = dataclasses.field(default_factory=azure.Places)


def choose(login: Login, url: yarl.URL) -> Credentials:
    """Raises Misconfigured where the method lacks what it needs."""
    match login.method:
        case "auto" if url.user:
            return Basic(url.user, url.password or "", "")
        case "auto":
            return Auto(login, url)
        case "none":
            return Bearer("", "")
        case "bearer":
            return _bearer(login)
        case "basic":
            return _basic(login)
        case "sigv4":
            return aws.SigV4(login.environment, login.aws_region, login.aws_places)
        case "gcp":
            return gcp.Google(login.environment, login.gcp_places)
        case "azure":
            return azure.Azure(login.environment, login.azure_places)


def _bearer(login: Login) -> Credentials:
    literal = login.token or ("" if login.token_file else login.environment.get("PROMETHEUS_TOKEN", ""))
    if not literal and not login.token_file:
        raise errors.Misconfigured("Prometheus authentication 'bearer' needs a token, a token file or PROMETHEUS_TOKEN")
    return Bearer(literal, login.token_file)


def _basic(login: Login) -> Credentials:
    password = login.environment.get("PROMETHEUS_PASSWORD", "")
    if not login.username or not (password or login.password_file):
        raise errors.Misconfigured("Prometheus authentication 'basic' needs a username, and PROMETHEUS_PASSWORD or a password file")
    return Basic(login.username, password, login.password_file)


class Bearer:
    """A token given literally, or in a file; neither means no authentication."""

    def __init__(self, token: str, file: str) -> None:
        self._token = token
        self._file = exchange.SecretFile(file) if file and not token else None

    async def headers(self, outgoing: exchange.Outgoing) -> Mapping[str, str]:
        return exchange.bearer(await self._file.read(outgoing.now) if self._file else self._token)

    def forget(self) -> None:
        if self._file:
            self._file.forget()


class Basic:
    def __init__(self, username: str, password: str, file: str) -> None:
        self._username = username
        self._password = password
        self._file = exchange.SecretFile(file) if file and not password else None

    async def headers(self, outgoing: exchange.Outgoing) -> Mapping[str, str]:
        password = await self._file.read(outgoing.now) if self._file else self._password
        return {"Authorization": "Basic " + base64.b64encode(f"{self._username}:{password}".encode()).decode()}

    def forget(self) -> None:
        if self._file:
            self._file.forget()


class Auto:
    """The first token there is: one meant for Prometheus, else one of the cluster if the address may see it."""

    def __init__(self, login: Login, url: yarl.URL) -> None:
        self._login = login
        self._url = url
        self._may_see_cluster_token = url.scheme == "https" or (url.host or "").rstrip(".").endswith(_CLUSTER_SUFFIXES)
        self._token_file = exchange.SecretFile(login.token_file) if login.token_file else None
        self._account_file = exchange.SecretFile(login.service_account_token_file)
        self._oc_token: str | None = None
        self._warned = False
        self._lock = asyncio.Lock()

    async def headers(self, outgoing: exchange.Outgoing) -> Mapping[str, str]:
        return exchange.bearer(await self._explicit(outgoing.now) or await self._implicit(outgoing.now))

    def forget(self) -> None:
        self._account_file.forget()
        self._oc_token = None
        if self._token_file:
            self._token_file.forget()

    async def _explicit(self, now: Instant) -> str:
        if self._login.token:
            return self._login.token
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
            log.warning("asking Prometheus at %s without a token: the cluster's own goes only over https or to a .svc host", self._url.host)

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
        process = await asyncio.create_subprocess_exec(
            program, "whoami", "-t", stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
    except OSError:
        return ""
    try:
        async with asyncio.timeout(timeout):
            output, _ = await process.communicate()
    except TimeoutError:
        return ""
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return output.decode(errors="replace").strip() if process.returncode == 0 else ""
