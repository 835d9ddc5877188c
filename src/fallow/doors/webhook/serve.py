"""The webhook's process: what it follows, its certificate, and the listener.

In: WebhookSettings. Out: an exit code. It follows budgets, GPUSharingPolicies, namespaces, nodes, what the daemon tells
of owners and, where parts of GPUs are given by claims, what there is for those. Rights to read are enough, and it needs
no ledger: the status of a budget says whether it restricts, and since when that was known. The certificate is read from
files (a mounted Secret) and read again when they change; connections that come then see the new one.
Invariant: it is ready when it has a certificate and has seen budgets and namespaces once; whatever it does not see
later it admits.
"""

import asyncio
import contextlib
import logging
import operator
import signal
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from fallow import settings, telemetry
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config, reviews
from fallow.decide.sharing import PartIndex
from fallow.doors import listen
from fallow.doors.webhook import app, judging, sharing, wire
from fallow.model.seen import Known, Unseen
from fallow.model.units import Instant, Seconds
from fallow.observe import budgets, claimed
from fallow.observe import claims as observed_claims
from fallow.observe import sharing as observed
from fallow.settings.cost_enforcement import WebhookSettings
from fallow.wiring import share_terms

log = logging.getLogger("fallow")

RELOAD_EVERY: Final[Seconds] = 5.0
_LAST: Final[Seconds] = 2.0  # for what is being answered when we are told to stop
_WAITING: Final = 2048  # connections that are not accepted yet
_QPS, _IN_FLIGHT = 200, 32  # of what is asked about pods: a turn that came too late would admit them
_MOST_GREETED: Final = 100  # connections that agree on TLS: each takes a quarter of a MiB, before it said anything


class Certificate:
    """tls.crt and tls.key of a folder, in a context that new connections use as it is then."""

    def __init__(self, folder: str) -> None:
        self._files = [Path(folder, name) for name in ("tls.crt", "tls.key")]
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._stamp: tuple[Any, ...] = ()
        self.problem = "it is not read yet"

    def load(self) -> None:
        """Where the new one cannot be read the old one stays, and that is said once."""
        try:
            stamp = tuple((each.stat().st_mtime_ns, each.stat().st_ino) for each in self._files)
            if stamp == self._stamp:
                return
            fresh = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # one that took a certificate without its key lost the old
            fresh.minimum_version = ssl.TLSVersion.TLSv1_2
            fresh.load_cert_chain(str(self._files[0]), str(self._files[1]))
        except (OSError, ssl.SSLError) as problem:
            because = f"the certificate in {self._files[0].parent} cannot be read: {problem}"
            if because != self.problem:
                log.warning("%s", because)
            self.problem = because
            return
        log.info("the certificate was %s", "read anew" if self._stamp else "read")
        self.context, self._stamp, self.problem = fresh, stamp, ""

    @property
    def is_loaded(self) -> bool:
        return bool(self._stamp)

    async def keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(RELOAD_EVERY)
            self.load()


class WebhookServer:
    """Serves until it is stopped; what is being answered then has two seconds. Of too many that do not come to an end
    with TLS the oldest goes."""

    def __init__(self, made: app.App, certificate: Certificate) -> None:
        self._answers, self._certificate = made.answer, certificate
        self._lines, self._stopped = set[wire.ReviewLine](), asyncio.Event()
        self._greeted: dict[asyncio.Task[None], None] = {}  # oldest first

    async def serve(self, listener: socket.socket) -> None:
        listener.listen(_WAITING)
        working = [asyncio.create_task(each) for each in (self._accept(listener), self._sweep())]
        try:
            await self._stopped.wait()
        finally:
            listener.close()
            for task in (*working, *self._greeted):
                task.cancel()
            await self._finish()

    def stop(self) -> None:
        self._stopped.set()

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = await asyncio.get_running_loop().sock_accept(listener)
            except OSError as problem:  # gone again, or there are no more files to be had
                log.warning("a connection was not accepted: %s", problem)
                await asyncio.sleep(wire.SWEEP)
                continue
            greeting = asyncio.create_task(self._greet(connection))
            self._greeted[greeting] = None
            greeting.add_done_callback(self._greeted.pop)
            if len(self._greeted) > _MOST_GREETED:
                next(iter(self._greeted)).cancel()

    async def _greet(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it speaks no TLS, or not ours, or not in time
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: wire.ReviewLine(self._answers, self._lines), connection, ssl=self._certificate.context,
                ssl_handshake_timeout=wire.REQUEST, ssl_shutdown_timeout=_LAST,
            )

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(wire.SWEEP)
            wire.end_late(self._lines, time.monotonic())

    async def _finish(self) -> None:
        if waiting := [each.working for each in self._lines if each.working is not None]:
            await asyncio.wait(waiting, timeout=_LAST)
        for line in list(self._lines):
            line.transport.close()


async def run(options: WebhookSettings) -> int:
    access = config.load_access(
        kubeconfig=options.kubeconfig, context=options.context, environment=settings.environment()
    )
    certificate, metrics = Certificate(options.cert_dir), telemetry.Telemetry()
    certificate.load()
    async with kube.Api(access, qps=_QPS, burst=_QPS, in_flight=_IN_FLIGHT) as api:
        known, places = budgets.watch_budgets(api), budgets.watch_namespaces(api)
        owners = budgets.TopOwners(api)
        eyes = _make_eyes(api, known, places, owners, claimed.ClaimReader(api))
        judge = judging.Judge(eyes, exempt=options.exempt, gpu_resources=options.gpu_resources, clock=time.time)
        policies, nodes = observed.watch_policies(api), observed.watch_part_nodes(api)
        used = observed.watch_owner_use(api, options.own_namespace or access.namespace or "default")
        claims = observed_claims.ClaimEyes(api) if options.sharing.by_claims else None
        share_eyes = make_share_eyes(policies, nodes, places, owners, used, claims)
        sharer = sharing.ShareJudge(share_eyes, share_terms.of_options(options), time.time)
        made = app.App(judge, sharer, metrics, lambda: _why_not_ready(certificate, known, places))
        server = WebhookServer(made, certificate)
        listener = listen.open_listener(options.address, "--webhook-addr")
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, server.stop)
        log.info("listening on %s:%d", *options.address)
        background = [asyncio.create_task(each) for each in (
            known.run(), places.run(), policies.run(), nodes.run(), used.run(), certificate.keep_fresh(),
            *(each.run() for each in (claims.watched if claims is not None else ())),
        )]
        try:
            with contextlib.closing(listener):
                await server.serve(listener)
        finally:
            for each in background:
                each.cancel()
            await asyncio.gather(*background, return_exceptions=True)
    return 0


def make_share_eyes(
    policies: budgets.Watching[Any], nodes: budgets.Watching[Any], places: budgets.Watching[Any],
    owners: budgets.TopOwners, used: budgets.Watching[Any], claims: observed_claims.ClaimEyes | None,
    clock: Callable[[], Instant] = time.time,
) -> sharing.ShareEyes:
    named = budgets.Places(places)
    ranked, cut, ground = MadeOf(observed.rank), MadeOf(_make_index), MadeOf(observed_claims.join_ground)
    eyes = sharing.ShareEyes(
        policies=lambda: ranked.of(policies.seen), nodes=lambda: cut.of(observed.keep_parts, nodes.seen),
        namespaces=lambda: named.register, top=owners.read_top,
        use=lambda uid: observed.find_use(used.seen, uid, clock()),
        stale=lambda: budgets.find_stale((policies, nodes, places), time.monotonic()),
    )
    if claims is None:
        return eyes
    return msgspec.structs.replace(
        eyes, nodes=lambda: cut.of(observed_claims.join_devices, nodes.seen, claims.slices.seen),
        claims=lambda: ground.of(claims.classes.seen, claims.templates.seen),
        stale=lambda: budgets.find_stale((policies, nodes, places, *claims.watched), time.monotonic()),
    )


def _make_index(keep: Callable[..., Any], *seen: Any) -> Any:
    """Only of nodes of which parts of GPUs can be had."""
    found = keep(*seen)
    return Known(PartIndex(found.value)) if isinstance(found, Known) else found


class MadeOf:
    """What is made of things that are seen, made anew only when one of them changed."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make
        self._before: tuple[Any, ...] = ()
        self._made: Any = None

    def of(self, *seen: Any) -> Any:
        if len(seen) != len(self._before) or any(map(operator.is_not, seen, self._before)):
            self._before, self._made = seen, self._make(*seen)
        return self._made


def _make_eyes(
    api: kube.Api, known: budgets.Watching[Any], places: budgets.Watching[Any], owners: budgets.TopOwners,
    claims: claimed.ClaimReader,
) -> judging.WebhookEyes:
    named = budgets.Places(places)

    async def may(who: reviews.Identity, wish: reviews.AccessWish) -> bool:
        return await reviews.review_access(api, who, wish)

    return judging.WebhookEyes(
        budgets=lambda: known.seen, namespaces=lambda: named.register, above=owners.read_above,
        claims=claims.ask_for_gpus, may=may,
    )


def _why_not_ready(certificate: Certificate, *watched: budgets.Watching[Any]) -> list[str]:
    blind = [each.seen for each in watched if each.follower.synced_at is None]
    unseen = [seen.why for seen in blind if isinstance(seen, Unseen)]
    return [*([] if certificate.is_loaded else [certificate.problem]), *unseen]

