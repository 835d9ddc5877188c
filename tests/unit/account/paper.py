"""A ledger on paper: what the books hand out, kept in a dict; and looks at a small cluster in a test's own words."""

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
from tests.builders import World

from fallow.account import ledger_rows
from fallow.account.attribution import BookLook, GpuAttribution
from fallow.account.intervals import Batch, Book
from fallow.model import cluster, cost, decision
from fallow.model.cost import Interval, NodeBill, Rate, Second, SpendState
from fallow.model.seen import Register

DAY0: Second = 1_763_164_800  # 2025-11-15T00:00:00Z


class Paper:
    """Intervals by id; the open ones last until the last batch."""

    def __init__(self) -> None:
        self.rows: dict[str, Interval] = {}
        self.at: Second = 0
        self.written = 0

    def write(self, batch: Batch) -> None:
        for gone in batch.removed:
            del self.rows[gone.id]  # what was never written cannot go
        for each in batch.intervals:
            assert ledger_rows.find_fault(each) == ""
            assert each.id not in self.rows or each.t1 >= self.rows[each.id].t1, "the ledger shortens nothing"
            self.rows[each.id] = each
        self.at = batch.at
        self.written += len(batch.intervals)

    @property
    def intervals(self) -> list[Interval]:
        """As a reader of the ledger has them."""
        replace = msgspec.structs.replace
        return [replace(each, t1=max(each.t1, self.at)) if each.is_open else each for each in self.rows.values()]

    def cost(self, **of: Any) -> Fraction:
        """In units of the currency, exactly: rates times seconds."""
        chosen = [each for each in self.intervals if _fits(each, of)]
        return sum((Fraction((each.slice.rate_nano or 0) * (each.t1 - each.t0), 3600 * cost.UNIT) for each in chosen),
                   Fraction(0))

    def used(self, **of: Any) -> Fraction:
        return sum((_used(each) for each in self.intervals if _fits(each, of)), Fraction(0))

    def hours(self, **of: Any) -> Fraction:
        chosen = [each for each in self.intervals if _fits(each, of)]
        return sum((Fraction(each.slice.share * (each.t1 - each.t0), 3600 * cost.WHOLE) for each in chosen),
                   Fraction(0))

    def seconds(self, gpu: str) -> Counter[Second]:
        """The sum of all shares of a GPU at every second."""
        found: Counter[Second] = Counter()
        for each in self.intervals:
            if each.slice.gpu == gpu:
                for second in range(each.t0, each.t1):
                    found[second] += each.slice.share
        return found


def _fits(each: Interval, of: Mapping[str, Any]) -> bool:
    known = {"state": each.slice.state, "pod": each.slice.pod_name, "team": each.slice.key.dims.team,
             "namespace": each.slice.key.namespace, "ack": each.slice.ack_id, "node": each.slice.key.node}
    return all(known[name] == value for name, value in of.items())


def _used(each: Interval) -> Fraction:
    """What of its cost was used, hour by hour."""
    total = Fraction(0)
    if each.slice.state is not SpendState.used:
        return total
    for at, use in enumerate(each.use):
        hour = each.t0 // 3600 * 3600 + at * 3600
        seconds = max(0, min(each.t1, hour + 3600) - max(each.t0, hour))
        assert use is not None or not seconds, f"{each.slice.pod_name}: no use at {hour}"
        total += Fraction((each.slice.rate_nano or 0) * seconds * (use or 0), 3600 * cost.UNIT * cost.WHOLE)
    return total


def bill(nano: int | None, price_id: str = "p1", **more: Any) -> NodeBill:
    return NodeBill(rate=None if nano is None else Rate(nano, price_id), **more)


def held_rows(rows: list[tuple[int, str, float | None, float | None]], **more: Any) -> decision.HeldRows:
    """(pod, GPU, idle since, use) each."""
    nan, count = float("nan"), len(rows)
    return decision.HeldRows(
        pod=np.array([row[0] for row in rows], np.int32), gpu=tuple(row[1] for row in rows),
        mig=more.get("mig", np.zeros(count, np.bool_)), shared=np.zeros(count, np.bool_),
        idle_since=np.array([nan if row[2] is None else row[2] for row in rows]),
        use=np.array([nan if row[3] is None else row[3] for row in rows]),
    )


class Scene:
    """A cluster that a test changes between looks."""

    def __init__(
        self, now: Second = DAY0, *, patience: Second = 180, rolled: Second | None = None, **more: Any
    ) -> None:
        self.paper, self.world, self.bills = Paper(), World(float(now)), dict[str, NodeBill]()
        self._more, self._patience = more, patience
        self.begin(now if rolled is None else rolled)

    def begin(self, settled: Second) -> None:
        self.book = Book(settled, self._patience)
        self.books = GpuAttribution(self.book, lambda node: self.bills.get(node.name, NodeBill()), **self._more)

    def restart(self) -> None:
        """Killed, and started again on what the ledger has."""
        self.begin(self.book.settled)
        self.book.resume(self.paper.rows.values(), self.paper.at)
        self.books.resume(self.paper.at)

    def node(self, name: str, gpus: int, nano: int | None = 1_000_000_000, *, resource: str = "nvidia.com/gpu",
             offers: Mapping[str, int] | None = None, labels: Mapping[str, str] | None = None, **more: Any) -> None:
        self.world.node(name, labels=labels, product=more.pop("product", "NVIDIA-A100-SXM4-40GB"),
                        shared=more.pop("shared", False))
        offered = dict(offers or {resource: gpus})
        self.world.nodes[name] = msgspec.structs.replace(
            self.world.nodes[name], gpus=sum(offered.values()), offers=offered, **more
        )
        self.bills[name] = bill(nano)

    def look(
        self, now: Second, pods: Sequence[cluster.Pod] | None = None, departures: Any = (), rows: Any = None,
        **more: Any,
    ) -> Batch:
        found = tuple(pods if pods is not None else self.world.pods)
        # A workload's pods are places in the list that it is seen with.
        at = {pod.uid: index for index, pod in enumerate(found)}
        workloads = tuple(
            msgspec.structs.replace(one, pods=tuple(
                at[uid] for index in one.pods if (uid := self.world.pods[index].uid) in at
            ))
            for one in self.world.workloads
        )
        self.books.take(BookLook(**{
            "at": float(now), "pods": found, "nodes": Register(dict(self.world.nodes)),
            "namespaces": Register(dict(self.world.namespaces)), "workloads": workloads,
            "departures": tuple(departures), "rows": rows, "row_pods": found, **more,
        }))
        batch = self.book.flush()
        self.paper.write(batch)
        return batch
