"""`fallow history`, `gitops-snippet` and `query` as they are typed; the other end is a small API server that only
reads, a daemon that says what it is told to, a Prometheus that answers one vector."""

import csv
import json

import pytest
import yaml
from aiohttp import web
from tests.unit.doors.cli import test_asking, test_verbs
from tests.unit.observe.cluster import pretend

from fallow import names
from fallow.doors.answers import gitops
from fallow.doors.cli import past
from fallow.model import cluster

ask, type_in, daemon = test_verbs.ask, test_verbs.type_in, test_asking.daemon


@pytest.fixture
async def server():
    kinds = ("coordination.k8s.io/v1 leases Lease", "events.k8s.io/v1 events Event")
    async with pretend.Server(*kinds) as running:
        yield running


def event(name, reason, at, note="why", uid="Deployment-llm", **more):
    regarding = {"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "ml", "name": "llm", "uid": uid}
    said = {"reason": reason, "eventTime": at, "note": note, "regarding": regarding}
    made = pretend.made(name, kind="Event", version="events.k8s.io/v1")
    return {**made, "reportingController": names.REPORTING_CONTROLLER, **said, **more}


DECIDED = {
    "id": 7, "at": "2026-11-15T11:00:00Z", "type": "paused", "gpus": 4, "sentence": "Scaled it to 0", "detail": None,
    "workload": {"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "ml", "name": "llm", "uid": "u"},
    "actor": "fallow", "source": "cycle", "reason": None, "policy": None, "code": None,
}
PAGE = {"revision": 1, "counts": {}}
ELSEWHERE = {**DECIDED, "workload": {**DECIDED["workload"], "namespace": "other", "name": "far"}}


async def test_the_daemons_books_are_read_and_say_whose_they_are(server, ask, daemon):
    daemon.about |= {"asOf": "2026-11-15T11:59:30Z", "items": [DECIDED, ELSEWHERE], "next": None, **PAGE}
    done = await ask("history", "--daemon-url", daemon.url)
    assert done.exit_code == 0, done.output
    first, _, head, row, _, only = done.output.splitlines()
    assert only == "only of namespace ml, and of what is about all; -A shows all namespaces"
    assert "-A shows" not in (await ask("history", "-n", "ml", "--daemon-url", daemon.url)).output
    assert first.startswith(f"As the daemon at {daemon.url} saw it 30s ago (it looks every 1m, acting")
    assert head.split() == ["WHEN", "WHAT", "NAMESPACE", "WORKLOAD", "BY", "WHY"]
    assert row.split()[:5] == ["2026-11-15T11:00:00Z", "paused", "ml", "Deployment/llm", "fallow"]
    every = json.loads((await ask("history", "-A", "-o", "json", "--daemon-url", daemon.url)).stdout)
    assert [each["workload"]["name"] for each in every] == ["llm", "far"]
    one = await ask("history", "Deployment/llm", "--since", "1h", "--daemon-url", daemon.url, "-o", "json")
    assert daemon.asked[-1].path == "/api/v1/workloads/ml/Deployment/llm/history"
    assert len(json.loads(one.stdout)) == 2


async def test_the_newest_comes_first_also_where_it_was_written_down_late(server, ask, daemon):
    late = {**DECIDED, "id": 8, "at": "2026-11-15T10:30:00Z", "type": "resumed"}
    daemon.about |= {"asOf": "2026-11-15T11:59:30Z", "items": [late, DECIDED], "next": None, **PAGE}
    done = await ask("history", "-o", "json", "--daemon-url", daemon.url)
    assert [each["type"] for each in json.loads(done.stdout)] == ["paused", "resumed"]


async def test_without_a_daemon_it_is_what_kubernetes_still_has_and_that_is_said(server, ask, monkeypatch):
    monkeypatch.setattr(past.time, "time", lambda: test_verbs.NOW)
    server.put_all(pretend.deployed("llm"))
    server.put("namespaces", pretend.made("ml", namespace=None, kind="Namespace", version="v1"))
    for each in (
        event("a", "ScaledToZero", "2026-11-15T10:00:00.000000Z", "Scaled it \x1b[2J"),
        event("b", "Resumed", "2026-11-15T09:00:00.000000Z", uid="another"),
        event("c", "IdleDetected", "2026-11-15T10:00:00.000000Z"),
        event("d", "Acknowledged", "not a time"), event("e", "Resumed", "2026-10-15T09:00:00.000000Z"),
        event("f", "Suspended", "2026-11-15T10:00:00.000000Z", reportingController="somebody"),
        event("g", "AckExpired", "2026-11-15T08:00:00Z", series={"lastObservedTime": "2026-11-15T11:00:00Z"}),
    ):
        server.put("events", each)
    done = await ask("history")
    lines = done.output.splitlines()
    assert "only what Kubernetes still has of fallow's Events" in lines[0]
    assert [line.split()[1] for line in lines[3:6]] == ["keepEnded", "paused", "resumed"]
    assert "\x1b[2J" not in done.output
    one = json.loads((await ask("history", "Deployment/llm", "-o", "json")).stdout)
    assert [each["type"] for each in one] == ["keepEnded", "paused"]


@pytest.mark.parametrize("by_daemon", [True, False], ids=["daemon", "events"])
@pytest.mark.parametrize(("space", "code", "says"), [
    ("mll", 1, "there is no namespace mll; did you mean ml?"),
    ("ml", 0, "nothing is written down of namespace ml in 7d"),
])
async def test_of_a_namespace_that_is_not_there_a_history_is_no_success(
    server, ask, daemon, by_daemon, space, code, says
):
    server.put("namespaces", pretend.made("ml", namespace=None, kind="Namespace", version="v1"))
    daemon.about |= {"asOf": "2026-11-15T11:59:30Z", "items": [ELSEWHERE], "next": None, **PAGE}
    done = await ask("history", "-n", space, *(["--daemon-url", daemon.url] if by_daemon else []))
    assert (done.exit_code, says in done.output) == (code, True), done.output


@pytest.mark.parametrize(
    ("words", "says"),
    [("--since soon", "--since"), ("--since 0s", "--since"), ("--since 999d", "180d"), ("--limit 0", "--limit"),
     ("nonsense", "KIND/NAME"), ("Deployment/llm -A", "--all-namespaces")],
)
def test_a_past_that_is_none_is_refused_before_anything_is_asked(words, says):
    done = type_in("history", *words.split(), KUBECONFIG="/nonexistent/kubeconfig")
    assert (done.exit_code, says in done.output.splitlines()[-1]) == (2, True), done.output


# ---- gitops-snippet --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mark", "words", "has"),
    [
        ({names.ARGOCD_TRACKING: "x"}, "", "ignoreDifferences"), ({names.FLUX_NAME: "x"}, "", "patches"),
        ({names.HELM_RELEASE: "x"}, "", "driftDetection"), ({}, "", "ignoreDifferences"),
        ({names.ARGOCD_TRACKING: "x"}, "--tool helm", "driftDetection"),
    ],
    ids=str,
)
async def test_the_snippet_is_for_the_tool_that_manages_it(server, ask, mark, words, has):
    server.put("namespaces", pretend.made("ml", namespace=None, kind="Namespace", version="v1"))
    server.put_all(pretend.deployed("llm", annotations=mark))
    done = await ask("gitops-snippet", "Deployment/llm", *words.split())
    assert done.exit_code == 0, done.output
    assert has in yaml.safe_load(done.stdout)["spec"]
    assert done.stdout.startswith("# Put this into the ")
    assert ("no GitOps tool" in done.stderr) is (not mark)


def test_snippets_name_the_fields_that_a_pause_of_that_kind_writes():
    job = cluster.Ref("batch", "v1", "Job", "ml", "train", "u")
    helm = yaml.safe_load(gitops.make_snippet(job, "helm"))["spec"]["driftDetection"]["ignore"]
    assert helm == [{"paths": ["/spec/suspend"], "target": {"kind": "Job", "name": "train", "namespace": "ml"}}]
    (patch,) = yaml.safe_load(gitops.make_snippet(job, "flux"))["spec"]["patches"]
    assert yaml.safe_load(patch["patch"]) == [{"op": "remove", "path": "/spec/suspend"}]


# ---- query -----------------------------------------------------------------------------------------------------------


@pytest.fixture
async def prometheus():
    """Its address; two series, whatever is asked, but for what does not parse."""

    async def answer(request):
        form = await request.post()
        if form["query"] == "up(":
            refused = {"status": "error", "errorType": "bad_data", "error": "parse error"}
            return web.json_response(refused, status=400)
        at = float(form["time"])
        rows = [{"metric": {"node": "a", "x": "\x1b[2J"}, "value": [at, "1"]}, {"metric": {}, "value": [at, "NaN"]}]
        return web.json_response({"status": "success", "data": {"resultType": "vector", "result": rows}})

    app = web.Application()
    app.router.add_post("/api/v1/query", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def test_one_expression_is_asked_and_shown_or_written(server, ask, prometheus, tmp_path):
    done = await ask("query", "up", "--prometheus-url", prometheus)
    assert next(line.split() for line in done.output.splitlines()) == ["NODE", "X", "VALUE"]
    assert "\x1b[2J" not in done.output
    found = json.loads((await ask("query", "up", "-o", "json", "--prometheus-url", prometheus)).stdout)
    assert found == [{"metric": {"node": "a", "x": "\x1b[2J"}, "value": "1"}, {"metric": {}, "value": "NaN"}]
    file = tmp_path / "up.csv"
    done = await ask("query", "up", "--csv", str(file), "--prometheus-url", prometheus)
    assert done.output.startswith("2 series of ")
    with file.open(newline="") as written:
        assert list(csv.reader(written)) == [["node", "x", "value"], ["a", "\x1b[2J", "1"], ["", "", "NaN"]]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["up("], 1, "parse error"), (["up", "--csv", "/nonexistent/x.csv"], 1, "cannot be written"),
        (["up", "--at", "noon"], 2, "--at"),
    ],
    ids=str,
)
async def test_what_cannot_be_asked_or_written_is_one_sentence(server, ask, prometheus, words, code, says):
    done = await ask("query", *words, "--prometheus-url", prometheus)
    assert (done.exit_code, says in done.output.splitlines()[-1]) == (code, True), done.output
    assert "What helps" not in done.output, "Prometheus was reached"


def test_without_prometheus_it_says_where_to_name_one():
    done = type_in("query", "up", KUBECONFIG="/nonexistent/kubeconfig")
    assert (done.exit_code, "--prometheus-url" in done.output) == (2, True)
