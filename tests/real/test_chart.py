"""The Helm chart: it renders what deploy/ has, and a real API server takes it, upgrades it, takes it back and is left
clean; under the very rights that it renders the daemon looks, pauses and gives back."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import http.server
import json
import re
import shutil
import subprocess
import threading
import time
from typing import Any

import aiohttp
import pytest
import yaml

from fallow import names, settings
from fallow.doors.cli import pruner
from fallow.model import emptying, partition
from fallow.settings import config_file, cost_enforcement
from fallow.settings.sharing import AdmissionSharing
from tests import ROOT, objects
from tests.real import build, helm, product, schemas
from tests.real import cluster as clusters
from tests.real.conftest import need
from tests.real.released import Release, arguments, check_rights, container_of, granted, reads_all, release
from tests.real.test_deploy import NAMESPACE, PROMETHEUS_RULE, SERVICE_MONITOR, expand, rendered, write_overlay
from tests.real.test_uninstall import find_all, make_elsewhere

__all__ = ["release"]  # a fixture
Object = dict[str, Any]
ALL = (
    "runMode=scale-down", "cost.enabled=true", "cost.enforcement.enabled=true",
    "cost.enforcement.editNodePools=true", "sharing.enabled=true",
    "binPacking.consolidation.mode=act", "binPacking.defrag.mode=act", "extender.enabled=true", "exporter.enabled=true",
    "binPacking.defrag.schedulers={fallow-scheduler}", "slack.enabled=true",
    "monitoring.rules.enabled=true", "monitoring.serviceMonitor.enabled=true", "monitoring.openshift.enabled=true",
    f"enabledResources={settings.LETTERS}", "cost.prices.csv=a", "autoscaling.enabled=true", "autoscaling.mode=act",
    "admissionWebhook.rewriteRequests=true", "spotWatch.enabled=true", "dashboard.peers[0].name=west",
    "dashboard.peers[0].url=https://west.example",
    "dashboard.peers[0].tokenSecret.name=west", "dashboard.peerCaSecret=west",
)


@functools.cache
def ours() -> list[Object]:
    return objects.read_files(sorted((helm.CHART / "crds").iterdir()))


# ---- one source ------------------------------------------------------------------------------------------------------

# What of deploy/ or examples/ -> the values that give the same.
SAME = {
    "base": ("dashboard.enabled=false",), "acting": ("dashboard.enabled=false", "runMode=scale-down"),
    "enforcement": ALL, "enforcement/node-pools": ALL, "webhook": ("admissionWebhook.enabled=true",), "sharing": ALL,
    "consolidation": ALL, "extender": ALL,
    "extender/service": (*ALL, "extender.mode=service"), "monitoring": ALL,
}
SAID_OTHERWISE = {("Namespace", "", NAMESPACE)} | {
    ("ConfigMap", NAMESPACE, name) for name in ("gpu-pruner", "gpu-pruner-acting", "gpu-pruner-enforcement")
}


@pytest.mark.parametrize("place", SAME)
def test_the_chart_renders_what_kustomize_renders(place):
    chart = {helm.name(each): each for each in helm.render(*SAME[place])}
    for thing in rendered(place):
        kind, namespace, called = helm.name(thing)
        called = re.sub(r"^(fallow-scheduler-config)-.*", r"\1", called)  # kustomize adds a hash
        if kind == "CustomResourceDefinition" or helm.name(thing) in SAID_OTHERWISE:
            continue
        there = chart[kind, namespace, called]
        if kind == "Deployment":
            assert bare(there) == bare(thing), called
        elif (kind, called) == ("ClusterRole", "gpu-pruner-cr") and "cost.enabled=true" not in SAME[place]:
            assert not [rule for rule in there["rules"] if "costbudgets" in rule["resources"]]
        elif kind != "Role" or called != "gpu-pruner":
            there["metadata"]["name"] = thing["metadata"]["name"]
            if kind == "ClusterRole" and "cost.enabled=true" not in SAME[place]:
                thing = {**thing, "rules": [rule for rule in thing["rules"] if rule["resources"] != ["costbudgets"]]}
            assert there == thing, called


def bare(deployment: Object) -> Object:
    """But for what values say as arguments, and whose names kustomize changes."""
    text = re.sub(r"fallow-scheduler-config-\w+", "fallow-scheduler-config", json.dumps(deployment))
    made: Object = json.loads(text)
    for container in made["spec"]["template"]["spec"]["containers"]:
        for key in ("args", "envFrom", "imagePullPolicy"):
            container.pop(key, None)
        if container["name"] == "gpu-pruner":
            container["env"] = [one for one in container["env"] if one["name"].startswith("POD_")]
        if container["name"] == "scheduler":
            container["image"] = container["image"].rpartition("/")[2]
    return made


COMPONENTS = {
    "dashboard": (), "cost": ("dashboard.enabled=false", "cost.enabled=true"),
    "cost/postgres": ("dashboard.enabled=false", "cost.enabled=true", "cost.store.dsnSecret=gpu-pruner-cost"),
}


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_changes_the_deployment_in_the_same_way(component, tmp_path):
    write_overlay(tmp_path, "base", component)
    things = rendered(str(tmp_path))
    by_name = {helm.name(each): each for each in helm.render(*COMPONENTS[component])}
    (deployment,) = (each for each in things if each["kind"] == "Deployment")
    there = by_name[helm.name(deployment)]
    assert bare(there) == bare(deployment)
    maps = [each for each in things if helm.name(each) == ("ConfigMap", NAMESPACE, "gpu-pruner")]
    mine, theirs = arguments(there), expand(container_of(deployment), maps)
    assert {each for each in theirs if not each.startswith("--cost-attribution")} <= set(mine)


# ---- what values do --------------------------------------------------------------------------------------------------

# A switch -> what comes with it, by kind and name.
SWITCHES = {
    "dashboard.enabled=false": {
        ("ClusterRole", "gpu-pruner-dashboard-cr"), ("ClusterRoleBinding", "gpu-pruner-dashboard-crb"),
        ("Role", "gpu-pruner-secrets"), ("RoleBinding", "gpu-pruner-secrets"), ("Secret", "gpu-pruner-session-key"),
    },
    "networkPolicy.enabled=false": {("NetworkPolicy", "gpu-pruner")},
    "podDisruptionBudget.enabled=false": {("PodDisruptionBudget", "gpu-pruner")},
    "bounds.enabled=false": {
        ("ValidatingAdmissionPolicy", "gpu-pruner-bounds"), ("ValidatingAdmissionPolicyBinding", "gpu-pruner-bounds"),
    },
    "monitoring.dashboards.enabled=false": {
        ("ConfigMap", f"{name}-dashboard") for name in ("gpu-cost", "gpu-dashboard", "fallow-health")
    },
    "uninstall.resume=false": {
        ("Job", "gpu-pruner-uninstall"), ("ClusterRole", "gpu-pruner-uninstall-cr"),
        ("ClusterRoleBinding", "gpu-pruner-uninstall-crb"), ("Role", "gpu-pruner-uninstall"),
        ("RoleBinding", "gpu-pruner-uninstall"),
    },
    "exporter.enabled=true": {
        ("Namespace", "gpu-idle-exporter"), ("ServiceAccount", "gpu-idle-exporter"), ("DaemonSet", "gpu-idle-exporter"),
    },
    "runMode=scale-down": {("ClusterRole", "gpu-pruner-act-cr"), ("ClusterRoleBinding", "gpu-pruner-act-crb")},
    "spotWatch.enabled=true": {
        (kind, "fallow-spot-watch") for kind in (
            "Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "DaemonSet",
            "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
        )
    },
    "autoscaling.enabled=true": {("AutoscalingPolicy", "default")},
    "cost.enabled=true": {
        ("Role", "gpu-pruner-cost"), ("RoleBinding", "gpu-pruner-cost"), ("PersistentVolumeClaim", "gpu-pruner-cost"),
    },
}


@pytest.mark.parametrize("switch", SWITCHES)
def test_a_switch_brings_its_own_and_nothing_else(switch):
    usual, changed = ({helm.name(each)[::2] for each in helm.render(*sets)} for sets in ((), (switch,)))
    assert usual ^ changed == SWITCHES[switch]


@pytest.mark.parametrize(("values", "given"), [
    (("admissionWebhook.enabled=true", "admissionWebhook.rewriteRequests=true"), True),
    (("admissionWebhook.enabled=true",), False), (("admissionWebhook.rewriteRequests=true",), False),
    (("sharing.enabled=true",), False),
])
def test_where_pods_are_rewritten_the_daemon_may_give_them_whole_gpus_back(values, given):
    there = {helm.name(each)[::2] for each in helm.render("runMode=scale-down", *values)}
    assert (("ClusterRole", "gpu-pruner-back-off-cr") in there) is given


def test_without_a_controller_there_is_only_what_was_asked_for():
    kept = {helm.name(each)[::2] for each in helm.render("controller.enabled=false", "exporter.enabled=true")}
    assert kept == SWITCHES["exporter.enabled=true"] | SWITCHES["monitoring.dashboards.enabled=false"]


WRONG = {
    "runMode=stop": "'/runMode': value must be one of", "cost.nope=1": "'/cost': additional properties 'nope'",
    "flags.nope=1": "additional properties 'nope'", "flags.kubeconfig=x": "additional properties 'kubeconfig'",
    "checkInterval=soon": "'/checkInterval'", "flags.coverage=7": "'/flags/coverage'",
    "sharing.enabled=true": "a dry run changes nothing", "cost.timescaledb.enabled=true": "where is it?",
    "admissionWebhook.enabled=true,controller.enabled=false": "needs a certificate",
    "admissionWebhook.enabled=true,admissionWebhook.rewriteRequests=true": "nobody whom that hurts",
    "cost.enforcement.enabled=true": "needs cost.enabled=true",
    "binPacking.consolidation.mode=act": "a dry run changes nothing",
    "binPacking.defrag.mode=act": "a dry run changes nothing",
    "binPacking.defrag.mode=act,runMode=scale-down": "needs extender.enabled=true",
    "binPacking.defrag.mode=act,runMode=scale-down,extender.enabled=true": "no other scheduler asks the extender",
    "sharing.mig.configMap=elsewhere/map": "the rights are those of one",
    "flags.config=x": "additional properties 'config'", "settings.config=x": "additional properties 'config'",
    "flags.duration=30,settings.duration=45": "say it once",
    "cost.alerts.smtp.host=mail": "needs cost.alerts.smtp.from",
    "cost.alerts.smtp.from=f@x.org": "needs cost.alerts.smtp.host",
    "cost.alerts.smtp.host=mail,cost.alerts.smtp.from=f@x.org,cost.alerts.smtp.username=ada": "go together",
    "image.tag=1\n          command: [sh]": "'/image/tag'", "imagePullSecrets={a\nb: c}": "'/imagePullSecrets/0'",
    "prometheus.url=http://p\n- --run-mode=scale-down": "'/prometheus/url'",
}


def test_a_protected_namespace_is_the_same_expression_for_the_daemon_and_its_bounds():
    things = {helm.name(each)[::2]: each for each in helm.render("flags.protected-namespaces=a\\\\d+|it's")}
    assert r"--protected-namespaces=a\d+|it's" in arguments(things["Deployment", "gpu-pruner"])
    bounds = things["ValidatingAdmissionPolicy", "gpu-pruner-bounds"]["spec"]["validations"]
    (said,) = (each["expression"] for each in bounds if "protected namespace" in each["message"])
    assert r"matches('^(?:a\\d+|it\'s|" in said, "CEL knows no escape of its own for a digit"


@pytest.mark.parametrize("value", WRONG)
def test_what_is_wrong_is_said_before_anything_is_sent(value):
    with pytest.raises(helm.HelmRefused, match=re.escape(WRONG[value])):
        helm.template(value)


def test_values_are_flags_that_the_daemon_reads():
    sets = (
        *ALL, "flags.trust-metrics=true", "flags.policies=false", "checkInterval=90", "cost.cloudProvider=aws",
        "flags.gpu-resource={a.com/gpu,b.com/gpu}", "flags.namespace=ml-.*", "cost.roi.monthlyInvestment=1000000",
        "cost.attribution.labels={team,app}", "binPacking.consolidation.threshold=0.3",
    )
    by_name = {helm.name(each): each for each in helm.render(*sets)}
    given = arguments(by_name["Deployment", NAMESPACE, "gpu-pruner"])
    absent = ("--session-key-file=", "--peer-ca-file=")  # these are no files here
    key = [each for each in given if not each.startswith(absent)]
    read = settings.read_flags(pruner.gpu_pruner.make_context("gpu-pruner", key).params, {"POD_NAMESPACE": NAMESPACE})
    assert (read.mandate.acting, read.mandate.require_policy, read.mandate.use_policies) == (True, True, False)
    assert (read.trust_metrics, read.loop.interval, read.cost.provider) == (True, 90.0, "aws")
    assert (read.gpu_resources >= {"a.com/gpu", "b.com/gpu"}, read.cost_store.labels) == (True, ("team", "app"))
    assert (read.consolidation.acts, read.consolidation.threshold, read.sharing.acts) == (True, 0.3, True)
    assert (read.defrag.acts, read.defrag.schedulers) == (True, {"fallow-scheduler"})
    assert read.enforcement.enabled
    assert [(each.name, each.url, each.token_file) for each in read.peers] == [
        ("west", "https://west.example", "/etc/fallow/peers/west")]


MAIL = ("cost.alerts.smtp.host=mail", "cost.alerts.smtp.port=2525", "cost.alerts.smtp.from=f@x.org",
        "cost.alerts.smtp.username=ada+gpu@x.org", "cost.alerts.smtp.passwordSecretRef.name=mail")


def test_a_mail_server_is_named_as_the_daemon_reads_it():
    things = {helm.name(each)[::2]: each for each in helm.render(*MAIL)}
    deployment = things["Deployment", "gpu-pruner"]
    variables = {each["name"]: each for each in container_of(deployment)["env"]}
    assert variables["SMTP_PASSWORD"]["valueFrom"] == {"secretKeyRef": {"name": "mail", "key": "password"}}
    environ = {"SMTP_URL": variables["SMTP_URL"]["value"], "SMTP_PASSWORD": "p4ss/@", "POD_NAMESPACE": NAMESPACE}
    given = [each for each in arguments(deployment) if not each.startswith("--session-key-file=")]
    mail = settings.read_flags(pruner.gpu_pruner.make_context("gpu-pruner", given).params, environ).telling.mail
    assert (mail.host, mail.port, mail.is_tls, mail.username) == ("mail", 2525, False, "ada+gpu@x.org")
    assert {"port": 2525, "protocol": "TCP"} in ports_out(things["NetworkPolicy", "gpu-pruner"])
    with_tls = helm.render(*MAIL, "cost.alerts.smtp.startTLS=false")
    (deployment,) = (each for each in with_tls if each["kind"] == "Deployment")
    assert "smtps://ada%2Bgpu%40x.org@mail:2525" in str(container_of(deployment)["env"])


def ports_out(policy: Object) -> list[Object]:
    return [port for rule in policy["spec"]["egress"] for port in rule.get("ports", ())]


def test_a_port_that_is_said_is_that_of_everything_on_the_way():
    extends = ("extender.enabled=true", "extender.mode=service", "extender.addr=:9555")
    things = {helm.name(each)[::2]: each for each in helm.render(*extends, "cost.enabled=true", "cost.api.port=9003")}
    extender, daemon = (container_of(things["Deployment", name]) for name in ("fallow-extender", "gpu-pruner"))
    assert "--addr=:9555" in extender["args"]
    assert [each["containerPort"] for each in extender["ports"]] == [9555]
    assert things["Service", "fallow-extender"]["spec"]["ports"] == [
        {"name": "extender", "port": 9555, "targetPort": "extender"}]
    (rule,) = things["NetworkPolicy", "fallow-extender"]["spec"]["ingress"]
    assert rule["ports"] == [{"port": 9555, "protocol": "TCP"}]

    assert "--cost-api-port=9003" in daemon["args"]
    assert {"name": "allocation", "containerPort": 9003} in daemon["ports"]
    service = things["Service", "gpu-pruner-dashboard"]["spec"]["ports"]
    assert {"name": "allocation", "port": 9003, "targetPort": "allocation"} in service
    scrapers, *_ = things["NetworkPolicy", "gpu-pruner"]["spec"]["ingress"]
    assert {"port": 9003, "protocol": "TCP"} in scrapers["ports"]


SETTINGS = (
    "settings.duration=45", "settings.gpu-resource={a.com/gpu,b.com/gpu}", "settings.trust-metrics=true",
    "settings.protected-namespaces=kube-.*|infra", "settings.policies=false",
)


def test_settings_are_a_file_that_the_daemon_reads_and_a_change_restarts_nothing(tmp_path):
    things = {helm.name(each)[::2]: each for each in helm.render(*SETTINGS)}
    deployment = things["Deployment", "gpu-pruner"]
    assert "--config=/etc/fallow/settings/settings.yaml" in arguments(deployment)
    file = tmp_path / "settings.yaml"
    file.write_text(things["ConfigMap", "gpu-pruner-settings"]["data"]["settings.yaml"])
    given = pruner.gpu_pruner.make_context("gpu-pruner", ["--config", str(file)]).params
    read = settings.read_flags(config_file.complete(given, {}), {})
    assert (read.trust_metrics, read.mandate.use_policies, read.gpu_resources >= {"a.com/gpu", "b.com/gpu"}) == (
        True, False, True)
    assert "'^(?:kube-.*|infra|" in str(things["ValidatingAdmissionPolicy", "gpu-pruner-bounds"])
    (mount,) = (each for each in container_of(deployment)["volumeMounts"] if each["name"] == "settings")
    assert (mount["mountPath"], mount.get("subPath")) == ("/etc/fallow/settings", None), "a part would stay as it was"
    (later,) = (each for each in helm.render(*SETTINGS, "settings.duration=90")
                if helm.name(each)[::2] == ("Deployment", "gpu-pruner"))
    assert later == deployment
    typed = [str(each) for each in things["Pod", "gpu-pruner-test"]["spec"]["containers"][0]["args"]]
    assert {"--duration=45", "--gpu-resource=b.com/gpu", "--trust-metrics"} <= set(typed)


PRIVATE = ("imagePullSecrets={mine}", "controller.nodeSelector.pool=system", "controller.tolerations[0].key=system")
CERT_MANAGER = ("admissionWebhook.enabled=true", "admissionWebhook.certManager.enabled=true")


@pytest.mark.parametrize("mode", ["scheduler", "service"])
def test_every_pod_is_pulled_with_the_secrets_and_stands_where_the_daemon_may(mode):
    """Those on nodes say themselves where."""
    pods = {helm.name(each)[::2]: pod_of(each) for each in helm.render(*ALL, *PRIVATE, f"extender.mode={mode}")}
    pods = {name: spec for name, spec in pods.items() if spec}
    extender = "fallow-scheduler" if mode == "scheduler" else "fallow-extender"
    assert set(pods) == {
        ("Deployment", "gpu-pruner"), ("Deployment", "gpu-autoscaler-webhook"), ("Deployment", extender),
        ("Job", "gpu-pruner-uninstall"), ("Pod", "gpu-pruner-test"), ("DaemonSet", "gpu-idle-exporter"),
        ("DaemonSet", "fallow-spot-watch"),
    }
    for (kind, name), spec in pods.items():
        assert spec["imagePullSecrets"] == [{"name": "mine"}], name
        if kind != "DaemonSet":
            assert (spec["nodeSelector"], spec["tolerations"]) == ({"pool": "system"}, [{"key": "system"}]), name


def pod_of(thing: Object) -> Object | None:
    if thing["kind"] == "Pod":
        return thing["spec"]
    template = (thing.get("spec") or {}).get("template")
    return template["spec"] if template else None


def test_where_cert_manager_makes_the_certificate_the_daemon_may_not():
    things = {helm.name(each)[::2]: each for each in helm.render(*CERT_MANAGER)}
    assert {("Issuer", "gpu-autoscaler-webhook"), ("Certificate", "gpu-autoscaler-webhook")} <= set(things)
    assert ("Secret", names.WEBHOOK_CERTIFICATE) not in things
    assert "--webhook-certificate=false" in arguments(things["Deployment", "gpu-pruner"])
    rules = [rule for each in things.values() if each["kind"] in ("Role", "ClusterRole") and not is_hook(each)
             for rule in each["rules"]]
    written = {what for rule in rules for what in rule["resources"] if {"create", "update", "patch"} & {*rule["verbs"]}}
    assert not {what for what in written if what == "secrets" or "webhook" in what}
    assert "configmaps" in written, "what owners used is told all the same"
    for kind in ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"):
        said = things[kind, names.WEBHOOK]["metadata"]["annotations"]
        assert said == {"cert-manager.io/inject-ca-from": f"{NAMESPACE}/gpu-autoscaler-webhook"}


def test_a_token_of_another_cluster_that_is_missing_stops_nothing():
    (deployment,) = (each for each in helm.render(*ALL) if helm.name(each)[::2] == ("Deployment", "gpu-pruner"))
    (peers,) = (each for each in pod_of(deployment)["volumes"] if each["name"] == "peers")
    token, authority = (each["secret"] for each in peers["projected"]["sources"])
    assert (token["optional"], token["items"]) == (True, [{"key": "token", "path": "west"}])
    assert authority["items"] == [{"key": "ca.crt", "path": "_ca.crt"}]


def test_a_cloud_knows_it_by_its_account():
    role, label = r"eks\.amazonaws\.com/role-arn", r"azure\.workload\.identity/use"
    things = {helm.name(each)[::2]: each for each in helm.render(
        f"controller.serviceAccountAnnotations.{role}=arn:aws:iam::1:role/x", f"controller.podLabels.{label}=yes")}
    account = things["ServiceAccount", "gpu-pruner"]["metadata"]
    assert account["annotations"] == {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/x"}
    deployment = things["Deployment", "gpu-pruner"]["spec"]
    assert deployment["template"]["metadata"]["labels"] == {
        "app.kubernetes.io/name": "gpu-pruner", "azure.workload.identity/use": "yes"}
    assert deployment["selector"]["matchLabels"] == {"app.kubernetes.io/name": "gpu-pruner"}


def test_on_openshift_its_pods_may_run_as_the_user_that_they_name():
    """Without being told: its usual rule takes only users of the namespace's own range."""
    there = ("--api-versions", "security.openshift.io/v1")
    told = objects.read(helm.template(*ALL, "extender.mode=service", more=there))
    (binding,) = (each for each in told if helm.name(each)[::2] == ("RoleBinding", "gpu-pruner-nonroot"))
    assert binding["roleRef"]["name"] == "system:openshift:scc:nonroot-v2"
    fixed = {pod["serviceAccountName"] for mode in ("scheduler", "service")
             for pod in map(pod_of, helm.render(*ALL, f"extender.mode={mode}"))
             if pod and not pod.get("hostPID") and not pod.get("hostNetwork")}
    assert {each["name"] for each in binding["subjects"]} == fixed
    assert not [each for each in helm.render(*ALL) if helm.name(each)[2] == "gpu-pruner-nonroot"]


def test_a_cluster_that_is_too_old_for_bounds_says_so():
    older = ("--kube-version", "1.29.4")
    with pytest.raises(helm.HelmRefused, match=r"need Kubernetes 1\.30"):
        helm.template(more=older)
    assert "ValidatingAdmissionPolicy" not in helm.template("bounds.enabled=false", more=older)


POLICIES = (
    "gpuSharingPolicies.defaultPolicies[0].name=small", "gpuSharingPolicies.defaultPolicies[0].spec.mode=audit",
    "gpuSharingPolicies.defaultPolicies[0].spec.strategy=auto",
)


def read_webhook(*sets: str) -> AdmissionSharing:
    """As the webhook reads the arguments that the chart gives it."""
    by_name = {helm.name(each): each for each in helm.render("admissionWebhook.enabled=true", *sets)}
    given = arguments(by_name["Deployment", NAMESPACE, "gpu-autoscaler-webhook"])
    return cost_enforcement.read_webhook_arguments(["webhook", *given], NAMESPACE).sharing


def test_values_are_flags_that_the_webhook_reads():
    usual = read_webhook()
    assert (usual.without, usual.schedulers, usual.patterns) == (frozenset(), {"default-scheduler"}, {})
    assert read_webhook("extender.enabled=true").schedulers == {"default-scheduler", "fallow-scheduler"}
    assert read_webhook("extender.enabled=true", "extender.mode=service").schedulers == {"default-scheduler"}
    said = read_webhook(
        "sharing.mig.enabled=false", "sharing.timeSlicing.enabled=false", "scheduling.schedulerNames={kai,other}",
        "classification.patterns.training={megatron,nemo.*fit: x}", "classification.patterns.notebook={marimo}",
    )
    assert (said.without, said.schedulers) == ({"mig", "timeslicing"}, {"kai", "other"})
    assert said.patterns == {"training": ("megatron", "nemo.*fit: x"), "notebook": ("marimo",)}
    assert read_webhook("sharing.mps.enabled=false").without == {"mps"}


@pytest.mark.parametrize("mode", ["", "enforce"])
def test_policies_to_begin_with_only_audit(mode):
    said = "gpuSharingPolicies.defaultPolicies[0]."
    sets = [f"{said}name=first", f"{said}spec.strategy=auto", *([f"{said}spec.mode={mode}"] if mode else [])]
    by_name = {helm.name(each)[::2]: each for each in helm.render(*sets)}
    assert by_name["GPUSharingPolicy", "first"]["spec"] == {"strategy": "auto", "mode": "audit"}


async def test_every_manifest_is_of_its_kind(cluster, tmp_path):
    """kubeconform, with the shapes that this very API server publishes; unknown fields are refused."""
    need("kubeconform")
    await cluster.apply_crds(SERVICE_MONITOR, PROMETHEUS_RULE, *ours())
    (tmp_path / "schemas").mkdir()
    await schemas.write(cluster, tmp_path / "schemas")
    files = [*(ROOT / "deploy").rglob("*.yaml"), *(ROOT / "examples").rglob("*.yaml")]
    patches = {"20-books.yaml", "20-session-key.yaml", "kustomization.yaml", "config.yaml", "second.yaml", "logs.yaml"}
    plain = [str(path) for path in files if path.name not in patches and "prometheus" not in path.parts]
    for name, sets in (("default", ()), ("all", (*ALL, *PRIVATE)), ("service", (*ALL, "extender.mode=service")),
                       ("certificates", (*CERT_MANAGER, *POLICIES, *SETTINGS))):
        (tmp_path / f"{name}.yaml").write_text(helm.template(*sets))
        plain.append(str(tmp_path / f"{name}.yaml"))
    command = [
        str(build.need("kubeconform")), "-summary", "-output", "json", "-skip",
        "CustomResourceDefinition,PodMonitor,Issuer,Certificate",
        "-schema-location",
        str(tmp_path / "schemas" / "{{.Group}}_{{.ResourceAPIVersion}}_{{.ResourceKind}}.json"), *plain,
    ]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False, timeout=60)
    said = json.loads(done.stdout)
    bad = [(each["filename"], each["kind"], each["msg"]) for each in said["resources"]]
    assert not bad
    assert said["summary"]["valid"] > 200
    assert done.returncode == 0


# ---- on a real API server --------------------------------------------------------------------------------------------


async def test_it_is_installed_looks_acts_goes_back_and_leaves(release, stage):
    """On a cluster with nothing but Prometheus and dcgm-exporter, under restricted pod security, with no value set:
    within two minutes a dashboard that shows what is idle and a dry run that names what it would pause, with least
    rights. Then it acts, by an upgrade; then it is taken back; and an uninstall leaves nothing paused, and nothing of
    ours."""
    cluster = release.cluster
    before = await everything(cluster)
    stage.ahead = 900.0
    idle = await stage.workload("llm", replicas=2)
    await stage.prometheus.start()
    began = time.monotonic()
    notes = await release.install()
    assert "It only looks" in notes
    assert "http://prometheus-operated.monitoring.svc:9090, which was found here" in notes
    assert f"helm test fallow -n {release.home}" in notes
    async with release.running("--log-format", "json") as daemon:
        left = 120 - (time.monotonic() - began)
        await daemon.until(lambda: release.tells(daemon, "would pause", "llm"), timeout=left)
        print(f"{time.monotonic() - began:.0f} s from helm install until it was said what would be paused")
        assert (await daemon.get("/"))[0] == 200
        assert (await daemon.get("/api/v1/status"))[0] == 401, "nobody is let in without a token"
        shown = await see(cluster, daemon, "/api/v1/workloads?view=idle")
        assert [(each["name"], each["gpus"]) for each in shown["items"] if each["namespace"] == cluster.namespace] == [
            ("llm", 2)]
        await daemon.until(lambda: reads_all(release))
    reviews = {"tokenreviews", "subjectaccessreviews"}  # who looked at the dashboard, and may they
    await check_rights(release, changes=reviews)
    assert not await stage.is_paused(idle)

    policy = {"action": {"type": "pause"}, "notice": {"grace": "0s"}}
    kind = {"apiVersion": "gpuautoscaler.io/v1alpha1", "kind": "IdlePolicy"}
    await cluster.apply({**kind, "metadata": {"name": cluster.namespace}, "spec": policy})
    assert "It acts" in await release.upgrade("runMode=scale-down", "flags.max-percent-per-hour=100")
    async with release.running() as daemon:
        await daemon.until(lambda: stage.is_paused(idle))
        await daemon.until(lambda: reads_all(release))
    await check_rights(release, changes={"deployments", "events", "idlepolicies/status", *reviews})

    await release.helm.run("rollback", "fallow", "1", "-n", release.home, "--wait")
    assert "patch" not in {verb for verb, group, what in await granted(release) if group == "apps"}
    held = await hold(release)
    await leave(release)
    node, pod, config = [await cluster.refresh(each) for each in held]
    assert ("unschedulable" in node["spec"], names.EMPTYING in node["metadata"]["annotations"]) == (False, False)
    assert (pod["spec"].get("schedulingGates"), config["metadata"].get("finalizers")) == (None, None)
    assert not await stage.is_paused(idle)
    assert (await stage.now(idle))["spec"]["replicas"] == 2
    await check_left(release, before)
    assert await cluster.find("apiextensions.k8s.io/v1", "CustomResourceDefinition", "idlepolicies.gpuautoscaler.io")


async def test_with_everything_switched_on_it_leaves_nothing_but_the_books(release, stage):
    """Also not what the daemon makes outside of its namespace and no manifest has."""
    cluster = release.cluster
    await cluster.apply_crds(SERVICE_MONITOR, PROMETHEUS_RULE)
    await cluster.make_namespace("gpu-operator")
    before = await everything(cluster)
    await release.install("dashboard.enabled=false")
    await release.upgrade(*ALL, *POLICIES, *PRIVATE[:1])
    assert await cluster.find(f"{names.GROUP}/v1alpha1", names.SHARING_POLICY_KIND, "small")
    made = await make_elsewhere(cluster)
    await leave(release)
    assert await find_all(cluster, made) == {"changed", "unlabelled", "otherwise called"}
    books = ("PersistentVolumeClaim", release.home, "gpu-pruner-cost")
    for each in made.values():
        await cluster.delete(each)
    await check_left(release, before, books)


async def see(cluster: clusters.Cluster, daemon: product.Daemon, path: str) -> Any:
    """As somebody who may see all of it, by their token."""
    rules = [{"apiGroups": [names.GROUP], "resources": ["idlepolicies"], "verbs": ["get"]}]
    kubeconfig = yaml.safe_load((await cluster.service_account("viewer", rules)).read_text())
    headers = {"Authorization": f"Bearer {kubeconfig['users'][0]['user']['token']}"}
    async with aiohttp.ClientSession(headers=headers) as http, http.get(f"{daemon.url}{path}") as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


async def hold(release: Release) -> tuple[Object, Object, Object]:
    """What a daemon may hold besides workloads: a node that is being emptied, a pod behind a gate, a finalizer."""
    cluster, asked = release.cluster, {"limits": {"nvidia.com/gpu": 1}}
    record = emptying.EmptyingRecord(v=1, since=1.0, cordoned_by_us=True, because="hardly used")
    node = await cluster.gpu_node(f"{cluster.namespace}-emptied")
    meta = {"annotations": {names.EMPTYING: emptying.write(record)}, "labels": {names.CONSOLIDATION: "emptying"}}
    await cluster.patch(node, {"metadata": meta, "spec": {"unschedulable": True}})
    spec = {"containers": [{"name": "a", "image": "a", "resources": asked}],
            "schedulingGates": [{"name": names.BUDGET_GATE}]}
    pod = await cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "gated"}, "spec": spec})
    meta = {"name": node["metadata"]["name"], "finalizers": [names.REPARTITION]}
    kind = {"apiVersion": "gpuautoscaler.io/v1alpha1", "kind": "GPUNodeConfig"}
    return node, pod, await cluster.apply({**kind, "metadata": meta, "spec": {"nodeName": node["metadata"]["name"]}})


async def give_back(release: Release) -> None:
    """What the hook's Job runs, with its account and the rights that are there only now; then its pod has succeeded.
    A node whose GPUs are being cut is waited for."""
    cluster = release.cluster
    selector = "app.kubernetes.io/name=gpu-pruner-uninstall"
    (pod,) = await cluster.wait_until(lambda: cluster.ready_pods(selector, 1, release.home))
    container = pod["spec"]["containers"][0]
    program, *words = container["command"]
    made = product.Product(release.stage, await release.account(), release.folder, release.user)
    line = [*words, *container["args"], "--kubeconfig", str(made.kubeconfig)]
    node = await cluster.get("v1", "Node", "gpu-1")
    layout = partition.NodeLayout()
    cut = partition.RepartitionRecord(
        config="a", uid="u", before=layout, after=layout, step=partition.RepartitionStep.Draining, since=1.0,
    )
    await cluster.patch(node, {"metadata": {"annotations": {names.REPARTITION: partition.write(cut)}}})
    ended = await product.run(program, *line, env=made.environment())
    assert (ended.code, "node gpu-1 is being cut or shared anew" in ended.err) == (1, True), ended.said
    await cluster.patch(node, {"metadata": {"annotations": {names.REPARTITION: None}}})
    ended = await product.run(program, *line, env=made.environment())
    assert (ended.code, "nothing is paused or held by fallow any more" in ended.out) == (0, True), ended.said
    await cluster.patch(pod, {"status": {"phase": "Succeeded"}}, part="status")


async def leave(release: Release) -> None:
    """helm uninstall, with its hook."""
    leaving = asyncio.create_task(release.helm.run("uninstall", "fallow", "-n", release.home, "--wait"))
    await give_back(release)
    await leaving


async def everything(cluster: clusters.Cluster) -> set[tuple[str, str, str]]:
    """All objects of all kinds that this cluster serves, but for Events."""
    found = set()
    groups = [{"preferredVersion": {"groupVersion": "v1"}}, *(await cluster.request("GET", "/apis"))["groups"]]
    for version in (each["preferredVersion"]["groupVersion"] for each in groups):
        root = f"/apis/{version}" if "/" in version else "/api/v1"
        for kind in (await cluster.request("GET", root))["resources"]:
            if "list" in kind["verbs"] and kind["kind"] not in ("Event", "ComponentStatus"):
                there = await cluster.wait_until(functools.partial(list_all, cluster, f"{root}/{kind['name']}"))
                found |= {(kind["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"])
                          for each in there["items"]}
    return found


async def list_all(cluster: clusters.Cluster, path: str) -> Object | None:
    """None: its definition has just changed, and the server is not done with it."""
    try:
        found: Object = await cluster.request("GET", path)
    except clusters.Refused as refused:
        if refused.code != 429:
            raise
        return None
    return found


OURS = re.compile(r"gpu-pruner|fallow|gpu-?autoscaler|gpu-idle-exporter")
# Definitions and what people wrote; the server makes an APIService for definitions.
STAYS = {"CustomResourceDefinition", "APIService", "IdlePolicy", "GPUNodeConfig"}


async def check_left(release: Release, before: set[tuple[str, str, str]], *but: tuple[str, str, str]) -> None:
    """Nothing at home, and nowhere what is called as something of ours; garbage is collected in the background."""
    async def find_left() -> set[tuple[str, str, str]]:
        return {
            (kind, place, name) for kind, place, name in await everything(release.cluster) - before - set(but)
            if (place == release.home or OURS.search(f"{place} {name}"))
            and kind not in STAYS and name != "kube-root-ca.crt"
        }

    async def is_clean() -> bool:
        return not await find_left()

    with contextlib.suppress(TimeoutError):
        await release.cluster.wait_until(is_clean, 60)
    assert await find_left() == set()


async def test_everything_is_switched_on_and_off_again(release, stage, tmp_path):
    """Every component on a real API server, by an upgrade; a rollback leaves what was there before, and definitions of
    another version are not upgraded past: helm never changes one."""
    cluster = release.cluster
    await cluster.apply_crds(SERVICE_MONITOR, PROMETHEUS_RULE)
    await cluster.make_namespace("gpu-operator")
    await release.helm.run("lint", "--strict", str(helm.CHART))
    await release.install("dashboard.enabled=false", *FINISHES)
    await release.helm.run("test", "fallow", "-n", release.home)
    off = await manifest(release)
    await release.upgrade(*ALL, *FINISHES)
    on = await manifest(release)
    assert {helm.name(each) for each in on} == {
        helm.name(each) for each in helm.render(*ALL, namespace=release.home) if not is_hook(each)
    }
    for thing in on:
        there = await cluster.refresh(thing)
        assert there["metadata"]["annotations"]["meta.helm.sh/release-name"] == "fallow"
    secret = await cluster.get("v1", "Secret", "gpu-pruner-session-key", release.home)
    await release.upgrade(*ALL, *FINISHES, "cost.timescaledb.enabled=true", "cost.timescaledb.host=db")
    assert (await cluster.get("v1", "Secret", "gpu-pruner-session-key", release.home))["data"] == secret["data"]

    await release.helm.run("rollback", "fallow", "1", "-n", release.home, "--wait")
    assert {helm.name(each) for each in await manifest(release)} == {helm.name(each) for each in off}
    books = ("PersistentVolumeClaim", release.home, "gpu-pruner-cost")  # kept: they outlive what made them
    for thing in on:
        if helm.name(thing) not in {helm.name(each) for each in off} | {books} and thing["kind"] != "Namespace":
            _, namespace, called = helm.name(thing)
            assert not await cluster.find(thing["apiVersion"], thing["kind"], called, namespace), called

    (definition,) = (each for each in ours() if each["metadata"]["name"] == "idlepolicies.gpuautoscaler.io")
    there = await cluster.refresh(definition)
    older = there["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    changed = {"op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/old",
               "value": {"type": "string"}}
    assert "old" not in older
    await cluster.patch(there, [changed], "json")
    with pytest.raises(helm.HelmRefused, match=r"another version.*helm show crds CHART \| kubectl apply"):
        await release.upgrade()
    await cluster.apply_crds(definition)


async def test_an_upgrade_keeps_what_was_said_and_takes_what_is_new(release, tmp_path):
    """As the page of the chart says it, from a chart that had a value which is gone, and lacked one that is new."""
    older = tmp_path / "older"
    shutil.copytree(helm.CHART, older)
    (older / "values.schema.json").unlink()
    values = yaml.safe_load((older / "values.yaml").read_text())
    del values["uninstall"]["podAnnotations"]
    (older / "values.yaml").write_text(yaml.safe_dump({**values, "gone": {"was": 1}}))
    await release.helm.run("install", "fallow", str(older), "-n", release.home, "--set", "checkInterval=90")
    page = (helm.CHART / "README.md").read_text()
    (line,) = re.findall(r"^helm upgrade fallow charts/fallow --namespace gpu-pruner-system (\S+)$", page, re.MULTILINE)
    await release.helm.run("upgrade", "fallow", str(helm.CHART), "-n", release.home, line)
    deployment = await release.cluster.get("apps/v1", "Deployment", "gpu-pruner", release.home)
    assert "--check-interval=90" in arguments(deployment)
    said = json.loads(await release.helm.run("get", "values", "fallow", "-n", release.home, "--all", "-o", "json"))
    assert ("gone" in said, said["uninstall"]["podAnnotations"]) == (False, {})


async def test_who_has_paused_is_not_switched_off_with_all_that_is_paused(release):
    await release.install("runMode=scale-down")
    with pytest.raises(helm.HelmRefused, match=r"would leave paused what it has paused.*First: fallow uninstall --yes"):
        await release.upgrade("controller.enabled=false", "exporter.enabled=true")
    await release.upgrade("runMode=dry-run")
    await release.upgrade("controller.enabled=false", "exporter.enabled=true")
    assert not await release.cluster.find("apps/v1", "Deployment", "gpu-pruner", release.home)


FINISHES = ("uninstall.podAnnotations.fallow\\.test/life=finishes",)


def is_hook(thing: Object) -> bool:
    return "helm.sh/hook" in (thing["metadata"].get("annotations") or {})


async def manifest(release: Release) -> list[Object]:
    said = await release.helm.run("get", "manifest", "fallow", "-n", release.home)
    return objects.read(said)


async def check_grafana(cluster: clusters.Cluster) -> None:
    """`kubectl port-forward svc/gpu-autoscaler-grafana 3000:80` takes a pod of its selector, and the port that it names
    there: the one at which the dashboard is served."""
    service = await cluster.get("v1", "Service", "gpu-autoscaler-grafana", "gpu-autoscaler-system")
    deployment = await cluster.get("apps/v1", "Deployment", "gpu-pruner", "gpu-autoscaler-system")
    assert service["spec"]["selector"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    (port,) = service["spec"]["ports"]
    (inside,) = (each for each in container_of(deployment)["ports"] if each["name"] == port["targetPort"])
    assert (port["port"], inside["containerPort"]) == (80, 8080)


async def test_the_commands_of_gpu_autoscaler_work_as_they_are_printed(stage, tmp_path):
    """Names of hosts aside: a repository here, of the packed chart under its other name."""
    cluster, shop = stage.cluster, tmp_path / "shop"
    await cluster.make_namespace("gpu-autoscaler-system")
    kubeconfig = yaml.safe_load(cluster.kubeconfig.read_text())
    kubeconfig["contexts"][0]["context"]["namespace"] = "gpu-autoscaler-system"  # the last upgrade names none
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
    run = helm.Helm(tmp_path / "kubeconfig", tmp_path).run
    await run("package", str(ROOT / "charts" / "gpu-autoscaler"), "-d", str(shop))
    await run("repo", "index", str(shop))
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(shop))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        await run("repo", "add", "gpu-autoscaler", f"http://127.0.0.1:{server.server_port}")
        await run("repo", "update")
        chart, where = "gpu-autoscaler/gpu-autoscaler", ("--namespace", "gpu-autoscaler-system")
        await run("install", "gpu-autoscaler", chart, *where, "--create-namespace")
        await check_grafana(cluster)
        await run("upgrade", "gpu-autoscaler", chart, *where, "--set", "cost.enabled=true",
                  "--set", "cost.provider=aws", "--set", "cost.region=us-west-2")
        deployment = await cluster.get("apps/v1", "Deployment", "gpu-pruner", "gpu-autoscaler-system")
        assert {"--cost=true", "--cost-provider=aws", "--cost-region=us-west-2"} <= set(arguments(deployment))
        await run("upgrade", "gpu-autoscaler", chart, "--set", "cost.timescaledb.enabled=true",
                  "--set", "cost.timescaledb.host=timescaledb.default.svc.cluster.local",
                  "--set", "cost.timescaledb.database=gpucost")
        deployment = await cluster.get("apps/v1", "Deployment", "gpu-pruner", "gpu-autoscaler-system")
        assert {"--cost=true", "--cost-store-dsn-file=/etc/fallow/cost/dsn"} <= set(arguments(deployment))
        secret = await cluster.get("v1", "Secret", "gpu-pruner-cost", "gpu-autoscaler-system")
        assert base64.b64decode(secret["data"]["dsn"]).decode() == (
            "host=timescaledb.default.svc.cluster.local port=5432 dbname=gpucost user=fallow sslmode=require"
        )
    finally:
        server.shutdown()
        server.server_close()
        await run("uninstall", "gpu-autoscaler", "-n", "gpu-autoscaler-system", "--no-hooks", "--ignore-not-found")
