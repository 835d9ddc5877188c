"""Asking a daemon by its address: an answer that cannot be relied upon is none, and is said in one sentence; what
proves who somebody is goes nowhere unasked."""

import contextlib
import json

import pytest
from aiohttp import test_utils, web
from tests.unit.doors.api.serving import serving
from tests.unit.doors.api.test_reads import MANDATE, make_world
from tests.unit.doors.cli import test_verbs
from tests.unit.observe.cluster import pretend

from fallow import __version__, names
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config
from fallow.doors.cli import asking
from fallow.model import usage
from fallow.wiring import asking as wired

ask, type_in = test_verbs.ask, test_verbs.type_in


@pytest.fixture
async def server():
    async with pretend.Server("coordination.k8s.io/v1 leases Lease") as running:
        yield running


class PretendDaemon:
    """Answers everything with `about`, whatever that is."""

    def __init__(self):
        self.about = {
            "version": __version__, "now": "2026-11-15T12:00:00Z", "asOf": None, "intervalSeconds": 60,
            "mode": "acting",
        }
        self.asked = []
        self.status, self.url = 200, ""

    async def answer(self, request):
        self.asked.append(request)
        body = self.about if isinstance(self.about, str) else json.dumps(self.about)
        return web.Response(text=body, status=self.status, content_type="application/json")


@pytest.fixture
async def daemon():
    made = PretendDaemon()
    app = web.Application()
    app.router.add_get("/{path:.*}", made.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


OLD = {"asOf": "2020-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("says", "status", "because"),
    [
        ({"version": "0.0.9"}, 200, f"is of version 0.0.9, and this is {__version__}"),
        ({}, 200, "has not looked yet"), ({"now": "noon"}, 200, "does not say what time it is"),
        (OLD, 200, "ago, and it looks every 1m"),
        ({"asOf": "2026-11-15T13:00:00Z"}, 200, "says that it looked at a time that is yet to come"),
        ("<html>", 200, "its answer cannot be read"), ('{"version": 3}', 200, "its answer cannot be read"),
        ("[" * 100_000, 200, "its answer cannot be read"),
        ('{"error": {"code": "X", "message": "no, \\u001b[2Jthanks"}}', 403, "may not be asked: no, "),
        ("gone", 404, "serves no API (its --dashboard-addr)"), ("oh", 500, "does not answer: "),
        ('{"error": {"code": "X", "message": "who?"}}', 401, "does not know you: who?"),
    ],
    ids=lambda value: str(value)[:30],
)
@pytest.mark.parametrize("words", ["status", "acks -A"])
async def test_what_cannot_be_relied_upon_is_said_and_looked_for(server, ask, daemon, says, status, because, words):
    server.put_all(pretend.deployed("llm"))
    daemon.about = says if isinstance(says, str) else {**daemon.about, **says}
    daemon.status = status
    done = await ask(*words.split(), "--daemon-url", daemon.url)
    begins = f"A look of its own: the daemon at {daemon.url} "
    said = [line for line in done.output.splitlines() if line.startswith(begins)]
    assert len(said) == 1, done.output
    assert because in said[0]
    assert "\x1b[2J" not in done.output
    assert ("cannot tell" if words == "status" else "nothing is acknowledged") in done.output


async def test_a_daemon_that_is_not_there_is_one_sentence(server, ask):
    server.put_all(pretend.deployed("llm"))
    done = await ask("acks", "-A", "--daemon-url", "http://127.0.0.1:1")
    assert done.exit_code == 0
    assert "the daemon at http://127.0.0.1:1 does not answer: " in done.output.splitlines()[0]


async def test_flags_of_judging_are_judged_by_here_and_look_asks_nobody(server, ask, daemon):
    server.put_all(pretend.deployed("llm"))
    by_hand = "A look of its own: the daemon would not judge by --duration"
    for words, says in ((("--duration", "10"), by_hand), (("--look",), "By ")):
        done = await ask("status", *words, "--daemon-url", daemon.url)
        assert done.output.startswith(says), done.output
    assert daemon.asked == []


@pytest.mark.parametrize("verb", ["paused", "acks"])
async def test_nothing_of_a_namespace_may_be_no_such_namespace_and_is_looked_for(server, ask, daemon, verb):
    server.put_all(pretend.deployed("llm"))
    daemon.about |= {"asOf": daemon.about["now"], "paused": [], "acks": [], "notSeen": []}
    done = await ask(verb, "-n", "nowhere", "--daemon-url", daemon.url)
    assert "cannot tell: it has nothing of namespace nowhere" in done.output
    assert done.exit_code == 1
    assert "Error: there is no namespace nowhere" in done.output
    everywhere = await ask(verb, "-A", "--daemon-url", daemon.url)
    assert everywhere.exit_code == 0
    assert everywhere.output.startswith(f"As the daemon at {daemon.url} sees it now")


async def test_machines_get_their_answer_alone_and_the_reason_beside_it(server, ask, daemon):
    server.put_all(pretend.deployed("llm"))
    done = await ask("acks", "-A", "-o", "json", "--daemon-url", daemon.url)
    assert json.loads(done.stdout) == []
    assert done.stderr.startswith("A look of its own: the daemon at ")
    plain = await ask("acks", "-A", "-o", "json")  # there simply is none
    assert (json.loads(plain.stdout), plain.stderr) == ([], "")


@pytest.mark.parametrize(
    ("words", "says"),
    [(["--daemon-url", "localhost:8080"], "--daemon-url: localhost:8080 is no address"),
     (["--daemon-auth", "much"], "--daemon-auth")],
    ids=str,
)
def test_what_is_no_address_is_refused_before_anything_is_asked(words, says):
    done = type_in("acks", *words, KUBECONFIG="/nonexistent/kubeconfig")
    assert (done.exit_code, says in done.output) == (2, True), done.output


@pytest.mark.parametrize(
    ("url", "safe"),
    [
        ("https://fallow.example.com", True), ("http://localhost:8080", True), ("http://127.0.0.1:1", True),
        ("http://[::1]:8080", True), ("http://fallow.example.com", False), ("http://10.0.0.1", False),
        ("http://localhost.example.com", False), ("http://127.0.0.1.example.com", False),
    ],
)
def test_a_token_goes_over_verified_tls_or_stays_on_this_machine(url, safe):
    assert wired._is_safe(url) is safe


def test_the_first_line_says_whose_answer_it_is_and_how_old():
    about = asking.DaemonAbout(
        version="1", now="2026-11-15T12:00:40Z", as_of="2026-11-15T12:00:00Z", interval_seconds=180, mode="dry-run",
        watches=("a", "b"),
    )
    door = wired.DaemonDoor(where="the daemon in ml", namespace="ml", own_namespace="x", api=None)
    said = asking.Daemon(door, about).say()
    assert said == "As the daemon in ml saw it 40s ago (it looks every 3m, in dry-run; only a, b; --look looks anew)"
    assert asking.Daemon(door, about).say(may_look=False).endswith("in dry-run; only a, b)")


@pytest.mark.parametrize("interval", [1e308, 0, -1])
def test_by_an_interval_that_nobody_has_nothing_counts_as_new(interval):
    about = {"version": "1", "now": "", "asOf": None, "intervalSeconds": interval, "mode": "acting"}
    with pytest.raises(errors.BadAnswer, match="its answer cannot be read"):
        asking.decode(json.dumps(about).encode(), asking.DaemonAbout)


class PretendProxy:
    """An API server that has nothing but Services of the daemon's name, each answering with a status; `shown`: the
    namespaces whose Service was handed a token."""

    def __init__(self, **status):
        self.status, self.shown = status, []

    async def answer(self, request):
        namespace = request.path.split("/")[4]
        if names.RELAYED_AUTHORIZATION in request.headers:
            self.shown.append(namespace)
        if namespace not in self.status:
            return web.json_response({"kind": "Status", "status": "Failure", "reason": "NotFound"}, status=404)
        if self.status[namespace] == "forbidden":
            return web.json_response({"kind": "Status", "status": "Failure", "reason": "Forbidden"}, status=403)
        about = {"version": __version__, "now": "2026-11-15T12:00:00Z", "asOf": "2026-11-15T12:00:00Z",
                 "intervalSeconds": 60, "mode": "acting"}
        return web.json_response(about, status=self.status[namespace])


def open_api(server):
    return kube.Api(config.Access(server=str(server.make_url("")).rstrip("/"), context="test"))


@contextlib.asynccontextmanager
async def meeting(proxy, headers):
    """What is found by somebody whose context is in `team`."""
    app = web.Application()
    app.router.add_get("/{path:.*}", proxy.answer)
    async with test_utils.TestServer(app) as server, open_api(server) as api:
        places = (*names.SYSTEM_NAMESPACES, "team")
        yield await asking._find([wired._behind(api, place, "team", headers) for place in places])


TOKEN = {names.RELAYED_AUTHORIZATION: "Bearer s3cret"}


@pytest.mark.parametrize("status", [401, 403, 500, 404], ids=str)
async def test_a_tenants_service_does_not_speak_for_a_daemon_that_is_installed(status):
    async with meeting(PretendProxy(**{"gpu-pruner-system": status, "team": 200}), {}) as found:
        assert isinstance(found, asking.Untold), found
        assert found.because.startswith("the daemon in gpu-pruner-system ")


async def test_a_token_is_not_handed_to_a_tenants_service_where_a_daemon_is_installed():
    proxy = PretendProxy(**{"gpu-pruner-system": 200, "team": 200})
    async with meeting(proxy, TOKEN) as found:
        assert found.door.namespace == "gpu-pruner-system"
    assert "team" not in proxy.shown


@pytest.mark.parametrize("others", [{}, {"gpu-pruner-system": "forbidden", "fallow-system": "forbidden"}], ids=str)
async def test_who_has_a_daemon_of_their_own_and_no_other_is_answered_by_it(others):
    async with meeting(PretendProxy(team=200, **others), {}) as found:
        assert found.door.namespace == "team"


async def test_of_two_that_are_installed_the_one_that_can_be_relied_upon_answers():
    async with meeting(PretendProxy(**{"gpu-pruner-system": 500, "fallow-system": 200, "team": 200}), {}) as found:
        assert found.door.namespace == "fallow-system"


@pytest.mark.parametrize("words", ["status", "idle", "why Deployment/quiet -n ml", "status -o json"])
async def test_a_daemon_without_measurements_has_decided_nothing_and_that_is_the_exit_code(server, ask, words):
    world = make_world()
    world.trouble = usage.SourceTrouble("SourceError", "Prometheus is away")
    async with serving(world, MANDATE) as there:
        done = await ask(*words.split(), "--daemon-url", there.url)
    assert done.exit_code == 1
    assert "no decision possible: Prometheus is away. What helps: " in done.stderr
