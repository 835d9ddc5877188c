"""Says in a Lease which places the extender keeps and which it cannot, so that who moves pods knows that they are kept.

In: the Advisor; the namespace of the Lease. Out: an annotation of it, with the time by the API server's clock; one for
each process, because of two that are asked each may know what the other does not. The Lease is one of the manifests: it
is changed and never made. While there is nothing to say nothing is written.
Invariant: only a place that this process has seen, with room for whom it is meant, is said to be kept; a failure is
said once, and then nobody is moved.
"""

import asyncio
import logging
import secrets
from typing import Any, Final

from fallow import names
from fallow.clients import errors
from fallow.clients.kubernetes import api as kube
from fallow.doors.extender.advice import Advisor
from fallow.model import moving
from fallow.model.seen import Known
from fallow.model.units import HOUR, Instant, Seconds

log = logging.getLogger("fallow")

LOOK_EVERY: Final[Seconds] = 1.0
SAY_EVERY: Final[Seconds] = 15.0  # while there is anything to say; a minute old it is not believed


class Herald:
    def __init__(self, advisor: Advisor, api: kube.Api, namespace: str) -> None:
        self._advisor, self._api, self._namespace = advisor, api, namespace
        self._key = f"{names.PLACES_KEPT}{secrets.token_hex(4)}"
        self._said: dict[str, bool] = {}
        self._said_at, self._complaint = float("-inf"), ""
        self._litter: list[str] = []  # what processes that ended have left

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self.look(loop.time())
            await asyncio.sleep(LOOK_EVERY)

    async def look(self, now: float) -> None:
        found = self._advisor.find_kept()
        if found == self._said and not (found and now - self._said_at >= SAY_EVERY):
            return
        try:
            await self._say(found)
        except errors.ClientError as problem:
            if str(problem) != self._complaint:
                log.warning("nobody is told which places are kept, so that no pod is moved: %s", problem)
            self._complaint = str(problem)
            return
        self._said, self._said_at, self._complaint = found, now, ""

    async def _say(self, found: dict[str, bool]) -> None:
        clock = self._api.clock
        if not isinstance(clock, Known):
            raise errors.BadAnswer("what time it is at the API server is not known")
        kept, refused = (tuple(sorted(name for name in found if found[name] is is_kept)) for is_kept in (True, False))
        said = moving.PlacesSaid(v=1, at=clock.value, kept=kept, refused=refused)
        annotations = {**dict.fromkeys(self._litter), self._key: moving.write(said) if found else None}
        made = await self._api.merge_patch(
            kube.LEASES, self._namespace, names.EXTENDER_LEASE, {"metadata": {"annotations": annotations}},
            field_manager=names.EXTENDER_LEASE,
        )
        self._litter = _find_litter(made["metadata"].get("annotations") or {}, clock.value)


def _find_litter(annotations: dict[str, Any], now: Instant) -> list[str]:
    """Nobody says it any more: an hour old, or what nobody of ours wrote."""
    said = {key: moving.read_said(text) for key, text in annotations.items() if key.startswith(names.PLACES_KEPT)}
    return [key for key, each in said.items() if each is None or abs(now - each.at) > HOUR]
