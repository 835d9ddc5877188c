"""Instant and range queries against a Prometheus-compatible server.

In: PromQL, the instant or range, and the type of the labels wanted. Out: `QueryAnswer`, typed series with the server's
warnings, or an error of clients/errors.py with one sentence that names the address (never its userinfo). Invariant:
what is returned is a vector of a successful answer, evaluated at the instant that was asked for, or a matrix within the
range. Anything else raises.
The caller bounds the whole with asyncio.timeout; one request takes at most `timeout`, and is tried again only where
that can help.
"""

import functools
import math
import re
import time
import urllib.parse
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Self, TypeVar, cast

import msgspec
import multidict
import yarl

from fallow.clients import dates, errors, faults, retry, signing, tls
from fallow.clients.prometheus import auth
from fallow.clients.web import aiohttp
from fallow.model.secret import Secret
from fallow.model.seen import Input
from fallow.model.units import Instant, Seconds

L = TypeVar("L")
R = TypeVar("R")

_SERVER_TIMEOUT = "30s"
_REQUEST_TIMEOUT: Seconds = 35.0  # a little more than the server allows itself, so that its own words arrive
_CONNECT_TIMEOUT: Seconds = 10.0
_TRIES = 4
_CLOCK_TOLERANCE: Seconds = 1.0  # an answer for another instant than that was not computed for us
MAX_BODY = 64 * 2**20  # unpacked
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)  # the last: nested too deep
_ANY_PACKING = zlib.MAX_WBITS | 32  # gzip or deflate, as it says itself

_MATCHER = r'[a-zA-Z_][a-zA-Z0-9_]*\s*(?:=~|!~|!=|=)\s*"(?:[^"\\\n]|\\.)*"'
_MATCHERS = re.compile(rf"\s*{_MATCHER}\s*(?:,\s*{_MATCHER}\s*)*")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_REGEX_SPECIAL = re.compile(r"([\\.+*?()|\[\]{}^$])")


class TextSample(msgspec.Struct, array_like=True, frozen=True, gc=False):
    at: Instant
    value: str  # Prometheus writes numbers as strings: "NaN" and "+Inf" are no JSON numbers


_NO_NUMBER = TextSample(math.nan, "NaN")


class InstantSeries(msgspec.Struct, Generic[L], gc=False):
    """What is no number (a native histogram comes without a value) reads NaN, whatever is in it."""

    metric: L
    value: TextSample = _NO_NUMBER


class RangeSeries(msgspec.Struct, Generic[L], gc=False):
    metric: L
    values: list[TextSample] = []  # without native histograms


class QueryAnswer(msgspec.Struct, Generic[R]):
    rows: list[R]
    warnings: tuple[str, ...]
    infos: tuple[str, ...]
    partial: bool  # warnings were given, or the server said so itself: rows may be missing
    histograms: int = 0  # rows of an instant that are no numbers


class _Data(msgspec.Struct, Generic[R], rename="camel"):
    result_type: str = ""
    result: list[R] = []


class _Reply(msgspec.Struct, Generic[R], rename="camel", kw_only=True):
    status: str
    data: _Data[R] | None = None
    warnings: list[str] | None = None
    infos: list[str] | None = None
    is_partial: bool = False


class Prometheus:
    """A server to ask. Use it as an async context manager."""

    def __init__(
        self, url: str, *, login: auth.Login | None = None, signer: signing.Signer | None = None,
        headers: Iterable[str] = (), files: tls.TlsFiles | None = None, matchers: str = "", backoff: Seconds = 1.0,
        timeout: Seconds = _REQUEST_TIMEOUT, proxy: Secret[str] | None = None,
        monotonic: Callable[[], float] = time.monotonic, tell: Callable[[str], None] | None = None,
    ) -> None:
        """`signer`: instead of a login, for servers of a cloud; `backoff`: the first wait before trying again.

        `monotonic`: by which clock the server's is carried on. `tell`: for a person who waits, once, why it takes long.
        """
        given = _parse_url(url)
        self._base = given.with_user(None).with_query(None).with_fragment(None)
        self._headers = _parse_headers(headers)
        by_hand = "Authorization" in self._headers
        self._signer = signer or auth.choose(login or auth.Login(), given, by_hand=by_hand)
        self._tls = tls.LiveContext(files or tls.TlsFiles(), "Prometheus") if given.scheme == "https" else None
        self._proxy = proxy
        self._matchers = _check_matchers(matchers)
        self._patience = retry.Patience(_TRIES, backoff)
        self._tell = tell
        self._timeout = aiohttp.ClientTimeout(total=timeout, sock_connect=min(timeout, _CONNECT_TIMEOUT))
        self._method = "POST"
        self._clock = dates.OtherClock(monotonic)
        self._session: aiohttp.ClientSession | None = None

    def __repr__(self) -> str:
        return f"Prometheus({self.address})"

    @property
    def clock(self) -> Input[Instant]:
        """What time it is at the server."""
        return self._clock.read()

    @property
    def address(self) -> str:
        return str(self._base)

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(timeout=self._timeout, cookie_jar=aiohttp.DummyCookieJar())
        return self

    async def __aexit__(self, *why: object) -> None:
        if self._session is not None:
            await self._session.close()

    def selector(self, metric: str, *matchers: str) -> str:
        """`metric{...}` with the matchers that join every selector. Values in `matchers` come from `any_of`."""
        return f"{metric}{{{','.join(filter(None, (*matchers, self._matchers)))}}}"

    async def query(self, promql: str, at: Instant, *, row: type[L]) -> QueryAnswer[InstantSeries[L]]:
        """The vector at one instant, which is also the clock for signatures and tokens."""
        body = await self._ask("query", {"query": promql, "time": f"{at:.3f}"}, at)
        answer: QueryAnswer[InstantSeries[L]] = self._read(body, "vector", _decoder(InstantSeries, cast(Any, row)))
        if any(abs(instant - at) > _CLOCK_TOLERANCE for instant in {series.value.at for series in answer.rows}):
            raise errors.BadAnswer(f"Prometheus at {self.address} answered for another time than the one asked for")
        answer.histograms = sum(series.value is _NO_NUMBER for series in answer.rows)
        return answer

    async def query_range(
        self, promql: str, start: Instant, end: Instant, step: Seconds, *, row: type[L], now: Instant
    ) -> QueryAnswer[RangeSeries[L]]:
        """The matrix over a range, both ends included. Servers allow (end - start) / step up to 11,000."""
        form = {"query": promql, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:.3f}"}
        return self._read(await self._ask("query_range", form, now), "matrix", _decoder(RangeSeries, cast(Any, row)))

    async def relay(self, promql: str, at: Instant, now: Instant, *, most: int) -> bytes:
        """Somebody's own question, asked once; the answer as it is, of at most so many bytes."""
        form = {"query": promql, "time": f"{at:.3f}", "timeout": _SERVER_TIMEOUT}
        return await self._ask_once(form, now, self._endpoint("query"), most)

    def _endpoint(self, verb: str) -> yarl.URL:
        return self._base.with_path(f"{self._base.path.rstrip('/')}/api/v1/{verb}")

    async def _ask(self, verb: str, form: Mapping[str, str], now: Instant) -> bytes:
        whole = {**form, "timeout": _SERVER_TIMEOUT, "dedup": "true", "partial_response": "false"}
        ask = functools.partial(self._ask_once, whole, now, self._endpoint(verb), MAX_BODY)
        return await retry.persist(ask, self._patience, tell=self._tell_once)

    def _tell_once(self, problem: errors.ClientError) -> None:
        if self._tell is not None:
            self._tell(f"{problem}; trying again ...")
            self._tell = None

    async def _ask_once(self, form: Mapping[str, str], now: Instant, endpoint: yarl.URL, most: int) -> bytes:
        status, body = await self._send(self._method, form, now, endpoint, most)
        if status == 401:  # the token may have been rotated since it was read
            self._signer.forget()
            status, body = await self._send(self._method, form, now, endpoint, most)
        if status in (403, 405) and self._method == "POST":  # proxies that let only GET through
            status, body = await self._send("GET", form, now, endpoint, most)
            if status == 200:
                self._method = "GET"
        if status != 200:
            raise errors.rejection(status, f"Prometheus at {self.address} answered {status}{_excuse(body)}")
        return body

    async def _send(
        self, method: str, form: Mapping[str, str], now: Instant, endpoint: yarl.URL, most: int
    ) -> tuple[int, bytes]:
        if self._session is None:
            raise errors.Misconfigured(f"{self!r} is used before it is opened")
        url, body = endpoint, b""
        if method == "POST":
            body = yarl.URL.build(query=form).raw_query_string.encode()  # in a tenth of the time that urlencode takes
        else:  # a space as %20: signatures know no +
            url = yarl.URL(f"{endpoint}?{urllib.parse.urlencode(form, quote_via=urllib.parse.quote)}", encoded=True)
        # Unpacking costs more CPU than the wire inside a cluster.
        headers = multidict.CIMultiDict({"Accept-Encoding": "identity"})
        if body:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        headers.update(await self._signer.headers(signing.Outgoing(self._session, method, url, body, now)))
        headers.update(self._headers)  # what was written by hand wins
        try:
            async with self._session.request(
                method, url, data=body or None, headers=headers, ssl=self._tls.current() if self._tls else True,
                proxy=self._proxy.reveal() if self._proxy else None, allow_redirects=False, auto_decompress=False,
            ) as response:
                if response.status == 200:
                    self._clock.note(response.headers)
                return response.status, await self._read_body(response, most)
        except TimeoutError:
            raise errors.Unreachable(f"Prometheus at {self.address} did not answer in time") from None
        except zlib.error:
            raise errors.BadAnswer(f"Prometheus at {self.address} answered with what cannot be unpacked") from None
        except aiohttp.ClientError as error:
            why = faults.name_fault(error)
            raise errors.Unreachable(f"Prometheus at {self.address} cannot be reached: {why}") from None

    async def _read_body(self, response: aiohttp.ClientResponse, most: int) -> bytes:
        """Unpacked, where a proxy on the way packs what was asked for plain; never more than `most` of it."""
        packing = response.headers.get("Content-Encoding", "identity").lower()
        if packing not in ("identity", "gzip", "deflate"):
            raise errors.BadAnswer(f"Prometheus at {self.address} answered in the packing {_short(packing)!r}")
        unpacker = None if packing == "identity" else zlib.decompressobj(_ANY_PACKING)
        chunks, size = [], 0
        async for chunk in response.content.iter_any():
            chunks.append(unpacker.decompress(chunk, most - size + 1) if unpacker else chunk)
            size += len(chunks[-1])
            if size > most:
                raise errors.BadAnswer(f"Prometheus at {self.address} answered with more than {most // 2**20} MiB")
        return b"".join(chunks)

    def _read(self, body: bytes, wanted: str, decoder: "msgspec.json.Decoder[_Reply[R]]") -> QueryAnswer[R]:
        try:
            reply = decoder.decode(body)
        except _UNREADABLE:
            raise self._unreadable(body, wanted) from None
        if reply.status != "success":
            raise errors.Rejected(200, f"Prometheus at {self.address} answered {reply.status!r}{_excuse(body)}")
        if reply.data is None or reply.data.result_type != wanted:
            raise self._unreadable(body, wanted)
        infos = [*(reply.infos or ()), *filter(_is_info, reply.warnings or ())]
        warnings = [warning for warning in reply.warnings or () if not _is_info(warning)]
        return QueryAnswer(reply.data.result, tuple(warnings), tuple(infos), bool(warnings) or reply.is_partial)

    def _unreadable(self, body: bytes, wanted: str) -> errors.ClientError:
        """Why an answer is not what was asked for, in the most telling words."""
        start = body[:200].lstrip().lower()
        if start.startswith((b"<!doctype", b"<html", b"<")):
            return errors.BadAnswer(f"Prometheus at {self.address} answered with a web page; is that a login page?")
        try:
            reply = msgspec.json.decode(body, type=dict[str, Any])
        except _UNREADABLE:
            return errors.BadAnswer(f"Prometheus at {self.address} answered something that is not JSON")
        if "status" in reply and reply["status"] != "success":
            status = _short(str(reply["status"]))
            return errors.Rejected(200, f"Prometheus at {self.address} answered {status!r}{_excuse(body)}")
        data = reply.get("data")
        kind = data.get("resultType") if isinstance(data, dict) else None
        came = _short(str(kind or "nothing"))
        return errors.BadAnswer(f"Prometheus at {self.address} answered with {came} instead of a {wanted}")


def escape(text: str) -> str:
    """A literal for use inside a double-quoted PromQL string."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def any_of(label: str, values: Sequence[str]) -> str:
    """A matcher for exactly these values, whatever characters they hold."""
    if len(values) == 1:
        return f'{label}="{escape(values[0])}"'
    alternatives = "|".join(_REGEX_SPECIAL.sub(r"\\\1", value) for value in values)
    return f'{label}=~"{escape(alternatives)}"'


@functools.lru_cache(maxsize=32)
def _decoder(series: Any, row: Any) -> "msgspec.json.Decoder[_Reply[Any]]":
    return msgspec.json.Decoder(_Reply[series[row]])


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


def _parse_headers(lines: Iterable[str]) -> multidict.CIMultiDict[str]:
    headers: multidict.CIMultiDict[str] = multidict.CIMultiDict()
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
    except _UNREADABLE:
        return ""
    words = said.get("error") or said.get("message")
    return f": {_short(words)}" if isinstance(words, str) and words else ""


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 300 else line[:297] + "..."
