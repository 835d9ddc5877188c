"""`fallow support-bundle` on a real cluster on which secrets were planted wherever there is a place for one: none of
them is in the file, and what helps is. Only what a kubelet and a pod would answer (logs, metrics) is put in by a
proxy."""

from __future__ import annotations

import base64
import json
import os
import pathlib
import tarfile
from typing import Any

import pytest
import yaml
from aiohttp import web

from fallow import names
from tests import ROOT
from tests.real import cluster as clusters
from tests.real import faults, history, product

OURS = [each for path in sorted((ROOT / "deploy" / "base").glob("1*crd*.yaml"))
        for each in yaml.safe_load_all(path.read_text()) if each]
NOBODY = "http://127.0.0.1:9"
SECRETS = {each: f"pl4nted{number:02d}-{each}" for number, each in enumerate((
    "kubeconfig-other", "secret-value", "slack-webhook", "dsn", "prometheus-token", "header", "smtp", "signing", "env",
    "argument", "policy-config", "policy-address", "annotation", "budget-key", "event", "log-bearer", "log-dsn",
    "log-known", "metric", "configmap", "unknown-flag", "status-url", "own-variable",
))}


async def plant(stage: product.Stage) -> list[dict[str, Any]]:
    """What the server took of it, which leaves out what it does not know."""
    cluster, home, there = stage.cluster, stage.system, SECRETS
    data = {"token": base64.b64encode(there["secret-value"].encode()).decode()}
    meta = {"name": "gpu-pruner-slack", "namespace": home}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": data}
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "gpu-pruner", "namespace": home},
                "data": {"RUN_MODE": "dry-run", "SLACK_WEBHOOK_URL": f"https://x/{there['configmap']}",
                         "PROMETHEUS_URL": f"http://a:{there['configmap']}@prometheus:9090/x"}}
    channel = {"name": "hook", "type": "webhook", "config": {"url": f"https://x.example/{there['policy-address']}",
                                                             "auth_header": f"Bearer {there['policy-config']}"}}
    policy = {
        "apiVersion": "gpuautoscaler.io/v1alpha1", "kind": "IdlePolicy",
        "metadata": {"name": cluster.namespace, "annotations": {"team.example/hook": there["annotation"]}},
        "spec": {"namespaces": [cluster.namespace], "notice": {"channels": [channel]}},
    }
    pager = {"type": "pagerduty", "config": {"routingKey": there["budget-key"]}}
    budget = {
        "apiVersion": "gpuautoscaler.io/v1alpha1", "kind": "CostBudget", "metadata": {"name": cluster.namespace},
        "spec": {"monthlyLimit": 100, "scope": {"type": "namespace", "namespaces": [cluster.namespace]},
                 "alerts": [{"name": "at-80", "threshold": 80, "channels": [pager]}]},
    }
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {
        "name": names.LEASE, "namespace": home, "annotations": {"team.example/token": there["annotation"]},
    }}
    event = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "told", "namespace": home}, "type": "Warning",
             "reason": "NoticeFailed", "message": f"https://x.example/{there['event']} refused",
             "involvedObject": {"kind": "Lease", "name": names.LEASE, "namespace": home}}
    taken = [await cluster.apply(each) for each in (secret, settings, deployment(home), policy, budget, lease, event)]
    await cluster.wait_until(lambda: cluster.ready_pods("app=gpu-pruner", 1, home), timeout=60)
    said = {"type": "DataHealthy", "status": "False", "reason": "SourceError", "observedGeneration": 1,
            "message": f"http://a:{there['status-url']}@prometheus/x does not answer",
            "lastTransitionTime": "2026-11-15T12:00:00Z"}
    return [*taken, await cluster.patch(taken[3], {"status": {"conditions": [said]}}, part="status")]


def deployment(home: str) -> dict[str, Any]:
    there = SECRETS
    arguments = [
        "-d", "--run-mode=$(RUN_MODE)", f"--prometheus-token={there['prometheus-token']}", f"--smtp-url=smtp://a:{there['smtp']}@b",
        f"--prometheus-header=X-Scope: {there['header']}", f"--no-such-flag={there['unknown-flag']}", there["argument"],
        "--duration=45",
    ]
    variables = [
        {"name": "FALLOW_COST_DSN", "value": f"postgresql://a:{there['dsn']}@db/books"},
        {"name": "SLACK_SIGNING_SECRET", "value": there["signing"]}, {"name": "ANYTHING", "value": there["env"]},
        {"name": "SLACK_WEBHOOK_URL", "valueFrom": {"secretKeyRef": {"name": "gpu-pruner-slack", "key": "token"}}},
        {"name": "KNOWN", "value": there["log-known"]},
    ]
    container = {"name": "gpu-pruner", "image": "fallow:0.1.0", "args": arguments, "env": variables,
                 "ports": [{"name": "metrics", "containerPort": 8080}]}
    beside = {"name": "beside", "image": "fallow:0.1.0"}
    labels = {"app": "gpu-pruner", "app.kubernetes.io/name": "gpu-pruner"}
    return {
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "gpu-pruner", "namespace": home, "labels": labels},
        "spec": {"selector": {"matchLabels": {"app": "gpu-pruner"}},
                 "template": {"metadata": {"labels": labels}, "spec": {"containers": [container, beside]}}},
    }


LOG = "\n".join([
    f'{{"message": "asked with Authorization: Bearer {SECRETS["log-bearer"]}"}}',
    f"could not open postgresql://fallow:{SECRETS['log-dsn']}@db/books", f"said {SECRETS['log-known']} itself",
    "looked at 12 pods",
])
METRICS = f'gpu_pruner_cycles_total 7\nhook{{url="https://x/{SECRETS["metric"]}"}} 1\n'


async def as_pods_answer(exchange: faults.Exchange) -> web.StreamResponse:
    """Logs by the kubelet, metrics by the daemon; all else is the server's, which refuses to choose a container."""
    path = exchange.request.path
    if path.endswith("/log") and "container" in exchange.request.query:
        return web.Response(text=LOG)
    return web.Response(text=METRICS) if path.endswith("/proxy/metrics") else await exchange.forward()


@pytest.fixture
async def planted(cluster: clusters.Cluster, tmp_path: pathlib.Path) -> product.Stage:
    """Its Prometheus does not answer: who asks for help often has such a one. No secret is looked for in vain."""
    stage = product.Stage(cluster, history.PrometheusWorld(tmp_path))
    await cluster.apply_crds(*OURS)
    await stage.build()
    await cluster.deployment("llm")
    await cluster.wait_until(lambda: cluster.ready_pods("app=llm", 1), timeout=60)
    taken = json.dumps(await plant(stage)).replace(*both_spellings("secret-value"))
    there = [taken, LOG, METRICS, *VARIABLES.values(), json.dumps(OTHER)]
    assert [name for name, secret in SECRETS.items() if not any(secret in each for each in there)] == []
    return stage


def both_spellings(name: str) -> tuple[str, str]:
    """As a Secret has it, and as it is."""
    return base64.b64encode(SECRETS[name].encode()).decode(), SECRETS[name]


OTHER = {"name": "other", "user": {"token": SECRETS["kubeconfig-other"]}}  # in the same kubeconfig
VARIABLES = {"MY_SECRET_TOKEN": SECRETS["own-variable"], "SLACK_WEBHOOK_URL": f"https://x/{SECRETS['slack-webhook']}"}


async def bundle(
    stage: product.Stage, kubeconfig: pathlib.Path, path: pathlib.Path, *words: str, code: int = 0
) -> product.Ended:
    variables = {"KUBECONFIG": str(kubeconfig), "PROMETHEUS_URL": NOBODY, **VARIABLES}
    line = ("fallow", "support-bundle", "-f", str(path), "--watch-namespaces", stage.namespace, *words)
    done = await product.run(*line, env={"PATH": os.environ["PATH"], **variables}, timeout=90)
    assert done.code == code, done.said
    return done


def unpack(path: pathlib.Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        return {each.name.removeprefix("fallow-support/"): archive.extractfile(each).read().decode()  # type: ignore[union-attr]
                for each in archive.getmembers()}


async def test_no_planted_secret_is_in_it_and_what_helps_is(planted: product.Stage, tmp_path: pathlib.Path) -> None:
    path, home = tmp_path / "a.tar.gz", planted.system
    async with product.proxy_to_api_server(planted.cluster.plane) as proxy:
        proxy.fault = as_pods_answer
        kubeconfig = await planted.cluster.service_account("helper", product.ALL_RIGHTS, home, through=proxy.url)
        known = yaml.safe_load(kubeconfig.read_text())
        token = known["users"][0]["user"]["token"]
        known["users"].append(OTHER)
        kubeconfig.write_text(yaml.safe_dump(known))
        done = await bundle(planted, kubeconfig, path, "-n", home)
        assert not [asked for asked in proxy.seen if "/secrets" in asked], "no Secret is read"
        assert not [asked for asked in proxy.seen if not asked.startswith("GET ") and "review" not in asked.lower()]
    inside = unpack(path)
    everything = "\n".join([*inside, *inside.values(), done.said])
    assert [name for name, secret in SECRETS.items() if secret in everything] == []
    assert token not in everything
    assert (path.stat().st_mode & 0o777) == 0o600

    assert json.loads(inside["about.json"])["packages"]["msgspec"]
    assert {each["name"] for each in json.loads(inside["doctor.json"])["checks"]} >= {"Cluster", "Measurements"}
    assert json.loads(inside["status.json"])["gpus"] == 1
    assert "127.0.0.1:9" in inside["doctor.txt"]
    policies = json.loads(inside["resources/idlepolicies.json"])
    assert planted.namespace in {each["metadata"]["name"] for each in policies}
    assert "@prometheus" not in inside["resources/idlepolicies.json"]
    assert "does not answer" in inside["resources/idlepolicies.json"]
    assert '"routingKey": "***"' in inside["resources/costbudgets.json"]
    (told,) = json.loads(inside[f"{home}/deployments.json"])
    container, _ = told["containers"]
    assert "--duration=45" in container["arguments"]
    assert container["variables"]["SLACK_WEBHOOK_URL"] == {"secretKeyRef": {"name": "gpu-pruner-slack", "key": "token"}}
    assert json.loads(inside[f"{home}/configmap-gpu-pruner.json"])["RUN_MODE"] == "dry-run"
    log, _ = [text for name, text in inside.items() if name.endswith(".log")]  # of each container
    (metrics,) = [text for name, text in inside.items() if name.endswith(".metrics.txt")]
    assert ("looked at 12 pods" in log, "gpu_pruner_cycles_total 7" in metrics) == (True, True)
    assert f"{home}/lease.json" in inside
    for name in inside:
        assert name == "CONTENTS.txt" or name in inside["CONTENTS.txt"], "it lists what is in it"
        assert name == "CONTENTS.txt" or name in done.out


async def test_who_may_read_little_gets_little_and_it_is_said(planted: product.Stage, tmp_path: pathlib.Path) -> None:
    kubeconfig = await planted.cluster.service_account("nobody", None, planted.system)
    path = tmp_path / "b.tar.gz"
    done = await bundle(planted, kubeconfig, path)
    inside = unpack(path)
    assert "not in it:" in inside["CONTENTS.txt"]
    assert "resources/idlepolicies.json: " in inside["CONTENTS.txt"]
    assert "idlepolicies" in done.out
    assert json.loads(inside["doctor.json"])["checks"]
    again = await bundle(planted, kubeconfig, path, code=2)
    assert "is there already" in again.err
    nowhere = await bundle(planted, kubeconfig, tmp_path / "no" / "b.tar.gz", code=2)
    assert "there is no folder" in nowhere.err


async def test_without_a_cluster_there_is_still_something_to_send(tmp_path: pathlib.Path) -> None:
    config = {"apiVersion": "v1", "kind": "Config", "current-context": "a",
              "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
              "clusters": [{"name": "a", "cluster": {"server": "https://127.0.0.1:9"}}],
              "users": [{"name": "a", "user": {"token": SECRETS["kubeconfig-other"]}}]}
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(config))
    path = tmp_path / "c.tar.gz"
    done = await product.run(
        "fallow", "support-bundle", "-f", str(path), "--prometheus-url", NOBODY,
        env={"PATH": os.environ["PATH"], "KUBECONFIG": str(kubeconfig)}, timeout=120,
    )
    assert done.code == 0, done.said
    inside = unpack(path)
    assert {"about.json", "settings.json", "doctor.txt", "CONTENTS.txt"} <= inside.keys()
    assert SECRETS["kubeconfig-other"] not in "".join(inside.values()) + done.said
