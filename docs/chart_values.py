"""The values of the Helm chart: a row for each, from which values.yaml, its schema, its page and the arguments follow.

In: the table of flags. Out: ROWS. A row that names a flag has that flag's default, meaning and bounds, so none of them
is written here again; a row without one says them itself.
Invariant: what `flags` and `settings` take is what no row of its own sets, so nothing can be said twice.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from fallow import names, settings
from fallow.model.classes import WorkClass
from fallow.settings import cost_enforcement, packing, readers
from fallow.settings.flags import Flag

Schema = dict[str, Any]
TEXT: Schema = {"type": "string", "pattern": "^[ -~]*$"}  # a name: a second line would be YAML of its own
LINES: Schema = {"type": "string"}  # of what is written between quotes
URL: Schema = {"type": "string", "pattern": "^https?://[!#-~]*$"}
WORDS: Schema = {"type": ["string", "number"]}  # of a flag that reads text: `--set` makes a number of digits
DECIMAL: Schema = {"type": "string", "pattern": r"^[0-9]*\.[0-9]+$"}  # `--set x=0.5` gives text
PART: Schema = {"anyOf": [{"type": "number", "minimum": 0, "maximum": 1}, DECIMAL]}
SWITCH: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 0}
LIST: Schema = {"type": "array"}
TEXTS: Schema = {"type": "array", "items": TEXT}
OBJECT: Schema = {"type": "object"}
PEERS: Schema = {"type": "array", "items": {
    "type": "object", "required": ["name", "url"], "additionalProperties": False, "properties": {
        "name": {"type": "string", "pattern": "^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$"},
        "url": URL,
        "tokenSecret": {"type": "object", "required": ["name"], "additionalProperties": False,
                        "properties": {"name": TEXT, "key": TEXT}},
    },
}}
# What every install says in its own way, or must not say at all.
HELD = {"--daemon-mode", "--log-format", "--metrics-addr", "--kubeconfig", "--context", "--state-dir", "--cost",
        "--cost-store-dsn-file", "--session-key-file", "--dashboard-port", "--dashboard-addr", "--cost-enforcement",
        "--leader-elect", "--webhook-certificate", "--sharing", "--dashboard-auth", "--cost-attribution-labels",
        "--slack-webhook-url", "--smtp-url", "--smtp-password", "--prometheus-token",
        "--require-policy", "--config", "--scaling", "--prometheus-url", "--peer", "--peer-token-file",
        "--peer-ca-file"}
_FLAGS = {flag.name: flag for flag in (*packing.EXTENDER_FLAGS, *cost_enforcement.WEBHOOK_FLAGS, *settings.FLAGS)}


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """`flag`: whose argument it becomes, where it is not as that flag is by default or `always`; of the daemon, unless
    `program` says another."""

    path: str
    default: Any
    help: str
    schema: Mapping[str, Any]
    flag: str = ""
    program: str = "controller"
    always: bool = False


def say(path: str, default: Any, schema: Schema, text: str) -> Value:
    return Value(path=path, default=default, help=text, schema=schema)


def give(path: str, flag: str, *, program: str = "controller", always: bool = False, default: Any = None) -> Value:
    """The value of a flag; `default` where ours is a safer one, which is then always said."""
    row, schema = _FLAGS[flag], describe(_FLAGS[flag])
    return Value(
        path=path, default=usual(row) if default is None else default, help=row.help, schema=schema, flag=flag,
        program=program, always=always or default is not None,
    )


def describe(flag: Flag) -> Schema:
    """What the flag takes, as far as a schema can say it; the flag itself says the rest when it is read."""
    schema = SWITCH if flag.switch else _of_reader(flag.read)
    if flag.repeat:
        return {"type": "array", "items": schema}
    is_unset = flag.default is None and not flag.switch and schema is not WORDS
    return {"anyOf": [{"const": ""}, schema]} if is_unset else schema


def _of_reader(read: readers.Read) -> Schema:
    match read:
        case readers.WholeNumber(least=least):
            return {"type": "integer", "minimum": least}
        case readers.BoundedNumber(least=least, most=most):
            return {"anyOf": [{"type": "number", "minimum": least, "maximum": most}, DECIMAL]}
        case readers.OneOf(choices=choices):
            return {"type": "string", "enum": list(choices)}
        case readers.truth:
            return SWITCH
        case readers.port:
            return {"type": "integer", "minimum": 1, "maximum": 65535}
        case _:
            return WORDS


def usual(flag: Flag) -> Any:
    if flag.repeat:
        return []
    if flag.switch or flag.read is readers.truth:
        return flag.default == "true"
    if flag.default is None:
        return ""
    is_number = isinstance(flag.read, readers.WholeNumber | readers.BoundedNumber)
    return flag.read(flag.default) if is_number else flag.default


_RUNS = "Requests and limits of its pods."
_PATTERNS: Schema = {"type": "array", "items": LINES}

ROWS: tuple[Value, ...] = (
    say("image.repository", "fallow", TEXT, "Image of all programs but those on nodes."),
    say("image.tag", "", TEXT, "Its tag; empty: the version of the chart."),
    say("image.digest", "", TEXT, "Its digest, sha256:..., which wins over the tag."),
    say("image.pullPolicy", "IfNotPresent", {"enum": ["Always", "IfNotPresent", "Never"]}, "When it is pulled."),
    say("imagePullSecrets", [], TEXTS, "Names of Secrets by which images are pulled."),

    say("prometheus.url", "auto", {"anyOf": [{"enum": ["auto", ""]}, URL]},
        "Address of Prometheus, Thanos, Mimir, ... auto: the first Service of Prometheus, by its usual names, that "
        "helm finds in a namespace of prometheus.namespaces; where there is none, and where it is empty, exporters are "
        "read directly. (`--prometheus-url`)"),
    say("prometheus.namespaces", ["monitoring", "prometheus", "observability", "kube-prometheus-stack",
                                  "cattle-monitoring-system"], TEXTS,
        "Where `auto` looks for it: namespaces into which no tenant can put a Service."),
    give("runMode", "--run-mode", always=True),
    give("dryRunScope", "--dry-run-scope", default="client"),
    say("requirePolicy", "", {"anyOf": [{"const": ""}, SWITCH]}, "Only pause what an IdlePolicy covers. Empty: true "
        "where it acts; a dry run names all that it would pause. (`--require-policy`)"),
    give("checkInterval", "--check-interval", default=60),
    give("enabledResources", "--enabled-resources"),
    say("flags", {}, {"flags": True}, "Any other flag of gpu-pruner, by its name without the dashes; a list where it "
        "may be repeated."),
    say("settings", {}, {"flags": True}, "The same, in a file that the daemon heeds within a minute or two when it "
        "changes, without a restart. (`--config`)"),

    say("controller.enabled", True, SWITCH, "The daemon, which looks and, if it is let, pauses. Where it has paused, "
        "give that back (`fallow uninstall --yes`) before you switch it off."),
    say("controller.replicas", 2, {"type": "integer", "minimum": 1},
        "Of which one leads. With books in SQLite there is one."),
    say("controller.env", [], LIST, "Further variables of the daemon, such as a token of Prometheus from a Secret."),
    say("controller.resources", {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}}, OBJECT,
        _RUNS),
    say("controller.nodeSelector", {}, OBJECT, "Nodes on which it may run, and with it the webhook, the extender and "
        "the pods of `helm test` and `helm uninstall`."),
    say("controller.tolerations", [], LIST, "Taints that these bear."),
    say("controller.serviceAccountAnnotations", {}, OBJECT, "Annotations of its account, by which a cloud knows it: "
        "eks.amazonaws.com/role-arn, iam.gke.io/gcp-service-account, azure.workload.identity/client-id."),
    say("controller.podLabels", {}, OBJECT, "Further labels of its pods, such as azure.workload.identity/use."),

    say("dashboard.enabled", True, SWITCH, "The dashboard and its API, inside the cluster; people come by a "
        "port-forward, or by an Ingress of yours."),
    say("dashboard.auth", "kube", {"type": "string", "enum": ["kube", "oidc", "proxy"]},
        "How people show who they are; nobody is let in without."),
    give("dashboard.publicUrl", "--dashboard-public-url"),
    say("dashboard.peers", [], PEERS, "fallow in further clusters, whose figures are shown beside ours and summed; "
        "they are only read: name, url, and tokenSecret (name, key) with a token of that cluster."),
    say("dashboard.peerCaSecret", "", TEXT, "A Secret of yours with the CA certificates of those (key ca.crt); empty: "
        "the system's."),
    say("dashboard.sessionKeySecret", "", TEXT, "Secret with the key of sessions (key `key`); empty: one is made, and "
        "kept from one version to the next."),

    say("slack.enabled", False, SWITCH, "Tell owners in Slack: the Secret gpu-pruner-slack-webhook (key webhook-url) "
        "must be there; whom to mention, gpu-pruner-config (key namespace-mentions), may be."),
    give("slack.channel", "--slack-channel"),

    say("cost.enabled", False, SWITCH, _FLAGS["--cost"].help),
    give("cost.provider", "--cost-provider"),
    say("cost.cloudProvider", "", TEXT, "The same as cost.provider, by its older name."),
    give("cost.region", "--cost-region"),
    give("cost.currency", "--cost-currency"),
    give("cost.nodeSplit", "--cost-node-split"),
    give("cost.trackingInterval", "--cost-tracking-interval"),
    give("cost.store.path", "--cost-store"),
    say("cost.store.dsn", "", LINES, "Address of a PostgreSQL that has the books; it is kept in a Secret. Better: "
        "cost.store.dsnSecret."),
    say("cost.store.dsnSecret", "", TEXT, "A Secret of yours with that address (key dsn)."),
    give("cost.store.spoolPath", "--cost-spool"),
    say("cost.persistence.size", "5Gi", TEXT, "Of the volume with the books, where they are SQLite."),
    say("cost.persistence.storageClass", "", TEXT, "Its class; empty: the cluster's usual one."),
    say("cost.persistence.existingClaim", "", TEXT, "A claim of yours instead."),
    give("cost.retention.intervalsDays", "--cost-retention-intervals-days"),
    give("cost.retention.hoursDays", "--cost-retention-hours-days"),
    say("cost.timescaledb.enabled", False, SWITCH, "Books in TimescaleDB or PostgreSQL; switches them on."),
    say("cost.timescaledb.host", "", TEXT, "Where it is."),
    say("cost.timescaledb.port", 5432, {"type": "integer", "minimum": 1, "maximum": 65535}, "Its port."),
    say("cost.timescaledb.database", "gpucost", LINES, "Its database."),
    say("cost.timescaledb.user", "fallow", LINES, "As whom."),
    say("cost.timescaledb.passwordSecretRef.name", "", TEXT, "Secret with the password; empty: none is given."),
    say("cost.timescaledb.passwordSecretRef.key", "password", TEXT, "Its key."),
    say("cost.timescaledb.sslmode", "require", {"enum": ["disable", "require", "verify-ca", "verify-full"]},
        "As libpq reads it."),
    say("cost.timescaledb.retention.rawDays", 90, {"type": "integer", "minimum": 2},
        "As cost.retention.intervalsDays, which counts where the books are elsewhere."),
    say("cost.timescaledb.retention.aggregateDays", 365, {"type": "integer", "minimum": 2},
        "As cost.retention.hoursDays."),
    give("cost.prices.maxAgeDays", "--cost-prices-max-age-days"),
    give("cost.prices.refreshInterval", "--cost-prices-refresh"),
    say("cost.prices.csv", "", LINES, "What GPUs cost here, as in the ConfigMap gpu-autoscaler-prices (prices.csv), "
        "which is then made."),
    say("cost.prices.commitmentsCsv", "", LINES, "What is paid for whether it runs or not (commitments.csv)."),
    say("cost.attribution.labels", ["app.kubernetes.io/name"], TEXTS, _FLAGS["--cost-attribution-labels"].help),
    say("cost.alerts.smtp.host", "", TEXT, "Mail server; empty: no letters, or what cost.alerts.smtp.urlSecretRef "
        "names."),
    say("cost.alerts.smtp.port", 587, {"type": "integer", "minimum": 1, "maximum": 65535}, "Its port."),
    say("cost.alerts.smtp.startTLS", True, SWITCH, "It is spoken to in the clear first, and by STARTTLS before a "
        "password is said; false: by TLS from the first byte, as usual at port 465."),
    say("cost.alerts.smtp.username", "", TEXT, "As whom; empty: as nobody."),
    say("cost.alerts.smtp.passwordSecretRef.name", "", TEXT, "Secret with their password."),
    say("cost.alerts.smtp.passwordSecretRef.key", "password", TEXT, "Its key."),
    say("cost.alerts.smtp.urlSecretRef.name", "", TEXT, "Instead of all these: Secret with the address of a mail "
        "server, smtp[s]://USER:PASSWORD@HOST:PORT."),
    say("cost.alerts.smtp.urlSecretRef.key", "url", TEXT, "Its key."),
    give("cost.alerts.smtp.from", "--email-from"),
    give("cost.alerts.smtp.domains", "--email-domains"),
    say("cost.enforcement.enabled", False, SWITCH,
        _FLAGS["--cost-enforcement"].help + " Brings the admission webhook."),
    say("cost.enforcement.failurePolicy", "Ignore", {"enum": ["Ignore", "Fail"]},
        "What the API server does where the webhook does not answer about a budget; Fail keeps GPU pods out."),
    give("cost.enforcement.editNodePools", "--cost-enforcement-edit-node-pools"),
    give("cost.enforcement.maxOverrideHours", "--cost-max-override-hours"),
    give("cost.roi.monthlyInvestment", "--cost-roi-monthly-investment"),
    give("cost.metrics.maxPods", "--cost-metrics-max-pods"),
    give("cost.api.port", "--cost-api-port"),
    give("cost.energy.pricePerKWh", "--cost-energy-price-per-kwh"),
    give("cost.energy.gCO2PerKWh", "--cost-energy-gco2-per-kwh"),
    give("cost.energy.includeInCost", "--cost-energy-include-in-cost"),

    say("admissionWebhook.enabled", False, SWITCH, "The admission webhook: sharing by GPUSharingPolicies, and budgets "
        "where cost.enforcement.enabled."),
    give("admissionWebhook.rewriteRequests", "--rewrite-requests", program="webhook"),
    say("admissionWebhook.failurePolicy", "Ignore", {"enum": ["Ignore", "Fail"]},
        "What the API server does where the webhook does not answer about sharing."),
    say("admissionWebhook.timeoutSeconds", 3, {"type": "integer", "minimum": 1, "maximum": 30},
        "How long the API server waits for it."),
    say("admissionWebhook.exemptNamespaces", ["kube-system", "kube-public", "kube-node-lease", "gpu-operator"], TEXTS,
        "Namespaces about whose pods it is not asked; its own is always one."),
    say("admissionWebhook.certManager.enabled", False, SWITCH, "Its certificate comes from cert-manager; else the "
        "controller makes it."),
    say("admissionWebhook.replicas", 2, {"type": "integer", "minimum": 1}, "How many answer."),

    say("sharing.enabled", False, SWITCH, "Let GPUNodeConfigs that enforce cut or share the GPUs of nodes, or keep "
        "templates of claims (`--sharing act`); needs runMode scale-down."),
    give("sharing.backend", "--sharing-backend"),
    give("sharing.maxConcurrentChanges", "--sharing-max-changes"),
    give("sharing.devicePluginConfigMap", "--sharing-plugin-configmap"),
    give("sharing.mig.configMap", "--sharing-mig-configmap"),
    say("sharing.mig.enabled", True, SWITCH, "Let the webhook give MIG instances; false: whatever policies and pods "
        "say, it does not."),
    say("sharing.mps.enabled", True, SWITCH, "The same for GPUs that are shared by MPS."),
    say("sharing.timeSlicing.enabled", True, SWITCH, "The same for GPUs that are shared in turns."),
    say("scheduling.schedulerNames", [names.DEFAULT_SCHEDULER], TEXTS, "Schedulers whose pods may share GPUs; with "
        "extender.mode scheduler fallow-scheduler is always one."),
    *(say(f"classification.patterns.{each}", [], _PATTERNS, f"Regular expressions that tell {each} by a "
          "container's image, command or arguments, tried before the built-in ones.") for each in WorkClass),
    say("gpuSharingPolicies.defaultPolicies", [],
        {"type": "array", "items": {"type": "object", "required": ["name", "spec"], "additionalProperties": False,
                                    "properties": {"name": TEXT, "namespace": TEXT, "spec": OBJECT}}},
        "GPUSharingPolicies to begin with: name, spec, and namespace where it is not the release's. Always with "
        "`mode: audit`: what they would do is said, and a policy of yours enforces."),

    say("binPacking.enabled", True, SWITCH, "Look for nodes that could be emptied, and for pods to move for others."),
    give("binPacking.strategy", "--policy", program="extender", always=True),
    give("binPacking.consolidation.mode", "--consolidation"),
    give("binPacking.consolidation.threshold", "--consolidation-threshold"),
    give("binPacking.defrag.mode", "--defrag"),
    give("binPacking.defrag.schedulers", "--defrag-scheduler"),
    say("extender.enabled", False, SWITCH, "Let kube-scheduler ask where GPU pods fit best."),
    say("extender.mode", "scheduler", {"enum": ["scheduler", "service"]}, "scheduler: a second kube-scheduler, "
        "fallow-scheduler, with the extender beside it; service: for your own, by the Secret fallow-extender-cert."),
    say("extender.addr", ":9444", {"type": "string", "pattern": r":[0-9]+$"}, "With extender.mode service: where the "
        "extender listens, as its Service, its container and its NetworkPolicy have it. With mode scheduler it is "
        "asked inside its pod. (`--addr`)"),
    say("extender.schedulerImage", "registry.k8s.io/kube-scheduler:v1.36.3", TEXT, "kube-scheduler of your cluster's "
        "own version."),

    say("autoscaling.enabled", False, SWITCH, "Look at nodes that are wanted or not needed, by an AutoscalingPolicy "
        "`default` that is made of these values."),
    say("autoscaling.mode", "recommend", {"enum": ["recommend", "act"]}, "recommend: only said; act: nodes are added "
        "and removed, which needs runMode scale-down."),
    give("autoscaling.provider", "--autoscaling-provider"),
    give("autoscaling.reconcileInterval", "--autoscaling-reconcile-interval"),
    give("autoscaling.instanceScore", "--autoscaling-instance-score"),
    say("autoscaling.scaleUp.threshold", 0.8, PART, "Mean use of all GPUs above which a node is added."),
    say("autoscaling.scaleUp.cooldown", 180, COUNT, "Seconds of rest after nodes were added."),
    say("autoscaling.scaleDown.threshold", 0.2, PART, "Mean use of a node below which it may go."),
    say("autoscaling.scaleDown.cooldown", 600, COUNT, "Seconds of rest after nodes were added or removed."),
    say("autoscaling.limits.minNodes", 0, COUNT, "Nodes that stay."),
    say("autoscaling.limits.maxNodes", 100, COUNT, "Nodes at most."),
    say("autoscaling.spot.enabled", True, SWITCH, "Whether machines may be taken that can be taken back."),
    say("autoscaling.spot.percentage", 0.6, PART, "The part of all nodes that may be spot."),
    say("autoscaling.multiTier.enabled", True, SWITCH, "false: the first of the order only."),
    say("autoscaling.multiTier.order", ["spot", "on-demand", "reserved"], TEXTS, "Which way of paying is tried first."),
    say("autoscaling.predictive.enabled", False, SWITCH, "Start nodes ahead of time where guesses have earned it."),
    say("autoscaling.nodePools", [], {"type": "array", "items": OBJECT}, "The kinds of nodes that may be added and "
        "removed, as in an AutoscalingPolicy."),
    give("autoscaling.aws.region", "--autoscaling-aws-region"),
    give("autoscaling.aws.endpoint", "--autoscaling-aws-endpoint"),
    give("autoscaling.aws.interruptionQueueUrl", "--autoscaling-aws-interruption-queue-url"),
    give("autoscaling.gcp.project", "--autoscaling-gcp-project"),
    give("autoscaling.gcp.endpoint", "--autoscaling-gcp-endpoint"),
    give("autoscaling.azure.subscription", "--autoscaling-azure-subscription"),
    give("autoscaling.azure.resourceGroup", "--autoscaling-azure-resource-group"),
    give("autoscaling.azure.endpoint", "--autoscaling-azure-endpoint"),
    say("spotWatch.enabled", False, SWITCH, "On every spot node: hear first when its cloud takes it back; in a "
        "namespace of its own, because its pods are on the host's network."),

    say("exporter.enabled", False, SWITCH, "gpu-idle-exporter on every GPU node, in a namespace of its own, because "
        "its pods see the processes of the node."),
    say("exporter.image", "gpu-idle-exporter", TEXT, "Its image, which is the spot watch's too, without the tag."),
    say("exporter.tag", "", TEXT, "Its tag; empty: the version of the chart."),

    say("bounds.enabled", True, SWITCH, "A ValidatingAdmissionPolicy (Kubernetes 1.30) that keeps the daemon's account "
        "to what it ever writes, whatever its rights."),
    say("networkPolicy.enabled", True, SWITCH, "Who may speak to the pods, and to whom they speak."),
    say("networkPolicy.scrapers", ["monitoring", "openshift-monitoring", "openshift-user-workload-monitoring"], TEXTS,
        "Namespaces that read the metrics."),
    say("networkPolicy.ingress", [], LIST, "Further rules for the daemon, such as an Ingress controller on port 8080."),
    say("networkPolicy.egress", [], LIST, "Further rules for the daemon, such as the ports of pre-pause hooks."),
    say("podDisruptionBudget.enabled", True, SWITCH, "Of two replicas one stays."),
    say("monitoring.serviceMonitor.enabled", False, SWITCH, "For the Prometheus operator."),
    say("monitoring.rules.enabled", False, SWITCH, "Alerts, for the Prometheus operator."),
    say("monitoring.dashboards.enabled", True, SWITCH, "Grafana's dashboards as ConfigMaps with the label "
        "grafana_dashboard."),
    say("monitoring.openshift.enabled", False, SWITCH, "Let it ask OpenShift's own monitoring."),
    say("uninstall.resume", True, SWITCH, "Before a helm uninstall, bring back all that stands paused (a Job)."),
    say("uninstall.podAnnotations", {}, OBJECT, "Annotations of that Job's pod."),
)
FREE = tuple(
    flag for flag in settings.FLAGS
    if flag.name not in HELD and flag.name not in {row.flag for row in ROWS if row.program == "controller"}
)
