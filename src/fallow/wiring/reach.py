"""For a person at a keyboard: the API server, the objects of one namespace with hands on them, the daemon's Lease.

The Lease is the one in the namespace that was named; without a name, the only one there is.

In: what a kubeconfig says, and a namespace. Out: async context managers that close whatever they opened. No source of
measurements and no story is loaded for this: a command must answer before one notices.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime

import msgspec

from fallow import names, settings, verbs
from fallow.act import hands as doing
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config, lease, pace
from fallow.observe.cluster import mirror
from fallow.stories.turn import Clock
from fallow.wiring import helping


@contextlib.asynccontextmanager
async def open_api(kubeconfig: str | None, context: str | None) -> AsyncIterator[tuple[kube.Api, str | None]]:
    """The API server of a kubeconfig, and the namespace of its context: all that a command of a person needs.

    Who looks once and ends may ask for all of it in one burst: only who stays is spread out."""
    access = config.load_access(kubeconfig=kubeconfig, context=context, environment=settings.environment())
    async with kube.Api(access, burst=pace.BURST_OF_A_LOOK) as api:
        with helping.say_what_to_do():
            yield api, access.namespace


@contextlib.asynccontextmanager
async def open_reach(
    kubeconfig: str | None, context: str | None, namespace: str | None, *, dry_run: bool = False,
    everywhere: bool = False, kind: str = "",
) -> AsyncIterator[verbs.Reach]:
    """The objects of a namespace (or of all) as they are, hands on them, in the name of whoever the API server says we
    are. `kind`: as it is called; what is not of it, and runs nothing, is not looked at."""
    async with open_api(kubeconfig, context) as (api, own):
        namespace = "" if everywhere else namespace or own or "default"
        around = [namespace] if namespace else []
        async with mirror.Mirror(api, watch_namespaces=around, sees_nodes=False) as seen:
            _, who = await asyncio.gather(seen.list_all(time.time(), kind), _who(api))
            hands = doing.Hands(
                api, seen.find_resource, reporting_instance=names.FIELD_MANAGER, dry_run="server" if dry_run else None
            )
            reached = verbs.Reach(seen, hands, namespace, who)
            await verbs.check_place(reached)
            yield reached


@contextlib.asynccontextmanager
async def open_lease(
    kubeconfig: str | None, context: str | None, namespace: str | None
) -> AsyncIterator[verbs.OnLease]:
    """The Lease of the daemon that runs, and who the API server says we are."""
    async with open_api(kubeconfig, context) as (api, own):
        named, unseen = namespace or settings.environment().get("POD_NAMESPACE"), ""
        if not named:
            found, unseen = await _find_leases(api, own)
            named = verbs.pick_lease(found, unseen)
        who, on = await _who(api), lease_as(names.FIELD_MANAGER, named, api, time.time)
        yield verbs.OnLease(on, named, who, api.clock, unseen)


async def _find_leases(api: kube.Api, own: str | None) -> tuple[list[str], str]:
    """The namespaces in which one stands, held or not (a restarting daemon holds none), and what was not seen."""
    try:
        pages = api.list_pages(kube.LEASES, item=dict, field_selector=f"metadata.name={names.LEASE}")
        return [each["metadata"]["namespace"] async for page in pages for each in page.items], ""
    except errors.Forbidden:
        places = dict.fromkeys((*names.SYSTEM_NAMESPACES, *filter(None, [own])))
        looked = {place: await _has_lease(api, place) for place in places}
        return [place for place, has in looked.items() if has], _describe_unseen(looked)


def _describe_unseen(looked: Mapping[str, bool | None]) -> str:
    seen = ", ".join(place for place, has in looked.items() if has is not None) or "none"
    hidden = ", ".join(place for place, has in looked.items() if has is None)
    unseen = f"leases may not be listed everywhere; of single namespaces, {seen} could be looked at"
    return f"{unseen}, and {hidden} may not be read" if hidden else unseen


class Home(msgspec.Struct, frozen=True):
    """Where we belong: the namespace of the Lease we heed, all namespaces in which one stands, and what of others could
    not be seen."""

    namespace: str
    leases: tuple[str, ...] = ()
    unseen: str = ""


async def find_home(api: kube.Api, own: str | None, *, acting: bool) -> Home:
    """For who runs once, outside of any pod: the namespace of the daemon's Lease, so that its freeze, its caps and its
    turn hold for us too; the context's own where there is none. Who acts neither chooses between several nor takes a
    Lease that cannot be seen for one that is not there."""
    found, unseen = await _find_leases(api, own)
    if acting and (len(found) > 1 or (unseen and not found)):
        several = f"stands in several namespaces ({', '.join(sorted(found))})"
        which = several if found else f"may stand anywhere: {unseen}"
        raise errors.BadAnswer(f"the Lease {names.LEASE} {which}; say by POD_NAMESPACE to which one this run belongs")
    return Home(found[0] if len(found) == 1 else own or "default", tuple(sorted(found)), unseen)


async def _has_lease(api: kube.Api, namespace: str) -> bool | None:
    """None: that may not be known."""
    try:
        await api.get(kube.LEASES, namespace, names.LEASE)
    except errors.NotFound:
        return False
    except errors.Forbidden:
        return None
    return True


async def _who(api: kube.Api) -> str:
    return f"{names.BY_USER}{await api.who_am_i() or 'unknown'}"


def lease_as(
    identity: str, namespace: str, api: kube.Api, clock: Clock, answer: lease.MakeChanges = lambda said: {}
) -> lease.Leadership:
    return lease.Leadership(
        api, namespace=namespace, name=names.LEASE, identity=identity, answer=answer,
        utcnow=lambda: datetime.fromtimestamp(clock(), UTC),
    )
