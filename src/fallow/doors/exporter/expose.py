"""What a scrape says: every metric of the exporter, in one table, and how it becomes bytes.

In: a Scene, all that one poll found and all the exporter knows of itself. Out: text 0.0.4 or OpenMetrics 1.0.
METRICS is the only place that spells these names. A metric speaks about a Subject: a set of labels, and the things of a scene that bear
them; a value of None is no series, never 0. No series stands twice, whatever the names in it: a scraper would refuse the whole page.
Processes have series up to a bound per GPU, the largest by memory; the rest is counted, and is in every sum.
"""

import enum
import functools
import heapq
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from fallow import __version__
from fallow.model import processes
from fallow.model.units import Instant, Seconds

MOST_ERROR_SERIES = 200
OTHER = ("", "_other", "_other")  # where errors go once there are as many series as may be

Key: TypeAlias = tuple[int, int]  # (pid, start time)


class Form(enum.StrEnum):
    """A format, by the Content-Type it is sent with."""

    text = "text/plain; version=0.0.4; charset=utf-8"
    openmetrics = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class Totals(msgspec.Struct):
    """What is counted for as long as the process lives."""

    polls: dict[str, int] = msgspec.field(default_factory=lambda: {result.value: 0 for result in processes.Result})
    errors: dict[tuple[str, str, str], int] = {}  # (gpu, call, error)
    discarded: dict[str, int] = {}

    def add(self, poll: processes.Poll) -> None:
        self.polls[poll.result] += 1
        for problem in poll.problems:
            self._add_error((problem.gpu, problem.call, problem.error))
        for reason, count in poll.discarded.items():
            self.discarded[reason] = self.discarded.get(reason, 0) + count

    def _add_error(self, key: tuple[str, str, str]) -> None:
        if key not in self.errors and len(self.errors) >= MOST_ERROR_SERIES - 1:
            key = OTHER
        self.errors[key] = self.errors.get(key, 0) + 1

    def copy(self) -> "Totals":
        return Totals(dict(self.polls), dict(self.errors), dict(self.discarded))


class Scene(msgspec.Struct, dict=True):
    """All that one scrape shows. `poll` None: there was none yet, or it is too old to be told."""

    poll: processes.Poll | None = None
    tenants: Mapping[Key, processes.Tenant] = {}
    tenancies: Sequence[processes.Tenancy] = ()
    most_processes: int = 256
    is_up: bool = False
    last_success: Instant | None = None
    poll_duration: Seconds | None = None
    attribution_up: Mapping[str, bool] = {}
    totals: Totals = msgspec.field(default_factory=Totals)

    @functools.cached_property
    def devices(self) -> list[processes.Judged]:
        return [] if self.poll is None else [judged for judged in self.poll.devices if not judged.device.is_lost]

    @functools.cached_property
    def shown(self) -> list[tuple[processes.Device, processes.Process]]:
        """The processes that have series."""
        return [(judged.device, process) for judged in self.devices for process in self._largest(judged.processes or [])]

    @property
    def dropped(self) -> dict[str, int]:
        held = sum(len(judged.processes or ()) for judged in self.devices)
        return {"max_processes_per_gpu": held - len(self.shown)}

    def _largest(self, held: list[processes.Process]) -> list[processes.Process]:
        if len(held) <= self.most_processes:
            return held
        return heapq.nlargest(self.most_processes, held, key=lambda process: (process.memory or 0, -process.pid))


# ---- subjects: which labels, and what bears them -------------------------------------------------------------------------------

Row: TypeAlias = tuple[tuple[object, ...], Any]  # the values of the labels, and the thing itself


class Subject(msgspec.Struct, frozen=True):
    labels: tuple[str, ...]
    find: Callable[[Scene], Iterable[Row]]


def _every_process(scene: Scene) -> Iterator[Row]:
    return (((device.index, process.pid, process.name), process) for device, process in scene.shown)


def _seed_processes(scene: Scene) -> Iterator[Row]:
    return (row for row in _every_process(scene) if row[1].in_seed)


def _owned_processes(scene: Scene) -> Iterator[Row]:
    """One row per MIG instance the process is on, or one without."""
    nobody = processes.Tenant()
    for device, process in scene.shown:
        owner = scene.tenants.get((process.pid, process.start), nobody)
        whose = (owner.namespace, owner.pod, owner.container, owner.pod_uid, owner.container_id)
        for gi, ci in process.instances or (("", ""),):
            yield (device.index, device.uuid, gi, ci, process.pid, process.name, process.type, *whose), process


def _devices(scene: Scene) -> Iterator[Row]:
    return (((judged.device.index, judged.device.model, judged.device.uuid), judged) for judged in scene.devices)


def _device_indices(scene: Scene) -> Iterator[Row]:
    return (((judged.device.index,), judged) for judged in scene.devices)


def _device_uuids(scene: Scene) -> Iterator[Row]:
    return (((judged.device.index, judged.device.uuid), judged) for judged in scene.devices)


_MIG_MODES = {True: "enabled", False: "disabled", None: ""}


def _device_facts(scene: Scene) -> Iterator[Row]:
    version = scene.poll.driver_version if scene.poll is not None else ""
    for each in (judged.device for judged in scene.devices):
        yield (each.index, each.uuid, each.model, version, _MIG_MODES[each.is_mig], each.compute_mode, each.pci_bus_id), each


def _lost(scene: Scene) -> Iterator[Row]:
    return ((place, place) for place in (scene.poll.lost if scene.poll is not None else ()))


def _instances(scene: Scene) -> Iterator[Row]:
    """By GPU instance: what is measured belongs to it, not to the compute instances in it."""
    for device in (judged.device for judged in scene.devices):
        measured = (each for each in device.instances if each.utilization is not None)
        yield from (((device.index, device.uuid, each.gi), each) for each in measured)


def _tenancies(scene: Scene) -> Iterator[Row]:
    return ((_place(tenancy), tenancy) for tenancy in scene.tenancies)


def _granted(scene: Scene) -> Iterator[Row]:
    return (((*_place(tenancy), tenancy.grant.resource, tenancy.grant.share), tenancy) for tenancy in scene.tenancies)


def _place(tenancy: processes.Tenancy) -> tuple[object, ...]:
    grant = tenancy.grant
    gi = "" if grant.gi is None else grant.gi
    return tenancy.gpu, grant.uuid, gi, grant.namespace, grant.pod, grant.container, tenancy.scope


def _counted(what: Callable[[Scene], Mapping[Any, Any]]) -> Callable[[Scene], Iterable[Row]]:
    """For what the exporter keeps by label: the thing is the number itself."""
    return lambda scene: ((key if isinstance(key, tuple) else (key,), count) for key, count in what(scene).items())


_P = ("gpu", "uuid", "gi", "workload_namespace", "workload_pod", "workload_container", "scope")
_OWNER = ("workload_namespace", "workload_pod", "workload_container", "pod_uid", "container_id")

SEED_PROCESS = Subject(("gpu", "pid", "process"), _seed_processes)
PROCESS = Subject(("gpu", "pid", "process"), _every_process)
OWNED_PROCESS = Subject(("gpu", "uuid", "gi", "ci", "pid", "process", "type", *_OWNER), _owned_processes)
DEVICE = Subject(("gpu", "model", "uuid"), _devices)
GPU = Subject(("gpu",), _device_indices)
GPU_UUID = Subject(("gpu", "uuid"), _device_uuids)
DEVICE_FACTS = Subject(("gpu", "uuid", "model", "driver", "mig_mode", "compute_mode", "pci_bus_id"), _device_facts)
LOST = Subject(("gpu", "uuid"), _lost)
INSTANCE = Subject(("gpu", "uuid", "gi"), _instances)
TENANCY = Subject(_P, _tenancies)
GRANT = Subject((*_P, "resource", "sharing"), _granted)
EXPORTER = Subject((), lambda scene: [((), scene)])
BUILD = Subject(("version",), lambda scene: [((__version__,), scene)])
SOURCE = Subject(("source",), _counted(lambda scene: scene.attribution_up))
DROPPED = Subject(("reason",), _counted(lambda scene: scene.dropped))
POLLS = Subject(("result",), _counted(lambda scene: scene.totals.polls))
ERRORS = Subject(("gpu", "call", "error"), _counted(lambda scene: scene.totals.errors))
DISCARDED = Subject(("reason",), _counted(lambda scene: scene.totals.discarded))


# ---- the table ---------------------------------------------------------------------------------------------------------------


class Metric(msgspec.Struct, frozen=True):
    name: str
    type: Literal["gauge", "counter"]
    subject: Subject
    help: str
    value: Callable[[Any], float | None]

    @property
    def labels(self) -> tuple[str, ...]:
        return self.subject.labels


_get = operator.attrgetter


def _flag(name: str) -> Callable[[Any], int | None]:
    get = _get(name)
    return lambda thing: None if (value := get(thing)) is None else int(value)


def _one(thing: Any) -> int:
    return 1


def _itself(number: int) -> int:
    return int(number)


METRICS: tuple[Metric, ...] = (
    # The names of gpu-idle-exporter.
    Metric("gpu_idle_process_compute_utilization_percent", "gauge", SEED_PROCESS,
           "Largest SM utilisation of the process since the last poll, 0 to 100.", _get("sm")),
    Metric("gpu_idle_process_memory_used_bytes", "gauge", SEED_PROCESS, "GPU memory that the process holds.", _get("memory")),
    Metric("gpu_idle_process_idle_seconds", "gauge", SEED_PROCESS,
           "How long the process has held memory without computing; 0 when active, absent when not known.", _get("idle_seconds")),
    Metric("gpu_idle_process_idle_memory_bytes", "gauge", SEED_PROCESS,
           "GPU memory that the process holds while idle; 0 when active, absent when not known.", _get("idle_memory")),
    Metric("gpu_idle_device_utilization_percent", "gauge", DEVICE,
           "Share of time in which any kernel ran on the GPU.", _get("device.utilization")),
    Metric("gpu_idle_device_memory_used_bytes", "gauge", DEVICE, "GPU memory in use.", _get("device.memory_used")),
    Metric("gpu_idle_device_memory_total_bytes", "gauge", DEVICE, "GPU memory there is.", _get("device.memory_total")),
    Metric("gpu_idle_device_power_watts", "gauge", DEVICE, "Power the GPU draws.", _get("device.power_watts")),
    Metric("gpu_idle_device_temperature_celsius", "gauge", DEVICE, "Temperature of the GPU.", _get("device.temperature")),
    Metric("gpu_idle_memory_total_bytes", "gauge", GPU,
           "Memory that idle processes hold on the GPU; absent when utilisation could not be read.", _get("idle_memory")),
    # Our own: processes and devices.
    Metric("gpu_idle_process_info", "gauge", OWNED_PROCESS, "1, with what the process is and whose.", _one),
    Metric("gpu_idle_process_unknown", "gauge", PROCESS,
           "1 if the last poll could not tell whether the process computes.", _flag("is_unknown")),
    Metric("gpu_idle_process_last_active_timestamp_seconds", "gauge", PROCESS,
           "When any engine of the GPU last worked for the process.", _get("last_active")),
    Metric("gpu_idle_process_utilization_supported", "gauge", GPU_UUID,
           "1 if the driver tells the utilisation of single processes on this GPU.",
           _flag("is_supported")),
    Metric("gpu_idle_device_info", "gauge", DEVICE_FACTS, "1, with what the GPU is.", _one),
    Metric("gpu_idle_device_lost", "gauge", LOST, "1 for a GPU that fell off the bus, until it returns or for an hour.", _one),
    Metric("gpu_idle_device_energy_joules_total", "counter", DEVICE,
           "Energy the GPU has used since the driver was loaded.", _get("device.energy_joules")),
    Metric("gpu_idle_mig_utilization_percent", "gauge", INSTANCE,
           "Utilisation of a MIG instance, where the driver measures it.", _get("utilization")),
    # Our own: what pods have of GPUs.
    Metric("gpu_idle_pod_gpu_info", "gauge", GRANT, "1 for each GPU, or part of one, that a container holds.", _one),
    Metric("gpu_idle_pod_gpu_processes", "gauge", TENANCY, "Processes of the container on the GPU.", _get("processes")),
    Metric("gpu_idle_pod_gpu_memory_used_bytes", "gauge", TENANCY,
           "GPU memory that processes of the container hold.", _get("memory")),
    Metric("gpu_idle_pod_gpu_utilization_percent", "gauge", TENANCY,
           "Utilisation of the GPU by the container; `scope` says what it was measured on.", _get("utilization")),
    Metric("gpu_idle_pod_gpu_last_active_timestamp_seconds", "gauge", TENANCY,
           "When the container last used the GPU; absent if never while observed.", _get("last_active")),
    Metric("gpu_idle_pod_gpu_observed_since_timestamp_seconds", "gauge", TENANCY,
           "Since when the container has been observed without a gap.", _get("observed_since")),
    Metric("gpu_idle_pod_gpu_no_process_seconds", "gauge", TENANCY,
           "How long the container has held the GPU without any process on it; 0 if it has one.", _get("no_process_seconds")),
    # Our own: the exporter itself.
    Metric("gpu_idle_exporter_build_info", "gauge", BUILD, "1, with the version.", _one),
    Metric("gpu_idle_exporter_nvml_up", "gauge", EXPORTER, "1 while the driver answers.", _flag("is_up")),
    Metric("gpu_idle_exporter_last_success_timestamp_seconds", "gauge", EXPORTER,
           "When a poll last succeeded.", _get("last_success")),
    Metric("gpu_idle_exporter_poll_duration_seconds", "gauge", EXPORTER, "How long the last poll took.", _get("poll_duration")),
    Metric("gpu_idle_exporter_attribution_up", "gauge", SOURCE, "1 while the source that says whose a process is answers.", _itself),
    Metric("gpu_idle_exporter_dropped_series", "gauge", DROPPED, "Processes of this poll whose series were left out, by reason.", _itself),
    Metric("gpu_idle_exporter_polls_total", "counter", POLLS, "Polls, by result.", _itself),
    Metric("gpu_idle_exporter_nvml_errors_total", "counter", ERRORS,
           f"Driver calls that failed; past {MOST_ERROR_SERIES} series all others are `_other`.", _itself),
    Metric("gpu_idle_exporter_discarded_samples_total", "counter", DISCARDED, "Samples that could not be true, by reason.", _itself),
)


# ---- writing it down ---------------------------------------------------------------------------------------------------------

_LABEL_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_HELP_ESCAPES = {Form.text: str.maketrans({"\\": "\\\\", "\n": "\\n"}), Form.openmetrics: _LABEL_ESCAPES}


def render(scene: Scene, constants: Mapping[str, str], form: Form) -> bytes:
    """The page. `constants` are labels that every series bears."""
    written: dict[Subject, list[tuple[str, Any]]] = {}  # label texts, shared by all metrics of a subject
    parts: list[str] = []
    for metric in METRICS:
        if metric.subject not in written:
            written[metric.subject] = list(_label(metric.subject, scene, constants).items())
        name, value = metric.name, metric.value
        lines = [f"{name}{labels} {number}\n" for labels, thing in written[metric.subject] if (number := value(thing)) is not None]
        if lines:
            parts.append(_head(metric, form))
            parts += lines
    if form is Form.openmetrics:
        parts.append("# EOF\n")
    return "".join(parts).encode(errors="replace")


def _label(subject: Subject, scene: Scene, constants: Mapping[str, str]) -> dict[str, Any]:
    """Label text -> thing; the first of equals stays."""
    own = ",".join(f'{name}="%s"' for name in subject.labels)
    fixed = ",".join(f'{name}="{_escape(value)}"' for name, value in constants.items())
    before, after = ("{" if own or fixed else ""), ("," if own and fixed else "") + fixed + ("}" if own or fixed else "")
    quotes = 2 * len(subject.labels)
    rows: dict[str, Any] = {}
    for values, thing in subject.find(scene):
        text = own % values
        if text.count('"') != quotes or "\\" in text or "\n" in text:  # rarely: most names need no escape, and looking once is cheaper
            text = own % tuple(map(_escape, values))
        rows.setdefault(f"{before}{text}{after}", thing)
    return rows


def _escape(value: object) -> str:
    return str(value).translate(_LABEL_ESCAPES)


def _head(metric: Metric, form: Form) -> str:
    # OpenMetrics names the family of a counter without the suffix of its samples.
    family = metric.name.removesuffix("_total") if form is Form.openmetrics and metric.type == "counter" else metric.name
    return f"# HELP {family} {metric.help.translate(_HELP_ESCAPES[form])}\n# TYPE {family} {metric.type}\n"


class Board:
    """The bytes of the last complete poll, in each format written once.

    A format that somebody lately asked for is written with the poll (`prepare`, in any thread), so that a scrape only looks it up.
    """

    _LATELY = 12  # polls: a scrape a minute at the default interval

    def __init__(self, constants: Mapping[str, str]) -> None:
        self._constants = constants
        self._asked: dict[Form, int] = {}  # format -> polls for which it is still written beforehand
        self._page = Page(Scene(), constants)

    @property
    def scene(self) -> Scene:
        return self._page.scene

    def prepare(self, scene: Scene) -> "Page":
        page = Page(scene, self._constants)
        for form, left in list(self._asked.items()):
            if left > 0:
                page.text(form)
        return page

    def show(self, page: "Page") -> None:
        self._page = page
        self._asked = {form: left - 1 for form, left in self._asked.items()}

    def text(self, form: Form) -> bytes:
        self._asked[form] = self._LATELY
        return self._page.text(form)


class Page:
    """One scene, and what it reads in each format."""

    def __init__(self, scene: Scene, constants: Mapping[str, str]) -> None:
        self.scene = scene
        self._constants = constants
        self._texts: dict[Form, bytes] = {}

    @property
    def written(self) -> set[Form]:
        return set(self._texts)

    def text(self, form: Form) -> bytes:
        if form not in self._texts:
            self._texts[form] = render(self.scene, self._constants, form)
        return self._texts[form]


def choose_form(accept: str) -> Form:
    """The format a scraper likes best of those we have; text if it does not say."""
    best, liking = Form.text, 0.0
    for each in accept.lower().split(","):
        kind, *parameters = (part.strip() for part in each.split(";"))
        given = dict(parameter.split("=", 1) for parameter in parameters if "=" in parameter)
        form = _form_of(kind, given.get("version", ""))
        if form is not None and (quality := _quality(given.get("q", "1"))) > liking:
            best, liking = form, quality
    return best


def _form_of(kind: str, version: str) -> Form | None:
    if kind == "application/openmetrics-text" and version in ("", "1.0.0", "0.0.1"):
        return Form.openmetrics
    return Form.text if kind in ("text/plain", "text/*", "*/*") else None


def _quality(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
