"""The one way in which a listener is opened: bound and listening before anything else starts.

In: an address, and by which flag it was given. Out: a TCP socket on which no call blocks, or a UsageError: a port
that is taken is a sentence at the start, not a crash later. Who comes before it is served waits.
"""

import socket

from fallow import settings

_WAITING = 128  # connections; who serves may ask for more


def open_listener(address: tuple[str, int], flag: str = "--metrics-addr") -> socket.socket:
    host, port = address
    # By its protocol asyncio knows it as TCP and lets nothing wait for more: else each answer takes 40 ms longer.
    listener = socket.socket(_family(host), socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setblocking(False)
    try:
        listener.bind((host, port))
        listener.listen(_WAITING)
    except OSError as problem:
        listener.close()
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        raise settings.UsageError(f"{flag}: cannot listen on {where}: {problem.strerror}") from None
    return listener


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
