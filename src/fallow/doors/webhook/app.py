"""The paths of the webhook, as a bare ASGI application: nothing between a review and its answer that costs time.

POST /validate-v1-pod-budget, /mutate-v1-pod-budget and /mutate-v1-pod (sharing), as the API server asks; GET /healthz;
/readyz, which says why not; /metrics. A body that is too large, or of which no uid can be read, is a 413 or 400; the
API server's failurePolicy then decides, and ours is Ignore.
"""

import time
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec

from fallow import names, telemetry
from fallow.doors.webhook import judging, sharing
from fallow.model.policies.budget import EnforcementMode

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

MOST_BODY: Final = 3 * 1024 * 1024  # a pod is at most as large as what etcd takes
_JSON, _TEXT = b"application/json", b"text/plain; charset=utf-8"
_MODES: Final = {names.VALIDATE_PATH: EnforcementMode.block, names.MUTATE_PATH: EnforcementMode.throttle}
Answering: TypeAlias = Callable[[bytes], Awaitable[judging.Reviewed | sharing.ShareAnswer]]


class App:
    """`why_not_ready`: reasons; none: ready."""

    def __init__(
        self, judge: judging.Judge, sharer: sharing.ShareJudge, metrics: telemetry.Telemetry,
        why_not_ready: Callable[[], list[str]],
    ) -> None:
        self._metrics, self._why_not_ready = metrics, why_not_ready
        self._answers: dict[str, Answering] = {
            **{path: partial(judge.judge, mode=mode) for path, mode in _MODES.items()}, names.SHARE_PATH: sharer.judge,
        }

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        method, path = scope["method"], scope["path"]
        answer = self._answers.get(path)
        if answer is not None and method == "POST":
            await self._review(answer, receive, send)
        elif answer is not None:
            await _answer(send, 405, b"only POST\n", _TEXT)
        elif path == "/healthz":
            await _answer(send, 200, b"ok", _TEXT)
        elif path == "/readyz":
            why = self._why_not_ready()
            body = msgspec.json.encode({"reasons": why}) if why else b"ok"
            await _answer(send, 503 if why else 200, body, _JSON if why else _TEXT)
        elif path == "/metrics":
            await _answer(send, 200, self._metrics.text(), b"text/plain; version=0.0.4; charset=utf-8")
        else:
            await _answer(send, 404, b"there is nothing here\n", _TEXT)

    async def _review(self, answer: Answering, receive: Receive, send: Send) -> None:
        began, body = time.perf_counter(), await _read(receive)
        if body is None:
            await _answer(send, 413, b"the review is too large\n", _TEXT)
            return
        try:
            judged = await answer(body)
        except (msgspec.DecodeError, RecursionError):
            self._count("error", "Unreadable")
            await _answer(send, 400, b"the review has no uid that can be read\n", _TEXT)
            return
        await _answer(send, 200, judged.body, _JSON)
        self._count(judged.outcome, judged.reason)
        self._metrics.observe("gpu_autoscaler_webhook_duration_seconds", time.perf_counter() - began)

    def _count(self, outcome: str, reason: str) -> None:
        self._metrics.add("gpu_autoscaler_webhook_requests_total", 1, (outcome, reason))


async def _read(receive: Receive) -> bytes | None:
    """None: it is too large."""
    message = await receive()
    body: bytes = message.get("body", b"")
    if not message.get("more_body"):
        return body if len(body) <= MOST_BODY else None
    parts, size = [body], len(body)
    while message.get("more_body") and size <= MOST_BODY:
        message = await receive()
        parts.append(message.get("body", b""))
        size += len(parts[-1])
    return b"".join(parts) if size <= MOST_BODY else None


async def _answer(send: Send, status: int, body: bytes, content_type: bytes) -> None:
    headers = [(b"content-type", content_type), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
