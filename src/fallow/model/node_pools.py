"""A NodePool of Karpenter, as far as a budget may hold it: what it makes, what it has, its limits, and our record.

In: annotations and limits as they stand. Out: PoolSeen, PoolRecord; `find_way_back`, what of its spec gives it back.
Invariant: of a NodePool only the limit of GPUs is ever ours. The record has all limits as they were; where the limit of
GPUs is not the one that we wrote any more, somebody else's stays.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from fallow import names
from fallow.model.cost import CapacityType

Limits = Mapping[str, str | int]


class PoolSeen(msgspec.Struct, frozen=True, kw_only=True):
    """`tiers`: how what it makes may be paid; None: it does not say, or not in a way that is known. `gpus`: that it has
    now; None: not known. `is_fixed`: it keeps a number of nodes, and takes no limit of GPUs. `record`: as it stands."""

    name: str
    uid: str
    version: str
    tiers: frozenset[CapacityType] | None = None
    limits: Limits | None = None
    gpus: int | None = None
    is_fixed: bool = False
    record: str | None = None


class PoolRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`limits`: as they were; None: there were none. `gpus`: the limit that we wrote. `since`: RFC 3339."""

    limits: dict[str, str | int] | None
    gpus: str
    budgets: tuple[str, ...]
    since: str


_RECORD: Final = msgspec.json.Decoder(PoolRecord)


def write(record: PoolRecord) -> str:
    return msgspec.json.encode(record).decode()


def read(text: str) -> PoolRecord | None:
    """None: it cannot be read, and then nobody knows what was there before."""
    try:
        return _RECORD.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None


def find_way_back(record: PoolRecord, limits: Limits | None) -> Mapping[str, Any]:
    """Of its spec, as a merge patch has it; nothing: somebody else changed the limit of GPUs, and theirs stays.
    `limits`: as they are now. What others changed of the rest stays, too."""
    standing = (limits or {}).get(names.GPU)
    if standing is None or str(standing) != record.gpus:
        return {}
    if record.limits is None and set(limits or {}) == {names.GPU}:
        return {"limits": None}
    return {"limits": {names.GPU: (record.limits or {}).get(names.GPU)}}
