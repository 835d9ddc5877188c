"""The intervals of one GPU, made of what is known of it: from one second on anew, before it as they stand.

In: a Gpu with its Holdings, the second from which on something differs, now. Out: all its intervals, the oldest first;
the open ones last. Two stretches side by side in the same hands, at the same rate and in the same state are one
interval, until midnight.
Invariant: at every second at which the GPU is there its slices come to WHOLE, and their rates to its rate.
"""

import functools
import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

import msgspec

from fallow.account.timeline import WHOEVER, Face, Gpu, Holding
from fallow.model import cost
from fallow.model.cost import DAY, HOUR, WHOLE, Interval, Micro, Nano, Rate, Second, Sharing, Slice, SpendState


class _Draft:
    """An interval in the making."""

    __slots__ = ("is_open", "piece", "slice", "t0", "t1")

    def __init__(self, slice_: Slice, t0: Second, t1: Second, piece: Interval | None = None) -> None:
        self.slice, self.t0, self.t1, self.piece, self.is_open = slice_, t0, t1, piece, False

    def may_go_on(self, at: Second, slice_: Slice) -> bool:
        """Until midnight at the most."""
        return self.t1 == at and (bool(at % DAY) or self.t0 == at) and self.slice == slice_


def make(gpu: Gpu, since: Second, now: Second) -> list[Interval]:
    """Those that stand, and all from `since` on made anew."""
    since = min(max(since, gpu.begin), now)
    kept = (piece for piece in gpu.pieces if piece.t0 < since)
    drafts = [_Draft(piece.slice, piece.t0, min(_end_of(piece, now), since), piece) for piece in kept]
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
        found.add(holding.begin)
        found.update(holding.faces.since)
        if holding.end is not None:
            found.add(holding.end)
    return sorted(cut for cut in found if since <= cut <= until)


def _slice(gpu: Gpu, at: Second) -> Iterator[Slice]:
    """At one instant: what each holds, and what nobody does."""
    ground = gpu.grounds.at(at)
    held = [(each, each.faces.at(at)) for each in gpu.holdings if each.covers(at)]
    shares = tuple(face.share for _, face in held)
    if sum(shares) > WHOLE:
        fitted = zip(held, _fit_in([face for _, face in held]), strict=True)
        held = [(each, msgspec.structs.replace(face, share=share, low=None, high=None))
                for (each, face), share in fitted if share]
        shares = tuple(face.share for _, face in held)
    rest = WHOLE - sum(shares)
    rates = _divide_rate(ground.rate, shares, tuple(face for _, face in held), rest)
    price_id = ground.rate.price_id if ground.rate else ""
    for (holding, face), share, rate in zip(held, shares, rates, strict=False):
        yield Slice(
            gpu=gpu.name, slot=holding.slot, share=share, key=face.key, state=face.state, rate_nano=rate,
            price_id=price_id, pod_uid=holding.pod_uid, pod_name=holding.pod_name, ack_id=face.ack_id,
        )
    if rest and ground.is_counted:
        yield Slice(
            gpu=gpu.name, slot="rest" if held else "", share=rest, key=ground.key, state=SpendState.unallocated,
            rate_nano=rates[-1], price_id=price_id,
        )


def _fit_in(faces: Sequence[Face]) -> tuple[Micro, ...]:
    """What was asked for by resources counts before what stands in an annotation: else whoever writes that he has a
    GPU would take its cost off somebody else's books."""
    by_word = [face.key.sharing is Sharing.kai for face in faces]
    firm = tuple(0 if says else face.share for face, says in zip(faces, by_word, strict=True))
    if sum(firm) >= WHOLE:
        return cost.divide(WHOLE, firm)
    said = tuple(face.share if says else 0 for face, says in zip(faces, by_word, strict=True))
    return tuple(map(operator.add, firm, cost.divide(WHOLE - sum(firm), said)))


def _divide_rate(
    rate: Rate | None, shares: tuple[Micro, ...], faces: tuple[Face, ...], rest: Micro
) -> tuple[Nano | None, ...]:
    """Of each share, and last of the rest. They come to the rate of the GPU, to the last nano."""
    if rate is None:
        return (None,) * (len(shares) + 1)
    if shares == (WHOLE,):
        return rate.nano, 0
    rates = [
        _rate_between(rate.nano, face.low, face.high) if face.low is not None and face.high is not None
        else rate.nano * share // WHOLE
        for share, face in zip(shares, faces, strict=True)
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
    first = since // HOUR * HOUR
    uses = {(each.slot, each.pod_uid): _uses_of(each, drafts, first) for each in gpu.holdings}
    burned = {hour: _burns_of(gpu, drafts, hour) for hour in gpu.energy if hour >= first}
    found = []
    for index, draft in enumerate(drafts):
        if draft.piece is not None and draft.t1 == draft.piece.t1 <= first and not draft.piece.is_open:
            found.append(draft.piece)
            continue
        hours = range(draft.t0 // HOUR * HOUR, max(draft.t1, draft.t0 + 1), HOUR)
        found.append(Interval(
            slice=draft.slice, t0=draft.t0, t1=draft.t1, is_open=draft.is_open,
            gap_filled=draft.piece is not None and draft.piece.gap_filled,
            use=_uses_in(draft, hours, first, uses), energy_mj=_burned_in(draft, hours, index, burned),
        ))
    return [each for each in found if each.t1 > each.t0 or each.is_open]


def _fill_up(values: tuple[int | None, ...], count: int) -> tuple[int | None, ...]:
    """What was given out of the first hours of an interval before."""
    return (*values[:count], *(None,) * (count - len(values)))


def _uses_in(
    draft: _Draft, hours: range, first: Second, uses: Mapping[tuple[str, str], dict[Second, Micro]]
) -> tuple[Micro | None, ...]:
    if draft.slice.state is SpendState.held_idle:
        return (0,) * len(hours)
    if draft.slice.state is not SpendState.used:
        return (None,) * len(hours)
    mine = uses.get((draft.slice.slot, draft.slice.pod_uid), {})
    before = min(len(hours), max(0, first - hours.start) // HOUR)
    return (*_fill_up(draft.piece.use if draft.piece else (), before), *map(mine.get, hours[before:]))


def _burned_in(
    draft: _Draft, hours: range, index: int, burned: Mapping[Second, dict[int, int]]
) -> tuple[int | None, ...]:
    known = _fill_up(draft.piece.energy_mj if draft.piece else (), len(hours))
    if not burned:
        return known
    return tuple(burned[hour].get(index) if hour in burned else was for hour, was in zip(hours, known, strict=True))


def _uses_of(holding: Holding, drafts: list[_Draft], first: Second) -> dict[Second, Micro]:
    """By hour, of the time in which it worked: what was measured of the whole hour was done in that part of it."""
    found = {}
    for hour, mean in holding.means.items():
        if hour >= first:
            spans = _seconds_in(holding, drafts, hour) if mean.is_final else {}
            used, idle = spans.get(SpendState.used, 0), spans.get(SpendState.held_idle, 0)
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
