"""The paths of the extender, as a bare ASGI application.

POST /filter, /prioritize and /bind, as kube-scheduler asks, from those who showed who they are; GET /healthz, /readyz,
which says why not, and /metrics, from anybody. What cannot be read is a 400, what is too large a 413: a scheduler that
may ignore us then does.
"""

import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, TypeAlias

from fallow import telemetry
from fallow.doors import probes
from fallow.doors.extender import advice, wire

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

MOST_BODY: Final = 64 * 1024 * 1024  # 5,000 whole nodes; of names alone a thousandth of it
MAY_ASK: Final = "fallow.may_ask"  # in the scope: the connection's owner showed who they are
_VERBS: Final = ("/filter", "/prioritize", "/bind")


class ExtenderApp:
    """`why_not_ready`: reasons; none: ready."""

    def __init__(
        self, asked: advice.Advisor, metrics: telemetry.Telemetry, why_not_ready: Callable[[], list[str]]
    ) -> None:
        self._advisor, self._metrics, self._probes = asked, metrics, probes.Probes(metrics, why_not_ready)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path: str = scope["path"]
        if path in _VERBS:
            await self._take(path, scope, receive, send)
            return
        probe = self._probes.answer(path)
        await _answer(send, *(probe or (404, b"there is nothing here\n")))

    async def _take(self, path: str, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if not scope.get(MAY_ASK):
            await _answer(send, 403, b"only a scheduler that shows its certificate is answered\n")
            return
        if scope["method"] != "POST":
            await _answer(send, 405, b"only POST\n")
            return
        body = await _read(receive)
        if body is None:
            await _answer(send, 413, b"the question is too large\n")
            return
        began = time.perf_counter()
        try:
            answer = await self._find_answer(path, body)
        except wire.UNREADABLE as problem:
            self._metrics.add("gpu_autoscaler_packing_fallback_total", 1, ("UnreadableQuestion",))
            said = str(problem).encode("utf-8", "replace")[:300]
            await _answer(send, 400, b"the question cannot be read: " + said + b"\n")
            return
        self._metrics.observe(f"gpu_autoscaler_packing_{path[1:]}_duration_seconds", time.perf_counter() - began)
        await _answer(send, 200, answer, probes.JSON)

    async def _find_answer(self, path: str, body: bytes) -> bytes:
        if path == "/bind":
            return await self._advisor.bind(body)
        return self._advisor.filter(body) if path == "/filter" else self._advisor.prioritize(body)


async def _read(receive: Receive) -> bytes | None:
    """None: it is too large."""
    parts, size, more = list[bytes](), 0, True
    while more and size <= MOST_BODY:
        message = await receive()
        parts.append(message.get("body", b""))
        size, more = size + len(parts[-1]), bool(message.get("more_body"))
    return b"".join(parts) if size <= MOST_BODY else None


async def _answer(send: Send, status: int, body: bytes, content_type: bytes = probes.TEXT) -> None:
    headers = [(b"content-type", content_type), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
