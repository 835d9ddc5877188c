"""What was measured of an hour that is over, onto the intervals of that hour.

In: a Book, HourReadings. Out: final uses and energies in it. It may be done again, and late, until the hour is settled.
A GPU that we named ourselves has the measurements of those of its node that nobody booked by name, in their order.
What a GPU in parts draws when it does nothing is theirs who held a part, each by that, and the platform's for the rest;
what it drew beyond is theirs who worked.
Invariant: of a part of a GPU only what the pod's own processes did is use; energy is divided and never counted twice.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from fallow.account.intervals import Book
from fallow.account.timeline import NOBODY, WHOEVER, Gpu, Holding, is_invented
from fallow.model import cost, usage
from fallow.model.cost import HOUR, WHOLE, Micro, Second, Sharing

_WHOLE_OR_CUT: Final = (Sharing.exclusive, Sharing.mig)
_Named = tuple[str, str]  # namespace and name of a pod


def apply(book: Book, hour: Second, readings: Iterable[usage.HourReading]) -> None:
    by_board: dict[str, list[usage.HourReading]] = {}
    nodes: dict[str, set[str]] = {}
    for one in readings:
        board = one.board
        by_board.setdefault(board, []).append(one)
        if one.node and board not in book.gpus:
            nodes.setdefault(one.node, set()).add(board)
    left = {node: sorted(boards) for node, boards in nodes.items()}
    for gpu in sorted(book.gpus.values(), key=lambda each: each.name):
        if gpu.begin < hour + HOUR and (gpu.end is None or gpu.end > hour):
            found = by_board.get(gpu.name)
            if found is None and is_invented(gpu.name) and left.get(gpu.grounds.last.key.node):
                found = by_board[left[gpu.grounds.last.key.node].pop(0)]
            if found:
                _apply(book, gpu, hour, found)


def _apply(book: Book, gpu: Gpu, hour: Second, found: list[usage.HourReading]) -> None:
    by_pod: dict[_Named, list[usage.HourReading]] = {}
    for one in found:
        by_pod.setdefault((one.namespace, one.pod), []).append(one)
    held = [each for each in gpu.holdings if each.overlaps(hour, hour + HOUR)]
    for holding in held:
        use = _find_use(holding, by_pod, is_alone=len(held) == 1)
        if use is not None:
            book.measure(holding, hour, use, is_final=True)
    energy = _find_energy(gpu, hour, held, by_pod)
    if energy:
        book.burn(gpu, hour, energy)


def _find_use(
    holding: Holding, by_pod: Mapping[_Named, list[usage.HourReading]], *, is_alone: bool
) -> Micro | None:
    work = _find_work(holding, by_pod, is_alone=is_alone)
    return None if work is None else min(WHOLE, work)


def _find_work(
    holding: Holding, by_pod: Mapping[_Named, list[usage.HourReading]], *, is_alone: bool
) -> Micro | None:
    """By what it holds: more than all of that, where nothing keeps it to its part. What names no pod is of who holds
    the whole GPU; of instances only where there is nobody else's."""
    face = holding.faces.last
    own = by_pod.get((face.key.namespace, holding.pod_name), [])
    if face.key.sharing in _WHOLE_OR_CUT:
        nameless = by_pod.get(("", ""), []) if is_alone or face.key.sharing is Sharing.exclusive else []
        uses = [use for one in own or nameless if (use := _first(one.use, one.own_use)) is not None]
        return round(sum(uses) / len(uses) * WHOLE) if uses else None
    parts = [one.own_use for one in own if one.own_use is not None]
    return round(max(parts) * WHOLE * WHOLE / face.share) if parts else None


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def _find_energy(
    gpu: Gpu, hour: Second, held: list[Holding], by_pod: Mapping[_Named, list[usage.HourReading]]
) -> dict[str, int]:
    """Millijoules by pod. Of a GPU in parts each series tells of all of it, whomever it names."""
    if any(each.faces.last.key.sharing is not Sharing.exclusive for each in held):
        found = [one for several in by_pod.values() for one in several]
        whole = [mj for one in found if (mj := _energy_of(one, HOUR)) is not None]
        there = min(gpu.end or hour + HOUR, hour + HOUR) - max(gpu.begin, hour)
        floors = [round(one.floor_watts * there * 1000) for one in found if one.floor_watts is not None]
        works = _find_works(hour, held, by_pod) if floors else {}
        return _divide_energy(max(whole), max(floors, default=0), works) if whole else {}
    seconds = {each.pod_uid: _seconds_in(each, hour) for each in held}
    uids = {(each.faces.last.key.namespace, each.pod_name): each.pod_uid for each in held}
    free, energy = max(0, HOUR - sum(seconds.values())), dict[str, int]()
    for named, several in by_pod.items():
        uid = uids.get(named, NOBODY if free or len(uids) != 1 else next(iter(uids.values())))
        parts = [mj for one in several if (mj := _energy_of(one, seconds.get(uid, free))) is not None]
        if parts:
            energy[uid] = energy.get(uid, 0) + max(parts)
    return energy


def _find_works(
    hour: Second, held: list[Holding], by_pod: Mapping[_Named, list[usage.HourReading]]
) -> dict[str, int]:
    """By pod, how much of the GPU it kept busy and for how long; nothing where that of somebody is not known."""
    found = dict[str, int]()
    for each in held:
        work = _find_work(each, by_pod, is_alone=len(held) == 1)
        if work is None:
            return {}
        weight = work * each.faces.last.share * _seconds_in(each, hour)
        found[each.pod_uid] = found.get(each.pod_uid, 0) + weight
    return found


def _divide_energy(whole: int, floor: int, works: Mapping[str, int]) -> dict[str, int]:
    """What is WHOEVER's is divided by share and time. All of it is, where nobody is known to have worked."""
    if not any(works.values()):
        return {WHOEVER: whole}
    rest = min(whole, floor)
    active = cost.divide(whole - rest, tuple(works.values()))
    return {WHOEVER: rest, **dict(zip(works, active, strict=True))}


def _energy_of(one: usage.HourReading, seconds: Second) -> int | None:
    if one.energy_mj is not None:
        return round(one.energy_mj)
    return None if one.watts is None else round(one.watts * seconds * 1000)


def _seconds_in(holding: Holding, hour: Second) -> Second:
    end = hour + HOUR if holding.end is None else min(holding.end, hour + HOUR)
    return max(0, end - max(holding.begin, hour))
