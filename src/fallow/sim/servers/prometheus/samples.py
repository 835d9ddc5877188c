"""What a Prometheus that scrapes the exporters of a pretend cluster remembers.

In: once a scrape, what the page of each node shows, or that it showed nothing. Out: series by their metric, with labels
as a scrape without honorLabels leaves them: `pod` is the exporter's own, the workload's is `exported_pod`.
Invariant: a series that the latest scrape of its target did not show is stale from that scrape on, as it is in a real
one; what is older than a day and a bit is forgotten.
"""

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from fallow import names
from fallow.model.units import DAY, HOUR, MINUTE, Instant, Seconds
from fallow.sim.servers import dcgm
from fallow.sim.world import shapes

KEPT: Final[Seconds] = DAY + HOUR  # the longest question reaches back a day
LOOKBACK: Final[Seconds] = 5 * MINUTE  # how old a sample may be that still tells of now
_RENAMED: Final = ("container", "namespace", "pod")  # labels that both the target and the page have


class KeptTarget(msgspec.Struct):
    """An exporter, and when it was asked."""

    labels: dict[str, str]
    asked: "array[float]"


class KeptSeries(msgspec.Struct):
    """One series. Those of one line of a page are shown together, and share their times."""

    metric: str
    labels: dict[str, str]
    target: KeptTarget
    times: "array[float]"
    values: "array[float]"

    def within(self, after: Instant, until: Instant) -> tuple["array[float]", "array[float]"]:
        """Times and values in (after, until]."""
        first, last = bisect_right(self.times, after), bisect_right(self.times, until)
        return self.times[first:last], self.values[first:last]

    def overlaps(self, after: Instant, until: Instant) -> bool:
        """May there be samples in (after, until]? Most series of a day are over, or have not begun."""
        return bool(self.times) and self.times[-1] > after and self.times[0] <= until

    def newest(self, at: Instant) -> tuple[Instant, float] | None:
        """The sample that tells of this instant; None: it is too old, or its target has shown a page without it."""
        last = bisect_right(self.times, at) - 1
        if last < 0 or self.times[last] <= at - LOOKBACK:
            return None
        later = bisect_right(self.target.asked, self.times[last])
        is_stale = later < len(self.target.asked) and self.target.asked[later] <= at
        return None if is_stale else (self.times[last], self.values[last])


class KeptSamples:
    """`ports`: of each node's exporter."""

    def __init__(self, ports: Mapping[str, int]) -> None:
        self._targets: dict[str, KeptTarget] = {}
        self._by_metric: dict[str, list[KeptSeries]] = {}
        self._up: dict[str, KeptSeries] = {}
        self._gone = set[str]()  # nodes that are asked no more
        self._held: dict[tuple[str, dcgm.Hold], list[KeptSeries]] = {}
        for node, port in ports.items():
            self.follow(node, port)
        self._swept: Instant = 0.0

    def follow(self, node: str, port: int) -> None:
        made = self._targets[node] = KeptTarget(_label_target(node, port), array("d"))
        self._up[node] = self._begin("up", made.labels, made, made.asked)

    def follows(self, node: str) -> bool:
        return node in self._targets and node not in self._gone

    def forget(self, node: str) -> None:
        """It is asked no more; what it said stays."""
        self._gone.add(node)

    def of(self, metric: str) -> Sequence[KeptSeries]:
        return self._by_metric.get(metric, ())

    def all(self) -> Iterator[KeptSeries]:
        return (one for some in self._by_metric.values() for one in some)

    def oldest(self) -> Instant:
        """The first scrape that is remembered: of what was before, nothing is known. inf: there was none."""
        return min((one.asked[0] for one in self._targets.values() if one.asked), default=math.inf)

    def note(self, node: str, page: dcgm.PageValues | None, at: Instant) -> None:
        """One scrape; None: it failed."""
        self._targets[node].asked.append(at)
        self._up[node].values.append(float(page is not None))
        for hold, values in zip(page.holds, page.values, strict=True) if page is not None else ():
            held = self._held.get((node, hold)) or self._open(node, hold)
            held[0].times.append(at)
            for series, value in zip(held, dcgm.pick_shown(hold, values), strict=True):
                series.values.append(value)

    def _open(self, node: str, hold: dcgm.Hold) -> list[KeptSeries]:
        target, times = self._targets[node], array("d")
        labels = {**_rename(dcgm.labels_of(node, hold)), **target.labels}
        held = [self._begin(metric, labels, target, times) for metric in dcgm.pick_shown(hold, dcgm.METRICS)]
        self._held[node, hold] = held
        return held

    def _begin(self, metric: str, labels: dict[str, str], target: KeptTarget, times: "array[float]") -> KeptSeries:
        series = KeptSeries(metric, labels, target, times, array("d"))
        self._by_metric.setdefault(metric, []).append(series)
        return series

    def sweep(self, at: Instant) -> None:
        """After a round of scrapes: now and then, what is too old for any question is forgotten."""
        if at - self._swept < HOUR:
            return
        self._swept, before = at, at - KEPT
        held = [*self._held.values(), *([one] for one in self._up.values())]
        for times, some in ((some[0].times, some) for some in held):
            old = bisect_left(times, before)
            del times[:old]
            for series in some:
                del series.values[:old]
        self._held = {key: some for key, some in self._held.items() if some[0].times}
        self._by_metric = {metric: [one for one in some if one.times] for metric, some in self._by_metric.items()}


def _label_target(node: str, port: int) -> dict[str, str]:
    """What a scrape adds."""
    return {
        "job": names.DCGM_APP, "instance": f"127.0.0.1:{port}", "namespace": shapes.EXPORTERS,
        "pod": shapes.name_exporter(node), "container": "main",
    }


def _rename(labels: Mapping[str, str]) -> dict[str, str]:
    return {f"exported_{name}" if name in _RENAMED else name: value for name, value in labels.items()}
