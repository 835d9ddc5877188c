"""The kinds outside the table that we ever paused, on the Lease: what is paused must be found when no pod names it.

In: the Lease. Out: `known`, for the eyes, which follow those kinds too; `keep`, before a pause.
Invariant: a kind is on the Lease before anything of it is paused; where it cannot be written down nothing is paused.
The list is bounded: the kind paused first is forgotten first (commands still find it by discovery).
"""

from collections.abc import Mapping

import msgspec

from fallow import names
from fallow.clients.kubernetes import lease
from fallow.model import cluster, kinds

MOST_KINDS = 50


class KeptKinds:
    def __init__(self, on: lease.Leadership) -> None:
        self._lease = on

    def known(self) -> tuple[kinds.Key, ...]:
        return read(self._lease.annotations)

    async def keep(self, ref: cluster.Ref) -> None:
        """Raises what the wire does wrong."""
        key, known = (ref.group, ref.kind), self.known()
        if kinds.find(*key) is None and key not in known:
            text = msgspec.json.encode([*known, key][-MOST_KINDS:]).decode()
            await self._lease.annotate({names.PAUSED_KINDS: text})


def read(annotations: Mapping[str, str]) -> tuple[kinds.Key, ...]:
    """What cannot be read is nothing: the list only adds to what is looked at."""
    try:
        return msgspec.json.decode(annotations.get(names.PAUSED_KINDS, "[]"), type=tuple[kinds.Key, ...])[-MOST_KINDS:]
    except msgspec.DecodeError:
        return ()
