"""Spans and metrics at a real OTLP endpoint on loopback, which decodes what it gets; a collector that is down costs a
warning; nobody who does not ask loads anything of it."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.unit import test_loop
from tests.unit.clients import loopback
from tests.unit.observe.cluster import pretend

from fallow import settings, telemetry, tracing
from fallow.wiring import daemon

VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER", "OTEL_SERVICE_NAME")


def collector(asked: loopback.Asked) -> web.Response:
    return web.Response(body=b"", content_type="application/x-protobuf")


def _body(asked: loopback.Asked) -> bytes:
    return gzip.decompress(asked.body) if asked.headers.get("Content-Encoding") == "gzip" else asked.body


def spans_of(server: loopback.Loopback) -> list[tuple[str, str]]:
    """(name, name of its parent), in the order they ended."""
    found = []
    for asked in server.asked:
        if asked.path == "/v1/traces":
            sent = ExportTraceServiceRequest.FromString(_body(asked))
            found += [span for each in sent.resource_spans for scope in each.scope_spans for span in scope.spans]
    names = {span.span_id: span.name for span in found}
    return [(span.name, names.get(span.parent_span_id, "")) for span in found]


def metrics_of(server: loopback.Loopback) -> dict[str, float]:
    found = {}
    for asked in server.asked:
        if asked.path == "/v1/metrics":
            sent = ExportMetricsServiceRequest.FromString(_body(asked))
            for metric in (one for each in sent.resource_metrics for scope in each.scope_metrics
                           for one in scope.metrics):
                [point] = (metric.sum if metric.HasField("sum") else metric.gauge).data_points
                found[metric.name] = point.as_double or float(point.as_int)
    return found


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The library reads the process's own environment."""
    for key in VARIABLES:
        monkeypatch.delenv(key, raising=False)
    said: dict[str, str] = {}

    class Both(dict[str, str]):
        def __setitem__(self, key: str, value: str) -> None:
            monkeypatch.setenv(key, value)
            super().__setitem__(key, value)

    return Both(said)


@contextlib.asynccontextmanager
async def daemon_with(tmp_path: Path, environ: dict[str, str]) -> AsyncIterator[daemon.Assembly]:
    async with pretend.Server() as server, loopback.serve(test_loop.busy) as prometheus:
        server.put_all(pretend.deployed("llm"))
        where = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.url[1]}"}}
        (tmp_path / "config").write_text(json.dumps({
            "clusters": [where], "current-context": "c", "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        }))
        given = {"kubeconfig": str(tmp_path / "config"), "prometheus_url": prometheus.url, "prometheus_auth": "none",
                 "daemon_mode": True, "leader_elect": "false"}
        async with daemon.assemble(settings.read_flags(given, environ), time.time) as made:
            yield made


async def test_a_cycle_is_a_span_with_its_stages_below_it_and_its_counters_go_along(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    async with loopback.serve(collector) as server:
        environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = server.url
        async with daemon_with(tmp_path, environ) as made:
            await made.loop.run_once(daemon.IDLE, acting=False)
        async with asyncio.timeout(10):
            while not metrics_of(server) or not spans_of(server):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    root = "run_query_and_scale"
    assert spans_of(server) == [("find_root_object", root), ("plan", root), ("scale", root), (root, "")]
    sent = ExportTraceServiceRequest.FromString(_body(next(each for each in server.asked if each.path == "/v1/traces")))
    about = {each.key: each.value.string_value for each in sent.resource_spans[0].resource.attributes}
    assert about["service.name"] == "gpu-pruner"
    assert metrics_of(server) == {
        "query_successes": 1.0, "query_failures": 0.0, "scale_successes": 0.0, "scale_failures": 0.0,
        "query_returned_candidates": 0.0, "query_returned_shutdown_events": 0.0,
    }


async def test_a_collector_that_is_down_costs_one_warning_in_five_minutes_and_no_cycle(
    tmp_path: Path, environ: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = "http://127.0.0.1:1"
    environ["OTEL_BSP_SCHEDULE_DELAY"] = "1"
    environ["OTEL_EXPORTER_OTLP_TIMEOUT"] = "1"
    async with daemon_with(tmp_path, environ) as made:
        cycle = await made.loop.run_once(daemon.IDLE, acting=False)
        assert cycle is not None
        assert cycle.failure == ""
    said = [each for each in caplog.records if "OpenTelemetry collector" in each.getMessage()]
    assert [each.levelname for each in said] == ["WARNING"]
    assert not [each for each in caplog.records if each.name.startswith("opentelemetry")]


@pytest.mark.parametrize(
    ("variable", "value", "tells"),
    [("OTEL_BSP_MAX_QUEUE_SIZE", "1", "traces"), ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "many", "traces"),
     ("OTEL_METRIC_EXPORT_INTERVAL", "0", "metrics")],
)
async def test_a_variable_that_the_library_does_not_take_costs_a_warning_and_no_cycle(
    tmp_path: Path, environ: dict[str, str], caplog: pytest.LogCaptureFixture, variable: str, value: str, tells: str
) -> None:
    environ["OTEL_EXPORTER_OTLP_ENDPOINT"], environ[variable] = "http://127.0.0.1:1", value
    async with daemon_with(tmp_path, environ) as made:
        await made.loop.run_once(daemon.IDLE, acting=False)
        assert made.loop.health.pulses["idle"].failures == 0
    said = [record.getMessage() for record in caplog.records if "OTEL_* variables" in record.getMessage()]
    assert [each.split(":")[0] for each in said] == [f"no {tells} are sent, as the OTEL_* variables cannot be used"]


async def test_a_header_that_cannot_be_read_is_not_repeated_in_the_log(
    environ: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    environ["OTEL_EXPORTER_OTLP_ENDPOINT"], environ["OTEL_EXPORTER_OTLP_HEADERS"] = "http://127.0.0.1:1", "s3cret"
    async with tracing.opened(environ, telemetry.Telemetry()):
        pass
    assert "Header format invalid" in caplog.text
    assert "s3cret" not in caplog.text


def test_complaints_come_once_in_five_minutes(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    with tracing._hushed(lambda: now[0]):
        for at in (0.0, 1.0, 299.0, 300.0, 301.0):
            now[0] = at
            logging.getLogger("opentelemetry.exporter").error("cannot\nconnect at %s", at)
    said = [each.getMessage() for each in caplog.records]
    assert [each.rpartition(": ")[2] for each in said] == ["cannot connect at 0.0", "cannot connect at 300.0"]


async def test_a_collector_that_hangs_does_not_hold_up_our_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_GOODBYE", 0.05)
    began, never = time.monotonic(), threading.Event()
    await tracing._leave([lambda: never.wait(20)])
    assert time.monotonic() - began < 5
    never.set()


@pytest.mark.parametrize(("environ_of", "wanted"), [
    ({}, (False, False)), ({"OTEL_TRACES_EXPORTER": "otlp"}, (True, False)),
    ({"OTEL_METRICS_EXPORTER": "otlp"}, (False, True)), ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, (True, True)),
    ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://x"}, (False, True)),
    ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_TRACES_EXPORTER": "none"}, (False, True)),
    ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "true"}, (False, False)),
])
def test_the_standard_variables_say_what_is_wanted(environ_of: dict[str, str], wanted: tuple[bool, bool]) -> None:
    assert tracing.find_wanted(environ_of) == wanted


async def test_without_the_extra_it_is_said_once_and_work_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    async with tracing.opened({"OTEL_TRACES_EXPORTER": "otlp"}, telemetry.Telemetry()) as traces:
        with traces.span("x"):
            pass
    assert "pip install 'fallow[otel]'" in caplog.text


def test_who_does_not_ask_for_it_loads_nothing_of_it() -> None:
    code = (
        "import asyncio, sys; from fallow import telemetry, tracing\n"
        "async def run():\n  async with tracing.opened({}, telemetry.Telemetry()) as traces:\n"
        "    with traces.span('x'): pass\n"
        "asyncio.run(run()); sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
