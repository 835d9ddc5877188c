"""The book of who held which part of which GPU from when to when, as intervals for the ledger.

In: facts about GPUs and who holds them (timeline.py), as attribution finds them; looks that saw, and gaps between them.
Out: a Batch: the intervals that are new or differ from those given out before, and which of those are no more.
Only GPUs of which a fact changed are made anew (pieces.py).
Invariant: nothing before `settled` ever changes; a clock that is set back shortens nothing.
"""

from collections.abc import Callable, Iterable

import msgspec

from fallow.account import pieces
from fallow.account.timeline import Face, Gpu, Ground, Holding, HourMean
from fallow.model import cost
from fallow.model.cost import HOUR, WHOLE, CostKey, Interval, IntervalRef, Micro, Rate, Second, SpendState


class Batch(msgspec.Struct, frozen=True):
    """What the ledger is to write. Open intervals last until `at`, those too that are not in here. One that is shorter
    than it was, or cut in two, is in both: `removed` goes first."""

    at: Second
    intervals: tuple[Interval, ...] = ()
    removed: tuple[IntervalRef, ...] = ()


def join(first: Batch, second: Batch) -> Batch:
    """Both as one: what the second says of an interval counts."""
    if not first.intervals and not first.removed:
        return second
    later = {each.ref for each in second.intervals} | set(second.removed)
    kept = tuple(each for each in first.intervals if each.ref not in later)
    removed = tuple(dict.fromkeys((*first.removed, *second.removed)))
    return Batch(second.at, (*kept, *second.intervals), removed)


class Book:
    """All GPUs of a cluster. `patience`: looks further apart than this leave a gap that nobody watched."""

    def __init__(self, begin: Second, patience: Second = 180) -> None:
        self.gpus: dict[str, Gpu] = {}
        self.settled = begin  # nothing before it may change
        self.at = begin  # of the last look that saw
        self.gaps: list[tuple[Second, Second]] = []
        self._patience, self._flushed = patience, begin
        self._touched: set[str] = set()
        self._of_pod: dict[str, list[Holding]] = {}  # of those that have not ended, by uid

    # ---- facts in ----

    def begin_look(self, now: Second) -> Second:
        """The instant of this look: a clock that was set back shortens nothing. After a gap nobody knows who worked."""
        now = max(now, self.at)
        if now - self.at > self._patience:
            self.gaps.append((self.at, now))
            self._blank(self.at)
        self.at = now
        return now

    def _blank(self, since: Second) -> None:
        for gpu in self.gpus.values():
            for holding in gpu.holdings:
                if holding.end is None:
                    self._touch(gpu, holding.faces.amend(since, _become_unknown))
            self._touch(gpu, since)

    def add(self, name: str, begin: Second, ground: Ground) -> Gpu:
        """One that went and comes again begins anew, never before it went."""
        known = self.gpus.get(name)
        begin = max(begin, self.settled, known.end or 0 if known else 0)
        gpu = self.gpus[name] = Gpu(name, begin, ground)
        self._touched.add(name)
        return gpu

    def is_free(self, name: str) -> bool:
        """May one more be called so? Not while another is: two nodes may say that they have the same one. Nor while the
        end of another is not given out."""
        known = self.gpus.get(name)
        return known is None or (known.end is not None and known.changed is None)

    def end_gpu(self, gpu: Gpu, at: Second) -> None:
        at = max(at, self.settled, gpu.begin)
        gpu.end = at
        for holding in gpu.holdings:
            if holding.end is None or holding.end > at:
                holding.end = max(at, holding.begin)
        self._touch(gpu, at)

    def ground(self, gpu: Gpu, since: Second, change: Callable[[Ground], Ground]) -> None:
        self._touch(gpu, gpu.grounds.amend(max(since, self.settled, gpu.begin), change))

    def hold(self, gpu: Gpu, holding: Holding) -> None:
        holding.begin = max(holding.begin, gpu.begin, self.settled)
        holding.faces.since[0] = holding.begin
        gpu.holdings.append(holding)
        self._of_pod.setdefault(holding.pod_uid, []).append(holding)
        self._touch(gpu, holding.begin)

    def release_pod(self, uid: str, at: Second) -> None:
        """All that it holds, and held before it was moved: its end may be heard of late."""
        for holding in self._of_pod.pop(uid, ()):
            self.release(holding, at)

    def release(self, holding: Holding, at: Second) -> None:
        at = max(at, self.settled, holding.begin)
        if holding.end is None or at < holding.end:
            holding.end = at
            self._touch(self.gpus[holding.gpu], at)

    def move(self, holding: Holding, to: Gpu, since: Second = 0) -> None:
        """To another GPU, as far back as may be: that it is there was learned late."""
        source, cut = self.gpus[holding.gpu], max(since, holding.begin, self.settled, to.begin)
        source.holdings.remove(holding)
        if cut > holding.begin:
            before = holding.split(cut)
            source.holdings.append(before)
            self._of_pod.setdefault(holding.pod_uid, []).append(before)
        holding.gpu = to.name
        to.holdings.append(holding)
        self._touch(source, cut)
        self._touch(to, cut)

    def face(self, holding: Holding, since: Second, change: Callable[[Face], Face]) -> None:
        since = max(since, self.settled, holding.begin)
        self._touch(self.gpus[holding.gpu], holding.faces.amend(since, change))

    def date_back(self, holding: Holding, since: Second, state: SpendState) -> None:
        """In this state from then on, never over a gap: what was in it nobody knows."""
        since = max(since, max((end for _, end in self.gaps), default=0))
        self.face(holding, since, lambda face: msgspec.structs.replace(face, state=state))

    def measure(self, holding: Holding, hour: Second, use: Micro, *, is_final: bool) -> None:
        known = holding.means.get(hour)
        if known is not None and known.is_final and not is_final:
            return
        holding.means[hour] = HourMean(use, is_final)
        if is_final:
            self._touch(self.gpus[holding.gpu], max(hour, self.settled))

    def burn(self, gpu: Gpu, hour: Second, energy_mj: dict[str, int]) -> None:
        """By pod."""
        gpu.energy[hour] = energy_mj
        self._touch(gpu, max(hour, self.settled))

    def settle(self, until: Second) -> None:
        """All before is rolled up."""
        self.settled = max(self.settled, until)
        self.gaps = [gap for gap in self.gaps if gap[1] > self.settled]
        for name in list(self.gpus):
            gpu = self.gpus[name]
            if gpu.end is not None and gpu.end <= self.settled and gpu.changed is None:
                del self.gpus[name]
            else:
                _forget(gpu, self.settled)

    def _touch(self, gpu: Gpu, since: Second | None) -> None:
        if since is not None:
            gpu.touch(since)
            self._touched.add(gpu.name)

    # ---- intervals out ----

    def flush(self) -> Batch:
        now = self.at
        hours = range(-(-self._flushed // HOUR) * HOUR, now, HOUR)  # that have begun since, and lasted
        if hours:  # each open one touches one hour more; at midnight it ends, also on a GPU that went after it
            for gpu in self.gpus.values():
                if gpu.end is None or gpu.end > self._flushed:
                    self._touch(gpu, max(self._flushed // HOUR * HOUR, self.settled, gpu.begin))
                    _carry_means(gpu, hours)
        self._flushed = now
        changed, removed = list[Interval](), list[IntervalRef]()
        for name in sorted(self._touched & self.gpus.keys()):
            self._remake(self.gpus[name], now, changed, removed)
        self._touched.clear()
        return Batch(now, tuple(changed), tuple(removed))

    def _remake(self, gpu: Gpu, now: Second, changed: list[Interval], removed: list[IntervalRef]) -> None:
        """The intervals of one GPU, with what differs from those given out before."""
        before = {_key_of(piece): piece for piece in gpu.pieces}
        gpu.pieces = made = pieces.make(gpu, gpu.changed or 0, now)
        gpu.changed = None
        for at, piece in enumerate(made):
            known = before.pop(_key_of(piece), None)
            if piece is known:
                continue
            made[at] = kept = self._mark(piece, known)
            if kept is not known:
                changed.append(kept)
                if known is not None and kept.t1 < known.t1:  # the ledger shortens nothing: it is written anew
                    removed.append(known.ref)
        removed += [piece.ref for piece in before.values()]

    def _mark(self, piece: Interval, known: Interval | None) -> Interval:
        """With its gaps; the very one that was given out before, where it is no other."""
        if self.gaps and any(begin < piece.t1 and piece.t0 < end for begin, end in self.gaps) and not piece.gap_filled:
            piece = msgspec.structs.replace(piece, gap_filled=True)
        if known is None:
            return piece
        same = msgspec.structs.replace(piece, t1=known.t1) if piece.is_open and known.is_open else piece
        return known if same == known else piece

    def resume(self, intervals: Iterable[Interval], checkpoint: Second) -> None:
        """What the ledger has: open intervals, and those after `settled` that ended. Until the first look nothing is
        known of the time since the checkpoint."""
        self.at = self._flushed = max(self.at, checkpoint)
        for interval in sorted(intervals, key=lambda each: each.t0):
            _take_in(self, interval)
        for gpu in self.gpus.values():
            gpu.changed = None
            if not any(piece.is_open for piece in gpu.pieces):  # it went, or has another name since
                gpu.end = max(piece.t1 for piece in gpu.pieces)
            _add_up_rates(gpu, self.settled, self.at)
        self._touched.clear()


def _key_of(piece: Interval) -> tuple[str, str, Second]:
    """What its id is made of, within one GPU."""
    return piece.slice.slot, piece.slice.pod_uid, piece.t0


def _become_unknown(face: Face) -> Face:
    return msgspec.structs.replace(face, state=SpendState.use_unknown, ack_id="")


def _carry_means(gpu: Gpu, hours: Iterable[Second]) -> None:
    """Until more is known of an hour, it is as the last one was."""
    for holding in gpu.holdings:
        if holding.end is None and holding.means:
            last = holding.means[max(holding.means)].use
            holding.means |= {hour: HourMean(last) for hour in hours if hour not in holding.means}


def _forget(gpu: Gpu, settled: Second) -> None:
    """All that can play no part after it."""
    if gpu.pieces and gpu.pieces[0].t1 <= settled and gpu.changed is None:
        gpu.pieces = [piece for piece in gpu.pieces if piece.t1 > settled or piece.is_open]
    if any(holding.end is not None and holding.end <= settled for holding in gpu.holdings):
        gpu.holdings = [each for each in gpu.holdings if each.end is None or each.end > settled]
    gpu.grounds.forget_before(settled)
    gpu.energy = {hour: burned for hour, burned in gpu.energy.items() if hour + HOUR > settled}
    for holding in gpu.holdings:
        holding.faces.forget_before(settled)
        for hour in [hour for hour in holding.means if hour + HOUR <= settled]:
            del holding.means[hour]


def _take_in(book: Book, interval: Interval) -> None:
    """A fact out of the ledger."""
    one, end = interval.slice, None if interval.is_open else interval.t1
    rate = None if one.rate_nano is None else Rate(one.rate_nano * WHOLE // one.share, one.price_id)
    gpu, key = book.gpus.get(one.gpu), msgspec.structs.replace(_ground_key(one.key), sharing=cost.Sharing.idle)
    if gpu is None:
        gpu = book.gpus[one.gpu] = Gpu(one.gpu, interval.t0, Ground(key, rate))
    gpu.pieces.append(interval)
    gpu.grounds.amend(interval.t0, lambda ground: msgspec.structs.replace(ground, key=key, rate=rate))
    if one.pod_uid:
        holding = next((each for each in gpu.holdings if _goes_on(each, interval)), None)
        face = Face(one.key, one.state, one.share, ack_id=one.ack_id)
        if holding is None:
            holding = Holding(gpu.name, one.slot, one.pod_uid, one.pod_name, interval.t0, face, end)
            book.hold(gpu, holding)
        else:
            holding.faces.amend(interval.t0, lambda _: face)
            holding.end = end
        first = interval.t0 // HOUR * HOUR
        holding.means |= {
            first + at * HOUR: HourMean(use) for at, use in enumerate(interval.use)
            if use is not None and one.state is SpendState.used
        }


def _add_up_rates(gpu: Gpu, settled: Second, now: Second) -> None:
    """What all of a GPU costs is what its parts do, wherever all of them are known, as they are from `settled` on; else
    what one of them says."""
    for at in sorted({max(piece.t0, settled) for piece in gpu.pieces}):
        parts = [each.slice for each in gpu.pieces if each.t0 <= at < (max(now, at + 1) if each.is_open else each.t1)]
        rates = [one.rate_nano for one in parts if one.rate_nano is not None]
        if len(rates) == len(parts) and sum(one.share for one in parts) == WHOLE:
            rate = Rate(sum(rates), parts[0].price_id)
            gpu.grounds.amend(at, lambda ground, rate=rate: msgspec.structs.replace(ground, rate=rate))  # type: ignore[misc]


def _goes_on(holding: Holding, interval: Interval) -> bool:
    one = interval.slice
    return (holding.slot, holding.pod_uid, holding.end) == (one.slot, one.pod_uid, interval.t0)


def _ground_key(key: CostKey) -> CostKey:
    """Of the GPU itself."""
    return CostKey(
        cluster=key.cluster, node=key.node, instance_type=key.instance_type, region=key.region,
        capacity_type=key.capacity_type, gpu_model=key.gpu_model,
    )
