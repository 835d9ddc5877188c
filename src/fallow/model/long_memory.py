"""What we must remember although the process ends: it stands on our own Lease, where no tenant can write.

In: the annotations of the Lease. Out: what they say, and what is to be written there. Everything is bounded.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from fallow import names
from fallow.model import cluster

MOST_KINDS: Final = 64


def read_kinds(annotations: Mapping[str, str]) -> tuple[tuple[str, str, str], ...]:
    """(group, version, kind) of each kind outside the table that we ever paused, oldest first."""
    found = (text.split("/") for text in annotations.get(names.PAUSED_KINDS, "").split())
    return tuple((parts[0], parts[1], parts[2]) for parts in found if len(parts) == 3)


def add_kinds(annotations: Mapping[str, str], paused: Iterable[cluster.Ref]) -> dict[str, str]:
    """The change that makes the Lease name the kinds of these objects too; nothing where it does."""
    known = read_kinds(annotations)
    every = tuple(dict.fromkeys((*known, *((ref.group, ref.version, ref.kind) for ref in paused))))
    if every == known:
        return {}
    return {names.PAUSED_KINDS: " ".join("/".join(each) for each in every[-MOST_KINDS:])}
