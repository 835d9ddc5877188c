"""Who waits in Kueue for GPUs: Workloads that are not admitted, with what their pods would ask for.

In: Kueue's Workloads as they are followed. Out: a Waiting for each set of pods that asks for GPUs.
Invariant: only what surely waits for room counts: one that is stopped, has its quota and waits for something else, or
cannot be admitted at all does not, nor one of which Kueue has not said yet that it waits; what cannot be read neither.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from fallow.model import cluster, pointers, stops, units
from fallow.observe.cluster import objects, pods

# Room does not help it: its queue does not exist or is stopped, has no such flavour, or can never have as much. All but
# the first are told only where UnadmittedWorkloadsObservability is on; without it such a one waits as all others do.
_CANNOT: Final = frozenset({"Inadmissible", "ExceedsMaxQuota", "NoMatchingFlavor", "Misconfigured", "Suspended"})


def find_waiting(found: Iterable[objects.Seen], reader: pods.PodReader) -> tuple[cluster.Waiting, ...]:
    queued = ((seen, _waits_since(seen)) for seen in found)
    return tuple(one for seen, since in queued if since is not None for one in _ask(seen, reader, since))


def _waits_since(seen: objects.Seen) -> units.Instant | None:
    """Since when Kueue says that there is no quota for it."""
    over = any(stops.has_condition(seen.body, type_, "True") for type_ in ("Admitted", "QuotaReserved", "Finished"))
    if over or pointers.read(seen.body, "/spec/active") is False:
        return None
    said = pointers.read(seen.body, stops.CONDITIONS)
    lacks = [each for each in said or () if each.get("type") == "QuotaReserved" and each.get("reason") not in _CANNOT]
    return units.read_instant(lacks[0].get("lastTransitionTime")) if lacks else None


def _ask(seen: objects.Seen, reader: pods.PodReader, since: units.Instant) -> Iterator[cluster.Waiting]:
    sets = pointers.read(seen.body, "/spec/podSets")
    for one in sets if isinstance(sets, list) else ():
        count, template = pointers.read(one, "/count"), pointers.read(one, "/template/spec")
        with contextlib.suppress(msgspec.MsgspecError, AttributeError):  # of whatever shape somebody gave it
            is_counted = isinstance(count, int) and 0 < count <= pods.MOST_GPUS
            if is_counted and (found := reader.read_template(template or {}, count, since)) is not None:
                yield found
