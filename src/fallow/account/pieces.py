"""The intervals of one GPU, made of what is known of it: from one second on anew, before it as they stand.

In: a Gpu with its Holdings, the second from which on something differs, now. Out: all its intervals, the oldest first;
the open ones last. Two stretches side by side in the same hands, at the same rate and in the same state are one
interval, until midnight.
Invariant: at every second at which the GPU is there its slices come to WHOLE, and their rates to its rate.
"""

import functools
import itertools
import operator
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Final

import msgspec

from fallow.account.timeline import WHOEVER, Face, Gpu, Holding
from fallow.model import cost
from fallow.model.cost import DAY, HOUR, WHOLE, Interval, Micro, Nano, Rate, Second, Sharing, Slice, SpendState

# By name: what looks a member up in its enum each time takes longer than what it is asked for.
_USED: Final = SpendState.used
_HELD_IDLE: Final = SpendState.held_idle
_UNALLOCATED: Final = SpendState.unallocated


class _Draft(msgspec.Struct, gc=False):
    """An interval in the making. `piece`: as it was given out before."""

    slice: Slice
    t0: Second
    t1: Second
    piece: Interval | None = None
    is_open: bool = False

    def may_go_on(self, at: Second, slice_: Slice) -> bool:
        """Until midnight at the most."""
        return self.t1 == at and (bool(at % DAY) or self.t0 == at) and self.slice == slice_


def make(gpu: Gpu, since: Second, now: Second) -> list[Interval]:
    """Those that stand, and all from `since` on made anew."""
    since = min(max(since, gpu.begin), now)
    drafts = [
        _Draft(piece.slice, piece.t0, min(_end_of(piece, now), since), piece)
        for piece in gpu.pieces if piece.t0 < since
    ]
    tails = {(each.slice.slot, each.slice.pod_uid): each for each in drafts if each.t1 == since}
    cuts = _find_cuts(gpu, since, now if gpu.end is None else max(since, min(gpu.end, now)))
    for begin, end in itertools.pairwise(cuts):
        _add(gpu, drafts, tails, begin, end)
    if gpu.end is None:
        for draft in _add(gpu, drafts, tails, now, now):
            draft.is_open = True
    return _finish(gpu, drafts, since)


def _add(
    gpu: Gpu, drafts: list[_Draft], tails: dict[tuple[str, str], _Draft], begin: Second, end: Second
) -> list[_Draft]:
    """One stretch in which nothing changes."""
    met = []
    for slice_ in _slice(gpu, begin):
        key = slice_.slot, slice_.pod_uid
        draft = tails.get(key)
        if draft is None or not draft.may_go_on(begin, slice_):
            draft = tails[key] = _Draft(slice_, begin, end)
            drafts.append(draft)
        draft.t1 = end
        met.append(draft)
    return met


def _end_of(piece: Interval, now: Second) -> Second:
    return max(piece.t1, now) if piece.is_open else piece.t1


def _find_cuts(gpu: Gpu, since: Second, until: Second) -> list[Second]:
    found = {since, until, *gpu.grounds.since, *range((since // DAY + 1) * DAY, until, DAY)}
    for holding in gpu.holdings:
        found.update(holding.faces.since)
        found.add(holding.begin)
        if holding.end is not None:
            found.add(holding.end)
    return sorted([cut for cut in found if since <= cut <= until])


def _slice(gpu: Gpu, at: Second) -> list[Slice]:
    """At one instant: what each holds, and what nobody does."""
    ground = gpu.grounds.at(at)
    held = [(each, each.faces.at(at)) for each in gpu.holdings if each.covers(at)]
    rest = WHOLE - sum([face.share for _, face in held])
    if rest < 0:
        fitted = zip(held, _fit_in([face for _, face in held]), strict=True)
        held = [(each, msgspec.structs.replace(face, share=share, low=None, high=None))
                for (each, face), share in fitted if share]
        rest = WHOLE - sum([face.share for _, face in held])
    rates = _divide_rate(ground.rate, [face for _, face in held], rest)
    price_id = ground.rate.price_id if ground.rate else ""
    found = [
        Slice(
            gpu=gpu.name, slot=holding.slot, share=face.share, key=face.key, state=face.state, rate_nano=rate,
            price_id=price_id, pod_uid=holding.pod_uid, pod_name=holding.pod_name, ack_id=face.ack_id,
        )
        for (holding, face), rate in zip(held, rates, strict=False)
    ]
    if rest and ground.is_counted:
        found.append(Slice(
            gpu=gpu.name, slot="rest" if held else "", share=rest, key=ground.key, state=_UNALLOCATED,
            rate_nano=rates[-1], price_id=price_id,
        ))
    return found


def _fit_in(faces: Sequence[Face]) -> tuple[Micro, ...]:
    """What was asked for by resources counts before what stands in an annotation: else whoever writes that he has a
    GPU would take its cost off somebody else's books."""
    by_word = [face.key.sharing is Sharing.kai for face in faces]
    firm = tuple(0 if says else face.share for face, says in zip(faces, by_word, strict=True))
    if sum(firm) >= WHOLE:
        return cost.divide(WHOLE, firm)
    said = tuple(face.share if says else 0 for face, says in zip(faces, by_word, strict=True))
    return tuple(map(operator.add, firm, cost.divide(WHOLE - sum(firm), said)))


def _divide_rate(rate: Rate | None, faces: Sequence[Face], rest: Micro) -> Sequence[Nano | None]:
    """Of each share, and last of the rest. They come to the rate of the GPU, to the last nano."""
    if rate is None:
        return (None,) * (len(faces) + 1)
    if not rest and len(faces) == 1:
        return rate.nano, 0
    rates = [
        _rate_between(rate.nano, face.low, face.high) if face.low is not None and face.high is not None
        else rate.nano * face.share // WHOLE
        for face in faces
    ]
    left = rate.nano - sum(rates)
    if rates and not rest:
        rates[-1], left = rates[-1] + left, 0
    return (*rates, left)


@functools.lru_cache(4096)
def _rate_between(nano: Nano, low: Fraction, high: Fraction) -> Nano:
    return int(nano * high) - int(nano * low)


def _finish(gpu: Gpu, drafts: list[_Draft], since: Second) -> list[Interval]:
    """Drafts with what was measured in the hours from `since` on; what ended before stays as it is."""
    first, uses = since // HOUR * HOUR, _Uses(gpu, drafts, since // HOUR * HOUR)
    burned = {hour: _burns_of(gpu, drafts, hour) for hour in gpu.energy if hour >= first}
    found = []
    for index, draft in enumerate(drafts):
        piece, t0, t1 = draft.piece, draft.t0, draft.t1
        has_ended = piece is not None and t1 == piece.t1 and not piece.is_open and not draft.is_open
        if piece is not None and has_ended and t1 <= first:
            found.append(piece)
        elif t1 > t0 or draft.is_open:
            hours = range(t0 // HOUR * HOUR, max(t1, t0 + 1), HOUR)
            use, energy = uses.of(draft, hours), _burned_in(draft, hours, index, burned)
            found.append(piece if piece is not None and has_ended and (use, energy) == (piece.use, piece.energy_mj)
                         else Interval(
                slice=draft.slice, t0=t0, t1=t1, is_open=draft.is_open, use=use, energy_mj=energy,
                gap_filled=piece is not None and piece.gap_filled,
            ))
    return found


def _fill_up(values: tuple[int | None, ...], count: int) -> tuple[int | None, ...]:
    """What was given out of the first hours of an interval before."""
    return values if len(values) == count else (*values[:count], *(None,) * (count - len(values)))


class _Uses:
    """What each holder did in the hours from `first` on; found of those only that are asked for."""

    def __init__(self, gpu: Gpu, drafts: list[_Draft], first: Second) -> None:
        self._gpu, self._drafts, self._first = gpu, drafts, first
        self._known: dict[tuple[str, str], dict[Second, Micro]] = {}

    def of(self, draft: _Draft, hours: range) -> tuple[Micro | None, ...]:
        state = draft.slice.state
        if state is not _USED:
            return (0 if state is _HELD_IDLE else None,) * len(hours)
        mine = self._find(draft.slice.slot, draft.slice.pod_uid)
        before = min(len(hours), max(0, self._first - hours.start) // HOUR)
        later = tuple(map(mine.get, hours[before:] if before else hours))
        return (*_fill_up(draft.piece.use if draft.piece else (), before), *later) if before else later

    def _find(self, slot: str, pod_uid: str) -> dict[Second, Micro]:
        known = self._known.get((slot, pod_uid))
        if known is None:
            held = (each for each in reversed(self._gpu.holdings) if each.slot == slot and each.pod_uid == pod_uid)
            holding = next(held, None)
            known = {} if holding is None else _uses_of(holding, self._drafts, self._first)
            self._known[slot, pod_uid] = known
        return known


def _burned_in(
    draft: _Draft, hours: range, index: int, burned: Mapping[Second, dict[int, int]]
) -> tuple[int | None, ...]:
    known = _fill_up(draft.piece.energy_mj, len(hours)) if draft.piece else (None,) * len(hours)
    if not burned:
        return known
    return tuple(burned[hour].get(index) if hour in burned else was for hour, was in zip(hours, known, strict=True))


def _uses_of(holding: Holding, drafts: list[_Draft], first: Second) -> dict[Second, Micro]:
    """By hour, of the time in which it worked: what was measured of the whole hour was done in that part of it."""
    found = {}
    for hour, mean in holding.means.items():
        if hour >= first:
            spans = _seconds_in(holding, drafts, hour) if mean.is_final else {}
            used, idle = spans.get(_USED, 0), spans.get(_HELD_IDLE, 0)
            found[hour] = min(WHOLE, mean.use * (used + idle) // used) if used else mean.use
    return found


def _seconds_in(holding: Holding, drafts: list[_Draft], hour: Second) -> dict[SpendState, Second]:
    spans: dict[SpendState, Second] = {}
    for draft in drafts:
        if draft.slice.pod_uid == holding.pod_uid and draft.slice.slot == holding.slot:
            seconds = min(draft.t1, hour + HOUR) - max(draft.t0, hour)
            if seconds > 0:
                spans[draft.slice.state] = spans.get(draft.slice.state, 0) + seconds
    return spans


def _burns_of(gpu: Gpu, drafts: list[_Draft], hour: Second) -> dict[int, int]:
    """By draft: a pod's own where it was measured; all else by share and time."""
    weights = {
        at: (min(each.t1, hour + HOUR) - max(each.t0, hour)) * each.slice.share for at, each in enumerate(drafts)
        if each.t0 < hour + HOUR and each.t1 > hour
    }
    found = dict.fromkeys(weights, 0)
    for pod, energy in gpu.energy[hour].items():
        mine = {at: weight for at, weight in weights.items() if pod in (WHOEVER, drafts[at].slice.pod_uid)}
        of = mine or weights
        if of and any(of.values()):
            for at, part in zip(of, cost.divide(energy, tuple(of.values())), strict=True):
                found[at] += part
    return found
