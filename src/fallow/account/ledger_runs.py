"""What the ledger tells of pods: which of them we made share a GPU, and how long those ran that are over.

In: one read transaction. Out: uids; PastRuns, the last first.
Invariant: a run whose beginning nobody saw is none, and neither is one that goes on. Use that was measured in less than
four fifths of the time is not known. The ledger keeps no image, CPU or memory of a pod: a Task has none of them.
"""

from collections.abc import Collection
from typing import Final

from fallow.account import ledger_read
from fallow.account.ledger_stored import read_listed
from fallow.account.schema import questions
from fallow.clients.database.session import SqlSession
from fallow.model.cost import DAY, WHOLE, CostKey, Second
from fallow.model.runs import PastRun, Task, name_owner

_MEASURED: Final = 0.8  # of the time


def read_shared(on: SqlSession, uids: Collection[str]) -> frozenset[str]:
    return frozenset(uid for (uid,) in read_listed(on, questions.SHARED_PODS, list(uids)))


def read_runs(on: SqlSession, names: ledger_read.NameBook, begin: Second, most: int) -> list[PastRun]:
    """Of pods that came after `begin`, which is taken to its day, and after the books began."""
    begin, began = begin // DAY * DAY, ledger_read.read_began(on)
    if began is None:
        return []
    rows = on.rows(questions.RUNS, (begin // DAY, begin, max(begin, began), most))
    names.read_keys(on, {row[1] for row in rows})
    return [_make_run(names.keys[key], *figures) for _, key, *figures in rows]


def _make_run(
    key: CostKey, parts: int, t0: Second, t1: Second, held: Second, measured: Second, used: int
) -> PastRun:
    task = Task(
        owner=name_owner(key.namespace, key.owner_kind, key.owner_name), namespace=key.namespace,
        work_class=key.workload_type, gpus=parts, begins_at=float(t0),
    )
    is_known = measured > 0 and measured >= _MEASURED * held
    return PastRun(task=task, minutes=(t1 - t0) / 60, use=used / measured / WHOLE if is_known else None)
