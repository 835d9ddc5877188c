"""What stands at this very moment, of whatever kind: pauses of ours and acknowledgements, as the marks tell it.

In: workloads and acknowledgements as they are now, not as the last cycle saw them. Out: StandingPage, for the daemon's
answer and for a look of one's own alike.
"""

from collections.abc import Iterable

from fallow import verbs
from fallow.doors import answers
from fallow.doors.answers import workloads as naming
from fallow.model import cluster


class NotSeen(answers.Shape, frozen=True, kw_only=True):
    """Something of what is asked for may be there too."""

    what: str
    because: str


class StandingPage(answers.Shape, frozen=True, kw_only=True):
    paused: tuple[naming.PausedRow, ...]
    acks: tuple[naming.AckRow, ...]
    not_seen: tuple[NotSeen, ...]


def tell(
    paused: Iterable[cluster.Workload], acks: Iterable[verbs.Ack], missing: Iterable[cluster.Missing]
) -> StandingPage:
    return StandingPage(
        paused=tuple(map(naming.paused, paused)), acks=tuple(naming.acks(acks)),
        not_seen=tuple(NotSeen(what=each.what, because=each.because) for each in missing),
    )
