"""The extender's process: who may ask, what it follows, and the listeners.

In: ExtenderSettings. Out: an exit code. On loopback anybody of the same pod or machine may ask, without TLS: that is
for a scheduler beside it. Anywhere else it listens only with TLS, and only who shows a certificate of the given
authority, in a name that is expected, may ask; the certificates are read again when they change. `--health-addr`
opens a second listener for probes and metrics, which answers nothing else.
Invariant: nothing that decides listens beyond loopback without knowing who asks.
"""

import asyncio
import contextlib
import logging
import signal
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import uvicorn

from fallow import names, settings, telemetry
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config
from fallow.doors import listen
from fallow.doors.api import bounds
from fallow.doors.extender import advice, app, herald, study
from fallow.observe.cluster.tenants import Tenants
from fallow.settings.packing import ExtenderSettings

log = logging.getLogger("fallow")

RELOAD_EVERY: Final = 5.0
_KEEP_ALIVE: Final = 120  # seconds; longer than Go keeps an idle connection (90), so that it is who ends it
_FILES: Final = ("tls.crt", "tls.key", "ca.crt")


class Certificates:
    """tls.crt, tls.key and ca.crt of a folder. New connections see them as they are then."""

    def __init__(self, folder: str) -> None:
        self._files = [Path(folder, name) for name in _FILES]
        self._stamp: tuple[Any, ...] = ()
        self.context = self._read()

    def _read(self) -> ssl.SSLContext:
        """Raises OSError, of which ssl.SSLError is one."""
        stamp = tuple((each.stat().st_mtime_ns, each.stat().st_ino) for each in self._files)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(str(self._files[0]), str(self._files[1]))
        context.load_verify_locations(str(self._files[2]))
        context.verify_mode = ssl.CERT_OPTIONAL  # probes have none; who asks for nodes must
        self._stamp = stamp
        return context

    def renew(self) -> None:
        """Where the new ones cannot be read the old ones stay, and that is said."""
        try:
            stamp = tuple((each.stat().st_mtime_ns, each.stat().st_ino) for each in self._files)
            if stamp == self._stamp:
                return
            fresh = self._read()
        except OSError as problem:
            log.warning("the certificates in %s cannot be read: %s", self._files[0].parent, problem)
            return
        self.context = fresh
        log.info("the certificates were read anew")

    def attach(self, ssl_object: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        """For a new connection, the certificates of now."""
        ssl_object.context = self.context

    async def keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(RELOAD_EVERY)
            self.renew()


class ExtenderProtocol(bounds.BoundedProtocol):
    """One connection. `expected`: in whose name a certificate may be; None: nobody needs one."""

    most_body = app.MOST_BODY
    expected: frozenset[str] | None = frozenset()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[app.MAY_ASK] = self.expected is None or self._find_name() in self.expected  # type: ignore[typeddict-unknown-key]

    def _find_name(self) -> str:
        """The common name of a certificate that was verified; "" where none was shown."""
        shown = self.transport.get_extra_info("peercert") or {}
        names = [value for part in shown.get("subject", ()) for key, value in part if key == "commonName"]
        return names[0] if len(names) == 1 else ""

    def _is_answering(self) -> bool:
        """What waits to be sent may be TLS's own, such as tickets after the handshake: that is no answer."""
        return self.cycle is not None and not self.cycle.response_complete


class ExtenderServer(uvicorn.Server):
    """uvicorn, with signals left to us."""

    def __init__(
        self, made: app.ExtenderApp, expected: frozenset[str] | None, certificates: Certificates | None
    ) -> None:
        protocol = type("Protocol", (ExtenderProtocol,), {"expected": expected})
        context = certificates.context if certificates is not None else None
        super().__init__(uvicorn.Config(
            made, http=protocol, ws="none", log_config=None, lifespan="off", access_log=False, date_header=False,
            server_header=False, proxy_headers=False, timeout_keep_alive=_KEEP_ALIVE, timeout_graceful_shutdown=2,
            ssl_context_factory=(lambda *_: context) if context is not None else None,
        ))

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def run(options: ExtenderSettings) -> int:
    environ = settings.environment()
    access = config.load_access(kubeconfig=options.kubeconfig, context=options.context, environment=environ)
    home = environ.get("POD_NAMESPACE") or access.namespace or names.SYSTEM_NAMESPACES[0]
    certificates, metrics = _open_certificates(options), telemetry.Telemetry()
    async with kube.Api(access, qps=500, in_flight=50) as api:
        eyes = Tenants(api)
        asked = advice.Advisor(eyes, api, metrics)
        made = app.ExtenderApp(asked, metrics, lambda: _why_not_ready(eyes, asked))
        expected = frozenset(options.clients) if certificates is not None else None
        servers = [(ExtenderServer(made, expected, certificates), listen.open_listener(options.address, "--addr"))]
        if options.health_address is not None:
            health = ExtenderServer(made, frozenset(), None)
            servers.append((health, listen.open_listener(options.health_address, "--health-addr")))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, _stop, [server for server, _ in servers])
        log.info("listening on %s:%d, %s", *options.address, "by TLS" if certificates is not None else "on loopback")
        work = [eyes.run(), study.Student(eyes, asked, options.policy).run(), herald.Herald(asked, api, home).run()]
        work += [certificates.keep_fresh()] if certificates is not None else []
        background = [asyncio.create_task(each) for each in work]
        for each in background:
            each.add_done_callback(lambda _: _stop([server for server, _ in servers]))
        ended = list[asyncio.Task[None]]()
        try:
            await asyncio.gather(*(server.serve([listener]) for server, listener in servers))
            ended = [each for each in background if each.done()]
        finally:
            for each in background:
                each.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            for _, listener in servers:
                listener.close()
    for each in ended:
        log.error("a part of the extender has ended, and so it does: %s", each.exception() or each.get_coro())
    return 1 if ended else 0


def _open_certificates(options: ExtenderSettings) -> Certificates | None:
    if options.cert_dir is None:
        return None
    try:
        made = Certificates(options.cert_dir)
    except OSError as problem:
        files = f"{', '.join(_FILES)} of {options.cert_dir}"
        raise errors.Misconfigured(f"--cert-dir: {files} cannot be read: {problem}") from None
    made.context.sni_callback = made.attach
    return made


def _stop(servers: list[ExtenderServer]) -> None:
    for server in servers:
        server.should_exit = True


def _why_not_ready(eyes: Tenants, asked: advice.Advisor) -> list[str]:
    doubt = eyes.why_doubted(time.monotonic())
    return [*([str(doubt)] if doubt else []), *([] if asked.room is not None else [advice.NOT_READY])]
