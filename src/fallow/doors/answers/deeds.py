"""What was done at somebody's request, as an answer."""

from collections.abc import Mapping

from fallow import names
from fallow.doors import answers
from fallow.doors.answers.workloads import WorkloadName
from fallow.model import decision, units
from fallow.model.units import Instant


class KeepWritten(answers.Shape, frozen=True, kw_only=True):
    """An acknowledgement. What it costs, and how long it was idle meanwhile, the next cycle knows."""

    until: str
    by: str
    reason: str | None
    at: str | None
    idle_seconds: float | None = None
    cost: float | None = None


class AlertSeen(answers.Shape, frozen=True, kw_only=True):
    """An alert of a budget, as somebody has seen it. `was_seen`: already before."""

    budget: str
    alert: str
    was_seen: bool


class AckChanged(answers.Shape, frozen=True, kw_only=True):
    """For live pages; no keep: it was taken back."""

    workload: WorkloadName
    keep: KeepWritten | None


class DeedTold(answers.Shape, frozen=True, kw_only=True):
    status: str
    sentence: str
    code: str | None


class FreezeStanding(answers.Shape, frozen=True, kw_only=True):
    """`answer`: what the daemon made of a freeze that was just asked for."""

    frozen: bool
    until: str | None
    reason: str | None
    answer: str | None = None


def kept(changes: Mapping[str, str | None]) -> KeepWritten:
    """As it was just written."""
    return KeepWritten(
        until=changes.get(names.ACK_UNTIL) or "", by=changes.get(names.ACK_BY) or "",
        reason=changes.get(names.ACK_REASON), at=changes.get(names.ACK_AT),
    )


def deed(outcome: decision.Outcome) -> DeedTold:
    code = None if outcome.code is None else str(outcome.code)
    return DeedTold(status=str(outcome.status), sentence=outcome.because, code=code)


def freeze(said: Mapping[str, str], now: Instant, answer: str | None = None) -> FreezeStanding:
    """As it stands on the Lease: one that cannot be read lasts until somebody takes it off."""
    until, ends = said.get(names.FROZEN_UNTIL) or None, units.read_instant(said.get(names.FROZEN_UNTIL))
    if until is None or (ends is not None and ends <= now):
        return FreezeStanding(frozen=False, until=None, reason=None, answer=answer)
    return FreezeStanding(frozen=True, until=until, reason=said.get(names.FROZEN_BECAUSE), answer=answer)
