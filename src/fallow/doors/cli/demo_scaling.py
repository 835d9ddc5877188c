"""What nodes that come and go made of the demo's day: what it cost, and what it would have cost with pausing alone.

In: the ledger and the audit of the product, the Fleet. Out: a DayScaled, and sentences for the report.
With pausing alone no node comes or goes, whatever pods do: the first nodes run all day. So what that costs needs no
second day: it is their price, by the table that the ledger is priced by, for as long as the day was.
Invariant: what was paid and saved is the ledger's, to the cent; less and more add up to the difference.
"""

from collections.abc import Iterator
from decimal import Decimal

import msgspec

from fallow.account import audit
from fallow.account.counterfactuals import METHODS
from fallow.doors.answers import cost
from fallow.doors.cli import demo_view as view
from fallow.model import cost as ledgers
from fallow.model import money, units
from fallow.model.cost import CostQuery, SavingKind
from fallow.model.history import Happened
from fallow.model.scaling_plan import GrowReason
from fallow.model.windows import TimeSpan
from fallow.sim import fleet as fleets
from fallow.sim import paying
from fallow.wiring import daemon

_NODE = ledgers.read_dimension("node")
_MOST = 10_000  # entries of the audit


class DayScaled(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of nodes; `replaced`: growths for pods of a machine that its cloud took back; `sold_out`: how often a pool
    had none to give. Money in cents: `paid`: for all nodes; `alone`: for the first ones all day; `added`: of what was
    paid, that of nodes that came. `saved`: what the ledger claims for nodes."""

    first: int
    added: int
    released: int
    taken_back: int
    replaced: int
    sold_out: int
    paid: int
    alone: int
    of_added: int
    saved: float

    @property
    def of_gone(self) -> int:
        """What the first nodes would have cost while they were not there."""
        return self.alone - (self.paid - self.of_added)

    @property
    def less(self) -> int:
        return self.alone - self.paid


async def read(
    made: daemon.Assembly, fleet: fleets.Fleet, span: TimeSpan, saved: cost.SavingLine | None
) -> DayScaled | None:
    """None: nothing is kept that could tell. `saved`: what the ledger's rows for nodes come to."""
    if made.books is None or made.audit is None:
        return None
    sums = await made.books.ledger.sums(CostQuery(begin=span.begin, end=span.end, by=(_NODE,)))
    asked = audit.AuditQuery(
        since=span.begin, until=span.end + 1, limit=_MOST,
        types=frozenset({Happened.nodes_added, Happened.node_removed, Happened.interrupted}),
    )
    entries = await made.audit.read(asked)
    came = {node.name for node in fleet.came}
    rate = sum((paying.rate_of(node) for node in fleet.first), Decimal(0))
    return DayScaled(
        first=len(fleet.first), added=len(came), sold_out=fleet.cloud.refused,
        released=sum(each.type is Happened.node_removed for each in entries),
        taken_back=sum(each.type is Happened.interrupted for each in entries),
        replaced=sum(each.reason == GrowReason.SpotReplacement for each in entries),
        paid=money.to_cent(sum(each.total.cost for each in sums)),
        of_added=money.to_cent(sum(each.total.cost for each in sums if each.key[0] in came)),
        alone=round(100 * rate * (span.end - span.begin) / 3600), saved=saved.saved if saved is not None else 0.0,
    )


def say(day: DayScaled) -> Iterator[str]:
    """For the report."""
    if not day.added and not day.released:
        return
    back = f", {day.taken_back} taken back by the cloud" if day.taken_back else ""
    first = ", and others were started before its pods were moved" if day.replaced else ""
    none = f"; {_times(day.sold_out)} a pool was sold out, and the next one was asked" if day.sold_out else ""
    yield f"nodes: {day.added} added, {day.released} released{back}{first}{none}"
    yield (
        f"released nodes saved {view.say_money(day.saved)} beyond pausing, by the ledger's rows "
        f"({METHODS[SavingKind.autoscaling]})"
    )
    more = "less" if day.less >= 0 else "more"
    yield (
        f"with scaling the day cost {_money(day.paid)}; with pausing alone its first {units.many(day.first, 'node')} "
        f"run all day, which is {_money(day.alone)} at the same prices: {_money(abs(day.less))} "
        f"({abs(day.less) / max(1, day.alone):.1%}) {more}, because those of them that were not needed went, which is "
        f"{_money(day.of_gone)}, and nodes that were added cost {_money(day.of_added)}"
        + ("" if day.less >= 0 else "; with pausing alone, pods that got these would still wait")
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _money(amount: int) -> str:
    return view.say_money(amount / 100)
