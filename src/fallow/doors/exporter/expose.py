"""What a scrape says: every metric of the exporter, in one table, and how it becomes bytes.

In: a NodeView, all that one poll found and all the exporter knows of itself. Out: text 0.0.4 or OpenMetrics 1.0.
METRICS is the only place that spells these names, but for those that others read (names.py). A metric speaks of things
by a LabelSet: labels, and the things of a view that bear them; a value of None is no series, never 0. No series stands
twice, whatever the names in it: a scraper would refuse the whole page.
"""

import enum
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import msgspec

from fallow import __version__
from fallow.model import processes
from fallow.model.processes import NodeView
from fallow.names import NodeMetric


class Format(enum.StrEnum):
    """A format, by the Content-Type it is sent with."""

    text = "text/plain; version=0.0.4; charset=utf-8"
    openmetrics = "application/openmetrics-text; version=1.0.0; charset=utf-8"


# ---- label sets: which labels, and what bears them -----------------------------------------------------------------

Row: TypeAlias = tuple[tuple[object, ...], Any]  # the values of the labels, and the thing itself


class LabelSet(msgspec.Struct, frozen=True):
    labels: tuple[str, ...]
    find: Callable[[NodeView], Iterable[Row]]


def _every_process(view: NodeView) -> Iterator[Row]:
    return (((device.index, process.pid, process.name), process) for device, process in view.shown)


def _owned_processes(view: NodeView) -> Iterator[Row]:
    """One row per MIG instance the process is on, or one without."""
    nobody = processes.ProcessOwner()
    for device, process in view.shown:
        owner = view.owners.get((process.pid, process.start), nobody)
        whose = (owner.namespace, owner.pod, owner.container, owner.pod_uid, owner.container_id)
        for gi, ci in process.instances or (("", ""),):
            yield (device.index, device.uuid, gi, ci, process.pid, process.name, process.type, *whose), process


def _devices(*parts: str) -> Callable[[NodeView], Iterator[Row]]:
    return lambda view: ((tuple(getattr(each.device, part) for part in parts), each) for each in view.devices)


_MIG_MODES = {True: "enabled", False: "disabled", None: ""}


def _device_facts(view: NodeView) -> Iterator[Row]:
    version = view.poll.driver_version if view.poll is not None else ""
    for each in (judged.device for judged in view.devices):
        mode = _MIG_MODES[each.is_mig]
        yield (each.index, each.uuid, each.model, version, mode, each.compute_mode, each.pci_bus_id), each


def _instances(view: NodeView) -> Iterator[Row]:
    """By GPU instance: what is measured belongs to it, not to the compute instances in it."""
    for device in (judged.device for judged in view.devices):
        measured = (each for each in device.instances if each.utilization is not None)
        yield from (((device.index, device.uuid, each.gi), each) for each in measured)


def _name_hold(tenancy: processes.Tenancy) -> tuple[object, ...]:
    grant = tenancy.grant
    gi = "" if grant.gi is None else grant.gi
    return tenancy.gpu, grant.uuid, gi, grant.namespace, grant.pod, grant.container, tenancy.scope


def _counted(what: Callable[[NodeView], Mapping[Any, Any]]) -> Callable[[NodeView], Iterable[Row]]:
    """For what the exporter keeps by label: the thing is the number itself."""
    return lambda view: ((key if isinstance(key, tuple) else (key,), count) for key, count in what(view).items())


_P = ("gpu", "uuid", "gi", "workload_namespace", "workload_pod", "workload_container", "scope")
_OWNER = ("workload_namespace", "workload_pod", "workload_container", "pod_uid", "container_id")

PROCESS = LabelSet(("gpu", "pid", "process"), _every_process)
SEED_PROCESS = LabelSet(PROCESS.labels, lambda view: (row for row in _every_process(view) if row[1].in_seed))
OWNED_PROCESS = LabelSet(("gpu", "uuid", "gi", "ci", "pid", "process", "type", *_OWNER), _owned_processes)
DEVICE = LabelSet(("gpu", "model", "uuid"), _devices("index", "model", "uuid"))
GPU = LabelSet(("gpu",), _devices("index"))
GPU_UUID = LabelSet(("gpu", "uuid"), _devices("index", "uuid"))
DEVICE_FACTS = LabelSet(("gpu", "uuid", "model", "driver", "mig_mode", "compute_mode", "pci_bus_id"), _device_facts)
LOST = LabelSet(("gpu", "uuid"), lambda view: ((each, each) for each in (view.poll.lost if view.poll else ())))
INSTANCE = LabelSet(("gpu", "uuid", "gi"), _instances)
TENANCY = LabelSet(_P, lambda view: ((_name_hold(each), each) for each in view.tenancies))
GRANT = LabelSet((*_P, "resource", "sharing"), lambda view: (
    ((*_name_hold(each), each.grant.resource, each.grant.share), each) for each in view.tenancies
))
EXPORTER = LabelSet((), lambda view: [((), view)])
BUILD = LabelSet(("version",), lambda view: [((__version__,), view)])
SOURCE = LabelSet(("source",), _counted(lambda view: view.sources_up))
DROPPED = LabelSet(("reason",), _counted(lambda view: view.dropped))
POLLS = LabelSet(("result",), _counted(lambda view: view.totals.polls))
ERRORS = LabelSet(("gpu", "call", "error"), _counted(lambda view: view.totals.errors))
DISCARDED = LabelSet(("reason",), _counted(lambda view: view.totals.discarded))


# ---- the table -----------------------------------------------------------------------------------------------------


class Exposed(msgspec.Struct, frozen=True):
    """One metric of the page."""

    name: str
    label_set: LabelSet
    help: str
    value: Callable[[Any], float | None]

    @property
    def type(self) -> str:
        return "counter" if self.name.endswith("_total") else "gauge"


_get = operator.attrgetter


def _flag(name: str) -> Callable[[Any], int | None]:
    get = _get(name)
    return lambda thing: None if (value := get(thing)) is None else int(value)


def _one(thing: Any) -> int:
    return 1


METRICS: tuple[Exposed, ...] = (
    # The names of gpu-idle-exporter.
    Exposed("gpu_idle_process_compute_utilization_percent", SEED_PROCESS,
            "Largest SM utilisation of the process since the last poll, 0 to 100.", _get("sm")),
    Exposed("gpu_idle_process_memory_used_bytes", SEED_PROCESS, "GPU memory that the process holds.", _get("memory")),
    Exposed("gpu_idle_process_idle_seconds", SEED_PROCESS,
            "How long the process has held memory without computing; 0 when active, absent when not known.",
            _get("idle_seconds")),
    Exposed("gpu_idle_process_idle_memory_bytes", SEED_PROCESS,
            "GPU memory that the process holds while idle; 0 when active, absent when not known.", _get("idle_memory")),
    Exposed(NodeMetric.DEVICE_UTILIZATION, DEVICE,
            "Share of time in which any kernel ran on the GPU.", _get("device.utilization")),
    Exposed("gpu_idle_device_memory_used_bytes", DEVICE, "GPU memory in use.", _get("device.memory_used")),
    Exposed("gpu_idle_device_memory_total_bytes", DEVICE, "GPU memory there is.", _get("device.memory_total")),
    Exposed(NodeMetric.DEVICE_POWER, DEVICE, "Power the GPU draws.", _get("device.power_watts")),
    Exposed("gpu_idle_device_temperature_celsius", DEVICE, "Temperature of the GPU.", _get("device.temperature")),
    Exposed("gpu_idle_memory_total_bytes", GPU,
            "Memory that idle processes hold on the GPU; absent when utilisation could not be read.",
            _get("idle_memory")),
    # Our own: processes and devices.
    Exposed("gpu_idle_process_info", OWNED_PROCESS, "1, with what the process is and whose.", _one),
    Exposed("gpu_idle_process_unknown", PROCESS,
            "1 if the last poll could not tell whether the process computes.", _flag("is_unknown")),
    Exposed("gpu_idle_process_last_active_timestamp_seconds", PROCESS,
            "When any engine of the GPU last worked for the process.", _get("last_active")),
    Exposed("gpu_idle_process_utilization_supported", GPU_UUID,
            "1 if the driver tells the utilisation of single processes on this GPU.", _flag("is_supported")),
    Exposed("gpu_idle_device_info", DEVICE_FACTS, "1, with what the GPU is.", _one),
    Exposed("gpu_idle_device_lost", LOST, "1 for a GPU that fell off the bus, until it returns or for an hour.", _one),
    Exposed("gpu_idle_device_energy_joules_total", DEVICE,
            "Energy the GPU has used since the driver was loaded.", _get("device.energy_joules")),
    Exposed("gpu_idle_mig_utilization_percent", INSTANCE,
            "Utilisation of a MIG instance, where the driver measures it.", _get("utilization")),
    # Our own: what pods have of GPUs.
    Exposed(NodeMetric.POD_GPU, GRANT, "1 for each GPU, or part of one, that a container holds.", _one),
    Exposed("gpu_idle_pod_gpu_processes", TENANCY, "Processes of the container on the GPU.", _get("processes")),
    Exposed("gpu_idle_pod_gpu_memory_used_bytes", TENANCY,
            "GPU memory that processes of the container hold.", _get("memory")),
    Exposed(NodeMetric.POD_UTILIZATION, TENANCY,
            "Utilisation of the GPU by the container; `scope` says what it was measured on.", _get("utilization")),
    Exposed(NodeMetric.POD_LAST_ACTIVE, TENANCY,
            "When the container last used the GPU; absent if never while observed.", _get("last_active")),
    Exposed(NodeMetric.POD_OBSERVED_SINCE, TENANCY,
            "Since when the container has been observed without a gap.", _get("observed_since")),
    Exposed("gpu_idle_pod_gpu_no_process_seconds", TENANCY,
            "How long the container has held the GPU without any process on it; 0 if it has one.",
            _get("no_process_seconds")),
    # Our own: the exporter itself.
    Exposed("gpu_idle_exporter_build_info", BUILD, "1, with the version.", _one),
    Exposed("gpu_idle_exporter_nvml_up", EXPORTER, "1 while the driver answers.", _flag("is_up")),
    Exposed("gpu_idle_exporter_last_success_timestamp_seconds", EXPORTER,
            "When a poll last succeeded.", _get("last_success")),
    Exposed("gpu_idle_exporter_poll_duration_seconds", EXPORTER, "How long the last poll took.", _get("poll_duration")),
    Exposed("gpu_idle_exporter_attribution_up", SOURCE,
            "1 while the source that says whose a process is answers.", int),
    Exposed("gpu_idle_exporter_dropped_series", DROPPED,
            "Processes of this poll whose series were left out, by reason.", int),
    Exposed("gpu_idle_exporter_polls_total", POLLS, "Polls, by result.", int),
    Exposed("gpu_idle_exporter_nvml_errors_total", ERRORS,
            f"Driver calls that failed; past {processes.MOST_ERROR_SERIES} series all others are `_other`.", int),
    Exposed("gpu_idle_exporter_discarded_samples_total", DISCARDED, "Samples that could not be true, by reason.", int),
)


# ---- writing it down -----------------------------------------------------------------------------------------------

_LABEL_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_HELP_ESCAPES = {Format.text: str.maketrans({"\\": "\\\\", "\n": "\\n"}), Format.openmetrics: _LABEL_ESCAPES}


def render(view: NodeView, constants: Mapping[str, str], form: Format) -> bytes:
    """The page. `constants` are labels that every series bears."""
    written: dict[LabelSet, list[tuple[str, Any]]] = {}  # label texts, shared by all metrics of a label set
    parts: list[str] = []
    for metric in METRICS:
        if (things := written.get(metric.label_set)) is None:
            things = written[metric.label_set] = list(_label(metric.label_set, view, constants).items())
        name, value = metric.name, metric.value
        lines = [f"{name}{labels} {number}\n" for labels, thing in things if (number := value(thing)) is not None]
        if lines:
            parts.append(_head(metric, form))
            parts += lines
    if form is Format.openmetrics:
        parts.append("# EOF\n")
    return "".join(parts).encode(errors="replace")


def _label(label_set: LabelSet, view: NodeView, constants: Mapping[str, str]) -> dict[str, Any]:
    """Label text -> thing; the first of equals stays."""
    own = ",".join(f'{name}="%s"' for name in label_set.labels)
    fixed = ",".join(f'{name}="{_escape(value)}"' for name, value in constants.items())
    before, after = ("{", "}") if own or fixed else ("", "")
    after = ("," if own and fixed else "") + fixed + after
    quotes = 2 * len(label_set.labels)
    rows: dict[str, Any] = {}
    for values, thing in label_set.find(view):
        text = own % values
        # Rarely: most names need no escape, and looking once is cheaper.
        if text.count('"') != quotes or "\\" in text or "\n" in text:
            text = own % tuple(map(_escape, values))
        rows.setdefault(f"{before}{text}{after}", thing)
    return rows


def _escape(value: object) -> str:
    return str(value).translate(_LABEL_ESCAPES)


def _head(metric: Exposed, form: Format) -> str:
    # OpenMetrics names the family of a counter without the suffix of its samples.
    family = metric.name.removesuffix("_total") if form is Format.openmetrics else metric.name
    return f"# HELP {family} {metric.help.translate(_HELP_ESCAPES[form])}\n# TYPE {family} {metric.type}\n"


class LatestPage:
    """The bytes of the last complete poll, in each format written once.

    A format that somebody lately asked for is written with the poll (`prepare`, in any thread), so that a scrape only
    looks it up.
    """

    _LATELY = 12  # polls: a scrape a minute at the default interval

    def __init__(self, constants: Mapping[str, str], view: NodeView) -> None:
        self.view = view
        self._texts: dict[Format, bytes] = {}
        self._constants = constants
        self._asked: dict[Format, int] = {}  # format -> polls for which it is still written beforehand

    def prepare(self, view: NodeView) -> dict[Format, bytes]:
        return {form: render(view, self._constants, form) for form, left in list(self._asked.items()) if left > 0}

    def show(self, view: NodeView, texts: dict[Format, bytes]) -> None:
        """`texts`: what was prepared of it."""
        self.view, self._texts = view, texts
        self._asked = {form: left - 1 for form, left in self._asked.items()}

    def text(self, form: Format) -> bytes:
        self._asked[form] = self._LATELY
        if form not in self._texts:
            self._texts[form] = render(self.view, self._constants, form)
        return self._texts[form]


def choose_format(accept: str) -> Format:
    """The format a scraper likes best of those we have; text if it does not say."""
    best, liking = Format.text, 0.0
    for each in accept.lower().split(","):
        kind, *parameters = (part.strip() for part in each.split(";"))
        given = dict(parameter.split("=", 1) for parameter in parameters if "=" in parameter)
        form = _format_of(kind, given.get("version", ""))
        if form is not None and (quality := _quality(given.get("q", "1"))) > liking:
            best, liking = form, quality
    return best


def _format_of(kind: str, version: str) -> Format | None:
    if kind == "application/openmetrics-text" and version in ("", "1.0.0", "0.0.1"):
        return Format.openmetrics
    return Format.text if kind in ("text/plain", "text/*", "*/*") else None


def _quality(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
