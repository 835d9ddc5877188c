"""`gpu-pruner` run once on a real cluster with a real Prometheus: exit codes, what is written and what is not, rights,
caps, the log."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib

import pytest

from fallow import names
from tests.real import faults, product, test_deploy, world

SECRET = "s3cr3t-t0k3n"
ACT = ("-r", "scale-down")


# ---- exit codes ------------------------------------------------------------------------------------------------------


@pytest.mark.accepts("idle", 11, 15)
async def test_idle_ones_are_paused_once_and_come_back_without_prometheus(
    stage: product.Stage, folder: pathlib.Path
) -> None:
    quiet = await stage.workload("quiet", replicas=3)
    lonely = await stage.workload("lonely", kind="StatefulSet")
    mixed = await stage.workload("mixed", replicas=2)
    stage.measure((await stage.cluster.pods("app=mixed"))[0], 0.7)  # a second series of one replica: it is busy
    await stage.prometheus.start()
    async with product.product_on(stage, folder) as pruner:
        dry = await pruner.prune()
        assert (dry.code, pruner.writes()[0].uri.count("dryRun=All")) == (0, 1), dry.said
        assert not await stage.is_paused(quiet)
        acted = await pruner.prune(*ACT)
        assert acted.code == 0, acted.said
        assert [await stage.is_paused(each) for each in (quiet, lonely, mixed)] == [True, True, False]
        again = await pruner.prune(*ACT)
        assert again.code == 0
        assert [len(pruner.pauses(name)) for name in ("quiet", "lonely", "mixed")] == [1, 1, 0]
        lease = await stage.lease()
        assert lease is not None
        assert lease["spec"]["holderIdentity"] == ""
        await stage.prometheus.kill()
        back = await pruner.fallow("resume", "Deployment/quiet", "-n", stage.namespace)
        assert back.code == 0, back.said
    now = await stage.now(quiet)
    assert now["spec"]["replicas"] == 3
    assert not set(now["metadata"]["annotations"]) & set(names.PAUSE_KEYS)
    await stage.cluster.wait_until(lambda: stage.cluster.ready_pods("app=quiet", 3))


FAULTS: dict[str, tuple[faults.Fault, str]] = {
    "warnings": (faults.warnings, "answered only in part"),
    "partial": (faults.partial, "answered only in part"),
    "empty": (faults.empty, "no series of any GPU"),
    "500": (faults.status(500), "answered 500"),
    "401": (faults.status(401), "answered 401"),
    "html": (faults.html, "web page"),
    "cut": (faults.cut, "cannot be reached"),
    "lying-time": (faults.ahead(3600.0), "answered for another time"),
}


@pytest.mark.accepts("idle", 5)
async def test_a_source_that_cannot_be_believed_is_no_decision_and_nothing_is_written(
    stage: product.Stage, folder: pathlib.Path
) -> None:
    """All faults at once, each with a run of its own."""
    idle = await stage.workload("quiet")
    await stage.prometheus.start()
    async with product.product_on(stage, folder) as pruner, contextlib.AsyncExitStack() as stack:
        proxies = {name: await stack.enter_async_context(faults.FaultyProxy(stage.prometheus.url)) for name in FAULTS}
        for name, proxy in proxies.items():
            proxy.fault = FAULTS[name][0]
        urls = {name: proxy.url for name, proxy in proxies.items()} | {
            "unreachable": f"http://127.0.0.1:{product.free_port()}"
        }
        # Each with a Lease of its own, or they would wait for each other.
        runs = [_prune_from(pruner, stage, name, url) for name, url in urls.items()]
        ends = dict(zip(urls, await asyncio.gather(*runs), strict=True))
        assert {name: end.code for name, end in ends.items()} == dict.fromkeys(urls, 1)
        words = {name: said for name, (_, said) in FAULTS.items()} | {"unreachable": "cannot be reached"}
        assert [name for name, end in ends.items() if words[name] not in end.err] == [], ends
        assert pruner.writes() == []
    assert not await stage.is_paused(idle)


async def _prune_from(pruner: product.Product, stage: product.Stage, name: str, url: str) -> product.Ended:
    place = f"{stage.system}-{name}"
    await stage.cluster.make_namespace(place)
    return await pruner.prune(*ACT, env={"PROMETHEUS_URL": url, "POD_NAMESPACE": place})


@pytest.mark.accepts("idle", 5)
async def test_samples_from_the_future_are_no_evidence(stage: product.Stage, folder: pathlib.Path) -> None:
    """The instant is the one asked for, and what timestamp() says lies ahead: that exporter's clock is wrong."""
    idle = await stage.workload("quiet")
    await stage.prometheus.start()
    async with product.product_on(stage, folder) as pruner, faults.FaultyProxy(stage.prometheus.url) as proxy:
        proxy.fault = faults.only("timestamp", _shift_values(3600.0))
        end = await pruner.prune(*ACT, env={"PROMETHEUS_URL": proxy.url})
        assert end.code == 0
        assert "FutureSamples 1" in end.err
        assert pruner.writes() == []
    assert not await stage.is_paused(idle)


def _shift_values(seconds: float) -> faults.Fault:
    async def fault(exchange: faults.Exchange) -> faults.web.StreamResponse:
        answer = await exchange.fetch()
        for sample in answer["data"]["result"]:
            sample["value"][1] = str(float(sample["value"][1]) + seconds)
        return faults.web.json_response(answer)

    return fault


async def test_a_configuration_that_cannot_work_is_exit_2_and_a_server_that_is_away_is_exit_1(
    stage: product.Stage, folder: pathlib.Path, control_plane: world.ControlPlane
) -> None:
    await stage.prometheus.start()
    nowhere = control_plane.kubeconfig_with_token(
        SECRET, folder / "nowhere", "default", f"https://127.0.0.1:{product.free_port()}"
    )
    stranger = control_plane.kubeconfig_with_token(SECRET, folder / "stranger", "default")
    garbage = folder / "garbage"
    garbage.write_text("clusters: [")
    async with product.product_on(stage, folder) as pruner:
        places = (folder / "missing", garbage, nowhere, stranger)
        every = await asyncio.gather(*(pruner.prune("--kubeconfig", str(place)) for place in places))
    ends = {place.name: end for place, end in zip(places, every, strict=True)}
    assert {name: end.code for name, end in ends.items()} == {"missing": 2, "garbage": 2, "nowhere": 1, "stranger": 1}
    for name, end in ends.items():
        [sentence] = [line for line in end.err.splitlines() if "ERROR" in line]
        assert name in sentence or "127.0.0.1" in sentence or "nauthorized" in sentence
        assert SECRET not in end.said
        assert "Traceback" not in end.said


@pytest.mark.accepts("idle", 29)
async def test_a_usage_error_contacts_nobody(stage: product.Stage, folder: pathlib.Path) -> None:
    await stage.prometheus.start()
    async with product.product_on(stage, folder) as pruner, faults.FaultyProxy(stage.prometheus.url) as proxy:
        mark = len(stage.cluster.requests(agent="fallow"))
        wrong = {"--enabled-resources": ["-e", "dq"], "--duration": ["-t", "0"], "--namespace": ["-n", "("]}
        wrong["SLACK_SIGNING_SECRET"] = ["-d", "--slack-interaction-port", "3002"]
        for flag, given in wrong.items():
            end = await pruner.prune(*given, env={"PROMETHEUS_URL": proxy.url})
            assert (end.code, flag in end.err) == (2, True), end.said
        assert proxy.seen == []
        assert len(stage.cluster.requests(agent="fallow")) == mark


async def test_a_lease_that_another_holds_is_no_decision(stage: product.Stage, folder: pathlib.Path) -> None:
    idle = await stage.workload("quiet")
    await stage.prometheus.start()
    spec = {"holderIdentity": "somebody", "leaseDurationSeconds": 3600, "renewTime": "2026-01-01T00:00:00.000000Z"}
    metadata = {"name": names.LEASE, "namespace": stage.system}
    await stage.cluster.apply(
        {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
    )
    async with product.product_on(stage, folder) as pruner:
        end = await pruner.prune(*ACT)
        assert (end.code, "somebody holds it" in end.err) == (1, True), end.said
        assert pruner.writes(lease=True) == []
    assert not await stage.is_paused(idle)


async def test_frozen_by_hand_is_exit_4_until_unfrozen(stage: product.Stage, folder: pathlib.Path) -> None:
    idle = await stage.workload("quiet")
    await stage.prometheus.start()
    metadata = {"name": names.LEASE, "namespace": stage.system}  # of a daemon that ran some time ago
    await stage.cluster.apply({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata})
    async with product.product_on(stage, folder) as pruner:
        said = await pruner.fallow("freeze", "--for", "2h", "-n", stage.system, "--reason", "demo day")
        assert said.code == 0, said.said
        frozen = await asyncio.gather(pruner.prune(*ACT), pruner.prune())
        assert [end.code for end in frozen] == [4, 4], frozen
        assert "demo day" in frozen[0].err
        assert pruner.writes() == []
        assert (await pruner.fallow("unfreeze", "-n", stage.system)).code == 0
        assert (await pruner.prune(*ACT)).code == 0
    assert await stage.is_paused(idle)


# ---- rights ----------------------------------------------------------------------------------------------------------


async def _install(stage: product.Stage, *places: str) -> None:
    """The manifests of deploy/, with our Lease's namespace for theirs."""
    for thing in test_deploy.manifests(*places, namespace=stage.system):
        await stage.cluster.apply(thing)


@pytest.mark.accepts("idle", 28)
async def test_the_shipped_roles_suffice_for_what_they_are_for(stage: product.Stage, folder: pathlib.Path) -> None:
    quiet = await stage.workload("quiet", replicas=2)
    await stage.prometheus.start()
    await _install(stage, "base/20-reader.yaml")
    async with product.product_on(stage, folder, rules=()) as pruner:
        await test_deploy.has_settled(Elsewhere(stage), "list", "", "pods")
        dry = await pruner.prune()
        assert dry.code == 0, dry.said
        assert "would pause" in dry.err
        assert "(not checked by the API server: 403 " in dry.err
        assert f"would pause {stage.namespace}/quiet (2 GPUs" in dry.err
        assert "not seen" not in dry.err
        reader = await pruner.prune("--dry-run-scope", "client")
        assert (reader.code, "(not checked)" in reader.err) == (0, True), reader.said
        denied = await pruner.prune(*ACT)
        assert (denied.code, "403" in denied.err) == (3, True), denied.said
        now = await stage.now(quiet)
        assert (now["spec"], now["metadata"]["annotations"]) == (quiet["spec"], quiet["metadata"]["annotations"])
        await _install(stage, "acting/10-role.yaml")
        await test_deploy.has_settled(Elsewhere(stage), "patch", "apps", "deployments")
        acted = await pruner.prune(*ACT)
        assert acted.code == 0, acted.said
    assert await stage.is_paused(quiet)
    events = await stage.cluster.events()
    assert {event["reason"] for event in events if event["reportingController"] == "gpu-pruner"} == {
        names.Event.IDLE_DETECTED, names.Event.SCALED_TO_ZERO,
    }


class Elsewhere:
    """test_deploy asks about the account in the cluster's own namespace; ours lives in that of the Lease."""

    def __init__(self, stage: product.Stage) -> None:
        self.namespace, self.request, self.wait_until = stage.system, stage.cluster.request, stage.cluster.wait_until


async def test_a_kind_that_may_not_be_patched_does_not_stop_the_others(
    stage: product.Stage, folder: pathlib.Path
) -> None:
    quiet = await stage.workload("quiet")
    lonely = await stage.workload("lonely", kind="StatefulSet")
    await stage.prometheus.start()
    read = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]}
    write = {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["patch"]}
    own = {"apiGroups": ["coordination.k8s.io", "events.k8s.io"], "resources": ["leases", "events"], "verbs": ["*"]}
    async with product.product_on(stage, folder, rules=[read, write, own]) as pruner:
        end = await pruner.prune(*ACT)
        assert end.code == 3, end.said
        assert "failed to pause" in end.err
    assert [await stage.is_paused(quiet), await stage.is_paused(lonely)] == [True, False]
    assert [event["regarding"]["name"] for event in await stage.cluster.events(names.Event.PAUSE_FAILED)] == ["lonely"]


# ---- caps ------------------------------------------------------------------------------------------------------------


@pytest.mark.accepts("idle", 25)
async def test_fifty_candidates_and_a_cap_of_ten(stage: product.Stage, folder: pathlib.Path) -> None:
    await stage.cluster.gpu_node("gpu-2", 50)
    await asyncio.gather(*(stage.workload(f"quiet-{number}", kind="ReplicaSet") for number in range(50)))
    await stage.prometheus.start()
    async with product.product_on(stage, folder) as pruner:
        end = await pruner.prune(*ACT, "--max-actions-per-namespace", "50")
        assert end.code == 0, end.said
        assert "50 idle (50 workloads: 40 capped)" in end.err
    sizes = [thing["spec"]["replicas"] for thing in await stage.cluster.objects("apps/v1", "ReplicaSet")]
    assert sorted(sizes) == [0] * 10 + [1] * 40


# ---- the log ---------------------------------------------------------------------------------------------------------


async def test_the_log_is_one_object_a_line_with_audit_fields_and_no_secret(
    stage: product.Stage, folder: pathlib.Path
) -> None:
    quiet = await stage.workload("quiet")
    kept = await stage.workload("kept")
    await stage.prometheus.start()
    forged = 'me\n{"level":"error","message":"forged"}\n2026-01-01T00:00:00Z ERROR fallow: forged'
    marks = {names.ACK_UNTIL: "2099-01-01T00:00:00Z", names.ACK_BY: forged}
    await stage.cluster.patch(kept, {"metadata": {"annotations": marks}})
    secrets = ("--prometheus-token", SECRET, "--prometheus-header", f"X-Scope-OrgID: {SECRET}")
    async with product.product_on(stage, folder) as pruner, faults.FaultyProxy(stage.prometheus.url) as proxy:
        proxy.fault = faults.demand(f"Bearer {SECRET}")
        end = await pruner.prune(*ACT, "-l", "json", *secrets, env={"PROMETHEUS_URL": proxy.url, "FALLOW_LOG": "debug"})
        plain = await pruner.prune("-l", "default", *secrets, env={"PROMETHEUS_URL": proxy.url})
    token = json.dumps(pruner.kubeconfig.read_text())
    assert (end.code, plain.code) == (0, 0), end.said + plain.said
    assert SECRET not in end.said + plain.said
    assert not [word for word in end.said.split('"') if len(word) > 100 and word in token]
    assert {record["level"] for record in end.records} <= {"info", "warning", "debug"}
    assert not [line for line in plain.err.splitlines() if line.startswith(("{", "2026-01-01"))]
    [pause] = [record for record in end.records if record.get("audit") == "Pause"]
    assert pause["workload"] == {
        "group": "apps", "kind": "Deployment", "namespace": stage.namespace, "name": "quiet",
        "uid": quiet["metadata"]["uid"],
    }
    assert (pause["actor"], pause["result"], pause["verdict"], pause["policy"]) == ("fallow", "done", "idle", "flags")
    assert (pause["before"], pause["after"]) == ({"/spec/replicas": 1}, {"/spec/replicas": 0})
    assert any(record.get("audit") == "Mark" for record in end.records)  # the ack made by hand, stamped


