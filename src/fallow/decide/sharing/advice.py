"""What a workload could do with less: a score of what it wastes, and the first way to share that is enough for it.

In: ShareFacts. Out: ShareAdvice.
Invariant: what was not measured for four fifths of the time is unknown, without a score and without savings. Nothing is
advised that has less memory than the highest use and a fifth, or less compute than the 95th percentile and a tenth.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from fallow.decide.sharing import parts
from fallow.decide.sharing.needs import COVERED, HEADROOM, MOST_MEMORY, advise_clients, advise_replicas, bound_clients
from fallow.model import gpus
from fallow.model.classes import WorkClass
from fallow.model.share_advice import AdviceKind, ShareAdvice, ShareFacts, ShareUse
from fallow.model.units import DAY, HOUR, Seconds

_COMPUTE_SPARE: Final = 1.1
_REPLICAS: Final = (8, 4, 2)
_MONTH: Final = 730  # hours
_USABLE: Final = 0.92  # of the memory as sold: ECC takes a sixteenth of GDDR, drivers some more


class _Way(msgspec.Struct, frozen=True):
    """What it is; its share of the GPUs, and the part of their price."""

    kind: AdviceKind
    because: str
    share: float
    costs: float
    model: str = ""


def advise(facts: ShareFacts) -> ShareAdvice:
    use = facts.use
    if use.gpu is None or use.memory is None or use.coverage < COVERED:
        return ShareAdvice(kind=AdviceKind.unknown, because=f"measured for {use.coverage:.0%} of the time looked at")
    score = round(60 * (1 - use.gpu) + 40 * (1 - use.memory), 1)
    found = None if use.peak is None or use.p95 is None else next(_find_ways(facts, use), None)
    replicas, clients = _count_sharers(facts, use)
    if found is None:
        return ShareAdvice(
            kind=AdviceKind.none, because=_say_none(facts), score=score, is_sure=use.seconds >= DAY,
            replicas=replicas, clients=clients,
        )
    saves = None if facts.per_hour is None else round(facts.per_hour * (1 - found.costs) * _MONTH, 2)
    return ShareAdvice(
        kind=found.kind, because=found.because, score=score, share=found.share, model=found.model, saves=saves,
        is_sure=use.seconds >= DAY, replicas=replicas, clients=clients,
    )


def _count_sharers(facts: ShareFacts, use: ShareUse) -> tuple[int | None, int | None]:
    """For who writes a GPUSharingPolicy or a GPUNodeConfig: in turns, and by MPS; no more than its people say."""
    total = _find_total(use)
    if use.gpu is None or use.peak is None or use.p95 is None or total is None or facts.each != 1:
        return None, None
    memory, compute = _need(use)
    if memory > total or facts.work is WorkClass.training:
        return 1, 1
    turns = advise_replicas(use.gpu, use.p95, largest_need=memory, gpu_memory=total)
    clients = advise_clients(compute, need=memory, gpu_memory=total, most=bound_clients(facts.most_clients))
    return min(turns, facts.most_replicas or turns), clients


def waste_hours(facts: ShareFacts, span: Seconds) -> float | None:
    """GPU-hours that were held and not used."""
    return None if facts.use.gpu is None else round((1 - facts.use.gpu) * facts.gpus * span / HOUR, 3)


def _say_none(facts: ShareFacts) -> str:
    if facts.use.peak is None or facts.use.p95 is None:
        return "how much memory or compute it needs at most is not measured"
    if not facts.each:
        return "it holds parts of GPUs already, or not every pod as many"
    return "nothing smaller is enough for it"


def _find_ways(facts: ShareFacts, use: ShareUse) -> Iterator[_Way]:
    """In the order in which they are to be tried."""
    if facts.each > 1:
        yield from _find_fewer(facts, use)
    if facts.each != 1:
        return
    if facts.work is not WorkClass.training:
        for kind in _list_kinds(use):
            yield from _MAKERS[kind](facts, use)
    yield from _find_model(facts, use)


def _list_kinds(use: ShareUse) -> tuple[AdviceKind, ...]:
    gpu, memory = use.gpu or 0.0, use.memory or 0.0
    if gpu < 0.5:
        return (AdviceKind.mig, AdviceKind.mps) if memory < 0.4 else (AdviceKind.mps,)
    return (AdviceKind.timeslicing,) if memory < 0.4 else ()


def _need(use: ShareUse) -> tuple[int, float]:
    """Memory and compute: never less."""
    return math.ceil((use.peak or 0.0) * HEADROOM), (use.p95 or 0.0) * _COMPUTE_SPARE


def _find_total(use: ShareUse) -> int | None:
    """MiB of its GPU; None: nobody knows, or no GPU has so little or so much."""
    return math.floor(use.total) if use.total is not None and 1 <= use.total <= MOST_MEMORY else None


def _find_profile(facts: ShareFacts, use: ShareUse) -> Iterator[_Way]:
    mig, (memory, compute) = facts.model.mig if facts.model is not None else None, _need(use)
    if mig is None:
        return
    enough = [
        each for each in mig.profiles
        if each.memory < mig.memory and _memory_of(each) >= memory and each.compute / mig.compute >= compute
    ]
    for profile in sorted(enough, key=lambda each: (each.memory, each.compute, each.name))[:1]:
        yield _take_part(AdviceKind.mig, profile.memory / mig.memory, f"a MIG instance {profile.name}")


def _take_part(kind: AdviceKind, share: float, because: str) -> _Way:
    return _Way(kind, because, share, share)


def _memory_of(profile: gpus.Profile) -> float:
    """Where the catalogue does not say it, what its name promises at least."""
    return profile.memory_gib * 1024 if profile.memory_gib is not None else parts.guess_memory(profile.name) or 0.0


def _find_clients(facts: ShareFacts, use: ShareUse) -> Iterator[_Way]:
    total, (memory, compute) = _find_total(use), _need(use)
    if total is None or memory > total:
        return
    clients = advise_clients(compute, need=memory, gpu_memory=total, most=bound_clients(facts.most_clients))
    if clients > 1:
        yield _take_part(AdviceKind.mps, 1 / clients, f"MPS, {clients} on a GPU")


def _find_replicas(facts: ShareFacts, use: ShareUse) -> Iterator[_Way]:
    total, (memory, compute) = _find_total(use), _need(use)
    for count in (each for each in _REPLICAS if each <= (facts.most_replicas or each)):
        if total is not None and memory * count <= total and compute * count <= 1:
            yield _take_part(AdviceKind.timeslicing, 1 / count, f"time-slicing, {count} on a GPU")


def _find_fewer(facts: ShareFacts, use: ShareUse) -> Iterator[_Way]:
    """Of several: as many as would have held and done all of it together, or as it used at all."""
    total, (memory, compute) = _find_total(use), _need(use)
    if total is None:
        return
    wanted = max(1, min(math.ceil(facts.each * max(compute, memory / total)), facts.each - _count_unused(facts, use)))
    if wanted < facts.each:
        because = f"{wanted} instead of {facts.each} GPUs for each pod"
        yield _take_part(AdviceKind.fewer, wanted / facts.each, because)


def _count_unused(facts: ShareFacts, use: ShareUse) -> int:
    """Of GPUs that a pod came back on all are new, and were never used yet; where it seems to have used none of them,
    either that or what else is said of it is not true."""
    is_true = use.seconds >= DAY and use.unused is not None and use.unused < facts.each
    return use.unused or 0 if is_true else 0


def _find_model(facts: ShareFacts, use: ShareUse) -> Iterator[_Way]:
    """The cheapest that has the memory, is as fast as it is busy, and computes in the same formats. Of a model that is
    sold in several forms the slowest counts, and of its own the fastest."""
    model = facts.model.name if facts.model is not None else ""
    own, now = gpus.SPEEDS.get(model), _find_price(facts, model)
    if own is None or now is None or _find_total(use) is None:
        return
    memory, compute = _need(use)
    enough = [
        (price, name) for name, price in facts.prices.items() if price < now
        and (speed := gpus.SPEEDS.get(name)) is not None and own.formats <= speed.formats
        and speed.tensor[0] >= own.tensor[1] * compute and speed.memory[0] >= own.memory[1] * compute
        and _count_usable(name) >= memory
    ]
    for price, name in sorted(enough)[:1]:
        yield _Way(AdviceKind.model, f"{name} instead of {model}", 1.0, price / now, name)


def _find_price(facts: ShareFacts, model: str) -> float | None:
    """None: nobody knows, or what it pays is another one."""
    price = facts.prices.get(model)
    if price is None or facts.per_hour is None:
        return None
    return price if math.isclose(facts.per_hour, price * facts.gpus, rel_tol=0.01) else None


def _count_usable(name: str) -> float:
    """MiB."""
    model = gpus.find(name)
    return model.memory_gib * 1024 * _USABLE if model is not None else 0.0


_MAKERS: Final = {
    AdviceKind.mig: _find_profile, AdviceKind.mps: _find_clients, AdviceKind.timeslicing: _find_replicas,
}


def join_uses(several: Sequence[ShareUse]) -> ShareUse:
    """Of a workload's pods: means for what is wasted, the highest for what is needed; what one lacks is not known."""
    def gather(name: str) -> list[float] | None:
        found = [getattr(each, name) for each in several]
        return None if None in found or not found else found

    names = ("gpu", "memory", "total", "peak", "p95", "unused")
    gpu, memory, total, peak, p95, unused = (gather(name) for name in names)
    return ShareUse(
        gpu=sum(gpu) / len(gpu) if gpu else None, memory=sum(memory) / len(memory) if memory else None,
        coverage=min((each.coverage for each in several), default=0.0), total=min(total) if total else None,
        peak=max(peak) if peak else None, p95=max(p95) if p95 else None, unused=int(min(unused)) if unused else None,
        seconds=min((each.seconds for each in several), default=0.0),
    )
