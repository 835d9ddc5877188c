"""What people change by the API: acknowledgements, also of alerts, pauses, resumes, freezes; and who they are.

In: requests, a FrontGate that knows who asks, Rights, Deeds. Out: routes, with the codes of docs/spec/idle.md, 13.
Each write goes through the same gates in this order: who, how often, their own doing, what exactly, whether they may.
Invariant: every write and every refusal is audited; those of strangers only as many as nobody can flood it with.
"""

import functools
import math
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fallow import names, verbs
from fallow.act.marking import ACK_REASON_CHARACTERS
from fallow.doors.answers import deeds as answers
from fallow.doors.answers.rights import MeTold
from fallow.doors.api import auth, bodies, limits, refusals, sessions
from fallow.doors.api.deeds import Deeds, Doer, standing_acks
from fallow.doors.api.questions import ALERT, KIND, NAME, NAMESPACE
from fallow.doors.api.refusals import Denied
from fallow.doors.api.rights import VERIFIED, Rights
from fallow.model import cluster, units
from fallow.model.units import HOUR, Instant, Seconds
from fallow.stories.turn import Clock

LONGEST_BY_EMAIL: Final[Seconds] = 24 * HOUR
MOST_BY_EMAIL: Final = 30  # acknowledgements a minute and address
_MOST_REFUSALS: Final = 30  # a minute and address that are audited
_EMAIL = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_ONE = "/api/v1/workloads/{namespace}/{kind}/{name}"


Namespace = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": NAMESPACE})]
Kind = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": KIND})]
Name = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": NAME})]
Words = Annotated[str, msgspec.Meta(extra_json_schema={"maxLength": ACK_REASON_CHARACTERS})]
Instants = Annotated[str, msgspec.Meta(extra_json_schema={"format": "date-time"})]
Hours = Annotated[float, msgspec.Meta(extra_json_schema={"exclusiveMinimum": 0, "maximum": verbs.MAX_ACK_HOURS})]
Span = Annotated[float, msgspec.Meta(extra_json_schema={"exclusiveMinimum": 0, "maximum": verbs.MAX_FREEZE})]


class AckAsked(bodies.BodyShape, frozen=True, kw_only=True):
    """Either `hours` or `until`; `email` where nobody logs in."""

    namespace: Namespace
    kind: Kind
    name: Name
    hours: Hours | None = None
    until: Instants | None = None
    reason: Words = ""
    email: str | None = None


class UnackAsked(bodies.BodyShape, frozen=True, kw_only=True):
    email: str | None = None


class PauseAsked(bodies.BodyShape, frozen=True, kw_only=True):
    reason: Words = "by hand"
    force: bool = False


class ResumeAsked(bodies.BodyShape, frozen=True, kw_only=True):
    """Nothing to say."""


class AlertSeenAsked(bodies.BodyShape, frozen=True, kw_only=True):
    """Nothing to say."""


class FreezeAsked(bodies.BodyShape, frozen=True, kw_only=True):
    """Either `forSeconds`, `until` or `off`."""

    for_seconds: Span | None = None
    until: Instants | None = None
    reason: Words = ""
    off: bool = False


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
        return [Route(each.path, self._endpoint(each), methods=[each.method]) for each in WRITES]

    def _endpoint(self, row: bodies.WriteEndpoint) -> refusals.Act:
        act = functools.partial(row.act, self)
        return refusals.shown(act) if row.is_shown else self._audited(act)

    def _audited(self, act: refusals.Act) -> refusals.Act:
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
        response = bodies.answer(MeTold(
            user=person.name, mode=self._gate.mode, may_freeze=await self._rights.may_freeze(person),
            may_see_alerts=await self._rights.may_see_alerts(person),
            csrf=self._gate.seals.csrf(visit, person.name or ""),
        ))
        if not known:
            self._gate.set_cookie(request, response, sessions.VISIT, visit, None)
        return response

    async def _enter(self, request: Request, *, email: bool = False) -> auth.Person:
        """Who asks for a write, if it is their own doing. `email`: this may also be asked for by address alone."""
        person = await self._gate.identify(request)
        if self._gate.mode == "email":
            if not email:
                raise Denied(403, "Forbidden", "only acknowledgements of workloads are written here", missing=VERIFIED)
            where = limits.neighbourhood(self._gate.address(request))
            if not self._by_email.take(where, self._monotonic()):
                many = f"more than {MOST_BY_EMAIL} a minute came from this address"
                raise Denied(429, "TooManyRequests", f"{many}; wait a moment", retry_after=60)
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
        return bodies.answer(await self._deeds.keep(doer, workload, until, asked.reason), 201)

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
        done = await self._deeds.pause(doer, workload, asked.reason, force=asked.force)
        return bodies.answer(answers.deed(done), 202)

    async def _resume(self, request: Request) -> Response:
        person = await self._enter(request)
        await bodies.read(request, ResumeAsked, may_be_empty=True)
        doer = Doer(person.by)
        workload = await self._find(request, person, doer, _read_path(request))
        return bodies.answer(answers.deed(await self._deeds.resume(doer, workload)), 202)

    async def _see_alert(self, request: Request) -> Response:
        person = await self._enter(request)
        await bodies.read(request, AlertSeenAsked, may_be_empty=True)
        budget, alert = request.path_params["budget"], request.path_params["alert"]
        if not re.fullmatch(NAME, budget) or not re.fullmatch(ALERT, alert):
            raise Denied(400, "BadName", "that is no name of a budget or of an alert")
        await self._rights.demand_budget(person, budget)
        return bodies.answer(await self._deeds.see_alert(Doer(person.by), budget, alert))

    async def _show_freeze(self, request: Request) -> Response:
        await self._rights.guard(request)
        return bodies.answer(answers.freeze(self._standing(), self._clock()))

    async def _freeze(self, request: Request) -> Response:
        person = await self._enter(request)
        asked, now = await bodies.read(request, FreezeAsked), self._clock()
        _check_words(asked.reason)
        await self._rights.demand_freeze(person)
        doer = Doer(person.by)
        if asked.off:
            if asked.for_seconds is not None or asked.until is not None:
                raise Denied(400, "BadDuration", "off takes no duration")
            return bodies.answer(await self._deeds.unfreeze(doer))
        seconds = _read_end(asked.for_seconds, asked.until, now, 1.0) - now
        try:
            verbs.check_freeze(seconds)
        except verbs.Declined as problem:
            raise Denied(400, "BadDuration", str(problem)) from None
        return bodies.answer(await self._deeds.freeze(doer, seconds, asked.reason))


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


_ACK: Final = "/api/v1/acks/{namespace}/{kind}/{name}"
_ALERT: Final = "/api/v1/cost/budgets/{budget}/alerts/{alert}/ack"
WRITES: Final = (
    bodies.WriteEndpoint(path="/api/v1/me", method="GET", summary="Who asks, and the token that writes must carry",
                         act=Writes._show_me, status=200, returns=MeTold, is_shown=True),
    bodies.WriteEndpoint(path="/api/v1/acks", method="POST", summary="Keep a workload although it is idle",
                         act=Writes._ack, status=201, asks=AckAsked, returns=answers.KeepWritten),
    bodies.WriteEndpoint(path=_ACK, method="DELETE", summary="Keep it no longer", act=Writes._unack, status=204),
    bodies.WriteEndpoint(path=f"{_ONE}/pause", method="POST", summary="Pause it, whatever it does",
                         act=Writes._pause, status=202, asks=PauseAsked, returns=answers.DeedTold),
    bodies.WriteEndpoint(path=f"{_ONE}/resume", method="POST", summary="Bring it back as it was",
                         act=Writes._resume, status=202, asks=ResumeAsked, returns=answers.DeedTold),
    bodies.WriteEndpoint(path=_ALERT, method="POST", summary="Mark an alert of a budget as seen in this period",
                         act=Writes._see_alert, status=200, asks=AlertSeenAsked, returns=answers.AlertSeen),
    bodies.WriteEndpoint(path="/api/v1/freeze", method="GET", summary="Whether notices and pauses are held back",
                         act=Writes._show_freeze, status=200, returns=answers.FreezeStanding, is_shown=True),
    bodies.WriteEndpoint(path="/api/v1/freeze", method="POST", summary="Hold notices and pauses back, or no longer",
                         act=Writes._freeze, status=200, asks=FreezeAsked, returns=answers.FreezeStanding),
)
