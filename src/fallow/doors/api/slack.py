"""Buttons in Slack: `POST /slack/interactions`. Keep it, or bring it back, as the table of section 8 has it.

In: Slack's callback, signed with a secret that only Slack and we know. Out: the answer, within three seconds; what
takes longer is finished all the same and told at `response_url`, which is only ever an address of Slack.
Invariant: nothing is looked at before the signature of the raw body was compared, in constant time; a callback has an
effect once, at the replica that leads. Whoever presses is a name in Slack and nothing more: what their press can do is
to keep and to resume.
"""

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Coroutine, Mapping
from typing import Any, Final, NamedTuple
from urllib import parse

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from fallow import names, verbs
from fallow.act.notices import slack as messages
from fallow.clients import errors
from fallow.clients.messages import post
from fallow.clients.messages import slack as wire
from fallow.doors.api import bodies, limits, refusals
from fallow.doors.api.deeds import Deeds, Doer
from fallow.doors.api.leader import Away, LeaderDoor, Unsure
from fallow.doors.api.refusals import Denied
from fallow.model import cluster, kinds, units
from fallow.model.history import CameBy
from fallow.model.secret import Secret
from fallow.model.units import HOUR, MINUTE, Seconds
from fallow.stories.turn import Clock

log = logging.getLogger(__name__)

PATH: Final = "/slack/interactions"
PATIENCE: Final[Seconds] = 2.5  # Slack gives up after three seconds
_SKEW: Final[Seconds] = 300.0
_REMEMBERED: Final[Seconds] = 10 * MINUTE
_MOST_UNDER_WAY: Final = 100
_ACK, _RESUME = "ack", "resume"
_SIGNED: Final = ("X-Slack-Request-Timestamp", "X-Slack-Signature")
_STATUS: Final = {"Changed": 500, "Unclear": 400}  # else what stands in the way is no error: 200, as already paused
_FORGED = Doer(f"{names.BY_SLACK}unknown", CameBy.slack)


class _User(msgspec.Struct, frozen=True):
    id: str = ""
    username: str = ""
    name: str = ""


class _Action(msgspec.Struct, frozen=True):
    """`name`: of a button of the old form; one among blocks has an `action_id` instead (`ack_4`)."""

    name: str = ""
    action_id: str = ""
    value: str = ""

    @property
    def called(self) -> str:
        return self.name or self.action_id.partition("_")[0]


class _Payload(msgspec.Struct, frozen=True):
    """Of what Slack sends, what we go by."""

    type: str = ""
    challenge: str = ""
    user: _User = _User()
    actions: list[_Action] = []
    response_url: str = ""


class Press(NamedTuple):
    """A button that was pressed, read: what is meant, and for how many hours (None: bring it back)."""

    kind: str
    namespace: str
    name: str
    hours: int | None


class Buttons:
    """`hosts`: where answers may go. `token`: of a bot that may ask Slack who is in a group; None: nobody can."""

    def __init__(
        self, secret: Secret[str], deeds: Deeds, poster: post.Poster, *, clock: Clock, monotonic: Clock,
        hosts: tuple[str, ...] = wire.RESPONSE_HOSTS, patience: Seconds = PATIENCE,
        token: Secret[str] | None = None, slack_api: str = wire.API, leader: LeaderDoor | None = None,
    ) -> None:
        self._leader = leader
        self._token, self._slack_api = token, slack_api
        self._members: limits.Remembered[str, frozenset[str]] = limits.Remembered(MINUTE)
        self._secret, self._deeds, self._poster = secret, deeds, poster
        self._clock, self._monotonic, self._hosts, self._patience = clock, monotonic, hosts, patience
        self._seen: limits.Remembered[str, bool] = limits.Remembered(_REMEMBERED)
        self._strangers = limits.Limiter(30)
        self._under_way: set[asyncio.Task[Any]] = set()

    def routes(self) -> list[Route]:
        return [Route(PATH, self._hear, methods=["POST"])]

    async def close(self) -> None:
        """What is under way ends with us; the marks it wrote are whole."""
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _hear(self, request: Request) -> Response:
        try:
            body = await bodies.read_bytes(request)
            signature = self._check_signature(request, body)
        except Denied as refused:
            if self._strangers.take("", self._monotonic()):
                await self._deeds.note_refusal(_FORGED, refused)
            return refusals.show(refused)
        if (answer := await self._pass_on(request, body)) is not None:
            return answer
        now = self._monotonic()
        if self._seen.get(signature, now):
            return PlainTextResponse("OK")
        self._seen.put(signature, True, now)
        return await self._answer(body)

    async def _pass_on(self, request: Request, body: bytes) -> Response | None:
        """To who leads, by the same signature: there it has its effect once, and is written down. None: it is ours."""
        if self._leader is None or self._leader.leads():
            return None
        try:
            return await self._leader.pass_on(request, body, {name: request.headers[name] for name in _SIGNED})
        except Unsure as refused:
            return refusals.show(refused)
        except Away:
            return None

    def _check_signature(self, request: Request, body: bytes) -> str:
        stamp = request.headers.get("X-Slack-Request-Timestamp", "")
        given = request.headers.get("X-Slack-Signature", "")
        base = b"v0:" + stamp.encode("latin-1") + b":" + body
        right = "v0=" + hmac.new(self._secret.reveal().encode(), base, hashlib.sha256).hexdigest()
        if not hmac.compare_digest(given.encode("latin-1"), right.encode()):
            raise Denied(401, "BadSignature", "this is not signed by Slack with our secret")
        if not (stamp.isascii() and stamp.isdigit() and len(stamp) < 12 and abs(self._clock() - int(stamp)) <= _SKEW):
            raise Denied(401, "BadTime", "this was signed more than five minutes ago, or our clocks differ")
        return given

    async def _answer(self, body: bytes) -> Response:
        payload = _Payload()
        try:
            found = _read_payload(body)
            if found is None:
                return PlainTextResponse("OK")
            payload = found
            if payload.type == "url_verification":
                return PlainTextResponse(payload.challenge)
            if payload.actions and payload.actions[0].called == messages.WHY:
                return PlainTextResponse("OK")  # the browser has gone to the page
            press = _read_press(payload)
            doer = _read_doer(payload.user)
        except Denied as refused:
            return await self._refuse(refused, payload, Doer(_name_user(payload.user), CameBy.slack))
        return await self._act_in_time(press, doer, payload)

    async def _act_in_time(self, press: Press, doer: Doer, payload: _Payload) -> Response:
        """Slack's patience ends before a slow cluster's: then the answer follows."""
        if len(self._under_way) >= _MOST_UNDER_WAY:
            busy = Denied(503, "Busy", "too much is under way; press again in a moment")
            return await self._refuse(busy, payload, doer)
        task: asyncio.Task[Response] = self._begin(self._act(press, doer, payload))
        done, _ = await asyncio.wait([task], timeout=self._patience)
        if done:
            return task.result()
        task.add_done_callback(lambda ended: self._tell_late(ended, payload))
        return _whisper("It takes longer than usual; the answer will follow here.")

    def _tell_late(self, ended: "asyncio.Task[Response]", payload: _Payload) -> None:
        """What was done says so itself, and what failed too; only a whisper in an answer that is no error is lost."""
        if ended.cancelled() or ended.exception() is not None:
            return
        answer = ended.result()
        if answer.status_code == 200 and answer.media_type == refusals.JSON:
            self._respond(payload, msgspec.json.decode(answer.body))

    async def _act(self, press: Press, doer: Doer, payload: _Payload) -> Response:
        ref: cluster.Ref | None = None
        try:
            reach = self._deeds.reach(doer, press.namespace)
            workload = await self._deeds.find(reach, f"{press.kind}/{press.name}")
            ref = workload.ref
            self._check_kind(workload)
            await self._check_presser(reach, workload, payload.user)
            said = await self._do(press, doer, reach, workload)
        except Denied as refused:
            return await self._refuse(refused, payload, doer, ref)
        self._respond(payload, messages.kept(said, by=doer.by))
        return PlainTextResponse("Acknowledged" if press.hours is not None else "Resumed")

    async def _do(self, press: Press, doer: Doer, reach: verbs.Reach, workload: cluster.Workload) -> str:
        if press.hours is None:
            return f"{workload.ref.short}: {(await self._deeds.resume(doer, workload)).because}"
        longest = verbs.find_consent(reach, workload).max_ack
        if press.hours * HOUR > min(longest, verbs.MAX_ACK_HOURS * HOUR):
            raise Denied(400, "AckTooLong", f"it is kept for at most {units.hours(longest)} hours at a time")
        keep = await self._deeds.keep(doer, workload, self._clock() + press.hours * HOUR, "")
        return f"{workload.ref.short} is kept until {keep.until}"

    def _check_kind(self, workload: cluster.Workload) -> None:
        row = kinds.of(workload)
        if row is None or row.letter not in self._deeds.mandate.scope.letters:
            raise Denied(400, "KindDisabled", f"{workload.ref.kind} is not switched on here (--enabled-resources)")

    async def _check_presser(self, reach: verbs.Reach, workload: cluster.Workload, user: _User) -> None:
        """Those named one by one, and who is in a group that is named."""
        consent = verbs.find_consent(reach, workload)
        if user.id in consent.slack_users or not (consent.slack_users or consent.slack_groups):
            return
        for group in sorted(consent.slack_groups):
            if user.id in await self._list_members(group):
                return
        raise Denied(403, "Forbidden", "the policy of this workload names who may press, and not you")

    async def _list_members(self, group: str) -> frozenset[str]:
        """Asked of Slack at most once a minute; what cannot be asked is not allowed."""
        now = self._monotonic()
        if (known := self._members.get(group, now)) is not None:
            return known
        if self._token is None:
            because = "the policy of this workload names a group, and without SLACK_BOT_TOKEN nobody knows who is in it"
            raise Denied(403, "Forbidden", because)
        try:
            found = await wire.list_members(self._poster, self._token, group, api=self._slack_api)
        except errors.ClientError as problem:
            log.warning("who is in a group of Slack cannot be asked: %s", problem)
            raise Denied(503, "SlackUnavailable", "Slack does not tell who is in the group; nothing was done") from None
        self._members.put(group, found, now)
        return found

    async def _refuse(
        self, refused: Denied, payload: _Payload, doer: Doer, ref: cluster.Ref | None = None
    ) -> Response:
        """Whispered to who pressed: in the answer where Slack shows that (200), else at the address it gave."""
        await self._deeds.note_refusal(doer, refused, ref)
        status = _STATUS.get(refused.code, 200 if refused.status_code == 409 else refused.status_code)
        whisper = _whisper(str(refused.detail), min(status, 500))
        if status == 200:
            return whisper
        self._respond(payload, msgspec.json.decode(whisper.body))
        return whisper

    def _respond(self, payload: _Payload, message: Mapping[str, Any]) -> None:
        if payload.response_url and len(self._under_way) < 2 * _MOST_UNDER_WAY:
            self._begin(self._send(payload.response_url, message))

    async def _send(self, address: str, message: Mapping[str, Any]) -> None:
        try:
            await wire.respond(self._poster, address, message, self._hosts)
        except errors.ClientError as problem:
            log.warning("an answer to a button in Slack was not sent: %s", problem)

    def _begin(self, doing: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = asyncio.create_task(doing)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task


def _read_payload(body: bytes) -> _Payload | None:
    """From the form field, or JSON as it is; None: nothing in it."""
    text = body
    if not body.lstrip().startswith(b"{"):
        try:
            fields = parse.parse_qs(body.decode(), keep_blank_values=True, max_num_fields=20)
        except ValueError:
            raise Denied(400, "BadPayload", "the form cannot be read") from None
        text = fields.get("payload", [""])[0].encode()
    if not text.strip():
        return None
    try:
        return msgspec.json.decode(text, type=_Payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Denied(400, "BadPayload", "the payload is no JSON as Slack sends it") from None


def _read_press(payload: _Payload) -> Press:
    action = payload.actions[0] if payload.actions else _Action()
    parts = action.value.split(":")
    bad = Denied(400, "BadValue", "the value of the button is not KIND:NAMESPACE:NAME:HOURS")
    if len(parts) != 4 or action.called not in (_ACK, _RESUME):
        raise bad
    kind, namespace, name, last = parts
    try:
        verbs.read_target(f"{kind}/{name}")
        verbs.check_namespace(namespace)
    except verbs.Declined:
        raise bad from None
    if action.called == _RESUME:
        if last != _RESUME:
            raise bad
        return Press(kind, namespace, name, None)
    if not (last.isascii() and last.isdigit() and len(last) <= 6 and 1 <= int(last) <= verbs.MAX_ACK_HOURS):
        raise Denied(400, "BadHours", f"{last[:20]!r} is not between 1 and {verbs.MAX_ACK_HOURS} hours")
    return Press(kind, namespace, name, int(last))


def _read_doer(user: _User) -> Doer:
    if not user.id or len(user.id) > 64 or not (user.id.isascii() and user.id.isalnum()):
        raise Denied(400, "BadPayload", "the payload does not say who pressed")
    return Doer(_name_user(user), CameBy.slack)


def _name_user(user: _User) -> str:
    """`slack:ada(U1)`; of the name only what is plain: it is shown to others."""
    called = user.username or user.name
    plain = "".join(each for each in called if each.isalnum() or each in "._- ")[:80]
    return f"{names.BY_SLACK}{plain or 'unknown'}({user.id[:64] if user.id.isascii() and user.id.isalnum() else '?'})"


def _whisper(text: str, status: int = 200) -> Response:
    """Only who pressed sees it, and the message stays as it is."""
    said = {"response_type": "ephemeral", "replace_original": False, "text": messages.escape(text)}
    return Response(msgspec.json.encode(said), status, media_type=refusals.JSON)
