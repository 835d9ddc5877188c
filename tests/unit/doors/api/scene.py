"""A daemon's doors for people, over real sockets: the pretend API server behind them, a browser or a program before.

In: the mode of authentication. Out: `Scene`, with `ask` (one request), and what it did to the cluster and the audit.
Ada may see and change everything, Bob only see; Eve has a token and no right.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime
from typing import Any, NamedTuple

import aiohttp
import msgspec
from starlette.applications import Starlette
from starlette.routing import BaseRoute
from tests.builders import HOUR, NOW
from tests.unit.observe.cluster import pretend

from fallow import names, verbs
from fallow.account import audit
from fallow.act import hands as doing
from fallow.clients import oidc, replicas
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config, lease
from fallow.doors import listen
from fallow.doors.api import app, auth, bounds, deeds, events, leader, login, rights, sessions, writes
from fallow.model import units
from fallow.model.login import ClaimNames, OidcClient
from fallow.model.patterns import compile_pattern
from fallow.model.policies import idle
from fallow.model.secret import Secret
from fallow.model.seen import Absent
from fallow.observe.cluster import mirror
from fallow.settings.serving import AuthMode
from fallow.sim.servers import store as stores
from fallow.sim.servers.kubernetes import calls, server

Object = dict[str, Any]
TOKENS = {
    "of-fallow": calls.ApiUser("fallow"), "of-ada": calls.ApiUser("ada", ("team", "system:authenticated")),
    "of-bob": calls.ApiUser("bob"), "of-eve": calls.ApiUser("eve"),
}
_SEES = [
    {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get"]},
    {"apiGroups": [names.GROUP], "resources": [names.POLICY_PLURAL], "verbs": ["get"]},
]
RULES = {
    "ada": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}], "bob": _SEES, "eve": [],
}
KEY = Secret(b"k" * sessions.LEAST_KEY)
MANDATE = idle.Mandate(
    acting=True, scope=idle.Scope(protected_namespaces=compile_pattern("kube-system|vault")),
    rule=idle.Rule(consent=idle.Consent(max_ack=100 * HOUR)),
)


class Answer(NamedTuple):
    status: int
    body: Any
    headers: Any

    @property
    def code(self) -> str:
        return str(self.body["error"]["code"])

    @property
    def message(self) -> str:
        return str(self.body["error"]["message"])


class Scene:
    """`origin`: of the page; `session`: of one browser, which keeps its cookies."""

    def __init__(self, store: stores.Store, kept: audit.Audit, changes: events.Changes) -> None:
        self.store, self.kept, self.changes = store, kept, changes
        self.now, self.ticks, self.origin = NOW, 0.0, ""
        self.holder: str | None = "one"  # who leads, as the Lease names it
        self.leads = True
        self.door: leader.LeaderDoor | None = None
        self.kubernetes: server.KubernetesServer
        self.seen: mirror.Mirror
        self.browser: aiohttp.ClientSession
        self.gate: auth.FrontGate
        self.rights: rights.Rights
        self.deeds: deeds.Deeds
        self.routes: list[BaseRoute]

    async def ask(
        self, method: str, path: str, body: Any = None, *, token: str = "", headers: dict[str, str] | None = None,
    ) -> Answer:
        sent = {**({"Authorization": f"Bearer {token}"} if token else {}), **(headers or {})}
        data = None
        if body is not None:
            data = body if isinstance(body, bytes) else msgspec.json.encode(body)
            sent = {"Content-Type": "application/json", **sent}
        async with self.browser.request(method, f"{self.origin}{path}", data=data, headers=sent) as got:
            text = await got.read()
            with contextlib.suppress(msgspec.DecodeError):
                return Answer(got.status, msgspec.json.decode(text) if text else None, got.headers)
            return Answer(got.status, text.decode(), got.headers)

    async def press(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """As a page of ours does it: with the token of /api/v1/me, and its origin."""
        me = await self.ask("GET", "/api/v1/me", headers=headers)
        own = {"X-Fallow-CSRF": me.body["csrf"], "Origin": self.origin}
        return await self.ask(method, path, body, headers={**own, **headers})

    def thing(self, name: str, kind: str = "Deployment", namespace: str = "ml") -> Object:
        entry = self.store.find(stores.Key("apps", kind, namespace, name))
        assert entry is not None
        return entry.object

    def marks(self, name: str) -> dict[str, str]:
        return dict(self.thing(name)["metadata"].get("annotations") or {})

    async def audited(self) -> list[Any]:
        return await self.kept.read(audit.AuditQuery())

    async def look_again(self) -> None:
        await self.seen.list_all(self.now)


def fill(store: stores.Store) -> None:
    """`llm` runs, `kept` is acknowledged by a person, `off` stands paused; `vault` is protected."""
    for namespace in ("ml", "vault"):
        store.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    by_hand = {names.ACK_UNTIL: units.rfc3339(NOW + HOUR), names.ACK_BY: "user:grace"}
    record = {names.PAUSED_AT: units.rfc3339(NOW - HOUR), names.ORIGINAL_STATE: '{"v":1,"fields":{"/spec/replicas":1}}'}
    add(store, "llm")
    add(store, "kept", annotations=by_hand)
    add(store, "off", pods=0, annotations=record)
    add(store, "safe", namespace="vault")


def add(store: stores.Store, name: str, *, pods: int = 1, namespace: str = "ml", **more: Any) -> None:
    """The uids that the store gives: owners are named by those."""
    (_, top), (_, middle), *rest = pretend.deployed(name, pods, namespace, **more)
    top["spec"] = {"replicas": pods, "selector": {"matchLabels": {"app": name}}, "template": {
        "metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "main", "image": "x"}]},
    }}
    made_top = store.create(top).object
    middle["metadata"]["ownerReferences"] = [_owner(made_top)]
    made_middle = store.create(middle).object
    for _, pod in rest:
        pod["metadata"]["ownerReferences"] = [_owner(made_middle)]
        store.create(pod)


def _owner(thing: Object) -> Object:
    meta = thing["metadata"]
    named = {"name": meta["name"], "uid": meta["uid"], "controller": True}
    return {"apiVersion": thing["apiVersion"], "kind": thing["kind"], **named}


@contextlib.asynccontextmanager
async def open_scene(
    mode: AuthMode = "kube", *, trusted: Iterable[str] = (), dry_run: Any = None, public_url: str = "",
    more: Any = None, state_dir: str | None = None, client: OidcClient | None = None,
    claims: ClaimNames | None = None, listener: Any = None, follows: str = "", shares_key: bool = True,
) -> AsyncIterator[Scene]:
    """`more`: further routes, made of the scene. `client`: as whom an OpenID Connect provider knows us. `follows`: the
    address of the pod `one` that leads, at the port of `listener`."""
    async with contextlib.AsyncExitStack() as stack:
        store = stores.Store(lambda: scene.now)
        kept, changes = audit.Audit(state_dir), events.Changes()
        await kept.open()
        stack.push_async_callback(kept.close)
        scene = Scene(store, kept, changes)
        scene.kubernetes = server.KubernetesServer(store, lambda: scene.now, tokens=TOKENS, rules=RULES)
        fill(store)
        url = await scene.kubernetes.start()
        stack.push_async_callback(scene.kubernetes.stop)
        access = config.Access(server=url, context="test", token=Secret("of-fallow"))
        api = await stack.enter_async_context(kube.Api(access, qps=10_000))
        scene.seen = await stack.enter_async_context(mirror.Mirror(api))
        await scene.look_again()
        hands = doing.Hands(api, scene.seen.find_resource, reporting_instance="test", dry_run=dry_run)

        def on_lease(by: str) -> verbs.OnLease:
            held = lease.Leadership(
                api, namespace="ml", name=names.LEASE, identity="test",
                utcnow=lambda: datetime.fromtimestamp(scene.now, UTC),
            )
            return verbs.OnLease(held, "ml", by, Absent())

        networks = [ipaddress.ip_network(each) for each in trusted]
        provider = await stack.enter_async_context(oidc.Provider(client, {})) if client else None
        scene.gate = auth.FrontGate(
            mode, api, sessions.Seals(KEY), clock=lambda: scene.now, monotonic=lambda: scene.ticks, trusted=networks,
            public_url=public_url, provider=provider, leads_as=lambda: scene.holder if scene.leads else None,
        )
        logins = login.LoginDoor(
            scene.gate, clock=lambda: scene.now, monotonic=lambda: scene.ticks, provider=provider, claims=claims,
            public_url=public_url,
        )
        scene.rights = rights.Rights(scene.gate, api, scene.seen, lambda: scene.ticks)
        scene.deeds = deeds.Deeds(
            api=api, seen=scene.seen, hands=hands, mandate=MANDATE, kept=kept, changes=changes, on_lease=on_lease,
            clock=lambda: scene.now, leads=lambda: scene.leads,
        )
        if follows:
            scene.leads, scene.holder = False, "one"
            store.create({
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one", "namespace": "gpu"},
                "status": {"podIP": follows}, "spec": {"containers": []},
            })
            scene.door = leader.LeaderDoor(
                api, await stack.enter_async_context(replicas.Replicas(connect=1.0, silence=1.0)), scene.gate,
                leads=lambda: scene.leads, holder=lambda: scene.holder, namespace="gpu", shares_key=shares_key,
                monotonic=lambda: scene.ticks,
            )
        door = writes.Writes(
            scene.gate, scene.rights, scene.deeds, standing=dict, clock=lambda: scene.now,
            monotonic=lambda: scene.ticks,
        )
        scene.routes = [
            *door.routes(), *logins.routes(), events.make_route(changes, scene.rights.guard, leads=lambda: scene.leads),
            *(more(scene) if more else []),
        ]
        made = Starlette(routes=scene.routes)
        if scene.door is not None:
            made.add_middleware(leader.LeaderFirst, door=scene.door)
        scene.origin = await stack.enter_async_context(serve_app(made, listener))
        scene.browser = await stack.enter_async_context(
            aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))
        )
        try:
            yield scene
        finally:
            changes.close()


@contextlib.asynccontextmanager
async def serve(routes: list[BaseRoute], listener: Any = None) -> AsyncIterator[str]:
    async with serve_app(Starlette(routes=routes), listener) as origin:
        yield origin


@contextlib.asynccontextmanager
async def serve_app(made: Starlette, listener: Any = None) -> AsyncIterator[str]:
    listener = listener or listen.open_listener(("127.0.0.1", 0))
    running = app.Server(made, bounds.PageProtocol)
    task = asyncio.create_task(running.serve([listener]))
    while not running.started:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    try:
        yield "http://{}:{}".format(*listener.getsockname())
    finally:
        running.stop()
        await asyncio.wait_for(task, 5)
        listener.close()
