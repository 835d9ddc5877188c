"""One plain request after another, for programs that must stay small: no event loop, no connection kept.

In: a request. Out: status, headers and body, or Unreachable or BadAnswer. Bounded in time and in size. Statuses are the
caller's to read: for some of whom we ask, 404 is an answer. Proxies are not used: whom we ask is next to us.
"""

import http.client
import ssl
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib import parse

from fallow.clients import errors
from fallow.model.units import Seconds

_LONGEST: Final = 1024 * 1024


class PlainAnswer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


def ask(
    who: str, method: str, url: str, *, headers: Mapping[str, str], timeout: Seconds, body: bytes | None = None,
    trust: ssl.SSLContext | None = None,
) -> PlainAnswer:
    """`trust`: by which an https server is known."""
    parts = parse.urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme == "https":
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            host, parts.port, timeout=timeout, context=trust
        )
    else:
        connection = http.client.HTTPConnection(host, parts.port, timeout=timeout)
    try:
        connection.request(method, parts._replace(scheme="", netloc="").geturl() or "/", body, dict(headers))
        got = connection.getresponse()
        answer = PlainAnswer(got.status, {name.lower(): value for name, value in got.getheaders()}, got.read(_LONGEST))
    except TimeoutError:
        raise errors.Unreachable(f"{who} did not answer within {timeout:g} s") from None
    except OSError as problem:
        raise errors.Unreachable(f"{who} cannot be reached: {problem.strerror or type(problem).__name__}") from None
    except (http.client.HTTPException, ValueError):
        raise errors.BadAnswer(f"{who} gave an answer that cannot be read") from None
    finally:
        connection.close()
    if len(answer.body) >= _LONGEST:
        raise errors.BadAnswer(f"{who} answers more than {_LONGEST // 1024} KiB")
    return answer
