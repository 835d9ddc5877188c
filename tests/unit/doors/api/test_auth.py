"""Who asks, what they may, and whether it is their own doing: by tokens, sessions, proxies and addresses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from http import cookies
from typing import Any

import pytest
import pytest_asyncio
from starlette.requests import Request
from tests.unit.doors.api.scene import Scene, open_scene

from fallow import names
from fallow.doors.api import auth, limits, sessions
from fallow.model import cluster
from fallow.model.secret import Secret
from fallow.model.units import HOUR
from fallow.settings.serving import AuthMode

LLM: dict[str, Any] = {"namespace": "ml", "kind": "Deployment", "name": "llm", "hours": 4}
ACKS = "/api/v1/acks"


@pytest_asyncio.fixture
async def scene() -> AsyncIterator[Scene]:
    async with open_scene("kube") as running:
        yield running


def reading(scene: Scene, path: str, token: str = "") -> Request:
    """A read as the reading half of the API gets it."""
    headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
    return Request({
        "type": "http", "method": "GET", "path": path, "query_string": b"", "headers": headers, "scheme": "http",
        "server": ("127.0.0.1", 1), "client": ("127.0.0.1", 2),
    })


# ---- kube ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["", "of-nobody", "x" * 20_000])
async def test_who_is_not_known_is_told_so(scene: Scene, token: str) -> None:
    answer = await scene.ask("POST", ACKS, LLM, token=token)
    assert (answer.status, answer.code) == (401, "Unauthorized")
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert token == "" or token not in answer.message


@pytest.mark.parametrize("who", ["bob", "eve"])
async def test_who_may_not_is_told_which_right_lacks(scene: Scene, who: str) -> None:
    answer = await scene.ask("POST", ACKS, LLM, token=f"of-{who}")
    assert (answer.status, answer.code) == (403, "Forbidden")
    assert answer.body["missing"] == "patch on deployments in ml"
    assert names.ACK_UNTIL not in scene.marks("llm")
    (entry,) = await scene.audited()
    assert (entry.actor, entry.code) == (f"api:{who}", "Forbidden")


async def test_who_may_not_does_not_learn_what_is_there(scene: Scene) -> None:
    there, not_there = [await scene.ask("POST", ACKS, {**LLM, "name": name}, token="of-eve") for name in ("llm", "x")]
    assert (there.status, there.body["missing"]) == (not_there.status, not_there.body["missing"])


async def test_to_freeze_needs_its_own_right(scene: Scene) -> None:
    answer = await scene.ask("POST", "/api/v1/freeze", {"forSeconds": 60}, token="of-bob")
    assert (answer.status, answer.body["missing"]) == (403, "update on idlepolicies")


READS = {
    "one-by-ada": ("of-ada", "/api/v1/workloads/ml/Deployment/llm/explain", 200),
    "one-by-bob": ("of-bob", "/api/v1/workloads/ml/Deployment/llm", 200),
    "one-by-eve": ("of-eve", "/api/v1/workloads/ml/Deployment/llm", 403),
    "all-by-bob": ("of-bob", "/api/v1/workloads", 200), "all-by-eve": ("of-eve", "/api/v1/overview", 403),
    "by-nobody": ("", "/api/v1/overview", 401), "other-kind-by-bob": ("of-bob", "/api/v1/workloads/ml/Pod/llm-0", 403),
}


@pytest.mark.parametrize(("token", "path", "status"), READS.values(), ids=READS)
async def test_who_may_read_what(scene: Scene, token: str, path: str, status: int) -> None:
    if status == 200:
        await scene.rights.guard(reading(scene, path, token))
        return
    with pytest.raises(auth.Denied) as refused:
        await scene.rights.guard(reading(scene, path, token))
    assert refused.value.status_code == status


async def test_with_addresses_everybody_reads_on_this_machine() -> None:
    async with open_scene("email") as scene:
        await scene.rights.guard(reading(scene, "/api/v1/overview"))


@pytest.mark.parametrize(("peer", "host"), [
    ("10.0.0.7", "localhost"), ("127.0.0.1", "fallow.example"), ("::ffff:10.0.0.7", "127.0.0.1"), ("", "localhost"),
])
async def test_and_nobody_from_elsewhere_nor_by_another_name(peer: str, host: str) -> None:
    async with open_scene("email") as scene:
        request = reading(scene, "/api/v1/overview")
        request.scope["client"] = (peer, 1)
        request.scope["headers"] = [(b"host", host.encode())]
        for ask in (scene.rights.guard, scene.gate.identify, scene.gate.look):
            with pytest.raises(auth.Denied) as refused:
                await ask(Request(request.scope))
            assert refused.value.status_code == 403


async def test_a_page_knows_before_the_press_what_it_may(scene: Scene) -> None:
    (workload,) = [each for each in scene.seen.workloads({}) if each.ref.name == "llm"]
    by_bob = await scene.rights.may_act(auth.Person("bob", (), is_verified=True), workload)
    assert (by_bob.pause.allowed, by_bob.pause.missing) == (False, "patch on deployments in ml")
    assert by_bob.keep.command == "fallow ack Deployment/llm -n ml --hours 4"
    by_ada = await scene.rights.may_act(auth.Person("ada", (), is_verified=True), workload)
    assert (by_ada.resume.allowed, by_ada.resume.missing) == (True, None)
    async with open_scene("email") as open_door:
        anybody = await open_door.rights.may_act(auth.Person(), workload)
    assert (anybody.keep.allowed, anybody.pause.allowed) == (True, False)


async def test_a_token_is_reviewed_once_a_minute(scene: Scene) -> None:
    assert (await scene.ask("GET", "/api/v1/me", token="of-ada")).body["user"] == "ada"
    scene.kubernetes.go_down()
    scene.ticks += 29
    assert (await scene.ask("GET", "/api/v1/me", token="of-ada")).body["mayFreeze"]["allowed"] is True
    scene.ticks += 32
    assert (await scene.ask("GET", "/api/v1/me", token="of-ada")).code == "AuthUnavailable"


async def test_guessing_tokens_ends_soon(scene: Scene) -> None:
    found = [(await scene.ask("GET", "/api/v1/freeze", token=f"guess-{at}")).status for at in range(31)]
    assert found == [401] * 30 + [429]


# ---- sessions --------------------------------------------------------------------------------------------------------


async def log_in(scene: Scene, token: str = "of-ada", **headers: str) -> Any:
    own = {"Origin": scene.origin, **headers}
    return await scene.ask("POST", "/api/v1/login", {"token": token}, headers=own)


async def test_a_session_is_begun_with_a_token_and_ended(scene: Scene) -> None:
    answer = await log_in(scene)
    assert (answer.status, answer.body) == (200, {"user": "ada"})
    (cookie,) = cookies.SimpleCookie(answer.headers["Set-Cookie"]).values()
    assert (cookie["httponly"], cookie["samesite"].lower(), cookie["max-age"]) == (True, "strict", "28800")
    assert (await scene.press("POST", ACKS, LLM)).status == 201
    assert scene.marks("llm")[names.ACK_BY] == "api:ada"
    assert (await scene.press("POST", "/api/v1/logout")).status == 204
    assert (await scene.press("POST", ACKS, LLM)).status == 401


async def test_strangers_who_log_out_do_not_bring_back_a_session_that_ended(scene: Scene) -> None:
    scene.gate._ended = limits.Remembered(8 * HOUR, most=3)
    cookie = (await log_in(scene)).headers["Set-Cookie"].partition(";")[0]
    assert (await scene.press("POST", "/api/v1/logout")).status == 204
    for number in range(4):
        forged = f"{sessions.VISIT}=mine; {sessions.SESSION}=forged-{number}"
        assert (await scene.press("POST", "/api/v1/logout", Cookie=forged)).status == 204
    scene.browser.cookie_jar.clear()
    assert (await scene.ask("GET", "/api/v1/me", headers={"Cookie": cookie})).body["user"] is None


@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "http://[x]"])
async def test_an_origin_that_is_no_address_is_refused_in_words(scene: Scene, origin: str) -> None:
    assert (await log_in(scene, Origin=origin)).code == "BadOrigin"


async def test_a_session_lasts_eight_hours(scene: Scene) -> None:
    await log_in(scene)
    scene.now += 8 * HOUR - 1
    assert (await scene.ask("GET", "/api/v1/me")).body["user"] == "ada"
    scene.now += 1
    assert (await scene.ask("GET", "/api/v1/me")).body["user"] is None


async def test_a_login_needs_a_token_that_somebody_has(scene: Scene) -> None:
    for token in ("", "of-nobody"):
        assert (await log_in(scene, token)).code == "Unauthorized"
    assert (await log_in(scene, Origin="https://evil.example")).code == "BadOrigin"
    async with open_scene("email") as open_door:
        assert (await log_in(open_door)).status == 404


async def submit(scene: Scene, **form: str) -> tuple[int, str, str]:
    """The form of /login; status, where it leads, the page."""
    async with scene.browser.post(
        f"{scene.origin}/login", data=form, headers={"Origin": scene.origin}, allow_redirects=False
    ) as got:
        return got.status, got.headers.get("Location", ""), await got.text()


async def test_a_page_without_a_script_takes_a_token(scene: Scene) -> None:
    async with scene.browser.get(f"{scene.origin}/login?then=/w/%22%3E%3Cb%3E") as got:
        page = await got.text()
    assert 'value="/w/&quot;&gt;&lt;b&gt;"' in page
    status, _, page = await submit(scene, token="of-nobody")
    assert (status, "role=alert" in page, "of-nobody" in page) == (401, True, False)
    assert (await submit(scene, token="of-ada", then="//evil.example"))[:2] == (303, "/")
    assert (await submit(scene, token="of-ada", then="/w/ml/Deployment/llm"))[:2] == (303, "/w/ml/Deployment/llm")
    assert (await scene.ask("GET", "/api/v1/me")).body["user"] == "ada"
    plain = await scene.ask("POST", "/login", b"token=of-ada", headers={"Origin": scene.origin})
    assert plain.status == 415
    foreign = {"Origin": "https://evil.example", "Content-Type": "application/x-www-form-urlencoded"}
    assert (await scene.ask("POST", "/login", b"token=of-ada", headers=foreign)).status == 403


@pytest.mark.parametrize("mode", ["email", "proxy"])
async def test_where_nobody_logs_in_the_page_says_so(mode: AuthMode) -> None:
    async with open_scene(mode) as scene:
        assert f"the mode is {mode}" in (await scene.ask("GET", "/login")).body
        assert (await submit(scene, token="of-ada"))[0] == 404


async def test_a_cookie_is_for_https_only_where_people_come_by_https() -> None:
    async with open_scene("kube", public_url="https://fallow.example") as scene:
        answer = await scene.ask("GET", "/api/v1/me")
        assert "Secure" in answer.headers["Set-Cookie"]


FORGED = {
    "another-key": lambda cookie: sessions.Seals(Secret(b"x" * 32)).write(sessions.Session("ada", (), 9e12)),
    "cut": lambda cookie: cookie[:-1], "no-signature": lambda cookie: cookie.partition(".")[0],
    "another-body": lambda cookie: "eyJ9." + cookie.partition(".")[2], "garbage": lambda cookie: "ä.ö",
    "empty": lambda cookie: "", "endless": lambda cookie: "x" * 10_000,
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
def test_a_forged_session_is_none(forge: Any) -> None:
    seals = sessions.Seals(Secret(b"k" * 32))
    cookie = seals.write(sessions.Session("ada", ("team",), 100.0))
    assert seals.read(cookie, 99.0) == sessions.Session("ada", ("team",), 100.0)
    assert seals.read(forge(cookie), 99.0) is None


# ---- their own doing -------------------------------------------------------------------------------------------------

FOREIGN = {
    "no-token": ({"X-Fallow-CSRF": ""}, "CSRF"), "wrong-token": ({"X-Fallow-CSRF": "0" * 64}, "CSRF"),
    "foreign-origin": ({"Origin": "https://evil.example"}, "BadOrigin"), "no-origin": ({"Origin": ""}, "BadOrigin"),
    "null-origin": ({"Origin": "null"}, "BadOrigin"),
}


@pytest.mark.parametrize(("headers", "code"), FOREIGN.values(), ids=FOREIGN)
@pytest.mark.parametrize("mode", ["kube", "email"])
async def test_what_another_page_makes_a_browser_send_is_refused(mode: AuthMode, headers: Any, code: str) -> None:
    async with open_scene(mode) as scene:
        if mode == "kube":
            await log_in(scene)
        body = LLM if mode == "kube" else {**LLM, "email": "ada@example.com"}
        answer = await scene.press("POST", ACKS, body, **headers)
        assert (answer.status, answer.code) == (403, code)
        assert names.ACK_UNTIL not in scene.marks("llm")


async def test_a_token_of_one_browser_is_none_in_another(scene: Scene) -> None:
    csrf = (await scene.ask("GET", "/api/v1/me")).body["csrf"]
    scene.browser.cookie_jar.clear()
    await log_in(scene)
    own = {"Origin": scene.origin, "X-Fallow-CSRF": csrf}
    assert (await scene.ask("POST", ACKS, LLM, headers=own)).code == "CSRF"


async def test_the_public_address_is_an_origin_of_ours() -> None:
    async with open_scene("email", public_url="https://fallow.example") as scene:
        body = {**LLM, "email": "ada@example.com"}
        scene.browser.cookie_jar.clear()
        me = await scene.ask("GET", "/api/v1/me")
        visit = cookies.SimpleCookie(me.headers["Set-Cookie"])[sessions.VISIT].value
        own = {"Origin": "https://fallow.example", "X-Fallow-CSRF": me.body["csrf"], "Cookie": f"fallow_visit={visit}"}
        assert (await scene.ask("POST", ACKS, body, headers=own)).status == 201


# ---- proxy -----------------------------------------------------------------------------------------------------------

AS_ADA = {"X-Forwarded-User": "ada", "X-Forwarded-Groups": "team, system:masters"}


async def test_a_trusted_proxy_says_who_it_is() -> None:
    async with open_scene("proxy", trusted=["127.0.0.0/8"]) as scene:
        assert (await scene.press("POST", ACKS, LLM, **AS_ADA)).status == 201
        assert scene.marks("llm")[names.ACK_BY] == "api:ada"
        eve = await scene.press("POST", ACKS, LLM, **{**AS_ADA, "X-Forwarded-User": "eve"})
        assert (eve.status, eve.code) == (403, "Forbidden")


@pytest.mark.parametrize("user", ["system:admin", "", "a\tb", "x" * 300])
async def test_a_proxy_cannot_speak_for_kubernetes_itself(user: str) -> None:
    async with open_scene("proxy", trusted=["127.0.0.1/32"]) as scene:
        answer = await scene.press("POST", ACKS, LLM, **{"X-Forwarded-User": user})
        assert answer.status == 401


def test_groups_of_kubernetes_itself_are_not_taken_from_a_proxy() -> None:
    assert not auth.is_name("system:masters")


async def test_from_elsewhere_headers_are_not_looked_at() -> None:
    async with open_scene("proxy", trusted=["10.0.0.0/8"]) as scene:
        more = {**AS_ADA, "X-Forwarded-For": "10.0.0.1", "Forwarded": "for=10.0.0.1"}
        answer = await scene.press("POST", ACKS, LLM, **more)
        assert (answer.status, answer.code) == (401, "Unauthorized")


# ---- bounds ----------------------------------------------------------------------------------------------------------


def test_memory_of_addresses_is_bounded() -> None:
    limiter = limits.Limiter(2, 60.0, keys=100)
    for at in range(1_000):
        limiter.take(f"10.0.{at}", 0.0)
    assert len(limiter._times) == 100
    assert [limiter.take("a", 0.0), limiter.take("a", 1.0), limiter.take("a", 2.0)] == [True, True, False]
    assert limiter.take("a", 60.0)


@pytest.mark.parametrize(
    ("address", "counted"),
    [("10.0.0.1", "10.0.0.1"), ("2001:db8::1:2", "2001:db8::/64"), ("::ffff:10.0.0.1", "10.0.0.1"), ("x", "x")],
)
def test_a_household_is_counted_once(address: str, counted: str) -> None:
    assert limits.neighbourhood(address) == counted


async def test_what_somebody_may_do_with_the_rows_of_a_list_is_asked_by_kind_and_namespace(scene: Scene) -> None:
    """Not by row: a thousand of them are a handful of questions to the API server."""

    def named(namespace: str, count: int = 100) -> list[cluster.Ref]:
        return [cluster.Ref("apps", "v1", "Deployment", namespace, f"d-{one}", f"u-{one}") for one in range(count)]

    ada, bob = (auth.Person(name, (), is_verified=True) for name in ("ada", "bob"))
    for person, allowed in ((ada, True), (bob, False)):
        found = await scene.rights.may_rows(person, [*named("ml"), *named("web")])
        assert [(one.namespace, one.api_version, one.kind) for one in found] == [
            ("ml", "apps/v1", "Deployment"), ("web", "apps/v1", "Deployment")]
        assert {(one.keep, one.pause, one.resume) for one in found} == {(allowed,) * 3}
        assert found[0].missing == (None if allowed else "patch on deployments in ml")
    scene.kubernetes.go_down()
    assert [one.namespace for one in await scene.rights.may_rows(bob, [*named("ml"), *named("new")])] == ["ml"]
    assert [one.pause for one in await scene.rights.may_rows(ada, named("new"))] == [True]  # it may do so everywhere
    async with open_scene("email") as open_door:
        found = await open_door.rights.may_rows(auth.Person(), named("ml", 1))
        assert [(one.keep, one.pause, one.resume) for one in found] == [(True, False, False)]
