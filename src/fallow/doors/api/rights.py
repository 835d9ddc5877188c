"""What a person may: asked of the API server, which knows (SubjectAccessReview), for exactly what is wanted.

To read a workload: `get` on it; to see all of them at once (lists, figures, live events): `get` on idlepolicies. To
keep, pause or resume: `patch` on it. To freeze: `update` on idlepolicies. To acknowledge an alert: `patch` on its
costbudget. In mode `email` everybody reads, and nobody
does more than keep.

In: a Person and a workload as people call it, or as we found it. Out: nothing, or Denied (403) that names the right
that lacks; May, for a page that shows beforehand what can be done (each answer holds for half a minute).
Invariant: what is written was asked for anew; what cannot be asked is not allowed.
"""

import contextlib
import itertools
import logging
import re
from collections.abc import Iterable
from typing import Final

import msgspec
from starlette.requests import Request

from fallow import names, verbs
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import reviews
from fallow.clients.kubernetes.reviews import AccessWish
from fallow.doors.answers.explaining import MayDo, MayTold
from fallow.doors.answers.rows import RowsMay
from fallow.doors.api import auth, limits
from fallow.doors.api.refusals import Denied
from fallow.model import cluster, kinds
from fallow.model.units import Seconds
from fallow.observe.cluster import mirror
from fallow.stories.turn import Clock

log = logging.getLogger(__name__)

_REMEMBERED: Final[Seconds] = 30.0
_MOST_ASKED: Final = 50  # kinds and namespaces of one list: each is a question to the API server
SEE_ALL: Final = AccessWish("get", names.GROUP, names.POLICY_PLURAL)
FREEZE: Final = AccessWish("update", names.GROUP, names.POLICY_PLURAL)
SEE_ALERTS: Final = AccessWish("patch", names.GROUP, names.BUDGET_PLURAL)
VERIFIED: Final = "a login: this dashboard runs with --dashboard-auth email, which knows nobody"
_ONE_WORKLOAD = re.compile(r"/api/v1/workloads/([^/]+)/([^/]+)/([^/]+)(?:/.*)?")


class Rights:
    """`api`: as of the FrontGate."""

    def __init__(self, gate: auth.FrontGate, api: kube.Api, seen: mirror.Mirror, monotonic: Clock) -> None:
        self._gate, self._api, self._seen, self._monotonic = gate, api, seen, monotonic
        self._known: limits.Remembered[tuple[reviews.Identity, AccessWish], bool] = limits.Remembered(_REMEMBERED)

    async def guard(self, request: Request) -> None:
        """Raises Denied for who may not read what this request asks for."""
        person = await self._gate.identify(request)
        if self._gate.mode == "email":
            return
        request.state.user = person.name
        named = _ONE_WORKLOAD.fullmatch(request.url.path)
        wishes = self.wishes("get", *named.groups()) if named else [SEE_ALL]
        await self._demand(person, wishes, to="see this", is_new=False)

    async def demand_all(self, request: Request) -> None:
        """Of who wants to see what stands in no workload: somebody known, who may see all of them."""
        person = await self._gate.identify(request)
        await self._demand(person, [SEE_ALL], to="ask Prometheus", is_new=False)

    async def demand_patch(self, person: auth.Person, namespace: str, kind: str, name: str) -> None:
        """Of who wants to keep, pause or resume what they call so; it need not be there, so that nobody learns that."""
        await self._demand(person, self.wishes("patch", namespace, kind, name), to=f"change {kind}/{name}")

    async def demand_patch_of(self, person: auth.Person, ref: cluster.Ref) -> None:
        await self._demand(person, [self._wish("patch", ref)], to=f"change {ref.short}")

    async def demand_budget(self, person: auth.Person, name: str) -> None:
        """Of who wants to mark an alert of it as seen; it need not be there."""
        wish = msgspec.structs.replace(SEE_ALERTS, name=name)
        await self._demand(person, [wish], to=f"acknowledge alerts of budget {name}")

    async def demand_freeze(self, person: auth.Person) -> None:
        await self._demand(person, [FREEZE], to="freeze")

    async def may(self, request: Request, workload: cluster.Workload) -> MayDo:
        return await self.may_act(await self._gate.look(request), workload)

    async def may_act(self, person: auth.Person, workload: cluster.Workload) -> MayDo:
        """One question to the API server, for all three need the same right."""
        ref = workload.ref
        wish, typed = self._wish("patch", ref), f"{kinds.typed(ref)} -n {ref.namespace}"
        missing = None if await self._has(person, wish) else str(wish)
        other = VERIFIED if self._gate.mode == "email" else missing
        own = None if self._gate.mode == "email" else missing
        return MayDo(
            keep=MayTold(allowed=own is None, missing=own, command=f"fallow ack {typed} --hours 4"),
            pause=MayTold(allowed=other is None, missing=other, command=f"fallow pause {typed}"),
            resume=MayTold(allowed=other is None, missing=other, command=f"fallow resume {typed}"),
        )

    async def may_in(self, request: Request, refs: Iterable[cluster.Ref]) -> tuple[RowsMay, ...]:
        return await self.may_rows(await self._gate.look(request), refs)

    async def may_rows(self, person: auth.Person, refs: Iterable[cluster.Ref]) -> tuple[RowsMay, ...]:
        """For the rows of a list: one question for each kind and namespace, or for the kind alone where it may be done
        everywhere. What the API server cannot say now is left out."""
        found, every = list[RowsMay](), {msgspec.structs.replace(ref, name="", uid=""): None for ref in refs}
        with contextlib.suppress(Denied):
            for ref in itertools.islice(every, _MOST_ASKED):
                found.append(await self._may_one(person, ref))
        return tuple(found)

    async def _may_one(self, person: auth.Person, ref: cluster.Ref) -> RowsMay:
        wish, by_mail = self._wish("patch", ref), self._gate.mode == "email"
        anywhere = msgspec.structs.replace(wish, namespace="")
        has = not by_mail and (await self._has(person, anywhere) or await self._has(person, wish))
        return RowsMay(
            namespace=ref.namespace, api_version=ref.api_version, kind=ref.kind, keep=has or by_mail, pause=has,
            resume=has, missing=None if has else VERIFIED if by_mail else str(wish),
        )

    async def may_freeze(self, person: auth.Person) -> MayTold:
        has = await self._has(person, FREEZE)
        lacks = VERIFIED if self._gate.mode == "email" else str(FREEZE)
        return MayTold(allowed=has, missing=None if has else lacks, command="fallow freeze --for 2h")

    async def may_see_alerts(self, person: auth.Person) -> MayTold:
        """Of all budgets."""
        has = await self._has(person, SEE_ALERTS)
        lacks = VERIFIED if self._gate.mode == "email" else str(SEE_ALERTS)
        return MayTold(allowed=has, missing=None if has else lacks, command="fallow cost budget ack NAME ALERT")

    def wishes(self, verb: str, namespace: str, kind: str, name: str) -> list[AccessWish]:
        """One for each kind that people call so: who may not do it to all of them would have to say which is meant."""
        try:
            verbs.read_target(f"{kind}/{name}")
            verbs.check_namespace(namespace)
        except verbs.Declined as problem:
            raise Denied(400, "BadName", str(problem)) from None
        found = [self._seen.served.find(*key) for key in sorted(self._seen.find_kinds(kind))]
        wanted = [AccessWish(verb, each.group, each.plural, namespace, name) for each in found if each is not None]
        if not wanted:
            raise Denied(404, "NotFound", f"the cluster has no kind that is called {kind}")
        return wanted

    def _wish(self, verb: str, ref: cluster.Ref) -> AccessWish:
        found = self._seen.served.find(ref.group, ref.kind)
        plural = found.plural if found else f"{ref.kind.lower()}s"
        return AccessWish(verb, ref.group, plural, ref.namespace, ref.name)

    async def _demand(self, person: auth.Person, wishes: Iterable[AccessWish], *, to: str, is_new: bool = True) -> None:
        if not person.is_verified:
            raise Denied(403, "Forbidden", f"to {to} one must be logged in", missing=VERIFIED)
        for wish in wishes:
            if not await self._has(person, wish, is_new=is_new):
                raise Denied(403, "Forbidden", f"{person.name} may not {to}: {wish} is missing", missing=str(wish))

    async def _has(self, person: auth.Person, wish: AccessWish, *, is_new: bool = False) -> bool:
        if not person.is_verified:
            return False
        key, now = (person.identity, wish), self._monotonic()
        if not is_new and (known := self._known.get(key, now)) is not None:
            return known
        try:
            allowed = await reviews.review_access(self._api, person.identity, wish)
        except errors.ClientError as problem:
            log.warning("no right can be reviewed: %s", problem)
            because = "the API server cannot say now what you may do"
            raise Denied(503, "AuthUnavailable", because) from None
        self._known.put(key, allowed, now)
        return allowed
