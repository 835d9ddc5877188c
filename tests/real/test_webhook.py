"""The admission webhook of budgets as a process, asked by a real API server over TLS: whom it denies, whom it never
does, who may break the glass, what throttled pods get, and certificates that change under it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import pathlib
import signal
import ssl
import subprocess
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import yaml

from fallow import names
from fallow.act import certificates
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config
from fallow.model import units
from fallow.model.policies import budget_crd
from tests import ROOT
from tests.real import cluster as clusters
from tests.real import product

VERSION = "gpuautoscaler.io/v1alpha1"
MAKES_PODS = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "get"]}]


class Gate:
    """A running webhook, and the cluster that asks it."""

    def __init__(self, cluster: clusters.Cluster, folder: pathlib.Path) -> None:
        self.cluster, self.folder, self.port = cluster, folder, product.free_port()
        self.papers = certificates.renew(None, "localhost", time.time())
        self.process: subprocess.Popen[bytes] | None = None
        self.log = folder / "webhook.log"
        self.budget = f"b-{cluster.namespace}"

    def write_papers(self, papers: certificates.Papers) -> None:
        self.papers = papers
        for name, content in (("tls.crt", papers.leaf), ("tls.key", papers.leaf_key)):
            scratch = self.folder / f"{name}.new"
            scratch.write_bytes(content)
            scratch.replace(self.folder / name)

    async def start(self, *more: str) -> None:
        self.write_papers(self.papers)
        roles = yaml.safe_load_all((ROOT / "deploy/webhook/20-webhook-role.yaml").read_text())
        rules = [rule for each in roles for rule in each.get("rules", ())]
        account = await self.cluster.service_account("webhook", rules)
        words = [
            str(product.BIN / "fallow"), "webhook", "--webhook-addr", f"127.0.0.1:{self.port}", "--webhook-cert-dir",
            str(self.folder), "--kubeconfig", str(account), "--log-format", "json", *more,
        ]
        environ = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "POD_NAMESPACE": "our-own"}
        with self.log.open("wb") as log:
            self.process = await asyncio.to_thread(subprocess.Popen, words, env=environ, stderr=log)
        await self.cluster.wait_until(self.is_ready)

    async def ask(self, path: str) -> tuple[int, str]:
        trust = ssl.create_default_context(cadata=self.papers.bundle.decode())
        url = f"https://localhost:{self.port}{path}"
        async with aiohttp.ClientSession() as http, http.get(url, ssl=trust) as answer:
            return answer.status, await answer.text()

    async def is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()
        try:
            return (await self.ask("/readyz"))[0] == 200
        except aiohttp.ClientError:
            return False

    async def stop(self) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    async def configure(self, *, bundle: bytes | None = None) -> None:
        """As deploy/enforcement does, by an address instead of a Service, for the test's namespaces alone."""
        for thing in yaml.safe_load_all((ROOT / "deploy/webhook/40-configurations.yaml").read_text()):
            for hook in thing["webhooks"]:
                path = hook["clientConfig"]["service"]["path"]
                hook["clientConfig"] = {
                    "url": f"https://localhost:{self.port}{path}",
                    "caBundle": base64.b64encode(bundle or self.papers.bundle).decode(),
                }
                hook["namespaceSelector"]["matchLabels"] = {"test": self.cluster.namespace}
            thing["metadata"]["name"] = f"{thing['metadata']['name']}-{self.cluster.namespace}"
            await self.cluster.apply(thing)

    async def make_budget(self, mode: str, *, scope: dict[str, Any] | None = None, **throttle: Any) -> None:
        """`scope`: instead of the namespaces of the test's own team."""
        labels = {"team": self.cluster.namespace}
        spec = {
            "scope": scope or {"type": "namespace", "namespaceSelector": {"matchLabels": labels}},
            "budget": {"amount": 50000}, "enforcement": {"mode": mode, "throttleConfig": throttle},
        }
        body = {"apiVersion": VERSION, "kind": "CostBudget", "metadata": {"name": self.budget}, "spec": spec}
        await self.cluster.apply(body)
        await self.say()

    async def say(self, *, active: bool = True, age: float = 0.0) -> None:
        """The status, as the controller writes it; seen by the webhook when this returns."""
        made = await self.cluster.get(VERSION, "CostBudget", self.budget)
        status = {
            "enforcementActive": active, "lastUpdated": units.rfc3339(time.time() - age), "currentSpend": "51204.10",
            "exceededSince": "2026-11-15T08:00:00Z", "currency": "USD",
        }
        await self.cluster.patch(made, {"status": status}, part="status")

    async def place(self, suffix: str, *, team: bool = True) -> str:
        name = f"{self.cluster.namespace}-{suffix}"
        labels = {"test": self.cluster.namespace, **({"team": self.cluster.namespace} if team else {})}
        await self.cluster.make_namespace(name, labels)
        return name


@pytest.fixture
async def gate(cluster: clusters.Cluster, tmp_path: pathlib.Path) -> AsyncIterator[Gate]:
    await cluster.apply_crds(budget_crd.define())
    made = Gate(cluster, tmp_path)
    try:
        await made.start()
        await made.configure()
        yield made
    finally:
        await made.stop()


def pod(name: str, gpus: int = 1, annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    made = clusters.pod_template(name, gpus, annotations=annotations, **spec)
    return {"apiVersion": "v1", "kind": "Pod", **made, "metadata": {**made["metadata"], "name": name}}


@contextlib.asynccontextmanager
async def acting_as(kubeconfig: pathlib.Path) -> AsyncIterator[kube.Api]:
    access = config.load_access(kubeconfig=str(kubeconfig), context=None, environment={})
    async with kube.Api(access) as api:
        yield api


async def is_denied(gate: Gate, place: str, *, team: str = "", **more: Any) -> str | None:
    """By a dry run: the sentence; None: admitted. `team`: that the pod says of itself."""
    probe = pod("probe", **more)
    if team:
        probe["metadata"]["labels"] = {**(probe["metadata"].get("labels") or {}), "team": team}
    try:
        await gate.cluster.request("POST", f"/api/v1/namespaces/{place}/pods", probe, dryRun="All")
    except clusters.Refused as refused:
        return str(refused)
    return None


@pytest.mark.accepts("cost", 18)
async def test_a_spent_budget_denies_new_gpu_pods_of_its_scope_and_nothing_else(gate: Gate) -> None:
    place, other = await gate.place("in"), await gate.place("out", team=False)
    running = await gate.cluster.create(pod("before") | {"metadata": {"name": "before", "namespace": place}})
    await gate.make_budget("block")
    said = await gate.cluster.wait_until(lambda: is_denied(gate, place))
    assert said.startswith("403")
    assert (
        f"budget {gate.budget} exceeded: 51,204.10 of 50,000.00 USD since 2026-11-15; see fallow cost budget "
        f"{gate.budget}; override: fallow cost override {gate.budget} --for 4h --reason TEXT"
    ) in said
    assert await is_denied(gate, place, gpus=0) is None
    assert await is_denied(gate, other) is None
    assert (await gate.cluster.refresh(running))["metadata"]["name"] == "before"
    made = clusters.replicated("apps/v1", "DaemonSet", "agents", 1, 1)
    del made["spec"]["replicas"]
    made["metadata"]["namespace"] = place
    await gate.cluster.gpu_node(f"gpu-{place}")
    await gate.cluster.apply(made)
    await gate.cluster.wait_until(lambda: gate.cluster.pods("app=agents", place))
    await gate.say(age=1000.0)  # the controller is away for longer than its figures hold
    await gate.cluster.wait_until(lambda: admits(gate, place))
    await gate.say()
    await gate.cluster.wait_until(lambda: is_denied(gate, place))
    _, metrics = await gate.ask("/metrics")
    assert 'gpu_autoscaler_webhook_requests_total{outcome="denied",reason="Exceeded"}' in metrics
    assert await gate.stop() == 0
    assert await is_denied(gate, place) is None  # nobody answers: failurePolicy Ignore


async def admits(gate: Gate, place: str) -> bool:
    return await is_denied(gate, place) is None


async def test_what_a_tenant_writes_on_its_pods_takes_it_neither_out_of_its_budget_nor_into_anothers(
    gate: Gate
) -> None:
    """The administrators labelled `own` with the team of the spent budget; `silent` has no team."""
    own, silent, team = await gate.place("own"), await gate.place("silent", team=False), gate.cluster.namespace
    stranger = f"{team}-stranger"
    await gate.cluster.make_namespace(stranger, {"test": team, "team": "another"})
    await gate.make_budget("block", scope={"type": "team", "teams": [team]})
    await gate.cluster.wait_until(lambda: is_denied(gate, own))
    assert await is_denied(gate, own, team="another") is not None  # it does not get out
    assert await is_denied(gate, stranger, team=team) is None  # nor in, where it would be counted against the team
    assert await is_denied(gate, silent, team=team) is not None  # where no administrator says anything, the pod counts
    assert await is_denied(gate, silent) is None


@pytest.mark.accepts("cost", 18)
async def test_who_claims_a_gpu_is_denied_too_and_who_claims_something_else_is_not(gate: Gate) -> None:
    """By a class of NVIDIA's driver, and by one of the administrators' own that selects its devices."""
    place, mine = await gate.place("in"), f"fast-{gate.cluster.namespace}"
    selects = [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}]
    nics = [{"cel": {"expression": "device.driver == 'nic.example.com'"}}]
    for name, selectors in ((mine, selects), (f"{mine}-nic", nics)):
        await gate.cluster.apply({
            "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name},
            "spec": {"selectors": selectors},
        })
    for name, wanted in (("gpu", "gpu.nvidia.com"), ("fast", mine), ("nic", f"{mine}-nic")):
        requests = [{"name": "one", "exactly": {"deviceClassName": wanted}}]
        await gate.cluster.apply({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
            "metadata": {"name": name, "namespace": place}, "spec": {"spec": {"devices": {"requests": requests}}},
        })
    await gate.make_budget("block")
    await gate.cluster.wait_until(lambda: is_denied(gate, place))

    async def claims(template: str) -> str | None:
        claim = {"name": "device", "resourceClaimTemplateName": template}
        return await is_denied(gate, place, gpus=0, resourceClaims=[claim])

    assert "exceeded" in (await claims("gpu") or "")
    assert "exceeded" in (await claims("fast") or "")
    assert await claims("nic") is None
    assert "not there yet: make that first" in (await claims("missing") or "")  # or it would be made behind the pod


@pytest.mark.accepts("cost", 18)
async def test_no_pod_is_too_large_or_too_odd_to_be_denied(gate: Gate) -> None:
    """What a tenant writes is told in up to six times as many bytes: `<` as an escape, names in managedFields too."""
    place = await gate.place("in")
    await gate.make_budget("block")
    await gate.cluster.wait_until(lambda: is_denied(gate, place))
    owner = {"apiVersion": "v1", "kind": "K\0", "name": "\0", "uid": "\0", "controller": True}
    for env in ([], [{"name": "A", "value": "<" * 900_000}], [{"name": f"E{at}"} for at in range(20_000)]):
        probe = pod("probe")
        probe["metadata"]["ownerReferences"] = [owner]
        probe["spec"]["containers"][0]["env"] = env
        with pytest.raises(clusters.Refused, match="exceeded"):
            await gate.cluster.request("POST", f"/api/v1/namespaces/{place}/pods", probe)


@pytest.mark.accepts("cost", 18)
async def test_who_only_writes_that_a_pod_is_a_daemon_sets_is_denied(gate: Gate) -> None:
    place = await gate.place("in")
    await gate.make_budget("block")
    await gate.cluster.wait_until(lambda: is_denied(gate, place))
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agents", "uid": "u-1", "controller": True}
    probe = pod("probe")
    probe["metadata"]["ownerReferences"] = [owner]
    kubeconfig = await gate.cluster.service_account("maker", MAKES_PODS)
    async with acting_as(kubeconfig) as api:
        with pytest.raises(errors.ClientError, match="exceeded"):
            await api.create(kube.PODS, place, probe)


@pytest.mark.accepts("cost", 19)
async def test_the_glass_is_broken_by_who_may_and_audited(gate: Gate) -> None:
    place = await gate.place("in")
    await gate.make_budget("block")
    await gate.cluster.wait_until(lambda: is_denied(gate, place))
    may = [{"apiGroups": [names.GROUP], "resources": ["costbudgets"], "resourceNames": [gate.budget],
            "verbs": ["override"]}]
    eve = await gate.cluster.user(f"eve-{place}", MAKES_PODS)
    ada = await gate.cluster.user(f"ada-{place}", [*MAKES_PODS, *may])
    urgent = {names.BUDGET_OVERRIDE: "the release is tonight"}
    async with acting_as(eve) as api:
        with pytest.raises(errors.Forbidden, match=f"eve-{place} may not override costbudgets/{gate.budget}"):
            await api.create(kube.PODS, place, pod("urgent", annotations=urgent))
    async with acting_as(ada) as api:
        with pytest.raises(errors.Forbidden, match="exceeded"):  # who may still says why
            await api.create(kube.PODS, place, pod("urgent"))

        async def create() -> bool:
            try:
                await api.create(kube.PODS, place, pod("urgent", annotations=urgent))
            except errors.Forbidden:  # the authorizer learns of new roles through its own watch
                return False
            return True

        await gate.cluster.wait_until(create)
    lines = [json.loads(line) for line in gate.cluster.plane.audit_log.read_text().splitlines() if place in line]
    notes = [each.get("annotations") or {} for each in lines]
    key = "validate.budget.gpuautoscaler.io/budget-override"
    assert f"ada-{place}: the release is tonight" in [each[key] for each in notes if key in each]
    (logged,) = [json.loads(line) for line in gate.log.read_text().splitlines() if '"break-glass"' in line]
    assert (logged["user"], logged["pod"], logged["budget"]) == (f"ada-{place}", f"{place}/urgent", gate.budget)


async def test_an_override_on_the_budget_holds_at_once_and_ends(gate: Gate) -> None:
    place = await gate.place("in")
    await gate.make_budget("block")
    await gate.cluster.wait_until(lambda: is_denied(gate, place))
    lead = await gate.cluster.user(f"lead-{place}", [
        {"apiGroups": [names.GROUP], "resources": ["costbudgets"], "verbs": ["get", "list", "patch", "update"]},
    ])
    environ = {"PATH": os.environ["PATH"], "KUBECONFIG": str(lead), "HOME": str(gate.folder)}

    async def override(*words: str, code: int = 0) -> str:
        done = await product.run("fallow", "cost", "override", gate.budget, *words, env=environ)
        assert done.code == code, done.said
        return done.said

    assert "at most 365d" in await override("--for", "366d", "--reason", "x", code=2)
    assert "say for how long and why" in await override("--for", "1h", code=2)
    assert "restricts nobody until" in await override("--for", "4h", "--reason", "release")
    await gate.cluster.wait_until(lambda: admits(gate, place))
    found = (await gate.cluster.get(VERSION, "CostBudget", gate.budget))["metadata"]["annotations"]
    assert (found[names.OVERRIDE_BY], found[names.OVERRIDE_REASON]) == (f"user:lead-{place}", "release")
    await override("--end")
    await gate.cluster.wait_until(lambda: is_denied(gate, place))
    done = await product.run("fallow", "cost", "budget", env=environ)
    assert (done.code, gate.budget in done.out, "yes, block" in done.out) == (0, True, True)
    done = await product.run("fallow", "cost", "budget", gate.budget, "-o", "json", env=environ)
    assert json.loads(done.out)["spent"] == "51204.10"


async def test_throttled_pods_keep_to_cheap_nodes_or_wait_and_lift_lets_them_go_on(gate: Gate) -> None:
    place = await gate.place("in")
    await gate.make_budget("throttle", blockOnDemand=True)
    path = f"/api/v1/namespaces/{place}/pods"

    async def made(name: str, **more: Any) -> dict[str, Any]:
        found: dict[str, Any] = await gate.cluster.request("POST", path, pod(name, **more))
        return found

    async def is_kept() -> Any:
        found = await gate.cluster.request("POST", path, pod("probe"), dryRun="All")
        return found["spec"].get("affinity")

    affinity = await gate.cluster.wait_until(is_kept)
    terms = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert {term["matchExpressions"][-1]["key"] for term in terms} == {key for key, _ in names.CHEAP_NODES}
    unfit = await made("unfit", annotations={names.SPOT_OK: "false"})
    assert unfit["spec"]["schedulingGates"] == [{"name": names.BUDGET_GATE}]
    assert unfit["metadata"]["annotations"][names.GATED_BY] == gate.budget
    assert "schedulingGates" not in (await made("plain", gpus=0))["spec"]
    everything = await gate.cluster.user(f"root-{place}", [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["*"]},
        {"apiGroups": ["karpenter.sh"], "resources": ["nodepools"], "verbs": ["list"]},  # there may be some, of others
    ])
    environ = {"PATH": os.environ["PATH"], "KUBECONFIG": str(everything), "HOME": str(gate.folder)}
    done = await product.run("fallow", "cost", "lift", gate.budget, env=environ)
    assert (done.code, done.out) == (0, f"1 pod of 1 that waited for {gate.budget} may go on\n")
    assert "schedulingGates" not in (await gate.cluster.get("v1", "Pod", "unfit", place))["spec"]


async def test_a_new_certificate_is_used_without_a_restart(gate: Gate) -> None:
    place = await gate.place("in")
    await gate.make_budget("block")
    await gate.cluster.wait_until(lambda: is_denied(gate, place))
    old = gate.papers
    later = time.time() + certificates.AUTHORITY_LIVES - certificates.AUTHORITY_RENEWED / 2
    new = certificates.renew(old, "localhost", later)
    fresh = certificates.renew(None, "localhost", time.time())  # of now, by another authority
    assert len(new.authorities) == 2
    await gate.configure(bundle=old.bundle + fresh.bundle)
    gate.write_papers(fresh)
    await gate.cluster.wait_until(gate.is_ready)  # which trusts the new authority alone
    await gate.cluster.wait_until(lambda: is_denied(gate, place))


async def test_the_keeper_makes_the_secret_and_both_bundles_and_then_rests(
    cluster: clusters.Cluster, tmp_path: pathlib.Path
) -> None:
    system = f"{cluster.namespace}-own"
    await cluster.make_namespace(system)
    for thing in yaml.safe_load_all((ROOT / "deploy/webhook/40-configurations.yaml").read_text()):
        for hook in thing["webhooks"]:
            hook["namespaceSelector"]["matchLabels"] = {"test": cluster.namespace}
        await cluster.apply(thing)
    async with acting_as(cluster.kubeconfig) as api:
        keeper = certificates.CertificateKeeper(api, system)
        await keeper.look(time.time())
        secret = await cluster.get("v1", "Secret", names.WEBHOOK_CERTIFICATE, system)
        for kind in ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"):
            found = await cluster.get("admissionregistration.k8s.io/v1", kind, names.WEBHOOK)
            for hook in found["webhooks"]:
                assert hook["clientConfig"]["caBundle"] == secret["data"]["ca.crt"]
        sent = api.requests_sent
        await keeper.look(time.time())
        assert api.requests_sent == sent + 4  # only looked: may we, both configurations, the Secret
        assert (await cluster.refresh(secret))["metadata"]["resourceVersion"] == secret["metadata"]["resourceVersion"]
        await keeper.look(time.time() + 61 * units.DAY)
        renewed = await cluster.refresh(secret)
    assert renewed["data"]["tls.crt"] != secret["data"]["tls.crt"]
    assert renewed["data"]["ca.crt"] == secret["data"]["ca.crt"]
