"""The watch as a process: polls until a signal, and answers /metrics and /healthz from a thread beside.

In: the options, as JSON in the last argument (`fallow spot-watch` has checked them). Out: an exit code.
Invariant: a page says what the last poll found; GET is all that it answers, to one after the other, each bounded.
"""

import json
import logging
import signal
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from fallow import logs, names
from fallow.clients import metadata, node_marks
from fallow.model.spot_watch import WatchOptions
from fallow.stories import spot_watch

log = logging.getLogger("fallow.spot")

_EXIT_USAGE: Final = 2
_MOST_HEAD: Final = 32 * 1024
_PATIENCE: Final = 5.0  # seconds, with one visitor's request, and with their taking the answer


def show(watch: spot_watch.SpotWatch, node: str) -> str:
    name, label = names.SPOT_WATCH_UP, node.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return (
        f"# HELP {name} Whether this node's watch hears its cloud, and could note what it heard.\n"
        f'# TYPE {name} gauge\n{name}{{node="{label}"}} {int(watch.is_up)}\n'
    )


class _Server(socketserver.TCPServer):
    allow_reuse_address = True

    def __init__(self, options: WatchOptions, watch: spot_watch.SpotWatch) -> None:
        self.address_family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
        self.pages: dict[str, Callable[[], str]] = {
            "/metrics": lambda: show(watch, options.node), "/healthz": lambda: "ok\n"
        }
        super().__init__((options.host, options.port), _Visit)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a visitor of the metrics went away")


class _Visit(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        head = self._read_head()
        method, _, rest = head.partition(b"\n")[0].decode("latin-1").partition(" ")
        server = self.server
        assert isinstance(server, _Server)
        page = server.pages.get(rest.partition(" ")[0].partition("?")[0]) if method == "GET" else None
        body = page().encode() if page else b"there are /metrics and /healthz\n"
        status = "200 OK" if page else "404 Not Found"
        answer = f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
        self.request.settimeout(_PATIENCE)
        self.request.sendall(f"{answer}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)

    def _read_head(self) -> bytes:
        """Raises TimeoutError: who sends byte by byte keeps the others waiting no longer than who sends none."""
        ends, head = time.monotonic() + _PATIENCE, b""
        while b"\r\n\r\n" not in head and b"\n\n" not in head and len(head) < _MOST_HEAD:
            if (left := ends - time.monotonic()) <= 0:
                raise TimeoutError
            self.request.settimeout(left)
            part = self.request.recv(_MOST_HEAD)
            if not part:
                break
            head += part
        return head


def make_watch(options: WatchOptions) -> spot_watch.SpotWatch:
    bases = {"aws": options.aws, "gcp": options.gcp, "azure": options.azure}
    chosen = bases if options.cloud == "auto" else {options.cloud: bases[options.cloud]}
    marks = node_marks.NodeMarks(
        options.server, options.node, token_file=options.token_file, authority_file=options.authority_file
    )
    clouds = {name: metadata.CLOUDS[name](base) for name, base in chosen.items()}
    return spot_watch.SpotWatch(clouds, marks, interval=options.interval, clock=time.time)


def main() -> None:
    options = WatchOptions(**json.loads(sys.argv[-1]))
    logs.set_up(options.log_format, options.log_level)
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    watch = make_watch(options)
    if options.port:
        try:
            server = _Server(options, watch)
        except OSError as problem:
            log.error("--metrics-addr: cannot listen on %s:%s: %s", options.host, options.port, problem.strerror)
            sys.exit(_EXIT_USAGE)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 3600.0}, daemon=True).start()
    threading.Thread(target=_poll, args=(watch, options.interval), daemon=True).start()
    stopped.wait()


def _poll(watch: spot_watch.SpotWatch, interval: float) -> None:
    """In a thread of its own: a cloud that is slow to answer keeps nobody from ending us."""
    while True:
        began = time.monotonic()
        try:
            watch.poll()
        except Exception:  # a defect spoils this poll, not the next
            watch.is_up = False
            log.exception("a poll failed by a defect")
        time.sleep(max(0.1, interval - (time.monotonic() - began)))
