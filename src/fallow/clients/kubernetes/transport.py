"""One exchange with the API server: TLS, credentials, headers, proxy; and what went wrong, in our words.

In: method, path, body. Out: the answer's body, or a stream of its chunks, or a ClientError, which says whether the
request may have been carried out, and how long the server asked us to wait.
Invariant: a request is put on the wire once; only a 401, which carries nothing out, is repeated, once, with renewed
credentials.
"""

import math
import os
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Self, TypeAlias
from urllib import parse

import msgspec
import multidict
import yarl

import fallow
from fallow.clients import dates, errors, retry, tls
from fallow.clients.kubernetes import config, credentials
from fallow.clients.web import aiohttp
from fallow.model import redaction
from fallow.model.units import Seconds

Note: TypeAlias = Callable[[str, str], None]  # verb and code of a request

NO_ANSWER = "error"  # instead of a code
_VERBS = {"POST": "create", "PUT": "update"}
_LONGEST_REFUSAL = 1_000_000  # bytes: no server explains itself at such length
MAX_BODY = 512 * 2**20  # of one answer: a page of a list, or one object


class Request(msgspec.Struct, frozen=True, kw_only=True):
    method: str
    path: str
    params: Mapping[str, str] = {}
    body: bytes | None = None
    content_type: str = "application/json"
    accept: str = "application/json"
    timeout: float  # for the whole exchange
    silence: float | None = None  # for one stretch without a byte
    is_relayed: bool = False  # somebody behind the server answers, who does not know us as it does
    headers: Mapping[str, str] = {}  # further ones
    most: int = MAX_BODY  # bytes of the answer

    def describe(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def verb(self) -> str:
        """As Kubernetes calls it."""
        if self.method != "GET":
            return _VERBS.get(self.method, self.method.lower())
        return "watch" if "watch" in self.params else "list" if "limit" in self.params else "get"


class _Cause(msgspec.Struct, frozen=True):
    reason: str | None = None
    message: str | None = None
    field: str | None = None


class _Details(msgspec.Struct, frozen=True):
    causes: list[_Cause] | None = None


class KubernetesStatus(msgspec.Struct, frozen=True):
    """The body of a refusal, and the object of an ERROR event."""

    kind: str = ""
    code: int | None = None
    message: str | None = None
    reason: str | None = None
    details: _Details | None = None

    def to_error(self, status: int, retry_after: Seconds | None = None) -> errors.Rejected:
        causes = self.details.causes if self.details and self.details.causes else ()
        pairs = [(cause.field or cause.reason or "", cause.message or "") for cause in causes]
        said = self.message or self.reason or f"HTTP {status}"
        return errors.rejection(status, said, causes=pairs, retry_after=retry_after)


STATUS = msgspec.json.Decoder(KubernetesStatus)


class _Said(msgspec.Struct, frozen=True):
    message: str


class _OwnRefusal(msgspec.Struct, frozen=True):
    """As our own API refuses."""

    error: _Said


_REFUSAL = msgspec.json.Decoder(_OwnRefusal)


class BodyMemory:
    """Memory for one body after the other: to get 5 MB from the system for every page costs more than to read them."""

    def __init__(self) -> None:
        self.memory = bytearray()

    def put(self, chunk: bytes, at: int) -> int:
        """Where it ends."""
        end = at + len(chunk)
        if end > len(self.memory):  # a new one, for somebody may still look at the old
            self.memory = self.memory[:at].ljust(2 * end, b"\0")
        self.memory[at:end] = chunk
        return end


class _ConnectionLost(aiohttp.ClientError):
    """Stands for a broken connection where the library would otherwise send the request again by itself."""


async def _send_once(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """The library repeats a PUT whose connection broke, though it may have been carried out: hide that from it."""
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as problem:
        raise _ConnectionLost(str(problem) or "the connection was closed") from problem


class Wire:
    """The connections to one API server. `sent` counts every request put on the wire; `clock` is the server's."""

    def __init__(
        self, access: config.Access, note: Note, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """`note` is told of every answer."""
        self.sent = 0
        self.clock = dates.OtherClock(monotonic)
        self._note = note
        self._access = access
        self._credentials = credentials.Credentials(access)
        self._session: aiohttp.ClientSession | None = None
        self._tls: ssl.SSLContext | None = None
        self._tls_basis: object = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),  # how many at once is the Api's business
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=True,
            read_bufsize=2**20,  # a body of 5 MB is not stopped and started again every 64 KB
            middlewares=(_send_once,),
        )
        return self

    async def __aexit__(self, *why: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def fetch(self, request: Request) -> bytes:
        """The body of a good answer."""
        return bytes(await self.fetch_into(BodyMemory(), request))

    async def fetch_into(self, room: BodyMemory, request: Request) -> memoryview:
        """As `fetch`, into memory that was used before; what it returns holds until the next time."""
        response = await self.open(request)
        size = 0
        try:
            async for chunk in self.chunks(request, response):
                size = room.put(chunk, size)
                if size > request.most:
                    more = f"more than {request.most // 2**20} MiB"
                    raise errors.BadAnswer(f"{request.describe()} was answered with {more}")
            return memoryview(room.memory)[:size]
        finally:
            response.release()

    async def chunks(self, request: Request, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
        """The body as it comes, until the server ends it."""
        try:
            async for chunk in response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, TimeoutError, OSError) as problem:
            raise self._translate(problem, request) from problem

    async def open(self, request: Request) -> aiohttp.ClientResponse:
        """A good answer whose body is still to come: read it with `chunks`, and close it."""
        try:
            response, used = await self._start(request)
            if response.status == 401 and not request.is_relayed and self._credentials.invalidate(used):
                response.release()
                response, _ = await self._start(request)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as problem:
            self._note(request.verb, NO_ANSWER)
            raise self._translate(problem, request) from problem
        try:
            if response.status < 300:
                self.clock.note(response.headers)
                return response
            raise await self._refusal(request, response)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as problem:
            raise self._translate(problem, request) from problem

    async def _start(self, request: Request) -> tuple[aiohttp.ClientResponse, str | None]:
        if self._session is None:
            raise RuntimeError("use the Api as an async context manager")
        authorization = await self._credentials.authorization()
        context = await self._context()
        self.sent += 1
        response = await self._session.request(
            request.method, self._url(request), data=request.body, headers=self._headers(request, authorization),
            ssl=context if context is not None else True,
            server_hostname=self._access.tls_server_name if context is not None else None,
            proxy=self._access.proxy.reveal() if self._access.proxy else None,
            timeout=aiohttp.ClientTimeout(total=request.timeout, sock_read=request.silence), allow_redirects=False,
        )
        self._note(request.verb, str(response.status))
        return response, authorization.removeprefix("Bearer ") if authorization else None

    def _url(self, request: Request) -> yarl.URL:
        query = f"?{parse.urlencode(request.params)}" if request.params else ""
        return yarl.URL(f"{self._access.server}{request.path}{query}", encoded=True)

    def _headers(self, request: Request, authorization: str | None) -> multidict.CIMultiDict[str]:
        headers = multidict.CIMultiDict(self._access.impersonation)
        headers["User-Agent"] = f"fallow/{fallow.__version__}"
        headers["Accept"] = request.accept
        headers.update(request.headers)
        headers["Accept-Encoding"] = "identity"  # inside a cluster, unpacking costs more than the bytes it saves
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        if authorization is not None:
            headers["Authorization"] = authorization
        return headers

    async def _context(self) -> ssl.SSLContext | None:
        """The TLS context, built anew when a file or the plugin's certificate has changed."""
        access = self._access
        if not access.server.startswith("https://"):
            return None
        given = await self._credentials.certificate()
        files = (access.ca, access.client_certificate, access.client_key)
        basis = (given, *(pem.stamp() for pem in files if pem))
        if basis != self._tls_basis:
            try:
                self._tls = self._build_context(given)
                self._tls_basis = basis
            except errors.Misconfigured:
                if self._tls is None:  # else the files are just being replaced: what was good a moment ago still is
                    raise
        return self._tls

    def _build_context(self, given: tuple[bytes, bytes] | None) -> ssl.SSLContext:
        access = self._access
        if given is None and access.client_certificate and access.client_key:
            given = (access.client_certificate.read(), access.client_key.read())
        return tls.build_context(access.ca.read() if access.ca else None, verify=access.verify, certificate=given)

    async def _refusal(self, request: Request, response: aiohttp.ClientResponse) -> errors.Rejected:
        """The server's own words where it is a Kubernetes server's, else ours."""
        body = b""
        try:
            # To its end: one read gives what has come so far, which may be half of it.
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > _LONGEST_REFUSAL:
                    break
        finally:
            response.close()
        wait = retry.read_header(response.headers.get("Retry-After"))
        try:
            answer = STATUS.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            answer = KubernetesStatus()
        if answer.kind == "Status":
            return answer.to_error(response.status, wait)
        said = f"{request.describe()} was answered with HTTP {response.status} and no explanation"
        refused = errors.rejection(response.status, _read_refusal(body) or said, retry_after=wait)
        refused.is_behind = request.is_relayed
        return refused

    def _translate(self, problem: Exception, request: Request) -> errors.Unreachable:
        """What happened, and whether the request may have been carried out all the same."""
        is_undone, retry_after = True, None
        match problem:
            case aiohttp.ClientSSLError():  # a certificate does not become good by asking again
                why = getattr(problem, "certificate_error", None) or getattr(problem, "os_error", None) or "refused"
                said, retry_after = f"TLS failed: {getattr(why, 'verify_message', '') or why}", math.inf
            case aiohttp.ClientHttpProxyError():
                said = f"the proxy answered {problem.status}"
            case aiohttp.ClientConnectorError():
                said = f"no connection: {_name_fault(problem.os_error)}"
            case aiohttp.ConnectionTimeoutError():
                said = "no connection in time"
            case TimeoutError():
                said, is_undone = f"no answer in {request.timeout:g} s", False
            case _:
                said, is_undone = f"the connection broke ({type(problem).__name__})", False
        server = self._access.server
        what = f"{request.describe()} at {redaction.hide_logins(server, [server])}"
        return errors.Unreachable(f"{what}: {said}", is_undone=is_undone, retry_after=retry_after)


def _read_refusal(body: bytes) -> str:
    """The words of a daemon of ours; "" where it is somebody else's."""
    try:
        return _REFUSAL.decode(body).error.message
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


def _name_fault(problem: OSError) -> str:
    """In the system's words: the library's own repeat the address."""
    number = problem.errno or 0  # below 0 where a name was not found: that is said as it should be
    return (os.strerror(number) if number > 0 else problem.strerror) or type(problem).__name__
