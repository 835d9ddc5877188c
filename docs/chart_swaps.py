"""What of a manifest of deploy/ is a value in the chart: for each file, what stands there and what comes instead.

Out: SWITCHES, what can be on or off; SWAPS, by file. The namespace is replaced everywhere, and is not here.
Invariant: what a row names is in its file exactly as often as it says, or `make docs` ends with a sentence.
"""

from typing import Final

import msgspec

import fallow
from docs import roles
from fallow.settings import PROTECTED_NAMESPACES
from fallow.settings.sharing import MIG_MAP, PLUGIN_MAP

# What can be switched -> when it is on; a template asks `include "fallow.on.NAME" .`.
SWITCHES: Final = {
    "controller": ".Values.controller.enabled",
    "acts": '(and .Values.controller.enabled (eq .Values.runMode "scale-down"))',
    "dashboard": "(and .Values.controller.enabled .Values.dashboard.enabled)",
    "books": "(and .Values.controller.enabled (or .Values.cost.enabled .Values.cost.timescaledb.enabled))",
    "server": "(or .Values.cost.timescaledb.enabled .Values.cost.store.dsn .Values.cost.store.dsnSecret)",
    "webhook": "(or .Values.admissionWebhook.enabled .Values.cost.enforcement.enabled)",
    "extender": ".Values.extender.enabled",
    "second": '(and .Values.extender.enabled (eq .Values.extender.mode "scheduler"))',
    "exporter": ".Values.exporter.enabled",
    "scaling": "(and .Values.controller.enabled .Values.autoscaling.enabled)",
    "spotWatch": ".Values.spotWatch.enabled",
}
ON, ACTS, DASHBOARD, BOOKS, SERVER, WEBHOOK, EXTENDER, SECOND, EXPORTER, SCALING, SPOT_WATCH = (
    f'(include "fallow.on.{name}" .)' for name in SWITCHES
)
ALLOCATION = f"(and {BOOKS} .Values.cost.api.port)"
FILE_BOOKS, SERVER_BOOKS = f"(and {BOOKS} (not {SERVER}))", f"(and {BOOKS} {SERVER})"
SETTINGS = f"(and {ON} .Values.settings)"
MOUNTS = f"(or {DASHBOARD} {BOOKS} {SETTINGS})"
PEERS = f"(and {DASHBOARD} .Values.dashboard.peers)"
SHARES = f"(and {ACTS} .Values.sharing.enabled)"
REWRITES = f"(and {ACTS} {WEBHOOK} .Values.admissionWebhook.rewriteRequests)"
SCALES = f'(and {ACTS} {SCALING} (eq .Values.autoscaling.mode "act"))'
HOLDS_POOLS = f"(and {ACTS} .Values.cost.enforcement.enabled .Values.cost.enforcement.editNodePools)"
EMPTIES = (
    f'(and {ACTS} .Values.binPacking.enabled (or (eq .Values.binPacking.consolidation.mode "act") '
    '(eq .Values.binPacking.defrag.mode "act")))'
)


class Swap(msgspec.Struct, frozen=True):
    old: str
    new: str
    times: int = 1


def value(path: str) -> str:
    return f"{{{{ .Values.{path} }}}}"


def _part(path: str, index: int) -> str:
    """Of NAMESPACE/NAME."""
    return f'{{{{ index (splitList "/" .Values.{path}) {index} }}}}'


def _lines(*lines: str, by: int = 0) -> str:
    return "".join(f"{' ' * by}{line}\n" for line in lines)


def _more(path: str) -> str:
    return _lines(f"{{{{- with .Values.{path} }}}}", "{{- toYaml . | nindent 4 }}", "{{- end }}", by=4)


_IMAGE: Final = Swap(
    f"image: fallow:{fallow.__version__}\n",
    'image: {{ include "fallow.image" . }}\n          imagePullPolicy: {{ .Values.image.pullPolicy }}\n',
)
_NODE_IMAGE: Final = Swap(
    f"image: gpu-idle-exporter:{fallow.__version__}\n",
    f"image: {value('exporter.image')}:{{{{ .Values.exporter.tag | default .Chart.AppVersion }}}}\n"
    "          imagePullPolicy: {{ .Values.image.pullPolicy }}\n",
)


def _placed(account: str, by: str = "placing") -> Swap:
    """In a pod of this account: who pulls its image, and on which nodes it may run; `pulling`: it says itself where."""
    line = f"      serviceAccountName: {account}\n"
    return Swap(line, line + f'      {{{{- include "fallow.{by}" . | trim | nindent 6 }}}}\n')


_EXTENDER_PORT: Final = '{{ include "fallow.extenderPort" . }}'
_POLICY: Final = Swap("--policy=Auto", f"--policy={value('binPacking.strategy')}")
# Arguments of the webhook that are written out of several values.
_WAYS = (
    *(line for value, way in (("mig", "mig"), ("mps", "mps"), ("timeSlicing", "timeslicing")) for line in (
        f"{{{{- if not .Values.sharing.{value}.enabled }}}}", f"- --sharing-without={way}", "{{- end }}",
    )),
    "{{- range .Values.scheduling.schedulerNames }}", "- --scheduler-name={{ . }}", "{{- end }}",
    '{{- if include "fallow.on.second" . }}', "- --scheduler-name=fallow-scheduler", "{{- end }}",
    "{{- range $class, $patterns := .Values.classification.patterns }}", "{{- range $patterns }}",
    '- {{ printf "--classification-pattern=%s=%s" $class . | quote }}', "{{- end }}", "{{- end }}",
)
_PLUGIN, _MIG = "sharing.devicePluginConfigMap", "sharing.mig.configMap"
_RESOURCES: Final = """          resources:
            requests:
              cpu: 50m
              memory: 128Mi
            limits:
              memory: 512Mi
"""
_STRATEGY: Final = """    type: RollingUpdate
    rollingUpdate:
      maxSurge: 25%
      maxUnavailable: 25%
"""
_ARGUMENTS: Final = """          args:
            - -d
            - --log-format=json
            - --run-mode=$(RUN_MODE)
            - --dry-run-scope=$(DRY_RUN_SCOPE)
            - --require-policy=$(REQUIRE_POLICY)
            - --cost-enforcement=$(COST_ENFORCEMENT)
          envFrom: # a later one wins
            - configMapRef:
                name: gpu-pruner
            - configMapRef:
                name: gpu-pruner-acting
                optional: true
            - configMapRef:
                name: gpu-pruner-enforcement
                optional: true
"""

_ACCOUNT: Final = f"kind: ServiceAccount\nmetadata:\n  name: gpu-pruner\n  namespace: {roles.HOME}\n"
_LABELLED: Final = "    metadata:\n      labels:\n        app.kubernetes.io/name: gpu-pruner\n"

SWAPS: Final[dict[str, tuple[Swap, ...]]] = {
    "deploy/base/20-reader.yaml": (
        Swap(_ACCOUNT, _ACCOUNT + _lines(
            "{{- with .Values.controller.serviceAccountAnnotations }}", "annotations:",
            "  {{- toYaml . | nindent 4 }}", "{{- end }}", by=2,
        )),
    ),
    "deploy/controller/20-gpu-pruner.yaml": (
        _IMAGE, _placed("gpu-pruner"),
        Swap(_LABELLED, _LABELLED + _lines(
            "{{- with .Values.controller.podLabels }}", "{{- toYaml . | nindent 8 }}", "{{- end }}", by=8,
        )),
        Swap(_ARGUMENTS, _lines("args:", '  {{- include "fallow.args" . | nindent 12 }}', by=10)),
        Swap(_RESOURCES, _lines("resources:", "  {{- toYaml .Values.controller.resources | nindent 12 }}", by=10)),
        Swap("replicas: 2\n", 'replicas: {{ include "fallow.replicas" . }}\n'),
        Swap(_STRATEGY, _lines(
            f"{{{{- if {FILE_BOOKS} }}}}", "type: Recreate # the volume goes from one pod to the next", "{{- else }}",
            by=4,
        ) + _STRATEGY + "    {{- end }}\n"),
        Swap("        runAsGroup: 65532\n", _lines(
            "runAsGroup: 65532", f"{{{{- if {MOUNTS} }}}}", "fsGroup: 65532", "{{- end }}", by=8,
        )),
        Swap("                  fieldPath: metadata.uid\n", _lines(
            "      fieldPath: metadata.uid", '{{- include "fallow.env" . | trim | nindent 12 }}', by=12,
        )),
        Swap("              drop: [ALL]\n", _lines(
            "              drop: [ALL]", '{{- include "fallow.mounts" . }}',
        )),
        Swap("              containerPort: 8080\n", _lines(
            "  containerPort: 8080", f"{{{{- if {ALLOCATION} }}}}", "- name: allocation",
            f"  containerPort: {value('cost.api.port')}", "{{- end }}", by=12,
        )),
        Swap("      targetPort: metrics\n", _lines(
            "  targetPort: metrics", f"{{{{- if {ALLOCATION} }}}}", "- name: allocation",
            f"  port: {value('cost.api.port')}", "  targetPort: allocation", "{{- end }}", by=4,
        )),
    ),
    "deploy/controller/30-network.yaml": (
        Swap("[monitoring, openshift-monitoring, openshift-user-workload-monitoring]",
             "{{ toJson .Values.networkPolicy.scrapers }}"),
        Swap("  egress:\n", _more("networkPolicy.ingress") + "  egress:\n" + _more("networkPolicy.egress") + _lines(
            f"{{{{- if {SERVER_BOOKS} }}}}", "- ports: # PostgreSQL", f"    - port: {value('cost.timescaledb.port')}",
            "      protocol: TCP", "{{- end }}", "{{- with .Values.cost.alerts.smtp }}",
            "{{- if and .host (not (has (int .port) (list 465 587))) }}", "- ports: # mail", "    - port: {{ .port }}",
            "      protocol: TCP", "{{- end }}", "{{- end }}", by=4,
        )),
        Swap("          protocol: TCP\n    - from: # a replica that follows", "          protocol: TCP\n" + _lines(
            f"{{{{- if {ALLOCATION} }}}}", f"- port: {value('cost.api.port')}", "  protocol: TCP", "{{- end }}", by=8,
        ) + "    - from: # a replica that follows"),
    ),
    "deploy/acting/15-bounds.yaml": (
        Swap(PROTECTED_NAMESPACES,
             '{{ coalesce (index .Values.flags "protected-namespaces") (index .Values.settings "protected-namespaces") '
             f'"{PROTECTED_NAMESPACES}" | toString '
             r"""| replace "\\" "\\\\" | replace "'" "\\'" }}"""),  # a backslash and a quote as CEL spells them
        Swap(f"'{PLUGIN_MAP[1]}'", f"'{_part(_PLUGIN, 1)}'", 2), Swap(f"'{MIG_MAP[1]}'", f"'{_part(_MIG, 1)}'", 2),
        Swap(f"'{PLUGIN_MAP[0]}'", f"'{_part(_PLUGIN, 0)}'", 4),
        Swap(f"ConfigMap {PLUGIN_MAP[0]}/{PLUGIN_MAP[1]}", f"ConfigMap {value(_PLUGIN)}"),
        Swap(f"ConfigMap {MIG_MAP[0]}/{MIG_MAP[1]}", f"ConfigMap {value(_MIG)}"),
    ),
    "deploy/sharing/10-role.yaml": (
        Swap(f"namespace: {PLUGIN_MAP[0]}", f"namespace: {_part(_PLUGIN, 0)}", 2),
        Swap(PLUGIN_MAP[1], f'"{_part(_PLUGIN, 1)}"'), Swap(MIG_MAP[1], f'"{_part(_MIG, 1)}"'),
    ),
    "deploy/cost/10-store.yaml": (
        Swap("  labels:\n", _lines(
            "annotations:", "  helm.sh/resource-policy: keep # the books outlive an uninstall", "labels:", by=2,
        )),
        Swap("storage: 5Gi\n", f"storage: {value('cost.persistence.size')}\n" + _lines(
            "{{- with .Values.cost.persistence.storageClass }}", "storageClassName: {{ . }}", "{{- end }}", by=2,
        )),
    ),
    "deploy/webhook/30-webhook.yaml": (
        _IMAGE, _placed("gpu-autoscaler-webhook"),
        Swap("replicas: 2", f"replicas: {value('admissionWebhook.replicas')}"),
        Swap("            - --webhook-cert-dir=/etc/fallow/webhook\n", _lines(
            "- --webhook-cert-dir=/etc/fallow/webhook",
            '- --exempt-namespaces={{ join "|" .Values.admissionWebhook.exemptNamespaces }}',
            f"- --sharing-backend={value('sharing.backend')}", *_WAYS,
            '{{- include "fallow.args.webhook" . | trim | nindent 12 }}', by=12,
        )),
    ),
    "deploy/webhook/40-configurations.yaml": (
        Swap(f"[kube-system, kube-public, kube-node-lease, gpu-operator, {roles.HOME}]",
             "{{ toJson (append .Values.admissionWebhook.exemptNamespaces .Release.Namespace) }}", 3),
        Swap("timeoutSeconds: 3", f"timeoutSeconds: {value('admissionWebhook.timeoutSeconds')}", 3),
        Swap("    failurePolicy: Ignore\n    sideEffects", "    failurePolicy: "
             f"{value('cost.enforcement.failurePolicy')}\n    sideEffects"),
        Swap("    failurePolicy: Ignore\n    reinvocationPolicy", "    failurePolicy: "
             f"{value('admissionWebhook.failurePolicy')}\n    reinvocationPolicy", 2),
        Swap("  labels:\n", _lines(
            "{{- if .Values.admissionWebhook.certManager.enabled }}", "annotations:",
            "  cert-manager.io/inject-ca-from: {{ .Release.Namespace }}/gpu-autoscaler-webhook", "{{- end }}",
            "labels:", by=2,
        ), 2),
    ),
    "deploy/extender/30-scheduler.yaml": (
        _IMAGE, _POLICY, _placed("fallow-scheduler"),
        Swap("image: kube-scheduler:v1.36.3", f"image: {value('extender.schedulerImage')}"),
    ),
    "deploy/extender/service/30-extender.yaml": (
        _IMAGE, _POLICY, _placed("fallow-extender"), Swap(":9444\n", f"{value('extender.addr')}\n"),
        Swap("containerPort: 9444", f"containerPort: {_EXTENDER_PORT}"),
        Swap("      port: 9444\n", f"      port: {_EXTENDER_PORT}\n"),
        Swap("        - port: 9444 #", f"        - port: {_EXTENDER_PORT} #"),
    ),
    "deploy/spot-watch/30-spot-watch.yaml": (_NODE_IMAGE, _placed("fallow-spot-watch", "pulling")),
    "examples/exporter/daemonset/20-daemonset.yaml": (_NODE_IMAGE, _placed("gpu-idle-exporter", "pulling")),
}
