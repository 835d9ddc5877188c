"""The flags of `gpu-pruner`, `fallow run` and `fallow prune`, and how they become the settings.

In: flag texts by Flag.key, the environment. Out: Settings, valid in full.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fallow import names
from fallow.model import loopback
from fallow.model.patterns import Pattern
from fallow.model.policies import idle
from fallow.model.secret import Secret
from fallow.model.units import HOUR, MINUTE, Seconds
from fallow.settings import (
    cost,
    cost_doors,
    cost_enforcement,
    cost_store,
    peers,
    scaling,
    serving,
    sharing,
    telling,
    tree,
)
from fallow.settings import readers as read
from fallow.settings.flags import Flag, group, read_values
from fallow.settings.readers import UsageError

EXCLUDED_NAMESPACES = "bench-guide-.*|llm-d-nightly-.*"
EXCLUDED_PODS = "dcgm-exporter-.*"
PROTECTED_NAMESPACES = "kube-system|kube-public|kube-node-lease|gpu-operator"
EXPORTER_NAMESPACES = (
    "gpu-operator|nvidia-.*|dcgm-.*|monitoring|kube-system|gke-managed-.*|openshift-.*|gmp-system|"
    f"{names.NODE_EXPORTER}"
)
LEAST_BUDGET: Seconds = 60.0
BASELINE_CYCLES = 3  # of a daemon that acts and does not know how idle the cluster usually is
SERVICE_ACCOUNT_NAMESPACE = Path(names.SERVICE_ACCOUNT_DIR, "namespace")

GROUPS = (
    "What to look at", "When something is idle", "What is done", telling.TELL, serving.SERVE, "Brakes",
    "Where measurements come from", cost.COST, cost_store.COST_STORE, cost_doors.COST_DOORS,
    cost_enforcement.BUDGETS, sharing.SHARING, scaling.SCALING, "Running",
)
LOOK, RULES, ACT, TELL, SERVE, BRAKES, SOURCE, COST, COST_STORE, COST_DOORS, BUDGETS, SHARING, SCALING, RUNNING = GROUPS

FLAGS: tuple[Flag, ...] = (
    *group(LOOK,
        Flag("--namespace", "REGEX", "Only namespaces that match this RE2 expression as a whole.",
             read.regex, short="-n"),
        Flag("--model-name", "REGEX", "Only workloads all of whose GPUs match, e.g. 'NVIDIA A10G'.",
             read.regex, short="-m"),
        Flag("--enabled-resources", "LETTERS",
             f"Kinds that may be paused, by letter: {', '.join(f'{key} {of}' for key, of in names.LETTERS.items())}.",
             read.letters, names.DEFAULT_LETTERS, "-e"),
        Flag("--exclude-namespaces", "REGEX", "Namespaces never touched.", read.regex, EXCLUDED_NAMESPACES),
        Flag("--exclude-pods", "REGEX", "Pods never looked at.", read.regex, EXCLUDED_PODS),
        Flag("--protected-namespaces", "REGEX", "Namespaces in which nothing is ever paused; our own is always one.",
             read.regex, PROTECTED_NAMESPACES),
        Flag("--watch-namespaces", "A,B",
             "Look only into these namespaces (comma separated); needs no cluster-wide rights.", read.name_list, ""),
        Flag("--gpu-resource", "NAME", "A further resource name that counts as a GPU (repeatable).", repeat=True),
        Flag("--policies", "BOOL", "Heed IdlePolicy objects.", read.truth, "true"),
        Flag("--require-policy", "BOOL", "Only report what no IdlePolicy covers.", read.truth, "false"),
    ),
    *group(RULES,
        Flag("--duration", "MINUTES", "Minutes without GPU activity before a workload is idle.",
             read.whole_number(1), "30", "-t"),
        Flag("--never-used-duration", "MINUTES",
             "The same for workloads that never used their GPUs; default: --duration.", read.whole_number(1)),
        Flag("--grace-period", "SECONDS", "Seconds added to --duration before a young pod is judged.",
             read.whole_number(0), "300", "-g"),
        Flag("--idle-threshold", "RATIO", "Activity (0-1) from which a GPU counts as active.",
             read.number(0, 1), "0.01"),
        Flag("--power-threshold", "WATTS", "Watts from which a GPU counts as active; default: not used.",
             read.number(0, 5000)),
        Flag("--coverage", "RATIO", "Share of the window that must have been measured.", read.number(0, 1), "0.8"),
        Flag("--max-sample-age", "SECONDS", "Seconds after which the newest sample is stale.",
             read.whole_number(1), "180"),
        Flag("--expected-scrape-interval", "SECONDS",
             "Seconds between samples in Prometheus; default: found out per job.", read.number(1, 3600)),
    ),
    *group(ACT,
        Flag("--run-mode", "MODE", "dry-run says what would be done; scale-down does it.",
             read.one_of("scale-down", "dry-run"), "dry-run", "-r"),
        Flag("--dry-run-scope", "SCOPE",
             "In dry-run: let the API server check each patch (server), or send none (client).",
             read.one_of("server", "client"), "server"),
        Flag("--ack-grace-period", "SECONDS", "Seconds between a notice and the pause; 0 does both in one cycle.",
             read.whole_number(0), "300"),
        Flag("--immunity", "SECONDS", "Seconds for which a resumed workload is left alone.",
             read.whole_number(0), "3600"),
        Flag("--max-ack-hours", "HOURS", "Longest acknowledgement that is heeded.", read.whole_number(1), "168"),
        Flag("--pressure", "WHEN", "only: pause only while somebody waits for such a GPU.",
             read.one_of("off", "only"), "off"),
        Flag("--kserve-method", "METHOD", "How an InferenceService is stopped.",
             read.one_of("auto", "stop", "min-replicas"), "auto"),
        Flag("--compat-annotations", "BOOL", "Write the gpu-pruner.io/* annotations too.", read.truth, "true"),
    ),
    *telling.FLAGS,
    *serving.FLAGS,
    *peers.FLAGS,
    *group(BRAKES,
        Flag("--confirm-cycles", "N", "Cycles in a row a workload must be idle; default: 2, one-shot 1.",
             read.whole_number(1)),
        Flag("--max-actions-per-cycle", "N", "Most pauses in one cycle.", read.whole_number(0), "10"),
        Flag("--max-actions-per-namespace", "N", "Most pauses in one namespace and cycle.", read.whole_number(0), "5"),
        Flag("--max-percent-per-hour", "PERCENT", "Most allocated GPUs paused within an hour, in percent.",
             read.number(0, 100), "20"),
        Flag("--freeze-jump", "POINTS", "Stop when the idle share jumps by more than this.", read.number(0, 100), "30"),
        Flag("--freeze-min-gpus", "N", "... and by at least this many GPUs.", read.whole_number(1), "8"),
        Flag("--freeze-hold", "SECONDS", "Seconds to do nothing after such a jump.", read.whole_number(0), "1800"),
    ),
    *group(SOURCE,
        Flag("--source", "SOURCE", "auto: Prometheus if its address is given, else exporters are scraped directly.",
             read.one_of("auto", "prometheus", "scrape"), "auto"),
        Flag("--exporter-namespaces", "REGEX",
             "Namespaces whose exporters are believed; our own is always one, and one named by --scrape-selector.",
             read.regex, EXPORTER_NAMESPACES),
        Flag("--trust-metrics", "",
             "Believe gpu_idle_* and hami_* series whoever exports them; default: only pods of --exporter-namespaces.",
             switch=True),
        Flag("--scrape-selector", "NS/SELECTOR",
             "Pods to scrape as NAMESPACE/SELECTOR (repeatable); default: the labels of dcgm-exporter and "
             "gpu-idle-exporter in --exporter-namespaces.",
             read.scrape_selector, repeat=True),
        Flag("--scrape-target", "URL", "Further exporter to scrape (repeatable).", read.scrape_target, repeat=True),
        Flag("--scrape-interval", "SECONDS", "Seconds between two scrapes of an exporter, at most 60.",
             read.number(1, 60), "15"),
        Flag("--scrape-timeout", "SECONDS", "Seconds after which a scrape has failed.", read.number(0.1, 60), "5"),
        Flag("--state-dir", "DIR", "Directory where what was scraped outlives a restart; default: memory only."),
        Flag("--prometheus-url", "URL", "Address of Prometheus, Thanos, Mimir, ...",
             read.http_url, variable="PROMETHEUS_URL"),
        Flag("--prometheus-auth", "METHOD",
             "How to authenticate. auto: by the first of an Authorization header, token, token file, PROMETHEUS_TOKEN, "
             "username; else by the Kubernetes token, over verified https to hosts of the cluster only. kube: by the "
             "Kubernetes token, wherever the URL points. Or none, bearer, basic, sigv4, gcp, azure.",
             read.one_of("auto", "kube", "none", "bearer", "basic", "sigv4", "gcp", "azure"), "auto"),
        Flag("--prometheus-token", "TOKEN", "Bearer token; better in a file or in the variable PROMETHEUS_TOKEN.",
             Secret),
        Flag("--prometheus-token-file", "FILE", "File with the bearer token, read again in each cycle."),
        Flag("--prometheus-username", "NAME",
             "For basic authentication; the password is in PROMETHEUS_PASSWORD or a file."),
        Flag("--prometheus-password-file", "FILE", "File with the password."),
        Flag("--prometheus-header", "'NAME: VALUE'",
             "Further header, e.g. 'X-Scope-OrgID: a' (repeatable); one given here wins.",
             read.header, repeat=True),
        Flag("--prometheus-matchers", "MATCHER", "Label matcher for every selector, e.g. 'cluster=\"a\"' (repeatable).",
             repeat=True),
        Flag("--prometheus-tls-mode", "MODE", "Whether the server's certificate is verified.",
             read.one_of("verify", "skip"), "verify"),
        Flag("--prometheus-tls-cert", "FILE", "CA certificates (PEM); default: the system's. Read again on change."),
        Flag("--prometheus-client-cert", "FILE", "Our own certificate (PEM), read again on change."),
        Flag("--prometheus-client-key", "FILE", "Its key (PEM)."),
        Flag("--aws-region", "REGION", "Region for sigv4.", variable="AWS_REGION"),
        Flag("--honor-labels", "",
             "Series carry pod, namespace, container as scraped (honorLabels); default: both forms are found out.",
             switch=True),
        Flag("--cluster", "NAME=URL",
             "Prometheus of a further cluster, by name, which is only looked at: the API lists it and relays questions "
             "to it, without a login (repeatable).",
             read.named_url, repeat=True),
        Flag("--honor-labels-clusters", "A,B", "Those of them whose series carry labels as scraped.",
             read.name_list, ""),
    ),
    *cost.FLAGS,
    *cost_store.FLAGS,
    *cost_doors.FLAGS,
    *group(RUNNING,
        Flag("--config", "FILE",
             "Further flags, by their names as YAML (duration: 45); what is typed, and variables, win over it. A "
             "daemon heeds changes of it; one that cannot be used changes nothing, and the log says so.",
             variable="FALLOW_CONFIG"),
        Flag("--daemon-mode", "", "Keep looking; default: look once and exit.", switch=True, short="-d"),
        Flag("--check-interval", "SECONDS", "Seconds between the starts of two cycles in daemon mode.",
             read.whole_number(1), "180", "-c"),
        Flag("--max-consecutive-failures", "N", "Exit after so many failed cycles in a row; 0: never give up.",
             read.whole_number(0), "0"),
        Flag(
            "--leader-elect", "BOOL",
            "Look only while holding the Lease; default: true in daemon mode. Who acts always holds it: false is for "
            "dry runs.", read.truth,
        ),
        Flag("--metrics-addr", "IP:PORT",
             "Where /metrics, /healthz and /readyz are served in daemon mode; empty: nowhere.",
             read.listen_address, "0.0.0.0:8080"),
        Flag("--dashboard-port", "PORT",
             "Serve the dashboard and the API in daemon mode: at 0.0.0.0:PORT, or 127.0.0.1:PORT where nobody logs in "
             "(--dashboard-auth email). The port of --metrics-addr shares its listener.", read.port),
        Flag("--dashboard-addr", "IP:PORT", "The same, listening at this address.", read.listen_address),
        Flag("--log-format", "FORMAT", "json, default or pretty; the level is in FALLOW_LOG or RUST_LOG.",
             read.one_of("json", "default", "pretty"), "default", "-l"),
        Flag("--kubeconfig", "FILE", "Kubeconfig file; default: KUBECONFIG, ~/.kube/config, or the pod's own account."),
        Flag("--context", "NAME", "Context of the kubeconfig."),
    ),
    *cost_enforcement.FLAGS,
    *sharing.FLAGS,
    *scaling.FLAGS,
)


def read_flags(given: Mapping[str, Any], environ: Mapping[str, str]) -> tree.Settings:
    """Raises UsageError at the first flag that is wrong."""
    values = read_values(FLAGS, given, environ)
    if values["leader_elect"] is False and values["run_mode"] == "scale-down":
        because = "who acts holds the Lease, so that no two ever act at once"
        raise UsageError(f"--leader-elect false goes with --run-mode dry-run only: {because}")
    own_namespace = environ.get("POD_NAMESPACE") or _service_account_namespace()
    return tree.Settings(
        kubeconfig=values["kubeconfig"], context=values["context"],
        prometheus=None if _scrapes(values) else _prometheus(values, environ),
        long_past=_prometheus(values, environ) if values["prometheus_url"] is not None else None,
        scrape=_scrape(values), state_dir=values["state_dir"],
        exporter_namespaces=_with_our_own(values["exporter_namespaces"], own_namespace),
        trust_metrics=values["trust_metrics"], mandate=_mandate(values, own_namespace), loop=_loop(values),
        dry_run_scope=values["dry_run_scope"], telling=telling.read_telling(values),
        serving=serving.read_serving(values, environ), cost=cost.read_cost(values),
        cost_store=cost_store.read_cost_store(values, environ), cost_doors=cost_doors.read_cost_doors(values),
        enforcement=cost_enforcement.read_enforcement(values), sharing=sharing.read_partitions(values),
        consolidation=sharing.read_consolidation(values), defrag=sharing.read_defrag(values),
        scaling=scaling.read_scaling(values),
        clusters=_clusters(values), peers=peers.read_peers(values),
        gpu_resources=frozenset(values["gpu_resource"]), own_namespace=own_namespace,
        log_format=values["log_format"], log_level=log_level(environ),
        pod_name=environ.get("POD_NAME") or None, pod_uid=environ.get("POD_UID", ""), environment=environ,
    )


def _scrapes(values: Mapping[str, Any]) -> bool:
    """Whether verdicts rest on exporters that are scraped directly."""
    return values["source"] == "scrape" or (values["source"] == "auto" and values["prometheus_url"] is None)


def _prometheus(values: Mapping[str, Any], environ: Mapping[str, str]) -> tree.PrometheusSettings:
    asked = {key.removeprefix("prometheus_"): value for key, value in values.items() if key.startswith("prometheus_")}
    if asked["url"] is None:
        raise UsageError("--source prometheus needs --prometheus-url (or the variable PROMETHEUS_URL)")
    if bool(asked["client_cert"]) != bool(asked["client_key"]):
        raise UsageError("--prometheus-client-cert and --prometheus-client-key go together: one of them is missing")
    password = environ.get("PROMETHEUS_PASSWORD") or asked["password_file"]
    if asked["auth"] == "basic" and not (asked["username"] and password):
        ways = "PROMETHEUS_PASSWORD or --prometheus-password-file"
        raise UsageError(f"--prometheus-auth basic needs --prometheus-username and either {ways}")
    has_token = asked["token"] or asked["token_file"] or environ.get("PROMETHEUS_TOKEN")
    is_by_hand = any(name.lower() == "authorization" for name, _ in asked["header"])
    if asked["auth"] == "auto" and asked["username"] and not (has_token or password or is_by_hand):
        ways = "PROMETHEUS_PASSWORD or --prometheus-password-file"
        raise UsageError(f"--prometheus-username needs a password: {ways}")
    if asked["auth"] == "bearer" and not has_token:
        ways = "--prometheus-token, --prometheus-token-file or PROMETHEUS_TOKEN"
        raise UsageError(f"--prometheus-auth bearer needs {ways}")
    return tree.PrometheusSettings(
        headers=asked.pop("header"), verify_tls=asked.pop("tls_mode") == "verify", ca_file=asked.pop("tls_cert"),
        aws_region=values["aws_region"], honor_labels=values["honor_labels"],
        expected_interval=values["expected_scrape_interval"], **asked,
    )


def _clusters(values: Mapping[str, Any]) -> tuple[tree.ViewCluster, ...]:
    given, honored = values["cluster"], set(values["honor_labels_clusters"])
    listed = [values["cluster_name"] or names.DEFAULT_CLUSTER, *(name for name, _ in given)]  # the first is our own
    if twice := sorted({name for name in listed if listed.count(name) > 1}):
        raise UsageError(f"--cluster: {twice[0]} is named twice")
    if strange := sorted(honored - set(listed[1:])):
        raise UsageError(f"--honor-labels-clusters: there is no --cluster {strange[0]}")
    return tuple(tree.ViewCluster(name=name, url=url, honor_labels=name in honored) for name, url in given)


def _scrape(values: Mapping[str, Any]) -> tree.ScrapeSettings:
    if values["scrape_timeout"] > values["scrape_interval"]:
        raise UsageError("--scrape-timeout must not be longer than --scrape-interval")
    return tree.ScrapeSettings(
        interval=values["scrape_interval"], timeout=values["scrape_timeout"], honor_labels=values["honor_labels"],
        selectors=values["scrape_selector"], targets=values["scrape_target"],
    )


def _loop(values: Mapping[str, Any]) -> tree.LoopSettings:
    daemon, interval = values["daemon_mode"], float(values["check_interval"])
    return tree.LoopSettings(
        daemon=daemon, interval=interval, budget=max(LEAST_BUDGET, interval),
        max_consecutive_failures=values["max_consecutive_failures"],
        leader_elect=daemon if values["leader_elect"] is None else values["leader_elect"],
        metrics_address=values["metrics_addr"] if daemon else None,
        dashboard_address=_find_dashboard(values) if daemon else None,
    )


def _find_dashboard(values: Mapping[str, Any]) -> tuple[str, int] | None:
    """Beyond this machine only where people log in; on the metrics' own listener, the API sees to that itself."""
    port: int | None = values["dashboard_port"]
    address: tuple[str, int] | None = values["dashboard_addr"]
    metrics: tuple[str, int] | None = values["metrics_addr"]
    if address is not None and port is not None and address[1] != port:
        raise UsageError("--dashboard-port and --dashboard-addr say two different ports: give one of them")
    is_open = values["dashboard_auth"] in (None, "email")
    if address is not None:
        if is_open and not loopback.is_here(address[0]) and address != metrics:
            ways = "listen at 127.0.0.1, or let people log in (--dashboard-auth kube, oidc or proxy)"
            raise UsageError(f"--dashboard-addr: without logging in it answers this machine only: {ways}")
        return address
    if port is None:
        return None
    return metrics if metrics is not None and metrics[1] == port else ("127.0.0.1" if is_open else "0.0.0.0", port)


def _mandate(values: Mapping[str, Any], own_namespace: str | None) -> idle.Mandate:
    window, never_used, daemon = values["duration"] * MINUTE, values["never_used_duration"], values["daemon_mode"]
    return idle.Mandate(
        rule=idle.Rule(
            gone_idle=window, never_used=window if never_used is None else never_used * MINUTE,
            grace=float(values["grace_period"]), activity=values["idle_threshold"], coverage=values["coverage"],
            max_sample_age=float(values["max_sample_age"]), power_watts=values["power_threshold"],
            notice=idle.Notice(
                required=False, grace=float(values["ack_grace_period"]), channels=telling.read_channels(values)
            ),
            consent=idle.Consent(max_ack=values["max_ack_hours"] * HOUR, immunity=float(values["immunity"])),
            # A dry run plans the very same pause; whether it is carried out is the mandate's `acting`.
            action=idle.Action(
                type=idle.ActionType.pause, pressure=values["pressure"], kserve_method=values["kserve_method"]
            ),
        ),
        scope=idle.Scope(
            letters=values["enabled_resources"], namespace=values["namespace"], model=values["model_name"],
            exclude_namespaces=values["exclude_namespaces"], exclude_pods=values["exclude_pods"],
            protected_namespaces=_with_our_own(values["protected_namespaces"], own_namespace),
            watch_namespaces=values["watch_namespaces"],
        ),
        brakes=idle.Brakes(
            confirm_cycles=values["confirm_cycles"] or (2 if daemon else 1),
            # Two intervals; where a cycle may take longer than its interval, two of those; and a moment to wake up in.
            confirm_within=2 * max(LEAST_BUDGET, float(values["check_interval"])) + 1.0,
            baseline_cycles=BASELINE_CYCLES if daemon and values["run_mode"] == "scale-down" else 0,
            backs_off=daemon or values["run_mode"] != "scale-down",  # who acts once means now
            max_actions_per_cycle=values["max_actions_per_cycle"],
            max_actions_per_namespace=values["max_actions_per_namespace"],
            max_percent_per_hour=values["max_percent_per_hour"], freeze_jump=values["freeze_jump"],
            freeze_min_gpus=values["freeze_min_gpus"], freeze_hold=float(values["freeze_hold"]),
        ),
        acting=values["run_mode"] == "scale-down", use_policies=values["policies"],
        require_policy=values["require_policy"], compat_annotations=values["compat_annotations"],
    )


def _with_our_own(namespaces: Pattern, own_namespace: str | None) -> Pattern:
    """These namespaces, and always the one we live in ourselves."""
    if own_namespace is None:
        return namespaces
    return read.regex(f"(?:{namespaces.pattern})|{re.escape(own_namespace)}")


def _service_account_namespace() -> str | None:
    try:
        return SERVICE_ACCOUNT_NAMESPACE.read_text().strip() or None
    except OSError:
        return None


def log_level(environ: Mapping[str, str]) -> str:
    """FALLOW_LOG, else RUST_LOG (its `crate=level` form gives its last level); what is not a level is info."""
    text = environ.get("FALLOW_LOG") or environ.get("RUST_LOG") or "info"
    level = text.split(",")[-1].rpartition("=")[2].strip().lower()
    same = {each: each for each in ("debug", "info", "warning", "error")}
    return {"trace": "debug", "warn": "warning", "off": "critical", **same}.get(level, "info")
