"""For the daemon and for one look: everything wired, and nothing asked of anybody yet; but who looks once asks
where the daemon's Lease is.

In: the options, two clocks. Out: a Loop with its stories, as an async context manager that closes whatever it opened.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any

import msgspec

from fallow import loop, names, settings, telemetry, tracing
from fallow.account import audit
from fallow.act import hands as doing
from fallow.act.notices import afterwards, courier, delivery, facts, senders
from fallow.clients import errors, exporters, proxies, signing, tls
from fallow.clients.clouds.aws import credentials as aws
from fallow.clients.clouds.azure import credentials as azure
from fallow.clients.clouds.gcp import credentials as gcp
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config, credentials, lease
from fallow.clients.kubernetes import pace as pacing
from fallow.clients.messages import post
from fallow.clients.prometheus import auth
from fallow.clients.prometheus import client as prometheus
from fallow.model import cluster, decision, kinds, long_memory, price_book, units
from fallow.model.policies.idle import ChannelType
from fallow.model.secret import Secret
from fallow.model.seen import ABSENT
from fallow.model.units import Instant
from fallow.observe.cluster import mirror, snapshot
from fallow.observe.scrape import kept, source, targets
from fallow.observe.usage import prometheus as measured
from fallow.observe.usage import trust
from fallow.stories import idle
from fallow.stories.turn import Clock
from fallow.wiring import digest as digesting
from fallow.wiring import gaming, helping, reach
from fallow.wiring import ground as grounds
from fallow.wiring import idle as idling
from fallow.wiring.ground import Groundwork

if TYPE_CHECKING:
    from fallow.clients.clouds import Cloud
    from fallow.wiring.books import BookParts
    from fallow.wiring.forecasts import Forecasts
    from fallow.wiring.share_why import ShareExplainer

log = logging.getLogger("fallow")

IDLE = grounds.IDLE  # by which name whoever assembled it asks for it
Tell = Callable[[str], None]  # a sentence for whoever waits


class Assembly(msgspec.Struct, frozen=True):
    """What was put together. `namespace` is the context's; `scraping` is there where exporters are read directly."""

    loop: loop.Loop
    namespace: str
    scraping: source.ScrapeSource | None
    leadership: lease.Leadership
    home: reach.Home
    eyes: snapshot.Eyes
    audit: audit.Audit | None  # where what happened is kept; a daemon's
    seen: mirror.Mirror
    hands: doing.Hands
    access: config.Access
    books: BookParts | None  # where costs are kept
    explainer: ShareExplainer | None  # where the stories of sharing are told
    forecasts: Forecasts | None  # there, too


class DaemonSeen(msgspec.Struct, frozen=True):
    """The Lease that says whether a daemon runs; one that stands where nobody holds it was left behind."""

    namespace: str
    holder: str = ""
    renewed: Instant | None = None  # by the holder's own clock
    leases: tuple[str, ...] = ()  # all namespaces in which one was found
    unseen: str = ""  # why there may be others, or this one could not be read


class Sighting(msgspec.Struct, frozen=True):
    """One look, the context's namespace, and what is known of a daemon."""

    look: idle.Look
    namespace: str
    daemon: DaemonSeen


@contextlib.asynccontextmanager
async def assemble(
    options: settings.Settings, clock: Clock, monotonic: Clock = time.monotonic, tell: Tell | None = None,
    only_verdicts: bool = False, cloud: Cloud | None = None,
) -> AsyncIterator[Assembly]:
    """Everything wired: what the stories stand on, the stories, the loop that gives them their turns.
    `only_verdicts`: nobody is shown what was measured. `cloud`: of custom policies, where flags name none."""
    async with contextlib.AsyncExitStack() as stack:
        later = grounds.Later()
        ground = await _lay_ground(options, later, stack, clock, monotonic, tell, only_verdicts)
        later.looping = loop.Loop(
            await _make_stories(ground, later, stack, cloud), seen=ground.seen, leadership=ground.leadership,
            needs_lease=ground.needs_lease, metrics=ground.metrics, clock=clock, monotonic=monotonic,
            most_failures=options.loop.max_consecutive_failures, background=lambda: _find_background(ground, later),
        )
        yield Assembly(
            later.looping, ground.access.namespace or "default", ground.scraping, ground.leadership, ground.home,
            ground.eyes, ground.kept, ground.seen, ground.hands, ground.access, later.books, later.explainer,
            later.forecasts,
        )


# ---- the stories: a line for each, its parts in a file of its own beside this one ------------------------------------


async def _make_stories(
    ground: Groundwork, later: grounds.Later, stack: contextlib.AsyncExitStack, cloud: Cloud | None
) -> list[loop.Story]:
    later.story = idling.make(ground)
    stories = [idling.as_told(later.story, ground)]
    if ground.kept is not None:  # a daemon's
        stories += digesting.make_stories(ground, ground.kept)
        stories.append(gaming.make_story(ground))
        later.books = await _open_books(ground, ground.kept, stack)
    if ground.kept is not None and ground.needs_lease:  # who does not lead must not touch a node that another changes
        from fallow.wiring import certificate, clouds, consolidation, forecasts, scaling, sharing  # others do without

        shared = sharing.make_stories(ground)
        later.beside, later.explainer = shared.beside, shared.explainer
        scaled = scaling.make_parts(ground, later, await clouds.make_cloud(ground.options, stack) or cloud)
        later.beside.append(scaled.background)
        packed = consolidation.make_story(ground), consolidation.make_defrag(ground, later)
        stories += [*shared.stories, *packed, scaled.story, *certificate.make_stories(ground)]
        later.forecasts = forecasts.make(ground, later.books.ledger if later.books else None)
    return [*stories, *(later.books.stories if later.books else ())]


async def _open_books(
    ground: Groundwork, kept: audit.Audit, stack: contextlib.AsyncExitStack
) -> BookParts | None:
    """None where nobody asks for costs."""
    if not ground.options.cost.enabled:
        return None
    from fallow.wiring import books  # a database, and all that bills: others do without

    return await books.make_parts(ground, kept, stack)


def _find_background(ground: Groundwork, later: grounds.Later) -> list[Coroutine[Any, Any, None]]:
    """What goes on beside the stories."""
    scraping = [ground.scraping.run(ground.clock)] if ground.scraping and ground.options.loop.daemon else []
    return [*scraping, *(run() for run in (*(later.books.background if later.books else ()), *later.beside))]


# ---- what they stand on ----------------------------------------------------------------------------------------------


async def _lay_ground(
    options: settings.Settings, later: grounds.Later, stack: contextlib.AsyncExitStack, clock: Clock,
    monotonic: Clock, tell: Tell | None, only_verdicts: bool,
) -> Groundwork:
    access = config.load_access(kubeconfig=options.kubeconfig, context=options.context, environment=options.environment)
    belief = trust.Belief(options.exporter_namespaces, options.trust_metrics)
    metrics = _make_metrics(options)
    api, leasing = await _open_apis(options, access, metrics, stack, monotonic)
    home = await _find_home(options, access, leasing)
    leadership = reach.lease_as(
        options.pod_name or f"{names.FIELD_MANAGER}-{time.monotonic_ns():x}",  # that no other process has
        home.namespace, leasing, clock, answer=lambda said: later.story.answer(said, clock()),
    )
    seen = await stack.enter_async_context(_make_mirror(options, api, belief, leadership, clock))
    metrics.before_scrape(lambda: _write_ages(metrics, seen))
    usage = await _open_source(options, access, api, belief, stack, monotonic, tell, only_verdicts)
    past = await _open_past(options, access, usage, stack, monotonic)
    poster = await stack.enter_async_context(post.Poster(options.environment))
    head, wires = _make_wires(options, home.namespace, api, poster)
    traces = await stack.enter_async_context(tracing.opened(options.environment, metrics))
    hands = _make_hands(options, home.namespace, api, seen, wires, head, traces, metrics, later)
    patience = afterwards.LAST_WORDS if options.loop.daemon else courier.BUDGET
    stack.push_async_callback(hands.afterwards.finish, patience)
    return Groundwork(
        options=options, access=access, api=api, home=home, leadership=leadership, seen=seen, usage=usage,
        past=past, eyes=_make_eyes(seen, usage, leadership, later, clock), hands=hands, poster=poster, wires=wires,
        head=head, kept=await open_audit(options.state_dir, stack) if options.loop.daemon else None, metrics=metrics,
        traces=traces, clock=clock, latest=later.cycle,
        booked=functools.partial(later.read_booked, options.cost.currency),
    )


def _make_metrics(options: settings.Settings) -> telemetry.Telemetry:
    is_read = options.loop.daemon or tracing.find_wanted(options.environment)[1]
    return telemetry.Telemetry() if is_read else telemetry.Unread()


async def _open_apis(
    options: settings.Settings, access: config.Access, metrics: telemetry.Telemetry,
    stack: contextlib.AsyncExitStack, monotonic: Clock,
) -> tuple[kube.Api, kube.Api]:
    """One for all, and one for the Lease, which waits behind nothing."""
    note = functools.partial(_note_request, metrics)
    burst = 0 if options.loop.daemon else pacing.BURST_OF_A_LOOK
    api = await stack.enter_async_context(kube.Api(access, burst=burst, monotonic=monotonic, note=note))
    return api, await stack.enter_async_context(kube.Api(access, note=note))


def _make_eyes(
    seen: mirror.Mirror, usage: grounds.Usage, leadership: lease.Leadership, later: grounds.Later, clock: Clock
) -> snapshot.Eyes:
    return snapshot.Eyes(
        seen, usage, clock=clock, lease_annotations=lambda: leadership.annotations,
        lease_term=lambda: leadership.term,
        rates=lambda nodes: later.books.billing.find_rates(nodes) if later.books is not None else ABSENT,
    )


async def _find_home(options: settings.Settings, access: config.Access, leasing: kube.Api) -> reach.Home:
    """A daemon is told where it lives; who looks once asks where one does."""
    if options.own_namespace or options.loop.daemon:
        return reach.Home(options.own_namespace or access.namespace or "default")
    return await reach.find_home(leasing, access.namespace, acting=options.mandate.acting)


def _make_mirror(
    options: settings.Settings, api: kube.Api, belief: trust.Belief, leadership: lease.Leadership, clock: Clock
) -> mirror.Mirror:
    """Who goes is remembered where there are books."""
    return mirror.Mirror(
        api, watch_namespaces=options.mandate.scope.watch_namespaces, gpu_resources=options.gpu_resources,
        use_policies=options.mandate.use_policies, belief=belief,
        kept_kinds=lambda: [(group, kind) for group, _, kind in long_memory.read_kinds(leadership.annotations)],
        clock=clock if options.cost.enabled else None,
    )


def _note_request(metrics: telemetry.Telemetry, verb: str, code: str) -> None:
    metrics.add("fallow_api_requests_total", 1, (verb, code))


def _note_delivery(metrics: telemetry.Telemetry, each: decision.Delivery) -> None:
    """Of a message that went out after its cycle was counted."""
    if each.type == ChannelType.slack:
        what = "notification_failures" if each.failure else "notifications_sent"
        metrics.add(f"gpu_pruner_slack_{what}_total")


def _write_ages(metrics: telemetry.Telemetry, seen: mirror.Mirror) -> None:
    ages = seen.contents.ages(time.monotonic())
    metrics.replace("fallow_watch_age_seconds", {(resource,): age for resource, age in ages.items()})


async def look(options: settings.Settings, tell: Tell | None = None) -> Sighting:
    """One cycle up to the plan. The Lease is only read: a freeze is part of the truth. `tell`: for a person who waits,
    why it takes long."""
    with helping.say_what_to_do(helping.OF_A_LOOK):
        return await _look(options, tell)


async def _look(options: settings.Settings, tell: Tell | None) -> Sighting:
    async with assemble(options, time.time, tell=tell) as made:
        found = await made.loop.look(IDLE)
        assert isinstance(found, idle.Look)
        return Sighting(found, made.namespace, _see_daemon(made))


def _see_daemon(made: Assembly) -> DaemonSeen:
    led, home = made.leadership, made.home
    unseen = home.unseen if led.problem is None else f"its Lease cannot be read: {led.problem}"
    return DaemonSeen(home.namespace, led.holder or "", units.read_instant(led.renewed), home.leases, unseen)


def _make_wires(
    options: settings.Settings, namespace: str, api: kube.Api, poster: post.Poster
) -> tuple[facts.Letterhead, senders.Senders]:
    telling = options.telling
    head = facts.Letterhead(
        cluster_name=telling.cluster_name, public_url=telling.public_url,
        has_buttons=options.serving.slack_secret is not None,
        currency=options.cost.currency if options.cost.enabled else price_book.LIST_CURRENCY,
    )
    return head, senders.Senders(poster, senders.SecretReader(api, namespace), telling.mail)


def _make_hands(
    options: settings.Settings, namespace: str, api: kube.Api, seen: mirror.Mirror, wires: senders.Senders,
    head: facts.Letterhead, traces: tracing.Traces, metrics: telemetry.Telemetry, later: grounds.Later,
) -> doing.Hands:
    mandate, pod, telling = options.mandate, options.pod_name, options.telling
    return doing.Hands(
        api, seen.find_resource, reporting_instance=pod or names.REPORTING_CONTROLLER,
        compat_annotations=mandate.compat_annotations, dry_run=None if mandate.acting else options.dry_run_scope,
        own_pod=cluster.Ref("", "v1", "Pod", namespace, pod, options.pod_uid) if pod else None,
        suspend_schedules=kinds.CRON_JOB.letter in mandate.scope.letters, wires=wires, traces=traces,
        note=functools.partial(_note_delivery, metrics),
        address=delivery.Address(
            head=head, mentions=telling.mentions, domains=telling.email_domains, kept_for=later.find_kept_for,
        ),
    )


async def open_audit(folder: str | None, stack: contextlib.AsyncExitStack) -> audit.Audit:
    """None: in memory."""
    made = audit.Audit(folder)
    stack.push_async_callback(made.close)
    try:
        await made.open()
    except errors.Unreachable as problem:
        log.warning("the audit is away, and what happens waits for it: %s", problem)
    return made


async def _open_source(
    options: settings.Settings, access: config.Access, api: kube.Api, belief: trust.Belief,
    stack: contextlib.AsyncExitStack, monotonic: Clock, tell: Tell | None, only_verdicts: bool,
) -> measured.PrometheusSource | source.ScrapeSource:
    """Prometheus if we know where it is, else the exporters themselves."""
    if options.prometheus is not None:
        asked = await stack.enter_async_context(make_prometheus(options, options.prometheus, access, monotonic, tell))
        return measured.PrometheusSource(
            asked, honor_labels=options.prometheus.honor_labels, expected_interval=options.prometheus.expected_interval,
            budget=options.loop.budget, only_verdicts=only_verdicts,
        )
    wanted, daemon = options.scrape, options.loop.daemon
    finder = targets.Finder(
        api, belief, selectors=wanted.selectors, addresses=wanted.targets,
        namespaces=options.mandate.scope.watch_namespaces, follows=daemon,
    )
    keeper = kept.Keeper(options.state_dir, interval=wanted.interval, writes=daemon) if options.state_dir else None
    scraped = source.ScrapeSource(
        finder, exporters.Exporters(timeout=wanted.timeout), interval=wanted.interval, honor_labels=wanted.honor_labels,
        keeper=keeper, stays=daemon,
    )
    return await stack.enter_async_context(scraped)


async def _open_past(
    options: settings.Settings, access: config.Access, usage: grounds.Usage, stack: contextlib.AsyncExitStack,
    monotonic: Clock,
) -> prometheus.Prometheus | None:
    """A daemon that reads exporters itself remembers hours: who asks about days asks there, if there is one."""
    if isinstance(usage, measured.PrometheusSource):
        return usage.prometheus
    if options.long_past is None or not options.loop.daemon:
        return None
    return await stack.enter_async_context(make_prometheus(options, options.long_past, access, monotonic))


def make_prometheus(
    options: settings.Settings, asked: settings.PrometheusSettings, access: config.Access | None = None,
    monotonic: Clock = time.monotonic, tell: Tell | None = None,
) -> prometheus.Prometheus:
    """The client, not yet open. `access`: to the cluster whose token it may be shown."""
    login: auth.Login | None = None
    signer: signing.Signer | None = None
    match asked.auth:
        case "sigv4":
            purpose = "Prometheus authentication 'sigv4'"
            signer = aws.SigV4(options.environment, asked.aws_region or "", auth.AWS_SERVICE, purpose=purpose)
        case "gcp":
            signer = gcp.make_signer(options.environment, auth.GOOGLE_SCOPE)
        case "azure":
            signer = azure.make_signer(options.environment, auth.AZURE_RESOURCE)
        case method:
            login = auth.Login(
                method=method, token=asked.token, token_file=asked.token_file or "", username=asked.username or "",
                password_file=asked.password_file or "", environment=options.environment,
                kubernetes=credentials.Credentials(access) if access else None,
                api_server=access.server if access else "", verifies=asked.verify_tls,
            )
    proxy = proxies.find_proxy(asked.url, options.environment)
    files = tls.TlsFiles(
        verify=asked.verify_tls, ca_file=asked.ca_file, client_cert=asked.client_cert, client_key=asked.client_key
    )
    return prometheus.Prometheus(
        asked.url, login=login, signer=signer, headers=[f"{name}: {value.reveal()}" for name, value in asked.headers],
        files=files, matchers=",".join(asked.matchers), proxy=Secret(proxy) if proxy else None, monotonic=monotonic,
        tell=tell,
    )
