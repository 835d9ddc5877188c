"""Everything that people come in by, put together for a daemon: who they are, what they may, what they change, live
pages, Slack's buttons.

In: the options, what the daemon is made of. Out: routes, and a guard and rights for what others serve; as a context
manager that closes whatever it opened.
"""

import contextlib
import ipaddress
import time
from collections.abc import AsyncIterator, Sequence

import msgspec
from starlette.routing import Route

from fallow import names, settings, verbs
from fallow.clients import oidc, replicas
from fallow.clients.kubernetes import api as kube
from fallow.clients.messages import post
from fallow.doors.api import (
    app,
    auth,
    clusters,
    deeds,
    editions,
    events,
    leader,
    live,
    login,
    relay,
    rights,
    sessions,
    slack,
    writes,
)
from fallow.stories.turn import Clock
from fallow.wiring import daemon, peers, reach


class People(msgspec.Struct, frozen=True, kw_only=True):
    """`routes`: of the dashboard's listener; `buttons`: of the one that Slack calls, none without its secret."""

    rights: rights.Rights
    changes: events.Changes
    deeds: deeds.Deeds
    routes: Sequence[Route]
    buttons: Sequence[Route]
    reads: app.Reads
    live: live.LiveTeller


@contextlib.asynccontextmanager
async def open_people(
    options: settings.Settings, made: daemon.Assembly, latest: editions.Editions, clock: Clock
) -> AsyncIterator[People]:
    """Strangers' questions have an API client of their own: no cycle waits."""
    wanted, changes = options.serving, events.Changes(latest.revision, latest.touch)
    async with contextlib.AsyncExitStack() as stack:
        api = await stack.enter_async_context(kube.Api(made.access, qps=50, in_flight=20))
        kept = made.audit or await daemon.open_audit(None, stack)
        latest.reach = verbs.Reach(made.seen, made.hands, "", "", options.mandate)
        latest.list_now = made.eyes.list_now

        def on_lease(by: str) -> verbs.OnLease:
            held = reach.lease_as(names.FIELD_MANAGER, made.home.namespace, api, clock)
            return verbs.OnLease(held, made.home.namespace, by, api.clock)

        latest.peers = clusters.PeerSights(await stack.enter_async_context(peers.open_peers(options)), clock)
        provider, public = await _open_provider(stack, options), options.telling.public_url
        gate = auth.FrontGate(
            wanted.auth, api, sessions.Seals(wanted.session_key or sessions.make_key()), clock=clock,
            monotonic=time.monotonic, trusted=[ipaddress.ip_network(each) for each in wanted.trusted_proxies],
            public_url=public, provider=provider,
            leads_as=lambda: made.leadership.holder if latest.leads else None,
        )
        logins = login.LoginDoor(
            gate, clock=clock, monotonic=time.monotonic, provider=provider, claims=wanted.claims, public_url=public
        )
        may = rights.Rights(gate, api, made.seen, time.monotonic)
        doing = deeds.Deeds(
            api=api, seen=made.seen, hands=made.hands, mandate=options.mandate, kept=kept, changes=changes,
            on_lease=on_lease, clock=clock, amend=latest.amend, leads=lambda: latest.leads,
        )
        asked = leader.LeaderDoor(
            api, await stack.enter_async_context(replicas.Replicas()), gate, leads=lambda: latest.leads,
            holder=lambda: made.leadership.holder, namespace=made.home.namespace,
            shares_key=wanted.session_key is not None, monotonic=time.monotonic,
        )
        door = writes.Writes(
            gate, may, doing, standing=lambda: made.leadership.annotations, clock=clock, monotonic=time.monotonic
        )
        buttons: list[Route] = []
        if wanted.slack_secret is not None:
            poster = await stack.enter_async_context(post.Poster(options.environment))
            pressed = slack.Buttons(
                wanted.slack_secret, doing, poster, clock=clock, monotonic=time.monotonic, token=wanted.slack_token,
                leader=asked,
            )
            stack.push_async_callback(pressed.close)
            buttons = pressed.routes()
        stack.callback(changes.close)
        yield People(
            rights=may, changes=changes, deeds=doing, buttons=buttons, live=live.LiveTeller(latest, changes),
            reads=app.Reads(
                editions=latest, guard=may.guard, may=may.may, may_in=may.may_in, auth=wanted.auth,
                leader=asked,
            ),
            routes=[
                *door.routes(), *logins.routes(), events.make_route(changes, may.guard, leads=lambda: latest.leads),
                *await _relay(stack, options, made, may, clock),
            ],
        )


async def _relay(
    stack: contextlib.AsyncExitStack, options: settings.Settings, made: daemon.Assembly, may: rights.Rights,
    clock: Clock,
) -> list[Route]:
    """With clients of its own: no cycle waits behind somebody's question. Further clusters are shown no login of ours:
    it is for our own."""
    found = {}
    if options.prometheus is not None:
        own = daemon.make_prometheus(options, options.prometheus, made.access)
        found[options.telling.cluster_name or names.DEFAULT_CLUSTER] = await stack.enter_async_context(own)
    for each in options.clusters:
        further = settings.PrometheusSettings(url=each.url, auth="none", honor_labels=each.honor_labels)
        found[each.name] = await stack.enter_async_context(daemon.make_prometheus(options, further))
    return [relay.make_route(found, may, clock)] if found else []


async def _open_provider(stack: contextlib.AsyncExitStack, options: settings.Settings) -> oidc.Provider | None:
    """Asked when somebody logs in: where it is away, all else starts and goes on."""
    client = options.serving.oidc
    return None if client is None else await stack.enter_async_context(oidc.Provider(client, options.environment))
