"""`GET /api/v1/all-clusters`: this cluster and its peers, side by side and summed.

In: our own pages, and theirs, asked by GET alone when somebody looks. Out: ClustersPage.
Who answered is asked again after a quarter of a minute, who did not after a minute: nobody waits for it each time.
Invariant: nothing is written anywhere; a peer that is away, lies about its shape or lets us in no more is told as that,
and never as nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import msgspec

from fallow.clients import errors
from fallow.doors.answers import clusters, cost_books
from fallow.doors.answers.clusters import ClusterRow, ClusterSaid, PeerCosts, PeerOverview, PeerSavings
from fallow.doors.answers.overview import OverviewPage
from fallow.doors.answers.past import SavingsPage
from fallow.doors.api.leader import Away
from fallow.doors.api.questions import ReadAsk
from fallow.doors.api.refusals import Denied
from fallow.model.units import Instant, Seconds
from fallow.stories.turn import Clock
from fallow.wiring.peers import PeerDoor

T = TypeVar("T")

OVERVIEW, SAVINGS, COSTS = "/api/v1/overview", "/api/v1/savings", "/api/v1/cost/summary"
SAVED: Final = {"window": f"{clusters.SAVED_DAYS}d"}
_FRESH: Final[Seconds] = 15.0
_LEFT_ALONE: Final[Seconds] = 60.0  # who did not answer
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class PeerSight:
    """One peer, as it was last seen."""

    def __init__(self, door: PeerDoor, clock: Clock) -> None:
        self._door, self._clock = door, clock
        self._lock = asyncio.Lock()
        self._row: ClusterRow | None = None
        self._seen_at: Instant | None = None
        self._good_until: Instant = 0.0

    async def look(self) -> ClusterRow:
        """Whoever asks meanwhile waits for the same answer."""
        async with self._lock:
            left = self._good_until - self._clock()
            if self._row is None or not 0 < left <= _LEFT_ALONE:  # our clock was ahead, and went back
                self._row = await self._ask()
                self._good_until = self._clock() + (_LEFT_ALONE if self._row.sight == "away" else _FRESH)
            return self._row

    async def _ask(self) -> ClusterRow:
        peer = self._door.peer
        try:
            said = await self._read()
        except errors.ClientError as problem:
            return clusters.miss_cluster(peer.name, peer.url, _tell(problem), self._seen_at)
        self._seen_at = self._clock()
        return clusters.show_cluster(peer.name, peer.url, said, self._seen_at)

    async def _read(self) -> ClusterSaid:
        overview = _decode(await self._door.get(OVERVIEW, {}), PeerOverview)
        savings, costs = await asyncio.gather(self._find(SAVINGS, SAVED, PeerSavings), self._find(COSTS, {}, PeerCosts))
        return ClusterSaid(overview=overview, savings=savings, costs=costs)

    async def _find(self, path: str, params: dict[str, str], kind: type[T]) -> T | None:
        """None where it does not say: it keeps no books, does not show them to us, or says it in another way. What its
        GPUs do is known all the same."""
        try:
            return _decode(await self._door.get(path, params), kind)
        except errors.ClientError:
            return None


def _decode(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except _UNREADABLE:
        unlike = "it gives an answer that cannot be read: is it fallow, and of about our version?"
        raise errors.BadAnswer(unlike) from None


def _tell(problem: errors.ClientError) -> str:
    if isinstance(problem, errors.Unauthorized | errors.Forbidden):
        return f"it does not let us in: {problem}"
    return f"it does not answer: {problem}" if not isinstance(problem, errors.BadAnswer) else str(problem)


class PeerSights:
    """All peers; none: this cluster is the only one."""

    def __init__(self, doors: Sequence[PeerDoor], clock: Clock) -> None:
        self._sights = [PeerSight(door, clock) for door in doors]

    async def look(self) -> list[ClusterRow]:
        return list(await asyncio.gather(*(each.look() for each in self._sights)))


async def show(
    ask: ReadAsk, overview: OverviewPage, find_savings: Callable[[ReadAsk], Awaitable[SavingsPage]]
) -> clusters.ClustersPage:
    """Our own cluster is read as a peer would read it, and stands first."""
    peers = ask.editions.peers
    others = [] if peers is None else await peers.look()
    said = ClusterSaid(
        overview=_decode(msgspec.json.encode(overview), PeerOverview), savings=await _read_savings(ask, find_savings),
        costs=await _read_costs(ask),
    )
    return clusters.add_up([clusters.show_cluster(overview.cluster, None, said, ask.now), *others], ask.now)


async def _read_savings(
    ask: ReadAsk, find: Callable[[ReadAsk], Awaitable[SavingsPage]]
) -> PeerSavings | None:
    """Of a follower whose leader is away there is nothing to tell: what was given back is written down there."""
    if isinstance(getattr(ask.request.state, "away", None), Away):
        return None
    try:
        return PeerSavings(gpu_hours=(await find(ask)).gpu_hours)
    except (Denied, errors.ClientError):
        return None


async def _read_costs(ask: ReadAsk) -> PeerCosts | None:
    if ask.editions.books is None:
        return None
    try:
        summary = await cost_books.read_summary(ask.editions.books, ask.now, "UTC")
    except errors.ClientError:
        return None
    return _decode(msgspec.json.encode(summary), PeerCosts)
