"""The Helm chart charts/fallow, made from deploy/: each file there is a template here, rendered where its row says.

In: the manifests of deploy/ (and of examples/exporter), the table of values. Out: templates, values.yaml, its schema,
the page of the chart, its definitions of custom resources and dashboards. A component more is a row in TEMPLATES; what
a kustomize component adds to the Deployment is read from that component.
Invariant: a manifest has one source. Whatever is replaced in it must be there as often as is said here, else nothing is
written. tests/real/test_chart.py holds what helm renders against what kustomize renders.
"""

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from docs import boards, chart_pages, chart_values, roles
from docs.chart_swaps import (
    ACTS,
    BOOKS,
    DASHBOARD,
    EMPTIES,
    EXPORTER,
    EXTENDER,
    FILE_BOOKS,
    HOLDS_POOLS,
    MOUNTS,
    ON,
    PEERS,
    REWRITES,
    SCALES,
    SECOND,
    SERVER_BOOKS,
    SETTINGS,
    SHARES,
    SPOT_WATCH,
    SWAPS,
    SWITCHES,
    WEBHOOK,
)

ROOT = Path(__file__).parent.parent
CHART, MADE = chart_pages.CHART, chart_pages.MADE

# File -> when it is rendered. A component more is a row here; `helm template` shows it at once, and the tests with it.
TEMPLATES: dict[str, str] = {
    "deploy/base/20-reader.yaml": ON,
    "deploy/controller/20-gpu-pruner.yaml": ON,
    "deploy/controller/30-network.yaml": ON,
    "deploy/acting/10-role.yaml": ACTS,
    "deploy/acting/15-bounds.yaml": f"(and {ON} .Values.bounds.enabled)",
    "deploy/dashboard/10-role.yaml": DASHBOARD,
    "deploy/cost/10-store.yaml": f"(and {FILE_BOOKS} (not .Values.cost.persistence.existingClaim))",
    "deploy/cost/15-role.yaml": BOOKS,
    "deploy/enforcement/10-role.yaml": f"(and {ON} .Values.cost.enforcement.enabled)",
    "deploy/enforcement/node-pools/10-role.yaml": HOLDS_POOLS,
    "deploy/webhook/10-role.yaml": f"(and {ON} {WEBHOOK} (not .Values.admissionWebhook.certManager.enabled))",
    "deploy/webhook/15-owner-use-role.yaml": f"(and {ON} {WEBHOOK})",
    "deploy/webhook/20-webhook-role.yaml": WEBHOOK,
    "deploy/webhook/30-webhook.yaml": WEBHOOK,
    "deploy/webhook/40-configurations.yaml": WEBHOOK,
    "deploy/sharing/10-role.yaml": SHARES,
    "deploy/sharing/15-back-off-role.yaml": REWRITES,
    "deploy/consolidation/10-role.yaml": EMPTIES,
    "deploy/extender/role/10-role.yaml": EXTENDER,
    "deploy/extender/20-scheduler-role.yaml": SECOND,
    "deploy/extender/30-scheduler.yaml": SECOND,
    "deploy/extender/service/30-extender.yaml": f"(and {EXTENDER} (not {SECOND}))",
    "deploy/monitoring/10-servicemonitor.yaml": f"(and {ON} .Values.monitoring.serviceMonitor.enabled)",
    "deploy/monitoring/20-rules.yaml": f"(and {ON} .Values.monitoring.rules.enabled)",
    "deploy/openshift/monitoring.yaml": f"(and {ON} .Values.monitoring.openshift.enabled)",
    "deploy/openshift/pods.yaml": '(.Capabilities.APIVersions.Has "security.openshift.io/v1")',
    "deploy/scaling/10-role.yaml": SCALES,
    "deploy/spot-watch/00-namespace.yaml": SPOT_WATCH,
    "deploy/spot-watch/10-role.yaml": SPOT_WATCH,
    "deploy/spot-watch/15-bounds.yaml": SPOT_WATCH,
    "deploy/spot-watch/30-spot-watch.yaml": SPOT_WATCH,
    "examples/exporter/daemonset/00-namespace.yaml": EXPORTER,
    "examples/exporter/daemonset/10-account.yaml": EXPORTER,
    "examples/exporter/daemonset/20-daemonset.yaml": EXPORTER,
} | {
    f"deploy/letters/{path.stem}.yaml": f'(and {ACTS} (contains "{path.stem}" .Values.enabledResources))'
    for path in sorted((ROOT / "deploy" / "letters").glob("*.yaml"))
}
# Some rows are here before their manifests, which come with their capability.
TEMPLATES = {path: when for path, when in TEMPLATES.items() if (ROOT / path).exists()}
# What is in deploy/ and has no template: why.
LEFT_OUT = {
    "deploy/base/00-namespace.yaml": "helm makes the namespace (--create-namespace)",
    "deploy/controller/10-settings.yaml": "values are arguments",
    "deploy/acting/20-mode.yaml": "values are arguments", "deploy/enforcement/50-mode.yaml": "values are arguments",
    "deploy/acting/example-policy.yaml": "an example",
    "deploy/extender/scheduler/config.yaml": "for a scheduler of yours",
    "deploy/extender/scheduler/second.yaml": "in a ConfigMap of templates/scheduler.yaml",
    "deploy/cost/postgres/15-role.yaml": "the same as cost/15-role.yaml",
}
# Kustomize components that change the Deployment -> when. Their patches are read.
COMPONENTS = {"dashboard": DASHBOARD, "cost": FILE_BOOKS, "cost/postgres": SERVER_BOOKS}
KINDS = {
    "PodDisruptionBudget": ".Values.podDisruptionBudget.enabled", "NetworkPolicy": ".Values.networkPolicy.enabled",
}


def template(path: str) -> str:
    text = (ROOT / path).read_text().replace("{{", '{{ "{{" }}')
    for swap in SWAPS.get(path, ()):
        if text.count(swap.old) != swap.times:
            found = f"{swap.old!r} is in {path} {text.count(swap.old)} times, not {swap.times}"
            raise ValueError(f"{found}: docs/chart_swaps.py says what comes instead")
        text = text.replace(swap.old, swap.new)
    text = text.replace(roles.HOME, "{{ .Release.Namespace }}").replace(f"# {MADE}\n", "")
    body = "---\n".join(_when(part) for part in re.split(r"^---\n", text, flags=re.MULTILINE))
    return f"# From {path}. {MADE}\n{_if(TEMPLATES[path], body)}"


def _when(part: str) -> str:
    """A document that has a switch of its own, and rules that are only there for books."""
    kind = re.search(r"^kind: (\w+)$", part, re.MULTILINE)
    rule = rf"^  # {re.escape(roles.WITH_COSTS)}\n  - .*\n(?:    .*\n)+"
    part = re.sub(rule, lambda found: _if(BOOKS, found[0]), part, flags=re.MULTILINE)
    return _if(KINDS[kind[1]], part) if kind and kind[1] in KINDS else part


def _if(condition: str, text: str) -> str:
    return f"{{{{- if {condition} }}}}\n{text}{{{{- end }}}}\n"


# ---- what components add to the Deployment ---------------------------------------------------------------------------


def components() -> str:
    """Arguments, mounts and volumes of each, read from its patches."""
    arguments, mounts, volumes = [], [], []
    for place, when in COMPONENTS.items():
        folder = ROOT / "deploy" / place
        patches = yaml.safe_load((folder / "kustomization.yaml").read_text())["patches"]
        merged = [yaml.safe_load((folder / each["path"]).read_text()) for each in patches if "path" in each]
        pod = merged[0]["spec"]["template"]["spec"]
        added = [each["value"] for one in patches if "patch" in one for each in yaml.safe_load(one["patch"])]
        arguments.append(_if(when, "".join(f"- {each}\n" for each in added if isinstance(each, str))))
        mounts.append(_if(when, _yaml(pod["containers"][0]["volumeMounts"], 12)))
        volumes.append(_if(when, _yaml(pod["volumes"], 8)))
    arguments.append(_if(PEERS, _PEER_ARGUMENTS))
    mounts.append(_if(PEERS, _yaml([{"name": "peers", "mountPath": "/etc/fallow/peers", "readOnly": True}], 12)))
    volumes.append(_if(PEERS, _PEER_TOKENS))
    arguments.append(_if(SETTINGS, "- --config=/etc/fallow/settings/settings.yaml\n"))
    mount = {"name": "settings", "mountPath": "/etc/fallow/settings", "readOnly": True}
    mounts.append(_if(SETTINGS, _yaml([mount], 12)))
    volumes.append(_if(SETTINGS, _yaml([{"name": mount["name"], "configMap": {"name": SETTINGS_MAP}}], 8)))
    for old, new in _ADJUSTED:
        arguments = [each.replace(old, new) for each in arguments]
        volumes = [each.replace(old, new) for each in volumes]
    return (
        '{{- define "fallow.args.components" -}}\n' + "".join(arguments) + "{{- end }}\n"
        f'{{{{- define "fallow.mounts" -}}}}\n{{{{- if {MOUNTS} }}}}\n          volumeMounts:\n' + "".join(mounts)
        + "      volumes:\n" + "".join(volumes) + "{{- end }}\n{{- end }}\n"
    )


SETTINGS_MAP = "gpu-pruner-settings"
# Each token by the name of its cluster, in one volume. Without its Secret that cluster is "not seen"; nothing stops.
_PEER_ARGUMENTS = """{{- range .Values.dashboard.peers }}
- "--peer={{ .name }}={{ .url }}"
{{- if .tokenSecret }}
- "--peer-token-file={{ .name }}=/etc/fallow/peers/{{ .name }}"
{{- end }}
{{- end }}
{{- if .Values.dashboard.peerCaSecret }}
- --peer-ca-file=/etc/fallow/peers/_ca.crt
{{- end }}
"""
_PEER_TOKENS = """        - name: peers
          projected:
            defaultMode: 288
            sources:
{{- range .Values.dashboard.peers }}
{{- $name := .name }}
{{- with .tokenSecret }}
              - secret:
                  name: {{ .name }}
                  optional: true
                  items:
                    - key: {{ .key | default "token" }}
                      path: {{ $name }}
{{- end }}
{{- end }}
{{- with .Values.dashboard.peerCaSecret }}
              - secret:
                  name: {{ . }}
                  items:
                    - key: ca.crt
                      path: _ca.crt
{{- end }}
"""
_ADJUSTED = (
    ("--dashboard-auth=kube", "--dashboard-auth={{ .Values.dashboard.auth }}"),
    ("gpu-pruner-session-key", '{{ .Values.dashboard.sessionKeySecret | default "gpu-pruner-session-key" }}'),
    ("secretName: gpu-pruner-cost", 'secretName: {{ .Values.cost.store.dsnSecret | default "gpu-pruner-cost" }}'),
    ("claimName: gpu-pruner-cost",
     'claimName: {{ .Values.cost.persistence.existingClaim | default "gpu-pruner-cost" }}'),
)


def _yaml(value: Any, by: int) -> str:
    text = yaml.safe_dump(value, sort_keys=False, width=140)
    return "".join(f"{' ' * by}{line}\n" for line in text.splitlines())


def arguments() -> str:
    """Of each program, a line for each value that is a flag."""
    parts = []
    for program in ("controller", "webhook"):
        rows = [row for row in chart_values.ROWS if row.flag and row.program == program]
        parts.append(f'{{{{- define "fallow.args.{program}" -}}}}\n' + "".join(map(_argument, rows)) + "{{- end }}\n")
    return "".join(parts)


def _argument(row: chart_values.Value) -> str:
    spelled = json.dumps("" if row.always else chart_pages.spell(row.default))
    return f'{{{{- include "fallow.flag" (list "{row.flag}" .Values.{row.path} {spelled}) }}}}\n'


def switches() -> str:
    """Whether each is on; and how a flag that has no value is given."""
    whether = "".join(
        f'{{{{- define "fallow.on.{name}" }}}}{{{{ if {when} }}}}on{{{{ end }}}}{{{{ end }}}}\n'
        for name, when in SWITCHES.items()
    )
    bare = " ".join(f'"{flag.name.removeprefix("--")}"' for flag in chart_values.FREE if flag.switch)
    given = _if("index . 1", "- --{{ index . 0 }}\n") + "{{- else }}\n- --{{ index . 0 }}={{ index . 1 }}\n"
    either = _if(f"has (index . 0) (list {bare})", given)
    return f'{whether}{{{{- define "fallow.switched" }}}}\n{either}{{{{- end }}}}\n'


def helpers() -> str:
    return f"{{{{- /* {MADE} */ -}}}}\n{switches()}{components()}{arguments()}"


# ---- other files -----------------------------------------------------------------------------------------------------


def second_scheduler() -> str:
    """The configuration of the second scheduler, in the ConfigMap that its Deployment names."""
    path = "deploy/extender/scheduler/second.yaml"
    config = (ROOT / path).read_text().replace(roles.HOME, "{{ .Release.Namespace }}")
    head = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: fallow-scheduler-config\n  namespace: "
    data = "".join(f"    {line}\n" for line in config.splitlines())
    made = f"{head}{{{{ .Release.Namespace }}}}\ndata:\n  config.yaml: |\n{data}"
    return f"# From {path}. {MADE}\n{_if(SECOND, made)}"


def leaving() -> str:
    """Rights that the account has only while the release is removed."""
    hook = (
        "metadata:\n  annotations:\n    helm.sh/hook: pre-delete\n"
        "    helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded,hook-failed\n"
    )
    text = roles.leaving("For the Job of templates/uninstall.yaml, within the bounds of the account, and gone with it.")
    text = text.replace("metadata:\n", hook).replace(roles.HOME, "{{ .Release.Namespace }}")
    return _if(f"and {ON} .Values.uninstall.resume", text)


def copied(path: str) -> str:
    return (ROOT / path).read_text()


def name_template(path: str) -> str:
    """deploy/cost/15-role.yaml -> cost-15-role.yaml"""
    return f"{CHART}/templates/{path.removeprefix('deploy/').removeprefix('examples/').replace('/', '-')}"


FILES: dict[str, Callable[[], str]] = {
    **{name_template(path): partial(template, path) for path in TEMPLATES},
    f"{CHART}/templates/extender-scheduler-config.yaml": second_scheduler,
    f"{CHART}/templates/uninstall-role.yaml": leaving,
    f"{CHART}/templates/_made.tpl": helpers,
    f"{CHART}/values.yaml": chart_pages.values, f"{CHART}/values.schema.json": chart_pages.schema,
    f"{CHART}/README.md": chart_pages.page,
    **{f"charts/{name}/Chart.yaml": partial(chart_pages.chart, name) for name in ("fallow", "gpu-autoscaler")},
    **{
        f"{CHART}/crds/{path.name}": partial(copied, str(path.relative_to(ROOT)))
        for path in sorted((ROOT / "deploy" / "base").glob("1*crd*.yaml"))
    },
    **{
        f"{CHART}/{path}": partial(copied, path) for path in boards.FILES
    },
}
BY_HAND: Mapping[str, str] = {
    "templates/_helpers.tpl": "names and arguments", "templates/NOTES.txt": "what to do next",
    "templates/checks.yaml": "what contradicts itself", "templates/policies.yaml": "policies to begin with",
    "templates/secrets.yaml": "what the values say and nobody may read",
    "templates/settings.yaml": "the file of --config",
    "templates/grafana-name.yaml": "the dashboard by a name in GPU Autoscaler's documents",
    "templates/cert-manager.yaml": "the webhook's certificate", "templates/dashboards.yaml": "Grafana's",
    "templates/leavings.yaml": "what the daemon makes, so that it goes with the release",
    "templates/uninstall.yaml": "what is paused comes back first", "templates/tests/look.yaml": "helm test",
    "README.head": "how the page begins", ".helmignore": "what is not packed",
}
