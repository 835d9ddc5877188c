"""Logging in at a provider: the way there and back, and everything that must not let anybody in. What a real provider
never does (wrong tokens) a pretend one does here; tests/real/test_oidc.py has a real one."""

from __future__ import annotations

import base64
import contextlib
import logging
from collections.abc import AsyncIterator
from http import cookies
from typing import Any
from urllib import parse

import aiohttp
import msgspec
import pytest
import pytest_asyncio
from joserfc import jwk, jwt
from tests.unit.doors.api import provider as providers
from tests.unit.doors.api.provider import PretendProvider
from tests.unit.doors.api.scene import Scene, open_scene

from fallow import names
from fallow.clients import errors, oidc
from fallow.doors import listen
from fallow.doors.api import sessions
from fallow.model.login import ClaimNames, OidcClient
from fallow.model.secret import Secret
from fallow.model.units import HOUR, MINUTE

LLM: dict[str, Any] = {"namespace": "ml", "kind": "Deployment", "name": "llm", "hours": 4}
PLAIN = ClaimNames(user_prefix="-")


class Landed:
    """Where a browser ended up: after how it was answered, without following."""

    def __init__(self, got: aiohttp.ClientResponse, text: str) -> None:
        self.status, self.to, self.text = got.status, got.headers.get("Location", ""), text
        self.cookies = cookies.SimpleCookie()
        for each in got.headers.getall("Set-Cookie", []):
            self.cookies.load(each)


class Door:
    """A scene whose people log in at a provider."""

    def __init__(self, scene: Scene, provider: PretendProvider) -> None:
        self.scene, self.provider = scene, provider

    async def go(self, path: str, **query: str) -> Landed:
        address = f"{self.scene.origin}{path}"
        async with self.scene.browser.get(address, params=query, allow_redirects=False) as got:
            return Landed(got, await got.text())

    async def leave(self, then: str = "/w/ml/Deployment/llm?tab=why") -> dict[str, str]:
        """Somebody begins and logs in there: what they come back with."""
        left = await self.go("/oidc/login", then=then)
        assert left.status == 303, left.text
        return self.provider.log_in(left.to)

    async def log_in(self) -> Landed:
        return await self.go("/oidc/callback", **await self.leave())

    async def who(self) -> str | None:
        found: str | None = (await self.scene.ask("GET", "/api/v1/me")).body["user"]
        return found


@contextlib.asynccontextmanager
async def open_door(claims: ClaimNames = PLAIN, **client: Any) -> AsyncIterator[Door]:
    listener = listen.open_listener(("127.0.0.1", 0))
    public = f"http://127.0.0.1:{listener.getsockname()[1]}"
    provider = PretendProvider(lambda: door.scene.now)
    url = await provider.start()
    known = {"issuer": url, "client_id": providers.CLIENT, "secret": Secret(providers.SECRET), **client}
    try:
        async with open_scene(
            "oidc", public_url=public, client=OidcClient(**known), claims=claims, listener=listener
        ) as scene:
            door = Door(scene, provider)
            yield door
    finally:
        await provider.stop()


@pytest_asyncio.fixture
async def door() -> AsyncIterator[Door]:
    async with open_door() as running:
        yield running


# ---- the way there and back ------------------------------------------------------------------------------------------


async def test_who_logs_in_is_led_back_and_may_what_roles_say(door: Door) -> None:
    assert (await door.scene.ask("POST", "/api/v1/acks", LLM)).code == "Unauthorized"
    landed = await door.log_in()
    assert (landed.status, landed.to) == (303, "/w/ml/Deployment/llm?tab=why")
    session = landed.cookies[sessions.SESSION]
    assert (session["httponly"], session["samesite"].lower(), session["max-age"]) == (True, "strict", "28800")
    assert (await door.scene.press("POST", "/api/v1/acks", LLM)).status == 201
    assert door.scene.marks("llm")[names.ACK_BY] == "api:ada"


async def test_who_may_not_is_told_which_right_lacks(door: Door) -> None:
    door.provider.claims["sub"] = "bob"
    await door.log_in()
    answer = await door.scene.press("POST", "/api/v1/acks", LLM)
    assert (answer.status, answer.body["missing"]) == (403, "patch on deployments in ml")


async def test_the_provider_is_asked_as_the_standards_have_it(door: Door) -> None:
    left = await door.go("/oidc/login")
    asked = dict(parse.parse_qsl(parse.urlsplit(left.to).query))
    assert left.to.startswith(f"{door.provider.url}/auth?")
    assert asked["redirect_uri"] == f"{door.scene.origin}/oidc/callback"
    assert (asked["response_type"], asked["client_id"], asked["scope"]) == ("code", "fallow", "openid")
    assert asked["code_challenge_method"] == "S256"
    assert len({asked["state"], asked["nonce"], asked["code_challenge"]}) == 3
    ticket = left.cookies[sessions.TICKET]
    assert (ticket["httponly"], ticket["samesite"].lower(), ticket["path"]) == (True, "lax", "/oidc")
    assert not [value for value in asked.values() if value in ticket.value]
    again = dict(parse.parse_qsl(parse.urlsplit((await door.go("/oidc/login")).to).query))
    assert not {again["state"], again["nonce"]} & {asked["state"], asked["nonce"]}


async def test_our_secret_is_shown_as_the_provider_takes_it(door: Door) -> None:
    await door.log_in()
    shown = base64.b64decode(door.provider.forms[0]["authorization"].removeprefix("Basic ")).decode()
    assert shown == f"fallow:{parse.quote_plus(providers.SECRET)}"
    assert "client_secret" not in door.provider.forms[0]
    async with open_door() as other:
        other.provider.described = {"token_endpoint_auth_methods_supported": ["client_secret_post"]}
        await other.log_in()
        assert other.provider.forms[0]["client_secret"] == providers.SECRET
    async with open_door(secret=None) as public:
        await public.log_in()
        assert (public.provider.forms[0]["client_id"], await public.who()) == ("fallow", "ada")


async def test_a_secret_in_a_file_is_read_at_every_login(tmp_path: Any) -> None:
    file = tmp_path / "secret"
    async with open_door(secret=None, secret_file=str(file)) as door:
        for content in ("one", "two"):
            file.write_text(f"{content}\n")
            door.scene.now += 1
            await door.log_in()
        shown = [base64.b64decode(form["authorization"].removeprefix("Basic ")) for form in door.provider.forms]
        assert shown == [b"fallow:one", b"fallow:two"]


async def test_a_session_ends_by_itself_and_by_logging_out(door: Door) -> None:
    await door.log_in()
    copied = {each.key: each.value for each in door.scene.browser.cookie_jar}[sessions.SESSION]
    assert (await door.scene.press("POST", "/api/v1/logout")).status == 204
    assert await door.who() is None
    again = await door.scene.ask("GET", "/api/v1/me", headers={"Cookie": f"{sessions.SESSION}={copied}"})
    assert again.body["user"] is None
    await door.log_in()
    door.scene.now += 8 * HOUR
    assert await door.who() is None


async def test_programs_come_with_a_token_of_the_cluster(door: Door) -> None:
    assert (await door.scene.ask("POST", "/api/v1/acks", LLM, token="of-ada")).status == 201
    assert (await door.scene.ask("POST", "/api/v1/login", {"token": "of-ada"})).status == 404


async def test_the_page_logs_in_and_out_without_a_script(door: Door) -> None:
    page = await door.go("/login", then="/w/x?a=1&b=<2>")
    assert f'href="/oidc/login?then=/w/x%3Fa%3D1%26b%3D%3C2%3E">Log in at {door.provider.url[7:]}' in page.text
    assert "<script" not in page.text
    door.provider.claims["sub"] = "<b>ada</b>"
    await door.log_in()
    page = await door.go("/login")
    assert "as &lt;b&gt;ada&lt;/b&gt;." in page.text
    csrf = page.text.partition('name=csrf type=hidden value="')[2].partition('"')[0]
    form, own = {"csrf": csrf}, {"Origin": door.scene.origin}
    for sent, headers in (({}, own), (form, {"Origin": "https://evil.example"})):
        async with door.scene.browser.post(f"{door.scene.origin}/logout", data=sent, headers=headers) as got:
            assert got.status == 403
    async with door.scene.browser.post(
        f"{door.scene.origin}/logout", data=form, headers=own, allow_redirects=False
    ) as got:
        assert (got.status, got.headers["Location"]) == (303, "/login")
    assert await door.who() is None


# ---- who comes back otherwise than they left -------------------------------------------------------------------------

ELSEWHERE = [
    "https://evil.example/", "//evil.example", "/\\evil.example", "/\t/evil.example", "javascript:alert(1)", "\\/evil",
    "/%0d%0aSet-Cookie:x\r\n", "", "evil", "/oidc/login", "/" + "x" * 2000,
]


@pytest.mark.parametrize("then", ELSEWHERE, ids=lambda text: repr(text)[:30])
async def test_a_login_leads_to_a_page_of_ours_only(door: Door, then: str) -> None:
    landed = await door.go("/oidc/callback", **await door.leave(then))
    assert (landed.status, landed.to) == (303, "/")


async def refused(door: Door, back: dict[str, str], status: int = 400) -> str:
    landed = await door.go("/oidc/callback", **back)
    assert landed.status == status, landed.text
    assert sessions.SESSION not in landed.cookies
    assert landed.cookies[sessions.TICKET].value == ""
    assert "role=alert" in landed.text
    assert await door.who() is None
    return landed.text


@pytest.mark.parametrize("state", ["", "x", "0" * 64, "ä"])
async def test_a_forged_state_is_refused(door: Door, state: str) -> None:
    await refused(door, {**await door.leave(), "state": state})
    assert "token" not in door.provider.asked


async def test_the_state_of_another_browser_is_refused(door: Door) -> None:
    theirs = await door.leave()
    door.scene.browser.cookie_jar.clear()
    await refused(door, theirs)  # no ticket at all
    await door.leave()
    await refused(door, theirs)  # the ticket of another login
    assert "token" not in door.provider.asked


async def test_a_ticket_is_good_for_ten_minutes_and_forged_ones_never(door: Door) -> None:
    back = await door.leave()
    door.scene.now += 10 * MINUTE
    await refused(door, back)
    forged = sessions.Seals(Secret(b"x" * 32))
    cookie = forged.write_ticket(sessions.LoginTicket("n", "/", 9e12))
    header = {"Cookie": f"{sessions.TICKET}={cookie}"}
    answer = await door.scene.ask(
        "GET", f"/oidc/callback?code=c&state={forged.derive('state', 'n')}", headers=header
    )
    assert answer.status == 400


async def test_a_session_is_no_ticket_and_a_ticket_no_session(door: Door) -> None:
    seals = door.scene.gate.seals
    session = seals.write(sessions.Session("ada", (), 9e12))
    ticket = seals.write_ticket(sessions.LoginTicket("ada", "/", 9e12))
    assert (seals.read_ticket(session, 0.0), seals.read(ticket, 0.0)) == (None, None)


async def test_a_replayed_code_is_refused(door: Door) -> None:
    back = await door.leave()
    ticket = {each.key: each.value for each in door.scene.browser.cookie_jar}[sessions.TICKET]
    assert (await door.go("/oidc/callback", **back)).status == 303
    door.scene.browser.cookie_jar.clear()
    asked = len(door.provider.asked)
    headers = {"Cookie": f"{sessions.TICKET}={ticket}"}
    again = await door.scene.ask("GET", f"/oidc/callback?{parse.urlencode(back)}", headers=headers)
    assert again.status == 400
    assert len(door.provider.asked) == asked  # it is not even brought there
    old = {**await door.leave(), "code": back["code"]}
    words = await refused(door, old, 401)  # and there it is good for once, too
    assert "invalid_grant" in words
    assert providers.SECRET not in words


ODD_BACK = {
    "another-issuer": ({"iss": "https://evil.example"}, "not the answer of the provider"),
    "no-code": ({"code": ""}, "not the answer of the provider"),
    "it-says-no": ({"error": "access_denied"}, "it says access_denied"),
    "it-says-markup": ({"error": "<script>"}, "it says an error"),
}


@pytest.mark.parametrize(("more", "words"), ODD_BACK.values(), ids=ODD_BACK)
async def test_an_answer_that_is_none_is_refused(door: Door, more: dict[str, str], words: str) -> None:
    said = await refused(door, {**await door.leave(), **more}, 401)
    assert words in said
    assert "<script>" not in said


async def test_logging_in_is_bounded(door: Door) -> None:
    statuses = [(await door.go("/oidc/login")).status for _ in range(31)]
    assert statuses == [303] * 30 + [429]


# ---- tokens that do not hold -----------------------------------------------------------------------------------------

WRONG_CLAIMS = {
    "wrong-audience": {"aud": "another"}, "no-audience": {"aud": None}, "audiences-without-us": {"aud": ["a", "b"]},
    "for-several-by-another": {"aud": ["fallow", "other"], "azp": "other"},
    "for-several-by-nobody": {"aud": ["fallow", "other"]}, "by-another-client": {"azp": "other"},
    "wrong-issuer": {"iss": "https://evil.example"}, "no-issuer": {"iss": None},
    "expired": {"exp": 1}, "never-ends": {"exp": None}, "ends-at-infinity": {"exp": float("inf")},
    "ends-in-words": {"exp": "tomorrow"}, "from-the-future": {"iat": 9_999_999_999}, "no-beginning": {"iat": None},
    "not-yet": {"nbf": 9_999_999_999}, "another-nonce": {"nonce": "x"}, "no-nonce": {"nonce": None},
    "nonce-is-a-list": {"nonce": ["x"]}, "nobody": {"sub": None}, "nobody-at-all": {"sub": ""}, "a-number": {"sub": 7},
}


@pytest.mark.parametrize("claims", WRONG_CLAIMS.values(), ids=WRONG_CLAIMS)
async def test_a_token_with_wrong_claims_is_refused(door: Door, claims: dict[str, Any]) -> None:
    door.provider.claims.update(claims)
    words = await refused(door, await door.leave(), 401)
    assert "does not hold" in words


def of_another_key(door: Door) -> Any:
    key = jwk.ECKey.generate_key("P-256", {"kid": door.provider.key.kid})
    return lambda claims: jwt.encode({"alg": "ES256", "kid": key.kid}, claims, key)


def by_a_shared_secret(door: Door) -> Any:
    """The public key, or the client's secret, as a password: both are known to others."""
    key = jwk.OctKey.import_key(msgspec.json.encode(door.provider.key.as_dict(private=False)))
    return lambda claims: jwt.encode({"alg": "HS256", "kid": door.provider.key.kid}, claims, key)


def changed(door: Door) -> Any:
    def sign(claims: dict[str, Any]) -> str:
        head, _, signature = door.provider.sign_well(claims).split(".")
        other = base64.urlsafe_b64encode(msgspec.json.encode({**claims, "sub": "root"})).rstrip(b"=").decode()
        return f"{head}.{other}.{signature}"

    return sign


FORGED = {
    "alg-none": lambda door: providers.unsigned, "another-key": of_another_key, "shared-secret": by_a_shared_secret,
    "changed": changed, "garbage": lambda door: lambda claims: "a.b.c", "empty": lambda door: lambda claims: "",
    "unknown-key": lambda door: lambda claims: jwt.encode({"alg": "ES256", "kid": "x"}, claims, door.provider.key),
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
async def test_a_token_that_the_provider_did_not_sign_is_refused(door: Door, forge: Any) -> None:
    door.provider.sign = forge(door)
    assert "does not hold" in await refused(door, await door.leave(), 401)


@pytest.mark.parametrize("off", [-59, 59])
async def test_clocks_may_differ_by_a_minute(door: Door, off: int) -> None:
    door.provider.now = lambda: door.scene.now + off
    door.provider.claims["exp"] = int(door.scene.now) + min(off, 0)
    assert (await door.log_in()).status == 303


@pytest.mark.parametrize("off", [-61, 61])
async def test_and_by_no_more(door: Door, off: int) -> None:
    door.provider.now = lambda: door.scene.now + off
    door.provider.claims["exp"] = int(door.scene.now) + off
    await refused(door, await door.leave(), 401)


async def test_a_provider_changes_its_keys_and_people_log_in_at_once(door: Door) -> None:
    await door.log_in()
    door.scene.ticks += 1
    for name in ("second", "first"):  # a new name; an old name for a new key
        door.provider.change_key(name)
        assert (await door.log_in()).status == 303
        door.scene.ticks += 1
    assert door.provider.asked.count("keys") == 3


async def test_unknown_keys_make_us_ask_at_most_once_a_second(door: Door) -> None:
    await door.log_in()
    door.provider.sign = FORGED["unknown-key"](door)
    for _ in range(5):
        await door.go("/oidc/callback", **await door.leave())
    assert door.provider.asked.count("keys") == 1


# ---- who it is -------------------------------------------------------------------------------------------------------

WHO = {
    "subject": (ClaimNames(), {}, "{issuer}#ada"), "no-prefix": (PLAIN, {}, "ada"),
    "prefix": (ClaimNames(user_prefix="oidc:"), {}, "oidc:ada"),
    "email": (ClaimNames(user="email"), {"email": "ada@example.com", "email_verified": True}, "ada@example.com"),
    "login": (ClaimNames(user="preferred_username", user_prefix="-"), {"preferred_username": "lovelace"}, "lovelace"),
}


@pytest.mark.parametrize(("names_of", "claims", "name"), WHO.values(), ids=WHO)
async def test_who_it_is_is_in_a_claim(names_of: ClaimNames, claims: Any, name: str) -> None:
    async with open_door(names_of) as door:
        door.provider.claims.update(claims)
        await door.log_in()
        assert await door.who() == name.format(issuer=door.provider.url)


NOBODY = {
    "claim-not-there": (ClaimNames(user="upn"), {}, "the claim &#x27;upn&#x27;"),
    "email-not-verified": (ClaimNames(user="email"), {"email": "root@example.com"}, "does not vouch"),
    "email-said-to-be-false": (
        ClaimNames(user="email"), {"email": "a@b.c", "email_verified": "true"}, "does not vouch",
    ),
    "kubernetes-itself": (PLAIN, {"sub": "system:admin"}, "none that people have"),
    "endless": (PLAIN, {"sub": "x" * 300}, "none that people have"),
    "not-printable": (PLAIN, {"sub": "a\x1b[2J"}, "none that people have"),
}


@pytest.mark.parametrize(("names_of", "claims", "words"), NOBODY.values(), ids=NOBODY)
async def test_claims_that_name_nobody_let_nobody_in(names_of: ClaimNames, claims: Any, words: str) -> None:
    async with open_door(names_of) as door:
        door.provider.claims.update(claims)
        assert words in await refused(door, await door.leave(), 401)


async def test_groups_are_named_with_their_prefix_and_none_of_kubernetes_own(door: Door) -> None:
    claims = {"groups": ["team", "system:masters", "", 7]}
    assert ClaimNames(groups_prefix="oidc:").read_groups({"groups": "one"}) == ("oidc:one",)
    door.provider.claims.update(claims)
    landed = await door.log_in()
    session = door.scene.gate.seals.read(landed.cookies[sessions.SESSION].value, door.scene.now)
    assert session is not None
    assert session.groups == ("team", "system:authenticated")


async def test_too_many_groups_for_a_cookie_are_said(door: Door) -> None:
    door.provider.claims["groups"] = [f"a-group-with-a-long-name-{number}" for number in range(200)]
    assert "only those that roles here name" in await refused(door, await door.leave(), 400)


# ---- a provider that is away, or not who it should be ----------------------------------------------------------------


async def test_a_provider_that_is_down_is_said_and_nobody_is_half_logged_in(door: Door) -> None:
    back = await door.leave()
    door.provider.is_down = True
    assert "answered 500" in await refused(door, back, 503)
    door.scene.ticks += 11 * MINUTE
    assert (await door.go("/oidc/login")).status == 503
    unknown = await door.scene.ask("GET", "/api/v1/freeze")
    assert (unknown.status, unknown.code) == (503, "AuthUnavailable")
    asked = len(door.provider.asked)
    await door.scene.ask("GET", "/api/v1/freeze")
    assert len(door.provider.asked) == asked  # who is down is not flooded
    door.provider.is_down = False
    door.scene.ticks += 6
    assert (await door.log_in()).status == 303


async def test_who_is_logged_in_goes_on_while_the_provider_is_away(door: Door) -> None:
    await door.log_in()
    door.provider.is_down = True
    door.scene.ticks += 11 * MINUTE
    assert (await door.scene.press("POST", "/api/v1/acks", LLM)).status == 201


async def test_nobody_listens_there(door: Door) -> None:
    await door.provider.stop()
    page = await door.go("/oidc/login")
    assert (page.status, "connection refused" in page.text) == (503, True)


ODD_DESCRIPTIONS = {
    "another-issuer": {"issuer": "https://evil.example"}, "no-https": {"token_endpoint": "http://evil.example/token"},
    "no-address": {"jwks_uri": "x"}, "a-number": {"authorization_endpoint": 7},
    "a-script": {"authorization_endpoint": "javascript:alert(1)"},
}


@pytest.mark.parametrize("odd", ODD_DESCRIPTIONS.values(), ids=ODD_DESCRIPTIONS)
async def test_a_provider_that_is_not_who_it_should_be_is_not_asked(door: Door, odd: dict[str, Any]) -> None:
    door.provider.described = odd
    page = await door.go("/oidc/login")
    assert (page.status, page.to) == (503, "")


async def test_no_code_token_or_secret_is_ever_logged(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    signed: list[str] = []
    well = door.provider.sign_well
    door.provider.sign = lambda claims: signed.append(well(claims)) or signed[-1]  # type: ignore[func-returns-value]
    await door.log_in()
    back = await door.leave()
    door.provider.codes.clear()
    await refused_quietly(door, back)
    said = caplog.text
    ours = "\n".join(each.getMessage() for each in caplog.records if each.name.startswith("fallow"))
    assert "logged in" in ours
    for hidden in (*signed, back["code"], back["state"], providers.SECRET, parse.quote_plus(providers.SECRET)):
        assert hidden not in ours, said


async def refused_quietly(door: Door, back: dict[str, str]) -> None:
    assert (await door.go("/oidc/callback", **back)).status == 401


def test_a_client_shows_its_secret_nowhere() -> None:
    assert "s3cret" not in repr(OidcClient(issuer="https://x", client_id="c", secret=Secret("s3cret")))


async def test_a_certificate_authority_that_cannot_be_read_is_said() -> None:
    client = OidcClient(issuer="https://127.0.0.1:1", client_id="c", ca_file="/nowhere")
    async with oidc.Provider(client, {}) as provider:
        with pytest.raises(errors.Misconfigured, match="for the login provider cannot be read"):
            await provider.check(0.0)
