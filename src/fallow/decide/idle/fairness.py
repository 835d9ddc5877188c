"""Who comes first where not all fit into one cycle: all that is written but pauses, which have caps (brakes.py).

In: decisions, or the workloads they will be about, and what was tried in vain. Out: those for this cycle, in order;
what is remembered of those that failed.
Invariant: no namespace, and nothing that always fails, holds up the others for ever: tenants can write marks that
nobody can put in order, by the thousand.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar

from fallow.model import cluster, decision, long_memory
from fallow.model.decision import Decision, Outcome, Status, Tried, Vain
from fallow.model.units import HOUR, MINUTE, Instant

MOST_WAIT: Final = 10 * MINUTE  # before a way back is tried again: somebody waits

T = TypeVar("T")
Vains: TypeAlias = Mapping[Tried, Vain]


def choose(ones: Sequence[T], most: int, who: Callable[[T], tuple[str, Instant]]) -> list[T]:
    """The first of each namespace, then the second of each, and so on; in each those last that failed last. `who`: the
    namespace, and until when it stands back."""
    known, rounds = [who(one) for one in ones], Counter[str]()
    places = list[tuple[int, Instant, int]]()
    for index in sorted(range(len(ones)), key=lambda index: known[index][1]):
        namespace, until = known[index]
        places.append((rounds[namespace], until, index))
        rounds[namespace] += 1
    return [ones[index] for _, _, index in sorted(places)[:most]]


def choose_acts(acts: Sequence[Decision], most: int, vain: Vains) -> list[Decision]:
    return choose(acts, most, lambda each: stand_back(vain, type(each), decision.workload_of(each)))


def stand_back(vain: Vains, act: type[Decision], workload: cluster.Workload | None) -> tuple[str, Instant]:
    """Its namespace, and until when others go before it; 0: it did not fail."""
    if workload is None:
        return "", 0.0
    failed = vain.get(Tried(act.__name__, workload.ref.uid))
    return workload.ref.namespace, failed.until if failed else 0.0


def waits(vain: Vains, back: decision.Resume | decision.Undo, now: Instant) -> bool:
    """A way back that failed, and of which nothing has changed since: whoever mends it need not wait."""
    failed = vain.get(Tried(type(back).__name__, back.workload.ref.uid))
    return failed is not None and failed.version == back.workload.resource_version and now < failed.until


def note(vain: Vains, outcomes: Iterable[Outcome], now: Instant) -> dict[Tried, Vain]:
    """With what failed once more, without what succeeded. Alerts never fail, and pauses have their own memory."""
    noted = dict(vain)
    for each in outcomes:
        workload, act = decision.workload_of(each.decision), type(each.decision)
        if workload is None or act in (decision.Pause, decision.Alert) or each.code is decision.Code.NotBegun:
            continue
        before = noted.pop(tried := Tried(act.__name__, workload.ref.uid), None)
        if each.status not in (Status.done, Status.dry_run):
            count = before.count + 1 if before else 1
            pause = 0.0 if each.status is Status.overtaken else long_memory.back_off(count, MOST_WAIT)
            noted[tried] = Vain(count, now + pause, workload.resource_version)
    return noted


def recall(vain: Vains, now: Instant) -> dict[Tried, Vain]:
    """What still counts; nothing from a future that our clock does not know any more."""
    return {
        tried: each for tried, each in vain.items() if long_memory.is_within(each.until - MOST_WAIT, now, 2 * HOUR)
    }
