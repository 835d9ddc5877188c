"""The end of a cycle, told to live pages: the rows that changed, and the cycle's own figures.

In: editions. Out: batches to the hub, at most one a second and only while somebody listens.
Invariant: a row that only grew older is not sent again: pages count the time themselves. A cycle that cannot be told,
because something is as nobody foresaw it, does not end the daemon.
"""

import asyncio
import logging
from typing import Any

import msgspec

from fallow.doors import answers
from fallow.doors.answers import overview
from fallow.doors.answers import rows as telling
from fallow.doors.api import editions, events
from fallow.model import units
from fallow.model.units import Seconds

log = logging.getLogger(__name__)

_EVERY: Seconds = 1.0


class LiveTeller:
    def __init__(self, latest: editions.Editions, changes: events.Changes, every: Seconds = _EVERY) -> None:
        self._editions, self._changes, self._every = latest, changes, every
        self._sent: editions.Edition | None = None
        self._rows: dict[str, telling.ApiRow] = {}  # as they were, without what changes by itself

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._every)
            if self._changes.listeners:
                try:
                    await self._tell()
                except Exception:  # a bug of this page: whoever asks for it is told so by its own request
                    log.exception("the last cycle could not be told to live pages")

    async def _tell(self) -> None:
        edition = await self._editions.latest()
        if edition is None or edition is self._sent:
            return
        self._sent = edition  # also where it cannot be told: it is no better a second later
        now = units.rfc3339(edition.plan.at)
        still = {row.uid: _without_time(row, now) for row in edition.rows}
        changed = [uid for uid, row in still.items() if self._rows.get(uid) != row]
        rows: list[events.Event] = [("workload", edition.by_uid[uid]) for uid in changed]
        left = self._rows.keys() - still.keys()
        gone: list[events.Event] = [("workload", {"uid": uid, "gone": True}) for uid in left]
        self._changes.publish([*rows, *gone, ("cycle", self._describe(edition))], edition.revision)
        self._rows = still

    def _describe(self, edition: editions.Edition) -> dict[str, Any]:
        return {
            "revision": edition.revision, "asOf": answers.instant(edition.plan.at), "counts": edition.counts,
            "gpus": edition.gpus, "frozen": overview.tell_freeze(edition.plan), "failure": self._editions.failure,
        }


def _without_time(row: telling.ApiRow, now: str) -> telling.ApiRow:
    """What a later look at the same state would say too: sentences tell for how long, what is due is due now, and what
    is kept costs more every minute."""
    step, keep = row.next, row.keep
    if step is not None:
        step = msgspec.structs.replace(step, at=None if step.at is None or step.at <= now else step.at, because="")
    if keep is not None:
        keep = msgspec.structs.replace(keep, idle_seconds=None, cost=None)
    return msgspec.structs.replace(
        row, revision=0, idle_seconds=None, because="", skip_because=None, next=step, keep=keep
    )
