"""What every server of ours tells those who look after it."""

import pytest

from fallow import telemetry
from fallow.doors import probes


@pytest.mark.parametrize(("reasons", "status", "body"), [
    ([], 200, b"ok"), (["nodes are not seen"], 503, b'{"reasons":["nodes are not seen"]}'),
], ids=["ready", "blind"])
def test_readiness_says_why_not(reasons: list[str], status: int, body: bytes) -> None:
    asked = probes.Probes(telemetry.Telemetry(), lambda: reasons)
    found = asked.answer("/readyz")
    assert found is not None
    assert (found.status, found.body) == (status, body)


def test_who_is_not_ready_is_alive_and_measured() -> None:
    metrics = telemetry.Telemetry()
    metrics.add("gpu_autoscaler_webhook_requests_total", 1, ("error", "Unreadable"))
    asked = probes.Probes(metrics, lambda: ["not yet"])
    assert asked.answer("/healthz") == (200, b"ok", probes.TEXT)
    told = asked.answer("/metrics")
    assert told is not None
    assert b'gpu_autoscaler_webhook_requests_total{' in told.body
    assert b"version=0.0.4" in told.content_type


@pytest.mark.parametrize("path", ["/", "/healthz/", "/metrics?x", "/filter", ""])
def test_nothing_else_is_a_probe(path: str) -> None:
    assert probes.Probes(telemetry.Telemetry(), list).answer(path) is None
