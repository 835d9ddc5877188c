"""The end of a cycle, told to live pages: the rows that changed, and the cycle's own figures.

In: editions. Out: batches to the hub, at most one a second and only while somebody listens.
Invariant: a row that only grew older is not sent again: pages count the time themselves.
"""

import asyncio
from typing import Any

import msgspec

from fallow.doors import answers
from fallow.doors.answers import overview
from fallow.doors.answers import rows as telling
from fallow.doors.api import editions, events
from fallow.model.units import Seconds

_EVERY: Seconds = 1.0


class LiveTeller:
    def __init__(self, latest: editions.Editions, changes: events.Changes) -> None:
        self._editions, self._changes = latest, changes
        self._sent: editions.Edition | None = None
        self._rows: dict[str, telling.ApiRow] = {}  # as they were, without what changes by itself

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_EVERY)
            if self._changes.listeners:
                await self.tell()

    async def tell(self) -> None:
        edition = await self._editions.latest()
        if edition is None or edition is self._sent:
            return
        still = {row.uid: msgspec.structs.replace(row, revision=0, idle_seconds=None) for row in edition.rows}
        changed = [uid for uid, row in still.items() if self._rows.get(uid) != row]
        rows: list[events.Event] = [("workload", edition.by_uid[uid]) for uid in changed]
        left = self._rows.keys() - still.keys()
        gone: list[events.Event] = [("workload", {"uid": uid, "gone": True}) for uid in left]
        self._changes.publish([*rows, *gone, ("cycle", self._describe(edition))], edition.revision)
        self._sent, self._rows = edition, still

    def _describe(self, edition: editions.Edition) -> dict[str, Any]:
        return {
            "revision": edition.revision, "asOf": answers.instant(edition.plan.at), "counts": edition.counts,
            "gpus": edition.gpus, "frozen": overview.tell_freeze(edition.plan), "failure": self._editions.failure,
        }
