"""What rests on the audit, asked of the leader: a follower decides nothing, so its own audit is nearly empty, and that
would look like an answer.

In: a request that this replica may answer and cannot. Out: the leader's answer as it is; or Denied (503), one sentence.
Where the leader is, the API server says: the address of the pod that holds the Lease. Nobody who can only write the
Lease has people's credentials sent to a place of their own.
Invariant: a request is passed on once: two replicas that both follow do not ask each other for ever.
"""

from collections.abc import Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from fallow import names
from fallow.clients import errors, replicas
from fallow.clients.kubernetes import api as kube
from fallow.doors.api import limits
from fallow.doors.api.refusals import JSON, Denied
from fallow.model.units import Seconds
from fallow.stories.turn import Clock

PASSED_ON: Final = "X-Fallow-Passed-On"
_REMEMBERED: Final[Seconds] = 15.0  # as long as a Lease lasts
# Who asks, as they showed it to us, and what they have already.
_PASSED: Final = ("Authorization", names.RELAYED_AUTHORIZATION, "Cookie", "If-None-Match", "X-Forwarded-User",
                  "X-Forwarded-Groups")
_KEPT: Final = ("etag", "cache-control", "vary", "retry-after")
_WHY: Final = "this rests on what the leader wrote down"


class LeaderDoor:
    """`holder`: who leads, as the Lease names it; `namespace`: ours; `port`: where all replicas serve."""

    def __init__(
        self, api: kube.Api, ask: replicas.Replicas, *, holder: Callable[[], str | None], namespace: str, port: int,
        monotonic: Clock,
    ) -> None:
        self._api, self._replicas, self._holder = api, ask, holder
        self._namespace, self._port, self._monotonic = namespace, port, monotonic
        self._known: limits.Remembered[str, str] = limits.Remembered(_REMEMBERED, most=10)

    async def answer(self, request: Request) -> Response:
        holder = self._holder()
        if not holder or PASSED_ON in request.headers:
            raise _away(f"{_WHY}, and nobody leads at this moment")
        given = {name: request.headers[name] for name in _PASSED if name in request.headers}
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        try:
            address = await self._find(holder)
            found = await self._replicas.get(address, path, {**given, PASSED_ON: "1", "Accept-Encoding": "identity"})
        except errors.ClientError as problem:
            raise _away(f"{_WHY}, and {holder}, which leads, cannot be asked: {problem}") from None
        if found.status in (401, 403):
            how = "ask it directly, or give all replicas the same --session-key-file"
            raise _away(f"{_WHY}, and {holder}, which leads, does not know you by what you showed here; {how}")
        headers = {name: found.headers[name] for name in _KEPT if name in found.headers}
        return Response(found.body, found.status, headers, found.headers.get("content-type", JSON))

    async def _find(self, holder: str) -> str:
        if (known := self._known.get(holder, self._monotonic())) is not None:
            return known
        found: dict[str, Any] = await self._api.get(kube.PODS, self._namespace, holder)
        host = str((found.get("status") or {}).get("podIP") or "")
        if not host:
            raise errors.NotFound(404, f"its pod {self._namespace}/{holder} has no address")
        address = f"http://[{host}]:{self._port}" if ":" in host else f"http://{host}:{self._port}"
        self._known.put(holder, address, self._monotonic())
        return address


def _away(sentence: str) -> Denied:
    return Denied(503, "NotLeading", sentence, retry_after=5)
