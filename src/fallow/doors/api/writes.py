"""What people change by the API: acknowledgements, pauses, resumes, freezes; and who they are, login and logout.

In: requests, a FrontGate that knows who asks, Rights, Deeds. Out: routes, with the codes of docs/spec/idle.md, 13.
Each write goes through the same gates in this order: how often, who, their own doing, what exactly, whether they may.
Invariant: every write and every refusal is audited; those of strangers only as many as nobody can flood it with.
"""

import math
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fallow import names, verbs
from fallow.doors.answers import deeds as answers
from fallow.doors.answers.rights import MeTold
from fallow.doors.api import auth, bodies, limits, refusals, sessions
from fallow.doors.api.deeds import Deeds, Doer, standing_acks
from fallow.doors.api.refusals import Denied
from fallow.doors.api.rights import VERIFIED, Rights
from fallow.model import cluster, units
from fallow.model.units import HOUR, Instant, Seconds
from fallow.stories.turn import Clock

Act: TypeAlias = Callable[[Request], Awaitable[Response]]

LONGEST_BY_EMAIL: Final[Seconds] = 24 * HOUR
MOST_BY_EMAIL: Final = 30  # acknowledgements a minute and address
_MOST_REFUSALS: Final = 30  # a minute and address that are audited
_EMAIL = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_ONE = "/api/v1/workloads/{namespace}/{kind}/{name}"


class AckAsked(bodies.BodyShape, frozen=True, kw_only=True):
    namespace: str
    kind: str
    name: str
    hours: float | None = None
    until: str | None = None
    reason: str = ""
    email: str | None = None


class UnackAsked(bodies.BodyShape, frozen=True, kw_only=True):
    email: str | None = None


class PauseAsked(bodies.BodyShape, frozen=True, kw_only=True):
    reason: str = "by hand"
    force: bool = False


class ResumeAsked(bodies.BodyShape, frozen=True, kw_only=True):
    """Nothing to say."""


class FreezeAsked(bodies.BodyShape, frozen=True, kw_only=True):
    for_seconds: float | None = None
    until: str | None = None
    reason: str = ""
    off: bool = False


class LoginAsked(bodies.BodyShape, frozen=True, kw_only=True):
    token: str


class Writes:
    """`standing`: the annotations of the daemon's Lease, as last seen."""

    def __init__(
        self, gate: auth.FrontGate, rights: Rights, deeds: Deeds, *, standing: Callable[[], Mapping[str, str]],
        clock: Clock, monotonic: Clock,
    ) -> None:
        self._gate, self._rights, self._deeds = gate, rights, deeds
        self._standing, self._clock, self._monotonic = standing, clock, monotonic
        self._by_email = limits.Limiter(MOST_BY_EMAIL)
        self._refusals = limits.Limiter(_MOST_REFUSALS)

    def routes(self) -> list[Route]:
        return [
            Route("/api/v1/me", _shown(self._show_me)),
            Route("/api/v1/login", _shown(self._log_in), methods=["POST"]),
            Route("/api/v1/logout", _shown(self._log_out), methods=["POST"]),
            Route("/api/v1/acks", self._audited(self._ack), methods=["POST"]),
            Route("/api/v1/acks/{namespace}/{kind}/{name}", self._audited(self._unack), methods=["DELETE"]),
            Route(f"{_ONE}/pause", self._audited(self._pause), methods=["POST"]),
            Route(f"{_ONE}/resume", self._audited(self._resume), methods=["POST"]),
            Route("/api/v1/freeze", _shown(self._show_freeze), methods=["GET"]),
            Route("/api/v1/freeze", self._audited(self._freeze), methods=["POST"]),
        ]

    def _audited(self, act: Act) -> Act:
        async def endpoint(request: Request) -> Response:
            try:
                return await act(request)
            except Denied as refused:
                if self._refusals.take(limits.neighbourhood(self._gate.address(request)), self._monotonic()):
                    doer = getattr(request.state, "doer", Doer(f"{names.BY_EMAIL}somebody"))
                    await self._deeds.note_refusal(doer, refused, getattr(request.state, "ref", None))
                return refusals.show(refused)

        return endpoint

    # ---- who ----

    async def _show_me(self, request: Request) -> Response:
        person, known = await self._gate.look(request), request.cookies.get(sessions.VISIT)
        visit = known or sessions.make_visit()
        response = _json(MeTold(
            user=person.name, mode=self._gate.mode, may_freeze=await self._rights.may_freeze(person),
            csrf=self._gate.seals.csrf(visit, person.name or ""),
        ))
        if not known:
            self._gate.set_cookie(request, response, sessions.VISIT, visit, None)
        return response

    async def _log_in(self, request: Request) -> Response:
        """A session for a browser, begun with a token that the API server knows."""
        if self._gate.mode != "kube":
            raise Denied(404, "NotFound", f"nobody logs in here: the mode is {self._gate.mode}")
        self._gate.check_origin(request)
        token = (await bodies.read(request, LoginAsked)).token.strip()
        who = await self._gate.review(request, token) if token.isascii() and token else None
        if who is None:
            raise Denied(401, "Unauthorized", "the API server does not know this token, or no longer")
        session = sessions.Session(who.name, who.groups, self._clock() + sessions.LASTS)
        cookie = self._gate.seals.write(session)
        if len(cookie) > sessions.LONGEST:
            because = "you are in too many groups for a cookie; send the token with each request instead"
            raise Denied(400, "TooManyGroups", because)
        response = _json({"user": who.name})
        self._gate.set_cookie(request, response, sessions.SESSION, cookie, int(sessions.LASTS))
        return response

    async def _log_out(self, request: Request) -> Response:
        self._gate.check_own_doing(request, await self._gate.look(request))
        response = Response(status_code=204)
        response.delete_cookie(sessions.SESSION, path="/", httponly=True, samesite="strict")
        return response

    async def _enter(self, request: Request, *, email: bool = False) -> auth.Person:
        """Who asks for a write, if it is their own doing. `email`: this may also be asked for by address alone."""
        if self._gate.mode == "email":
            if not email:
                raise Denied(403, "Forbidden", "only acknowledgements are written here", missing=VERIFIED)
            where = limits.neighbourhood(self._gate.address(request))
            if not self._by_email.take(where, self._monotonic()):
                many = f"more than {MOST_BY_EMAIL} a minute came from this address"
                raise Denied(429, "TooManyRequests", f"{many}; wait a moment", retry_after=60)
        person = await self._gate.identify(request)
        if person.is_verified:
            request.state.doer = Doer(person.by)
        self._gate.check_own_doing(request, person)
        return person

    def _read_doer(self, request: Request, person: auth.Person, email: str | None) -> Doer:
        """In whose name it stands; an address is what somebody typed, and is stored as that."""
        if person.is_verified:
            return Doer(person.by)
        if email is None or not _EMAIL.fullmatch(email):
            raise Denied(400, "BadEmail", "an e-mail address is needed, such as ada@example.com")
        request.state.doer = doer = Doer(f"{names.BY_EMAIL}{email}")
        return doer

    async def _find(
        self, request: Request, person: auth.Person, doer: Doer, named: tuple[str, str, str]
    ) -> cluster.Workload:
        """The workload that is meant, once it is known that this person may change what they named."""
        namespace, kind, name = named
        wishes = self._rights.wishes("patch", namespace, kind, name)
        if person.is_verified:
            await self._rights.demand_patch(person, namespace, kind, name)
        workload = await self._deeds.find(self._deeds.reach(doer, namespace), f"{kind}/{name}")
        request.state.ref = ref = workload.ref
        if person.is_verified and (ref.group, ref.name) not in {(each.group, each.name) for each in wishes}:
            await self._rights.demand_patch_of(person, ref)  # a pod was named: its workload is meant
        return workload

    # ---- what ----

    async def _ack(self, request: Request) -> Response:
        person = await self._enter(request, email=True)
        asked, now = await bodies.read(request, AckAsked), self._clock()
        doer = self._read_doer(request, person, asked.email)
        longest = None if person.is_verified else LONGEST_BY_EMAIL
        until = _read_end(asked.hours, asked.until, now, HOUR)
        _check_end(until, now, longest)
        _check_words(asked.reason)
        workload = await self._find(request, person, doer, (asked.namespace, asked.kind, asked.name))
        if not person.is_verified:
            _check_others(workload, doer, until, now)
        return _json(await self._deeds.keep(doer, workload, until, asked.reason), 201)

    async def _unack(self, request: Request) -> Response:
        person = await self._enter(request, email=True)
        asked = await bodies.read(request, UnackAsked, may_be_empty=True)
        doer = self._read_doer(request, person, asked.email or request.query_params.get("email"))
        workload = await self._find(request, person, doer, _read_path(request))
        standing = standing_acks(workload, self._clock())
        if not person.is_verified and any(each.by != doer.by for each in standing):
            theirs = "only who acknowledged it may take that back without a login"
            raise Denied(403, "Forbidden", theirs, missing=VERIFIED)
        await self._deeds.release(doer, workload)
        return Response(status_code=204)

    async def _pause(self, request: Request) -> Response:
        person = await self._enter(request)
        asked = await bodies.read(request, PauseAsked, may_be_empty=True)
        _check_words(asked.reason)
        doer = Doer(person.by)
        workload = await self._find(request, person, doer, _read_path(request))
        return _json(answers.deed(await self._deeds.pause(doer, workload, asked.reason, force=asked.force)), 202)

    async def _resume(self, request: Request) -> Response:
        person = await self._enter(request)
        await bodies.read(request, ResumeAsked, may_be_empty=True)
        doer = Doer(person.by)
        workload = await self._find(request, person, doer, _read_path(request))
        return _json(answers.deed(await self._deeds.resume(doer, workload)), 202)

    async def _show_freeze(self, request: Request) -> Response:
        await self._rights.guard(request)
        return _json(answers.freeze(self._standing(), self._clock()))

    async def _freeze(self, request: Request) -> Response:
        person = await self._enter(request)
        asked, now = await bodies.read(request, FreezeAsked), self._clock()
        _check_words(asked.reason)
        await self._rights.demand_freeze(person)
        doer = Doer(person.by)
        if asked.off:
            if asked.for_seconds is not None or asked.until is not None:
                raise Denied(400, "BadDuration", "off takes no duration")
            return _json(await self._deeds.unfreeze(doer))
        seconds = _read_end(asked.for_seconds, asked.until, now, 1.0) - now
        try:
            verbs.check_freeze(seconds)
        except verbs.Declined as problem:
            raise Denied(400, "BadDuration", str(problem)) from None
        return _json(await self._deeds.freeze(doer, seconds, asked.reason))


def _read_end(amount: float | None, until: str | None, now: Instant, unit: Seconds) -> Instant:
    """Of a keep or of a freeze: so much from now on, or until then."""
    if (amount is None) is (until is None):
        raise Denied(400, "BadDuration", "say either for how long, or until when")
    try:
        end = now + amount * unit if amount is not None else units.parse_instant(until or "")
    except (ValueError, OverflowError) as problem:
        raise Denied(400, "BadDuration", f"until: {problem}") from None
    if not math.isfinite(end) and not end > now:
        raise Denied(400, "BadDuration", "that is no duration")
    return end


def _check_end(until: Instant, now: Instant, longest: Seconds | None) -> None:
    try:
        verbs.check_ack(until, now)
    except verbs.Declined as problem:
        code = "AckTooLong" if problem.why is verbs.Why.too_long else "BadDuration"
        raise Denied(400, code, str(problem)) from None
    if longest is not None and until > now + longest:
        most = f"without a login it can be kept for {units.hours(longest)} hours at most"
        raise Denied(400, "AckTooLong", f"{most}, and again after that")


def _check_others(workload: cluster.Workload, doer: Doer, until: Instant, now: Instant) -> None:
    """By an address alone nobody takes over what somebody known keeps, nor shortens what others keep."""
    for each in standing_acks(workload, now):
        is_strangers = each.by.startswith(names.BY_EMAIL)
        if each.by != doer.by and not (is_strangers and each.until is not None and each.until <= until):
            end = "somebody" if each.until is None else f"{each.by or 'somebody'} until {units.rfc3339(each.until)}"
            raise Denied(409, "AlreadyKept", f"{workload.ref.short} is kept by {end}, and that stays")


def _check_words(reason: str) -> None:
    try:
        verbs.check_words(reason, "the reason")
    except verbs.Declined as problem:
        raise Denied(400, "BadReason", str(problem)) from None


def _read_path(request: Request) -> tuple[str, str, str]:
    given = request.path_params
    return given["namespace"], given["kind"], given["name"]


def _shown(act: Act) -> Act:
    """What changes nothing in the cluster: refused like all else, and not audited."""

    async def endpoint(request: Request) -> Response:
        try:
            return await act(request)
        except Denied as refused:
            return refusals.show(refused)

    return endpoint


def _json(content: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, {"Cache-Control": "no-store"}, refusals.JSON)
