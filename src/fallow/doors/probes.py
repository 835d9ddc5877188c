"""What a server of ours tells those who look after it: /healthz, /readyz, which says why not, and /metrics.

In: a path. Out: status, body and content type, or None: it is not one of these. Who serves it is the caller's matter.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from fallow import telemetry

JSON, TEXT = b"application/json", b"text/plain; charset=utf-8"
_METRICS: Final = b"text/plain; version=0.0.4; charset=utf-8"


class ProbeAnswer(NamedTuple):
    status: int
    body: bytes
    content_type: bytes


class Probes:
    """`why_not_ready`: reasons; none: ready."""

    def __init__(self, metrics: telemetry.Telemetry, why_not_ready: Callable[[], list[str]]) -> None:
        self._metrics, self._why_not_ready = metrics, why_not_ready

    def answer(self, path: str) -> ProbeAnswer | None:
        if path == "/healthz":
            return ProbeAnswer(200, b"ok", TEXT)
        if path == "/readyz":
            return tell_reasons(self._why_not_ready())
        return ProbeAnswer(200, self._metrics.text(), _METRICS) if path == "/metrics" else None


def tell_reasons(reasons: list[str]) -> ProbeAnswer:
    if not reasons:
        return ProbeAnswer(200, b"ok", TEXT)
    return ProbeAnswer(503, msgspec.json.encode({"reasons": reasons}), JSON)
