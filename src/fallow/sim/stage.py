"""The pretend cluster on stage: the world, its servers, and the real controller, which meets them over sockets only.

In: a World, the flags the product is started with, IdlePolicies, a folder for the kubeconfig. Out: `Stage.step`: the
world goes on by one interval, exporters are read once a minute, then the product has one cycle. The product's clocks
are the world's, so a day takes as long as the work in it, and not a day. Those who look in from outside (people with
kubectl and our own commands) have a door of the API server and a Prometheus, both by their clock.
Invariant: world/laws.py is asked about every pause of the controller at the moment it is written; `broken` is what it
said. What a person paused is nobody's promise.
"""

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from fallow import names, settings
from fallow.model import decision
from fallow.model.policies import idle, idle_crd
from fallow.model.units import HOUR, MINUTE, Instant, Seconds
from fallow.sim import fleet as fleets
from fallow.sim.servers import exporter, objects, partitions, places
from fallow.sim.servers import store as stores
from fallow.sim.servers.kubernetes import patches, server
from fallow.sim.servers.prometheus import samples
from fallow.sim.servers.prometheus import server as prometheus
from fallow.sim.world import edits, laws, nouns, shapes
from fallow.sim.world import world as worlds
from fallow.sim.world.nouns import Fault
from fallow.wiring import daemon
from fallow.wiring.books import BOOKS, COMMITMENTS, SAVINGS
from fallow.wiring.budgets import BUDGETS
from fallow.wiring.consolidation import CONSOLIDATION, DEFRAG
from fallow.wiring.pricing import PRICES
from fallow.wiring.scaling import SCALING
from fallow.wiring.sharing import GUARD, SHARING
from fallow.wiring.sharing import POLICIES as SHARE_POLICIES

Object: TypeAlias = dict[str, Any]

FLAGS: Mapping[str, Any] = {
    "daemon_mode": True, "run_mode": "scale-down", "source": "scrape", "scrape_interval": "60",
    "enabled_resources": settings.LETTERS, "metrics_addr": "", "check_interval": "300",
}
# While a day is played in a minute the stories of money have fewer turns. What they write is exact to the second all
# the same: the books see who came and went, and when.
HURRIED: Mapping[str, Seconds] = {
    PRICES: HOUR, BOOKS: 10 * MINUTE, BUDGETS: HOUR, SAVINGS: 4 * HOUR, COMMITMENTS: 4 * HOUR,
    SHARING: HOUR / 2, SHARE_POLICIES: HOUR / 2, GUARD: 10 * MINUTE, CONSOLIDATION: HOUR, DEFRAG: HOUR / 2,
    SCALING: 3 * MINUTE,
}
SOON: Seconds = 10.0  # between two turns while a machine is emptied or taken back, or a pod is moved
# Stories that are told where pods are admitted.
SHARED: Sequence[str] = (SHARING, GUARD, SHARE_POLICIES, CONSOLIDATION, DEFRAG)
Admit: TypeAlias = Callable[[Object], Awaitable[tuple[Object, ...]]]  # of a pod, what is changed about it
Gate: TypeAlias = Callable[[Path, Callable[[], Instant]], contextlib.AbstractAsyncContextManager[Admit]]


def make_policy(
    name: str, window: str, *, grace: str = "15m", priority: int = 0, classes: Sequence[str] = (),
    kinds: Sequence[str] = (), channels: Sequence[Object] = ({"name": "event", "type": "event"},),
) -> Object:
    """An IdlePolicy that tells owners first, and then pauses. `kinds`: none are those of the flags."""
    notice = {"required": True, "grace": grace, "channels": list(channels)}
    return {
        "apiVersion": f"{names.GROUP}/{names.POLICY_VERSION}", "kind": names.POLICY_KIND, "metadata": {"name": name},
        "spec": {
            "priority": priority, "classes": list(classes), "kinds": list(kinds), "windows": {"goneIdle": window},
            "notice": notice, "action": {"type": "pause"},
        },
    }


KINDS = tuple(shapes.SHAPES)  # every kind that lives here: whoever looks in has other flags, and judges alike


def _by_event(*_: str) -> list[Object]:
    return [{"name": "event", "type": "event"}]


def make_policies(channels: Callable[..., Iterable[Object]] = _by_event) -> tuple[Object, ...]:
    """Of the pretend cluster. `channels`: those to tell by, for the types that suit its owners."""
    rooms, letters = list(channels("slack")), list(channels("email"))
    patient = functools.partial(make_policy, priority=10, grace="30m", kinds=KINDS)
    return (
        make_policy("everything", "30m", kinds=KINDS, channels=rooms),
        patient("notebooks", "1h", classes=["notebook"], channels=letters),
        patient("training", "1h30m", classes=["training"], channels=rooms),  # it loses work
    )


POLICIES = make_policies()


class Outside(msgspec.Struct, frozen=True):
    """Those who look in: their clock, and at which ports they find the API server and Prometheus (0: any)."""

    clock: Callable[[], Instant]
    port: int = 0
    prometheus_port: int = 0


class Addresses(msgspec.Struct, frozen=True):
    """Where those who look in from outside find the cluster."""

    kubeconfig: Path
    prometheus: str


class Rental(msgspec.Struct, frozen=True):
    """Machines that come and go, with those who watch what is new."""

    fleet: fleets.Fleet
    exporters: exporter.ExporterServer
    kept: samples.KeptSamples


class Stage:
    """Made by `open_stage`."""

    def __init__(
        self, world: worlds.World, store: stores.Store, kubernetes: server.KubernetesServer,
        options: settings.Settings, policies: Sequence[idle.IdlePolicy],
    ) -> None:
        self.world, self.store, self.kubernetes, self.options = world, store, kubernetes, options
        self.objects = objects.Objects(world, store, self._watch_pause)
        self._programs = partitions.NodePrograms(world, store)
        self._places = places.HeldPlaces(world, store, self.objects)
        self.broken: list[str] = []
        self.addresses: Addresses | None = None
        self.prometheus: prometheus.PrometheusServer | None = None
        self.cycle: decision.Cycle | None = None  # the last one
        self._policies = policies
        self._made: daemon.Assembly | None = None
        self._moved_at, self._latest = time.monotonic(), world.now
        self._measured_at = world.now
        self.hurries = True  # a day passes in a minute; False: a second takes a second
        self._booked_at: dict[str, Instant] = {}  # by the name of a story
        self.admit: Admit | None = None  # None: pods are let in as they ask
        self.rented: Rental | None = None  # None: machines stay as they are

    @property
    def product(self) -> daemon.Assembly:
        if self._made is None:
            raise RuntimeError("nobody is on stage")
        return self._made

    def monotonic(self) -> float:
        """The product's clock that nobody sets: the world's time, and within one instant of it, time that passes."""
        self._latest = max(self._latest, self.world.now + time.monotonic() - self._moved_at)
        return self._latest

    @property
    def interval(self) -> Seconds:
        return self.options.loop.interval

    async def enter(self, made: daemon.Assembly) -> None:
        """The product comes in: it looks around and takes the Lease."""
        self._made = made
        if not await made.loop.begin():
            raise RuntimeError(f"the Lease {names.LEASE} of the pretend cluster could not be had")
        await self._measure()
        await self.keep_books()

    async def _measure(self) -> None:
        """One round of scrapes, by the product and by Prometheus."""
        if self._made is not None and self._made.scraping is not None:
            await self._made.scraping.scrape(self.world.clock)
        if self.prometheus is not None:
            self.prometheus.scrape()

    async def step(self) -> decision.Cycle:
        """One interval of the world, then one cycle of the product."""
        await self.pass_time(self.interval)
        return await self.tick()

    async def tick(self) -> decision.Cycle:
        """One cycle of the product, at this instant of the world."""
        cycle = await self.product.loop.tick(daemon.IDLE)
        assert isinstance(cycle, decision.Cycle), "it was stopped"
        self.cycle = cycle
        await self._show()
        await self.keep_books()
        return cycle

    async def _show(self) -> None:
        """What the world has become; who wants in is admitted first."""
        if self.rented is not None:
            await self._follow(self.rented)
        self._programs.step()
        self._places.step()
        self.objects.step()
        wanting = tuple(self.world.at_gate)
        for workload in wanting:
            patch: tuple[Object, ...] = ()
            if self.admit is not None and workload.part.mode == "whole":  # the others chose their part themselves
                patch = await self.admit(self.objects.ask(workload))
            self.world.let_in(workload, _find_mode(self.objects.ask(workload), patch, workload.part.mode), patch)
        if wanting:
            self.objects.step()

    async def _follow(self, rented: Rental) -> None:
        for node in rented.fleet.follow():
            port = await rented.exporters.open(node)
            rented.kept.follow(node.name, port)
            self.objects.show_exporters({node.name: port})

    async def _scale(self, rented: Rental) -> None:
        """Whoever adds and removes machines has its turn when it is due, and soon while one is on its way out."""
        usual = HURRIED[SCALING] if self.hurries else self.options.scaling.interval
        every = SOON if rented.fleet.is_moving else usual
        if self.world.now - self._booked_at.get(SCALING, float("-inf")) >= every:
            await self.product.loop.tick(SCALING)
            self._booked_at[SCALING] = self.world.now
            await self._show()

    async def keep_books(self, *, closes: bool = False) -> None:
        """Where the product keeps any: its stories of money, each when it is due; and those of sharing, where pods are
        admitted. `closes`: all of them, so that what is asked now is all there is."""
        books = self.product.books.stories if self.product.books is not None else ()
        for name in (*(story.name for story in books), *(SHARED if self.admit is not None else ())):
            before = self._booked_at.get(name, float("-inf"))
            every = HURRIED[name] if self.hurries and not self._is_urgent(name) else 5 * MINUTE
            if closes or self.world.now - before >= every:
                await self.product.loop.tick(name)
                self._booked_at[name] = self.world.now

    def _is_urgent(self, story: str) -> bool:
        """A node is being changed or emptied: whoever is at it does not look away."""
        return story in (SHARING, CONSOLIDATION) and any(node.cordoned for node in self.world.nodes.values())

    async def pass_time(self, seconds: Seconds) -> None:
        """The world goes on, and is measured once a minute."""
        end = self.world.now + seconds
        while self.world.now < end:
            is_moving = bool(self.world.kept) or (self.rented is not None and self.rented.fleet.is_moving)
            self.world.advance(min(SOON if is_moving else MINUTE, end - self.world.now))
            self._moved_at = time.monotonic()
            self.kubernetes.slow = self.world.amount(Fault.api_slow)
            await self._show()
            if self.world.now - self._measured_at >= MINUTE:
                self._measured_at = self.world.now
                await self._measure()
            if self.rented is not None:
                await self._scale(self.rented)
            if self.world.kept:  # whoever moves a pod does not look away
                await self.product.loop.tick(DEFRAG)

    def _watch_pause(self, workload: nouns.SimWorkload, after: Object) -> None:
        """The product wrote on a workload: if that stops it, may it?"""
        before = workload.object
        if edits.has_stopped(before) or not edits.has_stopped(after):
            return
        if after["metadata"]["annotations"].get(names.PAUSED_BY, "").startswith(names.BY_USER):
            return
        try:
            laws.check_pause(self.world, workload, self._as_pause(workload))
            laws.check_way_back(before, after, self.world.now)
        except laws.LawBroken as broken:
            self.broken.append(f"{workload.part.namespace}/{workload.part.name}: {broken}")

    def _as_pause(self, workload: nouns.SimWorkload) -> decision.Pause:
        rule, seats = self._rule_of(workload), workload.part.seats
        finding = decision.Finding(
            workload=workload.view, verdict=decision.Verdict.idle, reason=decision.Reason.GoneIdle, because="",
            rule=rule, gpus=seats, idle_gpus=seats, models=(), window=min(rule.gone_idle, rule.never_used),
        )
        return decision.Pause(finding, "")

    def _rule_of(self, workload: nouns.SimWorkload) -> idle.Rule:
        fitting = [each for each in self._policies if not each.classes or workload.part.class_ in each.classes]
        return max(fitting, key=lambda each: each.priority).rule if fitting else self.options.mandate.rule


def _find_mode(pod: Object, patch: Sequence[Object], asked: nouns.Mode) -> nouns.Mode:
    """Of what a pod is given a part, once it is changed like this."""
    if not patch:
        return asked
    spec = patches.json_patch(pod, list(patch))["spec"]
    if any(name.startswith(names.MIG_PREFIX) for each in spec["containers"] for name in each["resources"]["limits"]):
        return "mig"
    return "mps" if (spec.get("nodeSelector") or {}).get(names.GPU_SHARING) == "mps" else "time-sliced"


def plan_faults(world: worlds.World, faults: Sequence[Fault]) -> None:
    """Each of these once in the day, one after the other, for a twentieth of it."""
    nodes, day = list(world.nodes), world.span.columns * world.span.step
    struck = {Fault.node_lost: nodes[:1], Fault.exporter_silent: nodes[::4], Fault.exporter_zero: nodes[1::3]}
    amounts = {Fault.api_slow: 0.05, Fault.clock_jump: 2 * HOUR}
    for index, fault in enumerate(faults):
        begins = world.span.start + day * (0.2 + 0.75 * index / len(faults))
        world.at(begins, functools.partial(world.switch_on, fault, struck.get(fault, ()), amounts.get(fault, 0.0)))
        world.at(begins + day / 20, functools.partial(world.switch_off, fault))


@contextlib.asynccontextmanager
async def open_stage(
    world: worlds.World, folder: Path, *, flags: Mapping[str, Any] | None = None,
    policies: Sequence[Object] = POLICIES, others: Sequence[Object] = (), outside: Outside | None = None,
    gate: Gate | None = None, fleet: fleets.Fleet | None = None,
) -> AsyncIterator[Stage]:
    """Everything is up and the product is in; leaving ends it all. `others`: objects that are there beside policies.
    `gate`: who admits pods, by the kubeconfig and the clock it is given. `fleet`: machines that come and go. Raises
    OSError when a port is taken."""
    kubeconfig = folder / "product.kubeconfig"
    store = stores.Store(lambda: world.now)
    kubernetes, exporters = server.KubernetesServer(store, lambda: world.now), exporter.ExporterServer(world)
    async with contextlib.AsyncExitStack() as stack:
        await kubernetes.start()
        stack.push_async_callback(kubernetes.stop)
        stack.push_async_callback(exporters.stop)
        ports = await exporters.start()
        kept = samples.KeptSamples(ports)
        past = prometheus.PrometheusServer(world, exporters, kept, lambda: world.now)  # for who lives by this clock
        stack.push_async_callback(past.stop)
        asked = {**FLAGS, "kubeconfig": str(kubeconfig), **({"prometheus_url": await past.start()} if gate else {})}
        options = settings.read_flags({**asked, **(flags or {})}, {})
        stage = Stage(world, store, kubernetes, options, [idle_crd.parse(each) for each in policies])
        stage.objects.show_exporters(ports)
        stage.prometheus = past if gate is not None else None
        if fleet is not None and fleet.is_rented:
            stage.rented = Rental(fleet, exporters, kept)
        for each in (*policies, *others, *(fleet.make_policies() if fleet is not None else ())):
            store.create(each)
        await asyncio.to_thread(kubeconfig.write_bytes, msgspec.json.encode(kubernetes.kubeconfig()))  # JSON is YAML
        if outside is not None:
            stage.prometheus = prometheus.PrometheusServer(world, exporters, kept, outside.clock)
            stack.push_async_callback(stage.prometheus.stop)
            stage.addresses = Addresses(
                folder / "kubeconfig", await stage.prometheus.start(port=outside.prometheus_port)
            )
            door = kubernetes.kubeconfig(await kubernetes.open_door(outside.clock, port=outside.port))
            await asyncio.to_thread(stage.addresses.kubeconfig.write_bytes, msgspec.json.encode(door))
        if gate is not None:
            stage.admit = await stack.enter_async_context(gate(kubeconfig, lambda: world.clock))
            world.is_gated = True
        made = await stack.enter_async_context(daemon.assemble(
            options, lambda: world.clock, stage.monotonic, cloud=fleet.cloud if fleet is not None else None
        ))
        await stage.enter(made)
        background = [asyncio.create_task(task) for task in made.loop.background()]
        try:
            yield stage
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
