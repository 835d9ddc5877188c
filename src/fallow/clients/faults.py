"""Why a server could not be reached, in words that people know and that give nothing away.

In: what the HTTP library raised. Out: half a sentence. Invariant: the library's own sentences are never repeated: they
hold addresses, and with them the passwords of proxies and whatever else is secret in a URL.
"""

import errno

from fallow.clients.web import aiohttp

_KNOWN = {
    errno.ECONNREFUSED: "connection refused", errno.EHOSTUNREACH: "no route to host",
    errno.ENETUNREACH: "network unreachable", errno.ECONNRESET: "connection reset",
}


def name_fault(error: Exception) -> str:
    match error:
        case aiohttp.ClientHttpProxyError():
            return f"the proxy answered {error.status}"
        case aiohttp.ClientProxyConnectionError():
            return f"the proxy cannot be reached: {_name_system(error.os_error)}"
        case aiohttp.ClientConnectorDNSError():
            return "its host name is not known here"
        case aiohttp.ClientConnectorCertificateError():
            return f"TLS failed: {error.certificate_error}"
        case aiohttp.ClientConnectorError():
            failed = "TLS failed: " if isinstance(error, aiohttp.ClientSSLError) else ""
            return failed + _name_system(error.os_error)
        case aiohttp.ServerDisconnectedError():
            return "it closed the connection without an answer"
        case OSError():
            return _name_system(error)
    return type(error).__name__


def _name_system(problem: OSError) -> str:
    return _KNOWN.get(problem.errno or 0) or problem.strerror or type(problem).__name__
