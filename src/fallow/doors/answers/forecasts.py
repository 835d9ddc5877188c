"""What is foretold of a workload's pods, and whether room is worth making: as commands and API tell it.

In: an Outlook, RoomAdvice. Out: ForecastTold and PreemptionPage, and the lines that people read.
Invariant: no number without the error it had on runs that it had not seen. Nothing here is ever done.
"""

from collections.abc import Iterator

from fallow.doors import answers
from fallow.model import units
from fallow.model.runs import Contender, Foretold, Outlook, Prediction, PreemptionAdvice, RoomAdvice, RoomAsked

_BY = {
    Foretold.owner: "its last runs", Foretold.group: "runs like it", Foretold.features: "what all runs have in common",
}


class ForetoldTold(answers.Shape, frozen=True, kw_only=True):
    """`error`: by how much this way was wrong on runs that it had not seen, on the mean; `median_error`: by how much
    the median of all runs was. `by`: owner, group or features."""

    value: float
    error: float
    median_error: float
    by: str
    runs: int


class ForecastTold(answers.Shape, frozen=True, kw_only=True):
    """Of one pod. `minutes`: from its beginning, `remaining_minutes`: from now. null: nothing is foretold; `because`:
    why, where none of them is. `runs` that are known, `own_runs` of its owner."""

    pod: str
    minutes: ForetoldTold | None
    remaining_minutes: ForetoldTold | None
    use: ForetoldTold | None
    runs: int
    own_runs: int
    because: str | None


class MakesRoom(answers.Shape, frozen=True, kw_only=True):
    """One that runs, and what is advised. `remaining_minutes`: null where nobody knows."""

    namespace: str
    pod: str
    node: str
    workload: str | None
    priority: int | None
    holds: dict[str, int]
    remaining_minutes: ForetoldTold | None
    should_preempt: bool
    reason: str
    because: str


class WaitsForRoom(answers.Shape, frozen=True, kw_only=True):
    """One that waits. `counts`: of all that hold as much as it asks for, how many were told what; `running`: some of
    them, those first for whom it would be worth it."""

    namespace: str
    pod: str
    workload: str | None
    priority: int | None
    asks: dict[str, int]
    since: str
    minutes: ForetoldTold | None
    should_preempt: bool
    counts: dict[str, int]
    running: tuple[MakesRoom, ...]


class PreemptionPage(answers.Shape, frozen=True, kw_only=True):
    """Advice only: fallow preempts nobody. `runs`: that are known; `because`: why none are. `all_waiting`: of whom
    `waiting` are the first; None: nobody counted."""

    as_of: str
    runs: int
    because: str | None
    all_waiting: int | None
    waiting: tuple[WaitsForRoom, ...]


def tell(of: Outlook, pod: str) -> ForecastTold:
    return ForecastTold(
        pod=pod, minutes=_tell(of.minutes), remaining_minutes=_tell(of.rest), use=_tell(of.use, digits=3),
        runs=of.runs, own_runs=of.own, because=of.because or None,
    )


NO_BOOKS = "no daemon was asked that keeps books (--cost true), which would tell how long others ran"


def know_nothing(pod: str) -> ForecastTold:
    """Of a look of one's own: it has no past."""
    return tell(Outlook(because=NO_BOOKS), pod)


def _tell(of: Prediction | None, digits: int = 1) -> ForetoldTold | None:
    return None if of is None else ForetoldTold(
        value=round(of.value, digits), error=round(of.error, digits), median_error=round(of.rival, digits),
        by=str(of.by), runs=of.samples,
    )


def tell_advice(of: RoomAdvice, now: units.Instant) -> PreemptionPage:
    return PreemptionPage(
        as_of=units.rfc3339(now), runs=of.runs, because=of.because or None, all_waiting=of.all_waiting,
        waiting=tuple(map(_tell_waiting, of.waiting)),
    )


def _tell_waiting(of: RoomAsked) -> WaitsForRoom:
    pod = of.incoming
    return WaitsForRoom(
        namespace=pod.namespace, pod=pod.name, workload=pod.owner or None, priority=pod.priority,
        asks=dict(pod.resources), since=units.rfc3339(pod.since), minutes=_tell(pod.minutes),
        should_preempt=any(advice.is_yes for _, advice in of.named),
        counts={str(reason): many for reason, many in sorted(of.counts.items())},
        running=tuple(_tell_running(each, advice) for each, advice in of.named),
    )


def _tell_running(of: Contender, advice: PreemptionAdvice) -> MakesRoom:
    return MakesRoom(
        namespace=of.namespace, pod=of.name, node=of.node, workload=of.owner or None, priority=of.priority,
        holds=dict(of.resources), remaining_minutes=_tell(of.minutes), should_preempt=advice.is_yes,
        reason=str(advice.reason), because=advice.because,
    )


def list_lines(said: ForecastTold) -> Iterator[tuple[str, str]]:
    """For a page: what each line is about, and a sentence."""
    if said.because is not None:
        yield "foretold", f"nothing: {said.because}"
    if said.minutes is not None:
        yield "will run", _say_minutes(said.minutes, f" in all ({said.pod})")
    if said.remaining_minutes is not None:
        yield "remains", _say_minutes(said.remaining_minutes)
    if said.use is not None:
        usual = f"{100 * said.use.value:.0f} % busy on the mean"
        yield "will use", f"{usual}, {_say_error(said.use, f'{100 * said.use.error:.0f} points')}"


def _say_minutes(of: ForetoldTold, more: str = "") -> str:
    return f"about {units.humane(60 * of.value)}{more}, {_say_error(of, units.humane(60 * of.error))}"


def _say_error(of: ForetoldTold, error: str) -> str:
    return f"wrong by {error} on the mean; by {_BY[Foretold(of.by)]}, of {of.runs}"
