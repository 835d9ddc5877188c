"""A pause is a span by its kind, and its Event another, at a real OTLP endpoint on loopback."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit import test_tracing
from tests.unit.act import examples
from tests.unit.act.carrying import MakeHands, carry
from tests.unit.act.examples import EXAMPLES, identified, workload_of
from tests.unit.act.server import Server
from tests.unit.clients import loopback

from fallow import telemetry, tracing
from fallow.model import decision


@pytest.mark.parametrize(("example", "name"), [
    ("deployment", "scale_to_zero"), ("notebook", "scale_notebook_to_zero"),
    ("isvc", "scale_inference_service_to_zero"),
])
async def test_a_pause_is_a_span_by_its_kind_and_its_event_another(
    monkeypatch: pytest.MonkeyPatch, server: Server, make_hands: MakeHands, example: str, name: str
) -> None:
    async with loopback.serve(test_tracing.collector) as endpoint:
        environ = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{endpoint.url}/v1/traces"}
        monkeypatch.setenv(*next(iter(environ.items())))  # the library reads the process's own
        async with tracing.opened(environ, telemetry.Telemetry()) as traces:
            workload = workload_of(server.add(identified(EXAMPLES[example])))
            outcome = await carry(make_hands(traces=traces), decision.Pause(examples.finding_of(workload), "idle"))
            assert outcome.status is decision.Status.done, outcome.because
        async with asyncio.timeout(10):
            while not test_tracing.spans_of(endpoint):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert test_tracing.spans_of(endpoint)[:2] == [(name, ""), ("generate_scale_event", "")]
