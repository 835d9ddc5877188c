"""Sentences and Events: short enough, complete, one series for repetitions; and the hooks that pods ask for."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as some
from tests.unit.act import examples
from tests.unit.act.examples import EXAMPLES, NOW, finding_of, identified, make, pod, workload_of
from tests.unit.act.server import Server
from tests.unit.act.test_hands import MakeHands, annotations, carry

from fallow import names
from fallow.act import hands as doing
from fallow.act import hooks, notify
from fallow.clients import errors
from fallow.clients.kubernetes import api as kubernetes
from fallow.model import cluster, decision, kinds
from fallow.model.decision import Status
from fallow.model.policies import idle

REF = cluster.Ref("kubeflow.org", "v1", "Notebook", "team-a", "nb", "u-1")


# ---- events -------------------------------------------------------------------------------------------------------------------


@given(some.text(max_size=2000), some.integers(4, 1100))
def test_a_note_is_cut_at_a_character(text: str, size: int) -> None:
    short = notify.cut(text, size)
    assert len(short.encode(errors="surrogatepass")) <= max(size, 0)
    assert short == text or (short.endswith("…") and text.startswith(short[:-1]))


def test_an_event_has_all_that_the_api_wants() -> None:
    body = notify.event_body(REF, names.Event.PAUSE_FAILED, "x" * 5000, NOW + 0.25, instance="pod-0")
    assert body["regarding"]["apiVersion"] == "kubeflow.org/v1"
    assert body["eventTime"] == "2026-11-14T23:46:40.250000Z"
    assert body["metadata"]["name"].startswith("gpuscaler-")
    assert len(body["metadata"]["name"]) == len("gpuscaler-") + 32
    assert (body["type"], body["reportingController"]) == ("Warning", "gpu-pruner")
    assert len(body["note"].encode()) <= 1024


async def test_the_same_again_within_an_hour_is_a_series(server: Server, api: kubernetes.Api) -> None:
    announcer = notify.Announcer(api, reporting_instance="pod-0")
    for seconds in (0, 600, 1200):
        await announcer.publish(REF, names.Event.PAUSE_FAILED, "no", NOW + seconds)
    (event,) = server.events
    assert event["series"] == {"count": 3, "lastObservedTime": "2026-11-15T00:06:40.000000Z"}
    await announcer.publish(REF, names.Event.RESUMED, "back", NOW + 1300)
    await announcer.publish(REF, names.Event.PAUSE_FAILED, "no", NOW + 3600)
    assert [event["reason"] for event in server.events] == ["PauseFailed", "Resumed", "PauseFailed"]


async def test_a_series_whose_event_has_gone_begins_anew(server: Server, api: kubernetes.Api) -> None:
    announcer = notify.Announcer(api, reporting_instance="pod-0")
    await announcer.publish(REF, names.Event.PAUSE_FAILED, "no", NOW)
    server.objects.clear()
    await announcer.publish(REF, names.Event.PAUSE_FAILED, "no", NOW + 60)
    assert [event.get("series") for event in server.events] == [None]


async def test_a_notice_must_know_whether_its_event_was_made(server: Server, api: kubernetes.Api) -> None:
    announcer = notify.Announcer(api, reporting_instance="pod-0")
    server.fail("POST", "/events", 403, times=2)
    with pytest.raises(errors.Forbidden):
        await announcer.publish(REF, names.Event.NOTICE_SENT, "idle", NOW)
    await announcer.announce(REF, names.Event.NOTICE_SENT, "idle", NOW)
    assert server.events == []


# ---- sentences ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("deployment", "Scaled Deployment team-a/llm from 3 to 0: "),
        ("disaggregated", "Scaled DisaggregatedSet team-a/llm to 0: "),
        ("job", "Suspended Job team-a/llm: "),
        ("isvc", "Stopped InferenceService team-a/llm: "),
    ],
)
def test_a_pause_says_what_was_done(name: str, says: str) -> None:
    workload = workload_of(identified(EXAMPLES[name]))
    kind = kinds.of(workload)
    assert kind is not None
    note = notify.pause_note(finding_of(workload), kind, 3 if name == "deployment" else None, NOW)
    assert note.startswith(says)
    assert note.endswith(f"Resume: fallow resume {workload.ref.kind}/llm -n team-a")


@pytest.mark.parametrize(
    ("thing", "command"),
    [
        (EXAMPLES["deployment"], "Deployment/llm"),
        (EXAMPLES["rollout"], "Rollout/llm"),
        (EXAMPLES["knative"], "Service.serving.knative.dev/llm"),
        (EXAMPLES["generic"], "Scalable.example.com/llm"),
    ],
    ids=["deployment", "rollout", "knative", "generic"],
)
def test_a_kind_that_could_be_mistaken_is_typed_with_its_group(thing: dict[str, Any], command: str) -> None:
    assert notify.typed(examples.ref_of(identified(thing))) == command


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, "12 GPUs idle for 47m (policy default)"),
        ({"gpus": 1}, "1 GPU idle for 47m (policy default)"),
        ({"at_least": True}, "12 GPUs idle for at least 47m (policy default)"),
        ({"idle_since": None}, "12 GPUs idle (policy default)"),
        ({"rule": idle.Rule()}, "12 GPUs idle for 47m (flags)"),
    ],
    ids=["plain", "one", "at-least", "unknown", "flags"],
)
def test_idleness_is_said_as_it_was_measured(change: dict[str, Any], says: str) -> None:
    finding = msgspec.structs.replace(finding_of(workload_of(identified(EXAMPLES["deployment"]))), **change)
    assert notify.idle_sentence(finding, NOW) == says


def test_a_pause_by_hand_does_not_claim_idleness() -> None:
    workload = workload_of(identified(EXAMPLES["deployment"]))
    kind = kinds.of(workload)
    assert kind is not None
    by_hand = msgspec.structs.replace(finding_of(workload), verdict=decision.Verdict.unknown, because="paused by hand")
    assert notify.pause_note(by_hand, kind, 3, NOW).startswith("Scaled Deployment team-a/llm from 3 to 0: paused by hand. Resume: ")


def warned(thing: dict[str, Any], **more: Any) -> str:
    workload = workload_of(identified(thing), **more)
    kind = kinds.of(workload)
    assert kind is not None
    return " ".join(notify.warnings(workload, kind, examples.RULE))


def test_owners_are_told_what_a_pause_brings_with_it() -> None:
    cron = (cluster.Owner("batch", "v1", "Job", "llm", "u-1"), cluster.Owner("batch", "v1", "CronJob", "nightly", "u-2"))
    assert warned(EXAMPLES["deployment"]) == "While it is paused, a server-side apply of another value conflicts with fallow."
    assert "last checkpoint" in warned(EXAMPLES["pytorchjob"])
    assert "from its beginning" in warned(EXAMPLES["rayjob"])
    assert "minReplicas" in warned(EXAMPLES["isvc"])
    assert "restarts its pods" in warned(EXAMPLES["isvc"])
    assert "Forbid" in warned(EXAMPLES["job"], chain=cron)
    assert "Forbid" not in warned(EXAMPLES["job"])


def test_gitops_owners_get_what_their_tool_needs() -> None:
    argo = make("apps/v1", "Deployment", {"replicas": 1}, annotations={names.ARGOCD_TRACKING: "x"})
    flux = make("apps/v1", "Deployment", {"replicas": 1}, labels={names.FLUX_NAME: "x"})
    assert "managedFieldsManagers: [fallow]" in warned(argo)
    assert "RespectIgnoreDifferences=true" in warned(argo)
    assert "Flux may undo it" in warned(flux)


# ---- notices ------------------------------------------------------------------------------------------------------------------

EVENT, SLACK = idle.Channel("here", "event"), idle.Channel("team", "slack")


def warn_of(workload: cluster.Workload, *channels: idle.Channel, require_all: bool = False) -> decision.Warn:
    rule = msgspec.structs.replace(examples.RULE, notice=idle.Notice(required=True, require_all=require_all, channels=channels))
    return decision.Warn(finding_of(workload, rule), "abcdef123456", NOW - 47 * 60, NOW + 300, channels)


@pytest.mark.parametrize("compat", [True, False], ids=["compat", "plain"])
async def test_a_delivered_notice_is_written_on_the_object(server: Server, make_hands: MakeHands, compat: bool) -> None:
    thing = server.add(identified(EXAMPLES["deployment"]))
    outcome = await carry(make_hands(compat_annotations=compat), warn_of(workload_of(thing), EVENT))
    assert outcome.status is Status.done
    (event,) = server.events
    assert event["reason"] == names.Event.NOTICE_SENT
    assert "It will be scaled to 0 at 23:51 UTC. Keep it: fallow ack Deployment/llm -n team-a" in event["note"]
    marks = {names.IDLE_SINCE: "2026-11-14T22:59:40Z", names.IDLE_EPISODE: "abcdef123456", names.PENDING_SINCE: "2026-11-14T23:46:40Z"}
    assert annotations(server.now(thing)) == marks | ({names.PENDING_SINCE_ALIAS: "2026-11-14T23:46:40Z"} if compat else {})


@pytest.mark.parametrize("require_all", [True, False], ids=["all", "any"])
@pytest.mark.parametrize("channels", [(), (EVENT,), (SLACK,), (EVENT, SLACK)], ids=["none", "event", "slack", "both"])
async def test_a_notice_counts_only_if_it_was_delivered(
    server: Server, hands: doing.Hands, channels: tuple[idle.Channel, ...], require_all: bool
) -> None:
    thing = server.add(identified(EXAMPLES["deployment"]))
    outcome = await carry(hands, warn_of(workload_of(thing), *channels, require_all=require_all))
    delivered = EVENT in channels and not (require_all and SLACK in channels)
    assert outcome.status is (Status.done if delivered else Status.failed)
    assert (names.PENDING_SINCE in annotations(server.now(thing))) is delivered
    assert ("slack is not available yet" in outcome.detail) is (SLACK in channels)


async def test_a_notice_whose_event_fails_writes_nothing(server: Server, hands: doing.Hands) -> None:
    thing = server.add(identified(EXAMPLES["deployment"]))
    server.fail("POST", "/events", 500, times=2)
    outcome = await carry(hands, warn_of(workload_of(thing), EVENT))
    assert outcome.status is Status.failed
    assert server.writes() == []


@pytest.mark.accepts("idle", 31)
async def test_a_notice_and_an_ack_of_an_inference_service_touch_only_its_child(server: Server, hands: doing.Hands) -> None:
    service = server.add(identified(EXAMPLES["isvc"]))
    child = server.add(identified(make("apps/v1", "Deployment", {"replicas": 2}, name="llm-predictor"), "u-2"))
    workload = workload_of(service, marks_ref=examples.ref_of(child), marks={})
    assert (await carry(hands, warn_of(workload, EVENT))).status is Status.done
    assert (await hands.acknowledge(workload, until=NOW + 3600, by="ada", reason="demo", now=NOW)).status is Status.done
    assert server.now(service) == service
    assert {names.ACK_UNTIL, names.ACK_UNTIL_ALIAS, names.ACK_BY} <= set(annotations(server.now(child)))
    assert names.PENDING_SINCE not in annotations(server.now(child))


async def test_an_ack_of_something_paused_is_refused(server: Server, hands: doing.Hands) -> None:
    thing = server.add(identified(make("apps/v1", "Deployment", {"replicas": 0})))
    outcome = await hands.acknowledge(workload_of(thing), until=NOW + 3600, by="ada", reason="", now=NOW)
    assert outcome.status is Status.refused
    assert outcome.detail.startswith("AlreadyPaused")
    assert server.requests == []


async def test_an_ack_comes_and_goes(server: Server, hands: doing.Hands) -> None:
    thing = server.add(identified(EXAMPLES["deployment"]))
    await hands.acknowledge(workload_of(thing), until=NOW + 3600, by="ada", reason="demo", now=NOW)
    outcomes = await hands.unacknowledge(workload_of(server.now(thing)), by="ada", now=NOW)
    assert [outcome.status for outcome in outcomes] == [Status.done]
    assert annotations(server.now(thing)) == {}
    assert [event["reason"] for event in server.events] == [names.Event.ACKNOWLEDGED, names.Event.UNACKNOWLEDGED]
    assert await hands.unacknowledge(workload_of(server.now(thing)), by="ada", now=NOW) == []


async def test_a_mark_with_a_version_gives_way(server: Server, hands: doing.Hands) -> None:
    thing = server.add(identified(EXAMPLES["deployment"]))
    workload = workload_of(thing)
    server.touch(thing)
    mark = decision.Mark(workload, workload.ref, workload.resource_version, {names.PENDING_SINCE: None}, names.Event.ACK_EXPIRED, "over")
    assert (await carry(hands, mark)).status is Status.overtaken
    assert server.events == []


async def test_an_alert_about_ourselves_goes_on_our_own_pod(server: Server, make_hands: MakeHands) -> None:
    own = cluster.Ref("", "v1", "Pod", "gpu-pruner-system", "gpu-pruner-0", "u-p")
    alert = decision.Alert(None, names.Event.IDLE_SHARE_JUMP, "40 points more", "e")
    assert (await carry(make_hands(own_pod=own), alert)).status is Status.done
    assert (await carry(make_hands(), alert)).status is Status.done
    (event,) = server.events
    assert (event["regarding"]["apiVersion"], event["metadata"]["namespace"]) == ("v1", "gpu-pruner-system")


async def test_an_episode_is_told_once_whoever_tells_it(server: Server, make_hands: MakeHands) -> None:
    workload = workload_of(server.add(identified(EXAMPLES["deployment"])))
    for episode in ("first", "first", "second"):  # each by a process of its own
        alert = decision.Alert(workload, names.Event.IDLE_DETECTED, "quiet", episode)
        assert (await carry(make_hands(), alert)).status is Status.done
    assert [event["reason"] for event in server.events] == [names.Event.IDLE_DETECTED] * 2


# ---- hooks --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hook", "ip", "url"),
    [
        (":8080/save", "10.0.0.1", "http://10.0.0.1:8080/save"),
        (":80", "10.0.0.1", "http://10.0.0.1:80/"),
        (":80/a?b=c", "fd00::1", "http://[fd00::1]:80/a?b=c"),
        ("8080/save", "10.0.0.1", None),
        (":99999/x", "10.0.0.1", None),
        (":80@evil.example/x", "10.0.0.1", None),
        ("http://evil.example/", "10.0.0.1", None),
        (":80/a b", "10.0.0.1", None),
        (":80/x", "", None),
        ("", "10.0.0.1", None),
    ],
)
def test_only_the_pods_own_address_is_ever_called(hook: str, ip: str, url: str | None) -> None:
    assert hooks.address(pod(ip=ip, hook=hook)) == url


@pytest.mark.parametrize("status", [200, 204, 302, 404, 500])
async def test_a_hook_must_answer_2xx_at_every_pod(status: int) -> None:
    called: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        called.append(f"{request.method} {request.path}")
        failing = request.path == "/b" and status
        return web.Response(status=failing or 200, headers={"Location": "/elsewhere"})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app, host="127.0.0.1") as listening:
        pods = [pod(name, hook=f":{listening.port}/{name}") for name in ("a", "b")]
        complaint = await hooks.call([*pods, pod("silent")], 5.0)
    assert sorted(called) == ["POST /a", "POST /b"]
    assert complaint == (None if status < 300 else f"the hook of pod b answered {status}")


async def test_a_hook_that_hangs_is_given_up() -> None:
    release = asyncio.Event()

    async def hang(_: web.Request) -> web.Response:
        await release.wait()
        return web.Response()

    app = web.Application()
    app.router.add_post("/save", hang)
    async with TestServer(app, host="127.0.0.1") as listening:
        complaint = await hooks.call([pod("a", hook=f":{listening.port}/save")], 0.05)
        release.set()
    assert complaint == "the hook of pod a did not answer within 0.05 s"
