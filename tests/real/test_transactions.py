"""A pause is a transaction, on a real API server: an admission policy that changes our own requests, KEDA that writes
after us, and a process that dies between any two requests. It ends paused with a complete record, or as it was.

KEDA and Kueue are not here: stand-ins do to the objects what those were seen to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from fallow import names
from fallow.act import execute, marking
from fallow.act import hands as doing
from fallow.decide.idle import pauses
from fallow.model import cluster as nouns
from fallow.model import decision, pointers
from fallow.model.decision import Outcome, Status
from fallow.model.policies import idle
from tests.real import cluster as clusters
from tests.real import crds, faults, product, test_eyes, test_hands
from tests.unit.act import examples
from tests.unit.act.examples import NOW, pause_of

Object = dict[str, Any]
Cluster = clusters.Cluster
ADMISSION = "admissionregistration.k8s.io"
EVERYTHING = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]


# ---- somebody changes our own requests -------------------------------------------------------------------------------


# What alters a pause and not its rehearsal: it came in between, or makes a difference between the two.
UNREHEARSED = f"!(request.dryRun && '{names.PAUSED_BY}' in object.metadata.?annotations.orValue({{}}))"
ALWAYS = "true"


async def clamp(
    cluster: Cluster, group: str, plural: str, too_little: str, patch: str, when: str = ALWAYS
) -> None:
    """From now on the API server itself mends what is too little in the test's namespace, as a webhook would."""
    name = f"{plural}.{cluster.namespace}"
    rule = {"apiGroups": [group], "apiVersions": ["*"], "operations": ["UPDATE"], "resources": [plural]}
    here = {"matchLabels": {"kubernetes.io/metadata.name": cluster.namespace}}
    spec = {
        "matchConstraints": {"resourceRules": [rule], "namespaceSelector": here}, "failurePolicy": "Fail",
        "reinvocationPolicy": "Never", "matchConditions": [
            {"name": "when", "expression": when}, {"name": "too-little", "expression": too_little},
        ],
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}],
    }
    policy = {"apiVersion": f"{ADMISSION}/v1", "kind": "MutatingAdmissionPolicy", "metadata": {"name": name}}
    await cluster.apply({**policy, "spec": spec})
    binding = {"apiVersion": f"{ADMISSION}/v1", "kind": "MutatingAdmissionPolicyBinding", "metadata": {"name": name}}
    await cluster.apply({**binding, "spec": {"policyName": name}})


async def clamp_deployments(cluster: Cluster, thing: Object, least: int = 1, when: str = UNREHEARSED) -> None:
    set_least = f'[JSONPatch{{op: "replace", path: "/spec/replicas", value: {least}}}]'
    await clamp(cluster, "apps", "deployments", f"object.spec.replicas < {least}", set_least, when)
    await cluster.wait_until(lambda: is_clamped(cluster, thing, {"spec": {"replicas": 0}}, least))


async def is_clamped(cluster: Cluster, thing: Object, patch: Object, least: int) -> bool:
    """Does the policy hold already? Asked without changing anything; of a new kind the server learns in a while."""
    try:
        tried = await cluster.patch(thing, patch, dryRun="All")
    except clusters.Refused:
        return False
    sizes = [role["spec"]["replicas"] for role in tried["spec"].get("roles", ())] or [tried["spec"]["replicas"]]
    return max(sizes) >= least


def marks_of(thing: Object) -> Object:
    found: Object = thing["metadata"].get("annotations") or {}
    return found


def pause_marks(thing: Object) -> set[str]:
    return set(marks_of(thing)) & set(names.PAUSE_KEYS)


@pytest.mark.accepts("idle", 40)
async def test_a_pause_that_is_clamped_ends_as_it_began(cluster: Cluster) -> None:
    before = await test_hands.make(cluster, "deployment")
    resumed = {names.RESUMED_AT: "2026-11-14T22:00:00Z", names.RESUMED_BY: "ada"}
    await cluster.patch(before, {"metadata": {"annotations": resumed}})
    await clamp_deployments(cluster, before)
    async with test_hands.hands_on(cluster) as hands:
        outcome = await test_hands.carry_in_the_end(cluster, hands, before)
    assert outcome.status is Status.failed
    back = await cluster.refresh(before)
    assert back["spec"]["replicas"] == 3
    assert pause_marks(back) == set()
    assert resumed.items() <= marks_of(back).items(), "the immunity goes on"
    (event,) = await cluster.events(names.Event.PAUSE_FAILED)
    assert "its /spec/replicas is 1 and not 0; it was put back to /spec/replicas 3" in event["note"]
    ours = [entry for entry in back["metadata"]["managedFields"] if entry["manager"].startswith(names.FIELD_MANAGER)]
    assert all("f:spec" not in entry["fieldsV1"] for entry in ours), "the owner's next apply does not conflict"


@pytest.mark.accepts("idle", 40)
async def test_one_clamped_role_of_several_brings_all_of_them_back(cluster: Cluster) -> None:
    before = await test_hands.make(cluster, "disaggregated")
    patch = '[JSONPatch{op: "replace", path: "/spec/roles/1/spec/replicas", value: 1}]'
    too_little = "object.spec.roles[1].spec.replicas < 1"
    await clamp(cluster, "disaggregatedset.x-k8s.io", "disaggregatedsets", too_little, patch, UNREHEARSED)
    roles = [{**role, "spec": {**role["spec"], "replicas": 0}} for role in before["spec"]["roles"]]
    await cluster.wait_until(lambda: is_clamped(cluster, before, {"spec": {"roles": roles}}, 1))
    async with test_hands.hands_on(cluster) as hands:
        outcome = await test_hands.carry_in_the_end(cluster, hands, before)
    assert outcome.status is Status.failed
    back = await cluster.refresh(before)
    assert back["spec"] == before["spec"]
    assert pause_marks(back) == set()


@pytest.mark.accepts("idle", 40)
async def test_what_cannot_be_put_back_at_once_keeps_its_record_and_is_put_back_in_the_next_cycle(
    cluster: Cluster
) -> None:
    before = await test_hands.make(cluster, "deployment")
    await clamp_deployments(cluster, before)
    async with dying(cluster, after=1) as hands:
        outcome = await test_hands.carry_in_the_end(cluster, hands, before)
    assert outcome.status is Status.failed
    half = await cluster.refresh(before)
    assert half["spec"]["replicas"] == 1
    assert json.loads(marks_of(half)[names.ORIGINAL_STATE])["fields"] == {"/spec/replicas": 3}
    (done,) = await next_cycle(cluster, "Deployment/llm")
    assert isinstance(done.decision, decision.Undo)
    assert done.status is Status.done, done.detail
    back = await cluster.refresh(before)
    assert back["spec"]["replicas"] == 3
    assert pause_marks(back) == set()
    assert names.PAUSE_REVERSALS not in marks_of(back), "nobody undid anything"
    (event,) = await cluster.events(names.Event.PAUSE_FAILED)
    assert "it was /spec/replicas 3, stood at /spec/replicas 1" in event["note"]


async def test_what_somebody_else_set_meanwhile_is_not_half_a_pause(cluster: Cluster) -> None:
    before = await test_hands.make(cluster, "deployment")
    await clamp_deployments(cluster, before)
    async with dying(cluster, after=1) as hands:
        await test_hands.carry_in_the_end(cluster, hands, before)
    await cluster.patch(before, {"spec": {"replicas": 2}}, fieldManager="ada")
    await test_hands.settled(cluster, before)
    (noted,) = await next_cycle(cluster, "Deployment/llm")
    assert noted.status is Status.done, noted.detail
    back = await cluster.refresh(before)
    assert back["spec"]["replicas"] == 2
    assert marks_of(back)[names.RESUMED_BY] == "external:ada"
    assert pause_marks(back) == set()


async def test_a_person_gets_back_what_was_half_paused(cluster: Cluster) -> None:
    before = await test_hands.make(cluster, "deployment")
    await clamp_deployments(cluster, before)
    async with dying(cluster, after=1) as hands:
        await test_hands.carry_in_the_end(cluster, hands, before)
    workload = (await test_eyes.look(cluster))["Deployment/llm"]
    async with test_hands.hands_on(cluster) as hands:
        outcome = await hands.resume(test_hands.resume_of(workload), NOW + 60)
    assert outcome.status is Status.done, outcome.detail
    back = await cluster.refresh(before)
    assert back["spec"]["replicas"] == 3
    assert pause_marks(back) == set()


async def test_a_resume_that_is_clamped_keeps_its_record(cluster: Cluster) -> None:
    before = await test_hands.make(cluster, "deployment")
    async with test_hands.hands_on(cluster) as hands:
        assert (await test_hands.carry_in_the_end(cluster, hands, before)).status is Status.done
        await clamp_deployments(cluster, before, least=5, when=ALWAYS)
        workload = (await test_eyes.look(cluster))["Deployment/llm"]
        with pytest.raises(doing.sending.NotShown):
            await hands.resume(test_hands.resume_of(workload), NOW + 60)
    half = await cluster.refresh(before)
    assert json.loads(marks_of(half)[names.ORIGINAL_STATE])["fields"] == {"/spec/replicas": 3}
    assert names.PAUSED_AT in marks_of(half)
    assert names.RESUMED_AT not in marks_of(half)


async def strip(
    cluster: Cluster, thing: Object, group: str, plural: str, name: str, when: str = UNREHEARSED
) -> None:
    """From now on an annotation of ours reaches nobody, as under a webhook that lets only known ones through."""
    has = f"'{name}' in object.metadata.?annotations.orValue({{}})"
    path = pointers.annotation(name)
    await clamp(cluster, group, plural, has, f'[JSONPatch{{op: "remove", path: "{path}"}}]', when)
    await cluster.wait_until(lambda: _is_set(cluster, thing, {name: "x"}, name, False))


async def _is_set(cluster: Cluster, thing: Object, marks: Object, name: str, expected: bool) -> bool:
    try:
        tried = await cluster.patch(thing, {"metadata": {"annotations": marks}}, dryRun="All")
    except clusters.Refused:
        return False
    return (name in marks_of(tried)) is expected


@pytest.mark.accepts("idle", 40)
@pytest.mark.parametrize("writes", range(3))
@pytest.mark.parametrize("alters", ["strips-the-record", "clamps"])
async def test_whoever_alters_our_pauses_is_met_by_the_rehearsal_and_nothing_is_touched(
    cluster: Cluster, alters: str, writes: int
) -> None:
    """Killed after any of our requests, or not at all, no pod goes and no way back is lost."""
    before = await test_hands.make(cluster, "deployment")
    if alters == "clamps":
        await clamp_deployments(cluster, before, when=ALWAYS)
    else:
        await strip(cluster, before, "apps", "deployments", names.ORIGINAL_STATE, when=ALWAYS)
    before = await test_hands.settled(cluster, before)
    async with dying(cluster, after=writes) as hands:
        assert (await test_hands.carry_in_the_end(cluster, hands, before)).status is Status.failed
    after = await cluster.refresh(before)
    assert (after["spec"], after["metadata"]["generation"]) == (before["spec"], before["metadata"]["generation"])
    assert marks_of(after) == marks_of(before)


@pytest.mark.accepts("idle", 40)
@pytest.mark.parametrize("name", [names.ORIGINAL_STATE, names.PAUSED_AT])
async def test_a_pause_whose_marks_are_stripped_ends_as_it_began(cluster: Cluster, name: str) -> None:
    before = await test_hands.make(cluster, "deployment")
    await strip(cluster, before, "apps", "deployments", name)
    async with test_hands.hands_on(cluster) as hands:
        outcome = await test_hands.carry_in_the_end(cluster, hands, before)
    assert outcome.status is Status.failed
    back = await cluster.refresh(before)
    assert (back["spec"]["replicas"], pause_marks(back)) == (3, set())


@pytest.mark.accepts("idle", 40)
async def test_under_keda_a_stripped_record_pauses_nothing(cluster: Cluster) -> None:
    target, scaler = await pair(cluster)
    await strip(cluster, target, "apps", "deployments", names.ORIGINAL_STATE)
    async with test_hands.hands_on(cluster) as hands:
        outcome = await test_hands.carry_seen(hands, lambda: test_hands.with_scaler(cluster, target, scaler))
    assert outcome.status is Status.failed
    assert pause_marks(await cluster.refresh(target)) == set()
    assert marks_of(await cluster.refresh(scaler)) == marks_of(scaler)


async def test_a_stripped_ack_is_not_reported_as_given(cluster: Cluster) -> None:
    before = await test_hands.make(cluster, "deployment")
    await strip(cluster, before, "apps", "deployments", names.ACK_UNTIL)
    workload = examples.workload_of(await cluster.refresh(before))
    ack = marking.ack_mark(workload, until=NOW + 3600, by="ada", reason="r", now=NOW)
    async with test_hands.hands_on(cluster) as hands:
        (outcome,) = await execute.carry_out([ack], hands, no_look, NOW)
    assert outcome.status is Status.failed


async def test_a_stop_that_a_webhook_keeps_keeps_its_record(cluster: Cluster) -> None:
    before, key = await test_hands.make(cluster, "notebook"), "kubeflow-resource-stopped"
    async with test_hands.hands_on(cluster) as hands:
        assert (await test_hands.carry_in_the_end(cluster, hands, before)).status is Status.done
        gone = f"'{key}' in oldObject.metadata.?annotations.orValue({{}}) && !('{key}' in object.metadata.annotations)"
        keep = f'[JSONPatch{{op: "add", path: "/metadata/annotations/{key}", value: "kept"}}]'
        await clamp(cluster, "kubeflow.org", "notebooks", gone, keep)
        await cluster.wait_until(lambda: _is_set(cluster, before, {key: None}, key, True))
        workload = examples.workload_of(await cluster.refresh(before))
        (outcome,) = await execute.carry_out([test_hands.resume_of(workload)], hands, no_look, NOW + 60)
    assert outcome.status is Status.failed
    said = marks_of(await cluster.refresh(before))
    assert {key, names.ORIGINAL_STATE, names.PAUSED_AT} <= set(said)
    assert names.RESUMED_AT not in said


SUSPENDED = {
    "job": ("batch", "jobs", "Job/llm"), "rayjob": ("ray.io", "rayjobs", "RayJob/llm"),
}


@pytest.mark.accepts("idle", 40)
@pytest.mark.parametrize("writes", range(1, 4))
@pytest.mark.parametrize("name", SUSPENDED)
async def test_a_switch_that_a_webhook_keeps_keeps_its_record_also_when_we_are_killed(
    cluster: Cluster, name: str, writes: int
) -> None:
    group, plural, short = SUSPENDED[name]
    before = await test_hands.make(cluster, name)
    async with test_hands.hands_on(cluster) as hands:
        assert (await test_hands.carry_in_the_end(cluster, hands, before)).status is Status.done
    keep = '[JSONPatch{op: "add", path: "/spec/suspend", value: true}]'
    await clamp(cluster, group, plural, "!object.spec.?suspend.orValue(false)", keep)
    await cluster.wait_until(lambda: _is_suspended(cluster, before))
    async with dying(cluster, after=writes) as hands:
        resume = test_hands.resume_of(examples.workload_of(await cluster.refresh(before)))
        (outcome,) = await execute.carry_out([resume], hands, no_look, NOW + 60)
    assert outcome.status is Status.failed
    await next_cycle(cluster, short)
    still = await cluster.refresh(before)
    assert still["spec"]["suspend"] is True
    assert {names.ORIGINAL_STATE, names.PAUSED_AT} <= set(marks_of(still))
    assert names.RESUMED_AT not in marks_of(still)


async def _is_suspended(cluster: Cluster, thing: Object) -> bool:
    try:
        tried = await cluster.patch(thing, {"spec": {"suspend": False}}, dryRun="All")
    except clusters.Refused:  # of a new kind the server learns in a while
        return False
    return bool(tried["spec"].get("suspend"))


async def test_a_clamped_resume_that_is_killed_keeps_its_record(cluster: Cluster) -> None:
    before = await test_hands.make(cluster, "deployment")
    async with test_hands.hands_on(cluster) as hands:
        assert (await test_hands.carry_in_the_end(cluster, hands, before)).status is Status.done
    one = '[JSONPatch{op: "replace", path: "/spec/replicas", value: 1}]'
    await clamp(cluster, "apps", "deployments", "object.spec.replicas > 1", one)
    await cluster.wait_until(lambda: _is_at_most(cluster, before, 1))
    workload = (await test_eyes.look(cluster))["Deployment/llm"]
    async with dying(cluster, after=1) as hands:
        (outcome,) = await execute.carry_out([test_hands.resume_of(workload)], hands, no_look, NOW + 60)
    assert outcome.status is Status.failed
    await next_cycle(cluster, "Deployment/llm")
    half = await cluster.refresh(before)
    assert half["spec"]["replicas"] == 1
    assert json.loads(marks_of(half)[names.ORIGINAL_STATE])["fields"] == {"/spec/replicas": 3}


async def _is_at_most(cluster: Cluster, thing: Object, most: int) -> bool:
    tried = await cluster.patch(thing, {"spec": {"replicas": most + 2}}, dryRun="All")
    return int(tried["spec"]["replicas"]) <= most


@pytest.mark.accepts("idle", 52)
async def test_a_crafted_record_makes_nobody_set_what_its_author_may_not(cluster: Cluster) -> None:
    thing = await cluster.apply(clusters.replicated("apps/v1", "Deployment", "llm", 0, 1))
    record = {"v": 1, "fields": {"/spec/replicas": 3, "/spec/template/spec/hostPID": True}}
    said = {names.ORIGINAL_STATE: json.dumps(record), names.PAUSED_AT: "2026-11-14T22:00:00Z"}
    await cluster.patch(thing, {"metadata": {"annotations": {**said, names.RESUME_REQUESTED: "me"}}})
    before = await test_hands.settled(cluster, thing)
    (outcome,) = await next_cycle(cluster, "Deployment/llm")  # resume-requested, seen by the daemon
    assert (outcome.status, outcome.code) == (Status.refused, decision.Code.NoOriginalState)
    assert "/spec/template/spec/hostPID" in outcome.because
    after = await cluster.refresh(thing)
    assert (after["spec"], marks_of(after)) == (before["spec"], marks_of(before))


async def test_an_ack_on_the_namespace_after_the_second_look_stops_the_pause(cluster: Cluster) -> None:
    before = await test_hands.make(cluster, "deployment")
    space = await cluster.get("v1", "Namespace", cluster.namespace)
    looked_at = nouns.Namespace(cluster.namespace, space["metadata"]["labels"], marks_of(space))
    workload = await _see(cluster, before)
    finding, looks = pause_of(workload).finding, [looked_at]

    async def look_again(_: Any) -> dict[str, execute.SecondLook]:
        if not looks:
            return {workload.ref.uid: execute.SecondLook(workload, None, "kept")}
        await cluster.patch(space, {"metadata": {"annotations": {names.ACK_UNTIL: "2026-11-16T00:00:00Z"}}})
        return {workload.ref.uid: execute.SecondLook(workload, finding, "", (), looks.pop())}

    async with test_hands.hands_on(cluster) as hands:
        (outcome,) = await execute.carry_out([decision.Pause(finding, "idle")], hands, look_again, NOW)
    assert (outcome.status, outcome.because) == (Status.overtaken, "the second look found: kept")
    assert (await cluster.refresh(before))["spec"]["replicas"] == 3


async def test_an_ack_on_a_job_after_the_second_look_stops_the_pause_through_kueue(cluster: Cluster) -> None:
    on = await play_kueue(cluster)
    stale = await on.see()
    ack = marking.ack_mark(await on.see(), until=NOW + 3600, by="ada", reason="training", now=NOW)
    async with test_hands.hands_on(cluster) as hands:
        assert (await hands.mark(ack, NOW)).status is Status.done
        outcome = await test_hands.carry(hands, stale)
    assert outcome.status is Status.overtaken
    assert (await cluster.refresh(on.things[1]))["spec"]["active"] is True


# ---- KEDA writes after us --------------------------------------------------------------------------------------------


class Keda:
    """A stand-in: it holds its target where it is told to, and writes once more 65 ms after it is let go."""

    def __init__(self, cluster: Cluster, target: Object, scaler: Object, wakes_at: int = 1) -> None:
        self._cluster, self._target, self._scaler, self._wakes_at = cluster, target, scaler, wakes_at
        self.turns = 0

    async def hold(self) -> None:
        await self._cluster.patch(self._target, {"spec": {"replicas": 0}}, part="scale", fieldManager="keda")
        await self._cluster.patch(self._scaler, {"status": {"pausedReplicaCount": 0}}, part="status")

    async def take_turn(self) -> None:
        await asyncio.sleep(0.065)
        scale = {"spec": {"replicas": self._wakes_at}}
        await self._cluster.patch(self._target, scale, part="scale", fieldManager="keda")
        await self._cluster.patch(self._scaler, {"status": {"pausedReplicaCount": None}}, part="status")
        self.turns += 1

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[doing.Hands]:
        """Hands whose requests it sees."""
        turns: list[asyncio.Task[None]] = []

        async def see(exchange: faults.Exchange) -> web.StreamResponse:
            answer = await exchange.forward()
            is_let_go = f'"{names.KEDA_PAUSED_REPLICAS}":null' in exchange.text
            if not turns and exchange.text.startswith("PATCH") and "/scaledobjects/" in exchange.text and is_let_go:
                turns.append(asyncio.ensure_future(self.take_turn()))
            return answer

        async with through_proxy(self._cluster, see) as hands:
            yield hands
        await asyncio.gather(*turns)


@contextlib.asynccontextmanager
async def through_proxy(cluster: Cluster, fault: faults.Fault) -> AsyncIterator[doing.Hands]:
    async with product.proxy_to_api_server(cluster.plane) as proxy:
        kubeconfig = await cluster.service_account("hands", EVERYTHING, through=proxy.url)
        async with test_hands.hands_on(cluster, kubeconfig) as hands:
            proxy.fault = fault
            yield hands


async def pair(cluster: Cluster) -> tuple[Object, Object]:
    return await test_hands.make(cluster, "deployment"), await test_hands.make_scaler(cluster)


@pytest.mark.accepts("idle", 62)
async def test_the_recorded_size_stands_after_kedas_turn(cluster: Cluster) -> None:
    target, scaler = await pair(cluster)
    keda = Keda(cluster, target, scaler)
    async with keda.watching() as hands:
        see = lambda: test_hands.with_scaler(cluster, target, scaler)  # noqa: E731
        assert (await test_hands.carry_seen(hands, see)).status is Status.done
        await keda.hold()
        outcome = await hands.resume(test_hands.resume_of(await see()), NOW + 60)
    assert outcome.status is Status.done, outcome.detail
    assert keda.turns == 1
    back = await cluster.refresh(target)
    assert back["spec"]["replicas"] == 3
    assert pause_marks(back) == set()
    assert marks_of(await cluster.refresh(scaler)) == marks_of(scaler)


@pytest.mark.accepts("idle", 62)
async def test_the_immunity_of_the_last_resume_outlives_a_keda_pause_that_failed(cluster: Cluster) -> None:
    target, scaler = await pair(cluster)
    resumed = {names.RESUMED_AT: "2026-11-14T22:00:00Z", names.RESUMED_BY: "ada", names.IDLE_SINCE: "x"}
    await cluster.patch(target, {"metadata": {"annotations": resumed}})
    rules = [{"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get", "patch"]}]
    kubeconfig = await cluster.service_account("only-deployments", rules)
    async with test_hands.hands_on(cluster, kubeconfig) as hands:
        outcome = await test_hands.carry_seen(hands, lambda: test_hands.with_scaler(cluster, target, scaler))
    assert outcome.status is Status.failed
    assert outcome.detail.startswith("403 ")
    said = marks_of(await cluster.refresh(target))
    assert {name: value for name, value in said.items() if name.startswith(names.GROUP)} == resumed


@pytest.mark.accepts("idle", 62)
async def test_the_immunity_outlives_a_keda_pause_that_was_rehearsed_and_refused_at_its_second_write(
    cluster: Cluster
) -> None:
    target, scaler = await pair(cluster)
    resumed = {names.RESUMED_AT: "2026-11-14T22:00:00Z", names.RESUMED_BY: "ada", names.IDLE_SINCE: "x"}
    await cluster.patch(target, {"metadata": {"annotations": resumed}})
    between: list[Object] = []

    async def refuse(exchange: faults.Exchange) -> web.StreamResponse:
        if exchange.request.method != "PATCH" or "/scaledobjects/" not in exchange.text or "dryRun" in exchange.text:
            return await exchange.forward()
        between.append(marks_of(await cluster.refresh(target)))
        return web.json_response({"kind": "Status", "code": 403, "message": "not any more"}, status=403)

    async with through_proxy(cluster, refuse) as hands:
        outcome = await test_hands.carry_seen(hands, lambda: test_hands.with_scaler(cluster, target, scaler))
    assert (outcome.status, outcome.detail) == (Status.failed, "403 not any more")
    assert between, "the second write was never tried"
    assert all(names.RESUMED_AT not in each and names.ORIGINAL_STATE in each for each in between)
    back = await cluster.refresh(target)
    assert {name: value for name, value in marks_of(back).items() if name.startswith(names.GROUP)} == resumed
    assert back["spec"]["replicas"] == 3


@pytest.mark.accepts("idle", 40, 62)
async def test_a_keda_pause_that_lands_after_its_error_has_its_record(cluster: Cluster) -> None:
    target, scaler = await pair(cluster)
    late: list[faults.Exchange] = []

    async def time_out(exchange: faults.Exchange) -> web.StreamResponse:
        is_dry = "dryRun" in exchange.request.query
        if exchange.text.startswith("PATCH") and "/scaledobjects/" in exchange.text and not is_dry and not late:
            late.append(exchange)
            return web.Response(status=504, text="upstream timed out")
        return await exchange.forward()

    async with through_proxy(cluster, time_out) as hands:
        outcome = await test_hands.carry(hands, await test_hands.with_scaler(cluster, target, scaler))
        assert outcome.status is Status.failed
        await late[0].fetch()
    assert await next_cycle(cluster, "Deployment/llm") == []
    assert marks_of(await cluster.refresh(scaler))[names.KEDA_PAUSED_REPLICAS] == "0"
    assert names.ORIGINAL_STATE in marks_of(await cluster.refresh(target))


# ---- a process that dies between two requests ------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def dying(cluster: Cluster, after: int) -> AsyncIterator[doing.Hands]:
    """Hands whose process is killed after so many writes: whatever it asks then reaches nobody."""
    left = [after]

    async def die(exchange: faults.Exchange) -> web.StreamResponse:
        if left[0] <= 0:
            return await _hang_up(exchange)
        if exchange.request.method == "PATCH" and "dryRun" not in exchange.request.query:
            left[0] -= 1
        return await exchange.forward()

    async with through_proxy(cluster, die) as hands:
        yield hands


async def _hang_up(exchange: faults.Exchange) -> web.StreamResponse:
    if exchange.request.transport is not None:
        exchange.request.transport.abort()
    return web.Response()


async def next_cycle(cluster: Cluster, short: str) -> list[Outcome]:
    """What a daemon does that starts now, as far as marks are concerned."""
    workload = (await test_eyes.look(cluster)).get(short)
    decisions = pauses.tend(workload, (), idle.Rule(), NOW + 120) if workload else []
    async with test_hands.hands_on(cluster) as hands:
        return await execute.carry_out(decisions, hands, no_look, NOW + 120)


async def no_look(_: Any) -> dict[str, execute.SecondLook]:
    return {}


class Play:
    """One workload with what steers it, paused and resumed by hands that may die."""

    def __init__(
        self, cluster: Cluster, short: str, things: list[Object], see: Callable[[], Awaitable[nouns.Workload]]
    ) -> None:
        self.cluster, self.short, self.see = cluster, short, see
        self.things = things  # the workload first
        self.before = [essence(thing) for thing in things]

    async def pause(self, hands: doing.Hands) -> Outcome:
        return await test_hands.carry_seen(hands, self.see)

    async def resume(self, hands: doing.Hands) -> Outcome:
        (outcome,) = await execute.carry_out([test_hands.resume_of(await self.see())], hands, no_look, NOW + 60)
        return outcome

    async def settle(self) -> None:
        """Cycles until nothing is left to be put in order."""
        for _ in range(4):
            if not await next_cycle(self.cluster, self.short):
                return
        raise AssertionError("it is never put in order")

    async def now(self) -> list[Object]:
        return [await self.cluster.refresh(thing) for thing in self.things]

    async def is_as_before(self) -> bool:
        now = await self.now()
        return [essence(thing) for thing in now] == self.before and not any(map(pause_marks, now))


def essence(thing: Object) -> Object:
    """What people wrote, and what KEDA heeds."""
    keda = {name: value for name, value in marks_of(thing).items() if "keda" in name}
    return {"spec": thing["spec"], "keda": keda}


async def play_deployment(cluster: Cluster) -> Play:
    thing = await test_hands.make(cluster, "deployment")
    return Play(cluster, "Deployment/llm", [thing], lambda: _see(cluster, thing))


async def _see(cluster: Cluster, thing: Object, **more: Any) -> nouns.Workload:
    return examples.workload_of(await test_hands.settled(cluster, thing), **more)


async def play_roles(cluster: Cluster) -> Play:
    thing = await test_hands.make(cluster, "disaggregated")
    return Play(cluster, "DisaggregatedSet/llm", [thing], lambda: _see(cluster, thing))


async def play_switch(cluster: Cluster) -> Play:
    thing = await test_hands.make(cluster, "notebook")
    return Play(cluster, "Notebook/llm", [thing], lambda: _see(cluster, thing))


async def play_service(cluster: Cluster) -> Play:
    """Every write restarts its pods, so that its resume is one."""
    thing = await test_hands.make(cluster, "isvc")
    return Play(cluster, "InferenceService/llm", [thing], lambda: _see(cluster, thing))


async def play_keda(cluster: Cluster) -> Play:
    target, scaler = await pair(cluster)
    return Play(
        cluster, "Deployment/llm", [target, scaler], lambda: test_hands.with_scaler(cluster, target, scaler)
    )


async def play_kueue(cluster: Cluster) -> Play:
    await cluster.apply_crds(crds.KINDS["Workload"])
    job = await cluster.apply(clusters.job("llm"))
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "llm", "uid": job["metadata"]["uid"], "controller": True}
    labels = {names.KUEUE_JOB_UID: job["metadata"]["uid"]}
    held = await cluster.apply({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "spec": {"active": True},
        "metadata": {"name": "job-llm", "labels": labels, "ownerReferences": [owner]},
    })

    async def see() -> nouns.Workload:
        companion = examples.companion_of(await cluster.refresh(held), ("/spec/active",))
        return await _see(cluster, job, kueue=(companion,))

    return Play(cluster, "Job/llm", [job, held], see)


PLAYS = {
    "deployment": play_deployment, "roles": play_roles, "switch": play_switch, "service": play_service,
    "keda": play_keda, "kueue": play_kueue,
}
MOST_WRITES = 8  # of any pause or resume


@pytest.mark.accepts("idle", 39, 40, 62)
@pytest.mark.parametrize("play", PLAYS.values(), ids=PLAYS)
async def test_killed_between_any_two_requests_of_a_pause_it_ends_well(
    cluster: Cluster, play: Callable[[Cluster], Awaitable[Play]]
) -> None:
    on = await play(cluster)
    for writes in range(MOST_WRITES):
        async with dying(cluster, after=writes) as hands:
            outcome = await on.pause(hands)
        await on.settle()
        if await on.is_as_before():
            assert outcome.status is not Status.done
            continue
        async with test_hands.hands_on(cluster) as hands:  # paused: with a record that brings it back
            assert (await on.resume(hands)).status is Status.done, writes
        assert await on.is_as_before(), writes
        if outcome.status is Status.done:
            return
    raise AssertionError("no pause came to its end")


@pytest.mark.accepts("idle", 15, 40, 62)
@pytest.mark.parametrize("play", PLAYS.values(), ids=PLAYS)
async def test_killed_between_any_two_requests_of_a_resume_it_ends_well(
    cluster: Cluster, play: Callable[[Cluster], Awaitable[Play]]
) -> None:
    on = await play(cluster)
    for writes in range(MOST_WRITES):
        async with test_hands.hands_on(cluster) as hands:
            await cluster.patch(on.things[0], {"metadata": {"annotations": {names.PENDING_SINCE: "x"}}})
            assert (await on.pause(hands)).status is Status.done
        if len(on.things) > 1 and on.short.startswith("Deployment"):
            await Keda(cluster, *on.things).hold()
            await cluster.patch(on.things[1], {"status": {"pausedReplicaCount": None}}, part="status")
        async with dying(cluster, after=writes) as hands:
            outcome = await on.resume(hands)
        await on.settle()
        if not await on.is_as_before():
            async with test_hands.hands_on(cluster) as hands:  # still paused: with a complete record
                assert (await on.resume(hands)).status is Status.done, writes
        now = [marks_of(each) for each in await on.now()]
        assert await on.is_as_before(), (writes, now)
        assert any(names.RESUMED_AT in said for said in now), "whoever resumed it is not told of a pause that failed"
        assert not any(names.PAUSE_REVERSALS in said or names.PENDING_SINCE in said for said in now), (writes, now)
        assert await cluster.events(names.Event.PAUSE_FAILED) == []
        if outcome.status is Status.done:
            return
    raise AssertionError("no resume came to its end")


@pytest.mark.accepts("idle", 40)
@pytest.mark.parametrize("writes", range(1, 4))
async def test_killed_while_a_clamped_pause_is_taken_back_it_ends_as_it_began(cluster: Cluster, writes: int) -> None:
    on = await play_deployment(cluster)
    await clamp_deployments(cluster, on.things[0])
    async with dying(cluster, after=writes) as hands:
        assert (await on.pause(hands)).status is Status.failed
    await on.settle()
    assert await on.is_as_before()


async def test_a_request_dies_with_its_process(cluster: Cluster) -> None:
    """That the fault of these tests is one."""
    on = await play_deployment(cluster)
    async with dying(cluster, after=0) as hands:
        assert (await execute.carry_out([pause_of(await on.see())], hands, no_look, NOW))[0].status is not Status.done
    assert await on.is_as_before()
