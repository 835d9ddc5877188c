"""What we were told: every flag, and the few environment variables, read once into one frozen tree.

In: flag values as text (the CLI door collects them by the table FLAGS) and the environment. Out: Settings, valid in full.
Whatever is wrong raises UsageError, one sentence that names the flag, before anything is contacted. This is the only module
that reads the environment. Secrets are kept in Secret, which prints as `***`.
"""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from fallow import names as spelled
from fallow.model.policies import idle
from fallow.model.units import HOUR, MINUTE, Seconds

LETTERS = "".join(spelled.LETTERS)
EXCLUDED_NAMESPACES = "bench-guide-.*|llm-d-nightly-.*"
EXCLUDED_PODS = "dcgm-exporter-.*"
PROTECTED_NAMESPACES = "kube-system|kube-public|kube-node-lease|gpu-operator"
LEAST_BUDGET: Seconds = 60.0
SERVICE_ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class UsageError(Exception):
    """One sentence that names the flag or variable and says what would be right."""


class Secret:
    """A credential. It prints as `***` wherever it is shown; only `reveal()` gives it away."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "***"


# ---- the tree ----------------------------------------------------------------------------------------------------------------


AuthMethod: TypeAlias = Literal["auto", "none", "bearer", "basic", "sigv4", "gcp", "azure"]


class Cluster(msgspec.Struct, frozen=True):
    """Which cluster, and as whom."""

    kubeconfig: str | None = None
    context: str | None = None


class Prometheus(msgspec.Struct, frozen=True):
    """Where the measurements are, and how we prove who we are there."""

    url: str
    auth: AuthMethod = "auto"
    token: Secret | None = None
    token_file: str | None = None
    username: str | None = None
    password_file: str | None = None
    headers: tuple[tuple[str, Secret], ...] = ()
    matchers: tuple[str, ...] = ()
    verify_tls: bool = True
    ca_file: str | None = None
    client_cert: str | None = None
    client_key: str | None = None
    aws_region: str | None = None
    honor_labels: bool = False
    expected_interval: Seconds | None = None


class Scrape(msgspec.Struct, frozen=True):
    """Which exporters are read without Prometheus, and how often."""

    interval: Seconds = 15.0
    timeout: Seconds = 5.0
    selectors: tuple[tuple[str, str], ...] = ()  # (namespace or "", label selector), instead of the usual ones
    targets: tuple[str, ...] = ()
    honor_labels: bool = False


class Loop(msgspec.Struct, frozen=True):
    """When we look, and when we give up."""

    daemon: bool = False
    interval: Seconds = 180.0
    budget: Seconds = 180.0  # how long one cycle may take
    max_consecutive_failures: int = 0  # 0 = never give up
    leader_elect: bool = False
    metrics_address: tuple[str, int] | None = None


class Settings(msgspec.Struct, frozen=True):
    """Everything we were told."""

    cluster: Cluster
    prometheus: Prometheus | None  # None = exporters are read directly
    scrape: Scrape
    state_dir: str | None
    mandate: idle.Mandate
    loop: Loop
    dry_run_scope: Literal["server", "client"]
    gpu_resources: frozenset[str]
    log_format: str
    log_level: str
    own_namespace: str | None
    pod_name: str | None
    pod_uid: str
    environment: Mapping[str, str]  # for credentials that other systems name by variable (AWS_*, KUBECONFIG, ...)


# ---- reading single values ---------------------------------------------------------------------------------------------------

Read = Callable[[str], Any]


def whole_number(least: int) -> Read:
    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise ValueError(f"{text!r} is not a whole number of at least {least}")
        return int(text)

    return read


def number(least: float, most: float) -> Read:
    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a number") from None
        if not least <= value <= most:
            raise ValueError(f"{text!r} is not between {least:g} and {most:g}")
        return value

    return read


def one_of(*choices: str) -> Read:
    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(f"{text!r} is none of {', '.join(choices)}")
        return text

    return read


def truth(text: str) -> bool:
    match text.lower():
        case "true" | "yes" | "1" | "on":
            return True
        case "false" | "no" | "0" | "off":
            return False
    raise ValueError(f"{text!r} is neither true nor false")


def letters(text: str) -> frozenset[str]:
    unknown = sorted(set(text) - set(LETTERS))
    if unknown:
        raise ValueError(f"unknown letter {', '.join(map(repr, unknown))}; known are {LETTERS}")
    if not text:
        raise ValueError(f"no letter given; known are {LETTERS}")
    return frozenset(text)


def regex(text: str) -> idle.Pattern:
    """RE2, matched against whole strings, never sent to Prometheus."""
    import re2  # here and not above: --help does without it

    options = re2.Options()
    options.log_errors = False
    try:
        pattern: idle.Pattern = re2.compile(text, options)
    except re2.error as problem:
        detail = problem.args[0] if problem.args else ""
        why = detail.decode() if isinstance(detail, bytes) else detail
        raise ValueError(f"{text!r} is not a valid RE2 expression: {why}") from None
    return pattern


def listen_address(text: str) -> tuple[str, int] | None:
    """IP:PORT, or nothing for off."""
    if not text:
        return None
    import ipaddress  # as above

    host, colon, port = text.rpartition(":")
    try:
        ipaddress.ip_address(host.strip("[]"))
        if not colon or not 0 <= int(port) <= 65535:
            raise ValueError
    except ValueError:
        raise ValueError(f"{text!r} is not IP:PORT such as 0.0.0.0:8080") from None
    return host.strip("[]"), int(port)


def http_url(text: str) -> str:
    if not text.startswith(("http://", "https://")) or len(text.split("://", 1)[1].strip("/")) == 0:
        raise ValueError(f"{text!r} is not an address such as http://prometheus-k8s.monitoring.svc:9090")
    return text.rstrip("/")


def scrape_target(text: str) -> str:
    scheme, _, rest = text.partition("://")
    host = rest.partition("/")[0]
    if scheme not in ("http", "https") or not host.strip(":"):
        raise ValueError(f"{text!r} is not an address such as http://10.0.0.7:9400/metrics")
    if "@" in host:
        raise ValueError("an address with a user name or a password in it is not taken")
    return text


def scrape_selector(text: str) -> tuple[str, str]:
    """NAMESPACE/SELECTOR; the namespace * is all of them."""
    namespace, slash, selector = text.partition("/")
    if not slash or not selector.strip() or not re.fullmatch(r"\*|[a-z0-9]([-a-z0-9]*[a-z0-9])?", namespace):
        raise ValueError(f"{text!r} is not NAMESPACE/SELECTOR such as gpu-operator/app=nvidia-dcgm-exporter (* means all namespaces)")
    return "" if namespace == "*" else namespace, selector.strip()


def header(text: str) -> tuple[str, Secret]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip() or not value.strip() or any(c in name.strip() for c in " \t\r\n") or "\n" in value or "\r" in value:
        raise ValueError("it is not of the form 'Name: value'")
    return name.strip(), Secret(value.strip())


def names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


# ---- the table of flags ------------------------------------------------------------------------------------------------------


class Flag(msgspec.Struct, frozen=True):
    """One flag of `gpu-pruner`, `fallow run` and `fallow prune`. The CLI, --help and docs/flags.md are made from this table."""

    name: str
    help: str
    read: Read = str
    default: str | None = None
    short: str | None = None
    variable: str | None = None  # environment variable it falls back to
    switch: bool = False
    repeat: bool = False
    group: str = "What to look at"
    metavar: str = "TEXT"

    @property
    def key(self) -> str:
        return self.name.removeprefix("--").replace("-", "_")


LOOK, RULES, ACT, BRAKES, SOURCE, RUNNING = (
    "What to look at", "When something is idle", "What is done", "Brakes", "Where measurements come from", "Running",
)

FLAGS: tuple[Flag, ...] = (
    Flag("--namespace", "Only namespaces that match this RE2 expression as a whole.", regex, short="-n", metavar="REGEX", group=LOOK),
    Flag("--model-name", "Only workloads all of whose GPUs match, e.g. 'NVIDIA A10G'.", regex, short="-m", metavar="REGEX", group=LOOK),
    Flag("--enabled-resources",
         f"Kinds that may be paused, by letter: {', '.join(f'{letter} {what}' for letter, what in spelled.LETTERS.items())}.",
         letters, spelled.DEFAULT_LETTERS, "-e", metavar="LETTERS", group=LOOK),
    Flag("--exclude-namespaces", "Namespaces never touched.", regex, EXCLUDED_NAMESPACES, metavar="REGEX", group=LOOK),
    Flag("--exclude-pods", "Pods never looked at.", regex, EXCLUDED_PODS, metavar="REGEX", group=LOOK),
    Flag("--protected-namespaces", "Namespaces in which nothing is ever paused; our own is always one.", regex, PROTECTED_NAMESPACES,
         metavar="REGEX", group=LOOK),
    Flag("--watch-namespaces", "Look only into these namespaces (comma separated); needs no cluster-wide rights.",
         names, "", metavar="A,B", group=LOOK),
    Flag("--gpu-resource", "A further resource name that counts as a GPU (repeatable).", repeat=True, metavar="NAME", group=LOOK),
    Flag("--policies", "Heed IdlePolicy objects.", truth, "true", metavar="BOOL", group=LOOK),
    Flag("--require-policy", "Only report what no IdlePolicy covers.", truth, "false", metavar="BOOL", group=LOOK),

    Flag("--duration", "Minutes without GPU activity before a workload is idle.",
         whole_number(1), "30", "-t", metavar="MINUTES", group=RULES),
    Flag("--never-used-duration", "The same for workloads that never used their GPUs; default: --duration.",
         whole_number(1), metavar="MINUTES", group=RULES),
    Flag("--grace-period", "Seconds added to --duration before a young pod is judged.",
         whole_number(0), "300", "-g", metavar="SECONDS", group=RULES),
    Flag("--idle-threshold", "Activity (0-1) from which a GPU counts as active.", number(0, 1), "0.01", metavar="RATIO", group=RULES),
    Flag("--power-threshold", "Watts from which a GPU counts as active; default: not used.", number(0, 5000), metavar="WATTS", group=RULES),
    Flag("--coverage", "Share of the window that must have been measured.", number(0, 1), "0.8", metavar="RATIO", group=RULES),
    Flag("--max-sample-age", "Seconds after which the newest sample is stale.", whole_number(1), "180", metavar="SECONDS", group=RULES),
    Flag("--expected-scrape-interval", "Seconds between samples in Prometheus; default: found out per job.",
         number(1, 3600), metavar="SECONDS", group=RULES),

    Flag("--run-mode", "dry-run says what would be done; scale-down does it.", one_of("scale-down", "dry-run"), "dry-run", "-r",
         metavar="MODE", group=ACT),
    Flag("--dry-run-scope", "In dry-run: let the API server check each patch (server), or send none (client).",
         one_of("server", "client"), "server",
         metavar="SCOPE", group=ACT),
    Flag("--ack-grace-period", "Seconds between a notice and the pause; 0 does both in one cycle.",
         whole_number(0), "300", metavar="SECONDS", group=ACT),
    Flag("--immunity", "Seconds for which a resumed workload is left alone.", whole_number(0), "3600", metavar="SECONDS", group=ACT),
    Flag("--max-ack-hours", "Longest acknowledgement that is heeded.", whole_number(1), "168", metavar="HOURS", group=ACT),
    Flag("--pressure", "only: pause only while somebody waits for such a GPU.", one_of("off", "only"), "off", metavar="WHEN", group=ACT),
    Flag("--kserve-method", "How an InferenceService is stopped.",
         one_of("auto", "stop", "min-replicas"), "auto", metavar="METHOD", group=ACT),
    Flag("--compat-annotations", "Write the gpu-pruner.io/* annotations too.", truth, "true", metavar="BOOL", group=ACT),

    Flag("--confirm-cycles", "Cycles in a row a workload must be idle; default: 2, one-shot 1.",
         whole_number(1), metavar="N", group=BRAKES),
    Flag("--max-actions-per-cycle", "Most pauses in one cycle.", whole_number(0), "10", metavar="N", group=BRAKES),
    Flag("--max-actions-per-namespace", "Most pauses in one namespace and cycle.", whole_number(0), "5", metavar="N", group=BRAKES),
    Flag("--max-percent-per-hour", "Most allocated GPUs paused within an hour, in percent.",
         number(0, 100), "20", metavar="PERCENT", group=BRAKES),
    Flag("--freeze-jump", "Stop when the idle share jumps by more than this.", number(0, 100), "30", metavar="POINTS", group=BRAKES),
    Flag("--freeze-min-gpus", "... and by at least this many GPUs.", whole_number(1), "8", metavar="N", group=BRAKES),
    Flag("--freeze-hold", "Seconds to do nothing after such a jump.", whole_number(0), "1800", metavar="SECONDS", group=BRAKES),

    Flag("--source", "auto: Prometheus if its address is given, else exporters are scraped directly.",
         one_of("auto", "prometheus", "scrape"), "auto", metavar="SOURCE", group=SOURCE),
    Flag("--scrape-selector", "Pods to scrape as NAMESPACE/SELECTOR (repeatable); "
         "default: the labels of dcgm-exporter and gpu-idle-exporter in all namespaces.",
         scrape_selector, repeat=True, metavar="NS/SELECTOR", group=SOURCE),
    Flag("--scrape-target", "Further exporter to scrape (repeatable).", scrape_target, repeat=True, metavar="URL", group=SOURCE),
    Flag("--scrape-interval", "Seconds between two scrapes of an exporter, at most 60.",
         number(1, 60), "15", metavar="SECONDS", group=SOURCE),
    Flag("--scrape-timeout", "Seconds after which a scrape has failed.", number(0.1, 60), "5", metavar="SECONDS", group=SOURCE),
    Flag("--state-dir", "Directory where what was scraped outlives a restart; default: memory only.", metavar="DIR", group=SOURCE),
    Flag("--prometheus-url", "Address of Prometheus, Thanos, Mimir, ...", http_url, variable="PROMETHEUS_URL", metavar="URL", group=SOURCE),
    Flag("--prometheus-auth", "How to authenticate.",
         one_of("auto", "none", "bearer", "basic", "sigv4", "gcp", "azure"), "auto", metavar="METHOD", group=SOURCE),
    Flag("--prometheus-token", "Bearer token.", Secret, variable="PROMETHEUS_TOKEN", metavar="TOKEN", group=SOURCE),
    Flag("--prometheus-token-file", "File with the bearer token, read again when it changes.", metavar="FILE", group=SOURCE),
    Flag("--prometheus-username", "For basic authentication; the password is in PROMETHEUS_PASSWORD or a file.",
         metavar="NAME", group=SOURCE),
    Flag("--prometheus-password-file", "File with the password.", metavar="FILE", group=SOURCE),
    Flag("--prometheus-header", "Further header, e.g. 'X-Scope-OrgID: a' (repeatable).",
         header, repeat=True, metavar="'NAME: VALUE'", group=SOURCE),
    Flag("--prometheus-matchers", "Label matcher for every selector, e.g. 'cluster=\"a\"' (repeatable).",
         repeat=True, metavar="MATCHER", group=SOURCE),
    Flag("--prometheus-tls-mode", "Whether the server's certificate is verified.",
         one_of("verify", "skip"), "verify", metavar="MODE", group=SOURCE),
    Flag("--prometheus-tls-cert", "CA certificates (PEM); default: the system's.", metavar="FILE", group=SOURCE),
    Flag("--prometheus-client-cert", "Our own certificate (PEM).", metavar="FILE", group=SOURCE),
    Flag("--prometheus-client-key", "Its key (PEM).", metavar="FILE", group=SOURCE),
    Flag("--aws-region", "Region for sigv4.", variable="AWS_REGION", metavar="REGION", group=SOURCE),
    Flag("--honor-labels", "Series carry pod, namespace, container as scraped (honorLabels); default: both forms are found out.",
         switch=True, group=SOURCE),

    Flag("--daemon-mode", "Keep looking; default: look once and exit.", switch=True, short="-d", group=RUNNING),
    Flag("--check-interval", "Seconds between the starts of two cycles in daemon mode.",
         whole_number(1), "180", "-c", metavar="SECONDS", group=RUNNING),
    Flag("--max-consecutive-failures", "Exit after so many failed cycles in a row; 0: never give up.",
         whole_number(0), "0", metavar="N", group=RUNNING),
    Flag("--leader-elect", "Act only while holding the Lease; default: true in daemon mode.", truth, metavar="BOOL", group=RUNNING),
    Flag("--metrics-addr", "Where /metrics, /healthz and /readyz are served in daemon mode; empty: nowhere.",
         listen_address, "0.0.0.0:8080",
         metavar="IP:PORT", group=RUNNING),
    Flag("--log-format", "json, default or pretty; the level is in FALLOW_LOG or RUST_LOG.",
         one_of("json", "default", "pretty"), "default", "-l",
         metavar="FORMAT", group=RUNNING),
    Flag("--kubeconfig", "Kubeconfig file; default: KUBECONFIG, ~/.kube/config, or the pod's own account.", metavar="FILE", group=RUNNING),
    Flag("--context", "Context of the kubeconfig.", metavar="NAME", group=RUNNING),
)

# Flags and variables of the seed whose capability is not in this version. Accepting them silently would promise a notice or a
# page that never comes.
NOT_YET: Mapping[str, str] = {
    "--dashboard-port": "the dashboard", "--dashboard-addr": "the dashboard", "--dashboard-auth": "the dashboard",
    "--dashboard-public-url": "the dashboard", "--cluster": "the dashboard", "--honor-labels-clusters": "the dashboard",
    "--slack-webhook-url": "notices by Slack", "--slack-channel": "notices by Slack", "--slack-namespace-mentions": "notices by Slack",
    "--slack-interaction-addr": "notices by Slack", "--slack-interaction-port": "notices by Slack",
    "--smtp-url": "notices by e-mail", "--email-from": "notices by e-mail",
    "--digest-schedule": "the digest", "--digest-timezone": "the digest", "--digest-top": "the digest",
}
NOT_YET_VARIABLES: Mapping[str, str] = {"SLACK_WEBHOOK_URL": "notices by Slack"}


def environment() -> Mapping[str, str]:
    """The process environment, read here and nowhere else."""
    return dict(os.environ)


def read_flags(given: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    """Settings from flag texts by Flag.key (a switch is a bool, a repeated flag a sequence of texts)."""
    for variable, what in NOT_YET_VARIABLES.items():
        if environ.get(variable):
            raise UsageError(f"{variable} is set and belongs to {what}, which this version does not have yet: unset it")
    values = {flag.key: _value(flag, given.get(flag.key), environ) for flag in FLAGS}
    daemon: bool = values["daemon_mode"]
    own_namespace = environ.get("POD_NAMESPACE") or _service_account_namespace()
    return Settings(
        cluster=Cluster(kubeconfig=values["kubeconfig"], context=values["context"]),
        prometheus=_prometheus(values, environ),
        scrape=_scrape(values),
        state_dir=values["state_dir"],
        mandate=_mandate(values, daemon, own_namespace),
        loop=Loop(
            daemon=daemon,
            interval=float(values["check_interval"]),
            budget=max(LEAST_BUDGET, float(values["check_interval"])),
            max_consecutive_failures=values["max_consecutive_failures"],
            leader_elect=daemon if values["leader_elect"] is None else values["leader_elect"],
            metrics_address=values["metrics_addr"] if daemon else None,
        ),
        dry_run_scope=values["dry_run_scope"],
        gpu_resources=frozenset(values["gpu_resource"]),
        log_format=values["log_format"],
        log_level=log_level(environ),
        own_namespace=own_namespace,
        pod_name=environ.get("POD_NAME") or None,
        pod_uid=environ.get("POD_UID", ""),
        environment=environ,
    )


def _value(flag: Flag, given: Any, environ: Mapping[str, str]) -> Any:
    if flag.switch:
        return bool(given)
    if flag.repeat:
        return tuple(_read(flag, text, flag.name) for text in given or ())
    if given is not None:
        return _read(flag, given, flag.name)
    if flag.variable and environ.get(flag.variable):
        return _read(flag, environ[flag.variable], flag.variable)
    return None if flag.default is None else _read(flag, flag.default, flag.name)


def _read(flag: Flag, text: str, called: str) -> Any:
    try:
        return flag.read(text)
    except ValueError as problem:
        raise UsageError(f"{called}: {problem}") from None


def _prometheus(values: Mapping[str, Any], environ: Mapping[str, str]) -> Prometheus | None:
    """None where exporters are to be scraped directly."""
    if values["source"] == "scrape" or (values["source"] == "auto" and values["prometheus_url"] is None):
        return None
    if values["prometheus_url"] is None:
        raise UsageError("--source prometheus needs --prometheus-url (or the variable PROMETHEUS_URL)")
    if bool(values["prometheus_client_cert"]) != bool(values["prometheus_client_key"]):
        raise UsageError("--prometheus-client-cert and --prometheus-client-key go together: one of them is missing")
    password = environ.get("PROMETHEUS_PASSWORD")
    if values["prometheus_auth"] == "basic" and not (values["prometheus_username"] and (password or values["prometheus_password_file"])):
        raise UsageError("--prometheus-auth basic needs --prometheus-username and either PROMETHEUS_PASSWORD or --prometheus-password-file")
    if values["prometheus_auth"] == "bearer" and not (values["prometheus_token"] or values["prometheus_token_file"]):
        raise UsageError("--prometheus-auth bearer needs --prometheus-token, --prometheus-token-file or PROMETHEUS_TOKEN")
    return Prometheus(
        url=values["prometheus_url"],
        auth=values["prometheus_auth"],
        token=values["prometheus_token"],
        token_file=values["prometheus_token_file"],
        username=values["prometheus_username"],
        password_file=values["prometheus_password_file"],
        headers=values["prometheus_header"],
        matchers=values["prometheus_matchers"],
        verify_tls=values["prometheus_tls_mode"] == "verify",
        ca_file=values["prometheus_tls_cert"],
        client_cert=values["prometheus_client_cert"],
        client_key=values["prometheus_client_key"],
        aws_region=values["aws_region"],
        honor_labels=values["honor_labels"],
        expected_interval=values["expected_scrape_interval"],
    )


def _scrape(values: Mapping[str, Any]) -> Scrape:
    if values["scrape_timeout"] > values["scrape_interval"]:
        raise UsageError("--scrape-timeout must not be longer than --scrape-interval")
    return Scrape(
        interval=values["scrape_interval"],
        timeout=values["scrape_timeout"],
        selectors=values["scrape_selector"],
        targets=values["scrape_target"],
        honor_labels=values["honor_labels"],
    )


def _mandate(values: Mapping[str, Any], daemon: bool, own_namespace: str | None) -> idle.Mandate:
    acting = values["run_mode"] == "scale-down"
    window = values["duration"] * MINUTE
    protected = _with_our_own(values["protected_namespaces"], own_namespace)
    return idle.Mandate(
        rule=idle.Rule(
            gone_idle=window,
            never_used=window if values["never_used_duration"] is None else values["never_used_duration"] * MINUTE,
            grace=float(values["grace_period"]),
            activity=values["idle_threshold"],
            coverage=values["coverage"],
            max_sample_age=float(values["max_sample_age"]),
            power_watts=values["power_threshold"],
            notice=idle.Notice(required=False, grace=float(values["ack_grace_period"])),
            consent=idle.Consent(max_ack=values["max_ack_hours"] * HOUR, immunity=float(values["immunity"])),
            # A dry run plans the very same pause; whether it is carried out is the mandate's `acting`.
            action=idle.Action(type=idle.ActionType.pause, pressure=values["pressure"], kserve_method=values["kserve_method"]),
        ),
        scope=idle.Scope(
            letters=values["enabled_resources"],
            namespace=values["namespace"],
            model=values["model_name"],
            exclude_namespaces=values["exclude_namespaces"],
            exclude_pods=values["exclude_pods"],
            protected_namespaces=protected,
            watch_namespaces=values["watch_namespaces"],
        ),
        brakes=idle.Brakes(
            confirm_cycles=values["confirm_cycles"] or (2 if daemon else 1),
            max_actions_per_cycle=values["max_actions_per_cycle"],
            max_actions_per_namespace=values["max_actions_per_namespace"],
            max_percent_per_hour=values["max_percent_per_hour"],
            freeze_jump=values["freeze_jump"],
            freeze_min_gpus=values["freeze_min_gpus"],
            freeze_hold=float(values["freeze_hold"]),
        ),
        acting=acting,
        use_policies=values["policies"],
        require_policy=values["require_policy"],
        compat_annotations=values["compat_annotations"],
    )


def _with_our_own(protected: idle.Pattern, own_namespace: str | None) -> idle.Pattern:
    """The protected namespaces, and always the one we live in ourselves."""
    if own_namespace is None:
        return protected
    return regex(f"(?:{protected.pattern})|{re.escape(own_namespace)}")


def _service_account_namespace() -> str | None:
    try:
        return SERVICE_ACCOUNT_NAMESPACE.read_text().strip() or None
    except OSError:
        return None


_LEVELS = {
    "trace": "debug", "debug": "debug", "info": "info", "warn": "warning", "warning": "warning", "error": "error", "off": "critical",
}


def log_level(environ: Mapping[str, str]) -> str:
    """FALLOW_LOG, else RUST_LOG (its `crate=level` form gives its last level), else info; what is not a level is info."""
    text = environ.get("FALLOW_LOG") or environ.get("RUST_LOG") or "info"
    level = text.split(",")[-1].rpartition("=")[2].strip().lower()
    return _LEVELS.get(level, "info")
