"""What every story stands on: eyes on the cluster and on the measurements, hands, wires, the Lease, the audit.

In: what wiring/daemon.py opened. Out: a Groundwork, from which each story's own file beside this one (idle.py,
digest.py, gaming.py, books.py, sharing.py, consolidation.py) takes what it needs. The next story has a file of its own
there, and a line in daemon.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from fallow import loop, settings, telemetry, tracing
from fallow.account import audit, held_idle
from fallow.act import hands as doing
from fallow.act.notices import facts, senders
from fallow.clients.kubernetes import api as kube
from fallow.clients.kubernetes import config, lease
from fallow.clients.messages import post
from fallow.clients.prometheus import client as prometheus
from fallow.model import cluster, decision
from fallow.model.units import Instant
from fallow.observe.cluster import mirror, snapshot
from fallow.observe.scrape import source
from fallow.observe.usage import prometheus as measured
from fallow.stories import digest as digests
from fallow.stories.turn import Clock
from fallow.wiring import reach

if TYPE_CHECKING:
    from fallow.stories.idle import IdleStory
    from fallow.wiring.books import BookParts
    from fallow.wiring.forecasts import Forecasts
    from fallow.wiring.share_why import ShareExplainer

IDLE = "idle"  # the name of the story that others rest on
Usage: TypeAlias = measured.PrometheusSource | source.ScrapeSource
Note: TypeAlias = Callable[[lease.MakeChanges], Awaitable[None]]


class Later:
    """What is made of the ground, and what the ground asks all the same once it is there."""

    story: IdleStory
    looping: loop.Loop
    books: BookParts | None = None
    explainer: ShareExplainer | None = None  # why a pod shares a GPU, or not
    forecasts: Forecasts | None = None  # how long pods will run
    beside: list[Callable[[], Coroutine[Any, Any, None]]]  # what else goes on while the stories are told

    def __init__(self) -> None:
        self.beside = []

    def cycle(self) -> decision.Cycle | None:
        """The idle story's latest."""
        found = self.looping.latest(IDLE)
        return found if isinstance(found, decision.Cycle) else None

    async def read_booked(self, currency: str, since: Instant, until: Instant) -> held_idle.BookedDays | None:
        """What the books have of some days; None where none are kept."""
        if self.books is None:
            return None
        books = self.books
        return await held_idle.read_booked(books.ledger, books.sums, currency, since, until, books.saved_until())

    def find_kept_for(self, ref: cluster.Ref) -> float | None:
        """What the last acknowledgement of a workload has cost; None where nobody booked any."""
        found = self.books.acks.find_last(ref) if self.books is not None else None
        return None if found is None else found.amount


class Groundwork(msgspec.Struct, frozen=True, kw_only=True):
    """`past`: whom to ask about days and weeks. `kept`: the audit; a daemon's.
    `latest`: the idle story's cycle. `booked`: by the books, for the digest."""

    options: settings.Settings
    access: config.Access
    api: kube.Api
    home: reach.Home
    leadership: lease.Leadership
    seen: mirror.Mirror
    usage: Usage
    past: prometheus.Prometheus | None
    eyes: snapshot.Eyes
    hands: doing.Hands
    poster: post.Poster
    wires: senders.Senders
    head: facts.Letterhead
    kept: audit.Audit | None
    metrics: telemetry.Telemetry
    traces: tracing.Traces
    clock: Clock
    latest: Callable[[], decision.Cycle | None]
    booked: digests.Booked

    @property
    def namespace(self) -> str:
        """Ours."""
        return self.home.namespace

    @property
    def needs_lease(self) -> bool:
        return self.options.loop.leader_elect or self.options.mandate.acting

    @property
    def note(self) -> Note | None:
        """Writes on the Lease; None: there is none."""
        return self.leadership.note if self.needs_lease else None

    def term(self) -> int | None:
        """Of the Lease; None: nobody else leads."""
        return self.leadership.term if self.needs_lease else None

    @property
    def scraping(self) -> source.ScrapeSource | None:
        """Where exporters are read directly."""
        return self.usage if isinstance(self.usage, source.ScrapeSource) else None
