"""Is a record one that a pause of ours can have written? Whoever may annotate a workload can write one.

In: the workload as it was just read, with what its record names. Out: what in the record is somebody else's hand, in a
phrase; None: nothing. Pure.
Invariant: a record restores only what the row of its kind writes, with values that can have stood there, on this object
and on companions that really steer it.
"""

from collections.abc import Collection, Iterator

from fallow import names
from fallow.act.workloads import bodies
from fallow.model import cluster, kinds, record
from fallow.model.seen import sure


def find_fault(
    row: kinds.Kind, workload: cluster.Workload, found: record.Record, schedules: Collection[cluster.Companion]
) -> str | None:
    """`schedules`: what exists of the CronJobs that it names."""
    return kinds.find_fault(row, found) or next(_find_faults(workload, found, schedules), None)


def _find_faults(
    workload: cluster.Workload, found: record.Record, schedules: Collection[cluster.Companion]
) -> Iterator[str]:
    there = (*sure(workload.scaled_objects), *schedules)
    for companion in found.companions:
        ref = bodies.read_name(companion, workload.ref.namespace)
        same = [each for each in there if (each.ref.group, each.ref.short) == (ref.group, ref.short)]
        if not _is_known(ref) or not all(_steers(each, workload) for each in same):
            yield f"{ref.short}, which does not steer it"
        for each in same:
            kept = record.read(each.annotations.get(names.ORIGINAL_STATE))
            if kept and (fault := kinds.find_fault(_row_of(ref), kept)):
                yield f"{ref.short}, whose own names {fault}"


def _is_known(ref: cluster.Ref) -> bool:
    return bodies.is_of(kinds.SCALED_OBJECT, ref) or bodies.is_of(kinds.CRON_JOB, ref)


def _row_of(ref: cluster.Ref) -> kinds.Kind:
    return kinds.SCALED_OBJECT if bodies.is_of(kinds.SCALED_OBJECT, ref) else kinds.CRON_JOB


def _steers(companion: cluster.Companion, workload: cluster.Workload) -> bool:
    if companion in kinds.scalers(workload):
        return True
    above = kinds.find_schedule(workload)
    return above is not None and above.uid == companion.ref.uid
