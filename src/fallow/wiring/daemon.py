"""For the daemon and for one look: everything wired, and nothing asked of anybody yet; but who looks once asks
where the daemon's Lease is.

In: the options, two clocks. Out: a Loop with its stories, as an async context manager that closes whatever it opened.
"""

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import msgspec

from fallow import loop, names, settings, telemetry
from fallow.account import audit, tally
from fallow.act import hands as doing
from fallow.act.notices import delivery, facts, senders
from fallow.clients import exporters, proxies, signing, tls
from fallow.clients.clouds.aws import credentials as aws
from fallow.clients.clouds.azure import credentials as azure
from fallow.clients.clouds.gcp import credentials as gcp
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config, credentials, lease
from fallow.clients.kubernetes import pace as pacing
from fallow.clients.messages import post
from fallow.clients.prometheus import auth
from fallow.clients.prometheus import client as prometheus
from fallow.model import cluster, kinds, long_memory, units
from fallow.model.secret import Secret
from fallow.model.units import Instant
from fallow.observe.cluster import mirror, snapshot
from fallow.observe.scrape import kept, source, targets
from fallow.observe.usage import prometheus as measured
from fallow.observe.usage import trust
from fallow.stories import idle
from fallow.stories.turn import Clock
from fallow.wiring import reach

IDLE = "idle"  # the name of the story
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
    options: settings.Settings, clock: Clock, monotonic: Clock = time.monotonic, tell: Tell | None = None
) -> AsyncIterator[Assembly]:
    """Everything wired: eyes on the cluster and on the measurements, hands, books, the Lease, the stories."""
    access = config.load_access(kubeconfig=options.kubeconfig, context=options.context, environment=options.environment)
    belief = trust.Belief(options.exporter_namespaces, options.trust_metrics)
    metrics, pace = telemetry.Telemetry(), options.loop

    def note(verb: str, code: str) -> None:
        metrics.add("fallow_api_requests_total", 1, (verb, code))

    async with contextlib.AsyncExitStack() as stack:
        burst = 0 if pace.daemon else pacing.BURST_OF_A_LOOK
        api = await stack.enter_async_context(kube.Api(access, burst=burst, monotonic=monotonic, note=note))
        leasing = await stack.enter_async_context(kube.Api(access, note=note))
        identity = options.pod_name or f"{names.FIELD_MANAGER}-{time.monotonic_ns():x}"  # that no other process has
        home = reach.Home(options.own_namespace or access.namespace or "default")
        if not (options.own_namespace or pace.daemon):
            home = await reach.find_home(leasing, access.namespace, acting=options.mandate.acting)
        leadership = reach.lease_as(
            identity, home.namespace, leasing, clock, answer=lambda said: story.answer(said, clock())
        )
        seen = await stack.enter_async_context(mirror.Mirror(
            api, watch_namespaces=options.mandate.scope.watch_namespaces, gpu_resources=options.gpu_resources,
            use_policies=options.mandate.use_policies, belief=belief,
            kept_kinds=lambda: [(group, kind) for group, _, kind in long_memory.read_kinds(leadership.annotations)],
        ))
        usage = await _open_source(options, access, api, belief, stack, monotonic, tell)
        scraping = usage if isinstance(usage, source.ScrapeSource) else None
        metrics.before_scrape(lambda: _write_ages(metrics, seen))
        needs_lease = pace.leader_elect or options.mandate.acting
        kept_audit = await _open_audit(options, stack) if pace.daemon else None
        eyes = snapshot.Eyes(
            seen, usage, clock=clock, lease_annotations=lambda: leadership.annotations,
            lease_term=lambda: leadership.term,
        )
        hands = await _make_hands(options, home.namespace, api, seen, stack)
        story = idle.IdleStory(
            options=options, eyes=eyes, hands=hands,
            books=tally.Books(
                metrics, dry_run=not options.mandate.acting, source="scrape" if scraping else "prometheus"
            ),
            note=leadership.note if needs_lease else None, kept=kept_audit,
        )

        def background() -> list[Coroutine[Any, Any, None]]:
            return [scraping.run(clock)] if scraping is not None and pace.daemon else []

        looping = loop.Loop(
            [loop.Story(
                name=IDLE, interval=pace.interval, budget=pace.budget, tick=story.tick, look=story.look, fail=story.fail
            )],
            seen=seen, leadership=leadership, needs_lease=needs_lease, metrics=metrics, clock=clock,
            monotonic=monotonic, most_failures=pace.max_consecutive_failures, background=background,
        )
        yield Assembly(
            looping, access.namespace or "default", scraping, leadership, home, eyes, kept_audit, seen, hands, access
        )


def _write_ages(metrics: telemetry.Telemetry, seen: mirror.Mirror) -> None:
    ages = seen.contents.ages(time.monotonic())
    metrics.replace("fallow_watch_age_seconds", {(resource,): age for resource, age in ages.items()})


async def look(options: settings.Settings, tell: Tell | None = None) -> Sighting:
    """One cycle up to the plan. The Lease is only read: a freeze is part of the truth. `tell`: for a person who waits,
    why it takes long."""
    with reach.say_what_to_do():
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


async def _make_hands(
    options: settings.Settings, namespace: str, api: kube.Api, seen: mirror.Mirror, stack: contextlib.AsyncExitStack
) -> doing.Hands:
    mandate, pod, telling = options.mandate, options.pod_name, options.telling
    poster = await stack.enter_async_context(post.Poster(options.environment))
    head = facts.Letterhead(
        cluster_name=telling.cluster_name, public_url=telling.public_url,
        has_buttons=options.serving.slack_secret is not None,
    )
    return doing.Hands(
        api, seen.find_resource, reporting_instance=pod or names.REPORTING_CONTROLLER,
        compat_annotations=mandate.compat_annotations, dry_run=None if mandate.acting else options.dry_run_scope,
        own_pod=cluster.Ref("", "v1", "Pod", namespace, pod, options.pod_uid) if pod else None,
        suspend_schedules=kinds.CRON_JOB.letter in mandate.scope.letters,
        wires=senders.Senders(poster, senders.SecretReader(api, namespace), telling.mail),
        address=delivery.Address(head=head, mentions=telling.mentions, domains=telling.email_domains),
    )


async def _open_audit(options: settings.Settings, stack: contextlib.AsyncExitStack) -> audit.Audit:
    made = audit.Audit(options.state_dir)
    await made.open()
    stack.push_async_callback(made.close)
    return made


async def _open_source(
    options: settings.Settings, access: config.Access, api: kube.Api, belief: trust.Belief,
    stack: contextlib.AsyncExitStack, monotonic: Clock, tell: Tell | None,
) -> measured.PrometheusSource | source.ScrapeSource:
    """Prometheus if we know where it is, else the exporters themselves."""
    if options.prometheus is not None:
        asked = await stack.enter_async_context(make_prometheus(options, options.prometheus, access, monotonic, tell))
        return measured.PrometheusSource(
            asked, honor_labels=options.prometheus.honor_labels, expected_interval=options.prometheus.expected_interval,
            budget=options.loop.budget,
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
