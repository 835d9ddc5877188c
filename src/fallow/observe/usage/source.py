"""Where usage comes from: Prometheus (prometheus.py), or our own scraping (scrape/source.py).

In: who holds GPUs, the windows that the rules ask for, the instant. Out: evidence for the brain; exact idle times for
candidates.
Invariant: a source never raises for what the other side does.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from fallow.model import cluster, usage
from fallow.model.seen import Input
from fallow.model.units import Instant, Seconds
from fallow.observe.usage import rows
from fallow.observe.usage.device_use import DeviceUse


class Source(Protocol):
    @property
    def clock(self) -> Input[Instant]:
        """What time it is where the samples are dated; absent where we date them ourselves."""
        ...

    async def evidence(
        self, held: rows.Holders, windows: frozenset[Seconds], now: Instant, *, with_floors: bool = True,
        strictest: usage.Strictest | None = None,
    ) -> usage.Evidence:
        """One Usage per window, or the reason why nothing can be said. `with_floors`: a rule asks for them.
        `strictest`: what can change no verdict by these need not be there."""
        ...

    async def again(self, held: rows.Holders, windows: frozenset[Seconds], now: Instant) -> usage.Evidence:
        """The same, asked anew and for these few pods only, just before an act. Floors are as learned before."""
        ...

    async def look_back(
        self, seen: usage.Usage, wanted: usage.Candidates, held: rows.Holders, now: Instant, threshold: float
    ) -> usage.Usage:
        """`seen` with last_active and observed_since of the wanted rows (nan where nothing is known), and with all
        samples of those that several series measured one after the other."""
        ...

    async def read_hour(self, held: rows.Holders, hour: Instant, now: Instant) -> tuple[usage.HourReading, ...]:
        """What was measured of the full hour of the clock that began then. Raises what the other side does."""
        ...

    async def read_use(self, held: rows.Holders, now: Instant) -> DeviceUse:
        """How busy every board was in the last minutes, by node. Raises what the other side does."""
        ...

    async def draw(
        self, held: rows.Holders, pods: Sequence[cluster.Pod], gpus: Collection[str], span: usage.DrawnSpan,
        now: Instant,
    ) -> Mapping[str, usage.Floats]:
        """The highest activity (a ratio) of each of these GPUs of these pods, point by point; nan where nothing was
        measured. Raises for what the other side does, as `read_hour`: nothing is decided by them."""
        ...
