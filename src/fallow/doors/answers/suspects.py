"""Workloads that look as if they were kept busy only to be left alone, as an answer: the evidence, and no verdict.

In: the latest turn of that story. Out: GamingPage.
"""

from __future__ import annotations

from fallow.doors import answers
from fallow.doors.answers import workloads as naming
from fallow.model import gaming as evidence
from fallow.model import units
from fallow.stories import gaming


class SuspectTold(answers.Shape, frozen=True, kw_only=True):
    """Ratios are 0 to 1, the highest of its GPUs; `every_seconds`: between the begins of two bursts."""

    workload: naming.WorkloadName
    gpus: tuple[str, ...]
    since: str
    until: str
    mean: float
    tensor_max: float
    dram_max: float
    bursts: int
    every_seconds: float
    variation: float
    sentence: str


class GamingPage(answers.Shape, frozen=True, kw_only=True):
    """`because`: why nothing is known; None where it is. `asked`: GPUs that were looked at closely."""

    items: tuple[SuspectTold, ...]
    as_of: str | None
    asked: int
    because: str | None


def list_suspects(latest: gaming.GamingTurn | None) -> tuple[SuspectTold, ...] | None:
    """None: nobody has looked, or nobody could be asked."""
    return None if latest is None or latest.because else tuple(map(_tell, latest.suspects))


def show_suspects(latest: gaming.GamingTurn | None) -> GamingPage:
    if latest is None:
        return GamingPage(items=(), as_of=None, asked=0, because="nobody has looked yet")
    return GamingPage(
        items=tuple(map(_tell, latest.suspects)), as_of=units.rfc3339(latest.at), asked=latest.asked,
        because=latest.because or None,
    )


def find_suspect(latest: gaming.GamingTurn | None, uid: str) -> str | None:
    """What speaks against one workload; None: nothing, or nobody has looked."""
    found = (one for one in (latest.suspects if latest else ()) if one.workload.uid == uid)
    return next((_tell(one).sentence for one in found), None)


def _tell(one: evidence.Suspect) -> SuspectTold:
    every, gpus = units.humane(one.every), units.many(len(one.gpus), "GPU")
    sentence = (
        f"{gpus}: a burst every {every} ({one.bursts} in 6h, evenly), {one.mean:.1%} busy in the mean, tensor cores "
        f"and memory at rest (at most {max(one.tensor, one.dram):.1%}). It may be a heartbeat: nothing is done."
    )
    return SuspectTold(
        workload=naming.reference(one.workload), gpus=one.gpus, since=units.rfc3339(one.since),
        until=units.rfc3339(one.until), mean=round(one.mean, 4), tensor_max=round(one.tensor, 4),
        dram_max=round(one.dram, 4), bursts=one.bursts, every_seconds=one.every, variation=one.variation,
        sentence=sentence,
    )
