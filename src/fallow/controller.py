"""The story: look, plan, act, account, tell. This module owns order and timing, and no rule of its own.

tick() is one cycle. run() repeats it: at most one at a time, the next start is the last start plus the interval, a late one is skipped and
not queued. Only the holder of the Lease looks and acts. A failed cycle changes nothing, is counted and turns readiness red; the next one
tries again. Memory that matters is on the objects and the Lease, so that a kill between any two steps loses nothing.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from fallow import names, settings, telemetry
from fallow.account import tally
from fallow.act import execute, workloads
from fallow.act import hands as doing
from fallow.clients import errors, exporters
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config, credentials, lease
from fallow.clients.prometheus import auth
from fallow.clients.prometheus import client as prometheus
from fallow.decide.idle import pauses
from fallow.decide.idle import plan as brain
from fallow.model import cluster, decision, kinds, units
from fallow.model.units import Instant, Seconds
from fallow.observe.cluster import mirror, snapshot
from fallow.observe.scrape import kept, source, targets
from fallow.observe.usage import prometheus as usage

Clock = Callable[[], Instant]
T = TypeVar("T")

log = logging.getLogger("fallow")


class GivenUp(errors.ClientError):
    """A look that was cut short: its time was over, or we were asked to stop."""


class Health:
    """What the loop knows of itself. It is asked by /healthz and /readyz; every answer is a list of reasons, empty = well.

    Its times are of the monotonic clock: a wall clock that is set must not get us restarted.
    """

    def __init__(self, interval: Seconds, budget: Seconds, now: float) -> None:
        self._interval = interval
        self._budget = budget
        self.began_at = now
        self.succeeded_at: float | None = None
        self.failures = 0
        self.failed_because = ""
        self.synced = False
        self.leading = True

    def why_stuck(self, now: float) -> list[str]:
        silent = now - self.began_at
        if silent <= 3 * self._interval + self._budget:
            return []
        return [f"no cycle began for {units.humane(silent)}"]

    def why_not_ready(self, now: float) -> list[str]:
        reasons = self.why_stuck(now)
        if not self.synced:
            reasons.append("the cluster has not been seen yet")
        if self.failures:
            reasons.append(f"{self.failures} failed cycle(s) in a row: {self.failed_because}")
        if self.leading and self.synced and not self.failures:
            if self.succeeded_at is None:
                reasons.append("no cycle has ended yet")
            elif now - self.succeeded_at > 3 * self._interval + self._budget:
                reasons.append(f"the last good cycle ended {units.humane(now - self.succeeded_at)} ago")
        return reasons


class Controller:
    """One cluster, one source of measurements, one pair of hands."""

    def __init__(
        self,
        told: settings.Settings,
        seen: mirror.Mirror,
        eyes: snapshot.Eyes,
        hands: doing.Hands,
        leadership: lease.Leadership,
        clock: Clock,
        scraping: source.ScrapeSource | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`scraping`: where measurements come from exporters, what keeps reading them. `monotonic`: a clock that nobody sets."""
        self.metrics = telemetry.Telemetry()
        self.health = Health(told.loop.interval, told.loop.budget, monotonic())
        self._told = told
        self._mirror, self._eyes, self._hands, self._leadership = seen, eyes, hands, leadership
        self._clock, self._monotonic, self._scraping = clock, monotonic, scraping
        self._books = tally.Books(
            self.metrics, dry_run=not told.mandate.acting, source="prometheus" if told.prometheus is not None else "scrape"
        )
        self._memory = brain.first_memory()
        self._stopping = asyncio.Event()
        self._clocks: tuple[Instant, float] | None = None  # wall and monotonic at the last tick
        self._deadline = 0.0  # of this cycle, by the monotonic clock
        self._missing: frozenset[cluster.Missing] = frozenset()  # as last told

    # ---- one cycle --------------------------------------------------------------------------------------------------------------

    async def tick(self) -> decision.Cycle:
        """Look, plan, act, account, tell."""
        began, now = self._monotonic(), self._clock()
        self.health.began_at, self._deadline = began, began + self._told.loop.budget
        cycle = await self._guarded(now, began)
        if cycle.plan is None and self._stopping.is_set():
            log.info("stopped while looking; nothing was changed")
        else:
            self._record(cycle, now)
        return cycle

    def _record(self, cycle: decision.Cycle, now: Instant) -> None:
        self._books.enter(cycle, now)
        tell(cycle)
        if cycle.snapshot is not None:
            self._tell_missing(cycle.snapshot.missing)
        if cycle.failure:
            self.health.failures += 1
            self.health.failed_because = cycle.failure
        else:
            self.health.failures = 0
            self.health.succeeded_at = self._monotonic()

    def _tell_missing(self, missing: Sequence[cluster.Missing]) -> None:
        """Once, not in every cycle: what may not be seen today may mostly not be seen tomorrow."""
        for one in missing:
            if one not in self._missing:
                log.warning("not seen: %s: %s", one.what, one.because)
        self._missing = frozenset(missing)

    async def _guarded(self, now: Instant, began: float) -> decision.Cycle:
        """Whatever goes wrong outside is the failure of this cycle, not our end."""
        try:
            if jump := self._find_clock_jump(now):
                return decision.Cycle(None, None, (), jump, self._monotonic() - began)
            return await self._look_and_act(now, began)
        except errors.ClientError as problem:
            return decision.Cycle(None, None, (), str(problem), self._monotonic() - began)

    async def _look_and_act(self, now: Instant, began: float) -> decision.Cycle:
        # 1. Look: what is true at this instant, what is in flight, what could not be seen.
        seen = await self._in_time(look_at(self._eyes, self._told, now, self._memory))
        # 2. Plan: a finding for every workload; the noes too.
        plan = brain.make_plan(seen, self._told.mandate, self._memory, now)
        # 3. Act: each decision alone, looked at once more just before; a dry run goes the same way and changes nothing.
        await self._keep_freeze(plan)
        outcomes = tuple(await execute.carry_out(plan.decisions, self._hands, self._look_again, now, self._may_act))
        self._memory = brain.remember(plan, outcomes, self._told.mandate, now)
        if self._told.loop.daemon and self._may_act():
            await self._hands.reports.write(seen, plan, now)
        return decision.Cycle(plan, seen, outcomes, self._failure_of(seen), self._monotonic() - began)

    def _failure_of(self, seen: cluster.Snapshot) -> str:
        """A daemon that has not measured for long enough yet is well: that passes. Who looks once could not decide."""
        trouble = seen.evidence.trouble
        if trouble is None or (trouble.reason == decision.Reason.WarmingUp and self._told.loop.daemon):
            return ""
        return trouble.because

    async def _in_time(self, look: Coroutine[Any, Any, T]) -> T:
        """What only looks ends with the budget, or when we are to stop. What writes is never cut short: each request has its own limit."""
        looking, stopping = asyncio.create_task(look), asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({looking, stopping}, timeout=self._deadline - self._monotonic(), return_when=asyncio.FIRST_COMPLETED)
            if looking.done():
                return looking.result()
        finally:
            looking.cancel()
            stopping.cancel()
            await asyncio.gather(looking, stopping, return_exceptions=True)
        if self._stopping.is_set():
            raise GivenUp("we were asked to stop")
        raise GivenUp(f"the cycle did not end within its budget of {units.humane(self._told.loop.budget)}")

    def _find_clock_jump(self, now: Instant) -> str:
        """The wall clock against the monotonic one: a clock that jumps makes every age wrong, so this cycle does nothing."""
        before, self._clocks = self._clocks, (now, self._monotonic())
        if before is None:
            return ""
        jumped = (now - before[0]) - (self._clocks[1] - before[1])
        if abs(jumped) <= CLOCK_JUMP:
            return ""
        return f"the clock jumped by {units.humane(abs(jumped))} {'ahead' if jumped > 0 else 'back'}: nothing is decided in this cycle"

    async def _look_again(self, pauses: Sequence[decision.Pause]) -> Mapping[str, execute.Look]:
        """The second look: read again, measure again, judge again by the same brain."""
        now = self._clock()
        workloads = [pause.finding.workload for pause in pauses]
        rules = {pause.finding.rule.name: pause.finding.rule for pause in pauses}
        fresh = await self._in_time(self._eyes.look_again(workloads, tuple(rules.values()), now))
        gone = {missing.what: missing.because for missing in fresh.missing}
        places = {workload.ref.uid: index for index, workload in enumerate(fresh.workloads)}
        meant = {places[ref.uid]: pause for pause in pauses if (ref := pause.finding.workload.ref).uid in places}
        judged, looks = brain.judge_again(fresh, meant, self._told.mandate, now), {}
        for pause in pauses:
            ref = pause.finding.workload.ref
            if ref.uid not in places:
                looks[ref.uid] = execute.Look(None, None, gone.get(str(ref), "it is gone"))
                continue
            workload = fresh.workloads[places[ref.uid]]
            finding, because = judged[places[ref.uid]]
            looks[ref.uid] = execute.Look(workload, finding, because, tuple(fresh.pods[index] for index in workload.pods))
        return looks

    def _may_act(self) -> bool:
        """Stopping, out of time, or not the leader any more: nothing further is begun."""
        if self._stopping.is_set() or self._monotonic() >= self._deadline:
            return False
        return self._leadership.is_leader if self._needs_lease else True

    @property
    def _needs_lease(self) -> bool:
        return self._told.loop.leader_elect or self._told.mandate.acting

    async def _keep_freeze(self, plan: decision.Plan) -> None:
        """A freeze outlives us: it stands on the Lease, where a successor and people find it."""
        if plan.newly_frozen and plan.frozen_until is not None and self._needs_lease:
            await self._leadership.annotate({
                names.FROZEN_UNTIL: units.rfc3339(plan.frozen_until), names.FROZEN_BECAUSE: plan.frozen_because,
            })

    async def look(self, namespace: str) -> "Look":
        """One cycle up to the plan. Of the Lease only a freeze is read; who may not read it is not told of one."""
        now = self._clock()
        await self._read_freeze()
        await self._mirror.list_all(now)
        seen = await look_at(self._eyes, self._told, now)
        plan = brain.make_plan(seen, self._told.mandate, decision.Memory(), now)
        paused = tuple(workload for workload in seen.workloads if pauses.paused_at(workload) is not None)
        return Look(seen, plan, paused, namespace, self._told)

    # ---- once, or for ever --------------------------------------------------------------------------------------------------------

    async def run_once(self) -> int:
        """One cycle; the exit code. To act it must hold the Lease, so that it never works against a daemon."""
        if self._told.mandate.acting and not await self._leadership.acquire(LEASE_PATIENCE):
            held = self._leadership.problem or f"{self._leadership.holder} holds it"
            log.error("no decision: the Lease %s could not be had within %.0f s: %s", names.LEASE, LEASE_PATIENCE, held)
            return NO_DECISION
        renewing = [asyncio.create_task(task) for task in self.background()]
        try:
            await self._read_freeze()
            await self._mirror.list_all(self._clock())
            return exit_code(await self.tick())
        finally:
            for task in renewing:
                task.cancel()
            await asyncio.gather(*renewing, return_exceptions=True)
            await self.release()

    async def _read_freeze(self) -> None:
        """Who holds the Lease knows what is on it; who only looks reads it, and who may not is not told of a freeze."""
        if not self._needs_lease:
            with contextlib.suppress(errors.ClientError):
                await self._leadership.read()

    def background(self) -> list[Coroutine[Any, Any, None]]:
        """What must go on while run() does: whoever runs us ends with the first of these that ends."""
        renewing = [self._leadership.run()] if self._needs_lease else []
        return [*renewing, self._scraping.run(self._clock)] if self._scraping is not None and self._told.loop.daemon else renewing

    async def begin(self) -> bool:
        """For whoever drives the cycles one by one: follow the cluster, and take the Lease. Whether we lead; raises if nothing is seen."""
        await self._mirror.follow(self._clock())
        self.health.synced = True
        return not self._needs_lease or await self._leadership.acquire(LEASE_PATIENCE)

    async def measure(self) -> None:
        """One round of scrapes, where exporters are read directly; for whoever drives the cycles."""
        if self._scraping is not None:
            await self._scraping.scrape(self._clock())

    async def run(self) -> int:
        """Cycles until stop(); 0, or 1 after too many failures in a row. Afterwards end the background, and then release()."""
        log.info("watching, %s, every %s", "acting" if self._told.mandate.acting else "in dry-run", units.humane(self._told.loop.interval))
        while not self._stopping.is_set():
            began = self._monotonic()
            await self._turn()
            most = self._told.loop.max_consecutive_failures
            if most and self.health.failures >= most:
                log.error("giving up after %d failed cycles in a row: %s", most, self.health.failed_because)
                return NO_DECISION
            await self._wait_until(began, self._told.loop.interval)
        return 0

    async def release(self) -> None:
        """Lets the next one lead at once."""
        await self._leadership.release()

    async def _turn(self) -> None:
        """Follow the cluster from the first turn on; look and act only as leader."""
        self.health.began_at = self._monotonic()
        self.health.leading = self._leadership.is_leader if self._needs_lease else True
        self.metrics.set("fallow_idle_leader", self.health.leading)
        if not self.health.synced:
            await self._begin_to_follow()
        elif self.health.leading:
            await self.tick()
        elif self._leadership.problem is not None:  # nobody can tell who leads: perhaps nobody does
            self._fail(f"the Lease {names.LEASE} cannot be had: {self._leadership.problem}")
        else:
            self.health.failures = 0

    async def _begin_to_follow(self) -> None:
        try:
            async with asyncio.timeout(self._told.loop.budget):
                await self._mirror.follow(self._clock())
        except (errors.ClientError, TimeoutError) as problem:
            self._fail(f"the cluster cannot be seen: {str(problem) or 'no answer in time'}")
            return
        self.health.synced = True
        self.health.failures = 0
        if not self._needs_lease or self._leadership.is_leader or await self._leads_soon():
            await self._turn()

    def _fail(self, because: str) -> None:
        """A cycle that ended before it could look."""
        self._record(decision.Cycle(None, None, (), because, 0.0), self._clock())

    async def _leads_soon(self) -> bool:
        """The first replica takes the Lease within a moment; a follower finds it taken."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LEASE):
                while not self._leadership.is_leader and not self._leadership.holder and not self._leadership.problem:
                    await self._nap(0.05)
        return self._leadership.is_leader

    async def _wait_until(self, began: float, interval: Seconds) -> None:
        """Until the next start: the last start plus the interval; starts that are past are skipped. A new leader starts within a second."""
        elapsed = self._monotonic() - began
        wait = interval - elapsed % interval
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait):
                while not self._stopping.is_set() and not self._became_leader():
                    await self._nap(wait if self.health.leading else 1.0)

    async def _nap(self, seconds: Seconds) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    def _became_leader(self) -> bool:
        return self._needs_lease and not self.health.leading and self._leadership.is_leader

    def stop(self) -> None:
        """Ends run() after the request in flight."""
        self._stopping.set()


CLOCK_JUMP: Seconds = 60.0  # an NTP step on a healthy machine is far smaller
LEASE_PATIENCE: Seconds = 15.0
FIRST_LEASE: Seconds = 5.0
NO_DECISION, ACTION_FAILED, FROZEN = 1, 3, 4


def exit_code(cycle: decision.Cycle) -> int:
    if cycle.failure or cycle.plan is None:
        return NO_DECISION
    if any(outcome.status is decision.Status.failed for outcome in cycle.outcomes):
        return ACTION_FAILED
    return FROZEN if cycle.plan.frozen_until is not None else 0


async def look_at(
    eyes: snapshot.Eyes, told: settings.Settings, now: Instant, memory: decision.Memory | None = None
) -> cluster.Snapshot:
    """The snapshot, with exact idle times for what looks idle."""
    policies = eyes.policies if told.mandate.use_policies else ()
    seen = await eyes.take_snapshot(brain.rules_in_force(told.mandate, policies), now)
    return await eyes.look_back(seen, brain.candidate_rows(seen, told.mandate, now, memory), now)


# ---- telling ------------------------------------------------------------------------------------------------------------------


def tell(cycle: decision.Cycle) -> None:
    """One line per thing done or not done, with all that an auditor asks for in its JSON form; then one line about the cycle."""
    for outcome in cycle.outcomes:
        level = logging.ERROR if outcome.status is decision.Status.failed else logging.INFO
        log.log(level, "%s: %s", _headline(outcome), outcome.detail, extra={"fields": tally.audit_fields(outcome)})
    if cycle.plan is None:
        log.error("no decision, nothing changed: %s; %.2f s", cycle.failure, cycle.took)
    else:
        level = logging.ERROR if cycle.failure else logging.INFO
        log.log(level, "%s; %.2f s", tally.sentence(cycle.plan, cycle.outcomes, cycle.failure), cycle.took)


def _headline(outcome: decision.Outcome) -> str:
    what = type(outcome.decision).__name__.lower()
    workload = tally.workload_of(outcome.decision)
    whom = f" {workload.ref.namespace}/{workload.ref.name}" if workload else ""
    return f"would {what}{whom}" if outcome.status is decision.Status.dry_run else f"{what}{whom} {outcome.status}"


# ---- putting it together ------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def assemble(
    told: settings.Settings, clock: Clock, monotonic: Callable[[], float] = time.monotonic
) -> AsyncIterator[Controller]:
    """Everything wired: eyes on the cluster and on the measurements, hands, the Lease. Nothing has been asked yet."""
    access = config.load_access(kubeconfig=told.cluster.kubeconfig, context=told.cluster.context, environment=told.environment)
    namespace = told.own_namespace or access.namespace or "default"
    async with contextlib.AsyncExitStack() as stack:
        api = await stack.enter_async_context(kube.Api(access, monotonic=monotonic))
        leasing = await stack.enter_async_context(kube.Api(access))
        seen = await stack.enter_async_context(
            mirror.Mirror(
                api, watch_namespaces=told.mandate.scope.watch_namespaces, gpu_resources=told.gpu_resources,
                use_policies=told.mandate.use_policies,
            )
        )
        leadership = lease.Leadership(
            leasing, namespace=namespace, name=names.LEASE, identity=_identity(told), utcnow=lambda: datetime.fromtimestamp(clock(), UTC)
        )
        measured = await _open_source(told, access, api, stack)
        eyes = snapshot.Eyes(seen, measured, lease_annotations=lambda: leadership.annotations)
        hands = doing.Hands(
            api, seen.find_resource, reporting_instance=told.pod_name or names.REPORTING_CONTROLLER,
            compat_annotations=told.mandate.compat_annotations, dry_run=None if told.mandate.acting else told.dry_run_scope,
            own_pod=cluster.Ref("", "v1", "Pod", namespace, told.pod_name, told.pod_uid) if told.pod_name else None,
            suspend_schedules="c" in told.mandate.scope.letters,
        )
        scraping = measured if isinstance(measured, source.ScrapeSource) else None
        yield Controller(told, seen, eyes, hands, leadership, clock, scraping, monotonic)


def _identity(told: settings.Settings) -> str:
    """Who holds the Lease: the pod's name, or something no other process has."""
    return told.pod_name or f"{names.FIELD_MANAGER}-{time.monotonic_ns():x}"


async def _open_source(
    told: settings.Settings, access: config.Access, api: kube.Api, stack: contextlib.AsyncExitStack
) -> usage.PrometheusSource | source.ScrapeSource:
    """Prometheus if we were told where it is, else the exporters themselves."""
    if told.prometheus is not None:
        asked = await stack.enter_async_context(make_prometheus(told, told.prometheus, credentials.Credentials(access).token))
        return usage.PrometheusSource(
            asked, honor_labels=told.prometheus.honor_labels, expected_interval=told.prometheus.expected_interval, budget=told.loop.budget
        )
    wanted, daemon = told.scrape, told.loop.daemon
    finder = targets.Finder(
        api, selectors=wanted.selectors, addresses=wanted.targets, namespaces=told.mandate.scope.watch_namespaces, follows=daemon
    )
    keeper = kept.Keeper(told.state_dir, writes=daemon) if told.state_dir else None
    return await stack.enter_async_context(
        source.ScrapeSource(
            finder, exporters.Exporters(timeout=wanted.timeout), interval=wanted.interval, honor_labels=wanted.honor_labels, keeper=keeper
        )
    )


def make_prometheus(
    told: settings.Settings, asked: settings.Prometheus, kubernetes_token: Callable[[], Awaitable[str | None]] | None = None
) -> prometheus.Prometheus:
    """The client, not yet open. `kubernetes_token`: for servers that take the one of the kubeconfig."""
    login = auth.Login(
        method=asked.auth, token=asked.token.reveal() if asked.token else "", token_file=asked.token_file or "",
        username=asked.username or "", password_file=asked.password_file or "", aws_region=asked.aws_region or "",
        environment=told.environment, kubernetes_token=kubernetes_token,
    )
    tls = prometheus.Tls(verify=asked.verify_tls, ca_file=asked.ca_file, client_cert=asked.client_cert, client_key=asked.client_key)
    return prometheus.Prometheus(
        asked.url, login=login, headers=[f"{name}: {value.reveal()}" for name, value in asked.headers], tls=tls,
        matchers=",".join(asked.matchers),
    )


# ---- looking only -------------------------------------------------------------------------------------------------------------


class Look(msgspec.Struct, frozen=True):
    """One look without any act, for the commands that only tell."""

    snapshot: cluster.Snapshot
    plan: decision.Plan
    paused: tuple[cluster.Workload, ...]  # by us, and still standing
    namespace: str  # of the context
    told: settings.Settings

    def patch_of(self, finding: decision.Finding) -> dict[str, Any] | None:
        """What a pause would send, for people who want to know before."""
        kind = kinds.of(finding.workload)
        if kind is None or finding.verdict is not decision.Verdict.idle:
            return None
        with contextlib.suppress(workloads.CannotWrite):
            writes = workloads.pause_writes(
                finding.workload, kind, finding.rule, self.plan.at, by=names.FIELD_MANAGER, reason_text=finding.because, gpus=finding.gpus
            )
            return {str(write.ref): write.body for write in writes}
        return None

    def explain(self, index: int) -> tuple[decision.Finding, list[decision.GpuFinding]]:
        return brain.explain(self.snapshot, self.plan, index, self.told.mandate)


async def look(told: settings.Settings, clock: Clock = time.time) -> Look:
    """One cycle up to the plan. The Lease is only read: a freeze is part of what is true."""
    access = config.load_access(kubeconfig=told.cluster.kubeconfig, context=told.cluster.context, environment=told.environment)
    async with assemble(told, clock) as story:
        return await story.look(access.namespace or "default")
