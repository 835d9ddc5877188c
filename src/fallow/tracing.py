"""What we do as spans and metrics for an OpenTelemetry collector, where the standard `OTEL_*` variables ask for it.

In: the environment, by which everything is configured as everywhere (endpoint, headers, sampling, names). Out: spans
around what others do, by the names of gpu-pruner; the numbers of telemetry.py under gpu-pruner's names. Without the
variables, or without the extra `otel`, nothing of OpenTelemetry is imported and a span costs nothing.
Invariant: a collector that is down, slow or wrong costs one warning in five minutes and nothing else: spans leave in a
thread of their own, and our end does not wait for it.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from fallow import __version__
from fallow.telemetry import Telemetry

log = logging.getLogger("fallow")

SERVICE: Final = "gpu-pruner"
CYCLE, LOOK, PLAN, ACT = "run_query_and_scale", "find_root_object", "plan", "scale"
EVENT: Final = "generate_scale_event"
PAUSES: Final = {"n": "scale_notebook_to_zero", "i": "scale_inference_service_to_zero"}  # by the letter of the kind
PAUSE: Final = "scale_to_zero"  # of every other kind
COUNTERS: Final = {  # theirs -> ours
    "query_successes": "gpu_pruner_query_successes_total", "query_failures": "gpu_pruner_query_failures_total",
    "scale_successes": "gpu_pruner_scale_successes_total", "scale_failures": "gpu_pruner_scale_failures_total",
}
GAUGES: Final = {
    "query_returned_candidates": "gpu_pruner_idle_gpus",
    "query_returned_shutdown_events": "fallow_idle_planned_pauses",
}
_QUIET_FOR: Final = 300.0  # seconds between two warnings about the collector
_GOODBYE: Final = 3.0  # seconds for what is still to be sent at our end
_LOOK_EVERY: Final = 0.01
_OF_HEADERS: Final = "opentelemetry.util.re"  # whose complaints repeat the header, which is a secret
_MISSING: Final = (
    "OTEL_* variables ask for OpenTelemetry, which is not installed: pip install 'fallow[otel]'; nothing is sent"
)


class Traces:
    """Spans, or nothing. `tracer` None: nobody wants them."""

    def __init__(self, tracer: Any = None) -> None:
        self._tracer = tracer

    @contextlib.contextmanager
    def span(self, name: str, **about: str | int) -> Iterator[None]:
        if self._tracer is None:
            yield
            return
        with self._tracer.start_as_current_span(name, attributes=about):
            yield


def find_wanted(environ: Mapping[str, str]) -> tuple[bool, bool]:
    """Are traces wanted, are metrics?"""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False, False
    return _is_wanted(environ, "TRACES"), _is_wanted(environ, "METRICS")


def _is_wanted(environ: Mapping[str, str], signal: str) -> bool:
    match environ.get(f"OTEL_{signal}_EXPORTER", ""):
        case "otlp":
            return True
        case "":
            places = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
            return any(environ.get(place) for place in places)
        case _:  # none, or one that we do not have
            return False


@contextlib.asynccontextmanager
async def opened(
    environ: Mapping[str, str], metrics: Telemetry, monotonic: Callable[[], float] = time.monotonic
) -> AsyncIterator[Traces]:
    """The exporters, as long as it lasts."""
    wants_traces, wants_metrics = find_wanted(environ)
    if not (wants_traces or wants_metrics):
        yield Traces()
        return
    try:
        from opentelemetry.sdk import resources
    except ImportError:
        log.warning(_MISSING)
        yield Traces()
        return
    _warn_about_grpc(environ)
    about = resources.Resource.create({
        "service.name": environ.get("OTEL_SERVICE_NAME") or SERVICE, "service.version": __version__,
    })
    with _hushed(monotonic):
        spans = _try("traces", lambda: _open_spans(about)) if wants_traces else None
        meters = _try("metrics", lambda: _open_meters(about, metrics)) if wants_metrics else None
        try:
            yield Traces(spans.get_tracer("fallow", __version__) if spans else None)
        finally:
            await _leave([each.shutdown for each in (spans, meters) if each is not None])


def _warn_about_grpc(environ: Mapping[str, str]) -> None:
    keys = ("OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL")
    if any(environ.get(key) == "grpc" for key in keys):
        log.warning("OTLP goes as http/protobuf here, not by grpc: the collector's port for that is usually 4318")


def _try(what: str, open_them: Callable[[], Any]) -> Any:
    """None where the library does not take what its variables say."""
    try:
        return open_them()
    except Exception as problem:  # whatever it is: for want of traces nobody goes without cycles
        log.warning("no %s are sent, as the OTEL_* variables cannot be used: %s", what, " ".join(str(problem).split()))
        return None


def _open_spans(about: Any) -> Any:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk import trace
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = trace.TracerProvider(resource=about, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def _open_meters(about: Any, values: Telemetry) -> Any:
    from opentelemetry import metrics as api
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk import metrics
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    def reading(name: str) -> Callable[[api.CallbackOptions], Iterable[api.Observation]]:
        return lambda options: [api.Observation(values.read(name))]

    reader = PeriodicExportingMetricReader(OTLPMetricExporter())
    provider = metrics.MeterProvider([reader], resource=about, shutdown_on_exit=False)
    meter = provider.get_meter("fallow", __version__)
    for theirs, ours in COUNTERS.items():
        meter.create_observable_counter(theirs, [reading(ours)])
    for theirs, ours in GAUGES.items():
        meter.create_observable_gauge(theirs, [reading(ours)])
    return provider


async def _leave(shutdowns: Iterable[Callable[[], object]]) -> None:
    """What is still to be sent has a moment; a collector that hangs does not hold us up, nor does its thread."""
    leaving = [threading.Thread(target=each, daemon=True) for each in shutdowns]
    for thread in leaving:
        thread.start()
    ends = time.monotonic() + _GOODBYE
    while any(thread.is_alive() for thread in leaving) and time.monotonic() < ends:  # noqa: ASYNC110  threads set no event
        await asyncio.sleep(_LOOK_EVERY)


class _Hush(logging.Handler):
    """All that OpenTelemetry has to complain about, as one warning in five minutes."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        super().__init__(logging.WARNING)
        self._monotonic, self._said_at = monotonic, -_QUIET_FOR

    def emit(self, record: logging.LogRecord) -> None:
        now = self._monotonic()
        if now - self._said_at >= _QUIET_FOR:
            self._said_at = now
            text = record.msg if record.name == _OF_HEADERS else record.getMessage()
            said = " ".join(str(text).split())[:200]
            log.warning("the OpenTelemetry collector does not take what we send (said once in five minutes): %s", said)


@contextlib.contextmanager
def _hushed(monotonic: Callable[[], float]) -> Iterator[None]:
    theirs, hush = logging.getLogger("opentelemetry"), _Hush(monotonic)
    before = theirs.propagate, theirs.level
    theirs.addHandler(hush)
    theirs.propagate = False
    try:
        yield
    finally:
        theirs.removeHandler(hush)
        theirs.propagate, level = before
        theirs.setLevel(level)
