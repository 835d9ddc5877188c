"""The paths of the webhook: a request in, an answer out, at once wherever nobody else has to be asked.

POST /validate-v1-pod-budget, /mutate-v1-pod-budget and /mutate-v1-pod (sharing), as the API server asks; GET /healthz;
/readyz, which says why not; /metrics. A body of which no uid can be read is a 400; the API server's failurePolicy then
decides, and ours is Ignore.
"""

import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeAlias

from fallow import names, telemetry
from fallow.doors import probes
from fallow.doors.webhook import judging, reviews, sharing
from fallow.doors.webhook.wire import WireAnswer
from fallow.model.policies.budget import EnforcementMode

_MODES: Final = {names.VALIDATE_PATH: EnforcementMode.block, names.MUTATE_PATH: EnforcementMode.throttle}
Judged: TypeAlias = judging.Reviewed | sharing.ShareAnswer
Reviewer: TypeAlias = Callable[[bytes], Judged | Coroutine[Any, Any, Judged]]


class App:
    """`why_not_ready`: reasons; none: ready."""

    def __init__(
        self, judge: judging.Judge, sharer: sharing.ShareJudge, metrics: telemetry.Telemetry,
        why_not_ready: Callable[[], list[str]],
    ) -> None:
        self._metrics, self._probes = metrics, probes.Probes(metrics, why_not_ready)
        self._judges: dict[str, Reviewer] = {
            **{path: partial(judge.judge, mode=mode) for path, mode in _MODES.items()}, names.SHARE_PATH: sharer.judge,
        }

    def answer(self, method: str, path: str, body: bytes) -> WireAnswer | Coroutine[Any, Any, WireAnswer]:
        judge = self._judges.get(path)
        if judge is not None:
            return self._review(judge, body) if method == "POST" else WireAnswer(405, b"only POST\n")
        probe = self._probes.answer(path)
        return WireAnswer(404, b"there is nothing here\n") if probe is None else WireAnswer(*probe)

    def _review(self, judge: Reviewer, body: bytes) -> WireAnswer | Coroutine[Any, Any, WireAnswer]:
        began = time.perf_counter()
        try:
            judged = judge(body)
        except reviews.UNREADABLE:
            return self._refuse()
        return self._tell(judged, began) if isinstance(judged, Judged) else self._wait(judged, began)

    async def _wait(self, coming: Coroutine[Any, Any, Judged], began: float) -> WireAnswer:
        try:
            return self._tell(await coming, began)
        except reviews.UNREADABLE:
            return self._refuse()

    def _refuse(self) -> WireAnswer:
        self._count("error", "Unreadable")
        return WireAnswer(400, b"the review has no uid that can be read\n")

    def _tell(self, judged: Judged, began: float) -> WireAnswer:
        self._count(judged.outcome, judged.reason)
        self._metrics.observe("gpu_autoscaler_webhook_duration_seconds", time.perf_counter() - began)
        return WireAnswer(200, judged.body, probes.JSON)

    def _count(self, outcome: str, reason: str) -> None:
        self._metrics.add("gpu_autoscaler_webhook_requests_total", 1, (outcome, reason))
