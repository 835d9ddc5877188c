"""Which GPU of its node a pod's part is on: named by whoever measures it, else any that has room.

In: the GPUs of a node with all that is booked on them (timeline.Gpu), what a pod holds (shares.PhysicalUnit), from
when to when, and the names that are known of its GPUs. Out: a Seat. Names come minutes after a pod: then what was
booked elsewhere is moved, as far back as nothing is settled.
Invariant: who has a seat keeps it until a name says otherwise; where more is held than there is, the GPU is divided
among those who hold it, and `odd` says so.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction

import msgspec

from fallow.account.intervals import Book
from fallow.account.timeline import Face, Gpu, Ground, Holding, invent, is_invented
from fallow.model.cost import WHOLE, Micro, Second, Sharing
from fallow.model.shares import GpuSlot, PhysicalUnit

_ALL = (Fraction(0), Fraction(1))
_WHOLLY = (Sharing.exclusive, Sharing.mig, Sharing.timeslicing, Sharing.mps)  # where no slots are laid out


class Seat(msgspec.Struct, frozen=True):
    """A part of a GPU. `low`, `high`: where that part lies, where it is fixed. `until`: from then on it is taken."""

    gpu: Gpu
    slot: str
    share: Micro
    low: Fraction | None = None
    high: Fraction | None = None
    until: Second | None = None
    is_odd: bool = False  # there was no room

    def fit(self, face: Face) -> Face:
        return msgspec.structs.replace(face, share=self.share, low=self.low, high=self.high)


class Host:
    """The GPUs of one node. `slots`: of each, by its name; () = it is given as a whole or in parts as asked for."""

    def __init__(self, name: str, book: Book) -> None:
        self.name, self._book = name, book
        self.gpus: list[Gpu] = []
        self.slots: dict[str, tuple[GpuSlot, ...]] = {}
        self.groups: dict[str, str] = {}  # of reservations and claims -> GPU
        self.odd: dict[str, str] = {}  # by pod, what does not add up
        self.strays: list[tuple[Holding, PhysicalUnit]] = []  # for whom there was no room
        self.is_counted = False

    # ---- how many, and how they are divided ----

    def resize(
        self, layout: Sequence[tuple[GpuSlot, ...]], ground: Ground, begin: Second, now: Second,
        named: Sequence[str] = (),
    ) -> list[Holding]:
        """As many GPUs as the layout has, so divided, and called so where that is known. Those who lost their seats by
        it are given back, ended now."""
        self.is_counted, lost = True, list[Holding]()
        begin = now if self.gpus else begin
        free = [name for name in named if self._book.is_free(name)]
        while len(self.gpus) < len(layout):
            self._add(free.pop(0) if free else self._invent(), begin, ground)
        for gpu in self._choose_gone(len(self.gpus) - len(layout)):
            lost += [each for each in gpu.holdings if each.end is None]
            self._drop(gpu, now)
        for gpu, slots in zip(self.gpus, layout, strict=True):
            if self.slots[gpu.name] != slots:
                lost += self._recut(gpu, slots, now)
        return lost

    def _recut(self, gpu: Gpu, slots: tuple[GpuSlot, ...], now: Second) -> list[Holding]:
        self.slots[gpu.name] = slots
        lost = [each for each in gpu.holdings if each.end is None]
        for holding in lost:
            self._book.release(holding, now)
        return lost

    def _invent(self) -> str:
        taken = {gpu.name for gpu in self.gpus}
        return next(name for at in range(len(taken) + 1) if (name := invent(self.name, at)) not in taken)

    def _add(self, name: str, begin: Second, ground: Ground) -> Gpu:
        gpu = self._book.add(name, begin, ground)
        self.gpus.append(gpu)
        self.slots[name] = ()
        return gpu

    def _choose_gone(self, count: int) -> list[Gpu]:
        """Of those that are too many: the free ones first, and those that nobody ever named."""
        ranked = sorted(self.gpus, key=lambda gpu: (_is_held(gpu), not is_invented(gpu.name)))
        return ranked[: max(0, count)]

    def _drop(self, gpu: Gpu, now: Second) -> None:
        self._book.end_gpu(gpu, now)
        self.gpus.remove(gpu)
        del self.slots[gpu.name]

    def end(self, now: Second) -> None:
        for gpu in list(self.gpus):
            self._drop(gpu, now)

    def resumed(self, gpus: Iterable[Gpu]) -> None:
        """After a restart: as the ledger has them."""
        self.gpus = sorted(gpus, key=lambda gpu: gpu.name)
        self.slots = {gpu.name: () for gpu in self.gpus}
        self.is_counted = True

    def fit_again(self, layout: Sequence[tuple[GpuSlot, ...]], since: Second) -> None:
        """The layout to GPUs that were resumed: to each what fits the slots that are held on it."""
        left = list(layout)
        self.gpus.sort(key=lambda gpu: (not any(each.slot for each in gpu.holdings), gpu.name))
        for gpu in self.gpus:
            held = {each.slot for each in gpu.holdings if each.end is None and each.slot}
            fits = next((slots for slots in left if held <= {slot.name for slot in slots}), None)
            if fits is not None:
                left.remove(fits)
                self.slots[gpu.name] = fits
                self._fit_slots(gpu, {slot.name: slot for slot in fits}, since)
        order = {slots: at for at, slots in reversed(list(enumerate(layout)))}
        self.gpus.sort(key=lambda gpu: order.get(self.slots[gpu.name], len(order)))

    def _fit_slots(self, gpu: Gpu, slots: Mapping[str, GpuSlot], since: Second) -> None:
        """Of those too that have ended: their part of the rate is that of their slot."""
        for holding in gpu.holdings:
            slot = slots.get(holding.slot)
            is_same = slot is not None and holding.faces.last.share == slot.share
            if slot is not None and (is_same or holding.end is None):
                seat = Seat(gpu, slot.name, slot.share, slot.low, slot.high)
                self._book.face(holding, 0 if is_same else since, seat.fit)

    # ---- a seat ----

    def seat(
        self, unit: PhysicalUnit, begin: Second, end: Second | None, named: Sequence[str], ground: Ground,
        pod_uid: str,
    ) -> Seat:
        """Where a unit is from begin to end. A node of which nobody knows how many GPUs it has gets as many as are
        held."""
        wanted = {unit.device, self.groups.get(unit.group, ""), *named} - {""}
        ranked = sorted(self.gpus, key=lambda gpu: gpu.name not in wanted)
        for gpu in ranked:
            if (found := self._fit(gpu, unit, begin, end)) is not None:
                return self._remember(found, unit)
        parts = (self._fit_for_a_while(gpu, unit, begin, end) for gpu in ranked)
        if found := max(filter(None, parts), key=lambda seat: seat.until or 0, default=None):
            return found
        if not self.is_counted:
            gpu = self._add(self._invent(), begin, msgspec.structs.replace(ground, is_counted=False))
            return self._remember(Seat(gpu, *_part_of(unit, pod_uid)), unit)
        self.odd[pod_uid] = f"pods hold more than the {len(self.gpus)} GPUs of {self.name}"
        gpu = min(self.gpus, key=lambda each: _load(each, begin, end))
        return Seat(gpu, _roomless_slot(gpu, pod_uid), unit.micro, is_odd=True)

    def _remember(self, seat: Seat, unit: PhysicalUnit) -> Seat:
        if unit.group:
            self.groups[unit.group] = seat.gpu.name
        return seat

    def _fit(self, gpu: Gpu, unit: PhysicalUnit, begin: Second, end: Second | None) -> Seat | None:
        begin = max(begin, gpu.begin)
        beside = [each for each in gpu.holdings if each.overlaps(begin, end)]
        if slots := self.slots[gpu.name]:
            taken = {each.slot for each in beside}
            fits = (slot for slot in slots if slot.resource == unit.resource and slot.name not in taken)
            slot = next(fits, None)
            return None if slot is None else Seat(gpu, slot.name, slot.share, slot.low, slot.high)
        if unit.sharing in _WHOLLY:
            return None if beside else Seat(gpu, "", WHOLE, *_ALL)
        group = self.groups.get(unit.group)
        if group not in (None, gpu.name) or (unit.group and group is None and beside):
            return None  # a group is one GPU, and a GPU one group
        alike = all(each.faces.last.key.sharing is unit.sharing for each in beside)
        room = WHOLE - sum(each.faces.last.share for each in beside)
        if not alike or (room < unit.micro and not group):
            return None
        taken = {each.slot for each in beside}
        return Seat(gpu, next(str(at) for at in range(len(taken) + 1) if str(at) not in taken), unit.micro)

    def _fit_for_a_while(self, gpu: Gpu, unit: PhysicalUnit, begin: Second, end: Second | None) -> Seat | None:
        """What is known of others may leave no GPU free for all of the time, though one is free at each instant."""
        later = sorted({each.begin for each in gpu.holdings if each.overlaps(begin, end) and each.begin > begin})
        for until in reversed(later):
            if (found := self._fit(gpu, unit, begin, until)) is not None:
                return msgspec.structs.replace(found, until=until)
        return None

    def find_room(self) -> None:
        """For those who had none: that somebody else had ended may have been heard of since."""
        waiting, self.strays = sorted(self.strays, key=lambda each: each[0].begin), []
        for holding, _ in waiting:  # none of them is in another's way
            self._book.gpus[holding.gpu].holdings.remove(holding)
        for holding, unit in waiting:
            fits = (self._fit(gpu, unit, holding.begin, holding.end) for gpu in self.gpus)
            seat = next(filter(None, fits), None)
            self._book.gpus[holding.gpu].holdings.append(holding)
            if seat is not None:
                self._book.move(holding, seat.gpu)
                holding.slot = seat.slot
                self._book.face(holding, 0, seat.fit)
                self.odd.pop(holding.pod_uid, None)
            elif holding.end is None or holding.end > self._book.settled:
                self.strays.append((holding, unit))

    # ---- names ----

    def heed(
        self, uid: str, holdings: Sequence[Holding], named: Sequence[str], sure: Collection[str]
    ) -> None:
        """Put the holdings of a pod on the GPUs that are said to be its own. `sure`: pods whose GPUs are named."""
        for name in named:
            astray = [each for each in self._settled(holdings) if each.gpu not in named]
            if not astray or any(each.gpu == name for each in holdings):
                continue
            chosen = min(astray, key=lambda each: not is_invented(each.gpu))
            if not self._move_to(name, chosen, sure):
                self.odd[uid] = f"{name} on {self.name} is said to be of several pods or nodes, or is one too many"

    def _settled(self, holdings: Iterable[Holding]) -> list[Holding]:
        """Those that go on and have a seat of their own; who found no room is moved only when there is some."""
        roomless = [stray for stray, _ in self.strays]
        return [each for each in holdings if each.end is None and each not in roomless]

    def _move_to(self, name: str, holding: Holding, sure: Collection[str]) -> bool:
        source, target = self._book.gpus[holding.gpu], next((each for each in self.gpus if each.name == name), None)
        if target is None:
            return is_invented(source.name) and self._book.is_free(name) and self._rename(source, name)
        beside = self._settled(target.holdings)
        mine = holding.pod_uid
        if self.slots[name] != self.slots[source.name] or any(
            each.pod_uid in sure and each.pod_uid != mine for each in beside
        ):
            return False
        free = [_free_since(target, holding.begin), *(_free_since(source, each.begin) for each in beside)]
        for other in beside:
            self._book.move(other, source, max(free))
        self._book.move(holding, target, max(free))
        return True

    def _rename(self, gpu: Gpu, name: str) -> bool:
        before = self._book.gpus.get(name)  # on another node, until that went
        cut = max(self._book.settled, gpu.begin, before.end or 0 if before else 0)
        renamed = self._book.add(name, cut, gpu.grounds.at(cut))
        for since, ground in zip(gpu.grounds.since, gpu.grounds.values, strict=True):
            if since > cut:
                renamed.grounds.amend(since, lambda _, ground=ground: ground)  # type: ignore[misc]
        for holding in [each for each in gpu.holdings if each.end is None or each.end > cut]:
            self._book.move(holding, renamed)
        self._book.end_gpu(gpu, cut)
        self.gpus[self.gpus.index(gpu)] = renamed
        self.slots[name] = self.slots.pop(gpu.name)
        self.groups = {group: name if on == gpu.name else on for group, on in self.groups.items()}
        return True


def _roomless_slot(gpu: Gpu, pod_uid: str) -> str:
    """Each by itself: two of one pod under one name would be booked as one."""
    taken = {each.slot for each in gpu.holdings}
    named = (f"{pod_uid}#{at}" if at else pod_uid for at in range(len(taken) + 1))
    return next(name for name in named if name not in taken)


def _part_of(unit: PhysicalUnit, pod_uid: str) -> tuple[str, Micro]:
    return ("", WHOLE) if unit.micro == WHOLE else (pod_uid, unit.micro)


def _free_since(gpu: Gpu, since: Second) -> Second:
    """Of what has ended there: who was there before is not to be two at that time."""
    ends = (each.end for each in gpu.holdings if each.end is not None and each.overlaps(since, None))
    return max(ends, default=since)


def _is_held(gpu: Gpu) -> bool:
    return any(each.end is None for each in gpu.holdings)


def _load(gpu: Gpu, begin: Second, end: Second | None) -> Micro:
    return sum(each.faces.last.share for each in gpu.holdings if each.overlaps(begin, end))
