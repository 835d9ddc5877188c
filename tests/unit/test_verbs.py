"""What a person may ask for: how a workload is named, what is declined and with which word, what counts as done.

The other end is a small API server that only reads; a verb that tried to write would find no such path.
"""

import pytest
from tests.builders import HOUR, NOW
from tests.unit.observe.cluster import pretend

from fallow import names, verbs
from fallow.act import hands as doing
from fallow.model import cluster, decision, units
from fallow.model.decision import Code, Status
from fallow.observe.cluster import mirror

LLM = cluster.Ref("apps", "v1", "Deployment", "ml", "llm", "u-1")


@pytest.mark.parametrize(
    ("kind", "name", "namespace", "meant"),
    [
        ("Deployment", "llm", "ml", True), ("deployment", "llm", "ml", True), ("Deployment.apps", "llm", "ml", True),
        ("deployment.APPS", "llm", "ml", True), ("Deployment.argoproj.io", "llm", "ml", False),
        ("StatefulSet", "llm", "ml", False), ("Deployment", "LLM", "ml", False), ("Deployment", "llm", "other", False),
    ],
)
def test_a_workload_is_named_by_kind_and_name(kind, name, namespace, meant):
    assert verbs.is_called(LLM, kind, name, namespace) is meant


@pytest.mark.parametrize("kind", ["deploy", "deployments", "Deployments.apps", "DEPLOY.apps"])
def test_a_kind_may_be_short_or_many(kind):
    assert verbs.is_called(LLM, kind, "llm", "ml")
    assert not verbs.is_called(LLM, kind.replace("apps", "batch") if "." in kind else f"{kind}x", "llm", "ml")


@pytest.mark.parametrize("text", ["llm", "/llm", "Deployment/", "", "/"])
def test_what_is_not_kind_and_name_is_said(text):
    with pytest.raises(verbs.Declined, match="not of the form KIND/NAME") as declined:
        verbs.read_target(text)
    assert declined.value.why is verbs.Why.malformed


@pytest.fixture
async def reach():
    """A namespace with one workload that runs, one that is kept, and one that stands paused."""
    kept = {names.ACK_UNTIL: units.rfc3339(NOW + HOUR), names.ACK_BY: "ada"}
    paused = {names.PAUSED_AT: units.rfc3339(NOW - HOUR), names.ORIGINAL_STATE: '{"v":1,"fields":{"/spec/replicas":1}}'}
    async with pretend.Server() as server, server.api() as api, mirror.Mirror(api, watch_namespaces=["ml"]) as seen:
        server.put_all([*pretend.deployed("llm"), *pretend.deployed("kept", annotations=kept)])
        stopped = {"replicas": 0, "template": {"spec": {}}}
        server.put_all(pretend.deployed("off", pods=0, annotations=paused, spec=stopped))
        await seen.list_all(NOW)
        yield verbs.Reach(seen, doing.Hands(api, seen.find_resource, reporting_instance="test"), "ml", "user:ada")


DECLINED = {
    "no-such-workload": (lambda reach: verbs.resume(reach, "Deployment/other", NOW), verbs.Why.unknown),
    "no-name": (lambda reach: verbs.resume(reach, "llm", NOW), verbs.Why.malformed),
    "kept": (lambda reach: verbs.pause(reach, "Deployment/kept", "x", NOW), verbs.Why.held),
    "ack-too-long": (lambda reach: verbs.keep(reach, "Deployment/llm", NOW + 169 * HOUR, "", NOW), verbs.Why.too_long),
    "ack-in-the-past": (lambda reach: verbs.keep(reach, "Deployment/llm", NOW - 1, "x", NOW), verbs.Why.malformed),
    "not-acknowledged": (lambda reach: verbs.release(reach, "Deployment/llm", NOW), verbs.Why.unknown),
    "freeze-too-long": (lambda reach: verbs.freeze(None, 367 * units.DAY, "x", NOW), verbs.Why.malformed),
}


@pytest.mark.parametrize(("ask", "why"), DECLINED.values(), ids=DECLINED)
async def test_what_is_declined_has_a_word_that_doors_can_tell_apart(reach, ask, why):
    with pytest.raises(verbs.Declined) as declined:
        await ask(reach)
    assert declined.value.why is why


@pytest.mark.parametrize("force", [False, True])
async def test_what_is_in_trouble_is_not_paused_by_hand_either(force):
    """--force overrides acks and opt-outs, never what we do not know."""
    async with pretend.Server() as server, server.api() as api, mirror.Mirror(api, watch_namespaces=["ml"]) as seen:
        server.put_all(pretend.deployed("llm"))
        server.install(*pretend.KEDA)
        server.forbidden.add(("list", "scaledobjects"))
        await seen.list_all(NOW)
        by = verbs.Reach(seen, doing.Hands(api, seen.find_resource, reporting_instance="test"), "ml", "user:ada")
        (outcome,) = await verbs.pause(by, "Deployment/llm", "x", NOW, force=force)
    assert outcome.status is Status.refused
    assert outcome.detail.startswith("ReportOnly:Unseen: whether KEDA scales Deployment/llm cannot be seen")


async def test_an_ack_of_something_paused_is_refused(reach):
    (outcome,) = await verbs.keep(reach, "Deployment/off", NOW + HOUR, "", NOW)
    assert outcome.status is Status.refused
    assert outcome.detail.startswith("AlreadyPaused")


async def test_an_ack_without_an_end_holds_for_eight_hours(reach):
    (outcome,) = await verbs.keep(reach, "Deployment/off", None, "", NOW)  # refused: nothing can be written here
    assert outcome.decision.changes[names.ACK_UNTIL] == units.rfc3339(NOW + 8 * HOUR)


async def test_no_ack_is_longer_than_its_policy_heeds():
    async with pretend.Server(*pretend.POLICIES) as server, server.api() as api, mirror.Mirror(api) as seen:
        spec = {"consent": {"maxAck": "4h"}}
        server.put("idlepolicies", pretend.made("short", namespace=None, kind="IdlePolicy", spec=spec))
        marked = {names.PAUSED_AT: units.rfc3339(NOW), names.ORIGINAL_STATE: '{"v":1,"fields":{"/spec/replicas":1}}'}
        server.put_all(pretend.deployed("off", pods=0, annotations=marked, spec={"replicas": 0}))
        await seen.list_all(NOW)
        reached = verbs.Reach(seen, doing.Hands(api, seen.find_resource, reporting_instance="t"), "ml", "user:ada")
        (outcome,) = await verbs.keep(reached, "Deployment/off", None, "", NOW)
        assert outcome.decision.changes[names.ACK_UNTIL] == units.rfc3339(NOW + 4 * HOUR)
        with pytest.raises(verbs.Declined, match="for 4h at most; say --hours 4 or less"):
            await verbs.keep(reached, "Deployment/off", NOW + 5 * HOUR, "", NOW)


async def test_acks_are_read_from_the_objects(reach):
    (ack,) = verbs.acks(reach, NOW)
    assert (ack.ref.name, ack.until, ack.by, ack.reason) == ("kept", units.rfc3339(NOW + HOUR), "ada", None)
    assert ack.void == ""


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("code", [None, *Code])
def test_what_was_so_already_counts_as_done(status, code):
    already = status is Status.overtaken and code in (Code.AlreadyPaused, Code.AlreadyRunning)
    outcome = decision.Outcome(None, status, NOW, "", code=code)
    assert verbs.is_so(outcome) is (status in (Status.done, Status.dry_run) or already)


async def test_a_protected_namespace_is_left_alone_unless_forced():
    async with pretend.Server() as server, server.api() as api, mirror.Mirror(api) as seen:
        server.put_all(pretend.deployed("llm", namespace="kube-system"))
        await seen.list_all(NOW)
        hands = doing.Hands(api, seen.find_resource, reporting_instance="t")
        there = verbs.Reach(seen, hands, "kube-system", "user:ada")
        with pytest.raises(verbs.Declined, match="kube-system is protected; --force") as declined:
            await verbs.pause(there, "Deployment/llm", "x", NOW)
    assert declined.value.why is verbs.Why.held
