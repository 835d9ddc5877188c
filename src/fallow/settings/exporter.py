"""How the exporter is set up: every environment variable, by the table VARIABLES, read once into one frozen record.

In: an environment. Out: Options, valid in full, and the warnings to be said once. An empty variable counts as not set.
POLL_INTERVAL forgives (a warning and the default, as people rely on it); whatever else cannot be read raises
UsageError, one sentence that names the variable. A field is named as its variable, in lower case;
docs/operators/exporter.md is checked against the table.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from fallow.model.units import Seconds
from fallow.settings import readers

DEFAULT_INTERVAL: Seconds = 5.0
LEAST_INTERVAL: Seconds = 0.1


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Durations are seconds."""

    poll_interval: Seconds = DEFAULT_INTERVAL
    http_port: int = 9835
    node_name: str = ""
    pod_name: str = ""
    pod_namespace: str = ""
    idle_polls: int = 2
    idle_threshold_percent: float = 0.0
    stale_after: Seconds = 30.0
    scope: Literal["node", "pod"] = "node"
    include_graphics: bool = False
    attribution: Literal["auto", "off"] = "auto"
    pod_resources_socket: str = "/var/lib/kubelet/pod-resources/kubelet.sock"
    host_proc: str = "/proc"
    pod_logs_dir: str = "/var/log/pods"
    gpu_resource_names: frozenset[str] = frozenset()
    state_dir: str | None = None
    state_max_gap: Seconds = 300.0
    max_processes_per_gpu: int = 256
    require_driver: bool = False
    nvml_library: str | None = None
    bind_address: str = "0.0.0.0"
    web_config_file: str | None = None
    log_level: str = "info"
    log_format: Literal["default", "json", "pretty"] = "default"

    @property
    def constant_labels(self) -> dict[str, str]:
        """Labels of every series: they name the exporter, not the workload."""
        named = {"node": self.node_name, "pod": self.pod_name, "namespace": self.pod_namespace}
        return {label: value for label, value in named.items() if value}


class EnvVariable(msgspec.Struct, frozen=True):
    """One row of the table: `default` as the documents show it."""

    name: str
    default: str
    read: readers.Read
    help: str

    @property
    def field(self) -> str:
        return self.name.lower()


def _name_set(text: str) -> frozenset[str]:
    return frozenset(readers.name_list(text))


def level(text: str) -> str:
    plain = text.lower()
    read: str = readers.one_of("debug", "info", "warning", "error")("warning" if plain == "warn" else plain)
    return read


VARIABLES: tuple[EnvVariable, ...] = (
    EnvVariable("POLL_INTERVAL", "5s", readers.duration,
                "Time between polls of the driver; what cannot be read is 5s, below 100ms is 100ms."),
    EnvVariable("HTTP_PORT", "9835", readers.port, "Port of the endpoints."),
    EnvVariable("BIND_ADDRESS", "0.0.0.0", readers.ip_address, "IP address to listen on."),
    EnvVariable("WEB_CONFIG_FILE", "", str,
                "TLS and basic auth, in the format of Prometheus' exporter-toolkit; read again when it changes."),
    EnvVariable("NODE_NAME", "", str, "Label `node` of every series; also selects the node's pods in the API server."),
    EnvVariable("POD_NAME", "", str, "Label `pod` of every series. It names the exporter, not the workload."),
    EnvVariable("POD_NAMESPACE", "", str,
                "Label `namespace` of every series. It names the exporter, not the workload."),
    EnvVariable("IDLE_POLLS", "2", readers.whole_number(1),
                "Polls in a row that must read 0 before a process is idle."),
    EnvVariable("IDLE_THRESHOLD_PERCENT", "0", readers.number(0, 100), "SM percent up to which a poll reads as 0."),
    EnvVariable("STALE_AFTER", "30s", readers.duration, "How long the state of a vanished process is kept."),
    EnvVariable("SCOPE", "node", readers.one_of("node", "pod"),
                "`pod`: only processes visible under `HOST_PROC` (sidecar)."),
    EnvVariable("INCLUDE_GRAPHICS", "false", readers.truth, "Graphics-only processes in the process series too."),
    EnvVariable("MAX_PROCESSES_PER_GPU", "256", readers.whole_number(0),
                "Processes with series per GPU, the largest by memory."),
    EnvVariable("ATTRIBUTION", "auto", readers.one_of("auto", "off"), "`off`: do not say whose a process is."),
    EnvVariable("POD_RESOURCES_SOCKET", "/var/lib/kubelet/pod-resources/kubelet.sock", str,
                "Socket of the kubelet's pod-resources API."),
    EnvVariable("HOST_PROC", "/proc", str, "The node's /proc."),
    EnvVariable("POD_LOGS_DIR", "/var/log/pods", str,
                "The kubelet's log directories, whose names say which pod has which UID."),
    EnvVariable("GPU_RESOURCE_NAMES", "", _name_set, "More resource names that are GPUs, separated by commas."),
    EnvVariable("STATE_DIR", "", str, "Directory where idle times survive a restart."),
    EnvVariable("STATE_MAX_GAP", "5m", readers.duration, "Saved state older than this is not used."),
    EnvVariable("REQUIRE_DRIVER", "false", readers.truth,
                "End with exit code 1 if the driver does not work at the start."),
    EnvVariable("NVML_LIBRARY", "", str, "Path of libnvidia-ml.so.1, if the loader does not find it."),
    EnvVariable("LOG_LEVEL", "info", level, "`debug`, `info`, `warning` or `error`."),
    EnvVariable("LOG_FORMAT", "default", readers.one_of("default", "json", "pretty"), "`default`, `json` or `pretty`."),
)


def read(environ: Mapping[str, str]) -> tuple[Options, list[str]]:
    """Options and warnings; raises readers.UsageError at the first variable that is wrong."""
    given = {variable: text for variable in VARIABLES if (text := environ.get(variable.name, "").strip())}
    values, warnings = {}, []
    for variable, text in given.items():
        try:
            values[variable.field] = variable.read(text)
        except ValueError as problem:
            if variable.field != "poll_interval":
                raise readers.UsageError(f"{variable.name}: {readers.explain(problem, text)}") from None
            warnings.append(f"POLL_INTERVAL: {problem}; polling every 5s")
    if "poll_interval" in values:
        values["poll_interval"] = _bound_interval(values["poll_interval"], warnings)
    return Options(**values), warnings


def _bound_interval(seconds: Seconds, warnings: list[str]) -> Seconds:
    if seconds == 0:  # a timer of 0 would spin
        warnings.append("POLL_INTERVAL: 0 is no interval; polling every 5s")
        return DEFAULT_INTERVAL
    if seconds < LEAST_INTERVAL:
        warnings.append("POLL_INTERVAL: less than 100ms; polling every 100ms")
    return max(seconds, LEAST_INTERVAL)
