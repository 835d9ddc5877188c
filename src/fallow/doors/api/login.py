"""Logging in and out: with a token that the API server knows, or at an OpenID Connect provider.

In: a browser. Out: a session in a signed cookie (sessions.py), `/login` as a plain page that needs no script, and the
same for programs at `/api/v1/login` and `/api/v1/logout`.
By OpenID Connect it is the code flow with PKCE: `/oidc/login` sends the browser away with a ticket in a cookie of its
own, `/oidc/callback` takes it back. State, nonce and verifier are made of the ticket's number with our key, so that
nothing is kept here and any replica can finish what another began.
Invariant: who comes back without the ticket they left with, twice, or too late, is nobody. A login leads to a page of
ours and nowhere else. Whatever goes wrong is said on a page, and nobody is half logged in.
"""

import base64
import hashlib
import html
import logging
import re
from typing import Final
from urllib import parse

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from fallow.clients import errors, oidc
from fallow.clients.kubernetes import reviews
from fallow.doors.api import auth, bodies, limits, refusals, sessions
from fallow.doors.api.refusals import Denied
from fallow.model.login import ClaimNames
from fallow.stories.turn import Clock

log = logging.getLogger(__name__)

MOST_LOGINS: Final = 30  # a minute and address, begun or finished
CALLBACK: Final = "/oidc/callback"
_OURS = re.compile(r"/(?![/\\])(?!oidc/)[\x21-\x5b\x5d-\x7e]{0,1000}")  # a path of ours, and of no other host
_FORM: Final = "application/x-www-form-urlencoded"
_NO_STORE: Final = {"Cache-Control": "no-store"}
_STYLE: Final = b"""\
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 26rem; margin: 12vh auto; padding: 0 1rem }
h1 { font-weight: 500 }
input, button, .button { font: inherit; padding: .5rem .8rem; border: 1px solid; border-radius: .4rem }
input { width: 100%; box-sizing: border-box; margin: .3rem 0 1rem }
.button { display: inline-block; color: inherit; text-decoration: none }
[role=alert] { border-left: .25rem solid; padding-left: .8rem }
"""


class LoginAsked(bodies.BodyShape, frozen=True, kw_only=True):
    token: str


class LoginDoor:
    """`provider`: in mode oidc, with what its claims mean here; `public_url`: where people come back to."""

    def __init__(
        self, gate: auth.FrontGate, *, clock: Clock, monotonic: Clock, provider: oidc.Provider | None = None,
        claims: ClaimNames | None = None, public_url: str = "",
    ) -> None:
        self._gate, self._clock, self._monotonic = gate, clock, monotonic
        self._provider, self._claims, self._public = provider, claims or ClaimNames(), public_url
        self._logins = limits.Limiter(MOST_LOGINS)
        self._finished: limits.Remembered[str, bool] = limits.Remembered(sessions.TICKET_LASTS)

    def routes(self) -> list[Route]:
        found = [
            Route("/api/v1/login", refusals.shown(self._log_in), methods=["POST"]),
            Route("/api/v1/logout", refusals.shown(self._log_out), methods=["POST"]),
            Route("/login", self._paged(self._show), methods=["GET"]),
            Route("/login", self._paged(self._log_in_by_form), methods=["POST"]),
            Route("/logout", self._paged(self._log_out_by_form), methods=["POST"]),
            Route("/login.css", _show_style),
        ]
        if self._provider is not None:
            found.append(Route("/oidc/login", self._paged(self._leave)))
            found.append(Route(CALLBACK, self._paged(self._return)))
        return found

    # ---- with a token ----

    async def _log_in(self, request: Request) -> Response:
        who = await self._review(request, (await bodies.read(request, LoginAsked)).token)
        response = bodies.answer({"user": who.name})
        self._begin_session(request, response, who)
        return response

    async def _log_in_by_form(self, request: Request) -> Response:
        form = await _read_form(request)
        who = await self._review(request, form.get("token", ""))
        response = RedirectResponse(_read_then(form.get("then", "")), 303, _NO_STORE)
        self._begin_session(request, response, who)
        return response

    async def _review(self, request: Request, given: str) -> reviews.Identity:
        if self._gate.mode != "kube":
            raise Denied(404, "NotFound", f"nobody logs in here with a token: the mode is {self._gate.mode}")
        self._gate.check_origin(request)
        token = given.strip()
        who = await self._gate.review(request, token) if token.isascii() and token else None
        if who is None:
            raise Denied(401, "Unauthorized", "the API server does not know this token, or no longer")
        return who

    def _begin_session(self, request: Request, response: Response, who: reviews.Identity) -> None:
        session = sessions.Session(who.name, who.groups, self._clock() + sessions.LASTS)
        cookie = self._gate.seals.write(session)
        if len(cookie) > sessions.LONGEST:
            helps = {"kube": "send the token with each request instead"}
            less = helps.get(self._gate.mode, "let the provider tell us only those that roles here name")
            raise Denied(400, "TooManyGroups", f"you are in too many groups for a cookie; {less}")
        self._gate.set_cookie(request, response, sessions.SESSION, cookie, int(sessions.LASTS))

    # ---- out ----

    async def _log_out(self, request: Request) -> Response:
        self._gate.check_own_doing(request, await self._gate.look(request))
        response = Response(status_code=204)
        self._gate.end_session(request, response)
        return response

    async def _log_out_by_form(self, request: Request) -> Response:
        csrf = (await _read_form(request)).get("csrf", "")
        self._gate.check_own_doing(request, await self._gate.look(request), csrf=csrf)
        response = RedirectResponse("/login", 303, _NO_STORE)
        self._gate.end_session(request, response)
        return response

    # ---- at a provider ----

    async def _leave(self, request: Request) -> Response:
        assert self._provider is not None
        self._count(request)
        then = _read_then(request.query_params.get("then", ""))
        ticket = sessions.LoginTicket(sessions.make_visit(), then, self._clock() + sessions.TICKET_LASTS)
        derive = self._gate.seals.derive
        challenge = hashlib.sha256(derive("verifier", ticket.number).encode()).digest()
        try:
            address = await self._provider.begin(
                redirect=self._public + CALLBACK, state=derive("state", ticket.number),
                nonce=derive("nonce", ticket.number), ticks=self._monotonic(),
                challenge=base64.urlsafe_b64encode(challenge).rstrip(b"=").decode(),
            )
        except errors.ClientError as problem:
            raise _unavailable(problem) from None
        response = RedirectResponse(address, 303, _NO_STORE)
        self._gate.set_ticket(request, response, self._gate.seals.write_ticket(ticket))
        return response

    async def _return(self, request: Request) -> Response:
        self._count(request)
        ticket = self._take_ticket(request)
        given = request.query_params
        if given.get("error"):
            word = given["error"] if given["error"].isidentifier() else "an error"
            raise Denied(401, "LoginRefused", f"the provider did not log you in: it says {word[:60]}")
        who = await self._finish(ticket, given.get("code", ""), given.get("iss"))
        response = RedirectResponse(ticket.then, 303, _NO_STORE)
        self._begin_session(request, response, who)
        log.info("%s logged in", who.name)
        return response

    def _take_ticket(self, request: Request) -> sessions.LoginTicket:
        """The one that this browser left with, once."""
        ticket = self._gate.seals.read_ticket(request.cookies.get(sessions.TICKET, ""), self._clock())
        state, now = request.query_params.get("state", ""), self._monotonic()
        if ticket is None or not self._gate.seals.is_derived(state, "state", ticket.number):
            because = "this login was not begun here, by this browser, within the last ten minutes"
            raise Denied(400, "BadState", f"{because}; begin again")
        if self._finished.get(ticket.number, now):
            raise Denied(400, "BadState", "this login was used already; begin again")
        self._finished.put(ticket.number, True, now)
        return ticket

    async def _finish(self, ticket: sessions.LoginTicket, code: str, issuer: str | None) -> reviews.Identity:
        assert self._provider is not None
        own = self._provider.client.issuer
        if not code or len(code) > 4096 or issuer not in (None, own):
            raise Denied(401, "LoginRefused", "this is not the answer of the provider that was asked; begin again")
        derive = self._gate.seals.derive
        try:
            claims = await self._provider.finish(
                code, redirect=self._public + CALLBACK, verifier=derive("verifier", ticket.number),
                nonce=derive("nonce", ticket.number), now=self._clock(), ticks=self._monotonic(),
            )
            name, groups = self._claims.read_user(claims, own), self._claims.read_groups(claims)
        except (errors.Invalid, errors.Unauthorized, errors.Forbidden, errors.BadAnswer, ValueError) as problem:
            log.warning("a login was refused: %s", problem)
            raise Denied(401, "LoginRefused", str(problem)) from None
        except errors.ClientError as problem:
            raise _unavailable(problem) from None
        if not auth.is_name(name):
            raise Denied(401, "LoginRefused", "the name that the provider says is none that people have here")
        return reviews.Identity(name, (*filter(auth.is_name, groups), auth.EVERYBODY))

    def _count(self, request: Request) -> None:
        where = limits.neighbourhood(self._gate.address(request))
        if not self._logins.take(where, self._monotonic()):
            raise Denied(429, "TooManyTries", "too many logins from this address; wait a minute", retry_after=60)

    # ---- the page ----

    async def _show(self, request: Request) -> Response:
        person, then = await self._gate.look(request), _read_then(request.query_params.get("then", ""))
        if person.is_verified and self._gate.mode != "proxy":
            visit = request.cookies.get(sessions.VISIT) or sessions.make_visit()
            response = _page(_LOGGED_IN.format(
                name=html.escape(person.name or ""), then=html.escape(then),
                csrf=self._gate.seals.csrf(visit, person.name or ""),
            ))
            self._gate.set_cookie(request, response, sessions.VISIT, visit, None)
            return response
        return _page(self._form(then))

    def _form(self, then: str) -> str:
        match self._gate.mode:
            case "kube":
                return _BY_TOKEN.format(then=html.escape(then))
            case "oidc":
                assert self._provider is not None
                host = parse.urlsplit(self._provider.client.issuer).netloc
                return _BY_PROVIDER.format(host=html.escape(host), then=html.escape(parse.quote(then)))
            case mode:
                return f"<h1>fallow</h1><p>Nobody logs in here: the mode is {mode}.</p>"

    def _paged(self, act: refusals.Act) -> refusals.Act:
        """Refusals as a page: a person reads them."""

        async def endpoint(request: Request) -> Response:
            try:
                response = await act(request)
            except Denied as refused:
                sentence = html.escape(str(refused.detail))
                response = _page(f"<p role=alert>{sentence}</p>{self._form('/')}", refused.status_code)
                response.headers.update(dict(refused.headers or {}))
            if request.url.path == CALLBACK:
                self._gate.drop_ticket(response)
            return response

        return endpoint


_BY_TOKEN: Final = """<h1>Log in</h1><form method=post action=/login>
<label>A token that the cluster knows, such as <code>kubectl create token NAME</code> prints
<input name=token type=password autocomplete=off required autofocus></label>
<input name=then type=hidden value="{then}"><button>Log in</button></form>"""
_BY_PROVIDER: Final = """<h1>Log in</h1><p><a class=button href="/oidc/login?then={then}">Log in at {host}</a></p>"""
_LOGGED_IN: Final = """<h1>You are logged in</h1><p>as {name}. <a href="{then}">Go on</a></p>
<form method=post action=/logout><input name=csrf type=hidden value="{csrf}"><button>Log out</button></form>"""


def _page(inside: str, status: int = 200) -> Response:
    head = '<meta charset=utf-8><meta name=viewport content="width=device-width"><link rel=stylesheet href=/login.css>'
    page = f"<!doctype html><html lang=en>{head}<title>fallow: log in</title><main>{inside}</main></html>"
    return Response(page, status, _NO_STORE, "text/html")


async def _show_style(request: Request) -> Response:
    return Response(_STYLE, media_type="text/css", headers={"Cache-Control": "no-cache"})


async def _read_form(request: Request) -> dict[str, str]:
    if request.headers.get("Content-Type", "").partition(";")[0].strip().lower() != _FORM:
        raise Denied(415, "NotAForm", f"the Content-Type must be {_FORM}")
    try:
        return dict(parse.parse_qsl((await bodies.read_bytes(request)).decode(), max_num_fields=10))
    except ValueError:
        raise Denied(400, "BadRequest", "the form cannot be read") from None


def _read_then(asked: str) -> str:
    return asked if _OURS.fullmatch(asked) else "/"


def _unavailable(problem: errors.ClientError) -> Denied:
    log.warning("nobody can log in: %s", problem)
    return Denied(503, "AuthUnavailable", f"nobody can log in now: {problem}", retry_after=10)
