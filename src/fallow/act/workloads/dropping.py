"""Before the record of a pause goes: is that pause really over? The eyes may be late, and the record is the way back.

In: a Mark that takes a record away. Out: None, and the Mark may be written; or an Outcome, and the record stays. What
was paused along with the workload and did not come back with it, its CronJob, comes back first.
Invariant: no record goes while its pause stands on any object, read at this moment.
"""

from fallow import names
from fallow.act.sending import PatchWriter
from fallow.act.workloads import rereading, resuming
from fallow.model import decision, marks
from fallow.model.decision import Outcome, Status
from fallow.model.units import Instant


async def prepare(writer: PatchWriter, mark: decision.Mark, now: Instant) -> Outcome | None:
    workload = await rereading.reread(writer, mark.workload)
    if not marks.is_over(workload):
        because = f"{workload.ref.short} still stands paused: its record stays"
        return Outcome(mark, Status.overtaken, now, because)
    if by := mark.changes.get(names.RESUMED_BY):  # others brought it back
        await resuming.resume_schedules(writer, workload, now, by)
    return None
