"""Instant and range queries against a Prometheus-compatible server.

In: PromQL, the instant or range, and the type of the labels wanted. Out: `Answer`, typed series with the server's warnings, or an error of
clients/errors.py with one sentence that names the address (never its userinfo).
Invariant: what is returned is a vector of a successful answer, evaluated at the instant that was asked for, or a matrix within the range.
Anything else raises.
The caller bounds the whole with asyncio.timeout; one request takes at most `timeout`, and is tried again only where that can help.
"""

import asyncio
import functools
import logging
import random
import re
import ssl
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, cast

import aiohttp
import msgspec
import yarl

from fallow.clients import errors
from fallow.clients.prometheus import auth, exchange
from fallow.model.units import Instant, Seconds

log = logging.getLogger(__name__)

L = TypeVar("L")

_SERVER_TIMEOUT = "30s"
_REQUEST_TIMEOUT: Seconds = 35.0  # a little more than the server allows itself, so that its own words arrive
_CONNECT_TIMEOUT: Seconds = 10.0
_RETRY_WAITS = (1.0, 2.0, 4.0)  # times `backoff`
_CLOCK_TOLERANCE: Seconds = 1.0  # an answer for another instant than that was not computed for us
_MAX_BODY = 512 * 2**20

_MATCHER = r'[a-zA-Z_][a-zA-Z0-9_]*\s*(?:=~|!~|!=|=)\s*"(?:[^"\\\n]|\\.)*"'
_MATCHERS = re.compile(rf"\s*{_MATCHER}\s*(?:,\s*{_MATCHER}\s*)*")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_REGEX_SPECIAL = re.compile(r"([\\.+*?()|\[\]{}^$])")


class Sample(msgspec.Struct, array_like=True, gc=False):
    at: Instant
    value: str  # Prometheus writes numbers as strings: "NaN" and "+Inf" are no JSON numbers


class Series(msgspec.Struct, Generic[L], gc=False):
    metric: L
    value: Sample


class Line(msgspec.Struct, Generic[L], gc=False):
    """One series over a range."""

    metric: L
    values: list[Sample]


class Lines(msgspec.Struct, Generic[L]):
    rows: list[Line[L]]
    partial: bool  # as in Answer


class Answer(msgspec.Struct, Generic[L]):
    rows: list[Series[L]]
    warnings: tuple[str, ...]
    infos: tuple[str, ...]
    partial: bool  # warnings were given, or the server said so itself: rows may be missing


class Tls(msgspec.Struct, frozen=True):
    verify: bool = True
    ca_file: str | None = None
    client_cert: str | None = None
    client_key: str | None = None


class _Data(msgspec.Struct, Generic[L], rename={"result_type": "resultType"}):
    result_type: str = ""
    result: list[Series[L]] = []


class _RangeData(msgspec.Struct, Generic[L], rename={"result_type": "resultType"}):
    result_type: str = ""
    result: list[Line[L]] = []


class _Reply(msgspec.Struct, Generic[L], rename={"is_partial": "isPartial", "error_type": "errorType"}):
    status: str
    data: _Data[L] | None = None
    error: str = ""
    error_type: str = ""
    warnings: list[str] | None = None
    infos: list[str] | None = None
    is_partial: bool = False


class _RangeReply(msgspec.Struct, Generic[L], rename={"is_partial": "isPartial"}):
    status: str
    data: _RangeData[L]
    warnings: list[str] | None = None
    is_partial: bool = False


class Prometheus:
    """A server to ask. Use it as an async context manager."""

    def __init__(
        self,
        url: str,
        *,
        login: auth.Login | None = None,
        headers: Iterable[str] = (),
        tls: Tls | None = None,
        matchers: str = "",
        backoff: Seconds = 1.0,
        timeout: Seconds = _REQUEST_TIMEOUT,
    ) -> None:
        given = _parse_url(url)
        self._base = given.with_user(None).with_query(None).with_fragment(None)
        self._endpoint = self._base.with_path(self._base.path.rstrip("/") + "/api/v1/query")
        self._range_endpoint = self._base.with_path(self._base.path.rstrip("/") + "/api/v1/query_range")
        self._credentials = auth.choose(login or auth.Login(), given)
        self._headers = _parse_headers(headers)
        self._tls = build_tls(tls or Tls()) if given.scheme == "https" else None
        self._matchers = _check_matchers(matchers)
        self._waits = tuple(backoff * wait for wait in _RETRY_WAITS)
        self._timeout = aiohttp.ClientTimeout(total=timeout, sock_connect=min(timeout, _CONNECT_TIMEOUT))
        self._method = "POST"
        self._session: aiohttp.ClientSession | None = None

    def __repr__(self) -> str:
        return f"Prometheus({self.address})"

    @property
    def address(self) -> str:
        return str(self._base)

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(timeout=self._timeout, cookie_jar=aiohttp.DummyCookieJar())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._session is not None:
            await self._session.close()

    def selector(self, metric: str, *matchers: str) -> str:
        """`metric{...}` with the matchers that join every selector. Values in `matchers` come from `equals` or `any_of`."""
        return f"{metric}{{{','.join(filter(None, (*matchers, self._matchers)))}}}"

    async def query(self, promql: str, at: Instant, *, row: type[L], now: Instant | None = None) -> Answer[L]:
        """The vector at one instant. `now` is the clock for signatures and tokens, where the instant asked about is another."""
        form = {"query": promql, "time": f"{at:.3f}", "timeout": _SERVER_TIMEOUT, "dedup": "true", "partial_response": "false"}
        body = await self._ask(form, at if now is None else now)
        answer = self._read(body, row)
        if any(abs(instant - at) > _CLOCK_TOLERANCE for instant in {series.value.at for series in answer.rows}):
            raise errors.BadAnswer(f"Prometheus at {self.address} answered for another time than the one asked for")
        return answer

    async def query_range(self, promql: str, start: Instant, end: Instant, step: Seconds, *, row: type[L], now: Instant) -> Lines[L]:
        """The matrix over a range, both ends included. The caller keeps (end - start) / step below what servers allow (11,000)."""
        form = {
            "query": promql, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:.3f}", "timeout": _SERVER_TIMEOUT,
            "dedup": "true", "partial_response": "false",
        }
        body = await self._ask(form, now, self._range_endpoint)
        try:
            reply = _range_decoder(row).decode(body)
        except msgspec.MsgspecError:
            raise self._unreadable(body, "matrix") from None
        if reply.status != "success" or reply.data.result_type != "matrix":
            raise self._unreadable(body, "matrix")
        return Lines(reply.data.result, any(not _is_info(warning) for warning in reply.warnings or ()) or reply.is_partial)

    async def _ask(self, form: Mapping[str, str], now: Instant, endpoint: yarl.URL | None = None) -> bytes:
        endpoint = endpoint or self._endpoint
        for wait in self._waits:
            try:
                return await self._ask_once(form, now, endpoint)
            except (errors.Unreachable, errors.Throttled, errors.ServerFault) as error:
                log.debug("%s; asking again", error)
            await asyncio.sleep(wait * random.uniform(1.0, 1.5))
        return await self._ask_once(form, now, endpoint)

    async def _ask_once(self, form: Mapping[str, str], now: Instant, endpoint: yarl.URL) -> bytes:
        status, body = await self._send(self._method, form, now, endpoint)
        if status == 401:  # the token may have been rotated since it was read
            self._credentials.forget()
            status, body = await self._send(self._method, form, now, endpoint)
        if status in (403, 405) and self._method == "POST":  # proxies that let only GET through
            status, body = await self._send("GET", form, now, endpoint)
            if status == 200:
                self._method = "GET"
        if status != 200:
            raise errors.rejection(status, f"Prometheus at {self.address} answered {status}{_excuse(body)}")
        return body

    async def _send(self, method: str, form: Mapping[str, str], now: Instant, endpoint: yarl.URL) -> tuple[int, bytes]:
        if self._session is None:
            raise errors.Misconfigured(f"{self!r} is used before it is opened")
        url, body = endpoint, b""
        if method == "POST":
            body = yarl.URL.build(query=form).raw_query_string.encode()  # in a tenth of the time that urlencode takes
        else:  # a space as %20: signatures know no +
            url = yarl.URL(f"{endpoint}?{urllib.parse.urlencode(form, quote_via=urllib.parse.quote)}", encoded=True)
        headers = {**self._headers, "Accept-Encoding": "identity"}  # unpacking costs more CPU than the wire inside a cluster
        if body:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        headers |= await self._credentials.headers(exchange.Outgoing(self._session, method, url, body, now))
        return await self._exchange(self._session, method, url, body, headers)

    async def _exchange(
        self, session: aiohttp.ClientSession, method: str, url: yarl.URL, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, bytes]:
        try:
            async with session.request(
                method, url, data=body or None, headers=headers, ssl=self._tls or True, allow_redirects=False
            ) as response:
                return response.status, await self._read_body(response)
        except TimeoutError:
            raise errors.Unreachable(f"Prometheus at {self.address} did not answer in time") from None
        except aiohttp.ClientError as error:
            raise errors.Unreachable(f"Prometheus at {self.address} cannot be reached: {_short(str(error))}") from error

    async def _read_body(self, response: aiohttp.ClientResponse) -> bytes:
        chunks, size = [], 0
        async for chunk in response.content.iter_any():
            chunks.append(chunk)
            size += len(chunk)
            if size > _MAX_BODY:
                raise errors.BadAnswer(f"Prometheus at {self.address} answered with more than {_MAX_BODY // 2**20} MiB")
        return b"".join(chunks)

    def _read(self, body: bytes, row: type[L]) -> Answer[L]:
        try:
            reply = _decoder(row).decode(body)
        except msgspec.MsgspecError:
            raise self._unreadable(body) from None
        if reply.status != "success":
            raise errors.Rejected(200, f"Prometheus at {self.address} answered {reply.status!r}{_excuse(body)}", reason=reply.error_type)
        if reply.data is None or reply.data.result_type != "vector":
            raise self._unreadable(body)
        infos = [*(reply.infos or ()), *filter(_is_info, reply.warnings or ())]
        warnings = [warning for warning in reply.warnings or () if not _is_info(warning)]
        return Answer(reply.data.result, tuple(warnings), tuple(infos), bool(warnings) or reply.is_partial)

    def _unreadable(self, body: bytes, wanted: str = "vector") -> errors.ClientError:
        """Why an answer is not what was asked for, in the most telling words."""
        start = body[:200].lstrip().lower()
        if start.startswith((b"<!doctype", b"<html", b"<")):
            return errors.BadAnswer(f"Prometheus at {self.address} answered with a web page; is that a login page?")
        try:
            reply = msgspec.json.decode(body, type=dict[str, Any])
        except msgspec.MsgspecError:
            return errors.BadAnswer(f"Prometheus at {self.address} answered something that is not JSON")
        if "status" in reply and reply["status"] != "success":
            return errors.Rejected(200, f"Prometheus at {self.address} answered {_short(str(reply['status']))!r}{_excuse(body)}")
        data = reply.get("data")
        kind = data.get("resultType") if isinstance(data, dict) else None
        return errors.BadAnswer(f"Prometheus at {self.address} answered with {_short(str(kind or 'nothing'))} instead of a {wanted}")


def escape(text: str) -> str:
    """A literal for use inside a double-quoted PromQL string."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def any_of(label: str, values: Sequence[str]) -> str:
    """A matcher for exactly these values, whatever characters they hold."""
    if len(values) == 1:
        return f'{label}="{escape(values[0])}"'
    alternatives = "|".join(_REGEX_SPECIAL.sub(r"\\\1", value) for value in values)
    return f'{label}=~"{escape(alternatives)}"'


def build_tls(tls: Tls) -> ssl.SSLContext:
    """Raises Misconfigured, naming the file, where a certificate cannot be read."""
    if tls.client_key and not tls.client_cert:
        raise errors.Misconfigured(f"the client key {tls.client_key} for Prometheus needs a client certificate as well")
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
    except OSError as error:
        raise errors.Misconfigured(f"the CA certificate {tls.ca_file} for Prometheus cannot be read: {error.strerror or error}") from error
    if not tls.verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if tls.client_cert:
        try:
            context.load_cert_chain(tls.client_cert, tls.client_key)
        except OSError as error:
            because = error.strerror or error
            raise errors.Misconfigured(f"the client certificate {tls.client_cert} for Prometheus cannot be used: {because}") from error
    return context


@functools.lru_cache(maxsize=32)
def _typed_decoder(row: Any) -> Any:
    return msgspec.json.Decoder(_Reply[row])


def _decoder(row: type[L]) -> "msgspec.json.Decoder[_Reply[L]]":
    return cast("msgspec.json.Decoder[_Reply[L]]", _typed_decoder(cast(Any, row)))


@functools.lru_cache(maxsize=32)
def _typed_range_decoder(row: Any) -> Any:
    return msgspec.json.Decoder(_RangeReply[row])


def _range_decoder(row: type[L]) -> "msgspec.json.Decoder[_RangeReply[L]]":
    return cast("msgspec.json.Decoder[_RangeReply[L]]", _typed_range_decoder(cast(Any, row)))


def _is_info(warning: str) -> bool:
    """Some versions put their hints about PromQL among the warnings; they do not mean that rows are missing."""
    return warning.startswith("PromQL info:")


def _parse_url(url: str) -> yarl.URL:
    try:
        parsed = yarl.URL(url)
    except ValueError:
        parsed = yarl.URL()
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise errors.Misconfigured("the Prometheus address is not a URL such as https://prometheus.example.com/prefix")
    return parsed


def _parse_headers(lines: Iterable[str]) -> dict[str, str]:
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not _HEADER_NAME.fullmatch(name.strip()) or re.search(r"[\r\n\0]", value):
            raise errors.Misconfigured("a Prometheus header is not written like 'X-Scope-OrgID: team-a'")
        headers[name.strip()] = value.strip()
    return headers


def _check_matchers(matchers: str) -> str:
    if matchers.strip() and not _MATCHERS.fullmatch(matchers):
        raise errors.Misconfigured(f'{matchers!r} is not a list of label matchers such as cluster="a",env=~"prod|test"')
    return matchers.strip()


def _excuse(body: bytes) -> str:
    """What the server says about its refusal, if it says it as Prometheus does; never a page of HTML."""
    try:
        said = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.MsgspecError:
        return ""
    words = said.get("error") or said.get("message")
    return f": {_short(words)}" if isinstance(words, str) and words else ""


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 300 else line[:297] + "..."
