"""The verbs with which people act, as they are typed: what is refused before anything is done, and how that is said.

The other end is a small API server that only reads; a verb that tried to write would find no such path.
"""

import asyncio
import json
import time

import pytest
import yaml
from click.testing import CliRunner
from tests.builders import NOW
from tests.unit.observe.cluster import pretend

from fallow import names, verbs
from fallow.doors.cli import main
from fallow.doors.cli import verbs as typed
from fallow.model import units
from fallow.observe.cluster import mirror


def type_in(*words, **env):
    clean = dict.fromkeys(("KUBECONFIG", "PROMETHEUS_URL", "POD_NAMESPACE"))
    return CliRunner(env={**clean, **env}).invoke(main.fallow, words)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--hours", "400"], "168"), (["--hours", "0"], "hours"), (["--hours", "-1"], "hours"),
        (["--hours", "nan"], "168 hours"), (["--hours", "0.0000001"], "a minute at least"),
        (["--hours", "soon"], "hours"),
        (["--until", "tomorrow"], "2026-11-15T09:30:00Z"), (["--until", "2026-11-20T18:00"], "no time zone"),
        (["--until", "2020-01-01T00:00:00Z"], "in the future"),
        (["--until", "9999-12-31T23:59:59Z"], "at most 168 hours"),
        (["--hours", "1", "--until", "2026-11-20T18:00:00Z"], "--hours or --until"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_an_ack_of_no_sensible_length_is_refused_before_anything_is_asked(flags, says):
    done = type_in("ack", "Deployment/llm", "-n", "ml", *flags, KUBECONFIG="/nonexistent/kubeconfig")
    assert done.exit_code == 2
    [sentence] = [line for line in done.output.splitlines() if line.startswith("Error:")]
    assert says in sentence


WORDS = ("pause", "resume", "unack", "ack --hours 1", "why", "explain")


@pytest.mark.parametrize("verb", WORDS)
@pytest.mark.parametrize("target", ["nonsense", "Deployment/", "/llm", "Deployment/LLM", "Deployment/a/b", "De ploy/a"])
def test_what_is_no_workload_is_refused_before_anything_is_asked(verb, target):
    done = type_in(*verb.split(), target, "-n", "ml", KUBECONFIG="/nonexistent/kubeconfig")
    assert (done.exit_code, "KIND/NAME" in done.output) == (2, True)
    assert "kubeconfig" not in done.output


@pytest.mark.parametrize("verb", [*(f"{one} Deployment/llm" for one in WORDS), "acks", "paused", "freeze", "unfreeze"])
@pytest.mark.parametrize("namespace", ["non sense", "../kube-system", "ML", "", "x" * 64])
def test_what_is_no_namespace_is_refused_before_anything_is_asked(verb, namespace):
    done = type_in(*verb.split(), "-n", namespace, KUBECONFIG="/nonexistent/kubeconfig")
    assert (done.exit_code, "cannot be the name of a namespace" in done.output) == (2, True)


def test_the_end_of_an_ack_is_hours_from_now_or_the_time_given():
    assert typed._read_end(8.0, None, NOW) == NOW + 8 * 3600
    assert typed._read_end(None, "2026-11-15T14:00:00+01:00", NOW) == NOW + 3600
    assert typed._read_end(168.0, None, NOW) == NOW + 168 * 3600
    assert typed._read_end(None, None, NOW) is None


@pytest.mark.parametrize("length", ["0", "-2h", "2", "forever", "9999999d", "400d"])
def test_a_freeze_of_no_sensible_length_is_refused(length):
    done = type_in("freeze", "--for", length, KUBECONFIG="/nonexistent/kubeconfig")
    assert done.exit_code == 2
    assert "--for" in done.output.splitlines()[-1]


@pytest.mark.parametrize(
    "words",
    ["resume Deployment/llm", "acks", "freeze", "unfreeze", "unack Deployment/llm", "status", "why Deployment/llm"],
)
def test_a_kubeconfig_that_is_not_there_is_a_configuration_error(words):
    done = type_in(*words.split(), KUBECONFIG="/nonexistent/kubeconfig", PROMETHEUS_URL="http://127.0.0.1:1")
    assert done.exit_code == 2, done.output
    assert "/nonexistent/kubeconfig" in done.output.splitlines()[-1]
    assert done.exc_info is None or done.exc_info[0] is SystemExit


@pytest.fixture
async def server():
    async with pretend.Server(
        "argoproj.io/v1alpha1 rollouts Rollout", "example.com/v1 deployments2 Deployment + scale"
    ) as running:
        for name in ("ml", "other"):
            running.put("namespaces", pretend.made(name, namespace=None, kind="Namespace"))
        yield running


@pytest.fixture
def ask(server, tmp_path):
    """Types a verb in another thread, so that the server can answer meanwhile."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump({
        "apiVersion": "v1", "kind": "Config", "current-context": "test", "users": [{"name": "test", "user": {}}],
        "clusters": [{"name": "test", "cluster": {"server": f"http://127.0.0.1:{server.url[1]}"}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": "ml"}}],
    }))

    async def ask(*words):
        return await asyncio.to_thread(type_in, *words, KUBECONFIG=str(kubeconfig))

    return ask


KEPT = "To see what there is: fallow acks -A"
SENTENCES = {
    "wrong-name": ("Deployment/lmm", "there is no Deployment lmm in namespace ml; did you mean Deployment/llm?"),
    "nothing-like-it": ("Deployment/q", "there is no Deployment q in namespace ml"),
    "other-kind": ("sts/llm", "there is no StatefulSet llm in namespace ml; did you mean Deployment/llm?"),
    "elsewhere": (
        "deploy/far", "there is no Deployment far in namespace ml; did you mean the one in namespace other?"
    ),
    "wrong-kind": ("deploymint/llm", "this cluster has no kind deploymint; did you mean deployment?"),
    "kind-not-installed": ("isvc/llm", "this cluster has no kind InferenceService (serving.kserve.io)"),
    "no-gpu": ("Deployment/web", "Deployment/web in namespace ml holds no GPU and is not paused by fallow"),
    "pod-without-gpu": ("pod/web-0", "Pod/web-0 in namespace ml asks for no GPU"),
    "no-workload": ("node/n1", "a Node is no workload"),
    "link": ("rs/llm-rs", "ReplicaSet/llm-rs belongs to Deployment/llm; name that instead"),
}


@pytest.mark.parametrize(("target", "says"), SENTENCES.values(), ids=SENTENCES)
async def test_why_there_is_no_such_workload_is_one_sentence_that_helps(server, ask, target, says):
    server.put_all([*pretend.deployed("llm"), *pretend.deployed("far", namespace="other")])
    web = server.put("deployments", pretend.deployment("web"))
    server.put("pods", pretend.pod("web-0", web, gpus=0))
    done = await ask("resume", target)
    assert done.exit_code == 1
    assert done.output.startswith(f"Error: {says}")
    assert done.output.endswith("To see what there is: fallow idle --all -A\n")
    assert done.output.count("\n") == 1


@pytest.mark.parametrize("words", ["paused", "acks", "resume --all", "ack deploy/llm"])
async def test_a_namespace_that_is_not_there_is_no_empty_one(ask, words):
    done = await ask(*words.split(), "-n", "othr")
    helps = " To see what there is: fallow idle --all -A" if "deploy" in words else ""
    assert (done.exit_code, done.output) == (1, f"Error: there is no namespace othr; did you mean other?{helps}\n")


async def test_a_namespace_that_may_not_be_read_is_said(server, ask):
    server.forbidden.add(("list", "pods"))
    done = await ask("ack", "deploy/llm", "-n", "ml")
    assert (done.exit_code, done.output.count("\n")) == (1, 1)
    assert "pods is forbidden" in done.output
    assert "What helps: ask whoever runs the cluster for that right; `kubectl auth can-i --list -n " in done.output


async def test_what_could_not_be_seen_is_said_with_it(server, ask):
    server.put("rollouts", pretend.made("llm", kind="Rollout", version="argoproj.io/v1alpha1", spec={"replicas": 0}))
    server.forbidden.add(("list", "rollouts"))
    done = await ask("resume", "Rollout/llm")
    assert done.exit_code == 1
    assert "cannot list resource" in done.output


@pytest.mark.parametrize(
    "words", ["deploy/llm", "deploy llm", "Deployments/llm", "DEPLOYMENT.apps/llm", "po/llm-0", "pods llm-0"]
)
async def test_a_workload_is_meant_by_any_name_that_kubectl_takes(server, ask, words):
    server.put_all(pretend.deployed("llm"))
    done = await ask("unack", *words.split())
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (1, f"Error: Deployment/llm is not acknowledged. {KEPT}")


async def test_only_what_one_verb_needs_is_asked_for(server, ask):
    """Each kind that is listed for nothing makes somebody wait."""
    server.put_all(pretend.deployed("llm"))
    await ask("unack", "deploy/llm")
    listed = {plural for verb, plural, _ in server.requests if verb == "list"}
    assert listed.isdisjoint({"nodes", "rollouts", "statefulsets", "jobs", "cronjobs", "deployments2"})
    assert len(server.requests) <= 12


async def test_two_kinds_of_one_name_must_be_told_apart(server, ask):
    server.put_all(pretend.deployed("llm"))
    other = server.put(
        "deployments2", pretend.made("llm", kind="Deployment", version="example.com/v1", spec={"size": 1})
    )
    other["metadata"]["uid"] = "other"
    server.put("pods", pretend.pod("llm-x", other))
    done = await ask("unack", "Deployment/llm")
    assert done.exit_code == 1
    assert "is not clear, say which:" in done.output
    assert sorted(done.output.split("say which: ")[1].strip().split(", ")) == [
        "Deployment.apps/llm", "Deployment.example.com/llm",
    ]


async def test_an_unack_of_what_is_not_acknowledged_is_said(server, ask):
    server.put_all(pretend.deployed("llm"))
    done = await ask("unack", "Deployment/llm")
    assert (done.exit_code, done.output) == (1, f"Error: Deployment/llm is not acknowledged. {KEPT}\n")


@pytest.mark.parametrize(
    "said",
    [{names.OPT_OUT: names.OPT_OUT_VALUE}, {names.ACK_UNTIL: "2999-01-01T00:00:00Z", names.ACK_BY: "ada"}],
    ids=["opted-out", "acknowledged"],
)
async def test_a_pause_by_hand_heeds_what_others_said(server, ask, said):
    server.put_all(pretend.deployed("llm", annotations=said))
    done = await ask("pause", "Deployment/llm")
    assert done.exit_code == 1
    assert "--force pauses it all the same" in done.output
    assert server.asked("get") == 0, "it is not even looked at again"


@pytest.mark.parametrize("output", ["table", "json", "yaml"])
async def test_acks_are_listed(server, ask, output):
    until = units.rfc3339(time.time() + 3600)
    said = {names.ACK_UNTIL: until, names.ACK_BY: "user:ada", names.ACK_REASON: "demo"}
    server.put_all([*pretend.deployed("llm", annotations=said), *pretend.deployed("web")])
    server.put_all(pretend.deployed("far", namespace="other", annotations=said))
    done = await ask("acks", "-o", output, "--look")
    assert done.exit_code == 0
    if output == "table":
        assert [line.split() for line in done.output.splitlines()] == [
            ["NAMESPACE", "WORKLOAD", "UNTIL", "HOLDS", "BY", "REASON", "GIVEN"],
            ["ml", "Deployment/llm", until, "yes", "user:ada", "demo"],
        ]
        return
    expected = {
        "apiVersion": "apps/v1", "kind": "Deployment", "namespace": "ml", "name": "llm", "uid": "Deployment-llm",
        "workload": "Deployment/llm", "until": until, "holds": True, "void": None, "by": "user:ada", "reason": "demo",
    }
    assert (json.loads if output == "json" else yaml.safe_load)(done.output) == [expected]


FAR, PAST = "9998-01-01T00:00:00Z", "2026-01-01T00:00:00Z"
VOID = {
    "unreadable": ({names.ACK_UNTIL: "for ever"}, "no: that is no time"),
    "over": ({names.ACK_UNTIL: PAST}, "no: it is over"),
    "over-by-its-policy": ({names.ACK_UNTIL: FAR, names.ACK_AT: PAST}, "no: it is over"),
}


@pytest.mark.accepts("idle", 20)
@pytest.mark.parametrize(("said", "holds"), VOID.values(), ids=VOID)
async def test_an_ack_that_does_not_hold_is_listed_as_what_it_is(server, ask, said, holds):
    server.put_all(pretend.deployed("llm", annotations=said))
    assert holds in (await ask("acks")).output
    (row,) = json.loads((await ask("acks", "-o", "json")).output)
    assert (row["holds"], f"no: {row['void']}", row["until"]) == (False, holds, said[names.ACK_UNTIL])


async def test_of_an_ack_that_its_policy_shortens_the_end_is_shown(server, ask):
    given = time.time() - 3600
    said = {names.ACK_UNTIL: FAR, names.ACK_AT: units.rfc3339(given)}
    server.put_all(pretend.deployed("llm", annotations=said))
    (row,) = json.loads((await ask("acks", "-o", "json")).output)
    assert units.parse_instant(row["until"]) == pytest.approx(given + 168 * 3600, abs=1)


@pytest.mark.parametrize("on", ["namespace", "pod"])
async def test_an_unack_of_what_others_keep_says_who_does_and_how_that_ends(server, ask, on):
    said = {names.ACK_UNTIL: units.rfc3339(time.time() + 3600)}
    made = pretend.deployed("llm")
    if on == "pod":
        made[-1][1]["metadata"]["annotations"] = said
    else:
        server.put("namespaces", pretend.made("ml", namespace=None, kind="Namespace", annotations=said))
    server.put_all(made)
    done = await ask("unack", "Deployment/llm")
    assert done.exit_code == 1
    which = "namespace ml" if on == "namespace" else "pod llm-0 -n ml"
    assert done.output.startswith("Error: Deployment/llm is kept by its ")
    assert f"kubectl annotate {which} {names.ACK_UNTIL}-" in done.output


async def test_no_acks_are_said_in_words_and_as_an_empty_list(server, ask):
    server.put_all(pretend.deployed("llm"))
    assert (await ask("acks", "--look")).output == "nothing is acknowledged in namespace ml; -A shows all namespaces\n"
    assert json.loads((await ask("acks", "-o", "json")).output) == []


PAUSED_MARKS = {
    names.PAUSED_AT: "2026-11-15T10:00:00Z", names.PAUSED_BY: "fallow", names.PAUSED_REASON: "quiet", names.PAUSED_GPUS:
    "4", names.ORIGINAL_STATE: '{"v":1,"fields":{"/spec/replicas":1}}',
}


async def test_what_is_paused_is_listed_of_whatever_kind(server, ask):
    server.put_all(pretend.deployed("llm", pods=0, annotations=PAUSED_MARKS, spec={"replicas": 0}))
    other = pretend.made(
        "clones", kind="Deployment", version="example.com/v1", annotations=PAUSED_MARKS, spec={"size": 0}
    )
    server.put("deployments2", other)
    server.forbidden.add(("list", "rollouts"))
    done = await ask("paused")
    rows = {" ".join(line.split()) for line in done.output.splitlines()}
    assert rows >= {
        "NAMESPACE WORKLOAD SINCE BY GPUS WHY", "ml Deployment/llm 2026-11-15T10:00:00Z fallow 4 quiet",
        "ml Deployment.example.com/clones 2026-11-15T10:00:00Z fallow 4 quiet",
    }
    assert "not seen: rollouts.argoproj.io" in done.output


async def test_nothing_paused_is_said(server, ask):
    nothing = "nothing is paused by fallow in namespace ml"
    assert (await ask("paused", "--look")).output == f"{nothing}; -A shows all namespaces\n"
    assert (await ask("resume", "--all")).output == "nothing is paused by fallow in namespace ml\n"


@pytest.mark.parametrize("output", ["table", "json"])
async def test_what_may_stand_paused_unseen_is_not_nothing(server, ask, output):
    server.put("statefulsets", pretend.made("db", kind="StatefulSet", annotations=PAUSED_MARKS, spec={"replicas": 0}))
    server.forbidden.add(("list", "statefulsets"))
    done = await ask("resume", "--all", "-o", output)
    assert done.exit_code == 1
    assert "not seen: statefulsets.apps" in done.stderr
    nothing = "nothing that can be seen is paused by fallow in namespace ml\n"
    assert done.stdout == ("[]\n" if output == "json" else nothing)


async def test_what_carries_no_pause_hides_none(server, ask):
    server.forbidden.add(("list", "horizontalpodautoscalers"))
    assert (await ask("resume", "--all")).exit_code == 0


def test_more_replicas_than_anybody_runs_are_refused_before_anything_is_asked():
    done = type_in("resume", "Deployment/llm", "--replicas", "3000000000", KUBECONFIG="/nonexistent/kubeconfig")
    assert done.exit_code == 2
    assert "1<=x<=1000000" in done.output


async def test_what_a_server_says_at_length_is_cut(server, ask):
    server.failing.add(("list", "pods"))
    server.complaint += ": " + "x" * 50_000
    done = await ask("acks")
    assert "etcd is on holiday: xxx" in done.output
    assert len(done.output) < 600


NEITHER = ["", "Deployment/llm --all", "Deployment/llm -A", "--all --replicas 2", "Deployment/llm --force"]


@pytest.mark.parametrize("words", NEITHER)
def test_a_resume_is_of_one_or_of_all(words):
    assert type_in("resume", *words.split(), KUBECONFIG="/nonexistent").exit_code == 2


async def test_a_server_that_fails_is_one_sentence(server, ask):
    server.failing.add(("list", "pods"))
    done = await ask("acks")
    assert done.exit_code == 1
    assert "etcd is on holiday" in done.output
    assert "Traceback" not in done.output


async def test_a_namespace_that_cannot_be_seen_may_keep_something_and_pauses_nothing(server):
    server.forbidden |= {("list", "namespaces"), ("get", "namespaces"), ("list", "horizontalpodautoscalers")}
    server.put_all(pretend.deployed("llm"))
    async with server.api() as api, mirror.Mirror(api) as seen:
        await seen.list_all(NOW)
        reach = verbs.Reach(seen, None, "", "")
        assert verbs.find_hidden(reach) == ()
        assert [each.what for each in verbs.find_hidden(reach, or_kept=True)] == ["namespaces"]
