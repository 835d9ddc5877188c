"""How to log in to a Prometheus-compatible server: from what people configured to the headers of one request.

In: `Login` (values, not names of environment variables that we would read) and the address. Out: a Signer, asked before
every request. Files are read again at each new instant, which is each cycle, and after a 401. How the clouds' own
servers are called, to those who hand out credentials for them, is here too.
Invariant: a token of the cluster that nobody named for this purpose goes only over https with a verified certificate,
and only to a service of the cluster or into the API server's own domain.
"""

import asyncio
import base64
import dataclasses
import functools
import logging
import pathlib
from collections.abc import Callable, Mapping
from typing import Final, Literal, Protocol, TypeAlias

import yarl

from fallow import names
from fallow.clients import errors, secret, signing
from fallow.model import loopback
from fallow.model.secret import Secret
from fallow.model.units import Instant, Seconds

log = logging.getLogger(__name__)

Method: TypeAlias = Literal["auto", "kube", "none", "bearer", "basic"]

AWS_SERVICE = "aps"
GOOGLE_SCOPE = "https://www.googleapis.com/auth/monitoring.read"
AZURE_RESOURCE = "https://prometheus.monitor.azure.com"

_SERVICE_ACCOUNT_TOKEN = f"{names.SERVICE_ACCOUNT_DIR}/token"
_OC_TIMEOUT: Seconds = 5.0
_CLUSTER_SUFFIXES: Final = (".svc", ".svc.cluster.local")
# In which providers name the API servers of all their customers.
_SHARED_DOMAINS: Final = (
    ".amazonaws.com", ".amazonaws.com.cn", ".azmk8s.io", ".gke.goog", ".googleapis.com", ".k8s.ondigitalocean.com",
    ".linodelke.net", ".oraclecloud.com", ".ovh.net", ".scw.cloud", ".vultr-k8s.com",
)
_NO_TOKEN: Final = (
    "asking Prometheus at %s without a token: the cluster's own goes only over https with a verified certificate, to a "
    ".svc host or into the API server's domain; say --prometheus-token-file, --prometheus-auth kube or none"
)


class TokenSource(Protocol):
    """Who has a token of the Kubernetes API."""

    async def token(self) -> str | None: ...

    def invalidate(self) -> object:
        """The last one was refused: get a new one."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Login:
    """What people configured. `environment`: the variables that the methods name (PROMETHEUS_TOKEN, ..._PASSWORD)."""

    method: Method = "auto"
    token: Secret[str] | None = None
    token_file: str = ""
    username: str = ""
    password_file: str = ""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    kubernetes: TokenSource | None = None  # the kubeconfig's
    api_server: str = ""  # its address
    verifies: bool = True  # is the server's certificate verified?
    service_account_token_file: str = _SERVICE_ACCOUNT_TOKEN
    oc: str = "oc"

    def literal(self) -> str:
        return self.token.reveal() if self.token else ""

    def has_token(self) -> bool:
        return bool(self.literal() or self.token_file or self.environment.get("PROMETHEUS_TOKEN"))


def choose(login: Login, url: yarl.URL, *, by_hand: bool = False) -> signing.Signer:
    """Raises Misconfigured where the method lacks what it needs. `by_hand`: an Authorization header was written out."""
    match login.method:
        case "auto" if by_hand:
            return Given("", "", signing.bearer)
        case "auto" if url.user:
            return Given(url.password or "", "", functools.partial(basic, url.user))
        case "auto" if login.username and not login.has_token():
            return _basic(login)
        case "auto":
            return Auto(login, url)
        case "kube":
            return Kube(login)
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
    """The first token there is: one meant for Prometheus, else the cluster's if the address may see it."""

    def __init__(self, login: Login, url: yarl.URL) -> None:
        self._login, self._host = login, url.host
        self._may_see_cluster_token = is_of_the_cluster(url, login)
        self._token_file = secret.SecretFile(login.token_file) if login.token_file else None
        self._cluster = ClusterToken(login)
        # Through a port-forward there is nobody on the way who could be shown a token, and mostly none is wanted.
        self._warned = url.scheme == "http" and loopback.is_here(url.host or "")

    async def headers(self, outgoing: signing.Outgoing) -> Mapping[str, str]:
        return signing.bearer(await self._explicit(outgoing.now) or await self._implicit(outgoing.now))

    def forget(self) -> None:
        self._cluster.forget()
        if self._token_file:
            self._token_file.forget()

    async def _explicit(self, now: Instant) -> str:
        if literal := self._login.literal():
            return literal
        if self._token_file:
            return await self._token_file.read(now)
        return self._login.environment.get("PROMETHEUS_TOKEN", "")

    async def _implicit(self, now: Instant) -> str:
        if self._may_see_cluster_token:
            return await self._cluster.find(now)
        if not self._warned:
            self._warned = True
            log.warning(_NO_TOKEN, self._host)
        return ""


def is_of_the_cluster(url: yarl.URL, login: Login) -> bool:
    """May it see a token that opens the whole cluster, although nobody said so? Only whoever proves to be of it."""
    host = (url.host or "").rstrip(".").lower()
    if url.scheme != "https" or not login.verifies:
        return False
    domain = _domain_of(login.api_server)
    return host.endswith(_CLUSTER_SUFFIXES) or bool(domain and host.endswith(f".{domain}"))


def _domain_of(server: str) -> str:
    """`https://api.c.example.com:6443` -> `c.example.com`; "" for an IP address, and where strangers have hosts too."""
    host = (yarl.URL(server).host or "").rstrip(".").lower()
    domain = host.partition(".")[2]
    is_address = host.replace(".", "").isdigit() or ":" in host
    return "" if is_address or "." not in domain or f".{domain}".endswith(_SHARED_DOMAINS) else domain


class ClusterToken:
    """The token with which we talk to the API server: of the kubeconfig, of our pod, of whoever is logged in by oc."""

    def __init__(self, login: Login) -> None:
        self._login = login
        self._account_file = secret.SecretFile(login.service_account_token_file)
        self._oc_token: str | None = None
        self._lock = asyncio.Lock()

    async def find(self, now: Instant) -> str:
        async with self._lock:  # questions go out together: plugins and programs are run for the first of them only
            return await self._from_kubeconfig() or await self._from_pod(now) or await self._from_oc()

    def forget(self) -> None:
        self._account_file.forget()
        self._oc_token = None
        if self._login.kubernetes:
            self._login.kubernetes.invalidate()

    async def _from_kubeconfig(self) -> str:
        return (await self._login.kubernetes.token() or "") if self._login.kubernetes else ""

    async def _from_pod(self, now: Instant) -> str:
        if not await asyncio.to_thread(pathlib.Path(self._login.service_account_token_file).exists):
            return ""
        return await self._account_file.read(now)

    async def _from_oc(self) -> str:
        if self._oc_token is None:
            self._oc_token = await ask_oc(self._login.oc)
        return self._oc_token


class Kube:
    """The cluster's token, wherever the address points: somebody said so."""

    def __init__(self, login: Login) -> None:
        self._cluster = ClusterToken(login)

    async def headers(self, outgoing: signing.Outgoing) -> Mapping[str, str]:
        token = await self._cluster.find(outgoing.now)
        if not token:
            ways = "neither the kubeconfig nor the pod nor oc has one"
            raise errors.Misconfigured(f"Prometheus authentication 'kube' needs a Kubernetes token: {ways}")
        return signing.bearer(token)

    def forget(self) -> None:
        self._cluster.forget()


async def ask_oc(program: str, timeout: Seconds = _OC_TIMEOUT) -> str:
    """The token of whoever is logged in with `oc`; no `oc`, no login or no answer in time means none."""
    try:
        output, _, code = await secret.ask_program(program, "whoami", "-t", seconds=timeout)
    except OSError:
        return ""
    return output.decode(errors="replace").strip() if code == 0 else ""
