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
from fallow.account import audit
from fallow.clients.kubernetes import api as kube
from fallow.clients.messages import post
from fallow.doors.api import app, auth, deeds, editions, events, live, rights, sessions, slack, writes
from fallow.stories.turn import Clock
from fallow.wiring import daemon, reach


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
        kept = made.audit or await _open_audit(stack)

        def on_lease(by: str) -> verbs.OnLease:
            held = reach.lease_as(names.FIELD_MANAGER, made.home.namespace, api, clock)
            return verbs.OnLease(held, made.home.namespace, by, api.clock)

        gate = auth.FrontGate(
            wanted.auth, api, sessions.Seals(wanted.session_key or sessions.make_key()), clock=clock,
            monotonic=time.monotonic, trusted=[ipaddress.ip_network(each) for each in wanted.trusted_proxies],
            public_url=options.telling.public_url,
        )
        may = rights.Rights(gate, api, made.seen, time.monotonic)
        doing = deeds.Deeds(
            seen=made.seen, hands=made.hands, mandate=options.mandate, kept=kept, changes=changes, on_lease=on_lease,
            clock=clock,
        )
        door = writes.Writes(
            gate, may, doing, standing=lambda: made.leadership.annotations, clock=clock, monotonic=time.monotonic
        )
        buttons: list[Route] = []
        if wanted.slack_secret is not None:
            poster = await stack.enter_async_context(post.Poster(options.environment))
            pressed = slack.Buttons(wanted.slack_secret, doing, poster, clock=clock, monotonic=time.monotonic)
            stack.push_async_callback(pressed.close)
            buttons = pressed.routes()
        stack.callback(changes.close)
        yield People(
            rights=may, changes=changes, deeds=doing, buttons=buttons, live=live.LiveTeller(latest, changes),
            reads=app.Reads(editions=latest, guard=may.guard, may=may.may, auth=wanted.auth),
            routes=[*door.routes(), events.make_route(changes, may.guard)],
        )


async def _open_audit(stack: contextlib.AsyncExitStack) -> audit.Audit:
    """For who keeps none: in memory."""
    kept = audit.Audit(None)
    await kept.open()
    stack.push_async_callback(kept.close)
    return kept
